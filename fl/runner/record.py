"""The content of a finished run's ``run.json``, except for the hashes of the run's files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import torch

from fl.base.errors import FedloomError
from fl.data import partitioning
from fl.engine.simulate import Round
from fl.plan.bundle import Bundle, Member
from fl.plan.run_spec import RunSpec
from fl.runner import environment
from fl.runner.stack import Stack


def check_code(member: Member) -> None:
    """Refuse (`FedloomError`) a run whose code differs from that it was planned with."""
    now = RunSpec(member.spec).code
    changed = [key for key, code in member.code.items() if now.get(key) != code]
    changed += sorted({*member.defaults} - {*RunSpec(member.spec).default_keys})
    if changed:
        raise FedloomError(
            f"{member.run}: the code of its {', '.join(changed)} changed after it was planned; "
            "plan again (start snakemake again, or `fedloom plan --write`)"
        )


def record(
    member: Member, stack: Stack, last: Round, costs: dict[str, Any], bundle: Bundle
) -> dict[str, Any]:
    """The record of a finished run: what it is, how it was computed, and what it cost."""
    device = stack.simulations[member.run].arrays.device
    execution, folders = bundle.execution, bundle.folders
    return {
        "run": member.run,
        "state": "diverged" if last.has_diverged else "complete",
        "spec": member.spec,
        "code": member.code,
        "defaults": member.defaults,
        "code_files": RunSpec(member.spec).code_files,
        "data": partitioning.data_hashes(member.code, folders.data, folders.results),
        "start": member.start,
        "versions": environment.versions(),
        "environment": environment.environment(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "execution": {
            "backend": stack.backend,
            "stack": stack.members,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "processes": execution.processes,
            "stretches": stack.stretches,
            "threads": execution.threads,
        },
        "rounds": stack.round,
        "seconds": round(stack.seconds, 3),
        "note": last.divergence or last.stop_reason,
        "costs": costs,
    }
