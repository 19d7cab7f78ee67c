"""Values that a page must not show, told by their names. Pure; masking is for eyes, the job itself gets the value."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "••••••"
SECRET_WORDS = frozenset(
    {"TOKEN", "KEY", "APIKEY", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PWD", "CREDENTIAL", "CREDENTIALS"}
)

_SEPARATORS = re.compile(r"[^A-Z0-9]+")
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_VALUE = r"""(?P<value>"[^"]*"|'[^']*'|[^\s"';&|)]+)"""
# NAME=value and --some-token value, where the value may be quoted; a flag without a value is left alone.
_ASSIGNED = re.compile(rf"(?P<name>[\w.-]+)(?P<sign>\s*=\s*){_VALUE}")
_FLAGGED = re.compile(rf"(?P<name>--[\w.-]+)(?P<sign>[ \t]+)(?!-){_VALUE}")


def is_secret(name: str) -> bool:
    """By its whole words: HF_TOKEN is one, MAX_TOKENS and TOKENIZERS_PARALLELISM are not."""
    return not SECRET_WORDS.isdisjoint(_SEPARATORS.split(_HUMPS.sub("_", name).upper()))


def masked(values: Mapping[str, str]) -> dict[str, str]:
    """An environment as a page may show it. An empty value hides nothing and says that it is empty."""
    return {name: MASK if value and is_secret(name) else value for name, value in values.items()}


def without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if not is_secret(name)}


def masked_command(text: str) -> str:
    """`HF_TOKEN=abc` and `--api-key abc` inside a command; words that merely contain such a name stay."""

    def hide(match: re.Match[str]) -> str:
        return f"{match['name']}{match['sign']}{MASK}" if is_secret(match["name"]) else match[0]

    return _FLAGGED.sub(hide, _ASSIGNED.sub(hide, text))
