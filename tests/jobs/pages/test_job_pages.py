"""What users see and may do on pages. ada and ben are in different teams and cannot see each other's jobs."""

from datetime import timedelta
from html.parser import HTMLParser

import pytest
from asgiref.sync import async_to_sync
from django.urls import reverse

from jobs.actions import jobs as job_actions
from jobs.actions import nodes as node_actions
from jobs.actions import submit as submit_actions
from jobs.core.lifecycle import Flag, State
from jobs.models import Attempt, ClusterCommand, Event, Job, Loop, Node, Sample, TeamRole, clock
from jobs.models.event import MAX_STOP_TRIES
from tests import make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db
POD_TEMPLATE = {
    "allowed_images": ["nvcr.io/*"],
    "volumes": {name: {"claim": name, "mount_path": f"/{name}"} for name in ("data", "scratch")},
}


@pytest.fixture(autouse=True)
def people(request, db):
    make.team("pretraining", ada=TeamRole.RESEARCHER, grace=TeamRole.RESEARCHER)
    make.team("evaluation", ben=TeamRole.RESEARCHER)


def submitted(**asked):
    """A job that takes one whole node by default."""
    return make.job(**{"name": "train", "gpus_per_node": 8, **asked})


@pytest.fixture
def ada(client):
    client.force_login(make.user("ada"))
    return client


def operator(*permissions):
    make.team("pretraining", olga=TeamRole.OPERATOR)
    return make.browser("olga", *permissions)


@pytest.fixture
def ben():
    return make.browser("ben")


def text(response):
    return page_text(response)


def htmx(client, url, target):
    return client.get(url, headers={"HX-Request": "true", "HX-Target": f"section#{target}"})


class Roots(HTMLParser):
    """The top-level elements of a fragment."""

    VOID = {"input", "meta", "link", "br", "img", "rect", "path"}

    def __init__(self, html):
        super().__init__()
        self.depth, self.roots = 0, []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if not self.depth:
            self.roots.append((tag, dict(attrs).get("id")))
        self.depth += tag not in self.VOID

    def handle_endtag(self, tag):
        self.depth -= tag not in self.VOID


# --- who gets in


def test_anonymous_users_are_redirected_to_the_login(client):
    assert client.get("/jobs/").headers["Location"] == "/login/?next=/jobs/"


def test_the_login_page_signs_in(client):
    answer = client.post("/login/", {"username": "ada", "password": make.PASSWORD})

    assert answer.headers["Location"] == "/"


# --- pages and fragments


def fragments():
    job = submitted(by="ada")
    node = Node.objects.first()
    return [
        ("/", "exceptions"),
        ("/", "queue"),
        ("/jobs/", "jobs"),
        (f"/jobs/{job}/", "job"),
        (f"/jobs/{job}/?tab=events", "events"),
        (f"/jobs/{job}/log/", "log"),
        ("/nodes/", "nodes"),
        (f"/nodes/{node.cluster}/{node}/", "node"),
    ]


def test_each_fragment_is_one_element_with_its_id_and_the_page_includes_it(ada):
    for url, name in fragments():
        alone, page = text(htmx(ada, url, name)), text(ada.get(url))

        assert [found_id for _, found_id in Roots(alone).roots] == [name]
        assert f'id="{name}"' in page
        assert "<html" in page


def test_caches_keep_page_and_fragment_of_a_url_apart(ada):
    answer = ada.get("/")

    assert {"HX-Request", "HX-Target"} <= {name.strip() for name in answer.headers["Vary"].split(",")}


def test_a_fragment_runs_only_its_own_queries(ada, django_assert_num_queries):
    submitted(by="ada")

    # session, user, clock, rights; clusters; whether there are nodes, held and hanging jobs, unknown outcomes,
    # incidents, proposals of recovery and of sleep, caps of power
    with django_assert_num_queries(4 + 1 + 8):
        htmx(ada, "/", "exceptions")


# --- now


def test_a_healthy_system_shows_nothing_that_needs_attention(ada):
    make.cluster()

    assert "Nothing needs attention" in text(ada.get("/"))


def test_now_names_a_cluster_that_does_not_answer(ada):
    make.cluster(last_contact_at=clock.now() - timedelta(minutes=7), last_error="connection refused")

    assert "is not responding; its data is from" in text(ada.get("/"))
    assert "connection refused" in text(ada.get("/"))


def test_now_names_a_node_that_takes_no_work_and_why(ada):
    node_actions.drain(make.node(), author=make.LOOP, why="ECC errors", now=clock.now())

    assert "ECC errors" in text(ada.get("/"))


def test_now_names_a_job_whose_stop_hangs(ada, ben):
    job = make.running(submitted(by="ada", name="stuck-job")).job
    job_actions.cancel(job, author=make.author())
    assert "failed repeatedly" not in text(ada.get("/"))

    ClusterCommand.objects.filter(kind="cancel").update(tries=MAX_STOP_TRIES)

    assert "Cancelling failed repeatedly" in text(htmx(ada, "/", "exceptions"))
    assert "stuck-job" not in text(ben.get("/"))


def test_now_names_a_job_that_the_cluster_refused_to_its_team_only(ada, ben):
    attempt = make.attempt(submitted(by="ada", name="refused-job"))
    job_actions.record_submit_refusal(attempt, "Invalid account", now=clock.now(), author=make.LOOP)

    assert text(htmx(ada, "/", "exceptions")).count("Invalid account") == 1
    assert "refused-job" not in text(ben.get("/"))


def test_capacity_is_for_everyone_and_names_are_not(ada, ben):
    make.running(submitted(by="ada", name="secret-run"))

    page = text(ben.get("/"))

    assert "secret-run" not in page
    assert "8 GPUs allocated, 24 GPUs free" in page


def test_gpus_of_jobs_from_outside_are_in_use_too(ada):
    make.node(foreign_gpus=[0, 1])

    assert "2 GPUs allocated" in text(ada.get("/"))


def test_the_queue_shows_why_a_job_waits(ada):
    job = submitted(by="ada")
    job_actions.store_wait_reasons([job_actions.WaitReason(job.pk, "Resources", "Waits for a free node.")])

    page = text(ada.get("/"))

    assert "(Resources)" in page
    assert "Waits for a free node." in page


def test_the_number_of_queries_of_the_home_page_does_not_depend_on_the_jobs(ada, django_assert_num_queries):
    for number in range(6):
        submitted(by="ada", name=f"job-{number}")
    make.running(Job.objects.first())

    with django_assert_num_queries(30):
        ada.get("/")


# --- the list of jobs


def ids(response):
    return [row.public_id for row in response.context["rows"]]


def test_the_list_holds_the_jobs_of_ones_teams_only(ada, ben):
    mine, other = submitted(by="ada"), submitted(by="ben")

    assert ids(ada.get("/jobs/")) == [mine.public_id]
    assert ids(ben.get("/jobs/")) == [other.public_id]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=PENDING", True),
        ("state=waiting", True),
        ("state=running", False),
        ("state=nonsense", True),
        ("kind=debug", True),
        ("kind=sft", False),
        ("team=pretraining", True),
        ("user=ada", True),
        ("user=ben", False),
        ("cluster=seren", True),
        ("cluster=kalos", False),
        ("q=TRAIN", True),
        ("q=nothing", False),
        ("q=%00", True),
        ("mine=1", True),
        ("before=99999999999999999999999", True),
        ("before=1", False),
        ("before=%C2%B2", True),
    ],
)
def test_the_list_can_be_filtered(ada, query, found):
    job = submitted(by="ada", name="train-7b", kind="debug")

    assert ids(ada.get(f"/jobs/?{query}")) == ([job.public_id] if found else [])


def test_the_list_finds_the_beginning_of_an_id(ada):
    job = submitted(by="ada")

    assert ids(ada.get(f"/jobs/?q={job.public_id[:6].upper()}")) == [job.public_id]


def test_the_second_page_continues_where_the_first_ended(ada):
    array = submitted(by="ada", array="0-59").array_id

    first = ada.get("/jobs/?fold=0")
    second = ada.get("/jobs/?" + first.context["older"])

    assert len(ids(first)) == 50
    assert len(ids(second)) == 10
    assert {*ids(first), *ids(second)} == {f"{array}_{index}" for index in range(60)}
    assert not second.context["older"]


def test_the_job_list_takes_the_same_queries_for_any_length_and_never_counts(ada, django_assert_num_queries):
    submitted(by="ada", array="0-59")

    with django_assert_num_queries(9) as asked:  # session, user, clock; rights, rows, teams, clusters, saved views
        ada.get("/jobs/?fold=0")

    assert not [query for query in asked.captured_queries if "COUNT(" in query["sql"]]


# --- one job


def job_urls(job):
    return [reverse(name, args=[job.public_id]) for name in ("job", "log", "log-raw")]


def test_a_job_of_another_team_is_a_404(ben):
    job = submitted(by="ada")
    make.running(job)

    assert [ben.get(url).status_code for url in job_urls(job)] == [404, 404, 404]
    assert ben.post(f"/jobs/{job}/cancel/").status_code == 404
    assert ben.get(f"/jobs/new/?from={job}").status_code == 404
    assert Job.objects.get().state == State.RUNNING


def test_a_job_page_shows_why_the_job_waits_and_who_changed_it(ada):
    job = submitted(by="ada")
    job_actions.hold(job, author=make.author("ada"), why="wait for the tokenizer")

    page = text(ada.get(f"/jobs/{job}/"))

    assert "Why it waits" in page
    assert "Held by its owner: wait for the tokenizer" in page
    assert "job.held" in text(ada.get(f"/jobs/{job}/?tab=events"))


def test_a_job_page_shows_attempts_nodes_gpus_and_slurms_id(ada):
    job = submitted(by="ada", nodes=2, gpus_per_node=4)
    attempt = make.running(job)

    page = text(ada.get(f"/jobs/{job}/"))

    assert attempt.backend_id in page
    assert "seren-[001-002]" in page
    assert 'href="/nodes/seren/seren-001/"' in page
    assert ">0-3<" in page


def test_secrets_of_a_job_are_masked(ada):
    job = submitted(by="ada", environment={"HF_TOKEN": "hf_abc"}, command="WANDB_KEY=w_123 run")

    page = text(ada.get(f"/jobs/{job}/"))

    assert "hf_abc" not in page
    assert "w_123" not in page


def test_job_names_are_escaped(ada):
    job = submitted(by="ada", name="<script>alert(1)</script>", comment="<b>x</b>")

    for url in ("/", "/jobs/", f"/jobs/{job}/"):
        assert "<script>alert" not in text(ada.get(url))


def test_the_job_page_shows_the_container_image_and_the_mounts(ada):
    make.cluster(runs_images=True, pod_template=POD_TEMPLATE)
    job = submitted(by="ada", image="nvcr.io/nvidia/pytorch:24.01-py3", mounts=["data", "scratch"])

    page = text(ada.get(f"/jobs/{job}/"))
    assert "nvcr.io/nvidia/pytorch:24.01-py3" in page
    assert "data, scratch" in page


def test_mount_that_the_cluster_does_not_offer_is_named_at_its_field(ada):
    make.cluster(runs_images=True, pod_template=POD_TEMPLATE)

    page = ada.post("/jobs/new/", asked(image="nvcr.io/a", mounts="data, home"))

    assert page.context["form"].errors == {"mounts": ["seren has no mount home; it offers data, scratch"]}


def test_the_number_of_queries_of_a_job_page_does_not_depend_on_attempts(ada, django_assert_num_queries):
    job = submitted(by="ada", nodes=2, requeue_limit=9)
    for _ in range(3):
        make.ended(job, State.NODE_FAIL)

    with django_assert_num_queries(10):
        ada.get(f"/jobs/{job}/")


# --- its log


@pytest.fixture
def logged(tmp_path):
    make.cluster(log_root=str(tmp_path))
    job = submitted(by="ada")
    (tmp_path / "a.log").write_bytes(b"\x1b[32mstep 1\x1b[0m <b>\n")
    return make.running(job, log_path=str(tmp_path / "a.log"))


def test_the_log_is_shown_cleaned_and_escaped(ada, logged):
    assert "step 1 &lt;b&gt;" in text(ada.get(f"/jobs/{logged.job}/log/"))


def test_the_page_polls_a_log_only_while_it_grows(ada, logged):
    url = f"/jobs/{logged.job}/log/"

    assert "data-grows" in text(htmx(ada, url, "log"))

    job_actions.finish(
        logged, job_actions.AttemptEnd(state=State.COMPLETED, at=clock.now(), exit_code=0), author=make.LOOP
    )
    assert "data-grows" not in text(htmx(ada, url, "log"))


def test_the_page_polls_a_log_that_does_not_exist_yet(ada, tmp_path):
    make.cluster(log_root=str(tmp_path))
    one = make.running(submitted(by="ada"), log_path="later.log")

    assert "every 2s" in text(htmx(ada, f"/jobs/{one.job}/log/", "log"))


def test_missing_log_of_an_ended_attempt_is_not_expected_any_more(ada, tmp_path):
    make.cluster(log_root=str(tmp_path))
    one = make.running(submitted(by="ada"), log_path="deleted.log")
    Attempt.objects.filter(pk=one.pk).update(ended_at=clock.now(), state=State.FAILED)

    assert "does not exist. The job wrote none, or it has been deleted." in text(ada.get(f"/jobs/{one.job}/log/"))


def test_a_job_without_an_attempt_has_no_log_yet(ada):
    job = submitted(by="ada")

    assert "The job has not started yet." in text(ada.get(f"/jobs/{job}/log/"))
    assert ada.get(f"/jobs/{job}/log/raw/").status_code == 404


@pytest.mark.parametrize("number", ["2", "x", "99999999"])
def test_an_unknown_attempt_is_a_404(ada, logged, number):
    assert ada.get(f"/jobs/{logged.job}/log/?attempt={number}").status_code == 404


async def whole(chunks):
    return b"".join([chunk async for chunk in chunks])


def test_the_raw_log_is_a_download_that_no_browser_renders(ada, logged):
    answer = ada.get(f"/jobs/{logged.job}/log/raw/")

    assert async_to_sync(whole)(answer.streaming_content) == b"\x1b[32mstep 1\x1b[0m <b>\n"
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


# --- verbs


def test_the_owner_holds_releases_and_cancels_with_a_reason(ada):
    job = submitted(by="ada")

    for verb in ("hold", "release", "cancel"):
        assert ada.post(f"/jobs/{job}/{verb}/", {"why": "because"}).headers["Location"] == f"/jobs/{job}/"

    job.refresh_from_db()
    assert job.state == State.CANCELLED
    assert [e.why for e in Event.objects.filter(job=job).order_by("id")] == ["", "because", "because", "because"]
    assert Event.objects.filter(job=job, user__username="ada").count() == 4


def test_cancelling_a_running_job_requests_its_stop(ada):
    job = submitted(by="ada")
    make.running(job)

    ada.post(f"/jobs/{job}/requeue/")

    job.refresh_from_db()
    assert Flag.SIGNALING in job.flags


def test_a_change_requests_a_scheduling_turn(ada, django_capture_on_commit_callbacks):
    job = submitted(by="ada")

    with django_capture_on_commit_callbacks(execute=True):
        ada.post(f"/jobs/{job}/cancel/")

    assert Loop.objects.get().name == "turn"


def test_an_action_on_a_finished_job_changes_nothing_and_reports_a_conflict(ada):
    job = submitted(by="ada")
    make.ended(job)

    page = text(ada.post(f"/jobs/{job}/cancel/", follow=True))

    assert "Conflict, nothing was changed" in page
    assert "is COMPLETED" in page


def test_only_the_owner_or_an_operator_may_change_a_job(ada):
    job = submitted(by="grace")

    page = text(ada.post(f"/jobs/{job}/cancel/", follow=True))

    assert "Not allowed" in page
    assert "ask-cancel" not in page
    job.refresh_from_db()
    assert job.state == State.PENDING


@pytest.mark.parametrize(
    ("asked", "said", "becomes"),
    [("-7", "Change priority: done.", -7), ("7", "Not allowed: Only operators", 0), ("high", "priority: is text", 0)],
)
def test_the_page_changes_a_priority_as_far_as_the_role_goes(ada, asked, said, becomes):
    job = submitted(by="ada")

    page = text(ada.post(f"/jobs/{job}/priority/", {"priority": asked}, follow=True))

    job.refresh_from_db()
    assert said in page
    assert job.priority == becomes


def test_the_owner_cannot_release_an_operators_hold(ada):
    job = submitted(by="ada")
    operator().post(f"/jobs/{job}/hold/", {"why": "floods the file system"})

    page = text(ada.post(f"/jobs/{job}/release/", follow=True))

    assert "only an operator can release it" in page
    operator().post(f"/jobs/{job}/release/")
    job.refresh_from_db()
    assert not job.hold


def test_a_verb_needs_a_post_and_must_exist(ada):
    job = submitted(by="ada")

    assert ada.get(f"/jobs/{job}/cancel/").status_code == 405
    assert ada.post(f"/jobs/{job}/explode/").status_code == 404


def test_a_job_page_offers_the_actions_for_its_state(ada):
    job = submitted(by="ada")
    waiting = text(ada.get(f"/jobs/{job}/"))
    make.running(job)
    running = text(ada.get(f"/jobs/{job}/"))

    assert "ask-hold" in waiting
    assert "ask-requeue" not in waiting
    assert "ask-requeue" in running
    assert "ask-hold" not in running


# --- submit


def asked(**fields):
    team, cluster = make.team(), make.cluster()
    return {"team": team.pk, "cluster": cluster.pk, "command": "train", "kind": "sft", "nodes": "1", **fields}


def test_submitting_leads_to_the_page_of_the_job(ada):
    request = asked(gpus_per_node="8", time_limit="2-00:00:00", environment="A=1\r\nB=x=y\r\n", preemptible="on")

    answer = ada.post("/jobs/new/", request)

    job = Job.objects.get()
    assert answer.headers["Location"] == f"/jobs/{job}/"
    assert (job.user.username, job.team.name, job.kind, job.gpus) == ("ada", "pretraining", "sft", 8)
    assert job.time_limit == timedelta(days=2)
    assert job.environment == {"A": "1", "B": "x=y"}
    assert job.preemptible


def test_the_command_reaches_the_shell_with_unix_line_ends(ada):
    ada.post("/jobs/new/", asked(command="#!/bin/bash\r\ntrain\r\n"))

    assert Job.objects.get().command == "#!/bin/bash\ntrain\n"


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("gpus_per_node", "12", "12 is more than the 8 GPUs of a node"),
        ("nodes", "many", "is text, not a whole number"),
        ("nodes", "9", "9 is more than the 4 matching nodes of seren"),
        ("time_limit", "soon", "is not a duration such as"),
        ("command", "", "is empty"),
        ("environment", "nonsense", "is not of the form NAME=value"),
        ("environment", "1A=x", "is not a valid variable name"),
        ("environment", "A=1\nA=2", "is given twice"),
        ("dependencies", "afterok:01k3v9q2m7t", "the team has no job"),
        ("image", "nvcr.io/nvidia/pytorch", "seren cannot run container images"),
        ("begin_at", "tomorrow", "is not an ISO 8601 time"),
        ("array", "9-1", "counts down; write 1-9"),
        ("cluster", "999", "Select a valid choice"),
    ],
)
def test_submit_errors_are_shown_at_their_fields(ada, field, value, sentence):
    answer = ada.post("/jobs/new/", asked(**{field: value}))

    assert answer.status_code == 422
    assert sentence in " ".join(answer.context["form"].errors[field])
    assert not Job.objects.exists()


def test_the_form_marks_all_invalid_fields_at_once(ada):
    wrong = {"nodes": "0", "time_limit": "soon", "environment": "no sign", "labels": "no sign"}

    form = ada.post("/jobs/new/", asked(**wrong)).context["form"]

    assert set(form.errors) == set(wrong)
    assert Job.objects.count() == 0


def test_users_submit_only_for_teams_where_they_are_researchers(ada):
    make.team("evaluation", ada=TeamRole.VIEWER)

    answer = ada.post("/jobs/new/", asked(team=make.team("evaluation").pk))

    assert answer.status_code == 422
    assert "team" in answer.context["form"].errors


def test_the_submit_page_tells_users_without_a_team_what_they_need(client):
    client.force_login(make.user("carl"))

    assert "You need the role researcher in a team" in text(client.get("/jobs/new/"))


def test_edit_and_resubmit_submits_the_same_job_again(ada):
    make.cluster(runs_images=True, pod_template=POD_TEMPLATE)
    job = submitted(
        by="ada",
        image="nvcr.io/nvidia/pytorch:24.01-py3",
        mounts="data,scratch",
        nodes=2,
        cpus_per_node=64,
        memory_per_node="512G",
        time_limit="1-06:30:00",
        environment={"HF_TOKEN": "hf_abc"},
        labels={"run": "a"},
        checkpoint_interval="30:00",
        wckey="climate",
    )

    assert '<dt>Workload key</dt><dd class="mono">climate</dd>' in ada.get(f"/jobs/{job}/").content.decode()
    form = ada.get(f"/jobs/new/?from={job}").context["form"]
    ada.post("/jobs/new/", {name: value for name, value in form.initial.items() if value not in ("", False)})

    again, job = Job.objects.exclude(pk=job.pk).get(), Job.objects.get(pk=job.pk)
    for field in submit_actions.COPIED_SPEC_FIELDS:
        assert getattr(again, field) == getattr(job, field)


def test_only_the_owner_gets_secrets_back_into_the_form(ada):
    job = submitted(by="grace", environment={"HF_TOKEN": "hf_abc", "A": "1"}, command="KEY=secret-in-command run")

    page = text(ada.get(f"/jobs/new/?from={job}"))

    assert "hf_abc" not in page
    assert "secret-in-command" not in page
    assert "A=1" in page
    assert "Secret values were left out" in page


# --- nodes


def test_a_node_page_names_the_holder_to_its_team_only(ada, ben):
    make.running(submitted(by="ada", name="secret-run", gpus_per_node=4))

    assert text(ada.get("/nodes/seren/seren-001/")).count("secret-run</a>") == 4
    assert "secret-run" not in text(ben.get("/nodes/seren/seren-001/"))
    assert text(ben.get("/nodes/seren/seren-001/")).count("job of another team</span>") == 4


def test_a_node_page_shows_its_last_telemetry(ada):
    Sample.objects.create(node=make.node(), at=clock.now(), gpu_util=[97.0], gpu_temperature_c=[61], xid=[79])

    page = text(ada.get("/nodes/seren/seren-001/"))

    assert "97%" in page
    assert "61 °C" in page
    assert "Xid 79" in page


def test_the_node_page_shows_the_consequences_of_a_drain(db):
    make.running(submitted(by="ada", name="long-run"))
    make.running(submitted(by="ben", gpus_per_node=0), on=["seren-001"])

    page = text(operator("operate_cluster").get("/nodes/seren/seren-001/"))

    assert "2 running jobs. Requeueing them now loses 0.7 GPU-hours" in page
    assert "1 job of other teams" in page


def test_an_operator_drains_with_a_reason_and_resumes(db):
    client = operator("operate_cluster")
    node = make.node()

    client.post("/nodes/seren/seren-001/drain/", {"why": "swap the board"})
    node.refresh_from_db()
    assert (node.is_drained, node.reason, node.reason_by) == (True, "swap the board", "olga")

    client.post("/nodes/seren/seren-001/resume/")
    node.refresh_from_db()
    assert not node.is_drained


def test_a_drain_without_a_reason_is_refused(db):
    make.node()

    page = text(operator("operate_cluster").post("/nodes/seren/seren-001/drain/", {"why": " "}, follow=True))

    assert "a reason is required" in page


def test_draining_a_node_needs_the_operator_permission(ada):
    make.node()

    assert ada.post("/nodes/seren/seren-001/drain/", {"why": "x"}).status_code == 403
    assert "ask-drain" not in text(ada.get("/nodes/seren/seren-001/"))


def test_an_unknown_node_is_a_404(ada):
    make.cluster()

    assert ada.get("/nodes/seren/nothing/").status_code == 404


def test_a_node_name_with_a_nul_byte_is_a_404(ada):
    assert ada.get("/nodes/%00/x/").status_code == 404
