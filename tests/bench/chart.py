"""Draws the two charts as plain SVG, with a background that follows the reader's light or dark theme."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

WIDTH = 820
MARGIN = 24
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de } .text { fill: #1f2328 } .faint { fill: #59636e }
  .grid { stroke: #d8dee4 } .even { stroke: #59636e } .ours { fill: #c2571a } .theirs { fill: #8c9bb0 }
  .curve0 { stroke: #c2571a; fill: #c2571a } .curve1 { stroke: #2f6fb5; fill: #2f6fb5 }
  .curve2 { stroke: #3d8b4f; fill: #3d8b4f }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d } .text { fill: #e6edf3 } .faint { fill: #9198a1 }
    .grid { stroke: #262c36 } .even { stroke: #9198a1 } .ours { fill: #f0883e } .theirs { fill: #5c6b82 }
    .curve0 { stroke: #f0883e; fill: #f0883e } .curve1 { stroke: #58a6ff; fill: #58a6ff }
    .curve2 { stroke: #56d364; fill: #56d364 }
  }
  text { font: 12px system-ui, sans-serif } .title { font-size: 15px; font-weight: 600 } .strong { font-weight: 600 }
"""


@dataclass
class Bar:
    name: str
    # Time relative to gristmill.
    ratio: float
    label: str


@dataclass
class Group:
    title: str
    bars: list[Bar]


@dataclass
class Curve:
    title: str
    # Size, seconds, and the size in words; smallest first.
    points: list[tuple[float, float, str]]


def svg(height: float, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img">'
    card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>'
    heading = text(MARGIN, 32, title, "text title")
    described = f"<title>{escape(title)}</title>"
    return "\n".join([head, described, f"<style>{STYLE}</style>", card, heading, *parts, "</svg>", ""])


def text(x: float, y: float, content: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}" {more}/>'


def bars(title: str, groups: list[Group]) -> str:
    """Returns a chart with a group of horizontal bars for each workload, on a logarithmic scale."""
    bar, gap, left, right, top = 13, 4, 120, WIDTH - 130, 62
    ratios = [bar.ratio for group in groups for bar in group.bars]
    low, high = math.log10(min(0.5, *ratios) * 0.8), math.log10(max(2, *ratios))

    def place(ratio: float) -> float:
        return left + (math.log10(ratio) - low) / (high - low) * (right - left)

    drawn, y = [], top
    for group in groups:
        y += 20
        drawn.append(text(MARGIN, y, group.title, "text strong"))
        y += 8
        for each in group.bars:
            ours = each.name == "gristmill"
            width = place(each.ratio) - left
            drawn.append(text(left - 8, y + bar - 2.5, each.name, "text" if ours else "faint", "end"))
            style = "ours" if ours else "theirs"
            drawn.append(f'<rect class="{style}" x="{left}" y="{y}" width="{width:.1f}" height="{bar}" rx="2"/>')
            drawn.append(text(left + width + 6, y + bar - 2.5, each.label, "text" if ours else "faint"))
            y += bar + gap
        y += 8
    grid = []
    for ratio in (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if low <= math.log10(ratio) <= high:
            x = place(ratio)
            grid.append(line(x, top - 2, x, y, "even" if ratio == 1 else "grid"))
            grid.append(text(x, top - 8, f"{ratio:g}×", "faint", "middle"))
    return svg(y + 8, title, grid + drawn)


def curves(title: str, drawn_curves: list[Curve]) -> str:
    """Returns a chart of time by relative size, on logarithmic axes; the dashed line is linear growth."""
    left, right, top, bottom = 70, WIDTH - 230, 62, 400
    sizes = [size / curve.points[0][0] for curve in drawn_curves for size, _, _ in curve.points]
    times = [seconds for curve in drawn_curves for _, seconds, _ in curve.points]
    x_high = max(1, math.log10(max(sizes)))
    y_low, y_high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def x(size: float) -> float:
        return left + math.log10(size) / x_high * (right - left)

    def y(seconds: float) -> float:
        return bottom - (math.log10(seconds) - y_low) / (y_high - y_low) * (bottom - top)

    parts = []
    for power in range(y_low, y_high + 1):
        parts.append(line(left, y(10**power), right, y(10**power), "grid"))
        parts.append(text(left - 8, y(10**power) + 4, f"{10.0**power:g} s", "faint", "end"))
    for power in range(math.floor(x_high + 0.01) + 1):
        parts.append(line(x(10**power), top, x(10**power), bottom, "grid"))
        parts.append(text(x(10**power), bottom + 20, f"{10**power}×", "faint", "middle"))
    # Linear growth, from the smallest time at the smallest size.
    start = min(curve.points[0][1] for curve in drawn_curves)
    end_power = min(x_high, y_high - math.log10(start))
    dashes = 'stroke-dasharray="4 4"'
    parts.append(line(x(1), y(start), x(10**end_power), y(start * 10**end_power), "even", dashes))
    parts.append(text(x(10 ** (end_power / 2)) + 8, y(start * 10 ** (end_power / 2)) + 14, "linear", "faint"))
    labels = []
    for number, curve in enumerate(drawn_curves):
        places = [(x(size / curve.points[0][0]), y(seconds)) for size, seconds, _ in curve.points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        parts.append(f'<polyline points="{path}" class="curve{number}" style="fill: none; stroke-width: 2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" class="curve{number}"/>' for px, py in places]
        (last_x, last_y), (_, seconds, size) = places[-1], curve.points[-1]
        labels.append((last_y, last_x + 10, curve.title, f"{size}: {seconds:.3g} s"))
    # From top to bottom, with room for two lines each.
    free_y = top
    for label_y, label_x, name, figures in sorted(labels):
        free_y = max(free_y, label_y)
        parts.append(text(label_x, free_y, name, "text strong"))
        parts.append(text(label_x, free_y + 15, figures, "faint"))
        free_y += 36
    return svg(bottom + 40, title, parts)
