"""The websocket of a page: authentication, topics and messages."""

import asyncio
import json

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.auth import AuthMiddlewareStack
from channels.db import database_sync_to_async  # returns the database connection of its thread
from channels.layers import get_channel_layer
from django.contrib.auth.models import AnonymousUser

from acmeweb.common.live import channel_group
from acmeweb.updates import subscriptions
from acmeweb.updates.consumers import MAX_SOCKETS_PER_USER, MAX_TOPICS, LiveConsumer, open_sockets
from tests import make
from tests.failures import make as failures
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def one_process(settings):
    """Messages stay in this process, and topic numbers are unknown: the page reloads at its first message."""
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.VALKEY_URL = ""


class Socket(ApplicationCommunicator):
    """The browser's side. (The one of channels.testing needs another web server.)"""

    def __init__(self, user):
        super().__init__(LiveConsumer.as_asgi(), {"type": "websocket", "user": user})

    async def receive_output(self, timeout=PATIENCE_S):
        return await super().receive_output(timeout)

    async def say(self, *, text=None, data=None):
        await self.send_input({"type": "websocket.receive", "text": text, "bytes": data})

    async def join(self, *topics):
        await self.say(text=json.dumps({"join": topics}))

    async def hear(self):
        return json.loads((await self.receive_output())["text"])

    async def leave(self):
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait()


async def opened(user):
    socket = Socket(user)
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output())["type"] == "websocket.accept"
    return socket


class SignedIn(Socket):
    """Return the scope's session from a browser's cookie."""

    def __init__(self, cookie, **limits):
        headers = [(b"cookie", f"sessionid={cookie}".encode()), (b"host", b"testserver")]
        scope = {"type": "websocket", "path": "/live/", "headers": headers, "query_string": b"", "subprotocols": []}
        ApplicationCommunicator.__init__(self, AuthMiddlewareStack(LiveConsumer.as_asgi(**limits)), scope)


async def ada():
    return await database_sync_to_async(make.user)("ada")


async def tell(topic, number):
    await get_channel_layer().group_send(channel_group(topic), {"type": "topic.moved", "topic": topic, "seq": number})


async def test_anonymous_socket_is_closed_as_signed_out():
    socket = await opened(AnonymousUser())

    assert await socket.receive_output() == {"type": "websocket.close", "code": 4401}


def signs_out(client, user):
    client.logout()


def is_switched_off(client, user):
    user.is_active = False
    user.save()


def has_another_password(client, user):
    user.set_password("another of her own")
    user.save()


@pytest.mark.parametrize("leave", [signs_out, is_switched_off, has_another_password])
async def test_socket_closes_at_the_next_check_after_the_session_ends(client, leave):
    user = await ada()
    await database_sync_to_async(client.force_login)(user)
    socket = SignedIn(client.cookies["sessionid"].value, session_recheck_s=0.01)
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output())["type"] == "websocket.accept"
    await socket.join("queue")
    await socket.hear()

    await database_sync_to_async(leave)(client, user)

    assert await socket.receive_output() == {"type": "websocket.close", "code": 4401}


async def test_page_joins_its_topics_and_is_notified_of_changes():
    socket = await opened(await ada())

    await socket.join("queue", "nodes")
    assert await socket.hear() == {"joined": {"queue": 0, "nodes": 0}}

    await tell("queue", 7)
    assert await socket.hear() == {"topic": "queue", "seq": 7}
    await socket.leave()


async def test_page_gets_no_messages_of_other_topics():
    socket = await opened(await ada())
    await socket.join("queue")
    await socket.hear()

    await tell("nodes", 1)

    assert await socket.receive_nothing()
    await socket.leave()


@pytest.mark.parametrize("person", ["ada", "ben"])
async def test_only_the_team_of_a_job_may_join_its_topic(person):
    await database_sync_to_async(make.team)("evaluation", ben="researcher")
    job = await database_sync_to_async(make.job)(by="ada")
    socket = await opened(await database_sync_to_async(make.user)(person))

    await socket.join(f"job:{job.public_id}")

    joined = (await socket.hear())["joined"]
    assert bool(joined) == (person == "ada")
    await socket.leave()


@pytest.mark.parametrize("topic", ["everything", "job:", "job:../../x", "node:abc", "job:01k3v9q2m7t\n", 7, None])
async def test_unknown_topic_is_ignored(topic):
    socket = await opened(await ada())

    await socket.join(topic, "queue")

    assert await socket.hear() == {"joined": {"queue": 0}}
    await socket.leave()


@pytest.mark.parametrize(
    "sent",
    [
        {"text": "{"},
        {"text": ""},
        {"text": "[" * 100_000},
        {"text": '"join"'},
        {"text": '{"join": "queue"}'},
        {"text": '{"leave": []}'},
        {"data": b"\xff\xfe"},
    ],
)
async def test_invalid_message_closes_the_socket(sent):
    socket = await opened(await ada())

    await socket.say(**sent)

    assert await socket.receive_output() == {"type": "websocket.close", "code": 4400}
    await socket.wait()


@pytest.mark.parametrize("messages", [[["queue"] * (MAX_TOPICS + 1)], [[f"x{n}" for n in range(50)], ["queue"]]])
async def test_too_many_topics_close_the_socket_with_a_sentence(messages):
    socket = await opened(await ada())
    for names in messages[:-1]:
        await socket.join(*names)
        await socket.hear()

    await socket.join(*messages[-1])

    closed = {"type": "websocket.close", "code": 4400, "reason": "A page may show at most 50 topics."}
    assert await socket.receive_output() == closed
    await socket.wait()


async def test_user_with_too_many_sockets_is_refused_until_one_closes():
    user, other = await ada(), await database_sync_to_async(make.user)("ben")
    sockets = [await opened(user) for _ in range(MAX_SOCKETS_PER_USER)]

    refused = await opened(user)
    reason = f"More than {MAX_SOCKETS_PER_USER} pages are open."
    assert await refused.receive_output() == {"type": "websocket.close", "code": 4429, "reason": reason}
    await refused.leave()
    sockets += [await opened(other)]
    await sockets.pop(0).leave()
    sockets += [await opened(user)]

    for socket in sockets:
        await socket.leave()
    assert user.pk not in open_sockets


def test_permissions_of_many_topics_take_one_query_for_each_kind(django_assert_num_queries):
    user = make.user("ada")
    make.team("evaluation", ben="researcher")
    own, foreign = make.job(by="ada"), make.job(by="ben")
    consumer = LiveConsumer()
    consumer.scope = {"user": user}
    jobs = {own.public_id, foreign.public_id, "0000000000a"}

    with django_assert_num_queries(2):
        seen = consumer.visible_keys({"job": jobs, "campaign": {"0000000000b", "0000000000c"}})

    assert seen == {"job": {own.public_id}, "campaign": set()}


async def test_incident_topic_is_open_to_the_affected_teams(tmp_path):
    died = await database_sync_to_async(failures.diagnosed)(tmp_path, by="ada")
    topic = f"incident:{died.incident_id}"
    mine, other = await opened(await ada()), await opened(await database_sync_to_async(make.user)("ben"))

    await mine.join(topic, "failures", "incident:999999")
    await other.join(topic, "failures")

    assert (await mine.hear())["joined"] == {topic: 0, "failures": 0}
    assert (await other.hear())["joined"] == {"failures": 0}
    for socket in (mine, other):
        await socket.leave()


async def test_topic_stays_subscribed_while_one_page_listens():
    first, second = await opened(await ada()), await opened(await ada())
    for socket in (first, second):
        await socket.join("queue")
        await socket.hear()

    await first.leave()
    await tell("queue", 2)

    assert await second.hear() == {"topic": "queue", "seq": 2}
    await second.leave()
    assert subscriptions.process_hub().listeners == {}


async def test_new_page_is_notified_after_the_last_page_left():
    for number in (1, 2):
        socket = await opened(await ada())
        await socket.join("queue")
        await socket.hear()
        await tell("queue", number)
        assert await socket.hear() == {"topic": "queue", "seq": number}
        await socket.leave()


async def test_slow_page_gets_the_newest_number_and_delays_no_other_page():
    read, gate = [], asyncio.Event()

    async def slowly(words):
        read.append(json.loads(words)["seq"])
        await gate.wait()

    quick = await opened(await ada())
    await quick.join("queue")
    await quick.hear()
    slow = subscriptions.PageListener(slowly)
    await subscriptions.process_hub().join("queue", slow)

    for number in range(1, 6):
        await tell("queue", number)
        assert (await quick.hear())["seq"] == number
    gate.set()
    while slow.sender:
        await slow.sender

    assert read == [1, 5]
    await subscriptions.process_hub().leave("queue", slow)
    await quick.leave()


async def test_closed_page_gets_no_more_messages():
    async def gone(words):
        raise ConnectionResetError

    left = subscriptions.PageListener(gone)
    left.queue_message("queue", "{}")
    await left.sender

    assert left.sender is None
