"""Secrets that a page must not show, and characters that would change how a page or terminal shows text. Pure.

A value is a secret by its name (`HF_TOKEN=…`, `--api-key …`) or by its own shape (`postgres://user:password@host`, a
bearer header, tokens of well-known services, private keys). Masking is for display: the job itself gets the value.

Text comes from users and is long, so everything here is linear: names are matched only where they begin, a value that
is passed over is never scanned again by the same rule, and no pattern has a choice between two ways to read a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "••••••"
SECRET_WORDS = frozenset(
    {"TOKEN", "KEY", "APIKEY", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PWD", "CREDENTIAL", "CREDENTIALS"}
)

_SEPARATORS = re.compile(r"[^A-Z0-9]+")
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# A name and what may separate it from its value: `=`, `"name": `, `name: `, or blanks behind an option
_NAME = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]++)(?P<by>\s*+=\s*+|["']\s*+:\s*+|:[ \t]++|[ \t]++(?!-))?""")
# One word of a shell. A quotation mark that is never closed reaches to the end; one that follows plain characters
# belongs to the value only if it closes without a blank, otherwise it ends the string in which the whole stands.
_PART = r"""[^\s"'\\;&|)]++|\\.|"[^\s"'\\;&|]*+"|'[^\s"'\\;&|]*+'"""
_VALUE = re.compile(
    rf"""(?:"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|'[^']*+(?:'|\Z)|\\"(?:[^"\\]++|\\[^"])*+\\"|(?:{_PART}))(?:{_PART})*+""",
    re.DOTALL,
)

# Secrets that are recognised without a name. A length and, where words could look the same, a digit keep others out.
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN (?:[A-Z]{1,12} ){0,3}PRIVATE KEY-----)(?:.*?(-----END (?:[A-Z]{1,12} ){0,3}PRIVATE KEY-----)|.*)",
    re.DOTALL,
)
# Behind `://`: a password up to the last @ of the host part, or a long user name, which is a token
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
    """By its whole words: HF_TOKEN is one, MAX_TOKENS and TOKENIZERS_PARALLELISM are not."""
    return not SECRET_WORDS.isdisjoint(_name_words(name))


def _name_words(name: str) -> list[str]:
    return [word for word in _SEPARATORS.split(_CAMEL_CASE_BOUNDARY.sub("_", name).upper()) if word]


def mask_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """An environment, or labels, as a page may show them. An empty value hides nothing and says that it is empty."""
    return {name: MASK if value and is_secret_name(name) else mask_text(value) for name, value in values.items()}


def without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold no secret, neither by name nor by value."""
    return {name: value for name, value in values.items() if not is_secret_name(name) and mask_text(value) == value}


def mask_text(text: str) -> str:
    """A command, a comment or a value without its secrets; words that merely contain a secret's name stay."""
    return _mask_by_name(_mask_by_shape(text))


def _mask_by_shape(text: str) -> str:
    text = _PRIVATE_KEY.sub(lambda key: f"{key[1]}{MASK}{key[2] or ''}", text)
    for pattern, instead in _BY_SHAPE:
        text = pattern.sub(instead, text)
    return text


def _mask_by_name(text: str) -> str:
    """`HF_TOKEN=abc` and `--api-key abc`. What follows another name is looked at again: it may hold a name itself."""
    kept: list[str] = []
    done = at = 0
    while found := _NAME.search(text, at):
        name, by, at = found["name"], found["by"], found.end()
        hides = bool(by) and is_secret_name(name) and _takes_value(name, by)
        if hides and (value := _VALUE.match(text, at)):
            kept += [text[done:at], MASK]
            done = at = value.end()
    return "".join([*kept, text[done:]])


def _takes_value(name: str, by: str) -> bool:
    """Behind a colon only names of several words (`X-API-Key: `) or in quotes count: `the key: value` is prose."""
    if "=" in by or by[0] in "\"'":
        return True
    return len(_name_words(name)) > 1 if by[0] == ":" else name.startswith("--")
