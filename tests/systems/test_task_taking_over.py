"""Taking over a task lock: which locks are stale by the rules, and which owners may take them."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

import semlock
from semlock import task
from semlock.task import ReclaimDeniedError, decode
from support import Child, take_away
from tasklib import SETUP, T0, at, foreign, lines, quiet


class TestReclaiming:
    """Reclaim Process"""

    def test_of_an_expired_lock_needs_no_name(self, path):
        foreign(path)
        lock = task.reclaim(path, "me", audit=False)
        assert lock.info.metadata["reclaimed_from"] == "them"
        assert lock.info.metadata["reclaimed_reason"] == "LOCK_EXPIRED"
        lock.release()

    @pytest.mark.parametrize(
        ("reason", "theirs", "ours"),
        [("SAME_USER", {"user_identity": "ann"}, {"user_identity": "ann"}),
         ("HIGHER_PRIVILEGE", {"environment": "local"}, {"environment": "ci"}),
         ("EMERGENCY_OVERRIDE", {}, {"purpose": "emergency"})],
    )  # fmt: skip
    def test_of_a_living_one_needs_the_reason_by_its_name(self, reason, theirs, ours, path):
        foreign(path, metadata=theirs)
        lock = quiet(path, {"owner": "me", "metadata": ours}, clock=at(T0 + 1))
        with pytest.raises(ReclaimDeniedError) as caught:
            lock.reclaim()
        assert caught.value.decision.reason == reason
        assert reason in str(caught.value) or reason == "LOCK_HELD"
        info = lock.reclaim(allow=reason)
        assert info.metadata["reclaimed_reason"] == reason
        lock.release()

    @pytest.mark.parametrize("allow", ["", 5, None, [5], b"SAME_USER", ["SAME_USER", "x"]])
    def test_needs_reasons_that_there_are(self, path, allow):
        with pytest.raises(ValueError, match="allow names one or more of SAME_USER"):
            task.reclaim(path, "me", allow=allow)
        with pytest.raises(TypeError, match="clock is a function"):
            task.reclaim(path, "me", clock=5)

    def test_without_a_reason_is_denied_whatever_is_allowed(self, path):
        foreign(path)
        with pytest.raises(ReclaimDeniedError, match="still active"):
            quiet(path, clock=at(T0 + 1)).reclaim(allow=["SAME_USER", "EMERGENCY_OVERRIDE"])

    def test_writes_who_it_was_taken_from_to_the_log(self, path):
        foreign(path)
        task.reclaim(path, "me").release()
        line = lines(path)[0]
        assert line["operation"] == "reclaim"
        assert line["details"] == {
            "existingOwner": "them", "newOwner": "me", "reason": "LOCK_EXPIRED", "priority": "high",
        }  # fmt: skip

    def test_waits_for_a_reason_if_it_is_told_to(self, path):
        foreign(path, since=int(time.time() * 1000), ttl=0.3)
        lock = task.reclaim(path, "me", timeout=30)
        assert lock.info.metadata["reclaimed_reason"] == "LOCK_EXPIRED"
        lock.release()

    def test_is_denied_at_the_end_of_that_wait_once(self, path):
        foreign(path, since=int(time.time() * 1000))
        began = time.monotonic()
        with pytest.raises(ReclaimDeniedError):
            task.reclaim(path, "me", timeout=0.1)
        assert time.monotonic() - began >= 0.1
        assert [line["operation"] for line in lines(path)] == ["denied"]

    def test_makes_a_lock_with_the_clock_the_network_and_on_lost_that_it_was_given(self, path):
        told = threading.Event()
        lock = task.reclaim(
            path, "me", ttl=0.1, auto_refresh=True, network=True, clock=at(T0), audit=False,
            on_lost=lambda *_: told.set(),
        )  # fmt: skip
        assert lock.info.timestamp == T0 / 1000
        assert lock.network is True
        take_away(path)
        assert told.wait(30)
        with pytest.raises(semlock.LockLostError):
            lock.release()

    def test_on_a_network_makes_ten_tries(self, path, monkeypatch):
        slept = []
        monkeypatch.setattr("time.sleep", slept.append)
        foreign(path, since=int(time.time() * 1000))
        with pytest.raises(ReclaimDeniedError):
            task.reclaim(path, "me", timeout=None, network=True, audit=False)
        assert slept == pytest.approx([0.1 * 2**step for step in range(9)])


class TestAcquiring:
    def test_takes_an_expired_lock(self, path):
        foreign(path)
        with quiet(path, timeout=0) as lock:
            assert lock.info.metadata["reclaimed_from"] == "them"

    def test_does_not_let_the_same_owners_text_in(self, path):
        foreign(path, owner="me")
        assert quiet(path, clock=at(T0 + 1)).try_acquire() is False

    def test_takes_the_lock_of_a_process_that_is_dead(self, path):
        with Child(SETUP) as child:
            child.run(f"lock = TaskLock({path!r}, 'it', audit=False); lock.acquire(); None")
            child.kill()
        with quiet(path, timeout=30) as lock:
            assert lock.info.metadata["reclaimed_reason"] == "HOLDER_DEAD"


class TestWaitingForOnesOwn:
    """A wait that the lock's time ends is no deadlock, whichever process took it."""

    def test_lock_whose_time_is_over_takes_it(self, path):
        now = [T0]
        mine = quiet(path, "mine", ttl=60, clock=lambda: now[0] / 1000)
        mine.acquire()
        now[0] += 60_001
        with quiet(path, clock=lambda: now[0] / 1000) as lock:
            assert lock.info.metadata["reclaimed_from"] == "mine"
        with pytest.raises(semlock.LockLostError):
            mine.release()

    def test_lock_whose_time_ends_within_the_timeout_waits_for_it(self, path):
        mine = quiet(path, "mine", ttl=0.2)
        mine.acquire()
        with quiet(path).acquire(timeout=30) as lock:
            assert lock.info.metadata["reclaimed_reason"] == "LOCK_EXPIRED"
        with pytest.raises(semlock.LockLostError):
            mine.release()

    def test_lock_by_the_same_object_begins_anew(self, path):
        lock = quiet(path, ttl=0.2)
        lock.acquire()
        token = lock.token
        lock.acquire(timeout=30)
        assert lock.token != token
        assert lock.info.metadata["reclaimed_from"] == "me"
        assert lock.try_acquire() is False
        lock.release()
        with pytest.raises(semlock.NotHeldError):
            lock.release()

    @pytest.mark.parametrize("again", ["try_acquire", "reclaim"])
    def test_lock_by_the_same_object_and_without_waiting_begins_anew(self, path, again):
        now = [T0]
        lock = quiet(path, ttl=60, clock=lambda: now[0] / 1000)
        lock.acquire()
        now[0] += 60_001
        assert getattr(lock, again)()
        assert lock.info.timestamp == now[0] / 1000
        lock.release()

    def test_lock_that_another_took_meanwhile_is_waited_for_like_any(self, path):
        now = [T0]
        lock = quiet(path, ttl=60, clock=lambda: now[0] / 1000)
        lock.acquire()
        now[0] += 60_001
        take_away(path)
        foreign(path, since=now[0])
        assert lock.try_acquire() is False
        assert not lock.held
        assert decode(Path(path).read_bytes()).owner == "them"

    @pytest.mark.parametrize("timeout", [None, 5, 1e9])
    @pytest.mark.parametrize("ttl", [3600, 1e300])
    def test_lock_that_lives_longer_or_without_an_end_of_the_wait_is_a_deadlock(
        self, path, timeout, ttl
    ):
        with quiet(path, ttl=ttl) as lock:
            for other in (lock, quiet(path)):
                with pytest.raises(semlock.LockDeadlockError):
                    other.acquire(timeout=timeout)

    def test_lock_that_is_refreshed_is_a_deadlock(self, path):
        began = time.monotonic()
        with quiet(path, ttl=0.3, auto_refresh=True) as lock:
            for other in (lock, quiet(path)):
                with pytest.raises(semlock.LockDeadlockError):
                    other.acquire(timeout=20)
        assert time.monotonic() - began < 15, "it is told at once"

    def test_lock_without_a_timeout_is_told_of_and_does_not_stand_for_an_hour(self, path):
        with quiet(path, ttl=0.5), pytest.raises(semlock.LockDeadlockError):
            quiet(path).acquire()

    def test_lock_is_waited_for_by_the_task_that_took_it_too(self, path):
        async def main():
            for timeout, error in ((30, None), (None, semlock.LockDeadlockError)):
                mine = task.AsyncTaskLock(path, "mine", ttl=0.2, audit=False)
                await mine.acquire()
                other = task.AsyncTaskLock(path, "other", audit=False)
                if error is not None:
                    with pytest.raises(error):
                        await other.acquire(timeout=timeout)
                    mine.release()
                    continue
                async with other.acquire(timeout=timeout):
                    assert other.info.metadata["reclaimed_from"] == "mine"
                with pytest.raises(semlock.LockLostError):
                    mine.release()

        asyncio.run(main())

    def test_lock_is_one_of_any_that_are_waited_for(self, path):
        mine = quiet(path, "mine", ttl=0.2)
        mine.acquire()
        other = semlock.acquire_any([quiet(path)], timeout=30)
        assert other.info.metadata["reclaimed_from"] == "mine"
        other.release()
        with pytest.raises(semlock.LockLostError):
            mine.release()

        async def main():
            mine = task.AsyncTaskLock(path, "mine", ttl=0.2, audit=False)
            await mine.acquire()
            theirs = task.AsyncTaskLock(path, "other", audit=False)
            (await semlock.acquire_any_async([theirs], timeout=30)).release()
            with pytest.raises(semlock.LockLostError):
                mine.release()

        asyncio.run(main())

    def test_lock_to_be_reclaimed_is_told_of_too(self, path):
        with quiet(path):
            with pytest.raises(semlock.LockDeadlockError):
                quiet(path).reclaim(timeout=None)
            with pytest.raises(semlock.LockDeadlockError) as caught:
                task.reclaim(path, "other", timeout=5, audit=False)
        assert str(caught.value).count(__file__) == 2  # both places are the caller's
