"""What is learned from a confirmed diagnosis, and what keeps a bad lesson out; and which past cases are near."""

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


def test_the_evidence_of_a_confirmed_cause_becomes_a_rule_for_its_kind() -> None:
    rule = rule_proposals.propose_rule(PAST, [ODD], [PAST, OTHER, HEALTHY])

    assert rule is not None
    assert (rule.label, rule.example) == ("NodeFailure", ODD)
    again = "flux capacitor of rack 12 lost its phase lock, shutting down lane 1"
    scanner = rule_proposals.scanner_with_rules([signature(rule)])
    assert engine.diagnose_text(again).root_cause != "NodeFailure"
    assert engine.diagnose_text(again, scanner=scanner).root_cause == "NodeFailure"


def test_a_line_that_also_occurs_under_another_cause_is_no_rule() -> None:
    elsewhere = StoredBundle(key=4, cause="ValueError", bundle=f"@1 | {ODD}\n")

    rule = rule_proposals.propose_rule(PAST, [ODD], [PAST, elsewhere])

    assert rule is None or rule.example != ODD


def test_nothing_is_learned_from_a_log_without_a_cause() -> None:
    assert rule_proposals.propose_rule(HEALTHY, ["step 4 loss 2.0"], [HEALTHY]) is None


def test_lines_of_numbers_and_frames_are_never_rules() -> None:
    bundle = '@1 | 17 18 19\n@2 | File "/a/b/c.py", line 4, in train_one_epoch\n@3 | x=1\n'

    assert rule_proposals.candidate_lines(bundle, []) == []


def test_a_replay_counts_and_names_the_verdicts_that_a_rule_would_break() -> None:
    rule = rule_proposals.as_signature("learned-x", "NodeFailure", "CUDA out of memory", "CUDA out of memory")
    greedy = rule_proposals.Signature(**{**rule.__dict__, "specificity": 99})

    replay = rule_proposals.replay_rule(greedy, [PAST, OTHER, HEALTHY])

    assert (replay.hits, replay.right, replay.wrong, replay.broken) == (1, 0, 1, (2,))
    assert not replay.accepted


def test_a_replay_shows_what_a_good_rule_mends() -> None:
    rule = rule_proposals.propose_rule(PAST, [ODD], [PAST, OTHER])
    assert rule is not None

    replay = rule_proposals.replay_rule(signature(rule), [PAST, OTHER, HEALTHY])

    assert replay.accepted
    assert (replay.mended, replay.precision) == ((1,), 1.0)


def test_a_pattern_is_refused_with_a_sentence() -> None:
    def trouble(pattern: str, example: str = "lost its phase lock") -> str:
        return rule_proposals.signature_error(rule_proposals.as_signature("mine", "NodeFailure", pattern, example))

    assert trouble("(?=look)ahead").startswith("pattern of mine: ")
    assert trouble("never there") == "The pattern does not find its own example."
    assert "mpty" in trouble("x*")
    assert trouble("phase lock") == ""


def test_near_is_who_said_the_same_whatever_the_numbers_and_hosts() -> None:
    one = embedding.embed_bundle("@4 | tern-1: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus\n")
    same = embedding.embed_bundle("@900 x3 | heron-8: NVRM: Xid (PCI:0000:3d:00): 79, GPU has fallen off the bus\n")
    other = embedding.embed_bundle("@4 | ModuleNotFoundError: No module named 'apex'\n")

    found = embedding.nearest_vectors(one, [(1, other), (2, same)])

    assert [key for key, _ in found] == [2, 1]
    assert found[0][1] > 0.9 > 0.3 > found[1][1]


def test_what_surrounds_a_cause_weighs_less_than_the_cause() -> None:
    chatter = "".join(f"@{n} | worker group ready, loading shard of tokens\n" for n in range(30))
    cause = "@99 | RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    bundle = embedding.embed_bundle(chatter + cause)

    assert embedding.vector_similarity(bundle, embedding.embed_bundle(cause)) > embedding.vector_similarity(
        bundle, embedding.embed_bundle(chatter)
    )


def test_an_empty_bundle_is_near_to_nothing() -> None:
    empty = embedding.embed_bundle("")

    assert not np.any(empty)
    assert embedding.vector_similarity(empty, embedding.embed_bundle("some words of a log")) == 0.0


@given(st.text("ab1 ", max_size=12), st.text("ab1 \n", max_size=40))
def test_a_shape_stands_where_its_pattern_would_find_it(text: str, bundle: str) -> None:
    found = re.search(rule_proposals.shape_pattern(text), bundle) is not None

    assert rule_proposals._occurs_in_bundle(rule_proposals._shape_parts(text), bundle) == found


def test_a_shape_of_many_holes_is_looked_for_in_linear_time() -> None:
    """Python's `re` would try every way to fill the holes, which is more than the age of the universe."""
    text = "x 1 " * 30 + "the end"

    assert not rule_proposals._occurs_in_bundle(rule_proposals._shape_parts(text), " the end" + " x " * 5000)
    assert rule_proposals._occurs_in_bundle(rule_proposals._shape_parts(text), " x " * 5000 + " the end")
