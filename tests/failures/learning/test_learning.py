"""Rule proposals from confirmed diagnoses, the checks that reject bad rules, and similarity of past cases."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from failures.diagnosis import engine
from failures.learning import embedding, rule_proposals
from failures.learning.rule_proposals import StoredBundle

ODD = "flux capacitor of rack 7 lost its phase lock, shutting down lane 3"
PAST = StoredBundle(
    key=1, cause="NodeFailure", bundle=f"@1 | step 4 loss 2.0\n@9 | {ODD}\n@10 | RuntimeError: run aborted\n"
)
OTHER = StoredBundle(
    key=2, cause="OutOfMemoryError", bundle="@3 | [rank1]: torch.OutOfMemoryError: CUDA out of memory.\n"
)
HEALTHY = StoredBundle(key=3, cause="None", bundle="@1 | step 4 loss 2.0\n@2 | step 5 loss 1.9\n")


def signature(proposal: rule_proposals.RuleProposal) -> rule_proposals.Signature:
    return rule_proposals.as_signature(proposal.name, proposal.label, proposal.pattern, proposal.example)


def test_evidence_of_a_confirmed_cause_becomes_a_general_rule() -> None:
    rule = rule_proposals.propose_rule(PAST, [ODD], [PAST, OTHER, HEALTHY])

    assert rule is not None
    assert (rule.label, rule.example) == ("NodeFailure", ODD)
    again = "flux capacitor of rack 12 lost its phase lock, shutting down lane 1"
    scanner = rule_proposals.scanner_with_rules([signature(rule)])
    assert engine.diagnose_text(again).root_cause != "NodeFailure"
    assert engine.diagnose_text(again, scanner=scanner).root_cause == "NodeFailure"


def test_line_that_occurs_with_another_cause_is_not_proposed() -> None:
    elsewhere = StoredBundle(key=4, cause="ValueError", bundle=f"@1 | {ODD}\n")

    rule = rule_proposals.propose_rule(PAST, [ODD], [PAST, elsewhere])

    assert rule is None or rule.example != ODD


def test_log_without_a_cause_proposes_no_rule() -> None:
    assert rule_proposals.propose_rule(HEALTHY, ["step 4 loss 2.0"], [HEALTHY]) is None


def test_numbers_and_traceback_lines_are_not_proposed() -> None:
    bundle = '@1 | 17 18 19\n@2 | File "/a/b/c.py", line 4, in train_one_epoch\n@3 | x=1\n'

    assert rule_proposals.candidate_lines(bundle, []) == []


def test_replay_lists_the_verdicts_that_a_rule_breaks() -> None:
    rule = rule_proposals.as_signature("learned-x", "NodeFailure", "CUDA out of memory", "CUDA out of memory")
    greedy = rule_proposals.Signature(**{**rule.__dict__, "specificity": 99})

    replay = rule_proposals.replay_rule(greedy, [PAST, OTHER, HEALTHY])

    assert (replay.hits, replay.right, replay.wrong, replay.broken) == (1, 0, 1, (2,))
    assert not replay.accepted


def test_replay_lists_the_verdicts_that_a_rule_corrects() -> None:
    rule = rule_proposals.propose_rule(PAST, [ODD], [PAST, OTHER])
    assert rule is not None

    replay = rule_proposals.replay_rule(signature(rule), [PAST, OTHER, HEALTHY])

    assert replay.accepted
    assert (replay.mended, replay.precision) == ((1,), 1.0)


def test_unusable_pattern_is_rejected_with_a_sentence() -> None:
    def signature_problem(pattern: str, example: str = "lost its phase lock") -> str:
        return rule_proposals.signature_error(rule_proposals.as_signature("mine", "NodeFailure", pattern, example))

    assert signature_problem("(?=look)ahead").startswith("pattern of mine: ")
    assert signature_problem("never there") == "The pattern does not match its own example."
    assert "mpty" in signature_problem("x*")
    assert signature_problem("phase lock") == ""


def similarity(one: embedding.Vector, other: embedding.Vector) -> float:
    return float(one @ other)


def test_similar_logs_have_the_same_messages_whatever_the_hosts() -> None:
    one = embedding.embed_bundle("@4 | tern-1: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus\n")
    same = embedding.embed_bundle("@900 x3 | heron-8: NVRM: Xid (PCI:0000:3d:00): 79, GPU has fallen off the bus\n")
    other = embedding.embed_bundle("@4 | ModuleNotFoundError: No module named 'apex'\n")

    assert similarity(one, same) > 0.9
    assert similarity(one, other) < 0.3


def test_cause_weighs_more_than_the_lines_around_it() -> None:
    chatter = "".join(f"@{n} | worker group ready, loading shard of tokens\n" for n in range(30))
    cause = "@99 | RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    bundle = embedding.embed_bundle(chatter + cause)

    assert similarity(bundle, embedding.embed_bundle(cause)) > similarity(bundle, embedding.embed_bundle(chatter))


def test_empty_bundle_is_similar_to_nothing() -> None:
    empty = embedding.embed_bundle("")

    assert not np.any(empty)
    assert similarity(empty, embedding.embed_bundle("some words of a log")) == 0.0


@given(st.text("ab1 ", max_size=12), st.text("ab1 \n", max_size=40))
def test_shape_search_agrees_with_its_pattern(text: str, bundle: str) -> None:
    found = re.search(rule_proposals.shape_pattern(text), bundle) is not None

    assert rule_proposals._occurs_in_bundle(rule_proposals._shape_parts(text), bundle) == found


def test_shape_with_many_holes_is_searched_in_linear_time() -> None:
    """Python's `re` would backtrack over all ways to fill the holes and never finish."""
    text = "x 1 " * 30 + "the end"

    assert not rule_proposals._occurs_in_bundle(rule_proposals._shape_parts(text), " the end" + " x " * 5000)
    assert rule_proposals._occurs_in_bundle(rule_proposals._shape_parts(text), " x " * 5000 + " the end")
