from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from scheduling.models import Lease
from tests.jobs.pages.admin_make import make_superuser

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(make_superuser())
    return client


@pytest.mark.parametrize(("held", "count"), [("yes", 1), ("no", 0)])
def test_leases_are_listed_with_their_holders(root: Client, held: str, count: int):
    Lease.take("schedule:seren", "worker-1", timedelta(minutes=1))

    rows = root.get(reverse("admin:scheduling_lease_changelist"), {"held": held})

    assert rows.content.decode().count("worker-1") == count


def test_lease_page_is_read_only(root: Client):
    Lease.take("schedule:seren", "worker-1", timedelta(minutes=1))
    lease = Lease.objects.get()
    url = reverse("admin:scheduling_lease_change", args=[lease.pk])

    assert root.get(url).status_code == 200
    assert root.post(url, {"holder": "me"}).status_code == 403
