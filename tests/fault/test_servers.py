"""What the clients of file servers answer, and kernels of their own files never do.

``.ci/network-guest`` meets the servers themselves; this is each of their answers by itself.
"""

import errno
import os

import pytest

from actors import ActorError
from faultlib import fail

# Of a file that is open here, and that another machine has removed.
GONE = [errno.ENOENT, errno.ESTALE]


@pytest.mark.parametrize("error", GONE, ids=errno.errorcode.get)
def test_a_dead_lock_that_is_gone_by_any_call_is_looked_at_again(actor, path, error):
    one = actor()
    one.do("leave_dead_lock(path)")
    one.do("semlock.remove(path)")
    calls = one.calls
    tried = [number for number, name in enumerate(calls, 1) if name in ("fstat", "pread")]
    assert len(tried) >= 4
    for number in tried:
        one.do("leave_dead_lock(path)")
        one.do("semlock.remove(path)", fail(error, nth=number))
        assert not os.path.lexists(path), calls[number - 1]


def test_a_server_that_opens_no_file_there_is_believed(actor, path):
    """The client answers lstat() out of its memory, and the file that it tells of is gone."""
    holder = actor()
    # A filesystem of an unknown kind counts as a server's.
    for call in ("fstatfs", "statfs"):
        holder.do(f"refuse({call!r}, {errno.EIO})")
    holder.do("lock.acquire(timeout=0)")
    holder.do("lock.check()")
    # First the directory is opened, and then the file.
    assert holder.calls.count("open") == 2
    with pytest.raises(ActorError, match="removed") as caught:
        holder.do("lock.check()", fail(errno.ENOENT, "open", 2))
    assert caught.value.kind == "LockLostError"
    holder.do("lock.release()")
