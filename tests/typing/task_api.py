"""The types that users of the task lock see: checked by mypy, never run."""

from typing import Any, Literal

from typing_extensions import assert_type

from semlock import LockLostError, LockStatus, policy, retry, task


def lost(lock: task.TaskLock, error: LockLostError) -> None:
    assert_type(lock.owner, task.LockOwner)
    assert_type(error.path, str | None)


def use() -> None:
    owner = task.owner_for(user="ann", session="7", purpose="automated")
    assert_type(owner, task.LockOwner)
    assert_type(owner.owner, str)
    assert_type(owner.metadata, dict[str, Any])
    assert_type(owner.environment, Literal["local", "ci", "cloud", "container"])
    lock = task.TaskLock(
        "x",
        owner,
        ttl=60,
        environment="ci",
        purpose="emergency",
        auto_refresh=True,
        network=False,
        audit=False,
        timeout=1,
        policy=task.stale() | policy.Age(60),
        retry=retry.Every(1),
        on_lost=lost,
        clock=lambda: 0.0,
    )
    with lock as entered:
        assert_type(entered, task.TaskLock)
        assert_type(entered.info, task.TaskInfo | None)
    assert_type(lock.try_acquire(), bool)
    info = lock.reclaim(allow=["SAME_USER"])
    assert_type(info, task.TaskInfo)
    assert_type(info.owner, str)
    assert_type(info.ttl, float)
    decision = task.decide(info, owner, now=0.0)
    assert_type(decision.can_reclaim, bool)
    assert_type(decision.priority, Literal["high", "medium", "low"])
    try:
        assert_type(task.reclaim("x", "pid-1@box", allow="SAME_USER"), task.TaskLock)
    except task.ReclaimDeniedError as error:
        assert_type(error.decision, task.ReclaimDecision)
    result = task.migrate("x")
    assert_type(result.info, task.TaskInfo | None)
    assert_type(result.message, str)
    assert_type(task.status("x"), LockStatus)
    assert_type(task.held_message(info, "x", now=0.0), str)
    assert_type(task.denied_message("LOCK_HELD"), str)
    assert_type(task.ttl_for("local", "interactive"), float)
    assert_type(task.decode(b""), task.TaskInfo)
    task.TaskLock("x", {"owner": "me", "metadata": {"environment": "ci"}})
    reclaimed = task.reclaim(
        "x", "me", timeout=None, network=True, on_lost=lost, clock=lambda: 0.0
    )
    assert_type(reclaimed.reclaim(timeout=5), task.TaskInfo)
    assert_type(task.decide(info, "bob"), task.ReclaimDecision)
    assert_type(task.is_network_path("x"), bool)
    task.TaskLock("x", "pid-1@box", environment="moon")  # type: ignore[arg-type]
    task.TaskLock("x")  # type: ignore[call-arg]
