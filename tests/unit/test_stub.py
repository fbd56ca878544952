"""What mypy knows of the core is what the header says, and what the built core has."""

import re
from pathlib import Path

import pytest

from semlock._core import compiled
from semlock._core.compiled import ffi, lib

pytest.importorskip("pycparser", reason="cffi reads the header with it")

import make_stub

STUB = make_stub.stub()


def test_the_stub_is_made_of_the_header():
    installed = Path(compiled.__file__).with_name("compiled.pyi")
    assert installed.read_text(encoding="utf-8") == STUB


@pytest.mark.parametrize("name", ffi.list_types()[0])
def test_the_stub_has_the_fields_of_a_structure(name):
    described = STUB.partition(f"class {name}:\n")[2].partition("\n\n")[0]
    fields = [name for name, _ in ffi.typeof(name).fields]
    assert re.findall(r"^    (\w+):", described, re.MULTILINE) == fields


def test_the_stub_has_the_calls_and_constants_of_the_core():
    described = STUB.partition("class Library:\n")[2]
    names = re.findall(r"^    (?:def )?(semlock_\w+|SEMLOCK_\w+)", described, re.MULTILINE)
    assert sorted(names) == sorted(dir(lib))
