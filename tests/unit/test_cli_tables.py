"""What is made from the table: the parser, help, man page, reference and completion files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import manual
from clilib import command, words
from semlock._cli import SHELLS, completion, helping, table, verbs
from semlock._cli.parsing import UsageError, parse

DOCS = Path(__file__).parents[2] / "docs"


def needs(program):
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"{program} is not installed"
    )


# ---------------------------------------------------------------------- the parser


def test_options_may_stand_anywhere_before_the_command():
    for line in (
        "run -t 5 -qm x a -- c -t 9",
        "run a -t5 -q --tag=x -- c -t 9",
        "run --timeout=5 a -qmx -- c -t 9",
        "run -t 5 -q -m x a c -t 9",
    ):
        options = parse(line.split())
        assert (options.timeout, options.quiet, options.tag) == (5.0, True, "x")
        assert (options.locks, options.command) == (("a",), ("c", "-t", "9"))


def test_the_last_word_about_waiting_counts():
    assert parse("run -n -w forever a c".split()).timeout is None
    assert parse("run -w 3 -n a c".split()).timeout == 0.0
    assert parse("run -n -t 3 a c".split()).timeout == 3.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("2.5", 2.5), (".5", 0.5), ("500ms", 0.5), ("30s", 30), ("1m", 60),
        ("1.5min", 90), ("2h", 7200), ("1h30m", 5400), ("1d", 86400), ("forever", None),
    ],
)  # fmt: skip
def test_a_wait_is_given_in_seconds_or_with_units(text, seconds):
    for word in ("-w", "--wait", "-t", "--timeout"):
        assert parse(["run", word, text, "a", "c"]).timeout == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "1x", "1 m", "m", "ms", "1m-", "nan", "5,5"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError, match="is not a duration"):
        parse(["run", "-w", text, "a", "c"])


@pytest.mark.parametrize(
    "line",
    ["run -n 10 a.lock -- ls", "run 10 a.lock -- ls", "try 1m", "acquire -n .5",
     "status 10", "run -s forever x -- y"],
)  # fmt: skip
def test_a_value_never_becomes_a_lock_without_a_word(line):
    with pytest.raises(UsageError, match=r"write \./"):
        parse(line.split())
    name = next(word for word in line.split()[1:] if word[0] in "1.f")
    assert f"./{name}" in parse(line.replace(name, f"./{name}", 1).split()).locks


def test_an_option_behind_the_lock_is_not_taken_for_the_command():
    with pytest.raises(UsageError, match="options go before the lock"):
        parse("run a -w 10 ls".split())


def test_what_stands_behind_two_dashes_is_no_option():
    assert parse(["status", "--", "-j"]).locks == ("-j",)
    assert parse(["run", "a", "b", "--", "--", "c"]).command == ("--", "c")
    assert parse(["run", "a", "b", "--", "c"]).locks == ("a", "b")
    assert parse(["status", "-"]).locks == ("-",)


def test_a_word_that_is_nearly_right_is_named():
    with pytest.raises(UsageError, match="did you mean status"):
        parse(["statsu", "a"])
    with pytest.raises(UsageError, match="did you mean --timeout"):
        parse(["run", "--timout", "3", "a", "c"])


def test_every_option_of_every_verb_is_read():
    sample = {"SECONDS": "1.5", "N": "3", "PID": "7", "TEXT": "x"}
    for verb in table.VERBS:
        for option in verb.options:
            if (
                option is verbs.HELP or verb.raw
            ):  # one that reads its own: interop/test_flock.py
                continue
            value = option.choices[-1] if option.choices else sample.get(option.takes)
            operand = verb.operands[0].choices[:1] or ("a",)
            rest = [*operand, *(["c"] if verb.command else [])]
            for word in option.words:
                options = parse([verb.name, word, *([value] if option.takes else []), *rest])
                wanted = option.read(value) if option.takes else option.sets
                assert getattr(options, option.name) == wanted
                assert hasattr(type(options), option.name)


def test_words_of_one_verb_are_different():
    for verb in table.VERBS:
        known = [word for option in verb.options for word in option.words]
        assert len(known) == len(set(known)), verb.name


def test_every_verb_has_its_function():
    for verb in table.VERBS:
        module, function = verb.where
        assert callable(
            getattr(__import__(f"semlock._cli.{module}", fromlist=[function]), function)
        )


# ---------------------------------------------------------------------- help and man page


@pytest.mark.parametrize("verb", table.VERBS, ids=lambda verb: verb.name)
def test_help_tells_of_every_option_and_has_examples(verb):
    text = helping.help_of(verb)
    assert text.startswith(f"usage: semlock {verb.name}")
    for option in verb.options:
        for word in option.words:
            assert word in text
    assert verb.examples
    assert "exit codes" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_help_is_asked_for_in_three_ways():
    texts = {
        command("help", "run").stdout,
        command("run", "--help").stdout,
        command("run", "-h", "x").stdout,
    }
    assert len(texts) == 1
    assert command("--help").stdout == command("help").stdout


@pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not here")
def test_man_page_and_reference_are_those_of_the_table():
    again = "make them anew with: python docs/_make/manual.py"
    for name, text in manual.files().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, again
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert page == manual.with_reference(page), again


@needs("man")
@pytest.mark.skipif(sys.platform != "linux", reason="man -l is man-db's")
@pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not here")
def test_the_man_page_can_be_read():
    result = subprocess.run(
        ["man", "--warnings=w", "-E", "UTF-8", "-l", str(DOCS / "semlock.1")],
        capture_output=True, text=True, check=True, env={**os.environ, "MANWIDTH": "80"},
    )  # fmt: skip
    assert result.stderr == ""
    assert "semlock - hold file locks" in result.stdout
    assert "--on-conflict-exit" in result.stdout


# ---------------------------------------------------------------------- completion


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """A directory with lock files to complete, and a program semlock on the PATH."""
    place = tmp_path / "bin"
    place.mkdir()
    script = place / "semlock"
    script.write_text(f'#!/bin/sh\nexec {" ".join(words())} "$@"\n')
    script.chmod(0o755)
    (tmp_path / "one.lock").touch()
    (tmp_path / "sub").mkdir()
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


ASKED = [
    ("semlock sta", {"status"}, {"run"}),
    ("semlock ", {verb.name for verb in table.VERBS}, {"one.lock"}),
    ("semlock status --j", {"--json"}, {"--quiet"}),
    ("semlock run --durability ", {"safe", "full", "data", "none"}, {"one.lock"}),
    ("semlock run one.lock --follow c", {"child"}, {"self"}),
    ("semlock completion ", set(SHELLS), {"one.lock"}),
    ("semlock help doc", {"doctor"}, set()),
    ("semlock status o", {"one.lock"}, {"sub"}),
    ("semlock run one.lock -- semlo", {"semlock"}, {"one.lock"}),
]


def offers(found, wanted, unwanted):
    found = {word.strip().rstrip("/") for word in found}
    return wanted <= found and not unwanted & found


@needs("bash")
@pytest.mark.parametrize(
    ("line", "wanted", "unwanted"), ASKED, ids=[line for line, *_ in ASKED]
)
def test_bash_completes(on_path, line, wanted, unwanted):
    script = (
        'eval "$(semlock completion bash)" || exit 9\n'
        'read -ra COMP_WORDS <<< "$1"\n'
        '[[ $1 == *" " ]] && COMP_WORDS+=("")\n'
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
        "complete -p semlock >/dev/null || exit 9\n"
        "_semlock\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    result = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", line],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert result.stderr == ""
    assert offers(result.stdout.splitlines(), wanted, unwanted), result.stdout


@needs("fish")
@pytest.mark.parametrize(
    ("line", "wanted", "unwanted"), ASKED, ids=[line for line, *_ in ASKED]
)
def test_fish_completes(on_path, line, wanted, unwanted):
    script = f"semlock completion fish | source; complete -C '{line}'"
    result = subprocess.run(
        ["fish", "--no-config", "-c", script],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert result.stderr == ""
    found = [word.split("\t")[0] for word in result.stdout.splitlines()]
    assert offers(found, wanted, unwanted), result.stdout


ZSH = """
import os, pty, select, sys, time

# Completion exists only in an interactive shell at a terminal, so it has one, and what it
# would insert is listed by a widget of its own.
SETUP = r'''
PS1='%% '; unsetopt zle_bracketed_paste 2>/dev/null
autoload -Uz compinit; compinit -u -D
source <(semlock completion zsh)
zstyle ':completion:*' list-colors ''
compadd () {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]]; then builtin compadd "$@"; return $?; fi
  local -a got
  builtin compadd -A got "$@"
  local one
  for one in "${got[@]}"; do print -r -- "$one" >> $ANSWERS; done
  builtin compadd "$@"
}
asked () { zle complete-word; zle kill-whole-line; print done >> $ANSWERS.end }
zle -C complete-word complete-word _main_complete
zle -N asked
bindkey '^X' asked
print set >> $ANSWERS.end
'''

answers = sys.argv[1]
os.environ["ANSWERS"] = answers
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("zsh", ["zsh", "-f", "-i"])

def until(count):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.01)[0]:
            try:
                os.read(terminal, 65536)
            except OSError:
                return
        try:
            if len(open(answers + ".end").readlines()) >= count:
                return
        except FileNotFoundError:
            pass
    raise TimeoutError

with open(answers + ".zsh", "w") as file:
    file.write(SETUP)
os.write(terminal, f"source {answers}.zsh\\n".encode())
until(1)
for number, line in enumerate(sys.argv[2:]):
    with open(answers, "w"):
        pass
    os.write(terminal, line.encode() + b"\\x18")
    until(2 + number)
    print(line, *open(answers).read().split("\\n"), sep="\\x1f")
os.close(terminal)
"""


@needs("zsh")
def test_zsh_completes(on_path, tmp_path_factory):
    answers = tmp_path_factory.mktemp("zsh") / "answers"
    result = subprocess.run(
        [sys.executable, "-c", ZSH, str(answers), *(line for line, _, _ in ASKED)],
        capture_output=True, text=True, check=False, timeout=90,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    told = dict(line.split("\x1f", 1) for line in result.stdout.splitlines() if "\x1f" in line)
    for line, wanted, unwanted in ASKED:
        assert offers(told[line].split("\x1f"), wanted, unwanted), (line, told[line])


def test_no_completion_has_a_verb_or_option_that_is_not_there():
    for text in (completion.bash(), completion.zsh(), completion.fish()):
        for verb in table.VERBS:
            assert verb.name in text
        assert text.endswith("\n")
