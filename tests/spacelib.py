"""How long leases of the tests are, whose engines wait for them, and how they get lost."""

from __future__ import annotations

import time

import pytest

import semlock

TTL = 1.0


def stress_but(first, *others):
    """Choose one engine by default, and the others in the storms: each waits for its leases."""
    return [first, *(pytest.param(name, marks=pytest.mark.stress) for name in others)]


# What only the leases of the client do is the same on all engines.
on_one_engine = pytest.mark.parametrize(
    "pair", stress_but("memory", "redis", "postgresql", "directory"), indirect=True
)


def stop_renewing(space) -> None:
    """Have a client's renewals fail, as one that is cut off."""

    def away(*_, **__):
        time.sleep(0.01)
        raise semlock._engines.engine.Away("cut off")

    space.client.engine.renew = away
