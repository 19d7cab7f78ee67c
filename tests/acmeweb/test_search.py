"""The search: objects are found by their known names, and only if the user may see them."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from acmeweb.pages.search import SEARCHABLE_PAGES
from jobs.models import TeamRole
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def people():
    make.team("pretraining", ada=TeamRole.RESEARCHER, adele=TeamRole.VIEWER)
    make.team("speech", ben=TeamRole.RESEARCHER)
    make.cluster()


def asked(text, name="ada", **headers):
    client = Client()
    client.force_login(make.user(name))
    return client.get("/search/", {"q": text}, headers=headers)


def found(text, name="ada"):
    return [(one.kind, one.title) for one in asked(text, name).context["results"]]


def test_a_job_is_found_by_its_id_its_begin_and_a_part_of_its_name():
    job = make.job(by="ada", name="llama-7b-sft")

    for text in (job.public_id, job.public_id[:-2], job.public_id.upper(), "7B-S"):
        assert ("job", "llama-7b-sft") in found(text)


def test_jobs_of_other_teams_are_not_found():
    job = make.job(by="ben", name="secret-voice")

    assert found("secret") == found(job.public_id) == []
    assert ("job", "secret-voice") in found("secret", "ben")


def test_a_node_leads_to_its_page():
    only = asked("seren-003").context["results"]

    assert [(one.kind, one.url) for one in only] == [("node", "/nodes/seren/seren-003/")]


def test_users_are_found_by_members_of_their_teams():
    assert found("ad") == [("user", "ada"), ("user", "adele")]
    assert "user" not in {kind for kind, _ in found("ben")}
    make.user("root", is_superuser=True)
    assert ("user", "ben") in found("ben", "root")


def test_teams_and_clusters_are_found_within_rights():
    assert ("team", "pretraining") in found("pretrain")
    assert found("speech") == []
    assert ("cluster", "seren") in found("seren")


def test_pages_are_found_by_other_words_for_them():
    assert ("page", "Nodes") in found("sinfo")
    assert ("page", "Reports") in found("idle waste")
    assert ("page", "Clusters") not in found("slurm")
    make.user("ada").user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    assert ("page", "Clusters") in found("slurm")


def test_empty_search_lists_the_pages():
    assert {kind for kind, _ in found("")} == {"page"}


def test_every_listed_page_exists():
    root = make.user("root", is_superuser=True)
    client = Client()
    client.force_login(root)

    urls = [one.url for one in client.get("/search/").context["results"]]

    assert len(urls) == len(SEARCHABLE_PAGES)
    assert all(client.get(url).status_code == 200 for url in urls)


@pytest.mark.parametrize("text", ["\x00", "%", "_", "'; drop table", "<script>x</script>", "9" * 40, "#" * 500])
def test_unusual_input_finds_nothing(text):
    answer = asked(text)

    assert answer.status_code == 200
    assert "<script>x" not in answer.content.decode()


def test_a_percent_sign_is_no_wildcard():
    make.job(by="ada", name="plain")

    assert [kind for kind, _ in found("%")] == []


def test_htmx_gets_only_the_list():
    answer = asked("seren", **{"HX-Request": "true", "HX-Target": "ul#found"}).content.decode()

    assert answer.startswith("<ul") and "<html" not in answer


def test_anonymous_users_are_sent_to_the_login(client):
    assert client.get("/search/", {"q": "a"}).status_code == 302


def test_the_number_of_queries_does_not_grow_with_what_is_found():
    make.job(by="ada", name="train")
    with CaptureQueriesContext(connection) as few:
        asked("train")
    for _ in range(8):
        make.job(by="ada", name="train")

    with CaptureQueriesContext(connection) as many:
        asked("train")

    assert len(many) <= len(few) < 32
