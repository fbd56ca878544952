"""Disks for a virtual machine, with a write cache that a power cut loses.

A disk is a server of the NBD protocol.  What the machine writes is in the cache until the machine
flushes it; reads see it at once.  ``cut`` is the power cut: of what is in the cache, some writes
have come to the disk, in parts of a sector's size, and the others are lost.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

# What a disk writes as a whole.  A superblock of ext4 that is torn into smaller parts has a wrong
# checksum and can't be mounted, which no test here is about.
SECTOR = 4096

_MAGIC = 0x4E42444D41474943
_OPTION = 0x49484156454F5054
_REPLY = 0x3E889045565A9
_REQUEST = struct.Struct(">IHHQQI")
_ANSWER = struct.Struct(">IIQ")
_FLAGS = 1 | 4 | 8  # there are flags; it can flush; it can write through the cache
_OPTIONS = {"export name": 1, "abort": 2, "go": 7}
_UNSUPPORTED = 2**31 + 1
_READ, _WRITE, _LEAVE, _FLUSH = range(4)
_THROUGH = 1


class Disk:
    """One disk, and the server by which a machine reaches it.

    :path:      the socket of the server
    :content:   what is on the disk at first
    :caches:    whether it has a cache; without one, what is written is on the disk
    """

    def __init__(self, path: str, content: bytes | bytearray, *, caches: bool = True) -> None:
        self.path = path
        self.caches = caches
        self.flushes = 0
        self.lost = 0
        self._seen = bytearray(content)  # what a machine reads
        self._kept = bytearray(content)  # what is on the disk
        self._cache: list[tuple[int, bytes, bool]] = []
        self._lock = threading.Lock()
        self._talks: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections, and remove the socket."""
        self._listener.close()
        os.unlink(self.path)

    def write(self, at: int, data: bytes, *, through: bool = False) -> None:
        """Write as a machine does."""
        with self._lock:
            self._seen[at : at + len(data)] = data
            if self.caches:
                self._cache.append((at, data, through))
            else:
                self._kept[at : at + len(data)] = data

    def read(self, at: int, length: int) -> bytes:
        """Read as a machine does."""
        with self._lock:
            return bytes(self._seen[at : at + length])

    def flush(self) -> None:
        """Bring all that was written to the disk."""
        with self._lock:
            self.flushes += 1
            for at, data, _ in self._cache:
                self._kept[at : at + len(data)] = data
            self._cache.clear()

    def cut(self, chance: random.Random) -> None:
        """Cut the power: each write of the cache is on the disk, in part, or not at all.

        The machine must have been killed.  What it has sent comes before the cut.
        """
        while self._talks:
            self._talks.pop().join()
        with self._lock:
            share = chance.choice([0.0, 0.2, 0.5, 0.8, 1.0])
            for at, data, through in self._cache:
                for start in range(0, len(data), SECTOR):
                    part = data[start : start + SECTOR]
                    # Mostly all of a write has one fate.
                    if start == 0 or chance.random() < 0.05:
                        comes = through or chance.random() < share
                    if comes or through:
                        self._kept[at + start : at + start + len(part)] = part
                    else:
                        self.lost += 1
            for at, data, _ in self._cache:
                self._seen[at : at + len(data)] = self._kept[at : at + len(data)]
            self._cache.clear()

    # ------------------------------------------------------------------ the server

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                talk = threading.Thread(target=self._talk, args=(peer,), daemon=True)
                self._talks.append(talk)
                talk.start()

    def _talk(self, peer: socket.socket) -> None:
        # A machine that is killed goes in the middle of a word.
        with peer, contextlib.suppress(OSError, EOFError):
            stream = peer.makefile("rwb")
            if self._agree(stream):
                while self._answer(stream):
                    stream.flush()

    def _agree(self, stream) -> bool:
        stream.write(struct.pack(">8sQH", b"NBDMAGIC", _OPTION, 1))
        stream.flush()
        _exactly(stream, 4)
        while True:
            _, option, length = struct.unpack(">QII", _exactly(stream, 16))
            _exactly(stream, length)

            def reply(kind: int, data: bytes = b"", option: int = option) -> None:
                stream.write(struct.pack(">QIII", _REPLY, option, kind, len(data)) + data)
                stream.flush()

            if option == _OPTIONS["go"]:
                reply(3, struct.pack(">HQH", 0, len(self._seen), _FLAGS))
                reply(1)
                return True
            if option == _OPTIONS["export name"]:
                stream.write(struct.pack(">QH124x", len(self._seen), _FLAGS))
                stream.flush()
                return True
            if option == _OPTIONS["abort"]:
                reply(1)
                return False
            reply(_UNSUPPORTED)

    def _answer(self, stream) -> bool:
        _, flags, kind, cookie, at, length = _REQUEST.unpack(_exactly(stream, _REQUEST.size))
        data = b""
        if kind == _LEAVE:
            return False
        if kind == _READ:
            data = self.read(at, length)
        elif kind == _WRITE:
            self.write(at, _exactly(stream, length), through=bool(flags & _THROUGH))
        elif kind == _FLUSH:
            self.flush()
        else:
            raise EOFError
        stream.write(_ANSWER.pack(0x67446698, 0, cookie) + data)
        return True


def _exactly(stream, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data
