"""The policy `acme`: owners and borrowers, reserved quotas, priority classes, and preemptions that are never
in vain.
"""

import dataclasses
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acmeweb.common.errors import InvalidField
from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import ClusterSnapshot, QuotaView, ResourceRequest, RunningJob
from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob
from scheduling.engine.placement import consolidate
from scheduling.engine.policies import configured_policy
from scheduling.engine.policies.acme import AcmeRules
from scheduling.engine.resources import NodeResources
from scheduling.whatif.replay.run import run_policy
from tests.make import NOON
from tests.properties import examples
from tests.scheduling.engine.test_engine import hours, node, started, waiting
from tests.scheduling.whatif.replay.replaying import COUNT, SMALL, job_lists, outcome, trace, watched

MINUTE = timedelta(minutes=1)


def decide(nodes, *jobs, running=(), settings=None, **fields):
    picture = ClusterSnapshot(now=NOON, nodes=tuple(nodes), waiting=jobs, running=tuple(running), **fields)
    return configured_policy("acme", settings or {})(picture)


def runs(number, places, **fields):
    """A running borrower, started an hour ago by default."""
    defaults = {
        "team": "b",
        "kind": JobKind.EVALUATION,
        "priority": 0,
        "preemptible": True,
        "started_at": NOON - hours(1),
    }
    gpus = sum(places.values())
    return RunningJob(id=number, name=f"r{number}", gpus=gpus, places=places, **{**defaults, **fields})


def stopped(decisions):
    return [stop.job_id for stop in decisions.stops]


# owners and borrowers


def test_owner_preempts_borrower_and_both_get_a_reason():
    decisions = decide([node(1, free=0)], waiting(1, gpus=8), running=[runs(9, {1: 8})])

    (stop,), (wait,) = decisions.stops, decisions.waits
    assert (stop.job_id, stop.for_job, started(decisions)) == (9, 1, [])
    assert stop.why == "It is preempted by a job of another team; the last 1:00:00 of its work are not saved."
    assert (wait.reason, wait.why) == ("Resources", "Starts when a job of another team has been preempted.")


def test_turn_ends_if_placement_rejects_the_planned_nodes():
    def choosy(room, need, among):
        return consolidate(room, need, among) if room.fitting_nodes(need, among).bit_count() > 1 else None

    engine = Engine(NodeResources([node(1), node(2)]), AcmeRules.of({"backfill": "conservative"}), placement=choosy)
    for number, nodes in enumerate((3, 1)):
        engine.submit(
            EngineJob(number, engine.request_group(ResourceRequest(nodes=nodes, gpus=8)), 0.0, 60.0, 60.0), 0.0
        )

    engine.decide(0.0)

    assert (engine.started_jobs, engine.reservation.current) == ([], None)


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_borrower_started_and_preempted_in_one_turn_waits(backfill):
    """It has waited so long that it goes before the higher class, which may still preempt it."""
    patient = dataclasses.replace(waiting(1, gpus=8, preemptible=True), submitted_at=NOON - timedelta(days=9))
    urgent = waiting(2, gpus=8, preemptible=True, priority=1)

    decisions = decide([node(1)], patient, urgent, settings={"backfill": backfill})

    assert (started(decisions), stopped(decisions)) == ([2], [])
    assert [(wait.job_id, wait.reason) for wait in decisions.waits] == [(1, "Resources")]


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_owner_behind_a_blocked_one_starts_on_free_nodes_before_it_preempts(backfill):
    nodes = [node(1, free=7), node(2), node(3, free=0), node(4, free=0)]
    running = [runs(8, {1: 1}), runs(9, {3: 8, 4: 8}, preemptible=False, time_limit=hours(9))]
    blocked, short = waiting(1, nodes=4, gpus=8), waiting(2, gpus=4, time_limit=hours(1))

    decisions = decide(nodes, blocked, short, running=running, settings={"backfill": backfill}, placement="spread")
    whole = decide(
        nodes, blocked, waiting(2, gpus=8, time_limit=hours(1)), running=running, settings={"backfill": backfill}
    )

    assert (started(decisions), stopped(decisions)) == ([2], [])
    assert (started(whole), stopped(whole)) == ([2], [])


def test_stopping_victim_is_not_replaced_and_its_gpus_stay_claimed():
    nodes, others = [node(1, free=0), node(2, free=0)], runs(8, {2: 8})
    leaving = runs(9, {1: 8}, stopping=True)

    decisions = decide(nodes, waiting(1, gpus=8), waiting(2, gpus=8, preemptible=True), running=[leaving, others])

    assert (stopped(decisions), started(decisions)) == ([], [])
    assert decisions.waits[0].why == "Starts when a job of another team has been preempted."


def test_freed_gpus_go_to_the_job_that_claimed_them():
    decisions = decide([node(1), node(2, free=0)], waiting(1, gpus=8), running=[runs(8, {2: 8})])

    assert (started(decisions), stopped(decisions)) == ([1], [])


def test_job_being_cancelled_spares_other_borrowers():
    nodes = [node(1, free=0), node(2, free=0)]
    cancelled = runs(9, {1: 8}, team="t", preemptible=False, stopping=True)

    decisions = decide(nodes, waiting(1, gpus=8), running=[runs(8, {2: 8}), cancelled])

    assert stopped(decisions) == []
    assert "r9" in decisions.waits[0].why


def test_borrower_does_not_preempt_its_own_class():
    assert not decide([node(1, free=0)], waiting(1, preemptible=True), running=[runs(9, {1: 8})]).stops


def test_borrower_preempts_a_borrower_of_a_lower_class():
    above = waiting(1, gpus=8, preemptible=True, priority=1)

    assert stopped(decide([node(1, free=0)], above, running=[runs(9, {1: 8})])) == [9]


def test_owner_is_never_preempted():
    assert not decide([node(1, free=0)], waiting(1, priority=9), running=[runs(9, {1: 8}, preemptible=False)]).stops


def test_owner_over_quota_preempts_no_job():
    quotas = (QuotaView(team="t", kind=None, gpus=4),)

    decisions = decide([node(1, free=0)], waiting(1, gpus=8), running=[runs(9, {1: 8})], quotas=quotas)

    assert (decisions.stops, decisions.waits[0].reason) == ((), "AssocGrpGRES")


def test_owners_go_before_borrowers_of_any_class():
    jobs = waiting(1, gpus=8, preemptible=True, priority=9), waiting(2, gpus=8)

    assert started(decide([node(1)], *jobs)) == [2]


def test_borrower_passes_a_waiting_owner_and_is_preempted_later():
    owner = runs(9, {1: 4}, team="t", preemptible=False, time_limit=hours(2))
    first, borrower, other = waiting(1, gpus=8), waiting(2, gpus=4, preemptible=True), waiting(3, gpus=4)

    assert started(decide([node(1, free=4)], first, borrower, other, running=[owner])) == [2]


# who stops


def test_borrower_with_the_newest_checkpoint_stops_first():
    borrowers = [runs(8, {1: 4}, saved_at=NOON - 50 * MINUTE), runs(9, {1: 4}, saved_at=NOON - MINUTE)]

    decisions = decide([node(1, free=0)], waiting(1, gpus=4), running=borrowers)

    assert stopped(decisions) == [9]
    assert "the last 0:01:00" in decisions.stops[0].why


def test_lower_class_stops_first_regardless_of_its_loss():
    borrowers = [runs(8, {1: 4}, saved_at=NOON, priority=1), runs(9, {1: 4})]

    assert stopped(decide([node(1, free=0)], waiting(1, gpus=4), running=borrowers)) == [9]


def test_one_victim_is_chosen_if_one_is_enough():
    crowd = [runs(10 + n, {1: 2}, saved_at=NOON - 10 * MINUTE) for n in range(4)]
    alone = runs(9, {2: 8}, saved_at=NOON - 10 * MINUTE)

    assert stopped(decide([node(1, free=0), node(2, free=0)], waiting(1, gpus=8), running=[*crowd, alone])) == [9]


def test_scattered_gpus_that_fit_no_gang_preempt_no_job():
    """There are enough GPUs in number, but not together on any node."""
    nodes = [node(n, free=0) for n in (1, 2)]
    running = [runs(8, {1: 4}), runs(9, {2: 4})] + [runs(20 + n, {n: 4}, team="t", preemptible=False) for n in (1, 2)]

    assert not decide(nodes, waiting(1, gpus=8), running=running).stops


layouts = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 59)), max_size=4), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)
needs = st.builds(ResourceRequest, nodes=st.integers(1, 3), gpus=st.integers(1, 8), rest=st.just(0))


@given(layout=layouts, need=needs, wide=st.booleans())
@examples(300)
def test_victims_are_sufficient_and_minimal(layout, need, wide):
    """Checked by trying: with all stops the job fits, without any one of them it does not, and stops happen only if
    they help.
    """
    nodes, running = [], []
    for number, (held, lost) in enumerate(layout):
        gpus = 0
        for width, borrows, minutes in held:
            if gpus + width <= 8 - lost:
                gpus += width
                fields = {"preemptible": borrows, "saved_at": NOON - minutes * MINUTE}
                running.append(runs(100 + len(running), {number: width}, **fields))
        nodes.append(node(number, free=8 - lost - gpus))
    if wide and len(nodes) > 1:  # one borrower on two nodes
        running.append(runs(99, {0: len(nodes[0].free_gpus), 1: len(nodes[1].free_gpus)}))
        nodes[:2] = [node(0, free=0), node(1, free=0)]

    decisions = decide(nodes, waiting(1, need=need), running=running)

    borrowers = [job for job in running if job.preemptible]
    chosen = [job for job in borrowers if job.id in stopped(decisions)]
    assert stopped(decisions) == [job.id for job in chosen] or set(stopped(decisions)) == {job.id for job in chosen}
    if started(decisions):
        assert not chosen
    elif chosen:
        assert fits(nodes, need, chosen)
        assert not any(fits(nodes, need, [job for job in chosen if job is not spared]) for spared in chosen)
    else:
        assert not fits(nodes, need, borrowers)


def fits(nodes, need, gone):
    room = NodeResources(nodes)
    for job in gone:
        room.give(tuple(job.places.items()), ResourceRequest())
    return consolidate(room, need) is not None


# reservation


RESERVED = (QuotaView(team="llm", kind=JobKind.PRETRAIN, gpus=8),)


def test_reserved_gpus_are_lent_to_borrowers_only():
    jobs = waiting(1, gpus=8), waiting(2, gpus=8, preemptible=True)

    decisions = decide([node(1)], *jobs, quotas=RESERVED)

    assert started(decisions) == [2]
    assert decisions.waits[0].why.startswith(
        "8 GPUs are reserved for pretrain jobs of team llm; 0 remain, and this job needs 8."
    )


def test_owner_of_a_reserved_quota_starts():
    job = waiting(1, gpus=8, team="llm", kind=JobKind.PRETRAIN)

    assert stopped(decide([node(1, free=0)], job, running=[runs(9, {1: 8})], quotas=RESERVED)) == [9]


def test_used_reservation_reserves_nothing_more():
    used = runs(9, {2: 8}, team="llm", kind=JobKind.PRETRAIN, preemptible=False)

    assert started(decide([node(1), node(2, free=0)], waiting(1, gpus=8), running=[used], quotas=RESERVED)) == [1]


def test_quotas_for_other_kinds_are_limits_only():
    quotas = (QuotaView(team="llm", kind=JobKind.SFT, gpus=8),)

    assert started(decide([node(1)], waiting(1, gpus=8), quotas=quotas)) == [1]
    assert not started(decide([node(1)], waiting(1, gpus=8), quotas=quotas, settings={"reserve": ["sft"]}))


# order


def test_one_priority_point_equals_one_day_of_waiting():
    old = waiting(1, gpus=8, submitted_at=NOON - hours(25))
    young = waiting(2, gpus=8, submitted_at=NOON, priority=1)

    assert started(decide([node(1)], old, young)) == [1]
    assert started(decide([node(1)], old, young, settings={"class_s": 26 * 3600})) == [2]


def test_order_of_another_policy_applies_until_a_job_has_aged():
    long = waiting(1, gpus=8, submitted_at=NOON - hours(10), time_limit=hours(100))
    short = waiting(2, gpus=8, submitted_at=NOON, time_limit=MINUTE)

    assert started(decide([node(1)], long, short)) == [1]
    assert started(decide([node(1)], long, short, settings={"order": "sjf"})) == [2]
    assert started(decide([node(1)], long, short, settings={"order": "sjf", "aging_s": 3600})) == [1]


@pytest.mark.parametrize("order", ["fair", "drf"])
def test_order_can_be_fair_share(order):
    held = runs(9, {2: 8}, team="t", preemptible=False)
    jobs = waiting(1, gpus=8), waiting(2, gpus=8, team="other")

    assert started(decide([node(1), node(2, free=0)], *jobs, running=[held], settings={"order": order})) == [2]


def test_shares_grow_within_one_turn():
    jobs = [waiting(n, gpus=4, team="t" if n < 3 else "other") for n in range(1, 5)]

    assert sorted(started(decide([node(1)], *jobs, settings={"order": "drf"}))) == [1, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"orders": "fifo"}, "orders: is not one of order, aging_s, class_s, backfill, reserve"),
        ({"order": "lottery"}, "order: 'lottery' is not one of fifo, "),
        ({"aging_s": -1}, "aging_s: -1 is not a number of seconds, 0 or more"),
        ({"aging_s": float("nan")}, "aging_s: nan is not a number of seconds"),
        ({"class_s": True}, "class_s: True is not a number of seconds"),
        ({"backfill": ["easy"]}, "backfill: ['easy'] is not one of easy, conservative"),
        ({"reserve": ["mining"]}, "reserve: 'mining' is not one of pretrain"),
        ({"reserve": "pretrain"}, "reserve: 'pretrain' is not a list of kinds of work"),
    ],
)
def test_invalid_setting_is_named_in_the_error(given, message):
    with pytest.raises(InvalidField, match=f"^{message}".replace("[", r"\[")):
        configured_policy("acme", given)


def test_other_policies_have_no_settings():
    with pytest.raises(InvalidField, match="order: this policy has no settings"):
        configured_policy("fifo", {"order": "sjf"})


# replays


def mixed(*jobs):
    """Jobs as (submit, runtime, gpus, kind)."""
    return trace(*(job[:3] for job in jobs), kinds=[job[3] for job in jobs])


mixed_lists = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 12), st.sampled_from(["evaluation", "pretrain"])),
    min_size=1,
    max_size=25,
)


def test_evaluation_borrows_and_continues_after_the_owner_ends():
    done = run_policy(mixed((0, 100, 12, "evaluation"), (10, 20, 12, "pretrain")), "acme", COUNT)

    assert done.ended_s.tolist() == [120, 30]
    assert done.stops.tolist() == [1, 0]


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_jobs_behind_a_preempted_borrower_do_not_pass_it(backfill):
    """The first waiting borrower is as wide as the victim, so it would fit as soon as the owner has started."""
    setting = dataclasses.replace(SMALL, policy_settings={"backfill": backfill})

    done = run_policy(mixed((0, 90, 11, "evaluation"), (1, 90, 11, "evaluation"), (10, 20, 4, "sft")), "acme", setting)

    assert done.stops.tolist() == [1, 0, 0]
    assert done.ended_s.tolist() == [30 + 80, 110 + 90, 30]


def test_stopped_job_repeats_work_since_its_last_checkpoint():
    kinds = ("sft", "evaluation")
    setting = dataclasses.replace(COUNT, checkpoint_s=40.0, preemption_cost="helios", best_effort=kinds)

    saves, never = (run_policy(mixed((0, 100, 12, one), (50, 20, 12, "pretrain")), "acme", setting) for one in kinds)

    assert saves.ended_s[0] == 50 + 20 + (100 - 40) + 60
    assert never.ended_s[0] == 50 + 20 + 100 + 60


def test_stopped_job_restarts_elsewhere_at_once_if_it_fits():
    """The gang needs two whole nodes; the borrower of one GPU moves to the third."""
    setting = dataclasses.replace(SMALL, placement="spread")

    done = run_policy(mixed((0, 100, 1, "evaluation"), (0, 50, 3, "pretrain"), (10, 9, 8, "pretrain")), "acme", setting)

    assert done.stops.tolist() == [1, 0, 0]
    assert done.ended_s.tolist() == [100, 50, 19]


@given(jobs=mixed_lists)
@examples(150)
def test_no_owner_waits_while_it_would_fit_without_borrowers(jobs):
    def look(engine, now):
        owners = [group for group in engine.waiting_groups if not group.borrows]
        if owners and not engine.borrowers.jobs:
            return
        for group in owners:
            if engine.reservation.current is None or group is engine.reservation.current.job.group:
                assert engine.place(engine.owner_resources, group.need, group.eligible_nodes) is None

    watched(mixed(*jobs), "acme", SMALL, look)


@given(jobs=mixed_lists)
@example(jobs=[(0, 2, 1, "evaluation"), (1, 0, 6, "pretrain"), (1, 1, 7, "pretrain"), (1, 0, 6, "pretrain")])
@examples(100)
def test_borrowers_never_delay_owners(jobs):
    """With or without borrowers, owners start and end at the same times."""
    owners = [job for job in jobs if job[3] == "pretrain"]
    if not owners:
        return
    apart = run_policy(mixed(*owners), "acme", COUNT)

    done = run_policy(mixed(*jobs), "acme", COUNT)

    is_owner = done.trace.kinds.codes == done.trace.kinds.words.index("pretrain")
    assert done.started_s[is_owner].tolist() == apart.started_s.tolist()
    assert done.ended_s[is_owner].tolist() == apart.ended_s.tolist()


@given(jobs=mixed_lists)
@examples(100)
def test_job_waits_for_free_gpus_only_if_it_would_delay_the_first(jobs):
    def look(engine, now):
        for group in engine.waiting_groups:
            job, reservation = group.queue.first[3], engine.reservation.current
            if reservation is None or reservation.may_pass_freely(group) or job.expected_s <= reservation.at - now:
                assert group.gpus > engine.resources.free_gpus

    watched(mixed(*jobs), "acme", COUNT, look)


@given(jobs=job_lists)
@examples(60)
def test_acme_without_borrowers_equals_easy(jobs):
    history = trace(*jobs)

    assert outcome(history, "acme", SMALL) == outcome(history, "easy", SMALL)


@pytest.mark.parametrize("order", ["sjf", "qssf", "tiresias", "fair", "drf"])
@given(jobs=mixed_lists)
@examples(20)
def test_all_jobs_end_under_every_order(order, jobs):
    done = run_policy(mixed(*jobs), "acme", dataclasses.replace(SMALL, policy_settings={"order": order}))

    assert (done.ended_s >= done.trace.submit_s + done.trace.runtime_s).all()


def test_no_job_is_overtaken_forever():
    """Short jobs keep one node of two busy; the long job starts when it has aged enough."""
    stream = [(10 * n, 20, 4) for n in range(400)]
    history = trace((5, 1000, 12), *stream)
    aged = dataclasses.replace(COUNT, policy_settings={"order": "sjf", "aging_s": 100})

    waited = run_policy(history, "acme", aged).started_s[0]

    assert waited < 200


@given(jobs=job_lists, dice=st.randoms(use_true_random=False))
@examples(60)
def test_job_moved_within_one_turn_keeps_its_held_time(jobs, dice):
    kinds = [dice.choice(["evaluation", "pretrain"]) for _ in jobs]

    done = run_policy(trace(*jobs, kinds=kinds), "acme", SMALL)

    assert done.held_s == pytest.approx(done.trace.runtime_s)
