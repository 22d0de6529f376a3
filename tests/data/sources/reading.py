"""A data set fetched over HTTP and prepared, as a user's run does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl.data import Dataset, Supply, prepare
from fl.data.prepared import Prepared
from sources.server import serving


def read(dataset: Dataset, folder: Path, write: Callable[..., Any], **content: Any) -> Prepared:
    """``dataset`` prepared in ``folder/prepared`` from the files that ``write`` makes."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    write(site, **content)
    with serving(site) as server:
        prepare(dataset, "it", folder / "raw", folder / "prepared", Supply(server.url))
    found = Prepared.open(folder / "prepared")
    found.verify()
    return found
