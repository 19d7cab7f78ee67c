"""A live cluster in virtual time starts the same jobs in the same order on the same nodes as a replay."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.traces.trace import trace_from_columns
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.engine.policies.acme import ORDER_RULES
from scheduling.loops.virtual_time import starts_on_virtual_cluster
from scheduling.replay.as_live import starts_sha256, trace_as_live
from scheduling.replay.run import ReplaySetting, replayable_rows, run_policy

SETTING = ReplaySetting(nodes=3, gpus_per_node=4, nodes_per_leaf=2, as_live=True, best_effort=())
POLICIES = [
    *((policy, {}) for policy in LIVE_POLICIES),
    *(("acme", {"order": order}) for order in ORDER_RULES),
    ("acme", {"backfill": "conservative"}),
]
# submission, run time, limit, GPUs, user, name; few values, so that ties are common
JOBS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(1, 30),
        st.sampled_from([5, 20, 40, float("nan")]),
        st.sampled_from([1, 2, 2, 4, 8, 12]),
        st.sampled_from("ab"),
        st.sampled_from("xy"),
    ),
    min_size=4,
    max_size=12,
)


def drawn_trace(jobs):
    names = ("submit_s", "runtime_s", "limit_s", "gpus", "users", "names")
    columns = dict(zip(names, zip(*jobs, strict=True), strict=True))
    return trace_as_live(trace_from_columns("drawn", **columns), SETTING.gpus_per_node)


def both_doors(trace, policy, setting):
    trace = replayable_rows(trace, setting)
    return starts_on_virtual_cluster(trace, policy, setting), list(run_policy(trace, policy, setting).starts)


@pytest.mark.django_db
@pytest.mark.parametrize(("policy", "given_settings"), POLICIES)
@given(jobs=JOBS)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_live_cluster_starts_the_same_jobs_on_the_same_nodes_as_a_replay(policy, given_settings, jobs):
    live, replayed = both_doors(drawn_trace(jobs), policy, dataclasses.replace(SETTING, policy_settings=given_settings))

    assert live == replayed
    assert len(live) == len(jobs)
    assert starts_sha256(live) == starts_sha256(replayed)
