#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""bench_subscribers.py [--rounds N] [--seconds S] [--pages N] [DAEMON-ARGUMENT...] - what people who watch take of the engine.

Two daemons decode a workload, each with 100 000 blocks in its pool. By turns nobody looks, five pages look at the other daemon, and five at the
one that is measured: processes that send what the page was seen to ask (page-requests.tsv, which tests/browser/record.py writes), and follow its
events. So what they take of the engine is told from what they take of the machine. Printed are the engine's times a step: to plan it, and from
the end of a step to the begin of the next one's computing (idle). Wants a core for each of them: at least eight.

    bench_subscribers.py --config config/tiny.jsonc --backend cpu --set backend.threads=1
    bench_subscribers.py --config config/llama-3-8b.jsonc --backend cuda --set geometry.layers=4"""
import http.client
import json
import multiprocessing
import os
import pathlib
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).parent
ATTND = os.environ.get('ATTND', 'build/release/attnd')
CONNECTIONS = 6  # that a browser opens to a host
HANG_S = 600


def page(address, begin, end):
    """Send what the page sends, each as late as it did, as often as the time allows; follow its events beside."""
    asked = [line.rstrip('\n').split('\t') for line in (HERE / 'page-requests.tsv').read_text().splitlines()]
    todo, tags = queue.Queue(), {}

    def send():
        connection = http.client.HTTPConnection(address, timeout=HANG_S)
        while (of := todo.get()) is not None:
            path, tag = of
            connection.request('GET', path, headers={'If-None-Match': tags[path]} if tag and path in tags else {})
            answer = connection.getresponse()
            answer.read()
            tags[path] = answer.headers.get('ETag')
        connection.close()

    def follow(path):
        connection = http.client.HTTPConnection(address, timeout=HANG_S)
        connection.request('GET', path, headers={'Accept': 'text/event-stream'})
        answer = connection.getresponse()
        while time.time() < end and answer.read1(65536):
            pass
        connection.close()

    threads = [threading.Thread(target=send, daemon=True) for _ in range(CONNECTIONS)]
    for t in threads:
        t.start()
    while time.time() < end:
        for at_ms, path, tag in asked:
            if path.startswith('/v1/events'):
                threading.Thread(target=follow, args=(path,), daemon=True).start()
                continue
            time.sleep(max(0, begin + int(at_ms) / 1000 - time.time()))
            if time.time() >= end:
                break
            todo.put((path, tag))
        begin = time.time()
    for _ in threads:
        todo.put(None)


class Daemon:
    """One that always has something to decode."""

    def __init__(self, log, arguments):
        self.log = log
        with log.open('w') as out:
            self.process = subprocess.Popen([ATTND, '--set', 'listen=127.0.0.1:0', '--set', 'pool.blocks=100000', *arguments], stderr=out)
        while not (found := re.search(r'listening on http://([^"\s]*)', log.read_text())):
            if self.process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.05)
        self.address = found.group(1)
        self.connection = http.client.HTTPConnection(self.address, timeout=HANG_S)

    def ask(self, method, path, body=None):
        self.connection.request(method, path, json.dumps(body) if body else None, {'Content-Type': 'application/json'})
        text = self.connection.getresponse().read()
        return text.decode() if path == '/metrics' else json.loads(text)

    def work_on(self):
        if self.ask('GET', '/stats?limit=1')['scheduler']['running'] == 0:
            self.ask('POST', '/v1/workloads', {'sequences': [{'count': 64, 'prompt': 100, 'decode': 100000 // 8, 'fork': {'at': 101, 'count': 1}}]})
        while self.ask('GET', '/stats?limit=1')['scheduler']['running'] == 0:
            time.sleep(0.05)

    def end(self):
        self.process.terminate()
        self.process.wait()
        return re.findall(r'the longest turns of the loop.*', self.log.read_text())


def main():
    of = {'--rounds': 6, '--seconds': 8, '--pages': 5}
    arguments = sys.argv[1:]
    while arguments and arguments[0] in of:
        of[arguments[0]] = int(arguments[1])
        arguments = arguments[2:]
    with tempfile.TemporaryDirectory() as work:
        measured, other = (Daemon(pathlib.Path(work, name), arguments) for name in ('measured', 'other'))
        looked_at = {'nobody looks': None, 'pages look at the other': other, 'pages look': measured}
        taken = {name: {'plan_us': [], 'idle_us': []} for name in looked_at}
        for round_ in range(of['--rounds']):
            for name, daemon in looked_at.items():
                measured.work_on()
                other.work_on()
                begin = time.time()
                end = begin + of['--seconds']
                processes = [multiprocessing.Process(target=page, args=(daemon.address, begin, end)) for _ in range(of['--pages'] if daemon else 0)]
                for p in processes:
                    p.start()
                time.sleep(1)
                while time.time() < end:
                    columns = measured.ask('GET', '/v1/steps?limit=1000')['columns']
                    for figure, values in taken[name].items():
                        values += [v for v in columns[figure] if v is not None]
                    time.sleep(0.25)
                for p in processes:
                    p.join()
            print(f'round {round_ + 1} of {of["--rounds"]}', file=sys.stderr, flush=True)
        for name, columns in taken.items():
            for figure, values in columns.items():
                values.sort()
                print(f'subscribers: {name}, {figure}: median {statistics.median(values):.1f}, p99 {values[int(0.99 * len(values))]:.1f}, of {len(values)} steps')
        print('subscribers:', re.search(r'^attnd_loop_turn_seconds_max .*', measured.ask('GET', '/metrics'), re.M).group(0), '(processor time)')
        other.end()
        print('subscribers:', *measured.end())


if __name__ == '__main__':
    main()
