"""The keys of a text model that its data set decides: the number of tokens, and which one pads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fl.base import fields
from fl.base.errors import ConfigError
from fl.plan.components import Choice


def with_token_keys(model: Choice, dataset: Choice) -> Choice:
    """Return a model whose keys ``tokens`` and ``padding`` are those of a data set.

    A model has these keys, or one of them, if it reads texts. Values that the study does not set
    become those of the data set. Without a number of tokens in the data set, or where it may be
    larger than what its file shows (``padding`` is None), the model stays as it is.

    Args:
        model: The model.
        dataset: The data set.

    Raises:
        ConfigError: If the study sets another value than the data set has.
    """
    expected = _token_values(dataset.instance)
    declared = fields.fields(model.component.target)
    values = {key: value for key, value in expected.items() if key in declared}
    for key, value in values.items():
        written = model.written.get(key)
        if written not in (None, value):
            tokens = f"{dataset.text} has {expected['tokens']} different tokens"
            problem = f"is {written}, but {tokens}, of which {expected['padding']} fills up texts"
            advice = "leave the key out, then it follows the data set"
            raise ConfigError(model.location / key, problem, str(value), advice)
    if expected and expected["padding"] == expected["tokens"] - 1:
        # Without this key, it is the last token.
        values.pop("padding", None)
    return replace(model, values={**model.values, **values}) if values else model


def _token_values(dataset: Any) -> dict[str, int]:
    """Return the number of tokens of a data set, and its padding; empty if it tells neither."""
    modalities = getattr(dataset, "modalities", ())
    counts = [getattr(dataset, "tokens", 0), *(modality.tokens for modality in modalities)]
    tokens = max(counts)
    padding = getattr(dataset, "padding", tokens - 1)
    return {"tokens": tokens, "padding": padding} if tokens and padding is not None else {}
