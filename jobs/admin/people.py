"""Admin of teams, roles, quotas and recovery modes. Only site administrators can grant roles above their own."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Count, Model, QuerySet
from django.http import HttpRequest

from jobs.actions import recovery as recovery_actions
from jobs.actions.journal import Author
from jobs.admin import formatting
from jobs.admin.record import AcmeAdmin, ProtectedHistoryMixin, RecordAdmin
from jobs.models import Membership, Quota, RecoveryMode, SavedView, Team, TeamRole

# --- roles


def rank_in(team: Team | None, user: Any) -> int:
    """The rank of the user's role in the team: -1 without a role; above all roles for a superuser."""
    if user.is_superuser:
        return len(TeamRole)
    if team is None or team.pk is None:
        return -1
    own = Membership.objects.filter(team=team, user=user).values_list("role", flat=True).first()
    return TeamRole(own).rank if own else -1


class MembershipForm(forms.ModelForm):
    asker: Any  # the user who submits the form; set on the form class of each request

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        # Moving a membership removes a role in one team and grants one in another, so both teams are checked
        teams = [self.instance.team if self.instance.team_id else None, cleaned.get("team")]
        own = min((rank_in(team, self.asker) for team in teams if team), default=rank_in(None, self.asker))
        before = self.initial.get("role")
        if before and TeamRole(before).rank > own:
            raise ValidationError("You cannot change a role that is higher than yours in the team.")
        role = cleaned.get("role")
        if role and TeamRole(role).rank > own:
            raise ValidationError({"role": "You cannot grant a role that is higher than yours in the team."})
        return cleaned


class MembershipInline(admin.TabularInline):
    model = Membership
    form = MembershipForm
    extra = 0
    autocomplete_fields = ("user", "team")

    def get_formset(self, request: HttpRequest, obj: Model | None = None, **kwargs: Any) -> Any:
        formset = super().get_formset(request, obj, **kwargs)
        formset.form.asker = request.user
        return formset

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Only superusers delete here, because the inline checks no role. Others use the membership's own page."""
        return request.user.is_superuser and super().has_delete_permission(request, obj)


@admin.register(Membership)
class MembershipAdmin(AcmeAdmin):
    form = MembershipForm
    list_display = ("user", "team", "role")
    list_select_related = ("user", "team")
    list_filter = ("role", "team")
    search_fields = ("user__username__startswith", "team__name__startswith")
    search_help_text = "Beginning of a user name or a team name."
    autocomplete_fields = ("user", "team")

    def get_form(self, request: HttpRequest, obj: Membership | None = None, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, **kwargs)
        form.asker = request.user
        return form

    def get_readonly_fields(self, request: HttpRequest, obj: Membership | None = None) -> tuple[str, ...]:
        return ("user", "team") if obj else ()

    def has_delete_permission(self, request: HttpRequest, obj: Membership | None = None) -> bool:
        if obj is not None and TeamRole(obj.role).rank > rank_in(obj.team, request.user):
            return False
        return super().has_delete_permission(request, obj)


# --- teams and quotas


class QuotaInline(admin.TabularInline):
    model = Quota
    extra = 0


@admin.register(Team)
class TeamAdmin(ProtectedHistoryMixin, AcmeAdmin):
    history = ("jobs",)
    list_display = ("name", "title", "member_count", "gpus", "created_time")
    search_fields = ("name__startswith", "title__icontains", "memberships__user__username__exact")
    search_help_text = "Beginning of the name, any part of the title, or a member's user name."
    list_filter = ("quotas__cluster",)
    date_hierarchy = "created_at"
    inlines = (MembershipInline, QuotaInline)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Team]:
        # A second join on quotas would multiply the counted rows, so the quotas are read separately
        return super().get_queryset(request).annotate(member_total=Count("memberships", distinct=True))

    @admin.display(description="members", ordering="member_total")
    def member_count(self, team: Team) -> int:
        return team.member_total

    @admin.display(description="quotas")
    def gpus(self, team: Team) -> str:
        return ", ".join(
            f"{q.gpus} {q.gpu_model}".rstrip() + f" on {q.cluster}{q.kind and f' ({q.kind})'}"
            for q in team.quotas.all()
        )

    @admin.display(description="created", ordering="created_at")
    def created_time(self, team: Team) -> str:
        return formatting.relative_time(team.created_at)


@admin.register(Quota)
class QuotaAdmin(AcmeAdmin):
    list_display = ("team", "cluster", "kind_or_all", "gpu_model", "gpus")
    list_select_related = ("team", "cluster")
    list_filter = ("cluster", "kind", "gpu_model", "team")
    search_fields = ("team__name__startswith", "cluster__name__startswith")
    search_help_text = "Beginning of a team name or a cluster name."

    @admin.display(description="kind", ordering="kind")
    def kind_or_all(self, quota: Quota) -> str:
        return quota.kind or "all kinds"


@admin.register(RecoveryMode)
class RecoveryModeAdmin(AcmeAdmin):
    """Saves through `set_recovery_mode`, so that each change has an event."""

    list_display = ("mode", "applies_to", "where", "what", "changed_by", "changed_at")
    list_select_related = ("team", "cluster")
    list_filter = ("mode", "cluster", "team")
    search_fields = ("team__name__startswith", "cluster__name__startswith")
    search_help_text = "Beginning of a team name or a cluster name."
    readonly_fields = ("changed_by", "changed_at")

    @admin.display(description="team", ordering="team")
    def applies_to(self, row: RecoveryMode) -> str:
        return row.team.name if row.team else "all teams"

    @admin.display(description="cluster", ordering="cluster")
    def where(self, row: RecoveryMode) -> str:
        return row.cluster.name if row.cluster else "all clusters"

    @admin.display(description="action", ordering="action")
    def what(self, row: RecoveryMode) -> str:
        return row.action or "all actions"

    def get_readonly_fields(self, request: HttpRequest, obj: RecoveryMode | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, "cluster", "team", "action") if obj else self.readonly_fields

    def save_model(self, request: HttpRequest, obj: RecoveryMode, form: Any, change: bool) -> None:
        row = recovery_actions.set_recovery_mode(
            obj.mode, author=Author.of(request), team_id=obj.team_id, cluster_id=obj.cluster_id, action=obj.action
        )
        obj.pk = row.pk


@admin.register(SavedView)
class SavedViewAdmin(RecordAdmin):
    list_display = ("name", "owner", "team", "query", "created_at")
    list_select_related = ("owner", "team")
    list_filter = ("team",)
    ordering = ("name",)
    search_fields = ("name", "owner__username__exact")
