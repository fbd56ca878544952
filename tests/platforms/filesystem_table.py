"""The table of docs/filesystems.md, from what ``semlock doctor`` finds on each filesystem.

As a program, it mounts them one after the other and prints the table; that needs root.  With
a name and a file, the output of ``semlock doctor --json DIR``, it prints the row of a
filesystem that was measured elsewhere.
"""

from __future__ import annotations

import json
import subprocess
import sys

import mounts

COLUMNS = {
    "filesystem": "known as local",
    "link": "hard links",
    "unnamed": "unnamed files",
    "flock": "flock",
    "witness": "witness",
    "death": "death is seen",
    "events": "events",
}

SIGNS = {"ok": "yes", "limited": "no", "no": "**broken**"}


def measure(kind: str, mounted: str | None = None) -> list[dict[str, str]]:
    """Give what the doctor finds where this is mounted, or on a fresh one of its kind."""
    doctor = [sys.executable, "-m", "semlock", "doctor", "--json", mounted or "."]
    words = mounts.command(kind, *doctor) if mounted is None else doctor
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def row(kind: str, findings: list[dict[str, str]]) -> str:
    """Make a filesystem's row of what the doctor found there."""
    found = {one["check"]: one for one in findings if "check" in one}
    cells = [SIGNS[found[name]["result"]] for name in COLUMNS]
    if "process" in found["death"]["detail"] and found["witness"]["result"] != "ok":
        # By its number: on the same machine, and not out of another container.
        cells[list(COLUMNS).index("death")] = "by process"
    return f"| {kind} | {' | '.join(cells)} |"


def table() -> str:
    """Mount every kind that can be mounted here, and make the rows."""
    lines = [f"| | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for kind in mounts.TOOLS:
        reason = mounts.absence(kind)
        if reason is None and not mounts.is_known(kind):
            reason = "this kernel doesn't know it"
        if reason is not None:
            raise SystemExit(f"{kind}: {reason}")
        lines.append(row(kind, measure(kind)))
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with open(sys.argv[2], encoding="utf-8") as file:
            print(row(sys.argv[1], [json.loads(line) for line in file]))
    else:
        print(table())
