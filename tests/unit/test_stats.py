"""Counters: what they count, that they add up, and the forms in which others read them."""

import os
import re
import sys
import threading

import pytest

import semlock
from semlock._events import stats, tap
from support import Child, in_a_fork, take_away

FAST = {"durability": "none"}


@pytest.fixture(autouse=True)
def counting():
    semlock.stats()
    yield
    stats.stop()
    assert not tap._listeners


def test_what_happened_is_counted_once_in_all_and_once_by_path(tmp_path):
    path, other = str(tmp_path / "a"), str(tmp_path / "b")
    lock = semlock.Lock(path, reentrant=True, **FAST)
    for _ in range(3):
        with lock, lock:
            lock.refresh()
    with semlock.Lock(other):
        assert not semlock.Lock(other).try_acquire()
    lock.acquire()
    take_away(path)
    with pytest.raises(semlock.LockLostError):
        lock.release()
    with pytest.raises(semlock.LockPathError):
        semlock.Lock(tmp_path / "nowhere" / "c").acquire()
    found = semlock.stats()
    total = found.total
    assert (total.acquired, total.released, total.refreshed) == (5, 4, 3)
    assert (total.refused, total.lost, total.failed, total.timeouts) == (1, 1, 1, 0)
    assert total.wait.count == total.held.count == 5
    assert found.locks[path].acquired == 4
    assert found.locks[other].acquired == found.locks[other].refused == 1
    for name in stats._COUNTERS:
        parts = [getattr(counts, name) for counts in found.locks.values()]
        assert sum(parts) == getattr(total, name)


def test_waits_timeouts_and_reclaims(path):
    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        with pytest.raises(semlock.LockTimeoutError):
            semlock.Lock(path).acquire(timeout=0.01)
        child.kill()
    with semlock.Lock(path):
        pass
    total = semlock.stats().total
    assert total.waited >= 1
    assert (total.timeouts, total.reclaimed, total.acquired) == (1, 1, 1)


def test_what_was_given_doesnt_change_any_more(path):
    before = semlock.stats()
    with semlock.Lock(path):
        pass
    assert before.total.acquired == 0
    assert before.as_dict()["locks"] == {}
    assert semlock.stats().total.acquired == 1
    assert semlock.stats().since == before.since


@pytest.mark.parametrize(
    ("nanoseconds", "bound"),
    [
        (0, 1e-6),
        (1, 1e-6),
        (1000, 1e-6),
        (1001, 2e-6),
        (2000, 2e-6),
        (2001, 4e-6),
        (4000, 4e-6),
        (1_000_000_000, 2**20 / 1e6),
        (2**30 * 1000, 2**30 / 1e6),
        (2**30 * 1000 + 1, float("inf")),
        (10**18, float("inf")),
        (-5, 1e-6),
    ],
)
def test_a_duration_is_counted_under_the_smallest_bound_that_it_keeps(nanoseconds, bound):
    histogram = stats.Histogram()
    histogram.add(nanoseconds)
    assert histogram.count == sum(histogram.buckets) == 1
    assert histogram.quantile(0.5) == bound
    assert list(histogram.as_dict()["buckets"].values()) == [1]
    assert stats.Histogram().quantile(0.5) is None


def test_threads_lose_no_count(tmp_path):
    def work(number):
        lock = semlock.Lock(tmp_path / str(number % 2), **FAST)
        for _ in range(200):
            while not lock.try_acquire():
                pass
            lock.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    total = semlock.stats().total
    assert total.acquired == total.released == total.held.count == 800


def test_any_number_of_paths_needs_bounded_room(tmp_path, monkeypatch):
    monkeypatch.setattr(stats, "PATHS_LIMIT", 3)
    for number in range(10):
        with semlock.Lock(tmp_path / str(number), **FAST):
            pass
    found = semlock.stats()
    assert len(found.locks) == 4
    assert found.locks[stats.OTHERS].acquired == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_begins_at_zero(path):
    with semlock.Lock(path):
        pass
    assert in_a_fork(lambda: semlock.stats().total.acquired) == 0


# -------------------------------------------------------------------- exports

_SAMPLE = re.compile(r"(?P<name>[a-z_]+)(\{(?P<labels>.*)\})? (?P<value>[0-9.e+-]+)\Z")
_LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\["\\n])*)"(?:,|\Z)')


def samples(text):
    """Read the text format strictly: every sample belongs to the family above it."""
    assert text.endswith("\n")
    found, family = {}, ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            assert kind in ("counter", "histogram")
        elif line.startswith("# HELP "):
            family = line.split(" ")[2]
        else:
            match = _SAMPLE.match(line)
            assert match, line
            assert match["name"].startswith(family)
            labels = match["labels"] or ""
            assert _LABEL.sub("", labels) == "", line
            key = (match["name"], *sorted(_LABEL.findall(labels)))
            assert key not in found
            found[key] = float(match["value"])
    return found


@pytest.mark.parametrize("by_lock", [False, True])
def test_prometheus_reads_the_numbers(tmp_path, by_lock):
    if sys.platform == "win32":
        pytest.skip("no name can be such bytes there")
    path = os.fsdecode(os.path.join(os.fsencode(tmp_path), b'a "b" \xff\n'))
    for _ in range(2):
        with semlock.Lock(path):
            pass
    text = semlock.stats().prometheus(by_lock=by_lock)
    found = samples(text)
    label = (("lock", str(tmp_path) + r"/a \"b\" \\udcff\n"),) if by_lock else ()
    assert found[("semlock_acquired_total", *label)] == 2
    assert found[("semlock_held_seconds_count", *label)] == 2
    buckets = [found[key] for key in found if key[0] == "semlock_held_seconds_bucket"]
    assert len(buckets) == len(stats.BOUNDS) + 1
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2


def test_the_prometheus_client_agrees(tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    # A file's name can have no quotes on Windows, and no line break.
    path = str(tmp_path / ("a 'b'" if sys.platform == "win32" else 'a "b"\n'))
    with semlock.Lock(path):
        pass
    families = parser.text_string_to_metric_families(semlock.stats().prometheus(by_lock=True))
    found = {family.name: family for family in families}
    acquired = found["semlock_acquired"].samples
    assert [(sample.labels, sample.value) for sample in acquired] == [({"lock": path}, 1.0)]
    assert found["semlock_wait_seconds"].type == "histogram"


def test_opentelemetry_collects_the_numbers(path):
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    import semlock.otel

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    stop = semlock.otel.register(provider.get_meter("test"))
    try:
        for _ in range(2):
            with semlock.Lock(path):
                pass
        data = reader.get_metrics_data()
        metrics = {
            metric.name: metric.data.data_points[0]
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
        }
    finally:
        stop()
        provider.shutdown()
    assert metrics["semlock.acquired"].value == 2
    assert metrics["semlock.lost"].value == 0
    held = metrics["semlock.held.duration"]
    assert held.count == 2
    assert tuple(held.explicit_bounds) == stats.BOUNDS


def test_a_histogram_shows_numbers():
    histogram = stats.Histogram()
    assert repr(histogram) == "<Histogram: empty>"
    histogram.add(3_000_000)
    assert repr(histogram) == "<Histogram: 1, half within 0.004096 s>"
