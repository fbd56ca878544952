"""One connection to PostgreSQL, whose requests each have a limit of time.

libpq is used below psycopg's cursors for that, and because a request that was given up keeps its
session: its answer is read by the next one.
"""

from __future__ import annotations

import itertools
import math
import select
import sys
from contextlib import suppress
from time import monotonic

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from semlock._engines.engine import Away, Refused

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from semlock._engines.address import Address

_BEFORE = frozenset(("host", "port", "dbname", "application_name"))
_LATER = ("08", "40", "57", "53300", "53200", "55P03")
_NOT_YET = ("starting up", "shutting down", "too many clients", "remaining connection slots")
_REFUSALS = ("FATAL", "SSL", "certificate", "invalid response", "authentication", "password")


class Session:
    """One connection, which makes one request at a time, each within its time."""

    def __init__(self, conninfo: str, within: float) -> None:
        failure = None
        try:
            # libpq counts whole seconds, and takes 1 for 2.
            self._connection = psycopg.connect(
                conninfo, autocommit=True, connect_timeout=max(2, math.ceil(within))
            )
        except psycopg.Error as error:
            failure = _of_connecting(error)
        if failure is not None:
            raise failure  # here, as psycopg's error would be its context: that has the password
        self.pq = self._connection.pgconn
        self._owed = False  # whether the answer to an earlier request has not been read yet
        self._prepared: dict[str, bytes] = {}
        self._names = itertools.count()
        self.told: list[tuple[str, int]] = []

    def fileno(self) -> int:
        """Give the descriptor of its socket."""
        return self.pq.socket

    @property
    def is_good(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self.pq.status == pq.ConnStatus.OK

    def ask(self, text: str, *values: object, within: float) -> list[list[bytes | None]]:
        """Make a request, and give the rows of its answer."""
        end = monotonic() + within
        if self._owed:
            self._answer(end)  # what it says was for another caller, who has given up
        if values or text in self._prepared:
            name = self._prepared.get(text)
            if name is None:
                # A new name each time: that of one that was given up may be taken or not.
                name = b"s%d" % next(self._names)
                self._owed = True
                self.pq.send_prepare(name, text.encode())
                self._rows(end)
                self._prepared[text] = name
            self._owed = True
            self.pq.send_query_prepared(name, [_encoded(value) for value in values])
        else:
            self._owed = True
            self.pq.send_query(text.encode())
        result = self._rows(end)
        if result is None:
            return []
        columns = range(result.nfields)
        return [[result.get_value(row, c) for c in columns] for row in range(result.ntuples)]

    def watch_client(self, ttl: float, within: float) -> None:
        """Have the server end the session of a client that is gone, also while a request waits."""
        every = max(1, math.ceil(ttl / 5))
        by_tcp = (
            f"SET tcp_keepalives_idle = {max(1, math.ceil(ttl))}; "
            f"SET tcp_keepalives_interval = {every}; SET tcp_keepalives_count = 3"
        )
        for settings in (by_tcp, f"SET client_connection_check_interval = '{every} s'"):
            with suppress(Refused):  # an older server does not know it
                self.ask(settings, within=within)

    def begin(self, text: str, *values: object) -> None:
        """Send a request whose answer comes later, or never."""
        self._owed = True
        self.pq.send_query_params(text.encode(), [_encoded(value) for value in values])
        self.pq.flush()

    def has_answered(self) -> bool:
        """Tell whether the answer to that has come, or the connection has ended."""
        with suppress(psycopg.Error):
            self.pq.consume_input()
            return not self.pq.is_busy()
        return True

    def _rows(self, end: float) -> Any:
        """Read the answer to the last request."""
        last, failed = self._answer(end)
        if failed is not None:
            raise _of_result(failed)
        return last

    def _answer(self, end: float) -> tuple[Any, Any]:
        """Read an answer: its last result, and the one that tells of a failure."""
        last = failed = None
        while True:
            self._wait(end)
            result = self.pq.get_result()
            if result is None:
                break
            if result.status == pq.ExecStatus.FATAL_ERROR:
                failed = result
            last = result
        self._owed = False
        self.note()
        return last, failed

    def _wait(self, end: float) -> None:
        self.pq.flush()
        while self.pq.is_busy():
            if not readable([self.fileno()], end - monotonic()):
                raise Away("the server gave no answer in time")
            self.pq.consume_input()

    def note(self) -> None:
        """Keep the notifications that have come."""
        while (notice := self.pq.notifies()) is not None:
            token, _, number = notice.extra.decode().partition(" ")
            self.told.append((token, int(number)))

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._connection.close()


def _encoded(value: object) -> bytes:
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode()


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    if sys.platform != "win32":  # select() has a limit of descriptors
        poll = select.poll()
        for one in descriptors:
            poll.register(one, select.POLLIN)
        return [one for one, _ in poll.poll(max(0.0, seconds) * 1000)]
    return list(select.select(descriptors, [], [], max(0.0, seconds))[0])


def _of_connecting(error: psycopg.Error) -> Exception:
    text = " ".join(str(error).split())
    if not any(word in text for word in _NOT_YET) and any(word in text for word in _REFUSALS):
        return Refused(f"{text:.300}")
    return Away(f"{text:.300}")


def _of_result(result: Any) -> Exception:
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(
        "utf-8", "replace"
    )
    if state == "25006":
        return Refused("the server is read-only, such as a replica: connect to the primary")
    kind = Away if state.startswith(_LATER) else Refused
    return kind(f"the server says: {text:.200} ({state})")


def conninfo_of(address: Address, ttl: float, application: str) -> str:
    options: dict[str, Any] = dict(address.query)
    if wrong := _BEFORE.intersection(options):
        raise Refused(
            f"{min(wrong)} is no option of the address: host, port and database stand before "
            "the ?, and the application's name is semlock's"
        )
    if address.ca:
        options |= {"sslrootcert": address.ca, "sslmode": "verify-full"}
    if address.cert or address.key:
        options.setdefault("sslmode", "require")  # libpq would do without TLS
    if address.cert:
        options["sslcert"] = address.cert
    if address.key:
        options["sslkey"] = address.key
    if len(address.hosts) > 1:
        options.setdefault("target_session_attrs", "read-write")
    every = max(1, math.ceil(ttl / 5))
    usual = {
        "user": address.user,
        "password": address.password,
        "keepalives_idle": every,
        "keepalives_interval": every,
        "keepalives_count": 3,
    }
    try:
        return make_conninfo(
            host=",".join(host for host, _ in address.hosts),
            port=",".join(str(port) for _, port in address.hosts),
            dbname=address.database or None,
            application_name=application,
            **usual | options,
        )
    except psycopg.Error as error:
        raise Refused(f"an option of the address is wrong: {str(error).strip()}") from None
