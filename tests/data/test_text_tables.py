"""Texts in tables: words, the vocabulary of training samples, missing texts."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_data import assembled, dataset, prepared, write
from torch import nn

import fl
from fl.base import plugins
from fl.base.errors import DataError
from fl.cli import main
from fl.data.normalisation import rank_words
from fl.data.readers import texts

MAILS = {"label": "folder", "client": "owner", "split": "split", "text": ["subject", "body"]}
WORDS = ("don't", "home", "novel", "re", "to", "work")


@pytest.fixture(autouse=True)
def _plugins_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of code that these tests use are in no plan of a later test."""
    monkeypatch.setattr(plugins, "_roots", dict(plugins.roots()))


def mails(path: Path, **changed: list[Any]) -> pd.DataFrame:
    """60 mails of three owners, who have a word of their own, as test rows have."""
    folder = np.where(np.arange(60) % 2 == 0, "work", "home")
    split = np.where(np.arange(60) < 45, "train", "test")
    tail = np.where(split == "train", "", " novel novel novel")
    columns: dict[str, Any] = {
        "subject": ["Re: Don't"] * 60,
        "body": [f"to {folder[i]} client{i % 3}{tail[i]}" for i in range(60)],
        **{"folder": folder, "owner": np.arange(60) % 3, "split": split},
    }
    table = pd.DataFrame({**columns, **changed})
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)
    return table


def test_words_are_ranked_by_the_rows_that_are_counted() -> None:
    x = np.array([[0, 1, 1, 4], [2, 2, 2, 3], [1, 0, 4, 4]])
    ranked = rank_words(x, np.array([0, 2]), words=4, size=3)
    assert ranked.tolist() == [[1, 0, 0, 3], [3, 3, 3, 3], [0, 1, 3, 3]]
    assert rank_words(x, np.array([0, 2]), words=4, size=1)[0].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_run_knows_the_words_of_its_training_samples_alone(
    project: Path,
    suffix: str,
) -> None:
    frame = mails(project / f"mails{suffix}")
    words_of = frame["subject"], frame["body"]
    keys = {"path": f"mails{suffix}", **MAILS, "length": 8, "vocabulary": 6}
    lstm = {"lstm": {"tokens": 7, "hidden": 3}}
    scheme = {"natural": {"test": "published", "unseen": 1}}
    write(project, [{"table": keys}], partitions=[scheme], models=[lstm])
    simulation, table = assembled()
    rows = table[(table["split"] == "train") & ~table["unseen"]]["sample"]
    x = simulation.arrays.inputs(torch.arange(60)).numpy()
    texts = [f"{subject} {body}".lower() for subject, body in zip(*words_of, strict=True)]
    words = [text.replace(":", "").split() for text in texts]
    counts = Counter(word for row in rows for word in words[row])
    assert len(counts) == 7, "neither the new word of test rows nor that of an unseen client"
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:6]
    for tokens, row in zip(x.tolist(), words, strict=True):
        expected = [ranked.index(word) if word in ranked else 6 for word in row]
        assert tokens == (expected + [6] * 8)[:8]
    found = prepared(dataset("table", project / f"mails{suffix}", **MAILS), project)
    assert found.words == ("client0", "client1", "client2", *WORDS)


def test_a_model_has_as_many_tokens_as_its_data_set(
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mails(project / "mails.csv")
    keys = {"path": "mails.csv", **MAILS, "vocabulary": 6}
    partitions = [{"natural": {"test": "published"}}]
    for model in ({"lstm": {"hidden": 3}}, {"text-transformer": {"width": 4, "layers": 1}}):
        write(project, [{"table": keys}], partitions=partitions, models=[model])
        simulation, _ = assembled()
        weights = simulation.network.init(0)["params"]
        assert len(weights["embedding.weight"]) == 7
    for model in ("lstm", "text-transformer"):
        write(project, [{"table": keys}], partitions=partitions, models=[{model: {"tokens": 8}}])
        assert main.main(["plan"]) != 0
        error = capsys.readouterr().err
        assert f"tiny.yaml: models.0.{model}.tokens: is 8, but table" in error
        assert "has 7 different tokens, of which 6 fills up texts. Allowed: 7. Try: leave" in error


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer of whole words, whose padding is its first token."""
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'fedloom[pretrained]'")
    tokens = ["[PAD]", "[CLS]", "[SEP]", "?", "work", "home", "to"]
    numbers = {token: number for number, token in enumerate(tokens)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    folder = tmp_path / "pretrained"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_tokenizer_from_a_file_takes_the_place_of_words(
    project: Path,
    tokenizer: Path,
    suffix: str,
) -> None:
    mails(project / f"mails{suffix}", body=["to work", "to home to home"] * 30)
    keys = {"path": f"mails{suffix}", **MAILS, "length": 9, "tokenizer": str(tokenizer)}
    scheme = {"natural": {"test": "published"}}
    write(project, [{"table": keys}], partitions=[scheme], models=[{"lstm": {"hidden": 3}}])
    simulation, _ = assembled()
    subject = [1, 3, 3, 3, 3, 3]  # Re : Don ' t
    assert simulation.arrays.inputs(torch.arange(2)).tolist() == [
        [*subject, 6, 4, 2],
        [*subject, 6, 5, 2],
    ]
    network = simulation.network
    assert len(network.init(0)["params"]["embedding.weight"]) == 7
    [bundle] = Path("results/plan/bundles").glob("*.json")
    [run] = json.loads(bundle.read_text())["runs"]
    assert (run["spec"]["model"]["tokens"], run["spec"]["model"]["padding"]) == (7, 0)
    assert "tokenizer.json" in run["spec"]["dataset"]["content"]


def test_what_is_wrong_with_a_tokenizer_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails(tmp_path / "mails.csv")
    keys = {**MAILS, "tokenizer": str(tmp_path / "absent.json")}
    made = dataset("table", tmp_path / "mails.csv", **keys)
    with pytest.raises(DataError, match=r"absent\.json: tokenizer: the file does not exist"):
        _ = made.tokens
    beside = dataset("table", tmp_path / "mails.csv", **keys, vocabulary=5)
    with pytest.raises(DataError, match="vocabulary: is set beside tokenizer"):
        _ = beside.tokens
    (tmp_path / "absent.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"not installed. Try: pip install 'fedloom\[pretrained\]"):
        _ = made.tokens


def pairs(path: Path) -> pd.DataFrame:
    """30 premises of three lengths, each with a hypothesis."""
    premises = ["to work", "to home to home to home", "work"] * 10
    table = pd.DataFrame(
        {
            "premise": premises,
            "hypothesis": ["home to work", "work", "to"] * 10,
            "same": ["yes", "no"] * 15,
            "owner": [*range(3)] * 10,
        }
    )
    table.to_csv(path, index=False)
    return table


PAIRS = {"label": "same", "client": "owner", "text": ["premise", "hypothesis"]}


def test_a_word_that_no_text_contains_stands_between_texts(tmp_path: Path) -> None:
    pairs(tmp_path / "pairs.csv")
    keys = {**PAIRS, "text_separator": "token", "length": 6}
    found = prepared(dataset("table", tmp_path / "pairs.csv", **keys), tmp_path)
    assert found.words == ("[SEP]", "home", "to", "work")
    to, home, work, between, after = 2, 1, 3, 0, 4
    assert found.x[:3].tolist() == [
        [to, work, between, home, to, work],
        [to, home, to, home, between, work],  # The longest text is cut first.
        [work, between, to, after, after, after],
    ]
    blank = prepared(dataset("table", tmp_path / "pairs.csv", **PAIRS, length=6), tmp_path / "b")
    assert blank.words == ("home", "to", "work")


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([9, 2], 7, [5, 2]),
        ([2, 9], 7, [2, 5]),
        ([9, 9], 7, [3, 4]),
        ([1, 2], 7, [1, 2]),
        ([9, 1, 9], 8, [3, 1, 4]),
        ([3, 3], 0, [0, 0]),
        ([3, 3, 3], -1, [0, 0, 0]),
    ],
)
def test_the_longest_text_is_cut_first(counts: list[int], total: int, expected: list[int]) -> None:
    assert texts._shares(counts, total) == expected


PROCESSORS = {
    "BERT": ("[CLS] {} [SEP] {} [SEP]", ("[CLS]", "[SEP]"), "BertProcessing"),
    "RoBERTa": ("<s> {} </s> </s> {} </s>", ("<s>", "</s>"), "RobertaProcessing"),
}
"""A pair of texts as a model is trained with it, the tokens around texts, and their processor."""


@pytest.mark.parametrize("model", PROCESSORS)
def test_a_tokenizer_puts_what_its_model_knows_between_a_pair(tmp_path: Path, model: str) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'fedloom[pretrained]'")
    template, (start, end), processor = PROCESSORS[model]
    frame = pairs(tmp_path / "pairs.csv")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=["<pad>", start, end, "?"])
    made.train_from_iterator(frame["premise"].tolist(), trainer)
    ids = made.get_vocab()
    path = tmp_path / "tokenizer.json"
    keys = {**PAIRS, "text_separator": "token", "length": 12, "tokenizer": str(path)}
    made.save(str(path))
    with pytest.raises(DataError, match=r"puts no token between the texts of a pair\. Allowed"):
        _ = dataset("table", tmp_path / "pairs.csv", **keys).size
    sep, cls = (end, ids[end]), (start, ids[start])
    made.post_processor = getattr(tokenizers.processors, processor)(sep, cls)
    made.save(str(path))
    found = prepared(dataset("table", tmp_path / "pairs.csv", **keys), tmp_path)
    for row, (premise, hypothesis) in enumerate(
        zip(frame["premise"], frame["hypothesis"], strict=True)
    ):
        words = template.format(premise, hypothesis).split()
        expected = [ids[word] for word in words][:12]
        assert found.x[row].tolist() == (expected + [ids["<pad>"]] * 12)[:12]


def test_a_network_learns_where_a_text_ends_by_the_token_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both classes have the same words in the same order, and differ in where the first text ends.

    Joined by a blank they are equal, so that half of the answers are right.
    """
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(
        {
            "premise": ["to work", "to"] * 40,
            "hypothesis": ["home", "work home"] * 40,
            "first": ["long", "short"] * 40,
            "owner": [*"aabb"] * 20,
        }
    )
    keys = {"label": "first", "client": "owner", "text": ["premise", "hypothesis"], "length": 4}
    for separator, accuracy in (("blank", 0.5), ("token", 1.0)):
        result = fl.run(
            dataset={"table": {"frame": frame, **keys, "text_separator": separator}},
            partition="natural",
            model={"lstm": {"hidden": 8}},
            methods=["fedavg"],
            rounds=20,
            lr=1.0,
            batch_size=8,
            progress=False,
        )
        assert result.predictions("fedavg", "train").eval("label == predicted").mean() == accuracy


WRONG_SEPARATORS: dict[str, tuple[dict[str, Any], str]] = {
    "one text": ({"text": ["premise"], "drop": ["hypothesis"]}, "but text names 1 column. Try: na"),
    "no text": ({"text": [], "categorical": ["premise", "hypothesis"]}, "text names 0 columns"),
}


@pytest.mark.parametrize("fault", WRONG_SEPARATORS)
def test_a_separator_needs_two_texts(tmp_path: Path, fault: str) -> None:
    keys, message = WRONG_SEPARATORS[fault]
    pairs(tmp_path / "pairs.csv")
    made = dataset("table", tmp_path / "pairs.csv", **{**PAIRS, "text_separator": "token", **keys})
    with pytest.raises(DataError, match=message):
        _ = made.size


def test_a_tokenizer_separates_two_texts_and_no_more(tmp_path: Path, tokenizer: Path) -> None:
    frame = pairs(tmp_path / "pairs.csv")
    frame["third"] = "home"
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    keys = {**PAIRS, "text": ["premise", "hypothesis", "third"], "text_separator": "token"}
    made = dataset("table", tmp_path / "pairs.csv", **keys, tokenizer=str(tokenizer))
    with pytest.raises(DataError, match=r"text names 3 columns, and a tokenizer separates two\. "):
        _ = made.size
    by_words = prepared(dataset("table", tmp_path / "pairs.csv", **keys, length=9), tmp_path)
    between = by_words.words.index("[SEP]")
    assert (by_words.x == between).sum(1).tolist() == [2] * 30


def test_missing_texts_follow_the_key_missing(tmp_path: Path) -> None:
    path = tmp_path / "mails.csv"
    mails(path, body=["to work", "NA", "%"] * 20)
    made = dataset("table", path, **MAILS)
    message = r"mails\.csv: column 'body', row 2: 'NA' is no text. Allowed: a word or more"
    with pytest.raises(DataError, match=message):
        _ = made.size
    assert dataset("table", path, **MAILS, missing="drop").size == 20
    for missing in ("mean", "category"):
        made = dataset("table", path, **MAILS, missing=missing, length=5)
        found = prepared(made, tmp_path / missing)
        assert found.x[:3].tolist() == [[1, 0, 2, 3, 4], [1, 0, 4, 4, 4], [1, 0, 4, 4, 4]]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "features beside it": ({"hour": [1] * 60}, {}, "there are the features 'hour'. Try: .*drop"),
    "two keys": ({}, {"categorical": ["body"]}, "column 'body' is named by 2 keys"),
    "no column": ({}, {"text": ["bodi"]}, r"text is 'bodi', .* did you mean 'body'"),
    "numbers": ({"body": [1.5] * 60}, {}, "column 'body' is of type double. Allowed: text"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_texts_that_cannot_be_read_are_refused(tmp_path: Path, fault: str) -> None:
    changed, keys, message = REFUSED[fault]
    mails(tmp_path / "mails.parquet", **changed)
    with pytest.raises(DataError, match=message.replace(".* did", r".*\(did")):
        _ = dataset("table", tmp_path / "mails.parquet", **{**MAILS, **keys}).size


def bag(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Make a model of one's own: a classifier of the vectors of all words."""
    return nn.Sequential(nn.Embedding(10_001, 4), nn.Flatten(), nn.Linear(4 * shape[0], classes))


@pytest.mark.parametrize(
    "model",
    [
        {"lstm": {"tokens": 10_001, "hidden": 8}},
        {"text-cnn": {"width": 4, "channels": 2}},
        {"text-transformer": {"width": 4, "hidden": 4, "layers": 1, "heads": 2}},
        bag,
    ],
    ids=["lstm", "text-cnn", "text-transformer", "own"],
)
def test_every_text_model_takes_a_frame_of_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = mails(tmp_path / "mails.parquet")
    data = {"table": {"frame": frame, **MAILS, "length": 8}}
    setting = {"partition": {"natural": {"test": "published"}}, "model": model, "rounds": 1}
    result = fl.run(dataset=data, methods=["fedavg"], **setting)
    assert len(result.table()) == 1
