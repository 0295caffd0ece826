// SPDX-License-Identifier: Apache-2.0
// observe.js - what waits and why, the latest steps, the prefix cache, the life of a block, and what is checked.
import {$, context2d, fill, h, setText, swatch, update} from './dom.js';
import {Problem} from './api.js';
import {OTHER, changeText, countText, figureText, hexToRgb, hslToRgb, hueOf, list, plural, secondsText, sequencesText, waitText} from './pure.js';

// ---- why does it wait -------------------------------------------------------------------------------------

export class WaitingView {
  constructor(app) {
    this.app = app;
    this.message = $('waiting-message');
    this.path = '/v1/waiting';
    this.instead = 'The figures above say how many calls are queued.';
  }

  requests() {
    return [{path: this.path}];
  }

  async load(signal) {
    const {items, count, others} = await this.app.api.json(this.path, {signal});
    setText($('waiting-sum'), count ? `${countText(count)} ${count === 1 ? 'call or request waits' : 'calls or requests wait'}${others ? `, and ${countText(others)} of other keys` : ''}.`
      : others ? `${countText(others)} of other keys ${others === 1 ? 'waits' : 'wait'}.` : 'Nothing waits.');
    const key = (w) => `${w.kind} ${w.request} ${w.workload} ${w.sequences}`;
    update($('waiting-list'), items, key, () => h('li', {}, h('div', {class: 'row-head'}, h('b', {}), h('span', {class: 'right'})), h('p', {}), h('progress', {max: 1, value: 0}), h('p', {class: 'dim'})),
      (e, w) => this.draw1(e, w));
  }

  draw1(e, w) {
    const [head, why, bar, sum] = e.children;
    setText(head.firstElementChild, [w.kind === 'workload' && w.workload ? `workload ${w.workload}` : w.kind, w.sequences?.length ? `of ${sequencesText(w.sequences)}` : '', w.kind !== 'workload' && w.workload ? `workload ${w.workload}` : '', w.request ? `request ${w.request}` : '', w.owner ?? '']
      .filter(Boolean).join(' · '));
    setText(head.lastElementChild, `for ${secondsText(w.since_s)}${w.estimate_s === null || w.estimate_s === undefined ? '' : `, about ${secondsText(w.estimate_s)} more`}`);
    setText(why, waitText(w));
    bar.hidden = sum.hidden = !(w.needed > 0);
    setText(sum, `${plural(w.needed ?? 0, 'block')} needed, ${countText(w.free ?? 0)} free, ${countText(w.reclaimable ?? 0)} can be reclaimed${w.behind ? `; behind ${w.behind.kind} ${w.behind.id ?? 'of another key'}` : ''}`);
    if (w.needed > 0) {
      bar.value = Math.min(1, (w.free + w.reclaimable) / w.needed);
      bar.setAttribute('aria-label', `${countText(w.free + w.reclaimable)} of ${plural(w.needed, 'block')} needed`);
    }
  }
}

// ---- steps ------------------------------------------------------------------------------------------------

const STEPS = 1000;
// Parts of a step, from below, each with what it is of it. Merging is a part of what the backend computes; waiting in the queue is no part of the step.
const PHASES = [['planning', '#c8589a', (s) => s.plan_us], ['upload', '#d08400', (s) => s.upload_us], ['compute', '#2f7fd0', (s) => (s.compute_us ?? 0) - (s.merge_us ?? 0)],
  ['merge', '#2f9e77', (s) => s.merge_us], ['idle', '#7d8790', (s) => s.idle_us]];
const ROWS = [['rows of clients', '#7a45e6', (s) => s.rows_clients], ['rows of workloads', '#94602a', (s) => s.rows_workloads]];
const OTHERS = 'other keys';
const hslHex = (hue) => '#' + hslToRgb(hue, 0.5, 0.55).map((v) => v.toString(16).padStart(2, '0')).join('');
const FACTS = [['step', 'step'], ['rows_clients', 'rows of clients'], ['rows_workloads', 'rows of workloads'], ['sequences', 'sequences'], ['appends', 'appended tokens, of clients at each layer'],
  ['copies', 'blocks copied'], ['swaps', 'blocks swapped'], ['queue_us', 'queue, µs'], ['plan_us', 'planning, µs'], ['upload_us', 'upload, µs'], ['compute_us', 'compute, µs'],
  ['merge_us', 'merge, µs'], ['idle_us', 'idle before it, µs'], ['ideal_us', 'ideal at the roof, µs'], ['gb_per_s', 'K and V, GB/s'], ['roof_fraction', 'share of the roof']];

export class StepsView {
  constructor(app) {
    this.app = app;
    this.message = $('steps-message');
    this.path = '/v1/steps';
    this.instead = 'The figures above have steps a second, GB/s and the share of the roof.';
    this.forget();
  }

  forget() {
    this.steps = [];
    this.next = undefined;
    this.chosen = null;
  }

  requests() {
    return [{path: this.path, query: {limit: STEPS}}, {path: '/v1/trace', query: {steps: 100}}];
  }

  wire() {
    const canvas = $('steps');
    canvas.addEventListener('mousemove', (e) => this.choose(this.first + Math.floor((e.clientX - canvas.getBoundingClientRect().left) * (window.devicePixelRatio || 1) / this.wide)));
    canvas.addEventListener('keydown', (e) => {
      const by = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[e.key];
      if (by === undefined) return;
      e.preventDefault();
      this.choose(this.chosen === null ? this.steps.length - 1 : Math.max(this.first, Math.min(this.steps.length - 1, this.chosen + by)));
    });
    this.app.onPress($('trace-button'), () => this.save(), this.message);
  }

  async save() {
    const answer = await this.app.api.fetch('/v1/trace', {query: {steps: 100}}), url = URL.createObjectURL(await answer.blob());
    h('a', {href: url, download: 'attnd-trace.json'}).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    this.app.say('Open it at ui.perfetto.dev.', this.message);
  }

  async load(signal) {
    const {next, columns, owners} = await this.app.api.json(this.path, {query: {limit: STEPS, since: this.next}, signal});
    const names = Object.keys(columns), last = this.steps.at(-1)?.step ?? -1;
    (columns.step ?? []).forEach((step, i) => {
      if (step <= last) return;
      const one = Object.fromEntries(names.map((n) => [n, columns[n][i]]));
      if (owners) one.owners = new Map(owners.map((o) => [o.owner ?? OTHERS, o.rows[i]]));
      this.steps.push(one);
    });
    this.steps.splice(0, this.steps.length - STEPS);
    this.next = next ?? this.next;
    this.draw();
  }

  choose(at) {
    if (at < this.first || at >= this.steps.length) return;
    this.chosen = at;
    this.draw();
  }

  // Whose rows there are, and what a step's time is made of.
  rowParts() {
    const names = new Set(this.steps.flatMap((s) => [...s.owners?.keys() ?? []]));
    return names.size ? [...names].map((name, i) => [`rows of ${name}`, hslHex(hueOf(i + 1)), (s) => s.owners?.get(name)]) : ROWS;
  }

  drawLegend(rows) {
    const items = [...rows.map(([label, colour]) => [label, colour]), ...PHASES.map(([label, colour]) => [label, colour]), ['line: ideal time at the roof'], ['ticks below: blocks copied or swapped']];
    update($('steps-legend'), items, ([label]) => label, ([label, colour]) => h('li', {}, colour && swatch(hexToRgb(colour)), label));
  }

  draw() {
    if (this.app.tab !== 'steps') return;
    const {steps} = this, n = steps.length, latest = steps[this.chosen ?? n - 1];
    setText($('steps-sum'), n > 1 ? `Steps ${countText(steps[0].step)} to ${countText(steps[n - 1].step)}${this.app.seesAll ? '' : ', of all keys'}` : n ? `Step ${countText(steps[0].step)}` : 'No step yet. Start a workload.');
    update($('step-table').tBodies[0], latest ? FACTS : [], ([name]) => name, ([, label]) => h('tr', {}, h('th', {scope: 'row'}, label), h('td', {})), (e, [name]) => setText(e.lastElementChild, figureText(latest[name])));
    $('steps').hidden = n === 0;
    if (n) this.paint();
  }

  paint() {
    const {steps} = this, k = window.devicePixelRatio || 1, all = Math.floor($('view-steps').clientWidth * k);
    const wide = this.wide = Math.max(1, Math.floor(all / STEPS)), columns = Math.floor(all / wide), first = this.first = Math.max(0, steps.length - columns);
    const heights = [44, 120, 24, 30].map((v) => Math.round(v * k)), space = Math.round(7 * k), head = Math.round(17 * k), width = columns * wide, height = heights.reduce((a, b) => a + b + space + head, 0);
    const c = context2d($('steps'), width, height), style = getComputedStyle(document.documentElement), shown = steps.slice(first), rows = this.rowParts();
    const [ink, dim, line, bad, warn] = ['--ink', '--dim', '--line', '--bad', '--warn'].map((name) => style.getPropertyValue(name));
    const sum = (s, parts) => parts.reduce((v, [, , of]) => v + (of(s) ?? 0), 0);
    // a few very long steps would make all the others flat: a scale ends at the 98th of 100
    const scale = (values) => values.sort((a, b) => a - b)[Math.floor(values.length * 0.98)] || 1;
    const most = {rows: scale(shown.map((s) => sum(s, rows))), time: scale(shown.map((s) => Math.max(sum(s, PHASES), s.ideal_us ?? 0))), queue: scale(shown.map((s) => s.queue_us ?? 0))};
    const base = heights.map((_, i) => heights.slice(0, i + 1).reduce((a, b) => a + b) + i * space + (i + 1) * head);
    const bar = (x, strip, share, from = 0) => {
      const size = Math.min(Math.round(share * heights[strip]), heights[strip] - from);
      c.fillRect(x, base[strip] - from - size, wide, size);
      return from + size;
    };
    const stack = (x, strip, s, parts, all) => {
      let from = 0;
      for (const [, colour, of] of parts) {
        c.fillStyle = colour;
        from = bar(x, strip, (of(s) ?? 0) / all, from);
      }
    };
    this.drawLegend(rows);
    c.clearRect(0, 0, width, height);
    shown.forEach((s, i) => {
      const x = i * wide;
      stack(x, 0, s, rows, most.rows);
      stack(x, 1, s, PHASES, most.time);
      c.fillStyle = dim;
      bar(x, 2, (s.queue_us ?? 0) / most.queue);
      bar(x, 3, Math.min(1, s.roof_fraction ?? 0));
      if (s.ideal_us !== null && s.ideal_us !== undefined) {
        c.fillStyle = ink;
        c.fillRect(x, Math.max(base[1] - heights[1], base[1] - Math.round(s.ideal_us / most.time * heights[1])), wide, Math.max(1, Math.round(k)));
      }
      if (s.copies || s.swaps) {
        c.fillStyle = s.swaps ? bad : warn;
        c.fillRect(x, base[1] + 2, wide, space - 3);
      }
    });
    c.font = `${Math.round(12 * k)}px system-ui, sans-serif`;
    c.textBaseline = 'bottom';
    c.fillStyle = dim;
    [`rows, up to ${countText(most.rows)}`, `time of a step, up to ${secondsText(most.time / 1e6)}`, shown.some((s) => s.queue_us > 0) ? `longest wait in the queue, up to ${secondsText(most.queue / 1e6)}` : 'wait in the queue: none', 'share of the roof, up to 100 %']
      .forEach((text, i) => c.fillText(text, 0, base[i] - heights[i] - Math.round(2 * k)));
    c.fillStyle = line;
    for (const y of base) c.fillRect(0, y - 1, width, 1);
    if (this.chosen !== null && this.chosen >= first) {
      c.fillStyle = ink;
      c.globalAlpha = 0.35;
      c.fillRect((this.chosen - first) * wide, 0, Math.max(wide, 1), height);
      c.globalAlpha = 1;
    }
  }
}

// ---- the prefix cache -------------------------------------------------------------------------------------

const CHAINS = 200, CHAINS_ASKED = 1000, CHAIN_PAGES = 16;

export class PrefixesView {
  constructor(app) {
    this.app = app;
    this.message = $('prefixes-message');
    this.path = '/v1/prefixes';
    this.instead = 'Cached blocks are those of that colour in the map.';
    this.everyMs = 1000;
  }

  requests() {
    return [{path: this.path, query: {limit: CHAINS_ASKED}}, {path: '/v1/trim', method: 'POST'}];
  }

  wire() {
    this.app.onPress($('trim-button'), async () => {
      const {dropped} = await this.app.api.json('/v1/trim', {method: 'POST'});
      this.app.say(`${plural(dropped, 'block')} dropped.`, this.message);
    }, this.message);
  }

  async load(signal) {
    const items = [];
    let next;
    for (let page = 0; page < CHAIN_PAGES && items.length < CHAINS && next !== null; page++) { // a page is by blocks: it may be short, or empty
      const answer = await this.app.api.json(this.path, {query: {limit: CHAINS_ASKED, cursor: next}, signal});
      items.push(...answer.items);
      next = answer.next ?? null;
    }
    const place = (chain) => chain.evicted_next ?? Number.MAX_SAFE_INTEGER;
    items.sort((a, b) => place(a) - place(b));
    setText($('prefixes-sum'), items.length ? `${plural(items.length, 'chain')}${next !== null ? ', and more' : ''}` : 'Nothing is published: give token ids when a sequence is created.');
    update($('prefix-list'), items.slice(0, CHAINS), (p) => p.chain, (p) => {
      const row = h('tr', {}, ...Array.from({length: 7}, () => h('td', {})));
      row.addEventListener('mouseenter', () => this.app.map.mark(row.chain.blocks ?? []));
      row.addEventListener('mouseleave', () => this.app.map.mark([]));
      return row;
    }, (row, p) => {
      row.chain = p;
      const goes = p.evicted_next === null || p.evicted_next === undefined ? 'held' : p.evicted_next <= 1 ? 'next' : `after ${countText(p.evicted_next - 1)}`;
      [p.salted ? `${p.chain} salted` : p.chain, countText(p.tokens), p.blocks ? list(p.blocks, 4) : '–', countText(p.held), countText(p.hits), `${secondsText(p.last_used_s)} ago`, goes]
        .forEach((text, i) => setText(row.children[i], text));
    });
  }
}

// ---- the life of a block ----------------------------------------------------------------------------------

export class BlockView {
  constructor(app) {
    this.app = app;
    this.message = $('block-message');
    this.path = '/v1/blocks/{id}/history';
    this.instead = 'What it is now is above.';
    this.block = 0;
    this.none = null; // what was asked for and is no block
    this.everyMs = 2000;
  }

  requests() {
    return [{path: `/v1/blocks/${this.block}/history`}, {path: '/v1/blocks', query: {cursor: this.block || undefined, limit: 1}}];
  }

  wire() {
    $('block-number').addEventListener('change', () => this.choose(Number($('block-number').value)));
  }

  choose(block) {
    const count = this.app.live?.count ?? 1;
    this.none = Number.isInteger(block) && block >= 0 && block < count ? null : `there is no block ${block}: ids are 0..${count - 1}`;
    this.due = 0;
    if (this.none === null) {
      this.block = block;
      $('block-number').value = block;
      this.app.map.show(block);
    }
    this.app.map.mark(this.none === null ? [block] : []);
    fill($('block-life'));
    this.draw();
  }

  onEvent(e) {
    if (e.block === this.block) this.due = 0;
  }

  // sight(): what a refusal depends on: which block, and whether a sequence of this key has it. While it is the same, a refused one is not asked for again.
  sight() {
    const owner = this.app.live?.owner[this.block] ?? 0;
    return `${this.none ?? this.block} ${owner !== 0 && owner !== OTHER}`;
  }

  draw() {
    const {app} = this, s = app.shown;
    if (app.tab !== 'block' || !s) return;
    app.readOut(this.none === null ? this.block : -1);
    setText($('block-sum'), this.none === null ? $('readout').textContent : '');
  }

  async load(signal) {
    this.draw();
    if (this.none !== null) throw new Problem(404, {detail: this.none});
    const block = this.block, life = await this.app.api.json(`/v1/blocks/${block}/history`, {signal});
    if (block !== this.block) return;
    const changes = [...life.changes].reverse();
    let generation = null;
    fill($('block-life'), changes.length ? changes.flatMap((c) => {
      const line = h('li', {}, h('span', {class: 'when'}, countText(c.epoch)), h('span', {}, changeText({...c, block}), ` · ${plural(c.refs ?? 0, 'reference')}, ${plural(c.fill ?? 0, 'token')}`));
      const begins = c.generation !== generation;
      generation = c.generation;
      return begins ? [h('li', {class: 'dim'}, `generation ${c.generation}${c === changes[0] ? ' (now)' : ''}`), line] : [line];
    }) : h('li', {class: 'dim'}, 'It has not been used yet.'));
  }
}

// ---- invariants, audit, self-test -------------------------------------------------------------------------

const LATE_MS = 3000; // a map that disagrees for so long is wrong

export class ChecksView {
  constructor(app) {
    this.app = app;
    this.results = {};
    this.everyMs = 1000;
  }

  requests() {
    return [{path: '/readyz'}, {path: '/v1/audit', method: 'POST'}, {path: '/v1/selftest', method: 'POST'}];
  }

  wire() {
    for (const [name, path] of [['audit', '/v1/audit'], ['selftest', '/v1/selftest']]) {
      this.app.onPress($(`${name}-button`), async () => {
        this.results[name] = {lamp: '', text: 'running'};
        this.draw();
        const begin = performance.now();
        try {
          const answer = await this.app.api.json(path, {method: 'POST'});
          const what = name === 'audit' ? `${list(answer.checked, 20)} hold` : `kernel ${answer.kernel} agrees with the reference`;
          this.results[name] = {lamp: 'good', text: `${what} (${secondsText((performance.now() - begin) / 1000)}, at ${new Date().toLocaleTimeString()})`};
        } catch (problem) {
          this.results[name] = {lamp: 'bad', text: problem.detail ?? String(problem)};
        }
        this.draw();
      });
    }
  }

  async load(signal) {
    try {
      this.ready = (await this.app.api.json('/readyz', {signal})).status;
    } catch (problem) {
      this.ready = problem.detail;
    }
    this.draw();
  }

  // What the figures alone show to hold. The audit looks at everything.
  lights() {
    const {pool, sequences} = this.app.stats, {counts} = this.app.live, {seesAll} = this.app, sum = pool.free + pool.held + pool.cached + pool.fenced;
    // Of other keys' blocks it is not told how many references they have, nor that they are fenced.
    const [, one, shared, own, fenced, other, others] = counts, held = one + shared + other, cached = own + others, unknown = counts.at(-1);
    const agrees = cached === pool.cached && (seesAll ? held === pool.held && shared === pool.shared : held + fenced === pool.held + pool.fenced);
    if (agrees || unknown) this.disagreedSince = null;
    else this.disagreedSince ??= performance.now();
    const late = this.disagreedSince !== null && performance.now() - this.disagreedSince > LATE_MS && (seesAll || this.app.isCalm(LATE_MS));
    const whose = seesAll ? '' : ', of all keys';
    const map = seesAll ? `${countText(held)} held, ${countText(shared)} of them shared, ${countText(cached)} cached`
      : `${countText(held)} held, ${countText(other)} of them of other keys; ${countText(cached)} cached, ${countText(others)} of them of other keys`;
    return [
      ['ready', this.ready === 'ready' ? 'good' : this.ready ? 'bad' : '', 'The daemon takes requests', this.ready ?? 'asking'],
      ['sum', sum === pool.blocks ? 'good' : 'bad', 'Every block is in one state', `${countText(pool.free)} free + ${countText(pool.held)} held + ${countText(pool.cached)} cached + ${countText(pool.fenced)} fenced = ${countText(sum)} of ${countText(pool.blocks)}${whose}`],
      ['tokens', pool.tokens_physical <= pool.tokens_logical && pool.tokens_physical <= pool.held * pool.block_size ? 'good' : 'bad', 'Stored tokens fit the held blocks',
        `${plural(pool.tokens_logical, 'token')} of ${seesAll ? plural(sequences.count, 'sequence') : 'all keys'} in ${plural(pool.tokens_physical, 'slot')} of ${countText(pool.held * pool.block_size)}`],
      ['map', unknown ? '' : agrees ? 'good' : late ? 'bad' : 'warn', 'The map agrees with the figures',
        unknown ? `${plural(unknown, 'block')} not read` : `${map}${agrees || late ? '' : ', figures on their way'}`],
      ['audit', this.results.audit?.lamp ?? '', 'Audit of tables, counts and indices', this.results.audit?.text ?? 'not run from here yet'],
      ['selftest', this.results.selftest?.lamp ?? '', 'Self-test of the kernels', this.results.selftest?.text ?? 'not run from here yet'],
    ];
  }

  draw() {
    if (this.app.tab !== 'checks' || !this.app.stats) return;
    const words = {good: 'holds', bad: 'does not hold', warn: 'being read', '': 'not known'};
    update($('lights'), this.lights(), ([key]) => key, () => h('li', {class: 'light'}, h('span', {role: 'img'}), h('span', {}), h('span', {class: 'dim'})), (e, [key, lamp, name, text]) => {
      e.dataset.light = `${key} ${lamp}`;
      e.children[0].className = `lamp ${lamp}`;
      e.children[0].setAttribute('aria-label', words[lamp]);
      setText(e.children[1], name);
      setText(e.children[2], text);
    });
  }
}
