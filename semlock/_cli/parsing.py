"""Parsing of the command line, by the table.

Python's own parsers cost more to import than a whole ``semlock run`` takes.
"""

from __future__ import annotations

from semlock._cli import Options, UsageError, table, verbs
from semlock._cli.options import is_like_a_value

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._cli.verbs import Operand, Option, Verb


def parse(arguments: list[str]) -> Options:
    """Parse a call; ``UsageError`` says what is wrong with it.

    A request for help becomes the verb ``help``, one for the version ``version``.
    """
    options = Options()
    first = arguments[0] if arguments else ""
    if not first:
        raise UsageError("a verb is missing")
    if first in verbs.HELP.words:
        options.verb = "help"
        return options
    if first == "--version":
        options.verb = "version"
        return options
    verb = table.find(first)
    if verb is None:
        if first.startswith("-"):
            raise UsageError(f"there is no verb before {first}: options go behind the verb")
        meant = like(first, [v.name for v in table.VERBS if not v.raw])
        raise UsageError(
            f"there is no {first}{meant}"
            if meant
            else f"there is no verb {first}. To hold a lock while a command runs: semlock run "
            "LOCK -- COMMAND"
        )
    options.verb = verb.name
    if verb.raw:
        options.command = tuple(arguments[1:])
        return options
    words = _read_options(verb, arguments[1:], options)
    if options.verb == "help" and verb.name != "help":
        options.word = verb.name
        return options
    _read_operands(verb, words, options)
    return options


def _read_options(verb: Verb, words: list[str], options: Options) -> list[str]:
    """Read the options among the words, and return the other words: operands.

    Options may come before and after operands, but not after ``--``, nor after the first operand
    of a verb that runs a command if there is no ``--``.
    """
    behind: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, behind = words[:at], words[at + 1 :]
        if verb.command:
            options.command = tuple(behind)
            if not behind:
                raise UsageError(f"{verb.name} needs a command behind --", verb)
            behind = []
    left: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if len(word) < 2 or word[0] != "-":
            _refuse_value(verb, word)
            left.append(word)
            if verb.command and not options.command:
                options.command = tuple(words[index:])
                if options.command and options.command[0].startswith("-"):
                    raise UsageError(
                        f"options go before the lock, so {options.command[0]} would be the "
                        "command: write -- before the command",
                        verb,
                    )
                break
            continue
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            option = _find(verb, name)
            given = value if equals else None
            if given is not None and option.takes is None:
                raise UsageError(f"{name} takes no value", verb)
            index += _set(verb, option, name, given, words, index, options)
            continue
        letters = word[1:]
        while letters:
            name, letters = "-" + letters[0], letters[1:]
            option = _find(verb, name)
            given = letters if letters and option.takes is not None else None
            if given is not None:
                letters = ""
            index += _set(verb, option, name, given, words, index, options)
    return left + behind


def _refuse_value(verb: Verb, word: str) -> None:
    """Refuse a lock's name that is probably the value of the word before it.

    ``run -n 10 a.lock -- ls`` would take a lock file named 10.
    """
    if verb.operands and verb.operands[0].kind == verbs.FILE and is_like_a_value(word):
        raise UsageError(
            f"{word} looks like an option's value, and no option takes it here; for a file of "
            f"that name write ./{word}",
            verb,
        )


def _find(verb: Verb, name: str) -> Option:
    for option in verb.options:
        if name in option.words:
            return option
    known = [word for option in verb.options for word in option.words]
    raise UsageError(f"{verb.name} has no {name}{like(name, known)}", verb)


def _set(
    verb: Verb,
    option: Option,
    name: str,
    given: str | None,
    words: list[str],
    index: int,
    options: Options,
) -> int:
    """Set one option, and say how many more words it has used up."""
    if option is verbs.HELP:
        options.verb = "help"
        return 0
    if option.takes is None:
        setattr(options, option.name, option.sets)
        return 0
    used = 0
    if given is None:
        if index >= len(words):
            raise UsageError(f"{name} needs a value: {name} {option.value}", verb)
        given, used = words[index], 1
    if option.closed and given not in option.choices:
        known = ", ".join(option.choices)
        known = f"one of {known}" if "," in known else known
        raise UsageError(f"{name} is {known}, not {given!r}", verb)
    try:
        setattr(options, option.name, option.read(given))
    except ValueError as error:
        raise UsageError(f"{name}: {error}", verb) from None
    return used


def _read_operands(verb: Verb, words: list[str], options: Options) -> None:
    operand: Operand | None = verb.operands[0] if verb.operands else None
    if operand is None or (not words and not operand.optional):
        needed = operand.name if operand else "nothing"
        raise UsageError(f"{verb.name} needs {needed}", verb)
    if len(words) > 1 and not operand.many:
        raise UsageError(f"{verb.name} takes one {operand.name}, not {len(words)}", verb)
    if operand.choices and words[0] not in operand.choices:
        known = ", ".join(operand.choices)
        raise UsageError(f"{operand.name} is one of {known}, not {words[0]!r}", verb)
    if operand.kind == verbs.WORD:
        options.word = words[0] if words else ""
    else:
        options.locks = tuple(words)
    if verb.command and not options.command:
        raise UsageError(f"{verb.name} needs a command", verb)


def like(word: str, known: list[str]) -> str:
    """Name the word that may have been meant."""
    import difflib  # noqa: PLC0415 - only for those who mistyped

    near = difflib.get_close_matches(word, known, 1)
    return f": did you mean {near[0]}?" if near else ""
