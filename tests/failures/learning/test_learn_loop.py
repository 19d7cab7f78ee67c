"""The learning loop: cases, hits, proposals, adoption, and the effect of adopted rules."""

from __future__ import annotations

import logging

import pytest

from acmeweb.common.errors import StateConflict
from failures.actions import incidents as incident_actions
from failures.actions import rules as rule_actions
from failures.diagnosis import engine
from failures.learning import embedding
from failures.loops import learn
from failures.loops.diagnose import diagnose_once
from failures.loops.learn import learn_once
from failures.models import Diagnosis, LearnedRule, PastFailure, RuleHit, RuleState
from failures.queries import active_rules
from jobs.models import Event, clock
from tests import make as rows
from tests.failures import make

pytestmark = pytest.mark.django_db

ODD = "step 4 loss 2.0\nflux capacitor of rack 7 lost its phase lock, shutting down lane 3\n"
ALSO_ODD = "step 9 loss 1.0\nflux capacitor of rack 12 lost its phase lock, shutting down lane 1\n"


def run_learn_loop() -> int:
    return learn_once(clock.now())


def stored_diagnosis(tmp_path, text=make.TYPO, **how) -> Diagnosis:
    row = make.diagnosed(tmp_path, text, **how)
    diagnose_once(clock.now())
    row.refresh_from_db()
    return row


def corrected_diagnosis(tmp_path, text=ODD, cause="NodeFailure") -> Diagnosis:
    row = stored_diagnosis(tmp_path, text)
    incident_actions.correct_verdict(row, cause, author=rows.author(), now=clock.now(), note="the rack was swapped")
    return row


def rule_of(row: Diagnosis) -> LearnedRule:
    return LearnedRule.objects.with_hit_counts().get(source=row)


def test_each_stored_bundle_becomes_one_case(tmp_path):
    row = stored_diagnosis(tmp_path)

    assert run_learn_loop() >= 1
    assert run_learn_loop() == 0
    assert PastFailure.objects.get().diagnosis == row


def test_diagnosis_without_a_stored_bundle_is_skipped(tmp_path):
    make.failed(tmp_path)
    incident_actions.add_missing_diagnoses(clock.now() - learn_window(), clock.now())

    assert run_learn_loop() == 0


def learn_window():
    from failures.loops.diagnose import RECENT_FAILURES

    return RECENT_FAILURES


def test_nearest_case_search_returns_confirmed_cases_only(tmp_path):
    near = corrected_diagnosis(tmp_path)
    stored_diagnosis(tmp_path, make.TYPO)
    unconfirmed = stored_diagnosis(tmp_path, ODD)
    run_learn_loop()

    found = list(PastFailure.objects.confirmed().nearest(embedding.embed_bundle(ALSO_ODD)))

    assert [one.diagnosis_id for one in found] == [near.pk]
    assert found[0].similarity > 0.9
    assert unconfirmed.pk not in [one.diagnosis_id for one in found]


def test_corrected_verdict_proposes_a_shadow_rule_without_effect(tmp_path):
    row = corrected_diagnosis(tmp_path)

    run_learn_loop()

    rule = rule_of(row)
    assert (rule.label, rule.state, rule.owner.username) == ("NodeFailure", RuleState.SHADOW, "ada")
    assert (rule.hit_count, rule.right, rule.wrong) == (1, 1, 0)
    assert Event.objects.filter(type="rule.proposed").count() == 1
    assert stored_diagnosis(tmp_path, ALSO_ODD).root_cause != "NodeFailure"


def test_verdict_that_the_rules_already_give_proposes_no_rule(tmp_path):
    row = stored_diagnosis(tmp_path, make.XID)
    incident_actions.confirm(row, author=rows.author(), now=clock.now())

    run_learn_loop()

    assert not LearnedRule.objects.exists()
    assert PastFailure.objects.get().learned_at


def test_rule_that_breaks_a_confirmed_verdict_is_not_proposed(tmp_path):
    other = stored_diagnosis(tmp_path, ODD + make.XID)
    incident_actions.confirm(other, author=rows.author(), now=clock.now())
    corrected_diagnosis(tmp_path)

    run_learn_loop()

    assert not LearnedRule.objects.filter(example__contains="flux").exists()


def test_shadow_rule_counts_its_right_and_wrong_hits(tmp_path):
    row = corrected_diagnosis(tmp_path)
    run_learn_loop()
    again = stored_diagnosis(tmp_path, ALSO_ODD)
    run_learn_loop()

    assert rule_of(row).hit_count == 2
    incident_actions.correct_verdict(again, "DiskFull", author=rows.author(), now=clock.now())
    assert (rule_of(row).right, rule_of(row).wrong, rule_of(row).precision) == (1, 1, 0.5)


def test_adopted_rule_gives_verdicts_until_it_is_retired(tmp_path):
    row = corrected_diagnosis(tmp_path)
    run_learn_loop()
    shipped = active_rules.active_scanner().version

    rule_actions.adopt(rule_of(row), author=rows.author(), now=clock.now())
    found = stored_diagnosis(tmp_path, ALSO_ODD)
    rule_actions.retire(rule_of(row), author=rows.author(), now=clock.now(), why="too greedy")

    assert found.root_cause == "NodeFailure"
    assert found.rules_version != shipped
    assert active_rules.active_scanner().version == shipped
    assert list(Event.objects.filter(type__startswith="rule.").order_by("id").values_list("type", flat=True)) == [
        "rule.proposed", "rule.adopted", "rule.retired",
    ]  # fmt: skip


def test_retired_rule_cannot_be_adopted(tmp_path):
    row = corrected_diagnosis(tmp_path)
    run_learn_loop()
    rule = rule_of(row)
    rule_actions.retire(rule, author=rows.author(), now=clock.now())

    with pytest.raises(StateConflict, match="already retired"):
        rule_actions.adopt(rule, author=rows.author(), now=clock.now())


def test_retired_rule_is_not_proposed_again(tmp_path):
    row = corrected_diagnosis(tmp_path)
    run_learn_loop()
    rule_actions.retire(rule_of(row), author=rows.author(), now=clock.now())
    incident_actions.correct_verdict(row, "NodeFailure", author=rows.author(), now=clock.now())

    run_learn_loop()

    assert LearnedRule.objects.get().state == RuleState.RETIRED


def test_rule_is_adopted_automatically_after_enough_right_hits(tmp_path, settings):
    settings.ACME_ADOPT_RULES_AFTER = 2
    row = corrected_diagnosis(tmp_path)
    run_learn_loop()
    assert rule_of(row).state == RuleState.SHADOW

    corrected_diagnosis(tmp_path, ALSO_ODD)
    run_learn_loop()
    run_learn_loop()

    assert rule_of(row).state == RuleState.ADOPTED
    assert rule_of(row).adopted_by == "learning"


def test_unreadable_bundle_does_not_stop_the_others(tmp_path, caplog):
    broken, whole = stored_diagnosis(tmp_path), stored_diagnosis(tmp_path, make.XID)
    Diagnosis.objects.filter(pk=broken.pk).update(bundle=b"no zlib")

    with caplog.at_level(logging.CRITICAL, logger="failures.loops.learn"):
        run_learn_loop()

    assert PastFailure.objects.get(diagnosis=whole).vector.any()
    assert not PastFailure.objects.get(diagnosis=broken).vector.any()
    assert run_learn_loop() == 0


def test_hit_recorded_twice_counts_once(tmp_path):
    row = corrected_diagnosis(tmp_path)
    run_learn_loop()
    rule_actions.record_hits(row, [rule_of(row)])

    assert RuleHit.objects.count() == 1


def test_adopted_filter_drops_its_lines_from_the_next_bundle(tmp_path):
    row = stored_diagnosis(tmp_path)
    rule = rule_actions.propose_filter(row, "mine", "heartbeat of worker [0-9]+", "heartbeat of worker 4", "frequency")
    assert rule is not None
    rule_actions.adopt(rule, author=rows.author(), now=clock.now())

    text = "".join(f"heartbeat of worker {n}\n" for n in range(300)) + make.TYPO * 20

    assert "heartbeat of worker 4 " not in stored_diagnosis(tmp_path, text).bundle_text


def test_verdict_stores_the_version_of_its_rules(tmp_path):
    assert stored_diagnosis(tmp_path).rules_version == engine.diagnose_text("").rules_version
    assert learn.MAX_PAST_BUNDLES >= 1000


def test_frequent_harmless_lines_propose_shadow_filters(tmp_path):
    beats = "".join(f"worker {n % 7} renewed its lease for {n} seconds\n" for n in range(900))
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n" * 900
    stored_diagnosis(tmp_path, beats + oom)

    run_learn_loop()

    assert [one.example for one in LearnedRule.objects.filter(kind="filter")] == [
        "worker 0 renewed its lease for 0 seconds"
    ]
