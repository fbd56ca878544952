"""What the verbs write: messages on standard error, facts and JSON on standard output."""

from __future__ import annotations

import os
import sys

from semlock._core.records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.status import LockStatus
    from semlock.systems import System


# Why standard output could not be written to.  What a verb has done by then, it has done: that
# is not a reason to end in the middle of it, or with another exit code.
_unwritten: OSError | None = None


def say(message: str) -> None:
    """Tell people something, in one line; on a terminal it is broken between words."""
    # What comes from paths and records must not take over the terminal.
    text = printable(message)
    if sys.stderr is not None and sys.stderr.isatty():
        from semlock._cli.columns import columns_of, wrapped  # noqa: PLC0415 - for people

        lines = wrapped("semlock: ", text, columns_of(sys.stderr))
        write("\n".join(lines), to_stderr=True)
    else:
        write(f"semlock: {text}", to_stderr=True)


def print_line(text: str) -> None:
    """Write a line of facts, whatever characters it has and the terminal hasn't."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    write(printable(text).encode(encoding, "backslashreplace").decode(encoding))


def print_wrapped(label: str, text: str) -> None:
    """Write a line of facts; on a terminal it is broken between words, behind the label."""
    if sys.stdout is None or not sys.stdout.isatty():
        print_line(label + text)
        return
    from semlock._cli.columns import columns_of, wrapped  # noqa: PLC0415 - for people

    for line in wrapped(label, printable(text), columns_of(sys.stdout)):
        print_line(line)


def write(text: str, *, to_stderr: bool = False) -> None:
    """Write lines.  A stream that is closed, full or gone is no reason to do anything else."""
    global _unwritten  # noqa: PLW0603 - the streams are the process's too
    try:
        if to_stderr:
            if sys.stderr is not None:
                print(text, file=sys.stderr, flush=True)
        elif _unwritten is None:
            print(text)
    except OSError as error:
        if not to_stderr:
            _unwritten = error


def unwritten() -> OSError | None:
    """Write out what is left of standard output, and say why that could not be done."""
    global _unwritten  # noqa: PLW0603
    if _unwritten is None and sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError as error:
            _unwritten = error
    found, _unwritten = _unwritten, None
    return found


def as_lines(fields: dict[str, Any]) -> list[str]:
    """Write fields as lines, those that say something; that none waits is no news."""
    return [
        f"{key}: {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in fields.items()
        if value is not None and (key, value) != ("waiting", 0)
    ]


def existing(path: str, what: str = "directory") -> str:
    """Give a path that is there; ``LockPathError`` if it isn't."""
    if os.path.lexists(path):
        return path
    import errno  # noqa: PLC0415 - only where something is wrong

    from semlock._core.errors import LockPathError  # noqa: PLC0415

    raise LockPathError(f"there is no {what} {path}", path=path, code=errno.ENOENT)


def print_json(fields: dict[str, Any], *, of_run: bool = False) -> None:
    """Write one object on a line, which any reader of JSON understands.

    That of ``run`` goes to standard error, since standard output is the command's.
    """
    import json  # noqa: PLC0415 - not on the way of run and try

    for name in _PATHS:
        path = fields.get(name)
        if isinstance(path, str) and _text(path) != path:
            # A name that is no text: the bytes of it go along, as hexadecimal digits.
            try:
                encoded = os.fsencode(path)
            except UnicodeEncodeError:
                continue  # it comes from a file that is wrong, and names nothing here
            shown = encoded.decode("utf-8", "backslashreplace")
            fields = {**fields, name: shown, f"{name}_bytes": encoded.hex()}
    write(json.dumps(_plain(fields), allow_nan=False), to_stderr=of_run)


def sentence(error: Exception) -> str:
    """Say what went wrong; what the system said without its number, and with the path."""
    if not isinstance(error, OSError) or error.strerror is None or hasattr(error, "status"):
        return str(error)
    reason = error.strerror[:1].lower() + error.strerror[1:]
    names = (error.filename, error.filename2)
    paths = [os.fsdecode(n) if isinstance(n, bytes) else str(n) for n in names if n is not None]
    return f"{' and '.join(paths)}: {reason}" if paths else reason


def print_error(error: Exception, *, of_run: bool) -> None:
    """Write what went wrong as an object."""
    path = getattr(error, "path", None) or getattr(error, "filename", None)
    fields = {"error": type(error).__name__, "message": printable(sentence(error))}
    if isinstance(path, (str, bytes)):
        fields["path"] = os.path.abspath(os.fsdecode(path))
    print_json(fields, of_run=of_run)


# The members that name files.
_PATHS = ("path", "lock", "trace", "directory")


def _text(text: str) -> str:
    """Replace the halves of characters, which strict readers refuse even if escaped."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _plain(value: Any, depth: int = 0) -> Any:
    """Make of what a foreign record says what every reader of JSON can hold."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and (value != value or value in (_INFINITY, -_INFINITY)):  # noqa: PLR0124
        return None
    if isinstance(value, (dict, list, tuple)) and depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        return {_text(str(key)): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return value


_INFINITY = float("inf")
_DEEPEST = 20


def describe(found: LockStatus, system: System | None) -> dict[str, Any]:
    """Give what was found at a path as fields, those of sema first."""
    from semlock._core.queues import waiters  # noqa: PLC0415 - not on the way of run and try

    info = found.info
    if found.state == "free":
        return {"locked": False, "path": found.path, "state": "free"}
    known = {} if info is None else info.as_dict()
    fields: dict[str, Any] = {
        "locked": True,
        "pid": known.pop("pid", None),
        "timestamp": known.pop("timestamp", None),
        "tag": known.pop("tag", None),
        "path": found.path,
        "state": found.state,
        "dialect": None if system is None else system.name,
        "alive": None if found.verdict == "unknown" else found.verdict == "alive",
        "verdict": found.verdict,
        "evidence": found.evidence,
        "reason": found.reason,
        "age": None if found.age is None else round(found.age, 3),
        "host": known.pop("host", None),
        "command": _command_of(found),
        "waiting": len(waiters(found.path, info)),
    }
    owner = getattr(info, "owner", None)
    if info is not None and owner is not None:
        # The text that names the holder of a task lock hides what is secret in it.
        fields["owner"] = info.holder
        fields["ttl"] = getattr(info, "ttl", None)
    # The payload of a JSON record is the caller's own business, and may be anything.
    known.pop("payload", None)
    return fields | {name: value for name, value in known.items() if value is not None}


def describe_refusal(found: LockStatus) -> dict[str, Any]:
    """Give what is told about a lock that can't be acquired, in sema's words where it has some."""
    info = found.info
    return {
        "locked": True,
        "acquired": False,
        "path": found.path,
        "pid": info.pid if info else None,
        "since": info.timestamp if info else None,
        "tag": info.tag if info else None,
        "verdict": found.verdict,
        "evidence": found.evidence,
    }


def _command_of(found: LockStatus) -> str | None:
    """Say what the holder runs, if it is a process that can be looked at from here."""
    from semlock._core.identity import this_process  # noqa: PLC0415 - not on the way of run

    info = found.info
    me = this_process()
    if info is None or info.pid is None or found.verdict != "alive" or info.boot != me.boot:
        return None
    if (info.pidns or 0) != me.pidns:
        return None
    try:
        with open(f"/proc/{info.pid}/cmdline", "rb") as file:
            words = file.read(4096).rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    return " ".join(word.decode("utf-8", "replace") for word in words) or None
