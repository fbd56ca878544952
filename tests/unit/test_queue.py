"""Those who wait for one lock stand in a queue, which orders and decides nothing."""

import glob
import os
import shutil
import sys
import tempfile
import threading
import time

import pytest

import semlock
import users
from support import PATIENCE, Child, wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="it is about the queue's files as Linux has them",
)


def tickets(path):
    """List the tickets of those who wait."""
    name = "[0-9a-f]" * 16
    return sorted(glob.glob(os.path.join(os.path.dirname(path), ".semlock-*.queue", name)))


def stand(path, count):
    """Wait until so many stand in the queue."""
    wait_until(lambda: len(tickets(path)) >= count, f"{count} wait")


def side_files(path):
    """List what is beside the lock."""
    return sorted({*os.listdir(os.path.dirname(path))} - {os.path.basename(path)})


class Queue:
    """Processes that ask for one lock, one after the other, and write down when they have it."""

    def __init__(self, path, record):
        self.path = path
        self.record = record
        self.members = []
        self.ready = []
        self.asked = 0
        self.left = []

    def pop(self, number):
        """Take one out of those who are to have the lock."""
        self.left.append(self.members.pop(number))
        return self.left[-1]

    def prepare(self, count, setup="import os, semlock"):
        """Start those who are added next, who then ask at once."""
        self.ready = [Child(setup) for _ in range(count)]
        for child in self.ready:
            child.run("None")

    def add(self, options="", *, timeout=None, see=True, setup="import os, semlock"):
        """Have one more stand in the queue."""
        before = len(tickets(self.path))
        name = self.asked
        self.asked += 1
        member = self.ready.pop() if self.ready else Child(setup)
        self.members.append(member)
        member.send(f"""
lock = semlock.Lock({self.path!r}{options})
lock.acquire(timeout={timeout})
with open({self.record!r}, "a") as record:
    record.write("{name} ")
lock.release()
""")
        if see:
            stand(self.path, before + 1)
        return member

    @property
    def order(self):
        """Who had the lock, in that order."""
        try:
            with open(self.record, encoding="ascii") as record:
                return [int(name) for name in record.read().split()]
        except FileNotFoundError:
            return []

    def end(self):
        """Wait until all are done."""
        for member in self.members:
            member.receive()


@pytest.fixture
def queue(path, tmp_path_factory):
    it = Queue(path, str(tmp_path_factory.mktemp("record") / "order"))
    yield it
    for member in it.ready + it.members + it.left:
        member.close()


def test_eight_that_ask_one_after_the_other_are_served_so(path, queue):
    with semlock.Lock(path):
        for _ in range(8):
            queue.add(", fair=True")
    queue.end()
    assert queue.order == list(range(8))
    assert side_files(path) == []


def test_threads_of_one_process_are_served_in_their_order_too(path):
    order = []

    def wait(number):
        with semlock.Lock(path, fair=True):
            order.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
    with semlock.Lock(path):
        for number, thread in enumerate(threads, 1):
            thread.start()
            stand(path, number)
    for thread in threads:
        thread.join(PATIENCE)
    assert order == list(range(8))
    semlock.clean(os.path.dirname(path))
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_whose_time_is_over_is_left_out(path, queue, number):
    with semlock.Lock(path):
        queue.prepare(3)
        for place in range(3):
            # The others must come while it waits.
            queue.add(", fair=True", timeout=0.75 if place == number else None)
        with pytest.raises(semlock.LockTimeoutError):
            queue.members[number].receive()
        assert len(tickets(path)) == 2
    queue.pop(number)
    queue.end()
    assert queue.order == [place for place in range(3) if place != number]
    assert side_files(path) == []


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_that_is_killed_is_left_out(path, queue, number):
    with semlock.Lock(path):
        for _ in range(3):
            queue.add(", fair=True")
        queue.pop(number).kill()
    queue.end()
    assert queue.order == [place for place in range(3) if place != number]
    # The last one's ticket is not seen until a process waits or cleans.
    assert (side_files(path) != []) is (number == 2)
    semlock.clean(os.path.dirname(path))
    assert side_files(path) == []


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_that_is_stopped_holds_no_other_up(path, queue, number):
    with semlock.Lock(path):
        for _ in range(3):
            queue.add(", fair=True")
        stopped = queue.pop(number)
        stopped.stop()
    queue.end()
    assert sorted(queue.order) == [place for place in range(3) if place != number]
    stopped.resume()
    stopped.receive()
    assert queue.order[-1] == number
    assert side_files(path) == []


def test_a_ticket_says_whose_it_is_and_since_when(path, queue):
    with semlock.Lock(path):
        member = queue.add(', tag="the one who waits"')
        (ticket,) = tickets(path)
        who = f"{ticket}.who"
        wait_until(lambda: os.path.exists(who) and os.path.getsize(who), "it is written")
        with open(who, encoding="ascii") as file:
            lines = file.read().splitlines()
        assert f"pid={member.outer_pid}" in lines
        assert "tag=the one who waits" in lines
        (since,) = (line for line in lines if line.startswith("timestamp="))
        assert abs(int(since.partition("=")[2]) - time.time()) < 100
    queue.end()


def test_a_fair_holder_makes_way_at_once(path, queue):
    lock = semlock.Lock(path, fair=True)
    lock.acquire()
    queue.add()
    lock.release()
    lock.acquire(timeout=PATIENCE)
    assert queue.order == [0]
    lock.release()
    queue.end()


def test_a_lock_that_others_wait_for_goes_to_them_in_the_end(path, queue):
    """A process may take it again and again for a millisecond, and no longer."""
    lock = semlock.Lock(path, durability="none")
    lock.acquire()
    queue.add()
    lock.release()
    end = time.monotonic() + PATIENCE
    while not queue.order and time.monotonic() < end:
        lock.acquire()
        lock.release()
    assert queue.order == [0]
    queue.end()


@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.parametrize("way", ["try", "acquire"])
def test_the_queue_of_a_dead_waiter_keeps_no_process_from_a_free_lock(path, queue, fair, way):
    with semlock.Lock(path):
        queue.add()
        queue.pop(0).kill()
    assert len(tickets(path)) == 1
    lock = semlock.Lock(path, fair=fair)
    if way == "acquire":
        lock.acquire(timeout=PATIENCE)
    else:
        wait_until(lock.try_acquire, "a free lock is had")
    lock.release()
    semlock.clean(os.path.dirname(path))
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.parametrize("how", ["remove", "rename"])
def test_a_lock_is_taken_from_its_holder_while_others_stand_behind_it(path, queue, how):
    """Its holder has waited itself, and its ticket is still there for the next one."""
    waited = Child("import os, semlock")
    try:
        with semlock.Lock(path):
            waited.send(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
            stand(path, 1)
            queue.add()
            queue.add()
        waited.receive()
        begin = time.monotonic()
        if how == "remove":
            os.unlink(path)
        else:
            os.rename(path, f"{path}.away")
        queue.end()
        assert time.monotonic() - begin < PATIENCE / 2
        with pytest.raises(semlock.LockLostError):
            waited.run("lock.release()")
    finally:
        waited.close()
    assert tickets(path) == []


@pytest.mark.leaves("queue")
@pytest.mark.parametrize("obstacle", ["a file", "a link", "a directory of something else"])
def test_what_has_the_queues_name_by_chance_is_left_alone(path, queue, obstacle):
    with semlock.Lock(path):
        queue.add()
        name = os.path.dirname(tickets(path)[0])
    queue.end()
    assert side_files(path) == []
    if obstacle == "a file":
        with open(name, "x", encoding="ascii") as file:
            file.write("not a queue")
    elif obstacle == "a link":
        os.symlink("/nonexistent", name)
    else:
        os.mkdir(name)
        for inner in ("readme", "123", "zzzzzzzzzzzzzzzz"):
            with open(os.path.join(name, inner), "x", encoding="ascii"):
                pass
    before = sorted(os.listdir(name)) if os.path.isdir(name) else None
    with semlock.Lock(path):
        if before is None:
            members = [queue.add(see=False) for _ in range(2)]
            assert not any(member.answered(0.05) for member in members)
        else:
            queue.add()
            queue.add()
    for member in queue.members[1:]:
        member.receive()
    assert sorted(queue.order) == [0, 1, 2]
    assert os.path.lexists(name)
    if before is not None:
        assert sorted(os.listdir(name)) == before


def test_a_foreign_program_takes_part_without_knowing_of_the_queue(path, queue):
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, b"foreign\n")
    queue.add()
    queue.add()
    os.unlink(path)
    while len(queue.order) < 2:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        inode = os.stat(path).st_ino
        time.sleep(0.002)
        assert os.stat(path).st_ino == inode
        os.unlink(path)
        time.sleep(0.002)
    os.close(fd)
    queue.end()
    assert side_files(path) == []


# ---------------------------------------------------------------- other users, and refusals


AS_NOBODY = f"import os, semlock\n{users.as_user()}os.umask(0o022)"


@pytest.fixture
def open_record():
    """A file that everybody can write to: the tests' own directories may be out of reach."""
    directory = tempfile.mkdtemp(prefix="record-")
    os.chmod(directory, 0o711)
    record = os.path.join(directory, "order")
    with open(record, "x", encoding="ascii"):
        os.chmod(record, 0o666)
    yield record
    shutil.rmtree(directory)


@users.needs_root
@pytest.mark.parametrize("kill", [False, True], ids=["all live", "one dies"])
def test_two_users_stand_in_one_queue(common, open_record, queue, kill):
    queue.path = path = os.path.join(common, "the.lock")
    queue.record = open_record
    with semlock.Lock(path):
        for setup in (AS_NOBODY, "import os, semlock", AS_NOBODY, "import os, semlock"):
            queue.add(", fair=True", setup=setup)
        if kill:
            queue.pop(1).kill()
    queue.end()
    assert queue.order == [0, 2, 3] if kill else [0, 1, 2, 3]
    semlock.clean(common)
    assert os.listdir(common) == []


@users.needs_root
def test_a_dead_users_ticket_that_may_not_be_removed_is_passed_by(common):
    path = os.path.join(common, "the.lock")
    with Child() as dead, Child(AS_NOBODY) as other:
        holder = semlock.Lock(path)
        holder.acquire()
        dead.send(f"semlock.Lock({path!r}).acquire()")
        stand(path, 1)
        dead.kill()
        other.send(f"lock = semlock.Lock({path!r}); lock.acquire(timeout=10); lock.release()")
        stand(path, 2)
        holder.release()
        other.receive()
    semlock.clean(common)
    assert os.listdir(common) == []


@users.needs_root
def test_where_no_user_may_write_any_more_a_wait_ends_in_time_or_in_a_clear_error(common):
    path = os.path.join(common, "the.lock")
    with Child() as holder, Child(AS_NOBODY) as other:
        holder.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        os.chmod(common, 0o755)
        other.run(f"lock = semlock.Lock({path!r})")
        with pytest.raises(semlock.LockTimeoutError):
            other.run("lock.acquire(timeout=0.05)")
        other.send("lock.acquire(timeout=20)")
        assert not other.answered(0.05)
        holder.run("lock.release()")
        with pytest.raises(PermissionError) as caught:
            other.receive()
        assert caught.value.filename == path
        assert other.run("lock.held") is False
    assert os.listdir(common) == []


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 8])
def test_without_descriptors_to_spare_a_waiter_goes_without_events_and_place(path, limit):
    with Child("import os, resource, semlock") as poor:
        poor.run(f"""
lock = semlock.Lock({path!r})
lock.acquire()
lock.release()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
hoard = []
try:
    while True:
        hoard.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for _ in range({limit}):
    os.close(hoard.pop())
""")
        holder = semlock.Lock(path)
        holder.acquire()
        with pytest.raises(semlock.LockTimeoutError):
            poor.run("lock.acquire(timeout=0.05)")
        poor.send("lock.acquire(timeout=20); None")
        assert not poor.answered(0.1)
        assert side_files(path) == []
        holder.release()
        if limit == 0:
            with pytest.raises(OSError) as caught:
                poor.receive()
            assert caught.value.filename == path
        else:
            poor.receive()
            poor.run("lock.release()")
