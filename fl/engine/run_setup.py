"""Data and settings for which the method of a run is built, and the building of the method.

A server may train on its own labelled samples (``server`` of a partition). The server takes its
steps like one client of a `fl.api.method.Pass`, on batches keyed by (seed, round), and one run
after another. So the steps are the same on every backend, for seeds that are trained together, and
if several processes train the clients.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import BuildContext, Method, MethodTerm, Pass
from fl.api.network import CONSTRUCTION_SEED, Network
from fl.api.protocols import TrainOnServer
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base.declaration import declaration_of
from fl.base.errors import FedloomError
from fl.base.schema import GLOBAL, PERSONAL
from fl.base.units import object_text
from fl.data.dataset import Modality
from fl.engine.backends import ClientStack, loop
from fl.engine.batches import schedule
from fl.engine.client_data import ClientData, join_samples
from fl.engine.sample_arrays import Arrays
from fl.pytorch.construction import seeded


@dataclass(frozen=True)
class MethodComponents:
    """A method and what a study adds to it, as objects that have a ``build``.

    Attributes:
        method: The method.
        terms: Terms of its loss.
        alterations: Alterations of features.
        upload_filters: Filters that change what clients send, in the order in which they act.
        aggregation: At most one aggregation, which replaces the mean of uploads.
        devices: At most one component that draws the devices of clients.
        selection: At most one selection of clients.
        asynchronous: At most one asynchronous server.
    """

    method: Any
    terms: tuple[Any, ...] = ()
    alterations: tuple[Any, ...] = ()
    upload_filters: tuple[Any, ...] = ()
    aggregation: tuple[Any, ...] = ()
    devices: tuple[Any, ...] = ()
    selection: tuple[Any, ...] = ()
    asynchronous: tuple[Any, ...] = ()

    @property
    def added_keys(self) -> frozenset[str]:
        """The keys under which the study adds something."""
        return frozenset(key.name for key in fields(self)[1:] if getattr(self, key.name))


@seeded(CONSTRUCTION_SEED)
def build(components: MethodComponents, context: BuildContext) -> Method:
    """Build a method with everything that the study adds to it.

    Args:
        components: The method and its additions.
        context: What they are built for.

    Returns:
        The method, with terms attached and uploads filtered. Shared generators are seeded
        meanwhile, equally for all runs, which may be trained in one stack.
    """
    terms = tuple(build_component(term, context) for term in components.terms)
    alterations = tuple(
        build_component(alteration, context) for alteration in components.alterations
    )
    context_with_additions = replace(context, terms=terms, alterations=alterations)
    method: Method = build_component(components.method, context_with_additions)
    if not isinstance(method, Method):
        problem = f"{type(components.method).__name__}.build returns {object_text(method)}"
        raise FedloomError(problem, "a Method, as fl.api.recipe makes one")
    _check_stages(components.method, method)
    for term in terms:
        if isinstance(term, MethodTerm):
            method = term.attach(method)
    # A filter whose options change nothing builds None.
    built = [component.build(context) for component in components.upload_filters]
    upload_filters = [upload_filter for upload_filter in built if upload_filter is not None]
    aggregations = [component.build(context) for component in components.aggregation]
    if upload_filters or aggregations:
        from fl.engine.upload_filters import with_upload_filters  # Few runs have any.

        title = declaration_of(components.method).title
        aggregation = aggregations[0] if aggregations else None
        method = with_upload_filters(method, context, title, upload_filters, aggregation)
    return method


def build_component(component: Any, context: BuildContext) -> Any:
    """Return what a method, a term or an alteration builds.

    Raises:
        FedloomError: For None, which Python returns if ``return`` was forgotten.
    """
    result = component.build(context)
    if result is None:
        problem = f"{type(component).__name__}.build returns None"
        raise FedloomError(problem, advice="write `return` before what it builds")
    return result


def _check_stages(declared: Any, method: Method) -> None:
    """Raise `FedloomError` if a method has not the views of the stages that its class declares.

    Reports score a method with a personal stage by the clients' own models. Without its view, they
    would score the shared model without a word. The shared model's stage may be missing beside
    it: a key may leave nothing to share, such as FedRoD's ``head: local``.
    """
    name, stages = type(declared).__name__, declaration_of(declared).stages
    optional = {GLOBAL} if PERSONAL in stages else set()
    if not stages or {*stages} - optional <= {*method.views} <= {*stages}:
        return
    built = ", ".join(f'"{stage}"' for stage in method.views)
    advice = f"@declare({built})"
    if missing := [stage for stage in stages if stage not in {*method.views} | optional]:
        problem = f"{name} declares the stage {missing[0]!r}, but its build returns a method that "
        problem += f"evaluates {built} only"
        model = "server's" if missing[0] == GLOBAL else "client's own"
        advice += f", or a view of the {model} model: replace(recipe(context), views="
        advice += '{"global": shared, "personal": personal})'
        raise FedloomError(problem, advice=advice)
    [extra, *_] = [stage for stage in method.views if stage not in stages]
    problem = f"{name} builds a view of the stage {extra!r}, which it does not declare"
    raise FedloomError(problem, advice=advice)


@dataclass(frozen=True)
class RunSetup:
    """The data and settings that runs share which differ in their method or their seed.

    Attributes:
        network: The network.
        training: Settings of training.
        arrays: The samples.
        client_data: The samples of each client.
        classes: Number of classes.
        task: Type of the labels, which decides loss and metrics.
        modalities: The inputs of a sample, if there are several.
    """

    network: Network
    training: Training
    arrays: Arrays
    client_data: ClientData
    classes: int
    task: Task = CLASSIFICATION
    modalities: tuple[Modality, ...] = ()

    @property
    def device(self) -> torch.device:
        """The device on which runs are trained."""
        return self.arrays.device

    def values(self) -> dict[str, Any]:
        """Return the attributes by name, without those of a class that inherits from this one."""
        return {field.name: getattr(self, field.name) for field in fields(RunSetup)}

    def class_counts(self) -> Tensor:
        """Count the training samples of every client by class.

        Returns:
            Counts, int64 [clients, classes]; zeros if samples have no single class.
        """
        shape = self.client_data.clients, self.classes
        if not self.task.has_classes:
            return torch.zeros(shape, dtype=torch.int64)
        sizes = self.client_data.sizes("train")
        labels = self.arrays.labels_of(join_samples(self.client_data.samples["train"]))
        # A label that is no class raises an error in training, which names its location.
        is_class = labels < self.classes
        cells = np.repeat(np.arange(len(sizes)), sizes) * self.classes + labels
        counts = np.bincount(cells[is_class], minlength=shape[0] * shape[1])
        return torch.from_numpy(counts.reshape(shape))

    def context(self, seed: int) -> BuildContext:
        """Return what the method of a run with this seed is built for.

        Args:
            seed: Seed of the run.

        Returns:
            The context, by which a method cannot train on the server (`server_training`).
        """
        return BuildContext(
            network=self.network,
            training=self.training,
            classes=self.classes,
            clients=self.client_data.clients,
            shape=self.arrays.shape,
            seed=seed,
            absent_clients=len(self.client_data.absent_clients),
            task=self.task,
            shapes=self.arrays.shapes,
            tokens=frozenset(modality.name for modality in self.modalities if modality.tokens),
        )

    def server_training(self, seed: int) -> TrainOnServer | None:
        """Return the function by which a run's server trains on its own samples.

        Gradients on the server are not clipped.

        Args:
            seed: Seed of the run.

        Returns:
            The function; None if the server has no samples.
        """
        samples, arrays = self.client_data.server, self.arrays
        if not len(samples):
            return None
        labels = arrays.labels_of(samples)

        def train_on_server(pass_: Pass, tree: Tree, round_: int) -> Tree:
            stack = ClientStack(
                clients=trees.stack([tree]),
                ids=torch.zeros(1, dtype=torch.int64),
                server={},
                server_is_stacked=False,
                schedule=schedule(
                    [samples],
                    [0],
                    self.training,
                    seed,
                    round_,
                    SERVER_BATCHES,
                    sampling=pass_.sampling,
                    labels=[labels],
                    classes=self.classes,
                    keyed=self.network.random or arrays.random,
                    refreshes=pass_.refreshes,
                ),
                arrays=arrays,
                round=round_,
                training=replace(self.training, clip_norm=None),
            )
            with torch.enable_grad():
                return trees.take(loop(pass_, stack).client_states, 0)

        return train_on_server


SERVER_BATCHES = "batches at the server"
"""Purpose of the random stream that draws the batches of the server's own samples."""
