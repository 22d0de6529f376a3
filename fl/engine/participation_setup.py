"""Runs with devices, a selection of clients, or an asynchronous server."""

from __future__ import annotations

from dataclasses import replace

from fl.api.participation import check_selection
from fl.api.training import check_participation
from fl.base.declaration import declaration_of
from fl.engine.asynchronous import arriving_rounds
from fl.engine.clock import Clock
from fl.engine.participation import SelectedRounds, check_questions
from fl.engine.run_setup import MethodComponents
from fl.engine.simulation import Participation, Simulation


def attach_participation(simulation: Simulation, components: MethodComponents) -> Simulation:
    """Return a run with the devices, the selection and the asynchronous server of its study.

    Args:
        simulation: The run without them.
        components: The method and what the study adds to it.

    Raises:
        FedloomError: If they do not fit to each other or to the method.
    """
    check_participation(components.added_keys, simulation.training)
    simulation = replace(simulation, participation=None)
    if not components.added_keys & {"devices", "selection", "asynchronous"}:
        return simulation
    context = simulation.context(simulation.seed)
    for component in components.selection:
        has_devices = bool(components.devices)
        check_selection(component, has_devices, context.participants, context.training)
    [devices, selection, server] = [
        built[0] if built else None
        for built in (
            [part.build(context) for part in parts]
            for parts in (components.devices, components.selection, components.asynchronous)
        )
    ]
    title = declaration_of(components.method).title
    if selection is not None:
        check_questions(selection, simulation.method, title)
    clock = Clock(simulation, devices, selection.upload_bytes if selection else 0)
    rounds: Participation = SelectedRounds(clock, devices, selection)
    if devices is not None and server is not None:
        rounds = arriving_rounds(clock, devices, server, title)
    return replace(simulation, participation=rounds)
