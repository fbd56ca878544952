"""``exact_mode``: the permissions of a lock file, whatever the umask is."""

import os
import stat
import sys

import pytest

import semlock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no umask")


@pytest.fixture(params=[0o077, 0o022, 0o777, 0])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def reader(path, **options):
    return semlock.SharedLock(path, **options).shared()


FORMS = {
    "Lock": (semlock.Lock, ""),
    "KernelLock": (semlock.KernelLock, ""),
    "SlotLock": (lambda path, **options: semlock.SlotLock(path, 1, **options), ".1"),
    "SharedLock": (semlock.SharedLock, ""),
    "a reader": (reader, ".readers"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", [0o664, 0o666, 0o600, 0o644])
def test_the_file_has_exactly_these_permissions(path, umask, form, mode):
    make, end = FORMS[form]
    for _ in range(3):  # also by the file of a released lock, which is kept
        with make(path, mode=mode, exact_mode=True):
            file = path + end
            if form == "a reader":
                (name,) = os.listdir(file)
                file = os.path.join(file, name)
            assert mode_of(file) == mode


@pytest.mark.parametrize("first", [True, False])
def test_a_kept_file_serves_only_those_who_ask_for_its_permissions(path, first):
    before = os.umask(0o077)
    try:
        for exact in (first, first, not first, not first, first):
            with semlock.Lock(path, mode=0o664, exact_mode=exact):
                assert mode_of(path) == (0o664 if exact else 0o600)
    finally:
        os.umask(before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells the umask")
def test_a_kept_file_of_another_umask_is_not_used(path):
    from semlock._core import capi

    lock = semlock.Lock(path, mode=0o666)
    before = os.umask(0o022)
    try:
        for _ in range(3):
            with lock:
                assert mode_of(path) == 0o644
        for mask in (0o077, 0o002):
            os.umask(mask)
            for slot in capi.POOL.slots:
                slot.file.asked = 0  # a second ago
            for _ in range(2):
                with lock:
                    assert mode_of(path) == 0o666 & ~mask
    finally:
        os.umask(before)


def test_the_user_who_made_it_can_always_use_it(path):
    with semlock.Lock(path, mode=0o044, exact_mode=True):
        assert mode_of(path) == 0o644


def test_a_kernel_lock_leaves_the_permissions_of_a_file_that_is_there(path):
    open(path, "x").close()
    os.chmod(path, 0o640)
    with semlock.KernelLock(path, mode=0o666, exact_mode=True):
        assert mode_of(path) == 0o640


def test_a_lock_file_made_in_place_is_exact_too(path, monkeypatch):
    """On a filesystem without hard links, which a lock with a foreign record is like."""
    from semlock._core import capi

    before = os.umask(0o077)
    try:
        lock = semlock.Lock(path, mode=0o664, exact_mode=True)
        compose = lock._compose

        def in_place(owner):
            record = compose(owner)
            record.cdata.in_place = 1
            return record

        monkeypatch.setattr(type(lock), "_compose", lambda self, owner: in_place(owner))
        with lock:
            assert mode_of(path) == 0o664
            assert not capi.look(os.fsencode(path)).unfinished
    finally:
        os.umask(before)
