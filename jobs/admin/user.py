"""Admin of users with their teams. Only superusers can grant staff or superuser access."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin  # importing it registers Django's own first
from django.contrib.auth.forms import AdminPasswordChangeForm
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from jobs.actions import tokens as token_actions
from jobs.actions.journal import Author
from jobs.admin import formatting
from jobs.admin.audit import AuditedAdmin
from jobs.admin.people import MembershipInline
from jobs.admin.record import ProtectedHistoryMixin, RecordAdmin
from jobs.models import Identity

User = get_user_model()

admin.site.unregister(User)


class ResetPasswordForm(AdminPasswordChangeForm):
    revoke_tokens = forms.BooleanField(
        label="Revoke the user's tokens",
        required=False,
        initial=True,
        help_text="Programs that use them are refused from their next request on. The user's sessions end in any case.",
    )


@admin.register(User)
class UserAdmin(ProtectedHistoryMixin, AuditedAdmin, DjangoUserAdmin):
    history = ("acme_jobs", "acme_tokens")
    list_display = (*DjangoUserAdmin.list_display, "is_active", "in_teams")
    list_filter = (*DjangoUserAdmin.list_filter, "teams")
    search_help_text = "Any part of a user's name, first name, last name or e-mail address."
    date_hierarchy = "date_joined"
    inlines = (MembershipInline,)
    powers = ("is_superuser", "is_staff", "groups", "user_permissions")

    change_password_form = ResetPasswordForm
    change_user_password_template = "admin/jobs/reset_password.html"  # noqa: S105 - a path

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related("memberships__team")

    @transaction.atomic
    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        """Django's password page (which checks the permission), then revoke tokens if the stored hash has changed."""
        before = User.objects.filter(pk=id).values_list("password", flat=True).first() if id.isdecimal() else None
        response = super().user_change_password(request, id, form_url)
        if before is not None and request.POST.get("revoke_tokens"):
            user = User.objects.get(pk=id)
            if user.password != before:
                token_actions.revoke_user_tokens(
                    user, author=Author.of(request), why="An administrator reset the password."
                )
        return response

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        own = tuple(super().get_readonly_fields(request, obj))
        return own if request.user.is_superuser else (*own, *self.powers)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only superusers can change staff: setting another administrator's password would grant their access."""
        if obj is not None and not request.user.is_superuser and (obj.is_superuser or obj.is_staff):
            return False
        return super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is not None and not request.user.is_superuser and (obj.is_superuser or obj.is_staff):
            return False
        return super().has_delete_permission(request, obj)

    @admin.display(description="teams")
    def in_teams(self, user: Any) -> str:
        return ", ".join(f"{m.team} ({m.role})" for m in user.memberships.all())


@admin.register(Identity)
class IdentityAdmin(RecordAdmin):
    """External identities, created at sign-in. A superuser can delete one to unlink the user from the provider."""

    list_display = ("subject", "issuer", "user", "since")
    list_select_related = ("user",)
    list_filter = ("issuer",)
    date_hierarchy = "created_at"
    search_fields = ("subject__exact", "user__username__startswith")
    search_help_text = "A complete subject, or the beginning of a user name."
    fields = ("user", "issuer", "subject", "since")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.is_superuser

    @admin.display(description="since", ordering="created_at")
    def since(self, row: Identity) -> str:
        return formatting.relative_time(row.created_at)
