"""`acme cluster`: list, add, change and test clusters."""

from __future__ import annotations

import json

import pytest
from acme_client.api import Refused, format_error_body

from jobs.models import Cluster, Node, Quota, Team
from tests.jobs.api import api_make as make

pytestmark = pytest.mark.django_db
KALOS = ("kalos", "--address", "http://127.0.0.1:1")


@pytest.fixture
def cluster(acme):
    """Run `acme cluster WORDS` as a user who configures clusters."""
    make.configurer("ada")
    return lambda *words, **more: acme("cluster", *words, **more)


def test_clusters_are_listed(cluster):
    header, row = cluster().stdout.splitlines()

    assert header.split()[:3] == ["CLUSTER", "MODE", "POLICY"]
    assert row.split()[:3] == ["seren", "drive", "acme"]
    assert [one["name"] for one in json.loads(cluster("--json").stdout)] == ["seren"]


def test_a_cluster_is_shown(cluster):
    assert "http://127.0.0.1:1" in cluster("show", "seren").stdout
    assert json.loads(cluster("show", "seren", "--json").stdout)["mode"] == "drive"


def test_a_cluster_is_added_and_observed(cluster):
    result = cluster("add", *KALOS, "--user", "acme", "--reason", "new room")

    assert result.stdout == "kalos: added in mode observe.\n"
    row = Cluster.objects.get(name="kalos")
    assert (row.mode, row.api_user) == ("observe", "acme")


@pytest.mark.parametrize("words, mode, exit_code", [("y\n", "drive", 0), ("n\n", None, 1), ("", None, 2)])
def test_drive_mode_is_explained_and_confirmed(cluster, words, mode, exit_code):
    result = cluster("add", *KALOS, "--mode", "drive", stdin=words)

    assert result.exit_code == exit_code
    assert "start, stop and requeue jobs" in result.stderr
    assert Cluster.objects.filter(name="kalos").values_list("mode", flat=True).first() == mode


def test_yes_skips_the_confirmation(cluster):
    Cluster.objects.update(mode="observe")

    result = cluster("set", "seren", "--mode", "drive", "--yes")

    assert result.stdout == "seren: changed mode.\n"
    assert Cluster.objects.get().mode == "drive"


def test_sleep_mode_is_changed(cluster):
    assert cluster("set", "seren", "--sleep", "propose").stdout == "seren: changed sleep_mode.\n"
    assert cluster("set", "seren", "--sleep", "sometimes").exit_code == 2
    assert Cluster.objects.get().sleep_mode == "propose"


def test_change_without_options_is_wrong_usage(cluster):
    assert cluster("set", "seren").exit_code == 2


def test_a_saved_cluster_is_tested(cluster):
    result = cluster("test", "seren")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[0].startswith("FAILED  Address    127.0.0.1 is reachable, but no process listens")
    assert json.loads(cluster("test", "seren", "--json").stdout)["ok"] is False


def test_a_connection_is_tested_before_it_is_saved(cluster):
    assert "FAILED" in cluster("test", "--address", "http://127.0.0.1:1").stdout
    assert not Cluster.objects.filter(name="kalos").exists()


@pytest.mark.parametrize("words", [(), ("seren", "--address", "http://127.0.0.1:1")])
def test_connection_test_takes_a_name_or_an_address(cluster, words):
    assert cluster("test", *words).exit_code == 2


def test_sentences_of_several_fields_are_joined_without_doubled_punctuation():
    errors = {"token_file": ["It is not there."], "log_root": ["It is a link."]}

    assert format_error_body(errors) == "token_file: It is not there; log_root: It is a link."


def test_pod_template_is_read_from_a_file_and_checked(cluster, tmp_path):
    file = tmp_path / "pods.json"
    file.write_text('{"image": "train:1", "shared_memory": "many"}')
    kalos = ("add", "kalos", "--address", "kubernetes:///k", "--pod-template", str(file))

    with pytest.raises(Refused, match="pod_template: shared_memory must be a size"):
        cluster(*kalos)
    file.write_text('{"image": "train:1", "shared_memory": "64Gi"}')
    assert cluster(*kalos).exit_code == 0
    assert Cluster.objects.get(name="kalos").pod_template == {"image": "train:1", "shared_memory": "64Gi"}
    assert cluster("set", "kalos", "--pod-template", "").stdout == "kalos: changed pod_template.\n"
    assert Cluster.objects.get(name="kalos").pod_template == {}


@pytest.mark.parametrize(("text", "said"), [("{", "is not JSON"), (None, "cannot be read")], ids=["text", "missing"])
def test_unreadable_pod_template_is_explained(cluster, tmp_path, text, said):
    file = tmp_path / "pods.json"
    if text:
        file.write_text(text)

    result = cluster("set", "seren", "--pod-template", str(file))

    assert result.exit_code == 2
    assert said in result.stderr


def test_power_budgets_are_set_listed_and_removed(cluster):
    Node.objects.filter(pk=Node.objects.order_by("pk")[0].pk).update(rack="r01")
    assert cluster("power-budget", "seren", "--kw", "40").stdout == "seren: 40.0 kW, caps off.\n"
    assert (
        cluster("power-budget", "seren", "--kw", "45.5", "--reason", "new feed").stdout == "seren: 45.5 kW, caps off.\n"
    )
    assert cluster("power-budget", "seren", "--caps", "observe").stdout == "seren: 45.5 kW, caps observe.\n"
    thresholds = cluster("power-budget", "seren", "--thresholds", "70,80,95")
    assert thresholds.stdout == "seren: 45.5 kW, caps observe at 70, 80, 95%.\n"
    assert (
        cluster("power-budget", "seren", "--rack", "r01", "--kw", "20").stdout == "seren rack r01: 20.0 kW, caps off.\n"
    )

    header, first, second = cluster("power-budget", "seren").stdout.splitlines()
    assert header.split()[:2] == ["SCOPE", "PLACE"]
    assert (first.split()[0], first.split()[-4:]) == ("cluster", ["0", "-", "observe", "70,80,95"])
    assert second.split()[:2] == ["rack", "r01"]
    assert [row["place"] for row in json.loads(cluster("power-budget", "seren", "-o", "json").stdout)] == ["", "r01"]

    assert cluster("power-budget", "seren", "--rack", "r01", "--remove").stdout == "seren rack r01: removed.\n"
    assert list(Cluster.objects.get().power_budgets.values_list("limit_w", flat=True)) == [45_500]


def test_quotas_are_listed_with_their_use(cluster):
    row = Cluster.objects.get()
    team = Team.objects.filter(memberships__isnull=False).first()
    Quota.objects.create(cluster=row, team=team, kind="", gpus=16)
    Quota.objects.create(cluster=row, team=team, kind="", gpu_model="h100", gpus=8)

    header, *rows = cluster("quotas", "seren").stdout.splitlines()

    assert header.split() == ["TEAM", "KIND", "GPU", "MODEL", "GPUS", "USED", "LEFT"]
    assert [line.split()[1:] for line in rows] == [["-", "-", "16", "0", "16"], ["-", "h100", "8", "0", "8"]]
    assert len(cluster("quotas", "seren", "--model", "h100").stdout.splitlines()) == 2


def test_speeds_of_gpu_models_are_set_listed_and_removed(cluster):
    models = Node.objects.order_by("pk")
    Node.objects.filter(pk=models[0].pk).update(gpu_model="h100")
    assert cluster("gpu-speeds", "seren", "llama-*", "h100", "2.2").stdout == "llama-* on h100: 2.2.\n"
    assert cluster("gpu-speeds", "seren", "llama-*", "h100", "3").stdout == "llama-* on h100: 3.\n"

    header, row = cluster("gpu-speeds", "seren").stdout.splitlines()
    assert (header.split(), row.split()) == (["JOB", "NAME", "GPU", "MODEL", "SPEED"], ["llama-*", "h100", "3"])
    assert cluster("gpu-speeds", "seren", "llama-*", "h100", "--remove").stdout == "llama-* on h100: removed.\n"
    assert not Cluster.objects.get().gpu_speeds.exists()


@pytest.mark.parametrize(
    "words",
    [("a", "h100", "2", "--remove"), ("a", "--remove"), ("a", "h100", "--remove")],
    ids=["both", "no model", "nothing to remove"],
)
def test_wrong_use_of_speeds_is_refused(cluster, words):
    assert cluster("gpu-speeds", "seren", *words).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--kw", "9", "--remove"),
        ("--rack", "a", "--leaf", "b"),
        ("--pod", "p", "--remove"),
        ("--caps", "observe"),
        ("--thresholds", "many"),
        ("--kw", "40", "--thresholds", "80,89"),
        ("--kw", "40", "--thresholds", "89,80,100"),
        ("--kw", "40", "--thresholds", "80,89,101"),
        ("--kw", "nan"),
        ("--kw", "much"),
    ],
    ids=["both", "places", "nothing", "only caps", "no numbers", "two", "descending", "too high", "nan", "text"],
)
def test_wrong_use_of_power_budgets_is_refused(cluster, words):
    assert cluster("power-budget", "seren", *words).exit_code == 2
    assert not Cluster.objects.get().power_budgets.exists()


@pytest.mark.parametrize("words", [("gpu-speeds", "seren", "a", "a100", "inf"), ("set", "seren", "--co2", "-inf")])
def test_number_that_json_does_not_have_is_refused(cluster, words):
    result = cluster(*words)

    assert result.exit_code == 2 and "inf is not a number" in result.stderr


def test_power_budget_below_idle_nodes_is_refused(cluster):
    with pytest.raises(Refused, match=r"limit_kw: 1\.0 kW is not above the"):
        cluster("power-budget", "seren", "--kw", "1")
