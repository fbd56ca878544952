"""Redis and Valkey by redis-py: tokens with leases in sorted sets, by one script.

One primary keeps the locks.  Its promise is weaker than that of the other engines: replicas
follow later, so a failover may forget the last writes, and then two may hold.  The fence still
grows, because it is at least the server's time, and a storage that checks it refuses the earlier
holder.

redis-py is used for connections and its protocol only: its commands have no limit of time of
their own, and each request here has one.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from time import monotonic

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.retry import Retry

from semlock._engines import facts
from semlock._engines.engine import GONE, Away, Entry, Place, Refused
from semlock._engines.redis_script import SCRIPT

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from semlock._engines.address import Address
    from semlock._engines.engine import Fact

_SHA = hashlib.sha1(SCRIPT.encode()).hexdigest()  # noqa: S324 - Redis names scripts so
# Entries of one request of a renewal.
_BATCH = 200
_MOST_IDLE = 8
_LEAST = 0.1  # seconds for a connection, however little time is left
_PATIENT = 1.0  # the limit of a connection that serves later requests too
# How long connecting may take, however short the leases are: nothing is held yet.
_FIRST_PATIENCE = 2.0
# What the server says when it will answer later.
_LATER = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED")


class RedisEngine:
    """An ``Engine`` on one primary."""

    def __init__(self, address: Address, *, ttl: float, client: str) -> None:
        self._ttl = str(int(ttl * 1000))
        self._prefix = address.prefix
        self._client = client
        self._patience = min(5.0, ttl / 3)
        if len(address.hosts) > 1:
            raise Refused("Redis is one primary: the address has several hosts")
        host, port = address.hosts[0]
        self._where = f"{host}:{port}"
        unknown = set(address.query)
        if unknown:
            raise Refused(f"the address has options that Redis' has not: {sorted(unknown)}")
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "db": int(address.database or 0),
            "username": address.user,
            "password": address.password,
            "socket_timeout": self._patience,
            "socket_connect_timeout": self._patience,
            "retry": Retry(NoBackoff(), 0),
            "client_name": "semlock",
            "protocol": 2,
        }
        self._kind: Any = Connection
        if address.row.tls:
            self._kind = SSLConnection
            self._options |= {
                "ssl_ca_certs": address.ca,
                "ssl_certfile": address.cert,
                "ssl_keyfile": address.key,
            }
        elif address.ca or address.cert or address.key:
            raise Refused("ca, cert and key are for TLS: write the address as rediss://")
        self._free: list[Any] = []
        self._news: Any = None
        self._deaf = True
        self._closed = False

    # ------------------------------------------------------------------ connections

    def _connection(self, within: float) -> Any:
        try:
            return self._free.pop()
        except IndexError:
            pass
        # What it says at its beginning has this limit too, as a login.
        limit = max(_LEAST, within)
        limits = {"socket_connect_timeout": limit, "socket_timeout": limit}
        return self._kind(**(self._options | limits))

    def _request(self, within: float, *words: Any, connection: Any = None) -> Any:
        """Make a request; what it raises says whether it makes sense to repeat it."""
        one = self._connection(within) if connection is None else connection
        try:
            one.send_command(*words)
            if not one.can_read(timeout=max(0.001, within)):
                raise redis.exceptions.TimeoutError  # noqa: TRY301 - as the client's own
            answer = one.read_response()
        except redis.exceptions.NoScriptError:
            self._give_back(one, connection)
            raise
        except redis.exceptions.ResponseError as error:
            self._give_back(one, connection)
            raise _of_error(error) from None
        except BaseException as error:
            with suppress(Exception):
                one.disconnect()
            if isinstance(error, (redis.exceptions.RedisError, OSError)):
                self._deaf = True
                raise self._of_failure(error) from None
            raise
        self._give_back(one, connection)
        return answer

    def _give_back(self, one: Any, given: Any) -> None:
        # One that was made in a hurry keeps its short limits, so it is for that request only.
        is_patient = 2 * one.socket_timeout >= min(_PATIENT, self._patience)
        is_kept = is_patient and len(self._free) < _MOST_IDLE and not self._closed
        if given is None and is_kept:
            self._free.append(one)
        elif given is None:
            one.disconnect()

    def _of_failure(self, error: Exception) -> Exception:
        if isinstance(error, redis.exceptions.AuthenticationError):
            return Refused(f"{self._where} refuses the user or the password")
        if isinstance(error, redis.exceptions.InvalidResponse):
            return Refused(f"what answers at {self._where} does not speak Redis' protocol")
        text = str(error)
        if "SSL" in text or "certificate" in text.lower():
            return Refused(f"no TLS with {self._where}: {text}")
        if isinstance(error, redis.exceptions.TimeoutError):
            return Away(f"{self._where} gave no answer in time")
        return Away(f"{self._where}: {text}")

    def _script(self, within: float, keys: Sequence[str], *arguments: Any) -> Any:
        words = [len(keys), *keys, *arguments]
        try:
            return self._request(within, "EVALSHA", _SHA, *words)
        except redis.exceptions.NoScriptError:
            return self._request(within, "EVAL", SCRIPT, *words)

    def _keys(self, name: str) -> tuple[str, str]:
        return f"{self._prefix}:line:{name}", f"{self._prefix}:data:{name}"

    # ------------------------------------------------------------------ the engine

    def enter(
        self, name: str, token: str, record: bytes, room: int, *, waits: bool, within: float
    ) -> Place:
        keys = (f"{self._prefix}:fence", *self._keys(name))
        answer = self._script(
            within, keys, "enter", self._ttl, self._prefix, token, room, self._client, record,
            int(waits),
        )  # fmt: skip
        return _place(answer)

    def leave(self, name: str, token: str, *, within: float) -> bool:
        keys = self._keys(name)
        return bool(self._script(within, keys, "leave", self._ttl, self._prefix, token))

    def renew(self, entries: Sequence[tuple[str, str]], *, within: float) -> list[Place]:
        places: list[Place] = []
        for first in range(0, len(entries), _BATCH):
            some = entries[first : first + _BATCH]
            keys = [key for name, _ in some for key in self._keys(name)]
            tokens = [token for _, token in some]
            answer = self._script(within, keys, "renew", self._ttl, self._prefix, *tokens)
            places += map(_place, answer)
        return places

    def hear(self, seconds: float) -> Sequence[tuple[str, int]] | None:
        """Read what the server has published for this client."""
        if self._deaf:
            self._listen()
            return None
        one = self._news
        heard = []
        try:
            wait = max(0.0, seconds)
            while one.can_read(timeout=wait):
                answer = one.read_response()
                if answer[0] == b"message":
                    token, _, number = answer[2].decode("ascii", "replace").partition(" ")
                    heard.append((token, int(number)))
                wait = 0.0
        except (redis.exceptions.RedisError, OSError) as error:
            self._deaf = True
            raise self._of_failure(error) from None
        return heard

    def _listen(self, within: float | None = None) -> None:
        old, self._news = self._news, None
        if old is not None:
            with suppress(Exception):
                old.disconnect()
        limit = self._patience if within is None else max(_LEAST, within)
        limits = {"socket_connect_timeout": limit, "socket_timeout": limit}
        one = self._kind(**(self._options | limits))
        self._request(limit, "SUBSCRIBE", f"{self._prefix}:news:{self._client}", connection=one)
        self._news = one
        self._deaf = False

    def line(self, name: str, *, within: float) -> list[Entry]:
        answer = self._script(within, self._keys(name), "line", self._ttl, self._prefix)
        entries = []
        for token, number, text, holds, left in answer:
            room, _, rest = text.partition(b"\n")
            record = rest.partition(b"\n")[2]
            entries.append(
                Entry(token.decode(), int(number), int(room), record, bool(holds), left / 1000)
            )
        return entries

    def names(self, *, within: float) -> list[str]:
        start = f"{self._prefix}:line:"
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", start) + "*"
        found, cursor = set(), b"0"
        while True:
            cursor, keys = self._request(
                within, "SCAN", cursor, "MATCH", pattern, "COUNT", 1000
            )
            found |= {key.decode("utf-8", "replace")[len(start) :] for key in keys}
            if cursor == b"0":
                return sorted(found)

    def remove(self, name: str, token: str, *, within: float) -> bool:
        keys = self._keys(name)
        return bool(self._script(within, keys, "remove", self._ttl, self._prefix, token))

    def facts(self, *, within: float) -> list[Fact]:
        info: dict[str, str] = {}
        for section in ("server", "persistence", "replication", "memory"):
            with suppress(Refused):
                for line in _text(self._request(within, "INFO", section)).splitlines():
                    key, _, value = line.partition(":")
                    info[key] = value
        settings: dict[str, str] = {}
        for name in ("appendfsync", "min-replicas-to-write"):
            with suppress(Refused):  # CONFIG may be forbidden
                answer = self._request(within, "CONFIG", "GET", name)
                if len(answer) == 2:
                    settings[name] = _text(answer[1])

        def time() -> float:
            seconds, micros = self._request(within, "TIME")
            return int(seconds) + int(micros) / 1e6

        return [*facts.of_redis(info, settings), *facts.timing(time)]

    def check(self, within: float | None = None) -> None:
        """Connect, and see that the server takes writes."""
        end = monotonic() + (max(self._patience, _FIRST_PATIENCE) if within is None else within)
        try:
            role = self._request(end - monotonic(), "ROLE")
        except Refused as error:
            if "NOPERM" not in str(error):
                raise
            role = [b"master"]
        if role and role[0] == b"slave":
            raise Refused(
                f"{self._where} is a replica of {role[1].decode('ascii', 'replace')}:{role[2]}: "
                "connect to the primary"
            )
        self._listen(None if within is None else end - monotonic())

    def close(self) -> None:
        self._closed = True
        while self._free:
            with suppress(Exception):
                self._free.pop().disconnect()
        news, self._news = self._news, None
        self._deaf = True
        if news is not None:
            with suppress(Exception):
                news.disconnect()


def _text(answer: bytes) -> str:
    return answer.decode("utf-8", "replace")


def _place(answer: Any) -> Place:
    state, number, again = answer
    if state == GONE:
        return Place(GONE)
    return Place(state, int(number), None if again < 0 else again / 1000)


def _of_error(error: Exception) -> Exception:
    """Say whether the server may do later what it has refused."""
    if isinstance(error, redis.exceptions.AuthenticationError):
        return Refused("the server refuses the user or the password")
    text = str(error)
    if text.startswith(_LATER) or isinstance(error, redis.exceptions.BusyLoadingError):
        return Away(f"the server says: {text:.200}")
    return Refused(f"the server says: {text:.200}")


def connect(
    address: Address, *, ttl: float, client: str, within: float | None = None
) -> RedisEngine:
    """Connect to a server."""
    engine = RedisEngine(address, ttl=ttl, client=client)
    try:
        engine.check(within)
    except BaseException as error:
        engine.close()
        if isinstance(error, Away) and address.row.tls and "in time" in str(error):
            # One without TLS takes the greeting for the begin of a line, and waits for its end.
            raise Away(
                f"{error}; if it speaks no TLS, the address begins with redis://"
            ) from None
        raise
    return engine
