"""A proxy between a client and a server, which delays, cuts and loses what is sent.

It passes bytes on and knows no protocol.  A request is what a client sends in one piece, and the
answer what the server sends next on the same connection, which is exact for clients that send one
request at a time.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

from servers import LOOPBACK

# Closing sends a reset, so that the peer's next call fails at once.
_RESET = struct.pack("ii", 1, 0)
_SIZE = 1 << 16
# Seconds after which a server's keepalives end the connection of a client that has vanished.
_KEEPALIVE = 4.0


class Fault:
    """One fault: what is lost, of which requests, and of how many."""

    def __init__(self, kind: str, pattern: bytes, count: int) -> None:
        self.kind, self.pattern, self.left = kind, pattern, count
        self.happened = threading.Event()


class _Link:
    """One connection of a client, and that to the server which belongs to it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.losing: Fault | None = None  # its request was passed on, and its answer is lost
        self.held_up = False  # by a partition

    def cut(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
            end.close()


class FaultProxy:
    """``with FaultProxy(server.port) as proxy:`` the client connects to ``proxy.address``.

    ``lose_requests`` and ``lose_answers`` concern the next requests that contain a pattern, and
    cut their connections; ``delay`` makes each piece late; ``partition`` stops all, and ``heal``
    passes on what was sent meanwhile, as TCP does; ``cut`` ends all connections; ``refuse`` makes
    new ones end at once.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._guard = threading.Lock()
        self._links: list[_Link] = []
        self._faults: list[Fault] = []
        self._threads: list[threading.Thread] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = self._refuses = False
        self._ended = threading.Event()
        self._delays = {"request": 0.0, "answer": 0.0}
        self.requests: list[bytes] = []  # what clients have sent, piece by piece
        self.passed: list[bytes] = []  # what of it the server was sent
        self.connections = 0
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"{LOOPBACK}:{self.port}"
        self._begin(self._accept)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ faults

    def lose_requests(self, pattern: bytes = b"", count: int = 1) -> Fault:
        """Keep the next requests from the server."""
        return self._add(Fault("request", pattern, count))

    def lose_answers(self, pattern: bytes = b"", count: int = 1) -> Fault:
        """Have the next requests carried out, and keep the answers from the client."""
        return self._add(Fault("answer", pattern, count))

    def delay(self, *, requests: float = 0.0, answers: float = 0.0) -> None:
        """Pass on each piece only after some seconds."""
        self._delays = {"request": requests, "answer": answers}

    def partition(self) -> None:
        """Pass on nothing, in either direction; connections stay."""
        self._flowing.clear()

    def heal(self) -> None:
        """Pass on again, and what was sent meanwhile too."""
        self._refuses = False
        self._flowing.set()

    def refuse(self) -> None:
        """End all connections, and new ones at once."""
        self._refuses = True
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        with self._guard:
            links, self._links = self._links, []
        for link in links:
            link.cut()

    def close(self) -> None:
        """End everything, the threads too."""
        self._closed = True
        self._ended.set()
        self._flowing.set()
        self._delays = {"request": 0.0, "answer": 0.0}
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        self.cut()

    # ------------------------------------------------------------------ passing on

    def _add(self, fault: Fault) -> Fault:
        with self._guard:
            self._faults.append(fault)
        return fault

    def _begin(self, work, *arguments) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                if self._refuses or self._closed:
                    raise ConnectionRefusedError
                server = socket.create_connection((LOOPBACK, self._server_port))
            except OSError:  # as from a port where nothing listens
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, server)
            with self._guard:
                self._links.append(link)
            self._begin(self._pass_on, link, client, server, "request")
            self._begin(self._pass_on, link, server, client, "answer")

    def _matching(self, data: bytes) -> Fault | None:
        with self._guard:
            self.requests.append(data)
            for fault in self._faults:
                if fault.left and fault.pattern in data:
                    fault.left -= 1
                    return fault
        return None

    def _pass_on(self, link: _Link, source, target, kind: str) -> None:
        try:
            while data := source.recv(_SIZE):
                if kind == "request" and (fault := self._matching(data)) is not None:
                    if fault.kind == "request":
                        fault.happened.set()
                        break
                    link.losing = fault
                elif kind == "answer" and link.losing is not None:
                    link.losing.happened.set()
                    break
                if late := self._delays[kind]:
                    time.sleep(late)
                link.held_up |= not self._flowing.is_set()
                self._flowing.wait()
                target.sendall(data)
                if kind == "request":
                    self.passed.append(data)
            if kind == "request" and link.held_up:
                # The end of the client was lost in the partition: the server notices it when it
                # asks whether the connection lives.
                self._ended.wait(_KEEPALIVE)
        except OSError:
            pass
        self._flowing.wait()  # an end passes on as little as data does
        link.cut()
        with self._guard, contextlib.suppress(ValueError):
            self._links.remove(link)
