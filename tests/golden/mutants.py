"""Whether the goldens can fail: one-line mutants of what decides numbers, and who catches them.

    python -m tests.golden.mutants --to FILE     60 of them, drawn by a seed
    python -m tests.golden.mutants --to FILE --seed 2 --count 20

A mutant changes an operator, a sign, a constant or an order in one line of ``fl``. It is caught if
a world has other numbers, or breaks. ``FILE`` keeps what is known; a run that was stopped goes on.

Drawn are, with equal chance, the folders of `FILES`, then a file, then a place in the body of a
function that some world enters. Files are those that decide numbers of a run on the loop backend:
not types, not the other backends (the contract compares these with the loop), not memory and
devices. Places are not: what is said (messages, f-strings, texts that are added), what is checked
(raise, assert, conditions of those, what is called check or require), memory and notes (`SPARING`),
annotations, the flags ``strict``, ``stable`` and ``ignore_index``, what only chooses a backend
(``count_steps``), and written negative numbers, which count axes from the end.

No world enters functions for stacks of clients (``_joined``, ``_stacked``, ``_chosen`` in
siamese), functions that only plugins and analyses call (``hypergradient``, ``mixed_batch_norm``,
``distribution_distance``; tests/blocks has them), and the solver ``cvxpy``.

Of the 60 drawn by seed 1, worlds caught 53, and worlds added since two more (a client of one sample
that weighs alike, CFL near its bound). The others, by reading:

- ``batches.py`` 0 to 1 in batches by class: a client without samples has a step of weight 0.
- ``cfl.py`` 0 to 1: another leaf, of which the type and the device alone are taken.
- ``serving.py`` False to True: of an empty tree for one client and for several the same is taken.
- ``power_law.py`` 0.0 to 1.0: a constant added to logarithms, which are normalised.
- ``draws.py`` ``drawn``: a mark of what was drawn, no number; its readers were not followed.

A mutant meets those worlds alone that enter its function and whose numbers are kept, the core's
first, at most `MOST`.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import json
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ENGINE = "backends batches engine evaluate sample_arrays scheduling simulate simulation state "
ENGINE += "run_setup assembly modality_rounds modality_simulation "
ENGINE += "asynchronous clock operations participation upload_rows"
TASKS = "tasks/classification tasks/regression tasks/segmentation"
API = f"method optimizers participation recipes {TASKS} term training trees"
FILES = {
    "engine": ENGINE.split(),
    "api": API.split(),
    "pytorch": ["random_numbers", "keyed"],
    **{f"uploads/{folder}": ["*"] for folder in ("filters", "aggregations")},
    **{f"participation/{folder}": ["*"] for folder in ("devices", "selections", "servers")},
    **{folder: ["*"] for folder in ("methods", "blocks", "terms", "data/schemes")},
    "data": ["groups", "normalisation", "partitioning", "scheme", "splitting"],
}
MOST, SECONDS = 40, 200
SWAPS: dict[type, type] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult},
}
SPARING = ("nbytes", "Scratch.of", "sparing", "unused", "count_steps")
SAID = ast.Raise | ast.Assert | ast.JoinedStr | ast.FunctionDef


class Mutant(NamedTuple):
    """A file of ``fl`` with one line changed, in a function."""

    file: str
    function: str
    told: str
    tree: ast.Module


def drawn(worlds: Container[str], seed: int, count: int) -> list[Mutant]:
    """Mutants of functions that worlds enter, no two of one line."""
    draw, chosen = random.Random(seed), dict[tuple[str, int], Mutant]()
    files = [
        sorted(path for stem in stems for path in (ROOT / "fl" / folder).glob(f"{stem}.py"))
        for folder, stems in FILES.items()
    ]
    while len(chosen) < count:
        path = draw.choice(files[len(chosen) % len(files)])
        tree = ast.parse(path.read_text())
        places = [
            (name, place)
            for name, function in functions(tree)
            if not name.endswith(SPARING)
            and "check" not in name
            and f"{path.relative_to(ROOT)}:{name}" in worlds
            for place in _places(function.body)
        ]
        if places:
            name, node = draw.choice(places)
            before = ast.unparse(node)
            _mutate(node)
            file = path.relative_to(ROOT).as_posix()
            told = f"{file}:{node.lineno}: {before}  ->  {ast.unparse(node)}"
            chosen.setdefault((file, node.lineno), Mutant(file, name, told, tree))
    return list(chosen.values())


def functions(node: ast.AST, above: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """All functions, as ``Class.function`` or ``function.<locals>.inner``."""
    for child in ast.iter_child_nodes(node):
        below = above
        if isinstance(child, ast.FunctionDef):
            yield f"{above}{child.name}", child
            below = f"{above}{child.name}.<locals>."
        elif isinstance(child, ast.ClassDef):
            below = f"{above}{child.name}."
        yield from functions(child, below)


def _places(nodes: list[Any]) -> Iterator[Any]:
    for node in nodes:
        if isinstance(node, SAID) or _silent(node):
            continue
        if isinstance(node, ast.If) and any(isinstance(inner, ast.Raise) for inner in node.body):
            yield from _places(node.orelse)
            continue
        if _can_mutate(node):
            yield node
        annotation = getattr(node, "annotation", None)
        yield from _places([c for c in ast.iter_child_nodes(node) if c is not annotation])


def _silent(node: ast.AST) -> bool:
    """Whether it is a device, a negative number, a check, or a flag that changes no number."""
    if isinstance(node, ast.Attribute) and node.attr == "device":
        return True
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    call = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return (
        negative
        or call.startswith(("require", "check"))
        or (isinstance(node, ast.keyword) and node.arg in ("strict", "stable", "ignore_index"))
    )


def _can_mutate(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        texts = [ast.unparse(side)[0] for side in (node.left, node.right)]
        return type(node.op) in SWAPS and not any(text in "'\"f" for text in texts)
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


def apart(work: Callable[[], Any]) -> Any:
    """What a function returns in a process of its own; None if that does not end."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(write, "w") as pipe:
            json.dump(work(), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else None


def entered() -> dict[str, list[str]]:
    """By function, as ``file:name``, the worlds that enter it."""
    from golden import measure

    worlds: dict[str, list[str]] = {}
    for name in measure.names():
        if not name.startswith(("data", "model")):
            codes = set[Any]()
            sys.settrace(lambda frame, *_, codes=codes: codes.add(frame.f_code))
            measure.fingerprint(name)
            sys.settrace(None)
            for file, function in {(code.co_filename, code.co_qualname) for code in codes}:
                if file.startswith(str(ROOT / "fl")):
                    worlds.setdefault(f"{Path(file).relative_to(ROOT)}:{function}", []).append(name)
    return worlds


def catching(mutant: Mutant, worlds: list[str]) -> str:
    """The first world whose numbers differ; "" if none do."""
    signal.alarm(SECONDS)
    code_of = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> Any:
        same = self.path == str(ROOT / mutant.file)
        return compile(mutant.tree, self.path, "exec") if same else code_of(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    try:
        from golden import kept, measure

        before = kept.load()
    except Exception as error:
        return f"import ({type(error).__name__})"
    near = [name for name in worlds if name in before]
    near.sort(key=lambda name: (not name.startswith("core"), zlib.crc32(name.encode())))
    for name in near[:MOST]:
        try:
            if kept.difference(name, measure.fingerprint(name), before.get(name)):
                return name
        except Exception as error:
            return f"{name} ({type(error).__name__})"
    return ""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m tests.golden.mutants", description=__doc__)
    parser.add_argument("--to", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    asked = parser.parse_args()
    sys.path[:0] = [str(ROOT / p) for p in ("tests", "tests/helpers", ".")]
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch
    import torch.func

    torch.set_num_threads(1)
    known = json.loads(asked.to.read_text()) if asked.to.exists() else {}
    if "worlds" not in known:
        known["worlds"] = apart(entered)
    missed = 0
    for mutant in drawn(known["worlds"], asked.seed, asked.count):
        worlds = known["worlds"].get(f"{mutant.file}:{mutant.function}", [])
        if mutant.told not in known:
            by = apart(lambda m=mutant, w=worlds: catching(m, w))
            known[mutant.told] = "does not end" if by is None else by
        missed += not known[mutant.told]
        asked.to.write_text(json.dumps(known))
        print(f"{mutant.told}  [{known[mutant.told] or 'MISSED'}]", flush=True)
    print(f"{asked.count - missed} of {asked.count} are caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
