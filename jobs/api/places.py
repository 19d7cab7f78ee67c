"""Clusters, teams and the caller: read-only."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework.response import Response

from jobs.api import shapes
from jobs.door import pages, query
from jobs.door.endpoint import Detail, Endpoint, Listing, found, refuse_unknown
from jobs.door.rights import Rule
from jobs.door.shapes import plain
from jobs.models import Cluster, Mode, Scope, Team

BY_NAME = {"name": pages.Sort(column="name"), "id": pages.ID}


class Clusters(Listing):
    """List clusters."""

    tag = "Clusters and teams"
    what = "clusters"
    shape = shapes.CLUSTER
    filters = {"name": query.text("name"), "mode": query.choice("mode", Mode.values)}
    orderings = BY_NAME
    ordering = "name"
    rules = {"GET": Rule(scope=Scope.READ, says="List clusters", answer=shapes.CLUSTER, many=True)}

    def rows(self) -> QuerySet[Cluster]:
        return Cluster.objects.all()


class OneCluster(Detail):
    """One cluster."""

    tag = "Clusters and teams"
    shape = shapes.CLUSTER
    rules = {"GET": Rule(scope=Scope.READ, says="One cluster", answer=shapes.CLUSTER, team=True)}

    def row(self, name: str) -> Cluster:
        return found(Cluster.objects.all(), "cluster", name=name)


class Teams(Listing):
    """List your teams."""

    tag = "Clusters and teams"
    what = "teams"
    shape = shapes.TEAM
    filters = {"name": query.text("name")}
    orderings = BY_NAME
    ordering = "name"
    rules = {
        "GET": Rule(scope=Scope.READ, says="List your teams with members and quotas", answer=shapes.TEAM, many=True)
    }

    def rows(self) -> QuerySet[Team]:
        return self.caller.teams()


class OneTeam(Detail):
    """One of your teams."""

    tag = "Clusters and teams"
    shape = shapes.TEAM
    rules = {"GET": Rule(scope=Scope.READ, says="One of your teams", answer=shapes.TEAM, team=True)}

    def row(self, name: str) -> Team:
        return found(shapes.TEAM.load(self.caller.teams(), shapes.TEAM.fields), "team", name=name)


class Me(Endpoint):
    """Who the credentials stand for."""

    tag = "Clusters and teams"
    rules = {"GET": Rule(scope=Scope.READ, says="Who you are here, and what you may do", answer=shapes.ME)}

    def get(self, request: Any) -> Response:
        refuse_unknown(request)
        caller = self.caller
        names = dict(Team.objects.filter(pk__in=caller.roles).values_list("pk", "name"))
        return Response(
            {
                "user": caller.user.get_username(),
                "scope": caller.scope.value,
                "token": caller.token.prefix if caller.token else None,
                "expires_at": plain(caller.token.expires_at) if caller.token else None,
                "superuser": caller.everywhere,
                "operates_clusters": caller.operates,
                "teams": [{"team": names[team], "role": role.value} for team, role in sorted(caller.roles.items())],
            }
        )
