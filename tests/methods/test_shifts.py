"""Methods against shifts between clients, on a model of a few numbers (`hand_model`)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import worlds
from hand_model import g, is_pair, of, s, tensor, trained
from torch import nn
from torch.distributions import Normal, kl_divergence
from worlds import world

from fl.api.recipes import PERSONAL_PARAMS
from fl.methods.fedharmo import amplitude, with_amplitude
from fl.methods.fedmix import draw_client
from fl.methods.fedsr import divergence, normal
from fl.methods.fpl import cluster_prototypes, contrast, distance, finch
from fl.pytorch import keyed

# FedSAM


def test_fedsam_steps_by_the_gradient_rho_away_uphill() -> None:
    """The gradient (g, -g) has length g sqrt 2, so that w moves by rho / sqrt 2 against w."""
    simulation = of("fedsam", [[(1, 0)]], {"rho": 0.3}, rounds=1)
    expected = 0.2 - 0.1 * g(0.2 - 0.3 / math.sqrt(2), 1, 0)
    assert is_pair(trained(simulation, 0.2).server["params"]["weight"], expected)


# FedRobust


@pytest.mark.parametrize("matrix", ["full", "diagonal"])
def test_fedrobust_goes_down_in_w_and_up_in_the_shift_of_inputs(matrix: str) -> None:
    """One sample (2, 0), two steps from w = .5; df/dx' = -2 w s(-2 w x')."""
    values = {"lam": 0.7, "eta2": 0.05, "matrix": matrix}
    state = trained(of("fedrobust", [[(2, 0)]], values, rounds=1, local_steps=2), 0.5)
    w, turn, shift = 0.5, 1.0, 0.0
    for _ in range(2):
        x = turn * 2 + shift
        slope = -2 * w * s(-2 * w * x)
        w, turn, shift = (
            w - 0.1 * g(w, x, 0),
            turn + 0.05 * (slope * 2 - 2 * 0.7 * (turn - 1)),
            shift + 0.05 * (slope - 2 * 0.7 * shift),
        )
    assert is_pair(state.server["params"]["weight"], w)
    own = state.clients[PERSONAL_PARAMS]
    assert own["matrix"].flatten().tolist() == pytest.approx([turn])
    assert own["shift"].flatten().tolist() == pytest.approx([shift])


# FedMix


def test_fedmix_adds_the_slope_along_the_mean_sample() -> None:
    """One client [(1, 0), (3, 0)]: its own mean 2, all of class 0; lambda = 1/4, from w = .3.

    Of L(w) = mean log(1 + exp(-2 w x')) + lambda 2 mean(-2 w s(-2 w x')) with x' = (3/4) x the
    first component of the gradient is half of dL/dw.
    """
    state = trained(of("fedmix", [[(1, 0), (3, 0)]], {"lam": 0.25}, rounds=1), 0.3)
    w, slope = 0.3, 0.0
    for x in (0.75, 2.25):
        p = s(-2 * w * x)
        slope += (-2 * x * p + 0.25 * 2 * (-2 * p + 4 * w * x * p * (1 - p))) / 2
    assert is_pair(state.server["params"]["weight"], w - 0.1 * slope / 2)
    assert state.server["means"]["x"].tolist() == [[2.0]]
    assert state.server["means"]["y"].tolist() == [[1.0, 0.0]]


def test_fedmix_draws_every_mean_that_is_known_and_no_other() -> None:
    known = tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    keys = keyed.derive_keys(torch.arange(300), 7)
    found = [int(draw_client(known, key)) for key in keys]
    assert set(found) == {1, 3, 4}
    assert min(found.count(k) for k in (1, 3, 4)) > 60
    assert int(draw_client(torch.zeros(3), keys[0])) == 0


# FedSR


def test_fedsr_holds_representations_to_their_class_by_the_kl_divergence() -> None:
    mu, sigma = tensor([[0.3, -1.0], [2.0, 0.1]]), tensor([[0.5, 1.5], [0.2, 0.9]])
    raw, centres = tensor([[0.0, 1.0], [-1.0, 2.0]]), tensor([[0.1, 0.2], [0.3, 0.4]])
    reference = {"mu": centres, "sigma": raw, "scale": tensor(1.3)}
    labels = torch.tensor([1, 0])
    wide = nn.functional.softplus(raw)[labels]
    expected = kl_divergence(Normal(1.3 * mu, 1.3 * sigma), Normal(centres[labels], wide)).sum(1)
    torch.testing.assert_close(divergence(mu, sigma, reference, labels), expected)


def test_fedsr_draws_standard_normal_numbers_by_key() -> None:
    found = normal(keyed.derive_keys(torch.arange(20000), 3), torch.zeros(20000, 2).double())
    assert abs(float(found.mean())) < 0.02
    assert abs(float(found.std()) - 1) < 0.02
    assert abs(float((found[:, 0] * found[:, 1]).mean())) < 0.02


# FPL

E1, E2, E3 = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]


def test_fpl_contrasts_clusters_of_the_own_class_with_all() -> None:
    """Class 0 has clusters e1 and e2, class 1 has e3, class 2 none; tau = 1/2."""
    nothing = [0.0] * 3
    clusters = tensor([[E1, E2], [E3, nothing], [nothing, nothing]])
    features = tensor([[4.0, 0.0, 0.0], [4.0, 0.0, 0.0], [1.0, 2.0, 3.0]]).requires_grad_()
    labels = torch.tensor([0, 1, 2])
    own, rest = math.exp(2) + 1, 1.0
    losses = contrast(features, labels, clusters, 0.5)
    expected = [-math.log(own / (own + rest)), -math.log(rest / (own + rest)), 0]
    assert losses.tolist() == pytest.approx(expected)
    apart = distance(features, labels, clusters)
    assert apart.tolist() == pytest.approx([(3.5**2 + 0.5**2) / 3, (16 + 1) / 3, 0])
    [gradient] = torch.autograd.grad((losses + apart).sum(), features)
    assert gradient.isfinite().all()
    assert gradient[2].tolist() == [0, 0, 0]


def test_fpl_clusters_the_prototypes_of_who_holds_a_class() -> None:
    prototypes = tensor([[[1, 0.1]], [[2, 0.1]], [[0, 1]], [[0.1, 3]], [[9, 9]]])
    counts = tensor([[1], [2], [3], [4], [0]])
    found = cluster_prototypes(prototypes, counts, torch.zeros(1, 2, 2).double())
    assert found[0].tolist() == [[1.5, 0.1], [0.05, 2.0]]
    alone = cluster_prototypes(
        prototypes, tensor([[0], [0], [1], [0], [0]]), torch.zeros(1, 2, 2).double()
    )
    assert alone[0].tolist() == [[0, 1], [0, 0]]


def at(*degrees: float) -> torch.Tensor:
    angles = tensor(degrees).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], 1)


@pytest.mark.parametrize(
    ("degrees", "labels"),
    [
        ((7,), [0]),
        ((0, 80), [0, 0]),
        ((0, 1, 50, 52, 120), [0, 0, 1, 1, 1]),
        # Four pairs, then two of two.
        ((0, 1, 10, 11, 90, 91, 100, 101), [0, 0, 0, 0, 1, 1, 1, 1]),
        # Three pairs, of which no two are apart enough to be more than one.
        ((0, 1, 20, 21, 45, 46), [0, 0, 1, 1, 2, 2]),
    ],
)
def test_finch_joins_first_neighbours_while_more_than_one_cluster_is_left(
    degrees: tuple[float, ...], labels: list[int]
) -> None:
    assert finch(at(*degrees)).tolist() == labels


# FedHarmo


def test_images_keep_their_phases_and_get_the_amplitudes_given() -> None:
    draw = torch.Generator().manual_seed(1)
    images = torch.rand(3, 2, 4, 6, generator=draw, dtype=torch.float64)
    given = amplitude(torch.rand(1, 2, 4, 6, generator=draw, dtype=torch.float64))[0]
    found = with_amplitude(images, given)
    torch.testing.assert_close(amplitude(found), given.expand(3, 2, 4, 6))
    phases = [torch.fft.fft2(one) / torch.fft.fft2(one).abs() for one in (found, images)]
    torch.testing.assert_close(*phases)
    torch.testing.assert_close(with_amplitude(images[:1], amplitude(images)[0]), images[:1])
    level = with_amplitude(images, given, "mean")
    torch.testing.assert_close(level - images, (level - images).mean((2, 3), True).expand_as(level))
    assert level.mean((2, 3)).flatten().tolist() == pytest.approx(
        (given[:, 0, 0] / 24).tolist() * 3
    )


def test_fedharmo_on_images_of_one_amplitude_is_fedsam() -> None:
    simulation = world("fedharmo", "cnn", {"alpha": 0.2}, rounds=1)
    flat = replace(simulation, method=replace(simulation.method, earlier_phases=()))
    sam = world("fedsam", "cnn", {"rho": 0.2}, rounds=1)
    images = torch.rand(sam.arrays._x.shape, dtype=torch.float64)
    assert images.shape[1:] == (1, 4, 4)
    sam.arrays._x, flat.arrays._x = (with_amplitude(images, torch.ones(1, 4, 4).double()),) * 2
    sam.arrays._affine = flat.arrays._affine = None
    one, two = (worlds.run(s)[0] for s in (flat, sam))
    for kind in ("params", "buffers"):
        assert worlds.distance(one.server[kind], two.server[kind]) < 1e-12
