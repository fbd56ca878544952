"""Each row of the rule tables of `docs/systems` names a test, and there is such a test."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("sema", "semats", "feature", "sidecar", "task")
FOLDERS = ("systems", "unit", "interop", "stress")


@functools.cache
def names():
    """Give all tests as ``test_name`` and ``TestGroup::test_name``, and the groups."""
    found = set()
    for folder in FOLDERS:
        for file in (ROOT / "tests" / folder).glob("test_*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for node in tree.body:
                inner = node.body if isinstance(node, ast.ClassDef) else []
                if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                    found.add(node.name)
                found.update(f"{node.name}::{f.name}" for f in inner if hasattr(f, "name"))
    return found


def rows(page):
    """Give the rules of a page's first table, and what names their tests."""
    text = (ROOT / "docs" / "systems" / f"{page}.md").read_text(encoding="utf-8")
    table = text[text.index("| rule | said | test |") :].split("\n\n")[0]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()[2:]]
    return [pytest.param(row[2].strip(), id=f"{page}: {row[0].strip()}") for row in cells]


def groups(page):
    tree = ast.parse((ROOT / "tests" / "systems" / f"test_{page}_rules.py").read_text("utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("page", PAGES)
def test_each_group_of_tests_is_of_a_rule_that_is_told(page):
    text = (ROOT / "docs" / "systems" / f"{page}.md").read_text(encoding="utf-8")
    assert [name for name in groups(page) if f"`{name}" not in text] == []


@pytest.mark.parametrize("tests", [row for page in PAGES for row in rows(page)])
def test_of_a_rule_is_there(tests):
    if tests == "the same":  # as the row above
        return
    spans = re.findall(r"`([^`]+)`", tests)
    named = [span for span in spans if re.match(r"(Test|test_|…)", span)]
    whole_files = [span for span in spans if (ROOT / span).is_file()]
    unit = {f"test_task_{span}.py" for span in spans} | {f"test_{span}.py" for span in spans}
    files = [name for name in unit if any((ROOT / "tests").glob(f"*/{name}"))]
    assert named or whole_files or files, tests
    for span in named:
        pattern = re.compile(re.escape(span).replace("…", ".*"))
        assert any(pattern.fullmatch(name) for name in names()), span
