"""The installation id on the command line."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Installation

pytestmark = pytest.mark.django_db


def test_command_prints_the_installation_id(capsys):
    call_command("installation")

    assert capsys.readouterr().out.strip() == Installation.current_id()


def test_command_creates_a_new_id_for_a_copy():
    before = Installation.current_id()

    call_command("installation", new_identity=True, yes=True)

    assert Installation.current_id() != before
    assert Installation.objects.count() == 1


def test_new_id_must_be_confirmed():
    before = Installation.current_id()

    with pytest.raises(CommandError, match="Confirm with --yes"):
        call_command("installation", new_identity=True)

    assert Installation.current_id() == before
