"""The decision tree of the task lock, and taking over: by expiry, by proof, by name."""

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
import support
from actors import Actor, ActorError, build_shim, compiler
from faultlib import stop_after, stop_before
from semlock import task
from semlock._core import capi
from semlock.task import LockOwner, ReclaimDecision, TaskLock, decide, decode
from support import Child, overlaps, read_holds, wine_keeps_locked_names
from wine import WINE

T0 = 1761229800.0  # 2025-10-23T14:30:00.000Z
SETUP = "import semlock; from semlock import task; from semlock.task import TaskLock"


def info(*, since=T0, ttl=60, owner="pid-1@box", **metadata):
    members = {"owner": owner, "since": since * 1000, "ttl": ttl, "metadata": metadata}
    return decode(json.dumps(members).encode())


def foreign(path, **changes):
    """A lock that another program holds, by default since T0 for an hour."""
    record = {"owner": "agent-7", "since": int(T0 * 1000), "ttl": 3600, **changes}
    Path(path).write_text(json.dumps(record, indent=2))


def me(**metadata):
    return LockOwner("me", metadata)


def audit(path):
    file = Path(path).with_name(".lock_audit.log")
    return [json.loads(line) for line in file.read_text().splitlines()]


# ---------------------------------------------------------------- the tree


@pytest.mark.parametrize(
    ("existing", "owner", "now", "reason", "priority"),
    [
        (info(), me(), T0 + 60.001, "LOCK_EXPIRED", "high"),
        (info(), me(), T0 + 60, "LOCK_HELD", "low"),
        (info(since=T0 + 9999), me(), T0, "LOCK_HELD", "low"),
        (info(user_identity="ann"), me(user_identity="ann"), T0, "SAME_USER", "medium"),
        (info(user_identity="ann"), me(user_identity="bob"), T0, "LOCK_HELD", "low"),
        (info(), me(), T0, "LOCK_HELD", "low"),
        (info(user_identity=""), me(user_identity=""), T0, "LOCK_HELD", "low"),
        (info(user_identity="ann"), me(), T0, "LOCK_HELD", "low"),
        (info(), me(user_identity="ann"), T0, "LOCK_HELD", "low"),
        (info(environment="local"), me(environment="ci"), T0, "HIGHER_PRIVILEGE", "medium"),
        (info(environment="cloud"), me(environment="ci"), T0, "HIGHER_PRIVILEGE", "medium"),
        (info(environment="local"), me(environment="cloud"), T0, "HIGHER_PRIVILEGE", "medium"),
        (info(environment="ci"), me(environment="local"), T0, "LOCK_HELD", "low"),
        (info(environment="ci"), me(environment="ci"), T0, "LOCK_HELD", "low"),
        (info(environment="container"), me(environment="ci"), T0, "LOCK_HELD", "low"),
        (info(environment="ci"), me(environment="container"), T0, "LOCK_HELD", "low"),
        (info(), me(environment="ci"), T0, "LOCK_HELD", "low"),
        (info(), me(purpose="emergency"), T0, "EMERGENCY_OVERRIDE", "high"),
        (info(purpose="emergency"), me(), T0, "LOCK_HELD", "low"),
    ],
)  # fmt: skip
def test_the_tree_says(existing, owner, now, reason, priority):
    decision = decide(existing, owner, now=now)
    assert (decision.reason, decision.priority) == (reason, priority)
    assert decision.can_reclaim is bool(decision) is (reason != "LOCK_HELD")


def test_the_tree_asks_in_its_order():
    existing = info(user_identity="ann", environment="local")
    owner = me(user_identity="ann", environment="ci", purpose="emergency")
    assert decide(existing, owner, now=T0 + 61).reason == "LOCK_EXPIRED"
    assert decide(existing, owner, now=T0).reason == "SAME_USER"
    owner = me(environment="ci", purpose="emergency")
    assert decide(existing, owner, now=T0).reason == "HIGHER_PRIVILEGE"
    assert decide(existing, me(purpose="emergency"), now=T0).reason == "EMERGENCY_OVERRIDE"


def test_the_tree_takes_the_present_time_if_none_is_said():
    assert decide(info(), me()).reason == "LOCK_EXPIRED"
    assert decide(info(since=4e9), me()).reason == "LOCK_HELD"


def test_a_decision_is_a_value():
    held, expired = ReclaimDecision("LOCK_HELD"), ReclaimDecision("LOCK_EXPIRED")
    assert held == ReclaimDecision("LOCK_HELD") != expired
    assert hash(held) == hash(pickle.loads(pickle.dumps(held)))
    assert held != "LOCK_HELD"
    assert "can_reclaim=False" in repr(held)


# The decision as the specification shows it, without the bug of its types.
SPECIFICATION = """
const isSameUser = (lock, owner) => {
  const a = lock.metadata?.user_identity, b = owner.metadata?.user_identity;
  return a && b && a === b;
};
const hasHigherPrivilege = (owner, lock) => {
  const order = ['ci', 'cloud', 'local'];
  const a = order.indexOf(owner.metadata?.environment);
  const b = order.indexOf(lock.metadata?.environment);
  return a < b && a !== -1;
};
const decide = (lock, owner, now) => {
  if (now - new Date(lock.since).getTime() > lock.ttl * 1000) return ['LOCK_EXPIRED', 'high'];
  if (isSameUser(lock, owner)) return ['SAME_USER', 'medium'];
  if (hasHigherPrivilege(owner, lock)) return ['HIGHER_PRIVILEGE', 'medium'];
  if (owner.metadata.purpose === 'emergency') return ['EMERGENCY_OVERRIDE', 'high'];
  return ['LOCK_HELD', 'low'];
};
const cases = JSON.parse(require('fs').readFileSync(0, 'utf8'));
console.log(JSON.stringify(cases.map(([lock, owner, now]) => decide(lock, owner, now))));
"""


def test_the_tree_agrees_with_the_specifications_code_in_every_case():
    if shutil.which("node") is None:
        if os.environ.get("CI"):
            pytest.fail("Node is not installed")
        pytest.skip("needs Node, which runs the specification's code")
    places = ["local", "ci", "cloud", "container"]
    cases = []
    for their_place, place, their_user, user, purpose, later in itertools.product(
        [*places, None], places, [None, "", "ann"], [None, "", "ann", "bob"],
        ["interactive", "automated", "emergency"], [-1000, 0, 60000, 60001],
    ):  # fmt: skip
        theirs = {"environment": their_place, "user_identity": their_user}
        ours = {"environment": place, "user_identity": user, "purpose": purpose}
        lock = {
            "owner": "them", "since": "2025-10-23T14:30:00.000Z", "ttl": 60,
            "metadata": {name: value for name, value in theirs.items() if value is not None},
        }  # fmt: skip
        owner = {name: value for name, value in ours.items() if value is not None}
        cases.append([lock, {"owner": "me", "metadata": owner}, int(T0 * 1000) + later])
    done = subprocess.run(
        ["node", "-e", SPECIFICATION], input=json.dumps(cases), stdout=subprocess.PIPE,
        check=True, text=True,
    )  # fmt: skip
    answers = json.loads(done.stdout)
    assert len(answers) == len(cases) == 2880
    for (lock, owner, now), (reason, priority) in zip(cases, answers, strict=True):
        existing = decode(json.dumps(lock).encode())
        decision = decide(existing, LockOwner("me", owner["metadata"]), now=now / 1000)
        assert (decision.reason, decision.priority) == (reason, priority), (lock, owner, now)


# ---------------------------------------------------------------- acquiring what is over


def test_an_expired_lock_is_taken_by_acquire_and_says_so(path):
    foreign(path)
    now = [T0 + 3600]
    assert TaskLock(path, "me", clock=lambda: now[0]).try_acquire() is False
    now[0] += 0.001
    lock = TaskLock(path, "me", clock=lambda: now[0])
    assert lock.status().state == "stale"
    assert "3600 s" in lock.status().reason
    with lock:
        assert lock.info.metadata["reclaimed_from"] == "agent-7"
        assert lock.info.metadata["reclaimed_reason"] == "LOCK_EXPIRED"
        assert task.status(path).info == lock.info
        lock.refresh()
        assert lock.info.metadata["reclaimed_from"] == "agent-7"
    with lock:
        assert "reclaimed_from" not in lock.info.metadata
    assert [line["operation"] for line in audit(path)] == [
        "reclaim", "release", "acquire", "release",
    ]  # fmt: skip


def test_the_same_owner_string_is_not_the_same_holder(path):
    foreign(path, owner="me")
    lock = TaskLock(path, "me", clock=lambda: T0 + 1)
    assert lock.try_acquire() is False
    with pytest.raises(task.ReclaimDeniedError):
        lock.reclaim()


def test_a_dead_holders_lock_is_taken_at_once(path):
    with Child(SETUP) as child:
        child.run(f"lock = TaskLock({path!r}, 'pid-1@child'); lock.try_acquire()")
        assert TaskLock(path, "me").try_acquire() is False
        child.kill()
    found = task.status(path)
    assert (found.state, found.verdict) == ("stale", "dead")
    with TaskLock(path, "me") as lock:
        assert lock.info.metadata["reclaimed_from"] == "pid-1@child"
        assert lock.info.metadata["reclaimed_reason"] == "HOLDER_DEAD"
    line = audit(path)[1]
    assert line["operation"] == "reclaim"
    assert line["details"] == {
        "existingOwner": "pid-1@child", "newOwner": "me", "reason": "HOLDER_DEAD",
        "priority": "high",
    }  # fmt: skip


def test_reclaim_takes_a_dead_holders_lock_too(path):
    with Child(SETUP) as child:
        child.run(f"lock = TaskLock({path!r}, 'pid-1@child'); lock.try_acquire()")
        child.kill()
    lock = TaskLock(path, "me")
    assert lock.reclaim().metadata["reclaimed_reason"] == "HOLDER_DEAD"
    lock.release()


@pytest.mark.parametrize("reason", ["LOCK_EXPIRED", "HOLDER_DEAD"])
def test_the_dead_are_not_robbed_but_only_removed_while_they_are_dead(
    reason, path, monkeypatch
):
    """A holder that is proven dead and turns out to live at the last look is let alone."""
    asked = []
    real = capi.remove

    def remove(place, seen, *, despite_witness):
        asked.append(despite_witness)
        return real(place, seen, despite_witness=despite_witness)

    with Child(SETUP) as child:
        child.run(f"lock = TaskLock({path!r}, 'pid-1@child', ttl=60); lock.try_acquire()")
        child.kill()
    monkeypatch.setattr(capi, "remove", remove)
    clock = (lambda: 1e11) if reason == "LOCK_EXPIRED" else time.time
    lock = TaskLock(path, "me", clock=clock)
    assert lock.reclaim().metadata["reclaimed_reason"] == reason
    lock.release()
    assert asked == [reason == "LOCK_EXPIRED"]


def test_a_foreign_process_that_does_not_exist_proves_nothing(path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    foreign(path, metadata={"process_id": child.pid})
    lock = TaskLock(path, "me", clock=lambda: T0 + 1)
    assert lock.try_acquire() is False
    with pytest.raises(task.ReclaimDeniedError, match="unknown"):
        lock.reclaim()


def test_a_policy_of_the_users_replaces_the_rule(path):
    foreign(path)
    late = {"clock": lambda: T0 + 9999}
    assert TaskLock(path, "me", policy=semlock.policy.never, **late).try_acquire() is False
    with TaskLock(path, "me", policy=lambda _: "because", clock=lambda: T0) as lock:
        assert lock.info.metadata["reclaimed_reason"] == "POLICY"
    assert audit(path)[0]["details"]["reason"] == "POLICY"
    assert "priority" not in audit(path)[0]["details"]


def test_a_lock_of_another_lock_system_is_never_expired(path):
    with semlock.Lock(path):
        lock = TaskLock(path, "me", clock=lambda: T0 + 1e9)
        assert lock.status().state == "unreadable"
        assert lock.try_acquire() is False
        assert task.Expired(lambda: 1e11)(semlock.status(path)) is None


# ---------------------------------------------------------------- reclaiming


def test_a_free_lock_is_reclaimed_like_any(path):
    lock = TaskLock(path, "me")
    assert lock.reclaim() == lock.info
    assert "reclaimed_from" not in lock.info.metadata
    lock.release()
    assert [line["operation"] for line in audit(path)] == ["acquire", "release"]


def test_an_expired_lock_is_reclaimed_without_a_name(path):
    foreign(path)
    lock = TaskLock(path, "me", clock=lambda: T0 + 3601)
    taken = lock.reclaim()
    assert (taken.owner, taken.metadata["reclaimed_from"]) == ("me", "agent-7")
    assert taken.metadata["reclaimed_reason"] == "LOCK_EXPIRED"
    lock.release()
    assert audit(path)[0] == {
        "timestamp": "2025-10-23T15:30:01.000Z", "operation": "reclaim", "lockPath": path,
        "details": {
            "existingOwner": "agent-7", "newOwner": "me", "reason": "LOCK_EXPIRED",
            "priority": "high",
        },
        "user": audit(path)[0]["user"], "pid": os.getpid(),
    }  # fmt: skip


def test_the_function_reclaims_too(path):
    foreign(path)
    lock = task.reclaim(
        path, "me", ttl=5, environment="cloud", purpose="automated", audit=False
    )
    assert lock.held
    assert (lock.ttl, lock.owner.environment) == (5, "cloud")
    lock.release()
    assert not Path(path).with_name(".lock_audit.log").exists()


ROBBERIES = {
    "SAME_USER": ({"user_identity": "ann"}, {"user_identity": "ann"}),
    "HIGHER_PRIVILEGE": ({"environment": "local"}, {"environment": "ci"}),
    "EMERGENCY_OVERRIDE": ({}, {"purpose": "emergency"}),
}


@pytest.mark.parametrize("reason", ROBBERIES)
@wine_keeps_locked_names
def test_a_living_holder_is_robbed_only_by_name_and_learns_of_it(reason, path):
    theirs, ours = ROBBERIES[reason]
    victim = TaskLock(path, LockOwner("them", theirs))
    victim.acquire()
    robber = TaskLock(path, LockOwner("me", ours))
    others = set(ROBBERIES) - {reason}
    for allow in ((), "LOCK_EXPIRED", others):
        assert robber.try_acquire() is False
        with pytest.raises(task.ReclaimDeniedError) as caught:
            robber.reclaim(allow=allow)
        assert caught.value.decision.reason == reason
        assert caught.value.decision.can_reclaim
        victim.check()
    taken = robber.reclaim(allow=reason)
    assert taken.metadata["reclaimed_from"] == "them"
    assert taken.metadata["reclaimed_reason"] == reason
    for learn in (victim.check, victim.refresh, victim.release):
        with pytest.raises(semlock.LockLostError, match="me"):
            learn()
    assert not victim.held
    robber.check()
    robber.release()
    assert [line["operation"] for line in audit(path)] == [
        "acquire", "denied", "denied", "denied", "reclaim", "lost", "release",
    ]  # fmt: skip
    assert audit(path)[1]["details"] == {
        "existingOwner": "them", "newOwner": "me", "reason": reason,
    }  # fmt: skip


def test_a_name_that_does_not_apply_takes_nothing(path):
    with TaskLock(path, LockOwner("them", {"user_identity": "ann"})) as victim:
        robber = TaskLock(path, LockOwner("me", {"user_identity": "bob"}))
        with pytest.raises(task.ReclaimDeniedError) as caught:
            robber.reclaim(allow=list(ROBBERIES))
        assert caught.value.decision.reason == "LOCK_HELD"
        victim.check()


@wine_keeps_locked_names
def test_the_first_reason_that_is_named_counts_when_several_apply(path):
    victim = TaskLock(path, LockOwner("them", {"user_identity": "ann"}))
    victim.acquire()
    robber = TaskLock(path, LockOwner("me", {"user_identity": "ann", "purpose": "emergency"}))
    taken = robber.reclaim(allow="EMERGENCY_OVERRIDE")
    assert taken.metadata["reclaimed_reason"] == "EMERGENCY_OVERRIDE"
    robber.release()
    with pytest.raises(semlock.LockLostError):
        victim.release()


@pytest.mark.parametrize("allow", ["SAME", ["SAME_USER", "LOCK_HELD"], "", [""]])
def test_a_name_that_does_not_exist_is_an_error(allow, path):
    with pytest.raises(ValueError, match="allow names one or more of SAME_USER"):
        TaskLock(path, "me").reclaim(allow=allow)


def test_an_owner_does_not_reclaim_from_itself(path):
    lock = TaskLock(path, "me", purpose="emergency")
    with lock:
        with pytest.raises(semlock.LockDeadlockError):
            lock.reclaim(allow="EMERGENCY_OVERRIDE")
        lock.check()


def test_a_denied_reclaim_can_be_pickled(path):
    foreign(path)
    with pytest.raises(task.ReclaimDeniedError) as caught:
        TaskLock(path, "me", clock=lambda: T0 + 90).reclaim()
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.decision == caught.value.decision
    assert again.status.info == caught.value.status.info
    assert isinstance(again, semlock.LockHeldError)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("LOCK_HELD", "Cannot reclaim: lock is still active and held by another"),
        ("SAME_USER", "Cannot reclaim: you already own this lock"),
        ("HIGHER_PRIVILEGE", "Your privilege is higher"),
        ("EMERGENCY_OVERRIDE", "Emergency override must be asked for"),
        ("SOMETHING", "Cannot reclaim lock: SOMETHING"),
    ],
)
def test_a_denial_is_told_in_words(reason, words):
    assert task.denied_message(reason).startswith("Cannot reclaim")
    assert words in task.denied_message(reason)


# ---------------------------------------------------------------- between processes


@wine_keeps_locked_names
def test_a_ttl_that_is_over_is_seen_by_another_process_and_its_holder_learns(path):
    with Child(SETUP) as holder:
        holder.run(
            f"lock = TaskLock({path!r}, 'pid-1@child', ttl=60, clock=lambda: {T0}); "
            "lock.try_acquire()"
        )
        assert TaskLock(path, "me", clock=lambda: T0 + 60).try_acquire() is False
        lock = TaskLock(path, "me", clock=lambda: T0 + 61)
        assert lock.status().verdict == "alive"
        assert lock.try_acquire() is True
        assert lock.info.metadata["reclaimed_reason"] == "LOCK_EXPIRED"
        for call in ("check", "refresh", "release"):
            with pytest.raises(semlock.LockLostError, match="me"):
                holder.run(f"lock.{call}()")
        lock.check()
        lock.release()


def test_a_holder_that_refreshes_in_time_keeps_its_lock(path):
    with Child(SETUP) as holder:
        holder.run(
            f"now = [{T0}]; lock = TaskLock({path!r}, 'c', ttl=60, clock=lambda: now[0]); "
            "lock.try_acquire()"
        )
        holder.run("now[0] += 45; lock.refresh()")
        assert TaskLock(path, "me", clock=lambda: T0 + 61).try_acquire() is False
        with pytest.raises(task.ReclaimDeniedError):
            TaskLock(path, "me", clock=lambda: T0 + 105).reclaim()
        holder.run("lock.release()")


def test_of_many_reclaimers_in_processes_one_wins(path):
    children = [Child(SETUP) for _ in range(4)]
    attempt = (
        f"lock = TaskLock({path!r}, 'pid-{{}}@child', durability='none')\n"
        "try:\n    lock.reclaim()\nexcept task.ReclaimDeniedError as error:\n    pass\n"
        "lock.held"
    )
    try:
        for rounds in range(1, 26):
            foreign(path)
            for child in children:
                child.send(attempt.format(child.pid))
            held = [child.receive() for child in children]
            assert held.count(True) == 1
            winner = children[held.index(True)]
            found = task.status(path)
            assert found.info.owner == f"pid-{winner.pid}@child"
            # One has removed the old lock; who was quicker than that one has just acquired.
            assert found.info.metadata.get("reclaimed_from") in ("agent-7", None)
            winner.run("lock.release()")
            assert not os.path.exists(path)
            lines = [line for line in audit(path) if line["operation"] == "reclaim"]
            assert len(lines) == rounds
            assert lines[-1]["details"]["existingOwner"] == "agent-7"
    finally:
        for child in children:
            child.close()


def test_no_holds_overlap_in_a_storm_with_others_that_look_reclaim_and_migrate(path, tmp_path):
    setup = f"""
import sys; sys.path.insert(0, {os.path.dirname(support.__file__)!r})
from support import HoldRecord
import semlock
from semlock import task
from semlock.task import TaskLock
"""
    work = """
lock = TaskLock({path!r}, 'pid-{number}@child', audit=False, durability='none')
record = HoldRecord({file!r})
for _ in range(120):
    with lock:
        record.enter(0)
        lock.refresh()
        lock.check()
        record.leave(0)
record.close()
"""
    meddle = """
lock = TaskLock({path!r}, 'meddler', audit=False, durability='none')
taken = 0
for _ in range({rounds}):
    task.status({path!r})
    task.migrate({path!r}, audit=False)
    semlock.clean({directory!r})
    try:
        lock.reclaim(allow=('SAME_USER', 'HIGHER_PRIVILEGE', 'EMERGENCY_OVERRIDE'))
        taken += 1
        lock.check()
        lock.release()
    except task.ReclaimDeniedError:
        pass
taken
"""
    files = [str(tmp_path / f"holds{number}") for number in range(3)]
    children = [Child(setup) for _ in range(4)]
    try:
        for number, file in enumerate(files):
            children[number].send(work.format(path=path, number=number, file=file))
        # Wine needs long to look at what a directory holds.
        rounds = 60 if WINE else 300
        children[3].send(meddle.format(path=path, directory=str(tmp_path), rounds=rounds))
        for child in children:
            child.receive()
    finally:
        for child in children:
            child.close()
    holds = [hold for file in files for hold in read_holds(file, None)]
    assert len(holds) == 360
    assert overlaps(holds) == []


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The library that stops a process at a system call of its core."""
    if not sys.platform.startswith("linux") or shutil.which(compiler()[0]) is None:
        pytest.skip("faults are preloaded, which needs Linux and a C compiler")
    return build_shim(tmp_path_factory.mktemp("shim"))


def test_a_name_is_given_for_the_holder_that_was_there(shim, path):
    """Wherever a robber is stopped, it robs the one that it found, and not the next."""
    slow, quick = Actor(shim, path), Actor(shim, path)
    try:
        for one, name in ((slow, "slow"), (quick, "quick")):
            one.have("task", "__import__('semlock.task').task")
            one.have("owner", f"task.LockOwner('{name}', {{'user_identity': 'ann'}})")
            one.have("robber", "task.TaskLock(path, owner, audit=False)")
        quick.have("victim", "task.TaskLock(path, owner, audit=False)")
        quick.do("set_patience(0.01)")
        quick.do("victim.try_acquire()")
        slow.do("robber.status()")
        calls_of_a_look = len(slow.calls)
        outcomes = set()
        for stop, number in itertools.product((stop_before, stop_after), range(1, 40)):
            if slow.begin("robber.reclaim(allow='SAME_USER').owner", stop(nth=number)):
                # The lock changes hands: by the same user, so the name would fit again.
                quick.do("let_go(victim)")
                quick.do("robber.try_acquire()")
            next_one = quick.do("robber.held")
            denied = None
            try:
                assert slow.finish() == "slow"
            except ActorError as error:
                denied = error.kind
            if denied is None:
                assert slow.do("robber.held")
                assert not next_one or number <= calls_of_a_look
            else:
                assert denied == "ReclaimDeniedError"
                assert next_one
                quick.do("robber.check()")
            outcomes.add(denied)
            for one, name in ((slow, "robber"), (quick, "robber"), (quick, "victim")):
                one.do(f"let_go({name})")
            assert not os.path.exists(path)
            quick.do("victim.try_acquire()")
        assert outcomes == {None, "ReclaimDeniedError"}
    finally:
        slow.close()
        quick.close()
