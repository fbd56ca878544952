"""``try``, ``acquire`` and ``release`` on an engine: a lock that belongs to the calling shell.

A lease must be renewed, so a process of its own does that in the background until the owner ends,
or until the lock is released or lost.  It gets the address on its standard input, where no list
of processes shows it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading

from semlock._cli import HELD, OK
from semlock._cli.engines import connected, reading
from semlock._cli.output import print_json, say
from semlock._cli.plain import living_owner, near_owner, readable
from semlock._core import capi
from semlock._core.errors import LockEngineError, LockTimeoutError
from semlock._core.identity import other_process, this_process

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._cli import Options
    from semlock._core.identity import Process
    from semlock._core.status import LockStatus

_LOOK_EVERY = 1.0
# Not from the present directory, which -c would search first for each module.
_KEEP = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from semlock._cli.engine_owned import keep; keep()"
)


def attempt(options: Options) -> int:
    """Take a lock for its owner: at once, or waiting for it."""
    url, names = reading(options)
    owner = living_owner(options)
    job = {
        "url": url,
        "name": names[0],
        "tag": None if options.tag is None else readable(options.tag),
        "timeout": 0.0 if options.verb == "try" else options.timeout,
        "owner": owner.pid,
    }
    keeper = subprocess.Popen(
        [sys.executable, "-c", _KEEP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        keeper.stdin.write(json.dumps(job).encode() + b"\n")
        keeper.stdin.flush()
        answer = json.loads(keeper.stdout.readline() or b"{}")
    except BaseException:
        keeper.terminate()
        raise
    if answer.get("error") == "engine" or not answer:
        raise LockEngineError(
            answer.get("message", "the process that keeps the lock has failed")
        )
    if options.json:
        print_json({key: answer[key] for key in ("acquired", "path") if key in answer})
    if answer["acquired"]:
        return OK
    if not options.quiet:
        say(answer["message"])
    return HELD


def keep() -> None:
    """Take a lock, say whether it is held, and keep it until its owner ends."""
    import signal  # noqa: PLC0415 - in the background

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    job = json.loads(sys.stdin.buffer.readline())
    lost = threading.Event()
    try:
        space = connected(job["url"])
        lock: Any = space.Lock(job["name"], tag=job["tag"], on_lost=lambda *_: lost.set())
        lock.owner = other_process(job["owner"])
        lock.acquire(timeout=job["timeout"])
    except LockTimeoutError as error:
        _answer({"acquired": False, "message": str(error), "path": error.path})
        return
    except (OSError, ValueError) as error:
        _answer({"error": "engine", "message": str(error)})
        return
    _answer({"acquired": True, "path": lock.path})
    with space:
        _until_over(job["owner"], lock.owner.start, lost)


def _answer(fields: dict[str, Any]) -> None:
    """Say how it went, and keep none of the caller's streams."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(2):
        os.dup2(null, number)


def _until_over(pid: int, start: int, lost: threading.Event) -> None:
    """Sleep until the owner has ended or the lock is lost."""
    ended = None
    if hasattr(os, "pidfd_open"):
        try:
            ended = os.pidfd_open(pid)
        except OSError:
            ended = None
    while not lost.is_set() and capi.probe(pid, start) not in (
        capi.GONE,
        capi.ZOMBIE,
        capi.RECYCLED,
    ):
        if ended is not None:
            select.select([ended], [], [], _LOOK_EVERY)
        else:
            lost.wait(_LOOK_EVERY)


def release(options: Options) -> int:
    """Release the lock that ``try`` or ``acquire`` took for this owner."""
    url, names = reading(options)
    near = [] if options.force else near_owner(options)
    with connected(url) as space:
        found = space.holders(names[0])
        mine = next(
            (o for o in found if options.force or any(_names(o, p) for p in near)), None
        )
        if mine is None or mine.info is None or mine.info.token is None:
            if not options.quiet:
                holder = found[0].holder
                say(f"{found[0].path} is not held by this owner, but by {holder}")
            return HELD
        gone = space.remove(names[0], only_if=mine.info.token, force=True)
    if options.json:
        print_json({"released": gone is not None, "path": mine.path})
    return OK if gone is not None else HELD


def _names(found: LockStatus, owner: Process) -> bool:
    info, me = found.info, this_process()
    if info is None:
        return False
    return (info.pid, info.boot, info.pidns or 0, info.start) == (
        owner.pid, me.boot, me.pidns, owner.start,
    )  # fmt: skip
