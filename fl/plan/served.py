"""How much of the planned work one compiled program would serve.

Compiling takes as long for a short run as for a long one, and it pays where many runs can use its
result. A program is for one method at one point of its grid, but for any learning rate, number of
rounds and division of the data over as many clients: these it is told, or they only decide how
often it is called.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl.base import identity
from fl.base.errors import FedloomError
from fl.base.files import parse_json
from fl.plan.estimate import client_steps

FILE = "programs.json"
"""In the folder of the plan: by bundle, the name of its program, and ``served``."""

TOLD = (
    *("rounds", "local_epochs", "local_steps", "lr", "schedule", "lr_decay", "lr_decay_every"),
    *("evaluate_every", "normalisation"),
)
"""Settings of training that do not decide the program."""

DIVIDED = ("clients", "clients_per_domain", "unseen", "modalities", "path")
"""Keys of a partition that say how many take part; the others say who has which sample."""


def programs(bundles: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By bundle, the ``program`` of its runs, and how many times their work it serves (``served``).

    Bundles whose work is not known before there is data are left out.
    """
    names: dict[str, str] = {}
    work: dict[str, int] = {}
    for name, bundle in bundles.items():
        spec = bundle["runs"][0]["spec"]
        try:
            work[name] = max(1, client_steps(spec))
            names[name] = _program(spec, len(bundle["runs"]))
        except (FedloomError, OSError):
            continue  # A table of the user's, which is not there yet.
    totals: dict[str, int] = {}
    for name, program in names.items():
        totals[program] = totals.get(program, 0) + work[name]
    return {
        name: {"program": program, "served": round(totals[program] / work[name], 3)}
        for name, program in sorted(names.items())
    }


def read(results: Path, bundle: str) -> tuple[str, float]:
    """The program of a planned bundle, and how many times its work that serves; its own name, and
    its own work alone, where the plan does not say.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        said = parse_json((results / "plan" / FILE).read_bytes())[bundle]
        program, served = said["program"], float(said["served"])
        if isinstance(program, str) and 1.0 <= served < math.inf:
            return program, served
    return bundle, 1.0


def _program(spec: Mapping[str, Any], seeds: int) -> str:
    """The program's name; runs with the same one differ in nothing that is compiled."""
    clients = {key: value for key, value in spec["partition"].items() if key in DIVIDED}
    training = {key: value for key, value in spec["training"].items() if key not in TOLD}
    left = {"seed", "start", "test", "partition", "training"}
    rest = {key: value for key, value in spec.items() if key not in left}
    return identity.digest([rest, training, clients, seeds])
