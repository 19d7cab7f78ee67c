"""The attempts of this installation, and which of them may need a step. Pure.

Thousands of attempts run unchanged for days, so a look derives anew only what belongs to changed groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from ..attempts import OwnAttempt
from ..changes import ChangeReader
from ..groups import GroupCache
from .admission import NEVER, Step, idle_until


class AttemptIndex:
    """The attempts by the uid of their owner."""

    def __init__(self, groups: GroupCache, is_ours: Callable[[OwnAttempt], bool]) -> None:
        self._groups, self._is_ours, self._reader = groups, is_ours, ChangeReader()
        self.all: dict[str, OwnAttempt] = {}
        self.not_admitted: dict[str, OwnAttempt] = {}
        self.incomplete: dict[str, OwnAttempt] = {}  # admitted pods are not known
        self._may_need_step: dict[str, OwnAttempt] = {}
        self._idle_until: dict[str, datetime] = {}  # of attempts that need a step later, even if nothing changes
        self._next_step_at = NEVER  # the earliest of these times
        self._last_look: object = None  # lost nodes and late pods, on which ends of attempts depend

    def update(self) -> None:
        with self._reader.changes([self._groups.changes]) as changed:
            if changed is None:
                self.all, self.not_admitted, self.incomplete = {}, {}, {}
                self._may_need_step, self._idle_until = {}, {}
                changed = set(self._groups.listed)
            for uid in changed:
                self._replace(uid)

    def _replace(self, uid: str) -> None:
        for entries in (self.all, self.not_admitted, self.incomplete, self._may_need_step, self._idle_until):
            entries.pop(uid, None)
        group = self._groups.listed.get(uid)
        attempt = group.attempt if group else None
        if attempt is None or not self._is_ours(attempt):
            return
        self.all[uid] = self._may_need_step[uid] = attempt
        if not attempt.plan.admitted and not attempt.is_over:
            self.not_admitted[uid] = attempt
        if attempt.unseen_uids:
            self.incomplete[uid] = attempt

    def may_need_step(self, lost_nodes: Collection[str], late: Collection[str], now: datetime) -> Sequence[OwnAttempt]:
        if self._last_look != (lost_nodes, late):
            self._may_need_step = dict(self.all)
            self._last_look = (lost_nodes, late)
        if now >= self._next_step_at:
            due = [uid for uid, until in self._idle_until.items() if until <= now]
            self._may_need_step |= {uid: self.all[uid] for uid in due}
            self._next_step_at = min((at for at in self._idle_until.values() if at > now), default=NEVER)
        return [attempt for attempt in self._may_need_step.values() if attempt.owner.gone_at is None]

    def note_idle(
        self,
        attempts: Sequence[OwnAttempt],
        steps: Sequence[Step],
        lost_nodes: Collection[str],
        late: Collection[str],
    ) -> None:
        """Remember which of the attempts that were looked at need no step until something changes."""
        with_step = {step.attempt.owner.uid for step in steps}
        for attempt in attempts:
            uid = attempt.owner.uid
            until = None if uid in with_step else idle_until(attempt, lost_nodes, late)
            if until is None:
                continue
            if until < NEVER:
                self._idle_until[uid] = until
                self._next_step_at = min(self._next_step_at, until)
            self._may_need_step.pop(uid, None)
