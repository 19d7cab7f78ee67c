"""Print the permissions that Acme needs on a Kubernetes cluster, for `kubectl apply -f -`.

manage.py kubernetes_manifest --mode observe | kubectl apply -f -
manage.py kubernetes_manifest --mode drive --namespace acme-jobs | kubectl apply -f -
"""

from __future__ import annotations

import re
from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.models import ClusterMode
from scheduling.backends.kubernetes.connection.manifests import DRIVER_NAMESPACE, drive_manifest, observe_manifest
from scheduling.backends.kubernetes.pod_template import PodTemplate

NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks = ()  # works without a database

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        modes = [str(mode) for mode in (ClusterMode.OBSERVE, ClusterMode.DRIVE)]
        parser.add_argument("--mode", choices=modes, required=True, help="what Acme may do")
        parser.add_argument(
            "--namespace",
            action="append",
            help=f"observe: of Acme's service account (default: {DRIVER_NAMESPACE}); drive: where Acme runs jobs"
            f" (default: {PodTemplate.namespace}; may be repeated)",
        )

    def handle(self, *, mode: str, namespace: list[str] | None, **_: Any) -> None:
        if not all(map(NAMESPACE.fullmatch, namespace or ())):
            raise CommandError("--namespace must be lowercase letters, digits and dashes, at most 63.")
        if mode == ClusterMode.DRIVE:
            self.stdout.write(drive_manifest(namespace or [PodTemplate.namespace]), ending="")
            return
        if len(namespace or ()) > 1:
            raise CommandError("--namespace can be repeated only with --mode drive.")
        self.stdout.write(observe_manifest(*(namespace or [DRIVER_NAMESPACE])), ending="")
