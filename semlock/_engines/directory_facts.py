"""What ``semlock doctor file:///directory`` finds out about the filesystem, by trying it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from shutil import rmtree

from semlock._core.changes import Changes
from semlock._engines.engine import Fact
from semlock._engines.facts import promise, timing

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._engines.directory_mount import Mount


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
    place = tempfile.mkdtemp(prefix=".semlock-doctor-", dir=root)
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
