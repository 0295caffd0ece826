#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A pool of 100 000 blocks on one page: the same cells as curl is told of, and how long it takes. Times are reported and not judged: a test machine
may be busy. Goals on one that is not: 300 ms from the page's start to the last cell, 16 ms a frame."""
import statistics

from page import Daemon, Page, eventually, expect, finish, shown

BLOCKS = 100000
FRAMES = """
const done = arguments[0], map = document.getElementById('map'), times = [];
let last = performance.now();
function frame(now) {
  times.push(now - last);
  last = now;
  if (times.length < 120) requestAnimationFrame(frame);
  else done(times.slice(1));
}
requestAnimationFrame(frame);
"""

with Daemon("--config", "config/tiny.jsonc", "--set", f"pool.blocks={BLOCKS}", "--set", "limits.sequence_tokens=400000") as daemon, \
        Page(daemon.url, open_it=False) as page:
    a = daemon.post("/v1/leases", {"blocks": 30000})["id"]
    for _ in range(20):
        s = daemon.post("/v1/sequences", {})["id"]
        daemon.append(s, 400)
        daemon.post(f"/v1/sequences/{s}/fork", {"count": 2})
    page.open()
    page.loaded()
    page.settle()
    blocks, _ = daemon.blocks()
    expect("100 000 cells are as curl is told", [shown(*blocks[b][:2]) for b in range(BLOCKS)], page.states())
    painted = page.script("const t = performance.getEntriesByName('map-painted')[0]; return t ? t.startTime : null")
    first = page.script("return performance.getEntriesByType('paint').map((p) => [p.name, p.startTime])")
    expect("the page notes when its map was complete", True, painted is not None)
    print(f"-- first paint: {dict((n, round(t)) for n, t in first)} ms; every cell of {BLOCKS}: {painted and round(painted)} ms after the start of the page")
    daemon.post("/v1/workloads", {"sequences": [{"count": 64, "prompt": 100, "decode": 2000, "fork": {"at": 101, "count": 3}}]})
    eventually(lambda: daemon.get("/stats?limit=1")["scheduler"]["running"] > 0, "the workload runs")
    for mode in ("state", "owner", "age"):
        page.script("document.querySelector(`input[value=${arguments[0]}]`).click()", mode)
        gaps = page.driver.execute_async_script(FRAMES)
        paints = page.script("return performance.getEntriesByName('map-frame').slice(-600).map((e) => e.duration)")
        print(f"-- {mode}: {len(paints)} paints, median {statistics.median(paints):.2f} ms, longest {max(paints):.1f} ms; "
              f"between frames {statistics.median(gaps):.1f} ms in the median, {sorted(gaps)[int(len(gaps) * 0.95)]:.1f} ms at p95, {max(gaps):.0f} ms at most")
        page.script("performance.clearMeasures('map-frame')")
    expect("the browser has nothing to complain of", [], page.complaints())
finish()
