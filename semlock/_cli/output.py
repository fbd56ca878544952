"""How the verbs write: messages to standard error, results and JSON to standard output."""

from __future__ import annotations

import os
import sys

from semlock._core.paths import here
from semlock._core.records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from semlock._cli import Options
    from semlock._core.status import LockStatus
    from semlock.systems import System


# Why standard output could not be written.  A verb goes on all the same, and its exit code stays:
# its work is done.
_unwritten: OSError | None = None


def say(message: str) -> None:
    """Write a message for people; on a terminal it is broken between words."""
    if "://" in message:
        from semlock._cli.hiding import without_passwords  # noqa: PLC0415 - of addresses only

        message = without_passwords(message)
    # Text of paths and records must not control the terminal.
    text = printable(message)
    if sys.stderr is not None and sys.stderr.isatty():
        from semlock._cli.columns import columns_of, wrapped  # noqa: PLC0415 - for people

        lines = wrapped("semlock: ", text, columns_of(sys.stderr))
        write("\n".join(lines), to_stderr=True)
    else:
        write(f"semlock: {text}", to_stderr=True)


def print_line(text: str) -> None:
    """Write a line of results; characters that the terminal lacks are replaced."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    write(printable(text).encode(encoding, "backslashreplace").decode(encoding))


def print_wrapped(label: str, text: str) -> None:
    """Write a line of results; on a terminal it is broken between words, after the label."""
    if sys.stdout is None or not sys.stdout.isatty():
        print_line(label + text)
        return
    from semlock._cli.columns import columns_of, wrapped  # noqa: PLC0415 - for people

    for line in wrapped(label, printable(text), columns_of(sys.stdout)):
        print_line(line)


def write(text: str, *, to_stderr: bool = False) -> None:
    """Write lines.  A stream that is closed, full or gone is ignored."""
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


def failed(error: OSError) -> None:
    """Note that standard output could not be written."""
    global _unwritten  # noqa: PLW0603 - the streams are the process's too
    _unwritten = error


def unwritten() -> OSError | None:
    """Flush standard output, and return why that failed."""
    global _unwritten  # noqa: PLW0603
    if _unwritten is None and sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError as error:
            _unwritten = error
    found, _unwritten = _unwritten, None
    return found


def as_lines(fields: dict[str, Any]) -> list[str]:
    """Write fields as lines, without empty ones and without zero waiters."""
    return [
        f"{key}: {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in fields.items()
        if value is not None and (key, value) != ("waiting", 0)
    ]


def existing(path: str, what: str = "directory") -> str:
    """Return an existing path; ``LockPathError`` if it doesn't exist."""
    if os.path.lexists(path):
        here(path)  # "." is seen, but leads nowhere, when it has been removed
        return path
    import errno  # noqa: PLC0415 - only where something is wrong

    from semlock._core.errors import LockPathError  # noqa: PLC0415

    raise LockPathError(f"there is no {what} {path}", path=path, code=errno.ENOENT)


def print_json(fields: dict[str, Any], *, of_run: bool = False) -> None:
    """Write one object on a line, in JSON that every reader accepts.

    That of ``run`` goes to standard error, as standard output belongs to the command.
    """
    import json  # noqa: PLC0415 - not on the way of run and try

    for name in _PATHS:
        path = fields.get(name)
        if isinstance(path, str) and _text(path) != path:
            # A name that isn't text: its bytes are added as hexadecimal digits.
            try:
                encoded = os.fsencode(path)
            except UnicodeEncodeError:
                continue  # from a damaged record: it names no file
            shown = encoded.decode("utf-8", "backslashreplace")
            fields = {**fields, name: shown, f"{name}_bytes": encoded.hex()}
    write(json.dumps(_plain(fields), allow_nan=False), to_stderr=of_run)


def print_facts(
    kind: str, facts: Iterable[tuple[str, str, str]], options: Options, **where: str
) -> None:
    """Write what was found out of a directory or an engine: name, result and words of each."""
    if not options.json:
        (place,) = where.values()
        print_line(f"{place}:" if kind == "check" else "what is guaranteed here:")
    for name, result, detail in facts:
        if options.json:
            print_json({kind: name, "result": result, "detail": detail, **where})
        else:
            print_wrapped(f"  {name:11} {result:8} ", detail)


def sentence(error: Exception) -> str:
    """Say what went wrong; an error of the system without its number, and with the path."""
    if not isinstance(error, OSError) or error.strerror is None or hasattr(error, "status"):
        return str(error)
    reason = error.strerror[:1].lower() + error.strerror[1:]
    names = (error.filename, error.filename2)
    paths = [os.fsdecode(n) if isinstance(n, bytes) else str(n) for n in names if n is not None]
    return f"{' and '.join(paths)}: {reason}" if paths else reason


def print_error(error: Exception, *, of_run: bool) -> None:
    """Write an error as an object."""
    path = getattr(error, "path", None) or getattr(error, "filename", None)
    fields = {"error": type(error).__name__, "message": printable(sentence(error))}
    if isinstance(path, (str, bytes)):
        text = os.fsdecode(path)
        fields["path"] = text if "://" in text else os.path.abspath(text)
    print_json(fields, of_run=of_run)


# The members that name files.
_PATHS = ("path", "lock", "trace", "directory")


def _text(text: str) -> str:
    """Replace lone surrogates, which strict readers refuse even if escaped."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _plain(value: Any, depth: int = 0) -> Any:
    """Make values of foreign records fit for every reader of JSON."""
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
    """Give the status of a path as fields, sema's first."""
    from semlock._core.folders import waiters  # noqa: PLC0415 - not on the way of run and try

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
    if found.is_by_kernel:
        fields["holders"] = [one.pid for one in found.holders]  # type: ignore[attr-defined]
    owner = getattr(info, "owner", None)
    if info is not None and owner is not None:
        # The holder's name of a task lock hides secret parts.
        fields["owner"] = info.holder
        fields["ttl"] = getattr(info, "ttl", None)
    # The payload of a JSON record is the caller's, and may be anything.
    known.pop("payload", None)
    return fields | {name: value for name, value in known.items() if value is not None}


def describe_refusal(found: LockStatus) -> dict[str, Any]:
    """Describe a lock that can't be acquired, with sema's names of fields."""
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
    """Say what the holder runs, if it is visible from here."""
    from semlock._core.identity import this_process  # noqa: PLC0415 - not on the way of run

    info = found.info
    me = this_process()
    if info is None or info.pid is None or found.verdict != "alive" or info.boot != me.boot:
        return None
    if (info.pidns or 0) != me.pidns or not me.start:  # 0: /proc has other numbers, or is none
        return None
    from semlock._cli.hiding import masked  # noqa: PLC0415 - as above

    try:
        with open(f"/proc/{info.pid}/cmdline", "rb") as file:
            words = masked(file.read(1 << 16))[:4096].rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    return " ".join(word.decode("utf-8", "replace") for word in words) or None
