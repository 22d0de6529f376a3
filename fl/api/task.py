"""Tasks: the loss of training and the metrics that are reported for a data set.

A data set names its task, a file of ``fl/api/tasks``. Code that reads labels without the functions
of the task declares which tasks it supports, see `tasks_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fl.api.protocols import Batch

Marked = TypeVar("Marked")

DEFAULT = "classification"
"""Task of data sets and components that name none."""

ALL_TASKS = ("any",)
"""The ``tasks`` of a component that never reads labels itself, and so supports every task."""


@dataclass(frozen=True)
class Task:
    """Task: its labels, the loss of training, and the metrics of a model.

    Attributes:
        name: Name in data sets.
        label_name: Its labels in words, for messages.
        labels: Name of the array with labels in a prepared data set: whole numbers [samples] or
            [samples, ...], or targets, float [samples].
        metrics: Metrics that a study can choose, the usual one first; `conclude` returns them all.
        chunk: Largest number of samples that are evaluated together.
        loss: (outputs, batch) -> a scalar, for one client. ``outputs`` are the network's; ``batch``
            has ``y`` and ``weight`` [b], where weight 0 leaves a sample out.
        look: (outputs, labels) -> a tree of [b, ...], the values of each sample from which metrics
            are computed.
        conclude: (values, sizes, classes) -> arrays [clients] by metric, with ``loss`` among them.
            ``values`` are those of `look` for the samples of one client after another, ``sizes``
            the number of samples of each client, at least 1.
        invent: (count, classes, shape) -> labels [count, ...] of random samples on which a model
            with inputs of that shape is tried.
        has_classes: Whether each sample has one class, so that samples can be counted by class.
        supports_mixed_labels: Whether ``loss`` applies the mixes of `fl.api.alteration`.
        model_task: Another task whose models serve this one too, with as many outputs as the data
            set has ``classes``; "" if there is none.
        loss_gradient: (outputs, batch) -> ``loss`` of each client of a stack, [clients], and its
            gradient by the outputs, [clients, b, ...]; or None, and autograd computes it.
    """

    name: str
    label_name: str
    labels: str
    metrics: tuple[str, ...]
    chunk: int
    loss: Callable[[Tensor, Batch], Tensor]
    look: Callable[[Tensor, Tensor], dict[str, Tensor]]
    conclude: Callable[[Mapping[str, Tensor], np.ndarray, int], dict[str, np.ndarray]]
    invent: Callable[[int, int, tuple[int, ...]], Any]
    has_classes: bool = True
    supports_mixed_labels: bool = False
    model_task: str = ""
    loss_gradient: Callable[[Tensor, Batch], tuple[Tensor, Tensor] | None] | None = None


def weighted_mean(values: Tensor, batch: Batch) -> Tensor:
    """Return sum_i w_i v_i / sum_i w_i over the batch; 0 if all weights are 0.

    Args:
        values: v, one for each sample, [..., b].
        batch: The batch, with weights w, [..., b].
    """
    total = batch["weight"].sum(-1)
    mean: Tensor = (values * batch["weight"]).sum(-1) / (total + (total == 0))
    return mean


def client_means(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the mean over the samples of each client in double precision, [clients, ...].

    Args:
        values: [samples, ...], one client after another.
        sizes: Number of samples of each client, at least 1, [clients].
    """
    import numpy as np  # Commands that only name tasks do without.

    sums = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=0, dtype=np.float64)
    return np.asarray(sums / sizes.reshape(-1, *[1] * (values.ndim - 1)))


def tasks_of(target: Any) -> tuple[str, ...]:
    """Return the tasks that a method, term, model or partition scheme supports.

    Its attribute ``tasks`` has them: names of tasks, or ``any`` (`ALL_TASKS`). Without that
    attribute it supports `DEFAULT` only, and needs class labels.

    Args:
        target: The component's class or function, or an instance.
    """
    tasks: str | Sequence[str] = getattr(target, "tasks", (DEFAULT,))
    return (tasks,) if isinstance(tasks, str) else tuple(tasks)


def serves(target: Any, task: str) -> bool:
    """Whether ``target`` supports the task."""
    supported = tasks_of(target)
    return supported == ALL_TASKS or task in supported


def for_any_task(function: Marked) -> Marked:
    """Mark a function, such as a partition scheme, as one that supports every task."""
    setattr(function, "tasks", ALL_TASKS)  # noqa: B010 - functions have no such attribute
    return function
