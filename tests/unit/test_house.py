"""The rooms of the package, and that imports go in one direction: from a room to those before it.

docs/architecture.md tells what each room is for.  A module that is not listed here has no room,
and fails the first test.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import semlock

PACKAGE = Path(semlock.__file__).parent

# From the lowest to the highest: the room's name, and the modules in it.
ROOMS = {
    "core": """
        _append _errors _folders _identity _json_records _native _policy _process _queues
        _records _seconds _sticky _status _explain _callbacks _forms _cleaning _places policy
        """,
    "waiting": """
        retry _steps _waiting _notice _hub _line _sleeping _timers _trio _async_waiter
        """,
    "locks": """
        _acquiring _engine _lock _mine _heartbeat _decorating _many _slots _shared _async
        _async_holding _async_many _async_slots _async_shared
        """,
    "systems": r"""
        systems _own _system_lock _async_systems sema semats feature task sidecar _task_\w+
        _sidecar_\w+
        """,
    "events": """
        _tap _stats _export trace otel
        """,
    "public": "__init__",
    "command": r"""
        _cli\.\w+ _timeline\w* cli __main__
        """,
}  # fmt: skip

# Upward all the same: only when it is called for, and each for a reason.
EXCEPTIONS = {
    ("_forms", "_sidecar_record"): "the forms that are claimed are the systems' own",
    ("_forms", "_task_records"): "the forms that are claimed are the systems' own",
    ("_forms", "feature"): "the forms that are claimed are the systems' own",
}


def room_of(module: str) -> str:
    found = [
        name
        for name, members in ROOMS.items()
        if any(re.fullmatch(pattern, module) for pattern in members.split())
    ]
    assert len(found) == 1, f"{module} is in {found or 'no room'}"
    return found[0]


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name] = path
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
    return found - {"_core"}


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_from_its_own_room_and_those_before(module):
    known = modules()
    order = list(ROOMS)
    own = order.index(room_of(module))
    above = {
        f"{other} ({room_of(other)})"
        for other in imported_by(known[module], set(known))
        if order.index(room_of(other)) > own and (module, other) not in EXCEPTIONS
    }
    assert not above, f"{module} ({order[own]}) imports {sorted(above)}"


def test_no_exception_is_left_that_is_not_needed():
    known = modules()
    for module, other in EXCEPTIONS:
        assert other in imported_by(known[module], set(known)), (module, other)
