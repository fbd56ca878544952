"""The proxy of the tests does to a conversation what its faults say, and no more."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from faultproxy import FaultProxy
from support import wait_until


class Echo:
    """A server that answers each piece with itself, and remembers it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            with stream:
                try:
                    while data := stream.recv(100):
                        self.heard.append(data)
                        stream.sendall(data)
                except OSError:
                    pass

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo):
    with FaultProxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as stream:
        yield stream


def ask(stream, words: bytes) -> bytes:
    stream.sendall(words)
    return stream.recv(100)


def ended(stream) -> bool:
    try:
        return stream.recv(100) == b""
    except ConnectionResetError:
        return True


def refuses(proxy) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as stream:
            return ended(stream)
    except ConnectionResetError:  # it may come as early as that
        return True


def test_it_passes_on(client, echo):
    assert ask(client, b"one") == b"one"
    assert ask(client, b"two") == b"two"
    assert echo.heard == [b"one", b"two"]


def test_a_lost_request_is_not_carried_out_and_the_next_one_is(proxy, client, echo):
    fault = proxy.lose_requests(b"put")
    assert ask(client, b"get") == b"get"
    client.sendall(b"put")
    assert ended(client)
    assert fault.happened.is_set()
    assert echo.heard == [b"get"]
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as again:
        assert ask(again, b"put") == b"put"


def test_a_request_whose_answer_is_lost_is_carried_out(proxy, client, echo):
    fault = proxy.lose_answers(b"put")
    client.sendall(b"put")
    assert ended(client)
    assert fault.happened.is_set()
    assert echo.heard == [b"put"]


def test_answers_come_late(proxy, client):
    proxy.delay(answers=0.1)
    began = time.monotonic()
    assert ask(client, b"one") == b"one"
    assert time.monotonic() - began >= 0.1


def test_a_partition_passes_on_nothing_until_it_is_healed(proxy, client, echo):
    assert ask(client, b"one") == b"one"
    proxy.partition()
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        ask(client, b"two")
    assert echo.heard == [b"one"]
    client.settimeout(5)
    proxy.heal()
    assert client.recv(100) == b"two"


def test_connections_are_cut_and_refused(proxy, client, echo):
    assert ask(client, b"one") == b"one"
    proxy.refuse()
    assert ended(client)
    assert refuses(proxy)
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as again:
        assert ask(again, b"two") == b"two"


def test_a_server_that_is_away_refuses(proxy, echo):
    echo.close()
    assert refuses(proxy)
    echo._listener = socket.create_server(("127.0.0.1", 0))  # for the fixture to close
    echo._thread = threading.Thread(target=echo._work)
    echo._thread.start()


def test_it_leaves_no_thread(echo):
    before = threading.active_count()
    with FaultProxy(echo.port) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as stream:
            ask(stream, b"one")
            proxy.partition()
            stream.sendall(b"two")
    wait_until(lambda: threading.active_count() == before, "its threads have ended")
