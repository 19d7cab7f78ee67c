"""Resource quantities such as `500m`, `64Gi` or `8`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, value_at

QUANTITY = re.compile(r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))([a-zA-Z]{0,2}|[eE][+-]?\d{1,2})")
FACTORS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal(10**3),
    "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}  # fmt: skip
Amounts = Mapping[str, Decimal]


def parse_quantity(value: Any) -> Decimal:
    """The number. Raises ValueError."""
    found = QUANTITY.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    if found is None:
        raise ValueError(f"{value!r:.60} is not a quantity")
    if found[2] in FACTORS:
        return Decimal(found[1]) * FACTORS[found[2]]
    if found[2][0] in "eE" and found[2][1:].lstrip("+-").isdigit():
        return Decimal(found[1]).scaleb(int(found[2][1:]))
    raise ValueError(f"{value!r:.60} is not a quantity")


def requests_of(pod: JsonObject) -> dict[str, Decimal]:
    """What a pod requests: the sum of its containers, or its largest init container if that is more."""
    total = _sum(_container_requests(one) for one in value_at(pod, "spec", "containers", default=[]))
    for container in value_at(pod, "spec", "initContainers", default=[]):
        for name, amount in _container_requests(container).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    return {**total, "pods": Decimal(1)}


def _container_requests(container: JsonObject) -> dict[str, Decimal]:
    limits, requests = (value_at(container, "resources", part, default={}) for part in ("limits", "requests"))
    return {name: parse_quantity(value) for name, value in {**limits, **requests}.items()}


def _sum(amounts: Iterable[Amounts]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for one in amounts:
        for name, amount in one.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total


def amounts_of(quantities: Mapping[str, Any]) -> dict[str, Decimal]:
    return {name: parse_quantity(value) for name, value in quantities.items()}
