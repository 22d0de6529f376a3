"""Tests over clients and draws: by hand, and by simulation where the truth is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fl.report import claims, client_tests
from fl.report.client_tests import draws_p_values, family_test, oracle
from tools.false_claims import BLOCKS, simulated

SMALL = np.random.default_rng(3).normal([[[0.5]], [[1.5]], [[0.0]]], 1.0, (3, 4, 6))
"""Three comparisons of four clients in six draws."""


def flips_of(clients: int, draws: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Signs and multipliers, as they are documented: coins, and normal over a root of chi2."""
    generator = np.random.default_rng(0)
    signs = generator.integers(0, 2, (count, clients), dtype=np.int8) * 2 - 1
    normal = generator.normal(size=(count, draws))
    return signs, normal / np.sqrt(generator.chisquare(draws - 1, size=(count, 1)) / (draws - 1))


def step_down(observed: list[float], flipped: list[list[float]]) -> list[float]:
    """Corrected p-values in loops: the rarest first, each against what is not rarer than it."""
    order = sorted(range(len(observed)), key=lambda j: -observed[j])
    found, least = [0.0] * len(observed), 0.0
    for place, j in enumerate(order):
        count = 1
        for statistics in flipped:
            count += max(statistics[i] for i in order[place:]) >= observed[j] - 1e-9
        least = found[j] = max(least, count / (len(flipped) + 1))
    return found


def test_step_down_is_that_by_hand():
    """All sums in loops over clients and draws, for 500 flips."""
    signs, multipliers = flips_of(4, 6, 500)
    m = [[sum(SMALL[j, k]) / 6 for k in range(4)] for j in range(3)]
    total = [sum(m[j]) / 4 for j in range(3)]
    by_draw = [[sum(SMALL[j, :, s]) / 4 for s in range(6)] for j in range(3)]
    v = [[(by_draw[j][s] - total[j]) * (6 / 5) ** 0.5 for s in range(6)] for j in range(3)]
    clients = [sum(x**2 for x in m[j]) / 16 for j in range(3)]
    draws = [sum(x**2 for x in v[j]) / 36 for j in range(3)]
    both, alone = [], []
    for e, z in zip(signs, multipliers, strict=True):
        c = [sum(e[k] * m[j][k] for k in range(4)) / 4 for j in range(3)]
        d = [sum(z[s] * v[j][s] for s in range(6)) / 6 for j in range(3)]
        alone.append([abs(c[j]) / clients[j] ** 0.5 for j in range(3)])
        both.append([abs(c[j] + d[j]) / (clients[j] + draws[j]) ** 0.5 for j in range(3)])
    observed = [abs(total[j]) / (clients[j] + draws[j]) ** 0.5 for j in range(3)]
    found = family_test(SMALL, flips=500)
    assert found.difference == pytest.approx(total)
    assert found.p == pytest.approx(step_down(observed, both))
    observed = [abs(total[j]) / clients[j] ** 0.5 for j in range(3)]
    assert found.p_models == pytest.approx(step_down(observed, alone))
    assert np.isnan(found.p_equal).all(), "there is no margin"


def test_clients_alone_have_the_p_values_of_all_sixteen_flips():
    exact = claims.p_values(SMALL.mean(axis=2)[1:2])[0]
    assert family_test(SMALL[1:2]).p_models == pytest.approx(exact, abs=0.01)
    assert exact == [2 / 16]


def test_where_draws_do_not_differ_clients_decide_alone():
    same = np.repeat(SMALL[:, :, :1], 6, axis=2)
    found = family_test(same, flips=999)
    assert found.p == pytest.approx(found.p_models)


def test_what_a_draw_gives_all_clients_alike_is_no_property_of_the_method():
    """Each draw adds a number to all 300 clients, and three of four draws add a positive one."""
    generator = np.random.default_rng(0)
    luck = np.array([0.9, 1.2, -0.8, 0.7, 1.1, -1.0, 0.6, 0.8])
    values = (luck + generator.normal(0, 0.5, (300, 8)))[None]
    found = family_test(values, flips=999)
    assert found.p_models[0] == 0.001 and found.p[0] > 0.05 and found.low[0] < 0 < found.high[0]
    assert found.p[0] == pytest.approx(draws_p_values(values)[0], abs=0.05)


def test_draws_alone_are_tested_over_means_over_clients():
    values = SMALL.copy()
    values[:, 0, 0] = np.nan
    means = [[np.nanmean(values[j, :, s]) for s in range(6)] for j in range(3)]
    assert draws_p_values(values).tolist() == claims.p_values(np.array(means))[1].tolist()


def test_equal_is_what_both_one_sided_tests_put_within_the_margin():
    """By hand for one comparison: differences are shifted by the margin to each side."""
    generator = np.random.default_rng(1)
    values = generator.normal(0.002, 0.01, (1, 50, 4))
    found = family_test(values, margin=0.01, flips=500)
    signs, multipliers = flips_of(50, 4, 500)
    sides = []
    for side in (values[0] + 0.01, 0.01 - values[0]):
        m, v = side.mean(axis=1), (side.mean(axis=0) - side.mean()) * np.sqrt(4 / 3)
        spread = np.sqrt((m**2).sum() / 2500 + (v**2).sum() / 16)
        flipped = ((signs @ m) / 50 + (multipliers @ v) / 4) / spread
        sides.append(((flipped >= side.mean() / spread - 1e-9).sum() + 1) / 501)
    # Of the two tests the surer one is corrected for the other.
    assert found.p_equal[0] == pytest.approx(max(sides), abs=0.002) and max(sides) < 0.05
    far, wide = values + 0.02, generator.normal(0, 0.2, (1, 50, 4))
    three = family_test(np.concatenate([values, far, wide]), margin=0.01, flips=500)
    assert (three.p_equal <= claims.LEVEL).tolist() == [True, False, False]
    assert three.p_equal[0] >= found.p_equal[0], "corrected for three"


@pytest.mark.parametrize(("clients", "missing"), [(20, 0.2), (100, 0.2), (100, 0.8)])
def test_false_claims_are_rare_and_intervals_hold_the_mean(clients, missing):
    """Of 400 families without an effect at most 5 % have a claim, and equality at the margin."""

    def family(seed: int, effect: float = 0.0) -> np.ndarray:
        return effect + simulated(seed, clients, comparisons=10, missing=missing)

    found = [family_test(family(i), flips=199) for i in range(400)]
    assert np.mean([test.p.min() <= claims.LEVEL for test in found]) <= 0.06
    held = np.mean([(test.low <= 0) & (test.high >= 0) for test in found])
    assert 0.94 <= held <= 0.995
    at_margin = [family_test(family(i, 1.0), margin=1.0, flips=199) for i in range(100)]
    assert np.mean([test.p_equal.min() <= claims.LEVEL for test in at_margin]) <= 0.06


def test_clients_of_blocks_make_false_claims_and_blocks_do_not():
    false: dict[str, list[bool]] = {"blocks": [], "clients": []}
    for i in range(100):
        values = simulated(i, len(BLOCKS), comparisons=10, missing=0.2, blocks=BLOCKS)
        for unit, own in (("blocks", BLOCKS), ("clients", None)):
            test = family_test(values, blocks=own, flips=199)
            false[unit].append(test.p.min() <= claims.LEVEL)
    assert np.mean(false["blocks"]) <= 0.06 and np.mean(false["clients"]) > 0.2


def test_effects_are_found_with_enough_clients():
    """Four points among nine comparisons without an effect: a hundred clients show it."""
    hits = 0
    for i in range(50):
        values = simulated(i, 100, comparisons=10, missing=0.2)
        values[0] += 4.0
        hits += family_test(values, flips=199).p[0] <= claims.LEVEL
    assert hits >= 40


def test_what_is_missing():
    values = SMALL.copy()
    values[:, 1, :2] = np.nan
    base = family_test(values, flips=200)
    assert base.difference == pytest.approx(np.nanmean(values, axis=2).mean(axis=1))
    # Clients and draws that no one is scored in are not there.
    padded = np.full((3, 6, 7), np.nan)
    padded[:, :4, :6] = values
    for first, second in zip(base, family_test(padded, flips=200), strict=True):
        assert np.array_equal(first, second, equal_nan=True)
    # A comparison that lacks a draw is not tested, and those beside it are as without it.
    broken = values.copy()
    broken[2, :, 3] = np.nan
    found = family_test(broken, flips=200, margin=0.1)
    assert all(np.isnan(result[2]) for result in found)
    alone = family_test(values[:2], flips=200, margin=0.1)
    assert [result[:2].tolist() for result in found] == [result.tolist() for result in alone]
    # Neither is anything of one draw or one client.
    for few in (values[:, :, :1], values[:, :1]):
        assert np.isnan(np.array(family_test(few, flips=200, margin=0.1))).all()


def test_a_client_who_is_missing_in_one_comparison_has_no_share_in_it():
    values = np.repeat(SMALL, 2, axis=1)
    values[0, 3] = np.nan
    found = family_test(values, flips=200)
    assert found.difference[0] == pytest.approx(np.delete(values[0], 3, axis=0).mean())


def test_a_method_that_gives_the_values_of_its_baseline_is_never_told_apart():
    values = np.concatenate([np.zeros((1, 4, 6)), SMALL])
    found, alone = family_test(values, margin=0.1), family_test(SMALL, margin=0.1)
    assert (found.p[0], found.p_models[0], found.difference[0]) == (1, 1, 0)
    assert found.low[0] == found.high[0] == 0
    assert found.p[1:].tolist() == alone.p.tolist(), "it corrects nothing"


def test_clients_of_a_block_flip_together():
    """Blocks of two equal clients are one client: twelve are no surer than six."""
    clients = np.random.default_rng(2).normal(0.8, 1.0, (2, 6, 5))
    twins, blocks = np.repeat(clients, 2, axis=1), np.repeat(np.arange(6), 2)
    together = family_test(twins, blocks=blocks, margin=0.1, flips=500)
    for first, second in zip(together, family_test(clients, margin=0.1, flips=500), strict=True):
        assert first == pytest.approx(second)
    assert (family_test(twins, flips=500).p_models < together.p_models).all()
    # Numbers of blocks are names.
    renamed = family_test(twins, blocks=blocks * 7 + 2, margin=0.1, flips=500)
    assert renamed.p.tolist() == together.p.tolist()


def test_blocks_of_a_client_each_change_nothing():
    by_client = family_test(SMALL, blocks=np.arange(4), flips=200)
    assert by_client.p.tolist() == family_test(SMALL, flips=200).p.tolist()


def test_the_test_is_the_same_in_each_call():
    first, second = family_test(SMALL), family_test(SMALL)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))
    assert first.p.min() >= 1 / (claims.RANDOM_FLIPS + 1)


def test_no_verdict_hangs_on_the_seed_of_flips(monkeypatch):
    """At p = .049 so many flips as are enough elsewhere would be on either side of the level."""
    values = np.random.default_rng(7).normal(0.518, 1.0, (1, 20, 6))
    found: dict[int | None, list[bool]] = {None: [], claims.RANDOM_FLIPS: []}
    for seed in (1, 2, 3):
        monkeypatch.setattr(client_tests, "FLIP_SEED", seed)
        for flips, verdicts in found.items():
            verdicts.append(bool(family_test(values, flips=flips).p[0] <= claims.LEVEL))
    assert found[None] == [True] * 3 and len({*found[claims.RANDOM_FLIPS]}) == 2


def test_an_oracle_by_hand():
    """Three clients, two points. On half 0 the points have 1, 0, 0 and 0, 1, 1."""
    halves = np.array(
        [
            [[1.0, 0.4], [0.0, 0.5], [0.0, 0.9]],
            [[0.0, 0.6], [1.0, 0.2], [1.0, 0.0]],
        ]
    )
    # By half 0 clients choose 0, 1, 1, and all together 1; scored on half 1 client 0 has .4 for .6.
    # By half 1 they choose 1, 0, 0, and all together 0 (.6 to .267); on half 0: 0 for 1, 1 for 1 ..
    by_half = [[0.4 - 0.6, 0.0, 0.0], [0.0 - 1.0, 0.0, 0.0]]
    assert oracle(halves, np.arange(3)) == pytest.approx(np.mean(by_half, axis=0))
    # Against point 0: on half 1 clients 1 and 2 have .2 for .5 and 0 for .9; on half 0 client 0 has
    # 0 for 1.
    by_half = [[0.0, 0.2 - 0.5, 0.0 - 0.9], [0.0 - 1.0, 0.0, 0.0]]
    assert oracle(halves, np.arange(3), 0) == pytest.approx(np.mean(by_half, axis=0))
    # Clients 1 and 2 are a group: by half 0 point 1, by half 1 point 0.
    assert oracle(halves, np.array([0, 1, 1]), 0) == pytest.approx(np.mean(by_half, axis=0))
    assert oracle(halves, np.zeros(3)).tolist() == [0, 0, 0], "one choice for all is that choice"


def test_an_oracle_over_halves_of_the_clients():
    """Clients 0 and 1 choose for 2 and 3, and the other way round."""
    values = np.full((2, 4, 2), np.nan)
    values[:, :2, 0] = [[0.5, 0.7], [0.7, 0.9]]
    values[:, 2:, 1] = [[0.4, 0.2], [0.1, 0.3]]
    gains = oracle(values, np.zeros(4), 0)
    assert gains == pytest.approx([0.0, 0.0, 0.1 - 0.4, 0.3 - 0.2])


def test_the_best_of_many_equal_points_gains_nothing():
    """The naive oracle, by the same half, gains a standard deviation and more."""
    values = np.random.default_rng(4).normal(0, 1, (8, 2000, 2))
    gains = oracle(values, np.arange(2000))
    assert abs(gains.mean()) < 3 * gains.std() / 2000**0.5
    naive = values[:, :, 0].max(axis=0).mean() - values[:, :, 0].mean(axis=1).max()
    assert naive > 1.3


def test_an_oracle_finds_what_is_there():
    """Half of the clients need one point, and half the other."""
    generator = np.random.default_rng(5)
    needs = np.tile([0, 1], 200)
    values = generator.normal(0, 0.3, (2, 400, 2))
    for client, half in itertools.product(range(400), range(2)):
        values[needs[client], client, half] += 1
    own = oracle(values, np.arange(400))
    assert own.mean() == pytest.approx(0.5, abs=0.1)
    assert oracle(values, needs).mean() == pytest.approx(own.mean(), abs=0.05)
