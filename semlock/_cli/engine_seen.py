"""``list`` and ``watch`` of the locks on an engine, with the table and the screen of files."""

from __future__ import annotations

from semlock._cli import OK, rows, watching
from semlock._cli.engines import connected, described, reading
from semlock._cli.output import print_json
from semlock._core.errors import LockEngineError
from semlock._engines.client import status_of

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._cli import Options
    from semlock._cli.rows import Row
    from semlock._core.status import LockStatus
    from semlock._engines.space import Space


class Names:
    """The locks of a space whose names begin with one of some words, read at each refresh."""

    def __init__(self, space: Space, starts: list[str]) -> None:
        self._space = space
        self._starts = tuple(starts)
        self._last: list[Row] | None = None
        self._trouble = ""

    @property
    def path(self) -> str:
        """The engine's address, and why it could not be read last."""
        return f"{self._space.address}{self._trouble}"

    def rows(self) -> list[Row]:
        """Give a row for each holder; the last ones while the engine is away."""
        try:
            self._last = self._read()
            self._trouble = ""
        except LockEngineError as error:
            if self._last is None:
                raise
            self._trouble = f": {error}"
        return self._last

    def _read(self) -> list[Row]:
        found = []
        for name in self._space.list():
            if not name.startswith(self._starts):
                continue
            path = self._space.client.path_of(name)
            line = self._space.client.line(name)
            waiting = [status_of(path, entry) for entry in line if not entry.holds]
            found += [
                rows.Row(status_of(path, entry), None, name, waiting)
                for entry in line
                if entry.holds
            ]
        return found

    def remove(self, found: LockStatus) -> LockStatus | None:
        """Take exactly the acquisition that was shown from its holder."""
        name = found.path.removeprefix(self._space.client.path_of(""))
        return self._space.remove(name, only_if=found, force=True)


def list_locks(options: Options) -> int:
    """List the locks of a space; what follows the address is what their names begin with."""
    url, starts = reading(options, named=False)
    with connected(url) as space:
        _print(Names(space, starts), options)
    return OK


def _print(names: Names, options: Options) -> None:
    found = names.rows()
    if options.json:
        for row in found:
            print_json(described(row.found, len(row.waiting)))
    else:
        rows.show(found, options)


def watch(options: Options) -> int:
    """Show the locks of a space, live."""
    url, starts = reading(options, named=False)
    with connected(url) as space:
        names = Names(space, starts)
        if options.json:
            _print(names, options)
            return OK
        return watching.show(
            names, interval=options.interval, once=options.once, color=options.color
        )
