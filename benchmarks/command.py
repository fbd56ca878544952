"""What a call of the command costs, beside flock(1) and a Python that does nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import venv
from typing import TYPE_CHECKING

import semlock
from benchmarks import facts
from benchmarks.measuring import Contender, measure
from benchmarks.report import met_text, ratio_text, spread_of, table
from benchmarks.results import TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.measuring import Loop

_BAR = 1.35  # a call, to a Python that does nothing
_FEWEST = 25
_HOW_TO_READ = f"""\
Each row is the time from starting a process to its end, of a lock on tmpfs that is free (for
`release`: one that `try` took). semlock and Python are started from a virtual environment that has
semlock and nothing else, as `pip install` makes it. All take turns, and a ratio is the median over
all rounds. A call of `run`, `try`, `release` or `status` should take at most {_BAR} {TIMES} the
time of `python -c pass`. `tests/unit/test_cli_cost.py` lists the modules that such a call imports,
and bounds its system calls.

What `run` costs beyond that: the start of the command, which the core makes without a copy of
Python's memory, and the import of two compiled modules (cffi and the core) and of ten small ones.
"""


@contextlib.contextmanager
def _installed() -> Iterator[tuple[str, str]]:
    """Make a place where only semlock is installed: its Python and its command."""
    with tempfile.TemporaryDirectory(prefix="semlock-benchmark-") as place:
        venv.create(place, with_pip=False, symlinks=True)
        python = os.path.join(place, "bin", "python")
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = subprocess.check_output([python, "-c", where], text=True).strip()
        core = importlib.util.find_spec("_cffi_backend")
        for source in (os.path.dirname(semlock.__file__), core.origin if core else None):
            if source is not None and os.path.exists(source):
                os.symlink(source, os.path.join(packages, os.path.basename(source)))
        command = os.path.join(place, "bin", "semlock")
        with open(command, "w", encoding="utf-8") as file:
            # As pip writes it, from version 25.2 on; older ones import `re` in it.
            file.write(
                f"#!{python}\nimport sys\nfrom semlock.cli import entry\n"
                "if __name__ == '__main__':\n"
                "    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n"
                "    sys.exit(entry())\n"
            )
        os.chmod(command, 0o755)
        yield python, command


def _nothing() -> None:
    pass


def _calls(
    *words: str,
    first: Callable[[], object] = _nothing,
    then: Callable[[], object] = _nothing,
) -> Loop:
    """Make a loop of calls of a program; what is done before and after each isn't counted."""

    def loop(count: int) -> int:
        spent = 0
        for _ in range(count):
            first()
            began = time.perf_counter_ns()
            process = os.posix_spawn(words[0], words, os.environ, file_actions=silent)
            status = os.waitpid(process, 0)[1]
            spent += time.perf_counter_ns() - began
            if status:
                raise RuntimeError(f"{' '.join(words)} failed")
            then()
        return spent

    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    return loop


def measure_command(memory: str, seconds: float) -> str:
    """Measure, and write the part of the page."""
    path = os.path.join(memory, "command.lock")
    true = shutil.which("true") or "true"
    with _installed() as (python, semlock_):
        taking = (semlock_, "try", path)
        contenders = [
            Contender("floor", "`python -c pass`", "floor", _calls(python, "-c", "pass")),
            Contender(
                "run", "semlock run LOCK -- true", "semlock",
                _calls(semlock_, "run", path, "--", true),
            ),
            Contender(
                "try", "semlock try LOCK", "semlock",
                _calls(*taking, then=lambda: os.unlink(path)),
            ),
            Contender(
                "release", "semlock release LOCK", "semlock",
                _calls(
                    semlock_, "release", path,
                    first=lambda: subprocess.run(taking, check=True),
                ),
            ),
            Contender(
                "status", "semlock status LOCK", "semlock", _calls(semlock_, "status", path)
            ),
        ]  # fmt: skip
        flock = shutil.which("flock")
        if flock is not None:
            contenders.append(
                Contender(
                    "flock", "flock(1) FILE true", "peer", _calls(flock, path + "2", true)
                )
            )
        group = measure("calls of the command", contenders, seconds, fewest=_FEWEST)
    lines = ["## The command", "", f"- Date: {facts.today()}", f"- Kernel: {facts.kernel()}"]
    lines += [f"- Python: {facts.python()}", f"- Processor: {facts.processor()}"]
    lines += [f"- Rounds: {len(group.contenders[0].samples)}"]
    lines += [f"- Load: {facts.load_after()}", "", _HOW_TO_READ]
    rows: list[tuple[str, ...]] = [("", "median ms", "to `python -c pass`", "bar", "")]
    for contender in group.contenders:
        ratio = group.ratio(contender.key)
        assert ratio is not None
        own = contender.kind == "semlock"
        rows.append(
            (
                f"**{contender.label}**" if own else contender.label,
                f"{spread_of(contender).median / 1e6:.2f}",
                ratio_text(ratio),
                f"≤ {_BAR:g}" if own else "",
                met_text(ratio.median <= _BAR) if own else "",
            )
        )
    return "\n".join([*lines, *table(rows, right=1), ""])
