"""Acme's own answer, from the parts that answer on live clusters: detectors, diagnosis, grouping, decision, node test.

It sees what a control plane sees and nothing else: reports of steps, lines of logs, telemetry, listings of checkpoints.
What is missing here is only the hands: rows, loops and clusters, which have tests of their own. Pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from failures.detection import hang, loss, node_health, slow_ranks
from failures.detection import slow_steps as pace
from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.detection.loss import LossDetector
from failures.detection.slow_steps import SlowStepDetector
from failures.diagnosis import engine
from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import ExitStatus, FailureCategory, LogDiagnosis, RestartAdvice
from failures.incidents import circumstances
from failures.incidents.circumstances import ClusterEndReport
from failures.incidents.grouping import FailureSymptom as Failure
from failures.incidents.grouping import OpenIncident, matching_incident, scope_of_symptom, shape_of_line
from failures.recovery import checkpoints, decide, pair_tests
from failures.recovery.remedies import RESTART_ACTIONS, AutomationMode, RecoveryAction
from failures.recovery.values import (
    ANY_SUBJECT,
    FailureFacts,
    FailureHistory,
    PastAction,
    RecoveryDecision,
    RecoveryPolicy,
)
from jobs.core.retry_budget import PastAttempt
from scheduling.drill.simulation import DrillSimulation
from scheduling.drill.values import FailedAttempt, StepReport, virtual_time

AUTOMATIC_POLICY = RecoveryPolicy(modes={(ANY_SUBJECT, ANY_SUBJECT): AutomationMode.ACT})
SWEEP_INTERVAL_S = 60.0  # between two looks at the telemetry of all nodes
DETECTOR_CONFIDENCE = 0.95  # how sure a detector's finding is, by bench/detectors.py
CHECKPOINT_ROOT = "/checkpoints"
SLOW_NODE = "SlowNode"


@dataclass(kw_only=True)
class FollowedAttempt:
    """What is kept of one attempt while it runs."""

    began: float
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=260))
    sections: deque[hang.SectionInterval] = field(default_factory=lambda: deque(maxlen=20))
    pace: SlowStepDetector = field(default_factory=SlowStepDetector)
    loss: LossDetector = field(default_factory=LossDetector)
    slow: bool = False


@dataclass(frozen=True, kw_only=True)
class RecoveryCause:
    """Why something must be done, whoever found it."""

    label: str
    category: FailureCategory
    confidence: float
    restart_helps: RestartAdvice
    suspects: frozenset[str] = frozenset()
    words: str = ""
    spike_at: int | None = None


def cause_of_diagnosis(found: LogDiagnosis) -> RecoveryCause:
    return RecoveryCause(
        label=found.root_cause, category=found.category, confidence=found.confidence,
        restart_helps=found.restart_helps, suspects=frozenset(node.host for node in found.suspect_nodes),
        words=shape_of_line(found.evidence[0].text) if found.evidence else "",
    )  # fmt: skip


def cause_of_finding(label: str, suspects: frozenset[str] = frozenset(), spike_at: int | None = None) -> RecoveryCause:
    row = LABELS.get(label)
    return RecoveryCause(
        label=label, category=row.category if row else FailureCategory.INFRASTRUCTURE, confidence=DETECTOR_CONFIDENCE,
        restart_helps=row.restart if row else RestartAdvice.YES, suspects=suspects, spike_at=spike_at,
    )  # fmt: skip


class AcmeRecovery:
    name = "acme"

    def __init__(self, stage: DrillSimulation) -> None:
        self.stage = stage
        self._followed: dict[str, FollowedAttempt] = {}
        self._tries: dict[str, list[PastAttempt]] = defaultdict(list)
        self._done: list[PastAction] = []
        self._incidents: dict[int, OpenIncident] = {}
        self._unwell: dict[str, int] = {}  # node -> bad readings in a row
        self._cleared: dict[str, tuple[tuple[int, ...], int]] = {}
        self._swept = 0.0

    # --- what is reported

    def started(self, job: str, now: float) -> None:
        self._followed[job] = FollowedAttempt(began=now)

    def section(self, job: str, name: str, begin: float, end: float) -> None:
        self._followed[job].sections.append(hang.SectionInterval(name=name, begin=begin, end=end))

    def beat(self, job: str, beat: StepReport) -> None:
        one = self._followed[job]
        one.steps.append(beat.at)
        point = loss.LossPoint(step=beat.step, at=beat.at, loss=beat.loss, grad_norm=beat.grad_norm)
        if found := one.loss.see(point):
            spike_at = int(found.subject.partition("-")[0])
            self._stop_and_recover(job, cause_of_finding("LossNaNOrSpike", spike_at=spike_at), beat.at)
            return
        step = pace.StepTiming(at=beat.at, seconds=beat.seconds, tokens=beat.tokens, squares=beat.squares)
        one.slow = one.slow or one.pace.see(step) is not None
        if one.slow:
            self._locate_slow_node(job, one, beat.at)

    def _locate_slow_node(self, job: str, one: FollowedAttempt, now: float) -> None:
        """Who makes the others wait; where nobody stands out, nobody is blamed."""
        found = [
            row
            for row in slow_ranks.detect_slow_ranks(self.stage.ranks(job, now), now)
            if row.symptom is SymptomType.SLOW_NODE
        ]
        one.slow = False
        if found:
            self._stop_and_recover(job, cause_of_finding(SLOW_NODE, frozenset(row.subject for row in found)), now)

    def run_checks(self, now: float) -> None:
        for job in list(self._followed):
            one = self._followed[job]
            if one.steps and now - one.steps[-1] > hang.MIN_PATIENCE_S:
                self._handle_hang(job, hang.detect_hang(list(one.steps), now, list(one.sections)), now)
        for job in self.stage.jobs_with_log():
            # Younger silence than the detector's floor is no finding; asking costs more than looking at a clock
            if now - self.stage.last_line_at(job, now) > hang.MIN_PATIENCE_S:
                self._handle_hang(job, hang.detect_hang_in_log(self.stage.lines(job, now), now), now)
        if now - self._swept >= SWEEP_INTERVAL_S:
            self._swept = now
            self._check_all_nodes(now)

    def _handle_hang(self, job: str, found: DetectorFinding | None, now: float) -> None:
        if found is not None:
            self._stop_and_recover(job, cause_of_finding("Hang"), now)

    # --- nodes by themselves

    def _check_all_nodes(self, now: float) -> None:
        """A node that is not well for two looks takes no new work; what runs there is let be, its end will tell. What
        was seen before a test that it passed is not held against it again."""
        for reading in self.stage.node_readings(self.stage.nodes_in_service(), now):
            node = reading.node
            bad = _is_bad_reading(reading, now) and (tuple(reading.xids), reading.ecc_uncorrected) != self._cleared.get(
                node
            )
            self._unwell[node] = self._unwell.get(node, 0) + 1 if bad else 0
            if self._unwell[node] >= 2 and not self.stage.is_occupied(node):
                self._cordon_node(node, now)

    def _cordon_node(self, node: str, now: float, *, untested: bool = False) -> None:
        self.stage.cordon(node, now)
        if untested:
            self._repair(node, now)
        else:
            self._test_node(node, now)

    def _test_node(self, node: str, now: float) -> None:
        """Two nodes that are known to be good, one after the other; whom both worlds fail is faulty."""
        partners = [name for name in self.stage.idle() if name != node][:2]
        if not partners:
            self.stage.agenda.at(now + SWEEP_INTERVAL_S, lambda later: self._test_node(node, later))
            return
        self._run_pair_tests(
            [node], partners, now, lambda verdict, later: self._handle_node_verdict(node, verdict, later)
        )

    def _handle_node_verdict(self, node: str, verdict: pair_tests.PairTestVerdict, now: float) -> None:
        if node in verdict.good:
            [reading] = self.stage.node_readings([node], now)
            self._cleared[node] = tuple(reading.xids), reading.ecc_uncorrected
            self.stage.resume(node, now)
        elif node in verdict.faulty:
            self._repair(node, now)
        else:
            self.stage.agenda.at(now + SWEEP_INTERVAL_S, lambda later: self._test_node(node, later))

    def _repair(self, node: str, now: float) -> None:
        self.stage.repair(node, now, lambda later: self._test_node(node, later))

    def _run_pair_tests(
        self,
        suspects: Sequence[str],
        partners: Sequence[str],
        now: float,
        then: Callable[[pair_tests.PairTestVerdict, float], None],
    ) -> None:
        first_worlds = pair_tests.first_round_groups(suspects, partners[:1])

        def after_first(first: list[pair_tests.GroupResult], later: float) -> None:
            waves = pair_tests.second_round_waves(suspects, first, partners)
            self._run_waves(list(waves), [], later, lambda second, at: told(first, second, at))

        def told(first: list[pair_tests.GroupResult], second: list[pair_tests.GroupResult], at: float) -> None:
            then(pair_tests.pair_test_verdict(suspects, first, second, partners), at)

        self.stage.test(first_worlds, now, after_first)

    def _run_waves(
        self,
        waves: list[tuple[pair_tests.NodeGroup, ...]],
        outcomes: list[pair_tests.GroupResult],
        now: float,
        then: Callable[[list[pair_tests.GroupResult], float], None],
    ) -> None:
        if not waves:
            then(outcomes, now)
            return
        self.stage.test(waves[0], now, lambda more, later: self._run_waves(waves[1:], [*outcomes, *more], later, then))

    # --- an attempt that failed, or must not go on

    def ended(self, seen: FailedAttempt, now: float) -> None:
        self._followed.pop(seen.job, None)
        found = engine.diagnose_text(seen.log, ExitStatus(exit_code=seen.exit_code))
        weighed = circumstances.merge_cluster_report(found, ClusterEndReport(state=seen.state, news=seen.news))
        self._recover_attempt(seen, cause_of_diagnosis(weighed), now)

    def _stop_and_recover(self, job: str, cause: RecoveryCause, now: float) -> None:
        """The attempt runs and gets nowhere: it is ended, and answered like one that ended by itself."""
        self._followed.pop(job, None)
        self.stage.tally.detected(job, now, cause.label)
        seen = self.stage.seen(job, now)
        self.stage.stop(job, now, saving=cause.label == SLOW_NODE)
        # Who could save is asked to, and goes on from there
        shelf = self.stage.seen(job, now).shelf if cause.label == SLOW_NODE else seen.shelf
        self._recover_attempt(replace(seen, shelf=shelf), cause, now)

    def _recover_attempt(self, seen: FailedAttempt, cause: RecoveryCause, now: float) -> None:
        self.stage.tally.detected(seen.job, now, cause.label)
        facts = self._recovery_facts(seen, cause, now)
        self._tries[seen.job].append(PastAttempt(cause=cause.label, nodes=seen.nodes, step=seen.step))
        history = FailureHistory(
            tries=tuple(self._tries[seen.job]), done=tuple(self._done), cluster_nodes=self.stage.plan.nodes
        )
        self._execute_recovery(seen, facts, decide(facts, history, AUTOMATIC_POLICY, virtual_time(now)), now)

    def _recovery_facts(self, seen: FailedAttempt, cause: RecoveryCause, now: float) -> FailureFacts:
        faulty = frozenset(
            one.node for one in self.stage.node_readings(seen.nodes, now) if node_health.reports_fault(one)
        )
        suspects = cause.suspects | (faulty if cause.category is FailureCategory.INFRASTRUCTURE else frozenset())
        incident, alike = self._assign_incident(seen, cause, suspects)
        return FailureFacts(
            job=seen.job, team=seen.team, cause=cause.label, category=cause.category, at=seen.at,
            confidence=cause.confidence, restart_helps=cause.restart_helps, incident=str(incident), nodes=seen.nodes,
            suspects=suspects, alike=alike, labels=seen.labels, started_from=seen.started_from,
            checkpoints=checkpoints.to_saved_checkpoints(
                checkpoints.find_checkpoints(seen.shelf), CHECKPOINT_ROOT, cause.spike_at
            ),
            spike_at=cause.spike_at, ran=seen.ran,
        )  # fmt: skip

    def _assign_incident(self, seen: FailedAttempt, cause: RecoveryCause, suspects: frozenset[str]) -> tuple[int, int]:
        """The incident it belongs to, and how many other jobs are in it."""
        failure = Failure(
            root_cause=cause.label, at=seen.at, job=seen.job, nodes=seen.nodes, suspects=suspects, words=cause.words
        )
        known = matching_incident(failure, self._incidents.values())
        if known is None:
            known = len(self._incidents) + 1
            self._incidents[known] = OpenIncident(
                id=known, root_cause=cause.label, scope=scope_of_symptom(failure), first_at=seen.at, last_at=seen.at,
                nodes=suspects & seen.nodes, jobs=frozenset({seen.job}), words=cause.words,
            )  # fmt: skip
            return known, 0
        one = self._incidents[known]
        jobs = one.jobs | {seen.job}
        self._incidents[known] = OpenIncident(
            id=known, root_cause=one.root_cause, scope=one.scope, first_at=one.first_at,
            last_at=max(one.last_at, seen.at), nodes=one.nodes, jobs=jobs, words=one.words,
        )  # fmt: skip
        return known, len(jobs) - 1

    def _execute_recovery(self, seen: FailedAttempt, facts: FailureFacts, what: RecoveryDecision, now: float) -> None:
        if not what.is_automatic or what.action not in RESTART_ACTIONS:
            self.stage.call_operator(seen.job, now)
            return
        self._done.append(
            PastAction(
                action=what.action, job=seen.job, at=virtual_time(now), incident=facts.incident, nodes=what.drain,
                until=what.not_before if what.action is RecoveryAction.WAIT else None,
                checkpoint=what.checkpoint.step if what.checkpoint else None,
            )
        )  # fmt: skip
        if what.action is RecoveryAction.TEST:
            self._test_nodes_first(seen, what, now)
            return
        for node in what.drain:
            self._cordon_node(node, now, untested=facts.cause == SLOW_NODE)
        self._restart(seen, what, now + (what.not_before - virtual_time(now)).total_seconds())

    def _test_nodes_first(self, seen: FailedAttempt, what: RecoveryDecision, now: float) -> None:
        def judged(verdict: pair_tests.PairTestVerdict, later: float) -> None:
            for node in verdict.faulty:
                self.stage.cordon(node, later)
                self._repair(node, later)
            self._restart(seen, what, later)

        idle = [node for node in self.stage.idle() if node not in what.test]
        self._run_pair_tests(sorted(what.test), idle, now, judged)

    def _restart(self, seen: FailedAttempt, what: RecoveryDecision, at: float) -> None:
        step = what.checkpoint.step if what.checkpoint else None
        self.stage.restart(seen.job, step, at=at, skip=what.skip)


def _is_bad_reading(reading: node_health.NodeTelemetryWindow, now: float) -> bool:
    return any(one.severity is Severity.BAD for one in node_health.node_health_findings(reading, now))
