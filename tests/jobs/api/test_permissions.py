"""Permissions of every API path. A new path without a case here fails a test."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.urls import URLPattern, URLResolver

from acmeweb import api_root
from failures.loops.diagnose import diagnose_once
from failures.models import Channel, Decision, Diagnosis, Incident, LearnedRule, ManualOverride, RuleOrigin, RuleState
from jobs.actions import jobs as job_actions
from jobs.actions.journal import SYNC
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import (
    BulkAction,
    Cluster,
    Event,
    Job,
    Maintenance,
    Membership,
    Node,
    SavedView,
    TeamRole,
    TokenScope,
    clock,
)
from jobs.rest.endpoint import ApiEndpoint, UnknownPathEndpoint
from scheduling.models import (
    Campaign,
    EvaluationRule,
    GpuSpeed,
    NodeSleep,
    PowerBudget,
    Simulation,
    Suite,
    UploadedTrace,
)
from tests.failures.make import decide_and_recover_once
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller
from tests.scheduling.evaluation import campaign_make as campaigns

pytestmark = pytest.mark.django_db


def endpoints(patterns=None, prefix=""):
    """(path, view) of all endpoints below /api/v1/."""
    for one in api_root.urlpatterns if patterns is None else patterns:
        address = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from endpoints(one.url_patterns, address)
        elif isinstance(one, URLPattern) and getattr(one.callback, "cls", None) is not UnknownPathEndpoint:
            yield address, one.callback


METHODS = [
    (address, method, view.cls)
    for address, view in endpoints()
    if hasattr(view, "cls") and not view.cls.own_credentials
    for method in ("get", "post", "patch")
    if hasattr(view.cls, method)
]
NAMED = [f"{method} {address}" for address, method, _ in METHODS]

TRACE = (
    b"job_id,user,group_or_vc,type,submit_ts,duration_s,gpu_num,node_num,state\n1,ada,nlp,debug,60,60,1,1,COMPLETED\n"
)
NEXT_MONTH = (datetime.now(UTC) + timedelta(days=30)).isoformat()
# What each POST and PATCH is sent when nothing but rights may stand in its way
BODIES = {
    "jobs/": {"command": "x", "team": "speech"},
    "jobs/preview/": {"command": "x", "team": "speech"},
    "jobs/bulk/": {"jobs": [{"command": "x", "team": "speech"}]},
    "jobs/actions/": {"action": "cancel", "filter": {"team": "speech"}},
    "jobs/<public_id:id>/cancel/": {},
    "jobs/<public_id:id>/hold/": {},
    "jobs/<public_id:id>/release/": {},
    "jobs/<public_id:id>/requeue/": {},
    "jobs/<public_id:id>/mark-succeeded/": {},
    "jobs/<public_id:id>/mark-failed/": {},
    "jobs/<public_id:id>/run-again/": {},
    "jobs/<public_id:id>/adopt/": {},
    "jobs/<public_id:id>/priority/": {"priority": 1},
    "nodes/<node_name:cluster>/<node_name:name>/drain/": {"reason": "x"},
    "nodes/<node_name:cluster>/<node_name:name>/resume/": {},
    "nodes/<node_name:cluster>/<node_name:name>/test/": {},
    "clusters/": {"name": "kalos", "address": "http://127.0.0.1:1"},
    "connection-tests/": {"address": "http://127.0.0.1:1"},
    "clusters/<slug:name>/": {"title": "Seren"},
    "clusters/<slug:name>/test/": {},
    "clusters/<slug:name>/policy-preview/": {"policy": "fair"},
    "clusters/<slug:name>/maintenance/": {"name": "x", "reason": "y", "end_at": NEXT_MONTH},
    "clusters/<slug:name>/maintenance/<int:number>/": {"end_at": NEXT_MONTH},
    "clusters/<slug:name>/maintenance/<int:number>/cancel/": {},
    "clusters/<slug:name>/gpu-speeds/": {"pattern": "a*", "gpu_model": "a100", "speed": 2},
    "clusters/<slug:name>/gpu-speeds/<int:number>/": {"speed": 3},
    "clusters/<slug:name>/gpu-speeds/<int:number>/remove/": {},
    "clusters/<slug:name>/power-budgets/": {"limit_kw": 90},
    "clusters/<slug:name>/power-budgets/<int:number>/": {"limit_kw": 80},
    "clusters/<slug:name>/power-budgets/<int:number>/remove/": {},
    "clusters/<slug:name>/sleeps/<int:number>/approve/": {},
    "clusters/<slug:name>/sleeps/<int:number>/decline/": {},
    "clusters/<slug:name>/sleeps/<int:number>/wake/": {},
    "nodes/<node_name:cluster>/<node_name:name>/burn-in/": {},
    "rules/<slug:rule>/adopt/": {},
    "rules/<slug:rule>/retire/": {},
    "jobs/<public_id:id>/diagnosis/": {"confirmed": True},
    "diagnoses/<attempt_key:attempt>/": {"confirmed": True},
    "diagnose/": {"log": "TypeError: no"},
    "incidents/<incident_number:incident>/acknowledge/": {},
    "incidents/<incident_number:incident>/resolve/": {},
    "simulations/": {"trace": "acme:kalos", "policies": ["fifo"], "jobs": 10, "team": "speech"},
    "simulations/<public_id:id>/cancel/": {},
    "suites/": {
        "name": "more",
        "team": "speech",
        "output_root": "/out",
        "infer": "x",
        "datasets": [{"name": "alpha", "samples": 1}],
    },
    "campaigns/": {"checkpoints": ["/checkpoints/b"], "suite": "core", "team": "speech", "nodes": 1},
    "campaigns/<public_id:id>/cancel/": {},
    "campaigns/<public_id:id>/retry/": {},
    "evaluation-rules/": {"directory": "/checkpoints/b", "suite": "core", "team": "speech"},
    "evaluation-rules/<int:rule>/": {"is_enabled": False},
    "evaluation-rules/<int:rule>/remove/": {},
    "incidents/<incident_number:incident>/decisions/<incident_number:decision>/approve/": {},
    "incidents/<incident_number:incident>/decisions/<incident_number:decision>/decline/": {},
    "incidents/<incident_number:incident>/decisions/<incident_number:decision>/undo/": {},
    "overrides/<incident_number:override>/lift/": {},
    "channels/": {"kind": "email", "target": "more@example.org", "team": "speech"},
    "channels/<incident_number:channel>/": {"is_enabled": False},
    "channels/<incident_number:channel>/remove/": {},
    "recovery/modes/": {"team": "speech", "mode": "observe"},
    "views/": {"name": "more", "team": "speech", "filters": {"state": "failed"}},
    "views/<int:view>/": {"name": "days"},
    "views/<int:view>/remove/": {},
    "traces/": make.Form(TRACE, {"team": "speech"}),
    "traces/<int:trace>/remove/": {},
}
CHANGES_NOTHING = ("diagnose/",)


PARTS = {
    "simulations/<public_id:id>": lambda job: f"simulations/{simulation_of(job)}",
    "campaigns/<public_id:id>": lambda job: f"campaigns/{campaign_of(job)}",
    "<int:rule>": lambda job: rule_of(job).pk,
    "<int:view>": lambda job: view_of(job).pk,
    "<int:trace>": lambda job: trace_of(job).pk,
    "<incident_number:decision>": lambda job: Decision.objects.get().pk,
    "<incident_number:override>": lambda job: ManualOverride.objects.latest("pk").pk,
    "<incident_number:channel>": lambda job: channel_of(job).pk,
    "<public_id:id>": str,
    "<node_name:cluster>": lambda job: "seren",
    "<node_name:name>": lambda job: "gpu001",
    "jobs/actions/<int:number>": lambda job: f"jobs/actions/{bulk_action_of(job).pk}",
    "sleeps/<int:number>/wake": lambda job: f"sleeps/{sleep_of(job, 'requested').pk}/wake",
    "sleeps/<int:number>": lambda job: f"sleeps/{sleep_of(job, 'proposed').pk}",
    "gpu-speeds/<int:number>": lambda job: f"gpu-speeds/{speed_of(job).pk}",
    "power-budgets/<int:number>": lambda job: f"power-budgets/{budget_of(job).pk}",
    "<int:number>": lambda job: maintenance_of(job).pk,
    "teams/<slug:name>": lambda job: f"teams/{job.team.name}",
    "clusters/<slug:name>": lambda job: "clusters/seren",
    "<attempt_key:attempt>": lambda job: f"{job}.1",
    "<slug:rule>": lambda job: LearnedRule.objects.get().name,
    "<incident_number:incident>": lambda job: Incident.objects.latest("pk").pk,
}


def address_of(pattern, job):
    for part, value in PARTS.items():
        if part in pattern:
            pattern = pattern.replace(part, str(value(job)))
    return pattern


def simulation_of(job):
    """A row that belongs to the job's team."""
    known = Simulation.objects.filter(team=job.team, state="PENDING").first()
    return known or make.simulation(job.user, job.team.name)


def campaign_of(job):
    known = Campaign.objects.filter(team=job.team).first()
    return (known or campaigns.campaign(job.cluster, of=campaigns.suite(team=job.team))).public_id


def sleep_of(job, state):
    Cluster.objects.filter(pk=job.cluster_id).update(sleep_mode="propose")
    node = Node.objects.get(cluster=job.cluster, name="gpu004")
    known = NodeSleep.objects.filter(node=node).first()
    return known or NodeSleep.objects.create(cluster=job.cluster, node=node, state=state)


def speed_of(job):
    return GpuSpeed.objects.get_or_create(cluster=job.cluster, pattern="*", gpu_model="a100", defaults={"speed": 1.0})[
        0
    ]


def budget_of(job):
    return PowerBudget.objects.get_or_create(cluster=job.cluster, scope="cluster", defaults={"limit_w": 90_000})[0]


def rule_of(job):
    known = EvaluationRule.objects.filter(team=job.team).first()
    return known or EvaluationRule.objects.create(
        team=job.team, user=job.user, cluster=job.cluster, directory="/checkpoints/a", suite="core"
    )


def view_of(job):
    return SavedView.objects.get_or_create(team=job.team, name="nights", defaults={"owner": job.user})[0]


def trace_of(job):
    fields = {"user": job.user, "jobs": 1, "span_s": 0, "packed": b""}
    return UploadedTrace.objects.get_or_create(team=job.team, name="week.csv", defaults=fields)[0]


def bulk_action_of(job):
    fields = {"job_keys": [job.pk], "matched": 1}
    return BulkAction.objects.get_or_create(user=job.user, action="cancel", defaults=fields)[0]


def channel_of(job):
    return Channel.objects.get_or_create(team=job.team, kind="email", target="speech@example.org")[0]


def maintenance_of(job):
    now = clock.now()
    fields = {"reason": "y", "by": "olga", "start_at": now, "end_at": now + timedelta(hours=1)}
    return Maintenance.objects.get_or_create(cluster=job.cluster, name="theirs", defaults=fields)[0]


def send(caller, method, pattern, job):
    body = () if method == "get" else (BODIES[pattern],)
    return getattr(caller, method)(address_of(pattern, job), *body)


@pytest.fixture(scope="module", autouse=True)
def created(rows_for_module):
    """A job of grace, who is in another team than ada. It waits for its second attempt; the first one failed."""
    make.cluster()
    Cluster.objects.update(log_root="/nonexistent")  # a campaign's results come through logs
    job = make.running(make.job(make.person("grace", in_team="speech"), in_team="speech"))
    how_it_ended = AttemptEnd(state=State.NODE_FAIL, at=clock.now(), reason="node gpu001 died under grace")
    job_actions.finish(job.attempts.get(), how_it_ended, author=SYNC)
    diagnose_once(clock.now())
    decide_and_recover_once(clock.now())
    ManualOverride.objects.create(cluster=job.cluster, job=job, by="grace", why="mine")
    LearnedRule.objects.create(
        name="grace-1",
        label="NodeFailure",
        pattern="gpu001 died under grace",
        example="node gpu001 died under grace",
        origin=RuleOrigin.LEARNED,
        source=Diagnosis.objects.get(),
        owner=job.user,
    )
    for row_of in (simulation_of, campaign_of, rule_of, view_of, trace_of, channel_of, maintenance_of):
        row_of(job)  # every list has a row of grace
    return job.pk


@pytest.fixture
def theirs(created):
    return Job.objects.get(pk=created)


def untouched(job):
    before = job.state, job.hold, job.priority
    job.refresh_from_db()
    judged = Diagnosis.objects.exclude(review="").exists() or Incident.objects.exclude(state="open").exists()
    learned = LearnedRule.objects.exclude(state=RuleState.SHADOW).exists()
    decided = (
        Decision.objects.exclude(answered_by="").exists() or ManualOverride.objects.filter(lifted_at=None).count() != 1
    )
    asked = Campaign.objects.exclude(state="PENDING").exists() or Suite.objects.count() > 1
    kept = SavedView.objects.exclude(name="nights").exists() or UploadedTrace.objects.exclude(name="week.csv").exists()
    changed = judged or learned or decided or asked or kept or Channel.objects.exclude(pk=channel_of(job).pk).exists()
    return (job.state, job.hold, job.priority) == before and Job.objects.count() == 1 and not changed


def test_every_endpoint_has_a_permission_rule():
    for address, view in endpoints():
        if address == "docs/":
            continue  # a page, behind the login as every page
        assert issubclass(view.cls, ApiEndpoint), address
        methods = {method.upper() for method in ("get", "post", "patch") if hasattr(view.cls, method)}
        assert set(view.cls.rules) == methods, f"{address} has methods without a Rule, or Rules without a method"


@pytest.mark.parametrize(("address", "method", "view"), METHODS, ids=NAMED)
def test_every_endpoint_refuses_requests_without_credentials(address, method, view, theirs, client):
    answer = getattr(client, method)(f"/api/v1/{address_of(address, theirs)}")

    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("address", ["nowhere/", "", "jobs", "jobs/../me/", "jobs/%00/"])
def test_an_unknown_path_refuses_requests_without_credentials(address, client):
    assert client.get(f"/api/v1/{address}").status_code == 401


def test_the_docs_redirect_anonymous_users_to_the_login(client):
    answer = client.get("/api/v1/docs/")

    assert answer.status_code == 302
    assert answer.headers["Location"].startswith("/login/")


def test_the_docs_list_every_path(client):
    client.force_login(make.person())

    page = client.get("/api/v1/docs/").content.decode()

    for address in api_root.openapi_schema()["paths"]:
        assert address in page


@pytest.mark.parametrize(("address", "method", "view"), METHODS, ids=NAMED)
def test_users_outside_the_team_neither_see_nor_change_its_rows(address, method, view, theirs):
    ada = Caller(make.person("ada"))

    answer = send(ada, method, address, theirs)

    body = answer.content.decode()
    for asked in (f"Job {theirs}", f"Diagnosis {theirs}.1", f"Attempt {theirs}.1"):
        body = body.replace(asked, "")
    assert str(theirs) not in body, "the id was told"
    assert "grace" not in body.replace("Rule grace-1", "")
    if view.rules[method.upper()].team and "nodes/" not in address and "clusters/" not in address:
        assert answer.status_code == 404
    assert untouched(theirs)


@pytest.mark.parametrize(("address", "method", "view"), METHODS, ids=NAMED)
def test_each_scope_allows_what_the_rule_says(address, method, view, theirs):
    needed = view.rules[method.upper()].scope
    user = make.operator("olga", in_team="speech")

    for scope in TokenScope:
        answer = send(Caller(user, scope), method, address, theirs)

        refused = answer.status_code == 403 and "needs a token with scope" in answer.json()["detail"]
        assert refused is not scope.covers(needed), (scope, answer.content)


POSTS = [one for one in METHODS if one[1] != "get" and one[0] not in CHANGES_NOTHING]


@pytest.mark.parametrize(("address", "method", "view"), POSTS, ids=[f"{one[1]} {one[0]}" for one in POSTS])
def test_a_viewer_changes_nothing(address, method, view, theirs):
    viewer = Caller(make.person("vera", in_team="speech", role=TeamRole.VIEWER))
    events = Event.objects.count()

    answer = send(viewer, method, address, theirs)

    assert answer.status_code == 403 or answer.json()["succeeded"] == 0
    assert untouched(theirs)
    assert Event.objects.count() == events


PREVIEW = "clusters/<slug:name>/policy-preview/"  # reads the row and changes nothing
ONE_ROW = [one for one in POSTS if "<" in one[0] and one[0] != PREVIEW]


@pytest.mark.parametrize(("address", "method", "view"), ONE_ROW, ids=[f"{one[1]} {one[0]}" for one in ONE_ROW])
def test_no_row_is_changed_with_an_old_etag(address, method, view, theirs):
    caller, where = Caller(make.person("root", is_superuser=True)), address_of(address, theirs)
    events = Event.objects.count()

    stale = getattr(caller, method)(where, BODIES[address], If_Match='"another"')

    assert stale.status_code == 412
    assert untouched(theirs)
    assert Event.objects.count() == events
    row = caller.get(where if method == "patch" else where.rstrip("/").rpartition("/")[0] + "/")
    fresh = getattr(caller, method)(where, BODIES[address], If_Match=row.headers.get("ETag", "*"))
    assert fresh.status_code != 412


ANYTHING = {"public_id": "0000000000a", "attempt_key": "0000000000a.1", "incident_number": "1", "int": "1"}


@pytest.mark.parametrize(("address", "method", "view"), POSTS, ids=[f"{one[1]} {one[0]}" for one in POSTS])
def test_a_change_refuses_query_parameters(address, method, view):
    """A request with ?dry_run=true must not perform the action. It is refused before any row is read."""
    caller = Caller(make.person("root", is_superuser=True))
    where = re.sub(r"<(\w+):\w+>", lambda kind: ANYTHING.get(kind[1], "x"), address)

    answer = getattr(caller, method)(f"{where}?dry_run=true", BODIES[address])

    assert answer.status_code == 400
    assert answer.json() == {"dry_run": ["is not a parameter of this endpoint"]}


@pytest.mark.parametrize(("address", "view"), [(one[0], one[2]) for one in METHODS if one[1] == "post"])
def test_every_post_is_performed_once_per_idempotency_key(address, view, theirs):
    caller, where = Caller(make.person("root", is_superuser=True)), address_of(address, theirs)

    first, again = (caller.post(where, BODIES[address], Idempotency_Key="k1") for _ in range(2))

    assert again.status_code == first.status_code
    if first.status_code < 300:  # what was refused changed nothing, and is worked out anew
        assert again.json() == first.json()
        assert again.headers["Idempotency-Replayed"] == "true"
        other = make.Form(TRACE * 2, {"team": "speech"}) if isinstance(BODIES[address], make.Form) else b'{"other": 1}'
        assert caller.post(where, other, Idempotency_Key="k1").status_code == 409


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "priority"])
@pytest.mark.parametrize(
    ("role", "scope", "status"),
    [
        (TeamRole.RESEARCHER, TokenScope.ADMIN, 403),
        (TeamRole.OPERATOR, TokenScope.SUBMIT, 403),
        (TeamRole.OPERATOR, TokenScope.OPERATE, 200),
        (TeamRole.ADMIN, TokenScope.OPERATE, 200),
    ],
)
def test_changing_a_colleagues_job_needs_the_role_and_the_scope_operator(verb, role, scope, status, theirs):
    colleague = Caller(make.person("carl", in_team="speech", role=role), scope)

    answer = colleague.post(f"jobs/{theirs}/{verb}/", {"priority": 3} if verb == "priority" else {})

    assert answer.status_code == status


@pytest.mark.parametrize("verb", ["drain", "resume"])
def test_node_actions_need_the_permission_regardless_of_the_role(verb, theirs):
    admin = Caller(make.person("anna", in_team="speech", role=TeamRole.ADMIN))

    answer = admin.post(f"nodes/seren/gpu001/{verb}/", {"reason": "x"})

    assert answer.status_code == 403
    assert not Node.objects.filter(drain_requested=True).exists()


def test_a_user_who_leaves_the_team_cannot_see_its_jobs(theirs):
    grace = Caller(theirs.user)
    assert grace.get(f"jobs/{theirs}/").status_code == 200

    Membership.objects.filter(user=theirs.user).delete()

    assert grace.get(f"jobs/{theirs}/").status_code == 404
    assert grace.post(f"jobs/{theirs}/cancel/").status_code == 404
