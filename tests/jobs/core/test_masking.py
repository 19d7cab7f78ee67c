"""Masking of secrets in text, by name and by form."""

import pytest

from jobs.core.masking import MASK, is_secret_name, mask_secrets, mask_text, without_secrets


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "my_secret", "DbPassword", "AWS_CREDENTIALS"])
def test_secret_names_are_recognized(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "PATH", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "MONKEY"])
def test_other_names_are_not_secret(name):
    assert not is_secret_name(name)


def test_only_the_values_of_secret_names_are_masked():
    assert mask_secrets({"HF_TOKEN": "hf_abc", "NCCL_DEBUG": "INFO"}) == {"HF_TOKEN": MASK, "NCCL_DEBUG": "INFO"}


def test_empty_secret_stays_visible_as_empty():
    assert mask_secrets({"HF_TOKEN": ""}) == {"HF_TOKEN": ""}


def test_without_secrets_drops_name_and_value():
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
        ('HF_TOKEN="never closed', f"HF_TOKEN={MASK}"),
        ('HF_TOKEN="a\\"b" run', f"HF_TOKEN={MASK} run"),
        ("HF_TOKEN=abc'd'e run", f"HF_TOKEN={MASK} run"),
        ('bash -c "HF_TOKEN=abc" && run "x"', f'bash -c "HF_TOKEN={MASK}" && run "x"'),
        ('bash -c "HF_TOKEN=\\"a b\\" run"', f'bash -c "HF_TOKEN={MASK} run"'),
        ("ARGS='--api-key abc' run", f"ARGS='--api-key {MASK}' run"),
        ("--config HF_TOKEN=abc", f"--config HF_TOKEN={MASK}"),
        ("""curl -d '{"api_key": "abc", "n": 1}'""", f"""curl -d '{{"api_key": {MASK} "n": 1}}'"""),
        ("curl -H 'X-API-Key: abc' x", f"curl -H 'X-API-Key: {MASK}' x"),
        ("echo the key: value", "echo the key: value"),
        ("docker -v /secret_key:/mnt", "docker -v /secret_key:/mnt"),
    ],
)
def test_secrets_in_a_command_are_masked(command, shown):
    assert mask_text(command) == shown


HUGGING_FACE = "hf_" + "aB3" * 11
SHAPED = {
    "psql postgres://acme:p%40ss@db.lab:5432/x": f"psql postgres://acme:{MASK}@db.lab:5432/x",
    "redis-cli -u redis://:hunter2@valkey": f"redis-cli -u redis://:{MASK}@valkey",
    "git clone https://u:p@ss@git.lab/x": f"git clone https://u:{MASK}@git.lab/x",
    f"git clone https://{'a1' * 12}@git.lab/x": f"git clone https://{MASK}@git.lab/x",
    "curl -H 'Authorization: Bearer abc.def'": f"curl -H 'Authorization: Bearer {MASK}'",
    "curl -H 'Authorization: Basic dTpw'": f"curl -H 'Authorization: Basic {MASK}'",
    'curl -H "authorization:abcdef"': f'curl -H "authorization:{MASK}"',
    "echo bearer abcdefghij0123456789": f"echo bearer {MASK}",
    f"login {HUGGING_FACE}": f"login {MASK}",
    f"login --value={HUGGING_FACE}": f"login --value={MASK}",
    "x sk-proj-" + "aB3_" * 8: f"x {MASK}",
    "x ghp_" + "aB3x" * 9: f"x {MASK}",
    "x github_pat_" + "aB3x" * 9: f"x {MASK}",
    "x AKIA" + "ABCD" * 4: f"x {MASK}",
    "x glpat-" + "aB3x" * 5: f"x {MASK}",
    "x xoxb-123456-abcdef": f"x {MASK}",
    "x acme_" + "aB3x" * 10 + "abc": f"x {MASK}",
    "x acme_run_0vqrm34vg06.2." + "ab" * 16: f"x {MASK}",
    "x nvapi-" + "aB3x" * 8: f"x {MASK}",
    "x eyJhbGciOiJub25l.eyJzdWIiOiIxIn0.abc": f"x {MASK}",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nx": (
        f"-----BEGIN RSA PRIVATE KEY-----{MASK}-----END RSA PRIVATE KEY-----\nx"
    ),
    "-----BEGIN PRIVATE KEY-----\nabc": f"-----BEGIN PRIVATE KEY-----{MASK}",
}


@pytest.mark.parametrize("text", SHAPED)
def test_secret_is_recognized_by_its_form(text):
    assert mask_text(text) == SHAPED[text]
    assert mask_secrets({"PLAIN": text})["PLAIN"] == SHAPED[text]
    assert without_secrets({"PLAIN": text}) == {}


@pytest.mark.parametrize(
    "text",
    [
        "git clone ssh://git@git.lab/x && git clone https://ada@git.lab/x",
        "curl http://[::1]:8080/a@b http://host:8080/path",
        "pip install sk-learn-compatible-estimators-package",
        "python train.py --name hf_run --ckpt /data/acme_client_checkpoints_of_the_first_run/x",
        "the bearer of bad news, basic training",
        "git checkout 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "echo eyJ.abc AKIA eyJhbGci",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
    ],
)
def test_text_that_only_resembles_a_secret_is_not_masked(text):
    assert mask_text(text) == text
