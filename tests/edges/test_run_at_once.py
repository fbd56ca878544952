"""``semlock run`` of a lock that is free: the core starts the command, which is the holder then.

The command's process writes itself into the record before it executes the command.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import time

import pytest

import semlock
from clilib import command, program, words
from runlib import IN_CONTAINER, comes_free, free, needs, root
from support import state_of

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere Python starts the command"
)

# Say what the record is, and which process this is: its number and its start.
SHOW = 'cat "$1"; echo; cut -d" " -f1,22 /proc/$$/stat'


def show(path):
    return ("sh", "-c", SHOW, "sh", path)


def shown(text):
    """Give the holder that the record named, and the process that read it."""
    record, _, itself = text.rpartition("\n\n")
    says = dict(line.split("=", 1) for line in record.splitlines())
    holder = int(says["pid"]), int(says["start"]), says["witness"]
    return holder, (*map(int, itself.split()), "kept")


@pytest.mark.parametrize("more", [(), ("-m", "x" * 5000)], ids=["short", "longer than a page"])
def test_the_command_is_the_holder_that_it_reads(path, more):
    done = command("run", *more, path, "--", *show(path))
    holder, reader = shown(done.stdout)
    assert holder == reader
    assert (done.returncode, done.stderr, os.path.exists(path)) == (0, "", False)


@root
@needs("unshare")
@pytest.mark.skipif(
    not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK), reason="numbers can't be chosen"
)
@pytest.mark.parametrize("numbers", ["longer", "shorter"])
def test_a_number_with_more_or_fewer_digits_than_semlocks_makes_no_difference(
    path, numbers, tmp_path
):
    call = shlex.join(words("run", path, "--", *show(path)))
    link = shlex.join(words("run", path, "--", "ln", path, str(tmp_path / "left")))
    setting = "/proc/sys/kernel/ns_last_pid"
    for line in (call, link):
        if numbers == "longer":  # semlock is number 1
            script = f"echo 98765 > {setting}; exec {line}"
        else:  # semlock has the last number that there is
            script = (
                "most=$(cat /proc/sys/kernel/pid_max); "
                f"echo $((most - 2)) > {setting}; {line}; exit $?"
            )
        done = subprocess.run(
            [*IN_CONTAINER, "sh", "-c", script], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr, os.path.exists(path)) == (0, "", False)
        if line == call:
            holder, reader = shown(done.stdout)
            assert holder == reader
            assert reader[0] > 90000 if numbers == "longer" else 100 < reader[0] < 10000
    # The release says in the record, at its place, that other names of the file hold nothing.
    assert (tmp_path / "left").read_text(encoding="ascii").endswith("\nwitness=over\n")


def test_a_file_whose_time_was_changed_is_still_the_lock(path):
    """At the release the record is read then, and it is the command's."""
    done = command("run", path, "--", "touch", "-d", "1 hour ago", path)
    assert (done.returncode, done.stderr, os.path.exists(path)) == (0, "", False)


def test_signals_that_were_blocked_or_ignored_are_so_in_the_command(path):
    code = """if True:
        import os, signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH, signal.SIGUSR2])
        for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, "-m", "semlock", *sys.argv[1:]])"""
    look = ("grep", "-E", "SigBlk|SigIgn", "/proc/self/status")
    done = subprocess.run(
        program(code, "run", path, "--", *look), capture_output=True, text=True, check=True
    )
    found = [int(line.split()[1], 16) & (1 << 31) - 1 for line in done.stdout.splitlines()]
    assert found == [1 << 27 | 1 << 11, 1 << 13 | 1 << 16 | 1 << 2]


def refused(done, path, ran, said="Too many open files"):
    assert (done.returncode, said in done.stderr) == (126, True), done.stderr
    assert not ran.exists()
    assert not os.path.exists(path)


def test_a_command_that_could_not_inherit_the_lock_is_not_run(path, tmp_path):
    """All numbers are taken, but some that are too low to be a command's."""
    code = """if True:
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        for number in range(10, 60):
            os.dup2(0, number)
        os.execv(sys.executable, [sys.executable, "-m", "semlock", *sys.argv[1:]])"""
    ran = tmp_path / "ran"
    line = program(code, "run", path, "--", "touch", str(ran))
    refused(subprocess.run(line, capture_output=True, text=True, check=False), path, ran)


@needs("strace")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("pipe2:error=EMFILE", "Too many open files"),
        ("vfork:error=EAGAIN", "Resource temporarily unavailable"),
    ],
)
def test_where_no_process_can_be_made_nothing_is_left(path, tmp_path, fault, said):
    if fault.startswith("vfork") and platform.machine() != "x86_64":
        pytest.skip("vfork(2) is clone(2) there")
    ran = tmp_path / "ran"
    line = ["strace", "-qq", "-o", os.devnull, "-e", f"inject={fault}"]
    done = subprocess.run(
        [*line, *words("run", path, "--", "touch", str(ran))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    refused(done, path, ran, said)


# vfork as an emulator makes it of its own fork: no handler of the C library runs.
COPIES = """
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
int vfork(void) { return (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="a library is compiled")
def test_an_emulator_that_copies_the_memory_for_vfork_makes_no_difference(path, tmp_path):
    library = tmp_path / "copies.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(library), "-xc", "-"],
        input=COPIES, text=True, check=True,
    )  # fmt: skip
    loads = {**os.environ, "LD_PRELOAD": str(library)}
    holder, reader = shown(command("run", path, "--", *show(path), env=loads).stdout)
    assert holder == reader
    for rest, code in (
        (("touch", "-d", "1 hour ago", path), 0),
        (("sh", "-c", "exit 7"), 7),
        (("no-such-command",), 127),
        (("/dev/null",), 126),
    ):
        done = command("run", path, "--", *rest, env=loads)
        assert (done.returncode, done.stderr.count("\n")) == (code, int(code > 7))
        assert free(path)


@pytest.mark.parametrize("turn", range(8))
def test_whenever_semlock_is_killed_the_command_runs_under_its_lock_or_not_at_all(
    path, tmp_path, turn
):
    """The moments are those around the start of the command."""
    bad, ran = tmp_path / "bad", tmp_path / "ran"
    watched = f'echo $$ > {ran}; sleep 0.03; grep -qx "pid=$$" {path} || echo no > {bad}'
    with subprocess.Popen(words("run", path, "--", "sh", "-c", watched)) as process:
        while not os.path.exists(path) and process.poll() is None:
            pass
        time.sleep(turn * 0.0003)
        process.kill()
    comes_free(path)
    assert not bad.exists()
    if ran.exists():
        assert state_of(int(ran.read_text(encoding="ascii"))) in ("", "Z")
    assert semlock.status(path).state == "free"
