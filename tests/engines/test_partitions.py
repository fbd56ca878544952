"""A client on another network: it is cut off while it holds, and comes back.

The server listens on one end of a pair of virtual network devices, and the client runs in a network
namespace with the other end.  When the device is down, no packet passes, and no process is told.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
import uuid

import pytest

import histories
import semlock
import users
from engine_urls import url_of
from histories import violations
from semlock._engines.engine import now
from servers import Etcd, PostgreSQL, Redis, running
from support import PATIENCE, wait_until

STRESS_SECONDS = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "10"))
KINDS = {"redis": Redis, "etcd": Etcd, "postgresql": PostgreSQL}

pytestmark = [
    pytest.mark.stress,  # the time of leases, and of TCP's keepalives
    pytest.mark.skipif(histories.fcntl is None, reason="the register needs flock()"),
    pytest.mark.skipif(not users.ROOT, reason="needs root, to make a network"),
]

CLIENT = """
import sys
import semlock
from semlock._engines.engine import now

def tell(*words):
    print(*words, now(), flush=True)

url, prefix, ttl = sys.argv[1:]
space = semlock.connect(url, prefix=prefix, ttl=float(ttl))
lock = space.Lock("the lock", on_lost=lambda *_: tell("lost"))
lock.acquire()
tell("holds", lock.fence)
sys.stdin.readline()
assert not lock.held
try:
    lock.release()
except semlock.LockLostError:
    tell("told")
lock.acquire(timeout=60)
tell("holds", lock.fence)
lock.release()
"""


class Network:
    """A network namespace, and the device by which it is reached."""

    def __init__(self, number: int) -> None:
        self.name, self.outer, self.inner = (
            f"sl{word}{number}" for word in ("net", "out", "in")
        )
        self.host = f"10.213.{number}.1"
        ip("netns", "add", self.name)
        ip("link", "add", self.outer, "type", "veth", "peer", "name", self.inner)
        ip("link", "set", self.inner, "netns", self.name)
        ip("addr", "add", f"{self.host}/24", "dev", self.outer)
        ip("link", "set", self.outer, "up")
        for words in (
            ("addr", "add", f"10.213.{number}.2/24", "dev", self.inner),
            ("link", "set", self.inner, "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", self.name, *words)

    @property
    def inside(self) -> list[str]:
        """Give the words that run a command in it."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Have no packet pass."""
        ip("-n", self.name, "link", "set", self.inner, "down")

    def heal(self) -> None:
        ip("-n", self.name, "link", "set", self.inner, "up")

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "del", self.outer)
        ip("netns", "del", self.name)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def network():
    """Make a network whose number no other process of the tests has."""
    for _ in range(20):
        try:
            made = Network(random.SystemRandom().randrange(1, 255))
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"") or b""
            if b"exists" not in said:
                pytest.skip(f"no network can be made here: {said.decode() or error}")
        else:
            break
    yield made
    made.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", KINDS)
def test_a_client_that_is_cut_off_is_told_before_another_has_the_lock(name, network):
    ttl = 1.5
    prefix = uuid.uuid4().hex
    with running(KINDS[name], host=network.host) as server:
        url = url_of(server)
        words = [*network.inside, sys.executable, "-c", CLIENT, url, prefix, str(ttl)]
        client = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        with client, semlock.connect(url, prefix=prefix, ttl=ttl) as space:
            said, fence, _ = client.stdout.readline().split()
            assert said == "holds"
            came = []

            def wait():
                with space.Lock("the lock").acquire(timeout=PATIENCE) as lock:
                    came.append((lock.fence, now()))

            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_until(lambda: space.waiting("the lock"), "it waits")
            time.sleep(ttl)  # its lease is renewed
            assert came == []
            network.cut()
            cut = now()
            waiter.join()
            said, lost = client.stdout.readline().split()
            assert said == "lost"
            assert cut < float(lost) < came[0][1]
            network.heal()
            print("go on", file=client.stdin, flush=True)
            assert client.stdout.readline().startswith("told")
            said, again, _ = client.stdout.readline().split()
            assert said == "holds"
            assert int(fence) < came[0][0] < int(again)
            assert client.wait(PATIENCE) == 0
            wait_until(lambda: space.list() == [], "nothing stays behind")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KINDS)
def test_a_history_with_partitions(name, network, workers, tmp_path):
    with running(KINDS[name], host=network.host) as server:
        made = workers(url_of(server), ttl=1.5, count=2)
        for _ in range(2):
            made.start(inside=network.inside)
        end = time.monotonic() + STRESS_SECONDS
        while time.monotonic() < end:
            network.cut()
            time.sleep(random.uniform(0.2, 2) * made.ttl)
            network.heal()
            time.sleep(random.uniform(0.2, 1) * made.ttl)
        held, end = made.held(), time.monotonic() + 60
        while made.held() < held + 5 and time.monotonic() < end:
            time.sleep(0.05)
        assert made.held() >= held + 5
        made.end()
        assert violations(tmp_path) == []
        made.assert_nothing_left()
