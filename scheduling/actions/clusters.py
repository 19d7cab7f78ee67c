"""The only code that enters a cluster and changes how it is reached, with its Event. How it decides: policy_actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from acmeweb.common import live
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.models import Cluster
from jobs.models.cluster import TOKEN_FIELDS, token_paths
from jobs.rest.throttle import PerUserThrottle
from scheduling.clusters import circuit_breaker, connection_test
from scheduling.clusters.connection_test import ConnectionSettings, ConnectionTestStep

CONNECTION_COLUMNS = (
    *("address", "api_user", "token_file", "submit_as", "user_token_directory"),
    *("metrics_address", "log_root"),
)
RESERVED_NAMES = ("test",)  # /api/v1/clusters/test/ tests a connection that is not saved


class ClusterError(Exception):
    """Nothing was changed; the message is a sentence without its full stop."""


class InvalidClusterFields(ClusterError):
    """The fields that cannot be, each with its sentences."""

    def __init__(self, errors: Mapping[str, Sequence[str]]) -> None:
        self.errors = {name: list(said) for name, said in errors.items()}
        super().__init__("; ".join(f"{name}: {one.rstrip('.')}" for name, said in self.errors.items() for one in said))


class ConnectionTests(PerUserThrottle):
    """Connection tests of one user in a minute, by page and API together: a test must not become a port scanner."""

    name = "connection-tests:"
    most = 30


@transaction.atomic
def add(name: str, columns: Mapping[str, Any], *, author: Author, why: str = "") -> Cluster:
    if name in RESERVED_NAMES:
        raise InvalidClusterFields({"name": [f"{name} is reserved; choose another name."]})
    _validate_cluster(Cluster(name=name, **columns))
    refuse_token_for_other_address(columns.get("address", ""), token_paths(columns))
    try:
        with transaction.atomic():
            row = Cluster.objects.create(name=name, **columns)
    except IntegrityError:
        raise ClusterError(f"there is a cluster {name} already") from None
    told = {column: value for column, value in columns.items() if value}
    journal.cluster_event("cluster.added", author, row, why=why, detail={"columns": told}).save()
    _announce_change(row)
    return row


@transaction.atomic
def change(row: Cluster, columns: Mapping[str, Any], *, author: Author, why: str = "") -> list[str]:
    """The names of the columns that are another now. Those read before are expected to stand still."""
    changed = {name: value for name, value in columns.items() if getattr(row, name) != value}
    if not changed:
        raise ClusterError(f"{row} is set like this already")
    refuse_bundled_changes(row, changed)
    _validate_cluster(_cluster_copy_with(row, changed))
    if not {"address", *TOKEN_FIELDS}.isdisjoint(changed):
        wanted = _cluster_copy_with(row, changed)
        refuse_token_for_other_address(wanted.address, token_paths(vars(wanted)), apart_from=row)
    before = {name: getattr(row, name) for name in changed}
    if not Cluster.objects.filter(pk=row.pk, **before).update(**changed):
        raise ClusterError(f"somebody changed {row} in the meantime; look again")
    detail = {"changes": [[name, before[name], value] for name, value in changed.items()]}
    journal.cluster_event("cluster.changed", author, row, why=why, detail=detail).save()
    _announce_change(row)
    return sorted(changed)


def refuse_token_for_other_address(
    address: str, tokens: Mapping[str, str], *, apart_from: Cluster | None = None
) -> None:
    others = Cluster.objects.exclude(pk=apart_from.pk) if apart_from else Cluster.objects.all()
    for name, owner in others.with_tokens_for_another_address(tokens, address).items():
        raise InvalidClusterFields({name: [owner.token_address_warning]})


def validate_connection(columns: Mapping[str, Any]) -> None:
    """Of a test: what could not be saved either is not tried."""
    row = Cluster(**columns)
    try:
        row.clean()
    except ValidationError as error:
        raise InvalidClusterFields(error.message_dict) from None
    refuse_token_for_other_address(row.address, token_paths(columns))


def run_connection_test(
    asked: ConnectionSettings, now: datetime, row: Cluster | None = None
) -> list[ConnectionTestStep]:
    """Afterwards the turns of a saved cluster ask it again at once, whatever was found out."""
    steps = connection_test.run_test_steps(asked, now)
    if row is not None:
        circuit_breaker.reset_circuits(row)
    return steps


def refuse_bundled_changes(row: Cluster, changed: Mapping[str, Any]) -> None:
    """Acme sets these itself at each start; a change by a person would send its own token elsewhere."""
    fixed = sorted(name for name in CONNECTION_COLUMNS if changed.get(name, getattr(row, name)) != getattr(row, name))
    if row.is_bundled and fixed:
        raise InvalidClusterFields({name: [f"Acme sets this itself each time it starts {row}."] for name in fixed})


def _cluster_copy_with(row: Cluster, columns: Mapping[str, Any]) -> Cluster:
    wanted = copy(row)
    for name, value in columns.items():
        setattr(wanted, name, value)
    return wanted


def _validate_cluster(row: Cluster) -> None:
    try:
        row.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        raise InvalidClusterFields(error.message_dict) from None


def _announce_change(row: Cluster) -> None:
    request_turn(row.pk)
    live.publish_on_commit("queue")
    live.publish_on_commit("nodes")
