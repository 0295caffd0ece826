# SPDX-License-Identifier: Apache-2.0
"""page.py - what the browser's tests share: a daemon, a browser that has its page, and cells read from the map's pixels.

    with Daemon("--config", "config/tiny.jsonc") as daemon, Page(daemon.url) as page:
        page.until(lambda: page.states()[0] == "held", "a block is held")

Tests wait for events; the bound only ends what hangs. Each prints "ok NAME" or "not ok NAME: ..." lines; finish() ends the script."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

HANG_S = 600
ATTND = os.environ.get("ATTND", "build/release/attnd")
failed = False


def expect(name, want, got):
    global failed
    if want == got:
        print(f"ok {name}", flush=True)
    else:
        failed = True
        print(f"not ok {name}: wanted {str(want)[:600]!r}, got {str(got)[:600]!r}", flush=True)


def finish():
    sys.exit(1 if failed else 0)


def eventually(condition, what):
    """Wait until condition() is true; its value."""
    end = time.monotonic() + HANG_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise SystemExit(f"not ok {what}: it has not come")
        time.sleep(0.02)


class Daemon:
    """A daemon on a port that the kernel has chosen."""

    def __init__(self, *arguments, key=None):
        self.work = tempfile.TemporaryDirectory(prefix="attnd-page-")
        self.key = key
        self.log = os.path.join(self.work.name, "log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([ATTND, "--set", "listen=127.0.0.1:0", *arguments], stderr=log)
        self.url = eventually(self.listening, "the daemon starts")

    def listening(self):
        if self.process.poll() is not None:
            raise SystemExit("not ok the daemon starts: " + open(self.log).read())
        found = re.search(r"listening on (http[^\"\s]*)", open(self.log).read())
        return found and found.group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.work.cleanup()

    def curl(self, path, *arguments):
        key = ["-H", f"Authorization: Bearer {self.key}"] if self.key else []
        return subprocess.run(["curl", "-s", *key, *arguments, self.url + path], capture_output=True, text=True, check=True).stdout

    def get(self, path, *arguments):
        return json.loads(self.curl(path, *arguments))

    def post(self, path, body):
        return self.get(path, "--json", json.dumps(body))

    def append(self, sequence, tokens, head_dim=8):
        """Tokens of zeros, for config/tiny.jsonc."""
        rows = [[[0] * head_dim]] * tokens
        return self.post("/v1/append", {"sequences": [sequence], "indptr": [0, tokens], "k": rows, "v": rows})

    def blocks(self, **query):
        """All blocks, page by page, as {block: (state, refs, fill, owner)}, and their epoch; None: status of the problem."""
        blocks, cursor = {}, 0
        while cursor is not None:
            text = "&".join(f"{k}={v}" for k, v in {"limit": 1000, "format": "columns", "cursor": cursor, **query}.items())
            page = self.get(f"/v1/blocks?{text}")
            if "status" in page:
                return None, page["status"]
            blocks.update({b: page_of for b, *page_of in zip(page["block"], page["state"], page["refs"], page["fill"], page["owner"])})
            cursor = page["next"]
        return blocks, page["epoch"]


def shown(state, refs):
    """What the map shows a block as."""
    return "shared" if state == "held" and refs > 1 else state


# The colour of the upper left pixel of every cell in view, and those of the legend, as the browser has them.
READ_CELLS = """
const map = document.getElementById('map'), c = map.getContext('2d'), cell = +map.dataset.cell, columns = +map.dataset.columns, first = +map.dataset.first;
const pixels = c.getImageData(0, 0, map.width, map.height).data, rows = Math.floor(map.height / cell), cells = [];
for (let i = 0; i < rows * columns; i++) {
  const at = 4 * (Math.floor(i / columns) * cell * map.width + i % columns * cell);
  if (pixels[at + 3] !== 0) cells.push(`rgb(${pixels[at]}, ${pixels[at + 1]}, ${pixels[at + 2]})`);
}
const legend = {};
for (const li of document.querySelectorAll('#legend li')) {
  const swatch = li.querySelector('.swatch');
  if (swatch) legend[getComputedStyle(swatch).backgroundColor] = li.dataset.state;
}
return {first, cells, legend};
"""


class Page:
    """A browser with the page open."""

    def __init__(self, url, width=1920, height=1000, dark=False, open_it=True, log_requests=False):
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}",
                         "--ignore-certificate-errors"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", **({"performance": "ALL"} if log_requests else {})})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        self.driver.set_script_timeout(HANG_S)
        self.url = url
        self.messages = []
        self.resize(width, height)
        self.theme(dark)
        if open_it:
            self.open()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()

    def resize(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def theme(self, dark):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def open(self):
        self.driver.get(self.url + "/")
        return self

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def id(self, name):
        return self.driver.find_element("id", name)

    def click(self, name):
        self.script("document.getElementById(arguments[0]).click()", name)

    def text(self, name):
        return self.script("return document.getElementById(arguments[0]).textContent", name)

    def set(self, name, value):
        """Type a value as a user does, events and all."""
        self.script("""const e = document.getElementById(arguments[0]); e.value = arguments[1];
            e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change', {bubbles: true}));""", name, value)

    def tab(self, name):
        self.click(f"tab-{name}")

    def until(self, condition, what):
        return eventually(condition, what)

    def loaded(self):
        self.until(lambda: self.script("return document.getElementById('map').dataset.loaded"), "the map is read")
        self.settle()

    def states(self):
        """State names of the cells in view, by their pixels and the legend's."""
        read = self.script(READ_CELLS)
        return [read["legend"].get(colour, colour) for colour in read["cells"]]

    def wait_stopped(self, epoch):
        self.until(lambda: self.script("const d = document.getElementById('map-panel').dataset; return d.stopped === 'yes' && d.epoch === arguments[0]", str(epoch)),
                   f"the page shows epoch {epoch}")
        self.settle()

    def settle(self):
        """Two frames have been drawn."""
        self.driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)))")

    def complaints(self):
        """What the browser's console says, but for refused requests, which the page asks on purpose, and for what the tests read pixels by."""
        self.messages += self.driver.get_log("browser")
        return [m["message"] for m in self.messages if not re.search("Failed to load resource|willReadFrequently", m["message"])]
