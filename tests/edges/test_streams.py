"""The command with standard streams that are closed, full or gone, and names that are no text.

The exit code says what was done, and nothing is written into what is not ours.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import semlock
from clilib import PATIENCE, checked, checked_lines, command, words
from support import wait_until

if sys.platform == "win32":
    pytest.skip("descriptors and terminals are POSIX's", allow_module_level=True)

from terminal import Terminal

CLOSED = ("<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-")
UNWRITABLE = (">&-", ">/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full")

full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")


def in_shell(redirections, *line, **options):
    """Run the command in a shell with these redirections, and give the shell's result."""
    text = f'"$@" {redirections}; echo code=$? >&3'
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            ["bash", "-c", f"exec 3>&{writer}; {text}", "bash", *line],
            pass_fds=[writer], capture_output=True, text=True, check=False, timeout=PATIENCE,
            **options,
        )  # fmt: skip
        os.close(writer)
        writer = -1
        with os.fdopen(reader, encoding="ascii") as said:
            return int(said.read().removeprefix("code=")), done
    finally:
        if writer >= 0:
            os.close(writer)
            os.close(reader)


@pytest.mark.parametrize("closed", CLOSED)
def test_run_gives_the_commands_exit_code_whatever_is_closed(closed, path, tmp_path):
    inner = "ls -l /proc/$$/fd >seen 2>&1 || :; exit 7"
    code, _ = in_shell(closed, *words("run", path, "--", "sh", "-c", inner))
    assert code == 7
    assert not os.path.exists(path)
    if os.path.exists("/proc/self/fd"):
        # Of the lock it has one descriptor, far behind the streams.
        ours = [line for line in (tmp_path / "seen").read_text().splitlines() if "#" in line]
        assert all(" 213 -> " in line for line in ours)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="there is no /proc")
@pytest.mark.parametrize("closed", CLOSED)
def test_what_was_closed_is_closed_in_the_command_too(closed, path):
    code = "import os; os._exit(sum(1 << n for n in (0, 1, 2) if not os.path.exists(OPEN % n)))"
    inner = [sys.executable, "-S", "-c", f"OPEN = '/dev/fd/%d'; {code}"]
    asked, _ = in_shell(closed, *inner)
    under, _ = in_shell(closed, *words("run", path, "--", *inner))
    assert under == asked != 0


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="there is no /proc")
def test_nothing_of_ours_lands_where_a_stream_was_closed(path, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    inner = "echo $PPID >pid.new; mv pid.new pid; read x <pipe; exit 7"
    line = words("run", path, "--", "sh", "-c", inner)
    with subprocess.Popen(
        ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", *line], cwd=tmp_path
    ) as process:
        wait_until((tmp_path / "pid").exists, "the command runs")
        assert int((tmp_path / "pid").read_text()) == process.pid
        ends = {n: os.readlink(f"/proc/{process.pid}/fd/{n}") for n in range(3)}
        (tmp_path / "pipe").write_text("\n")
        assert process.wait(PATIENCE) == 7
    assert set(ends.values()) == {os.devnull}


@full
@pytest.mark.parametrize("where", UNWRITABLE)
@pytest.mark.parametrize("form", [(), ("-j",)])
def test_try_says_0_and_holds_or_it_does_not_hold(where, form, path):
    mine = ("--owner-pid", str(os.getpid()))
    assert in_shell(where, *words("try", *form, *mine, path))[0] == 0
    assert not semlock.Lock(path).try_acquire()
    assert in_shell(where, *words("try", *form, *mine, path))[0] == 1
    assert in_shell(where, *words("status", *form, path))[0] == 1
    assert in_shell(where, *words("refresh", *form, *mine, path))[0] == 0
    assert in_shell(where, *words("release", *form, *mine, path))[0] == 0
    assert semlock.status(path).state == "free"
    assert in_shell(where, *words("status", *form, path))[0] == 0


@full
@pytest.mark.parametrize("where", UNWRITABLE)
@pytest.mark.parametrize("verb", ["list", "--version", "help", "completion"])
def test_who_only_tells_says_that_it_could_not(where, verb, path):
    more = {"completion": ["bash"]}.get(verb, [])
    with semlock.Lock(path):
        assert in_shell(where, *words(verb, *more))[0] == 3


@pytest.mark.parametrize("verb", ["try", "acquire", "release", "clean", "break"])
def test_a_reader_that_has_gone_away_does_not_change_what_is_said_by_the_code(verb, path):
    if verb == "release":
        assert command("try", path).returncode == 0
    if verb == "clean":  # which has nothing to do where nothing is
        code = "import semlock, os, sys; semlock.Lock(sys.argv[1]).acquire(); os._exit(0)"
        subprocess.run([sys.executable, "-c", code, path], check=True)
    options = {"clean": ["-y"], "break": ["-y"]}.get(verb, [])
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        words(verb, *options, "-j", path), stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert b"can't be written" not in done.stderr
    assert os.path.exists(path) == (verb in ("try", "acquire"))


@full
@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_a_wait_needs_no_standard_error(where, path):
    with semlock.Lock(path):
        assert in_shell(where, *words("run", "-t", "0.05", path, "--", "true"))[0] == 1
        assert in_shell(where, *words("acquire", "-t", "0.05", path))[0] == 1
        assert in_shell(where, *words("run", "-j", "-n", path, "--", "true"))[0] == 1
    assert in_shell(where, *words("fly"))[0] == 2


@full
@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("verb", ["break", "clean"])
def test_who_cannot_be_asked_has_not_agreed(verb, where, path):
    record = f"pid={2**22 + 1}\ntimestamp=1\nboot=none\n"
    Path(path).write_text(record)
    code, done = in_shell(where, *words(verb, path))
    assert code == (1 if verb == "break" else 0)
    assert done.stdout == ""
    assert Path(path).read_text() == record


def test_a_terminal_that_goes_away_ends_no_wait(path, tmp_path):
    """A program that ignores the hang-up goes on, though each write to the terminal fails."""
    ran = tmp_path / "ran"
    lock = semlock.Lock(path)
    lock.acquire()
    line = f"trap '' HUP; exec {' '.join(words('run', path))} -- touch {ran}"
    with Terminal("sh", "-c", line) as terminal:
        terminal.until("waiting for")
        os.close(terminal._end)
        terminal._end = os.open(os.devnull, os.O_RDONLY)
        lock.release()
        _, status = os.waitpid(terminal.pid, 0)
        terminal.code = os.waitstatus_to_exitcode(status)
        assert terminal.code == 0
    assert ran.exists()


# ---------------------------------------------------------------------- names that are no text


@pytest.fixture
def twins(tmp_path):
    """Two locks whose names differ in bytes that are no UTF-8."""
    if sys.platform == "darwin":
        pytest.skip("names are UTF-8 there")
    encoded = os.fsencode(tmp_path)
    return [os.path.join(encoded, name) for name in (b"a\xff.lock", b"a\xfe.lock")]


@pytest.mark.parametrize("verb", ["try", "status", "release"])
def test_names_that_are_not_utf_8_keep_apart(verb, twins):
    mine = ["--owner-pid", str(os.getpid())] if verb != "status" else []
    if verb == "release":
        for path in twins:
            assert command("try", *mine, os.fsdecode(path)).returncode == 0
    kind = {"try": "acquired", "status": "free", "release": "released"}[verb]
    answers = [
        checked(command(verb, "-j", *mine, os.fsdecode(path)).stdout, kind) for path in twins
    ]
    assert [bytes.fromhex(answer["path_bytes"]) for answer in answers] == twins
    assert answers[0]["path"] != answers[1]["path"]
    assert answers[0]["path"].endswith(r"a\xff.lock")


def test_a_list_names_each_lock_exactly(twins, tmp_path):
    with semlock.Lock(os.fsdecode(twins[0])), semlock.Lock(os.fsdecode(twins[1])):
        answers = checked_lines(command("list", "-j", str(tmp_path)).stdout, "held")
    assert {bytes.fromhex(answer["path_bytes"]) for answer in answers} == set(twins)
    assert len({answer["path"] for answer in answers}) == 2


def test_a_name_that_is_text_has_no_other_form(tmp_path):
    path = str(tmp_path / "ä\\xff.lock")
    with semlock.Lock(path):
        answer = checked(command("status", "-j", path).stdout, "held")
    assert answer["path"] == path
    assert "path_bytes" not in answer


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_directory_that_is_not_utf_8_is_named_exactly_too(tmp_path):
    place = os.path.join(os.fsencode(tmp_path), b"d\xff")
    os.mkdir(place)
    lines = command("doctor", "-j", os.fsdecode(place)).stdout.splitlines()
    kinds = [checked(line, "check" if '"check"' in line else "guarantee") for line in lines]
    assert {bytes.fromhex(fields["directory_bytes"]) for fields in kinds} == {place}
