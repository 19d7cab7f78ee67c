"""Recovery decisions with their inputs and their outcome, and overrides that exclude jobs and nodes from recovery.

The inputs are stored unchanged, so that later rules can replay the decision. A Step is one action that was carried out;
its row is written in the transaction of the action, so that it is not repeated.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self

from django.db import models
from django.db.models.functions import Now

from failures.models.anomaly import Anomaly
from failures.models.diagnosis import Diagnosis
from failures.models.incident import Incident
from failures.recovery.rules.remedies import RESTART_ACTIONS, AutomationMode, RecoveryAction
from failures.recovery.rules.resizing import RequestChange
from failures.recovery.rules.serialization import from_json
from jobs.core.lifecycle import StateBadge
from jobs.models import Attempt, Cluster, Job, Node


class DecisionState(models.TextChoices):
    """The state of a decision."""

    OBSERVED = "observed"  # recorded only
    PROPOSED = "proposed"
    APPROVED = "approved"  # by a user, or automatically by the mode
    ACTING = "acting"
    DONE = "done"
    DECLINED = "declined"
    EXPIRED = "expired"
    FAILED = "failed"
    UNDONE = "undone"
    WITHDRAWN = "withdrawn"  # a user corrected the diagnosis first; recovery decides again


OPEN_STATES = (DecisionState.PROPOSED, DecisionState.APPROVED, DecisionState.ACTING)
CARRIED_OUT_STATES = (DecisionState.ACTING, DecisionState.DONE)
DECISION_BADGES: dict[str, tuple[str, str]] = {
    DecisionState.OBSERVED: ("quiet", "◌"),
    DecisionState.PROPOSED: ("warn", "?"),
    DecisionState.APPROVED: ("running", "▶"),
    DecisionState.ACTING: ("running", "▶"),
    DecisionState.DONE: ("good", "✓"),
    DecisionState.DECLINED: ("quiet", "⊘"),
    DecisionState.EXPIRED: ("quiet", "◷"),
    DecisionState.FAILED: ("bad", "✗"),
    DecisionState.UNDONE: ("warn", "↺"),
    DecisionState.WITHDRAWN: ("quiet", "✎"),
}


class DecisionQuerySet(models.QuerySet["Decision"]):
    def open(self) -> Self:
        return self.filter(state__in=OPEN_STATES)

    def not_withdrawn(self) -> Self:
        """Decisions that were not withdrawn: at most one per failed attempt."""
        return self.exclude(state=DecisionState.WITHDRAWN)

    def due(self, now: datetime) -> Self:
        """Approved decisions whose next step is due."""
        return self.filter(state__in=(DecisionState.APPROVED, DecisionState.ACTING), due_at__lte=now)

    def awaiting_approval(self, now: datetime) -> Self:
        return self.filter(state=DecisionState.PROPOSED, expires_at__gt=now)


class Decision(models.Model):
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="decisions")
    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="decisions")
    # Either a diagnosis or an anomaly. An anomaly concerns a running attempt, or only a node (then there is no attempt)
    diagnosis = models.ForeignKey(Diagnosis, null=True, on_delete=models.PROTECT, related_name="decisions")
    anomaly = models.OneToOneField(Anomaly, null=True, on_delete=models.PROTECT, related_name="decision")
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.PROTECT, related_name="decisions")
    at = models.DateTimeField(db_default=Now())

    # the inputs
    facts = models.JSONField()
    history = models.JSONField()
    policy = models.JSONField()

    # the decision
    action = models.CharField(max_length=20, choices=[(one.value, one.value) for one in RecoveryAction])
    mode = models.CharField(max_length=8, choices=[(one.value, one.value) for one in AutomationMode])
    why = models.TextField()
    pro = models.JSONField(default=list)
    con = models.JSONField(default=list)
    limits = models.JSONField(default=list, help_text="Reasons why the mode was lowered: [mode, why].")
    drain = models.JSONField(default=list)
    test = models.JSONField(default=list)
    checkpoint_path = models.CharField(max_length=1000, blank=True)
    checkpoint_step = models.PositiveBigIntegerField(null=True)
    skip = models.JSONField(null=True, help_text="First and last step whose data are skipped.")
    change = models.JSONField(default=list, blank=True, help_text="Changes to the request of the job.")
    undo = models.TextField(blank=True)
    not_before = models.DateTimeField()
    expires_at = models.DateTimeField()
    consumes_retry = models.BooleanField(default=False)

    # the outcome
    state = models.CharField(max_length=10, choices=DecisionState, default=DecisionState.PROPOSED)
    answered_by = models.CharField(
        max_length=150, blank=True, help_text="User who approved, declined or undid the decision."
    )
    answered_at = models.DateTimeField(null=True)
    answer_reason = models.TextField(blank=True)
    due_at = models.DateTimeField(db_default=Now(), help_text="When the next step is due.")
    tries = models.PositiveIntegerField(default=0)
    errors = models.PositiveSmallIntegerField(default=0, help_text="Number of tries that failed with an error.")
    began_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    outcome = models.TextField(blank=True)

    objects = DecisionQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["due_at"], name="decision_open", condition=models.Q(state__in=OPEN_STATES)),
            models.Index(fields=["cluster", "began_at"], name="decision_carried_out"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["diagnosis"],
                condition=~models.Q(state=DecisionState.WITHDRAWN),
                name="one_standing_decision_per_diagnosis",
            ),
            models.CheckConstraint(condition=models.Q(state__in=DecisionState.values), name="decision_state_known"),
            models.CheckConstraint(
                condition=models.Q(diagnosis__isnull=False) ^ models.Q(anomaly__isnull=False),
                name="decision_has_one_ground",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} ({self.subject})"

    @property
    def subject(self) -> Attempt | Node | None:
        return self.attempt or (self.anomaly.node if self.anomaly else None)

    @property
    def badge(self) -> StateBadge:
        tone, icon = DECISION_BADGES[self.state]
        return StateBadge(label=self.state, code=self.state, tone=tone, icon=icon)

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def is_proposed(self) -> bool:
        return self.state == DecisionState.PROPOSED

    @property
    def limit_effects(self) -> list[tuple[str, str]]:
        """The effect and the reason of each limit that lowered the mode."""
        return [
            ("Approval needed" if mode == AutomationMode.PROPOSE else "No action", why) for mode, why in self.limits
        ]

    @property
    def restarts(self) -> bool:
        return self.action in RESTART_ACTIONS or bool(self.change)

    @property
    def changes(self) -> tuple[RequestChange, ...]:
        return tuple(from_json(RequestChange, change) for change in self.change)

    @property
    def can_be_undone(self) -> bool:
        return self.state in (DecisionState.APPROVED, DecisionState.ACTING, DecisionState.DONE)


class RecoveryStep(models.Model):
    """One action that was carried out for a decision."""

    class Kind(models.TextChoices):
        DRAINED = "drained"
        TESTED = "tested"
        RESUMED = "resumed"
        RESTARTED = "restarted"
        ENDED = "ended"  # recovery released the job in the state in which it ended
        UNDONE = "undone"

    decision = models.ForeignKey(Decision, on_delete=models.PROTECT, related_name="steps")
    kind = models.CharField(max_length=10, choices=Kind)
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(db_default=Now())
    text = models.TextField(blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["decision", "kind", "node"], nulls_distinct=False, name="each_step_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.node or self.decision.subject}"


class ManualOverrideQuerySet(models.QuerySet["ManualOverride"]):
    def active(self) -> Self:
        return self.filter(lifted_at__isnull=True)


class ManualOverride(models.Model):
    """A user's override: recovery does not act on this job or node until the override is lifted."""

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="overrides")
    job = models.ForeignKey(Job, null=True, on_delete=models.PROTECT, related_name="overrides")
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="overrides")
    by = models.CharField(max_length=150)
    why = models.TextField()
    at = models.DateTimeField(db_default=Now())
    lifted_at = models.DateTimeField(null=True)
    lifted_by = models.CharField(max_length=150, blank=True)

    objects = ManualOverrideQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(job__isnull=False) ^ models.Q(node__isnull=False), name="override_has_one_subject"
            )
        ]
        indexes = [
            models.Index(fields=["cluster"], name="override_active", condition=models.Q(lifted_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.subject}: {self.why}"

    @property
    def subject(self) -> str:
        return str(self.job or self.node)
