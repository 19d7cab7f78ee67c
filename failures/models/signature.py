"""Learned rules: what they match, where they come from, and how often they were right.

The shipped rules are code and not stored here. A rule is proposed as a shadow rule, whose hits are counted but change
nothing; it is adopted manually or by policy, and can be retired at any time. Hits are rows, so the precision always
reflects the current reviews of the diagnoses.
"""

from __future__ import annotations

from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Count, F, Q
from django.db.models.functions import Now

from failures.models.diagnosis import Diagnosis, DiagnosisReview
from jobs.core.lifecycle import StateBadge


class RuleKind(models.TextChoices):
    SIGNATURE = "signature"
    FILTER = "filter"


class RuleState(models.TextChoices):
    SHADOW = "shadow"
    ADOPTED = "adopted"
    RETIRED = "retired"


class RuleOrigin(models.TextChoices):
    LEARNED = "learned"
    FREQUENCY = "frequency"
    MODEL = "model"


RULE_STATE_BADGES: dict[str, tuple[str, str]] = {
    RuleState.SHADOW: ("waiting", "◌"),
    RuleState.ADOPTED: ("good", "✓"),
    RuleState.RETIRED: ("quiet", "✕"),
}


class RuleQuerySet(models.QuerySet["LearnedRule"]):
    def running(self) -> Self:
        return self.exclude(state=RuleState.RETIRED)

    def adopted(self, kind: str = RuleKind.SIGNATURE) -> Self:
        return self.filter(kind=kind, state=RuleState.ADOPTED)

    def with_hit_counts(self) -> Self:
        """Rules with `hit_count`, and with the number of `right` and `wrong` hits among the reviewed ones."""
        judged = Q(hits__diagnosis__review__in=(DiagnosisReview.CONFIRMED, DiagnosisReview.CORRECTED))
        fits = Q(hits__diagnosis__root_cause=F("label"))
        return self.annotate(
            hit_count=Count("hits"),
            right=Count("hits", filter=judged & fits),
            wrong=Count("hits", filter=judged & ~fits),
        )


class LearnedRule(models.Model):
    name = models.CharField(max_length=60, unique=True)
    kind = models.CharField(max_length=10, choices=RuleKind, default=RuleKind.SIGNATURE)
    label = models.CharField(
        max_length=40, blank=True, help_text="Root cause that the rule names. Empty for a filter rule."
    )
    pattern = models.CharField(max_length=2000)
    example = models.CharField(max_length=600)
    origin = models.CharField(max_length=10, choices=RuleOrigin)
    source = models.ForeignKey(Diagnosis, on_delete=models.PROTECT, related_name="taught")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    state = models.CharField(max_length=10, choices=RuleState, default=RuleState.SHADOW)
    replay = models.JSONField(
        default=dict, help_text="Result of the replay on all stored bundles at the time of the proposal."
    )
    proposed_at = models.DateTimeField(db_default=Now())
    adopted_at = models.DateTimeField(null=True)
    adopted_by = models.CharField(max_length=150, blank=True)
    retired_at = models.DateTimeField(null=True)
    retired_by = models.CharField(max_length=150, blank=True)
    retired_why = models.TextField(blank=True)

    objects = RuleQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=RuleState.values), name="rule_state_known"),
            models.CheckConstraint(condition=Q(kind=RuleKind.FILTER) ^ ~Q(label=""), name="rule_names_a_cause"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def badge(self) -> StateBadge:
        tone, icon = RULE_STATE_BADGES[self.state]
        return StateBadge(label=self.state, code=self.state.upper(), tone=tone, icon=icon)

    @property
    def cause_text(self) -> str:
        """The root cause, or that lines which match belong to normal operation."""
        return "routine" if self.kind == RuleKind.FILTER else self.label

    @property
    def can_be_adopted(self) -> bool:
        return self.state == RuleState.SHADOW

    @property
    def is_retired(self) -> bool:
        return self.state == RuleState.RETIRED

    @property
    def precision(self) -> float | None:
        """The fraction of reviewed hits that were right, for rows of `with_hit_counts`; None if none was reviewed."""
        right, wrong = getattr(self, "right", 0), getattr(self, "wrong", 0)
        return right / (right + wrong) if right + wrong else None


class RuleHit(models.Model):
    rule = models.ForeignKey(LearnedRule, on_delete=models.CASCADE, related_name="hits")
    diagnosis = models.ForeignKey(Diagnosis, on_delete=models.PROTECT, related_name="rule_hits")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rule", "diagnosis"], name="one_hit_per_rule_and_diagnosis")]

    def __str__(self) -> str:
        return f"{self.rule} in {self.diagnosis}"


class ModelOpinion(models.Model):
    """The opinion of the language model about a diagnosis. It is shown next to the verdict and never changes it."""

    diagnosis = models.OneToOneField(Diagnosis, on_delete=models.PROTECT, related_name="opinion")
    requested_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True)
    model = models.CharField(max_length=200)
    root_cause = models.CharField(max_length=40, blank=True, help_text="Empty if the model abstained.")
    lines = models.JSONField(default=list)
    why = models.TextField(blank=True)
    votes = models.PositiveSmallIntegerField(default=0)
    calls = models.PositiveSmallIntegerField(default=0)
    errors = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"{self.model} on {self.diagnosis}: {self.root_cause or 'abstains'}"
