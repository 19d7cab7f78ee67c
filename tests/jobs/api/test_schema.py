"""The OpenAPI schema matches the actual responses."""

from __future__ import annotations

import json
import zlib
from datetime import timedelta

import pytest
from jsonschema import Draft202012Validator

from acmeweb import api_root
from jobs.api import shapes
from jobs.core.request_fields import REQUEST_FIELDS
from jobs.models import Quota, clock
from tests.failures import make as failures
from tests.failures.make import decide_and_recover_once
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def schema():
    return json.loads(json.dumps(api_root.openapi_schema()))


def answered(schema, path, method, status):
    return schema["paths"][f"/api/v1/{path}"][method]["responses"][str(status)]


def conforms(schema, path, method, answer):
    described = answered(schema, path, method, answer.status_code)["content"]["application/json"]["schema"]
    Draft202012Validator({**described, "components": schema["components"]}).validate(answer.json())


@pytest.fixture
def olga():
    make.cluster()
    return Caller(make.operator("olga"))


def test_the_schema_has_the_version_and_the_credentials(schema):
    assert schema["openapi"].startswith("3.1")
    assert set(schema["components"]["securitySchemes"]) == {"bearer", "run", "session"}


def test_every_operation_has_a_unique_id_and_all_its_error_responses(schema):
    operations = [one for methods in schema["paths"].values() for one in methods.values()]

    ids = [one["operationId"] for one in operations]
    assert len(set(ids)) == len(ids)
    assert all({"400", "401", "403", "429"} <= set(one["responses"]) for one in operations)
    posts = [methods["post"] for methods in schema["paths"].values() if "post" in methods]
    assert all({"409", "413", "415"} <= set(one["responses"]) for one in posts)


def test_every_reference_of_the_schema_resolves(schema):
    text = json.dumps(schema)

    for part in text.split('"$ref": "')[1:]:
        name = part.partition('"')[0].removeprefix("#/components/schemas/")
        assert name in schema["components"]["schemas"]


def test_the_job_request_has_every_field_that_the_spec_reads():
    assert set(shapes.JOB_REQUEST.fields) == {*REQUEST_FIELDS, "team", "cluster"}


def test_answers_are_as_described(schema, olga):
    job = make.running(make.job(olga.user, gpus_per_node=2, time_limit=60, labels={"a": "b"}))
    after = make.job(olga.user, dependencies=f"afterany:{job}")
    Quota.objects.create(team=make.team(), cluster=make.cluster(), gpus=8)

    for described, path in {
        "jobs/": "jobs/",
        "jobs/{id}/": f"jobs/{after}/",
        "jobs/{id}/attempts/": f"jobs/{job}/attempts/",
        "jobs/{id}/events/": f"jobs/{job}/events/",
        "jobs/{id}/explain/": f"jobs/{after}/explain/",
        "nodes/": "nodes/",
        "nodes/{cluster}/{name}/": "nodes/seren/gpu001/",
        "clusters/": "clusters/",
        "clusters/{name}/": "clusters/seren/",
        "clusters/{name}/usage/": "clusters/seren/usage/?hours=2",
        "teams/": "teams/",
        "teams/{name}/": "teams/vision/",
        "me/": "me/",
    }.items():
        answer = olga.get(path)
        assert answer.status_code == 200
        conforms(schema, described, "get", answer)


def test_responses_of_failure_endpoints_match_the_schema(schema, olga, tmp_path):
    attempt = failures.failed(tmp_path, by="olga")
    failures.diagnose_once(failures.clock.now())
    number = failures.of(attempt).incident_id
    attempt.stack_dumps.create(
        incident_id=number, until=failures.clock.now(), ranks=1, packed=zlib.compress(b"at main")
    )

    for described, path in {
        "jobs/{id}/diagnosis/": f"jobs/{attempt.job}/diagnosis/",
        "diagnoses/": "diagnoses/",
        "diagnoses/{attempt}/": f"diagnoses/{attempt.key}/",
        "incidents/": "incidents/?fields=id,involved,nodes",
        "incidents/{incident}/": f"incidents/{number}/",
        "failures/statistics/": "failures/statistics/",
        "diagnoses/{attempt}/similar/": f"diagnoses/{attempt.key}/similar/",
        "rules/": "rules/",
        "attempts/{attempt}/stacks/": f"attempts/{attempt.key}/stacks/",
    }.items():
        answer = olga.get(path)
        assert answer.status_code == 200, answer.content
        conforms(schema, described, "get", answer)
    review = olga.patch(f"diagnoses/{attempt.key}/", {"root_cause": "KeyError"})
    conforms(schema, "diagnoses/{attempt}/", "patch", review)
    conforms(schema, "diagnose/", "post", olga.post("diagnose/", {"log": "KeyError: 'x'"}))
    for verb in ("acknowledge", "resolve"):
        conforms(schema, f"incidents/{{incident}}/{verb}/", "post", olga.post(f"incidents/{number}/{verb}/"))


def test_responses_of_recovery_endpoints_match_the_schema(schema, olga, tmp_path):
    attempt = failures.failed(tmp_path, by="olga", kind="pretrain", text="step 1\n")
    failures.diagnose_once(failures.clock.now())
    decide_and_recover_once(failures.clock.now())
    number, decision = failures.of(attempt).incident_id, attempt.decisions.get().pk
    here, described = f"incidents/{number}/decisions/{decision}/", "incidents/{incident}/decisions/{decision}/"

    for verb in ("approve", "undo"):
        conforms(schema, f"{described}{verb}/", "post", olga.post(f"{here}{verb}/", {"reason": "so"}))
    conforms(schema, "recovery/modes/", "post", olga.post("recovery/modes/", {"mode": "act"}))
    for path in ("overrides/", "recovery/modes/"):
        conforms(schema, path, "get", olga.get(path))
    conforms(schema, "incidents/{incident}/decisions/", "get", olga.get(f"incidents/{number}/decisions/"))
    conforms(schema, described, "get", olga.get(here))
    conforms(schema, f"{described}replay/", "get", olga.get(f"{here}replay/"))
    added = olga.post("channels/", {"kind": "email", "target": "ops@example.org"})
    conforms(schema, "channels/", "post", added)
    conforms(schema, "channels/", "get", olga.get("channels/"))
    off = olga.patch(f"channels/{added.json()['id']}/", {"is_enabled": False})
    conforms(schema, "channels/{channel}/", "patch", off)
    gone = olga.post(f"channels/{added.json()['id']}/remove/")
    conforms(schema, "channels/{channel}/remove/", "post", gone)
    override = olga.get("overrides/").json()["results"][0]["id"]
    conforms(schema, "overrides/{override}/lift/", "post", olga.post(f"overrides/{override}/lift/"))


def test_partial_responses_and_errors_match_the_schema(schema, olga):
    conforms(schema, "jobs/", "get", olga.get("jobs/", {"fields": "id"}))
    conforms(schema, "jobs/", "get", olga.get("jobs/", {"nope": "1"}))
    conforms(schema, "jobs/{id}/", "get", olga.get("jobs/0000000000a/"))
    conforms(schema, "jobs/", "post", olga.post("jobs/", {"command": ""}))


def test_responses_to_changes_match_the_schema(schema, olga):
    conforms(schema, "jobs/", "post", olga.post("jobs/", {"command": "x", "array": "0-1"}))
    asked = {"jobs": [{"command": "x"}, {"command": ""}], "mode": "each"}
    conforms(schema, "jobs/bulk/", "post", olga.post("jobs/bulk/", asked))
    job = make.running(make.job(olga.user, gpus_per_node=1))
    drained = olga.post("nodes/seren/gpu001/drain/", {"reason": "x"})
    conforms(schema, "nodes/{cluster}/{name}/drain/", "post", drained)
    conforms(schema, "nodes/{cluster}/{name}/resume/", "post", olga.post("nodes/seren/gpu001/resume/"))
    configures = Caller(make.configurer("rita"))
    added = configures.post("clusters/", {"name": "kalos", "address": "http://127.0.0.1:1"})
    conforms(schema, "clusters/", "post", added)
    conforms(schema, "clusters/{name}/", "get", configures.get("clusters/kalos/"))
    conforms(schema, "clusters/{name}/", "patch", configures.patch("clusters/kalos/", {"title": "Kalos"}))
    conforms(schema, "clusters/{name}/test/", "post", configures.post("clusters/kalos/test/"))
    conforms(
        schema, "connection-tests/", "post", configures.post("connection-tests/", {"address": "http://127.0.0.1:1"})
    )
    window = {"name": "x", "reason": "y", "end_at": (clock.now() + timedelta(hours=1)).isoformat()}
    asked = olga.post("clusters/seren/maintenance/", window)
    conforms(schema, "clusters/{name}/maintenance/", "post", asked)
    one, here = "clusters/{name}/maintenance/{number}/", f"clusters/seren/maintenance/{asked.json()['id']}/"
    conforms(schema, one, "get", olga.get(here))
    conforms(schema, "clusters/{name}/maintenance/", "get", olga.get("clusters/seren/maintenance/"))
    later = {"end_at": (clock.now() + timedelta(hours=2)).isoformat()}
    conforms(schema, one, "patch", olga.patch(here, later))
    conforms(schema, f"{one}cancel/", "post", olga.post(f"{here}cancel/", {}))
    many = {"action": "cancel", "ids": [f"{job}", "0000000000a"]}
    conforms(schema, "jobs/actions/", "post", olga.post("jobs/actions/", many))
    conforms(schema, "jobs/{id}/cancel/", "post", olga.post(f"jobs/{make.job(olga.user)}/cancel/"))
