"""Fedloom: federated-learning studies, from data to published tables, that anyone can run again.

`run` trains a study that is written in Python, on `arrays` of one's own too; `load` reads one of
``config/studies``. Both give a `Result`. `compare` sets a method beside all that are compared in
``docs/results/comparison.md``; `search` finds hyper-parameters. `watch` shows the runs that another
process trains. `load_model` reads a saved `Model`. A name is imported when it is asked for, so that
``import fl`` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl.base.errors import FedloomError as FedloomError
    from fl.base.errors import FedloomWarning as FedloomWarning
    from fl.notebook.arrays import arrays as arrays
    from fl.notebook.compare import compare as compare
    from fl.notebook.comparison import Comparison as Comparison
    from fl.notebook.model import Model as Model
    from fl.notebook.model import load_model as load_model
    from fl.notebook.result import Result as Result
    from fl.notebook.run import load as load
    from fl.notebook.run import run as run
    from fl.notebook.search import SearchResult as SearchResult
    from fl.notebook.search import search as search
    from fl.notebook.watch import watch as watch

MODULE_BY_NAME = {
    "run": "fl.notebook.run",
    "search": "fl.notebook.search",
    "SearchResult": "fl.notebook.search",
    "load": "fl.notebook.run",
    "arrays": "fl.notebook.arrays",
    "compare": "fl.notebook.compare",
    "Comparison": "fl.notebook.comparison",
    "Result": "fl.notebook.result",
    "Model": "fl.notebook.model",
    "load_model": "fl.notebook.model",
    "watch": "fl.notebook.watch",
    "FedloomError": "fl.base.errors",
    "FedloomWarning": "fl.base.errors",
}
"""By name, the module that has it."""

__all__ = [
    "Comparison",
    "FedloomError",
    "FedloomWarning",
    "Model",
    "Result",
    "SearchResult",
    "arrays",
    "compare",
    "load",
    "load_model",
    "run",
    "search",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *MODULE_BY_NAME]
