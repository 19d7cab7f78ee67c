"""The engine's indexes agree with its running and waiting jobs, and its caches change no decision."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.lifecycle import JobKind
from scheduling.engine.cluster import QuotaView
from scheduling.whatif.replay.kernel import Outage
from scheduling.whatif.replay.policies import REPLAY_POLICIES
from tests.properties import examples
from tests.scheduling.whatif.replay.replaying import SMALL, trace, watched

kinds = st.sampled_from([JobKind.EVALUATION, JobKind.PRETRAIN])
# Many small jobs at once, so that jobs wait and GPUs come free one by one
job_rows = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 20), st.sampled_from([1, 1, 2, 3, 4, 8]), kinds),
    min_size=12,
    max_size=30,
)
outages = st.lists(st.builds(lambda at, node: Outage(at=at, until=at + 5, node=node), st.integers(0, 30), st.just(1)))
SETTINGS = {
    "gangs": SMALL,
    "quotas": dataclasses.replace(SMALL, quotas=(QuotaView(team="", kind=JobKind.PRETRAIN, gpus=8),)),
}


def history(rows):
    return trace(*(row[:3] for row in rows), kinds=[row[3] for row in rows])


@pytest.mark.parametrize("policy", REPLAY_POLICIES)
@given(rows=job_rows, closed=outages)
@examples(25)
def test_indexes_have_exactly_the_running_and_waiting_jobs(policy, rows, closed):
    def look(engine, now):
        rules, running = engine.rules, list(engine.running.values())
        ends = sorted((job.since + job.expected_s, job.number, job) for job in running)
        ranks = sorted((job.band, job.key, job.number, job) for job in running)
        borrowers = [job for job in running if job.group.borrows] if rules.claims else []

        assert engine.running.by_end == (ends if rules.plans else [])
        assert engine.running.by_rank == (ranks if rules.preempts else [])
        assert list(engine.borrowers.jobs.values()) == borrowers
        assert set(engine.waiting_groups) == {group for group in engine.groups.values() if group.queue}
        free = engine.resources.copy()
        for job in borrowers:
            free.give(job.places, job.group.need)
        assert free.free == engine.owner_resources.free

    watched(history(rows), policy, SMALL, look, outages=closed)


# `turns/easy` remembers more and may overlook short jobs (`RequestGroup.no_backfill_under`)
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("policy", [name for name in REPLAY_POLICIES if name not in ("easy", "acme")])
@given(rows=job_rows, closed=outages)
@examples(25)
def test_turn_that_tries_all_jobs_decides_the_same(policy, setting, rows, closed):
    def remember_nothing(engine, now):
        engine.changes.record_any_change(engine.resources)

    with_caches, without = (
        watched(history(rows), policy, setting, look, outages=closed if setting is SMALL else ())
        for look in (lambda engine, now: None, remember_nothing)
    )

    assert repr(with_caches) == repr(without)  # nan for jobs that no quota admits
