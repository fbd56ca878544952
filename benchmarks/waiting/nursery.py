"""The process that workers are forked from.

Starting a Python and importing four libraries takes a tenth of a second; forking a process
that has done so takes a millisecond.  That makes a hundred waiters possible, and a holder to
kill for each sample.  No lock is made before the fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection

from benchmarks.waiting.worker import Worker

_PR_SET_PDEATHSIG = 1


def _preload() -> None:
    for name in ("semlock", "filelock", "fasteners", "portalocker", "asyncio"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that no collection of a worker copies the pages that all share


def _live(channel: Connection) -> None:
    """Do what the channel asks, and answer, until it ends."""
    worker = Worker(channel)
    channel.send(("done", os.getpid()))
    while True:
        try:
            name, arguments = channel.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer = ("done", getattr(worker, name)(*arguments))
        except Exception:
            answer = ("failed", traceback.format_exc())
        channel.send(answer)


def main(descriptor: int) -> None:
    """Fork a worker for each descriptor that comes in, until the socket ends."""
    libc = ctypes.CDLL(None)
    orders = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to reap the workers
    _preload()
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            # A worker may be waiting for a lock, so it is the kernel that ends it when its
            # nursery has gone.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            orders.close()
            status = 1
            try:
                _live(Connection(descriptors[0]))
                status = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(status)
        os.close(descriptors[0])
