"""A whole run of PFLlib, as it is, on networks and data of `bench.runs`.

``python pfllib.py PFLLIB as-it-is|lean OPTIONS`` starts PFLlib's own main.py with OPTIONS, in
a folder beside whose parent's ``dataset`` the data are; it writes there alone. The networks of the
names DNN and CNN are replaced by ones for digits, with the layers of `fl.models.mlp` and
`fl.models.cnn`. ``lean`` keeps the data in memory, where PFLlib reads and converts them anew for
every epoch, and leaves out the area under the curve. The last word printed is the processor's
seconds from the making of clients to the end of training.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

CLASSES = 10


class Net(nn.Module):
    """Layers, and the last one apart: PFLlib takes that off. PFLlib pickles its models."""

    def __init__(self, layers: list[nn.Module], width: int) -> None:
        super().__init__()
        self.body, self.fc = nn.Sequential(*layers), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        found: Tensor = self.fc(self.body(x))
        return found


def mlp(*_: object, **__: object) -> nn.Module:
    """64-200-200-10."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in ((64, 200), (200, 200)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return Net(layers, 200)


def cnn(*_: object, **__: object) -> nn.Module:
    """As in `fl.models.cnn`."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32)):
        layers.append(nn.Conv2d(before, after, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return Net([*layers, nn.Flatten()], 32 * 2 * 2)


NETWORKS = {"DNN": "mlp", "FedAvgCNN": "cnn"}
"""What makes a network, by the name of what PFLlib calls for one."""

MISSING = "avg_generalization_metrics"
"""What FedAS calls once it has trained, and PFLlib (d832e76) does not define."""


def lean() -> None:
    """Data in memory, and accuracy alone."""
    import sklearn.metrics
    from utils import data_utils

    data_utils.read_client_data = functools.cache(data_utils.read_client_data)
    sklearn.metrics.roc_auc_score = lambda *_, **__: 0.0


def servers() -> Iterator[Any]:
    """Every class of a method's server; main.py imports their modules too."""
    from flcore import servers as package
    from flcore.servers.serverbase import Server

    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"flcore.servers.{found.name}")
        for server in vars(module).values():
            if isinstance(server, type) and issubclass(server, Server) and server is not Server:
                yield server


def timed(server: Any, spent: list[float]) -> None:
    """Have a server note the processor's seconds from when it is made to when it has trained."""
    make, train = server.__init__, server.train

    def begin(self: Any, *arguments: Any) -> None:
        self.begun = time.process_time()
        make(self, *arguments)

    def run(self: Any) -> None:
        train(self)
        spent.append(time.process_time() - self.begun)

    server.__init__, server.train = begin, run


def main(folder: str, how: str, *options: str) -> None:
    """Run PFLlib's main.py."""
    system = Path(folder) / "system"
    sys.path.insert(0, str(system))
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    # PFLlib imports torchvision, which this makes importable beside a torch without CUDA.
    importlib.import_module("fl.pytorch.vision")
    if how == "lean":
        lean()
    from flcore.trainmodel import models

    # Imported by name, as pickle looks for the class there and main.py takes the place of __main__.
    own = importlib.import_module("pfllib")
    for name, make in NETWORKS.items():
        setattr(models, name, getattr(own, make))
    spent: list[float] = []
    for server in servers():
        timed(server, spent)
        if not hasattr(server, MISSING):
            setattr(server, MISSING, lambda _: float("nan"))
    sys.argv = [str(system / "main.py"), *options]
    runpy.run_path(sys.argv[0], run_name="__main__")
    print(spent[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
