"""Admin of API tokens. Only the hash is stored, the secret is shown once, and scopes are limited to the creator's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import ValidationError
from django.db.models import ForeignKey, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from jobs.actions import tokens as token_actions
from jobs.actions.journal import Author
from jobs.admin import formatting
from jobs.admin.record import AcmeAdmin
from jobs.admin.verbs import AdminAction, AdminActionInput, AdminActionsMixin
from jobs.models import Team, Token
from jobs.web.token_forms import TokenRightsForm


class TokenForm(TokenRightsForm):
    def clean_expires_at(self) -> Any:
        at = self.cleaned_data["expires_at"]
        if at and "expires_at" in self.changed_data and at <= timezone.now():
            raise ValidationError("The expiry date must be in the future.")
        if self.instance.pk is None or "expires_at" in self.changed_data:
            # The limit counts from the token's creation. Otherwise repeated changes could extend it forever
            created_at = self.instance.created_at if self.instance.pk else timezone.now()
            if why := token_actions.token_expiry_error(at, created_at):
                raise ValidationError(why)
        return at


class UsableTokenFilter(admin.SimpleListFilter):
    title = "usable"
    parameter_name = "usable"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "usable"), ("no", "revoked, expired, or of an inactive user")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Token]) -> QuerySet[Token]:
        usable = Token.objects.usable(timezone.now()).values("pk")
        if self.value() == "yes":
            return queryset.filter(pk__in=usable)
        return queryset.exclude(pk__in=usable) if self.value() == "no" else queryset


def _revoke_token(token: Token, values: AdminActionInput) -> None:
    token_actions.revoke(token, author=values.author, why=values.why)
    message = f"Revoked. {values.why}".strip()
    LogEntry.objects.log_actions(values.author.user_id, [token], CHANGE, change_message=message, single_object=True)


def _revoke_effect(tokens: Sequence[Token]) -> str:
    programs = f"programs that use {_tokens_text(len(tokens))}"
    return f"revoke: {programs} are rejected from their next request on. This cannot be undone."


def _tokens_text(count: int) -> str:
    return "this token" if count == 1 else f"these {count} tokens"


REVOKE_ACTION = AdminAction(
    name="revoke", label="Revoke", act=_revoke_token, effect=_revoke_effect, fits=lambda token: token.revoked_at is None
)


@admin.register(Token)
class TokenAdmin(AdminActionsMixin, AcmeAdmin):
    form = TokenForm
    verbs = (REVOKE_ACTION,)
    verb_permission = "jobs.change_token"
    touched_columns = ("token", "user", "team", "scope", "last used")
    list_display = ("prefix", "name", "user", "team", "scope", "networks", "state", "last_use", "expires")
    list_select_related = ("user", "team")
    list_filter = (UsableTokenFilter, "scope", "team")
    date_hierarchy = "created_at"
    search_fields = ("prefix__startswith", "name__startswith", "user__username__startswith")
    search_help_text = "Beginning of the token, of its name, or of its user's name."
    made_of = ("name", "user", "team", "scope", "networks", "expires_at")
    fields = (*made_of, "prefix", "state", "created_time", "last_use")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Token]:
        tokens = super().get_queryset(request)
        return tokens if request.user.is_superuser else tokens.filter(user=request.user)

    def get_fields(self, request: HttpRequest, obj: Token | None = None) -> tuple[str, ...]:
        return self.fields if obj else self.made_of

    def get_readonly_fields(self, request: HttpRequest, obj: Token | None = None) -> tuple[str, ...]:
        """A token's access is fixed at creation. To grant more, create another token."""
        return ("user", "team", "scope", "prefix", "state", "created_time", "last_use") if obj else ()

    def get_form(self, request: HttpRequest, obj: Token | None = None, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, **kwargs)
        form.asker = request.user
        return form

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        lifetime = token_actions.max_token_lifetime()
        defaults = {"user": request.user.pk, "expires_at": timezone.now() + lifetime if lifetime else None}
        return defaults | super().get_changeform_initial_data(request)

    def formfield_for_foreignkey(self, db_field: ForeignKey, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "user" and not request.user.is_superuser:
            kwargs["queryset"] = db_field.related_model.objects.filter(pk=request.user.pk)
        if db_field.name == "team":
            kwargs["queryset"] = Team.objects.where(request.user)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        if not change:
            generated, obj.secret = Token.make()
            obj.prefix, obj.digest = generated.prefix, generated.digest
        super().save_model(request, obj, form, change)
        if not change:
            token_actions.journal_token("token.created", obj, Author.of(request))

    def response_add(self, request: HttpRequest, obj: Token, post_url_continue: str | None = None) -> HttpResponse:
        """Show the secret, which is only in this response. A message would store it in a cookie or a database row."""
        context = self.admin_site.each_context(request) | {
            "title": f"Token {obj.name}",
            "opts": self.opts,
            "media": self.media,
            "token": obj,
            "secret": obj.secret,
        }
        response = TemplateResponse(request, "admin/jobs/token_secret.html", context)
        response["Cache-Control"] = "no-store"
        return response

    def confirmation_cells(self, token: Token) -> tuple[Any, ...]:
        return (token, token.user, token.team or formatting.MISSING_TEXT, token.scope, self.last_use(token))

    @admin.display(description="state")
    def state(self, token: Token) -> str:
        if token.revoked_at:
            return formatting.join_texts("revoked", formatting.relative_time(token.revoked_at))
        return "expired" if token.expires_at and token.expires_at <= timezone.now() else "usable"

    @admin.display(description="last used", ordering="last_used_at")
    def last_use(self, token: Token) -> str:
        return formatting.relative_time(token.last_used_at)

    @admin.display(description="expires", ordering="expires_at")
    def expires(self, token: Token) -> str:
        if token.expires_at:
            return formatting.relative_time(token.expires_at)
        return (
            formatting.join_texts("never", "(exceeds the current limit)")
            if token_actions.max_token_lifetime()
            else "never"
        )

    @admin.display(description="created")
    def created_time(self, token: Token) -> str:
        return formatting.exact_and_relative_time(token.created_at)
