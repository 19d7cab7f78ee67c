"""The search: objects are found by their known names, and only if the user may see them."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from acmeweb.pages.search_destinations import ACTIONS, SEARCHABLE_PAGES
from failures.models import Incident
from jobs.models import Cluster, Node, TeamRole, clock
from tests import make
from tests.jobs.api import api_make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def people():
    make.team("pretraining", ada=TeamRole.RESEARCHER, adele=TeamRole.VIEWER)
    make.team("speech", ben=TeamRole.RESEARCHER)
    make.cluster()


def asked(text, name="ada", **headers):
    return make.browser(name).get("/search/", {"q": text}, headers=headers)


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
    assert [one for one in found("ad") if one[0] == "user"] == [("user", "ada"), ("user", "adele")]
    assert "user" not in {kind for kind, _ in found("ben")}
    make.user("root", is_superuser=True)
    assert ("user", "ben") in found("ben", "root")


def test_teams_and_clusters_are_found_within_rights():
    assert ("team", "pretraining") in found("pretrain")
    assert found("speech") == []
    assert ("cluster", "seren") in found("seren")


def test_several_words_are_all_parts_of_the_name_in_any_order():
    make.job(by="ada", name="llama-7b-sft")

    assert ("job", "llama-7b-sft") in found("sft llama")
    assert ("job", "llama-7b-sft") not in found("sft qwen")


def test_the_name_of_a_kind_may_be_one_of_the_words():
    job = make.job(by="ada", name="llama-7b-sft")

    assert ("job", "llama-7b-sft") in found(f"job {job.public_id}")
    assert ("node", "seren-003") in found("node 003")
    assert ("team", "pretraining") in found("team pre")
    assert ("cluster", "seren") in found("clusters ser")


def incident(**fields):
    now = clock.now()
    row = Incident.objects.create(
        cluster=Cluster.objects.get(),
        root_cause="TypeError",
        category="program",
        scope="job",
        first_symptom_at=now,
        last_symptom_at=now,
        **fields,
    )
    return f"Incident {row.pk}: TypeError", row.pk


def test_an_incident_is_found_by_its_number():
    make.user("root", is_superuser=True)
    title, number = incident(subject="0vspk5")
    for other in range(8):
        incident(subject=f"node-{number}-{other}")  # newer, and the number is part of its subject

    for text in (str(number), f"#{number}", f"incident {number}", f"Incident #{number}"):
        assert next(name for kind, name in found(text, "root") if kind == "incident") == title
    assert "incident" not in {kind for kind, _ in found(f"incident {number}")}  # ada's jobs are not affected


def test_the_newest_incidents_are_listed_for_the_word_alone():
    make.user("root", is_superuser=True)
    titles = [incident(subject="0vspk5")[0] for _ in range(8)]

    assert [name for kind, name in found("incident", "root") if kind == "incident"] == titles[:1:-1]


@pytest.mark.parametrize(
    ("text", "title", "url"),
    [("ettr", "ETTR", "/glossary/#ettr"), ("lemon", "Lemon node", "/glossary/#lemon-node")],
)
def test_terms_lead_to_their_definition(text, title, url):
    assert ("term", title, url) in [(one.kind, one.title, one.url) for one in asked(text).context["results"]]


def test_a_campaign_is_found_by_its_name_id_and_suite_by_members_of_its_team():
    row = api_make.campaign(make.user("ada"), "/checkpoints/a")

    for text in (row.name, row.public_id[:-2], f"campaign {row.suite.name}"):
        assert ("campaign", row.name) in found(text)
        assert ("campaign", row.name) not in found(text, "eve")


def operate(name="ada"):
    make.user(name).user_permissions.add(Permission.objects.get(codename="operate_cluster"))


def test_pages_are_found_by_other_words_for_them():
    assert ("page", "Nodes") in found("sinfo")
    assert ("page", "Reports") in found("idle waste")
    assert ("setting", "Clusters") not in found("slurm")
    operate()
    assert ("setting", "Clusters") in found("slurm")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("submit", "Submit a job"),
        ("drain", "Drain a node"),
        ("what if", "Run a what-if replay"),
        ("token", "Create a token"),
        ("dark", "Toggle theme"),
        ("action", "Submit a job"),
    ],
)
def test_actions_are_found_by_their_words(text, title):
    operate()

    assert ("action", title) in found(text)


@pytest.mark.parametrize(
    ("text", "kind", "title", "url"),
    [
        ("policy seren", "setting", "Scheduling policy of seren", "/queue/seren/policy/"),
        ("overtaking", "setting", "Scheduling policy of seren", "/queue/seren/policy/"),
        ("seren token", "setting", "Connection of seren", "/settings/clusters/of/seren/"),
        ("maintenance seren", "action", "Schedule maintenance of seren", "/queue/seren/maintenance/"),
    ],
)
def test_operators_find_the_settings_of_a_cluster(text, kind, title, url):
    assert (kind, title) not in found(text)
    operate()

    results = asked(text).context["results"]

    assert (kind, title, url) in [(one.kind, one.title, one.url) for one in results]
    client = Client()
    client.force_login(make.user("ada"))
    assert client.get(url).status_code == 200


def test_a_title_that_begins_with_the_text_comes_first():
    make.job(by="ada", name="job-queue-test")

    assert found("job")[0] == ("page", "Jobs")
    assert found("queue")[0] == ("page", "Queue and policy")


def test_a_drain_is_offered_for_nodes_named_after_the_word():
    assert "action" not in {kind for kind, _ in found("drain seren-003")}
    operate()
    Node.objects.filter(name="seren-002").update(drain_requested=True)

    first = asked("drain seren-003").context["results"][0]

    assert (first.title, first.url) == ("Drain seren-003", "/nodes/seren/seren-003/#ask-drain")
    assert not [name for kind, name in found("drain seren-002") if kind == "action"]


def test_empty_search_lists_actions_pages_and_settings():
    assert {kind for kind, _ in found("")} == {"action", "page", "setting"}


def test_every_listed_page_exists():
    root = make.user("root", is_superuser=True)
    client = Client()
    client.force_login(root)

    results = client.get("/search/").context["results"]

    assert len(results) == len(SEARCHABLE_PAGES) + len(ACTIONS)
    assert all(client.get(one.url).status_code == 200 for one in results if not one.command)


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
