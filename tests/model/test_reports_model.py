"""What the model of a set's reports shows: none is lost, and each mechanism has a reason."""

from __future__ import annotations

import pytest
from explorer import by_size, explore
from reports import CLOSED, GONE, LOST_REPORT, OVER, OVERFLOW, Config, Reports

HEARS = frozenset({GONE, CLOSED, OVERFLOW, OVER})

SEARCHES: dict[str, tuple[Config, int]] = {
    "no process killed": (Config(kills=0), 31_209),
    "no process killed, told after": (Config(kills=0, tells_before=False), 29_308),
    "no process killed, interrupted": (Config(kills=0, interrupts=True, room=1), 20_244),
}
LARGE: dict[str, tuple[Config, int]] = {
    "no process killed, moved": (Config(kills=0, moves=True, room=1), 45_364),
    "one killed": (Config(room=1), 404_415),
    "one killed, told after": (Config(room=1, tells_before=False), 347_922),
    "its number is known": (Config(room=1, knows=True, releases=False), 410_355),
}


def check(config: Config, states: int) -> None:
    found = explore(Reports(config))
    assert found.violation is None, found.story()
    assert found.states == states


@pytest.mark.parametrize(("config", "states"), by_size(SEARCHES, most=30_000))
def test_no_report_is_lost(config: Config, states: int) -> None:
    check(config, states)


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("config", "states"), LARGE.values(), ids=LARGE.keys())
def test_no_report_is_lost_in_larger_searches(config: Config, states: int) -> None:
    check(config, states)


# What is taken out, in which model, and after how many steps a report is lost.
LOST: dict[str, tuple[Config, int]] = {
    "looking when it begins": (
        Config(kills=0, tells_before=False, looks=False, looks_twice=False), 9
    ),
    "watching before looking": (
        Config(kills=0, tells_before=False, watches_first=False, looks_twice=False), 9
    ),
    "looking once more": (Config(looks_twice=False), 9),
    "reports of names that go": (Config(hears=HEARS - {GONE}, kills=0, tells_before=False), 11),
    "reports of closes": (Config(hears=HEARS - {CLOSED}, room=1), 12),
    "the word that reports were lost": (Config(hears=HEARS - {OVERFLOW}, kills=0, room=1), 11),
    "the word that the watch is over": (Config(hears=HEARS - {OVER}, kills=0, moves=True), 9),
    "asking anew for a file's number": (Config(knows=True, asks_anew=False), 10),
    "trying again what was reported": (Config(checks_again=False, kills=0), 10),
    "noting an interrupt": (Config(notes_interrupts=False, interrupts=True, kills=0), 11),
    "judging all holders anew": (
        Config(judges_anew=False, room=1, knows=True, interrupts=True), 9
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "steps"), LOST.values(), ids=LOST.keys())
def test_a_report_is_lost_without(config: Config, steps: int) -> None:
    found = explore(Reports(config))
    assert found.violation == LOST_REPORT
    assert len(found.trace()) <= steps, found.story()
