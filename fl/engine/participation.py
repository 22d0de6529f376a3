"""Rounds whose participants depend on devices, on what the server knows of clients, or on time.

The server selects clients among those that are there. It goes on as soon as the needed number of
them has answered, everybody has answered or failed, or the deadline has passed; it always waits for
a first answer. What comes later is lost, and the client is as if it had not trained.

What decides the next round is in `State.participation`: ``seconds`` since the begin, and the
``memory`` of the selection. A checkpoint has it, so a run that is continued selects the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method
from fl.api.participation import DeviceTable, Offer, Outcome, Selection
from fl.api.trees import Tree
from fl.base import rng
from fl.base.errors import FedloomError
from fl.base.schema import GLOBAL
from fl.engine.clock import Clock, Question
from fl.engine.evaluate import Portion, ViewOutputs, score_portions
from fl.engine.simulation import Simulation
from fl.engine.state import RoundSchedule, RoundTimes, State


@dataclass(frozen=True, eq=False)
class SelectedRounds:
    """Rounds of a server that selects clients and waits for them.

    Attributes:
        clock: What a round costs.
        devices: The devices of all clients; None: nothing takes time.
        selection: The selection; None: uniformly at random.
    """

    clock: Clock
    devices: DeviceTable | None
    selection: Selection | None

    def begin(self, state: State) -> Tree:
        """Return `State.participation` before round 1."""
        memory = self.selection.init(state.client_states.count) if self.selection else {}
        return {"seconds": torch.zeros((), dtype=torch.float64), "memory": memory}

    def count(self, simulation: Simulation) -> int:
        """Return the number of clients whose work the server asks for in a round."""
        return simulation.training.participants(len(simulation.client_data.participants))

    def schedule(self, simulation: Simulation, round_: int, state: State) -> RoundSchedule:
        """Select the clients of a round, and return its schedule."""
        scheduler, training = simulation.scheduler, simulation.training
        everybody = simulation.client_data.participants
        count = training.participants(len(everybody))
        begin = float(state.participation["seconds"])
        begin, candidates = _wait_for_clients(self.devices, everybody, begin)
        wanted = min(len(candidates), math.ceil(round(training.over_selection * count, 9)))
        asked = _Questions(self.clock, simulation, state)
        selected, memory = self._select(simulation, round_, state, candidates, wanted, asked)
        if self.devices is None:
            clients, work = scheduler.with_stragglers(selected, round_)
            return replace(scheduler.round_schedule(round_, clients, work), memory=memory)
        down, up = self.clock.message_bytes(round_)
        seconds = asked.seconds_of(selected, self.clock.seconds(round_)[selected], down)
        ends, answers = ends_of_work(
            self.devices, selected, begin, seconds, simulation.seed, round_
        )
        limit = math.inf if training.deadline is None else begin + training.deadline
        is_used, end = _used_answers(ends, answers, count, limit)
        times = RoundTimes(
            begin=begin,
            end=end,
            busy=(ends - begin)[is_used],
            lost=float(np.minimum(ends, end)[~is_used].sum() - begin * (~is_used).sum()),
            dropped=int((~is_used).sum()),
            bytes_down=down * len(selected) + asked.bytes_down(selected, down),
            bytes_up=up * int(is_used.sum()) + asked.bytes_up,
        )
        schedule = scheduler.round_schedule(round_, selected[is_used], ())
        return replace(schedule, times=times, memory=memory)

    def finish(
        self, simulation: Simulation, schedule: RoundSchedule, state: State, losses: Tensor
    ) -> Tree:
        """Return `State.participation` after a round."""
        seconds, memory = state.participation["seconds"], dict(schedule.memory)
        busy = None
        if schedule.times:
            seconds = torch.tensor(schedule.times.end, dtype=torch.float64)
            busy = schedule.times.busy
        if self.selection:
            clients = schedule.clients.cpu().numpy()
            outcome = Outcome(schedule.round, clients, losses.double().cpu().numpy(), busy)
            memory = dict(self.selection.learn(memory, outcome))
        return {"seconds": seconds, "memory": memory}

    def _select(
        self,
        simulation: Simulation,
        round_: int,
        state: State,
        candidates: np.ndarray,
        count: int,
        asked: _Questions,
    ) -> tuple[np.ndarray, Tree]:
        """Return the selected clients, ascending, and what the selection remembers."""
        generator = rng.generator(simulation.seed, "participants", round_)
        if self.selection is None:
            return np.sort(generator.choice(candidates, count, replace=False)), {}
        offer = Offer(
            round_,
            count,
            candidates,
            simulation.client_data.sizes("train"),
            self.clock.seconds(round_) if self.devices else None,
            asked.losses,
            generator,
            asked.gradients,
        )
        memory = trees.to(state.participation["memory"], "cpu")
        selected, memory = self.selection.select(memory, offer)
        selected = np.sort(np.asarray(selected, np.int64))
        is_right = np.isin(selected, candidates).all() and (np.diff(selected) > 0).all()
        if not is_right or not 1 <= len(selected) <= count:
            problem = f"selection: gives the clients {selected.tolist()}"
            raise FedloomError(problem, f"1 to {count} different ones of those that are there")
        return selected, memory


class _Questions:
    """Asks clients for their losses or gradients, and counts what that takes.

    Args:
        clock: What a question costs.
        simulation: The run.
        state: Its state before the round.
    """

    def __init__(self, clock: Clock, simulation: Simulation, state: State) -> None:
        self._clock, self._simulation, self._state = clock, simulation, state
        self.clients = np.zeros(0, np.int64)
        self._cost = Question(0.0, 0.0, self.clients)

    def losses(self, clients: np.ndarray) -> np.ndarray:
        """Return the mean loss of the shared model on each client's training samples."""
        run = self._simulation
        models, portions = self._ask(clients, gradients=False)

        def mean_losses(values: Tree, sizes: np.ndarray) -> dict[str, np.ndarray]:
            return {"loss": run.task.conclude(values, sizes, run.classes)["loss"]}

        return score_portions(models, portions, mean_losses)["loss"]

    def gradients(self, clients: np.ndarray) -> Tensor:
        """Return the gradient of each of these losses by the model's weights, [K, d]."""
        models, portions = self._ask(clients, gradients=True)
        rows = [models.gradient(portion.client, portion.samples) for portion in portions]
        return torch.stack(rows).cpu()

    def _ask(self, clients: np.ndarray, gradients: bool) -> tuple[ViewOutputs, list[Portion]]:
        """Count a question; return the model and the samples on which clients answer it."""
        run = self._simulation
        self.clients = np.union1d(self.clients, clients)
        self._cost = self._clock.question(self.clients, gradients)
        data, view = run.client_data, run.method.views[GLOBAL]
        models = ViewOutputs(view, False, run, self._state, data, run.task)
        return models, [Portion(int(k), "train", data.samples_of("train", int(k))) for k in clients]

    def seconds_of(self, selected: np.ndarray, seconds: np.ndarray, down: float) -> np.ndarray:
        """Return the time of a round of the selected clients with the questions before it.

        All wait until everybody who was asked has answered. Who was asked has the model already.
        """
        devices = self._clock.devices
        if not len(self.clients) or devices is None:
            return seconds
        own_bytes = np.where(np.isin(selected, self.clients), min(self._cost.down, down), 0.0)
        waiting = self._cost.seconds.max()
        rest: np.ndarray = waiting + seconds - own_bytes / devices.download[selected]
        return rest

    def bytes_down(self, selected: np.ndarray, down: float) -> float:
        """Return the bytes that the questions add to what the selected clients receive."""
        repeated = np.isin(self.clients, selected).sum() * min(self._cost.down, down)
        return float(self._cost.down * len(self.clients) - repeated)

    @property
    def bytes_up(self) -> float:
        """Bytes of all answers."""
        return self._cost.up * len(self.clients)


def check_questions(selection: Selection, method: Method, title: str) -> None:
    """Refuse to ask clients for losses or gradients of a shared model that there is not.

    Args:
        selection: The selection.
        method: The method.
        title: Its name, for errors.

    Raises:
        FedloomError: If there is none.
    """
    if selection.asks_clients and GLOBAL not in method.views:
        problem = f"selection: asks how well a shared model does, but {title} has none"
        raise FedloomError(problem, advice="another selection, or its `losses: last` if it has it")


def _wait_for_clients(
    devices: DeviceTable | None, everybody: np.ndarray, seconds: float
) -> tuple[float, np.ndarray]:
    """Return the first time from a time on at which a client is there, and all who then are."""
    if devices is None or devices.presence is None:
        return seconds, everybody
    seconds = devices.presence.next_time(everybody, seconds)
    if math.isinf(seconds):
        raise FedloomError("devices: no client is ever there", advice="other times of presence")
    return seconds, everybody[np.isin(everybody, devices.presence.present(seconds))]


def ends_of_work(
    devices: DeviceTable,
    clients: np.ndarray,
    begin: float,
    seconds: np.ndarray,
    seed: int,
    *key: int | str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return when the work of clients ends that began at a time, and whether they then answer.

    A client that breaks off does so at a random moment of its work; one that leaves, when it does.
    """
    draws = rng.generator(seed, "failures", *key).random((len(clients), 2))
    fails = draws[:, 0] < devices.failure[clients]
    ends = begin + np.where(fails, draws[:, 1], 1.0) * seconds
    if devices.presence is not None:
        leaves = devices.presence.leave(clients, begin)
        fails |= leaves < ends
        ends = np.minimum(ends, leaves)
    return ends, ~fails


def _used_answers(
    ends: np.ndarray, answers: np.ndarray, count: int, limit: float
) -> tuple[np.ndarray, float]:
    """Return which clients' work the server uses, and when the round ends.

    Args:
        ends: Time at which each client ends, [m].
        answers: Whether it then answers, [m].
        count: Number of answers that the server needs.
        limit: Time after which it does not wait, except for a first answer.
    """
    order = np.lexsort((np.arange(len(ends)), ends))
    if not answers.any():  # The server asks the quickest one again until it answers.
        answers = np.arange(len(ends)) == order[0]
    in_time = [index for index in order if answers[index] and ends[index] <= limit]
    first = next(index for index in order if answers[index])
    used = (in_time or [first])[:count]
    is_used = np.zeros(len(ends), bool)
    is_used[used] = True
    if len(used) == count:
        return is_used, float(ends[used].max())
    last = float(ends[used].max()) if not in_time else min(limit, float(ends.max()))
    return is_used, last
