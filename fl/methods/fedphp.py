"""FedPHP: each client keeps a running mean of its own models, which also teaches the next one.

Li, Zhan, Shao, Li, Song. FedPHP: Federated Personalization with Inherited Private Models. ECML PKDD
2021.

Family: personal model. Exchanged: model. Local: mean of the models that it trained. Key: `mu`.

The personal model v is renewed after each of a client's rounds: v <- mu v + (1 - mu) w_k, where mu
grows with the number of rounds in which the client took part. Training is held to v from the second
of them. As in the authors' code (lxcnju/FedRepo, 617ee015), only v has the temperature, 4. In that
code the term is there in the first round as well, with the initial model as v, which is in training
mode. PFLlib's code scores another model than v.
"""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    Method,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    ReferencePass,
    ReferenceTerm,
    Share,
    Variables,
    all_weights,
    cross_entropy,
    declare,
    recipe,
    select,
    shared_model,
    single_pass,
    trees,
    weighted_mean,
)
from fl.blocks.participation import with_participation

TEMPERATURE = 4.0
TEACHER = "outputs of the inherited model"


class FedPHPClient(RecipeClient):
    """State of a client.

    Attributes:
        inherited: Variables v of its private model.
    """

    inherited: Variables


class FedPHPWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        inherited: As in `FedPHPClient`.
        rounds: Number of rounds in which the client took part, [].
    """

    inherited: Variables
    rounds: Tensor


@declare("global", "personal", title="FedPHP")
class FedPHP:
    """FedAvg with an inherited private model.

    Attributes:
        lam: Weight of the teacher's term; the cross-entropy has the weight 1 - lam.
        mu: Largest share of the inherited model in the next one.
    """

    lam: Share = 0.1
    mu: Share = 0.9

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with a teacher; mu = min(mu, mu t_k / E t), t_k the client's rounds."""
        base = with_participation(recipe(context, terms=(inherited_term(self.lam),)))
        local = single_pass(base)
        expected = max(1, int(context.training.participation * context.training.rounds))

        def init(variables: Variables) -> tuple[RecipeServer, FedPHPClient]:
            server, client = base.init(variables)
            return server, {**client, "inherited": select(variables, all_weights)}

        def begin(server: RecipeServer, client: FedPHPClient) -> FedPHPWork:
            work = local.begin(server, client)
            return {**work, "inherited": client["inherited"], "rounds": client["rounds"]}

        def end(
            server: RecipeServer, client: FedPHPClient, work: FedPHPWork
        ) -> tuple[FedPHPClient, RecipeUpload]:
            mu = (self.mu * client["rounds"] / expected).clamp(max=self.mu)
            client, upload = local.end(server, client, work)
            inherited = trees.apply(
                lambda v, w: mu * v + (1 - mu) * w if w.is_floating_point() else w,
                client["inherited"],
                select(upload, all_weights),
            )
            return {**client, "inherited": inherited}, upload

        step = replace(local, begin=begin, end=end)
        views = {"global": shared_model, "personal": personal}
        return replace(base, init=init, passes=(step,), views=views)


def personal(server: RecipeServer, client: FedPHPClient) -> Variables:
    """Return the inherited model, as a view."""
    return client["inherited"]


def inherited_term(lam: Share) -> ReferenceTerm:
    """Return (1 - lam) CE(z, y) + lam CE(z, softmax(z_v / 4)); CE(z, y) until v exists.

    Args:
        lam: Weight of the teacher.
    """

    def reference(reference_pass: ReferencePass) -> dict[str, Tensor]:
        return {TEACHER: reference_pass("inherited").outputs}

    def term(forward: Forward) -> Tensor:
        outputs, batch = forward.output.outputs, forward.batch
        teacher = F.softmax(batch["reference"][TEACHER] / TEMPERATURE, dim=-1)
        distilled = weighted_mean(-(teacher * outputs.log_softmax(-1)).sum(-1), batch)
        work: FedPHPWork = forward.work
        share = lam * (work["rounds"] > 0).to(outputs.dtype)
        return (1 - share) * cross_entropy(forward) + share * distilled

    return ReferenceTerm(term, reference)
