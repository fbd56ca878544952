"""Name the C files of the core and what they are compiled with, for each system.

As a program it prints both as a compiler's arguments, for the platform that it is given.
"""

import sys

SHARED = ["object.c", "pool.c"]
POSIX = [
    "posix_file.c",
    "posix_try.c",
    "posix_change.c",
    "posix_rewrite.c",
    "posix_inspect.c",
    "posix_wait.c",
    "posix_events.c",
    "posix_queue.c",
]
KQUEUE = ["kqueue_events.c", "readdir_names.c"]
WINDOWS = [
    "windows_file.c",
    "windows_path.c",
    "windows_try.c",
    "windows_change.c",
    "windows_inspect.c",
    "windows_process.c",
    "windows_wait.c",
    "windows_queue.c",
]


def sources(platform: str = sys.platform) -> list[str]:
    """Name the C files of one platform; the platform is chosen by file, never inside one."""
    if platform == "win32":
        return SHARED + WINDOWS
    if platform == "darwin":
        return [*SHARED, *POSIX, "darwin_system.c", *KQUEUE]
    if platform.startswith(("linux", "android", "cygwin")):
        return [*SHARED, *POSIX, "linux_system.c", "linux_events.c"]
    return [*SHARED, *POSIX, "bsd_system.c", *KQUEUE]


def macros(platform: str = sys.platform) -> list[tuple[str, str | None]]:
    """Ask for 64-bit file offsets: the witness lies far behind the end of the file."""
    return [] if platform == "win32" else [("_FILE_OFFSET_BITS", "64")]


if __name__ == "__main__":
    for name, value in macros(sys.argv[1]):
        print(f"-D{name}" if value is None else f"-D{name}={value}")
    for name in sources(sys.argv[1]):
        print(f"csrc/{name}")
