"""Changes since yesterday in words."""

import pytest

from jobs.core.charts.trends import change_text


@pytest.mark.parametrize(
    ("value", "before", "unit", "text"),
    [
        (95, 87.6, "%", "▲ 7 points"),
        (87, 88.4, "%", "▼ 1 point"),
        (1240, 6, "", "▲ 1,234"),
        (3, 3.2, "", "no change"),
        (None, 3, "", ""),
        (3, None, "%", ""),
        (0, 0, "", "no change"),
    ],
)
def test_change_names_direction_size_and_unit(value, before, unit, text):
    assert change_text(value, before, unit) == text
