"""Samples that every scheme can deal to nine clients."""

from __future__ import annotations

import numpy as np
import pandas as pd
import partition

DRAW = np.random.default_rng(11)
LABELS = DRAW.integers(0, 10, 1200)
EVEN = np.repeat(np.arange(10), 120)
DOMAINS = DRAW.choice([0, 1, 2], 1200, p=[0.5, 0.3, 0.2])
GROUPS = np.arange(1200) % 9

ARRAYS = {"domains": DOMAINS, "groups": GROUPS}
KEYS = {
    "homogeneous": {"clients": 9},
    "dirichlet": {"clients": 9, "alpha": 0.3},
    "client_dirichlet": {"clients": 9, "alpha": 0.3},
    "pathological": {"clients": 9, "classes_per_client": 2},
    "dominant": {"clients": 9},
    "power_law": {"clients": 9},
    "natural": {},
    "domain": {"clients_per_domain": 3},
    "domain_dirichlet": {"clients_per_domain": 3, "alpha": 0.3},
}


def make(scheme, labels=LABELS, **keys):
    """A scheme's table over nine clients, whatever arrays it wants."""
    function = getattr(partition, scheme)
    arrays = {"domain": "domains", "domain_dirichlet": "domains", "natural": "groups"}
    wanted = {a: ARRAYS[a] for name, a in arrays.items() if name == scheme}
    return function(labels, **wanted, **{**KEYS[scheme], **keys})


def class_counts(table, labels=LABELS):
    """[clients, classes]"""
    return pd.crosstab(table["client"], labels[table["sample"]]).to_numpy()


def sizes(table):
    return table.groupby("client").size().to_numpy()
