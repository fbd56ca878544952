"""Timelines: what is made of a trace, whatever is missing in it, and the forms of pictures."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from clilib import checked
from semlock._timeline import reading, report
from semlock._timeline.reading import read
from semlock.cli import main

MS = 1_000_000


def timeline(trace, output=None):
    """Read a trace, draw it, and give the report."""
    return report.report(reading.drawn(trace, output), os.fsdecode(trace))


class Maker:
    """Writes traces as processes would have."""

    def __init__(self, file):
        self.file = str(file)
        self.lines = []
        self.tokens = 0

    def put(self, event, at, pid=1, *, lock="/run/a.lock", offset=0, **fields):
        fields = {name.rstrip("_"): value for name, value in fields.items()}
        where = {} if event in ("start", "exit") else {"lock": lock}
        mono = round(at * MS)
        self.lines.append(
            json.dumps(
                {"t": 10**18 + offset + mono, "mono": mono, "event": event, "pid": pid,
                 "thread": pid, **where, **fields}
            )
        )  # fmt: skip

    def start(self, pid, at=0, command="job", clock="boot/0", **fields):
        self.put("start", at, pid, command=command, clock=clock, **fields)

    def hold(self, begin, end, pid=1, waited=None, **fields):
        self.tokens += 1
        token = f"{self.tokens:032x}"
        if waited is not None:
            self.put("request", begin - waited, pid, **fields)
            self.put("wait", begin - waited, pid, **fields)
        self.put("acquire", begin, pid, token=token, waited=round((waited or 0) * MS), **fields)
        if end is not None:
            self.put("release", end, pid, token=token, held=round((end - begin) * MS), **fields)

    def read(self):
        with open(self.file, "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in self.lines))
        return read(self.file)


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "trace.jsonl")


def spans(found):
    return [(span.process.pid, span.begin / MS, span.end / MS, span.ended) for span in found]


# -------------------------------------------------------------------- reading


def test_holds_and_waits_are_put_together(maker):
    maker.start(1)
    maker.start(2)
    maker.hold(0, 10, 1)
    maker.hold(11, 20, 2, waited=8)
    trace = maker.read()
    assert spans(trace.holds) == [(1, 0, 10, "release"), (2, 11, 20, "release")]
    assert spans(trace.waits) == [(2, 3, 11, "acquire")]
    assert [process.name for process in trace.processes] == ["job 1", "job 2"]


def test_a_killed_holder_held_until_it_was_taken_from_it(maker):
    maker.hold(0, None, 1)
    maker.put("request", 5, 2)
    maker.put("wait", 5, 2, holder=1)
    maker.put("reclaim", 30, 2, from_=1, why="process 1 no longer exists {")
    maker.hold(31, 40, 2)
    maker.hold(50, None, 3)
    maker.hold(60, 70, 2)
    trace = maker.read()
    assert spans(trace.holds) == [
        (1, 0, 30, "killed"), (2, 31, 40, "release"), (3, 50, 60, "killed"), (2, 60, 70, "release"),
    ]  # fmt: skip
    assert [mark.text for mark in trace.marks] == [
        "took it from process 1: process 1 no longer exists {"
    ]


def test_what_has_no_end_lasts_until_its_process_or_the_trace_ends(maker):
    maker.hold(0, None, 1)
    maker.hold(0, None, 2, lock="/run/b.lock")
    maker.put("wait", 5, 3)
    maker.put("exit", 50, 2)
    maker.put("refresh", 90, 1)
    trace = maker.read()
    assert spans(trace.holds) == [(1, 0, 90, "open"), (2, 0, 50, "exit")]
    assert spans(trace.waits) == [(3, 5, 90, "open")]


def test_ends_without_a_beginning_are_left_out(maker):
    maker.put("release", 5, 1, token="x", held=5 * MS)
    maker.put("timeout", 6, 1, waited=6 * MS)
    maker.put("lost", 7, 1, token="y")
    maker.hold(10, 30, 2)
    maker.put("release", 20, 1, token="z", held=15 * MS)
    trace = maker.read()
    assert spans(trace.holds) == [(2, 5, 25, "release")]
    assert trace.waits == []


def test_lines_that_cant_be_read_are_counted_and_left_out(maker):
    maker.hold(0, 10)
    torn = ['{"t":1,"mono":2,"ev', "[]", "null", '{"event":"acquire"}', "x" * 10,
            '{"t":1,"mono":"2","event":"acquire","pid":1,"thread":1}', '{"t":1' * 9,
            '{"t":1,"mono":2,"event":"acquire","pid":1,"thread":1,"lock":7}', "[" * 100_000,
            '{"t":1e400,"mono":2,"event":"acquire","pid":1,"thread":1}']  # fmt: skip
    maker.lines[1:1] = [*torn, ""]
    trace = maker.read()
    assert trace.skipped == len(torn)
    assert spans(trace.holds) == [(1, 0, 10, "release")]
    assert f"{len(torn)} lines can't be read" in timeline(maker.file)


def test_bytes_that_are_no_text_are_left_out(maker):
    maker.hold(0, 10)
    maker.read()
    with open(maker.file, "ab") as file:
        file.write(b"\xff\xfe{\x00\n" + maker.lines[0].encode()[:-9])
    assert read(maker.file).skipped == 2


def test_the_order_of_lines_doesnt_count(maker):
    maker.hold(0, 10, 1)
    maker.hold(10, 20, 2, waited=5)
    expected = spans(maker.read().holds)
    maker.lines.reverse()
    assert spans(maker.read().holds) == expected


def test_clocks_of_machines_are_brought_together_by_the_time_of_day(maker):
    maker.start(1, clock="one/0")
    maker.start(2, at=70_000, clock="two/0", offset=-69_995 * MS)
    maker.hold(0, 10, 1)
    maker.hold(70_007, 70_020, 2, offset=-69_990 * MS)
    trace = maker.read()
    assert spans(trace.holds)[0] == (1, 0, 10, "release")
    (_, begin, end, _) = spans(trace.holds)[1]
    assert 10 < begin < 20
    assert end - begin == 13


def test_a_clock_that_was_set_meanwhile_moves_nothing(maker):
    maker.start(1)
    maker.hold(0, 10, 1)
    maker.start(2, at=11, offset=3_600_000 * MS)
    maker.hold(20, 30, 2, offset=3_600_000 * MS)
    assert spans(maker.read().holds) == [(1, 0, 10, "release"), (2, 20, 30, "release")]


def test_clocks_that_nearly_agree_are_one(maker):
    """A process whose first line is torn doesn't say by which clock it goes."""
    maker.start(1)
    maker.hold(0, 10, 1)
    maker.hold(10.5, 20, 2, offset=-300 * MS)
    assert spans(maker.read().holds) == [(1, 0, 10, "release"), (2, 10.5, 20, "release")]


def test_a_process_number_that_is_used_again_is_another_process(maker):
    maker.start(1, command="first")
    maker.hold(0, None, 1, lock="/run/b.lock")
    maker.put("refresh", 9, 1, lock="/run/b.lock")
    maker.start(1, at=20, command="second")
    maker.hold(20, 30, 1)
    trace = maker.read()
    assert [process.command for process in trace.processes] == ["first", "second"]
    assert spans(trace.holds) == [(1, 0, 9, "exit"), (1, 20, 30, "release")]


# -------------------------------------------------------------------- the report


def test_the_longest_waits_name_the_holder_they_were_behind(maker):
    maker.start(1, command="slow")
    maker.start(2, command="quick")
    maker.hold(0, 500, 1, tag="the nightly job")
    maker.hold(500, 510, 2, waited=400)
    text = report.report(maker.read(), "t")
    words = (
        "1. 400 ms for a.lock at +100 ms: quick 2; 400 ms of it behind slow 1 (the nightly job)"
    )
    assert words in text


def test_three_behind_one_hold_are_a_convoy_and_two_are_none(maker):
    maker.hold(0, 100, 1)
    for number in (2, 3):
        maker.hold(100 * number, 100 * number + 1, number, waited=100 * number - 50)
    assert report.convoys(maker.read()) == []
    maker.hold(400, 401, 4, waited=340)
    (convoy,) = report.convoys(maker.read())
    assert (convoy.lock, convoy.most, convoy.waiters) == ("/run/a.lock", 3, 3)
    assert convoy.longest.process.pid == 1


def test_two_that_wait_all_the_time_over_many_hand_overs_are_a_convoy(maker):
    for number in range(12):
        maker.hold(
            10 * number, 10 * number + 9.5, number % 3, waited=19 if number > 2 else None
        )
    (convoy,) = report.convoys(maker.read())
    assert convoy.most == 2
    assert convoy.holds >= 8
    text = report.report(maker.read(), "t")
    assert "up to 2 of 3 waited" in text
    assert "it was held 95 % of the time" in text


def test_a_trace_without_events_has_a_report_and_pictures(maker, tmp_path):
    maker.read()
    assert "0 events" in timeline(maker.file)
    for ending in ("svg", "html", "json"):
        timeline(maker.file, tmp_path / f"out.{ending}")


def test_locks_have_the_shortest_name_that_is_their_own():
    names = report.names_of(["/a/x/the.lock", "/a/y/the.lock", "/b/other.lock"])
    assert list(names.values()) == ["x/the.lock", "y/the.lock", "other.lock"]


# -------------------------------------------------------------------- the pictures

NASTY = '</script><!-- "\\ \x1b[31m & \u202e <b>'


@pytest.fixture
def contended(maker):
    """Many processes and locks, one killed, one in vain, one lost, two threads, odd words."""
    for pid in range(1, 14):
        maker.start(pid, command=f"job{pid}" if pid != 3 else NASTY)
    for number in range(60):
        pid = number % 12 + 1
        maker.hold(10 * number, 10 * number + 9, pid, waited=25 if number > 2 else None,
                   tag=NASTY if number % 7 == 0 else "")  # fmt: skip
    maker.hold(100, None, 13, lock="/run/b.lock")
    maker.put("reclaim", 200, 1, lock="/run/b.lock", from_=13, why=NASTY)
    maker.put("request", 300, 2, lock="/run/b.lock")
    maker.put("wait", 300, 2, lock="/run/b.lock")
    maker.put("timeout", 340, 2, lock="/run/b.lock", waited=40 * MS)
    maker.put("acquire", 350, 2, lock="/run/b.lock", token="l", waited=0)
    maker.put("lost", 360, 2, lock="/run/b.lock", token="l")
    maker.hold(400, 500, 5, lock="/run/c.lock", task="Task-1")
    maker.hold(405, 495, 5, lock="/run/d.lock", task="Task-2")
    maker.read()
    return maker.file


def drawn(file, ending):
    out = f"{file}.{ending}"
    timeline(file, out)
    with open(out, encoding="utf-8") as picture:
        return picture.read()


def test_the_svg_is_whole_and_says_what_each_bar_is(contended):
    text = drawn(contended, "svg")
    root = ET.fromstring(text)
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(" held a.lock for 9 ms" in title for title in titles) == 2 * 60
    assert sum(" waited for a.lock for 25 ms" in title for title in titles) == 57
    assert any("never released" in title for title in titles)
    assert any("took it from process 13" in title for title in titles)
    assert "\x1b" not in text
    assert "\u202e" not in text
    # One file that needs nothing else.
    assert re.findall(r'(?:href|src|url)\s*=?\s*["(]?\s*(?:https?:|//)', text) == []


def test_the_svg_of_a_long_trace_stays_small(maker):
    for number in range(20_000):
        maker.hold(number, number + 0.5, number % 8)
    maker.read()
    assert len(drawn(maker.file, "svg")) < 3_000_000


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.scripts = []
        self.tags = []
        self._inside = None

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts.append(data)

    def handle_endtag(self, tag):
        self._inside = None


def test_the_page_is_whole_and_nothing_in_a_trace_becomes_part_of_its_code(contended):
    page = _Page()
    page.feed(drawn(contended, "html"))
    data, code = page.scripts
    content = json.loads(data)
    assert any(NASTY[:16] in bar[5] for row in content["rows"] for bar in row.get("bars", ()))
    assert sum(len(row["bars"]) for row in content["rows"] if row.get("name")) == 64
    assert code.count("{") == code.count("}")
    assert not [a for tag, a in page.tags if a.keys() & {"src", "href"} or tag in ("b", "link")]
    assert "@" not in "".join(re.findall("@[A-Z]+@", code))


def test_chromes_format_is_as_its_readers_want_it(contended):
    content = json.loads(drawn(contended, "json"))
    events = content["traceEvents"]
    lanes, names, flows = {}, {}, {}
    for event in events:
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
        assert event["name"]
        if event["ph"] == "M":
            names[event["name"], event["pid"], event["tid"]] = event["args"]
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            lanes.setdefault((event["pid"], event["tid"]), []).append(event)
        elif event["ph"] in "sf":
            flows.setdefault(event["id"], []).append(event)
        else:
            assert event["ph"] in "iC"
    for (pid, tid), slices in lanes.items():
        assert ("process_name", pid, 0) in names
        assert ("thread_name", pid, tid) in names
        # Slices of one lane must not overlap, or their reader nests them.
        slices.sort(key=lambda event: event["ts"])
        for before, after in pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6, (before, after)
    assert len(flows) == 57
    for start, finish in flows.values():
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e")
        assert start["ts"] <= finish["ts"]
        for flow in (start, finish):
            assert any(
                event["ts"] <= flow["ts"] <= event["ts"] + event["dur"]
                for event in lanes[flow["pid"], flow["tid"]]
            )


def test_another_ending_is_refused_before_anything_is_read():
    with pytest.raises(ValueError, match=r"\.svg, \.html or \.json"):
        timeline("/nowhere", "/nowhere.png")


def test_a_real_trace_makes_a_true_picture(tmp_path):
    """From the program to the picture: three processes take turns for one lock."""
    file = str(tmp_path / "trace.jsonl")
    code = f"""
import semlock, time
for _ in range(4):
    with semlock.Lock({str(tmp_path / "the.lock")!r}, tag="turn"):
        time.sleep(0.005)
"""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "SEMLOCK_TRACE": file}
        )
        for _ in range(3)
    ]
    assert [program.wait(60) for program in running] == [0, 0, 0]
    trace = read(file)
    assert len(trace.holds) == 12
    assert {hold.ended for hold in trace.holds} == {"release"}
    for before, after in pairwise(trace.holds):
        assert before.end <= after.begin
    assert {process.pid for process in trace.processes} == {p.pid for p in running}
    assert all(wait.ended == "acquire" for wait in trace.waits)
    assert "the.lock" in drawn(file, "svg")
    assert timeline(file).startswith(file)


def test_a_program_is_told_the_same_as_people(maker, capsys):
    """Each fact has the form that is documented, and the numbers are those of the picture."""
    maker.hold(0, 50, 1, tag="slow")
    for pid in (2, 3, 4):
        maker.hold(50 + pid, 50.5 + pid, pid, waited=40)
    maker.put("reclaim", 60, 2, lock="/run/b.lock", from_=7, why="it is dead")
    maker.hold(61, None, 5, lock="/run/b.lock")
    trace = maker.read()
    assert main(["timeline", "--json", maker.file]) == 0
    kinds = ("trace", "lock", "wait", "convoy", "odd")
    facts = {kind: [] for kind in kinds}
    for line in capsys.readouterr().out.splitlines():
        kind = next(kind for kind in kinds if kind in json.loads(line))
        facts[kind].append(checked(line, kind))
    [summary] = facts["trace"]
    assert summary["events"] == trace.events
    assert {fact["lock"] for fact in facts["lock"]} == set(trace.locks)
    assert sum(fact["holds"] for fact in facts["lock"]) == len(trace.holds)
    assert [fact["wait"] for fact in facts["wait"]] == [
        span.length / 1e9 for span in report.longest_waits(trace)
    ]
    assert facts["wait"][0]["behind_tag"] == "slow"
    assert [fact["most"] for fact in facts["convoy"]] == [3]
    assert [fact["odd"] for fact in facts["odd"]] == ["reclaim", "unreleased"]
