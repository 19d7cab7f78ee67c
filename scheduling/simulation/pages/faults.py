"""Faults on request, on the pages of jobs and nodes of a simulated cluster. They show how Acme handles failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_POST

from jobs.actions.journal import Author
from jobs.core.attempt_end import TRAINING_KINDS
from jobs.core.cluster_kinds import KUBERNETES
from jobs.core.lifecycle import JobKind, State
from jobs.models import Job, Node
from jobs.models.permissions import Caller
from scheduling.simulation import fault_actions
from scheduling.simulation.client import SimulatorError

OPERATE_PERMISSION = "jobs.operate_cluster"


@dataclass(frozen=True, kw_only=True)
class FaultOffer:
    kind: str
    label: str
    effect: str


NODE_FAULTS = (
    FaultOffer(kind="death", label="Kill the node", effect="It stops responding. Its jobs end with NODE_FAIL."),
    FaultOffer(kind="off_bus", label="Drop a GPU off the bus", effect="Xid 79. The jobs on this GPU fail."),
    FaultOffer(kind="ecc", label="Uncorrectable memory error", effect="Xid 48 on one GPU. The jobs on it fail."),
    FaultOffer(kind="nvlink", label="Break an NVLink", effect="Xid 74. Jobs on several GPUs of this node fail."),
    FaultOffer(kind="slow", label="Slow down a GPU", effect="Its jobs take almost twice as long for each step."),
)
SLEEP_FAULT = FaultOffer(kind="no_wake", label="Do not wake up", effect="Once it sleeps, it does not boot again.")
JOB_FAULTS = (
    FaultOffer(kind="out_of_memory", label="Run out of GPU memory", effect="The job fails with a CUDA error."),
    FaultOffer(kind="hang", label="Hang", effect="The job keeps its GPUs and writes nothing more."),
)
TRAINING_FAULTS = (
    FaultOffer(kind="nan", label="Loss becomes NaN", effect="The job reports it and fails."),
    FaultOffer(kind="loss", label="Loss spike", effect="The loss jumps and the job goes on."),
)


def node_fault_form(request: HttpRequest, node: Node) -> str:
    is_offered = node.cluster.is_simulated and node.is_schedulable
    url = reverse("node-fault", args=[node.cluster.name, node.name])
    return _form(request, _node_faults(node) if is_offered else (), url, node.name)


def _node_faults(node: Node) -> Sequence[FaultOffer]:
    return NODE_FAULTS if node.cluster.kind is KUBERNETES else (*NODE_FAULTS, SLEEP_FAULT)


def job_fault_form(request: HttpRequest, job: Job) -> str:
    is_offered = job.cluster.is_simulated and job.state == State.RUNNING
    url = reverse("job-fault", args=[job.public_id])
    return _form(request, _job_faults(job) if is_offered else (), url, job.name)


def _job_faults(job: Job) -> Sequence[FaultOffer]:
    return (*JOB_FAULTS, *TRAINING_FAULTS) if JobKind(job.kind) in TRAINING_KINDS else JOB_FAULTS


def _form(request: HttpRequest, offers: Sequence[FaultOffer], url: str, target: str) -> str:
    if not offers or not request.user.has_perm(OPERATE_PERMISSION):
        return ""
    return render_to_string("simulation/_inject_fault.html", {"offers": offers, "url": url, "target": target}, request)


@permission_required(OPERATE_PERMISSION, raise_exception=True)
@require_POST
def break_node(request: HttpRequest, cluster: str, name: str) -> HttpResponse:
    node = get_object_or_404(Node.objects.select_related("cluster"), cluster__name=cluster, name=name)
    _inject_chosen(request, _node_faults(node), partial(fault_actions.inject_node_fault, node))
    return redirect("node", cluster, name)


@permission_required(OPERATE_PERMISSION, raise_exception=True)
@require_POST
def break_job(request: HttpRequest, public_id: str) -> HttpResponse:
    jobs = Caller(user=request.user).jobs().select_related("cluster")
    job = get_object_or_404(jobs, public_id=public_id)
    _inject_chosen(request, _job_faults(job), partial(fault_actions.inject_job_fault, job))
    return redirect("job", public_id)


def _inject_chosen(request: HttpRequest, offers: Sequence[FaultOffer], inject: Callable[..., None]) -> None:
    offer = _chosen(request, offers)
    try:
        inject(offer.kind, author=Author.of(request))
        messages.success(request, f"{offer.label}: done. {offer.effect}")
    except SimulatorError as error:
        messages.error(request, str(error))


def _chosen(request: HttpRequest, offers: Sequence[FaultOffer]) -> FaultOffer:
    """The offer that was chosen. 404 for another one, which no button of ours sends."""
    kind = request.POST.get("kind", "")
    for offer in offers:
        if offer.kind == kind:
            return offer
    raise Http404
