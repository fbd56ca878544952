"""When waiters look by the clock where no event comes: together, and each no more than it must.

The waits are the core's own, of an event loop that hears nothing; what they say of their next look
counts, so no test waits for it.
"""

import sys
import time

import pytest

import semlock
from semlock._core import capi, waits
from support import Child

pytestmark = [
    pytest.mark.one_at_a_time("time"),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="elsewhere all waiters hear of the lock"
    ),
]

MS = 1_000_000
TICK = 200 * MS
PAUSE = 50 * MS  # the longest of the first
FIRST_LOOK = 0.12  # of one behind others
OLD = 4  # s: so long have they waited, and look less often
NEW = -60  # for a minute more, however long the test takes
NEAR = 8
RARELY = 15
MANY = 64


class Deaf:
    """A loop without an event source."""

    events = -1

    def __init__(self):
        self.waits = set()

    def left(self, wait):
        self.waits.discard(id(wait))


def look(wait):
    """Have it look.

    If this process holds a file with such a number anywhere, it leaves it to its caller to judge
    the holder.
    """
    if wait.wait(capi.now_ns()) == capi.LOOK:
        wait.judged(0, capi.look(wait.path))
        wait.wait(capi.now_ns())


@pytest.fixture
def queue(path):
    """Makes waiters for a lock that another process holds, one after the other."""
    hub, locks, made = Deaf(), [], []

    def join(count, ago):
        asked = capi.now_ns() - int(ago * 1e9) + len(made)
        for number in range(count):
            locks.append(semlock.Lock(path, fair=True))
            native = locks[-1]._native
            made.append(waits.Wait([native], native, hub=hub, asked=asked + number))
            look(made[-1])
        return made

    with Child(f"import semlock; lock = semlock.Lock({path!r}); lock.acquire(); None"):
        yield join
        for wait in made:
            wait.end()


def moment(wait, at):
    return (at + wait._place.name_hash % TICK) // TICK


def looks(them):
    """Have all look, and say at which moments they look next: how far away, and which of some."""
    time.sleep(FIRST_LOOK)
    found = []
    for wait in them:
        while True:
            now = moment(wait, capi.now_ns())
            look(wait)
            if now == moment(wait, capi.now_ns()):
                break
            wait._place.alarm_at = 1  # a moment has come meanwhile
        then = moment(wait, wait.look_at)
        found.append((then - now, then % RARELY))
    return found


def distances(them):
    return {away for away, _ in looks(them)}


def test_the_first_looks_at_moments_at_which_the_others_look_too(queue):
    first, second = queue(2, 0)
    looks([second])
    while first.cdata.pause < PAUSE:
        time.sleep(max(0, first.look_at - capi.now_ns()) / 1e9)
        look(first)
    assert (second.look_at - first.look_at) % PAUSE == 0


def test_those_near_the_head_look_at_each_moment(queue):
    assert distances(queue(2 + NEAR, OLD)[1 : 1 + NEAR]) == {1}


def test_with_many_behind_them_those_near_the_head_look_as_rarely_as_the_others(queue):
    """Many others look at each of the moments between."""
    found = [which for _, which in looks(queue(1 + NEAR + MANY, OLD)[1:])]
    few = (NEAR + MANY) // RARELY
    assert {found.count(which) for which in range(RARELY)} == {few, few + 1}


def test_one_behind_whom_many_have_left_looks_often_again(queue):
    (
        near,
        *_,
    ) = them = queue(1 + NEAR + MANY, OLD)[1:]
    assert len({which for _, which in looks(them[:NEAR])}) == NEAR
    for wait in them[NEAR:]:
        wait.end()
    # It has counted them some time ago, and its next moment has come.
    near._place.counted = near._place.alarm_at = 1
    assert distances([near]) == {1}


def test_of_fifteen_in_a_row_that_have_waited_for_long_one_looks_at_each_moment(queue):
    """However many before them are stopped."""
    found = looks(queue(1 + NEAR + RARELY, OLD)[1 + NEAR :])
    assert {which for _, which in found} == set(range(RARELY))


def test_those_who_have_just_come_look_at_each_moment(queue):
    assert distances(queue(20, NEW)[1:]) == {1}
