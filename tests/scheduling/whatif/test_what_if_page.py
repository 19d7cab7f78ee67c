"""The page "What if": requesting, watching, comparing and downloading replays, and which replays a user may see."""

import csv
import io
import re
from xml.etree import ElementTree

import pytest
from django.test import Client

from jobs.models import Cluster, Quota, TeamRole, clock
from scheduling.models import Simulation
from scheduling.whatif.actions import simulations as simulation_actions
from scheduling.whatif.comparison.table import comparison_row, csv_rows, format_figure, sections
from scheduling.whatif.loops import run_simulation_once
from scheduling.whatif.replay.requests import POLICIES_OF_EQUAL_GPUS
from tests import make

ASKED = {"trace": "acme:kalos", "team": "pretraining", "policies": ["fifo", "easy"], "jobs": "60", "days": "30"}
FIELDSET = re.compile(r"<fieldset>\s*<legend>(.*?)</legend>(.*?)</fieldset>", re.DOTALL)
BOX = re.compile(r'name="policies" value="([^"]+)"([^>]*)>')


def browser(name):
    client = Client()
    client.force_login(make.user(name))
    return client


def text(answer):
    return answer.content.decode()


@pytest.fixture
def people(db):
    make.team("pretraining", ada=TeamRole.RESEARCHER, grace=TeamRole.VIEWER, olga=TeamRole.OPERATOR)
    make.team("evaluation", ben=TeamRole.RESEARCHER)
    make.cluster()


@pytest.fixture
def asked(people):
    browser("ada").post("/what-if/", ASKED)
    return Simulation.objects.get()


@pytest.fixture
def done(asked):
    run_simulation_once(clock.now)
    asked.refresh_from_db()
    return asked


# --- figures


def test_best_value_is_marked_and_bars_scale_to_the_largest():
    delay = comparison_row("mean", "s", [10.0, 40.0, None])
    use = comparison_row("utilization", "%", [50.0, 80.0], least=False)

    assert [(cell.words, cell.share, cell.best) for cell in delay.cells] == [
        ("00:00:10", 25.0, True),
        ("00:00:40", 100.0, False),
        ("–", 0.0, False),
    ]
    assert [cell.best for cell in use.cells] == [False, True]
    assert not any(cell.best for cell in comparison_row("mean", "s", [3.0, 3.0]).cells)
    assert not any(cell.best for cell in comparison_row("jobs", "", [3, 4], least=None).cells)


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (90061, "s", "1-01:01:01"),
        (12.345, "%", "12.3%"),
        (0.5, "ratio", "0.500"),
        (1234.5, "h", "1,234"),
        (7, "", "7"),
    ],
)
def test_figures_are_formatted_with_units(value, unit, said):
    assert format_figure(value, unit) == said


# --- requesting


def test_requested_replay_redirects_to_its_page(people):
    answer = browser("ada").post("/what-if/", ASKED)

    made = Simulation.objects.get()
    assert answer.headers["Location"] == f"/what-if/{made.public_id}/"
    assert (made.trace, made.policies, made.params) == ("acme:kalos", ["fifo", "easy"], {"jobs": 60})
    assert made.user.username == "ada"


def test_policies_and_placements_are_grouped_by_what_they_need_to_know(people):
    page = text(browser("ada").get("/what-if/"))

    boxes = {name: BOX.findall(group) for name, group in FIELDSET.findall(page)}
    checked = [value for group in boxes.values() for value, rest in group if "checked" in rest]
    assert [value for value, _ in boxes["Deadlines"]] == ["edf", "chronus"]
    assert sorted(value for group in boxes.values() for value, _ in group) == sorted(POLICIES_OF_EQUAL_GPUS)
    assert sorted(checked) == ["acme", "easy"]
    assert '<optgroup label="CPUs and memory">' in page
    assert "tune – CPUs and memory shared" in page


def test_placement_and_shape_of_the_nodes_are_kept(people):
    shape = {"placement": "tune", "nodes_per_leaf": 4, "cpus_per_node": 96, "memory_per_node_mb": 1_000_000}

    browser("ada").post("/what-if/", ASKED | shape)

    assert Simulation.objects.get().params == {"jobs": 60} | shape


def test_own_history_keeps_its_parameters(people):
    browser("ada").post("/what-if/", ASKED | {"trace": "history", "days": "7", "cluster": "seren", "nodes": "8"})

    params = Simulation.objects.get().params
    assert (params["cluster"], params["days"], params["nodes"]) == ("seren", 7, 8)
    assert "jobs" not in params and params["teams"]  # she may not replay jobs of other teams


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("policies", [], "This field is required"),
        ("policies", ["fifo", "easy", "sjf", "acme", "fair"], "at most 4 allowed"),
        ("policies", ["lottery"], "lottery is not one of the available choices"),
        ("jobs", "0", "greater than or equal to 1"),
        ("faults", "gremlins=3", "gremlins"),
        ("noise", "loud", "loud"),
        ("placement", "cells", "cells is not one of the available choices"),
        ("cpus_per_node", "1" + 12 * "0", "must be at most 1,000,000,000"),
        ("team", "evaluation", "evaluation is not one of the available choices"),
    ],
)
def test_invalid_form_shows_errors_and_creates_no_replay(people, field, value, sentence):
    answer = browser("ada").post("/what-if/", ASKED | {field: value})

    assert answer.status_code == 400
    assert sentence in text(answer)
    assert not Simulation.objects.exists()


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"power_budget_kw": "much"}, "power_budget_kw", "Enter a number."),
        ({"power_budget_kw": "nan"}, "power_budget_kw", "Enter a number."),
        ({"power_budget_kw": "-1"}, "power_budget_kw", "greater than or equal to 0"),
        ({"power_budget_kw": "5"}, "power_budget_kw", "5 is not above the"),
        ({"power_budget_kw": "0"}, "power_budget_kw", "0 is not above the"),
        ({"price_per_kwh": "1e300"}, "price_per_kwh", "less than or equal to 1000000000"),
        ({"sleep": "on", "placement": "count"}, "sleep", "needs a placement on nodes"),
        ({"energy": "on", "policies": ["srtf"]}, "policies", "srtf preempts jobs, which energy does not cover"),
        (
            {"energy": "on", "policies": ["acme"], "best_effort": ["evaluation"]},
            "best_effort",
            "must be empty for acme",
        ),
    ],
)
def test_invalid_power_is_an_error_of_its_field(people, change, field, sentence):
    answer = browser("ada").post("/what-if/", ASKED | change)

    assert answer.status_code == 400
    assert sentence in answer.context["form"].errors[field][0]
    assert not Simulation.objects.exists()


PACKED = {"policies": ["fifo", "lucid"], "profiles": "x,30,2000\n\ny,90,8000,2", "draw_profiles": "on"}


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"profiles": "x,30"}, "profiles", "Line 1: expected name,GPU %,MB, got x,30"),
        ({"profiles": "x,30,1\ny,many,1"}, "profiles", "Line 2: gpu_percent 'many' is not a number from 0 to 100."),
        ({"profiles": "x,30,1,7"}, "profiles", "Line 1: score '7' is not 0 (tiny), 1 (medium) or 2 (jumbo)."),
        ({"profiles": ""}, "profiles", "is needed with"),
        ({"profiles": "", "draw_profiles": ""}, "profiles", "lucid needs the profiles of the jobs"),
        ({"pair_speeds": "x,z,1,1"}, "pair_speeds", "Line 1: 'z' is not a name in profiles."),
        ({"pair_speeds": "x,y,1"}, "pair_speeds", "Line 1: expected name,name,speed,speed, got x,y,1"),
        ({"pair_speeds": "x,y,1,1", "profiles": ""}, "pair_speeds", "Needs the profiles of jobs."),
        ({"policies": ["fifo"]}, "profiles", "no policy of fifo lets jobs share GPUs"),
    ],
)
def test_invalid_profiles_are_an_error_of_their_field(people, change, field, sentence):
    answer = browser("ada").post("/what-if/", ASKED | PACKED | change)

    assert answer.status_code == 400
    assert sentence in answer.context["form"].errors[field][0]
    assert answer.context["form"].packing_is_open()
    assert not Simulation.objects.exists()


def test_replay_of_a_policy_that_packs_says_which_jobs_have_profiles(people):
    ada = browser("ada")
    ada.post("/what-if/", ASKED | PACKED | {"pair_speeds": "x,y,0.5,0.5"})
    run_simulation_once(clock.now)
    run = Simulation.objects.get()

    page = text(ada.get(f"/what-if/{run.public_id}/"))
    assert run.params["pair_speeds"] == [{"name1": "x", "name2": "y", "speed1": "0.5", "speed2": "0.5"}]
    assert "60 of 60 jobs have a profile, drawn at random" in page
    assert "jobs that shared GPUs" in page


def test_replay_under_a_power_budget_shows_what_it_costs(people):
    ada = browser("ada")
    asked = {"power_budget_kw": "500", "price_per_kwh": "0.2", "sleep": "on"}
    ada.post("/what-if/", ASKED | asked)
    ada.post("/what-if/", ASKED | {"energy": "on", "price_per_kwh": "0.2"})
    for _ in range(2):
        run_simulation_once(clock.now)
    limited, free = Simulation.objects.order_by("id")

    assert limited.params == {"jobs": 60, "power_budget_kw": 500.0, "price_per_kwh": 0.2, "sleep": True}
    page = text(ada.get(f"/what-if/{limited.public_id}/"))
    assert "sleeping nodes yes · price of a kWh 0.2 · power budget in kW 500" in page
    page = ada.get(f"/what-if/compare/?of={free.public_id},{limited.public_id}")
    assert [column.name for column in page.context["columns"]] == ["fifo", "easy", "fifo at 500 kW", "easy at 500 kW"]
    (power,) = [section for section in page.context["sections"] if section.name == "Power"]
    assert [row.name for row in power.rows][:5] == [
        *("energy", "energy cost", "peak power", "power budget", "time above the budget")
    ]
    assert power.rows[1].cells[2].change and "energy costs" in page.context["verdict"]
    assert "A100" in text(page) and "unplanned wake-ups" in text(page)
    drawn = list(csv.reader(io.StringIO(text(ada.get(f"/what-if/charts/power.csv?of={limited.public_id}")))))
    assert {row[0] for row in drawn[1:]} == {"fifo at 500 kW", "easy at 500 kW"}
    assert max(float(row[-1]) for row in drawn[1:]) <= 500


def test_price_of_the_cluster_is_filled_in_and_asks_for_nothing_alone(people):
    Cluster.objects.update(kwh_price=0.31)
    ada = browser("ada")
    form = ada.get("/what-if/").context["form"]

    assert form["price_per_kwh"].value() == 0.31 and not form.power_is_open()
    assert "price_per_kwh" not in replay_of(ada, price_per_kwh="0.31").params
    assert replay_of(ada, price_per_kwh="0.31", energy="on").params["price_per_kwh"] == 0.31
    assert replay_of(ada, price_per_kwh="0.4").params["price_per_kwh"] == 0.4
    assert ada.get("/what-if/?price_per_kwh=0.5").context["form"]["price_per_kwh"].value() == "0.5"


def test_energy_costs_what_the_chosen_cluster_pays_for_it(people):
    first = Cluster.objects.get()
    Cluster.objects.update(kwh_price=0.31)
    other = make.cluster(name="zeta", nodes=1, kwh_price=0.12)
    chosen = {"trace": "history", "energy": "on", "price_per_kwh": "0.31"}
    ada = browser("ada")

    assert replay_of(ada, cluster=other.name, **chosen).params["price_per_kwh"] == 0.12
    assert replay_of(ada, cluster=first.name, **chosen).params["price_per_kwh"] == 0.31


def replay_of(client, **change):
    response = client.post("/what-if/", ASKED | change)
    return Simulation.objects.get(public_id=response.headers["Location"].split("/")[2])


def test_too_many_replays_are_reported(people):
    ada = browser("ada")
    for _ in range(simulation_actions.MAX_UNFINISHED_PER_USER):
        ada.post("/what-if/", ASKED)

    assert "unfinished simulations" in text(ada.post("/what-if/", ASKED))


def test_viewer_can_read_but_not_request(asked):
    grace = browser("grace")

    assert asked.public_id in text(grace.get("/what-if/"))
    assert "requires the role researcher" in text(grace.get("/what-if/"))
    assert grace.post("/what-if/", ASKED).status_code == 400


# --- permissions


def test_replay_of_another_team_is_not_found(done):
    ben = browser("ben")

    assert done.public_id not in text(ben.get("/what-if/"))
    for path in (f"{done.public_id}/", f"compare/?of={done.public_id}", f"export.csv?of={done.public_id}"):
        assert ben.get(f"/what-if/{path}").status_code == 404
    assert ben.post(f"/what-if/{done.public_id}/cancel/").status_code == 404


def test_requester_or_operator_may_cancel(asked):
    assert "Cancel" not in text(browser("grace").get(f"/what-if/{asked.public_id}/"))
    browser("grace").post(f"/what-if/{asked.public_id}/cancel/")
    asked.refresh_from_db()
    assert asked.state == "PENDING"

    browser("olga").post(f"/what-if/{asked.public_id}/cancel/")
    asked.refresh_from_db()
    assert asked.state == "CANCELLED"
    assert "has already ended" in text(browser("olga").post(f"/what-if/{asked.public_id}/cancel/", follow=True))


# --- watching and comparing


def test_page_of_a_running_replay_refreshes_until_it_ends(asked):
    page = text(browser("ada").get(f"/what-if/{asked.public_id}/"))
    run_simulation_once(clock.now)
    after = text(browser("ada").get(f"/what-if/{asked.public_id}/"))

    assert f'data-topics="simulation:{asked.public_id}"' in page and "<progress" in page
    assert "data-topics" not in after and "<progress" not in after


def test_result_compares_the_policies(done):
    page = text(browser("grace").get(f"/what-if/{done.public_id}/"))

    for word in ("Queue delay", "Completion time", "utilization", "preemptions", "Jain over users", "fifo", "easy"):
        assert word in page
    assert len(sections(done.result["runs"])[0].rows) > 4  # by kind too


def test_two_replays_are_compared_by_url_and_distinguished(done):
    browser("ada").post("/what-if/", ASKED | {"policies": ["fifo"], "nodes": "40"})
    run_simulation_once(clock.now)
    other = Simulation.objects.first()

    page = text(browser("grace").get(f"/what-if/compare/?of={done.public_id}&of={other.public_id}"))

    assert f"fifo {done.public_id}" in page and f"fifo {other.public_id}" in page


def test_result_can_be_downloaded(done):
    ada = browser("ada")

    exported = ada.get(f"/what-if/export.json?of={done.public_id}").json()["runs"]
    table = list(csv.reader(io.StringIO(text(ada.get(f"/what-if/export.csv?of={done.public_id}")))))

    assert [one["policy"] for one in exported] == ["fifo", "easy"]
    assert table[0] == ["section", "figure", "unit", "fifo", "easy"]
    assert float(table[1][3]) == pytest.approx(exported[0]["queue_s"]["mean"], rel=1e-4)
    assert table == list(csv_rows(["fifo", "easy"], sections(exported)))


def test_invalid_comparison_or_export_is_not_found(people):
    ada = browser("ada")

    assert ada.get("/what-if/compare/").status_code == 404
    assert ada.get("/what-if/compare/?of=nothing%00").status_code == 404
    assert ada.get("/what-if/export.xml?of=a").status_code == 404


def test_number_of_queries_does_not_depend_on_replays(done, django_assert_num_queries):
    ada = browser("ada")
    for _ in range(3):
        ada.post("/what-if/", ASKED)

    with django_assert_num_queries(9):  # session, user, clock; roles, places; replays, files, history, price
        ada.get("/what-if/")
    with django_assert_num_queries(6):  # session, user, clock; roles, the replay, the others
        ada.get(f"/what-if/{done.public_id}/")


def test_form_defaults_to_the_history_of_a_cluster_with_its_quotas(people):
    client = browser("ada")
    assert client.get("/what-if/").context["form"]["trace"].value() != "history"
    attempt = make.ended()
    own = {"team": attempt.job.team, "cluster": attempt.job.cluster}
    Quota.objects.create(gpus=16, **own)
    Quota.objects.create(gpus=8, gpu_model="h100", **own)  # nodes of a replay have no model

    form = client.get("/what-if/").context["form"]

    assert (form["trace"].value(), form["cluster"].value()) == ("history", "seren")
    assert form["quota"].value() == "pretraining,,16"


# --- the record of the own history


@pytest.fixture
def past(people):
    """A replay of three recorded jobs under two policies, at one and a half times the load."""
    for _ in range(3):
        make.ended(make.job(by="ada", gpus_per_node=8))
    asked = {"trace": "history", "cluster": "seren", "team": "pretraining", "policies": ["fair", "fifo"]}
    browser("ada").post("/what-if/", asked | {"load": "150"})
    run_simulation_once(clock.now)
    return Simulation.objects.get()


def test_own_history_is_compared_with_the_record(past):
    response = browser("ada").get(f"/what-if/{past.public_id}/")

    names = [column.name for column in response.context["columns"]]
    assert names == ["as it really was", "fair at 150% load", "fifo at 150% load"]
    assert response.context["baseline"].name == "as it really was"
    assert past.result["recorded"]["jobs"] == 3 and past.result["recorded"]["load"] == 100
    assert past.params["load"] == 150 and past.result["runs"][0]["load"] == 150
    for words in ("wait", "As it really was", "150% of the recorded load", "Queue length over time"):
        assert words in text(response), words


def test_baseline_is_chosen_by_the_address(past):
    ada = browser("ada")

    chosen = ada.get(f"/what-if/{past.public_id}/?baseline=fifo at 150% load")
    wrong = ada.get(f"/what-if/{past.public_id}/?baseline=lottery")

    assert chosen.context["baseline"].name == "fifo at 150% load"
    assert wrong.status_code == 400 and "is not one of as it really was" in text(wrong)
    compared = ada.get(f"/what-if/compare/?of={past.public_id}&baseline=fifo at 150% load")
    assert compared.context["baseline"].name == "fifo at 150% load"


def test_two_replays_of_the_same_jobs_share_their_record(past):
    until = past.created_at.isoformat()
    asked = {"trace": "history", "cluster": "seren", "team": "pretraining", "policies": ["easy"], "until": until}
    browser("ada").post("/what-if/", asked)
    run_simulation_once(clock.now)
    other = Simulation.objects.first()

    page = browser("ada").get(f"/what-if/compare/?of={past.public_id},{other.public_id}")

    assert [column.name for column in page.context["columns"]].count("as it really was") == 1


@pytest.mark.parametrize("key", ["waits", "completion", "queue", "use"])
def test_charts_are_downloaded_as_svg_and_csv(past, key):
    ada = browser("ada")

    svg = ada.get(f"/what-if/charts/{key}.svg?of={past.public_id}")
    rows = list(csv.reader(io.StringIO(text(ada.get(f"/what-if/charts/{key}.csv?of={past.public_id}")))))

    assert svg.headers["Content-Type"].startswith("image/svg+xml")
    assert {node.tag.rpartition("}")[2] for node in ElementTree.fromstring(text(svg))} >= {"title", "polyline"}
    assert {row[0] for row in rows[1:]} == {"as it really was", "fair at 150% load", "fifo at 150% load"}


def test_chart_of_another_team_or_of_no_name_is_not_found(past):
    assert browser("ben").get(f"/what-if/charts/waits.svg?of={past.public_id}").status_code == 404
    assert browser("ada").get(f"/what-if/charts/rainbow.svg?of={past.public_id}").status_code == 404


def test_result_of_an_older_version_without_record_and_curves_is_shown(done):
    for run in done.result["runs"]:
        del run["curves"], run["load"]
        for figure in ("jct_s", "queue_s"):
            del run[figure]["max"]
    done.result.pop("recorded")
    done.save()

    page = browser("ada").get(f"/what-if/{done.public_id}/")

    assert page.status_code == 200 and "<svg xmlns" not in text(page)
    assert "99% of the jobs wait at most" in text(page) or "No policy shortens" in text(page)
