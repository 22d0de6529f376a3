"""README's picture: the top of the report of the study ``quickstart``.

``make demo`` makes the report; ``python -m tools.picture`` photographs it with Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from fl.base.files import write_bytes

PAGE = Path("results/report/quickstart.html")
PICTURE = Path("docs/report.png")
WIDTH, HEIGHT = 940, 1700
"""Size in pixels."""
COLOURS = 64
"""Colours of the picture, which keep its file small."""


def main(page: Path) -> int:
    """Write the picture of a report's page."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or not page.exists():
        print(f"needs chromium and {page}, which `make demo` writes", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "page.png"
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}", f"--window-size={WIDTH},{HEIGHT}"]
        command += [f"--screenshot={whole}", page.absolute().as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        content = io.BytesIO()
        Image.open(whole).convert("RGB").quantize(COLOURS).save(content, "png", optimize=True)
    write_bytes(PICTURE, content.getvalue())
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tools.picture", description=__doc__)
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    sys.exit(main(parser.parse_args().page))
