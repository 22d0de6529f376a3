"""Strategies of personalisation: learnt shares and rates by layer, and how domains show in them.

After figures 2 to 5 and table 6 of: Lee, Kim, Li, Qiu, Hospedales, Huszár, Lane. FedL2P: Federated
Learning to Personalize. NeurIPS 2023. arXiv:2310.02420.

Reads the traces that methods with meta-nets keep (`finetune-l2p`, `l2p`, `fedl2p`), of the last
evaluated round: ``beta`` and ``rates``, and ``xi`` and ``inputs``, from which they follow. Clients
that never took part are left out. Clusters are those of scikit-learn's spectral clustering with its
defaults and discretised labels, as many as there are domains. The adjusted Rand index says how well
they agree with the domains of the data: 1 where they are the same, about 0 by chance.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled, with_traces
from fl.base.fields import Seed
from fl.blocks.plotting import Look, as_picture, axes_of, shade_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRACE_NAMES = ("xi", "beta", "inputs", "rates")
NAMES = {"beta": "share of own statistics, beta", "rates": "learning rate, eta"}


@dataclass(frozen=True)
class Strategies:
    """Clusters of collaboration strategies.

    Attributes:
        seed: Seed of the clustering.
    """

    seed: Seed = 0

    traces: ClassVar = TRACE_NAMES

    def read(self, runs: Sequence[Source]) -> Result:
        """A row for each run that has the traces; pictures of some."""
        rows: list[TableRow] = []
        panels: list[Panel] = []
        chosen = {run.run for run in first_seeds(runs)}
        traced, notes = with_traces(runs, *TRACE_NAMES)
        for run, traces in traced:
            last = {name: traces[name][-1].double().numpy() for name in TRACE_NAMES}
            trained = np.flatnonzero(last["inputs"].any(axis=1))
            last = {name: values[trained] for name, values in last.items()}
            domain_by_client = run.domains()
            domains = [domain_by_client[client] for client in trained] if domain_by_client else []
            rows.append({**keys(run), **measured(last, domains, self.seed)})
            if run.run in chosen:
                panels += _panels(run, last, domains)
        return Result(
            table=tabled(runs, rows, *COLUMNS),
            columns=COLUMNS,
            caption=(
                "Outputs of the meta-nets over clients: share of learning rates (eta) that are 0, "
                "mean share of the client's own statistics (beta), and adjusted Rand index between "
                "domains and clusters of clients."
            ),
            note="Clients are clustered by the nets' inputs (xi, x) and outputs (beta, eta).",
            panels=tuple(panels),
            figure=(
                "Boxes: beta and eta of each layer over clients (run of the lowest seed). Maps: "
                "log of the mean distance between clients of two domains over the geometric mean "
                "of the distances within them; above 0, domains separate."
            ),
            notes=notes,
        )


COLUMNS = {
    "sparsity": "sparsity",
    "beta": "mean beta",
    "ari_xi": "ARI xi",
    "ari_beta": "ARI beta",
    "ari_inputs": "ARI x",
    "ari_rates": "ARI eta",
}


def measured(
    last: dict[str, np.ndarray], domains: Sequence[str], seed: int = 0
) -> dict[str, float]:
    """Return the numbers of one run.

    Args:
        last: Last value of each trace, [clients, ...].
        domains: Domain of each client, or empty.
        seed: Seed of the clustering.
    """
    beta, rates = last["beta"], last["rates"]
    averages = {
        "sparsity": float((rates == 0).mean()) if rates.size else float("nan"),
        "beta": float(beta.mean()) if beta.size else float("nan"),
    }
    return averages | {f"ari_{name}": agreement(last[name], domains, seed) for name in TRACE_NAMES}


def agreement(points: np.ndarray, domains: Sequence[str], seed: int = 0) -> float:
    """The adjusted Rand index of domains and clusters of points [clients, d].

    NaN where there are fewer than two domains, fewer clients than domains, or numbers that are not
    finite.
    """
    from sklearn.cluster import SpectralClustering
    from sklearn.metrics import adjusted_rand_score

    count = len(set(domains))
    if count < 2 or not points.size or len(points) < count or not np.isfinite(points).all():
        return float("nan")
    if len(points) == count:  # As many clusters as clients: each is one of its own.
        return 1.0 if len(np.unique(points, axis=0)) == count else float("nan")
    clusters = SpectralClustering(count, assign_labels="discretize", random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That the graph falls apart, which is what is hoped for.
        labels = clusters.fit_predict(points)
    return float(adjusted_rand_score(list(domains), labels))


def distances(points: np.ndarray, domains: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the domains and log(d(j, k) / sqrt(d(j, j) d(k, k))) for all pairs of them.

    The domains are in the order of their first clients. d is the mean Euclidean distance between
    different clients; NaN where a domain has none to compare.
    """
    names, kinds = list(dict.fromkeys(domains)), np.array(domains)
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distances, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean = np.array(
            [[np.nanmean(distances[np.ix_(kinds == a, kinds == b)]) for b in names] for a in names]
        )
        inside = np.sqrt(np.diag(mean))
        ratios = np.log(mean / np.outer(inside, inside))
    return names, np.where(np.isfinite(ratios), ratios, np.nan)


def _panels(run: Source, last: dict[str, np.ndarray], domains: Sequence[str]) -> list[Panel]:
    panels = []
    for name, label in NAMES.items():
        values = last[name]
        if not values.size:
            continue
        alt = f"{label} of {values.shape[1]} layers over {len(values)} clients, seed {run.seed}."
        panels.append(Panel(run.setting, run.method, label, alt, boxes(values, label)))
        if len(set(domains)) < 2:
            continue
        names, ratios = distances(values, domains)
        if np.isfinite(ratios).any():
            alt = f"distances between {', '.join(names)} by {label}, seed {run.seed}."
            picture = distance_map(names, ratios)
            panels.append(Panel(run.setting, run.method, f"domains by {label}", alt, picture))
    return panels


@as_picture
def boxes(look: Look, values: np.ndarray, label: str) -> Figure:
    """A box for each layer; values [clients, layers]."""
    figure, axes = axes_of(2.4)
    line = {"color": look.ink, "linewidth": 0.8}
    axes.boxplot(
        list(values.T),
        positions=range(1, values.shape[1] + 1),
        widths=0.7,
        medianprops={**line, "color": look.colour(1)},
        boxprops=line,
        whiskerprops=line,
        capprops=line,
        flierprops={"marker": ".", "markersize": 2, "markeredgecolor": look.muted},
        manage_ticks=False,
    )
    axes.set(xlabel="layer", ylabel=label, xlim=(0.3, values.shape[1] + 0.7))
    return figure


@as_picture
def distance_map(look: Look, names: Sequence[str], ratios: np.ndarray) -> Figure:
    """A square for each pair of domains, the darker the farther apart, with its number in it."""
    figure, axes = axes_of(3.1)
    finite = np.nan_to_num(ratios)
    top = max(float(finite.max()), 1e-12)
    axes.imshow(shade_image(np.clip(finite / top, 0, 1) * 0.8), interpolation="nearest")
    for (row, column), value in np.ndenumerate(ratios):
        text = f"{value:.2f}" if np.isfinite(value) else ""
        axes.annotate(text, (column, row), color=look.ink, ha="center", va="center", fontsize=7)
    axes.set(xticks=range(len(names)), yticks=range(len(names)))
    axes.set_xticklabels(names, rotation=45, ha="right")
    axes.set_yticklabels(names)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_tick_params(length=0)
    return figure
