// SPDX-License-Identifier: Apache-2.0
// learn.js - a form that starts a workload, and the tour: six steps that ask the real API and say what changed in the map.
import {$, fill, h, setText, update} from './dom.js';
import {arrivalsText, bytesText, countText, firstWorkload, list, plural, secondsText, sequencesOfAll, verifyText, zerosBody, zerosLine} from './pure.js';

// ---- a workload -------------------------------------------------------------------------------------------

export class WorkloadView {
  constructor(app) {
    this.app = app;
    this.message = $('workload-message');
    this.everyMs = 500;
  }

  wire() {
    const form = $('workload-form');
    const shaped = () => { for (const name of ['prompt', 'decode']) form.elements[name].disabled = form.elements.shape.value !== ''; };
    form.elements.shape.addEventListener('change', shaped);
    form.addEventListener('submit', (e) => e.preventDefault());
    this.app.onPress(form.querySelector('button[type="submit"]'), () => form.reportValidity() ? this.start() : null, $('workload-message'));
  }

  // What the form begins with, as the pool has room for it; what was typed stays.
  suit(tokens) {
    for (const [name, value] of Object.entries(firstWorkload(tokens))) {
      const field = $('workload-form').elements[name];
      if (field.value === field.defaultValue) field.value = value;
    }
  }

  // What the form says, as the body of POST /v1/workloads.
  body() {
    const value = (name) => $('workload-form').elements[name].value, number = (name) => Number(value(name)) || 0;
    const count = number('count'), prefix = number('prefix'), forks = number('forks'), rate = number('rate'), verify = number('verify');
    const body = {};
    if (value('shape')) {
      Object.assign(body, {shape: value('shape'), count});
      if (prefix) body.prefix_share = {length: prefix};
      if (forks) body.fork_share = {count: forks};
    } else {
      const prompt = number('prompt'), one = {count, prompt, decode: number('decode')};
      if (prefix) one.prefix = {id: 1, length: prefix};
      if (forks) one.fork = {at: prompt + 1, count: forks};
      body.sequences = [one];
    }
    if (rate) body.arrival = {rate};
    if (verify) body.verify = {rows: verify};
    return body;
  }

  requests() {
    return [{path: '/v1/workloads', method: 'POST', body: this.body()}, {path: '/v1/workloads'}];
  }

  async start() {
    const {id} = await this.app.api.json('/v1/workloads', {method: 'POST', body: this.body()});
    this.due = 0;
    this.app.say(`Workload ${id} has begun.`, this.message);
  }

  async load(signal) {
    const {items} = await this.app.api.json('/v1/workloads', {signal});
    update($('workload-list'), items.slice(0, 16), (w) => w.id, (w) => this.makeRow(w), (e, w) => this.drawRow(e, w));
  }

  makeRow(w) {
    const cancel = this.app.button('Cancel', () => this.app.api.json(`/v1/workloads/${w.id}`, {method: 'DELETE'}), {scope: 'infer', message: this.message});
    return h('li', {}, h('div', {class: 'row-head'}, h('b', {}, `workload ${w.id}`), h('span', {}), h('span', {class: 'right'}), cancel), h('progress', {max: 1, value: 0, 'aria-label': `Workload ${w.id}: tokens done`}), h('p', {class: 'dim'}));
  }

  drawRow(e, w) {
    const [head, bar, text] = e.children, [, state, right, cancel] = head.children, ended = w.state === 'finished' || w.state === 'cancelled';
    setText(state, w.reason ? `${w.state} (${w.reason})` : w.state);
    setText(right, secondsText(w.wall_s));
    cancel.hidden = ended;
    bar.hidden = ended;
    bar.value = w.tokens.total ? w.tokens.done / w.tokens.total : 0;
    const parts = [`${countText(w.tokens.done)} of ${plural(w.tokens.total, 'token')}`, `${plural(w.sequences.running, 'sequence')} running, ${countText(w.sequences.waiting)} waiting`, arrivalsText(w), `${plural(w.forks, 'fork')}, ${countText(w.copies)} copied on write`,
      `${plural(w.pool.saved_peak, 'block')} of the pool saved at most`, w.preemptions ? plural(w.preemptions, 'preemption') : '', ended ? verifyText(w) : '', ended ? 'its sequences are gone' : ''];
    setText(text, parts.filter(Boolean).join(' · '));
  }
}

// ---- the tour ---------------------------------------------------------------------------------------------

const NAMES = ['create', 'append', 'fork', 'write', 'share', 'fill'];
const LEASES_MAX = 64;

export class TourView {
  constructor(app) {
    this.app = app;
    this.at = -1;        // the step that was done last
    this.lines = [];     // what the last step asked, for a shell
    this.sequences = []; // that it has made,
    this.leases = [];    // likewise, and how many blocks they have
    this.leased = 0;
    this.why = null;     // why the last step is left out
  }

  requests() {
    return this.lines.length ? this.lines : [{path: '/v1/sequences', method: 'POST', body: {}}];
  }

  wire() {
    fill($('tour-steps'), NAMES.map((name) => h('li', {}, name)));
    this.tell('How a paged cache works, in six steps', ['Each step asks this daemon for one thing and says what has changed in the map on the way. What the tour makes is removed at its end.']);
    this.app.onPress($('tour-next'), () => this.next());
    this.app.onPress($('tour-end'), () => this.end());
  }

  tell(title, paragraphs) {
    fill($('tour-text'), h('h3', {}, title), paragraphs.map((p) => h('p', {}, p)));
  }

  async next() {
    if (this.isLast) { await this.end(); return; }
    const step = this.at + 1;
    this.lines = [];
    try {
      const told = await this[NAMES[step]]();
      this.at = step;
      this.tell(told.title, told.text);
      this.app.map.mark(told.blocks ?? []);
      if (told.blocks?.length) this.app.map.show(told.blocks[0]);
    } catch (problem) {
      this.tell('This step was refused', [problem.detail ?? problem.message ?? String(problem), 'Press the button to try it again, or end the tour.']);
    }
    this.drawSteps();
  }

  // Nothing is to come: the last step was done, or is left out.
  get isLast() {
    return this.at === NAMES.length - 1 || this.why !== null;
  }

  draw() {
    if (this.app.tab === 'tour' && this.app.stats) this.drawSteps();
  }

  drawSteps() {
    this.why = this.at === NAMES.length - 2 && this.app.stats ? this.leftOut(this.app.stats) : null;
    this.app.say(this.why && `The last step is left out: ${this.why}`, $('tour-left-out'));
    [...$('tour-steps').children].forEach((e, i) => {
      e.className = i < this.at ? 'done' : '';
      if (i === this.at) e.setAttribute('aria-current', 'step');
      else e.removeAttribute('aria-current');
    });
    setText($('tour-next'), this.at < 0 ? 'Begin' : this.isLast ? 'Done' : `Next: ${NAMES[this.at + 1]}`);
    $('tour-end').hidden = this.at < 0 && !this.sequences.length;
    $('view-tour').dataset.step = NAMES[this.at] ?? '';
  }

  // ---- asking, and noting what was asked

  async ask(request) {
    this.lines.push(this.app.api.curl(request));
    return this.app.api.json(request.path, request);
  }

  async create(body = {}) {
    const made = await this.ask({path: '/v1/sequences', method: 'POST', body});
    this.sequences.push(made.id);
    if (Object.keys(body).length) return made;
    return {title: `Sequence ${made.id} exists, and the map is as it was`, blocks: [],
      text: ['A sequence is a list of blocks, its block table, and its table is empty: nothing is reserved for a sequence before it has tokens.']};
  }

  async write(sequence, tokens) {
    if (sequence === undefined) return this.copyOnWrite();
    const geometry = this.app.info.geometry, of = {sequence, tokens, geometry};
    const line = zerosLine({...of, base: this.app.api.base, keyed: this.app.api.keyed});
    this.lines.push(line ?? `# ${plural(tokens, 'token')} for sequence ${sequence}: a body of ${bytesText(zerosBody(of).length)} in safetensors, see docs/API.md`);
    await this.app.api.json('/v1/append', {method: 'POST', bytes: zerosBody(of)});
    return this.table(sequence);
  }

  async table(sequence) {
    return this.app.api.json(`/v1/sequences/${sequence}`);
  }

  get half() {
    return Math.max(1, this.app.info.geometry.block_size >> 1);
  }

  get first() {
    return this.sequences[0];
  }

  // ---- the steps

  async append() {
    const size = this.app.info.geometry.block_size, {blocks, length} = await this.write(this.first, size + this.half);
    this.table0 = blocks;
    return {title: `${length} tokens took ${plural(blocks.length, 'block')}: ${list(blocks)}`, blocks,
      text: [`A block has room for ${plural(size, 'token')}. Block ${blocks[0]} is full; block ${blocks[1]} has ${plural(length - size, 'token')}, and the bar in its cell says so. Both have one reference, so they are "held by one".`,
        'Blocks need not lie beside each other: the table says which ones they are, in token order.']};
  }

  async fork() {
    const {sequences} = await this.ask({path: `/v1/sequences/${this.first}/fork`, method: 'POST', body: {count: 2}});
    this.forks = sequences.map((s) => s.id);
    this.sequences.push(...this.forks);
    return {title: `Sequences ${list(this.forks)} have the same blocks, and nothing was copied`, blocks: sequences[0].blocks,
      text: [`The same blocks now have three references each, so they are "shared". Three sequences stand in the room of one: ${plural(2 * this.table0.length, 'block')} saved.`,
        'This is how several answers to one prompt, or the beams of a search, begin.']};
  }

  async copyOnWrite() {
    const [child] = this.forks, {blocks} = await this.write(child, 1), old = this.table0.at(-1), copy = blocks.at(-1);
    return {title: `Block ${old} was copied to block ${copy} before sequence ${child} wrote to it`, blocks: [old, copy],
      text: [`Its next token belongs into block ${old}, which is half full and shared. Others must not see it, so the block was copied first: copy on write. Sequence ${child} has block ${copy} for itself now.`,
        `Block ${old} has one reference less. Block ${blocks[0]} is full, so nobody writes to it and it stays shared by all three.`]};
  }

  async share() {
    const size = this.app.info.geometry.block_size, tokens = Array.from({length: 2 * size}, (_, i) => 7000 + i);
    const one = await this.create({tokens, salt: `tour ${this.first}`});
    if (one.cached_tokens < tokens.length) await this.write(one.id, tokens.length - one.cached_tokens);
    const two = await this.create({tokens, salt: `tour ${this.first}`});
    this.published = two.blocks;
    return {title: `Sequence ${two.id} began with ${plural(two.cached_tokens, 'token')} that were there already`, blocks: two.blocks,
      text: [`It has nothing to do with sequence ${one.id}, but names the same token ids. Full blocks are published under the hash of their tokens, and whoever comes with the same beginning finds them: blocks ${list(two.blocks)}.`,
        'When nobody holds them any more they are not free but "cached", and stay until their room is needed.']};
  }

  // leftOut(stats): why the pool cannot be filled; null: it can. Beside somebody else, of any key, it is not, as attnctl tour has it: their calls
  // would wait, and their sequences be swapped.
  leftOut({pool, scheduler, sequences, leases}) {
    const others = Math.max(0, sequencesOfAll(scheduler) - this.sequences.length), leased = Math.max(0, pool.leased - this.leased), n = others + leased;
    if (n > 0) {
      const who = [others ? plural(others, 'other sequence') : '', leased ? plural(leased, 'leased block') : ''].filter(Boolean).join(' and ');
      const own = this.app.seesAll || sequences.count > this.sequences.length || leases > this.leases.length;
      return `it takes all free blocks for a moment, and there ${n > 1 ? 'are' : 'is'} ${who} in this daemon${own ? `. Delete ${n > 1 ? 'them' : 'it'} to see it.` : ', of another key.'}`;
    }
    return (pool.free + pool.cached) / this.leaseBlocks > LEASES_MAX ? `the pool has ${countText(pool.blocks)} blocks, too many to fill for a tour.` : null;
  }

  // The most blocks of a lease.
  get leaseBlocks() {
    return Math.max(1, Math.floor(this.app.info.limits.sequence_tokens / this.app.info.geometry.block_size));
  }

  // Take what is free, so that what is cached has to go. On a daemon with host memory idle sequences are swapped out, too.
  async fill() {
    const why = this.leftOut(await this.app.api.json('/stats', {query: {limit: 1}}));
    if (why) throw new Error(why);
    for (const id of this.sequences.slice(-2)) await this.ask({path: `/v1/sequences/${id}`, method: 'DELETE'});
    this.sequences.splice(-2);
    const before = await this.app.api.json('/stats', {query: {limit: 1}}), {pool, counters} = before;
    const most = this.leaseBlocks, swaps = pool.host_free >= this.table0.length + 1;
    let wanted = pool.free + pool.cached + (swaps ? 1 : 0);
    while (wanted > 0) {
      const blocks = Math.min(most, wanted), lease = await this.ask({path: '/v1/leases', method: 'POST', body: {blocks}});
      this.leases.push(lease.id);
      this.leased += blocks;
      wanted -= blocks;
    }
    const after = await this.app.api.json('/stats', {query: {limit: 1}});
    const evicted = after.counters.evictions - counters.evictions, out = after.counters.swaps_out - counters.swaps_out;
    const states = await Promise.all(this.sequences.map((id) => this.table(id))), swapped = states.filter((s) => s.state === 'swapped').map((s) => s.id);
    return {title: out ? `The pool is full: ${plural(swapped.length, 'sequence')} had to give way` : 'The pool is full: what was cached had to give way', blocks: states.flatMap((s) => s.blocks),
      text: [`A lease took every block that was free. ${plural(evicted, 'cached block')} went first: nobody held them. Those of the step before were among them.`,
        out ? `One more block was asked for, so ${plural(out, 'block')} of idle sequences (${list(swapped)}) were copied to host memory. They come back when somebody uses them.`
          : pool.host_blocks ? 'Host memory has no room for the tour\'s sequences, so nothing was swapped out.'
            : 'This daemon has no host memory to swap to (pool.host_blocks is 0), so a call that needs a block now waits or is refused. Started with --set pool.host_blocks=64, idle sequences would be swapped out instead.',
        'The leases go with the last button, and their blocks are free then.']};
  }

  async end() {
    this.lines = [];
    const gone = (problem) => { if (problem.status !== 404 && problem.status !== 410) throw problem; };
    while (this.leases.length) {
      await this.ask({path: `/v1/leases/${this.leases.at(-1)}`, method: 'DELETE'}).catch(gone);
      this.leases.pop();
    }
    this.leased = 0;
    while (this.sequences.length) {
      await this.ask({path: `/v1/sequences/${this.sequences.at(-1)}`, method: 'DELETE'}).catch(gone);
      this.sequences.pop();
    }
    this.at = -1;
    this.app.map.mark([]);
    const {cached} = (await this.app.api.json('/stats', {query: {limit: 1}})).pool;
    this.tell('What the tour made is gone', [cached ? `Its blocks are free again. Where tokens had ids, blocks are "cached": nobody holds ${cached === 1 ? 'it' : 'them'}, and ${cached === 1 ? 'it goes' : 'they go'} when room is needed.`
      : 'Its blocks are free again.', 'Start a workload next, and watch the same things happen many times a second.']);
    this.drawSteps();
  }
}
