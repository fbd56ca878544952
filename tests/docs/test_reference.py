"""The page of the API says what each option of each class means."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLASSES = re.findall(
    r"autoclass:: (semlock\.\S+)", (DOCS / "reference.md").read_text(encoding="utf-8")
)


def found(name: str) -> type:
    module, _, kind = name.rpartition(".")
    return getattr(importlib.import_module(module), kind)


LOCKS = [name for name in CLASSES if hasattr(found(name), "_refused_options")]


@pytest.fixture(scope="module")
def conf():
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("docs_conf", None)


def lines_of(conf, name: str) -> list[str]:
    lines = inspect.getdoc(found(name)).splitlines()
    conf._describe_parameters(None, "class", name, found(name), None, lines)
    return lines


@pytest.mark.parametrize("name", LOCKS)
def test_each_option_that_a_lock_takes_has_a_text(conf, name):
    told = set(re.findall(r"^:param (\w+):", "\n".join(lines_of(conf, name)), re.MULTILINE))
    assert told >= set(inspect.signature(found(name)).parameters)


def test_an_option_of_a_lock_for_tasks_has_both_texts(conf):
    text = " ".join(lines_of(conf, "semlock.AsyncSlotLock"))
    assert "the loop stands still" in text
    assert "what a power cut may do" in text


def test_no_option_is_described_twice(conf):
    for name in LOCKS:
        told = re.findall(r"^:param (\w+):", "\n".join(lines_of(conf, name)), re.MULTILINE)
        assert len(told) == len(set(told))
