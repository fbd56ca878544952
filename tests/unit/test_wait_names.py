"""The next waiter keeps the name of the lock file, so that its removal is not interrupted."""

import os
import sys

import pytest

from support import Child, state_of, wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux alone needs it"
)


def names_open(pid: int, path: str) -> list[str]:
    """Give the descriptors of a process by which it has the name of a path, and nothing else."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            to = os.readlink(f"/proc/{pid}/fd/{fd}")
            with open(f"/proc/{pid}/fdinfo/{fd}") as file:
                flags = int(file.read().split("flags:")[1].split()[0], 8)
        except OSError:
            continue
        if to.removesuffix(" (deleted)") == path and flags & os.O_PATH:
            found.append(fd)
    return found


@pytest.mark.parametrize("fair", [False, True], ids=["plain", "fair"])
def test_it_has_the_name_while_it_sleeps_and_no_more_after_the_release(path, fair):
    with Child() as first, Child() as second:
        for child in (first, second):
            child.run(f"lock = semlock.Lock({path!r}, fair={fair}); None")
        first.run("lock.acquire(); None")
        second.send("lock.acquire(); None")
        wait_until(lambda: len(names_open(second.pid, path)) == 1, "it has the name")
        first.run("lock.release()")
        second.receive()
        second.run("lock.release()")
        assert names_open(second.pid, path) == []


def sleeps_of(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return int(file.read().split("\nvoluntary_ctxt_switches:")[1].split()[0])


def test_a_reader_tries_at_an_event_and_sleeps_on_if_the_writer_is_still_there(path):
    with Child() as first, Child() as second:
        for child in (first, second):
            child.run(f"lock = semlock.SharedLock({path!r}); None")
        first.run("lock.acquire(); None")
        second.send("lock.acquire_shared(); None")
        wait_until(lambda: names_open(second.pid, path), "it has the name")
        for mode in (0o640, 0o600):
            wait_until(lambda: state_of(second.pid) == "S", "it sleeps")
            before = sleeps_of(second.pid)
            os.chmod(path, mode)
            wait_until(lambda before=before: sleeps_of(second.pid) > before, "it sleeps again")
        assert not second.answered(0)
        first.run("lock.release()")
        second.receive()
        second.run("lock.release()")


def test_a_wait_that_ends_without_the_lock_has_no_name(path):
    with Child() as first, Child() as second:
        first.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        second.send(
            f"lock = semlock.Lock({path!r})\n"
            "try: lock.acquire(timeout=0.05)\n"
            "except semlock.LockTimeoutError: print('over')"
        )
        wait_until(lambda: names_open(second.pid, path), "it has the name")
        second.receive()
        assert names_open(second.pid, path) == []
        assert names_open(first.pid, path) == []


def sleeps_after_the_wake(
    path: str, first: Child, second: Child, rounds: int, ours: bool
) -> int:
    """Count how often a waiter sleeps between its wake and its win, where both have one core."""
    count = 0
    for _ in range(rounds):
        first.run("lock.acquire(); None")
        second.send("lock.acquire(); slept()")
        wait_until(lambda: names_open(second.pid, path), "it is about to sleep")
        wait_until(lambda: state_of(second.pid) == "S", "it sleeps")
        name = os.open(path, os.O_PATH) if ours else -1
        before = sleeps_of(second.pid)
        first.run("lock.release()")
        count += second.receive() != before
        second.run("lock.release()")
        if ours:
            os.close(name)
    return count


def test_the_wake_by_a_removal_is_followed_by_no_second_sleep(path):
    """A kernel that is preemptive may have it all the same, also where another has the name."""
    core = min(os.sched_getaffinity(0))
    setup = (
        f"import os, resource, semlock\n"
        f"os.sched_setaffinity(0, [{core}])\n"
        f"lock = semlock.Lock({path!r})\n"
        "def slept(): return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw"
    )
    with Child(setup) as first, Child(setup) as second:
        usual = sleeps_after_the_wake(path, first, second, 12, ours=True)
        assert sleeps_after_the_wake(path, first, second, 12, ours=False) <= usual + 3


def test_it_has_the_new_name_of_a_file_that_has_come_back(path):
    """A kept claim is the same file each time, but not the same name."""
    with Child() as first, Child() as second:
        for child in (first, second):
            child.run(f"lock = semlock.Lock({path!r}); None")
        first.run("for _ in range(3): lock.acquire(); lock.release()")
        first.run("lock.acquire(); None")
        file = os.stat(path).st_ino
        second.send("lock.acquire(); None")
        wait_until(lambda: names_open(second.pid, path), "it has the name")
        second.stop()
        first.run("lock.release(); lock.acquire(timeout=0); None")
        second.resume()
        assert os.stat(path).st_ino == file

        def has_new_name() -> bool:
            try:
                names = names_open(second.pid, path)
                return [os.readlink(f"/proc/{second.pid}/fd/{fd}") for fd in names] == [path]
            except FileNotFoundError:
                return False  # the old name was closed between the two looks

        wait_until(has_new_name, "it has the new name")
        first.run("lock.release()")
        second.receive()
        second.run("lock.release()")
