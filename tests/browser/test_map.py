#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The map's cells, decoded from its pixels, are the blocks that curl is told of: while sequences are made, forked, written to and deleted."""
from page import Daemon, Page, eventually, expect, finish, shown


def told(daemon):
    blocks, _ = daemon.blocks()
    return [shown(*blocks[b][:2]) for b in sorted(blocks)]


def agrees(page, daemon):
    """Whether the page shows what curl is told, now."""
    want = told(daemon)
    return want if page.states() == want else None


with Daemon("--config", "config/tiny.jsonc", "--set", "pool.host_blocks=16") as daemon, Page(daemon.url) as page:
    page.loaded()
    expect("an empty pool", ["free"] * 64, page.states())
    expect("the title", "attnd", page.driver.title)

    a = daemon.post("/v1/sequences", {})["id"]
    daemon.append(a, 6)
    want = eventually(lambda: agrees(page, daemon), "two blocks are taken")
    expect("two blocks are held", ["held"] * 2 + ["free"] * 62, want)
    b = daemon.post(f"/v1/sequences/{a}/fork", {"count": 2})["sequences"][0]["id"]
    want = eventually(lambda: agrees(page, daemon), "a fork shares")
    expect("a fork shares them", ["shared"] * 2 + ["free"] * 62, want)
    daemon.append(b, 1)
    want = eventually(lambda: agrees(page, daemon), "a copy on write appears")
    expect("a write copies one", ["shared"] * 2 + ["held"] + ["free"] * 61, want)
    daemon.post("/v1/sequences", {"id": 50, "tokens": [1, 2, 3, 4, 5]})
    daemon.append(50, 5)
    daemon.curl("/v1/sequences/50", "-X", "DELETE")
    want = eventually(lambda: "cached" in told(daemon) and agrees(page, daemon), "a cached block appears")
    expect("a published block that nobody holds is cached", 1, want.count("cached"))

    # references and fill, by what is said of a cell
    page.script("document.getElementById('map').focus()")
    for name, keys, said in (("a cell says what it is", "\ue011", "block 0 · shared · 3 references · 4 of 4 tokens · held by sequences 1, 2 and 3"),  # Home
                             ("so does another one", "\ue011\ue014\ue014", "block 2 · held · 1 reference · 3 of 4 tokens · held by sequence 2")):  # right, right
        eventually(lambda: page.id("map").send_keys(keys) or page.text("readout") == said, name)  # holders and fill come with the next poll
        expect(name, said, page.text("readout"))

    # a narrow page, dark, and zoomed: the same cells
    for width, dark in ((380, True), (1000, False)):
        page.resize(width, 900)
        if dark:
            page.click("theme-button")
        eventually(lambda: agrees(page, daemon), f"the map at {width} pixels")
        expect(f"at {width} pixels the page is no wider than its window", 0, page.script("const e = document.documentElement; return e.scrollWidth - e.clientWidth"))
        for button in ("zoom-in", "zoom-in", "zoom-out", "zoom-out", "zoom-out", "zoom-fit"):
            page.click(button)
            eventually(lambda: page.states() == told(daemon)[:len(page.states())], f"the map at {width} pixels, after {button}")
        expect(f"at {width} pixels it is the same map, zoomed too", told(daemon), page.states())
    cell = lambda: int(page.script("return document.getElementById('map').dataset.cell"))
    page.resize(1000, 460)
    eventually(lambda: cell() < 40, "a low window has small cells")
    page.resize(1000, 900)
    eventually(lambda: cell() >= 40, "which grow with it")
    expect("what is below the map is beside it (bug: an empty hole)", True,
           page.script("const at = (id) => document.getElementById(id).getBoundingClientRect(); return at('readout').top - at('map').bottom < 3"))
    page.resize(380, 900)
    page.settle()
    expect("a narrow map has rows of eight", "8", page.script("return document.getElementById('map').dataset.columns"))
    page.resize(1000, 900)
    page.settle()
    for mode in ("refs", "fill", "owner", "age", "state"):
        page.script("document.querySelector(`input[value=${arguments[0]}]`).click()", mode)
        page.settle()
        cells = page.states()
        if mode == "refs":
            expect("colours of references tell free blocks and 0, 1, 2 and 3 apart", 5, len(set(cells)))
    eventually(lambda: agrees(page, daemon), "states again")
    expect("the browser has nothing to complain of", [], page.complaints())
finish()
