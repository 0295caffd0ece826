// SPDX-License-Identifier: Apache-2.0
// dom.js - elements, made of names and text. Text from the daemon only ever becomes text: nothing here reads markup.

export const $ = (id) => document.getElementById(id);

// h('button', {class: 'small', onclick: f}, 'text', element, ...)
export function h(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
    else if (key === 'class') e.className = value;
    else if (key === 'dataset') Object.assign(e.dataset, value);
    else if (value === true) e.setAttribute(key, '');
    else e.setAttribute(key, String(value));
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false).map((c) => c instanceof Node ? c : String(c)));
  return e;
}

export function fill(e, ...children) {
  e.replaceChildren(...children.flat().filter((c) => c !== null && c !== undefined && c !== false).map((c) => c instanceof Node ? c : String(c)));
  return e;
}

// setText(e, text): without a change where there is none, so that a selection stays.
export function setText(e, text) {
  if (e.textContent !== String(text)) e.textContent = String(text);
}

export const rgb = ([r, g, b]) => `rgb(${r}, ${g}, ${b})`;

// A swatch of a colour.
export function swatch(colour) {
  const e = h('span', {class: 'swatch', 'aria-hidden': 'true'});
  e.style.backgroundColor = rgb(colour);
  return e;
}

// update(parent, items, key, make, change): children of `parent`, one an item, in that order; those that stay are kept.
export function update(parent, items, key, make, change) {
  const old = new Map([...parent.children].map((e) => [e.dataset.key, e]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let e = old.get(name);
    if (!e) {
      e = make(item);
      e.dataset.key = name;
    }
    old.delete(name);
    change?.(e, item);
    if (e === at) at = at.nextElementSibling;
    else parent.insertBefore(e, at);
  }
  for (const e of old.values()) e.remove();
}

// context2d(canvas, width, height): in pixels of the screen, nothing smoothed.
export function context2d(canvas, width, height) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.width = `${width / ratio}px`;
  canvas.style.height = `${height / ratio}px`;
  const c = canvas.getContext('2d', {alpha: true});
  c.imageSmoothingEnabled = false;
  return c;
}
