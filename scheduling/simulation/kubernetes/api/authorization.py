"""Who a token belongs to, and what roles allow (RBAC). Pure."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, ObjectKey, value_at
from scheduling.simulation.kubernetes.store import ObjectStore

from .errors import forbidden
from .requests import ApiRequest, User
from .resources import SERVICE_ACCOUNTS

MASTERS, AUTHENTICATED, ALL_ACCOUNTS = "system:masters", "system:authenticated", "system:serviceaccounts"
ADMIN = User(name="kubernetes-admin", groups=(MASTERS, AUTHENTICATED))
RBAC_GROUP = "rbac.authorization.k8s.io"
MIN_TOKEN_S, DEFAULT_TOKEN_S, MAX_TOKEN_S = 600, 3600, 2**32


class Authenticator:
    """Issues tokens of service accounts, and names the user of a token."""

    def __init__(self, store: ObjectStore, secret: bytes, tokens: Mapping[str, User]) -> None:
        self._store, self._secret, self._tokens = store, secret, dict(tokens)

    def user(self, token: str, now: float) -> User | None:
        """The user of a token; None if it is unknown or has expired."""
        for known, user in self._tokens.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                return user
        return self._service_account(token, now)

    def issue(self, account: JsonObject, now: float, seconds: int) -> str:
        metadata = account["metadata"]
        claims = [metadata["namespace"], metadata["name"], metadata["uid"], int(now) + seconds]
        payload = urlsafe_b64encode(json.dumps(claims).encode()).decode()
        return f"{payload}.{self._signature(payload)}"

    def _service_account(self, token: str, now: float) -> User | None:
        payload, _, signature = token.rpartition(".")
        if not payload or not hmac.compare_digest(self._signature(payload).encode(), signature.encode()):
            return None
        namespace, name, uid, until = json.loads(urlsafe_b64decode(payload.encode()))
        account = self._store.get(ObjectKey(SERVICE_ACCOUNTS, namespace, name))
        if account is None or account["metadata"]["uid"] != uid or now >= until:
            return None
        groups = (ALL_ACCOUNTS, f"{ALL_ACCOUNTS}:{namespace}", AUTHENTICATED)
        return User(name=f"system:serviceaccount:{namespace}:{name}", groups=groups, uid=uid)

    def _signature(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode(), sha256).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Access:
    """What somebody wants to do, in the terms of RBAC."""

    verb: str
    group: str = ""
    resource: str = ""  # with its subresource, as in `pods/log`
    namespace: str = ""
    name: str = ""


def access_of(request: ApiRequest) -> Access:
    plural = request.resource.plural
    return Access(
        verb=request.verb,
        group=request.resource.group,
        resource=f"{plural}/{request.subresource}" if request.subresource else plural,
        namespace=request.namespace,
        name=request.name,
    )


class Authorizer:
    """Decides by the roles that the store contains at the time of the request."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def check(self, user: User, access: Access) -> None:
        """Raises ApiError if no role allows it."""
        if self.allows(user, access):
            return
        plural = access.resource.partition("/")[0]
        where = f' in the namespace "{access.namespace}"' if access.namespace else " at the cluster scope"
        why = (
            f'User "{user.name}" cannot {access.verb} resource "{access.resource}" in API group "{access.group}"{where}'
        )
        raise forbidden(f"{plural}.{access.group}" if access.group else plural, access.name, why)

    def allows(self, user: User, access: Access) -> bool:
        if MASTERS in user.groups:
            return True
        return any(_rule_allows(rule, access) for rule in self.rules(user, access.namespace))

    def rules(self, user: User, namespace: str) -> Iterator[JsonObject]:
        """The rules that apply to a user in a namespace, or cluster-wide without one."""
        yield from self._bound_rules("clusterrolebindings", "", user)
        if namespace:
            yield from self._bound_rules("rolebindings", namespace, user)

    def _bound_rules(self, bindings: str, namespace: str, user: User) -> Iterator[JsonObject]:
        for binding in self._store.objects(f"{bindings}.{RBAC_GROUP}", namespace):
            if any(_is_subject(subject, user) for subject in _objects(binding.object.get("subjects"))):
                yield from self._role_rules(binding.object.get("roleRef") or {}, namespace)

    def _role_rules(self, reference: JsonObject, namespace: str) -> Iterator[JsonObject]:
        is_cluster_role = reference.get("kind") == "ClusterRole"
        resource = "clusterroles" if is_cluster_role else "roles"
        key = ObjectKey(f"{resource}.{RBAC_GROUP}", "" if is_cluster_role else namespace, str(reference.get("name")))
        role = self._store.get(key)
        yield from _objects(role.get("rules") if role else None)


def _objects(values: Any) -> Iterable[JsonObject]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else ()


def _is_subject(subject: JsonObject, user: User) -> bool:
    match subject.get("kind"):
        case "User":
            return subject.get("name") == user.name
        case "Group":
            return subject.get("name") in user.groups
        case "ServiceAccount":
            return user.name == f"system:serviceaccount:{subject.get('namespace')}:{subject.get('name')}"
    return False


def _rule_allows(rule: JsonObject, access: Access) -> bool:
    names = value_at(rule, "resourceNames", default=[])
    return (
        _contains(rule.get("verbs"), access.verb)
        and _contains(rule.get("apiGroups"), access.group)
        and _contains_resource(rule.get("resources"), access.resource)
        and (not names or access.name in names)
    )


def _contains(values: Any, wanted: str) -> bool:
    return isinstance(values, list) and ("*" in values or wanted in values)


def _contains_resource(values: Any, wanted: str) -> bool:
    subresource = wanted.partition("/")[2]
    return _contains(values, wanted) or (bool(subresource) and _contains(values, f"*/{subresource}"))
