"""What is known of the filesystem of a shared directory."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from semlock._core import paths

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
