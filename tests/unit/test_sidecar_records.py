"""The bytes of sidecar locks: JSON as JavaScript writes it, and the name behind it."""

import enum
import re
import time

import pytest

import semlock
from semlock import LockRecordError, sidecar
from semlock._core.json_records import decode_object, encode_object, iso_time, parse_iso_time
from semlock._systems.sidecar_record import compose, restamp, token_of
from semlock.sidecar import SidecarLock, decode

# What JavaScript's JSON.stringify makes of these, tried with Node 20.
NUMBERS = [
    (0.0, "0"), (-0.0, "0"), (1.0, "1"), (-3.5, "-3.5"), (0.1, "0.1"), (100.25, "100.25"),
    (1e15, "1000000000000000"), (1e16, "10000000000000000"), (1e20, "100000000000000000000"),
    (1e21, "1e+21"), (123456789012345680000.0, "123456789012345680000"), (1.5e300, "1.5e+300"),
    (1e-5, "0.00001"), (0.000001, "0.000001"), (1e-7, "1e-7"), (1.5e-7, "1.5e-7"),
    (5e-324, "5e-324"), (12345.678, "12345.678"),
]  # fmt: skip


class TestWriting:
    def test_is_that_of_json_stringify_with_two_spaces_and_a_newline(self):
        payload = {"pid": 7, "häufig": ["ü", {}, []], "nested": {"a": None, "b": [True, False]}}
        text = compose(payload).decode()
        assert text.startswith(
            '{\n  "pid": 7,\n  "häufig": [\n    "ü",\n    {},\n    []\n  ],\n'
            '  "nested": {\n    "a": null,\n    "b": [\n      true,\n      false\n    ]\n  }\n}\n'
        )
        assert compose({}).startswith(b"{}\n\t")

    @pytest.mark.parametrize(("number", "text"), NUMBERS)
    def test_of_a_number_is_javascripts(self, number, text):
        assert encode_object({"n": number}) == f'{{\n  "n": {text}\n}}'

    def test_of_text_escapes_what_javascript_escapes(self):
        text = '"\\/\b\f\n\r\t\x00\x1f\x7f\u2028é🔒'
        assert encode_object({"t": text}) == (
            '{\n  "t": "\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\u2028é🔒"\n}'
        )

    def test_of_half_a_character_escapes_it_and_of_two_halves_joins_them(self):
        assert '"\\ud800x\\udc00 😀"' in encode_object({"t": "\ud800x\udc00 \ud83d\ude00"})

    def test_of_subclasses_is_that_of_their_base(self):
        class Number(enum.IntEnum):
            SEVEN = 7

        assert encode_object({"n": Number.SEVEN, "t": (1,)}) == (
            '{\n  "n": 7,\n  "t": [\n    1\n  ]\n}'
        )

    @pytest.mark.parametrize(
        "payload",
        [
            None, "text", 7, ["a"], {1: 2}, {None: 1}, {"x": float("nan")}, {"x": float("inf")},
            {"x": {1, 2}}, {"x": b"bytes"}, {"x": object()}, {"x": {"y": [{3: 4}]}},
            {"x": 10**5000}, {"x": "y" * 70000},
        ],
    )  # fmt: skip
    def test_of_what_json_cannot_hold_is_refused_before_any_file_exists(
        self, payload, tmp_path, names
    ):
        for call in (
            lambda: sidecar.acquire_file_lock(tmp_path / "sub" / "x", payload=lambda: payload),
            lambda: SidecarLock(tmp_path / "sub" / "x", payload=lambda: payload).try_acquire(),
        ):
            with pytest.raises(LockRecordError):
                call()
        assert names() == []

    def test_of_what_contains_itself_is_refused(self):
        loop = {}
        loop["loop"] = loop
        with pytest.raises(LockRecordError, match="contains itself"):
            encode_object(loop)


class TestReading:
    @pytest.mark.parametrize(
        "content",
        [
            b"", b"\n", b"{", b'{"pid": 1', b"null", b"[1]", b'"x"', b"1", b"{}x",
            b"\xef\xbb\xbf{}", b'{"pid": NaN}', b'{"x": Infinity}', b"{}\0", b"\0",
            b"pid=1\ntimestamp=1\n", "{}".encode("utf-16"), b"{'pid': 1}",
            b'{"a": "\n"}', b"[" * 100000,
        ],
        ids=lambda content: repr(content)[:20],
    )  # fmt: skip
    def test_of_what_is_no_object_is_refused(self, content):
        with pytest.raises(LockRecordError):
            decode(content)

    @pytest.mark.parametrize(
        ("content", "payload"),
        [
            (b'{\r\n  "pid": 1\r\n}\r\n', {"pid": 1}),
            (b'  {"pid": 1, "pid": 2}', {"pid": 2}),
            (b'{"t": "\xff"}', {"t": "\ufffd"}),
            (b'{"n": 1e999}', {"n": float("inf")}),
            (b'{"t": "\\ud800"}', {"t": "\ud800"}),
            (b'{"n": %s}' % (b"9" * 5000), {"n": float("inf")}),
        ],
        ids=["CRLF", "twice", "not UTF-8", "huge exponent", "half a character", "huge integer"],
    )
    def test_is_as_tolerant_as_node(self, content, payload):
        assert decode(content).payload == payload

    @pytest.mark.parametrize(
        ("pid", "read"),
        [(1, 1), (0, None), (-1, None), (2**40, None), (True, None), ("7", None), (1.5, None)],
    )
    def test_takes_only_a_possible_number_for_a_process(self, pid, read):
        assert decode(compose({"pid": pid})).pid == read

    def test_fills_the_fields_that_all_records_share(self):
        created = "2026-11-18T12:48:56.735Z"
        info = decode(compose({"pid": 7, "host": "h", "createdAt": created}))
        assert (info.pid, info.host, info.timestamp) == (7, "h", 1795006136.735)


class TestTheName:
    def test_is_new_for_each_record(self):
        assert len({compose({}) for _ in range(100)}) == 100

    def test_is_written_as_fs_safe_writes_its_own(self):
        assert re.fullmatch(rb"\{\}\n\t{8}[ \t]{128}\n", compose({}))

    def test_is_read_from_the_white_space(self):
        bits = "\t " * 64
        assert token_of(b"{}\n" + b"\t" * 8 + bits.encode() + b"\n") == "a" * 32

    @pytest.mark.parametrize(
        "tail",
        [b"", b"\n", b"\n" + b"\t" * 136, b"\n" + b"\t" * 135 + b"\n", b"\t" * 136 + b"\n"],
    )
    def test_of_a_record_without_one_is_none(self, tail):
        assert token_of(b"{}" + tail) is None

    def test_is_the_token_of_the_lock_while_it_is_held(self, tmp_path):
        lock = SidecarLock(tmp_path / "x")
        assert lock.token is None
        with lock:
            first = lock.token
            assert first == lock.info.token == sidecar.status(tmp_path / "x").info.token
        with lock:
            assert lock.token != first


class TestTimes:
    def test_are_written_as_javascript_does(self):
        assert iso_time(1795006136.7359) == "2026-11-18T12:48:56.735Z"
        assert iso_time(0) == "1970-01-01T00:00:00.000Z"

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("1970-01-02", 86400), ("1970-02", 31 * 86400), ("1971", 365 * 86400),
            ("1970-01-01T00:00Z", 0), ("1970-01-01T00:00:07.1239Z", 7.123),
            ("1970-01-01T02:00:00+02:00", 0), ("1970-01-01T00:00:00-01:30", 5400),
            ("1970-01-01T24:00:00Z", 86400),
        ],
    )  # fmt: skip
    def test_are_read_in_every_iso_form(self, text, seconds):
        assert parse_iso_time(text) == seconds

    def test_without_a_zone_are_local(self):
        local = time.mktime((2026, 6, 1, 10, 0, 5, 0, 0, -1))
        assert parse_iso_time("2026-06-01T10:00:05") == local

    @pytest.mark.parametrize(
        "text",
        [
            None, 7, "", "now", "2026-13-01", "2026-06-01T10Z", "2026-06-01T10:00:60Z",
            "2026-06-01T24:00:01Z", "2026-06-01T10:00+24:00", "2026-06-01T10:00:05Z\n",
            "٢٠٢٦-06-01", "0000-01-01", "2026-06-01T10:00:05." + "9" * 5000 + "X",
        ],
        ids=lambda text: repr(text)[:20],
    )  # fmt: skip
    def test_in_another_form_are_none(self, text):
        assert parse_iso_time(text) is None


class TestRestamping:
    @pytest.mark.parametrize(
        "payload",
        [
            {}, {"createdAt": "2026-11-18"}, {"createdAt": 7}, {"createdAt": None},
            {"x": {"createdAt": "2026-11-18T12:48:56.735Z"}},
            {"x": '\n  "createdAt": "2026-11-18T12:48:56.735Z"'},
        ],
    )  # fmt: skip
    def test_leaves_a_record_alone_that_has_no_time_of_its_own_in_that_form(self, payload):
        text = compose(payload)
        assert restamp(text, 7) == text


def test_what_a_record_cannot_hold_is_a_value_error_too():
    with pytest.raises(ValueError, match="JSON object"):
        compose([])
    assert issubclass(semlock.LockRecordError, ValueError)


def test_decode_object_gives_the_object():
    assert decode_object(b'{"a": [1, 2.5]}') == {"a": [1, 2.5]}
