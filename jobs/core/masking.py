"""Masks secrets in text that pages and terminals show. Pure.

A value is secret because of its name (`HF_TOKEN=…`, `--api-key …`) or its form (`postgres://user:password@host`, a
bearer header, tokens of well-known services, private keys). Masking is for display only: the job gets the real value.

The text comes from users and may be long, so all patterns run in linear time. Names match only at their beginning, no
rule scans a skipped value again, and no pattern can match a text in two ways. Only single characters are repeated
possessively: before 3.11.5, Python does not return to where a possessive group or an atomic one began to fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "••••••"
# Whole words only: KEY matches API_KEY, but not KEYBOARD
SECRET_WORDS = frozenset(
    {"TOKEN", "KEY", "APIKEY", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PWD", "CREDENTIAL", "CREDENTIALS"}
)

_SEPARATORS = re.compile(r"[^A-Z0-9]+")
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# A name and the separator before its value: `=`, `"name": `, `name: `, or spaces after an option
_NAME = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]++)(?P<by>\s*+=\s*+|["']\s*+:\s*+|:[ \t]++|[ \t]++(?!-))?""")
# One word of a shell. An unclosed quotation mark extends to the end of the text. A quotation mark after plain
# characters is part of the value only if it closes before a space; otherwise it ends the surrounding string.
_PART = r"""[^\s"'\\;&|)]++|\\.|"[^\s"'\\;&|]*+"|'[^\s"'\\;&|]*+'"""
_VALUE = re.compile(
    rf"""(?:"(?:[^"\\]++|\\.)*(?:"|\\?\Z)|'[^']*+(?:'|\Z)|\\"(?:[^"\\]++|\\[^"])*\\"|(?:{_PART}))(?:{_PART})*""",
    re.DOTALL,
)

# Secrets that are recognized without a name. A minimum length and, where words look similar, a required digit
# prevent false matches.
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN (?:[A-Z]{1,12} ){0,3}PRIVATE KEY-----)(?:.*?(-----END (?:[A-Z]{1,12} ){0,3}PRIVATE KEY-----)|.*)",
    re.DOTALL,
)
# After `://`: a password up to the last @ of the host part, or a long user name, which is a token
_PASSWORD = re.compile(r"""(?<=://)([^\s:/?#@"']*+:)[^\s/?#"']+(?=@)""")
_LONG_USER = re.compile(r"(?<=://)[\w-]{20,}+(?=@)")
_HEADER = re.compile(
    r"""(?i)(?<![\w-])((?:proxy-)?authorization["']?\s*+[:=]\s*+["']?(?:(?:bearer|basic|token)\s++)?)[^\s"']++"""
)
_BEARER = re.compile(r"(?i)(?<![\w-])(bearer\s++)[A-Za-z0-9._~+/=-]{16,}+")
_HAS_DIGIT = r"(?=[A-Za-z_-]*+[0-9])"
_TOKEN = re.compile(
    r"(?<![\w-])(?:"
    r"(?:hf|api_org|gh[pousr]|npm|gsk|glsa)_[A-Za-z0-9]{20,}+"
    r"|github_pat_[A-Za-z0-9_]{20,}+"
    r"|gl(?:pat|dt|rt|cbt|ptt|oas|soat|ft)-[\w.-]{16,}+"
    rf"|sk-{_HAS_DIGIT}[A-Za-z0-9_-]{{20,}}+"
    r"|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}+"
    rf"|nvapi-{_HAS_DIGIT}[A-Za-z0-9_-]{{20,}}+"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}+"
    r"|A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|AIza[\w-]{30,}+"
    r"|ya29\.[\w-]{20,}+"
    rf"|pypi-{_HAS_DIGIT}[\w-]{{50,}}+"
    rf"|acme_{_HAS_DIGIT}[A-Za-z0-9_-]{{40,}}+"
    r"|acme_run_[\w.-]{20,}+"
    r"|eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?"
    r")"
)
_BY_SHAPE: tuple[tuple[re.Pattern[str], str], ...] = (
    (_PASSWORD, rf"\1{MASK}"),
    (_LONG_USER, MASK),
    (_HEADER, rf"\1{MASK}"),
    (_BEARER, rf"\1{MASK}"),
    (_TOKEN, MASK),
)


def is_secret_name(name: str) -> bool:
    """Return whether a whole word of the name marks a secret: HF_TOKEN does, MAX_TOKENS and TOKENIZERS_PARALLELISM do
    not."""
    return not SECRET_WORDS.isdisjoint(_name_words(name))


def _name_words(name: str) -> list[str]:
    return [word for word in _SEPARATORS.split(_CAMEL_CASE_BOUNDARY.sub("_", name).upper()) if word]


def mask_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables or labels as a page may show them. An empty value stays visible as empty."""
    return {name: MASK if value and is_secret_name(name) else mask_text(value) for name, value in values.items()}


def without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not secret, neither by name nor by value."""
    return {name: value for name, value in values.items() if not is_secret_name(name) and mask_text(value) == value}


def mask_text(text: str) -> str:
    """Return a command, comment or value without its secrets. Words that only contain the name of a secret stay."""
    return _mask_by_name(_mask_by_shape(text))


def _mask_by_shape(text: str) -> str:
    # Private keys first: their lines could match patterns of other secrets
    text = _PRIVATE_KEY.sub(lambda key: f"{key[1]}{MASK}{key[2] or ''}", text)
    for pattern, replacement in _BY_SHAPE:
        text = pattern.sub(replacement, text)
    return text


def _mask_by_name(text: str) -> str:
    """Mask values such as those in `HF_TOKEN=abc` and `--api-key abc`. The text after any other name is scanned again,
    because it may contain a secret name."""
    parts: list[str] = []
    done = at = 0
    while match := _NAME.search(text, at):
        name, by, at = match["name"], match["by"], match.end()
        is_secret = bool(by) and is_secret_name(name) and _takes_value(name, by)
        if is_secret and (value := _VALUE.match(text, at)):
            parts += [text[done:at], MASK]
            done = at = value.end()
    return "".join([*parts, text[done:]])


def _takes_value(name: str, by: str) -> bool:
    """Return whether the separator introduces a value. After a colon, only quoted names and names of several words
    (`X-API-Key: `) count, because `the key: value` is prose."""
    if "=" in by or by[0] in "\"'":
        return True
    return len(_name_words(name)) > 1 if by[0] == ":" else name.startswith("--")
