"""Nodes for jobs whose widths have been decided. Jobs that keep their width keep their places if they can."""

from __future__ import annotations

from scheduling.research.widths.values import NOWHERE, Places, WidthView, width


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


def pack_places(view: WidthView, widths: dict[int, int]) -> dict[int, Places]:
    """The places of these jobs on parts of a node or on whole nodes, the widest first. Jobs that keep their width keep
    their places. If the others find none then, they only keep theirs while these are free, unless they are restarting.
    Jobs for which none are left wait.
    """
    present = _present(view, widths)
    placed = _packed(view, widths, present)
    if len(placed) == len(widths):
        return placed
    restarting = {job.number: job.places for job in view.jobs if job.is_restarting and job.number in present}
    return _packed(view, widths, restarting, present)


def pack_all(view: WidthView, widths: dict[int, int]) -> dict[int, Places]:
    """The same, but jobs that are restarting may move as well. So all find places if widths and nodes are powers of two
    and the widths are not more than the GPUs: at each width, what is free on a node is a multiple of it.
    """
    present = _present(view, widths)
    placed = _packed(view, widths, present)
    return placed if len(placed) == len(widths) else _packed(view, widths, {}, present)


def _present(view: WidthView, widths: dict[int, int]) -> dict[int, Places]:
    """The places of the jobs that keep their width."""
    return {job.number: job.places for job in view.jobs if width(job.places) == widths.get(job.number)}


def _packed(
    view: WidthView, widths: dict[int, int], staying: dict[int, Places], preferred: dict[int, Places] | None = None
) -> dict[int, Places]:
    free = view.free(staying.values())
    placed = dict(staying)
    for number, gpus in sorted(widths.items(), key=lambda item: (-item[1], item[0])):
        if number not in placed:
            wish = (preferred or {}).get(number, NOWHERE)
            places = take(free, wish) or take_packed(free, gpus, view.node_gpus)
            if places:
                placed[number] = places
    return placed


def take(free: list[int], places: Places) -> Places:
    """Take these places if they are free, else none. Changes `free`."""
    if any(free[node] < gpus for node, gpus in places):
        return NOWHERE
    for node, gpus in places:
        free[node] -= gpus
    return places
