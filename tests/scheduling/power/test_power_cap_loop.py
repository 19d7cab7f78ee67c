"""The loop that caps clocks: POLCA's order, hysteresis over polls, failed commands, missing readings, killed turns."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs.core.lifecycle import NodeFlag, NodeState
from jobs.core.parsing import InvalidField
from jobs.models import Cluster, Event, Node, NodeClock, Resolution, Sample, clock
from scheduling.backends.base import ClusterUnreachable
from scheduling.backends.power_page import NodePower
from scheduling.models import PowerBudget, PowerCap
from scheduling.power.actions import caps as cap_actions
from scheduling.power.loops.caps import cap_power_once, delete_old_caps, read_and_cap_once
from scheduling.power.reads.caps import cap_status, clusters_with_caps, node_readings
from scheduling.power.rules.measured_power import measured_power
from tests import make
from tests.scheduling.power.cap_make import LIMIT_W, POLL, Site, budget, open_clocks, write_samples
from tests.statements import before_statement, failing_statement

pytestmark = pytest.mark.django_db
EVALUATION, TRAINING = "seren-001", "seren-002"


@pytest.fixture
def site(cluster, settings):
    """An evaluation on the first node, a pretraining on the second one; two nodes are idle."""
    settings.ACME_POWER_CAP_COMMAND = ("/usr/local/bin/set-clocks",)
    make.running(make.job(kind="evaluation", gpus_per_node=8), on=[EVALUATION])
    make.running(make.job(kind="pretrain", gpus_per_node=8), on=[TRAINING])
    return Site(cluster)


def test_first_low_priority_jobs_are_capped_then_all(site):
    budget()

    assert site.read(0.85).level == 1
    first = site.capped()
    assert site.read(0.90).level == 2
    second = site.capped()
    assert site.read(0.90).level == 3

    assert first == {EVALUATION: 1275} and second == {EVALUATION: 1110}
    assert site.capped() == {EVALUATION: 1110, TRAINING: 1305, "seren-003": 1305, "seren-004": 1305}


def test_above_the_budget_all_get_the_lowest_clock_at_once(site):
    budget()

    assert site.read(1.02).level == 4

    assert set(site.capped().values()) == {288} and len(site.capped()) == 4


def test_release_waits_until_readings_were_low_for_a_minute_and_goes_in_reverse_order(site):
    budget()
    for _ in range(3):
        row = site.read(0.90)
    levels = [row.level, *(site.read(0.70).level for _ in range(14))]

    assert levels[0] == 3 and levels[-1] == 0
    assert levels == sorted(levels, reverse=True) and set(levels) == {3, 2, 1, 0}
    assert levels.count(3) >= 4, "a minute has four polls"
    assert site.capped() == {} and not open_clocks()


def test_power_that_swings_around_the_threshold_does_not_swing_the_clocks(site):
    budget()

    levels = [site.read(share).level for share in (0.82, 0.78, 0.82, 0.76, 0.81, 0.78, 0.79, 0.77)]

    assert levels == [1] * 8 and len(site.commands) == 1


def test_second_turn_with_the_same_reading_changes_nothing(site):
    budget()
    before = site.read(0.90)

    site.now += timedelta(seconds=5)
    after = site.turn()

    assert (after.level, after.command) == (before.level, before.command) == (2, 1)
    assert len(site.commands) == 1


def test_failed_command_counts_as_no_cap_and_is_repeated(site):
    budget()
    site.fails = True
    site.read(0.90)
    row = site.read(0.90)

    assert row.level == 3 and "no route to host" in row.command_error
    assert Event.objects.filter(type="power.command_failed").count() == 1, "not one per turn"
    assert site.commands[-1] == {EVALUATION: 1110, TRAINING: 1305, "seren-003": 1305, "seren-004": 1305}
    assert not any(confirmed for _, confirmed in open_clocks().values())

    site.fails = False
    site.now += timedelta(seconds=5)
    assert site.turn().command_error == ""
    assert site.capped() == site.commands[-1] and all(confirmed for _, confirmed in open_clocks().values())


def test_command_that_fails_on_one_node_is_repeated_for_this_node_only(site):
    budget()
    site.failing_nodes = (TRAINING,)
    row = site.read(1.05)
    first = open_clocks()
    site.now += timedelta(seconds=5)
    site.turn()

    assert first[EVALUATION] == (288, True) and first[TRAINING] == (288, False)
    assert row.command_error and site.commands[1:] == [{TRAINING: 288}]
    site.failing_nodes = ()
    assert site.turn().command_error == "" and open_clocks()[TRAINING] == (288, True)


def test_failed_release_is_repeated_until_it_works(site):
    budget()
    site.read(1.05)
    site.fails = True
    for _ in range(14):
        row = site.read(0.5)
    assert row.level == 0 and open_clocks()[EVALUATION] == (None, False)
    site.fails = False

    site.turn()

    assert site.capped() == {} and not open_clocks()


@pytest.mark.parametrize(
    "statement",
    [
        'UPDATE "scheduling_powerbudget"',
        'INSERT INTO "scheduling_powercap"',
        'INSERT INTO "jobs_nodeclock"',
        'UPDATE "jobs_nodeclock" SET "confirmed_at"',
    ],
)
def test_turn_that_is_killed_at_a_statement_is_finished_by_the_next(site, statement):
    budget()
    with failing_statement(statement, error=KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        site.read(0.85)

    site.now += timedelta(seconds=5)
    row = site.turn()

    assert row.level == 1 and site.capped() == {EVALUATION: 1275}
    assert open_clocks() == {EVALUATION: (1275, True)}
    assert PowerCap.objects.get().level == 1


def test_worker_that_dies_in_the_command_leaves_it_to_the_next_turn(site):
    budget()

    def die(cluster, clocks):
        raise KeyboardInterrupt

    write_samples(site.cluster, 0.85, site.now)
    with pytest.raises(KeyboardInterrupt):
        cap_power_once(site.cluster, die, site.now)
    assert open_clocks() == {EVALUATION: (1275, False)}

    site.now += timedelta(seconds=5)
    site.turn()

    assert site.capped() == {EVALUATION: 1275} and open_clocks() == {EVALUATION: (1275, True)}


def test_late_turn_without_new_readings_releases_nothing_and_says_so(site):
    row = budget()
    site.read(0.85)
    site.now += timedelta(minutes=20)

    row = site.turn()

    assert row.level == 1 and site.capped() == {EVALUATION: 1275}
    assert cap_status(row, site.now) == "No power readings since 12:00:15 UTC. Caps stay as they are."


def test_nodes_without_readings_count_by_their_last_and_stop_a_release(site):
    budget()
    site.read(0.85)
    for _ in range(10):
        row = site.read(0.70, nodes=2)

    assert row.unread_nodes == 2 and row.level == 1
    assert row.measured_w == pytest.approx((0.85 + 0.70) / 2 * LIMIT_W)
    assert "2 nodes without readings are estimated" in cap_status(row, site.now)


# Power that is read every second


def page(share, *, at_s=None, nodes=(EVALUATION, TRAINING, "seren-003", "seren-004")):
    """A page on which the nodes draw this share of the budget together with those that are not on it."""
    gpu_w = (share * LIMIT_W / 4 - 920) / 1.25 / 8
    return {name: NodePower(gpu_w=dict.fromkeys(range(8), gpu_w), gpus_at_s=at_s) for name in nodes}


def read_page(site, share, *, after_s=1, **fields):
    site.now += timedelta(seconds=after_s)
    cap_power_once(site.cluster, site.set_clocks, site.now, page(share, **fields))
    return PowerBudget.objects.get()


def test_power_of_a_page_is_acted_upon_without_samples(site):
    budget()

    row = read_page(site, 0.85)

    assert (row.level, row.unread_nodes) == (1, 0) and row.measured_w == pytest.approx(0.85 * LIMIT_W)
    assert site.capped() == {EVALUATION: 1275}


def test_node_that_is_not_on_the_page_has_its_newest_sample(site):
    budget()
    write_samples(site.cluster, 0.4, site.now)

    row = read_page(site, 0.6, nodes=(EVALUATION, TRAINING))

    assert row.measured_w == pytest.approx((0.6 + 0.4) / 2 * LIMIT_W)


DIVIDED = {"gpus": 14, "mig_slices": {"1g.10gb": 7}, "gpu_model": "NVIDIA A100"}  # seven whole GPUs and an eighth


@pytest.mark.parametrize(
    ("gpus", "devices", "watts"),
    [
        (range(8), DIVIDED, 920 + 1.25 * 800),
        (range(7), DIVIDED, 920 + 1.25 * (700 + 60)),  # one without power counts as idle
        (range(8), {"gpus": 2, "mig_slices": {"1g.10gb": 2}}, 920 + 1.25 * 800),  # most GPUs have no slice
    ],
)
def test_page_has_the_power_of_gpus_that_are_divided_into_slices(cluster, gpus, devices, watts):
    node = Node.objects.filter(name="seren-003")
    node.update(**devices)

    (reading,) = node_readings(
        list(node), make.NOON, {"seren-003": NodePower(gpu_w=dict.fromkeys(gpus, 100.0))}
    ).values()

    assert measured_power([reading]).watts == pytest.approx(watts)


@pytest.mark.parametrize(
    ("power", "gpus_w"),
    [([100.0] * 7 + [14.2] * 7, 700 + 99.4), ([100.0] * 7, 700 + 7 * 0.142 * 60), ([], 420 + 59.64)],
)
def test_samples_have_the_power_of_slices(cluster, power, gpus_w):
    """A slice without power counts as its part of an idle GPU."""
    node = Node.objects.filter(name="seren-003")
    node.update(**DIVIDED)
    Sample.objects.create(node=node.get(), at=make.NOON, resolution=Resolution.RAW, gpu_power_w=power)

    (reading,) = node_readings(list(node), make.NOON).values()

    assert measured_power([reading]).watts == pytest.approx(920 + 1.25 * gpus_w, abs=1)


def test_power_that_rises_is_acted_upon_before_it_reaches_the_threshold(site):
    budget()

    levels = [read_page(site, share).level for share in (0.60, 0.68, 0.78)]

    assert levels == [0, 1, 2], "0.68 + 2 s of 0.08 per second is above 0.80"
    assert site.capped() == {EVALUATION: 1110}


def test_lowest_clocks_wait_for_a_measurement_above_the_budget(site):
    budget()
    levels = [read_page(site, share).level for share in (0.70, 0.85, 0.99, 1.01)]

    assert levels[2] < 4 and levels[3] == 4


def test_equal_power_is_a_new_reading_only_after_a_while(site):
    """An exporter that measures every thirty seconds shows a cap no sooner."""
    budget()
    first = read_page(site, 0.90)

    levels = [read_page(site, 0.90).level for _ in range(14)]

    assert first.level == 2 and set(levels) == {2}
    assert read_page(site, 0.90).level == 3


def test_scrape_of_prometheus_that_is_old_decides_nothing(site):
    budget()

    assert read_page(site, 0.95, at_s=site.now.timestamp() - 90).level == 0


def test_clock_of_prometheus_that_is_ahead_does_not_stop_the_caps(site):
    budget()
    read_page(site, 0.60, at_s=site.now.timestamp() + 3600)

    assert read_page(site, 0.85, at_s=site.now.timestamp() + 3600).level == 2


def test_readings_that_change_nothing_are_recorded_with_one_statement(site):
    for name in ("r01", "r02", "r03", "r04"):
        budget(scope="rack", place=name, limit_w=10 * LIMIT_W)
    Node.objects.filter(name=EVALUATION).update(rack="r02")
    budget(limit_w=LIMIT_W)
    site.now += timedelta(seconds=1)

    with CaptureQueriesContext(connection) as found:
        cap_power_once(site.cluster, site.set_clocks, site.now, page(0.5))

    updates = [row["sql"] for row in found if row["sql"].strip().startswith("UPDATE")]
    measured = dict(PowerBudget.objects.exclude(measured_w=None).values_list("place", "measured_w"))
    assert len(updates) == 1 and measured.keys() == {"", "r01", "r02"}
    assert measured["r02"] == pytest.approx(LIMIT_W / 8)


def test_telemetry_that_does_not_answer_leaves_the_samples(site):
    Cluster.objects.update(metrics_address="http://127.0.0.1:9/metrics")
    budget()
    write_samples(site.cluster, 0.85, clock.now() - timedelta(seconds=5))

    def read(address, *, timeout_s):
        raise ClusterUnreachable(address)

    read_and_cap_once(Cluster.objects.get(), site.set_clocks, read)

    assert PowerBudget.objects.get().level == 1


def test_turn_reads_the_power_of_a_cluster_with_caps_only(site):
    Cluster.objects.update(metrics_address="http://127.0.0.1:9/metrics")
    asked = []

    def read(address, *, timeout_s):
        asked.append(address)
        return page(0.85)

    row = budget("off")
    read_and_cap_once(Cluster.objects.get(), site.set_clocks, read)
    assert asked == []
    PowerBudget.objects.filter(pk=row.pk).update(mode="act")
    read_and_cap_once(Cluster.objects.get(), site.set_clocks, read)

    assert asked == ["http://127.0.0.1:9/metrics"] and site.capped() == {EVALUATION: 1275}


# Thresholds of the budget


def test_thresholds_are_those_of_the_budget(site):
    row = budget(low_cap_percent=60, all_cap_percent=70, lowest_clock_percent=95)

    levels = [site.read(share).level for share in (0.65, 0.75, 0.75, 0.96)]

    assert levels == [1, 2, 3, 4]
    cap_actions.set_percents(row, (80, 89, 100))
    assert [site.read(0.5).level for _ in range(14)][-1] == 0 and site.read(0.75).level == 0


@pytest.mark.parametrize("percents", [(90, 80, 100), (49, 80, 100), (80, 89, 101), (80, 100, 99)])
def test_database_refuses_thresholds_that_do_not_ascend(site, percents):
    row = budget()

    with pytest.raises(IntegrityError), transaction.atomic():
        cap_actions.set_percents(row, percents)


# Nodes without readings


def test_budget_without_any_reading_decides_nothing(site):
    row = budget()

    site.turn()

    assert not site.commands and cap_status(row, site.now) == "Waiting for the first power readings of its nodes."


def test_mode_observe_records_levels_and_changes_no_clock(site):
    budget("observe")

    row = site.read(0.85)

    assert (row.level, site.commands, open_clocks()) == (1, [], {})
    assert PowerCap.objects.get().is_observed
    assert "observed only" in Event.objects.get(type="power.cap_raised").why


def test_mode_off_is_not_looked_at(site):
    budget("off")

    assert site.read(2.0).level == 0 and not site.commands and clusters_with_caps() == []


def test_budget_of_a_rack_caps_its_nodes_only(site):
    Node.objects.filter(name__in=[EVALUATION, TRAINING]).update(rack="r02")
    budget(scope="rack", place="r02", limit_w=LIMIT_W // 2)

    site.read(1.1)

    assert site.capped() == {EVALUATION: 288, TRAINING: 288}


def test_node_in_two_budgets_gets_the_lower_clock(site):
    Node.objects.filter(name=EVALUATION).update(rack="r02")
    budget()
    budget(scope="rack", place="r02", limit_w=LIMIT_W // 5)  # 0.85 / 4 of the budget is more than that

    site.read(0.85)

    assert site.capped() == {EVALUATION: 288}


def test_clocks_are_shares_of_the_highest_of_the_gpu_model(site):
    Node.objects.filter(name=EVALUATION).update(gpu_model="h100")
    budget()

    site.read(0.85)

    assert site.capped() == {EVALUATION: 1790}


def test_training_that_starts_on_a_capped_node_gets_the_clock_of_high_priority(site):
    budget()
    attempt = make.running(make.job(kind="debug", gpus_per_node=4), on=["seren-003"])
    site.read(0.85)
    assert site.capped() == {EVALUATION: 1275, "seren-003": 1275}
    make.running(make.job(kind="sft", gpus_per_node=4), on=["seren-003"], gpus=(4, 5, 6, 7))

    site.now += timedelta(seconds=5)
    site.turn()

    assert site.capped() == {EVALUATION: 1275}
    types = Event.objects.filter(job=attempt.job, type__startswith="job.clocks").order_by("pk")
    assert list(types.values_list("type", flat=True)) == ["job.clocks_capped", "job.clocks_released"]


def test_capped_job_gets_one_event_for_a_cap_of_several_steps(site):
    budget()
    for share in (0.85, 0.90, 1.05):
        site.read(share)
    events = Event.objects.filter(job__kind="evaluation", type="job.clocks_capped")

    assert events.count() == 1 and "1275 MHz" in events.get().why


def test_node_that_does_not_respond_gets_its_clock_after_its_boot(site):
    budget()
    site.read(0.85)
    Node.objects.filter(name=EVALUATION).update(state=NodeState.DOWN, flags=[NodeFlag.NOT_RESPONDING])
    site.read(0.85)
    down = open_clocks()
    assert len(site.commands) == 1
    Node.objects.filter(name=EVALUATION).update(state=NodeState.IDLE, flags=[])

    site.now += timedelta(seconds=5)
    site.turn()

    assert down == {EVALUATION: (1275, False)}
    assert site.commands[1:] == [{EVALUATION: 1275}] and open_clocks() == {EVALUATION: (1275, True)}


def test_mode_off_releases_all_clocks(site):
    row = budget()
    site.read(1.05)

    cap_actions.set_mode(row, "off", author=make.LOOP, now=site.now)
    assert clusters_with_caps() == [site.cluster.pk]
    site.turn()

    assert site.capped() == {} and clusters_with_caps() == []
    assert PowerCap.objects.get().ended_at == site.now


def test_deleted_budget_releases_all_clocks(site):
    row = budget()
    site.read(1.05)

    row.delete()
    site.turn()

    assert site.capped() == {} and not open_clocks()


def test_budget_that_was_changed_meanwhile_keeps_the_change(site):
    row = budget()
    write_samples(site.cluster, 0.85, site.now)

    def raise_limit():
        PowerBudget.objects.update(limit_w=10 * LIMIT_W)

    with before_statement('UPDATE "scheduling_powerbudget"', act=raise_limit):
        row = site.turn()

    assert (row.level, site.commands) == (0, [])


def test_error_in_one_budget_does_not_stop_the_others(site):
    bad = budget(scope="rack", place="r01", limit_w=LIMIT_W - 1)
    good = budget()
    with failing_statement('UPDATE "scheduling_powerbudget"', bad.limit_w, error=ValueError("broken")):
        site.read(0.85)

    good.refresh_from_db()
    assert good.level == 1 and site.capped() == {EVALUATION: 1275}


def test_peak_of_a_cap_is_kept(site):
    budget()
    for share in (0.82, 0.88, 0.81):
        site.read(share)

    assert PowerCap.objects.get().peak_share == pytest.approx(0.88)


def test_old_caps_are_deleted_and_open_ones_stay(site):
    budget()
    site.read(1.05)
    NodeClock.objects.filter(node__name=EVALUATION).update(ended_at=site.now)

    assert delete_old_caps(site.now + timedelta(days=91)) == 1
    assert NodeClock.objects.count() == 3 and PowerCap.objects.count() == 1


def test_turn_costs_few_queries_however_many_nodes(site, django_assert_max_num_queries):
    budget()
    for number in range(40):
        make.node(f"seren-{100 + number}", cluster=site.cluster)
    site.read(0.90)
    write_samples(site.cluster, 0.90, site.now + POLL)

    with django_assert_max_num_queries(40):
        cap_power_once(site.cluster, site.set_clocks, site.now + POLL)

    assert len(site.capped()) == 44


@pytest.mark.parametrize(
    ("fields", "command", "sentence"),
    [
        ({"product": "slurm"}, (), "ACME_POWER_CAP_COMMAND is not set, so Acme cannot cap clocks of the cluster seren"),
        (
            {"mode": "observe"},
            ("/bin/true",),
            "Acme only watches the cluster seren, so it may not cap clocks there",
        ),
        ({}, ("/bin/true",), ""),
        ({"product": "slurm-simulated"}, (), ""),
        ({"product": ""}, (), ""),
    ],
)
def test_mode_act_needs_means_to_set_clocks(site, settings, fields, command, sentence):
    settings.ACME_POWER_CAP_COMMAND = command
    make.cluster(**fields)
    row = budget("off")

    try:
        cap_actions.set_mode(row, "act", author=make.LOOP, now=site.now)
        refusal = ""
    except InvalidField as error:
        refusal = error.why

    row.refresh_from_db()
    assert refusal == sentence and row.mode == ("off" if sentence else "act")


def test_caps_begin_when_the_cluster_has_reported_that_it_is_simulated(site, settings):
    settings.ACME_POWER_CAP_COMMAND = ()
    Cluster.objects.update(product="")
    row = budget("off")
    cap_actions.set_mode(row, "act", author=make.LOOP, now=site.now)
    row = site.read(0.85)
    status = cap_status(row, site.now)
    assert (row.level, site.commands) == (1, [])
    Cluster.objects.update(product="slurm-simulated")

    site.cluster.refresh_from_db()
    row = site.turn()

    assert "the cluster seren has not reported its product yet" in status
    assert site.capped() == {EVALUATION: 1275} and cap_status(row, site.now) == "Clocks are capped: level 1 of 4."


def test_real_cluster_without_a_command_says_so_once_it_is_known(site, settings):
    settings.ACME_POWER_CAP_COMMAND = ()
    Cluster.objects.update(product="slurm")
    row = budget("act")

    assert cap_status(row, site.now) == (
        "Clocks are not capped: ACME_POWER_CAP_COMMAND is not set, so Acme cannot cap clocks of the cluster seren."
    )


def test_change_of_the_mode_is_recorded_with_its_author(site, settings):
    cap_actions.set_mode(budget("off"), "observe", author=make.author(), now=site.now)

    event = Event.objects.get(type="power.mode_changed")
    assert (event.by, event.from_state, event.to_state) == ("ada", "off", "observe")
