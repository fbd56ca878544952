"""The task lock's records: both forms read, one written, and what is wrong said in words."""

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import semlock
from semlock import task
from semlock._core.identity import Process
from semlock._systems.task_records import (
    digest,
    encode,
    put_since,
    since_of,
    without_secrets,
    without_token,
)
from semlock.task import LockOwner, TaskLock, decode
from support import content_of

RECORDS = Path(__file__).resolve().parents[1] / "interop" / "records" / "task"
SINCE = 1761229800.0  # 2025-10-23T14:30:00.000Z

LOCAL = {"environment": "local", "purpose": "interactive"}


def record(**changes):
    """An enhanced record with some members changed; ``None`` leaves one out."""
    members = {
        "owner": "pid-1@box",
        "since": "2025-10-23T14:30:00.000Z",
        "ttl": 3600,
        "metadata": dict(LOCAL),
        **changes,
    }
    kept = {name: value for name, value in members.items() if value is not ...}
    return json.dumps(kept, indent=2).encode()


def with_metadata(**fields):
    return record(metadata=fields)


# ---------------------------------------------------------------- golden files

GOLDEN = {
    "old.lock": ("agent-7", SINCE, 3600, {}),
    "enhanced-local.lock": (
        "pid-12345@developer-laptop.local", SINCE, 3600,
        {"hostname": "developer-laptop.local", "process_id": 12345, **LOCAL},
    ),
    "enhanced-user.lock": (
        "user-john.doe@company.com@session-sess_abc123", SINCE, 3600,
        {"user_identity": "john.doe@company.com", "session_id": "sess_abc123", **LOCAL},
    ),
    "enhanced-token.lock": (
        "token-eyJhbGciOiJIUzI1NiIs", SINCE, 7200,
        {"environment": "cloud", "purpose": "interactive"},
    ),
    "enhanced-ci.lock": (
        "ci-pipeline-gh-456", SINCE, 86400, {"environment": "ci", "purpose": "automated"},
    ),
    "reclaimed.lock": (
        "user-john@session-abc123", SINCE, 3600,
        {
            "user_identity": "john", "session_id": "abc123", "environment": "local",
            "purpose": "emergency", "reclaimed_from": "ci-pipeline-gh-456",
            "reclaimed_reason": "LOCK_EXPIRED",
        },
    ),
    "refreshed.lock": (
        "ci-pipeline-gh-456", SINCE + 0.001, 86400,
        {"environment": "ci", "purpose": "automated"},
    ),
    "migrated.lock": (
        "pid-agent-7", SINCE, 3600,
        {**LOCAL, "migrated": True, "migrated_at": "2025-10-23T15:00:00.000Z"},
    ),
    "semlock.lock": (
        "pid-7570@builder", SINCE, 3600, {"hostname": "builder", "process_id": 7570, **LOCAL},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_record_is_read(name):
    owner, since, ttl, metadata = GOLDEN[name]
    info = decode((RECORDS / name).read_bytes())
    assert (info.owner, info.timestamp, info.ttl, info.metadata) == (
        owner,
        since,
        ttl,
        metadata,
    )
    assert info.old is (name == "old.lock")


def test_every_golden_record_is_in_the_table():
    assert {file.name for file in RECORDS.iterdir()} - {"README.md"} == set(GOLDEN)


def test_our_bytes_do_not_change_unseen():
    owner = LockOwner.from_string("pid-7570@builder")
    boot = "eef49521-1b8f-4bfc-90ce-db06bce7bf77"
    process = Process(7570, 213647, 4026531836, 0, boot, "builder")
    made = encode(owner.owner, 3600, owner.metadata, process, mode=0o600, durability=0)
    put_since(made, b"2025-10-23T14:30:00.000Z")
    text = bytes(made.text).replace(b"0" * 32, b"0123456789abcdef0123456789abcdef")
    golden = (RECORDS / "semlock.lock").read_bytes()
    assert text.replace(b'"none"', b'"kept"') == golden
    assert golden[made.token_at :].startswith(b"0123456789abcdef")
    assert golden[made.witness_at :].startswith(b"kept")
    assert since_of(made) == b"2025-10-23T14:30:00.000Z"


def test_our_record_says_who_holds_it_beside_what_the_schema_has():
    info = decode((RECORDS / "semlock.lock").read_bytes())
    assert (info.pid, info.start, info.pidns) == (7570, 213647, 4026531836)
    assert (info.token, info.witness) == ("0123456789abcdef0123456789abcdef", "kept")
    assert info.boot == "eef49521-1b8f-4bfc-90ce-db06bce7bf77"
    assert info.holder == "pid-7570@builder"
    assert set(info.as_dict()) == set(semlock.LockInfo.__slots__)


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("since", "seconds"),
    [
        ("2025-10-23T14:30:00.000Z", SINCE), ("2025-10-23T14:30:00Z", SINCE),
        ("2025-10-23T14:30:00.5Z", SINCE + 0.5), ("2025-10-23T16:30:00.000+02:00", SINCE),
        ("2025-10-23T09:00:00.000-05:30", SINCE), ("2025-10-23T14:30:00.123999Z", SINCE + 0.123),
        (1761229800000, SINCE), (1761229800000.0, SINCE), (1761229800001, SINCE + 0.001),
        ("9999-12-31T23:59:59.999Z", 253402300799.999), ("1969-12-31T23:59:59.000Z", -1.0),
        (100_000_000_000, 1e8),
    ],
)  # fmt: skip
def test_a_time_is_read_in_both_forms(since, seconds):
    assert decode(record(since=since)).timestamp == seconds


@pytest.mark.parametrize(
    "content",
    [
        record().replace(b"\n", b"\r\n"), record() + b"\n \t\n", record(extra=[1, {}]),
        record(metadata=...), record(metadata=None), record(metadata={}),
        record(ttl=0.5), record(owner="x" * 256), record(owner="\U0001f512" * 128),
        record().replace(b'"pid-1@box"', b'"first", "owner": "pid-1@box"'),
        record(semlock={"pid": -5, "start": "x", "token": 7}), record(semlock="?"),
        record(semlock={"pid": True}), with_metadata(process_id=7.0),
    ],
    ids=[
        "CRLF", "white space behind", "unknown member", "no metadata", "metadata null",
        "metadata empty", "fraction", "longest owner", "longest owner of wide characters",
        "the same key twice", "odd claims", "claims no object", "true is no pid", "pid with .0",
    ],
)  # fmt: skip
def test_what_other_readers_read_is_read(content):
    info = decode(content)
    assert info.token is None
    assert info.start is None
    assert info.pid in (None, 7)


BAD = {
    "no JSON": (b"{", "not JSON"),
    "empty": (b"", "not JSON"),
    "NUL behind": (record() + b"\0", "not JSON"),
    "byte order mark": (b"\xef\xbb\xbf" + record(), "not JSON"),
    "nested too deeply": (b"[" * 60000, "not JSON"),
    "NaN": (record().replace(b"3600", b"NaN"), "NaN"),
    "Infinity": (record().replace(b"3600", b"Infinity"), "Infinity"),
    "minus Infinity": (record().replace(b"3600", b"-Infinity"), "Infinity"),
    "not an object": (b'["owner"]', "no object"),
    "no owner": (record(owner=...), "no owner"),
    "nothing at all": (b"{}", "no owner and no since and no ttl"),
    "owner and metadata alone": (record(since=..., ttl=...), "no since and no ttl"),
    "owner empty": (record(owner=""), "owner is a text"),
    "owner a number": (record(owner=7), "owner is a text"),
    "owner an object": (record(owner={"owner": "x"}), "owner is a text"),
    "owner too long": (record(owner="x" * 257), "257"),
    "owner too long for JavaScript": (record(owner="\U0001f512" * 129), "258"),
    "ttl a text": (record(ttl="3600"), "ttl is a number"),
    "ttl zero": (record(ttl=0), "ttl is a number"),
    "ttl negative": (record(ttl=-1), "ttl is a number"),
    "ttl true": (record(ttl=True), "ttl is a number"),
    "ttl null": (record(ttl=None), "ttl is a number"),
    "ttl beyond a double": (record().replace(b"3600", b"1e999"), "ttl is a number"),
    "ttl of 400 digits": (record().replace(b"3600", b"9" * 400), "ttl is a number"),
    "ttl of 5000 digits": (record().replace(b"3600", b"9" * 5000), "ttl is a number"),
    "since null": (record(since=None), "neither"),
    "since true": (record(since=True), "neither"),
    "since a word": (record(since="yesterday"), "no ISO time"),
    "since without a zone": (record(since="2025-10-23T14:30:00.000"), "no ISO time"),
    "since a day alone": (record(since="2025-10-23"), "no ISO time"),
    "since with a newline": (record(since="2025-10-23T14:30:00Z\n"), "no ISO time"),
    "since in another script": (record(since="२०२५-10-23T14:30:00Z"), "no ISO time"),
    "since the 30th of February": (record(since="2025-02-30T14:30:00Z"), "no time"),
    "since a leap second": (record(since="2025-10-23T14:30:60Z"), "no time"),
    "since in seconds": (record(since=1761229800), "milliseconds"),
    "since zero": (record(since=0), "milliseconds"),
    "since negative": (record(since=-1761229800000), "milliseconds"),
    "since in nanoseconds": (record(since=1761229800000000000), "milliseconds"),
    "since beyond a double": (record(since=10**400), "neither"),
    "metadata a list": (record(metadata=[]), "metadata is an object"),
    "metadata a text": (record(metadata="x"), "metadata is an object"),
    "unknown field": (with_metadata(colour="red"), "unexpected metadata field: 'colour'"),
    "unknown environment": (with_metadata(environment="moon"), "environment is one of local, ci"),
    "unknown purpose": (with_metadata(purpose="fun"), "purpose is one of interactive"),
    "field of the wrong type": (with_metadata(hostname=7), "hostname is a text"),
    "field null": (with_metadata(user_identity=None), "user_identity is a text"),
    "pid a text": (with_metadata(process_id="7"), "process_id"),
    "pid zero": (with_metadata(process_id=0), "process_id"),
    "pid negative": (with_metadata(process_id=-1), "process_id"),
    "pid huge": (with_metadata(process_id=2**40), "process_id"),
    "pid true": (with_metadata(process_id=True), "process_id"),
    "pid a fraction": (with_metadata(process_id=1.5), "process_id"),
    "migrated a text": (with_metadata(migrated="yes"), "migrated is true or false"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_a_clear_error_and_counts_as_held(name, path):
    content, words = BAD[name]
    with pytest.raises(semlock.LockRecordError, match=words):
        decode(content)
    Path(path).write_bytes(content)
    assert task.status(path, clock=lambda: 1e11).state == "unreadable"
    lock = TaskLock(path, "pid-9@here", clock=lambda: 1e11)
    with pytest.raises(semlock.LockTimeoutError, match=words):
        lock.acquire(timeout=0)
    for allow in ((), ("SAME_USER", "HIGHER_PRIVILEGE", "EMERGENCY_OVERRIDE")):
        with pytest.raises(task.ReclaimDeniedError, match=words) as caught:
            TaskLock(path, "pid-9@here", purpose="emergency").reclaim(allow=allow)
        assert caught.value.decision.reason == "LOCK_HELD"
    assert Path(path).read_bytes() == content


def test_the_error_of_a_long_text_is_short():
    for content in (record(since="x" * 60000), with_metadata(environment="x" * 60000)):
        with pytest.raises(semlock.LockRecordError) as caught:
            decode(content)
        assert len(str(caught.value)) < 200


# ---------------------------------------------------------------- what is written


def test_the_record_is_whole_pretty_json_without_a_final_newline(path):
    with TaskLock(path, "user-ann@session-7", ttl=60, purpose="automated"):
        content = content_of(path)
    members = json.loads(content)
    assert list(members) == ["owner", "since", "ttl", "metadata", "semlock"]
    assert members["owner"] == "user-ann@session-7"
    assert members["ttl"] == 60
    assert members["metadata"] == {
        "user_identity": "ann", "session_id": "7", "environment": "local", "purpose": "automated",
    }  # fmt: skip
    assert content == json.dumps(members, indent=2, ensure_ascii=False).encode()


def test_a_whole_ttl_is_written_without_a_fraction(path):
    with TaskLock(path, "x", ttl=60.0):
        assert b'"ttl": 60,' in content_of(path)


def test_the_time_is_that_of_the_try_which_wins(path):
    now = [SINCE]
    lock = TaskLock(path, "x", clock=lambda: now[0])
    now[0] += 5.25
    with lock:
        assert lock.info.timestamp == SINCE + 5.25
        assert b'"since": "2025-10-23T14:30:05.250Z"' in content_of(path)
    now[0] += 100
    with lock:
        assert task.status(path).info.timestamp == SINCE + 105.25


@pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_the_file_is_private_unless_it_is_said_otherwise(path, mode):
    with TaskLock(path, "x", **({} if mode == 0o600 else {"mode": mode})):
        assert os.stat(path).st_mode & 0o777 == mode


IMPOSSIBLE = {
    "owner empty": {"owner": ""},
    "owner no text": {"owner": 7},
    "owner too long": {"owner": "x" * 257},
    "owner half a character": {"owner": "\ud800"},
    "ttl zero": {"ttl": 0},
    "ttl negative": {"ttl": -1.0},
    "ttl true": {"ttl": True},
    "ttl not a number": {"ttl": math.nan},
    "ttl infinite": {"ttl": math.inf},
    "ttl beyond a double": {"ttl": 10**400},
    "ttl a text": {"ttl": "60"},
    "environment": {"environment": "moon"},
    "purpose": {"purpose": "fun"},
    "metadata no object": {"metadata": 7},
    "metadata a list": {"metadata": ["hostname"]},
    "metadata unknown": {"metadata": {"colour": "red"}},
    "metadata that only semlock writes": {"metadata": {"reclaimed_from": "me"}},
    "metadata that only migrating writes": {"metadata": {"migrated": True}},
    "metadata of the wrong type": {"metadata": {"session_id": 7}},
    "metadata half a character": {"metadata": {"session_id": "\udfff"}},
    "metadata with no process": {"metadata": {"process_id": 0}},
    "metadata too long": {"metadata": {"session_id": "x" * 70000}},
    "a time that no calendar has": {"clock": lambda: 1e20},
    "a time before the calendar": {"clock": lambda: -1e14},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_represented_is_refused_before_there_is_a_file(name, path, names):
    options = dict(IMPOSSIBLE[name])
    owner, metadata = options.pop("owner", "x"), options.pop("metadata", None)
    with pytest.raises(semlock.LockRecordError):
        TaskLock(path, LockOwner(owner, metadata) if metadata else owner, **options)
    assert names() == []


# ---------------------------------------------------------------- secrets


def test_a_token_is_written_as_its_digest(path):
    token = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4ifQ.c2VjcmV0" * 8
    owner = f"token-{digest(token)}"
    assert len(owner) == len("token-") + 20
    for whose in (f"token-{token}", LockOwner(f"token-{token}"), task.owner_for(token=token)):
        with TaskLock(path, whose) as lock:
            assert lock.info.owner == owner
            assert b"eyJ" not in content_of(path)
    assert without_token(owner) == owner


def test_two_tokens_with_the_same_beginning_are_two_owners():
    head = "eyJhbGciOiJIUzI1NiIs"
    assert task.owner_for(token=head + "1") != task.owner_for(token=head + "2")


@pytest.mark.parametrize(
    ("owner", "shown"),
    [
        ("pid-1@box", "pid-1@box"), ("token-", "token-"), ("ci-github-7", "ci-github-7"),
        ("user-ann@session-s3cret", f"user-ann@session-{digest('s3cret')}"),
        ("token-eyJhbGci", f"token-{digest('eyJhbGci')}"), ("a\nb\x1b[2J\ud800", "a b [2J?"),
    ],
)  # fmt: skip
def test_an_owner_is_shown_in_a_log_without_its_secret(owner, shown):
    assert without_secrets(owner) == shown


# ---------------------------------------------------------------- JavaScript


NODE = """
const fs = require('fs');
const lines = fs.readFileSync(0, 'utf8').trim().split('\\n').map(file => {
  const text = fs.readFileSync(file, 'utf8');
  const lock = JSON.parse(text);
  return [JSON.stringify(lock, null, 2) === text, new Date(lock.since).getTime(), lock.owner,
          lock.ttl, lock.metadata];
});
console.log(JSON.stringify(lines));
"""


def node(script, text):
    """Run a script in Node; without Node there is nothing to compare with."""
    if shutil.which("node") is None:
        if os.environ.get("CI"):
            pytest.fail("Node is not installed")
        pytest.skip("needs Node, whose JSON is compared with ours")
    done = subprocess.run(
        ["node", "-e", script], input=text, stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout)


def test_our_record_is_what_javascript_would_have_written(tmp_path):
    owners = [
        LockOwner("pid-1@box"), LockOwner('q"uo\\te\x00\x1f\x7f\u2028\U0001f512ü\n'),
        LockOwner.from_string("user-a@b@session-c"), task.owner_for(token="t"),
    ]  # fmt: skip
    locks = [
        TaskLock(tmp_path / f"{number}.lock", owner, ttl=ttl, clock=lambda: SINCE + 0.007)
        for number, (owner, ttl) in enumerate(zip(owners, [3600, 0.1, 1e21, 1e-7], strict=True))
    ]
    with contextlib.ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        read = node(NODE, "\n".join(lock.path for lock in locks))
        for lock, found in zip(locks, read, strict=True):
            info = lock.info
            assert found == [True, SINCE * 1000 + 7, info.owner, info.ttl, info.metadata]
