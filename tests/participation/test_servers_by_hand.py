"""Asynchronous servers by hand: their formulas in NumPy, and whole runs beside those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arriving import arriving
from worlds import world

from fl.api import trees
from fl.api.participation import ArrivedUploads, AsynchronousServer, staleness_factor
from fl.api.trees import Tree
from fl.engine import engine, simulate
from fl.participation.servers.asyncfeded import AsyncFedED
from fl.participation.servers.ca2fl import CA2FL
from fl.participation.servers.fedasync import FedAsync
from fl.participation.servers.fedbuff import FedBuff

CLIENTS, SIZE = 5, 3
EVENTS = 10


def weights(server: Tree) -> np.ndarray:
    return torch.cat([leaf.reshape(-1) for leaf in trees.leaves(server["params"])]).numpy()


def server_with(like: Tree, flat: np.ndarray) -> Tree:
    leaves, rest = [], torch.from_numpy(flat.copy())
    for leaf in trees.leaves(like["params"]):
        leaves.append(rest[: leaf.numel()].reshape(leaf.shape))
        rest = rest[leaf.numel() :]
    return {**like, "params": trees.unflatten(like["params"], leaves)}


def assert_runs_agree(server: Any, rule: Any) -> None:
    """Compare ten updates with those of a rule.

    The rule gets the versions so far and, for each upload, its trained weights, the number of the
    version that it began with, and its client; it returns the next version. It keeps versions of
    its own, from which the same local training goes on.
    """
    run = arriving("fedavg", server, rounds=EVENTS, weighting="uniform")
    start = run.begin()
    found = [done.state for done in simulate.rounds(run, start, 0, "stacked")]
    versions, oldest = [weights(start.server)], 0
    for number in range(1, EVENTS + 1):
        update = run.participation.update(number)
        uploads = []
        for client, sent in zip(update.clients, update.versions, strict=True):
            begin = replace(start, server=server_with(start.server, versions[sent]))
            schedule = run.scheduler.round_schedule(number, np.array([client]), ())
            trained, _ = engine.run_round(run.method, begin, schedule, "loop")
            uploads.append((weights(trained.server), int(sent), int(client)))
            oldest = max(oldest, number - 1 - int(sent))
        versions.append(rule(versions, uploads))
        np.testing.assert_allclose(weights(found[number - 1].server), versions[-1], atol=1e-14)
    assert oldest > 0


@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_by_hand_fedbuff_adds_the_mean_of_changes_since_the_version_sent(exponent: float) -> None:
    """As FLSim's aggregator does, whose learning rate is one over the size of the buffer."""

    def rule(versions: list[np.ndarray], uploads: list[Any]) -> np.ndarray:
        now = len(versions) - 1
        changes = [
            (trained - versions[sent]) / (1 + now - sent) ** exponent
            for trained, sent, _ in uploads
        ]
        return versions[-1] + sum(changes) / len(changes)

    staleness = "polynomial" if exponent else "constant"
    assert_runs_agree(FedBuff(size=2, concurrency=4, staleness=staleness), rule)


@pytest.mark.parametrize("name", ["constant", "hinge", "polynomial"])
def test_by_hand_fedasync_mixes_the_trained_model_with_the_newest(name: str) -> None:
    def rule(versions: list[np.ndarray], uploads: list[Any]) -> np.ndarray:
        [(trained, sent, _)] = uploads
        late = len(versions) - 1 - sent
        factors = {
            "constant": 1.0,
            "hinge": 1.0 if late <= 1 else 1 / (2.0 * (late - 1) + 1),
            "polynomial": (1.0 + late) ** -2.0,
        }
        alpha = 0.6 * factors[name]
        return (1 - alpha) * versions[-1] + alpha * trained

    assert_runs_agree(FedAsync(concurrency=4, staleness=name, a=2.0, b=1.0), rule)  # type: ignore[arg-type]


def test_by_hand_ca2fl_caches_the_last_change_of_each_client() -> None:
    last = np.zeros((4, len(weights(world("fedavg").begin().server))))

    def rule(versions: list[np.ndarray], uploads: list[Any]) -> np.ndarray:
        step = last.mean(0)
        news = {client: trained - versions[sent] for trained, sent, client in uploads}
        step = step + sum(news[client] - last[client] for client in news) / len(news)
        for client, change in news.items():
            last[client] = change
        return versions[-1] + step

    assert_runs_agree(CA2FL(size=2, concurrency=4), rule)


def test_by_hand_asyncfeded_divides_by_how_far_the_server_went() -> None:
    def rule(versions: list[np.ndarray], uploads: list[Any]) -> np.ndarray:
        [(trained, sent, _)] = uploads
        change = trained - versions[sent]
        gamma = np.linalg.norm(versions[-1] - versions[sent]) / np.linalg.norm(change)
        return versions[-1] + 0.8 / (gamma + 0.5) * change

    assert_runs_agree(AsyncFedED(concurrency=4, lam=0.8, epsilon=0.5), rule)


def arrived(server: AsynchronousServer) -> ArrivedUploads:
    """Three uploads, of which the last number of each is a running statistic."""
    draw = np.random.default_rng(3)
    rows, moves = draw.normal(size=(2, SIZE, 4))
    return ArrivedUploads(
        torch.from_numpy(rows),
        torch.from_numpy(moves),
        torch.tensor([0, 2, 1]),
        torch.ones(SIZE),
        torch.tensor([0, 2, 3]),
        CLIENTS,
        torch.tensor([False, False, False, True]),
        server.init(CLIENTS, torch.zeros(4, dtype=torch.float64)),
    )


@pytest.mark.parametrize("component", [FedBuff(), CA2FL(), AsyncFedED()])
def test_running_statistics_become_those_of_the_client(component: Any) -> None:
    server = component.build(None)
    uploads = arrived(server)
    changes, _ = server.change(uploads)
    expected = uploads.rows[:, 3] - uploads.moves[:, 3]
    assert torch.equal(changes[:, 3], expected)


def test_fedasync_mixes_running_statistics_as_weights() -> None:
    server = FedAsync(alpha=0.5, staleness="constant").build(None)  # type: ignore[arg-type]
    uploads = arrived(server)
    assert torch.equal(server.change(uploads)[0], 0.5 * (uploads.rows - uploads.moves))


def test_asyncfeded_takes_a_client_without_any_change() -> None:
    server = AsyncFedED().build(None)  # type: ignore[arg-type]
    uploads = replace(arrived(server), rows=torch.zeros(SIZE, 4), moves=torch.zeros(SIZE, 4))
    assert not server.change(uploads)[0].any()


def test_by_hand_staleness_factors() -> None:
    staleness = torch.tensor([0, 4, 5, 9])
    assert staleness_factor("constant", staleness, 3.0).tolist() == [1, 1, 1, 1]
    hinge = staleness_factor("hinge", staleness, 10.0, 4.0)
    np.testing.assert_allclose(hinge, [1, 1, 1 / 11, 1 / 51])
    polynomial = staleness_factor("polynomial", staleness, 0.5)
    np.testing.assert_allclose(polynomial, [1, 5**-0.5, 6**-0.5, 10**-0.5])
