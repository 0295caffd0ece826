#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of the page for the documents: IMAGES=docs/images make check-browser. Without IMAGES they go to build/pictures, to be looked at."""
import os

from page import Daemon, Page, eventually, expect, finish

TO = os.environ.get("IMAGES") or "build/pictures"
os.makedirs(TO, exist_ok=True)


def picture(page, name):
    page.script("document.activeElement.blur()")
    page.settle()
    page.driver.save_screenshot(f"{TO}/{name}.png")
    expect(f"{name}.png is small", True, 5000 < os.path.getsize(f"{TO}/{name}.png") < 400000)


def run_workload(daemon, page):
    daemon.post("/v1/workloads", {"sequences": [{"count": 12, "prompt": 90, "decode": 250, "prefix": {"id": 1, "length": 64}, "fork": {"at": 101, "count": 2}}],
                                  "arrival": {"rate": 2}})
    eventually(lambda: daemon.get("/stats?limit=1")["pool"]["held"] > 350, "blocks are held")


with Daemon("--set", "pool.blocks=1024") as daemon, Page(daemon.url, 1440, 860) as page:
    page.loaded()
    run_workload(daemon, page)
    eventually(lambda: page.states().count("held") > 300 and page.states().count("shared") > 20, "the map shows it")
    picture(page, "page-map")
    page.click("theme-button")
    page.tab("tree")
    eventually(lambda: "sharing saves" in page.text("tree-sum"), "the fork tree")
    page.settle()
    picture(page, "page-tree")

with Daemon("--config", "config/tiny.jsonc") as daemon, Page(daemon.url, 1000, 560) as page:
    page.loaded()
    page.tab("tour")
    for step in ("create", "append", "fork", "write"):
        page.click("tour-next")
        eventually(lambda: page.script("return document.getElementById('view-tour').dataset.step") == step, f"the tour's step {step}")
    eventually(lambda: page.states()[:3] == ["shared", "shared", "held"], "the map shows it")
    picture(page, "page-tour")
    expect("the browser has nothing to complain of", [], page.complaints())
finish()
