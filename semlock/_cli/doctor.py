"""``doctor``: tries what locks need in a directory, and says what is guaranteed there."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
from contextlib import suppress
from shutil import rmtree
from typing import NamedTuple

from semlock._cli import BAD, OK, Options
from semlock._cli.output import existing, print_facts
from semlock._core import capi, inside, waits
from semlock._core.identity import this_process
from semlock._core.paths import mount_of
from semlock._locks.lock import Lock

if sys.platform != "win32":
    import fcntl
    import resource

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The results of a check: works, works with limits, doesn't work.
FINE = "ok"
LIMITED = "limited"
BROKEN = "no"

_PATIENCE = 1_000_000_000
_SKEW = 2.0
_FEW_FILES = 256
_FEW_INSTANCES = 16
_FEW_FREE = 16


class Finding(NamedTuple):
    """The result of one check, in words and as one word."""

    name: str
    result: str
    detail: str


def doctor(options: Options) -> int:
    """Try everything, and report what works and what that means."""
    directory = os.path.abspath(existing(options.lock if options.locks else "."))
    if not os.path.isdir(directory):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
    # Everything is tried in a directory of its own, which is removed at the end as far as
    # possible.
    place = tempfile.mkdtemp(prefix=".semlock-doctor-", dir=directory)
    try:
        findings = list(_examine(directory, place))
        capi.drain_pool(place)  # some systems can't remove open files
    finally:
        rmtree(place, ignore_errors=True)
    guarantees = list(_guarantees({finding.name: finding for finding in findings}))
    for kind, found in (("check", findings), ("guarantee", guarantees)):
        print_facts(kind, found, options, directory=directory)
    return BAD if any(finding.result == BROKEN for finding in guarantees) else OK


def _examine(directory: str, place: str) -> Iterator[Finding]:
    checks: tuple[tuple[str, Callable[[str], tuple[str, str]]], ...] = (
        ("create", _create),
        ("link", _link),
        ("unnamed", _unnamed),
        ("flock", _flock),
        ("witness", _witness),
        ("death", _death),
        ("events", _events),
        ("fsync", _fsync),
        ("clock", _clock),
    )
    removal = Finding("remove", *_remove(place))
    yield removal
    if removal.result == BROKEN:
        return  # the other checks would leave files behind
    yield Finding("filesystem", *_filesystem(place))
    yield Finding("access", *_access(directory))
    for name, check in checks:
        try:
            result, detail = check(os.path.join(place, name))
        except OSError as error:
            result, detail = BROKEN, f"{error.strerror or error}"
        yield Finding(name, result, detail)
    yield Finding("process", *_process())
    yield Finding("limits", *_limits(directory))


def _remove(place: str) -> tuple[str, str]:
    """Remove the directory of the checks, and a file in it."""
    path = os.path.join(place, "remove")
    try:
        os.rmdir(place)
        os.mkdir(place, 0o700)
        with open(path, "xb"):
            pass
        os.unlink(path)
    except OSError as error:
        return BROKEN, f"what was made can't be removed: {error.strerror or error}"
    return FINE, "what was made can be removed"


def _filesystem(place: str) -> tuple[str, str]:
    path = os.path.join(place, "what")
    with Lock(path, durability="none") as lock:
        look = lock.status().instance
    local = look is not None and bool(look.local)
    words = mount_of(place)
    kind = " on ".join(words[words.index("-") + 1 :][:2]) if words else ""
    where = "local" if local else "not known to be local: it is treated as a network's"
    return FINE if local else LIMITED, f"{kind}, {where}" if kind else where


def _access(directory: str) -> tuple[str, str]:
    mode = os.stat(directory).st_mode
    if sys.platform == "win32" or not mode & 0o022:
        return FINE, "only its owner can remove others' locks"
    if mode & 0o1000:
        return (
            LIMITED,
            "sticky: a dead lock can only be removed by the user who made it, or root",
        )
    return LIMITED, "others may write to it, and can remove any lock"


def _create(path: str) -> tuple[str, str]:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(path, flags, 0o600))
    try:
        os.close(os.open(path, flags, 0o600))
    except FileExistsError:
        return FINE, "O_CREAT|O_EXCL creates a file once"
    return BROKEN, "O_CREAT|O_EXCL created a file that exists"


def _link(path: str) -> tuple[str, str]:
    with open(path + ".1", "wb"):
        pass
    try:
        os.link(path + ".1", path)
    except OSError as error:
        # The core then creates the lock at its path, which is exclusive too.
        return LIMITED, f"no hard links ({error.strerror}): a lock is created at its path"
    try:
        os.link(path + ".1", path)
    except FileExistsError:
        return FINE, "a finished file is linked to its name once"
    return BROKEN, "link replaced a file that exists"


def _unnamed(path: str) -> tuple[str, str]:
    if not hasattr(os, "O_TMPFILE"):
        return LIMITED, "this system has no unnamed files: a temporary name is used"
    try:
        fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        return LIMITED, f"no unnamed files ({error.strerror}): a temporary name is used"
    links = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        # Python asks the system to follow the link only if a directory's descriptor is given.
        os.link(str(fd), path, src_dir_fd=links, follow_symlinks=True)
    except OSError as error:
        return LIMITED, f"an unnamed file gets no name ({error.strerror}): a temporary is used"
    finally:
        os.close(fd)
        os.close(links)
    return FINE, "a kill while a lock is made leaves nothing behind"


def _flock(path: str) -> tuple[str, str]:
    if sys.platform == "win32":
        return FINE, "LockFileEx takes its place"
    else:  # noqa: RET505 - so that type checkers see which system this is for
        with open(path, "w+b") as one, open(path, "r+b") as other:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return FINE, "removal is guarded"
                raise
        return BROKEN, "flock gave one lock to two"


def _witness(path: str) -> tuple[str, str]:
    with Lock(path, durability="none") as lock:
        look = lock.status().instance
        taken = -1 if look is None else look.witness
    if taken == 1:
        return FINE, "the kernel keeps a lock on the file for as long as its holder lives"
    return LIMITED, "no kernel lock is kept on lock files here"


def _death(path: str) -> tuple[str, str]:
    if sys.platform == "win32":
        return LIMITED, "not tried on this system"
    pid = os.fork()
    if pid == 0:
        try:
            Lock(path, durability="none").acquire(0)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    found = Lock(path).status()
    if found.verdict == "dead":
        return FINE, f"tried with a process that died: {found.evidence}"
    return (
        LIMITED,
        f"a process that died while it held is judged {found.verdict}: {found.evidence}",
    )


def _events(path: str) -> tuple[str, str]:
    lock, other = Lock(path, durability="none"), Lock(path)
    lock.acquire(0)
    wait = waits.Wait((inside.native(other),), None, None)
    try:
        if wait.blind:
            return LIMITED, "none: waiters look again and again, at most 50 ms apart"
        wait.arm()
        lock.release()
        before = time.monotonic()
        outcome = wait.sleep(capi.now_ns() + _PATIENCE)
        took = (time.monotonic() - before) * 1000
    finally:
        wait.end()
        if lock.held:
            lock.release()
    if outcome == capi.TIME:
        return LIMITED, "the kernel reports no release, though it said that it would"
    return FINE, f"the kernel reports a release (after {took:.2f} ms)"


def _fsync(path: str) -> tuple[str, str]:
    with open(path, "wb") as file:
        file.write(b"pid=1\n")
        file.flush()
        before = time.monotonic()
        os.fsync(file.fileno())
        took = (time.monotonic() - before) * 1000
    with Lock(f"{path}.lock") as lock:
        marked = inside.native(lock).file.marked
    if marked:
        return (
            FINE,
            f"takes {took:.1f} ms; the default does without here, also after a power cut",
        )
    return FINE, f"takes {took:.1f} ms; --durability none does without"


def _clock(path: str) -> tuple[str, str]:
    with open(path, "wb"):
        now = time.time()
    skew = os.stat(path).st_mtime - now
    if abs(skew) > _SKEW:
        return LIMITED, f"the filesystem's clock is {skew:+.1f} s off: ages are off as well"
    return FINE, "the filesystem's clock agrees with this machine's"


def _process() -> tuple[str, str]:
    me = this_process()
    if not me.boot:
        return (
            LIMITED,
            "this system doesn't say which boot it runs in: processes can't be compared",
        )
    if not me.start:
        return (
            LIMITED,
            "this system doesn't say when a process began: its number may be in use again",
        )
    return FINE, "a process and a later one with the same number can be told apart"


def _limits(directory: str) -> tuple[str, str]:
    told = []
    short = False
    if sys.platform != "win32":
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        told.append(f"{files} open files (a held lock needs one)")
        short = short or 0 <= files < _FEW_FILES
        space = os.statvfs(directory)
        short = short or space.f_bavail < _FEW_FREE
        # A filesystem that doesn't count files reports none.
        short = short or (space.f_files > 0 and space.f_favail < _FEW_FREE)
        told.append(f"{space.f_bavail * space.f_frsize // 2**20} MiB free")
    for name, few in (("max_user_instances", _FEW_INSTANCES), ("max_user_watches", 0)):
        with (
            suppress(OSError, ValueError),
            open(f"/proc/sys/fs/inotify/{name}", encoding="ascii") as file,
        ):
            value = int(file.read())
            told.append(f"inotify {name} {value}")
            short = short or value < few
    if not told:
        return FINE, "none that matter"
    return LIMITED if short else FINE, ", ".join(told)


def _guarantees(found: dict[str, Finding]) -> Iterator[Finding]:
    def works(*names: str) -> bool:
        return all(found[name].result == FINE for name in names)

    if found["remove"].result == BROKEN:
        yield Finding("release", BROKEN, "a lock that is taken here can never be released: use "
                      "another directory")  # fmt: skip
        return
    local = works("filesystem")
    if found["create"].result == BROKEN or found["link"].result == BROKEN:
        yield Finding("exclusion", BROKEN, "two could hold one lock: use another directory")
    elif local:
        yield Finding("exclusion", FINE, "one holder at most, whatever is killed")
    else:
        yield Finding("exclusion", LIMITED, "as safe as the server makes link and O_EXCL")
    if local and works("witness", "death"):
        yield Finding("death", FINE, "a holder's death is seen at once, in containers too")
    elif works("process"):
        yield Finding("death", LIMITED, "a holder's death is seen on its own machine only; "
                      "elsewhere its lock has to be removed with semlock break")  # fmt: skip
    else:
        yield Finding("death", LIMITED, "a holder's death is not seen: use semlock break")
    if local and works("events"):
        yield Finding("waiting", FINE, "waiters are woken")
    elif works("events"):
        yield Finding("waiting", LIMITED, "waiters are woken by this machine's holders, and look "
                      "once a second for others")  # fmt: skip
    else:
        yield Finding("waiting", LIMITED, "waiters look again and again")
    # Without events there is no queue.
    if local and works("flock", "events"):
        yield Finding("order", FINE, "waiters are served in the order of asking")
    else:
        yield Finding("order", LIMITED, "none: the first process that tries gets it")
    if found["flock"].result != FINE:
        yield Finding("kernel", LIMITED, "none: KernelLock and flock(1) don't work here")
    elif local:
        yield Finding("kernel", FINE, "KernelLock and programs that call flock(2) exclude "
                      "each other")  # fmt: skip
    else:
        yield Finding("kernel", LIMITED, "as the server gives flock(2) to its clients; a "
                      "holder on another machine is not named")  # fmt: skip
    if found["fsync"].result == FINE:
        yield Finding("durability", FINE, "after a power cut no lock blocks")
    else:
        yield Finding("durability", LIMITED, "a power cut can leave an empty lock file")
