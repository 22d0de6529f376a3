"""Estimates come from runs like those asked for; a shared store may hold others too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from make_results import write_run
from planning import Planned

from fl.cost import Rates, client_steps


def test_a_run_of_what_is_not_known_here_is_passed_over(planned: Callable[..., Planned]) -> None:
    study = planned()
    spec = study.bundle("fedavg")["runs"][0]["spec"]
    store = study.store()
    assert Rates(store).seconds([spec]) is None
    strange = {**spec, "dataset": {"name": "of-a-plugin"}}
    older = {**spec, "dataset": {"name": "synthetic"}}
    for run, found in (("strange", strange), ("older", older), ("like", spec)):
        write_run(store.root, run, [], spec=found, seconds=3.0 if run == "like" else 99.0)
    assert client_steps(spec) > 0
    assert Rates(store).seconds([spec, spec]) == pytest.approx(6.0)
