#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A workload that waits for blocks is shown with the arithmetic that the daemon tells, and is gone when it runs; chains of the prefix cache as they are
held, cached, evicted; steps when there were some."""
from page import Daemon, Page, eventually, expect, finish

with Daemon("--config", "config/tiny.jsonc") as daemon, Page(daemon.url) as page:
    paths = daemon.get("/openapi.json")["paths"]
    if not {"/v1/waiting", "/v1/prefixes", "/v1/steps"} <= set(paths):
        print("skip what waits: this daemon has not all of /v1/waiting, /v1/prefixes and /v1/steps")
        finish()
    page.loaded()
    page.tab("waiting")
    eventually(lambda: page.text("waiting-sum") == "Nothing waits.", "nothing waits")
    lease = daemon.post("/v1/leases", {"blocks": 60})["id"]
    workload = daemon.post("/v1/workloads", {"sequences": [{"count": 1, "prompt": 40, "decode": 4}]})["id"]
    told = eventually(lambda: daemon.get("/v1/waiting")["items"], "curl is told that it waits")[0]
    eventually(lambda: told["detail"] in page.text("waiting-list"), "the page says why")
    expect("it waits for blocks", "blocks", told["reason"])
    expect("with the arithmetic", True, f"{told['needed']} blocks needed, {told['free']} free, {told['reclaimable']} can be reclaimed" in page.text("waiting-list"))
    expect("and whose it is", True, f"workload {workload}" in page.text("waiting-list"))
    daemon.curl(f"/v1/leases/{lease}", "-X", "DELETE")
    eventually(lambda: page.text("waiting-sum") == "Nothing waits." and page.text("waiting-list") == "", "it waits no more")

    page.tab("steps")
    eventually(lambda: page.text("steps-sum").startswith("Steps "), "its steps are shown")
    last = eventually(lambda: daemon.get(f"/v1/workloads/{workload}")["state"] == "finished" and daemon.get("/v1/steps?limit=1"), "it ends")
    eventually(lambda: page.script("return document.querySelector('#step-table [data-key=step] td').textContent") == str(last["columns"]["step"][0]), "the last step is shown")
    expect("the strip is drawn", True, page.script("""const c = document.getElementById('steps');
        return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0)"""))

    daemon.post("/v1/trim", {})
    s = daemon.post("/v1/sequences", {"tokens": list(range(9))})["id"]
    daemon.append(s, 9)
    page.tab("prefixes")
    chain = eventually(lambda: daemon.get("/v1/prefixes?limit=1000")["items"], "curl is told of a chain")[0]
    row = lambda: page.script("return [...document.querySelectorAll('#prefix-list tr')].map((r) => [...r.children].map((c) => c.textContent))")
    eventually(lambda: [r[:2] + r[6:] for r in row()] == [[chain["chain"], str(chain["tokens"]), "held"]], "the chain is shown, and held")
    daemon.curl(f"/v1/sequences/{s}", "-X", "DELETE")
    eventually(lambda: [r[6] for r in row()] == ["next"], "held by nobody, it goes next")
    page.click("trim-button")
    eventually(lambda: row() == [], "dropped, it is gone")
    expect("the browser has nothing to complain of", [], page.complaints())
finish()
