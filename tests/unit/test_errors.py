"""The errors: what they are, what they carry, and that they cross process borders."""

import pickle

import pytest

import semlock

KINDS = [
    semlock.SemlockError,
    semlock.LockHeldError,
    semlock.LockTimeoutError,
    semlock.LockLostError,
    semlock.NotHeldError,
    semlock.LockRecordError,
    semlock.LockDeadlockError,
    semlock.LockPathError,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_survives_pickling_with_all_that_it_carries(kind, path):
    with semlock.Lock(path, tag="why"):
        error = kind("what happened", path=path, status=semlock.status(path))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == "what happened"
    assert again.path == path
    assert again.status.info == error.status.info
    assert again.args == error.args


def test_a_path_error_keeps_errno_and_filename(tmp_path):
    with pytest.raises(semlock.LockPathError) as caught:
        semlock.status(tmp_path)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.errno, again.filename) == (caught.value.errno, str(tmp_path))
    assert again.errno == 21


def test_each_is_what_a_caller_would_catch():
    assert all(issubclass(kind, semlock.SemlockError) for kind in KINDS)
    assert issubclass(semlock.LockTimeoutError, TimeoutError)
    assert issubclass(semlock.LockTimeoutError, semlock.LockHeldError)
    assert issubclass(semlock.LockRecordError, ValueError)
    assert issubclass(semlock.LockPathError, OSError)
    assert issubclass(semlock.NotHeldError, RuntimeError)
    assert issubclass(semlock.LockDeadlockError, RuntimeError)


def test_names_are_those_that_users_import():
    for name in semlock.__all__:
        assert getattr(semlock, name).__module__ == "semlock"
