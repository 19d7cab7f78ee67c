"""Whose work is it: the user and the team of an object, by a mapping that operators configure. Pure.

Kubernetes does not record who created an object, so the mapping names where a site writes it: labels, annotations, or
the namespace. The first source that has a value counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .fields import text_at, texts_at

MAX_SOURCES, MAX_RENAMES = 10, 1000
MAX_NAME_LENGTH = 64
SOURCE_FORMS = 'label:KEY, annotation:KEY or namespace, for example "label:team"'
SETTINGS = ("user_from", "team_from", "rename")
# Written by Acme to what it submits; key and installation of an attempt
KEY_LABEL, INSTALLATION_LABEL = "acme/attempt", "acme/installation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who an object belongs to. Key and installation are empty for objects that Acme did not submit."""

    user: str
    team: str
    key: str
    installation: str


@dataclass(frozen=True, kw_only=True)
class OwnerMapping:
    """Where the user and the team of a workload are read, and how the values are called in Acme."""

    user_from: tuple[str, ...] = ("namespace",)
    team_from: tuple[str, ...] = ("namespace",)
    rename: Mapping[str, str] = field(default_factory=dict)

    def owner(self, item: Mapping[str, Any]) -> Owner:
        labels = texts_at(item, "metadata", "labels")
        return Owner(
            user=self._first_value(self.user_from, item, labels),
            team=self._first_value(self.team_from, item, labels),
            key=labels.get(KEY_LABEL, "")[:MAX_NAME_LENGTH],
            installation=labels.get(INSTALLATION_LABEL, "")[:MAX_NAME_LENGTH],
        )

    def _first_value(self, sources: Sequence[str], item: Mapping[str, Any], labels: Mapping[str, str]) -> str:
        for source in sources:
            kind, _, name = source.partition(":")
            if kind == "namespace":
                value = text_at(item, "metadata", "namespace")
            else:
                value = (labels if kind == "label" else texts_at(item, "metadata", "annotations")).get(name, "")
            if value:
                return self.rename.get(value, value)[:MAX_NAME_LENGTH]
        return ""


def parse_owner_mapping(settings: object) -> OwnerMapping:
    """The mapping in a cluster's settings. Raises ValueError with one sentence that names the setting."""
    if not isinstance(settings, Mapping):
        raise ValueError('must be an object, for example {"team_from": ["label:team", "namespace"]}.')
    if unknown := sorted(set(map(str, settings)) - set(SETTINGS)):
        raise ValueError(f"{unknown[0][:40]} is not a setting; use {', '.join(SETTINGS)}.")
    sources = {name: _parse_sources(name, settings[name]) for name in ("user_from", "team_from") if name in settings}
    return OwnerMapping(**sources, rename=_parse_renames(settings.get("rename", {})))


def _parse_sources(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_SOURCES or not all(map(_is_source, value)):
        raise ValueError(f"{name} must be a list of 1 to {MAX_SOURCES} of {SOURCE_FORMS}.")
    return tuple(value)


def _is_source(value: object) -> bool:
    if not isinstance(value, str) or len(value) > 330:
        return False
    kind, _, key = value.partition(":")
    return value == "namespace" or (kind in ("label", "annotation") and bool(key))


def _parse_renames(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > MAX_RENAMES:
        raise ValueError(f"rename must be an object with at most {MAX_RENAMES} names.")
    if not all(isinstance(name, str) and isinstance(new, str) and new for name, new in value.items()):
        raise ValueError('rename must contain names only, for example {"ns-research": "research"}.')
    return dict(value)
