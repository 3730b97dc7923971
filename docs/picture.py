#!/usr/bin/env python3
"""Draws docs/handoff.svg: a hand-off, and a stale write that the resource refuses.

Run it again after a change: python3 docs/picture.py
"""

from pathlib import Path

WIDTH, HEIGHT = 860, 352
LANES = {"A": 62, "B": 128, "C": 194, "ledger": 276}
INK, MUTED, LINE = "#1f2328", "#57606a", "#8c959f"
HOLDS, PAUSED, GOOD, BAD = "#2da44e", "#d0d7de", "#1a7f37", "#cf222e"

parts = []


def add(text):
    parts.append("  " + text)


def text(x, y, words, colour=INK, anchor="start", weight="normal"):
    add(f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>')


def lane(name, note):
    y = LANES[name]
    text(20, y - 2, name, weight="bold")
    text(20, y + 15, note, MUTED)
    add(f'<line x1="120" y1="{y}" x2="{WIDTH - 24}" y2="{y}" stroke="{LINE}"/>')


def waits(name, start, end):
    y = LANES[name]
    add(f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}" stroke="{INK}" stroke-width="4" stroke-dasharray="2 6"/>')
    text(start, y - 12, "waits", MUTED)


def holds(name, start, end, token):
    y = LANES[name]
    add(f'<rect x="{start}" y="{y - 13}" width="{end - start}" height="26" rx="4" fill="{HOLDS}"/>')
    text((start + end) / 2, y + 5, f"token {token}", "#ffffff", "middle", "bold")


def paused(name, start, end, words):
    y = LANES[name]
    add(
        f'<rect x="{start}" y="{y - 13}" width="{end - start}" height="26" rx="4" fill="{PAUSED}" stroke="{LINE}"'
        ' stroke-dasharray="4 3"/>'
    )
    text((start + end) / 2, y + 5, words, INK, "middle")


def arrow(x1, y1, x2, y2, colour):
    marker = {GOOD: "good", BAD: "bad", INK: "ink"}[colour]
    add(
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="2"'
        f' marker-end="url(#{marker})"/>'
    )


def write(name, x, token, verdict):
    colour = GOOD if verdict == "accepted" else BAD
    arrow(x, LANES[name] + 13, x, LANES["ledger"] - 5, colour)
    add(f'<circle cx="{x}" cy="{LANES["ledger"]}" r="4" fill="{colour}"/>')
    text(x, LANES["ledger"] + 21, f"write {token}", colour, "middle", "bold")
    text(x, LANES["ledger"] + 38, verdict, colour, "middle")


def marker(name, colour):
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
    )


def draw():
    for name, note in [("A", "client"), ("B", "client"), ("C", "client"), ("ledger", "resource")]:
        lane(name, note)
    # B is paused longer than its lease, so C is granted the lock.
    waits("B", 205, 290)
    waits("C", 360, 545)
    write("A", 190, 33, "accepted")
    write("B", 345, 34, "accepted")
    write("C", 640, 35, "accepted")
    write("B", 760, 34, "refused")
    holds("A", 120, 275, 33)
    holds("B", 290, 400, 34)
    paused("B", 400, 745, "paused")
    paused("B", 745, 836, "wakes up")
    holds("C", 545, 836, 35)
    arrow(277, LANES["A"] + 13, 289, LANES["B"] - 16, INK)
    text(290, LANES["A"] + 32, "release: hand-off to B", INK)
    arrow(532, LANES["B"] + 13, 544, LANES["C"] - 16, INK)
    text(524, LANES["B"] + 32, "lease ends: grant to C", INK, "end")
    text(120, 28, "time →", MUTED)
    text(760, LANES["ledger"] + 55, "35 has been here", BAD, "middle")


def main():
    draw()
    title = "A hand-off, and a stale write that is refused"
    story = (
        "A holds the lock with token 33 and releases it: B holds it at once with token 34. B is paused longer than its"
        " lease, so C is granted the lock with token 35 and writes. B wakes up and writes with token 34: the ledger has"
        " seen 35 and refuses."
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' role="img" font-family="Helvetica, Arial, sans-serif" font-size="14">',
        f"  <title>{title}</title>",
        f"  <desc>{story}</desc>",
        f"  <defs>{marker('good', GOOD)}{marker('bad', BAD)}{marker('ink', INK)}</defs>",
        # A background of its own: the picture reads the same on light and dark pages.
        f'  <rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="8" fill="#ffffff" stroke="{LINE}"/>',
    ]
    svg = "\n".join([*head, *parts, "</svg>", ""])
    Path(__file__).with_name("handoff.svg").write_text(svg, encoding="utf-8")


main()
