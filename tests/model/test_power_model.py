"""The boot mark, in all orders in which things can come to the disk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explorer import explore

from power import NO_ROBBERY, NO_WEDGE, USERS, Config, Power

SAFE = Config()
# What another program empties blocks for ever there.
FULL = Config(marks=False, ordered=False, syncs=True, empties=False, cuts=1)


@pytest.mark.parametrize(
    ("config", "states"),
    [
        pytest.param(SAFE, 14_262, id="the mark, where metadata is ordered"),
        pytest.param(
            replace(SAFE, witnessed=False),
            14_262,
            id="the same without a witness",
            marks=pytest.mark.stress,
        ),
        pytest.param(FULL, 18_072, id="fsync, where it is not"),
        pytest.param(replace(FULL, marks=True), 21_784, id="both", marks=pytest.mark.stress),
    ],
)
def test_no_cut_leaves_a_lock_that_blocks_and_no_holder_is_robbed(config, states):
    found = explore(Power(config))
    assert found.violation is None, found.story()
    assert found.states == states


@pytest.mark.parametrize(
    ("config", "broken", "steps"),
    [
        pytest.param(replace(SAFE, marks=False), NO_WEDGE, 5, id="mark"),
        pytest.param(replace(SAFE, marks_first=False), NO_WEDGE, 5, id="mark before the link"),
        pytest.param(replace(SAFE, ordered=False), NO_WEDGE, 5, id="ordered metadata"),
        pytest.param(replace(FULL, syncs=False), NO_WEDGE, 5, id="fsync"),
        pytest.param(replace(SAFE, sealed=False), USERS, 12, id="seal"),
        pytest.param(replace(SAFE, content_respected=False), USERS, 9, id="look at content"),
        pytest.param(
            replace(SAFE, boot_compared=False, times_compared=False, witnessed=False),
            NO_ROBBERY, 5, id="boot and times",
        ),
        pytest.param(
            replace(SAFE, times_compared=False, witnessed=False), NO_ROBBERY, 5, id="times"
        ),
    ],
)  # fmt: skip
def test_a_promise_breaks_without(config, broken, steps):
    found = explore(Power(config))
    assert found.violation == broken, found.story()
    assert len(found.trace()) <= steps, found.story()


def test_the_times_and_the_boot_are_each_enough_where_clocks_are_right():
    found = explore(Power(replace(SAFE, boot_compared=False, witnessed=False, cuts=1)))
    assert found.violation is None, found.story()
