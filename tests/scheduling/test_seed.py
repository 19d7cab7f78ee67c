"""What a start writes down of the cluster that comes along."""

import pytest
from django.core.management import call_command

from jobs.models import Cluster

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("command", ["seed_demo", "seed_local"])
def test_how_it_is_reached_is_brought_up_to_date_at_each_start(command, settings):
    call_command(command, address="http://127.0.0.1:1", token_file="/old/token")

    call_command(command, address="http://127.0.0.1:2", token_file="/new/token")

    cluster = Cluster.objects.get()
    assert (cluster.address, cluster.token_file) == ("http://127.0.0.1:2", "/new/token")
    assert cluster.api_user == settings.OWN_CLUSTER_USER
