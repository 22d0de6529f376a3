"""What a method cannot do with a model, its settings or the clients, and how it says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import worlds
from hand_model import body_and_head, of, stored_two
from torch import nn

from fl.api.method import BuildContext
from fl.api.network import Network
from fl.api.recipes import recipe
from fl.api.term import task_loss
from fl.api.training import Training
from fl.base.errors import FedloomError, Location
from fl.blocks import local_images

MODULES = {
    "mlp": (lambda: worlds.module("mlp"), worlds.SHAPES["mlp"]),
    "cnn": (lambda: worlds.module("cnn"), worlds.SHAPES["cnn"]),
    "flat": (lambda: nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(8, 2)), (2, 2, 2)),
    "large": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12288, 2)), (3, 64, 64)),
}


def build(method: str, model: str, values: dict[str, Any], **more: Any) -> None:
    make, shape = MODULES[model]
    training = Training(batch_size=more.pop("batch_size", 2))
    context = BuildContext(Network(make), training, worlds.CLASSES, 4, shape, **more)
    entry = worlds.entry(method)
    entry.instantiate(entry.parse(values, Location("test"))).build(context)


@pytest.mark.parametrize(
    ("method", "model", "values", "problem"),
    [
        (
            "fedfa",
            "flat",
            {"layers": ["1"]},
            r"^layers: the output of 1 has the shape \[b, 8\], not that of images. Try: name a",
        ),
        ("fedfa", "flat", {}, r"^layers: is empty, and the model names no blocks. Try: name"),
        ("fedharmo", "mlp", {}, r"fedharmo: inputs have shape \(6\). Allowed: images"),
        ("fedl2p", "mlp", {}, "fedl2p: the model has no batch normalisation"),
        ("fedlgd", "mlp", {}, r"inputs have shape \(6,\). Try: choose a data set of im"),
        ("fedrobust", "large", {}, "'full', of 12288 x 12288 numbers. Allowed: diagonal"),
        ("finetune-bn", "mlp", {"statistics": "stored"}, "statistics is stored, but the model has"),
        ("l2p", "mlp", {}, "l2p: the model has no batch normalisation"),
        ("vhl", "mlp", {}, r"inputs have shape \(6,\). Try: choose a data set of im"),
    ],
)
def test_a_method_that_cannot_have_a_model_says_so(
    method: str, model: str, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(FedloomError, match=problem):
        build(method, model, values)


def test_what_is_refused_is_so_for_its_reason_alone() -> None:
    build("fedl2p", "mlp", {"learns": "lr", "beta": 0.0})
    build("fedrobust", "large", {"matrix": "diagonal"})
    build("fedl2p", "cnn", {}, absent_clients=2)
    with pytest.raises(FedloomError, match="l2p: clients are held out of training"):
        build("l2p", "cnn", {}, absent_clients=2)
    histograms = {"layers": ["0"], "histograms": True}
    build("fedfa", "flat", histograms)
    with pytest.raises(FedloomError, match=r"^fedfa: batch_size is 1, .*. Allowed: at least 2$"):
        build("fedfa", "flat", histograms, batch_size=1)
    with pytest.raises(
        FedloomError, match=r"trains on virtual images. Try: choose terms that adapt"
    ):
        worlds.world("fedlgd", "cnn", terms=[("mk-mmd", {"layers": ["2"], "update": "periodic"})])


@pytest.mark.parametrize("method", ["fednova", "scaffold"])
def test_a_path_at_a_rate_that_changes_is_not_known(method: str) -> None:
    with pytest.raises(FedloomError, match=r"schedule_by is steps, .* Allowed: rounds"):
        of(method, [[(1, 0)]], schedule_by="steps")


@pytest.mark.parametrize("method", ["scaffold", "fednova"])
def test_a_path_of_nesterovs_steps_is_not_known(method: str) -> None:
    with pytest.raises(FedloomError, match=r"nesterov is true, .* Allowed: false"):
        of(method, [[(1, 0)]], momentum=0.5, nesterov=True)


@pytest.mark.parametrize(
    ("method", "values", "problem"),
    [
        ("fedsac", {"k": 4}, "client 1 has 3 training samples. Allowed: k = 4 or more"),
        ("fedlgd", {"images": 2}, "images: is 2, but client 1 has 1 training samples of"),
    ],
)
def test_clients_with_too_few_samples_are_named_before_training(
    method: str, values: dict[str, Any], problem: str
) -> None:
    sizes = (13, 3, 20) if method == "fedsac" else worlds.SIZES
    with pytest.raises(FedloomError, match=problem):
        worlds.world(method, "cnn", values, sizes).begin()


def test_a_class_that_nobody_or_not_everybody_holds_is_named() -> None:
    simulation = of("fedfm", [[(1, 0), (3, 0)], [(8, 0)]], make=body_and_head)
    with pytest.raises(
        FedloomError, match=r"no participating client .* sample of class 1.*hold every class"
    ):
        simulation.begin(stored_two(1, 0))
    check = local_images.require_samples(1)
    with pytest.raises(FedloomError, match="client 1 has no training sample of class 1"):
        check(torch.tensor([[3, 1], [5, 0]]), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("term", "found"),
    [
        (lambda forward: forward.output.outputs.sum(-1), r"shape \(8,\).* Try: return weighted"),
        (lambda forward: 1.0, "float.* Try: return weighted"),
        (lambda forward: None, "NoneType.* Try: end the term by `return`"),
    ],
)
def test_a_term_that_is_no_scalar_tensor_is_refused(term: Any, found: str) -> None:
    """A number has no gradient, so the method would be another without a word."""
    plain = worlds.world("fedavg")
    context = BuildContext(
        plain.network, plain.training, worlds.CLASSES, len(worlds.SIZES), worlds.SHAPES["mlp"]
    )
    simulation = replace(plain, method=recipe(context, terms=(task_loss, term)))
    with pytest.raises(FedloomError, match=f"a loss term returned a value of {found}"):
        worlds.run(simulation)
