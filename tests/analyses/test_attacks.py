"""Membership inference and gradient inversion: their numbers, and that they find what is there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from run_source import source
from scipy.stats import gaussian_kde
from torch import Tensor, nn

from fl.analyses import inversion, membership
from fl.analyses.inversion import Inversion
from fl.analyses.membership import Membership
from fl.api.network import Network
from fl.base.errors import FedloomError
from fl.engine.client_data import ClientData
from fl.engine.sample_arrays import Arrays

NORMALISATION = {"scale": 1.0, "mean": 0.5, "sd": 0.25}


def small_world(n: int = 60) -> Any:
    """Noise of two classes over two clients, on whose training samples a model can only learn by
    heart.
    """
    draw = np.random.default_rng(0)
    x = draw.random((2 * n, 1, 6, 6)).astype(np.float32)
    y = np.arange(2 * n) % 2
    network = Network(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 2)
        )
    )
    arrays = Arrays(x, y, NORMALISATION, torch.device("cpu"), torch.float32)
    quarters = np.split(np.arange(2 * n), 4)
    data = ClientData({"train": quarters[:2], "test": quarters[2:]})
    return SimpleNamespace(network=network, arrays=arrays, client_data=data, classes=2)


def learnt_by_heart(simulation: Any, steps: int = 300) -> dict[str, Any]:
    variables = simulation.network.init(1)
    index = torch.from_numpy(np.concatenate(simulation.client_data.samples["train"]))
    x, y = simulation.arrays.inputs(index), simulation.arrays.labels(index)
    params = {name: p.clone().requires_grad_() for name, p in variables["params"].items()}
    adam = torch.optim.Adam(params.values(), lr=0.02)
    for _ in range(steps):
        adam.zero_grad()
        F.cross_entropy(simulation.network.eval(params, {}, x).outputs, y).backward()
        adam.step()
    return {"params": {name: p.detach() for name, p in params.items()}, "buffers": {}}


# Membership


def test_the_curve_its_area_and_its_low_end_by_hand() -> None:
    members, others = np.array([3.0, 2.0, 1.0]), np.array([2.0, 0.0])
    false, true = membership.roc(members, others)
    assert false.tolist() == [0, 0, 0.5, 0.5, 1]
    assert true.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    # Of six pairs four are won, one is even and one is lost.
    assert membership.area(members, others) == pytest.approx(4.5 / 6)
    assert np.trapezoid(true, false) == pytest.approx(4.5 / 6)
    assert membership.true_positives(false, true) == pytest.approx(1 / 3)


def test_densities_are_scipys() -> None:
    draw = np.random.default_rng(0)
    sample, at = draw.normal(size=50), draw.normal(size=7)
    expected = gaussian_kde(sample).logpdf(at)
    assert membership.log_density(sample, at) == pytest.approx(expected)
    assert not membership.log_density(np.ones(5), at).any()


def test_what_is_known_of_a_sample_is_its_own_gradient_or_loss() -> None:
    simulation = small_world()
    variables = simulation.network.init(1)
    samples = np.array([3, 70, 9])
    for gradient in (True, False):
        distances = membership.sample_values(variables, simulation, samples, gradient)
        for sample, value in zip(samples, distances, strict=True):
            index = torch.tensor([sample])
            params = {name: p.clone().requires_grad_() for name, p in variables["params"].items()}
            output = simulation.network.eval(params, {}, simulation.arrays.inputs(index)).outputs
            loss = F.cross_entropy(output, simulation.arrays.labels(index))
            loss.backward()
            squares = sum(float(p.grad.square().sum()) for p in params.values())
            expected = math.sqrt(squares) if gradient else loss.item()
            assert value == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("by", ["gradient", "loss"])
def test_who_was_learnt_by_heart_is_found_and_who_was_not_is_not(by: Any) -> None:
    simulation = small_world(200)
    weights = {"heart": learnt_by_heart(simulation), "fresh": simulation.network.init(3)}
    runs = [
        source(run=name, method=name, simulation=simulation, weights={"global": tree}, traces={})
        for name, tree in weights.items()
    ]
    result = Membership(by=by, shown=1).read(runs)
    rows = result.table.set_index("method")
    assert rows.loc["heart", "area"] > 0.8
    assert rows.loc["heart", "tpr"] > membership.FALSE
    assert rows.loc["fresh", "area"] == pytest.approx(0.5, abs=0.12)
    assert [(panel.method, panel.title) for panel in result.panels] == [
        ("heart", "client 0"),
        ("fresh", "client 0"),
    ]
    again = Membership(by=by, shown=1).read(runs).table
    assert again.equals(result.table)


def test_clients_of_few_samples_are_attacked_together() -> None:
    """Forty clients of ten samples, five to train on: one by one less is seen."""
    simulation = small_world(200)
    training, test = (np.concatenate(part) for part in simulation.client_data.samples.values())
    small = {"train": np.split(training, 40), "test": np.split(test, 40)}
    simulation.client_data = ClientData(small)
    weights = {"global": learnt_by_heart(simulation)}
    run = source(simulation=simulation, weights=weights, traces={})
    alone, together = (
        Membership(by="loss", clients=40, together=choice).read([run]) for choice in (False, True)
    )
    at_once = together.table["area"].item()
    assert at_once > 0.8 and at_once > alone.table["area"].item() + 0.05
    assert (alone.notes, together.notes) == ((membership.FEW_SAMPLES_NOTE,), ())
    assert [panel.title for panel in together.panels] == ["40 clients"]
    assert "all clients at once" in together.caption


def test_clients_own_models_are_attacked_one_by_one_and_small_clients_left_out() -> None:
    simulation = small_world()
    samples = simulation.client_data.samples
    few = {**samples, "test": [samples["test"][0], samples["test"][1][:2]]}
    simulation.client_data = replace(simulation.client_data, samples=few)
    first = simulation.network.init(1)["params"]
    personal = {"params": {n: torch.stack([p, 2 * p]) for n, p in first.items()}, "buffers": {}}
    run = source(simulation=simulation, weights={"personal": personal}, traces={})
    result = Membership().read([run])
    assert result.table["stage"].tolist() == ["personal"]
    small = "client 1 has fewer than 4 training or test samples"
    assert result.notes == (small, membership.FEW_SAMPLES_NOTE)
    views = list(membership.models({"personal": personal}, simulation, 5))
    assert [client for _, client, _ in views] == [0, 1]
    assert views[1][2]["params"]["0.bias"].equal(2 * first["0.bias"])


# Inversion


def test_parts_of_the_attack_by_hand() -> None:
    a, b = (
        [torch.tensor([[3.0, 0.0]]), torch.tensor([4.0])],
        [torch.tensor([[0.0, 1.0]]), torch.tensor([1.0])],
    )
    assert inversion.cosine_distance(a, b).item() == pytest.approx(1 - 4 / (5 * math.sqrt(2)))
    x = torch.tensor([[[[0.0, 1.0], [3.0, 1.0]]]])
    assert inversion.total_variation(x).item() == pytest.approx(3 / 2 + 3 / 2)
    truth, guess = torch.zeros(1, 8, 8).double(), torch.full((1, 8, 8), 0.1).double()
    assert inversion.psnr(truth, guess) == pytest.approx(20)
    assert inversion.psnr(truth, truth) == 100
    noise = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    assert inversion.ssim(noise, noise) == pytest.approx(1)
    assert inversion.ssim(noise, 1 - noise) < 0
    assert inversion.spread(np.array([0, 0, 1, 0, 1])).tolist() == [0, 2, 1, 4, 3]


def test_images_are_found_in_their_gradient() -> None:
    simulation = small_world()
    variables = simulation.network.init(1)
    index = torch.tensor([4])
    x, y = simulation.arrays.inputs(index), simulation.arrays.labels(index)
    pixels = simulation.arrays.pixels
    rebuilt = inversion.inverted(Inversion(steps=250, tv=0.0), variables, simulation, x, y)
    none = inversion.inverted(Inversion(steps=1, tv=0.0), variables, simulation, x, y)
    better, worse = (inversion.psnr(pixels(x), pixels(images)) for images in (rebuilt, none))
    assert better > worse + 6
    assert pixels(x).min() >= 0
    assert pixels(x).max() <= 1
    raw = simulation.arrays._source[4]
    assert np.abs(pixels(x)[0].numpy() - raw).max() < 1e-6


def test_real_and_virtual_batches_are_attacked_and_shown() -> None:
    simulation = small_world()
    kept = torch.rand(3, 2, 4, 1, 6, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
    weights = {"global": simulation.network.init(1)}
    plain = source(run="a", method="fedavg", simulation=simulation, weights=weights, traces={})
    virtual = source(
        run="b", method="fedlgd", simulation=simulation, weights=weights, traces={"local": kept}
    )
    attack = Inversion(client=1, batch=2, steps=3)
    [_, (_, x, y)] = attack._batches(virtual, simulation, 1)
    assert x.equal(kept[-1, 1][[0, 2]])
    assert y.tolist() == [0, 1]
    result = attack.read([plain, virtual])
    rows = result.table[["method", "data"]].to_numpy().tolist()
    assert rows == [["fedavg", "real"], ["fedlgd", "real"], ["fedlgd", "virtual"]]
    assert [panel.title for panel in result.panels] == [
        f"{data} data, client 1" for data in ("real", "real", "virtual")
    ]
    assert "<svg" in result.panels[0].picture.svg
    real = result.table.iloc[0]
    both = Inversion(batch=2, steps=3, clients=2, methods=("fedavg",)).read([plain, virtual]).table
    assert both[["method", "data", "client"]].to_numpy().tolist() == [
        ["fedavg", "real", 0],
        ["fedavg", "real", 1],
    ]
    assert both.iloc[1]["psnr"] == real["psnr"]
    # What is nearest to a real image is no nearer than that of the class it was trained on.
    assert real["leak"] >= real["psnr"] - 1e-9


def test_lpips_is_its_formula_on_the_weights_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fl.pytorch.vision import torchvision

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert inversion.perceptual() is None
    file = tmp_path / "checkpoints" / inversion.ALEXNET
    file.parent.mkdir()
    file.write_bytes(b"half a download")
    with pytest.raises(FedloomError, match=r"LPIPS: .*alexnet-owt-7be5be79.pth cannot be read"):
        inversion.perceptual()
    draw = torch.Generator().manual_seed(0)
    alexnet = torchvision.models.alexnet().double()
    torch.save({n: w.float() for n, w in alexnet.state_dict().items()}, file)
    distance = inversion.perceptual()
    assert distance is not None
    x, y = (torch.rand(2, 3, 16, 16, generator=draw, dtype=torch.float64) for _ in range(2))
    assert distance(x, x) == 0
    assert distance(x, y) == pytest.approx(lpips_by_hand(alexnet.features, x, y), rel=1e-5)


@torch.no_grad()
def lpips_by_hand(layers: nn.Module, x: Tensor, y: Tensor) -> float:
    """Squared differences of unit features behind AlexNet's five ReLUs, weighted by channel."""
    import lpips

    weights = Path(lpips.__file__).parent / "weights" / "v0.1" / "alex.pth"
    channels = iter(torch.load(weights, map_location="cpu", weights_only=True).values())
    mean = torch.tensor([-0.030, -0.088, -0.188]).double()[:, None, None]
    sd = torch.tensor([0.458, 0.448, 0.450]).double()[:, None, None]
    pair = [(2 * F.interpolate(images, (64, 64)) - 1 - mean) / sd for images in (x, y)]
    total = torch.zeros(2).double()
    for layer in layers.children():
        pair = [layer(features) for features in pair]
        if isinstance(layer, nn.ReLU):
            first, second = (f / (f.square().sum(1, keepdim=True).sqrt() + 1e-10) for f in pair)
            weight = next(channels).double().reshape(1, -1, 1, 1)
            total += ((first - second).square() * weight).sum(1).mean((1, 2))
    return float(total.mean())


def test_batches_that_nobody_has_and_inputs_that_are_no_images_are_refused() -> None:
    simulation = small_world(20)
    run = source(simulation=simulation, weights={"global": simulation.network.init(1)}, traces={})
    with pytest.raises(FedloomError, match="batch: is 11, and client 0 has 10 training samples"):
        Inversion(batch=11, steps=1).read([run])
    kept = torch.zeros(1, 2, 2, 1, 6, 6)
    few = source(
        simulation=simulation,
        weights={"global": simulation.network.init(1)},
        traces={"local": kept},
    )
    with pytest.raises(FedloomError, match="batch: is 3, and the run keeps 2 virtual images"):
        Inversion(batch=3, steps=1).read([few])
    with pytest.raises(FedloomError, match=r"client: is 7, .* has no client 7"):
        Inversion(client=7, batch=1, steps=1).read([run])
    with pytest.raises(FedloomError, match=r"clients: is 9, .* has no client 2"):
        Inversion(clients=9, batch=1, steps=1).read([run])
    with pytest.raises(FedloomError, match=r"inputs have shape \(6,\). Allowed: images"):
        Inversion().check((6,), 2)
