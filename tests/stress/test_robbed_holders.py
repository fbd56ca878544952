"""Holders with heartbeats, whose locks are removed by force and written over all the time."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

import pytest

import semlock
from tests.support import content_of

SECONDS = 3.0
WORKERS = 4

WORKER = """
import random, sys, time
import semlock
from semlock import feature, sema, semats, sidecar, task
make, seconds = sys.argv[1], float(sys.argv[2])
end = time.monotonic() + seconds
done = 0
while time.monotonic() < end:
    lock = eval(make)
    try:
        held = lock.acquire(timeout=0.2)
    except semlock.LockTimeoutError:
        continue
    try:
        with held:
            for _ in range(random.randrange(5)):
                time.sleep(random.random() * 0.004)
                random.choice([lock.check, lock.refresh])()
        done += 1
    except semlock.LockLostError:
        pass
print(done)
"""

TEXT = "pid=1\ntimestamp=%d\ntag=thief %d\n"
OLD = '{"owner": "thief-%d", "since": %d, "ttl": 1000}'
# How a worker makes its lock, where its file is, and what the thief writes.
KINDS = {
    "lock": ("semlock.Lock('x.lock', heartbeat=0.003)", "x.lock", lambda now, n: TEXT % (now, n)),
    "sema": ("sema.Semaphore('x.lock', heartbeat=0.003)", "x.lock", lambda now, n: TEXT % (now, n)),
    "semats": (
        "semats.Semaphore('x.lock', heartbeat=0.003)", "x.lock", lambda now, n: TEXT % (now, n),
    ),
    "feature": (
        "feature.FeatureLock('f', '.', heartbeat=0.003)", "specs/f/.lock",
        lambda now, n: f"{n + 1}:{now:.7f}",
    ),
    "sidecar": (
        "sidecar.SidecarLock('x', heartbeat=0.003, stale=None)", "x.lock",
        lambda now, n: json.dumps({"pid": n + 1, "createdAt": "2030-01-01T00:00:00.000Z"}),
    ),
    "task": (
        "task.TaskLock('x.lock', 'me', ttl=1000, audit=False)", "x.lock",
        lambda now, n: OLD % (n, now * 1000),
    ),
}  # fmt: skip


def rob(path, write):
    """Rob until the time is over: how many records were written over, and how many of them gone."""
    end, stolen, overwritten, number = time.monotonic() + SECONDS, 0, 0, 0
    while time.monotonic() < end:
        time.sleep(random.random() * 0.01)
        number += 1
        if random.random() < 0.3:
            semlock.remove(path, force=True)
            continue
        theirs = write(time.time(), number).encode()
        try:
            handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
        except FileNotFoundError:
            continue
        os.write(handle, theirs)
        os.close(handle)
        if not os.path.exists(path) or content_of(path) != theirs:
            continue  # it was just released
        stolen += 1
        time.sleep(0.008)
        overwritten += not os.path.exists(path) or content_of(path) != theirs
        semlock.remove(path, force=True)
    return stolen, overwritten


@pytest.mark.stress
@pytest.mark.skipif(sys.platform == "win32", reason="an open file can't be written over there")
@pytest.mark.parametrize("kind", KINDS)
def test_find_out_and_leave_the_thiefs_record(kind, tmp_path, monkeypatch):
    """In a first form three of four holders ended with an error of another thread's import."""
    monkeypatch.chdir(tmp_path)
    make, path, write = KINDS[kind]
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, make, str(SECONDS)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(WORKERS)
    ]  # fmt: skip
    stolen, overwritten = rob(path, write)
    for worker in workers:
        out, error = worker.communicate(timeout=60)
        assert worker.returncode == 0, error[-2000:]
        assert int(out) > 0
    assert stolen > 0
    # Only a write that falls between a refresh's look and its own write is lost.
    assert overwritten <= max(2, stolen // 50)
