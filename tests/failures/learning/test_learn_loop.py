"""The loop that learns: cases, hits, proposals, adoption; and the rules that then count."""

from __future__ import annotations

import logging

import pytest

from failures.actions import incidents as incident_actions
from failures.actions import rules as rule_actions
from failures.actions.incidents import FailureStateConflict
from failures.diagnosis import engine
from failures.learning import embedding
from failures.loops import learn
from failures.loops.diagnose import diagnose_once
from failures.loops.learn import learn_once
from failures.models import Case, Diagnosis, LearnedRule, RuleHit, RuleState
from failures.queries import active_rules
from jobs.models import Event, clock
from tests import make as rows
from tests.failures import make

pytestmark = pytest.mark.django_db

ODD = "step 4 loss 2.0\nflux capacitor of rack 7 lost its phase lock, shutting down lane 3\n"
ALSO_ODD = "step 9 loss 1.0\nflux capacitor of rack 12 lost its phase lock, shutting down lane 1\n"


def turn() -> int:
    return learn_once(clock.now())


def kept(tmp_path, text=make.TYPO, **how) -> Diagnosis:
    row = make.diagnosed(tmp_path, text, **how)
    diagnose_once(clock.now())
    row.refresh_from_db()
    return row


def corrected(tmp_path, text=ODD, cause="NodeFailure") -> Diagnosis:
    row = kept(tmp_path, text)
    incident_actions.correct_verdict(row, cause, author=rows.author(), now=clock.now(), note="the rack was swapped")
    return row


def rule_of(row: Diagnosis) -> LearnedRule:
    return LearnedRule.objects.counted().get(source=row)


def test_every_stored_bundle_becomes_one_case(tmp_path):
    row = kept(tmp_path)

    assert turn() >= 1
    assert turn() == 0
    assert Case.objects.get().diagnosis == row


def test_a_bundle_that_is_not_stored_yet_waits(tmp_path):
    make.failed(tmp_path)
    incident_actions.add_missing_diagnoses(clock.now() - learn_window(), clock.now())

    assert turn() == 0


def learn_window():
    from failures.loops.diagnose import RECENT_FAILURES

    return RECENT_FAILURES


def test_the_nearest_confirmed_case_is_found_and_others_are_not_shown(tmp_path):
    near = corrected(tmp_path)
    kept(tmp_path, make.TYPO)
    unconfirmed = kept(tmp_path, ODD)
    turn()

    found = list(Case.objects.confirmed().nearest(embedding.embed_bundle(ALSO_ODD)))

    assert [one.diagnosis_id for one in found] == [near.pk]
    assert found[0].likeness > 0.9
    assert unconfirmed.pk not in [one.diagnosis_id for one in found]


def test_a_correction_teaches_a_rule_that_runs_in_shadow_and_changes_nothing(tmp_path):
    row = corrected(tmp_path)

    turn()

    rule = rule_of(row)
    assert (rule.label, rule.state, rule.owner.username) == ("NodeFailure", RuleState.SHADOW, "ada")
    assert (rule.hit_count, rule.right, rule.wrong) == (1, 1, 0)
    assert Event.objects.filter(what="rule.proposed").count() == 1
    assert kept(tmp_path, ALSO_ODD).root_cause != "NodeFailure"


def test_what_a_recovery_confirmed_against_the_log_teaches_a_rule_too(tmp_path):
    row = kept(tmp_path, ODD, state="NODE_FAIL")
    assert row.root_cause == "SlurmNodeFail"
    assert incident_actions.confirm_verdict_by_recovery(row, now=clock.now(), note="started again elsewhere")

    turn()

    assert (rule_of(row).label, rule_of(row).owner, rule_of(row).state) == ("SlurmNodeFail", None, RuleState.SHADOW)
    assert Case.objects.confirmed().get().cured_by == "started again elsewhere"


def test_what_the_rules_find_already_teaches_nothing(tmp_path):
    row = kept(tmp_path, make.XID)
    incident_actions.confirm(row, author=rows.author(), now=clock.now())

    turn()

    assert not LearnedRule.objects.exists()
    assert Case.objects.get().learned_at


def test_a_rule_that_would_break_a_confirmed_verdict_is_never_proposed(tmp_path):
    other = kept(tmp_path, ODD + make.XID)
    incident_actions.confirm(other, author=rows.author(), now=clock.now())
    corrected(tmp_path)

    turn()

    assert not LearnedRule.objects.filter(example__contains="flux").exists()


def test_the_shadow_counts_what_it_would_have_found(tmp_path):
    row = corrected(tmp_path)
    turn()
    again = kept(tmp_path, ALSO_ODD)
    turn()

    assert rule_of(row).hit_count == 2
    incident_actions.correct_verdict(again, "DiskFull", author=rows.author(), now=clock.now())
    assert (rule_of(row).right, rule_of(row).wrong, rule_of(row).precision) == (1, 1, 0.5)


def test_an_adopted_rule_gives_verdicts_until_it_is_retired(tmp_path):
    row = corrected(tmp_path)
    turn()
    shipped = active_rules.active_scanner().version

    rule_actions.adopt(rule_of(row), author=rows.author(), now=clock.now())
    found = kept(tmp_path, ALSO_ODD)
    rule_actions.retire(rule_of(row), author=rows.author(), now=clock.now(), why="too greedy")

    assert found.root_cause == "NodeFailure"
    assert found.rules_version != shipped
    assert active_rules.active_scanner().version == shipped
    assert list(Event.objects.filter(what__startswith="rule.").order_by("id").values_list("what", flat=True)) == [
        "rule.proposed", "rule.adopted", "rule.retired",
    ]  # fmt: skip


def test_nobody_adopts_what_somebody_else_has_retired(tmp_path):
    row = corrected(tmp_path)
    turn()
    rule = rule_of(row)
    rule_actions.retire(rule, author=rows.author(), now=clock.now())

    with pytest.raises(FailureStateConflict, match="it is retired already"):
        rule_actions.adopt(rule, author=rows.author(), now=clock.now())


def test_a_retired_rule_is_not_proposed_again(tmp_path):
    row = corrected(tmp_path)
    turn()
    rule_actions.retire(rule_of(row), author=rows.author(), now=clock.now())
    incident_actions.correct_verdict(row, "NodeFailure", author=rows.author(), now=clock.now())

    turn()

    assert LearnedRule.objects.get().state == RuleState.RETIRED


def test_the_policy_adopts_after_enough_right_hits(tmp_path, settings):
    settings.ACME_ADOPT_RULES_AFTER = 2
    row = corrected(tmp_path)
    turn()
    assert rule_of(row).state == RuleState.SHADOW

    corrected(tmp_path, ALSO_ODD)
    turn()
    turn()

    assert rule_of(row).state == RuleState.ADOPTED
    assert rule_of(row).adopted_by == "learning"


def test_a_bundle_that_breaks_the_reader_does_not_stop_the_others(tmp_path, caplog):
    broken, whole = kept(tmp_path), kept(tmp_path, make.XID)
    Diagnosis.objects.filter(pk=broken.pk).update(bundle=b"no zlib")

    with caplog.at_level(logging.CRITICAL, logger="failures.loops.learn"):
        turn()

    assert Case.objects.get(diagnosis=whole).vector.any()
    assert not Case.objects.get(diagnosis=broken).vector.any()
    assert turn() == 0


def test_hits_counted_twice_are_one(tmp_path):
    row = corrected(tmp_path)
    turn()
    rule_actions.record_hits(row, [rule_of(row)])

    assert RuleHit.objects.count() == 1


def test_an_adopted_filter_drops_its_lines_from_the_next_bundle(tmp_path):
    row = kept(tmp_path)
    rule = rule_actions.propose_filter(row, "mine", "heartbeat of worker [0-9]+", "heartbeat of worker 4", "frequency")
    assert rule is not None
    rule_actions.adopt(rule, author=rows.author(), now=clock.now())

    text = "".join(f"heartbeat of worker {n}\n" for n in range(300)) + make.TYPO * 20

    assert "heartbeat of worker 4 " not in kept(tmp_path, text).bundle_text


def test_the_verdict_of_a_bundle_names_the_rules_it_was_made_with(tmp_path):
    assert kept(tmp_path).rules_version == engine.diagnose_text("").rules_version
    assert learn.MAX_PAST_BUNDLES >= 1000


def test_frequent_lines_without_trouble_propose_filters_in_shadow(tmp_path):
    beats = "".join(f"worker {n % 7} renewed its lease for {n} seconds\n" for n in range(900))
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n" * 900
    kept(tmp_path, beats + oom)

    turn()

    assert [one.example for one in LearnedRule.objects.filter(kind="filter")] == [
        "worker 0 renewed its lease for 0 seconds"
    ]
