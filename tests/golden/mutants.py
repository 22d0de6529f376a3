"""Whether the goldens can fail: one-line mutants of what decides numbers, and who catches them.

    python -m tests.golden.mutants             60 of them, drawn by a seed; takes half an hour
    python -m tests.golden.mutants --seed 2 --count 20

A mutant changes an operator, a sign, a constant or an order in one line of a copy of ``fl``. It is
caught if a world has other numbers, or breaks. The worlds that can reach its file come first.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
POOL = ("api", "parts", "engine", "methods", "data/schemes")
ELSEWHERE = {
    "api/protocols.py": "types",
    "engine/backends.py": "the loop is one of them; the contract compares the others with it",
    "engine/compiled.py": "another backend",
    "engine/midway.py": "states of a round that was left",
    "engine/processes.py": "several processes",
    "engine/turns.py": "in which order GPUs compute",
}
"""Files that the goldens do not look at, as they decide no number of a run on the loop backend."""

SWAPS: dict[type, type] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult},
}


FIRST = (
    *(
        "core: unseen",
        "core: stragglers kept",
        "core: tested on reweighted",
        "method ditto: images",
    ),
    *("method fedprox: plain", "method vhl: images", "method fedavg: modalities", "core"),
)


class Mutant(NamedTuple):
    """A file of ``fl`` with one line changed."""

    file: str
    line: int
    before: str
    after: str
    text: str


def mutant(file: str, draw: random.Random) -> Mutant | None:
    """One of the mutants of a file; None if it has none."""
    tree = ast.parse((ROOT / "fl" / file).read_text())
    places = list(_places(tree))
    if not places:
        return None
    node = draw.choice(places)
    before = ast.unparse(node)
    _mutate(node)
    return Mutant(file, node.lineno, before, ast.unparse(node), ast.unparse(tree))


def _places(tree: ast.AST) -> Iterator[Any]:
    """What can be changed: in functions, outside checks that raise and outside annotations."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and "check" not in function.name:
            yield from _within(function.body)


def _within(nodes: list[Any]) -> Iterator[Any]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.Raise | ast.Assert | ast.JoinedStr):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":  # Of zip: a check.
            continue
        if isinstance(node, ast.If) and any(isinstance(inner, ast.Raise) for inner in node.body):
            yield from _within(node.orelse)
            continue
        if _can_mutate(node):
            yield node
        children = [c for c in ast.iter_child_nodes(node) if not isinstance(c, ast.expr_context)]
        if isinstance(node, ast.AnnAssign):
            children = [node.value] if node.value else []
        yield from _within(children)


def _can_mutate(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        texts = (node.left, node.right)
        return type(node.op) in SWAPS and not any(
            isinstance(t, ast.JoinedStr)
            or (isinstance(t, ast.Constant) and isinstance(t.value, str))
            for t in texts
        )
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in SWAPS
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float, bool)


def _mutate(node: Any) -> None:
    if isinstance(node, ast.BinOp):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops = [SWAPS[type(node.ops[0])]()]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
    elif isinstance(node.value, bool):
        node.value = not node.value
    else:
        node.value = node.value + 1 if isinstance(node.value, int) else node.value * 2 or 1.0


def drawn(seed: int, count: int) -> list[Mutant]:
    """Mutants of files drawn with equal chance from every folder, no two of one line."""
    draw, chosen = random.Random(seed), dict[tuple[str, int], Mutant]()
    files = {
        folder: sorted(
            path.relative_to(ROOT / "fl").as_posix()
            for path in (ROOT / "fl" / folder).rglob("*.py")
            if path.relative_to(ROOT / "fl").as_posix() not in ELSEWHERE
        )
        for folder in POOL
    }
    while len(chosen) < count:
        file = draw.choice(files[POOL[len(chosen) % len(POOL)]])
        if found := mutant(file, draw):
            chosen.setdefault((found.file, found.line), found)
    return list(chosen.values())


def caught(mutant: Mutant) -> tuple[Mutant, str, float]:
    """The world that catches a mutant, "" if none does, and the seconds that it took."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("fl", "tests/golden", "tests/data", "tests/helpers"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        (Path(folder) / "fl" / mutant.file).write_text(mutant.text)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            try:
                found = _catching(Path(folder), mutant)
            except BaseException as error:
                found = f"does not start: {type(error).__name__}"
            os.write(write, found.encode())
            os._exit(0)
        os.close(write)
        found = os.read(read, 4096).decode()
        os.close(read)
        os.waitpid(child, 0)
    return mutant, found, time.monotonic() - begun


def _catching(root: Path, mutant: Mutant) -> str:
    """The first world whose numbers differ."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("fl", "golden", "sources")]:
        del sys.modules[name]
    sys.path[:] = [str(root / p) for p in ("tests", "tests/helpers", "tests/data", ".")] + sys.path
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    from golden import kept, measure

    before = kept.load()
    for name in _ordered(root, mutant.file, list(measure.names())):
        try:
            if kept.difference(name, measure.fingerprint(name), before.get(name)):
                return name
        except Exception as error:
            return f"{name} ({type(error).__name__})"
    return ""


def _ordered(root: Path, file: str, names: list[str]) -> list[str]:
    """The worlds that can reach a file, those first that are likely to."""
    folder, stem = file.split("/")[0], Path(file).stem
    if folder == "data":
        return [name for name in names if name.startswith("scheme")]
    runs = [name for name in names if not name.startswith(("scheme", "data"))]
    if folder in ("api", "engine"):
        first = [name for name in names if name.startswith(FIRST)]
        every_fifth = [name for start in range(5) for name in runs[start::5]]
        return list(dict.fromkeys([*first, *every_fifth]))
    near, importers = (
        {stem},
        [root / "fl" / name for name in ("parts", "methods", "terms", "models")],
    )
    for _ in range(3):  # Who imports it, and who imports those.
        paths = [path for importer in importers for path in importer.rglob("*.py")]
        near |= {path.stem for path in paths if near & _imports(path)}
    about = [n for n in runs if n.split(":")[0].split("/")[0].split()[-1].replace("-", "_") in near]
    return sorted(about, key=lambda name: stem not in name.replace("-", "_"))


def _imports(path: Path) -> set[str]:
    """The words of a file's imports."""
    statements = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
    whole = {word for node in statements for word in (node.module or "").split(".")}
    return whole | {alias.name for node in statements for alias in node.names}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.golden.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch
    import torch.func

    torch.set_num_threads(1)
    missed = []
    with multiprocessing.get_context("fork").Pool(asked.processes) as pool:
        every = drawn(asked.seed, asked.count)
        for mutant, by, seconds in pool.imap_unordered(caught, every):
            where = f"fl/{mutant.file}:{mutant.line}: {mutant.before}  ->  {mutant.after}"
            print(f"{'caught' if by else 'MISSED'} {seconds:4.0f} s  {where}  [{by}]", flush=True)
            missed += [] if by else [where]
    print(f"{asked.count - len(missed)} of {asked.count} are caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
