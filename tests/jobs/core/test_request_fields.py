"""The table of a request's fields agrees with the reader and the record of jobs."""

from __future__ import annotations

from dataclasses import fields

import pytest

from jobs.core.lifecycle import JobKind
from jobs.core.request_fields import REQUEST_FIELDS
from jobs.core.spec import READERS, SHARE_FIELDS, JobSpec


def test_every_field_is_an_attribute_of_the_spec_unless_it_is_a_part_of_a_gpu():
    columns = {field.value.column or name for name, field in REQUEST_FIELDS.items()}

    assert columns - {one.name for one in fields(JobSpec)} == set(SHARE_FIELDS)


@pytest.mark.parametrize("name", [name for name, field in REQUEST_FIELDS.items() if field.value.example is not None])
def test_the_example_of_a_field_is_a_valid_request(name):
    READERS[name](name, REQUEST_FIELDS[name].value.example)


def test_the_help_of_kinds_names_all_of_them():
    assert all(kind in REQUEST_FIELDS["kind"].help for kind in JobKind)


def test_options_and_their_short_forms_are_unique():
    options = [field.option for field in REQUEST_FIELDS.values() if field.option and not field.option.gres]
    names = [name for option in options for name in (option.name, option.short) if name]

    assert len(set(names)) == len(names)
