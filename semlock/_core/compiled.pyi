# What cffi builds from csrc/: its names are those of csrc/semlock_api.h.
from typing import Any

ffi: Any
lib: Any
