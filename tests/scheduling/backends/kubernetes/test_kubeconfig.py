"""Kubeconfig files: what is supported, and what is refused."""

import base64

import pytest
import yaml

from acmeweb.common.errors import InvalidInput
from scheduling.backends.base import ClusterUnreachable
from scheduling.backends.kubernetes.connection.access import KubernetesAddress, load_connection
from scheduling.backends.kubernetes.connection.kubeconfig import Secret, parse_kubeconfig


def config(user=None, cluster=None, **more):
    values = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://api.example:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    return yaml.safe_dump({**values, **more})


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def test_token_and_ca_are_read():
    access = parse_kubeconfig(
        config({"token": "t0ken"}, {"certificate-authority-data": encoded("PEM"), "tls-server-name": "api"})
    )

    assert (access.server, access.server_name) == ("https://api.example:6443", "api")
    assert (access.token, access.ca) == (Secret(value="t0ken"), Secret(value="PEM"))


def test_files_are_named_not_read():
    access = parse_kubeconfig(
        config(
            {"tokenFile": "/t", "client-certificate": "a.crt", "client-key": "a.key"}, {"certificate-authority": "ca"}
        )
    )

    secrets = (access.token, access.certificate, access.key, access.ca)
    assert [secret.path for secret in secrets] == ["/t", "a.crt", "a.key", "ca"]


def test_context_may_be_chosen():
    text = config(contexts=[{"name": "other", "context": {"cluster": "k"}}])

    assert parse_kubeconfig(text, "other").token == Secret()
    with pytest.raises(InvalidInput, match="does not contain the context 'c'"):
        parse_kubeconfig(text)


@pytest.mark.parametrize(
    ("user", "cluster", "message"),
    [
        ({"exec": {"command": "aws"}}, None, "exec plugins are not supported"),
        ({"auth-provider": {"name": "oidc"}}, None, "auth-provider plugins are not supported"),
        ({"username": "admin", "password": "x"}, None, "passwords are not supported"),
        ({"as": "admin"}, None, "impersonation is not supported"),
        (None, {"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify is not supported"),
        (None, {"proxy-url": "http://proxy"}, "proxy-url is not supported"),
        (None, {"server": "ftp://host"}, "not an address such as https"),
        (None, {"server": "https://user:pw@host"}, "not an address such as https"),
        (None, {"server": "https://host:99999999"}, "not an address such as https"),
        (None, {"certificate-authority-data": "%%%"}, "invalid certificate-authority-data"),
        ({"token": ["a"]}, None, "invalid token"),
        ({"token": "a\r\nX-Header: b"}, None, "invalid token"),
    ],
    ids=[
        *("exec", "auth-provider", "password", "impersonation", "no TLS check", "proxy"),
        *("scheme", "user in address", "port", "base64", "list", "header injection"),
    ],
)
def test_unsupported_kubeconfig_is_refused_with_one_sentence(user, cluster, message):
    with pytest.raises(InvalidInput, match=message) as refused:
        parse_kubeconfig(config(user, cluster))

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["", "seren-token-value", "[1, 2]", "{", "a: &x [1]\nb: *x", "kind: Pod", "[" * 3000],
    ids=["empty", "a token", "a list", "broken", "aliases", "another kind", "nested"],
)
def test_other_file_is_refused_without_showing_its_content(text):
    with pytest.raises(InvalidInput) as refused:
        parse_kubeconfig(text)

    assert "seren-token-value" not in str(refused.value)


def connection_to(server, user=None, **options):
    text = config(user or {"token": "t0ken"}, {"server": server})
    return load_connection(KubernetesAddress(kubeconfig="/k"), lambda path: text, **options)


@pytest.mark.parametrize("server", ["http://api.example:6443", "http://10.0.0.7:6443", "http://127.0.0.1.example"])
def test_token_is_not_sent_unencrypted_to_another_machine(server):
    with pytest.raises(ClusterUnreachable, match=r"would get it unencrypted; use https://"):
        connection_to(server)


@pytest.mark.parametrize(
    "server", ["https://api.example:6443", "http://localhost:6443", "http://127.0.0.1:6443", "http://[::1]:6443"]
)
def test_token_may_be_sent_encrypted_and_on_the_loopback(server):
    assert connection_to(server).token == "t0ken"


def test_server_without_a_token_and_the_bundled_cluster_may_use_plain_http():
    assert connection_to("http://api.example", {"client-key": ""}).token == ""
    assert connection_to("http://kalos:6443", plain_http=True).token == "t0ken"


def test_secrets_are_not_shown():
    assert "hush" not in repr(parse_kubeconfig(config({"token": "hush"})))
