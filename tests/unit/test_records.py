"""The text format: what is read, what is refused, byte by byte."""

import pytest

from semlock import LockInfo, LockRecordError
from semlock._core.identity import Process
from semlock._core.records import decode_text, encode_text

GOOD = {
    "sema's own": (b"pid=7570\ntimestamp=1794992549\ntag=deploy\n", "deploy"),
    "without a tag": (b"pid=7570\ntimestamp=1794992549\n", None),
    "an empty tag": (b"pid=7570\ntimestamp=1794992549\ntag=\n", ""),
    "CRLF": (b"pid=7570\r\ntimestamp=1794992549\r\ntag=deploy\r\n", "deploy"),
    "no final newline": (b"pid=7570\ntimestamp=1794992549\ntag=deploy", "deploy"),
    "unknown keys": (b"x=1\npid=7570\ny\ntimestamp=1794992549\ntag=deploy\nz=\n", "deploy"),
    "empty lines": (b"\npid=7570\n\n\ntimestamp=1794992549\ntag=deploy\n\n", "deploy"),
    "equals in the tag": (b"pid=7570\ntimestamp=1794992549\ntag=a=b=c\n", "a=b=c"),
    "unicode": ("pid=7570\ntimestamp=1794992549\ntag=zürich 🔒\n".encode(), "zürich 🔒"),
    "blanks around a tag of others": (b"pid=7570\ntimestamp=1794992549\ntag= a \n", "a"),
    "blanks around our tag": (b"pid=7570\ntimestamp=1794992549\ntag= a \ntoken=x\n", " a "),
    "blanks at the ends": (b"pid=7570 \r\ntimestamp=1794992549 \r\n", None),
    "blanks and tabs around all": (b" pid = 7570\n\ttimestamp\t=\t1794992549\n", None),
    "the last of two": (b"pid=1\npid=7570\ntimestamp=1794992549\ntag=a\ntag=b\n", "b"),
    "leading zeros": (b"pid=007570\ntimestamp=01794992549\n", None),
}

BAD = {
    "empty": b"",
    "white space": b" \n\n",
    "no pid": b"timestamp=1\n",
    "no timestamp, and cut": b"pid=1",
    "no timestamp, and a line cut": b"pid=1\ntag=x",
    "no timestamp in a record of ours": b"pid=1\ntoken=x\n",
    "no pid but a tag": b"tag=x\n",
    "a blank inside": b"pid=1 2\ntimestamp=1\n",
    "half": b"pid=1\ntimest",
    "pid zero": b"pid=0\ntimestamp=1\n",
    "pid negative": b"pid=-1\ntimestamp=1\n",
    "pid with a sign": b"pid=+1\ntimestamp=1\n",
    "pid huge": b"pid=4294967296\ntimestamp=1\n",
    "pid of a thousand digits": b"pid=" + b"9" * 1000 + b"\ntimestamp=1\n",
    "pid in other digits": "pid=١\ntimestamp=1\n".encode(),
    "pid grouped": b"pid=1_000\ntimestamp=1\n",
    "timestamp negative": b"pid=1\ntimestamp=-1\n",
    "timestamp a fraction": b"pid=1\ntimestamp=1.5\n",
    "timestamp nan": b"pid=1\ntimestamp=nan\n",
    "timestamp huge": b"pid=1\ntimestamp=18446744073709551616\n",
    "byte order mark": b"\xef\xbb\xbfpid=1\ntimestamp=1\n",
    "not UTF-8": b"pid=1\ntimestamp=1\ntag=\xff\n",
    "UTF-16": "pid=1\ntimestamp=1\n".encode("utf-16"),
    "NUL in a number": b"pid=1\0\ntimestamp=1\n",
    "json": b'{"pid": 1}',
}


@pytest.mark.parametrize("name", GOOD)
def test_what_the_format_allows_is_read(name):
    content, tag = GOOD[name]
    info = decode_text(content)
    assert (info.pid, info.timestamp, info.tag) == (7570, 1794992549, tag)


@pytest.mark.parametrize("name", BAD)
def test_what_it_does_not_allow_is_refused_with_one_error(name):
    with pytest.raises(LockRecordError):
        decode_text(BAD[name])


@pytest.mark.parametrize("key", ["start", "pidns", "timens"])
@pytest.mark.parametrize("value", ["x", "-1", "", "9" * 30])
def test_an_odd_value_of_our_own_keys_counts_as_missing(key, value):
    info = decode_text(f"pid=1\ntimestamp=1\n{key}={value}\n".encode())
    assert getattr(info, key) is None


def test_what_is_written_has_room_for_what_each_win_fills_in():
    process = Process(7, 8, 9, 10, "a-boot", "a host\nwith=a line")
    record = encode_text(process, "why", mode=0o644, durability=2)
    text = record.text
    assert text[record.stamp_at :].startswith(b"0" * 10 + b"\n")
    assert text[record.token_at :].startswith(b"0" * 32 + b"\n")
    assert text[record.witness_at :] == b"none\n"
    info = decode_text(text)
    assert info == LockInfo(
        pid=7, timestamp=0, tag="why", host="a host with=a line", start=8, boot="a-boot",
        pidns=9, token="0" * 32, witness="none",
    )  # fmt: skip


def test_what_is_not_known_of_a_process_is_left_out():
    record = encode_text(Process(7, 0, 0, 0, "", ""), None, mode=0o644, durability=0)
    keys = [line.partition(b"=")[0] for line in record.text.splitlines()]
    assert keys == [b"pid", b"timestamp", b"token", b"witness"]


def test_infos_compare_by_what_they_say():
    one = LockInfo(pid=1, timestamp=2, tag="x")
    assert one == LockInfo(pid=1, timestamp=2, tag="x")
    assert one != LockInfo(pid=1, timestamp=2, tag="y")
    assert one != "pid=1"
    assert len({one, LockInfo(pid=1, timestamp=2, tag="x")}) == 1
    assert repr(one) == "LockInfo(pid=1, timestamp=2, tag='x')"
