"""A Python that has no global interpreter lock keeps going without one when semlock is there."""

import subprocess
import sys
import sysconfig

import pytest

pytestmark = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="there is a global interpreter lock"
)


def test_the_core_does_not_bring_the_lock_back(path):
    # In a process of its own, for what else is imported here may do so.
    script = "import sys, semlock\nwith semlock.Lock(sys.argv[1]): print(sys._is_gil_enabled())"
    command = [sys.executable, "-W", "error", "-c", script, path]
    assert (
        subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.strip() == b"False"
    )


def test_nothing_is_said_at_the_end_of_a_process_whose_threads_used_a_lock(path):
    # What threads share goes late there, when the modules have been taken apart.
    script = """
import semlock, sys, threading

lock = semlock.Lock(sys.argv[1])

def once():
    with lock:
        pass

threads = [threading.Thread(target=once) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, path], stderr=subprocess.PIPE, check=True
    )
    assert done.stderr == b""
