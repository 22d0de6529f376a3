"""Compare losses and weights of methods with the authors' own code, executed on the same numbers.

    python -m bench.released FOLDER

FOLDER has a clone of each repository, by its name on GitHub, at the commit that is named here. The
code of a clone runs with all your rights. Each line says the largest difference of values and of
gradients in double precision.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fl.api import trees
from fl.api.network import Output
from fl.api.term import Forward
from fl.blocks.mixing import client_rows, mix
from fl.methods.fedcac import FedCAC, partner_weights
from fl.methods.fedcp import kernel_discrepancy
from fl.methods.feddisco import FedDisco
from fl.methods.fedem import responsibilities
from fl.methods.fedntd import TEACHER, not_true_distillation
from fl.terms.feddecorr import FedDecorr
from fl.terms.feduv import FedUV


def main() -> None:
    """Print a line for each comparison."""
    parser = argparse.ArgumentParser("python -m bench.released", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.manual_seed(0)
    for repository, (commit, compare) in COMPARISONS.items():
        print(f"{compare.__name__} ({repository} {commit}): {compare(folder):.1e}")


def fedntd(folder: Path) -> float:
    """The distillation of FedNTD, at temperatures 1 and 3."""
    names = _run(folder / "FedNTD/algorithms/fedntd/utils.py")
    source = (folder / "FedNTD/algorithms/fedntd/criterion.py").read_text()
    exec(source.replace("from .utils import *", ""), names)
    largest = 0.0
    for tau in (1.0, 3.0):
        outputs, teacher = _normal(50, 10), _normal(50, 10)
        labels = torch.randint(0, 10, (50,))
        released = names["NTD_Loss"](10, tau, 1)._ntd_loss(outputs, teacher, labels)
        batch = {"y": labels, "reference": {TEACHER: teacher.detach()}}
        found = not_true_distillation(1.0, tau)(_forward(outputs, outputs, **batch))
        largest = max(largest, _difference(found, released, outputs))
    return largest


def feddecorr(folder: Path) -> float:
    """The penalty of FedDecorr on batches of 2, 16 and 64."""
    names = _run(folder / "FedDecorr/loss.py")

    def difference(count: int) -> float:
        features = _normal(count, 20)
        found = FedDecorr(scale="released").penalty(features, torch.ones(count).double())
        return _difference(found, names["FedDecorrLoss"]()(features), features)

    return max(map(difference, (2, 16, 64)))


def feduv(folder: Path) -> float:
    """The penalty of FedUV; a constant of the authors' code is in single precision."""
    names = _run(folder / "FedUV/algs/feduv.py")
    regulariser = names["UVReg"](SimpleNamespace(std_coeff=2.5, unif_coeff=0.5), 7)

    def difference(count: int) -> float:
        outputs, features = _normal(count, 7), _normal(count, 12)
        term: Callable[[Forward], Tensor] = FedUV().build(None)  # type: ignore[arg-type]
        released = regulariser(outputs, outputs, features)[0]
        return _difference(term(_forward(outputs, features)), released, outputs, features)

    return max(map(difference, (2, 9, 32)))


def feddisco(folder: Path) -> float:
    """The weights of FedDisco for random class counts, by both distances."""
    names = _run(folder / "FedDisco/disco.py")
    draw, largest = np.random.default_rng(0), 0.0
    for distance in ("kl", "l2"):
        method = FedDisco(distance=distance)  # type: ignore[arg-type]
        for _ in range(20):
            counts = draw.integers(1, 30, (8, 5))
            apart = names["get_distribution_difference"](
                counts.astype(float), np.arange(8), distance, np.full(5, 0.2)
            )
            shares = counts.sum(1) / counts.sum()
            released = np.array(names["disco_weight_adjusting"](shares, apart, method.a, method.b))
            distances = torch.stack(
                [method.from_equal(torch.tensor(row).double()) for row in counts]
            )
            weights = method.weights(distances, torch.tensor(counts.sum(1)))
            found = (weights / weights.sum()).numpy()
            largest = max(largest, float(np.abs(found - released).max()))
    return largest


def fedcp(folder: Path) -> float:
    """The discrepancy of FedCP, which the authors' code sums in single precision."""
    source = (folder / "PFLlib/system/flcore/clients/clientcp.py").read_text()
    names: dict[str, Any] = {"torch": torch}
    exec(source[source.index("def MMD") : source.index("class Ensemble")], names)
    x, y = _normal(20, 8), _normal(20, 8)
    return float(
        (kernel_discrepancy(x, y, torch.ones(20).double()) - names["MMD"](x, y, "rbf"))
        .detach()
        .abs()
    )


def fedem(folder: Path) -> float:
    """The E-step of FedEM, for random losses and weights."""
    names: dict[str, Any] = {}
    source = (folder / "FedEM/client.py").read_text()
    exec(source.replace("from utils.torch_utils import *", "import torch"), names)
    losses, mixture = _normal(20, 3).detach().square(), torch.rand(3).double()
    mixture = mixture / mixture.sum()
    ensemble = SimpleNamespace(learners_weights=mixture, gather_losses=lambda samples: losses.T)
    client = SimpleNamespace(learners_ensemble=ensemble, val_iterator=None)
    names["MixtureClient"].update_sample_weights(client)
    q = responsibilities(-losses, mixture)
    return float((q - client.samples_weights.T).abs().max())


def fedcac(folder: Path) -> float:
    """Critical weights and partners' means of FedCAC after training six linear models."""
    names: dict[str, Any] = {"np": np, "torch": torch, "nn": nn, "copy": copy, "BaseClient": object}
    names |= {"Tuple": tuple, "Logger": object, "ParameterServerGroup": object}
    for part in ("client/fedcac_client.py", "group/fedcac_group.py"):
        source = (folder / "Fling/fling/component" / part).read_text()
        exec(source[source.index("class FedCAC") :], names)
    start = nn.Linear(20, 7).double()
    models = [nn.Linear(20, 7).double() for _ in range(6)]
    clients = []
    for model in models:
        client = SimpleNamespace(model=model, device="cpu", customized_model=copy.deepcopy(model))
        evaluate = names["FedCACClient"].evaluate_critical_parameter
        client.critical_parameter, _, _ = evaluate(client, start, model, 0.4)
        clients.append(client)
    sizes, learn = SimpleNamespace(client_num=6), SimpleNamespace(beta=3, device="cpu")
    args = SimpleNamespace(client=sizes, learn=learn)
    group = SimpleNamespace(args=args, epoch=0, clients=clients)
    names["FedCACServerGroup"].get_customized_global_models(group)

    def params(model: nn.Module) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    stack, first = trees.stack([params(model) for model in models]), params(start)
    marks = [trees.apply(FedCAC(tau=0.4).critical, first, params(model)) for model in models]
    critical = client_rows(trees.stack(marks))
    found = mix(partner_weights(critical, 1 / 3), stack)
    released = trees.stack([params(client.customized_model) for client in clients])
    masks = torch.stack([client.critical_parameter for client in clients])
    gaps = [(a - b).abs().max() for a, b in zip(found.values(), released.values(), strict=True)]
    return float(torch.stack([*gaps, (critical - masks).abs().max()]).max())


def _run(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(path.read_text(), names)
    return names


def _normal(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64, requires_grad=True)


def _forward(outputs: Tensor, features: Tensor, **batch: Any) -> Forward:
    weight = torch.ones(len(outputs)).double()
    output = Output(outputs, features, {})
    return Forward(None, output, {}, {}, {}, {"weight": weight, **batch})  # type: ignore[arg-type]


def _difference(found: Tensor, released: Tensor, *leaves: Tensor) -> float:
    """Return the largest difference of two scalars and of their gradients."""
    slopes = [torch.autograd.grad(value, leaves, retain_graph=True) for value in (found, released)]
    gaps = [(a - b).abs().max() for a, b in zip(*slopes, strict=True)]
    return float(torch.stack([(found - released).detach().abs(), *gaps]).max())


COMPARISONS: dict[str, tuple[str, Callable[[Path], float]]] = {
    "FedNTD": ("be00ee59", fedntd),
    "FedDecorr": ("973e4af2", feddecorr),
    "FedUV": ("dd2e3c59", feduv),
    "FedDisco": ("f3ea299b", feddisco),
    "FedEM": ("996fadd", fedem),
    "Fling": ("f6c6f1e", fedcac),
    "PFLlib": ("d832e76", fedcp),
}
"""By repository, the commit at which it was compared, and the comparison."""

if __name__ == "__main__":
    main()
