"""MIG profiles: what a slice counts, and which devices of a node are slices."""

import pytest

from jobs.core.gpu_shares import MIG_PROFILE, WHOLE_GPU, profile_milli, slice_devices, whole_gpus


@pytest.mark.parametrize(
    ("profile", "milli"),
    [
        ("1g.10gb", 142),
        ("1g.10gb.me", 142),
        ("2g.20gb", 285),
        ("3g.40gb", 428),
        ("4g.40gb", 571),
        ("7g.80gb", WHOLE_GPU - 1),
        ("1g.6gb", 250),
        ("4g.24gb", WHOLE_GPU - 1),
    ],
)
def test_slice_counts_its_part_of_the_compute(profile, milli):
    assert MIG_PROFILE.fullmatch(profile)
    assert profile_milli(profile) == milli


@pytest.mark.parametrize("profiles", [["1g.10gb"] * 7, ["3g.40gb", "4g.40gb"], ["2g.20gb"] * 3 + ["1g.10gb"]])
def test_slices_of_a_gpu_never_count_more_than_the_gpu(profiles):
    assert sum(map(profile_milli, profiles)) <= WHOLE_GPU


@pytest.mark.parametrize("text", ["", "gpu", "1g", "1g.10GB", "0g.10gb", "10g.5gb", "1g.10gb/x", "1g.10gb.", "1g.٣gb"])
def test_other_names_are_no_profiles(text):
    assert not MIG_PROFILE.fullmatch(text)


def test_slices_follow_the_whole_gpus_by_profile():
    slices = {"3g.40gb": 1, "1g.10gb": 2}

    assert slice_devices(5, slices) == {2: "1g.10gb", 3: "1g.10gb", 4: "3g.40gb"}
    assert whole_gpus(5, slices) == 2
    assert (slice_devices(3, slices), whole_gpus(3, slices)) == ({0: "1g.10gb", 1: "1g.10gb", 2: "3g.40gb"}, 0)
