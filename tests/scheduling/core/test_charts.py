"""Geometry, ticks and CSV rows of charts, and numbers as text."""

import pytest

from scheduling.core.charts import BarChart, BarSeries, ColumnChart, Curve, LineChart, csv_rows, draw
from scheduling.core.number_texts import duration_text, format_number


def lines(*curves, **options):
    return LineChart(
        title="T",
        x_label="x",
        y_label="y",
        curves=[Curve(name=f"c{number}", points=points, style=number) for number, points in enumerate(curves)],
        **options,
    )


def corners(points):
    return [tuple(map(float, pair.split(","))) for pair in points.split()]


def test_curve_fills_the_plot_from_edge_to_edge():
    drawing = draw(lines([(0, 0), (10, 5)], y_most=5.0))

    assert corners(drawing.curves[0].points) == [(drawing.left, drawing.bottom), (drawing.right, drawing.top)]


def test_times_below_a_second_are_drawn_at_the_left_edge_of_a_logarithmic_axis():
    drawing = draw(lines([(0.0, 10), (0.5, 20), (3600, 100)], log_seconds=True, y_most=100.0))

    assert [x for x, _ in corners(drawing.curves[0].points)] == [drawing.left, drawing.left, drawing.right]
    assert [tick.label for tick in drawing.x_ticks] == ["1 s", "10 s", "1 min", "10 min", "1 h"]


@pytest.mark.parametrize("most", [0.3, 1, 7, 99, 1234, 5e6])
def test_axis_has_a_few_round_ticks_inside_the_plot(most):
    ticks = draw(lines([(0, 0), (1, most)])).y_ticks

    assert 3 <= len(ticks) <= 8
    assert all(draw(lines([(0, 0), (1, most)])).top <= tick.at for tick in ticks)


@pytest.mark.parametrize(
    "chart",
    [
        lines(),
        lines([]),
        BarChart(title="T", unit="u", categories=[], series=[BarSeries(name="a", values=[], style=0)]),
    ],
)
def test_chart_without_values_says_so(chart):
    assert draw(chart).is_empty


def test_constant_series_can_be_drawn():
    assert not draw(lines([(3, 0), (3, 0)])).is_empty


def test_bars_scale_to_the_largest_value_and_unknown_values_have_none():
    chart = BarChart(
        title="T",
        unit="%",
        categories=["a" * 30, "b"],
        series=[
            BarSeries(name="ours", values=[10.0, 40.0], style=0),
            BarSeries(name="published", values=[None, 20.0], style=1),
        ],
    )

    drawing = draw(chart)

    assert len(drawing.bars) == 3
    widths = [bar.width for bar in drawing.bars]
    assert widths[0] * 4 == pytest.approx(widths[1], abs=0.2) and drawing.bars[1].x + widths[1] == drawing.right
    assert (len(drawing.labels[0].text), drawing.labels[0].full_text) == (15, "a" * 30)


def test_range_bar_spans_low_to_high_and_marks_the_value():
    series = BarSeries(name="ours", values=[8.0], low=[1.0], high=[64.0], style=0)
    chart = BarChart(title="T", unit="GPUs", categories=["a"], series=[series], log=True)

    bar = draw(chart).bars[0]

    assert bar.x < bar.mark < bar.x + bar.width
    assert bar.text == "8 (1–64)"
    assert list(csv_rows(chart)) == [("series", "category", "GPUs", "low", "high"), ("ours", "a", "8", "1", "64")]


def test_csv_has_a_row_per_point():
    assert list(csv_rows(lines([(0, 1), (2.5, 3)]))) == [("series", "x", "y"), ("c0", "0", "1"), ("c0", "2.5", "3")]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.04, "0.0 s"),
        (2.5, "2.5 s"),
        (45, "45 s"),
        (59.7, "1 min"),
        (90, "1 min 30 s"),
        (725, "12 min"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (187_200, "2 d 4 h"),
        (86_400, "1 d"),
    ],
)
def test_durations_have_two_units(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (1234.5, "1,234"), (12.345, "12.3"), (0.5, "0.5"), (7.0, "7")])
def test_numbers_have_three_digits(value, text):
    assert format_number(value) == text


def test_large_values_fit_beside_the_axis():
    ticks = draw(lines([(0, 0), (1, 150_000)])).y_ticks

    assert [tick.label for tick in ticks] == ["0", "50k", "100k", "150k"]


def columns(*values, line=None, count=3):
    return ColumnChart(
        title="T",
        y_label="y",
        labels=[f"day {number}" for number in range(count)],
        series=[BarSeries(name=f"s{number}", values=part, style=number) for number, part in enumerate(values, 1)],
        line=line,
    )


def test_parts_of_a_column_are_stacked_without_gaps():
    drawing = draw(columns([1.0, 0.0, 2.0], [3.0, 4.0, None]))

    stack = [part for part in drawing.columns if part.x == drawing.columns[0].x]
    assert [part.style for part in stack] == [1, 2]
    assert stack[0].y + stack[0].height == drawing.bottom
    assert stack[1].y + stack[1].height == pytest.approx(stack[0].y)
    assert stack[1].y == drawing.top  # four of four
    assert len(drawing.columns) == 4  # nothing is drawn for no value


def test_line_above_the_columns_is_inside_the_plot():
    drawing = draw(columns([1.0, 1.0, 1.0], line=Curve(name="quota", style=0, points=[(0, 9), (1, 9), (2, 3)])))

    heights = [y for _, y in corners(drawing.curves[0].points)]
    assert drawing.top <= min(heights) and max(heights) <= drawing.bottom
    assert [entry.name for entry in drawing.legend] == ["s1", "quota"]


def test_labels_of_many_columns_are_thinned():
    assert len(draw(columns([1.0] * 31, count=31)).x_ticks) <= 7


def test_columns_as_csv_have_one_row_per_value():
    assert list(csv_rows(columns([1.0, None, 2.5])))[1:] == [
        ("s1", "day 0", "1"),
        ("s1", "day 1", ""),
        ("s1", "day 2", "2.5"),
    ]
