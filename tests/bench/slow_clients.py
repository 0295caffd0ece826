#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""slow_clients.py [CLIENTS] - 1 000 clients that send heads slowly, then as many that send bodies slowly, then as many that read slowly:
how long a fresh connection waits for /readyz meanwhile, on the management listener and on the public one, and how much memory is taken.

Starts build/release/attnd itself, or what ATTND says. Prints a line a kind: p50 and p99 in milliseconds of SAMPLES fresh connections each, resident MiB
of the daemon and MiB of the kernel's socket buffers at the height, and resident MiB five seconds after they have left. With
ATTND="tests/reliability/in_group.sh 448 build/release/attnd" (a pool of 128 MiB, and 320) also what the control group takes of its limit."""
import json
import os
import re
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time

CLIENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
SAMPLES, PAUSE_S, SETTLE_S = 300, 0.01, 5
HEAD = b"GET /stats HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
BODY = b"POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n"
READ = b"GET /v1/blocks?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40


def connect(port):
    s = socket.create_connection(("127.0.0.1", port))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return s


def crowd(port, kind):
    """The clients of a kind, who have sent what they send at first."""
    clients = []
    for _ in range(CLIENTS):
        s = connect(port)
        s.sendall({"heads": HEAD, "bodies": BODY + b"[" * 30000, "readers": READ}[kind])
        clients.append(s)
    return clients


def drip(clients, kind):
    for s in clients:
        try:
            if kind == "readers":
                s.recv(512, socket.MSG_DONTWAIT)
            else:
                s.send(b"x", socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError, BrokenPipeError):
            pass


def ask(place):
    """Milliseconds until a fresh connection has its answer."""
    began = time.perf_counter()
    s = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
    s.connect(place)
    s.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = b""
    while part := s.recv(4096):
        answer += part
    s.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"slow_clients: {answer[:200]!r}")
    return (time.perf_counter() - began) * 1e3


def measure(place, clients, kind):
    times = []
    for i in range(SAMPLES):
        times.append(ask(place))
        time.sleep(PAUSE_S)
        if i % 50 == 0:
            drip(clients, kind)
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100]


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) / 1024


def socket_mib():
    with open("/proc/net/sockstat") as f:
        return int(re.search(r"TCP:.* mem (\d+)", f.read()).group(1)) * 4096 / 2**20


def group_mib(pid):
    """What the control group of a daemon takes, and took at most, in MiB (sockets included); None if it has none of its own."""
    groups = dict(line.strip().split(":")[1:] for line in open(f"/proc/{pid}/cgroup"))
    version_1 = "memory" in groups
    path = groups["memory" if version_1 else ""]
    folder = ("/sys/fs/cgroup/memory" if version_1 else "/sys/fs/cgroup") + path
    if path == "/":
        return None

    def total(names):
        return sum(int(open(f"{folder}/{name}").read()) for name in names) / 2**20
    if version_1:
        return total(["memory.usage_in_bytes", "memory.kmem.tcp.usage_in_bytes"]), total(["memory.max_usage_in_bytes", "memory.kmem.tcp.max_usage_in_bytes"])
    return total(["memory.current"]), total(["memory.peak"])


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as folder:
        log = open(f"{folder}/log", "w+")
        manager = f"{folder}/m"
        daemon = subprocess.Popen(
            [*os.environ.get("ATTND", "build/release/attnd").split(), "--set", "listen=127.0.0.1:0", "--set", f"management.listen=unix:{manager}", "--set",
             f"limits.connections={CLIENTS + 20}", "--set", "limits.header_timeout_s=600", "--set", "pool.blocks=4096"],
            stderr=log)
        port = None
        while not port:
            time.sleep(0.05)
            if daemon.poll() is not None:
                raise SystemExit(open(f"{folder}/log").read())
            with open(f"{folder}/log") as f:
                found = re.search(r"listening on http://127.0.0.1:(\d+)", f.read())
                port = found and int(found.group(1))
        pool = 4096 * 32768 / 2**20
        began = resident_mib(daemon.pid)
        print(f"{'':10} {'management p50/p99':>20} {'public p50/p99':>18} {'resident':>9} {'sockets':>8} {'after 5 s':>9}   (resident at the start "
              f"{began:.0f} MiB, of which the pool is {pool:.0f})")
        for kind in ("heads", "bodies", "readers"):
            clients = crowd(port, kind)
            inside, outside = measure(manager, clients, kind), measure(("127.0.0.1", port), clients, kind)
            resident, sockets = resident_mib(daemon.pid), socket_mib()
            for s in clients:
                s.close()
            time.sleep(SETTLE_S)
            print(f"{kind:10} {inside[0]:9.2f} / {inside[1]:7.2f} {outside[0]:8.2f} / {outside[1]:6.2f} {resident:9.0f} {sockets:8.0f} "
                  f"{resident_mib(daemon.pid):9.0f}", flush=True)
            if group := group_mib(daemon.pid):
                print(f"{'':10} the control group takes {group[0]:.0f} MiB now, and took {group[1]:.0f} at most")
        daemon.terminate()
        sys.exit(daemon.wait())


main()
