"""The members of each JSON object that the command writes; ``docs/cli.md`` has tables of them.

Programs may rely on the members that are always present, and should ignore unknown ones.
"""

from __future__ import annotations

TEXT = "text"
WHOLE = "whole number"
NUMBER = "number"
TRUTH = "true or false"

_PATH = ("path", TEXT, r"the lock file, absolute; bytes that are no UTF-8 as \xff")


def _bytes_of(name: str) -> tuple[str, str, str]:
    return (f"{name}_bytes", TEXT, f"if {name} is not UTF-8: its bytes, as hexadecimal digits")


_PATH_BYTES = _bytes_of("path")
_WHERE = (
    ("directory", TEXT, "where, of a directory"),
    _bytes_of("directory"),
    ("engine", TEXT, "where, of an engine: its address"),
)
_DIALECT = ("dialect", TEXT, "the lock system whose record it is; null if none is recognised")
_VERDICT = ("verdict", TEXT, "alive, dead or unknown")
_EVIDENCE = ("evidence", TEXT, "how that is known, in words")
_PID = ("pid", WHOLE, "the holder's process; null if the record names none")
_TAG = ("tag", TEXT, "why it is held; null if the record doesn't say")
_RECORD = (
    ("start", WHOLE, "when the process began, in the system's unit"),
    ("boot", TEXT, "the boot of the machine that it runs in"),
    ("pidns", WHOLE, "its PID namespace"),
    ("timens", WHOLE, "its time namespace, if that is not the first one"),
    ("token", TEXT, "the name of this acquisition"),
    ("witness", TEXT, "kept, left or none: whether the kernel keeps a lock on the file"),
)
_HELD = (
    ("locked", TRUTH, "true"),
    _PID,
    ("timestamp", NUMBER, "seconds since 1970 when it was won or refreshed, or null"),
    _TAG,
    _PATH,
    (
        "state",
        TEXT,
        "held, stale (it may be taken) or unreadable (no record; it counts as held)",
    ),
    _DIALECT,
    ("alive", TRUTH, "whether its holder lives; null if that is unknown"),
    _VERDICT,
    _EVIDENCE,
    ("reason", TEXT, "why it may be taken, when it is stale; else null"),
    ("age", NUMBER, "seconds since it was won or refreshed"),
    ("host", TEXT, "the machine of the holder, or null"),
    ("command", TEXT, "what the holder runs, if that can be seen from here; else null"),
    ("waiting", WHOLE, "how many stand in its queue"),
)
_HELD_MAYBE = (
    _PATH_BYTES,
    *_RECORD,
    ("owner", TEXT, "the owner of a task lock"),
    ("ttl", NUMBER, "for how many seconds a task lock is held without a refresh"),
)

_REFUSED = (
    ("locked", TRUTH, "true"),
    ("acquired", TRUTH, "false"),
    _PATH,
    _PID,
    ("since", NUMBER, "the holder's timestamp, or null"),
    _TAG,
    _VERDICT,
    _EVIDENCE,
)

# For each kind of object: who writes it, what is always there, and what may be.
OBJECTS: dict[
    str, tuple[str, tuple[tuple[str, str, str], ...], tuple[tuple[str, str, str], ...]]
] = {
    "held": ("status, wait, list and watch, for a lock that is held", _HELD, _HELD_MAYBE),
    "free": (
        "status and wait, for one that is free",
        (("locked", TRUTH, "false"), _PATH, ("state", TEXT, "free")),
        (_PATH_BYTES,),
    ),
    "acquired": (
        "try, acquire and reclaim, when they took it",
        (
            ("locked", TRUTH, "false: no other process held it"),
            ("acquired", TRUTH, "true"),
            _PATH,
            _DIALECT,
            ("owner_pid", WHOLE, "the process that it was taken for, with which it ends"),
            ("owner_name", TEXT, "what that process runs; null if that can't be seen"),
        ),
        (
            _PATH_BYTES,
            ("pid", WHOLE, "the process that it was taken for"),
            ("timestamp", NUMBER, "seconds since 1970 when it was won"),
            ("tag", TEXT, "what it is held for"),
            ("host", TEXT, "this machine"),
            *_RECORD,
        ),
    ),
    "refused": (
        "try, acquire, reclaim and (to standard error) run, when another process holds it",
        _REFUSED,
        (_PATH_BYTES,),
    ),
    "waiting": (
        "run, to standard error, at the beginning of a wait and then less and less often",
        (*_REFUSED, ("waited", NUMBER, "seconds so far")),
        (_PATH_BYTES,),
    ),
    "error": (
        "all verbs, when they exit with 3; run to standard error",
        (("error", TEXT, "the kind of error"), ("message", TEXT, "what is wrong, in words")),
        (_PATH, _PATH_BYTES),
    ),
    "released": (
        "release",
        (("released", TRUTH, "whether it was removed"), _PATH),
        (_PATH_BYTES,),
    ),
    "refreshed": (
        "refresh",
        (
            ("refreshed", TRUTH, "true"),
            _PATH,
            ("timestamp", NUMBER, "the time that it has now, or null"),
        ),
        (_PATH_BYTES,),
    ),
    "cleaned": (
        "clean, for each file",
        (
            ("removed", TRUTH, "whether it was removed, or only would be"),
            _PATH,
            ("reason", TEXT, "why it may be removed"),
        ),
        (_PATH_BYTES,),
    ),
    "broken": (
        "break; with the members of a held lock, if there was one",
        (("broken", TRUTH, "whether it was removed"), _PATH),
        (_PATH_BYTES, *(member for member in _HELD if member is not _PATH), *_HELD_MAYBE[1:]),
    ),
    "migrated": (
        "migrate",
        (
            ("migrated", TRUTH, "whether it has another form now"),
            _PATH,
            ("outcome", TEXT, "migrated, enhanced, free, unreadable, alive, unfit or changed"),
            ("message", TEXT, "the same in words"),
        ),
        (_PATH_BYTES,),
    ),
    "trace": (
        "timeline, first",
        (
            ("trace", TEXT, "the file"),
            ("seconds", NUMBER, "from its first event to its last"),
            ("events", WHOLE, "how many were read"),
            ("skipped", WHOLE, "lines that can't be read"),
            ("processes", WHOLE, "how many there were"),
            ("locks", WHOLE, "how many there were"),
        ),
        (_bytes_of("trace"),),
    ),
    "lock": (
        "timeline, for each lock; times are in seconds",
        (
            ("lock", TEXT, "its path"),
            ("holds", WHOLE, "how often it was held"),
            ("held", NUMBER, "for how long altogether"),
            ("median_hold", NUMBER, "for how long in the middle, or null"),
            ("waits", WHOLE, "how often it was waited for"),
            ("median_wait", NUMBER, "for how long in the middle, or null"),
            ("longest_wait", NUMBER, "for how long at most, or null"),
        ),
        (_bytes_of("lock"),),
    ),
    "wait": (
        "timeline, for each of the longest waits",
        (
            ("wait", NUMBER, "how long it was, in seconds"),
            ("path", TEXT, "the lock"),
            ("at", NUMBER, "when it began, in seconds from the beginning of the trace"),
            ("pid", WHOLE, "who waited"),
            ("command", TEXT, "what that process ran"),
            ("worker", TEXT, "which thread or task of it; empty for the main thread"),
            ("ended", TEXT, "by which event; open if by none"),
            ("behind", WHOLE, "the process that held the lock meanwhile, or null"),
            ("behind_command", TEXT, "what that one ran, or null"),
            ("behind_tag", TEXT, "what for, or null"),
        ),
        (_PATH_BYTES,),
    ),
    "convoy": (
        "timeline, for each time in which two or more waited for a lock all the time",
        (
            ("convoy", NUMBER, "how long it was, in seconds"),
            ("path", TEXT, "the lock"),
            ("at", NUMBER, "when it began"),
            ("most", WHOLE, "how many waited at once"),
            ("waiters", WHOLE, "how many different ones"),
            ("holds", WHOLE, "how often the lock was held meanwhile"),
            ("held", NUMBER, "for how many seconds of it"),
            ("longest_hold", NUMBER, "the longest of these, or null"),
            ("pid", WHOLE, "whose that was, or null"),
        ),
        (_PATH_BYTES,),
    ),
    "odd": (
        "timeline, for what else stands out",
        (
            ("odd", TEXT, "reclaim, remove, lost or unreleased"),
            ("path", TEXT, "the lock"),
            ("at", NUMBER, "when"),
            ("pid", WHOLE, "the process that holds it"),
            ("message", TEXT, "the same in words"),
        ),
        (_PATH_BYTES,),
    ),
    "check": (
        "doctor, for each thing that it tried",
        (
            ("check", TEXT, "what was tried"),
            ("result", TEXT, "ok, limited or no"),
            ("detail", TEXT, "what was found, in words"),
        ),
        _WHERE,
    ),
    "guarantee": (
        "doctor, for each promise",
        (
            (
                "guarantee",
                TEXT,
                "what is promised: exclusion, death, waiting, order, durability, restart, failover",
            ),
            ("result", TEXT, "ok, limited or no"),
            ("detail", TEXT, "what it comes to here, in words"),
        ),
        _WHERE,
    ),
}
