"""Where a method's parameter takes away what sets it apart, it is the method that is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import term_worlds
import torch
import worlds
from worlds import ends, personal, shared, world

from fl.api import trees
from fl.api.method import PAYLOAD
from fl.api.recipes import VARIABLE_GROUPS
from fl.engine import engine, loader
from fl.engine.batches import Schedule

keeping = pytest.mark.parametrize("keep", [True, False])


@pytest.mark.parametrize(
    ("method", "values", "tolerance"),
    [
        ("fedprox", {"mu": 0.0}, 0.0),
        ("moon", {"mu": 0.0}, 0.0),
        ("fedavgm", {"beta": 0.0, "eta": 1.0}, 1e-12),
    ],
)
def test_the_shared_model_is_that_of_fedavg(
    method: str, values: dict[str, float], tolerance: float
) -> None:
    average = shared(*ends("fedavg", "cnn"))
    assert worlds.distance(shared(*ends(method, "cnn", values)), average) <= tolerance
    unlike = shared(*ends(method, "cnn", dict.fromkeys(values, 0.6)))
    assert worlds.distance(unlike, average) > 1e-6


def test_the_shared_model_of_ditto_is_that_of_fedavg_whatever_holds_the_own_ones() -> None:
    ditto = ends("ditto", "cnn", {"lam": 3.0}, keep_optimizer=False)
    assert worlds.same(shared(*ditto), shared(*ends("fedavg", "cnn")))


@keeping
@pytest.mark.parametrize("method", ["ditto", "mrmtl"])
def test_own_models_that_nothing_holds_are_those_of_local(method: str, keep: bool) -> None:
    alone = personal(*ends("local", "cnn", keep_optimizer=keep))
    free = personal(*ends(method, "cnn", {"lam": 0.0}, keep_optimizer=keep))
    pulled = personal(*ends(method, "cnn", {"lam": 0.5}, keep_optimizer=keep))
    for model, same, other in zip(alone, free, pulled, strict=True):
        assert worlds.same(model, same)
        assert worlds.distance(model, other) > 1e-4


@pytest.mark.parametrize("terms", [(), [("cosine", {"layers": ["6"], "mu": 0.5})]])
def test_in_the_first_round_the_trained_model_is_the_initial_one(terms: Any) -> None:
    """Ditto and its control part in the second round, and the control's server never moves."""
    given = {"terms": terms, "participation": 1.0}
    apart = []
    for rounds in (1, 2):
        ditto = personal(*ends("ditto", "cnn", {"lam": 3.0}, rounds=rounds, **given))
        frozen = world("ditto", "cnn", {"lam": 3.0, "shared": "initial"}, rounds=rounds, **given)
        after, _ = worlds.run(frozen)
        pairs = zip(ditto, personal(frozen, after), strict=True)
        apart.append(max(worlds.distance(*pair) for pair in pairs))
        assert worlds.same(after.server, frozen.begin().server)
    assert apart[0] < 1e-12
    assert apart[1] > 1e-4


def test_scaffold_without_controls_is_fedavg_over_clients_that_weigh_alike() -> None:
    """That is its first round; the second has controls."""
    scaffold, fedavg = world("scaffold", "cnn"), world("fedavg", "cnn")
    state, average, apart = scaffold.begin(), fedavg.begin(), []
    for number in (1, 2):
        plan = scaffold.round_schedule(number)
        plan = replace(plan, phases=(replace(plan.last_phase, n=torch.ones_like(plan.n)),))
        state, _ = engine.run_round(scaffold.method, state, plan, "loop")
        average, _ = engine.run_round(fedavg.method, average, plan, "loop")
        apart.append(worlds.distance(shared(scaffold, state), shared(fedavg, average)))
    assert apart[0] < 1e-12
    assert apart[1] > 1e-3


def outer(schedule: Schedule) -> Schedule:
    """The second half of every batch, as Per-FedAvg cuts it."""
    return Schedule(schedule.index[..., 1::2], schedule.weight[..., 1::2], schedule.steps)


@pytest.mark.parametrize("order", ["first", "second", "free"])
def test_perfedavg_that_takes_no_inner_step_is_fedavg_on_the_outer_halves(
    order: str,
) -> None:
    meta = world("perfedavg", "cnn", {"alpha": 1e-30, "order": order})
    fedavg = world("fedavg", "cnn")
    state, average = meta.begin(), fedavg.begin()
    for number in (1, 2):
        plan = meta.round_schedule(number)
        half = plan.with_schedules(map(outer, plan.schedules))
        state, losses = engine.run_round(meta.method, state, plan, "loop")
        average, expected = engine.run_round(fedavg.method, average, half, "loop")
        assert worlds.distance(shared(meta, state), shared(fedavg, average)) < 1e-10
        torch.testing.assert_close(losses, expected, rtol=0, atol=1e-10)


def test_perfedavg_without_a_hessian_is_second_order_but_for_a_difference() -> None:
    first, second, free = (
        shared(*ends("perfedavg", "cnn", {"alpha": 0.5, "order": order, "delta": 1e-5}))
        for order in ("first", "second", "free")
    )
    assert worlds.distance(free, second) < worlds.distance(first, second) / 100


def test_a_single_client_of_fedbn_shares_with_itself() -> None:
    """All that is kept and all that is sent together are FedAvg's model."""
    alone = {"sizes": (21,), "participation": 1.0}
    [model] = personal(*ends("fedbn", "cnn", **alone))
    assert worlds.same(model, shared(*ends("fedavg", "cnn", **alone)))


def test_pfedgraph_of_a_large_lambda_mixes_as_fedavg_does() -> None:
    """Then every row is the shares of samples, and everybody goes on from the weighted mean."""
    _, state = ends("pfedgraph", "cnn", {"lam": 1e12, "mu": 0.0}, participation=1.0)
    average = shared(*ends("fedavg", "cnn", participation=1.0))
    sent = {kind: state.clients["trained"][kind] for kind in VARIABLE_GROUPS}
    weights = torch.tensor(worlds.SIZES, dtype=torch.float64)
    mean = trees.mean(sent, weights)
    for client in range(len(worlds.SIZES)):
        start = trees.take(state.clients[PAYLOAD], client)
        assert worlds.distance(start["params"], mean["params"]) < 1e-9
        assert worlds.distance(start["params"], average["params"]) < 1e-9
        for name, buffer in start["buffers"].items():
            if buffer.is_floating_point():
                assert float((buffer - average["buffers"][name]).abs().max()) < 1e-9


def test_pfedgraph_of_a_small_lambda_is_local() -> None:
    """As long as no two models have moved alike, likeness to oneself outweighs all else."""
    mixed = personal(*ends("pfedgraph", "mlp", {"lam": 1e-3, "mu": 0.0}))
    alone = personal(*ends("local", "mlp", keep_optimizer=False))
    assert all(map(worlds.same, mixed, alone))


def test_fedsam_without_a_radius_is_fedavg_where_nothing_is_counted() -> None:
    """Batch statistics would move with both of its passes."""
    sam, average = ends("fedsam", "mlp", {"rho": 0.0})[1], ends("fedavg", "mlp")[1]
    assert worlds.distance(worlds.tree(sam), worlds.tree(average)) < 1e-13


def test_moon_without_its_second_term_is_fedavg() -> None:
    moon = ends("moon", "cnn", {"second": "none"})[1]
    assert worlds.same(worlds.tree(moon), worlds.tree(ends("fedavg", "cnn")[1]))


@pytest.mark.parametrize("backend", ["loop", "stacked"])
@pytest.mark.parametrize("sizes", [(17, 0, 9), (17, 9)])
def test_a_kernel_is_updated_where_a_client_has_no_samples_or_a_round_no_update(
    sizes: tuple[int, ...], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "MIN_USES_PER_SAMPLE", 0)
    late = {"first": 50, "every": 50} if len(sizes) == 2 else {}
    kernel = term_worlds.with_term("mmd-d", "ditto", "cnn", late, sizes=sizes, participation=1.0)
    state, _ = worlds.run(kernel, backend)
    assert all(leaf.isfinite().all() for leaf in trees.leaves(worlds.tree(state)))
