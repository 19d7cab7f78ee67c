"""Rules for every task: it may be lost, repeated or late without an effect on the database."""

import inspect

import pytest
from django.conf import settings

from acmeweb.celery import app
from acmeweb.common.env import ROLE_TIMEOUTS
from acmeweb.queues import TASK_ROUTES, WORKER_QUEUES

app.loader.import_default_modules()
app.autodiscover_tasks(force=True)
TASKS = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}


def limit_of(task):
    return task.time_limit or settings.CELERY_TASK_TIME_LIMIT


def test_messages_are_json_and_results_are_ignored():
    assert (app.conf.task_serializer, list(app.conf.accept_content)) == ("json", ["json"])
    assert app.conf.task_ignore_result and not app.conf.result_backend


def test_a_worker_takes_one_message_at_a_time_and_confirms_it_when_it_is_done():
    assert app.conf.worker_prefetch_multiplier == 1
    assert app.conf.task_acks_late and app.conf.task_reject_on_worker_lost


@pytest.mark.parametrize("name", sorted(TASKS))
def test_no_task_is_redelivered_while_it_may_still_run(name):
    """The broker redelivers a message that is not acknowledged; one acknowledged too early would be lost."""
    visible_again = settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"]

    assert limit_of(TASKS[name]) < visible_again or not TASKS[name].acks_late


@pytest.mark.parametrize("name", sorted(TASKS))
def test_message_carries_only_ids(name):
    asked = inspect.signature(TASKS[name].run).parameters.values()

    assert [str(one.annotation) for one in asked if one.annotation not in (int, "int")] == []


@pytest.mark.parametrize("name", sorted(TASKS))
def test_celery_retries_no_task(name):
    """Due work is in the database; the next tick finds it."""
    assert not getattr(TASKS[name], "autoretry_for", ())


@pytest.mark.parametrize("name", sorted(app.conf.beat_schedule))
def test_tick_names_a_task_and_expires_before_the_next_one(name):
    tick = app.conf.beat_schedule[name]

    assert tick["task"] in TASKS
    assert tick["options"]["expires"] <= max(2, tick["schedule"])
    assert not tick.get("args") and not tick.get("kwargs")


def test_every_task_has_a_queue_and_every_route_leads_to_a_task():
    assert set(TASK_ROUTES) == set(TASKS)


def test_a_task_belongs_to_one_queue():
    named = [task for queue in WORKER_QUEUES for task in queue.tasks]

    assert len(named) == len(set(named))


@pytest.mark.parametrize("name", sorted(TASKS))
def test_no_task_is_sent_to_the_default_queue(name):
    chosen = app.amqp.router.route({}, name)["queue"].name

    assert chosen in {queue.name for queue in WORKER_QUEUES} and chosen != app.conf.task_default_queue


def test_a_worker_that_names_no_queue_serves_every_queue():
    assert set(app.amqp.queues.consume_from) == {queue.name for queue in WORKER_QUEUES}


def test_tasks_that_may_take_longer_than_a_minute_are_on_the_queue_for_long_work():
    slow = {name for name, task in TASKS.items() if limit_of(task) > settings.CELERY_TASK_TIME_LIMIT}

    assert {TASK_ROUTES[name]["queue"] for name in slow} == {"long"}


def test_every_queue_names_a_role_with_database_timeouts():
    assert {queue.role for queue in WORKER_QUEUES} <= set(ROLE_TIMEOUTS)
