"""What the command can be told of the locks of the five systems, and what is on record then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

import json_objects
from semlock import feature, sema, semats, sidecar, systems, task
from tests.clilib import HOLDING, command, echo, start

posix = pytest.mark.skipif(sys.platform == "win32", reason="the owner is another process there")
LONG_AGO = int(time.time()) - 5000


@pytest.fixture(autouse=True)
def no_ci(monkeypatch):
    """The owner is a process, also where these tests run in CI."""
    for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "x.lock")


@pytest.fixture
def ended():
    """A process number that was a process's."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def mine(*arguments, **options):
    """Call it as a shell does whose locks last: for this process."""
    verb, *rest = arguments
    return command(verb, "--owner-pid", str(os.getpid()), *rest, **options)


def task_lock(path):
    with open(path, "rb") as file:
        return task.decode(file.read())


def log_of(path):
    with open(os.path.join(os.path.dirname(path), ".lock_audit.log"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def foreign(path, **changes):
    """Write a lock of a task tool that goes on living, for all that is known."""
    record = {
        "owner": "editor-of-ann",
        "since": "2026-01-01T00:00:00.000Z",
        "ttl": 10**9,
        "metadata": {
            "user_identity": "ann", "session_id": "1", "environment": "local",
            "purpose": "interactive",
        },
    } | changes  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=2)


class TestTheAgeFromWhichALockMayBeTaken:
    @pytest.mark.parametrize("name", ["sema", "feature"])
    @pytest.mark.parametrize("verb", ["try", "acquire", "run"])
    def test_is_given_by_stale(self, tmp_path, name, verb):
        path = tmp_path / ("x.lock" if name == "sema" else "specs/a/.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"sema": f"pid=1\ntimestamp={LONG_AGO}\n", "feature": f"1:{LONG_AGO}"}[name]
        path.write_text(content)
        words = ["--dialect", name, str(path)]
        call = command if verb == "run" else mine
        more = [] if verb == "try" else ["-n"]
        tail = ["--", *echo("ran")] if verb == "run" else []
        assert call(verb, *more, "--stale", "0", *words, *tail).returncode == 1
        assert call(verb, *more, "--stale", "9000", *words, *tail).returncode == 1
        assert call(verb, *more, "--stale", "600", *words, *tail).returncode == 0

    def test_of_semats_counts_only_when_the_process_is_gone(self, path, ended):
        for pid, code in ((os.getpid(), 1), (ended, 0)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"pid={pid}\ntimestamp={LONG_AGO}\n")
            words = ("--dialect", "semats", "--stale", "600", path)
            assert mine("try", *words).returncode == code
        assert mine("release", "--dialect", "semats", path).returncode == 0

    def test_is_counted_by_those_who_look_too(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"pid=1\ntimestamp={LONG_AGO}\n")
        words = ("--dialect", "sema", "--stale")
        for age, state, code in (("600", "stale", 0), ("9000", "held", 1), ("0", "held", 1)):
            assert f"state: {state}" in command("status", *words, age, path).stdout
            assert command("wait", "-n", *words, age, path).returncode == code
            command("clean", "-y", *words, age, path)
            assert os.path.exists(path) == (state == "held")
            if state == "stale":
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f"pid=1\ntimestamp={LONG_AGO}\n")
        for verb in ("status", "wait", "clean"):
            assert command(verb, "--stale", "5", path).returncode == 2

    def test_is_refused_for_systems_that_do_not_go_by_age(self, path):
        for words in ((), ("--dialect", "task")):
            result = mine("try", "--stale", "5", *words, path)
            assert result.returncode == 2
            assert "--stale is for locks of sema, semats, feature and sidecar" in result.stderr
        assert not os.path.exists(path)

    @pytest.mark.parametrize("name", ["sema", "semats", "sidecar", "task"])
    def test_of_an_empty_lock_tells_nothing_of_flock(self, path, name):
        with open(path, "w", encoding="ascii"):
            pass
        of = ("--dialect", name)
        calls = [("run", "-n", *of, path, "--", *echo("ran")), ("wait", "-n", *of, path)]
        if name == "sidecar":
            calls.append(("run", "-n", *of, "--stale", "0.001", path, "--", *echo("ran")))
        else:
            calls += [("try", *of, path), ("acquire", "-n", *of, path)]
        for call in calls:
            refused = (mine if call[0] in ("try", "acquire") else command)(*call)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert "has not written its record yet" in refused.stderr
            assert ("is stale" in refused.stderr) == ("--stale" in call)
            assert "flock" not in refused.stderr
        shown = command("status", *of, path)
        assert (shown.returncode, "flock" in shown.stdout) == (1, False)
        for verb in ("status", "wait"):
            told = command(verb, *(("-n",) if verb == "wait" else ()), path)
            assert "flock" in told.stdout + told.stderr

    def test_of_a_sidecar_that_is_stale_is_told_and_exits_with_1(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write('{\n  "pid": 1,\n  "createdAt": "2020-01-01T00:00:00.000Z"\n}\n')
        words = ("run", "-n", "--dialect", "sidecar")
        result = command(*words, path, "--", *echo("ran"))
        assert (result.returncode, result.stdout) == (1, "")
        assert "is stale" in result.stderr
        assert "semlock break" in result.stderr
        assert "semlock.remove" not in result.stderr
        assert "stale_recovery" not in result.stderr
        assert command(*words, "-E", "9", path, "--", *echo("ran")).returncode == 9
        told = command(*words, "-j", path, "--", *echo("ran"))
        assert told.returncode == 1
        assert json.loads(told.stderr)["acquired"] is False
        assert command(*words, "--stale", "0", path, "--", *echo("ran")).returncode == 1


class TestSidecarLocksThatAreStale:
    """The system fails closed: nothing removes such a lock while its process may be writing."""

    RECORD = '{\n  "pid": %d,\n  "createdAt": "2020-01-01T00:00:00.000Z"\n}\n'

    @pytest.fixture
    def theirs(self, tmp_path):
        path = tmp_path / "state.json.lock"
        path.write_text(self.RECORD % os.getpid())
        return path

    def test_are_not_said_to_be_taken_by_the_next(self, theirs):
        said = command("status", "--dialect", "sidecar", theirs)
        assert said.returncode == 1
        assert "it stays until its holder or semlock break removes it" in said.stdout
        waited = command("wait", "--dialect", "sidecar", theirs)
        assert waited.returncode == 1
        assert f"is stale and stays held by process {os.getpid()}" in waited.stderr

    @pytest.mark.parametrize("where", ["the directory", "the file"])
    def test_are_cleaned_when_their_process_is_gone_and_not_before(self, theirs, where, ended):
        place = theirs.parent if where == "the directory" else theirs
        assert command("clean", "--dialect", "sidecar", "-y", place).stdout == ""
        assert theirs.exists()
        elsewhere = '"host": "another-machine",\n  "createdAt"'
        theirs.write_text((self.RECORD % ended).replace('"createdAt"', elsewhere))
        assert command("clean", "--dialect", "sidecar", "-y", place).stdout == ""
        theirs.write_text(self.RECORD % ended)
        seen = command("clean", "--dialect", "sidecar", place, input="")
        assert f"semlock clean -y --dialect sidecar {place}" in seen.stderr
        assert theirs.exists()
        gone = command("clean", "--dialect", "sidecar", "-y", place)
        assert f"process {ended} does not exist here" in gone.stdout
        assert not theirs.exists()


class TestTags:
    @posix
    def test_are_in_the_records_of_task_and_sidecar(self, tmp_path):
        for name, status in (("task", task.status), ("sidecar", None)):
            path = str(tmp_path / f"{name}.lock")
            words = ("--dialect", name, "-m", "night\nly", path, "--", *HOLDING)
            with start("run", *words) as process:
                assert process.stdout.readline() == "ready\n"
                seen = json.loads(command("status", "-j", path).stdout)
                assert seen["tag"] == "night ly"
                assert seen["dialect"] == name
                if status is not None:
                    assert status(path).info.tag == "night ly"
                process.communicate("\n")
            assert process.returncode == 0

    def test_are_told_to_have_no_place_in_a_feature_lock(self, tmp_path):
        path = tmp_path / "specs" / "a" / ".lock"
        path.parent.mkdir(parents=True)
        result = mine("try", "--dialect", "feature", "-m", "why", str(path))
        assert result.returncode == 0
        assert "no place for a tag" in result.stderr
        quiet = command(
            "run", "-q", "-n", "--dialect", "feature", "-m", "x", str(path), "--", "x"
        )
        assert "no place" not in quiet.stderr


@posix
class TestOwnersOfTaskLocks:
    def info(self, path, *words, **options):
        result = mine("try", "--dialect", "task", *words, path, **options)
        assert (result.returncode, result.stderr) == (0, "")
        info = task_lock(path)
        assert mine("release", path).returncode == 0
        return info

    def test_are_named_by_a_text(self, path):
        info = self.info(path, "--owner", "ci-nightly-7")
        assert info.owner == "ci-nightly-7"
        assert info.metadata == {"environment": "ci", "purpose": "automated"}
        assert info.ttl == 86400
        assert info.pid == os.getpid()

    def test_are_users_with_their_sessions(self, path):
        info = self.info(path, "--user", "ann", "--session", "7")
        assert info.owner == "user-ann@session-7"
        assert info.metadata["user_identity"] == "ann"
        assert self.info(path, "--session", "7").owner.endswith("@session-7")

    def test_are_told_by_a_digest_of_their_token(self, path, tmp_path):
        secret = tmp_path / "token"
        secret.write_text("eyJhbGciOiJIUzI1NiIs.very.secret\n")
        info = self.info(path, "--token-file", str(secret))
        assert info.owner == task.owner_for(token="eyJhbGciOiJIUzI1NiIs.very.secret").owner
        assert info.metadata["environment"] == "cloud"
        assert "eyJ" not in info.owner
        secret.write_text("\n")
        result = mine("try", "--dialect", "task", "--token-file", str(secret), path)
        assert (result.returncode, "no token in it" in result.stderr) == (3, True)
        secret.write_bytes(b"\xff\xfe")
        result = mine("try", "--dialect", "task", "--token-file", str(secret), path)
        assert f"{secret} has no token in it: it is not UTF-8 text" in result.stderr
        result = mine("try", "--dialect", "task", "--token-file", "/nowhere", path)
        assert result.returncode == 3

    def test_have_a_time_an_environment_and_a_purpose(self, path):
        info = self.info(path, "--ttl", "90.5", "--environment", "container")
        assert (info.ttl, info.metadata["environment"]) == (90.5, "container")
        assert self.info(path, "--environment", "container").ttl == 1800
        assert self.info(path, "--environment", "local", "--purpose", "emergency").ttl == 300

    def test_run_in_continuous_integration_as_a_run_of_it_by_every_verb(self, path):
        environ = {**os.environ, "GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "77"}
        for words in (("try",), ("acquire",), ("reclaim",)):
            more = () if words == ("reclaim",) else ("--dialect", "task")
            result = mine(*words, *more, path, env=environ)
            assert result.returncode == 0
            info = task_lock(path)
            assert (info.owner, info.ttl) == ("ci-github-77", 86400)
            assert mine("release", path).returncode == 0
        with start("run", "--dialect", "task", path, "--", *HOLDING, env=environ) as process:
            assert process.stdout.readline() == "ready\n"
            info = task_lock(path)
            assert (info.owner, info.ttl) == ("ci-github-77", 86400)
            assert info.pid not in (process.pid, os.getpid())
            process.communicate("\n")

    def test_are_refused_for_other_systems_and_if_named_twice(self, path):
        result = mine("try", "--ttl", "5", path)
        assert result.returncode == 2
        assert "--ttl is for locks of task, not of semlock" in result.stderr
        result = mine("try", "--dialect", "task", "--owner", "x", "--user", "y", path)
        assert result.returncode == 2
        for word in ("--owner", "--user", "--session"):
            result = mine("try", "--dialect", "task", word, " ", path)
            assert (result.returncode, f"{word} is a text" in result.stderr) == (2, True)
        result = mine("try", "--dialect", "task", "--token-file", "t", "--user", "y", path)
        assert (result.returncode, "--token-file excludes" in result.stderr) == (2, True)
        result = mine("reclaim", "--emergency", "--purpose", "automated", path)
        assert (result.returncode, "--emergency excludes" in result.stderr) == (2, True)
        for wrong in (("--ttl", "0"), ("--ttl", "nan"), ("--environment", "mars")):
            assert mine("try", "--dialect", "task", *wrong, path).returncode == 2
        assert mine("try", "--dialect", "task", "--owner", "x" * 300, path).returncode == 3
        assert command("run", "-s", "--ttl", "5", path, "--", "x").returncode == 2
        assert not os.path.exists(path)


@posix
class TestAutoRefresh:
    @pytest.mark.parametrize("word", ["--auto-refresh", "--no-auto-refresh"])
    def test_is_what_run_does_unless_told_not_to(self, path, word):
        with start(
            "run", "--dialect", "task", "--ttl", "0.4", word, path, "--", *HOLDING
        ) as run:
            assert run.stdout.readline() == "ready\n"
            first = task_lock(path).timestamp
            end = time.monotonic() + (20 if word == "--auto-refresh" else 1.0)
            while task_lock(path).timestamp == first and time.monotonic() < end:
                time.sleep(0.02)
            assert (task_lock(path).timestamp > first) == (word == "--auto-refresh")
            run.communicate("\n")

    @pytest.mark.parametrize("kind", ["sema", "semats", "feature", "sidecar"])
    def test_comes_several_times_within_the_age_that_was_asked_for(self, tmp_path, kind):
        path = (
            tmp_path / "specs" / "login" / ".lock" if kind == "feature" else tmp_path / "x.lock"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        call = ("run", "--dialect", kind, "--stale", "0.3", str(path), "--", *HOLDING)
        with start(*call) as run:
            assert run.stdout.readline() == "ready\n"
            first = path.stat().st_mtime_ns
            end = time.monotonic() + 20
            while path.stat().st_mtime_ns == first and time.monotonic() < end:
                time.sleep(0.02)
            assert path.stat().st_mtime_ns > first
            run.communicate("\n")


@posix
class TestReclaim:
    def test_takes_what_is_free_or_over_or_dead(self, path, ended):
        assert mine("reclaim", path).returncode == 0
        assert task_lock(path).pid == os.getpid()
        assert mine("release", path).returncode == 0
        foreign(path, ttl=5)
        assert mine("reclaim", "--force", path).returncode == 0
        info = task_lock(path)
        assert info.metadata["reclaimed_from"] == "editor-of-ann"
        assert info.metadata["reclaimed_reason"] == "LOCK_EXPIRED"
        assert log_of(path)[-1]["details"]["reason"] == "LOCK_EXPIRED"

    @pytest.mark.parametrize("verb", ["try", "acquire"])
    def test_is_on_record_too_when_another_verb_does_it(self, path, verb):
        foreign(path, ttl=5)
        assert mine(verb, "--dialect", "task", path).returncode == 0
        assert task_lock(path).metadata["reclaimed_reason"] == "LOCK_EXPIRED"
        assert log_of(path)[-1]["operation"] == "reclaim"

    def test_takes_a_holders_for_a_reason_that_is_allowed_and_there(self, path):
        foreign(path)
        result = mine("reclaim", "--user", "ann", path)
        assert result.returncode == 1
        assert "--allow SAME_USER" in result.stderr
        assert "reclaim(" not in result.stderr
        assert mine("reclaim", "--user", "bob", "--allow", "SAME_USER", path).returncode == 1
        assert task_lock(path).owner == "editor-of-ann"
        done = mine("reclaim", "--user", "ann", "--session", "2", "--allow", "same-user", path)
        assert done.returncode == 0
        info = task_lock(path)
        assert info.owner == "user-ann@session-2"
        assert info.metadata["reclaimed_reason"] == "SAME_USER"
        assert [line["operation"] for line in log_of(path)] == ["denied", "denied", "reclaim"]

    def test_in_an_emergency_takes_any(self, path):
        foreign(path)
        result = mine("reclaim", "--emergency", "-j", path)
        assert result.returncode == 0
        assert json.loads(result.stdout)["acquired"] is True
        info = task_lock(path)
        assert (info.ttl, info.metadata["purpose"]) == (300, "emergency")
        assert log_of(path)[-1]["details"] == {
            "existingOwner": "editor-of-ann",
            "newOwner": info.owner,
            "reason": "EMERGENCY_OVERRIDE",
            "priority": "high",
        }

    @pytest.mark.parametrize("verb", ["try", "acquire"])
    def test_is_what_allow_makes_of_try_and_acquire(self, path, verb):
        foreign(path)
        words = ("--dialect", "task", "--environment", "ci", path)
        assert (
            mine(verb, "--allow", "SAME_USER", *words, *["-n"][: verb != "try"]).returncode == 1
        )
        assert mine(verb, "--allow", "SAME_USER,HIGHER_PRIVILEGE", *words).returncode == 0
        assert task_lock(path).metadata["reclaimed_reason"] == "HIGHER_PRIVILEGE"

    def test_is_what_allow_makes_of_run(self, path):
        foreign(path)
        words = ("run", "--dialect", "task", "--user", "ann", "--allow")
        assert (
            command(*words, "HIGHER_PRIVILEGE", "-n", path, "--", *echo("ran")).returncode == 1
        )
        result = command(*words, "SAME_USER", path, "--", *echo("ran"))
        assert (result.returncode, result.stdout) == (0, "ran\n")
        assert not os.path.exists(path)
        operations = [line["operation"] for line in log_of(path)]
        assert operations == ["denied", "reclaim", "release"]

    def test_is_refused_for_other_systems_and_for_reasons_that_do_not_exist(self, path):
        assert mine("reclaim", "--allow", "BECAUSE", path).returncode == 2
        assert mine("try", "--allow", "SAME_USER", path).returncode == 2
        other = mine("reclaim", "--dialect", "sema", path)
        assert (other.returncode, "--dialect is task" in other.stderr) == (2, True)
        assert mine("reclaim", "--dialect", "task", path).returncode == 0

    def test_waits_for_a_reason_as_long_as_it_is_told(self, path):
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        foreign(path, since=now, ttl=1.5)
        assert mine("reclaim", path).returncode == 1
        assert mine("reclaim", "-t", "30", path).returncode == 0


@posix
class TestTheAuditLog:
    def test_has_lines_of_try_and_release(self, path):
        assert mine("try", "--dialect", "task", path).returncode == 0
        assert mine("release", path).returncode == 0
        assert [line["operation"] for line in log_of(path)] == ["acquire", "release"]
        owners = {line["details"]["owner"] for line in log_of(path)}
        assert {owner.partition("@")[0] for owner in owners} == {f"pid-{os.getpid()}"}

    def test_has_lines_of_release_by_force_and_of_break(self, path):
        foreign(path)
        assert command("release", "--force", path).returncode == 0
        foreign(path)
        assert command("break", "-y", path).returncode == 0
        lines = log_of(path)
        assert [line["operation"] for line in lines] == ["break", "break"]
        assert {line["details"]["existingOwner"] for line in lines} == {"editor-of-ann"}
        assert all(line["lockPath"] == path for line in lines)

    @pytest.mark.parametrize("where", ["lock", "directory"])
    def test_has_a_line_of_clean(self, path, where):
        foreign(path, ttl=5)
        place = path if where == "lock" else os.path.dirname(path)
        assert command("clean", "-n", "--dialect", "task", place).returncode == 0
        assert os.listdir(os.path.dirname(path)) == ["x.lock"]
        assert command("clean", "-y", "--dialect", "task", place).returncode == 0
        assert [line["operation"] for line in log_of(path)] == ["clean"]

    def test_has_no_line_of_another_systems_locks(self, path):
        for make in (sema.Semaphore, semats.Semaphore):
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"pid=1\ntimestamp={LONG_AGO}\n")
            assert command("break", "-y", path).returncode == 0
            assert not make(path).held
        assert os.listdir(os.path.dirname(path)) == []


def test_what_is_refused_says_so_in_json_of_the_documented_form(path):
    foreign(path)
    result = mine("reclaim", "-j", path)
    assert result.returncode == 1
    members = {name for name, _, _ in json_objects.OBJECTS["refused"][1]}
    assert members <= json.loads(result.stdout).keys()


@pytest.mark.parametrize("name", ["sema", "semats", "task"])
def test_a_place_is_a_file_of_the_named_system(name, path):
    read = f"import sys; sys.stdout.write(open({path + '.1'!r}).read())"
    result = command(
        "run", "-m", "why", "--slots", "2", "--dialect", name, path,
        "--", sys.executable, "-c", read,
    )  # fmt: skip
    assert result.returncode == 0
    info = systems.find(name).decode(result.stdout.encode())
    assert info.token is not None
    assert os.listdir(os.path.dirname(path)) in ([], [".lock_audit.log"])


def test_a_place_goes_by_the_named_systems_age(path):
    with open(f"{path}.1", "w", encoding="utf-8") as file:
        file.write(f"pid={os.getpid()}\ntimestamp={LONG_AGO}\n")  # which lives
    one = ("run", "-n", "--slots", "1")
    assert command(*one, path, "--", *echo()).returncode == 1
    assert (
        command(*one, "--dialect", "sema", "--stale", "9999", path, "--", *echo()).returncode
        == 1
    )
    assert (
        command(*one, "--dialect", "sema", "--stale", "60", path, "--", *echo()).returncode == 0
    )


def test_readers_judge_the_writer_by_the_named_systems_age(path):
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"pid={os.getpid()}\ntimestamp={LONG_AGO}\n")
    assert command("run", "-n", "--shared", path, "--", *echo()).returncode == 1
    sema = ("run", "-n", "--shared", "--dialect", "sema", path, "--", *echo("read"))
    assert command(*sema).stdout == "read\n"


def test_a_place_has_the_owner_that_was_named(path):
    read = f"import sys; sys.stdout.write(open({path + '.1'!r}).read())"
    words = ("run", "--slots", "1", "--dialect", "task", "--owner", "ann", path, "--")
    assert json.loads(command(*words, sys.executable, "-c", read).stdout)["owner"] == "ann"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--slots", "2", "--dialect", "sidecar"), 2, "can't be one of several slots"),
        (("--slots", "2", "--dialect", "feature"), 3, "is no feature lock"),
        (("--slots", "2", "--dialect", "task", "--allow", "SAME_USER"), 2, "--slots and --allow"),
        (("--slots", "2", "--stale", "5"), 2, "name the system with --dialect"),
        (("--slots", "2", "--kernel"), 2, "--kernel and --slots"),
        (("--shared", "--dialect", "sema", "--ttl", "5"), 2, "is for locks of task, not of sema"),
    ],
)  # fmt: skip
def test_what_a_system_has_no_places_for_is_refused(words, code, said, path):
    result = command("run", *words, path, "--", *echo("no"))
    assert (result.returncode, result.stdout) == (code, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_the_systems_that_are_told_of_here_are_all_there_are():
    assert {feature.SYSTEM.options, sidecar.SYSTEM.options, sema.SYSTEM.options} == {("stale",)}
