// SPDX-License-Identifier: Apache-2.0
// pure.js - what the page computes: no document, no network. tests/browser/pure.test.mjs runs it under node.

// ---- lines for a shell ----------------------------------------------------------------------------------

// quote(text): one word of a POSIX shell that stands for exactly `text`.
export function quote(text) {
  const s = String(text);
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(s) ? s : "'" + s.replaceAll("'", "'\\''") + "'";
}

// curlLine({base, method, path, query, body, headers, keyed}): the command that asks the same. A key is never in it: the
// shell reads it from ATTND_KEY.
export function curlLine({base, method = 'GET', path, query, body, headers = {}, keyed = false}) {
  const words = ['curl', '-s'];
  if (headers.Accept === 'text/event-stream') words.push('-N');
  if (keyed) words.push('-H', '"Authorization: Bearer $ATTND_KEY"');
  for (const [name, value] of Object.entries(headers)) words.push('-H', quote(`${name}: ${value}`));
  const implied = body === undefined ? 'GET' : 'POST';
  if (method !== implied) words.push('-X', method);
  if (body !== undefined) words.push('--json', quote(JSON.stringify(body)));
  words.push(quote(base.replace(/\/$/, '') + path + queryOf(query)));
  return words.join(' ');
}

// queryOf({a: 1, b: undefined}): "?a=1"; what is undefined or null is left out.
export function queryOf(query) {
  const parts = Object.entries(query ?? {}).filter(([, v]) => v !== undefined && v !== null && v !== '');
  return parts.length ? '?' + parts.map(([k, v]) => `${encodeURIComponent(k)}=${encodeURIComponent(v)}`).join('&') : '';
}

// zerosLine(...): append `tokens` tokens of zeros to a sequence, as a line that needs jq; null: the body would be longer than the
// daemon reads as JSON.
const JSON_NUMBERS_MAX = 14000; // of one tensor: two of them, "0," each, below 64 KiB
export function zerosLine({base, sequence, tokens, geometry, keyed}) {
  const {layers, kv_heads: heads, head_dim: dim} = geometry;
  if (layers * tokens * heads * dim > JSON_NUMBERS_MAX) return null;
  const rows = `[range(${tokens}) | [range(${heads}) | [range(${dim}) | 0]]]`;
  const all = layers > 1 ? `[range(${layers}) | ${rows}]` : rows;
  const program = `${all} as $t | {sequences: [${sequence}], indptr: [0, ${tokens}], k: $t, v: $t}`;
  const key = keyed ? '-H "Authorization: Bearer $ATTND_KEY" ' : '';
  return `jq -nc ${quote(program)} | curl -s ${key}--json @- ${quote(base.replace(/\/$/, '') + '/v1/append')}`;
}

// ---- tensors ----------------------------------------------------------------------------------------------

const DTYPES = {f32: ['F32', 4], bf16: ['BF16', 2], f16: ['F16', 2]};

// zerosBody({sequence, tokens, geometry}): the same call as safetensors, a Uint8Array.
export function zerosBody({sequence, tokens, geometry}) {
  const {layers, kv_heads: heads, head_dim: dim} = geometry;
  const [dtype, size] = DTYPES[geometry.dtype] ?? DTYPES.f32;
  const shape = layers > 1 ? [layers, tokens, heads, dim] : [tokens, heads, dim];
  const bytes = layers * tokens * heads * dim * size;
  let header = JSON.stringify({
    sequences: {dtype: 'I64', shape: [1], data_offsets: [0, 8]},
    indptr: {dtype: 'I64', shape: [2], data_offsets: [8, 24]},
    k: {dtype, shape, data_offsets: [24, 24 + bytes]},
    v: {dtype, shape, data_offsets: [24 + bytes, 24 + 2 * bytes]},
  });
  header += ' '.repeat((8 - header.length % 8) % 8);
  const all = new Uint8Array(8 + header.length + 24 + 2 * bytes), view = new DataView(all.buffer);
  view.setBigUint64(0, BigInt(header.length), true);
  all.set(new TextEncoder().encode(header), 8);
  const at = 8 + header.length;
  view.setBigInt64(at, BigInt(sequence), true);
  view.setBigInt64(at + 16, BigInt(tokens), true);
  return all;
}

// ---- states of blocks -------------------------------------------------------------------------------------

// What a cell may show, in the order of its code; from FOREIGN on: of another key, of which no more is told; UNKNOWN: not read yet.
export const STATES = ['free', 'held', 'shared', 'cached', 'fenced', 'other', 'other-cached'];
export const FOREIGN = STATES.indexOf('other'), UNKNOWN = STATES.length;
// What a legend calls them. In the API, and in /stats, "held" counts the shared ones, too.
export const STATE_LABELS = {...Object.fromEntries(STATES.map((s) => [s, s])), held: 'held by one', other: 'of another key', 'other-cached': 'of another key, cached'};
export const OTHER = -1; // the owner of a block of another key

// stateCode('held', 3, owner) = 2: a held block with several references is shown as shared.
export function stateCode(state, refs, owner) {
  const code = STATES.indexOf(state);
  if (code < 0) return UNKNOWN;
  if (owner === OTHER) return state === 'cached' ? FOREIGN + 1 : FOREIGN;
  return state === 'held' && refs > 1 ? STATES.indexOf('shared') : code;
}

// The blocks of the pool as arrays, and which of them have changed since they were painted.
//
// Pages of /v1/blocks and events come by different ways and overtake each other. Each carries the epoch that it shows, and each block
// keeps the epoch of what it has: what is older changes nothing.
export class BlockStore {
  constructor(count, blockSize) {
    this.count = count;
    this.blockSize = blockSize;
    this.state = new Uint8Array(count).fill(UNKNOWN);
    this.refs = new Uint32Array(count);
    this.fill = new Uint16Array(count);
    this.owner = new Float64Array(count);
    this.epoch = new Float64Array(count).fill(-1);
    this.touched = new Float64Array(count).fill(NaN); // when its last change was seen, in seconds
    this.counts = new Uint32Array(UNKNOWN + 1);
    this.counts[UNKNOWN] = count;
    this.at = 0; // the newest epoch that was seen
    this.dirty = new Set();
    this.allDirty = true;
  }

  // put(i, epoch, state code, ...): true when it was news.
  put(i, epoch, code, refs, fill, owner, now) {
    if (!(i >= 0 && i < this.count) || epoch < this.epoch[i]) return false;
    const same = this.state[i] === code && this.refs[i] === refs && this.fill[i] === fill && this.owner[i] === owner;
    if (!same && this.epoch[i] >= 0) this.touched[i] = now;
    this.epoch[i] = epoch;
    this.at = Math.max(this.at, epoch);
    if (same) return false;
    this.counts[this.state[i]]--;
    this.counts[code]++;
    this.state[i] = code;
    this.refs[i] = refs;
    this.fill[i] = fill;
    this.owner[i] = owner;
    if (!this.allDirty) this.dirty.add(i);
    return true;
  }

  // readPage(columns, now): an answer of /v1/blocks?format=columns.
  readPage(page, now) {
    const owners = page.owner ?? [];
    for (let k = 0; k < page.block.length; k++) { // of other keys' blocks neither references nor fill are told
      const owner = owners[k] === 'other' ? OTHER : owners[k] ?? 0, refs = page.refs[k] ?? 0;
      this.put(page.block[k], page.epoch, stateCode(page.state[k], refs, owner), refs, page.fill[k] ?? 0, owner, now);
    }
    this.at = Math.max(this.at, page.epoch);
  }

  // readEvent(event, now): a block event; false: it does not say what the block is now, so it has to be asked for.
  readEvent(event, now) {
    const {block, epoch, refs, fill} = event;
    this.at = Math.max(this.at, epoch);
    if (!(block >= 0 && block < this.count) || epoch <= this.epoch[block]) return true;
    const state = event.state ?? (refs > 0 ? 'held' : undefined);
    if (state === undefined) return false;
    const owner = event.owner === 'other' ? OTHER
      : state === 'held' ? event.owner ?? (event.change === 'parked' ? undefined : event.sequence) ?? this.owner[block] : 0;
    this.put(block, epoch, stateCode(state, refs ?? 0, owner), refs ?? 0, fill ?? this.fill[block], owner, now);
    return true;
  }

  // partial(page, size): whether a page of that many blocks has one that is held and not full: tokens are written to it without an event.
  partial(page, size) {
    const end = Math.min(this.count, (page + 1) * size);
    for (let i = page * size; i < end; i++) if ((this.state[i] === 1 || this.state[i] === 2) && this.fill[i] < this.blockSize) return true;
    return false;
  }

  // forget(): what comes next is taken whatever epoch it shows, so that time can be moved back.
  forget() {
    this.epoch.fill(-1);
    this.at = 0;
  }
}

// ---- colours --------------------------------------------------------------------------------------------

// The same for light and dark where they can be; blue, orange, green and violet are told apart by most who confuse colours.
export const PALETTES = {
  light: {states: ['#dfe4eb', '#2f7fd0', '#e8940a', '#2f9e77', '#b566a4', '#8490a0', '#b4bdc9', '#f4f6f8'], ink: '#101820'},
  dark: {states: ['#232d39', '#3f93e6', '#f2ab32', '#2fae86', '#cf82bf', '#8a96a5', '#515d6b', '#151b23'], ink: '#f4f7fa'},
};
// Few references to many; an empty block to a full one; new to old.
const RAMPS = {
  light: {refs: [[207, 224, 243], [122, 30, 20]], fill: [[214, 229, 245], [18, 70, 140]], age: [[214, 73, 20], [226, 222, 214]]},
  dark: {refs: [[44, 70, 102], [255, 186, 120]], fill: [[38, 54, 74], [126, 196, 255]], age: [[255, 150, 70], [48, 46, 52]]},
};
const REFS_STEPS = 8, AGE_STEPS = 12;

export function hexToRgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function mix([a, b], share) {
  return a.map((v, i) => Math.round(v + (b[i] - v) * share));
}

// hueOf(id): far apart for ids that follow each other, [0, 360).
export function hueOf(id) {
  return (id * 137.50776405) % 360;
}

export function hslToRgb(h, s, l) {
  const a = s * Math.min(l, 1 - l);
  return [0, 8, 4].map((n) => {
    const k = (n + h / 30) % 12;
    return Math.round(255 * (l - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  });
}

// ageStep(seconds): 0 (now) to AGE_STEPS - 1 (a quarter of an hour and more), by powers of two.
export function ageStep(seconds) {
  return Number.isFinite(seconds) ? Math.max(0, Math.min(AGE_STEPS - 1, Math.ceil(Math.log2(Math.max(seconds, 0.25)) + 2))) : AGE_STEPS - 1;
}

// cellColour(store, i, mode, theme, now): [r, g, b] of a cell.
export function cellColour(store, i, mode, theme, now) {
  const palette = PALETTES[theme], code = store.state[i];
  if (mode === 'state' || code >= FOREIGN) return hexToRgb(palette.states[code]);
  if (mode === 'age') return mix(RAMPS[theme].age, ageStep(now - store.touched[i]) / (AGE_STEPS - 1));
  if (code === 0) return hexToRgb(palette.states[code]);
  if (mode === 'refs') return mix(RAMPS[theme].refs, Math.min(store.refs[i], REFS_STEPS) / REFS_STEPS);
  if (mode === 'fill') return mix(RAMPS[theme].fill, Math.min(1, store.fill[i] / store.blockSize));
  const owner = store.owner[i];
  if (owner === 0) return hexToRgb(palette.states[code]);
  return hslToRgb(hueOf(owner), 0.62, theme === 'dark' ? 0.6 : 0.48);
}

// cellKey(store, i, mode, now): a number; cells with the same one have the same colour.
export function cellKey(store, i, mode, now) {
  const code = store.state[i];
  if (mode === 'state' || code >= FOREIGN) return code;
  const first = UNKNOWN + 1; // behind the codes
  if (mode === 'age') return first + ageStep(now - store.touched[i]);
  if (code === 0) return 0;
  if (mode === 'refs') return first + Math.min(store.refs[i], REFS_STEPS);
  if (mode === 'fill') return first + Math.min(store.fill[i], store.blockSize);
  const owner = store.owner[i];
  return owner === 0 ? code : first + owner;
}

// legendOf(mode, theme, blockSize): [[[r, g, b], label], ...] of a mode other than state.
export function legendOf(mode, theme, blockSize) {
  const steps = {
    refs: [0, 1, 2, 4, 8].map((n) => [n / REFS_STEPS, n === 8 ? '8 or more' : String(n)]),
    fill: [0, 0.25, 0.5, 0.75, 1].map((x) => [x, `${Math.round(x * blockSize)}`]),
    age: [[0, 'now'], [4, '4 s'], [7, '32 s'], [9, '2 min'], [11, '8 min, or not seen']].map(([n, t]) => [n / (AGE_STEPS - 1), t]),
  }[mode];
  return (steps ?? []).map(([share, label]) => [mix(RAMPS[theme][mode], share), label]);
}

// contrast([r, g, b], [r, g, b]): the ratio of WCAG 2.
export function contrast(a, b) {
  const light = (rgb) => rgb.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
}

// ---- the map's grid ---------------------------------------------------------------------------------------

export const CELL_MAX = 60;

// columnsOf(width, cell): how many cells are in a row: a multiple of 8, so that ids can be counted, where there is room for that.
export function columnsOf(width, cell) {
  const all = Math.max(1, Math.floor(width / cell));
  return all > 8 ? all - all % 8 : all;
}

// fitCell(count, width, height, max): the largest whole-pixel cell at which `count` cells fit, eight in a row if there are so many; at least 2.
export function fitCell(count, width, height, max = CELL_MAX) {
  for (let cell = max; cell > 2; cell--) {
    const columns = columnsOf(width, cell);
    if (columns >= Math.min(8, count) && Math.ceil(count / columns) * cell <= height) return cell;
  }
  return 2;
}

// gapOf(cell): pixels between cells of that size.
export function gapOf(cell) {
  return cell >= 12 ? 2 : cell >= 5 ? 1 : 0;
}

// ---- sequences ----------------------------------------------------------------------------------------------

// holdersOf(sequences): block -> ids of the sequences that have it.
export function holdersOf(sequences) {
  const holders = new Map();
  for (const s of sequences) {
    for (const block of s.blocks ?? []) {
      const ids = holders.get(block);
      if (ids) ids.push(s.id);
      else holders.set(block, [s.id]);
    }
  }
  return holders;
}

// tiesOf(sequence, holders): [{ids: [2, 3], blocks: [0, 1]}, ...], the blocks that it has in common with others, by those others.
export function tiesOf(sequence, holders) {
  const ties = new Map();
  for (const block of sequence.blocks ?? []) {
    const ids = (holders.get(block) ?? []).filter((id) => id !== sequence.id), key = ids.join();
    if (!ids.length) continue;
    if (ties.has(key)) ties.get(key).blocks.push(block);
    else ties.set(key, {ids, blocks: [block]});
  }
  return [...ties.values()];
}

// rangesText([0, 1, 2, 5]) = "0–2 and 5"
export function rangesText(blocks, most = 4) {
  const parts = [];
  for (let i = 0, k; i < blocks.length; i = k) {
    for (k = i + 1; k < blocks.length && blocks[k] === blocks[k - 1] + 1; k++);
    parts.push(k - i > 2 ? `${blocks[i]}–${blocks[k - 1]}` : blocks.slice(i, k).join(', '));
  }
  return list(parts, most);
}

// blocksText([0, 1]) = "blocks 0, 1"
export const blocksText = (blocks, most) => `${blocks.length === 1 ? 'block' : 'blocks'} ${rangesText(blocks, most)}`;
// sequencesOfAll(scheduler): sequences of all keys, by the scheduler's figures.
export const sequencesOfAll = ({idle, queued, running, swapped}) => idle + queued + running + swapped;
// sequencesText([4]) = "sequence 4"
export const sequencesText = (ids, most) => `${ids.length === 1 ? 'sequence' : 'sequences'} ${list(ids, most)}`;

// forkTree(sequences): the tables as a tree in which what several begin with is there once.
//
// A node is a run of blocks that the same sequences have, in columns [from, from + blocks.length); its row is that of its first leaf. What
// is saved is what the other holders of a run would need. Sequences without blocks are not in it.
//
//     7  [0][1][2]                 nodes: [0][1] of 7, 8 and 9;  [2] of 7;  [5] of 8;  [6][7] of 9
//     8     |  [5]
//     9     `--[6][7]              4 saved
export function forkTree(sequences) {
  const rows = [], nodes = [], all = sequences.filter((s) => s.blocks?.length).sort((a, b) => a.id - b.id);
  const todo = [];
  // Those of `members` that go on behind `from`, by the block that they go on with, the oldest first; those that end there have their rows now.
  const split = (members, from, parent) => {
    const groups = new Map();
    for (const s of members) {
      const group = groups.get(s.blocks[from]);
      if (s.blocks.length <= from) rows.push(s.id);
      else if (group) group.push(s);
      else groups.set(s.blocks[from], [s]);
    }
    for (const group of [...groups.values()].reverse()) todo.push({group, from, parent});
  };
  split(all, 0, -1);
  while (todo.length) {
    const {group, from, parent} = todo.pop(), {blocks} = group[0];
    let to = from + 1;
    while (to < blocks.length && group.every((s) => s.blocks[to] === blocks[to])) to++;
    nodes.push({row: rows.length, rows: group.length, from, blocks: blocks.slice(from, to), ids: group.map((s) => s.id), parent});
    split(group, to, nodes.length - 1);
  }
  return {rows, nodes, saved: nodes.reduce((n, node) => n + node.blocks.length * (node.rows - 1), 0), columns: all.reduce((n, s) => Math.max(n, s.blocks.length), 0)};
}

// ---- server-sent events -----------------------------------------------------------------------------------

// Takes text in pieces, gives whole events: {id, event, data}.
export class EventReader {
  constructor() {
    this.rest = '';
    this.clear();
  }

  clear() {
    this.next = {id: undefined, event: 'message', data: []};
  }

  push(text) {
    const events = [], lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop();
    for (const line of lines) {
      if (line === '') {
        if (this.next.data.length) events.push({...this.next, data: this.next.data.join('\n')});
        this.clear();
        continue;
      }
      const colon = line.indexOf(':'), name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
      if (name === 'data') this.next.data.push(value);
      else if (name === 'id') this.next.id = value;
      else if (name === 'event') this.next.event = value;
    }
    return events;
  }
}

// ---- words ------------------------------------------------------------------------------------------------

export function bytesText(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return `${n >= 100 || i === 0 || Number.isInteger(n) ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

export function secondsText(s) {
  if (!Number.isFinite(s)) return '–';
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${(s * 1e3).toFixed(s < 0.1 ? 1 : 0)} ms`;
  if (s < 120) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  return s < 7200 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
}

// idleText(s): a time that is seen to go on, in whole seconds.
export const idleText = (s) => s < 1 ? 'just used' : `${secondsText(Math.floor(s)).replace('.0', '')} idle`;

export function countText(n) {
  return Number.isFinite(n) ? Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, '\u202f') : '–';
}

// figureText(0.01234) = "0.0123"; large ones in whole numbers.
export function figureText(v) {
  if (typeof v !== 'number') return v === null || v === undefined ? 'not measured' : String(v);
  return Number.isInteger(v) || Math.abs(v) >= 100 ? countText(v) : String(Number(v.toPrecision(3)));
}

// plural(2, 'block') = "2 blocks"
export function plural(n, word) {
  return `${countText(n)} ${word}${n === 1 ? '' : 's'}`;
}

// list([1, 2, 3]) = "1, 2 and 3"; of many the first ones.
export function list(items, most = 6) {
  const shown = items.slice(0, most).map(String);
  if (items.length > most) return `${shown.join(', ')} and ${items.length - most} more`;
  return shown.length < 2 ? shown.join('') : `${shown.slice(0, -1).join(', ')} and ${shown.at(-1)}`;
}

// actedOn(path, answer): the sequences and leases that a request was about, or has made.
export function actedOn(path, answer) {
  const [, what, id] = /^\/v1\/(sequences|leases|append)\b(?:\/(\d+))?/.exec(path) ?? [];
  return what ? [Number(id), answer?.id, ...(answer?.sequences ?? []).map((s) => s.id)].filter((n) => n > 0) : [];
}

// changeText(event): a block or sequence event in a sentence.
export function changeText(e) {
  const of = e.sequence ? ` by sequence ${e.sequence}` : ''; // or a lease
  const block = `block ${e.block}`, who = `${e.lease ? 'lease' : 'sequence'} ${e.sequence}`;
  switch (e.change) {
    case 'taken': return `${block} taken${of}`;
    case 'shared': return `${block} shared: ${plural(e.refs, 'reference')}`;
    case 'unshared': return `${block} has ${plural(e.refs, 'reference')} left`;
    case 'copied': return `block ${e.from} copied to block ${e.block}${of}, which wrote to it while it was shared`;
    case 'published': return `${block} published: prompts that begin alike find it`;
    case 'evicted': return `${block} evicted from the prefix cache`;
    case 'unpublished': return `${block} no longer published: its holder writes to it`;
    case 'cached': return `${block} held by nobody, kept in the prefix cache`;
    case 'fenced': return `${block} given back while a step may still touch it`;
    case 'swapped_out': return `${block} swapped out to host memory${e.host_block === undefined ? '' : `, to host block ${e.host_block}`}`;
    case 'swapped_in': return `${block} swapped in from host memory`;
    case 'parked': return `${block} kept for sequence ${e.sequence}, which is swapped out`;
    case 'unparked': return `${block} no longer kept for a sequence that is swapped out`;
    case 'freed': return `${block} given back`;
    case 'created': return `${who} created`;
    case 'forked': return `${who} forked from sequence ${e.parent}${e.blocks === undefined ? '' : `: ${plural(e.blocks, 'block')} shared`}`;
    case 'truncated': return `${who} cut to ${plural(e.length, 'token')}`;
    case 'ended': return `${who} ended${e.reason ? ` (${e.reason})` : ''}`;
    default: return String(e.change ?? 'changed');
  }
}

// firstWorkload(tokens): what the form for workloads begins with where the pool has room for so many tokens.
//
// Its sequences should live long enough to be looked at, and all of it should end in a minute or a few. With the built-in pool of 65 536
// tokens there are 4 requests of 7500 tokens with 3 forks each, two requests at a time: a sequence lives 20 s where K and V are read with
// 20 GB/s. A pool of less than LONG_TOKENS is too small for that: config/tiny.jsonc has 256 tokens, and gets 9000 requests of 38 that take
// milliseconds each, half a minute of arrivals.
const DECODE_MAX = 7500, DECODE_ALL = 4 * DECODE_MAX, LONG_TOKENS = 3200;
export function firstWorkload(tokens) {
  const each = tokens / 4; // a request has three forks
  if (tokens >= LONG_TOKENS) {
    const prompt = 40, decode = Math.min(DECODE_MAX, Math.floor(each * 0.9) - prompt);
    return {count: Math.ceil(DECODE_ALL / decode), prompt, decode, prefix: 32, rate: 1};
  }
  const decode = Math.max(1, Math.floor(each * 0.6)), rate = Math.ceil(11400 / decode), prompt = Math.max(1, Math.floor(each / 4));
  return {count: 30 * rate, prompt, decode, prefix: Math.floor(prompt / 2), rate};
}

// arrivalsText(w): how many of its requests are still to come, and when the next one does.
export function arrivalsText({arrivals}) {
  return arrivals?.left ? `${countText(arrivals.left)} to come${arrivals.next_s === null ? '' : `, the next in ${secondsText(arrivals.next_s)}`}` : '';
}

// verifyText(w): what is known of the outputs of a workload that has ended: nothing when it was cancelled.
export function verifyText({state, verify}) {
  if (!verify) return '';
  if (typeof verify.ok !== 'boolean') return `not verified (${state})`;
  return verify.ok ? `${plural(verify.done, 'row')} verified` : 'verification failed';
}

// waitText(w): why something waits, in the daemon's own words where it has some.
export function waitText(w) {
  if (w.detail) return w.detail;
  const parts = [];
  if (w.needed !== undefined && w.needed !== null)
    parts.push(`needs ${plural(w.needed, 'block')}; ${countText(w.free)} free, ${countText(w.reclaimable)} can be reclaimed`);
  if (w.behind) parts.push(`behind ${w.behind.kind} ${w.behind.id ?? 'of another key'}`);
  return parts.join('; ') || String(w.reason ?? 'waits');
}

// scopesDenied({name: 'eve', scopes: ['read']}): scope -> why, of those that buttons need and the key of /v1/info lacks, in the daemon's words.
// A daemon without keys has no such member, and denies none.
export function scopesDenied(key) {
  return new Map(key ? ['infer', 'admin'].filter((scope) => !key.scopes.includes(scope)).map((scope) => [scope, `the key "${key.name}" lacks the scope ${scope}`]) : []);
}

// scopeLacked(problem): "infer" of 'the key "eve" lacks the scope infer'.
export function scopeLacked(problem) {
  return problem?.status === 403 ? /lacks the scope ([a-z]+)$/.exec(problem.detail ?? '')?.[1] ?? null : null;
}
