"""Real filesystems for the tests, each mounted where no other process sees it.

As a program, ``mounts.py KIND COMMAND…`` runs a command in an empty directory of a fresh
filesystem of that kind, in a mount namespace of its own; everything goes with the command.
Only root may do that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

# What the caller has mounted, and a command that runs another one on a second client of the
# same servers, where the same directories are mounted.
MOUNTED = dict(
    pair.split("=", 1) for pair in os.environ.get("SEMLOCK_MOUNTED", "").split(",") if pair
)
OTHER_CLIENT = os.environ.get("SEMLOCK_OTHER_CLIENT", "").split()

# How much longer than elsewhere everything may take: an emulated machine is ten times slower.
PATIENCE = float(os.environ.get("SEMLOCK_PATIENCE", "1"))

# What must be installed for each kind, besides what mounts it.
TOOLS = {
    "ext4": ["mkfs.ext4"],
    "xfs": ["mkfs.xfs"],
    "btrfs": ["mkfs.btrfs"],
    "tmpfs": [],
    "overlay": [],
    "bindfs": ["bindfs"],
    "ntfs-3g": ["mkntfs", "ntfs-3g"],
    "exfat-fuse": ["mkfs.exfat", "mount.exfat-fuse"],
    "vfat": ["mkfs.vfat"],
}

# The others are served by a program, through FUSE.
IN_THE_KERNEL = {"ext4", "xfs", "btrfs", "tmpfs", "overlay", "vfat"}

# The least that each mkfs accepts, or a little more.
SIZES = {"ext4": 64, "xfs": 320, "btrfs": 128, "ntfs-3g": 64, "exfat-fuse": 64, "vfat": 64}

# Where none are kept, files have those that the mount is given.
MODES = "fmask=0133,dmask=0022"


def absence(kind: str) -> str | None:
    """Say why this kind can't be mounted here; ``None`` if it can, for all that is known."""
    if not sys.platform.startswith("linux"):
        return "mount namespaces are Linux'"
    if os.geteuid() != 0:
        return "only root may mount"
    for tool in ("unshare", *TOOLS[kind]):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if kind not in IN_THE_KERNEL and not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    return None


def is_known(kind: str) -> bool:
    """Ask the kernel, which may have to load a module first."""
    if kind not in IN_THE_KERNEL:
        return True
    if shutil.which("modprobe") is not None:
        subprocess.run(["modprobe", "-q", kind], check=False)
    with open("/proc/filesystems", encoding="ascii") as known:
        return any(line.split()[-1] == kind for line in known)


def command(kind: str, *words: str) -> list[str]:
    """Make the command that runs another one in a filesystem of this kind."""
    return [
        "unshare", "--mount", "--propagation", "private",
        sys.executable, os.path.abspath(__file__), kind, *words,
    ]  # fmt: skip


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr or done.stdout}")


class Mount:
    """One filesystem, from its making to its end; the namespace ends with the program."""

    def __init__(self, kind: str, work: str) -> None:
        self.kind = kind
        self.place = os.path.join(work, "mounted")
        self.server: subprocess.Popen[bytes] | None = None
        self.device: str | None = None
        os.mkdir(self.place)
        image = os.path.join(work, "image")
        if kind in SIZES:
            with open(image, "wb") as file:
                file.truncate(SIZES[kind] << 20)
        if kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "tmpfs", self.place)
        elif kind == "overlay":
            parts = {name: os.path.join(work, name) for name in ("lower", "upper", "work")}
            for part in parts.values():
                os.mkdir(part)
            options = ",".join(f"{name}dir={part}" for name, part in parts.items())
            _run("mount", "-t", "overlay", "-o", options, "overlay", self.place)
        elif kind == "bindfs":
            beneath = os.path.join(work, "beneath")
            os.mkdir(beneath)
            self.serve("bindfs", "-f", beneath, self.place)
        elif kind == "ntfs-3g":
            _run("mkntfs", "-q", "-F", image)
            self.serve("ntfs-3g", "-o", "no_detach,permissions", image, self.place)
        elif kind == "exfat-fuse":
            _run("mkfs.exfat", image)
            # It mounts devices only.
            found = subprocess.run(
                ["losetup", "--find", "--show", image],
                capture_output=True,
                text=True,
                check=True,
            )
            self.device = found.stdout.strip()
            self.serve("mount.exfat-fuse", "-d", "-o", MODES, self.device, self.place)
        else:
            quietly = {"btrfs": ["-q", "-M"], "vfat": []}.get(kind, ["-q"])
            _run(f"mkfs.{kind}", *quietly, image)
            options = f"loop,{MODES}" if kind == "vfat" else "loop"
            _run("mount", "-t", kind, "-o", options, image, self.place)

    def serve(self, *words: str) -> None:
        """Start what answers for a filesystem, and wait until it does."""
        before = os.stat(self.place).st_dev
        null = subprocess.DEVNULL
        self.server = subprocess.Popen(words, stdin=null, stdout=null, stderr=null)
        while os.stat(self.place).st_dev == before:
            if self.server.poll() is not None:
                raise SystemExit(f"{words[0]} ended with {self.server.returncode}")
            os.sched_yield()

    def end(self) -> None:
        """Unmount it, which ends its server as well."""
        subprocess.run(["umount", "--lazy", self.place], check=False)
        if self.server is not None:
            try:
                self.server.wait(10)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        if self.device is not None:
            subprocess.run(["losetup", "--detach", self.device], check=False)


def main(kind: str, *words: str) -> int:
    work = tempfile.mkdtemp(prefix="mounts-")
    try:
        # What lies beneath is memory: a loop on a busy disk would only be slower.
        _run("mount", "-t", "tmpfs", "tmpfs", work)
        mount = Mount(kind, work)
        try:
            place = os.path.join(mount.place, "place")
            os.mkdir(place, 0o755)
            # Root of it and not what mkfs or the mount made: rights are the same everywhere.
            return subprocess.run(words, cwd=place, check=False).returncode
        finally:
            mount.end()
    finally:
        subprocess.run(["umount", "--lazy", work], check=False)
        os.rmdir(work)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
