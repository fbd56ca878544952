"""The core's structures and calls have types: mypy finds a field or a call that C doesn't have."""

from semlock._core import capi
from semlock._core.compiled import lib

lock = capi.new_lock()
serial: int = lock.serial
place: int = lock.ticket.told
misspelt = lock.serail  # type: ignore[attr-defined]
lock.path = 1  # type: ignore[assignment]
outcome: int = lib.semlock_try(lock, capi.POOL)
lib.semlock_try(lock)  # type: ignore[call-arg]
lib.semlock_try(capi.POOL, lock)  # type: ignore[arg-type]
lib.semlock_tyr(lock, capi.POOL)  # type: ignore[attr-defined]
