"""What PostgreSQL adds: the connection is the witness, and few connections are enough."""

from __future__ import annotations

import contextlib
import dis
import itertools
import subprocess
import sys
import threading
import time
import uuid

import pytest

import semlock
import servers
from engine_urls import url_of
from faultproxy import FaultProxy
from support import HANDLERS_RUN_AT, PATIENCE, Strike, wait_until

psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def url(postgresql_server):
    return url_of(postgresql_server)


@pytest.fixture
def space(url):
    with semlock.connect(url, prefix=uuid.uuid4().hex, ttl=30) as space:
        yield space


@pytest.fixture
def admin(url):
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def sessions(admin, space) -> list[int]:
    name = f"semlock {space.client.engine._client}"
    rows = admin.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s", (name,)
    )
    return [pid for (pid,) in rows]


@contextlib.contextmanager
def holder_of(url, space, name):
    """Another process that holds a lock."""
    prefix = space.client.address.prefix
    program = (
        "import semlock, sys\n"
        f"lock = semlock.connect({url!r}, prefix={prefix!r}, ttl=30).Lock({name!r})\n"
        "lock.acquire()\nprint('held', flush=True)\nsys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"held\n"
        yield child
        child.kill()


def test_a_killed_holders_lock_passes_on_at_once(url, space):
    with holder_of(url, space, "deploy") as holder:
        came = []

        def wait():
            with space.Lock("deploy").acquire(timeout=PATIENCE):
                came.append(time.monotonic())

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: space.waiting("deploy"), "it waits")
        time.sleep(0.2)
        began = time.monotonic()
        holder.kill()
        waiter.join()
    assert came[0] - began < 5  # far less than the ttl


def test_a_killed_holder_needs_no_waiter_to_be_found(url, space):
    with holder_of(url, space, "deploy") as holder:
        assert not space.Lock("deploy").try_acquire()
        holder.kill()
        holder.wait()
        wait_until(lambda: space.list() == [], "its session ends")
        with space.Lock("deploy").acquire(timeout=0):
            pass


def test_what_a_killed_client_left_under_a_name_that_is_not_used_again_goes(url, space, admin):
    left = "SELECT count(*) FROM semlock.entry WHERE name LIKE %s"
    name = f"{space.client.address.prefix}:once"
    with holder_of(url, space, "once") as holder:
        holder.kill()
        holder.wait()
    ended = "SELECT bool_and(semlock.is_over(witness, 0)) FROM semlock.entry WHERE name = %s"
    wait_until(lambda: admin.execute(ended, (name,)).fetchone()[0], "its session ends")
    assert admin.execute(left, (name,)).fetchone() == (1,)
    with semlock.connect(url, prefix="another"):
        assert admin.execute(left, (name,)).fetchone() == (0,)


def test_the_connections_of_a_killed_waiter_end(url, space, admin):
    prefix = space.client.address.prefix
    program = (
        "import semlock\n"
        f"space = semlock.connect({url!r}, prefix={prefix!r}, ttl=1)\n"
        "print(space.client.engine._client, flush=True)\nspace.Lock('deploy').acquire()"
    )
    behind = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s "
        "AND wait_event = 'advisory'"
    )
    words = [sys.executable, "-c", program]
    with space.Lock("deploy"), subprocess.Popen(words, stdout=subprocess.PIPE) as waiter:
        name = f"semlock {waiter.stdout.readline().decode().strip()}"

        def waits():
            return admin.execute(behind, (name,)).fetchone()[0]

        wait_until(waits, "it waits for the end of this session")
        waiter.kill()
        wait_until(lambda: not waits(), "the server sees that it is gone")


def test_a_thousand_locks_are_two_connections(space, admin):
    locks = [space.Lock(f"{number}") for number in range(1000)]
    for lock in locks:
        lock.acquire()
    assert len(sessions(admin, space)) == 2
    locks[0].check()
    for lock in locks:
        lock.release()


def test_waiting_for_many_locks_of_one_client_takes_one_connection_more(space, url, admin):
    prefix = space.client.address.prefix
    with semlock.connect(url, prefix=prefix, ttl=30) as other:
        held = [other.Lock(f"{number}") for number in range(20)]
        for lock in held:
            lock.acquire()

        def wait(number):
            with space.Lock(f"{number}").acquire(timeout=PATIENCE):
                pass

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(space.waiting(f"{n}") for n in range(20)), "all wait")
        # On a busy machine the connection may not come to be in time for the first waiter.
        wait_until(lambda: len(sessions(admin, space)) == 3, "another connection stands")
        for lock in held:
            lock.release()
        for thread in threads:
            thread.join()


@pytest.fixture
def proxy(postgresql_server):
    with FaultProxy(postgresql_server.port) as proxy:
        yield proxy


@pytest.fixture
def distant(url, postgresql_server, proxy):
    """A space whose connections go through the proxy."""
    address = url.replace(postgresql_server.address, proxy.address)
    with semlock.connect(address, prefix=uuid.uuid4().hex, ttl=1.0) as space:
        yield space


@pytest.mark.parametrize("statement", ["prepare", "execute"])
def test_a_session_goes_on_after_an_answer_that_came_too_late(distant, proxy, statement):
    if statement == "execute":  # what is prepared already
        with distant.Lock("another"):
            pass
    proxy.delay(answers=0.5)
    with pytest.raises(semlock.LockEngineError, match="no answer in time"):
        distant.Lock("deploy").acquire(timeout=0.2)
    proxy.delay()
    for _ in range(2):
        with distant.Lock("deploy").acquire(timeout=PATIENCE):
            pass


def test_a_release_that_no_answer_came_to_is_made_up_for_at_any_time(distant, url, proxy):
    """The session goes on, and nothing else would ever end the entry."""
    prefix = distant.client.address.prefix
    lock = distant.Lock("deploy")
    lock.acquire()
    proxy.partition()
    with contextlib.suppress(semlock.LockLostError):
        lock.release()
    time.sleep(1.5 * distant.client.ttl)
    proxy.heal()
    with semlock.connect(url, prefix=prefix, ttl=1.0) as near:
        with near.Lock("deploy").acquire(timeout=PATIENCE):
            pass


class Interrupt(Strike):
    """Strikes only where the interpreter runs signal handlers."""

    def step(self, frame, offset):
        if self._last.startswith(HANDLERS_RUN_AT):
            super().step(frame, offset)
        else:
            self._last = dis.opname[frame.f_code.co_code[offset]]


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython traces single bytecodes"
)
def test_a_space_survives_an_interrupt_at_any_point_of_a_request(space):
    """The mutex stays locked for ever, or a statement is prepared twice, and nothing works."""
    modules = ("_engines/postgresql.py", "_engines/postgresql_session.py")
    engine = space.client.engine
    for at in itertools.count(1):
        engine._main._prepared.clear()  # as after a preparation that was given up
        lock = space.Lock("deploy")

        def hold(lock=lock):
            with lock:
                pass

        strike = Interrupt(at, hold, modules)
        assert strike.error is None, (strike.where, strike.error)
        assert not lock.held, strike.where
        with space.Lock("deploy").acquire(timeout=PATIENCE):
            pass
        if not strike.struck:
            break
    assert at > 30


def test_a_session_that_is_ended_is_a_loss(url, admin):
    told = []
    with semlock.connect(url, prefix=uuid.uuid4().hex, ttl=1.5) as space:
        lock = space.Lock("deploy", on_lost=lambda *_: told.append(time.monotonic()))
        lock.acquire()
        for pid in sessions(admin, space):
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        wait_until(lambda: told, "the loss is told")
        with pytest.raises(semlock.LockLostError):
            lock.release()
        with space.Lock("deploy").acquire(timeout=PATIENCE):
            pass


def test_a_server_that_restarts_is_found_again():
    with servers.running(servers.PostgreSQL) as server:
        with semlock.connect(url_of(server), ttl=3) as space:
            lock = space.Lock("deploy")
            lock.acquire()
            fence = lock.fence
            server.kill()
            server.start()
            with space.Lock("other").acquire(timeout=PATIENCE):
                pass
            with pytest.raises(semlock.LockLostError):
                lock.check()
            with pytest.raises(semlock.LockLostError):
                lock.release()
            with space.Lock("deploy").acquire(timeout=PATIENCE) as again:
                assert again.fence > fence


def test_a_server_that_stops_does_not_hold_up_a_call(postgresql_server, url):
    with semlock.connect(url, prefix=uuid.uuid4().hex, ttl=3) as space:
        with space.Lock("a"):
            pass
        # The process of the session, which is what would answer.
        with psycopg.connect(url, autocommit=True) as admin:
            pids = sessions(admin, space)
        for pid in pids:
            subprocess.run(["kill", "-STOP", str(pid)], check=True)
        try:
            began = time.monotonic()
            with pytest.raises(semlock.LockEngineError):
                space.Lock("a").acquire(timeout=0.3)
            assert time.monotonic() - began < 1.5
        finally:
            for pid in pids:
                subprocess.run(["kill", "-CONT", str(pid)], check=True)
        with space.Lock("a").acquire(timeout=PATIENCE):
            pass
        wait_until(lambda: space.list() == [], "nothing stays behind")


def test_a_wrong_login_is_told_and_never_shown(url):
    for wrong in (
        url.replace("s3cret", "WRONGSECRET"),
        url.replace("semlock:", "nosuch:"),
        url.replace("/postgres", "/nosuch"),
        url.split("@")[0] + "@127.0.0.1:1/postgres",
    ):
        with pytest.raises(semlock.LockEngineError) as failure:
            semlock.connect(wrong, ttl=3)
        assert "SECRET" not in repr(failure.value)
        assert "s3cret" not in repr(failure.value)


def test_the_login_may_stand_among_the_options(url):
    login, place = url.removeprefix("postgresql://").split("@")
    user, password = login.split(":")
    with semlock.connect(f"postgresql://{place}?user={user}&password={password}") as space:
        assert password not in space.address


@pytest.mark.parametrize("option", ["host", "port", "dbname", "application_name"])
def test_an_option_that_would_change_what_is_shown_is_refused(url, option):
    with pytest.raises(semlock.LockEngineError, match=f"{option} is no option"):
        semlock.connect(f"{url}?{option}=1")


def test_a_certificate_is_never_left_out_of_use(url):
    """The server of these tests has no TLS, and libpq would go on without it."""
    with pytest.raises(semlock.LockEngineError, match="SSL"):
        semlock.connect(url, cert="/no/such.crt", key="/no/such.key")


def test_a_user_who_may_not_make_the_schema_is_told(url, admin):
    admin.execute("CREATE DATABASE fresh")
    admin.execute("CREATE ROLE poor LOGIN PASSWORD 'poor'")
    try:
        poor = "postgresql://poor:poor@" + url.split("@")[1].replace("/postgres", "/fresh")
        with pytest.raises(semlock.LockEngineError, match="schema semlock can't be made"):
            semlock.connect(poor, ttl=3)
    finally:
        admin.execute("DROP DATABASE fresh WITH (FORCE)")
        admin.execute("DROP ROLE poor")


def test_a_read_only_server_is_refused(url):
    with pytest.raises(semlock.LockEngineError, match="read-only"):
        semlock.connect(url + "?options=-c%20default_transaction_read_only%3Don", ttl=3)


def scans(space, admin) -> tuple[int, int]:
    """Count how often all of the table was read, and how often it was updated."""
    space.client.engine._main.ask("SELECT pg_stat_force_next_flush()", within=5)
    row = admin.execute(
        "SELECT seq_scan, n_tup_upd FROM pg_stat_user_tables WHERE relname = 'entry'"
    )
    return row.fetchone()


def test_a_pair_reads_no_rows_that_are_gone_and_updates_none(space, admin):
    """A plan for a small table would read all of it, for as long as the session lasts."""
    if admin.info.server_version < 150000:
        pytest.skip("its counters come late")
    lock = space.Lock("deploy")
    admin.execute("VACUUM ANALYZE semlock.entry")
    lock.acquire()
    lock.release()
    before = scans(space, admin)
    for _ in range(50):
        lock.acquire()
        lock.release()
    assert scans(space, admin) == before
