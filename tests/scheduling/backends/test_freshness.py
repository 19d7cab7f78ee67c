"""A listing older than a previous one is rejected, until a clock that was set back is the better explanation."""

from __future__ import annotations

import pytest

from scheduling.backends.base import ClusterUnreachable
from scheduling.backends.seen import ACCEPT_OLDER_AFTER_S, FreshnessChecker, StaleListing
from scheduling.backends.slurm import SlurmBackend
from tests.scheduling.backends.test_slurm import UP, slurmrestd


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_listings_in_order_and_of_the_same_second_are_fresh(clock):
    freshness = FreshnessChecker(clock)

    for made_at in (10, 10, 11, None, 11):
        freshness.check_listing_time("jobs", made_at)


def test_older_listing_is_stale_and_each_kind_has_its_own_time(clock):
    freshness = FreshnessChecker(clock)
    freshness.check_listing_time("jobs", 10)
    freshness.check_listing_time("nodes", 5)

    with pytest.raises(StaleListing, match="1 s older"):
        freshness.check_listing_time("jobs", 9)


def test_older_listings_for_a_while_count_as_a_clock_set_back(clock):
    freshness = FreshnessChecker(clock)
    freshness.check_listing_time("jobs", 1000)
    with pytest.raises(StaleListing):
        freshness.check_listing_time("jobs", 700)

    clock.now += ACCEPT_OLDER_AFTER_S
    freshness.check_listing_time("jobs", 730)

    freshness.check_listing_time("jobs", 731)
    with pytest.raises(StaleListing):
        freshness.check_listing_time("jobs", 729)


def test_one_fresh_listing_resets_the_suspicion(clock):
    freshness = FreshnessChecker(clock)
    freshness.check_listing_time("jobs", 1000)
    with pytest.raises(StaleListing):
        freshness.check_listing_time("jobs", 700)
    freshness.check_listing_time("jobs", 1001)

    clock.now += ACCEPT_OLDER_AFTER_S
    with pytest.raises(StaleListing):
        freshness.check_listing_time("jobs", 700)


@pytest.mark.parametrize("what", ["jobs", "nodes"])
def test_cached_listing_is_unreachable(clock, what):
    def answer(made_at):
        return 200, {"jobs": [], "nodes": [], "errors": [], "last_update": {"set": True, "number": made_at}}

    answers = {**UP, f"GET /{what}": answer(1000), "GET /jobs/state/": (500, "")}
    with slurmrestd(answers, api="v0.0.40") as (address, requests):
        backend = SlurmBackend(address, monotonic=clock)
        look = getattr(backend, what)
        look()
        answers[f"GET /{what}"] = answer(990)

        with pytest.raises(ClusterUnreachable, match="10 s older than the previous one"):
            look()
        backend.close()

    assert requests[-1][3]["Cache-Control"] == "no-cache"
