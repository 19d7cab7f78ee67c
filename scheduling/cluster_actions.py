"""The only code that enters a cluster and changes how it is reached, with its Event. How it decides: policy_actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from acmeweb import live
from jobs import journal
from jobs.door.throttle import PerUser
from jobs.journal import Author
from jobs.models import Cluster
from jobs.models.cluster import TOKENS, tokens_of
from jobs.wishes import want_turn
from scheduling import circuit_breaker, probing
from scheduling.probing import Asked, Step

CONNECTION = (
    *("address", "api_user", "token_file", "submit_as", "user_token_directory"),
    *("metrics_address", "log_root"),
)
RESERVED_NAMES = ("test",)  # /api/v1/clusters/test/ tests a connection that is not saved


class ClusterError(Exception):
    """Nothing was changed; the message is a sentence without its full stop."""


class BadCluster(ClusterError):
    """The fields that cannot be, each with its sentences."""

    def __init__(self, errors: Mapping[str, Sequence[str]]) -> None:
        self.errors = {name: list(said) for name, said in errors.items()}
        super().__init__("; ".join(f"{name}: {one.rstrip('.')}" for name, said in self.errors.items() for one in said))


class ConnectionTests(PerUser):
    """Connection tests of one user in a minute, by page and API together: a test must not become a port scanner."""

    name = "connection-tests:"
    most = 30


@transaction.atomic
def add(name: str, columns: Mapping[str, Any], *, author: Author, why: str = "") -> Cluster:
    if name in RESERVED_NAMES:
        raise BadCluster({"name": [f"{name} is reserved; choose another name."]})
    _check(Cluster(name=name, **columns))
    refuse_token_elsewhere(columns.get("address", ""), tokens_of(columns))
    try:
        with transaction.atomic():
            row = Cluster.objects.create(name=name, **columns)
    except IntegrityError:
        raise ClusterError(f"there is a cluster {name} already") from None
    told = {column: value for column, value in columns.items() if value}
    journal.of_cluster("cluster.added", author, row, why=why, detail={"columns": told}).save()
    _told(row)
    return row


@transaction.atomic
def change(row: Cluster, columns: Mapping[str, Any], *, author: Author, why: str = "") -> list[str]:
    """The names of the columns that are another now. Those read before are expected to stand still."""
    changed = {name: value for name, value in columns.items() if getattr(row, name) != value}
    if not changed:
        raise ClusterError(f"{row} is set like this already")
    refuse_bundled(row, changed)
    _check(_with(row, changed))
    if not {"address", *TOKENS}.isdisjoint(changed):
        wanted = _with(row, changed)
        refuse_token_elsewhere(wanted.address, tokens_of(vars(wanted)), apart_from=row)
    before = {name: getattr(row, name) for name in changed}
    if not Cluster.objects.filter(pk=row.pk, **before).update(**changed):
        raise ClusterError(f"somebody changed {row} in the meantime; look again")
    detail = {"changes": [[name, before[name], value] for name, value in changed.items()]}
    journal.of_cluster("cluster.changed", author, row, why=why, detail=detail).save()
    _told(row)
    return sorted(changed)


def refuse_token_elsewhere(address: str, tokens: Mapping[str, str], *, apart_from: Cluster | None = None) -> None:
    others = Cluster.objects.exclude(pk=apart_from.pk) if apart_from else Cluster.objects.all()
    for name, owner in others.with_tokens_for_another_address(tokens, address).items():
        raise BadCluster({name: [owner.token_belongs_here]})


def check_connection(columns: Mapping[str, Any]) -> None:
    """Of a test: what could not be saved either is not tried."""
    row = Cluster(**columns)
    try:
        row.clean()
    except ValidationError as error:
        raise BadCluster(error.message_dict) from None
    refuse_token_elsewhere(row.address, tokens_of(columns))


def test_connection(asked: Asked, now: datetime, row: Cluster | None = None) -> list[Step]:
    """Afterwards the turns of a saved cluster ask it again at once, whatever was found out."""
    steps = probing.probe(asked, now)
    if row is not None:
        circuit_breaker.close(row)
    return steps


def refuse_bundled(row: Cluster, changed: Mapping[str, Any]) -> None:
    """Acme sets these itself at each start; a change by a person would send its own token elsewhere."""
    fixed = sorted(name for name in CONNECTION if changed.get(name, getattr(row, name)) != getattr(row, name))
    if row.is_bundled and fixed:
        raise BadCluster({name: [f"Acme sets this itself each time it starts {row}."] for name in fixed})


def _with(row: Cluster, columns: Mapping[str, Any]) -> Cluster:
    wanted = copy(row)
    for name, value in columns.items():
        setattr(wanted, name, value)
    return wanted


def _check(row: Cluster) -> None:
    try:
        row.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        raise BadCluster(error.message_dict) from None


def _told(row: Cluster) -> None:
    want_turn(row.pk)
    live.changed("queue")
    live.changed("nodes")
