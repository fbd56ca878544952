"""Build the cffi extension, and tag the wheel for every CPython from 3.10 on."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
# The commands that compile.  A source archive is made without a compiler.
COMPILING = {"build", "build_ext", "bdist_wheel", "develop", "editable_wheel", "install"}

# What brings a compiler and the headers, by the ID or ID_LIKE of /etc/os-release.
PACKAGES = {
    "debian": "apt install gcc libc6-dev python3-dev",
    "ubuntu": "apt install gcc libc6-dev python3-dev",
    "fedora": "dnf install gcc python3-devel",
    "rhel": "dnf install gcc python3-devel",
    "alpine": "apk add gcc musl-dev python3-dev",
    "arch": "pacman -S gcc python",
    "suse": "zypper install gcc python3-devel",
    "darwin": "xcode-select --install",
}


def missing() -> str:
    """Name what the build lacks; empty if nothing."""
    if sys.platform == "win32":
        return _missing_on_windows()
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        return f"a C compiler ({compiler[0]}), which is not installed"
    flags = shlex.split(f"{os.environ.get('CPPFLAGS', '')} {os.environ.get('CFLAGS', '')}")
    flags += [f"-I{sysconfig.get_path(name)}" for name in ("include", "platinclude")]
    for header, what in (("stdlib.h", "the C library"), ("Python.h", "Python")):
        done = subprocess.run(  # noqa: S603 - the compiler of this Python
            [*compiler, *flags, "-E", "-x", "c", "-"],
            input=f"#include <{header}>\n".encode(),
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            return f"the headers of {what} ({header}), which {compiler[0]} does not find"
    return ""


def _missing_on_windows() -> str:
    from distutils.ccompiler import new_compiler  # noqa: PLC0415 - setuptools' own

    compiler = new_compiler()
    try:
        if compiler.compiler_type == "msvc":
            compiler.initialize()
    except Exception:  # noqa: BLE001 - each version of setuptools has its own
        return "Microsoft Visual C++, which is not installed"
    return ""


def way_out() -> str:
    """Say how to install it here."""
    if sys.platform == "win32":
        return 'install the "Desktop development with C++" of the Build Tools for Visual Studio'
    names = [sys.platform]
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for key in ("ID", "ID_LIKE"):
        for value in re.findall(rf'^{key}="?([^"\n]*)', text, re.MULTILINE):
            names += value.split()
    for name in names:
        if name in PACKAGES:
            return PACKAGES[name]
    return "install a C compiler, the headers of the C library and those of Python"


def description() -> str:
    """Give the README with links that work on a package index as well."""
    project = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    (source,) = re.findall(r'^source = "(.*)"$', project, re.MULTILINE)
    text = (HERE / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({source}/blob/main/\1)", text)


if COMPILING & set(sys.argv):
    lacking = missing()
    if lacking:
        sys.exit(f"To build semlock from source you need {lacking}: {way_out()}")

limited = sys.implementation.name == "cpython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)

setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    cffi_modules=["csrc/build_ffi.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if limited else {},
)
