"""A page in Chromium, measured at any width by a script in a copy of it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

EARLY = """<script>
window.problemsSeen = [];
addEventListener("error", (e) => problemsSeen.push(String(e.message)));
addEventListener("unhandledrejection", (e) => problemsSeen.push(String(e.reason)));
for (const kind of ["error", "warn"]) {
  console[kind] = (...words) => problemsSeen.push(words.join(" "));
}
</script>"""
LATE = """<script>
(() => {
function boxes() {
  return [...document.querySelectorAll(".scroll")].filter((b) => b.clientWidth).map((box) => {
    const hint = box.parentElement.querySelector(":scope > .hint");
    return {
      name: box.getAttribute("aria-label"),
      over: box.scrollWidth - box.clientWidth,
      hinted: Boolean(hint && hint.offsetHeight),
      shaded: getComputedStyle(box).backgroundImage.includes("gradient"),
    };
  });
}
function measured() {
  const wide = [...document.querySelectorAll("body *")].filter((e) => {
    const { right, width } = e.getBoundingClientRect();
    const inside = e.parentElement.closest(".scroll, svg");
    return width && !inside && right > innerWidth + 1;
  });
  const links = [...document.querySelectorAll("a[href]")].map((a) => a.getAttribute("href"));
  return {
    width: innerWidth,
    page: document.documentElement.scrollWidth,
    wide: wide.map((e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`),
    boxes: boxes(),
    links: links.length,
    dead: links.filter((h) => !h.startsWith("#") || !document.getElementById(h.slice(1))),
    problems: problemsSeen,
  };
}
addEventListener("load", () => {
  document.querySelectorAll("details").forEach((d) => { d.open = true; });
  setTimeout(() => parent.postMessage(measured(), "*"), 500);
});
})();
</script>"""
FRAME = """<!doctype html><html><body><pre id="found"></pre><script>
addEventListener("message", (e) => {
  document.getElementById("found").textContent += JSON.stringify(e.data) + "\\n";
});
</script>%s</body></html>"""


def measure(page: str, widths: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Measurements of ``page``, all its folds open, at each width in CSS pixels."""
    assert CHROMIUM is not None
    probed = page.replace("<head>", f"<head>{EARLY}").replace("</body>", f"{LATE}</body>")
    # A frame may be as narrow as a phone; a window may not.
    frames = (
        f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{html.escape(probed)}">'
        "</iframe>"
        for width in widths
    )
    path = folder / "framed.html"
    path.write_text(FRAME % "".join(frames))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1500,1000"]
    command += ["--virtual-time-budget=20000", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert found, f"{done.returncode}: {done.stderr[-2000:]}"
    each = [json.loads(line) for line in html.unescape(found.group(1)).splitlines()]
    return sorted(each, key=lambda one: widths.index(one["width"]))
