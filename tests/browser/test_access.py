#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every control has a name, every text a contrast of 4.5 to what is behind it, in light and dark, at 380 and 1920 pixels; and all of it works
without a mouse."""
from page import Daemon, Page, eventually, expect, finish

TABS = ["sequences", "tree", "waiting", "steps", "prefixes", "block", "checks", "workload", "tour"]

# What has no name: a control without a label, a label text, a title or text of its own; an image without one.
NAMELESS = """
const named = (e) => e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.labels?.length || e.title || e.textContent.trim();
return [...document.querySelectorAll('button, input, select, textarea, [role=img], [role=application], [role=tabpanel], [role=tab], canvas:not([aria-hidden]), progress, output')]
  .filter((e) => e.checkVisibility() && !named(e)).map((e) => e.outerHTML.slice(0, 120));
"""

# Text whose contrast to the ground behind it is below 4.5, as WCAG 2 counts it. Grounds are opaque colours here.
FAINT = """
const parse = (c) => c.match(/[\\d.]+/g).map(Number), lum = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), bad = [];
let seen = 0;
for (let node = walk.nextNode(); node; node = walk.nextNode()) {
  const e = node.parentElement;
  if (!node.data.trim() || !e.checkVisibility({opacityProperty: true, visibilityProperty: true}) || e.closest('script, noscript, option')) continue;
  seen++;
  const [x, y] = [lum(parse(getComputedStyle(e).color)), lum(ground(e))].sort((a, b) => b - a), ratio = (x + 0.05) / (y + 0.05);
  if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${node.data.trim().slice(0, 40)}`);
}
return {seen, bad};
"""

# Of the legend of steps: colours with a contrast below 3 to the ground, and pairs that are nearer than 0.1 in OKLab.
ALIKE = """
const parse = (c) => c.match(/[\\d.]+/g).slice(0, 3).map(Number), linear = (c) => parse(c).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const lum = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
const lab = ([r, g, b]) => {
  const [l, m, s] = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]].map(([x, y, z]) => Math.cbrt(x * r + y * g + z * b));
  return [0.2105 * l + 0.7936 * m - 0.0041 * s, 1.978 * l - 2.4286 * m + 0.4506 * s, 0.0259 * l + 0.7828 * m - 0.8087 * s];
};
const all = [...document.querySelectorAll('#steps-legend li')].filter((li) => li.querySelector('.swatch')).map((li) => [li.textContent, linear(getComputedStyle(li.querySelector('.swatch')).backgroundColor)]);
const ground = lum(linear(getComputedStyle(document.getElementById('views')).backgroundColor)), bad = [];
all.forEach(([name, colour], i) => {
  const [x, y] = [lum(colour), ground].sort((a, b) => b - a);
  if ((x + 0.05) / (y + 0.05) < 3) bad.push(name);
  for (const [other, its] of all.slice(i + 1)) if (Math.hypot(...lab(colour).map((v, k) => v - lab(its)[k])) < 0.1) bad.push(`${name}, ${other}`);
});
return {seen: all.length, bad};
"""

with Daemon("--config", "config/tiny.jsonc") as daemon, Page(daemon.url) as page:
    page.loaded()
    a = daemon.post("/v1/sequences", {})["id"]
    daemon.append(a, 6)
    daemon.post(f"/v1/sequences/{a}/fork", {"count": 2})
    eventually(lambda: page.script("return document.querySelectorAll('#sequence-list > li').length") == 3, "three sequences are listed")
    page.script("document.querySelector('#sequence-list .id').click()")
    for width in (1920, 380):
        page.resize(width, 900)
        for theme in ("light", "dark"):
            if page.script("return document.documentElement.dataset.theme") != theme:
                page.click("theme-button")
            for tab in TABS:
                page.tab(tab)
                page.script("for (const d of document.querySelectorAll('details')) d.open = true")
                page.settle()
                faint = page.script(FAINT)
                expect(f"{width} {theme} {tab}: every text can be read", [], faint["bad"])
                expect(f"{width} {theme} {tab}: it has text", True, faint["seen"] > 30)
                expect(f"{width} {theme} {tab}: every control has a name", [], page.script(NAMELESS))
                if tab == "steps":
                    expect(f"{width} {theme}: colours of steps can be told apart", {"seen": 7, "bad": []}, page.script(ALIKE))
                expect(f"{width} {theme} {tab}: it fits the window", True, page.script("const e = document.documentElement; return e.scrollWidth <= e.clientWidth"))
    for width in (1280, 1440, 1600, 1920):
        page.resize(width, 900)
        for tab in TABS:
            page.tab(tab)
            page.settle()
            expect(f"{width} {tab}: views are in one line", 1, page.script("return new Set([...document.querySelectorAll('#tabs button')].map((b) => b.getBoundingClientRect().top)).size"))
    page.resize(1920, 1000)

    # By keyboard alone: every control comes by Tab, and what has the focus shows it.
    page.tab("sequences")
    page.script("document.activeElement.blur(); window.scrollTo(0, 0)")
    order, body = [], page.driver.find_element("tag name", "body")
    for _ in range(80):
        page.driver.switch_to.active_element.send_keys("\ue004") if order else body.send_keys("\ue004")
        at = page.script("""const e = document.activeElement, s = getComputedStyle(e);
            return [e.id || e.name || e.className || e.tagName, s.outlineStyle !== 'none' || getComputedStyle(e.nextElementSibling ?? e).outlineStyle !== 'none']""")
        if order and at[0] == order[0][0]:
            break
        order.append(at)
    names = [name for name, _ in order]
    missing = [n for n in ("theme-button", "mode", "zoom-in", "map", "stop", "epoch", "tab-sequences", "sequence-filter", "sequence-sort") if n not in names]
    expect("Tab comes to every control", [], missing)
    expect("what has the focus is outlined", [], [n for n, outlined in order if not outlined and n not in ("BODY", "HTML")])
    tab = page.id("tab-sequences")
    page.script("arguments[0].focus()", tab)
    for key, want in (("\ue014", "tab-tree"), ("\ue014", "tab-waiting"), ("\ue012", "tab-tree"), ("\ue010", "tab-tour"), ("\ue011", "tab-sequences")):
        page.driver.switch_to.active_element.send_keys(key)
        expect(f"arrows choose a view: {want}", want, page.script("return document.activeElement.id"))
        expect(f"which is shown: {want}", True, page.script("return !document.getElementById(arguments[0]).hidden", want.replace("tab-", "view-")))
    page.script("document.getElementById('map').focus()")
    page.id("map").send_keys("\ue011\ue007")  # Home, Enter
    expect("Enter on a cell shows its life", "block 0 · shared · 3 references · 4 of 4 tokens · held by sequences 1, 2 and 3", page.text("block-sum"))
    expect("the browser has nothing to complain of", [], page.complaints())
finish()
