"""Whether the numbers are those of before: ``python -m tests.golden --only fedprox``.

Runs the golden worlds, tiny runs, partitions and data sets of every entry, and compares their
numbers with those in ``tests/golden/numbers``, to 1e-9. All of them take two minutes on two cores.

    python -m tests.golden                        all of them
    python -m tests.golden --only "method fed"    those whose names have these words in them
    python -m tests.golden --only scaffold moon   those of either
    python -m tests.golden --only scaffold --list their names

The exit status is 1 if any differs. ``--certify``, which `make golden` says, runs all and writes
``fl/numbers.json`` anew: code whose numbers agree keeps its version; where they differ, the version
rises, the new numbers are kept, and the CHANGELOG gets a line. Bits of portable runs have a version
of their own (`golden.portable`).

    python -m tests.golden --state 1a2b3c4        certify an earlier commit, too

runs all worlds with the code of that commit. If they have the numbers that it kept, the hashes of
its code are other names of its versions from then on: runs that were trained there are found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "helpers"), str(TESTS.parent)]

from fl.base import identity  # noqa: E402
from fl.plan import certification  # noqa: E402
from golden import certify, defaults, kept, measure, pool, portable  # noqa: E402
from golden.measure import Fingerprint  # noqa: E402


def main() -> int:
    """The command."""
    assert __doc__
    parser = argparse.ArgumentParser(
        "python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="WORDS", default=[""])
    parser.add_argument("--list", action="store_true", help="the names of the worlds")
    parser.add_argument("--certify", action="store_true", help="write fl/numbers.json anew")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--state", metavar="COMMIT", help="certify an earlier commit, too")
    asked = parser.parse_args()
    if asked.state:
        return certified_state(asked.state, asked.processes)
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
    if asked.certify and len(names) == len(measure.names()):
        return certified(measured, before, differing)
    return bool(differing)


STATE_PROGRAM = """
import json
from fl.base import identity
from fl.plan import certification
hashes = {root: identity.root_hash(root) for root in certification.roots()}
print(json.dumps([identity.read_certified().versions, hashes]))
"""


def certified_state(commit: str, processes: int) -> int:
    """Certify an earlier commit, if its worlds have the numbers that it kept; the exit status."""
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(TESTS.parent), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True)
        try:
            words = [sys.executable, "-m", "tests.golden", "--processes", str(processes)]
            if subprocess.run(words, cwd=tree, env=environment).returncode:
                print(f"{commit}: nothing is certified, as its worlds differ")
                return 1
            words = [sys.executable, "-c", STATE_PROGRAM]
            output = subprocess.check_output(words, cwd=tree, env=environment)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    print(f"{commit}: {certification.certify_state(*json.loads(output))} hashes are names now")
    return 0


def certified(
    measured: Mapping[str, Fingerprint], before: Mapping[str, Fingerprint], differing: list[str]
) -> int:
    """Certify the code at hand with what was measured; the exit status."""
    broken = [name for name in differing if measured[name]["text"].startswith("Traceback")]
    known = identity.read_certified()
    changed = [
        root for root in certification.roots() if known.hashes.get(root) != identity.root_hash(root)
    ]
    old = [n for n in differing if n in before and before[n]["world"] == measured[n]["world"]]
    if broken or (old and not changed):
        why = "do not run" if broken else "differ though no code has changed: another PyTorch?"
        print(f"nothing is certified: {len(broken or old)} worlds {why}")
        return 1
    blamed = certify.risen(old, measured.keys() - set(differing), changed)
    blamed |= defaults.changed(defaults.now(), defaults.load()) | portable.certified()
    versions = certify.versions(known.versions, blamed)
    certification.certify(versions)
    defaults.save(defaults.now())
    kept.save(
        {name: measured[name] if name in differing else before[name] for name in measure.names()}
    )
    if blamed:
        raised = {name: versions[name] for name in blamed}
        print(f"CHANGELOG.md: {certify.line(raised)}")
        certify.CHANGELOG.write_text(certify.tell(certify.CHANGELOG.read_text(), raised))
    print(f"certified: {len(changed)} roots anew, {len(blamed)} under another version")
    return 0


if __name__ == "__main__":
    sys.exit(main())
