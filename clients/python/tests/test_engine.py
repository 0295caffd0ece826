# SPDX-License-Identifier: Apache-2.0
"""attnd.Engine beside a model in NumPy that keeps every sequence's K and V in arrays of its own."""
import dataclasses
import json
import os
import pathlib
import pickle
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy

import attnd

LAYERS, QUERY_HEADS, KV_HEADS, DIM, BLOCK = 2, 4, 2, 16, 4
GEOMETRY = {'layers': LAYERS, 'query_heads': QUERY_HEADS, 'kv_heads': KV_HEADS, 'head_dim': DIM, 'block_size': BLOCK}
BACKEND = os.environ.get('BACKEND', 'cpu')
F32 = {'geometry': {**GEOMETRY, 'dtype': 'f32', 'kv_dtype': 'f32'}, 'pool': {'blocks': 256}, 'backend': {'name': BACKEND, 'threads': 2}}
BF16 = {**F32, 'geometry': {**GEOMETRY, 'dtype': 'bf16', 'kv_dtype': 'bf16'}}


def values(rng, *shape):
    return rng.standard_normal(shape).astype(numpy.float32)


def attention(q, k, v):
    """o and lse of q [heads][dim] over k, v [tokens][kv_heads][dim], in double precision."""
    k, v = (numpy.repeat(x.astype(float), QUERY_HEADS // KV_HEADS, axis=1) for x in (k, v))
    s = numpy.einsum('hd,thd->ht', q.astype(float), k) / numpy.sqrt(DIM)
    m = s.max(axis=1, keepdims=True)
    p = numpy.exp(s - m)
    total = p.sum(axis=1, keepdims=True)
    return numpy.einsum('ht,thd->hd', p / total, v), (m + numpy.log(total))[:, 0]


class OfEngine(unittest.TestCase):
    config, thread = F32, False

    def setUp(self):
        self.rng = numpy.random.default_rng(7)
        self.engine = attnd.Engine(self.config, thread=self.thread)

    def tearDown(self):
        self.engine.audit()
        self.engine.close()

    def kv(self, tokens):
        return values(self.rng, LAYERS, tokens, KV_HEADS, DIM), values(self.rng, LAYERS, tokens, KV_HEADS, DIM)


class Sequences(OfEngine):
    def test_histories_of_any_kind(self):
        """Random appends, forks, truncations and deletes: outputs are the model's, and forks share."""
        choose = random.Random(5)
        model = {}
        for _ in range(400):
            action = choose.choice(['create', 'append', 'append', 'append', 'attend', 'attend', 'fork', 'truncate', 'delete'])
            id = choose.choice(list(model)) if model else None
            if action == 'create' or id is None:
                if len(model) < 8:
                    model[self.engine.create()] = self.kv(0)
            elif action == 'append' and model[id][0].shape[1] < 60:
                k, v = self.kv(choose.randint(1, 9))
                self.engine.append(id, k, v, positions=[model[id][0].shape[1]])
                model[id] = tuple(numpy.concatenate(pair, axis=1) for pair in zip(model[id], (k, v)))
            elif action == 'attend' and model[id][0].shape[1]:
                layer, (k, v) = choose.randrange(LAYERS), model[id]
                q = values(self.rng, 1, QUERY_HEADS, DIM)
                o, lse = self.engine.attend(id, q, layer=layer, lse=True)
                expected, expected_lse = attention(q[0], k[layer], v[layer])
                numpy.testing.assert_allclose(o[0], expected, atol=1e-5)
                numpy.testing.assert_allclose(lse[0], expected_lse, atol=1e-5)
            elif action == 'fork' and len(model) < 8:
                length = choose.randint(0, model[id][0].shape[1])
                model[self.engine.fork(id, length=length)] = tuple(x[:, :length] for x in model[id])
            elif action == 'truncate':
                length = choose.randint(0, model[id][0].shape[1])
                self.engine.truncate(id, length)
                model[id] = tuple(x[:, :length] for x in model[id])
            elif action == 'delete':
                self.engine.delete(id)
                del model[id]
            self.assertEqual(self.engine.stats().sequences, len(model))
        for id, (k, _) in model.items():
            self.assertEqual(self.engine.look(id).length, k.shape[1])
            self.assertEqual(len(self.engine.blocks(id)), -(-k.shape[1] // BLOCK))
        self.assertGreater(self.engine.stats().forks, 10)

    def test_several_rows_see_what_is_before_them(self):
        ids = [self.engine.create() for _ in range(3)]
        counts = [3, 1, 5]
        q, k, v = (values(self.rng, 9, heads, DIM) for heads in (QUERY_HEADS, KV_HEADS, KV_HEADS))
        o = self.engine.attend(ids, q, k=k, v=v, layer=1, counts=counts)
        first = 0
        for n in counts:
            for i in range(n):
                expected, _ = attention(q[first + i], k[first : first + i + 1], v[first : first + i + 1])
                numpy.testing.assert_allclose(o[first + i], expected, atol=1e-5)
            first += n
        self.assertEqual([self.engine.look(i).lengths for i in ids], [[0, n] for n in counts])

    def test_a_prompt_is_found(self):
        tokens = list(range(100, 108))
        first = self.engine.create()
        k, v = self.kv(8)
        self.engine.append(first, k, v, tokens=tokens)
        again = self.engine.create(tokens + [1])
        self.assertEqual(again.cached, 8)
        self.assertEqual(self.engine.create(tokens, salt='another').cached, 0)
        self.assertEqual(self.engine.blocks(first), self.engine.blocks(again))

    def test_a_batch_is_done_or_not(self):
        id = self.engine.create()
        self.engine.append(id, *self.kv(6))
        with self.assertRaisesRegex(attnd.NotFoundError, '4711'):
            self.engine.batch([{'op': 'fork', 'id': id}, {'op': 'delete', 'id': 4711}])
        self.assertEqual(self.engine.stats().sequences, 1)
        forks, created, nothing = self.engine.batch(
            [{'op': 'fork', 'id': id, 'count': 2, 'length': 5}, {'op': 'create', 'id': 99}, {'op': 'truncate', 'id': id, 'length': 1}]
        )
        self.assertEqual([self.engine.look(i).length for i in [*forks, created, id]], [5, 5, 0, 1])
        self.assertEqual((created, nothing), (99, None))
        with self.assertRaisesRegex(attnd.InvalidError, r'ops(\[0\]: delete has no |/0/)length'):
            self.engine.batch([{'op': 'delete', 'id': 1, 'length': 3}])

    def test_own_tables(self):
        lease = self.engine.lease(3)
        k, v = self.kv(10)
        table = lease.blocks[::-1]
        slots = [table[i // BLOCK] * BLOCK + i % BLOCK for i in range(10)]
        self.engine.paged(lease, k=k[0], v=v[0], slot_mapping=slots, layer=0)
        q = values(self.rng, 2, QUERY_HEADS, DIM)
        o, lse = self.engine.paged(lease, q, [table, table], [10, 5], layer=0, lse=True)
        for row, tokens in enumerate((10, 5)):
            expected, expected_lse = attention(q[row], k[0, :tokens], v[0, :tokens])
            numpy.testing.assert_allclose(o[row], expected, atol=1e-5)
            numpy.testing.assert_allclose(lse[row], expected_lse, atol=1e-5)
        halves = [self.engine.paged(lease, q[:1], [[b]], [4], layer=0, lse=True) for b in table[:2]]
        merged, merged_lse = self.engine.merge(numpy.stack([h[0] for h in halves]), numpy.stack([h[1] for h in halves]))
        expected, expected_lse = attention(q[0], k[0, :8], v[0, :8])
        numpy.testing.assert_allclose(merged[0], expected, atol=1e-5)
        numpy.testing.assert_allclose(merged_lse[0], expected_lse, atol=1e-5)
        self.engine.delete(lease)

    def test_tickets(self):
        id = self.engine.create()
        k, v = self.kv(20)
        self.engine.append(id, k, v)
        q = [values(self.rng, 1, QUERY_HEADS, DIM) for _ in range(5)]
        alone = [self.engine.attend(id, x, layer=1) for x in q]
        tickets = [self.engine.attend(id, x, layer=1, wait=False) for x in q]
        while not all([t.done() for t in tickets]):
            pass
        for ticket, o in zip(tickets, alone):
            self.assertEqual(ticket.result().tobytes(), o.tobytes())
            self.assertIs(ticket.result(), ticket.result())
        fails = self.engine.append(12345, k, v, wait=False)
        for _ in range(2):
            with self.assertRaises(attnd.NotFoundError):
                fails.result(timeout=60)

    def test_errors_have_a_problem(self):
        id = self.engine.create()
        k, v = self.kv(2)
        v[1, 1, 0, 3] = numpy.inf
        with self.assertRaises(attnd.InvalidError) as caught:
            self.engine.append(id, k, v)
        self.assertEqual(caught.exception.problem['code'], 'invalid')
        self.assertEqual(caught.exception.detail.lstrip('/'), 'v: row 1, head 0, element 3 is not finite')
        self.assertIsInstance(caught.exception, ValueError)
        v[1, 1, 0, 3] = 0
        with self.assertRaises(attnd.PositionError):
            self.engine.append(id, k, v, positions=[3])
        with self.assertRaisesRegex(attnd.InvalidError, 'layer: is missing'):
            self.engine.append(id, k[0], v[0])
        with self.assertRaisesRegex(attnd.InvalidError, 'counts: wants 1 numbers'):
            self.engine.append([id], k[0], v[0], layer=0, counts=[1, 1])
        with self.assertRaisesRegex(attnd.InvalidError, 'sequences: entry 0: -1 is out of range'):
            self.engine.append([-1], k[0], v[0], layer=0)
        self.assertEqual(self.engine.look(id).length, 0)

    def test_what_is_no_sequence_is_called_one(self):
        for call in (self.engine.blocks, self.engine.look, self.engine.fork, self.engine.delete):
            with self.subTest(call), self.assertRaisesRegex(attnd.NotFoundError, 'there is no sequence 77'):
                call(77)

    def test_arguments_of_other_types_are_refused_in_words(self):
        id = self.engine.create()
        k, v = self.kv(3)
        q = values(self.rng, 1, QUERY_HEADS, DIM)
        for said, call in (
            ('sequence: wants an integer, has \'abc\'', lambda: self.engine.blocks('abc')),
            ('sequence: wants an integer, has None', lambda: self.engine.look(None)),
            ('sequence: wants 0..18446744073709551615, has -1', lambda: self.engine.delete(-1)),
            ('length: wants an integer, has 1.5', lambda: self.engine.truncate(id, 1.5)),
            ('blocks: wants an integer', lambda: self.engine.lease('3')),
            ('count: wants an integer', lambda: self.engine.fork(id, 'x')),
            ('count: wants 1..1000, has -1', lambda: self.engine.fork(id, count=-1)),
            ('count: wants 1..1000, has 0', lambda: self.engine.fork(id, 0)),
            ('q: is of int32: wants float32, float16 or attnd.bf16; float64 is rounded to float32', lambda: self.engine.attend(id, q.astype('i4'), layer=0)),
            ('k: is of int64: wants float32', lambda: self.engine.append(id, k.astype('i8'), v)),
            ('q: is of bool: wants float32', lambda: self.engine.attend(id, q > 0, layer=0)),
            ('q: is of u8: wants one of f32, f16, bf16', lambda: self.engine.attend(id, q.astype('u1'), layer=0)),
            ('dtype: wants one of f32, f16, bf16$', lambda: self.engine.attend(id, q, layer=0, dtype='e4m3')),
            ('ids: wants integers', lambda: self.engine.fork(id, ids=['x'])),
            ('tokens: wants integers', lambda: self.engine.create(['a'])),
            ('sequences: wants integers, has \'x\'', lambda: self.engine.attend('x', q, layer=0)),
            ('sequences: wants integers', lambda: self.engine.append(['x'], k, v)),
            ('counts: wants integers', lambda: self.engine.append([id], k, v, counts=['x'])),
            ('layer: wants an integer', lambda: self.engine.attend(id, q, layer='x')),
            (r'k: wants the shape \[rows, 2, 16\] or \[2, rows, 2, 16\], has \[3, 16\]', lambda: self.engine.append(id, k[0, :, 0], v[0, :, 0], layer=0)),
            (r'q: wants the shape \[rows, 4, 16\], has \[4, 16\]', lambda: self.engine.attend(id, q[0], layer=0)),
            ('k: wants an array of numbers, has \'abc\'', lambda: self.engine.append(id, 'abc', v)),
            (r'k: wants an array of numbers, has \[\[1', lambda: self.engine.append(id, [[1], [2, 3]], v)),
        ):
            with self.subTest(said), self.assertRaisesRegex(attnd.InvalidError, said):
                call()
        self.assertEqual(self.engine.look(id).length, 0)
        self.engine.append(numpy.int64(id), k.tolist(), v.tolist())  # lists of numbers are arrays
        other = self.engine.create()
        self.engine.append(other, k, v)
        numpy.testing.assert_array_equal(self.engine.attend(id, q.tolist(), layer=1), self.engine.attend(other, q, layer=1))
        o = self.engine.attend(id, q.astype('f8'), layer=1)  # what NumPy makes unless it is told
        self.assertEqual(o.dtype, numpy.float32)
        numpy.testing.assert_array_equal(o, self.engine.attend(other, q, layer=1))
        with self.assertRaisesRegex(attnd.InvalidError, 'out: is of float64: wants float32, float16 or attnd.bf16$'):
            self.engine.attend(id, q, layer=1, out=q.astype('f8'))

    def test_threads(self):
        failures = []

        def use(seed):
            try:
                rng = numpy.random.default_rng(seed)
                id = self.engine.create()
                k, v = values(rng, 30, KV_HEADS, DIM), values(rng, 30, KV_HEADS, DIM)
                for i in range(30):
                    q = values(rng, 1, QUERY_HEADS, DIM)
                    o = self.engine.attend(id, q, k=k[i : i + 1], v=v[i : i + 1], layer=0)
                    numpy.testing.assert_allclose(o[0], attention(q[0], k[: i + 1], v[: i + 1])[0], atol=1e-5)
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=use, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])

    def test_bug_dropped_tickets_freed_what_was_in_use(self):
        id = self.engine.create()
        k, v = self.kv(40)
        self.engine.append(id, k, v)
        q = values(self.rng, 64, QUERY_HEADS, DIM)
        ids = [id] + self.engine.fork(id, 63)
        for _ in range(300):  # more than there are tickets
            self.engine.attend(ids, q.copy(), layer=0, wait=False)
        self.assertEqual(len(self.engine.attend(ids, q, layer=0)), 64)

    def test_bug_closing_took_the_engine_from_other_threads(self):
        id = self.engine.create()
        self.engine.append(id, *self.kv(40))
        q, done = values(self.rng, 1, QUERY_HEADS, DIM), []

        def use():
            try:
                while True:
                    self.engine.attend(id, q, layer=0)
            except attnd.InvalidError as e:
                done.append(str(e))

        threads = [threading.Thread(target=use) for _ in range(3)]
        for t in threads:
            t.start()
        while self.engine.stats().steps < 20:
            pass
        self.engine.close()
        for t in threads:
            t.join()
        self.assertEqual(len(done), 3)
        self.engine.audit = lambda: None

    def test_bug_calls_that_are_not_awaited_lost_their_order(self):
        id = self.engine.create()
        k, v = self.kv(32)
        tickets = [self.engine.append(id, k[:, i : i + 1], v[:, i : i + 1], positions=[i], wait=False) for i in range(32)]
        q = values(self.rng, 1, QUERY_HEADS, DIM)
        o = self.engine.attend(id, q, layer=1)
        for t in tickets:
            t.result()
        numpy.testing.assert_allclose(o[0], attention(q[0], k[1], v[1])[0], atol=1e-5)

    def test_a_forked_child_is_refused(self):
        child = os.fork()
        if child == 0:
            try:
                self.engine.stats()
                os._exit(1)
            except attnd.ForkedError:
                os._exit(17)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 17)


class SequencesInAThread(Sequences):
    thread = True


class Daemon:
    """A daemon of its own, at a unix socket. ATTND is its program."""

    def __init__(self, config, *settings):
        self.folder = tempfile.TemporaryDirectory()
        file = os.path.join(self.folder.name, 'config.json')
        with open(file, 'w') as f:
            transport = {**config.get('transport', {}), 'listen': f'unix:{self.folder.name}/rings'}
            json.dump({**config, 'listen': f'unix:{self.folder.name}/socket', 'transport': transport}, f)
        self.log = open(os.path.join(self.folder.name, 'log'), 'w+')
        self.process = subprocess.Popen([os.environ['ATTND'], '--config', file], stderr=self.log)
        log = pathlib.Path(self.log.name)
        while 'listening on' not in log.read_text():
            if self.process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.02)
        self.address = f'unix:{self.folder.name}/socket'

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        self.folder.cleanup()


@unittest.skipUnless('ATTND' in os.environ, 'ATTND names no daemon')
class SequencesOfADaemon(Sequences):
    test_a_forked_child_is_refused = None  # it may use the daemon
    test_bug_closing_took_the_engine_from_other_threads = None  # each has a connection

    def test_bug_a_child_read_its_parents_answers(self):
        self.engine.create()
        child = os.fork()
        for _ in range(20):
            id = 1000 + (child == 0) + 2 * _
            if self.engine.create(id=id) != id:
                os._exit(1)
        if child == 0:
            os._exit(17)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 17)

    def test_bug_threads_left_their_connections(self):
        before = len(os.listdir('/proc/self/fd'))
        for _ in range(30):
            thread = threading.Thread(target=self.engine.stats)
            thread.start()
            thread.join()
        self.assertLess(len(os.listdir('/proc/self/fd')), before + 10)

    def test_bug_an_append_whose_answer_was_lost_was_made_twice(self):
        id = self.engine.create()
        k, v = self.kv(1)
        send = self.engine._here.connection.getresponse

        def lose():
            send().read()
            raise ConnectionResetError('lost')

        self.engine._here.connection.getresponse = lose
        with self.assertRaises(attnd.UnreachableError):
            self.engine.append(id, k, v)
        self.assertEqual(self.engine.look(id).length, 1)
        self.engine.close()
        with self.assertRaisesRegex(attnd.InvalidError, 'closed'):
            self.engine.create()
        self.engine.audit = lambda: None

    def setUp(self):
        self.rng = numpy.random.default_rng(7)
        self.daemon = Daemon(self.config)
        self.addCleanup(self.daemon.end)
        self.engine = attnd.Client(self.daemon.address)

    def test_it_describes_itself_as_an_engine_does(self):
        with attnd.Engine(self.config) as engine:
            here = dataclasses.replace(engine.description, gpu=-1, stream_rows=0)  # a daemon takes no tensors where they are
            self.assertEqual(self.engine.description, here)

    def test_a_connection_comes_back(self):
        id = self.engine.create()
        for how in (socket.SHUT_RDWR, socket.SHUT_WR):
            self.engine._here.connection.sock.shutdown(how)  # as the daemon closes one that is idle
            self.assertEqual(self.engine.look(id).length, 0)
        self.daemon.process.kill()
        self.daemon.process.wait()
        with self.assertRaisesRegex(attnd.UnreachableError, 'unix:/.*; is attnd running') as caught:
            self.engine.look(id)
        self.assertIsInstance(caught.exception, OSError)
        self.engine.audit = lambda: None

    def test_workloads_have_reports(self):
        workload = {'seed': 3, 'sequences': [{'count': 4, 'prompt': 20, 'decode': 30}]}
        report = self.engine.run(workload)
        self.assertEqual((report['state'], report['sequences']['finished']), ('finished', 4))
        self.assertEqual(report.record()['tokens_done'], report['tokens']['total'])
        self.assertEqual(self.engine.run(workload)['digest'], report['digest'])
        with self.assertRaises(attnd.InvalidError):
            self.engine.run({'sequences': 3})

    def test_bits_and_dtypes_are_those_of_an_engine(self):
        daemon = Daemon(BF16)
        self.addCleanup(daemon.end)
        q = values(self.rng, 2, QUERY_HEADS, DIM)
        k, v = self.kv(9)
        said = []
        with attnd.Engine(BF16) as engine, attnd.Client(daemon.address) as client:
            for side in (engine, client):
                id = side.create()
                side.append(id, k, v)
                o, lse = side.attend(id, q, layer=1, lse=True)
                self.assertEqual((o.dtype, lse.dtype), (numpy.float32, numpy.float32))
                o16 = side.attend(id, attnd.bf16.of(q), layer=1)
                self.assertIsInstance(o16, attnd.bf16)
                out = numpy.empty_like(q)
                self.assertIs(side.attend(id, q, layer=1, out=out), out)
                said.append([x.tobytes() for x in (o, lse, o16, out, side.attend(id, attnd.bf16.of(q), layer=1, dtype='f32'))])
        self.assertEqual(*said)

    def test_bug_a_long_table_was_counted_as_far_as_it_was_listed(self):
        daemon = Daemon({**F32, 'pool': {'blocks': 1200}})
        self.addCleanup(daemon.end)
        with attnd.Client(daemon.address) as client:
            id = client.create()
            client.append(id, *self.kv(1010 * BLOCK))
            self.assertEqual(client.look(id).blocks, 1010)
            self.assertEqual(len(client.blocks(id)), 1010)

    def test_proxies_are_told_the_node(self):
        """Bug: calls whose ids are in the body went to any node, and were 421 at the others."""
        daemon = Daemon({**self.config, 'node': 3})
        self.addCleanup(daemon.end)
        told = []

        class Watched(attnd.Client):
            def _exchange(self, method, path, body, headers):
                told.append((path.partition('?')[0].split('/')[-1], headers.get('X-Attnd-Node')))
                return super()._exchange(method, path, body, headers)

        with Watched(daemon.address) as client:
            id = client.create()
            lease = client.lease(1)
            k, v = self.kv(1)
            q = values(self.rng, 1, QUERY_HEADS, DIM)
            del told[:]
            client.append(id, k, v)
            client.attend(id, q, layer=0)
            client.batch([{'op': 'create'}, {'op': 'truncate', 'id': id, 'length': 1}])
            client.fork(id)
            client.paged(lease, q, [[lease.blocks[0]]], [1], k=k[0], v=v[0], slot_mapping=[lease.blocks[0] * BLOCK], layer=0)
            client.create(id=(3 << 40) + 99)
            client.create()
        self.assertEqual(told, [(name, 'n3') for name in ('append', 'attend', 'batch', 'fork', 'paged', 'sequences')] + [('sequences', None)])

    def test_codes_of_proxies(self):
        for code, kind in (('node_down', attnd.UnreachableError), ('not_ready', attnd.UnreachableError), ('node_cut', attnd.UnreachableError), ('no_node', attnd.NotFoundError),
                           ('which_node', attnd.InvalidError)):
            e = attnd.errors.error_of({'status': 500, 'code': code})
            self.assertEqual((type(e), e.code), (kind, code))

    def test_addresses_and_keys(self):
        for address in ('ftp://127.0.0.1', 'localhost', 'http://host/path', 8400):
            with self.assertRaisesRegex(attnd.InvalidError, r'wants http://HOST:PORT, https://HOST:PORT \(a proxy\) or unix:PATH'):
                attnd.Client(address)
        for address in (f'unix:{self.daemon.folder.name}/nobody', 'http://127.0.0.1:1', 'https://127.0.0.1:1'):
            with self.assertRaisesRegex(attnd.UnreachableError, f'{address}: .*; is attnd running') as caught:
                attnd.Client(address)
            self.assertEqual(caught.exception.code, 'unreachable')
        with self.assertRaisesRegex(attnd.UnreachableError, '/nobody: .*; is attnd running'):
            attnd.Client(self.daemon.address, registered=f'unix:{self.daemon.folder.name}/nobody')
        client = attnd.Client(self.daemon.address)
        self.assertEqual(repr(client), f'<attnd.Client {self.daemon.address}>')
        client.close()
        self.assertEqual(repr(client), f'<attnd.Client {self.daemon.address}, closed>')
        with attnd.Client(self.daemon.address, key='nobody knows it') as client:
            client.create()  # there is no keys file

    def test_keys_that_are_not_enough(self):
        ctl = os.path.join(os.path.dirname(os.environ['ATTND']), 'attnctl')
        with tempfile.TemporaryDirectory() as folder:
            made = json.loads(subprocess.run([ctl, '--json', 'key', 'new', 'eve', 'read'], capture_output=True, check=True).stdout)
            keys = os.path.join(folder, 'keys')
            with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), 'w') as f:
                json.dump({'keys': [made['entry']]}, f)
            daemon = Daemon({**self.config, 'keys': {'file': keys}})
            try:
                for key, said in ((None, 'needs a key'), ('attnd_none', 'no such key')):
                    with self.assertRaisesRegex(attnd.AuthError, said) as caught:
                        attnd.Client(daemon.address, key=key)
                    self.assertEqual(caught.exception.problem['status'], 401)
                with attnd.Client(daemon.address, key=made['key']) as client:
                    with self.assertRaisesRegex(attnd.AuthError, 'lacks the scope infer') as caught:
                        client.create()
                    self.assertEqual(caught.exception.code, 'forbidden')
                    self.assertIsInstance(caught.exception, PermissionError)
            finally:
                daemon.end()


@unittest.skipUnless('ATTND' in os.environ, 'ATTND names no daemon')
class SequencesByRegisteredMemory(SequencesOfADaemon):
    """The same over a ring, and what only a ring has."""

    test_bug_an_append_whose_answer_was_lost_was_made_twice = None  # of HTTP
    test_a_connection_comes_back = None

    def setUp(self):
        super().setUp()
        self.engine.close()
        self.engine = attnd.Client(self.daemon.address, registered=True)

    def test_bits_are_those_of_http(self):
        daemon = Daemon(BF16)
        self.addCleanup(daemon.end)
        q = values(self.rng, 3, QUERY_HEADS, DIM)
        k, v = self.kv(9)
        said = []
        with attnd.Client(daemon.address) as http, attnd.Client(daemon.address, registered=daemon.address.replace('socket', 'rings')) as ring:
            for side in (http, ring):
                ids = side.create(), side.create()
                side.append(ids, k, v, counts=[4, 5])
                side.attend(ids[0], q[:1], k=k[1, :1], v=v[1, :1], layer=1, positions=[4])
                o, lse = side.attend(ids, q, layer=1, counts=[1, 2], lse=True, wait=False).result()
                out = numpy.empty_like(q)
                self.assertIs(side.attend(ids, q, layer=0, counts=[2, 1], out=out, wait=True), out)
                said.append([x.tobytes() for x in (o, lse, out, side.attend(ids[1], attnd.bf16.of(q[:1]), layer=0))])
        self.assertEqual(*said)

    def test_arrays_in_a_region(self):
        id = self.engine.create()
        k, v = self.kv(7)
        self.engine.append(id, k, v)
        with self.engine.register(1 << 20) as region:
            q, out = region.empty((1, QUERY_HEADS, DIM)), region.empty((1, QUERY_HEADS, DIM))
            q[:] = values(self.rng, 1, QUERY_HEADS, DIM)
            out[:] = 7
            self.assertIs(self.engine.attend(id, q, layer=1, out=out), out)
            expected, _ = attention(q[0], k[1], v[1])
            numpy.testing.assert_allclose(out[0], expected, rtol=1e-5, atol=1e-6)
            self.assertEqual(self.engine.attend(id, q, layer=1).tobytes(), out.tobytes())
            words = region.empty(5, 'bf16')
            self.assertEqual((type(words), words.shape), (attnd.bf16, (5,)))
            with self.assertRaisesRegex(attnd.BusyError, 'no 1048576 bytes in one piece'):
                region.empty(1 << 20, 'u1')
            del q, out, words
            region.empty(1 << 20, 'u1')  # all of it is free again
        self.assertEqual(self.engine.attend(id, values(self.rng, 1, QUERY_HEADS, DIM), layer=1).shape, (1, QUERY_HEADS, DIM))

    def test_threads_share_a_ring(self):
        id = self.engine.create()
        k, v = self.kv(30)
        self.engine.append(id, k, v)
        q = values(self.rng, 1, QUERY_HEADS, DIM)
        expected = self.engine.attend(id, q, layer=0).tobytes()
        wrong = []

        def attend():
            for _ in range(200):
                if self.engine.attend(id, q, layer=0).tobytes() != expected:
                    wrong.append(1)

        threads = [threading.Thread(target=attend) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_what_is_wrong_is_said(self):
        id = self.engine.create()
        k, v = self.kv(2)
        with self.assertRaisesRegex(attnd.InvalidError, r'k: wants f32 \[2, 2, 2, 16\], has f32 \[2, 2, 2, 15\]'):
            self.engine.append(id, k[..., :15], v)
        k[1, 0, 1, 3] = numpy.nan
        with self.assertRaisesRegex(attnd.InvalidError, 'k: row 0, head 1, element 3 is not finite'):
            self.engine.append(id, k, v)
        with self.assertRaisesRegex(attnd.BusyError, 'has no .* more for this call'):
            self.engine.append(id, *self.kv(1 << 16))
        self.assertEqual(self.engine.look(id).length, 0)
        with self.assertRaisesRegex(attnd.InvalidError, 'made without it'), attnd.Client(self.daemon.address) as client:
            client.register(4096)
        self.engine.append(id, *self.kv(2))
        self.daemon.process.kill()
        with self.assertRaisesRegex(attnd.UnreachableError, 'is attnd running'):
            self.engine.append(id, *self.kv(2))
        self.engine.audit = lambda: None


class Arrays(OfEngine):
    config = BF16

    def test_bf16(self):
        x = numpy.array([1, -2.5, 3.14159, 1e-40, 65504, 3.3895314e38, 3.4e38, numpy.inf, numpy.nan, 1.00390625], numpy.float32)
        rounded = attnd.bf16.of(x)
        self.assertEqual(rounded.dtype, numpy.uint16)
        back = rounded.float32()
        numpy.testing.assert_array_equal(numpy.isnan(back), numpy.isnan(x))
        numpy.testing.assert_allclose(back[:6], x[:6], rtol=2**-8, atol=1e-39)
        self.assertTrue(numpy.isinf(back[6]))  # nearest is beyond the largest
        self.assertEqual(back[9], 1.0)  # a tie goes to the even one
        self.assertEqual(attnd.bf16(rounded.view(numpy.ndarray)).float32().tobytes(), back.tobytes())
        with self.assertRaises(TypeError):
            attnd.bf16(x)

    def test_dtypes_of_q_and_o(self):
        id = self.engine.create()
        k, v = self.kv(9)
        self.engine.append(id, k, v)
        q = values(self.rng, 1, QUERY_HEADS, DIM)
        o = self.engine.attend(id, q, layer=0)
        self.assertEqual(o.dtype, numpy.float32)
        q16 = attnd.bf16.of(q)
        o16 = self.engine.attend(id, q16, layer=0)
        self.assertIsInstance(o16, attnd.bf16)
        self.assertEqual(o16.float32().tobytes(), o.tobytes())  # q was rounded to the same
        self.assertEqual(self.engine.attend(id, q16, layer=0, dtype='f32').tobytes(), o.tobytes())
        out = attnd.bf16.empty(q.shape)
        self.assertIs(self.engine.attend(id, q, layer=0, out=out), out)
        self.assertEqual(out.tobytes(), o16.tobytes())
        other = self.engine.create()
        self.engine.append(other, attnd.bf16.of(k), attnd.bf16.of(v))
        self.assertEqual(self.engine.attend(other, q, layer=0).tobytes(), o.tobytes())
        with self.assertRaisesRegex(attnd.InvalidError, 'q: wants bf16 or f32'):
            self.engine.attend(id, q.astype(numpy.float16), layer=0)

    def test_read_only_and_strided(self):
        id = self.engine.create()
        k, v = self.kv(9)
        k.flags.writeable = v.flags.writeable = False
        self.engine.append(id, k, v)
        q = values(self.rng, 2, QUERY_HEADS, DIM)[::2]
        q.flags.writeable = False
        o = self.engine.attend(id, q, layer=0)
        o.flags.writeable = False
        with self.assertRaisesRegex(attnd.InvalidError, 'out: is read-only'):
            self.engine.attend(id, q, layer=0, out=o)
        with self.assertRaisesRegex(attnd.InvalidError, 'out: is not contiguous'):
            self.engine.attend(id, q, layer=0, out=numpy.empty((1, QUERY_HEADS, 2 * DIM), numpy.float32)[..., ::2])
        other = self.engine.create()
        self.engine.append(other, numpy.asfortranarray(k), v.astype(float))
        self.assertEqual(self.engine.attend(other, q, layer=0).tobytes(), o.tobytes())
        with self.assertRaisesRegex(attnd.InvalidError, 'big-endian'):
            self.engine.attend(id, q.astype('>f4'), layer=0)
        with self.assertRaisesRegex(attnd.InvalidError, 'complex'):
            self.engine.attend(id, q.astype(complex), layer=0)

    def test_dlpack(self):
        """Whatever speaks DLPack and is no array of NumPy's; read-only where its version can say so."""

        class Foreign:
            def __init__(self, array):
                self.array = array

            shape = property(lambda self: self.array.shape)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

            def __dlpack__(self, **how):
                return self.array.__dlpack__(**how)

        id = self.engine.create()
        k, v = self.kv(9)
        self.engine.append(id, Foreign(k), Foreign(v))
        q = values(self.rng, 1, QUERY_HEADS, DIM)
        o = self.engine.attend(id, Foreign(q), layer=0)
        self.assertEqual(o.tobytes(), self.engine.attend(id, q, layer=0).tobytes())
        if int(numpy.__version__.split('.')[0]) >= 2:
            q.flags.writeable = False
            self.assertEqual(o.tobytes(), self.engine.attend(id, Foreign(q), layer=0).tobytes())
            with self.assertRaisesRegex(attnd.InvalidError, 'read-only'):
                self.engine.attend(id, q, layer=0, out=Foreign(q))

    def test_bits_do_not_depend_on_company(self):
        ids = [self.engine.create() for _ in range(6)]
        for n, id in enumerate(ids):
            self.engine.append(id, *self.kv(3 + 11 * n))
        q = values(self.rng, 6, QUERY_HEADS, DIM)
        together = self.engine.attend(ids, q, layer=1)
        for n, id in enumerate(ids):
            self.assertEqual(self.engine.attend(id, q[n : n + 1], layer=1).tobytes(), together[n].tobytes())


class Module(unittest.TestCase):
    def test_what_is_in_it(self):
        self.assertRegex(attnd.version(), r'^attnd \d+\.\d+\.\d+ \(')
        self.assertIn('portable', attnd.backends()['cpu'])
        self.assertIn('Engine', attnd.__all__)

    def test_nvrtc_is_found_beside_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIsNone(attnd._library.find_nvrtc([folder, '/nonexistent']))
            for place in ('cuda_nvrtc/lib/libnvrtc.so.12', 'cu13/lib/libnvrtc.so.13', 'cu13/lib/libnvrtc-builtins.so.13.2'):
                file = pathlib.Path(folder, 'nvidia', place)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
            self.assertEqual(attnd._library.find_nvrtc([folder]).name, 'libnvrtc.so.13')

    def test_messages_go_to_who_asks(self):
        messages = []
        attnd.log(lambda level, text: messages.append((level, text)))
        attnd.Engine({**F32, 'backend': {'name': 'auto'}}).close()
        attnd.log(None)
        code = 'import attnd; attnd.Engine({"pool": {"blocks": 16}}).close()'
        done = subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
        self.assertEqual(done.stdout, b'')

    def test_closed_and_misused(self):
        engine = attnd.Engine(F32)
        engine.close()
        engine.close()
        with self.assertRaisesRegex(attnd.InvalidError, 'closed'):
            engine.stats()
        with self.assertRaisesRegex(TypeError, 'pickled'):
            pickle.dumps(engine)
        with self.assertRaisesRegex(attnd.InvalidError, 'pool.blocks'):
            attnd.Engine({'pool': {'blocks': -1}})
        with self.assertRaisesRegex(attnd.InvalidError, r'configuration:1:\d+'):
            attnd.Engine('{"pool": {"block": 3}}')
        for config in ('config/tiny.jsonc', pathlib.Path('config/tiny.jsonc')):
            with self.assertRaisesRegex(attnd.InvalidError, "a file is named by file='config/tiny.jsonc'"):
                attnd.Engine(config)
        with self.assertRaisesRegex(attnd.InvalidError, 'config: '):
            attnd.Engine({'pool': {'blocks': object()}})
        with self.assertRaisesRegex(attnd.InvalidError, 'settings: wants a list'):
            attnd.Engine(settings='pool.blocks=3')
        for settings in (['pool.blocks'], [3]):
            with self.assertRaisesRegex(attnd.InvalidError, 'settings: wants "path=value", has '):
                attnd.Engine(settings=settings)
        with self.assertRaisesRegex(attnd.InvalidError, '^setting pool.blocks=many: pool.blocks: '):  # it spoke of --set
            attnd.Engine(F32, settings=['pool.blocks=many'])
        with self.assertRaisesRegex(attnd.InvalidError, r"geometry: Engine has no such argument; keys go into config=\{'geometry': \.\.\.\}"):
            attnd.Engine(geometry=GEOMETRY)
        with self.assertRaisesRegex(attnd.InvalidError, r'layers: no such key; did you mean geometry\.layers\?$'):
            attnd.Engine(GEOMETRY)

    def test_settings(self):
        """As a dictionary they are what they are as a list."""
        with attnd.Engine(F32, settings={'pool.blocks': 8, 'geometry.kv_dtype': 'f32'}) as engine:
            self.assertEqual(engine.description.blocks, 8)

    def test_layers(self):
        """What is wanted of `layer` is a number where there is one layer (bug: it was 0..0), else a range; and what it was is said."""
        for layers, wants in ((1, 'layer: wants 0; has 3'), (2, 'layer: wants 0..1; has 3')):
            with attnd.Engine({**F32, 'geometry': {**F32['geometry'], 'layers': layers}}) as engine:
                with self.assertRaises(attnd.InvalidError) as raised:
                    engine.attend(engine.create(), numpy.zeros((1, QUERY_HEADS, DIM), numpy.float32), layer=3)
                self.assertIn(wants, str(raised.exception))

    def test_a_pool_for_which_there_is_no_memory(self):
        with self.assertRaisesRegex(attnd.OutOfMemoryError, 'do(es)? not fit.* MiB'):
            attnd.Engine({'pool.bytes': '40TiB'})

    def test_a_backend_that_is_not_here(self):
        if 'not usable here' not in attnd.backends()['cuda']:  # asked here, since other tests read this file where there is no library
            self.skipTest('there is CUDA here')
        with self.assertRaisesRegex(attnd.UnsupportedError, 'CUDA'):
            attnd.Engine(F32, settings=['backend.name=cuda'])

    def test_what_is_shown(self):
        """An engine and an id say what they are, and an id is a number wherever one is wanted."""
        engine = attnd.Engine(F32)
        self.assertRegex(repr(engine), r'^<attnd\.Engine \S.*, 2 layers, 4/2 heads of 16, 256 blocks of 4 tokens, f32>$')
        id = engine.create(id=7)
        self.assertEqual([repr(id), f'{id} {id:03}', json.dumps(id), pickle.loads(pickle.dumps(id)) + 1],
                         ['<attnd.SequenceId 7>', '7 007', '7', 8])
        engine.close()
        self.assertEqual(repr(engine), '<attnd.Engine, closed>')

    def test_version(self):
        self.assertRegex(attnd.__version__, r'^\d+\.\d+\.\d+$')
        self.assertIn(attnd.__version__, attnd.version())
        with self.assertRaisesRegex(AttributeError, 'nothing'):
            attnd.nothing


if __name__ == '__main__':
    unittest.main()
