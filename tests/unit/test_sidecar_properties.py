"""What is written in a sidecar lock is read back, whatever it is: properties of the record."""

import json
import re

import pytest

from semlock import LockRecordError
from semlock._core.json_records import iso_time, parse_iso_time
from semlock._systems.sidecar_record import compose, restamp
from semlock.sidecar import decode
from support import iso

hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")

# Every value that JSON can hold.  A float is equal to the integer that JavaScript may make of
# it, as long as that integer has no more digits than the float.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(-(2.0**53), 2.0**53)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
PAYLOADS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"])), VALUES, max_size=5
)

# How long it takes says nothing here, least of all on a machine that is busy with other tests.
bounded = hypothesis.settings(
    max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
given = hypothesis.given


@bounded
@given(PAYLOADS)
def test_a_payload_is_read_back_as_it_was_written(payload):
    info = decode(compose(payload))
    assert info.payload == payload
    assert re.fullmatch("[0-9a-f]{32}", info.token)


@bounded
@given(PAYLOADS)
def test_a_payload_is_read_alike_by_any_reader_of_json(payload):
    assert json.loads(compose(payload)) == payload


@bounded
@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_one_error(content):
    try:
        assert isinstance(decode(content).payload, dict)
    except LockRecordError:
        pass


@bounded
@given(st.integers(0, 253402300799999))
def test_a_time_is_read_back_as_it_was_written(milliseconds):
    assert parse_iso_time(iso_time(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000, abs=0.0011
    )


@bounded
@given(PAYLOADS, st.integers(0, 253402300799))
def test_a_refresh_changes_nothing_but_the_time_and_never_the_length(payload, seconds):
    created = iso(1795006136.735)
    before = compose({**payload, "createdAt": created})
    after = restamp(before, seconds)
    assert len(after) == len(before)
    assert decode(after).payload == {**payload, "createdAt": iso(seconds)}
    assert decode(after).token == decode(before).token
