"""Filter rules: lines that are routine and do not need to be stored. Pure.

A rule is a pattern in the scanner's dialect; a match means that the whole line is routine. A line with a signature is
always stored, so a careless rule can hide a metric but never a cause. Other rules than the shipped ones come from line
frequency (`propose_frequent_filters`), from a user or from a model; all go through the same checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from .scan import Scanner, stored_scanner
from .signatures import Signature
from .values import Blame, LineRole

MIN_FREQUENT_COUNT = 500
PLACEHOLDER = "<*>"


@dataclass(frozen=True, kw_only=True)
class FilterRule:
    name: str
    pattern: str
    example: str
    origin: str = "shipped"


SHIPPED_FILTERS: tuple[FilterRule, ...] = (
    FilterRule(
        name="metrics",
        pattern=(
            r"(?i)\b(?:iter(?:ation)?|step|epoch|global_step)\b.{0,200}\b(?:loss|lr|learning[ _]rate|grad[ _]?norm|"
            r"tokens?|samples|throughput|tflops|mfu|time)\b"
        ),
        example="[rank3]: iteration 90/ 500 | elapsed time per iteration (ms): 912.3 | lm loss: 2.1",
    ),
    FilterRule(
        name="metrics-dict",
        pattern=r"\{'(?:loss|train_loss|eval_loss|grad_norm)': .{0,300}'(?:epoch|learning_rate|step)'",
        example="{'loss': 1.9, 'grad_norm': 0.4, 'learning_rate': 1e-05, 'epoch': 0.4}",
    ),
    FilterRule(
        name="progress-bar",
        pattern=r"\d+%\|.{0,200}\|? ?\d+/\d+ \[",
        example=" 12%|###   | 12/100 [00:10<01:10,  1.2it/s]",
    ),
    FilterRule(
        name="nccl-setup",
        pattern=(
            r"NCCL INFO (?:Channel|Ring|Tree|Trees|Connected|Using|NET|comm|Setting|Bootstrap|P2P|"
            r"threadThresholds|NVLS|Check|DMA|ncclCommInit)"
        ),
        example="heron-1:12:40 [2] NCCL INFO Channel 07/0 : 2[2] -> 3[3] via P2P/CUMEM",
    ),
    FilterRule(
        name="checkpoint-saved",
        pattern=r"(?i)\bsaved? (?:model |checkpoint )",
        example="[INFO] saved checkpoint shard 4 of step 900 in 4.1 s",
    ),
    FilterRule(
        name="debug",
        pattern=r"^\S{0,40} ?(?:\[?\d[\d:.,T /-]+\]? )?\[?DEBUG\b",
        example="2025-03-01 04:00:01,120 DEBUG cache hit",
    ),
    FilterRule(
        name="megatron-arguments",
        pattern=r"^ {2}[a-z0-9_]+ \.{4,} ",
        example="  adam_beta1 ...................................... 0.9",
    ),
)


@lru_cache(maxsize=4)
def filter_scanner(rules: tuple[FilterRule, ...]) -> Scanner:
    """A scanner for filter rules: the same as for signatures, without labels. Shipped rules are loaded from a file."""
    if rules == SHIPPED_FILTERS:
        return stored_scanner(as_signatures(rules))
    shipped, learned = rules[: len(SHIPPED_FILTERS)], rules[len(SHIPPED_FILTERS) :]
    if shipped == SHIPPED_FILTERS:
        return filter_scanner(shipped).with_rules(as_signatures(learned))
    return Scanner(as_signatures(rules))


def as_signatures(rules: Iterable[FilterRule]) -> tuple[Signature, ...]:
    return tuple(
        Signature(name=rule.name, label="", role=LineRole.BENIGN, specificity=0, pattern=rule.pattern,
                  example=rule.example, blame=Blame.JOB)
        for rule in rules
    )  # fmt: skip


def propose_frequent_filters(
    templates: Iterable[tuple[str, int]], least: int = MIN_FREQUENT_COUNT
) -> tuple[FilterRule, ...]:
    """One rule for each template that occurs at least `least` times. The caller leaves out those with a signature."""
    rules = []
    for at, (template, count) in enumerate(templates):
        words = template.replace(PLACEHOLDER, "").strip()
        if count >= least and len(words) >= 12:
            rules.append(
                FilterRule(
                    name=f"frequent-{at}", pattern=template_pattern(template), example=template, origin="frequency"
                )
            )
    return tuple(rules)


def template_pattern(template: str) -> str:
    """A pattern of the template's fixed words. The holes for its numbers are bounded, to keep the scan linear."""
    parts = [re.escape(part) for part in template[:160].strip().split(PLACEHOLDER)]
    return r"\S{0,60}".join(parts)
