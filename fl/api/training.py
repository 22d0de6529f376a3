"""How a run trains, whatever its method: rounds, batches, optimizer, schedule, participation."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from fl.base.errors import ConfigError, Location
from fl.base.fields import LARGEST_FLOAT, Bound, Count, NonNegative, Positive, Share

WEIGHTS = {"float32": "float32", "float64": "float64", "mixed": "float32"}
"""By precision, the type of weights and inputs."""


@dataclass(frozen=True)
class Training:
    """The budget and the optimizer of a run.

    Attributes:
        rounds: Communication rounds.
        local_epochs, local_steps: A client's work in a round; one of the two (one epoch, if neither
            is given).
        batch_size: Samples in a step. The last batch of an epoch is filled up with other samples of
            the client, which count for batch statistics but not for the loss.
        drop_last: Whether that last batch is left out instead (unless it is the only one).
        optimizer: `sgd` or `adam` as in PyTorch (weight decay is added to the gradient), or `adamw`
            (decoupled weight decay). Adam has betas 0.9 and 0.999; momentum is SGD's alone.
        lr: The learning rate of local steps.
        momentum: Of SGD.
        nesterov: Whether a step of SGD goes along g + momentum * v in place of v.
        clip_norm: The largest l2-norm of a client's gradient in a step, over all weights that the
            step trains, before weight decay; null: any.
        weight_decay: The factor of the weights.
        keep_optimizer: Whether momentum and the like stay with a client from round to round, or
            begin afresh. By default as the method has it: they stay where a client's own model goes
            on (Local, Ditto, MR-MTL, fine-tuning).
        schedule: Of the learning rate over rounds t = 1 .. R. `constant`; `exponential`: lr *
            lr_decay^(t-1); `step`: lr * lr_decay^floor((t-1)/lr_decay_every); `cosine`: lr * (1 +
            cos(pi (t-1)/R)) / 2; `drops`: times lr_decay after half of the rounds, and once more
            after three quarters.
        lr_decay, lr_decay_every: See `schedule`.
        schedule_by: What `schedule` and `warmup_rounds` go by: `rounds`, or `steps`: at step s = 1
            .. S of a client's pass, t - 1 above is t - 1 + (s - 1) / S, and t of the warm-up is t -
            1 + s / S. So each client goes through all of a round's part of the schedule, however
            many steps it takes; where all take S, these are steps 1 .. RS of the run.
        warmup_rounds: N of a linear start: round t < N has t / N of what `schedule` says; 1: none.
        label_smoothing: The share e of a label that all C classes have alike: cross-entropy in
            training is towards 1 - e + e / C for the sample's class and e / C for each other.
            Labels of images that a method makes up stay as they are.
        class_weights: Of clients' samples in cross-entropy, by their class. `balanced`: n / (C
            n_c), of the client's n training samples, n_c of the class and C classes that it has, as
            in scikit-learn; 1 for a class that it has none of. A batch's loss is the sum of its
            samples' weights times their losses, smoothed or not, over the sum of weights;
            `CrossEntropyLoss(weight, label_smoothing)` of PyTorch weighs each class of a smoothed
            label instead.
        weighting: Of clients where the server averages: by their `samples`, or `uniform`.
        participation: Share of the clients drawn in each round; at least one is drawn.
        stragglers: Share of a round's clients that do only a part of its local work, a random
            number of its epochs (of its steps, where those are counted); see
            `fl.engine.stragglers`.
        partial_work: Whether the work of stragglers is `kept`, and averaged as that of others, or
            `dropped`. Dropped ones take no part in the round, but one client always does.
        precision: Of weights and inputs. `mixed` is float32, but the network computes in bfloat16
            where PyTorch's autocast does: faster for large models, and results differ by more than
            rounding.
        memory_format: Of images inside the network, where clients are trained one after another.
            `channels-last` makes most convolutions faster and changes results by rounding.
        normalisation: Of images, by the data set's `own` mean and deviation, `half`: from -1 to 1,
            or `none`: from 0 to 1.
        augmentation: Of training batches of images, and of masks with them: `none`, or steps with
            dashes between them, in their order. `crop`, after padding by 4 zeros; `flip`, from left
            to right; `turn`, by right angles; `rotate15`, by up to so many degrees.
        evaluate_every: Rounds between evaluations; the last round is always evaluated.
        evaluate_clients: How many clients are evaluated, drawn once by the run's seed, the same in
            every round and for every method; null: all. Of clients that are held out of training as
            many are drawn besides.
        early_stopping: Rounds without a better value on validation data after which a run ends, at
            an evaluation; null: never. The value is the mean over clients of accuracy (of masks:
            Dice) in the reported stage, whatever `metric` of the study says. Its schedule is that
            of all `rounds`.
    """

    rounds: Count = 20
    local_epochs: Count | None = None
    local_steps: Count | None = None
    batch_size: Count = 32
    drop_last: bool = False
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.01
    momentum: Share = 0.0
    nesterov: bool = False
    clip_norm: Positive | None = None
    weight_decay: NonNegative = 0.0
    keep_optimizer: bool | None = None
    schedule: Literal["constant", "cosine", "exponential", "step", "drops"] = "constant"
    lr_decay: Positive = 1.0
    lr_decay_every: Count = 1
    schedule_by: Literal["rounds", "steps"] = "rounds"
    warmup_rounds: Count = 1
    label_smoothing: Annotated[float, Bound(low=0, below=1)] = 0.0
    class_weights: Literal["none", "balanced"] = "none"
    weighting: Literal["samples", "uniform"] = "samples"
    participation: Annotated[float, Bound(above=0, high=1)] = 1.0
    stragglers: Share = 0.0
    partial_work: Literal["kept", "dropped"] = "kept"
    precision: Literal["float32", "float64", "mixed"] = "float32"
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    normalisation: Literal["own", "half", "none"] = "own"
    augmentation: str = "none"
    evaluate_every: Count = 1
    evaluate_clients: Count | None = None
    early_stopping: Count | None = None

    @staticmethod
    def settle(values: dict[str, object], location: Location) -> dict[str, object]:
        """The values, with what follows from them filled in.

        Raises:
            ConfigError: For fields that make no sense together.
        """
        if values["local_epochs"] is not None and values["local_steps"] is not None:
            raise ConfigError(
                location / "local_steps",
                f"is {values['local_steps']!r} beside local_epochs {values['local_epochs']!r}",
                "one of local_epochs and local_steps",
            )
        if values["local_steps"] is None and values["local_epochs"] is None:
            values["local_epochs"] = 1
        _check_stragglers(values, location)
        if values["nesterov"] and not (values["optimizer"] == "sgd" and values["momentum"]):
            problem = "is true without momentum of SGD"
            raise ConfigError(
                location / "nesterov", problem, "optimizer: sgd, and momentum above 0"
            )
        try:
            augmentation_steps(str(values["augmentation"]))
        except ValueError as error:
            problem = f"is {values['augmentation']!r}; {error}"
            raise ConfigError(location / "augmentation", problem, AUGMENTATIONS) from None
        _check_decay(Training(**values), location)  # type: ignore[arg-type]  # Checked by now.
        return values


AUGMENTATIONS = (
    "none, or some of crop, flip, turn and rotate1 to rotate180 with dashes between them, such as "
    "crop-flip"
)


def _check_stragglers(values: dict[str, object], location: Location) -> None:
    """Refuse stragglers if nobody is left to train, or if the work cannot be done in part."""
    share, dropped = values.get("stragglers", 0.0), values.get("partial_work") == "dropped"
    if share == 1 and dropped:
        problem = "is 1.0 and partial_work is 'dropped', which leaves nobody to train"
        raise ConfigError(location / "stragglers", problem, "below 1, or partial_work: kept")
    if share and not dropped and 1 in (values["local_epochs"], values["local_steps"]):
        key = "local_epochs" if values["local_epochs"] == 1 else "local_steps"
        problem = f"is {share!r} and {key} is 1, of which there is no part"
        allowed = "partial_work: dropped, or 2 or more local_epochs or local_steps"
        raise ConfigError(location / "stragglers", problem, allowed)


def augmentation_steps(text: str) -> list[tuple[str, float]]:
    """The steps that ``Training.augmentation`` names, in order, each with its degrees or 0.

    Raises:
        ValueError: For what is no step, and for one that comes twice.
    """
    steps: list[tuple[str, float]] = []
    for step in [] if text == "none" else text.split("-"):
        match = re.fullmatch(r"(crop|flip|turn)|rotate(\d{1,3})", step)
        if not match or int(match[2] or 1) not in range(1, 181):
            raise ValueError(f"{step!r} is no step")
        name = match[1] or "rotate"
        if name in dict(steps):
            raise ValueError(f"{name} comes twice")
        steps.append((name, float(match[2] or 0)))
    return steps


def _check_decay(training: Training, location: Location) -> None:
    """Refuse a schedule that ends at a rate which no weight can hold."""
    with contextlib.suppress(OverflowError):
        if learning_rate(training, training.rounds, 1) <= LARGEST_FLOAT:
            return
    problem = f"is {training.lr_decay!r}, by which the rate grows without end"
    raise ConfigError(location / "lr_decay", problem, "1 or less, or a little more for few rounds")


def learning_rate(training: Training, round_: int, step: int = 0, steps: int = 1) -> float:
    """The rate of a step in round t = 1, 2, ..., R, see ``schedule``, ``schedule_by`` and
    ``warmup_rounds`` of `Training`.

    Args:
        step, steps: How many of how many steps come before it, where a schedule goes by steps.
    """
    if training.schedule_by == "rounds":
        step, steps = 0, 1
    rate = _scheduled(training, round_ - 1 + step / steps)
    begun = round_ - 1 + (step + 1) / steps
    whole = training.warmup_rounds
    return rate * begun / whole if whole > 1 and begun < whole else rate


def _scheduled(training: Training, done: float) -> float:
    """done: rounds before, and the part of this one."""
    if training.schedule == "cosine":
        return training.lr * (1 + math.cos(math.pi * done / training.rounds)) / 2
    if training.schedule == "drops":
        return training.lr * training.lr_decay ** sum(
            4 * done >= k * training.rounds for k in (2, 3)
        )
    if training.schedule == "exponential":
        return training.lr * math.pow(training.lr_decay, done)
    if training.schedule == "step":
        return training.lr * math.pow(training.lr_decay, done // training.lr_decay_every)
    return training.lr
