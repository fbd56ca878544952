"""A path is proven by the path: link counts lie, and rename between two links does nothing."""

import os
import shutil
import subprocess
import sys

import pytest

import semlock
import users
from semlock._core import capi
from support import Child

pytestmark = [
    pytest.mark.leaves("kept"),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"),
        reason="cp -al is GNU's, and the names are Linux's",
    ),
]


@pytest.fixture
def tree(tmp_path):
    """A directory of locks, of which copies by hard links are made."""
    made = tmp_path / "tree"
    made.mkdir()
    yield made
    capi.drain_pool(str(made))


@pytest.fixture
def copy(tree, tmp_path):
    def make():
        made = tmp_path / f"copy{len(os.listdir(tmp_path))}"
        subprocess.run(["cp", "-al", str(tree), str(made)], check=True)
        return made

    return make


def private_names(directory):
    return [name for name in os.listdir(directory) if name.endswith(".kept")]


def use(lock, times=2):
    for _ in range(times):
        with lock:
            pass


@pytest.mark.parametrize("kept", [False, True], ids=["fresh", "kept"])
def test_a_copy_made_while_a_lock_is_held_is_free_as_soon_as_that_is_let_go(tree, copy, kept):
    lock = semlock.Lock(tree / "the.lock")
    if kept:
        use(lock)
    with lock:
        copied = copy() / "the.lock"
        assert semlock.status(copied).verdict == "alive"
    found = semlock.status(copied)
    assert (found.state, found.info.witness) == ("stale", "over")
    assert "copy" in found.evidence
    other = semlock.Lock(copied)
    assert other.try_acquire()
    other.release()
    assert private_names(tree) == []


def test_a_copy_made_while_a_claim_idles_is_over_after_its_next_use(tree, copy):
    lock = semlock.Lock(tree / "the.lock")
    use(lock)
    (name,) = private_names(tree)
    copied = copy() / name
    with lock:
        assert os.path.samefile(lock.path, copied)
    assert semlock.status(copied).info.witness == "over"
    with lock:
        assert not os.path.samefile(lock.path, copied)
        assert lock.token.encode() not in copied.read_bytes()
    assert semlock.status(copied).info.witness == "over"


def test_a_copy_of_an_idle_claim_is_over_when_that_is_given_up(tree, copy):
    lock = semlock.Lock(tree / "the.lock")
    use(lock)
    (name,) = private_names(tree)
    copied = copy() / name
    capi.drain_pool(str(tree))
    assert private_names(tree) == []
    assert semlock.status(copied).info.witness == "over"


def test_what_a_copy_holds_up_is_nothing_of_the_originals(tree, copy):
    lock = semlock.Lock(tree / "the.lock")
    use(lock)
    with lock:
        there = copy()
        with pytest.raises(semlock.LockTimeoutError):
            semlock.Lock(there / "the.lock").acquire(0)
        lock.refresh()
        lock.check()
    use(lock, 3)
    assert os.listdir(tree) == private_names(tree)


def test_a_link_count_is_no_proof_of_a_win(tree, copy, monkeypatch):
    """Linking fails while a copy has raised the count: nothing was won."""
    lock = semlock.Lock(tree / "the.lock")
    use(lock)
    copied = copy()
    # From now on linking is refused: no more names may come into this directory.
    with Child() as child:
        child.run(users.as_user(effective=True))
        child.run(f"lock = semlock.Lock({lock.path!r})")
        os.chmod(tree, 0o555)
        with pytest.raises(PermissionError):
            child.run("lock.try_acquire()")
        assert child.run("lock.held") is False
    os.chmod(tree, 0o755)
    assert not os.path.exists(lock.path)
    shutil.rmtree(copied)


def test_a_private_name_that_is_a_link_of_the_path_already_keeps_nothing_held(tree):
    lock = semlock.Lock(tree / "the.lock")
    use(lock, 1)  # from now on what is let go of in this directory is kept
    lock.acquire()
    assert not lock._native.file.named
    name = tree / f".semlock-{lock._native.file.ino:x}.kept"
    os.link(lock.path, name)
    lock.release()
    assert not os.path.exists(lock.path)
    assert semlock.status(lock.path).state == "free"
    use(lock)
    assert not os.path.exists(lock.path)


def test_a_private_name_that_leads_to_another_file_wins_nothing(tree, tmp_path):
    """Where linking by descriptor is refused the private name is linked; it may be replaced."""
    lock = semlock.Lock(tree / "the.lock")
    use(lock)
    (name,) = private_names(tree)
    mine = tmp_path / "mine"
    mine.write_bytes(b"the user's")
    os.rename(tree / name, tree / "elsewhere")
    os.link(mine, tree / name)
    capi.POOL.no_link_by_fd = 1
    try:
        with lock:
            assert not os.path.samefile(lock.path, mine)
            assert semlock.status(lock.path).info.token == lock.token
    finally:
        capi.POOL.no_link_by_fd = 0
    assert mine.read_bytes() == b"the user's"


@pytest.mark.parametrize("kept", [False, True], ids=["fresh", "kept"])
@pytest.mark.parametrize("what", ["a link in the path", "the directory", "the file"])
def test_a_lock_whose_path_leads_elsewhere_at_its_release_is_free_where_it_is(
    tree, tmp_path, what, kept
):
    current = tmp_path / "current"
    current.symlink_to(tree)
    lock = semlock.Lock((tree if what == "the directory" else current) / "the.lock")
    if kept:
        use(lock)
    lock.acquire()
    if what == "a link in the path":
        (tmp_path / "next").mkdir()
        (tmp_path / "new").symlink_to(tmp_path / "next")
        (tmp_path / "new").rename(current)
        left = tree / "the.lock"
    elif what == "the directory":
        left = tree.rename(tmp_path / "moved") / "the.lock"
    else:
        left = (tree / "the.lock").rename(tree / "other.lock")
    assert semlock.status(left).verdict == "alive"
    with pytest.raises(semlock.LockLostError, match="does not lead to that lock any more"):
        lock.release()
    with Child("import semlock") as other:
        other.run(f"lock = semlock.Lock({str(left)!r})")
        assert other.run("lock.try_acquire()") is True
        other.run("lock.release()")


def test_a_lock_that_was_moved_and_written_over_is_not_touched(tree):
    lock = semlock.Lock(tree / "the.lock")
    lock.acquire()
    left = (tree / "the.lock").rename(tree / "other.lock")
    left.write_text("pid=1\ntimestamp=1\nmine\n")
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert left.read_text() == "pid=1\ntimestamp=1\nmine\n"
