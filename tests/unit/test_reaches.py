"""What the tests take from inside of semlock: a list that can only become shorter.

A test that imports a private module, or replaces something in one, breaks when semlock is built
otherwise and does the same.  A new test uses what users have.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

# Their subject is inside: each system call, bytecode or state, and what an operation costs.
NETS = ("c", "fault", "model", "platforms", "power", "typing")
INTERRUPTS = re.compile(r"test_(\w+_)?(interrupts|every_call|walks|steps|stub|house|start)\.py")

# How many private names each test file takes from semlock, and in how many places it replaces
# something.  If a file needs less, make its number smaller.
TAKEN = {
    "behaviour/test_kinds.py": 1,
    "behaviour/test_options.py": 4,
    "behaviour/test_tasks.py": 1,
    "docs/test_figures.py": 12,
    "edges/test_balance.py": 2,
    "edges/test_callbacks.py": 4,
    "edges/test_cleaning.py": 12,
    "edges/test_crowds.py": 2,
    "edges/test_death.py": 3,
    "edges/test_descriptors.py": 1,
    "edges/test_dropped.py": 1,
    "edges/test_exit.py": 1,
    "edges/test_forks.py": 1,
    "edges/test_half_imported.py": 1,
    "edges/test_identity.py": 1,
    "edges/test_kernel_edges.py": 5,
    "edges/test_limits.py": 1,
    "edges/test_links.py": 1,
    "edges/test_one_step.py": 9,
    "edges/test_moments.py": 2,
    "edges/test_owners.py": 1,
    "edges/test_queues.py": 3,
    "edges/test_run_inherited.py": 2,
    "edges/test_task_crowds.py": 11,
    "edges/test_tasks.py": 12,
    "edges/test_threads.py": 3,
    "edges/test_written_over.py": 1,
    "engines/test_command.py": 5,
    "engines/test_crowds.py": 1,
    "engines/test_directory.py": 17,
    "engines/test_etcd.py": 11,
    "engines/test_histories.py": 4,
    "engines/test_leases.py": 2,
    "engines/test_partitions.py": 1,
    "engines/test_spaces.py": 2,
    "interop/test_fs_safe.py": 5,
    "interop/test_golden.py": 3,
    "stress/test_async_storm.py": 2,
    "stress/test_clocks.py": 1,
    "stress/test_containers.py": 1,
    "stress/test_heartbeat.py": 4,
    "stress/test_record_fuzz.py": 5,
    "stress/test_waiting_storm.py": 1,
    "stress/test_windows_storm.py": 2,
    "systems/test_feature_rules.py": 19,
    "systems/test_sema_rules.py": 3,
    "systems/test_semats_rules.py": 2,
    "systems/test_sidecar_rules.py": 6,
    "systems/test_task_rules.py": 3,
    "unit/test_async.py": 14,
    "unit/test_async_many.py": 7,
    "unit/test_cli_plain.py": 9,
    "unit/test_cli_run.py": 1,
    "unit/test_cli_tables.py": 7,
    "unit/test_cli_terminal.py": 1,
    "unit/test_exact_mode.py": 2,
    "unit/test_feature.py": 1,
    "unit/test_filelock_module.py": 3,
    "unit/test_hub.py": 7,
    "unit/test_identity.py": 5,
    "unit/test_kernel.py": 6,
    "unit/test_lock.py": 2,
    "unit/test_lock_set.py": 10,
    "unit/test_making_way.py": 4,
    "unit/test_notice.py": 1,
    "unit/test_once.py": 1,
    "unit/test_policy.py": 4,
    "unit/test_records.py": 3,
    "unit/test_sema.py": 3,
    "unit/test_sidecar.py": 3,
    "unit/test_sidecar_async.py": 1,
    "unit/test_sidecar_properties.py": 4,
    "unit/test_sidecar_records.py": 7,
    "unit/test_sidecar_stale.py": 3,
    "unit/test_slots.py": 2,
    "unit/test_stats.py": 4,
    "unit/test_status.py": 6,
    "unit/test_task.py": 17,
    "unit/test_task_migrate.py": 3,
    "unit/test_task_owner.py": 13,
    "unit/test_task_properties.py": 2,
    "unit/test_task_reclaim.py": 2,
    "unit/test_task_records.py": 7,
    "unit/test_timeline.py": 3,
    "unit/test_trace.py": 6,
    "unit/test_wait.py": 4,
    "unit/test_waiting.py": 8,
    "unit/test_watch.py": 5,
    "unit/test_windows.py": 6,
}

_PATCHES = {"setattr", "set_everywhere", "set_time"}


def _is_of_python(what: ast.expr) -> bool:
    """Whether it is the system that is replaced, as in ``setattr(os, "write", full)``."""
    said = what.value if isinstance(what, ast.Constant) else ast.unparse(what)
    return str(said).partition(".")[0] in sys.stdlib_module_names


def reaches(text: str) -> int:
    """Count the private names that a file imports, and the places where it patches."""
    names: set[str] = set()
    patches = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("semlock"):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            patches += called in _PATCHES and not _is_of_python(node.args[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # The code of a child process, or the name of what is replaced.
            names.update(re.findall(r"semlock\._\w+(?:[\w.]*\w)?", node.value))
        elif isinstance(node, ast.Attribute):
            names.update(re.findall(r"^semlock\._[a-z][\w.]*$", ast.unparse(node)))
    private = {name for name in names if re.search(r"\._[a-z]", name)}
    # `semlock._core` is a part of `semlock._core.capi`.
    return patches + sum(
        not any(other.startswith(name + ".") for other in private) for name in private
    )


def test_no_test_takes_more_from_inside_than_is_listed():
    more = {}
    for file in TESTS.rglob("test_*.py"):
        name = file.relative_to(TESTS).as_posix()
        if name.partition("/")[0] in NETS or INTERRUPTS.fullmatch(file.name):
            continue
        count = reaches(file.read_text(encoding="utf-8"))
        if count > TAKEN.get(name, 0) and file != Path(__file__):
            more[name] = count
    assert more == {}, "take what users have instead"


def test_imports_attributes_names_and_patches_are_counted():
    assert reaches("from semlock._core import capi, waits\ncapi.look()") == 2
    assert reaches("import semlock\nsemlock._core.capi.look()") == 1
    assert reaches("def f(p): p.setattr('semlock._core.capi.look', None)") == 2
    assert reaches("def f(p): p.setattr(os, 'write', None), p.setattr('time.sleep', None)") == 0
    assert reaches("import semlock\nfrom semlock import policy\nsemlock.__file__") == 0
