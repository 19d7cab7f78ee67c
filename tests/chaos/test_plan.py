"""The faults that a storm injects, and their order."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from tests.chaos import faults
from tests.chaos.clusters.kubernetes import KubernetesCluster
from tests.chaos.clusters.slurm import SlurmCluster
from tests.chaos.storm import DRAWN_KINDS, DRAWN_POLICIES, KINDS, Settings

ALL_KINDS = (SlurmCluster, KubernetesCluster)


def names(drawn):
    return [fault.name for fault in drawn]


def test_each_lasting_fault_is_injected_once_before_any_is_repeated():
    every = faults.lasting(ALL_KINDS, quick=False)

    drawn = list(islice(faults.plan(every, Random(1)), len(every)))

    assert sorted(names(drawn)) == sorted(names(every))


def test_order_of_faults_depends_only_on_the_seed():
    def drawn(seed):
        return names(islice(faults.plan(faults.lasting(ALL_KINDS, quick=False), Random(seed)), 30))

    assert drawn(1) == drawn(1) != drawn(2)


def test_only_short_faults_are_repeated():
    every = faults.lasting(ALL_KINDS, quick=False)

    later = list(islice(faults.plan(every, Random(1)), 60))[len(every) :]

    assert {fault.times for fault in later} == {2}


def test_short_storm_injects_no_long_fault():
    assert set(names(faults.lasting(ALL_KINDS, quick=True))).isdisjoint(
        ["read_only", "failover", "stopped", "full_postgres"]
    )


def test_names_of_faults_are_distinct():
    assert len({fault.name for fault in faults.EVERY}) == len(faults.EVERY)


def test_clusters_and_policies_of_all_kinds_are_drawn():
    drawn = [Settings(seed=seed, storm_s=1, jobs=1) for seed in range(40)]

    assert {settings.environment["ACME_CLUSTER_ACCOUNTING"] for settings in drawn} == {"0", "1"}
    assert {settings.kinds for settings in drawn} == set(DRAWN_KINDS)
    assert {settings.policy for settings in drawn} == set(DRAWN_POLICIES)


@pytest.mark.parametrize(("kind", "other"), [("slurm", "kubernetes"), ("kubernetes", "slurm")])
def test_storm_injects_only_faults_that_its_clusters_can_have(kind, other):
    settings = Settings(seed=1, storm_s=1, jobs=1, only_kinds=(kind,))
    kinds = {fault.kind for fault in (*settings.instant, *settings.lasting)}

    assert KINDS[kind] in kinds
    assert KINDS[other] not in kinds


def test_storm_can_be_limited_to_some_faults():
    settings = Settings(seed=1, storm_s=1, jobs=1, only=frozenset(["web", "failover"]))

    assert (names(settings.instant), names(settings.lasting), settings.neighbor) == (["web"], ["failover"], False)


def test_storm_without_lasting_faults_injects_none():
    assert list(faults.plan([], Random(1))) == []
