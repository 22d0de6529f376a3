"""Quality of features: how well they fall into classes, by NMI and silhouette, with t-SNE pictures.

After the table of feature quality of: Ye, Ni, Xu, Wang, Chen, Eldar. FedFM: Anchor-based Feature
Matching for Data Heterogeneity in Federated Learning. IEEE Transactions on Signal Processing 2023.
arXiv:2210.07615.

Features are what goes into the classifier, in evaluation mode. k-means groups them into as many
clusters as there are classes; NMI is the normalised mutual information between clusters and labels,
1 where they are the same. The silhouette (Rousseeuw 1987), from -1 to 1, is by labels and so needs
no clusters. Every model sees the same test samples, drawn from those of all clients. Clients' own
models have no features in common, so each is measured by itself and the mean is reported. t-SNE:
van der Maaten and Hinton, JMLR 2008.

How far the first two clients' own models are apart (figure 1 of FedFM: two clients' features of one
class lie at different places) is the silhouette by client of both models' features of the same
samples of one class, mean over classes: about 0 where both put a class at one place, 1 where each
has a place of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled
from fl.api import trees
from fl.api.trees import Tree
from fl.base import rng
from fl.base.fields import Count, Seed
from fl.base.schema import GLOBAL, PERSONAL
from fl.blocks.plotting import Look, as_picture, axes_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fl.engine.simulation import Simulation

CHUNK = 512
MARKERS = ("o", "^", "s", "D", "v")
COLUMNS = {"nmi": "NMI", "silhouette": "silhouette", "apart": "apart"}
NAMED = 20
"""How many classes have their number in the picture; of more, the first ones."""


@dataclass(frozen=True)
class Features:
    """Pictures and clusters of features.

    Attributes:
        samples: Largest number of test samples.
        clients: Largest number of clients whose own models are used.
        seed: Seed of the draw of samples and clients, of k-means and of t-SNE.
        together: Whether one picture shows the features of the first two clients' own models.
    """

    samples: Count = 500
    clients: Count = 20
    seed: Seed = 0
    together: bool = False

    weights: ClassVar = True
    """It reads the runs' final weights."""

    def read(self, runs: Sequence[Source]) -> Result:
        """NMI and silhouette by setting, method, stage and seed; a picture of each method."""
        pictured_runs = {run.run for run in first_seeds(runs)}
        rows: list[TableRow] = []
        panels: list[Panel] = []
        for run in runs:
            simulation = run.simulation()
            samples = self._samples(simulation)
            labels = simulation.arrays.labels_of(samples)
            by_stage: dict[str, list[tuple[float, float]]] = {}
            pair: dict[int, np.ndarray] = {}
            for stage, client, variables in self._models(run.weights(), simulation):
                features = features_of(variables, simulation, samples)
                if stage not in by_stage and run.run in pictured_runs:
                    panels.append(self._panel(run, stage, client, features, labels))
                by_stage.setdefault(stage, []).append(quality(features, labels, self.seed))
                if stage == PERSONAL and len(pair) < 2:
                    pair[client] = features
            distances = {PERSONAL: clients_apart(list(pair.values()), labels)}
            for stage, values in by_stage.items():
                scores = (*np.mean(values, axis=0), distances.get(stage, float("nan")))
                measures = dict(zip(COLUMNS, scores, strict=True))
                rows.append({**keys(run), "stage": stage, **measures})
            if self.together and len(pair) == 2 and run.run in pictured_runs:
                panels.append(self._pair_panel(run, pair, labels))
        return Result(
            table=tabled(runs, rows, "stage", *COLUMNS),
            columns=COLUMNS,
            caption=(
                f"Features (inputs of the classifier) of up to {self.samples} test samples: "
                "normalised mutual information between k-means clusters and labels, and silhouette "
                "by labels."
            ),
            note=(
                "Global: features of the shared model. Personal: features of clients' own "
                f"models, one model at a time, mean over up to {self.clients} clients. Apart: "
                "silhouette by client of two clients' features of one class, mean over classes."
            ),
            panels=tuple(panels),
            figure=(
                "t-SNE of the features of these samples (run of the lowest seed; first client's "
                "own model). Colour and marker are the class, with its number at the median; with "
                "two clients, the marker is the client."
            ),
        )

    def _samples(self, simulation: Simulation) -> np.ndarray:
        """The test samples that are looked at, in ascending order."""
        samples = np.unique(np.concatenate(simulation.client_data.samples["test"]))
        draw = rng.generator(self.seed, "analysed samples")
        return np.sort(draw.choice(samples, min(self.samples, len(samples)), replace=False))

    def _models(self, weights: Tree, simulation: Simulation) -> Iterator[tuple[str, int, Tree]]:
        """Stage, client (-1: all of them) and variables of each model that is measured."""
        if GLOBAL in weights:
            yield GLOBAL, -1, weights[GLOBAL]
        if PERSONAL in weights:
            everybody = simulation.client_data.participants
            draw = rng.generator(self.seed, "analysed clients")
            count = min(self.clients, len(everybody))
            for client in np.sort(draw.choice(everybody, count, replace=False)).tolist():
                yield PERSONAL, client, trees.take(weights[PERSONAL], client)

    def _pair_panel(self, run: Source, pair: dict[int, np.ndarray], labels: np.ndarray) -> Panel:
        places = embedded(np.concatenate(list(pair.values())), self.seed)
        owners, title = np.repeat([0, 1], len(labels)), "clients " + " and ".join(map(str, pair))
        alt = f"t-SNE of {len(labels)} test samples by the own models of {title}, seed {run.seed}."
        return Panel(
            run.setting, run.method, title, alt, scatter(places, np.tile(labels, 2), owners)
        )

    def _panel(
        self, run: Source, stage: str, client: int, features: np.ndarray, labels: np.ndarray
    ) -> Panel:
        title = "" if stage == GLOBAL else f"client {client}"
        owners = "the shared model" if stage == GLOBAL else f"the own model of client {client}"
        alt = (
            f"t-SNE of {len(labels)} test samples of {len(set(labels.tolist()))} classes, {owners}"
        )
        picture = scatter(embedded(features, self.seed), labels)
        return Panel(run.setting, run.method, title, f"{alt}, seed {run.seed}.", picture)


@torch.no_grad()
def features_of(variables: Tree, simulation: Simulation, samples: np.ndarray) -> np.ndarray:
    """The inputs of a model's classifier, [samples, d], float64."""
    network, arrays = simulation.network, simulation.arrays
    params, buffers = (
        {name: variables.get(kind, {})[name] for name in network.names[kind]}
        for kind in ("params", "buffers")
    )
    features = []
    for begin in range(0, len(samples), CHUNK):
        x = arrays.inputs(torch.from_numpy(samples[begin : begin + CHUNK]))
        features.append(network.eval(params, buffers, x).features.flatten(1))
    return np.asarray(torch.cat(features).double().cpu())


def quality(features: np.ndarray, labels: np.ndarray, seed: int) -> tuple[float, float]:
    """NMI of k-means clusters and labels, and the silhouette by labels.

    Both are NaN where they are not defined: with fewer than two classes, or as many classes as
    samples.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score, silhouette_score

    classes = len(np.unique(labels))
    if not 2 <= classes < len(labels):
        return float("nan"), float("nan")
    clustering = KMeans(classes, n_init=10, random_state=seed % 2**32)
    nmi = normalized_mutual_info_score(labels, clustering.fit_predict(features))
    return float(nmi), float(silhouette_score(features, labels))


def clients_apart(pair: Sequence[np.ndarray], labels: np.ndarray) -> float:
    """The silhouette by client of two models' features of the same samples, mean over classes.

    NaN without two models, and where no class has two samples.

    Args:
        pair: Features by both, [samples, d] each.
        labels: Class of each sample, [samples].
    """
    from sklearn.metrics import silhouette_score

    if len(pair) < 2:
        return float("nan")
    widths = []
    for label in np.unique(labels):
        features_by_model = [features[labels == label] for features in pair]
        if len(features_by_model[0]) > 1:
            owners = np.repeat([0, 1], len(features_by_model[0]))
            widths.append(silhouette_score(np.concatenate(features_by_model), owners))
    return float(np.mean(widths)) if widths else float("nan")


def embedded(features: np.ndarray, seed: int) -> np.ndarray:
    """t-SNE of features, [samples, 2]; zeros where there are too few samples for it."""
    from sklearn.manifold import TSNE

    if len(features) < 4:
        return np.zeros((len(features), 2))
    init = "pca" if min(features.shape) >= 2 else "random"
    near = min(30.0, (len(features) - 1) / 3)
    tsne = TSNE(perplexity=near, init=init, random_state=seed % 2**32)
    return np.asarray(tsne.fit_transform(features))


@as_picture
def scatter(
    look: Look, places: np.ndarray, labels: np.ndarray, owners: np.ndarray | None = None
) -> Figure:
    """Draw a dot for each sample, with a colour and a marker for each class.

    With owners [samples], the marker shows the owner instead of the class.
    """
    figure, axes = axes_of(2.9)
    n = len(look.series)
    for i, label in enumerate(np.unique(labels)):
        dots = places[labels == label]
        for mark in np.unique(owners) if owners is not None else [i // n]:
            rows = slice(None) if owners is None else owners[labels == label] == mark
            x, y = dots[rows].T
            marker = MARKERS[int(mark) % len(MARKERS)]
            axes.scatter(x, y, s=10, lw=0, alpha=0.75, color=look.colour(i % n), marker=marker)
        if i < NAMED:
            x, y = np.median(dots, axis=0)
            axes.text(x, y, str(label), color=look.ink, ha="center", va="center", weight="bold")
    axes.set(xticks=[], yticks=[])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    return figure
