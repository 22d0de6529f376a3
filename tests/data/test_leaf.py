"""LEAF's JSON, as its preprocessing leaves it: read as our own readers read LEAF's sets.

Layout: `utils/sample.py`, `remove_users.py` and `split_data.py` of LEAF
(https://github.com/TalwalkarLab/leaf), whose files have `users`, `num_samples`, `user_data` and, of
Shakespeare, `hierarchies`; its Sent140 has the text in fifth place of an input (`models/sent140`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import planning
import pytest
import sources

from fl.base import registry
from fl.base.errors import DataError, Location
from fl.cli import main
from fl.data import partitioning, preparation
from fl.data.datasets.sent140 import read_tweets
from fl.data.preparation import SourcePolicy
from fl.data.prepared import Prepared
from fl.data.readers.texts import ALPHABET
from fl.plan import plan

WHERE = Location("the test")
DRAW = np.random.default_rng(4)


def leaf(path: Path, **keys: Any) -> Any:
    entry = registry.find("data set", "leaf", WHERE)
    return entry.instantiate(entry.parse({"path": str(path), **keys}, WHERE))


def prepared(made: Any, folder: Path) -> Prepared:
    return preparation.prepare_folder(made, "leaf", folder / "raw", folder / "prepared")


def write(path: Path, by_user: Mapping[str, tuple[list[Any], list[Any]]], **changed: Any) -> None:
    """A file of LEAF's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": [*by_user],
        "num_samples": [len(y) for _, y in by_user.values()],
        "hierarchies": ["PLAY"] * len(by_user),
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in by_user.items()},
    }
    path.write_text(json.dumps({**content, **changed}))


def written_by(rows: int, width: int = 784) -> tuple[list[Any], list[Any]]:
    """Pictures as FEMNIST's vectors, and labels up to 61."""
    x = DRAW.integers(0, 256, (rows, width)) / 255
    return x.tolist(), DRAW.integers(0, 62, rows).tolist()


def test_vectors_and_images_come_out_as_they_went_in(tmp_path: Path) -> None:
    by_user = {"f2": written_by(80), "f1": written_by(120)}
    write(tmp_path / "all" / "all_data_0.json", {"f2": by_user["f2"]})
    write(tmp_path / "all" / "all_data_1.json", {"f1": by_user["f1"]})
    made = leaf(tmp_path / "all", image=[1, 28, 28])
    most = max(max(y) for _, y in by_user.values())
    assert (made.size, made.shape, made.natural_clients) == (200, (1, 28, 28), 2)
    assert made.classes == most + 1, "a label is a class, also where others are not there"
    assert leaf(tmp_path / "all").shape == (784,)
    whole = prepared(made, tmp_path)
    x, y = (np.concatenate([by_user[name][i] for name in ("f2", "f1")]) for i in (0, 1))
    assert np.array_equal(whole.x.reshape(200, 784), x.astype(np.float32))
    assert np.array_equal(whole.y, y)
    assert whole.client is not None and whole.split is None
    assert whole.client.tolist() == [1] * 80 + [0] * 120, "in order of names"


def of_leaf(name: str, folder: Path) -> Prepared:
    """Our reader of one of LEAF's data sets, on generated files in the published format."""
    (folder / "files").mkdir()
    generator = sources.generator(name)
    generator.write(folder / "files")
    entry = registry.find("data set", name, WHERE)
    made = entry.instantiate(entry.parse(generator.PARAMS, WHERE))
    place = folder / "published"
    return preparation.prepare_folder(
        made, name, folder / "raw", place, SourcePolicy(str(folder / "files"))
    )


def test_characters_are_those_of_the_data_set_shakespeare(tmp_path: Path) -> None:
    ours = of_leaf("shakespeare", tmp_path)
    assert ours.client is not None
    by_user = {}
    for role in range(int(ours.client.max()) + 1):
        rows = ours.client == role
        lines = ["".join(ALPHABET[n] for n in x) for x in ours.x[rows]]
        by_user[f"PLAY_{role:03}"] = (lines, [ALPHABET[y] for y in ours.y[rows]])
    write(tmp_path / "all_data.json", by_user)
    made = leaf(tmp_path / "all_data.json", text="characters")
    assert (made.shape, made.tokens, made.classes) == ((80,), 80, 80)
    theirs = prepared(made, tmp_path)
    for name in ("x", "y", "client"):
        assert np.array_equal(getattr(theirs, name), getattr(ours, name))
    assert theirs.classes == ours.classes
    assert theirs.normalisation is None


def test_words_are_those_of_the_data_set_sent140(tmp_path: Path) -> None:
    ours = of_leaf("sent140", tmp_path)
    tweets = list(read_tweets(next((tmp_path / "files").iterdir())))
    users = sorted({tweet.user for tweet in tweets})
    keys = ours.params
    kept = [u for u in users if sum(t.user == u for t in tweets) >= keys["min_samples"]]
    for split, name in enumerate(("train", "test")):
        by_user = {}
        for user in kept:
            own = [tweet for tweet in tweets if tweet.user == user and tweet.split == split]
            x = [["1", "a date", "NO_QUERY", user, tweet.text] for tweet in own]
            by_user[user] = (x, [tweet.label for tweet in own])
        write(tmp_path / "data" / name / f"all_data_{name}_9.json", by_user)
    (tmp_path / "data" / "raw_data").mkdir()
    (tmp_path / "data" / "raw_data" / "other.json").write_text("not read")
    made = leaf(tmp_path / "data", text="words", vocabulary=keys["vocabulary"])
    theirs = prepared(made, tmp_path)
    assert (made.shape, made.tokens) == ((25,), keys["vocabulary"] + 1)
    assert ours.split is not None and theirs.split is not None
    order = np.argsort(ours.split, kind="stable")
    assert set(theirs.split) == {0, 1}
    for array in ("x", "y", "client", "split"):
        assert np.array_equal(getattr(theirs, array), getattr(ours, array)[order])


def test_classes_without_samples_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"a": ([[0.0, 1.0]] * 6, [1, 2, 4] * 2)})
    made = leaf(tmp_path / "a.json")
    assert made.classes == 5, "a label is a class, also where others are not there"
    assert prepared(made, tmp_path).notes == ("2 of 5 classes have no sample: '0', '3'",)


VECTOR = ([[0.0, 1.0]] * 4, [0, 1, 0, 1])
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no key": (
        {"users": VECTOR},
        {},
        "a key is missing. Allowed: users, num_samples and user_data",
    ),
    "a count": ({"a": VECTOR}, {"num_samples": [3]}, "'a': has 4 x and 4 y, .* says 3"),
    "somebody": (
        {"a": VECTOR},
        {"user_data": {name: {"x": [[0.0]], "y": [0]} for name in "ab"}},
        "user 'b': is under user_data, but not in users. Allowed: users,",
    ),
    "twice": (
        {"a": VECTOR},
        {"users": ["a", "a"], "num_samples": [4, 4]},
        "user 'a': is 2 times in users",
    ),
    "no label": ({"a": (VECTOR[0], ["b", "c", " NA", "b"])}, {}, "'a': y has ' NA'. Allowed"),
    "spellings": (
        {"a": (VECTOR[0], ["b", "c", "b ", "c"])},
        {},
        "y has one value in several spellings: 'b' and 'b '",
    ),
    "a code": ({"a": VECTOR, "b": (VECTOR[0], [0, -1, 0, 1])}, {}, "y has -1, .*user 'b'"),
    "a code beside names": ({"a": (VECTOR[0], ["b", "-1"] * 2)}, {}, "y has -1, .*user 'a'"),
    "a code for a user": (dict.fromkeys(["0", "1", "-1"], VECTOR), {}, "users has -1, .*'-1'"),
    "nobody": ({"a": VECTOR}, {"user_data": {}}, "user 'a': is not under user_data"),
    "texts": ({"a": (["so", "no"] * 2, VECTOR[1])}, {}, "x has the text 'so'.* `text`"),
    "lengths": (
        {"a": VECTOR, "b": ([[1.0]] * 4, VECTOR[1])},
        {},
        "'b': x has inputs of length 1, but in .* of 2",
    ),
    "ragged": ({"a": ([[1.0], [1.0, 2.0]] * 2, VECTOR[1])}, {}, "'a': x: is no list of vectors"),
    "nan": ({"a": ([[float("nan")]] * 4, VECTOR[1])}, {}, "'a': x has .* not finite"),
    "labels": ({"a": (VECTOR[0], [0.5, 1, 0, 1])}, {}, r"'a': y has 0\.5. Allowed: whole"),
    "a number": ({"a": (VECTOR[0], [0, 1, 0, 5550100])}, {}, "label 5550100. Allowed: classes"),
    "image": ({"a": VECTOR}, {"image": [1, 28, 28]}, r"image is \[1, 28, 28\], and x has 2 each"),
    "no texts": ({"a": VECTOR}, {"text": "words"}, r"'a': x has \[0\.0, 1\.0\]. Allowed: texts"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_not_as_leaf_writes_it_is_refused_by_file_and_user(
    tmp_path: Path, fault: str
) -> None:
    by_user, changed, message = WRONG[fault]
    keys = {key: changed[key] for key in changed.keys() & {"image", "text"}}
    write(tmp_path / "a.json", by_user, **{k: changed[k] for k in changed.keys() - keys.keys()})
    if fault == "no key":
        (tmp_path / "a.json").write_text('{"users": []}')
    with pytest.raises(DataError, match=rf"a\.json.*{message}"):
        _ = leaf(tmp_path / "a.json", **keys).shape


@pytest.mark.parametrize(
    "names", [("training/a.json", "testing/a.json"), ("train.json", "test.json")]
)
def test_splits_of_other_names_are_not_poured_together(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for name in names:
        write(tmp_path / "data" / name, {"a": VECTOR})
    with pytest.raises(DataError, match=r"data: contains .* beside .*names that differ in numbers"):
        _ = leaf(tmp_path / "data").shape


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(
        DataError, match=r"contains no \.json file. Allowed: LEAF's files, or folders train"
    ):
        _ = leaf(tmp_path).shape


def test_a_study_on_train_and_test_of_leaf_needs_a_config_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in (("train", 12), ("test", 4)):
        by_user = {
            user: ([[i / 9, 1.0] for i in range(rows)], [0, 1] * (rows // 2)) for user in "ab"
        }
        write(tmp_path / "data_of_leaf" / name / "0.json", by_user)
    config = planning.write_config(
        tmp_path,
        {
            "datasets": [{"leaf": {"path": "data_of_leaf"}}],
            **{"partitions": [{"natural": {"test": "published"}}], "models": ["logistic"]},
        },
    )
    assert main.main(["plan", "--config", str(config), "--write"]) == 0
    [bundle] = plan.make(config).bundles
    assert main.main(["train", f"results/plan/bundles/{bundle}.json"]) == 0
    assert len(list(Path("runs").glob("*/run.json"))) == 1


def test_clients_keep_their_names_where_a_user_has_test_samples_alone(tmp_path: Path) -> None:
    for split, users in (("train", "bc"), ("test", "abc")):
        write(tmp_path / "leaf" / split / "0.json", dict.fromkeys(users, VECTOR))
    dataset = registry.find("data set", "leaf", WHERE).parse(
        {"path": str(tmp_path / "leaf")}, WHERE
    )
    scheme = registry.find("partition scheme", "natural", WHERE)
    for unseen, names in ((0, ["b", "c"]), ("published", ["a", "b", "c"])):
        keys = scheme.parse({"test": "published", "val": 0, "unseen": unseen}, WHERE)
        root = tmp_path / str(unseen)
        table = partitioning.make_partition(
            {"name": "natural", **keys}, {"name": "leaf", **dataset}, root / "data", root
        )
        [record] = root.glob("partitions/*/partition.json")
        assert json.loads(record.read_text())["client_names"] == names
        assert table["client"].nunique() == len(names)
        assert any("4 of the 12" in note for note in table.attrs["notes"]) == (unseen == 0)
