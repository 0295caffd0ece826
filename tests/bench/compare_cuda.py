#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare_cuda.py - two builds of bench_cuda beside each other, by turns in one run.

    compare_cuda.py [--rounds 5] [--only W1,W2,...] [--csv FILE] OLD NEW

Each round runs both builds over the same workloads, the one that goes first changing from round to round. A line a
workload: the medians over the rounds, and the median of the rounds' ratios new / old with the smallest and the largest,
so that what drifts during the run (clocks, temperature) does not count. A workload that only one build has is left out.
Exits with 1 where a build fails or an output is wrong.
"""
import argparse
import csv
import re
import statistics
import subprocess
import sys

LINE = re.compile(r'^(\S+)\s+([\d.]+) us \([^)]*\), isolated\s+(-?[\d.]+) us\s+([\d.]+) GB/s\s+([\d.]+) of the roof.* (ok|WRONG)$')


def run(binary, only):
    """The workloads of one run: {name: (us, isolated us, share of the roof)}."""
    command = [binary] + (['--only', only] if only else [])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found, wrong = {}, []
    for line in done.stdout.splitlines():
        if match := LINE.match(line.strip()):
            found[match[1]] = tuple(float(match[i]) for i in (2, 3, 5))
            wrong += [match[1]] if match[6] != 'ok' else []
    if done.returncode != 0 or wrong or not found:
        print(done.stdout, end='')
        sys.exit(f'compare_cuda: {" ".join(command)}: exit status {done.returncode}, wrong outputs: {wrong or "none"}')
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('old')
    parser.add_argument('new')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--only', help='workloads, by their names')
    parser.add_argument('--csv', help='where the table goes, too')
    options = parser.parse_args()

    rounds = []
    for i in range(options.rounds):
        pair = {}
        for which in ('old', 'new') if i % 2 == 0 else ('new', 'old'):
            pair[which] = run(getattr(options, which), options.only)
        rounds.append(pair)
        print(f'# round {i + 1} of {options.rounds}', file=sys.stderr, flush=True)

    names = [name for name in rounds[0]['new'] if name in rounds[0]['old']]
    rows = []
    for name in names:
        old, new = ([r[which][name] for r in rounds] for which in ('old', 'new'))
        ratios = [b[0] / a[0] for a, b in zip(old, new)]
        alone = [b[1] / a[1] for a, b in zip(old, new) if a[1] > 0]
        rows.append((name, statistics.median(x[0] for x in old), statistics.median(x[0] for x in new),
                     statistics.median(ratios), min(ratios), max(ratios),
                     statistics.median(alone) if alone else 0, statistics.median(x[2] for x in new)))
    print(f'{"":6} {"old us":>9} {"new us":>9} {"new/old":>8} {"least":>7} {"most":>7} {"isolated":>8} {"roof":>6}')
    for row in rows:
        print('{:6} {:9.2f} {:9.2f} {:8.4f} {:7.4f} {:7.4f} {:8.4f} {:6.3f}'.format(*row))
    if options.csv:
        with open(options.csv, 'w', newline='') as out:
            writer = csv.writer(out)
            writer.writerow(['workload', 'old_us', 'new_us', 'ratio', 'ratio_min', 'ratio_max', 'isolated_ratio', 'new_roof'])
            writer.writerows(rows)


if __name__ == '__main__':
    main()
