"""Build the cffi extension, and tag the wheel for every CPython from 3.10 on."""

import sys
import sysconfig

from setuptools import setup

limited = sys.implementation.name == "cpython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)

setup(
    cffi_modules=["csrc/build_ffi.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if limited else {},
)
