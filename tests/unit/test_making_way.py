"""A process that makes way for others gives up its processor first, and only then.

A waiter that the release has woken may have been put on the releaser's processor, where it would
have to wait until that one has looked, taken a ticket and fallen asleep.
"""

import errno
import glob
import os
import shutil
import sys
import tempfile

import pytest

import semlock
from semlock._core import capi
from semlock._stores import file
from support import PATIENCE, Child, state_of, wait_until

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="no signal stops a process here"
)

FAST = {"durability": "none"}


@pytest.fixture
def steps(monkeypatch):
    """What is done on the way into a wait, in order."""
    found = []
    give_way, take = capi.give_way, file.take

    def gives_way():
        found.append("gives way")
        give_way()

    def waits(*arguments):
        found.append("waits")
        return take(*arguments)

    monkeypatch.setattr(capi, "give_way", gives_way)
    monkeypatch.setattr(file, "take", waits)
    return found


@pytest.fixture
def stopped(path):
    """One that stands in the queue of a free lock, and does nothing else."""
    with Child() as child:
        with semlock.Lock(path, **FAST):
            child.send(f"semlock.Lock({path!r}, fair=True).acquire()")
            wait_until(lambda: stands(path), "it stands in the queue")
            child.stop()
        yield child


def stands(path):
    """Whether another has a ticket that counts."""
    name = "[0-9a-f]" * 16
    tickets = glob.glob(os.path.join(os.path.dirname(path), ".semlock-*.queue", name))
    return any(
        capi.ticket_state(os.fsencode(ticket)) == capi.TICKET_WAITS for ticket in tickets
    )


# For all locks: this process has had them again and again, or has not had them at all.
BURST = """
for state in semlock._core.capi.POOL.bursts:
    state.began, state.released = 0, 2**62 if {over} else 0
"""


def burst(*, over):
    exec(BURST.format(over=over), {"semlock": semlock})


@pytest.mark.leaves("queue")  # one that is killed after it was passed by leaves its ticket
@pytest.mark.parametrize(("fair", "over"), [(True, False), (False, True)])
def test_who_makes_way_gives_up_its_processor_once_before_it_waits(
    path, stopped, steps, fair, over
):
    lock = semlock.Lock(path, fair=fair, **FAST)
    burst(over=over)
    # One that is stopped is passed by in the end.
    lock.acquire(timeout=PATIENCE)
    assert steps == ["gives way", "waits"]
    lock.release()


@pytest.mark.leaves("queue")
@pytest.mark.parametrize("take", ["try_acquire", "acquire"])
def test_who_would_not_wait_gives_up_nothing(path, stopped, steps, take):
    """It sees that the one before it does not take the lock, and has it."""
    lock = semlock.Lock(path, fair=True, **FAST)
    if take == "try_acquire":
        assert lock.try_acquire()
    else:
        lock.acquire(timeout=0)
    lock.release()
    assert steps == []


@pytest.mark.leaves("queue")
def test_whose_turn_it_is_gives_up_nothing_though_others_wait(path, stopped, steps):
    """It comes anew, so it has kept none out."""
    burst(over=False)
    with semlock.Lock(path, **FAST):
        assert steps == []


def test_who_waits_for_a_holder_gives_up_nothing(path, steps):
    with Child() as holder:
        holder.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        burst(over=True)
        with pytest.raises(semlock.LockTimeoutError):
            semlock.Lock(path, **FAST).acquire(timeout=0.001)
        assert steps == ["waits"]


@pytest.mark.parametrize("fair", [False, True])
def test_where_no_process_waits_none_makes_way(path, steps, fair):
    burst(over=True)
    with semlock.Lock(path, fair=fair, **FAST):
        pass
    assert steps == []


# ---------------------------------------------------------------------- what it is for

# Of two on one processor with the same real-time priority one runs until it sleeps or gives
# it up, and then the other one does: there is no chance in it, and no other load.
ONE_PROCESSOR = """
import os, semlock
os.sched_setaffinity(0, {{{processor}}})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
lock = semlock.Lock({path!r}, fair={fair}, durability="none")
"""

# What the one that makes way finds at the path when it begins to wait.
MAKES_WAY = (
    """
if {without}:
    semlock.Lock._give_way = lambda lock: None
found, take = [], semlock._stores.file.take

def look_and_wait(*arguments):
    with open(lock.path if os.path.exists(lock.path) else os.devnull) as file:
        found.append(file.read())
    return take(*arguments)

semlock._stores.file.take = look_and_wait
lock.release()
"""
    + BURST
    + """
lock.acquire(timeout={patience})
lock.release()
found
"""
)


@pytest.fixture
def in_memory():
    """A directory where no write waits for a disk, which would be a sleep."""
    if not os.path.isdir("/dev/shm") or not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no directory in memory here")
    made = tempfile.mkdtemp(dir="/dev/shm")
    yield made
    shutil.rmtree(made)


@pytest.mark.skipif(
    not hasattr(os, "sched_setscheduler"), reason="no process can be pinned here"
)
@pytest.mark.parametrize("without", [False, True], ids=["with it", "without it"])
def test_the_woken_waiter_has_the_lock_before_the_one_that_makes_way_waits(in_memory, without):
    path = os.path.join(in_memory, "the.lock")
    options = {"path": path, "processor": max(os.sched_getaffinity(0))}
    with Child() as woken, Child() as makes_way:
        try:
            woken.run(ONE_PROCESSOR.format(fair=True, **options))
            makes_way.run(ONE_PROCESSOR.format(fair=False, **options))
        except OSError as error:
            # Not everybody may have them, and musl's C library can't ask for them.
            if error.errno not in (errno.EPERM, errno.ENOSYS):
                raise
            pytest.skip("real-time priorities are not to be had here")
        makes_way.run("lock.acquire(); None")
        woken.send("lock.acquire(); None")
        wait_until(lambda: stands(path), "it stands in the queue")
        wait_until(lambda: state_of(woken.pid) == "S", "it sleeps")
        code = MAKES_WAY.format(without=without, over=True, patience=PATIENCE)
        makes_way.send(code)
        woken.receive()
        woken.run("lock.release()")
        (found,) = makes_way.receive()
    assert (f"pid={woken.pid}\n" in found) is not without
