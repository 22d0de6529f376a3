"""Training keys without an effect, which would only rename runs, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planning
import pytest

from fl.base.errors import ConfigError
from fl.plan import plan

PLAIN: dict[str, Any] = {"rounds": 4, "batch_size": 8, "lr": 0.05}


def entries(root: Path, methods: dict[str, Any], **training: Any) -> int:
    """Plan a study; the number of its runs."""
    study = {"training": {**PLAIN, **training}, "methods": methods}
    return len(plan.make(planning.write_config(root, study)).runs)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"optimizer": "adam", "momentum": 0.9}, "momentum: is 0.9, .* without optimizer: sgd"),
        ({"optimizer": ["sgd", "adam"], "momentum": [0.5, 0.9]}, "momentum: is 0.5, .*: sgd"),
        ({"lr_decay": 0.5}, "lr_decay: is 0.5, .* without schedule: exponential, step or drops"),
        ({"schedule": "cosine", "lr_decay": [0.5, 0.9]}, "lr_decay: is 0.5, .* without schedule"),
        ({"schedule": "exponential"}, "schedule: is exponential, .* without an lr_decay other"),
        ({"schedule": ["constant", "drops"]}, "schedule: is drops, .* an lr_decay other than 1"),
        (
            {"schedule": "drops", "lr_decay": 0.5, "lr_decay_every": 2},
            "lr_decay_every: is 2, but has no effect without schedule: step. Try: set schedule",
        ),
        (
            {"schedule": "step", "lr_decay": 0.5, "lr_decay_every": 4},
            "lr_decay_every: is 4, .* without more rounds. Try: set more rounds, or no lr_decay_ev",
        ),
        ({"early_stopping": [3, 4]}, "early_stopping: is 4, .* without more rounds"),
        ({"schedule_by": "steps"}, "schedule_by: is steps, .* without a schedule, or warmup"),
        ({"partial_work": ["kept", "dropped"]}, "partial_work: is dropped, .* without stragglers"),
    ],
)
def test_a_key_without_effect_is_refused(
    tmp_path: Path, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"methods.fedavg.{problem}"):
        entries(tmp_path / "a", {"fedavg": values})
    with pytest.raises(ConfigError, match=f"training.{problem}") as raised:
        entries(tmp_path / "b", {"fedavg": None, "fedprox": None}, **values)
    assert "\n" not in str(raised.value), "told once, not for every method"


def test_an_entry_whose_own_key_contradicts_the_study_is_named(tmp_path: Path) -> None:
    methods = {"fedavg": None, "local": {"momentum": 0.0}}
    message = r"training.nesterov: is true, but needs SGD with momentum \(methods.local\)"
    with pytest.raises(ConfigError, match=message) as raised:
        entries(tmp_path, methods, nesterov=True, momentum=0.9)
    assert "fedavg" not in str(raised.value)


def test_a_key_with_an_effect_at_a_point_or_in_another_entry_is_not(tmp_path: Path) -> None:
    grid = {"optimizer": ["sgd", "adam"], "momentum": 0.9}
    decays = {"schedule": "exponential", "lr_decay": [1.0, 0.9]}
    warm_up = {"schedule_by": "steps", "warmup_rounds": 2}
    entries_by_name = {
        **{name: {"method": "fedavg", **keys} for name, keys in {"a": grid, "b": decays}.items()},
        "c": {"method": "fedavg", "momentum": 0.0, **warm_up},
        "d": {"method": "fedavg", "optimizer": "adam"},
    }
    assert entries(tmp_path, entries_by_name, momentum=0.9) == 5  # Both of Adam are one run.


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"upload_filters": {"sign-flip": {"share": 0.1}}},
            r"upload_filters.sign-flip.share: is 0.1, which is no attacker among 4 clients. "
            "Allowed: 0, or 0.25 and more",
        ),
        ({"upload_filters": {"label-flip": {"share": [0.25, 0.12]}}}, "label-flip.share: is 0.12"),
        (
            {"stragglers": 0.2, "local_epochs": 2, "participation": 0.5},
            "stragglers: is 0.2, which is no client of 2 in a round. Allowed: 0, or 0.5 and more",
        ),
    ],
)
def test_a_share_that_is_nobody_is_refused(
    tmp_path: Path, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"methods.fedavg.*{problem}"):
        entries(tmp_path, {"fedavg": values})
