"""The webhook that turns nodes off and on where the cluster cannot."""

from __future__ import annotations

import ipaddress
from datetime import timedelta

import pytest

from jobs.models import Cluster, ClusterCommand, Node, clock
from scheduling.loops.commands.send import send_commands_once
from scheduling.models import NodeSleep
from scheduling.power.actions import sleeps as sleep_actions
from scheduling.power.loops.sleep_webhooks import (
    RETRY_INTERVAL,
    call_sleep_webhooks_once,
    clusters_with_due_webhooks,
    sleep_webhook_secret,
)
from tests import make
from tests.scheduling.power.sleep.receiver import site_webhook
from tests.statements import before_statement

HERE = (ipaddress.ip_network("127.0.0.0/8"),)


@pytest.fixture
def site(settings):
    settings.ACME_WEBHOOK_NETWORKS = HERE
    with site_webhook() as site:
        yield site


def cluster_with(site, **fields):
    row = make.cluster(sleep_mode="act", sleep_webhook=site.url, **fields)
    site.secret = sleep_webhook_secret(row)
    return row


def let_sleep(name="seren-001"):
    assert sleep_actions.let_sleep(Node.objects.get(name=name), author=make.author(), why="idle", now=clock.now())
    return NodeSleep.objects.get(node__name=name)


def call(now, name="seren"):
    return call_sleep_webhooks_once(Cluster.objects.get(name=name), now)


pytestmark = pytest.mark.django_db


def test_sleep_and_wake_up_are_signed_messages(site):
    cluster = cluster_with(site)
    sleep = let_sleep()

    assert call(clock.now()) == 1
    assert call(clock.now()) == 0
    sleep_actions.wake_by_user(sleep, author=make.author(), now=clock.now())
    assert call(clock.now()) == 1

    assert [(message["action"], message["node"], message["cluster"]) for message in site.messages] == [
        ("sleep", "seren-001", cluster.name),
        ("wake", "seren-001", cluster.name),
    ]
    assert site.deliveries == [f"sleep-{sleep.pk}", f"wake-{sleep.pk}"]
    assert site.unsigned == 0
    assert not ClusterCommand.objects.filter(kind__in=("sleep", "wake")).exists()


def test_message_with_another_key_is_not_valid(site):
    cluster_with(site)
    site.secret = sleep_webhook_secret(Cluster(name="kalos"))
    let_sleep()

    call(clock.now())

    assert site.unsigned == 1
    assert NodeSleep.objects.get().last_error == "The webhook returned HTTP status 403."


def test_failed_call_is_repeated_later_with_the_same_delivery_id(site):
    cluster_with(site)
    sleep, now = let_sleep(), clock.now()
    site.status = 500

    assert call(now) == 0
    assert call(now + RETRY_INTERVAL / 2) == 0
    site.status = 200
    assert call(now + 2 * RETRY_INTERVAL) == 1

    assert site.deliveries == [f"sleep-{sleep.pk}"] * 2
    assert NodeSleep.objects.get().last_error == ""


def test_receiver_that_is_away_is_an_error_of_the_row(site):
    make.cluster(sleep_mode="act", sleep_webhook="http://127.0.0.1:9/power")
    let_sleep()

    assert call(clock.now()) == 0
    assert "was not called" in NodeSleep.objects.get().last_error


def test_cluster_whose_webhook_failed_is_left_alone_for_the_rest_of_the_turn(site):
    cluster_with(site)
    let_sleep("seren-001"), let_sleep("seren-002")
    site.status, now = 500, clock.now()

    call(now)
    call(now)

    assert [message["node"] for message in site.messages] == ["seren-001", "seren-002"]


def test_wake_ups_are_called_before_sleeps(site):
    cluster_with(site)
    let_sleep("seren-001")
    sleep_actions.wake_by_user(let_sleep("seren-002"), author=make.author(), now=clock.now())

    call(clock.now())

    assert [message["action"] for message in site.messages] == ["wake", "sleep"]


def test_clusters_with_due_changes_have_work_until_they_were_called(site):
    seren = cluster_with(site)
    let_sleep()
    dead = make.cluster("kalos", sleep_mode="act", sleep_webhook="http://127.0.0.1:9/power")
    let_sleep("kalos-001")
    make.cluster("venus", sleep_mode="act", sleep_webhook=site.url)
    now = clock.now()
    assert clusters_with_due_webhooks(now) == {seren.pk, dead.pk}

    call(now), call(now, "kalos")

    assert clusters_with_due_webhooks(now) == set()
    assert clusters_with_due_webhooks(now + 2 * RETRY_INTERVAL) == {dead.pk}


def test_wake_up_that_is_requested_again_has_a_new_delivery_id_and_its_retry_the_same(site):
    cluster_with(site)
    sleep, now = let_sleep(), clock.now()
    sleep_actions.wake_by_user(sleep, author=make.author(), now=now)
    call(now)
    sleep_actions.repeat_wake(sleep, now)
    site.status = 500

    call(now)
    call(now + 2 * RETRY_INTERVAL)

    assert site.deliveries == [f"wake-{sleep.pk}", f"wake-{sleep.pk}-1", f"wake-{sleep.pk}-1"]


@pytest.mark.django_db(transaction=True)
def test_call_that_is_killed_counts_as_a_failure(site):
    """As by the time limit of its task."""
    cluster = cluster_with(site)
    let_sleep()
    now = clock.now()

    with before_statement('UPDATE "scheduling_nodesleep"', '"called_at" = ', act=stop_task), pytest.raises(Stopped):
        call(now)

    assert call(now) == 0
    assert "not answered" in NodeSleep.objects.get().last_error
    assert clusters_with_due_webhooks(now + 2 * RETRY_INTERVAL) == {cluster.pk}


class Stopped(Exception):
    pass


def stop_task():
    raise Stopped


def test_row_that_another_worker_has_claimed_is_not_called(site):
    cluster_with(site)
    sleep = let_sleep()

    def claim():
        NodeSleep.objects.filter(pk=sleep.pk).update(call_due_at=clock.now() + RETRY_INTERVAL)

    with before_statement('UPDATE "scheduling_nodesleep"', act=claim):
        assert call(clock.now()) == 0

    assert site.messages == []


def test_private_address_is_not_called_unless_allowed(site, settings):
    settings.ACME_WEBHOOK_NETWORKS = ()
    cluster_with(site)
    let_sleep()

    assert call(clock.now()) == 0
    assert site.messages == []
    assert "not a public address" in NodeSleep.objects.get().last_error


def test_node_of_kubernetes_is_closed_for_pods_before_it_is_turned_off(site, slurm):
    cluster = cluster_with(site, address="kubernetes:///k/config")
    let_sleep()

    assert call(clock.now()) == 0
    send_commands_once(cluster, slurm, clock.now())
    assert call(clock.now()) == 1


def test_wake_up_replaces_a_sleep_that_was_not_called_yet(site):
    cluster_with(site)
    sleep_actions.wake_by_user(let_sleep(), author=make.author(), now=clock.now())

    call(clock.now())

    assert [message["action"] for message in site.messages] == ["wake"]


def test_change_during_a_call_is_called_next(site):
    """A job needs the node while the webhook is told to turn it off."""
    cluster_with(site)
    sleep = let_sleep()
    rows = NodeSleep.objects.filter(pk=sleep.pk)

    def wake():
        sleep_actions.wake_by_user(rows.get(), author=make.author(), now=clock.now())

    with before_statement('UPDATE "scheduling_nodesleep"', '"called_at" = ', act=wake):
        call(clock.now())

    assert rows.get().called_at is None
    call(clock.now() + timedelta(seconds=1))
    assert [message["action"] for message in site.messages] == ["sleep", "wake"]


@pytest.mark.parametrize("mode", ["observe", "propose", "act"])
def test_kubernetes_without_a_webhook_lets_no_node_sleep(mode):
    cluster = make.cluster(address="kubernetes:///k/config", sleep_mode=mode)

    assert not cluster.lets_nodes_sleep
