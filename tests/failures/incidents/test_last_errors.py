"""The last error of each node and GPU, by which the map colors them."""

from datetime import timedelta

import pytest
from django.test import Client

from failures.actions import anomalies as anomaly_actions
from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.models import Anomaly, Diagnosis
from failures.queries.last_errors import last_errors
from jobs.actions import journal
from jobs.models import Cluster, Node, Sample, TeamRole, clock
from tests import make
from tests.failures import make as failures

pytestmark = pytest.mark.django_db


@pytest.fixture
def seren():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    return make.cluster()


def node(number=1):
    return Node.objects.get(name=f"seren-00{number}")


def found(seren, at=None, showing=None):
    names = dict(Node.objects.values_list("pk", "name"))
    errors = last_errors(seren, at or clock.now(), showing or {})
    return sorted((names[one.node], -1 if one.gpu is None else one.gpu, one.words) for one in errors)


def anomaly(seren, why, severity=Severity.BAD, since=None):
    one = DetectorFinding(symptom=SymptomType.NODE, since=clock.now().timestamp(), severity=severity, why=why)
    made = anomaly_actions.record_finding(
        one, seren, clock.now(), node=Node.objects.select_related("cluster").get(name="seren-001")
    )
    if since:
        Anomaly.objects.filter(pk=made.pk).update(since=since)


def test_failure_that_names_a_gpu_is_attributed_to_it(seren, tmp_path):
    failures.diagnosed(tmp_path, failures.XID, by="ada", on=("seren-001",))
    row = Diagnosis.objects.get()
    pci = row.suspect_gpus[0]["pci"]
    row.nodes.set([node()])
    Diagnosis.objects.update(suspect_gpus=[{"host": "seren-001.local", "pci": pci, "rank": None, "why": ""}])

    unknown = found(seren)
    Node.objects.filter(pk=node().pk).update(gpu_pci=["00000000:01:00.0", f"0000{pci.upper()}.0"])

    assert unknown == [("seren-001", -1, row.root_cause)]
    assert found(seren) == [("seren-001", 1, row.root_cause)]


def test_xid_is_attributed_to_the_gpus_that_show_it(seren):
    anomaly(seren, "Xid 79: the GPU has fallen off the bus. A GPU is at 95 °C.")

    assert found(seren) == [("seren-001", -1, "Xid 79")]
    assert found(seren, showing={node().pk: [3, 5]}) == [("seren-001", 3, "Xid 79"), ("seren-001", 5, "Xid 79")]


def test_warning_is_not_an_error(seren):
    anomaly(seren, "No telemetry for 100 s.", Severity.WARN)

    assert found(seren) == []


def test_newest_error_before_the_given_time_is_shown(seren):
    now = clock.now()
    for hours, what, detail in ((5, "node.state_changed", {}), (3, "node.tested", {"passed": False, "ran": True})):
        event = journal.node_event(what, make.author(), node(), to_state="DOWN" if not detail else "", detail=detail)
        event.at = now - timedelta(hours=hours)
        event.save()

    shown = [found(seren, now - timedelta(hours=hours)) for hours in (6, 4, 2)]

    assert shown == [[], [("seren-001", -1, "went down")], [("seren-001", -1, "failed its test")]]


def test_errors_older_than_thirty_days_are_ignored(seren):
    anomaly(seren, "A GPU is at 95 °C.", since=clock.now() - timedelta(days=31))

    assert found(seren) == []


def test_map_reads_all_errors_in_one_request(seren, django_assert_num_queries):
    anomaly(seren, "Xid 79: the GPU has fallen off the bus.")
    Sample.objects.create(node=node(), at=clock.now() - timedelta(seconds=20), xid=[0, 0, 79])
    ada = Client()
    ada.force_login(make.user("ada"))

    # session, user, cluster, clock; names, telemetry of five minutes and raw, failures, Events, anomalies
    with django_assert_num_queries(10):
        answer = ada.get("/map/seren/errors/").json()

    assert [row[:2] + row[3:] for row in answer["errors"]] == [["seren-001", 2, "Xid 79"]]
    assert ada.get("/map/seren/errors/?at=2199-01-01T00:00:00Z").status_code == 400
    assert Client().get("/map/seren/errors/").status_code == 302
    assert Cluster.objects.count() == 1
