"""The lease of a space in etcd: got, renewed, and the epoch by which late requests are refused."""

from __future__ import annotations

import threading
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple

from semlock._engines.engine import Away, Refused, now
from semlock._engines.etcd_http import NotFound
from semlock._engines.etcd_stream import decoded, encoded

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from semlock._engines.etcd_http import Gateway
    from semlock._engines.etcd_stream import Stream

    T = TypeVar("T")

_TRIES = 5
_PAUSE = 0.002


class Lease(NamedTuple):
    """The lease and the epoch that a request is sent with."""

    number: str
    name: str
    epoch: str
    epoch_key: str

    @property
    def read_epoch(self) -> dict[str, Any]:
        """Ask for the present epoch."""
        return {"key": encoded(self.epoch_key)}


class Session:
    """One lease at a time, which is made when it is needed.

    etcd counts a lease in whole seconds, and to put a key does not renew it.  So the lease is for
    somewhat longer than ``ttl``; it is renewed before an entry is put if less than ``ttl`` is
    left of it.
    """

    def __init__(
        self,
        gateway: Gateway,
        prefix: str,
        ttl: float,
        *,
        close: Callable[[Stream], object],
        ended: Callable[[], object],
    ) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._ttl = ttl
        self._close_stream = close
        self._tell_end = ended  # before there is another lease
        self._one = threading.Lock()  # of one thread, while it waits for answers
        self._guard = threading.Lock()  # of single steps
        self._lease: Lease | None = None
        self._renewed = 0.0  # when the last renewal was sent that etcd has confirmed
        self._slack = 0.0  # how old it may be for an entry to be safe for ``ttl`` from now on
        # A request that puts an entry has had no answer, so it may still be carried out.
        self._doubt = False
        self._stream: Stream | None = None
        self._is_new = False

    def _alone(self, until: float, work: Callable[[float], T]) -> T:
        """Do what one thread does at a time; ``Away`` if another one takes too long.

        No ``acquire(timeout=...)``: an interrupt right after it would leave the guard locked.
        """
        while self._one.locked():
            if monotonic() >= until:
                raise Away("another thread waits for an answer")
            sleep(_PAUSE)
        with self._one:
            return work(until)

    # ------------------------------------------------------------------ the lease

    def ready(self, until: float) -> Lease:
        """Give a lease that lasts for ``ttl`` from now on, and an epoch without late requests."""
        lease = self._lease
        if lease is not None and not self._doubt and now() - self._renewed <= self._slack:
            return lease
        return self._alone(until, self._make_ready)

    def _make_ready(self, until: float) -> Lease:
        for _ in range(_TRIES):
            if self._lease is not None and now() - self._renewed > self._slack:
                self._renew(until)
            if self._lease is None:
                self._begin(until)
            self._settle(until)
            if self._lease is not None:
                return self._lease
        raise Away("etcd ends the lease of this space again and again")

    def _begin(self, until: float) -> None:
        sent = now()
        answer = self._gateway.call(
            "lease/grant", {"TTL": str(int(self._ttl * 1.1) + 1)}, until - monotonic()
        )
        number, granted = str(answer["ID"]), float(answer["TTL"])
        name = f"{int(number):x}"
        key = f"{self._prefix}//{name}/epoch"
        lease = Lease(number, name, f"{0:016x}", key)
        put = {"key": encoded(key), "value": encoded(lease.epoch), "lease": number}
        with suppress(NotFound):
            self._gateway.call("kv/put", put, until - monotonic())
            start, end = f"{self._prefix}//{name}/", f"{self._prefix}//{name}0"
            stream = self._gateway.stream(
                {"key": encoded(start), "range_end": encoded(end)}, until - monotonic()
            )
            self._drop()
            self._stream, self._is_new = stream, True
            self._slack = max(0.0, granted - self._ttl)
            self._renewed = sent
            self._doubt = False  # what is under way has another lease
            self._lease = lease

    def renew(self, until: float) -> bool:
        """Renew the lease; ``False`` if there is none any more."""
        return self._alone(until, self._renew)

    def _renew(self, until: float) -> bool:
        lease = self._lease
        if lease is None:
            return False
        sent = now()
        try:
            answer = self._gateway.call(
                "lease/keepalive", {"ID": lease.number}, until - monotonic()
            )
            ttl = int(answer.get("TTL", 0))
        except NotFound:
            ttl = 0
        if ttl <= 0:
            self.end(lease)
            return False
        self._renewed = sent
        if self._stream is None:
            start, end = f"{self._prefix}//{lease.name}/", f"{self._prefix}//{lease.name}0"
            fields = {"key": encoded(start), "range_end": encoded(end)}
            self._stream = self._gateway.stream(fields, until - monotonic())
            self._is_new = True
        return True

    def end(self, lease: Lease) -> None:
        """Note that a lease is over, and with it all entries."""
        with self._guard:
            if self._lease is not None and self._lease.number == lease.number:
                self._tell_end()
                self._lease = None

    # ------------------------------------------------------------------ the epoch

    def is_of(self, lease: Lease) -> dict[str, Any]:
        """Give the condition that the epoch is still that of a lease."""
        return {
            "key": encoded(lease.epoch_key), "target": "VALUE", "result": "EQUAL",
            "value": encoded(lease.epoch),
        }  # fmt: skip

    def put_entry(
        self, lease: Lease, transaction: dict[str, Any], until: float
    ) -> dict[str, Any] | None:
        """Send a request that puts an entry; ``None`` if the lease is over."""
        try:
            return self._gateway.call("kv/txn", transaction, until - monotonic(), repeat=False)
        except NotFound:
            self.end(lease)
            return None
        except BaseException:
            self._doubt = True
            raise

    def confirm(self, lease: Lease, epochs: list[dict[str, Any]]) -> bool:
        """Tell whether a request was refused for another reason than its epoch."""
        if not epochs:
            self.end(lease)
            return False
        if decoded(epochs[0].get("value", "")) == lease.epoch:
            return True
        with self._guard:
            if self._lease == lease:
                self._doubt = True
        return False

    def settle(self, until: float) -> None:
        """Raise the epoch if a request may still be under way."""
        if self._doubt:
            self._alone(until, self._settle)

    def _settle(self, until: float) -> None:
        lease = self._lease
        while self._doubt and lease is not None:
            epoch = f"{int(lease.epoch, 16) + 1:016x}"
            self._lease = lease = lease._replace(epoch=epoch)  # never used for two requests
            key = encoded(lease.epoch_key)
            less = {"key": key, "target": "VALUE", "result": "LESS", "value": encoded(epoch)}
            put = {"key": key, "value": encoded(epoch), "lease": lease.number}
            try:
                answer = self._gateway.call(
                    "kv/txn",
                    {
                        "compare": [less],
                        "success": [{"request_put": put}],
                        "failure": [{"request_range": {"key": key}}],
                    },
                    until - monotonic(),
                    repeat=False,
                )
            except NotFound:
                self.end(lease)
                return
            if answer.get("succeeded"):
                self._doubt = False
            elif not answer["responses"][0]["response_range"].get("kvs"):
                self.end(lease)
                return

    # ------------------------------------------------------------------ the watch

    def new_stream(self) -> Stream | None:
        """Give the watch of this session's keys, once after it was begun."""
        if not self._is_new:
            return None
        with self._guard:
            is_new, self._is_new = self._is_new, False
            return self._stream if is_new else None

    def drop_stream(self, stream: Stream) -> None:
        """Close the watch, which has ended: the next renewal begins another."""
        with self._guard:
            if stream is self._stream:
                self._stream = None
        self._close_stream(stream)

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._close_stream(stream)

    def close(self, *, revoke: bool) -> None:
        """End; the lease too, if no entry stands by it."""
        lease, self._lease = self._lease, None
        if revoke and lease is not None:
            with suppress(Away, Refused, NotFound):
                self._gateway.call("lease/revoke", {"ID": lease.number}, 1.0)
        self._drop()
