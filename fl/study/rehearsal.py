"""One loss of a method on made-up samples, before anything is trained.

Whether a method, a model, the terms of a study and a batch size fit each other shows only when they
are combined: a term may need a whole model that the server does not send, batch normalisation may
get a single value. Here they are combined when the config is read, for one client and a few random
samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fl.data.batches import Arrays, schedule
from fl.data.modality import Modality
from fl.data.several import SeveralArrays, augmented
from fl.errors import FedloomError
from fl.method import COUNTS, GIVEN, Draws, Exchange, Method, Pass, Setting
from fl.network import Network
from fl.simulation.assembly import Composed, build
from fl.simulation.loader import ask
from fl.study.added import Added
from fl.study.components import Inputs
from fl.task import Task
from fl.trees import Tree, apply

ENOUGH = 4
"""Samples in a batch from which on more make no difference to whether a step can be taken: a
method that halves its batches gives batch normalisation two values to work on.
"""


class TooFew(FedloomError):
    """A batch has too few samples.

    Attributes:
        least: How many would do.
    """

    def __init__(self, problem: str, least: int) -> None:
        self.least = least
        super().__init__(problem)


class Stage:
    """A model, and what it sees of a data set, on which methods are rehearsed."""

    def __init__(self, network: Network, data: Inputs) -> None:
        self._network, self._data = network, data
        self._done: set[str] = set()

    def rehearse(self, composed: Composed, setting: Setting, spec: Mapping[str, Any]) -> None:
        """Build a method and compute the loss of each of its passes.

        A method that differs from an earlier one only in fractions, which decide no shape, is built
        but its loss is not computed again. A loss that is not finite is an error only where a
        larger batch mends it; other causes show in training.

        Args:
            spec: What the method is composed of.

        Raises:
            TooFew: If more samples in a batch would help.
            FedloomError: If the method uses nothing of what the study adds to it.
            Exception: Whatever building the method or computing the loss raises.
        """
        added = Added(composed)
        method, size = build(added.composed, setting), setting.training.batch_size
        kind = json.dumps([_shape(spec), min(size, ENOUGH), setting.training.augmentation])
        if kind in self._done:
            return
        trouble: Exception | str = ""
        for fewer in sorted({min(size, ENOUGH // 2), min(size, ENOUGH)}):
            trouble = self._trouble(method, setting, fewer)
            if not trouble:
                added.check(spec)
                self._done.add(kind)
                return
        for more in range(size + 1, ENOUGH + 1):
            if not self._trouble(method, setting, more):
                raise TooFew(trouble if isinstance(trouble, str) else told(trouble), more)
        if isinstance(trouble, Exception):
            raise trouble

    def _trouble(self, method: Method, setting: Setting, size: int) -> Exception | str:
        """What goes wrong with a batch of that size: an exception, a value that is not finite, or
        ``""``.
        """
        try:
            losses = [
                self._loss(method, exchange, part, setting, size)
                for exchange in method.exchanges
                for part in exchange.passes
                if isinstance(part, Pass)
            ]
        except Exception as error:
            return error
        return "" if all(map(math.isfinite, losses)) else "the loss is not finite"

    def _loss(
        self, method: Method, exchange: Exchange, part: Pass, setting: Setting, size: int
    ) -> float:
        by_class = part.draws.per_class and Draws(per_class=min(part.draws.per_class, ENOUGH))
        count, training = setting.classes if by_class else size, setting.training
        arrays = self._samples(count, training.augmentation, setting.task)
        once = replace(training, batch_size=size, local_epochs=1, local_steps=None)
        keyed = setting.network.random or arrays.random or part.draws.keyed
        held = np.arange(count)
        drawn = schedule(
            *([held], [0], once, 0, 1),
            draws=by_class or None,
            labels=[held % setting.classes],
            classes=setting.classes,
            keyed=keyed,
        )
        key = drawn.keys()
        batch = arrays.batch(
            torch.from_numpy(drawn.index[0, 0]),
            torch.from_numpy(drawn.weight[0, 0]),
            None if key is None else torch.from_numpy(key[0, 0]),
        )
        server, client = method.init(self._variables)
        counts = torch.ones(setting.classes, dtype=torch.int64)
        client = {**client, "id": torch.tensor(0), COUNTS: counts}
        if exchange.give:
            client[GIVEN] = exchange.give(server, client)
        server = exchange.send(server) if exchange.send else server
        work = part.begin(server, client)
        work["params"] = apply(lambda w: w.detach().requires_grad_(), work["params"])
        loss, _ = part.loss(server, work, ask(part.reference, server, work, batch))
        if not loss.requires_grad:
            raise FedloomError("a pass trains no weight of this model")
        return float(loss.detach())

    @cached_property
    def _variables(self) -> Tree:
        return self._network.init(0)

    def _samples(self, count: int, augmentation: str, task: Task) -> Arrays:
        """Random inputs of the data set's shape; tokens where it has them."""
        kinds, draw = self._data.kinds, np.random.default_rng(0)
        chosen = augmented(kinds, augmentation) if self._data.parts else {kinds[0]: augmentation}
        y = task.invent(count, self._data.classes, kinds[0].shape)

        def made(kind: Modality) -> Arrays:
            shape = (count, *kind.shape)
            if kind.tokens:
                x = draw.integers(kind.tokens, size=shape)
            else:
                x = draw.standard_normal(shape).astype(np.float32)
            return Arrays(x, y, None, augmentation=chosen[kind])

        found = self._data.tree(made)
        return SeveralArrays(found) if self._data.parts else found


def told(error: Exception) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _shape(spec: Any) -> Any:
    """A spec without its fractions."""
    if isinstance(spec, Mapping):
        return {key: _shape(value) for key, value in spec.items()}
    if isinstance(spec, list | tuple):
        return [_shape(value) for value in spec]
    return None if isinstance(spec, float) else spec
