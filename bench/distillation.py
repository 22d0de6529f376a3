"""What data set distillation costs: ``python -m bench.distillation``.

A step of distribution matching of ten classes on five clients, all at once, beside the loop that
one writes first: client after client and class after class, each with passes of its own. A step of
gradient matching of the server's images, all classes in one gradient, beside a loop over classes
with a gradient each. On images and the network of the study `fedlgd-digits-domains`; one thread;
processor time, all in turn, the shortest of some tries.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import machine
from fl.api import trees
from fl.api.method import REAL, Setting
from fl.api.network import Network
from fl.api.training import Training
from fl.engine import engine
from fl.engine.arrays import Arrays
from fl.engine.evaluate import Held
from fl.engine.simulate import Simulation
from fl.methods.warm_up import WarmUp
from fl.models.convnet import ConvNet, Halving
from fl.parts import siamese
from fl.parts.distillation import gradient_distance
from fl.parts.matching import matched
from fl.parts.virtual import labels

CLIENTS, CLASSES, SHAPE, WIDTH = 5, 10, (3, 16, 16), 32
REAL_IMAGES, VIRTUAL = 16, 10
PLAIN = {"scale": 1.0, "mean": 0.0, "sd": 1.0}


def simulation(steps: int) -> Simulation:
    """The warm-up on generated images."""
    draw, each = np.random.default_rng(0), CLASSES * REAL_IMAGES
    x = draw.standard_normal((CLIENTS * each, *SHAPE), dtype=np.float32)
    y = np.tile(np.arange(CLASSES), CLIENTS * REAL_IMAGES)
    training = Training(lr=1.0, momentum=0.5)
    network = Network(lambda: ConvNet(width=WIDTH).build(SHAPE, CLASSES))
    method = WarmUp(images=VIRTUAL, steps=steps, real=REAL_IMAGES).build(
        Setting(network, training, CLASSES, CLIENTS, SHAPE)
    )
    held = Held({"train": np.split(np.arange(len(x)), CLIENTS)})
    return Simulation(method, network, training, Arrays(x, y, PLAIN), held, CLASSES, seed=0)


def matching(backend: str) -> Callable[[int], float]:
    """Measures a step of distribution matching of all clients."""
    run = simulation(2)
    state, plan = run.begin(), run.plan(2)

    def measured(steps: int) -> float:
        schedules = tuple(s and s.begin(steps, ()) for s in plan.schedules)
        short = plan.with_schedules(schedules)
        begun = time.process_time()
        engine.run_round(run.method, state, short, backend)
        return (time.process_time() - begun) / steps

    return measured


def plain() -> nn.Sequential:
    """The network out of PyTorch's layers."""
    layers = ConvNet(width=WIDTH).build(SHAPE, CLASSES).children()
    return nn.Sequential(*(nn.AvgPool2d(2) if isinstance(one, Halving) else one for one in layers))


def plain_matching(steps: int) -> float:
    """The same, client after client and class after class."""
    run, draw = simulation(steps), torch.Generator().manual_seed(0)
    begun = time.process_time()
    for client in range(CLIENTS):
        held = torch.from_numpy(run.held.of_splits(REAL, client))
        x, y = run.arrays.inputs(held), run.arrays.labels(held)
        images = torch.randn(CLASSES, VIRTUAL, *SHAPE, generator=draw).requires_grad_()
        optimizer = torch.optim.SGD([images], lr=1.0, momentum=0.5)
        for step in range(steps):
            network = plain()[:-1]
            network.requires_grad_(False)
            loss = torch.zeros(())
            for c in range(CLASSES):
                real = x[y == c][torch.randperm(REAL_IMAGES)]
                change = siamese.drawn(torch.tensor([step * CLASSES + c]))
                seen = [
                    network(siamese.siamese(one[None], change)[0]).flatten(1)
                    for one in (real, images[c])
                ]
                loss = loss + (seen[0].detach().mean(0) - seen[1].mean(0)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return (time.process_time() - begun) / steps


def server() -> tuple[Network, dict[str, Any], Tensor, Tensor, dict[str, Any]]:
    """A network, its variables, images of all classes with labels, and a gradient to match."""
    network = Network(lambda: ConvNet(width=WIDTH).build(SHAPE, CLASSES))
    variables, draw = network.init(0), torch.Generator().manual_seed(0)
    images = torch.randn(CLASSES * VIRTUAL, *SHAPE, generator=draw)
    target = trees.apply(lambda p: torch.randn(p.shape, generator=draw), variables["params"])
    return network, variables, images, labels(CLASSES, VIRTUAL, images), target


def gradients(steps: int) -> float:
    """Seconds that a step of gradient matching takes."""
    network, variables, images, y, target = server()
    how: dict[str, Any] = {"lr": 1.0, "momentum": 0.5, "key": torch.tensor(0)}
    begun = time.process_time()
    matched(network, variables, images, y, target, steps=steps, **how)
    return (time.process_time() - begun) / steps


def plain_gradients(steps: int) -> float:
    """The same, class after class."""
    _, variables, images, y, target = server()
    module = plain()
    module.load_state_dict(variables["params"])
    x = images.clone().requires_grad_()
    optimizer = torch.optim.SGD([x], lr=1.0, momentum=0.5)
    begun = time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        for c in range(CLASSES):
            loss = F.cross_entropy(module(x[y == c]), y[y == c])
            grads = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
            gradient_distance(grads, trees.leaves(target)).backward()
        optimizer.step()
    return (time.process_time() - begun) / steps


def shortest(measures: list[Callable[[int], float]], steps: int, tries: int) -> list[float]:
    """Of some tries of each, in turn, after one that warms up."""
    found = [[measure(steps) for measure in measures] for _ in range(tries + 1)]
    return [min(times) for times in zip(*found[1:], strict=True)]


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--tries", type=int, default=6)
    asked = parser.parse_args()
    machine.begin()
    backends = ("loop", "stacked")
    measures = [plain_matching, *map(matching, backends)]
    looped, *ours = shortest(measures, asked.steps, asked.tries)
    for backend, seconds in zip(backends, ours, strict=True):
        print(
            f"distribution matching, {CLASSES} classes on {CLIENTS} clients, {backend}: "
            f"{1e3 * seconds:.0f} ms a step, plainly {1e3 * looped:.0f} ms: "
            f"{looped / seconds:.1f}x"
        )
    looped, once = shortest([plain_gradients, gradients], asked.steps, asked.tries)
    print(
        f"gradient matching, {CLASSES} classes: {1e3 * once:.0f} ms a step, plainly "
        f"{1e3 * looped:.0f} ms: {looped / once:.1f}x"
    )


if __name__ == "__main__":
    main()
