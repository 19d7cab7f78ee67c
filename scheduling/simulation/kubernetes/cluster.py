"""A simulated Kubernetes cluster: its API, its controllers and its machines. Pure.

It uses no clock, no network and no files: time is an argument (unix seconds), and its changes leave through
`take_changes`, as complete values that a store can keep. The same calls at the same times give the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from scheduling.event_queue import EventQueue
from scheduling.simulation.machines.fault_registry import FaultRegistry
from scheduling.simulation.machines.faults import ClusterFault, FaultKind, FaultModel
from scheduling.simulation.machines.values import JobExecutor, SignalTarget, SimulatedNode

from .api.authorization import Authenticator, Authorizer, access_of
from .api.errors import ApiError, bad_request
from .api.requests import Answer, ApiRequest, User
from .api.resources import BY_ID, LEASES, NAMESPACES, PRIORITY_CLASSES
from .api.rest import RestApi
from .api.served import STANDARD, ServedApi
from .api.writing import ObjectWriter
from .controllers.base import Controller, ControlPlane
from .controllers.budgets import BudgetController
from .controllers.event_recorder import EventRecorder
from .controllers.garbage_collection import GarbageCollector
from .controllers.indexes import PodIndex
from .controllers.job_sets import JobSetController
from .controllers.jobs import JobController
from .controllers.namespaces import NamespaceController
from .controllers.node_lifecycle import NodeLifecycle
from .controllers.scheduler import Scheduler
from .kubelets.executions import Executions, ProgramDescription
from .kubelets.gangs import Gang, execution_job, gang_of, main_container
from .kubelets.kubelets import Kubelets
from .kubelets.runtimes import PodRuntimes
from .objects import JsonObject, ObjectKey
from .store import ObjectStore
from .values import ClusterChanges, ClusterSnapshot, ClusterTiming, Execution, Machine, PodRuntime

FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
FIRST_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def _no_plan(key: str) -> Mapping[str, str]:
    return {}


class KubernetesCluster:
    def __init__(
        self,
        snapshot: ClusterSnapshot,
        executor: JobExecutor,
        now: float,
        *,
        seed: int = 0,
        faults: FaultModel | None = None,
        timing: ClusterTiming | None = None,
        plan_of: Callable[[str], Mapping[str, str]] = _no_plan,
        secret: bytes = b"",
        tokens: Mapping[str, User] | None = None,
        api: ServedApi = STANDARD,
        describe: ProgramDescription = execution_job,
        gang_of: Callable[[JsonObject], Gang] = gang_of,
    ) -> None:
        """`begin` must be called once before anything else."""
        self._now, self._timing, self.api = now, timing or ClusterTiming(), api
        self._model = faults or FaultModel(seed=seed)
        self._clock, self._clock_changed = snapshot.clock, False
        self.agenda = EventQueue()
        self.store = ObjectStore(snapshot.objects, version=snapshot.version, volatile=frozenset({LEASES}))
        self.writer = ObjectWriter(self.store, seed=seed, api=api)
        self.authenticator = Authenticator(self.store, secret, tokens or {})
        self.authorizer = Authorizer(self.store)
        self._rest = RestApi(self.store, self.writer, self.authenticator, api)
        self._registry = FaultRegistry(snapshot.faults, self._model)
        self._executions = Executions(snapshot.executions, executor, self._registry, self._model, plan_of, describe)
        self._build_controllers(snapshot, now, gang_of)

    def begin(self, now: float) -> None:
        """Create what every cluster has, and continue with what ran before a restart."""
        self._replay()
        self._create_first_objects(now)
        self._events.restore(now)
        self.kubelets.start(now)
        self._executions.adopt_all(now)
        self._schedule_faults(now)
        self.agenda.at(now + self._timing.compact_s, self._compact)

    def _build_controllers(self, snapshot: ClusterSnapshot, now: float, gang_of: Callable[[JsonObject], Gang]) -> None:
        pods = self._pods = PodIndex()
        self.store.listen(pods.observe)
        self._events = EventRecorder(self.store, self.writer, self.agenda, self._timing.event_ttl_s)
        plane = ControlPlane(
            store=self.store,
            writer=self.writer,
            agenda=self.agenda,
            events=self._events,
            pods=pods,
            timing=self._timing,
            api=self.api,
        )
        runtimes = PodRuntimes(snapshot.pods, self.store.get, gang_of)
        self.kubelets = Kubelets(
            plane, snapshot.machines, runtimes, self._executions, self._registry, self._clock.next_execution
        )
        self._controllers: tuple[Controller, ...] = (
            NamespaceController(plane),
            JobController(plane),
            JobSetController(plane),
            GarbageCollector(plane),
            Scheduler(plane),
            NodeLifecycle(plane, now),
            self.kubelets,
            BudgetController(plane),
        )

    def _replay(self) -> None:
        """Show the stored objects to the index and to the controllers."""
        for change in self.store.replay():
            self._pods.observe(change)
            for controller in self._controllers:
                controller.observe(change)

    def _create_first_objects(self, now: float) -> None:
        for name in FIRST_NAMESPACES:
            if self.store.get(ObjectKey(NAMESPACES, "", name)) is None:
                self.writer.create(BY_ID[NAMESPACES], "", {"metadata": {"name": name}}, now)
        for name, value in FIRST_PRIORITIES.items():
            if self.store.get(ObjectKey(PRIORITY_CLASSES, "", name)) is None:
                body = {"metadata": {"name": name}, "value": value}
                self.writer.create(BY_ID[PRIORITY_CLASSES], "", body, now)

    # Requests

    def answer(self, request: ApiRequest, now: float) -> Answer:
        """Authorize and answer a request for a resource. Raises ApiError."""
        self._now = max(self._now, now)
        self.authorizer.check(request.user, access_of(request))
        try:
            answer = self._rest.answer(request, now)
        finally:
            self._settle(self._now)
        return answer

    def user_of(self, token: str, now: float) -> User | None:
        return self.authenticator.user(token, now)

    @property
    def executions(self) -> Iterable[Execution]:
        """The programs that run."""
        return self._executions.active

    def execution_pods(self, number: int) -> list[tuple[PodRuntime, str]]:
        """The pods of an execution in order of rank, each with the name of its main container."""
        execution = self._executions.get(number)
        found = [self.kubelets.runtimes.of_uid(uid) for uid in execution.pods] if execution is not None else []
        pods = [(one, self.store.get(one.key)) for one in found if one is not None]
        return [(one, str(main_container(pod)["name"])) for one, pod in pods if pod is not None]

    def signal_pod(self, runtime: PodRuntime, signal: int, target: SignalTarget, now: float) -> None:
        """Send a signal to the program in a pod."""
        self._now = max(self._now, now)
        self._executions.signal_pod(runtime.execution, runtime.uid, signal, target, now)

    # Machines and faults

    @property
    def machines(self) -> Iterable[Machine]:
        return self.kubelets.machines

    @property
    def faults(self) -> tuple[ClusterFault, ...]:
        return self._registry.faults

    def machine(self, name: str) -> Machine:
        """Raises ApiError if there is none with this name."""
        found = self.kubelets.machine(name)
        if found is None:
            raise ApiError(404, "NotFound", f"node: {name!r:.80} does not exist")
        return found

    def set_kubelet(self, name: str, running: bool, now: float) -> None:
        """Stop or start the kubelet of a machine. Its containers go on."""
        self._now = max(self._now, now)
        self.kubelets.set_machine(replace(self.machine(name), kubelet=running), now)
        self._settle(self._now)

    def power_off(self, name: str, now: float, *, repair_at: float = 0.0) -> None:
        """Lose a machine with everything that runs on it."""
        self._now = max(self._now, now)
        machine = self.machine(name)
        node = replace(machine.node, down=True, repair_at=repair_at)
        self.kubelets.set_machine(replace(machine, node=node), now)
        if repair_at:
            self.agenda.at(repair_at, self._repair_if_due, name)
        self._settle(self._now)

    def repair(self, name: str, now: float) -> None:
        """End the faults of a machine and boot it if it is down."""
        self._now = max(self._now, now)
        machine = self.machine(name)
        self._registry.heal_node(name, now)
        node = replace(machine.node, down=False, repair_at=0.0)
        if machine.node.down:
            node = replace(node, boot_at=now, clock_mhz=None)
        self.kubelets.set_machine(replace(machine, node=node, kubelet=True), now)
        self.kubelets.report_node(name, now)
        self._settle(self._now)

    def set_clocks(self, clocks: Mapping[str, int | None], now: float) -> None:
        """Set the clocks of the GPUs of these machines; None is the highest. Raises ApiError; then none is set."""
        self._now = max(self._now, now)
        machines = [self.machine(name) for name in clocks]
        for machine in machines:
            if not machine.node.runs:
                raise bad_request(f"clocks: {machine.node.name} does not respond")
        for machine in machines:
            node = replace(machine.node, clock_mhz=clocks[machine.node.name])
            self.kubelets.set_machine(replace(machine, node=node), now)
        nodes = {machine.node.name: machine.node for machine in self.machines}
        for execution in [one for one in self.executions if clocks.keys() & set(one.job.nodes)]:
            self._executions.update_speed(execution, nodes, now)
        self._settle(self._now)

    def inject_fault(self, kind: FaultKind, now: float, *, node: str = "", gpu: int = -1) -> ClusterFault:
        """Start a fault of a node or of the storage, drawn at random or requested. Raises ApiError."""
        self._now = max(self._now, now)
        hardware = None if kind == FaultKind.STORAGE else self._check_fault_target(node, gpu)
        running = [execution.job for execution in self._executions.active]
        fault = self._registry.begin(kind, running, now, node=hardware, gpu=gpu)
        self._executions.apply_fault(fault, now)
        if kind == FaultKind.DEATH:
            self.power_off(node, now, repair_at=now + self._model.repair_s(self._clock.faults))
        elif node:
            self.kubelets.report_node(node, now)
            self.agenda.at(fault.until, self.kubelets.report_node, node)
        self._settle(self._now)
        return fault

    def inject_pod_fault(self, kind: FaultKind, namespace: str, name: str, now: float) -> ClusterFault:
        """Start a fault that hits the program of this pod only. Raises ApiError."""
        runtime = self.kubelets.runtimes.get(ObjectKey("pods", namespace, name))
        execution = self._executions.get(runtime.execution) if runtime is not None else None
        if runtime is None or execution is None:
            raise bad_request(f"pod: {namespace}/{name} does not run a program".replace("\n", " "))
        hardware = self.machine(runtime.node).node
        fault = self._registry.begin_in_job(kind, execution.job, now, node=hardware)
        self._executions.apply_fault(fault, now)
        return fault

    def _check_fault_target(self, name: str, gpu: int) -> SimulatedNode:
        node = self.machine(name).node
        if gpu >= node.gpus:
            raise bad_request(f"gpu: {name} has no GPU {gpu}")
        if node.down:
            raise bad_request(f"node: {name} is down, so no fault can be injected there")
        return node

    # Time

    def advance_to(self, now: float) -> None:
        """Process everything that is due up to now, each at its own time."""
        self._settle(self._now)
        while (at := min(self.agenda.next_time, self._executions.next_end_at)) <= now:
            self._process(max(at, self._now))
        self._process(max(now, self._now))

    def _process(self, now: float) -> None:
        self._now = now
        self.kubelets.handle_ends(self._executions.poll_ends(now), now)
        lost, self._executions.lost_machines = self._executions.lost_machines, []
        for name in lost:
            self.power_off(name, now, repair_at=now + self._model.repair_s(self._clock.faults))
        for event, subject in self.agenda.take_due(now):
            event(subject, now)
        self._settle(now)

    def _repair_if_due(self, name: str, now: float) -> None:
        node = self.machine(name).node
        if node.down and node.repair_at <= now:
            self.repair(name, now)

    def _compact(self, _: None, now: float) -> None:
        self.store.compact()
        self.agenda.at(now + self._timing.compact_s, self._compact)

    def _settle(self, now: float) -> None:
        """Let the controllers react to changes until nothing changes any more."""
        while True:
            for change in self.store.take_unseen():
                for controller in self._controllers:
                    controller.observe(change)
            busy = [controller for controller in self._controllers if controller.has_work]
            if not busy:
                return
            for controller in busy:
                controller.work(now)

    # Drawn faults

    def _schedule_faults(self, now: float) -> None:
        for machine in self.kubelets.machines:
            if machine.node.repair_at:
                self.agenda.at(machine.node.repair_at, self._repair_if_due, machine.node.name)
        if not self._model.per_node_day:
            return
        if self._clock.next_fault_at:
            self.agenda.at(self._clock.next_fault_at, self._inject_next_fault)
        else:
            self._schedule_next_fault(self._clock.faults, now)

    def _schedule_next_fault(self, number: int, now: float) -> None:
        at = now + self._model.gap(number, sum(1 for _ in self.kubelets.machines))
        self._clock, self._clock_changed = replace(self._clock, faults=number, next_fault_at=at), True
        self.agenda.at(at, self._inject_next_fault)

    def _inject_next_fault(self, _: None, now: float) -> None:
        number = self._clock.faults
        up = [machine.node.name for machine in self.kubelets.machines if not machine.node.down]
        if up:
            self.inject_fault(self._model.kind(number), now, node=self._model.victim(number, up))
        self._schedule_next_fault(number + 1, now)

    # State

    def take_changes(self) -> ClusterChanges:
        """Everything that changed since the last call, for the store."""
        if self._clock.next_execution != self.kubelets.next_execution:
            self._clock = replace(self._clock, next_execution=self.kubelets.next_execution)
            self._clock_changed = True
        clock, self._clock_changed = self._clock if self._clock_changed else None, False
        return ClusterChanges(
            objects=self.store.take_changes(),
            machines=self.kubelets.take_changed_machines(),
            pods=self.kubelets.runtimes.take_changes(),
            executions=self._executions.take_changes(),
            faults=self._registry.take_changes(),
            clock=clock,
        )

    def take_snapshot(self) -> ClusterSnapshot:
        """The whole state, as a store would restore it."""
        objects = ((change.key, change.stored.object) for change in self.store.replay())
        return ClusterSnapshot(
            machines=tuple(self.kubelets.machines),
            objects=tuple((key, found) for key, found in objects if key.resource != LEASES),
            version=self.store.version,
            pods=tuple(self.kubelets.runtimes.all()),
            executions=tuple(self._executions.active),
            faults=self._registry.faults,
            clock=replace(self._clock, next_execution=self.kubelets.next_execution),
        )
