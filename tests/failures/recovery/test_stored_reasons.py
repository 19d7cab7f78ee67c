"""The migration that rewrites stored reasons to the current wording."""

from importlib import import_module

import pytest
from django.apps import apps

from failures.migrations import __name__ as migrations
from jobs.models import Checkpoint
from jobs.models.job import CheckpointVerdict
from tests import make

pytestmark = pytest.mark.django_db


def test_rollback_reason_of_an_earlier_version_is_rewritten():
    attempt = make.attempt(make.job())
    old = "Recovery went back behind it, to step 200: incident 7."
    row = Checkpoint.objects.create(
        job=attempt.job, attempt=attempt, path="/ckpt/300", step=300, verdict=CheckpointVerdict.BAD, verdict_why=old
    )

    import_module(f"{migrations}.0013_stored_reasons").rewrite_reasons(apps, None)

    row.refresh_from_db()
    assert row.verdict_why == "Recovery rolled back to step 200 (incident 7)."
