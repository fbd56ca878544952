"""One test for each rule of the task lock's specification, section by section.

The decision tree is written here a second time, from the specification's rules and not from
semlock's code, and compared with ``decide`` on random cases.
"""

import json
import os
import random
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

import semlock
from semlock import task
from semlock._systems.task_owner import refresh_interval
from semlock.task import LockOwner, TaskInfo, TaskLock, decide, decode
from support import content_of, take_away
from tasklib import ISO, T0, at, foreign, lines, quiet, record


class TestTheRecord:
    """Lock File Format"""

    def test_of_the_old_form_is_read(self):
        info = decode(record(owner="12345", since=T0))
        assert (info.owner, info.timestamp, info.ttl, info.old) == (
            "12345",
            T0 / 1000,
            3600,
            True,
        )

    def test_of_the_enhanced_form_is_read(self):
        metadata = {
            "hostname": "laptop", "process_id": 12345, "user_identity": "ann", "session_id": "s",
            "environment": "local", "purpose": "interactive",
        }  # fmt: skip
        info = decode(record(metadata=metadata))
        assert (info.timestamp, info.metadata, info.old) == (T0 / 1000, metadata, False)

    def test_is_written_in_the_enhanced_form(self, path):
        with quiet(path, "pid-7@box", clock=at(T0 + 5)):
            text = content_of(path).decode()
            members = json.loads(text)
            assert list(members)[:4] == ["owner", "since", "ttl", "metadata"]
            assert members["owner"] == "pid-7@box"
            assert members["since"] == "2025-10-23T14:30:00.005Z"
            assert members["ttl"] == 3600
            assert members["metadata"]["environment"] == "local"
            assert text == json.dumps(members, indent=2)

    @pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
    def test_is_private(self, path):
        with quiet(path):
            assert os.stat(path).st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("zone", ["+24:00", "-00:60", "+99:99"])
    def test_with_a_zone_that_does_not_exist_is_no_record(self, zone):
        """It would be another moment than its writer meant, perhaps days ago."""
        with pytest.raises(semlock.LockRecordError, match="zone that does not exist"):
            decode(record(since=f"2026-01-01T00:00:00{zone}"))

    def test_that_is_text_is_refused_with_a_hint(self):
        with pytest.raises(TypeError, match="bytes"):
            decode(record().decode())


class TestOwners:
    """Process Identification Strategy; Security Controls: validateLockOwner"""

    def test_of_local_processes(self):
        owner = task.owner_for(kind="pid", environ={})
        host = owner.metadata["hostname"]
        assert owner.owner == f"pid-{os.getpid()}@{host}"
        assert owner.metadata["process_id"] == os.getpid()
        assert owner.purpose == "interactive"

    def test_say_what_is_wrong_with_them_and_leave_nothing_out(self):
        for name in ("user", "session", "token"):
            for bad in ("", " \n", 5):
                with pytest.raises(ValueError, match=f"{name} is a text that is not blank"):
                    task.owner_for(**{name: bad})
        for given in ({"kind": "pid", "user": "ann"}, {"token": "t", "session": "7"}):
            with pytest.raises(ValueError, match=f"has no {[*given][-1]}"):
                task.owner_for(**given)
        assert task.owner_for(session="7").owner.endswith("@session-7")

    def test_of_users(self):
        owner = task.owner_for(
            user="john.doe@company.com", session="sess_abc", environment="local"
        )
        assert owner.owner == "user-john.doe@company.com@session-sess_abc"
        assert owner.metadata == {
            "user_identity": "john.doe@company.com", "session_id": "sess_abc",
            "environment": "local", "purpose": "interactive",
        }  # fmt: skip

    def test_of_tokens_leak_none_of_it_and_tell_two_apart(self):
        one, two = (task.owner_for(token=f"eyJhbGciOiJIUzI1NiIs.{n}") for n in "ab")
        assert one.owner.startswith("token-")
        assert "eyJ" not in one.owner
        assert one.owner != two.owner
        assert one.environment == "cloud"

    def test_of_continuous_integration(self):
        owner = task.owner_for(environ={"CI_SYSTEM": "gh", "CI_RUN_ID": "456"})
        assert (owner.owner, owner.environment, owner.purpose) == (
            "ci-gh-456",
            "ci",
            "automated",
        )

    @pytest.mark.parametrize(
        "owner",
        [{"owner": "pid-7@box", "metadata": {"environment": "ci", "purpose": "automated"}},
         {"owner": "pid-7@box", "metadata": None}, {"owner": "pid-7@box"}, "pid-7@box",
         LockOwner.from_string("pid-7@box")],
    )  # fmt: skip
    def test_are_taken_as_texts_and_as_the_specifications_objects(self, owner, path):
        with quiet(path, owner) as lock:
            assert lock.info.owner == "pid-7@box"
            expected = "ci" if isinstance(owner, dict) and owner.get("metadata") else "local"
            assert lock.info.metadata["environment"] == expected
        assert decide(decode(record()), owner, now=T0 / 1000).reason in (
            "LOCK_HELD", "HIGHER_PRIVILEGE",
        )  # fmt: skip

    @pytest.mark.parametrize(
        "owner",
        [None, 5, "", {}, {"owner": ""}, {"owner": 5}, {"owner": "x" * 257},
         {"owner": "x", "metadata": []  or [1]}, {"owner": "x", "metadata": {"color": "red"}},
         {"owner": "x", "metadata": {"environment": "mars"}},
         {"owner": "x", "metadata": {"process_id": "7"}}],
    )  # fmt: skip
    def test_that_are_invalid_are_refused(self, owner, path):
        with pytest.raises(semlock.LockRecordError):
            quiet(path, owner)

    def test_of_256_characters_are_taken_and_longer_ones_not(self, path):
        with quiet(path, "x" * 256):
            pass
        with pytest.raises(semlock.LockRecordError, match="256"):
            quiet(path, "x" * 257)


class TestTimesToLive:
    """TTL Strategy"""

    @pytest.mark.parametrize(
        ("environment", "purpose", "seconds"),
        [("local", "interactive", 3600), ("local", "automated", 1800), ("local", "emergency", 300),
         ("ci", "automated", 86400), ("ci", "interactive", 3600), ("cloud", "interactive", 7200),
         ("cloud", "automated", 14400), ("container", "interactive", 1800),
         ("container", "automated", 3600)],
    )  # fmt: skip
    def test_are_those_of_the_table(self, environment, purpose, seconds, path):
        assert task.ttl_for(environment, purpose) == seconds
        assert quiet(path, environment=environment, purpose=purpose).ttl == seconds

    @pytest.mark.parametrize("environment", ["ci", "cloud", "container"])
    def test_of_emergencies_are_short_everywhere(self, environment):
        assert task.ttl_for(environment, "emergency") == 300

    @pytest.mark.parametrize(
        ("environment", "purpose", "told"),
        [("mars", "interactive", "environment is one of local, ci, cloud, container, not 'mars'"),
         ("local", "typo", "purpose is one of interactive, automated, emergency, not 'typo'"),
         (None, "interactive", "environment"), ("local", [], "purpose")],
    )  # fmt: skip
    def test_of_what_the_table_does_not_know_are_an_error(self, environment, purpose, told):
        with pytest.raises(ValueError, match=told):
            task.ttl_for(environment, purpose)


class TestRefreshing:
    """Auto-Refresh Mechanism"""

    def test_comes_at_three_quarters_of_the_time(self):
        assert refresh_interval(3600) == 2700

    def test_writes_the_time_and_nothing_else(self, path):
        now = [T0]
        with quiet(path, clock=lambda: now[0] / 1000) as lock:
            before = json.loads(content_of(path))
            now[0] += 1234
            lock.refresh()
            after = json.loads(content_of(path))
            assert after == {**before, "since": "2025-10-23T14:30:01.234Z"}

    def test_is_refused_once_another_has_the_lock(self, path):
        lock = quiet(path)
        lock.acquire()
        take_away(path)
        foreign(path)
        with pytest.raises(semlock.LockLostError):
            lock.refresh()
        with pytest.raises(semlock.LockLostError):
            lock.release()
        assert Path(path).read_bytes() == record()

    def test_by_itself_keeps_a_lock_whose_time_would_be_over(self, path):
        with quiet(path, ttl=0.2, auto_refresh=True):
            since = {task.status(path).info.timestamp}
            end = time.monotonic() + 30
            while len(since) < 4 and time.monotonic() < end:
                found = task.status(path)
                since.add(found.info.timestamp)
            assert len(since) == 4


# ---------------------------------------------------------------- the decision tree


def the_tree(lock, owner, now):
    """The rules of "Decision Tree for Lock Reclamation", in words turned into code once more.

    1. What is older than its ttl, in milliseconds and strictly, may be reclaimed: high.
    2. So may what belongs to the same user, if both are named: medium.
    3. So may what belongs to a lower place in the order ci, cloud, local, where both places are
       in it: medium.
    4. So may anything, in an emergency: high.
    5. Nothing else may: low.
    """
    since = lock["since"]
    if isinstance(since, str):
        moment = datetime.strptime(since, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        since = round(moment.timestamp() * 1000)
    theirs, ours = lock.get("metadata") or {}, owner["metadata"]
    order = {"ci": 1, "cloud": 2, "local": 3}
    their_place, our_place = (
        order.get(theirs.get("environment")),
        order.get(ours["environment"]),
    )
    user = ours.get("user_identity")
    if now - int(since) > lock["ttl"] * 1000:
        return True, "LOCK_EXPIRED", "high"
    if user and user == theirs.get("user_identity"):
        return True, "SAME_USER", "medium"
    if our_place and their_place and our_place < their_place:
        return True, "HIGHER_PRIVILEGE", "medium"
    if ours["purpose"] == "emergency":
        return True, "EMERGENCY_OVERRIDE", "high"
    return False, "LOCK_HELD", "low"


def a_case(rng):
    """A lock, an owner and a moment, mostly near the end of the lock's time."""
    since = T0 + rng.randrange(10**9)
    ttl = rng.choice(
        [1, 60, 3600, 86400, 0.5, 0.001, 0.0015, 59.9995, round(rng.random() * 9, 4)]
    )

    def pick(*values):
        return rng.choice(values)

    theirs = {
        "environment": pick(None, "local", "ci", "cloud", "container"),
        "user_identity": pick(None, None, "", "ann", "bob"),
        "purpose": pick(None, "interactive", "automated", "emergency"),
    }  # fmt: skip
    lock = {"owner": pick("them", "pid-1@box"), "ttl": ttl}
    if rng.random() < 0.7:
        stamp = datetime.fromtimestamp(since // 1000, timezone.utc)
        lock["since"] = f"{stamp:%Y-%m-%dT%H:%M:%S}.{since % 1000:03}Z"
    else:
        lock["since"] = since + rng.choice([0, 0, 0.25, 0.75])
    if rng.random() < 0.9:
        lock["metadata"] = {name: value for name, value in theirs.items() if value is not None}
    ours = {
        "environment": pick("local", "ci", "cloud", "container"),
        "user_identity": pick(None, "", "ann", "bob"),
        "purpose": pick("interactive", "automated", "emergency"),
    }  # fmt: skip
    owner = {
        "owner": "me", "metadata": {k: v for k, v in ours.items() if v is not None},
    }  # fmt: skip
    now = (
        since
        + int(ttl * 1000)
        + rng.choice([-1, 0, 0, 1, 2, -(10**6), 10**6, rng.randrange(-99, 99)])
    )
    return lock, owner, now


def test_the_decision_tree_agrees_with_its_rules_on_20_000_random_cases():
    rng = random.Random(20251023)
    said = dict.fromkeys(
        ["LOCK_EXPIRED", "SAME_USER", "HIGHER_PRIVILEGE", "EMERGENCY_OVERRIDE", "LOCK_HELD"], 0
    )
    for _ in range(20_000):
        lock, owner, now = a_case(rng)
        decision = decide(decode(json.dumps(lock).encode()), owner, now=now / 1000)
        expected = the_tree(lock, owner, now)
        assert (decision.can_reclaim, decision.reason, decision.priority) == expected, (
            lock, owner, now,
        )  # fmt: skip
        said[decision.reason] += 1
    assert min(said.values()) > 500, said


class TestDeciding:
    @pytest.mark.parametrize("existing", [None, {}, record(), "them"])
    def test_needs_a_record_that_was_read(self, existing):
        with pytest.raises(TypeError, match=r"status\(path\).info"):
            decide(existing, "bob")

    @pytest.mark.parametrize("now", ["x", float("nan"), True, 10**400])
    def test_needs_a_time(self, now):
        with pytest.raises(ValueError, match="now is None or seconds since 1970"):
            decide(decode(record()), "bob", now=now)

    def test_takes_an_owners_text(self):
        assert decide(decode(record()), "bob", now=T0 / 1000).reason == "LOCK_HELD"

    @pytest.mark.parametrize("tenths", range(0, 1000, 37))
    def test_is_exact_to_the_millisecond_at_the_end_of_the_time(self, tenths):
        """Seconds as floats would call some locks expired at the last moment of their time."""
        since = T0 + 7919 * tenths
        info = decode(record(since=since))
        assert not info.expired((since + 3_600_000) / 1000)
        assert info.expired((since + 3_600_001) / 1000)


# ---------------------------------------------------------------- the rest


class TestNetworks:
    """Network Filesystem Compatibility"""

    def test_are_tried_ten_times_with_doubling_pauses(self):
        pauses = list(task.NETWORK_RETRY())
        assert pauses == pytest.approx([0.1 * 2**step for step in range(9)])

    def test_whose_directory_is_missing_are_an_error_that_names_it(self, tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            task.is_network_path(tmp_path / "no" / "x.lock")
        assert caught.value.filename == str(tmp_path / "no")

    def test_are_told_by_the_filesystem(self, path, names, monkeypatch):
        local = task.is_network_path(path)
        assert names() == []
        with quiet(path):
            assert task.is_network_path(path) is local
            real = semlock._core.capi.look

            def remote(name):
                seen = real(name)
                if seen is not None:
                    seen.local = not seen.local
                return seen

            monkeypatch.setattr(semlock._core.capi, "look", remote)
            assert task.is_network_path(path) is not local
        assert task.is_network_path(path) is not local

    def test_that_can_not_be_asked_are_an_error(self, tmp_path):
        with pytest.raises(OSError, match="No such file"):
            task.is_network_path(tmp_path / "nowhere" / "x.lock")


class TestTheLog:
    """Security Controls: audit logging"""

    def test_has_time_operation_path_details_user_and_pid(self, path):
        with TaskLock(path, "me"):
            pass
        for line, operation in zip(lines(path), ["acquire", "release"], strict=True):
            assert set(line) == {"timestamp", "operation", "lockPath", "details", "user", "pid"}
            assert line["operation"] == operation
            assert (line["lockPath"], line["pid"]) == (path, os.getpid())


class TestMessages:
    """Clear Error Messages"""

    def test_of_a_held_lock_name_owner_time_minutes_and_the_way_out(self):
        message = task.held_message(decode(record()), "/x.lock", now=T0 / 1000 + 600)
        for words in ("is locked by them since", "for 10 minutes", "expires in 50 minutes"):
            assert words in message

    def test_of_a_refusal_say_why(self):
        assert "still active" in task.denied_message("LOCK_HELD")
        assert "already own" in task.denied_message("SAME_USER")
        assert "asked" in task.denied_message("EMERGENCY_OVERRIDE")
        assert task.denied_message("X") == "Cannot reclaim lock: X"


class TestMigrating:
    """Migration Path"""

    def test_puts_pid_before_the_name_of_a_process(self, path):
        foreign(path, owner="12345", since=T0)
        done = task.migrate(path, audit=False, clock=at(T0 + 1))
        assert done.info.owner == "pid-12345"
        assert json.loads(Path(path).read_bytes()) == {
            "owner": "pid-12345", "since": ISO, "ttl": 3600,
            "metadata": {"environment": "local", "purpose": "interactive", "migrated": True,
                         "migrated_at": "2025-10-23T14:30:00.001Z"},
        }  # fmt: skip

    @pytest.mark.parametrize("owner", ["pid-1@box", "user-a@session-b", "token-x", "ci-gh-1"])
    def test_leaves_an_owner_that_says_its_kind(self, path, owner):
        """``pid-pid-1@box`` or ``pid-user-a@session-b`` would name nothing."""
        foreign(path, owner=owner, since=T0)
        assert task.migrate(path, audit=False).info.owner == owner

    def test_leaves_what_is_no_old_record(self, path):
        foreign(path)
        assert not task.migrate(path, audit=False)
        Path(path).write_text("garbage")
        assert not task.migrate(path, audit=False)


def test_a_record_that_drops_since_and_ttl_counts_as_held(path):
    """What the specification's own atomic_lock_unix would write."""
    Path(path).write_text(json.dumps({"owner": "pid-1@box", "metadata": {}}))
    assert task.status(path).state == "unreadable"
    assert quiet(path).try_acquire() is False


@pytest.mark.parametrize("nothing", [None, "pid-1@box", {"owner": "pid-1@box"}])
def test_what_is_no_info_of_a_lock_is_told(nothing, path):
    for call in (lambda: task.held_message(nothing, path), lambda: decide(nothing, "me")):
        with pytest.raises(TypeError, match=r"task.status\(path\).info"):
            call()


def test_an_info_is_what_status_gives(path):
    with quiet(path):
        assert isinstance(task.status(path).info, TaskInfo)
