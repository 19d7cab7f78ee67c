"""A live cluster in virtual time starts the same jobs in the same order on the same nodes as a replay."""

import dataclasses

import numpy as np
import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from jobs.core.lifecycle import JobKind
from jobs.models import Cluster, Event, Job
from jobs.traces.trace import trace_from_columns
from scheduling.engine.cluster import QuotaView
from scheduling.engine.gpu_speeds import SpeedEntry
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.engine.policies.acme import ORDER_RULES
from scheduling.whatif.replay.as_live import starts_sha256, trace_as_live
from scheduling.whatif.replay.gpu_types import ReplayGpuTypes
from scheduling.whatif.replay.power.setting import PowerSetting
from scheduling.whatif.replay.run import ReplaySetting, replayable_rows, run_policy
from tests import make
from tests.properties import examples
from tests.scheduling.whatif.replay.temporary_tables import temporary_tables
from tests.scheduling.whatif.replay.virtual_cluster import VirtualCluster
from tests.scheduling.whatif.replay.virtual_time import starts_on_virtual_cluster

SETTING = ReplaySetting(nodes=3, gpus_per_node=4, nodes_per_leaf=2, as_live=True, best_effort=("evaluation",))
POLICIES = [
    *((policy, {}) for policy in LIVE_POLICIES),
    *(("acme", {"order": order}) for order in ORDER_RULES),
    ("acme", {"backfill": "conservative"}),
]


def cases(given, *, every):
    """All cases in `make test-system`, and each `every`-th also in `make test`, because each takes seconds."""
    return [pytest.param(*case, marks=() if at % every == 0 else pytest.mark.system) for at, case in enumerate(given)]


# submission, run time, limit, GPUs, user, name, kind; few values, so that ties are common. Evaluations borrow
JOBS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(1, 30),
        st.sampled_from([5, 20, 40, float("nan")]),
        st.sampled_from([1, 2, 2, 4, 8, 12]),
        st.sampled_from("ab"),
        st.sampled_from("xy"),
        st.sampled_from(["pretrain", "evaluation"]),
    ),
    min_size=4,
    max_size=10,
)


def drawn_trace(jobs):
    names = ("submit_s", "runtime_s", "limit_s", "gpus", "users", "names", "kinds")
    columns = dict(zip(names, zip(*jobs, strict=True), strict=True))
    return trace_as_live(trace_from_columns("drawn", **columns), SETTING.gpus_per_node)


def both_doors(trace, policy, setting):
    trace = replayable_rows(trace, setting)
    return starts_on_virtual_cluster(trace, policy, setting), list(run_policy(trace, policy, setting).starts)


@pytest.mark.django_db
@pytest.mark.parametrize(("policy", "given_settings"), POLICIES)
@given(jobs=JOBS)
@examples(2, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_live_cluster_starts_the_same_jobs_on_the_same_nodes_as_a_replay(policy, given_settings, jobs):
    live, replayed = both_doors(drawn_trace(jobs), policy, dataclasses.replace(SETTING, policy_settings=given_settings))

    assert live == replayed
    assert {start.row for start in live} == set(range(len(jobs)))
    assert starts_sha256(live) == starts_sha256(replayed)


def stored_rows():
    """The number of rows of each table."""
    with connection.cursor() as cursor:
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        counts = [f"SELECT '{table}', count(*) FROM \"{table}\"" for table in tables]
        cursor.execute(" UNION ALL ".join(counts))
        return dict(cursor.fetchall())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", ["acme", "tiresias", "qssf-ml"])
def test_doors_agree_in_temporary_tables_of_which_nothing_remains(policy):
    """Twice on one connection: plans of functions that name the real tables, and caches of rows by their ids."""
    make.running(make.job(cluster=make.cluster("seren")))
    setting = dataclasses.replace(SETTING, min_training_jobs=5)
    before = stored_rows()

    for seed in (6, 7):
        live, replayed = both_doors(crowded_trace(seed, jobs=12), policy, setting)
        assert live == replayed and len(live) >= 12
        assert stored_rows() == before
        Job.objects.update(gpus_per_node=1 + seed)  # a trigger writes a row
        before = stored_rows()


@pytest.mark.django_db(transaction=True)
def test_temporary_tables_have_checks_and_triggers_and_can_be_committed():
    heard = []
    with temporary_tables() as commit:
        row = make.job(cluster=make.cluster("kalos"))
        transaction.on_commit(lambda: heard.append("committed"))
        commit()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id_if_assigned() IS NULL")
            assert cursor.fetchone() == (True,)
        with pytest.raises(IntegrityError), transaction.atomic():
            Job.objects.filter(pk=row.pk).update(nodes=-1)
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            Event.objects.update(why="changed")

    assert (heard, Cluster.objects.count()) == ([], 0)


RANKING_POLICIES = [(policy,) for policy in LIVE_POLICIES if POLICY_RULES[policy].preempts]


def crowded_trace(seed, jobs=25):
    """Long jobs that arrive while others run, so that ranks change and jobs are preempted."""
    dice = np.random.default_rng(seed)
    columns = {name: dice.choice(list("abc"), jobs).tolist() for name in ("users", "names")}
    times = {"submit_s": np.sort(dice.integers(0, 4000, jobs)), "runtime_s": dice.integers(1, 3000, jobs)}
    limits = dice.choice([float("nan"), 5000.0], jobs)
    gpus = dice.choice([1, 2, 3, 4, 8, 12], jobs)
    times["deadline_s"] = times["submit_s"] + dice.choice([float("nan"), 600, 3000, 6000], jobs)
    return trace_as_live(trace_from_columns("crowd", gpus=gpus, limit_s=limits, **times, **columns), 4)


@pytest.mark.django_db
@pytest.mark.parametrize(("policy",), cases(RANKING_POLICIES, every=2))
def test_doors_agree_on_jobs_that_are_preempted_by_rank(policy):
    trace = crowded_trace(2)

    live, replayed = both_doors(trace, policy, SETTING)

    assert live == replayed
    assert len(live) > len(trace) + 5


@pytest.mark.django_db
@pytest.mark.parametrize("given_settings", [{}, {"backfill": "conservative"}, {"order": "fair"}])
def test_doors_agree_on_borrowers_that_are_preempted_and_requeued(given_settings):
    dice = np.random.default_rng(5)
    columns = {name: dice.choice(list(words), 40).tolist() for name, words in (("users", "pqr"), ("names", "xy"))}
    columns["kinds"] = dice.choice(["pretrain", "evaluation"], 40).tolist()
    times = {"submit_s": np.sort(dice.integers(0, 120, 40)), "runtime_s": dice.integers(1, 60, 40)}
    trace = trace_from_columns("crowd", gpus=dice.choice([1, 2, 4, 8], 40), **times, **columns)
    setting = dataclasses.replace(SETTING, policy_settings=given_settings)

    live, replayed = both_doors(trace_as_live(trace, SETTING.gpus_per_node), "acme", setting)

    assert live == replayed
    assert len(live) > len(trace)


@pytest.mark.django_db
def test_preempted_borrower_keeps_its_place_in_the_queue_through_both_doors():
    jobs = [
        (0, 7, 20, 12, "a", "x", "evaluation"),
        (1, 5, float("nan"), 4, "b", "x", "evaluation"),
        (2, 8, 20, 1, "a", "x", "pretrain"),
    ]

    live, replayed = both_doors(drawn_trace(jobs), "acme", SETTING)

    assert [start.row for start in live] == [0, 2, 0, 1]
    assert live == replayed


@pytest.mark.django_db
def test_doors_agree_on_predictions_by_trees_that_are_trained_meanwhile():
    dice = np.random.default_rng(6)
    names = [f"{word}-{number}" for word, number in zip(dice.choice(["tune", "eval"], 36), range(36), strict=True)]
    columns = {"names": names, "users": dice.choice(["p", "q"], 36).tolist()}
    columns["kinds"] = dice.choice(["pretrain", "evaluation"], 36).tolist()
    times = {"submit_s": np.sort(dice.integers(0, 200_000, 36)), "runtime_s": dice.integers(1, 40_000, 36)}
    trace = trace_from_columns("weeks", gpus=dice.choice([1, 4, 8], 36), **times, **columns)
    setting = dataclasses.replace(SETTING, min_training_jobs=20)

    live, replayed = both_doors(trace_as_live(trace, SETTING.gpus_per_node), "qssf-ml", setting)
    rolling = starts_on_virtual_cluster(trace_as_live(trace, SETTING.gpus_per_node), "qssf", setting)

    assert live == replayed
    assert live != rolling


@pytest.mark.django_db
def test_doors_agree_on_quotas():
    dice = np.random.default_rng(4)
    columns = {name: dice.choice(list(words), 25).tolist() for name, words in (("users", "pqr"), ("pools", "abc"))}
    columns["kinds"] = dice.choice(["pretrain", "evaluation", "debug"], 25).tolist()
    times = {"submit_s": np.sort(dice.integers(0, 300, 25)), "runtime_s": dice.integers(1, 300, 25)}
    trace = trace_from_columns("crowd", gpus=dice.choice([1, 2, 4, 8], 25), **times, **columns)
    quotas = (QuotaView(team="a", kind=JobKind.PRETRAIN, gpus=4), QuotaView(team="b", kind=None, gpus=8))
    setting = dataclasses.replace(SETTING, quotas=quotas)

    live, replayed = both_doors(trace_as_live(trace, SETTING.gpus_per_node), "acme", setting)

    assert live == replayed


POWERED = [(name,) for name in LIVE_POLICIES if not POLICY_RULES[name].preempts]


@pytest.mark.django_db
@pytest.mark.parametrize(("policy",), cases(POWERED, every=5))
def test_doors_agree_under_a_power_budget(policy):
    """Some kinds and names have enough jobs for a prediction, and the power of the nodes suffices for half of them."""
    dice = np.random.default_rng(9)
    columns = {name: dice.choice(list(words), 36).tolist() for name, words in (("users", "pq"), ("names", "xyz"))}
    columns["kinds"] = dice.choice(["pretrain", "pretrain", "evaluation", "unheard-of"], 36).tolist()
    columns["limit_s"] = dice.choice([float("nan"), 40.0, 90.0], 36)
    milli = dice.choice([0, 0, 0, 250, 700], 36)
    columns["gpus"] = np.where(milli, 0, dice.choice([1, 2, 4, 8], 36))
    times = {"submit_s": np.sort(dice.integers(0, 120, 36)), "runtime_s": dice.integers(1, 60, 36)}
    trace = trace_as_live(trace_from_columns("power", gpu_milli=milli, **times, **columns), SETTING.gpus_per_node)
    bare = dataclasses.replace(SETTING, best_effort=())
    limited = dataclasses.replace(bare, power=PowerSetting(budget_kw=3 * 1.22 + 2.5))

    live, replayed = both_doors(trace, policy, limited)

    assert live == replayed
    assert replayed != list(run_policy(trace, policy, bare).starts)


@pytest.mark.django_db
def test_job_that_needs_more_than_the_budget_comes_through_neither_door():
    trace = drawn_trace([(0, 5, float("nan"), gpus, "a", "x", "sft") for gpus in (12, 4, 4)])
    setting = dataclasses.replace(SETTING, best_effort=(), power=PowerSetting(budget_kw=3 * 1.22 + 3))

    live, replayed = both_doors(trace, "fifo", setting)

    assert live == replayed and [start.row for start in live] == [0, 1]


@pytest.mark.django_db
def test_two_virtual_clusters_share_no_names_so_none_waits_for_the_other():
    trace = drawn_trace([(0, 1, float("nan"), 1, "a", "x", "sft")])

    first, second = (VirtualCluster(trace, "fifo", SETTING, borrows=False) for _ in range(2))
    for virtual in (first, second):
        virtual.submit([0], float(trace.submit_s[0]))

    assert Job.objects.values("public_id", "team", "user", "cluster").distinct().count() == 2


@pytest.mark.django_db
@pytest.mark.parametrize(("policy", "given_settings"), cases([*POLICIES[:3], *POLICIES[-6:]], every=4))
def test_doors_agree_on_shares_of_gpus(policy, given_settings):
    dice = np.random.default_rng(8)
    columns = {name: dice.choice(list(words), 40).tolist() for name, words in (("users", "pqr"), ("names", "xy"))}
    columns["kinds"] = dice.choice(["pretrain", "evaluation"], 40).tolist()
    milli = dice.choice([0, 0, 125, 250, 500, 500, 700], 40)
    columns["gpus"] = np.where(milli, 0, dice.choice([1, 1, 2, 4, 8], 40))
    columns["limit_s"] = dice.choice([float("nan"), 20.0, 90.0], 40)
    times = {"submit_s": np.sort(dice.integers(0, 120, 40)), "runtime_s": dice.integers(1, 60, 40)}
    trace = trace_as_live(trace_from_columns("shares", gpu_milli=milli, **times, **columns), SETTING.gpus_per_node)

    live, replayed = both_doors(trace, policy, dataclasses.replace(SETTING, policy_settings=given_settings))

    assert live == replayed
    assert {start.row for start in live} == set(range(40))


GPU_TYPES = ReplayGpuTypes(
    nodes=(("h100", 1), ("a100", 2)),
    requested="h100|a100",
    speeds=tuple(
        SpeedEntry(pattern=pattern, gpu_model=model, speed=speed)
        for pattern, model, speed in (("x*", "h100", 2), ("x*", "a100", 1), ("y", "h100", 4), ("y", "a100", 1))
    ),
)


def trace_of_types(seed, jobs=16):
    """Jobs of three names: `z` has no speeds. Run times are whole seconds on both models."""
    dice = np.random.default_rng(seed)
    columns = {name: dice.choice(list(words), jobs).tolist() for name, words in (("users", "pq"), ("names", "xyz"))}
    columns["kinds"] = dice.choice(["pretrain", "evaluation"], jobs).tolist()
    times = {"submit_s": np.sort(dice.integers(0, 6000, jobs)), "runtime_s": dice.integers(1, 2000, jobs)}
    limits = dice.choice([float("nan"), 9000.0], jobs)
    return trace_from_columns("types", gpus=dice.choice([1, 2, 4, 4], jobs), limit_s=limits, **times, **columns)


@pytest.mark.django_db
@pytest.mark.parametrize(("policy", "given_settings"), cases(POLICIES, every=7))
def test_doors_agree_on_jobs_that_choose_a_gpu_model(policy, given_settings):
    trace = trace_as_live(trace_of_types(3), SETTING.gpus_per_node)
    setting = dataclasses.replace(SETTING, gpu_types=GPU_TYPES, policy_settings=given_settings)
    without_speeds = dataclasses.replace(setting, gpu_types=dataclasses.replace(GPU_TYPES, speeds=()))

    live, replayed = both_doors(trace, policy, setting)

    assert live == replayed
    assert {start.row for start in live} == set(range(len(trace)))
    assert live != list(run_policy(replayable_rows(trace, setting), policy, without_speeds).starts)


@pytest.mark.django_db
@pytest.mark.parametrize("given_settings", [{}, {"backfill": "conservative"}, {"order": "fair"}])
def test_doors_agree_on_quotas_for_gpu_models(given_settings):
    trace = trace_as_live(trace_of_types(7), SETTING.gpus_per_node)
    trace = dataclasses.replace(trace, pools=trace.users)
    quotas = (
        QuotaView(team="p", kind=None, gpus=4, gpu_model="a100"),
        QuotaView(team="q", kind=JobKind.PRETRAIN, gpus=2, gpu_model="h100"),
    )
    setting = dataclasses.replace(
        SETTING, gpu_types=GPU_TYPES, best_effort=(), quotas=quotas, policy_settings=given_settings
    )

    live, replayed = both_doors(trace, "acme", setting)

    assert live == replayed
    assert live != list(
        run_policy(replayable_rows(trace, setting), "acme", dataclasses.replace(setting, quotas=())).starts
    )


@pytest.mark.django_db
@pytest.mark.parametrize(("policy",), cases(RANKING_POLICIES, every=4))
def test_doors_agree_on_preempted_jobs_that_choose_a_gpu_model(policy):
    """With slowdowns that are no whole numbers, so that work left over from a stop is none either."""
    speeds = [("a", 7, 3), ("b", 1.5, 1), ("c", 1, 1.3)]
    rows = [(name, model, speed) for name, *both in speeds for model, speed in zip(("h100", "a100"), both, strict=True)]
    given = tuple(SpeedEntry(pattern=name, gpu_model=model, speed=speed) for name, model, speed in rows)
    trace = crowded_trace(4, jobs=40)
    setting = dataclasses.replace(SETTING, gpu_types=dataclasses.replace(GPU_TYPES, speeds=given))

    live, replayed = both_doors(trace, policy, setting)

    assert live == replayed
    assert len(live) > len({start.row for start in live}) + 3
