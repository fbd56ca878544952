"""What all pictures are drawn with: a few shapes of SVG, and the frame around them."""

from __future__ import annotations

from html import escape

WIDTH = 1000
MARGIN = 28

INK = "#24292f"
GREY = "#57606a"
GRID = "#d8dee4"
FAINT = "#6e7781"
RED = "#cf222e"
COLOURS = {
    "floor": INK,
    "c": "#8a94a0",
    "kernel": "#8a94a0",
    "semlock": "#0b7a75",
    "peer": "#e3a857",
}

_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start",
          fill: str = INK, weight: int = 400) -> str:  # fmt: skip
    """Write a line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{fill}" font-weight="{weight}">{escape(words)}</text>'
    )


def rect(x: float, y: float, width: float, height: float, fill: str, *, round_by: float = 0,
          stroke: str = "none") -> str:  # fmt: skip
    """Draw a box."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{round_by}" fill="{fill}" stroke="{stroke}"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1) -> str:
    """Draw a line."""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{stroke}" stroke-width="{width}"/>'
    )


def dot(x: float, y: float, fill: str = INK) -> str:
    """Draw a dot."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}"/>'


def frame(title: str, parts: list[str], end: float, foot: str) -> str:
    """Put a whole picture together, whose parts reach down to ``end``."""
    height = round(end) + 14
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}" role="img">',
            f"<title>{escape(title)}</title>",
            rect(0.5, 0.5, WIDTH - 1, height - 1, "#fbfcfd", round_by=10, stroke="#d0d7de"),
            *parts,
            text(MARGIN, height - 16, foot, size=11, fill=FAINT),
            "</svg>",
            "",
        ]
    )
