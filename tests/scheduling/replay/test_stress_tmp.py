import pytest

from tests.scheduling.replay.test_doors import RANKING_POLICIES, SETTING, both_doors, crowded_trace


@pytest.mark.django_db
@pytest.mark.parametrize("policy", RANKING_POLICIES)
def test_stress(policy):
    bad = []
    for seed in (0, 4):
        trace = crowded_trace(seed)
        live, replayed = both_doors(trace, policy, SETTING)
        diff = next(((n, a, b) for n, (a, b) in enumerate(zip(live, replayed)) if a != b), None)
        bad.append(
            (
                policy,
                seed,
                len(live),
                len(replayed),
                diff,
                live[max(0, diff[0] - 3) : diff[0] + 3] if diff else "",
                replayed[max(0, diff[0] - 3) : diff[0] + 3] if diff else "",
            )
        )
    for one in bad:
        print(*one)
    assert 0
