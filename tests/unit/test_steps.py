"""The two drivers of an acquisition: a thread, and a task of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import sys
from types import SimpleNamespace

import pytest

import semlock
from semlock._core import waits
from semlock._core.capi import OK, TURN
from semlock._waiting.steps import Call, Pause, insisting, run_async
from semlock._waiting.waiter import run
from support import Child, Strike


class Asleep:
    """A sleep that gives or raises something."""

    def __init__(self, result):
        self.result = result

    def pause(self):
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    async def pause_async(self):
        return self.pause()


class OneOfALock:
    """A lock object, as far as a driver knows it."""

    undone = None

    def __init__(self):
        self._native = SimpleNamespace(serial=1)

    def _undo(self, before):
        if before != self._native.serial:
            self.undone = before


def in_a_thread(steps, lock=None):
    return run(steps)


def in_a_task(steps, lock=None):
    return asyncio.run(run_async(steps, [lock] if lock else []))


both = pytest.mark.parametrize("drive", [in_a_thread, in_a_task], ids=["thread", "task"])


@both
def test_what_a_sleep_gives_is_sent_back(drive):
    def steps():
        return (yield Asleep(1)) + (yield Asleep(2))

    assert drive(steps()) == 3


@both
@pytest.mark.parametrize("error", [OSError("x"), KeyboardInterrupt(), StopIteration(7)])
def test_what_goes_wrong_in_a_sleep_is_raised_where_the_generator_stands(drive, error):
    if drive is in_a_task and not isinstance(error, OSError):
        pytest.skip("no coroutine may raise it, or it ends the loop")
    seen = []

    def steps():
        try:
            yield Asleep(error)
        except BaseException as raised:
            seen.append(raised)
            raise

    with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
        drive(steps())
    assert seen == [error]


@both
def test_a_generator_may_go_on_after_an_error(drive):
    def steps():
        try:
            yield Asleep(OSError())
        except OSError:
            return (yield Asleep("on"))

    assert drive(steps()) == "on"


@both
def test_a_generator_is_closed_though_its_traceback_is_kept(drive):
    ended = []

    def steps():
        try:
            yield Call(lambda: 1 / 0)
            yield Asleep(None)
        except ZeroDivisionError:
            yield "no sleep"  # which the driver can't carry out
        finally:
            ended.append(True)

    with pytest.raises(AttributeError) as kept:
        drive(steps())
    assert ended == [True]
    del kept


def test_an_error_of_a_wait_leaves_no_place_in_the_queue(tmp_path):
    def refuse(status, waited):
        raise RuntimeError("enough")

    path = tmp_path / "the.lock"
    with Child() as child:
        child.run(f"lock = semlock.Lock({str(path)!r}); assert lock.try_acquire()")
        lock = semlock.Lock(path, fair=True, on_wait=refuse)
        before = [*waits.under_way.values()]  # of earlier tests, whose tracebacks are kept
        with pytest.raises(RuntimeError) as kept:
            lock.acquire()
        new = [one for one in waits.under_way.values() if not any(one is old for old in before)]
        assert not any(reference() for reference in new)
        child.run("lock.release()")
    del kept


@both
def test_what_is_done_at_once_needs_no_sleep(drive):
    def steps():
        return 5
        yield

    assert drive(steps()) == 5


def test_a_task_gives_back_what_it_has_won_and_not_what_others_did():
    lock = OneOfALock()

    def wins_and_fails():
        yield Asleep(None)
        lock._native.serial += 1
        raise OSError

    with pytest.raises(OSError):
        in_a_task(wins_and_fails(), lock)
    assert lock.undone == lock._native.serial - 1

    lock = OneOfALock()

    class AnotherWins(Asleep):
        async def pause_async(self):
            lock._native.serial += 1
            raise OSError

    def sleeps():
        yield AnotherWins(None)

    with pytest.raises(OSError):
        in_a_task(sleeps(), lock)
    assert lock.undone is None


@both
def test_who_asks_once_is_patient_for_a_moment_only(drive):
    outcomes = iter([TURN, TURN, OK])
    assert drive(insisting(lambda: next(outcomes))) == OK
    assert drive(insisting(lambda: TURN)) == TURN


def test_a_coroutine_function_is_refused_in_a_thread():
    async def later():
        pass

    def steps():
        yield Call(later)

    with pytest.raises(TypeError, match="_async"):
        run(steps())
    assert in_a_task(steps()) is None
    gc.collect()


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="it counts CPython's bytecodes"
)
def test_an_interrupt_anywhere_in_the_driver_closes_the_generator():
    kept = []

    def operation():
        try:
            run(steps())
        except BaseException as error:
            kept.append(error)  # whose traceback refers to the generator
            raise

    def steps():
        begun.append(True)
        try:
            yield Asleep(None)
            yield Asleep(None)
        finally:
            ended.append(True)

    for at in itertools.count(1):
        begun, ended = [], []
        strike = Strike(at, operation, ("_waiting/steps.py", "_waiting/waiter.py"))
        assert ended == begun, strike.where
        assert sys.exc_info() == (None, None, None), "it keeps what its traceback refers to"
        if not strike.struck:
            break
    assert at > 20


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="it counts CPython's bytecodes"
)
def test_an_interrupt_anywhere_behind_a_sleep_gives_back_no_win_of_another_task():
    class AnotherWins:
        def pause_async(self):
            return self  # and no coroutine, which would complain of a strike before its start

        def __await__(self):
            lock._native.serial += 1
            return
            yield

    def steps():
        yield AnotherWins()

    for at in itertools.count(1):
        lock = OneOfALock()
        coroutine = run_async(steps(), [lock])

        def operation(task=coroutine):
            with contextlib.suppress(StopIteration):
                task.send(None)

        strike = Strike(at, operation, ("_waiting/steps.py", "_waiting/waiter.py"))
        coroutine.close()
        assert lock.undone is None, strike.where
        if not strike.struck:
            break
    assert at > 20


@both
def test_a_pause_is_no_news(drive):
    def steps():
        return (yield Pause(0.001))

    assert drive(steps()) is False
