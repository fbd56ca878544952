"""A watch of etcd: one answer of HTTP that goes on, and what its messages are made of."""

from __future__ import annotations

import base64
import json
import ssl
from time import monotonic

from semlock._engines.engine import Away, Refused

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    import socket
    from typing import Any

LEAST = 0.02  # seconds for a connection, however little time is left
_CHUNK = 1 << 16
_LONGEST_HEAD = 1 << 14


def encoded(text: str | bytes) -> str:
    """Write a key or a value as the gateway wants it."""
    data = text.encode() if isinstance(text, str) else text
    return base64.b64encode(data).decode("ascii")


def decoded(text: str) -> str:
    """Read a key or a value."""
    return base64.b64decode(text).decode("utf-8", "replace")


def words_of(error: BaseException) -> str:
    """Say in a few words what went wrong."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class Stream:
    """One watch: an answer that goes on, from which messages come as they happen."""

    def __init__(self, sock: socket.socket, within: float) -> None:
        self.sock = sock
        self._data = b""  # what came, and is not taken apart
        self._line = b""  # the message that is not yet complete
        self._in_body = False
        try:
            until = monotonic() + within
            messages: list[dict[str, Any]] = []
            while not messages:
                sock.settimeout(max(LEAST, until - monotonic()))
                self._take(sock.recv(_CHUNK))
                messages = self._messages()
            first = messages.pop(0)
            if not first.get("created"):
                raise Away("etcd begins no watch")  # noqa: TRY301 - closed below
            self.revision = int(first["header"]["revision"])
            self.early = messages  # of which the socket does not tell any more
            sock.setblocking(False)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Give the number of its descriptor, for ``select``."""
        return self.sock.fileno()

    def read(self) -> list[dict[str, Any]]:
        """Give the messages that have come; ``Away`` if the watch has ended."""
        found, self.early = self.early, []
        while True:
            try:
                self._take(self.sock.recv(_CHUNK))
            except (BlockingIOError, ssl.SSLWantReadError):  # noqa: PERF203 - all that came
                break
            except OSError as error:
                raise Away(f"a watch has ended: {words_of(error)}") from None
        try:
            found += self._messages()
        except (ValueError, KeyError, TypeError):
            raise Away("what a watch has told can't be read") from None
        if any(message.get("canceled") for message in found):
            raise Away("etcd has ended a watch")
        return found

    def close(self) -> None:
        """End it."""
        self.sock.close()

    def _take(self, data: bytes) -> None:
        if not data:
            raise Away("a watch has ended")
        self._data += data

    def _messages(self) -> list[dict[str, Any]]:
        if not self._in_body:
            head, end, rest = self._data.partition(b"\r\n\r\n")
            if not end:
                if len(head) > _LONGEST_HEAD:
                    raise Refused("what answers is not etcd")
                return []
            if head.split(b" ", 2)[1:2] != [b"200"]:
                raise Away("etcd begins no watch: " + head[:80].decode("latin-1"))
            self._in_body = True
            self._data = rest
        while True:  # chunks of HTTP: a length in hexadecimal digits, and so many bytes
            size, end, rest = self._data.partition(b"\r\n")
            if not end:
                break
            length = int(size, 16)
            if not length:
                raise Away("a watch has ended")
            if len(rest) < length + 2:
                break
            self._line += rest[:length]
            self._data = rest[length + 2 :]
        *lines, self._line = self._line.split(b"\n")
        found = []
        for line in lines:
            message = json.loads(line)
            if "result" not in message:
                raise Away(f"a watch has ended: {message.get('error')!r:.200}")
            found.append(message["result"])
        return found
