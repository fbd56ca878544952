"""Users' functions and slow filesystems: nothing of them holds up the refresh of another lock."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading

import pytest

import semlock
import semlock.trace
from semlock import task
from semlock._core import callbacks, capi
from semlock._locks import heartbeat
from support import PATIENCE, wait_until

OFTEN = 0.002


class Watched(semlock.Lock):
    """A lock that counts its refreshes."""

    __slots__ = ("beats",)

    def __init__(self, path, **options) -> None:
        self.beats = 0
        super().__init__(path, durability="none", heartbeat=OFTEN, **options)

    def _refresh(self, patience):
        done = super()._refresh(patience)
        self.beats += done
        return done


def beats_go_on(lock: Watched, more: int = 5) -> None:
    before = lock.beats
    wait_until(lambda: lock.beats >= before + more, "the other lock is refreshed")


@pytest.fixture
def stuck():
    """Give a function that waits until the test is over, and an event of its beginning."""
    begun, end = threading.Event(), threading.Event()

    def wait(*_):
        begun.set()
        end.wait(PATIENCE)

    yield wait, begun
    end.set()


def lose(lock) -> None:
    lock.acquire()
    while True:  # it is refreshed all the time, perhaps at each look
        try:
            semlock.remove(lock.path, force=True)
        except semlock.LockHeldError:
            continue
        return


def give_up(lock) -> None:
    with pytest.raises(semlock.LockLostError):
        lock.release()


def test_an_on_lost_that_waits_holds_up_no_other_locks_refresh(tmp_path, stuck):
    wait, begun = stuck
    losing = Watched(tmp_path / "losing.lock", on_lost=wait)
    with Watched(tmp_path / "other.lock") as other:
        lose(losing)
        assert begun.wait(PATIENCE)
        beats_go_on(other)
    give_up(losing)


def test_many_that_wait_hold_up_no_other_ones_call(tmp_path, stuck):
    wait, _ = stuck
    losing = [Watched(tmp_path / f"{number}.lock", on_lost=wait) for number in range(20)]
    for lock in losing:
        lose(lock)
    told = threading.Event()
    last = Watched(tmp_path / "last.lock", on_lost=lambda *_: told.set())
    lose(last)
    assert told.wait(PATIENCE)
    for lock in [*losing, last]:
        give_up(lock)


def test_more_stuck_functions_than_there_are_threads_hold_up_no_refresh(tmp_path, stuck):
    wait, _ = stuck
    for number in range(callbacks._MOST + 10):
        callbacks.call(number, wait)
    with Watched(tmp_path / "other.lock") as other:
        beats_go_on(other)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("semlock-callback") <= callbacks._MOST
    callbacks._forget()  # the next test has threads of its own


def test_calls_for_one_lock_keep_their_order(tmp_path):
    told = queue.SimpleQueue()
    for number in range(500):
        callbacks.call("one", lambda number=number: told.put(number))
    assert [told.get(timeout=PATIENCE) for _ in range(500)] == list(range(500))


def test_a_logging_handler_that_waits_holds_up_no_refresh(tmp_path, stuck):
    wait, begun = stuck
    handler = logging.Handler()
    handler.emit = wait
    logging.getLogger("semlock").addHandler(handler)
    losing = Watched(tmp_path / "losing.lock")
    try:
        with Watched(tmp_path / "other.lock") as other:
            lose(losing)
            assert begun.wait(PATIENCE)
            beats_go_on(other)
        give_up(losing)
    finally:
        logging.getLogger("semlock").removeHandler(handler)


def test_an_audit_hook_or_log_of_events_that_waits_holds_up_no_refresh(tmp_path, stuck):
    wait, begun = stuck
    from semlock._events import tap

    def listener(event, *_):
        if event == "refresh":
            wait()

    other = Watched(tmp_path / "other.lock")
    tap.listen(listener)
    try:
        with other:
            assert begun.wait(PATIENCE)
            beats_go_on(other)
    finally:
        tap.unlisten(listener)


def test_a_clock_of_the_users_that_waits_holds_up_no_other_refresh(tmp_path, stuck):
    wait, begun = stuck
    main = threading.get_ident()

    def clock():
        if threading.get_ident() != main:
            wait()
        return 1_700_000_000.0

    slow = task.TaskLock(
        tmp_path / "slow.lock", "me", ttl=0.01, auto_refresh=True, clock=clock, audit=False
    )
    with Watched(tmp_path / "other.lock") as other:
        slow.acquire()
        assert begun.wait(PATIENCE)
        beats_go_on(other)
    slow.release()


def test_a_filesystem_that_does_not_answer_holds_up_only_its_own_locks(tmp_path, stuck):
    """The refresh of a lock on another device stands for a mount that hangs."""
    wait, begun = stuck
    elsewhere = "/dev/shm"
    if (
        sys.platform == "win32"
        or not os.access(elsewhere, os.W_OK)
        or os.stat(elsewhere).st_dev == tmp_path.stat().st_dev
    ):
        pytest.skip("there is only one filesystem here")

    class Hanging(Watched):
        __slots__ = ()

        def _refresh(self, patience):
            wait()
            return super()._refresh(patience)

    path = f"{elsewhere}/semlock-edges-{os.getpid()}.lock"
    with Hanging(path), Watched(tmp_path / "other.lock") as other:
        assert begun.wait(PATIENCE)
        beats_go_on(other)
    assert len(heartbeat._lanes) >= 2
    capi.drain_pool(elsewhere)


def test_what_exits_in_a_callback_ends_nothing(tmp_path):
    told = threading.Event()
    callbacks.call("exits", sys.exit)
    callbacks.call("exits", told.set)
    assert told.wait(PATIENCE)
