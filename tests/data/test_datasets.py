from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl.data.datasets.digits import Digits
from fl.data.datasets.synthetic import Synthetic
from fl.data.preparation import prepare_folder
from fl.data.prepared import Prepared


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    prepare_folder(Digits(), "digits", folder / "raw", folder / "digits")
    return Prepared.open(folder / "digits")


def prepared(dataset, folder):
    prepare_folder(dataset, "synthetic", folder / "raw", folder / "synthetic")
    return Prepared.open(folder / "synthetic")


def assert_as_declared(data, dataset):
    assert data.x.shape == (dataset.size, *dataset.shape)
    assert len(data.classes) == dataset.classes
    assert (None if data.client is None else data.client.max() + 1) == dataset.natural_clients


# Digits


def test_digits_are_the_real_ones(digits):
    assert (digits.x.dtype, digits.x.shape) == (np.uint8, (1797, 1, 8, 8))
    assert digits.y.dtype == np.int64
    assert np.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (digits.x.min(), digits.x.max()) == (0, 16)
    assert digits.x[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert digits.y[:3].tolist() == [0, 1, 2]
    assert digits.classes == tuple("0123456789")
    assert digits.client is None
    assert_as_declared(digits, Digits())


def test_data_room_imports_neither_sklearn_nor_torch():
    modules = "fl.data, fl.data.datasets.digits, fl.data.datasets.synthetic"
    script = (
        f"import sys, {modules}, fl.data.schemes.file; from fl.data.download import fetch;"
        "import tempfile; fetch(fl.data.datasets.digits.Digits.sources[0], tempfile.mkdtemp());"
        "print([m for m in ('sklearn', 'torch') if m in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    root = Path(__file__).parents[2]
    told = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "[]"


# Synthetic


SMALL = Synthetic(clients=3, samples=200)


def test_two_layer_labels_are_the_argmax_of_the_recomputed_network(tmp_path):
    dataset = replace(SMALL, alpha=0.5, beta=0.5, temperature=0.7)
    data = prepared(dataset, tmp_path)
    for k in range(3):
        (w1, b1), (w2, b2) = dataset.layers(k)
        for x, y in zip(data.x[data.client == k], data.y[data.client == k], strict=True):
            logits = w2 @ ((w1 @ x.astype(float) + b1) / 0.7) + b2
            softmax = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            assert y == softmax.argmax()
    assert len(np.unique(data.y)) > 2


def test_a_clients_data_do_not_depend_on_how_many_there_are():
    more = replace(SMALL, clients=9)
    assert np.array_equal(SMALL.inputs(2, 50), more.inputs(2, 50))
    assert np.array_equal(SMALL.layers(2)[0][0], more.layers(2)[0][0])
