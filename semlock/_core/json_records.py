"""JSON as the lock systems of JavaScript write and read it, byte for byte.

``json.dumps`` and ``JSON.stringify`` differ in numbers, lone surrogates and values outside of JSON,
and ``json.loads`` accepts words that JSON doesn't have.  Values that JSON can't hold are refused
here, so that all readers of a record read the same.
"""

from __future__ import annotations

import json
import math
import re
import time

from semlock._core.errors import LockRecordError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

_quote = json.JSONEncoder(ensure_ascii=False).encode
_SURROGATES = re.compile("[\ud800-\udfff]")
_FOUR_CENTURIES = 146097 * 86400  # seconds after which the calendar repeats
_LONGEST_INTEGER = 400  # digits; readers' numbers overflow at 309

_ISO = re.compile(
    r"(?P<year>\d{4})(-(?P<month>\d\d)(-(?P<day>\d\d))?)?"
    r"(?P<clock>T(?P<hour>\d\d):(?P<minute>\d\d)(:(?P<second>\d\d)(\.(?P<fraction>\d+))?)?"
    r"(?P<zone>Z|(?P<sign>[+-])(?P<hours>\d\d):(?P<minutes>\d\d))?)?\Z",
    re.ASCII,
)


def encode_object(value: object) -> str:
    """Write an object as ``JSON.stringify(value, null, 2)`` does, without a final newline."""
    if not isinstance(value, dict):
        raise LockRecordError(f"the record is a JSON object, not {type(value).__name__}")
    try:
        return _written(value, "\n")
    except RecursionError:
        raise LockRecordError(
            "the record can't be written as JSON: it is nested too deeply, or contains itself"
        ) from None


def _written(value: object, margin: str) -> str:
    """Write one value; ``margin`` is a newline with the indentation."""
    if isinstance(value, str):
        quoted = _quote(value)
        return _escaped(quoted) if _SURROGATES.search(quoted) else quoted
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        try:
            return int.__repr__(value)
        except ValueError as error:
            raise LockRecordError(f"the record can't be written as JSON: {error}") from None
    if isinstance(value, float):
        return _number(value)
    inner = margin + "  "
    parts = []
    if isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise LockRecordError(f"a key of a JSON object is text, not {key!r:.60}")
            name = _quote(key) if key.isascii() else _written(key, inner)
            plain = isinstance(member, str) and member.isascii()
            parts.append(f"{name}: {_quote(member) if plain else _written(member, inner)}")
        return f"{{{inner}{f',{inner}'.join(parts)}{margin}}}" if parts else "{}"
    if isinstance(value, (list, tuple)):
        for element in value:
            parts.append(_written(element, inner))  # noqa: PERF401 - no frame of its own
        return f"[{inner}{f',{inner}'.join(parts)}{margin}]" if parts else "[]"
    raise LockRecordError(f"{value!r:.60} can't be written as JSON")


def _escaped(quoted: str) -> str:
    """Join two surrogates to one character, as in JavaScript, and escape a lone one."""
    joined = quoted.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _SURROGATES.sub(lambda half: f"\\u{ord(half[0]):04x}", joined)


def _number(value: float) -> str:
    """Write a float as JavaScript does: the same digits, other zeros and exponents."""
    if not math.isfinite(value):
        raise LockRecordError(f"JSON has no {value}")
    if value == 0:
        return "0"
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.<digits> times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if value < 0 else ""
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    rest = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


def decode_object(content: bytes) -> dict[str, Any]:
    """Read an object as ``JSON.parse`` does; ``LockRecordError`` for anything else.

    Invalid UTF-8 becomes replacement characters, as in Node.
    """
    if not isinstance(content, (bytes, bytearray)):
        raise TypeError(f"a record is bytes, as they are in the file, not {content!r:.60}")
    try:
        value = json.loads(
            content.decode("utf-8", "replace"), parse_constant=_refuse, parse_int=_parse_integer
        )
    except (ValueError, RecursionError) as error:
        raise LockRecordError(f"the record is not JSON: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise LockRecordError(f"the record is a JSON {type(value).__name__} and no object")
    return value


def _refuse(word: str) -> object:
    raise ValueError(f"JSON has no {word}")


def _parse_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def milliseconds(seconds: float) -> int:
    """Count whole milliseconds, rounded down as ``Date`` does.

    Few of them are exact as a float: a value within a rounding error of one counts as it.
    """
    exact = seconds * 1000
    nearest = round(exact)
    return (
        nearest if abs(nearest - exact) <= max(1e-3, abs(exact) * 2**-50) else int(exact // 1)
    )


def iso_time(seconds: float) -> str:
    """Write a time as ``Date.toISOString()`` does: UTC with milliseconds and a ``Z``."""
    try:
        whole, thousandths = divmod(milliseconds(seconds), 1000)
        # Windows can't convert times before 1970 or after 3000, but the calendar repeats.
        rounds, rest = divmod(whole, _FOUR_CENTURIES)
        year, month, day, hour, minute, second = time.gmtime(rest)[:6]
        year += 400 * rounds
    except (OverflowError, TypeError, ValueError):
        year = -1
    if not 0 <= year <= 9999:
        raise LockRecordError(f"a record has no place for the time {seconds!r}")
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z"


def parse_iso_time(text: object) -> float | None:
    """Read an ISO time as ``Date.parse`` does; ``None`` for anything else.

    A date alone is midnight in UTC; a date with a time and no zone is local time.
    """
    match = _ISO.match(text) if isinstance(text, str) else None
    if match is None:
        return None
    from datetime import datetime, timedelta, timezone  # noqa: PLC0415 - only for records with it

    year, month, day = int(match["year"]), int(match["month"] or 1), int(match["day"] or 1)
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    fraction = match["fraction"] or "0"
    later = timedelta(milliseconds=int(fraction[:3].ljust(3, "0")))
    if (hour, minute, second) == (24, 0, 0) and not fraction.strip("0"):
        hour, later = 0, timedelta(days=1)
    if match["sign"]:
        shift = timedelta(hours=int(match["hours"]), minutes=int(match["minutes"]))
        if int(match["hours"]) > 23 or int(match["minutes"]) > 59:
            return None
        later += -shift if match["sign"] == "+" else shift
    zone = None if match["clock"] and not match["zone"] else timezone.utc
    try:
        read = datetime(year, month, day, hour, minute, second, tzinfo=zone)
        return (read + later).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
