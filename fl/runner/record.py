"""Makes the record of a finished run, and checks that its code is that of the plan."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import torch

from fl.api.uploads import attacker_mask
from fl.base.errors import FedloomError
from fl.base.seams import Seam
from fl.data import partitioning
from fl.engine.client_data import ClientData
from fl.engine.simulate import Round
from fl.engine.simulation import Simulation
from fl.engine.state import State
from fl.plan.bundle import Bundle, Member
from fl.plan.run_spec import RunSpec
from fl.runner import environment
from fl.runner.stack import Stack
from fl.store.run_record import Costs, ExecutionRecord, RunRecord, UnknownCosts

COSTS = Seam[Callable[[Simulation, State, int], Costs | UnknownCosts]]("costs")
"""Functions that measure the costs of a run after its last round; the first one counts."""


def measure_costs(simulation: Simulation, state: State, completed: int) -> Costs | UnknownCosts:
    """Return the costs of a run, or why they are unknown.

    Args:
        simulation: The run.
        state: Its last state.
        completed: Number of completed rounds.
    """
    for measure in COSTS.hooks():
        return measure(simulation, state, completed)
    return UnknownCosts("no extra measures costs")


def check_code(member: Member) -> None:
    """Refuse a run whose code has changed since it was planned.

    Args:
        member: The run.

    Raises:
        FedloomError: If the code or the defaults of the spec have changed.
    """
    current_code = RunSpec(member.spec).code
    changed = [key for key, code in member.code.items() if current_code.get(key) != code]
    changed += sorted({*member.defaults} - {*RunSpec(member.spec).default_keys})
    if changed:
        raise FedloomError(
            f"{member.run}: the code of its {', '.join(changed)} changed after it was planned",
            advice="plan again: start snakemake again, or fedloom plan --write",
        )


def make_record(
    member: Member, stack: Stack, last: Round, costs: Costs | UnknownCosts, bundle: Bundle
) -> RunRecord:
    """Make the record of a finished run.

    Args:
        member: The run.
        stack: The stack in which it was trained.
        last: Its last round.
        costs: Its costs.
        bundle: Its bundle.

    Returns:
        The record.
    """
    device = stack.simulations[member.run].arrays.device
    execution, folders = bundle.execution, bundle.folders
    return RunRecord(
        run=member.run,
        state="diverged" if last.has_diverged else "complete",
        spec=member.spec,
        code=member.code,
        defaults=member.defaults,
        code_files=RunSpec(member.spec).code_files,
        data=partitioning.data_hashes(member.code, folders.data, folders.results),
        start=member.start,
        versions=environment.versions(),
        environment=environment.environment(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        execution=ExecutionRecord(
            backend=stack.backend,
            stack=stack.members,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            processes=execution.processes,
            stretches=stack.stretches,
            threads=execution.threads,
        ),
        rounds=stack.round,
        seconds=round(stack.seconds, 3),
        note=last.divergence or last.stop_reason,
        costs=costs,
        attackers=_attackers(member, stack.simulations[member.run].client_data),
    )


def _attackers(member: Member, data: ClientData) -> list[int]:
    """Return the clients that attack in a run; of those held out of training, none does."""
    filters = RunSpec(member.spec).method_components.upload_filters
    # The attackers of a smaller share are among those of a larger one.
    share = max((f.share for f in filters if getattr(f, "attacks", False)), default=0.0)
    mask = attacker_mask(member.seed, share, data.clients).numpy()
    return [int(client) for client in data.participants if mask[client]]
