"""Runs with devices, a selection of clients, or an asynchronous server."""

from __future__ import annotations

from dataclasses import replace

from fl.base.errors import FedloomError
from fl.base.schema import GLOBAL
from fl.engine.asynchronous import arriving_rounds
from fl.engine.clock import Clock
from fl.engine.participation import SelectedRounds
from fl.engine.run_setup import MethodComponents
from fl.engine.simulation import Participation, Simulation


def with_participation(simulation: Simulation, components: MethodComponents) -> Simulation:
    """Return a run with the devices, the selection and the asynchronous server of its study.

    Args:
        simulation: The run without them.
        components: The method and what the study adds to it.

    Raises:
        FedloomError: If they do not fit to each other or to the method.
    """
    training, simulation = simulation.training, replace(simulation, participation=None)
    has_clock = training.over_selection > 1 or training.deadline is not None
    if not (components.decide_participation or has_clock):
        return simulation
    context = simulation.context(simulation.seed)
    [devices, selection, server] = [
        built[0] if built else None
        for built in (
            [part.build(context) for part in parts]
            for parts in (components.devices, components.selection, components.asynchronous)
        )
    ]
    if devices is None:
        for key, default in (("over_selection", 1.0), ("deadline", None)):
            if getattr(training, key) != default:
                problem = f"{key}: is {getattr(training, key)!r}, but nothing takes time"
                raise FedloomError(problem, advice=f"set devices, or leave {key} out")
        if server is not None:
            problem = "asynchronous: is set, but nothing takes time"
            raise FedloomError(problem, advice="set devices")
    if (devices is not None or server is not None) and training.stragglers:
        problem = f"stragglers: is {training.stragglers:g}, but devices decide who is slow"
        raise FedloomError(problem, advice="leave out stragglers, or devices")
    if selection is not None and GLOBAL not in simulation.method.views:
        problem = "selection: clients are selected by a shared model, but there is none"
        raise FedloomError(problem, advice="leave selection out")
    clock = Clock(simulation, devices, selection.upload_bytes if selection else 0)
    rounds: Participation = SelectedRounds(clock, devices, selection)
    if server is not None:
        rounds = arriving_rounds(clock, devices, selection, server, components)
    return replace(simulation, participation=rounds)
