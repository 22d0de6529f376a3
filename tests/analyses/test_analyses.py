"""Analyses of stored runs: their numbers, their identity, and their way into the report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import planning
import pytest
import torch
from run_source import source
from torch import nn

from fl.analyses import (
    complementarity,
    confusion,
    cooperation,
    dissimilarity,
    features,
    heterogeneity,
    strategies,
)
from fl.api.network import Network
from fl.cli import main
from fl.engine.client_data import ClientData
from fl.engine.sample_arrays import Arrays
from fl.plan import plan, plan_files

# Numbers


def mutual_information(a: np.ndarray, b: np.ndarray) -> float:
    """Normalised by the mean of both entropies, from counts."""
    joint = np.array([[np.mean((a == i) & (b == j)) for j in set(b)] for i in set(a)])
    p, q = joint.sum(1), joint.sum(0)
    there = joint > 0
    mutual = (joint[there] * np.log(joint[there] / np.outer(p, q)[there])).sum()
    return float(mutual / (-(p * np.log(p)).sum() / 2 - (q * np.log(q)).sum() / 2))


def silhouette(x: np.ndarray, y: np.ndarray) -> float:
    """Mean of (b - a) / max(a, b): a, b the mean distances to the own and to the nearest class."""
    scores = []
    for i in range(len(x)):
        far = np.linalg.norm(x - x[i], axis=1)
        alike = (y == y[i]) & (np.arange(len(x)) != i)
        a = far[alike].mean()
        b = min(far[y == other].mean() for other in set(y) - {y[i]})
        scores.append((b - a) / max(a, b))
    return float(np.mean(scores))


def test_quality_of_features_is_as_counted_by_hand() -> None:
    # Two far groups, of which one sample is labelled otherwise: what k-means finds is plain.
    x = np.array([[0.0, 0], [0, 1], [1, 0], [1, 1], [20, 20], [20, 21], [21, 20]])
    y = np.array([0, 0, 0, 1, 1, 1, 1])
    group = np.array([0, 0, 0, 0, 1, 1, 1])
    nmi, width = features.quality(x, y, seed=3)
    assert nmi == pytest.approx(mutual_information(group, y))
    assert width == pytest.approx(silhouette(x, y))
    assert features.quality(x, group, seed=3)[0] == pytest.approx(1)
    assert all(map(math.isnan, features.quality(x, np.zeros(7), seed=3)))
    assert all(map(math.isnan, features.quality(x, np.arange(7), seed=3)))


def small_world(n: int = 24) -> tuple[Any, torch.Tensor, np.ndarray]:
    """A simulation of two clients, with their test samples, and what is in them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator)
    y = np.arange(n) % 3
    network = Network(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3)))
    arrays = Arrays(x.numpy(), y, None, torch.device("cpu"), torch.float32)
    halves = [np.arange(0, n, 2), np.arange(1, n, 2)]
    data = ClientData({"train": halves, "test": halves})
    return SimpleNamespace(network=network, arrays=arrays, client_data=data, classes=3), x, y


def test_features_are_what_goes_into_the_classifier_of_each_model() -> None:
    simulation, x, y = small_world()
    first, second = simulation.network.init(1), simulation.network.init(2)
    personal = {
        kind: {name: torch.stack([first[kind][name], second[kind][name]]) for name in first[kind]}
        for kind in ("params", "buffers")
    }
    shared = source(run="a", method="fedavg", simulation=simulation, weights={"global": first})
    apart = source(run="b", method="local", simulation=simulation, weights={"personal": personal})
    result = features.Features(samples=24).read([shared, apart])

    def by_hand(variables: Mapping[str, Any]) -> np.ndarray:
        weight, bias = variables["params"]["0.weight"], variables["params"]["0.bias"]
        return np.asarray(torch.tanh(x @ weight.T + bias).double())

    rows = result.table.set_index("method")
    expected = [features.quality(by_hand(weights), y, 0) for weights in (first, second)]
    assert rows.loc["fedavg", ["nmi", "silhouette"]].tolist() == pytest.approx(expected[0])
    assert rows.loc["local", ["nmi", "silhouette"]].tolist() == pytest.approx(
        np.mean(expected, axis=0)
    )
    assert rows["stage"].to_dict() == {"fedavg": "global", "local": "personal"}
    assert [(panel.method, panel.title) for panel in result.panels] == [
        ("fedavg", ""),
        ("local", "client 0"),
    ]
    fewer = features.Features(samples=9)
    chosen = fewer._samples(simulation)
    assert len(set(chosen)) == 9
    assert chosen.tolist() == fewer._samples(simulation).tolist()
    assert chosen.tolist() != features.Features(samples=9, seed=1)._samples(simulation).tolist()


def test_two_clients_are_apart_where_each_has_a_place_for_a_class() -> None:
    """Of class 0 both have the points 0 and 1: the silhouette by client is below 0. Of class 1 one
    has 0 and 1, the other 10 and 11: 1 - 1 / (mean distance to the other's), mean over four.
    """
    labels = np.array([0, 0, 1, 1, 2])
    first = np.array([[0.0], [1], [0], [1], [5]])
    second = np.array([[0.0], [1], [10], [11], [9]])
    same = [0, 1], [0, 1]
    by_hand = []
    for mine, theirs in (same, ([0, 1], [10, 11])):
        for points, others in ((mine, theirs), (theirs, mine)):
            for here, there in ((points[0], points[1]), (points[1], points[0])):
                a, b = abs(here - there), np.mean([abs(here - other) for other in others])
                by_hand.append((b - a) / max(a, b))
    expected = np.mean(by_hand[:4]), np.mean(by_hand[4:])
    assert features.clients_apart([first, second], labels) == pytest.approx(np.mean(expected))
    assert expected[0] < 0 < 0.89 < expected[1]
    assert math.isnan(features.clients_apart([first], labels))
    simulation, _, _ = small_world()
    weights = [simulation.network.init(i) for i in (1, 2)]
    own = {
        kind: {name: torch.stack([w[kind][name] for w in weights]) for name in weights[0][kind]}
        for kind in ("params", "buffers")
    }
    run = source(simulation=simulation, weights={"personal": own})
    result = features.Features(samples=24, together=True).read([run])
    assert [panel.title for panel in result.panels] == ["client 0", "clients 0 and 1"]
    assert 0 < result.table["apart"].iloc[0] < 1


COUNTS = np.array([[10, 0, 0], [4, 4, 0], [0, 3, 9], [5, 5, 5]])


def test_measures_of_predictions_by_hand() -> None:
    """Class 0 is right in 2 of 3, class 1 in 1 of 2; confidences .9 .6 .8 and .7 .6 of five."""
    scores = np.array([0.9, 0.6, 0.2, 0.3, 0.6])
    seen = pd.DataFrame({"label": [0, 0, 0, 1, 1], "predicted": [0, 0, 1, 1, 0]})
    seen = seen.assign(score_0=scores, score_1=1 - scores)
    assert confusion.matrix(seen, 2).tolist() == [[2, 1], [1, 1]]
    found = confusion.measures(seen, bins=2)
    assert found["f1"] == pytest.approx((2 * 2 / (3 + 3) + 2 * 1 / (2 + 2)) / 2)
    # Of 6 pairs of a sample of class 0 and one of class 1, 3 are in order, and one is level.
    assert found["area"] == pytest.approx(3.5 / 6)
    # All in the upper bin, with a confidence of .72 and 3 of 5 right.
    assert found["calibration"] == pytest.approx(0.72 - 0.6)
    confidence, right = np.array([0.5, 0.75, 1.0]), np.array([True, False, True])
    assert confusion.calibration(confidence, right, 4) == pytest.approx((0.5 + 0.75 + 0.0) / 3)
    alone = confusion.measures(seen[seen["label"] == 0], bins=2)
    assert math.isnan(alone["area"])
    assert alone["f1"] == pytest.approx(2 * 2 / (3 + 2))


def test_similarity_is_the_cosine_of_shares_of_classes() -> None:
    alike = cooperation.similarity(COUNTS)
    shares = COUNTS / COUNTS.sum(axis=1, keepdims=True)
    for i in range(4):
        for j in range(4):
            dot = sum(shares[i] * shares[j])
            by_hand = dot / math.sqrt(sum(shares[i] ** 2)) / math.sqrt(sum(shares[j] ** 2))
            assert alike[i, j] == pytest.approx(by_hand)
    assert not cooperation.similarity(np.array([[0, 0], [1, 2]]))[0].any()


def test_cooperation_is_correlated_over_pairs_of_who_took_part() -> None:
    generator = np.random.default_rng(0)
    everyone = generator.dirichlet(np.ones(4), 4)
    some = np.zeros((4, 4))
    some[np.ix_([0, 2, 3], [0, 2, 3])] = generator.dirichlet(np.ones(3), 3)
    traces = {
        "round": torch.tensor([5, 10]),
        "cooperation": torch.from_numpy(np.stack([everyone, some])),
    }
    runs = [
        source(run="a", method="pfedgraph", traces=traces, counts=COUNTS),
        source(run="b", method="pfedgraph", seed=1, traces=traces, counts=COUNTS),
        source(run="c", method="fedavg", traces={}),
    ]
    result = cooperation.Cooperation().read(runs)
    alike = cooperation.similarity(COUNTS)
    for matrix, round_, present in ((everyone, 5, (0, 1, 2, 3)), (some, 10, (0, 2, 3))):
        pairs = [(i, j) for i in present for j in present if i != j]
        ours, theirs = [matrix[p] for p in pairs], [alike[p] for p in pairs]
        correlations = result.table.loc[result.table["round"] == round_, "correlation"]
        assert correlations.tolist() == pytest.approx([np.corrcoef(ours, theirs)[0, 1]] * 2)
    assert [panel.title for panel in result.panels] == ["round 5", "round 10", "similarity of data"]
    assert result.notes == ("no trace cooperation: fedavg",)
    assert math.isnan(cooperation.correlation(np.eye(3), np.eye(3))), "nobody learns from others"


# Identity

ANALYSES: list[Any] = [{"features": {"samples": 20}}, "cooperation"]


def planned_with(root: Path, **study: Any) -> plan.Plan:
    planning.write_config(root, study)
    return plan.make(root / "config")


def test_a_key_of_an_analysis_renames_it_and_no_run(tmp_path: Path) -> None:
    def planned(name: str, **study: Any) -> plan.Plan:
        return planned_with(tmp_path / name, **{"methods": {"pfedgraph": None}, **study})

    def named(made: plan.Plan) -> list[str]:
        return [analysis.analysis for analysis in made.studies["tiny"].analyses]

    first = planned("a", analyses=ANALYSES)
    other = planned("b", analyses=[{"features": {"samples": 30}}, "cooperation"])
    assert first.bundles.keys() == other.bundles.keys()
    assert named(first)[0] != named(other)[0]
    assert named(first)[1] == named(other)[1]
    assert first.studies["tiny"].hash != other.studies["tiny"].hash, "the page shows another"
    told = [{"features": {"samples": 20, "title": "Features"}}, {"cooperation": {"title": "Who"}}]
    titled = planned("c", analyses=told, methods={"pfedgraph": {"title": "Graph"}})
    assert named(titled) == named(first), "titles decide nothing"
    assert not {*named(planned("d", analyses=ANALYSES, seeds=[0, 1]))} & {*named(first)}
    swept = planned("e", analyses=[{"features": {"samples": [20, 30]}}])
    assert named(swept) == [named(first)[0], named(other)[0]]


# From runs to the report


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A planned study with analyses."""
    monkeypatch.chdir(tmp_path)
    training = {"rounds": 2, "batch_size": 8, "lr": 0.05}
    methods = {"fedavg": None, "pfedgraph": None}
    planning.write_config(
        tmp_path, {"analyses": ANALYSES, "methods": methods, "training": training}
    )
    assert main.main(["plan", "--write"]) == 0
    return tmp_path


def test_an_analysis_is_made_once_and_shown(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        analysis["analysis"] for analysis in json.loads(
            (lab / "results/plan/studies/tiny.json").read_text()
        )["analyses"]
    )  # fmt: skip
    assert main.main(["analyse", first]) == 1
    assert "2 of 2 runs are not in" in capsys.readouterr().err
    assert main.main(["report", "tiny"]) == 0
    page = (lab / "results/report/tiny.html").read_text()
    assert f"fedloom analyse {first}" in page
    assert second in (lab / "results/report/tiny.md").read_text()

    bundles = sorted(map(str, (lab / "results/plan/bundles").glob("*.json")))
    assert main.main(["train", *bundles]) == 0
    for name in (first, second):
        assert main.main(["analyse", name]) == 0
    home = lab / "results" / "analyses"
    table = pd.read_parquet(home / first / "table.parquet")
    assert table["method"].tolist() == ["fedavg", "pfedgraph"]
    assert table["stage"].tolist() == ["global", "personal"]
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*.*")}
    with monkeypatch.context() as patch:
        patch.setattr(features.Features, "read", lambda *given: pytest.fail("made again"))
        assert main.main(["analyse", first]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in home.rglob("*.*")}

    assert main.main(["report", "tiny"]) == 0
    page = (lab / "results/report/tiny.html").read_text()
    assert '<section id="analyses"' in page
    assert "no trace cooperation: fedavg" in page
    assert f"{table['nmi'][0]:.3f}" in page
    assert f"{table['nmi'][0]:.3f}" in (lab / "results/report/tiny.md").read_text()
    drawn = home / second / "figure-1.pdf"
    [copied] = (lab / "results/report/tiny").glob("cooperation-*round-1.pdf")
    assert copied.read_bytes() == drawn.read_bytes()

    drawn.write_bytes(b"?")
    assert main.main(["report", "tiny"]) == 0
    page = (lab / "results/report/tiny.html").read_text()
    assert f"results/analyses/{second}; it is then made again" in page


def test_code_that_changed_since_it_was_planned_makes_nothing(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lab / "results/plan/studies/tiny.json"
    study: Any = plan_files.read_checked(path)
    study["analyses"][0]["code"] = "0" * 16
    plan_files.write(path, study)
    assert main.main(["analyse", study["analyses"][0]["analysis"]]) == 1
    assert "its code changed after it was planned" in capsys.readouterr().err


REFUSED: list[Any] = [
    ([{"features": {"samples": 0}}], "samples"),
    (["features", {"features": {"samples": 500}}], "is a duplicate"),
]


@pytest.mark.parametrize(("analyses", "said"), REFUSED)
def test_a_wrong_analysis_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], analyses: Any, said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    planning.write_config(tmp_path, {"analyses": analyses})
    assert main.main(["plan"]) == 1
    error = capsys.readouterr().err
    assert "tiny.yaml: analyses" in error
    assert said in error


# Complementarity


def test_three_networks_follow_from_the_matrices_of_a_round() -> None:
    """Client 2 took no part. Shares 3/4 and 1/4, cosine of models .2, of subspaces .6.

    Row 0: shares + beta/2 (1, .2) - alpha/2 (1, .6), half of what is over 1 taken from both.
    """
    models = np.array([[1.0, 0.2, 0.0], [0.2, 1.0, 0.0], [0.0, 0.0, 0.0]])
    subspaces = np.array([[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 0.0]])
    counts = np.array([[30, 0], [5, 5], [9, 9]])
    analysis = complementarity.Complementarity(alpha=0.5, beta=0.25)
    networks = analysis.networks(counts.sum(1), models, subspaces, models.diagonal() > 0)
    gap = 0.25 / 2 * (1 - 0.2), -0.5 / 2 * (1 - 0.6)
    for network, more in zip(networks, (gap[0], gap[1], sum(gap)), strict=True):
        first, second = 0.75 + more / 2, 0.25 + more / 2
        expected = [[first, 1 - first, 0], [1 - second, second, 0], [0, 0, 0]]
        np.testing.assert_allclose(network, expected, rtol=0, atol=1e-14)


def test_complementarity_is_read_from_traces_and_drawn() -> None:
    counts = np.array([[9, 1, 0], [0, 9, 1], [8, 0, 2]])
    alike = cooperation.similarity(counts)
    traces = {
        "round": torch.tensor([2, 4]),
        "similarity": torch.from_numpy(np.stack([alike, 2 * alike - 1])),
        "complementarity": torch.from_numpy(np.stack([alike, 1 - alike + np.eye(3)])),
    }
    runs = [source(traces=traces, counts=counts), source(run="r1", method="o", traces={})]
    result = complementarity.Complementarity().read(runs)
    assert result.notes == ("no traces similarity, complementarity: o",)
    assert result.table["round"].tolist() == [2, 4]
    mean = alike[np.triu_indices(3, 1)].mean()
    assert result.table["data_cosine"].tolist() == pytest.approx([mean, mean])
    assert result.table["model_cosine"].tolist() == pytest.approx([mean, 2 * mean - 1])
    assert result.table["subspace_cosine"].tolist() == pytest.approx([mean, 1 - mean])
    assert result.table["models"].tolist() == pytest.approx([1, 1])
    assert result.table["features"].tolist() == pytest.approx([1, -1])
    assert [panel.title for panel in result.panels] == [
        *("data", "models", "features"),
        *complementarity.NETWORKS,
    ]
    assert result.panels[1].picture.svg.startswith("<svg")


# Heterogeneity


def test_discrepancy_between_clients_by_hand() -> None:
    """k(s, t) = exp(-(s - t)^2 / 4): e1 = exp(-1/4) for a distance of 1, e4 of 2, e9 of 3."""
    x, y = np.array([[0.0], [1.0]]), np.array([[2.0], [3.0], [3.0]])
    e1, e4, e9 = (math.exp(-(d**2) / 4) for d in (1, 2, 3))
    # Within x one pair at 1; within y two pairs at 1 and one at 0; between 2, 3, 3 and 1, 2, 2.
    expected = e1 + (2 * e1 + 1) / 3 - 2 * (e4 + 2 * e9 + e1 + 2 * e4) / 6
    assert heterogeneity.mmd2(x, y, 4.0) == pytest.approx(expected, abs=1e-15)
    # Squared distances 1; 4, 9, 9; 1, 4, 4; 1, 1; 0: the middle of ten is between 1 and 4.
    assert heterogeneity.median(x, y) == pytest.approx(2.5)
    assert math.isnan(heterogeneity.mmd2(x[:1], y, 4.0))


def test_what_is_distilled_is_compared_as_training_samples_are() -> None:
    simulation, x, _ = small_world()
    apart = torch.stack([torch.zeros(4, 3), torch.zeros(4, 3)])
    apart[1] += 10
    apart += torch.randn(apart.shape, generator=torch.Generator().manual_seed(1)) / 100
    kept = source(method="w", simulation=simulation, weights={"personal": {"images": apart}})
    trace = {"round": torch.tensor([1, 2]), "local": torch.stack([0 * apart, apart])}
    traced = source(run="r1", method="l", simulation=simulation, weights={}, traces=trace)
    other = source(run="r2", method="f", simulation=simulation, weights={}, traces={})
    result = heterogeneity.Heterogeneity().read([kept, traced, other])
    assert result.notes == ("nothing is distilled by f",)
    rows = result.table.set_index(["method", "samples"])
    assert rows.loc["w", "mmd2"].tolist() == rows.loc["l", "mmd2"].tolist()
    halves = x[0::2].double().numpy(), x[1::2].double().numpy()
    scale = heterogeneity.median(*halves)
    expected = heterogeneity.mmd2(*halves, scale)
    assert rows.loc[("w", heterogeneity.REAL), "mmd2"] == pytest.approx(expected)
    # Two points far apart: about 1 + 1 - 0.
    assert rows.loc[("w", heterogeneity.DISTILLED), "mmd2"] == pytest.approx(2, abs=1e-2)
    assert rows.loc[("w", heterogeneity.DISTILLED), "farther"] == 1
    change = 100 * (rows.loc[("w", heterogeneity.DISTILLED), "mmd2"] / expected - 1)
    assert rows.loc[("w", heterogeneity.DISTILLED), "change"] == pytest.approx(change)
    assert len(result.panels) == 4
    features_of = heterogeneity.Heterogeneity(of="features").read([kept]).table
    assert features_of["mmd2"].iloc[0] != pytest.approx(expected)


# Strategies


def grouped(spread: float) -> tuple[np.ndarray, list[str]]:
    """Nine clients of three domains, a domain at each corner of a right triangle of sides 1."""
    draw = np.random.default_rng(0)
    corners = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], 3, axis=0)
    return corners + draw.normal(0, spread, corners.shape), [n for n in "abc" for _ in range(3)]


def test_distances_between_domains_by_hand() -> None:
    points = np.array([[0.0], [1.0], [10.0], [14.0], [7.0]])
    names, distances = strategies.distances(points, ["a", "a", "b", "b", "c"])
    assert names == ["a", "b", "c"]
    # Own distances 1 and 4; between a and b 10, 14, 9 and 13.
    assert distances[0, 1] == pytest.approx(math.log(11.5 / 2)) == distances[1, 0]
    assert distances[0, 0] == pytest.approx(0) == distances[1, 1]
    assert np.isnan(distances[2]).all(), "one client has nobody to be near to"


def test_strategies_read_the_last_round_of_who_took_part() -> None:
    points, domains = grouped(0.01)
    absent = np.zeros((1, 2))
    now = torch.from_numpy(np.concatenate([points, absent]))
    rates = torch.where(now[None] > 0.5, 0.0, 1.0)
    traces = {
        **{name: torch.stack([now * 0, now]) for name in ("xi", "inputs")},
        "beta": torch.stack([now, now + 0.5]),
        "rates": torch.cat([rates, rates]),
        "round": torch.tensor([1, 2]),
    }
    runs = [
        source(traces=traces, domains=[*domains, "c"]),
        source(run="r1", method="other", traces={}, domains=[]),
    ]
    result = strategies.Strategies().read(runs)
    [row] = result.table.to_dict("records")
    assert row["sparsity"] == pytest.approx(6 / 18)
    assert row["beta"] == pytest.approx(float(points.mean()) + 0.5)
    assert row["ari_rates"] == 1.0
    assert result.notes == ("no traces xi, beta, inputs, rates: other",)
    assert [panel.title for panel in result.panels] == [
        "share of own statistics, beta",
        "domains by share of own statistics, beta",
        "learning rate, eta",
    ], "rates of a domain are the same, so that nothing is to be divided by"
    for panel in result.panels:
        assert panel.picture.svg.startswith("<svg")


# Dissimilarity


def test_dissimilarity_is_read_from_traces_and_drawn_for_each_setting() -> None:
    rounds = torch.tensor([1, 2, 4])
    traces = {
        "round": rounds,
        "variance": torch.tensor([4.0, 1.0, 1.0]),
        "dissimilarity": torch.tensor([2.0, 9.0, 3.0]),
    }
    other = {**traces, "variance": torch.tensor([1.0, 0.0, 2.0])}
    runs = [
        source(traces=traces),
        source(run="r1", method="o", traces=other),
        source(run="r2", method="p", traces={}),
    ]
    result = dissimilarity.Dissimilarity().read(runs)
    assert result.notes == ("no traces variance, dissimilarity: p",)
    rows = result.table.set_index("method")[list(dissimilarity.COLUMNS)]
    assert rows.loc["m"].tolist() == [4, 2, 1, 3]
    assert rows.loc["o"].tolist() == [1, 1, 2, 3]
    [panel] = result.panels
    assert panel.alt.endswith("m from 4 to 1, o from 1 to 2.")
    assert result.panels[0].picture.svg.startswith("<svg")
