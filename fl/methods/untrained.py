"""The model as it begins, which nobody trains: a stored one from a file, or one that knows nothing.

No paper's: what other entries start from (``start: untrained``) where a model brings weights of its
own, such as ``resnet18: {weights: imagenet}``, and the score of that model as it is.

Family: reference. Exchanged: nothing. Local: nothing. Key: none.
"""

from __future__ import annotations

from torch import Tensor

from fl.api import BuildContext, Method, Tree, all_weights, declare, select, shared


@declare("global", tasks="any", training={"rounds": 1, "local_epochs": 1})
class Untrained:
    """The initial model, without hyper-parameters."""

    def build(self, context: BuildContext) -> Method:
        """No pass at all."""

        def init(variables: Tree) -> tuple[Tree, Tree]:
            return select(variables, all_weights), {}

        def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            return dict(server), dict(clients)

        return Method(init, (), aggregate, {"global": shared})
