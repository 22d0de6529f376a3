"""FedSaC: mixtures of models that are similar, of clients whose features complement each other.

Yan, Cui, Wuerkaixi, Zhang, Han, Niu, Sugiyama, Zhang. Balancing Similarity and Complementarity for
Federated Learning. ICML 2024. arXiv:2405.09892.

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

Traces of every evaluated round, where there are at most 200 clients: ``cooperation``, in row i the
weights of client i's mixture; ``similarity`` and ``complementarity`` (s and c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fl import rng, trees
from fl.errors import FedloomError
from fl.fields import Count, NonNegative, Share
from fl.method import Method, Setting, Sweep
from fl.network import Network
from fl.parts.cooperation import WEIGHTS, Regulariser, cooperating
from fl.parts.heads import width
from fl.parts.mixing import ALIKE, alike_above, cosines, fedsac_weights
from fl.parts.subspaces import Angles, complementarity, moments, principal_directions
from fl.schema import PERSONAL
from fl.trees import Tree

MATRICES = (WEIGHTS, "similarity", "complementarity")


@dataclass(frozen=True)
class FedSaC:
    """alpha, beta: weights of complementarity and of similarity (the paper: .9, 1.4; .5 and 1.6
        where clients hold few classes each; .7 and 1.2 for two modalities).
    k: directions of a client's features.
    until: share of the rounds after which alpha is 0.
    lam: weight of the client's regulariser.
    regulariser: what the client minimises, with W the network and theta_j the models of the last
        round; `mixture`: f(w) - lam cos(w, sum_j W_ij theta_j), which is what it received;
        `models`: f(w) - lam sum_j W_ij cos(w, theta_j), and f(w) until it has been in a network;
        `released`: the same with + lam.
    similarity: cosines of what models `moved` from the common initialisation, or of their
        `weights`.
    alike: a cosine above it counts as 1.
    layers: names of modules whose parameters are compared; none: all.
    principal_angles: by `svd`, or `greedy` pairs of directions.
    centred: whether directions are those of the features less their mean.
    samples: how many of a client's samples are looked at for them, drawn anew in every round; null:
        all, as in the code (appendix E of the paper: where there are many, some are enough, and
        cost less than the rest of a round).
    collaborators: how many of a round's clients are drawn to cooperate; the others keep their own
        models; null: all (the paper: 10 of 50 or 100).
    """

    alpha: NonNegative = 0.9
    beta: NonNegative = 1.4
    k: Count = 3
    until: Share = 0.7
    lam: NonNegative = 1.0
    regulariser: Regulariser = "mixture"
    similarity: Literal["moved", "weights"] = "moved"
    alike: Share = ALIKE
    layers: tuple[str, ...] = ()
    principal_angles: Angles = "svd"
    centred: bool = True
    samples: Count | None = 2048
    collaborators: Count | None = None

    title: ClassVar = "FedSaC"
    stages: ClassVar = (PERSONAL,)
    sends_own: ClassVar = True

    def build(self, setting: Setting) -> Method:
        """Local training with a sweep for directions; after every round models are mixed."""
        compared = self.compared(setting.network)
        self.check(setting.network)

        def weigh(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> dict[str, Tensor]:
            params = {name: uploads["params"][name] for name in compared}
            if self.similarity == "moved":
                origin = {name: server["origin"][name] for name in compared}
                params = trees.apply(torch.sub, params, origin)
            similar = alike_above(cosines(params), self.alike)
            alike = complementarity(uploads["basis"], self.principal_angles)
            number = int(server["round"]) + 1
            rows = self.drawn(clients["id"], setting.seed, number)
            alpha = self.alpha if number <= self.until * setting.training.rounds + 1e-9 else 0.0
            weights = torch.eye(len(n), dtype=similar.dtype, device=similar.device)
            pairs = rows[:, None], rows
            weights[pairs] = fedsac_weights(
                n[rows] / n[rows].sum(), similar[pairs], alike[pairs], alpha, self.beta
            )
            return dict(zip(MATRICES, (weights, similar, alike), strict=True))

        return cooperating(
            setting,
            weigh,
            mu=self.lam,
            regulariser=self.regulariser,
            matrices=MATRICES,
            sweep=self.sweep(setting.network),
            admit=self.admit,
        )

    def sweep(self, network: Network) -> Sweep:
        """A sweep for the directions in which the features of what a client trained vary most, [k,
        d].
        """

        def look(server: Tree, client: Tree, sent: Tree, batch: Tree) -> dict[str, Any]:
            output = network.eval(sent["params"], sent["buffers"], batch["x"])
            return moments(output.features, batch)

        def end(
            server: Tree, client: Tree, sent: Tree, seen: Tree
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            mean = seen["first"] / seen["count"].clamp(min=1) * (1.0 if self.centred else 0.0)
            basis = principal_directions(seen["second"], mean, seen["count"], self.k)
            return dict(client), {**sent, "basis": basis}

        return Sweep(look, end, most=self.samples)

    def compared(self, network: Network) -> list[str]:
        """The parameters of ``layers``; `FedloomError` for a layer that has none."""
        names = network.names["params"]
        for layer in self.layers:
            if not any(name.startswith(f"{layer}.") for name in names):
                there = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in names))
                raise FedloomError(f"fedsac: layers: no weights in {layer!r}; allowed: {there}")
        return [name for name in names if not self.layers or name.startswith(self._prefixes)]

    @property
    def _prefixes(self) -> tuple[str, ...]:
        return tuple(f"{layer}." for layer in self.layers)

    def admit(self, counts: Tensor, clients: Tensor) -> None:
        """Raise `FedloomError` if a client has fewer training samples than ``k``."""
        held = counts.sum(1)[clients]
        for place in torch.nonzero(held < self.k)[:1, 0].tolist():
            problem = (
                f"fedsac: client {int(clients[place])} has {int(held[place])} training samples"
            )
            raise FedloomError(f"{problem}; allowed: k = {self.k} or more")

    def check(self, network: Network) -> None:
        """Raise `FedloomError` if the model has fewer features than ``k``."""
        features = width(network, network.init(0)["params"])
        if self.k > features:
            problem = f"fedsac: k is {self.k}, but {features} features go into the classifier"
            raise FedloomError(f"{problem}; allowed: 1 to {features}")

    def drawn(self, ids: Tensor, seed: int, number: int) -> Tensor:
        """Which rows of a round's clients cooperate, in ascending order."""
        rows = torch.arange(len(ids), device=ids.device)
        if self.collaborators is None or self.collaborators >= len(ids):
            return rows
        draw = rng.generator(seed, "collaborators", number)
        found = draw.choice(ids.sort().values.cpu().numpy(), self.collaborators, replace=False)
        return rows[torch.isin(ids, torch.from_numpy(found).to(ids.device))]
