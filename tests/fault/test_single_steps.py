"""Single steps of the protocol that no storm would miss, each shown by stopping around it."""

import os

import pytest

from actors import ActorError
from faultlib import copy_after, fail, stop_after, stop_before
from support import content_of

TAKE_OVER = "lock.try_acquire()"


def replaced(path):
    """Do what a foreigner does who removes a file that seems stale and takes the path."""
    os.unlink(path)
    with open(path, "x", encoding="ascii") as file:
        file.write("a foreigner's\n")


def test_a_file_that_came_to_the_path_before_the_last_look_is_not_removed(actor, path):
    """A foreigner takes no guard; between the last look and the unlink lies no other call."""
    remover = actor()
    remover.do("leave_dead_lock(path)")
    assert remover.do(TAKE_OVER) is True
    until = remover.calls.index("unlink")
    assert until > 4
    for number in range(1, until + 1):
        remover.do("let_go(lock), native.drain_pool()")
        remover.do("leave_dead_lock(path)")
        remover.have("lock", "new_lock(path)")
        assert remover.begin(TAKE_OVER, stop_before(nth=number)), number
        replaced(path)
        assert remover.finish() is False, number
        assert content_of(path) == b"a foreigner's\n", number
        os.unlink(path)


def test_a_program_being_started_does_not_keep_the_guard_of_a_removal_given_up(actor, path):
    """What was judged has changed: it stays, and its holder needs the guard next."""
    holder, other = actor(), actor()
    holder.do("set_patience(0)")
    holder.do("lock.acquire(timeout=0)")
    other.do(f"rob(path, {holder.do('lock.token')!r})")
    before = other.calls.index("flock")
    holder.do("let_go(lock), lock.acquire(timeout=0)")
    token = holder.do("lock.token")
    try:
        assert other.begin(
            f"rob(path, {token!r})", stop_before(nth=before), copy_after("flock")
        )
        holder.do("lock.refresh()")
        other.finish()
        holder.do("lock.refresh()")
        holder.do("lock.release()")
    finally:
        other.do("end_copy()")
    assert not os.path.exists(path)


@pytest.mark.parametrize("what", ["refresh", "release"])
def test_a_program_being_started_does_not_keep_the_guard_of_a_holder(actor, path, what):
    holder, other = actor(), actor()
    holder.do("lock.acquire(timeout=0)")
    try:
        if what == "refresh":
            holder.do("lock.refresh()", copy_after("flock"))
            token = holder.do("lock.token")
            other.do(f"rob(path, {token!r})")
        else:
            # The unlink fails, so it is still held and another process may need the guard.
            with pytest.raises(ActorError, match="PermissionError"):
                holder.do("lock.release()", copy_after("flock"), fail(1, "unlink"))
            other.do(f"rob(path, {holder.do('lock.token')!r})")
        assert not os.path.exists(path)
    finally:
        holder.do("end_copy()")


@pytest.mark.parametrize("form", ["open", "closed", "copied"])
def test_a_program_being_started_does_not_keep_the_guard_of_what_has_another_name(
    actor, path, form
):
    holder, other = actor(), actor()
    moved = f"{path}.moved"
    holder.do("lock.acquire(timeout=0)")
    if form == "closed":
        holder.do("__import__('os').close(lock._native.file.handle)")
    (os.link if form == "copied" else os.rename)(path, moved)
    try:
        if form == "copied":
            holder.do("lock.release()", copy_after("flock"))
        else:
            with pytest.raises(ActorError, match="LockLostError"):
                holder.do("lock.release()", copy_after("flock"))
        # The next removal there needs the guard.
        other.do(f"semlock.remove({moved!r}, force=True)")
        assert not os.path.exists(moved)
    finally:
        holder.do("end_copy()")


def test_a_kept_claim_comes_back_without_its_guard(actor, path):
    holder, other = actor(), actor()
    holder.do("keep_a_claim(path)")
    holder.do("lock.acquire(timeout=0)")
    other.do(f"rob(path, {holder.do('lock.token')!r})")
    assert not os.path.exists(path)


def test_a_private_name_that_becomes_a_link_of_the_path_just_then_keeps_nothing_held(
    actor, path
):
    """Then the rename to it does nothing and says that it was done."""
    holder = actor()
    holder.do("lock.acquire(timeout=0), lock.release(), lock.acquire(timeout=0)")
    assert holder.begin("lock.release()", stop_before("rename"))
    private = f".semlock-{os.stat(path).st_ino:x}.kept"
    os.link(path, os.path.join(os.path.dirname(path), private))
    holder.finish()
    assert not os.path.exists(path)


def test_what_was_moved_before_it_is_rewritten_is_left_as_it_is(actor, path, tmp_path):
    """Its directory was exchanged, which changes nothing of the file."""
    place = tmp_path / "place"
    place.mkdir()
    moved = str(place / "the.lock")
    with open(moved, "w", encoding="ascii") as file:
        file.write("a foreigner's\n")
    writer = actor()
    assert writer.begin(f"rewrite({moved!r}, b'a new record of it')", stop_after("flock"))
    os.rename(place, tmp_path / "away")
    place.mkdir()
    writer.finish()
    assert content_of(tmp_path / "away" / "the.lock") == b"a foreigner's\n"
    assert os.listdir(place) == []


def test_a_reader_that_was_overtaken_by_a_writer_withdraws(actor, path):
    """The writer saw no reader, since the reader had looked and not yet published itself."""
    reader, writer = actor(), actor()
    for one in (reader, writer):
        one.have("shared", "semlock.SharedLock(path)")
    number = 1
    overtaken = 0
    while reader.begin("shared.try_acquire_shared()", stop_before(nth=number)):
        writing = writer.do("shared.try_acquire()")
        overtaken += writing
        reading = reader.finish()
        assert not (reading and writing), number
        if reading:
            reader.do("shared.release()")
        if writing:
            writer.do("shared.release()")
        number += 1
    assert overtaken
    assert reader.finish() is True
