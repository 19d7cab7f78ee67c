"""Any sequence of verbs, by people and by loops: the record does what a model of thirty lines says, or nothing at all.

The model knows no database, no flags and no sentences. After every step the rows are what it says, GPUs are held by
live attempts and by nobody else, and the history told by the Events alone comes to the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jobs.actions import jobs as job_actions
from jobs.actions.jobs import JobStateChanged, NodeGpus
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import FINAL_STATES, PLATFORM_FAILURES, ForbiddenTransition, State
from jobs.models import Allocation, Event, HoldKind, Job, Node, clock
from tests import make
from tests.chaos import judge
from tests.chaos.judge import JobEvent, JobRow

NO = (JobStateChanged, ForbiddenTransition, IntegrityError)
ENDS = (State.COMPLETED, State.FAILED, State.TIMEOUT, State.NODE_FAIL, State.CANCELLED, State.OUT_OF_MEMORY)


@dataclass
class Model:
    """One job as it should be."""

    budget: int
    state: State = State.PENDING
    held: bool = False
    live: bool = False
    wanted: str = ""
    attempts: int = 0

    def hold(self, yes: bool) -> bool:
        if self.state != State.PENDING:
            return False
        self.held = yes
        return True

    def promise(self) -> bool:
        if self.state != State.PENDING or self.held:
            return False
        self.state, self.live, self.wanted, self.attempts = State.RUNNING, True, "", self.attempts + 1
        return True

    def stop(self, wanted: State) -> bool:
        if wanted == State.CANCELLED and self.state == State.PENDING:
            self.state = State.CANCELLED
            return True
        if not self.live or self.wanted == State.CANCELLED:
            return False
        self.wanted = wanted
        return True

    def end(self, how: State) -> bool:
        if not self.live:
            return False
        self.live = False
        self.state = self._becomes(how)
        return True

    def _becomes(self, how: State) -> State:
        if how == State.COMPLETED or self.wanted == State.CANCELLED:
            return how if how == State.COMPLETED else State.CANCELLED
        if self.wanted == State.PENDING:
            return State.PENDING
        if self.wanted == State.PREEMPTED:
            return State.PENDING if self.budget else State.PREEMPTED
        if how in PLATFORM_FAILURES and self.budget:
            self.budget -= 1
            return State.PENDING
        return how


class LifecycleMachine(RuleBasedStateMachine):
    @initialize()
    def a_cluster(self):
        self.cluster = make.cluster("seren")
        self.nodes = list(Node.objects.filter(cluster=self.cluster).order_by("name"))
        self.models: dict[int, Model] = {}
        self.first_event = (Event.objects.order_by("-id").values_list("id", flat=True).first() or 0) + 1

    pick = st.integers(0, 3)

    def job(self, number: int) -> tuple[Job, Model] | None:
        if not self.models:
            return None
        pk = sorted(self.models)[number % len(self.models)]
        return Job.objects.get(pk=pk), self.models[pk]

    def tried(self, expected: bool, verb) -> None:
        """The verb does it, or refuses and leaves everything as it was."""
        try:
            with transaction.atomic():
                verb()
        except NO as refusal:
            assert not expected, refusal
        else:
            assert expected

    @rule(budget=st.integers(0, 2))
    def submit(self, budget):
        if len(self.models) < 4:
            job = make.job(cluster=self.cluster, gpus_per_node=4, requeue_limit=budget)
            self.models[job.pk] = Model(budget=budget)

    @rule(number=pick, yes=st.booleans())
    def hold_or_release(self, number, yes):
        if found := self.job(number):
            job, model = found
            verb = job_actions.hold if yes else job_actions.release
            self.tried(model.hold(yes), lambda: verb(job, author=make.author()))

    @rule(number=pick, node=st.integers(0, 3), upper=st.booleans())
    def promise(self, number, node, upper):
        if not (found := self.job(number)):
            return
        job, model = found
        gpus = (4, 5, 6, 7) if upper else (0, 1, 2, 3)
        free = not Allocation.objects.live().filter(node=self.nodes[node], gpu__in=gpus).exists()
        place = NodeGpus(node_id=self.nodes[node].pk, name=self.nodes[node].name, gpus=gpus)
        self.tried(
            free and model.promise(),
            lambda: job_actions.allocate_job(job, [place], author=make.LOOP, why="GPUs were free."),
        )

    @rule(number=pick)
    def confirm(self, number):
        if (found := self.job(number)) and (attempt := found[0].attempts.last()):
            job_actions.confirm_start(attempt, started_at=clock.now(), author=make.LOOP)

    @rule(number=pick, wanted=st.sampled_from([State.CANCELLED, State.PENDING, State.PREEMPTED]))
    def stop(self, number, wanted):
        if not (found := self.job(number)):
            return
        job, model = found
        verbs = {
            State.CANCELLED: lambda: job_actions.cancel(job, author=make.author()),
            State.PENDING: lambda: job_actions.requeue(job, author=make.author()),
            State.PREEMPTED: lambda: job_actions.preempt(job, author=make.LOOP, why="Other work needs the room."),
        }
        self.tried(model.stop(wanted), verbs[wanted])

    @rule(number=pick, how=st.sampled_from(ENDS))
    def end(self, number, how):
        """Of the newest attempt, though it may have ended before: news comes twice."""
        if not (found := self.job(number)) or not (attempt := found[0].attempts.last()):
            return
        ended = AttemptEnd(state=how, at=clock.now(), exit_code=0 if how == State.COMPLETED else 1)
        self.tried(found[1].end(how), lambda: job_actions.finish(attempt, ended, author=make.LOOP))

    @invariant()
    def the_rows_are_what_the_model_says(self):
        for job in Job.objects.filter(pk__in=getattr(self, "models", {})):
            model = self.models[job.pk]
            assert (job.state, job.hold != HoldKind.NONE) == (model.state, model.held)
            assert job.attempts.filter(ended_at=None).count() == model.live
            assert Allocation.objects.live().filter(attempt__job=job).count() == 4 * model.live
            assert (job.ended_at is not None) == (model.state in FINAL_STATES)

    @invariant()
    def the_events_alone_tell_the_same(self):
        models = getattr(self, "models", {})
        names = dict(Job.objects.filter(pk__in=models).values_list("pk", "public_id"))
        rows = [
            JobRow(job=names[pk], state=model.state, attempts=model.attempts, live_attempts=model.live)
            for pk, model in models.items()
        ]
        events = [job_event(event, names) for event in Event.objects.filter(job__in=models).order_by("id")]

        assert [
            *judge.unexplained(rows, events),
            *judge.held_twice(events),
            *judge.moved_after_the_end({}, [], events),
        ] == []

    def teardown(self):
        """The next example shares the nodes: nothing of this one may hold them."""
        for pk, model in getattr(self, "models", {}).items():
            if model.live:
                attempt = Job.objects.get(pk=pk).attempts.last()
                job_actions.finish(attempt, AttemptEnd(state=State.COMPLETED, at=clock.now()), author=make.LOOP)


def job_event(event: Event, names: dict[int, str]) -> JobEvent:
    gpus = event.detail.get("gpus")
    moved = event.what in ("job.submitted", "job.moved")
    return JobEvent(
        id=event.pk,
        group=event.pk,
        what=event.what,
        job=names[event.job_id],
        source=event.from_state,
        target=event.to_state if moved else "",
        gpus=None if gpus is None else frozenset((node, gpu) for node, held in gpus.items() for gpu in held),
    )


TestLifecycleMachine = pytest.mark.django_db(LifecycleMachine.TestCase)
TestLifecycleMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
