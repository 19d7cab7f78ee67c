from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from acmeweb.common.env import EnvReader
from acmeweb.services.instance import up


class Command(BaseCommand):
    help = "Start PostgreSQL, Valkey, workers and web, and run until Ctrl-C, which stops all of them."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        # Only the real environment: var/run/env still describes the previous instance.
        sys.exit(up(EnvReader(os.environ), settings.VAR.absolute()))
