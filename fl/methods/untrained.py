"""The model as it begins, which nobody trains: a stored one from a file, or one that knows nothing.

No paper's: what other entries start from (``start: untrained``) where a model brings weights of its
own, such as ``resnet18: {weights: imagenet}``, and the score of that model as it is.

Family: reference. Exchanged: nothing. Local: nothing. Key: none.
"""

from __future__ import annotations

from fl.api import (
    BuildContext,
    Method,
    Tree,
    Variables,
    all_weights,
    declare,
    select,
    shared_model,
)
from fl.blocks.exchange import aggregate_nothing


@declare("global", tasks="any", training={"rounds": 1, "local_epochs": 1})
class Untrained:
    """The initial model, without hyper-parameters."""

    def build(self, context: BuildContext) -> Method:
        """No pass at all."""

        def init(variables: Variables) -> tuple[Variables, Tree]:
            return select(variables, all_weights), {}

        return Method(init, (), aggregate_nothing, {"global": shared_model})
