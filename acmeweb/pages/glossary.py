"""The page of terms."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from acmeweb.glossary import TERMS
from acmeweb.pages.start import START_ROLES
from jobs.web.page import render_page


@require_safe
def glossary_page(request: HttpRequest) -> HttpResponse:
    return render_page(request, "glossary.html", {"terms": TERMS, "roles": START_ROLES})
