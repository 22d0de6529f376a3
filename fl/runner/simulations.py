"""The simulations of a bundle's runs, and the settings of the process that computes them."""

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


def prepare_process(bundle: Bundle, store: Store) -> None:
    """Apply the settings of a bundle to this process.

    Args:
        bundle: The bundle.
        store: The store; compiled programs are kept beside it.
    """
    plugins.use(bundle.plugins, Location(f"bundle {bundle.bundle}") / "plugins")
    torch.set_num_threads(bundle.execution.threads)
    memory.keep_freed_memory()
    compiler.keep_programs(store.root)
    compiler.silence_compiler()
    if torch.cuda.is_available():  # These settings have no use on a CPU, and cost a second.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)


def make_simulation(
    bundle: Bundle, member: Member, sibling: Simulation | None, store: Store, device: torch.device
) -> Simulation:
    """Make the simulation of one run.

    Args:
        bundle: The bundle of the run.
        member: The run.
        sibling: The simulation of another run of the bundle, whose data are shared; None: none.
        store: The store, for runs that train on stored images.
        device: The device on which the run is trained.

    Returns:
        The simulation.
    """
    spec = member.spec
    if sibling is not None:
        return assembly.with_seed(sibling, spec, RunSpec(spec).components)
    simulation = RunSpec(spec).assemble(bundle.folders, device)
    source = spec.get("train_on")
    if isinstance(source, str):
        return train_on.train_on_images(simulation, _read_images(store, source))
    return simulation


def _read_images(store: Store, run: str) -> torch.Tensor:
    """Read the stored images of every client, [clients, classes x count, ...]."""
    images = store.weights(run, torch.device("cpu")).get(PERSONAL, {}).get("images")
    if images is None:
        raise DataError(f"{store.folder(run)}: has no images to train on")
    return torch.as_tensor(images)
