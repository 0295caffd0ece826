// SPDX-License-Identifier: Apache-2.0
// observe.js - what waits and why, the latest steps, the prefix cache, the life of a block, and what is checked.
import {$, context2d, fill, h, setText, swatch, update} from './dom.js';
import {changeText, countText, hexToRgb, list, plural, secondsText, waitText} from './pure.js';

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
    setText($('waiting-sum'), count ? `${plural(count, 'call')} and requests wait${others ? `, and ${countText(others)} of other keys` : ''}.`
      : others ? `${countText(others)} of other keys wait.` : 'Nothing waits.');
    const key = (w) => `${w.kind} ${w.request} ${w.workload} ${w.sequences}`;
    update($('waiting-list'), items, key, () => h('li', {}, h('div', {class: 'row-head'}, h('b', {}), h('span', {class: 'right'})), h('p', {}), h('progress', {max: 1, value: 0})),
      (e, w) => this.draw1(e, w));
  }

  draw1(e, w) {
    const [head, why, bar] = e.children;
    setText(head.firstElementChild, [w.kind, w.sequences?.length ? `of sequence ${list(w.sequences)}` : '', w.workload ? `workload ${w.workload}` : '', w.request ? `request ${w.request}` : '', w.owner ?? '']
      .filter(Boolean).join(' · '));
    setText(head.lastElementChild, `for ${secondsText(w.since_s)}${w.estimate_s === null || w.estimate_s === undefined ? '' : `, about ${secondsText(w.estimate_s)} more`}`);
    setText(why, waitText(w));
    bar.hidden = !(w.needed > 0);
    if (w.needed > 0) {
      bar.value = Math.min(1, (w.free + w.reclaimable) / w.needed);
      bar.setAttribute('aria-label', `${countText(w.free + w.reclaimable)} of ${countText(w.needed)} blocks that it needs are there`);
    }
  }
}

// ---- steps ------------------------------------------------------------------------------------------------

const STEPS = 1000;
const PHASES = [['queue_us', 'queue', '#8f9bab'], ['plan_us', 'planning', '#b566a4'], ['upload_us', 'upload', '#e8940a'], ['compute_us', 'compute', '#2f7fd0'],
  ['merge_us', 'merge', '#2f9e77'], ['idle_us', 'idle', '#d5c25a']];
const ROWS = [['rows_clients', 'rows of clients', '#5a9bdc'], ['rows_workloads', 'rows of workloads', '#46b18c']];
const FACTS = [['step', 'step'], ['rows_clients', 'rows of clients'], ['rows_workloads', 'rows of workloads'], ['sequences', 'sequences'], ['appends', 'appended tokens'],
  ['copies', 'blocks copied'], ['swaps', 'blocks swapped'], ['queue_us', 'queue, µs'], ['plan_us', 'planning, µs'], ['upload_us', 'upload, µs'], ['compute_us', 'compute, µs'],
  ['merge_us', 'merge, µs'], ['idle_us', 'idle before it, µs'], ['ideal_us', 'ideal at the roof, µs'], ['gb_per_s', 'K and V, GB/s'], ['roof_fraction', 'share of the roof']];

export class StepsView {
  constructor(app) {
    this.app = app;
    this.message = $('steps-message');
    this.path = '/v1/steps';
    this.instead = 'The figures above have steps a second, GB/s and the share of the roof.';
    this.steps = [];
    this.next = undefined;
    this.chosen = null;
  }

  requests() {
    return [{path: this.path, query: {limit: STEPS}}, {path: '/v1/trace', query: {steps: 100}}];
  }

  wire() {
    fill($('steps-legend'), [...ROWS, ...PHASES].map(([, label, colour]) => h('li', {}, swatch(hexToRgb(colour)), label)), h('li', {}, 'line: ideal time at the roof'), h('li', {}, 'lowest: share of the roof'));
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
    const {next, columns} = await this.app.api.json(this.path, {query: {limit: STEPS, since: this.next}, signal});
    const names = Object.keys(columns), last = this.steps.at(-1)?.step ?? -1;
    (columns.step ?? []).forEach((step, i) => { if (step > last) this.steps.push(Object.fromEntries(names.map((n) => [n, columns[n][i]]))); });
    this.steps.splice(0, this.steps.length - STEPS);
    this.next = next ?? this.next;
    this.draw();
  }

  choose(at) {
    if (at < this.first || at >= this.steps.length) return;
    this.chosen = at;
    this.draw();
  }

  draw() {
    if (this.app.tab !== 'steps') return;
    const {steps} = this, n = steps.length, latest = steps[this.chosen ?? n - 1];
    setText($('steps-sum'), n ? `Steps ${countText(steps[0].step)} to ${countText(steps[n - 1].step)}` : 'No step yet. Start a workload.');
    const text = (name) => latest[name] === null || latest[name] === undefined ? 'not measured' : typeof latest[name] === 'number' && !Number.isInteger(latest[name]) ? latest[name].toPrecision(3) : countText(latest[name]);
    update($('step-table').tBodies[0], latest ? FACTS : [], ([name]) => name, ([, label]) => h('tr', {}, h('th', {scope: 'row'}, label), h('td', {})), (e, [name]) => setText(e.lastElementChild, text(name)));
    $('steps').hidden = n === 0;
    if (n) this.paint();
  }

  paint() {
    const {steps} = this, k = window.devicePixelRatio || 1, all = Math.floor($('view-steps').clientWidth * k);
    const wide = this.wide = Math.max(1, Math.floor(all / STEPS)), columns = Math.floor(all / wide), first = this.first = Math.max(0, steps.length - columns);
    const heights = [46, 120, 34].map((v) => Math.round(v * k)), space = Math.round(6 * k), width = columns * wide, height = heights.reduce((a, b) => a + b) + 2 * space;
    const c = context2d($('steps'), width, height), style = getComputedStyle(document.documentElement), shown = steps.slice(first);
    const sum = (s, parts) => parts.reduce((v, [name]) => v + (s[name] ?? 0), 0);
    // a few very long steps would make all the others flat: the scale ends at the 98th of 100
    const scale = (values) => values.sort((a, b) => a - b)[Math.floor(values.length * 0.98)] || 1;
    const rowsMax = scale(shown.map((s) => sum(s, ROWS))), timeMax = scale(shown.map((s) => Math.max(sum(s, PHASES), s.ideal_us ?? 0)));
    c.clearRect(0, 0, width, height);
    const stack = (x, bottom, tall, s, parts, most) => {
      let y = bottom;
      for (const [name, , colour] of parts) {
        const size = Math.min(Math.round((s[name] ?? 0) / most * tall), y - (bottom - tall));
        c.fillStyle = colour;
        c.fillRect(x, y - size, wide, size);
        y -= size;
      }
    };
    const base = [heights[0], heights[0] + space + heights[1], height];
    shown.forEach((s, i) => {
      const x = i * wide;
      stack(x, base[0], heights[0], s, ROWS, rowsMax);
      stack(x, base[1], heights[1], s, PHASES, timeMax);
      c.fillStyle = style.getPropertyValue('--dim');
      const share = Math.min(1, s.roof_fraction ?? 0);
      c.fillRect(x, base[2] - Math.round(share * heights[2]), wide, Math.round(share * heights[2]));
      if (s.ideal_us !== null && s.ideal_us !== undefined) {
        c.fillStyle = style.getPropertyValue('--ink');
        c.fillRect(x, Math.max(base[1] - heights[1], base[1] - Math.round(s.ideal_us / timeMax * heights[1])), wide, Math.max(1, Math.round(k)));
      }
      if (s.copies || s.swaps) {
        c.fillStyle = style.getPropertyValue(s.swaps ? '--bad' : '--warn');
        c.fillRect(x, base[1] + 1, wide, space - 2);
      }
    });
    c.fillStyle = style.getPropertyValue('--line');
    for (const y of base) c.fillRect(0, y - 1, width, 1);
    if (this.chosen !== null && this.chosen >= first) {
      c.fillStyle = style.getPropertyValue('--ink');
      c.globalAlpha = 0.35;
      c.fillRect((this.chosen - first) * wide, 0, Math.max(wide, 1), height);
      c.globalAlpha = 1;
    }
  }
}

// ---- the prefix cache -------------------------------------------------------------------------------------

export class PrefixesView {
  constructor(app) {
    this.app = app;
    this.message = $('prefixes-message');
    this.path = '/v1/prefixes';
    this.instead = 'Cached blocks are those of that colour in the map.';
    this.everyMs = 1000;
  }

  requests() {
    return [{path: this.path, query: {limit: 100}}, {path: '/v1/trim', method: 'POST'}];
  }

  wire() {
    this.app.onPress($('trim-button'), async () => {
      const {dropped} = await this.app.api.json('/v1/trim', {method: 'POST'});
      this.app.say(`${plural(dropped, 'block')} dropped.`, this.message);
    }, this.message);
  }

  async load(signal) {
    const {items, next} = await this.app.api.json(this.path, {query: {limit: 100}, signal});
    setText($('prefixes-sum'), items.length ? `${plural(items.length, 'chain')}${next ? ', and more' : ''}` : 'Nothing is published: give token ids when a sequence is created.');
    update($('prefix-list'), items, (p) => p.chain, (p) => {
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
    this.everyMs = 2000;
  }

  requests() {
    return [{path: `/v1/blocks/${this.block}/history`}, {path: '/v1/blocks', query: {cursor: this.block || undefined, limit: 1}}];
  }

  wire() {
    $('block-number').addEventListener('change', () => this.choose(Number($('block-number').value)));
  }

  choose(block) {
    const last = (this.app.live?.count ?? 1) - 1;
    this.block = Math.max(0, Math.min(last, Math.floor(block) || 0));
    $('block-number').value = this.block;
    this.app.map.mark([this.block]);
    this.app.map.show(this.block);
    this.due = 0;
    fill($('block-life'));
    this.draw();
  }

  onEvent(e) {
    if (e.block === this.block) this.due = 0;
  }

  draw() {
    const {app} = this, s = app.shown;
    if (app.tab !== 'block' || !s) return;
    app.readOut(this.block);
    setText($('block-sum'), $('readout').textContent);
  }

  async load(signal) {
    this.draw();
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
    const {pool, sequences} = this.app.stats, {live} = this.app, sum = pool.free + pool.held + pool.cached + pool.fenced;
    const unknown = live.counts.at(-1), held = live.counts[1] + live.counts[2], agrees = held === pool.held && live.counts[2] === pool.shared && live.counts[3] === pool.cached;
    if (agrees || unknown) this.disagreedSince = null;
    else this.disagreedSince ??= performance.now();
    const late = this.disagreedSince !== null && performance.now() - this.disagreedSince > 3000;
    return [
      ['ready', this.ready === 'ready' ? 'good' : 'bad', 'The daemon takes requests', this.ready ?? 'asking'],
      ['sum', sum === pool.blocks ? 'good' : 'bad', 'Every block is in one state', `${countText(pool.free)} free + ${countText(pool.held)} held + ${countText(pool.cached)} cached + ${countText(pool.fenced)} fenced = ${countText(sum)} of ${countText(pool.blocks)}`],
      ['tokens', pool.tokens_physical <= pool.tokens_logical && pool.tokens_physical <= pool.held * pool.block_size ? 'good' : 'bad', 'Stored tokens fit the held blocks',
        `${countText(pool.tokens_logical)} tokens of ${plural(sequences.count, 'sequence')} stand in ${countText(pool.tokens_physical)} slots of ${countText(pool.held * pool.block_size)}`],
      ['map', unknown ? '' : agrees ? 'good' : late ? 'bad' : 'warn', 'The map agrees with the figures',
        unknown ? `${plural(unknown, 'block')} not read` : `${countText(held)} held, ${countText(live.counts[2])} of them shared, ${countText(live.counts[3])} cached${agrees ? '' : late ? '' : ', figures on their way'}`],
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
