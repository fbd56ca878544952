"""``semlock run``: the lock ends when the command has ended, whatever befalls semlock meanwhile.

Exclusion is judged by what a second contender gets: at the moment in question, and after the
end of the command.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
import users
from clilib import PATIENCE, command, install, start, words
from runlib import IN_CONTAINER, WORKING, child_of, comes_free, free, needs, proc, ready, root
from support import state_of, wait_until

if sys.platform == "win32":
    pytest.skip("signals, terminals and fork are POSIX's", allow_module_level=True)

from terminal import Terminal


def shells():
    lines = {
        "bash": ("bash", "--norc", "--noprofile", "-i"),
        "dash": ("dash", "-i"),
        "zsh": ("zsh", "-f", "-i"),
    }
    return [pytest.param(line, id=name, marks=needs(name)) for name, line in lines.items()]


@pytest.fixture
def on_path(tmp_path_factory, monkeypatch):
    """Have a program semlock on the PATH, and prompts that say nothing."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("PS1", "> ")
    install(str(tmp_path_factory.mktemp("bin")))


@pytest.fixture
def pipe(tmp_path_factory):
    """A command that says ready and goes on until the pipe is written to, and then ends with 7."""
    path = str(tmp_path_factory.mktemp("pipe") / "pipe")
    os.mkfifo(path)
    return path


def working(pipe):
    # The word is put together when it is said, so that the terminal's echo is not taken for it.
    return f"sh -c 'echo rea''dy; read x <{pipe}; exit 7'"


def finish(pipe):
    """Have the command end, whether it has come to its pipe or not."""
    Path(pipe).write_text("\n")


# ---------------------------------------------------------------------- job control


@pytest.mark.parametrize("shell", shells())
@pytest.mark.parametrize("back", ["fg", "bg"])
def test_a_command_that_is_stopped_and_continued_by_the_shell_keeps_the_lock(
    shell, back, path, pipe, on_path
):
    with Terminal(*shell) as terminal:
        terminal.type(f"semlock run {path} -- {working(pipe)}\n")
        terminal.until("ready")
        terminal.type("\x1a")
        terminal.until("(?i)stopped|suspended")
        assert not free(path)
        terminal.type(f"{back}\n")
        holder = semlock.status(path).info.pid
        wait_until(lambda: state_of(holder) == "S", "the command goes on")
        assert not free(path)
        finish(pipe)
        comes_free(path)
        # Interactive shells ask again when there are jobs, and end all the same.
        terminal.type("wait; exit 5\nexit 5\n")
        assert terminal.ends() == 5


@pytest.mark.stress
@pytest.mark.parametrize("shell", shells())
def test_a_stop_may_be_longer_than_any_pause_of_semlocks(shell, path, pipe, on_path):
    with Terminal(*shell) as terminal:
        terminal.type(f"semlock run {path} -- {working(pipe)}\n")
        terminal.until("ready")
        terminal.type("\x1a")
        terminal.until("(?i)stopped|suspended")
        time.sleep(2.5)
        terminal.type("fg; echo co''de=$?\n")
        time.sleep(0.5)
        assert not free(path)
        finish(pipe)
        terminal.until("code=7")
        assert free(path)
        terminal.type("exit 5\n")
        assert terminal.ends() == 5


@proc
@pytest.mark.parametrize("which", ["semlock", "the command", "both"])
@pytest.mark.parametrize("how", ["SIGSTOP", "SIGTSTP"])
def test_a_stop_of_either_or_both_changes_nothing(which, how, path):
    # The kernel ignores SIGTSTP in a group that has no parent outside of it in its session.
    with start("run", path, "--", *WORKING, preexec_fn=os.setpgrp) as process:
        ready(process)
        both = {"semlock": process.pid, "the command": child_of(process.pid)}
        stopped = list(both.values()) if which == "both" else [both[which]]
        for pid in stopped:
            os.kill(pid, getattr(signal, how))
        for pid in stopped:
            wait_until(lambda pid=pid: state_of(pid) == "T", "it is stopped")
        assert not free(path)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        assert not free(path)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(PATIENCE) == 7
    assert free(path)


# ---------------------------------------------------------------------- signals


@root
@pytest.mark.parametrize("name", ["TERM", "HUP", "QUIT"])
def test_a_signal_that_cannot_be_passed_on_is_told_and_the_lock_stays(name, shared_path):
    path = shared_path
    # A program that any user may start, and that runs as root then, as sudo does.
    program = os.path.join(os.path.dirname(path), "as-root")
    shutil.copy(shutil.which("setpriv"), program)
    os.chmod(program, 0o4755)
    as_root = (program, "--reuid=0", "--regid=0", "--clear-groups")
    line = users.words("run", path, "--", *as_root, *WORKING)
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        first = process.stdout.readline()
        if first != "ready\n":
            said = process.stderr.read()
            pytest.skip(f"no program of root's can be run by others here: {said}")
        for _ in range(2):
            os.kill(process.pid, getattr(signal, f"SIG{name}"))
        assert f"SIG{name} can't be passed on" in process.stderr.readline()
        assert process.poll() is None
        assert not free(path)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(PATIENCE) == 7
        assert process.stderr.read() == "", "it is told once"
    assert free(path)


def test_the_end_of_the_command_is_noticed_where_children_were_to_be_ignored(path):
    line = f"trap '' CHLD; exec {' '.join(words('run', path))} -- sh -c 'exit 7'"
    done = subprocess.run(["bash", "-c", line], check=False, timeout=PATIENCE)
    assert done.returncode == 7
    assert not os.path.exists(path)


@needs("setsid")
def test_ctrl_c_reaches_a_command_in_a_session_of_its_own(path, pipe):
    script = f"trap 'exit 9' INT; echo ready; while :; do read x <{pipe}; done"
    with Terminal(*words("run", path, "--", "setsid", "sh", "-c", script)) as terminal:
        terminal.until("ready")
        assert not free(path)
        terminal.type("\x03")
        assert terminal.ends() == 9
    assert free(path)


@needs("setsid")
@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_signals_reach_a_command_in_a_session_of_its_own(path, name):
    script = f"trap 'exit 9' {name}; echo ready; while :; do sleep 0.01; done"
    with start("run", path, "--", "setsid", "sh", "-c", script) as process:
        ready(process)
        os.kill(process.pid, getattr(signal, f"SIG{name}"))
        assert process.wait(PATIENCE) == 9
    assert free(path)


def test_when_the_terminal_is_closed_the_command_keeps_the_lock_to_its_end(path, pipe):
    script = f"trap 'read x <{pipe}; exit' HUP; echo ready; while :; do sleep 0.01; done"
    terminal = Terminal(*words("run", path, "--", "sh", "-c", script))
    with terminal:
        terminal.until("ready")
        holder = semlock.status(path).info.pid
        # Its last descriptor goes, and the kernel hangs up the session.
        os.close(terminal._end)
        terminal._end = os.open(os.devnull, os.O_RDONLY)
        assert not free(path)
        finish(pipe)
        _, status = os.waitpid(terminal.pid, 0)
        terminal.code = os.waitstatus_to_exitcode(status)
        assert state_of(holder) in ("", "Z")
    assert free(path)


# ---------------------------------------------------------------------- killed


KINDS = {
    "plain": (),
    "fair": ("--fair",),
    "shared": ("--shared",),
    "slots": ("--slots", "1"),
    "sema": ("--dialect", "sema"),
    "semats": ("--dialect", "semats"),
    "task": ("--dialect", "task"),
    "sidecar": ("--dialect", "sidecar"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kill_9_of_semlock_leaves_the_lock_with_the_command(kind, path):
    options = KINDS[kind]
    rival = tuple(word for word in options if word not in ("--shared", "--fair"))
    with start("run", *options, path, "--", *WORKING) as process:
        ready(process)
        process.kill()
        process.wait()
        assert command("run", "-q", "-n", *rival, path, "--", "true").returncode == 1
        if kind == "sidecar":  # whose record proves nothing: it goes by age
            process.stdin.close()
            return
        with start(
            "run", "-j", *rival, path, "--", "echo", "in", stderr=subprocess.PIPE
        ) as waiter:
            assert '"waited"' in waiter.stderr.readline()
            process.stdin.close()
            assert waiter.wait(PATIENCE) == 0


def test_kill_9_of_semlock_leaves_several_locks_with_the_command(path, tmp_path):
    other = str(tmp_path / "other.lock")
    with start("run", path, other, "--", *WORKING) as process:
        ready(process)
        process.kill()
        process.wait()
        assert (free(path), free(other)) == (False, False)
        process.stdin.close()
        comes_free(path)
        comes_free(other)


@proc
def test_kill_9_of_the_command_frees_the_lock(path):
    with start("run", path, "--", *WORKING) as process:
        ready(process)
        os.kill(child_of(process.pid), signal.SIGKILL)
        assert process.wait(PATIENCE) == 137
    assert free(path)


def test_kill_9_of_the_shell_leaves_the_lock_with_the_command(path, pipe, on_path):
    script = f"semlock run {path} -- {working(pipe)}; :"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        ready(shell)
        shell.kill()
        shell.wait()
        assert not free(path)
        finish(pipe)
        comes_free(path)


@proc
def test_a_command_that_still_waits_for_the_lock_ends_with_semlock_and_runs_nothing(
    path, tmp_path
):
    ran = tmp_path / "ran"
    with semlock.Lock(path):
        with start(
            "run", "-j", path, "--", "touch", str(ran), stderr=subprocess.PIPE
        ) as process:
            assert '"waited"' in process.stderr.readline()
            child = child_of(process.pid)
            process.kill()
            process.wait()
            wait_until(lambda: state_of(child) in ("", "Z"), "it has ended")
    assert not ran.exists()


@proc
def test_a_command_that_is_killed_before_it_has_the_lock_is_told(path):
    with semlock.Lock(path) as lock:
        process = start("run", "-j", path, "--", "true", stderr=subprocess.PIPE)
        assert '"waited"' in process.stderr.readline()
        os.kill(child_of(process.pid), signal.SIGKILL)
        lock.release()
        assert process.wait(PATIENCE) == 137
        lock.acquire()
    with process:
        pass


# ---------------------------------------------------------------------- containers


@root
@needs("unshare")
def test_the_first_process_of_a_container_reaps_what_is_left_to_it(path, pipe):
    script = (
        "(sh -c 'echo $$; exit' &) | { read orphan; "
        "while [ -e /proc/$orphan ]; do sleep 0.01; done; }; exit 7"
    )
    line = [*IN_CONTAINER, *words("run", path, "--", "sh", "-c", script)]
    assert subprocess.run(line, check=False, timeout=PATIENCE).returncode == 7
    assert free(path)


@root
@needs("unshare")
@proc
@pytest.mark.parametrize("name", ["TERM", "HUP", "USR1"])
def test_the_first_process_of_a_container_passes_signals_on(name, path):
    script = f"trap 'exit 9' {name}; echo ready; while :; do sleep 0.01; done"
    line = [*IN_CONTAINER, *words("run", path, "--", "sh", "-c", script)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as outer:
        ready(outer)
        os.kill(child_of(outer.pid), getattr(signal, f"SIG{name}"))
        assert outer.wait(PATIENCE) == 9
    assert free(path)
