"""What the tests of engines share."""

from __future__ import annotations

import uuid

import pytest

import semlock
from engine_urls import url_of
from histories import Workers
from memory_engine import Server, space_on
from spacelib import TTL


@pytest.fixture(params=["memory", "redis", "postgresql", "directory"])
def pair(request):
    """Two clients of one engine."""
    if request.param == "memory":
        server = Server()
        spaces = space_on(server, TTL), space_on(server, TTL)
    else:
        if request.param == "directory":
            url = request.getfixturevalue("tmp_path").as_uri()
        else:
            url = url_of(request.getfixturevalue(f"{request.param}_server"))
        prefix = uuid.uuid4().hex
        spaces = tuple(semlock.connect(url, prefix=prefix, ttl=TTL) for _ in range(2))
    yield spaces
    for space in spaces:
        space.close()


@pytest.fixture
def space(pair):
    return pair[0]


@pytest.fixture
def memory():
    """A server in memory, and a client of it."""
    server = Server()
    with space_on(server, TTL) as space:
        yield server, space


@pytest.fixture
def workers(tmp_path):
    made = []

    def make(url, ttl=5.0, count=3, clocks=()):
        made.append(Workers(url, tmp_path, ttl, count, clocks))
        return made[-1]

    yield make
    for one in made:
        one.close()
