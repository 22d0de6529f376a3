"""FedLGD: clients train on virtual images of their own, held to global ones that the server makes.

Huang, Jin, Zhao, Xu, Li. Federated Learning on Virtual Heterogeneous Data with Local-Global Dataset
Distillation. TMLR 2024. arXiv:2303.02278.

Before round 1 every client distils its samples into a few images per class (distribution matching,
with a newly drawn network in every step). The rounds tau are an arithmetic sequence that begins
with the first round. In them the server moves its own images so that their gradient points where
the round's update went. From the second of them on, clients first go on with distilling their
images, in the features of the shared model. The rounds tau train by cross-entropy; in all other
rounds features are held to those of the global images.

As in the released code: clients train on local and global images together, and the first global
ones are noise; the gradient that is matched is (w before - w after) / lr, at w before; every client
weighs the same. Other than there: a class's first mean is over its own pixels, not over all of the
client's; tau has ten rounds, as the paper says, where the code has eleven; global images start from
noise, as the paper says. Global images go to all clients in the rounds after tau.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fl import keyed, rng, trees
from fl.fields import Count, Index, NonNegative, Positive, Share
from fl.method import Exchange, Method, Pass, ServerWork, Setting, Sweep, only
from fl.parts import virtual
from fl.parts.gaussian import gaussian
from fl.parts.harmony import Harmony, harmonised
from fl.parts.losses import cross_entropy
from fl.parts.matching import matched
from fl.parts.virtual import IMAGES, Matching, Start
from fl.recipe import recipe, shared
from fl.schema import GLOBAL
from fl.training import learning_rate
from fl.trees import Tree

ANCHORS = "anchors"
"""In a client's tree, the global images that it was sent last."""
NOISE = keyed.stream_of("global images")


@dataclass(frozen=True)
class FedLGD:
    """images: of a client, per class.
    global_images: of the server, per class.
    initial: what a client's images begin as: Gaussian by its `statistics` of every class and
        channel, `noise`, or `real` ones of its own.
    warmup: steps of distribution matching before round 1.
    real: real images of a class in each of these steps.
    every, times: tau has ``times`` rounds, which are 1, 1 + every, and so on.
    client_steps, server_steps: of distillation in each round of tau.
    image_lr, image_momentum: of all images.
    lam: lambda, how far features are held to those of global images (10 for DIGITS, 1 for
        CIFAR-10-C).
    regulariser: supervised contrast (`contrastive`) or `mmd`.
    tau: temperature of the contrast.
    kept: images per class and client in a run's traces.
    """

    images: Count = 50
    global_images: Count = 10
    initial: Start = "statistics"
    warmup: Index = 10000
    real: Count = 256
    every: Count = 5
    times: Index = 10
    client_steps: Index = 100
    server_steps: Index = 500
    image_lr: Positive = 1.0
    image_momentum: Share = 0.5
    lam: NonNegative = 10.0
    regulariser: Harmony = "contrastive"
    tau: Positive = 0.07
    kept: Count = 1

    title: ClassVar = "FedLGD"
    stages: ClassVar = (GLOBAL,)
    one_input: ClassVar = True
    light: ClassVar[dict[str, Any]] = {
        **{"images": 1, "global_images": 2, "warmup": 2, "real": 4},
        **{"client_steps": 2, "server_steps": 2},
    }
    short: ClassVar[dict[str, Any]] = {
        **{"images": 1, "global_images": 2, "warmup": 2, "real": 4},
        **{"every": 2, "client_steps": 2, "server_steps": 2, "lam": 0.5},
    }

    def due(self, round_: int) -> bool:
        """Whether a round belongs to tau."""
        place, rest = divmod(round_ - 1, self.every)
        return rest == 0 and place < self.times

    def build(self, setting: Setting) -> Method:
        """FedAvg on virtual images, with distillation on both sides."""
        virtual.check_images(setting)
        term = harmonised(self.lam, self.regulariser, self.tau, self._anchors(setting))
        plain = recipe(setting)
        harmonious = recipe(setting, terms=(cross_entropy, term))
        passes = (
            self._matching(setting, "shared", self._refreshes),
            self._trains(setting, only(plain), self.due),
            self._trains(setting, only(harmonious), lambda round_: not self.due(round_)),
        )

        def init(variables: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
            server, client = plain.init(variables)
            like = trees.leaves(variables["params"])[0]
            key = torch.tensor(rng.torch_seed(setting.seed, "virtual images"), device=like.device)
            shape = (setting.classes * self.global_images, *setting.shape)
            images = gaussian(key, NOISE, shape).to(like.dtype)
            own = virtual.nothing(setting, variables, self.images)
            client |= {IMAGES: own, ANCHORS: torch.zeros_like(images)}
            return {**server, IMAGES: images, "key": key, "round": torch.zeros_like(key)}, client

        def aggregate(
            server: Tree, clients: Tree, uploads: Tree, n: Tensor
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            mean = trees.mean(uploads, torch.ones_like(n))
            done = {**server, **mean, "round": server["round"] + 1}
            if self.due(int(done["round"])):
                done[IMAGES] = self._matched(setting, server, mean, int(done["round"]))
            return done, dict(clients)

        def view(server: Tree, client: Tree | None) -> dict[str, Any]:
            return {**shared(server, client), IMAGES: server[IMAGES]}

        return Method(
            init,
            passes,
            aggregate,
            {GLOBAL: view},
            before=(self._first(setting), self._sending()),
            send=lambda server: {kind: server[kind] for kind in ("params", "buffers")},
            trace=lambda server: {"global": server[IMAGES]},
            trace_clients=lambda clients: {"local": self._some(setting, clients[IMAGES])},
            admit=virtual.admit(self.images),
            works=(self._work(setting),),
        )

    def _refreshes(self, round_: int) -> int:
        return self.client_steps if self.due(round_) and round_ > 1 else 0

    def _matching(self, setting: Setting, network: Any, steps: Any) -> Pass:
        matching = Matching(self.real, self.image_lr, self.image_momentum)
        return virtual.distribution_matching(setting, matching, steps, network)

    def _anchors(self, setting: Setting) -> virtual.Virtual:
        def found(work: Tree) -> tuple[Tensor, Tensor]:
            images = work[ANCHORS]
            return images, virtual.labels(setting.classes, self.global_images, images)

        return found

    def _trains(self, setting: Setting, part: Pass, due: Any) -> Pass:
        """A pass over a client's images and the global ones."""
        y = torch.cat(
            [
                virtual.labels(setting.classes, count, torch.zeros(()))
                for count in (self.images, self.global_images)
            ]
        )

        def begin(server: Tree, client: Tree) -> dict[str, Any]:
            return {**part.begin(server, client), **{k: client[k] for k in (IMAGES, ANCHORS)}}

        def both(work: Tree) -> tuple[Tensor, Tensor]:
            return torch.cat([work[IMAGES], work[ANCHORS]]), y.to(work[IMAGES].device)

        return virtual.on_images(replace(part, begin=begin), setting, both, len(y), due)

    def _first(self, setting: Setting) -> Exchange:
        """Before round 1: every client gets its virtual images."""
        begun: tuple[Pass | Sweep, ...] = (virtual.statistics(setting, self.images, self.initial),)
        if self.initial == "real":
            begun = (virtual.some_of_its_own(self.images),)
        warmup = self._matching(setting, "new", lambda round_: self.warmup)
        return Exchange(
            (*begun, warmup),
            virtual.unchanged,
            due=lambda round_: round_ == 1,
            send=lambda server: {"key": server["key"]},
            everyone=True,
        )

    def _sending(self) -> Exchange:
        """At first and after the server's images changed: all clients get them."""

        def end(
            server: Tree, client: Tree, sent: Tree, seen: Tree
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            return {**client, ANCHORS: server[IMAGES]}, {}

        def look(server: Tree, client: Tree, sent: Tree, batch: Any) -> dict[str, Any]:
            return {"samples": batch["weight"].sum()}

        return Exchange(
            (Sweep(look, end, split="none"),),
            virtual.unchanged,
            due=lambda round_: round_ == 1 or self.due(round_ - 1),
            send=lambda server: {IMAGES: server[IMAGES]},
            everyone=True,
        )

    def _work(self, setting: Setting) -> ServerWork:
        once = replace(self, server_steps=1)
        return ServerWork(
            lambda round_: self.server_steps if self.due(round_) else 0,
            lambda server: once._matched(setting, server, server, 1),
        )

    def _matched(self, setting: Setting, server: Tree, mean: Tree, round_: int) -> Tensor:
        """The server's images after gradient matching in a round."""
        lr = learning_rate(setting.training, round_)
        moved = trees.apply(lambda old, new: (old - new) / lr, server["params"], mean["params"])
        return matched(
            setting.network,
            server,
            server[IMAGES],
            virtual.labels(setting.classes, self.global_images, server[IMAGES]),
            moved,
            steps=self.server_steps,
            lr=self.image_lr,
            momentum=self.image_momentum,
            key=server["key"] + round_,
        )

    def _some(self, setting: Setting, images: Tensor) -> Tensor:
        """The first images of every class, [clients, classes x kept, ...]."""
        by_class = images.unflatten(1, (setting.classes, -1))
        return by_class[:, :, : self.kept].flatten(1, 2).clone()
