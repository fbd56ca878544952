"""Cleaning a directory: nothing goes but locks and what semlock has left itself.

The first table is of bystanders: what lies beside locks in real directories, and what looks like
a lock in some way.  All of it stays as it was, byte, mode and inode, by whatever rules the
directory is cleaned.  The second is of what is left by those who died; all of that goes.
"""

import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import semlock
import users
from faultlib import drop_witness, mark_unfinished
from semlock import cli, semats, sidecar, systems, task
from semlock._core import cleaning as _cleaning
from semlock._core import folders, forms
from semlock._core.folders import queue_of
from semlock._systems import claims
from semlock._systems import sidecar_record as _sidecar_record
from support import Child, as_nobody, in_a_fork, set_everywhere, set_time, wait_until

if sys.platform == "win32":
    pytest.skip("the table is of POSIX, its names too", allow_module_level=True)

pytestmark = pytest.mark.leaves("queue", "tmp", "kept")

AGES = {"fresh": 0, "old": 10 * 86400}
RECORDS = Path(__file__).parent.parent / "interop" / "records"


def gone():
    """Give the number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


GONE = gone()


@pytest.fixture(scope="module")
def dead_record():
    """The record of a lock whose holder was killed."""
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "a.lock")
        in_a_fork(lambda: semlock.Lock(path, tag="x").acquire() and None)
        return Path(path).read_bytes()


# ---------------------------------------------------------------- who cleans

CLEANERS = {
    "library": lambda place: semlock.clean(place),
    "semats library": lambda place: semats.clean_stale(place),
    **{
        name: lambda place, name=name: cli.main(["clean", "-y", "-q", "--dialect", name, place])
        for name in ("auto", "semlock", "sema", "semats", "feature", "sidecar", "task")
    },
}


@pytest.fixture(params=CLEANERS)
def cleaner(request):
    return CLEANERS[request.param]


# ---------------------------------------------------------------- bystanders


def foreign(pid=None, time_stamp=5, tail=""):
    return f"pid={pid or GONE}\ntimestamp={time_stamp}\n{tail}".encode()


FLAKE = {"nodes": {"root": {}}, "root": "root", "version": 7}
TASK = {"owner": "pid-1@x", "since": "2020-01-01T00:00:00.000Z", "ttl": 1}

# Name and content.  DEAD stands for a dead holder's whole record.
FILES = {
    "state.json": b'{\n  "a": 1\n}',
    "session.json": b'{\n  "pid": 1,\n  "createdAt": "2020-01-01T00:00:00.000Z"\n}\n',
    "data.sqlite": b"SQLite format 3\0" + bytes(4080),
    "empty": b"",
    "empty.lock": b"",
    "flake.lock": json.dumps(FLAKE, indent=2).encode() + b"\n",
    "Pipfile.lock": b'{\n    "_meta": {"pid": 1}\n}\n',
    "composer.lock": b'{\n  "pid": 5,\n  "name": "x"\n}\n',
    "Cargo.lock": b'version = 3\n\n[[package]]\nname = "x"\n',
    "apt.lock": b"%d\n" % GONE,
    "daemon.pid": b"%d\n" % GONE,
    ".env": b"pid=%d\ntimestamp=5\nSECRET=x\n" % GONE,
    "exact.env": foreign(),
    "app.conf": foreign(),
    "app.ini": b"[main]\n" + foreign(),
    "app.lock": foreign(tail="colour=blue\n"),
    "swapped.lock": b"timestamp=5\npid=%d\n" % GONE,
    "blank.lock": b"\n" + foreign(),
    "spaced.lock": b"pid = %d\ntimestamp = 5\n" % GONE,
    "notes.txt": b"meeting at 12:30",
    "12:30": b"12:30",
    "times.lock": b"12:30",
    "plan.lock": b"4242:1600000000.5",
    "quote.md": b"It said:\n\nDEAD\n",
    "quote.lock": b"# kept for the report\nDEAD",
    "report.lock": b"DEADwhat shall we do?\n",
    "twice.lock": b"DEADDEAD",
    "cut.lock": b"CUT",
    "owner.json": json.dumps(TASK, indent=2).encode(),
    "owner.lock": json.dumps({**TASK, "note": "mine"}, indent=2).encode(),
    "compact.lock": json.dumps(TASK).encode(),
    "huge.lock": b"pid=1\ntimestamp=5\ntag=" + b"x" * 70000 + b"\n",
    "big.bin": bytes(3_000_000),
    "binary.lock": bytes(range(256)),
    ".semlock-abc.tmp": b"mine",
    ".semlock-abc.kept": b"mine",
    f".semlock-{'a' * 32}.tmp": b"a document",
    f".semlock-{'b' * 31}.tmp": b"",
    f".semlock-{'G' * 32}.tmp": b"",
    f".semlock-{'c' * 32}.kept": b"",
    ".semlock-0123456789abcdef.queue": b"a file",
    ".semlock-notes": b"mine",
    "x.lock.readers": b"a file",
    f"report.pdf.{GONE}.0123456789abcdef.tmp": b"pid=%d\ntimestamp=5\n" % GONE,
    f"x.lock.{GONE}.0123456789abcdef.tmp": b"a draft",
    f"x.lock.{GONE}.0123456789ABCDEF.tmp": b"",
    f"x.lock.{GONE}.tmp": b"",
    os.fsdecode(b"caf\xe9.lock"): b"not UTF-8 \xff",
    "name\nwith\nlines.lock": b"mine",
    # In directories that are named like semlock's own.
    ".semlock-0123456789abcdee.queue/0000000000000001": b"a document",
    ".semlock-0123456789abcdee.queue/0000000000000002.who": b"a document",
    ".semlock-0123456789abcdee.queue/notes.txt": b"mine",
    ".semlock-0123456789abcdee.queue/000000000000000g": b"",
    ".semlock-0123456789abcdee.queue/sub/0000000000000001": b"",
    ".semlock-photos.queue/0000000000000001": b"",
    "my.readers/0000000000000001": b"a document",
    "my.readers/list.txt": b"mine",
    "my.readers/sub/0123456789abcdef": b"DEAD",
    "specs/notes/.lock": b"12:30",
    "specs/x/sub/.lock": b"4242:1600000000.5",
    "sub/dead.lock": b"DEAD",
    "stale.lock.reclaim/file": b"mine",
}
EMPTY_DIRECTORIES = (
    "my.readers2/x",
    "other.readers",
    ".semlock-x.queue",
    "their.queue",
    "a.reclaim",
)


def digest(path):
    """Give what must not change of a file or directory."""
    seen = os.lstat(path)
    said = None
    if stat.S_ISREG(seen.st_mode):
        said = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    elif stat.S_ISLNK(seen.st_mode):
        said = os.readlink(path)
    return (seen.st_ino, seen.st_mode, seen.st_uid, seen.st_nlink, said)


def everything(place):
    found = {}
    for directory, below, files in os.walk(place):
        for name in (*below, *files):
            path = os.path.join(directory, name)
            found[path] = digest(path)
    return found


def lay_out(place, dead, age, mode=0o644):
    """Put all bystanders into a directory."""
    for name, content in FILES.items():
        path = os.path.join(place, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content.replace(b"DEAD", dead).replace(b"CUT", dead[:-9]))
        os.chmod(path, mode)
        os.utime(path, (time.time() - age,) * 2)
    for name in EMPTY_DIRECTORIES:
        os.makedirs(os.path.join(place, name))


@pytest.mark.parametrize("age", AGES.values(), ids=AGES)
def test_nothing_goes_but_what_a_lock_system_claims(
    cleaner, age, dead_record, tmp_path, no_grace
):
    lay_out(tmp_path, dead_record, age)
    before = everything(tmp_path)
    assert len(before) > len(FILES)
    cleaner(str(tmp_path))
    assert everything(tmp_path) == before


@pytest.fixture
def no_grace(monkeypatch):
    """Let nothing stay only because it is new."""
    set_everywhere(monkeypatch, "GRACE", 0)


def test_files_with_the_sticky_bit_are_no_unfinished_locks(
    cleaner, dead_record, tmp_path, no_grace
):
    """``chmod -R 1777`` gives it to every file, after the time of what is in it."""
    lay_out(tmp_path, dead_record, 0, mode=0o1777)
    for name, content in {
        "answer.txt": "p",
        "server.conf": "pid=5\n",
        "draft.json": "{",
    }.items():
        Path(tmp_path, name).write_text(content)
        os.chmod(tmp_path / name, 0o1777)
    before = everything(tmp_path)
    cleaner(str(tmp_path))
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["answer.txt", "server.conf", "count"])
@pytest.mark.parametrize("content", ["", "p", "pid=5\n"])
def test_the_beginning_of_a_record_is_an_unfinished_lock_by_its_name_only(
    cleaner, tmp_path, no_grace, name, content
):
    for one in (name, "unfinished.lock"):
        Path(tmp_path, one).write_text(content)
        mark_unfinished(tmp_path / one)
    cleaner(str(tmp_path))
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("touched", [False, True])
def test_a_holder_keeps_its_lock_when_all_files_get_the_sticky_bit(path, touched, no_grace):
    """Its witness is closed, so that nothing but its record speaks for it."""
    lock = semlock.Lock(path)
    lock.acquire()
    drop_witness(lock)
    os.chmod(path, 0o1777)
    if touched:
        lock.refresh()
    with Child("import semlock") as other:
        other.run(f"lock = semlock.Lock({path!r})")
        assert other.run("lock.try_acquire()") is False
    assert semlock.status(path).state == "held"
    lock.check()
    lock.release()


def test_a_scripts_lock_stays_when_all_files_get_the_sticky_bit(path, no_grace):
    Path(path).write_text("")
    os.chmod(path, 0o1777)
    assert semlock.Lock(path).try_acquire() is False
    assert semlock.clean(path) == []


def test_a_users_file_with_the_sticky_bit_is_not_taken_for_an_unfinished_lock(path, no_grace):
    Path(path).write_text("a document")
    os.chmod(path, 0o1644)
    assert semlock.Lock(path).try_acquire() is False
    with pytest.raises(semlock.LockTimeoutError):
        semlock.Lock(path).acquire(timeout=0.05)
    assert semlock.clean(path) == []
    assert Path(path).read_text() == "a document"


def test_nothing_that_is_no_regular_file_is_opened_or_goes(
    cleaner, dead_record, tmp_path, no_grace
):
    place = tmp_path / "there"
    queue = place / ".semlock-0123456789abcdef.queue"
    readers = place / "x.lock.readers"
    elsewhere = tmp_path / "elsewhere"
    for directory in (queue, readers, elsewhere):
        directory.mkdir(parents=True)
    document = elsewhere / "0000000000000001"
    document.write_bytes(dead_record)
    for directory in (place, queue, readers):
        os.mkfifo(directory / "pipe")
        (directory / "link.lock").symlink_to(document)
        (directory / "0000000000000005").symlink_to(document)
        (directory / f".semlock-{'a' * 32}.tmp").symlink_to(document)
        (directory / "dangling.lock").symlink_to("/nonexistent")
        (directory / "loop.lock").symlink_to("loop.lock")
        with socket.socket(socket.AF_UNIX) as listening:
            here = os.getcwd()
            os.chdir(directory)
            listening.bind("socket.lock")
            os.chdir(here)
        if users.ROOT:
            os.mknod(directory / "null.lock", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mkfifo(place / "pipe.lock")
    os.mkfifo(place / f".semlock-{'b' * 32}.tmp")
    os.mkfifo(readers / "0000000000000002")
    # Names of directories that are links, or pipes.
    (place / ".semlock-00000000000000aa.queue").symlink_to(elsewhere)
    (place / "y.lock.readers").symlink_to(elsewhere)
    os.mkfifo(place / ".semlock-00000000000000bb.queue")
    os.mkfifo(place / "z.lock.readers")
    before = everything(tmp_path)
    done = threading.Thread(target=cleaner, args=(str(place),), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive(), "it waits for a pipe"
    assert everything(tmp_path) == before


def test_a_hard_link_with_a_private_name_is_judged_by_its_content(cleaner, tmp_path, no_grace):
    document = tmp_path / "letter"
    document.write_text("dear all")
    os.link(document, tmp_path / f".semlock-{document.stat().st_ino:x}.kept")
    os.link(document, tmp_path / f".semlock-{'d' * 32}.tmp")
    before = everything(tmp_path)
    cleaner(str(tmp_path))
    assert everything(tmp_path) == before


@users.needs_root
def test_what_cannot_be_read_stays(cleaner, dead_record, common, no_grace):
    for name in ("a.lock", f".semlock-{'d' * 32}.tmp", "x.lock.readers/0000000000000001"):
        Path(common, name).parent.mkdir(exist_ok=True)
        Path(common, name).write_bytes(dead_record)
        Path(common, name).chmod(0)
    os.chmod(common, 0o777)
    before = everything(common)
    as_nobody(lambda: cleaner(str(common)))
    assert everything(common) == before


@users.needs_root
def test_in_a_sticky_directory_another_users_files_stay(cleaner, dead_record, common, no_grace):
    Path(common, "dead.lock").write_bytes(dead_record)
    Path(common, "dead.sem").write_bytes(foreign())
    Path(common, f".semlock-{'d' * 32}.tmp").write_bytes(b"")
    queue = Path(common, ".semlock-0123456789abcdef.queue")
    queue.mkdir(mode=0o1777)
    os.chmod(queue, 0o1777)
    (queue / "0000000000000001").write_bytes(b"")
    before = everything(common)
    as_nobody(lambda: cleaner(common))
    assert everything(common) == before


@users.needs_root
def test_what_another_user_left_is_cleaned_by_root(common, dead_record):
    def leave():
        Path(common, "dead.lock").write_bytes(dead_record)
        Path(common, "notes").write_bytes(b"mine")

    as_nobody(leave)
    assert [os.path.basename(one.path) for one in semlock.clean(common)] == ["dead.lock"]
    assert os.listdir(common) == ["notes"]


# ---------------------------------------------------------------- what goes


@pytest.mark.parametrize(
    ("system", "names"),
    {
        "sema": ("with-tag", "without-tag", "shell", "crlf"),
        "semats": ("with-tag",),
        "sidecar": ("fs-safe-0.3.0", "fs-safe-0.21.0", "semlock"),
        "task": ("old", "enhanced-ci", "enhanced-user", "reclaimed", "migrated", "semlock"),
    }.items(),
)
def test_each_systems_own_records_go_by_its_own_rules(system, names, tmp_path, monkeypatch):
    """The files are what those programs write; the rules are told the future."""
    for name in names:
        shutil.copy(RECORDS / system / f"{name}.lock", tmp_path)
    (tmp_path / "notes.txt").write_bytes((RECORDS / system / f"{names[0]}.lock").read_bytes())
    later = time.time() + 1e9
    set_time(monkeypatch, lambda: later)
    monkeypatch.setattr(semlock.policy, "process_is_gone", lambda info: True)
    assert cli.main(["clean", "-y", "--dialect", system, str(tmp_path)]) == 0
    told = ["notes.txt"] if system != "task" else [".lock_audit.log", "notes.txt"]
    assert sorted(os.listdir(tmp_path)) == told


def test_a_feature_lock_goes_by_age_at_its_own_path_only(tmp_path):
    place = tmp_path / ".gsd" / "specs" / "search"
    place.mkdir(parents=True)
    (place / ".lock").write_text(f"{GONE}:1600000000.25")
    (place / "other.lock").write_text(f"{GONE}:1600000000.25")
    cli.main(["clean", "-y", "--dialect", "feature", str(place)])
    assert os.listdir(place) == ["other.lock"]


@pytest.mark.parametrize(
    "name", ["the.lock", "master", "a b\n", ".x", "the.lock.3", "state.json"]
)
def test_semlocks_own_dead_locks_go_whatever_their_name(name, dead_record, tmp_path):
    (tmp_path / name).write_bytes(dead_record)
    assert [one.path for one in semlock.clean(tmp_path)] == [str(tmp_path / name)]
    assert os.listdir(tmp_path) == []


def test_whatever_semlock_writes_is_recognised_as_its_own(path):
    for tag, host in ((None, ""), ("tag", "h"), ("ü=\n", "hö"), ("", "x" * 300)):
        me = semlock._core.identity.this_process()
        process = type(me)(me.pid, me.start, me.pidns or 1, 5, me.boot, host)
        record = semlock._core.records.encode_text(process, tag, mode=0, durability=0)
        assert forms.own_text(record.text) == "whole"
        for cut in range(len(record.text)):
            assert forms.own_text(record.text[:cut]) == "part"
            assert forms.own_text(record.text[cut + 1 :]) is None or cut + 1 == len(record.text)
    with semlock.Lock(path, tag="t"):
        assert claims.own(path, Path(path).read_bytes()) is not None


def test_a_named_file_is_claimed_by_its_name_but_never_without_its_form(tmp_path):
    exact, document, target = (tmp_path / name for name in ("job", "letter", "state.json"))
    exact.write_bytes(foreign())
    document.write_bytes(foreign() + b"and more\n")
    target.write_bytes(FILES["session.json"])
    for path in (exact, document):
        cli.main(["clean", "-y", "--dialect", "sema", str(path)])
    cli.main(["clean", "-y", "--dialect", "sidecar", str(target)])
    assert sorted(os.listdir(tmp_path)) == ["letter", "state.json"]


# What a kill leaves: the name, the content (DEAD as above), and the mode.
TICKET = b"TICKET"  # stands for one whose owner is dead

LEFT = {
    "a kept claim": (".semlock-INODE.kept", b"DEAD", 0o644),
    "a kept claim over a longer record": (".semlock-INODE.kept", b"DEADs=none\n", 0o644),
    "a kept claim of a feature lock": (".semlock-INODE.kept", b"77:1600000000.1234567", 0o644),
    "a kept claim of a sidecar": (".semlock-INODE.kept", b"SIDECAR", 0o644),
    "a kept claim of a task lock": (".semlock-INODE.kept", b"TASK", 0o600),
    "a kept claim of one cut between two pages": (
        ".semlock-INODE.kept",
        (b"pid=5\ntimestamp=1600000000\ntag=" + b"x" * 5000)[:4096] + b"oken=5\n",
        0o644,
    ),
    "a temporary file": (f".semlock-{'0' * 32}.tmp", b"DEAD", 0o644),
    "an empty temporary file": (f".semlock-{'1' * 32}.tmp", b"", 0o600),
    "a begun temporary file": (f".semlock-{'2' * 32}.tmp", b"pid=12\ntimes", 0o644),
    "a temporary file of a sidecar": (f".semlock-{'3' * 32}.tmp", b"SIDECAR", 0o644),
    "a lock begun in place": ("the.lock", b"", 0o1644),
    "a slot begun in place": ("the.lock.12", b"", 0o1644),
    "a lock half written in place": ("master.lock", b"pid=12\ntimestamp=1600000000\ntag", 0o1644),
    "a ticket": (".semlock-0123456789abcdef.queue/0000000000000001", TICKET, 0o644),
    "a note whose ticket it was": (
        ".semlock-0123456789abcdef.queue/0000000000000001.who", b"DEAD", 0o644,
    ),
    "an empty note": (".semlock-0123456789abcdef.queue/0000000000000001.who", b"", 0o644),
    "a reader": ("job.readers/0123456789abcdef", b"DEAD", 0o644),
    "a reader begun in place": ("job.readers/0123456789abcdef", b"", 0o1644),
    "a reader's temporary file": (f"job.readers/.semlock-{'4' * 32}.tmp", b"", 0o644),
}  # fmt: skip


@pytest.fixture(scope="module")
def contents(dead_record):
    with tempfile.TemporaryDirectory() as place:
        lock = task.TaskLock(os.path.join(place, "t.lock"), "pid-1@x", audit=False)
        with lock:
            text = Path(lock.path).read_bytes()
    task_record = text.replace(b"%d" % os.getpid(), b"%d" % GONE)
    sidecar_record = _sidecar_record.compose({"pid": GONE, "x": []})
    return {b"DEAD": dead_record, b"TASK": task_record, b"SIDECAR": sidecar_record}


@pytest.mark.parametrize("what", LEFT)
def test_what_a_kill_leaves_goes_and_its_directory_with_it(
    what, cleaner, contents, tmp_path, no_grace
):
    name, content, mode = LEFT[what]
    for word, record in contents.items():
        content = content.replace(word, record)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content != TICKET:
        path.write_bytes(content)
    elif sys.platform.startswith("linux"):
        os.mkfifo(path)
    else:
        path.write_bytes(b"")
    if "INODE" in name:
        path = path.rename(path.with_name(name.replace("INODE", f"{path.stat().st_ino:x}")))
    path.chmod(mode)
    if mode == 0o1644:
        mark_unfinished(path)
    (tmp_path / "notes").write_text("mine")
    assert cli.main(["clean", "-n", str(tmp_path)]) == 0
    assert path.exists()
    cleaner(str(tmp_path))
    assert os.listdir(tmp_path) == ["notes"]


def test_a_record_over_a_longer_one_is_judged_like_a_record_alone(dead_record, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(dead_record + b"ness=kept\n")
    path.rename(tmp_path / f".semlock-{path.stat().st_ino:x}.kept")
    (removed,) = semlock.clean(tmp_path)
    assert b"pid=%d\n" % removed.info.pid in dead_record
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "what", [what for what in LEFT if "claim" in what or "temporary" in what]
)
def test_the_same_does_not_go_before_its_time_without_proof(what, contents, tmp_path):
    if LEFT[what][1].startswith((b"DEAD", b"TASK")):
        pytest.skip("its record proves the death")
    test = test_what_a_kill_leaves_goes_and_its_directory_with_it
    with pytest.raises(AssertionError):
        test(what, CLEANERS["library"], contents, tmp_path, None)


def test_what_a_living_process_has_closed_and_could_not_remove_goes(cleaner, tmp_path):
    """Such a name is no lock: no process has the file open, so its maker need not have ended."""
    lock = semlock.Lock(tmp_path / "a.lock")
    lock.acquire()
    record = Path(lock.path).read_bytes()
    assert b"witness=kept" in record
    for number, text in enumerate((record, record.replace(b"=kept", b"=over"))):
        left = tmp_path / "left"
        left.write_bytes(text)
        left.rename(tmp_path / f".semlock-{left.stat().st_ino:x}.kept")
        (tmp_path / f".semlock-{number:032x}.tmp").write_bytes(text)
    cleaner(str(tmp_path))
    assert os.listdir(tmp_path) == ["a.lock"]
    lock.release()


def test_empty_directories_go_only_if_their_names_are_semlocks(tmp_path, capsys):
    """One of readers may be the user's, also if it bears the name of a lock."""
    queue = ".semlock-0123456789abcdef.queue"
    for name in (queue, "the.lock.readers", "my.readers", "a.queue"):
        (tmp_path / name).mkdir()
    assert cli.main(["clean", "-n", str(tmp_path)]) == 0
    assert queue in capsys.readouterr().out
    assert [removed.path for removed in semlock.clean(tmp_path)] == [str(tmp_path / queue)]
    for name in ("my", "the.lock"):
        assert semlock.clean(tmp_path / name) == []
    assert sorted(os.listdir(tmp_path)) == ["a.queue", "my.readers", "the.lock.readers"]


def test_all_that_goes_is_said_before_and_afterwards(dead_record, tmp_path, capsys, no_grace):
    """Directories too, and those that stay because of what is in them are not."""
    queue = tmp_path / ".semlock-0123456789abcdef.queue"
    for folder in (queue, tmp_path / "a.lock.readers", tmp_path / "b.lock.readers"):
        folder.mkdir()
    os.mkfifo(queue / "0000000000000001")
    (tmp_path / "a.lock.readers" / "0123456789abcdef").write_bytes(dead_record)
    (tmp_path / "b.lock.readers" / "0123456789abcdef").write_bytes(dead_record)
    (tmp_path / "b.lock.readers" / "0123456789abcde1").write_bytes(b"mine")
    (tmp_path / "c.lock").write_bytes(dead_record)

    def paths():
        found = capsys.readouterr().out.splitlines()
        return {json.loads(line)["path"] for line in found}

    def there():
        return {str(path) for path in tmp_path.rglob("*")}

    before = there()
    assert cli.main(["clean", "-n", "-j", str(tmp_path)]) == 0
    shown = paths()
    assert there() == before
    assert cli.main(["clean", "-y", "-j", str(tmp_path)]) == 0
    gone = before - there()
    assert shown == paths() == gone
    assert {str(queue), str(tmp_path / "a.lock.readers")} < gone
    assert str(tmp_path / "b.lock.readers") not in gone


@pytest.mark.parametrize("spelling", [".", "./", "{}", "{}/"])
@pytest.mark.parametrize("name", systems.known())
def test_a_directory_is_cleaned_by_the_rules_of_any_system(
    name, spelling, dead_record, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.lock").write_bytes(dead_record)
    claimed = name not in ("feature", "sidecar", "task")
    assert cli.main(["clean", "-y", "--dialect", name, spelling.format(tmp_path)]) == 0
    assert (tmp_path / "a.lock").exists() is not claimed


def test_semats_and_the_command_remove_the_same_temporary_files(tmp_path, no_grace):
    def lay(place):
        place.mkdir()
        for name, pid in (("a.lock", GONE), ("b.lock", os.getpid()), ("letter", GONE)):
            text = foreign(pid)
            (place / f"{name}.{pid}.0123456789abcdef.tmp").write_bytes(text)
            (place / f"{name}.{pid}.1123456789abcdef.tmp").write_bytes(text[:9])
            (place / f"{name}.{pid}.2123456789abcdef.tmp").write_bytes(b"")
            (place / name).write_bytes(text)
        return place

    one, two = lay(tmp_path / "one"), lay(tmp_path / "two")
    semats.clean_stale(one)
    cli.main(["clean", "-y", "--dialect", "semats", str(two)])
    assert sorted(os.listdir(one)) == sorted(os.listdir(two))
    left = {name.split(".")[0] for name in os.listdir(one)}
    assert left == {"b", "letter"}
    semats.Semaphore(two / "letter").clean_stale()
    assert {name.split(".")[0] for name in os.listdir(two)} == {"b"}


def test_a_guard_of_fs_safe_goes_when_its_maker_has_left_it(tmp_path):
    guard = tmp_path / "state.json.lock.reclaim"
    guard.mkdir()
    cli.main(["clean", "-y", "--dialect", "sidecar", str(tmp_path)])
    assert guard.exists()
    os.utime(guard, (5, 5))
    cli.main(["clean", "-y", "--dialect", "task", str(tmp_path)])
    assert guard.exists()
    cli.main(["clean", "-y", "--dialect", "sidecar", str(tmp_path)])
    assert not guard.exists()


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize("name", ["missing", "missing/", "no/such", "no/such.lock"])
def test_a_directory_that_does_not_exist_is_an_error_that_names_it(name, tmp_path, capsys):
    wrong = os.path.join(tmp_path, name)
    with pytest.raises(FileNotFoundError) as caught:
        semlock.clean(wrong)
    assert str(tmp_path) in str(caught.value)
    for options in (["-y"], ["-n"], ["-j"], ["--dialect", "sema"]):
        assert cli.main(["clean", *options, wrong]) == 3
        out, err = capsys.readouterr()
        assert str(tmp_path) in out + err
        assert (out + err).count("\n") == 1


def test_a_free_lock_has_nothing_to_be_cleaned(tmp_path, capsys):
    for name in ("the.lock", "build.sem", "x.lock.3"):
        assert semlock.clean(tmp_path / name) == []
        assert cli.main(["clean", "-y", str(tmp_path / name)]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_directory_may_be_named_by_a_link_and_by_a_relative_path(dead_record, tmp_path):
    place = tmp_path / "there"
    place.mkdir()
    (tmp_path / "way").symlink_to(place)
    for name in ("way", "./there/", "there/../way"):
        (place / "a.lock").write_bytes(dead_record)
        assert len(semlock.clean(name)) == 1
    assert os.listdir(place) == []


# ---------------------------------------------------------------- others at work


@pytest.mark.parametrize("by_descriptor", [True, False], ids=["proc", "no-proc"])
@pytest.mark.parametrize("name", [".semlock-0123456789abcdef.queue", "x.lock.readers"])
def test_a_directory_that_is_exchanged_for_a_link_leads_nowhere(
    name, by_descriptor, dead_record, tmp_path, monkeypatch
):
    """Just before the removal, when it has been judged, as another user may do to root."""
    if not by_descriptor:
        real = folders._same
        monkeypatch.setattr(
            folders,
            "_same",
            lambda path, fd, **how: "/proc/" not in path and real(path, fd, **how),
        )
    place, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    for directory in (place / name, elsewhere):
        directory.mkdir(parents=True)
        (directory / "0123456789abcdef").write_bytes(dead_record)
    if name.endswith(".queue") and sys.platform.startswith("linux"):
        ticket = place / name / "0123456789abcdef"
        ticket.unlink()
        os.mkfifo(ticket)
    before = everything(elsewhere)
    found = _cleaning.leftovers(place)
    leftover = next(found)
    (place / name).rename(tmp_path / "aside")
    (place / name).symlink_to(elsewhere)
    assert _cleaning._remove(leftover) is by_descriptor
    assert _cleaning.remove_all(found) == []
    assert everything(elsewhere) == before
    assert os.path.islink(place / name)


@pytest.mark.parametrize("name", [".semlock-0123456789abcdef.queue", "x.lock.readers"])
def test_a_directory_that_is_exchanged_before_it_is_opened_leads_nowhere(
    name, dead_record, tmp_path, monkeypatch
):
    place, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    for directory in (place / name, elsewhere):
        directory.mkdir(parents=True)
        (directory / "0123456789abcdef").write_bytes(dead_record)
    real = os.open

    def exchange(path, *arguments, **options):
        if os.fspath(path).endswith(name) and not os.path.islink(place / name):
            (place / name).rename(tmp_path / "aside")
            (place / name).symlink_to(elsewhere)
        return real(path, *arguments, **options)

    before = everything(elsewhere)
    monkeypatch.setattr(os, "open", exchange)
    assert semlock.clean(place) == []
    assert os.path.islink(place / name)
    assert everything(elsewhere) == before


def test_a_ticket_that_is_a_pipe_is_judged_by_the_kernels_lock_and_never_waited_for(
    cleaner, dead_record, tmp_path, no_grace
):
    import fcntl

    queue = tmp_path / ".semlock-0123456789abcdef.queue"
    queue.mkdir()
    os.mkfifo(queue / "0000000000000001")
    (queue / "0000000000000001.who").write_bytes(dead_record)
    owner = os.open(queue / "0000000000000001", os.O_RDWR | os.O_NONBLOCK)
    fcntl.flock(owner, fcntl.LOCK_EX)
    before = everything(tmp_path)
    done = threading.Thread(target=cleaner, args=(str(tmp_path),), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive(), "it waits for a pipe"
    assert everything(tmp_path) == before
    os.close(owner)
    cleaner(str(tmp_path))  # it may go now, and is not waited for in any case


def test_the_mode_of_readers_is_never_given_to_what_took_their_place(tmp_path, monkeypatch):
    """The directory is writable by others, so it is opened to them; they exchange it meanwhile."""
    os.chmod(tmp_path, 0o777)
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.mkdir(mode=0o700)
    (secret / "key").write_text("mine")
    (secret / "key").chmod(0o600)
    for target in (secret, secret / "key"):
        lock = semlock.SharedLock(tmp_path / "the.lock")
        mkdir = os.mkdir

        def exchange(path, mode=0o777, *, target=target, mkdir=mkdir):
            mkdir(path, mode)
            os.rmdir(path)
            os.symlink(target, path)

        monkeypatch.setattr(os, "mkdir", exchange)
        with pytest.raises((OSError, semlock.SemlockError)):
            lock.acquire_shared(timeout=0)
            lock.release()
            raise OSError
        monkeypatch.undo()
        os.unlink(tmp_path / "the.lock.readers")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o700
    assert stat.S_IMODE((secret / "key").stat().st_mode) == 0o600
    # A directory of ours with other things in it, moved there, is none of readers either.
    folders.open_to_others(str(secret), 0o777)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o700


def test_a_file_that_this_process_has_open_is_not_opened_again(dead_record, path):
    """Closing it would drop the fcntl locks by which databases live."""
    import fcntl

    with open(path, "w+b") as file:
        file.write(b"pid=1\n")
        file.flush()
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        semlock.clean(os.path.dirname(path))
        with Child("import fcntl") as other, pytest.raises(BlockingIOError):
            other.run(f"fcntl.lockf(open({path!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)")


def test_a_holder_its_readers_and_waiters_keep_what_is_theirs(cleaner, tmp_path, no_grace):
    path = str(tmp_path / "the.lock")
    with Child() as holder, Child() as waiter:
        holder.run(
            f"lock = semlock.Lock({path!r})\nfor _ in 'abc': lock.acquire(), lock.release()"
        )
        holder.run(
            f"lock.acquire(); s = semlock.SharedLock({path + '2'!r}); s.acquire_shared(); None"
        )
        waiter.send(f"semlock.Lock({path!r}, fair=True).acquire(); None")
        wait_until(
            lambda: os.path.exists(queue_of(path)) and os.listdir(queue_of(path)), "it waits"
        )
        time.sleep(0.05)
        before = everything(tmp_path)
        cleaner(str(tmp_path))
        assert everything(tmp_path) == before
        holder.run("lock.release(); s.release()")
        waiter.receive()


@pytest.mark.parametrize("seconds", [0.7, pytest.param(20, marks=pytest.mark.stress)])
def test_two_cleaners_beside_makers_and_readers_meet_no_error_and_take_no_live_lock(
    seconds, tmp_path, dead_record
):
    lay_out(tmp_path, dead_record, 0)
    before = everything(tmp_path)
    path = str(tmp_path / "the.lock")
    cleaning = f"""
import time, warnings
end, rounds = time.monotonic() + {seconds}, 0
while time.monotonic() < end:
    for clean in (semlock.clean, semlock.semats.clean_stale):
        clean({str(tmp_path)!r}); rounds += 1
rounds
"""
    working = f"""
import random, time
end, rounds = time.monotonic() + {seconds}, 0
shared, lock = semlock.SharedLock({path + "2"!r}), semlock.Lock({path!r}, fair=True)
slots = semlock.SlotLock({path + "3"!r}, 2)
while time.monotonic() < end:
    if not os.fork():  # dies while it holds
        random.seed()
        which = random.randrange(3)
        which == 0 and lock.acquire(timeout=1)
        which == 1 and shared.acquire_shared(timeout=1)
        which == 2 and slots.acquire(timeout=1)
        os.kill(os.getpid(), 9)
    for one in (lock, slots, shared):
        with one: one.check()
    with shared.shared(): shared.check()
    os.wait(); rounds += 1
rounds
"""
    setup = "import os, semlock, semlock.semats"
    children = [Child(setup) for _ in range(4)]
    try:
        for child, code in zip(children, (cleaning, cleaning, working, working), strict=True):
            child.send(code)
        assert all(child.receive(seconds + 60) for child in children)
        for child in children:
            child.kill()
    finally:
        for child in children:
            child.close()

    def all_is_as_before():
        semlock.clean(tmp_path)
        return everything(tmp_path) == before

    wait_until(all_is_as_before, "what the dead left has gone")


@pytest.mark.parametrize("verb", [("break", "-y"), ("release", "--force")], ids="-".join)
def test_a_forced_removal_spares_what_is_no_lock_by_name_and_content(verb, tmp_path, capsys):
    for name, content, goes in (
        ("passwd", b"root:x:0:0::/root:/bin/sh\n", False),
        ("notes.txt", b"mine", False),
        ("empty", b"", True),
        ("foreign.lock", b"another program's\n", True),
        ("by-a-script", b"pid=1\n", True),
        ("package.json", b'{"name": "mine"}', False),
        ("state.json.lock", b'{"name": "mine"}', True),
    ):
        place = tmp_path / name
        place.write_bytes(content)
        assert cli.main(["break", str(place)]) == (1 if goes else 3)  # no terminal to ask at
        capsys.readouterr()
        assert cli.main([*verb, str(place)]) == (0 if goes else 3), name
        assert place.exists() != goes
        assert ("left alone" in capsys.readouterr().err) != goes


@pytest.mark.parametrize("name", ["sema", "semats", "feature", "sidecar", "task", "auto"])
def test_a_forced_removal_of_any_system_spares_documents(name, tmp_path, capsys):
    for document, content in (("notes.txt", b"mine"), ("package.json", b'{"name": "mine"}')):
        place = tmp_path / document
        place.write_bytes(content)
        os.utime(place, (1, 1))  # stale by age, which makes it no lock
        for verb in (("break", "-y"), ("release", "--force")):
            assert cli.main([*verb, "--dialect", name, str(place)]) == 3
            assert place.read_bytes() == content
            assert "left alone" in capsys.readouterr().err
    lock = sidecar.SidecarLock(tmp_path / "x", lock_path=tmp_path / "mine")
    lock.acquire()  # semlock's own record has its token
    assert cli.main(["break", "-y", str(tmp_path / "mine")]) == 0
    with pytest.raises(semlock.LockLostError):
        lock.release()
