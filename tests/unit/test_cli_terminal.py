"""The command at a terminal: a pseudo-terminal, and tmux for what a person would see."""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
from clilib import PATIENCE, words
from support import wait_until

if sys.platform == "win32":
    pytest.skip("there is no pseudo-terminal here", allow_module_level=True)

import fcntl
import pty
import struct
import termios

CLEAR = "\r\x1b[K"


class Terminal:
    """A program with a terminal of its own, which is a session of its own too."""

    def __init__(self, *line, columns=80, term="xterm"):
        self.seen = ""
        self.code = None
        self.counted = 0
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = term
            os.environ["PYTHONIOENCODING"] = "utf-8"
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execvp(line[0], line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            if self.code is None:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        os.close(self._end)

    def type(self, text):
        os.write(self._end, text.encode())

    def read(self, seconds):
        """Read what comes within a time; ``False`` when nothing will come any more."""
        if select.select([self._end], [], [], seconds)[0]:
            try:
                data = os.read(self._end, 65536)
            except OSError:
                return False
            self.seen += data.decode("utf-8", "replace")
            return bool(data)
        return True

    def until(self, pattern):
        end = time.monotonic() + PATIENCE
        while not re.search(pattern, self.seen):
            assert time.monotonic() < end, self.seen
            assert self.read(0.05) or re.search(pattern, self.seen), self.seen
        return re.search(pattern, self.seen)

    def count(self, word):
        """Count a word in what was seen, and forget that."""
        self.counted += self.seen.count(word)
        self.seen = self.seen.rsplit(word, 1)[-1]

    def ends(self):
        """Read to the end, and give the exit code."""
        end = time.monotonic() + PATIENCE
        while self.read(0.05):
            assert time.monotonic() < end, self.seen
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code

    @property
    def shown(self):
        """What is left on the screen: lines that were not cleared."""
        return [line.rsplit(CLEAR, 1)[-1] for line in self.seen.split("\n")]


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
    not hasattr(signal, "sigtimedwait"), reason="nobody tells whether the terminal sent it"
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
    assert terminal.seen.startswith("semlock: waiting for ")
    assert "\x1b" not in terminal.seen


@pytest.mark.parametrize(
    ("answer", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1)]
)
def test_break_asks_and_does_as_it_is_told(path, answer, code):
    Path(path).write_text("pid=1\ntimestamp=5\ntag=old\n")
    with Terminal(*words("break", path)) as terminal:
        terminal.until(r"tag: old(.|\n)*evidence: (.|\n)*Remove it\? \[y/N\] ")
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
        wait_until(lambda: "nightly build" in screen(), "it tells whom it waits for")
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
