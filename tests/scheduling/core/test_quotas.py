"""Quotas of teams and their use, as bars of a page."""

from datetime import timedelta

from jobs.core.lifecycle import JobKind
from scheduling.core.quotas import QuotaAccount, QuotaUse, accounts, quota_uses
from scheduling.engine.cluster import ClusterSnapshot, QuotaView, ResourceRequest, RunningJob
from tests.make import NOON
from tests.scheduling.engine.test_engine import waiting


def running(number, gpus, team="a", kind=JobKind.DEBUG, **fields):
    usual = {"id": number, "name": f"r{number}", "priority": 0, "started_at": NOON, "time_limit": timedelta(hours=1)}
    return RunningJob(team=team, kind=kind, gpus=gpus, places={number: gpus}, **(usual | fields))


def test_use_is_counted_by_kind_and_for_the_whole_team():
    ask = ResourceRequest(nodes=2, gpus=8, cpus=1)
    uses = quota_uses(
        ClusterSnapshot(
            now=NOON,
            running=(
                running(1, 4),
                running(2, 2, kind=JobKind.SFT),
                running(3, 8, preemptible=True),
                running(4, 1, team="b"),
            ),
            waiting=(waiting(5, team="a", kind=JobKind.DEBUG, need=ask), waiting(6, team="c", gpus=3)),
        )
    )

    assert uses == {
        ("a", JobKind.DEBUG): QuotaUse(held_milli=4_000, borrowed_milli=8_000, waiting_milli=16_000),
        ("a", JobKind.SFT): QuotaUse(held_milli=2_000),
        ("a", None): QuotaUse(held_milli=6_000, borrowed_milli=8_000, waiting_milli=16_000),
        ("b", JobKind.DEBUG): QuotaUse(held_milli=1_000),
        ("b", None): QuotaUse(held_milli=1_000),
        ("c", JobKind.OTHER): QuotaUse(waiting_milli=3_000),
        ("c", None): QuotaUse(waiting_milli=3_000),
    }


def parts(account, most):
    return [(part.name, part.tone, part.gpus, part.start, part.share) for part in account.parts(most)]


def test_bar_shows_held_free_and_borrowed_gpus_on_a_common_scale():
    account = QuotaAccount(team="a", owned=8, use=QuotaUse(held_milli=6_000, borrowed_milli=4_000))

    assert (account.left, account.bar_length) == (2, 12)
    assert parts(account, 20) == [
        ("held", "running", 6, 0, 30),
        ("unused quota", "quiet", 2, 30, 10),
        ("borrowed", "starting", 4, 40, 20),
    ]


def test_reserved_quota_is_named_and_empty_parts_are_left_out():
    assert parts(QuotaAccount(team="a", owned=5, reserved=True), 10) == [("reserved", "waiting", 5, 0, 50)]


def test_team_over_its_quota_or_without_one_has_nothing_left():
    over, without = (QuotaAccount(team="a", owned=owned, use=QuotaUse(held_milli=6_000)) for owned in (4, None))

    assert (over.left, over.bar_length, without.left, without.bar_length) == (0, 6, 0, 6)


QUOTAS = [
    QuotaView(team="b", kind=None, gpus=8),
    QuotaView(team="a", kind=JobKind.PRETRAIN, gpus=16),
    QuotaView(team="a", kind=None, gpus=20),
    QuotaView(team="c", kind=JobKind.SFT, gpus=3),
    QuotaView(team="c", kind=JobKind.DEBUG, gpus=4),
]
USES = {
    ("a", JobKind.PRETRAIN): QuotaUse(held_milli=9_000),
    ("a", None): QuotaUse(held_milli=12_000, waiting_milli=1_000),
    ("d", None): QuotaUse(held_milli=2_000, borrowed_milli=1_000),
}


def test_quotas_come_before_teams_without_one():
    shown = accounts(QUOTAS, USES, {JobKind.PRETRAIN}, lambda team: True)

    assert [(one.team, one.kind, one.owned, one.use.held, one.reserved) for one in shown] == [
        ("a", None, 20, 12, False),
        ("a", JobKind.PRETRAIN, 16, 9, True),
        ("b", None, 8, 0, False),
        ("c", JobKind.DEBUG, 4, 0, False),
        ("c", JobKind.SFT, 3, 0, False),
        ("d", None, None, 2, False),
    ]


def test_hidden_teams_form_one_account():
    *shown, hidden = accounts(QUOTAS, USES, (), lambda team: team == "b")

    assert [one.team for one in shown] == ["b"]
    # the quota of the whole team counts, else those of its kinds
    assert (hidden.team, hidden.teams, hidden.owned) == ("", 3, 20 + 3 + 4)
    assert hidden.use == QuotaUse(held_milli=14_000, borrowed_milli=1_000, waiting_milli=1_000)


def test_hidden_teams_without_a_quota_own_nothing():
    (hidden,) = accounts([], {("d", None): QuotaUse(held_milli=2_000)}, (), lambda team: False)

    assert (hidden.owned, hidden.use.held) == (None, 2)
    assert USES["d", None].held == 2
