"""Task locks as another program writes them, and as the tests of their rules read them."""

import json
from pathlib import Path

from semlock.task import TaskLock

T0 = 1_761_229_800_000  # 2025-10-23T14:30:00.000Z, in milliseconds


ISO = "2025-10-23T14:30:00.000Z"


SETUP = "from semlock import task; from semlock.task import TaskLock"


def record(**members):
    return json.dumps(
        {"owner": "them", "since": ISO, "ttl": 3600, **members}, indent=2
    ).encode()


def foreign(path, **members):
    Path(path).write_bytes(record(**members))


def at(milliseconds):
    return lambda: milliseconds / 1000


def lines(path):
    text = Path(path).with_name(".lock_audit.log").read_text()
    return [json.loads(line) for line in text.splitlines()]


def quiet(path, owner="me", **options):
    return TaskLock(path, owner, audit=False, **options)
