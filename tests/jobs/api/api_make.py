"""Factories of users, clusters, nodes and jobs for the API tests.

Two users cannot see each other's jobs: ada is a researcher of team vision, grace of team speech. The cluster seren
has four nodes with eight GPUs each.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from jobs.actions import jobs as job_actions
from jobs.actions.jobs import NodeGpus
from jobs.actions.journal import SCHEDULER, Author
from jobs.core.lifecycle import NodeState
from jobs.core.spec import parse
from jobs.models import Cluster, Job, Membership, Node, Team, TeamRole, Token, TokenScope, clock
from scheduling.evaluation.actions import campaigns as evaluating
from scheduling.evaluation.rules import campaign_requests
from scheduling.models import Campaign, Simulation, Suite
from scheduling.whatif.actions import simulations as simulation_actions

_numbers = itertools.count()


def team(name: str = "vision") -> Team:
    return Team.objects.get_or_create(name=name)[0]


def person(name: str = "ada", in_team: str = "vision", role: TeamRole = TeamRole.RESEARCHER, **fields: Any) -> Any:
    user, new = get_user_model().objects.get_or_create(username=name, defaults=fields)
    if new and in_team:
        Membership.objects.create(team=team(in_team), user=user, role=role)
    return user


def operator(name: str = "olga", in_team: str = "vision") -> Any:
    user = person(name, in_team, TeamRole.OPERATOR)
    user.user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    return user


def configurer(name: str = "rita", in_team: str = "vision") -> Any:
    """A user who can add, change and operate clusters."""
    user = operator(name, in_team)
    user.user_permissions.add(*Permission.objects.filter(codename__in=("add_cluster", "change_cluster")))
    return user


def cluster(name: str = "seren", nodes: int = 4) -> Cluster:
    made, new = Cluster.objects.get_or_create(name=name, defaults={"address": "http://127.0.0.1:1", "mode": "drive"})
    if new:
        Node.objects.bulk_create(
            Node(
                cluster=made,
                name=f"gpu{number:03d}",
                gpus=8,
                gpu_model="h100",
                cpus=96,
                memory_mb=1_000_000,
                state=NodeState.IDLE,
            )
            for number in range(1, nodes + 1)
        )
    return made


def job(user: Any = None, in_team: str = "vision", **asked: Any) -> Job:
    user = user or person()
    spec = parse({"command": "train.py", **asked}, Node.objects.shape(cluster()))
    author = Author(by=user.username, user_id=user.pk)
    return job_actions.submit([spec], cluster=cluster(), team=team(in_team), author=author, now=clock.now())[0]


def running(made: Job, node: str = "gpu001", gpus: tuple[int, ...] = (0,)) -> Job:
    row = Node.objects.get(cluster=made.cluster, name=node)
    place = NodeGpus(node_id=row.pk, name=row.name, gpus=gpus)
    attempt = job_actions.allocate_job(
        made, [place], author=SCHEDULER, why="It fits.", new_log_path="/logs/{}.log".format
    )
    job_actions.confirm_start(attempt, started_at=clock.now(), author=SCHEDULER)
    made.refresh_from_db()
    return made


def simulation(user: Any = None, in_team: str = "vision", **fields: Any) -> Simulation:
    user = user or person()
    author = Author(by=user.username, user_id=user.pk)
    defaults = {"trace": "acme:kalos", "policies": ["fifo"], "params": {"jobs": 50}}
    return simulation_actions.create_simulation(
        team=team(in_team), author=author, now=clock.now(), **(defaults | fields)
    )


def token(user: Any, scope: TokenScope = TokenScope.ADMIN, **fields: Any) -> str:
    made, secret = Token.make(user=user, scope=scope, name=f"t{next(_numbers)}", **fields)
    made.save()
    return secret


@dataclass(frozen=True)
class Form:
    """A multipart body with a file, as a browser or curl -F sends it."""

    file: bytes
    fields: dict[str, str] = field(default_factory=dict)
    name: str = "jobs.csv"
    of: str = "trace_file"

    def written(self) -> dict[str, Any]:
        return {**self.fields, self.of: SimpleUploadedFile(self.name, self.file)}


class Caller:
    """An API client with a token. Checks that every response is JSON and not a server error."""

    def __init__(self, user: Any, scope: TokenScope = TokenScope.ADMIN, **fields: Any) -> None:
        self.user = user
        self.headers = {"Authorization": f"Bearer {token(user, scope, **fields)}"}
        self.client = Client(raise_request_exception=True)

    def get(self, path: str, query: dict[str, Any] | None = None, **headers: str) -> Any:
        return self._checked(self.client.get(_address(path), query, headers=self._headers(headers)))

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        if isinstance(body, Form):
            return self._checked(self.client.post(_address(path), body.written(), headers=self._headers(headers)))
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        kind = headers.pop("content_type", "application/json")
        return self._checked(self.client.post(_address(path), raw, content_type=kind, headers=self._headers(headers)))

    def patch(self, path: str, body: Any = None, **headers: str) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        kind = headers.pop("content_type", "application/json")
        return self._checked(self.client.patch(_address(path), raw, content_type=kind, headers=self._headers(headers)))

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        return self.headers | {name.replace("_", "-"): value for name, value in more.items()}

    def _checked(self, answer: Any) -> Any:
        assert answer.status_code < 500, answer.content[:500]
        return answer


def _address(path: str) -> str:
    return path if path.startswith(("/", "http")) else f"/api/v1/{path}"


def suite(user: Any, name: str = "core", **wishes: Any) -> Suite:
    plain = {"name": name, "output_root": "/shared/out", "infer": "answer", "metric": "score"}
    spec = campaign_requests.parse_suite(plain | {"datasets": [{"name": "alpha", "samples": 100}]} | wishes)
    group = Team.objects.filter(memberships__user=user).first()
    return evaluating.define_suite(spec, team=group, author=Author(by=user.username, user_id=user.pk))


def campaign(user: Any, *checkpoints: str, **wishes: Any) -> Campaign:
    of = suite(user)
    home = cluster()
    Cluster.objects.filter(pk=home.pk, log_root="").update(log_root="/nonexistent")
    home.refresh_from_db()
    spec = campaign_requests.parse_campaign({"checkpoints": list(checkpoints or ("/checkpoints/a",)), **wishes})
    author = Author(by=user.username, user_id=user.pk)
    return evaluating.create_campaign(spec, suite=of, cluster=home, team=of.team, author=author, now=clock.now())
