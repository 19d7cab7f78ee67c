"""Login with a password, and changing it. `login_limits` limits the number of attempts."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth import views
from django.db import transaction
from django.http import HttpResponse
from django.urls import reverse_lazy

from acmeweb.auth.login_limits import LoginForm, OldPasswordForm, retry_after_seconds
from jobs.actions import audit
from jobs.actions import tokens as token_actions
from jobs.actions.journal import Author


class AdminLoginForm(LoginForm, AdminAuthenticationForm):
    """The login form of Django's admin, with the same limits and the same message."""


class AcmeLoginView(views.LoginView):
    template_name = "login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        return super().get_context_data(oidc=settings.OIDC and settings.OIDC.label, **more)

    def form_invalid(self, form: Any) -> HttpResponse:
        response = super().form_invalid(form)
        return throttled_response(response, retry_after_seconds(self.request))


class ChangePasswordForm(OldPasswordForm):
    revoke_tokens = forms.BooleanField(required=False, initial=True)


class ChangePasswordView(views.PasswordChangeView):
    template_name = "account/password.html"
    form_class = ChangePasswordForm
    success_url = reverse_lazy("account")

    def get_form(self, form_class: Any = None) -> Any:
        form = super().get_form(form_class)
        form.request = self.request
        return form

    @transaction.atomic
    def form_valid(self, form: Any) -> HttpResponse:
        """Change the password. The session key depends on its hash, so all other sessions of the user end."""
        response = super().form_valid(form)
        message = "Your password was changed. Your other sessions were signed out."
        if form.cleaned_data["revoke_tokens"]:
            revoked = token_actions.revoke_user_tokens(
                self.request.user, author=Author.of(self.request), why="The password was changed."
            )
            message += f" Tokens revoked: {revoked}."
        audit.record_password_change(Author.of(self.request))
        messages.success(self.request, message)
        return response

    def form_invalid(self, form: Any) -> HttpResponse:
        return throttled_response(super().form_invalid(form), retry_after_seconds(self.request))


def throttled_response(response: HttpResponse, wait_s: int) -> HttpResponse:
    """429 with Retry-After if too many passwords were tried; otherwise the page as it is."""
    if wait_s:
        response.status_code = 429
        response["Retry-After"] = str(wait_s)
    return response
