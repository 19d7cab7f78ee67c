"""All changes to clusters and their connections, with their Events. The scheduling policy is changed by `policies`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from acmeweb.common import live, outbound_http
from acmeweb.common.errors import InvalidField, InvalidInput, StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.core.cluster_kinds import cluster_kind, has_kind
from jobs.core.container_offers import container_offers, image_pattern_error
from jobs.models import Cluster, SleepMode
from jobs.models.cluster import CONNECTION_FIELDS, TOKEN_FIELDS, SubmitIdentity, token_paths
from jobs.rest.throttle import PerUserThrottle
from scheduling.backends.kubernetes.ownership import parse_owner_mapping
from scheduling.backends.kubernetes.pod_template import parse_pod_template
from scheduling.backends.opening import check_address
from scheduling.clusters import circuit_breaker, connection_test
from scheduling.clusters.connection_test import ConnectionSettings, ConnectionTestStep


class ConnectionTests(PerUserThrottle):
    """Limits the connection tests of a user per minute, on pages and API together: a test must not serve as a port
    scanner."""

    name = "connection-tests:"
    most = 30


@transaction.atomic
def add(name: str, columns: Mapping[str, Any], *, author: Author, why: str = "") -> Cluster:
    _validate_cluster(Cluster(name=name, **columns))
    refuse_token_for_other_address(columns.get("address", ""), token_paths(columns))
    try:
        with transaction.atomic():
            row = Cluster.objects.create(name=name, **columns)
    except IntegrityError:
        raise StateConflict(f"a cluster named {name} already exists") from None
    values = {column: value for column, value in columns.items() if value}
    journal.cluster_event("cluster.added", author, row, why=why, detail={"columns": values}).save()
    _announce_change(row)
    return row


@transaction.atomic
def change(row: Cluster, columns: Mapping[str, Any], *, author: Author, why: str = "") -> list[str]:
    """Change the columns and return the names of those that differ. Fails if they were changed since `row` was read."""
    changed = {name: value for name, value in columns.items() if getattr(row, name) != value}
    if not changed:
        raise StateConflict(f"{row} already has these settings")
    refuse_bundled_changes(row, changed)
    _validate_cluster(_cluster_copy_with(row, changed))
    if not {"address", *TOKEN_FIELDS}.isdisjoint(changed):
        target = _cluster_copy_with(row, changed)
        refuse_token_for_other_address(target.address, token_paths(vars(target)), apart_from=row)
    before = {name: getattr(row, name) for name in changed}
    if not Cluster.objects.filter(pk=row.pk, **before).update(**changed):
        raise StateConflict(f"{row} was changed in the meantime; reload and try again")
    detail = {"changes": [[name, before[name], value] for name, value in changed.items()]}
    journal.cluster_event("cluster.changed", author, row, why=why, detail=detail).save()
    _announce_change(row)
    return sorted(changed)


def refuse_token_for_other_address(
    address: str, tokens: Mapping[str, str], *, apart_from: Cluster | None = None
) -> None:
    """Raise InvalidField if a token belongs to another cluster's address, so that it is not sent elsewhere."""
    others = Cluster.objects.exclude(pk=apart_from.pk) if apart_from else Cluster.objects.all()
    for name, owner in others.with_tokens_for_another_address(tokens, address).items():
        raise InvalidField(name, owner.token_address_warning)


def validate_connection(columns: Mapping[str, Any]) -> None:
    """Refuse to test settings that could not be saved."""
    row = Cluster(**columns)
    try:
        row.clean()
    except ValidationError as error:
        raise _invalid_fields(error.message_dict) from None
    if has_kind(row.address):
        _validate_kind(row)
    refuse_token_for_other_address(row.address, token_paths(columns))


def run_connection_test(
    connection: ConnectionSettings, now: datetime, row: Cluster | None = None
) -> list[ConnectionTestStep]:
    """Run the test. It resets the circuits of a saved cluster, so the loops retry at once."""
    steps = connection_test.run_test_steps(connection, now)
    if row is not None:
        circuit_breaker.reset_circuits(row)
    return steps


def refuse_bundled_changes(row: Cluster, changed: Mapping[str, Any]) -> None:
    """Refuse changes to the connection of the bundled cluster. Acme sets it at each start, and a change could send
    Acme's own token elsewhere."""
    fixed = sorted(name for name in CONNECTION_FIELDS if changed.get(name, getattr(row, name)) != getattr(row, name))
    if row.is_bundled and fixed:
        raise _invalid_fields({name: [f"Set by Acme each time it starts {row}."] for name in fixed})


def _cluster_copy_with(row: Cluster, columns: Mapping[str, Any]) -> Cluster:
    changed = copy(row)
    for name, value in columns.items():
        setattr(changed, name, value)
    return changed


def _validate_cluster(row: Cluster) -> None:
    try:
        row.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        raise _invalid_fields(error.message_dict) from None
    _validate_kind(row)
    _validate_sleep(row)


def _validate_sleep(row: Cluster) -> None:
    if row.sleep_webhook:
        try:
            outbound_http.check_url(row.sleep_webhook, settings.ACME_WEBHOOK_NETWORKS)
        except InvalidInput as error:
            raise InvalidField("sleep_webhook", f"The URL {error}.") from None
    elif not row.kind.powers_nodes and row.sleep_mode != SleepMode.OFF:
        raise InvalidField("sleep_webhook", f"Required on {row.kind.name} for nodes that sleep.")


def _validate_kind(row: Cluster) -> None:
    """Check what depends on the kind of cluster, which follows from the address."""
    try:
        check_address(row.address)
    except ValueError as error:
        raise InvalidField("address", str(error)) from None
    kind = cluster_kind(row.address)
    refusals = {name: f"Not used for {kind.name}." for name in kind.unused_settings if getattr(row, name)}
    if kind.runs_as_service and row.submit_as != SubmitIdentity.SERVICE:
        refusals["submit_as"] = f"Not used for {kind.name}."
    parse_pods = partial(parse_pod_template, limits=settings.ACME_POD_LIMITS)
    for name, parse in (("workload_owners", parse_owner_mapping), ("pod_template", parse_pods)):
        try:
            parse(getattr(row, name))
        except ValueError as error:
            refusals[name] = str(error)
    patterns = container_offers(row.pod_template).image_patterns if "pod_template" not in refusals else ()
    if bad_pattern := next(filter(None, map(image_pattern_error, patterns)), ""):
        refusals["pod_template"] = f"allowed_images: {bad_pattern}."
    if refusals:
        raise _invalid_fields({name: [text] for name, text in refusals.items()})


def _invalid_fields(errors: Mapping[str, Sequence[str]]) -> InvalidField:
    first, *others = [InvalidField(name, text) for name, texts in errors.items() for text in texts]
    return InvalidField(first.field, first.why, others)


def _announce_change(row: Cluster) -> None:
    request_turn(row.pk)
    live.publish_on_commit("queue")
    live.publish_on_commit("nodes")
