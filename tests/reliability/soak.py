#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""soak.py ATTND [--seconds 7200] [--seed 1] [--clients 6] - everything at once, for long: sequences, attention, leases, workloads, exports and imports by
three keys; clients that leave in the middle of a body or an answer, and that read slowly; keys that come and go (SIGHUP); and every few minutes
a pause in which all is deleted, every block must be back and the audit be ok, or an end with a save and another start.

ATTND may have sanitizers (MODE=asan make all): whatever they report is wrong. The last lines are what was asked and answered, and resident memory at
the pauses; exit code 1 if something was wrong."""
import argparse
import collections
import hashlib
import http.client
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

LAYERS, QUERY_HEADS, KV_HEADS, HEAD_DIM, BLOCK = 2, 4, 2, 16, 8
SETS = ["backend.name=cpu", f"geometry.layers={LAYERS}", f"geometry.query_heads={QUERY_HEADS}", f"geometry.kv_heads={KV_HEADS}",
        f"geometry.head_dim={HEAD_DIM}", f"geometry.block_size={BLOCK}", "geometry.dtype=f32", "geometry.kv_dtype=f32", "pool.blocks=150",
        "pool.host_blocks=160", "pool.file_blocks=4000", "limits.sequences=512", "limits.calls=64", "limits.connections=200", "limits.body_timeout_s=3",
        "limits.header_timeout_s=3", "drain.save_deadline_s=600", "limits.idle_timeout_s=60", "limits.workload_s=30", "memory.bytes=1GiB", "listen=127.0.0.1:0"]
HANG_S, PAUSE_S, EXPECTED = 900, 60, {200, 201, 202, 204, 304, 400, 401, 403, 404, 409, 410, 412, 422, 429, 503, 504}


class Wrong(Exception):
    pass


def safetensors(tensors):
    header, data, at = {}, [], 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


class Soak:
    def __init__(self, options):
        self.o = options
        self.folder = tempfile.mkdtemp(prefix="attnd-soak-")
        os.mkdir(self.folder + "/state", 0o700)
        self.keys = {name: "attnd_" + hashlib.sha256(f"{name}{options.seed}".encode()).hexdigest() for name in ("ann", "bob", "root", "guest")}
        self.write_keys(True)
        self.counts = collections.Counter()
        self.memory = []
        self.reads = 0
        self.wrong = []
        self.paused, self.resting, self.stop = threading.Event(), threading.Semaphore(0), threading.Event()
        self.floats = struct.pack("<4096f", *(random.Random(0).uniform(-1, 1) for _ in range(4096))) * 64
        self.process = None

    def write_keys(self, guest):
        entries = [{"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), "scopes": ["admin"] if name == "root" else ["infer"],
                    **({"quotas": {"sequences": 60, "calls": 8}} if name == "bob" else {})} for name, key in self.keys.items() if guest or name != "guest"]
        with open(os.open(self.folder + "/keys", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            json.dump({"keys": entries}, f)

    # ---- the daemon

    def begin(self):
        command = [self.o.attnd] + [word for s in SETS for word in ("--set", s)]
        command += ["--state-dir", self.folder + "/state", "--set", f"keys.file={self.folder}/keys", "--set", f"management.listen=unix:{self.folder}/m"]
        self.lines = collections.deque(maxlen=4000)
        self.port, told = None, threading.Event()
        environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=1:quarantine_size_mb=16", UBSAN_OPTIONS="print_stacktrace=1", TSAN_OPTIONS="halt_on_error=0")
        self.process = process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", env=environment)

        def read():
            for line in process.stderr:
                self.lines.append(line.rstrip())
                found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
                if found:
                    self.port = int(found.group(1))
                    told.set()
                if "Sanitizer" in line or "runtime error" in line:
                    self.wrong.append("sanitizer: " + line.rstrip())
            told.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        if not told.wait(HANG_S) or not self.port:
            raise Wrong("it does not start:\n" + "\n".join(self.lines))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(HANG_S)
        self.reader.join()
        if code != 0:
            raise Wrong(f"it ended with {code}:\n" + "\n".join(list(self.lines)[-60:]))

    def ask(self, key, method, path, body=None, kind=None, accept="*/*"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        headers = {"Authorization": "Bearer " + self.keys[key], "Accept": accept}
        if body is not None:
            headers["Content-Type"] = kind or "application/json"
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        raw = answer.read()
        connection.close()
        self.counts[f"{method} {re.sub('[0-9]+', 'N', path.split('?')[0])} {answer.status}"] += 1
        if answer.status not in EXPECTED:
            self.wrong.append(f"{method} {path}: {answer.status} {raw[:300]}")
        return answer.status, raw

    def json(self, *arguments, **more):
        status, raw = self.ask(*arguments, **more)
        return json.loads(raw) if raw and status < 300 else None

    # ---- clients

    def rows(self, r, *shape):
        n = 1
        for k in shape:
            n *= k
        at = r.randrange(4096) * 4
        return ("F32", list(shape), self.floats[at:at + 4 * n])

    def act(self, r, key, mine):
        """One thing that a client does; `mine`: its sequences."""
        kind = r.randrange(14)
        known = r.choice(mine) if mine else None
        if kind <= 1 or not mine:
            body = {"priority": r.randrange(3)}
            if r.random() < 0.5:
                body["tokens"] = [r.randrange(2) for _ in range(r.randrange(1, 60))]
            if r.random() < 0.2:
                body["max_tokens"] = r.randrange(1, 300)
            made = self.json(key, "POST", "/v1/sequences", body)
            if made:
                mine.append(made["id"])
            else:
                time.sleep(0.02)
        elif kind <= 5:
            n = r.choice((1, 1, 1, 5, 40, 300))
            tensors = {"sequences": ("I64", [1], struct.pack("<q", known)), "indptr": ("I64", [2], struct.pack("<qq", 0, n)),
                       "k": self.rows(r, LAYERS, n, KV_HEADS, HEAD_DIM), "v": self.rows(r, LAYERS, n, KV_HEADS, HEAD_DIM)}
            self.ask(key, "POST", "/v1/append", safetensors(tensors), "application/x-safetensors")
        elif kind <= 8:
            several = r.sample(mine, min(len(mine), r.randrange(1, 5)))
            tensors = {"sequences": ("I64", [len(several)], struct.pack(f"<{len(several)}q", *several)), "q": self.rows(r, len(several), QUERY_HEADS, HEAD_DIM)}
            self.ask(key, "POST", f"/v1/attend?layer={r.randrange(LAYERS)}&lse=1", safetensors(tensors), "application/x-safetensors")
        elif kind == 9:
            made = self.json(key, "POST", f"/v1/sequences/{known}/fork", {"count": r.randrange(1, 4)})
            mine.extend(s["id"] for s in made["sequences"]) if made else None
        elif kind == 10:
            if r.random() < 0.5:
                self.ask(key, "POST", f"/v1/sequences/{known}/truncate", {"length": r.randrange(100)})
            else:
                self.ask(key, "POST", "/v1/batch", {"ops": [{"op": "delete", "id": known}, {"op": "create"}]})
                mine.remove(known)
        elif kind == 11:
            look = self.json(key, "GET", f"/v1/sequences/{known}")
            made = self.json(key, "POST", "/v1/sequences", {}) if look and look["length"] else None
            if made:
                mine.append(made["id"])
                end = min(look["length"], 200)
                status, raw = self.ask(key, "GET", f"/v1/sequences/{known}/kv?range=0:{end}")
                if status == 200:
                    self.ask(key, "PUT", f"/v1/sequences/{made['id']}/kv?range=0:{end}", raw, "application/x-safetensors")
                    self.ask(key, "POST", f"/v1/sequences/{known}/moved", {"moved_to": f"/v1/sequences/{made['id']}", "length": end})
        elif kind == 12:
            body = {"sequences": [{"count": r.randrange(1, 6), "prompt": r.randrange(1, 60), "decode": r.randrange(1, 40)}]}
            if r.random() < 0.5:
                body["return"] = "outputs"
            self.ask(key, "POST", "/v1/workloads", body, accept=r.choice(("*/*", "application/x-ndjson", "text/event-stream")))
        else:
            path = r.choice(("/stats?limit=50", "/v1/sequences?limit=50", "/metrics", "/v1/workloads", "/v1/leases", "/openapi.json", "/v1/blocks?limit=200"))
            self.ask(key, "GET", path)
        if len(mine) > 20:
            self.ask(key, "DELETE", f"/v1/sequences/{mine.pop(r.randrange(len(mine)))}")

    def client(self, number):
        r, key, mine = random.Random(self.o.seed * 1000 + number), ("ann", "bob", "guest")[number % 3], []
        while not self.stop.is_set():
            if self.paused.is_set():
                self.rest()
                mine.clear()
            try:
                self.act(r, key, mine)
            except (OSError, http.client.HTTPException) as gone:
                self.counts[f"client: {type(gone).__name__}"] += 1
                time.sleep(0.05)
            except Exception as defect:  # of this test
                self.wrong.append(f"soak.py: {defect!r}")
                return

    def aborter(self, number):
        """Leaves in the middle: of a head, a body, or an answer; or reads slowly."""
        r = random.Random(self.o.seed * 77 + number)
        while not self.stop.is_set():
            if self.paused.is_set():
                self.rest()
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=10) as s:
                    head = f"Host: localhost\r\nAuthorization: Bearer {self.keys['ann']}\r\n"
                    kind = r.randrange(4)
                    if kind == 0:
                        s.sendall(b"GET /stats HT")
                    elif kind == 1:
                        length = r.randrange(1, 1 << 20)
                        s.sendall(f"POST /v1/append HTTP/1.1\r\n{head}Content-Type: application/x-safetensors\r\nContent-Length: {length}\r\n\r\n".encode())
                        s.sendall(self.floats[:r.randrange(length)])
                    elif kind == 2:
                        body = b'{"sequences":[{"count":3,"prompt":20,"decode":200}],"return":"outputs"}'
                        s.sendall(f"POST /v1/workloads HTTP/1.1\r\n{head}Accept: application/x-ndjson\r\nContent-Type: application/json\r\n"
                                  f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
                        s.recv(r.randrange(1, 5000))
                    else:
                        s.sendall(f"GET /v1/blocks?limit=1000 HTTP/1.1\r\n{head}\r\n".encode())
                        for _ in range(r.randrange(5)):
                            s.recv(50)
                            time.sleep(0.02)
                self.counts["aborts"] += 1
            except OSError:
                self.counts["aborts refused"] += 1
            time.sleep(r.uniform(0, 0.05))

    def rest(self):
        self.resting.release()
        while self.paused.is_set() and not self.stop.is_set():
            time.sleep(0.02)

    # ---- pauses

    def resident_mib(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) // 1024

    def pause(self, workers):
        self.paused.set()
        for _ in range(workers):
            if not self.resting.acquire(timeout=HANG_S):
                raise Wrong("a client hangs")

    def sweep(self):
        """Delete all there is; every block must be back."""
        for _ in range(400):
            for kind in ("sequences", "leases"):
                for item in (self.json("root", "GET", f"/v1/{kind}?limit=1000") or {"items": []})["items"]:
                    self.ask("root", "DELETE", f"/v1/{kind}/{item['id']}")
            for item in (self.json("root", "GET", "/v1/workloads") or {"items": []})["items"]:
                if item["state"] in ("waiting", "running", "verifying"):
                    self.ask("root", "DELETE", f"/v1/workloads/{item['id']}")
            stats = self.json("root", "GET", "/stats?limit=1")
            pool = stats["pool"] if stats else None
            if pool and pool["free"] + pool["cached"] == pool["blocks"] and pool["host_free"] == pool["host_blocks"] and stats["sequences"]["count"] == 0:
                break
            time.sleep(0.05)
        else:
            raise Wrong(f"blocks do not come back: {stats}")
        if not (self.json("root", "POST", "/v1/audit") or {}).get("ok"):
            raise Wrong("the audit fails")
        reads = pool["file"]["reads"]  # since its start
        self.counts["blocks read from the file"] += reads - (self.reads if reads >= self.reads else 0)
        self.reads = reads
        self.ask("root", "POST", "/v1/trim")
        time.sleep(6)
        self.memory.append(self.resident_mib())

    def restart(self):
        """An end with a save, and another start, which has what there was."""
        lengths = {item["id"]: item["length"] for item in self.json("root", "GET", "/v1/sequences?limit=1000")["items"] if not item.get("workload")}
        self.end()
        self.begin()
        there = {item["id"]: item["length"] for item in self.json("root", "GET", "/v1/sequences?limit=1000")["items"]}
        if not set(there.items()) <= set(lengths.items()) or len(there) < len(lengths) - 2:  # some may have been idle for too long
            raise Wrong(f"restored {there}, saved {lengths}:\n" + "\n".join(list(self.lines)[-30:]))
        self.counts["restarts"] += 1
        self.counts["restored"] += len(there)

    def run(self):
        self.begin()
        workers = [threading.Thread(target=self.client, args=(i,)) for i in range(self.o.clients)]
        workers += [threading.Thread(target=self.aborter, args=(i,)) for i in range(3)]
        for worker in workers:
            worker.start()
        end, guest, pauses = time.monotonic() + self.o.seconds, True, 0
        while time.monotonic() < end and not self.wrong:
            for _ in range(6):
                time.sleep(PAUSE_S / 6)
                guest = not guest
                self.write_keys(guest)
                self.process.send_signal(signal.SIGHUP)
                if self.process.poll() is not None:
                    raise Wrong("it has ended:\n" + "\n".join(list(self.lines)[-60:]))
            self.write_keys(True)
            self.process.send_signal(signal.SIGHUP)
            self.pause(len(workers))
            pauses += 1
            if pauses % 3 == 0:
                self.restart()
            self.sweep()
            print(f"{sum(self.counts.values())} requests, {self.counts['aborts']} aborts, {self.counts['restarts']} restarts, {self.memory[-1]} MiB resident",
                  file=sys.stderr, flush=True)
            self.paused.clear()
        self.stop.set()
        for worker in workers:
            worker.join()
        self.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("attnd")
    for name, default in (("seconds", 7200), ("seed", 1), ("clients", 6)):
        parser.add_argument("--" + name, type=int, default=default)
    soak = Soak(parser.parse_args())
    try:
        soak.run()
    except Wrong as wrong:
        soak.wrong.append(str(wrong))
        soak.stop.set()
        soak.process.kill()
    for name, count in sorted(soak.counts.items()):
        print(f"{count:9} {name}")
    print("resident at pauses, MiB:", *soak.memory)
    print(f"{'not ok' if soak.wrong else 'ok'} {sum(soak.counts.values())} requests", *soak.wrong[:5], sep="\n")
    return bool(soak.wrong)


sys.exit(main())
