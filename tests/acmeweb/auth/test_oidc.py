"""Sign-in at a provider, with real signatures; ada uses the provider, mallory attacks."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import threading
import time
import uuid
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from django.contrib.auth import get_user_model
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from acmeweb.auth import oidc
from acmeweb.common.env import EnvReader, InvalidEnvSetting, OidcSettings
from jobs.models import Event, Identity, Membership
from tests import make

pytestmark = pytest.mark.django_db

ISSUER = "https://id.example.org"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
OTHER = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
ASKED = OidcSettings(
    issuer=ISSUER,
    client_id="acme",
    client_secret="s3cret",
    new_users="create",
    teams=(("llm", "pretraining", "researcher"), ("leads", "pretraining", "admin"), ("llm", "evaluation", "viewer")),
)


class FakeProvider:
    """A fake provider: signs in any user, and records what came with the code."""

    def __init__(self, issuer):
        self.issuer = issuer
        self.claims = {"sub": "u-1", "preferred_username": "ada", "email": "ada@example.org", "groups": ["llm"]}
        self.change, self.key, self.exchanged, self.nonces, self.challenge = {}, KEY, [], {}, ""
        self.header = {"alg": "RS256", "kid": "one"}
        self.away, self.more, self.jwks, self.answers = False, {}, [KEY], {}

    def __call__(self, request):
        path = request.url.path.removeprefix(urlsplit(self.issuer).path)
        if path in self.answers:
            return self.answers[path]
        match path:
            case "/.well-known/openid-configuration":
                names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
                there = {name: f"{self.issuer}/{name}" for name in names}
                return httpx.Response(200, json={"issuer": self.issuer, **there, **self.more})
            case "/jwks_uri":
                return httpx.Response(200, json={"keys": [key.as_dict(private=False) for key in self.jwks]})
            case "/token_endpoint":
                form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
                self.exchanged.append((form, request.headers.get("Authorization", "")))
                now = int(time.time())
                claims = {"iss": self.issuer, "aud": "acme", "iat": now, "exp": now + 300, **self.claims}
                claims |= {"nonce": self.nonces.get(form["code"])} | self.change
                return httpx.Response(200, json={"id_token": jwt.encode(self.header, claims, self.key)})
        return httpx.Response(404)

    def sign_in(self, address):
        """The page of the provider, which redirects back with a code."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        self.nonces["code-1"], self.challenge = asked["nonce"], asked["code_challenge"]
        return {"state": asked["state"], "code": "code-1"}


class ProviderHandler(BaseHTTPRequestHandler):
    """Answers as the fake provider of its server does; not at all while it is away."""

    def do_GET(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fake = self.server.fake
        if fake.away:
            return
        url = f"http://{self.headers['Host']}{self.path}"
        answer = fake(httpx.Request(self.command, url, headers=dict(self.headers), content=content))
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def there(settings):
    with ThreadingHTTPServer(("127.0.0.1", 0), ProviderHandler) as server:
        # Metadata of an issuer is cached, and ports are used again
        server.fake = FakeProvider(f"http://127.0.0.1:{server.server_port}/{uuid.uuid4().hex}")
        settings.OIDC = replace(ASKED, issuer=server.fake.issuer)
        make.team("pretraining")
        make.team("evaluation")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.fake
        finally:
            server.shutdown()
            thread.join()


def sign_in(client, fake, after="/jobs/"):
    begun = client.get("/login/oidc/", {"next": after})
    return client.get("/login/oidc/back/", fake.sign_in(begun["Location"]))


def said(client):
    return client.get("/login/").content.decode()


def user_of(client):
    return client.session.get("_auth_user_id")


def test_complete_sign_in_ends_at_the_requested_page(client, there):
    answer = sign_in(client, there)

    assert answer["Location"] == "/jobs/"
    ada = get_user_model().objects.get(username="ada")
    assert user_of(client) == str(ada.pk)
    assert not ada.has_usable_password() and not ada.is_staff
    assert Identity.objects.get().subject == "u-1"


def test_the_code_goes_with_the_verifier_of_its_challenge_and_our_secret(client, there):
    sign_in(client, there)

    form, secret = there.exchanged[0]
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == there.challenge
    assert secret.startswith("Basic ")


def test_roles_follow_groups_with_an_event(client, there):
    make.team("speech", ada="viewer")
    get_user_model().objects.filter(username="ada").update(password="!x")
    there.claims["groups"] = ["llm", "leads", "others"]

    sign_in(client, there)
    given = dict(Membership.objects.values_list("team__name", "role"))
    there.claims["groups"] = []
    sign_in(client, there)

    assert given == {"pretraining": "admin", "evaluation": "viewer", "speech": "viewer"}
    assert dict(Membership.objects.values_list("team__name", "role")) == {"speech": "viewer"}
    assert Event.objects.filter(type="team.role_changed").count() == 4


def test_user_with_a_new_name_at_the_provider_stays_the_same_user(client, there):
    sign_in(client, there)
    there.claims["preferred_username"] = "ada.lovelace"

    sign_in(client, there)

    assert get_user_model().objects.exclude(username="admin").count() == 1


WRONG = {
    "another issuer": {"iss": "https://evil.example"},
    "another audience": {"aud": "other"},
    "many audiences without a word for us": {"aud": ["acme", "other"]},
    "many audiences with a word for another": {"aud": ["acme", "other"], "azp": "other"},
    "no audience": {"aud": []},
    "expired": {"exp": 1},
    "no expiry": {"exp": None},
    "an expiry that is no number": {"exp": float("nan")},
    "an expiry without a time": {"exp": True},
    "no time of issue": {"iat": None},
    "from the future": {"iat": 2**40},
    "not yet": {"nbf": 2**40},
    "another nonce": {"nonce": "x"},
    "no nonce": {"nonce": None},
    "no subject": {"sub": ""},
    "a subject that is no text": {"sub": 7},
    "no name": {"preferred_username": None},
    "a name of control characters": {"preferred_username": "a\x1b[2J"},
    "an endless name": {"preferred_username": "a" * 151},
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_claims_are_refused(name, client, there):
    there.change = WRONG[name]

    answer = sign_in(client, there)

    assert answer["Location"] == "/login/" and user_of(client) is None
    assert not get_user_model().objects.filter(username="ada").exists()


def test_foreign_signature_is_refused(client, there):
    there.key = OTHER

    sign_in(client, there)

    assert user_of(client) is None
    assert "ID token is not valid." in said(client)


def test_a_token_without_a_signature_or_signed_with_the_shared_secret_is_refused(client, there):
    known = oidc.configured_provider()
    unsigned = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b'{"alg":"none"}', b"{}", b""))

    for raw in (unsigned, "x", "", "a.b.c"):
        with pytest.raises(oidc.SignInError):
            oidc.verified_claims(known, raw, "n")


def test_token_signed_with_our_own_secret_is_refused(client, there):
    there.header, there.key = {"alg": "HS256", "kid": "one"}, OctKey.import_key(ASKED.client_secret * 8)

    sign_in(client, there)

    assert user_of(client) is None
    assert "ID token is not valid." in said(client)


def test_key_that_the_provider_added_after_the_last_sign_in_is_accepted(client, there):
    sign_in(client, there)
    client.post("/logout/")
    there.key = RSAKey.generate_key(2048, {"kid": "two", "use": "sig", "alg": "RS256"})
    there.jwks, there.header = [KEY, there.key], {"alg": "RS256", "kid": "two"}

    sign_in(client, there)

    assert user_of(client)


def test_clocks_may_differ_by_a_minute(client, there):
    now = int(time.time())
    there.change = {"iat": now + 30, "nbf": now + 30, "exp": now - 30, "aud": ["acme", "other"], "azp": "acme"}

    sign_in(client, there)

    assert user_of(client)


DISCOVERY = "/.well-known/openid-configuration"
UNUSABLE_ANSWERS = {
    "a redirect": httpx.Response(307, headers={"Location": "https://evil.example/"}),
    "too large": httpx.Response(200, content=b'"' + b"x" * oidc.MAX_ANSWER_BYTES + b'"'),
    "nested too deeply": httpx.Response(200, content=b"[" * 100_000),
    "no JSON": httpx.Response(200, content=b"<html>"),
    "no object": httpx.Response(200, json=[]),
    "no addresses": httpx.Response(200, json={"issuer": ISSUER}),
}


@pytest.mark.parametrize("name", UNUSABLE_ANSWERS)
@pytest.mark.parametrize("path", [DISCOVERY, "/token_endpoint", "/jwks_uri"])
def test_unusable_answer_of_the_provider_ends_the_sign_in_with_a_sentence(path, name, client, there):
    begun = client.get("/login/oidc/") if path != DISCOVERY else None
    there.answers = {path: UNUSABLE_ANSWERS[name]}

    answer = client.get("/login/oidc/back/", there.sign_in(begun["Location"])) if begun else client.get("/login/oidc/")

    assert answer["Location"] == "/login/" and user_of(client) is None
    assert "provider" in said(client)


def test_answer_that_drips_is_given_up(there):
    def drip():
        yield b" "
        clock["now"] += oidc.PROVIDER_TIMEOUT_S + 1
        yield b"{}"

    clock = {"now": 0.0}

    with pytest.raises(ValueError, match=f"{oidc.PROVIDER_TIMEOUT_S} s"):
        oidc.limited_body(httpx.Response(200, content=drip()), monotonic=lambda: clock["now"])


def test_callback_of_another_browser_is_refused(client, there):
    begun = client.get("/login/oidc/")
    back = there.sign_in(begun["Location"])
    other = client.__class__()

    other.get("/login/oidc/back/", back)
    client.get("/login/oidc/back/", {**back, "state": "made-up"})

    assert user_of(other) is None and user_of(client) is None
    assert not there.exchanged


def test_callback_is_valid_once(client, there):
    begun = client.get("/login/oidc/")
    back = there.sign_in(begun["Location"])
    client.get("/login/oidc/back/", back)
    client.post("/logout/")

    client.get("/login/oidc/back/", back)

    assert user_of(client) is None


@pytest.mark.parametrize("after", ["https://evil.example/", "//evil.example", "javascript:alert(1)", ""])
def test_redirect_to_another_site_is_ignored(after, client, there):
    assert sign_in(client, there, after)["Location"] == "/"


@pytest.mark.parametrize("fields", [{}, {"password": "!x", "is_staff": True}, {"password": "!x", "is_superuser": True}])
def test_matching_name_does_not_open_an_existing_account(fields, client, there):
    ada = make.user("ada")
    get_user_model().objects.filter(pk=ada.pk).update(**fields)

    sign_in(client, there)

    assert user_of(client) is None
    assert "belongs to a user with another sign-in" in said(client)


def test_only_prepared_users_sign_in_if_new_users_are_refused(client, there, settings):
    settings.OIDC = replace(settings.OIDC, new_users="refuse")

    sign_in(client, there)
    assert "User ada does not exist here" in said(client)

    prepared = get_user_model()(username="ada")
    prepared.set_unusable_password()
    prepared.save()
    sign_in(client, there)
    assert user_of(client) == str(prepared.pk)


def test_sign_in_that_is_refused_to_a_known_user_is_recorded(client, there):
    get_user_model().objects.create_user("ada", password="a sentence nobody guesses")

    sign_in(client, there)

    event = Event.objects.get()
    assert (event.type, event.by, event.source) == ("login.failed", "ada", "127.0.0.1")
    assert "another sign-in" in event.why


def test_deactivated_user_cannot_sign_in(client, there):
    sign_in(client, there)
    client.post("/logout/")
    get_user_model().objects.update(is_active=False)

    sign_in(client, there)

    assert user_of(client) is None


def test_unavailable_provider_is_reported_and_passwords_still_work(client, there):
    there.away = True

    assert client.get("/login/oidc/")["Location"] == "/login/"
    assert "The provider is not responding correctly" in said(client)


def test_sign_in_page_does_not_exist_without_a_provider(client, settings):
    settings.OIDC = None

    assert client.get("/login/oidc/").status_code == 404
    assert "Sign in with" not in said(client)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"OIDC_ISSUER": "http://id.example.org"}, "OIDC_ISSUER"),
        ({"OIDC_CLIENT_ID": ""}, "OIDC_CLIENT_ID"),
        ({"OIDC_NEW_USERS": "everybody"}, "OIDC_NEW_USERS"),
        ({"OIDC_TEAMS": "llm=pretraining"}, "OIDC_TEAMS"),
        ({"OIDC_TEAMS": "llm=pretraining:owner"}, "OIDC_TEAMS"),
    ],
)
def test_invalid_setting_is_named(more, named):
    with pytest.raises(InvalidEnvSetting) as refused:
        EnvReader({"OIDC_ISSUER": ISSUER, "OIDC_CLIENT_ID": "acme", **more}).oidc()

    assert refused.value.name == named


def test_groups_of_the_environment_are_read():
    found = EnvReader(
        {"OIDC_ISSUER": ISSUER, "OIDC_CLIENT_ID": "a", "OIDC_TEAMS": "/llm=vision:operator, x=y:viewer"}
    ).oidc()

    assert found and found.teams == (("/llm", "vision", "operator"), ("x", "y", "viewer"))


def way_out(page):
    """Return the URL to which the page redirects; its link has the same."""
    found = re.search(r'http-equiv="refresh" content="\d+;url=([^"]+)"', page)
    address = html.unescape(found[1])
    assert f'href="{found[1]}"' in page
    return address.partition("?")[0], {name: one[0] for name, one in parse_qs(urlsplit(address).query).items()}


def test_sign_out_also_ends_the_session_at_the_provider(client, there):
    there.more = {"end_session_endpoint": f"{there.issuer}/leave"}
    sign_in(client, there)

    page = client.post("/logout/").content.decode()

    address, asked = way_out(page)
    assert address == f"{there.issuer}/leave"
    assert (asked["client_id"], asked["post_logout_redirect_uri"]) == ("acme", "http://testserver/login/")
    assert jwt.decode(asked["id_token_hint"], KEY).claims["sub"] == "u-1"
    assert user_of(client) is None


@pytest.mark.parametrize("address", [None, "", 7, "javascript:alert(1)"])
def test_provider_without_a_usable_sign_out_url_is_skipped(client, there, address):
    there.more = {"end_session_endpoint": address}
    sign_in(client, there)

    answer = client.post("/logout/")

    assert (answer.status_code, answer["Location"]) == (302, "/login/")
    assert user_of(client) is None


def test_sign_out_works_with_a_password_and_with_an_unavailable_provider(client, there):
    there.more = {"end_session_endpoint": f"{there.issuer}/leave"}
    client.force_login(make.user("bob"))
    assert client.post("/logout/")["Location"] == "/login/"

    sign_in(client, there)
    oidc.configured_provider().cache.clear()
    there.away = True

    assert client.post("/logout/")["Location"] == "/login/"
    assert user_of(client) is None


def test_link_cannot_sign_a_user_out(client, there):
    sign_in(client, there)

    assert client.get("/logout/").status_code == 405
    assert user_of(client)
