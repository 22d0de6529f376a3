"""A pretrained transformer for texts, from a folder of the package transformers, with a classifier.

Wolf, Debut, Sanh, Chaumond, Delangue, Moi, Cistac, Rault, Louf, Funtowicz, Davison, Shleifer, von
Platen, Ma, Jernite, Plu, Xu, Le Scao, Gugger, Drame, Lhoest, Rush. Transformers: State-of-the-Art
Natural Language Processing. EMNLP 2020. arXiv:1910.03771.

The folder has ``config.json`` and ``model.safetensors``, as ``save_pretrained`` writes them;
nothing is downloaded, and no code in it is run. `pip install 'fedloom[pretrained]'` installs the
package. Texts must be read by the model's own tokenizer (key `tokenizer` of data sets), which
mostly lies in the same folder.

The vectors of the last layer are averaged over the tokens of a text, padding left out, or the first
one is taken, and a linear layer classifies them. A layer that pools in the folder's own way is not
used. Attention is computed step by step, so that it can be stacked over clients. Constants, such as
the numbers of positions, are frozen, so that no client sends them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fl.api import Count, Index
from fl.base.errors import FedloomError, optional_package
from fl.base.folders import path_of

FILES = ("config.json", "model.safetensors")
EXAMPLE_LENGTH = 5
"""Number of tokens of the text by which the kind of attention is found."""


@dataclass(frozen=True)
class Transformers:
    """A pretrained transformer with a classifier.

    Attributes:
        weights: folder with `config.json` and `model.safetensors`.
        pooling: the mean over the tokens of a text, or its `first` token.
        tokens: number of tokens, taken from the data set; the model may know more.
        padding: token that fills texts up, taken from the data set; without one, the last token.
    """

    weights: str
    pooling: Literal["mean", "first"] = "mean"
    tokens: Count | None = None
    padding: Index | None = None

    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of tokens (length,).

        Raises:
            FedloomError: If the folder or its model does not fit, or the package is not installed.
        """
        folder = path_of(self.weights)
        body = _read_body(folder)
        self._check(body.config, shape)
        return _Classifier(body, self._padding(body.config), self.pooling == "first", classes)

    def _padding(self, config: Any) -> int:
        if self.padding is not None:
            return self.padding
        padding: int = self.tokens - 1 if self.tokens else config.pad_token_id or 0
        return padding

    def _check(self, config: Any, shape: tuple[int, ...]) -> None:
        """Refuse tokens that are not those with which the model was trained."""
        longest = getattr(config, "max_position_embeddings", None) or shape[-1]
        if len(shape) != 1 or shape[0] > longest:
            problem = f"inputs are of shape {shape}"
            raise FedloomError(f"weights: {problem}", f"tokens (length,), up to {longest}")
        padding, expected = self._padding(config), config.pad_token_id
        if (self.tokens or 0) > config.vocab_size or expected not in (None, padding):
            model_tokens = f"{config.vocab_size} tokens, padding {expected}"
            problem = (
                f"the model knows {model_tokens}, but the data set has {self.tokens}, {padding}"
            )
            advice = f"read texts by the model's tokenizer: table: {{tokenizer: {self.weights}}}"
            raise FedloomError(f"weights: {problem}", advice=advice)


def _read_body(folder: Path) -> Any:
    """Return the model of a folder without the layer that pools."""
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        problem = f"weights: {folder}: {' and '.join(absent)} does not exist"
        raise FedloomError(problem, "a folder that `save_pretrained` wrote")
    with contextlib.suppress(ModuleNotFoundError):
        # Where torchvision is installed, transformers imports it.
        from fl.pytorch import vision  # noqa: F401
    with optional_package("model transformers", "pip install 'fedloom[pretrained]'"):
        import transformers
    try:
        with _silent(transformers.utils.logging):
            body, report = transformers.AutoModel.from_pretrained(
                folder, local_files_only=True, attn_implementation="eager", output_loading_info=True
            )
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        problem = f"weights: {folder}: cannot be loaded by transformers ({reason})"
        raise FedloomError(problem, "a model for texts") from error
    if getattr(body, "pooler", None) is not None:
        body.pooler = None
    missing = [name for name in report["missing_keys"] if not name.startswith("pooler.")]
    if missing:
        problem = f"weights: {folder}: {FILES[1]} lacks {', '.join(sorted(missing)[:3])}"
        raise FedloomError(problem, advice="save the model again, by `save_pretrained`")
    _freeze_constants(body)
    return body.float().eval()


@contextlib.contextmanager
def _silent(logging: Any) -> Iterator[None]:
    """Keep transformers from printing bars and warnings in this context."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def _freeze_constants(body: nn.Module) -> None:
    """Turn buffers that are not stored with a model into frozen weights."""
    for layer in body.modules():
        for name in sorted(layer._non_persistent_buffers_set):
            constant = layer._buffers[name]
            if constant is not None:
                delattr(layer, name)
                layer.register_parameter(name, nn.Parameter(constant, requires_grad=False))


class _Classifier(nn.Module):
    head_layer = "classifier"

    def __init__(self, body: Any, padding: int, is_first: bool, classes: int) -> None:
        super().__init__()
        self.body, self.padding, self.is_first = body, padding, is_first
        self.classifier = nn.Linear(body.config.hidden_size, classes)
        self.is_causal = _is_causal(body)

    def forward(self, x: Tensor) -> Tensor:
        is_text = x != self.padding
        mask = _attention_mask(is_text, self.is_causal, self.classifier.weight.dtype)
        vectors = self.body(input_ids=x, attention_mask=mask).last_hidden_state
        share = is_text.to(vectors.dtype) / is_text.sum(1, keepdim=True).clamp(min=1)
        mean = (vectors * share.unsqueeze(-1)).sum(1)
        logits: Tensor = self.classifier(vectors[:, 0] if self.is_first else mean)
        return logits


def _attention_mask(is_text: Tensor, is_causal: bool, dtype: torch.dtype) -> Tensor:
    """Return what is added to the scores of attention, [b, 1, t or 1, t].

    The masks of transformers ask whether all tokens are seen, which cannot be stacked over clients.
    """
    is_seen = is_text[:, None, None, :]
    if is_causal:
        length = is_text.shape[1]
        is_seen = is_seen & torch.ones(length, length, device=is_text.device).tril().bool()
    hidden = torch.finfo(dtype).min
    return torch.zeros(is_seen.shape, dtype=dtype, device=is_text.device).masked_fill(
        ~is_seen, hidden
    )


@torch.no_grad()
def _is_causal(body: Any) -> bool:
    """Whether a token sees only those before it, found by comparing with the model's own mask."""
    x = torch.arange(1, EXAMPLE_LENGTH + 1)[None]
    is_text = torch.ones_like(x, dtype=torch.bool)
    expected = body(input_ids=x, attention_mask=is_text.long()).last_hidden_state
    for is_causal in (False, True):
        mask = _attention_mask(is_text, is_causal, expected.dtype)
        hidden_states = body(input_ids=x, attention_mask=mask).last_hidden_state
        if torch.allclose(hidden_states, expected, atol=1e-4):
            return is_causal
    problem = f"weights: the attention of {type(body).__name__} is masked in a way of its own"
    raise FedloomError(problem, "a model such as BERT, RoBERTa, DistilBERT or GPT-2")
