// SPDX-License-Identifier: Apache-2.0
// What the page computes, without a browser: node --test tests/browser/pure.test.mjs
import {test} from 'node:test';
import assert from 'node:assert/strict';
import {execFileSync} from 'node:child_process';
import {readFileSync} from 'node:fs';

// As a URL of its own: node 18 takes a .js file for CommonJS, whatever is in it.
const source = readFileSync(new URL('../../server/dashboard/pure.js', import.meta.url), 'utf8');
const pure = await import('data:text/javascript;base64,' + Buffer.from(source).toString('base64'));

const HOSTILE = ["it's", '"', '$(touch /tmp/x)', '`id`', 'a\nb', '\\', '!', '*', '~', '-n', '', ' ', '\u202e\u0000'.replace('\0', ''), "'''", '<script>', 'ü☃', '#', '&&', '%s'];
const sh = (script) => execFileSync('sh', ['-c', script], {encoding: 'utf8'});

test('a quoted word is one word of a shell, and the same text', () => {
  for (const text of HOSTILE) assert.equal(sh(`printf %s. ${pure.quote(text)}`), text + '.', JSON.stringify(text));
});

test('a copied line gives curl the same arguments, and the key by its variable', () => {
  const print = (line) => sh(`curl() { for a; do printf '%s\\0' "$a"; done; }; ATTND_KEY='k $(x)'; ${line}`).split('\0').slice(0, -1);
  for (const salt of HOSTILE) {
    const line = pure.curlLine({base: 'http://h:1/', method: 'POST', path: '/v1/sequences', body: {salt}, keyed: true});
    const words = print(line);
    assert.deepEqual(words.slice(0, 3), ['-s', '-H', 'Authorization: Bearer k $(x)']);
    assert.deepEqual(JSON.parse(words[4]), {salt});
    assert.equal(words[5], 'http://h:1/v1/sequences');
  }
  assert.deepEqual(print(pure.curlLine({base: 'http://h:1/', path: '/v1/blocks', query: {limit: 2, cursor: undefined, fields: 'a,b'}})), ['-s', 'http://h:1/v1/blocks?limit=2&fields=a%2Cb']);
  assert.deepEqual(print(pure.curlLine({base: 'http://h:1/', method: 'DELETE', path: '/v1/sequences/1'})), ['-s', '-X', 'DELETE', 'http://h:1/v1/sequences/1']);
});

test('states, and shared ones by their references', () => {
  assert.deepEqual([['free', 0], ['held', 1], ['held', 2], ['cached', 0], ['fenced', 0], ['odd', 1]].map(([s, r]) => pure.stateCode(s, r)), [0, 1, 2, 3, 4, pure.UNKNOWN]);
});

test('a block keeps what is newest, whichever way it came', () => {
  const s = new pure.BlockStore(4, 16), page = (epoch, state) => s.readPage({epoch, block: [1], state: [state], refs: [1], fill: [3], owner: [7]}, 0);
  assert.equal(s.readEvent({block: 1, epoch: 5, refs: 2, fill: 4, sequence: 7}, 1), true);
  page(4, 'free');
  assert.deepEqual([s.state[1], s.refs[1], s.fill[1], s.at], [2, 2, 4, 5]);
  page(6, 'held');
  assert.deepEqual([s.state[1], s.refs[1], s.counts[1], s.counts[2], s.at], [1, 1, 1, 0, 6]);
  assert.equal(s.readEvent({block: 1, epoch: 7, refs: 0}, 1), false, 'free or cached: it has to be asked for');
  assert.equal(s.readEvent({block: 9, epoch: 8, refs: 1}, 1), true, 'no such block');
  page(9, 'held');
  s.forget();
  page(2, 'cached');
  assert.deepEqual([s.state[1], s.at], [3, 2]);
  assert.equal(s.counts.reduce((a, b) => a + b), 4);
});

test('owners of other keys are not told', () => {
  const s = new pure.BlockStore(1, 16);
  s.readPage({epoch: 1, block: [0], state: ['held'], refs: [1], fill: [0], owner: ['other']}, 0);
  assert.equal(s.owner[0], pure.OTHER);
  assert.equal(pure.STATES[s.state[0]], 'other');
  s.readPage({epoch: 2, block: [0], state: ['cached'], refs: [null], fill: [null], owner: ['other']}, 0);
  assert.equal(pure.STATES[s.state[0]], 'other-cached');
  for (const theme of ['light', 'dark']) {
    const colours = new Set(['state', 'refs', 'owner', 'age', 'fill'].map((mode) => pure.cellColour(s, 0, mode, theme, 0).join()));
    assert.equal(colours.size, 1, 'theirs is the same colour in every colouring');
  }
  assert.equal(s.partial(0, 1), false);
});

test('blocks and sequences are named as what they are', () => {
  assert.deepEqual([pure.blocksText([0]), pure.blocksText([0, 1, 2, 5]), pure.sequencesText([4]), pure.sequencesText([4, 5])],
    ['block 0', 'blocks 0–2 and 5', 'sequence 4', 'sequences 4 and 5']);
});

test('colours of states differ from each other, in light and dark, and so do steps of fill', () => {
  for (const theme of ['light', 'dark']) {
    assert.equal(new Set(pure.PALETTES[theme].states).size, pure.STATES.length + 1);
    const s = new pure.BlockStore(17, 16), seen = new Set();
    for (let i = 0; i <= 16; i++) {
      s.put(i, 1, 1, 1, i, 1, 0);
      seen.add(pure.cellColour(s, i, 'fill', theme, 0).join());
    }
    assert.equal(seen.size, 17);
  }
});

test('ages by powers of two', () => {
  assert.deepEqual([0, 0.2, 0.5, 1, 2, 60, 1e9, NaN].map(pure.ageStep), [0, 0, 1, 2, 3, 8, 11, 11]);
});

test('contrast is that of WCAG', () => {
  assert.equal(Math.round(pure.contrast([0, 0, 0], [255, 255, 255])), 21);
  assert.equal(pure.contrast([10, 20, 30], [10, 20, 30]), 1);
  assert.equal(pure.contrast([119, 119, 119], [255, 255, 255]).toFixed(2), '4.48');
});

test('cells fit, and rows have multiples of eight', () => {
  for (const [count, width, height] of [[64, 1100, 500], [4096, 360, 300], [100000, 1100, 700], [1, 20, 20], [4096, 1100, 700]]) {
    const cell = pure.fitCell(count, width, height), columns = pure.columnsOf(width, cell);
    assert.ok(columns * cell <= width && (columns <= 8 || columns % 8 === 0), `${count}: ${columns} of ${cell}`);
    assert.ok(columns >= Math.min(8, count) || cell === 2, `${count} in ${width}: ${columns} in a row`);
    assert.ok(cell === 2 || Math.ceil(count / columns) * cell <= height, `${count}: ${cell}`);
  }
});

const S = (id, ...blocks) => ({id, blocks});
test('a fork tree draws what tables share once', () => {
  const tree = pure.forkTree([S(7, 0, 1, 2), S(8, 0, 1, 5), S(9, 0, 1, 6, 7), S(10, 3), S(11)]);
  assert.deepEqual(tree.rows, [7, 8, 9, 10]);
  assert.equal(tree.saved, 4);
  assert.equal(tree.columns, 4);
  const of = (id) => tree.nodes.filter((n) => n.ids.includes(id)).map((n) => n.blocks.join());
  assert.deepEqual([of(7), of(8), of(9), of(10)], [['0,1', '2'], ['0,1', '5'], ['0,1', '6,7'], ['3']]);
  for (const n of tree.nodes) if (n.parent >= 0) assert.equal(n.from, tree.nodes[n.parent].from + tree.nodes[n.parent].blocks.length);
});

test('a fork tree of any tables has each block of each once, in order', () => {
  let seed = 1;
  const random = (n) => (seed = seed * 48271 % 2147483647) % n;
  for (let round = 0; round < 200; round++) {
    let fresh = 0;
    const all = [];
    for (let id = 1; id <= 12; id++) {
      const from = all.length && random(3) ? all[random(all.length)].blocks : [];
      all.push(S(id, ...from.slice(0, random(from.length + 1)), ...Array.from({length: random(4)}, () => fresh++)));
    }
    const tree = pure.forkTree(all);
    for (const s of all) assert.deepEqual(tree.nodes.filter((n) => n.ids.includes(s.id)).sort((a, b) => a.from - b.from).flatMap((n) => n.blocks), s.blocks, `round ${round}`);
    const logical = all.reduce((n, s) => n + s.blocks.length, 0), drawn = tree.nodes.flatMap((n) => n.blocks);
    assert.equal(tree.saved, logical - drawn.length);
    assert.equal(new Set(drawn).size, drawn.length);
  }
});

test('holders of blocks', () => {
  assert.deepEqual([...pure.holdersOf([S(1, 5, 6), S(2, 5), {id: 3}])], [[5, [1, 2]], [6, [1]]]);
});

test('server-sent events, cut anywhere', () => {
  const text = ': hello\r\nid: 1\nevent: block\ndata: {"a":1}\n\ndata: x\ndata: y\r\n\r\n:\n\nid: 3\ndata\n\n';
  const want = [{id: '1', event: 'block', data: '{"a":1}'}, {id: undefined, event: 'message', data: 'x\ny'}, {id: '3', event: 'message', data: ''}];
  assert.deepEqual(new pure.EventReader().push(text), want);
  for (let cut = 0; cut <= text.length; cut++) {
    const reader = new pure.EventReader();
    assert.deepEqual([...reader.push(text.slice(0, cut)), ...reader.push(text.slice(cut))], want, `cut at ${cut}`);
  }
});

test('zeros as safetensors', () => {
  const geometry = {layers: 2, kv_heads: 1, head_dim: 4, dtype: 'bf16'}, bytes = pure.zerosBody({sequence: 9, tokens: 3, geometry}), view = new DataView(bytes.buffer);
  const n = Number(view.getBigUint64(0, true)), header = JSON.parse(new TextDecoder().decode(bytes.slice(8, 8 + n)));
  assert.equal(n % 8, 0);
  assert.deepEqual(header.k, {dtype: 'BF16', shape: [2, 3, 1, 4], data_offsets: [24, 72]});
  assert.equal(bytes.length, 8 + n + header.v.data_offsets[1]);
  assert.deepEqual([view.getBigInt64(8 + n, true), view.getBigInt64(16 + n, true), view.getBigInt64(24 + n, true)], [9n, 0n, 3n]);
  assert.equal(pure.zerosLine({base: 'http://h/', sequence: 1, tokens: 4000, geometry}), null);
});

test('what a request was about, or has made', () => {
  const of = (path, answer) => pure.actedOn(path, answer);
  assert.deepEqual([of('/v1/sequences', {id: 4, blocks: []}), of('/v1/sequences/4/fork', {sequences: [{id: 5}, {id: 6}]}), of('/v1/sequences/4', null), of('/v1/leases', {id: 9})], [[4], [4, 5, 6], [4], [9]]);
  assert.deepEqual([of('/v1/append', {sequences: [{id: 4}]}), of('/v1/workloads', {id: 1}), of('/v1/workloads/1', null), of('/v1/selftest', {ok: true})], [[4], [], [], []]);
});

test('words', () => {
  assert.deepEqual([pure.bytesText(0), pure.bytesText(1536), pure.bytesText(256 * 2 ** 20)], ['0 B', '1.5 KiB', '256 MiB']);
  assert.deepEqual([pure.plural(1, 'block'), pure.plural(2, 'block'), pure.list([1, 2, 3]), pure.list([1], 6), pure.list([1, 2, 3, 4], 2)], ['1 block', '2 blocks', '1, 2 and 3', '1', '1, 2 and 2 more']);
  assert.equal(pure.changeText({change: 'copied', block: 9, from: 3, sequence: 8}), 'block 3 copied to block 9 by sequence 8, which wrote to it while it was shared');
  assert.equal(pure.waitText({needed: 12, free: 3, reclaimable: 0, behind: {kind: 'workload', id: 4}}), 'needs 12 blocks; 3 free, 0 can be reclaimed; behind workload 4');
  assert.equal(pure.scopeLacked({status: 403, detail: 'the key "eve lacks the scope x" lacks the scope infer'}), 'infer');
  assert.equal(pure.scopeLacked({status: 403, detail: 'no'}), null);
  assert.deepEqual([...pure.scopesDenied({name: 'ann', scopes: ['read', 'infer']})], [['admin', 'the key "ann" lacks the scope admin']]);
  assert.deepEqual([...pure.scopesDenied({name: 'eve', scopes: ['read']}).keys()], ['infer', 'admin']);
  assert.equal(pure.scopesDenied(undefined).size, 0);
});

test('a time that goes on, and requests that are to come', () => {
  assert.deepEqual([0, 0.999, 1, 9.9, 10, 119.5, 3600].map(pure.idleText), ['just used', 'just used', '1 s idle', '9 s idle', '10 s idle', '119 s idle', '60 min idle']);
  assert.equal(pure.arrivalsText({arrivals: {left: 3, next_s: 12.34}}), '3 to come, the next in 12 s');
  assert.equal(pure.arrivalsText({arrivals: {left: 3, next_s: null}}), '3 to come');
  assert.equal(pure.arrivalsText({arrivals: {left: 0, next_s: null}}), '');
});

test('a workload that was cancelled is not called wrong', () => {
  assert.equal(pure.verifyText({state: 'cancelled', verify: {rows: 16, done: 0, ok: null}}), 'not verified (cancelled)');
  assert.equal(pure.verifyText({state: 'finished', verify: {rows: 16, done: 16, ok: true}}), '16 rows verified');
  assert.equal(pure.verifyText({state: 'finished', verify: {rows: 16, done: 1, ok: false}}), 'verification failed');
  assert.equal(pure.verifyText({state: 'finished', verify: null}), '');
});

test('a form for workloads that suits the pool', () => {
  assert.deepEqual(pure.firstWorkload(4096 * 16), {count: 4, prompt: 40, decode: 7500, prefix: 32, rate: 1});
  assert.deepEqual(pure.firstWorkload(64 * 4), {count: 9000, prompt: 16, decode: 38, prefix: 8, rate: 300});
  assert.ok(pure.firstWorkload(4).decode >= 1);
  for (let tokens = 16; tokens < 1e6; tokens *= 2) {
    const {count, prompt, decode} = pure.firstWorkload(tokens);
    assert.ok(4 * (prompt + decode) <= tokens, `a request and its forks fit ${tokens} tokens`);
    assert.ok(count * decode < 400000, `it ends: ${count} requests of ${decode}`);
  }
});
