"""The words of the first page, and tags that all pages use, without a browser and without a database."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.template import Context, Template

from acmeweb.pages.attention import cluster_problem, incident_summary
from acmeweb.pages.home_trainings import HomeTraining
from failures.models import Incident
from failures.recovery.pages import mode_badge
from jobs.core.lifecycle import StatusBadge
from jobs.models import Cluster, Job, LatestProgress, ProgressSource
from scheduling.ledger.reads.facts import JobEfficiency

NOON, HOUR = datetime(2026, 5, 1, 12, tzinfo=UTC), timedelta(hours=1)


def rendered(source, **context):
    return Template("{% load acme %}" + source).render(Context({"now": NOON} | context))


def training(latest=None, **fields):
    job = Job(started_at=NOON)
    return HomeTraining(
        **{"job": job, "latest_progress": latest, "line": "", "saved_at": None, "efficiency": None} | fields
    )


def of_log(**fields):
    return LatestProgress(source=ProgressSource.LOG, **fields)


def test_checkpoint_from_the_log_is_marked_as_unverified():
    note = training(of_log(saved_at=NOON, saved_step=40, saved_path="/ckpt")).checkpoint_note

    assert (note.text, note.title) == ("log", "Checkpoint at step 40 in /ckpt, from the log (unverified)")


def test_training_that_never_saved_says_so():
    assert training().checkpoint_note.text == "never"
    assert training(saved_at=NOON).checkpoint_note is None
    assert training(job=Job(started_at=None)).checkpoint_note is None


def test_progress_from_the_log_names_its_source():
    assert training(of_log()).progress_note.text == "log"
    assert training().progress_note.text == "never"
    assert training(LatestProgress(source=ProgressSource.REPORTS)).progress_note is None


def test_efficiency_is_a_percentage_or_missing():
    efficient = training(efficiency=JobEfficiency(goodput=0.912, ettr=0.874))

    assert (efficient.goodput_percent, efficient.ettr_percent) == ("91%", "87%")
    assert (training().goodput_percent, training().ettr_percent) == ("", "")


@pytest.mark.parametrize(("step", "total", "percent"), [(250, 1000, 25), (1200, 1000, 100), (5, None, None)])
def test_progress_is_a_percentage_of_the_steps(step, total, percent):
    assert training(of_log(step=step, steps_total=total)).progress_percent == percent


def test_failing_cluster_and_silent_cluster_differ():
    now = NOON + timedelta(minutes=5)
    failing = cluster_problem(Cluster(name="a", last_contact_at=now, error_since=NOON, last_error="x"), now)
    silent = cluster_problem(Cluster(name="b", last_contact_at=NOON), now)
    new = cluster_problem(Cluster(name="c"), now)

    assert (failing.badge.label, failing.text, failing.since) == (
        "FAILING",
        "responds, but scheduling has failed since",
        NOON,
    )
    assert (silent.badge.label, silent.since) == ("STALE", NOON)
    assert (new.text, new.since) == ("has never responded", None)


def test_incident_summary_counts_failed_attempts():
    node = Incident(scope="node", subject="seren-001", attempts=2, root_cause="XidError")

    assert incident_summary(node) == "seren-001: 2 failed attempts"
    assert incident_summary(Incident(scope="job", attempts=0, root_cause="XidError")) == (
        "XidError, no failed attempts yet"
    )


def test_recovery_mode_that_only_observes_is_quiet():
    assert [mode_badge(mode).tone for mode in ("act", "propose", "observe")] == ["running", "warn", "quiet"]


def test_status_badge_shows_its_label_or_a_time():
    named = rendered("{% status_badge look %}", look=StatusBadge(tone="good", icon="✓", label="on"))
    timed = rendered(
        "{% status_badge look %}", look=StatusBadge(tone="bad", icon="⚡", since=NOON - timedelta(hours=1))
    )
    titled = rendered("{% status_badge look %}", look=StatusBadge(tone="bad", icon="✗", label="bad", title="<loss>"))

    assert named == '<span class="badge good"><span class="icon" aria-hidden="true">✓</span>on</span>'
    assert ">1h ago</time></span>" in timed
    assert 'class="badge bad" title="&lt;loss&gt;"' in titled


def test_navigation_marks_the_section_of_the_current_page():
    request = SimpleNamespace(resolver_match=SimpleNamespace(url_name="incident"))
    links = "{% nav_link 'failures' 'Failures' %}{% nav_link 'jobs' 'Jobs' %}"

    assert rendered(links, request=request) == (
        '<a href="/failures/" aria-current="page">Failures</a><a href="/jobs/">Jobs</a>'
    )


def test_author_and_time_are_shown_as_far_as_known():
    tag = "{% author_and_time author moment now %}"

    assert rendered(tag, author="ada", moment=None) == "by ada"
    assert rendered(tag, author="", moment=None) == ""
    assert rendered(tag, author="ada", moment=NOON).startswith("by ada, <time")


def test_relative_times_carry_the_moment_for_the_browser():
    past, future = NOON - timedelta(minutes=5), NOON + timedelta(hours=3)

    assert rendered("{{ at|ago:now }}", at=past).endswith(">5m ago</time>")
    assert f'data-ago="{int(past.timestamp())}"' in rendered("{{ at|ago:now }}", at=past)
    assert rendered("{{ at|since:now }}", at=past).endswith(">5m</time>")
    assert rendered("{{ at|time_until:now }}", at=future).endswith(">3h</time>")


def test_start_estimate_that_has_passed_reads_now():
    shown = [rendered("{{ at|expected:now }}", at=at) for at in (NOON + timedelta(minutes=5), NOON, NOON - HOUR)]

    assert [text.rpartition("</time>")[0].rpartition(">")[2] for text in shown] == ["in 5m", "now", "now"]
