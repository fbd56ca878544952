"""Who reads the queue: each waiter tells the next one that it is first, so that few of them do."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import semlock
from actors import preloaded
from crowd import crowd_that_waits, owner_of, standing, tickets, waiters
from semlock._core.folders import queue_of
from support import Child, files_open_in, state_of, wait_until

pytestmark = pytest.mark.leaves("queue")  # of those that are killed

RELAYS = 16  # so many in a row are told that they are first; then one reads the queue


@contextlib.contextmanager
def traced(pids, log):
    """Trace some processes; give what says which calls one has made since."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("it needs strace")
    command = [strace, "-ff", "-o", str(log), *(f"-p{pid}" for pid in pids)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            for _ in pids:
                assert "attached" in tracer.stderr.readline()
            yield lambda pid: [
                line.partition("(")[0] for line in Path(f"{log}.{pid}").read_text().splitlines()
            ]
        finally:
            tracer.terminate()


def reads_the_queue(calls):
    return "getdents64" in calls


@contextlib.contextmanager
def crowd_that_went_through(path, count, log, env=None, setup="", go=""):
    """Trace a crowd from the release until the last one has ended."""
    take = f"semlock.Lock({path!r}).acquire().__exit__(None, None, None)"
    held = semlock.Lock(path)
    held.acquire()
    with crowd_that_waits(path, 1, take, setup=setup, env=env) as parent:
        for number in range(1, count):
            parent.run(f"pids += crowd(1, lambda: {take})")
            wait_until(lambda n=number: len(standing(path)) == n + 1, "it waits")
        pids = parent.run("pids")
        with traced(pids, log) as calls:
            parent.run(go)
            held.release()
            parent.run("for pid in pids: os.waitpid(pid, 0)", timeout=60)
            parent.run("pids = []")
            yield [calls(pid) for pid in pids]


# No time to speak of passes for a crowd that goes, so none is late, and passed by.
SLOW = {
    "setup": "import ctypes; core = ctypes.CDLL(None); core.fault_share_clock()",
    "go": "core.fault_slow_clock()",
}


@pytest.mark.parametrize("count", [RELAYS // 2, RELAYS + 8])
def test_each_tells_the_next_one_that_it_is_first(path, tmp_path, shim, count):
    """Else each would read the whole queue, and a crowd would cost the square of its number."""
    with crowd_that_went_through(
        path, count, tmp_path / "calls", preloaded(shim), **SLOW
    ) as calls:
        readers = [number for number, one in enumerate(calls) if reads_the_queue(one)]
    # The first one may read it, and one after sixteen does.
    assert [number for number in readers if number > 0] == [RELAYS + 1][: count // RELAYS]


def test_on_fuse_few_calls_come_between_a_wake_and_the_lock(bound, tmp_path):
    """Each of them is a request to the server."""
    with crowd_that_went_through(bound, 10, tmp_path / "calls") as calls:
        between = sorted(calls_of_a_turn(one) for one in calls)
    assert between[len(between) // 2] <= 20, between


TASKS = """
import asyncio, semlock
async def tasks(path, count):
    lock, order = semlock.AsyncLock(path, fair=True, durability="none"), []
    async def use(number):
        async with lock:
            order.append(number)
    await asyncio.gather(*map(use, range(count)))
    return order == list(range(count))
"""


def test_on_fuse_tasks_hand_a_fair_lock_over_in_few_calls(bound, tmp_path):
    """The next one takes its ticket without a look at the lock, and tells people only later."""
    count, log = 20, tmp_path / "calls"
    with Child(TASKS) as loop:
        held = semlock.Lock(bound)
        with held:
            loop.send(f"asyncio.run(tasks({bound!r}, {count}))")
            wait_until(lambda: tickets(bound) != [], "one waits")
            assert owner_of(tickets(bound)[0]) == loop.process.pid
            with traced([loop.process.pid], log):
                held.release()
                assert loop.receive()
            held.acquire()
        calls = Path(f"{log}.{loop.process.pid}").read_text().splitlines()
    assert len(calls) / count <= 75
    assert sum(".who" in call and "O_CREAT" in call for call in calls) <= 3


def calls_of_a_turn(calls):
    won = calls.index("link")
    return won - max(i for i, call in enumerate(calls[:won]) if call == "ppoll")


def reads_the_queue_at_a_release(holder, next_one, log):
    with traced([next_one.outer_pid], log) as calls:
        holder.run("lock.release()")
        next_one.receive()
        found = reads_the_queue(calls(next_one.outer_pid))
    next_one.run("lock.release()")
    return found


def test_one_that_was_passed_by_may_come_back_so_those_after_it_read_the_queue(path, tmp_path):
    with contextlib.ExitStack() as stack:
        with semlock.Lock(path):
            (slow,) = waiters(stack, path, None, fair=False)
            slow.stop()
            (ticket,) = tickets(path)
            os.rename(ticket, f"{ticket}.late")
            first, last = waiters(stack, path, None, None, fair=False)
        first.receive()
        assert reads_the_queue_at_a_release(first, last, tmp_path / "calls")
        slow.resume()
        slow.receive()


def test_one_that_gives_up_behind_others_says_nothing(path, tmp_path):
    with contextlib.ExitStack() as stack, semlock.Lock(path):
        _, short, last = waiters(stack, path, None, 0.7, None, fair=False)
        with traced([last.outer_pid], tmp_path / "calls") as calls:
            with pytest.raises(semlock.LockTimeoutError):
                short.receive()
            wait_until(lambda: reads_the_queue(calls(last.outer_pid)), "it reads the queue")


def test_the_one_behind_reads_the_queue_of_a_fair_lock(path, tmp_path):
    """A waiter may have asked before it, and joined after it."""
    with contextlib.ExitStack() as stack:
        with semlock.Lock(path):
            first, last = waiters(stack, path, None, None)
        first.receive()
        assert reads_the_queue_at_a_release(first, last, tmp_path / "calls")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere no ticket tells")
def test_a_reader_of_a_fair_lock_reads_the_queue_whatever_the_ticket_before_it_tells(path):
    """One that asked earlier may have joined late, unknown to the ticket between the two."""
    directory, queue = os.path.dirname(path), queue_of(path)
    earlier, later = (os.path.join(queue, f"{number:016x}") for number in (1, 2))
    with Child() as writer, Child() as reader:
        for child in (writer, reader):
            child.run(f"lock = semlock.SharedLock({path!r}, fair=True); None")
        writer.run("lock.acquire(); None")

        def join(ticket: str) -> int:
            os.mkfifo(ticket)
            return os.open(ticket, os.O_RDWR)

        def waits_for(*files: str) -> bool:
            found = [line.split()[-1] for line in files_open_in(directory, reader.pid)]
            return state_of(reader.pid) == "S" and bool({*files} & {*found})

        os.mkdir(queue)
        first = join(later)
        reader.send("lock.acquire_shared(); None")
        wait_until(lambda: waits_for(later), "it waits for the ticket before its own")
        late = join(earlier)
        os.unlink(later)
        os.write(first, b"\1")  # "I was the first"
        os.close(first)
        wait_until(lambda: waits_for(earlier, path), "it waits for another, or for the writer")
        assert waits_for(earlier)
        os.unlink(earlier)
        os.close(late)
        writer.run("lock.release()")
        reader.receive()
        reader.run("lock.release()")
