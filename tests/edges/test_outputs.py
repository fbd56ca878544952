"""What the command leaves in files: it replaces nothing that it read, and leaves nothing behind."""

import os
import subprocess

import pytest

from clilib import command

START = (
    '{"t":1,"mono":1,"event":"start","pid":1,"thread":1,"command":"x","host":"h","clock":"c"}\n'
)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(START)
    return path


def the_same(trace, tmp_path):
    return trace


def another_spelling(trace, tmp_path):
    return os.path.join(tmp_path.parent, ".", tmp_path.name, "t.json")


def a_symbolic_link(trace, tmp_path):
    (tmp_path / "link.svg").symlink_to(trace)
    if not (tmp_path / "link.svg").exists():
        pytest.skip("Wine makes no symlinks, and says that it does")
    return tmp_path / "link.svg"


def a_hard_link(trace, tmp_path):
    os.link(trace, tmp_path / "hard.html")
    return tmp_path / "hard.html"


@pytest.mark.parametrize("way", [the_same, another_spelling, a_symbolic_link, a_hard_link])
def test_a_picture_never_replaces_the_trace_that_it_is_of(way, trace, tmp_path):
    try:
        output = way(trace, tmp_path)
    except OSError as error:
        pytest.skip(f"no such links here: {error}")
    result = command("timeline", str(trace), "-o", str(output))
    assert result.returncode == 2
    assert "the trace itself" in result.stderr
    assert trace.read_text() == START


def test_a_picture_replaces_another_file(trace, tmp_path):
    for _ in range(2):
        assert command("timeline", str(trace), "-o", str(tmp_path / "t.svg")).returncode == 0
    assert (tmp_path / "t.svg").read_text().startswith("<")
    missing = tmp_path / "missing.json"
    assert command("timeline", str(missing), "-o", str(missing)).returncode == 3
    assert not missing.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="it needs root")
@pytest.mark.parametrize("as_json", [False, True])
def test_the_doctor_refuses_a_directory_where_nothing_can_be_removed(as_json, tmp_path):
    """In words, and without files that would stay for ever."""
    place = tmp_path / "place"
    place.mkdir()
    if subprocess.run(["chattr", "+a", place], capture_output=True, check=False).returncode:
        pytest.skip("this filesystem has no such directories")
    try:
        result = command("doctor", *(["-j"] if as_json else []), str(place))
        left = list(place.rglob("*"))
    finally:
        subprocess.run(["chattr", "-R", "-a", place], check=True)
    assert (result.returncode, result.stderr) == (3, "")
    assert "never be released" in result.stdout
    assert len(left) == 1  # an empty directory, which can't be removed
