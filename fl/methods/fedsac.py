"""FedSaC: mixtures of models that are similar, of clients whose features complement each other.

Yan, Cui, Wuerkaixi, Zhang, Han, Niu, Sugiyama, Zhang. Balancing Similarity and Complementarity for
Federated Learning. ICML 2024. arXiv:2405.09892.

Family: mixture of clients. Exchanged: model, directions of features. Local: model. Key: `alpha`.

pFedGraph with one more term. Client i's weights minimise sum_j (w_j - p_j)^2 + alpha c_ij w_j -
beta s_ij w_j over the simplex, with p_j the shares of samples, s_ij the cosine between models and
c_ij the cosine of the mean principal angle between the k directions in which the clients' features
vary most, so that alike features count against each other. Features are what goes into the
classifier, of training samples, by the trained model in evaluation mode.

Where the paper and the released code differ, the paper's side is the default. Of the paper: the
client's regulariser, which holds it to its mixture (`regulariser`), its weight 1 (`lam`; the code:
.01), principal angles by singular values (`principal_angles`), alpha = 0 after 70 % of the rounds
(`until`; the code: 1, never), some clients drawn to cooperate where there are many
(`collaborators`; in the code the others do not train either: `participation`). Of the code, where
the paper's formula is silent or was not what was run: similarity of what models moved from the
common initialisation (`similarity: weights` takes equation 4 at its word), of which more than .9
counts as 1 (`alike`), and features that are centred (`centred: false` is equation 5). With
`regulariser: released`, `principal_angles: greedy`, `until: 1` and momentum .9, a round is that of
the released code: with the same batches, in double precision, models after three rounds of five
clients differ by 5e-15 from those that it gives.

Two modalities (appendix B.2): among the clients of one, all of this. What modalities have in
common, the classifier, is mixed over all clients by how alike their classifiers are alone. The
paper does not say whose shares p_j are: here they are shares among the clients of a modality, and
for the classifier among all.

Appendix C says that subspaces can be cropped and get minor noise, so that no data follow from them,
and no more than that. Here noise is Gaussian, and a crop leaves some features out, the same of all
clients, drawn anew in every round (`noise`, `crop`). Bytes are counted as without a crop.

Traces of every evaluated round, where there are at most 200 clients: ``cooperation``, in row i the
weights of client i's mixture; ``similarity`` and ``complementarity`` (s and c), 0 between
modalities; where there are several, ``classifier``: the weights for what they have in common.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from fl.api import (
    Bound,
    BuildContext,
    Count,
    Method,
    NonNegative,
    Share,
    Tree,
    Variables,
    declare,
    trees,
)
from fl.blocks import model_mixtures
from fl.blocks.mixing import IDENTICAL_COSINE, cosines, fedsac_weights, saturate_above
from fl.blocks.model_mixtures import (
    COMMON_WEIGHTS,
    MixtureClient,
    MixtureServer,
    common_names,
    compared_parameters,
    draw_collaborators,
    rows_by_modality,
    weights_among,
)
from fl.blocks.subspaces import (
    Angles,
    check_samples,
    check_width,
    complementarity,
    direction_sweep,
    disguise_directions,
)

MATRICES = (model_mixtures.WEIGHTS, "similarity", "complementarity")


class FedSaCUpload(Variables):
    """Upload of a client: the model that it trained.

    Attributes:
        basis: Orthonormal directions in which its features vary most, [k, d].
    """

    basis: Tensor


@declare("personal", modalities=True)
class FedSaC:
    """Personal mixtures of models by complementarity and similarity.

    Attributes:
        alpha: Weight of complementarity (the paper: .9; .5 if clients have few classes; .7 for two
            modalities).
        beta: Weight of similarity (the paper: 1.4; 1.6 if clients have few classes; 1.2 for two
            modalities).
        k: Number of directions of a client's features.
        until: Share of the rounds after which alpha is 0.
        lam: Weight of the client's regulariser.
        regulariser: Loss of a client, with network W and models theta_j of the last round.
            `mixture`: f(w) - lam cos(w, sum_j W_ij theta_j), with the received mixture. `models`:
            f(w) - lam sum_j W_ij cos(w, theta_j), and f(w) before the client was in a network.
            `released`: the same with + lam.
        similarity: Cosines of what models `moved` from the common initialisation, or of their
            `weights`.
        alike: Cosines above this value count as 1.
        layers: Names of layers whose parameters are compared; an empty list: all.
        principal_angles: Computation of principal angles: by `svd`, or by `greedy` pairs of
            directions.
        centred: Whether directions are those of features minus their mean.
        samples: Number of a client's samples for directions, drawn in every round; null: all, as in
            the code (appendix E of the paper: of many samples, some are enough).
        noise: Expected length of the noise that a client adds to a direction of length 1.
        crop: Share of the features for which directions are sent.
        collaborators: Number of a round's clients that cooperate, drawn at random; others keep
            their own models; null: all (the paper: 10 of 50 or 100).
        mixed: Share of the rounds after which models are mixed; in later rounds clients train
            alone, as in fine-tuning.
    """

    alpha: NonNegative = 0.9
    beta: NonNegative = 1.4
    k: Count = 3
    until: Share = 0.7
    lam: NonNegative = 1.0
    regulariser: model_mixtures.Regulariser = "mixture"
    similarity: Literal["moved", "weights"] = "moved"
    alike: Share = IDENTICAL_COSINE
    layers: tuple[str, ...] = ()
    principal_angles: Angles = "svd"
    centred: bool = True
    samples: Count | None = 2048
    noise: NonNegative = 0.0
    crop: Annotated[float, Bound(above=0, high=1)] = 1.0
    collaborators: Count | None = None
    mixed: Share = 1.0

    def build(self, context: BuildContext) -> Method:
        """Local training with a sweep for directions; after every round models are mixed."""
        network = context.network
        names = compared_parameters("fedsac", network, self.layers)
        check_width("fedsac", network, self.k, self.crop)
        held_by_all = common_names(context) if context.missing_weights else frozenset()
        common = [name for name in names if name in held_by_all]

        return model_mixtures.mixture_method(
            context,
            partial(self.weigh, context, names, common),
            mu=self.lam,
            regulariser=self.regulariser,
            mixed_share=self.mixed,
            matrices=(*MATRICES, COMMON_WEIGHTS) if common else MATRICES,
            sweep=direction_sweep(network, self.k, self.centred, self.samples),
            check_clients=partial(check_samples, "fedsac", self.k),
        )

    def weigh(
        self,
        context: BuildContext,
        names: list[str],
        common: list[str],
        server: MixtureServer,
        clients: MixtureClient,
        uploads: FedSaCUpload,
        n: Tensor,
    ) -> dict[str, Tensor]:
        """Return the matrices between a round's participants, for `mixture_method`.

        Args:
            context: The context in which the method is built.
            names: Names of the parameters that are compared.
            common: Those that clients of all modalities hold, if there are several modalities.
            server: The server's state.
            clients: States of the participants, stacked.
            uploads: Their uploads, stacked.
            n: Their numbers of training samples, [K].
        """
        number = int(server["round"]) + 1
        alpha = self.alpha if number <= self.until * context.training.rounds + 1e-9 else 0.0
        cooperating = draw_collaborators(clients["id"], self.collaborators, context.seed, number)
        angles = self.angles_between(clients["id"], uploads["basis"], context.seed, number)
        weights = partial(fedsac_weights, alpha=alpha, beta=self.beta)
        weights_by_modality = [
            weights_among(
                rows,
                cooperating,
                n,
                weights,
                (self.likeness(server, uploads, names_held), angles),
            )
            for rows, names_held in rows_by_modality(context, clients, names)
        ]
        matrices = dict(zip(MATRICES, torch.stack(weights_by_modality).sum(0), strict=True))
        if common:
            weights, all_rows = partial(weights, alpha=0.0), torch.arange(len(n))
            likeness = self.likeness(server, uploads, common)
            common_weights = weights_among(all_rows, cooperating, n, weights, (likeness, angles))
            matrices[COMMON_WEIGHTS] = common_weights[0]
        return matrices

    def angles_between(self, ids: Tensor, bases: Tensor, seed: int, number: int) -> Tensor:
        """Return the complementarity of all participants' directions in a round, [K, K]."""
        if self.noise or self.crop < 1:
            bases = disguise_directions(bases, ids, self.noise, self.crop, seed, number)
        return complementarity(bases, self.principal_angles)

    def likeness(self, server: MixtureServer, uploads: FedSaCUpload, names: list[str]) -> Tensor:
        """Return the cosines of the participants' weights of these names, [K, K]."""
        params: Tree = {name: uploads["params"][name] for name in names}
        if self.similarity == "moved":
            origin = {name: server["origin"][name] for name in names}
            params = trees.apply(torch.sub, params, origin)
        return saturate_above(cosines(params), self.alike)
