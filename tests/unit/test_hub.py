"""The hub of a loop: a task that is being woken still hears.

Between the moment in which a task is chosen to run and the one in which it runs, the loop may
hear of more: of another lock that the same task waits for.  The event is told once, so one that
doesn't take it in then will sleep on although that lock is free.
"""

# The loop of a test may stand still.
# ruff: noqa: ASYNC110

import asyncio
import sys

import pytest

from semlock import Lock
from semlock._core import capi, waits
from semlock._waiting import hub as _hub
from semlock._waiting import sleeping
from support import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no loop hears anything there")

NEVER = 10**12  # nanoseconds


async def hear_of(hub, wait, until=None):
    heard = hub.hear(wait, until)
    if isinstance(heard, int):
        return heard
    try:
        return await heard.parked
    finally:
        heard.end()


async def heard_while_it_is_woken(path, patience):
    """Free both locks that a task waits for before it runs; the first is lost to others.

    ``True`` if it hears of the second then, which needs no time.
    """
    hub = _hub.hub_here()
    held = [Lock(f"{path}.{name}", durability="none") for name in "ab"]
    for lock in held:
        lock.acquire()
    mine = [Lock(lock.path) for lock in held]
    wait = waits.Wait([lock._native for lock in mine], hub=hub)

    async def hear():
        # It lets those be who live, like any waiter.
        while (outcome := await hear_of(hub, wait)) == capi.LOOK:
            wait.judged(wait.which, capi.look(mine[wait.which]._encoded))
        return outcome

    woken = asyncio.create_task(hear())
    # What it has just begun to watch it looks at once more, for whatever reason it wakes.
    while not hub.sleepers or wait.recheck_at:
        await asyncio.sleep(0.001)
    for lock in held:
        lock.release()
        hub._read()
    # It was chosen when the first was told, and has not run yet.
    assert not woken.done()
    assert await woken == capi.FREE
    assert wait.which == 0
    held[0].acquire()
    try:
        assert await asyncio.wait_for(hear(), patience) == capi.FREE
        assert wait.which == 1
    except asyncio.TimeoutError:
        return False
    finally:
        wait.end()
        held[0].release()
    return True


def only_rechecks(monkeypatch):
    monkeypatch.setattr(capi.POOL, "safety", 10**12)


@pytest.fixture(autouse=True)
def only_news(monkeypatch):
    only_rechecks(monkeypatch)
    # No file is used again: a taker of the one lock would wake those that watch the other.
    monkeypatch.setattr(capi.POOL, "keep", 0)


def test_a_task_that_is_being_woken_still_hears(path):
    assert asyncio.run(heard_while_it_is_woken(path, PATIENCE))


def test_what_is_told_meanwhile_is_lost_on_one_that_hears_no_more(path, monkeypatch):
    look = sleeping.Sleeper.look

    def look_deaf(self, **how):
        look(self, **how)
        if self.parked.done():
            self.end()

    monkeypatch.setattr(sleeping.Sleeper, "look", look_deaf)
    assert not asyncio.run(heard_while_it_is_woken(path, 0.5))
