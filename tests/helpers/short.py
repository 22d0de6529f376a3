"""Hyper-parameters under which a run of two rounds shows all that a method does."""

from __future__ import annotations

from typing import Any

AUGMENTING = {"layers": ["0", "4"], "p": 0.8}
RATES = {"bn_lr": 0.1, "lr_lr": 0.1, "tilde_lr": 0.1}
IMAGES = {"warmup": 2, "real": 4, "client_steps": 2, "server_steps": 2, "every": 2}

SHORT: dict[str, dict[str, Any]] = {
    "ccvr": {"steps": 5},
    "cfl": {"after": 1},
    "feddf": {"server_steps": 3, "server_lr": 0.05},
    "fedfa": {**AUGMENTING, "statistics_momentum": 0.5},
    "fedfm": {"first": 2, "lam": 1.0},
    "fedgen": {"server_steps": 3, "server_batch": 8, "server_lr": 0.01},
    "fedgh": {"server_steps": 5},
    "fediot": {"server_epochs": 2, "width": 4},
    "fedl2p": {"iterations": 2, "neumann": 1, **RATES},
    "fedlaw": {"server_epochs": 2, "server_lr": 0.1},
    "fedlgd": {"images": 1, "global_images": 2, **IMAGES, "lam": 0.5},
    "fedtgp": {"server_steps": 5},
    "l2p": {"iterations": 1, "neumann": 1, **RATES},
    "vhl": {"images": 3, "batch": 4, "lam": 0.5},
    "warm-up": {"images": 1, "steps": 2, "real": 4},
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedfa-plus": ("fedfa", {"histograms": True}),
    "fedfm-lite": ("fedfm", {"lite": True}),
}
"""Options that make another method of one, which is held to the contract too."""

SENDS_OWN = ("fedamp", "fedfomo", "fedsac", "mrmtl", "pfedgraph", "pfedme")
"""Methods whose clients go on with weights of their own and send them too."""


def short(method: str) -> dict[str, Any]:
    """Those of a method, which may be a plugin's; {} where its defaults do."""
    name, options = VARIANTS.get(method, (method, {}))
    return {**SHORT.get(name, {}), **options}
