import pytest

from scheduling.pages.why_waiting import conflicting_option


@pytest.mark.parametrize(
    ("command", "changes", "option"),
    [
        ("torchrun --nproc-per-node 8 train.py", {"gpus_per_node": "4"}, "--nproc-per-node 8"),
        ("torchrun --nproc_per_node=8 train.py", {"gpus_per_node": "4"}, "--nproc_per_node=8"),
        ("torchrun --nproc-per-node 4 train.py", {"gpus_per_node": "4"}, ""),
        ("torchrun --nnodes 4 train.py", {"nodes": "2"}, "--nnodes 4"),
        ("torchrun --nnodes $SLURM_NNODES train.py", {"nodes": "2"}, ""),
        ("torchrun --nproc-per-node 8 train.py", {"nodes": "2"}, ""),
    ],
)
def test_options_that_contradict_a_changed_request(command, changes, option):
    assert conflicting_option(command, changes) == option
