"""The faults that a storm injects, and their order."""

from __future__ import annotations

from itertools import islice
from random import Random

from tests.chaos import faults
from tests.chaos.storm import Settings


def names(drawn):
    return [fault.name for fault in drawn]


def test_each_lasting_fault_is_injected_once_before_any_is_repeated():
    every = faults.lasting(quick=False)

    drawn = list(islice(faults.plan(every, Random(1)), len(every)))

    assert sorted(names(drawn)) == sorted(names(every))


def test_order_of_faults_depends_only_on_the_seed():
    def drawn(seed):
        return names(islice(faults.plan(faults.lasting(quick=False), Random(seed)), 30))

    assert drawn(1) == drawn(1) != drawn(2)


def test_only_short_faults_are_repeated():
    every = faults.lasting(quick=False)

    later = list(islice(faults.plan(every, Random(1)), 60))[len(every) :]

    assert {fault.times for fault in later} == {2}


def test_short_storm_injects_no_long_fault():
    assert set(names(faults.lasting(quick=True))).isdisjoint(["read_only", "failover", "stopped", "full_postgres"])


def test_names_of_faults_are_distinct():
    assert len({fault.name for fault in faults.EVERY}) == len(faults.EVERY)


def test_both_kinds_of_clusters_are_drawn():
    drawn = {Settings(seed=seed, storm_s=1, jobs=1).environment["ACME_CLUSTER_ACCOUNTING"] for seed in range(20)}

    assert drawn == {"0", "1"}


def test_storm_can_be_limited_to_some_faults():
    settings = Settings(seed=1, storm_s=1, jobs=1, only=frozenset(["beat", "failover"]))

    assert (names(settings.instant), names(settings.lasting), settings.neighbor) == (["beat"], ["failover"], False)


def test_storm_without_lasting_faults_injects_none():
    assert list(faults.plan([], Random(1))) == []
