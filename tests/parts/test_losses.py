"""Each term of a loss against numpy, on batches in which some samples weigh nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl.api.losses import classification_loss, cross_entropy, weighted_mean
from fl.api.network import Network, Output
from fl.api.term import Compared, Forward, Term
from fl.parts.alignment import alignment
from fl.parts.contrast import model_contrast
from fl.parts.proximal import proximal

WEIGHT = [1.0, 0.5, 0.0, 2.25]
X = np.random.default_rng(0).normal(size=(4, 3))
Y = np.array([0, 1, 1, 0])


def double(values: Any) -> Tensor:
    return torch.as_tensor(np.array(values, dtype=np.float64))


def variables(seed: int) -> dict[str, Any]:
    """Of 3-2-2: a body without bias, a head with one."""
    draw = np.random.default_rng(seed)
    shapes = {"0.weight": (2, 3), "1.weight": (2, 2), "1.bias": (2,)}
    return {"params": {n: double(draw.normal(size=s)) for n, s in shapes.items()}, "buffers": {}}


def forward(
    own: dict[str, Any],
    shared: dict[str, Any],
    weight: Any = WEIGHT,
    term: Term | None = None,
    **work: Any,
) -> Forward:
    """A pass over X; what the term asks of reference models comes with the batch."""
    network = Network(
        lambda: nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 2)), torch.float64
    )
    batch = {"x": double(X), "y": torch.from_numpy(Y), "weight": double(weight)}
    output = network.train(own["params"], own["buffers"], batch["x"])
    if isinstance(term, Compared):
        models = {"shared": shared, **work}

        def see(name: str) -> Output:
            return network.eval(models[name]["params"], models[name]["buffers"], batch["x"])

        batch["reference"] = term.reference(see)
    return Forward(network, output, own["params"], shared, work, batch)


def flat(params: dict[str, Tensor]) -> np.ndarray:
    return np.concatenate([p.numpy().ravel() for p in params.values()])


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1)))


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ([1, 1, 1, 1], 2.5),
        ([1, 0, 0, 1], 2.5),
        ([0, 0, 1, 0], 3.0),
        ([0.25, 0.5, 0, 0.25], 2.25),
        ([0, 0, 0, 0], 0.0),
    ],
)
def test_weighted_mean(weight: list[float], expected: float) -> None:
    values = double([1, 2, 3, 4]).requires_grad_()
    found = weighted_mean(values, {"weight": double(weight)})
    assert found.item() == pytest.approx(expected, abs=1e-15)
    [grad] = torch.autograd.grad(found, values)
    np.testing.assert_allclose(grad, np.array(weight) / (sum(weight) or 1), rtol=0, atol=1e-15)


def test_cross_entropy_is_that_of_numpy() -> None:
    own = variables(1)
    at = forward(own, variables(2))
    p = {name: t.numpy() for name, t in own["params"].items()}
    z = X @ p["0.weight"].T @ p["1.weight"].T + p["1.bias"]
    losses = np.log(np.exp(z).sum(1)) - z[np.arange(4), Y]
    expected = (losses * WEIGHT).sum() / np.sum(WEIGHT)
    assert cross_entropy(at).item() == pytest.approx(expected, abs=1e-14)
    assert classification_loss(double(z), at.batch).item() == pytest.approx(expected, abs=1e-14)
    assert cross_entropy(forward(own, variables(2), [0.0] * 4)).item() == 0.0


def test_proximal_is_over_the_shared_parameters_only() -> None:
    own, shared = variables(1), variables(2)
    expected = 0.15 * ((flat(own["params"]) - flat(shared["params"])) ** 2).sum()
    assert proximal(0.3)(forward(own, shared)).item() == pytest.approx(expected, abs=1e-14)

    body = {"params": {"0.weight": shared["params"]["0.weight"]}, "buffers": {}}
    difference = (own["params"]["0.weight"] - body["params"]["0.weight"]).numpy()
    found = proximal(0.3)(forward(own, body))
    assert found.item() == pytest.approx(0.15 * (difference**2).sum(), abs=1e-14)
    assert proximal(0.3)(forward(own, {"params": {}, "buffers": {}})).item() == 0.0


def test_alignment_is_the_cosine_with_what_is_kept() -> None:
    own, kept = variables(1), variables(2)["params"]
    found = alignment(0.7, "received")(forward(own, variables(3), received=kept))
    expected = -0.7 * cosine(flat(own["params"]), flat(kept))
    assert found.item() == pytest.approx(float(expected), abs=1e-14)

    turned = dict(reversed(kept.items()))
    again = alignment(0.7, "received")(forward(own, variables(3), received=turned))
    assert again.item() == pytest.approx(float(expected), abs=1e-14)
    same = alignment(0.7, "received")(forward(own, variables(3), received=own["params"]))
    assert same.item() == pytest.approx(-0.7, abs=1e-14)


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_model_contrast_is_equation_3(tau: float) -> None:
    own, shared, last = (variables(seed) for seed in (1, 2, 3))
    term = model_contrast(1.5, tau, "previous")
    z, z_glob, z_prev = (X @ v["params"]["0.weight"].numpy().T for v in (own, shared, last))
    near, far = (np.exp(cosine(z, other) / tau) for other in (z_glob, z_prev))
    losses = -np.log(near / (near + far))
    expected = 1.5 * (losses * WEIGHT).sum() / np.sum(WEIGHT)
    found = term(forward(own, shared, term=term, previous=last))
    assert found.item() == pytest.approx(expected, abs=1e-13)

    alike = term(forward(own, shared, term=term, previous=shared))
    assert alike.item() == pytest.approx(1.5 * np.log(2), abs=1e-14)
    assert term(forward(own, shared, [0.0] * 4, term, previous=last)).item() == 0.0
