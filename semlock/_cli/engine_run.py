"""``semlock run`` with locks on an engine: the command ends before another client can hold."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any

from semlock._cli import BAD, UsageError, child, passing
from semlock._cli.engines import connected, reading
from semlock._cli.output import describe_refusal, print_json, say
from semlock._cli.plain import readable
from semlock._cli.table import find
from semlock._cli.waiting import Teller
from semlock._core.errors import LockTimeoutError, SemlockError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from semlock._cli import Options
    from semlock._engines.space import Space

# Which part of a lease is left when the command is told to end, and when it is killed.
_TERM = 1 / 4
_KILL = 1 / 10
_TERM_SIGNAL, _KILL_SIGNAL = 15, 9


def run(options: Options) -> int:
    """Hold the locks while the command runs, and give its exit code."""
    given = [options.shared, options.slots is not None]
    if any(given) and (all(given) or len(options.locks) > 1):
        raise UsageError("--shared and --slots are for one lock each", find("run"))
    url, names = reading(options)
    if len(set(names)) < len(names):
        raise UsageError("a lock is named twice, which would wait for itself", find("run"))
    passing.interruptible()
    # Before there are threads: it forks.  Nothing renews the lease of a killed semlock.
    command = child.Child(options.command, dies=options.on_lost != "warn")
    try:
        with connected(url) as space:
            return _hold(options, space, names, command)
    finally:
        command.end()


def _hold(options: Options, space: Space, names: list[str], command: Any) -> int:
    teller = Teller(quiet=options.quiet, as_json=options.json)
    news = threading.Event()  # of the locks or of the command
    tag = readable(options.tag if options.tag is not None else options.command[0])
    try:
        with teller:
            # A loss is told once, at the end.
            common = {"tag": tag, "on_wait": teller, "on_lost": lambda *_: news.set()}
            held, locks = _taken(options, space, names, common)
    except LockTimeoutError as error:
        if options.json and error.status is not None:
            print_json(describe_refusal(error.status), of_run=True)
        elif not options.quiet:
            say(str(error))
        return options.on_conflict_exit
    code = 0
    try:
        with held:
            warns = options.on_lost == "warn"
            guard = _Guard(locks, space.ttl, command.pid, news, warns=warns)
            try:
                code = int(command.run(guard.start))
            finally:
                guard.end()
    except SemlockError as error:
        say(str(error))
        return code or BAD
    return code


def _taken(
    options: Options, space: Space, names: list[str], common: dict[str, Any]
) -> tuple[AbstractContextManager[Any], list[Any]]:
    timeout = options.timeout
    if options.shared:
        shared = space.SharedLock(names[0], **common)
        return shared.acquire_shared(timeout), [shared.part]
    if options.slots is not None:
        slot = space.SlotLock(names[0], slots=options.slots, **common)
        return slot.acquire(timeout), [slot.part]
    locks = [space.Lock(name, **common) for name in names]
    if len(locks) == 1:
        return locks[0].acquire(timeout), locks
    return space.acquire_all(locks, timeout), locks


class _Guard:
    """Ends the command while its locks are still certainly held."""

    def __init__(
        self,
        locks: list[Any],
        ttl: float,
        pid: int | None,
        news: threading.Event,
        *,
        warns: bool,
    ) -> None:
        self._locks = locks
        self._ttl = ttl
        self._pid = pid
        self._news = news
        self._warns = warns
        self._is_over = False

    def end(self) -> None:
        """Look after it no longer."""
        self._is_over = True
        self._news.set()

    def start(self) -> None:
        """Begin to look after the command; signals are blocked, here and in the thread."""
        threading.Thread(target=self._look, name="semlock-run", daemon=True).start()

    def _look(self) -> None:
        if not self._until(_TERM):
            return
        path = self._locks[0].path
        if self._warns or self._pid is None:
            say(f"{path} may be lost soon: it is not renewed any more. The command goes on")
            return
        say(f"{path} may be lost soon: it is not renewed any more, so the command is ended")
        self._send(_TERM_SIGNAL)
        if self._until(_KILL):
            self._send(_KILL_SIGNAL)

    def _until(self, part: float) -> bool:
        """Wait until so little of a lease is left; ``False`` if the command has ended before."""
        while not self._is_over:
            left = min(lock.left() for lock in self._locks) - part * self._ttl
            if left <= 0:
                return not self._is_over
            if self._news.wait(left):  # a lock that is lost has nothing left
                self._news.clear()
        return False

    def _send(self, number: int) -> None:
        if not self._is_over and self._pid is not None and sys.platform != "win32":
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)
