#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kill_restart.py ATTND [--saves 40] [--restores 30] [--loads 30] [--seed 1] - kill -9 a daemon with a state directory inside a save, inside a
restore, and under load, and start it again each time.

Every start must be clean and its audit ok. A snapshot is restored as a whole or not at all, and never twice; no id is given out twice. Every
restored sequence must give the same bits for its next token as in a daemon beside it that was never interrupted. The last lines say what was
counted; exit code 1 if something was wrong. Takes a few minutes and a GiB."""
import argparse
import array
import http.client
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

LAYERS, QUERY_HEADS, KV_HEADS, HEAD_DIM, BLOCK = 8, 8, 4, 64, 16
ROW = KV_HEADS * HEAD_DIM
SETS = ["backend.name=cpu", f"geometry.layers={LAYERS}", f"geometry.query_heads={QUERY_HEADS}", f"geometry.kv_heads={KV_HEADS}",
        f"geometry.head_dim={HEAD_DIM}", f"geometry.block_size={BLOCK}", "geometry.dtype=f32", "geometry.kv_dtype=f32", "pool.bytes=400MiB",
        "limits.sequences=64", "listen=127.0.0.1:0"]
SEQUENCES, TOKENS, PART = 6, (700, 1500), 500
HANG_S = 600

values = array.array("f", (random.Random(0).uniform(-1, 1) for _ in range(1 << 17)))
BYTES = values.tobytes() * 40


def rows(seed, first, count, row):
    """Bytes of `count` rows, the same for the same arguments."""
    at = (seed * 7919 + first * 131) % (1 << 17) * 4
    return BYTES[at:at + count * row * 4]


def safetensors(tensors):
    header, data = {}, []
    at = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


class Wrong(Exception):
    pass


class Daemon:
    """A daemon, with a state directory or without."""

    def __init__(self, attnd, folder=None):
        command = [attnd] + [word for s in SETS for word in ("--set", s)] + (["--state-dir", folder] if folder else [])
        self.lines = []
        self.port = None
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.told = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                self.told.set()
        self.told.set()

    def listens(self):
        if not self.told.wait(HANG_S) or not self.port:
            raise Wrong("it does not start:\n" + "\n".join(self.lines))

    def ask(self, method, path, body=None, kind="application/json"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        connection.request(method, path, body, {"Content-Type": kind} if body is not None else {})
        answer = connection.getresponse()
        raw = answer.read()
        connection.close()
        return answer.status, raw

    def json(self, method, path, body=None):
        status, raw = self.ask(method, path, None if body is None else json.dumps(body).encode())
        if status >= 300:
            raise Wrong(f"{method} {path}: {status} {raw[:300]}")
        return json.loads(raw) if raw else None

    def append(self, identity, seed, first, count):
        shape = [LAYERS, count, KV_HEADS, HEAD_DIM]
        body = safetensors({"k": ("F32", shape, rows(seed, first, LAYERS * count, ROW)), "v": ("F32", shape, rows(seed + 1, first, LAYERS * count, ROW))})
        status, raw = self.ask("PUT", f"/v1/sequences/{identity}/kv?range={first}:{first + count}", body, "application/x-safetensors")
        if status != 200:
            raise Wrong(f"append to {identity}: {status} {raw[:300]}")

    def next_token(self, identity, seed, position):
        """Append one token at the last layer and attend to it; the bytes of the output."""
        one = [1, KV_HEADS, HEAD_DIM]
        self.append(identity, seed, position, 1)
        body = safetensors({"sequences": ("I64", [1], struct.pack("<q", identity)),
                            "q": ("F32", [1, QUERY_HEADS, HEAD_DIM], rows(seed + 2, position, QUERY_HEADS, HEAD_DIM))})
        outputs = []
        for layer in (0, LAYERS - 1):
            status, raw = self.ask("POST", f"/v1/attend?layer={layer}&lse=1", body, "application/x-safetensors")
            if status != 200:
                raise Wrong(f"attend to {identity}: {status} {raw[:300]} {one}")
            n = struct.unpack("<Q", raw[:8])[0]
            outputs.append(raw[8 + n:])
        return b"".join(outputs)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(HANG_S)
        if code != 0:
            raise Wrong(f"it ended with {code}:\n" + "\n".join(self.lines))


class Test:
    def __init__(self, options):
        self.o = options
        self.random = random.Random(options.seed)
        self.folder = tempfile.mkdtemp(prefix="attnd-kill-")
        self.control = Daemon(options.attnd)
        self.control.listens()
        self.counts = {"save": 0, "restore": 0, "load": 0, "restored": 0, "starts": 0, "snapshots": 0, "published anyway": 0, "missed": 0}
        self.ids = set()
        self.live = {}   # id: (id in the control, seed, length)
        self.saved = {}  # what a snapshot may have
        self.daemon = None

    def has(self, name):
        return os.path.exists(os.path.join(self.folder, name))

    def begin(self):
        self.daemon = Daemon(self.o.attnd, self.folder)

    def check(self, may_restore, must=False):
        """The daemon has started: what it has is the snapshot as a whole, or nothing, and goes on as if nothing had been."""
        d = self.daemon
        d.listens()
        self.counts["starts"] += 1
        items = d.json("GET", "/v1/sequences?limit=1000")["items"]
        there = {item["id"]: item["length"] for item in items}
        wanted = {i: length for i, (_, _, length) in self.saved.items()} if there else {}
        if there and not may_restore:
            raise Wrong(f"restored twice, or what was lost: {there}")
        if there != wanted or (must and self.saved and not there):
            raise Wrong(f"restored {there}, saved {self.saved}:\n" + "\n".join(d.lines))
        self.live = {}
        for identity in sorted(there):
            twin, seed, length = self.saved[identity]
            if d.next_token(identity, seed, length) != self.control.next_token(twin, seed, length):
                raise Wrong(f"the next token of sequence {identity} has other bits than without an interruption")
            self.live[identity] = (twin, seed, length + 1)
            self.counts["restored"] += 1
        self.counts["snapshots"] += bool(there)
        for identity, (twin, _, _) in self.saved.items():
            if identity not in there:
                self.control.json("DELETE", f"/v1/sequences/{twin}")
        self.saved = {}
        if not d.json("POST", "/v1/audit")["ok"]:
            raise Wrong("the audit fails")

    def fill(self):
        """As many sequences as there are to be."""
        while len(self.live) < SEQUENCES:
            seed, length = self.random.randrange(1 << 16), self.random.randrange(*TOKENS)
            identity, twin = self.daemon.json("POST", "/v1/sequences", {})["id"], self.control.json("POST", "/v1/sequences", {})["id"]
            if identity in self.ids:
                raise Wrong(f"the id {identity} was given out before")
            self.ids.add(identity)
            for first in range(0, length, PART):
                count = min(PART, length - first)
                self.daemon.append(identity, seed, first, count)
                self.control.append(twin, seed, first, count)
            self.live[identity] = (twin, seed, length)

    def wait_for(self, name):
        while not self.has(name):
            if self.daemon.process.poll() is not None:
                return False
            time.sleep(0.001)
        return True

    def lose(self):
        """Nothing of what is live will be there again."""
        for twin, _, _ in self.live.values():
            self.control.json("DELETE", f"/v1/sequences/{twin}")
        self.live = {}

    def save(self):
        self.daemon.end()
        if not self.has("snapshot"):
            raise Wrong("no snapshot:\n" + "\n".join(self.daemon.lines))
        self.saved, self.live = self.live, {}

    def kill_in_save(self):
        self.fill()
        self.daemon.process.send_signal(signal.SIGTERM)
        inside = self.wait_for("snapshot.draft")
        time.sleep(self.random.uniform(0, 0.35))
        inside = inside and self.has("snapshot.draft")
        self.daemon.kill()
        self.saved, self.live = self.live, {}
        published = self.has("snapshot")
        self.counts["save" if inside else "missed"] += 1
        self.counts["published anyway"] += inside and published
        self.begin()
        self.check(may_restore=published, must=published)

    def kill_in_restore(self):
        self.fill()
        self.save()
        self.begin()
        inside = self.wait_for("snapshot.restoring")
        time.sleep(self.random.uniform(0, 0.06))
        self.daemon.kill()
        inside = inside and self.has("snapshot.restoring")
        self.counts["restore" if inside else "missed"] += 1
        self.begin()
        self.check(may_restore=False)

    def kill_under_load(self):
        """After a restore."""
        self.fill()
        self.save()
        self.begin()
        self.check(may_restore=True, must=True)
        stop = threading.Event()

        def load(identity, seed, length):
            while not stop.is_set():
                try:
                    self.daemon.next_token(identity, seed, length)
                except (Wrong, OSError, http.client.HTTPException):
                    return
                length += 1

        threads = [threading.Thread(target=load, args=(i, seed, length)) for i, (_, seed, length) in self.live.items()]
        for thread in threads:
            thread.start()
        time.sleep(self.random.uniform(0.02, 0.4))
        self.daemon.kill()
        stop.set()
        for thread in threads:
            thread.join()
        self.counts["load"] += 1
        self.lose()
        self.begin()
        self.check(may_restore=False)

    def run(self):
        self.begin()
        self.check(may_restore=False)
        left = lambda: [(kind, step) for kind, step, most in (("save", self.kill_in_save, self.o.saves), ("restore", self.kill_in_restore, self.o.restores),
                                                              ("load", self.kill_under_load, self.o.loads)) if self.counts[kind] < most]
        while left():
            kind, step = self.random.choice(left())
            step()
            print(f"{kind}: {self.counts}", file=sys.stderr, flush=True)
        self.fill()
        self.save()
        self.begin()
        self.check(may_restore=True, must=True)
        self.daemon.end()
        self.control.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("attnd")
    for name, most in (("saves", 40), ("restores", 30), ("loads", 30), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=most)
    test = Test(parser.parse_args())
    try:
        test.run()
    except Wrong as wrong:
        print(f"not ok: {wrong}\n{test.counts}; {test.folder} has the files")
        if test.daemon:
            test.daemon.process.kill()
        test.control.process.kill()
        return 1
    c = test.counts
    print(f"ok {c['save'] + c['restore'] + c['load']} kills: {c['save']} inside a save ({c['published anyway']} of them after it was published), "
          f"{c['restore']} inside a restore, {c['load']} under load; {c['starts']} starts, {c['snapshots']} snapshots, {c['restored']} sequences restored")
    return 0


sys.exit(main())
