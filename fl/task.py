"""What a data set asks of a model: the loss of training and the metrics that are reported.

A data set says its task by its name, a file of ``fl/tasks``. Whatever reads labels in another way
than by the task's own functions says for which tasks it is made, see `tasks_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Made = TypeVar("Made")

DEFAULT = "classification"
"""The task of what does not say any."""

ANY = ("any",)
"""Said by what never looks at labels itself, and so serves every task."""


@dataclass(frozen=True)
class Task:
    """A task: what labels are, what training minimises, what a model scores.

    name: as data sets say it.
    given: what its labels are, in words.
    labels: the array of a prepared data set that has them, int [samples] or [samples, ...].
    metrics: those that a study may be about, the usual one first; `conclude` gives them all.
    chunk: how many samples are evaluated together, at most.
    loss(outputs, batch) -> scalar
        For ONE client; ``outputs`` are the network's, ``batch`` has ``y`` and ``weight`` [b], of
        which 0 leaves a sample out.
    look(outputs, labels) -> tree of [b, ...]
        What is to be known of each sample to score a model on it.
    conclude(seen, classes) -> values by metric
        Given what `look` found of all samples of a client; ``loss`` is one of them.
    invent(count, classes, shape) -> labels [count, ...]
        Of samples that are made up to try a model, whose inputs have that shape.
    counted: whether each sample is of one class, so that samples can be counted by class.
    augmented: whether labels stay right when an image is cropped and mirrored.
    """

    name: str
    given: str
    labels: str
    metrics: tuple[str, ...]
    chunk: int
    loss: Callable[[Tensor, Mapping[str, Any]], Tensor]
    look: Callable[[Tensor, Tensor], dict[str, Tensor]]
    conclude: Callable[[Mapping[str, Tensor], int], dict[str, float]]
    invent: Callable[[int, int, tuple[int, ...]], Any]
    counted: bool = True
    augmented: bool = True


def weighted_mean(values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """sum_i w_i v_i / sum_i w_i over the batch, for one value per sample, [b]; 0 without weight."""
    total = batch["weight"].sum()
    mean: Tensor = (values * batch["weight"]).sum() / (total + (total == 0))
    return mean


def tasks_of(target: Any) -> tuple[str, ...]:
    """The tasks that a method, term, model or partition scheme is made for, or an instance of it.

    It says so by the attribute ``tasks``, names of tasks or `ANY`; without one it is made for
    `DEFAULT`, and asks for class labels.
    """
    found: tuple[str, ...] = getattr(target, "tasks", (DEFAULT,))
    return found


def serves(target: Any, task: str) -> bool:
    """Whether it is made for the task."""
    made_for = tasks_of(target)
    return made_for == ANY or task in made_for


def for_any_task(made: Made) -> Made:
    """Mark a function, such as a partition scheme, as one that serves every task."""
    setattr(made, "tasks", ANY)  # noqa: B010 - functions have no such attribute of their own
    return made
