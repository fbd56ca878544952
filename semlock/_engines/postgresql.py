"""PostgreSQL by psycopg 3: entries in a table, whose witness is the session of their client.

A session holds one advisory lock for all entries of a space, so a thousand locks are one
connection.  When the session ends, as by ``kill -9`` of its client, its entries are over at once:
each waiter's client waits for the witness of the entry before it, in a statement on a connection
beside.  There are a few of those at most; who is behind yet another client looks again by time.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from time import monotonic

import psycopg

from semlock._engines import facts
from semlock._engines import postgresql_schema as sql
from semlock._engines.engine import GONE, HOLDS, WAITS, Away, Entry, Place, Refused
from semlock._engines.postgresql_session import Session, conninfo_of, readable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from semlock._engines.address import Address
    from semlock._engines.engine import Fact

_MOST_WATCHED = 8
# How long connecting may take, however short the leases are: nothing is held yet.
_FIRST_PATIENCE = 2.0


class PostgresEngine:
    """An ``Engine`` on one database."""

    def __init__(self, address: Address, *, ttl: float, client: str) -> None:
        self._client = client
        self._ttl = ttl
        self._patience = min(5.0, ttl / 3)
        self._prefix = f"{address.prefix}:"
        self._application = f"semlock {client}"
        self._conninfo = conninfo_of(address, ttl, self._application)
        # Only the thread that has it can release it: see _ask().
        self._mutex = threading.RLock()
        self._asking = False
        self._main: Session | None = None
        self._pid = 0
        self._witness = 0
        self._news: Session | None = None
        # Sessions that wait for the end of another client's, and the tokens behind each.
        self._watching: dict[int, Session] = {}
        self._behind: dict[str, int] = {}
        self._beginning = threading.Lock()
        self._closed = False
        # A byte in it ends a hear() that does not know of the newest of these.
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)

    # ------------------------------------------------------------------ sessions

    def _ask(self, text: str, *values: object, within: float, own: bool = False) -> Any:
        """Make a request in the session that is the witness; ``own`` appends its number.

        An interrupt may come right after ``acquire()``, before anything is noted.  So the mutex is
        released in any case, which changes nothing if this thread does not have it.
        """
        end = monotonic() + within
        mutex = self._mutex
        try:
            # It is this thread's already if a signal handler asks during a request.
            if not mutex.acquire(timeout=max(0.0, within)) or self._asking:
                raise Away("earlier requests have had no answer yet")
            try:
                self._asking = True
                return self._ask_alone(text, values, end, own=own)
            finally:
                self._asking = False
        except psycopg.Error as error:
            raise Away(f"the connection ended: {' '.join(str(error).split()):.200}") from None
        finally:
            try:  # noqa: SIM105 - an interrupt can come after a call of suppress()
                mutex.release()
            except RuntimeError:
                pass

    def _ask_alone(
        self, text: str, values: tuple[object, ...], end: float, *, own: bool
    ) -> Any:
        main = self._main
        if main is None or not main.is_good:
            main = self._begin(end - monotonic())
        if own:
            values = tuple(self._witness if value is OWN else value for value in values)
        return main.ask(text, *values, within=end - monotonic())

    def _begin(self, within: float) -> Session:
        """Begin a session, whose predecessor's entries are over."""
        if self._closed:
            raise Refused("the space is closed")
        end = monotonic() + max(2.0, within)
        old, self._main = self._main, None
        if old is not None:
            old.close()
        main = Session(self._conninfo, within)
        try:
            self._prepare(main, end)
        except BaseException:
            main.close()
            raise
        self._main = main
        return main

    def _prepare(self, main: Session, end: float) -> None:
        def ask(text: str, *values: object) -> Any:
            return main.ask(text, *values, within=end - monotonic())

        main.watch_client(self._ttl, end - monotonic())
        for setting in (
            "default_transaction_isolation = 'read committed'",
            "synchronous_commit = off",  # the table is unlogged, and fences are at least the time
            "client_min_messages = error",
            # A plan that is made while the table is small would read all of it, with the rows
            # that are gone, as long as the session lasts; an index forgets those.
            "enable_seqscan = off",
            "enable_bitmapscan = off",
            "statement_timeout = 0",
            "lock_timeout = 0",
            "idle_session_timeout = 0",
        ):
            with suppress(Refused):  # an older server does not know it
                ask(f"SET {setting}")
        pid = int(ask("SELECT pg_backend_pid()")[0][0])
        if pid != main.pq.backend_pid:
            raise Refused(
                "a pooler stands between: a lock is held by a session, which a pooler gives to "
                "several clients. Connect to the server itself"
            )
        if self._pid:  # the earlier session may not know yet that its client is gone
            with suppress(Refused):
                ask(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid = $1 AND application_name = $2",
                    self._pid,
                    self._application,
                )
        self._pid = pid
        try:
            version = int(ask("SELECT semlock.version()")[0][0])
        except Refused:
            version = 0
        if version < sql.VERSION:
            try:
                ask(sql.SCHEMA)
            except Refused as error:
                with suppress(Refused):
                    ask("ROLLBACK")
                raise Refused(
                    f"the schema semlock can't be made ({error}): have a user who may make it "
                    "connect once"
                ) from None
        witness = int(ask("SELECT nextval('semlock.witness')")[0][0])
        ask(sql.WITNESS, witness)
        self._witness = witness
        ask(sql.SWEEP, witness)

    # ------------------------------------------------------------------ the engine

    def enter(
        self, name: str, token: str, record: bytes, room: int, *, waits: bool, within: float
    ) -> Place:
        row = self._ask(
            sql.ENTER, self._prefix + name, token, room, self._client, OWN, record, waits,
            within=within, own=True,
        )[0]  # fmt: skip
        state = int(row[0])
        if state == GONE:
            return Place(GONE)
        if state == HOLDS:
            self._behind.pop(token, None)
            return Place(HOLDS, int(row[1]))
        again = None
        behind = 0 if row[2] is None else int(row[2])
        if behind and behind != self._witness:
            self._behind[token] = behind
            if not self._watch(behind, within):
                again = self._ttl / 3
        else:
            self._behind.pop(token, None)
        return Place(WAITS, int(row[1]), again)

    def leave(self, name: str, token: str, *, within: float) -> bool:
        self._behind.pop(token, None)
        rows = self._ask(
            sql.LEAVE, self._prefix + name, token, OWN, False, within=within, own=True
        )
        return bool(rows[0][0] == b"t")

    def renew(self, entries: Sequence[tuple[str, str]], *, within: float) -> list[Place]:
        """See that the session stands, and how its entries stand."""
        tokens = ",".join(token for _, token in entries)
        found = {}
        for token, number, holds in self._ask(sql.RENEW, tokens, OWN, within=within, own=True):
            found[token.decode()] = Place(HOLDS if holds == b"t" else WAITS, int(number))
        return [found.get(token, Place(GONE)) for _, token in entries]

    def hear(self, seconds: float) -> Sequence[tuple[str, int]] | None:
        """Wait for notifications, and for the end of sessions that others wait behind."""
        news = self._news
        if news is None or not news.is_good:
            self._listen()
            return None
        self._drop_unneeded()
        watching = dict(self._watching)
        by_socket = {one.fileno(): witness for witness, one in watching.items()}
        ready = readable([news.fileno(), self._bell.fileno(), *by_socket], seconds)
        if self._bell.fileno() in ready:
            with suppress(OSError):
                self._bell.recv(1024)
        heard: list[tuple[str, int]] = []
        if news.fileno() in ready:
            try:
                news.pq.consume_input()
                news.note()
            except psycopg.Error:
                self._news = None
                raise Away("the connection for notifications ended") from None
        heard, news.told = news.told, []
        for one in ready:
            witness = by_socket.get(one)
            if witness is not None and watching[witness].has_answered():
                watching[witness].close()
                self._watching.pop(witness, None)
                heard += [
                    (token, 0) for token, its in list(self._behind.items()) if its == witness
                ]
        return heard

    def _listen(self, within: float | None = None) -> None:
        patience = self._patience if within is None else within
        old, self._news = self._news, None
        if old is not None:
            old.close()
        with self._beginning:
            if self._closed:
                raise Refused("the space is closed")
            news = self._news = Session(self._conninfo, patience)
        try:
            news.watch_client(self._ttl, patience)
            news.ask(f"LISTEN semlock_{self._client}", within=patience)
        except BaseException:
            self._news = None
            news.close()
            raise

    def _watch(self, witness: int, within: float) -> bool:
        """Wait for the end of another session; ``False`` if too many are waited for."""
        with (
            self._beginning
        ):  # one for each witness: what is closed while it waits goes on there
            if witness in self._watching:
                return True
            if len(self._watching) >= _MOST_WATCHED or self._closed:
                return False
            try:
                session = Session(self._conninfo, within)
            except (Away, Refused):
                return False  # no connection is left for this
            try:
                session.watch_client(self._ttl, within)
                session.begin(sql.WATCH, witness)
            except BaseException as error:
                session.close()
                if isinstance(error, (Away, Refused, psycopg.Error)):
                    return False
                raise
            self._watching[witness] = session
        with suppress(OSError):
            self._ring.send(b"x")
        return True

    def _drop_unneeded(self) -> None:
        needed = set(self._behind.values())
        for witness, session in list(self._watching.items()):
            if witness not in needed:
                self._watching.pop(witness, None)
                with suppress(Exception):
                    session.pq.get_cancel().cancel()  # a closed socket would not end its wait
                session.close()

    def line(self, name: str, *, within: float) -> list[Entry]:
        rows = self._ask(sql.LINE, self._prefix + name, OWN, within=within, own=True)
        return [
            Entry(
                token.decode(), int(number), int(room), bytes.fromhex(record.decode()),
                holds == b"t", None,
            )
            for token, number, room, record, holds in rows
        ]  # fmt: skip

    def names(self, *, within: float) -> list[str]:
        rows = self._ask(sql.NAMES, self._prefix, OWN, within=within, own=True)
        return sorted(name.decode()[len(self._prefix) :] for (name,) in rows)

    def remove(self, name: str, token: str, *, within: float) -> bool:
        rows = self._ask(
            sql.LEAVE, self._prefix + name, token, OWN, True, within=within, own=True
        )
        return bool(rows[0][0] == b"t")

    def facts(self, *, within: float) -> list[Fact]:
        names, values = zip(*sql.FACTS.items(), strict=True)
        row = self._ask(f"SELECT {', '.join(values)}", within=within)[0]
        found = {
            name: (value or b"unknown").decode() for name, value in zip(names, row, strict=True)
        }

        def time() -> float:
            rows = self._ask("SELECT extract(epoch FROM clock_timestamp())", within=within)
            return float(rows[0][0])

        return [*facts.of_postgresql(found, 2 * _MOST_WATCHED), *facts.timing(time)]

    def check(self, within: float | None = None) -> None:
        """Connect, and make what is missing."""
        patience = max(self._patience, _FIRST_PATIENCE) if within is None else within
        self._ask("SELECT 1", within=patience)
        try:
            self._listen(patience)
        except psycopg.Error as error:
            raise Away(f"{' '.join(str(error).split()):.200}") from None

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._ring.send(b"x")
        self._behind.clear()
        with self._beginning, self._mutex:
            with suppress(Exception):
                self._drop_unneeded()
            for session in (self._main, self._news):
                if session is not None:
                    session.close()
            self._main = self._news = None
        self._ring.close()
        self._bell.close()


OWN = object()  # in a request: the number of the session's witness


def connect(
    address: Address, *, ttl: float, client: str, within: float | None = None
) -> PostgresEngine:
    """Connect to a database."""
    engine = PostgresEngine(address, ttl=ttl, client=client)
    try:
        engine.check(within)
    except BaseException:
        engine.close()
        raise
    return engine
