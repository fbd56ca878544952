"""The rooms of the package, and that imports go in one direction: from a room to those before it.

A folder is a room.  docs/architecture.md tells what each is for.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import semlock
import semlock._core as outcomes
from semlock._core import compiled, paths
from semlock._engines import address

PACKAGE = Path(semlock.__file__).parent

# From the lowest to the highest.  The modules that users import stand beside the folders, each in
# the room that it opens to them.
ROOMS = [
    "_core",
    "_waiting",
    "_stores",
    "_locks",
    "_engines",
    "_systems",
    "_filelock",
    "_events",
    "public",
    "_timeline",
    "_cli",
]
OPENS = {
    "policy": "_core",
    "retry": "_waiting",
    "systems": "_systems",
    "sema": "_systems",
    "semats": "_systems",
    "feature": "_systems",
    "task": "_systems",
    "sidecar": "_systems",
    "filelock": "_filelock",
    "trace": "_events",
    "otel": "_events",
    "__init__": "public",
    "cli": "_cli",
    "__main__": "_cli",
}


def room_of(module: str) -> str:
    first = module.split(".", maxsplit=1)[0]
    return first if first in ROOMS else OPENS[first]


@functools.cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported_by(path: Path, known: set[str]) -> set[str]:
    """Give the package's modules that a module imports at any time, but not for types only."""
    found = set()
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "semlock":
            base = node.module.partition(".")[2]
            for alias in node.names:
                inner = f"{base}.{alias.name}".strip(".")
                found.add(inner if inner in known else base or "__init__")
        todo += ast.iter_child_nodes(node)
    return found - {"_core.compiled"}


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_from_its_own_room_and_those_before(module):
    known = modules()
    order = list(ROOMS)
    own = order.index(room_of(module))
    above = {
        f"{other} ({room_of(other)})"
        for other in imported_by(known[module], set(known))
        if order.index(room_of(other)) > own
    }
    assert not above, f"{module} ({order[own]}) imports {sorted(above)}"


def test_the_outcomes_are_those_of_the_core():
    """They stand in Python too, for stores that have no core."""
    for name, value in vars(outcomes).items():
        if type(value) is int:
            assert getattr(compiled.lib, f"SEMLOCK_{name}") == value


@pytest.mark.parametrize("module", ["base", "lock_object", "__init__", "async_form"])
def test_a_lock_knows_no_file_and_no_core(module):
    """Only the classes that mix in the file store stand on it."""
    path = PACKAGE / "_locks" / f"{module}.py"
    below = {"_core.capi", "_core.registry", "_core.status", "_core.cleaning", "_stores.file"}
    assert not imported_by(path, set(modules())) & below
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"file", "ino", "dev", "_encoded", "_record", "look_at"}


def test_a_path_knows_the_schemes_of_all_engines():
    assert paths.SCHEMES == tuple(address.ENGINES)


def test_no_file_has_more_than_400_lines():
    """But the header that cffi reads, which has to be one file."""
    root = Path(__file__).resolve().parents[2]
    files = [p for folder in ("semlock", "csrc") for p in (root / folder).rglob("*.[chp]*")]
    long = {
        path.relative_to(root).as_posix(): lines
        for path in files
        if path.suffix in (".c", ".h", ".py")
        and path.name != "semlock_api.h"
        and (lines := path.read_text(encoding="utf-8").count("\n")) > 400
    }
    assert long == {}
