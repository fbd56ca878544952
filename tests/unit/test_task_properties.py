"""What is written in a task lock is read back, whatever it is: properties of the record."""

import contextlib
import json
import math
import os
import tempfile

import pytest

import semlock
from semlock import task
from semlock._core.json_records import iso_time
from semlock._systems.task_records import checked_since
from semlock.task import LockOwner, TaskLock, decode
from support import content_of

hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
metadata_of_owners = st.fixed_dictionaries(
    {},
    optional={
        "hostname": texts,
        "process_id": st.integers(1, 2**32 - 1),
        "user_identity": texts,
        "session_id": texts,
        "environment": st.sampled_from(["local", "ci", "cloud", "container"]),
        "purpose": st.sampled_from(["interactive", "automated", "emergency"]),
    },
)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    owner=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128),
    metadata=metadata_of_owners,
    ttl=st.floats(0, 1e300, exclude_min=True) | st.integers(1, 2**53),
    now=st.floats(-1e9, 2e11),
)
def test_what_is_written_is_read_back(owner, metadata, ttl, now):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "the.lock")
        whose = LockOwner(owner, metadata)
        lock = TaskLock(path, whose, ttl=ttl, clock=lambda: now, audit=False, durability="none")
        with lock:
            info = decode(content_of(path))
            assert info == lock.info == task.status(path).info
            assert info.owner == whose.owner
            assert info.owner == owner or owner.startswith("token-")
            assert info.metadata == whose.metadata
            assert info.metadata.items() >= metadata.items()
            assert info.ttl == ttl
            assert abs(info.timestamp - now) <= 0.001 + abs(now) * 1e-15
            assert info.token == lock.token


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    owner=anything | st.text(),
    metadata=anything | st.dictionaries(st.sampled_from(["hostname", "purpose"]), anything),
    ttl=anything,
)
def test_whatever_is_asked_for_is_written_or_refused(owner, metadata, ttl):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "the.lock")
        try:
            lock = TaskLock(path, LockOwner(owner, metadata), ttl=ttl, audit=False)
        except semlock.LockRecordError:
            assert os.listdir(directory) == []
            return
        with lock:
            assert decode(content_of(path)) == lock.info


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    members=st.dictionaries(
        st.sampled_from(["owner", "since", "ttl", "metadata", "semlock"]), anything
    )
    | anything,
    cut=st.integers(0, 5),
)
def test_whatever_is_read_gives_a_record_or_a_clear_error(members, cut):
    text = json.dumps(members)
    with contextlib.suppress(semlock.LockRecordError):
        info = decode(text[: len(text) - cut].encode("utf-8", "surrogatepass"))
        assert info.ttl > 0
        assert math.isfinite(info.timestamp)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.integers(-62135596800000, 253402300799999))
def test_a_time_is_written_as_it_was_read(milliseconds):
    text = iso_time(milliseconds / 1000)
    assert len(text) == 24
    assert checked_since(text) == milliseconds / 1000
