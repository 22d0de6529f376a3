"""FedDF: the server distils the clients' models into their mean, on samples of its own.

Lin, Kong, Stich, Jaggi. Ensemble Distillation for Robust Model Fusion in Federated Learning.
NeurIPS 2020. arXiv:2006.07242.

Family: server samples. Exchanged: model. Local: nothing. Key: `server_steps`.

The samples are the server's of a partition (``server``); their labels are not used. The teacher's
probabilities are the softmax of the mean outputs of the round's clients, which count alike; the
student begins as the mean of their models. It takes steps of Adam, whose rate falls to 0 as a
cosine, on batches of the run's size. The paper trains for up to 10,000 steps, and stops early by
validation; here their number is fixed. The authors' code (epfml/federated-learning-public-code,
44dd555) averages divergences from each client's outputs unless it is told otherwise, and clips
gradients at norm 5. Models of several architectures, each with a student, are not here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Index,
    Method,
    Network,
    Optimizer,
    Pass,
    Positive,
    Rate,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    Sampling,
    Tree,
    Variables,
    adamw,
    declare,
    recipe,
    shared_model,
    trees,
    weighted_mean,
)
from fl.blocks.exchange import send_all_but


class FedDFServer(RecipeServer):
    """State of the server.

    Attributes:
        round: Number of finished rounds, int64 []; it stays on the server.
    """

    round: Tensor


class Student(Variables):
    """State with which the server's pass begins.

    Attributes:
        teachers: Variables of the round's clients, stacked: leaves [K, ...].
    """

    teachers: Variables


class DistillationWork(Student):
    """State of the server's pass.

    Attributes:
        optimizer: State of Adam.
    """

    optimizer: Tree


@declare("global", title="FedDF", needs=("server",))
class FedDF:
    """FedAvg with ensemble distillation at the server.

    Attributes:
        server_steps: Steps of the server in a round; 0 is FedAvg.
        server_lr: Learning rate of the server's first step.
    """

    server_steps: Index = 100
    server_lr: Positive = 1e-3

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg whose ``aggregate`` minimises KL(softmax(mean_k f_k(x)) || f(x))."""
        base = recipe(context)
        distillation = self.distillation(context)

        def init(variables: Variables) -> tuple[FedDFServer, RecipeClient]:
            server, client = base.init(variables)
            return {**server, "round": torch.zeros((), dtype=torch.int64)}, client

        def aggregate(
            server: FedDFServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
        ) -> tuple[FedDFServer, RecipeClient]:
            number, model = server["round"] + 1, shared_model(trees.mean(uploads, n), None)
            if self.server_steps:
                assert context.server_training is not None
                student: Student = {**model, "teachers": shared_model(uploads, None)}
                model = context.server_training(distillation, student, int(number))
            return {**server, **model, "round": number}, clients

        send = send_all_but("round")
        return replace(base, init=init, aggregate=aggregate, send=send)

    def distillation(self, context: BuildContext) -> Pass:
        """Return the server's pass, over a tree of a model and the stack of its teachers."""
        steps = DistillationSteps(self, context.network, adamw(0.0))
        sampling = Sampling(steps=lambda round_: self.server_steps)
        return Pass(steps.begin, steps.loss, steps.update, end, sampling, reference=steps.reference)


@dataclass(frozen=True, eq=False)
class DistillationSteps:
    """Functions of the server's pass of FedDF.

    Attributes:
        options: The keys of the method.
        network: The network.
        optimizer: The optimizer of the server.
    """

    options: FedDF
    network: Network
    optimizer: Optimizer

    def begin(self, server: object, client: Student) -> DistillationWork:
        """Begin the distillation at the mean model."""
        return {**client, "optimizer": self.optimizer.init(client["params"])}

    def reference(self, server: object, work: DistillationWork, batch: Batch) -> Tree:
        """Return the mean outputs of the teachers, which stay fixed."""
        teachers = work["teachers"]
        count = len(trees.leaves(teachers)[0])
        models = (trees.take(teachers, number) for number in range(count))
        outputs = [self.network.eval(m["params"], m["buffers"], batch["x"]).outputs for m in models]
        return {"teacher": torch.stack(outputs).mean(0)}

    def loss(self, server: object, work: DistillationWork, batch: Batch) -> tuple[Tensor, Tree]:
        """Return KL(softmax(mean_k f_k(x)) || f(x))."""
        output = self.network.train(
            work["params"], work["buffers"], batch["x"], key=batch.get("key")
        )
        target = batch["reference"]["teacher"].log_softmax(-1)
        student = output.outputs.log_softmax(-1)
        divergences = F.kl_div(student, target, reduction="none", log_target=True).sum(-1)
        return weighted_mean(divergences, batch), {"buffers": output.buffers}

    def update(
        self, server: object, work: DistillationWork, grads: Tree, aux: Tree, lr: Rate
    ) -> DistillationWork:
        """Take a step at a rate that falls to 0 as a cosine."""
        progress = work["optimizer"]["steps"] / self.options.server_steps
        rate = self.options.server_lr * (1 + (math.pi * progress).cos()) / 2
        params, state = self.optimizer.step(work["params"], grads, work["optimizer"], rate)
        return {**work, "params": params, "buffers": aux["buffers"], "optimizer": state}


def end(server: object, client: Student, work: DistillationWork) -> tuple[Variables, Tree]:
    """Return the student."""
    return {"params": work["params"], "buffers": work["buffers"]}, {}
