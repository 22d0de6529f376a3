"""Membership inference: whether one can tell from a model what it was trained on.

N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramer. Membership Inference Attacks From
First Principles. IEEE S&P 2022. arXiv:2112.03570; in the form of: Huang et al. Federated
Learning on Virtual Heterogeneous Data with Local-Global Dataset Distillation. TMLR 2024.
arXiv:2303.02278 (figure 6).

Members are training samples of a client, whatever a method trains on in their place; the others are
as many of its test samples. What is known of a sample is, as a logarithm, the length of the loss's
gradient at it, or the loss. Two Gaussian kernel densities are fitted to what is known of members
and of others, and their ratio is the attack's score. Densities come from one half of the samples
and scores from the other, and then the other way around, so that no sample speaks for itself; the
paper's densities are of all samples. Neither has shadow models. The model is in evaluation mode.

The area under the ROC curve is 0.5, and the true positive rate at 1 % of false ones is 0.01, where
the model gives nothing away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled
from fl.api import trees
from fl.api.trees import Inputs, Tree
from fl.base import rng
from fl.base.fields import Count, Seed
from fl.base.schema import GLOBAL, PERSONAL
from fl.blocks.plotting import Look, as_picture, axes_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fl.engine.simulation import Simulation

CHUNK = 64
FALSE = 0.01
"""The share of false positives at which the share of true ones is reported."""
FEW_SAMPLES_NOTE = (
    "of fewer than 100 test samples, TPR is at no false positive; a guess has more than 0.01 there"
)

Curve = tuple[np.ndarray, np.ndarray]
"""False and true positive rates, ascending."""
ClientScores = tuple[str, np.ndarray, np.ndarray, float]
"""Of a client: its name, what is known of its members and of the others, and its accuracy."""


@dataclass(frozen=True)
class Membership:
    """Inference of the membership of samples in training.

    Attributes:
        by: Known value of a sample: the length of its `gradient`, or its `loss`.
        samples: Largest number of members and of non-members of a client.
        clients: Largest number of attacked clients.
        together: Whether samples of all clients are attacked together, for clients with few
            samples; otherwise the result is a mean over clients.
        shown: Number of clients whose curves are drawn.
        seed: Seed of all random numbers.
    """

    by: Literal["gradient", "loss"] = "gradient"
    samples: Count = 200
    clients: Count = 10
    together: bool = False
    shown: Count = 2
    seed: Seed = 0

    weights: ClassVar = True
    """It reads the runs' final weights."""

    def read(self, runs: Sequence[Source]) -> Result:
        """Area and true positives by setting, method, stage and seed; some curves."""
        chosen = {run.run for run in first_seeds(runs)}
        rows: list[TableRow] = []
        panels: list[Panel] = []
        notes: dict[str, None] = {}
        for run in runs:
            for stage, client_scores in self._client_scores(run, notes).items():
                values: list[tuple[float, float]] = []
                for title, member, non_member in self._attacked(client_scores):
                    scores = ratios(member, non_member, self.seed)
                    curve = roc(*scores)
                    if run.run in chosen and len(values) < self.shown:
                        panels.append(self._panel(run, stage, title, curve))
                    values.append((area(*scores), true_positives(*curve)))
                    if len(non_member) * FALSE < 1:
                        notes[FEW_SAMPLES_NOTE] = None
                auc, tpr = np.mean(values, axis=0)
                measures = {
                    "area": auc,
                    "tpr": tpr,
                    "accuracy": np.mean([accuracy_value for *_, accuracy_value in client_scores]),
                }
                rows.append({**keys(run), "stage": stage, **measures})
        sample_values = "length of the loss's gradient" if self.by == "gradient" else "loss"
        return Result(
            table=tabled(runs, rows, "stage", "area", "tpr", "accuracy"),
            columns={
                "area": "area under ROC",
                "tpr": "TPR at 1 % FPR",
                "accuracy": "accuracy of others",
            },
            caption=(
                f"Membership inference by the {sample_values}, with a likelihood ratio of "
                "two kernel densities: "
                f"{'all clients at once' if self.together else 'mean over clients'}. "
                "A guess has area 0.5 and TPR 0.01."
            ),
            note=(
                f"Up to {self.samples} training samples and as many test samples of each of up to "
                f"{self.clients} clients. Accuracy: of the model on the test samples, mean over "
                "clients."
            ),
            panels=tuple(panels),
            figure=(
                "ROC curves of the first clients, by the run of the lowest seed; the diagonal is a "
                "guess."
            ),
            notes=tuple(notes),
        )

    def _client_scores(self, run: Source, notes: dict[str, None]) -> dict[str, list[ClientScores]]:
        """By stage, what each client's model shows."""
        simulation = run.simulation()
        by_stage: dict[str, list[ClientScores]] = {}
        for stage, client, variables in models(run.weights(), simulation, self.clients):
            drawn = self._samples(simulation, client)
            if drawn is None:
                notes[f"client {client} has fewer than 4 training or test samples"] = None
                continue
            members, non_members = (
                self._sample_values(variables, simulation, samples) for samples in drawn
            )
            accuracy_value = accuracy(variables, simulation, drawn[1])
            by_stage.setdefault(stage, []).append(
                (f"client {client}", members, non_members, accuracy_value)
            )
        return by_stage

    def _attacked(
        self, client_scores: Sequence[ClientScores]
    ) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Return the attacked groups, each a client or all: name, members and others."""
        clients = [(name, members, non_members) for name, members, non_members, _ in client_scores]
        if not self.together:
            return clients
        _, members, non_members = zip(*clients, strict=True)
        return [
            (f"{len(client_scores)} clients", np.concatenate(members), np.concatenate(non_members))
        ]

    def _samples(self, simulation: Simulation, client: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Members and others of a client, as many of each."""
        indices = [simulation.client_data.samples[split][client] for split in ("train", "test")]
        count = min(self.samples, *map(len, indices))
        if count < 4:
            return None
        draw = rng.generator(self.seed, "membership", client)
        members, non_members = (draw.choice(samples, count, replace=False) for samples in indices)
        return members, non_members

    def _sample_values(
        self, variables: Tree, simulation: Simulation, samples: np.ndarray
    ) -> np.ndarray:
        values = sample_values(variables, simulation, samples, gradient=self.by == "gradient")
        return np.asarray(np.log(np.maximum(values, 1e-30)))

    def _panel(self, run: Source, stage: str, title: str, curve: Curve) -> Panel:
        alt = f"ROC curve of membership inference on {title}, {stage} model, seed {run.seed}."
        return Panel(run.setting, run.method, title, alt, drawn(*curve))


def models(
    weights: Tree, simulation: Simulation, max_clients: int
) -> Iterator[tuple[str, int, Tree]]:
    """Stage, client and variables: the shared model, and the own models of the first clients."""
    network = simulation.network
    for client in simulation.client_data.participants[:max_clients].tolist():
        for stage in (stage for stage in (GLOBAL, PERSONAL) if stage in weights):
            variables = {
                kind: {name: weights[stage][kind][name] for name in network.names[kind]}
                for kind in ("params", "buffers")
            }
            yield stage, client, variables if stage == GLOBAL else trees.take(variables, client)


def sample_values(
    variables: Tree, simulation: Simulation, samples: np.ndarray, gradient: bool
) -> np.ndarray:
    """For every sample the length of the gradient of its cross-entropy, or the loss, [samples]."""
    network, arrays = simulation.network, simulation.arrays

    def loss(params: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        output = network.eval(
            params, variables["buffers"], trees.map_inputs(lambda leaf: leaf[None], x)
        )
        return F.cross_entropy(output.outputs, y[None])

    def length(params: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        grads = torch.func.grad(loss)(params, x, y)
        squares = [grad.double().square().sum() for grad in grads.values()]
        return torch.stack(squares).sum().sqrt()

    clients = torch.func.vmap(length if gradient else loss, in_dims=(None, 0, 0))
    values = []
    for begin in range(0, len(samples), CHUNK):
        index = torch.from_numpy(samples[begin : begin + CHUNK])
        x, y = arrays.inputs(index), arrays.labels(index)
        values.append(clients(variables["params"], x, y).detach().double())
    return np.asarray(torch.cat(values).cpu())


@torch.no_grad()
def accuracy(variables: Tree, simulation: Simulation, samples: np.ndarray) -> float:
    """The share of samples that a model gets right."""
    index = torch.from_numpy(samples)
    x, y = simulation.arrays.inputs(index), simulation.arrays.labels(index)
    outputs = simulation.network.eval(variables["params"], variables["buffers"], x).outputs
    return float((outputs.argmax(1) == y).double().mean())


def ratios(
    members: np.ndarray, non_members: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Log likelihood ratios of members and of others, each by densities of the other half."""
    draw = rng.generator(seed, "halves")
    halves = []
    for values in (members, non_members):
        first = np.zeros(len(values), bool)
        first[draw.permutation(len(values))[: len(values) // 2]] = True
        halves.append(first)
    scores = [np.zeros(len(members)), np.zeros(len(non_members))]
    for side in (True, False):
        fitted = [
            values[half_numbers == side]
            for values, half_numbers in zip((members, non_members), halves, strict=True)
        ]
        for values, half_numbers, into in zip((members, non_members), halves, scores, strict=True):
            at = values[half_numbers != side]
            into[half_numbers != side] = log_density(fitted[0], at) - log_density(fitted[1], at)
    return scores[0], scores[1]


def log_density(sample: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The logarithm of a sample's Gaussian kernel density, with Scott's width; flat without spread.

    D. W. Scott. Multivariate Density Estimation. Wiley, 1992.
    """
    width = np.std(sample, ddof=1) * len(sample) ** (-1 / 5)
    if not width > 0:
        return np.zeros(len(at))
    log_kernel = -0.5 * ((at[:, None] - sample) / width) ** 2
    top = log_kernel.max(axis=1, keepdims=True)
    total = np.log(np.exp(log_kernel - top).mean(axis=1)) + top[:, 0]
    return np.asarray(total - np.log(width * np.sqrt(2 * np.pi)))


def roc(members: np.ndarray, non_members: np.ndarray) -> Curve:
    """False and true positive rates over all thresholds, from (0, 0) to (1, 1)."""
    steps = np.unique(np.concatenate([members, non_members]))[::-1]
    true = [(members[:, None] >= steps).mean(0), (non_members[:, None] >= steps).mean(0)]
    return np.concatenate([[0.0], true[1]]), np.concatenate([[0.0], true[0]])


def area(members: np.ndarray, non_members: np.ndarray) -> float:
    """The chance that a member's score is above another sample's; equal scores count a half."""
    probability = (members[:, None] > non_members).mean() + 0.5 * (
        members[:, None] == non_members
    ).mean()
    return float(probability)


def true_positives(false: np.ndarray, true: np.ndarray) -> float:
    """The largest true positive rate at a false positive rate of at most 1 %."""
    return float(true[false <= FALSE].max())


@as_picture
def drawn(look: Look, false: np.ndarray, true: np.ndarray) -> Figure:
    """The curve, and the diagonal."""
    figure, axes = axes_of(2.9)
    axes.plot([0, 1], [0, 1], color=look.muted, lw=0.8, ls="--")
    axes.plot(false, true, color=look.colour(0), lw=1.4)
    axes.set(xlabel="false positives", ylabel="true positives", xlim=(0, 1), ylim=(0, 1))
    return figure
