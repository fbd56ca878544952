"""``semlock run``: the command inherits the kernel's lock, so all containers know when it ends.

A contender in another PID namespace can't see the holder's process.  All that it knows is
whether the kernel's lock is taken, which is so until semlock and the command have ended.
"""

import itertools
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

import semlock
from clilib import HOLDING, PATIENCE, checked, checked_lines, command, program, start, words
from runlib import IN_CONTAINER, WORKING, child_of, comes_free, free, needs, proc, ready, root
from semlock._cli import systems
from semlock._core.identity import other_process
from support import state_of, wait_until

# Wine shows the /proc of the system below it.
if sys.platform == "win32" or not os.path.exists("/proc/self/fd"):
    pytest.skip("the descriptors of a process are seen in /proc", allow_module_level=True)

import resource

# For each kind of lock: the options of its holder, and those of a rival.
KINDS = {
    "plain": ((), ()),
    "fair": (("--fair",), ()),
    "shared": (("--shared",), ()),
    "slots": (("--slots", "1"), ("--slots", "1")),
}


def in_containers(test):
    """Skip a test where it can't make PID namespaces, or not see what is in them."""
    return root(needs("unshare")(proc(test)))


def elsewhere(*line, **options):
    """Call semlock in a PID namespace of its own."""
    settings = {"capture_output": True, "text": True, "check": False, "timeout": PATIENCE}
    return subprocess.run([*IN_CONTAINER, *words(*line)], **(settings | options))


def verdict(path):
    """Say what is known about the holder from another PID namespace."""
    return checked(elsewhere("status", "-j", path).stdout, "held")["verdict"]


def refused(path, *rival):
    """Tell whether a contender from another PID namespace is refused."""
    done = elsewhere("run", "-q", "-n", *rival, path, "--", "true")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 1


def started_elsewhere(*line):
    """Start a program as the first process of a PID namespace."""
    return subprocess.Popen(
        [*IN_CONTAINER, *line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def descriptors(pid):
    """Give the numbers under which a process has something open."""
    return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}


@pytest.fixture
def pipe(tmp_path_factory):
    """What holds up a process in the background until it is written to."""
    path = str(tmp_path_factory.mktemp("pipe") / "pipe")
    os.mkfifo(path)
    return path


def end(pipe):
    with open(pipe, "w", encoding="ascii") as file:
        file.write("\n")


# ---------------------------------------------------------------------- the container is killed


@in_containers
@pytest.mark.parametrize("kind", KINDS)
def test_when_a_whole_container_is_killed_the_next_has_its_lock_at_once(kind, path):
    options, rival = KINDS[kind]
    with started_elsewhere(*words("run", *options, path, "--", *WORKING)) as outer:
        ready(outer)
        assert refused(path, *rival)
        os.kill(child_of(outer.pid), signal.SIGKILL)
        outer.wait()
        assert not refused(path, *rival)


@in_containers
def test_several_locks_of_a_killed_container_are_free_at_once(path, tmp_path):
    other = str(tmp_path / "other.lock")
    with started_elsewhere(*words("run", path, other, "--", *WORKING)) as outer:
        ready(outer)
        assert (free(path), free(other)) == (False, False)
        os.kill(child_of(outer.pid), signal.SIGKILL)
        outer.wait()
        assert (free(path), free(other)) == (True, True)


@in_containers
def test_a_waiter_hears_that_a_container_was_killed(path):
    with started_elsewhere(*words("run", path, "--", *WORKING)) as outer:
        ready(outer)
        with start("run", "-j", path, "--", "echo", "in", stderr=subprocess.PIPE) as waiter:
            assert '"waited"' in waiter.stderr.readline()
            os.kill(child_of(outer.pid), signal.SIGKILL)
            assert waiter.stdout.readline() == "in\n"


@in_containers
def test_a_killed_container_is_seen_where_semlock_was_not_its_first_process(path):
    script = f"{shlex.join(words('run', path, '--', *WORKING))}; :"
    with started_elsewhere("sh", "-c", script) as outer:
        ready(outer)
        assert not free(path)
        os.kill(child_of(outer.pid), signal.SIGKILL)
        outer.wait()
        assert free(path)


# ---------------------------------------------------------------------- semlock is killed


@in_containers
@pytest.mark.parametrize("kind", KINDS)
def test_another_container_waits_for_a_command_whose_semlock_was_killed(kind, path):
    options, rival = KINDS[kind]
    with start("run", *options, path, "--", *WORKING) as process:
        ready(process)
        process.kill()
        process.wait()
        assert refused(path, *rival)
        line = [*IN_CONTAINER, *words("run", "-j", *rival, path, "--", "echo", "in")]
        with subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as waiter:
            assert '"waited"' in waiter.stderr.readline()
            process.stdin.close()
            assert waiter.stdout.readline() == "in\n"


@in_containers
def test_a_command_in_a_container_whose_semlock_was_killed_keeps_the_lock(path, pipe):
    script = f"{shlex.join(words('run', path, '--', *WORKING))}; read y <{pipe}"
    with started_elsewhere("sh", "-c", script) as outer:
        ready(outer)
        killed = child_of(child_of(outer.pid))
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: state_of(killed) in ("", "Z"), "semlock is dead")
        assert not free(path)
        outer.stdin.close()
        comes_free(path)
        end(pipe)


@in_containers
def test_as_long_as_one_of_both_lives_all_containers_see_the_holder_alive(path):
    with start("run", path, "--", *WORKING) as process:
        ready(process)
        assert verdict(path) == "alive"
        process.kill()
        process.wait()
        assert verdict(path) == "alive"
        holder = semlock.status(path).info.pid
        process.stdin.close()
        wait_until(lambda: state_of(holder) in ("", "Z"), "the command has ended")
        assert verdict(path) == "dead"
        assert free(path)


@in_containers
def test_the_keeper_of_many_locks_keeps_all_when_semlock_is_killed(tmp_path):
    paths = [str(tmp_path / f"{number}.lock") for number in range(600)]
    with start("run", "--durability", "none", *paths, "--", *WORKING) as process:
        ready(process)
        process.kill()
        process.wait()
        shown = elsewhere("list", "-j", str(tmp_path)).stdout
        found = [fields["verdict"] for fields in checked_lines(shown, "held")]
        assert found == ["alive"] * len(paths)
        process.stdin.close()
        comes_free(paths[0])
        wait_until(lambda: free(paths[-1]), "the last one is free too")


@in_containers
@pytest.mark.parametrize(
    "shell", [pytest.param(name, marks=needs(name)) for name in ("bash", "dash", "zsh")]
)
def test_a_script_that_opens_files_under_numbers_of_its_own_keeps_the_lock(shell, path):
    numbers = " ".join(f"{number}>/dev/null" for number in (3, 4, 5, 6, 7, 8, 9))
    script = f"exec {numbers}; echo ready; read x; exit 7"
    with start("run", path, "--", shell, "-c", script) as process:
        ready(process)
        process.kill()
        process.wait()
        assert verdict(path) == "alive"
        process.stdin.close()
        comes_free(path)


CLOSING = "import os; os.closerange(3, 1024); print('ready', flush=True); input()"


@in_containers
def test_a_command_that_closes_its_descriptors_is_held_by_semlock_and_then_by_its_process(path):
    with start("run", path, "--", *program(CLOSING)) as process:
        ready(process)
        assert verdict(path) == "alive"
        process.kill()
        process.wait()
        assert not free(path)
        # Where its process can't be seen, nothing is left that speaks for it.
        assert verdict(path) == "dead"
        process.stdin.close()
        comes_free(path)


# ---------------------------------------------------------------------- background processes


def leaving(pipe, close=""):
    """Give a command that leaves a process in the background, and goes on until told to end."""
    script = f"sh -c 'read x <{pipe}' {close} >/dev/null & echo ready; read x; exit 7"
    return ("bash", "-c", script)


@in_containers
def test_what_a_command_leaves_in_the_background_keeps_nothing_while_semlock_lives(path, pipe):
    with start("run", path, "--", *leaving(pipe)) as process:
        ready(process)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(PATIENCE) == 7
        assert not refused(path)
        assert free(path)
        end(pipe)


@in_containers
@needs("bash")
def test_what_it_leaves_in_the_background_keeps_the_lock_when_semlock_was_killed(path, pipe):
    with start("run", path, "--", *leaving(pipe)) as process:
        ready(process)
        process.kill()
        process.wait()
        holder = semlock.status(path).info.pid
        process.stdin.close()
        wait_until(lambda: state_of(holder) in ("", "Z"), "the command has ended")
        assert refused(path)
        assert not free(path)
        end(pipe)
        comes_free(path)


@in_containers
@needs("bash")
def test_a_background_process_that_closed_the_descriptor_keeps_nothing(path, pipe):
    with start("run", path, "--", *leaving(pipe, "213>&-")) as process:
        ready(process)
        process.kill()
        process.wait()
        process.stdin.close()
        comes_free(path)
        assert not refused(path)
        end(pipe)


# ---------------------------------------------------------------------- what is inherited


def test_the_command_gets_one_high_number_for_each_lock_and_nothing_else(path, tmp_path):
    other = str(tmp_path / "other.lock")
    show = program("import os; print(*sorted(map(int, os.listdir('/proc/self/fd'))))")
    before = subprocess.run(show, capture_output=True, text=True, check=True).stdout.split()
    after = command("run", path, other, "--", *show).stdout.split()
    assert [number for number in after if number not in before] == ["213", "214"]
    alone = command("run", "--follow", "self", path, other, "--", *show).stdout.split()
    assert alone == before


def test_where_no_number_is_as_high_a_lower_one_serves(path):
    show = shlex.join(
        program("import os; print(*sorted(map(int, os.listdir('/proc/self/fd'))))")
    )
    line = f"ulimit -n 60; {shlex.join(words('run', path, '--'))} {show}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any(10 <= int(number) < 60 for number in done.stdout.split())


def test_the_lock_is_a_dead_ones_if_semlock_is_killed_before_the_command_has_it(path, tmp_path):
    ran = tmp_path / "ran"
    code = (
        "import os, signal, sys\n"
        "from semlock._cli import child, systems\n"
        "from semlock._core.identity import other_process\n"
        "command = child.Child(('touch', sys.argv[2]))\n"
        "lock = systems.make(sys.argv[1], systems.chosen('', None), tag=None,\n"
        "                    durability='none', owner=other_process(command.pid), guarded=True)\n"
        "lock.acquire()\n"
        "print(command.pid, flush=True)\n"
        "input()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen(
        program(code, path, str(ran)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        suspended = int(process.stdout.readline())
        found = semlock.status(path)
        assert (found.info.pid, found.verdict) == (suspended, "alive")
        process.stdin.close()
        process.wait()
        comes_free(path)
    wait_until(lambda: state_of(suspended) in ("", "Z"), "it has ended")
    assert not ran.exists()


@proc
def test_a_command_that_can_have_no_descriptor_more_is_not_run(path, tmp_path):
    """The record says that the kernel's lock is kept for it, so without that it must not run."""
    ran = tmp_path / "ran"
    with semlock.Lock(path) as lock:
        process = start("run", "-j", path, "--", "touch", str(ran), stderr=subprocess.PIPE)
        assert '"waited"' in process.stderr.readline()
        suspended = child_of(process.pid)
        # It may sleep for a moment before.
        wait_until(
            lambda: all(state_of(suspended) == "S" and not time.sleep(0.005) for _ in range(9)),
            "it waits",
        )
        free_number = next(n for n in itertools.count() if n not in descriptors(suspended))
        _, hard = resource.prlimit(suspended, resource.RLIMIT_NOFILE)
        resource.prlimit(suspended, resource.RLIMIT_NOFILE, (free_number, hard))
        lock.release()
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 126, said
        assert "can't be run: Too many open files" in said
        assert not ran.exists()
        lock.acquire()


def test_the_process_of_a_command_loads_no_module(path):
    """Without a descriptor or a root of its own it could not."""
    code = """if True:
        import os, sys
        from semlock.cli import main
        suspended = []
        os.register_at_fork(after_in_child=lambda: suspended.append("yes"))
        sys.addaudithook(lambda event, args: suspended and event == "import" and os._exit(99))
        sys.exit(main(sys.argv[1:]))"""
    line = program(code, "run", str(path), "--", "true")
    subprocess.run(line, check=True, timeout=PATIENCE)
    assert free(path)


def test_a_refresh_claims_what_the_win_did(path):
    with subprocess.Popen(["sleep", "60"]) as other:
        lock = systems.make(
            path, systems.chosen(path, None), tag=None, durability="none",
            owner=other_process(other.pid), guarded=True,
        )  # fmt: skip
        with lock:
            lock.refresh()
            assert lock.info == semlock.status(path).info
            assert (lock.info.pid, lock.info.witness) == (other.pid, "kept")
        other.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_ends_when_the_process_of_its_command_is_killed(path, kind):
    """The command can't run any more, and the lock shall not go to it or be kept from others."""
    options, rival = KINDS[kind]
    with start("run", *options, path, "--", *HOLDING) as holder:
        assert holder.stdout.readline() == "ready\n"
        waiting = start("run", "-j", *rival, path, "--", "true", stderr=subprocess.PIPE)
        assert '"waited"' in waiting.stderr.readline()
        os.kill(child_of(waiting.pid), signal.SIGKILL)
        _, said = waiting.communicate(timeout=PATIENCE)
        assert waiting.returncode == 128 + signal.SIGKILL
        assert "was killed before the command ran" in said
        if kind == "shared":  # a writer that waits keeps readers out
            assert command("run", "-n", "--shared", path, "--", "true").returncode == 0
        assert holder.poll() is None
        holder.communicate("\n", timeout=PATIENCE)
    assert free(path)
