"""``watch``: what the table says, what its keys do, and that only what was shown is broken."""

import contextlib
import io
import os
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

import semlock
from semlock import task
from semlock._cli import columns
from semlock._cli import rows as _rows
from semlock._cli import watching as _watch
from semlock._core import folders
from support import Child, content_of, wait_until, wine_keeps_locked_names

FAST = {"durability": "none"}


@pytest.fixture
def directory(tmp_path):
    return _rows.Directory(tmp_path)


def table(directory):
    """Give the table by the names of the locks, each a dictionary by its columns."""
    rows = [row.cells for row in directory.rows()]
    return {row[0]: dict(zip(_rows.HEAD, row, strict=True)) for row in rows}


# -------------------------------------------------------------------- the table


def test_a_lock_has_a_row_that_says_who_holds_it_and_whether_it_lives(tmp_path, directory):
    assert directory.rows() == []
    with semlock.Lock(tmp_path / "a.lock", tag="why\x1b[31m"):
        (row,) = table(directory).values()
    assert row == {
        "LOCK": "a.lock", "HOLDER": str(os.getpid()), "TAG": "why [31m", "AGE": row["AGE"],
        "VERDICT": "alive", "WAITING": "", "TTL": "",
    }  # fmt: skip
    assert re.fullmatch(r"\d+ s", row["AGE"])


def test_the_lock_of_a_dead_holder_says_so(tmp_path, directory):
    with Child() as child:
        child.run(f"lock = semlock.Lock({str(tmp_path / 'a.lock')!r}); lock.acquire(); None")
        child.kill()
    assert table(directory)["a.lock"]["VERDICT"] == "dead"


def test_files_that_are_no_locks_are_left_out_and_read_once(tmp_path, directory, monkeypatch):
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "odd.lock").write_text("no record")
    assert list(table(directory)) == ["odd.lock"]
    looked = []
    look = directory._eye.look
    eye = type(
        "Eye", (), {"look": lambda _, path: looked.append(path) or look(path), "seen": None}
    )
    monkeypatch.setattr(directory, "_eye", eye())
    assert list(table(directory)) == ["odd.lock"]
    assert [os.path.basename(path) for path in looked] == ["odd.lock"]
    (tmp_path / "notes.txt").write_text("pid=1\ntimestamp=1\n")
    assert list(table(directory)) == ["notes.txt", "odd.lock"]


def test_a_record_with_a_time_to_live_shows_what_is_left(tmp_path, directory):
    now = [time.time()]
    lock = task.TaskLock(
        tmp_path / "task.lock", task.owner_for(), ttl=300, audit=False, clock=lambda: now[0]
    )
    with lock:
        assert re.fullmatch(r"4 min 5\d s|5 min 00 s", table(directory)["task.lock"]["TTL"])
        now[0] -= 1000
        lock.refresh()
        assert table(directory)["task.lock"]["TTL"] == "over"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (61, "1 min 01 s"),
        (7500, "2 h 05 min"),
        (100_000, "1 d 03 h"),
    ],
)
def test_ages_are_written_for_people(seconds, text):
    assert columns.duration(seconds) == text


@pytest.mark.leaves("queue")
@pytest.mark.skipif(sys.platform == "win32", reason="there are no queues of files here")
def test_waiters_are_counted_without_the_holder(tmp_path, directory):
    path = str(tmp_path / "a.lock")
    wait = f"lock = semlock.Lock({path!r}); lock.acquire(); None"
    with Child() as first, Child() as second, Child() as third:
        mine = semlock.Lock(path)
        mine.acquire()
        try:
            for count, child in enumerate((first, second, third), 1):
                child.send(wait)
                # A place is there a moment before it says whose it is.
                wait_until(
                    lambda n=count: sum(p.info is not None for p in _rows.waiters(path)) == n,
                    "it stands in the queue",
                )
            assert table(directory)["a.lock"]["WAITING"] == "3"
            assert sorted(place.info.pid for place in _rows.waiters(path)) == sorted(
                child.pid for child in (first, second, third)
            )
        finally:
            mine.release()
        # The one that has it now keeps its place in the queue, and waits no more.
        first.receive()
        assert table(directory)["a.lock"]["HOLDER"] == str(first.pid)
        wait_until(
            lambda: table(directory)["a.lock"]["WAITING"] == "2", "the holder is not counted"
        )
        (row,) = directory.rows()
        assert sum(line.startswith("waiting ") for line in _watch.closely(row)) == 2


@pytest.mark.leaves("queue")
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="it makes tickets as they are on Linux"
)
def test_a_holder_that_keeps_its_place_is_not_counted(tmp_path):
    """As it does when it has waited itself."""
    import fcntl

    path = str(tmp_path / "a.lock")
    with semlock.Lock(path) as lock, Child() as child:
        other = str(tmp_path / "b.lock")
        child.run(f"lock = semlock.Lock({other!r}); lock.acquire(); None")
        queue = Path(folders.queue_of(path))
        queue.mkdir()
        owned = []
        for number, record in ((3, path), (4, other), (5, path)):
            ticket = queue / f"{number:016x}"
            os.mkfifo(ticket)
            owned.append(os.open(ticket, os.O_RDWR | os.O_NONBLOCK))
            (queue / f"{ticket.name}.who").write_bytes(content_of(record))
        fcntl.flock(owned[0], fcntl.LOCK_EX)
        found = [place.info.pid for place in _rows.waiters(path, lock.info)]
        for fd in owned:
            os.close(fd)
    assert found == [child.pid, os.getpid()]


# -------------------------------------------------------------------- drawing


def plain(line):
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_every_line_fits_the_terminal(tmp_path, directory, width):
    wide = "\u5e2d" * 30
    with (
        semlock.Lock(tmp_path / ("x" * 90 + ".lock"), tag="a long tag, " * 9),
        semlock.Lock(tmp_path / f"{wide}.lock", tag=wide),
    ):
        rows = directory.rows()
        for line in _rows.lines(rows, width, 0):
            assert columns.wide(plain(line)) == width
        screen = _watch.Screen(directory)
        screen.look()
        for key in ("", "down", "b", "n", "i"):
            if key:
                screen.key(key)
            drawn = screen.draw(max(width, 60), 12)
            assert len(drawn) == 12
            assert all(columns.wide(plain(line)) <= max(width, 60) for line in drawn)


def test_the_table_looks_the_same_without_rich(tmp_path, directory, monkeypatch):
    screen = _watch.Screen(directory)
    with semlock.Lock(tmp_path / "a.lock", tag="why"):
        screen.look()
        for there in (True, False):
            if not there:
                for name in ("rich", "rich.box", "rich.console", "rich.table", "rich.text"):
                    monkeypatch.setitem(sys.modules, name, None)
            text = "\n".join(map(plain, screen.draw(100, 10)))
            for word in (*_rows.HEAD, "a.lock", str(os.getpid()), "why", "alive", "q quit"):
                assert word in text


def test_what_is_selected_is_on_the_screen_however_many_there_are(tmp_path, directory):
    screen = _watch.Screen(directory)
    with contextlib.ExitStack() as held:
        for number in range(30):
            held.enter_context(semlock.Lock(tmp_path / f"{number:02}.lock", **FAST))
        screen.look()
        for number in range(40):
            shown = "\n".join(map(plain, screen.draw(80, 12)))
            assert f"{min(number, 29):02}.lock" in shown
            screen.key("down")
        screen.key("up")
        assert screen._selected.endswith("28.lock")


# -------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[Bj", ["up", "down", "j"]),
        ("\x1bOA", ["up"]),
        ("\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["pageup", "pagedown", "home", "end"]),
        ("\x1b[15~\x1b[1;5Cq", ["q"]),
        ("\x1b", ["\x1b"]),
        ("\x1b[", []),
    ],
)
def test_keys_are_told_from_what_a_terminal_sends(text, keys):
    assert _watch.keys_of(text) == keys


def shown(screen, height=12):
    return "\n".join(map(plain, screen.draw(80, height)))


@pytest.fixture
def thirty(tmp_path, directory):
    """A screen with thirty locks, of which two are for the same."""
    screen = _watch.Screen(directory, colour=False)
    with contextlib.ExitStack() as held:
        for number in range(30):
            tag = "nightly" if number in (7, 21) else ""
            held.enter_context(semlock.Lock(tmp_path / f"{number:02}.lock", tag=tag, **FAST))
        screen.look()
        yield screen


def test_pages_and_both_ends_are_a_key_away_and_rows_are_counted(thirty):
    assert "1-9 of 30" in shown(thirty, 13)
    thirty.key("pagedown")
    assert thirty._selected.endswith("09.lock")
    thirty.key("end")
    assert "22-30 of 30" in shown(thirty, 13)
    thirty.key("pageup")
    assert thirty._selected.endswith("20.lock")
    thirty.key("home")
    assert "1-9 of 30" in shown(thirty, 13)


def test_a_filter_leaves_what_matches_and_escape_shows_all_again(thirty):
    for key in "/nixht\x7f\x7f\x7fghtl":
        thirty.key(key)
    assert "1-2 of 2" in shown(thirty)
    assert "/nightl" in shown(thirty).splitlines()[-1]
    thirty.key("\n")
    thirty.key("q")
    assert thirty.over  # q is a letter only while the filter is typed
    thirty.over = False
    thirty.look()
    assert "1-2 of 2" in shown(thirty)
    thirty.key("\x1b")
    assert "of 30" in shown(thirty)
    assert not thirty.over
    for key in "/zzz":
        thirty.key(key)
    assert "No lock matches 'zzz'" in shown(thirty)
    thirty.key("\x1b")
    assert "of 30" in shown(thirty)


def test_sorting_goes_through_the_columns_and_keeps_the_selection(thirty):
    thirty.key("end")
    for order in ("age", "holder", "verdict", "waiting", ""):
        thirty.key("s")
        assert (f"by {order}" in shown(thirty)) == bool(order)
        assert thirty._selected.endswith("29.lock")


def test_a_key_shows_the_keys(thirty):
    thirty.key("?")
    assert "PageUp PageDown" in shown(thirty, 14)
    thirty.key("x")
    assert "of 30" in shown(thirty)


@pytest.mark.parametrize("width", range(20, 90, 7))
def test_columns_leave_by_importance_until_the_rest_fits(tmp_path, directory, width):
    with semlock.Lock(tmp_path / ("x" * 30 + ".lock"), tag="t" * 30):
        rows = directory.rows()
    heads = [_rows.HEAD[column] for column, _ in _rows.widths(_rows.table_of(rows), width)]
    assert heads[:2] == ["LOCK", "HOLDER"]
    gone = [name for name in ("TTL", "WAITING", "TAG", "AGE", "VERDICT") if name not in heads]
    assert gone == ["TTL", "WAITING", "TAG", "AGE", "VERDICT"][: len(gone)]
    (_, line) = _rows.lines(rows, width, colour=False, full=False)
    assert columns.wide(line) <= width


@wine_keeps_locked_names
def test_a_lock_is_broken_after_a_yes_only(tmp_path, directory):
    path = tmp_path / "a.lock"
    lock = semlock.Lock(path)
    lock.acquire()
    screen = _watch.Screen(directory)
    screen.look()
    for answer in ("n", "\x1b", "q", "b"):
        screen.key("b")
        assert "Remove it?" in "\n".join(screen.draw(80, 10))
        screen.key(answer)
        assert path.exists()
        assert not screen.over
    screen.key("b")
    screen.key("y")
    assert not path.exists()
    assert "was removed" in "\n".join(screen.draw(200, 10))
    with pytest.raises(semlock.LockLostError):
        lock.release()


def test_only_the_lock_that_was_shown_is_broken(tmp_path, directory):
    """It changes hands while the question stands on the screen, and is looked at meanwhile."""
    path = tmp_path / "a.lock"
    screen = _watch.Screen(directory)
    with semlock.Lock(path, tag="the first"):
        screen.look()
        screen.key("b")
    with semlock.Lock(path, tag="the second") as lock:
        screen.look()
        assert "the first" in "\n".join(screen.draw(300, 10)[-2:])
        screen.key("y")
        lock.check()
        assert "not the lock that was meant" in "\n".join(screen.draw(300, 10))
    screen.look()
    screen.key("b")
    screen.key("down")
    assert "No lock is held here" in "\n".join(screen.draw(80, 10))


def test_a_closer_look_shows_the_evidence(tmp_path, directory):
    screen = _watch.Screen(directory)
    with semlock.Lock(tmp_path / "a.lock"):
        screen.look()
        screen.key("i")
        assert "its holder keeps the kernel's lock on it" in "\n".join(screen.draw(100, 24))
        screen.key("x")
        assert "VERDICT" in "\n".join(screen.draw(100, 24))
        assert not screen.over
        screen.key("q")
        assert screen.over


# -------------------------------------------------------------------- the terminal


def test_without_a_terminal_it_is_written_once(tmp_path):
    out = io.StringIO()
    with semlock.Lock(tmp_path / "a.lock", tag="\u2014"):
        assert _watch.watch(tmp_path, out=out) == 0
    lines = out.getvalue().splitlines()
    assert lines[0].split() == ["LOCK", "HOLDER", "TAG", "AGE", "VERDICT"]
    assert lines[1].split()[0] == "a.lock"
    assert "\x1b" not in out.getvalue()
    with pytest.raises(FileNotFoundError):
        _watch.watch(tmp_path / "nowhere", out=out)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pseudo-terminal here")
@pytest.mark.parametrize("end", ["q", "\x03"])
def test_at_a_terminal_it_follows_and_leaves_the_terminal_as_it_was(tmp_path, end):
    import pty
    import termios

    code = (
        "import sys\nfrom semlock._cli.watching import watch\n"
        "try: watch(sys.argv[1], interval=0.02)\n"
        "except KeyboardInterrupt: pass"
    )
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    pid = os.fork()
    if pid == 0:
        os.login_tty(theirs) if hasattr(os, "login_tty") else _login_tty(theirs)
        os.environ["TERM"] = "xterm"
        os.environ["PYTHONIOENCODING"] = "utf-8"
        os.execv(sys.executable, [sys.executable, "-c", code, str(tmp_path)])
    seen = ""

    def until(word):
        nonlocal seen
        end = time.monotonic() + 30
        while word not in seen:
            assert time.monotonic() < end, seen
            if select.select([ours], [], [], 0.05)[0]:
                seen += os.read(ours, 65536).decode("utf-8", "replace")

    try:
        until("No lock is held here")
        with semlock.Lock(tmp_path / "a.lock", tag="why"):
            until("a.lock")
            os.write(ours, b"i")
            until("evidence:")
            os.write(ours, b"xb")
            until("[y/n]")
            os.write(ours, b"n")
            until("Left alone")
        seen = ""
        until("No lock is held here")
        os.write(ours, end.encode())
        until("\x1b[?1049l")
        _, status = os.waitpid(pid, 0)
        pid = 0
        assert status == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)
    assert not list(Path(tmp_path).iterdir())


def _login_tty(terminal):
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(terminal, number)
