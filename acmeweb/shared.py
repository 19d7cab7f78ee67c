"""Fragments that are the same for everyone are rendered once per change in each process, and served to all.

A template keeps such a part with `{% cache 5 NAME shared_at %}`, where `shared_at` is what this module answers: the
numbers of the topics that the part shows. They are read before anything else is, and counted up after each commit, so
a part made from older rows is never found under a newer number. Where nobody knows the numbers (Valkey is away) the
five seconds alone limit how old it can be.
"""

from __future__ import annotations

from jobs import tally


def at(*topics: str) -> str:
    answers = tally.valkey.ask([("MGET", *(f"acme:live:{topic}" for topic in topics))])
    found = answers[0] if answers else []
    return " ".join(value.decode() if value else "0" for value in found) if isinstance(found, list) else ""
