"""Verdicts on holders: every branch, with real processes where there can be any."""

import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from semlock import LockInfo
from semlock._core import capi
from semlock._core.identity import judge, other_process, this_process
from semlock._core.records import decode_text


def view(*, witness=-1, local=1, ctime_ns=None, written_at=None, boot_mark=0):
    now = time.time_ns() if ctime_ns is None else ctime_ns
    return types.SimpleNamespace(
        witness=witness,
        witnessed=witness == 1,
        local=bool(local),
        ctime_ns=now,
        written_at=now / 1e9 if written_at is None else written_at,
        boot_mark=boot_mark,
    )


def me(**changes):
    process = this_process()
    fields = {
        "pid": process.pid, "timestamp": 1, "start": process.start, "boot": process.boot,
        "pidns": process.pidns, "witness": "none",
    }  # fmt: skip
    return LockInfo(**{**fields, **changes})


@pytest.fixture
def ended():
    """The number of a process that has ended and was reaped."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_taken_witness_is_life_whatever_the_record_says():
    for info in (None, me(pid=1, boot="other", token="0" * 32), LockInfo(pid=1, timestamp=1)):
        assert judge(info, view(witness=1))[0] == "alive"


def test_a_taken_witness_says_nothing_of_a_record_that_was_written_over_its_own():
    verdict, evidence = judge(decode_text(b"pid=1\ntimestamp=1\n"), view(witness=1))
    assert verdict == "unknown"
    assert "written over" in evidence


def test_a_free_witness_beside_a_living_process_is_life_until_that_ends():
    verdict, evidence = judge(me(witness="kept"), view(witness=0))
    assert verdict == "alive"
    assert "held until it ends" in evidence
    for claim in ("left", "none", None):
        assert judge(me(witness=claim), view(witness=0)) == judge(me(witness=claim), view())


def test_where_numbers_mean_nothing_a_free_witness_is_death_if_the_record_claims_one():
    assert judge(me(witness="kept", pidns=12345), view(witness=0))[0] == "dead"
    for claim in ("left", "none", None):
        assert judge(me(witness=claim, pidns=12345), view(witness=0))[0] == "unknown"


def test_both_proofs_are_told(ended):
    verdict, evidence = judge(me(pid=ended, witness="kept"), view(witness=0))
    assert verdict == "dead"
    assert "no longer exists" in evidence
    assert "dropped" in evidence


def test_a_copy_of_what_its_holder_has_let_go_of_is_dead():
    for there in (view(), view(witness=0), view(local=0)):
        assert judge(me(witness="over"), there)[0] == "dead"
    assert judge(me(witness="over"), view(witness=1))[0] == "alive"


def test_a_free_witness_proves_nothing_where_the_reader_is_far_away():
    foreign = me(witness="kept", boot="other")
    assert judge(foreign, view(witness=0, local=0))[0] == "unknown"
    assert judge(foreign, view(witness=-1, local=0))[0] == "unknown"


def test_no_record_is_unknown():
    assert judge(None, view(witness=0)) == ("unknown", "no readable record names a process")


def test_a_foreign_record_is_unknown_though_its_process_is_gone(ended):
    verdict, evidence = judge(LockInfo(pid=ended, timestamp=1), view(witness=0))
    assert verdict == "unknown"
    assert str(ended) in evidence


def test_this_process_lives():
    verdict, evidence = judge(me(), view())
    assert (verdict, evidence) == ("alive", f"process {os.getpid()} runs")


def test_a_process_that_is_gone_is_dead(ended):
    verdict, evidence = judge(me(pid=ended), view())
    assert verdict == "dead"
    assert "no longer exists" in evidence


def test_another_start_is_another_process():
    verdict, evidence = judge(me(start=this_process().start + 3), view())
    assert verdict == "dead"
    assert "another process has its number" in evidence


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts in ticks")
def test_a_tick_apart_is_another_process():
    for tick in (-1, 1):
        assert judge(me(start=this_process().start + tick), view())[0] == "dead"


def test_a_record_without_a_start_gives_the_benefit_of_the_doubt():
    assert judge(me(start=None), view())[0] == "alive"


def test_starts_of_another_time_namespace_are_not_compared():
    info = me(start=this_process().start + 3, timens=12345)
    assert judge(info, view())[0] == "alive"


def test_a_zombie_is_dead():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    child.stdout.read()  # its end of the pipe closes when it has ended, or is about to
    if sys.platform == "win32":
        child.wait()  # it is there for as long as any process has a handle of it, as we have
    while (
        sys.platform != "win32"
        and Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    ):
        pass
    process = other_process(child.pid)
    verdict, evidence = judge(me(pid=child.pid, start=process.start), view())
    child.stdout.close()
    child.wait()
    assert verdict == "dead"
    assert "reaped" in evidence


@pytest.mark.parametrize("claim", ["kept", "left"])
def test_an_earlier_boot_is_over_if_the_filesystem_was_local_to_both(claim):
    old = capi.boot_time() - 2 * 10**9
    assert judge(me(boot="other", witness=claim), view(ctime_ns=old))[0] == "dead"
    assert judge(me(boot="other", witness=claim), view(local=0, ctime_ns=old))[0] == "unknown"
    assert judge(me(boot="other", witness="none"), view(ctime_ns=old))[0] == "unknown"


@pytest.mark.parametrize("claim", ["kept", "left"])
def test_another_boot_is_unknown_if_the_file_was_made_since_this_one(claim):
    new = capi.boot_time() + 10**9
    for witness in (0, -1):
        info = me(boot="other", witness=claim)
        assert judge(info, view(witness=witness, ctime_ns=new))[0] == "unknown"


def test_a_ctime_of_this_boot_says_nothing_if_content_and_record_are_older():
    """btrfs sets it when it repairs itself after a power cut."""
    now, old = capi.boot_time() + 10**9, capi.boot_time() / 1e9 - 2
    earlier = me(boot="other", witness="kept", timestamp=old)
    assert judge(earlier, view(witness=0, ctime_ns=now, written_at=old))[0] == "dead"
    assert judge(earlier, view(witness=0, ctime_ns=now))[0] == "unknown"
    since = me(boot="other", witness="kept", timestamp=old + 3)
    assert judge(since, view(witness=0, ctime_ns=now, written_at=old))[0] == "unknown"


def test_a_boot_mark_proves_death_only_of_a_boot_before_this_one():
    this_process()
    other, old = capi.POOL.boot + 2, capi.boot_time() - 2 * 10**9
    before = view(witness=0, boot_mark=other, ctime_ns=old)
    assert judge(None, before)[0] == "dead"
    assert judge(None, view(witness=0, boot_mark=capi.POOL.boot, ctime_ns=old))[0] == "unknown"
    assert judge(None, view(witness=0, boot_mark=0, ctime_ns=old))[0] == "unknown"
    assert judge(None, view(witness=0, boot_mark=other))[0] == "unknown"
    assert judge(None, view(witness=-1, boot_mark=other, ctime_ns=old))[0] == "unknown"
    assert judge(None, view(witness=1, boot_mark=other, ctime_ns=old))[0] == "alive"


def test_a_boot_mark_proves_nothing_where_this_boot_has_no_name():
    boot, capi.POOL.boot = capi.POOL.boot, 0
    try:
        old = capi.boot_time() - 2 * 10**9
        assert judge(None, view(witness=0, boot_mark=7, ctime_ns=old))[0] == "unknown"
    finally:
        capi.POOL.boot = boot


def test_another_pid_namespace_is_unknown():
    verdict, evidence = judge(me(pidns=12345), view())
    assert verdict == "unknown"
    assert "container" in evidence


def test_a_number_that_no_process_can_have_is_unknown_and_never_signalled():
    first = 2**32 if sys.platform == "win32" else 2**31
    assert judge(me(pid=first), view())[0] == "unknown"
    assert judge(me(pid=2 * first - 1), view())[0] == "unknown"


def test_what_is_known_of_another_process_is_comparable():
    parent = other_process(os.getppid())
    info = me(pid=parent.pid, start=parent.start)
    assert parent.start > 0
    assert judge(info, view())[0] == "alive"
