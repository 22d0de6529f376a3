"""What every asynchronous server and every method over one promise: the method trains, client by
client as in a stack, or is refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from arriving import arriving
from worlds import distance, entry, rows_agree, run, tree

from fl.api import trees
from fl.api.method import declaration_of
from fl.base import registry
from fl.base.errors import FedloomError, Location
from fl.base.schema import CLOCK

METHODS = registry.names("method")
SERVERS = registry.names("asynchronous server")

PERSONALISED = ("apfl", "ditto", "fedbn", "fedper", "fedrep", "lg-fedavg", "mrmtl")
"""Methods that no server may refuse."""


def component(name: str) -> Any:
    """An asynchronous server of which three of four clients train at once."""
    location = Location("test")
    found = registry.find("asynchronous server", name, location)
    size = {"size": 2} if "size" in found.declared else {}
    return found.instantiate(found.parse({"concurrency": 3, **size}, location))


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_the_same_in_a_stack_or_is_refused_by_name(method: str) -> None:
    try:
        simulation = arriving(method, component("fedbuff"))
    except FedloomError as error:
        title = declaration_of(entry(method).target).title
        assert str(error).startswith(f"asynchronous: {title} ")
        assert method not in PERSONALISED
        return
    (alone, rows), (stacked, stacked_rows) = run(simulation, "loop"), run(simulation, "stacked")
    assert distance(tree(alone), tree(stacked)) < 1e-10
    assert rows_agree(rows, stacked_rows, 1e-10)
    assert np.isfinite(rows["value"]).all()
    assert {*rows["split"]} >= {CLOCK, "train", "test"}


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_trains_with_running_statistics_that_stay_positive(
    server: str, method: str
) -> None:
    """Some uploads are old: their variances are never added to those of newer versions."""
    simulation = arriving(method, component(server), "cnn", rounds=8)
    staleness = [number - 1 - simulation.participation.update(number).versions for number in (7, 8)]
    assert max(map(max, staleness)) > 0
    (alone, rows), (stacked, _) = run(simulation, "loop"), run(simulation, "stacked")
    assert distance(tree(alone), tree(stacked)) < 1e-10
    assert np.isfinite(rows["value"]).all()
    named = [(path[-1], leaf) for path, leaf in trees.leaf_paths(alone.server)]
    variances = [leaf for name, leaf in named if name.endswith("running_var")]
    assert variances and all(bool(torch.all(leaf > 0)) for leaf in variances)
