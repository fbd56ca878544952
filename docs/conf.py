"""How Sphinx builds the documentation."""

import inspect
import re

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


def _describe_parameters(_app, _what, _name, described, _options, lines) -> None:
    """Make the docstrings' lists of names into parameters, which have types, or attributes."""
    try:
        known = set(inspect.signature(described).parameters)
    except (TypeError, ValueError):
        known = set()
    for index, line in enumerate(lines):
        field = re.match(r":(\w+):\s+(.*)", line)
        if field is not None:
            kind = "param" if field[1] in known else "ivar"
            lines[index] = f":{kind} {field[1]}: {field[2]}"


def _tell_own_default(_app, _what, _name, _described, _options, signature, returns):
    """Show a default that stands for the lock's own value as one."""
    if signature is not None:
        signature = signature.replace("timeout=_OWN", "timeout=<the lock's>")
        signature = signature.replace("mode=420", "mode=0o644").replace(
            "mode=384", "mode=0o600"
        )
    return signature, returns


def setup(app) -> None:
    """Join Sphinx."""
    app.connect("autodoc-process-docstring", _describe_parameters)
    app.connect("autodoc-process-signature", _tell_own_default)
