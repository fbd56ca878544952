"""The entry: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import runpy
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _find_the_installed_semlock() -> None:
    """Keep a source tree that was never compiled from hiding the installed package.

    ``python -m`` puts the checkout first on the path.  The modules of this package are found
    by now and don't need it.
    """
    if not glob.glob(os.path.join(_CHECKOUT, "semlock", "_core", "compiled*.so")):
        sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != _CHECKOUT]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure semlock beside C loops of the same system calls and beside the "
        "libraries filelock, fasteners and portalocker, where they are installed.",
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=("all", "alone", "fresh", "polls", "waiting", "crowds", "command", "engines"),
        default="all",
        help="only the cost of uncontended locks, of fresh processes that wait, of polls of many "
        "locks, of waiting, of crowds, of the command, or of locks on servers",
    )
    parser.add_argument("--tmpfs", metavar="DIR", help="a directory in memory (/dev/shm)")
    parser.add_argument("--disk", metavar="DIR", help="a directory on a disk")
    parser.add_argument(
        "--seconds",
        type=float,
        help="how long each group takes turns when no process waits (10; quick: 1)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="only a look: prints, and writes no page"
    )
    parser.add_argument(
        "--output", metavar="DIR", help="where the page and the picture go (docs/)"
    )
    return parser.parse_args()


@contextlib.contextmanager
def _directories(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    from benchmarks.facts import filesystem

    memory = arguments.tmpfs or "/dev/shm"
    if not os.path.isdir(memory) or filesystem(memory) not in ("tmpfs", "ramfs"):
        raise RuntimeError(f"{memory} is no tmpfs: name one with --tmpfs")
    disk = arguments.disk or tempfile.gettempdir()
    if arguments.disk is None and filesystem(disk) in ("tmpfs", "ramfs"):
        disk = _CHECKOUT
    with (
        tempfile.TemporaryDirectory(prefix="semlock-benchmark-", dir=memory) as in_memory,
        tempfile.TemporaryDirectory(prefix="semlock-benchmark-", dir=disk) as on_disk,
    ):
        yield in_memory, on_disk


def _write(directory: str, files: dict[str, str]) -> None:
    os.makedirs(directory, exist_ok=True)
    for name, text in files.items():
        path = os.path.join(directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        print(f"wrote {path}", file=sys.stderr)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _alone(memory: str, disk: str, arguments: argparse.Namespace) -> tuple[str, dict[str, str]]:
    from benchmarks import plot, report
    from benchmarks.run import measure_everything

    seconds = arguments.seconds or (1.0 if arguments.quick else 10.0)
    found = measure_everything(memory, disk, seconds, 10 if arguments.quick else 60)
    return report.alone(found), {report.PICTURE: plot.svg(found)}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _fresh(memory: str, arguments: argparse.Namespace) -> tuple[str, dict[str, str]]:
    from benchmarks.users import plot, report
    from benchmarks.users.fresh import measure_fresh

    found = measure_fresh(memory, 6 if arguments.quick else 80, _say)
    return report.fresh(found), {plot.FRESH_PICTURE: plot.fresh_svg(found)}


def _polls(memory: str, arguments: argparse.Namespace) -> tuple[str, dict[str, str]]:
    from benchmarks.users import plot, report
    from benchmarks.users.polls import FULL, QUICK, measure_polls

    found = measure_polls(memory, QUICK if arguments.quick else FULL, _say)
    return report.polls(found), {plot.POLLS_PICTURE: plot.polls_svg(found)}


def _waiting(memory: str, arguments: argparse.Namespace) -> tuple[str, dict[str, str]]:
    from benchmarks.waiting import plot, report
    from benchmarks.waiting.plan import FULL, QUICK
    from benchmarks.waiting.run import measure_waiting

    found = measure_waiting(memory, QUICK if arguments.quick else FULL)
    return report.waiting(found), {report.PICTURE: plot.svg(found)}


def _crowds(memory: str, arguments: argparse.Namespace) -> tuple[str, dict[str, str]]:
    from benchmarks.crowds import plot, report
    from benchmarks.crowds.run import measure_crowds

    found = measure_crowds(memory, quick=arguments.quick)
    return report.crowds(found), {report.PICTURE: plot.svg(found)}


def _command(memory: str, arguments: argparse.Namespace) -> str:
    from benchmarks.command import measure_command

    return measure_command(memory, arguments.seconds or (1.0 if arguments.quick else 10.0))


def _engines(arguments: argparse.Namespace) -> tuple[str, dict[str, str]]:
    from benchmarks.engines import report
    from benchmarks.engines.run import measure_engines

    seconds = arguments.seconds or (1.0 if arguments.quick else 10.0)
    found = measure_engines(seconds, 5 if arguments.quick else 30)
    return report.engines(found), {report.PICTURE: report.picture(found)}


def _run(arguments: argparse.Namespace) -> None:
    from benchmarks import report

    parts: dict[str, str] = {}
    files: dict[str, str] = {}
    with _directories(arguments) as (memory, disk):
        # Waiting first: it starts from a process in which nothing was measured yet.
        if arguments.part in ("all", report.FRESH):
            parts[report.FRESH], pictures = _fresh(memory, arguments)
            files |= pictures
        if arguments.part in ("all", report.WAITING):
            parts[report.WAITING], pictures = _waiting(memory, arguments)
            files |= pictures
        if arguments.part in ("all", report.POLLS):
            parts[report.POLLS], pictures = _polls(memory, arguments)
            files |= pictures
        if arguments.part in ("all", report.CROWDS):
            parts[report.CROWDS], pictures = _crowds(memory, arguments)
            files |= pictures
        if arguments.part in ("all", report.ALONE):
            parts[report.ALONE], pictures = _alone(memory, disk, arguments)
            files |= pictures
        if arguments.part in ("all", report.COMMAND):
            parts[report.COMMAND] = _command(memory, arguments)
        if arguments.part in ("all", report.ENGINES):
            parts[report.ENGINES], pictures = _engines(arguments)
            files |= pictures
    print(report.page(parts))
    if arguments.output or not arguments.quick:
        output = arguments.output or os.path.join(_CHECKOUT, "docs")
        before = _read(os.path.join(output, report.PAGE))
        _write(output, {report.PAGE: report.page(parts, before), **files})
        if not arguments.output:
            # The sentences of other pages that state what was measured.
            runpy.run_path(os.path.join(output, "_make", "figures.py"))["main"]()


def main() -> int:
    if not sys.platform.startswith("linux"):
        print(
            "the benchmarks compare system calls of Linux, and run only there", file=sys.stderr
        )
        return 2
    arguments = _arguments()
    _find_the_installed_semlock()
    try:
        _run(arguments)
    except (ImportError, RuntimeError) as error:
        print(f"python -m benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
