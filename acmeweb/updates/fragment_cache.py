"""Cache keys of fragments that are the same for all users: rendered once per change in each process.

A template caches such a part with `{% cache 5 NAME shared_at %}`, where `shared_at` is a `cache_key`: the numbers of
the topics that the part shows. The numbers are read before the rows and incremented after each commit, so a part made
from older rows is never stored under a newer number. If the numbers are unknown (Valkey is unavailable), only the five
seconds limit the age.
"""

from __future__ import annotations

from collections.abc import Collection

from acmeweb.common import metrics_store


def cache_key(*topics: str) -> str:
    return " ".join(str(number) for number in topic_sequences(topics).values())


def topic_sequences(topics: Collection[str]) -> dict[str, int]:
    """Return the current number of each topic; 0 if unknown, which is never the number of a topic."""
    answers = metrics_store.valkey.ask([("MGET", *(f"acme:live:{topic}" for topic in topics))]) if topics else None
    values = answers[0] if answers and isinstance(answers[0], list) else [None] * len(topics)
    return {topic: int(value or 0) for topic, value in zip(topics, values, strict=True)}
