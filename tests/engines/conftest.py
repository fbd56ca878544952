"""What the tests of engines share."""

from __future__ import annotations

import pytest

from histories import Workers


@pytest.fixture
def workers(tmp_path):
    made = []

    def make(url, ttl=5.0, count=3, clocks=()):
        made.append(Workers(url, tmp_path, ttl, count, clocks))
        return made[-1]

    yield make
    for one in made:
        one.close()
