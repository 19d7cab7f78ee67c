"""The speeds of GPU models on the settings page of a cluster: a table, and forms to add, change and remove speeds."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from jobs.actions.journal import Author
from jobs.models import Cluster, Node
from jobs.web.page import posted_number, show_change
from scheduling.actions import gpu_speeds as speed_actions
from scheduling.models import GpuSpeed

OPERATE_PERMISSION = "jobs.operate_cluster"
MAX_ROWS_SHOWN = 500


def speed_context(cluster: Cluster) -> dict[str, Any]:
    """The first of the given speeds, how many there are, and the models for which one can be added."""
    nodes = Node.objects.filter(cluster=cluster).exclude(gpu_model="").order_by("gpu_model")
    speeds = GpuSpeed.objects.filter(cluster=cluster)
    return {
        "gpu_speeds": list(speeds.order_by("pattern", "gpu_model")[:MAX_ROWS_SHOWN]),
        "all_gpu_speeds": speeds.count(),
        "gpu_models": list(nodes.values_list("gpu_model", flat=True).distinct()),
    }


@require_POST
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def add_speed(request: HttpRequest, name: str) -> HttpResponse:
    row = get_object_or_404(Cluster, name=name)

    def add() -> str:
        pattern, model = (request.POST.get(field, "").strip() for field in ("pattern", "gpu_model"))
        author = Author.of(request)
        added = speed_actions.add(row, pattern=pattern, gpu_model=model, speed=_speed(request), author=author)
        return f"{added.pattern}: the speed on {added.gpu_model} was added. Takes effect in the next scheduling turn."

    show_change(request, add)
    return redirect("cluster", name)


@require_POST
@permission_required(OPERATE_PERMISSION, raise_exception=True)
def change_speed(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Change the speed, or with `do=remove` remove it."""
    row = get_object_or_404(GpuSpeed.objects.select_related("cluster"), cluster__name=name, pk=number)

    def change() -> str:
        if request.POST.get("do") == "remove":
            speed_actions.remove(row, author=Author.of(request))
            return f"{row.pattern}: the speed on {row.gpu_model} was removed."
        speed_actions.change(row, speed=_speed(request), author=Author.of(request))
        return f"{row.pattern}: the speed on {row.gpu_model} was changed. Takes effect in the next scheduling turn."

    show_change(request, change)
    return redirect("cluster", name)


def _speed(request: HttpRequest) -> float:
    return posted_number(request, "speed", "a number, such as 2.2")
