"""Lists, pages of lists, and single objects. Pure."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.simulation.kubernetes.objects import JsonObject, ObjectKey
from scheduling.simulation.kubernetes.store import ObjectStore, StoredObject, VersionExpired

from .errors import bad_request, expired, not_found
from .requests import ApiRequest, int_query
from .resources import ResourceType
from .selectors import object_matcher

CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without"
    " the continue parameter."
)


@dataclass(frozen=True, kw_only=True)
class ListPage:
    """The objects of one page, and what is needed to ask for the next one."""

    objects: Sequence[StoredObject]
    version: int
    next_page: str = ""
    remaining: int = 0

    @property
    def metadata(self) -> JsonObject:
        more = {"continue": self.next_page, "remainingItemCount": self.remaining} if self.next_page else {}
        return {"resourceVersion": str(self.version), **more}


def list_page(store: ObjectStore, request: ApiRequest) -> ListPage:
    """One page of a list. All pages of a list show the version of the first one. Raises ApiError."""
    limit = int_query(request.query, "limit") or 0
    version, after = _parse_continue(request.query.get("continue", ""))
    objects = _objects(store, request, version)
    if after is not None:
        objects = [found for found in objects if _place(found) > after]
    rest = len(objects) - limit if limit else 0
    version = version or store.version
    if rest <= 0:
        return ListPage(objects=objects, version=version)
    page = objects[:limit]
    return ListPage(objects=page, version=version, next_page=_continue_text(version, _place(page[-1])), remaining=rest)


def _objects(store: ObjectStore, request: ApiRequest, version: int) -> list[StoredObject]:
    selects = object_matcher(
        request.resource.id, request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
    )
    try:
        objects = (
            store.objects_at(request.resource.id, request.namespace, version)
            if version
            else store.objects(request.resource.id, request.namespace)
        )
    except VersionExpired:
        raise expired(CONTINUE_EXPIRED) from None
    return objects if selects is None else [found for found in objects if selects(found.object)]


def _place(found: StoredObject) -> tuple[str, str]:
    metadata = found.object["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _continue_text(version: int, after: tuple[str, str]) -> str:
    return urlsafe_b64encode(json.dumps({"rv": version, "after": after}).encode()).decode()


def _parse_continue(text: str) -> tuple[int, tuple[str, str] | None]:
    if not text:
        return 0, None
    try:
        token = json.loads(urlsafe_b64decode(text.encode()))
        namespace, name = token["after"]
        return int(token["rv"]), (str(namespace), str(name))
    except (ValueError, LookupError, TypeError):
        raise bad_request("continue key is not valid: it was not returned by this server") from None


def list_text(resource: ResourceType, page: ListPage) -> bytes:
    """The list as JSON. The texts of the objects are reused, because there are many and few change."""
    head = json.dumps(
        {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": page.metadata},
        separators=(",", ":"),
    )
    items = b",".join(found.text for found in page.objects)
    return head[:-1].encode() + b',"items":[' + items + b"]}"


def object_text(resource: ResourceType, text: bytes) -> bytes:
    """A single object has its kind and version, which the objects in a list do not have."""
    return f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}",'.encode() + text[1:]


def with_kind(resource: ResourceType, found: JsonObject) -> JsonObject:
    return {"kind": resource.kind, "apiVersion": resource.api_version, **found}


def find_object(store: ObjectStore, key: ObjectKey) -> StoredObject:
    """Raises ApiError if it does not exist."""
    found = store.stored(key)
    if found is None:
        raise not_found(key.resource, key.name)
    return found
