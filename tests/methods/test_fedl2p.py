"""FedL2P beside the loop that a user of PyTorch writes, and its strategies beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import worlds
from torch import Tensor, nn
from worlds import world

from fl.api import trees
from fl.api.method import BuildContext
from fl.api.network import Network
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.base.schema import PERSONAL
from fl.blocks.l2p_network import L2PNetwork
from fl.engine import assembly, engine, simulate
from fl.engine.client_data import ClientData
from fl.engine.simulation import Simulation
from fl.engine.state import State

SIZES = (16, 16)
"""Two whole batches each, so that none is filled up."""
RATES = {"bn": 0.1, "lr": 0.2, "tilde": 0.05}


def stored() -> dict[str, Any]:
    """A model whose statistics are no longer 0 and 1."""
    state, _ = worlds.run(world("fedavg", "cnn", participation=1.0))
    return {kind: state.server[kind] for kind in ("params", "buffers")}


def of(method: str, values: dict[str, Any] | None = None, **training: Any) -> Simulation:
    given = {"sizes": SIZES, "participation": 1.0, "local_epochs": 1, "rounds": 1, **training}
    return world(method, "cnn", values, **given)


class Mixed(nn.Module):
    """Batch normalisation by a mixture of statistics, of a client that begins anew."""

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stored = layer.running_mean.clone(), layer.running_var.clone()
        self.own = torch.zeros_like(self.stored[0]), torch.ones_like(self.stored[1])
        self.beta: Any = 1.0

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.own
        if self.training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            unbiased = x.detach().var((0, 2, 3))
            self.own = 0.9 * self.own[0] + 0.1 * mean.detach(), 0.9 * self.own[1] + 0.1 * unbiased
        mean, var = (
            (1 - self.beta) * s + self.beta * o
            for s, o in zip(self.stored, (mean, var), strict=True)
        )
        normal = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return normal * self.weight[:, None, None] + self.bias[:, None, None]


def personalised(origin: Tree) -> nn.Sequential:
    net = worlds.module("cnn").double()
    net.load_state_dict({**origin["params"], **origin["buffers"]})
    assert isinstance(net, nn.Sequential)
    return nn.Sequential(*(Mixed(m) if isinstance(m, nn.BatchNorm2d) else m for m in net))


def unbounded(weights: Tree, x: Tensor) -> Tensor:
    for number, layer in enumerate(weights.values()):
        x = F.linear(x if not number else F.relu(x), layer["weight"], layer["bias"])
    return x


def perceptron(weights: Tree, high: float, x: Tensor) -> Tensor:
    x = unbounded(weights, x)
    return x + (x.clamp(0, high) - x).detach()


def network_inputs(net: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """Xi and inputs of a client that holds x, by hooks on PyTorch's own model."""
    xi, inputs = [], []

    def hook(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        seen = given[0]
        inputs.extend([seen.mean(), (seen.var() + 1e-5).sqrt()])
        if isinstance(layer, nn.BatchNorm2d):
            mean, var = seen.mean((0, 2, 3)), seen.var((0, 2, 3))
            one = torch.distributions.Normal(mean, (var + 1e-5).sqrt())
            two = torch.distributions.Normal(layer.running_mean, (layer.running_var + 1e-5).sqrt())
            kl = torch.distributions.kl_divergence
            xi.append(((kl(one, two) + kl(two, one)) / 2).mean())

    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.BatchNorm2d | nn.Linear):
            layer.register_forward_pre_hook(hook)
    with torch.no_grad():
        net.eval()(x)
    return torch.stack(xi), torch.stack(inputs)


def batches(simulation: Simulation, number: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
    """What a client sees in one of the round's passes."""
    raw, labels, _ = worlds.data("cnn", SIZES, validated=True)
    found = simulation.round_schedule(1).schedules[number]
    assert found is not None
    for step in range(found.steps[client]):
        kept = found.index[client, step][found.weight[client, step]]
        yield worlds.inputs(raw[kept]), torch.from_numpy(labels[kept])


def one_step(
    simulation: Simulation, server: Tree, client: int, gradient: str, nets: dict[str, Any]
) -> tuple[dict[str, Any], Tensor]:
    """Meta-nets after one iteration of a client, and its validation loss, by plain autograd.

    Nets may be told zeros, and BNNet may be bounded by a sigmoid.
    """
    meta = trees.apply(lambda leaf: leaf.clone().requires_grad_(), server["meta"])
    plain = worlds.module("cnn").double()
    plain.load_state_dict({**server["origin"]["params"], **server["origin"]["buffers"]})
    raw, _, _ = worlds.data("cnn", SIZES, validated=True)
    held = worlds.inputs(raw[simulation.client_data.samples["train"][client]])
    xi, inputs = network_inputs(plain, held)
    if nets.get("told") == "nothing":
        xi, inputs = 0 * xi, 0 * inputs
    beta = perceptron(meta["bn"], 1.0, xi)
    if nets.get("bn_output") == "sigmoid":
        beta = torch.sigmoid(unbounded(meta["bn"], xi))
    rates = perceptron(meta["lr"], 1000.0, inputs) * meta["tilde"]["rates"]
    net = personalised(server["origin"])
    for layer, share in zip([m for m in net if isinstance(m, Mixed)], beta, strict=True):
        layer.beta = share
    names = [name for name, _ in net.named_parameters()]
    weights = dict(net.named_parameters())
    inner = list(batches(simulation, 2, client))
    for x, y in inner:
        weights = {n: w.detach().requires_grad_() for n, w in weights.items()}
        loss = F.cross_entropy(torch.func.functional_call(net.train(), weights, (x,)), y)
        grads = torch.autograd.grad(loss, list(weights.values()), retain_graph=True)
        moves = zip(names, weights.values(), rates, grads, strict=True)
        weights = {n: w.detach() - r * g for n, w, r, g in moves}
    net.eval()
    [(x, y)] = batches(simulation, 3, client)
    judged = F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)
    leaves, at = trees.leaves(meta), list(weights.values())
    if gradient == "fomaml":
        found = list(torch.autograd.grad(judged, leaves))
    else:
        [(x, y)] = batches(simulation, 4, client)
        trained = F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)
        v = torch.autograd.grad(judged, at, retain_graph=True)
        slope = torch.autograd.grad(trained, at, create_graph=True)
        p = v
        for _ in range(3):
            bent = torch.autograd.grad(slope, at, v, retain_graph=True)
            v = tuple(a - 0.1 * b for a, b in zip(v, bent, strict=True))
            p = tuple(a + b for a, b in zip(p, v, strict=True))
        indirect = torch.autograd.grad(slope, leaves, p, retain_graph=True)
        own = torch.autograd.grad(judged, trees.leaves(meta["bn"]))
        direct = [*own, *(torch.zeros(()) for _ in range(len(leaves) - len(own)))]
        found = [d - i for d, i in zip(direct, indirect, strict=True)]
    grads_of = trees.unflatten(meta, [g.clamp(-1, 1) for g in found])
    next_meta = {
        part: trees.apply(
            lambda w, g, r=RATES[part]: (w - r * g).detach(), meta[part], grads_of[part]
        )
        for part in meta
    }
    return next_meta, judged.detach()


NETS: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "told nothing": {"told": "nothing"},
    "sigmoid": {"bn_output": "sigmoid", "bn_begin": 0.2},
}


@pytest.mark.parametrize(
    ("gradient", "nets"),
    [("fomaml", {}), *(("implicit", nets) for nets in NETS.values())],
    ids=["fomaml", *NETS],
)
def test_a_round_is_what_plain_autograd_makes_of_it(gradient: str, nets: dict[str, Any]) -> None:
    rates = {"bn_lr": RATES["bn"], "lr_lr": RATES["lr"], "tilde_lr": RATES["tilde"]}
    values = {"iterations": 1, "neumann": 3, "gradient": gradient, **rates, **nets}
    simulation = of("fedl2p", values)
    begun = simulation.begin(stored())
    after, losses = engine.run_round(
        simulation.method, begun, simulation.round_schedule(1), "stacked"
    )
    alone = [one_step(simulation, begun.server, client, gradient, nets) for client in (0, 1)]
    mean = trees.mean(trees.stack([meta for meta, _ in alone]), torch.ones(2).double())
    assert worlds.distance(after.server["meta"], mean) < 1e-12
    for part in mean:
        assert worlds.distance(mean[part], begun.server["meta"][part]) > 1e-6, part
    judged = torch.stack([loss for _, loss in alone])
    torch.testing.assert_close(losses, judged)
    torch.testing.assert_close(after.server["lowest"], judged.mean())
    assert worlds.same(after.server["origin"], begun.server["origin"])
    assert set(after.clients) == set(begun.clients), "what passes hand on is gone"


def test_nets_that_are_told_nothing_say_the_same_to_all_who_follow_them() -> None:
    """The entry that follows stored nets knows by them how they speak."""
    learnt = of("fedl2p", {"told": "nothing", "bn_output": "sigmoid"}, rounds=2)
    *_, last = simulate.rounds(learnt, learnt.begin(stored()), 0, "stacked")
    tuned = of("finetune-l2p")
    begun = tuned.begin(learnt.final_weights(last.state)["global"])
    after, _ = engine.run_round(tuned.method, begun, tuned.round_schedule(1), "stacked")
    hyper = [after.client(client, torch.device("cpu"))["hyper"] for client in (0, 1)]
    assert worlds.same(hyper[0], hyper[1])
    nets = last.state.server["best"]
    weights = unbounded(nets["bn"], torch.zeros(2).double())
    torch.testing.assert_close(hyper[0]["beta"], torch.sigmoid(weights))


def test_the_nets_of_the_best_round_are_kept() -> None:
    simulation = of("fedl2p", {"tilde_lr": 1.0, "lr_lr": 1.0}, rounds=4, participation=0.5, lr=0.3)
    rounds = list(simulate.rounds(simulation, simulation.begin(stored()), 0, "loop"))
    lowest = [float(one.state.server["lowest"]) for one in rounds]
    best = lowest.index(min(lowest))
    assert 0 < len({*lowest}) < 4, "some rounds are better, and some are not"
    last = rounds[-1].state.server
    assert worlds.same(last["best"], rounds[best].state.server["meta"])
    final = simulation.final_weights(rounds[-1].state)["global"]
    assert worlds.same(final["meta"], last["best"])
    assert float(rounds[-1].traces["lowest"]) == lowest[-1]
    traces = rounds[-1].traces
    assert traces["beta"].shape == (2, 2)
    assert traces["rates"].shape == (2, len(simulation.network.names["params"]))


def setting_of(network: Network) -> BuildContext:
    return BuildContext(network, Training(), worlds.CLASSES, 2)


def flat(lr: float, beta: float, simulation: Simulation) -> dict[str, Any]:
    """A stored model with nets that say one rate for all tensors, whoever asks."""
    variables, l2p_network = stored(), L2PNetwork(setting_of(simulation.network))
    like = trees.leaves(variables["params"])[0]
    sizes = (2 * len(l2p_network.measured), 100, 100, len(simulation.network.names["params"]))
    layers = {
        str(i): {
            "weight": like.new_zeros(sizes[i + 1], sizes[i]),
            "bias": like.new_ones(sizes[i + 1]),
        }
        for i in range(3)
    }
    tilde = {"rates": like.new_full((sizes[-1],), lr)}
    meta = {"lr": layers, "tilde": tilde}
    return {**variables, "meta": meta, "fixed": {"beta": like.new_tensor(beta)}}


def personal(simulation: Simulation, state: State) -> dict[str, Any]:
    return dict(simulation.final_weights(state)[PERSONAL])


@pytest.mark.parametrize(
    ("beta", "statistics", "samples"), [(0.0, "stored", "train"), (1.0, "client", "all")]
)
def test_a_fixed_beta_and_rate_is_a_strategy_of_fine_tuning(
    beta: float, statistics: str, samples: str
) -> None:
    training = {"rounds": 3, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
    tuned = of("finetune-l2p", {"samples": samples}, **training, lr=0.05)
    plain = of("finetune-bn", {"samples": samples, "statistics": statistics}, **training, lr=0.05)
    state = tuned.begin(flat(0.05, beta, tuned))
    other = plain.begin(stored())
    for number in (1, 2, 3):
        # Sweeps come first, so that the passes of the two draw other batches.
        _, own = tuned.round_schedule(number).schedules
        state, losses = engine.run_round(
            tuned.method, state, tuned.round_schedule(number), "stacked"
        )
        same = plain.round_schedule(number).with_schedules([own])
        other, expected = engine.run_round(plain.method, other, same, "loop")
        torch.testing.assert_close(losses, expected)
    found, wanted = personal(tuned, state), personal(plain, other)
    assert worlds.distance(found["params"], wanted["params"]) < 1e-10
    assert worlds.distance(found["params"], trees.repeat(stored()["params"], 2)) > 1e-3
    # The second client has no validation samples.
    assert own.weight.sum((1, 2)).tolist() == [20 if samples == "all" else 16, 16]
    if statistics == "stored":
        assert worlds.distance(found["buffers"], {**wanted["buffers"], **counted(found)}) < 1e-10


def counted(found: Tree) -> dict[str, Tensor]:
    """How many batches a layer saw, which decides nothing."""
    return {name: b for name, b in found["buffers"].items() if not b.is_floating_point()}


def test_batches_that_normalise_themselves_do_so_when_they_are_scored() -> None:
    batch, client = (
        of("finetune-bn", {"statistics": kind, "scored": 5}) for kind in ("batch", "client")
    )
    state, rows = worlds.run(batch)
    same, other = worlds.run(client)
    assert worlds.same(personal(batch, state), personal(client, same))
    view = batch.method.views[PERSONAL]
    variables = trees.take(personal(batch, state), 0)
    x = batch.arrays.inputs(torch.from_numpy(batch.client_data.samples["test"][0]))
    assert len(x) == 6, "which leaves one over"
    network = batch.network
    expected = network.train(variables["params"], variables["buffers"], x).outputs
    torch.testing.assert_close(view.predict(variables, {}, x), expected)  # type: ignore[attr-defined]
    twice = view.predict(variables, {}, torch.cat([x, x]))  # type: ignore[attr-defined]
    first = network.train(variables["params"], variables["buffers"], x[:5]).outputs
    torch.testing.assert_close(twice[:5], first)
    assert not worlds.rows_agree(
        rows[rows["split"] != "train"], other[other["split"] != "train"], 1e-6
    )


def test_a_client_without_validation_samples_is_refused_by_name() -> None:
    method = worlds.entry("fedl2p").target()
    _, _, held = worlds.data("cnn")
    with pytest.raises(
        FedloomError, match=r"FedL2P: needs validation samples, but 2 of 4 .* \(1, 2\)"
    ):
        assembly.check_validation_samples(method, held)
    assembly.check_validation_samples(worlds.entry("fedavg").target(), held)
    assembly.check_validation_samples(method, ClientData(held.samples, absent_clients=(1, 2)))
    samples = {**held.samples, "val": [np.arange(1)] * 4}
    assembly.check_validation_samples(method, ClientData(samples))


def test_nets_have_the_precision_of_a_model_without_buffers() -> None:
    # Sums over samples are in float64 whatever the model's precision.
    trained = world("fedl2p", "mlp", {"learns": "lr"}, precision="float32")
    state, _ = worlds.run(trained, "stacked")
    assert {leaf.dtype for leaf in trees.leaves(state.server["meta"])} == {torch.float32}
