#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw shares of the read roof, ours beside the best peer's, as SVG that is legible on a light and on a dark page.

    scripts/plot_bench.py [RESULTS.csv [PEERS.csv [OUT.svg]]]

Ours are the latest rows of RESULTS.csv (make bench-cuda), a workload each; the peers' were measured on a card of the same
kind against the roof of their own run. Without arguments it reads docs/results and writes build/bench_cuda.svg; the
picture of the README is docs/images/h200.svg.
"""

import csv
import sys
from html import escape
from pathlib import Path

# What is drawn, in this order, and what it is: sequences x tokens, then query heads / KV heads.
WORKLOADS = {
    "W1": "64 × 4 096, 32/8 heads of 128",
    "W1b": "8 × 4 096, 32/8 of 128",
    "W1c": "1 × 4 096, 32/8 of 128",
    "W4": "1 × 131 072, 32/8 of 128",
    "W5": "256 of 16 to 16 063, 32/8 of 128",
    "W9": "256 sharing 8 192, 32/8 of 128",
    "W8": "64 × 4 096, 32/8 of 128, e4m3",
    "W6": "64 × 4 096, 32/8 of 64",
    "W3": "16 × 2 048, 32/32 of 128",
    "W7": "32 × 4 096, 16/8 of 256",
    "W2": "128 × 4 096, 8/1 of 128",
    "W10": "64 × 4 096, 64/1 of 128",
}
BAR, GAP, LEFT, WIDTH, RIGHT, TOP = 11, 8, 262, 440, 178, 62
STYLE = """<style>
  text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #1b1f24 }
  .title { font-size: 16px; font-weight: 600 }
  .small { font-size: 11px }
  .card { fill: #ffffff; stroke: #c5ccd4 }
  .grid { stroke: #d9dde2 }
  .ours { fill: #2563a8 }
  .peer { fill: #a3abb5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8ecf0 }
    .card { fill: #161b22; stroke: #3d4650 }
    .grid { stroke: #3d4650 }
    .ours { fill: #5aa2ee }
    .peer { fill: #6d7783 }
  }
</style>"""


def text(x, y, words, anchor="start", kind=""):
    """Words at a place."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def bar(x, y, length, kind):
    """A bar that begins at a place."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{length:.1f}" height="{BAR}"/>'


def draw(ours, peers):
    """The picture, as lines of SVG; both are rows by workload."""
    names = [name for name in WORKLOADS if name in ours and name in peers]
    height = TOP + len(names) * (2 * BAR + GAP) + 34
    width = LEFT + WIDTH + RIGHT
    first = ours[names[0]]
    device = first["device"].split(",")[0]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        f"<title>Decode attention on an {escape(device)}: share of the read roof, attnd and the best peer</title>",
        STYLE,
        f'<rect class="card" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="8"/>',
        text(16, 28, f"Decode attention on an {device}: share of the rate at which it reads memory", kind="title"),
        bar(16, 41, 14, "ours"),
        text(36, 51, f"attnd {first['commit'][:7]}, {first['date']}"),
        bar(LEFT, 41, 14, "peer"),
        text(LEFT + 20, 51, "the best of FlashInfer, FlashAttention-3, XQA, HPC-Ops and vLLM"),
    ]
    for fifth in range(6):
        x = LEFT + WIDTH * fifth / 5
        lines.append(f'<path class="grid" d="M{x:g} {TOP}V{height - 28}"/>')
        lines.append(text(x, height - 12, f"{fifth / 5:.1f}", "middle"))
    for i, name in enumerate(names):
        y = TOP + 4 + i * (2 * BAR + GAP)
        lines.append(text(LEFT - 8, y + BAR + 4, WORKLOADS[name], "end"))
        for row, kind, at, who in ((ours[name], "ours", y, ""), (peers[name], "peer", y + BAR, peers[name]["system"])):
            length = WIDTH * float(row["share"])
            label = f"{float(row['share']):.2f} · {float(row['us']):.4g} µs" + (f" · {who}" if who else "")
            lines += [bar(LEFT, at, length, kind), text(LEFT + length + 5, at + 9.5, label, kind="small")]
    return lines + ["</svg>"]


def read(path):
    """The last row of each workload."""
    with open(path, newline="", encoding="utf-8") as file:
        return {row["workload"]: row for row in csv.DictReader(file)}


def main():
    """The command line."""
    defaults = ["docs/results/bench_cuda.csv", "docs/results/peers.csv", "build/bench_cuda.svg"]
    results, peers, out = sys.argv[1:4] + defaults[len(sys.argv) - 1 :]
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text("\n".join(draw(read(results), read(peers))) + "\n", encoding="utf-8")
    print(f"{out}: drawn")


if __name__ == "__main__":
    main()
