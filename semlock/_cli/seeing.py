"""``timeline`` and ``watch``: showing what locks did, and what they do."""

from __future__ import annotations

import os

from semlock._cli import OK, Options, UsageError
from semlock._cli.output import describe, existing, print_json, print_line
from semlock._cli.table import find
from semlock._core.errors import LockRecordError


def timeline(options: Options) -> int:
    """Make a picture of a trace, and report what stands out."""
    from semlock._timeline import reading, report  # noqa: PLC0415 - only for those who look

    try:
        trace = reading.drawn(existing(options.lock, "trace"), options.output)
    except LockRecordError:
        raise  # it is no trace, and no wrong usage
    except ValueError as error:
        raise UsageError(str(error), find("timeline")) from None
    if options.json:
        for fact in report.facts(trace, options.lock):
            print_json(fact)
        return OK
    if not trace.events:
        print_line(f"{options.lock}: there are no events in it yet")
        return OK
    for line in report.report(trace, options.lock).splitlines():
        print_line(line)
    return OK


def watch(options: Options) -> int:
    """Show the locks of a directory, live."""
    from semlock._cli import rows, watching  # noqa: PLC0415

    directory = existing(options.lock if options.locks else ".")
    if options.json:
        for row in rows.Directory(directory, options.dialect).rows():
            print_json(describe(row.found, row.system))
        return OK
    return watching.watch(
        os.path.abspath(directory),
        interval=options.interval,
        once=options.once,
        dialect=options.dialect,
        color=options.color,
    )
