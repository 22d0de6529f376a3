"""Optimizers over trees, under the name by which other programs know them; see `fl.api`."""

from fl.api import Optimizer, adamw, optimizer, sgd

__all__ = ["Optimizer", "adamw", "optimizer", "sgd"]
