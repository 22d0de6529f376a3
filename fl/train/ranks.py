"""What a process does that is one of several: the first one leads, the others serve it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fl.engine.simulate import Simulation
from fl.plan.bundle import Bundle
from fl.store.store import Store
from fl.train import compiler, launch, simulations
from fl.train.messages import Lost
from fl.train.team import Member, Team

PATIENCE = timedelta(days=365)
"""How long a process waits for another: as long as a round may take. One that ends is noticed."""


def run(bundles: Sequence[Bundle], store: Store, lead: Callable[[Team], int]) -> int:
    """The exit status of this process.

    Args:
        lead: What the first process does.
    """
    cards = torch.cuda.is_available() and any(one.execution.device != "cpu" for one in bundles)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cards else "gloo", timeout=PATIENCE)
    if dist.get_rank():
        _serve({bundle.bundle: bundle for bundle in bundles}, store)
        return 0
    _leave_with(os.getppid())
    team = Team()
    status = lead(team)
    with contextlib.suppress(Lost):
        team.close()
        dist.destroy_process_group()
    return status


def _serve(bundles: Mapping[str, Bundle], store: Store) -> None:
    logging.getLogger().setLevel(logging.WARNING)
    # The first process decides when to leave; a scheduler signals all.
    launch.listen(signal.SIG_IGN)

    def make(asked: Mapping[str, Any], device: torch.device) -> dict[str, Simulation]:
        bundle, found = bundles[asked["bundle"]], dict[str, Simulation]()
        simulations.settle(bundle, store)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        members = {member.run: member for member in bundle.runs}
        for run in asked["runs"]:
            like = next(iter(found.values()), None)
            found[run] = simulations.made(bundle, members[run], like, store, device)
        return found

    # If the first process is gone, whoever started both knows more about it.
    with contextlib.suppress(Lost), compiler.silent():
        Member(make).serve()
        dist.destroy_process_group()


def _leave_with(parent: int) -> None:
    """Leave, with everything saved, if the process that started this one is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
