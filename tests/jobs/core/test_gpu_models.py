import pytest

from acmeweb.common.errors import InvalidField
from jobs.core.gpu_models import accepts_model, gpu_models, models_text, read_gpu_models


@pytest.mark.parametrize(
    ("requested", "models", "text"),
    [
        ("", (), ""),
        ("h100", ("h100",), "h100"),
        ("h100|a100", ("h100", "a100"), "h100 or a100"),
        ("h100|a100|l40s", ("h100", "a100", "l40s"), "h100, a100 or l40s"),
    ],
    ids=["any", "one", "two", "three"],
)
def test_models_are_listed_in_order_of_preference(requested, models, text):
    assert gpu_models(requested) == models
    assert models_text(requested) == text


@pytest.mark.parametrize(
    ("requested", "model", "accepted"),
    [("", "a100", True), ("", "", True), ("h100|a100", "a100", True), ("h100|a100", "a10", False), ("h100", "", False)],
    ids=["any", "any-unknown", "second", "part-of-a-name", "unknown"],
)
def test_request_accepts_only_the_models_that_it_names(requested, model, accepted):
    assert accepts_model(requested, model) is accepted


def test_spaces_around_the_separator_are_dropped():
    assert read_gpu_models("gpu_model", "h100 | a100") == "h100|a100"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("h100|", "'' is not a valid GPU model"),
        ("|", "'' is not a valid GPU model"),
        ("h100|a/b", "'a/b' is not a valid GPU model"),
        ("h100|h100", "h100 is named twice"),
        ("a|b|c|d|e", "has 5 models, more than the 4 allowed"),
        ("x" * 41, "is not a valid GPU model"),
        (7, "is a number, not text"),
    ],
    ids=["trailing", "empty", "slash", "twice", "many", "long", "number"],
)
def test_invalid_model_is_named(value, why):
    with pytest.raises(InvalidField) as error:
        read_gpu_models("gpu_model", value)

    assert why in str(error.value)
