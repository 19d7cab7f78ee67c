"""Import of the jobs that ran before Acme."""

import io
import math
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from acmeweb.common.errors import InvalidInput
from jobs.models import Cluster, clock
from jobs.traces.trace import trace_from_columns
from scheduling.actions.history_import import import_history
from scheduling.models import LearnedRunTime, RunTimeModel
from scheduling.queries import history
from tests import make

HOUR = 3600


def past_trace(now, *jobs):
    """Jobs as (hours since the start, hours of run time, GPUs, user, team)."""
    first = now - timedelta(hours=max(job[0] for job in jobs))
    since, ran, gpus, users, pools = zip(*sorted(jobs, reverse=True), strict=True)
    submit_s = [first.timestamp() + (since[0] - one) * HOUR for one in since]
    words = {"users": users, "pools": pools, "names": ["train"] * len(jobs)}
    return trace_from_columns("sacct", submit_s=submit_s, runtime_s=[one * HOUR for one in ran], gpus=gpus, **words)


@pytest.fixture
def new_cluster(db):
    make.team(ada="researcher")
    return make.cluster()


def test_imported_jobs_give_predictions_and_usage(new_cluster):
    now = new_cluster.created_at
    trace = past_trace(now, (200, 8, 4, "ada", "pretraining"), (100, 4, 4, "ada", "pretraining"))

    imported = import_history(new_cluster, trace, now)

    assert (imported.jobs, imported.unknown_users, imported.unknown_teams) == (2, 0, 0)
    assert {row.mean_s for row in LearnedRunTime.objects.all()} == {6 * HOUR}
    rate = math.log(2) / 168
    used = sum(4 / rate * (math.exp(-rate * end) - math.exp(-rate * start)) for start, end in ((200, 192), (100, 96)))
    assert history.account_usage(new_cluster, now) == {"pretraining": pytest.approx(used * HOUR, rel=1e-5)}


def test_second_import_of_the_same_file_adds_nothing(new_cluster):
    now = new_cluster.created_at
    trace = past_trace(now, (200, 8, 4, "ada", "pretraining"))
    import_history(new_cluster, trace, now)

    assert import_history(new_cluster, trace, now).jobs == 0
    assert RunTimeModel.objects.get().jobs == 1


def test_jobs_that_acme_has_recorded_itself_are_skipped(new_cluster):
    now = clock.now()
    Cluster.objects.update(created_at=now - timedelta(hours=50))
    new_cluster.refresh_from_db()
    trace = past_trace(now, (200, 8, 4, "ada", "pretraining"), (20, 8, 4, "ada", "pretraining"))

    assert import_history(new_cluster, trace, now).skipped == 1


def test_jobs_of_unknown_users_and_teams_count_for_all_users_and_no_team(new_cluster):
    now = new_cluster.created_at
    imported = import_history(new_cluster, past_trace(now, (200, 8, 4, "zoe", "elsewhere")), now)

    assert (imported.unknown_users, imported.unknown_teams) == (1, 1)
    assert LearnedRunTime.objects.get(scope="[]").mean_s == 8 * HOUR
    assert history.account_usage(new_cluster, now) == {}


def test_trace_without_dates_is_refused(new_cluster):
    trace = trace_from_columns("x", submit_s=[0.0], runtime_s=[1.0], gpus=[1])

    with pytest.raises(InvalidInput, match="has no dates"):
        import_history(new_cluster, trace, clock.now())


def test_command_names_the_cluster_that_does_not_exist(db, tmp_path):
    with pytest.raises(CommandError, match="cluster: mars is not a cluster"):
        call_command("import_history", str(tmp_path / "x.csv"), "--cluster", "mars", stdout=io.StringIO())
