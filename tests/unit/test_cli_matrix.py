"""Each verb, as text and as JSON, on a lock in each state that a lock can be in."""

import os
import signal
import subprocess
import sys

import pytest

from clilib import HOLDING, PATIENCE, checked_lines, command, echo, start
from semlock.cli import main
from support import WINE, WINE_KEEPS_LOCKED_NAMES, make_link

ODD = b'pid=4242\ntimestamp=99999999999999999999\ntag=\xe2\x80\xae"\\\x1b]0;x\x07\x00\xed\n'
ODD_TAG = 'pid=4242\ntimestamp=5\ntag=\u202e"\\\x1b]0;x\x07\x00\x7f\ncolour=blue\n'.encode()
DIE = "import semlock,os,sys\nsemlock.Lock(sys.argv[1], tag='d').acquire()\nos._exit(0)"


def hold(path):
    """Have another process hold the lock; in this one a wait for it would be a deadlock."""
    holder = start("run", "-m", "h", path, "--", *HOLDING, stderr=subprocess.DEVNULL)
    assert holder.stdout.readline() == "ready\n"
    return holder


def write(content):
    def at(path):
        with open(path, "wb") as file:
            file.write(content)

    return at


STATES = {
    "free": lambda path: None,
    "held": hold,
    "stale": lambda path: subprocess.run([sys.executable, "-c", DIE, path], check=True),
    "odd": write(ODD_TAG),
    "unreadable": write(ODD),
    "empty": write(b""),
    "json": write(
        b'{"pid": 1e999, "createdAt": "\\ud800", "deep": ' + b"[" * 50 + b"]" * 50 + b"}"
    ),
    "task": write(b'{"owner": "token-secret", "since": 1700000000000, "ttl": 60}'),
    "directory": os.mkdir,
    "link": lambda path: make_link(path, "/nonexistent"),
}
FREE, HELD, BAD = 0, 1, 3

# For each verb: its words, the kind of JSON object, and the exit code in each state.
LOCKED = dict.fromkeys(("held", "odd", "unreadable", "empty", "json", "task"), HELD)
NO_LOCK = {"directory": BAD, "link": BAD}
VERBS = {
    "status": (["status"], "held", {"free": FREE, "stale": HELD, **LOCKED, **NO_LOCK}),
    "wait": (["wait", "-t", "0.01"], "held", {"free": FREE, "stale": FREE, **LOCKED, **NO_LOCK}),
    "try": (["try"], "refused", {"free": FREE, "stale": FREE, **LOCKED, **NO_LOCK}),
    "acquire": (
        ["acquire", "-t", "0.01"], "refused", {"free": FREE, "stale": FREE, **LOCKED, **NO_LOCK},
    ),
    "release": (["release"], "released", {"free": HELD, "stale": HELD, **LOCKED, **NO_LOCK}),
    "refresh": (["refresh"], "refreshed", {"free": HELD, "stale": HELD, **LOCKED, **NO_LOCK}),
    "clean": (["clean", "-y"], "cleaned", {
        "free": FREE, "stale": FREE, **dict.fromkeys(LOCKED, FREE), "directory": FREE, "link": BAD,
    }),
    "break": (["break", "-y"], "broken", {
        "free": FREE, "stale": FREE, **dict.fromkeys(LOCKED, FREE), **NO_LOCK,
    }),
    "migrate": (["migrate"], "migrated", {
        "free": FREE, **dict.fromkeys(("held", "stale", "odd", "unreadable", "empty", "json"), BAD),
        "task": FREE, **NO_LOCK,
    }),
}  # fmt: skip


@pytest.fixture(autouse=True)
def handlers():
    """Give this process back the handlers that the command changes in its own."""
    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def lock_in(path):
    """Bring a path into a state, and let go of what this process holds afterwards."""
    held = []

    def bring(state):
        held.append(STATES[state](path))
        return path

    yield bring
    for holder in held:
        if isinstance(holder, subprocess.Popen):
            holder.communicate("\n", timeout=PATIENCE)


def printable(text):
    return not any(
        ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2028" for c in text if c != "\n"
    )


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_in_each_state(verb, state, as_json, lock_in, capsys):
    if (verb, state) == ("break", "held") and WINE_KEEPS_LOCKED_NAMES:
        pytest.skip("Wine keeps the name of a removed file that is locked")
    line, kind, codes = VERBS[verb]
    path = lock_in(state)
    code = main([*line, *(["-j"] if as_json else []), path])
    out, err = capsys.readouterr()
    assert code == codes[state], (out, err)
    assert printable(out)
    assert printable(err)
    assert "Traceback" not in err
    assert "secret" not in out + err
    if code:
        assert out or err, "it failed without a word"
    if not as_json:
        return
    if '"error"' in out:
        kind = "error"
    elif kind == "held" and state == "free":
        kind = "free"
    elif kind == "refused" and code == FREE:
        kind = "acquired"
    assert (kind == "error") == (code == BAD and '"outcome"' not in out)
    for fields in checked_lines(out, kind):
        assert fields.get("path", path) == path


@pytest.mark.parametrize("state", [state for state in STATES if state not in NO_LOCK])
def test_status_begins_as_semas_does(state, lock_in, capsys):
    path = lock_in(state)
    main(["status", "--porcelain", path])
    text = [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()]
    main(["status", "-j", path])
    [fields] = checked_lines(capsys.readouterr().out, "free" if state == "free" else "held")
    shown = [name for name, value in fields.items() if value is not None and name != "waiting"]
    assert text == shown
    if state != "free":
        assert list(fields)[:4] == ["locked", "pid", "timestamp", "tag"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_run_in_each_state(state, as_json, lock_in):
    path = lock_in(state)
    options = ["-t", "0.01", *(["-j"] if as_json else [])]
    result = command("run", *options, path, "--", *echo("ran"))
    free = state in ("free", "stale")
    assert result.returncode == (FREE if free else NO_LOCK.get(state, HELD))
    assert result.stdout == ("ran\n" if free else "")
    if as_json and result.returncode == BAD:
        checked_lines(result.stderr, "error")
    elif as_json and not free:
        waiting, refused = result.stderr.splitlines()
        checked_lines(waiting, "waiting")
        checked_lines(refused, "refused")


@pytest.mark.parametrize(
    "name", [b"a b.lock", b"\xff\xfe.lock", b"\"'.lock", b"-t.lock", b"\xed\xa0\x80"]
)
def test_odd_names_are_no_obstacle(name, tmp_path, capsys):
    if sys.platform == "win32" and (b'"' in name or b"\xff" in name):
        pytest.skip("no file has such a name there")
    if WINE and name == b"\xed\xa0\x80":
        pytest.skip("Wine keeps names as UTF-8, which has no half characters")
    path = os.fsdecode(os.path.join(os.fsencode(tmp_path), name))
    assert main(["try", "-j", path]) == FREE
    [fields] = checked_lines(capsys.readouterr().out, "acquired")
    exact = fields["path"] if "path_bytes" not in fields else None
    assert (exact or os.fsdecode(bytes.fromhex(fields["path_bytes"]))) == path
    assert main(["status", path]) == HELD
    assert main(["list", "-ja", str(tmp_path)]) == FREE
    assert main(["release", path]) == FREE
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "dialect", ["auto", "semlock", "sema", "semats", "feature", "sidecar", "task"]
)
@pytest.mark.parametrize("state", [state for state in STATES if state not in NO_LOCK])
def test_each_dialect_can_look_at_anything(dialect, state, lock_in, capsys):
    path = lock_in(state)
    code = main(["status", "-j", "--dialect", dialect, path])
    [fields] = checked_lines(capsys.readouterr().out, "free" if state == "free" else "held")
    assert code == (FREE if state == "free" else HELD)
    assert fields["state"] in ("free", "held", "stale", "unreadable")
