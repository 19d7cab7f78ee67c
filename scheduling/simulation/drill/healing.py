"""Acme's recovery in a drill, from the parts used on live clusters: detectors, diagnosis, incidents, decisions, tests.

It sees only what a control plane sees: step reports, log lines, telemetry, checkpoint listings. Rows, loops and
clusters are not part of a drill; they have their own tests. Pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from failures.detection import hang, loss, node_health, slow_ranks, slow_steps
from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.detection.loss import LossDetector
from failures.detection.slow_steps import SlowStepDetector
from failures.diagnosis import engine
from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import ExitStatus, FailureCategory, LogDiagnosis, RestartAdvice
from failures.incidents import circumstances
from failures.incidents.circumstances import ClusterEndReport
from failures.incidents.grouping import (
    LONGEST_JOIN_WINDOW,
    FailureSymptom,
    OpenIncident,
    matching_incident,
    scope_of_symptom,
    shape_of_line,
)
from failures.recovery.rules import checkpoints, pair_tests
from failures.recovery.rules.decide import decide
from failures.recovery.rules.remedies import RESTART_ACTIONS, AutomationMode, RecoveryAction
from failures.recovery.rules.values import (
    ANY_SUBJECT,
    FailureFacts,
    FailureHistory,
    NodeEvidence,
    PastAction,
    RecoveryDecision,
    RecoveryPolicy,
)
from jobs.core.retry_budget import PastAttempt
from scheduling.simulation.drill.simulation import DrillSimulation
from scheduling.simulation.drill.values import FailedAttempt, StepReport, virtual_time

AUTOMATIC_POLICY = RecoveryPolicy(modes={(ANY_SUBJECT, ANY_SUBJECT): AutomationMode.ACT})
SWEEP_INTERVAL_S = 60.0  # between two checks of the telemetry of all nodes
DETECTOR_CONFIDENCE = 0.95  # of a detector's finding, as measured by bench/detectors.py
CHECKPOINT_ROOT = "/checkpoints"
SLOW_NODE = "SlowNode"


@dataclass(kw_only=True)
class FollowedAttempt:
    """The state of a running attempt that the detectors need."""

    began: float
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=260))
    sections: deque[hang.SectionInterval] = field(default_factory=lambda: deque(maxlen=20))
    pace: SlowStepDetector = field(default_factory=SlowStepDetector)
    loss: LossDetector = field(default_factory=LossDetector)
    slow: bool = False


@dataclass(frozen=True, kw_only=True)
class RecoveryCause:
    """Why an attempt needs recovery, from a diagnosis or a detector."""

    label: str
    category: FailureCategory
    confidence: float
    restart_helps: RestartAdvice
    suspects: frozenset[str] = frozenset()
    words: str = ""
    spike_at: int | None = None


@dataclass(frozen=True, kw_only=True)
class HandledFailure:
    """A failure as Acme handled it, for records of the drill. A detector's finding has no diagnosis of a log."""

    attempt: FailedAttempt
    cause: RecoveryCause
    diagnosis: LogDiagnosis | None
    facts: FailureFacts
    history: FailureHistory
    decision: RecoveryDecision


def cause_of_diagnosis(diagnosis: LogDiagnosis) -> RecoveryCause:
    return RecoveryCause(
        label=diagnosis.root_cause, category=diagnosis.category, confidence=diagnosis.confidence,
        restart_helps=diagnosis.restart_helps, suspects=frozenset(node.host for node in diagnosis.suspect_nodes),
        words=shape_of_line(diagnosis.evidence[0].text) if diagnosis.evidence else "",
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
        self.failures: list[HandledFailure] = []
        self._followed: dict[str, FollowedAttempt] = {}
        self._tries: dict[str, list[PastAttempt]] = defaultdict(list)
        self._done: list[PastAction] = []
        self.incidents: dict[int, OpenIncident] = {}
        self._recent: set[int] = set()  # incidents that a failure may still join
        self._unwell: dict[str, int] = {}  # node -> bad readings in a row
        self._cleared: dict[str, tuple[tuple[int, ...], int]] = {}
        self._swept = 0.0

    # --- reports from the simulation

    def on_start(self, job: str, now: float) -> None:
        self._followed[job] = FollowedAttempt(began=now)

    def on_section(self, job: str, name: str, begin: float, end: float) -> None:
        self._followed[job].sections.append(hang.SectionInterval(name=name, begin=begin, end=end))

    def on_step(self, job: str, report: StepReport) -> None:
        followed = self._followed[job]
        followed.steps.append(report.at)
        point = loss.LossPoint(step=report.step, at=report.at, loss=report.loss, grad_norm=report.grad_norm)
        if finding := followed.loss.see(point):
            spike_at = int(finding.subject.partition("-")[0])
            self._stop_and_recover(job, cause_of_finding("LossNaNOrSpike", spike_at=spike_at), report.at)
            return
        step = slow_steps.StepTiming(at=report.at, seconds=report.seconds, tokens=report.tokens, squares=report.squares)
        followed.slow = followed.slow or followed.pace.see(step) is not None
        if followed.slow:
            self._locate_slow_node(job, followed, report.at)

    def _locate_slow_node(self, job: str, followed: FollowedAttempt, now: float) -> None:
        """Stop the job if single nodes stand out as slow; otherwise no node is blamed."""
        slow = [
            row
            for row in slow_ranks.detect_slow_ranks(self.stage.ranks(job, now), now)
            if row.symptom is SymptomType.SLOW_NODE
        ]
        followed.slow = False
        if slow:
            self._stop_and_recover(job, cause_of_finding(SLOW_NODE, frozenset(row.subject for row in slow)), now)

    def run_checks(self, now: float) -> None:
        for job in list(self.stage.running):
            followed = self._followed.get(job)
            if followed and followed.steps and now - followed.steps[-1] > hang.MIN_PATIENCE_S:
                self._handle_hang(job, hang.detect_hang(list(followed.steps), now, list(followed.sections)), now)
        for job in self.stage.jobs_without_new_lines():
            # The detector ignores a shorter silence; comparing times is cheaper than running it
            if now - self.stage.last_line_at(job, now) > hang.MIN_PATIENCE_S:
                self._handle_hang(job, hang.detect_hang_in_log(self.stage.lines(job, now), now), now)
        if now - self._swept >= SWEEP_INTERVAL_S:
            self._swept = now
            self._check_all_nodes(now)

    def _handle_hang(self, job: str, finding: DetectorFinding | None, now: float) -> None:
        if finding is not None:
            self._stop_and_recover(job, cause_of_finding("Hang"), now)

    # --- node checks

    def _check_all_nodes(self, now: float) -> None:
        """Cordon idle nodes that look bad in two checks in a row.

        A node with a running job is left alone; the job's end will show a fault. Readings that a node had before a test
        that it passed do not count again.
        """
        nodes = self.stage.nodes_with_symptoms(now)
        for node in [node for node in self._unwell if node not in nodes and self.stage.is_in_service(node)]:
            del self._unwell[node]
        for reading in self.stage.node_readings(nodes, now):
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
        """Test the node with two known good nodes in turn; it is faulty if both tests fail."""
        partners = [name for name in self.stage.idle() if name != node][:2]
        if not partners:
            self.stage.agenda.at(now + SWEEP_INTERVAL_S, self._test_node, node)
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
            self.stage.agenda.at(now + SWEEP_INTERVAL_S, self._test_node, node)

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
            self._run_waves(list(waves), [], later, lambda second, at: finish(first, second, at))

        def finish(first: list[pair_tests.GroupResult], second: list[pair_tests.GroupResult], at: float) -> None:
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

    # --- an attempt that failed or must be stopped

    def on_end(self, attempt: FailedAttempt, now: float) -> None:
        self._followed.pop(attempt.job, None)
        diagnosis = engine.diagnose_text(attempt.log, ExitStatus(exit_code=attempt.exit_code))
        merged = circumstances.merge_cluster_report(diagnosis, ClusterEndReport(state=attempt.state, news=attempt.news))
        self._recover_attempt(attempt, cause_of_diagnosis(merged), now, merged)

    def _stop_and_recover(self, job: str, cause: RecoveryCause, now: float) -> None:
        """Stop an attempt that runs without progress, and recover it like one that ended by itself."""
        self._followed.pop(job, None)
        self.stage.tally.record_detection(job, now, cause.label)
        attempt = self.stage.failed_attempt(job, now)
        self.stage.stop(job, now, saving=cause.label == SLOW_NODE)
        # A slow job saves a checkpoint when it is stopped, and restarts from it
        checkpoint_files = self.stage.failed_attempt(job, now).shelf if cause.label == SLOW_NODE else attempt.shelf
        self._recover_attempt(replace(attempt, shelf=checkpoint_files), cause, now)

    def _recover_attempt(
        self, attempt: FailedAttempt, cause: RecoveryCause, now: float, diagnosis: LogDiagnosis | None = None
    ) -> None:
        self.stage.tally.record_detection(attempt.job, now, cause.label)
        facts = self._recovery_facts(attempt, cause, now)
        tries = self._tries[attempt.job]
        ran = attempt.ran - sum((earlier.ran for earlier in tries if earlier.ran), timedelta(0))
        tries.append(PastAttempt(cause=cause.label, nodes=attempt.nodes, step=attempt.step, ran=ran))
        history = FailureHistory(
            tries=tuple(self._tries[attempt.job]), done=tuple(self._done), cluster_nodes=self.stage.plan.nodes
        )
        decision = decide(facts, history, AUTOMATIC_POLICY, virtual_time(now))
        self.failures.append(
            HandledFailure(
                attempt=attempt, cause=cause, diagnosis=diagnosis, facts=facts, history=history, decision=decision
            )
        )
        self._execute_recovery(attempt, facts, decision, now)

    def _recovery_facts(self, run: FailedAttempt, cause: RecoveryCause, now: float) -> FailureFacts:
        faulty = frozenset(
            row.node for row in self.stage.node_readings(run.nodes, now) if node_health.reports_fault(row)
        )
        suspects = cause.suspects | (faulty if cause.category is FailureCategory.INFRASTRUCTURE else frozenset())
        incident, alike = self._assign_incident(run, cause, suspects)
        return FailureFacts(
            job=run.job, team=run.team, cause=cause.label, category=cause.category, at=run.at,
            confidence=cause.confidence, restart_helps=cause.restart_helps, incident=str(incident), nodes=run.nodes,
            suspects=suspects, evidence=self._evidence(run, cause, now), alike=alike, labels=run.labels,
            started_from=run.started_from,
            checkpoints=checkpoints.to_saved_checkpoints(
                checkpoints.find_checkpoints(run.shelf), CHECKPOINT_ROOT, cause.spike_at
            ),
            spike_at=cause.spike_at, ran=run.ran,
        )  # fmt: skip

    def _evidence(self, run: FailedAttempt, cause: RecoveryCause, now: float) -> tuple[NodeEvidence, ...]:
        readings = self.stage.node_readings(sorted(run.nodes), now)
        observed = {row.node: node_health.fault_evidence(row, slow=cause.label == SLOW_NODE) for row in readings}
        telemetry = [
            NodeEvidence(node=node, sentence=f"Telemetry of {node}: {' '.join(sentences)}")
            for node, sentences in observed.items()
            if sentences
        ]
        dead = [
            NodeEvidence(node=change.node, sentence=f"The cluster reports {change.node} as {change.condition}.")
            for change in run.news
            if change.is_death
        ]
        return (*telemetry, *dead)

    def _assign_incident(self, run: FailedAttempt, cause: RecoveryCause, suspects: frozenset[str]) -> tuple[int, int]:
        """The incident of the failure, and the number of other jobs in it."""
        failure = FailureSymptom(
            root_cause=cause.label, at=run.at, job=run.job, nodes=run.nodes, suspects=suspects, words=cause.words
        )
        incident_id = matching_incident(failure, self._recent_incidents(run.at))
        if incident_id is None:
            incident_id = len(self.incidents) + 1
            self._recent.add(incident_id)
            self.incidents[incident_id] = OpenIncident(
                id=incident_id, root_cause=cause.label, scope=scope_of_symptom(failure), words=cause.words,
                first_at=run.at, last_at=run.at, nodes=suspects & run.nodes, jobs=frozenset({run.job}),
            )  # fmt: skip
            return incident_id, 0
        incident = self.incidents[incident_id]
        jobs = incident.jobs | {run.job}
        self.incidents[incident_id] = OpenIncident(
            id=incident_id, root_cause=incident.root_cause, scope=incident.scope, first_at=incident.first_at,
            last_at=max(incident.last_at, run.at), nodes=incident.nodes, jobs=jobs, words=incident.words,
        )  # fmt: skip
        return incident_id, len(jobs) - 1

    def _recent_incidents(self, at: datetime) -> list[OpenIncident]:
        oldest = at - 2 * LONGEST_JOIN_WINDOW  # a failure may be handled later than one that follows it
        self._recent = {one for one in self._recent if self.incidents[one].last_at >= oldest}
        return [self.incidents[one] for one in sorted(self._recent)]

    def _execute_recovery(self, run: FailedAttempt, facts: FailureFacts, choice: RecoveryDecision, now: float) -> None:
        if not choice.is_automatic or choice.action not in RESTART_ACTIONS:
            self.stage.call_operator(run.job, now)
            return
        self._done.append(
            PastAction(
                action=choice.action, job=run.job, at=virtual_time(now), incident=facts.incident, nodes=choice.drain,
                until=choice.not_before if choice.action is RecoveryAction.WAIT else None,
                checkpoint=choice.checkpoint.step if choice.checkpoint else None,
            )
        )  # fmt: skip
        if choice.action is RecoveryAction.TEST:
            self._test_nodes_first(run, choice, now)
            return
        for node in choice.drain:
            self._cordon_node(node, now, untested=facts.cause == SLOW_NODE)
        if unconfirmed := choice.test - choice.drain:
            self._test_open_nodes(unconfirmed, now)
        self._restart(run, choice, now + (choice.not_before - virtual_time(now)).total_seconds())

    def _test_nodes_first(self, attempt: FailedAttempt, decision: RecoveryDecision, now: float) -> None:
        self._test_open_nodes(decision.test, now, lambda later: self._restart(attempt, decision, later))

    def _test_open_nodes(
        self, nodes: frozenset[str], now: float, then: Callable[[float], None] = lambda later: None
    ) -> None:
        """Test nodes that are not drained. Those that fail are."""

        def repair_faulty(verdict: pair_tests.PairTestVerdict, later: float) -> None:
            for node in verdict.faulty:
                self.stage.cordon(node, later)
                self._repair(node, later)
            then(later)

        idle = [node for node in self.stage.idle() if node not in nodes]
        self._run_pair_tests(sorted(nodes), idle, now, repair_faulty)

    def _restart(self, attempt: FailedAttempt, decision: RecoveryDecision, at: float) -> None:
        step = decision.checkpoint.step if decision.checkpoint else None
        self.stage.restart(attempt.job, step, at=at, skip=decision.skip)


def _is_bad_reading(reading: node_health.NodeTelemetryWindow, now: float) -> bool:
    return any(finding.severity is Severity.BAD for finding in node_health.node_health_findings(reading, now))
