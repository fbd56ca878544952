"""Addresses of engines: how they are read, and what of them may be shown.

The table ``ENGINES`` has one row for each engine.  Passwords are nowhere in ``shown``, which is
what errors, ``repr``, traces and statuses use.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from semlock._core.errors import LockPathError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Final
    from urllib.parse import SplitResult

# Hosts in the address of a directory that mean this machine.
_HERE = ("", "localhost")
# The most bytes of a name in UTF-8.
LONGEST_NAME = 1024
PREFIX = "semlock"


class Row:
    """One engine: the module in this room, the extra that brings its client, its usual port."""

    __slots__ = ("databases", "extra", "module", "port", "tls")

    def __init__(
        self, module: str, extra: str, port: int, *, tls: bool = False, databases: str = ""
    ) -> None:
        self.module = module
        self.extra = extra
        self.port = port
        self.tls = tls
        # Whether the first part of the path names a database: "always", "digits" or never.
        self.databases = databases


ENGINES: Final = {
    "etcd": Row("etcd", "etcd", 2379),
    "etcds": Row("etcd", "etcd", 2379, tls=True),
    "file": Row("directory", "", 1),
    "postgresql": Row("postgresql", "postgresql", 5432, databases="always"),
    "postgres": Row("postgresql", "postgresql", 5432, databases="always"),
    "redis": Row("redis", "redis", 6379, databases="digits"),
    "rediss": Row("redis", "redis", 6379, databases="digits", tls=True),
    "valkey": Row("redis", "redis", 6379, databases="digits"),
    "valkeys": Row("redis", "redis", 6379, databases="digits", tls=True),
}


def is_address(text: object) -> bool:
    """Tell whether a word names an engine, and not a file."""
    return (
        isinstance(text, str) and text.partition("://")[0].lower() in ENGINES and "://" in text
    )


# What is no address, and is meant as one: an engine's scheme with a slash too few or another
# letter for its colon, or any scheme with a user and a password.
_MEANT = re.compile(
    r"(?P<scheme>ENGINE):[/\\]|(?:ENGINE)[:;].*@|(?:ENGINE)/+[^/@]*:[^/@]+@"
    r"|(?P<other>[a-z][a-z0-9+.-]*):/+(?:[^/@]*:[^/@]+@)".replace("ENGINE", "|".join(ENGINES)),
    re.IGNORECASE,
)


def is_misspelt(text: str) -> bool:
    """Tell whether a word was meant as an engine's address, and is neither one nor a file."""
    found = _MEANT.match(text)
    if found is None or is_address(text) or os.path.lexists(text):
        return False
    scheme = found["scheme"] or found["other"]
    return scheme is None or not os.path.lexists(f"{scheme}:")


def no_engine() -> str:
    """Say which addresses there are; not what was given, which may have a password."""
    return "an engine's address begins with one of " + ", ".join(f"{e}://" for e in ENGINES)


class Address:
    """An engine's address, in parts.

    :hosts:   pairs of host and port, at least one
    :database: which database of the server, where it has several; of ``file://`` the directory
    :path:    what follows, decoded and without the first slash: a lock's name, or nothing
    :query:   the options behind ``?``
    :shown:   the address without user and password, for messages

    What follows a directory is a lock's name only if the address is ``named``: its last part.
    """

    __slots__ = (
        "ca", "cert", "database", "hosts", "key", "password", "path", "prefix", "query",
        "row", "scheme", "shown", "url", "user",
    )  # fmt: skip

    def __init__(
        self,
        url: str,
        *,
        prefix: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        named: bool = False,
    ) -> None:
        if not isinstance(url, str):
            raise TypeError(f"an engine's address is text, not {type(url).__name__}")
        scheme = url.partition("://")[0].lower()
        if "://" not in url or scheme not in ENGINES:
            raise ValueError(no_engine())
        self.scheme = scheme
        self.row = ENGINES[scheme]
        try:
            parts = urlsplit(url)
            login, _, places = parts.netloc.rpartition("@")
            user, colon, password = login.partition(":")
            self.user = unquote(user) or None
            self.password = unquote(password) if colon else None
            self.hosts = [_host(place, self.row.port) for place in places.split(",")]
        except ValueError:
            raise ValueError(
                f"an address is {scheme}://[LOGIN@]HOST[:PORT][,HOST...]; of "
                "one that was given, the hosts can't be read"
            ) from None
        if parts.fragment:
            raise ValueError("an engine's address has no part behind #: write it as %23")
        # What connects to the space; the name of a lock that follows is not looked at.
        self.url = url
        if scheme == "file":
            first, path = self._read_directory(parts, named=named)
        else:
            first, slash, rest = parts.path[1:].partition("/")
            if self.row.databases == "always" or (self.row.databases and first.isdecimal()):
                first, path = unquote(first), rest
            else:
                first, path = "", first + slash + rest
        self.database = first
        self.path = unquote(path, errors="surrogateescape")
        given = parse_qsl(parts.query, keep_blank_values=True)
        self.query = dict(given)
        if len(given) > len(self.query):
            names = [option for option, _ in given]
            twice = next(option for option in names if names.count(option) > 1)
            raise ValueError(f"an engine's address has the option {twice!r:.60} more than once")
        self.prefix = checked_prefix(
            self.query.pop("prefix", PREFIX) if prefix is None else prefix
        )
        self.ca, self.cert, self.key = ca, cert, key
        if scheme == "file":
            self.shown = f"file://{_plain(self.url[7:].partition('?')[0])}"
        else:
            self.shown = f"{scheme}://{places}" + (f"/{first}" if first else "")

    def _read_directory(self, parts: SplitResult, *, named: bool) -> tuple[str, str]:
        """Read the address of a directory: its path, and a lock's name."""
        if parts.netloc not in _HERE and sys.platform != "win32":
            raise ValueError(
                "the address of a directory has three slashes and its whole path, as in "
                "file:///net/project/locks"
            )
        place, _, path = parts.path.rpartition("/") if named else (parts.path, "", "")
        place = place.rstrip("/")
        self.url = f"file://{parts.netloc}{place or '/'}" + (parts.query and f"?{parts.query}")
        directory = unquote(place or "/", errors="surrogateescape")
        if sys.platform == "win32":  # file:///C:/locks, file://server/share/locks
            directory = (
                directory[1:] if parts.netloc in _HERE else f"//{parts.netloc}{directory}"
            )
        return os.path.normpath(directory), path

    def path_of(self, name: str) -> str:
        """Give a lock's address."""
        if self.scheme == "file":
            name = _plain(quote(name)).replace("/", "%2F")
        return self.shown + "/" * (not self.shown.endswith("/")) + name

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def _plain(quoted: str) -> str:
    """Show letters of a quoted path as they are, as far as the address stays the same."""
    text = unquote(quoted, errors="surrogateescape")
    return "".join(
        part
        if part.isprintable() and part not in "%?#"
        else quote(part, errors="surrogateescape")
        for part in text
    )


def _host(place: str, port: int) -> tuple[str, int]:
    if place.startswith("["):  # IPv6
        host, _, rest = place[1:].partition("]")
        if rest and rest[0] != ":":
            raise ValueError
        given = rest[1:]
    else:
        host, _, given = place.partition(":")
    number = int(given) if given else port
    if not 0 < number < 65536 or any(c.isspace() or c == "\0" for c in host):
        raise ValueError
    host.encode("idna")  # a ValueError if no name server can have such a name
    return host or "localhost", number


def checked_prefix(prefix: object) -> str:
    """Check what all names of a space begin with, and give it as it stands there."""
    if not isinstance(prefix, str) or not prefix.isprintable() or len(prefix) > 100:
        raise ValueError("a prefix is printable text of at most 100 characters")
    # Engines put ":" or "/" behind it: within it, one space's keys could be another one's.
    return quote(prefix, safe=" ")


def checked_name(name: object) -> str:
    """Check a lock's name; it is text of any kind, with slashes too."""
    if not isinstance(name, str):
        raise TypeError(f"a lock's name is text, not {type(name).__name__}")
    if not name:
        raise LockPathError("a lock's name can't be empty", path=name, code=errno.ENOENT)
    if "\0" in name:
        raise LockPathError(
            f"a lock's name can't contain NUL: {name!r:.80}", path=name, code=errno.EINVAL
        )
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise LockPathError(
            f"a lock's name is text that UTF-8 can encode: {name!r:.80}",
            path=name,
            code=errno.EINVAL,
        ) from None
    if size > LONGEST_NAME:
        raise LockPathError(
            f"a lock's name has {size} bytes, more than {LONGEST_NAME}: {name!r:.40}... Use a "
            "shorter one, such as a hash of it",
            path=name,
            code=errno.ENAMETOOLONG,
        )
    return name
