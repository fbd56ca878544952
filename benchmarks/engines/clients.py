"""The ways to take a lock on a server: each gives two functions, to acquire and to release."""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import secrets
import shutil
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import semlock
from benchmarks import processes
from benchmarks.engines import bare

if TYPE_CHECKING:
    from collections.abc import Callable

    Way = tuple[Callable[[], object], Callable[[], object]]

TTL = 15.0
# Whole commands: nothing of theirs waits for a hand-over of another process.
COMMANDS = ("etcdctl", "run")
# The least requests know no waiting, but for PostgreSQL's.
NO_WAITS = {("etcd", "least"), ("redis", "least"), ("zookeeper", "floor")}


def url_of(engine: str, server: Any) -> str:
    """Give the address by which semlock connects."""
    if engine == "postgresql":
        from servers import PASSWORD

        return (
            f"postgresql://{server.NAME}:{quote(PASSWORD, safe='')}@{server.address}/postgres"
        )
    return f"{engine}://{server.address}"


def _of_semlock(url: str, name: str) -> Way:
    lock = semlock.connect(url, ttl=TTL).Lock(name)
    return lock.acquire, lock.release


def _bare_etcd(url: str, name: str) -> Way:
    """Put a key if there is none, and delete it: what an exchange with etcd costs at least."""
    connection = http.client.HTTPConnection(url.partition("://")[2])
    key = base64.b64encode(name.encode()).decode()

    def call(path: str, fields: dict[str, Any]) -> dict[str, Any]:
        connection.request("POST", f"/v3/{path}", json.dumps(fields))
        return json.loads(connection.getresponse().read())  # type: ignore[no-any-return]

    lease = call("lease/grant", {"TTL": "60"})["ID"]
    absent = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
    put = {"key": key, "value": "eA==", "lease": lease}
    transaction = {"compare": [absent], "success": [{"request_put": put}]}

    def acquire() -> None:
        assert call("kv/txn", transaction)["succeeded"]

    return acquire, lambda: call("kv/deleterange", {"key": key})


def _bare_redis(url: str, name: str) -> Way:
    """Set a key if there is none, and delete it if it has the token."""
    import redis

    client = redis.Redis.from_url(url)
    token = secrets.token_hex(16)
    delete = client.register_script(
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
    )

    def acquire() -> None:
        assert client.set(name, token, nx=True, px=60000)

    return acquire, lambda: delete(keys=[name], args=[token])


def _bare_postgresql(url: str, name: str) -> Way:
    """Take an advisory lock of the session, and give it back."""
    import psycopg

    connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
    number = zlib.crc32(name.encode())  # the same in all processes
    return (
        lambda: connection.execute("SELECT pg_advisory_lock(%s)", (number,)).fetchone(),
        lambda: connection.execute("SELECT pg_advisory_unlock(%s)", (number,)).fetchone(),
    )


def _of_etcd3gw(url: str, name: str) -> Way:
    import etcd3gw

    host, port = url.partition("://")[2].split(":")
    lock = etcd3gw.client(host=host, port=int(port), api_path="/v3/").lock(name, ttl=int(TTL))

    def acquire() -> None:
        while not lock.acquire():  # it does not wait by itself
            pass

    return acquire, lock.release


def _of_redis_py(url: str, name: str) -> Way:
    import redis

    lock = redis.Redis.from_url(url).lock(name, timeout=TTL)
    return lock.acquire, lock.release


def _of_portalocker(url: str, name: str) -> Way:
    import portalocker
    import redis

    lock = portalocker.RedisLock(name, connection=redis.Redis.from_url(url))
    return lock.acquire, lock.release


def _of_tooz(url: str, name: str) -> Way:
    from tooz import coordination

    backend = url.replace("etcd://", "etcd3+http://") + "?api_version=v3"
    coordinator = coordination.get_coordinator(backend, secrets.token_bytes(8))
    coordinator.start()
    lock = coordinator.get_lock(name.encode())
    return lock.acquire, lock.release


def _bare_zookeeper(url: str, name: str) -> Way:
    """Create a node that ends with its session, and delete it."""
    client = _kazoo(url)
    path = f"/{name}-bare"
    return lambda: client.create(path, ephemeral=True), lambda: client.delete(path)


def _of_kazoo(url: str, name: str) -> Way:
    lock = _kazoo(url).Lock(f"/{name}")
    return lock.acquire, lock.release


def _kazoo(url: str) -> Any:
    from kazoo.client import KazooClient

    client = KazooClient(url.partition("://")[2], timeout=TTL)
    client.start()
    return client


def _by_command(*words: str) -> Way:
    """Run a command that acquires, runs another one, and releases."""
    environment = processes.environment()

    def call() -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd="/", env=environment)

    return call, lambda: None


def _by_etcdctl(url: str, name: str) -> Way:
    return _by_command("etcdctl", "--endpoints", url.partition("://")[2], "lock", name, "true")


def _by_semlock_run(url: str, name: str) -> Way:
    return _by_command(sys.executable, "-m", "semlock", "run", f"{url}/{name}", "--", "true")


# Of each engine: key, label, kind, the module that it needs, and how it is made.
WAYS: dict[str, list[tuple[str, str, Any, str, Callable[[str, str], Way]]]] = {
    "etcd": [
        ("floor", "the same requests by http.client", "floor", "json", bare.etcd),
        ("least", "least requests by http.client", "peer", "json", _bare_etcd),
        ("semlock", "semlock", "semlock", "semlock", _of_semlock),
        ("etcd3gw", "etcd3gw's Lock", "peer", "etcd3gw", _of_etcd3gw),
        ("tooz", "tooz", "peer", "tooz", _of_tooz),
        ("etcdctl", "etcdctl lock … true", "peer", "etcdctl", _by_etcdctl),
        ("run", "semlock run … true", "semlock", "semlock", _by_semlock_run),
    ],
    "redis": [
        ("floor", "the same requests by redis-py", "floor", "redis", bare.redis),
        ("least", "least requests by redis-py", "peer", "redis", _bare_redis),
        ("semlock", "semlock", "semlock", "semlock", _of_semlock),
        ("redis", "redis-py's Lock", "peer", "redis", _of_redis_py),
        ("portalocker", "portalocker's RedisLock", "peer", "portalocker", _of_portalocker),
        ("tooz", "tooz", "peer", "tooz", _of_tooz),
    ],
    "zookeeper": [
        ("floor", "least requests by kazoo", "floor", "kazoo", _bare_zookeeper),
        ("kazoo", "kazoo's Lock", "peer", "kazoo", _of_kazoo),
    ],
    "postgresql": [
        ("floor", "the same requests by psycopg", "floor", "psycopg", bare.postgresql),
        ("least", "advisory locks by psycopg", "peer", "psycopg", _bare_postgresql),
        ("semlock", "semlock", "semlock", "semlock", _of_semlock),
    ],
}


def installed(engine: str) -> list[tuple[str, str, Any, Callable[[str, str], Way]]]:
    """Give the ways whose modules are installed."""
    return [
        (key, label, kind, make)
        for key, label, kind, module, make in WAYS[engine]
        if importlib.util.find_spec(module) or shutil.which(module)
    ]
