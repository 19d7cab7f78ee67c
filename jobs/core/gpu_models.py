"""The GPU models of a request. `h100|a100` means: on h100 if they are free, else on a100, never on both."""

from __future__ import annotations

import re
from typing import Any, Final

from jobs.core import parsing

SEPARATOR: Final = "|"
MAX_MODELS = 4
HARDWARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}", re.ASCII)


def gpu_models(requested: str) -> tuple[str, ...]:
    """The models in order of preference; empty if any model will do."""
    return tuple(requested.split(SEPARATOR)) if requested else ()


def accepts_model(requested: str, model: str) -> bool:
    return not requested or model in requested.split(SEPARATOR)


def models_text(requested: str) -> str:
    """The models as words: "H100, A100 or L40S"."""
    *others, last = gpu_models(requested) or ("",)
    return f"{', '.join(others)} or {last}" if others else last


def read_gpu_models(name: str, value: Any) -> str:
    """One model, or several in order of preference. Raises InvalidField."""
    text = parsing.text_reader(MAX_MODELS * 41)(name, value).replace(" ", "")
    models = gpu_models(text)
    if len(models) > MAX_MODELS:
        parsing.raise_invalid_field(name, f"has {len(models)} models, more than the {MAX_MODELS} allowed")
    for model in models:
        if not HARDWARE_NAME.fullmatch(model):
            parsing.raise_invalid_field(name, f"{model[:40]!r} is not a valid GPU model; separate models with |")
        if models.count(model) > 1:
            parsing.raise_invalid_field(name, f"{model} is named twice")
    return text
