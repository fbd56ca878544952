"""Whatever bytes are in a lock file, reading them ends with a record or ``LockRecordError``.

A second reader, written from the format's description in another way, must agree with the
first on every input: on whether it is a record, and on what it says.
"""

import functools
import os
import random
import re
import time
from pathlib import Path

import pytest

import semlock
from semlock._core.identity import Process, this_process
from semlock._core.records import clean_tag, decode_text, encode_text

pytest.importorskip("hypothesis")  # there are no builds of it for some Pythons
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "60"))

# Derandomized, so that a failure in one place is a failure everywhere; the storms search longer,
# and each time elsewhere.
thorough = settings(
    max_examples=500,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

GOLDEN = [
    b"pid=7570\ntimestamp=1794992549\ntag=deploy\n",
    b"pid=7570\ntimestamp=1794992549\n",
    b"pid=1\r\ntimestamp=0\r\ntag=with CR\r\n",
    b"timestamp=18446744073709551615\npid=4294967295",
    b"pid=1\ntimestamp=1\ntag=\nhost=\nstart=\nboot=\npidns=\ntimens=\ntoken=\nwitness=\n",
    b"pid=2\npid=3\ntimestamp=1\ntimestamp=2\ntag=a=b=c\n\n\n=\n==\nx\n",
    "pid=1\ntimestamp=1\ntag=räuber \u2028 \x85 und gendarm\n".encode(),
]

PIECES = [
    b"pid", b"timestamp", b"tag", b"host", b"start", b"boot", b"pidns", b"timens", b"token",
    b"witness", b"=", b"\n", b"\r", b"\r\n", b" ", b"\0", b"0", b"1", b"-1", b"+1", b"1_0", b"1.5",
    b"kept", b"left", b"none", b"2147483647", b"2147483648", b"4294967295", b"4294967296",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551615",
    b"18446744073709551616", b"00000000000000000001", b"000000000000000000001", b"1e9", b"nan",
    b"inf", b"0x1", "\u0663".encode(), "\u00b2".encode(), "\uff11".encode(), b"\xff", b"\xc3",
    b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x1b[2J", b"\xc2\x85", b"\xe2\x80\xa8", b"9" * 30,
    b"9" * 5000,
]  # fmt: skip

_DIGITS = re.compile(rb"[0-9]{1,20}")


def read_again(content: bytes) -> dict | None:
    """Read a record in another way: ``None`` if it is none."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    fields: dict[bytes, bytes] = {}
    for line in re.split(rb"\r?\n", content + b"\n"):
        found = re.match(rb"[ \t]*([^=]*?)[ \t]*=(.*)\Z", line, re.DOTALL)
        if found is not None:
            # What another program appends says which process is meant from there on.
            if found[1] == b"pid" and b"pid" in fields:
                fields = {key: fields[key] for key in (b"tag", b"timestamp") if key in fields}
            fields[found[1]] = found[2]
    ours = bool({b"start", b"boot", b"pidns", b"timens", b"token", b"witness"} & set(fields))
    alone = b"timestamp" not in fields and not ours and content[-1:] == b"\n"

    def number(name: bytes, least: int, most: int) -> int | None:
        value = fields.get(name, b"").strip(b" \t")
        if _DIGITS.fullmatch(value) is None or not least <= int(value) <= most:
            return None
        return int(value)

    def text(name: bytes) -> str | None:
        value = fields.get(name)
        if value is not None and not ours:
            value = value.strip(b" \t")
        return None if value is None else value.decode()

    said = {
        "pid": number(b"pid", 1, 2**32 - 1),
        "timestamp": number(b"timestamp", 0, 2**64 - 1),
        "start": number(b"start", 0, 2**63 - 1),
        "pidns": number(b"pidns", 0, 2**64 - 1),
        "timens": number(b"timens", 0, 2**64 - 1),
        **{name: text(name.encode()) for name in ("tag", "host", "boot", "token", "witness")},
    }
    timeless = said["timestamp"] is None and not alone
    return None if said["pid"] is None or timeless else said


def assert_read_alike(content: bytes) -> None:
    try:
        info = decode_text(content)
    except semlock.LockRecordError:
        assert read_again(content) is None, content
        return
    said = read_again(content)
    assert said is not None, content
    assert {name: getattr(info, name) for name in said} == said, content


def a_real_record(tag: str | None = "a tag") -> bytes:
    return bytes(encode_text(this_process(), tag, mode=0o644, durability=0).text)


lines = st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)
fields = st.lists(
    st.tuples(st.sampled_from(PIECES[:10]), st.just(b"="), st.sampled_from(PIECES[10:]))
    .map(b"".join)
    .map(lambda line: line + b"\n"),
    max_size=14,
).map(b"".join)


@st.composite
def mutations(draw) -> bytes:
    """A real record with some bytes changed, inserted, removed or moved."""
    data = bytearray(draw(st.sampled_from([*GOLDEN, a_real_record()])))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + length] = draw(st.binary(max_size=12))
            case 1:
                data[at:at] = draw(st.sampled_from(PIECES))
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[at : at + length]
            case 4:
                del data[at:]
    return bytes(data)


contents = st.one_of(st.binary(max_size=300), lines, fields, mutations())
tags = st.one_of(st.none(), st.text(max_size=200))
processes = st.builds(
    Process,
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.just(0),
    st.text(alphabet="0123456789abcdef-", max_size=40),
    st.text(max_size=70),
)


@thorough
@given(contents)
@example(b"")
@example(b"\xef\xbb\xbfpid=1\ntimestamp=1\n")
@example(b"pid=1\0\ntimestamp=1\n")
@example(b"pid = 1\ntimestamp=1\n")
@example(b" pid\t= 1 \r\n\ttimestamp =1\t\ntag= x \n")
@example(b" pid\t= 1 \r\n\ttimestamp =1\t\ntag= x \ntoken= x\n")
@example(b"pid=1\n")
@example(b"pid=1")
@example(b"pid=1\ntag=x\n\n")
@example(b"pid=1\ntoken=x\n")
@example(b"pid=1\r\r\ntimestamp=1\r\r\n")
@example(b"pid=1\ntimestamp=1\ntag=a\r\r\nhost=b\r\r")
def test_any_bytes_are_a_record_or_a_record_error(content):
    assert_read_alike(content)


@thorough
@given(tags)
@example("")
@example("\udcff")
@example("a\nwitness=none\rpid=1\x00\x1b[2J\x7f")
@example("\x85\u2028\u2029")
@example(" =spaces and equals = ")
def test_every_tag_comes_back_as_it_was_cleaned(tag):
    assert_tag_comes_back(tag)


def assert_tag_comes_back(tag: str | None) -> None:
    try:
        content = a_real_record(tag)
    except semlock.LockRecordError:
        assert any("\ud800" <= character <= "\udfff" for character in tag)
        return
    info = decode_text(content)
    assert info.tag == (None if tag is None else clean_tag(tag))
    assert_read_alike(content)
    # Whatever the tag says, it says nothing in the place of another field.
    assert info.pid == os.getpid()
    assert info.start == this_process().start
    assert info.witness == "none"
    assert info.token == "0" * 32


@settings(thorough, max_examples=300)
@given(processes)
def test_whatever_a_process_is_comes_back(process):
    assert_process_comes_back(process)


def assert_process_comes_back(process: Process) -> None:
    content = bytes(encode_text(process, None, mode=0o600, durability=2).text)
    info = decode_text(content)
    assert info.pid == process.pid
    assert (info.start or 0, info.pidns or 0) == (process.start, process.pidns)
    assert (info.boot or "") == process.boot
    assert (info.host or "") == clean_tag(process.host).encode("utf-8", "replace").decode()


@settings(thorough, max_examples=300)
@given(contents)
def test_a_lock_file_of_any_content_can_be_looked_at_and_is_robbed_only_with_proof(
    tmp_path, content
):
    assert_robbed_only_with_proof(tmp_path / "the.lock", content)


def assert_robbed_only_with_proof(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    found = semlock.status(path)
    assert found.state in ("held", "stale", "unreadable")
    assert repr(found)
    assert found.holder
    assert found.age >= 0
    lock = semlock.Lock(path, durability="none")
    assert lock.try_acquire() is (found.verdict == "dead")
    if not lock.held:
        assert path.read_bytes() == content
        semlock.remove(path, force=True)
        return
    lock.release()
    # Proof is the end of a known process: a record that names no boot and no witness, as any
    # foreigner's, is never proof.
    assert found.info is not None
    assert found.info.boot or found.info.witness == "kept"


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("values", "check", "times"),
    [
        pytest.param(contents, assert_read_alike, 8_000, id="bytes"),
        pytest.param(tags, assert_tag_comes_back, 6_000, id="tags"),
        pytest.param(processes, assert_process_comes_back, 6_000, id="processes"),
        pytest.param(contents, assert_robbed_only_with_proof, 3_000, id="locks"),
    ],
)
def test_the_same_of_many_more(values, check, times, tmp_path):
    if check is assert_robbed_only_with_proof:
        check = functools.partial(check, tmp_path / "the.lock")

    @settings(thorough, max_examples=times, derandomize=False)
    @given(values)
    def search(value):
        check(value)

    search()


def mutants(dice: random.Random):
    """Give mutated records for ever, a few microseconds apart."""
    seeds = [*GOLDEN, a_real_record(), a_real_record(None), a_real_record("ü" * 100)]
    pool = list(seeds)
    pick, below = dice.choice, dice.random
    while True:
        data = bytearray(pick(pool))
        for _ in range(1 + int(below() * 4)):
            size = len(data)
            at = int(below() * (size + 1))
            chance = below()
            if chance < 0.35 and at < size:
                data[at] = int(below() * 256)
            elif chance < 0.65:
                data[at:at] = pick(PIECES)
            elif chance < 0.8:
                del data[at : at + int(below() * 16)]
            elif chance < 0.9:
                data[at:at] = data[int(below() * size) :][:24]
            else:
                del data[at:]
        content = bytes(data)
        # Offspring of offspring wander off into stranger forms; now and then begin anew.
        if len(content) < 2000:
            if len(pool) < 500:
                pool.append(content)
            else:
                pool[int(below() * 500)] = content
        if below() < 0.0005:
            pool = list(seeds)
        yield content


@pytest.mark.stress
@pytest.mark.timeout(SECONDS * 2 + 60)
def test_millions_of_mutants_are_records_or_record_errors():
    seed = random.getrandbits(32)
    source = mutants(random.Random(seed))
    end = time.monotonic() + SECONDS
    count = records = 0
    while time.monotonic() < end:
        for _ in range(1000):
            content = next(source)
            count += 1
            try:
                decode_text(content)
            except semlock.LockRecordError:
                continue
            except BaseException as error:
                raise AssertionError(f"seed {seed}: {content!r}") from error
            records += 1
            if records % 16 == 0:
                assert_read_alike(content)
    print(f"{count} inputs, of which {records} were records")
    assert count > 10_000 * SECONDS
    assert records > count / 100
