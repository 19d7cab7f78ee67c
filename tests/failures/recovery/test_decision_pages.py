"""Recovery decisions on pages and in the API: visibility, approval, refusals."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from failures.loops.diagnose import diagnose_once
from failures.models import Decision, ManualOverride
from failures.recovery import decisions, steps
from jobs.actions import recovery as recovery_actions
from jobs.core.lifecycle import State
from jobs.models import Job, RecoveryMode, clock
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once
from tests.page_text import page_text
from tests.statements import before_statement

pytestmark = pytest.mark.django_db

REBOOT = "step 100\n"


def client(name: str, *, operates: bool = False) -> Client:
    person = rows.user(name)
    if operates:
        person.user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    found = Client()
    found.force_login(person)
    return found


@pytest.fixture
def proposed(tmp_path) -> Decision:
    """A proposed restart without nodes, which users who can change the job may approve."""
    attempt = make.running(tmp_path, kind="pretrain", on=("seren-001", "seren-002"))
    make.end(tmp_path, attempt, REBOOT, state="FAILED")
    diagnose_once(clock.now())
    decide_and_recover_once(clock.now())
    decision = Decision.objects.get()
    assert (decision.action, decision.state, decision.drain, decision.test) == ("restart", "proposed", [], [])
    return decision


@pytest.fixture
def with_node(tmp_path) -> Decision:
    attempt = make.running(tmp_path, kind="pretrain", on=("seren-001", "seren-002"))
    make.end(tmp_path, attempt, make.XID)
    diagnose_once(clock.now())
    decide_and_recover_once(clock.now())
    return Decision.objects.get()


def page(decision: Decision) -> str:
    return f"/failures/{decision.incident_id}/"


def door(decision: Decision, verb: str = "") -> str:
    return f"/api/v1/incidents/{decision.incident_id}/decisions/{decision.pk}/{verb}"


# --- the page


def test_incident_page_shows_arguments_and_asks_the_owner_for_approval(proposed):
    shown = client("ada").get(page(proposed)).content.decode()

    assert "Approve" in shown and "Decline" in shown
    assert all(one in shown for one in proposed.pro)
    assert "Approval needed" in shown


def test_user_of_another_team_sees_no_incident_and_cannot_decide(proposed):
    ben = client("ben")

    assert ben.get(page(proposed)).status_code == 404
    assert ben.post(f"{page(proposed)}decisions/{proposed.pk}/approve/").status_code == 404
    proposed.refresh_from_db()
    assert proposed.state == "proposed"


def test_home_page_shows_proposals_to_users_who_can_see_the_job(proposed):
    assert "approve within" in client("ada").get("/").content.decode()
    assert "approve within" not in client("mallory").get("/").content.decode()

    decisions.approve(proposed, author=decisions.RECOVERY_AUTHOR, now=clock.now())

    assert "approve within" not in client("ada").get("/").content.decode()


def test_incident_list_filters_by_decisions_that_need_approval(proposed, tmp_path):
    make.diagnosed(tmp_path, make.TYPO, by="ada", on=("seren-003",))
    listed = {name: client(name).get("/failures/?state=undecided").content.decode() for name in ("ada", "mallory")}

    assert f'id="incident-{proposed.incident_id}"' in listed["ada"] and listed["ada"].count('id="incident-') == 1
    assert "No decisions to approve" in listed["mallory"]

    decisions.approve(proposed, author=decisions.RECOVERY_AUTHOR, now=clock.now())

    assert "No decisions to approve" in client("ada").get("/failures/?state=undecided").content.decode()


def test_undo_is_refused_if_the_job_starts_meanwhile(proposed):
    decisions.approve(proposed, author=rows.author(), now=clock.now())
    decide_and_recover_once(clock.now())

    def start():
        Job.objects.update(state=State.RUNNING)

    with before_statement("INSERT", "manualoverride", act=start):
        answer = client("ada").post(f"{page(proposed)}decisions/{proposed.pk}/undo/", follow=True)

    assert answer.status_code == 200 and "Nothing was changed: " in answer.content.decode()
    assert not ManualOverride.objects.exists()


def test_proposal_is_approved_once(proposed):
    ada = client("ada")

    once = ada.post(f"{page(proposed)}decisions/{proposed.pk}/approve/", {"why": "go on"}, follow=True)
    twice = ada.post(f"{page(proposed)}decisions/{proposed.pk}/approve/", follow=True)

    proposed.refresh_from_db()
    assert (proposed.state, proposed.answered_by, proposed.answer_reason) == ("approved", "ada", "go on")
    assert "Restart: approved." in once.content.decode()
    assert "Nothing was changed: the decision is already approved." in twice.content.decode()


def test_job_ends_after_its_proposal_is_declined(proposed):
    client("ada").post(f"{page(proposed)}decisions/{proposed.pk}/decline/", {"why": "my bug"})

    proposed.refresh_from_db()
    proposed.attempt.job.refresh_from_db()
    assert proposed.state == "declined"
    assert proposed.attempt.job.state == State.FAILED


def test_only_operators_decide_if_nodes_are_drained(with_node):
    assert with_node.test
    shown = client("ada").get(page(with_node)).content.decode()
    assert "Approve" not in shown

    client("ada").post(f"{page(with_node)}decisions/{with_node.pk}/approve/")
    with_node.refresh_from_db()
    assert with_node.state == "proposed"

    client("olga", operates=True).post(f"{page(with_node)}decisions/{with_node.pk}/approve/")
    with_node.refresh_from_db()
    assert with_node.state == "approved"


def test_replay_page_shows_the_decision_of_the_current_rules(proposed):
    shown = page_text(client("ada").get(f"{page(proposed)}decisions/{proposed.pk}/replay/"))

    assert "A replay does not change anything" in shown
    assert shown.count(">same<") == 9


def test_override_is_lifted_on_the_page(proposed):
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)
    decisions.approve(proposed, author=rows.author(), now=clock.now())
    steps.undo(proposed, author=rows.author(), now=clock.now(), why="wait")
    override = ManualOverride.objects.get()
    assert "Lift" in client("ada").get(page(proposed)).content.decode()

    assert client("ben").post(f"/failures/overrides/{override.pk}/lift/").status_code == 404
    client("ada").post(f"/failures/overrides/{override.pk}/lift/", {"incident": str(proposed.incident_id)})

    assert not ManualOverride.objects.active().exists()


# --- the API


def test_api_returns_decisions_with_their_steps(proposed):
    ada = client("ada")

    rows_ = ada.get(f"/api/v1/incidents/{proposed.incident_id}/decisions/?state=proposed").json()["results"]
    one = ada.get(door(proposed)).json()

    assert [row["id"] for row in rows_] == [proposed.pk]
    assert (one["action"], one["mode"], one["steps"]) == ("restart", "propose", [])
    assert one["limits"] == [] or one["limits"][0]["mode"] == "propose"
    assert client("ben").get(door(proposed)).status_code == 404


def test_api_approves_undoes_and_reports_conflicts(proposed):
    ada = client("ada")

    answers = [ada.post(door(proposed, verb), "{}", content_type="application/json") for verb in ("approve/",) * 2]
    undone = ada.post(door(proposed, "undo/"), '{"reason": "later"}', content_type="application/json")

    assert [one.status_code for one in answers] == [200, 409]
    assert undone.json()["state"] == "undone"
    assert ada.get("/api/v1/overrides/").json()["results"][0]["why"] == "later"


def test_api_returns_a_replay(proposed):
    differences = client("ada").get(door(proposed, "replay/")).json()["results"]

    assert {row["field"] for row in differences if row["equal"]} >= {"action", "mode"}


def set_mode(who: Client, **asked):
    return who.post("/api/v1/recovery/modes/", asked, content_type="application/json")


def test_modes_are_set_by_operators_and_team_administrators():
    rows.team("pretraining", ada="admin", ben="researcher")

    answers = [
        set_mode(client("ada"), team="pretraining", mode="act").status_code,
        set_mode(client("ada"), mode="act").status_code,
        set_mode(client("ben"), team="pretraining", mode="observe").status_code,
        set_mode(client("olga", operates=True), mode="propose", action="restart").status_code,
        set_mode(client("olga", operates=True), mode="propose", action="run").status_code,
        set_mode(client("olga", operates=True), action="restart").status_code,
    ]

    assert answers == [200, 403, 403, 200, 400, 400]
    assert sorted(RecoveryMode.objects.values_list("mode", "action")) == [("act", ""), ("propose", "restart")]
    assert len(client("ben").get("/api/v1/recovery/modes/").json()["results"]) == 2
