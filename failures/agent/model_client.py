"""Speaks to any endpoint of the OpenAI protocol (vLLM, Ollama, a cloud), within a budget of time and money.

Nothing is sent but what `masking` let through. Every way a server can fail ends in an `AgentError` with a sentence, and
the caller abstains: a verdict never waits for a model. An answer is read in pieces against the deadline and a limit of
size, so a server that trickles or floods holds nobody.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from failures.agent import answers, masking, prompts
from failures.agent.answers import MalformedAnswer, ModelVote, VoteResult
from failures.agent.prompts import Precedent

MAX_RESPONSE_BYTES = 256 << 10
MIN_CALL_S = 0.2

Clock = Callable[[], float]


class AgentError(Exception):
    """No answer; the message is a sentence."""


class ModelRequestRejected(AgentError):
    """The server said no (4xx): asking again would be the same."""


@dataclass(frozen=True, kw_only=True)
class ModelEndpoint:
    url: str  # up to and with /v1
    model: str
    key: str = ""
    votes: int = 3
    call_s: float = 60
    budget_s: float = 120  # for all votes of one failure
    budget_cost: float = 0.25  # in the currency of the prices below; counts only where prices are given
    price_in: float = 0  # for a million tokens
    price_out: float = 0

    @property
    def configured(self) -> bool:
        return bool(self.url and self.model)


@dataclass
class ModelBudget:
    """What one failure may still cost. The clock is an argument; it is monotonic time, not the time of day."""

    endpoint: ModelEndpoint
    clock: Clock = time.monotonic

    def __post_init__(self) -> None:
        self._until = self.clock() + self.endpoint.budget_s
        self.spent = 0.0

    def remaining_s(self) -> float:
        return self._until - self.clock()

    def exhaustion_reason(self) -> str:
        if self.remaining_s() < MIN_CALL_S:
            return "The time for the model is used up."
        return "The money for the model is used up." if self.spent >= self.endpoint.budget_cost > 0 else ""

    def add_usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            sent, made = (usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens"))
            if all(isinstance(count, int) and count >= 0 for count in (sent, made)):
                self.spent += (sent * self.endpoint.price_in + made * self.endpoint.price_out) / 1e6


@dataclass
class Agent:
    """`failure` for a verdict over a bundle, `filters` for rules over frequent shapes."""

    endpoint: ModelEndpoint
    client: httpx.Client
    clock: Clock = time.monotonic

    def failure(
        self, bundle: str, precedents: Sequence[Precedent] = (), hosts: frozenset[str] = frozenset()
    ) -> VoteResult:
        safe = masking.mask_bundle(bundle, hosts)
        known = [_mask_precedent(one, hosts) for one in precedents]
        messages = prompts.diagnosis_messages(safe.text, known, f"=={secrets.token_hex(8)}==")
        budget = ModelBudget(self.endpoint, self.clock)
        given, troubles = self._collect_votes(messages, safe.numbers, budget)
        outcome = answers.majority_result(given, self.endpoint.votes, troubles)
        return VoteResult(**{**outcome.__dict__, "why": safe.named(outcome.why)})

    def _collect_votes(
        self, messages: list[dict[str, str]], shown: frozenset[int], budget: ModelBudget
    ) -> tuple[list[ModelVote], list[str]]:
        given: list[ModelVote] = []
        troubles: list[str] = []
        for vote in range(self.endpoint.votes):
            if why := budget.exhaustion_reason():
                troubles.append(why)
                break
            try:
                given.append(answers.parse_vote(self.ask(messages, answers.VERDICT_SCHEMA, budget, vote), shown))
            except MalformedAnswer as trouble:
                troubles.append(str(trouble))
            except AgentError as trouble:
                troubles.append(str(trouble))
                break  # a server that is down or says no is not asked for the other votes
        return given, troubles

    def filters(self, shapes: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """(pattern, example); the caller tries each before it may drop a line."""
        safe = masking.mask_bundle("\n".join(shapes))
        messages = prompts.filter_messages(safe.text.split("\n"), f"=={secrets.token_hex(8)}==")
        return answers.parse_filter_rules(
            self.ask(messages, answers.FILTER_SCHEMA, ModelBudget(self.endpoint, self.clock))
        )

    def ask(self, messages: list[dict[str, str]], schema: dict[str, Any], budget: ModelBudget, vote: int = 0) -> str:
        """The text of one answer. The first vote is cold; the others differ by seed and a little warmth."""
        body = {
            "model": self.endpoint.model, "messages": messages, "max_tokens": 1200, "seed": vote,
            "temperature": 0.0 if vote == 0 else 0.7,
            "response_format": {"type": "json_schema",
                                "json_schema": {"name": "answer", "strict": True, "schema": schema}},
        }  # fmt: skip
        try:
            reply = self._post(body, budget)
        except ModelRequestRejected:  # older servers know no schemas: the answer is checked by us in any case
            reply = self._post({**body, "response_format": {"type": "json_object"}}, budget)
        budget.add_usage(reply.get("usage"))
        return _answer_text(reply)

    def _post(self, body: dict[str, Any], budget: ModelBudget) -> dict[str, Any]:
        left = max(MIN_CALL_S, min(self.endpoint.call_s, budget.remaining_s()))
        until = self.clock() + left
        headers = {"Authorization": f"Bearer {self.endpoint.key}"} if self.endpoint.key else {}
        url = f"{self.endpoint.url.rstrip('/')}/chat/completions"
        try:
            with self.client.stream("POST", url, json=body, headers=headers, timeout=left) as response:
                data = self._read_body(response, until)
        except httpx.TimeoutException:
            raise AgentError(f"The model did not answer within {left:.0f} s.") from None
        except httpx.HTTPError as trouble:
            raise AgentError(f"The model cannot be reached: {type(trouble).__name__}.") from None
        if 400 <= response.status_code < 500:
            raise ModelRequestRejected(f"The model's server refused the question with {response.status_code}.")
        if response.status_code != 200:
            raise AgentError(f"The model's server answered {response.status_code}.")
        try:
            reply = json.loads(data)
        except (ValueError, RecursionError):
            raise MalformedAnswer("The server's answer is no JSON.") from None
        if not isinstance(reply, dict):
            raise MalformedAnswer("The server's answer is no JSON object.")
        return reply

    def _read_body(self, response: httpx.Response, until: float) -> bytes:
        data = b""
        for piece in response.iter_bytes():
            data += piece
            if len(data) > MAX_RESPONSE_BYTES:
                raise MalformedAnswer(f"The answer is larger than {MAX_RESPONSE_BYTES >> 10} KiB.")
            if self.clock() > until:
                raise AgentError("The model's answer came too slowly.")
        return data


def _answer_text(reply: dict[str, Any]) -> str:
    try:
        text = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise MalformedAnswer("The server's answer holds no message.") from None
    if not isinstance(text, str):
        raise MalformedAnswer("The server's answer holds no text.")
    return text


def _mask_precedent(one: Precedent, hosts: frozenset[str]) -> Precedent:
    words = masking.mask_bundle(one.words, hosts).text.replace("\n", " ")
    cured = masking.mask_bundle(one.cured_by, hosts).text.replace("\n", " ")
    return Precedent(root_cause=one.root_cause, cured_by=cured, words=words, likeness=one.likeness)
