"""What the admin pages of the record have in common: they look, do not touch, and never count a million rows."""

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


class CappedPaginator(Paginator):
    """Counts as far as anybody turns pages: COUNT(*) of a million rows, and OFFSET into them, are slow."""

    cap = 5000

    @cached_property
    def count(self) -> int:
        return min(self._capped_count, self.cap)

    @property
    def has_more(self) -> bool:
        return self._capped_count > self.cap

    @cached_property
    def _capped_count(self) -> int:
        # The annotations of the list are for the rows that are shown, not for those that are counted
        return self.object_list.order_by().values("pk")[: self.cap + 1].count()


class AcmeAdmin(admin.ModelAdmin):
    """Badges have a style sheet, and dates are drilled down without a look at every row."""

    list_per_page = 50
    change_list_template = "admin/jobs/change_list.html"
    change_form_template = "admin/jobs/change_form.html"

    class Media:
        css = {"all": ["admin-acme.css"]}


class RecordAdmin(AcmeAdmin):
    """Rows that loops and verbs write: nobody adds, edits or deletes one by hand."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # each would be a COUNT(*) of its own
    ordering = ("-id",)
    sortable_by: tuple[str, ...] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Whoever may use a verb on a row may see it; the form itself stays closed."""
        names = (f"{self.opts.app_label}.{what}_{self.opts.model_name}" for what in ("view", "change"))
        return any(request.user.has_perm(name) for name in names)


class NewestRowsFormSet(BaseInlineFormSet):
    """The newest rows only: a pretraining run has thousands of checkpoints and events."""

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
    """Deleting is for mistakes of the last minute: what has a history is refused before Django lists all of it."""

    history: tuple[str, ...] = ()

    def get_deleted_objects(self, objs: Iterable[models.Model], request: HttpRequest) -> tuple[Any, ...]:
        objs = list(objs)
        kept = [sentence for row in objs for sentence in self._deletion_refusals(row)]
        if kept:
            return [], {}, set(), kept
        return super().get_deleted_objects(objs, request)

    def _deletion_refusals(self, row: models.Model) -> list[str]:
        found = [name for name in self.history if getattr(row, name).exists()]
        return [f"{row} has {', '.join(name.replace('_', ' ') for name in found)}, and the record keeps them"][
            : len(found)
        ]


class IsOpenFilter(admin.SimpleListFilter):
    """Whether the row is still going on; the partial indexes make `yes` cheap."""

    title = "live"
    parameter_name = "live"
    ends = "ended_at"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "yes"), ("no", "no")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in ("yes", "no"):
            return queryset
        return queryset.filter(**{f"{self.ends}__isnull": self.value() == "yes"})
