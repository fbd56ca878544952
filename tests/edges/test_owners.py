"""``try`` and ``acquire`` in scripts: the owner is a process that outlives the command.

Each way to call semlock stands in a script of a real shell.  What a second contender gets is
asked while the script goes on, and after it has let go, or has ended without a word.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import semlock
import users
from clilib import PATIENCE, checked, command, install, words
from semlock._cli import owners

if sys.platform == "win32":
    pytest.skip("the shells are POSIX's", allow_module_level=True)
if not os.path.exists("/proc/self/stat"):
    pytest.skip("what a process runs is seen in /proc", allow_module_level=True)

from runlib import IN_CONTAINER, root
from support import wait_until
from terminal import Terminal

SHELLS = ("bash", "dash", "zsh", "ash")  # the last one is mostly busybox
ACQUIRE = "semlock acquire -j the.lock"

# For each way: how it is written in a script.  The first words of a name are the program that
# it needs.  What semlock says must come out on standard output.
PASSED_OVER = {
    "plain": ACQUIRE,
    "timeout": f"timeout 20 {ACQUIRE}",
    "timeout in timeout": f"timeout 20 timeout 20 {ACQUIRE}",
    "env -S": f"env -S '{ACQUIRE}'",
    "nice": f"nice {ACQUIRE}",
    "nohup": f"nohup {ACQUIRE}",
    "stdbuf": f"stdbuf -o0 {ACQUIRE}",
    "setsid -w": f"setsid -w {ACQUIRE}",
    "flock": f"flock other {ACQUIRE}",
    "flock -c": f"flock other -c '{ACQUIRE}'",
    "semlock run": f"semlock run other -- sh -c '{ACQUIRE}'",
    "semlock flock": f"semlock flock other -c '{ACQUIRE}'",
    "git, of an alias": f"git -c 'alias.take=!{ACQUIRE}' take",
    "strace": f"strace -f -o /dev/null {ACQUIRE}",
    "xargs": "echo the.lock | xargs semlock acquire -j",
    "find": f"find . -maxdepth 0 -exec {ACQUIRE} ';'",
    "script": f"script -qc '{ACQUIRE}' /dev/null",
    "sh -c": f"sh -c '{ACQUIRE}'",
    "sh -c with a way out": f"sh -c '{ACQUIRE} || exit 1'",
    "sh -c with its exit code": f"sh -c '{ACQUIRE}; exit $?'",
    "sh -c behind another command": f"sh -c 'cd . && {ACQUIRE}'",
    "sh -c with a redirection": f"sh -c '{ACQUIRE} 2>&1;'",
    "sh -c in a loop": "sh -c 'until semlock try -j the.lock; do sleep 0.1; done'",
    "sh -c of a function": f"sh -c 'take() {{ {ACQUIRE}; }}; take'",
    "sh -c of a variable": f"take='{ACQUIRE}' sh -c '$take'",
    "sh -c of a part": "part=semlock sh -c ': ; $part acquire -j the.lock'",
    "bash -c of timeout": f"bash -ec 'timeout 20 {ACQUIRE}'",
    "a substitution": f'out=$({ACQUIRE}; :); echo "$out"',
    "a substitution of parentheses": f'out=$( ( {ACQUIRE}; : ); : ); echo "$out"',
    "backquotes": f'out=`{ACQUIRE}; :`; echo "$out"',
    "a pipeline": f"{{ {ACQUIRE}; :; }} | cat",
    "the end of a pipeline": f"echo x | {{ read x; {ACQUIRE}; :; }}",
    "a wrapper of the user's": f"./wrapper {ACQUIRE}",
}
ROOTS = {
    "su": f"su -c '{ACQUIRE}'",
    "chroot": "chroot / $(command -v semlock) acquire -j $PWD/the.lock",
    "unshare -f": f"unshare -f {ACQUIRE}",
    "nsenter": f"nsenter --mount=/proc/self/ns/mnt --wd=. {ACQUIRE}",
}


@pytest.fixture
def place(tmp_path, tmp_path_factory, monkeypatch):
    """A directory with a lock to be and a wrapper; a program semlock is on the PATH."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    install(str(tmp_path_factory.mktemp("bin")))
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\n"$@"\nexit $?\n')
    wrapper.chmod(0o755)
    return tmp_path


class Script:
    """A script of a real shell that takes the lock, says how that went, and waits."""

    def __init__(self, shell, line, place, then="semlock release the.lock; echo released=$?"):
        text = f"{line}\necho code=$?\nread x\n{then}\n"
        (place / "script.sh").write_text(text)
        self.shell = subprocess.Popen(
            [shell, "script.sh"],
            cwd=place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = []
        for text in self.shell.stdout:
            self.said.append(text.strip())
            if text.startswith("code="):
                break
        self.code = int(self.said[-1].removeprefix("code="))

    @property
    def answer(self):
        [line] = [line for line in self.said if line.startswith("{")]
        return checked(line, "acquired")

    def go_on(self):
        """Let it go on to its end, and give what it says."""
        out, _ = self.shell.communicate("\n", timeout=PATIENCE)
        return out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shell.kill()
        self.shell.wait()
        for stream in (self.shell.stdin, self.shell.stdout, self.shell.stderr):
            stream.close()


def free(path):
    """Tell whether a second contender gets the lock."""
    lock = semlock.Lock(path)
    if not lock.try_acquire():
        return False
    lock.release()
    return True


def skip_without(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def belongs_to_the_script(shell, line, place):
    path = place / "the.lock"
    with Script(shell, line, place, then="") as script:
        assert script.code == 0, script.shell.stderr.read()
        assert script.answer["owner_pid"] == script.answer["pid"] == script.shell.pid
        assert script.answer["owner_name"] == shell
        assert not free(path)
        script.go_on()
    assert free(path)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_releases_what_it_took(shell, place):
    skip_without(shell)
    with Script(shell, ACQUIRE, place) as script:
        assert not free(place / "the.lock")
        assert "released=0" in script.go_on()
    assert not (place / "the.lock").exists()


@pytest.mark.parametrize("way", ["find", "xargs", "timeout"])
def test_what_busybox_runs_in_a_copy_of_its_shell_is_passed_over(way, place, monkeypatch):
    skip_without("busybox")
    (place / "ash").symlink_to(shutil.which("busybox"))
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    belongs_to_the_script("ash", PASSED_OVER[way], place)


# By default the ways that each shell reads by itself; another program is one in all of them.
OF_THE_SHELL = ("plain", "a ", "backquotes", "the end", "sh -c")


@pytest.mark.parametrize(
    ("shell", "way"),
    [
        pytest.param(
            shell,
            way,
            marks=() if shell == "bash" or way.startswith(OF_THE_SHELL) else pytest.mark.stress,
        )
        for shell in SHELLS
        for way in PASSED_OVER
    ],
)
def test_a_caller_that_only_waits_for_semlock_is_passed_over(shell, way, place):
    program = way.split()[0].strip(",")
    skip_without(shell, *([program] if PASSED_OVER[way].startswith(program) else []))
    belongs_to_the_script(shell, PASSED_OVER[way], place)


@pytest.mark.skipif(os.geteuid() != 0, reason="it needs root")
@pytest.mark.parametrize("way", ROOTS)
def test_what_root_does_on_the_way_is_passed_over(way, place):
    skip_without("bash", way.split()[0])
    belongs_to_the_script("bash", ROOTS[way], place)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_lock_ends_with_the_script_that_it_was_taken_for_through_others(shell, place):
    skip_without(shell, "timeout")
    line = f"out=$(timeout 20 sh -c '{ACQUIRE}'; :); echo \"$out\""
    with Script(shell, line, place) as script:
        assert script.answer["owner_pid"] == script.shell.pid
        assert not free(place / "the.lock")
        script.shell.kill()
        script.shell.wait()
        assert free(place / "the.lock")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_subshell_holds_while_it_works(shell, place):
    """Also if its last command, which runs in its place, is what lets go."""
    skip_without(shell)
    line = f"( {ACQUIRE}; echo code=0; read x; semlock release the.lock )"
    with Script(shell, line, place, then="") as script:
        assert script.answer["owner_pid"] not in (script.shell.pid, os.getpid())
        assert not free(place / "the.lock")
        assert "code=0" in script.go_on()
    assert not (place / "the.lock").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_for_several_commands_holds_while_it_works(shell, place):
    skip_without(shell)
    inner = f"{ACQUIRE}; echo code=0; read x; semlock release the.lock"
    with Script(shell, f"{shell} -c '{inner}'", place, then="") as script:
        assert script.answer["owner_pid"] not in (script.shell.pid, os.getpid())
        assert not free(place / "the.lock")
        assert "code=0" in script.go_on()
    assert not (place / "the.lock").exists()


WORK = (
    "semlock acquire -j the.lock >said; sh -c 'echo $PPID' >part; : >begun; read x <go; "
    "semlock release the.lock; echo $? >released"
)
GOES_ON = "\nuntil [ -e begun ]; do sleep 0.01; done"  # what the script does meanwhile
NOT_AWAITED = {
    "a job": f"{{ {WORK}; }} &",
    "a job's subshell": f"( {WORK}; ) &",
    "the beginning of a pipeline": f"{{ {WORK}; }} 2>&1 | cat &",
    "the middle of a pipeline": f"echo x | {{ {WORK}; }} | cat &",
    "the end of a pipeline": f"echo x | {{ {WORK}; }} &",
    "a subshell in a pipeline": f"( {WORK}; ) 2>&1 | cat &",
    "a loop": f"while :; do {WORK}; break; done | cat &",
    "a substitution in a job": f'{{ out=$({WORK}; :); echo "$out"; }} | cat &',
}
NOT_POSIX = {
    "a process that reads": f"echo data > >({WORK})",
    "a process that another one writes to": f"tee >({WORK}) </dev/null >copied",
    "a process whose shell writes to it": f"exec 5> >({WORK})",
}
BASH_ONLY = {"a coprocess": f"coproc {{ {WORK}; }}"}


@pytest.mark.parametrize("way", [*NOT_AWAITED, *NOT_POSIX, *BASH_ONLY])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_part_that_the_script_does_not_wait_for_holds_while_it_works(shell, way, place):
    """The script ends before the part does, which goes on, and lets go by itself."""
    skip_without(shell)
    if (way in NOT_POSIX and shell in ("dash", "ash")) or (
        way in BASH_ONLY and shell != "bash"
    ):
        pytest.skip(f"{shell} has no such thing, or none that shows")
    os.mkfifo(place / "go")
    line = (NOT_AWAITED | NOT_POSIX | BASH_ONLY)[way]
    (place / "script.sh").write_text(f"{line}{GOES_ON}\nexec 5>&-\nexit 0\n")
    script = subprocess.Popen([shell, "script.sh"], cwd=place, stdin=subprocess.DEVNULL)
    go = os.open(place / "go", os.O_RDWR)
    try:
        wait_until((place / "begun").exists, "the part works")
        answer = checked((place / "said").read_text(), "acquired")
        assert answer["owner_pid"] != script.pid
        if "substitution" not in way:
            assert answer["owner_pid"] == int((place / "part").read_text())
        if not (shell == "zsh" and "process" in way):  # it waits for them at its end
            assert script.wait(PATIENCE) == 0
        assert not free(place / "the.lock")
    finally:
        os.write(go, b"on\n")
        released = place / "released"
        wait_until(lambda: released.exists() and released.stat().st_size, "it lets go")
        script.wait(PATIENCE)
        os.close(go)
    assert released.read_text() == "0\n"
    assert free(place / "the.lock")


@pytest.mark.parametrize("way", ["a substitution", "backquotes", "a pipeline"])
@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_script_in_the_background_waits_for_is_still_its_own(shell, way, place):
    """It and all that it starts ignore the signals by which jobs are known."""
    skip_without(shell, "dash")
    (place / "inner.sh").write_text(
        f"{PASSED_OVER[way]}\necho code=$?\necho $$ >pid\nread x\n"
        "semlock release the.lock; echo released=$?\n"
    )
    # By hand, since the standard input of what is begun by & is none.
    with Script("dash", f"exec 6<&0; {shell} inner.sh <&6 &", place, then="wait") as script:
        told = place / "pid"
        wait_until(lambda: told.exists() and told.stat().st_size, "the lock is taken")
        inner = int(told.read_text())
        while "code=0" not in script.said[:-1] and not script.said[-1].startswith("{"):
            script.said.append(script.shell.stdout.readline().strip())
        assert script.answer["owner_pid"] == inner
        assert not free(place / "the.lock")
        script.shell.stdin.write("\n\n")
        out = script.go_on()
        assert "released=0" in out
    assert free(place / "the.lock")


@pytest.mark.parametrize("shell", SHELLS)
def test_what_can_not_be_known_is_refused_with_the_way_out(shell, place):
    """A pipeline of a script that ignores the signals, and does something else meanwhile."""
    skip_without(shell, "dash")
    part = "{ semlock acquire the.lock 2>said; echo $? >code; } | cat &\n"
    # The shell must not have ended when semlock looks what it does.
    (place / "inner.sh").write_text(f"{part}until [ -s code ]; do :; done\n")
    (place / "script.sh").write_text(f"{shell} inner.sh & wait\n")
    subprocess.run(["dash", "script.sh"], cwd=place, timeout=PATIENCE, check=True)
    assert (place / "code").read_text() == "3\n"
    assert not (place / "the.lock").exists()


@pytest.mark.parametrize(
    "shell", ["bash --norc --noprofile -i", "zsh -f -i", "dash -i", "ash -i"]
)
def test_a_job_of_a_terminal_holds_for_itself_in_the_background_only(shell, place):
    """And it may be sent there, or back, while it holds."""
    skip_without(shell.split()[0])
    os.mkfifo(place / "go")
    with Terminal(*shell.split(), columns=400) as terminal:
        terminal.type(f"cd {place}\n")
        terminal.type(f"{{ {WORK}; }} | cat &\n")
        wait_until((place / "begun").exists, "the job works")
        answer = checked((place / "said").read_text(), "acquired")
        assert answer["owner_pid"] == int((place / "part").read_text())
        terminal.type("fg\n")
        (place / "go").write_text("on\n")
        released = place / "released"
        wait_until(lambda: released.exists() and released.read_text() == "0\n", "it lets go")
        assert free(place / "the.lock")
        released.unlink()
        (place / "begun").unlink()
        terminal.type(f"{{ {WORK}; }} | cat\n")
        wait_until((place / "begun").exists, "the job works")
        answer = checked((place / "said").read_text(), "acquired")
        assert answer["owner_pid"] == terminal.pid
        (place / "go").write_text("on\n")
        wait_until(lambda: released.exists() and released.read_text() == "0\n", "it lets go")
        terminal.type(f"out=$({ACQUIRE}; :); echo \"$out\"; echo co''de=$?\n")
        terminal.until("code=0")
        assert f'"owner_pid": {terminal.pid}' in terminal.seen
        assert not free(place / "the.lock")
        terminal.type("semlock release the.lock; exit 5\n")
        assert terminal.ends() == 5
    assert free(place / "the.lock")


def test_a_script_that_is_read_through_a_pipe_is_an_owner_of_its_own(place):
    """It has the words of the outer one, and is no copy of it."""
    skip_without("bash")
    (place / "script").write_text(
        'if [ -z "$INNER" ]; then export INNER=1; out=$(bash script; :); echo "$out"\n'
        f"else {ACQUIRE}; semlock status --porcelain the.lock | grep verdict; echo $$; "
        "semlock release the.lock; :; fi\n"
    )
    done = subprocess.run(
        ["bash", "script"], cwd=place, capture_output=True, text=True, check=True
    )
    answer, verdict, pid = done.stdout.splitlines()
    assert verdict == "verdict: alive"
    assert checked(answer, "acquired")["owner_pid"] == int(pid)
    assert not (place / "the.lock").exists()


def test_python_that_calls_it_through_a_shell_is_the_owner(place):
    code = (
        "import os, subprocess\n"
        f"print(subprocess.run({ACQUIRE!r}, shell=True, capture_output=True, text=True).stdout)\n"
        "print(os.getpid(), flush=True); input()\n"
        "raise SystemExit(subprocess.run('semlock release the.lock', shell=True).returncode)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as script:  # fmt: skip
        answer = checked(script.stdout.readline(), "acquired")
        script.stdout.readline()
        assert answer["owner_pid"] == script.pid == int(script.stdout.readline())
        assert not free(place / "the.lock")
        script.communicate("\n", timeout=PATIENCE)
        assert script.returncode == 0
    assert free(place / "the.lock")


def test_ps_tells_the_same_where_there_is_no_proc(monkeypatch):
    skip_without("ps", "sh")
    line = ["sh", "-c", "semlock acquire the.lock || exit 1", "semlock"]
    with subprocess.Popen(
        ["sh", "-c", "echo ready; read x", *line], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        seen = owners._look_by_ps(process.pid)
        assert (seen.parent, seen.program, seen.is_shell) == (os.getpid(), "sh", True)
        assert seen.argv == ["sh", "-c", " ".join(["echo ready; read x", *line])]
        process.stdin.close()
    assert owners._look_by_ps(process.pid) is None
    monkeypatch.setenv("PATH", "")
    assert owners._look_by_ps(os.getpid()) is None


TEXTS = {
    "semlock acquire L": True,
    "semlock acquire L;": True,
    "semlock acquire L || { echo no; exit 1; }": True,
    "semlock acquire L || { echo no; exit 1; }; work": False,
    "semlock acquire L || (echo no; exit 1)": True,
    "semlock acquire L || (echo no; exit 1); work": False,
    "semlock acquire L -m ''": True,
    "exec semlock acquire L >/dev/null 2>&1 </dev/null": True,
    "set -e; cd /tmp && /usr/bin/semlock acquire L": True,
    "semlock acquire A && semlock acquire B": True,
    "if semlock try L; then :; fi": True,
    "if semlock try L; then exit 0; else exit 1; fi": True,
    "if semlock try L; then work; fi": False,
    "semlock acquire L; exit $?": True,
    "semlock acquire L && echo locked >&2 || echo not": True,
    "semlock acquire L && echo locked > state": False,
    "semlock acquire L; > state": False,
    "semlock acquire L > state": True,
    "semlock acquire L; echo `work`": False,
    "semlock acquire L; echo $(work)": False,
    'semlock acquire L; echo "$(work)"': False,
    "semlock acquire L; echo x | work": False,
    "semlock acquire L && true; work": False,
    "semlock try L && work": False,
    "semlock acquire L; work; semlock release L": False,
    "semlock acquire L\nwork": False,
    "while ! semlock try L; do sleep 1; done; work": False,
    "while ! semlock try L; do sleep 1; done": True,
    "$take": True,
    "work": True,
    "work; more": False,
    "python3 -m semlock acquire L": True,
    "echo 'not closed": False,
    "take() { semlock acquire L; }; take": True,
    "take() { semlock acquire $1 || exit 1; }\ntake A && take B": True,
    "function take() {\n cd /tmp\n semlock acquire L\n}\ntake 2>&1": True,
    "one() { semlock try L; }; two() { one || return 1; }; two": True,
    "take() { semlock acquire L; }; take; work": False,
    "take() { semlock acquire L; work; }; take": False,
    "take() { semlock acquire L; }; free() { semlock release L; }; take; work; free": False,
    "take() { semlock acquire L; }; if x; then { take; }; fi; work": False,
    "take() { $1; }; take semlock": True,
    "cd /tmp; eval 'semlock acquire L'": True,
    "eval 'semlock acquire L'; work; semlock release L": False,
    "env -S 'semlock try L' && work": False,
    "semlock acquire L; work 'what they try'": False,
    ". ./lib.sh; take; work; semlock release L": False,
}
BY_OTHERS = {
    "work; semlock release L; more": True,
    ". ./lib.sh; take; work; semlock release L": True,
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_shells_text_tells_whether_it_goes_on_behind_semlock(text, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["semlock", "acquire", "L"])
    for words_before in (["sh", "-c"], ["bash", "-ec"], ["bash", "-o", "pipefail", "-c"]):
        assert owners._ends_behind_us([*words_before, text, "name", "argument"]) == TEXTS[text]
    assert not owners._ends_behind_us(["sh", "script", "-c", text])


@pytest.mark.parametrize("text", BY_OTHERS)
def test_a_shell_that_acquires_nothing_is_no_owner_for_a_release(text, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["semlock", "release", "L"])
    assert owners._ends_behind_us(["sh", "-c", text]) == BY_OTHERS[text]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "line", ["eval '{}'", "{} 2>&1 | cat; : $PIPE", ". ./lib.sh; take", "env -S '{}'"]
)
def test_a_text_that_takes_a_lock_in_a_hidden_way_owns_and_releases_it(shell, line, place):
    """Else a program that runs such texts would own it, and two of them would share the lock."""
    skip_without(shell)
    (place / "lib.sh").write_text(f"take() {{ {ACQUIRE}; }}\n")
    text = f"{line.format(ACQUIRE)}; semlock refresh the.lock; semlock release the.lock"
    done = subprocess.run(
        [shell, "-c", f"echo $$; {text}; echo $?"],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    me, answer, code = done.stdout.splitlines()
    assert checked(answer, "acquired")["owner_pid"] == int(me)
    assert code == "0", done.stderr
    assert not (place / "the.lock").exists()


# ---------------------------------------------------------------------- refused


QUIETLY = {
    "a substitution": "out=$({}; :)",
    "a pipeline": "{{ {}; :; }} | cat",
    "the end of a pipeline": "echo x | {{ read x; {}; :; }}",
}


@pytest.mark.parametrize("way", QUIETLY)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_redirection_of_the_command_changes_nothing(shell, way, place):
    """Some shells redirect themselves while the command runs."""
    skip_without(shell)
    take = "semlock acquire -j the.lock >said 2>&1 </dev/null"
    with Script(shell, QUIETLY[way].format(take), place) as script:
        answer = checked((place / "said").read_text(), "acquired")
        assert answer["owner_pid"] == script.shell.pid
        assert not free(place / "the.lock")
        assert "released=0" in script.go_on()


def refused(line, place, code=3):
    with Script("bash", line, place, then="") as script:
        assert script.code == code
        script.go_on()
    assert not (place / "the.lock").exists()


def test_a_line_of_a_makefile_is_refused(place):
    skip_without("make", "bash")
    (place / "Makefile").write_text("all:\n\tsemlock acquire the.lock 2>said\n")
    refused("make -s 2>&1", place, code=2)
    said = (place / "said").read_text()
    assert "make" in said
    assert "--owner-pid" in said
    assert "semlock run" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="it needs root")
@pytest.mark.parametrize("more", ["", "--mount-proc"])
def test_the_first_process_of_a_container_has_no_caller(more, place):
    skip_without("unshare", "bash")
    refused(f"unshare -pf {more} semlock acquire the.lock", place)


@pytest.mark.skipif(os.geteuid() != 0, reason="it needs root")
def test_a_process_whose_caller_has_ended_has_none(place):
    """What is left to the first process of a container that is no shell."""
    skip_without("unshare", "bash")
    (place / "orphan.sh").write_text(
        "until grep -q 'PPid:.1$' /proc/$$/status; do sleep 0.01; done\n"
        "exec semlock acquire the.lock 2>said\n"
    )
    code = (
        "import os, subprocess, time\n"
        "subprocess.run('sh orphan.sh &', shell=True)\n"
        "while not (os.path.exists('said') and os.path.getsize('said')): time.sleep(0.01)\n"
    )
    server = ["bash", "-c", 'exec -a server "$0" -c "$1"', sys.executable, code]
    subprocess.run(
        ["unshare", "-pf", "--mount-proc", *server], cwd=place, check=True, timeout=PATIENCE
    )
    assert "--owner-pid" in (place / "said").read_text()
    assert not (place / "the.lock").exists()


OUTER = "unshare -pf"


@pytest.fixture
def inner():
    """Enter a place whose /proc is of an inner PID namespace, where the caller is not seen."""
    skip_without("unshare", "nsenter", "bash")
    with subprocess.Popen([*IN_CONTAINER, "sleep", "60"]) as container:
        enter = f"nsenter -m --wd=. -t {container.pid}"
        unseen = [*enter.split(), "test", "!", "-e", "/proc/self"]
        wait_until(lambda: subprocess.run(unseen, check=False).returncode == 0, "it is mounted")
        yield enter
        container.kill()


def said_by(script, place):
    return subprocess.run(
        ["bash", "-c", script], cwd=place, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@root
@pytest.mark.parametrize("enter", [OUTER, None], ids=["outer", "inner"])
def test_no_process_of_another_namespaces_proc_is_taken_for_the_owner(enter, inner, place):
    acquire, status = said_by(
        f"{enter or inner} bash -c 'semlock acquire -j the.lock; semlock status -j the.lock;"
        "semlock release the.lock; true'",
        place,
    )
    assert checked(acquire, "acquired")["owner_name"] is None
    assert checked(status, "held")["command"] is None
    assert free(place / "the.lock")


@root
def test_where_the_namespace_is_unknown_numbers_are_not_compared(inner, place):
    """The second one is in a namespace where the first one's number doesn't exist."""
    said = said_by(
        f"{inner} bash -c 'semlock acquire the.lock && echo taken;"
        f"{OUTER} semlock run -n the.lock -- echo taken too;"
        "semlock release the.lock && echo released'",
        place,
    )
    assert said == ["taken", "released"]


def test_a_process_can_be_named_where_none_is_found(place):
    skip_without("make", "bash")
    (place / "Makefile").write_text(
        "all:\n\t@semlock acquire -j --owner-pid $(OWNER) the.lock\n"
        "\t@semlock release --owner-pid $(OWNER) the.lock\n"
    )
    done = subprocess.run(
        ["make", f"OWNER={os.getpid()}"], cwd=place, capture_output=True, text=True, check=True
    )
    assert checked(done.stdout, "acquired")["owner_pid"] == os.getpid()
    assert free(place / "the.lock")


# ---------------------------------------------------------------------- others' processes


def test_the_owner_may_be_another_users_process(shared_path):
    """As with sudo, the other way about: what a lesser user takes for the script of root's."""
    skip_without("bash")
    take = shlex.join(users.words("acquire", "-j", "the.lock"))
    give = shlex.join(users.words("release", "the.lock"))
    place = Path(shared_path).parent
    with Script("bash", take, place, then=f"{give}; echo released=$?") as script:
        assert script.answer["owner_pid"] == script.shell.pid
        assert os.stat(shared_path).st_uid != 0
        assert not free(shared_path)
        assert "released=0" in script.go_on()
    assert free(shared_path)


# ---------------------------------------------------------------------- what it says


def test_a_terminal_is_told_what_is_waited_for_and_is_not_when_it_shall_be_quiet(place):
    skip_without("bash")
    with Terminal("bash", "--norc", "--noprofile", "-i", columns=400) as terminal:
        terminal.type("timeout 20 semlock acquire the.lock; echo co''de=$?\n")
        terminal.until("code=0")
        told = f"taken for process {terminal.pid} \\(bash\\), and ends with it"
        terminal.until(told)
        assert not free(place / "the.lock")
        terminal.type("semlock release the.lock; semlock try -q the.lock; echo co''de=$?\n")
        terminal.count("taken for")
        terminal.until("code=0")
        assert "taken for" not in terminal.seen
        terminal.type("exit 5\n")
        assert terminal.ends() == 5
    assert free(place / "the.lock")


def test_without_a_terminal_nothing_is_said(path):
    result = command("try", path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert command("release", path).returncode == 0
    result = command("try", "-j", path)
    fields = checked(result.stdout, "acquired")
    assert (fields["owner_pid"], fields["pid"]) == (os.getpid(), os.getpid())
    done = subprocess.run(words("refresh", path), check=False)
    assert done.returncode == 0
    assert command("release", path).returncode == 0
