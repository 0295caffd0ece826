#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""journal_traffic.py URL SEED CALLS [CLIENTS] - a few clients (4) at a time that do all that a journal records: prompts that are cached, forks that are
written to, retries, batches, leases, workloads that end and that are cancelled, until blocks run out and idle sequences are swapped.

Each client's calls follow from the seed; how they meet does not. What the daemon answers is not looked at, but that it answers. For the
geometry of config/tiny.jsonc. With CALLS 0 it goes on until the daemon is gone."""
import http.client
import json
import random
import sys
import threading

ROW = [[0.5] * 8]
CLIENTS = 4


class Client:
    def __init__(self, address, seed, number, calls):
        self.random = random.Random(seed * CLIENTS + number)
        self.connection = http.client.HTTPConnection(address, timeout=600)
        self.number, self.calls, self.made = number, calls, 0
        self.sequences, self.leases, self.appended = [], {}, {}

    def call(self, method, path, body=None, accept='application/json'):
        text = json.dumps(body) if body is not None else None
        self.connection.request(method, path, text, {'Content-Type': 'application/json', 'Accept': accept, 'X-Request-Timeout-Ms': '1000'})
        answer = self.connection.getresponse()
        read = answer.read()
        if answer.status >= 500 and answer.status not in (503, 504):
            raise SystemExit(f'{method} {path}: {answer.status} {read!r}')
        return json.loads(read) if answer.status < 300 and read and accept == 'application/json' else None

    def some(self):
        return self.random.choice(self.sequences) if self.sequences else None

    def new_id(self):
        self.made += 1
        return (self.number + 1) * 1000000 + self.made

    def create(self):
        body = {'id': self.new_id(), 'priority': self.random.randrange(3)}
        if self.random.random() < 0.6:
            body['tokens'] = [self.random.randrange(2) * 1000 + i for i in range(self.random.randrange(1, 24))]
            if self.random.random() < 0.2:
                body['salt'] = 'a salt'
        if self.random.random() < 0.2:
            body['max_tokens'] = 32
        if self.call('POST', '/v1/sequences', body):
            self.sequences.append(body['id'])
            self.appended[body['id']] = body.get('tokens')

    def append(self):
        chosen = self.random.sample(self.sequences, min(len(self.sequences), self.random.randrange(1, 4)))
        counts = [self.random.randrange(1, 9) for _ in chosen]
        rows = [ROW] * sum(counts)
        body = {'sequences': chosen, 'indptr': [sum(counts[:i]) for i in range(len(counts) + 1)], 'k': rows, 'v': rows}
        if self.random.random() < 0.3:
            body['token_ids'] = [self.random.randrange(50) for _ in rows]
        if self.random.random() < 0.15:
            body['positions'] = [0] * len(chosen)  # a retry, or other content
        if self.random.random() < 0.6:
            body['q'] = rows
        if chosen:
            self.call('POST', '/v1/attend' if 'q' in body else '/v1/append', body)

    def attend(self):
        if self.some():
            self.call('POST', '/v1/attend', {'sequences': [self.some()], 'q': [ROW]})

    def fork(self):
        parent = self.some()
        if parent:
            ids = [self.new_id() for _ in range(self.random.randrange(1, 4))]
            body = {'ids': ids}
            if self.random.random() < 0.3:
                body['length'] = 1
            if self.call('POST', f'/v1/sequences/{parent}/fork', body):
                self.sequences += ids

    def truncate(self):
        if self.some():
            self.call('POST', f'/v1/sequences/{self.some()}/truncate', {'length': self.random.randrange(6)})

    def delete(self):
        for _ in range(self.random.randrange(1, 4)):
            if self.sequences:
                gone = self.sequences.pop(self.random.randrange(len(self.sequences)))
                self.call('DELETE', f'/v1/sequences/{gone}')

    def batch(self):
        new = self.new_id()
        ops = [{'op': 'create', 'id': new, 'tokens': list(range(8))}]
        if self.some():
            ops.append({'op': 'fork', 'id': self.some(), 'ids': [self.new_id()]})
        answer = self.call('POST', '/v1/batch', {'ops': ops})
        if answer:
            self.sequences += [op['id'] if op['op'] == 'create' else op['ids'][0] for op in ops]

    def lease(self):
        if self.leases:
            lease, blocks = self.leases.popitem()
            slot = blocks[0] * 4
            self.call('POST', '/v1/paged', {'lease': lease, 'slot_mapping': [slot], 'k': [ROW], 'v': [ROW], 'q': [ROW],
                                            'block_tables': [[blocks[0]]], 'context_lens': [1]})
            self.call('DELETE', f'/v1/leases/{lease}')
            return
        answer = self.call('POST', '/v1/leases', {'blocks': self.random.randrange(1, 4), 'id': self.new_id()})
        if answer:
            self.leases[answer['id']] = answer['blocks']

    def workload(self):
        decode = self.random.randrange(1, 20)
        body = {'seed': self.random.randrange(9), 'deadline_s': 1, 'sequences': [
            {'count': self.random.randrange(1, 5), 'prompt': self.random.randrange(1, 20), 'decode': decode,
             'prefix': {'id': 1, 'length': 8}, 'fork': {'at': 21, 'count': 2}}]}
        if self.random.random() < 0.5:
            del body['sequences'][0]['fork'], body['sequences'][0]['prefix']
        if self.random.random() < 0.7:
            self.call('POST', '/v1/workloads', body, 'application/x-ndjson')
            return
        body['sequences'][0]['decode'] = 200
        answer = self.call('POST', '/v1/workloads', body)
        if answer:
            self.call('DELETE', f"/v1/workloads/{answer['id']}")

    def look(self):
        self.call('GET', self.random.choice(['/stats', '/v1/blocks', '/v1/sequences', '/v1/workloads', '/v1/steps']))

    def tidy(self):
        self.call('POST', self.random.choice(['/v1/trim', '/v1/audit', '/v1/selftest', '/v1/roof']))

    def run(self):
        kinds = ([self.create] * 5 + [self.append] * 12 + [self.attend] * 6 + [self.fork] * 3 + [self.truncate] * 2 +
                 [self.delete] * 4 + [self.batch] + [self.lease] * 2 + [self.workload] * 2 + [self.look] * 2 + [self.tidy])
        made = 0
        try:
            while made < self.calls or not self.calls:
                self.random.choice(kinds)()
                made += 1
        except (OSError, http.client.HTTPException):
            if self.calls:
                raise


def main():
    url, seed, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    address = url.removeprefix('http://')
    clients = int(sys.argv[4]) if len(sys.argv) > 4 else CLIENTS
    threads = [threading.Thread(target=Client(address, seed, n, calls).run) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


main()
