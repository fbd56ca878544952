"""Many who wait for one lock, with little to wait with, and a storm of all sorts of them.

The waiters are light: one process forks them all, so a hundred cost little more than one.
"""

import contextlib
import glob
import mmap
import os
import random
import signal
import sys
import time

import pytest

import semlock
from support import Child, state_of, wait_until

fcntl = pytest.importorskip("fcntl")

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="it is about Linux' queues and events"
)

LONG = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "60"))
MANY = 100
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# What each of the many does: it writes how often it slept and what time it took.
CROWD = f"""
import glob, os, resource, sys, threading, time
import semlock
sys.path.insert(0, {HERE!r})

def sleeps(task="self"):
    with open(f"/proc/{{task}}/status") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("voluntary"))

def run(path, record):
    lock = semlock.Lock(path, durability="none")
    before = sleeps()
    lock.acquire(timeout=60)
    after = sleeps()
    inside = os.open(path + ".inside", os.O_CREAT | os.O_EXCL)
    os.close(inside)
    os.unlink(path + ".inside")
    lock.release()
    used = resource.getrusage(resource.RUSAGE_SELF)
    os.write(record, b"%d %d\\n" % (after - before, (used.ru_utime + used.ru_stime) * 1e6))

def raise_many(path, record, count):
    out = os.open(record, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    children = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(path, out)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    return children

def bury(children):
    return [os.waitpid(pid, 0)[1] for pid in children]
"""


def processor_time(pid):
    """How many ticks of the processor a process has used."""
    with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def all_asleep(pids):
    wait_until(lambda: all(state_of(pid) == "S" for pid in pids), "all sleep")


@pytest.fixture
def crowd():
    """A process that raises many."""
    with Child(CROWD) as it:
        yield it


def wait_in_a_crowd(crowd, path, record, *, idle=1.0, most=0.5):
    """Have many wait for a lock, then let it go: what each of them has to say."""
    inside = crowd.outer_pid != crowd.pid
    with semlock.Lock(path):
        pids = crowd.run(f"children = raise_many({path!r}, {record!r}, {MANY}); children")
        if not inside:
            all_asleep(pids)
            before = sum(map(processor_time, pids))
            time.sleep(idle)
            used = sum(map(processor_time, pids)) - before
            assert used <= most * idle * os.sysconf("SC_CLK_TCK"), f"{used} ticks for waiting"
    assert set(crowd.run("bury(children)", timeout=90)) == {0}
    with open(record, encoding="ascii") as file:
        said = [tuple(map(int, line.split())) for line in file]
    assert len(said) == MANY
    assert os.listdir(os.path.dirname(path)) == []
    return said


@pytest.fixture
def record(tmp_path_factory):
    return str(tmp_path_factory.mktemp("record") / "record")


def test_a_hundred_processes_are_woken_one_at_a_time(path, crowd, record):
    said = wait_in_a_crowd(crowd, path, record)
    # Joining a queue in which a hundred are moving takes some sleeps; each hand-over, few.
    assert sum(sleeps for sleeps, _ in said) / MANY <= 15


def test_a_hundred_processes_with_four_event_sources_for_all(path, record):
    wrapper = ("unshare", "--user", "--map-root-user")
    if os.system(f"{' '.join(wrapper)} true 2>/dev/null") != 0:
        pytest.skip("there are no user namespaces here")
    with Child(CROWD, wrapper=wrapper) as crowd:
        crowd.run("open('/proc/sys/user/max_inotify_instances', 'w').write('4')")
        wait_in_a_crowd(crowd, path, record, most=1.0)


def test_a_hundred_processes_with_few_descriptors(path, crowd, record):
    crowd.run("resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))")
    wait_in_a_crowd(crowd, path, record, most=1.0)


_THREADS = """
had = []
failed = []

def one(path):
    lock = semlock.Lock(path, durability="none")
    try:
        lock.acquire(timeout=60)
        had.append(1)
        lock.release()
    except BaseException as error:
        failed.append(repr(error))

def raise_threads(path, count):
    threads = [threading.Thread(target=one, args=(path,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads
"""


@pytest.mark.parametrize("limit", [1024, 64])
def test_a_hundred_threads_of_one_process(path, crowd, limit):
    crowd.run(_THREADS)
    crowd.run(f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))")
    with semlock.Lock(path):
        crowd.run(f"threads = raise_threads({path!r}, {MANY}); len(threads)")
        before = processor_time(crowd.outer_pid)
        time.sleep(1.0)
        used = processor_time(crowd.outer_pid) - before
        assert used <= 0.9 * os.sysconf("SC_CLK_TCK"), f"{used} ticks for waiting"
    had = crowd.run("for thread in threads: thread.join()\n(len(had), failed)", timeout=90)
    assert had == (MANY, [])
    descriptors = crowd.run("len(os.listdir('/proc/self/fd'))")
    assert descriptors <= 16
    crowd.run(f"semlock.clean({os.path.dirname(path)!r}); None")
    assert os.listdir(os.path.dirname(path)) == []


# ---------------------------------------------------------------- clocks and sleeps


def test_a_process_that_slept_beyond_its_time_says_so_at_once(path):
    with semlock.Lock(path), Child() as waiter:
        waiter.send(f"lock = semlock.Lock({path!r}); lock.acquire(timeout=0.3)")
        wait_until(lambda: glob.glob(f"{os.path.dirname(path)}/.semlock-*/*"), "it waits")
        waiter.stop()
        time.sleep(0.4)
        begin = time.monotonic()
        waiter.resume()
        with pytest.raises(semlock.LockTimeoutError):
            waiter.receive()
        assert time.monotonic() - begin < 5


@pytest.fixture
def clock(tmp_path):
    """A monotonic clock that can be put forwards and back, and its process' environment."""
    found = [
        name
        for directory in ("/usr/lib", "/usr/lib/*", "/usr/local/lib", "/usr/lib64")
        for name in glob.glob(f"{directory}/faketime/libfaketime.so.1")
    ]
    if not found:
        pytest.skip("libfaketime is not installed")
    file = tmp_path / "shift"

    def shift(seconds):
        (tmp_path / "new").write_text(f"{seconds:+d}", encoding="ascii")
        (tmp_path / "new").replace(file)

    shift(0)
    environment = {
        "LD_PRELOAD": found[0],
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "NO_FAKE_STAT": "1",
    }
    return shift, environment


@pytest.mark.parametrize("jump", [100_000, -100_000], ids=["forwards", "back"])
def test_whatever_the_monotonic_clock_does_a_release_is_heard(path, clock, jump):
    shift, environment = clock
    os.mkdir(f"{path}.d")
    path = f"{path}.d/the.lock"
    with Child(env=environment) as waiter:
        lock = semlock.Lock(path)
        lock.acquire()
        waiter.send(f"lock = semlock.Lock({path!r}); lock.acquire(); lock.release()")
        wait_until(lambda: glob.glob(f"{os.path.dirname(path)}/.semlock-*/*"), "it waits")
        shift(jump)
        lock.release()
        waiter.receive()
    assert os.listdir(os.path.dirname(path)) == []


def test_a_wait_over_which_the_monotonic_clock_jumps_ends(path, clock):
    """As where the clock goes on while the machine sleeps."""
    shift, environment = clock
    with semlock.Lock(path), Child(env=environment) as waiter:
        waiter.send(f"lock = semlock.Lock({path!r}); lock.acquire(timeout=50000)")
        wait_until(lambda: glob.glob(f"{os.path.dirname(path)}/.semlock-*/*"), "it waits")
        assert not waiter.answered(0.1)
        shift(100_000)
        with pytest.raises(semlock.LockTimeoutError):
            waiter.receive()


# ---------------------------------------------------------------- the storm


class Storm:
    """Processes that come and go, wait, try, give up, stop and are killed."""

    # Who waits longer than this, not being stopped, has been forgotten.
    STARVED = 20.0

    def __init__(self, directory, seed):
        self.random = random.Random(seed)
        self.path = os.path.join(directory, "the.lock")
        self.board = mmap.mmap(-1, 4096)
        self.words = memoryview(self.board).cast("Q")
        self.alive = {}
        self.stopped = {}
        self.kills = self.stops = 0
        self.wrong_reader, self.wrong_writer = os.pipe()
        self.bailiff = os.path.join(directory, "..", "bailiff")

    def wrong(self, text):
        os.write(self.wrong_writer, text.encode() + b"\n")

    def work(self, seed, kind):
        rng = random.Random(seed)
        bailiff = os.open(self.bailiff, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        locks = [
            semlock.Lock(self.path, durability="none", fair=fair) for fair in (False, True)
        ]
        while True:
            if kind == "foreign":
                self.foreign(rng, bailiff)
            else:
                self.take(rng, rng.choice(locks), bailiff)

    def take(self, rng, lock, bailiff):
        begin = time.monotonic()
        chance = rng.random()
        if chance < 0.2:
            if not lock.try_acquire():
                return
        else:
            timeout = None if chance > 0.6 else rng.random() / 20
            try:
                lock.acquire(timeout=timeout)
            except semlock.LockTimeoutError:
                return
        waited = time.monotonic() - begin
        if waited > self.STARVED:
            self.wrong(f"a process waited for {waited:.1f} s")
        self.inside(rng, bailiff)
        try:
            lock.release()
        except semlock.LockTimeoutError:
            while lock.held:  # a remover was stopped with the guard
                with contextlib.suppress(semlock.LockTimeoutError):
                    lock.release()
        if rng.random() < 0.3:
            time.sleep(rng.random() / 200)

    def foreign(self, rng, bailiff):
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            time.sleep(0.003)
            return
        self.inside(rng, bailiff)
        os.unlink(self.path)
        time.sleep(0.003)

    def inside(self, rng, bailiff):
        try:
            fcntl.lockf(bailiff, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.wrong("two were inside")
            return
        self.words[0] += 1
        if rng.random() < 0.3:
            time.sleep(rng.random() / 1000)
        fcntl.lockf(bailiff, fcntl.LOCK_UN)

    def raise_one(self, kind="waiter"):
        seed = self.random.getrandbits(32)
        pid = os.fork()
        if pid == 0:
            try:
                self.work(seed, kind)
            except BaseException as error:
                self.wrong(f"{type(error).__name__}: {error}")
            finally:
                os._exit(1)
        self.alive[pid] = kind

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.kills += 1
        del self.alive[pid]
        self.stopped.pop(pid, None)

    def run(self, seconds, workers, foreigners):
        for _ in range(workers):
            self.raise_one()
        # A foreign holder that is killed holds for ever, so those are left alone.
        for _ in range(foreigners):
            self.raise_one("foreign")
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            time.sleep(self.random.expovariate(100))
            for pid in [pid for pid, at in self.stopped.items() if at <= now]:
                del self.stopped[pid]
                os.kill(pid, signal.SIGCONT)
            pid = self.random.choice(
                [pid for pid, kind in self.alive.items() if kind == "waiter"]
            )
            if self.random.random() < 0.4 and pid not in self.stopped:
                self.stops += 1
                os.kill(pid, signal.SIGSTOP)
                self.stopped[pid] = now + self.random.expovariate(10)
            else:
                self.kill(pid)
                self.raise_one()
        for pid in list(self.stopped):
            os.kill(pid, signal.SIGCONT)
        self.end_foreigners()
        for pid in list(self.alive):
            self.kill(pid)

    def is_foreign(self):
        """Whether a foreigner holds the lock: it writes nothing."""
        try:
            return os.path.getsize(self.path) == 0
        except FileNotFoundError:
            return False

    def end_foreigners(self):
        """End those when they don't hold: stopped, they can be asked."""
        for pid, kind in list(self.alive.items()):
            if kind == "foreign":
                while True:
                    os.kill(pid, signal.SIGSTOP)
                    wait_until(lambda pid=pid: state_of(pid) == "T", "it is stopped")
                    if not self.is_foreign():
                        break
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.001)
                self.kill(pid)

    def end(self):
        for pid in list(self.alive):
            self.kill(pid)
        os.close(self.wrong_writer)
        with open(self.wrong_reader, encoding="utf-8") as file:
            return file.read().splitlines()


def weather(directory, seconds, **options):
    """Let a storm pass, and see that nothing was wrong and that nothing is left."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    os.mkdir(locks := os.path.join(directory, "locks"))
    storm = Storm(locks, seed)
    try:
        storm.run(seconds, **options)
    finally:
        wrong = storm.end()
    assert wrong == []
    turns = storm.words[0]
    print(f"{turns} turns, {storm.kills} kills, {storm.stops} stops")
    assert turns > 20 * seconds
    begin = time.monotonic()
    with semlock.Lock(storm.path, timeout=10):
        pass
    assert time.monotonic() - begin < 5
    semlock.clean(locks)
    assert os.listdir(locks) == []


@pytest.mark.parametrize("foreigners", [0, 2])
def test_a_storm_of_waiters(tmp_path, foreigners):
    weather(str(tmp_path), 1.0, workers=8, foreigners=foreigners)


@pytest.mark.stress
@pytest.mark.timeout(LONG * 2 + 120)
@pytest.mark.parametrize("workers", [6, 24])
@pytest.mark.parametrize("foreigners", [0, 2])
def test_a_long_storm_of_waiters(tmp_path, workers, foreigners):
    weather(str(tmp_path), LONG / 2, workers=workers, foreigners=foreigners)


@pytest.mark.stress
@pytest.mark.timeout(LONG * 2 + 120)
def test_no_wake_is_missed_in_a_storm_of_releases(tmp_path):
    """No process looks by the clock here, so one wake that is missed would end it."""
    path = str(tmp_path / "the.lock")
    setup = (
        "import semlock, time\nsemlock._core.capi.set_safety(3600)\n"
        f"lock = semlock.Lock({path!r}, durability='none', fair=True)\n"
        "def run(seconds):\n"
        "    count, end = 0, time.monotonic() + seconds\n"
        "    while time.monotonic() < end:\n"
        "        begin = time.monotonic()\n"
        "        lock.acquire(timeout=30)\n"
        "        assert time.monotonic() - begin < 20, 'a wake was missed'\n"
        "        lock.release()\n"
        "        count += 1\n"
        "    return count\n"
    )
    with contextlib.ExitStack() as stack:
        all_of_them = [stack.enter_context(Child(setup)) for _ in range(3)]
        for one in all_of_them:
            one.send(f"run({LONG / 3})")
        counts = [one.receive(timeout=LONG + 60) for one in all_of_them]
    print(counts)
    assert min(counts) > 100
