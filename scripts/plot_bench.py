#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw docs/results/bench_cuda.svg: shares of the read roof, ours beside the best peer's.

    scripts/plot_bench.py [RESULTS.csv [PEERS.csv [OUT.svg]]]

Ours are the latest rows of RESULTS.csv (make bench-cuda), a workload each; the peers' were measured on a
card of the same kind against the roof of their own run.
"""

import csv
import sys
from html import escape

BAR, GAP, LEFT, WIDTH, TOP = 11, 8, 64, 560, 46
OURS, PEERS, TEXT, GRID = "#2563a8", "#b9bfc7", "#1b1f24", "#d9dde2"


def text(x, y, words, anchor="start", size=11, colour=TEXT):
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
        f"{escape(words)}</text>"
    )


def bar(x, y, length, colour):
    return f'<rect x="{x}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>'


def draw(ours, peers):
    """The picture, as lines of SVG; both are rows by workload, drawn in the order of the peers."""
    height = TOP + len(peers) * (2 * BAR + GAP) + 24
    first = next(iter(ours.values()))
    roof = f"{float(first['roof_gb_per_s']):.0f} GB/s"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 190} {height}" '
        'font-family="sans-serif">',
        f'<rect width="100%" height="{height}" fill="white"/>',
        text(LEFT, 18, f"Decode attention: share of the read roof ({roof})", size=14),
        bar(LEFT, 27, 14, OURS),
        text(LEFT + 20, 36, f"attnd {first['commit'][:7]}, {first['device'].split(',')[0]}"),
        bar(LEFT + 200, 27, 14, PEERS),
        text(LEFT + 220, 36, "the best peer"),
    ]
    for tenth in range(0, 11, 2):
        x = LEFT + WIDTH * tenth / 10
        lines.append(f'<path d="M{x} {TOP}V{height - 20}" stroke="{GRID}"/>')
        lines.append(text(x, height - 6, f"{tenth / 10:.1f}", "middle"))
    for i, (name, peer) in enumerate((name, peer) for name, peer in peers.items() if name in ours):
        y = TOP + 4 + i * (2 * BAR + GAP)
        lines.append(text(LEFT - 8, y + BAR + 4, name, "end"))
        for row, colour, at, who in ((ours[name], OURS, y, ""), (peer, PEERS, y + BAR, peer["system"])):
            length = WIDTH * float(row["share"])
            label = f"{row['share']}  {float(row['us']):.4g} us  {who}"
            lines += [bar(LEFT, at, length, colour), text(LEFT + length + 5, at + 9, label, size=9)]
    return lines + ["</svg>"]


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return {row["workload"]: row for row in csv.DictReader(file)}


def main():
    """The command line."""
    defaults = ["docs/results/bench_cuda.csv", "docs/results/peers.csv", "docs/results/bench_cuda.svg"]
    results, peers, out = sys.argv[1:4] + defaults[len(sys.argv) - 1 :]
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(draw(read(results), read(peers))) + "\n")
    print(f"{out}: drawn")


if __name__ == "__main__":
    main()
