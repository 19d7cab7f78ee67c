"""Base classes of the admin pages: read-only lists that stay fast on tables with millions of rows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import models
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest

from jobs.admin import formatting
from jobs.admin.audit import AuditedAdmin


class CappedPaginator(Paginator):
    """Counts at most 5,000 rows, because COUNT(*) of millions of rows, and OFFSET into them, are slow."""

    cap = 5000

    @cached_property
    def count(self) -> int:
        return min(self._capped_count, self.cap)

    @property
    def has_more(self) -> bool:
        return self._capped_count > self.cap

    @cached_property
    def _capped_count(self) -> int:
        # Drops the list's annotations, which counting does not need
        return self.object_list.order_by().values("pk")[: self.cap + 1].count()


class AcmeAdmin(AuditedAdmin):
    """Adds the style sheet for badges and a date drill-down without a full table scan."""

    list_per_page = 50
    change_list_template = "admin/jobs/change_list.html"
    change_form_template = "admin/jobs/change_form.html"

    class Media:
        css = {"all": ["admin-acme.css"]}


class RecordAdmin(AcmeAdmin):
    """Read-only admin for rows that only background processes and actions write."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # each facet would run a COUNT(*)
    ordering = ("-id",)
    sortable_by: tuple[str, ...] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Users who may act on a row may see it, although the form is read-only."""
        names = (f"{self.opts.app_label}.{what}_{self.opts.model_name}" for what in ("view", "change"))
        return any(request.user.has_perm(name) for name in names)


class NewestRowsFormSet(BaseInlineFormSet):
    """Shows only the newest rows: a pretraining job has thousands of checkpoints and events."""

    most = 20

    def get_queryset(self) -> Any:
        if not hasattr(self, "_latest"):
            self._latest = list(super().get_queryset()[: self.most])
        return self._latest


class RecordInline(admin.TabularInline):
    formset = NewestRowsFormSet
    extra = 0
    can_delete = False
    classes = ("acme-record",)
    ordering = ("-id",)

    @admin.display(description="row")
    def opens(self, row: models.Model) -> str:
        return formatting.link(row)

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


class ProtectedHistoryMixin(admin.ModelAdmin):
    """Refuses to delete rows that have history, before Django lists all related rows.

    Deletion is meant for rows created by mistake.
    """

    history: tuple[str, ...] = ()

    def get_deleted_objects(self, objs: Iterable[models.Model], request: HttpRequest) -> tuple[Any, ...]:
        objs = list(objs)
        refusals = [text for row in objs if (text := self._deletion_refusal(row))]
        if refusals:
            return [], {}, set(), refusals
        return super().get_deleted_objects(objs, request)

    def _deletion_refusal(self, row: models.Model) -> str:
        """Why the row cannot be deleted; empty if it can."""
        relations = [name.replace("_", " ") for name in self.history if getattr(row, name).exists()]
        return f"{row} has {', '.join(relations)}, which must be kept" if relations else ""


class IsOpenFilter(admin.SimpleListFilter):
    """Filters rows without an end time. Partial indexes make `yes` fast."""

    title = "live"
    parameter_name = "live"
    ends = "ended_at"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "yes"), ("no", "no")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in ("yes", "no"):
            return queryset
        return queryset.filter(**{f"{self.ends}__isnull": self.value() == "yes"})
