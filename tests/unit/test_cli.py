"""The command, run as a command."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import semlock
from clilib import (
    HOLDING,
    PATIENCE,
    checked,
    checked_lines,
    command,
    echo,
    program,
    start,
    words,
)
from support import mounted, wait_until, wine_keeps_locked_names


def test_run_holds_the_lock_while_the_command_runs(path):
    result = command("run", path, "--", sys.executable, "-m", "semlock", "status", path)
    assert result.stdout.startswith("state:    held\nholder:   process ")
    assert "evidence: alive: its holder keeps" in result.stdout
    assert not os.path.exists(path)


def test_run_excludes_a_second_one(path):
    inner = [sys.executable, "-m", "semlock", "run", "-n", path, "--", *echo("no")]
    result = command("run", path, "--", *inner)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "held by process" in result.stderr


def test_run_gives_the_commands_exit_code(path, tmp_path):
    assert command("run", path, "--", *program("raise SystemExit(7)")).returncode == 7
    if sys.platform != "win32":  # where no signal ends a process
        assert command("run", path, "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert command("run", path, "--", "no-such-command").returncode == 127
    no_program = tmp_path / "text.exe"
    no_program.write_text("no program")
    assert command("run", path, "--", str(no_program)).returncode == 126
    assert not os.path.exists(path)


def test_run_exits_as_told_when_the_lock_is_not_to_be_had(path):
    with semlock.Lock(path):
        assert command("run", "-n", path, "--", "true").returncode == 1
        assert command("run", "-t", "0.05", path, "--", "true").returncode == 1
        assert command("run", "-n", "-E", "75", path, "--", "true").returncode == 75


def test_run_says_which_process_it_waits_for_unless_it_shall_be_quiet(path):
    with semlock.Lock(path, tag="the reason"), ThreadPoolExecutor() as pool:
        lines = ("run", "-t", "1.2"), ("run", "-q", "-t", "1.2")
        loud, quiet = pool.map(lambda words: command(*words, path, "--", "true"), lines)
    assert "neither goes on" in loud.stderr  # this very program holds it
    assert quiet.stderr == ""


def test_run_takes_options_of_the_command_for_the_command(path):
    result = command("run", path, *echo("-n", "-t", "x"))
    assert (result.returncode, result.stdout) == (0, "-n -t x\n")
    result = command("run", path, "-t", "5", "--", *echo("-n", "--", "x"))
    assert (result.returncode, result.stdout) == (0, "-n -- x\n")


def test_run_tags_the_lock_with_the_command_but_not_its_arguments(path):
    look = program("import semlock, sys; print(semlock.status(sys.argv[1]).info.tag)", path)
    result = command("run", path, "--", *look)
    assert result.stdout == f"{sys.executable}\n"
    result = command("run", "-m", "why not", path, "--", *look)
    assert result.stdout == "why not\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to pass on there")
def test_run_passes_a_signal_on_and_releases(path):
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done"
    with subprocess.Popen(
        [sys.executable, "-m", "semlock", "run", path, "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 9
    assert not os.path.exists(path)


def test_run_that_is_followed_itself_and_killed_blocks_no_other(path):
    with subprocess.Popen(
        words("run", "--follow", "self", path, "--", *HOLDING),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline().strip() == b"ready"
        process.kill()
        process.wait()
        # The command lives on and holds nothing.
        with semlock.Lock(path, timeout=30):
            pass
        process.stdin.close()


def test_try_leaves_the_lock_to_its_caller_and_release_ends_it(path):
    assert command("try", path, "-m", "mine").returncode == 0
    found = semlock.status(path)
    assert (found.info.pid, found.info.tag, found.verdict) == (os.getpid(), "mine", "alive")
    again = command("try", path)
    assert again.returncode == 1
    assert f"process {os.getpid()}" in again.stderr
    assert "which called this command" in again.stderr
    assert command("release", path).returncode == 0
    assert not os.path.exists(path)
    gone = command("release", path)
    assert gone.returncode == 1
    assert "not held" in gone.stderr


def test_a_lock_that_try_took_ends_with_its_caller(path):
    caller = program(
        "import subprocess, sys\n"
        "for verb in ('try', 'status'):\n"
        "    subprocess.run([sys.executable, '-m', 'semlock', verb, sys.argv[1]])\n",
        path,
    )
    result = subprocess.run(caller, capture_output=True, text=True, check=True)
    assert "state:    held" in result.stdout
    assert semlock.status(path).verdict == "dead"
    with semlock.Lock(path, timeout=0):
        pass


@wine_keeps_locked_names
def test_release_leaves_a_lock_of_others_alone_unless_forced(path):
    with semlock.Lock(path) as lock:
        result = command("release", "--owner-pid", "1", path)
        assert result.returncode == 1
        assert "--force" in result.stderr
        lock.check()
        assert command("release", "--force", path).returncode == 0
        with pytest.raises(semlock.LockLostError):
            lock.release()
        lock.acquire()


def test_status_of_a_free_lock(path):
    result = command("status", path)
    assert (result.returncode, result.stdout) == (0, "state:    free\n")
    result = command("status", "--porcelain", path)
    assert (result.returncode, result.stdout) == (
        0,
        f"locked: false\npath: {path}\nstate: free\n",
    )
    result = command("status", "--json", path)
    assert result.returncode == 0
    assert checked(result.stdout, "free") == {"locked": False, "path": path, "state": "free"}


@pytest.mark.parametrize("form", [["--porcelain"], ["--dialect", "sema"]])
def test_status_prints_the_lines_of_sema_first_if_it_is_asked_to(path, form):
    with semlock.Lock(path, tag="x = y") as lock:
        result = command("status", *form, path)
        lines = result.stdout.split("\n")
        assert lines[:4] == [
            "locked: true", f"pid: {os.getpid()}",
            f"timestamp: {lock.info.timestamp}", "tag: x = y",
        ]  # fmt: skip
        assert result.returncode == 1
        fields = json.loads(command("status", "-j", path).stdout)
        assert list(fields)[:4] == ["locked", "pid", "timestamp", "tag"]
        assert fields["state"] == "held"
        assert fields["token"] == lock.token


def test_status_of_what_is_no_record(path):
    Path(path).write_bytes(b"\xff")
    result = command("status", path)
    assert result.returncode == 1
    assert "state:    held: the file is no record" in result.stdout
    fields = json.loads(command("status", "--json", path).stdout)
    assert (fields["pid"], fields["state"]) == (None, "unreadable")


def leave_a_dead_lock(path):
    script = "import semlock,os,sys\nl=semlock.Lock(sys.argv[1])\nl.acquire()\nos._exit(0)"
    subprocess.run([sys.executable, "-c", script, path], check=True)


def test_clean_says_what_it_would_remove_and_why_and_removes_it_when_told(path, tmp_path):
    leave_a_dead_lock(path)
    for options in ([], ["-n"], ["-n", "-y"]):
        result = command("clean", *options, str(tmp_path), stdin=subprocess.DEVNULL)
        assert result.returncode == 0
        assert result.stdout.startswith(f"would remove {path}: process ")
        assert "the kernel has dropped" in result.stdout
        assert ("semlock clean -y" in result.stderr) == (options == [])
        assert os.path.exists(path)
    result = command("clean", "--yes", str(tmp_path))
    assert result.stdout.startswith(f"removed {path}: process ")
    assert not os.path.exists(path)
    assert command("clean", "-y", str(tmp_path)).stdout == ""


def test_clean_of_one_lock_leaves_the_others_alone(path, tmp_path):
    other = str(tmp_path / "other.lock")
    leave_a_dead_lock(path)
    leave_a_dead_lock(other)
    assert command("clean", "-y", path).stdout.count("removed") == 1
    assert (os.path.exists(path), os.path.exists(other)) == (False, True)


def test_status_says_how_many_wait_and_clean_spares_a_holder_that_waited_before(path, tmp_path):
    """A waiter that won keeps its place until it lets go, if others stand behind it."""
    waiting = ("run", "--fair", path, "--", *HOLDING)

    def count():
        return checked(command("status", "--json", path).stdout, "held")["waiting"]

    with contextlib.ExitStack() as later:
        lock = semlock.Lock(path)
        with lock:
            assert count() == 0
            assert "waiting" not in command("status", path).stdout
            porcelain = command("status", "--porcelain", path).stdout
            assert "waiting" not in porcelain
            line = []
            for number in (1, 2, 3):
                line.append(later.enter_context(start(*waiting, stderr=subprocess.DEVNULL)))
                wait_until(lambda number=number: count() == number, "it waits")
            said = command("status", path).stdout, command("status", "--porcelain", path).stdout
        first, second, third = line
        said = "held, 3 waiting" in said[0], "waiting: 3\n" in said[1]
        assert first.stdout.readline() == "ready\n"
        first.communicate("\n", timeout=30)
        # This one saw that another stands behind it.
        assert second.stdout.readline() == "ready\n"
        assert count() == 1
        assert command("clean", str(tmp_path), stdin=subprocess.DEVNULL).stdout == ""
        for one in (second, third):
            one.communicate("\n", timeout=30)
    assert os.listdir(tmp_path) == []
    assert said == (True, True)


@pytest.mark.skipif(sys.platform == "win32", reason="a place goes with its owner there")
def test_clean_removes_the_places_of_dead_waiters_and_no_others(path, tmp_path):
    waiting = ("run", path, "--", "true")
    with semlock.Lock(path):
        with (
            start(*waiting, stderr=subprocess.PIPE) as alive,
            contextlib.ExitStack() as later,
        ):

            def places():
                return [
                    name
                    for queue in tmp_path.glob(".semlock-*.queue")
                    for name in os.listdir(queue)
                    if not name.endswith(".who")
                ]

            wait_until(lambda: len(places()) == 1, "the first has a place")
            # Behind the one that lives: those behind a dead one would see to it themselves.
            dead = later.enter_context(start(*waiting, stderr=subprocess.PIPE))
            wait_until(lambda: len(places()) == 2, "both have a place")
            [queue] = tmp_path.glob(".semlock-*.queue")
            dead.kill()
            dead.wait()
            told = command("clean", str(tmp_path), stdin=subprocess.DEVNULL).stdout
            assert told.count("would remove") == 1
            assert "the process that waited" in told
            done = command("clean", "-jy", path).stdout
            [fields] = checked_lines(done, "cleaned")
            assert os.path.dirname(fields["path"]) == str(queue)
            assert len(places()) == 1
            alive.terminate()
            alive.wait()
    assert os.listdir(tmp_path) == []


def test_clean_goes_by_age_only_where_the_lock_system_does(path):
    Path(path).write_text("pid=1\ntimestamp=5\n")
    assert command("clean", "-y", path).stdout == ""
    assert command("clean", "-y", "--dialect", "sema", path).stdout.startswith("removed")


@wine_keeps_locked_names
def test_break_shows_the_evidence_and_does_nothing_without_a_yes(path):
    with semlock.Lock(path, tag="dear to me") as lock:
        result = command("break", path, stdin=subprocess.DEVNULL)
        assert result.returncode == 1
        assert "why:      dear to me\n" in result.stderr
        assert "evidence: alive: its holder keeps" in result.stderr
        assert "semlock break -y" in result.stderr
        lock.check()
        result = command("break", "-y", path)
        assert result.returncode == 0
        assert "dear to me" in result.stdout
        with pytest.raises(semlock.LockLostError):
            lock.release()
        lock.acquire()
    assert command("break", "-y", path).returncode == 0


def test_acquire_waits_and_takes_the_lock_for_its_caller(path):
    lock = semlock.Lock(path)
    lock.acquire()
    with start("acquire", path, "-m", "mine", stderr=subprocess.PIPE) as process:
        # That of a caller comes before that of a wait.
        assert "neither goes on" in process.stderr.readline()
        lock.release()
        assert process.wait(30) == 0
    found = semlock.status(path)
    assert (found.info.pid, found.info.tag) == (os.getpid(), "mine")
    late = command("acquire", "-t", "0.05", path)
    assert late.returncode == 1
    assert "a wait would not end" in late.stderr
    assert command("release", path).returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="a current directory can't be removed")
@pytest.mark.parametrize(
    "line",
    [("list",), ("doctor",), ("watch", "--once"), ("clean", "-y", "."), ("try", "a.lock")],
)
def test_a_current_directory_that_has_been_removed_is_named_as_what_is_wrong(line, tmp_path):
    (tmp_path / "gone").mkdir()
    script = ("sh", "-c", 'rmdir ../gone; exec "$@"', "sh", *words(*line))
    result = subprocess.run(
        script, cwd=tmp_path / "gone", capture_output=True, text=True, check=False
    )
    assert result.returncode == 3
    assert "the current directory has been removed" in result.stderr


def test_a_lock_is_not_taken_for_a_process_that_is_not_there(path):
    with subprocess.Popen(program("")) as process:
        pass
    result = command("try", "--owner-pid", str(process.pid), path)
    assert result.returncode == 3
    assert "there is no process" in result.stderr
    assert not os.path.exists(path)


def test_a_lock_is_not_taken_for_a_process_that_ended_during_the_wait(path):
    lock = semlock.Lock(path)
    with lock, subprocess.Popen(HOLDING, stdin=subprocess.PIPE) as owner:
        line = ("acquire", "--owner-pid", str(owner.pid), path)
        process = start(*line, stderr=subprocess.PIPE)
        assert "neither goes on" in process.stderr.readline()  # it waits
        owner.kill()
    assert "there is no process" in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 3
    assert not os.path.exists(path)


@pytest.mark.parametrize("dialect", ["semlock", "sema", "semats", "feature", "task"])
def test_refresh_writes_the_present_time_and_keeps_the_lock(dialect, tmp_path):
    place = tmp_path / "specs" / "f"
    place.mkdir(parents=True)
    path = place / ".lock"
    assert command("try", "--dialect", dialect, str(path)).returncode == 0
    before = checked(command("status", "-j", str(path)).stdout, "held")
    assert before["pid"] == os.getpid()
    inode, length = path.stat().st_ino, path.stat().st_size
    wait_until(lambda: time.time() > int(before["timestamp"]) + 1, "another second")
    result = command("refresh", "-j", str(path))
    assert result.returncode == 0, result.stderr
    stamp = checked(result.stdout, "refreshed")["timestamp"]
    assert stamp > before["timestamp"]
    after = checked(command("status", "-j", str(path)).stdout, "held")
    assert (after["timestamp"], after.get("token")) == (stamp, before.get("token"))
    assert (path.stat().st_ino, path.stat().st_size) == (inode, length)
    assert command("release", str(path)).returncode == 0


def test_refresh_says_when_the_lock_is_not_the_callers(path):
    assert command("refresh", path).returncode == 1
    Path(path).write_text("pid=1\ntimestamp=5\n")
    result = command("refresh", path)
    assert result.returncode == 1
    assert "--owner-pid" in result.stderr
    assert Path(path).read_text() == "pid=1\ntimestamp=5\n"


def test_wait_ends_when_the_lock_is_free_and_takes_nothing(path):
    lock = semlock.Lock(path)
    lock.acquire()
    assert command("wait", "-n", path).returncode == 1
    with start("wait", path, stderr=subprocess.PIPE) as process:
        assert "neither goes on" in process.stderr.readline()
        assert process.poll() is None
        lock.release()
        assert process.wait(30) == 0
    assert not os.path.exists(path)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pseudo-terminal here")
def test_wait_hears_of_the_death_of_a_shell_that_took_a_lock(path):
    with subprocess.Popen(program("import time; time.sleep(60)")) as holder:
        assert command("try", "--owner-pid", str(holder.pid), path).returncode == 0
        from terminal import Terminal

        with Terminal(*words("wait", path)) as terminal:
            terminal.until("waiting for")
            holder.kill()
            holder.wait()
            assert terminal.ends() == 0


def test_list_shows_locks_and_nothing_else(path, tmp_path):
    (tmp_path / "package.json").write_text('{"name": "no lock"}')
    (tmp_path / "notes.txt").write_text("a = b")
    (tmp_path / "empty.lock").write_text("")
    (tmp_path / "plain").write_text("pid=7\ntimestamp=5\ntag=foreign\n")
    (tmp_path / "sub.lock").mkdir()
    with semlock.Lock(path, tag="mine"):
        text = command("list", str(tmp_path)).stdout
        lines = command("list", "-j", str(tmp_path)).stdout
    names = [os.path.basename(fields["path"]) for fields in checked_lines(lines, "held")]
    assert names == ["empty.lock", "plain", "the.lock"]
    assert [line.split()[:2] for line in text.splitlines()] == [
        ["LOCK", "HOLDER"], ["empty.lock", "?"], ["plain", "7"], ["the.lock", str(os.getpid())],
    ]  # fmt: skip
    everything = command("list", "-aj", str(tmp_path)).stdout
    assert len(everything.splitlines()) == 4


def test_migrate_gives_an_old_task_lock_the_enhanced_form(path):
    Path(path).write_text('{\n  "owner": "x",\n  "since": 1700000000000,\n  "ttl": 60\n}')
    fields = checked(command("migrate", "-j", path).stdout, "migrated")
    assert (fields["migrated"], fields["outcome"]) == (True, "migrated")
    assert json.loads(Path(path).read_text())["metadata"]["migrated"] is True
    assert command("migrate", path).returncode == 0
    Path(path).write_text("nonsense")
    assert command("migrate", path).returncode == 3


def test_doctor_tries_everything_in_the_directory_and_leaves_nothing_there(tmp_path):
    result = command("doctor", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "what is guaranteed here" in result.stdout
    lines = command("doctor", "-j", str(tmp_path)).stdout.splitlines()
    checks = [checked(line, "check") for line in lines if '"check"' in line]
    promises = [checked(line, "guarantee") for line in lines if '"guarantee"' in line]
    assert len(checks) + len(promises) == len(lines)
    assert {check["check"] for check in checks} >= {"filesystem", "link", "witness", "death"}
    assert [promise["guarantee"] for promise in promises] == [
        "exclusion", "death", "waiting", "order", "kernel", "durability",
    ]  # fmt: skip
    assert os.listdir(tmp_path) == []
    assert command("doctor", str(tmp_path / "missing")).returncode == 3


@pytest.mark.parametrize(
    "words",
    [
        [], ["fly"], ["run"], ["run", "x"], ["run", "x", "--"],
        ["status"], ["status", "a", "--", "b"],
        ["run", "-t", "x", "l", "--", "true"], ["run", "-t", "-1", "l", "--", "true"],
        ["try", "l", "--owner-pid", "0"], ["try", "a", "b"], ["status", "--fly", "l"],
        ["run", "--slots", "0", "l", "--", "true"], ["run", "-s", "a", "b", "--", "true"],
        ["run", "--shared", "--slots", "2", "l", "--", "true"], ["run", "a", "a", "--", "true"],
        ["run", "--timeout"], ["run", "--fair=yes", "l", "true"], ["run", "-tfoo", "l", "true"],
        ["status", "--dialect", "klingon", "l"], ["completion", "tcsh"], ["help", "fly"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(words):
    result = command(*words)
    assert result.returncode == 2
    assert "usage:" in result.stderr


@pytest.mark.parametrize(
    "verb",
    ["run", "try", "status", "release", "clean", "list", "watch", "doctor", "timeline"],
)
def test_a_bad_path_is_exit_code_3_and_one_line(verb, tmp_path):
    missing = ("run", "try", "clean", "list", "watch", "doctor", "timeline")
    bad = str(tmp_path / "missing" / "x") if verb in missing else str(tmp_path)
    result = command(verb, bad, *(["--", "true"] if verb == "run" else []))
    assert result.returncode == 3, result.stderr
    assert result.stderr.startswith("semlock: ")
    assert bad in result.stderr
    assert "Errno" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_has_examples():
    result = command("--help")
    assert result.returncode == 0
    assert "semlock run build.lock -- make all" in result.stdout
    assert command("run", "--help").returncode == 0
    assert command("--version").stdout == f"semlock {semlock.__version__}\n"


@pytest.mark.parametrize(("verb", "code"), [("list", 128 + 13), ("status", 1)])
def test_a_reader_that_goes_away_is_no_traceback(path, verb, code):
    with semlock.Lock(path):
        reader, writer = os.pipe()
        os.close(reader)
        what = path if verb == "status" else os.path.dirname(path)
        result = command(
            verb, what, stdout=writer, stderr=subprocess.PIPE, capture_output=False
        )
        os.close(writer)
    assert (result.returncode, result.stderr) == (code, "")


def test_a_pattern_is_no_free_lock_for_clean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.lock").write_text("pid=1\n")
    for line in (("clean", "*.lock"), ("clean", "-y", "?.lock")):
        result = command(*line)
        assert result.returncode == 3
        assert f"no directory or lock {line[-1]}" in result.stderr
    assert command("clean", "b.lock").returncode == 0


def test_doctor_names_the_file_that_is_no_directory(tmp_path):
    file = tmp_path / "file"
    file.touch()
    result = command("doctor", str(file))
    assert (result.returncode, result.stderr) == (3, f"semlock: {file}: not a directory\n")
    assert os.listdir(tmp_path) == ["file"]


def test_a_living_holder_of_another_system_is_named_by_migrate(path):
    with semlock.Lock(path, tag="why"):
        result = command("migrate", path)
    assert result.returncode == 3
    assert f"is no task lock: it is held by process {os.getpid()}" in result.stdout
    assert "remove" not in result.stdout


def test_no_line_of_the_help_is_wider_than_the_terminal():
    for line in ((), ("run",), ("topics",)):
        result = command("help", *line)
        assert result.returncode == 0
        assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("x.lock", "make", "all"), "there is no verb x.lock. To hold a lock while a command"),
        (("-n", "x.lock", "make"), "there is no verb before -n: options go behind the verb"),
        (("--json", "status", "x.lock"), "there is no verb before --json: options go behind"),
        (("rum", "x.lock", "make"), "there is no rum: did you mean run?"),
    ],
)
def test_a_call_without_a_verb_is_told_where_it_goes(line, says):
    result = command(*line)
    assert result.returncode == 2
    assert f"semlock: {says}" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes on Linux")
def test_a_name_of_any_bytes_keeps_the_columns_of_a_list(tmp_path):
    for name in (b"\xff.lock", b"longer.lock"):
        with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
            file.write(b"pid=77\n")
    lines = command("list", str(tmp_path)).stdout.splitlines()
    assert lines[2].startswith("\\xff.lock ")
    assert lines[0].index("HOLDER") == lines[1].index("77") == lines[2].index("77")


def test_an_empty_trace_is_told_in_a_line(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.touch()
    result = command("timeline", str(trace))
    assert (result.returncode, result.stdout) == (
        0,
        f"{trace}: there are no events in it yet\n",
    )


@pytest.mark.skipif(sys.platform == "win32", reason="its paths have no mounts")
def test_doctor_knows_a_mount_with_white_space_in_its_place(tmp_path):
    with mounted(tmp_path, "tmpfs", "size=64k", "a b") as there:
        assert "tmpfs on tmpfs, local" in command("doctor", there).stdout
