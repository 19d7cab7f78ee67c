"""Print the permissions that Acme needs on a Kubernetes cluster, for `kubectl apply -f -`.

manage.py kubernetes_manifest --mode observe | kubectl apply -f -
"""

from __future__ import annotations

import re
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.models import ClusterMode
from scheduling.backends.kubernetes.manifests import observe_manifest

NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks = ()  # works without a database

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--mode", choices=[str(ClusterMode.OBSERVE)], required=True, help="what Acme may do")
        parser.add_argument(
            "--namespace", default="acme", help="namespace of Acme's service account (default: %(default)s)"
        )

    def handle(self, *, mode: str, namespace: str, **_: Any) -> None:
        if not NAMESPACE.fullmatch(namespace):
            raise CommandError("--namespace must be lowercase letters, digits and dashes, at most 63.")
        self.stdout.write(observe_manifest(namespace), ending="")
