#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a learner does: the tour in six steps, each of which says what curl can see, too; a workload from the form, of which a copy on write is
to be seen; a sequence that is forked with the copied line. With and without host memory."""
import json
import re
import subprocess

from page import Daemon, Page, eventually, expect, finish, shown


def states_of(daemon, *blocks):
    all_blocks, _ = daemon.blocks()
    return [shown(*all_blocks[b][:2]) for b in blocks]


def step(page, name):
    page.click("tour-next")
    eventually(lambda: page.script("return document.getElementById('view-tour').dataset.step") == name, f"the tour's step {name}")
    text = page.text("tour-text")
    return text, [int(n) for n in re.findall(r"\d+", text)]


def left_out_beside_others(page, daemon, name):
    """The last step takes all free blocks: it is not offered while somebody else has something here."""
    offered = lambda: page.text("tour-next")
    eventually(lambda: offered() == "Next: fill", "the last step is offered")
    other = daemon.post("/v1/sequences", {})["id"]
    eventually(lambda: offered() == "Done", "beside others it is not")
    expect(f"{name}: fill: why it is left out", "The last step is left out: it takes all free blocks for a moment, and there is 1 other sequence in this daemon. Delete it to see it.",
           page.text("tour-left-out"))
    daemon.curl(f"/v1/sequences/{other}", "-X", "DELETE")
    eventually(lambda: offered() == "Next: fill" and page.script("return document.getElementById('tour-left-out').hidden"), "and is again, when they are gone")


def take_tour(page, daemon, host):
    name = f"host memory {host}"
    page.tab("tour")
    text, numbers = step(page, "create")
    first = numbers[0]
    expect(f"{name}: create", [], daemon.get(f"/v1/sequences/{first}")["blocks"])
    step(page, "append")
    of = daemon.get(f"/v1/sequences/{first}")
    expect(f"{name}: append: a block and a half", [6, 2], [of["length"], len(of["blocks"])])
    expect(f"{name}: append: it names them", True, f"{of['length']} tokens took 2 blocks: {of['blocks'][0]} and {of['blocks'][1]}" in page.text("tour-text"))
    expect(f"{name}: append: they are held", ["held"] * 2, states_of(daemon, *of["blocks"]))
    text, numbers = step(page, "fork")
    children = numbers[:2]
    expect(f"{name}: fork: its blocks are the parent's", [of["blocks"]] * 2, [daemon.get(f"/v1/sequences/{c}")["blocks"] for c in children])
    expect(f"{name}: fork: they are shared", ["shared"] * 2, states_of(daemon, *of["blocks"]))
    eventually(lambda: [page.states()[b] for b in of["blocks"]] == ["shared"] * 2, "the map shows them as shared")
    text, numbers = step(page, "write")
    copy = daemon.get(f"/v1/sequences/{children[0]}")["blocks"]
    expect(f"{name}: write: it says which block was copied to which", [of["blocks"][1], copy[1]], numbers[:2])
    expect(f"{name}: write: the full one is shared still, the copy is not", ["shared", "held"], states_of(daemon, *copy))
    step(page, "share")
    published = daemon.get("/stats?limit=100")["sequences"]["items"][-1]
    expect(f"{name}: share: two blocks were found", ["shared"] * 2, states_of(daemon, *published["blocks"]))
    left_out_beside_others(page, daemon, name)
    text, _ = step(page, "fill")
    stats = daemon.get("/stats?limit=1")
    expect(f"{name}: fill: the pool is full", [0, 0], [stats["pool"]["free"], stats["pool"]["cached"]])
    expect(f"{name}: fill: who gave way", (1, True) if host else (0, True),
           (stats["scheduler"]["swapped"], "had to give way" in text))
    expect(f"{name}: fill: cached blocks were evicted", 2, stats["counters"]["evictions"])
    page.click("tour-end")
    eventually(lambda: "gone" in page.text("tour-text"), "the tour has ended")
    stats = daemon.get("/stats?limit=1")
    expect(f"{name}: it says what is left of it", True, "Its blocks are free again.Start" in page.text("tour-text"))
    expect(f"{name}: it leaves nothing", [0, 0, 64], [stats["sequences"]["count"], stats["leases"], stats["pool"]["free"] + stats["pool"]["cached"]])


for host in (0, 16):
    with Daemon("--config", "config/tiny.jsonc", "--set", f"pool.host_blocks={host}") as daemon, Page(daemon.url) as page:
        page.loaded()
        take_tour(page, daemon, host)
        for name in ("create", "append", "fork", "write", "share"):
            step(page, name)
        page.click("tour-end")
        eventually(lambda: "gone" in page.text("tour-text"), "a tour that ends before its last step")
        expect("what is cached is not called free", [True, 2],
               ['blocks are "cached": nobody holds them, and they go when room is needed.' in page.text("tour-text"), daemon.get("/stats?limit=1")["pool"]["cached"]])
        expect("the browser has nothing to complain of", [], page.complaints())

with Daemon() as daemon, Page(daemon.url) as page:
    page.loaded()
    page.tab("workload")
    page.script("const form = document.getElementById('workload-form').elements; for (const [name, value] of [['count', 6], ['decode', 200], ['rate', 20]]) form[name].value = value;")
    page.script("document.querySelector('#workload-form button[type=submit]').click()")
    eventually(lambda: int(page.script("return document.querySelector('#figures [data-key=\"copies on write\"] .value').textContent")) > 0, "a copy on write is seen")
    expect("the form's workload forks and copies", True, daemon.get("/stats?limit=1")["counters"]["forks"] > 0)
    eventually(lambda: "finished" in page.text("workload-list"), "it comes to its end")
    expect("and says what is left of it", True, "its sequences are gone" in page.text("workload-list"))
    figure = lambda name: page.script("return document.querySelector(`#figures [data-key='${arguments[0]}'] .value`).textContent", name)
    eventually(lambda: [figure(n) for n in ("K and V read", "of the roof", "steps a second")] == ["idle", "idle", "0"], "no rate is shown when no step runs")
    report = daemon.get("/v1/workloads/1")
    expect("its rows were verified", [True, 16], [report["verify"]["ok"], report["verify"]["done"]])

    # fork a sequence with the copied line
    a = daemon.post("/v1/sequences", {})["id"]
    page.tab("sequences")
    eventually(lambda: page.script("return document.querySelectorAll('#sequence-list > li').length") == 1, "it is listed")
    page.script("document.querySelector('#sequence-list .id').click()")
    eventually(lambda: not page.script("return document.getElementById('sequence-chosen').hidden"), "it is chosen")
    append = page.script("return [...document.querySelectorAll('#sequence-chosen button')].find((b) => b.textContent === 'Append a token')")
    append.click()
    eventually(lambda: daemon.get(f"/v1/sequences/{a}")["length"] == 1, "a token is appended")
    page.tab("steps")
    eventually(lambda: page.script("return document.querySelector('#step-table [data-key=appends]')?.textContent") == "appended tokens, of clients at each layer4", "a token of 4 layers is no 4 tokens")
    eventually(lambda: "held by one1" in page.text("legend"), "what the legend counts has one holder")
    page.tab("sequences")
    page.script("[...document.querySelectorAll('#sequence-chosen button')].find((b) => b.textContent === 'others as curl').click()")
    lines = page.script("return document.getElementById('curl-text').value").split("\n")
    page.script("document.getElementById('curl-dialog').close()")
    subprocess.run(["sh", "-c", lines[0]], check=True, capture_output=True)
    expect("the copied line appends another one", 2, daemon.get(f"/v1/sequences/{a}")["length"])
    page.script("[...document.querySelectorAll('#sequence-chosen button')].find((b) => b.textContent === 'fork as curl').click()")
    line = page.script("return document.getElementById('curl-text').value")
    page.script("document.getElementById('curl-dialog').close()")
    made = json.loads(subprocess.run(["sh", "-c", line], check=True, capture_output=True, text=True).stdout)["sequences"][0]
    expect("the copied line forks it", 2, made["length"])
    eventually(lambda: f"shares block {made['blocks'][0]} with sequence {made['id']}" in page.text("sequence-list"), "the page says what they share")
    page.tab("tree")
    eventually(lambda: "sharing saves 1 block" in page.text("tree-sum"), "the tree says what that saves")
    expect("the browser has nothing to complain of", [], page.complaints())

# Buttons that can do nothing say so, and what was refused can be read until the next one is pressed.
CHOSEN = "const box = document.getElementById('sequence-chosen'), named = (name) => [...box.querySelectorAll('button')].find((b) => b.textContent === name);"


def choose(page, sequence):
    page.script(f"[...document.querySelectorAll('#sequence-list .id')].find((b) => b.textContent === '{sequence}').click()")
    eventually(lambda: page.script(f"{CHOSEN} return !box.hidden && box.textContent.startsWith('Sequence {sequence} ')"), "it is chosen")


def message(page):
    return page.script(f"{CHOSEN} const p = box.querySelector('.message'); return p.hidden ? null : p.textContent")


with Daemon("--config", "config/tiny.jsonc") as daemon, Page(daemon.url) as page:
    page.loaded()
    page.tab("sequences")
    a = daemon.post("/v1/sequences", {"max_tokens": 1})["id"]
    daemon.append(a, 1)
    eventually(lambda: f"{a}idle" in page.text("sequence-list").replace("\n", "").replace(" ", ""), "it is listed")
    choose(page, a)
    page.script(f"{CHOSEN} named('Append a token').click()")
    refused = eventually(lambda: message(page), "a refusal is told")
    daemon.post(f"/v1/sequences/{a}/truncate", {"length": 0})
    eventually(lambda: "0 tokens" in page.text("sequence-list"), "the sequence has changed")
    expect("a refusal stays when the sequence changes", refused, message(page))
    page.script(f"{CHOSEN} named('Append a token').click()")
    eventually(lambda: daemon.get(f"/v1/sequences/{a}")["length"] == 1, "the next action is done")
    eventually(lambda: message(page) is None, "and takes the message away")

    # what the API refuses is refused in its words
    page.tab("workload")
    fields = "const form = document.getElementById('workload-form').elements; for (const [name, value] of Object.entries(arguments[0])) form[name].value = value;"
    begun = page.script("const form = document.getElementById('workload-form').elements; return {prompt: form.prompt.value, prefix: form.prefix.value}")
    page.script(fields, {"prompt": 4, "prefix": 100})
    page.script("document.querySelector('#workload-form button[type=submit]').click()")
    eventually(lambda: page.text("workload-message") == "/sequences/0/prefix/length: wants 1 to all tokens of the prompt", "a prefix that is longer than the prompt is refused")
    expect("and nothing begins", [], daemon.get("/v1/workloads")["items"])
    page.script(fields, begun)

    rare = daemon.post("/v1/workloads", {"seed": 3, "sequences": [{"count": 2, "prompt": 4, "decode": 3}], "arrival": {"rate": 0.00001}})["id"]
    eventually(lambda: re.search(r"0 sequences running, 0 waiting · [12] to come, the next in \d+ (min|h)", page.text("workload-list")), "a workload that waits for its next request says so")
    daemon.curl(f"/v1/workloads/{rare}", "-X", "DELETE")
    eventually(lambda: "to come" not in page.text("workload-list"), "of one that has ended nothing is to come")

    # what the form begins with fits this pool, too
    page.script("document.querySelector('#workload-form button[type=submit]').click()")
    eventually(lambda: "workload 2running" in page.text("workload-list").replace("\n", ""), "a workload runs")
    eventually(lambda: daemon.get("/v1/workloads/2")["sequences"]["finished"] > 0, "and ends sequences")
    daemon.curl("/v1/workloads/2", "-X", "DELETE")
    eventually(lambda: "not verified (cancelled) · its sequences are gone" in page.text("workload-list"), "it is cancelled, which is not wrong")
    expect("the browser has nothing to complain of", [], page.complaints())

with Daemon() as daemon, Page(daemon.url) as page:
    page.loaded()
    page.tab("sequences")
    daemon.post("/v1/workloads", {"sequences": [{"prompt": 9, "decode": 60000}]})
    driven = eventually(lambda: daemon.get("/stats")["sequences"]["items"], "the workload has a sequence")[0]["id"]
    eventually(lambda: "workload 1" in page.text("sequence-list"), "it is listed")
    choose(page, driven)
    own = 'Make one of your own: "New sequence", then "Append a token" and "Fork".'
    expect("a sequence of a workload: why its buttons are off", {f"Workload 1 drives it, and nobody else may. {own}"},
           set(page.script(f"{CHOSEN} return [...box.querySelectorAll('[aria-disabled=true]')].map((b) => b.title)")))
    expect("all but Close", 6, page.script(f"{CHOSEN} return box.querySelectorAll('[aria-disabled=true]').length"))
    page.script(f"{CHOSEN} named('Fork').click()")
    grown = daemon.get(f"/v1/sequences/{driven}")["length"] + 50
    eventually(lambda: int(re.search(r"(\d+) tokens", page.text("sequence-list").replace("\u202f", ""))[1]) > grown, "the sequence grows")
    expect("and Fork says so, for as long as one looks", True, "Workload 1 drives it" in (message(page) or ""))
    expect("no time is called idle while it runs", False, "idle" in page.text("sequence-list"))
    daemon.curl("/v1/workloads/1", "-X", "DELETE")
    eventually(lambda: f"Sequence {driven} has ended (workload 1). {own}" in page.text("sequence-chosen"), "the panel says that its sequence has ended")
    expect("and stays", False, page.script(f"{CHOSEN} return box.hidden"))
    page.script(f"{CHOSEN} named('New sequence').click()")
    expect("it opens the form", [True, "Create"], page.script("return [document.getElementById('sequence-new').open, document.activeElement.textContent]"))
    page.script("document.activeElement.click()")
    mine = eventually(lambda: daemon.get("/stats")["sequences"]["items"], "a sequence of one's own")[0]["id"]
    eventually(lambda: page.text("sequence-chosen").startswith(f"Sequence {mine} "), "it is chosen")
    for name, want in (("Append a token", [1]), ("Fork", [1, 1])):
        page.script(f"{CHOSEN} named('{name}').click()")
        eventually(lambda: [s["length"] for s in daemon.get("/stats")["sequences"]["items"]] == want, f"{name} does")
    page.click("stop")
    page.script("document.getElementById('epoch').value = 0; document.getElementById('epoch').dispatchEvent(new Event('input', {bubbles: true}))")
    eventually(lambda: page.script(f"{CHOSEN} return box.hidden"), "before it began there is no panel that says it has ended")
    page.click("stop")
    page.script(f"{CHOSEN} named('Delete').click()")
    eventually(lambda: f"Sequence {mine} has ended. {own}" in page.text("sequence-chosen"), "one's own ends, too")
    page.script(f"{CHOSEN} named('Close').click()")
    expect("Close closes it", True, page.script(f"{CHOSEN} return box.hidden"))
    page.tab("workload")
    eventually(lambda: "cancelled (request)" in page.text("workload-list"), "it is cancelled")
    expect("the browser has nothing to complain of", [], page.complaints())

# A workload has thousands of changes a second: what one does beside it can be read all the same (bug: a copy on write was gone in a moment).
with Daemon("--config", "config/tiny.jsonc", "--set", "pool.blocks=256") as daemon, Page(daemon.url) as page:
    page.loaded()
    page.tab("sequences")
    hidden = lambda: page.script("return document.getElementById('own-box').hidden")
    lines = lambda name: page.script("return [...document.querySelectorAll('#' + arguments[0] + ' li')].map((e) => [Number(e.firstChild.textContent), e.lastChild.textContent])", name)
    workload = daemon.post("/v1/workloads", {"sequences": [{"count": 10000, "prompt": 9, "decode": 4, "fork": {"at": 10, "count": 2}}], "arrival": {"rate": 200}})["id"]
    eventually(lambda: len(page.script("return [...document.querySelectorAll('#changes .when')]")) == 5, "a workload's changes are the latest ones")
    expect("none of them are one's own", True, hidden())
    page.script("document.querySelector('#sequence-form button[type=submit]').click()")
    a = int(re.search(r"\d+", eventually(lambda: page.text("sequence-new-message"), "a sequence is made")).group())
    eventually(lambda: page.script(f"{CHOSEN} return !box.hidden && box.textContent.startsWith('Sequence {a} ')"), "it is chosen")
    page.script(f"{CHOSEN} named('Append a token').click()")
    eventually(lambda: daemon.get(f"/v1/sequences/{a}")["length"] == 1, "it has a token")
    page.script(f"{CHOSEN} named('Fork').click()")
    child = eventually(lambda: [int(m.group(1)) for m in [re.search(rf"sequence (\d+) forked from sequence {a}:", text) for _, text in lines("own-changes")] if m], "its fork is told of")[0]
    daemon.append(child, 1)
    copied = eventually(lambda: [line for line in lines("own-changes") if re.fullmatch(rf"block \d+ copied to block \d+ by sequence {child}, which wrote to it while it was shared", line[1])],
                        "the copy on write of the fork is told of")[0]
    eventually(lambda: lines("changes")[0][0] > copied[0] + 200, "200 changes later")
    expect("it can be read still", True, copied in lines("own-changes"))
    blocks = {b for s in (a, child) for b in daemon.get(f"/v1/sequences/{s}")["blocks"]}
    expect("nothing else is there", [], [text for _, text in lines("own-changes") if not re.search(rf"\bsequence ({a}|{child})\b", text) and not {int(n) for n in re.findall(r"block (\d+)", text)} <= blocks])
    expect("in their order", sorted((n for n, _ in lines("own-changes")), reverse=True), [n for n, _ in lines("own-changes")])
    daemon.curl(f"/v1/workloads/{workload}", "-X", "DELETE")
    expect("the browser has nothing to complain of", [], page.complaints())
finish()
