"""Clusters through the API: add one, change how it is reached and how far Acme goes on it, test a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.urls import path
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response

from jobs import clock, readers
from jobs.api import shapes
from jobs.api.jobs import LONGEST_REASON
from jobs.api.places import SEES_CONNECTION, ReadCluster, ReadClusters, cluster_row
from jobs.door import versions
from jobs.door.endpoint import Verb, as_it_is, locked, refuse_unknown
from jobs.door.errors import BadField, Conflict
from jobs.door.once import once_apart
from jobs.door.rights import Rule
from jobs.door.shapes import Shape
from jobs.door.throttle import PerUser
from jobs.models import Cluster, Mode, Scope
from jobs.models.cluster import SubmitAs
from scheduling import cluster_actions, probing
from scheduling.cluster_actions import BadCluster, ClusterError, ConnectionTests
from scheduling.probing import Asked

TAG = "Clusters and teams"
ADD, CHANGE = "jobs.add_cluster", "jobs.change_cluster"


def _price(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        readers.bad(name, f"is {readers.kind_of(value)}, not a number")
    if not 0 <= value <= 1_000_000:
        readers.bad(name, f"{readers.short(value)} is not between 0 and 1000000")
    return float(value)


CONNECTION_READERS: dict[str, readers.Reader] = {
    "address": readers.needed(readers.text(300)),
    "api_user": readers.text(64),
    "token_file": readers.text(300),
    "submit_as": readers.one_of(SubmitAs.values),
    "user_token_directory": readers.text(300),
    "metrics_address": readers.text(300),
    "log_root": readers.text(300),
}
READERS: dict[str, readers.Reader] = {
    **CONNECTION_READERS,
    "title": readers.text(120),
    "checkpoint_root": readers.text(300),
    "mode": readers.one_of(Mode.values),
    "checkpoint_signal": readers.signal,
    "burn_in_minutes": readers.whole(0, 10_080),
    "gpu_hour_price": _price,
    "reason": readers.text(LONGEST_REASON, lines=True),
}


def _columns(endpoint: Any, table: Mapping[str, readers.Reader], what: str) -> dict[str, Any]:
    """Null stands for a field that was not given, except that a price may be taken away."""
    found = endpoint.body(table, what)
    if "gpu_hour_price" in endpoint.object() and "gpu_hour_price" not in found:
        found["gpu_hour_price"] = None
    return found


def _or_refused(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except BadCluster as bad:
        raise ValidationError(bad.errors) from None
    except ClusterError as error:
        raise Conflict(f"{error}.") from None


class Clusters(ReadClusters, Verb):
    """List clusters, add one."""

    rules = {
        **ReadClusters.rules,
        "POST": Rule(
            scope=Scope.ADMIN,
            says="Add a cluster, in mode observe if nothing else is said. It need not answer yet",
            body=shapes.NEW_CLUSTER,
            answer=shapes.CLUSTER_DETAIL,
            status=201,
            permissions=(ADD,),
            conflicts=True,
        ),
    }

    def work(self) -> Response:
        columns = _columns(self, READERS | {"name": readers.needed(readers.text(40))}, "a cluster")
        for field in ("name", "address"):
            if field not in columns:
                raise BadField(field, "is needed")
        name, why = columns.pop("name"), columns.pop("reason", "")
        _or_refused(lambda: cluster_actions.add(name, columns, author=self.author, why=why))
        address = self.request.build_absolute_uri(f"{self.request.path}{name}/")
        shown = shapes.CLUSTER_DETAIL.show(cluster_row(name, self.caller))
        return Response(shown, status=201, headers={"Location": address})


class OneCluster(ReadCluster):
    """One cluster: how it is reached, and how far Acme goes on it."""

    rules = {
        **ReadCluster.rules,
        "PATCH": Rule(
            scope=Scope.ADMIN,
            says="Change how a cluster is reached, or how far Acme goes on it",
            body=shapes.CLUSTER_CHANGE,
            answer=shapes.CLUSTER_DETAIL,
            permissions=(CHANGE,),
            conflicts=True,
            team=True,
        ),
    }

    def patch(self, request: Any, name: str) -> Response:
        refuse_unknown(request)
        columns = _columns(self, READERS, "a cluster's settings")
        why = columns.pop("reason", "")
        with transaction.atomic():
            row = locked(request, shapes.CLUSTER_DETAIL, lambda: cluster_row(name, self.caller))
            _or_refused(lambda: cluster_actions.refuse_bundled(row, columns))
            _refuse_forgotten_token(row, columns)
            _or_refused(lambda: cluster_actions.change(row, columns, author=self.author, why=why))
        return as_it_is(shapes.CLUSTER_DETAIL, cluster_row(name, self.caller))


def _refuse_forgotten_token(row: Cluster, columns: Mapping[str, Any]) -> None:
    is_moved = columns.get("address", row.address) != row.address
    if is_moved and row.token_file and "token_file" not in columns:
        raise BadField("token_file", "is needed with a new address: name the token that may be sent there")


class _Test(Verb):
    tag = TAG
    throttle_classes = [PerUser, ConnectionTests]

    def kept(self, work: Callable[[], Response]) -> Response:
        return once_apart(self.request, work)  # no transaction is open while a cluster is asked

    def tested(self, asked: Asked, row: Cluster | None = None) -> Response:
        steps = cluster_actions.test_connection(asked, clock.now(), row)
        return Response({"works": probing.works(steps), "steps": [asdict(step) for step in steps]})


class TestCluster(_Test):
    """Try the connection of a cluster as it is saved."""

    rules = {
        "POST": Rule(
            scope=Scope.OPERATE,
            says="Test the connection of a cluster as it is saved. Nothing is changed",
            body=Shape("NothingMore", {}),
            answer=shapes.CONNECTION_TEST,
            permissions=SEES_CONNECTION,
            team=True,
        )
    }

    def work(self, name: str) -> Response:
        self.body({}, "a test of a saved cluster")
        row = cluster_row(name, self.caller)
        versions.refuse_stale(self.request, shapes.CLUSTER_DETAIL.show(row), shapes.CLUSTER_DETAIL.observed)
        return self.tested(Asked.of(row), row)


class TestConnection(_Test):
    """Try a connection that is not saved."""

    rules = {
        "POST": Rule(
            scope=Scope.ADMIN,
            says="Test a connection without saving it. A token that is saved for another address is not sent",
            body=shapes.CONNECTION,
            answer=shapes.CONNECTION_TEST,
            permissions=(ADD, CHANGE),
        )
    }

    def work(self) -> Response:
        columns = self.body(CONNECTION_READERS, "a connection")
        if "address" not in columns:
            raise BadField("address", "is needed")
        _or_refused(lambda: cluster_actions.check_connection(columns))
        return self.tested(Asked(**columns))


urlpatterns = [
    path("clusters/", Clusters.as_view()),
    path("clusters/test/", TestConnection.as_view()),
    path("clusters/<slug:name>/", OneCluster.as_view()),
    path("clusters/<slug:name>/test/", TestCluster.as_view()),
]
