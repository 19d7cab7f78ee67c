"""Uploaded traces through the API, which works like the page "What if"."""

from __future__ import annotations

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from acmeweb import api_root
from acmeweb.common.errors import InvalidField
from jobs.models import TeamRole, TokenScope, clock
from scheduling.models import UploadedTrace
from scheduling.whatif.loops import run_simulation_once
from scheduling.whatif.reads.traces import MAX_FILE_BYTES, read_uploaded_trace
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller, Form
from tests.jobs.api.test_schema import conforms
from tests.scheduling.whatif.test_uploaded_traces import HEADER, ROWS

pytestmark = pytest.mark.django_db
WEEK = Form(ROWS.encode(), name="week.csv")


@pytest.fixture
def ada():
    return Caller(make.person("ada"))


def test_trace_is_uploaded_replayed_and_removed(ada):
    made = ada.post("traces/", WEEK)

    assert made.status_code == 201
    uploaded = made.json()
    assert (uploaded["name"], uploaded["jobs"]) == ("week.csv", 30)
    assert (uploaded["span_s"], uploaded["skipped_rows"]) == (29 * 60, 0)
    assert ada.get(made.headers["Location"]).json() == uploaded
    response = ada.post("simulations/", {"trace": uploaded["trace"], "policies": ["fifo"], "nodes": 4})
    run_simulation_once(clock.now)
    assert ada.get(f"simulations/{response.json()['id']}/").json()["result"]["jobs"] == 30
    assert ada.post(f"{made.headers['Location']}remove/").status_code == 200
    assert ada.get("traces/").json()["results"] == []


def test_uploaded_trace_is_visible_to_its_team_only():
    ada, ben = Caller(make.person("ada")), Caller(make.person("ben"))
    olga, eve = Caller(make.person("olga", role=TeamRole.OPERATOR)), Caller(make.person("eve", "speech"))
    here = ada.post("traces/", WEEK).headers["Location"]

    assert [len(one.get("traces/").json()["results"]) for one in (ben, olga, eve)] == [1, 1, 0]
    short = Caller(olga.user, TokenScope.SUBMIT)
    assert short.post(f"{here}remove/").json()["detail"] == (
        "week.csv belongs to another user. This needs a token with the scope operate, not submit."
    )
    assert "the role operator in its team" in ben.post(f"{here}remove/").json()["detail"]
    assert [one.post(f"{here}remove/").status_code for one in (ben, eve, olga)] == [403, 404, 200]


@pytest.mark.parametrize(
    ("form", "field", "says"),
    [
        (Form(b"a,b\n1,2\n"), "trace_file", "matches no known layout"),
        (Form(HEADER.encode()), "trace_file", "contains no job that ran"),
        (Form(ROWS.encode(), of="file"), "file", "is not a field of a trace"),
        (Form(ROWS.encode(), {"color": "red"}), "color", "is not a field of a trace"),
        (Form(ROWS.encode(), {"team": "speech"}), "team", "you are not a member of team 'speech'"),
    ],
)
def test_unreadable_file_is_rejected_and_not_stored(ada, form, field, says):
    answer = ada.post("traces/", form)

    assert answer.status_code == 400
    assert says in answer.json()[field][0]
    assert not UploadedTrace.objects.exists()


def test_body_that_is_not_a_form_is_rejected(ada):
    assert ada.post("traces/", {"team": "vision"}).status_code == 415


def test_oversized_file_is_rejected_before_reading():
    file = SimpleUploadedFile("week.csv", ROWS.encode())
    file.size = MAX_FILE_BYTES + 1

    with pytest.raises(InvalidField, match="has 67,108,865 bytes; at most 67,108,864 are allowed"):
        read_uploaded_trace(file)


def test_idempotency_key_uploads_a_file_once(ada):
    first, again = (ada.post("traces/", WEEK, Idempotency_Key="k") for _ in range(2))

    assert again.json() == first.json() and again.headers["Idempotency-Replayed"] == "true"
    assert ada.post("traces/", Form(ROWS.encode(), name="other.csv"), Idempotency_Key="k").status_code == 409
    assert UploadedTrace.objects.count() == 1


def test_responses_match_the_schema(ada):
    schema = api_root.openapi_schema()
    made = ada.post("traces/", WEEK)
    here = made.headers["Location"]

    conforms(schema, "traces/", "post", made)
    conforms(schema, "traces/", "get", ada.get("traces/"))
    conforms(schema, "traces/{trace}/", "get", ada.get(here))
    conforms(schema, "traces/{trace}/remove/", "post", ada.post(f"{here}remove/"))
    body = schema["paths"]["/api/v1/traces/"]["post"]["requestBody"]["content"]
    assert list(body) == ["multipart/form-data"]


# --- quotas of a trace with known teams


def test_quota_team_of_a_drawn_trace_is_checked_at_request_time(ada):
    fields = {"trace": "acme:kalos", "policies": ["fifo"], "jobs": 20}

    refused = ada.post("simulations/", fields | {"quota": [{"team": "vision", "gpus": 8}]})

    assert refused.status_code == 400
    assert refused.json() == {"quota": ["the trace has no team 'vision'; the teams are t0 to t11"]}
    response = ada.post("simulations/", fields | {"quota": [{"team": f"t{n}", "gpus": 800} for n in range(12)]})
    run_simulation_once(clock.now)
    assert ada.get(f"simulations/{response.json()['id']}/").json()["error"] == ""
