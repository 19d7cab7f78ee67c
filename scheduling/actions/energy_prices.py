"""Prices and carbon intensities of electricity. Importing a file again gives the same rows."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from jobs.models import Cluster, EnergyPrice
from scheduling.power.price_file import HourPrice

BATCH_SIZE = 2_000


def import_prices(cluster: Cluster, hours: Sequence[HourPrice]) -> int:
    """Store these hours, and replace what was stored for them, in one transaction. Return their number."""
    rows = [
        EnergyPrice(cluster=cluster, start=hour.start, kwh_price=hour.kwh_price, co2_g_per_kwh=hour.co2_g_per_kwh)
        for hour in hours
    ]
    with transaction.atomic():
        EnergyPrice.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["cluster", "start"],
            update_fields=["kwh_price", "co2_g_per_kwh"],
            batch_size=BATCH_SIZE,
        )
    return len(rows)
