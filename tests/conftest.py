"""What all tests share."""

import gc
import os
import signal
from pathlib import Path

import pytest

import invariant
import parallel
import users
from crowd import bound  # noqa: F401 - a fixture for all tests
from servers import (  # noqa: F401 - fixtures for all tests
    certificates,
    etcd_cluster,
    etcd_server,
    postgresql_server,
    redis_server,
)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Have several processes run the tests where that is faster.

    They and their children keep what they compile of the tests: to compile it again in each of
    some thousand processes takes a tenth of the time.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parallel.choose(config)


def pytest_configure(config: pytest.Config) -> None:
    """Hear what the starter of the tests has them ignore: their children would inherit that.

    A hang-up is what ``nohup`` keeps off, and Ctrl-C what a script's ``&`` does.
    """
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGQUIT"):
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    parallel.compile_share(config)


def pytest_collection_finish() -> None:
    """Take what lives as long as the tests out of the collections of garbage, which many make."""
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Keep tests apart that would disturb each other: ``pytest.mark.one_at_a_time("time")``."""
    with parallel.turn(request.node, tmp_path_factory):
        yield


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the checkout: in it ``python -c`` would import the sources, not what is installed."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a lock may be: a name in an empty directory of its own."""
    return str(tmp_path / "the.lock")


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Where a file may be that a sidecar lock is for."""
    return str(tmp_path / "state.json")


@pytest.fixture
def lock_file(target: str) -> Path:
    """Where that lock is."""
    return Path(target + ".lock")


@pytest.fixture
def common():
    """Make a directory like /tmp: all users can reach it and write to it."""
    with users.shared() as directory:
        yield directory


@pytest.fixture
def shared_path(common) -> str:
    """Where several users can have a lock."""
    if not users.ROOT:
        pytest.skip("only root can become another user")
    return os.path.join(common, "the.lock")


@pytest.fixture
def names(tmp_path: Path):
    """List what is in that directory."""
    return lambda: sorted(os.listdir(tmp_path))


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest, tmp_path: Path):
    """See that nothing is under way after a test, and nothing left but what it says itself.

    ``pytest.mark.leaves("queue")`` says so; the kinds are those of ``invariant``.
    """
    before = invariant.Before()
    yield
    allowed = {kind for mark in request.node.iter_markers("leaves") for kind in mark.args}
    assert allowed <= set(invariant.KINDS)
    found = before.left_over(str(tmp_path))
    assert found.keys() <= allowed, found
