"""Pictures of ``docs/guide/many-methods.md``: ``python -m tools.many_methods`` in a clone.

The study is the first block of Python on the page; its report has the pictures.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

PAGE = Path("docs/guide/many-methods.md")
PICTURES = {
    "intervals-alpha-0_1": "intervals",
    "map": "map",
    "ranks-alpha-0_1": "ranks",
}
"""Names on the page, by those of the report's files."""


def main() -> None:
    """Run the study, and copy the pictures of its report beside the page."""
    study, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    exec(compile(study, str(PAGE), "exec"), {})
    folder = PAGE.with_suffix("")
    folder.mkdir(exist_ok=True)
    for source, name in PICTURES.items():
        shutil.copyfile(Path("results/report/many") / f"{source}.svg", folder / f"{name}.svg")


if __name__ == "__main__":
    argparse.ArgumentParser("python -m tools.many_methods", description=__doc__).parse_args()
    main()
