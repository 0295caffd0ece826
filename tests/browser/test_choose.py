#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A sequence is chosen by its row, with the mouse and by keyboard: its blocks are framed in the map for as long as it has them, also behind another
tab. And at 1400 pixels no label of a step runs over its value. Time that nobody uses a sequence goes on, and a daemon that is gone is seen to be."""
import re

from selenium.webdriver.common.action_chains import ActionChains

from page import Daemon, Page, eventually, expect, finish

ROW = "[...document.querySelectorAll('#sequence-list > li')].find((li) => li.querySelector('.id').textContent === String(arguments[0]))"
# Cells of the map with a frame: a pixel in the middle of the upper edge is drawn on.
FRAMED = """
const o = document.getElementById('overlay'), {cell, columns, first} = document.getElementById('map').dataset, c = o.getContext('2d'), framed = [];
const pixels = c.getImageData(0, 0, o.width, o.height).data, size = +cell;
for (let i = 0; i < columns * Math.floor(o.height / size); i++)
  if (pixels[4 * ((Math.floor(i / columns) * size + 1) * o.width + i % columns * size + (size >> 1)) + 3]) framed.push(i + +first);
return framed;
"""


def listed(page, count):
    eventually(lambda: page.script("return document.querySelectorAll('#sequence-list > li').length") == count, f"{count} sequences are listed")


def chosen(page):
    return page.script("return document.querySelector('#sequence-list > li[aria-current=true] .id')?.textContent ?? null")


def framed(page, want, what):
    expect(what, True, eventually(lambda: page.script(FRAMED) == want, what))  # of one look: what has just changed is framed, too


def rest_of(page):
    return page.script("return document.querySelector('#sequence-list .right').textContent")


with Daemon("--config", "config/tiny.jsonc") as daemon, Page(daemon.url, 1400, 900) as page:
    page.loaded()
    eventually(lambda: "New sequence" in page.text("sequences-more"), "where there is none, the page names the button that makes one")
    expect("the frames are in the legend", "framed: chosen, pointed at, or just changed", page.script("return document.querySelector('#legend [data-state=framed]').textContent"))
    a = daemon.post("/v1/sequences", {})["id"]
    daemon.append(a, 6)
    page.script("document.querySelector('#sequence-form button[type=submit]').click()")
    listed(page, 2)
    b = str(a + 1)
    eventually(lambda: page.text("sequence-new-message") == f"Sequence {b} is there, and has no tokens.", "what was made is said")
    expect("and it is chosen", b, chosen(page))

    page.script(f"{ROW}.querySelector('.right').click()", a)
    eventually(lambda: chosen(page) == str(a), "a press anywhere in a row chooses its sequence")
    expect("what was said of another one is gone", True, page.script("return document.getElementById('sequence-new-message').hidden"))
    framed(page, [0, 1], "its blocks are framed")
    daemon.append(a, 4)
    framed(page, [0, 1, 2], "so is one that it takes later")

    daemon.append(a + 1, 1)
    eventually(lambda: "1 token" in page.text("sequence-list"), "the other one has a token")
    expect("one of something is no plural", [], page.script("return document.body.innerText.match(/\\b1 (layers|blocks|tokens|steps|sequences)\\b/g) ?? []"))
    button = page.script(f"return {ROW}.querySelector('.id')", b)
    page.script("arguments[0].focus()", button)
    button.send_keys("\ue007")  # Enter
    eventually(lambda: chosen(page) == b, "Enter chooses a row")
    framed(page, [3], "its block is framed instead")
    button = page.script(f"return {ROW}.querySelector('.id')", a)
    page.script("arguments[0].focus()", button)
    button.send_keys(" ")
    eventually(lambda: chosen(page) == str(a), "so does Space")

    row = page.script(f"return {ROW}", a)
    canvas = page.script("return arguments[0].querySelector('canvas')", row)
    ActionChains(page.driver).move_to_element(canvas).perform()
    eventually(lambda: len(page.script(FRAMED)) == 1, "what is pointed at is framed alone")
    ActionChains(page.driver).move_to_element(page.id("sequence-filter")).perform()
    framed(page, [0, 1, 2], "and then what is chosen again")

    page.tab("block")
    framed(page, [0], "the Block tab frames its block")
    page.tab("steps")
    framed(page, [0, 1, 2], "another tab what is chosen")
    eventually(lambda: page.script("return document.querySelectorAll('#step-table tr').length") > 10, "the latest step is shown")
    expect("no label runs over its value (bug: appended tokens, of clients at each layer)", [], page.script("""
        return [...document.querySelectorAll('#step-table tr')].filter((tr) => {
          const text = document.createRange(), td = tr.lastElementChild.getBoundingClientRect(), cell = tr.getBoundingClientRect();
          text.selectNodeContents(tr.firstElementChild);
          return text.getBoundingClientRect().right > td.left || td.right > cell.right + 1;
        }).map((tr) => tr.textContent);"""))
    daemon.curl(f"/v1/sequences/{a}", "-X", "DELETE")
    framed(page, [], "free cells have no frames (bug: they stayed, behind another tab)")
    page.tab("sequences")
    listed(page, 1)

    eventually(lambda: re.fullmatch(r"1 block · [1-9]\d* s idle", rest_of(page)), "nothing changes, and yet the time that nobody uses it is seen to go on")
    before = rest_of(page)
    eventually(lambda: rest_of(page) != before, "and on")
    page.script("document.querySelector('#sequence-form textarea').value = '1 2 3'; document.querySelector('#sequence-form button[type=submit]').click()")
    eventually(lambda: page.text("sequence-new-message") == f"Sequence {a + 2}: 0 tokens of its prompt were in the cache.", "of a prompt it is said how much was cached")
    eventually(lambda: page.script("return document.querySelector('#sequence-chosen button') !== null && document.querySelector('#sequence-chosen b').textContent") == f"Sequence {a + 2}", "it is chosen")
    page.script("[...document.querySelectorAll('#sequence-chosen button')].find((b) => b.textContent === 'Append a token').click()")
    eventually(lambda: page.script("return document.getElementById('sequence-new-message').hidden"), "and no longer, once something else is done with it")
    expect("the browser has nothing to complain of", [], page.complaints())

    grey = "return getComputedStyle(document.getElementById('map-panel')).filter"
    expect("what is shown is new", [True, "none"], [page.script("return document.getElementById('stale').hidden"), page.script(grey)])
    daemon.process.kill()
    eventually(lambda: re.fullmatch(r"All that is shown is [1-9]\d* s old\.", page.text("stale")), "when the daemon is gone, it is said how old that is")
    expect("and it looks old", "grayscale(1)", page.script(grey))
finish()
