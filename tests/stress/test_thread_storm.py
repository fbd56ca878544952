"""Threads of one process exclude each other, whether they share a lock object or have one each.

Where there is no global interpreter lock, nothing but the lock keeps them apart.
"""

import os
import random
import threading
import time

import pytest

import semlock
from support import PATIENCE

SECONDS = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "60"))
THREADS = 8


class Ring:
    """Where only one may be at a time."""

    def __init__(self) -> None:
        self.inside = 0
        self.rounds = 0

    def enter(self):
        assert self.inside == 0
        self.inside += 1
        rounds = self.rounds
        time.sleep(0)  # now the others would do harm
        self.rounds = rounds + 1
        self.inside -= 1
        assert self.inside == 0


def storm(seconds, rings, take):
    """Let threads go through the rings, and see that each was in them as often as they say."""
    end = time.monotonic() + seconds
    done = [0] * THREADS
    errors = []

    def go(number):
        try:
            while done[number] == 0 or time.monotonic() < end:
                which = random.randrange(len(rings))
                with take(number, which):
                    rings[which].enter()
                done[number] += 1
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=go, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + PATIENCE)
        assert not thread.is_alive()
    assert errors == []
    assert sum(ring.rounds for ring in rings) == sum(done)


@pytest.mark.parametrize("paths", [1, 3])
@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("shared", [False, True], ids=["an object each", "one object"])
@pytest.mark.parametrize(
    "seconds", [0.2, pytest.param(SECONDS / 8, marks=pytest.mark.stress)], ids=["short", "long"]
)
@pytest.mark.timeout(SECONDS + 2 * PATIENCE + 60)
def test_one_is_inside_at_a_time(tmp_path, names, paths, fair, shared, seconds):
    def lock(which):
        return semlock.Lock(tmp_path / f"{which}.lock", fair=fair, durability="none")

    rings = [Ring() for _ in range(paths)]
    locks = [[lock(which) for which in range(paths)] for _ in range(1 if shared else THREADS)]
    storm(seconds, rings, lambda number, which: locks[0 if shared else number][which])
    semlock.clean(tmp_path)
    assert names() == []
