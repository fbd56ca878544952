"""``semlock flock`` beside flock(1) of util-linux: the same scripts, run with both.

Each script is run by sh with ``$flock`` for the command.  Exit code and standard output are the
same; standard error is there or not with both, since its words are each program's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from support import Child

FLOCK = shutil.which("flock")
pytestmark = pytest.mark.skipif(FLOCK is None, reason="there is no flock(1) here")

OURS = f"{sys.executable} -m semlock flock"
HOLD = "import fcntl, os; fd = os.open({!r}, os.O_RDWR | os.O_CREAT); fcntl.flock(fd, {})"

# Each script, by what it is about.  "the.lock" is made by those who need it.
SCRIPTS = {
    "a command": "$flock the.lock echo done",
    "its arguments": "$flock the.lock printf '%s-%s' a 'b c'",
    "its exit code": "$flock the.lock sh -c 'exit 7'",
    "its signal": "$flock the.lock sh -c 'kill -TERM $$'",
    "a line for the shell": "$flock the.lock -c 'echo one; echo two'",
    "a line for the shell, long": "$flock the.lock --command 'exit 5'",
    "a line that is missing": "$flock the.lock -c",
    "a line that is two": "$flock the.lock -c true true",
    "a line before the file": "$flock -c true the.lock",
    "a directory": "mkdir d && $flock d echo in; ls",
    "the root": "$flock -s / echo in; ( $flock -sn 9 && echo in ) 9</",
    "names of directories": "mkdir d; for name in . .. d/ d/. ..; do "
    "$flock $name $flock -n $name echo both; echo $?; done",
    "an empty command": "$flock the.lock ''",
    "a descriptor": "( $flock 9 && echo got ) 9>the.lock",
    "a descriptor for reading": "touch the.lock; ( $flock 9 && echo got ) 9<the.lock",
    "a descriptor that is closed": "$flock 99",
    "a descriptor that is none": "$flock nine",
    "a descriptor that is too large": "$flock 2147483648; $flock 99999999999999999999",
    "a descriptor that no process has": "$flock 2147483647",
    "no word": "$flock",
    "only an option": "$flock -n",
    "an unknown option": "$flock -z the.lock true",
    "an unknown long option": "$flock --zzz the.lock true",
    "a command that is missing": "$flock the.lock /nonexistent/command",
    "a command that is no program": "$flock the.lock ./the.lock",
    "a directory that is missing": "$flock missing/the.lock true",
    "the end of options": "$flock -- the.lock echo done",
    "the end of options too late": "$flock the.lock -- echo done",
    "options of the command": "$flock the.lock echo -n -w",
    "letters together": "$flock -nx the.lock echo done",
    "a value behind its letter": "$flock -w1 -E4 the.lock echo done",
    "a value behind =": "$flock --timeout=1 --conflict-exit-code=4 the.lock echo done",
    "the beginning of a word": "$flock --excl --time 1 the.lock echo done",
    "shared": "$flock -s the.lock $flock -sn the.lock echo both",
    "shared and exclusive": "$flock -s the.lock $flock -n the.lock echo both",
    "exclusive and shared": "$flock -x the.lock $flock -sn the.lock echo both",
    "exclusive twice": "$flock -e the.lock $flock -n the.lock echo both",
    "the last of them counts": "$flock -s -x the.lock $flock -sn the.lock echo both",
    "nonblocking": "$flock the.lock $flock -n the.lock echo both",
    "nonblocking, long": "$flock the.lock $flock --nonblock the.lock echo both",
    "nonblocking, nb": "$flock the.lock $flock --nb the.lock echo both",
    "another exit code": "$flock the.lock $flock -n -E 42 the.lock echo both",
    "the exit code 0": "$flock the.lock $flock -n -E 0 the.lock echo both",
    "a time that is over": "$flock the.lock $flock -w 0.05 -E 9 the.lock echo both",
    "a time of 0": "$flock the.lock $flock -w 0 the.lock echo both",
    "a time that is no number": "$flock -w soon the.lock true",
    "a time below 0": "$flock -w -1 the.lock true",
    "a time that is not a number": "$flock -w nan the.lock true",
    "a time without an end": "$flock -w inf the.lock true; $flock -w 1e400 the.lock true",
    "no time and a time": "(exec 5>the.lock; $flock 5; echo >in; sleep 0.7) >&2 & "
    "until [ -s in ]; do sleep 0.01; done; $flock -n -w 30 the.lock echo both; echo $?; wait",
    "less than a tick": "$flock the.lock $flock -w 1e-9 the.lock echo both",
    "a time in hex": "$flock -w 0x1p-4 the.lock echo done",
    "times that C does not read": "$flock -w 1_0 the.lock true; echo $?; "
    "$flock -w '1 ' the.lock true; echo $?; $flock -w ' 1' the.lock true; echo $?; "
    "$flock -w \u0663 the.lock true; echo $?",
    "exit codes that C does not read": "$flock -E 1_0 the.lock true; echo $?; "
    "$flock -E '5 ' the.lock true; echo $?; $flock -E +5 the.lock true; echo $?; "
    "$flock -E \u0663 the.lock true; echo $?",
    "descriptors that C does not read": "for fd in 8_ '8 ' ' 8' +8 08 \u0668; do "
    '$flock "$fd" 8<.; echo $?; done',
    "a timer that can't be set, and a name": "$flock -w inf the.lock true; echo $?; ls; "
    "$flock -w inf -u 8 8<.; echo $?; $flock -w inf x; echo $?",
    "an exit code that is no number": "$flock -E x the.lock true",
    "an exit code that is too large": "$flock -E 256 the.lock true",
    "a value that is missing": "$flock -w",
    "unlock": "( $flock 9; $flock -u 9; $flock -n the.lock echo free ) 9>the.lock",
    "unlock what is not locked": "( $flock -u 9; echo $? ) 9>the.lock",
    "close": "$flock -o the.lock sh -c 'ls /proc/self/fd | wc -l' >a; "
    "$flock the.lock sh -c 'ls /proc/self/fd | wc -l' >b; expr $(cat b) - $(cat a)",
    "a child that inherits": "$flock the.lock sh -c 'sleep 60 >&- 2>&- & echo $! >pid'; "
    "$flock -n the.lock echo free; kill $(cat pid); $flock the.lock echo free",
    "a child that does not": "$flock -o the.lock sh -c 'sleep 60 >&- 2>&- & echo $! >pid'; "
    "$flock -n the.lock echo free; kill $(cat pid)",
    "no fork": "$flock -F the.lock sh -c '$flock -n the.lock echo both; echo $?'",
    "no fork and close": "$flock -F -o the.lock true",
    "the same descriptor twice": "( $flock 9; $flock -n 9; echo $? ) 9>the.lock",
    "a subshell that has it": "( $flock 9; ( $flock -n 9; echo $? ) ) 9>the.lock",
    "two descriptors": "( $flock 8; $flock -n 9; echo $? ) 8>the.lock 9>the.lock",
    "from exclusive to shared": "( $flock 9; "
    " $flock -s 9; $flock -sn the.lock echo both ) 9>the.lock",
    "the file stays": "$flock the.lock true; ls",
    "its content stays": "echo text >the.lock; $flock the.lock cat the.lock",
    "a file for reading only": "touch the.lock; chmod 444 the.lock; $flock the.lock echo done",
    "a symbolic link": "touch file; ln -s file the.lock; $flock the.lock $flock -n file echo both",
    "a link to nothing": "ln -s file the.lock; $flock the.lock echo done; ls",
    "a device": "$flock /dev/null echo done",
    "standard input": "echo text | $flock the.lock cat",
    "verbose": "$flock --verbose the.lock true",
    "verbose, held": "$flock the.lock $flock --verbose -n the.lock true",
    "verbose, time over": "$flock the.lock $flock --verbose -w 0.05 the.lock true",
    "version": "$flock -V >/dev/null",
    "help": "$flock -h >/dev/null",
    "an empty name": "$flock '' true",
    "ignored signals": "trap '' TERM; $flock the.lock sh -c 'kill -TERM $$; echo here'",
    "a pipe that is closed": "$flock the.lock sh -c 'yes; echo $? >&2' | head -1",
}


def said(script, command, directory):
    """Run a script: its exit code, its output without numbers, and whether it complains."""
    directory.mkdir()
    done = subprocess.run(
        [
            "sh",
            "-c",
            f"flock={command!r}\nexport flock\n{script}".replace(
                f"{command!r}", f"'{command}'"
            ),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "SHELL": "/bin/sh", "LC_ALL": "C"},
    )
    output = re.sub(r"(?:semlock )?flock: ", "flock: ", done.stdout)
    return done.returncode, re.sub(r"\d+\.\d+", "N", output), bool(done.stderr), done.stderr


@pytest.mark.parametrize("about", SCRIPTS)
def test_a_script_does_the_same_with_both(about, tmp_path):
    script = SCRIPTS[about]
    theirs = said(script, FLOCK, tmp_path / "theirs")
    ours = said(script, OURS, tmp_path / "ours")
    assert ours[:3] == theirs[:3], (theirs, ours)


def test_it_waits_for_another_program_and_is_waited_for(tmp_path):
    path = str(tmp_path / "the.lock")
    with Child() as child:
        child.run(HOLD.format(path, "fcntl.LOCK_EX"))
        waits = subprocess.Popen([*OURS.split(), path, "echo", "done"], stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            waits.wait(0.5)
        child.run("os.close(fd)")
        assert waits.communicate(timeout=30)[0] == b"done\n"
    assert os.listdir(tmp_path) == ["the.lock"]
