"""One loss of a method on made-up samples, before anything is trained.

Whether a method, a model, the terms of a study and a batch size fit each other shows only when they
are combined: a term may need a whole model that the server does not send, batch normalisation may
get a single value. Here they are combined when the config is read, for one client and a few random
samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch

from fl.api.method import COUNTS, PAYLOAD, Method, Pass, Phase, Sampling, Setting
from fl.api.network import Network
from fl.api.task import Task
from fl.api.trees import Tree, apply
from fl.base import faults
from fl.base.errors import FedloomError
from fl.data.modality import Modality
from fl.engine.arrays import Arrays
from fl.engine.assembly import Composed, build
from fl.engine.batches import schedule
from fl.engine.loader import ask
from fl.engine.several import SeveralArrays, augmented
from fl.plan.added import Added
from fl.plan.components import Inputs
from fl.plan.tried import ENOUGH, TooFew
from fl.pytorch.sparing import Sparing


class Once(Network):
    """A network whose first weights are drawn once: nobody trains them here."""

    def init(self, seed: int) -> dict[str, Any]:
        """As `Network.init`."""
        made = self.__dict__.setdefault("_made", {})
        if seed not in made:
            made[seed] = super().init(seed)
        return {kind: dict(found) for kind, found in made[seed].items()}


Found = TypeVar("Found")


def _sparing(work: Callable[[], Found]) -> Found:
    """What is found without computing convolutions or, if that does not do, with them."""
    try:
        with Sparing():  # type: ignore[no-untyped-call]
            return work()
    except Exception:  # Values that nobody asked for may be refused; if not, it is raised again.
        return work()


class Stage:
    """A model, and what it sees of a data set, on which methods are rehearsed."""

    def __init__(self, network: Network, data: Inputs) -> None:
        self.network, self._data = network, data
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
        size = setting.training.batch_size
        method = _sparing(lambda: build(added.composed, setting))
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
                raise TooFew(trouble if isinstance(trouble, str) else faults.told(trouble), more)
        if isinstance(trouble, Exception):
            raise trouble

    def _trouble(self, method: Method, setting: Setting, size: int) -> Exception | str:
        """What goes wrong with a batch of that size: an exception, a value that is not finite, or
        ``""``.
        """

        def losses() -> str:
            found = [
                self._loss(method, phase, part, setting, size)
                for phase in method.phases
                for part in phase.passes
                if isinstance(part, Pass)
            ]
            return "" if all(map(math.isfinite, found)) else "the loss is not finite"

        try:
            # A value that is not finite matters in small batches only, and shows in real ones.
            few = setting.training.batch_size < ENOUGH
            return (losses() if few else _sparing(losses)) and losses()
        except Exception as error:
            return error

    def _loss(self, method: Method, phase: Phase, part: Pass, setting: Setting, size: int) -> float:
        by_class = part.sampling.per_class and Sampling(
            per_class=min(part.sampling.per_class, ENOUGH)
        )
        count, training = setting.classes if by_class else size, setting.training
        arrays = self._samples(count, training.augmentation, setting.task)
        once = replace(training, batch_size=size, local_epochs=1, local_steps=None)
        keyed = setting.network.random or arrays.random or part.sampling.keyed
        held = np.arange(count)
        drawn = schedule(
            *([held], [0], once, 0, 1),
            sampling=by_class or None,
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
        server, client = method.init(self.variables)
        counts = torch.ones(setting.classes, dtype=torch.int64)
        client = {**client, "id": torch.tensor(0), COUNTS: counts}
        if phase.payload:
            client[PAYLOAD] = phase.payload(server, client)
        server = phase.send(server) if phase.send else server
        work = part.begin(server, client)
        params = apply(lambda w: w.detach().requires_grad_(), work["params"])
        work = {**work, "params": params}
        loss, _ = part.loss(server, work, ask(part.reference, server, work, batch))
        if not loss.requires_grad:
            raise FedloomError("a pass trains no weight of this model")
        return float(loss.detach())

    @cached_property
    def variables(self) -> Tree:
        """The model's, as it begins."""
        return self.network.init(0)

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


def _shape(spec: Any) -> Any:
    """A spec without its fractions."""
    if isinstance(spec, Mapping):
        return {key: _shape(value) for key, value in spec.items()}
    if isinstance(spec, list | tuple):
        return [_shape(value) for value in spec]
    return None if isinstance(spec, float) else spec
