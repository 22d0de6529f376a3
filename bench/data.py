"""Preparing, opening and gathering real data: ``python -m bench.data``.

CIFAR-10 is measured at its full size, on an archive in its own format with random pixels (which
compress about as badly as photographs). Preparing is everything from the archive in a folder of the
user's own to the finished arrays, checksums included, in a process of its own. Memory is that
process's largest: all of it, without the pages of files that the system can drop, and of that what
preparing added. Batches are gathered from pages that the system holds already, from the map and
from memory in turn; the shortest time of each counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "data"))

import sources  # noqa: E402

from fl import data, registry  # noqa: E402
from fl.data import Supply  # noqa: E402
from fl.data.prepared import Prepared  # noqa: E402
from fl.errors import Where  # noqa: E402

BATCH, BATCHES = 64, 200


def memory(key: str) -> int:
    """A line of /proc/self/status, in bytes: ``VmHWM``, ``RssAnon``."""
    text = Path("/proc/self/status").read_text()
    [line] = [line for line in text.splitlines() if line.startswith(f"{key}:")]
    return int(line.split()[1]) * 1024


def prepare(name: str, files: Path, root: Path) -> dict[str, float]:
    """Prepare a set from ``files`` in this process: seconds, and the largest memory in bytes."""
    where = Where("bench")
    entry = registry.find("data set", name, where)
    dataset = entry.make(entry.parse(sources.generator(name).PARAMS, where))
    largest, done, before = [0], threading.Event(), memory("RssAnon")

    def watch() -> None:
        while not done.wait(0.002):
            largest[0] = max(largest[0], memory("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    data.prepare(dataset, name, root / "raw", root / "prepared", Supply(str(files)))
    seconds = time.perf_counter() - begun
    done.set()
    watcher.join()
    return {
        "seconds": seconds,
        "largest": memory("VmHWM"),
        "own": largest[0],
        "added": largest[0] - before,
    }


def apart(name: str, files: Path, root: Path) -> dict[str, float]:
    """`prepare` in a process of its own."""
    command = [sys.executable, "-m", "bench.data", "--prepare", name, str(files), str(root)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return dict(json.loads(told.stdout))


def fastest(action: Callable[[], object], repeats: int) -> float:
    """The shortest time of an action, in seconds."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        action()
        times.append(time.perf_counter() - begun)
    return min(times)


def gathers(folder: Path, repeats: int) -> tuple[float, float]:
    """Seconds to gather a batch of 64 from the map, and from the same array in memory."""
    mapped = Prepared.open(folder).x
    held, draw = np.array(mapped), np.random.default_rng(0)
    places = [draw.integers(0, len(held), BATCH) for _ in range(BATCHES)]
    times = [
        [fastest(lambda x=x: [x[p] for p in places], 1) for x in (mapped, held)]
        for _ in range(repeats)
    ]
    first, second = (min(side) / BATCHES for side in zip(*times, strict=True))
    return first, second


def line(name: str, found: dict[str, float]) -> str:
    """A row of the table of preparing."""
    sizes = " | ".join(f"{found[key] / 1e6:,.0f}" for key in ("largest", "own", "added"))
    return f"| {name} | {found['seconds']:.1f} | {sizes} |"


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000, help="of each of the six batches")
    parser.add_argument(
        "--sets", nargs="*", default=[], help="prepare these generated sets as well"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prepare", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.prepare:
        name, files, root = asked.prepare
        print(json.dumps(prepare(name, Path(files), Path(root))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        print("| prepared | seconds | largest, MB | without file pages, MB | of it preparing, MB |")
        print("|---|---:|---:|---:|---:|")
        for name in ["cifar10", *asked.sets]:
            files = work / f"{name}-files"
            files.mkdir()
            size = {"size": asked.images} if name == "cifar10" else {}
            sources.generator(name).write(files, **size)
            print(line(name, apart(name, files, work / name)), flush=True)
        folder = work / "cifar10" / "prepared"
        opening = fastest(lambda: Prepared.open(folder), asked.repeats)
        mapped, held = gathers(folder, asked.repeats)
        print(f"\nopening: {1e3 * opening:.1f} ms")
        print(
            f"a batch of {BATCH}: {1e6 * mapped:.0f} us from the map, {1e6 * held:.0f} us from"
            f" memory, {mapped / held:.2f}x"
        )


if __name__ == "__main__":
    main()
