"""The verbs for locks on an engine: ``semlock run redis://host/deploy -- make``.

``semlock._cli.engine_run`` has ``run``, and ``semlock._cli.engine_owned`` what holds for a shell.
"""

from __future__ import annotations

import os

from semlock._cli import BAD, HELD, OK, Options, UsageError
from semlock._cli.hiding import hide
from semlock._cli.output import describe, print_facts, print_json, print_line, say
from semlock._cli.running import shell_word
from semlock._cli.table import find
from semlock._cli.waiting import Teller
from semlock._core import inside
from semlock._core.errors import LockEngineError, LockTimeoutError
from semlock._engines.address import Address, is_address, is_misspelt, no_engine
from semlock._engines.space import connect_to

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core.status import LockStatus
    from semlock._engines.space import Space

URL = "SEMLOCK_URL"

# The verbs whose operand is a lock's name; that of others may be a directory.
_OF_LOCKS = ("run", "try", "acquire", "release", "refresh", "status", "wait", "break")
# Options that say nothing of a lock on an engine.
_OF_FILES = (
    "dialect", "kernel", "durability", "make_dirs", "follow", "stale", "owner", "user",
    "session", "token_file", "ttl", "environment", "purpose", "allow", "refreshes",
)  # fmt: skip


def are_meant(options: Options) -> bool:
    """Tell whether a call is about locks on an engine."""
    if any("://" in word for word in options.locks):
        hide()
    return any(_is_engines(word, options) for word in options.locks)


def _is_engines(word: str, options: Options) -> bool:
    """Tell whether a word of the command line names a lock on an engine.

    With ``SEMLOCK_URL``, a word without a slash does; ``./name`` is a file then, and so is a lock
    of another lock system.
    """
    if is_address(word):
        return True
    if _is_misspelt(word):
        raise UsageError(
            f"{no_engine()}; a file of such a name is written ./NAME", find(options.verb)
        )
    if "://" in word:
        return False
    if URL not in os.environ or options.verb not in _OF_LOCKS:
        return False
    return os.sep not in word and "/" not in word and not (options.dialect or options.kernel)


def _is_misspelt(word: str) -> bool:
    """Tell whether a word looks like an address, and can be no path here."""
    scheme, sign, _ = word.partition("://")
    plain = bool(sign) and scheme.replace("+", "").isalnum()
    return (plain and not os.path.lexists(f"{scheme}:")) or is_misspelt(word)


def act(options: Options) -> int:
    """Do what a call asks for, whose operands name an engine."""
    for name in _OF_FILES:
        if getattr(options, name) != getattr(Options, name):
            word = "no-auto-refresh" if name == "refreshes" else name.replace("_", "-")
            instead = (
                ", whose lease is ?ttl=SECONDS behind the address" if word == "ttl" else ""
            )
            raise UsageError(
                f"--{word} is for files, not for locks on an engine{instead}",
                find(options.verb),
            )
    where = {
        "run": ("engine_run", "run"),
        "try": ("engine_owned", "attempt"),
        "acquire": ("engine_owned", "attempt"),
        "release": ("engine_owned", "release"),
        "list": ("engine_seen", "list_locks"),
        "watch": ("engine_seen", "watch"),
    }
    if options.verb in where:
        module, function = where[options.verb]
        found = getattr(__import__(f"semlock._cli.{module}", fromlist=[function]), function)
        return int(found(options))
    verbs = {
        "status": status, "wait": wait, "break": break_lock, "doctor": doctor,
    }  # fmt: skip
    if options.verb not in verbs:
        why = ": a lock on an engine is renewed while it is held"
        raise UsageError(
            f"{options.verb} is for files{why if options.verb == 'refresh' else ''}",
            find(options.verb),
        )
    return verbs[options.verb](options)


def reading(options: Options, *, named: bool = True) -> tuple[str, list[str]]:
    """Read the operands: the engine's address, and the names of its locks."""
    base = os.environ.get(URL, "")
    urls, names = set(), []
    for word in options.locks:
        if not _is_engines(word, options):
            raise UsageError(
                f"{word} is a file, and others are locks on an engine", find(options.verb)
            )
        if "://" not in word:
            urls.add(base)
            names.append(word)
            continue
        address = Address(word, named=named)
        if named and not address.path:
            raise UsageError(
                f"{address.shown} is followed by no name of a lock", find(options.verb)
            )
        names.append(address.path)
        urls.add(address.url)
    addresses = {(Address(url).shown, Address(url).prefix): url for url in urls}
    if len(addresses) > 1:
        raise UsageError("locks on several engines can't be held together", find(options.verb))
    return urls.pop(), names


def connected(url: str) -> Space:
    """Connect to the engine of an address."""
    address = Address(url)
    address.path = ""
    return connect_to(address)


def status(options: Options) -> int:
    """Report who holds a lock."""
    url, names = reading(options)
    with connected(url) as space:
        found = space.holders(names[0])
        waiting = len(space.waiting(names[0]))
    for one in found:
        if options.json:
            print_json(described(one, waiting))
        elif options.porcelain:
            _print_fields(described(one, waiting), options)
        elif not options.quiet:
            _print_status(one, options)
    return OK if found[0].state == "free" else HELD


def described(found: LockStatus, waiting: int) -> dict[str, object]:
    """Give a status as fields, as those of files."""
    fields = describe(found, None)
    return fields | {"waiting": waiting} if fields["locked"] else fields


def _print_fields(fields: dict[str, object], options: Options) -> None:
    from semlock._cli.looking import print_fields  # noqa: PLC0415 - for programs

    if not options.quiet:
        print_fields(fields)


def _print_status(found: LockStatus, options: Options) -> None:
    from semlock._cli.looking import print_status  # noqa: PLC0415 - for people

    print_status(found, None, options)


def wait(options: Options) -> int:
    """Wait until a lock is free."""
    from semlock._cli import passing  # noqa: PLC0415 - for those that wait

    passing.interruptible()
    url, names = reading(options)
    with connected(url) as space, Teller(quiet=options.quiet) as teller:
        lock = space.Lock(names[0])
        inside.report_waits(lock, teller)
        try:
            with lock.acquire(timeout=options.timeout):
                pass
        except LockTimeoutError as error:
            if options.json and error.status is not None:
                print_json(described(error.status, 0))
            elif not options.quiet:
                say(f"{lock.path} is still held by {_holder(error.status)}")
            return HELD
        if options.json:
            print_json({"locked": False, "path": lock.path, "state": "free"})
    return OK


def _holder(found: LockStatus | None) -> str:
    return "another client" if found is None else found.holder


def break_lock(options: Options) -> int:
    """Show who holds a lock, ask, and remove exactly that acquisition."""
    from semlock._cli.tidying import agreed  # noqa: PLC0415 - to ask

    url, names = reading(options)
    with connected(url) as space:
        found = space.status(names[0])
        if found.state == "free":
            if options.json:
                print_json({"broken": False, "path": found.path})
            elif not options.quiet:
                say(f"{found.path} is not held")
            return OK
        if not options.yes:
            say(f"{found.path} is held by {found.holder}")
            if not agreed("Remove it?"):
                word = shell_word(f"{found.path}")
                say(f"it was left alone. To remove it: semlock break -y {word}")
                return HELD
        info = found.info
        token = "" if info is None or info.token is None else info.token
        gone = space.remove(names[0], only_if=token, force=True)
    if options.json:
        print_json({"broken": gone is not None, **described(found, 0)})
    elif gone is not None and not options.quiet:
        print_line(f"removed {found.path}: it was held by {found.holder}")
    return OK if gone is not None else HELD


def doctor(options: Options) -> int:
    """Say what an engine guarantees, as it is set up."""
    url, _ = reading(options, named=False)
    address = Address(url).shown
    try:
        with connected(url) as space:
            facts = space.facts()
    except LockEngineError as error:
        print_facts("check", [("connection", "no", str(error))], options, engine=address)
        return BAD
    for kind in ("check", "guarantee"):
        told = [
            (
                fact.what,
                "ok" if fact.well else "limited",
                ": ".join(filter(None, (fact.value, "" if fact.well else fact.advice))),
            )
            for fact in facts
            if fact.promised == (kind == "guarantee")
        ]
        print_facts(kind, told, options, engine=address)
    return OK
