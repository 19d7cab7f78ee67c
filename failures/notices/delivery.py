"""Sends one message to one channel and explains errors. Calls external services; does not change the database."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from django.conf import settings
from django.core.mail import EmailMessage

from acmeweb.common import outbound_http
from acmeweb.common.errors import InvalidInput
from acmeweb.common.http_client import prepare_call
from failures.models import Channel
from failures.notices import messages
from failures.notices.messages import IncidentMessage
from jobs.models import clock


class DeliveryError(Exception):
    """The receiver did not accept the message; the exception text says why."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


DELIVERY_ERRORS = (DeliveryError, *outbound_http.CALL_ERRORS)


def send(channel: Channel, message: IncidentMessage, *, update: int = 0, delivery: str) -> None:
    """Send the message. Raises one of DELIVERY_ERRORS if it is not delivered."""
    match channel.kind:
        case Channel.Kind.EMAIL:
            _send_mail(channel, message, update)
        case Channel.Kind.SLACK:
            _post(channel.target, messages.slack_body(message), {})
        case _:
            body = messages.webhook_body(message, update)
            signature = messages.webhook_signature(channel.secret, body, int(clock.now().timestamp()))
            _post(channel.target, body, {"Acme-Signature": signature, "Acme-Delivery": delivery})


def _post(target: str, body: bytes, headers: dict[str, str]) -> None:
    headers = {"Content-Type": "application/json", **headers}
    status = outbound_http.post(target, body, headers, settings.ACME_WEBHOOK_NETWORKS)
    if status // 100 != 2:
        raise DeliveryError(f"the receiver returned HTTP status {status}", status)


def _send_mail(channel: Channel, message: IncidentMessage, update: int) -> None:
    """Send an e-mail. Updates are sent as replies to the first one, so that mail programs group them in a thread."""
    if not settings.EMAIL_HOST:
        raise DeliveryError("no mail server is configured (ACME_MAIL_URL)")
    thread = f"<incident-{message.incident}.{channel.pk}@{settings.ACME_MAIL_FROM.rpartition('@')[2]}>"
    headers = {"In-Reply-To": thread, "References": thread} if update else {"Message-ID": thread}
    prepare_call()
    EmailMessage(
        message.subject, "\n".join(message.lines), settings.ACME_MAIL_FROM, [channel.target], headers=headers
    ).send()


# --- the test message


@dataclass(frozen=True, kw_only=True)
class ChannelTestResult:
    good: bool
    says: str
    advice: str = ""


def send_test_message(channel: Channel) -> ChannelTestResult:
    """Send a test message and return the outcome with advice. Delivery errors are not raised."""
    message = IncidentMessage(
        incident=0, state="test", title="test of this channel, no action needed", cluster="no cluster", attempts=0
    )
    try:
        send(channel, message, delivery=f"test-{channel.pk}")
    except DELIVERY_ERRORS as error:
        return _explain_error(error)
    return ChannelTestResult(good=True, says="The receiver accepted the message. Check that it has arrived.")


STATUS_ADVICE = {
    401: "The receiver requires authentication. Use an address that contains a secret.",
    403: "Access is denied. The address may have been revoked.",
    404: "The address does not exist. Copy it again from the receiver.",
    405: "The address does not accept POST. It is the address of a page, not of a webhook.",
    410: "The webhook was deleted. Create a new one.",
    429: "The receiver limits the rate of messages. Try again in a few minutes.",
}


def _explain_error(error: BaseException) -> ChannelTestResult:
    match error:
        case DeliveryError(status=status) if status:
            advice = STATUS_ADVICE.get(status, "")
            if status // 100 == 3:
                advice = "The address redirects to another one. Enter that one; Acme does not follow redirects."
            says, advice = f"The receiver returned HTTP status {status}.", advice or "See the log of the receiver."
            return ChannelTestResult(good=False, says=says, advice=advice)
        case DeliveryError():
            return ChannelTestResult(
                good=False, says=f"{str(error).capitalize()}.", advice="Set it in the environment of the Acme server."
            )
        case InvalidInput():
            advice = "An administrator of the Acme server can allow its network with ACME_WEBHOOK_NETWORKS."
            return ChannelTestResult(good=False, says=f"The address {error}.", advice=advice)
        case httpx.TimeoutException():
            says = f"The receiver did not respond within {outbound_http.CALL_TIMEOUT_S:.0f} s."
            return ChannelTestResult(good=False, says=says, advice="Check whether a firewall blocks the connection.")
        case httpx.ConnectError():
            says = "The connection failed: no server responds, or its certificate is not valid."
            return ChannelTestResult(good=False, says=says, advice=str(error))
        case _:
            return ChannelTestResult(
                good=False, says="The message could not be sent.", advice=f"{type(error).__name__}: {error}"[:300]
            )
