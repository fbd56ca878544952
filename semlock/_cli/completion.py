"""``completion``: the completion files of bash, zsh and fish, made from the table."""

from __future__ import annotations

from semlock._cli import OK
from semlock._cli.output import write
from semlock._cli.table import GLOBAL, VERBS
from semlock._cli.verbs import DIRECTORY

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._cli import Options
    from semlock._cli.verbs import Operand, Option, Verb


def completion(options: Options) -> int:
    """Print the completion file of a shell."""
    write({"bash": bash, "zsh": zsh, "fish": fish}[options.word]().rstrip("\n"))
    return OK


def _words(verb: Verb) -> list[str]:
    return [word for option in verb.options for word in option.words]


def _choices(verb: Verb) -> list[str]:
    """Give the possible words of a verb's operand."""
    if verb.name == "help":
        from semlock._cli.helping import TOPICS  # noqa: PLC0415 - it reads the help

        return [*(other.name for other in VERBS), *TOPICS]
    return list(verb.operands[0].choices) if verb.operands else []


def bash() -> str:
    """Give the completion file of bash."""
    lines = [
        '# bash completion for semlock; load it with: eval "$(semlock completion bash)"',
        "_semlock() {",
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
        "    local verb=${COMP_WORDS[1]-} values= options= words= kind=file i",
        "    COMPREPLY=()",
        "    if ((COMP_CWORD == 1)); then",
        f"        COMPREPLY=($(compgen -W '{' '.join(_verbs_and_globals())}' -- \"$word\"))",
        "        return",
        "    fi",
        "    case $verb in",
        *(f"        {line}" for verb in VERBS for line in _bash_verb(verb)),
        "    esac",
        "    if [[ $verb == run ]]; then",
        "        for ((i = 2; i < COMP_CWORD; i++)); do",
        "            if [[ ${COMP_WORDS[i]} == -- ]]; then",
        "                if ((i == COMP_CWORD - 1)); then",
        '                    COMPREPLY=($(compgen -c -- "$word"))',
        "                else",
        '                    COMPREPLY=($(compgen -f -- "$word"))',
        "                fi",
        "                return",
        "            fi",
        "        done",
        "    fi",
        "    case $verb:$before in",
        *(f"        {line}" for verb in VERBS for line in _bash_values(verb)),
        "    esac",
        "    if [[ $kind == none ]]; then return; fi",
        "    if [[ -n $values ]]; then",
        '        COMPREPLY=($(compgen -W "$values" -- "$word"))',
        "    elif [[ $word == -* ]]; then",
        '        COMPREPLY=($(compgen -W "$options" -- "$word"))',
        "    elif [[ -n $words ]]; then",
        '        COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "    elif [[ $kind == directory ]]; then",
        '        COMPREPLY=($(compgen -d -- "$word"))',
        "    else",
        '        COMPREPLY=($(compgen -f -- "$word"))',
        "    fi",
        "}",
        "complete -o filenames -o bashdefault -F _semlock semlock",
    ]
    return "\n".join(lines) + "\n"


def _verbs_and_globals() -> list[str]:
    return [verb.name for verb in VERBS] + [word for option in GLOBAL for word in option.words]


def _bash_verb(verb: Verb) -> list[str]:
    parts = [f"options='{' '.join(_words(verb))}{' --' if verb.command else ''}'"]
    if _choices(verb):
        parts.append(f"words='{' '.join(_choices(verb))}'")
    if verb.operands and verb.operands[0].kind == DIRECTORY:
        parts.append("kind=directory")
    return [f"{verb.name}) {'; '.join(parts)} ;;"]


def _bash_values(verb: Verb) -> list[str]:
    lines = []
    for option in verb.options:
        if option.takes is None:
            continue
        at = "|".join(f"{verb.name}:{word}" for word in option.words)
        if option.choices:
            lines.append(f"{at}) values='{' '.join(option.choices)}' ;;")
        else:
            lines.append(f"{at}) kind=none ;;")
    return lines


def zsh() -> str:
    """Give the completion file of zsh."""
    lines = [
        "#compdef semlock",
        "# zsh completion for semlock; put it as _semlock into a directory of $fpath",
        "_semlock() {",
        "    local -a verbs",
        "    verbs=(",
        *(f"        {_quoted(f'{verb.name}:{verb.summary}')}" for verb in VERBS),
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe -t commands verb verbs",
        f"        compadd -- {' '.join(word for option in GLOBAL for word in option.words)}",
        "        return",
        "    fi",
        "    local verb=$words[2]",
        "    shift words",
        "    (( CURRENT-- ))",
        "    case $verb in",
        *(line for verb in VERBS for line in _zsh_verb(verb)),
        "    esac",
        "}",
        "# Autoloaded, this file is the function's first call; sourced, it says what it is for.",
        'if [[ "$funcstack[1]" == _semlock ]]; then',
        '    _semlock "$@"',
        "else",
        "    compdef _semlock semlock",
        "fi",
    ]
    return "\n".join(lines) + "\n"


def _zsh_verb(verb: Verb) -> list[str]:
    lines = [f"        {verb.name})"]
    if verb.command:
        # After -- the command is completed as if it stood alone.
        lines += [
            "            local at=${words[(i)--]}",
            "            if (( at < CURRENT )); then",
            "                shift $at words",
            "                (( CURRENT -= at ))",
            "                _normal",
            "                return",
            "            fi",
        ]
    lines.append("            _arguments -s -S \\")
    for option in verb.options:
        lines += [f"                {_quoted(spec)} \\" for spec in _zsh_option(option)]
    for operand in verb.operands:
        star = "*" if operand.many else "::" if operand.optional else ":"
        action = "_files"
        if operand.kind == DIRECTORY:
            action = "_files -/"
        if _choices(verb):
            action = f"({' '.join(_choices(verb))})"
        name = operand.name.replace(":", "\\:")
        head = "*:" if star == "*" else star
        lines.append(f"                {_quoted(f'{head}{name}:{action}')} \\")
    lines[-1] = lines[-1].removesuffix(" \\")
    lines.append("            ;;")
    return lines


def _zsh_option(option: Option) -> list[str]:
    meaning = option.meaning.replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    others = f"({' '.join(option.words)})" if len(option.words) > 1 else ""
    specs = []
    for word in option.words:
        spec = f"{others}{word}"
        if option.takes is not None:
            spec += "=" if word.startswith("--") else "+"
        spec += f"[{meaning}]"
        if option.takes is not None:
            choices = f"({' '.join(option.choices)})" if option.choices else " "
            spec += f":{option.takes}:{choices}"
        specs.append(spec)
    return specs


def fish() -> str:
    """Give the completion file of fish."""
    names = " ".join(verb.name for verb in VERBS)
    lines = [
        "# fish completion for semlock; put it into ~/.config/fish/completions/semlock.fish",
        "complete -c semlock -f",
        f"set -l semlock_verbs {names}",
    ]
    none = "not __fish_seen_subcommand_from $semlock_verbs"
    verbs = (f"-a {verb.name} -d {_quoted(verb.summary)}" for verb in VERBS)
    lines += [f'complete -c semlock -n "{none}" {what}' for what in verbs]
    lines += [f'complete -c semlock -n "{none}" {_fish_option(option)}' for option in GLOBAL]
    for verb in VERBS:
        seen = f"__fish_seen_subcommand_from {verb.name}"
        offers = [_fish_option(option) for option in verb.options]
        offers += [_fish_operand(verb, operand) for operand in verb.operands]
        lines += [f'complete -c semlock -n "{seen}" {what}' for what in offers]
        if verb.command:
            lines.append(
                f'complete -c semlock -n "{seen}; and contains -- -- (commandline -opc)"'
                " -a '(__fish_complete_command)'"
            )
    return "\n".join(lines) + "\n"


def _fish_operand(verb: Verb, operand: Operand) -> str:
    if _choices(verb):
        return f"-a {_quoted(' '.join(_choices(verb)))}"
    if operand.kind == DIRECTORY:
        return "-a '(__fish_complete_directories)'"
    return "-F"


def _fish_option(option: Option) -> str:
    parts = [f"-l {w[2:]}" if w.startswith("--") else f"-s {w[1:]}" for w in option.words]
    if option.takes is not None:
        parts.append("-x")
        if option.choices:
            parts.append(f"-a {_quoted(' '.join(option.choices))}")
    parts.append(f"-d {_quoted(option.meaning)}")
    return " ".join(parts)


def _quoted(text: str) -> str:
    """Quote for all three shells, which differ in quotes within quotes."""
    if "'" in text:
        return '"' + "".join("\\" + c if c in '"\\$`' else c for c in text) + '"'
    return f"'{text}'"
