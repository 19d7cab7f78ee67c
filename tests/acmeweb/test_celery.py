"""Rules for every Celery task: it may be lost, repeated or late without an effect on the database."""

import inspect

import pytest
from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import connection, transaction

from acmeweb.celery import QUEUE, app

app.loader.import_default_modules()
app.autodiscover_tasks(["scheduling.whatif"], force=True)
TASKS = {name: task for name, task in app.tasks.items() if not name.startswith(("celery.", "tests."))}


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
    """Due work is in the database; a loop finds it."""
    assert not getattr(TASKS[name], "autoretry_for", ())


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_goes_to_the_one_queue_that_workers_serve(name):
    assert app.amqp.router.route({}, name)["queue"].name == QUEUE
    assert set(app.amqp.queues.consume_from) == {QUEUE}


@shared_task(name="tests.interrupted")
def interrupted_inside_a_transaction():
    block = transaction.atomic()
    block.__enter__()
    raise SoftTimeLimitExceeded


@pytest.mark.django_db(transaction=True)
def test_the_next_task_after_an_interrupted_transaction_starts_clean():
    assert interrupted_inside_a_transaction.apply().failed()

    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,) and not connection.in_atomic_block
