// SPDX-License-Identifier: Apache-2.0
// sequences.js - sequences with their tables, and the fork tree.
import {$, context2d, fill, h, setText, update} from './dom.js';
import {PALETTES, blocksText, bytesText, countText, forkTree, holdersOf, idleText, list, plural, sequencesText, tiesOf, zerosBody, zerosLine} from './pure.js';

const LIMIT = 200, ROWS_SHOWN = 100;
const TABLE_CELL = 12, NAMED_CELL = 30, TABLE_ROWS_MAX = 4, TIES_SHOWN = 3;
const ORDERS = {
  id: (a, b) => a.id - b.id,
  length: (a, b) => (b.length ?? b.block_count) - (a.length ?? a.block_count), // of the past only blocks are known
  shared: (a, b) => b.shared_blocks - a.shared_blocks,
  idle: (a, b) => a.idle_s - b.idle_s || a.id - b.id,
  state: (a, b) => a.state.localeCompare(b.state),
};

const OWN = 'Make one of your own: "New sequence", then "Append a token" and "Fork".';
const drivenText = (s) => `Workload ${s.workload} drives it, and nobody else may. ${OWN}`;
const ratio = () => window.devicePixelRatio || 1;

export class SequencesView {
  constructor(app) {
    this.app = app;
    this.limit = LIMIT;
    this.pointed = -1; // a block, in all tables
    this.seen = new WeakSet(); // rows in view: only their tables are drawn
    this.watch = new IntersectionObserver((entries) => {
      for (const {target, isIntersecting} of entries) {
        if (!isIntersecting) this.seen.delete(target);
        else if (!this.seen.has(target)) {
          this.seen.add(target);
          this.drawTable(target.children[1], target.sequence);
        }
      }
    });
  }

  wire() {
    $('sequence-filter').addEventListener('input', () => this.draw());
    $('sequence-sort').addEventListener('change', () => this.draw());
    $('sequence-form').addEventListener('submit', (e) => e.preventDefault());
    this.app.onPress($('sequence-form').querySelector('button[type="submit"]'), () => this.create(), $('sequence-new-message'));
  }

  // What the form says, as the body of POST /v1/sequences.
  newBody() {
    const value = (name) => $('sequence-form').elements[name].value, body = {};
    const tokens = value('tokens').split(/[\s,]+/).filter(Boolean).map(Number);
    if (tokens.length) body.tokens = tokens;
    if (value('salt')) body.salt = value('salt');
    if (value('max_tokens')) body.max_tokens = Number(value('max_tokens'));
    return body;
  }

  async create() {
    const body = this.newBody(), made = await this.app.api.json('/v1/sequences', {method: 'POST', body});
    this.app.choose(made.id);
    this.app.say(!body.tokens ? `Sequence ${made.id} is there, and has no tokens.`
      : `Sequence ${made.id}: ${plural(made.cached_tokens, 'token')} of its prompt ${made.cached_tokens === 1 ? 'was' : 'were'} in the cache.`, $('sequence-new-message'));
  }

  holders() {
    const tables = this.app.tablesShown();
    if (this.holdersEpoch !== tables) {
      this.holdersEpoch = tables;
      this.holdersMap = holdersOf(tables.items);
    }
    return this.holdersMap;
  }

  matching(items) {
    const words = $('sequence-filter').value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const text = (s) => `${s.id} ${s.state} ${s.parent ? `parent ${s.parent}` : ''} ${s.workload ? `workload ${s.workload}` : ''}`.toLowerCase();
    return items.filter((s) => words.every((w) => /^\d+$/.test(w) ? String(s.id) === w || String(s.workload ?? '') === w || String(s.parent ?? '') === w : text(s).includes(w)));
  }

  draw() {
    if (this.app.tab !== 'sequences' || !this.app.stats) return;
    const tables = this.app.tablesShown(), all = this.matching(tables.items).sort(ORDERS[$('sequence-sort').value]);
    const shown = all.slice(0, ROWS_SHOWN), message = $('sequences-message');
    const past = this.app.stopped !== null;
    if (this.pointed >= 0 && !this.holders().has(this.pointed)) { // its row went, and the pointer has not left it
      this.pointed = -1;
      this.app.map.mark([]);
    }
    this.app.say(!past ? null : tables.epoch === undefined ? 'Of that epoch no tables have been read.' : `Tables as they were at epoch ${countText(tables.epoch)}.`, message);
    update($('sequence-list'), shown, (s) => s.id, (s) => this.makeRow(s), (e, s) => this.drawRow(e, s));
    const hidden = tables.count - shown.length;
    setText($('sequences-more'), !tables.count ? past ? '' : 'There are no sequences. Make one with "New sequence" above, or start a workload or the tour.'
      : hidden > 0 ? `${plural(shown.length, 'sequence')} shown of ${countText(tables.count)}.` : '');
    this.drawChosen(tables.items.find((s) => s.id === this.app.chosen));
  }

  makeRow(s) {
    const canvas = h('canvas', {role: 'img', width: 1, height: 20});
    const row = h('li', {}, h('div', {class: 'row-head'}, h('button', {type: 'button', class: 'id', 'aria-label': `Sequence ${s.id}`}, s.id), h('span', {}),
      h('span', {class: 'right'})), canvas, h('p', {class: 'dim ties'}));
    canvas.addEventListener('mousemove', (e) => this.point(row, e));
    canvas.addEventListener('mouseleave', () => this.point(row, null));
    // A press of the button, by the keyboard too, comes here. What is selected to be copied is no press.
    row.addEventListener('click', (e) => {
      const block = e.target === canvas ? this.blockIn(row, e) : undefined;
      if (block !== undefined) this.app.showBlock(block);
      else if (e.target.closest('button') || getSelection().isCollapsed) this.app.choose(row.sequence.id);
    });
    row.sequence = s;
    this.watch.observe(row);
    return row;
  }

  drawRow(row, s) {
    const [head, canvas, ties] = row.children, [, what] = head.children;
    row.sequence = s;
    row.setAttribute('aria-current', String(s.id === this.app.chosen));
    const blocks = s.block_count ?? (s.blocks.length || s.host_blocks?.length || 0);
    setText(what, [s.state, s.length === undefined ? '' : plural(s.length, 'token'), s.parent ? `fork of ${s.parent}` : '', s.workload ? `workload ${s.workload}` : '', s.priority ? `priority ${s.priority}` : '']
      .filter(Boolean).join(' · '));
    row.has = `${plural(blocks, 'block')}${s.shared_blocks ? `, ${s.shared_blocks} shared` : ''}`;
    this.drawIdle(row);
    canvas.setAttribute('aria-label', s.blocks.length ? `Blocks in token order: ${list(s.blocks, 12)}` : 'No blocks in the pool');
    if (this.seen.has(row)) this.drawTable(canvas, s);
    const groups = tiesOf(s, this.holders());
    setText(ties, (groups.length ? 'shares ' : '') + groups.slice(0, TIES_SHOWN).map((t) => `${blocksText(t.blocks)} with ${sequencesText(t.ids)}`).join('; ') + (groups.length > TIES_SHOWN ? '; …' : ''));
  }

  // How long nobody has used it; that goes on where nothing changes, and nobody is told anything.
  drawIdle({children: [head], has, sequence: s}) {
    const rests = s.state === 'idle' || s.state === 'swapped';
    setText(head.lastElementChild, rests ? `${has} · ${idleText(s.idle_s + this.app.tablesAge())}` : has);
  }

  tick() {
    if (this.app.tab === 'sequences') for (const row of $('sequence-list').children) this.drawIdle(row);
  }

  // Cells in token order: of the colour that the map has for them, with a bar below what somebody else holds too.
  drawTable(canvas, s) {
    const all = s.blocks.length || s.host_blocks?.length || 0, width = Math.floor(($('sequence-list').clientWidth - 10) * ratio());
    const named = all * NAMED_CELL * ratio() <= width, cell = Math.round((named ? NAMED_CELL : TABLE_CELL) * ratio()), tall = Math.round((named ? 20 : TABLE_CELL) * ratio());
    const columns = Math.max(1, Math.floor(width / cell));
    const rows = Math.min(TABLE_ROWS_MAX, Math.ceil(all / columns)), n = Math.min(all, rows * columns);
    canvas.hidden = n === 0;
    if (!n) return;
    Object.assign(canvas.dataset, {cell, tall, columns});
    const c = context2d(canvas, Math.min(n, columns) * cell, rows * tall), theme = this.app.map.theme, palette = PALETTES[theme], holders = this.holders();
    const gap = Math.max(1, Math.round(tall / 10)), block = this.app.live.blockSize;
    c.clearRect(0, 0, canvas.width, canvas.height);
    c.font = `${Math.round(11 * ratio())}px ${getComputedStyle(document.documentElement).getPropertyValue('--mono')}`;
    c.textAlign = 'center';
    c.textBaseline = 'middle';
    for (let i = 0; i < n; i++) {
      const x = i % columns * cell, y = Math.floor(i / columns) * tall, id = s.blocks[i], shared = (holders.get(id)?.length ?? 0) > 1 || this.app.shown.refs[id] > 1;
      const full = s.length === undefined ? this.app.past.fill[id] / block : Math.min(1, Math.max(0, (s.length - i * block) / block)), size = cell - gap, high = tall - gap;
      c.fillStyle = palette.states[id === undefined ? 3 : shared ? 2 : 1];
      if (id === undefined) c.globalAlpha = 0.45; // in host memory
      c.fillRect(x, y, size, high);
      c.globalAlpha = 1;
      if (full < 1) {
        const bar = Math.max(2, Math.round(tall / 8)); // as the map has it
        c.fillStyle = theme === 'dark' || shared ? '#101820' : '#ffffff';
        c.fillRect(x + 1, y + high - bar - 1, Math.round((size - 2) * full), bar);
      }
      if (named) {
        c.fillStyle = theme === 'dark' || shared ? '#101820' : '#ffffff';
        c.fillText(String(id ?? s.host_blocks[i]), x + size / 2, y + high / 2 - (full < 1 ? 1 : 0));
      }
      if (id !== undefined && id === this.pointed) {
        c.strokeStyle = palette.ink;
        c.lineWidth = 2;
        c.strokeRect(x + 1, y + 1, size - 2, high - 2);
      }
    }
  }

  blockIn(row, e) {
    const canvas = row.children[1], box = canvas.getBoundingClientRect(), [cell, tall, columns] = ['cell', 'tall', 'columns'].map((n) => Number(canvas.dataset[n]));
    return row.sequence.blocks[Math.floor((e.clientY - box.top) * ratio() / tall) * columns + Math.floor((e.clientX - box.left) * ratio() / cell)];
  }

  // A block under the pointer is outlined in every table that has it, and in the map.
  point(row, e) {
    const block = e ? this.blockIn(row, e) ?? -1 : -1;
    if (block === this.pointed) return;
    this.pointed = block;
    this.app.map.mark(block >= 0 ? [block] : []);
    this.app.readOut(block);
    this.draw();
  }

  // The buttons stay as long as the sequence is the same one: while it grows, a press must not miss, nor an answer go.
  drawChosen(s) {
    const box = $('sequence-chosen');
    const ended = !s && this.app.stopped === null && this.app.chosen !== null && this.acted?.id === this.app.chosen;
    box.hidden = this.app.chosen === null || (!s && !ended);
    if (box.hidden) return;
    if (ended) { this.drawEnded(box); return; }
    // What is pressed is done now, whatever is shown: to the sequence as it is.
    const now = this.app.stopped === null ? s : this.app.tables.items.find((t) => t.id === s.id);
    const refused = !now ? `Sequence ${s.id} has ended since, or is not among those that are listed now.` : now.workload ? drivenText(now) : '', key = `${s.id} ${refused}`;
    this.acted = now ?? s;
    if (box.dataset.of !== key) {
      box.dataset.of = key;
      this.makeChosen(box, s, refused);
    }
    const shared = s.blocks.filter((b) => (this.holders().get(b)?.length ?? 0) > 1);
    const others = [...new Set(shared.flatMap((b) => this.holders().get(b)))].filter((id) => id !== s.id);
    setText(box.firstChild.lastChild, (shared.length ? ` shares ${blocksText(shared)} with ${sequencesText(others)}.` : ' shares no block with another one that is listed.')
      + (refused && ` ${refused}`));
  }

  // A sequence of a workload may end before its panel was read: the panel stays and says so.
  drawEnded(box) {
    const {app, acted: s} = this, key = `${s.id} ended`;
    if (box.dataset.of === key) return;
    box.dataset.of = key;
    const {count, items} = app.tablesShown(), unlisted = count > items.length ? `, or is not among the ${countText(items.length)} that are listed` : '';
    fill(box, h('p', {}, h('b', {}, `Sequence ${s.id}`), h('span', {}, ` has ended${s.workload ? ` (workload ${s.workload})` : ''}${unlisted}. ${OWN}`)),
      h('div', {class: 'bar'}, h('button', {type: 'button', onclick: () => this.openForm()}, 'New sequence'), h('button', {type: 'button', onclick: () => app.choose(null)}, 'Close')));
  }

  openForm() {
    $('sequence-new').open = true;
    $('sequence-form').querySelector('button[type="submit"]').focus();
  }

  makeChosen(box, s, refused) {
    const {app} = this, message = h('p', {class: 'message', role: 'status', hidden: true}), {geometry} = app.info, path = `/v1/sequences/${s.id}`;
    const fork = {path: `${path}/fork`, method: 'POST', body: {count: 1}}, end = {path, method: 'DELETE'}, zeros = {sequence: s.id, tokens: 1, geometry};
    const cut = () => ({path: `${path}/truncate`, method: 'POST', body: {length: Math.max(0, this.acted.length - 1)}});
    const write = zerosLine({...zeros, base: app.api.base, keyed: app.api.keyed});
    const ask = (of) => { app.say(null, $('sequence-new-message')); return app.api.json(of.path, of); }; // what was said of its begin is old now
    const act = (label, request) => app.button(label, () => ask(request()), {scope: 'infer', message});
    const lines = (label, all) => app.button(label, () => app.showLines(all().filter(Boolean)), {message, class: 'curl'});
    const actions = [act('Fork', () => fork), act('Append a token', () => ({path: '/v1/append', method: 'POST', bytes: zerosBody(zeros)})),
      act('Cut off one', cut), act('Delete', () => end), lines('fork as curl', () => [app.api.curl(fork)]),
      lines('others as curl', () => [write, app.api.curl(cut()), app.api.curl(end)])];
    if (refused) for (const button of actions) app.forbid(button, refused);
    fill(box, h('p', {}, h('b', {}, `Sequence ${s.id}`), h('span', {})),
      h('div', {class: 'bar'}, actions, h('button', {type: 'button', onclick: () => { app.choose(null); }}, 'Close')), message);
  }
}

// ---- the fork tree --------------------------------------------------------------------------------------

const ROW = 22, CELL = 12, NAMED = 30, LEFT = 64, NOTE = 100; // pixels; NOTE: of "as sequence 7"

export class TreeView {
  constructor(app) {
    this.app = app;
    this.pointed = -1;
  }

  wire() {
    const canvas = $('tree');
    canvas.addEventListener('mousemove', (e) => this.point(e));
    canvas.addEventListener('mouseleave', () => this.point(null));
    canvas.addEventListener('click', (e) => {
      const node = this.tree?.nodes[this.nodeAt(e)];
      if (node) this.app.showBlock(node.blocks[Math.max(0, this.columnAt(e) - node.from)] ?? node.blocks[0]);
    });
  }

  columnAt(e) {
    return Math.floor((e.clientX - $('tree').getBoundingClientRect().left - LEFT) / this.cellSize);
  }

  nodeAt(e) {
    const row = Math.floor((e.clientY - $('tree').getBoundingClientRect().top) / ROW), column = this.columnAt(e);
    return this.tree.nodes.findIndex((n) => n.row === row && column >= n.from && column < n.from + n.blocks.length);
  }

  point(e) {
    if (!this.tree) return;
    const at = e ? this.nodeAt(e) : -1;
    if (at === this.pointed) return;
    this.pointed = at;
    const node = this.tree.nodes[at];
    this.app.map.mark(node?.blocks ?? []);
    setText($('tree-readout'), !node ? 'A run of blocks is drawn once, however many sequences hold it. Point at one.'
      : `${plural(node.blocks.length, 'block')} (${list(node.blocks)}) held by ${sequencesText(node.ids, 10)}`);
    this.paint();
  }

  draw() {
    if (this.app.tab !== 'tree' || !this.app.stats) return;
    const tables = this.app.tablesShown();
    this.tree = forkTree(tables.items.slice(0, 200));
    const {saved, rows, columns} = this.tree;
    setText($('tree-sum'), `${plural(rows.length, 'sequence')} with blocks; sharing saves ${plural(saved, 'block')}, ${bytesText(saved * this.app.info.pool.bytes_per_block)}`);
    this.app.say(!rows.length ? this.app.stopped === null ? 'No sequence has blocks now.' : 'No sequence had blocks then.' : tables.count > tables.items.length ? `The first ${tables.items.length} of ${countText(tables.count)} sequences.` : null, $('tree-message'));
    this.cellSize = columns > 400 ? 2 : columns > 150 ? 4 : columns > 60 ? 8 : columns > 20 ? CELL : NAMED;
    this.paint();
  }

  paint() {
    const {nodes, rows, columns} = this.tree, canvas = $('tree'), k = ratio(), size = this.cellSize;
    canvas.hidden = !rows.length;
    if (!rows.length) return;
    // Where a table ends with a run that is drawn in the row of another one, which is said then.
    const ends = rows.map((id) => nodes.findLast((n) => n.ids.includes(id))), notes = ends.map((last, row) => last.row === row ? 0 : last.from * size + NOTE);
    const c = context2d(canvas, Math.round((LEFT + Math.max(columns * size + 8, ...notes)) * k), Math.round(rows.length * ROW * k)), style = getComputedStyle(document.documentElement);
    const theme = this.app.map.theme, palette = PALETTES[theme], gap = size > 4 ? 1 : 0, high = size === NAMED ? 18 : 12;
    c.setTransform(k, 0, 0, k, 0, 0);
    c.clearRect(0, 0, canvas.width, canvas.height);
    c.font = `12px ${style.getPropertyValue('--mono')}`;
    c.textBaseline = 'middle';
    rows.forEach((id, row) => {
      c.fillStyle = id === this.app.chosen ? style.getPropertyValue('--strong') : style.getPropertyValue('--ink');
      c.textAlign = 'left';
      c.fillText(String(id), 2, row * ROW + ROW / 2, LEFT - 10);
      if (!notes[row]) return;
      c.fillStyle = style.getPropertyValue('--dim');
      c.fillText(`as sequence ${rows[ends[row].row]}`, LEFT + ends[row].from * size, row * ROW + ROW / 2);
    });
    c.strokeStyle = style.getPropertyValue('--dim');
    c.lineWidth = 1;
    nodes.forEach((node, at) => {
      const y = node.row * ROW + ROW / 2, x = LEFT + node.from * size, parent = nodes[node.parent];
      if (parent && parent.row !== node.row) { // from the run that it begins with
        c.beginPath();
        c.moveTo(x - 3.5, parent.row * ROW + ROW / 2 + high / 2);
        c.lineTo(x - 3.5, y + 0.5);
        c.lineTo(x, y + 0.5);
        c.stroke();
      }
      c.textAlign = 'center';
      node.blocks.forEach((block, i) => {
        c.fillStyle = at === this.pointed ? palette.ink : palette.states[node.ids.length > 1 ? 2 : 1];
        c.fillRect(x + i * size, y - high / 2, size - gap, high);
        if (size !== NAMED) return;
        c.fillStyle = at === this.pointed ? palette.states.at(-1) : node.ids.length > 1 || theme === 'dark' ? '#101820' : '#ffffff';
        c.fillText(String(block), x + i * size + (size - gap) / 2, y);
      });
    });
    c.setTransform(1, 0, 0, 1, 0, 0);
  }
}
