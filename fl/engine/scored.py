"""Outputs of a view for evaluation: of the shared model, or of every client's own model.

A pass through the shared model contains samples of many clients, and a stacked pass many clients'
models. If outputs of a sample depend on other samples (a `Predictor` without `is_per_sample`, or
normalisation by the batch in evaluation mode), each client's samples of a split are a pass of their
own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Predictor, View
from fl.api.network import Network
from fl.api.task import Task
from fl.api.trees import Tree
from fl.engine.arrays import Arrays
from fl.engine.client_data import ClientData
from fl.engine.state import State

logger = logging.getLogger(__name__)

CHUNK = 1024
"""Samples of a client that a view looks at together, to remember them."""

ROOM = 2**25
"""Bytes of clients' trees that are stacked, at most. So large models go one after another, which on
a CPU is faster than batched convolutions.
"""


@dataclass(frozen=True)
class Portion:
    """What is scored as one: a client's samples of a split."""

    client: int
    split: str
    samples: np.ndarray


Conclude = Callable[[Tree, np.ndarray], dict[str, np.ndarray]]
"""(seen, sizes) -> arrays [portions, ...], where ``seen`` has the samples of portions of those
``sizes``, one portion after another.
"""


class Scored:
    """One view of a method after a round."""

    def __init__(
        self,
        view: View,
        personal: bool,
        network: Network,
        state: State,
        arrays: Arrays,
        data: ClientData,
        task: Task,
    ) -> None:
        def evaluated(variables: Tree, memory: Tree, x: Tensor) -> Tensor:
            return network.eval(variables["params"], variables["buffers"], x).outputs

        plain = Predictor(view, evaluated, is_per_sample=True)
        self._predictor = view if isinstance(view, Predictor) else plain
        self._state, self._arrays, self._data, self._task = state, arrays, data, task
        self._away = frozenset(data.away)
        self._shared = None if personal else view(state.server, None)
        look = self._predictor.look
        # Whether all clients have one model: it scores the same samples the same.
        self.alike = self._shared is not None and look is None
        self._apart = (
            look is not None or not self._predictor.is_per_sample or network.uses_batch_statistics
        )
        self._stackable = True

    def serves(self, client: int) -> bool:
        """Whether the client has a model: one that never takes part has none of its own."""
        everybody = self._shared is not None or self._predictor.serves_absent_clients
        return everybody or client not in self._away

    @torch.no_grad()
    def looked(self, portions: Sequence[Portion]) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Some of the portions, by their places, and what the task sees of their samples, in that
        order; until all are done.
        """
        if self._apart:
            for client, places in _by_client(portions).items():
                variables = self._variables(client)
                memory = self._memory(variables, client)
                for place in places:
                    yield [place], self._seen(variables, portions[place].samples, memory)
        elif self._shared is not None:
            samples = np.concatenate([portion.samples for portion in portions])
            yield list(range(len(portions))), self._seen(self._shared, samples, {})
        else:
            yield from self._personal(portions)

    def _personal(
        self, portions: Sequence[Portion]
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """As many clients at a time as the task takes samples, and as have room in a stack."""
        room = ROOM // max(1, trees.nbytes(self._state.server) + self._state.client_states.nbytes)
        places = _by_client(portions)
        samples = {
            client: np.concatenate([portions[place].samples for place in its])
            for client, its in places.items()
        }
        # Of like size together, as all get as many samples as the first.
        left = sorted(samples, key=lambda client: (-len(samples[client]), client))
        while left:
            width = max(1, min(room, self._task.chunk // len(samples[left[0]])))
            group, left = left[:width], left[width:]
            rows = [place for client in group for place in places[client]]
            yield rows, self._group(group, [samples[client] for client in group])

    def _group(self, group: list[int], samples: list[np.ndarray]) -> dict[str, Tensor]:
        """What the task sees of some clients' samples, one client after another."""
        if len(group) > 1 and self._stackable:
            try:
                return self._stacked(group, samples)
            except Exception as error:  # What vmap cannot do, of which there is a way without.
                self._stackable = False
                reason = " ".join(str(error).split())[:200]
                logger.debug("models are scored one by one (%s: %s)", type(error).__name__, reason)
        pairs = zip(group, samples, strict=True)
        return trees.concatenate([self._seen(self._variables(k), its, {}) for k, its in pairs])

    def _stacked(self, group: list[int], samples: list[np.ndarray]) -> dict[str, Tensor]:
        """As `_group`, in one pass; clients with fewer samples than the first repeat theirs."""
        sizes, device = np.array(list(map(len, samples))), self._arrays.device
        index = np.stack([np.resize(its, sizes[0]) for its in samples])
        real = torch.from_numpy(np.arange(sizes[0]) < sizes[:, None]).to(device)
        x = self._arrays.inputs(torch.from_numpy(index).to(device))

        def outputs(server: Tree, client: Tree, batch: Tree) -> dict[str, Tensor]:
            variables = self._predictor(server, client)
            return {"outputs": self._predictor.predict(variables, {}, batch["x"])}

        clients = self._state.some(group, device)
        scores = trees.vmap(outputs, (None, 0, 0))(self._state.server, clients, {"x": x})
        labels = self._arrays.labels(torch.from_numpy(np.concatenate(samples)).to(device))
        return self._task.look(scores["outputs"][real], labels)

    def _variables(self, client: int) -> Tree:
        if self._shared is not None:
            return self._shared
        return self._predictor(self._state.server, self._state.client(client, self._arrays.device))

    def _seen(self, variables: Tree, samples: np.ndarray, memory: Tree) -> dict[str, Tensor]:
        """What the task sees of one model's outputs."""
        seen, size = [], self._task.chunk
        for begin in range(0, len(samples), size):
            index = torch.from_numpy(samples[begin : begin + size]).to(self._arrays.device)
            outputs = self._predictor.predict(variables, memory, self._arrays.inputs(index))
            seen.append(self._task.look(outputs, self._arrays.labels(index)))
        return trees.concatenate(seen)

    def _memory(self, variables: Tree, client: int) -> Tree:
        """What the view remembers of a client's samples."""
        look, splits = self._predictor.look, self._data.samples
        if look is None:
            return {}
        known: dict[str, Tree] = {}
        for split in self._predictor.memory_splits:
            if split not in splits or not len(splits[split][client]):
                continue
            index = torch.from_numpy(splits[split][client]).to(self._arrays.device)
            looked = [
                look(variables, self._arrays.batch(numbers, torch.ones_like(numbers)))
                for numbers in index.split(CHUNK)
            ]
            known[split] = trees.concatenate(looked)
        return self._predictor.build_memory(variables, known)


def _by_client(portions: Sequence[Portion]) -> dict[int, list[int]]:
    """The places of each client's portions."""
    places: dict[int, list[int]] = {}
    for place, portion in enumerate(portions):
        places.setdefault(portion.client, []).append(place)
    return places


def scored(
    models: Scored, portions: Sequence[Portion], conclude: Conclude
) -> dict[str, np.ndarray]:
    """What is concluded of each portion, [portions, ...] by name."""
    chosen, spread = list(portions), np.arange(len(portions))
    if models.alike:
        first: dict[int, int] = {}
        places = [first.setdefault(id(portion.samples), len(first)) for portion in portions]
        spread = np.array(places)
        chosen = [portions[place] for place in np.unique(spread, return_index=True)[1]]
    concluded: dict[str, np.ndarray] = {}
    for rows, seen in models.looked(chosen):
        sizes = np.array([len(chosen[row].samples) for row in rows])
        for name, values in conclude(seen, sizes).items():
            if name not in concluded:
                concluded[name] = np.zeros((len(chosen), *values.shape[1:]))
            concluded[name][rows] = values
    return {name: values[spread] for name, values in concluded.items()}
