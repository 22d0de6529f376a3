"""Every selection on given sizes, losses and seconds, beside its rule in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import world

from fl.api.participation import Offer, Outcome
from fl.base.errors import FedloomError
from fl.blocks.client_selection import draw
from fl.participation.selections.active import Active
from fl.participation.selections.by_size import BySize
from fl.participation.selections.divfl import DivFL, distances
from fl.participation.selections.fedcs import FedCS
from fl.participation.selections.loss_proportional import LossProportional
from fl.participation.selections.oort import Oort, is_above_cut, preferred_duration
from fl.participation.selections.power_of_choice import PowerOfChoice
from fl.participation.selections.tifl import TiFL, changed_probabilities

SIZES = np.array([10, 20, 30, 40, 50, 60])
LOSSES = np.array([6.0, 1.0, 5.0, 2.0, 4.0, 3.0])
SECONDS = np.array([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])


def offer(
    count: int = 2,
    round_: int = 1,
    clients: Any = range(6),
    seed: int = 0,
    losses: Callable[[np.ndarray], np.ndarray] = lambda clients: LOSSES[clients],
    gradients: Callable[[np.ndarray], Tensor] = lambda clients: torch.zeros(len(clients), 1),
) -> Offer:
    there = np.array(clients)
    return Offer(
        round_,
        count,
        there,
        SIZES,
        SECONDS,
        losses,
        np.random.default_rng([seed, round_]),
        gradients,
    )


def context(clients: int = 6, **training: Any) -> Any:
    run = world("fedavg", sizes=[8] * clients, **training)
    return run.context(run.seed)


def frequencies(select: Callable[[Offer], np.ndarray], draws: int, **more: Any) -> np.ndarray:
    """The share of draws in which each client is selected, [6]."""
    counts = np.zeros(6)
    for seed in range(draws):
        counts[select(offer(seed=seed, **more))] += 1
    return counts / draws


def test_a_draw_is_one_after_the_other_in_proportion_to_weights() -> None:
    """The first of three is w_i / 6; the second w_j / (6 - w_i)."""
    weights, pairs = np.array([1.0, 2.0, 3.0]), np.zeros((3, 3))
    generator = np.random.default_rng(0)
    for _ in range(20_000):
        first, second = draw(generator, np.arange(3), weights, 2)
        pairs[first, second] += 1
    for i in range(3):
        for j in {0, 1, 2} - {i}:
            expected = weights[i] / 6 * weights[j] / (6 - weights[i])
            assert pairs[i, j] / 20_000 == pytest.approx(expected, abs=0.01)


def test_clients_of_weight_zero_come_last() -> None:
    for seed in range(20):
        drawn = draw(np.random.default_rng(seed), np.arange(4), np.array([0, 1, 0, 2]), 3)
        assert {*drawn[:2]} == {1, 3}
        assert drawn[2] in (0, 2)


def test_by_size_one_client_is_drawn_in_proportion_to_its_samples() -> None:
    select = BySize().build(context()).select
    found = frequencies(lambda offered: select({}, offered)[0], 8000, count=1)
    assert found == pytest.approx(SIZES / SIZES.sum(), abs=0.02)


def test_power_of_choice_takes_the_largest_losses_of_its_candidates() -> None:
    asked = []

    def losses(clients: np.ndarray) -> np.ndarray:
        asked.append(clients)
        return LOSSES[clients]

    select = PowerOfChoice(candidates=4).build(context(participation=1 / 3)).select
    selected, _ = select({}, offer(losses=losses))
    [candidates] = asked
    assert len({*candidates}) == 4
    assert [*selected] == sorted(candidates, key=lambda k: -LOSSES[k])[:2]


def test_power_of_choice_with_last_losses_takes_those_that_never_took_part_first() -> None:
    built = PowerOfChoice(candidates=6, losses="last").build(context(participation=1 / 3))
    memory = built.learn(built.init(6), Outcome(1, np.array([0, 1, 2, 4]), LOSSES[:4], None))
    selected, _ = built.select(memory, offer())
    assert {*selected} == {3, 5}
    memory = built.learn(memory, Outcome(2, np.array([3, 5]), np.array([0.0, 9.0]), None))
    selected, _ = built.select(memory, offer())
    assert [*selected] == [5, 0]


@pytest.mark.parametrize("candidates", [1, 7])
def test_too_few_or_too_many_candidates_are_refused(candidates: int) -> None:
    with pytest.raises(FedloomError, match=f"candidates: is {candidates}") as caught:
        PowerOfChoice(candidates=candidates).check(6, context(participation=1 / 3).training)
    assert caught.value.allowed == "2 to 6"
    assert caught.value.advice


def test_loss_proportional_weighs_by_sizes_times_losses() -> None:
    weights = SIZES * LOSSES
    select = LossProportional().build(context()).select
    found = frequencies(lambda offered: select({}, offered)[0], 8000, count=1)
    assert found == pytest.approx(weights / weights.sum(), abs=0.02)


def test_loss_proportional_takes_the_largest_loss_for_those_that_are_unknown() -> None:
    built = LossProportional(losses="last").build(context())
    memory = built.learn(built.init(6), Outcome(1, np.array([0, 1]), np.array([1.0, 3.0]), None))
    weights = SIZES * np.array([1.0, 3, 3, 3, 3, 3])
    found = frequencies(lambda offered: built.select(memory, offered)[0], 8000, count=1)
    assert found == pytest.approx(weights / weights.sum(), abs=0.02)


def test_active_leaves_out_small_values_and_draws_by_a_softmax() -> None:
    built = Active(left_out=0.5, alpha=0.2, uniform=0.0).build(context())
    memory = built.learn(built.init(6), Outcome(1, np.arange(6), LOSSES, None))
    values = np.sqrt(SIZES) * LOSSES
    weights = np.where(values >= np.sort(values)[3], np.exp(0.2 * values), 0)
    found = frequencies(lambda offered: built.select(memory, offered)[0], 8000, count=1)
    assert found == pytest.approx(weights / weights.sum(), abs=0.02)


def test_active_is_uniform_before_anything_is_known() -> None:
    built = Active().build(context())
    found = frequencies(lambda offered: built.select(built.init(6), offered)[0], 3000)
    assert found == pytest.approx(np.full(6, 1 / 3), abs=0.03)


def test_fedcs_selects_those_that_are_in_time_of_as_many_as_take_part() -> None:
    select = FedCS(deadline=3.0).build(context()).select
    assert {*select({}, offer(count=6))[0]} == {0, 1, 2}
    found = frequencies(lambda offered: select({}, offered)[0], 3000, clients=range(4), count=3)
    assert found[:3] == pytest.approx(0.75, abs=0.03)
    assert found[3] == 0


def test_fedcs_takes_the_quickest_if_nobody_is_in_time() -> None:
    select = FedCS(deadline=0.5).build(context()).select
    assert [*select({}, offer(count=3, clients=[3, 4, 5]))[0]] == [5]


def test_changed_probabilities_of_tiers_are_those_by_hand() -> None:
    """Of three tiers with credits the worst has 3/6, the next 2/6, the best 1/6."""
    found = changed_probabilities(np.array([1.0, 4.0, 9.0, 2.0]), np.array([1, 1, 0, 1], bool))
    assert found == pytest.approx([1 / 6, 3 / 6, 0, 2 / 6])


def test_tifl_selects_within_a_tier_and_changes_probabilities_if_it_got_no_better() -> None:
    """By seconds the tiers are {1, 2}, {0, 5}, {4, 3}."""
    tiers = ({1, 2}, {0, 5}, {3, 4})
    built = TiFL(tiers=3, interval=2).build(context(rounds=4, participation=1 / 3))
    selected, memory = built.select(built.init(6), offer())
    before = np.array([(1 * 20 + 5 * 30) / 50, (6 * 10 + 3 * 60) / 70, (4 * 50 + 2 * 40) / 90])
    assert memory["losses"].numpy() == pytest.approx(before)
    assert {*selected} == tiers[int(memory["tier"])]
    assert memory["credits"].sum() == 11
    _, memory = built.select(memory, offer(round_=2))
    assert memory["probabilities"].tolist() == [1 / 3] * 3
    _, better = built.select(memory, offer(round_=3, losses=lambda clients: LOSSES[clients] / 2))
    assert better["probabilities"].tolist() == [1 / 3] * 3
    _, worse = built.select(memory, offer(round_=3))
    order = np.argsort(-before)
    assert worse["probabilities"].numpy()[order] == pytest.approx([3 / 6, 2 / 6, 1 / 6])


def test_tifl_uses_no_tier_more_often_than_it_has_credits() -> None:
    built = TiFL(tiers=3, credits=2).build(context(rounds=6, participation=1 / 3))
    memory, tiers = built.init(6), []
    for number in range(1, 7):
        _, memory = built.select(memory, offer(round_=number))
        tiers.append(int(memory["tier"]))
    assert sorted(tiers) == [0, 0, 1, 1, 2, 2]


def test_tifl_selects_whom_it_can_if_a_tier_is_smaller() -> None:
    built = TiFL(tiers=3).build(context(rounds=4, participation=1 / 3))
    selected, memory = built.select(built.init(6), offer(clients=[3, 5]))
    assert [*selected] == [[5], [3]][int(memory["tier"])]


@pytest.mark.parametrize(
    ("selection", "key", "allowed"),
    [(TiFL(tiers=4), "tiers: is 4", "1 to 3"), (TiFL(tiers=3, credits=1), "credits: is 1", "2 or")],
)
def test_tiers_that_are_too_small_or_tried_too_rarely_are_refused(
    selection: TiFL, key: str, allowed: str
) -> None:
    with pytest.raises(FedloomError, match=key) as caught:
        selection.check(6, context(rounds=5, participation=1 / 3).training)
    assert caught.value.allowed.startswith(allowed)


def test_utilities_of_oort_are_those_by_hand() -> None:
    u, last = SIZES * LOSSES, np.array([1, 2, 3, 4, 5, 6])
    found = Oort(clip=0.5).utilities(u, last, SECONDS, 4.0, 7)
    cap = np.sort(u)[3]
    scaled = (np.minimum(u, cap) - 0.999 * 20) / (200 - 0.999 * 20)
    expected = scaled + np.sqrt(0.1 * np.log(7) / last)
    expected *= np.where(SECONDS > 4, (4 / SECONDS) ** 2, 1)
    assert found == pytest.approx(expected)


def test_oort_admits_clients_above_the_cut_alone() -> None:
    assert [*is_above_cut(np.array([1.0, 3.9, 4.0, 3.7, 5.0]), 2, 0.95)] == [0, 1, 1, 0, 1]
    assert not is_above_cut(np.array([]), 0, 0.95).any()


def test_the_preferred_duration_is_a_quantile() -> None:
    assert preferred_duration(SECONDS, 0.5) == 4.0
    assert preferred_duration(SECONDS, 1.0) == np.inf


def oort_memory(oort: Oort, clients: list[int], rounds: int = 1) -> Any:
    built = oort.build(context())
    memory: Any = built.init(6)
    for number in range(1, rounds + 1):
        memory = built.learn(memory, Outcome(number, np.array(clients), LOSSES[clients], None))
    return memory


def test_oort_explores_in_proportion_to_speed() -> None:
    oort = Oort(exploration=1.0, exploration_decay=1.0)
    memory = oort_memory(oort, [0, 3])
    found = frequencies(lambda o: oort.select(memory, o)[0], 8000, count=1, round_=2)
    rates = np.where(np.isin(np.arange(6), [0, 3]), 0, 1 / SECONDS)
    assert found == pytest.approx(rates / rates.sum(), abs=0.02)


def test_oort_explores_less_in_later_rounds() -> None:
    oort = Oort(exploration=0.5, exploration_decay=0.5, exploration_min=0.0)
    memory = oort_memory(oort, [0, 1, 2, 3])
    for number, known in {2: 3, 4: 3}.items():
        selected, _ = oort.select(memory, offer(count=4, round_=number))
        assert np.isin(selected, [0, 1, 2, 3]).sum() == known
    selected, _ = oort.select(memory, offer(count=4, round_=1))
    assert np.isin(selected, [4, 5]).sum() == 1


def test_oort_selects_nobody_who_took_part_often_while_others_are_there() -> None:
    oort = Oort(blacklist=2)
    memory = oort_memory(oort, [0, 1], rounds=2)
    for seed in range(5):
        selected, _ = oort.select(memory, offer(count=4, round_=3, seed=seed))
        assert {*selected} == {2, 3, 4, 5}
    assert len(oort.select(memory, offer(count=5, round_=3))[0]) == 5


def test_the_pacer_relaxes_the_duration_when_utilities_fall() -> None:
    oort = Oort(window=2, pacer=0.1, duration=0.3)
    memory = oort.init(6)
    durations = []
    for past, total in enumerate([4.0, 4.0, 3.0, 3.0, 9.0, 9.0, 9.0], start=1):
        memory = {**memory, **oort.paced(memory, total, past + 1)}
        durations.append(round(float(memory["duration"]), 6))
    assert durations == [0.3, 0.3, 0.3, 0.4, 0.4, 0.4, 0.4]


def test_oort_knows_the_utilities_of_the_last_round() -> None:
    oort = Oort()
    _, memory = oort.select(oort_memory(oort, [1, 4]), offer(round_=2))
    assert memory["sums"][-1] == 20 * 1 + 50 * 4
    assert torch.equal(memory["last"], torch.tensor([0, 1, 0, 0, 1, 0]))


LINE = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0], [30.0]])
"""Gradients of six clients: three near each other, two more, and one apart."""


def test_divfl_takes_one_of_each_group() -> None:
    """The distances from 2 and from 3 sum to 48, from others to more; 2 comes first."""
    select = DivFL().build(context()).select
    chosen = [select({}, offer(n, gradients=lambda ks: LINE[ks]))[0].tolist() for n in (1, 2, 3)]
    assert chosen == [[2], [2, 5], [2, 5, 3]]


def test_divfl_reaches_what_greedy_promises() -> None:
    """Of a submodular value, greedy reaches 1 - 1/e of the best; random subsets reach less."""
    for seed in range(20):
        gradients = torch.from_numpy(np.random.default_rng(seed).normal(size=(9, 4)))
        found = distances(gradients, gradients).numpy()
        value = {
            chosen: found.sum(0).max() - found[:, chosen].min(1).sum()
            for chosen in itertools.combinations(range(9), 3)
        }
        asked = offer(3, clients=range(9), seed=seed, gradients=lambda ks, g=gradients: g[ks])
        greedy, random = (
            value[tuple(sorted(DivFL(sample=share).select_asked({}, asked)[0].tolist()))]
            for share in (None, 0.4)
        )
        assert greedy >= (1 - np.exp(-1)) * max(value.values())
        assert random <= max(value.values())


def test_divfl_of_last_gradients_asks_newcomers_and_who_is_selected() -> None:
    """Client 3 comes in round 2, and 2 is away then; all count by what they sent last."""
    asked, now = list[list[int]](), {"gradients": LINE[:4]}

    def gradients(clients: np.ndarray) -> Tensor:
        asked.append(clients.tolist())
        return now["gradients"][clients]

    memory = {
        "known": torch.zeros(4, dtype=torch.bool),
        "gradients": torch.zeros(4, 1),
        "distances": torch.zeros(4, 4),
    }
    select = DivFL(gradients="last").select_last
    first, memory = select(memory, offer(1, 1, [0, 1, 2], gradients=gradients))
    now["gradients"] = LINE[:4] + 100
    second, memory = select(memory, offer(1, 2, [0, 1, 3], gradients=gradients))
    assert (first.tolist(), second.tolist()) == ([1], [1])
    assert asked == [[0, 1, 2], [3], [1]]
    assert memory["gradients"].flatten().tolist() == [0, 101, 2, 110]
    assert torch.equal(memory["distances"], (memory["gradients"] - memory["gradients"].T).abs())
