"""The filesystem of a shared directory: its mount, and what ``semlock doctor`` finds by trying."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NamedTuple

from semlock._core import paths
from semlock._core.changes import Changes
from semlock._engines.engine import Fact
from semlock._engines.facts import promise, timing

# For how long this machine may say what a file server said before, in seconds, where the mount's
# options don't say it.
_USUAL = {"nfs": 60.0, "nfs4": 60.0, "cifs": 1.0, "smb3": 1.0, "fuse.sshfs": 20.0, "afs": 60.0}
# Filesystems of servers that tell their clients of changes, and FUSE's usual second.
_SOON = ("fuse", "9p", "virtiofs", "ceph", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2")
_UNKNOWN = 60.0
_LOCAL = (
    "ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "ramfs", "overlay", "zfs", "f2fs", "bcachefs",
    "jfs", "reiserfs", "vfat", "exfat", "ntfs3", "bind",
)  # fmt: skip


class Mount(NamedTuple):
    """The filesystem that a directory is on."""

    kind: str  # its type; empty if the system does not say
    point: str
    options: str
    local: bool  # whether no other machine can change it behind this one
    slack: float  # for how long this machine may see a file as it was before


def mount_of(directory: str) -> Mount:
    """Find the filesystem of a directory."""
    if not sys.platform.startswith("linux"):
        local = sys.platform == "win32" and not os.path.realpath(directory).startswith("\\\\")
        return Mount("", "", "", local, 0.0 if local else _UNKNOWN)
    kind = point = options = ""
    if words := paths.mount_of(directory):
        dash = words.index("-")
        kind, point = words[dash + 1], words[4]
        options = ",".join((words[5], *words[dash + 3 :]))
    local = kind in _LOCAL
    return Mount(kind, point, options, local, 0.0 if local else slack_of(kind, options))


def slack_of(kind: str, options: str) -> float:
    """Say for how long a mount with these options may show a file as it was before."""
    known = dict(option.partition("=")[::2] for option in options.split(","))
    if "noac" in known:
        return 0.0
    for option in ("acregmax", "actimeo"):
        if known.get(option, "").isdecimal():
            return float(known[option])
    if kind in _USUAL:
        return _USUAL[kind]
    return 1.0 if kind.startswith(_SOON) else _UNKNOWN


def facts_of(root: str, mount: Mount, ttl: float) -> list[Fact]:
    """Say what is known of a directory, and what is guaranteed."""
    kind = f"a directory on {mount.kind or 'a filesystem of unknown type'}"
    facts = [Fact("server", f"none: {kind}, mounted at {mount.point}" if mount.point else kind)]
    facts += timing(lambda: _ask(root))
    if not mount.local:
        facts.append(
            Fact("cache", f"this machine may see a file as it was {mount.slack:g} s ago")
        )
        if "soft" in mount.options.split(","):
            facts.append(
                Fact(
                    "mount", "soft", well=False,
                    advice="a request that gets no answer may be carried out later: mount it hard",
                )
            )  # fmt: skip
    from shutil import rmtree  # noqa: PLC0415 - for those who ask
    from tempfile import mkdtemp  # noqa: PLC0415

    place = mkdtemp(prefix=".semlock-doctor-", dir=root)
    try:
        tried = [_rename(place), _exclusive(place)]
        facts += [*tried, _link(place), _events(place, mount)]
    finally:
        rmtree(place, ignore_errors=True)
    broken = "" if all(fact.well for fact in tried) else "two may hold: use another filesystem"
    later = f"{ttl + mount.slack:g} s after its last renewal"
    return [
        *facts,
        promise("exclusion", "one holder at a time, while it heeds left()", broken),
        promise(
            "death",
            "a dead holder's lock passes on at once if it ran on this machine, else "
            f"{later}; no clocks of machines are compared",
        ),
        promise("restart", "holders stay, if the file server is back before their leases end"),
        promise("failover", "as a restart, if the directory keeps what was synced"),
        promise("fence", "the number of a change: it grows while the directory keeps its data"),
    ]


def _ask(root: str) -> None:
    os.stat(root)


def _rename(place: str) -> Fact:
    one, two = os.path.join(place, "one"), os.path.join(place, "two")
    with open(one, "xb"):
        pass
    os.rename(one, two)
    try:
        os.rename(one, os.path.join(place, "three"))
    except FileNotFoundError:
        os.unlink(two)
        return Fact("rename", "finds its file or fails")
    return Fact(
        "rename", "does not fail when its file is gone", well=False,
        advice="two clients could change a line at once: don't use this filesystem",
    )  # fmt: skip


def _exclusive(place: str) -> Fact:
    path = os.path.join(place, "exclusive")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(path, flags))
    try:
        os.close(os.open(path, flags))
    except FileExistsError:
        return Fact("create", "exclusive creation works")
    return Fact(
        "create", "exclusive creation does not work", well=False,
        advice="two clients could have one lease: don't use this filesystem",
    )  # fmt: skip


def _link(place: str) -> Fact:
    path = os.path.join(place, "linked")
    with open(path, "xb"):
        pass
    try:
        os.link(path, path + "2")
    except OSError as error:
        return Fact(
            "link", f"no hard links ({error.strerror})", well=False,
            advice="a lease is made in place: a power cut may leave an unfinished one",
        )  # fmt: skip
    return Fact("link", "hard links work")


def _events(place: str, mount: Mount) -> Fact:
    if not mount.local:
        return Fact("events", "none from other machines: who waits looks ten times in a second")
    changes = Changes()
    try:
        reported = changes.watch(os.fsencode(place)) >= 0
    finally:
        with suppress(OSError):
            changes.close()
    return Fact(
        "events", "reported by the kernel" if reported else "not reported", reported,
        "" if reported else "who waits looks ten times in a second",
    )  # fmt: skip
