"""Random sequences of actions by users and loops: the database does what a model of thirty lines does, or nothing at
all.

The model has no database, no flags and no sentences. After every step the rows match the model, GPUs are held only by
live attempts, and the history in the Events gives the same state.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from acmeweb.common.errors import StateConflict
from jobs.actions import jobs as job_actions
from jobs.actions.jobs import NodeGpus
from jobs.core.attempt_end import AttemptEnd
from jobs.core.lifecycle import FINAL_STATES, PLATFORM_FAILURES, State
from jobs.models import Allocation, Event, HoldKind, Job, Node, clock
from tests import make
from tests.chaos import judge
from tests.chaos.judge import JobEvent, JobRow
from tests.properties import examples

NO = (StateConflict, IntegrityError)
ENDS = (State.COMPLETED, State.FAILED, State.TIMEOUT, State.NODE_FAIL, State.CANCELLED, State.OUT_OF_MEMORY)


@dataclass
class Model:
    """The expected state of one job."""

    budget: int
    state: State = State.PENDING
    held: bool = False
    live: bool = False
    requested: str = ""
    attempts: int = 0

    def hold(self, yes: bool) -> bool:
        if self.state != State.PENDING:
            return False
        self.held = yes
        return True

    def promise(self) -> bool:
        if self.state != State.PENDING or self.held:
            return False
        self.state, self.live, self.requested, self.attempts = State.RUNNING, True, "", self.attempts + 1
        return True

    def stop(self, requested: State) -> bool:
        if requested == State.CANCELLED and self.state == State.PENDING:
            self.state = State.CANCELLED
            return True
        if not self.live or self.requested == State.CANCELLED:
            return False
        if requested == State.PREEMPTED and self.requested:
            return False  # a loop does not replace a stop that was requested before
        self.requested = requested
        return True

    def end(self, how: State) -> bool:
        if not self.live:
            return False
        self.live = False
        self.state = self._becomes(how)
        return True

    def _becomes(self, how: State) -> State:
        if how == State.COMPLETED or self.requested == State.CANCELLED:
            return how if how == State.COMPLETED else State.CANCELLED
        if self.requested == State.PENDING:
            return State.PENDING
        if self.requested == State.PREEMPTED:
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
        if pair := self.job(number):
            job, model = pair
            verb = job_actions.hold if yes else job_actions.release
            self.tried(model.hold(yes), lambda: verb(job, author=make.author()))

    @rule(number=pick, node=st.integers(0, 3), upper=st.booleans())
    def promise(self, number, node, upper):
        if not (pair := self.job(number)):
            return
        job, model = pair
        gpus = (4, 5, 6, 7) if upper else (0, 1, 2, 3)
        free = not Allocation.objects.live().filter(node=self.nodes[node], gpu__in=gpus).exists()
        place = NodeGpus(node_id=self.nodes[node].pk, name=self.nodes[node].name, gpus=gpus)
        self.tried(
            free and model.promise(),
            lambda: job_actions.allocate_job(job, [place], author=make.LOOP, why="GPUs were free."),
        )

    @rule(number=pick)
    def confirm(self, number):
        if (pair := self.job(number)) and (attempt := pair[0].attempts.last()):
            job_actions.confirm_start(attempt, started_at=clock.now(), author=make.LOOP)

    @rule(number=pick, requested=st.sampled_from([State.CANCELLED, State.PENDING, State.PREEMPTED]))
    def stop(self, number, requested):
        if not (pair := self.job(number)):
            return
        job, model = pair
        verbs = {
            State.CANCELLED: lambda: job_actions.cancel(job, author=make.author()),
            State.PENDING: lambda: job_actions.requeue(job, author=make.author()),
            State.PREEMPTED: lambda: job_actions.preempt(job, author=make.LOOP, why="Other work needs the room."),
        }
        self.tried(model.stop(requested), verbs[requested])

    @rule(number=pick, how=st.sampled_from(ENDS))
    def end(self, number, how):
        """Of the newest attempt, though it may have ended before: news comes twice."""
        if not (pair := self.job(number)) or not (attempt := pair[0].attempts.last()):
            return
        ended = AttemptEnd(state=how, at=clock.now(), exit_code=0 if how == State.COMPLETED else 1)
        self.tried(pair[1].end(how), lambda: job_actions.finish(attempt, ended, author=make.LOOP))

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
    moved = event.type in ("job.submitted", "job.state_changed")
    return JobEvent(
        id=event.pk,
        group=event.pk,
        type=event.type,
        job=names[event.job_id],
        source=event.from_state,
        target=event.to_state if moved else "",
        gpus=None if gpus is None else frozenset((node, gpu) for node, held in gpus.items() for gpu in held),
    )


TestLifecycleMachine = pytest.mark.django_db(LifecycleMachine.TestCase)
TestLifecycleMachine.settings = examples(25, stateful_step_count=25, suppress_health_check=list(HealthCheck))
