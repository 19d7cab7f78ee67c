"""Admin of telemetry samples and training progress, newest first.

There are millions of samples, so no list here sorts or counts them.
"""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import formatting
from jobs.admin.record import RecordAdmin
from jobs.models import (
    ClusterMinute,
    EnergyClock,
    EnergyHour,
    EnergyPrice,
    LatestProgress,
    NodeClock,
    RankTimes,
    Sample,
    Section,
)


def _known_values(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


@admin.register(Sample)
class SampleAdmin(RecordAdmin):
    list_display = ("id", "node", "cluster", "sample_time", "resolution", "utilization", "hottest", "power", "xids")
    list_select_related = ("node__cluster",)
    # No date hierarchy: it would search for the oldest of millions of rows. The date filter needs no such query
    list_filter = ("resolution", "at", "node__cluster")
    search_fields = ("node__name__exact",)
    search_help_text = "The name of a node."

    @admin.display(description="cluster")
    def cluster(self, sample: Sample) -> str:
        return sample.node.cluster.name

    @admin.display(description="at")
    def sample_time(self, sample: Sample) -> str:
        return formatting.relative_time(sample.at)

    @admin.display(description="mean utilization")
    def utilization(self, sample: Sample) -> str:
        values = _known_values(sample.gpu_util)
        return f"{sum(values) / len(values):.0f}%" if values else formatting.MISSING_TEXT

    @admin.display(description="hottest GPU")
    def hottest(self, sample: Sample) -> str:
        values = _known_values(sample.gpu_temperature_c)
        return f"{max(values):.0f} °C" if values else formatting.MISSING_TEXT

    @admin.display(description="power")
    def power(self, sample: Sample) -> str:
        values = _known_values(sample.gpu_power_w)
        return f"{sum(values) / 1000:.1f} kW" if values else formatting.MISSING_TEXT

    @admin.display(description="Xid")
    def xids(self, sample: Sample) -> str:
        errors = (f"Xid {value:.0f} on GPU {gpu}" for gpu, value in enumerate(sample.xid) if value)
        return ", ".join(errors) or formatting.MISSING_TEXT


@admin.register(ClusterMinute)
class MinuteAdmin(RecordAdmin):
    list_display = (
        "cluster",
        "sample_time",
        "gpus",
        "allocated",
        "closed",
        "utilization",
        "running",
        "waiting",
        "requested",
    )
    list_display_links = ("sample_time",)
    list_select_related = ("cluster",)
    list_filter = ("cluster", "at")
    ordering = ("-pk",)

    @admin.display(description="at")
    def sample_time(self, minute: ClusterMinute) -> str:
        return formatting.relative_time(minute.at)


@admin.register(LatestProgress)
class LatestProgressAdmin(RecordAdmin):
    list_display = (
        "attempt", "step", "loss", "grad_norm", "step_time_s", "tokens", "learning_rate", "mfu", "source", "at",
        "updated_at",
    )  # fmt: skip
    list_select_related = ("attempt",)
    list_filter = ("source", "at")
    ordering = ("-attempt_id",)
    search_fields = ("attempt__key__exact",)
    search_help_text = "The key of an attempt."


@admin.register(Section)
class SectionAdmin(RecordAdmin):
    list_display = ("attempt", "name", "began_at", "ended_at")
    list_select_related = ("attempt",)
    list_filter = ("name", "began_at")
    ordering = ("-pk",)
    search_fields = ("attempt__key__exact",)
    search_help_text = "The key of an attempt."


@admin.register(RankTimes)
class RankTimesAdmin(RecordAdmin):
    list_display = ("attempt", "sample_time", "ranks", "slowest")
    list_select_related = ("attempt",)
    list_filter = ("at",)
    ordering = ("-pk",)
    search_fields = ("attempt__key__exact",)
    search_help_text = "The key of an attempt."

    @admin.display(description="at")
    def sample_time(self, times: RankTimes) -> str:
        return formatting.relative_time(times.at)

    @admin.display(description="ranks")
    def ranks(self, times: RankTimes) -> int:
        return len(times.seconds)

    @admin.display(description="slowest")
    def slowest(self, times: RankTimes) -> str:
        if not times.seconds:
            return formatting.MISSING_TEXT
        rank, seconds = max(enumerate(times.seconds), key=lambda pair: pair[1])
        return f"rank {rank}: {seconds:.3f} s"


@admin.register(EnergyHour)
class EnergyHourAdmin(RecordAdmin):
    list_display = ("id", "cluster", "attempt", "start", "counter_j", "power_j", "estimate_j", "host_j")
    list_select_related = ("cluster", "attempt")
    list_filter = ("cluster",)
    ordering = ("-pk",)
    search_fields = ("attempt__key__exact",)
    search_help_text = "The key of an attempt."


@admin.register(EnergyClock)
class EnergyClockAdmin(RecordAdmin):
    list_display = ("cluster", "counted_until")
    list_select_related = ("cluster",)


@admin.register(EnergyPrice)
class EnergyPriceAdmin(RecordAdmin):
    list_display = ("cluster", "start", "kwh_price", "co2_g_per_kwh")
    list_select_related = ("cluster",)
    list_filter = ("cluster",)
    ordering = ("-pk",)


@admin.register(NodeClock)
class NodeClockAdmin(RecordAdmin):
    list_display = ("id", "node", "mhz", "began_at", "confirmed_at", "ended_at")
    list_select_related = ("node",)
    ordering = ("-pk",)
    search_fields = ("node__name__startswith",)
    search_help_text = "Start of the node's name."
