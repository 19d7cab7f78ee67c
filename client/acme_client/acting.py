"""One verb on many jobs: request after request until all that were meant have been tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acme_client.api import Acme

MAX_IDS_PER_REQUEST = 500

VerbProgressCallback = Callable[[int, int], None]  # so many tried, of so many


@dataclass(kw_only=True)
class VerbResult:
    """What came of it, job by job, over all requests."""

    matched: int = 0
    left: int = 0
    outcomes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def done(self) -> int:
        return sum(1 for one in self.outcomes if one["done"])

    @property
    def refused(self) -> list[dict[str, Any]]:
        return [one for one in self.outcomes if not one["done"]]


def run_verb_on_ids(
    acme: Acme, body: Mapping[str, Any], ids: Sequence[str], progress: VerbProgressCallback
) -> VerbResult:
    found = VerbResult()
    for part in _id_batches(list(dict.fromkeys(ids))):
        answer = acme.post("jobs/verbs/", {**body, "ids": part})
        _add_outcomes(found, answer)
        progress(min(len(found.outcomes), len(ids)), len(ids))
    found.matched = len(found.outcomes)
    return found


def run_verb_on_filter(
    acme: Acme, body: Mapping[str, Any], filters: Mapping[str, Any], progress: VerbProgressCallback
) -> VerbResult:
    """What was done does not match any more as a rule; a round that does nothing would only be repeated."""
    found = VerbResult()
    while True:
        answer = acme.post("jobs/verbs/", {**body, "filter": dict(filters)})
        _add_outcomes(found, answer)
        found.matched = max(found.matched, answer["matched"])
        found.left = answer["left"]
        progress(found.matched - found.left, found.matched)
        if not answer["left"] or not answer["done"] or body.get("dry_run"):
            return found


def _add_outcomes(found: VerbResult, answer: Mapping[str, Any]) -> None:
    known = {one["id"] for one in found.outcomes}
    found.outcomes += [one for one in answer["outcomes"] if one["id"] not in known]


def _id_batches(ids: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(ids), MAX_IDS_PER_REQUEST):
        yield ids[first : first + MAX_IDS_PER_REQUEST]
