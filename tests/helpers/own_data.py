"""Data as users have them: tables, folders of images, and a study on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import planning
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from PIL import Image

from fl.base import registry
from fl.base.errors import Location
from fl.cli import main
from fl.data import partition_table, preparation
from fl.data.prepared import Prepared
from fl.engine.simulation import Simulation
from fl.plan import bundle as bundles
from fl.plan import plan
from fl.plan.run_spec import RunSpec

READER = '''"""Measurements: rows of two numbers and a label.

Us. Ours. 2026.
"""
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
import numpy as np
from fl.data.download import Source
from fl.data.prepared import Writer

@dataclass(frozen=True)
class Measured:
    """Ours."""
    size: ClassVar[int] = 60
    shape: ClassVar[tuple[int, ...]] = (2,)
    classes: ClassVar[int] = 2
    natural_clients: ClassVar[int | None] = None
    sources: ClassVar[tuple[Source, ...]] = (Source("own.csv", "file:own.csv"),)

    def read(self, raw: Path, writer: Writer) -> None:
        rows = np.loadtxt(raw / "own.csv", delimiter=",")
        writer.save("x", rows[:, :2].astype(np.float32))
        writer.save("y", rows[:, 2].astype(np.int64))
        writer.describe(["low", "high"])
'''


def rows(sign: int) -> str:
    return "".join(f"{i},{sign * i},{int(sign * (i - 30) > 0)}\n" for i in range(60))


def write(root: Path, datasets: list[Any], plugins: list[str] | None = None, **study: Any) -> None:
    """The config with the study ``tiny``: one round of FedAvg on ``datasets``."""
    partition = {"dirichlet": {"clients": 3, "alpha": 1.0, "min_samples": 5}}
    tiny = {
        **{"datasets": datasets, "partitions": [partition], "models": [{"mlp": {"hidden": [3]}}]},
        **{"seeds": [0], "training": {"rounds": 1}, "methods": {"fedavg": None}, **study},
    }
    studies = root / "config" / "studies"
    studies.mkdir(parents=True, exist_ok=True)
    (studies / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    settings = {"studies": ["tiny"], "plugins": plugins or [], "execution": planning.EXECUTION}
    (root / "config" / "config.yaml").write_text(yaml.safe_dump(settings))


def patients(path: Path, **changed: list[Any]) -> pd.DataFrame:
    """60 rows of three hospitals, in which the diagnosis follows from the age."""
    age = np.arange(60) % 30 + 20
    columns: dict[str, Any] = {
        **{"age": age, "height": 150.5 + age, "smokes": age % 2 == 0, "name": ["Ann"] * 60},
        **{"diagnosis": np.where(age < 35, "well", "ill"), "hospital": np.arange(60) % 3 + 8},
    }
    table = pd.DataFrame({**columns, **changed})
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)
    return table


OWN = {"label": "diagnosis", "client": "hospital", "drop": ["name"]}


def dataset(name: str, path: Path, **keys: Any) -> Any:
    entry = registry.find("data set", name, Location("the test"))
    return entry.instantiate(entry.parse({"path": str(path), **keys}, Location("the test")))


def prepared(made: Any, folder: Path) -> Prepared:
    return preparation.prepare_folder(made, "own", folder / "raw", folder / "prepared")


def assembled() -> tuple[Simulation, pd.DataFrame]:
    """The simulation of the one run that is planned, and its partition."""
    assert main.main(["plan", "--write"]) == 0
    [name] = names()["bundles"]
    bundle = bundles.read(Path(f"results/plan/bundles/{name}.json"))
    simulation = RunSpec(bundle.runs[0].spec).assemble(bundle.folders, torch.device("cpu"))
    [table] = Path("results/partitions").glob("*/partition.parquet")
    return simulation, partition_table.read(table)


def photo(path: Path, shade: int, size: tuple[int, int] = (6, 5), mode: str = "L") -> np.ndarray:
    """A picture [height, width(, 3)] that gets lighter to the right, saved as ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.tile(np.arange(size[1], dtype=np.uint8) + shade, (size[0], 1))
    if mode == "RGB":
        pixels = np.stack([pixels, pixels + 50, pixels * 0], axis=-1)
    Image.fromarray(pixels).save(path)
    return pixels


def photos(folder: Path, mode: str = "L") -> list[np.ndarray]:
    """Three of cats and three of dogs, in the order of their paths."""
    names = ["cat/1.png", "cat/2.png", "cat/more/3.PNG", "dog/1.png", "dog/2.bmp", "dog/3.tif"]
    return [photo(folder / name, 20 * n, mode=mode) for n, name in enumerate(names)]


def in_parquet(path: Path, labels: list[Any], **changed: list[Any]) -> None:
    """The same schema and images, and columns beside or in place of them."""
    real = pq.read_table(HUGGING_FACE)
    made = {"image": real["image"].to_pylist()[: len(labels)], "label": labels, **changed}
    path.parent.mkdir(exist_ok=True, parents=True)
    fields = [real.schema.field(key) for key in ("image", "label")]
    fields += [pa.field(key, pa.string()) for key in changed if key not in ("image", "label")]
    schema = pa.schema(fields, metadata=real.schema.metadata)
    pq.write_table(pa.table(made, schema=schema), path)


def names() -> dict[str, set[str]]:
    """Ids of the data sets, partitions and bundles of the plan."""
    bundles = plan.make(Path("config")).bundles
    return {
        "datasets": {bundle.dataset for bundle in bundles.values()},
        "partitions": {bundle.partition for bundle in bundles.values()},
        "bundles": {*bundles},
    }


HUGGING_FACE = Path(__file__).with_name("huggingface.parquet")
"""Six grey images of 4 x 5 pixels, image n of shade n, of classes zebra and ant in turn: as
``Dataset.to_parquet`` of datasets 5.2.0 wrote them, with the features ``Image()`` and
``ClassLabel(names=["zebra", "ant"])``.
"""
