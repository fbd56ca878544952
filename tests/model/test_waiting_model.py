"""No wake is lost, everybody gets the lock in the end and in order; and what fails without what."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import bell
import pytest
import queueing
import waiting
from explorer import by_size, explore, without_a_way
from queueing import EXCLUSION, ORDER, OWN_TICKETS, Queue, first_process_holds, is_help
from waiting import LOST_WAKE, Waiting
from waiting_kernel import CLOSE, LATE_CLOSE, MOVE, NEWS, TOUCH, UNLINK

if TYPE_CHECKING:
    from explorer import Exploration
    from waiting_kernel import State

# ---------------------------------------------------------------------- no wake is lost

# One process waits and the other doesn't.  Everything that there is, and looks by the clock only
# after what was told or was newly watched.
WAIT = waiting.Config(waiters=1, keeps=True)
BY_PROCESS = waiting.Config(waiters=1, witness=False)
# Until it is judged, the process takes what it finds for one of its own locks.
OWN = waiting.Config(waiters=1, keeps=True, collides=True)

# Nothing at all by the clock, and no process is killed: the watching alone.
REMOVALS = replace(
    WAIT,
    kills=False,
    touches=True,
    rechecks=False,
    rechecks_first=False,
    rechecks_busy=False,
    watch_tries=0,
)
THREE_REMOVALS = replace(REMOVALS, processes=3, touches=False)

# The same with deaths, and a kernel that would tell of a close when it is over.
LATE = replace(
    REMOVALS,
    kills=True,
    touches=False,
    close=LATE_CLOSE,
    watch_tries=2,
)

WAITS: dict[str, tuple[waiting.Config, int]] = {
    "one waits": (WAIT, 3_744),
    "one waits, files are touched": (replace(WAIT, touches=True), 3_744),
    "one waits, a foreigner": (replace(WAIT, foreigner=True, keeps=False), 2_678),
    "both wait": (waiting.Config(), 5_653),
    "taken for its own first": (OWN, 3_506),
    "known by their process": (BY_PROCESS, 1_853),
    "known by their process, both wait": (replace(BY_PROCESS, waiters=2), 9_020),
    "one waits, and tries before it reads": (replace(WAIT, tries_unread=True), 3_744),
    "nothing by the clock, tries before it reads": (replace(LATE, tries_unread=True), 11_209),
    "nothing by the clock, no process killed": (REMOVALS, 1_320),
    "nothing by the clock, three": (THREE_REMOVALS, 15_488),
    "nothing by the clock, a late close": (LATE, 11_209),
}
LARGE_WAITS: dict[str, tuple[waiting.Config, int]] = {
    "one waits, a foreigner, kept": (replace(WAIT, foreigner=True), 19_531),
    "both wait, kept": (waiting.Config(keeps=True), 50_523),
    "both wait, kept, tries before it reads": (
        waiting.Config(keeps=True, tries_unread=True),
        50_523,
    ),
    "both wait, a foreigner": (waiting.Config(foreigner=True), 124_485),
    "three, one waits, kept": (replace(WAIT, processes=3), 68_122),
    "three, two wait": (replace(WAIT, processes=3, waiters=2, keeps=False), 139_815),
}


def check_wakes(config: waiting.Config, states: int) -> None:
    found = explore(Waiting(config), limit=5_000_000)
    assert found.violation is None, found.story()
    assert found.states == states


@pytest.mark.parametrize(("config", "states"), by_size(WAITS, most=12_000))
def test_no_wake_is_lost(config: waiting.Config, states: int) -> None:
    check_wakes(config, states)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("config", "states"), LARGE_WAITS.values(), ids=LARGE_WAITS.keys())
def test_no_wake_is_lost_in_larger_searches(config: waiting.Config, states: int) -> None:
    check_wakes(config, states)


# What is taken out, in which model, and after how many steps a wake is lost.
LOSING: dict[str, tuple[waiting.Config, int]] = {
    "a barrier and a second watch": (
        replace(REMOVALS, barrier=False, watches_twice=False),
        9,
    ),
    "a barrier": (replace(REMOVALS, barrier=False), 10),
    "a second watch": (replace(THREE_REMOVALS, watches_twice=False), 14),
    "watching before looking": (replace(LATE, watches_before=False), 11),
    "news of unlinks": (replace(REMOVALS, hears=NEWS - {UNLINK}), 11),
    "news of moves": (replace(REMOVALS, hears=NEWS - {MOVE}), 11),
    "news of closes": (replace(WAIT, hears=NEWS - {CLOSE}), 18),
    "news of late closes": (replace(LATE, hears=NEWS - {LATE_CLOSE}), 11),
    "looking again": (replace(WAIT, rechecks=False), 11),
    "looking again at what is newly watched": (replace(WAIT, rechecks_first=False), 11),
    "looking again at what could not be watched": (
        replace(WAIT, processes=3, kills=False, rechecks_first=False, rechecks_busy=False),
        22,
    ),
    "looking again although it was judged": (replace(OWN, rechecks_judged=False), 18),
    "asking for the witness at last": (replace(WAIT, last_asks=False), 36),
    "asking for the witness at last, taken for its own first": (
        replace(OWN, last_asks=False),
        25,
    ),
    "reading the news after a try": (
        replace(REMOVALS, tries_unread=True, reads_after_try=False),
        18,
    ),
    "judging anew what is newly watched": (replace(LATE, judges_watched=False), 24),
    "noticing that the followed process is gone": (
        replace(BY_PROCESS, rechecks_first=False, follow_fails_loudly=False),
        18,
    ),
}


@pytest.mark.parametrize(("config", "steps"), LOSING.values(), ids=LOSING.keys())
def test_a_wake_is_lost_without(config: waiting.Config, steps: int) -> None:
    found = explore(Waiting(config))
    assert found.violation == LOST_WAKE
    assert len(found.trace()) <= steps, found.story()


# With a look soon after each new watch, most else only makes the wake come sooner.
NOT_NEEDED: dict[str, waiting.Config] = {
    "a barrier, if it looks again": replace(WAIT, barrier=False),
    "a second watch, if it looks again": replace(WAIT, watches_twice=False),
    "judging anew, if it looks again": replace(WAIT, keeps=False, judges_watched=False),
    "news of touches": replace(REMOVALS, hears=NEWS - {TOUCH}),
}


@pytest.mark.parametrize("config", NOT_NEEDED.values(), ids=NOT_NEEDED.keys())
def test_no_wake_is_lost_without(config: waiting.Config) -> None:
    found = explore(Waiting(config))
    assert found.violation is None, found.story()


def test_each_waiter_can_win_without_a_kill() -> None:
    found = explore(Waiting(replace(WAIT, keeps=False)), remember=True)
    stuck = without_a_way(
        found,
        lambda state: state.processes[0].at == waiting.HOLDS,
        passable=lambda step: "is killed" not in step,
    )
    assert not stuck, found.story(stuck[0])


def test_folded_waits_can_do_the_same_as_the_waits_they_stand_for() -> None:
    model = Waiting(replace(WAIT, touches=True, foreigner=True, processes=3))
    chance = random.Random(19)

    def ways_on(state: State) -> set[State]:
        return {model.canonical(after) for _, after in model.successors(state)}

    for _ in range(30):
        state = model.initial()
        for _ in range(60):
            folded = model.canonical(state)
            assert model.violation(folded) == model.violation(state)
            assert ways_on(folded) == ways_on(state)
            state = chance.choice([after for _, after in model.successors(state)])


def test_every_step_of_waiting_is_taken() -> None:
    taken: set[str] = set()
    for config in (replace(WAIT, keeps=False), BY_PROCESS):
        for state in explore(Waiting(config)).parents:
            taken.update(process.at for process in state.processes)
    assert taken >= set(Waiting(WAIT).programs)


# ---------------------------------------------------------------------- the queue

TWO = queueing.Config()
# Each of three comes once, and may be killed and stopped.
ONCE = replace(TWO, processes=3, once=True)
# The same, and P is held when they come, so that all of them can stand in the queue at once.
ALL_STAND = replace(ONCE, held_at_first=True, kills=False, stops=False, leaves=False)

QUEUES: dict[str, tuple[queueing.Config, int]] = {
    "two": (TWO, 31_348),
    "two, no process stopped": (replace(TWO, stops=False), 6_358),
    "three, once": (ONCE, 19_655),
    "two, alone at first": (replace(TWO, stops=False, alone=True), 6_732),
    "three, once, alone at first": (replace(ONCE, alone=True), 22_051),
}
LARGE_QUEUES: dict[str, tuple[queueing.Config, int]] = {
    "three stand, once": (ALL_STAND, 39_884),
    "two, robbed": (replace(TWO, robs=True), 37_304),
    "two, barging": (replace(TWO, barges=True), 36_196),
    "two, the next one is told": (replace(TWO, tells=True, barges=True), 51_536),
    "three stand, once, the next one is told": (
        replace(ALL_STAND, tells=True, barges=True),
        62_652,
    ),
    "two, two dead": (replace(TWO, dead=2), 60_936),
    "three": (replace(TWO, processes=3, kills=False, stops=False, leaves=False), 137_988),
    "three stand, once, giving up": (replace(ALL_STAND, leaves=True), 44_294),
    "three stand, once, killed": (replace(ALL_STAND, kills=True), 56_864),
    "three stand, once, stopped": (replace(ALL_STAND, stops=True), 425_676),
}


def check_queue(config: queueing.Config, states: int) -> None:
    found = explore(Queue(config), limit=5_000_000, remember=True)
    assert found.violation is None, found.story()
    stuck = waits_for_ever(found)
    assert stuck is None, found.story(stuck)
    assert found.states == states


def waits_for_ever(found: Exploration[queueing.State]) -> queueing.State | None:
    """Find a state in which the first process runs and waits, and can't get the lock."""
    stuck = without_a_way(found, first_process_holds, passable=is_help)
    return next((state for state in stuck if queueing.waits_in_vain(state)), None)


@pytest.mark.parametrize(("config", "states"), by_size(QUEUES, most=7_000))
def test_the_queue_keeps_order_and_no_process_waits_for_ever(
    config: queueing.Config, states: int
) -> None:
    check_queue(config, states)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("config", "states"), LARGE_QUEUES.values(), ids=LARGE_QUEUES.keys())
def test_the_queue_keeps_its_promises_in_larger_searches(
    config: queueing.Config, states: int
) -> None:
    check_queue(config, states)


# What is taken out, in which model, and after how many steps a process waits for ever.
STUCK: dict[str, tuple[queueing.Config, int]] = {
    "the removal of dead ones' tickets, and overtaking": (
        replace(TWO, stops=False, removes_dead=False, overtakes=False),
        8,
    ),
    "overtaking": (replace(TWO, kills=False, overtakes=False), 10),
    "giving its ticket the old name back, and joining again": (
        replace(TWO, kills=False, comes_back=False, rejoins=False),
        20,
    ),
    "looking at P by the clock": (replace(ONCE, leaves=False, looks_by_clock=False), 11),
}


@pytest.mark.parametrize(("config", "steps"), STUCK.values(), ids=STUCK.keys())
def test_a_process_waits_for_ever_without(config: queueing.Config, steps: int) -> None:
    found = explore(Queue(config), remember=True)
    assert found.violation is None, found.story()
    stuck = waits_for_ever(found)
    assert stuck is not None
    assert len(found.trace(stuck)) <= steps, found.story(stuck)


# What is taken out, in which model, which property fails, and after how many steps.
UNFAIR: dict[str, tuple[queueing.Config, int]] = {
    "a new look at the queue by the waiter that is woken": (
        replace(ALL_STAND, leaves=True, surveys_on_wake=False),
        24,
    ),
    # One that asked earlier may have joined late.  So fair locks do not use what is told.
    "a new look at the queue by the told waiter that is woken": (
        replace(ALL_STAND, tells=True),
        26,
    ),
    "the flock by which a new ticket and its removal see each other": (
        replace(TWO, stops=False, asks_for_flock=False, asks_again=False, checks_ticket=False),
        24,
    ),
    "making way after a dead holder's file is removed": (
        replace(TWO, tries_in_turn=False),
        13,
    ),
}


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.stress if "woken" in name else ())
        for name, case in UNFAIR.items()
    ],
)
def test_order_fails_without(config: queueing.Config, steps: int) -> None:
    found = explore(Queue(config))
    assert found.violation == ORDER
    assert len(found.trace()) <= steps, found.story()


@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.stress)])
def test_exclusion_is_never_up_to_the_queue(kills: bool) -> None:
    config = replace(
        ONCE,
        kills=kills,
        barges=True,
        removes_dead=False,
        overtakes=False,
        rejoins=False,
        checks_ticket=False,
        surveys_on_wake=False,
        tries_in_turn=False,
        spares_window=False,
        watched=frozenset({EXCLUSION}),
    )
    found = explore(Queue(config))
    assert found.violation is None, found.story()


def test_dead_ones_tickets_are_removed_by_either_of_two_rules() -> None:
    for config in (
        replace(TWO, stops=False, removes_dead=False),
        replace(ONCE, stops=False, removes_dead=False),
        replace(TWO, stops=False, overtakes=False),
    ):
        found = explore(Queue(config), remember=True)
        assert found.violation is None, found.story()
        assert waits_for_ever(found) is None


# ---------------------------------------------------------------------- what is left open


def test_a_ticket_may_be_made_below_one_that_stands_already() -> None:
    # Its owner looked at the queue before the other one came, and was slow.
    found = explore(Queue(replace(TWO, order_from="publishing")))
    assert found.violation == ORDER
    assert len(found.trace()) <= 21, found.story()


def test_a_ticket_may_come_to_life_between_the_last_question_and_its_removal() -> None:
    # One that has asked, is stopped, and removes the ticket when it goes on.  Its owner finds
    # it gone, and makes it anew.
    found = explore(Queue(replace(TWO, spares_window=False)))
    assert found.violation in (ORDER, OWN_TICKETS)
    assert len(found.trace()) <= 30, found.story()


# ---------------------------------------------------------------------- the bell


def test_the_end_of_the_one_before_is_told_to_the_one_that_follows() -> None:
    found = explore(bell.Bell(bell.Config()))
    assert found.violation is None, found.story()


def test_it_is_not_told_to_one_that_asks_before_it_opens() -> None:
    found = explore(bell.Bell(bell.Config(asks_after_opening=False)))
    assert found.violation == bell.SLEEPS_ON
    assert len(found.trace()) <= 6, found.story()
