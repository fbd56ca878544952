"""Bytes of other programs are read as they meant them, and ours as everybody reads theirs."""

import os
import re
from pathlib import Path

import pytest

import semlock
from semlock import feature, sema, semats
from semlock._core.identity import Process
from semlock._core.records import encode_text
from support import content_of, set_time

RECORDS = Path(__file__).resolve().parent / "records"

READ = {
    "sema/with-tag.lock": (sema.decode, 7570, 1794992549, "deploy"),
    "sema/without-tag.lock": (sema.decode, 7570, 1794992549, None),
    "sema/crlf.lock": (sema.decode, 12345, 1703520000, "deploy-v1.2.3"),
    "sema/shell.lock": (sema.decode, 4242, 1794992549, "shell-script"),
    "sema/windows.lock": (sema.decode, 12345, 1703520000, "deploy"),
    "sema/pid-only.lock": (sema.decode, 4242, None, None),
    "sema/unknown-keys.lock": (sema.decode, 7570, 1794992549, "x=y"),
    "semats/with-tag.lock": (semats.decode, 12345, 1735420800, "npm build"),
    "semats/spaced.lock": (semats.decode, 12345, 1735420800, None),
    "feature/python.lock": (feature.decode, 25712, 1794992778.5307965, None),
    "semlock/default.lock": (sema.decode, 7570, 1794992549, "deploy"),
}


@pytest.mark.parametrize("name", READ)
def test_a_record_of_another_program_is_read(name, monkeypatch):
    decode, pid, timestamp, tag = READ[name]
    set_time(monkeypatch, lambda: 1794992779.0)
    info = decode((RECORDS / name).read_bytes())
    assert (info.pid, info.timestamp, info.tag) == (pid, timestamp, tag)


def test_every_golden_file_of_these_systems_is_read():
    found = {
        file.relative_to(RECORDS).as_posix()
        for system in ("sema", "semats", "feature", "semlock")
        for file in (RECORDS / system).iterdir()
    }
    assert found == set(READ)


def parse_as_the_specification_shows(text):
    """Sema's own example of a parser: any line with an equals sign, the last one counts."""
    info = {}
    for line in text.split("\n"):
        if "=" in line:
            key, value = line.strip().split("=", 1)
            info[key] = value
    return info


@pytest.mark.parametrize("kind", [semlock.Lock, sema.Semaphore, semats.Semaphore])
def test_our_text_record_is_read_by_the_parser_of_the_specification(kind, path):
    with kind(path, tag="a = tag") as lock:
        info = parse_as_the_specification_shows(content_of(path).decode())
        assert info["pid"] == str(os.getpid())
        assert info["timestamp"] == str(lock.info.timestamp)
        assert info["tag"] == "a = tag"
        assert content_of(path).startswith(f"pid={os.getpid()}\n".encode())


def test_our_feature_record_is_read_by_its_own_rule(tmp_path):
    with feature.FeatureLock("f", tmp_path) as lock:
        pid, stamp = content_of(lock.path).decode().split(":", 1)
        assert int(pid) == os.getpid()
        assert float(stamp) > 1e9


def test_the_bytes_of_the_default_lock_do_not_change_unseen():
    golden = (RECORDS / "semlock" / "default.lock").read_bytes()
    process = Process(
        7570, 213647, 4026531836, 0, "eef49521-1b8f-4bfc-90ce-db06bce7bf77", "builder"
    )
    text = encode_text(process, "deploy", mode=0o644, durability=0).text
    assert re.sub(rb"(timestamp=|token=|witness=).*", rb"\1", text) == re.sub(
        rb"(timestamp=|token=|witness=).*", rb"\1", golden
    )
    assert len(text) == len(golden)
