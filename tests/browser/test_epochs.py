#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Time: the page is stopped at ten epochs, two of them while blocks are swapped, and every cell is compared with /v1/blocks?epoch=E as curl is told; the
tables of sequences with those that curl was told then, before the page was opened, too. A fork and a copy on write come by events; while a workload runs
the page follows."""
import re

from page import Daemon, Page, eventually, expect, finish, shown


# Fork a sequence from within the page; milliseconds from the answer until a frame shows the change.
FORK = """
const [id, done] = arguments, map = document.getElementById('map');
(async () => {
  const {sequences: [child]} = await (await fetch(`/v1/sequences/${id}/fork`, {method: 'POST'})).json(), begin = performance.now();
  const {changes} = await (await fetch(`/v1/blocks/${child.blocks[0]}/history`)).json(), epoch = changes.at(-1).epoch;
  const look = () => Number(map.dataset.epoch) >= epoch ? done(performance.now() - begin) : requestAnimationFrame(look);
  look();
})();
"""


def has_history(daemon):
    parameters = daemon.get("/openapi.json")["paths"]["/v1/blocks"]["get"]["parameters"]
    return any(p["name"] == "epoch" for p in parameters)


def compare(page, daemon, epoch, what):
    page.set("epoch", str(epoch))
    page.wait_stopped(epoch)
    blocks, told = daemon.blocks(epoch=epoch)
    expect(f"{what}: curl is told of epoch {epoch}", epoch, told)
    told = daemon.get(f"/v1/tables?epoch={epoch}")["sequences"]
    expect(f"{what}: so are the tables", {s["id"]: s["blocks"] for s in told}, tables_shown(page))
    expect(f"{what}: the map at epoch {epoch} is what curl is told", [shown(*blocks[b][:2]) for b in sorted(blocks)], page.states())
    return blocks


def epoch_of(daemon):
    return daemon.blocks()[1]


def tables_of(daemon):
    """The tables now, as {sequence: blocks}; what is swapped out has none."""
    return {s["id"]: s["blocks"] for s in daemon.get("/stats?limit=1000")["sequences"]["items"]}


def tables_shown(page):
    rows = page.script("return [...document.querySelectorAll('#sequence-list > li')].map((e) => [e.querySelector('.id').textContent, e.querySelector('canvas').ariaLabel])")
    return {int(name): [int(b) for b in re.findall(r"\d+", label)] for name, label in rows}


# What was before the page was opened: sequences that have ended since, and one that is swapped out.
with Daemon("--config", "config/tiny.jsonc", "--set", "pool.blocks=12", "--set", "pool.host_blocks=64") as daemon:
    noted = []
    note = lambda: noted.append((epoch_of(daemon), tables_of(daemon)))
    a = daemon.post("/v1/sequences", {})["id"]
    daemon.append(a, 10)
    note()
    b, c = [s["id"] for s in daemon.post(f"/v1/sequences/{a}/fork", {"count": 2})["sequences"]]
    note()
    daemon.append(b, 6)
    note()
    daemon.post(f"/v1/sequences/{b}/truncate", {"length": 3})
    note()
    daemon.curl(f"/v1/sequences/{a}", "-X", "DELETE")
    note()
    daemon.curl(f"/v1/sequences/{c}", "-X", "DELETE")
    free = daemon.get("/stats?limit=1")["pool"]
    daemon.post("/v1/leases", {"blocks": free["free"] + free["cached"] + 1})
    note()
    expect("these differ", len(noted), len({str(tables) for _, tables in noted}))
    expect("one is swapped out", {b: []}, noted[-1][1])
    with Page(daemon.url) as page:
        page.loaded()
        eventually(lambda: int(page.script("return document.getElementById('epoch').max")) >= noted[-1][0], "the page has come to the present")
        for epoch, tables in noted:
            page.set("epoch", str(epoch))
            page.wait_stopped(epoch)
            expect(f"the tables of epoch {epoch}, before the page was opened", tables, tables_shown(page))
            expect("it says which they are", f"Tables as they were at epoch {epoch}.", page.text("sequences-message"))
        page.set("epoch", str(noted[1][0]))
        page.wait_stopped(noted[1][0])
        page.script("document.querySelector('#sequence-list .id').click()")
        expect("what has ended since is not acted on", f"Sequence {a} has ended since", (re.search(r"Sequence \d+ has ended since", page.text("sequence-chosen")) or [""])[0])
        page.tab("tree")
        eventually(lambda: "3 sequences with blocks; sharing saves 6 blocks" in page.text("tree-sum"), "the fork tree is of that epoch, too")
        expect("the browser has nothing to complain of", [], page.complaints())


with Daemon("--config", "config/tiny.jsonc", "--set", "pool.host_blocks=64") as daemon, Page(daemon.url) as page:
    if not has_history(daemon):
        print("skip epochs: this daemon has no /v1/blocks?epoch=")
        finish()
    page.loaded()
    marks = []
    mark = lambda what: marks.append((epoch_of(daemon), what))
    mark("an empty pool")
    a = daemon.post("/v1/sequences", {})["id"]
    daemon.append(a, 10)
    mark("an append")
    children = [s["id"] for s in daemon.post(f"/v1/sequences/{a}/fork", {"count": 3})["sequences"]]
    eventually(lambda: page.states().count("shared") == 3, "a fork appears by events")
    mark("a fork")
    daemon.append(children[0], 1)
    eventually(lambda: page.states()[:4] == ["shared", "shared", "shared", "held"], "a copy on write appears by events")
    eventually(lambda: f"block 2 copied to block 3 by sequence {children[0]}, which wrote to it while it was shared" in page.text("changes"), "the change is told in words")
    mark("a copy on write")
    daemon.curl(f"/v1/sequences/{children[1]}", "-X", "DELETE")
    mark("a deletion")
    daemon.post("/v1/sequences", {"id": 90, "tokens": list(range(9))})
    daemon.append(90, 9)
    mark("a published prompt")
    daemon.curl("/v1/sequences/90", "-X", "DELETE")
    mark("cached blocks")
    daemon.post(f"/v1/sequences/{children[0]}/truncate", {"length": 4})
    mark("a truncate")
    # a lease of all that is free, and more: idle sequences are swapped out, and come back
    before = epoch_of(daemon)
    free = daemon.get("/stats?limit=1")["pool"]
    lease = daemon.post("/v1/leases", {"blocks": free["free"] + free["cached"] + 1})["id"]
    out = epoch_of(daemon)
    expect("swapped out", True, daemon.get("/stats?limit=1")["counters"]["swaps_out"] > 0)
    daemon.curl(f"/v1/leases/{lease}", "-X", "DELETE")
    swapped = next(s["id"] for s in daemon.get("/v1/sequences?state=swapped")["items"])
    daemon.append(swapped, 1)
    back = epoch_of(daemon)
    expect("swapped in", True, daemon.get("/stats?limit=1")["counters"]["swaps_in"] > 0)
    marks += [((before + out + 1) // 2, "while blocks are swapped out"), (back - 1, "while blocks are swapped in"), (back, "when they are back")]
    eventually(lambda: int(page.script("return document.getElementById('epoch').max")) >= back, "the page has come to the present")

    seen = [compare(page, daemon, epoch, what) for epoch, what in marks]
    expect("ten epochs and more", True, len(marks) >= 10)
    expect("which differ", True, len({str(s) for s in seen}) >= 8)
    page.click("earlier")
    page.wait_stopped(back - 1)
    page.click("later")
    page.wait_stopped(back)
    daemon.curl(f"/v1/sequences/{a}", "-X", "DELETE")
    expect("what happens now does not move a stopped map", str(back), page.script("return document.getElementById('map-panel').dataset.epoch"))
    page.click("stop")
    want = lambda: [shown(*b[:2]) for _, b in sorted(daemon.blocks()[0].items())]
    eventually(lambda: page.states() == want(), "it goes on with the present")
    expect("the browser has nothing to complain of", [], page.complaints())

    # the life of a block
    page.tab("block")
    page.set("block-number", "2")
    eventually(lambda: "taken" in page.text("block-life"), "the life of block 2")
    life = daemon.get("/v1/blocks/2/history")["changes"]
    eventually(lambda: len(life) == page.script("return [...document.querySelectorAll('#block-life li')].filter((e) => e.querySelector('.when')).length"), "all of it is told")
    expect("with its generations", True, f"generation {life[-1]['generation']}" in page.text("block-life"))
    for number in ("99999", "-1", "1.5"):
        page.set("block-number", number)
        eventually(lambda: page.text("block-message") == f"there is no block {number}: ids are 0..{len(page.states()) - 1}", "a number of no block is refused, with the range")
        expect(f"block {number}: what was typed stays, and no other block's life is shown", [number, "", ""],
               [page.script("return document.getElementById('block-number').value"), page.text("block-life"), page.text("block-sum")])
    page.set("block-number", "2")
    eventually(lambda: "taken" in page.text("block-life") and page.script("return document.getElementById('block-message').hidden"), "another number is shown again")

# While a workload runs: how long after a call's answer the page shows what the call has changed.
with Daemon("--config", "config/tiny.jsonc", "--set", "pool.blocks=2000") as daemon, Page(daemon.url) as page:
    page.loaded()
    daemon.post("/v1/workloads", {"sequences": [{"count": 10, "prompt": 20, "decode": 400, "fork": {"at": 22, "count": 3}}], "arrival": {"rate": 10}})
    s = daemon.post("/v1/sequences", {})["id"]
    daemon.append(s, 6)
    lags = []
    for _ in range(20):
        lags.append(page.driver.execute_async_script(FORK, s))
    print(f"-- a fork while a workload runs: on the map {sorted(lags)[10]:.0f} ms after its answer in the median, {max(lags):.0f} at most")
    eventually(lambda: daemon.get("/v1/workloads/1")["state"] == "finished", "the workload ends")
    want = lambda: [shown(*b[:2]) for _, b in sorted(daemon.blocks()[0].items())]
    eventually(lambda: page.states() == want(), "the map agrees when it is over")
    expect("the map agrees when it is over", want(), page.states())
    page.tab("checks")
    eventually(lambda: page.script("return document.querySelector('[data-key=map] .lamp').className") == "lamp good", "the light says so")
    expect("the browser has nothing to complain of", [], page.complaints())
finish()
