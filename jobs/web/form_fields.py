"""Parts of forms that several pages share."""

from __future__ import annotations

from collections.abc import Iterable

from django import forms


def time_input() -> forms.DateTimeInput:
    return forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")


def choices_of(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return choices whose labels are their values."""
    return [(name, name) for name in names]
