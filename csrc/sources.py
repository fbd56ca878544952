"""Name the C files of the core and what they are compiled with, for each system.

As a program it prints both as a compiler's arguments, for the platform that it is given.
"""

import sys

SHARED = [
    "common/object.c",
    "common/names.c",
    "common/record.c",
    "common/pool.c",
    "common/turns.c",
    "common/try.c",
    "common/prepare.c",
    "common/holding.c",
    "common/inspect.c",
    "common/change.c",
    "common/dead.c",
    "common/waiting.c",
    "common/queue.c",
]
POSIX = [
    "posix/fork.c",
    "posix/descriptors.c",
    "posix/file.c",
    "posix/create.c",
    "posix/many.c",
    "posix/held.c",
    "posix/release.c",
    "posix/kernel.c",
    "posix/lent.c",
    "posix/spare.c",
    "posix/change.c",
    "posix/inspect.c",
    "posix/wait.c",
    "posix/arm.c",
    "posix/look.c",
    "posix/overtake.c",
    "posix/news.c",
    "posix/events.c",
    "posix/queue.c",
    "posix/place.c",
]
ABSENT = "common/absent.c"
KQUEUE = [
    ABSENT,
    "kqueue/system.c",
    "kqueue/events.c",
    "kqueue/tickets.c",
    "kqueue/names.c",
]
WINDOWS = [
    ABSENT,
    "windows/file.c",
    "windows/locks.c",
    "windows/kernel.c",
    "windows/path.c",
    "windows/create.c",
    "windows/change.c",
    "windows/inspect.c",
    "windows/process.c",
    "windows/wait.c",
    "windows/place.c",
    "windows/tickets.c",
    "windows/events.c",
    "windows/overtake.c",
]


def sources(platform: str = sys.platform) -> list[str]:
    """Name the C files of one platform; the platform is chosen by file, never inside one."""
    if platform == "win32":
        return SHARED + WINDOWS
    if platform == "darwin":
        return [*SHARED, *POSIX, "darwin/system.c", *KQUEUE]
    if platform.startswith(("linux", "android", "cygwin")):
        return [
            *SHARED,
            *POSIX,
            "linux/system.c",
            "linux/boot_mark.c",
            "linux/process.c",
            "linux/events.c",
            "linux/tickets.c",
            "linux/folders.c",
            "linux/spawn.c",
        ]
    return [*SHARED, *POSIX, "bsd/system.c", "bsd/process.c", *KQUEUE]


def macros(platform: str = sys.platform) -> list[tuple[str, str | None]]:
    """Ask for 64-bit file offsets: the witness lies far behind the end of the file."""
    return [] if platform == "win32" else [("_FILE_OFFSET_BITS", "64")]


if __name__ == "__main__":
    for name, value in macros(sys.argv[1]):
        print(f"-D{name}" if value is None else f"-D{name}={value}")
    for name in sources(sys.argv[1]):
        print(f"csrc/{name}")
