"""Write ``semlock/_core/compiled.pyi``: the types of ``semlock_api.h``, for mypy.

The build writes it, so that a wheel has it, and mypy does, so that it always fits the header.
"""

import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
STUB = HERE.parent / "semlock" / "_core" / "compiled.pyi"

BEGINNING = '''\
# Made of csrc/semlock_api.h by csrc/make_stub.py.  A pointer to a structure has the
# structure's type, as cffi reads the fields of both alike.
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Literal, TypeVar, overload

T = TypeVar("T")

class Bytes:
    """A ``char *`` or ``char[]``."""

class Array(Generic[T]):
    """An array of numbers or structures, or a pointer to one."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T]: ...
    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Array[T]: ...
    def __setitem__(self, index: int, value: T) -> None: ...

class Memory:
    """The bytes of an array, shared and not copied."""

    def __getitem__(self, index: slice) -> bytes: ...
    def __setitem__(self, index: slice, value: bytes) -> None: ...

class Compiler:
    """What is used of cffi's ``FFI``."""

    NULL: Any  # of every pointer type
'''

END = """\
    @overload
    def new(self, kind: Literal["semlock_watch[]"], size: int) -> Array[semlock_watch]: ...
    @overload
    def new(
        self, kind: Literal["semlock_lock *[]"], given: Iterable[semlock_lock]
    ) -> Array[semlock_lock]: ...
    @overload
    def new(self, kind: Literal["int32_t[]", "int64_t[]"], size: int) -> Array[int]: ...
    @overload
    def new(self, kind: Literal["int64_t *"]) -> Array[int]: ...
    @overload
    def new(self, kind: Literal["char[]"], size: int | bytes) -> Bytes: ...
    @overload
    def new(self, kind: Literal["char *[]"], given: Iterable[Bytes]) -> Array[Bytes]: ...
    def new_allocator(
        self, *, should_clear_after_alloc: bool
    ) -> Callable[[Literal["char[]"], int], Bytes]: ...
    def buffer(self, data: Bytes | Array[Any], size: int = ...) -> Memory: ...
    def from_buffer(self, data: bytes) -> Bytes: ...
    def string(self, data: Bytes) -> bytes: ...
    def getwinerror(self, code: int) -> tuple[int, str]: ...

ffi: Compiler
lib: Library
"""


def python_type(declared: str) -> str:
    """Give the type that Python sees: of a field, or of what a call takes or returns."""
    declared = re.sub(r"\bconst\b", "", declared).strip()
    base, pointers = re.fullmatch(r"(\w+)\s*([* ]*)", declared).groups()
    stars = pointers.count("*")
    if base == "void":
        return "None"
    if base == "char" and stars:
        return "Array[Bytes]" if stars > 1 else "Bytes"
    if base.startswith("semlock_"):
        return f"Array[{base}]" if stars > 1 else base
    return "Array[int]" if stars else "int"


def field_type(name: str, kind: object) -> str:
    """Give the type of a structure's field."""
    if name == "watches":
        return "Array[semlock_watch]"  # the one pointer to many structures
    if kind.kind == "array":
        name = kind.item.cname
        return "Bytes" if name == "char" else f"Array[{python_type(name)}]"
    return python_type(kind.cname)


def stub() -> str:
    """Give the text of the stub."""
    header = (HERE / "semlock_api.h").read_text(encoding="utf-8")
    ffi = FFI()
    ffi.cdef(header)
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    names = re.findall(r"^\} (semlock_\w+);", header, re.MULTILINE)
    lines = [BEGINNING]
    for name in names:
        lines += [
            "    @overload",
            f'    def new(self, kind: Literal["{name} *"]) -> {name}: ...',
        ]
    structures = []
    for name in names:
        structures.append(f"class {name}:")
        fields = ffi.typeof(name).fields
        structures += [f"    {field}: {field_type(field, kind.type)}" for field, kind in fields]
        structures.append("")
    calls = ["class Library:"]
    constants = re.findall(r"^#define (SEMLOCK_\w+)", header, re.MULTILINE)
    calls += [f"    {constant}: Final[int]" for constant in constants]
    for result, name, given in re.findall(
        r"^(\w+) (semlock_\w+)\(([^)]*)\);", header, re.MULTILINE
    ):
        parameters = []
        for parameter in re.split(r",\s*", given):
            if parameter != "void":
                declared, word = re.fullmatch(r"(.*?)(\w+)", parameter, re.DOTALL).groups()
                kind = python_type(declared)
                parameters.append(f"{word}: {'bytes | Bytes' if kind == 'Bytes' else kind}")
        shown = "".join(f", {one}" for one in (*parameters, *(["/"] if parameters else [])))
        calls.append(f"    def {name}(self{shown}) -> {python_type(result)}: ...")
    described = "\n".join([*structures, *calls, "", "ffi: Compiler"])
    return "\n".join(lines) + "\n" + END.replace("ffi: Compiler", described)


def write() -> None:
    """Write the stub, if the one that is there differs."""
    text = stub()
    if STUB.parent.is_dir() and not (
        STUB.exists() and STUB.read_text(encoding="utf-8") == text
    ):
        STUB.write_text(text, encoding="utf-8", newline="\n")


def plugin(_: str) -> type:
    """Write it for mypy, which calls this before it reads any file."""
    from mypy.plugin import Plugin  # noqa: PLC0415 - for mypy

    write()
    return Plugin
