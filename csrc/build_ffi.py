"""Describe the extension ``semlock._core`` to cffi: which sources, for which system."""

import sys
import sysconfig
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent

SHARED = ["object.c", "pool.c"]
POSIX = [
    "posix_file.c",
    "posix_try.c",
    "posix_change.c",
    "posix_rewrite.c",
    "posix_inspect.c",
    "posix_wait.c",
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


# A free-threaded build has no limited API yet; setup.py asks the same question for the tag.
LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED") and (
    sys.implementation.name == "cpython"
)

ffi = FFI()
ffi.cdef((HERE / "semlock_api.h").read_text(encoding="utf-8"))
ffi.set_source(
    "semlock._core",
    '#include "semlock_api.h"',
    sources=[f"csrc/{name}" for name in sources()],
    include_dirs=["csrc"],
    define_macros=macros(),
    depends=["csrc/semlock.h", "csrc/semlock_api.h", "csrc/windows_system.h"],
    extra_compile_args=[] if sys.platform == "win32" else ["-std=c11", "-O2"],
    py_limited_api=LIMITED_API,
)

if __name__ == "__main__":
    ffi.compile(verbose=True)
