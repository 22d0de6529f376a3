"""Mixup, manifold mixup, MOEx and DAC-SC by hand, on a few numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.api.alteration import MIXED, Alterations
from fl.api.method import BuildContext
from fl.api.network import Network
from fl.api.tasks.classification import classification_loss
from fl.api.tasks.segmentation import SEGMENTATION
from fl.api.training import Training
from fl.base.errors import FedloomError
from fl.terms.alterations.dac_sc import DACSC, normalise_amplitudes
from fl.terms.alterations.m_mixup import MMixup
from fl.terms.alterations.mixup import Mixup
from fl.terms.alterations.moex import MOMENT_EPS, MOEx, exchange_moments


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def context(model: nn.Module | None = None) -> BuildContext:
    return BuildContext(Network(lambda: model or nn.Linear(2, 2)), Training(), 2, 2)


def batch(key: int = 0, size: int = 4) -> dict[str, Any]:
    x = torch.arange(2.0 * size, dtype=torch.float64).reshape(size, 2)
    weight = torch.ones(size)
    weight[-1] = 0
    keys = torch.arange(size) + 100 * key
    return {"x": x, "y": torch.tensor([0, 1, 1, 0][:size]), "weight": weight, "key": keys}


def test_the_loss_of_mixed_labels_is_the_mix_of_the_losses_with_either() -> None:
    outputs = tensor([[1.0, 0.5], [-1.0, 2.0], [0.0, 3.0]])
    labels, partner = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 2])
    own, weight = tensor([0.7, 0.4, 0.2]), tensor([1.0, 1.0, 0.0])
    given = {"y": labels, "weight": weight}
    found = classification_loss(outputs, {**given, MIXED: ((partner, own),)})
    either = [F.cross_entropy(outputs, y, reduction="none") for y in (labels, labels[partner])]
    expected = own * either[0] + (1 - own) * either[1]
    assert float(found) == pytest.approx(float(expected[:2].mean()), abs=1e-12)
    twice = classification_loss(outputs, {**given, MIXED: ((partner, own), (partner, own))})
    # Of sample 0, after the first: .7 of its own label; then .7 of that and .3 of sample 1's .6.
    share = 0.7 * 0.7 + 0.3 * (1 - 0.4)
    first = share * either[0][0] + (1 - share) * either[1][0]
    share = 0.4 * 0.4 + 0.6 * (1 - 0.7)
    second = share * either[0][1] + (1 - share) * either[1][1]
    assert float(twice) == pytest.approx(float(first + second) / 2, abs=1e-12)


def test_mixup_mixes_inputs_as_labels() -> None:
    alterations, lambdas = Alterations([Mixup().build(context())]), []
    for key in range(300):
        given = batch(key)
        seen = alterations.change_batch(given)
        [(partner, own)] = seen[MIXED]
        assert own.unique().numel() == 1, "one lambda for the batch"
        expected = own[:, None] * given["x"] + (1 - own[:, None]) * given["x"][partner]
        torch.testing.assert_close(seen["x"], expected)
        assert partner[3] == 3 and sorted(partner.tolist()) == [0, 1, 2, 3], "fills stay alone"
        assert torch.equal(seen["key"], given["key"])
        lambdas.append(float(own[0]))
    assert np.mean(lambdas) == pytest.approx(0.5, abs=0.1), "Beta(1, 1) is uniform"
    assert np.var(lambdas) == pytest.approx(1 / 12, abs=0.02)


def test_manifold_mixup_mixes_at_one_place_drawn_for_the_batch() -> None:
    alterations = Alterations([MMixup(("a", "b")).build(context())])
    features, counts = tensor([[1.0], [2.0], [4.0], [8.0]]), dict.fromkeys(["x", "a", "b"], 0)
    for key in range(300):
        given = batch(key)
        seen = alterations.change_batch(given)
        alter, _ = alterations.functions({}, seen)
        [(partner, own)] = seen[MIXED]
        if bool((partner[:3] == torch.arange(3)).all()):
            continue
        expected = own[:, None] * features + (1 - own[:, None]) * features[partner]
        touched = ["x"] if not torch.equal(seen["x"], given["x"]) else []
        for layer in ("a", "b"):
            after = alter[layer](features)
            if not torch.equal(after, features):
                torch.testing.assert_close(after, expected)
                touched.append(layer)
        [place] = touched
        counts[place] += 1
    assert min(counts.values()) > 50, "each a third of 250"


def test_moex_gives_the_moments_of_the_partner() -> None:
    """Channels 1 and 3 at the pixel of sample 0, 10 and 30 of sample 1: means 2 and 20, unbiased
    deviations sqrt 2 and sqrt 200.
    """
    x = tensor([[[[1.0]], [[3.0]]], [[[10.0]], [[30.0]]]])
    found = exchange_moments(x, torch.tensor([1, 0])).flatten(1)
    np.testing.assert_allclose(found, [[10, 30], [1, 3]], rtol=MOMENT_EPS)
    same = exchange_moments(x, torch.tensor([0, 1]))
    torch.testing.assert_close(same, x, rtol=1e-12, atol=0)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_moex_mixes_labels_where_it_altered_the_batch(p: float) -> None:
    alterations = Alterations([MOEx(("a",), p=p, lam=0.8).build(context())])
    features, altered = torch.randn(4, 3, 2, 2, dtype=torch.float64), 0
    for key in range(300):
        seen = alterations.change_batch(batch(key))
        alter, _ = alterations.functions({}, seen)
        [(partner, own)] = seen[MIXED]
        after = alter["a"](features)
        if float(own[0]) == 1:
            assert torch.equal(after, features)
        else:
            assert own.tolist() == pytest.approx([0.8] * 4)
            torch.testing.assert_close(after, exchange_moments(features, partner))
            altered += 1
    assert altered / 300 == pytest.approx(p, abs=0.15)


def test_dac_sc_keeps_phases_and_mixes_amplitudes() -> None:
    """Held to the Fourier transforms that the paper writes."""
    draw = torch.Generator().manual_seed(0)
    x = 2 + 3 * torch.randn(3, 2, 4, 5, generator=draw, dtype=torch.float64)
    own = tensor([0.0, 0.3, 1.0])
    mean = x.mean((2, 3), keepdim=True)
    sd = (x.var((2, 3), keepdim=True) + 1e-6).sqrt()
    normalised = torch.fft.fft2((x - mean) / sd).abs()
    before = torch.fft.fft2(x)
    share = own[:, None, None, None]
    amplitude = share * before.abs() + (1 - share) * normalised
    expected = torch.fft.ifft2(torch.polar(amplitude, before.angle())).real
    torch.testing.assert_close(normalise_amplitudes(x, own), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(normalise_amplitudes(x, own)[2], x[2], rtol=1e-12, atol=1e-12)


def test_what_cannot_be_altered_is_refused() -> None:
    words = context(nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(4, 2)))
    deaf = replace(
        context(), task=replace(SEGMENTATION, name="counting", supports_mixed_labels=False)
    )
    for alteration, given, problem in (
        (Mixup(), words, "inputs are tokens, which cannot be mixed. Try: "),
        (MMixup(("2",)), words, "inputs are tokens. Allowed: false"),
        (MOEx(("a",)), deaf, "mixes labels, which the loss of counting cannot take"),
    ):
        with pytest.raises(FedloomError, match=problem):
            alteration.build(given)
    for layered in (MOEx(("a",)), DACSC(("a",))):
        alterations = Alterations([layered.build(context())])
        alter, _ = alterations.functions({}, alterations.change_batch(batch()))
        with pytest.raises(
            FedloomError, match=r"layers: the output of a has the shape \[b, 5\], not that of"
        ):
            alter["a"](torch.ones(4, 5))
