"""FedLGD and VHL beside what they do written out: images, which rounds do what, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import worlds
from torch import Tensor

from fl.api import Network, trees
from fl.api.method import BuildContext
from fl.blocks import global_images, local_images, siamese_augmentation
from fl.blocks.contrastive_loss import supervised_contrastive_loss
from fl.blocks.distillation import distribution_distance, gradient_distance
from fl.blocks.keyed_random import constant_parameters, parameter_sampler
from fl.blocks.local_images import MatchingOptions
from fl.engine import engine
from fl.methods.fedlgd import FedLGD, gaussian_mmd2
from fl.methods.vhl import generate_images

SHAPE = (1, 4, 4)
C = worlds.CLASSES
MANY = (40, 30, 50, 40)
"""Samples of four clients that hold several of every class."""


def world(values: dict[str, Any] | None = None, **training: Any) -> Any:
    return worlds.world("fedlgd", "cnn", values, **training)


def after(simulation: Any, rounds: int) -> Any:
    state = simulation.begin()
    for number in range(1, rounds + 1):
        state, _ = engine.run_round(
            simulation.method, state, simulation.round_schedule(number), "loop"
        )
    return state


# Local images


def test_first_images_are_normal_with_each_classes_mean_and_deviation() -> None:
    simulation = world({"images": 2, "warmup": 0, "times": 0})
    many = local_images.statistics_sweep(_setting(simulation), 2000, "statistics")
    held = torch.from_numpy(simulation.client_data.samples["train"][2])
    batch = simulation.arrays.batch(held, torch.ones_like(held))
    server = {"key": torch.tensor(3)}
    client = {"id": torch.tensor(2), "images": torch.zeros(1, dtype=torch.float64)}
    images = many.end(server, client, {}, many.look(server, client, {}, batch))[0]["images"]
    for c in range(C):
        own, made = batch["x"][batch["y"] == c], images.reshape(C, -1)[c]
        assert made.mean().item() == pytest.approx(own.mean().item(), abs=0.05)
        assert made.std().item() == pytest.approx(own.std(correction=0).item(), rel=0.03)
    other = many.end(
        server, {**client, "id": torch.tensor(1)}, {}, many.look(server, client, {}, batch)
    )
    assert not torch.equal(other[0]["images"], images)


def _setting(simulation: Any) -> Any:

    return BuildContext(simulation.network, simulation.training, C, 4, SHAPE, 5)


def test_real_first_images_are_the_clients_own() -> None:
    simulation = world({"images": 1, "initial": "real", "warmup": 0}, participation=0.5)
    state = after(simulation, 1)
    for client, held in enumerate(simulation.client_data.samples["train"]):
        x, y = (
            f(torch.from_numpy(held)) for f in (simulation.arrays.inputs, simulation.arrays.labels)
        )
        for c, image in enumerate(state.clients["images"][client]):
            assert any(image.equal(own) for own in x[y == c]), "also of who was not drawn"


def test_a_step_of_distribution_matching_by_hand() -> None:
    simulation, real = world(), 6
    part = local_images.distribution_matching(
        _setting(simulation), MatchingOptions(real, 0.5, 0.5), lambda _: 1, "new"
    )
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(C * real, *SHAPE, generator=draw, dtype=torch.float64)
    images = torch.randn(C * 2, *SHAPE, generator=draw, dtype=torch.float64)
    key = torch.arange(100, 100 + C * real)
    # The step of the method.
    work = part.begin({}, {"images": images})
    work["params"]["images"].requires_grad_()
    weight = (torch.arange(real) < torch.tensor([[6], [4], [9]])).double().flatten()
    batch = {"x": x, "weight": weight, "key": key}
    loss, aux = part.loss({}, work, batch)
    [grad] = torch.autograd.grad(loss, [images])
    stepped = part.update({}, work, {"images": grad}, aux, 0.0)["params"]["images"]

    # By hand: a network drawn anew, and a change of images that is equal in a class.
    net, change = simulation.network, siamese_augmentation.draw_change(key.reshape(C, real)[:, 0])
    params, buffers = (
        parameter_sampler(net)(key[0], constant_parameters(net)),
        net.init(0)["buffers"],
    )

    def features(groups: list[Tensor]) -> list[Tensor]:
        changed = []
        for c, group in enumerate(groups):
            own = siamese_augmentation.Change(*(part[c : c + 1] for part in change))
            changed.append(siamese_augmentation.augment_groups(group[None], own)[0])
        found = net.train(params, buffers, torch.cat(changed)).features.flatten(1)
        return list(found.split([len(group) for group in groups]))

    # The network has batch normalisation: statistics are over all that is seen, repeats included.
    seen = [f[:n] for f, n in zip(features(list(x.split(real))), [6, 4, 6], strict=True)]
    by_hand = images.detach().clone().requires_grad_()
    expected = distribution_distance([f.detach() for f in seen], features(list(by_hand.split(2))))
    [expected_grad] = torch.autograd.grad(expected, [by_hand])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(stepped, (by_hand - 0.5 * expected_grad).detach())


def test_fresh_weights_are_distributed_as_a_new_networks() -> None:
    network = world().network
    made, others, like = (
        parameter_sampler(network),
        constant_parameters(network),
        network.init(0)["params"],
    )
    drawn = trees.stack([made(torch.tensor(i), others) for i in range(300)])
    usual = trees.stack([network.init(i)["params"] for i in range(300)])
    for name in like:
        mine, theirs = drawn[name], usual[name]
        assert mine.dtype == theirs.dtype
        assert mine.std().item() == pytest.approx(theirs.std().item(), rel=0.1, abs=1e-12), name
        assert mine.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=0.1), name


# Global images


def test_gradient_matching_by_hand() -> None:
    simulation = world()
    variables = simulation.network.init(1)
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(C * 2, *SHAPE, generator=draw, dtype=torch.float64)
    y = local_images.image_labels(C, 2, images)
    target = trees.apply(
        lambda p: torch.randn(p.shape, generator=draw, dtype=p.dtype), variables["params"]
    )
    how: dict[str, Any] = {"lr": 0.3, "momentum": 0.5, "key": torch.tensor(7)}
    found = global_images.match_gradient(
        simulation.network, variables, images, y, target, steps=3, **how
    )

    module = worlds.module("cnn").double().train()
    module.load_state_dict({**variables["params"], **variables["buffers"]})
    x = images.clone().requires_grad_()
    optimizer = torch.optim.SGD([x], lr=0.3, momentum=0.5)
    distances = []
    for _ in range(3):
        weights = list(module.parameters())
        loss = F.cross_entropy(module(x), y)
        grads = torch.autograd.grad(loss, weights, create_graph=True)
        distance = gradient_distance(grads, trees.leaves(target))
        distances.append(distance.item())
        optimizer.zero_grad()
        distance.backward()
        optimizer.step()
    torch.testing.assert_close(found, x.detach())
    assert distances[2] < distances[0]


def test_tau_is_an_arithmetic_sequence_from_the_first_round_on() -> None:
    method = FedLGD()
    assert [r for r in range(1, 101) if method.is_distilling(r)] == list(range(1, 47, 5))
    assert [r for r in range(1, 101) if method._refreshes(r)] == list(range(6, 47, 5))
    assert not any(FedLGD(times=0).is_distilling(r) for r in range(1, 9))


def test_what_is_matched_is_the_rounds_update_by_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = world(participation=1.0)
    seen: dict[str, Any] = {}

    def spied(network: Any, variables: Any, images: Any, y: Any, target: Any, **how: Any) -> Any:
        seen.update(target=target, variables=variables, how=how)
        return images

    monkeypatch.setattr("fl.blocks.global_images.match_gradient", spied)
    begun = simulation.begin()
    state, _ = engine.run_round(simulation.method, begun, simulation.round_schedule(1), "loop")
    for name, old in begun.server["params"].items():
        expected = (old - state.server["params"][name]) / 0.1
        torch.testing.assert_close(seen["target"][name], expected)
        assert seen["variables"]["params"][name].equal(old)


# Training on images


def test_an_epoch_is_every_virtual_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local and global ones, in an order of the round's own; the last batch is filled up."""
    values = {"images": 3, "global_images": 2, "times": 0, "warmup": 0}
    simulation = world(values, participation=1.0, sizes=MANY)
    state = after(simulation, 1)
    plan = simulation.round_schedule(2)
    part, schedule = simulation.method.passes[2], plan.schedules[2]
    assert plan.schedules[:2] == (None, None)
    assert schedule.steps.tolist() == [4] * 4  # 15 images in batches of 8, two epochs.
    client = trees.take(state.clients, 1)
    server = simulation.method.send(state.server)
    # What a client trains on is caught where the network sees it.
    work = part.begin(server, client)
    seen: list[Tensor] = []

    def caught(network: Any, params: Any, buffers: Any, x: Tensor, **rest: Any) -> Any:
        seen.append(x)
        return original(network, params, buffers, x, **rest)

    original, weights = Network.train, []
    keys = torch.from_numpy(schedule.keys()[1])
    monkeypatch.setattr(Network, "train", caught)
    for step in range(4):
        batch = simulation.arrays.batch(
            torch.from_numpy(schedule.index[1, step]), torch.ones(8), keys[step]
        )
        part.loss(server, work, batch)
        work["step"] = work["step"] + 1
    monkeypatch.undo()
    # In each of two epochs it is every image once, in orders that differ.
    batches, everything = seen[::2], torch.cat([client["images"], client["anchors"]])
    for epoch in (batches[:2], batches[2:]):
        counted = torch.cat(epoch)[:15]
        order = [int((everything == x).flatten(1).all(1).nonzero()) for x in counted]
        assert sorted(order) == list(range(15))
        weights.append(order)
    assert weights[0] != weights[1]


def test_mmd_by_hand() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 3, generator=draw, dtype=torch.float64) for n in (5, 4))
    weight = torch.tensor([1.0, 1, 1, 1, 0], dtype=torch.float64)
    both = torch.cat([x[:4], y])
    apart = torch.cdist(both, both).square()
    scale = apart.sum() / (8 * 7)
    kernel = sum(torch.exp(-apart / (scale * 2.0**i)) for i in range(-2, 3))
    expected = kernel[:4, :4].mean() + kernel[4:, 4:].mean() - 2 * kernel[:4, 4:].mean()
    torch.testing.assert_close(gaussian_mmd2(x, y, weight), expected)
    assert abs(gaussian_mmd2(x[:4], x[:4], weight[:4]).item()) < 1e-12


# VHL


def test_virtual_images_of_a_generator_differ_by_class_and_follow_the_seed() -> None:
    images = generate_images(3, 4, 50, (3, 14, 10))
    assert images.shape == (200, 3, 14, 10)
    assert images.equal(generate_images(3, 4, 50, (3, 14, 10)))
    assert not images.equal(generate_images(4, 4, 50, (3, 14, 10)))
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(3))
    flat = images.flatten(1)
    means = flat.unflatten(0, (4, 50)).mean(1)
    assert (
        torch.cdist(flat, means).argmin(1).eq(local_images.image_labels(4, 50, flat)).float().mean()
        > 0.9
    )


def test_vhl_adds_a_virtual_batch_and_contrasts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"images": 3, "batch": 5, "alpha": 0.7, "lam": 0.3, "virtual_lam": 0.2, "tau": 0.5}
    simulation = worlds.world("vhl", "cnn", values, participation=1.0)
    method, plan = simulation.method, simulation.round_schedule(1)
    state, _ = engine.run_round(method, simulation.begin(), plan, "loop")
    virtual_images = state.server["virtual"]
    assert all(one.equal(virtual_images) for one in state.clients["virtual"])
    [part], schedule = method.passes, plan.schedules[0]
    # The loss of a batch, and the two passes of the network for it.
    server = method.send(state.server)
    work = part.begin(server, trees.take(state.clients, 0))
    key = torch.from_numpy(schedule.keys()[0, 0])
    index, weight = (torch.from_numpy(one[0, 0]) for one in (schedule.index, schedule.weight))
    batch = simulation.arrays.batch(index, weight, key)
    passes: list[Any] = []
    original = Network.train

    def caught(network: Any, params: Any, buffers: Any, x: Tensor, **rest: Any) -> Any:
        passes.append((x, original(network, params, buffers, x, **rest)))
        return passes[-1][1]

    monkeypatch.setattr(Network, "train", caught)
    loss, _ = part.loss(server, work, batch)
    monkeypatch.undo()
    (_, own), (x, other) = passes
    # By hand: classes of virtual images follow from their places.
    y = torch.tensor([int((virtual_images == one).flatten(1).all(1).nonzero()) // 3 for one in x])
    z = torch.cat([own.features, other.features])
    expected = (
        F.cross_entropy(own.outputs, batch["y"])
        + 0.7 * F.cross_entropy(other.outputs, y)
        + 0.3 * supervised_contrastive_loss(z, torch.cat([batch["y"], y]), 0.5)
        + 0.2 * supervised_contrastive_loss(other.features, y, 0.5)
    )
    assert bool(weight.all())
    torch.testing.assert_close(loss, expected)
