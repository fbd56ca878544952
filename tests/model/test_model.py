"""The protocol's guarantees, searched for exceptions; and what fails without each mechanism."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from explorer import TooManyStatesError, by_size, can_reach, explore, without_a_way
from protocol import Protocol, find_wedge, one_holds
from protocol_config import (
    EXACT,
    EXCLUSION,
    GUARANTEES,
    LOSS_SHOWS,
    NO_ROBBERY,
    WHOLE_RECORDS,
    WHOLE_REFRESH,
    WINDOW,
    Config,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol_kernel import State

WHOLE = Config()
KEPT = Config(keeps=True, refreshes=False)
KEPT_REFRESHED = Config(keeps=True)
IN_PLACE = Config(whole=False, in_place=True)
MARKLESS = replace(IN_PLACE, marks=False, judges_unreadable=True)
BARE = Config(gives_up_descriptor=True, robs_living=True)
LOST = Config(loses_descriptor=True, refreshes=False)
COPIED = Config(keeps=True, copied=True, refreshes=False, tears=False)
ALL_FORMS = Config(keeps=True, in_place=True)


def by_core(config: Config) -> Config:
    """Let dead holders' files also be judged and removed under one guard, as the core does."""
    return replace(config, core_judges=True)


def robbing(config: Config) -> Config:
    """Let policies take locks from living holders."""
    return replace(config, robs_living=True)


def by_number(config: Config) -> Config:
    """Take the witness away, so that death is proven by the process number."""
    return replace(config, witness=False)


def with_foreigner(config: Config) -> Config:
    """Add a foreigner, and a policy that takes old files that are no records for stale."""
    return replace(config, foreigner=True, judges_unreadable=True)


def coarse(config: Config) -> Config:
    """Make three processes affordable: records are read and written in one go, and judged
    after one reading.  Whatever happens with the closer look can happen with this one."""
    return replace(
        config, processes=3, tears=False, look_checks_path=False, look_reads_twice=False
    )


# What is searched, and how many states it has.  A number that changes says that behaviour
# was gained or lost, which should be on purpose.
SEARCHES: dict[str, tuple[Config, int]] = {
    "whole": (WHOLE, 3_826),
    "whole, death by number": (by_number(WHOLE), 4_246),
    "whole, robbing": (robbing(WHOLE), 8_139),
    "kept": (KEPT, 8_496),
    "kept, robbing": (robbing(KEPT), 12_916),
    "in place": (IN_PLACE, 26_928),
    "in place, death by number": (by_number(IN_PLACE), 30_677),
    "in place, robbing": (robbing(IN_PLACE), 38_642),
    "in place, without marks": (MARKLESS, 14_252),
    "without descriptor, robbing": (BARE, 714),
    "descriptor lost": (LOST, 474),
    "descriptor lost, in place": (replace(LOST, whole=False, in_place=True), 9_691),
    "descriptor lost, robbing": (robbing(LOST), 999),
    "copied": (COPIED, 2_253),
    "all forms, robbing": (robbing(replace(ALL_FORMS, refreshes=False)), 59_280),
    "foreigner, kept": (replace(KEPT, foreigner=True), 54_833),
    "foreigner, in place": (replace(IN_PLACE, foreigner=True, refreshes=False), 20_826),
    "three, whole": (coarse(WHOLE), 20_112),
    "the core, whole, robbing": (by_core(robbing(WHOLE)), 12_307),
    "the core, kept": (by_core(KEPT), 14_240),
    "the core, in place": (by_core(replace(IN_PLACE, refreshes=False)), 8_753),
    "the core, descriptor lost": (by_core(LOST), 905),
    "the core, copied": (by_core(COPIED), 5_089),
}
LARGE_SEARCHES: dict[str, tuple[Config, int]] = {
    "kept, refreshed": (KEPT_REFRESHED, 118_535),
    "foreigner, whole, robbing": (robbing(with_foreigner(WHOLE)), 82_409),
    "three, kept": (coarse(KEPT), 57_477),
    "the core, all forms, robbing": (
        by_core(robbing(replace(ALL_FORMS, refreshes=False))),
        78_178,
    ),
    "the core, kept, refreshed": (by_core(KEPT_REFRESHED), 183_145),
    "the core, foreigner, kept": (by_core(replace(KEPT, foreigner=True)), 101_835),
    "the core, three, whole": (by_core(coarse(WHOLE)), 59_406),
    "the core, three, kept": (by_core(coarse(KEPT)), 280_557),
    "three, in place": (coarse(replace(IN_PLACE, refreshes=False)), 85_854),
    "kept, refreshed, robbing": (robbing(KEPT_REFRESHED), 181_341),
    "all forms, refreshed": (ALL_FORMS, 343_109),
    "foreigner, in place, without marks": (
        with_foreigner(replace(MARKLESS, refreshes=False)),
        37_973,
    ),
    "foreigner, in place, robbing": (
        robbing(with_foreigner(replace(IN_PLACE, refreshes=False))),
        88_074,
    ),
    "foreigner, kept, robbing": (
        robbing(with_foreigner(replace(KEPT, tears=False))),
        95_659,
    ),
    "foreigner, all forms, robbing": (
        robbing(with_foreigner(replace(ALL_FORMS, tears=False, refreshes=False))),
        287_844,
    ),
    "three, whole, robbing": (coarse(robbing(WHOLE)), 100_518),
    "three, kept, robbing": (coarse(robbing(KEPT)), 213_772),
    "three, in place, robbing": (
        coarse(robbing(replace(IN_PLACE, refreshes=False))),
        153_847,
    ),
    "three, in place, refreshed": (coarse(IN_PLACE), 386_210),
    "three, all forms": (coarse(replace(ALL_FORMS, refreshes=False)), 1_244_830),
    "three, foreigner, whole": (coarse(with_foreigner(WHOLE)), 485_487),
    "three, whole, looked at closely": (replace(WHOLE, processes=3), 228_062),
    "three, in place, looked at closely": (
        replace(IN_PLACE, processes=3, refreshes=False),
        687_032,
    ),
}


# Where the lock can always be won without a process being killed, too.
NO_DEATH_NEEDED = (robbing(WHOLE), robbing(KEPT), IN_PLACE, MARKLESS, BARE)


def check_search(config: Config, states: int) -> None:
    found = explore(Protocol(config), remember=config in NO_DEATH_NEEDED)
    assert found.violation is None, found.story()
    wedge = find_wedge(found, config)
    assert wedge is None, found.story(wedge)
    assert found.states == states
    if config in NO_DEATH_NEEDED:
        stuck = without_a_way(found, one_holds, passable=lambda step: "is killed" not in step)
        assert not stuck, found.story(stuck[0])


@pytest.mark.parametrize(("config", "states"), by_size(SEARCHES, most=9_000))
def test_every_guarantee_holds_and_a_newcomer_can_always_win(
    config: Config, states: int
) -> None:
    check_search(config, states)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("config", "states"), LARGE_SEARCHES.values(), ids=LARGE_SEARCHES.keys()
)
def test_every_guarantee_holds_in_larger_searches(config: Config, states: int) -> None:
    check_search(config, states)


# ---------------------------------------------------------------------- what each part is for

# What is taken out, in which model, and after how many steps at most which property fails.
ABLATIONS: dict[str, tuple[Config, dict[str, int]]] = {
    "a guard on removal": (
        replace(WHOLE, removal_guards=False),
        {EXCLUSION: 25, EXACT: 23, NO_ROBBERY: 23, LOSS_SHOWS: 26},
    ),
    "a guard on removal, in place": (
        replace(IN_PLACE, removal_guards=False),
        {EXCLUSION: 23, EXACT: 20, NO_ROBBERY: 17, LOSS_SHOWS: 21},
    ),
    "a path check on removal": (
        replace(WHOLE, removal_checks_path=False),
        {EXCLUSION: 27, EXACT: 25, NO_ROBBERY: 25, LOSS_SHOWS: 28},
    ),
    "the creator's check in place": (
        replace(IN_PLACE, creator_checks=False),
        {EXCLUSION: 24},
    ),
    "a comparison of bytes, death by number": (
        replace(by_number(WHOLE), bytes_compared=False),
        {EXCLUSION: 21, EXACT: 19, NO_ROBBERY: 19},
    ),
    "a comparison of bytes, witness": (
        replace(WHOLE, bytes_compared=False),
        {EXACT: 19},
    ),
    "a comparison of bytes, without marks": (
        replace(by_number(MARKLESS), bytes_compared=False),
        {EXCLUSION: 25, EXACT: 19, NO_ROBBERY: 19},
    ),
    "the path before the bytes": (
        replace(robbing(KEPT), path_before_bytes=False),
        {EXCLUSION: 23, EXACT: 21, NO_ROBBERY: 21},
    ),
    "a comparison of the mark": (
        replace(IN_PLACE, mark_compared=False),
        {EXCLUSION: 25, NO_ROBBERY: 19},
    ),
    "a comparison of ctime": (
        replace(with_foreigner(WHOLE), ctime_compared=False),
        {EXCLUSION: 16, EXACT: 14, NO_ROBBERY: 14},
    ),
    "a token and a second question for the witness": (
        replace(WHOLE, token=False, witness_asked_again=False),
        {EXCLUSION: 20, EXACT: 18, NO_ROBBERY: 18},
    ),
    "a token and a comparison of ctime": (
        replace(robbing(KEPT), token=False, ctime_compared=False),
        {EXCLUSION: 20, EXACT: 18, NO_ROBBERY: 18},
    ),
    "a link that fails if there is something": (
        replace(WHOLE, publishes_by_link=False),
        {EXCLUSION: 4, LOSS_SHOWS: 7},
    ),
    "a check at release": (
        replace(robbing(WHOLE), release_checks=False),
        {EXCLUSION: 21, LOSS_SHOWS: 19},
    ),
    "a guard at release": (
        replace(robbing(WHOLE), release_guards=False),
        {EXCLUSION: 21, EXACT: 19, NO_ROBBERY: 19, LOSS_SHOWS: 19},
    ),
    "a check at refresh": (
        replace(robbing(WHOLE), refresh_checks=False),
        {LOSS_SHOWS: 17},
    ),
    "a guard at refresh": (
        replace(robbing(WHOLE), refresh_guards=False),
        {EXCLUSION: 19, EXACT: 17, NO_ROBBERY: 17, LOSS_SHOWS: 17},
    ),
    "a look at the token by a holder that has no descriptor": (
        replace(BARE, bare_checks_token=False),
        {EXCLUSION: 20, LOSS_SHOWS: 18},
    ),
    "the process as a second proof of death": (
        replace(LOST, two_proofs=False),
        {EXCLUSION: 15, NO_ROBBERY: 13},
    ),
    "a look at the token by a holder whose descriptor was lost": (
        replace(robbing(LOST), bare_checks_token=False),
        {EXCLUSION: 21, LOSS_SHOWS: 19},
    ),
    "the path as the proof of a link": (
        replace(COPIED, link_proven_by_path=False),
        {EXCLUSION: 4},
    ),
    "a path check between two readings": (
        replace(KEPT, look_checks_path=False),
        {WHOLE_RECORDS: 12},
    ),
    "a guard, in the core": (
        replace(by_core(WHOLE), core_guards=False),
        {EXCLUSION: 21, EXACT: 19, NO_ROBBERY: 19, LOSS_SHOWS: 22},
    ),
    "a path check, in the core": (
        replace(by_core(KEPT), core_checks_path=False),
        {EXCLUSION: 17, EXACT: 15, NO_ROBBERY: 15, LOSS_SHOWS: 20},
    ),
    "the process as a second proof of death, in the core": (
        replace(by_core(LOST), two_proofs=False),
        {EXCLUSION: 13, NO_ROBBERY: 11},
    ),
    "a second reading": (
        replace(KEPT, look_reads_twice=False),
        {WHOLE_RECORDS: 14},
    ),
}


@pytest.mark.parametrize(
    ("config", "prop", "steps"),
    [
        pytest.param(config, prop, steps, id=f"{name} - {prop}")
        for name, (config, fails) in ABLATIONS.items()
        for prop, steps in fails.items()
    ],
)
def test_a_guarantee_fails_without(config: Config, prop: str, steps: int) -> None:
    found = explore(Protocol(replace(config, watched=frozenset({prop}))))
    assert found.violation == prop
    assert len(found.trace()) <= steps, found.story()


def test_a_lock_stays_held_by_who_let_go_of_it_without_a_second_look_at_the_path() -> None:
    # No process needs to be killed for that.
    config = replace(COPIED, release_looks_again=False, crashes=False)
    found = explore(Protocol(config))
    assert found.violation is None
    wedge = find_wedge(found, config)
    assert wedge is not None
    assert "nothing is done" in " ".join(step.label for step in found.trace(wedge))


WEDGES: dict[str, tuple[Config, int]] = {
    "no proof of death": (replace(WHOLE, death_provable=False), 3),
    "no proof of death, in place": (replace(IN_PLACE, death_provable=False), 7),
    "unfinished files not removable": (replace(IN_PLACE, unfinished_removable=False), 2),
    "no marks and no grace for what is no record": (
        replace(MARKLESS, judges_unreadable=False),
        2,
    ),
}


@pytest.mark.parametrize(("config", "steps"), WEDGES.values(), ids=WEDGES.keys())
def test_a_killed_process_blocks_everybody_with(config: Config, steps: int) -> None:
    found = explore(Protocol(config))
    assert found.violation is None
    wedge = find_wedge(found, config)
    assert wedge is not None
    story = found.trace(wedge)
    assert len(story) <= steps
    assert story[-1].label.endswith("is killed")


# ---------------------------------------------------------------------- what is not needed where

NOT_NEEDED: dict[str, Config] = {
    # A kept claim's inode comes back only by its living owner, who was not proven dead.
    "bytes before path, if no process robs the living": replace(KEPT, path_before_bytes=False),
    # Only a policy takes a lock away from its living holder.
    "a check at release, if no process robs the living": replace(KEPT, release_checks=False),
    "a guard at release, if no process robs the living": replace(KEPT, release_guards=False),
    "a guard at refresh, if no process robs the living": replace(WHOLE, refresh_guards=False),
    # The token tells more than the witness could.
    "asking for the witness again, if records have tokens": replace(
        WHOLE, witness_asked_again=False
    ),
    "asking for the witness again, if records in all forms have tokens": replace(
        ALL_FORMS, refreshes=False, witness_asked_again=False
    ),
    # Only files without a token can be taken for each other.
    "comparing ctime, among cooperators with tokens": replace(
        robbing(KEPT), ctime_compared=False
    ),
    # Without a mark, a file is judged by its bytes alone, and they are compared.
    "comparing marks, if there are none": replace(MARKLESS, mark_compared=False),
    # Only a dead holder's file is taken for another's then: a living one's witness shows.
    "comparing bytes, for exclusion where there is a witness": replace(
        WHOLE, bytes_compared=False, watched=frozenset({EXCLUSION, NO_ROBBERY})
    ),
    # It writes to its own file, which no process sees any more.
    "a check at refresh, for exclusion": replace(
        robbing(WHOLE), refresh_checks=False, watched=frozenset({EXCLUSION})
    ),
    # What a careless look sees is compared again under the guard before anything is done.
    "a close look, for anything but whole records": replace(
        KEPT,
        look_checks_path=False,
        look_reads_twice=False,
        watched=GUARANTEES - {WHOLE_RECORDS},
    ),
}


LARGE = (
    "asking for the witness again, if records in all forms have tokens",
    "comparing ctime, among cooperators with tokens",
)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=pytest.mark.stress if name in LARGE else ())
        for name, config in NOT_NEEDED.items()
    ],
)
def test_nothing_fails_without(config: Config) -> None:
    found = explore(Protocol(config))
    assert found.violation is None, found.story()
    assert find_wedge(found, config) is None


# ---------------------------------------------------------------------- what is left open


def test_a_foreigner_can_lose_a_new_file_between_check_and_unlink() -> None:
    found = explore(Protocol(replace(with_foreigner(WHOLE), spares_window=False)))
    assert found.violation == WINDOW
    labels = [step.label for step in found.trace()]
    assert labels[-3:-1] == ["foreigner: unlink P", "foreigner: create P as file 1"]


def test_a_look_may_see_a_refresh_half_written() -> None:
    # It does no harm: what is removed is compared again under the guard, which the refresh
    # holds, and SEARCHES shows that nothing else fails.
    found = explore(Protocol(replace(WHOLE, watched=GUARANTEES | {WHOLE_REFRESH})))
    assert found.violation == WHOLE_REFRESH
    assert len(found.trace()) <= 11


# ---------------------------------------------------------------------- the model itself


@pytest.mark.parametrize(
    "config",
    [
        robbing(KEPT_REFRESHED),
        IN_PLACE,
        BARE,
        robbing(with_foreigner(replace(ALL_FORMS, processes=3))),
        replace(WHOLE, token=False, processes=3),
    ],
    ids=["kept", "in place", "without descriptor", "all", "without tokens"],
)
def test_folded_states_can_do_the_same_as_the_states_they_stand_for(config: Config) -> None:
    model = Protocol(config)
    chance = random.Random(19)

    def ways_on(state: State) -> set[State]:
        # A step that changes nothing but what is forgotten leads nowhere.
        ends = {model.canonical(after) for _, after in model.successors(state)}
        return ends - {model.canonical(state)}

    for _ in range(20):
        state = model.initial()
        for _ in range(60):
            folded = model.canonical(state)
            assert model.canonical(folded) == folded
            assert model.violation(folded) == model.violation(state)
            assert ways_on(folded) == ways_on(state)
            state = chance.choice([after for _, after in model.successors(state)])


def test_every_step_of_the_programs_is_taken() -> None:
    model = Protocol(WHOLE)
    taken: set[str] = set()
    # Of records that are being written the core reads those without a witness only.
    core = by_core(replace(LOST, refreshes=True))
    for config in (WHOLE, core, KEPT, replace(IN_PLACE, refreshes=False), BARE):
        for state in explore(Protocol(config)).parents:
            taken.update(process.at for process in state.processes)
    assert taken == set(model.programs)


class Counter:
    """Two counters that may be raised up to a limit and are not told apart."""

    def __init__(self, limit: int, forbidden: tuple[int, int] | None = None) -> None:
        self.limit = limit
        self.forbidden = forbidden

    def initial(self) -> tuple[int, int]:
        return (0, 0)

    def successors(self, state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        left, right = state
        if left < self.limit:
            yield "left", (left + 1, right)
        if right < self.limit:
            yield "right", (left, right + 1)

    def canonical(self, state: tuple[int, int]) -> tuple[int, int]:
        return (min(state), max(state))

    def violation(self, state: tuple[int, int]) -> str | None:
        return "forbidden" if state == self.forbidden else None


def test_the_search_visits_one_state_of_each_kind() -> None:
    found = explore(Counter(3))
    assert found.states == 10
    assert found.depth == 6
    assert found.violation is None
    assert found.trace() == []


def test_the_search_finds_a_shortest_way_and_tells_it_with_lasting_names() -> None:
    found = explore(Counter(3, forbidden=(1, 2)))
    assert found.violation == "forbidden"
    assert [step.label for step in found.trace()] in (
        ["left", "left", "right"],
        ["left", "right", "left"],
        ["left", "right", "right"],
    )
    assert found.story().endswith("breaks: forbidden")


def test_the_search_gives_up_rather_than_prove_nothing() -> None:
    with pytest.raises(TooManyStatesError):
        explore(Counter(100), limit=50)
    with pytest.raises(TooManyStatesError):
        can_reach(Counter(100), (0, 0), lambda _: False, limit=50)


def test_ways_are_found_forwards_and_backwards() -> None:
    model = Counter(3)
    assert can_reach(model, (0, 0), lambda state: state == (3, 3))
    assert not can_reach(model, (2, 2), lambda state: state == (1, 1))
    for remember in (False, True):
        found = explore(model, remember=remember)
        assert without_a_way(found, lambda state: state == (0, 3)) == [
            state for state in found.parents if state[0] > 0
        ]
        assert without_a_way(
            found, lambda state: state == (1, 1), passable=lambda _: False
        ) == [state for state in found.parents if state != (1, 1)]
    with pytest.raises(ValueError, match="stopped early"):
        without_a_way(explore(Counter(3, forbidden=(0, 1))), lambda _: True)
