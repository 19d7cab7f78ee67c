"""The attempts of this installation, and which of them may need a step. Pure.

Thousands of attempts run unchanged for days, so a look derives anew only what belongs to changed groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from ..attempts import OwnAttempt
from ..changes import ChangeReader
from ..groups import GroupCache
from .admission import NEVER, Step, settled_until


class AttemptIndex:
    """The attempts by the uid of their owner."""

    def __init__(self, groups: GroupCache, is_ours: Callable[[OwnAttempt], bool]) -> None:
        self._groups, self._is_ours, self._reader = groups, is_ours, ChangeReader()
        self.all: dict[str, OwnAttempt] = {}
        self.not_admitted: dict[str, OwnAttempt] = {}
        self.incomplete: dict[str, OwnAttempt] = {}  # admitted pods are not known
        self._unsettled: dict[str, OwnAttempt] = {}
        self._settled_with: object = None  # lost nodes and late pods, on which ends of attempts depend
        self._settled_until = NEVER

    def update(self) -> None:
        with self._reader.changes([self._groups.changes]) as changed:
            if changed is None:
                self.all, self.not_admitted, self.incomplete, self._unsettled = {}, {}, {}, {}
                changed = set(self._groups.listed)
            for uid in changed:
                self._replace(uid)

    def _replace(self, uid: str) -> None:
        for attempts in (self.all, self.not_admitted, self.incomplete, self._unsettled):
            attempts.pop(uid, None)
        group = self._groups.listed.get(uid)
        attempt = group.attempt if group else None
        if attempt is None or not self._is_ours(attempt):
            return
        self.all[uid] = self._unsettled[uid] = attempt
        if not attempt.plan.admitted and not attempt.is_over:
            self.not_admitted[uid] = attempt
        if attempt.unseen_uids:
            self.incomplete[uid] = attempt

    def unsettled(self, lost_nodes: Collection[str], late: Collection[str], now: datetime) -> Sequence[OwnAttempt]:
        """The attempts that may need a step."""
        if self._settled_with != (lost_nodes, late) or now >= self._settled_until:
            self._unsettled, self._settled_until = dict(self.all), NEVER
            self._settled_with = (lost_nodes, late)
        return [attempt for attempt in self._unsettled.values() if attempt.owner.gone_at is None]

    def settle(
        self,
        attempts: Sequence[OwnAttempt],
        steps: Sequence[Step],
        lost_nodes: Collection[str],
        late: Collection[str],
    ) -> None:
        """Remember which of the attempts that were looked at need no step until something changes."""
        with_step = {step.attempt.owner.uid for step in steps}
        for attempt in attempts:
            until = None if attempt.owner.uid in with_step else settled_until(attempt, lost_nodes, late)
            if until is not None:
                self._settled_until = min(self._settled_until, until)
                self._unsettled.pop(attempt.owner.uid, None)
