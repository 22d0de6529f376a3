"""Low-rank adapters of linear layers.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen. LoRA: Low-Rank Adaptation of Large Language
Models. ICLR 2022. arXiv:2106.09685 (section 4.1).
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from fl.base.model_keys import Lora
from fl.pytorch.patterns import matches


class LoraLinear(nn.Module):
    """A frozen linear layer, to whose weights ``scale * up @ down`` is added.

    ``up`` is 0 at first, so that a new layer computes what the frozen one does.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        self.down = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.up = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:
        """The sum of weights, for layers such as attention that read instead of calling it."""
        return self.base.weight + self.scale * (self.up @ self.down)

    @property
    def bias(self) -> Tensor | None:
        """The frozen bias."""
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, [b, ..., out], without making the sum of weights."""
        outputs: Tensor = self.base(x)
        return outputs + self.scale * F.linear(F.linear(x, self.down), self.up)


def add_lora(module: nn.Module, lora: Lora) -> None:
    """Freeze a model and adapt its linear layers; the head, its last linear layer, is trained.

    Args:
        module: The model, which is changed.
        lora: The adapters.

    Raises:
        FedloomError: If a pattern matches no linear layer before the head.
    """
    linear = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}
    head = getattr(module, "head_layer", next(reversed(linear), None))
    linear.pop(head, None)
    module.requires_grad_(False)
    if head is not None:
        module.get_submodule(head).requires_grad_(True)
    for name in matches(lora.layers, linear, "adapter.lora.layers", "linear layer before the head"):
        parent, _, key = name.rpartition(".")
        adapted = LoraLinear(linear[name], lora.rank, lora.alpha)
        setattr(module.get_submodule(parent), key, adapted)
