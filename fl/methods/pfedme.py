"""pFedMe: personal models near a client's copy of the shared one, which follows them.

Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.
arXiv:2006.08848.

Family: personal model. Exchanged: model. Local: model. Key: `lam`.

Every batch is used K times in a row, in which the personal model minimises f(theta) + (lambda/2)
||theta - w||^2 by gradient steps; then w moves by eta lambda (w - theta). As in the released code,
theta begins each round at the shared model and goes on from batch to batch, and clients' w are
weighted by their samples. The run's weight decay acts on theta (there .001). Clients that are not
drawn rest, where there all of them train. The personal model is theta by default; the released code
overwrites theta and scores w_k, as does pFedGraph's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Method,
    NonNegative,
    Positive,
    Rate,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    StepResults,
    Tree,
    Variables,
    WeightedAverage,
    Weights,
    all_weights,
    consumes_gradients,
    declare,
    personal_model,
    recipe,
    select,
    shared_model,
    single_pass,
    task_loss,
    trees,
)
from fl.blocks.proximal import ProximalTerm


class PFedMeWork(RecipeWork):
    """State of a client's pass; ``params`` has its personal model theta.

    Attributes:
        centre: The client's copy w of the shared parameters.
        done: Number of steps so far, [].
    """

    centre: Weights
    done: Tensor


@declare("global", "personal", title="pFedMe", tasks="any")
class PFedMe:
    """Personal models by Moreau envelopes.

    Attributes:
        lam: Lambda, weight of the distance between theta and w.
        steps: Number K of steps on each batch.
        inner_lr: Learning rate of the personal model; the run's own rate is eta, that of w.
        beta: Step of the server towards the mean.
        scored: Evaluated personal model: `theta`, or `w`, the client's copy of the shared model.
    """

    lam: NonNegative = 15.0
    steps: Count = 5
    inner_lr: Positive = 0.01
    beta: Positive = 1.0
    scored: Literal["theta", "w"] = "theta"

    def build(self, context: BuildContext) -> Method:
        """Local training on repeated batches, beside a copy of the shared model that is sent."""
        base = recipe(context, terms=(task_loss, ProximalTerm(self.lam, "centre")))
        steps, local = PFedMeSteps(self, base), single_pass(base)
        step = replace(
            local,
            begin=steps.begin,
            update=steps.update,
            end=steps.end,
            sampling=replace(local.sampling, steps_per_batch=self.steps),
        )
        views = {"global": shared_model, "personal": personal_model}
        return Method(steps.init, (step,), WeightedAverage(steps.aggregate), views)


@dataclass(frozen=True, eq=False)
class PFedMeSteps:
    """Functions of the pass of pFedMe, and what the server does.

    Attributes:
        options: The keys of the method.
        base: Training of theta near w.
    """

    options: PFedMe
    base: Recipe

    def init(self, variables: Variables) -> tuple[RecipeServer, RecipeClient]:
        """Return FedAvg's states; a client has a whole model."""
        server, client = self.base.init(variables)
        return server, {**client, **select(variables, all_weights)}

    def begin(self, server: RecipeServer, client: RecipeClient) -> PFedMeWork:
        """Begin theta and w at the shared model."""
        work = single_pass(self.base).begin(server, {**client, "params": {}, "buffers": {}})
        zero = trees.leaves(work["params"])[0].new_zeros(())
        return {**work, "centre": server["params"], "done": zero}

    @consumes_gradients
    def update(
        self, server: RecipeServer, work: PFedMeWork, grads: Tree, aux: StepResults, lr: Rate
    ) -> PFedMeWork:
        """Take a step of theta; after the last on a batch, w <- w - eta lam (w - theta)."""
        next_work = single_pass(self.base).update(server, work, grads, aux, self.options.inner_lr)
        step_count = work["done"] + 1
        is_last = (torch.remainder(step_count, self.options.steps) == 0).to(step_count.dtype)
        share = is_last * (lr * self.options.lam)
        centre = trees.apply(
            lambda w, theta: torch.lerp(w, theta, trees.align(share, w)),
            work["centre"],
            next_work["params"],
        )
        return {**next_work, "centre": centre, "done": step_count}

    def end(
        self, server: RecipeServer, client: RecipeClient, work: PFedMeWork
    ) -> tuple[RecipeClient, RecipeUpload]:
        """Upload w, and keep the model that is evaluated."""
        client, trained = single_pass(self.base).end(server, client, work)
        upload: RecipeUpload = {**trained, "params": work["centre"]}
        scored = trained if self.options.scored == "theta" else upload
        return {**client, "params": scored["params"], "buffers": scored["buffers"]}, upload

    def aggregate(
        self, server: RecipeServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
    ) -> tuple[RecipeServer, RecipeClient]:
        """Return (1 - beta) w + beta mean w_k."""
        mean, clients = self.base.aggregate(server, clients, uploads, n)
        params = trees.apply(
            lambda w, m: (1 - self.options.beta) * w + self.options.beta * m,
            server["params"],
            mean["params"],
        )
        return {**mean, "params": params}, clients
