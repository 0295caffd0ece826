#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""record.py >tests/bench/page-requests.tsv - what the page asks in half a minute while a workload runs, on one tab after the other: milliseconds,
path, and "etag" where it asks for changes alone. tests/bench/bench_subscribers.py sends them."""
import json
import time
from urllib.parse import urlsplit

from page import Daemon, Page, eventually

TABS = ("sequences", "tree", "waiting", "steps", "prefixes", "block", "checks")
STAY_S = 4

with Daemon("--config", "config/tiny.jsonc", "--set", "pool.blocks=100000") as daemon, Page(daemon.url, open_it=False, log_requests=True) as page:
    daemon.post("/v1/workloads", {"sequences": [{"count": 64, "prompt": 100, "decode": 4000, "fork": {"at": 101, "count": 3}}]})
    eventually(lambda: daemon.get("/stats?limit=1")["scheduler"]["running"] > 0, "the workload runs")
    page.open()
    for tab in TABS:
        page.tab(tab)
        time.sleep(STAY_S)
    begun = None
    for entry in page.driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] != "Network.requestWillBeSent":
            continue
        request, at = message["params"]["request"], message["params"]["timestamp"]
        begun = at if begun is None else begun
        url = urlsplit(request["url"])
        if request["method"] == "GET" and url.path.startswith(("/v1/", "/stats")):
            print(round(1000 * (at - begun)), url.path + ("?" + url.query if url.query else ""), "etag" if "If-None-Match" in request["headers"] else "", sep="\t")
