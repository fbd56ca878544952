"""Breadth-first search over the states of a model, with counterexamples that can be read.

A model says where it begins, what can happen next, and whether a state breaks a property.
The search visits every state that can be reached and stops at the first one that breaks
something.  Because it goes breadth first, the way to that state is a shortest one.

States that differ only in names (which process, which inode number, which token) behave
alike.  A model folds them together with ``canonical``, and the search visits one of each
family.  Names change from step to step by that, so a way through the folded states could not
be read: ``Exploration.trace`` walks it again with the names that a real run would have.
"""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from _pytest.mark import ParameterSet

StateT = TypeVar("StateT", bound="Hashable")


class Model(Protocol[StateT]):
    """What the search needs to know of a model."""

    def initial(self) -> StateT:
        """Give the state in which everything begins."""

    def successors(self, state: StateT) -> Iterable[tuple[str, StateT]]:
        """List what can happen next: a label for people, and the state after it."""

    def canonical(self, state: StateT) -> StateT:
        """Give the one state that stands for all that differ from this one in names only.

        The successors of two states with the same canonical state must have the same
        canonical states, or the folding would hide behaviour.
        """

    def violation(self, state: StateT) -> str | None:
        """Name the property that this state breaks, if it breaks one."""


_SAME = object()


def quickly_replaced(kind: type[StateT]) -> type[StateT]:
    """Give a NamedTuple another ``_replace``, in which a search spends a third of the time.

    Its own goes over all names each time.
    """
    names = kind._fields  # type: ignore[attr-defined]
    fields = ", ".join(f"{name}=SAME" for name in names)
    values = ", ".join(f"self[{i}] if {n} is SAME else {n}" for i, n in enumerate(names))
    made: dict[str, object] = {"SAME": _SAME, "NEW": tuple.__new__, "KIND": kind}
    exec(f"def _replace(self, *, {fields}):\n    return NEW(KIND, ({values},))", made)
    kind._replace = made["_replace"]  # type: ignore[attr-defined]
    return kind


def by_size(searches: dict[str, tuple[object, int]], *, most: int) -> list[ParameterSet]:
    """List searches as parameters of a test: those of more states than that are for stress."""
    return [
        pytest.param(*search, id=name, marks=pytest.mark.stress if search[1] > most else ())
        for name, search in searches.items()
    ]


class TooManyStatesError(Exception):
    """The search met more states than it was allowed to; its answer would prove nothing."""


@dataclass(frozen=True)
class Step(Generic[StateT]):
    """One step of a trace: what happened, and the state that it led to."""

    label: str
    state: StateT


@dataclass
class Exploration(Generic[StateT]):
    """What a search found.

    ``parents``    every state that was reached, in the order of the search, and the state
                   that it was first reached from
    ``steps``      how many steps were taken, those to known states too
    ``depth``      the length of the longest of the shortest ways to a state
    ``violation``  the name of the broken property, or ``None`` if all states were visited
    ``broken``     the state that broke it
    ``edges``      each step to a folded state, by its label, where they are to be remembered
    """

    model: Model[StateT]
    parents: dict[StateT, StateT | None] = field(default_factory=dict)
    steps: int = 0
    depth: int = 0
    violation: str | None = None
    broken: StateT | None = None
    edges: dict[StateT, list[tuple[str, StateT]]] | None = None

    @property
    def states(self) -> int:
        """Count the states that were reached."""
        return len(self.parents)

    def trace(self, end: StateT | None = None) -> list[Step[StateT]]:
        """Walk a shortest way to a state, by default the broken one, with lasting names."""
        target = self.broken if end is None else end
        if target is None:
            return []
        way = [target]
        while (before := self.parents[way[-1]]) is not None:
            way.append(before)
        way.reverse()
        now = self.model.initial()
        steps = []
        for folded in way[1:]:
            # One of the unfolded successors must fold to the next state: that is what
            # ``canonical`` promises.
            label, now = next(
                (label, state)
                for label, state in self.model.successors(now)
                if self.model.canonical(state) == folded
            )
            steps.append(Step(label, now))
        return steps

    def story(self, end: StateT | None = None) -> str:
        """Tell the way to a state in numbered lines."""
        lines = [f"{n:3}. {step.label}" for n, step in enumerate(self.trace(end), 1)]
        return "\n".join([*lines, f"     breaks: {self.violation}"] if end is None else lines)


def explore(
    model: Model[StateT], *, limit: int = 2_000_000, remember: bool = False
) -> Exploration[StateT]:
    """Visit every state that can be reached, or stop at the first that breaks a property.

    ``remember`` is for those who go back over the steps, as ``without_a_way`` does: to make
    them again would take as long as the search.
    """
    # States hold no cycles, so looking for some again and again in all of them is lost time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _explore(model, limit, remember=remember)
    finally:
        if was_enabled:
            gc.enable()


def _explore(model: Model[StateT], limit: int, *, remember: bool) -> Exploration[StateT]:
    start = model.canonical(model.initial())
    found: Exploration[StateT] = Exploration(model, parents={start: None})
    parents = found.parents
    edges: dict[StateT, list[tuple[str, StateT]]] = {}
    successors, canonical, violation = model.successors, model.canonical, model.violation
    layer = [start]
    while layer:
        following = []
        met: dict[StateT, StateT] = {}
        for state in layer:
            ways: list[tuple[str, StateT]] = []
            for label, after in successors(state):
                found.steps += 1
                # Folding is what takes the time.  Two processes' steps in either order end
                # in the same state, in the same layer, so that half of it can be spared.
                folded = met.get(after)
                if folded is None:
                    folded = met[after] = after if after in parents else canonical(after)
                    if folded not in parents:
                        parents[folded] = state
                        following.append(folded)
                        broken = violation(folded)
                        if broken is not None:
                            found.depth += 1
                            found.violation, found.broken = broken, folded
                            return found
                if remember:
                    ways.append((label, folded))
            if remember:
                edges[state] = ways
            if len(parents) > limit:
                raise TooManyStatesError(f"more than {limit} states")
        found.depth += bool(following)
        layer = following
    if remember:
        found.edges = edges
    return found


def can_reach(
    model: Model[StateT], start: StateT, goal: Callable[[StateT], bool], *, limit: int = 10_000
) -> bool:
    """Tell whether some way leads from one state to one that is wanted."""
    first = model.canonical(start)
    if goal(first):
        return True
    seen = {first}
    waiting = deque([first])
    while waiting:
        for _, after in model.successors(waiting.popleft()):
            folded = model.canonical(after)
            if folded in seen:
                continue
            if goal(folded):
                return True
            seen.add(folded)
            waiting.append(folded)
        if len(seen) > limit:
            raise TooManyStatesError(f"more than {limit} states")
    return False


def without_a_way(
    found: Exploration[StateT],
    goal: Callable[[StateT], bool],
    *,
    passable: Callable[[str], bool] = lambda _: True,
) -> list[StateT]:
    """List the states from which no way leads to one that is wanted, in the search's order.

    ``passable`` says by its label which steps such a way may take.  This goes backwards from
    the wanted states over all steps at once; where the search hasn't remembered those, it
    costs about as much as the search did.
    """
    if found.violation is not None:
        raise ValueError("the search stopped early, so it doesn't know all ways")
    model = found.model
    sources: dict[StateT, list[StateT]] = {state: [] for state in found.parents}
    for state in found.parents:
        if found.edges is not None:
            ways = found.edges[state]
        else:
            ways = [(label, model.canonical(after)) for label, after in model.successors(state)]
        for label, folded in ways:
            if passable(label):
                sources[folded].append(state)
    reaching = {state for state in found.parents if goal(state)}
    waiting = deque(reaching)
    while waiting:
        for state in sources[waiting.popleft()]:
            if state not in reaching:
                reaching.add(state)
                waiting.append(state)
    return [state for state in found.parents if state not in reaching]
