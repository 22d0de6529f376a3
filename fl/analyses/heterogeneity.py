"""Heterogeneity: how far clients' samples are apart, before and after they are distilled.

After figure 1 of: Huang, Jin, Zhao, Xu, Li. Federated Learning on Virtual Heterogeneous Data with
Local-Global Dataset Distillation. TMLR 2024. arXiv:2303.02278.

Of runs that distil clients' samples: `warm-up`, whose weights are the images, and methods that keep
the trace ``local`` [rounds, clients, images, ...] (`fedlgd`), at the last evaluated round. The
distance of two clients is the maximum mean discrepancy (Gretton, Borgwardt, Rasch, Schölkopf,
Smola. JMLR 13 (2012), 723-773), squared and without bias (equation 3), so that it does not grow
where there are fewer samples:

    mean of k(x, x') over x != x' + mean of k(y, y') over y != y' - 2 mean of k(x, y),
    k(s, t) = exp(-|s - t|^2 / m)

with m the median of |s - t|^2 over both clients' training samples, the same before and after. The
paper names neither kernel nor what is compared: here pixels, or the features of an untrained
network. Beside training samples stand as many of them, drawn at random, as there are distilled
images.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled
from fl.analyses.features import embedded, scatter
from fl.api import trees
from fl.base import rng
from fl.base.fields import Count, Seed
from fl.base.schema import PERSONAL

if TYPE_CHECKING:
    from fl.engine.simulation import Simulation

LOCAL = "local"
REAL, SUBSET, DISTILLED = "training samples", "as many of them", "distilled"
COLUMNS = {"mmd2": "MMD²", "change": "change, %", "farther": "farther, share of pairs"}


@dataclass(frozen=True)
class Heterogeneity:
    """Distances between the data of clients.

    Attributes:
        of: Compared values: `pixels`, or `features` of an untrained network.
        samples: Largest number of training samples of each client.
        clients: Largest number of clients; the first ones are used, and all pairs of them compared.
        seed: Seed of the draws, of the network and of t-SNE.
    """

    of: Literal["pixels", "features"] = "pixels"
    samples: Count = 500
    clients: Count = 10
    seed: Seed = 0

    weights: ClassVar = True
    """It reads the runs' final weights."""

    def read(self, runs: Sequence[Source]) -> Result:
        """MMD of pairs by setting, method, samples and seed; a picture of the first two clients."""
        chosen = {run.run for run in first_seeds(runs)}
        rows: list[TableRow] = []
        panels: list[Panel] = []
        methods_without_images: dict[str, None] = {}
        for run in runs:
            images = distilled(run)
            if images is None:
                methods_without_images[run.method] = None
                continue
            vectors = self._vectors_by_kind(run.simulation(), images)
            for kind, values in compared(vectors).items():
                rows.append({**keys(run), "samples": kind, **values})
            if run.run in chosen:
                panels += [self._panel(run, kind, vectors[kind]) for kind in (REAL, DISTILLED)]
        note = f"nothing is distilled by {', '.join(methods_without_images)}"
        return Result(
            table=tabled(runs, rows, "samples", *COLUMNS),
            columns=COLUMNS,
            caption=(
                f"Unbiased squared maximum mean discrepancy between the {self.of} of two clients, "
                f"mean over pairs of up to {self.clients} clients."
            ),
            note=(
                "Change: of this mean relative to that of the training samples. Farther: share of "
                "pairs that are farther apart than by their training samples."
            ),
            panels=tuple(panels),
            figure=(
                "t-SNE of the samples of the first two clients, by the run of the lowest seed: "
                "training samples, and what is distilled of them. A colour and marker is a client."
            ),
            notes=(note,) if methods_without_images else (),
        )

    def _vectors_by_kind(
        self, simulation: Simulation, images: Tensor
    ) -> dict[str, list[np.ndarray]]:
        """By kind of samples, what is compared of each client, [n, d]."""
        vectors: dict[str, list[np.ndarray]] = {REAL: [], SUBSET: [], DISTILLED: []}
        for client in simulation.client_data.participants[: self.clients].tolist():
            samples = simulation.client_data.samples["train"][client]
            order = rng.generator(self.seed, "compared samples", client).permutation(len(samples))
            chosen = torch.from_numpy(np.sort(samples[order[: self.samples]]))
            real = self._vectors(simulation, simulation.arrays.inputs(chosen))
            distilled = self._vectors(simulation, images[client].to(simulation.arrays.device))
            vectors[REAL].append(real)
            draw = rng.generator(self.seed, "as many samples", client)
            vectors[SUBSET].append(real[draw.permutation(len(real))[: len(distilled)]])
            vectors[DISTILLED].append(distilled)
        return vectors

    @torch.no_grad()
    def _vectors(self, simulation: Simulation, x: Tensor) -> np.ndarray:
        """Pixels, or features, of normalised images, [n, d], float64."""
        if self.of == "features":
            fresh = simulation.network.init(rng.torch_seed(self.seed, "untrained"))
            weights = trees.to(fresh, simulation.arrays.device)
            x = simulation.network.eval(weights["params"], weights["buffers"], x).features
        return np.asarray(x.flatten(1).double().cpu())

    def _panel(self, run: Source, kind: str, clients: list[np.ndarray]) -> Panel:
        pair = clients[:2]
        labels = np.repeat(np.arange(len(pair)), [len(vectors) for vectors in pair])
        picture = scatter(embedded(np.concatenate(pair), self.seed), labels)
        alt = f"t-SNE of {len(labels)} {kind} of {len(pair)} clients, seed {run.seed}."
        return Panel(run.setting, run.method, kind, alt, picture)


def distilled(run: Source) -> Tensor | None:
    """The images that every client has distilled at last, [clients, images, ...]; None without."""
    images: Tensor | None = run.weights().get(PERSONAL, {}).get("images")
    if images is None and LOCAL in run.traces():
        images = run.traces()[LOCAL][-1]
    return images


def compared(vectors: dict[str, list[np.ndarray]]) -> dict[str, dict[str, float]]:
    """By kind of samples, the `COLUMNS`; NaN with fewer than two clients."""
    pairs = list(itertools.combinations(range(len(vectors[REAL])), 2))
    scales = [median(vectors[REAL][i], vectors[REAL][j]) for i, j in pairs]
    by_kind = {
        kind: np.array(
            [mmd2(sets[i], sets[j], m) for (i, j), m in zip(pairs, scales, strict=True)] or [np.nan]
        )
        for kind, sets in vectors.items()
    }
    real = by_kind[REAL]
    return {
        kind: {
            "mmd2": float(values.mean()),
            "change": 100 * float(values.mean() / real.mean() - 1),
            "farther": float((values > real).mean()),
        }
        for kind, values in by_kind.items()
    }


def median(x: np.ndarray, y: np.ndarray) -> float:
    """Return the median squared distance between different rows of x and y, [n, d] and [m, d]."""
    from scipy.spatial.distance import pdist

    return float(np.median(pdist(np.concatenate([x, y]), "sqeuclidean")))


def mmd2(x: np.ndarray, y: np.ndarray, scale: float) -> float:
    """The squared discrepancy between x [n, d] and y [m, d]; NaN where one has a single row."""
    from sklearn.metrics.pairwise import rbf_kernel

    if min(len(x), len(y)) < 2 or not scale > 0:
        return float("nan")

    def mean_kernel(z: np.ndarray) -> float:
        kernel = rbf_kernel(z, gamma=1 / scale)
        return float((kernel.sum() - len(z)) / (len(z) * (len(z) - 1)))

    return mean_kernel(x) + mean_kernel(y) - 2 * float(rbf_kernel(x, y, gamma=1 / scale).mean())
