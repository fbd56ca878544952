"""What acquire_all returns is dropped: by a signal nothing is held then, by the program all."""

from __future__ import annotations

import dis
import gc
import sys
import warnings

import pytest

import semlock

pytestmark = [
    pytest.mark.leaves("kept"),
    pytest.mark.skipif(sys.implementation.name != "cpython", reason="it drops at once"),
]


@pytest.fixture
def paths(tmp_path):
    return [tmp_path / "a.lock", tmp_path / "b.lock"]


def locks_at(paths):
    return [semlock.Lock(path) for path in paths]


def are_free(paths):
    found = semlock.try_acquire_many(paths)
    for lock in found:
        if lock is not None:
            lock.release()
    return all(found)


def work(paths):
    with semlock.acquire_all(locks_at(paths), timeout=5):
        return True


def work_with_its_own(locks):
    with semlock.acquire_all(locks, timeout=5) as held:
        return held


def struck(function, names, argument):
    """Run a function that an interrupt strikes at its first instruction of some names."""
    at = next(one.offset for one in dis.get_instructions(function) if one.opname in names)
    hits = []

    def trace(frame, event, _):
        if frame.f_code is not function.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti == at and not hits:
            hits.append(at)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            function(argument)
    finally:
        sys.settrace(before)
    assert hits


@pytest.mark.parametrize("form", [work, work_with_its_own])
def test_an_interrupt_behind_the_return_leaves_nothing_held(form, paths):
    """As one within the call does, whether or not the caller has the locks."""
    argument = paths if form is work else locks_at(paths)
    struck(form, ("SETUP_WITH", "BEFORE_WITH", "COPY"), argument)
    gc.collect()
    assert are_free(paths)
    if form is not work:
        assert not any(lock.held for lock in argument)


def ignored(paths):
    semlock.acquire_all(locks_at(paths))


def passed_on(paths):
    assert str(semlock.acquire_all(locks_at(paths)))


def forgotten(paths):
    both = semlock.acquire_all(locks_at(paths))
    del both


def asked(paths):
    return bool(semlock.acquire_all(locks_at(paths)))


@pytest.mark.parametrize("how", [ignored, passed_on, forgotten, asked])
def test_what_a_program_drops_itself_stays_held_and_is_told_of(how, paths):
    """It may rely on the locks: when they end doesn't depend on who refers to them."""
    with pytest.warns(ResourceWarning, match="nothing refers to"):
        how(paths)
        gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not are_free(paths)
    release_what_was_dropped()


def release_what_was_dropped():
    from semlock._core import registry

    while registry._dropped:
        registry.release_now(registry._dropped.pop())
