"""Simulations requested by users: through the API, run by a worker, and after a worker has died."""

from datetime import timedelta

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from acmeweb.common.errors import StateConflict
from jobs.actions.journal import Author
from jobs.models import Cluster, Event, Job, TeamRole, TokenScope, clock
from scheduling.models import WORKER_SILENCE_LIMIT, Simulation, SimulationState
from scheduling.whatif.actions import simulations as simulation_actions
from scheduling.whatif.actions.simulations import MAX_SIMULATION_TRIES, MAX_UNFINISHED_PER_USER
from scheduling.whatif.loops import delete_old_simulations, has_free_simulation, run_simulation_once
from scheduling.whatif.reads.traces import history_trace
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db

SMALL = {"trace": "acme:kalos", "policies": ["fifo", "easy"], "jobs": 60}
PROFILE = {"name": "x", "gpu_percent": 30, "memory_mb": 2_000}
PAIR = {"name1": "x", "name2": "x", "speed1": 0.9, "speed2": 0.9}
PACKED = {"profiles": [PROFILE], "policies": ["lucid"]}


@pytest.fixture
def ada():
    make.cluster()
    return Caller(make.person("ada"))


def state_of(simulation):
    simulation.refresh_from_db()
    return simulation.state


def by(user):
    return Author(by=user.username, user_id=user.pk)


# through the API


def test_simulation_is_requested_run_and_read(ada):
    response = ada.post("simulations/", SMALL)
    assert response.status_code == 201
    assert response.json()["state"] == "PENDING"
    assert response.json()["result"] is None

    run_simulation_once(clock.now)

    result = ada.get(response.headers["Location"].partition("/api/v1/")[2]).json()
    assert (result["state"], result["progress"], result["error"]) == ("COMPLETED", 100, "")
    assert [run["policy"] for run in result["result"]["runs"]] == ["fifo", "easy"]
    assert result["result"]["jobs"] == 60
    assert {"of", "points", "jobs"} == set(result["result"]["distances"][0])


def test_result_has_energy_cost_peak_power_and_wakes_under_a_budget(ada):
    asked = {"power_budget_kw": 500, "price_per_kwh": 0.2, "sleep": True}
    response = ada.post("simulations/", SMALL | asked)
    assert response.status_code == 201

    run_simulation_once(clock.now)

    simulation = ada.get(response.headers["Location"].partition("/api/v1/")[2]).json()
    assert simulation["request"] == {"jobs": 60, **asked}
    for run in simulation["result"]["runs"]:
        power = run["power"]
        assert power["peak_kw"] <= power["budget_kw"] == 500 and power["above_budget_s"] == 0
        assert power["cost"] == pytest.approx(0.2 * power["kwh"]) and power["kwh"] > 0
        assert power["sleep"]["node_wakes"] >= 0 and power["sleep"]["kwh"] <= power["kwh"]


def test_result_has_no_power_unless_asked_for(ada):
    response = ada.post("simulations/", SMALL | {"energy": False, "sleep": False, "policies": ["acme"]})
    run_simulation_once(clock.now)

    simulation = ada.get(response.headers["Location"].partition("/api/v1/")[2]).json()
    assert "power" not in simulation["result"]["runs"][0]


def test_list_omits_results(ada):
    make.simulation(ada.user)

    row = ada.get("simulations/", {"state": "PENDING"}).json()["results"][0]

    assert "result" not in row
    assert row["request"] == {"jobs": 50}


def test_same_idempotency_key_creates_one_simulation(ada):
    first, second = (ada.post("simulations/", SMALL, **{"Idempotency-Key": "k1"}) for _ in range(2))

    assert first.json()["id"] == second.json()["id"]
    assert Simulation.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "field", "why"),
    [
        ({"trace": "acme:mars"}, "trace", "not one of acme:seren"),
        ({"policies": ["lottery"]}, "policies", "not one of fifo"),
        ({"policies": []}, "policies", "between 1 and"),
        ({"jobs": 0}, "jobs", "0"),
        ({"jobs": 700_000, "policies": ["fifo", "sjf", "easy"]}, "jobs", "can be replayed under"),
        ({"nodes": 0}, "nodes", "0"),
        ({"faults": "lightning=1"}, "faults", "'lightning' is not one of"),
        ({"noise": "loud"}, "noise", "not one of none, helios"),
        ({"placement": "cells"}, "placement", "needs vcs"),
        ({"vcs": {"a": "two"}}, "vcs", "text"),
        ({"days": 3}, "days", "only allowed for history"),
        ({"pages": 3}, "pages", ""),
        ({"team": "speech"}, "team", "not a member of team"),
        ({"checkpoint_s": -1}, "checkpoint_s", "not between"),
        ({"checkpoint_s": 60, "faults": "checkpoint_s=90"}, "checkpoint_s", "give only one of them"),
        ({"best_effort": "sleep"}, "best_effort", "sleep is not one of"),
        ({"quota": []}, "quota", "between 1 and"),
        ({"quota": ["a"]}, "quota", "not an object"),
        ({"quota": [{"team": "a"}]}, "quota", "not a number of GPUs"),
        ({"quota": [{"team": "a", "gpus": 1}, {"team": "a", "gpus": 2}]}, "quota", "entry 1: 'a' with all kinds is"),
        ({"quota": [{"team": "a", "kind": "sleep", "gpus": 8}]}, "kind", "not one of"),
        ({"quota": [{"team": "a", "gpus": 8}], "policies": ["srtf"]}, "quota", "srtf does not support quotas"),
        ({"policies": ["lucid"]}, "profiles", "lucid needs the profiles of the jobs"),
        ({"profiles": [PROFILE]}, "profiles", "no policy of fifo, easy lets jobs share GPUs"),
        ({"profiles": [PROFILE, PROFILE], "policies": ["lucid"]}, "profiles", "entry 1: duplicate entry 'x'"),
        ({"profiles": [PROFILE | {"gpu_percent": 101}], "policies": ["lucid"]}, "gpu_percent", "not between 0 and 100"),
        ({"profiles": [{"name": "x"}], "policies": ["lucid"]}, "profiles", "entry 0: gpu_percent '' is not a number"),
        ({"profiles": [PROFILE | {"score": 3}], "policies": ["lucid"]}, "score", "3"),
        ({"pair_speeds": [PAIR], "policies": ["lucid"]}, "profiles", "is needed with pair_speeds"),
        (PACKED | {"pair_speeds": [PAIR | {"name2": "y"}]}, "pair_speeds", "entry 0: 'y' is not a name in profiles"),
        (PACKED | {"pair_speeds": [PAIR | {"speed1": 0}]}, "pair_speeds", "a speed must be above 0"),
        (PACKED | {"pair_speeds": [PAIR, PAIR]}, "pair_speeds", "duplicate entry 'x' with 'x'"),
        (PACKED | {"draw_profiles": "yes"}, "draw_profiles", "not true or false"),
        (PACKED | {"energy": True, "best_effort": ""}, "policies", "lucid packs jobs, which energy cannot cover"),
        (PACKED | {"quota": [{"team": "a", "gpus": 8}]}, "quota", "lucid does not support quotas"),
        (PACKED | {"faults": "rates"}, "faults", "cannot be combined with lucid"),
        (PACKED | {"checkpoint_s": 60}, "checkpoint_s", "cannot be combined with lucid"),
        (PACKED | {"policy_settings": {"lucid": {"run_times": "best"}}}, "policy_settings", "'best' is not one of"),
        ({"energy": "yes"}, "energy", "not true or false"),
        ({"sleep": 1}, "sleep", "not true or false"),
        ({"sleep": True, "placement": "count"}, "sleep", "needs a placement on nodes"),
        ({"power_budget_kw": "much"}, "power_budget_kw", "not a number"),
        ({"power_budget_kw": True}, "power_budget_kw", "not a number"),
        ({"power_budget_kw": -1}, "power_budget_kw", "not between 0 and 1000000000"),
        ({"power_budget_kw": 1e300}, "power_budget_kw", "not between 0 and 1000000000"),
        ({"power_budget_kw": 0}, "power_budget_kw", "0 is not above the"),
        ({"power_budget_kw": 900, "placement": "tune"}, "power_budget_kw", "placement tune does not support"),
        ({"price_per_kwh": -0.1}, "price_per_kwh", "not between 0 and 1000000000"),
        ({"price_per_kwh": 1, "faults": "rates"}, "faults", "cannot be combined with price_per_kwh"),
        ({"energy": True, "vcs": {"a": 3}}, "vcs", "cannot be combined with energy"),
        ({"energy": True, "policies": ["srtf"]}, "policies", "srtf preempts jobs, which energy does not cover"),
        ({"sleep": True, "policies": ["acme"]}, "best_effort", "must be empty for acme with sleep"),
        ({"policy_settings": {"sjf": {}}}, "policy_settings", "not one of the replayed policies"),
        ({"policy_settings": {"fifo": 3}}, "policy_settings", "an object per policy"),
        ({"policy_settings": {"fifo": {"order": "luck"}}}, "policy_settings", "fifo"),
    ],
)
def test_invalid_replay_is_rejected_by_field(ada, change, field, why):
    answer = ada.post("simulations/", SMALL | change)

    assert answer.status_code == 400
    assert why in answer.json()[field][0]
    assert not Simulation.objects.exists()


def test_user_cannot_fill_the_queue(ada):
    for _ in range(MAX_UNFINISHED_PER_USER):
        make.simulation(ada.user)

    answer = ada.post("simulations/", SMALL)

    assert answer.status_code == 409
    assert "Cancel one or wait" in answer.json()["detail"]


def test_only_operators_cancel_simulations_of_others(ada):
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

    assert [(one.type, one.to_state, one.by) for one in events] == [
        ("simulation.created", "PENDING", "ada"),
        ("simulation.state_changed", "RUNNING", "simulator"),
        ("simulation.state_changed", "COMPLETED", "simulator"),
    ]


# own history


def past(user, minutes=10, **asked):
    """A job that waited a minute and ran."""
    job = make.job(user, in_team=user.teams.get().name, **asked)
    submitted_at = clock.now() - timedelta(hours=2)
    Job.objects.filter(pk=job.pk).update(
        submitted_at=submitted_at,
        started_at=submitted_at + timedelta(minutes=1),
        ended_at=submitted_at + timedelta(minutes=1 + minutes),
        state="COMPLETED",
    )
    return job


def test_own_history_is_replayed(ada):
    past(ada.user, minutes=10, nodes=2, gpus_per_node=8)
    past(ada.user, minutes=5, gpus_per_node=1)
    make.job(ada.user)  # a job that has not run

    response = ada.post("simulations/", {"trace": "history", "policies": ["fifo"]})
    run_simulation_once(clock.now)

    result = ada.get(f"simulations/{response.json()['id']}/").json()
    assert result["request"]["cluster"] == "seren"
    assert result["result"]["runs"][0]["jobs"] == 2
    assert result["result"]["runs"][0]["jct_s"]["mean"] == 450


def test_quota_limits_a_team_and_an_unknown_team_is_an_error(ada):
    past(ada.user, minutes=10, gpus_per_node=8)
    past(ada.user, minutes=5, gpus_per_node=8)

    def replayed(team):
        quota = [{"team": team, "gpus": 8}]
        response = ada.post("simulations/", {"trace": "history", "policies": ["fifo"], "quota": quota})
        run_simulation_once(clock.now)
        return ada.get(f"simulations/{response.json()['id']}/").json()

    assert replayed("vision")["result"]["runs"][0]["jct_s"]["mean"] == pytest.approx(750, abs=60)  # one after the other
    result = replayed("speech")
    assert (result["state"], result["error"]) == ("FAILED", "quota: the trace has no team 'speech'")


def test_jobs_share_gpus_if_the_policy_packs_and_their_profiles_are_given(ada):
    for _ in range(2):
        past(ada.user, minutes=10, gpus_per_node=8)

    def replayed(name, **asked):
        profiles = [PROFILE | {"name": name}]
        body = {"trace": "history", "policies": ["lucid"], "profiles": profiles, **asked}
        run_id = ada.post("simulations/", body).json()["id"]
        run_simulation_once(clock.now)
        return ada.get(f"simulations/{run_id}/").json()

    unknown = replayed("nobody")
    assert (unknown["state"], unknown["error"][:43]) == ("FAILED", "profiles: none of the 2 jobs of the trace h")
    drawn = replayed("nobody", draw_profiles=True)["result"]["runs"][0]["packing"]
    assert drawn == {"profiled_jobs": 2, "profiles_are_drawn": True, "packed_jobs": 2, "slowed_h": 0}


def test_policy_is_replayed_with_its_settings_and_checkpoints(ada):
    for minutes in (10, 10, 5):  # the first starts at once, the policy orders the others
        past(ada.user, minutes=minutes, gpus_per_node=8)
    alike = {"trace": "history", "policies": ["acme"], "nodes": 1, "checkpoint_s": 600, "best_effort": "evaluation"}

    def mean(order):
        response = ada.post("simulations/", alike | {"policy_settings": {"acme": {"order": order}}})
        run_simulation_once(clock.now)
        result = ada.get(f"simulations/{response.json()['id']}/").json()
        assert result["request"]["checkpoint_s"] == 600 and result["error"] == ""
        return result["result"]["runs"][0]["jct_s"]["mean"]

    assert mean("fifo") == pytest.approx(1100, abs=60)
    assert mean("sjf") == pytest.approx(1000, abs=40)


def test_history_contains_own_teams_or_all_for_operators(ada):
    past(ada.user)
    past(make.person("grace", in_team="speech"))

    def replayed(caller):
        response = caller.post("simulations/", {"trace": "history", "policies": ["fifo"]})
        run_simulation_once(clock.now)
        result = caller.get(f"simulations/{response.json()['id']}/").json()
        assert "teams" not in result["request"]
        return result["result"]["jobs"]

    assert replayed(ada) == 1
    assert replayed(Caller(make.operator("olga"))) == 2


def test_history_without_jobs_fails_with_an_error(ada):
    ada.post("simulations/", {"trace": "history", "policies": ["fifo"]})

    simulation = run_simulation_once(clock.now)

    assert state_of(simulation) == SimulationState.FAILED
    assert simulation.error == "trace: history of seren contains no job that ran"


def test_history_equals_the_recorded_jobs(ada):
    job = past(ada.user, minutes=10, nodes=2, gpus_per_node=8, time_limit="1:00:00")
    now = clock.now()

    trace = history_trace("seren", now - timedelta(days=1), now, 10)

    assert trace.ids == [str(job)]
    assert (trace.users[0], trace.pools[0], trace.gpus[0]) == ("ada", "vision", 16)
    assert (trace.runtime_s[0], trace.queue_s[0], trace.limit_s[0]) == (600, 60, 3600)
    assert len(history_trace("seren", now - timedelta(days=1), now, 10, teams=[])) == 0


# the loop: eligible rows and their order, concurrent changes, failures


def test_oldest_simulation_runs_first_and_alone(ada):
    first, second = make.simulation(ada.user), make.simulation(make.person("bob"))
    now = clock.now()

    assert simulation_actions.claim_simulation(now) == first
    assert simulation_actions.claim_simulation(now) is None
    simulation_actions.finish(first_taken := Simulation.objects.get(pk=first.pk), {"runs": []}, now)
    assert first_taken.tries == 1
    assert simulation_actions.claim_simulation(now) == second


def test_dead_worker_is_replaced_and_its_results_are_ignored(ada):
    make.simulation(ada.user)
    dead = simulation_actions.claim_simulation(clock.now())
    later = clock.now() + WORKER_SILENCE_LIMIT

    again = simulation_actions.claim_simulation(later)

    assert (again, again.tries) == (dead, 2)
    for command in (
        lambda: simulation_actions.report_progress(dead, 50, later),
        lambda: simulation_actions.finish(dead, {"runs": []}, later),
        lambda: simulation_actions.fail(dead, "x", later),
    ):
        with pytest.raises(StateConflict):
            command()
    simulation_actions.finish(again, {"runs": []}, later)
    assert state_of(again) == SimulationState.COMPLETED


def test_simulation_that_kills_every_worker_is_abandoned(ada):
    made = make.simulation(ada.user)
    now = clock.now()
    for _ in range(MAX_SIMULATION_TRIES):
        assert simulation_actions.claim_simulation(now) == made
        now += WORKER_SILENCE_LIMIT

    assert simulation_actions.claim_simulation(now) is None
    assert state_of(made) == SimulationState.FAILED
    assert "died 3 times" in made.error


def test_cancelled_simulation_ends_at_its_next_report(ada):
    made = make.simulation(ada.user)

    def cancelled_in_between():
        now = clock.now()
        if state_of(made) == SimulationState.RUNNING:
            simulation_actions.cancel(made, author=by(ada.user), now=now)
        return now

    run_simulation_once(cancelled_in_between, report_s=0)

    assert state_of(made) == SimulationState.CANCELLED
    assert made.result is None


def test_failing_simulation_reports_its_error_and_the_next_one_runs(ada, caplog):
    broken = make.simulation(ada.user, params={"jobs": "many"})
    fine = make.simulation(ada.user)

    run_simulation_once(clock.now)
    run_simulation_once(clock.now)

    assert (state_of(broken), state_of(fine)) == (SimulationState.FAILED, SimulationState.COMPLETED)
    assert "Internal error" in broken.error
    assert "Traceback" in caplog.text


def test_simulation_over_its_time_limit_fails_with_an_error(ada):
    made = make.simulation(ada.user)

    def over():
        if state_of(made) == SimulationState.RUNNING and not over.told:
            over.told = True
            raise SoftTimeLimitExceeded
        return clock.now()

    over.told = False
    run_simulation_once(over)

    assert state_of(made) == SimulationState.FAILED
    assert "Use fewer jobs" in made.error


def test_ended_simulations_are_deleted_after_three_months(ada):
    old, young, waiting = (make.simulation(ada.user) for _ in range(3))
    now = clock.now()
    for one, age in ((old, 91), (young, 89)):
        simulation_actions.cancel(one, author=by(ada.user), now=now - timedelta(days=age))

    assert delete_old_simulations(now) == 1
    assert set(Simulation.objects.all()) == {young, waiting}
    assert has_free_simulation(now)


def test_too_many_simulations_are_rejected_before_writing(ada):
    for _ in range(MAX_UNFINISHED_PER_USER):
        make.simulation(ada.user)
    events = Event.objects.count()

    with pytest.raises(StateConflict):
        make.simulation(ada.user)
    assert (Simulation.objects.count(), Event.objects.count()) == (MAX_UNFINISHED_PER_USER, events)


def test_deleted_cluster_is_reported_as_an_error(ada):
    made = make.simulation(ada.user, trace="history", params={"cluster": "seren", "days": 1})
    Cluster.objects.all()[0].nodes.all().delete()

    run_simulation_once(clock.now)

    assert state_of(made) == SimulationState.FAILED
    assert made.error.startswith("nodes: ")
