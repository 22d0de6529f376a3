"""Warm-up: every client distils its samples into virtual images, on which other methods may train.

Zhao, Bilen. Dataset Condensation with Distribution Matching. WACV 2023. arXiv:2110.04181; as FedLGD
begins with it: Huang et al. Federated Learning on Virtual Heterogeneous Data with Local-Global
Dataset Distillation. TMLR 2024. arXiv:2303.02278.

Family: reference. Exchanged: nothing. Local: images made of the samples. Key: `images`.

It is a stage of its own, computed once for all seeds of a study. An entry trains on its images by
naming it in ``train_on:`` (FedLGD with ``warmup: 0`` and ``initial: real``). A round is a stretch
of steps; nothing is sent. The run's rate and momentum are those of the images. What is scored is a
classifier by the nearest mean of a class's images, in the features of one untrained network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Method,
    Predictor,
    Tree,
    Variables,
    declare,
    rng,
    shared_model,
)
from fl.blocks import local_images
from fl.blocks.distances import pairwise_distances
from fl.blocks.exchange import aggregate_nothing
from fl.blocks.local_images import (
    ImagesClient,
    InitialImages,
    KeyServer,
    MatchingOptions,
    MatchingWork,
)


class WarmUpServer(Variables, KeyServer):
    """State of the server: an untrained network, and a key."""


class WarmUpClient(ImagesClient):
    """State of a client.

    Attributes:
        optimizer: State of the images' optimizer, such as their momentum.
    """

    optimizer: Tree


class WarmUpModel(Variables):
    """What is evaluated: an untrained network, and the images of `ImagesClient`."""

    images: Tensor


@declare(
    "personal",
    title="Warm-up",
    independent=True,
    distils=True,
    one_input=True,
    training={
        "rounds": 100,
        "lr": 1.0,
        "momentum": 0.5,
        "schedule": "constant",
        "participation": 1.0,
        "evaluate_every": 10,
    },
)
class WarmUp:
    """Distillation of images before training.

    Attributes:
        images: Number of images for each class.
        initial: First images: Gaussian with the client's `statistics` of each class and channel,
            `noise`, or `real` images of its own.
        steps: Steps of distribution matching in a round, each with a new random network.
        real: Number of real images of a class in a step.
    """

    images: Count = 50
    initial: InitialImages = "statistics"
    steps: Count = 100
    real: Count = 256

    def build(self, context: BuildContext) -> Method:
        """Distribution matching, round after round; every client works for itself."""
        local_images.check_image_inputs(context)
        matching = MatchingOptions(self.real, None, context.training.momentum)
        matching_pass = local_images.distribution_matching(
            context, matching, lambda round_: self.steps, "new"
        )

        def init(variables: Variables) -> tuple[WarmUpServer, WarmUpClient]:
            images = local_images.zero_images(context, variables, self.images)
            key = torch.tensor(rng.torch_seed(context.seed, "virtual images"), device=images.device)
            state = matching_pass.begin(variables, {"images": images})["optimizer"]
            server: WarmUpServer = {**shared_model(variables, None), "key": key}
            return server, {"images": images, "optimizer": state}

        def begin(server: WarmUpServer, client: WarmUpClient) -> MatchingWork:
            return {**matching_pass.begin(server, client), "optimizer": client["optimizer"]}

        def end(
            server: WarmUpServer, client: WarmUpClient, work: MatchingWork
        ) -> tuple[WarmUpClient, Tree]:
            client, upload = matching_pass.end(server, client, work)
            return {**client, "optimizer": work["optimizer"]}, upload

        return Method(
            init,
            (replace(matching_pass, begin=begin, end=end),),
            aggregate_nothing,
            {"personal": Predictor(variables_of, self._nearest(context), is_per_sample=True)},
            earlier_phases=(local_images.initial_phase(context, self.images, self.initial),),
            send=lambda server: {},
            check_clients=local_images.require_samples(self.images),
        )

    def _nearest(self, context: BuildContext) -> Any:
        def predict(model: WarmUpModel, memory: Tree, x: Tensor) -> Tensor:
            def features(images: Tensor) -> Tensor:
                output = context.network.eval(model["params"], model["buffers"], images)
                return output.features.flatten(1)

            class_means = features(model["images"]).unflatten(0, (context.classes, -1)).mean(1)
            return -pairwise_distances(features(x), class_means)

        return predict


def variables_of(server: WarmUpServer, client: WarmUpClient) -> WarmUpModel:
    """Return the untrained network and the client's images, as a view."""
    return {**shared_model(server, None), "images": client["images"]}
