"""``semlock run``: whose life the lock follows, what is passed on, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import semlock
from clilib import HOLDING, checked, command, echo, program, start, words
from support import PATIENCE, state_of, wine_keeps_locked_names

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and fork are POSIX's")
proc = pytest.mark.skipif(
    sys.platform == "win32" or not os.path.exists("/proc/self/fd"), reason="there is no /proc"
)


def says_ready(process):
    assert process.stdout.readline() == "ready\n"


def gone(pid):
    return state_of(pid) in ("", "Z")


# ---------------------------------------------------------------------- whose life it follows


@proc
@pytest.mark.parametrize("follow", ["self", "child"])
def test_what_the_command_leaves_running_holds_nothing(path, tmp_path, follow):
    left = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {left}"
    result = command("run", "--follow", follow, path, "--", "sh", "-c", script,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                     capture_output=False)  # fmt: skip
    pid = int(left.read_text())
    try:
        assert result.returncode == 0
        assert not os.path.exists(path)
        with semlock.Lock(path, timeout=0):
            pass
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        # It inherits the descriptor of a lock that is its command's, which is of no use now.
        known = [link for link in links if str(tmp_path) in link]
        assert len(known) <= (follow == "child")
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_lock_that_follows_semlock_ends_with_it_and_the_command_goes_on(path):
    line = program("print('ready', flush=True); input(); print('bye')")
    with start("run", "--follow", "self", path, "--", *line) as process:
        says_ready(process)
        holder = semlock.status(path).info.pid
        assert holder == process.pid
        process.kill()
        process.wait()
        assert semlock.status(path).state == "stale"
        with semlock.Lock(path, timeout=PATIENCE):
            process.stdin.write("\n")
            process.stdin.close()
            assert process.stdout.readline() == "bye\n"


@posix
@pytest.mark.parametrize("follow", [(), ("--follow", "child")])
def test_a_lock_outlives_semlock_and_ends_with_the_command(path, follow):
    with start(
        "run", *follow, path, "--", "sh", "-c", "echo ready; read x; echo bye"
    ) as process:
        says_ready(process)
        found = semlock.status(path)
        assert (found.verdict, found.info.tag) == ("alive", "sh")
        assert found.info.pid != process.pid
        process.kill()
        process.wait()
        assert semlock.status(path).verdict == "alive"
        assert not semlock.Lock(path).try_acquire()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.readline() == "bye\n"
        with semlock.Lock(path, timeout=PATIENCE):
            assert gone(found.info.pid)


@proc
@pytest.mark.parametrize("follow", ["self", "child"])
def test_when_the_command_is_killed_the_lock_is_free(path, follow):
    script = "echo ready; read x"
    with start("run", "--follow", follow, path, "--", "sh", "-c", script) as process:
        says_ready(process)
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            child = int(file.read().split()[0])
        os.kill(child, signal.SIGKILL)
        assert process.wait(PATIENCE) == 128 + signal.SIGKILL
    assert not os.path.exists(path)


@posix
def test_when_the_shell_is_killed_its_lock_is_taken_at_once(path):
    script = f"{' '.join(words('acquire', path))} && echo ready; read x"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        says_ready(shell)
        assert command("try", path).returncode == 1
        shell.kill()
        shell.wait()
        assert command("acquire", "-t", "30", path).returncode == 0
    assert command("release", path).returncode == 0


@posix
@pytest.mark.parametrize("follow", ["self", "child"])
def test_the_exit_code_is_the_commands(path, follow):
    def code(*line):
        return command("run", "--follow", follow, path, "--", *line).returncode

    assert code("sh", "-c", "exit 7") == 7
    assert code("sh", "-c", "kill -9 $$") == 137
    assert code("no-such-command") == 127
    assert code("/") == 126
    assert code("") == 127
    assert not os.path.exists(path)


@posix
@pytest.mark.parametrize("verb", ["run", "flock"])
def test_a_script_without_a_first_line_is_run_by_sh(path, verb, tmp_path, monkeypatch):
    script = tmp_path / "script"
    script.write_text('echo "$0 $*"; exit 7\n')
    script.chmod(0o755)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "script").touch(mode=0o644)
    monkeypatch.setenv("PATH", f"{tmp_path}/elsewhere:{tmp_path}:{os.environ['PATH']}")
    for name in (str(script), "script"):
        done = command(verb, path, name, "a b", "c")
        assert (done.returncode, done.stdout) == (7, f"{script} a b c\n"), done


@posix
def test_a_script_whose_interpreter_is_missing_is_not_called_missing(path, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/program\n")
    script.chmod(0o755)
    done = command("run", path, str(script))
    assert done.returncode == 127
    assert f"{script} can't be run: the interpreter" in done.stderr


@posix
def test_a_command_that_followed_is_not_run_without_the_lock(path, tmp_path):
    ran = tmp_path / "ran"
    with semlock.Lock(path):
        result = command("run", "--follow", "child", "-n", path, "--", "touch", str(ran))
    assert result.returncode == 1
    assert not ran.exists()


# ---------------------------------------------------------------------- signals


@posix
@pytest.mark.parametrize(
    "name",
    [
        *("TERM", "HUP", "INT", "QUIT", "USR1", "USR2"),
        pytest.param(
            "ALRM",
            marks=pytest.mark.skipif(
                not hasattr(signal, "sigwaitinfo"), reason="the sender is not told here"
            ),
        ),
    ],
)
def test_signals_reach_the_command(path, name):
    script = f"trap 'exit 9' {name}; echo ready; while :; do sleep 0.01; done"
    with start("run", path, "--", "sh", "-c", script) as process:
        says_ready(process)
        os.kill(process.pid, getattr(signal, f"SIG{name}"))
        assert process.wait(PATIENCE) == 9
    assert not os.path.exists(path)


@posix
def test_a_command_that_survives_a_signal_goes_on_under_the_lock(path):
    script = "trap 'echo again' TERM; echo ready; while :; do sleep 0.01; done"
    with start("run", path, "--", "sh", "-c", script) as process:
        says_ready(process)
        for _ in range(3):
            process.terminate()
            assert process.stdout.readline() == "again\n"
            assert semlock.status(path).verdict == "alive"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) == 130


@proc
@pytest.mark.skipif(
    sys.implementation.name == "pypy", reason="PyPy doesn't know what it was told to ignore"
)
def test_what_is_ignored_stays_ignored_in_the_command(path):
    line = f"trap '' HUP; exec {' '.join(words('run', path))} -- grep SigIgn /proc/self/status"
    shown = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=True
    ).stdout
    assert _standard(shown) == 1 << (signal.SIGHUP - 1)


def _standard(line):
    """The mask in a line of /proc/self/status, without what the C library has for itself."""
    return int(line.split()[1], 16) & (1 << 31) - 1


@proc
def test_the_command_has_no_blocked_or_ignored_signals_of_ours(path):
    for follow in ("self", "child"):
        shown = command(
            "run",
            "--follow",
            follow,
            path,
            "--",
            "grep",
            "-E",
            "SigIgn|SigBlk",
            "/proc/self/status",
        ).stdout
        assert [_standard(line) for line in shown.splitlines()] == [0, 0]


WITHOUT = """
import os, sys, _signal
for name in {gone!r}:
    module, _, attribute = name.partition(".")
    if hasattr(sys.modules[module], attribute):
        delattr(sys.modules[module], attribute)
from semlock.cli import entry
entry()
"""


@posix
@pytest.mark.parametrize("gone", [["_signal.sigwaitinfo"]])
def test_systems_that_lack_a_call_do_without_it(path, gone):
    def line(*rest):
        return [sys.executable, "-c", WITHOUT.format(gone=gone), "run", path, "--", *rest]

    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done"
    with subprocess.Popen(
        line("sh", "-c", script), stdout=subprocess.PIPE, text=True
    ) as process:
        says_ready(process)
        process.terminate()
        assert process.wait(PATIENCE) == 9
    done = subprocess.run(line("no-such-command"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (127, 1)
    assert not os.path.exists(path)


@posix
def test_a_thread_that_takes_the_news_of_the_end_does_not_keep_it_from_us():
    program = (
        "import threading, time\n"
        "from semlock._cli import child\n"
        # It has no signal blocked, so the kernel gives it what is blocked in the main thread.
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "code = child.Child(('sh', '-c', 'exit 7')).run(lambda: None)\n"
        "raise SystemExit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE)
    assert done.returncode == 7


@posix
def test_the_news_that_the_commands_process_was_killed_may_interrupt_an_import():
    program = (
        "import os, sys, time, types\n"
        "from semlock._cli import child\n"
        "command = child.Child(('sleep', '60'))\n"
        "sys.modules['semlock._cli.output'] = types.ModuleType('half imported')\n"
        "try:\n"
        "    os.kill(command.pid, 9)\n"
        "    time.sleep(60)\n"
        "except child.Ended as ended:\n"
        "    print(ended.exit_code, ended.said)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    said = "137 the process of sleep was killed before the command ran\n"
    assert done.stdout == said, done.stderr


@posix
def test_an_alarm_that_was_set_before_semlock_began_reaches_the_command():
    program = (
        "import signal\n"
        "from semlock._cli import child\n"
        "command = child.Child(('sleep', '60'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.5)\n"  # as it is after an exec
        "raise SystemExit(command.run(lambda: None))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE)
    assert done.returncode == 128 + signal.SIGALRM


@posix
@pytest.mark.parametrize("name", ["TERM", "HUP", "INT"])
def test_a_signal_ends_a_wait_and_leaves_nothing(path, names, name):
    with semlock.Lock(path):
        with start("run", "-j", path, "--", "echo", "no", stderr=subprocess.PIPE) as process:
            assert '"waited"' in process.stderr.readline()
            number = getattr(signal, f"SIG{name}")
            os.kill(process.pid, number)
            assert process.wait(PATIENCE) == 128 + number
            assert process.stdout.read() == ""
            assert process.stderr.read() == ""
        assert names() == ["the.lock"]


# ---------------------------------------------------------------------- which locks


def test_several_locks_are_taken_together(path, tmp_path):
    other = str(tmp_path / "other.lock")
    listing = program("import os, sys; print(*sorted(os.listdir(sys.argv[1])))", str(tmp_path))
    result = command("run", path, other, "--", *listing)
    assert result.stdout == "other.lock the.lock\n"
    assert os.listdir(tmp_path) == []
    with semlock.Lock(other):
        result = command("run", "-n", path, other, "--", *echo("no"))
        assert (result.returncode, result.stdout) == (1, "")
        assert "other.lock is held" in result.stderr
        assert os.listdir(tmp_path) == ["other.lock"]


def test_slots_let_so_many_run_at_a_time(path):
    line = ("run", "--slots", "2", path, "--", *HOLDING)
    with start(*line) as one, start(*line) as two:
        says_ready(one)
        says_ready(two)
        assert command("run", "-n", "--slots", "2", path, "--", "true").returncode == 1
        os.mkdir(f"{path}.3")
        names = ", ".join(f"{os.path.basename(path)}.{number}" for number in (1, 2))
        assert command("status", path).stdout == f"state:    free\nslots:    2 held: {names}\n"
        one.communicate("\n", timeout=PATIENCE)
        assert command("run", "--slots", "2", path, "--", *echo()).returncode == 0
        two.communicate("\n", timeout=PATIENCE)


def test_those_who_share_exclude_only_those_who_do_not(path):
    line = ("run", "--shared", path, "--", *HOLDING)
    with start(*line) as one, start(*line) as two:
        says_ready(one)
        says_ready(two)
        assert command("run", "-n", path, "--", "true").returncode == 1
        one.communicate("\n", timeout=PATIENCE)
        two.communicate("\n", timeout=PATIENCE)
    assert command("run", path, "--", *echo()).returncode == 0


@pytest.mark.parametrize("dialect", ["semlock", "sema", "semats", "feature", "sidecar", "task"])
def test_each_dialect_holds_and_is_recognised(dialect, tmp_path):
    place = tmp_path / "specs" / "f"
    place.mkdir(parents=True)
    path = str(place / ".lock")
    inner = words("status", "-j", path)
    result = command("run", "--dialect", dialect, path, "--", *inner)
    fields = checked(result.stdout, "held")
    seen = {"sema": "semlock", "semats": "semlock"}.get(dialect, dialect)
    assert fields["dialect"] == seen
    assert fields["alive"] is True or dialect in ("feature", "sidecar")
    assert not os.path.exists(path)


def test_the_dialect_is_chosen_by_what_is_there_or_by_the_name(tmp_path):
    place = tmp_path / "specs" / "f"
    place.mkdir(parents=True)
    path = place / ".lock"
    look = words("status", "-j", str(path))
    result = command("run", "--dialect", "auto", str(path), "--", *look)
    assert checked(result.stdout, "held")["dialect"] == "feature"
    path.write_text(json.dumps({"owner": "x", "since": 1_700_000_000_000, "ttl": 1}))
    result = command("run", "--dialect", "auto", str(path), "--", *look)
    assert checked(result.stdout, "held")["dialect"] == "task"


@wine_keeps_locked_names
def test_a_lock_that_is_lost_while_the_command_runs_is_no_success(path):
    remove = words("break", "-y", path)
    result = command("run", path, "--", *remove)
    assert result.returncode == 3
    assert "does not lead to that lock any more" in result.stderr
    failing = program(
        "import subprocess, sys; subprocess.run(sys.argv[1:]); raise SystemExit(9)", *remove
    )
    assert command("run", path, "--", *failing).returncode == 9


@pytest.mark.skipif(sys.platform == "win32", reason="no argument is such bytes there")
def test_a_tag_may_be_any_bytes(path):
    tag = b'\xff"\\\n\x1b[31m\xc3\xa9'
    inner = words("status", "-j", path)
    result = command("run", "-m", os.fsdecode(tag), path, "--", *inner)
    fields = checked(result.stdout, "held")
    assert fields["tag"] == '�"\\  [31mé'
    assert semlock.status(path).state == "free"


def test_json_of_run_goes_to_standard_error(path):
    with semlock.Lock(path, tag="x"):
        result = command("run", "-j", "-t", "0.05", path, "--", "true")
    waiting, refused = result.stderr.splitlines()
    assert checked(waiting, "waiting")["pid"] == os.getpid()
    assert checked(refused, "refused")["tag"] == "x"
    assert result.stdout == ""


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="what is imported at the start is CPython's"
)
def test_no_heavy_module_is_imported_on_the_way_of_run_and_try(path):
    program = (
        "import sys\n"
        "from semlock.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "heavy = {'argparse', 'subprocess', 'signal', 'enum', 're', 'json', 'collections',\n"
        "         'contextlib', 'functools', 'typing', 'threading', 'logging', 'inspect',\n"
        "         'difflib', 'tempfile', 'dataclasses', 'pathlib'} & set(sys.modules)\n"
        "print(code, sorted(heavy))\n"
    )
    # Isolated and without site, which imports half of these itself for editable packages.
    places = [str(Path(semlock.__file__).parent.parent), *filter(None, sys.path)]
    begin = f"import sys; sys.path[:0] = {places!r}\n"
    lines = [["try", path], ["release", path]]
    if sys.platform != "win32":  # where the module subprocess is what runs a command
        lines.append(["run", path, "--", *echo()])
    for line in lines:
        result = subprocess.run(
            [sys.executable, "-I", "-S", "-c", begin + program, *line],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert result.stdout.endswith("0 []\n"), result.stdout


def test_what_takes_or_looks_sees_those_who_share(path):
    directory = os.path.dirname(path)
    with start("run", "--shared", path, "-m", "reading", "--", *HOLDING) as reader:
        says_ready(reader)
        for line in (("try",), ("acquire", "-t", "0"), ("acquire", "-t", "0.1")):
            refused = command(*line, path)
            assert refused.returncode == 1, line
            assert "(reading)" in refused.stderr
            assert not os.path.exists(path)
        found = command("status", path)
        assert found.returncode == 1
        assert "reading" in found.stdout
        assert command("wait", "-t", "0.1", path).returncode == 1
        listed = command("list", directory)
        assert f"{os.path.basename(path)}.readers" in listed.stdout
        with start("wait", path) as waiting, start("acquire", path) as acquiring:
            assert waiting.poll() is None
            reader.communicate("\n", timeout=PATIENCE)
            assert acquiring.wait(PATIENCE) == 0
            assert command("release", path).returncode == 0
            assert waiting.wait(PATIENCE) == 0
    assert command("status", path).stdout == "state:    free\n"


@posix
@pytest.mark.parametrize("wait", [("-n",), ("-w", "0.1")])
def test_a_command_that_waits_for_its_own_lock_is_told_so(path, wait):
    result = command("run", path, "--", *words("run", *wait, path, "--", "true"))
    assert result.returncode == 1
    assert "which is this command itself" in result.stderr
    assert "Use the lock only once" in result.stderr
    assert "Wait longer" not in result.stderr
