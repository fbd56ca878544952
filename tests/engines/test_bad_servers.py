"""Servers with something wrong: a clear error in time, nothing held, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
import subprocess
import threading
import time
import uuid

import pytest

import semlock
import servers
import users
from engine_urls import url_of
from faultproxy import FaultProxy
from servers import PASSWORD, Etcd, PgBouncer, PostgreSQL, Redis, running
from support import PATIENCE, wait_until

SCHEMES = ("redis", "postgresql", "etcd")
# What waits for long meets one server by default.
one_scheme = pytest.mark.parametrize(
    "scheme", ["redis", *(pytest.param(one, marks=pytest.mark.stress) for one in SCHEMES[1:])]
)
TTL = 1.5
# No call takes longer on a busy machine: libpq waits for two seconds at least.
LONGEST = 6.0
# What is waited for in vain, so not for the two seconds that a client has by itself.
IN_VAIN = {"timeout": 0.4}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def chain(error: BaseException | None) -> list[object]:
    """Give an error and those that stand behind it, with what each of them keeps."""
    found: list[object] = []
    while error is not None:
        found += [error, vars(error), error.__notes__ if hasattr(error, "__notes__") else ""]
        error = error.__cause__ or error.__context__
    return found


@contextlib.contextmanager
def refused(match: str, longest: float = LONGEST):
    """See that a call fails in time, with an error that shows no password."""
    began = time.monotonic()
    with pytest.raises(semlock.LockEngineError, match=match) as failure:
        yield
    assert time.monotonic() - began < longest
    said = f"{failure.value.address} {''.join(map(repr, chain(failure.value)))}"
    assert PASSWORD not in said
    assert "SECRET" not in said
    assert "s3cret" not in said


def refuses_to_connect(url: str, match: str, **options) -> None:
    """See that a connection fails in time and leaves no thread and no descriptor."""
    threads, open_before = threading.active_count(), descriptors()
    with refused(match):
        semlock.connect(url, ttl=TTL, **options)
    assert threading.active_count() <= threads  # one of an earlier test may have ended
    gc.collect()  # a client's library may have them in a circle
    wait_until(lambda: descriptors() <= open_before, "its connections are closed")


def login(scheme: str, place: str) -> str:
    """Give an address with a password that must not be shown."""
    return f"{scheme}://user:SECRET@{place}" + ("/postgres" if scheme == "postgresql" else "")


# ---------------------------------------------------------------- what is no such server


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_closed_port(scheme):
    refuses_to_connect(login(scheme, f"127.0.0.1:{servers.free_port()}"), r"127\.0\.0\.1")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_host_that_does_not_exist(scheme):
    refuses_to_connect(login(scheme, "nosuch.invalid"), "could not be connected to")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_server_that_accepts_and_never_answers(scheme):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        refuses_to_connect(
            login(scheme, f"127.0.0.1:{silent.getsockname()[1]}"), "could not be", **IN_VAIN
        )


@contextlib.contextmanager
def server_that(answers):
    """Give the address of a server that answers each connection so, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    answers(connection)

        threading.Thread(target=serve, daemon=True).start()
        wait_until(lambda: threading.active_count() > 1, "it serves")
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)  # ends accept()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "says", [b"", b"\0" * 64, b"220 mail ESMTP\r\n", b"HTTP/1.1 200 OK\r\n\r\n{}"]
)
def test_a_server_that_says_something_else(scheme, says):
    def answers(connection):
        connection.sendall(says)
        connection.recv(1000)

    with server_that(answers) as address:
        refuses_to_connect(login(scheme, address), "could not be")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("other", SCHEMES)
def test_a_server_of_another_engine(scheme, other, request):
    if scheme == other:
        pytest.skip("it is the right one")
    server = request.getfixturevalue(f"{other}_server")
    refuses_to_connect(login(scheme, server.address), "could not be connected to", **IN_VAIN)


@one_scheme
def test_a_server_that_answers_slowly(scheme, request):
    server = request.getfixturevalue(f"{scheme}_server")
    with FaultProxy(server.port) as proxy:
        url = url_of(server).replace(server.address, proxy.address)
        with semlock.connect(url, prefix=uuid.uuid4().hex, ttl=3) as space:
            with space.Lock("deploy"):
                pass
            proxy.delay(answers=1.5)
            lock = space.Lock("deploy")
            with refused("deploy could not be acquired within", longest=1.4):
                lock.acquire(timeout=0.4)
            assert not lock.held
            goes_on_after(space, proxy.delay)


@one_scheme
def test_a_timeout_bounds_connecting_and_a_release(scheme, request):
    server = request.getfixturevalue(f"{scheme}_server")
    # libpq takes 2 s at least to connect; the others' own would be 5 s.
    longest = {"postgresql": 4.0}.get(scheme, 2.0)
    options = {"prefix": uuid.uuid4().hex, "ttl": 9, "timeout": 0.3}
    with FaultProxy(server.port) as proxy:
        url = url_of(server).replace(server.address, proxy.address)
        space = semlock.connect(url, **options)
        lock, other = space.Lock("deploy").acquire(), space.Lock("other")
        proxy.partition()
        with refused("other could not be acquired within 0", longest=2.0):
            other.try_acquire()
        began = time.monotonic()
        lock.__exit__(None, None, None)
        assert time.monotonic() - began < 2.0  # and not a third of ttl
        with refused("could not be connected to, after", longest=longest):
            semlock.connect(url, **options)
        proxy.heal()
        wait_until(lambda: space.status("deploy").state == "free", "it is released")
        space.close()


def test_a_timeout_is_an_option_of_an_address_too():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"etcd://127.0.0.1:{silent.getsockname()[1]}?timeout=0.2"
        with refused("after 0", longest=2.0):
            semlock.connect(url)
    for wrong in (0, -1, "x", float("nan"), True):
        with pytest.raises(ValueError, match=r"timeout is a number of seconds from 0\.05 to"):
            semlock.connect("etcd://127.0.0.1", timeout=wrong)
    with pytest.raises(
        ValueError, match=r"ttl is a number of seconds from 0\.5 to 86400, not -1"
    ):
        semlock.connect("etcd://127.0.0.1", ttl=-1)


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def tls_server(certificates):
    with running(PostgreSQL, certificates) as server:
        yield server


def test_tls_with_postgresql_is_used_and_checked(tls_server, certificates, tmp_path):
    url = url_of(tls_server)
    with semlock.connect(url, ca=certificates.ca, ttl=TTL) as space, space.Lock("deploy"):
        session = space.client.engine._main
        assert session.pq.ssl_in_use
    other = servers.make_certificates(str(tmp_path))
    refuses_to_connect(url, "certificate", ca=other.ca)
    refuses_to_connect(url + "?sslmode=verify-full", "certificate")
    refuses_to_connect(url, "certificate", ca=str(tmp_path / "missing"))


def test_tls_with_a_postgresql_that_has_none(postgresql_server, certificates):
    refuses_to_connect(url_of(postgresql_server), "SSL", ca=certificates.ca)


@pytest.mark.parametrize("scheme", ["rediss", "etcds"])
def test_tls_with_a_server_that_has_none(scheme, request):
    server = request.getfixturevalue(f"{scheme[:-1]}_server")
    refuses_to_connect(
        login(scheme, server.address), "could not be connected to.*TLS", **IN_VAIN
    )


def test_tls_with_an_etcd_that_has_none_and_resets_the_connection():
    """Its reset overtakes what it answered, if this process was not quick to read."""

    def reset(connection):
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with server_that(reset) as address:
        refuses_to_connect(login("etcds", address), "could not be connected to.*TLS", **IN_VAIN)


# ---------------------------------------------------------------- a server that takes no writes


@pytest.fixture(scope="module")
def standby():
    """A PostgreSQL and its hot standby."""
    with running(PostgreSQL, settings={"wal_level": "replica"}) as primary:
        with semlock.connect(url_of(primary), ttl=TTL):
            pass
        with servers.directory_for("standby") as directory:
            follower = primary.follower(directory)
            try:
                yield primary, follower
            finally:
                follower.close()


def test_a_hot_standby_is_refused_and_passed_over(standby):
    primary, follower = standby
    refuses_to_connect(url_of(follower), "read-only|primary")
    both = url_of(follower).replace(follower.address, f"{follower.address},{primary.address}")
    with semlock.connect(both, ttl=TTL) as space, space.Lock("deploy"):
        assert space.client.engine._main.pq.port == str(primary.port).encode()


def test_a_redis_that_becomes_a_replica_takes_nothing(redis_server):
    with running(Redis) as server, semlock.connect(url_of(server), ttl=TTL) as space:
        with space.Lock("deploy"):
            pass
        server.command(f"REPLICAOF 127.0.0.1 {redis_server.port}")
        with refused("replica|READONLY|primary"):
            space.Lock("deploy").acquire(timeout=1)
        server.command("REPLICAOF NO ONE")
        with space.Lock("deploy").acquire(timeout=PATIENCE):
            pass


# ---------------------------------------------------------------- a pooler


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_is_found(postgresql_server, mode):
    """It gives one session to several clients, and the lock is the session's."""
    with running(PgBouncer, postgresql_server, mode=mode) as pooler:
        refuses_to_connect(url_of(pooler), "pooler")


# ---------------------------------------------------------------- a full disk, or full memory


def goes_on_after(space, mend) -> None:
    """See that nothing of what failed was left, once the server takes writes again."""
    mend()
    with space.Lock("deploy").acquire(timeout=PATIENCE):
        pass
    wait_until(lambda: space.list() == [], "nothing is left")


def test_a_redis_without_memory():
    with running(Redis) as server, semlock.connect(url_of(server), ttl=TTL) as space:
        assert server.command("CONFIG SET maxmemory 1").startswith(b"+OK")
        with refused("OOM|memory"):
            space.Lock("deploy").acquire(timeout=1)
        with refused("OOM|memory"):
            space.Lock("deploy").try_acquire()
        goes_on_after(space, lambda: server.command("CONFIG SET maxmemory 0"))


def test_a_redis_that_can_not_save():
    settings = {"save": "3600 1000000", "appendonly": "no", "enable-protected-configs": "yes"}
    with running(Redis, settings=settings) as server:
        with semlock.connect(url_of(server), ttl=TTL) as space:
            with space.Lock("deploy"):
                pass
            # Its snapshot can't take the place of a directory.
            os.mkdir(f"{server.directory}/full.rdb")
            open(f"{server.directory}/full.rdb/x", "w").close()
            assert server.command("CONFIG SET dbfilename full.rdb").startswith(b"+OK")
            server.command("BGSAVE")
            wait_until(
                lambda: b"MISCONF" in server.command("SET key value"), "its save has failed"
            )
            with refused("MISCONF|snapshot|disk"):
                space.Lock("deploy").acquire(timeout=1)
            goes_on_after(
                space, lambda: server.command("CONFIG SET stop-writes-on-bgsave-error no")
            )


def test_an_etcd_without_space():
    with running(Etcd, more=["--quota-backend-bytes", "200000"]) as server:
        with semlock.connect(url_of(server), ttl=TTL) as space:
            for _ in range(100):
                try:
                    server.call("kv/put", key="a2V5", value="x" * 40_000)
                except OSError:
                    break
            else:
                pytest.fail("etcd has taken a hundred values of 30 kB")
            with refused("space|NOSPACE|exceeded"):
                space.Lock("deploy").acquire(timeout=1)
            with refused("space|NOSPACE|exceeded"):
                with semlock.connect(url_of(server), ttl=TTL) as other:
                    other.Lock("other").try_acquire()


@pytest.mark.skipif(not users.ROOT, reason="needs root, to mount a small filesystem")
def test_a_postgresql_on_a_full_disk(small):
    psycopg = pytest.importorskip("psycopg")
    with running(PostgreSQL) as server:
        if (user := server.user()) is not None:
            os.chown(small, user, user)
        with semlock.connect(url_of(server), ttl=TTL) as space:
            with psycopg.connect(url_of(server), autocommit=True) as admin:
                admin.execute(f"CREATE TABLESPACE small LOCATION '{small}'")
                admin.execute("ALTER TABLE semlock.entry SET TABLESPACE small")
            fill(small)
            with refused("No space|disk"):
                for number in range(300):
                    with space.Lock(f"{number} " * 100).acquire(timeout=1):
                        pass
            goes_on_after(space, lambda: os.unlink(f"{small}/fill"))


@pytest.fixture
def small():
    """A filesystem of 200 KiB, which another user can reach."""
    with servers.directory_for("small") as directory:
        mount = ["mount", "-t", "tmpfs", "-o", "size=200k,mode=777", "none", directory]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("no filesystem can be mounted here")
        try:
            yield directory
        finally:
            subprocess.run(["umount", "-l", directory], check=False)


def fill(directory) -> None:
    """Fill a filesystem."""
    with open(f"{directory}/fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
