// SPDX-License-Identifier: Apache-2.0
// app.js - the page: what is shown, where it comes from, and when.
//
//   /v1/events  --- block events ---> live store --+--> map        While time is stopped the map shows another store, which was read at one
//   /v1/blocks  --- pages ----------> live store   |               epoch; the live one goes on behind it. A daemon without events is asked
//               --- ?epoch=E -------> past store --+               for all its blocks whenever the epoch of /stats has changed.
//   /stats      --- figures, sequences with their tables; of a past epoch /v1/tables has them
//
// Other views ask for what they show while they are to be seen. A hidden page asks for nothing.
import {Api, Problem} from './api.js';
import {BlockMap} from './map.js';
import {$, fill, h, setText, swatch, update} from './dom.js';
import {BlockStore, FOREIGN, OTHER, PALETTES, STATES, STATE_LABELS, actedOn, bytesText, changeText, countText, hexToRgb, legendOf, plural, scopeLacked, scopesDenied, secondsText, sequencesOfAll, sequencesText} from './pure.js';
import {SequencesView, TreeView} from './sequences.js';
import {BlockView, ChecksView, PrefixesView, StepsView, WaitingView} from './observe.js';
import {TourView, WorkloadView} from './learn.js';

const PAGE_BLOCKS = 4000;     // the most that /v1/blocks gives at once
const LOADERS = 6;            // requests at a time: what browsers allow a host
const PAINT_PAGES = 16;       // that are read between two paints of the map
const SWEEP_PAGES = 2;        // that are read again at a time, for how full blocks are,
const FOREIGN_PAGES = 4;      // and for blocks of other keys;
const SWEEP_BLOCKS = 1000;    // of so many
const POLL_MS = 400, VIEW_MS = 500;
const EPOCHS = 1024;          // that the slider reaches back, unless the daemon says that it has fewer
const IDLE_S = 2;             // without a step: there is no rate to show
const CHANGES_SHOWN = 5, OWN_SHOWN = 8;
const CHANGES_KEPT = 512;     // at least: a change may come before the answer that says whose it is
const NO_TABLES = {items: [], count: 0};
const OWN_LABELS = {'own sequences': 'sequences', 'own held': 'held blocks', 'own shared': 'of them shared', 'own cached': 'cached blocks'};
const seconds = () => performance.now() / 1000;
const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));

class App {
  constructor() {
    this.api = new Api({askKey: (problem) => this.askKey(problem), onKey: () => this.onKey(), onProblem: (p) => this.onProblem(p),
      onDone: (path, answer) => this.watch(actedOn(path, answer))});
    this.info = this.stats = this.live = this.past = null;
    this.stopped = null;        // the epoch that is shown; null: the present
    this.hasEvents = null;      // whether there is /v1/events; null: not known yet
    this.tables = NO_TABLES;    // of the sequences, now,
    this.pastTables = null;     // and at the epoch that is shown; null: not loaded yet
    this.changes = [];
    this.own = new Set();       // sequences and leases that were made, used or chosen on this page, and their forks;
    this.ownChanges = [];       // what has changed of these
    this.denied = new Map();    // scope -> why
    this.chosen = null;         // a sequence
    this.unswept = 0;           // of these pages, those that were not read since the state has changed
    this.map = new BlockMap({viewport: $('viewport'), canvas: $('map'), overlay: $('overlay'), spacer: $('spacer'),
      on: {hover: (i) => this.readOut(i), pick: (i) => this.showBlock(i)}});
    this.views = {};
    for (const [name, View] of Object.entries({sequences: SequencesView, tree: TreeView, waiting: WaitingView, steps: StepsView, prefixes: PrefixesView,
      block: BlockView, checks: ChecksView, workload: WorkloadView, tour: TourView}))
      this.views[name] = new View(this);
    this.tab = 'sequences';
  }

  // ---- start, and what a hidden page does not do

  async start() {
    this.setTheme(localStorage.getItem('attnd-theme') ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'));
    this.wire();
    document.addEventListener('visibilitychange', () => this.wake());
    $('key-button').addEventListener('click', () => { this.api.forgetKey(); location.reload(); });
    while (!this.info) {
      try {
        this.info = await this.api.json('/v1/info');
        const {pool, limits, geometry} = this.info;
        this.views.workload.suit(Math.min(pool.blocks * geometry.block_size, 4 * limits.sequence_tokens));
      } catch (problem) {
        this.say(problem.detail ?? String(problem));
        await sleep(1000);
      }
    }
    const {geometry: g, backend, pool, node, version} = this.info;
    fill($('what'), `node ${node} · ${backend.name} ${backend.isa || backend.device} · ${plural(g.layers, 'layer')}, ${g.query_heads}/${g.kv_heads} heads of ${g.head_dim}, ${g.kv_dtype} · ${
      plural(pool.blocks, 'block')} of ${plural(g.block_size, 'token')}, ${bytesText(pool.bytes_per_block)} each · ${version}`);
    $('block-number').max = pool.blocks - 1;
    this.live = new BlockStore(pool.blocks, g.block_size);
    this.past = new BlockStore(pool.blocks, g.block_size);
    this.map.setStore(this.live);
    this.wake();
    this.takeKey();
    this.drawLoop();
  }

  wake() {
    if (document.hidden) {
      this.run?.abort();
      this.run = null;
    } else if (!this.run && this.live) {
      this.run = new AbortController();
      this.follow(this.run.signal);
      this.poll(this.run.signal);
      this.refresh(this.run.signal);
    }
  }

  // ---- keys

  askKey(problem) {
    const dialog = $('key-dialog');
    setText($('key-why'), problem.detail);
    $('key').value = '';
    dialog.showModal();
    return new Promise((done) => {
      dialog.addEventListener('close', () => {
        const key = $('key').value.trim(), keep = $('key-keep').checked;
        $('key').value = '';
        $('key-button').hidden = false;
        done({key: /^[\x21-\x7e]+$/.test(key) ? key : 'none', keep}); // what no header can hold is refused by the daemon
      }, {once: true});
    });
  }

  // takeKey(): what the key may do, as /v1/info says. Without a key nothing is denied: the daemon asks for one.
  takeKey() {
    if (!this.api.keyed) return;
    $('key-button').hidden = false;
    this.denied = scopesDenied(this.info.key);
    for (const button of document.querySelectorAll('button[data-scope]')) this.guard(button);
  }

  // seesAll: whether the key is told what belongs to others. If not, sequences and their blocks are its own, and sums are of all keys.
  get seesAll() {
    return !this.info.key || this.info.key.scopes.includes('admin');
  }

  // isCalm(ms): nothing has changed for so long, and the map was read since.
  isCalm(ms) {
    return this.unswept === 0 && seconds() - this.statsAt > ms / 1000;
  }

  // Another key than before: it may do other things. Before the page has begun it asks for /v1/info anyhow.
  async onKey() {
    for (const view of Object.values(this.views)) delete view.refused;
    if (!this.live) return;
    this.info = await this.api.json('/v1/info');
    this.takeKey();
  }

  onProblem(problem) {
    const scope = scopeLacked(problem);
    if (scope && !this.denied.has(scope)) {
      this.denied.set(scope, problem.detail);
      for (const button of document.querySelectorAll(`button[data-scope="${scope}"]`)) this.guard(button);
    }
  }

  // guard(button): say of a button that the key's scopes do not allow it, and why; or no longer.
  guard(button) {
    const why = this.denied.get(button.dataset.scope);
    if (why) this.forbid(button, why);
    else if (scopeLacked({status: 403, detail: button.title})) for (const name of ['aria-disabled', 'title', 'aria-description']) button.removeAttribute(name);
  }

  // forbid(button, why): it stays where it is and says why when it is pressed.
  forbid(button, why) {
    button.setAttribute('aria-disabled', 'true');
    button.title = why;
    button.setAttribute('aria-description', why);
  }

  // button(label, f, {scope, ...}): one that shows what goes wrong.
  button(label, f, {scope, message, ...attributes} = {}) {
    const e = h('button', {type: 'button', dataset: scope ? {scope} : {}, ...attributes}, label);
    this.onPress(e, f, message);
    this.guard(e);
    return e;
  }

  onPress(button, f, message) {
    button.addEventListener('click', async (event) => {
      event.preventDefault();
      if (button.getAttribute('aria-disabled') === 'true') {
        this.say(button.title, message);
        return;
      }
      if (button.dataset.busy) return;
      button.dataset.busy = 'yes';
      try {
        this.say(null, message);
        await f();
      } catch (problem) {
        this.say(problem.detail ?? String(problem), message);
      } finally {
        delete button.dataset.busy;
      }
    });
  }

  // say(text, element): a message, at the top unless a view has a place of its own; null: none.
  say(text, e = $('notice')) {
    e.hidden = text === null;
    if (text !== null) setText(e, text);
  }

  link(state, text) {
    $('lamp').className = `lamp ${state}`;
    setText($('link-text'), text);
    this.heardAt = state === 'good' ? seconds() : this.heardAt;
    document.querySelector('main').dataset.stale = state === 'good' ? 'no' : 'yes';
    this.drawStale();
  }

  // What was told by a daemon that does not answer any more is grey, and its age is said.
  drawStale() {
    const old = document.querySelector('main').dataset.stale === 'yes' && this.heardAt !== undefined;
    this.say(old ? `All that is shown is ${secondsText(Math.floor(seconds() - this.heardAt)).replace('.0', '')} old.` : null, $('stale'));
  }

  // ---- blocks, now

  async loadBlocks(store, {epoch, signal} = {}) {
    const pages = Math.ceil(store.count / PAGE_BLOCKS);
    let next = 0, read = 0;
    const load = async () => {
      while (next < pages && !signal?.aborted) {
        const cursor = PAGE_BLOCKS * next++;
        const query = {limit: PAGE_BLOCKS, cursor: cursor || undefined, format: 'columns', epoch};
        const page = await this.api.json('/v1/blocks', {query, signal});
        if (store.counts.at(-1) > 0) store.allDirty = true; // the first time: cheaper than to note each block
        store.readPage(page, seconds());
        if (++read % PAINT_PAGES === 0) this.map.ask();
      }
    };
    await Promise.all(Array.from({length: Math.min(LOADERS, pages)}, load)).finally(() => this.map.ask());
    $('map').dataset.loaded = 'yes';
  }

  // One block that an event has not said all of.
  async askBlock(i) {
    const page = await this.api.json('/v1/blocks', {query: {limit: 1, cursor: i || undefined, format: 'columns'}});
    this.live.readPage(page, seconds());
    this.map.ask();
  }

  get sweepPages() {
    return Math.ceil(this.live.count / SWEEP_BLOCKS);
  }

  // How full a block is changes with each token, of which no event tells: pages with blocks that fill up are read again, by turns. So are all
  // pages with a key that is told no events of other keys. Each once since the state has changed.
  async sweep(signal) {
    let left = this.seesAll ? SWEEP_PAGES : FOREIGN_PAGES;
    const most = left;
    for (; this.unswept > 0 && left > 0; this.unswept--) {
      this.swept = ((this.swept ?? -1) + 1) % this.sweepPages;
      if (this.seesAll && !this.live.partial(this.swept, SWEEP_BLOCKS)) continue;
      left--;
      const query = {limit: SWEEP_BLOCKS, cursor: SWEEP_BLOCKS * this.swept || undefined, format: 'columns'};
      this.live.readPage(await this.api.json('/v1/blocks', {query, signal}), seconds());
    }
    if (left < most && this.stopped === null) this.map.ask();
  }

  // restart(tag): whether the daemon is another process than it was: its epochs begin anew.
  async restart(tag) {
    const instance = /"([0-9a-f]+)-/.exec(tag ?? '')?.[1], known = this.instance;
    this.instance = instance ?? known;
    if (!instance || !known || instance === known) return false;
    const info = await this.api.json('/v1/info');
    if (info.pool.blocks !== this.info.pool.blocks || JSON.stringify(info.geometry) !== JSON.stringify(this.info.geometry)) location.reload();
    this.run?.abort();
    this.run = null;
    this.live.forget();
    this.own.clear();
    this.ownChanges = [];
    this.changesDrawn = false;
    this.tables = NO_TABLES;
    this.oldest = 0;
    this.stats = null;
    this.views.steps.forget();
    for (const view of Object.values(this.views)) delete view.refused;
    this.goOn();
    this.wake();
    return true;
  }

  async follow(signal) {
    let loading = null;
    const load = () => {
      loading ??= this.loadBlocks(this.live, {signal}).then(() => this.say(null, $('map-message')), (problem) => this.mapProblem(problem))
        .finally(() => { loading = null; });
      return loading;
    };
    try {
      await this.api.events({
        types: 'block,sequence',
        signal,
        opened: () => { this.hasEvents = true; this.dropped = 0; load(); },
        on: (e) => this.onEvent(e, load),
      });
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.hasEvents = false;
      await this.followByPolling(signal, load, problem);
    }
  }

  async followByPolling(signal, load, problem) {
    this.say(problem.status === 404 ? 'This daemon has no /v1/events: the map is read again whenever the state has changed.'
      : `${problem.detail}: the map is read again whenever the state has changed.`, $('map-message'));
    let shown = -1;
    while (!signal.aborted) {
      if (this.stats?.epoch !== shown || this.live.counts.at(-1) > 0) {
        const epoch = this.stats?.epoch, begin = performance.now();
        await this.loadBlocks(this.live, {signal}).catch((p) => this.mapProblem(p));
        shown = epoch;
        await sleep(Math.max(POLL_MS / 4, performance.now() - begin));
      }
      await sleep(POLL_MS / 4);
    }
  }

  mapProblem(problem) {
    if (problem.name === 'AbortError') return;
    this.say(problem.detail ?? String(problem), $('map-message'));
  }

  onEvent(e, load) {
    if (e.event === 'missed') {
      this.note({text: `${plural(e.missed, 'event')} missed: the map is read again`});
      load();
      return;
    }
    if (e.event === 'block') {
      const of = e.sequence || this.live.owner[e.block]; // of what is given back, who had it
      if (!this.live.readEvent(e, seconds())) this.askBlock(e.block).catch((p) => this.mapProblem(p));
      if (this.stopped === null) {
        if (e.change !== 'taken' || this.live.count < 4096) this.map.flash(e.block, seconds());
        this.map.ask();
      }
      this.views.block.onEvent(e);
      this.note({...e, of});
    } else if (e.event === 'sequence') {
      this.live.at = Math.max(this.live.at, e.epoch);
      this.note({...e, of: e.sequence});
    }
  }

  note(change) {
    this.changes.push(change);
    if (this.changes.length > 2 * CHANGES_KEPT) this.changes.splice(0, CHANGES_KEPT);
    this.noteOwn(change);
    this.changesDrawn = false;
  }

  // A workload has thousands of changes a second: those of what somebody does here, as a copy on write, are kept beside.
  noteOwn(change) {
    if (this.own.has(change.parent)) this.own.add(change.of);
    if (!this.own.has(change.of) || this.ownChanges.includes(change)) return;
    this.ownChanges = [...this.ownChanges, change].sort((a, b) => a.epoch - b.epoch).slice(-OWN_SHOWN);
  }

  // watch(ids): from now on these are this page's own, and so is what has just changed of them.
  watch(ids) {
    for (const id of ids) this.own.add(id);
    for (const change of this.changes) this.noteOwn(change);
    this.changesDrawn = false;
  }

  // ---- figures and sequences

  async poll(signal) {
    let tag = null;
    while (!signal.aborted) {
      try {
        const limit = this.views.sequences.limit;
        const answer = await this.api.fetch('/stats', {query: {limit}, headers: tag ? {'If-None-Match': tag} : {}, signal});
        if (answer.status !== 304) {
          tag = answer.headers.get('ETag');
          const stats = await answer.json();
          if (await this.restart(tag)) return;
          this.takeStats(stats);
          this.unswept = this.sweepPages;
        } else if (this.stats) {
          this.stepRate = 0;
          this.drawFigures();
        }
        if (this.hasEvents) await this.sweep(signal).catch((p) => this.mapProblem(p));
        this.link('good', this.hasEvents === false ? 'connected, by polling' : 'connected');
      } catch (problem) {
        if (signal.aborted) return;
        tag = null;
        this.link('bad', problem.detail ?? String(problem));
      }
      await sleep(POLL_MS);
    }
  }

  takeStats(stats) {
    const before = this.stats, now = seconds();
    if (before && now > this.statsAt) this.stepRate = (stats.scheduler.steps - before.scheduler.steps) / (now - this.statsAt);
    if (before ? this.stepRate > 0 : stats.scheduler.running > 0) this.steppedAt = now;
    this.stats = stats;
    this.statsAt = now;
    this.tables = stats.sequences;
    this.drawFigures();
    this.frameChosen();
    for (const name of ['sequences', 'tree', 'checks', 'tour']) if (this.tab === name) this.views[name].draw();
  }

  // tablesShown(): the sequences at the epoch that is shown.
  tablesShown() {
    return this.stopped === null ? this.tables : this.pastTables ?? NO_TABLES;
  }

  // tablesAge(): how many seconds ago they were so, if that is now and not at an epoch that has passed.
  tablesAge() {
    return this.stopped === null && this.stats ? seconds() - this.statsAt : 0;
  }

  drawFigures() {
    const {pool, scheduler, counters, sequences} = this.stats;
    const saved = pool.tokens_logical - pool.tokens_physical;
    const {bytes_read: bytes, seconds: took, roof_fraction: fraction} = scheduler.latest; // of the latest 1000 steps
    const runs = seconds() - this.steppedAt < IDLE_S && took > 0;
    const {counts} = this.live, all = sequencesOfAll(scheduler);
    const own = this.seesAll ? [] : [['This key'], ['own sequences', countText(sequences.count)], ['own held', countText(counts[1] + counts[2])],
      ['own shared', countText(counts[2])], ['own cached', countText(counts[3])], ['All keys']];
    const figures = [...own,
      ['sequences', countText(all)],
      ['queued', countText(scheduler.queued)],
      ['running', countText(scheduler.running)],
      ['swapped', countText(scheduler.swapped)],
      ['steps a second', countText(this.stepRate ?? 0)],
      ['K and V read', runs ? `${(bytes / took / 1e9).toPrecision(3)} GB/s` : 'idle'],
      ['of the roof', runs ? `${(100 * fraction).toFixed(fraction < 0.1 ? 1 : 0)} %` : 'idle'],
      ['saved by sharing', bytesText(saved / pool.block_size * pool.bytes_per_block)],
      ['copies on write', countText(counters.cow_copies)],
      ['evictions', countText(counters.evictions)],
      ['preemptions', countText(counters.preemptions)],
      ['pool used', `${(100 * (1 - pool.free / pool.blocks)).toFixed(1)} %`],
    ];
    update($('figures'), figures, ([name]) => name, ([name, value]) => value === undefined ? h('h2', {}, name) : h('div', {}, h('span', {class: 'name'}, OWN_LABELS[name] ?? name), h('div', {class: 'value'})),
      (e, [, value]) => { if (value !== undefined) setText(e.lastElementChild, value); });
  }

  // ---- drawing what changes often, a few times a second

  async drawLoop() {
    for (;;) {
      if (!document.hidden) {
        this.drawLegend();
        this.drawChanges();
        this.drawTime();
        this.drawStale();
        this.views.sequences.tick();
        this.map.age(seconds());
      }
      await sleep(150);
    }
  }

  get shown() {
    return this.stopped === null ? this.live : this.past;
  }

  drawLegend() {
    const theme = this.map.theme, counts = this.shown.counts, mode = this.map.mode;
    const of = (first, end) => STATES.slice(first, end).map((key, i) => ({key, colour: hexToRgb(PALETTES[theme].states[first + i]), label: STATE_LABELS[key], count: counts[first + i]}));
    const items = mode === 'state' ? of(0, FOREIGN)
      : mode === 'owner' ? [...of(0, 1), ...of(3, FOREIGN), {key: 'hue', label: 'held: a hue a sequence'}]
        : [...mode === 'age' ? [] : of(0, 1), ...legendOf(mode, theme, this.shown.blockSize).map(([colour, label]) => ({key: label, colour, label}))];
    if (!this.seesAll) items.push(...of(FOREIGN));
    items.push({key: 'framed', label: 'framed: chosen, pointed at, or just changed'});
    const unknown = counts.at(-1);
    if (unknown) items.push({key: 'unknown', colour: hexToRgb(PALETTES[theme].states.at(-1)), label: 'not read yet', count: unknown});
    const key = (item) => `${theme} ${mode} ${item.key}`;
    update($('legend'), items, key, (item) => h('li', {dataset: {state: item.key}}, item.colour ? swatch(item.colour) : item.key === 'framed' && h('span', {class: 'swatch framed', 'aria-hidden': 'true'}), item.label, h('b', {})),
      (e, item) => setText(e.lastElementChild, item.count === undefined ? '' : countText(item.count)));
  }

  drawChanges() {
    if (this.changesDrawn) return;
    this.changesDrawn = true;
    const latest = this.changes.slice(-CHANGES_SHOWN).reverse();
    const line = (e) => h('li', {}, h('span', {class: 'when'}, e.epoch ?? ''), h('span', {}, e.text ?? changeText(e)));
    $('own-box').hidden = !this.ownChanges.length;
    fill($('own-changes'), this.ownChanges.map(line).reverse());
    fill($('changes'), latest.length ? latest.map(line)
      : h('li', {class: 'dim'}, this.hasEvents === false ? 'This daemon tells no events.' : `Nothing ${this.seesAll ? '' : 'of this key '}has changed since this page was opened.`));
  }

  // ---- time

  get present() {
    return Math.max(this.live.at, this.stats?.epoch ?? 0);
  }

  drawTime() {
    const slider = $('epoch'), last = Math.max(this.present, this.stopped ?? 0);
    const first = Math.max(this.oldest ?? 0, last - EPOCHS + 1, 0);
    slider.min = first;
    slider.max = last;
    if (document.activeElement !== slider || this.stopped === null) slider.value = this.stopped ?? last;
    setText($('epoch-text'), this.stopped === null ? `epoch ${countText(last)}` : `${countText(this.stopped)} of ${countText(last)}`);
    setText($('stop'), this.stopped === null ? 'Stop' : 'Go on');
    $('stop').setAttribute('aria-pressed', String(this.stopped !== null));
    $('map-panel').dataset.epoch = this.shown.at;
    $('map-panel').dataset.stopped = this.stopped === null ? 'no' : this.stoppedLoaded === this.stopped ? 'yes' : 'loading';
  }

  async stopAt(epoch) {
    this.stopped = Math.max(0, epoch);
    this.stoppedLoaded = null;
    if (this.stopping) return; // it looks again when it is done
    this.stopping = true;
    try {
      while (this.stopped !== null && this.stoppedLoaded !== this.stopped) await this.loadPast(this.stopped);
    } finally {
      this.stopping = false;
    }
  }

  async loadPast(epoch) {
    this.past.forget();
    let tables = NO_TABLES;
    try {
      const [answer] = await Promise.all([this.api.json('/v1/tables', {query: this.tablesQuery(epoch)}), this.loadBlocks(this.past, {epoch})]);
      const shared = (blocks) => blocks.filter((b) => this.past.refs[b] > 1).length;
      tables = {epoch, items: answer.sequences.map((s) => ({state: '', shared_blocks: shared(s.blocks), ...s})), count: answer.sequences.length + answer.left_out};
      this.say(null, $('map-message'));
    } catch (problem) {
      if (problem.status === 410) this.oldest = Math.max(this.oldest ?? 0, epoch + 1);
      const known = problem.status !== 422 || this.live.at === 0;
      this.say(known ? problem.detail : `This daemon does not keep earlier epochs: the map stands as it was. (${problem.detail})`, $('map-message'));
      if (!known) this.copyLive();
    }
    this.stoppedLoaded = epoch;
    this.pastTables = tables;
    if (this.stopped !== null) this.map.setStore(this.past);
    this.drawTime();
    this.redrawTables();
  }

  tablesQuery(epoch) {
    return {limit: this.views.sequences.limit, epoch};
  }

  copyLive() {
    for (const name of ['state', 'refs', 'fill', 'owner', 'touched', 'counts']) this.past[name].set(this.live[name]);
    this.past.at = this.live.at;
  }

  goOn() {
    this.stopped = this.pastTables = null;
    this.map.setStore(this.live);
    this.drawTime();
    this.redrawTables();
  }

  redrawTables() {
    this.frameChosen();
    this.views.sequences.draw();
    this.views.tree.draw();
  }

  // ---- tabs, and views that ask for themselves

  select(name, focus = false) {
    const {block} = this.views;
    if (name === 'block') this.map.mark(block.none === null ? [block.block] : []);
    else if (this.tab === 'block') this.map.mark([]);
    this.tab = name;
    for (const tab of document.querySelectorAll('[role="tab"]')) {
      const on = tab.id === `tab-${name}`;
      tab.setAttribute('aria-selected', String(on));
      tab.tabIndex = on ? 0 : -1;
      if (on && focus) tab.focus();
    }
    for (const panel of document.querySelectorAll('[role="tabpanel"]')) panel.hidden = panel.id !== `view-${name}`;
    const view = this.views[name];
    view.due = 0;
    view.draw?.();
  }

  async refresh(signal) {
    while (!signal.aborted) {
      const view = this.views[this.tab];
      const sight = view.sight?.() ?? '';
      if (view.load && view.refused !== sight && performance.now() >= (view.due ?? 0)) {
        delete view.refused;
        try {
          await view.load(signal);
          view.due = performance.now() + (view.everyMs ?? VIEW_MS);
          if (view.failed) this.say(null, view.message);
          view.failed = false;
        } catch (problem) {
          if (signal.aborted) return;
          view.failed = true;
          const absent = view.path && problem.status === 404 && problem.detail.startsWith('no such path');
          this.say(absent ? `This daemon has no ${view.path}. ${view.instead ?? ''}` : problem.detail ?? String(problem), view.message);
          if (problem.status === 403 || problem.status === 404) view.refused = sight; // the same answer would come again, and be a warning in the daemon's log
          view.due = performance.now() + VIEW_MS;
        }
      }
      await sleep(50);
    }
  }

  // ---- one block, one sequence

  readOut(i) {
    if (i < 0 || !this.shown) {
      setText($('readout'), 'Point at a cell.');
      return;
    }
    const s = this.shown, owner = s.owner[i], code = s.state[i];
    const parts = [`block ${i}`, owner === OTHER ? STATE_LABELS[STATES[code]] : STATES[code] ?? 'not read yet'];
    if (owner !== OTHER) parts.push(plural(s.refs[i], 'reference'), `${s.fill[i]} of ${plural(s.blockSize, 'token')}`);
    if (owner > 0) {
      const holders = this.views.sequences.holders().get(i);
      parts.push(holders?.length ? `held by ${sequencesText(holders)}` : `owner ${owner}`);
    }
    setText($('readout'), parts.join(' · '));
  }

  showBlock(i) {
    this.views.block.choose(i);
    this.select('block');
  }

  choose(id) {
    this.chosen = id;
    const chosen = this.tables.items.find((s) => s.id === id);
    if (chosen && !chosen.workload) this.watch([id]);
    this.say(null, $('sequence-new-message'));
    this.map.mark([]);
    this.redrawTables();
    const [first] = this.map.chosen;
    if (first !== undefined) this.map.show(first);
  }

  // The blocks that the chosen sequence has at the epoch that is shown; none before it began and after its end.
  frameChosen() {
    this.map.choose((this.chosen !== null && this.tablesShown().items.find((s) => s.id === this.chosen)?.blocks) || []);
  }

  // ---- controls

  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    this.map.set({theme});
    for (const view of Object.values(this.views)) view.draw?.();
  }

  wire() {
    $('theme-button').addEventListener('click', () => {
      const theme = this.map.theme === 'dark' ? 'light' : 'dark';
      localStorage.setItem('attnd-theme', theme);
      this.setTheme(theme);
    });
    for (const input of $('modes').querySelectorAll('input')) input.addEventListener('change', () => { this.map.set({mode: input.value}); this.drawLegend(); });
    $('zoom-in').addEventListener('click', () => this.map.zoomBy(1));
    $('zoom-out').addEventListener('click', () => this.map.zoomBy(-1));
    $('zoom-fit').addEventListener('click', () => this.map.zoomBy(0));
    $('stop').addEventListener('click', () => this.stopped === null ? this.stopAt(this.present) : this.goOn());
    $('earlier').addEventListener('click', () => this.stopAt((this.stopped ?? this.present) - 1));
    $('later').addEventListener('click', () => this.stopAt(Math.min(this.present, (this.stopped ?? this.present) + 1)));
    $('epoch').addEventListener('input', () => this.stopAt(Number($('epoch').value)));
    const tabs = [...document.querySelectorAll('[role="tab"]')];
    tabs.forEach((tab, i) => {
      tab.addEventListener('click', () => this.select(tab.id.slice(4)));
      tab.addEventListener('keydown', (e) => {
        const to = {ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1}[e.key];
        if (to === undefined) return;
        e.preventDefault();
        this.select(tabs.at(to % tabs.length).id.slice(4), true);
      });
    });
    for (const button of document.querySelectorAll('button.curl')) button.addEventListener('click', () => this.showCurl(button.dataset.view));
    for (const view of Object.values(this.views)) view.wire?.();
    for (const button of document.querySelectorAll('button[data-scope]')) this.guard(button);
    this.select('sequences');
  }

  // ---- copy as curl

  requestsOf(view) {
    if (view === 'map') return [{path: '/v1/blocks', query: {limit: PAGE_BLOCKS, format: 'columns', epoch: this.stopped ?? undefined}}, {path: '/v1/events', headers: {Accept: 'text/event-stream'}}];
    if (view === 'sequences') return [this.stopped === null ? {path: '/stats', query: {limit: this.views.sequences.limit}} : {path: '/v1/tables', query: this.tablesQuery(this.stopped)}];
    if (view === 'create') return [{path: '/v1/sequences', method: 'POST', body: this.views.sequences.newBody()}];
    return this.views[view].requests();
  }

  showCurl(view) {
    this.showLines(this.requestsOf(view).map((r) => typeof r === 'string' ? r : this.api.curl(r)));
  }

  async showLines(lines) {
    const text = lines.join('\n');
    $('curl-text').value = text;
    setText($('curl-note'), this.api.keyed ? 'The shell has the key in the variable ATTND_KEY.' : 'For a POSIX shell.');
    setText($('curl-done'), '');
    $('curl-dialog').showModal();
    $('curl-text').select();
    await navigator.clipboard?.writeText(text).then(() => setText($('curl-done'), 'copied'), () => setText($('curl-done'), 'select it to copy'));
  }
}

new App().start();
