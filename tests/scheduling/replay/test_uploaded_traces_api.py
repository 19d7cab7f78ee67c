"""Traces of one's own through the programs' door: as on the page What if."""

from __future__ import annotations

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from acmeweb import api_root
from jobs.core.parsing import InvalidField
from jobs.models import TeamRole, TokenScope, clock
from scheduling.loops.simulations import run_simulation_once
from scheduling.models import UploadedTrace
from scheduling.queries import replays
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller, Form
from tests.jobs.api.test_schema import conforms
from tests.scheduling.replay.test_uploaded_traces import HEADER, ROWS

pytestmark = pytest.mark.django_db
WEEK = Form(ROWS.encode(), name="week.csv")


@pytest.fixture
def ada():
    return Caller(make.person("ada"))


def test_a_file_is_brought_replayed_and_removed(ada):
    made = ada.post("traces/", WEEK)

    assert made.status_code == 201
    told = made.json()
    assert (told["name"], told["jobs"], told["span_s"], told["bad"]) == ("week.csv", 30, 29 * 60, 0)
    assert ada.get(made.headers["Location"]).json() == told
    asked = ada.post("simulations/", {"trace": told["trace"], "policies": ["fifo"], "nodes": 4})
    run_simulation_once(clock.now)
    assert ada.get(f"simulations/{asked.json()['id']}/").json()["result"]["jobs"] == 30
    assert ada.post(f"{made.headers['Location']}remove/").status_code == 200
    assert ada.get("traces/").json()["results"] == []


def test_it_is_the_teams_and_nobody_elses():
    ada, ben = Caller(make.person("ada")), Caller(make.person("ben"))
    olga, eve = Caller(make.person("olga", role=TeamRole.OPERATOR)), Caller(make.person("eve", "speech"))
    here = ada.post("traces/", WEEK).headers["Location"]

    assert [len(one.get("traces/").json()["results"]) for one in (ben, olga, eve)] == [1, 1, 0]
    short = Caller(olga.user, TokenScope.SUBMIT)
    assert short.post(f"{here}remove/").json()["detail"] == (
        "week.csv is somebody else's: this takes the scope operate, and this token has submit."
    )
    assert "the role operator in its team" in ben.post(f"{here}remove/").json()["detail"]
    assert [one.post(f"{here}remove/").status_code for one in (ben, eve, olga)] == [403, 404, 200]


@pytest.mark.parametrize(
    ("form", "field", "says"),
    [
        (Form(b"a,b\n1,2\n"), "trace_file", "is of no layout we know"),
        (Form(HEADER.encode()), "trace_file", "holds no job that ran"),
        (Form(ROWS.encode(), of="file"), "file", "is no field of a trace"),
        (Form(ROWS.encode(), {"colour": "red"}), "colour", "is no field of a trace"),
        (Form(ROWS.encode(), {"team": "speech"}), "team", "you are in no team 'speech'"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_kept(ada, form, field, says):
    answer = ada.post("traces/", form)

    assert answer.status_code == 400
    assert says in answer.json()[field][0]
    assert not UploadedTrace.objects.exists()


def test_a_body_that_is_no_form_is_refused(ada):
    assert ada.post("traces/", {"team": "vision"}).status_code == 415


def test_a_file_that_is_too_long_is_refused_before_it_is_read():
    file = SimpleUploadedFile("week.csv", ROWS.encode())
    file.size = replays.MAX_FILE_BYTES + 1

    with pytest.raises(InvalidField, match="has 67,108,865 bytes, more than the 67,108,864 allowed"):
        replays.read_uploaded_trace(file)


def test_a_file_is_brought_once_for_each_key(ada):
    first, again = (ada.post("traces/", WEEK, Idempotency_Key="k") for _ in range(2))

    assert again.json() == first.json() and again.headers["Idempotency-Replayed"] == "true"
    assert ada.post("traces/", Form(ROWS.encode(), name="other.csv"), Idempotency_Key="k").status_code == 409
    assert UploadedTrace.objects.count() == 1


def test_answers_are_as_described(ada):
    schema = api_root.openapi_schema()
    made = ada.post("traces/", WEEK)
    here = made.headers["Location"]

    conforms(schema, "traces/", "post", made)
    conforms(schema, "traces/", "get", ada.get("traces/"))
    conforms(schema, "traces/{trace}/", "get", ada.get(here))
    conforms(schema, "traces/{trace}/remove/", "post", ada.post(f"{here}remove/"))
    body = schema["paths"]["/api/v1/traces/"]["post"]["requestBody"]["content"]
    assert list(body) == ["multipart/form-data"]


# --- quotas of a trace whose teams are known beforehand


def test_a_quota_of_a_drawn_traces_team_is_checked_when_it_is_asked_for(ada):
    wish = {"trace": "acme:kalos", "policies": ["fifo"], "jobs": 20}

    refused = ada.post("simulations/", wish | {"quota": [{"team": "vision", "gpus": 8}]})

    assert refused.status_code == 400
    assert refused.json() == {"quota": ["nobody in the trace is of team 'vision'; there are t0 to t11"]}
    asked = ada.post("simulations/", wish | {"quota": [{"team": f"t{n}", "gpus": 800} for n in range(12)]})
    run_simulation_once(clock.now)
    assert ada.get(f"simulations/{asked.json()['id']}/").json()["error"] == ""
