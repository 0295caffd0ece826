// SPDX-License-Identifier: Apache-2.0
// map.js - the block map: a cell a block, whole pixels, painted into an image of what is to be seen.
//
//     viewport (scrolls)                       The canvas is as large as the viewport and sticks to its top; the spacer behind it is
//     +--------------------+                   as high as all rows. So a million blocks cost no more than what is seen of them.
//     | canvas, overlay    |  first row =      Only cells that have changed are painted, once a frame. The upper left pixel of a cell
//     |                    |  scrollTop / cell is of its colour and nothing else: a test reads the map by it.
//     +--------------------+
//     | spacer             |                   Cursor, selection and flashes are drawn on the overlay.
import {CELL_MAX, FOREIGN, PALETTES, cellColour, cellKey, columnsOf, fitCell, gapOf, hexToRgb} from './pure.js';
import {context2d} from './dom.js';

const FLASH_S = 1.2, FRAMES_NOTED = 1000;
const DETAIL_CELL = 10; // from this size on a cell shows how full it is, and
const DIGIT_CELL = 16;  // from this one on its references, and
const NAME_CELL = 36;   // from this one its number
const GREY = [122, 134, 148];
// Digits of 3 by 5 pixels, a row a number of three bits.
const DIGITS = ['75557', '26227', '71747', '71717', '55711', '74717', '74757', '71111', '75757', '75717'].map((s) => [...s].map(Number));
const pack = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0; // as little-endian canvases have it

export class BlockMap {
  // on.hover(i or -1), on.pick(i)
  constructor({viewport, canvas, overlay, spacer, on}) {
    Object.assign(this, {viewport, canvas, overlay, spacer, on});
    this.store = null;
    this.mode = 'state';
    this.theme = 'light';
    this.zoom = 0;             // steps from the size that fits
    this.cursor = -1;          // a block, when the keyboard is used
    this.chosen = new Set();   // blocks of the chosen sequence,
    this.marked = new Set();   // and what is framed in their place: what is pointed at, a block, a step of the tour
    this.flashes = new Map();  // block -> when it began
    this.frame = 0;
    this.painted = 0;          // frames
    this.complete = false;     // every block was painted once
    this.colours = new Map();  // of the cells that were painted, by their keys
    this.calm = matchMedia('(prefers-reduced-motion: reduce)').matches;
    viewport.addEventListener('scroll', () => this.ask(true));
    canvas.addEventListener('mousemove', (e) => this.on.hover(this.blockAt(e)));
    canvas.addEventListener('mouseleave', () => this.on.hover(-1));
    canvas.addEventListener('click', (e) => this.pick(this.blockAt(e)));
    canvas.addEventListener('wheel', (e) => this.wheel(e), {passive: false});
    canvas.addEventListener('keydown', (e) => this.key(e));
    canvas.addEventListener('blur', () => { this.cursor = -1; this.ask(); });
    // What lies around the viewport takes room from it or leaves it some.
    const panel = viewport.parentElement, observer = new ResizeObserver(() => this.layout());
    for (const e of [panel, ...panel.children]) observer.observe(e);
  }

  setStore(store) {
    this.store = store;
    this.keys = new Float64Array(store.count); // of what was painted of each cell
    this.layout();
  }

  set(changes) {
    Object.assign(this, changes);
    this.repaint();
  }

  repaint() {
    if (this.store) this.store.allDirty = true;
    this.ask();
  }

  // layout(): the size of cells, in pixels of the screen. The viewport is no taller than all rows.
  layout() {
    if (!this.store) return;
    this.viewport.style.maxHeight = '';
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(16, Math.floor(this.viewport.clientWidth * ratio)), height = Math.max(16, Math.floor(this.viewport.clientHeight * ratio));
    const fit = fitCell(this.store.count, width, height, Math.round(CELL_MAX * Math.max(1, ratio)));
    this.cell = Math.max(1, Math.min(96, Math.round(fit * 1.25 ** this.zoom) + (this.zoom > 0 ? Math.ceil(this.zoom / 2) : 0)));
    this.columns = columnsOf(width, this.cell);
    this.rows = Math.ceil(this.store.count / this.columns);
    this.height = Math.min(height, this.rows * this.cell);
    this.width = this.columns * this.cell;
    this.context = context2d(this.canvas, this.width, this.height);
    this.marks = context2d(this.overlay, this.width, this.height);
    this.image = this.context.createImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.viewport.style.maxHeight = `${Math.ceil(this.rows * this.cell / ratio)}px`;
    this.spacer.style.height = `${Math.max(0, (this.rows * this.cell - this.height) / ratio)}px`;
    Object.assign(this.canvas.dataset, {cell: this.cell, columns: this.columns});
    this.store.allDirty = true;
    this.ask();
  }

  zoomBy(steps) {
    this.zoom = steps === 0 ? 0 : Math.max(-8, Math.min(12, this.zoom + steps));
    this.layout();
    if (this.cursor >= 0) this.show(this.cursor);
  }

  wheel(e) {
    if (!e.ctrlKey) return;
    e.preventDefault();
    this.zoomBy(e.deltaY < 0 ? 1 : -1);
  }

  get firstRow() {
    return Math.floor(this.viewport.scrollTop * (window.devicePixelRatio || 1) / this.cell);
  }

  blockAt(e) {
    if (!this.store) return -1;
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    const column = Math.floor((e.clientX - box.left) * ratio / this.cell), row = Math.floor((e.clientY - box.top) * ratio / this.cell) + this.firstRow;
    const i = row * this.columns + column;
    return column >= 0 && column < this.columns && row >= 0 && i < this.store.count ? i : -1;
  }

  pick(i) {
    if (i >= 0) this.on.pick(i);
  }

  key(e) {
    const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, Home: -Infinity, End: Infinity}[e.key];
    if (!this.store || e.ctrlKey || e.altKey || e.metaKey) return;
    if (steps !== undefined) {
      const last = this.store.count - 1;
      this.cursor = this.cursor < 0 ? (steps === Infinity ? last : 0) : Math.max(0, Math.min(last, this.cursor + steps));
      this.show(this.cursor);
      this.on.hover(this.cursor);
    } else if (e.key === 'Enter' || e.key === ' ') {
      this.pick(this.cursor);
    } else if (e.key === '+' || e.key === '-' || e.key === '0') {
      this.zoomBy({'+': 1, '-': -1, 0: 0}[e.key]);
    } else {
      return;
    }
    e.preventDefault();
    e.stopPropagation();
    this.ask();
  }

  // show(i): scroll until the block is to be seen.
  show(i) {
    if (!this.store || i < 0) return;
    const ratio = window.devicePixelRatio || 1, row = Math.floor(i / this.columns), rows = Math.floor(this.height / this.cell);
    if (row < this.firstRow) this.viewport.scrollTop = row * this.cell / ratio;
    else if (row >= this.firstRow + rows) this.viewport.scrollTop = (row - rows + 1) * this.cell / ratio;
  }

  mark(blocks) {
    this.marked = new Set(blocks);
    this.ask();
  }

  // choose(blocks): of the chosen sequence, as often as its table may have changed.
  choose(blocks) {
    if (blocks.length === this.chosen.size && blocks.every((b) => this.chosen.has(b))) return;
    this.chosen = new Set(blocks);
    this.ask();
  }

  flash(i, now) {
    if (this.flashes.size < 500) this.flashes.set(i, now);
    this.ask();
  }

  // ask(): paint with the next frame; all: everything.
  ask(all = false) {
    if (all && this.store) this.store.allDirty = true;
    if (!this.frame) this.frame = requestAnimationFrame((t) => { this.frame = 0; this.paint(t / 1000); });
  }

  paint(now) {
    const store = this.store;
    if (!store || !this.pixels) return;
    const begin = performance.now(), first = this.firstRow * this.columns;
    const rows = Math.ceil(this.height / this.cell), end = Math.min(store.count, first + rows * this.columns);
    this.canvas.dataset.first = first;
    if (store.allDirty) {
      this.pixels.fill(0);
      this.colours = new Map();
      if (this.cell < DETAIL_CELL) this.paintSmall(first, end, now);
      else for (let i = first; i < end; i++) this.paintCell(i, first, now);
      this.context.putImageData(this.image, 0, 0);
    } else if (store.dirty.size) {
      let low = rows, high = -1;
      for (const i of store.dirty) {
        if (i < first || i >= end) continue;
        this.paintCell(i, first, now);
        const row = Math.floor((i - first) / this.columns);
        low = Math.min(low, row);
        high = Math.max(high, row);
      }
      if (high >= 0) this.context.putImageData(this.image, 0, 0, 0, low * this.cell, this.width, (high - low + 1) * this.cell);
    }
    store.allDirty = false;
    store.dirty.clear();
    this.paintMarks(first, end, now);
    this.note(begin);
    this.canvas.dataset.epoch = store.at;
  }

  // For whoever measures: a measure a frame, and a mark when every block was read and painted.
  note(begin) {
    if (++this.painted % FRAMES_NOTED === 0) performance.clearMeasures('map-frame');
    performance.measure('map-frame', {start: begin, end: performance.now()});
    if (!this.complete && this.store.counts.at(-1) === 0) {
      this.complete = true;
      performance.mark('map-painted');
    }
  }

  coloursOf(i, now) {
    const key = this.keys[i] = cellKey(this.store, i, this.mode, now);
    let colours = this.colours.get(key);
    if (!colours) {
      const rgb = cellColour(this.store, i, this.mode, this.theme, now), light = rgb[0] * 0.3 + rgb[1] * 0.59 + rgb[2] * 0.11 > 120;
      this.colours.set(key, colours = {colour: pack(rgb), ink: pack(light ? [16, 24, 32] : [255, 255, 255])});
    }
    return colours;
  }

  // All cells, where they are small and many: of each row of cells one row of pixels, which is then copied.
  paintSmall(first, end, now) {
    const {cell, columns, width, height, pixels} = this, size = cell - gapOf(cell);
    for (let y = 0, i = first; i < end; y += cell) {
      const row = y * width, stop = Math.min(end, i + columns);
      for (let at = row; i < stop; i++, at += cell) {
        const {colour} = this.coloursOf(i, now);
        for (let dx = 0; dx < size; dx++) pixels[at + dx] = colour;
      }
      for (let dy = 1; dy < size && y + dy < height; dy++) pixels.copyWithin(row + dy * width, row, row + width);
    }
  }

  // age(now): cells are painted again when their colour is another one by now.
  age(now) {
    const {store} = this, end = Math.min(store?.count ?? 0, this.firstRow * this.columns + Math.ceil(this.height / this.cell) * this.columns);
    if (this.mode !== 'age' || !store || store.allDirty) return;
    for (let i = this.firstRow * this.columns; i < end; i++) if (this.keys[i] !== cellKey(store, i, 'age', now)) store.dirty.add(i);
    if (store.dirty.size) this.ask();
  }

  paintCell(i, first, now) {
    const {cell, width, pixels, store} = this, gap = gapOf(cell), size = cell - gap;
    const x = (i - first) % this.columns * cell, y = Math.floor((i - first) / this.columns) * cell, {colour, ink} = this.coloursOf(i, now);
    const rows = Math.min(size, this.height - y);
    for (let dy = 0; dy < rows; dy++) pixels.fill(colour, (y + dy) * width + x, (y + dy) * width + x + size);
    if (cell < DETAIL_CELL || rows < size) return;
    if (cell >= NAME_CELL) this.paintNumber(x + 4, y + 4, i, cell >= 72 ? 2 : 1, store.state[i] === 0 ? pack(GREY) : ink);
    if (store.state[i] === 0 || store.state[i] >= FOREIGN) return;
    this.paintRefs(x, y, size, i, ink);
    if (store.fill[i] >= store.blockSize && cell < NAME_CELL) return; // a bar in every full cell would be noise
    const level = Math.round((size - 4) * Math.min(1, store.fill[i] / store.blockSize)), bar = Math.max(1, Math.round(cell / 12));
    for (let dy = size - 2 - bar; dy < size - 2; dy++) pixels.fill(ink, (y + dy) * width + x + 2, (y + dy) * width + x + 2 + level);
  }

  paintRefs(x, y, size, i, ink) {
    const {store} = this;
    if (this.cell < DIGIT_CELL || store.refs[i] < 2) return;
    const refs = Math.min(99, store.refs[i]), scale = Math.max(1, Math.floor(size / 11)), wide = (String(refs).length * 4 - 1) * scale;
    this.paintNumber(x + Math.floor((size - wide) / 2), y + Math.floor((size - 6 * scale) / 2), refs, scale, ink);
  }

  paintNumber(left, top, number, scale, ink) {
    [...String(number)].forEach((digit, k) => DIGITS[digit].forEach((bits, row) => {
      for (let column = 0; column < 3; column++) {
        if (!(bits >> (2 - column) & 1)) continue;
        for (let dy = 0; dy < scale; dy++) {
          const at = (top + row * scale + dy) * this.width + left + (k * 4 + column) * scale;
          this.pixels.fill(ink, at, at + scale);
        }
      }
    }));
  }

  paintMarks(first, end, now) {
    const c = this.marks, {cell} = this, gap = gapOf(cell), line = Math.max(1, Math.min(3, Math.round(cell / 10)));
    const box = (i, colour, grow) => {
      if (i < first || i >= end) return;
      const x = (i - first) % this.columns * cell - grow, y = Math.floor((i - first) / this.columns) * cell - grow, size = cell - gap + 2 * grow;
      c.fillStyle = colour;
      c.fillRect(x, y, size, line);
      c.fillRect(x, y + size - line, size, line);
      c.fillRect(x, y, line, size);
      c.fillRect(x + size - line, y, line, size);
    };
    const ink = `rgb(${hexToRgb(PALETTES[this.theme].ink).join(', ')})`;
    c.clearRect(0, 0, this.width, this.height);
    for (const i of this.marked.size ? this.marked : this.chosen) box(i, ink, gap ? 1 : 0);
    for (const [i, begun] of this.flashes) {
      const age = (now - begun) / FLASH_S;
      if (age >= 1) this.flashes.delete(i);
      else box(i, ink, this.calm ? 1 : Math.round(1 + (1 - age) * 4));
    }
    if (this.cursor >= 0) box(this.cursor, ink, 2);
    if (this.flashes.size) this.ask();
  }
}
