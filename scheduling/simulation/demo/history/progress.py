"""How far the writing of the history is. It is kept in Valkey for some minutes, because only the home page shows it."""

from __future__ import annotations

from acmeweb.common import metrics_store

NAME = "demo"
LIFETIME_S = 180  # longer than any step takes on a busy machine


def store_share(share: float) -> None:
    metrics_store.store_figures("history", NAME, {"share": share}, LIFETIME_S)


def stored_share() -> float | None:
    """The share that is written, 1 for the first minutes after the end, or None if nothing is being written."""
    figures = metrics_store.read_figures("history", [NAME]).get(NAME)
    return figures["share"] if figures else None
