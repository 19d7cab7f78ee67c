"""Acme's own answer, from the parts that answer on live clusters: detectors, diagnosis, grouping, decision, node test.

It sees what a control plane sees and nothing else: reports of steps, lines of logs, telemetry, listings of checkpoints.
What is missing here is only the hands: rows, loops and clusters, which have tests of their own. Pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from failures import checkpoints, circumstances, nodetest
from failures.circumstances import End
from failures.detect import hang, loss, nodes, pace, ranks
from failures.detect.findings import Finding, Severity, Symptom
from failures.diagnosis import engine
from failures.diagnosis.labels import LABELS
from failures.diagnosis.values import Category, Diagnosis, Ending, Restart
from failures.grouping import Known, choose, scope_of, words_of
from failures.grouping import Symptom as Failure
from failures.recovery import decide
from failures.recovery.remedies import RESTARTING, Action, Mode
from failures.recovery.values import ANY, Done, Facts, History, Policy, Recovery
from jobs.ledgers import Try
from scheduling.drill.stage import Stage
from scheduling.drill.values import Beat, Ended, moment

ACT = Policy(modes={(ANY, ANY): Mode.ACT})
SWEEP_S = 60.0  # between two looks at the telemetry of all nodes
MEASURED = 0.95  # how sure a detector's finding is, by bench/detectors.py
ROOT = "/checkpoints"
SLOW_NODE = "SlowNode"


@dataclass(kw_only=True)
class Followed:
    """What is kept of one attempt while it runs."""

    began: float
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=260))
    sections: deque[hang.Section] = field(default_factory=lambda: deque(maxlen=20))
    pace: pace.Watch = field(default_factory=pace.Watch)
    loss: loss.Watch = field(default_factory=loss.Watch)
    slow: bool = False


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why something must be done, whoever found it."""

    label: str
    category: Category
    confidence: float
    restart_helps: Restart
    suspects: frozenset[str] = frozenset()
    words: str = ""
    spike_at: int | None = None


def of_diagnosis(found: Diagnosis) -> Cause:
    return Cause(
        label=found.root_cause, category=found.category, confidence=found.confidence,
        restart_helps=found.restart_helps, suspects=frozenset(node.host for node in found.suspect_nodes),
        words=words_of(found.evidence[0].text) if found.evidence else "",
    )  # fmt: skip


def of_finding(label: str, suspects: frozenset[str] = frozenset(), spike_at: int | None = None) -> Cause:
    row = LABELS.get(label)
    return Cause(
        label=label, category=row.category if row else Category.INFRASTRUCTURE, confidence=MEASURED,
        restart_helps=row.restart if row else Restart.YES, suspects=suspects, spike_at=spike_at,
    )  # fmt: skip


class Healing:
    name = "acme"

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._followed: dict[str, Followed] = {}
        self._tries: dict[str, list[Try]] = defaultdict(list)
        self._done: list[Done] = []
        self._incidents: dict[int, Known] = {}
        self._unwell: dict[str, int] = {}  # node -> bad readings in a row
        self._cleared: dict[str, tuple[tuple[int, ...], int]] = {}
        self._swept = 0.0

    # --- what is reported

    def started(self, job: str, now: float) -> None:
        self._followed[job] = Followed(began=now)

    def section(self, job: str, name: str, begin: float, end: float) -> None:
        self._followed[job].sections.append(hang.Section(name=name, begin=begin, end=end))

    def beat(self, job: str, beat: Beat) -> None:
        one = self._followed[job]
        one.steps.append(beat.at)
        point = loss.Point(step=beat.step, at=beat.at, loss=beat.loss, grad_norm=beat.grad_norm)
        if found := one.loss.see(point):
            spike_at = int(found.subject.partition("-")[0])
            self._intervene(job, of_finding("LossNaNOrSpike", spike_at=spike_at), beat.at)
            return
        step = pace.Step(at=beat.at, seconds=beat.seconds, tokens=beat.tokens, squares=beat.squares)
        one.slow = one.slow or one.pace.see(step) is not None
        if one.slow:
            self._localise(job, one, beat.at)

    def _localise(self, job: str, one: Followed, now: float) -> None:
        """Who makes the others wait; where nobody stands out, nobody is blamed."""
        found = [row for row in ranks.slow_ranks(self.stage.ranks(job, now), now) if row.symptom is Symptom.SLOW_NODE]
        one.slow = False
        if found:
            self._intervene(job, of_finding(SLOW_NODE, frozenset(row.subject for row in found)), now)

    def tick(self, now: float) -> None:
        for job in list(self._followed):
            one = self._followed[job]
            if one.steps and now - one.steps[-1] > hang.FLOOR_S:
                self._hung(job, hang.hang(list(one.steps), now, list(one.sections)), now)
        for job in self.stage.talkers():
            # Younger silence than the detector's floor is no finding; asking costs more than looking at a clock
            if now - self.stage.last_line_at(job, now) > hang.FLOOR_S:
                self._hung(job, hang.hang_in_log(self.stage.lines(job, now), now), now)
        if now - self._swept >= SWEEP_S:
            self._swept = now
            self._sweep(now)

    def _hung(self, job: str, found: Finding | None, now: float) -> None:
        if found is not None:
            self._intervene(job, of_finding("Hang"), now)

    # --- nodes by themselves

    def _sweep(self, now: float) -> None:
        """A node that is not well for two looks takes no new work; what runs there is let be, its end will tell. What
        was seen before a test that it passed is not held against it again."""
        for reading in self.stage.readings(self.stage.in_service(), now):
            node = reading.node
            bad = _is_bad(reading, now) and (tuple(reading.xids), reading.ecc_uncorrected) != self._cleared.get(node)
            self._unwell[node] = self._unwell.get(node, 0) + 1 if bad else 0
            if self._unwell[node] >= 2 and not self.stage.occupied(node):
                self._take_out(node, now)

    def _take_out(self, node: str, now: float, *, untested: bool = False) -> None:
        self.stage.cordon(node, now)
        if untested:
            self._repair(node, now)
        else:
            self._check(node, now)

    def _check(self, node: str, now: float) -> None:
        """Two nodes that are known to be good, one after the other; whom both worlds fail is faulty."""
        partners = [name for name in self.stage.idle() if name != node][:2]
        if not partners:
            self.stage.agenda.at(now + SWEEP_S, lambda later: self._check(node, later))
            return
        self._two_rounds([node], partners, now, lambda verdict, later: self._checked(node, verdict, later))

    def _checked(self, node: str, verdict: nodetest.Verdict, now: float) -> None:
        if node in verdict.good:
            [reading] = self.stage.readings([node], now)
            self._cleared[node] = tuple(reading.xids), reading.ecc_uncorrected
            self.stage.resume(node, now)
        elif node in verdict.faulty:
            self._repair(node, now)
        else:
            self.stage.agenda.at(now + SWEEP_S, lambda later: self._check(node, later))

    def _repair(self, node: str, now: float) -> None:
        self.stage.repair(node, now, lambda later: self._check(node, later))

    def _two_rounds(
        self,
        suspects: Sequence[str],
        partners: Sequence[str],
        now: float,
        then: Callable[[nodetest.Verdict, float], None],
    ) -> None:
        first_worlds = nodetest.first_round(suspects, partners[:1])

        def after_first(first: list[nodetest.Outcome], later: float) -> None:
            waves = nodetest.second_round(suspects, first, partners)
            self._waves(list(waves), [], later, lambda second, at: told(first, second, at))

        def told(first: list[nodetest.Outcome], second: list[nodetest.Outcome], at: float) -> None:
            then(nodetest.verdict(suspects, first, second, partners), at)

        self.stage.test(first_worlds, now, after_first)

    def _waves(
        self,
        waves: list[tuple[nodetest.World, ...]],
        outcomes: list[nodetest.Outcome],
        now: float,
        then: Callable[[list[nodetest.Outcome], float], None],
    ) -> None:
        if not waves:
            then(outcomes, now)
            return
        self.stage.test(waves[0], now, lambda more, later: self._waves(waves[1:], [*outcomes, *more], later, then))

    # --- an attempt that failed, or must not go on

    def ended(self, seen: Ended, now: float) -> None:
        self._followed.pop(seen.job, None)
        found = engine.diagnose_text(seen.log, Ending(exit_code=seen.exit_code))
        weighed = circumstances.weighed(found, End(state=seen.state, news=seen.news))
        self._answer(seen, of_diagnosis(weighed), now)

    def _intervene(self, job: str, cause: Cause, now: float) -> None:
        """The attempt runs and gets nowhere: it is ended, and answered like one that ended by itself."""
        self._followed.pop(job, None)
        self.stage.tally.detected(job, now, cause.label)
        seen = self.stage.seen(job, now)
        self.stage.stop(job, now, saving=cause.label == SLOW_NODE)
        # Who could save is asked to, and goes on from there
        shelf = self.stage.seen(job, now).shelf if cause.label == SLOW_NODE else seen.shelf
        self._answer(replace(seen, shelf=shelf), cause, now)

    def _answer(self, seen: Ended, cause: Cause, now: float) -> None:
        self.stage.tally.detected(seen.job, now, cause.label)
        facts = self._facts(seen, cause, now)
        self._tries[seen.job].append(Try(cause=cause.label, nodes=seen.nodes, step=seen.step))
        history = History(
            tries=tuple(self._tries[seen.job]), done=tuple(self._done), cluster_nodes=self.stage.plan.nodes
        )
        self._carry_out(seen, facts, decide(facts, history, ACT, moment(now)), now)

    def _facts(self, seen: Ended, cause: Cause, now: float) -> Facts:
        faulty = frozenset(one.node for one in self.stage.readings(seen.nodes, now) if nodes.reports_fault(one))
        suspects = cause.suspects | (faulty if cause.category is Category.INFRASTRUCTURE else frozenset())
        incident, alike = self._joined(seen, cause, suspects)
        return Facts(
            job=seen.job, team=seen.team, cause=cause.label, category=cause.category, at=seen.at,
            confidence=cause.confidence, restart_helps=cause.restart_helps, incident=str(incident), nodes=seen.nodes,
            suspects=suspects, alike=alike, labels=seen.labels, started_from=seen.started_from,
            checkpoints=checkpoints.as_saved(checkpoints.find(seen.shelf), ROOT, cause.spike_at),
            spike_at=cause.spike_at, ran=seen.ran,
        )  # fmt: skip

    def _joined(self, seen: Ended, cause: Cause, suspects: frozenset[str]) -> tuple[int, int]:
        """The incident it belongs to, and how many other jobs are in it."""
        failure = Failure(
            root_cause=cause.label, at=seen.at, job=seen.job, nodes=seen.nodes, suspects=suspects, words=cause.words
        )
        known = choose(failure, self._incidents.values())
        if known is None:
            known = len(self._incidents) + 1
            self._incidents[known] = Known(
                id=known, root_cause=cause.label, scope=scope_of(failure), first_at=seen.at, last_at=seen.at,
                nodes=suspects & seen.nodes, jobs=frozenset({seen.job}), words=cause.words,
            )  # fmt: skip
            return known, 0
        one = self._incidents[known]
        jobs = one.jobs | {seen.job}
        self._incidents[known] = Known(
            id=known, root_cause=one.root_cause, scope=one.scope, first_at=one.first_at,
            last_at=max(one.last_at, seen.at), nodes=one.nodes, jobs=jobs, words=one.words,
        )  # fmt: skip
        return known, len(jobs) - 1

    def _carry_out(self, seen: Ended, facts: Facts, what: Recovery, now: float) -> None:
        if not what.acts or what.action not in RESTARTING:
            self.stage.hand_over(seen.job, now)
            return
        self._done.append(
            Done(
                action=what.action, job=seen.job, at=moment(now), incident=facts.incident, nodes=what.drain,
                until=what.not_before if what.action is Action.WAIT else None,
                checkpoint=what.checkpoint.step if what.checkpoint else None,
            )
        )  # fmt: skip
        if what.action is Action.TEST:
            self._test_first(seen, what, now)
            return
        for node in what.drain:
            self._take_out(node, now, untested=facts.cause == SLOW_NODE)
        self._restart(seen, what, now + (what.not_before - moment(now)).total_seconds())

    def _test_first(self, seen: Ended, what: Recovery, now: float) -> None:
        def judged(verdict: nodetest.Verdict, later: float) -> None:
            for node in verdict.faulty:
                self.stage.cordon(node, later)
                self._repair(node, later)
            self._restart(seen, what, later)

        idle = [node for node in self.stage.idle() if node not in what.test]
        self._two_rounds(sorted(what.test), idle, now, judged)

    def _restart(self, seen: Ended, what: Recovery, at: float) -> None:
        step = what.checkpoint.step if what.checkpoint else None
        self.stage.restart(seen.job, step, at=at, skip=what.skip)


def _is_bad(reading: nodes.Reading, now: float) -> bool:
    return any(one.severity is Severity.BAD for one in nodes.health(reading, now))
