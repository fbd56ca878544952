"""Wrong addresses, and servers with something wrong: what is told, and how soon."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import uuid

import pytest

import semlock
import servers
from engine_urls import url_of
from support import PATIENCE, wait_until


@pytest.mark.parametrize("scheme", ["etcd", "redis", "postgresql"])
def test_a_host_whose_name_is_too_long_is_a_wrong_address(scheme):
    with pytest.raises(ValueError, match="hosts can't be read"):
        semlock.connect(f"{scheme}://{'x' * 64}.example/")


@pytest.mark.parametrize("engine", ["redis", "postgresql", "etcd", "directory"])
@pytest.mark.parametrize(
    ("name", "longer", "other"),
    [
        ("a:b", ":a", "b"),
        ("x", "/x", "deploy"),
        ("q", ":line", "q"),
        ("fence", ":line", "x"),
        ("%3Aa", ":", "a"),
    ],
)
def test_a_prefix_within_another_one_is_another_space(
    engine, name, longer, other, request, tmp_path
):
    if engine == "directory":
        url = tmp_path.as_uri()
    else:
        url = url_of(request.getfixturevalue(f"{engine}_server"))
    prefix = uuid.uuid4().hex
    with (
        semlock.connect(url, prefix=prefix) as one,
        semlock.connect(url, prefix=prefix + longer) as two,
        two.Lock(other).acquire(timeout=0) as second,
        one.Lock(name).acquire(timeout=0) as first,
    ):
        assert (one.list(), two.list()) == ([name], [other])
        first.check()
        second.check()


def test_an_option_of_an_address_is_given_once():
    with pytest.raises(ValueError, match="'ttl' more than once"):
        semlock.connect("redis://:SECRET@h?ttl=3&prefix=a&ttl=4")


def test_a_space_of_a_directory_that_is_open_at_the_end_of_a_program_says_nothing(tmp_path):
    """What is left then is deleted after the modules are empty."""
    program = (
        "import semlock, sys; first = semlock.connect(sys.argv[1]); "
        "first.Lock('a').acquire(); spaces = [first, semlock.connect(sys.argv[1])]; "
        "spaces.append(spaces)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path.as_uri()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""


def test_a_closed_port_is_told_in_time():
    began = time.monotonic()
    with pytest.raises(semlock.LockEngineError, match=r"127\.0\.0\.1") as failure:
        semlock.connect(f"redis://u:SECRET@127.0.0.1:{servers.free_port()}", ttl=1.5)
    assert time.monotonic() - began < PATIENCE
    assert "SECRET" not in repr(failure.value)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
def test_what_is_no_redis_is_told_in_time(says):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(says)
                kept.append(connection)

        kept = []
        threading.Thread(target=serve, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(semlock.LockEngineError, match="could not be connected"):
            semlock.connect(f"redis://127.0.0.1:{server.getsockname()[1]}", timeout=0.4)
        assert time.monotonic() - began < PATIENCE
        for connection in kept:
            connection.close()


def test_a_wrong_password_is_told_and_never_shown():
    with servers.running(servers.Redis, password=servers.PASSWORD) as server:
        with semlock.connect(url_of(server)) as space:
            with space.Lock("deploy") as lock:
                for shown in (repr(space), repr(lock), lock.path, repr(lock.status())):
                    assert servers.PASSWORD not in shown
                    assert "s3cret" not in shown
        wrong = "redis://:WRONGSECRET@" + server.address
        for url in (wrong, "redis://" + server.address):
            with pytest.raises(semlock.LockEngineError) as failure:
                semlock.connect(url)
            assert "WRONGSECRET" not in repr(failure.value)


def test_a_replica_is_refused(redis_server):
    with servers.running(servers.Redis) as replica:
        host, _, port = redis_server.address.partition(":")
        with socket.create_connection(replica.address.split(":"), 5) as stream:
            stream.sendall(f"REPLICAOF {host} {port}\r\n".encode())
            assert stream.recv(64).startswith(b"+OK")
        with pytest.raises(semlock.LockEngineError, match="replica"):
            semlock.connect(url_of(replica))


def test_tls_is_checked(certificates):
    with servers.running(servers.Redis, certificates) as server:
        with semlock.connect(url_of(server), ca=certificates.ca) as space, space.Lock("deploy"):
            pass
        with pytest.raises(semlock.LockEngineError, match="TLS"):
            semlock.connect(url_of(server))
        with pytest.raises(semlock.LockEngineError):
            semlock.connect(url_of(server).replace("rediss", "redis"), ttl=1.5)


def test_a_server_that_stops_does_not_hold_up_a_short_wait(redis_server):
    """A new connection logs in, and that takes no longer than the request may."""
    with semlock.connect(url_of(redis_server), prefix=uuid.uuid4().hex, ttl=6) as space:
        redis_server.pause()
        try:
            for _ in range(2):  # by the connection that is there, and by a new one
                began = time.monotonic()
                with pytest.raises(semlock.LockEngineError, match="no answer in time"):
                    space.Lock("deploy").acquire(timeout=0.3)
                assert time.monotonic() - began < 3  # it was twice a third of ttl
        finally:
            redis_server.resume()
        with space.Lock("deploy").acquire(timeout=PATIENCE):
            pass


def test_a_server_that_stops_and_goes_on(redis_server):
    with semlock.connect(url_of(redis_server), prefix=uuid.uuid4().hex, ttl=0.9) as space:
        told = []
        lock = space.Lock("deploy", on_lost=lambda *_: told.append(lock.left()))
        lock.acquire()
        redis_server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(semlock.LockEngineError):
                space.Lock("other").acquire(timeout=0.3)
            assert time.monotonic() - began < 1.0
            wait_until(lambda: told, "the end of the lease is told")
            assert told == [0.0]
        finally:
            redis_server.resume()
        with space.Lock("other").acquire(timeout=PATIENCE):
            pass
        with pytest.raises(semlock.LockLostError):
            lock.release()


def test_a_server_that_was_killed_and_started_again_is_found():
    with servers.running(servers.Redis, settings={"appendfsync": "always"}) as server:
        with semlock.connect(url_of(server), ttl=3.0) as space:
            with space.Lock("deploy") as lock:
                fence = lock.fence
                server.kill()
                server.start()
                lock.check()
                assert lock.fence == fence
            with space.Lock("deploy") as lock:
                assert lock.fence > fence
