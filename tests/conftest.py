"""What all tests share."""

import os
import signal
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Hear of a hang-up, even if whoever started the tests doesn't want to: children inherit it."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the checkout: in it ``python -c`` would import the sources, not what is installed."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a lock may be: a name in an empty directory of its own."""
    return str(tmp_path / "the.lock")


@pytest.fixture
def names(tmp_path: Path):
    """List what is in that directory."""
    return lambda: sorted(os.listdir(tmp_path))
