#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""two_keys.py URL KEY-OF-ANN KEY-OF-BOB - search everything that Bob can get for what belongs to Ann.

Ann has sequences, a lease and workloads with ids that stand out, a prompt and a salt. Then Bob makes every request of /openapi.json, with her ids in
paths and bodies, and with ids of nothing. Whatever he gets, his own streams and pages too, must have none of her ids and words; and of each request
that names something of hers the answer must be the one of a request that names nothing, but for the number. Prints "ok" and "not ok" lines."""
import http.client
import json
import re
import sys
from urllib.parse import urlsplit

URL, ANN, BOB = sys.argv[1:4]
HANG_S = 600
NOTHING = 700000009  # an id that nobody has
failed = 0
seen = 0


def ask(key, method, path, body=None, accept="*/*"):
    parts = urlsplit(URL)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=HANG_S)
    headers = {"Authorization": "Bearer " + key, "Accept": accept, "X-Request-Id": "the-same"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode("latin-1")
    head = "".join(f"{name}: {value}\n" for name, value in answer.getheaders() if name != "Date")
    connection.close()
    return answer.status, head, text


def check(name, good, what=""):
    global failed
    failed += not good
    print(("ok " if good else "not ok ") + name + ("" if good else f": {what}"))


def make(path, body, key=ANN):
    status, _, text = ask(key, "POST", path, body)
    if status >= 300:
        check(f"{path} {body}", False, text)
    return json.loads(text.splitlines()[-1]) if text else {}


def rows(n):
    return [[[1, 0, 0, 0, 0, 0, 0, 0]]] * n


# What is hers.
SEQUENCE, FORK, LEASE = 700000001, 700000002, 700000003
make("/v1/sequences", {"id": SEQUENCE, "tokens": list(range(810000, 810012)), "salt": "annssalt"})
make("/v1/append", {"sequences": [SEQUENCE], "indptr": [0, 10], "k": rows(10), "v": rows(10)})
make(f"/v1/sequences/{SEQUENCE}/fork", {"ids": [FORK]})
make("/v1/leases", {"id": LEASE, "blocks": 2})
gone = 700000004
make("/v1/sequences", {"id": gone})
ask(ANN, "POST", f"/v1/sequences/{gone}/moved", {"moved_to": "/annsplace", "length": 0})
while True:  # one whose number stands out among the daemon's
    workload = make("/v1/workloads", {"sequences": [{"prompt": 3, "decode": 2}]})["id"]
    if workload > 40:
        break
HERS = [str(i) for i in (SEQUENCE, FORK, LEASE, gone)] + ["810000", "810003", "annssalt", "annsplace", "annskey"]
HERS = {word: re.compile(r"(?<![0-9.])" + word + r"(?![0-9])") for word in HERS}  # not as digits of a time

# What is his.
own = make("/v1/sequences", {}, BOB)["id"]
make("/v1/append", {"sequences": [own], "k": rows(1), "v": rows(1)}, BOB)


def bodies(path, identity):
    """What he sends to a path, about an id."""
    kv = {"k": rows(1), "v": rows(1)}
    q = {"q": rows(1)}
    return {
        "/v1/sequences": [{}, {"id": identity}, {"tokens": list(range(810000, 810012)), "salt": "annssalt"}],
        "/v1/sequences/{id}/fork": [{}, {"count": 2}],
        "/v1/sequences/{id}/truncate": [{"length": 0}],
        "/v1/sequences/{id}/kv": [kv],
        "/v1/sequences/{id}/moved": [{"moved_to": "/x", "length": 10}],
        "/v1/batch": [{"ops": [{"op": op, "id": identity, **more}]} for op, more in
                      (("fork", {}), ("truncate", {"length": 0}), ("delete", {}))],
        "/v1/append": [{"sequences": [identity], **kv}, {"sequences": [identity], "positions": [3], **kv}],
        "/v1/attend": [{"sequences": [identity], **q}, {"sequences": [identity], **q, **kv}],
        "/v1/paged": [{"lease": identity, **q, "block_tables": [[0]], "context_lens": [1]}],
        "/v1/leases": [{"blocks": 1}, {"blocks": 1, "id": identity}],
        "/v1/workloads": [{"sequences": [{"prompt": 3, "decode": 2}]}, {"sequences": [{"prompt": 3, "decode": 2}], "return": "outputs"}],
        "/v1/merge": [{"o": [rows(1)], "lse": [[[0]]]}],
    }.get(path, [None, {}])


def masked(status, head, text, identity):
    return status, re.sub(r"Content-Length: \d+", "", head.replace(str(identity), "ID")), text.replace(str(identity), "ID")


leaks = []
differ = []
spec = json.loads(ask(BOB, "GET", "/openapi.json")[2])
queries = ["", "?limit=1000", "?range=0:1", "?state=held&limit=1000", "?fields=block,owner&limit=1000", "?format=columns", "?layer=0", "?state=idle"]
for path, operations in spec["paths"].items():
    if path in ("/v1/drain", "/v1/events"):  # it has no end: below
        continue
    for method in (m.upper() for m in operations):
        for identity in (SEQUENCE, FORK, LEASE, gone, workload):
            if identity == workload and "workloads" not in path:
                continue
            for query in queries if method == "GET" else ["", "?range=0:1"] if method == "PUT" else [""]:
                for body in [None] if method in ("GET", "DELETE") else bodies(path, identity):
                    if identity == gone and path in ("/v1/sequences", "/v1/leases") and body and "id" in body:
                        continue  # it is free
                    for accept in ("*/*", "application/x-ndjson", "text/event-stream"):
                        request = path.replace("{id}", str(identity)) + query
                        answer = ask(BOB, method, request, body, accept)
                        seen += 1
                        said = answer[1] + answer[2]
                        said_by_him = json.dumps(body) + request
                        leaks += [(method, request, word, said[:300]) for word in HERS if HERS[word].search(said) and word not in said_by_him]
                        names = "{id}" in path or str(identity) in json.dumps(body or {})
                        creates = path in ("/v1/sequences", "/v1/leases")
                        if not names or creates:
                            continue
                        other = json.loads(json.dumps(body).replace(str(identity), str(NOTHING))) if body is not None else None
                        twin = ask(BOB, method, path.replace("{id}", str(NOTHING)) + query, other, accept)
                        if masked(*answer, identity) != masked(*twin, NOTHING):
                            differ.append((method, request, answer, twin))


def listen(key, since, until):
    """Lines of her or his events from a number on, up to the one that has `until`."""
    parts = urlsplit(URL)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=HANG_S)
    connection.request("GET", f"/v1/events?since={since}", headers={"Authorization": "Bearer " + key, "Accept": "application/x-ndjson"})
    answer = connection.getresponse()
    lines = []
    while not lines or until not in lines[-1]:
        lines.append(answer.readline().decode())
    connection.close()
    return lines


# She takes, shares, copies and gives back; then he ends one of his, up to which both listen.
map_before = json.loads(ask(BOB, "GET", "/v1/blocks?limit=1000")[2])
NEW, CHILD, LAST = 700000020, 700000021, 600000001
make("/v1/sequences", {"id": LAST}, BOB)
make("/v1/append", {"sequences": [LAST], "k": rows(1), "v": rows(1)}, BOB)
make("/v1/sequences", {"id": NEW, "tokens": list(range(810000, 810012)), "salt": "annssalt"})
make("/v1/append", {"sequences": [NEW], "indptr": [0, 2], "k": rows(2), "v": rows(2)})
make(f"/v1/sequences/{NEW}/fork", {"ids": [CHILD]})
make("/v1/append", {"sequences": [CHILD], "k": rows(1), "v": rows(1)})
HERS.update({str(i): re.compile(f"(?<![0-9.]){i}(?![0-9])") for i in (NEW, CHILD)})
history = {block["block"]: ask(BOB, "GET", f"/v1/blocks/{block['block']}/history")[::2] for block in json.loads(ask(BOB, "GET", "/v1/blocks?limit=1000")[2])["blocks"][:200]}
live = json.loads(ask(BOB, "GET", "/v1/blocks?limit=1000")[2])
then = json.loads(ask(BOB, "GET", f"/v1/blocks?limit=1000&epoch={map_before['epoch']}")[2])
ask(ANN, "DELETE", f"/v1/sequences/{CHILD}")
ask(BOB, "DELETE", f"/v1/sequences/{LAST}")
ended = f'"change":"ended","sequence":{LAST}'
his = listen(BOB, map_before["epoch"], ended)
check("he is told of his own", any('"change":"taken"' in line and str(LAST) in line for line in his), his)
his_blocks = {json.loads(line)["block"] for line in his if '"event":"block"' in line}
leaks += [("GET", "/v1/events", word, line) for line in his for word in HERS if HERS[word].search(line)]
foreign = [block for block in live["blocks"] if block["owner"] == "other"]
check("her blocks are held by another, and nothing else is told of them",
      len(foreign) >= 3 and all(b["refs"] is None and b["fill"] is None and b["state"] in ("held", "cached") for b in foreign), foreign[:3])
check("nothing happens to her blocks in his stream", not his_blocks & {block["block"] for block in foreign}, his_blocks)
check("the past is as he saw it", then["blocks"] == map_before["blocks"], (then["blocks"][:5], map_before["blocks"][:5]))
check("her blocks have no life for him", all(history[b["block"]][0] == 404 for b in foreign if b["block"] in history), history)
leaks += [("GET", "history", word, text) for _, text in history.values() for word in HERS if HERS[word].search(text)]
check(f"nothing of hers in {seen} answers", not leaks, leaks[:3])
check("what is hers is answered like what is not there", not differ, differ[:2])
for path in (f"/v1/sequences/{SEQUENCE}", f"/v1/sequences/{FORK}", f"/v1/leases/{LEASE}"):
    check(f"hers is there still: {path}", ask(ANN, "GET", path)[0] == 200)
check("it has what it had", json.loads(ask(ANN, "GET", f"/v1/sequences/{SEQUENCE}")[2])["length"] == 10)
status, _, text = ask(BOB, "POST", "/v1/sequences", {"id": SEQUENCE})
check("an id that is in use is only that", (status, json.loads(text)["detail"]) == (409, f"the id {SEQUENCE} is in use"), text)
sys.exit(failed > 0)
