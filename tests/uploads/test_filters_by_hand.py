"""Each stage and each aggregation on numbers that can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import pytest
import torch
import worlds
from torch import Tensor

from fl.api.method import BuildContext
from fl.api.network import Network
from fl.api.training import Training
from fl.api.uploads import Aggregation, RoundUploads, UploadFilter, UploadSize, attacker_mask
from fl.base import registry
from fl.base.errors import Location
from fl.uploads.aggregations.trimmed_mean import trimmed_count
from fl.uploads.filters.adaptive_clip import multiplier_on_mean
from fl.uploads.filters.alie import largest_deviation

CLIENTS = 10


def built(kind: str, name: str, **values: Any) -> Any:
    """A stage or an aggregation, where all ten clients take part."""
    entry = registry.find(kind, name, Location("test"))
    made = entry.instantiate(entry.parse(values, Location("test")))
    network = Network(lambda: worlds.module("mlp"))
    context = BuildContext(network, Training(participation=1.0), worlds.CLASSES, CLIENTS)
    return made.build(context)


def stage(name: str, **values: Any) -> UploadFilter:
    made = built("upload filter", name, **values)
    assert isinstance(made, UploadFilter)
    return made


def rows(*numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def crossing(given: Tensor, **more: Any) -> RoundUploads:
    ids = tuple(range(len(given)))
    return RoundUploads(
        given, torch.ones(len(given)), ids, round=1, seed=3, clients=CLIENTS, **more
    )


def combined(name: str, given: Tensor, n: Tensor | None = None, **values: Any) -> list[float]:
    made = built("aggregation", name, **values)
    assert isinstance(made, Aggregation)
    return [*made.combine(given, torch.ones(len(given)) if n is None else n).tolist()]


def test_clip_shortens_what_is_too_long() -> None:
    """(3, 4) is of length 5, so 2.5 halves it; (0.6, 0.8) is of length 1."""
    done = stage("clip", norm=2.5).apply(crossing(rows([3, 4], [0.6, 0.8])))
    assert done.rows.tolist() == [[1.5, 2.0], [0.6, 0.8]]
    assert done.norm_bound == 2.5


def test_noise_has_the_deviation_of_the_paper_on_the_mean() -> None:
    """z S / m = 2 * 0.5 / 10 = 0.1, the same vector for all, every round another."""
    zeros, noise = torch.zeros(4, 20_000, dtype=torch.float64), stage("noise", multiplier=2.0)
    given = crossing(zeros, norm_bound=torch.tensor(0.5))
    first = noise.apply(given).rows
    assert (first == first[0]).all()
    assert first[0].std() == pytest.approx(0.1, rel=0.02)
    assert abs(first[0].mean()) < 4 * 0.1 / math.sqrt(20_000)
    other = noise.apply(replace(given, round=2)).rows
    assert abs(torch.corrcoef(torch.stack([first[0], other[0]]))[0, 1]) < 0.03
    weighed = noise.apply(replace(given, weights=torch.arange(4.0)))
    assert weighed.weights.tolist() == [1, 1, 1, 1]


def test_adaptive_clip_follows_the_quantile() -> None:
    """Of ten clients four are within C = 1, so C <- exp(-0.2 (0.4 - 0.5)), and others are cut."""
    made = stage("adaptive-clip", initial=1.0, count_noise=0.0)
    given = rows(*[[0.5, 0.0]] * 4, *[[0.0, 2.0]] * 6)
    done = made.apply(crossing(given, server_state=made.init_server_state(given[0])))
    assert done.rows.tolist() == [[0.5, 0.0]] * 4 + [[0.0, 1.0]] * 6
    assert done.server_state["norm"].item() == pytest.approx(math.exp(0.02))
    assert done.norm_bound == 1.0


def test_noise_after_an_adaptive_clip_pays_for_the_count() -> None:
    """1 / z^2 = 1 / z_mean^2 + 1 / (2 sigma_b)^2: with sigma_b = 0.5 and z = 0.6 it is 0.75."""
    assert multiplier_on_mean(0.6, 0.5) == pytest.approx(0.75)
    noise = stage("noise", multiplier=0.6)
    zeros = torch.zeros(2, 20_000, dtype=torch.float64)
    done = noise.apply(crossing(zeros, norm_bound=torch.tensor(1.0), count_noise=0.05))
    assert done.rows[0].std() == pytest.approx(0.75 / 10, rel=0.02)


def test_quantize_rounds_to_levels_and_is_right_on_average() -> None:
    """Three bits are three levels beside 0: of (3, 4), of length 5, 3 is 1.8 levels of 5 / 3."""
    made = stage("quantize", bits=3)
    sent = [
        made.apply(replace(crossing(rows([3.0, -4.0])), round=number)).rows[0]
        for number in range(4000)
    ]
    seen = torch.stack(sent)
    assert seen[:, 0].unique().tolist() == pytest.approx([5 / 3, 10 / 3])
    assert seen[:, 1].unique().tolist() == pytest.approx([-5.0, -10 / 3])
    assert seen.mean(0).tolist() == pytest.approx([3.0, -4.0], abs=0.06)
    zeros = made.apply(crossing(rows([0.0, 0.0]))).rows
    assert zeros.tolist() == [[0, 0]]


def test_top_k_sends_the_largest_and_remembers_the_rest() -> None:
    made = stage("top-k", share=0.5)
    first = made.apply(crossing(rows([1, -5, 2, 0.5]), client_states={"rest": rows([0, 0, 0, 0])}))
    assert first.rows.tolist() == [[0, -5, 2, 0]]
    assert first.client_states["rest"].tolist() == [[1, 0, 0, 0.5]]
    second = made.apply(crossing(rows([1, 1, 1, 3]), client_states=first.client_states))
    assert second.rows.tolist() == [[2, 0, 0, 3.5]]
    assert second.client_states["rest"].tolist() == [[0, 1, 1, 0]]


def test_random_k_sends_some_and_remembers_the_rest() -> None:
    made, given = stage("random-k", share=0.25), torch.arange(1.0, 9.0)[None]
    done = made.apply(crossing(given, client_states={"rest": torch.zeros(1, 8)}))
    assert int((done.rows != 0).sum()) == 2
    assert torch.equal(done.rows + done.client_states["rest"], given)
    plain = stage("random-k", share=0.25, feedback=False)
    mean = torch.stack(
        [plain.apply(replace(crossing(given), round=number)).rows[0] for number in range(4000)]
    ).mean(0)
    assert mean.tolist() == pytest.approx(given[0].tolist(), rel=0.12)


@pytest.mark.parametrize(
    ("stages", "bits"),
    [
        ({}, 1000 * 32),
        ({"quantize": {"bits": 4}}, 1000 * 4 + 32),
        ({"top-k": {"share": 0.01}}, 10 * (32 + 10)),
        ({"random-k": {"share": 0.01}}, 10 * 32 + 64),
        ({"top-k": {"share": 0.01}, "quantize": {"bits": 4}}, 10 * (4 + 10) + 32),
        ({"clip": {"norm": 1.0}}, 1000 * 32),
    ],
)
def test_bits_are_those_that_would_be_sent(stages: dict[str, Any], bits: int) -> None:
    """Of a thousand numbers, whose places take ten bits."""
    size = UploadSize(1000, 32)
    for name, values in stages.items():
        size = stage(name, **values).upload_size(size)
    assert size.total == bits


def test_attackers_flip_signs() -> None:
    given = torch.ones(CLIENTS, 2)
    sent = stage("sign-flip", share=0.3, times=2.0).apply(crossing(given)).rows
    attack = attacker_mask(3, 0.3, CLIENTS)
    assert attack.sum() == 3
    assert (sent[attack] == -2).all()
    assert (sent[~attack] == 1).all()
    assert (stage("sign-flip", share=1.0).apply(crossing(given)).rows == -1).all()


def test_attackers_flip_labels() -> None:
    made = stage("label-flip", share=0.3)
    assert made.change_batch is not None
    assert made.change_batch({"y": torch.tensor([0, 1, 2])})["y"].tolist() == [2, 1, 0]


def test_attackers_send_noise_of_their_own() -> None:
    given = torch.zeros(CLIENTS, 20_000)
    sent = stage("gaussian", share=0.3, deviation=3.0).apply(crossing(given)).rows
    attack = attacker_mask(3, 0.3, CLIENTS)
    assert (sent[~attack] == 0).all()
    assert sent[attack].std(1).tolist() == pytest.approx([3.0] * 3, rel=0.03)
    assert (torch.corrcoef(sent[attack]) - torch.eye(3)).abs().max() < 0.04


def test_alie_sends_the_mean_less_some_deviations() -> None:
    """Attackers trained 1, 2 and 6: mean 3, deviation sqrt((4 + 1 + 9) / 3)."""
    attack = attacker_mask(3, 0.3, CLIENTS)
    given = torch.full((CLIENTS, 1), 9.0, dtype=torch.float64)
    given[attack] = rows([1], [2], [6])
    sent = stage("alie", share=0.3, z=1.5).apply(crossing(given)).rows
    assert sent[attack].flatten().tolist() == pytest.approx([3 - 1.5 * math.sqrt(14 / 3)] * 3)
    assert (sent[~attack] == 9).all()


def test_alies_own_z_is_the_papers() -> None:
    """50 workers, of which 24 attack: s = 26 - 24 = 2, Phi(z) = (50 - 24 - 2) / (50 - 24)."""
    assert largest_deviation(50, 24) == pytest.approx(NormalDist().inv_cdf(24 / 26))
    assert largest_deviation(10, 2) == 0.0, "(10 - 2 - 4) / 8 is one half"
    for clients, attackers, needed in ((7, 3, 1), (9, 3, 2), (11, 2, 4), (30, 7, 9)):
        honest = clients - attackers
        expected = NormalDist().inv_cdf((honest - needed) / honest)
        assert largest_deviation(clients, attackers) == pytest.approx(max(0.0, expected))


def test_median_and_trimmed_mean() -> None:
    """By Yin et al.: of 1, 2, 6, 100 the median is 4; without the ends the mean is 4, too."""
    given = rows([1, -1], [100, -1], [6, 5], [2, 0])
    assert combined("median", given) == [4.0, -0.5]
    assert combined("median", given[:3]) == [6.0, -1.0]
    assert combined("trimmed-mean", given, share=0.25) == [4.0, -0.5]
    assert combined("trimmed-mean", given, share=0.0) == [27.25, 0.75]
    assert [trimmed_count(0.2, 10), trimmed_count(0.2, 11), trimmed_count(0.4, 2)] == [2, 3, 0]


def test_krum_takes_the_one_whose_neighbours_are_near() -> None:
    """n = 5, f = 1, so two neighbours count: scores are below."""
    given = rows([0], [1.1], [3], [4], [50])
    # 0: 1.21 + 9; 1.1: 1.21 + 3.61; 3: 1 + 3.61; 4: 1 + 8.41; 50: 46^2 + 47^2.
    assert combined("krum", given, attackers=1) == [3.0]
    assert combined("krum", given, attackers=1, chosen=2) == [pytest.approx(2.05)]
    # n = 6, three neighbours: 5.5 has 0.81 + 5.76 + 6.76 = 13.33, the next best, 6.4, 15.31. With
    # its two nearest alone, 6.4 would be best; without the nearest, or with four, 2.9.
    assert combined("krum", rows([0.7], [0.8], [2.9], [5.5], [6.4], [7.9]), attackers=1) == [5.5]


def test_the_geometric_median_of_a_triangle_sees_its_sides_under_120_degrees() -> None:
    """Of (-1, 0), (1, 0) and (0, 3) it is (0, 1 / sqrt 3); a heavy point draws it to itself."""
    given = rows([-1, 0], [1, 0], [0, 3])
    assert combined("geometric-median", given, steps=200) == pytest.approx([0, 1 / math.sqrt(3)])
    heavy = torch.tensor([1.0, 1.0, 5.0])
    assert combined("geometric-median", given, heavy, steps=200) == pytest.approx([0, 3], abs=1e-4)


def test_one_step_of_the_geometric_median() -> None:
    """From the mean 2 of 0, 0, 6: distances 2, 2, 4, so (6 / 4) / (1 / 2 + 1 / 2 + 1 / 4) = 1.2."""
    assert combined("geometric-median", rows([0], [0], [6]), steps=1) == pytest.approx([1.2])
