"""What ``semlock doctor`` says of an engine: how it is set up, and what that guarantees.

A module of an engine asks its server; here is what the answers mean for locks.
"""

from __future__ import annotations

from time import monotonic, time

from semlock._engines.engine import Fact

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SKEW = 2.0  # seconds that clocks may differ
_FENCED = "give the fence to the storage"
DIES = "its lease ends"


def promise(what: str, value: str, limit: str = "") -> Fact:
    """Make a row of what is guaranteed, or of its limit if there is one."""
    return Fact(what, limit or value, well=not limit, promised=True)


def timing(server_time: Callable[[], float | None]) -> Iterator[Fact]:
    """Ask for the server's time: how long a request takes, and how the clocks differ."""
    best, skew = float("inf"), None
    for _ in range(3):
        before, began = time(), monotonic()
        there = server_time()
        took = monotonic() - began
        if took < best:
            best, skew = took, None if there is None else there - (before + took / 2)
    yield Fact("round trip", f"{best * 1000:.2f} ms")
    if skew is None:
        yield Fact("clock", "not compared: leases are durations, and fences are no times")
    else:
        yield Fact(
            "clock", f"{skew:+.1f} s from this machine's", abs(skew) <= _SKEW + best,
            "leases are durations, so locks don't depend on it. But fences are at least the "
            "server's time: those of a server that takes over, with a clock behind, would be lower",
        )  # fmt: skip


def of_redis(info: dict[str, str], settings: dict[str, str]) -> Iterator[Fact]:
    """Say what Redis' ``INFO`` and ``CONFIG`` mean; a setting is missing if it may not be read."""
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "unknown")
    mode = info.get("redis_mode", "standalone")
    yield Fact("server", f"{name} {version}")
    yield Fact(
        "mode", mode, mode != "cluster", "locks need one primary, and no cluster of shards"
    )
    appends = info.get("aof_enabled") == "1"
    yield Fact(
        "appendonly", "yes" if appends else "no", appends,
        "a restart forgets who holds: set appendonly yes",
    )  # fmt: skip
    syncs = settings.get("appendfsync", "unknown")
    yield Fact(
        "appendfsync", syncs, syncs == "always",
        "a crash of the machine may forget the last second: set appendfsync always",
    )  # fmt: skip
    replicas = info.get("connected_slaves", "unknown")
    least = settings.get("min-replicas-to-write", "unknown")
    yield Fact("replicas", f"{replicas}, of which {least} must be there for a write")
    policy = info.get("maxmemory_policy", "noeviction")
    keeps = policy == "noeviction"
    yield Fact(
        "eviction", policy, keeps, "locks may be evicted: set maxmemory-policy noeviction"
    )
    yield promise(
        "exclusion", "one holder at a time, while this primary keeps its data",
        "" if keeps and mode != "cluster" else "an evicted lock has two holders",
    )  # fmt: skip
    yield promise("death", f"a dead holder's lock passes on when {DIES}")
    forgets = "holders are forgotten" if not appends else "the last second may be forgotten"
    yield promise(
        "restart", "holders stay",
        "" if appends and syncs == "always" else f"{forgets}, and two may hold then: {_FENCED}",
    )  # fmt: skip
    yield promise(
        "failover", "there is no replica that could take over",
        "" if replicas == "0" else "a replica that takes over may lack the last writes, and two "
        f"may hold then: {_FENCED}",
    )  # fmt: skip
    yield promise("fence", "grows from holder to holder; at least the server's time")


def of_postgresql(found: dict[str, str], reserve: int) -> Iterator[Fact]:
    """Say what PostgreSQL's settings mean."""
    yield Fact("server", f"PostgreSQL {found['server_version']}")
    yield Fact("pooler", "none between")
    used, most = int(found["used"]), int(found["max_connections"])
    yield Fact(
        "connections", f"{used} of {most}", most - used > reserve,
        "a space takes two, and a few more while it waits: raise max_connections",
    )  # fmt: skip
    syncs = found["fsync"] == "on"
    yield Fact("fsync", found["fsync"], syncs, "a crash of the machine may damage the database")
    yield Fact(
        "commits", f"synchronous_commit {found['synchronous_commit']}; locks end with the server, "
        "so they don't depend on it"
    )  # fmt: skip
    yield Fact("standbys", found["standbys"])
    yield promise("exclusion", "one holder at a time, while its connection stands")
    yield promise(
        "death", "a dead holder's lock passes on when its connection ends: at once; if its machine "
        "has vanished, by keepalives after about the time of a lease"
    )  # fmt: skip
    ends = f"all locks end, and their holders hear of it a moment later: {_FENCED}"
    yield promise("restart", "", ends)
    yield promise("failover", "", ends)
    yield promise("fence", "grows from holder to holder; at least the server's time")


def of_etcd(version: str, members: int, alarms: list[str], *, leads: bool) -> Iterator[Fact]:
    """Say what the state of an etcd means."""
    yield Fact("server", f"etcd {version}")
    few = "a cluster of three goes on while one member is away"
    yield Fact("members", str(members), members >= 3, few)
    yield Fact("leader", "known" if leads else "none", leads, "nothing is acquired without one")
    yield Fact("alarms", ", ".join(alarms) or "none", not alarms, "see: etcdctl alarm list")
    yield Fact("durability", "on disk at a majority of the members before an answer")
    yield promise("exclusion", "one holder at a time, over restarts and failovers")
    yield promise("death", f"a dead holder's lock passes on when {DIES}")
    yield promise("restart", "holders stay")
    alone = "" if members >= 3 else "nothing is acquired while its only majority is away"
    yield promise("failover", "holders stay", alone)
    yield promise("fence", "the create revision: it grows for ever")
