"""``--kernel`` of the command: the kernel's locks, as flock(1) and filelock take them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support import Child

fcntl = pytest.importorskip("fcntl", reason="the holder of these tests calls flock(2)")

HOLD = "import fcntl, os; fd = os.open({!r}, os.O_RDWR | os.O_CREAT); fcntl.flock(fd, fcntl.{})"


def semlock(*words, code=0, cwd=None):
    done = subprocess.run(
        [sys.executable, "-m", "semlock", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=60,
    )
    assert done.returncode == code, done
    return done.stdout, done.stderr


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "the.lock")


@pytest.fixture
def holder(path):
    with Child() as child:
        child.run(HOLD.format(path, "LOCK_EX"))
        yield child


def test_the_status_names_who_called_flock(path, holder):
    out, _ = semlock("status", "--kernel", path, code=1)
    assert f"process {holder.pid}" in out
    assert "since" not in out
    fields = json.loads(semlock("status", "--kernel", "--json", path, code=1)[0])
    assert (fields["pid"], fields["holders"]) == (holder.pid, [holder.pid])
    holder.run("os.close(fd)")
    assert semlock("status", "--kernel", path)[0] == "state:    free\n"


def test_a_wait_ends_with_the_lock(path, holder):
    _, said = semlock("wait", "--kernel", "-n", path, code=1)
    assert f"process {holder.pid}" in said
    with subprocess.Popen([sys.executable, "-m", "semlock", "wait", "--kernel", path]) as waits:
        holder.run("os.close(fd)")
        assert waits.wait(30) == 0


def test_the_list_has_what_is_locked_below_a_directory(path, holder, tmp_path):
    (tmp_path / "below").mkdir()
    inner = str(tmp_path / "below" / "another name")
    holder.run(HOLD.format(inner, "LOCK_SH"))
    out, _ = semlock("list", "--kernel", cwd=tmp_path)
    assert out.splitlines()[0].startswith("LOCK")
    assert {"the.lock", os.path.join("below", "another name")} == {
        line[: line.index("  ")] for line in out.splitlines()[1:]
    }
    lines = semlock("list", "--kernel", "--json", path, str(tmp_path / "below"))[0].splitlines()
    assert [json.loads(line)["path"] for line in lines] == [path, inner]


def test_a_command_runs_under_the_kernels_lock(path):
    held = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: print('excluded')"
    )
    for words in ([], ["--shared"], ["--fair"]):
        out, _ = semlock(
            "run", "--kernel", *words, path, "--", sys.executable, "-c", held, path
        )
        assert out == "excluded\n"
    assert os.path.getsize(path) == 0
    assert os.listdir(os.path.dirname(path)) == ["the.lock"]


def test_a_command_does_not_run_while_another_program_has_it(path, holder):
    out, said = semlock("run", "--kernel", "-n", path, "--", "echo", "no", code=1)
    assert out == ""
    assert f"process {holder.pid}" in said
    assert f"semlock status --kernel {path}" in said


def test_the_command_holds_it_when_semlock_is_killed(path):
    with subprocess.Popen(
        [sys.executable, "-m", "semlock", "run", "--kernel", path, "--", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as run:
        run.stdin.write(b"x\n")
        run.stdin.flush()
        run.stdout.readline()
        run.kill()
        semlock("status", "--kernel", path, code=1)
        run.stdin.close()
        run.stdout.read()
    semlock("wait", "--kernel", path)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--kernel", "--slots", "2", "a", "--", "true"),
        ("run", "--kernel", "--dialect", "sema", "a", "--", "true"),
        ("run", "--kernel", "--ttl", "5", "a", "--", "true"),
        ("status", "--kernel", "--dialect", "sema", "a"),
        ("wait", "--kernel", "--stale", "5", "a"),
    ],
)
def test_options_of_lock_systems_are_refused(words):
    assert "--kernel" in semlock(*words, code=2)[1]
