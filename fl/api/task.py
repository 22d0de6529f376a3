"""What a data set asks of a model: the loss of training and the metrics that are reported.

A data set names its task, a file of ``fl/api/tasks``. Code that reads labels in another way than
by the task's own functions says for which tasks it is made, see `tasks_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Made = TypeVar("Made")

DEFAULT = "classification"
"""The task of what names none."""

ANY = ("any",)
"""The ``tasks`` of what never looks at labels itself, and so serves every task."""


@dataclass(frozen=True)
class Task:
    """A task: what labels are, what training minimises, what a model is scored by.

    Attributes:
        name: As data sets write it.
        given: What its labels are, in words.
        labels: The array of a prepared data set with the labels, int [samples] or [samples, ...].
        metrics: Those that a study may be about, the usual one first; `conclude` gives them all.
        chunk: How many samples are evaluated together, at most.
        loss: (outputs, batch) -> a scalar, for one client. ``outputs`` are the network's; ``batch``
            has ``y`` and ``weight`` [b], where 0 leaves a sample out.
        look: (outputs, labels) -> a tree of [b, ...], what must be known of each sample to score a
            model on it.
        conclude: (seen, sizes, classes) -> by metric, among them ``loss``, an array [clients], from
            what `look` found; ``seen`` has the samples of one client after another, ``sizes`` says
            how many each has, one at least.
        invent: (count, classes, shape) -> labels [count, ...] of samples that are made up to try a
            model whose inputs have that shape.
        counted: Whether each sample has one class, so that samples can be counted by class.
        mixes: Whether ``loss`` heeds labels that are mixed, see `fl.api.mixed_labels`.
    """

    name: str
    given: str
    labels: str
    metrics: tuple[str, ...]
    chunk: int
    loss: Callable[[Tensor, Mapping[str, Any]], Tensor]
    look: Callable[[Tensor, Tensor], dict[str, Tensor]]
    conclude: Callable[[Mapping[str, Tensor], np.ndarray, int], dict[str, np.ndarray]]
    invent: Callable[[int, int, tuple[int, ...]], Any]
    counted: bool = True
    mixes: bool = False


def weighted_mean(values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """sum_i w_i v_i / sum_i w_i over the batch; 0 if nothing has a weight.

    Args:
        values: v, one for each sample, [..., b].
    """
    total = batch["weight"].sum(-1)
    mean: Tensor = (values * batch["weight"]).sum(-1) / (total + (total == 0))
    return mean


def means(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The mean over the samples of each client in double precision, [clients, ...].

    Args:
        values: [samples, ...], one client after another.
        sizes: How many samples each client has, one at least, [clients].
    """
    import numpy as np  # Commands that only name tasks do without.

    sums = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=0, dtype=np.float64)
    return np.asarray(sums / sizes.reshape(-1, *[1] * (values.ndim - 1)))


def tasks_of(target: Any) -> tuple[str, ...]:
    """The tasks that a method, term, model or partition scheme is made for; or an instance of one.

    Its attribute ``tasks`` says it: names of tasks, or `ANY`. Without that attribute it is made for
    `DEFAULT`, and needs class labels.
    """
    tasks: tuple[str, ...] = getattr(target, "tasks", (DEFAULT,))
    return tasks


def serves(target: Any, task: str) -> bool:
    """Whether ``target`` is made for the task."""
    made_for = tasks_of(target)
    return made_for == ANY or task in made_for


def for_any_task(made: Made) -> Made:
    """Mark a function, such as a partition scheme, as one that serves every task."""
    setattr(made, "tasks", ANY)  # noqa: B010 - functions have no such attribute of their own
    return made
