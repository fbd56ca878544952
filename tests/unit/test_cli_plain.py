"""The short way of ``run``, ``try``, ``release`` and ``status`` does what the whole way does."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import semlock
from semlock._cli import PLAIN, UsageError, plain, read_plain
from semlock._cli.parsing import parse
from semlock._core import compiled, inside
from semlock._core.identity import other_process
from support import Strike, in_a_fork

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows takes the whole way")

WORDS = (
    "run", "try", "status", "wait", "a.lock", "./7", "7", "1m", ".5", "forever", "-", "--", "-n",
    "--tag", "", "/", "é/1", "redis://h/a",
)  # fmt: skip


def test_what_is_read_without_the_table_is_read_by_it_in_the_same_way():
    plainly = 0
    lines = itertools.chain.from_iterable(
        itertools.product(WORDS, repeat=length) for length in range(4)
    )
    for line in itertools.chain(lines, itertools.product(["run"], *[WORDS[3:]] * 3)):
        found = read_plain(list(line))
        if found is None:
            continue
        plainly += 1
        try:
            assert vars(parse(list(line))) == vars(found), line
        except UsageError as error:
            pytest.fail(f"{line} is read as {vars(found)}, but: {error}")
    assert plainly > 500


def test_the_plain_verbs_are_those_of_the_table():
    for name, place in PLAIN.items():
        assert parse([name, "a/b", *(["c"] if name == "run" else [])]).verb == name
        assert callable(
            getattr(__import__(f"semlock._cli.{place[0]}", fromlist=["x"]), place[1])
        )


def bytes_of(structure) -> bytes:
    return bytes(compiled.ffi.buffer(structure))


@posix
@pytest.mark.parametrize("guarded", [True, False])
def test_a_plain_lock_is_what_a_lock_object_is(path, guarded):
    owner = other_process(os.getppid())
    lock = semlock.Lock(path, tag="why")
    inside.leave_to(lock, owner, guarded=guarded)
    inside.lay_out(lock)
    mine, theirs = plain._Plain(path, owner, "why", guarded=guarded).native, inside.native(lock)
    records = mine.record, theirs.record
    texts = [compiled.ffi.buffer(record.text, record.length)[:] for record in records]
    assert texts[0] == texts[1]
    for record in records:
        record.text = compiled.ffi.NULL
    assert bytes_of(records[0]) == bytes_of(records[1])
    paths = [compiled.ffi.string(one.path) for one in (mine, theirs)]
    assert paths == [os.fsencode(path)] * 2
    assert (mine.fleeting, theirs.fleeting) == (1, 0)
    for one in (mine, theirs):
        one.path = one.record = compiled.ffi.NULL
        one.fleeting = 0
    assert bytes_of(mine) == bytes_of(theirs)


# What may be at a lock's path or beside it.  Each is made in a directory of its own.

SCENES = {
    "nothing": "",
    "held": "held.append(semlock.Lock(path, tag='x').acquire())",
    "a dead holder's": "dead(path)",
    "of the owner": "main(['try', '--owner-pid', str(os.getpid()), path])",
    "of another process": "main(['try', '--owner-pid', str(os.getppid()), path])",
    "empty": "open(path, 'w').close()",
    "sema's": "open(path, 'w').write(f'pid={os.getpid()}\\ntimestamp=1\\n')",
    "JSON": "open(path, 'w').write('{\"pid\": 1}')",
    "large": "open(path, 'w').write('x' * 100000)",
    "a directory": "os.mkdir(path)",
    "a link": "os.symlink('nowhere', path)",
    "readers": "held.append(semlock.SharedLock(path).acquire_shared())",
    "a slot": "held.append(semlock.SlotLock(path, slots=3).acquire())",
    "a waiter's queue": "os.mkdir(os.path.join(os.path.dirname(path), '.the.lock.queue'))",
    "kernel": "held.append(semlock.KernelLock(path).acquire())",
    "no directory": "os.rmdir(os.path.dirname(path))",
    "a file for a directory": "d = os.path.dirname(path); os.rmdir(d); open(d, 'w').close()",
}

# What is called one after the other in each situation.
CALLS = [
    [["status", "{path}"], ["status", "-q", "{path}"], ["status", "-v", "{path}"]],
    [
        ["try", "-m", "why\nnot", "--owner-pid", "{pid}", "{path}"],
        ["try", "--owner-pid", "{pid}", "{path}"],
        ["release", "-q", "--owner-pid", "{pid}", "{path}"],
        ["release", "--owner-pid", "{pid}", "{path}"],
    ],
    [
        ["try", "--owner-pid", "{gone}", "{path}"],
        ["run", "-n", "{path}", "--", "sh", "-c", 'cat "$1"', "-", "{path}"],
        ["run", "-q", "-t", "0.01", "-m", "é", "{path}", "--", "false"],
        ["run", "-n", "{path}", "/no/such/program"],
    ],
]  # fmt: skip

PROGRAM = """
import contextlib, io, json, os, re, sys
sys.path[:0] = {places!r}
import semlock.systems
from semlock._cli import columns, holding, looking, plain, running, starting, table
from semlock._locks import readers, shared, slots
from semlock.cli import main

semlock.systems.by_path("x")  # all of them are imported, once
root, whole = sys.argv[1], sys.argv[2] == "whole"
held, answers = [], {{}}
gone = os.fork() or os._exit(0)
os.waitpid(gone, 0)


def dead(path):
    pid = os.fork()
    if pid == 0:
        semlock.Lock(path).acquire()
        os._exit(0)
    os.waitpid(pid, 0)


def same(text, directory):
    text = text.replace(directory, "DIR").replace(str(gone), "GONE")
    return re.sub(r"\\b[0-9a-f]{{16,}}\\b|\\b\\d+( s ago)?\\b|just now", "N", text)


def call(words, directory):
    out, err = os.path.join(root, "out"), os.path.join(root, "err")
    pid = os.fork()
    if pid == 0:
        for name, number in ((out, 1), (err, 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = main(words)
        sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    written = [same(open(name).read(), directory) for name in (out, err)]
    left = {{}}
    for base, _, names in os.walk(directory):
        for name in names:
            try:
                text = open(os.path.join(base, name), errors="replace").read()
            except OSError as error:
                text = str(error.errno)
            left[same(os.path.join(base, name), directory)] = same(text, directory)
    return [code, *written, left]


if whole:
    for module in (plain, starting):
        module.asks_only = lambda *arguments: False
for number, (scene, lines) in enumerate({scenes!r}):
    directory = os.path.join(root, str(number))
    os.mkdir(directory)
    path = os.path.join(directory, "the.lock")
    exec(scene)
    here = {{"path": path, "pid": os.getpid(), "gone": gone}}
    answers[f"{{number}} {{scene}}"] = [
        [line, call([word.format(**here) for word in line], directory)] for line in lines
    ]
    del held[:]
print(json.dumps(answers))
"""


def answers(way, root):
    scenes = [(code, calls) for code in SCENES.values() for calls in CALLS]
    places = [str(Path(semlock.__file__).parent.parent)]
    root.mkdir()
    done = subprocess.run(
        [
            sys.executable, "-W", "ignore", "-c", PROGRAM.format(places=places, scenes=scenes),
            str(root), way,
        ],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@posix
def test_the_short_way_does_what_the_whole_way_does(tmp_path):
    for turn in "12":  # the number of a process that has ended may be another's by now
        short, whole = (answers(way, tmp_path / (way + turn)) for way in ("short", "whole"))
        if short == whole:
            return
    for scene, calls in short.items():
        for mine, its in zip(calls, whole[scene], strict=True):
            assert mine == its, scene


def strikes(operation):
    """Interrupt an operation at each bytecode of ``plain.py``."""
    for at in itertools.count(1):
        strike = Strike(at, operation, ("_cli/plain.py",))
        yield strike
        if not strike.struck:
            assert at > 50
            return


@posix
def test_an_interrupt_at_each_bytecode_of_run_leaves_no_lock(path):
    options = parse(["run", path, "--", "true"])

    def left():
        return [
            strike.where
            for strike in strikes(lambda: plain.run(options))
            if os.path.lexists(path) or strike.error is not None
        ]

    assert in_a_fork(left) == []  # it changes what this process does with signals


@posix
def test_an_interrupt_at_each_bytecode_of_try_leaves_the_owners_lock_or_none(path):
    options = parse(["try", "-q", "--owner-pid", str(os.getppid()), path])
    left = 0
    for _ in strikes(lambda: plain.attempt(options)):
        if os.path.lexists(path):  # it came when the call was all but over
            left += 1
            assert semlock.status(path).info.pid == os.getppid()
            os.unlink(path)
    assert left < 10
