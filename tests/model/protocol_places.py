"""The places in the programs of the protocol's model, between one step and the next."""

from __future__ import annotations

from typing import Final

# Where a process stands.
IDLE: Final = "idle"
MADE: Final = "made an unnamed file"
KEPT_HALF: Final = "kept claim half written"
KEPT_READY: Final = "kept claim written"
PLACED_OPEN: Final = "created at the path"
PLACED_GUARDED: Final = "guarded what it created"
PLACED_CHECKED: Final = "found its creation at the path"
PLACED_HALF: Final = "half written at the path"
PLACED_WRITTEN: Final = "written at the path"
PLACED_FINISHED: Final = "finished at the path"
HOLDS: Final = "holds"
REFRESH_GUARDED: Final = "guarded for refresh"
REFRESH_CHECKED: Final = "checked for refresh"
REFRESH_HALF: Final = "half refreshed"
REFRESH_WRITTEN: Final = "refreshed"
RELEASE_GUARDED: Final = "guarded for release"
RELEASE_CHECKED: Final = "checked for release"
RELEASE_KEPT: Final = "kept aside"
BARE_HOLDS: Final = "holds without descriptor"
BARE_OPEN: Final = "opened its file again"
BARE_GUARDED: Final = "guarded its file again"
BARE_CHECKED: Final = "checked its file again"
LOOK_OPEN: Final = "looks: open"
LOOK_HALF: Final = "looks: half read"
LOOK_READ: Final = "looks: read"
LOOK_SEEN: Final = "looks: path checked"
LOOK_HALF_AGAIN: Final = "looks: half read again"
LOOK_AGAIN: Final = "looks: read again"
JUDGED: Final = "judged it stale"
REMOVE_OPEN: Final = "removes: open"
REMOVE_GUARDED: Final = "removes: guarded"
REMOVE_HALFWAY: Final = "removes: first comparison done"
REMOVE_READY: Final = "removes: ready"
CORE_OPEN: Final = "the core judges: open"
CORE_FREE: Final = "the core judges: witness free"
CORE_HALF: Final = "the core judges: half read"
CORE_READ: Final = "the core judges: read"
CORE_DEAD: Final = "the core judges: dead"
CORE_GUARDED: Final = "the core removes: guarded"
CORE_SAME: Final = "the core removes: compared"

# Where the foreigner stands.
AWAY: Final = "away"
CREATED: Final = "created"
WROTE: Final = "wrote"

# Where the descriptor of a look is open, and that of a removal.
LOOKING: Final = frozenset(
    {LOOK_OPEN, LOOK_HALF, LOOK_READ, LOOK_SEEN, LOOK_HALF_AGAIN, LOOK_AGAIN}
)
REMOVING: Final = frozenset({REMOVE_OPEN, REMOVE_GUARDED, REMOVE_HALFWAY, REMOVE_READY})

# The same where the core does both, while it judges and when it has judged.
CORE_READING: Final = frozenset({CORE_OPEN, CORE_FREE, CORE_HALF, CORE_READ})
CORE_REMOVING: Final = frozenset({CORE_DEAD, CORE_GUARDED, CORE_SAME})

# Where a holder has given up its descriptor, and where it has opened the file again.
BARE_OPENED: Final = frozenset({BARE_OPEN, BARE_GUARDED, BARE_CHECKED})
BARE: Final = BARE_OPENED | {BARE_HOLDS}

# Where a process believes that it holds the lock.
BELIEVES: Final = BARE | {
    PLACED_FINISHED,
    HOLDS,
    REFRESH_GUARDED,
    REFRESH_CHECKED,
    REFRESH_HALF,
    REFRESH_WRITTEN,
    RELEASE_GUARDED,
    RELEASE_CHECKED,
}
