"""Seeing what locks do: each request, wait, acquire, refresh, loss, release and reclaim.

::

    import semlock.trace

    semlock.trace.start("/tmp/locks.jsonl")

or, for a program that knows nothing of it, ``SEMLOCK_TRACE=/tmp/locks.jsonl`` in its
environment.  Each event is one line of JSON, written by one call, so many processes can share a
file; ``semlock timeline`` makes a picture of it.  The file is a regular file, a terminal or a
device like ``/dev/null``, and no lock waits for it: an event that can't be written at once is
dropped, and the next line says how many were dropped.

While this is on, Python's audit hooks get each event as ``semlock.<event>``, with the lock's
path and a dictionary of its fields, and the logger ``semlock.trace`` gets it at level DEBUG.
While it is off, there are no audit events and no log.
"""

from __future__ import annotations

import atexit
import os
import sys
from _thread import get_native_id
from json.encoder import encode_basestring_ascii
from time import monotonic_ns, time_ns

from semlock._core import registry
from semlock._core.append import open_to_append
from semlock._core.identity import this_process
from semlock._events import tap

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.status import StrPath
    from semlock._events.tap import Fields

__all__ = ["start", "started", "stop"]

_DEBUG = 10
_QUOTED_LIMIT = 1000
_DROPPED_LIMIT = 1_000_000


class _Writer:
    """Writes events into a file that other processes may share."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._quoted: dict[str, str] = {}
        self._torn = False
        # One entry for each dropped event, as an append is one step for threads.
        self._dropped: list[None] = []
        self._pid = 0
        self._open()

    def _open(self) -> None:
        opened = open_to_append(self._path, 0o666)
        # The number may be another file's one day, so it is not closed without a look.
        self._fd, opened.fd = opened.fd, -1
        found = os.fstat(self._fd)
        self._identity = (found.st_dev, found.st_ino)

    def __call__(self, event: str, path: str, at: int, fields: Fields) -> None:
        try:
            if self._pid != os.getpid():
                self.begin(at)
            self._write(event, path, at, fields)
        except OSError:
            # A full disk or a stopped terminal must not make a lock fail.
            if len(self._dropped) < _DROPPED_LIMIT:
                self._dropped.append(None)

    def begin(self, at: int) -> None:
        """Write the first event of a process, which may be a forked one."""
        self._pid = os.getpid()
        me = this_process()
        # Monotonic clocks are comparable where boot and time namespace are the same.
        clock = f"{me.boot}/{me.timens}"
        fields = {"command": _command(), "host": me.host, "clock": clock}
        try:
            self._write("start", "", at, fields)
        except OSError:
            self._pid = 0
            raise

    def end(self) -> None:
        """Write the last event, if this process has written any."""
        if self._pid == os.getpid():
            self("exit", "", monotonic_ns(), {})

    def close(self) -> None:
        """Close the file, if the descriptor is still that file."""
        if self._is_ours():
            os.close(self._fd)

    def _is_ours(self) -> bool:
        # A daemon closes all descriptors at its start, and its own files reuse the numbers.
        try:
            found = os.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _write(self, event: str, path: str, at: int, fields: Fields) -> None:
        wall = time_ns() - monotonic_ns() + at
        parts = [f'{{"t":{wall},"mono":{at},"event":"{event}"']
        parts.append(f'"pid":{self._pid},"thread":{get_native_id()}')
        if path:
            parts.append(f'"lock":{self._quote(path)}')
        task = _task()
        if task is not None:
            parts.append(f'"task":{encode_basestring_ascii(task)}')
        for name, value in fields.items():
            if isinstance(value, str):
                parts.append(f'"{name}":{encode_basestring_ascii(value)}')
            elif value is not None:
                parts.append(f'"{name}":{value}')
        line = (",".join(parts) + "}\n").encode("ascii")
        if not self._is_ours():
            self._open()
        dropped = len(self._dropped)
        if dropped:
            told = f'{{"t":{wall},"mono":{at},"event":"dropped","pid":{self._pid},'
            line = f'{told}"count":{dropped}}}\n'.encode("ascii") + line
        if self._torn:
            # After an incomplete line, this one must begin on a new line.
            line = b"\n" + line
        self._torn = os.write(self._fd, line) != len(line)
        del self._dropped[:dropped]

    def _quote(self, path: str) -> str:
        quoted = self._quoted.get(path)
        if quoted is None:
            if len(self._quoted) >= _QUOTED_LIMIT:
                self._quoted.clear()
            quoted = self._quoted[path] = encode_basestring_ascii(path)
        return quoted


def _command() -> str:
    """Give this process's program, without arguments, which may contain secrets."""
    script = sys.argv[0] if getattr(sys, "argv", None) else ""
    if script == "-m" and "-m" in sys.orig_argv[:-1]:
        # Python replaces it by the module's file only later.
        script = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    name = os.path.basename(script)
    if name == "__main__.py":
        name = os.path.basename(os.path.dirname(script))
    return name if name and name != "-c" else os.path.basename(sys.executable or "python")


def _task() -> str | None:
    """Name the running task, if there is one."""
    asyncio = registry.imported("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        return None if task is None else str(task.get_name())
    trio = registry.imported("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return str(trio.lowlevel.current_task().name)
    return None


def _raise_audit_event(event: str, path: str, at: int, fields: Fields) -> None:
    sys.audit(f"semlock.{event}", path, {"mono": at, **fields})


def _log(event: str, path: str, at: int, fields: Fields) -> None:
    logging: Any = registry.imported("logging")
    if logging is None:
        return  # no handler can be installed
    logger = logging.getLogger("semlock.trace")
    if logger.isEnabledFor(_DEBUG):
        told = " ".join(f"{name}={value}" for name, value in fields.items())
        extra = {"semlock": {"event": event, "lock": path, "mono": at, **fields}}
        logger.debug("%s %s %s", event, path, told, extra=extra)


_started = False
_writer: _Writer | None = None


def start(path: StrPath | None = None) -> None:
    """Trace all locks of this process from now on, and of its forked children.

    The events are appended to the file at ``path``, which is created if needed; without a path
    they go to audit hooks and to the log only.  Called again, it changes the file.
    """
    global _started, _writer  # noqa: PLW0603 - one for each process
    with tap.changing:
        writer = None if path is None else _Writer(os.path.abspath(os.fsdecode(path)))
        _stop_writing()
        if writer is not None:
            try:
                writer.begin(monotonic_ns())
            except BlockingIOError:
                pass  # a stopped terminal: written with a later event
            except OSError:
                writer.close()
                raise
            _writer = writer
            tap.listen(writer)
        if not _started:
            _started = True
            tap.listen(_log)
            tap.listen(_raise_audit_event)


def stop() -> None:
    """End the trace; locks are then as fast as before."""
    global _started  # noqa: PLW0603
    with tap.changing:
        _started = False
        tap.unlisten(_raise_audit_event)
        tap.unlisten(_log)
        _stop_writing()


def started() -> bool:
    """Tell whether a trace is on."""
    return _started


def _stop_writing() -> None:
    global _writer
    writer, _writer = _writer, None
    if writer is not None:
        tap.unlisten(writer)
        writer.end()
        writer.close()


def start_by_environment(path: str) -> None:
    """Start a trace for ``SEMLOCK_TRACE`` in the environment, and never end it."""
    try:
        start(path or None)
    except OSError as error:
        from warnings import warn  # noqa: PLC0415 - hardly ever needed

        why = error.strerror or str(error)
        warn(
            f"nothing is traced: SEMLOCK_TRACE={path} can't be written: {why}",
            RuntimeWarning,
            stacklevel=3,
        )


def _at_exit() -> None:
    if _writer is not None:
        _writer.end()


atexit.register(_at_exit)
