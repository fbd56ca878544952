"""``semlock run`` where a sandbox refuses to wait for signals, or a timer, or answers too early."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

import semlock

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("strace") is None,
    reason="the call is made to fail by strace",
)


def traced(answer, *words, call="rt_sigtimedwait"):
    return subprocess.Popen(
        ["strace", "-f", "-o", os.devnull, "-e", f"trace={call}",
         "-e", f"inject={call}:error={answer}",
         sys.executable, "-m", "semlock", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        *(("rt_sigtimedwait", f"{name}:when=1") for name in ("EAGAIN", "EINVAL", "EINTR")),
        *(
            (call, name)
            for call in ("rt_sigtimedwait", "setitimer")
            for name in ("ENOSYS", "EPERM")
        ),
    ],
)
def test_the_lock_is_held_until_the_command_is_over(path, call, answer):
    """The command looks itself, at its end, whether the lock it runs under is still there."""
    look = (
        "import sys, time, semlock; time.sleep(0.1);"
        "sys.exit(7 if semlock.status(sys.argv[1]).state == 'held' else 8)"
    )
    words = ("run", path, "--", sys.executable, "-c", look, path)
    with traced(answer, *words, call=call) as strace:
        errors = strace.communicate(timeout=30)[1]
    assert strace.returncode == 7, errors
    assert semlock.status(path).state == "free"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_is_passed_on_where_waiting_for_it_is_refused(path, name):
    heard = (
        "import signal, sys; n = signal.Signals[sys.argv[1]];"
        "signal.signal(n, lambda *_: sys.exit(9)); print('ready', flush=True);"
        "signal.pause()"
    )
    with traced("ENOSYS", "run", path, "--", sys.executable, "-c", heard, name) as strace:
        assert strace.stdout.readline() == "ready\n"
        info = semlock.status(path).info
        with open(f"/proc/{info.pid}/status", encoding="ascii") as about:
            semlocks = next(int(line.split()[1]) for line in about if line.startswith("PPid"))
        os.kill(semlocks, signal.Signals[name])
        assert strace.wait(30) == 9
    assert semlock.status(path).state == "free"
