"""The simulated time of a client's round, from its operations, its bytes and its device."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from fl.api import trees
from fl.api.participation import LOSS_BYTES, DeviceTable
from fl.base.schema import GLOBAL
from fl.engine.evaluate import ViewOutputs
from fl.engine.operations import (
    OperationCounter,
    ShortRound,
    active_parts,
    count_stated_steps,
    short_round,
)
from fl.engine.simulation import Simulation
from fl.engine.state import State


@dataclass(frozen=True)
class Question:
    """What clients need for an answer on the shared model, before a round.

    Attributes:
        down: Bytes that each receives.
        up: Bytes that each sends.
        seconds: Seconds of each, float64 [K].
    """

    down: float
    up: float
    seconds: np.ndarray


@dataclass(frozen=True, eq=False)
class Clock:
    """Knows what a round costs each client, and how long it takes.

    Attributes:
        simulation: The run, without devices, selection and asynchronous server.
        devices: The devices of all clients; None: nothing takes time.
        upload_bytes: Bytes that a client sends in a round for the selection, beside the method's.
    """

    simulation: Simulation
    devices: DeviceTable | None
    upload_bytes: int = 0
    _measured: dict[Hashable, ShortRound] = field(default_factory=dict)
    _seconds: dict[Hashable, np.ndarray] = field(default_factory=dict)

    @cached_property
    def state(self) -> State:
        """The state before round 1."""
        return self.simulation.begin()

    def message_bytes(self, round_: int) -> tuple[float, float]:
        """Return the bytes that a client receives in a round, and those that it sends."""
        short = self._short_round(round_)
        return float(short.down), float(short.up + self.upload_bytes)

    def operations(self, round_: int) -> np.ndarray:
        """Return the floating-point operations of each client in a round, float64 [clients]."""
        short, data = self._short_round(round_), self.simulation.client_data
        by_type = sum(work.flops_by_client(round_) for work in short.work)
        operations = np.zeros(data.clients)
        types = short.typical.max() + 1
        operations[data.participants] = np.broadcast_to(by_type, types)[short.typical]
        return operations

    def _short_round(self, round_: int) -> ShortRound:
        parts = active_parts(self.simulation.method, round_)
        if parts not in self._measured:
            self._measured[parts] = short_round(self.simulation, self.state, round_)
        return self._measured[parts]

    def seconds(self, round_: int) -> np.ndarray:
        """Return the seconds that each client would take for a round, float64 [clients]."""
        if self.devices is None:
            return np.zeros(self.simulation.client_data.clients)
        steps = tuple(
            phase.is_active(round_)
            and tuple(count_stated_steps(pass_, round_) for pass_ in phase.passes)
            for phase in self.simulation.method.phases
        )
        if steps not in self._seconds:
            self._seconds.clear()  # Mostly all rounds are alike; each takes room for all clients.
            self._seconds[steps] = self.devices.seconds(
                *self.message_bytes(round_), self.operations(round_)
            )
        return self._seconds[steps]

    def question(self, clients: np.ndarray, gradients: bool) -> Question:
        """Return what clients need to say how well the shared model does on their samples.

        Args:
            clients: Their ids, int64 [K].
            gradients: Whether they send gradients, and not only losses.
        """
        shared = self._shared_variables
        down = float(trees.nbytes(shared))
        up = float(trees.nbytes(shared["params"])) if gradients else LOSS_BYTES
        if self.devices is None:
            return Question(down, up, np.zeros(len(clients)))
        sizes = self.simulation.client_data.sizes("train")
        operations = self._gradient_operations if gradients else self._sample_operations
        seconds = self.devices.seconds(down, up, operations * sizes)
        return Question(down, up, seconds[clients])

    @cached_property
    def _shared_variables(self) -> trees.Tree:
        variables: trees.Tree = self.simulation.method.views[GLOBAL](self.state.server, None)
        return variables

    @cached_property
    def _sample_operations(self) -> int:
        """Floating-point operations of the shared model for one sample."""
        variables, arrays = self._shared_variables, self.simulation.arrays
        x = arrays.inputs(torch.zeros(1, dtype=torch.int64, device=arrays.device))
        with torch.no_grad(), OperationCounter() as counter:
            self.simulation.network.eval(variables["params"], variables["buffers"], x)
        operations: int = counter.total
        return operations

    @cached_property
    def _gradient_operations(self) -> int:
        """Floating-point operations of a gradient of the shared model for one sample."""
        run = self.simulation
        view, data = run.method.views[GLOBAL], run.client_data
        models = ViewOutputs(view, False, run, self.state, data, run.task)
        with OperationCounter() as counter:
            models.gradient(int(data.participants[0]), np.zeros(1, np.int64))
        operations: int = counter.total
        return operations
