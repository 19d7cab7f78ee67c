"""Records every change made in the admin console as an Event, in the transaction of the change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin
from django.contrib.auth.models import Group
from django.db import models, transaction
from django.http import HttpRequest

from jobs.actions import audit
from jobs.actions.journal import Author
from jobs.core.masking import mask_text

MAX_VALUE_LENGTH = 500
SECRET_WORDS = ("password", "secret", "digest", "webhook", "target")  # in names of fields; URLs contain tokens


class AuditedAdmin(admin.ModelAdmin):
    """Writes an Event with the old and new values of changed fields. Every admin class inherits from it."""

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        changes: dict[str, Any] = {} if add else {"fields": changed_values(form)}
        if related := [change for formset in formsets or () for change in _changes_of_formset(formset)]:
            changes["related"] = related
        request.acme_changes = changes  # type: ignore[attr-defined]
        return super().construct_change_message(request, form, formsets, add)

    def log_addition(self, request: HttpRequest, obj: models.Model, message: Any) -> Any:
        audit.record_admin_change("added", obj, Author.of(request), _changes_of(request))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: models.Model, message: Any) -> Any:
        audit.record_admin_change("changed", obj, Author.of(request), _changes_of(request))
        return super().log_change(request, obj, message)

    @transaction.atomic
    def delete_model(self, request: HttpRequest, obj: models.Model) -> None:
        audit.record_admin_change("deleted", obj, Author.of(request), {})
        super().delete_model(request, obj)

    @transaction.atomic
    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
        for row in queryset:
            audit.record_admin_change("deleted", row, Author.of(request), {})
        super().delete_queryset(request, queryset)


def _changes_of(request: HttpRequest) -> dict[str, Any]:
    return getattr(request, "acme_changes", {})


def _changes_of_formset(formset: Any) -> Iterable[dict[str, Any]]:
    model = formset.model._meta.label_lower
    yield from ({"added": str(row), "model": model} for row in formset.new_objects)
    yield from ({"deleted": str(row), "model": model} for row in formset.deleted_objects)
    changed = {row.pk for row, _ in formset.changed_objects}
    for form in formset.initial_forms:
        if form.instance.pk in changed:
            yield {"changed": str(form.instance), "model": model, "fields": changed_values(form)}


def changed_values(form: Any) -> dict[str, list[Any]]:
    """Return the old and the new value of each changed field. Secrets are left out."""
    return {
        name: [_old_value(form, name), _text(form.cleaned_data.get(name))] if not _is_secret(name) else []
        for name in form.changed_data
    }


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in SECRET_WORDS)


def _old_value(form: Any, name: str) -> Any:
    value, field = form.initial.get(name), form.fields.get(name)
    is_key = isinstance(field, forms.ModelChoiceField) and not isinstance(field, forms.ModelMultipleChoiceField)
    return _text(field.queryset.filter(pk=value).first() if is_key and value is not None else value)


def _text(value: Any) -> Any:
    """The value as JSON."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | models.QuerySet):
        return [_text(item) for item in value]
    return mask_text(str(value)[:MAX_VALUE_LENGTH])


admin.site.unregister(Group)


@admin.register(Group)
class AuditedGroupAdmin(AuditedAdmin, GroupAdmin):
    pass
