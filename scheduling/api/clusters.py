"""API of clusters: add a cluster, change its connection and control mode, test a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from django.urls import path
from rest_framework.response import Response

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.api import shapes
from jobs.api.clusters import CONNECTION_PERMISSIONS, ReadCluster, ReadClusters, visible_cluster
from jobs.api.jobs import MAX_REASON_LENGTH
from jobs.core import parsing
from jobs.core.deadlines import UnlikelyDeadlines
from jobs.core.lifecycle import JobKind
from jobs.core.preemption_contract import MAX_EXEMPT_MINUTES, CheckpointClause
from jobs.models import Cluster, ClusterMode, SleepMode, TokenScope, clock
from jobs.models.cluster import SubmitIdentity
from jobs.rest import etags
from jobs.rest.endpoint import ActionEndpoint, ChangeableDetailEndpoint
from jobs.rest.idempotency import run_once_outside_transaction
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import ResourceShape
from jobs.rest.throttle import PerUserThrottle
from scheduling.actions import clusters as cluster_actions
from scheduling.actions.clusters import ConnectionTests
from scheduling.clusters import connection_test
from scheduling.clusters.connection_test import ConnectionSettings

CLUSTERS_TAG = "Clusters and teams"
ADD, CHANGE = "jobs.add_cluster", "jobs.change_cluster"


NULLABLE_COLUMNS = (
    "gpu_hour_price",
    "kwh_price",
    "co2_g_per_kwh",
    "min_preemptions_per_day",
    "max_preemptions_per_day",
)


def _read_kinds(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        parsing.raise_invalid_field(name, f"is {parsing.json_type_name(value)}, not a list of kinds of jobs")
    return list(dict.fromkeys(parsing.choice_reader(list(JobKind))(name, kind) for kind in value))


CONNECTION_READERS: dict[str, parsing.FieldReader] = {
    "address": parsing.nonempty_reader(parsing.text_reader(300)),
    "api_user": parsing.text_reader(64),
    "token_file": parsing.text_reader(300),
    "submit_as": parsing.choice_reader(SubmitIdentity.values),
    "user_token_directory": parsing.text_reader(300),
    "metrics_address": parsing.text_reader(300),
    "log_root": parsing.text_reader(300),
    "workload_owners": parsing.read_object,
    "pod_template": parsing.read_object,
}
CLUSTER_READERS: dict[str, parsing.FieldReader] = {
    **CONNECTION_READERS,
    "title": parsing.text_reader(120),
    "checkpoint_root": parsing.text_reader(300),
    "mode": parsing.choice_reader(ClusterMode.values),
    "checkpoint_signal": parsing.read_checkpoint_signal,
    "burn_in_minutes": parsing.integer_reader(0, 10_080),
    "usage_half_life_hours": parsing.integer_reader(1, 87_600),
    "gpu_share_kinds": _read_kinds,
    "gpu_hour_price": parsing.number_reader(0, 1_000_000),
    "kwh_price": parsing.number_reader(0, 1_000_000),
    "co2_g_per_kwh": parsing.number_reader(0, 10_000),
    "min_exempt_minutes": parsing.integer_reader(0, MAX_EXEMPT_MINUTES),
    "max_exempt_minutes": parsing.integer_reader(0, MAX_EXEMPT_MINUTES),
    "checkpoint_clause": parsing.choice_reader(list(CheckpointClause)),
    "min_preemptions_per_day": parsing.integer_reader(0, 1000),
    "max_preemptions_per_day": parsing.integer_reader(0, 1000),
    "unlikely_deadlines": parsing.choice_reader(list(UnlikelyDeadlines)),
    "min_deadline_percent": parsing.integer_reader(1, 99),
    "sleep_mode": parsing.choice_reader(SleepMode.values),
    "sleep_reserve_nodes": parsing.integer_reader(0, 100_000),
    "min_awake_minutes": parsing.integer_reader(0, 10_080),
    "min_asleep_minutes": parsing.integer_reader(0, 10_080),
    "max_wakes_per_day": parsing.integer_reader(1, 144),
    "boot_minutes": parsing.integer_reader(1, 240),
    "sleep_webhook": parsing.text_reader(300),
    "reason": parsing.text_reader(MAX_REASON_LENGTH, lines=True),
}


def _request_columns(endpoint: Any, table: Mapping[str, parsing.FieldReader], what: str) -> dict[str, Any]:
    """Return the columns in the request body. Null means "not given", except where a column may be null."""
    columns = endpoint.body(table, what)
    nulls = [name for name in NULLABLE_COLUMNS if name in endpoint.object() and name not in columns]
    return columns | dict.fromkeys(nulls)


def _raise_api_errors(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except StateConflict as error:
        raise StateConflict(f"{error}.") from None


class ClusterListEndpoint(ReadClusters, ActionEndpoint):
    """List clusters; add a cluster."""

    rules = {
        **ReadClusters.rules,
        "POST": EndpointRule(
            scope=TokenScope.ADMIN,
            says="Add a cluster, by default in mode observe. It does not have to be reachable yet",
            body=shapes.NEW_CLUSTER,
            answer=shapes.CLUSTER_DETAIL,
            status=201,
            permissions=(ADD,),
            conflicts=True,
        ),
    }

    def work(self) -> Response:
        columns = _request_columns(
            self, CLUSTER_READERS | {"name": parsing.nonempty_reader(parsing.text_reader(40))}, "a cluster"
        )
        for field in ("name", "address"):
            if field not in columns:
                raise InvalidField(field, "is required")
        name, why = columns.pop("name"), columns.pop("reason", "")
        _raise_api_errors(lambda: cluster_actions.add(name, columns, author=self.author, why=why))
        address = self.request.build_absolute_uri(f"{self.request.path}{name}/")
        shown = shapes.CLUSTER_DETAIL.show(visible_cluster(name, self.caller))
        return Response(shown, status=201, headers={"Location": address})


class ClusterDetailEndpoint(ReadCluster, ChangeableDetailEndpoint):
    """One cluster with its connection and control mode."""

    rules = {
        **ReadCluster.rules,
        "PATCH": EndpointRule(
            scope=TokenScope.ADMIN,
            says="Change the connection or the control mode of a cluster",
            body=shapes.CLUSTER_CHANGE,
            answer=shapes.CLUSTER_DETAIL,
            permissions=(CHANGE,),
            conflicts=True,
            team=True,
        ),
    }

    def changes(self) -> dict[str, Any]:
        return _request_columns(self, CLUSTER_READERS, "a cluster's settings")

    def change(self, row: Cluster, values: dict[str, Any]) -> None:
        columns = {name: value for name, value in values.items() if name != "reason"}
        _raise_api_errors(lambda: cluster_actions.refuse_bundled_changes(row, columns))
        _require_token_with_new_address(row, columns)
        why = values.get("reason", "")
        _raise_api_errors(lambda: cluster_actions.change(row, columns, author=self.author, why=why))


def _require_token_with_new_address(row: Cluster, columns: Mapping[str, Any]) -> None:
    is_moved = columns.get("address", row.address) != row.address
    if is_moved and row.token_file and "token_file" not in columns:
        raise InvalidField(
            "token_file", "is required with a new address: give the token file to use for the new address"
        )


class _ConnectionTestVerb(ActionEndpoint):
    tag = CLUSTERS_TAG
    throttle_classes = [PerUserThrottle, ConnectionTests]

    def run_idempotent(self, work: Callable[[], Response]) -> Response:
        return run_once_outside_transaction(self.request, work)  # no transaction stays open during the test

    def test_response(self, connection: ConnectionSettings, row: Cluster | None = None) -> Response:
        steps = cluster_actions.run_connection_test(connection, clock.now(), row)
        return Response({"ok": connection_test.all_steps_passed(steps), "steps": [asdict(step) for step in steps]})


class TestClusterEndpoint(_ConnectionTestVerb):
    """Test the saved connection of a cluster."""

    rules = {
        "POST": EndpointRule(
            scope=TokenScope.OPERATE,
            says="Test the saved connection of a cluster. Nothing is changed",
            body=ResourceShape("NothingMore", {}),
            answer=shapes.CONNECTION_TEST,
            permissions=CONNECTION_PERMISSIONS,
            team=True,
        )
    }

    def work(self, name: str) -> Response:
        self.body({}, "a test of a saved cluster")
        row = visible_cluster(name, self.caller)
        etags.check_if_match(self.request, shapes.CLUSTER_DETAIL.show(row), shapes.CLUSTER_DETAIL.observed)
        return self.test_response(ConnectionSettings.of(row), row)


class TestConnectionEndpoint(_ConnectionTestVerb):
    """Test a connection that is not saved."""

    rules = {
        "POST": EndpointRule(
            scope=TokenScope.ADMIN,
            says="Test a connection without saving it. A token saved for another address is not sent",
            body=shapes.CONNECTION,
            answer=shapes.CONNECTION_TEST,
            permissions=(ADD, CHANGE),
        )
    }

    def work(self) -> Response:
        columns = self.body(CONNECTION_READERS, "a connection")
        if "address" not in columns:
            raise InvalidField("address", "is required")
        _raise_api_errors(lambda: cluster_actions.validate_connection(columns))
        return self.test_response(ConnectionSettings(**columns))


urlpatterns = [
    path("clusters/", ClusterListEndpoint.as_view()),
    path("connection-tests/", TestConnectionEndpoint.as_view()),
    path("clusters/<slug:name>/", ClusterDetailEndpoint.as_view()),
    path("clusters/<slug:name>/test/", TestClusterEndpoint.as_view()),
]
