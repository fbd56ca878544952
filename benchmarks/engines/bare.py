"""The requests that semlock makes, made by each server's own client, and nothing else.

Those of one acquire and release are recorded at the engine, and repeated word by word: the same
scripts, statements and transactions with the same values.  What semlock takes beyond them is its
own time.  A bare client that has to wait hears of its turn as semlock does, by one watch, one
subscription or one notification.
"""

from __future__ import annotations

import http.client
import json
import uuid
from typing import TYPE_CHECKING, Any

import semlock

if TYPE_CHECKING:
    from collections.abc import Callable

    Way = tuple[Callable[[], object], Callable[[], object]]

_LONG = 3600.0  # the lease of what is repeated is never renewed
_WITNESS = "SELECT pg_advisory_lock(1936026988, $1::integer)"


def _recorded(url: str, name: str, method: Callable[[Any], tuple[Any, str]]) -> list[Any]:
    """Give the arguments of the requests of an acquire and a release, and the engine."""
    space = semlock.connect(url, ttl=_LONG)
    lock = space.Lock(name)
    with lock:  # makes what is made once, as a lease
        pass
    engine = space.client.engine
    owner, attribute = method(engine)
    real, seen = getattr(owner, attribute), []

    def record(*arguments: Any, **named: Any) -> Any:
        seen.append(arguments)
        return real(*arguments, **named)

    setattr(owner, attribute, record)
    with lock:
        pass
    setattr(owner, attribute, real)
    enter, leave = seen
    return [enter, leave, space]


def etcd(url: str, name: str) -> Way:
    """Repeat the transaction and the deletion by http.client."""
    enter, leave, _ = _recorded(url, name, lambda engine: (engine.gateway, "call"))
    place = url.partition("://")[2]
    connection = http.client.HTTPConnection(place)
    connection.connect()

    def call(path: str, fields: dict[str, Any]) -> dict[str, Any]:
        connection.request("POST", f"/v3/{path}", json.dumps(fields))
        return json.loads(connection.getresponse().read())  # type: ignore[no-any-return]

    def acquire() -> None:
        answer = call(*enter[:2])
        line = answer["responses"][1]["response_range"]["kvs"]
        if len(line) > 1:
            watch(line[1]["key"], int(answer["header"]["revision"]) + 1)

    def watch(key: str, revision: int) -> None:
        fields = {"key": key, "start_revision": str(revision), "filters": ["NOPUT"]}
        waiting = http.client.HTTPConnection(place)
        waiting.request("POST", "/v3/watch", json.dumps({"create_request": fields}))
        with waiting.getresponse() as answer:
            while b"DELETE" not in answer.readline():
                pass
        waiting.close()

    return acquire, lambda: call(*leave[:2])


def redis(url: str, name: str) -> Way:
    """Repeat the two calls of the script by redis-py."""
    import redis as library

    enter, leave, space = _recorded(url, name, lambda engine: (engine, "_request"))
    mine, theirs = uuid.uuid4().hex, space.client.engine._client
    space.close()
    words = [mine if word == theirs else word for word in enter[1:]]
    client = library.Redis.from_url(url)
    news = client.pubsub(ignore_subscribe_messages=True)
    news.subscribe(f"semlock:news:{mine}")

    def acquire() -> None:
        if client.execute_command(*words)[0] != 1:
            while news.get_message(timeout=None) is None:
                pass

    return acquire, lambda: client.execute_command(*leave[1:])


def postgresql(url: str, name: str) -> Way:
    """Repeat the two statements by psycopg."""
    import psycopg

    enter, leave, space = _recorded(url, name, lambda engine: (engine._main, "ask"))
    space.close()
    client = uuid.uuid4().hex
    session = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor)
    for setting in ("synchronous_commit", "enable_seqscan", "enable_bitmapscan"):
        session.execute(f"SET {setting} = off")
    witness = session.execute("SELECT nextval('semlock.witness')").fetchone()[0]  # type: ignore[index]
    session.execute(_WITNESS, (witness,))
    news = psycopg.connect(url, autocommit=True)
    news.execute(f"LISTEN semlock_{client}")
    takes, line, token, room, _, _, record, waits = enter
    gives, _, _, _, by_force = leave

    def made(text: str, *values: Any) -> Callable[[], Any]:
        return lambda: session.execute(text, values, prepare=True).fetchone()

    first = made(takes, line, token, room, client, witness, record, waits)
    last = made(gives, line, token, witness, by_force)

    def acquire() -> None:
        if first()[0] != 1:
            next(news.notifies())

    return acquire, last
