"""One table of odd content, for every lock system and every way to look at it.

Each cell has an expected outcome: what ``status`` says, and whether one try takes it.  No
cell is a crash, a hang or a robbery: what is not taken is left as it was, to the byte.
"""

import json
import os
import time
from pathlib import Path

import pytest

import semlock
from ini_system import INI
from semlock import feature, sema, semats, sidecar, task
from support import make_link

NOW = int(time.time())
GONE = 2**22 - 1  # a process number that exists nowhere here


class System:
    """One lock system: how its locks are made, and how its records are written by others."""

    def __init__(self, name, lock, status, record):
        self.name = name
        self.lock = lock
        self.status = status
        self.record = record


def text(pid=GONE, stamp=NOW, tag="t"):
    return f"pid={pid}\ntimestamp={stamp}\ntag={tag}\n"


def pair(pid=GONE, stamp=NOW, tag=""):
    return f"{pid}:{stamp}"


def section(pid=GONE, stamp=NOW, tag="t"):
    """A record of the system that the tests define."""
    return f"[lock]\npid = {pid}\ntimestamp = {stamp}\ntag = {tag}\n"


def beside(pid=GONE, stamp=NOW, tag="t"):
    """A sidecar record: any JSON object, of which only ``createdAt`` and ``pid`` are read."""
    if isinstance(stamp, int) and 0 < stamp < 10**11:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stamp))
    return json.dumps({"pid": pid, "tag": tag, "createdAt": stamp}, indent=2) + "\n"


def task_record(pid=GONE, stamp=NOW, tag="t"):
    """A task lock of the old form: milliseconds, and an hour to live."""
    since = stamp * 1000 if isinstance(stamp, int) else stamp
    owner = {"owner": f"pid-{pid}@{tag}", "since": since, "ttl": 3600}
    return json.dumps(owner, indent=2)


def sidecar_lock(path):
    return sidecar.SidecarLock(path + ".target", lock_path=path, stale=3600)


def sidecar_status(path):
    return sidecar.status(path + ".target", lock_path=path, stale=3600)


def task_lock(path):
    return task.TaskLock(path, "me", audit=False)


def feature_lock(path):
    directory, name = os.path.split(os.path.dirname(path))
    return feature.FeatureLock(name, os.path.dirname(directory))


def feature_status(path):
    directory, name = os.path.split(os.path.dirname(path))
    return feature.status(name, os.path.dirname(directory))


SYSTEMS = [
    System("lock", semlock.Lock, semlock.status, text),
    System("sema", sema.Semaphore, sema.status, text),
    System("semats", semats.Semaphore, semats.status, text),
    System("feature", feature_lock, feature_status, pair),
    System("sidecar", sidecar_lock, sidecar_status, beside),
    System("task", task_lock, task.status, task_record),
    System("ini", INI.lock, INI.status, section),
]

# What every system makes of a row: the state, and whether a try takes it at once.
HELD, UNREADABLE, STALE = ("held", False), ("unreadable", False), ("stale", True)
# The sidecar lock fails closed: a stale lock stays, unless the caller vouches for its end.
CLOSED = ("stale", False)

ROWS = {
    "empty": lambda record: b"",
    "white space": lambda record: b" \n\t\n",
    "first byte": lambda record: record().encode()[:1],
    "half": lambda record: record().encode()[: len(record()) // 3],
    "CRLF": lambda record: record().replace("\n", "\r\n").encode(),
    "blanks at the ends of lines": lambda record: record().replace("\n", " \n").encode(),
    "tabs in front of lines": lambda record: b"\t" + record().replace("\n", "\n\t").encode(),
    "a pid alone": lambda record: b"pid=1\n",
    "byte order mark": lambda record: b"\xef\xbb\xbf" + record().encode(),
    "UTF-16": lambda record: record().encode("utf-16"),
    "NUL in front": lambda record: b"\0" + record().encode(),
    "binary": lambda record: bytes(range(256)) * 4,
    "one MiB": lambda record: record().encode() + b"x" * (1 << 20),
    "pid huge": lambda record: record(pid=2**40).encode(),
    "pid beyond any integer": lambda record: record(pid="9" * 400).encode(),
    "pid with a plus sign": lambda record: record(pid="+5").encode(),
    "pid negative": lambda record: record(pid=-1).encode(),
    "pid zero": lambda record: record(pid=0).encode(),
    "pid a word": lambda record: record(pid="x").encode(),
    "time with an exponent": lambda record: record(stamp="1.7e+09").encode(),
    "time not a number": lambda record: record(stamp="nan").encode(),
    "time infinite": lambda record: record(stamp="inf").encode(),
    "time negative": lambda record: record(stamp=-5).encode(),
    "time of next month": lambda record: record(stamp=NOW + 30 * 86400).encode(),
    "time in milliseconds": lambda record: record(stamp=NOW * 1000).encode(),
    "time of last week": lambda record: record(stamp=NOW - 7 * 86400).encode(),
    "our own pid": lambda record: record(pid=os.getpid()).encode(),
    "our own pid, last week": lambda record: record(
        pid=os.getpid(), stamp=NOW - 7 * 86400
    ).encode(),
    "unicode": lambda record: record(tag="zürich 🔒").encode(),
    "equals signs": lambda record: record(tag="a=b==c").encode(),
    "forged line": lambda record: record(tag="x\npid=1").encode(),
    "the same key twice": lambda record: (record(tag="x") + record(tag="y")).encode(),
    "the same member twice": lambda record: (
        record().replace("{", '{"pid": 1, "owner": "x", "createdAt": 5, ', 1).encode()
    ),
    "pid in digits of another script": lambda record: record(pid="\u0663").encode(),
    "pid with an underscore": lambda record: record(pid="1_0").encode(),
    "pid with a fraction": lambda record: record(pid=7.5).encode(),
    "pid not a number": lambda record: record(pid=float("nan")).encode(),
    "the largest pid of 32 bits": lambda record: record(pid=2**32 - 1).encode(),
    "time with a fraction": lambda record: record(stamp=NOW + 0.5).encode(),
    "tag of half a character": lambda record: record(tag="\ud800").encode(
        "utf-8", "surrogatepass"
    ),
    "tag very long": lambda record: record(tag="x" * 60_000).encode(),
    "a list": lambda record: b"[1, 2]",
    "lists very deep": lambda record: b"[" * 50_000,
}

# Where a system differs from what most of its kind do.
EXPECTED = {
    "empty": UNREADABLE,
    "white space": UNREADABLE,
    "first byte": UNREADABLE,
    "half": UNREADABLE,
    "CRLF": {"ini": UNREADABLE, "": HELD},
    "blanks at the ends of lines": {"ini": UNREADABLE, "": HELD},
    "tabs in front of lines": {"ini": UNREADABLE, "": HELD},
    "a pid alone": {"lock": HELD, "sema": HELD, "": UNREADABLE},
    "byte order mark": {"semats": HELD, "": UNREADABLE},
    "UTF-16": UNREADABLE,
    "NUL in front": UNREADABLE,
    "binary": UNREADABLE,
    "one MiB": UNREADABLE,
    "pid huge": {"ini": HELD, "sidecar": HELD, "task": HELD, "semats": HELD, "": UNREADABLE},
    "pid beyond any integer": {"ini": HELD, "sidecar": HELD, "": UNREADABLE},
    "pid with a plus sign": {
        "lock": UNREADABLE, "sema": UNREADABLE, "ini": UNREADABLE, "": HELD,
    },
    "pid negative": {"sidecar": HELD, "task": HELD, "semats": HELD, "": UNREADABLE},
    "pid zero": {"ini": HELD, "sidecar": HELD, "task": HELD, "semats": HELD, "": UNREADABLE},
    "pid a word": {"sidecar": HELD, "task": HELD, "": UNREADABLE},
    "time with an exponent": {"feature": STALE, "sidecar": HELD, "": UNREADABLE},
    "time not a number": {"sidecar": HELD, "": UNREADABLE},
    "time infinite": {"sidecar": HELD, "": UNREADABLE},
    "time negative": {"sidecar": HELD, "semats": STALE, "": UNREADABLE},
    "time of next month": {"feature": UNREADABLE, "": HELD},
    "time in milliseconds": {"feature": UNREADABLE, "": HELD},
    "time of last week": {"lock": HELD, "sidecar": CLOSED, "": STALE},
    "our own pid": HELD,
    "our own pid, last week": {
        "lock": HELD,
        "semats": HELD,
        "sidecar": CLOSED,
        "": STALE,
    },
    "unicode": HELD,
    "equals signs": HELD,
    "forged line": HELD,
    "the same key twice": {
        "feature": UNREADABLE,
        "sidecar": UNREADABLE,
        "task": UNREADABLE,
        "": HELD,
    },
    "the same member twice": HELD,  # the last one counts
    "pid in digits of another script": {
        "lock": UNREADABLE, "sema": UNREADABLE, "semats": UNREADABLE, "": HELD,
    },
    "pid with an underscore": {
        "lock": UNREADABLE, "sema": UNREADABLE, "semats": UNREADABLE, "ini": UNREADABLE,
        "": HELD,
    },
    "pid with a fraction": {"sidecar": HELD, "task": HELD, "": UNREADABLE},
    "pid not a number": {"task": HELD, "": UNREADABLE},
    "the largest pid of 32 bits": {"feature": UNREADABLE, "": HELD},
    "time with a fraction": {"feature": HELD, "sidecar": HELD, "": UNREADABLE},
    "tag of half a character": {
        "feature": HELD, "sidecar": HELD, "task": HELD, "": UNREADABLE,
    },
    "tag very long": {"task": UNREADABLE, "": HELD},
    "a list": UNREADABLE,
    "lists very deep": UNREADABLE,
}  # fmt: skip


def expected(row, system):
    outcome = EXPECTED[row]
    return outcome if isinstance(outcome, tuple) else outcome.get(system.name, outcome[""])


@pytest.fixture
def place(tmp_path):
    """Where the feature lock wants its file, which is as good for the others."""
    directory = tmp_path / "specs" / "feat"
    directory.mkdir(parents=True)
    return str(directory / ".lock")


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
@pytest.mark.parametrize("row", ROWS)
def test_each_cell_has_its_outcome(row, system, place):
    content = ROWS[row](system.record)
    Path(place).write_bytes(content)
    state, taken = expected(row, system)
    assert system.status(place).state == state
    lock = system.lock(place)
    assert lock.status().state == state
    with pytest.raises(semlock.NotHeldError):
        semlock.Lock(place).release()
    if not taken:
        # What only looks or cleans up doesn't change it.
        semlock.clean(os.path.dirname(place))
        assert lock.try_acquire() is False
        with pytest.raises(semlock.LockHeldError):
            semlock.remove(place)
        assert Path(place).read_bytes() == content
    else:
        assert lock.try_acquire() is True
        assert lock.status().info == lock.info
        lock.release()
        assert not os.path.exists(place)
    # And with force anything that is a file can be removed.
    Path(place).write_bytes(content)
    semlock.remove(place, force=True)
    assert not os.path.exists(place)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
@pytest.mark.parametrize(
    "kind", ["directory", "fifo", "link", "dangling link", "link to itself"]
)
def test_what_is_no_file_is_told_and_left_alone(kind, system, place, tmp_path):
    if kind == "directory":
        os.mkdir(place)
    elif kind == "fifo":
        if not hasattr(os, "mkfifo"):
            pytest.skip("no file is a pipe there")
        os.mkfifo(place)
    else:
        target = {"link": tmp_path / "t", "dangling link": tmp_path / "no"}.get(kind, place)
        make_link(place, target)
        (tmp_path / "t").write_text("mine")
    before = os.lstat(place)
    semlock.clean(os.path.dirname(place))
    if system.name == "semats" and kind in ("link", "dangling link"):
        # This system follows links, so it locks (or refuses to lock) what they lead to.
        lock = system.lock(place)
        assert lock.path == str(target)
        assert lock.try_acquire() is (kind == "dangling link")
        if lock.held:
            lock.release()
    else:
        for call in (
            lambda: system.status(place),
            lambda: system.lock(place).try_acquire(),
            lambda: system.lock(place).acquire(timeout=1),
        ):
            with pytest.raises(semlock.LockPathError):
                call()
    assert os.lstat(place).st_ino == before.st_ino
    assert (tmp_path / "t").exists() is (kind not in ("directory", "fifo"))


def test_the_table_is_complete():
    assert set(EXPECTED) == set(ROWS)
    assert json.dumps(sorted(ROWS))
