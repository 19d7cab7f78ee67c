"""Simulations that people ask for: through the door, carried out by a worker, and what happens when one dies."""

from datetime import timedelta

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from jobs.actions.journal import Author
from jobs.models import Cluster, Event, Job, TeamRole, TokenScope, clock
from scheduling.actions import simulations as actions
from scheduling.actions.simulations import (
    MAX_SIMULATION_TRIES,
    MAX_UNFINISHED_PER_USER,
    SimulationStateConflict,
    TooManySimulations,
)
from scheduling.loops.simulations import delete_old_simulations, has_free_simulation, run_simulation_once
from scheduling.models import WORKER_SILENCE_LIMIT, Simulation, SimulationState
from scheduling.queries.traces import history_trace
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db

SMALL = {"trace": "acme:kalos", "policies": ["fifo", "easy"], "jobs": 60}


@pytest.fixture
def ada():
    make.cluster()
    return Caller(make.person("ada"))


def state_of(simulation):
    simulation.refresh_from_db()
    return simulation.state


def by(user):
    return Author(by=user.username, user_id=user.pk)


# through the door


def test_a_simulation_is_asked_for_carried_out_and_read(ada):
    asked = ada.post("simulations/", SMALL)
    assert asked.status_code == 201
    assert asked.json()["state"] == "PENDING"
    assert asked.json()["result"] is None

    run_simulation_once(clock.now)

    told = ada.get(asked.headers["Location"].partition("/api/v1/")[2]).json()
    assert (told["state"], told["progress"], told["error"]) == ("COMPLETED", 100, "")
    assert [run["policy"] for run in told["result"]["runs"]] == ["fifo", "easy"]
    assert told["result"]["jobs"] == 60
    assert {"of", "points", "jobs"} == set(told["result"]["distances"][0])


def test_the_list_leaves_results_out(ada):
    make.simulation(ada.user)

    row = ada.get("simulations/", {"state": "PENDING"}).json()["results"][0]

    assert "result" not in row
    assert row["asked"] == {"jobs": 50}


def test_the_same_key_asks_once(ada):
    first, second = (ada.post("simulations/", SMALL, **{"Idempotency-Key": "k1"}) for _ in range(2))

    assert first.json()["id"] == second.json()["id"]
    assert Simulation.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "field", "why"),
    [
        ({"trace": "acme:mars"}, "trace", "none of acme:seren"),
        ({"policies": ["lottery"]}, "policies", "none of fifo"),
        ({"policies": []}, "policies", "between 1 and"),
        ({"jobs": 0}, "jobs", "0"),
        ({"jobs": 700_000, "policies": ["fifo", "sjf", "easy"]}, "jobs", "may replay"),
        ({"nodes": 0}, "nodes", "0"),
        ({"faults": "lightning=1"}, "faults", "'lightning' is none of"),
        ({"noise": "loud"}, "noise", "none of none, helios"),
        ({"placement": "cells"}, "placement", "needs vcs"),
        ({"vcs": {"a": "two"}}, "vcs", "text"),
        ({"days": 3}, "days", "belongs to history"),
        ({"pages": 3}, "pages", ""),
        ({"team": "speech"}, "team", "no team"),
        ({"checkpoint_s": -1}, "checkpoint_s", "not between"),
        ({"checkpoint_s": 60, "faults": "checkpoint_s=90"}, "checkpoint_s", "say one of them"),
        ({"best_effort": "sleep"}, "best_effort", "sleep is none of"),
        ({"quota": []}, "quota", "between 1 and"),
        ({"quota": ["a"]}, "quota", "not an object"),
        ({"quota": [{"team": "a"}]}, "quota", "not a number of GPUs"),
        ({"quota": [{"team": "a", "gpus": 1}, {"team": "a", "gpus": 2}]}, "quota", "entry 1: 'a' with all kinds is"),
        ({"quota": [{"team": "a", "kind": "sleep", "gpus": 8}]}, "kind", "none of"),
        ({"quota": [{"team": "a", "gpus": 8}], "policies": ["srtf"]}, "quota", "srtf keeps no quotas"),
        ({"policy_settings": {"sjf": {}}}, "policy_settings", "none of the policies that are replayed"),
        ({"policy_settings": {"fifo": 3}}, "policy_settings", "an object for each policy"),
        ({"policy_settings": {"fifo": {"order": "luck"}}}, "policy_settings", "fifo"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_its_field(ada, change, field, why):
    answer = ada.post("simulations/", SMALL | change)

    assert answer.status_code == 400
    assert why in answer.json()[field][0]
    assert not Simulation.objects.exists()


def test_one_person_does_not_fill_the_queue(ada):
    for _ in range(MAX_UNFINISHED_PER_USER):
        make.simulation(ada.user)

    answer = ada.post("simulations/", SMALL)

    assert answer.status_code == 409
    assert "cancel one or wait" in answer.json()["detail"]


def test_a_colleague_cancels_as_operator_only(ada):
    theirs = make.simulation(make.person("bob"))
    operator = Caller(make.person("olga", role=TeamRole.OPERATOR))

    assert ada.post(f"simulations/{theirs}/cancel/").status_code == 403
    assert Caller(operator.user, TokenScope.SUBMIT).post(f"simulations/{theirs}/cancel/").status_code == 403
    assert operator.post(f"simulations/{theirs}/cancel/").json()["state"] == "CANCELLED"
    assert operator.post(f"simulations/{theirs}/cancel/").status_code == 409


def test_each_change_has_its_event(ada):
    made = make.simulation(ada.user)
    run_simulation_once(clock.now)

    events = Event.objects.filter(detail__simulation=str(made)).order_by("id")

    assert [(one.what, one.to_state, one.by) for one in events] == [
        ("simulation.asked", "PENDING", "ada"),
        ("simulation.moved", "RUNNING", "simulator"),
        ("simulation.moved", "COMPLETED", "simulator"),
    ]


# our own history


def past(user, minutes=10, **asked):
    """A job that waited a minute and ran."""
    job = make.job(user, in_team=user.teams.get().name, **asked)
    came = clock.now() - timedelta(hours=2)
    Job.objects.filter(pk=job.pk).update(
        submitted_at=came,
        started_at=came + timedelta(minutes=1),
        ended_at=came + timedelta(minutes=1 + minutes),
        state="COMPLETED",
    )
    return job


def test_our_own_history_is_replayed(ada):
    past(ada.user, minutes=10, nodes=2, gpus_per_node=8)
    past(ada.user, minutes=5, gpus_per_node=1)
    make.job(ada.user)  # has not run

    asked = ada.post("simulations/", {"trace": "history", "policies": ["fifo"]})
    run_simulation_once(clock.now)

    told = ada.get(f"simulations/{asked.json()['id']}/").json()
    assert told["asked"]["cluster"] == "seren"
    assert told["result"]["runs"][0]["jobs"] == 2
    assert told["result"]["runs"][0]["jct_s"]["mean"] == 450


def test_a_quota_holds_a_team_back_and_one_of_nobody_is_a_sentence(ada):
    past(ada.user, minutes=10, gpus_per_node=8)
    past(ada.user, minutes=5, gpus_per_node=8)

    def replayed(team):
        quota = [{"team": team, "gpus": 8}]
        asked = ada.post("simulations/", {"trace": "history", "policies": ["fifo"], "quota": quota})
        run_simulation_once(clock.now)
        return ada.get(f"simulations/{asked.json()['id']}/").json()

    assert replayed("vision")["result"]["runs"][0]["jct_s"]["mean"] == pytest.approx(750, abs=60)  # one after the other
    told = replayed("speech")
    assert (told["state"], told["error"]) == ("FAILED", "quota: nobody in the trace is of team 'speech'")


def test_a_policy_is_replayed_with_its_settings_and_checkpoints(ada):
    for minutes in (10, 10, 5):  # the first starts at once, the order of the others is the policy's
        past(ada.user, minutes=minutes, gpus_per_node=8)
    alike = {"trace": "history", "policies": ["acme"], "nodes": 1, "checkpoint_s": 600, "best_effort": "evaluation"}

    def mean(order):
        asked = ada.post("simulations/", alike | {"policy_settings": {"acme": {"order": order}}})
        run_simulation_once(clock.now)
        told = ada.get(f"simulations/{asked.json()['id']}/").json()
        assert told["asked"]["checkpoint_s"] == 600 and told["error"] == ""
        return told["result"]["runs"][0]["jct_s"]["mean"]

    assert mean("fifo") == pytest.approx(1100, abs=60)
    assert mean("sjf") == pytest.approx(1000, abs=40)


def test_a_history_holds_the_jobs_of_ones_teams_unless_one_runs_the_machines(ada):
    past(ada.user)
    past(make.person("grace", in_team="speech"))

    def replayed(caller):
        asked = caller.post("simulations/", {"trace": "history", "policies": ["fifo"]})
        run_simulation_once(clock.now)
        told = caller.get(f"simulations/{asked.json()['id']}/").json()
        assert "teams" not in told["asked"]
        return told["result"]["jobs"]

    assert replayed(ada) == 1
    assert replayed(Caller(make.operator("olga"))) == 2


def test_a_history_without_jobs_fails_with_a_sentence(ada):
    ada.post("simulations/", {"trace": "history", "policies": ["fifo"]})

    simulation = run_simulation_once(clock.now)

    assert state_of(simulation) == SimulationState.FAILED
    assert simulation.error == "trace: history of seren holds no job that ran"


def test_the_history_is_the_trace_of_the_record(ada):
    job = past(ada.user, minutes=10, nodes=2, gpus_per_node=8, time_limit="1:00:00")
    now = clock.now()

    trace = history_trace("seren", now - timedelta(days=1), now, 10)

    assert trace.ids == [str(job)]
    assert (trace.users[0], trace.pools[0], trace.gpus[0]) == ("ada", "vision", 16)
    assert (trace.runtime_s[0], trace.queue_s[0], trace.limit_s[0]) == (600, 60, 3600)
    assert len(history_trace("seren", now - timedelta(days=1), now, 10, teams=[])) == 0


# the loop: who is eligible, in which order; others who move the row; one that blows up


def test_the_oldest_goes_first_and_one_at_a_time(ada):
    first, second = make.simulation(ada.user), make.simulation(make.person("bob"))
    now = clock.now()

    assert actions.claim_simulation(now) == first
    assert actions.claim_simulation(now) is None
    actions.finish(first_taken := Simulation.objects.get(pk=first.pk), {"runs": []}, now)
    assert first_taken.tries == 1
    assert actions.claim_simulation(now) == second


def test_a_worker_that_died_is_followed_by_another_and_can_change_nothing_any_more(ada):
    make.simulation(ada.user)
    dead = actions.claim_simulation(clock.now())
    later = clock.now() + WORKER_SILENCE_LIMIT

    again = actions.claim_simulation(later)

    assert (again, again.tries) == (dead, 2)
    for deed in (
        lambda: actions.report_progress(dead, 50, later),
        lambda: actions.finish(dead, {"runs": []}, later),
        lambda: actions.fail(dead, "x", later),
    ):
        with pytest.raises(SimulationStateConflict):
            deed()
    actions.finish(again, {"runs": []}, later)
    assert state_of(again) == SimulationState.COMPLETED


def test_what_kills_its_worker_every_time_is_given_up(ada):
    made = make.simulation(ada.user)
    now = clock.now()
    for _ in range(MAX_SIMULATION_TRIES):
        assert actions.claim_simulation(now) == made
        now += WORKER_SILENCE_LIMIT

    assert actions.claim_simulation(now) is None
    assert state_of(made) == SimulationState.FAILED
    assert "died 3 times" in made.error


def test_who_cancels_a_running_one_ends_it_at_its_next_report(ada):
    made = make.simulation(ada.user)

    def cancelled_in_between():
        now = clock.now()
        if state_of(made) == SimulationState.RUNNING:
            actions.cancel(made, author=by(ada.user), now=now)
        return now

    run_simulation_once(cancelled_in_between, report_s=0)

    assert state_of(made) == SimulationState.CANCELLED
    assert made.result is None


def test_one_that_blows_up_says_so_and_the_next_goes_on(ada, caplog):
    broken = make.simulation(ada.user, params={"jobs": "many"})
    fine = make.simulation(ada.user)

    run_simulation_once(clock.now)
    run_simulation_once(clock.now)

    assert (state_of(broken), state_of(fine)) == (SimulationState.FAILED, SimulationState.COMPLETED)
    assert "reason of ours" in broken.error
    assert "Traceback" in caplog.text


def test_one_that_takes_too_long_fails_with_a_sentence(ada):
    made = make.simulation(ada.user)

    def over():
        if state_of(made) == SimulationState.RUNNING and not over.told:
            over.told = True
            raise SoftTimeLimitExceeded
        return clock.now()

    over.told = False
    run_simulation_once(over)

    assert state_of(made) == SimulationState.FAILED
    assert "ask for fewer" in made.error


def test_ended_ones_are_forgotten_after_a_quarter_of_a_year(ada):
    old, young, waiting = (make.simulation(ada.user) for _ in range(3))
    now = clock.now()
    for one, age in ((old, 91), (young, 89)):
        actions.cancel(one, author=by(ada.user), now=now - timedelta(days=age))

    assert delete_old_simulations(now) == 1
    assert set(Simulation.objects.all()) == {young, waiting}
    assert has_free_simulation(now)


def test_asking_for_too_many_raises_before_anything_is_written(ada):
    for _ in range(MAX_UNFINISHED_PER_USER):
        make.simulation(ada.user)
    events = Event.objects.count()

    with pytest.raises(TooManySimulations):
        make.simulation(ada.user)
    assert (Simulation.objects.count(), Event.objects.count()) == (MAX_UNFINISHED_PER_USER, events)


def test_a_cluster_that_is_gone_is_a_sentence(ada):
    made = make.simulation(ada.user, trace="history", params={"cluster": "seren", "days": 1})
    Cluster.objects.all()[0].nodes.all().delete()

    run_simulation_once(clock.now)

    assert state_of(made) == SimulationState.FAILED
    assert made.error.startswith("nodes: ")
