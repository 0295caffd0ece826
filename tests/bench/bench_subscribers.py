#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""bench_subscribers.py [--rounds N] [--seconds S] [--pages N] [DAEMON-ARGUMENT...] - what people who watch take of the engine.

A workload decodes, 100 000 blocks in the pool; by turns nobody looks, and five pages do: processes that send what the page was seen to ask
(page-requests.tsv, which tests/browser/record.py writes), and follow its events. Printed are the engine's times a step: to plan it, and from the end
of a step to the begin of the next one's computing (idle). Wants a core for each of them: at least eight.

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


def main():
    of = {'--rounds': 6, '--seconds': 8, '--pages': 5}
    arguments = sys.argv[1:]
    while arguments and arguments[0] in of:
        of[arguments[0]] = int(arguments[1])
        arguments = arguments[2:]
    with tempfile.TemporaryDirectory() as work:
        log = pathlib.Path(work, 'log')
        with log.open('w') as out:
            daemon = subprocess.Popen([ATTND, '--set', 'listen=127.0.0.1:0', '--set', 'pool.blocks=100000', *arguments], stderr=out)
        while not (found := re.search(r'listening on http://([^"\s]*)', log.read_text())):
            if daemon.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.05)
        address = found.group(1)
        ours = http.client.HTTPConnection(address, timeout=HANG_S)

        def ask(method, path, body=None):
            ours.request(method, path, json.dumps(body) if body else None, {'Content-Type': 'application/json'})
            text = ours.getresponse().read()
            return text.decode() if path == '/metrics' else json.loads(text)

        def work_on():
            """There is always something to decode."""
            if ask('GET', '/stats?limit=1')['scheduler']['running'] == 0:
                ask('POST', '/v1/workloads', {'sequences': [{'count': 64, 'prompt': 100, 'decode': 100000 // 8, 'fork': {'at': 101, 'count': 1}}]})
            while ask('GET', '/stats?limit=1')['scheduler']['running'] == 0:
                time.sleep(0.05)

        taken = {0: {'plan_us': [], 'idle_us': []}, of['--pages']: {'plan_us': [], 'idle_us': []}}
        for round_ in range(of['--rounds']):
            for pages in (0, of['--pages']):
                work_on()
                begin = time.time()
                end = begin + of['--seconds']
                processes = [multiprocessing.Process(target=page, args=(address, begin, end)) for _ in range(pages)]
                for p in processes:
                    p.start()
                time.sleep(1)
                while time.time() < end:
                    columns = ask('GET', '/v1/steps?limit=1000')['columns']
                    for name, values in taken[pages].items():
                        values += [v for v in columns[name] if v is not None]
                    time.sleep(0.25)
                for p in processes:
                    p.join()
            print(f'round {round_ + 1} of {of["--rounds"]}', file=sys.stderr, flush=True)
        for pages, columns in taken.items():
            for name, values in columns.items():
                values.sort()
                print(f'subscribers: {pages} pages, {name}: median {statistics.median(values):.1f}, p99 {values[int(0.99 * len(values))]:.1f}, of {len(values)} steps')
        print('subscribers:', re.search(r'^attnd_loop_turn_seconds_max .*', ask('GET', '/metrics'), re.M).group(0), '(processor time)')
        daemon.terminate()
        daemon.wait()
        print('subscribers:', *re.findall(r'the longest turns of the loop.*', log.read_text()))


if __name__ == '__main__':
    main()
