"""The numbers that are kept, one file for each kind of entry, one line for each world."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

from golden.measure import DIGITS, Fingerprint

FOLDER = Path(__file__).parent / "numbers"
NEAR = 1e-9
"""How far a number may be from what is kept, relative to 1 or to its own size."""
NEARER_NOT = (
    # Not computed in float64.
    (r"core: float32", 1e-4),
    (r"core: mixed", 1e-2),
    # Images are made in single precision, whose last bit processors do not agree on.
    (r"method vhl: .*", 1e-5),
    # Batch normalisation in sixteen blocks makes much of the rounding in which processors differ.
    (r"model efficientnet-b0: .*", 1e-5),
    # AdamW divides by roots of squares: of gradients that are 0 but for rounding, it makes steps.
    (r"method .*: steps", 1e-5),
)
"""How far the numbers of some worlds may be, by their names."""


def nearness(name: str) -> float:
    """How far a world's numbers may be from what is kept."""
    return next((far for names, far in NEARER_NOT if re.fullmatch(names, name)), NEAR)


def load() -> dict[str, Fingerprint]:
    """By world, what is kept."""
    kept: dict[str, Fingerprint] = {}
    for path in sorted(FOLDER.glob("*.json")):
        kept |= json.loads(path.read_text())
    return kept


def save(measured: Mapping[str, Fingerprint]) -> None:
    """Keep these, and nothing else."""
    by_kind: dict[str, list[str]] = {}
    for name, fingerprint in measured.items():
        numbers = [float(f"{x:.{DIGITS}g}") for x in fingerprint["numbers"]]
        line = json.dumps({**fingerprint, "numbers": numbers}, separators=(",", ":"))
        by_kind.setdefault(name.split()[0].strip(":"), []).append(f"{json.dumps(name)}: {line}")
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for kind, lines in by_kind.items():
        (FOLDER / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def difference(name: str, measured: Fingerprint, kept: Fingerprint | None) -> str:
    """How a world's numbers differ from those that are kept, in words; "" if they agree."""
    if kept is None or measured["world"] != kept["world"]:
        return "is not kept yet" if kept is None else "is another world than that which is kept"
    if measured["text"] != kept["text"]:
        return f"has {measured['text']}; kept: {kept['text']}"
    if len(measured["numbers"]) != len(kept["numbers"]):
        return f"has {len(measured['numbers'])} numbers; kept: {len(kept['numbers'])}"
    near = nearness(name)
    pairs = list(zip(measured["numbers"], kept["numbers"], strict=True))
    apart = [i for i, (now, before) in enumerate(pairs) if not _near(now, before, near)]
    if not apart:
        return ""
    now, before = pairs[apart[0]]
    return (
        f"differs in {len(apart)} of {len(pairs)} numbers; the first is {now!r}, kept: {before!r}"
    )


def _near(now: float, before: float, near: float) -> bool:
    if not (math.isfinite(now) and math.isfinite(before)):
        return now == before or (math.isnan(now) and math.isnan(before))
    return abs(now - before) <= near * max(1.0, abs(before))
