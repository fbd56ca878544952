"""Describe the extension ``semlock._core.compiled`` to cffi: which sources, for which system."""

import sys
import sysconfig
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent

# setuptools runs this file, and does not look for a module next to it.
sys.path.insert(0, str(HERE))
import make_stub  # noqa: E402
from sources import macros, sources  # noqa: E402

make_stub.write()

# A free-threaded build has no limited API yet; setup.py asks the same question for the tag.
LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED") and (
    sys.implementation.name == "cpython"
)

FLAGS = ["-std=c11", "-O2"]
if sys.implementation.name == "cpython":
    # Calls inside of the core are direct, and need no look-up by name when they come first.
    # CPython's headers export the module's entry; elsewhere that is not known.
    FLAGS.append("-fvisibility=hidden")

ffi = FFI()
ffi.cdef((HERE / "semlock_api.h").read_text(encoding="utf-8"))
ffi.set_source(
    "semlock._core.compiled",
    '#include "semlock_api.h"',
    sources=[f"csrc/{name}" for name in sources()],
    include_dirs=["csrc"],
    define_macros=macros(),
    depends=[f"csrc/{path.relative_to(HERE)}" for path in HERE.rglob("*.h")],
    extra_compile_args=[] if sys.platform == "win32" else FLAGS,
    # Older C libraries have the calls for threads and forks in a library of their own.
    extra_link_args=[] if sys.platform == "win32" else ["-pthread"],
    py_limited_api=LIMITED_API,
)

if __name__ == "__main__":
    ffi.compile(verbose=True)
