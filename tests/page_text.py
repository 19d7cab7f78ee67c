"""What a response shows as text: each run of whitespace is one space, as in a browser."""

from __future__ import annotations

from django.http import HttpResponse


def page_text(response: HttpResponse) -> str:
    return " ".join(response.content.decode().split())
