"""How Sphinx builds the documentation."""

project = "semlock"
copyright = "2026, the semlock developers"  # noqa: A001 - Sphinx's name for it
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "semlock"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_heading_anchors = 3
