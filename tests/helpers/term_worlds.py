"""Methods of the contract with a loss term that weighs enough to be seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worlds import world

from fl.base import fields, registry
from fl.base.errors import Location
from fl.engine.simulation import Simulation

TERMS = registry.names("term")
LAYERS = {"mlp": ("1",), "cnn": ("2", "6")}
"""Names of the ReLUs of the contract's models, by model."""
MORE: dict[str, list[dict[str, Any]]] = {
    "mk-mmd": [
        {"update": "periodic", "first": 2, "every": 3, "batches": 2},
        {"update": "never", "kernels": 5, "biased": False},
        {"convention": "divide", "normalise": False},
    ],
    "fedfm": [{"loss": "squared"}],
    "mmd-d": [
        {"update": "step", "form": "sum"},
        {"first": 1, "every": 2, "batches": 3, "steps": 2, "normalise": True},
    ],
}
"""Values beside the defaults under which a term has to keep its promises."""
CASES = [(term, values) for term in TERMS for values in [{}, *MORE.get(term, [])]]


def with_term(
    term: str, method: str, model: str, values: Mapping[str, Any] | None = None, **more: Any
) -> Simulation:
    """A method with a term that weighs enough to be seen."""
    declared = fields.fields(registry.find("term", term, Location("test")).target)
    at_once = {"lam": 0.5, "first": 1} if "lam" in declared else {}
    given = {"mu": 0.5, "layers": list(LAYERS[model]), **at_once, **(values or {})}
    keys = {key: value for key, value in given.items() if key in declared}
    return world(method, model, terms=[(term, keys)], **more)
