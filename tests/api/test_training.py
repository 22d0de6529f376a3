from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fl.api.training import Training, learning_rate
from fl.base.errors import ConfigError, Location
from fl.base.fields import parse

WHERE = Location("studies/a.yaml", "training")


def settled(**values: Any) -> Training:
    return Training(**Training.settle(parse(Training, values, WHERE), WHERE))


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({}, [0.8, 0.8, 0.8, 0.8, 0.8]),
        ({"lr_decay": 0.5}, [0.8, 0.8, 0.8, 0.8, 0.8]),
        ({"schedule": "exponential", "lr_decay": 0.5}, [0.8, 0.4, 0.2, 0.1, 0.05]),
        (
            {"schedule": "step", "lr_decay": 0.5, "lr_decay_every": 2},
            [0.8, 0.8, 0.4, 0.4, 0.2],
        ),
        ({"schedule": "step", "lr_decay": 0.5}, [0.8, 0.4, 0.2, 0.1, 0.05]),
        (
            {"schedule": "drops", "rounds": 8, "lr_decay": 0.5},
            [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2],
        ),
        # (1 + cos(k pi / 4)) / 2 for k = 0..3
        (
            {"schedule": "cosine", "rounds": 4},
            [0.8, 0.8 * 0.8535533905932737, 0.4, 0.8 * 0.14644660940672627],
        ),
        ({"warmup_rounds": 4}, [0.2, 0.4, 0.6, 0.8, 0.8]),
        (
            {"warmup_rounds": 2, "schedule": "exponential", "lr_decay": 0.5},
            [0.4, 0.4, 0.2, 0.1, 0.05],
        ),
    ],
)
def test_the_rate_follows_its_schedule(values: dict[str, Any], rates: list[float]) -> None:
    training = settled(**{"lr": 0.8, "rounds": 5, **values})
    found = [learning_rate(training, t) for t in range(1, len(rates) + 1)]
    assert found == pytest.approx(rates, rel=1e-14)


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        # (1 + cos(k pi / 4)) / 2 for k = 0..3, over two rounds of two steps.
        (
            {"schedule": "cosine", "rounds": 2},
            [0.8, 0.8 * 0.8535533905932737, 0.4, 0.8 * 0.14644660940672627],
        ),
        ({"warmup_rounds": 2}, [0.2, 0.4, 0.6, 0.8]),
        ({"schedule": "exponential", "lr_decay": 0.25}, [0.8, 0.4, 0.2, 0.1]),
        ({"schedule": "step", "lr_decay": 0.5}, [0.8, 0.8, 0.4, 0.4]),
    ],
)
def test_the_rate_can_go_by_steps(values: dict[str, Any], rates: list[float]) -> None:
    training = settled(**{"lr": 0.8, "rounds": 5, **values, "schedule_by": "steps"})
    seen = [learning_rate(training, t, step, 2) for t in (1, 2) for step in (0, 1)]
    assert seen == pytest.approx(rates, rel=1e-14)
    by_rounds = replace(training, schedule_by="rounds")
    alike = [learning_rate(training, t) == learning_rate(by_rounds, t, 1, 2) for t in (1, 2)]
    assert all(alike), "a round of one step is a round"


@pytest.mark.parametrize(
    ("given", "epochs", "steps"),
    [
        ({}, 1, None),
        ({"local_epochs": 3}, 3, None),
        ({"local_steps": 7, "local_epochs": None}, None, 7),
    ],
)
def test_an_epoch_is_the_default_only_where_no_steps_are_given(
    given: dict[str, Any], epochs: int | None, steps: int | None
) -> None:
    training = settled(**given)
    assert (training.local_epochs, training.local_steps) == (epochs, steps)


def test_epochs_and_steps_exclude_each_other() -> None:
    with pytest.raises(ConfigError) as caught:
        settled(local_epochs=2, local_steps=7)
    assert str(caught.value) == (
        "studies/a.yaml: training.local_steps: is 7, but local_epochs is 2. "
        "Try: give one of local_epochs and local_steps"
    )


@pytest.mark.parametrize("values", [{}, {"optimizer": "adam", "momentum": 0.9}])
def test_nesterov_without_momentum_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"training\.nesterov.*momentum"):
        settled(nesterov=True, **values)
