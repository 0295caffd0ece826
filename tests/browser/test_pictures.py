#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of the page for the documents: IMAGES=docs/images make check-browser. Without IMAGES they go to build/pictures, to be looked at."""
import os

from page import Daemon, Page, eventually, expect, finish

TO = os.environ.get("IMAGES") or "build/pictures"
os.makedirs(TO, exist_ok=True)


BARE = "const o = document.getElementById('overlay'); return !o.getContext('2d').getImageData(0, 0, o.width, o.height).data.some((v) => v > 0)"


def picture(page, name):
    page.script("document.activeElement.blur()")
    if name != "page-tour":  # the outlines of what has just changed are gone
        eventually(lambda: page.script(BARE), "the map is calm")
    page.settle()
    page.driver.save_screenshot(f"{TO}/{name}.png")
    expect(f"{name}.png is small", True, 5000 < os.path.getsize(f"{TO}/{name}.png") < 400000)


def fill(daemon):
    """Prompts with forks, and forks of forks; and some that are gone and cached."""
    for prompt, forks, width in ((90, 3, 2), (61, 2, 3), (130, 4, 0), (26, 2, 2)):
        root = daemon.post("/v1/sequences", {})["id"]
        daemon.append(root, prompt)
        for i, child in enumerate(daemon.post(f"/v1/sequences/{root}/fork", {"count": forks})["sequences"]):
            daemon.append(child["id"], 13 + 9 * i)
            if width:
                for k, grandchild in enumerate(daemon.post(f"/v1/sequences/{child['id']}/fork", {"count": width})["sequences"]):
                    daemon.append(grandchild["id"], 22 + 14 * k)
    for first in (1000, 2000):
        one = daemon.post("/v1/sequences", {"tokens": list(range(first, first + 44))})["id"]
        daemon.append(one, 44)
        daemon.curl(f"/v1/sequences/{one}", "-X", "DELETE")


with Daemon("--config", "config/tiny.jsonc", "--set", "pool.blocks=512") as daemon, Page(daemon.url, 1440, 860) as page:
    page.loaded()
    fill(daemon)
    eventually(lambda: page.states().count("shared") > 50 and page.states().count("cached") == 22, "the map shows it")
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
