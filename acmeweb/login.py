"""Signing in with a password: not as often as one likes.

After ten wrong passwords for a name from one address, or fifty from one address, both within a quarter of an hour,
nobody is asked any more; a right password does not count. A name alone is never locked: that would let a stranger lock
a colleague out.
"""

from __future__ import annotations

import hashlib
from typing import Any

from django.conf import settings
from django.contrib.auth import views
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse_lazy

from jobs.door.throttle import counter, rest_of

WINDOW_S = 15 * 60
MOST_FOR_NAME, MOST_FOR_ADDRESS = 10, 50


class Login(views.LoginView):
    template_name = "login.html"
    redirect_authenticated_user = True

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        return super().get_context_data(oidc=settings.OIDC and settings.OIDC.label, **more)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if any(counter.look(name, WINDOW_S) >= most for name, most in _counted(request)):
            answer = render(request, "login.html", {**self.get_context_data(), "too_many": True}, status=429)
            answer["Retry-After"] = str(rest_of(WINDOW_S))
            return answer
        return super().post(request, *args, **kwargs)

    def form_invalid(self, form: Any) -> HttpResponse:
        for name, _ in _counted(self.request):
            counter.count(name, WINDOW_S)
        return super().form_invalid(form)


class ChangePassword(views.PasswordChangeView):
    template_name = "account/password.html"
    success_url = reverse_lazy("account")


def _counted(request: HttpRequest) -> list[tuple[str, int]]:
    address = request.META.get("REMOTE_ADDR", "")
    said = f"{request.POST.get('username', '').strip().lower()}\n{address}"
    digest = hashlib.sha256(said.encode(errors="replace")).hexdigest()[:24]  # names are as long as a stranger likes
    return [(f"login:{digest}", MOST_FOR_NAME), (f"login:{address}", MOST_FOR_ADDRESS)]
