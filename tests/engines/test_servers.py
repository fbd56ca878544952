"""The servers of the tests start, are killed, come back with their data, and leave nothing."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

import servers
from servers import Etcd, PostgreSQL, Redis, running
from support import state_of, wait_until


def listens(server) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((servers.LOOPBACK, server.port)) == 0


def put(server, key: str) -> None:
    server.call("kv/put", key=base64.b64encode(key.encode()).decode(), value="MQ==")


@pytest.mark.parametrize("kind", [Etcd, PostgreSQL, Redis])
def test_a_server_answers_is_killed_comes_back_on_its_port_and_leaves_nothing(kind):
    with running(kind) as server:
        port, first = server.port, server.pid
        assert listens(server)
        server.kill()
        assert not listens(server)
        server.restart()
        assert server.port == port
        assert server.pid != first
        directory, pid = server.directory, server.pid
    assert state_of(pid) == ""
    assert not os.path.exists(directory)


def test_what_etcd_has_stored_survives_a_kill():
    with running(Etcd) as server:
        put(server, "kept")
        server.kill()
        server.restart()
        assert server.keys()[b"kept"] == b"1"


def test_a_paused_server_accepts_connections_and_answers_after_it_goes_on(redis_server):
    redis_server.pause()
    try:
        assert not redis_server.is_ready()
    finally:
        redis_server.resume()
    wait_until(redis_server.is_ready, "it answers again")


def test_a_cluster_goes_on_without_its_leader(etcd_cluster):
    leader = etcd_cluster.leader()
    leader.kill()
    try:
        survivor = next(member for member in etcd_cluster.members if member is not leader)
        survivor.wait_ready()
        put(survivor, "after the leader")
        assert etcd_cluster.leader() is not leader
    finally:
        etcd_cluster.mend()
    assert b"after the leader" in leader.keys()


@pytest.mark.parametrize("kind", [Etcd, PostgreSQL, Redis])
def test_a_server_with_tls(kind, certificates):
    with running(kind, certificates) as server:
        assert server.is_ready()


def test_etcd_with_a_password(certificates):
    with running(Etcd, certificates) as server:
        server.want_password()
        put(server, "by root")
        server.authorization = ""
        with pytest.raises(OSError, match="user name"):
            put(server, "by a stranger")


def test_no_server_survives_a_killed_test_run(tmp_path):
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import servers\n"
        "with servers.running(servers.Redis) as server:\n"
        "    print(server.pid, server.directory, flush=True)\n"
        "    input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        pid, directory = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: state_of(int(pid)) in ("", "Z"), "the server has ended")
    shutil.rmtree(os.path.dirname(directory))
