"""How Sphinx builds the documentation."""

import inspect
import re

import semlock

project = "semlock"
copyright = "2026, the semlock developers"  # noqa: A001 - Sphinx's name for it
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "semlock"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

# Defaults as one writes them, not as they are represented.
autodoc_preserve_defaults = True


_FIELD = re.compile(r":(\w+):\s+(.*)")


def _fields(lines: list[str]) -> dict[str, list[str]]:
    """Give the lines that describe each name in a docstring's list of names."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if match := _FIELD.match(line):
            name = match[1]
            found[name] = [match[2]]
        elif name and line.startswith(" "):
            found[name].append(line)
        else:
            name = ""
    return found


def _inherited(described, known: list[str]) -> dict[str, list[str]]:
    """Give what ``Lock``, and for tasks ``AsyncLock``, says of options that a class takes too."""
    if not hasattr(described, "_refused_options"):
        return {}
    texts = _fields(inspect.getdoc(semlock.Lock).splitlines())
    if described.__name__.startswith("Async"):
        form = getattr(semlock, described.__name__.removeprefix("Async"), semlock.Lock)
        texts |= _fields(inspect.getdoc(form).splitlines())
        for name, (first, *rest) in _fields(
            inspect.getdoc(semlock.AsyncLock).splitlines()
        ).items():
            *before, last = texts[name]
            texts[name] = [*before, f"{last}. For tasks: {first}", *rest]
    return {name: texts[name] for name in known if name in texts}


def _describe_parameters(_app, _what, _name, described, _options, lines) -> None:
    """Make the docstrings' lists of names into parameters, which have types, or attributes."""
    try:
        known = list(inspect.signature(described).parameters)
    except (TypeError, ValueError):
        known = []
    own = _fields(lines)
    end = 0
    for index, line in enumerate(lines):
        if match := _FIELD.match(line):
            kind = "param" if match[1] in known else "ivar"
            lines[index] = f":{kind} {match[1]}: {match[2]}"
            end = index + len(own[match[1]])
    added = [
        text
        for name, (first, *rest) in _inherited(described, known).items()
        if name not in own
        for text in (f":param {name}: {first}", *rest)
    ]
    if added and not end:
        lines += [""]
        end = len(lines)
    lines[end:end] = added


def _tell_own_default(_app, _what, _name, _described, _options, signature, returns):
    """Show a default that stands for the lock's own value as one."""
    if signature is not None:
        signature = signature.replace("timeout=OWN_TIMEOUT", "timeout=<the lock's>")
        signature = signature.replace("mode=420", "mode=0o644").replace(
            "mode=384", "mode=0o600"
        )
    return signature, returns


def setup(app) -> None:
    """Join Sphinx."""
    app.connect("autodoc-process-docstring", _describe_parameters)
    app.connect("autodoc-process-signature", _tell_own_default)
