"""Saved filters of the job list: of a user, or of a team."""

from __future__ import annotations

from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from jobs.models.people import Team


class SavedViewQuerySet(models.QuerySet["SavedView"]):
    def for_user(self, user: Any) -> Self:
        """Return the user's own views, then those of their teams. A superuser gets no additional views."""
        teams = Team.objects.filter(memberships__user=user)
        own = Q(owner=user, team__isnull=True)
        return self.filter(own | Q(team__in=teams.values("pk"))).order_by(
            models.F("team").asc(nulls_first=True), "name"
        )


class SavedView(models.Model):
    # PROTECT: the views of a team must not disappear with the user who saved them
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="saved_views")
    team = models.ForeignKey(
        Team,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="saved_views",
        help_text="Team that sees the view. Empty: only its owner.",
    )
    name = models.CharField(max_length=40)
    query = models.CharField(max_length=1000, blank=True, help_text="The filters, as in the query string of the list.")
    first_for = models.ManyToManyField(
        settings.AUTH_USER_MODEL,
        blank=True,
        related_name="first_view",
        help_text="Users whose list opens with this view.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = SavedViewQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "name"], condition=Q(team__isnull=True), name="one_view_of_a_person_per_name"
            ),
            models.UniqueConstraint(
                fields=["team", "name"], condition=Q(team__isnull=False), name="one_view_of_a_team_per_name"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.team or self.owner}"
