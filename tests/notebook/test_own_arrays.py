"""Data from memory: `fl.arrays` is the data set `arrays`, of a call and of a file alike."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import planning
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import fl
from fl import report
from fl.base.errors import FedloomError
from fl.data.prepared import Prepared
from fl.plan import plan
from fl.pytorch.vision import torchvision

transforms = torchvision.transforms

X = np.random.default_rng(0).normal(3.0, 2.0, (60, 4)).astype(np.float32)
Y = np.arange(60) % 3
WHOSE = np.repeat(["north", "south", "west"], 20)
CALL: dict[str, Any] = {
    "partition": "natural",
    "model": "logistic",
    "methods": ["fedavg"],
    "rounds": 2,
    "progress": False,
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ids(result: fl.Result) -> list[str]:
    return sorted(run.run for run in result.study.runs)


def test_arrays_are_named_by_content_and_a_study_can_name_them(tmp_path: Path) -> None:
    first = fl.run(dataset=fl.arrays(X, Y, client=WHOSE), **CALL, seeds=2)
    [file] = Path("data/arrays").glob("arrays-*.npz")
    again = fl.run(dataset=fl.arrays(torch.tensor(X), list(Y), client=WHOSE), **CALL, seeds=2)
    assert ids(again) == ids(first)
    config = planning.write_config(
        tmp_path,
        {
            "datasets": [{"arrays": {"path": str(file)}}],
            **{"partitions": ["natural"], "models": ["logistic"], "seeds": [0, 1]},
            "training": {"rounds": 2},
        },
    )
    assert ids(first) == sorted(r.run for r in plan.make(config).studies["tiny"].runs)
    X2 = X.copy()  # noqa: N806
    X2[7, 2] += 1
    other = fl.run(dataset=fl.arrays(X2, Y, client=WHOSE, name="other"), **CALL, seeds=2)
    assert not {*ids(other)} & {*ids(first)}
    x, y = first.inputs("fedavg", client=1)
    assert set(first.predictions("fedavg")["client"]) == {0, 1, 2}
    assert len(x) == len(y)
    assert (
        abs(
            float(torch.cat([first.inputs("fedavg", k, split="train")[0] for k in range(3)]).mean())
        )
        < 1e-5
    )


def test_what_arrays_become(tmp_path: Path) -> None:
    images = (np.arange(60 * 8 * 8) % 256).astype(np.uint8).reshape(60, 1, 8, 8)
    split = pd.Series(["train"] * 40 + ["test"] * 20)
    made = fl.arrays(images, [f"class {y}" for y in Y], domain=WHOSE, split=split, name="photos")
    call = {**CALL, "partition": {"homogeneous": {"clients": 2, "test": "published"}}}
    result = fl.run(dataset=made, **{**call, "model": "cnn", "rounds": 1})
    prepared = Prepared.open(next(Path("data/prepared").iterdir()))
    assert prepared.classes == ("class 0", "class 1", "class 2")
    assert prepared.domains == ("north", "south", "west")
    assert (prepared.normalisation or {})["scale"] == 1 / 255
    assert np.array_equal(prepared.x, images)
    assert list(result.confusion("fedavg").index) == ["class 0", "class 1", "class 2"]
    assert result.predictions("fedavg")["sample"].min() == 40


def test_a_data_set_of_pytorch_is_read_sample_by_sample() -> None:
    pairs = TensorDataset(torch.tensor(X), torch.tensor(Y))
    assert fl.arrays(pairs).item(Path("data")) == fl.arrays(X, Y).item(Path("data"))
    tokens = fl.arrays(np.arange(240).reshape(60, 4) % 9, Y)
    model = {"lstm": {"embedding": 4, "hidden": 4}}
    call = {**CALL, "partition": {"homogeneous": {"clients": 2}}, "model": model}
    assert fl.run(dataset=tokens, **{**call, "rounds": 1}).table()["mean"].notna().all()


class Photos(Dataset[Any]):
    """As torchvision's data sets are: pictures of Pillow's, a transform, and labels."""

    def __init__(self, pixels: np.ndarray, transform: Any = None) -> None:
        self._pixels, self._transform = pixels, transform

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        picture = Image.fromarray(self._pixels[i])
        return (self._transform(picture) if self._transform else picture), int(Y[i])


PIXELS = np.random.default_rng(1).integers(0, 256, (60, 8, 9, 3), dtype=np.uint8)


def test_pictures_of_a_data_set_of_torchvision_have_their_channels_first() -> None:
    to_8_bits = transforms.PILToTensor()
    for x in (Photos(PIXELS), Photos(PIXELS, to_8_bits), PIXELS.transpose(0, 3, 1, 2)):
        made = fl.arrays(x) if isinstance(x, Photos) else fl.arrays(x, Y)
        assert np.array_equal(made.arrays["x"], PIXELS.transpose(0, 3, 1, 2))
        assert np.array_equal(made.arrays["y"], Y)
    grey = fl.arrays(Photos(PIXELS[..., 0])).arrays["x"]
    assert np.array_equal(grey, PIXELS[:, None, :, :, 0])
    scaled = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
    own = fl.arrays(Photos(PIXELS, scaled))
    assert (own.arrays["x"].dtype, own.arrays["x"].shape) == (np.float32, (60, 3, 8, 8))
    call = {**CALL, "partition": {"homogeneous": {"clients": 2}}, "model": "cnn", "rounds": 1}
    assert fl.run(dataset=own, **call).table()["mean"].notna().all()


def test_a_model_for_images_on_a_table_is_refused_by_name_and_shape() -> None:
    call = {**CALL, "partition": {"homogeneous": {"clients": 2}}, "model": "cnn"}
    with pytest.raises(FedloomError) as caught:
        fl.run(dataset=fl.arrays(X, Y, name="rows"), **call)
    said = str(caught.value)
    assert re.search(r"models\.0\.cnn: cnn .*arrays\(rows\), of shape \(4,\)\. Try: .*mlp", said)
    assert "unpack" not in said
    with pytest.raises(FedloomError, match=r"of shape \(8, 9\).*height, width\]; .*x\[:, None\]"):
        fl.run(dataset=fl.arrays(PIXELS[..., 0] / 255, Y), **call)


@pytest.mark.parametrize(
    ("x", "model", "allowed"),
    [
        (PIXELS[..., 0].astype("int64"), "cnn", r"x\.astype\('float32'\); .*x\[:, None\]"),
        (PIXELS[..., 0] / 255, "convnet", r"\[channels, height, width\].*`x\[:, None\]`"),
    ],
)
def test_grey_images_without_a_channel_are_told_how_to_get_it(
    x: np.ndarray, model: str, allowed: str
) -> None:
    call = {**CALL, "partition": {"homogeneous": {"clients": 2}}, "model": model}
    with pytest.raises(FedloomError, match=rf"models\.0\.{model}: .*\(8, 9\).*{allowed}"):
        fl.run(dataset=fl.arrays(x, Y), **call)


@pytest.mark.parametrize(
    ("argument", "value", "shown", "advice"),
    [
        ("x", X > 3, "bool", r"x\.astype\('float32'\)"),
        ("x", X * 1j, "complex", r"np\.stack\(\[x\.real, x\.imag\]"),
        ("x", X.astype(str), "<U", r"x\.astype\('float32'\)"),
        ("x", X[:, 0], r"float32 \[60\]", r"x\[:, None\]"),
        ("x", torch.tensor(X).to("meta"), "meta", "another device"),
        ("x", torch.zeros(60, 4, dtype=torch.uint4), "uint4", r"`float\(\)`"),
        ("y", Y > 0, "bool", r"y\.astype\(int\)"),
        ("y", torch.tensor(Y, dtype=torch.bfloat16), "float32", r"y\.astype\(int\)"),
        ("y", np.asarray(Y, "complex64"), "complex64", "target"),
    ],
)
def test_types_that_are_no_data_are_told_what_to_write(
    argument: str, value: Any, shown: str, advice: str
) -> None:
    given = {"x": X, "y": Y} | {argument: value}
    with pytest.raises(FedloomError, match=rf"fl\.arrays: {argument}.*{shown}.*Try: .*{advice}"):
        fl.arrays(**given)


def test_printed_results_name_the_argument_in_place_of_its_file() -> None:
    call = {**CALL, "partition": {"homogeneous": {"clients": 2}}, "rounds": 1}
    frame = pd.DataFrame(X, columns=list("abcd")).assign(kind=Y)
    table = {"table": {"frame": frame, "label": "kind"}}
    for dataset, name in ((fl.arrays(X, Y, name="rows"), "rows"), (table, "frame")):
        result = fl.run(dataset=dataset, **call)
        for text in (str(result), result._repr_html_()):
            assert "data/arrays" not in text
        assert name in str(result)


def test_whole_numbers_for_a_model_of_measurements_are_named() -> None:
    counts = np.arange(240).reshape(60, 4) % 9
    call = {**CALL, "partition": {"homogeneous": {"clients": 2}}, "model": "mlp"}
    with pytest.raises(FedloomError) as caught:
        fl.run(dataset=fl.arrays(counts, Y), **call)
    said = str(caught.value)
    assert "9 different tokens" in said
    assert re.search(r"Try: .*x\.astype\('float32'\)", said)
    assert "dtype" not in said
    fl.run(dataset=fl.arrays(counts.astype("float32"), Y), **{**call, "rounds": 1})


def test_a_model_of_fewer_tokens_than_the_data_have_is_told_its_layer() -> None:
    counts = np.arange(240).reshape(60, 4) % 9
    call = {**CALL, "partition": {"homogeneous": {"clients": 2}}, "model": {"lstm": {"tokens": 5}}}
    with pytest.raises(FedloomError) as caught:
        fl.run(dataset=fl.arrays(counts, Y), **call)
    said = str(caught.value)
    assert "models.0.lstm: lstm(tokens=5)" in said
    assert "9 different tokens: layer embedding knows 5. Try: leave out `tokens`" in said


def test_domains_of_arrays_make_clients() -> None:
    own = fl.arrays(X, Y, domain=WHOSE)
    result = fl.run(dataset=own, **{**CALL, "partition": {"domain": {"clients_per_domain": 2}}})
    [folder] = Path("results/partitions").iterdir()
    table = pd.read_parquet(folder / "partition.parquet")
    domains = table.groupby("client")["sample"].agg(lambda rows: {WHOSE[row] for row in rows})
    assert domains.tolist() == [{"north"}, {"north"}, {"south"}, {"south"}, {"west"}, {"west"}]
    assert set(result.predictions("fedavg")["client"]) == set(range(6))
    with pytest.raises(FedloomError, match="arrays has no domains"):
        fl.run(dataset=fl.arrays(X, Y), **{**CALL, "partition": {"domain": {}}})


def test_an_area_that_no_client_has_is_told() -> None:
    own = fl.arrays(X, Y, client=Y)
    result = fl.run(dataset=own, **CALL, metrics=["auroc"])
    with pytest.raises(FedloomError, match=r"no client has test samples of two classes"):
        result.table(metric="auroc")
    text = report.table("notebook", "settings", Path("results"), Path("results/runs"), result.study)
    assert "area under the ROC curve" in text


class Items:
    """A data set of 60 items that a function makes."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Any:
        return self._item(i)


def test_every_array_that_pytorch_lacks_a_type_for_is_converted() -> None:
    expected = fl.arrays(X.astype(np.float64), Y).arrays
    with_gradients = Items(lambda i: (torch.tensor(X[i].astype(float), requires_grad=True), Y[i]))
    for own in (
        fl.arrays(X.astype(">f8"), Y.astype(">i4")),
        fl.arrays(X.astype(np.longdouble), Y),
        fl.arrays(torch.tensor(X.astype(float), requires_grad=True), torch.tensor(Y)),
        fl.arrays(np.ma.array(X.astype(float)), Y),
        fl.arrays(with_gradients),
        fl.arrays([torch.tensor(x.astype(float), requires_grad=True) for x in X], Y),
    ):
        assert own.arrays["x"].dtype == np.float64
        assert own.arrays["x"].dtype.isnative
        assert own.arrays["y"].dtype.isnative
        assert np.array_equal(own.arrays["x"], expected["x"])
        assert np.array_equal(own.arrays["y"], Y)
    np.savez("mine.npz", x=X.astype(">f4"), y=Y.astype(">i8"))
    call = {**CALL, "partition": {"homogeneous": {"clients": 2}}, "rounds": 1}
    assert len(fl.run(dataset={"arrays": {"path": "mine.npz"}}, **call).table())


def test_names_that_differ_are_accepted() -> None:
    fl.arrays(X, Y % 2 * 2 - 1)  # Labels of a support vector machine.
    fl.arrays(X, np.array(["a", "A", "1"])[Y])
    fl.arrays(X * [1, 0, 1, 1e-30], Y)
    fl.arrays(np.zeros((60, 16, 4, 4), np.float32), Y)  # Maps of features.


def test_tensors_of_types_that_numpy_lacks_are_widened() -> None:
    expected = torch.tensor(X).bfloat16().float().numpy()
    for x in (torch.tensor(X).bfloat16(), [*torch.tensor(X).bfloat16()]):
        assert np.array_equal(fl.arrays(x, Y).arrays["x"], expected)
    assert fl.arrays(torch.tensor(X).half(), Y).arrays["x"].dtype == np.float16


SHUFFLED = pd.DataFrame(X).sample(frac=1, random_state=1)


def test_columns_of_one_index_or_without_are_paired_by_place() -> None:
    y = pd.Series(Y).loc[SHUFFLED.index]
    for labels in (y, y.to_numpy(), [*y]):
        made = fl.arrays(SHUFFLED, labels, client=pd.Series(WHOSE, index=SHUFFLED.index))
        assert np.array_equal(made.arrays["x"], X[SHUFFLED.index])
        assert np.array_equal(made.arrays["y"], Y[SHUFFLED.index])


@pytest.mark.parametrize("key", ["y", "client", "split", "group", "domain", "target"])
def test_columns_of_another_index_are_refused(key: str) -> None:
    columns = {"y": Y} if key != "target" else {}
    columns[key] = pd.Series(Y, index=range(60))
    remedy = rf"`{key}\.loc\[x\.index\]`.*reset_index\(drop=True\)"
    with pytest.raises(FedloomError, match=f"{key}: has another index than x.*{remedy}"):
        fl.arrays(SHUFFLED, **columns)
    columns[key] = pd.Series(Y, index=range(100, 160))
    with pytest.raises(FedloomError, match=rf"{key}: has another.* Try: `{key}\.reset_index"):
        fl.arrays(SHUFFLED, **columns)


class Ragged:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(i + 1), i


WRONG = {
    "nan": (
        lambda: fl.arrays(np.where(X[5, 0] == X, np.nan, X), Y),
        "x of sample 5",
    ),
    "lengths": (lambda: fl.arrays(X, Y[:-1]), "y is [59], and there are 60 inputs"),
    "labels": (
        lambda: fl.arrays(X, Y / 1),
        "y is float64. Allowed: whole numbers or texts. Try: y.astype(int); or give `target`",
    ),
    "targets": (lambda: fl.arrays(X, np.append(X[1:, 0], np.nan)), "target of sample 59 is nan"),
    "one target": (lambda: fl.arrays(X, target=0 * Y), "target has one value only, 0"),
    "both": (lambda: fl.arrays(X, Y, target=Y), "has y and target. Allowed: y for classes, or "),
    "many": (lambda: fl.arrays(X, np.arange(60)), "y has 60 different values in 60 rows"),
    "split": (lambda: fl.arrays(X, Y, split=WHOSE), "split has 'north'. Allowed: train, test, val"),
    "no y": (lambda: fl.arrays(X), "y is missing"),
    "ragged": (
        lambda: fl.arrays(Ragged()),
        "float32 [2] in sample 1, but float32 [1] in the first",
    ),
    "channels last": (
        lambda: fl.arrays(PIXELS, Y),
        "x is uint8 [60, 8, 9, 3], with channels last. Allowed: images as [samples, channels, "
        "height, width]. Try: write x.transpose(0, 3, 1, 2) instead of x",
    ),
    "no channels": (lambda: fl.arrays(PIXELS[..., 0], Y), "write x[:, None] instead of x"),
    "deep pictures": (
        lambda: fl.arrays(Photos(np.full((60, 8, 9), 300, np.uint16))),
        "a picture: the image has mode I;16. Allowed: ",
    ),
    "whole numbers of images": (
        lambda: fl.arrays(np.full((60, 1, 8, 8), 300, np.int64), Y),
        "x is int64 [60, 1, 8, 8], and whole numbers but uint8 are tokens. Allowed: images as "
        "uint8, 0 to 255, or as floats. Try: write x.astype('float32') instead of x",
    ),
    "16 bits": (
        lambda: fl.arrays(PIXELS[..., 0].astype(np.uint16), Y),
        "x is uint16 [60, 8, 9], and whole numbers but uint8 are tokens. Allowed: images as "
        "uint8, 0 to 255, or as floats. Try: write x.astype('uint8') instead of x",
    ),
    "meta": (lambda: fl.arrays(torch.tensor(X).to("meta"), Y), "x: is a tensor on the device meta"),
    "sparse": (lambda: fl.arrays(torch.tensor(X).to_sparse(), Y), "torch.sparse_coo tensor. Try: "),
    "scores": (
        lambda: fl.arrays(TensorDataset(torch.tensor(X), torch.eye(3)[Y])),
        "y is [60, 3], and there are 60 inputs",
    ),
    "name": (lambda: fl.arrays(X, Y, name="a/b"), "fl.arrays: name: is 'a/b'"),
    "no name": (lambda: fl.arrays(X, Y, name=None), "fl.arrays: name: is None. Allowed"),  # type: ignore[arg-type]
    "frame": (lambda: fl.arrays(pd.DataFrame(X)), "x: is a DataFrame, but y is missing"),
    "matrix": (lambda: fl.arrays(X[:, :2]), "x: is a ndarray, but y is missing"),
    "mapping": (lambda: fl.arrays({"x": X, "y": Y}), "x: is a dict, but y is missing"),
    "dicts": (lambda: fl.arrays(Items(lambda i: {"x": X[i], "y": Y[i]})), "items are no pairs"),
    "random": (
        lambda: fl.arrays(Items(lambda i: (X[i] + np.random.default_rng().normal(), Y[i]))),
        "x: differs when sample 0 is read again, as by a random transform",
    ),
    "masked x": (lambda: fl.arrays(np.ma.masked_greater(X, 3), Y), "x: has masked values"),
    "masked y": (lambda: fl.arrays(X, np.ma.masked_equal(Y, 2)), "y: has masked values"),
    "masked item": (
        lambda: fl.arrays(Items(lambda i: (np.ma.masked_greater(X[i], 3), Y[i]))),
        "x: has masked values",
    ),
    "tiny": (
        lambda: fl.arrays(X.astype(float) * [1, 1e-300, 1, 1], Y),
        "x of channel 1 has no number above",
    ),
    "huge": (
        lambda: fl.arrays(X.astype(float) * [1, 1, 1e300, 1], Y),
        "x of channel 2 has numbers of size",
    ),
    "no class": (lambda: fl.arrays(X, Y - 1), "y has -1, as for a missing value"),
    "no class beside names": (
        lambda: fl.arrays(X, np.array(["a", "b", "-1"])[Y]),
        "y has -1, as for a missing value, first in sample ",
    ),
    "no client": (lambda: fl.arrays(X, Y, client=Y - 1), "client has -1, as for a missing value"),
    "missing": (
        lambda: fl.arrays(X, np.array(["a", "b", np.nan])[Y]),
        "y has 'nan', as for a missing value",
    ),
    "blank": (
        lambda: fl.arrays(X, np.array(["a", "b", "b "])[Y]),
        "y has one value in several spellings: 'b' and 'b '",
    ),
    "boolean": (lambda: fl.arrays(X, [True, 1, "b"] * 20), "spellings: '1' and 'True'"),
    "decimal": (
        lambda: fl.arrays(X, Y, domain=np.array(["0", "0.0", "1"])[Y]),
        "domain has one value in several spellings: '0' and '0.0'",
    ),
    "floats with channels last": (
        lambda: fl.arrays(np.zeros((60, 32, 32, 3), np.float32), Y),
        "x is float32 [60, 32, 32, 3], with channels last",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_arrays_that_are_no_data_set_are_refused(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(FedloomError) as caught:
        make()
    assert message in str(caught.value)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    Path("mine.npz").write_bytes(b"no archive")
    with pytest.raises(FedloomError, match=r"datasets.0.arrays: mine.npz: is no archive"):
        fl.run(dataset={"arrays": {"path": "mine.npz"}}, **CALL)
    np.savez("mine.npz", x=X, labels=Y)
    with pytest.raises(FedloomError, match=r"mine.npz: has no y\. Allowed"):
        fl.run(dataset={"arrays": {"path": "mine.npz"}}, **CALL)


def test_pages_of_an_image_are_not_left_out(tmp_path: Path) -> None:
    pages = [Image.fromarray(np.full((6, 5), shade, np.uint8)) for shade in (1, 99)]
    pages[0].save(tmp_path / "two.tif", save_all=True, append_images=pages[1:])

    def page(number: int) -> Image.Image:
        image = Image.open(tmp_path / "two.tif")
        image.seek(number)
        return image

    with pytest.raises(FedloomError, match=r"has 2 pages or frames. Allowed: one. Try: .*copy"):
        fl.arrays([(page(n % 2), n % 2) for n in range(8)])
    x = fl.arrays([(page(n % 2).copy(), n % 2) for n in range(8)]).arrays["x"]
    assert x[:, 0, 0, 0].tolist() == [1, 99] * 4
