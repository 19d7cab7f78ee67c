"""The row of the bundled cluster after a start."""

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Cluster

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("command", ["seed_demo", "seed_local"])
def test_connection_of_the_bundled_cluster_is_updated_at_each_start(command, settings):
    call_command(command, address="http://127.0.0.1:1", token_file="/old/token")

    call_command(command, address="http://127.0.0.1:2", token_file="/new/token")

    cluster = Cluster.objects.get()
    assert (cluster.address, cluster.token_file) == ("http://127.0.0.1:2", "/new/token")
    assert cluster.api_user == settings.OWN_CLUSTER_USER


@pytest.mark.parametrize("command", ["seed_demo", "seed_local"])
def test_bundled_cluster_keeps_a_changed_mode(command):
    call_command(command, address="http://127.0.0.1:1", token_file="/old/token")
    assert Cluster.objects.values_list("mode", "is_bundled").get() == ("drive", True)

    Cluster.objects.update(mode="observe", is_bundled=False)
    call_command(command, address="http://127.0.0.1:1", token_file="/old/token")

    assert Cluster.objects.values_list("mode", "is_bundled").get() == ("observe", True)  # as an upgrade finds it


@pytest.mark.parametrize(("first", "second"), [("seed_demo", "seed_local"), ("seed_local", "seed_demo")])
def test_installation_keeps_its_bundled_cluster(first, second):
    call_command(first, address="http://127.0.0.1:1", token_file="/token")

    with pytest.raises(CommandError, match="Use another directory: ACME_VAR=DIRECTORY make up"):
        call_command(second, address="http://127.0.0.1:1", token_file="/token")

    assert Cluster.objects.count() == 1


def test_demo_has_a_second_cluster_if_its_kubeconfig_is_known():
    call_command("seed_demo", address="http://127.0.0.1:1", token_file="/token", kubeconfig="/old/kubeconfig")
    call_command("seed_demo", address="http://127.0.0.1:1", token_file="/token", kubeconfig="/var/kubeconfig")

    addresses = dict(Cluster.objects.filter(is_bundled=True).values_list("name", "address"))
    assert addresses == {"seren": "http://127.0.0.1:1", "kalos": "kubernetes:///var/kubeconfig"}


def test_demo_runs_the_chosen_clusters_only(settings):
    settings.DEMO_CLUSTERS = ("kalos",)

    call_command("seed_demo", kubeconfig="/var/kubeconfig")

    assert Cluster.objects.get().name == "kalos"
