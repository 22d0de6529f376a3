"""The classifier, trained on the server's own labelled samples on a body that stands still."""

from __future__ import annotations

from torch import Tensor

from fl.api import Batch, Pass, Rate, Sampling, Setting, Tree, optimizer


def head_pass(setting: Setting, epochs: int) -> Pass:
    """A pass for `fl.api.method.Setting.at_server`, over a tree with ``params`` and ``buffers``.

    The body is in evaluation mode. The optimizer is the run's and starts afresh.
    """
    network, steps = setting.network, optimizer(setting.training)

    def begin(server: Tree, client: Tree) -> Tree:
        params = client["params"]
        head = {name: leaf for name, leaf in params.items() if name in network.head}
        body = {name: leaf for name, leaf in params.items() if name not in network.head}
        work = {"params": head, "frozen": body, "buffers": client["buffers"]}
        return {**work, "optimizer": steps.init(head)}

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        params = {**work["frozen"], **work["params"]}
        outputs = network.eval(params, work["buffers"], batch["x"]).outputs
        return setting.task.loss(outputs, batch), {}

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        params, state = steps.step(work["params"], grads, work["optimizer"], lr)
        return {**work, "params": params, "optimizer": state}

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        return {**client, "params": {**client["params"], **work["params"]}}, {}

    return Pass(begin, loss, update, end, Sampling(epochs=epochs))
