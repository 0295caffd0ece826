#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whatever salts, ids, names and answers say is text: no script runs, nothing violates the policy, and a copied line means the same to a shell.

Salts reach the daemon by the line that the page copies, run by sh. What it has made is looked at by what its prompt finds in the cache. Answers are made
hostile on the way: the page's fetch is replaced, so that names that the daemon would not give are tried, too."""
import json
import os
import subprocess

from page import Daemon, Page, eventually, expect, finish

MARKUP = "<img src=x onerror=\"window.ran=1\"><script>window.ran=1</script>"
SALTS = ["it's", '"two"', "a\nb", "$(touch ran)`touch ran`", "\\'; touch ran; '", "<b>&amp;", "-x @y %41", "ü☃ \u202e", MARKUP[:64]]


def line_of(page, view):
    page.script("document.querySelector(`button.curl[data-view=${arguments[0]}]`).click()", view)
    text = page.script("return document.getElementById('curl-text').value")
    page.script("document.getElementById('curl-dialog').close()")
    return text


with Daemon("--config", "config/tiny.jsonc") as daemon, Page(daemon.url) as page:
    page.script("window.violations = []; document.addEventListener('securitypolicyviolation', (e) => window.violations.push(e.violatedDirective + ' ' + e.blockedURI))")
    page.loaded()
    for number, salt in enumerate(SALTS):
        page.script("""const f = document.getElementById('sequence-form').elements;
            f.salt.value = arguments[0]; f.tokens.value = arguments[1];""", salt, "1 2 3 4 5")
        line = line_of(page, "create")
        made = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=daemon.work.name)
        answer = json.loads(made.stdout)
        expect(f"the copied line of salt {salt!r} makes a sequence", 0, answer.get("cached_tokens", made.stdout))
        daemon.append(answer["id"], 5)
        again = daemon.post("/v1/sequences", {"tokens": [1, 2, 3, 4, 5], "salt": salt})
        expect(f"its prefix has the salt {salt!r}", 4, again["cached_tokens"])
        other = daemon.post("/v1/sequences", {"tokens": [1, 2, 3, 4, 5], "salt": "other"})
        expect("and no other one", 0, other["cached_tokens"])
        for s in (answer, again, other):
            daemon.curl(f"/v1/sequences/{s['id']}", "-X", "DELETE")
    expect("no line ran what a salt says", ["log"], sorted(os.listdir(daemon.work.name)))

    # every line that the page copies is read by a shell without complaint, and asks this daemon
    for view in ("map", "sequences", "waiting", "steps", "prefixes", "block", "checks", "workload", "tour", "create"):
        for line in line_of(page, view).split("\n" if view != "create" else "\0"):
            words = subprocess.run(["sh", "-c", "curl() { for a; do printf '%s\\0' \"$a\"; done; }; " + line], capture_output=True, text=True, check=True).stdout.split("\0")
            expect(f"a line of {view} is for this daemon: {line[:50]}", True, words[-2].startswith(page.url + "/"))

    # A daemon that says anything at all: every text of every answer is markup.
    page.script("""
        const bad = arguments[0], real = window.fetch;
        const spoil = (v) => Array.isArray(v) ? v.map(spoil) : v && typeof v === 'object' ? Object.fromEntries(Object.entries(v).map(([k, w]) => [k, spoil(w)]))
          : typeof v === 'string' ? v + bad : v;
        const made = {
          '/v1/waiting': {epoch: 1, count: 1, others: 0, items: [{kind: 'attend', request: bad, sequences: [bad], workload: bad, owner: bad, since_s: 1, reason: bad, needed: 2, free: 1,
            reclaimable: 0, behind: {kind: bad, id: bad}, estimate_s: null, detail: bad}]},
          '/v1/prefixes': {items: [{chain: bad, salted: true, tokens: 4, blocks: [bad], cached: 1, held: 0, hits: 1, last_used_s: 1, evicted_next: 1}], next: null},
          '/v1/blocks/0/history': {block: 0, generation: 1, state: bad, changes: [{epoch: 1, time_s: 1, change: bad, refs: 1, fill: 1, sequence: bad, generation: bad}]},
          '/v1/steps': {next: 2, columns: {step: [1], rows_clients: [1], rows_workloads: [bad], queue_us: [1], kernel: [bad]}},
        };
        window.fetch = async (url, init) => {
          const path = new URL(url).pathname;
          if (made[path]) return new Response(JSON.stringify(made[path]), {status: 200});
          const answer = await real(url, init);
          if (path === '/v1/blocks' || path === '/v1/info' || path === '/v1/events' || !answer.ok) return answer;
          return new Response(JSON.stringify(spoil(await answer.json())), {status: answer.status, headers: answer.headers});
        };
    """, MARKUP)
    a = daemon.post("/v1/sequences", {})["id"]
    daemon.append(a, 3)
    daemon.post("/v1/workloads", {"sequences": [{"count": 1, "prompt": 4, "decode": 2}]})
    for tab in ("sequences", "tree", "waiting", "steps", "prefixes", "block", "checks", "workload", "tour"):
        page.tab(tab)
        if tab in ("sequences", "waiting", "prefixes", "block", "checks", "workload"):
            eventually(lambda: "<script>" in page.text(f"view-{tab}"), f"{tab} shows what it was told")
        page.settle()
    page.script("const b = document.querySelector('#sequence-list .id'); if (b) b.click()")
    page.settle()
    expect("nothing of it ran", None, page.script("return window.ran ?? null"))
    expect("nothing of it became an element", 0, page.script("return document.querySelectorAll('img, #views script, #map-panel script').length"))
    expect("nothing violated the policy", [], page.script("return window.violations"))
    expect("the browser has nothing to complain of", [], page.complaints())

    # The policy holds: what would run in its despite does not.
    page.script("""const s = document.createElement('script'); s.textContent = 'window.ran = 2'; document.body.append(s);
        const i = document.createElement('div'); i.setAttribute('onclick', 'window.ran = 3'); document.body.append(i); i.click();
        const r = document.createElement('img'); r.src = 'http://example.invalid/x.png'; document.body.append(r);""")
    eventually(lambda: page.script("return window.violations.length") >= 3, "the policy is heeded")
    expect("inline code and other hosts are refused", None, page.script("return window.ran ?? null"))
finish()
