"""What waiting costs: with few event sources or none, for long, and in crowds."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
import users
from crowd import (
    FORK,
    crowd_that_waits,
    in_time,
    owner_of,
    signal_all,
    standing,
    threads_that_wait,
    tickets,
    timed,
    waiters,
)
from semlock._core import capi, waits
from support import Child, wait_until

pytestmark = [
    pytest.mark.one_at_a_time("time"),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="event sources are limited on Linux only"
    ),
    # Those who are killed leave their tickets to the next one who waits, or cleans.
    pytest.mark.leaves("queue"),
]


# Processes that wait so long for locks that are held, all at once, and say what that cost each.
WAITS = """
import ctypes, json, os, resource, time, semlock
def cost(lock, seconds):
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    try:
        lock.acquire(timeout=seconds)
    except semlock.LockTimeoutError:
        pass
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used / (time.monotonic() - begin), after.ru_nvcsw - before.ru_nvcsw

def costs(waits, seconds):
    answers = []
    for path, fair in waits:
        answer, said = os.pipe()
        if os.fork() == 0:
            try:
                got = cost(semlock.Lock(path, fair=fair), seconds)
                os.write(said, json.dumps(got).encode())
            finally:
                os._exit(0)
        os.close(said)
        answers.append(answer)
    return [json.load(open(answer)) for answer in answers]
"""

# No inotify instance is left to this user; what the process has is kept.
USED_UP = """
import ctypes
libc = ctypes.CDLL(None)
hoard = []
while (fd := libc.inotify_init1(0o2000000)) >= 0:
    hoard.append(fd)
"""


@pytest.fixture
def without_inotify():
    """A user who may have no more inotify instances."""
    if os.getuid() != 0:
        pytest.skip("it needs root")
    with Child(WAITS) as hoarder:
        hoarder.run(users.as_user(users.of_its_own()))
        hoarder.run("import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]")
        hoarder.run("resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))")
        hoarder.run(USED_UP)
        yield hoarder


# ---------------------------------------------------------------- what one wait costs

# A pause is at most 50 ms and a look takes some 30 us; the first looks come sooner.  Those
# behind look five times a second.
LOOKS = {0: 200, 1: 24}  # in 2.5 seconds


# Where a wait stands in the queue, and whether it asked for its turn.
STANDS = [(0, True), (0, False), (1, True), (1, False)]


def costs_of_waits(waiter, directory, seconds):
    """Give the costs of a wait, and its looks, for each of ``STANDS``."""
    with contextlib.ExitStack() as stack:
        waits = []
        for place, fair in STANDS:
            path = os.path.join(directory, f"{place}-{fair}", "the.lock")
            os.mkdir(os.path.dirname(path))
            os.chmod(os.path.dirname(path), 0o1777)
            stack.enter_context(semlock.Lock(path))
            if place:
                take = f"semlock.Lock({path!r}, fair=True).acquire()"
                stack.enter_context(crowd_that_waits(path, place, take))
            waits.append((path, fair))
        costs = waiter.run(f"costs({waits!r}, {seconds})")
    return dict(zip(STANDS, costs, strict=True))


def test_a_wait_without_events_looks_a_few_times_a_second_however_long_it_lasts(
    without_inotify, common
):
    for (place, _), (used, looks) in costs_of_waits(without_inotify, common, 2.5).items():
        assert looks < LOOKS[place]
        assert used < 0.01


def sleeps_of(pids):
    """Count how often some waiters go to sleep within 1.5 seconds."""
    time.sleep(0.5)  # until all that comes at the beginning is over
    seen = subprocess.run(
        ["timeout", "1.5", "strace", "-e", "trace=ppoll", *(f"-p{pid}" for pid in pids)],
        capture_output=True, text=True, check=False,
    ).stderr.splitlines()  # fmt: skip
    return [sum(f"[pid {pid:>5}] ppoll(" in line for line in seen) for pid in pids]


def test_a_wait_on_fuse_costs_little_too(bound):
    with Child(WAITS) as waiter:
        for used, looks in costs_of_waits(waiter, os.path.dirname(bound), 2.5).values():
            assert looks < LOOKS[0]  # each call through FUSE counts too
            assert used < 0.01


@pytest.mark.skipif(shutil.which("strace") is None, reason="it needs strace")
@pytest.mark.leaves("tmp")  # of one that is killed while it tries
def test_those_behind_on_fuse_hear_of_changes_and_look_once_a_second(bound):
    """Without events they look five times a second."""
    take = f"semlock.Lock({bound!r}, fair=True).acquire()"
    with semlock.Lock(bound), crowd_that_waits(bound, 2, take) as parent:
        for _ in range(5):  # on a busy machine the beginning takes longer
            sleeps = sleeps_of(parent.run("pids"))
            if 0 < min(sleeps) <= 6:  # the other one is the first, which looks by pauses
                return
    raise AssertionError(f"they look too often, or never: {sleeps}")


def test_the_first_on_fuse_looks_five_times_a_second_once_it_has_waited_for_long(bound):
    with Child(f"import semlock; lock = semlock.Lock({bound!r}); lock.acquire(); None"):
        lock = semlock.Lock(bound, fair=True)
        asked = capi.now_ns() - 4_000_000_000
        first = waits.Wait([lock._native], lock._native, asked=asked)
        looks = []
        while len(looks) < 2:
            if first.wait(capi.now_ns()) == capi.LOOK:
                first.judged(0, capi.look(first.path))
                continue
            if first.cdata.pause == 100_000_000:
                looks.append(first.cdata.pause_at)
            time.sleep(max(0, first.look_at - capi.now_ns()) / 1e9)
        first.end()
    assert (looks[1] - looks[0]) % 200_000_000 == 0


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.stress)])
def test_a_free_lock_on_fuse_is_had_soon_behind_many_that_are_stopped(bound, count):
    def once():
        take = f"semlock.Lock({bound!r}, fair=True).acquire()"
        with Child() as waiter, contextlib.ExitStack() as stack:
            with semlock.Lock(bound):
                parent = stack.enter_context(crowd_that_waits(bound, count, take))
                waiter.send(
                    f"lock = semlock.Lock({bound!r}, fair=True); lock.acquire(); "
                    "import time; at = time.monotonic(); lock.release(); at"
                )
                wait_until(lambda: len(standing(bound)) == count + 1, "the last one waits too")
                time.sleep(0.3)  # until all that comes at the beginning is over
                signal_all(parent, "SIGSTOP")
                begin = time.monotonic()
            return waiter.receive() - begin

    in_time(once)


@pytest.mark.skipif(shutil.which("strace") is None, reason="it needs strace")
def test_a_wait_with_events_hardly_ever_looks(path):
    # After the first tenths of a second there is one look each 1 to 2 seconds.
    with semlock.Lock(path), contextlib.ExitStack() as stack:
        pids = []
        for count, fair in ((2, True), (4, False)):
            take = f"semlock.Lock({path!r}, fair={fair}).acquire()"
            code = f"pids = crowd(2, lambda: {take})"
            parent = stack.enter_context(Child(FORK))
            parent.run(code)
            wait_until(lambda count=count: len(standing(path)) == count, "they wait")
            pids += parent.run("pids")
            stack.callback(signal_all, parent, "SIGKILL")
        assert max(sleeps_of(pids)) <= 4


# ---------------------------------------------------------------- without events

NEAR = 8  # so many may be before one that looks five times a second, however long it has waited


@pytest.fixture
def long_crowd(without_inotify, shared_path):
    """Waiters without events whose looks have become rare, with what holds the lock."""
    count = NEAR + 6
    parent = without_inotify
    with semlock.Lock(shared_path) as held:
        parent.run(FORK)
        take = f"semlock.Lock({shared_path!r}, fair=True).acquire()"
        parent.run(f"pids = crowd({count}, lambda: {take})")
        wait_until(lambda: len(standing(shared_path)) == count, "all wait")
        order = [owner_of(ticket) for ticket in tickets(shared_path)]
        time.sleep(3.5)
        yield held, parent, order
    signal_all(parent, "SIGKILL")


@pytest.mark.stress
def test_most_of_a_crowd_without_events_hardly_ever_look(long_crowd):
    _, _, order = long_crowd
    before = [switches(pid) for pid in order]
    time.sleep(4)
    looks = [switches(pid) - then for pid, then in zip(order, before, strict=True)]
    assert min(looks[1 : 1 + NEAR]) >= 15, looks
    assert max(looks[1 + NEAR :]) <= 3, looks
    assert min(looks[1 + NEAR :]) >= 1, looks


@pytest.mark.stress
def test_one_that_waits_long_without_events_behind_many_that_are_stopped_has_it_in_time(
    long_crowd,
):
    held, _, (*before, last) = long_crowd
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    held.release()
    took = timed(
        lambda: wait_until(
            lambda: (
                not os.path.exists(f"/proc/{last}/stat")
                or Path(f"/proc/{last}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            ),
            "it had the lock",
        )
    )
    assert took < 3.5
    held.acquire()


def switches(pid):
    """Count how often a process has gone to sleep."""
    said = Path(f"/proc/{pid}/status").read_text()
    return int(said.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_one_without_events_behind_very_many_looks_rarely_from_the_beginning(
    without_inotify, shared_path
):
    """All of a crowd that looked five times a second would take a good part of a processor."""
    other = users.as_user(users.of_its_own())  # each thread has an event source
    with semlock.Lock(shared_path), threads_that_wait(shared_path, 150, before=other):
        without_inotify.send(f"semlock.Lock({shared_path!r}, fair=True).acquire()")
        wait_until(lambda: len(standing(shared_path)) == 151, "the last one waits too")
        time.sleep(0.2)  # until all that comes at the beginning is over
        pid = without_inotify.process.pid
        before = switches(pid)
        time.sleep(0.9)
        assert switches(pid) - before <= 2
        without_inotify.process.kill()


def test_one_that_becomes_the_first_looks_as_often_as_the_first_does(path):
    """Behind others it looks the less often the more they are, as these look too."""
    with Child(WAITS) as waiter, semlock.Lock(path):
        with threads_that_wait(path, 19) as before:
            waiter.run("from semlock._core import capi; capi.set_safety(0.1)")
            waiter.send(f"semlock.Lock({path!r}, fair=True).acquire()")
            wait_until(lambda: len(standing(path)) == 20, "the last one waits too")
            time.sleep(0.3)  # its next look is 1.3 seconds away at least
            before.process.kill()
        wait_until(lambda: len(tickets(path)) == 1, "it is the first")
        time.sleep(0.1)  # until all that comes with that is over
        pid = waiter.process.pid
        looks = switches(pid)
        time.sleep(0.5)
        assert switches(pid) - looks >= 2
        waiter.process.kill()


TAKES = "lock.acquire(); at = time.monotonic(); lock.release(); at"


def test_a_waiter_that_has_no_events_stands_in_the_queue_and_holders_make_way(
    without_inotify, shared_path
):
    path = shared_path
    with semlock.Lock(path):
        without_inotify.send(f"lock = semlock.Lock({path!r}); {TAKES}")
        wait_until(lambda: len(standing(path)) == 1, "it waits in the queue")
        assert semlock._core.capi.must_make_way(semlock.Lock(path, fair=True)._native) != 0
    without_inotify.receive()


def test_on_fuse_the_queue_keeps_its_order(bound, tmp_path):
    record = tmp_path / "order"
    children = [Child(WAITS) for _ in range(4)]
    try:
        with semlock.Lock(bound):
            for number, child in enumerate(children):
                child.send(
                    f"with semlock.Lock({bound!r}, fair=True):\n"
                    f"    open({str(record)!r}, 'a').write('{number}')"
                )
                wait_until(lambda n=number: len(standing(bound)) == n + 1, "it waits")
        for child in children:
            child.receive()
    finally:
        for child in children:
            child.close()
    assert record.read_text() == "0123"


@pytest.mark.parametrize("count", [0, 1], ids=["first", "second"])
def test_who_waited_on_fuse_keeps_no_ticket_open_after_the_release(bound, count):
    """FUSE knows nothing of a FIFO without a name: those behind wake by its descriptor."""
    names = "[os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')[:-1]]"
    with Child(WAITS) as waiter, Child(WAITS) as behind:
        with semlock.Lock(bound):
            for child in (waiter, behind)[: 1 + count]:
                child.send(f"lock = semlock.Lock({bound!r}, fair=True); {TAKES}")
                wait_until(lambda: tickets(bound) != [], "it waits")
        let_go = waiter.receive()
        assert not any(".queue/" in name for name in waiter.run(names))
        if count:
            # Woken by the end of the ticket, not by the look after 0.2 s.
            assert behind.receive() - let_go < 0.15


def test_one_that_was_late_itself_has_a_free_lock_in_time_behind_one_that_is_stopped(path):
    """It gives those before it some more time, as the machine may be slow, but not for long."""

    def once():
        with contextlib.ExitStack() as stack:
            with semlock.Lock(path):
                stopped, late = waiters(stack, path, None, None)
                stopped.stop()
            begin = time.monotonic()
            time.sleep(0.05)
            late.stop()  # over its first look, 0.12 seconds after the release
            time.sleep(0.13)
            late.resume()
            late.receive()
            took = time.monotonic() - begin
            late.run("lock.release()")
            stopped.resume()
            stopped.receive()
            return took

    in_time(once)


# ---------------------------------------------------------------- crowds

CROWD = """
import os, resource, time, semlock
path, count, record = {path!r}, {count}, {record!r}
pids = []
for number in range(count):
    pid = os.fork()
    if pid == 0:
        try:
            with {take}:
                fd = os.open(record, os.O_WRONLY | os.O_APPEND)
                os.write(fd, b"%d %d\\n" % (number, time.monotonic_ns()))
        finally:
            os._exit(0)
    pids.append(pid)
    if {ordered}:
        end = time.monotonic() + 5
        while len(stand()) <= number and time.monotonic() < end:
            time.sleep(0.0005)
"""

KINDS = {
    "plain": "semlock.Lock(path, durability='none')",
    "fair": "semlock.Lock(path, fair=True, durability='none')",
    "slots": "semlock.SlotLock(path, 1, fair=True, durability='none')",
    "readers": "semlock.SharedLock(path, fair=True, durability='none').shared()",
}
# So much of a processor is enough for one that is forked, waits, has the lock and ends.
CPU = 0.05
# And so many seconds, whatever else a machine has to do; each call through FUSE has to wait for
# the server to get a processor.
EACH, EACH_ON_FUSE = 0.05, 0.5


@contextlib.contextmanager
def ends_with_all_its_children(parent):
    """Leave no crowd behind where a test fails: it would slow down all tests after it."""
    parent.run("import os; os.setpgid(0, 0)")
    try:
        yield
    except BaseException:
        os.killpg(parent.process.pid, signal.SIGKILL)
        raise


def through_a_free_lock(path, record, count, kind, setup="", bound=EACH):
    """Have a crowd wait, let it go, and give the order in which its members had the lock."""
    record.touch()
    record.chmod(0o666)
    stand = (
        "import glob, os\n"
        "stand = lambda: glob.glob(os.path.join(os.path.dirname("
        f"{path!r}), '.semlock-*.queue', '[0-9a-f]' * 16))\n"
    )
    crowd = CROWD.format(
        path=path, count=count, ordered=kind != "plain", record=str(record), take=KINDS[kind]
    )
    held = semlock.Lock(f"{path}.1" if kind == "slots" else path)
    with Child(WAITS) as parent, ends_with_all_its_children(parent):
        with held:
            parent.run(stand + setup)
            parent.run(crowd, timeout=120)
            wait_until(lambda: len(standing(path)) == count, "all wait")
            begin = time.monotonic_ns()
        parent.run("for pid in pids: os.waitpid(pid, 0)", timeout=120)
        used = parent.run("sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])")
    lines = [line.split() for line in record.read_text().splitlines()]
    assert len(lines) == count
    each = (max(int(at) for _, at in lines) - begin) / 1e9 / count
    assert each < bound
    assert used / count < CPU
    return [int(number) for number, _ in lines]


def goes_through(path, directory, count, kind, setup="", bound=EACH):
    """See a crowd go through, and in its order where the lock is fair.

    One that isn't given a processor for a fifth of a second is taken for stopped and passed by,
    so a busy machine has more than one try at the order.
    """
    tried = []
    for attempt in range(3):
        order = through_a_free_lock(path, directory / str(attempt), count, kind, setup, bound)
        assert sorted(order) == list(range(count))
        if kind in ("plain", "readers") or order == list(range(count)):
            return
        tried.append([n for n, after in itertools.pairwise(order) if n > after])
    raise AssertionError(tried)


FEW = 30
MANY = pytest.param(300, marks=pytest.mark.stress)
VERY_MANY = pytest.param(1000, marks=[pytest.mark.stress, pytest.mark.timeout(600)])


CROWDS = [(count, kind) for count in (FEW, MANY) for kind in KINDS]
CROWDS += [(VERY_MANY, kind) for kind in ("plain", "fair")]


@pytest.mark.parametrize(
    ("count", "kind"),
    [
        pytest.param(
            getattr(count, "values", [count])[0], kind, marks=getattr(count, "marks", ())
        )
        for count, kind in CROWDS
    ],
)
def test_a_crowd_is_through_a_free_lock_in_a_time_that_grows_with_its_number(
    path, tmp_path_factory, count, kind
):
    goes_through(path, tmp_path_factory.mktemp("record"), count, kind)


@pytest.mark.parametrize("kind", ["plain", "fair"])
@pytest.mark.parametrize("count", [FEW, MANY])
def test_so_is_one_whose_user_has_no_event_sources(
    without_inotify, shared_path, common, count, kind
):
    goes_through(shared_path, Path(common), count, kind, users.as_user())


@pytest.mark.parametrize("kind", ["plain", "fair"])
@pytest.mark.parametrize("count", [FEW, pytest.param(100, marks=pytest.mark.stress)])
def test_so_is_one_on_fuse(bound, tmp_path_factory, count, kind):
    record = tmp_path_factory.mktemp("record")
    goes_through(bound, record, count, kind, bound=EACH_ON_FUSE)
