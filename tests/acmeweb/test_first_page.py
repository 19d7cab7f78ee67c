"""The home page: shared fragments are rendered once per change; campaign bars; plots of a cluster."""

from __future__ import annotations

import uuid

import pytest
from django.core.cache import cache
from django.core.cache.backends.locmem import LocMemCache
from django.db import connection
from django.template.loader import render_to_string
from django.test import Client
from django.test.utils import CaptureQueriesContext

from acmeweb.common import metrics_store
from acmeweb.pages.home_campaigns import running_campaigns
from acmeweb.updates import fragment_cache
from jobs.models import Job, Node, TeamRole, clock
from jobs.models.permissions import Caller
from jobs.queries.cluster_summary import cluster_summaries
from scheduling.models import CampaignState, Evaluation
from tests import make
from tests.jobs.api import api_make

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    return make.browser()


# --- once per change


def test_topic_numbers_show_whether_a_topic_changed():
    ours = [f"test-{uuid.uuid4().hex}" for _ in range(2)]  # other tests change the real topics
    before = fragment_cache.cache_key(*ours)
    metrics_store.valkey.ask([("INCR", f"acme:live:{ours[1]}")])

    assert (before, fragment_cache.cache_key(*ours), fragment_cache.cache_key(*ours)) == ("0 0", "0 1", "0 1")


def test_topic_numbers_are_zero_without_valkey(settings):
    settings.VALKEY_URL = ""

    assert fragment_cache.topic_sequences(["queue", "nodes"]) == {"queue": 0, "nodes": 0}


@pytest.fixture
def remembers(settings, monkeypatch):
    """Disable the template's five-second expiry, for slow machines."""
    monkeypatch.setattr(LocMemCache, "get_backend_timeout", lambda *_: None)
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    cache.clear()
    yield
    cache.clear()


def capacity(numbers):
    return render_to_string(
        "_capacity.html", {"shared_at": numbers, "clusters": lambda: cluster_summaries(clock.now())}
    )


def test_capacity_is_counted_once_until_a_topic_changes(remembers):
    make.cluster()
    assert "32 GPUs free" in capacity("7 3")
    Node.objects.filter(name="seren-001").update(state="DOWN")

    with CaptureQueriesContext(connection) as asked:
        assert "32 GPUs free" in capacity("7 3")
    assert len(asked) == 0

    assert "24 GPUs free, 0 GPUs drained, 8 GPUs down" in capacity("7 4")


def test_shared_fragment_names_no_user(remembers):
    make.running(make.job(name="secret-run", gpus_per_node=8))

    assert "8 GPUs allocated" in capacity("1 1")
    assert "secret-run" not in capacity("1 1") + render_to_string("_cluster_usage.html", {"shared_at": "1 1"})


# --- campaigns


def campaign(*checkpoints):
    api_make.cluster()
    return api_make.campaign(api_make.person(), *checkpoints)


def test_campaign_bar_shows_done_failed_and_remaining_results():
    row = campaign("/checkpoints/a", "/checkpoints/b")
    cells = list(Evaluation.objects.filter(campaign=row).order_by("pk"))
    Evaluation.objects.filter(pk=cells[0].pk).update(state=CampaignState.COMPLETED)

    (one,) = running_campaigns(Caller(user=row.user))

    assert [(part.name, part.results) for part in one.parts] == [("done", 1), ("left", len(cells) - 1)]
    assert sum(part.share for part in one.parts) == pytest.approx(100, abs=0.01)


def test_only_open_campaigns_of_the_users_teams_are_shown():
    row = campaign()

    assert running_campaigns(Caller(user=make.user("stranger"))) == []
    type(row).objects.filter(pk=row.pk).update(state=CampaignState.COMPLETED)
    assert running_campaigns(Caller(user=row.user)) == []


def test_the_first_page_links_to_the_campaign():
    row = campaign()
    client = Client()
    client.force_login(row.user)

    page = client.get("/").content.decode()

    assert f'href="/evaluations/{row.public_id}/"' in page


# --- the course


def test_plots_have_the_cluster_and_the_url_of_their_data(ada):
    make.cluster()

    page = ada.get("/").content.decode()

    assert 'data-cluster="seren"' in page and "cluster-usage.js" in page
    assert ada.get("/api/v1/clusters/seren/usage/").json()["step_s"] == 300


def test_plots_are_omitted_without_a_cluster(ada):
    assert 'id="usage"' not in ada.get("/").content.decode()


def test_jobs_of_a_list_are_loaded_with_the_columns_of_a_row():
    make.running(make.job(gpus_per_node=1))
    row = Job.objects.all().with_list_columns().get()

    with CaptureQueriesContext(connection) as asked:
        shown = (row.owner_name, row.team.name, row.cluster_id, row.badge, row.nodelist, row.why, row.exit_code)

    assert len(asked) == 0 and shown[0] == "ada"
