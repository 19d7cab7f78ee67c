"""Fragments that are the same for everyone are rendered once per change in each process, and served to all.

A template keeps such a part with `{% cache 5 NAME shared_at %}`, where `shared_at` is what this module answers: the
numbers of the topics that the part shows. They are read before anything else is, and counted up after each commit, so
a part made from older rows is never found under a newer number. Where nobody knows the numbers (Valkey is away) the
five seconds alone limit how old it can be.
"""

from __future__ import annotations

from collections.abc import Collection

from acmeweb.common import metrics_store


def cache_key(*topics: str) -> str:
    return " ".join(str(number) for number in topic_sequences(topics).values())


def topic_sequences(topics: Collection[str]) -> dict[str, int]:
    """Where each topic is now; 0 where nobody knows, which is no number that a topic ever has."""
    answers = metrics_store.valkey.ask([("MGET", *(f"acme:live:{topic}" for topic in topics))]) if topics else None
    found = answers[0] if answers and isinstance(answers[0], list) else [None] * len(topics)
    return {topic: int(value or 0) for topic, value in zip(topics, found, strict=True)}
