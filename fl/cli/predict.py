"""The command ``fedloom predict``: predict new samples by a stored or a saved model."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.base import plugins
from fl.base.errors import FedloomError, Location
from fl.cli.commands import add_config_option, loading, say
from fl.cli.stores import find_run, readable
from fl.plan import config, plan_files
from fl.store.run_record import run_of

if TYPE_CHECKING:
    import pandas as pd

    from fl.notebook.model import Model

TABLES = (".csv", ".parquet")
"""Endings of ``--out``; masks are written as ``.npy``."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command."""
    add_config_option(parser)
    parser.add_argument(
        "model",
        metavar="RUN",
        help="a run's id, its first characters, or its folder; or the folder of a saved model",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="a table; a text file with a text a line; an image, or a folder of images; or an "
        "array in a file .npy",
    )
    parser.add_argument("--out", type=Path, help="file for the predictions: .csv, .parquet or .npy")
    parser.add_argument("--client", help="number or name of the client whose model predicts")
    parser.add_argument("--stage", help="global or personal (default: that of tables)")
    parser.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
    parser.set_defaults(run=_predict)


def _predict(parsed: argparse.Namespace) -> None:
    out = parsed.out
    if out is not None and out.suffix not in (*TABLES, ".npy"):
        raise FedloomError(f"--out: is {out}", "a name that ends in .csv, .parquet or .npy")
    if not parsed.file.exists():
        raise FedloomError(f"{parsed.file}: does not exist", "a file, or a folder of images")
    with loading():
        import numpy as np

        from fl.base import files
        from fl.notebook.model import RECORD
    model = _saved(parsed) if (Path(parsed.model) / RECORD).exists() else _stored(parsed)
    raw = _raw(model, parsed.file)
    if out is not None and out.suffix == ".npy":
        with files.disk_errors(out), files.atomic_writer(out) as file:
            np.save(file, model.predict(raw), allow_pickle=False)
    else:
        table = _table(model, raw)
        if out is None:
            for line in table.to_csv(index=False).splitlines():
                say(line)
            return
        content = table.to_csv(index=False).encode() if out.suffix == ".csv" else None
        with files.disk_errors(out):
            files.write_bytes(out, table.to_parquet(index=False) if content is None else content)
    say(out)


def _saved(parsed: argparse.Namespace) -> Model:
    from fl.notebook.model import load_model

    for option in ("client", "stage"):
        if getattr(parsed, option) is not None:
            raise FedloomError(f"--{option}: is given, but {parsed.model} is one saved model")
    folders: tuple[str, ...] = ()
    if (parsed.config / "config.yaml").exists():
        folders = config.read_settings(parsed.config).plugins
    return load_model(parsed.model, folders)


def _stored(parsed: argparse.Namespace) -> Model:
    """Return a model of a stored run; its data are made again if they are not there."""
    from fl.data.download import LOCK_FILE
    from fl.notebook.keys import CLASSES_FOLDER
    from fl.notebook.stored import StoredModels
    from fl.runner.recompute import stored_bundle

    settings = plan_files.read_settings(parsed.config)
    classes = Path(settings.results) / CLASSES_FOLDER  # Of calls of `fl.run`.
    of_calls = tuple(map(str, sorted(classes.glob("*_*"))))
    plugins.use(of_calls, Location(str(classes)))
    settings = replace(settings, plugins=(*settings.plugins, *of_calls))
    store = readable(parsed.store or settings.store)
    runs = store.runs()
    searched, advice = f"{len(runs)} runs in {store.root}", "list runs with `fedloom store ls`"
    run = find_run(run_of(parsed.model), runs, searched, advice)
    bundle = stored_bundle(run, store, settings, parsed.config / LOCK_FILE)
    models = StoredModels.open(bundle, bundle.runs[0], store, None)
    client = parsed.client
    if client is not None and client.isdecimal():
        client = int(client)
    return models.model(parsed.stage or models.stage, client)


def _raw(model: Model, path: Path) -> Any:
    """Return the samples of a file as a model takes them."""
    import numpy as np

    if path.suffix == ".npy":
        try:
            return np.load(path, allow_pickle=False)
        except (ValueError, OSError) as error:
            raise FedloomError(f"{path}: is no array of NumPy ({error})") from error
    [item, *others] = model.card.inputs.values()
    if others:
        problem = f"{path}: the model has the inputs {', '.join(model.card.inputs)}"
        raise FedloomError(problem, advice="fl.load_model and its predict, with a dictionary")
    if item.text is not None and path.suffix == ".txt":
        return path.read_text(encoding="utf-8").splitlines()
    if item.images is None and item.text is None and item.table is None:
        raise FedloomError(f"{path}: is no array", f"{item.allowed}, in a file .npy")
    return path


def _table(model: Model, raw: Any) -> pd.DataFrame:
    """Return a row for each sample: the file of an image, what is predicted, and probabilities."""
    import pandas as pd

    from fl.data.readers.raw_inputs import list_images

    [item, *_] = model.card.inputs.values()
    columns: dict[str, Any] = {}
    if isinstance(raw, Path) and item.images is not None:
        columns["image"] = [str(path) for path in list_images(raw)]
    if model.card.task == "classification":
        shares = model.predict_proba(raw)
        columns["predicted"] = [model.classes[number] for number in shares.argmax(1)]
        columns |= {f"share_{name}": shares[:, k] for k, name in enumerate(model.classes)}
    else:
        predicted = model.predict(raw)
        if predicted.ndim > 1:
            raise FedloomError("masks: are no column of a table", advice="--out FILE.npy")
        columns["predicted"] = predicted
    return pd.DataFrame(columns)
