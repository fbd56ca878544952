"""The command at a terminal: a pseudo-terminal, and tmux for what a person would see."""

import atexit
import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import semlock
from clilib import words
from semlock._cli.waiting import Teller
from support import Strike, in_a_fork, wait_until

if sys.platform == "win32":
    pytest.skip("there is no pseudo-terminal here", allow_module_level=True)

import pty

from terminal import CLEAR, Terminal


@pytest.fixture
def holder(path):
    with semlock.Lock(path, tag="the reason") as lock:
        yield lock


def test_a_spinner_turns_and_leaves_nothing_behind(path):
    lock = semlock.Lock(path, tag="the reason")
    lock.acquire()
    with Terminal(*words("run", path, "--", "echo", "ran"), columns=200) as terminal:
        terminal.until("⠋.*waiting for .*the reason.*⠙.*⠹")
        lock.release()
        assert terminal.ends() == 0
    assert "".join(terminal.shown).strip() == "ran"


def test_no_line_is_drawn_by_a_job_in_the_background(path, holder):
    line = " ".join(words("run", "-t", "1", path, "--", "true"))
    with Terminal("sh", "-m", "-c", f"{line} & wait $!") as terminal:
        assert terminal.ends() == 1
    assert "held by" in terminal.seen
    assert "waiting for" not in terminal.seen


def test_the_line_fits_into_a_narrow_terminal(path, holder):
    with Terminal(*words("run", path, "--", "true"), columns=30) as terminal:
        terminal.until("⠸")
        terminal.type("\x03")
        assert terminal.ends() == 130
    lines = terminal.seen.replace("^C", "").split(CLEAR)
    assert max(map(len, lines)) == 27


@pytest.mark.parametrize("verb", [["run"], ["acquire"], ["wait"]])
def test_ctrl_c_ends_a_wait_at_once_and_leaves_nothing(verb, path, names, holder):
    line = [*verb, path, *(["--", "echo", "no"] if verb == ["run"] else [])]
    with Terminal(*words(*line)) as terminal:
        terminal.until("⠙")
        terminal.type("\x03")
        assert terminal.ends() == 130
    assert "".join(terminal.shown).strip() == ""
    assert "Traceback" not in terminal.seen
    assert names() == ["the.lock"]


def test_a_second_signal_at_any_bytecode_leaves_no_line(path, holder, monkeypatch):
    """As a ``run`` has: one signal from the terminal, and one of its command's end."""
    monkeypatch.setenv("TERM", "xterm")
    found = semlock.status(path)

    def left():
        end, side = pty.openpty()
        sys.stderr = open(side, "w", encoding="utf-8")
        shown = []

        def wait_and_be_interrupted():
            with Teller(quiet=False) as teller:
                teller(found, 0.4999)
                shown.append(os.read(end, 4096))
                raise KeyboardInterrupt

        atexit._clear()
        for at in itertools.count(1):
            shown.clear()
            strike = Strike(at, wait_and_be_interrupted, ("_cli/waiting.py",))
            atexit._run_exitfuncs()  # as the command does at its end
            os.write(side, b"END")
            while b"END" not in b"".join(shown):
                shown.append(os.read(end, 4096))
            if b"".join(shown).split(b"END")[0].rsplit(CLEAR.encode(), 1)[-1]:
                yield strike.where
            if not strike.where:
                assert at > 100
                return

    assert in_a_fork(lambda: list(left())) == []


# Fetches signals one by one, so that two of them are not taken for one.
COUNTING = """
import signal
awaited = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("ready", flush=True)
while (number := signal.sigwait(awaited)) != signal.SIGTERM:
    print("interrupt", flush=True)
raise SystemExit(5)
"""


def test_ctrl_c_reaches_the_command_once_and_the_command_decides(path):
    with Terminal(*words("run", path, "--", sys.executable, "-c", COUNTING)) as terminal:
        terminal.until("ready")
        for _ in range(5):
            terminal.type("\x03")
            terminal.until("interrupt")
            terminal.count("interrupt")
        assert semlock.status(path).verdict == "alive"
        # Passed on in order: an interrupt that was passed on too would have come before it.
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.ends() == 5
        terminal.count("interrupt")
    assert terminal.counted == 5
    assert not os.path.exists(path)


@pytest.mark.skipif(
    not hasattr(signal, "sigwaitinfo"),
    reason="the system doesn't tell whether the terminal sent it",
)
def test_an_interrupt_from_a_process_reaches_the_command_at_a_terminal_too(path):
    script = "trap 'exit 6' INT; echo ready; while :; do sleep 0.01; done"
    with Terminal(*words("run", path, "--", "sh", "-c", script)) as terminal:
        terminal.until("ready")
        os.kill(terminal.pid, signal.SIGINT)
        assert terminal.ends() == 6


def test_quiet_shows_nothing_and_a_dumb_terminal_a_plain_line(path, holder):
    with Terminal(*words("run", "-q", "-t", "0.3", path, "--", "true")) as terminal:
        assert terminal.ends() == 1
    assert terminal.seen == ""
    with Terminal(*words("run", "-t", "0.3", path, "--", "true"), term="dumb") as terminal:
        assert terminal.ends() == 1
    assert " ".join(terminal.seen.split()).startswith(f"semlock: {path} is held by ")
    assert "\x1b" not in terminal.seen


@pytest.mark.parametrize(
    ("answer", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1)]
)
def test_break_asks_and_does_as_it_is_told(path, answer, code):
    Path(path).write_text("pid=1\ntimestamp=5\ntag=old\n")
    with Terminal(*words("break", path)) as terminal:
        terminal.until(r"why: +old(.|\n)*evidence: (.|\n)*Remove it\? \[y/N\] ")
        terminal.type(answer)
        assert terminal.ends() == code
    assert os.path.exists(path) == bool(code)


@pytest.mark.parametrize(("answer", "stays"), [("y\n", False), ("n\n", True)])
def test_clean_asks_after_it_has_said_what_and_why(path, answer, stays):
    program = "import semlock,os,sys; semlock.Lock(sys.argv[1]).acquire(); os._exit(0)"
    subprocess.run([sys.executable, "-c", program, path], check=True)
    with Terminal(*words("clean", path)) as terminal:
        terminal.until(r"would remove (.|\n)*the kernel has dropped(.|\n)*Remove it\?")
        assert os.path.exists(path)
        terminal.type(answer)
        assert terminal.ends() == 0
    assert os.path.exists(path) == stays


def test_break_that_was_asked_leaves_a_successor_alone(path):
    Path(path).write_text("pid=1\ntimestamp=5\n")
    with Terminal(*words("break", path)) as terminal:
        terminal.until(r"Remove it\?")
        os.unlink(path)
        with semlock.Lock(path) as lock:
            terminal.type("y\n")
            assert terminal.ends() == 1
            lock.check()
    assert "changed hands" in terminal.seen


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_what_a_person_sees_in_tmux(path, tmp_path):
    lock = semlock.Lock(path, tag="nightly build")
    lock.acquire()
    tmux = ["tmux", "-f", "/dev/null", "-S", str(tmp_path / "socket")]

    def screen():
        return subprocess.run(
            [*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True
        ).stdout.strip()

    line = " ".join(words("run", path, "--", "echo", "ran"))
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    subprocess.run(
        [*tmux, "-u", "new-session", "-d", "-x", "160", "-y", "10", "sh", "-c",
         "PS1='$ ' exec sh"],
        check=True, env=environment,
    )  # fmt: skip
    try:
        subprocess.run(
            [*tmux, "send-keys", f"clear; {line}; echo code $?", "Enter"], check=True
        )
        wait_until(lambda: "nightly build" in screen(), "it tells what it waits for")
        first = screen()
        wait_until(lambda: screen() != first, "the spinner turns")
        assert screen().count("waiting for") == 1
        subprocess.run([*tmux, "send-keys", "C-c"], check=True)
        wait_until(lambda: "code 130" in screen(), "Ctrl-C has ended it")
        assert "waiting for" not in screen()
        subprocess.run(
            [*tmux, "send-keys", f"clear; {line}; echo code $?", "Enter"], check=True
        )
        wait_until(lambda: "nightly build" in screen(), "it tells again")
        lock.release()
        wait_until(lambda: "code 0" in screen(), "it ran")
        assert screen().splitlines()[:2] == ["ran", "code 0"]
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
        if lock.held:
            lock.release()


def test_a_wait_that_does_not_last_is_not_reported(path):
    """A dead holder's lock is taken over at once, and one that is released soon is had soon."""
    program = "import semlock,os,sys; semlock.Lock(sys.argv[1]).acquire(); os._exit(0)"
    subprocess.run([sys.executable, "-c", program, path], check=True)
    with Terminal(*words("run", path, "--", "echo", "ran")) as terminal:
        assert terminal.ends() == 0
    assert terminal.seen == "ran\r\n"
    lock = semlock.Lock(path)
    lock.acquire()
    with Terminal(*words("run", "-j", path, "--", "echo", "ran")) as terminal:
        terminal.until('"waited"')  # which programs are told at once
        lock.release()
        assert terminal.ends() == 0
    lock.acquire()
    with Terminal(*words("run", path, "--", "echo", "ran")) as terminal:
        wait_until(lambda: queue_of(path), "it stands in the queue")
        lock.release()
        assert terminal.ends() == 0
    assert terminal.seen == "ran\r\n"


def queue_of(path):
    return list(Path(path).parent.glob(".semlock-*.queue/*"))


def test_a_holder_that_called_the_command_is_named_above_the_line(path, holder):
    with Terminal(*words("acquire", path), columns=200) as terminal:
        terminal.until(rf"held by process {os.getpid()} \(.*which called this command")
        terminal.until("⠙")
        terminal.type("\x03")
        assert terminal.ends() == 130
    assert terminal.seen.count("which called this command") == 1
