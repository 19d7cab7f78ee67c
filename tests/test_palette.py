"""The colors of the style sheet: readable in both themes, and distinguishable by color-blind readers."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

CSS = (Path(__file__).parents[1] / "static" / "app.css").read_text()
COLORS = {name: pair for name, *pair in re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", CSS)}
THEMES = {"light": 0, "dark": 1}
TONES = ("waiting", "running", "starting", "good", "warn", "bad", "quiet", "drain")
SURFACES = ("panel", "ground", "stripe", "raised")
SERIES = [f"series-{number}" for number in range(6)]
# Linear RGB as people without one kind of cone see it, at full severity (Machado, Oliveira and Fernandes 2009)
BLINDNESS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.089)
LEAST_DIFFERENCE = 8  # CIE76; 2.3 is just noticeable side by side


def linear(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def times(matrix, vector):
    return [sum(factor * part for factor, part in zip(row, vector, strict=True)) for row in matrix]


def contrast(one, other):
    """Return the contrast ratio of WCAG 2."""
    light, dark = sorted((times(TO_XYZ, linear(color))[1] for color in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(color, blindness):
    seen = [min(1, max(0, part)) for part in times(BLINDNESS[blindness], linear(color))]
    x, y, z = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
        for part in (part / white for part, white in zip(times(TO_XYZ, seen), WHITE, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def shown(name, theme):
    return COLORS[name][THEMES[theme]]


@pytest.mark.parametrize("theme", THEMES)
def test_text_is_readable_on_every_surface(theme):
    on = [(text, surface) for text in ("text", "muted", "link", *TONES, *SERIES) for surface in SURFACES]
    on += [(tone, f"{tone}-tint") for tone in TONES] + [("muted", "running-tint"), ("muted", "quiet-tint")]
    ratios = {pair: contrast(*(shown(name, theme) for name in pair)) for pair in on}

    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_graphics_and_borders_of_fields_stand_out_from_a_panel(theme):
    ratios = {
        name: contrast(shown(name, theme), shown("panel", theme))
        for name in ["edge", *(f"{tone}-fill" for tone in TONES)]
    }

    assert {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < 3} == {}


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("theme", THEMES)
def test_lines_of_a_chart_can_be_told_apart(theme, blindness):
    points = {name: lab(shown(name, theme), blindness) for name in SERIES}
    apart = {
        pair: sum((a - b) ** 2 for a, b in zip(points[pair[0]], points[pair[1]], strict=True)) ** 0.5
        for pair in combinations(SERIES, 2)
    }

    assert {pair: round(distance, 1) for pair, distance in apart.items() if distance < LEAST_DIFFERENCE} == {}


def test_font_sizes_come_from_the_scale():
    assert re.findall(r"font(?:-size)?: [\d.]+(?:rem|px)[^;]*", CSS) == ["font-size: 16px"]
