from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from acmeweb.common.env import EnvReader
from acmeweb.services.instance import up


class Command(BaseCommand):
    help = "Start everything - PostgreSQL, Valkey, worker, beat, web - and stay until Ctrl-C stops it all again."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        # The real environment alone: var/run/env still describes the instance of last time.
        sys.exit(up(EnvReader(os.environ), settings.VAR.absolute()))
