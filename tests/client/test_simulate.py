"""`acme simulate`: request, wait and compare."""

from __future__ import annotations

import json

import pytest
from acme_client import simulate

from jobs.models import clock
from scheduling.models import Simulation
from scheduling.whatif.loops import run_simulation_once

pytestmark = pytest.mark.django_db


@pytest.fixture
def worker(monkeypatch):
    """A sleep of one second during which the loop runs."""
    turns = []

    def turn(_seconds):
        turns.append(Simulation.objects.get().state)
        run_simulation_once(clock.now)

    monkeypatch.setattr(simulate.time, "sleep", turn)
    return turns


def test_policies_are_compared_line_by_line(acme, worker):
    result = acme("simulate", "acme:kalos", "--policy", "fifo, easy", "--jobs", 60, "--seed", 7, "-A", "vision")

    assert result.exit_code == 0, result.stderr
    head, *rows = (line.split() for line in result.stdout.splitlines())
    assert head == [title for title, _ in simulate.SIMULATION_COLUMNS]
    assert [row[:2] for row in rows] == [["fifo", "60"], ["easy", "60"]]
    assert Simulation.objects.get().params == {"jobs": 60, "seed": 7}
    assert worker == ["PENDING"]


def test_rows_name_a_changed_load(acme, worker):
    result = acme("simulate", "acme:kalos", "--jobs", 20, "--load", 150, "-o", "csv")

    assert result.stdout.splitlines()[1].startswith("fifo at 150% load,20,")
    assert Simulation.objects.get().params == {"jobs": 20, "load": 150}


def test_figures_of_power_are_columns_only_if_asked_for(acme, worker):
    asked = ("--power-budget-kw", 500, "--price-per-kwh", 0.2, "--sleep")
    result = acme("simulate", "acme:kalos", "--jobs", 20, *asked)

    assert result.exit_code == 0, result.stderr
    head, row = (line.split() for line in result.stdout.splitlines())
    assert head == [title for title, _ in simulate.SIMULATION_COLUMNS] + [title for title, *_ in simulate.POWER_FIGURES]
    assert row[:4] == ["fifo", "at", "500", "kW"]
    assert float(row[-5]) == pytest.approx(0.2 * float(row[-8]), abs=0.2)
    assert Simulation.objects.get().params == {"jobs": 20, "power_budget_kw": 500, "price_per_kwh": 0.2, "sleep": True}


def test_energy_alone_has_no_cost_and_no_budget(acme, worker):
    head = acme("simulate", "acme:kalos", "--jobs", 20, "--energy").stdout.splitlines()[0].split()

    assert head[-2:] == ["KWH", "PEAK_KW"]


@pytest.fixture
def tables(tmp_path):
    """Files with profiles and pair speeds, as options."""
    profiles, pairs = tmp_path / "profiles.csv", tmp_path / "pairs.csv"
    profiles.write_text("name,gpu_percent,memory_mb,score\nsmall,20,4000,0\nlarge,95.5,30000,\n")
    pairs.write_text("name1,name2,speed1,speed2\nsmall,large,0.9,0.8\n")
    return {"profiles": profiles, "pair_speeds": pairs}


def test_jobs_share_gpus_with_the_profiles_of_files(acme, worker, tables):
    options = "--profiles", tables["profiles"], "--pair-speeds", tables["pair_speeds"], "--draw-profiles"
    result = acme("simulate", "acme:kalos", "--jobs", 60, "--nodes", 20, "-p", "lucid", *options, "-o", "json")

    assert result.exit_code == 0, result.stderr
    params = Simulation.objects.get().params
    assert params["profiles"] == [
        {"name": "small", "gpu_percent": 20, "memory_mb": 4000, "score": 0},
        {"name": "large", "gpu_percent": 95.5, "memory_mb": 30000},
    ]
    assert params["pair_speeds"] == [{"name1": "small", "name2": "large", "speed1": 0.9, "speed2": 0.8}]
    assert params["draw_profiles"] is True
    assert json.loads(result.stdout)["result"]["runs"][0]["packing"]


@pytest.mark.parametrize(
    ("table", "text", "says"),
    [
        ("profiles", "name\nsmall\n", "must be a CSV with the columns name,gpu_percent,memory_mb,[score]."),
        ("profiles", "name,gpu_percent,memory_mb\nsmall,x,1\n", "line 2: gpu_percent 'x' is not a number."),
        ("profiles", "name,gpu_percent,memory_mb\nsmall,nan,1\n", "line 2: gpu_percent 'nan' is not a number."),
        ("profiles", "name,gpu_percent,memory_mb,score\nsmall,1,1,.5\n", "line 2: score '.5' is not a whole number."),
        ("pair_speeds", "name1,name2,speed1,speed2\nsmall,large,1\n", "line 2: speed2 '' is not a number."),
        ("pair_speeds", None, "No such file or directory"),
    ],
)
def test_bad_table_of_profiles_is_refused_before_the_request(acme, tables, table, text, says):
    tables[table].write_text(text) if text else tables[table].unlink()

    result = acme("simulate", "acme:kalos", f"--{table.replace('_', '-')}", tables[table])

    assert result.exit_code == 2
    assert tables[table].name in result.stderr and says in " ".join(result.stderr.split())
    assert not Simulation.objects.exists()


def test_policy_that_packs_needs_profiles(acme):
    with pytest.raises(Exception, match="profiles"):
        acme("simulate", "acme:kalos", "-p", "lucid")


def test_existing_simulation_is_awaited_and_printed(acme, worker):
    id = acme("simulate", "acme:kalos", "--jobs", 20, "--no-wait").stdout.strip()

    told = json.loads(acme("simulate", "--id", id, "-o", "json").stdout)
    as_csv = acme("simulate", "--id", id, "-o", "csv").stdout.splitlines()

    assert told["id"] == id and told["result"]["runs"][0]["jobs"] == 20
    assert as_csv[0].startswith("POLICY,JOBS,") and as_csv[1].startswith("fifo,20,")


def test_cancelled_simulation_has_no_result_and_exit_code_1(acme):
    id = acme("simulate", "acme:kalos", "--no-wait").stdout.strip()
    Simulation.objects.update(state="CANCELLED", ended_at=clock.now())

    result = acme("simulate", "--id", id)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"acme: {id} is CANCELLED.\n"


def test_interrupted_wait_prints_how_to_continue(acme, monkeypatch):
    def interrupted(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate.time, "sleep", interrupted)
    result = acme("simulate", "acme:kalos")

    made = Simulation.objects.get()
    assert result.exit_code == 130 and f"acme simulate --id {made}." in result.stderr
    assert made.state == "PENDING"


@pytest.mark.parametrize("words", [[], ["acme:kalos", "--id", "x"]])
def test_simulate_takes_a_trace_or_an_id(acme, words):
    assert acme("simulate", *words).exit_code == 2


def test_invalid_simulation_setting_is_named(acme):
    with pytest.raises(Exception, match=r"policies: .*nonsense"):
        acme("simulate", "acme:kalos", "-p", "nonsense")
    with pytest.raises(Exception, match=r"power_budget_kw: 5\.?0? is not above the"):
        acme("simulate", "acme:kalos", "--power-budget-kw", 5)
    with pytest.raises(Exception, match="days: is only allowed for history"):
        acme("simulate", "acme:kalos", "--days", 3)
