"""``semlock.connect``: a space of locks on an engine that programs on many machines share."""

from __future__ import annotations

import sys
import uuid
from importlib import import_module
from time import monotonic

from semlock._core.errors import LockEngineError, LockHeldError
from semlock._core.options import checked_pause, checked_timeout
from semlock._engines.address import Address, checked_name
from semlock._engines.client import Client, status_of
from semlock._engines.engine import Away, Refused
from semlock._engines.kinds import (
    SeveralOnEngine,
    SharedEngineLock,
    SlotEngineLock,
    distinct,
    taking_any,
)
from semlock._engines.lock import EngineLock
from semlock._locks import many
from semlock._locks.together import take_all
from semlock._waiting.steps import run_async

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from typing import Any, TypeVar

    from typing_extensions import Self, Unpack

    from semlock._core.options import EngineOptions
    from semlock._core.status import LockStatus
    from semlock._engines.async_kinds import (
        AsyncEngineLock,
        AsyncSharedEngineLock,
        AsyncSlotEngineLock,
    )
    from semlock._engines.engine import Fact
    from semlock._locks.async_form import Acquiring
    from semlock._locks.together import AllAcquired

    L = TypeVar("L", bound=EngineLock)
    A = TypeVar("A", bound=AsyncEngineLock)

USUAL_TTL = 15.0
_SHORTEST_TTL = 0.5
_LONGEST_TTL = 86400.0
_SHORTEST_TIMEOUT = 0.05


class Space:
    """Locks by name on an engine.  ``semlock.connect`` makes it; ``close`` or ``with`` ends it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @property
    def address(self) -> str:
        """The engine's address, without user and password."""
        return self.client.address.shown

    @property
    def ttl(self) -> float:
        """Seconds after which a lock passes on whose holder renews it no more."""
        return self.client.ttl

    # The kinds of locks are named as their classes are elsewhere.

    def Lock(self, name: str, **options: Unpack[EngineOptions]) -> EngineLock:  # noqa: N802
        """Make a lock of this name.

        Its options are ``tag``, ``timeout``, ``reentrant``, ``on_lost``, ``on_wait`` and
        ``cancel_check``, as those of ``semlock.Lock``.
        """
        return EngineLock(self.client, checked_name(name), **options)

    def AsyncLock(self, name: str, **options: Unpack[EngineOptions]) -> AsyncEngineLock:  # noqa: N802
        """Make a lock of this name for tasks."""
        from semlock._engines.async_kinds import AsyncEngineLock  # noqa: PLC0415 - with asyncio

        return AsyncEngineLock(self.client, checked_name(name), **options)

    def SharedLock(self, name: str, **options: Unpack[EngineOptions]) -> SharedEngineLock:  # noqa: N802
        """Make a lock of this name that many readers may share, or one writer may hold."""
        return SharedEngineLock(self.client, checked_name(name), **options)

    def SlotLock(  # noqa: N802
        self, name: str, *, slots: int, **options: Unpack[EngineOptions]
    ) -> SlotEngineLock:
        """Make a lock of this name that so many may hold at a time."""
        return SlotEngineLock(self.client, checked_name(name), slots=slots, **options)

    def AsyncSharedLock(  # noqa: N802
        self, name: str, **options: Unpack[EngineOptions]
    ) -> AsyncSharedEngineLock:
        """Make a lock of this name that many tasks may share, or one may hold."""
        from semlock._engines.async_kinds import AsyncSharedEngineLock  # noqa: PLC0415

        return AsyncSharedEngineLock(self.client, checked_name(name), **options)

    def AsyncSlotLock(  # noqa: N802
        self, name: str, *, slots: int, **options: Unpack[EngineOptions]
    ) -> AsyncSlotEngineLock:
        """Make a lock of this name that so many tasks may hold at a time."""
        from semlock._engines.async_kinds import AsyncSlotEngineLock  # noqa: PLC0415

        return AsyncSlotEngineLock(self.client, checked_name(name), slots=slots, **options)

    def acquire_any(self, locks: Iterable[L], timeout: float | None = None) -> L:
        """Take the first of some locks that gets free, and return it."""
        chosen, limit = distinct(locks, for_tasks=False), _limit(timeout)
        steps = taking_any(chosen, limit, sys._getframe(1), many.AnyWait.refuse)
        won: L = many.take_any(chosen, steps)
        return won

    def acquire_all(
        self, locks: Iterable[EngineLock], timeout: float | None = None
    ) -> AllAcquired:
        """Take all of some locks or none; a context manager that releases them."""
        several = SeveralOnEngine(distinct(locks, for_tasks=False))
        return take_all(several, timeout, sys._getframe(1))

    def acquire_any_async(
        self, locks: Iterable[A], timeout: float | None = None
    ) -> Coroutine[Any, Any, A]:
        """Take the first of some locks for tasks that gets free, and give it."""
        from semlock._locks import async_many  # noqa: PLC0415 - with asyncio

        chosen, limit = distinct(locks, for_tasks=True), _limit(timeout)
        refuse = async_many.AnyWaitOfTask.refuse
        steps = taking_any(chosen, limit, sys._getframe(1), refuse)
        return run_async(steps, chosen)

    def acquire_all_async(
        self, locks: Iterable[AsyncEngineLock], timeout: float | None = None
    ) -> Acquiring[tuple[Any, ...]]:
        """Take all of some locks for tasks or none: for ``async with``."""
        from semlock._locks import async_holding, async_many  # noqa: PLC0415 - with asyncio

        chosen = distinct(locks, for_tasks=True)
        several = SeveralOnEngine(chosen, async_holding.is_mine)
        return async_many.take_all_async(several, timeout, sys._getframe(1))

    # ------------------------------------------------------------------ looking

    def status(self, name: str) -> LockStatus:
        """Say who holds a lock; of several holders, the first."""
        return self.holders(name)[0]

    def holders(self, name: str) -> list[LockStatus]:
        """Say who all hold a lock, such as its readers; one free status if there is none."""
        checked_name(name)
        path = self.client.path_of(name)
        held = [status_of(path, e) for e in self.client.line(name) if e.holds]
        return held or [status_of(path, None)]

    def waiting(self, name: str) -> list[LockStatus]:
        """Say who waits for a lock, in order."""
        path = self.client.path_of(checked_name(name))
        return [status_of(path, e) for e in self.client.line(name) if not e.holds]

    def remove(
        self,
        name: str,
        *,
        only_if: LockStatus | str | Callable[[LockStatus], object] | None = None,
        force: bool = False,
    ) -> LockStatus | None:
        """Take a lock from its holder, who is told; ``LockHeldError`` without ``force``.

        ``only_if`` narrows it to one acquisition: a token, a status, or a function of it.  Returns
        what was removed; ``None`` if the lock is free.
        """
        found = self.status(name)
        info = found.info
        if found.state == "free" or found.instance is None:
            return None
        if only_if is not None:
            token = (
                getattr(only_if.info, "token", None) if hasattr(only_if, "info") else only_if
            )
            meant = (
                only_if(found)
                if callable(only_if)
                else info is not None and info.token == token
            )
            if not meant:
                raise LockHeldError(
                    f"{found.path} is not held by the one that was meant, but by {found.holder}",
                    path=found.path,
                    status=found,
                )
        if not force:
            raise LockHeldError(
                f"{found.path} is held by {found.holder}. If you know that its holder has ended, "
                "wait until its lease is over, or take it: remove(name, force=True)",
                path=found.path,
                status=found,
            )
        entry: Any = found.instance
        gone = self.client.call(
            "removed", found.path, self.client.engine.remove, name, entry.entry.token
        )
        return found if gone else None

    def wait(self, name: str, timeout: float | None = None) -> None:
        """Wait until a lock is free; ``LockTimeoutError`` at the end.

        It stands in the line with those who want the lock, and leaves it when its turn comes.
        """
        with self.Lock(name).acquire(timeout):
            pass

    def facts(self) -> Sequence[Fact]:
        """Say what is known of the engine: version, durability, and what is guaranteed."""
        return self.client.call("examined", self.address, self.client.engine.facts)

    def list(self) -> list[str]:
        """List the names of all locks that are held or waited for."""
        return sorted(self.client.call("listed", self.address, self.client.engine.names))

    # ------------------------------------------------------------------ its end

    def close(self) -> None:
        """Release what is held, and close the connections."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Space {self.address}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(f"{self!r} can't be pickled: connect in the other process")


def _limit(timeout: float | None) -> float | None:
    return None if timeout is None else checked_timeout(timeout)


def _checked(value: Any, what: str, least: float, most: float) -> float:
    """Check a number of seconds that has bounds."""
    try:
        seconds = checked_pause(value, what)
    except ValueError:
        seconds = 0.0
    if not least <= seconds <= most:
        raise ValueError(
            f"{what} is a number of seconds from {least} to {most:.0f}, not {value!r:.60}"
        )
    return seconds


def _given(address: Address, what: str) -> float | None:
    """Give the seconds that the address itself has for an option."""
    text = address.query.pop(what, None)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise ValueError(
            f"the {what} in {address.shown} is seconds, not {text!r:.60}"
        ) from None


def connect(
    url: str,
    *,
    ttl: float | None = None,
    timeout: float | None = None,
    prefix: str | None = None,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
) -> Space:
    """Connect to an engine; ``LockEngineError`` if it can't be reached or refuses.

    :url:     the engine: ``etcd://``, ``postgresql://``, ``redis://``; by TLS ``etcds://``,
              ``rediss://``; ``file:///directory`` without a server
    :ttl:     seconds after which a lock passes on whose holder renews it no more (15)
    :timeout: seconds that connecting, and each request that has no other limit, as a release,
              may take (a third of ``ttl``, 5 at most); libpq takes 2 at least to connect
    :prefix:  what the engine's keys begin with; spaces of different prefixes share no locks
    :ca:      of TLS: a file with the certificates to trust; the system's by default
    :cert:    of TLS: a file with the client's certificate, and ``key`` with its key
    """
    address = Address(url, prefix=prefix, ca=ca, cert=cert, key=key)
    if address.path:
        raise ValueError(
            f"{address.shown} is followed by {address.path!r:.80}: connect to the engine without "
            "it, and name the lock then: connect(...).Lock(name)"
        )
    return connect_to(address, ttl, timeout)


def connect_to(
    address: Address, ttl: float | None = None, timeout: float | None = None
) -> Space:
    """Connect to an engine whose address was read already."""
    own_ttl, own_timeout = _given(address, "ttl"), _given(address, "timeout")
    ttl = own_ttl if ttl is None else ttl
    ttl = USUAL_TTL if ttl is None else _checked(ttl, "ttl", _SHORTEST_TTL, _LONGEST_TTL)
    timeout = own_timeout if timeout is None else timeout
    if timeout is not None:
        timeout = _checked(timeout, "timeout", _SHORTEST_TIMEOUT, _LONGEST_TTL)
    row = address.row
    try:
        module = import_module(f"semlock._engines.{row.module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("semlock"):
            raise
        raise LockEngineError(
            f"{address.scheme}:// needs the package {error.name}: pip install "
            f"'semlock[{row.extra}]'",
            address=address.shown,
        ) from None
    began = monotonic()
    try:
        engine = module.connect(address, ttl=ttl, client=uuid.uuid4().hex, within=timeout)
    except (Away, Refused) as failure:
        raise LockEngineError(
            f"{address.shown} could not be connected to, after "
            f"{monotonic() - began:.1f} s: {failure}",
            address=address.shown,
        ) from None
    return Space(Client(engine, address, ttl, timeout))
