#!/usr/bin/env python3
"""Draws the plots of docs/benchmarks.md from the tables of that page, into docs/pictures.

Run it again after a change of the tables: python3 docs/plots.py
"""

import math
from pathlib import Path

WIDTH, HEIGHT = 800, 380
LEFT, RIGHT, TOP, BOTTOM = 84, 236, 52, 52
INK, MUTED, GRID, LINE = "#1f2328", "#57606a", "#d8dee4", "#8c959f"
OURS = ["#1a7f37", "#4ac26b"]
THEIRS = ["#0969da", "#8250df", "#bc4c00", "#bf3989", "#9a6700", "#57606a"]
MARKS = ["circle", "square", "diamond", "triangle"]
UNITS = {"us": 1e3, "ms": 1e6, "s": 1e9}
PER_PROCESS, PER_WAITER = "fencelock, a client per process", "fencelock, a client per waiter"


def table(page, heading):
    """The rows of the first table below a heading, each as {column: cell}."""
    lines = page.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0].splitlines()
    cells = lambda line: [cell.strip() for cell in line.strip("|").split("|")]
    head, _, *rows = [cells(line) for line in lines if line.startswith("|")]
    return [dict(zip(head, row)) for row in rows]


def number(cell):
    """A figure of a table; times in nanoseconds."""
    value, _, unit = cell.partition(" ")
    return float(value.replace(",", "")) * UNITS.get(unit, 1)


def label(row, taken):
    if row["who"] != "fencelock" or "clients" not in row:
        return row["who"]
    shared = row["clients"] == row["processes"] and row["waiters"] not in taken
    return PER_PROCESS if shared else PER_WAITER


def series(rows, x, y):
    """The points of each contender: {label: [(x, y), …]}."""
    lines = {}
    for row in rows:
        # With as many waiters as processes, the first row has a client for each process, the second one for each waiter.
        taken = {point[2] for point in lines.get(PER_PROCESS, [])}
        lines.setdefault(label(row, taken), []).append((number(row[x]), number(row[y]), row[x]))
    return {name: sorted((x, y) for x, y, _ in points) for name, points in lines.items()}


def rate(value):
    return f"{value:,.0f}"


def time(value):
    unit = next(unit for unit in ("s", "ms", "us") if value >= UNITS[unit] or unit == "us")
    return f"{value / UNITS[unit]:,.0f} {unit}"


# The picture, the heading of the table, the title, and the columns of both axes.
PLOTS = [
    ("loop", "Contended lock, closed loop, redis", "One contended lock on Redis: hand-offs per second", "waiters", "hand-offs/s", rate),
    ("loop-gaps", "Contended lock, closed loop, redis", "One contended lock on Redis: gap p99", "waiters", "gap p99", time),
    ("drain", "Contended lock, drain, redis", "Each waiter holds the lock once: hand-offs per second", "waiters", "hand-offs/s", rate),
    ("peers-pairs", "Other languages, uncontended", "Uncontended locks on Redis, all libraries: pairs per second", "workers", "pairs/s", rate),
    ("peers-loop", "Other languages, closed loop", "One contended lock on Redis, all libraries: hand-offs per second", "waiters", "hand-offs/s", rate),
    ("peers-gaps", "Other languages, closed loop", "One contended lock on Redis, all libraries: gap p99", "waiters", "gap p99", time),
    ("peers-drain", "Other languages, drain", "Each waiter holds the lock once, all libraries: hand-offs per second", "waiters", "hand-offs/s", rate),
    ("pairs", "Uncontended take and release, redis", "Uncontended locks on Redis: pairs per second", "workers", "pairs/s", rate),
]


def mark(shape, x, y, colour):
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    points = {
        "square": [(-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)],
        "diamond": [(0, -5), (5, 0), (0, 5), (-5, 0)],
        "triangle": [(0, -5), (4.5, 3.5), (-4.5, 3.5)],
    }[shape]
    text = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in points)
    return f'<polygon points="{text}" fill="{colour}"/>'


def spread(places, gap):
    """Moves labels apart: the nearest places in the same order that are at least so far from each other."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    moved = list(places)
    for _ in range(200):
        for low, high in zip(order, order[1:]):
            lack = gap - (moved[high] - moved[low])
            if lack > 0:
                moved[low] -= lack / 2
                moved[high] += lack / 2
    return moved


def draw(title, x_title, lines, write):
    xs = sorted({x for points in lines.values() for x, _ in points})
    ys = [y for points in lines.values() for _, y in points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    first, last = math.log10(xs[0]), math.log10(xs[-1])
    at_x = lambda x: LEFT + (right - LEFT) * ((math.log10(x) - first) / (last - first) if last > first else 0.5)
    at_y = lambda y: bottom - (bottom - TOP) * (math.log10(y) - low) / (high - low)
    parts = [f'<text x="{LEFT}" y="28" fill="{INK}" font-size="16" font-weight="bold">{title}</text>']
    for power in range(low, high + 1):
        y = at_y(10**power)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" fill="{MUTED}" text-anchor="end">{write(10**power)}</text>')
    for x in xs:
        parts.append(f'<text x="{at_x(x):.1f}" y="{bottom + 18}" fill="{MUTED}" text-anchor="middle">{x:,.0f}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" fill="{MUTED}" text-anchor="middle">{x_title}</text>')
    ours, theirs = iter(OURS), iter(THEIRS)
    labels = list(lines)
    ends = spread([at_y(lines[label][-1][1]) for label in labels], 15)
    for number, (label, end) in enumerate(zip(labels, ends)):
        own = label.startswith("fencelock")
        colour = next(ours if own else theirs)
        points = [(at_x(x), at_y(y)) for x, y in lines[label]]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{3 if own else 1.8}"/>')
        parts += [mark(MARKS[number % len(MARKS)], x, y, colour) for x, y in points]
        weight = ' font-weight="bold"' if own else ""
        x = points[-1][0]
        if right - x > 1:
            end = points[-1][1]
        parts.append(f'<text x="{x + 10:.1f}" y="{end + 4:.1f}" fill="{colour}"{weight}>{label}</text>')
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="Helvetica, Arial, sans-serif" font-size="12">\n  <title>{title}</title>\n'
        f'  <rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="8" fill="#ffffff" stroke="{LINE}"/>\n'
        f"  {body}\n</svg>\n"
    )


def main():
    here = Path(__file__).parent
    page = (here / "benchmarks.md").read_text(encoding="utf-8")
    for name, heading, title, x, y, write in PLOTS:
        lines = series(table(page, heading), x, y)
        (here / "pictures" / f"{name}.svg").write_text(draw(title, x, lines, write), encoding="utf-8")


main()
