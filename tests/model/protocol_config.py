"""What the protocol's model promises, and the switches that say what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from protocol_kernel import State

# The properties, by the names under which their failures are reported.
EXCLUSION: Final = "exclusion"
EXACT: Final = "exact removal"
NO_ROBBERY: Final = "no robbery"
WHOLE_RECORDS: Final = "whole records"
WHOLE_REFRESH: Final = "whole refresh"
LOSS_SHOWS: Final = "loss shows"
WINDOW: Final = "foreigner's window"

GUARANTEES: Final = frozenset({EXCLUSION, EXACT, NO_ROBBERY, WHOLE_RECORDS, LOSS_SHOWS, WINDOW})

# Why a file may be removed.
DEATH: Final = "death"  # its holder is proven to be dead
ABANDONED: Final = "unfinished"  # it carries the mark, so that no process believes to hold it
GRACE: Final = "grace"  # it is no record, and nothing has changed about it for a while
AGE: Final = (
    "age"  # a policy (TTL, force) takes it from the process that holds it, alive or not
)


@dataclass(frozen=True)
class Config:
    """What there is in a model: how large it is, who takes part, which mechanisms work."""

    processes: int = 2

    # How locks are taken, and what happens to them.
    whole: bool = True  # a fresh file gets its name when it is finished
    keeps: bool = False  # the file of a released lock may be kept and used again
    in_place: bool = False  # a file is created at the path and written there
    marks: bool = True  # the filesystem can say of a file that it is unfinished
    gives_up_descriptor: bool = False  # holders close their file, and keep its token
    loses_descriptor: bool = False  # the program closes it, or executes another one
    copied: bool = False  # the tree is copied by links: counts rise, private names are taken
    refreshes: bool = True
    core_judges: bool = False  # the core removes a dead holder's file where it judges it
    tears: bool = True  # the two halves of a record are written and read one by one
    crashes: bool = True
    foreigner: bool = False
    spares_window: bool = True  # the foreigner leaves no file between check and unlink

    # What counts as stale.
    witness: bool = True  # death is proven by the witness; else by the process number
    death_provable: bool = True
    unfinished_removable: bool = True
    judges_unreadable: bool = False
    robs_living: bool = False

    # The mechanisms, each of which can be taken out.
    two_proofs: bool = True  # the witness is free, and the process has ended
    link_proven_by_path: bool = True  # else by the link count
    release_looks_again: bool = True  # after a rename that said that it was done
    publishes_by_link: bool = True  # else by a rename, over whatever is there
    token: bool = True  # else two records of one process look the same
    removal_guards: bool = True
    removal_checks_path: bool = True
    path_before_bytes: bool = True
    bytes_compared: bool = True
    mark_compared: bool = True
    ctime_compared: bool = True
    witness_asked_again: bool = True
    core_guards: bool = True
    core_checks_path: bool = True
    creator_checks: bool = True
    look_checks_path: bool = True
    look_reads_twice: bool = True
    release_guards: bool = True
    release_checks: bool = True
    refresh_guards: bool = True
    refresh_checks: bool = True
    bare_checks_token: bool = True

    watched: frozenset[str] = GUARANTEES

    @property
    def asks_process(self) -> bool:
        """Whether death is proven by the process: a free witness may not mean death, or there
        is none to ask.  With a process its witness goes, so the process is the stronger proof.
        """
        return (
            not self.witness
            or self.gives_up_descriptor
            or (self.loses_descriptor and self.two_proofs)
        )

    def broken(self, state: State, prop: str) -> State:
        """Note that the last step broke a property, if it is one of those that are watched."""
        return state._replace(broken=prop) if prop in self.watched else state
