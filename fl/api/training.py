"""How a run trains, whatever its method: rounds, batches, optimizer, schedule, participation."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from fl.base.errors import ConfigError, ConfigProblems, FedloomError, Location
from fl.base.fields import Bound, Count, Index, NonNegative, Positive, Share

WEIGHTS = {"float32": "float32", "float64": "float64", "mixed": "float32"}
"""Type of weights and inputs by precision."""


@dataclass(frozen=True)
class Training:
    """Budget and optimizer of a run.

    Attributes:
        rounds: Communication rounds.
        local_epochs: Epochs of a client's training in a round; 1 if `local_steps` is not given.
        local_steps: Steps of a client's training in a round, instead of `local_epochs`.
        batch_size: Samples in a step. The last batch of an epoch is filled up with other samples of
            the client, which count for batch statistics but not for the loss. Samples of a client
            with fewer than `batch_size` repeat in its batch.
        drop_last: Whether the last batch of an epoch is left out if it is smaller than `batch_size`
            (unless it is the only batch).
        optimizer: `sgd` or `adam` as in PyTorch (weight decay is added to the gradient), or `adamw`
            (decoupled weight decay). Adam has betas 0.9 and 0.999; only SGD has momentum.
        lr: Learning rate of local steps.
        momentum: Momentum of SGD.
        nesterov: Whether a step of SGD uses g + momentum * v instead of v.
        clip_norm: Largest l2-norm of a client's gradient in a step, over all weights that the step
            trains, before weight decay; null: no limit.
        weight_decay: Factor of the weights that is added to the gradient.
        keep_optimizer: Whether momentum and other states of the optimizer stay with a client
            between rounds. The default depends on the method: they stay if a client continues with
            its own model (Local, Ditto, MR-MTL, fine-tuning).
        schedule: Learning rate over rounds t = 1 .. R. `constant`; `exponential`: lr *
            lr_decay^(t-1); `step`: lr * lr_decay^floor((t-1)/lr_decay_every); `cosine`: lr * (1 +
            cos(pi (t-1)/R)) / 2; `drops`: times lr_decay after half of the rounds, and once more
            after three quarters.
        lr_decay: Factor of the schedules `exponential`, `step` and `drops`, see `schedule`.
        lr_decay_every: Number of rounds between two changes of the schedule `step`.
        schedule_by: Progress by which `schedule` and `warmup_rounds` change the rate: `rounds`, or
            `steps`. With `steps`, at step s = 1 .. S of a client's pass, t - 1 above is t - 1 + (s
            - 1) / S, and t of the warm-up is t - 1 + s / S. So every client covers a round's part
            of the schedule, whatever its number of steps.
        warmup_rounds: N of a linear warm-up: the rate of round t < N is t / N of the rate of
            `schedule`; 1: no warm-up.
        label_smoothing: Share e of a label that is spread over all C classes: the target of
            cross-entropy is 1 - e + e / C for the sample's class and e / C for every other class.
            Labels of images that a method generates are not smoothed.
        class_weights: Weights of a client's samples in cross-entropy, by class. `balanced`: n / (C
            n_c), with the client's n training samples, n_c of the class, and C classes with
            samples, as in scikit-learn; 1 for classes without samples. The loss of a batch is the
            weighted mean of its samples' losses, smoothed or not. PyTorch's
            `CrossEntropyLoss(weight, label_smoothing)` weights each class of a smoothed label
            instead.
        weighting: Weights of clients in the server's average: their numbers of `samples`, or
            `uniform`.
        participation: Share of the clients drawn in each round; at least one is drawn. Numbers of
            clients by a share are rounded, a half to the even number: 0.25 of 10 clients are 2, and
            0.35 of 10 are 4.
        stragglers: Share of a round's clients that do only a part of the local training: a random
            number of its epochs (or steps, with `local_steps`); see `fl.engine.batches`.
        over_selection: Clients that are selected for each one that is needed: the server goes on
            when the first ones have answered, and the work of the others is lost. It needs
            `devices`.
        deadline: Seconds after which a round ends; what comes later is lost, but the first answer
            is always waited for; null: none. It needs `devices`.
        partial_work: Whether the work of stragglers is `kept` and averaged like that of others, or
            `dropped`. Dropped clients take no part in the round, but one client always does.
        arithmetic: `portable`: all x86-64 processors since 2013 give the same bits, on one thread;
            `native`: the processor's fastest instructions, whose last bits are its own; `auto`:
            native for models with large steps (those that say so, such as `resnet18` and
            `transformers`), portable for others. On GPUs, and on processors other than x86-64,
            `portable` changes nothing; a run's record says how it was computed. Data and partitions
            are always made portably.
        rounding: Number of a repetition: above 0, the last bit of each weight with which a run
            begins is changed, up or down by draws of this number and the seed. How far results move
            is how far rounding alone moves them, as on another processor.
        precision: Type of weights and inputs. `mixed` is float32, but layers compute in bfloat16
            where PyTorch's autocast does: faster for large models, and results differ by more than
            rounding.
        memory_format: Memory format of images inside the network, if clients are trained one after
            another. `channels-last` makes most convolutions faster and changes results by rounding.
        normalisation: Normalisation of images: by the data set's `own` mean and deviation, `half`:
            from -1 to 1, or `none`: from 0 to 1.
        augmentation: Augmentation of training images, and of their masks: `none`, or steps joined
            by dashes, in their order. `crop`: after padding by 4 zeros; `flip`: from left to right;
            `turn`: by right angles; `rotate15`: by up to 15 degrees.
        evaluate_every: Rounds between evaluations; the last round is always evaluated.
        evaluate_clients: Number of clients that are evaluated; null: all. They are drawn once by
            the run's seed, and are the same in every round and for every method. Other seeds draw
            other clients, so that a spread over seeds is also one of clients. The same number is
            drawn in addition from clients that are held out of training.
        early_stopping: Rounds without a better value on validation data after which a run ends, at
            an evaluation; null: never. The value is the mean over clients of accuracy (of Dice for
            masks, of RMSE for targets) in the reported stage, whatever the study's `metric` is. The
            learning rate follows the schedule of all `rounds`.
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
    lr_decay: Annotated[float, Bound(above=0, high=1)] = 1.0
    lr_decay_every: Count = 1
    schedule_by: Literal["rounds", "steps"] = "rounds"
    warmup_rounds: Count = 1
    label_smoothing: Annotated[float, Bound(low=0, below=1)] = 0.0
    class_weights: Literal["none", "balanced"] = "none"
    weighting: Literal["samples", "uniform"] = "samples"
    participation: Annotated[float, Bound(above=0, high=1)] = 1.0
    stragglers: Share = 0.0
    partial_work: Literal["kept", "dropped"] = "kept"
    over_selection: Annotated[float, Bound(low=1)] = 1.0
    deadline: Positive | None = None
    arithmetic: Literal["auto", "portable", "native"] = "auto"
    rounding: Index = 0
    precision: Literal["float32", "float64", "mixed"] = "float32"
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    normalisation: Literal["own", "half", "none"] = "own"
    augmentation: str = "none"
    evaluate_every: Count = 1
    evaluate_clients: Count | None = None
    early_stopping: Count | None = None

    def participants(self, clients: int) -> int:
        """Return the number of clients that are drawn in each round.

        Args:
            clients: Number of clients from which they are drawn.
        """
        return max(1, round(self.participation * clients))

    @staticmethod
    def settle(values: dict[str, object], location: Location) -> dict[str, object]:
        """Return the values with derived defaults.

        Args:
            values: Value by field.
            location: File and key, for errors.

        Raises:
            ConfigError: For fields that contradict each other.
        """
        problems = ConfigProblems(
            ConfigError(location / c.key, c.problem, c.allowed, c.advice)
            for c in contradictions(values)
        )
        problems.raise_all()
        return with_derived_defaults(values)


def with_derived_defaults(values: Mapping[str, object]) -> dict[str, object]:
    """Return values of all fields of `Training` with the defaults that follow from other values."""
    is_default = values["local_steps"] is None and values["local_epochs"] is None
    return {**values, "local_epochs": 1} if is_default else {**values}


class Contradiction(NamedTuple):
    """A training key that contradicts other ones.

    Attributes:
        key: The key.
        others: The keys that it contradicts.
        problem: What is wrong.
        allowed: The values that would be allowed.
        advice: What to do about it.
    """

    key: str
    others: tuple[str, ...]
    problem: str
    allowed: str = ""
    advice: str = ""


def contradictions(values: Mapping[str, object]) -> Iterator[Contradiction]:
    """Yield the contradictions among values of all fields of `Training`."""
    epochs, steps = values["local_epochs"], values["local_steps"]
    if epochs is not None and steps is not None:
        problem = f"is {steps!r}, but local_epochs is {epochs!r}"
        advice = "give one of local_epochs and local_steps"
        yield Contradiction("local_steps", ("local_epochs",), problem, advice=advice)
    yield from _straggler_contradictions(values)
    if values["nesterov"] and not (values["optimizer"] == "sgd" and values["momentum"]):
        problem = "is true, but needs SGD with momentum"
        advice = "set optimizer: sgd and a momentum above 0"
        yield Contradiction("nesterov", ("optimizer", "momentum"), problem, advice=advice)
    try:
        augmentation_steps(str(values["augmentation"]))
    except ValueError as error:
        problem = f"is {values['augmentation']!r}; {error}"
        yield Contradiction("augmentation", (), problem, AUGMENTATIONS)


AUGMENTATIONS = (
    "none, or some of crop, flip, turn and rotate1 to rotate180 joined by dashes, such as crop-flip"
)


def _straggler_contradictions(values: Mapping[str, object]) -> Iterator[Contradiction]:
    """Yield stragglers if nobody is left to train, or if the work cannot be done in part."""
    share, dropped = values["stragglers"], values["partial_work"] == "dropped"
    if share == 1 and dropped:
        problem = "is 1.0 and partial_work is 'dropped', so that no client trains"
        advice = "set a share below 1, or partial_work: kept"
        yield Contradiction("stragglers", ("partial_work",), problem, advice=advice)
    epochs, steps = values["local_epochs"], values["local_steps"]
    key = "local_steps" if epochs is None and steps is not None else "local_epochs"
    if share and not dropped and 1 in (steps, epochs or (1 if steps is None else None)):
        problem = f"is {share!r}, but {key} is 1, so that a straggler cannot do a part of it"
        advice = "set partial_work: dropped, or 2 or more local_epochs or local_steps"
        others = ("partial_work", "local_epochs", "local_steps")
        yield Contradiction("stragglers", others, problem, advice=advice)


def check_stragglers(share: float, participants: int) -> None:
    """Refuse a share of stragglers that is no client of a round.

    Args:
        share: Share of a round's clients that are stragglers.
        participants: Number of clients that take part in a round.

    Raises:
        FedloomError: If the share is above 0, and its number of clients is rounded to 0.
    """
    if share > 0 and not round(share * participants):
        raise FedloomError(
            f"stragglers: is {share:g}, which is no client of {participants} in a round",
            f"0, or {1 / participants:.3g} and more",
        )


def check_participation(added: Collection[str], training: Training) -> None:
    """Refuse settings that decide who takes part in rounds, and contradict each other.

    Args:
        added: The keys of an entry that add something to the method, such as ``devices``.
        training: Settings of training.

    Raises:
        FedloomError: For the first contradiction.
    """
    timed = {
        "asynchronous": "asynchronous" in added,
        "over_selection": training.over_selection > 1,
        "deadline": training.deadline is not None,
    }
    for key, is_set in timed.items():
        if is_set and "devices" not in added:
            problem = f"{key}: is set, but without devices nothing takes time"
            raise FedloomError(problem, advice=f"set devices, or leave {key} out")
    if training.stragglers and "devices" in added:
        problem = f"stragglers: is {training.stragglers:g}, but devices decide who is slow"
        raise FedloomError(problem, advice="leave out stragglers, or devices")
    unused = [key for key in ("selection", "upload_filters", "aggregation") if key in added]
    unused += [key for key in ("over_selection", "deadline") if timed[key]]
    for key in unused:
        if "asynchronous" in added:
            problem = f"{key}: is set, but an asynchronous server has none"
            raise FedloomError(problem, advice=f"leave out {key}, or asynchronous")


def augmentation_steps(text: str) -> list[tuple[str, float]]:
    """Return the steps of ``Training.augmentation`` in order, each with its degrees or 0.

    Args:
        text: The value of the key.

    Raises:
        ValueError: For an unknown step, and for a step that appears twice.
    """
    steps: list[tuple[str, float]] = []
    for step in [] if text == "none" else text.split("-"):
        match = re.fullmatch(r"(crop|flip|turn)|rotate(\d{1,3})", step)
        if not match or int(match[2] or 1) not in range(1, 181):
            raise ValueError(f"{step!r} is unknown")
        name = match[1] or "rotate"
        if name in dict(steps):
            raise ValueError(f"{name} appears twice")
        steps.append((name, float(match[2] or 0)))
    return steps


class Need(NamedTuple):
    """Condition under which a key has an effect.

    Attributes:
        text: In words.
        keys: The keys that decide it.
    """

    text: str
    keys: tuple[str, ...]


def idle_keys(training: Training) -> dict[str, Need]:
    """Return what keys without an effect need, by key; keys with their default are left out."""
    schedule, patience = training.schedule, training.early_stopping
    has_decay = schedule not in ("constant", "cosine")
    has_change = schedule != "constant" or training.warmup_rounds > 1
    decay = Need("schedule: exponential, step or drops", ("schedule",))
    change = Need("a schedule, or warmup_rounds above 1", ("schedule", "warmup_rounds"))
    more_rounds = Need("more rounds", ("rounds",))
    conditions = {
        "early_stopping": (patience is None or patience < training.rounds, more_rounds),
        "momentum": (training.optimizer == "sgd", Need("optimizer: sgd", ("optimizer",))),
        "lr_decay": (has_decay, decay),
        "lr_decay_every": (
            schedule == "step" and training.lr_decay_every < training.rounds,
            more_rounds if schedule == "step" else Need("schedule: step", ("schedule",)),
        ),
        "schedule": (
            not has_decay or training.lr_decay != 1,
            Need("an lr_decay other than 1", ("lr_decay",)),
        ),
        "schedule_by": (has_change, change),
        "over_selection": (
            training.participation < 1,
            Need("participation below 1", ("participation",)),
        ),
        "partial_work": (training.stragglers > 0, Need("stragglers above 0", ("stragglers",))),
    }
    return {
        key: need
        for key, (has_effect, need) in conditions.items()
        if not has_effect and getattr(training, key) != getattr(Training, key)
    }


def learning_rate(training: Training, round_: int, step: int = 0, steps: int = 1) -> float:
    """Return the learning rate of a step in round t = 1, 2, ..., R.

    See ``schedule``, ``schedule_by`` and ``warmup_rounds`` of `Training`.

    Args:
        training: The training settings.
        round_: The round t.
        step: Number of the pass's earlier steps, for a schedule by steps.
        steps: Number of all steps of the pass.
    """
    if training.schedule_by == "rounds":
        step, steps = 0, 1
    rate = _scheduled(training, round_ - 1 + step / steps)
    progress = round_ - 1 + (step + 1) / steps
    warmup = training.warmup_rounds
    return rate * progress / warmup if warmup > 1 and progress < warmup else rate


def _scheduled(training: Training, progress: float) -> float:
    """Return the rate after a number of rounds, a part of a round included, without warm-up."""
    if training.schedule == "cosine":
        return training.lr * (1 + math.cos(math.pi * progress / training.rounds)) / 2
    if training.schedule == "drops":
        return training.lr * training.lr_decay ** sum(
            4 * progress >= k * training.rounds for k in (2, 3)
        )
    if training.schedule == "exponential":
        return training.lr * math.pow(training.lr_decay, progress)
    if training.schedule == "step":
        return training.lr * math.pow(training.lr_decay, progress // training.lr_decay_every)
    return training.lr
