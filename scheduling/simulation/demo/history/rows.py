"""Makes rows from a simulated history: jobs, attempts, allocations, failures, decisions and Events."""

from __future__ import annotations

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from functools import cache, cached_property
from heapq import heappop, heappush
from random import Random
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from django.db.models import Model

from failures.actions.incidents import detector_fields, verdict_fields
from failures.diagnosis.values import FailureCategory
from failures.incidents import grouping
from failures.incidents.grouping import FailureSymptom, OpenIncident
from failures.models import Decision, DecisionState, Diagnosis, Incident, IncidentState
from failures.recovery.decisions import decision_fields
from failures.recovery.reads import RecoveryInputs
from failures.recovery.rules.values import FailureHistory
from jobs.actions.journal import SYNC, Author
from jobs.core.attempt_end import TRAINING_KINDS, AttemptEnd
from jobs.core.cluster_kinds import KUBERNETES
from jobs.core.hostlist import compress
from jobs.core.lifecycle import JobKind, State
from jobs.core.public_id import public_id
from jobs.models import Attempt, Job, Node, bulk_copy
from scheduling.evaluation.actions.campaigns import COORDINATOR
from scheduling.models import Suite
from scheduling.simulation.demo import kalos
from scheduling.simulation.demo.history.campaigns import CampaignBuilder
from scheduling.simulation.demo.history.keys import HistoryKeys
from scheduling.simulation.demo.history.values import HistoryPlace, HistoryRows, PlacedAttempt, new_event
from scheduling.simulation.drill.healing import AUTOMATIC_POLICY, HandledFailure
from scheduling.simulation.drill.history import CANCELLED, SiteHistory
from scheduling.simulation.drill.jobs import MIX_STEP_S, AttemptLife, DrillJob
from scheduling.simulation.drill.values import DRILL_EPOCH
from scheduling.simulation.machines.faults import FaultKind
from scheduling.simulation.machines.workload import job_name, requested_time_limit

ACCEPT_S, START_S, SEEN_S = 0.4, 2.0, 3.0  # after the decision: the cluster accepts, starts, and reports an attempt
DIAGNOSIS_S, DECISION_S = 2.0, 4.0  # after the end
RECENT_ACTIONS = 20  # of the history of a decision; the simulation knew all of them
OPEN_FOR_S = 6 * 3600.0  # newer incidents are still open
END_OF_HISTORY = "The simulated history ends here."
RECOVERY, DIAGNOSIS = Author(by="recovery"), Author(by="diagnosis")


class HistoryBuilder:
    """The rows of one cluster. Several builders may add to the same rows, one after the other."""

    def __init__(
        self, history: SiteHistory, place: HistoryPlace, suites: Mapping[int, Suite], rows: HistoryRows
    ) -> None:
        self.history, self.place, self.rows = history, place, rows
        self.campaigns = CampaignBuilder(history, place, suites)
        works = [*(work for work in history.jobs if work.lives), *self.campaigns.scoring_jobs]
        self.works = sorted(works, key=lambda work: work.submitted)
        self.end_s = history.plan.end_s
        self.shift = place.began - DRILL_EPOCH
        self.placed: list[PlacedAttempt] = []
        self.failure_logs: dict[str, str] = {}  # by the key of the attempt
        self._job_template, self._attempt_template = Job(cluster=place.cluster), Attempt()
        self._nodelist = cache(lambda nodes: compress(place.nodes[node].name for node in nodes))
        self._jobs: dict[str, Job] = {}  # by their names in the simulation
        self._failed: dict[str, list[PlacedAttempt]] = defaultdict(list)

    def add_rows(self, keys: HistoryKeys) -> None:
        for work in self.works:
            self._jobs[work.name] = self._job(keys.jobs[work.name], work)
        self.rows.jobs += self._jobs.values()
        self._add_attempts(keys.attempts)
        self.campaigns.add_rows(self.rows, self._jobs)
        self._extend_time_limits()
        self._add_failures()
        self._add_node_events()

    # --- jobs and attempts

    def _job(self, number: int, work: DrillJob) -> Job:
        dice, profile = Random(f"job:{work.name}"), self.place.site.profiles[work.kind]
        name, user = job_name(work.kind, work.name), dice.choice(list(self.place.users[work.kind]))
        user = self.campaigns.user_of_trial(work) or user
        nodes = len(work.lives[0].places)
        per_node = work.gpus // nodes
        last = work.lives[-1]
        end = self._end_of(work, last)
        submitted_at = self.place.at(work.submitted)
        row = bulk_copy.row_like(
            self._job_template, id=number, public_id=public_id(submitted_at, number), team_id=user.team_id,
            user_id=user.id, name=name, kind=work.kind.value, command=profile.command.format(name=name),
            workdir=f"/home/{user.name}/{name}", nodes=nodes, gpus_per_node=per_node, cpus_per_node=16 * per_node,
            memory_per_node_mb=per_node * 128 * 1024,
            time_limit=requested_time_limit(max(work.planned_s, work.need_s), dice),
            priority=100 if work.kind == JobKind.PRETRAIN else 0, preemptible=work.group.borrows,
            state=end.state, submitted_at=submitted_at, ended_at=end.at,
            started_at=min(end.at, self.place.at(last.promised + START_S)), exit_code=end.exit_code,
            requeues=min(3, len(work.lives) - 1),
        )  # fmt: skip
        if self.place.cluster.kind is KUBERNETES:
            container = kalos.container_request(work.kind)
            row.image, row.mounts = container.get("image", ""), container["mounts"]
        if work.saves:
            row.checkpoint_dir = f"/checkpoints/{name}-{row.public_id}"
            row.checkpoint_interval = timedelta(seconds=self.history.plan.checkpoint_s)
        self.campaigns.complete_job(work, row)
        by = COORDINATOR if self.campaigns.user_of_trial(work) else user.name
        self._event("job.submitted", work.submitted, Author(by=by, user_id=user.id), row, to_state=State.PENDING)
        return row

    def _extend_time_limits(self) -> None:
        """The simulation knows no time limits: a job that a fault made longer had requested a longer one."""
        for job in self._jobs.values():
            ran = job.ended_at - job.started_at
            if ran > job.time_limit:
                job.time_limit = timedelta(minutes=math.ceil(ran / timedelta(minutes=1)))

    def _end_of(self, work: DrillJob, life: AttemptLife) -> AttemptEnd:
        """How an attempt ended. One that still runs is ended with the history."""
        if life.ended is None:
            return AttemptEnd(state=State.CANCELLED, at=self.place.at(self.end_s), reason=END_OF_HISTORY)
        at = self.place.at(life.ended)
        if life.cause == CANCELLED:
            return AttemptEnd(state=State.CANCELLED, at=at)
        if life.cause == FaultKind.DEATH:
            return AttemptEnd(state=State.NODE_FAIL, at=at)
        if life.cause:
            return AttemptEnd(state=State.FAILED, at=at, exit_code=1)
        if life is work.lives[-1] and work.over:
            return AttemptEnd(state=State.COMPLETED, at=at, exit_code=0)
        if life.keeps_work:
            return AttemptEnd(state=State.PREEMPTED, at=at, reason="A job of the owner of the quota needs the GPUs.")
        return AttemptEnd(state=State.FAILED, at=at, reason="Stopped by recovery, because it made no progress.")

    def _add_attempts(self, keys: Mapping[tuple[str, int], int]) -> None:
        starts = [
            (life.promised, number, work, life)
            for work in self.works
            for number, life in enumerate(work.lives, start=1)
        ]
        free = [set(range(self.history.plan.gpus_per_node)) for _ in self.place.nodes]
        held: list[tuple[float, int, Sequence[tuple[int, int]]]] = []  # ends and GPUs, the first end first
        for _, number, work, life in sorted(starts, key=lambda row: row[0]):
            # The engine counts GPUs per node; the indices are chosen here, lowest first
            while held and held[0][0] <= life.promised:
                for node, gpu in heappop(held)[-1]:
                    free[node].add(gpu)
            gpus = [(node, gpu) for node, wanted in life.places if work.gpus for gpu in sorted(free[node])[:wanted]]
            for node, gpu in gpus:
                free[node].remove(gpu)
            placed = self._add_attempt(keys[work.name, number], number, work, life, gpus)
            heappush(held, (placed.ended, len(self.placed), gpus))
            self.placed.append(placed)

    def _add_attempt(
        self, key: int, number: int, work: DrillJob, life: AttemptLife, gpus: Sequence[tuple[int, int]]
    ) -> PlacedAttempt:
        job = self._jobs[work.name]
        end, promised_at = self._end_of(work, life), self.place.at(life.promised)
        accepted_at, confirmed_at, seen_at = (
            min(end.at, self.place.at(life.promised + delay)) for delay in (ACCEPT_S, START_S, SEEN_S)
        )
        row = bulk_copy.row_like(
            self._attempt_template, id=key, number=number, key=f"{job.public_id}.{number}", state=end.state,
            backend_id=self._backend_id(job, number, life),
            nodelist=self._nodelist(life.nodes), promised_at=promised_at, accepted_at=accepted_at,
            confirmed_at=confirmed_at, seen_running_at=seen_at, ended_at=end.at, exit_code=end.exit_code,
            reason=end.reason, log_path=self.place.cluster.new_log_path(f"{job.public_id}-{number}"),
        )  # fmt: skip
        row.job = job
        self.rows.attempts.append(row)
        self.rows.allocations += [(key, self.place.nodes[node].pk, gpu, promised_at, end.at) for node, gpu in gpus]
        ended_s = self.end_s if life.ended is None else life.ended
        started_s = (confirmed_at - self.place.began).total_seconds()
        self._event("job.started", started_s, SYNC, job, attempt=row, to_state=State.RUNNING)
        is_last = life is work.lives[-1]
        self._event(
            "job.state_changed", ended_s, SYNC, job, attempt=row, from_state=State.RUNNING,
            to_state=end.state if is_last else State.PENDING, why=end.reason or end.sentence,
            detail=json.dumps({"ended": end.state, "exit_code": end.exit_code, "signal": None}),
        )  # fmt: skip
        placed = PlacedAttempt(work=work, life=life, ended=ended_s, gpus=gpus, row=row, job=job)
        if end.state in (State.FAILED, State.NODE_FAIL):
            self._failed[work.name].append(placed)
        return placed

    def _backend_id(self, job: Job, number: int, life: AttemptLife) -> str:
        """The job number of Slurm, or the uid of an object of Kubernetes."""
        if self.place.cluster.kind is KUBERNETES:
            return str(uuid5(NAMESPACE_URL, f"{job.public_id}.{number}"))
        return str(life.number)

    def _event(
        self, type: str, at: float, author: Author, job: Job, *, attempt: Attempt | None = None, **values: Any
    ) -> None:
        ids = {"job_id": job.pk, "attempt_id": attempt.pk if attempt else None}
        self.rows.events.append(new_event(type, author, self.place.at(at), job.cluster_id, **ids, **values))

    # --- failures

    def _add_failures(self) -> None:
        by_incident: dict[str, list[Diagnosis]] = defaultdict(list)
        waiting = {name: list(rows) for name, rows in self._failed.items()}
        symptoms: dict[str, FailureSymptom] = {}
        for failure in self.history.failures:
            if not waiting.get(failure.attempt.job):
                continue
            placed = waiting[failure.attempt.job].pop(0)
            placed.row.cause = failure.cause.label
            row = self._diagnosis(len(self.rows.diagnoses) + 1, failure, placed)
            self.rows.diagnoses.append(row)
            by_incident[failure.facts.incident].append(row)
            symptoms.setdefault(failure.facts.incident, _symptom(failure, placed))
            if placed.work.kind in TRAINING_KINDS:
                self._add_decision(failure, placed, row)
            self._link_nodes(Diagnosis.nodes.through, self.rows.diagnosis_nodes, row, failure.cause.suspects)
        incidents = {str(incident.id): incident for incident in self.history.incidents}
        in_order = sorted(by_incident, key=lambda key: incidents[key].first_at)
        for number, key in enumerate(in_order, start=len(self.rows.incidents) + 1):
            self._add_incident(number, incidents[key], symptoms[key], by_incident[key])

    def _diagnosis(self, number: int, failure: HandledFailure, placed: PlacedAttempt) -> Diagnosis:
        verdict = verdict_fields(failure.diagnosis) if failure.diagnosis else detector_fields(failure.cause.label, "")
        ran = placed.row.ended_at - placed.row.confirmed_at
        judged_at = placed.row.ended_at + timedelta(seconds=DIAGNOSIS_S)
        log = self.with_name_of_row(failure.attempt.log, placed)
        self.failure_logs[placed.row.key] = log
        text = log.encode()
        row = Diagnosis(
            pk=number, attempt=placed.row, cluster=self.place.cluster, failed_at=placed.row.ended_at,
            recorded_at=judged_at, due_at=judged_at, judged_at=judged_at, bundle_stored_at=judged_at,
            bundle=zlib.compress(text), bundle_size=len(text), gpus=placed.job.gpus, ran=ran,
            lost=min(ran, _lost_work(failure, ran)), **verdict,
        )  # fmt: skip
        self._event(
            "diagnosis.created", placed.ended + DIAGNOSIS_S, DIAGNOSIS, placed.job, attempt=placed.row,
            to_state=row.root_cause, why=row.action,
            detail=json.dumps(
                {"confidence": row.confidence, "engine": row.engine, "rules_version": row.rules_version}
            ),
        )  # fmt: skip
        return row

    @staticmethod
    def with_name_of_row(log: str, placed: PlacedAttempt) -> str:
        """The log with the name of the job's row. A trial got its name after its log was simulated."""
        simulated = job_name(placed.work.kind, placed.work.name)
        return log.replace(f" ({simulated}): ", f" ({placed.job.name}): ", 1)

    def _add_decision(self, failure: HandledFailure, placed: PlacedAttempt, diagnosis: Diagnosis) -> None:
        history = replace(failure.history, done=failure.history.done[-RECENT_ACTIONS:])
        facts, history, chosen = self._shifted((failure.facts, history, failure.decision))
        assert isinstance(history, FailureHistory)
        situation = RecoveryInputs(facts=facts, history=history, policy=AUTOMATIC_POLICY)
        at = self.place.at(placed.ended + DECISION_S)
        # A proposal was approved by an operator when the job ran again
        state = DecisionState.DONE if chosen.is_automatic or placed.life is not placed.work.lives[-1] else "expired"
        self.rows.decisions.append(
            Decision(
                pk=len(self.rows.decisions) + 1, cluster=self.place.cluster, diagnosis=diagnosis, attempt=placed.row,
                at=at, due_at=at, began_at=at, ended_at=at, state=state,
                answered_by="" if chosen.is_automatic else "linus", **decision_fields(situation, chosen),
            )
        )  # fmt: skip
        self._event("decision.created", placed.ended + DECISION_S, RECOVERY, placed.job, attempt=placed.row,
                    why=chosen.why, to_state=state)  # fmt: skip

    def _add_incident(
        self, number: int, incident: OpenIncident, symptom: FailureSymptom, diagnoses: Sequence[Diagnosis]
    ) -> None:
        first_at, last_at = incident.first_at + self.shift, incident.last_at + self.shift
        is_open = (self.place.at(self.end_s) - last_at).total_seconds() < OPEN_FOR_S and incident.scope != "job"
        row = Incident(
            pk=number, cluster=self.place.cluster, root_cause=incident.root_cause, category=diagnoses[0].category,
            scope=incident.scope, subject=grouping.incident_subject(symptom)[:200], words=incident.words,
            first_symptom_at=first_at, last_symptom_at=last_at, opened_at=first_at + timedelta(seconds=DIAGNOSIS_S),
            attempts=len(diagnoses), gpu_hours_lost=sum(one.gpu_hours_lost for one in diagnoses), lead=diagnoses[0],
            state=IncidentState.OPEN if is_open else IncidentState.RESOLVED,
        )  # fmt: skip
        if not is_open:
            row.resolved_at = last_at + timedelta(minutes=Random(f"resolve:{number}").uniform(5, 240))
            row.resolved_by, row.resolved_why = _resolution(incident, diagnoses[0].category)
        self.rows.incidents.append(row)
        for diagnosis in diagnoses:
            diagnosis.incident = row
        for decision in self._decisions_of([diagnosis.pk for diagnosis in diagnoses]):
            decision.incident = row
        self._link_nodes(Incident.nodes.through, self.rows.incident_nodes, row, incident.nodes)

    def _decisions_of(self, diagnoses: Iterable[int]) -> list[Decision]:
        return [self._decision_by_diagnosis[pk] for pk in diagnoses if pk in self._decision_by_diagnosis]

    @cached_property
    def _decision_by_diagnosis(self) -> dict[int, Decision]:
        return {decision.diagnosis_id: decision for decision in self.rows.decisions}

    def _link_nodes(self, through: Any, rows: list[Model], owner: Model, names: Iterable[str]) -> None:
        column = "diagnosis" if isinstance(owner, Diagnosis) else "incident"
        known = {node.name: node for node in self.place.nodes}
        rows += [through(node=known[name], **{column: owner}) for name in sorted(set(names) & set(known))]

    def _shifted(self, value: Any) -> Any:
        """The value with all times moved from the epoch of the simulation to those of the history."""
        match value:
            case datetime():
                return value + self.shift
            case tuple():
                return tuple(self._shifted(inner) for inner in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{item.name: self._shifted(getattr(value, item.name)) for item in fields(value)})
        return value

    # --- nodes

    def _add_node_events(self) -> None:
        for node in self.place.nodes:
            self._node_event("node.state_changed", SYNC, node, 0.0, from_state="UNKNOWN", to_state="IDLE")
        for closure in self.history.closures:
            node, closes = self.place.nodes[closure.node], closure.closes
            if closure.why == "down":
                before, after, why = ("IDLE", "DOWN", "Not responding") if closes else ("DOWN", "IDLE", "")
                self._node_event(
                    "node.state_changed", SYNC, node, closure.at, from_state=before, to_state=after, why=why
                )
            elif closure.why in ("cordon", "repair"):
                why = "Recovery: the node failed a job, a test or its telemetry." if closes else "Repaired."
                self._node_event("node.drained" if closes else "node.resumed", RECOVERY, node, closure.at, why=why)

    def _node_event(self, type: str, author: Author, node: Node, at: float, **values: str) -> None:
        self.rows.events.append(new_event(type, author, self.place.at(at), node.cluster_id, node_id=node.pk, **values))


def _symptom(failure: HandledFailure, placed: PlacedAttempt) -> FailureSymptom:
    return FailureSymptom(
        root_cause=failure.cause.label, at=failure.attempt.at, job=placed.job.public_id, nodes=failure.attempt.nodes,
        suspects=failure.facts.suspects, words=failure.cause.words,
    )  # fmt: skip


def _lost_work(failure: HandledFailure, ran: timedelta) -> timedelta:
    """The run time since the last checkpoint."""
    step, newest = failure.attempt.step, max((saved.step for saved in failure.facts.checkpoints), default=0)
    return ran if step is None else timedelta(seconds=max(0, step - newest) * MIX_STEP_S)


def _resolution(incident: OpenIncident, category: str) -> tuple[str, str]:
    if category == FailureCategory.SCRIPT:
        return "diagnosis", "The job ended. Its program needs a change."
    if incident.scope == "node":
        return "linus", "The node was tested or repaired and accepts jobs again."
    return "recovery", "All affected jobs have restarted or ended since."
