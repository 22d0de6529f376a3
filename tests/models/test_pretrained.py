"""Models of the packages transformers and timm, from files: `pip install 'fedloom[pretrained]'`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.func import grad, vmap

import fl
from fl.api.network import Network
from fl.base.errors import FedloomError
from fl.models.timm import Timm
from fl.models.transformers import Transformers
from fl.plan.run_spec import model_code
from fl.pytorch.construction import adapt

WIDTH, TOKENS = 8, 11
SIZES = {"hidden_size": WIDTH, "num_attention_heads": 2, "num_hidden_layers": 2}
TEXTS = torch.tensor([[1, 5, 6, 2, 0, 0], [1, 7, 2, 0, 0, 0]])


@pytest.fixture
def transformers() -> Any:
    """The package."""
    pytest.importorskip("fl.pytorch.vision")
    return pytest.importorskip("transformers", reason="pip install 'fedloom[pretrained]'")


def saved(transformers: Any, folder: Path, kind: str = "Bert", **keys: Any) -> Path:
    """A folder with a small random model."""
    values = {**SIZES, "vocab_size": TOKENS, "max_position_embeddings": 16, "pad_token_id": 0}
    if kind == "GPT2":
        values = {"n_embd": WIDTH, "n_head": 2, "n_layer": 2, "vocab_size": TOKENS}
        keys["pad_token_id"] = 0
    config = getattr(transformers, f"{kind}Config")(**{**values, "intermediate_size": 9, **keys})
    torch.manual_seed(0)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["Bert", "GPT2"])
def test_logits_are_those_of_the_stored_model(transformers: Any, tmp_path: Path, kind: str) -> None:
    folder = saved(transformers, tmp_path, kind)
    module = Transformers(str(folder)).build((6,), 3).eval()
    body = transformers.AutoModel.from_pretrained(folder).eval()
    is_text = TEXTS != 0
    vectors = body(input_ids=TEXTS, attention_mask=is_text.long()).last_hidden_state
    mean = torch.stack([row[seen].mean(0) for row, seen in zip(vectors, is_text, strict=True)])
    torch.testing.assert_close(module(TEXTS), module.classifier(mean), rtol=1e-4, atol=1e-5)
    first = Transformers(str(folder), "first").build((6,), 3).eval()
    torch.testing.assert_close(first(TEXTS), first.classifier(vectors[:, 0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [{}, {"trainable": ["classifier.*"]}, {"adapter": {"lora": {}}}])
def test_clients_are_stacked(transformers: Any, tmp_path: Path, keys: dict[str, Any]) -> None:
    folder = str(saved(transformers, tmp_path))
    network = Network(lambda: adapt(Transformers(folder).build((6,), 3), keys), torch.float64)
    assert not network.names["buffers"], "constants are sent by no client"
    variables = network.init(0)
    parts = variables["params"]

    def loss(params: Any, x: torch.Tensor) -> torch.Tensor:
        key = torch.arange(len(x)).expand(len(x))
        return network.train(params, {}, x, key=key).outputs.square().sum()

    network.probe(TEXTS)
    of_clients = torch.stack([TEXTS, TEXTS.flip(0)])
    together = vmap(grad(loss), (None, 0))(parts, of_clients)
    for client, x in enumerate(of_clients):
        for name, gradient in grad(loss)(parts, x).items():
            torch.testing.assert_close(together[name][client], gradient)
    if "trainable" in keys:
        assert sum(tensor.numel() for tensor in parts.values()) == 3 * (WIDTH + 1)


def test_what_a_folder_lacks_is_said(transformers: Any, tmp_path: Path) -> None:
    folder = saved(transformers, tmp_path)
    other_padding = Transformers(str(folder), tokens=TOKENS)
    with pytest.raises(FedloomError, match=r"11 tokens, padding 0, but .* 11, 10\. Try: read .* t"):
        other_padding.build((6,), 3)
    with pytest.raises(FedloomError, match="but the data set has 12, 0"):
        Transformers(str(folder), tokens=12, padding=0).build((6,), 3)
    with pytest.raises(FedloomError, match=r"Allowed: tokens .*, up to 16"):
        Transformers(str(folder)).build((17,), 3)
    before = model_code({"name": "transformers", "weights": str(folder)})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert model_code({"name": "transformers", "weights": str(folder)}) != before
    with pytest.raises(FedloomError, match=r"safetensors lacks encoder\.layer\.2"):
        Transformers(str(folder)).build((6,), 3)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FedloomError, match=r"model.safetensors does not exist. Allowed: a folder"):
        Transformers(str(folder)).build((6,), 3)


def test_a_study_trains_adapters_of_a_pretrained_model_on_a_table(
    transformers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    folder = saved(transformers, tmp_path / "bert")
    words = {word: number for number, word in enumerate(["[PAD]", "?", "to", "home", "work"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.save(str(folder / "tokenizer.json"))
    topic = np.where(np.arange(40) % 2, "work", "home")
    table = {"frame": pd.DataFrame({"text": topic, "topic": topic}), "label": "topic"}
    result = fl.run(
        dataset={"table": {**table, "text": ["text"], "tokenizer": str(folder), "length": 4}},
        partition={"homogeneous": {"clients": 2}},
        model={"transformers": {"weights": str(folder), "adapter": {"lora": {"rank": 2}}}},
        methods=["fedavg"],
        rounds=2,
        lr=0.1,
    )
    assert result.table()["mean"].notna().all()
    model = result.model("fedavg")
    expected = model.predict_proba(["to work", "home"])
    model.save("kept")
    folder.rename("elsewhere")
    loaded = fl.load_model("kept")
    assert np.array_equal(loaded.predict_proba(["to work", "home"]), expected)
    assert loaded.save("again") and fl.load_model("again").predict(["home"]) in topic


def test_models_of_timm_take_weights_from_a_file(tmp_path: Path) -> None:
    pytest.importorskip("fl.pytorch.vision")
    timm = pytest.importorskip("timm", reason="pip install 'fedloom[pretrained]'")
    stored = timm.create_model("test_vit2", pretrained=False)
    torch.save(stored.state_dict(), tmp_path / "weights.pth")
    made = Timm("test_vit2", str(tmp_path / "weights.pth")).build((3, 32, 32), 5)
    assert torch.equal(made.blocks[0].mlp.fc1.weight, stored.blocks[0].mlp.fc1.weight)
    assert Network(lambda: Timm("test_resnet").build((1, 32, 32), 5)).head_layers
    with pytest.raises(FedloomError, match=r"no model 'test_vit22' \(did you mean 'test_vit2'"):
        Timm("test_vit22").build((3, 32, 32), 5)
    with pytest.raises(FedloomError, match=r"lacks .* of test_resnet"):
        Timm("test_resnet", str(tmp_path / "weights.pth")).build((3, 32, 32), 5)


def test_a_package_that_is_absent_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = r"model transformers needs .*not installed. Try: pip install 'fedloom\[pretrained\]'"
    with pytest.raises(FedloomError, match=message):
        Transformers(str(tmp_path)).build((6,), 3)
