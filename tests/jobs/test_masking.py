import pytest

from jobs.masking import MASK, is_secret, masked, masked_command, without_secrets


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "my_secret", "DbPassword", "AWS_CREDENTIALS"])
def test_a_name_that_looks_secret_is_secret(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "PATH", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "MONKEY"])
def test_other_names_are_not(name):
    assert not is_secret(name)


def test_only_the_values_of_secret_names_are_masked():
    assert masked({"HF_TOKEN": "hf_abc", "NCCL_DEBUG": "INFO"}) == {"HF_TOKEN": MASK, "NCCL_DEBUG": "INFO"}


def test_an_empty_secret_is_shown_to_be_empty():
    assert masked({"HF_TOKEN": ""}) == {"HF_TOKEN": ""}


def test_without_secrets_leaves_out_name_and_value():
    assert without_secrets({"HF_TOKEN": "hf_abc", "A": "1"}) == {"A": "1"}


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("export HF_TOKEN=hf_abc; run", f"export HF_TOKEN={MASK}; run"),
        ('WANDB_API_KEY="a b" python x.py', f"WANDB_API_KEY={MASK} python x.py"),
        ("curl --api-key abc https://x", f"curl --api-key {MASK} https://x"),
        ("curl --password='p w' x", f"curl --password={MASK} x"),
        ("run --tokenizer-key --fast", "run --tokenizer-key --fast"),
        ("python tokenize.py --steps 5", "python tokenize.py --steps 5"),
        ("echo my key words", "echo my key words"),
        ("gen --max-tokens 4096 --tokenizer /p", "gen --max-tokens 4096 --tokenizer /p"),
    ],
)
def test_secrets_inside_a_command(command, shown):
    assert masked_command(command) == shown
