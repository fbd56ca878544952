"""The command, run as a command."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import semlock


def command(*words, **options):
    options = {"capture_output": True, "text": True, "check": False, "timeout": 60} | options
    return subprocess.run([sys.executable, "-m", "semlock", *words], **options)


def test_run_holds_the_lock_while_the_command_runs(path):
    result = command("run", path, "--", sys.executable, "-m", "semlock", "status", path)
    assert result.stdout.startswith("locked: true\npid: ")
    assert "verdict: alive" in result.stdout
    assert not os.path.exists(path)


def test_run_excludes_a_second_one(path):
    inner = [sys.executable, "-m", "semlock", "run", "-n", path, "--", "echo", "no"]
    result = command("run", path, "--", *inner)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "held by process" in result.stderr


def test_run_gives_the_commands_exit_code(path):
    assert command("run", path, "--", "sh", "-c", "exit 7").returncode == 7
    assert command("run", path, "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert command("run", path, "--", "no-such-command").returncode == 127
    assert command("run", path, "--", "/").returncode == 126
    assert not os.path.exists(path)


def test_run_exits_as_told_when_the_lock_is_not_to_be_had(path):
    with semlock.Lock(path):
        assert command("run", "-n", path, "--", "true").returncode == 1
        assert command("run", "-t", "0.05", path, "--", "true").returncode == 1
        assert command("run", "-n", "-E", "75", path, "--", "true").returncode == 75


def test_run_says_whom_it_waits_for_unless_it_shall_be_quiet(path):
    with semlock.Lock(path, tag="the reason"):
        loud = command("run", "-t", "0.05", path, "--", "true")
        quiet = command("run", "-q", "-t", "0.05", path, "--", "true")
    assert "waiting for" in loud.stderr
    assert "the reason" in loud.stderr
    assert "waiting for" not in quiet.stderr


def test_run_takes_options_of_the_command_for_the_command(path):
    result = command("run", path, "echo", "-n", "-t", "x")
    assert (result.returncode, result.stdout) == (0, "-t x")
    result = command("run", path, "-t", "5", "--", "echo", "-n", "--", "x")
    assert (result.returncode, result.stdout) == (0, "-- x")


def test_run_tags_the_lock_with_the_command_but_not_its_arguments(path):
    result = command("run", path, "--", "cat", path, "/dev/null")
    assert "tag=cat\n" in result.stdout
    result = command("run", "-m", "why not", path, "--", "cat", path)
    assert "tag=why not\n" in result.stdout


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


def test_run_that_is_killed_blocks_nobody(path):
    with subprocess.Popen(
        [sys.executable, "-m", "semlock", "run", path, "--", "sh", "-c", "echo ready; read x"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"ready\n"
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
    assert "mine" in again.stderr
    assert command("release", path).returncode == 0
    assert not os.path.exists(path)
    gone = command("release", path)
    assert gone.returncode == 1
    assert "not held" in gone.stderr


def test_a_lock_that_try_took_ends_with_its_caller(path):
    program = (
        f"{sys.executable} -m semlock try {path} && {sys.executable} -m semlock status {path}"
    )
    result = subprocess.run(
        ["sh", "-c", program + "; :"], capture_output=True, text=True, check=True
    )
    assert "state: held" in result.stdout
    assert semlock.status(path).verdict == "dead"
    with semlock.Lock(path, timeout=0):
        pass


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
    assert (result.returncode, result.stdout) == (0, "locked: false\n")
    result = command("status", "--json", path)
    assert (result.returncode, json.loads(result.stdout)) == (0, {"locked": False})


def test_status_prints_the_lines_of_sema_first(path):
    with semlock.Lock(path, tag="x = y") as lock:
        result = command("status", path)
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
    assert "state: unreadable" in result.stdout
    fields = json.loads(command("status", "--json", path).stdout)
    assert (fields["pid"], fields["state"]) == (None, "unreadable")


def test_clean_says_what_it_removed_and_why(path, tmp_path):
    script = "import semlock,os,sys\nl=semlock.Lock(sys.argv[1])\nl.acquire()\nos._exit(0)"
    subprocess.run(
        [sys.executable, "-c", script, path],
        check=True,
    )
    result = command("clean", str(tmp_path))
    assert result.returncode == 0
    assert result.stdout.startswith(f"removed {path}: the kernel has dropped")
    assert command("clean", str(tmp_path)).stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        [], ["fly"], ["run"], ["run", "x"], ["run", "x", "--"],
        ["status"], ["status", "a", "--", "b"],
        ["run", "-t", "x", "l", "--", "true"], ["run", "-t", "-1", "l", "--", "true"],
        ["try", "l", "--owner-pid", "0"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(words):
    result = command(*words)
    assert result.returncode == 2
    assert "usage:" in result.stderr


@pytest.mark.parametrize("verb", ["run", "try", "status", "release", "clean"])
def test_a_bad_path_is_exit_code_3_and_one_line(verb, tmp_path):
    bad = str(tmp_path / "missing" / "x") if verb in ("run", "try", "clean") else str(tmp_path)
    result = command(verb, bad, *(["--", "true"] if verb == "run" else []))
    assert result.returncode == 3, result.stderr
    assert result.stderr.startswith("semlock: ")
    assert result.stderr.count("\n") == 1


def test_help_has_examples():
    result = command("--help")
    assert result.returncode == 0
    assert "semlock run build.lock -- make all" in result.stdout
    assert command("run", "--help").returncode == 0
    assert command("--version").stdout == f"semlock {semlock.__version__}\n"


def test_a_reader_that_goes_away_is_no_traceback(path):
    with semlock.Lock(path):
        result = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m semlock status {path} | true"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert "Traceback" not in result.stderr
