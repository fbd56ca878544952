"""The measuring process's side of the workers: start them, ask them, end them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self

_CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PATIENCE = 20.0


class WorkerError(RuntimeError):
    """A worker that failed, or that does not come back from a wait."""


class Member:
    """One worker."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self.pid: int = self.answer()
        # So that a signal reaches this process and none that has got its number since.
        self._process = os.pidfd_open(self.pid)

    def tell(self, order: str, *arguments: Any) -> None:
        """Give an order; ``answer()`` has what comes of it."""
        self._channel.send((order, arguments))

    def answer(self, patience: float = _PATIENCE) -> Any:
        """Wait for what came of an order."""
        if not self._channel.poll(patience):
            raise WorkerError(f"no answer for {patience:g} s")
        try:
            outcome, found = self._channel.recv()
        except (EOFError, ConnectionError) as error:
            raise WorkerError("a worker has ended") from error
        if outcome != "done":
            raise WorkerError(str(found).strip().splitlines()[-1])
        return found

    def ask(self, order: str, *arguments: Any, patience: float = _PATIENCE) -> Any:
        """Give an order and wait for what comes of it."""
        self.tell(order, *arguments)
        return self.answer(patience)

    @property
    def busy(self) -> bool:
        """Whether the last order has not been answered yet."""
        return not self._channel.poll(0)

    def cpu(self) -> int:
        """Read how many nanoseconds of CPU all its threads have used."""
        # The clock of another process, as clock_getcpuclockid(3) names it.
        return time.clock_gettime_ns((~self.pid << 3) | 2)

    def kill(self) -> int:
        """End it by SIGKILL; tell when."""
        at = time.monotonic_ns()
        signal.pidfd_send_signal(self._process, signal.SIGKILL)
        return at

    def close(self) -> None:
        """Let it end; if it waits for something, it is killed."""
        if self.busy:
            with contextlib.suppress(ProcessLookupError):
                self.kill()
        os.close(self._process)
        self._channel.close()


class Nursery:
    """Where workers come from.  All of them end with it."""

    def __init__(self, wrapper: Sequence[str] = ()) -> None:
        # The checkout last: semlock is the one that this process has found, which may be
        # installed elsewhere.
        path = [*sys.path, _CHECKOUT]
        ours, theirs = socket.socketpair()
        number = theirs.fileno()
        program = (
            f"import sys; sys.path[:] = {path!r}; "
            f"from benchmarks.waiting.nursery import main; main({number})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [*wrapper, sys.executable, "-c", program],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
            )
        self._orders = ours

    def hatch(self) -> Member:
        """Start a worker."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._orders, [b"+"], [theirs.fileno()])
        return Member(Connection(ours.detach()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._orders.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Crew:
    """Workers that stay, and that are replaced when one of them doesn't come back."""

    def __init__(self, nursery: Nursery, count: int) -> None:
        self._nursery = nursery
        self._count = count
        self.members = [nursery.hatch() for _ in range(count)]

    def renew(self) -> None:
        """Replace all of them."""
        self.close()
        self.members = [self._nursery.hatch() for _ in range(self._count)]

    def close(self) -> None:
        """Let all of them go."""
        for member in self.members:
            member.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
