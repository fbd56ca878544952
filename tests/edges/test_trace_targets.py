"""What a trace is written to: whatever it is, no lock waits for it or fails by it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile

import pytest

from support import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such files there")

LOCKS = """
import signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as commands do
import semlock
for _ in range(int(sys.argv[2])):
    with semlock.Lock(sys.argv[1], tag="x" * 200):
        pass
print("done")
"""


def trace_to(target, path, count=3):
    """Run a program that locks while it is traced: what it said, and what on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", LOCKS, str(path), str(count)],
        env={**os.environ, "SEMLOCK_TRACE": str(target)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=tempfile.gettempdir(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n", done.stderr
    return done.stderr


@pytest.fixture
def path(tmp_path):
    return tmp_path / "the.lock"


def test_a_fifo_without_a_reader_is_refused_with_a_warning(tmp_path, path):
    os.mkfifo(tmp_path / "fifo")
    assert "nothing is traced" in trace_to(tmp_path / "fifo", path)


def test_a_fifo_whose_reader_does_not_read_or_goes_is_refused_with_a_warning(tmp_path, path):
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert "nothing is traced" in trace_to(tmp_path / "fifo", path)
    finally:
        os.close(reader)


def test_a_pipe_for_standard_error_is_refused_with_a_warning(path):
    assert "nothing is traced" in trace_to("/dev/stderr", path)


def test_a_socket_or_a_directory_is_refused_with_a_warning(tmp_path, path):
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(tmp_path)
        listening.bind("socket")
        for target in (tmp_path / "socket", tmp_path):
            said = trace_to(target, path)
            assert f"nothing is traced: SEMLOCK_TRACE={target} can't be written: " in said
            assert "[Errno" not in said


def test_a_device_is_written_to_or_not_without_a_word(path):
    assert trace_to("/dev/null", path) == ""
    if os.path.exists("/dev/full"):
        assert "nothing is traced" in trace_to("/dev/full", path)


def test_a_terminal_that_was_stopped_holds_up_no_lock(path):
    import pty
    import termios

    master, slave = pty.openpty()
    try:
        termios.tcflow(slave, termios.TCOOFF)  # what Ctrl-S does
        assert trace_to(os.ttyname(slave), path, 500) == ""
        termios.tcflow(slave, termios.TCOON)
    finally:
        os.close(slave)
        os.close(master)


def test_what_could_not_be_written_is_counted(tmp_path, path):
    """A limit on the size of files stands for a disk that is full for a while."""
    script = f"""
import resource, signal, semlock, semlock.trace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
semlock.trace.start({str(tmp_path / "trace.jsonl")!r})
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
lock = semlock.Lock({str(path)!r})
with lock:
    pass
full = __import__("os").stat({str(tmp_path / "trace.jsonl")!r}).st_size
with lock:
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, limits[1]))
    lock.refresh()
    lock.refresh()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE, cwd="/")
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines if line]
    assert [event["count"] for event in events if event["event"] == "dropped"] == [2]
    assert "refresh" not in {event["event"] for event in events}
