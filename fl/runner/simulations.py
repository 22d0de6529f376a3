"""The simulations of a bundle's runs, from what its file says."""

from __future__ import annotations

import os

import torch

from fl.base import plugins
from fl.base.errors import DataError, Location
from fl.base.schema import PERSONAL
from fl.engine import assembly, train_on
from fl.engine.simulation import Simulation
from fl.plan.bundle import Bundle, Member
from fl.plan.run_spec import RunSpec
from fl.pytorch import memory
from fl.runner import compiler
from fl.store.store import Store


def settle(bundle: Bundle, store: Store) -> None:
    """Make this process one that computes the runs of a bundle."""
    plugins.use(bundle.plugins, Location(f"bundle {bundle.bundle}") / "plugins")
    torch.set_num_threads(bundle.execution.threads)
    memory.keep_freed_memory()
    compiler.keep_beside(store.root)
    compiler.silence()
    if torch.cuda.is_available():  # On the CPU nothing asks for it, and it costs a second.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)


def made(
    bundle: Bundle, member: Member, like: Simulation | None, store: Store, device: torch.device
) -> Simulation:
    """The simulation of one run.

    Args:
        like: That of another run of the bundle, if there is one: they share the data.
    """
    spec = member.spec
    if like is not None:
        return assembly.with_seed(like, spec, RunSpec(spec).components)
    simulation = RunSpec(spec).assemble(bundle.folders, device)
    if isinstance(spec.get("train_on"), str):
        return train_on.train_on_images(simulation, _images(store, spec["train_on"]))
    return simulation


def _images(store: Store, run: str) -> torch.Tensor:
    """The stored images of every client, [clients, classes x count, ...]."""
    images = store.weights(run, torch.device("cpu")).get(PERSONAL, {}).get("images")
    if images is None:
        raise DataError(f"{store.folder(run)}: has no images to train on")
    return torch.as_tensor(images)
