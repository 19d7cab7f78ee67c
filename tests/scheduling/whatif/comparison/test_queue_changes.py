"""Two plans of the same queue, compared."""

from datetime import UTC, datetime, timedelta

from scheduling.whatif.comparison.queue_changes import QueuePlan, compare_plans

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def later(**minutes):
    """Likely starts by job: `j1=5` is five minutes after noon."""
    return {int(name[1:]): NOON + timedelta(minutes=part) for name, part in minutes.items()}


def test_places_count_from_one_and_each_job_is_up_down_or_the_same():
    queue = compare_plans(QueuePlan(line=[1, 2, 3, 4], starts=1), QueuePlan(line=[3, 1, 2, 4], starts=2), NOON)

    assert [(job.job_id, job.place_before, job.place_after) for job in queue.jobs] == [
        (3, 3, 1),
        (1, 1, 2),
        (2, 2, 3),
        (4, 4, 4),
    ]
    assert (queue.up, queue.down, queue.same_place) == (1, 2, 1)
    assert [job.job_id for job in queue.changed] == [3, 1, 2]
    assert (queue.starts_before, queue.starts_after) == (1, 2)


def test_start_that_moves_less_than_a_minute_is_the_same():
    before = QueuePlan(line=[1, 2, 3], starts=0, likely=later(j1=10, j2=10, j3=10))
    after = QueuePlan(line=[1, 2, 3], starts=0, likely=later(j1=10.9, j2=9, j3=11))

    queue = compare_plans(before, after, NOON)

    assert [job.start_trend for job in queue.jobs] == ["same", "earlier", "later"]
    assert [job.job_id for job in queue.changed] == [2, 3]
    assert dict(queue.start_trends) == {"same": 1, "earlier": 1, "later": 1}


def test_median_waits_are_of_the_jobs_with_both_estimates():
    before = QueuePlan(line=[1, 2, 3], starts=0, likely=later(j1=10, j2=30))
    after = QueuePlan(line=[1, 2, 3], starts=0, likely=later(j1=20, j2=30, j3=500))

    queue = compare_plans(before, after, NOON)

    assert (queue.median_wait_before, queue.median_wait_after) == (timedelta(minutes=20), timedelta(minutes=25))
    assert queue.jobs[2].start_trend == ""


def test_without_estimates_only_places_are_compared():
    queue = compare_plans(QueuePlan(line=[1, 2], starts=0), QueuePlan(line=[2, 1], starts=0, likely=later(j1=1)), NOON)

    assert not queue.has_estimates and queue.median_wait_before is None
    assert dict(queue.start_trends) == {}
    assert queue.up == 1


def test_empty_queue_has_no_changes():
    queue = compare_plans(QueuePlan(line=[], starts=0, likely={}), QueuePlan(line=[], starts=0, likely={}), NOON)

    assert queue.has_estimates and queue.changed == [] and queue.median_wait_after is None
