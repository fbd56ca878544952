"""``once``, ``open_atomic`` and ``open_locked``: results that appear whole, made by one process."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
import users
from support import Child, wait_until


def test_the_result_is_made_once_and_its_path_given(tmp_path, names):
    calls = []

    def make(temporary):
        calls.append(temporary)
        with open(temporary, "w") as file:
            file.write("whole")

    target = tmp_path / "result"
    for _ in range(3):
        assert semlock.once(target, make) == str(target)
    assert len(calls) == 1
    assert target.read_text() == "whole"
    assert kept_aside(names()) == ["result"]


def test_a_directory_may_be_the_result(tmp_path):
    def make(temporary):
        os.makedirs(os.path.join(temporary, "inner"))

    found = semlock.once(tmp_path / "deep" / "tree", make)
    assert os.listdir(found) == ["inner"]


def test_many_threads_make_it_once(tmp_path):
    calls = []

    def make(temporary):
        calls.append(temporary)
        time.sleep(0.05)
        with open(temporary, "w") as file:
            file.write("x")

    threads = [
        threading.Thread(target=semlock.once, args=(tmp_path / "r", make)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def kept_aside(found):
    """Leave out what semlock keeps for the next lock here."""
    return [name for name in found if not name.startswith(".semlock-")]


def test_a_failure_leaves_nothing_and_the_next_one_tries(tmp_path, names):
    def fail(temporary):
        with open(temporary, "w") as file:
            file.write("half")
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        semlock.once(tmp_path / "r", fail)
    assert kept_aside(names()) == []
    semlock.once(tmp_path / "r", lambda temporary: open(temporary, "w").close())
    assert kept_aside(names()) == ["r"]


def test_a_make_that_makes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="has made no file"):
        semlock.once(tmp_path / "r", lambda temporary: None)


@pytest.mark.skipif(sys.platform == "win32", reason="it kills by signals")
def test_a_killed_process_leaves_nothing_that_is_taken_for_the_result(tmp_path, names):
    target = str(tmp_path / "r")
    with Child() as other:
        other.send(
            f"def make(t):\n    open(t, 'w').write('half')\n    os.kill({os.getpid()}, 0)\n"
            "    import time; time.sleep(60)\n"
            f"semlock.once({target!r}, make)"
        )
        end = time.monotonic() + 20
        while not any(name.endswith(".making") for name in names()):
            assert time.monotonic() < end
            time.sleep(0.001)
        os.kill(other.pid, signal.SIGKILL)
        other.process.wait()
    assert not os.path.exists(target)

    def make(temporary):
        with open(temporary, "w") as file:
            file.write("whole")

    semlock.once(target, make)
    with open(target) as file:
        assert file.read() == "whole"
    assert kept_aside(names()) == ["r"]


def test_a_lock_that_was_taken_by_force_puts_nothing_in_place(tmp_path):
    target = tmp_path / "r"

    def make(temporary):
        open(temporary, "w").close()
        semlock.remove(f"{target}.lock", force=True)

    with (
        pytest.warns(semlock.LockLostWarning),
        pytest.raises(semlock.LockLostError),
    ):
        semlock.once(target, make)
    assert not target.exists()


def test_files_of_others_with_names_like_those_of_unfinished_ones_stay(tmp_path, names):
    others = [f"r.{'0' * 16}.part", "r.a_download_of_me.making", f"r.x.{'0' * 16}.making"]
    for name in others:
        (tmp_path / name).write_text("precious")
    left = tmp_path / f"r.{'0' * 16}.making"
    left.mkdir()
    with semlock.open_atomic(tmp_path / "r") as file:  # its writer needs no lock
        file.write("of a writer")
        semlock.once(tmp_path / "r", lambda temporary: Path(temporary).write_text("made"))
        assert not left.exists()
    assert (tmp_path / "r").read_text() == "of a writer"
    assert sorted(kept_aside(names())) == sorted(["r", *others])


def test_an_empty_path_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="can't be empty"):
        semlock.once("", lambda temporary: None)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such permissions")
def test_what_its_maker_may_not_read_or_change_is_put_in_place_and_removed(tmp_path):
    with users.shared() as place, Child("import os, semlock, pathlib") as child:
        if users.ROOT:
            child.run(users.as_user())
        child.run(
            "def make(temporary, fails=False):\n"
            "    tree = pathlib.Path(temporary, 'a', 'b'); tree.mkdir(parents=True)\n"
            "    for mode in (0o000, 0o200, 0o400):\n"
            "        (tree / f'{mode:o}').write_text('text')\n"
            "        (tree / f'{mode:o}').chmod(mode)\n"
            "    tree.chmod(0o100); tree.parent.chmod(0o500)\n"
            "    if fails:\n        raise OSError('no network')\n"
        )
        assert child.run(f"os.path.isdir(semlock.once({place + '/r'!r}, make))")
        with pytest.raises(OSError, match="no network"):
            child.run(f"semlock.once({place + '/s'!r}, lambda name: make(name, True))")
        assert kept_aside(os.listdir(place)) == ["r"]


def test_tasks_make_it_once(tmp_path):
    calls = []

    async def make(temporary):
        calls.append(temporary)
        await asyncio.sleep(0.01)
        os.mkdir(temporary)

    async def all_of_them():
        paths = [semlock.once_async(tmp_path / "r", make) for _ in range(5)]
        return await asyncio.gather(*paths)

    assert asyncio.run(all_of_them()) == [str(tmp_path / "r")] * 5
    assert len(calls) == 1


def test_a_make_that_returns_something_is_done_all_the_same(tmp_path):
    for number, value in enumerate(
        ("a path", b"bytes", 0, False, [], object(), Path("elsewhere"))
    ):

        def make(temporary, value=value):
            open(temporary, "w").close()
            return value

        assert semlock.once(tmp_path / f"r{number}", make) == str(tmp_path / f"r{number}")


def test_a_make_that_would_have_to_be_awaited_makes_nothing(tmp_path, names):
    async def make(temporary):
        os.mkdir(temporary)

    with pytest.raises(TypeError, match="ends in _async"):
        semlock.once(tmp_path / "r", make)
    assert kept_aside(names()) == []


def test_a_make_of_tasks_may_be_a_plain_function(tmp_path):
    found = asyncio.run(semlock.once_async(tmp_path / "r", lambda t: open(t, "w").close()))
    assert found == str(tmp_path / "r")
    assert os.path.exists(found)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_a_make_that_is_interrupted_leaves_nothing(tmp_path, names, stop):
    def make(temporary):
        os.makedirs(os.path.join(temporary, "inner"))
        raise stop

    with pytest.raises(stop):
        semlock.once(tmp_path / "r", make)
    assert kept_aside(names()) == []


def test_a_task_that_is_cancelled_in_its_make_leaves_nothing_and_the_next_one_makes(
    tmp_path, names
):
    async def main():
        begun = asyncio.Event()

        async def hang(temporary):
            os.mkdir(temporary)
            begun.set()
            await asyncio.sleep(60)

        async def make(temporary):
            os.mkdir(temporary)

        first = asyncio.create_task(semlock.once_async(tmp_path / "r", hang))
        await begun.wait()
        second = asyncio.create_task(semlock.once_async(tmp_path / "r", make))
        await asyncio.sleep(0.02)
        assert not second.done()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second == str(tmp_path / "r")

    asyncio.run(main())
    assert kept_aside(names()) == ["r"]


@pytest.mark.parametrize("form", ["once", "once_async"])
def test_a_make_that_forks_makes_it_in_the_parent_only(tmp_path, names, form):
    """The child returns from ``make`` too, by mistake: it holds no lock and puts nothing there."""
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    target, told = tmp_path / "r", tmp_path / "told"
    me = os.getpid()

    def make(temporary):
        with open(temporary, "w") as file:
            file.write("whole")
        if (child := os.fork()) == 0:
            return
        os.waitpid(child, 0)

    try:
        if form == "once":
            semlock.once(target, make)
        else:
            asyncio.run(semlock.once_async(target, make))
    except BaseException as error:
        if os.getpid() == me:
            raise
        told.write_text(type(error).__name__)
    finally:
        if os.getpid() != me:
            os._exit(0)
    assert told.read_text() == "NotHeldError"
    assert target.read_text() == "whole"
    told.unlink()
    assert kept_aside(names()) == ["r"]


# ---------------------------------------------------------------- under kills


def make_and_log(way, log, temporary):
    """Make a file or a directory that says who made it, and log when that began and ended."""
    os.write(log, b"begin %d\n" % os.getpid())
    if way == "a make that fails now and then" and os.getpid() % 3 == 0:
        os.write(log, b"failed %d\n" % os.getpid())
        raise OSError("no network")
    if way == "a directory":
        os.mkdir(temporary)
        temporary = os.path.join(temporary, "file")
    pid = os.getpid()

    def write():
        with open(temporary, "w") as file:
            for _ in range(50):
                file.write(f"{pid:010}")
                file.flush()

    if way == "a make that forks":
        child = os.fork()
        if child == 0:
            write()
            os._exit(0)
        os.waitpid(child, 0)
    else:
        write()
    os.write(log, b"end %d\n" % os.getpid())


def one_of_the_storm(way, target, log):
    """Get the result in a forked process, and log whose it is."""
    if way == "tasks":

        async def make(temporary):
            make_and_log(way, log, temporary)
            await asyncio.sleep(0)

        asyncio.run(semlock.once_async(target, make))
    else:
        try:
            semlock.once(target, lambda temporary: make_and_log(way, log, temporary))
        except OSError as error:
            if "no network" not in str(error):
                raise
            return
    os.write(log, b"got %d %s\n" % (os.getpid(), maker_of(target).encode()))


def maker_of(target):
    """Read who made the result, which is whole."""
    if os.path.isdir(target):
        target = os.path.join(target, "file")
    text = Path(target).read_text()
    assert len(text) == 500, f"{len(text)} characters of 500"
    assert text == text[:10] * 50
    return str(int(text[:10]))


def judge(lines, killed):
    """See to it that it was made by one at a time, and never again after it was made."""
    running, makers = None, set()
    for line in lines:
        word, pid, *rest = line.split()
        if word == "begin":
            assert running is None or running in killed, (
                f"{pid} begins while {running} makes it"
            )
            assert not makers, f"{pid} begins though {makers} has it"
            running = pid
        elif word in ("end", "failed"):
            assert running == pid, f"{pid} goes on while {running} makes it"
            if word == "failed":
                running = None
        else:
            makers.add(rest[0])
            assert len(makers) == 1, f"made twice: {makers}"
    done = [pid for word, pid, *_ in map(str.split, lines) if word == "end"]
    for number, maker in enumerate(done):
        assert maker in killed or number == len(done) - 1, f"{maker} made it, and another again"


@pytest.mark.stress
@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks and kills")
@pytest.mark.parametrize(
    "way",
    ["a file", "a directory", "tasks", "a make that forks", "a make that fails now and then"],
)
def test_under_kills_it_is_whole_or_absent_and_never_made_twice(tmp_path, way):
    import random

    seconds = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "20")) / 4
    rng = random.Random(f"{way} {os.environ.get('SEMLOCK_STRESS_SEED', 3)}")
    end, rounds, struck = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        rounds += 1
        target, name = str(tmp_path / f"r{rounds}"), str(tmp_path / f"log{rounds}")
        log = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        children = []
        for _ in range(4):
            if (child := os.fork()) == 0:
                status = 1
                try:
                    one_of_the_storm(way, target, log)
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        killed = set()
        victims = children[: rng.randrange(4)]
        if rounds % 2:  # the one that makes it, however slowly it comes to that
            wait_until(lambda log=log: os.fstat(log).st_size, "one begins")
            victims = [int(os.pread(log, 100, 0).split()[1])]
        for child in victims:
            time.sleep(rng.uniform(0, 0.008))
            os.kill(child, signal.SIGKILL)
            killed.add(str(child))
        for child in children:
            _, status = os.waitpid(child, 0)
            assert status in (0, signal.SIGKILL)
        lines = os.pread(log, 1 << 16, 0).decode().splitlines()
        begun = {line.split()[1] for line in lines if line.startswith("begin")}
        struck += bool(begun & killed)
        judge(lines, killed)
        got = [line for line in lines if line.startswith("got")]
        if got:
            assert maker_of(target) == got[-1].split()[2]
        elif os.path.lexists(target):
            maker_of(target)  # its maker was killed when it was in place
        os.close(log)
    semlock.clean(tmp_path)  # the queues of those who were killed
    assert rounds > 5
    assert struck  # some were killed while they made it


# ---------------------------------------------------------------- open_atomic


def test_an_atomic_file_appears_at_the_end_of_the_block(tmp_path, names):
    target = tmp_path / "state"
    target.write_text("old")
    os.chmod(target, 0o640)
    with semlock.open_atomic(target) as file:
        file.write("new")
        file.flush()
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    if sys.platform != "win32":
        assert target.stat().st_mode & 0o777 == 0o640
    assert names() == ["state"]


def test_a_block_that_fails_changes_nothing(tmp_path, names):
    target = tmp_path / "state"
    with pytest.raises(ValueError, match="no"), semlock.open_atomic(target, "wb") as file:
        file.write(b"half")
        raise ValueError("no")
    assert kept_aside(names()) == []


def test_an_exclusive_atomic_file_replaces_nothing(tmp_path, names):
    target = tmp_path / "state"
    with semlock.open_atomic(target, "x") as file:
        file.write("first")
    with pytest.raises(FileExistsError), semlock.open_atomic(target, "x"):
        pass
    assert (target.read_text(), names()) == ("first", ["state"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")
@pytest.mark.parametrize("mode", ["w", "x"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path, names, mode):
    """As root, a device would be lost to all programs of the machine."""
    os.mkfifo(tmp_path / "fifo")
    os.mkdir(tmp_path / "directory")
    before = names()
    for name in before:
        with pytest.raises(OSError, match=name), semlock.open_atomic(tmp_path / name, mode):
            pytest.fail("the block began")
    assert names() == before


@pytest.mark.skipif(os.name == "nt", reason="there are no such permissions")
def test_what_replaces_a_private_file_is_private_all_the_time(tmp_path):
    target = tmp_path / "key"
    for permissions in (0o600, 0o400, 0o640, 0o200):
        target.unlink(missing_ok=True)
        target.write_text("old")
        target.chmod(permissions)
        with semlock.open_atomic(target) as file:
            file.write("new")
            assert os.fstat(file.fileno()).st_mode & 0o777 & ~permissions & 0o077 == 0
        assert target.stat().st_mode & 0o777 == permissions


@users.needs_root
def test_what_replaces_a_file_of_another_user_belongs_to_that_user():
    other = users.NOBODY - 3
    with users.shared() as place:
        target = Path(place, "program")
        for permissions in (0o600, 0o4755, 0o2750):
            target.write_text("old")
            os.chown(target, other, other)
            target.chmod(permissions)
            with semlock.open_atomic(target) as file:
                file.write("new")
            found = target.stat()
            assert (found.st_uid, found.st_gid) == (other, other)
            assert found.st_mode & 0o7777 == permissions
            target.unlink()
        # A user who may not give files away: no program begins to run as this user, and no other
        # group may do what the first one could.
        target.write_text("old")
        os.chown(target, other, other)
        target.chmod(0o6754)
        os.chmod(place, 0o777)
        with Child(f"import semlock\n{users.as_user()}") as child:
            child.run(
                f"with semlock.open_atomic({str(target)!r}) as file:\n    file.write('new')"
            )
        found = target.stat()
        assert (found.st_uid, found.st_mode & 0o7777) == (users.NOBODY, 0o744)


def test_a_directory_is_no_file_to_lock(tmp_path):
    for mode in ("r", "w"):
        with (
            pytest.raises(IsADirectoryError) as told,
            semlock.open_locked(tmp_path, mode, timeout=5),
        ):
            pass
        assert told.value.filename == str(tmp_path)


@pytest.mark.parametrize("length", [231, 232, 250, 255])
def test_a_name_may_be_as_long_as_the_filesystem_allows(tmp_path, names, length):
    name = "n" * length
    with semlock.open_atomic(tmp_path / name) as file:
        file.write("whole")
    assert names() == [name]
    if length <= 250:  # the lock's name is longer by 5

        def make(temporary):
            Path(temporary).write_text("made")

        os.unlink(tmp_path / name)
        left = semlock._locks.placing.name_beside(str(tmp_path / name), ".making")
        Path(left).write_text("what a killed process has left")
        semlock.once(tmp_path / name, make)
        assert kept_aside(names()) == [name]


@pytest.mark.parametrize("mode", ["r", "a", "w+", "", "rw"])
def test_other_modes_are_refused(tmp_path, mode):
    with pytest.raises(ValueError, match="mode is"), semlock.open_atomic(tmp_path / "x", mode):
        pass


def test_a_child_that_was_forked_in_the_block_leaves_the_file_to_its_parent(tmp_path, names):
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    target, me = tmp_path / "state", os.getpid()
    try:
        with semlock.open_atomic(target) as file:
            file.write("new")
            file.flush()
            if (child := os.fork()) != 0:
                os.waitpid(child, 0)
                assert not target.exists()
    finally:
        if os.getpid() != me:
            os._exit(0)
    assert target.read_text() == "new"
    assert names() == ["state"]


# ---------------------------------------------------------------- open_locked


def test_an_open_file_is_locked_to_the_end_of_the_block(tmp_path):
    target = tmp_path / "state"
    with semlock.open_locked(target, "w") as file:
        file.write("one")
        with pytest.raises(semlock.LockTimeoutError):
            semlock.KernelLock(target).acquire(timeout=0)
    assert target.read_text() == "one"
    with semlock.open_locked(target, "a") as file:
        file.write(" two")
    with semlock.open_locked(target, "r+") as file:
        assert file.read() == "one two"
        file.seek(0)
        file.write("ONE")
    with semlock.open_locked(target) as one, semlock.open_locked(target, "rb") as other:
        assert (one.read(), other.read()) == ("ONE two", b"ONE two")


def test_a_file_is_emptied_only_once_it_is_locked(tmp_path):
    target = tmp_path / "state"
    target.write_text("kept")
    with semlock.KernelLock(target):
        with (
            pytest.raises((semlock.LockTimeoutError, semlock.LockDeadlockError)),
            semlock.open_locked(target, "w", timeout=0),
        ):
            pass
    assert target.read_text() == "kept"


def test_reading_what_is_not_there_makes_no_file(tmp_path, names):
    with pytest.raises(FileNotFoundError), semlock.open_locked(tmp_path / "none"):
        pass
    assert kept_aside(names()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such files")
@pytest.mark.parametrize("mode", ["r", "rb", "r+", "w", "a"])
def test_only_a_regular_file_is_opened_locked(tmp_path, mode):
    """Opening a FIFO would wait until a program writes to it."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/null"):
        with (
            pytest.raises(OSError, match="only a regular file can be opened"),
            semlock.open_locked(path, mode),
        ):
            pass
    with pytest.raises(IsADirectoryError), semlock.open_locked(tmp_path, mode):
        pass


@pytest.mark.parametrize("mode", ["x", "rw", "", "b"])
def test_odd_modes_are_refused(tmp_path, mode):
    with pytest.raises(ValueError, match="mode is"), semlock.open_locked(tmp_path / "x", mode):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("mode", ["w", "r+", "a"])
def test_a_child_that_leaves_the_block_writes_nothing(tmp_path, mode):
    """Neither what its parent has not written yet, nor to a file that has the lock's number."""
    target, other = tmp_path / "data", tmp_path / "other"
    target.write_text("")
    other.write_text("another file of the child")
    me = os.getpid()
    try:
        with semlock.open_locked(target, mode) as file:
            file.write("once ")
            child = os.fork()
            if child == 0:
                kept = [os.open(other, os.O_RDWR) for _ in range(8)]
            else:
                assert os.waitpid(child, 0)[1] == 0
                file.write("only")
    finally:
        if os.getpid() != me:
            for fd in kept:
                os.close(fd)
            os._exit(0)
    assert target.read_text() == "once only"
    assert other.read_text() == "another file of the child"
