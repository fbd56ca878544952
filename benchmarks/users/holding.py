"""A process that holds many locks, and releases and acquires one of them when it is told to."""

from __future__ import annotations

import os
import resource
import signal
from time import monotonic_ns

import semlock

_SPARE = 64  # descriptors beside those of the locks


def make(paths: list[str]) -> list[semlock.Lock]:
    """Make locks that sync nothing."""
    return [semlock.Lock(path, durability="none") for path in paths]


def room(count: int) -> bool:
    """Raise the limit of descriptors for so many locks; ``False`` if that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + _SPARE <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + _SPARE, hard))
    return count + _SPARE <= hard


class Holder:
    """The process."""

    def __init__(self, paths: list[str]) -> None:
        self._orders, orders = os.pipe()[::-1]
        answers, self._answers = os.pipe()
        os.set_inheritable(orders, False)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._orders)
                _hold(paths, orders, self._answers)
            finally:
                os._exit(1)
        os.close(orders)
        os.close(self._answers)
        self._answers = answers
        self._answer()

    def release(self, index: int) -> int:
        """Have it release a lock: when it began to."""
        return self._do(f"r{index}")

    def acquire(self, index: int) -> int:
        """Have it acquire a lock: when it had it."""
        return self._do(f"a{index}")

    def tell(self, order: str) -> None:
        """Give an order whose answer is asked for later."""
        os.write(self._orders, f"{order:16}".encode())

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._orders)
        os.close(self._answers)

    def _do(self, order: str) -> int:
        self.tell(order)
        return self._answer()

    def _answer(self) -> int:
        answer = os.read(self._answers, 20)
        if not answer:
            raise RuntimeError("the process that holds the locks has ended")
        return int(answer)

    answer = _answer


def _hold(paths: list[str], orders: int, answers: int) -> None:
    locks = make(paths)
    for lock in locks:
        lock.acquire(timeout=0)
    os.write(answers, b"%020d" % monotonic_ns())
    while order := os.read(orders, 16).decode():
        lock = locks[int(order[1:])]
        at = monotonic_ns()
        if order[0] == "r":
            lock.release()
        else:
            lock.acquire()
            at = monotonic_ns()
        os.write(answers, b"%020d" % at)
