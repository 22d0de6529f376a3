"""Whether the numbers are those of before: ``python -m tests.golden --only fedprox``.

Runs the golden worlds, tiny runs, partitions and data sets of every entry, and compares their
numbers with those in ``tests/golden/numbers``, to 1e-9. All of them take two minutes on two cores.

    python -m tests.golden                        all of them
    python -m tests.golden --only "method fed"    those whose names have these words in them
    python -m tests.golden --only scaffold moon   those of either
    python -m tests.golden --only scaffold --list their names

The exit status is 1 if any differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "helpers"), str(TESTS / "data"), str(TESTS.parent)]

from golden import kept, measure, pool  # noqa: E402


def main() -> int:
    """The command."""
    assert __doc__
    parser = argparse.ArgumentParser(
        "python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="WORDS", default=[""])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    names = [name for name in measure.names() if any(words in name for words in asked.only)]
    if asked.list:
        print(*names, sep="\n")
        return 0
    begun, before = time.monotonic(), kept.load()
    measured, differing = {}, []
    for name, fingerprint in pool.measured(names, asked.processes):
        measured[name] = fingerprint
        if problem := kept.difference(name, fingerprint, before.get(name)):
            print(f"{name}: {problem}", flush=True)
            differing.append(name)
    seconds = time.monotonic() - begun
    print(f"{len(names)} worlds in {seconds:.0f} s, of which {len(differing)} differ")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
