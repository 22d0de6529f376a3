"""Tables of the site, by its script and the one that it shares with reports, in a browser."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from browsing import CHROMIUM

from tools import site

ROOT = Path(__file__).parents[2]
SCRIPTS = (site.REPORT_TABLES, "docs/site/tables.js")
ROWS = "".join(
    f"<tr><td>Fed{i}</td><td>{'ab'[i % 2]}</td><td>{0.5 * i}</td><td>{i} MB</td></tr>"
    for i in range(1, 16)
)
ACTS = """<script>addEventListener("load", () => {
  const [table, block] = ["table", ".row-filters"].map((name) => document.querySelector(name));
  const [track, bytes] = block.querySelectorAll("select");
  const found = [];
  const note = () => found.push(
    [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[0].textContent)
  );
  const choose = (select, value) => {
    select.value = value;
    select.dispatchEvent(new Event("change"));
  };
  choose(track, "b"); note();
  choose(bytes, "2"); note();
  table.tHead.rows[0].cells[3].querySelector("button").click(); note();
  const field = block.querySelector("input");
  field.value = "fed3"; field.dispatchEvent(new Event("input")); note();
  found.push([block.querySelector("output").textContent]);
  const text = found.map((names) => names.join(",")).join(";");
  document.body.innerHTML = `<pre id="found">${text}</pre>`;
});</script>"""


def test_the_site_loads_the_scripts_in_their_order():
    config = (ROOT / "mkdocs.yml").read_text()
    assert "\nextra_javascript: [site/report-tables.js, site/tables.js]\n" in config


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: chromium)")
def test_a_long_table_is_filtered_by_words_choices_and_limits_and_sorted(tmp_path: Path):
    heads = "".join(f"<th>{name}</th>" for name in ("Method", "track", "bytes", "size"))
    scripts = "".join(f"<script>{(ROOT / name).read_text()}</script>" for name in SCRIPTS)
    (tmp_path / "page.html").write_text(
        '<!doctype html><body><div class="md-content">'
        '<div class="table-filters" data-choices="track" data-limits="bytes"></div><p>Caption.</p>'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{ROWS}</tbody></table></div>{scripts}{ACTS}"
    )
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]
    command += [(tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    [found] = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    odd, small, sorted_, one, count = found.split(";")
    assert odd == "Fed1,Fed3,Fed5,Fed7,Fed9,Fed11,Fed13,Fed15"
    assert (small, sorted_, one) == ("Fed1,Fed3", "Fed3,Fed1", "Fed3")
    assert count == "1 of 15 rows"
