"""Each figure in the README and the docs is a benchmark's row, a constant of the code, or a test's.

A sentence that states a figure and stands in none of the tables below is a failure, and so is an
entry of a table whose sentence or test is gone.
"""

# ruff: noqa: E501 - a table

import re
from pathlib import Path

import pytest

import figures
from semlock import _waiting
from semlock._cli import waiting as cli_waiting
from semlock._core import status, verdicts
from semlock._engines import address, directory_facts, directory_line, keeper, space
from semlock._locks import candidates, together
from semlock._waiting import steps, waiter

ROOT = Path(__file__).resolve().parents[2]
MADE = {
    "docs/benchmarks.md",
    "docs/platforms.md",
}  # what a program wrote, and what was run when
PAGES = [
    name
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/howto").glob("*.md")]
    if (name := path.relative_to(ROOT).as_posix()) not in MADE
]  # fmt: skip

_NUMBER = (
    r"(?:\d[\d,.]*|one|two|three|four|five|ten|thirty|sixty|half an?|a quarter of an?|a fifth of an?|a tenth of an?|"
    r"a hundred|a thousand)"
)  # fmt: skip
_UNIT = r"(?:µs|ms|s|seconds?|milliseconds?|microseconds?|minutes?|hours?|%|bytes|KiB|MiB|×|system call)"
FIGURE = re.compile(
    rf"\b{_NUMBER}[ -]{_UNIT}(?![\w/])|\b\d+th of the|a millisecond\b|a second\b"
)
C_SOURCES = "".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "csrc").rglob("*.[ch]"))
)
TESTS = {
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in re.findall(
        r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE
    )
}


def _of_c(name):
    """Give a constant of the core, in seconds; 0 says that a platform does without it."""
    found = re.findall(rf"^#define {name} +(\d+)", C_SOURCES, re.MULTILINE)
    (value,) = set(found) - {"0"}
    return int(value) / 1e9


# A piece of a sentence, and what shows it: a test's name, or that the code's constant is the same.
SHOWN = {
    "docs/engines.md": {
        "requests per second while nothing changes | 400 | 200 | 200": 1000 * keeper._RENEWALS / space.USUAL_TTL == 200,
        "with a thousand waiters on one lock": "test_many_waiters_on_one_lock_come_in_order",
        "up to 1024 bytes in UTF-8": address.LONGEST_NAME == 1024,
        "a third of `ttl`, 5 seconds at most": (keeper._RENEWALS, keeper._PATIENCE) == (3, 5),
        "PostgreSQL's client takes 2 seconds": "test_a_timeout_bounds_connecting_and_a_release",
        "15 seconds by default": space.USUAL_TTL == 15,
        "60 seconds by default": directory_facts.slack_of("nfs4", "rw,hard") == 60,
        "`actimeo` of SMB, 1 second": directory_facts.slack_of("cifs", "rw") == 1,
        "passes on after 90 seconds": 30 + directory_facts.slack_of("nfs", "rw") == 90,
        "`-o acregmax=3` after 33": 30 + directory_facts.slack_of("nfs", "rw,acregmax=3") == 33,
        "looks ten times in a second": directory_line.WAITING_PERIOD == 0.1,
    },
    "README.md": {
        "a failed try is one system call": "test_a_failed_try_on_a_lock_seen_before_is_one_system_call",
        "removes it after two seconds": "test_a_soft_file_lock_takes_semlocks_file_for_broken",
        "again for a millisecond before it makes way": _of_c("SEMLOCK_BURST_NS") == 0.001,
    },
    "docs/guarantees.md": {
        "A free lock is acquired within 0.3 s": "test_a_waiter_has_a_free_lock_soon_though_those_before_it_are_stopped",
        "removed after two seconds of silence": verdicts.GRACE == 2,
        "`release` waits five seconds": status.GUARD_PATIENCE == 5,
        "written within 20 ms after": _of_c("SEMLOCK_SAME_NS") == 0.02,
        "acquired within 0.3 s, however many before them": "test_of_fifteen_in_a_row_that_have_waited_for_long_one_looks_at_each_moment",
        "A live one alone needs up to 3.3 s": "test_one_that_waits_long_without_events_behind_many_that_are_stopped_has_it_in_time",
        "has waited for 3 s behind": _of_c("FRESH") == 3,
        "it more time, within these 0.3 s": "test_one_that_was_late_itself_has_a_free_lock_in_time_behind_one_that_is_stopped",
        "more than 8 others or before 64 others, or behind more than 128,": (
            round(_of_c("NEAR") * 1e9), round(_of_c("CROWDED") * 1e9), round(_of_c("FAR") * 1e9)
        ) == (8, 64, 128),
        "uses only each 15th": round(_of_c("RARELY") * 1e9) == 15,
        "at the same moments, five in a second": _of_c("TICK") == 0.2,
        "is noticed within a second behind": round(_of_c("HINTED") * _of_c("TICK") * 1e9, 6) == 1,
        "them after up to 3.3 s": "test_one_that_waits_long_without_events_behind_many_that_are_stopped_has_it_in_time",
        "the umask of a second ago": _of_c("SEMLOCK_UMASK_NS") == 1,
    },
    "docs/many.md": {
        "from one millisecond to half a second": (together._FIRST_PATIENCE, together._LONGEST_PATIENCE)
        == (0.001, 0.5),
        "takes 1 % of a processor at most": candidates._SHARE == 100,
    },
    "docs/cli.md": {
        "lasted half a second on a terminal": cli_waiting._SHORT == 0.5,
        "after five seconds elsewhere": cli_waiting._LONG == 5,
        "said after a second": _waiting._FIRST_GAP == 1,
        "`-w 10` waits ten seconds": "test_a_wait_is_given_in_seconds_or_with_units",
    },
    "docs/async.md": {
        "`release()` waits up to five seconds": status.GUARD_PATIENCE == 5,
        "sleeps up to a quarter of a second": steps._INSIST == 0.25,
        "again and again for a millisecond": _of_c("SEMLOCK_BURST_NS") == 0.001,
        "for 0.3 s at most": "test_a_loop_that_is_busy_holds_up_no_others",
        "looks about once a second": waiter._SAFETY == 1,
        "The look once a second": "test_who_leaves_no_witness_is_found_out_by_the_clock",
        "pauses of up to 50 ms": steps.LONGEST_PAUSE == 0.05,
    },
    "docs/waiting.md": {
        "apart from one look a second": "test_a_wait_with_events_hardly_ever_looks",
        "from half a millisecond to 50 ms": (steps.FIRST_PAUSE, steps.LONGEST_PAUSE) == (0.0005, 0.05),
        "and look once a second whether": "test_those_behind_on_fuse_hear_of_changes_and_look_once_a_second",
        "the first in the queue pauses, up to 0.1 s": _of_c("LAST_HINTED") == 0.1,
        "for 3 s behind more than 8 others or before 64 others, or behind more than 128, looks only every 3 s": _of_c("FRESH") == 3
        and round(_of_c("RARELY") * _of_c("TICK") * 1e9, 6) == 3,
        "a waiter needs up to 3.3 s only if nearly all": "test_one_that_waits_long_without_events_behind_many_that_are_stopped_has_it_in_time",
        "and a bound of 0.3 s for any of them would mean that each one wakes five times a second": round(1 / _of_c("TICK")) == 5,
        "Measured with a hundred waiters, that takes 0.8 % of a core instead of 0.15 %, where 0.2 % is the limit": "a measurement of what was not built",
        "of fifteen in a row one looks every 0.2 s": "test_of_fifteen_in_a_row_that_have_waited_for_long_one_looks_at_each_moment",
        "look five times a second": "test_a_wait_without_events_looks_a_few_times_a_second_however_long_it_lasts",
        "holds up the others for 0.3 s at most": "test_one_that_is_stopped_holds_no_other_up",
        "may take up to 0.25 s": steps._INSIST == 0.25,
        "After a tenth of a second a small file": "test_a_ticket_says_whose_it_is_and_since_when",
        "or after a tenth of a second": _of_c("SEMLOCK_ALONE_NS") == 0.1,
        "again and again for one millisecond": _of_c("SEMLOCK_BURST_NS") == 0.001,
        "With locks that are held for a millisecond or longer": "test_a_lock_that_others_wait_for_goes_to_them_in_the_end",
    },
    "docs/seeing.md": {
        "from a microsecond to a quarter of an hour": "test_a_duration_is_counted_under_the_smallest_bound_that_it_keeps",
    },
    "docs/filesystems.md": {
        "removes it after two seconds": verdicts.GRACE == 2,
        "pauses of at most 50 ms": steps.LONGEST_PAUSE == 0.05,
    },
    "docs/howto/replacing.md": {
        "takes it after two seconds": "test_a_soft_file_lock_takes_semlocks_file_for_broken",
    },
    "docs/howto/nfs.md": {
        "at most every 50 ms": steps.LONGEST_PAUSE == 0.05,
        "stopped for two minutes": "what the example above it says: Age(120)",
    },
    "docs/howto/metrics.md": {
        "the wait has lasted a second": _waiting._LOGGED_AFTER == 1,
    },
}  # fmt: skip
NO_FIGURES = ("second one", "a second command", "five minutes")


def sentences(name):
    text = (ROOT / name).read_text(encoding="utf-8").split("\n## Reference\n")[0]
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for part in re.split(r"\n\s*\n|\n(?=[*|-] |\|)", text):
        yield from re.split(r"(?<=[.:;|])\s", " ".join(part.split()))


@pytest.mark.parametrize("name", PAGES)
def test_each_figure_is_measured_or_shown_by_a_test(name):
    text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
    measured = [
        " ".join(found[0].split())
        for where, sentence, _ in figures.FIGURES
        if where == name and (found := re.search(sentence, text))
    ]
    pieces = [*measured, *SHOWN.get(name, {})]
    unknown = [
        sentence
        for sentence in sentences(name)
        if FIGURE.search(sentence)
        and not any(piece in sentence for piece in pieces)
        and not any(word in sentence for word in NO_FIGURES)
    ]
    assert unknown == []
    assert [piece for piece in SHOWN.get(name, {}) if piece not in text] == []


@pytest.mark.parametrize("name", SHOWN)
def test_what_shows_a_figure_is_there(name):
    wrong = {
        piece: shown
        for piece, shown in SHOWN[name].items()
        if not (shown in TESTS or shown is True or (isinstance(shown, str) and " " in shown))
    }
    assert wrong == {}


@pytest.mark.parametrize("name", sorted({name for name, _, _ in figures.FIGURES}))
def test_the_measured_figures_are_those_of_the_benchmarks_page(name):
    page = (ROOT / figures.PAGE).read_text(encoding="utf-8")
    text = (ROOT / name).read_text(encoding="utf-8")
    assert figures.with_figures(name, text, page) == text, "run: python docs/_make/figures.py"
