"""Logging in with a password, and changing it. How often one may try is decided in `login_limits`."""

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

from acmeweb.login_limits import LoginForm, OldPasswordForm, wait_of
from jobs import token_actions
from jobs.journal import Author


class AdminLoginForm(LoginForm, AdminAuthenticationForm):
    """Django's admin refuses with the same sentence."""


class Login(views.LoginView):
    template_name = "login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        return super().get_context_data(oidc=settings.OIDC and settings.OIDC.label, **more)

    def form_invalid(self, form: Any) -> HttpResponse:
        response = super().form_invalid(form)
        return refused(response, wait_of(self.request))


class PasswordForm(OldPasswordForm):
    revoke_tokens = forms.BooleanField(required=False, initial=True)


class ChangePassword(views.PasswordChangeView):
    template_name = "account/password.html"
    form_class = PasswordForm
    success_url = reverse_lazy("account")

    def get_form(self, form_class: Any = None) -> Any:
        form = super().get_form(form_class)
        form.request = self.request
        return form

    @transaction.atomic
    def form_valid(self, form: Any) -> HttpResponse:
        """The session key is made from the password's hash, so all other sessions of the user end."""
        response = super().form_valid(form)
        said = "Your password is changed; your other sessions are signed out."
        if form.cleaned_data["revoke_tokens"]:
            revoked = token_actions.revoke_all(
                self.request.user, author=Author.of(self.request), why="The password was changed."
            )
            said += f" Tokens revoked: {revoked}."
        messages.success(self.request, said)
        return response

    def form_invalid(self, form: Any) -> HttpResponse:
        return refused(super().form_invalid(form), wait_of(self.request))


def refused(response: HttpResponse, wait_s: int) -> HttpResponse:
    """429 with Retry-After if too many passwords were tried; otherwise the page as it is."""
    if wait_s:
        response.status_code = 429
        response["Retry-After"] = str(wait_s)
    return response
