#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kv_events.py - a subscriber to KV events (docs/EVENTS.md), as a router would be one, and what tests ask of it. Debian's python3-zmq and
python3-msgpack.

  follow ENDPOINT REPLAY FILE [SERVER PUBLIC SECRET]   write each batch to FILE, a line of JSON each, in the order of their numbers; what is missed
                                                       is asked for, also when nothing comes for a second. Until it is killed
  replay REPLAY FROM                                   the numbers of past batches from FROM on, and whether the end was marked
  mirror FILE                                          what a mirror that is built from FILE has: a line for each chain, its hash and its tokens
  prefixes URL [salted]                                the same, as /v1/prefixes has it: the count of tokens instead of these
  knock ENDPOINT [SERVER PUBLIC SECRET]                in, or refused: whether the daemon lets a subscriber with these CURVE keys in
  traffic URL SEED CALLS                               random prompts, salted and not, forks, appends, truncates, deletes, now and then a trim
  fill URL PROMPTS TOKENS                              so many sequences one after the other, created, appended to and deleted
"""
import http.client
import json
import os
import random
import struct
import sys
import urllib.parse
import urllib.request

import msgpack
import zmq
import zmq.utils.monitor


def keep_keys(socket, keys):
    if keys:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = (key.encode() for key in keys)
    return socket


class Follower:
    def __init__(self, endpoint, replay, file, *keys):
        self.context = zmq.Context()
        self.replay, self.keys, self.expected, self.ts = replay, keys, 0, 0
        self.file = open(file, 'w', buffering=1, encoding='utf-8')
        self.subscriber = keep_keys(self.context.socket(zmq.SUB), keys)
        self.subscriber.rcvhwm = 1
        self.subscriber.subscribe(b'')
        self.monitor = self.subscriber.get_monitor_socket()
        self.subscriber.connect(endpoint)

    def write(self, number, payload, source):
        self.ts, events, rank = msgpack.unpackb(payload)
        print(json.dumps({'number': number, 'source': source, 'ts': self.ts, 'rank': rank, 'events': events}), file=self.file)
        self.expected = number + 1

    def catch_up(self, number):
        for past, payload in ask(self.context, self.replay, number, self.keys):
            self.write(past, payload, 'replay')

    def run(self):
        self.catch_up(0)
        print('{}', file=self.file)
        poller = zmq.Poller()
        poller.register(self.subscriber, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(1000))
            if self.monitor in ready and zmq.utils.monitor.recv_monitor_message(self.monitor)['event'] == zmq.EVENT_DISCONNECTED:
                self.catch_up(0)  # of another start, whose numbers begin anew
            if self.subscriber in ready:
                _, number, payload = self.subscriber.recv_multipart()
                number = int.from_bytes(number, 'big')
                if number > self.expected:
                    self.catch_up(self.expected)
                if number == self.expected and msgpack.unpackb(payload)[0] >= self.ts:
                    self.write(number, payload, 'live')
            elif not ready:
                self.catch_up(self.expected)  # perhaps the last one was missed


def ask(context, replay, number, keys=()):
    """Past batches from a number on."""
    socket = keep_keys(context.socket(zmq.DEALER), keys)
    socket.connect(replay)
    socket.send_multipart([b'', number.to_bytes(8, 'big')])
    while True:
        _, topic, past, payload = socket.recv_multipart()
        if past == b'\xff' * 8:
            assert topic == payload == b''
            socket.close()
            return
        yield int.from_bytes(past, 'big'), payload


def read_mirror(file):
    """hash -> (parent, tokens), by the rules that a router has; what breaks them is an error."""
    mirror, expected, ts = {}, 0, 0
    for line in open(file, encoding='utf-8'):
        batch = json.loads(line) if line.endswith('\n') else {}
        if not batch:
            continue
        assert batch['number'] in (expected, 0), f'{batch["number"]} follows {expected - 1}'
        assert batch['ts'] >= ts and batch['rank'] == 0
        expected, ts = batch['number'] + 1, batch['ts']
        for event in batch['events']:
            if event['type'] == 'AllBlocksCleared':
                mirror = {}
            elif event['type'] == 'BlockRemoved':
                for removed in event['block_hashes']:
                    del mirror[removed]
            else:
                parent, size = event['parent_block_hash'], event['block_size']
                assert parent is None or parent in mirror, 'a parent is missing'
                assert len(event['token_ids']) == size * len(event['block_hashes']) == size * len(event['extra_keys'])
                for i, stored in enumerate(event['block_hashes']):
                    assert stored not in mirror, 'it is stored twice'
                    mirror[stored] = (parent, event['token_ids'][i * size : (i + 1) * size])
                    parent = stored
    return mirror


def show_mirror(file):
    mirror = read_mirror(file)
    for leaf in set(mirror) - {parent for parent, _ in mirror.values()}:
        tokens, at = [], leaf
        while at is not None:
            at, some = mirror[at]
            tokens = some + tokens
        print(f'{leaf:016x}', ','.join(map(str, tokens)))


def show_prefixes(url, salted=''):
    query = '?limit=100'
    while query:
        with urllib.request.urlopen(f'{url}/v1/prefixes{query}') as answer:
            page = json.load(answer)
        for chain in page['items']:
            if salted or not chain['salted']:
                print(chain['chain'], chain['tokens'])
        query = f'?limit=100&cursor={page["next"]}' if page['next'] is not None else ''


def knock(endpoint, *keys):
    socket = keep_keys(zmq.Context().socket(zmq.SUB), keys)
    monitor = socket.get_monitor_socket()
    socket.connect(endpoint)
    while True:
        event = zmq.utils.monitor.recv_monitor_message(monitor)['event']
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return print('in')
        if event in (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_DISCONNECTED):
            return print('refused')


class Client:
    """For a geometry of one layer and one head of 8 numbers."""

    def __init__(self, url):
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc)

    def call(self, method, path, body=None, kind='application/json'):
        body = json.dumps(body) if kind == 'application/json' and body is not None else body
        self.connection.request(method, path, body, {'Content-Type': kind} if body else {})
        answer = self.connection.getresponse()
        read = answer.read()
        if answer.status >= 300 and answer.status != 503:
            raise SystemExit(f'{method} {path}: {answer.status} {read!r}')
        return json.loads(read) if answer.status < 300 and read else None


def traffic(url, seed, calls):
    client, chance, lengths, prompts, made = Client(url), random.Random(int(seed)), {}, {}, int(seed) * 1000000

    def prompt(n):  # of few different blocks, so that some begin alike
        return [(i // 4) * 10 + (chance.randrange(2) if i % 4 == 0 else i % 4) for i in range(n)]

    def append(sequence, ids):
        ids = prompts[sequence][lengths[sequence] :] or ids
        rows = [[[0.5] * 8]] * len(ids)
        answer = client.call('POST', '/v1/append', {'sequences': [sequence], 'indptr': [0, len(ids)], 'k': rows, 'v': rows, 'token_ids': ids}) if ids else None
        lengths[sequence] += len(ids) if answer else 0
        if ids and not answer:  # there are no blocks
            delete(sequence)

    def delete(sequence):
        del lengths[sequence]
        client.call('DELETE', f'/v1/sequences/{sequence}')

    for _ in range(int(calls)):
        what, some = chance.random(), chance.choice(list(lengths)) if lengths else None
        if some is None or what < 0.35:
            made, ids = made + 1, prompt(chance.randrange(4, 40))
            answer = client.call('POST', '/v1/sequences', {'id': made, 'tokens': ids} | ({'salt': 's'} if chance.random() < 0.2 else {}))
            if answer:
                lengths[made], prompts[made] = answer['length'], ids
                append(made, [])
        elif what < 0.55:
            append(some, prompt(chance.randrange(1, 9)))
        elif what < 0.65:
            made += 1
            if client.call('POST', f'/v1/sequences/{some}/fork', {'ids': [made]}):
                lengths[made], prompts[made] = lengths[some], prompts[some][: lengths[some]]
        elif what < 0.75:
            lengths[some] = chance.randrange(lengths[some] + 1)
            client.call('POST', f'/v1/sequences/{some}/truncate', {'length': lengths[some]})
            prompts[some] = prompts[some][: lengths[some]]
        elif what < 0.97:
            delete(some)
        else:
            client.call('POST', '/v1/trim')
    for some in list(lengths)[::2]:
        delete(some)


def fill(url, prompts, tokens):
    """Distinct prompts."""
    call = Client(url).call
    prompts, n, at, header = int(prompts), int(tokens), 0, {}
    for name, dtype, shape, size in (('sequences', 'I64', [1], 8), ('indptr', 'I64', [2], 16), ('k', 'F32', [n, 1, 8], n * 32), ('v', 'F32', [n, 1, 8], n * 32)):
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b' ' * (-len(head) % 8)
    for i in range(prompts):
        call('POST', '/v1/sequences', {'id': 5000000 + i, 'tokens': [100000 + i] * n})
        call('POST', '/v1/append', struct.pack('<Q', len(head)) + head + struct.pack('<3q', 5000000 + i, 0, n) + bytes(2 * n * 32), 'application/x-safetensors')
        call('DELETE', f'/v1/sequences/{5000000 + i}')


def main(command, *arguments):
    if command == 'follow':
        Follower(*arguments).run()
    elif command == 'replay':
        numbers = [number for number, _ in ask(zmq.Context(), arguments[0], int(arguments[1]))]
        print(*numbers, 'end')
    else:
        {'mirror': show_mirror, 'prefixes': show_prefixes, 'knock': knock, 'traffic': traffic, 'fill': fill}[command](*arguments)


if __name__ == '__main__':
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # sockets that still want to send keep nobody
