"""The command on addresses of engines."""

from __future__ import annotations

import json
import os
import pathlib
import select
import subprocess
import sys
import time
import uuid

import pytest

import semlock
import servers
from engine_urls import url_of
from semlock._cli import engine_seen, hiding, watching
from semlock._engines.facts import timing
from semlock._events import stats
from support import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its servers run on Linux")


on_each = pytest.mark.parametrize(
    "engine", ["redis", "postgresql", "etcd", "directory"], indirect=True
)


@pytest.fixture
def engine(request):
    """An address, to which a name is added, and what stands behind it."""
    name = getattr(request, "param", "redis")
    if name == "directory":
        url = request.getfixturevalue("tmp_path").as_uri()
    else:
        url = url_of(request.getfixturevalue(f"{name}_server"))
    return url, f"prefix={uuid.uuid4().hex}"


@pytest.fixture
def address(engine):
    """Give the address of a lock."""
    return lambda name="deploy": f"{engine[0]}/{name}?{engine[1]}"


@pytest.fixture
def space(engine):
    with semlock.connect(f"{engine[0]}?{engine[1]}", ttl=2) as space:
        yield space


def call(*words, timeout=60, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "semlock", *words], capture_output=True, text=True,
        timeout=timeout, check=False, stdin=subprocess.DEVNULL, cwd=cwd,
        env={**os.environ, **environment},
    )  # fmt: skip


@on_each
def test_run_holds_the_lock_while_the_command_runs(address, space):
    word = address()
    inside = f"{sys.executable} -m semlock status --json '{word}'; exit 7"
    done = call("run", "-m", "v1", word, "--", "sh", "-c", inside)
    assert done.returncode == 7, done.stderr
    found = json.loads(done.stdout)
    assert (found["locked"], found["tag"], found["alive"]) == (True, "v1", True)
    assert space.list() == []
    assert servers.PASSWORD not in done.stdout + done.stderr


def test_a_password_is_shown_neither_by_status_nor_by_ps(postgresql_server):
    url = url_of(postgresql_server)
    written = login(url).partition(":")[2].rstrip("@")
    assert written != servers.PASSWORD  # it is quoted there
    word = f"{url}/deploy?prefix={uuid.uuid4().hex}"
    # A command whose own words don't have the address looks at the one that holds.
    look = "tr '\\0' ' ' < /proc/$PPID/cmdline; $0 -m semlock status -j; $0 -m semlock list -j"
    look = look.replace("-j", "-j $WORD", 1).replace("list -j", "list -j $SPACE")
    done = call(
        "run", word, "--", "sh", "-c", look, sys.executable,
        WORD=word, SPACE=word.replace("/deploy", ""),
    )  # fmt: skip
    assert done.stdout.count("/postgres/deploy?prefix=") == 3, done.stdout + done.stderr
    assert "xxxx@127.0.0.1" in done.stdout
    holder = (
        "import semlock, subprocess, sys; command = sys.argv[2:]\n"
        "with semlock.connect(sys.argv[1]).Lock('deploy'): subprocess.run(command, check=False)"
    )
    look = [sys.executable, "-m", "semlock", "status", "-j"]
    program = [sys.executable, "-c", holder, word.replace("/deploy", ""), *look, word]
    held = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert "xxxx@127.0.0.1" in json.loads(held.stdout)["command"]
    for secret in (written, servers.PASSWORD):
        assert secret not in done.stdout + done.stderr + held.stdout + held.stderr


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"run\0redis://:pw@h/a@b\0--", b"run\0redis://:xx@h/a@b\0--"),
        (b"etcd://u:p@w@h:1,i:2/a", b"etcd://u:xxx@h:1,i:2/a"),
        (b"redis://h:6379/mail@x", b"redis://h:6379/mail@x"),
        (b"sh -c a://u:1@h b://:22@h", b"sh -c a://u:x@h b://:xx@h"),
        (b"postgresql://h/d?user=u&password=pw&sslmode=x", b"postgresql://h/d?user=u&password=xx&sslmode=x"),
    ],
)  # fmt: skip
def test_a_command_line_is_shown_without_passwords(line, shown):
    assert hiding.masked(line) == shown


@pytest.mark.parametrize(
    "words",
    [
        ("redis://:SECRET@h/x",),
        ("help", "redis://:SECRET@h"),
        ("completion", "redis://u:SECRET@h"),
        ("run", "-t", "redis://:SECRET@h/x", "a", "--", "true"),
        ("run", "--dialect", "redis://:SECRET@h/x", "a", "--", "true"),
        ("flock", "redis://:SECRET@h/x", "true"),
        ("status", "postgresql://h/d/x?password=SECRET&password=SECRET"),
    ],
)
def test_a_call_with_an_address_in_a_wrong_place_shows_no_password(words, tmp_path):
    done = call(*words, cwd=tmp_path)
    assert done.returncode
    assert "SECRET" not in done.stdout + done.stderr


def test_an_address_with_a_wrong_scheme_is_no_file(tmp_path):
    for verb in ("run", "try", "status", "wait", "list", "doctor", "watch", "break", "release"):
        done = call(
            verb, "etcd3://u:SECRET@h/deploy", *["--", "true"] * (verb == "run"), cwd=tmp_path
        )
        assert (done.returncode, done.stdout) == (2, ""), verb
        assert "begins with one of" in done.stderr
        assert "SECRET" not in done.stderr
    assert os.listdir(tmp_path) == []
    (tmp_path / "etcd3:").mkdir()
    assert call("run", "etcd3://deploy", "--", "true", cwd=tmp_path).returncode == 0
    assert os.listdir(tmp_path / "etcd3:") == []


MISTYPED = (
    "redis:/:SECRET@h/deploy", "REDIS:/:SECRET@h", "redis:SECRET@h", "redis;//:SECRET@h/deploy",
    "redis//u:SECRET@h/deploy", r"redis:\\u:SECRET@h", "reddis:/u:SECRET@h/deploy",
    "file:/deploy", "etcd:/h/deploy",
)  # fmt: skip


def test_a_mistyped_address_is_no_file(tmp_path):
    for word in MISTYPED:
        done = call("try", "--make-dirs", word, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), word
        assert "begins with one of" in done.stderr
        assert "SECRET" not in done.stderr
    assert os.listdir(tmp_path) == []
    for name in ("redis:x.lock", "jobs/a@b.lock", "./redis:a@b.lock"):
        assert call("run", "--make-dirs", name, "--", "true", cwd=tmp_path).returncode == 0, (
            name
        )
    assert call("status", "redis:a@b.lock", cwd=tmp_path).returncode == 2
    (tmp_path / "redis:a@b.lock").touch()
    assert "is empty" in call("status", "redis:a@b.lock", cwd=tmp_path).stdout


def test_an_address_is_no_path_of_a_lock_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = "redis://u:SECRET@h/deploy"
    for path in (address, pathlib.PurePosixPath(address), os.path.abspath(address)):
        for call_with in (
            lambda path: semlock.Lock(path, make_dirs=True).acquire(),
            lambda path: semlock.KernelLock(path, make_dirs=True).acquire(),
        ):
            with pytest.raises(semlock.LockPathError, match="connect") as failure:
                call_with(path)
            assert "SECRET" not in repr(failure.value)
    with pytest.raises(semlock.LockPathError, match="connect"):
        semlock.status(address)
    assert os.listdir() == []
    os.makedirs("redis:/h")
    with semlock.Lock("redis://h/deploy"):
        assert os.listdir("redis:/h") == ["deploy"]


def test_a_lock_for_a_shell_imports_nothing_from_the_present_directory(
    address, space, tmp_path
):
    for module in ("json", "redis", "semlock", "socket"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('not this one')\n")
    words = ["try", "--owner-pid", str(os.getpid()), address()]
    program = (
        "import os, sys; from semlock.cli import entry; "
        "sys.path[:] = filter(None, sys.path); "
        f"os.chdir({str(tmp_path)!r}); sys.argv[1:] = {words!r}; entry()"
    )
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert space.remove("deploy", force=True)


def test_run_tells_who_holds_it(address, space):
    with space.Lock("deploy", tag="mine"):
        done = call("run", "-n", "-E", "9", address(), "--", "true")
        assert done.returncode == 9
        assert "mine" in done.stderr
        done = call("run", "-t", "0.2", "--json", address(), "--", "true")
        assert json.loads(done.stderr.splitlines()[-1])["tag"] == "mine"


def test_run_takes_several_locks_readers_and_slots(address, space):
    done = call("run", address("a"), address("b"), "--", "true")
    assert done.returncode == 0, done.stderr
    with space.SharedLock("table").shared():
        assert call("run", "-n", "--shared", address("table"), "--", "true").returncode == 0
        assert call("run", "-n", address("table"), "--", "true").returncode == 1
    with space.SlotLock("pool", slots=2):
        assert call("run", "-n", "--slots", "2", address("pool"), "--", "true").returncode == 0
        assert call("run", "-n", "--slots", "1", address("pool"), "--", "true").returncode == 1


def test_status_list_and_break(address, space):
    word = address()
    assert (call("status", word).returncode, call("wait", word).returncode) == (0, 0)
    lock = space.Lock("deploy", tag="mine")
    lock.acquire()
    for words in (("status", word), ("status", "--porcelain", word)):
        done = call(*words)
        assert done.returncode == 1
        assert "mine" in done.stdout
    assert call("wait", "-t", "0.1", word).returncode == 1
    done = call("list", address(""))
    assert "deploy" in done.stdout
    assert "mine" in done.stdout
    assert call("list", address("other")).stdout == ""
    assert json.loads(call("list", "--json", address("")).stdout)["pid"] == os.getpid()
    assert "deploy" in call("watch", "--once", address("")).stdout
    done = call("break", word)
    assert done.returncode == 1
    assert "semlock break -y" in done.stderr
    assert call("break", "-y", word).returncode == 0
    with pytest.raises(semlock.LockLostError):
        lock.release()


def test_a_wait_ends_when_the_lock_is_free(address, space):
    lock = space.Lock("deploy")
    lock.acquire()
    waiter = subprocess.Popen([sys.executable, "-m", "semlock", "wait", address()])
    wait_until(lambda: space.waiting("deploy"), "it waits")
    lock.release()
    assert waiter.wait(PATIENCE) == 0


@on_each
def test_doctor_says_what_is_guaranteed(address):
    done = call("doctor", address(""))
    assert done.returncode == 0, done.stderr
    assert "what is guaranteed here" in done.stdout
    lines = [json.loads(line) for line in call("doctor", "-j", address("")).stdout.splitlines()]
    checks = {line["check"]: line for line in lines if "check" in line}
    assert {"server", "round trip", "clock"} <= set(checks)
    assert checks["clock"]["result"] == "ok"
    promises = {line["guarantee"] for line in lines if "guarantee" in line}
    assert promises == {"exclusion", "death", "restart", "failover", "fence"}
    assert {line["engine"] for line in lines} == {address("").partition("?")[0].rstrip("/")
                                                  .replace(login(address("")), "")}  # fmt: skip


def login(url):
    """Give the user and the password of an address, as it is written."""
    place = url.partition("://")[2]
    return place.rpartition("@")[0] + "@" if "@" in place else ""


def doctors(server, *, code=0):
    """Give what ``doctor`` says of a server: for each row the result, and what it says."""
    done = call("doctor", "-j", url_of(server))
    assert done.returncode == code, done.stderr
    assert servers.PASSWORD not in done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        line.get("check") or line["guarantee"]: (line["result"], line["detail"])
        for line in lines
    }


def test_doctor_says_what_the_settings_of_a_redis_mean(redis_server):
    safe = {"appendonly": "yes", "appendfsync": "always"}
    with servers.running(servers.Redis, settings=safe) as server:
        found = doctors(server)
        assert {result for result, _ in found.values()} == {"ok"}
    loose = {
        "appendonly": "no", "maxmemory-policy": "allkeys-lru", "min-replicas-to-write": "0",
        "replicaof": f"127.0.0.1 {redis_server.port}",
    }  # fmt: skip
    with servers.running(servers.Redis, settings=loose) as server:
        assert "replica" in doctors(server, code=3)["connection"][1]
        server.command("REPLICAOF NO ONE")
        found = doctors(server)
        for name in ("appendonly", "appendfsync", "eviction", "exclusion", "restart"):
            assert found[name][0] == "limited", name
        assert "two may hold" in found["restart"][1]
    with servers.running(servers.Redis, settings=safe) as server:
        with servers.running(
            servers.Redis, settings={"replicaof": f"127.0.0.1 {server.port}"}
        ) as _:
            wait_until(lambda: doctors(server)["replicas"][1].startswith("1"), "it follows")
            result, detail = doctors(server)["failover"]
            assert (result, "two may hold" in detail) == ("limited", True)
    with servers.running(servers.Redis, settings={"cluster-enabled": "yes"}) as server:
        assert doctors(server)["mode"][0] == "limited"


def test_doctor_says_what_the_settings_of_a_postgresql_mean(postgresql_server):
    found = doctors(postgresql_server)
    assert (found["fsync"][0], found["restart"][0]) == ("limited", "limited")
    assert "synchronous_commit on" in found["commits"][1]
    assert "all locks end" in found["failover"][1]
    settings = {"fsync": "on", "synchronous_commit": "off", "max_connections": "15"}
    with servers.running(servers.PostgreSQL, settings=settings) as server:
        found = doctors(server)
        assert (found["fsync"][0], found["connections"][0]) == ("ok", "limited")
        assert "synchronous_commit off" in found["commits"][1]
        with servers.running(servers.PgBouncer, server, mode="transaction") as pooler:
            result, detail = doctors(pooler, code=3)["connection"]
            assert (result, "pooler" in detail) == ("no", True)


def test_doctor_says_what_the_state_of_an_etcd_means(etcd_cluster):
    found = doctors(etcd_cluster)
    assert {result for result, _ in found.values()} == {"ok"}
    with servers.running(servers.Etcd, more=["--quota-backend-bytes", "100000"]) as server:
        found = doctors(server)
        assert (found["members"][0], found["failover"][0]) == ("limited", "limited")
        assert found["alarms"][0] == "ok"
        with pytest.raises(OSError, match="space"):
            for _ in range(100):
                server.call("kv/put", key="a2V5", value="x" * 40_000)
        assert doctors(server)["alarms"] == ("limited", "NOSPACE: see: etcdctl alarm list")


def test_a_clock_that_differs_is_told():
    for skew, well in ((0, True), (60, False), (-60, False)):
        rows = {fact.what: fact for fact in timing(lambda skew=skew: time.time() + skew)}
        assert rows["clock"].well == well
        assert rows["clock"].value.startswith(f"{skew:+d}.")


def test_doctor_of_a_server_that_is_away_is_told_in_a_row(tmp_path):
    done = call("doctor", f"redis://u:SECRET@127.0.0.1:{servers.free_port()}")
    assert (done.returncode, "SECRET" in done.stdout + done.stderr) == (3, False)
    assert "connection  no" in done.stdout


@on_each
def test_a_lock_of_the_calling_shell_ends_with_it(address, space):
    word = address()
    owner = subprocess.Popen(["sleep", "60"])
    pid = str(owner.pid)
    assert call("try", "--owner-pid", pid, word).returncode == 0
    assert space.status("deploy").info.pid == owner.pid
    assert call("try", "--owner-pid", pid, word).returncode == 1
    assert call("release", "--owner-pid", str(os.getpid()), word).returncode == 1
    assert call("release", "--owner-pid", pid, word).returncode == 0
    assert space.list() == []
    assert call("acquire", "--owner-pid", pid, word).returncode == 0
    owner.kill()
    owner.wait()
    with space.Lock("deploy").acquire(timeout=PATIENCE):
        pass


def test_short_names_are_of_the_space_in_the_environment(engine, address, space, tmp_path):
    url = f"{engine[0]}?{engine[1]}"
    words = ("run", "deploy", "--", sys.executable, "-m", "semlock", "list", address(""))
    done = call(*words, SEMLOCK_URL=url)
    assert (done.returncode, "deploy" in done.stdout) == (0, True), done.stderr
    done = call("run", f"{tmp_path}/a.lock", "--", "ls", str(tmp_path), SEMLOCK_URL=url)
    assert "a.lock" in done.stdout
    for words in (("list", "."), ("doctor", "."), ("clean", "."), ("flock", "deploy", "true")):
        done = call(*words, SEMLOCK_URL=url, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "deploy").exists()


def test_wrong_addresses_are_told(address, tmp_path):
    for words, code in (
        (("status", "redis://u:SECRET@127.0.0.1:1/deploy"), 3),
        (("status", "redis://u:SECRET@h:x/deploy"), 3),
        (("status", "redis://127.0.0.1"), 2),
        (("run", address("a"), f"{tmp_path}/b.lock", "--", "true"), 2),
        (("run", address("a"), "redis://127.0.0.1:1/b", "--", "true"), 2),
        (("run", address("a"), address("a"), "--", "true"), 2),
        (("run", "--shared", "--slots", "2", address("a"), "--", "true"), 2),
        (("migrate", address("a")), 2),
        (("status", "--json", "redis://127.0.0.1:1/deploy"), 3),
    ):
        done = call(*words)
        assert done.returncode == code, (words, done.stderr)
        assert "SECRET" not in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "option",
    ["--durability=full", "--make-dirs", "--kernel", "--dialect=sema", "--ttl=3", "--stale=3",
     "--owner=x", "--allow=SAME_USER", "--follow=self", "--no-auto-refresh"],
)  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(option, tmp_path):
    """Before anything is asked of a server, so none is needed."""
    done = call("run", "-n", option, f"file://{tmp_path}/deploy", "--", "true")
    assert done.returncode == 2
    assert f"{option.split('=')[0]} is for files" in done.stderr
    assert os.listdir(tmp_path) == []


def test_refresh_does_not_take_a_lock_on_an_engine_for_a_lost_file(tmp_path):
    """It said that the lock was lost, and to stop what relies on it."""
    done = call("refresh", "deploy", SEMLOCK_URL=f"file://{tmp_path}", cwd=tmp_path)
    assert done.returncode == 2
    assert "refresh is for files" in done.stderr
    assert "lost" not in done.stderr


@pytest.mark.parametrize("answer", ["end", pytest.param("warn", marks=pytest.mark.stress)])
def test_run_ends_its_command_before_another_can_hold(answer, tmp_path):
    with servers.running(servers.Redis) as server:
        word = f"{url_of(server)}/deploy?ttl=2"
        # What outlives the shell keeps none of the pipes that are read to their end.
        sleep = "sleep 3 > /dev/null 2>&1"
        script = f"trap '' TERM; echo held; {sleep}; echo on > {tmp_path}/went_on"
        words = ["run", "--on-lost", answer, word, "--", "sh", "-c", script]
        runner = subprocess.Popen(
            [sys.executable, "-m", "semlock", *words], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert runner.stdout.readline() == "held\n"
        server.pause()
        began = time.monotonic()
        try:
            if answer == "end":
                # The shell ignores TERM, so KILL ends it, while its lease still lasts.
                wait_until(lambda: not _runs(runner.pid), "its shell has ended")
                assert time.monotonic() - began < 2.0
            else:
                time.sleep(2.5)
        finally:
            server.resume()
        _, said = runner.communicate(timeout=PATIENCE)
        assert "may be lost soon" in said
        assert (tmp_path / "went_on").exists() == (answer == "warn")
        assert runner.returncode == (128 + 9 if answer == "end" else 3)


def test_run_ends_its_command_at_once_when_its_lock_was_taken(address, space):
    began = time.monotonic()
    word = address().replace("?", "?ttl=60&")
    words = [sys.executable, "-m", "semlock", "run", word, "--", "sleep", "500"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as runner:
        wait_until(lambda: _runs(runner.pid) and space.list(), "it holds")
        space.remove("deploy", force=True)
        _, said = runner.communicate(timeout=PATIENCE)
    assert time.monotonic() - began < PATIENCE  # less than a part of the lease
    assert "may be lost" in said
    assert runner.returncode in (128 + 15, 128 + 9)


@pytest.mark.parametrize("answer", ["end", pytest.param("warn", marks=pytest.mark.stress)])
def test_the_command_of_a_killed_run_ends_with_it(answer, address, space):
    """Its lease would end while the command goes on."""
    script = [sys.executable, "-c", "import os; print('runs', flush=True); os.read(0, 1)"]
    words = ["run", "--on-lost", answer, address(), "--", *script]
    reader, writer = os.pipe()
    runner = subprocess.Popen(
        [sys.executable, "-m", "semlock", *words], stdin=reader, stdout=subprocess.PIPE
    )
    os.close(reader)
    with runner:
        assert runner.stdout.readline() == b"runs\n"
        runner.kill()
        runner.wait()
        if answer == "end":
            wait_until(lambda: not _is_read(writer), "the command has ended")
        else:
            assert _is_read(writer)
    os.close(writer)


def _is_read(writer: int) -> bool:
    """Tell whether a pipe has a reader."""
    poll = select.poll()
    poll.register(writer, 0)
    return not poll.poll(0)


def _runs(runner: int) -> bool:
    """Tell whether the command of a run still runs."""
    try:
        with open(f"/proc/{runner}/task/{runner}/children") as file:
            children = file.read().split()
    except OSError:
        return False
    for child in children:
        with open(f"/proc/{child}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] != "Z":
                return True
    return False


# ---------------------------------------------------------------- watch, stats and timeline


@on_each
def test_watch_shows_and_removes_locks_as_those_of_files(address, space):
    lost = []
    held = space.Lock("deploy", tag="v1", on_lost=lambda *_: lost.append(1))
    held.acquire()
    waiter = subprocess.Popen([sys.executable, "-m", "semlock", "wait", address()])
    wait_until(lambda: space.waiting("deploy"), "it waits")
    said = call("watch", "--json", address("")).stdout.splitlines()
    assert [json.loads(line)["waiting"] for line in said] == [1]
    assert "deploy" not in call("watch", "--once", address("no")).stdout
    names = engine_seen.Names(space, ["dep"])
    screen = watching.Screen(names, colour=False)
    screen.look()
    text = "\n".join(screen.draw(120, 20))
    for word in (space.address, "deploy", "v1", "alive", str(os.getpid())):
        assert word in text
    for key in ("i", "x", "/", "n", "o", "\r"):
        screen.key(key)
    assert "No lock matches" in "\n".join(screen.draw(120, 20))
    for key in ("\x1b", "b", "y"):
        screen.key(key)
    assert "was removed" in "\n".join(screen.draw(120, 20))
    wait_until(lambda: lost, "the holder is told")
    with pytest.raises(semlock.LockLostError):
        held.release()
    assert waiter.wait(PATIENCE) == 0


def test_watch_goes_on_while_the_engine_is_away():
    with servers.running(servers.Redis) as server:
        with semlock.connect(url_of(server), ttl=1.5) as space:
            names = engine_seen.Names(space, [""])
            with space.Lock("deploy"):
                screen = watching.Screen(names, colour=False)
                screen.look()
                server.kill()
                screen.look()
                text = "\n".join(screen.draw(200, 20))
                assert "could not be listed" in text
                assert "deploy" in text
                server.start()
                screen.look()
                assert "could not" not in "\n".join(screen.draw(200, 20))


def test_what_locks_on_an_engine_do_is_traced_drawn_and_counted(address, space, tmp_path):
    trace, page = str(tmp_path / "trace.jsonl"), str(tmp_path / "page.html")
    words = [sys.executable, "-m", "semlock", "run", "-q", address(), "--"]
    environment = {**os.environ, "SEMLOCK_TRACE": trace}
    with subprocess.Popen([*words, "cat"], stdin=subprocess.PIPE, env=environment) as holder:
        wait_until(lambda: space.list(), "it holds")
        waiter = subprocess.Popen([*words, "true"], env=environment)
        wait_until(lambda: space.waiting("deploy"), "it waits")
    assert (holder.returncode, waiter.wait(PATIENCE)) == (0, 0)
    facts = [json.loads(line) for line in call("timeline", "-j", trace).stdout.splitlines()]
    (wait,) = [fact for fact in facts if "wait" in fact]
    assert wait["path"].endswith("/deploy")
    assert wait["wait"] > 0
    assert wait["behind"] == holder.pid
    assert call("timeline", "-o", page, trace).returncode == 0
    with open(page) as file:
        assert "deploy" in file.read()
    before = semlock.stats().total
    try:
        with space.Lock("deploy") as lock:
            assert not space.Lock("deploy").try_acquire()
            path = lock.path
        after = semlock.stats()
    finally:
        stats.stop()
    assert (after.total.acquired, after.total.refused) == (
        before.acquired + 1,
        before.refused + 1,
    )
    assert after.locks[path].acquired == 1
