"""What every page shows about this instance."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest


def instance_context(request: HttpRequest) -> dict[str, bool]:
    return {"is_demo": settings.IS_DEMO}
