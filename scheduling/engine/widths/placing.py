"""Nodes for jobs whose widths have been decided. Jobs that keep their width keep their places."""

from __future__ import annotations

from scheduling.engine.widths.values import Places, WidthView, width


def spread_places(view: WidthView, widths: dict[int, int]) -> dict[int, Places]:
    """The places of these jobs, in this order, each on the nodes with the most free GPUs. They must fit."""
    staying = {
        job.number: job.places for job in view.jobs if job.places and width(job.places) == widths.get(job.number)
    }
    free = view.free(staying.values())
    return {number: staying.get(number) or take_freest(free, gpus) for number, gpus in widths.items() if gpus}


def take_freest(free: list[int], gpus: int) -> Places:
    """Take GPUs from the node with the most free ones, again and again. Changes `free`."""
    places: list[tuple[int, int]] = []
    while gpus > 0:
        node = max(range(len(free)), key=free.__getitem__)
        taken = min(free[node], gpus)
        if taken <= 0:
            raise ValueError("The widths of the jobs are more than the GPUs of the cluster.")
        places.append((node, taken))
        free[node] -= taken
        gpus -= taken
    return tuple(places)


def take_packed(free: list[int], gpus: int, node_gpus: int) -> Places | None:
    """Take part of the fullest node that has room, or whole nodes. None if there are none. Changes `free`."""
    if gpus < node_gpus:
        nodes = sorted((left, node) for node, left in enumerate(free) if left >= gpus)[:1]
        places = tuple((node, gpus) for _, node in nodes)
    else:
        whole = [node for node, left in enumerate(free) if left == node_gpus]
        places = tuple((node, node_gpus) for node in whole[: gpus // node_gpus])
    if width(places) < gpus:
        return None
    for node, taken in places:
        free[node] -= taken
    return places
