"""The cost model of evaluations: datasets, a model, a site, and the cost of a slice of a dataset.

A trial has five phases: start the framework, load the model, prepare the samples, infer, and score. The seconds come
from the only published profile (HumanEval on a 7B model, NSDI'24 Fig. 13: 221 s, of which 29.5% load and prepare and
19.0% score) and from token counts; see `PhaseCosts.calibrate`.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

PROFILE_S = 221.0
LOAD_AND_PREPARE_S = 0.295 * PROFILE_S
SCORE_S = 0.190 * PROFILE_S
INFER_S = PROFILE_S - LOAD_AND_PREPARE_S - SCORE_S


class AnswerStyle(StrEnum):
    GENERATE = "generate"  # the model writes an answer token by token
    CHOOSE = "choose"  # the likelihood of each label is computed, with one forward pass per label


class MetricType(StrEnum):
    MATCH = "match"  # strings are compared
    TESTS = "tests"  # the generated programs are run
    JUDGE = "judge"  # another model scores the answers, over a network


@dataclass(frozen=True, kw_only=True)
class BenchmarkDataset:
    name: str
    samples: int
    style: AnswerStyle
    prompt_tokens: int
    answer: int  # tokens of an answer, or number of labels
    metric: MetricType


@dataclass(frozen=True, kw_only=True)
class EvaluationSite:
    nodes: int
    gpus_per_node: int = 8
    link_gb_s: float = 25 / 8  # link of a node to the storage, shared by its transfers
    host_gb_s: float = 10.0  # from the host's memory to one GPU
    scorers_per_node: int = 16  # CPU jobs that score at the same time

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class SliceCost:
    """Seconds of one slice after the model is loaded; `score` may run elsewhere."""

    prepare: float
    infer: float
    score: float

    @property
    def gpu_s(self) -> float:
        return self.prepare + self.infer

    def times(self, factor: float) -> SliceCost:
        return SliceCost(prepare=self.prepare * factor, infer=self.infer * factor, score=self.score * factor)


@dataclass(frozen=True, kw_only=True)
class PhaseCosts:
    """Seconds per unit of work for one model on one type of GPU."""

    start: float
    checkpoint_gb: float = 14.0  # 7B parameters of two bytes
    open: float = 1.0  # find the files and templates of a dataset, per slice
    prepare_sample: float = 0.005  # fill in and tokenize the prompt
    prompt_token: float = 0.00012  # 2 x 7e9 operations at 38% of an A100's 312 TFLOP/s
    answer_token: float = 0.0
    score_sample: tuple[tuple[MetricType, float], ...] = ()

    @classmethod
    def calibrate(cls, sharing: int = 8, site: EvaluationSite | None = None) -> PhaseCosts:
        """Return costs for which HumanEval takes the measured time if `sharing` trials of a node load together.

        The study does not state this number. The rest of the time before inference is the start of the framework.
        """
        bare = cls(start=0.0)
        human = next(dataset for dataset in datasets() if dataset.name == "humaneval")
        loading = bare.checkpoint_gb * sharing / (site or EvaluationSite(nodes=1)).link_gb_s
        prompts = human.samples * human.prompt_tokens * bare.prompt_token
        return cls(
            start=LOAD_AND_PREPARE_S - loading - bare.open - human.samples * bare.prepare_sample,
            answer_token=(INFER_S - prompts) / (human.samples * human.answer),
            score_sample=(
                (MetricType.MATCH, 0.002),
                (MetricType.TESTS, SCORE_S / human.samples),
                (MetricType.JUDGE, 2.0),  # the longest then take half an hour, as in the study
            ),
        )

    def cost(self, dataset: BenchmarkDataset, samples: int) -> SliceCost:
        forward = dataset.prompt_tokens * self.prompt_token
        if dataset.style == AnswerStyle.CHOOSE:
            each = dataset.answer * forward
        else:
            each = forward + dataset.answer * self.answer_token
        scoring = dict(self.score_sample)[dataset.metric]
        return SliceCost(
            prepare=self.open + samples * self.prepare_sample, infer=samples * each, score=0.5 + samples * scoring
        )


@cache
def datasets() -> tuple[BenchmarkDataset, ...]:
    """Return 63 common public datasets. The study uses 63 datasets but does not name them."""
    with (Path(__file__).parent / "datasets.csv").open(encoding="utf-8", newline="") as table:
        return tuple(
            BenchmarkDataset(
                name=row["name"],
                samples=int(row["samples"]),
                style=AnswerStyle(row["style"]),
                prompt_tokens=int(row["prompt_tokens"]),
                answer=int(row["answer"]),
                metric=MetricType(row["metric"]),
            )
            for row in csv.DictReader(table)
        )
