"""A headless Chromium that walks over a site and says what it saw; nothing but the browser is needed.

A page of our own, served beside the site, opens every page in a frame, looks, and posts what it found.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WALK = """<!doctype html><meta charset="utf-8"><body><script>
const seen = [];
const wait = ms => new Promise(done => setTimeout(done, ms));
const known = new Map();
async function there(url) {
  if (!known.has(url)) known.set(url, fetch(url, {method: "HEAD"}).then(r => r.ok, () => false));
  return known.get(url);
}
async function opened(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px`;
  const loaded = new Promise(done => frame.onload = done);
  frame.src = page;
  document.body.append(frame);
  await loaded;
  await wait(60);
  return frame;
}
async function looked(page, width) {
  const frame = await opened(page, width), view = frame.contentWindow, doc = frame.contentDocument;
  const found = {page, width, title: doc.title, heading: "", wide: 0, images: [], links: [], hidden: []};
  const h1 = doc.querySelector("h1");
  if (h1 && h1.getBoundingClientRect().height > 10) found.heading = h1.textContent;
  found.wide = doc.documentElement.scrollWidth - doc.documentElement.clientWidth;
  for (const image of doc.images) {
    image.loading = "eager";
    await image.decode().catch(() => 0);
    if (!image.naturalWidth) found.images.push(image.src);
  }
  for (const code of doc.querySelectorAll("article pre code, article table, article svg"))
    if (!code.getClientRects().length && !code.closest("details"))
      found.hidden.push(code.outerHTML.slice(0, 60));
  if (width > 600) for (const link of doc.querySelectorAll("a[href]")) {
    const url = new URL(link.href);
    if (url.origin !== location.origin) continue;
    const id = decodeURIComponent(url.hash.slice(1)), here = url.pathname === view.location.pathname;
    const right = here ? !id || doc.getElementById(id) : await there(url.origin + url.pathname);
    if (!right) found.links.push(link.href);
  }
  seen.push(found);
  frame.remove();
}
async function searched(page, word) {
  const frame = await opened(page, 1200), doc = frame.contentDocument;
  const box = doc.querySelector("input.md-search__input");
  box.focus(); box.value = word;
  for (const kind of ["focus", "input", "keyup"]) box.dispatchEvent(new Event(kind, {bubbles: true}));
  for (let i = 0; i < 100 && !doc.querySelector(".md-search-result__item"); i++) await wait(100);
  const texts = [...doc.querySelectorAll(".md-search-result__item h1")].map(e => e.textContent.trim());
  frame.remove();
  return texts;
}
(async () => {
  const asked = await (await fetch("/-/pages")).json();
  let error = "", found = [];
  try {
    for (const width of [1200, 390]) for (const page of asked.pages) await looked(page, width);
    found = await searched(asked.pages[0], asked.word);
  } catch (e) { error = `${e} ${e.stack}`; }
  await fetch("/-/seen", {method: "POST", body: JSON.stringify({seen, searched: found, error})});
})();
</script>"""


def browser() -> str | None:
    """The path of a Chromium that is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class _Handler(SimpleHTTPRequestHandler):
    """The site, the page that walks over it, and what that page posts."""

    def __init__(self, *args: Any, asked: dict[str, Any], posted: Queue[Any], **options: Any) -> None:
        self.asked, self.posted = asked, posted
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        answers = {"/-/": (WALK, "text/html"), "/-/pages": (json.dumps(self.asked), "application/json")}
        if self.path not in answers:
            return super().do_GET()
        text, kind = answers[self.path]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())
        return None

    def do_POST(self) -> None:
        self.posted.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Requests are not printed."""


def walked(site: Path, pages: list[str], word: str, profile: Path, seconds: float) -> tuple[dict, list[str]]:
    """What the browser saw on each page, and what its console said."""
    posted: Queue[Any] = Queue()
    asked = {"pages": [f"/{page}" for page in pages], "word": word}
    handler = partial(_Handler, directory=str(site), asked=asked, posted=posted)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--no-first-run",
        "--disable-background-networking", f"--user-data-dir={profile}",
        f"http://127.0.0.1:{server.server_port}/-/",
    ]  # fmt: skip
    log = profile.with_suffix(".log")
    with (
        log.open("w") as stderr,
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=stderr) as running,
    ):
        try:
            found = posted.get(timeout=seconds)
        finally:
            running.terminate()
            server.shutdown()
    said = [line for line in log.read_text(errors="replace").splitlines() if "CONSOLE" in line]
    return found, said
