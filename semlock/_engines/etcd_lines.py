"""What etcd stores of lines: how keys are named and read, and looking at them."""

from __future__ import annotations

from base64 import b64decode
from contextlib import suppress
from time import monotonic
from typing import NamedTuple
from urllib.parse import quote, unquote

from semlock._engines import facts
from semlock._engines.engine import Entry, Fact
from semlock._engines.etcd_http import Gateway, NotFound
from semlock._engines.etcd_stream import decoded, encoded

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._engines.address import Address

_PAGE = 1000  # keys in one answer


class Key(NamedTuple):
    """One entry as etcd stores it."""

    number: int
    key: str
    room: int
    session: str
    lease: str
    record: bytes


def read_key(kv: dict[str, Any]) -> Key:
    """Read a key and its value."""
    head, _, record = b64decode(kv.get("value", "")).partition(b"\n")
    room, _, session = head.decode("ascii", "replace").partition(" ")
    return Key(
        int(kv["create_revision"]), decoded(kv["key"]), int(room) if room.isdigit() else 1, session,
        str(kv.get("lease", "0")), record,
    )  # fmt: skip


def token_of(key: str) -> str:
    """Give the token of an entry's key."""
    return key.rpartition("/")[2]


class Lines:
    """The part of an ``Engine`` that looks at lines, whichever space has made them."""

    def __init__(self, address: Address, ttl: float) -> None:
        self.gateway = Gateway(address, ttl)
        self.prefix = address.prefix

    def bounds(self, name: str) -> tuple[str, str]:
        """Say between which keys a line is."""
        start = f"{self.prefix}/{quote(name, safe='')}"
        return start + "/", start + "0"  # the character after /

    def key(self, name: str, token: str) -> str:
        """Give the key of an entry."""
        return self.bounds(name)[0] + token

    def line(self, name: str, *, within: float) -> list[Entry]:
        until = monotonic() + within
        start, end = self.bounds(name)
        fields = {"key": encoded(start), "range_end": encoded(end)}
        answer = self.gateway.call("kv/range", fields, within)
        keys = sorted(read_key(kv) for kv in answer.get("kvs", ()))
        lefts: dict[str, float] = {}
        found = []
        least = 2**63
        for place, key in enumerate(keys, 1):
            least = min(least, key.room)
            if key.lease not in lefts:
                lefts[key.lease] = self._left(key.lease, until)
            entry = Entry(
                token_of(key.key),
                key.number,
                key.room,
                key.record,
                place <= least,
                lefts[key.lease],
            )
            found.append(entry)
        return found

    def _left(self, lease: str, until: float) -> float:
        try:
            answer = self.gateway.call("lease/timetolive", {"ID": lease}, until - monotonic())
        except NotFound:
            return 0.0
        return max(0.0, float(answer.get("TTL", 0)))

    def names(self, *, within: float) -> list[str]:
        until = monotonic() + within
        start, end = f"{self.prefix}/", f"{self.prefix}0"
        found: dict[str, None] = {}
        while True:
            fields = {
                "key": encoded(start), "range_end": encoded(end), "keys_only": True,
                "limit": str(_PAGE),
            }  # fmt: skip
            answer = self.gateway.call("kv/range", fields, until - monotonic())
            keys = [decoded(kv["key"]) for kv in answer.get("kvs", ())]
            for key in keys:
                if name := key[len(self.prefix) + 1 :].rpartition("/")[0].partition("/")[0]:
                    found[unquote(name)] = None
            if not answer.get("more"):
                return list(found)
            start = keys[-1] + "\0"

    def remove(self, name: str, token: str, *, within: float) -> bool:
        """Take out an entry of any space by force, and tell that space."""
        until = monotonic() + within
        key = self.key(name, token)
        answer = self.gateway.call("kv/range", {"key": encoded(key)}, until - monotonic())
        if not answer.get("kvs"):
            return False
        found = read_key(answer["kvs"][0])
        notice = {
            "key": encoded(f"{self.prefix}//{found.session}/{token}"),
            "lease": found.lease,
        }
        operations = [{"request_delete_range": {"key": encoded(key)}}, {"request_put": notice}]
        with suppress(NotFound):  # its lease has just ended, and with it the entry
            self.gateway.call("kv/txn", {"success": operations}, until - monotonic())
        return True

    def facts(self, *, within: float) -> list[Fact]:
        until = monotonic() + within

        def ask(path: str) -> dict[str, Any]:
            return self.gateway.call(path, {}, until - monotonic())

        status = ask("maintenance/status")
        count = len(ask("cluster/member/list").get("members", []))
        alarms = [
            str(alarm.get("alarm")) for alarm in ask("maintenance/alarm").get("alarms", [])
        ]
        leads = bool(int(status.get("leader", 0)))

        def time() -> None:
            ask("maintenance/status")

        return [
            *facts.of_etcd(str(status.get("version")), count, alarms, leads=leads),
            *facts.timing(time),
        ]
