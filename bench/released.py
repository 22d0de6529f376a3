"""Compare losses and weights of methods with the authors' own code, executed on the same numbers.

    python -m bench.released FOLDER [--only METHOD ...]

FOLDER has a clone of each repository, by its name on GitHub, at the commit that is named here. The
code of a clone runs with all your rights. Each line says the largest difference of values and of
gradients in double precision.
"""

from __future__ import annotations

import argparse
import copy
import textwrap
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bench import timing
from bench.workloads import CLASSES, Workload
from fl.api import classification_loss, single_pass, trees
from fl.api.method import Pass
from fl.api.network import Output
from fl.api.term import Forward
from fl.blocks.anchor_exchange import ANCHORS
from fl.blocks.anchors import class_sums
from fl.blocks.calibration import balanced_logits
from fl.blocks.fixed_heads import simplex_etf
from fl.blocks.mixing import client_rows, mix
from fl.blocks.participation import ROUNDS
from fl.engine.simulation import Simulation
from fl.methods.fedala import FedALA
from fl.methods.fedavg import FedAvg
from fl.methods.fedcac import FedCAC, partner_weights
from fl.methods.fedcp import kernel_discrepancy
from fl.methods.feddisco import FedDisco
from fl.methods.fedem import responsibilities
from fl.methods.fedexp import FedExP
from fl.methods.fedntd import TEACHER, not_true_distillation
from fl.methods.fedpac import head_statistics, head_weights
from fl.methods.fedphp import TEACHER as PHP_TEACHER
from fl.methods.fedphp import FedPHP, inherited_term
from fl.methods.fedtgp import FedTGP
from fl.terms.feddecorr import FedDecorr
from fl.terms.feduv import FedUV


def main() -> None:
    """Print a line for each comparison."""
    parser = argparse.ArgumentParser("python -m bench.released", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="methods (default: all)")
    asked = parser.parse_args()
    for repository, commit, compare in COMPARISONS:
        if not asked.only or compare.__name__ in asked.only:
            torch.manual_seed(0)
            difference = compare(asked.folder)
            print(f"{compare.__name__} ({repository} {commit}): {difference:.1e}")


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
        method = FedDisco(distance=distance)
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


def fedpac(folder: Path) -> float:
    """V and H of FedPAC, and its weights of heads, which the authors' code leaves to a solver."""
    names: dict[str, Any] = {"torch": torch, "tools": SimpleNamespace()}
    source = (folder / "FedPAC/methods/fedpac.py").read_text()
    exec(source[source.index("class LocalUpdate_FedPAC") :], names)
    tools = (folder / "FedPAC/tools.py").read_text()
    # `torch.eig` is no longer in PyTorch, and what follows from it is used for no matrix here.
    tools = tools.replace("torch.eig(torch.tensor(p_matrix), eigenvectors=True)", "None, None")
    tools = tools.replace("if evals[ii,0] >= 0.01:", "if False:").replace(
        ".numpy() if not", " if not"
    )
    exec(tools, names)
    largest, variances, statistics = 0.0, [], []
    for _ in range(6):
        features, labels = _normal(40, 8).detach() + 1, torch.randint(0, 4, (40,))
        counts = torch.bincount(labels, minlength=5)
        client = SimpleNamespace(
            local_model=_Released(features),
            w_local_keys="head",
            train_data=[(torch.arange(40), labels)],
            device="cpu",
            probs_label=counts.double() / 40,
            num_classes=5,
            datasize=torch.tensor(40),
        )
        variance, means = names["LocalUpdate_FedPAC"].statistics_extraction(client)
        sums, _ = class_sums(features, labels, torch.ones(40).double(), 5)
        squares = torch.zeros(5).double().index_add(0, labels, features.square().sum(1))
        found = head_statistics({"sums": sums, "counts": counts.double(), "squares": squares})
        gaps = [abs(float(found["variance"]) - variance), (found["means"] - means).abs().max()]
        largest = max(largest, *map(float, gaps))
        variances.append(variance)
        statistics.append(found)
    stack = trees.stack(statistics)
    released = names["get_head_agg_weight"](6, variances, list(stack["means"]))
    weights = head_weights(stack)
    rows = F.normalize(torch.tensor(np.array(released)), p=1, dim=-1)
    print(f"  weights of heads: {float((weights - rows).abs().max()):.1e} (a solver's digits)")
    return largest


class _Released:
    """A model of the authors' interface, whose features are known."""

    def __init__(self, features: Tensor) -> None:
        self.features = features

    def state_dict(self) -> dict[str, Tensor]:
        """Return a head as wide as the features."""
        return {"head": self.features[:5]}

    def __call__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.features[index], self.features[index]


def fedala(folder: Path) -> float:
    """The shares of FedALA after three batches, by the authors' ALA on the same weights."""
    names = _run(folder / "PFLlib/system/utils/ALA.py")
    run = _simulation(FedALA(eta=2.0))
    shared, own = _two_layers(), _two_layers()
    x, y = _normal(24, 8).detach(), torch.randint(0, CLASSES, (24,))
    data = [(a, b) for a, b in zip(x, y, strict=True)]
    ala = names["ALA"](0, nn.CrossEntropyLoss(), data, 8, 100, layer_idx=2, eta=2.0, device="cpu")
    ala.start_phase = False
    head = {name: leaf.detach().clone() for name, leaf in own.named_parameters() if "2." in name}
    ala.adaptive_local_aggregation(shared, own)
    server = {"params": dict(shared.named_parameters()), "buffers": {}}
    pass_ = run.method.passes[1]
    assert isinstance(pass_, Pass)
    work = pass_.begin(server, {"own": head, "shares": trees.apply(torch.ones_like, head)})
    for index in torch.arange(24).split(8):
        leaves = trees.apply(lambda leaf: leaf.detach().requires_grad_(), work["params"])
        batch = {"x": x[index], "y": y[index], "weight": torch.ones(8).double()}
        loss, aux = pass_.loss(server, {**work, "params": leaves}, batch)
        gradients = torch.autograd.grad(loss, trees.leaves(leaves))
        grads = trees.unflatten(leaves, gradients)
        work = pass_.update(server, work, grads, aux, 0.1)
    pairs = zip(trees.leaves(work["params"]), ala.weights, strict=True)
    return float(torch.stack([(a - b).abs().max() for a, b in pairs]).max())


def fedexp(folder: Path) -> float:
    """The server's model of FedExP and the evaluated mean in three rounds of random moves."""
    source = (folder / "FedExP/main.py").read_text()
    begin = source.index("        for i in ind:")
    end = source.index("            vector_to_parameters(w_vec_estimate,net_glob")
    part = textwrap.dedent(source[begin:end])
    run = _simulation(FedExP(epsilon=0.2))
    server, n = run.begin().server, torch.tensor([3.0, 5, 1, 2]).double()
    names: dict[str, Any] = {"torch": torch, "copy": copy, "args": {}, "alg": "fedexp", "c": 0}
    names |= {"S": 4, "epsilon": 0.2 / 4, "p": n / n.sum(), "ind": range(4), "mem_mat": None}
    names |= {"args_hyperparameters": {"eta_g": "adaptive"}, "dataset_train": [None] * 4}
    names |= {"eta_g_tmp": [], "net_glob": _two_layers(), "grad_norm_avg_running": 0}
    names["parameters_to_vector"] = lambda parameters: names["w_vec_estimate"]
    names["w_vec_estimate"] = _vector(server["params"])
    largest = 0.0
    for number, size in enumerate((0.1, 1.0, 3.0)):
        params = server["params"]
        moves = [_random(params, size) for _ in range(4)]
        names |= {"t": number, "grad_norm_sum": 0, "p_sum": 0, "grad_avg": 0}
        names["get_grad"] = lambda net, a, h, data, alg, i, m, c: _vector(moves[i])  # noqa: B023
        exec(part, names)
        stack = trees.stack([trees.apply(torch.add, params, move) for move in moves])
        squared = torch.stack([_vector(move).square().sum() for move in moves])
        uploads = {"params": stack, "buffers": {}, "squared_length": squared}
        server = run.method.aggregate(server, {}, uploads, n)[0]
        found = (
            _vector(server["params"]),
            _vector(run.method.views["global"](server, None)["params"]),
        )
        released = names["w_vec_estimate"], names["w_vec_avg"]
        # Before round 2 the code evaluates the last model alone.
        pairs = list(zip(found, released, strict=True))[: 2 if number else 1]
        largest = max(largest, *(float((a - b).abs().max()) for a, b in pairs))
    print(f"  rates: {', '.join(f'{float(rate):.2f}' for rate in names['eta_g_tmp'])}")
    return largest


def _random(params: trees.Tree, size: float) -> trees.Tree:
    return trees.apply(lambda w: size * torch.randn_like(w), params)


def _vector(params: trees.Tree) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in trees.leaves(params)])


def fedphp(folder: Path) -> float:
    """The loss of FedPHP after the first round, and the personal model after three."""
    source = (folder / "FedRepo/algorithms/fedphp.py").read_text()
    names: dict[str, Any] = {"nn": nn}
    lines = source[source.index("            criterion = nn.CrossEntropyLoss()") :]
    functions = source[source.index("    def generate_mu") : source.index("    def update_global")]
    exec(textwrap.dedent(functions), names)
    logits, teacher, labels = _normal(20, 10), _normal(20, 10), torch.randint(0, 10, (20,))
    names |= {"logits": logits, "plogits": teacher.detach(), "batch_y": labels}
    names["self"] = SimpleNamespace(args=SimpleNamespace(reg_way="KD", reg_lamb=0.1))
    exec(textwrap.dedent(lines[: lines.index("            optimizer.zero_grad")]), names)
    batch = {"y": labels, "reference": {PHP_TEACHER: teacher.detach()}}
    forward = _forward(logits, logits, **batch)
    forward = replace(forward, work={ROUNDS: torch.tensor(1)})
    largest = _difference(inherited_term(0.1)(forward), names["loss"], logits)

    run = _simulation(FedPHP(), rounds=3)
    client = trees.take(run.begin().clients, 0)
    personal, work_end = _two_layers(), single_pass(run.method).end
    personal.load_state_dict(client["inherited"]["params"])
    server = run.begin().server
    args = SimpleNamespace(c_ratio=1.0, max_round=3)
    php = SimpleNamespace(args=args, cnts={0: 0})
    php.generate_mu = lambda client: names["generate_mu"](php, client)
    for _ in range(3):
        trained = _two_layers()
        names["update_hpm"](php, 0, trained, personal)
        php.cnts[0] += 1
        work = single_pass(run.method).begin(server, client)
        work = {**work, "params": {n: p.detach() for n, p in trained.named_parameters()}}
        client = {**client, **work_end(server, client, work)[0]}
        gaps = [
            (client["inherited"]["params"][name] - leaf).abs().max()
            for name, leaf in personal.state_dict().items()
        ]
        largest = max(largest, float(torch.stack(gaps).max()))
    return largest


def fedetf(folder: Path) -> float:
    """The balanced loss of FedETF, and the angles of its head, which the code has in float32."""
    source = (folder / "ICCV-2023-FedETF/client_funct.py").read_text()
    names: dict[str, Any] = {"F": F}
    part = source[source.index("def balanced_softmax_loss") : source.index("def client_fedetf")]
    exec(part, names)
    outputs, labels = _normal(30, 6), torch.randint(0, 6, (30,))
    counts = torch.tensor([3, 9, 1, 4, 20, 7])
    released = names["balanced_softmax_loss"](outputs, labels, counts)
    batch = {"y": labels, "weight": torch.ones(30).double()}
    found = classification_loss(balanced_logits(outputs, counts.double()), batch)
    classifiers = folder / "ICCV-2023-FedETF/models_dict/proto_classifiers.py"
    names = {}
    exec(classifiers.read_text().replace(".cuda()", ""), names)
    frame = names["Proto_Classifier"](12, CLASSES).proto
    context = SimpleNamespace(network=_simulation(FedAvg(), width=12).network, seed=0)
    variables = context.network.init(0)
    weight = simplex_etf(context, variables)["2.weight"]  # type: ignore[arg-type]
    angles = float((weight @ weight.T - (frame.T @ frame).double()).abs().max())
    print(f"  angles of the head: {angles:.1e} (single precision)")
    return _difference(found, released, outputs)


def fedtgp(folder: Path) -> float:
    """The prototypes of FedTGP after three steps on all means; the authors' order is random."""
    source = (folder / "HtFLlib/system/flcore/servers/servertgp.py").read_text()
    store: dict[str, Any] = {}
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "DataLoader": DataLoader}
    names |= {"defaultdict": defaultdict, "Server": object, "clientTGP": None}
    names["load_item"] = lambda role, name, folder: store[name]
    names["save_item"] = lambda item, role, name, folder: store.__setitem__(name, item)
    exec(source[source.index("class FedTGP") :], names)
    run = _simulation(FedTGP(server_steps=3, server_lr=0.1))
    server = run.begin().server
    start, width = server["prototypes"], server["prototypes"]["classes"].shape[1]
    model = names["Trainable_Global_Prototypes"](CLASSES, width, width, "cpu").double()
    model.embedings.weight.data = start["classes"].clone()
    for layer, key in ((model.middle[0][0], "hidden"), (model.fc, "out")):
        layer.weight.data = start[key]["weight"].clone()
        layer.bias.data = start[key]["bias"].clone()
    means = torch.randn(4, CLASSES, width, dtype=torch.float64)
    held = torch.rand(4, CLASSES) > 0.3
    clients = [SimpleNamespace(id=k, role=f"{k}", save_folder_name="") for k in range(4)]
    uploads = [{c: means[k, c] for c in range(CLASSES) if held[k, c]} for k in range(4)]
    names["load_item"] = lambda role, name, folder: (
        uploads[int(role)] if name == "protos" else store[name]
    )
    store["TGP"] = model
    released = SimpleNamespace(
        selected_clients=clients,
        num_classes=CLASSES,
        device="cpu",
        role="server",
        save_folder_name="",
        server_learning_rate=0.1,
        server_epochs=3,
        batch_size=1000,
        margin_threthold=100.0,
        CEloss=nn.CrossEntropyLoss(),
    )
    names["FedTGP"].receive_protos(released)
    names["FedTGP"].update_TGP(released)
    counts = held.double()
    sent = {ANCHORS: {"means": means * counts[..., None], "counts": counts}}
    found = run.method.aggregate(server, {}, sent, torch.ones(4).double())[0][ANCHORS]
    gaps = [(found[c] - store["global_protos"][c]).abs().max() for c in range(CLASSES)]
    return float(torch.stack(gaps).max())


def _two_layers(width: int = 6) -> nn.Module:
    layers = nn.Linear(8, width), nn.ReLU(), nn.Linear(width, CLASSES)
    return nn.Sequential(*layers).double()


def _simulation(method: Any, width: int = 6, **training: Any) -> Simulation:
    """Four clients that train a network of two layers by a method, in double precision."""
    work = Workload("", 4, 24, (8,), 8, 1, momentum=0.0)
    make = partial(_two_layers, width)
    return timing.simulation(work, make, method=method, precision="float64", **training)


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


COMPARISONS: tuple[tuple[str, str, Callable[[Path], float]], ...] = (
    ("FedNTD", "be00ee59", fedntd),
    ("FedDecorr", "973e4af2", feddecorr),
    ("FedUV", "dd2e3c59", feduv),
    ("FedDisco", "f3ea299b", feddisco),
    ("FedEM", "996fadd", fedem),
    ("Fling", "f6c6f1e", fedcac),
    ("PFLlib", "d832e76", fedcp),
    ("PFLlib", "d832e76", fedala),
    ("HtFLlib", "e959261", fedtgp),
    ("FedExP", "34b05a26", fedexp),
    ("FedRepo", "617ee015", fedphp),
    ("ICCV-2023-FedETF", "092ace3", fedetf),
    ("FedPAC", "5770f4ff", fedpac),
)
"""Repository, the commit at which it was compared, and the comparison."""

if __name__ == "__main__":
    main()
