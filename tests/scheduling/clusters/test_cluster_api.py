"""Clusters through the API: the same permissions, checks and Events as on the pages."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from acmeweb.common.errors import InvalidField
from jobs.models import Cluster, Event, TokenScope
from scheduling.actions import clusters as cluster_actions
from scheduling.clusters import circuit_breaker
from scheduling.models import ClusterEndpoint, OpenCircuit
from tests import make as rows
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller
from tests.scheduling.clusters.test_cluster_secrets import Listener

pytestmark = pytest.mark.django_db
NEW = {"name": "kalos", "address": "http://127.0.0.1:1"}


@pytest.fixture
def rita():
    rows.cluster(mode="observe")
    return Caller(make.configurer("rita"))


@pytest.fixture
def tokens(settings, tmp_path):
    settings.ACME_TOKEN_DIRS = [str(tmp_path)]
    return tmp_path


def test_a_cluster_is_added_in_observe_with_its_event(rita):
    answer = rita.post("clusters/", {**NEW, "reason": "new room"})

    assert (answer.status_code, answer.headers["Location"]) == (201, "http://testserver/api/v1/clusters/kalos/")
    assert (answer.json()["mode"], answer.json()["address"]) == ("observe", "http://127.0.0.1:1")
    event = Event.objects.get(type="cluster.added")
    assert (event.by, event.why, event.cluster.name) == ("rita", "new room", "kalos")


def test_a_repeated_request_adds_one_cluster(rita):
    first, again = (rita.post("clusters/", NEW, Idempotency_Key="k1") for _ in range(2))

    assert first.json() == again.json()
    assert Cluster.objects.filter(name="kalos").count() == 1


def test_existing_cluster_name_is_a_conflict(rita):
    answer = rita.post("clusters/", NEW | {"name": "seren"})

    assert (answer.status_code, answer.json()) == (409, {"detail": "a cluster named seren already exists."})


@pytest.mark.parametrize(
    "fields, wrong, said",
    [
        ({"name": "Big One"}, "name", "Use lowercase letters"),
        ({"name": None}, "name", "is required"),
        ({"address": ""}, "address", "is empty"),
        ({"address": None}, "address", "is required"),
        ({"address": "http://a\nb"}, "address", "control character"),
        ({"address": "ftp://x"}, "address", "address must begin with http://, https://, unix:/// or kubernetes://"),
        ({"address": "slurm:6820"}, "address", "address must begin with"),
        ({"address": "unix://run/slurm.sock"}, "address", "address must begin with"),
        ({"address": "http://:6820"}, "address", "address must begin with"),
        ({"address": "http://slurm:port"}, "address", "address must begin with"),
        (
            {"metrics_address": "unix:///run/x"},
            "metrics_address",
            "metrics_address must begin with http:// or https://",
        ),
        ({"mode": "fly"}, "mode", "not one of observe, advise, drive"),
        ({"token_file": "/etc/shadow"}, "token_file", "ACME_TOKEN_DIRS"),
        ({"log_root": "/"}, "log_root", "root directory"),
        ({"checkpoint_root": "/usr"}, "checkpoint_root", "a system directory"),
        ({"checkpoint_signal": "NOPE"}, "checkpoint_signal", "NOPE"),
        ({"burn_in_minutes": -1}, "burn_in_minutes", "not between"),
        ({"gpu_hour_price": "2"}, "gpu_hour_price", "not a number"),
        ({"sleep_mode": "sometimes"}, "sleep_mode", "not one of off, observe, propose, act"),
        ({"max_wakes_per_day": 0}, "max_wakes_per_day", "not between"),
        ({"boot_minutes": 0}, "boot_minutes", "not between"),
        ({"sleep_webhook": "http://127.0.0.1/x"}, "sleep_webhook", "not a public address"),
        ({"sleep_webhook": "file:///etc"}, "sleep_webhook", "must begin with https"),
        ({"gpu_hour_price": 10**9}, "gpu_hour_price", "not between"),
        ({"is_bundled": True}, "is_bundled", "is not a field"),
    ],
)
def test_invalid_values_are_explained_per_field(rita, fields, wrong, said):
    answer = rita.post("clusters/", NEW | fields)

    assert answer.status_code == 400
    assert said in answer.json()[wrong][0]
    assert Cluster.objects.count() == 1


def test_a_change_needs_the_version_that_was_read(rita):
    tag = rita.get("clusters/seren/").headers["ETag"]

    changed = rita.patch("clusters/seren/", {"mode": "drive", "reason": "go"}, If_Match=tag)
    late = rita.patch("clusters/seren/", {"mode": "advise"}, If_Match=tag)

    assert (changed.status_code, changed.json()["mode"], late.status_code) == (200, "drive", 412)
    assert changed.headers["ETag"] == rita.get("clusters/seren/").headers["ETag"]
    event = Event.objects.get(type="cluster.changed")
    assert (event.detail["changes"], event.why) == ([["mode", "observe", "drive"]], "go")


def test_settings_of_sleeping_nodes_are_changed_and_recorded(rita):
    asked = {"sleep_mode": "propose", "sleep_reserve_nodes": 3, "min_awake_minutes": 90, "boot_minutes": 12}

    answer = rita.patch("clusters/seren/", asked).json()

    assert {name: answer[name] for name in asked} == asked
    assert ["sleep_mode", "off", "propose"] in Event.objects.get(type="cluster.changed").detail["changes"]


def test_null_removes_the_price(rita):
    assert rita.patch("clusters/seren/", {"gpu_hour_price": 2}).json()["gpu_hour_price"] == 2.0
    assert rita.patch("clusters/seren/", {"gpu_hour_price": None}).json()["gpu_hour_price"] is None


def test_new_address_requires_a_token_file(rita, tokens):
    rows.cluster(token_file=f"{tokens}/seren")

    alone = rita.patch("clusters/seren/", {"address": "http://127.0.0.1:2"})
    both = rita.patch("clusters/seren/", {"address": "http://127.0.0.1:2", "token_file": f"{tokens}/seren"})

    assert (alone.status_code, both.status_code) == (400, 200)
    assert "is required with a new address" in alone.json()["token_file"][0]


def test_connection_of_the_bundled_cluster_cannot_be_changed(rita):
    rows.cluster(is_bundled=True, token_file="/run/secrets/cluster")

    answer = rita.patch("clusters/seren/", {"address": "http://127.0.0.1:2"})

    assert (answer.status_code, list(answer.json())) == (400, ["address"])


def test_the_connection_is_shown_to_those_who_run_clusters(rita):
    told = Caller(make.person("ada")).get("clusters/seren/").json()

    assert (told["address"], told["log_root"], told["mode"]) == (None, None, "observe")
    assert rita.get("clusters/seren/").json()["address"] == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "method, path, body, needs",
    [
        ("post", "clusters/", NEW, "add_cluster"),
        ("patch", "clusters/seren/", {"mode": "drive"}, "change_cluster"),
        ("post", "connection-tests/", {"address": "http://127.0.0.1:1"}, "add_cluster or change_cluster"),
    ],
)
def test_operators_cannot_configure_clusters(rita, method, path, body, needs):
    answer = getattr(Caller(make.operator("olga")), method)(path, body)

    assert (answer.status_code, answer.json()) == (403, {"detail": f"This needs the permission {needs}."})


def test_team_token_cannot_configure_clusters(rita):
    bound = Caller(rita.user, TokenScope.ADMIN, team=make.team("vision"))

    assert bound.post("clusters/", NEW).status_code == 403
    assert bound.post("clusters/seren/test/").status_code == 403


def test_operators_may_test_the_saved_connection(rita):
    answer = Caller(make.operator("olga")).post("clusters/seren/test/")

    told = answer.json()
    assert (answer.status_code, told["ok"]) == (200, False)
    assert told["steps"][0]["name"] == "Address" and told["steps"][0]["ok"] is False
    assert not Event.objects.filter(type__startswith="cluster.").exists()


def test_a_connection_that_is_not_saved_is_tested(rita):
    with closing(Listener()) as listener:
        told = rita.post("connection-tests/", {"address": listener.address}).json()

    assert told["steps"][0]["ok"] is True
    assert Cluster.objects.count() == 1


def test_connection_test_does_not_send_another_clusters_token(rita, tokens):
    (tokens / "seren").write_text("t0ken")
    rows.cluster(token_file=f"{tokens}/seren")

    with closing(Listener()) as listener:
        answer = rita.post("connection-tests/", {"address": listener.address, "token_file": f"{tokens}/seren"})

    assert answer.status_code == 400 and "saved for cluster seren" in answer.json()["token_file"][0]
    assert listener.received == b""


def test_connection_test_of_a_saved_cluster_resets_its_circuit():
    circuit_breaker.record_timeout(rows.cluster(), ClusterEndpoint.CONTROL, "no answer within 10 s")

    Caller(make.operator("olga")).post("clusters/seren/test/")

    assert not OpenCircuit.objects.exists()


def test_several_refusals_name_their_fields():
    columns = {"address": "http://127.0.0.1:1", "token_file": "/etc/shadow", "log_root": "/"}

    with pytest.raises(InvalidField) as refused:
        cluster_actions.add("kalos", columns, author=rows.author())

    assert refused.value.by_field.keys() == {"token_file", "log_root"}
    assert not any(re.search(r"[.;:][.;:]", text) for texts in refused.value.by_field.values() for text in texts)
