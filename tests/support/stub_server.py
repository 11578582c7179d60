"""A scripted OpenAI-compatible server for tests, able to misbehave on purpose.

It runs in its own thread on an ephemeral port of 127.0.0.1 and speaks chat (plain and SSE) and completions:

    with StubServer(scripted({"cat -": "dog"}), faults=[FirstAttempt(RateLimit(0.05))]) as stub:
        run_client(stub.base_url)
        assert stub.count(CHAT, status=429) == 1

A *policy* turns a request into a `Reply`; a *rule* says which fault befalls a request, if any. Both see only
the request and how often its prompt was asked before, so concurrent requests may come in any order. Tokens
are words with the space before them, unless the reply says otherwise. What a policy or a rule raises is
answered with a 400 and raised again when the server closes.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

from aiohttp import web

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What a policy or a rule sees: one prompt of a call, and one of the `n` choices asked for."""

    path: str
    body: Json
    prompt: str  # the text before the model, by which attempts are counted
    raw_prompt: str | None  # the same where the client fixed every character; None under a chat template
    last_user: str  # the last user message, or the whole prompt of a completion
    choice: int = 0


@dataclass(frozen=True)
class Reply:
    """One choice. `top_logprobs[i]` is the whole distribution at `tokens[i]`, in nats; the request's k cuts
    it. Without it the answer carries `logprobs: null`, as from a server that has none to give."""

    text: str | None
    finish_reason: str = "stop"
    top_logprobs: Sequence[Mapping[str, float]] | None = None
    tokens: Sequence[str] | None = None
    reasoning: str | None = None
    delay_s: float = 0.0


Policy = Callable[[Request], Reply]


def echo(request: Request) -> Reply:
    return Reply(request.last_user)


def constant(text: str | None) -> Policy:
    return lambda request: Reply(text)


def scripted(script: Mapping[str, str | Reply] | Callable[[str], str | Reply]) -> Policy:
    """Looks up the last user message (or the completion's prompt); a text not in the script is an error."""

    def policy(request: Request) -> Reply:
        answer = script(request.last_user) if callable(script) else script[request.last_user]
        return Reply(answer) if isinstance(answer, str) else answer

    return policy


@dataclass(frozen=True)
class Fault:
    """A fault is also the rule that always applies."""

    def __call__(self, request: Request, attempt: int) -> Fault | None:
        return self


@dataclass(frozen=True)
class RateLimit(Fault):
    retry_after: float | None = None  # seconds; None sends no Retry-After


@dataclass(frozen=True)
class ServerError(Fault):
    status: int = 500


class Unauthorized(Fault):
    """401 whose message repeats the Authorization header, as careless servers do."""


class ResetMidBody(Fault):
    """Status 200, the headers and half of the body, then the connection is reset."""


class TruncatedJSON(Fault):
    """Status 200 and half of the body as if it were all; of a stream, the first half without [DONE]."""


class EmptyChoices(Fault):
    """A sound answer but for `choices: []`."""


class NullContent(Fault):
    """A sound answer whose text is null."""


class Length(Fault):
    """The policy's text, with finish_reason `length`."""


@dataclass(frozen=True)
class Stall(Fault):
    """The policy's answer, but only after this many seconds."""

    seconds: float


# Takes the request and its attempt: 1 when this prompt first comes to this path, then 2, and so on. A list of
# prompts is one request, whose prompt is the list joined by newlines.
Rule = Callable[[Request, int], Fault | None]


@dataclass(frozen=True)
class Always:
    rule: Rule

    def __call__(self, request: Request, attempt: int) -> Fault | None:
        return self.rule(request, attempt)


@dataclass(frozen=True)
class FirstAttempt:
    """Every distinct prompt meets the fault the first `times` times it is asked, and no more."""

    rule: Rule
    times: int = 1

    def __call__(self, request: Request, attempt: int) -> Fault | None:
        return self.rule(request, attempt) if attempt <= self.times else None


@dataclass(frozen=True)
class ForPrompts:
    predicate: Callable[[str], bool]
    rule: Rule

    def __call__(self, request: Request, attempt: int) -> Fault | None:
        return self.rule(request, attempt) if self.predicate(request.prompt) else None


@dataclass
class Call:
    """One HTTP request. Times are `time.monotonic()` seconds; `status` and `ended` are None until the answer
    is ready, `prompt` and `attempt` where no text was asked for."""

    path: str
    headers: dict[str, str]
    started: float
    body: Json = field(default_factory=dict)
    prompt: str | None = None
    attempt: int | None = None
    fault: Fault | None = None
    status: int | None = None
    ended: float | None = None


class StubServer:
    """Serves `policy` while the `with` block runs. The first of the `faults` rules to name a fault decides.

    `completions_logprobs` is the shape of log-probabilities at /v1/completions: `legacy` (OpenAI and vLLM:
    tokens, token_logprobs, top_logprobs, text_offset) or `chat` (llama.cpp: content[].top_logprobs).
    """

    def __init__(
        self,
        policy: Policy = echo,
        *,
        faults: Rule | Sequence[Rule] = (),
        completions_logprobs: Literal["legacy", "chat"] = "legacy",
    ) -> None:
        self.policy = policy
        self.rules = [faults] if callable(faults) else list(faults)
        self.completions_logprobs = completions_logprobs
        self.base_url = ""
        self.requests: list[Call] = []
        self.max_in_flight = 0
        self._in_flight = 0
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._script_errors: list[Exception] = []

    def count(self, path: str | None = None, status: int | None = None, fault: type[Fault] | None = None) -> int:
        """How many calls came to this path, were answered with this status, met this kind of fault."""
        return sum(
            path in (None, call.path)
            and status in (None, call.status)
            and (fault is None or isinstance(call.fault, fault))
            for call in self.requests
        )

    def __enter__(self) -> StubServer:
        ready: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        self.base_url = f"http://127.0.0.1:{ready.result(timeout=30)}/v1"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._script_errors and error is None:
            raise self._script_errors[0]

    async def _serve(self, ready: Future[int]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            ready.set_result(runner.addresses[0][1])
            await self._stop.wait()
        finally:
            await runner.cleanup()

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        call = Call(http.path, dict(http.headers), time.monotonic())
        self.requests.append(call)
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            response = await self._answer(http, call)
            call.status = response.status
        finally:
            self._in_flight -= 1
            call.ended = time.monotonic()
        return await _reset_half_way(http, response) if isinstance(call.fault, ResetMidBody) else response

    async def _answer(self, http: web.Request, call: Call) -> web.Response:
        if (http.method, http.path) == ("GET", "/health"):
            return web.json_response({"status": "ok"})
        if (http.method, http.path) == ("GET", "/v1/models"):
            card = {"id": "stub", "object": "model", "created": 0, "owned_by": "stub"}
            return web.json_response({"object": "list", "data": [card]})
        if http.method != "POST" or http.path not in (CHAT, COMPLETIONS):
            return _error(404, f"The stub has no {http.method} {http.path}")
        try:
            call.body = await http.json()
            requests = [_chat_request(call.body)] if http.path == CHAT else _completion_requests(call.body)
        except Exception as error:
            return _error(400, f"The stub cannot read this request: {error!r}")

        call.prompt = "\n".join(request.prompt for request in requests)
        self._attempts[call.path, call.prompt] += 1
        call.attempt = self._attempts[call.path, call.prompt]
        try:
            named = (rule(replace(requests[0], prompt=call.prompt), call.attempt) for rule in self.rules)
            call.fault = next((fault for fault in named if fault is not None), None)
            choices = [replace(one, choice=i) for one in requests for i in range(call.body.get("n") or 1)]
            replies = [_as_generated(self.policy(choice), call.body) for choice in choices]
        except Exception as error:
            self._script_errors.append(error)
            return _error(400, f"The stub's own script failed: {error!r}")

        match call.fault:
            case RateLimit(retry_after):
                return _error(429, "Rate limit reached", retry_after)
            case ServerError(status):
                return _error(status, "The server had an error")
            case Unauthorized():
                return _error(401, f"Incorrect API key provided: {http.headers.get('Authorization')}")
            case NullContent():
                replies = [Reply(None, tokens=[]) for _ in replies]
            case Length():
                replies = [replace(reply, finish_reason="length") for reply in replies]
            case Stall(seconds):
                await asyncio.sleep(seconds)
        await asyncio.sleep(max(reply.delay_s for reply in replies))
        return self._write(call, replies)

    def _write(self, call: Call, replies: list[Reply]) -> web.Response:
        if call.path == CHAT:
            whole, events = _chat_answer(replies, call.body)
        else:
            whole, events = _completion_answer(replies, call.body, self.completions_logprobs)
        if isinstance(call.fault, EmptyChoices):
            whole, events = whole | {"choices": []}, [event | {"choices": []} for event in events]
        read, wrote = len(call.prompt.split()), sum(len(reply.tokens) for reply in replies)
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        stamp = {"id": "stub", "created": 0, "model": call.body.get("model", "stub")}

        if call.body.get("stream"):
            if (call.body.get("stream_options") or {}).get("include_usage"):
                events.append(events[0] | {"choices": [], "usage": usage})
            lines = [json.dumps(event | stamp) for event in events] + ["[DONE]"]
            payload, kind = "".join(f"data: {line}\n\n" for line in lines), "text/event-stream"
        else:
            payload, kind = json.dumps(whole | stamp | {"usage": usage}), "application/json"
        if isinstance(call.fault, TruncatedJSON):
            payload = payload[: len(payload) // 2]
        return web.Response(text=payload, content_type=kind)


def _error(status: int, message: str, retry_after: float | None = None) -> web.Response:
    error = {"message": message, "type": "stub_error", "param": None, "code": status}
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return web.json_response({"error": error}, status=status, headers=headers)


async def _reset_half_way(http: web.Request, response: web.Response) -> web.StreamResponse:
    half = web.StreamResponse(headers=response.headers)
    half.content_length = len(response.body)
    await half.prepare(http)
    await half.write(response.body[: len(response.body) // 2])
    close_with_rst = struct.pack("ii", 1, 0)
    http.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, close_with_rst)
    http.transport.abort()
    return half


def _chat_request(body: Json) -> Request:
    """A request's own `chat_template` is rendered, as vLLM does; the template argument `raw` makes the last
    message the prompt, as the project's template for llama.cpp does."""
    messages = [message | {"content": _plain_text(message.get("content"))} for message in body["messages"]]
    arguments = body.get("chat_template_kwargs") or {}
    raw = messages[-1]["content"] if arguments.get("raw") else None
    if "chat_template" in body:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        template = ImmutableSandboxedEnvironment().from_string(body["chat_template"])
        raw = template.render(messages=messages, add_generation_prompt=True, **arguments)
    transcript = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
    last_user = next((one["content"] for one in reversed(messages) if one["role"] == "user"), "")
    return Request(CHAT, body, transcript if raw is None else raw, raw, last_user)


def _plain_text(content: str | list[Json] | None) -> str:
    return "".join(part.get("text", "") for part in content) if isinstance(content, list) else content or ""


def _completion_requests(body: Json) -> list[Request]:
    prompts = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
    if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise ValueError("`prompt` must be a string or a list of strings; token ids are not supported")
    if body.get("echo"):
        raise ValueError("`echo` is not supported")
    return [Request(COMPLETIONS, body, prompt, prompt, prompt) for prompt in prompts]


def _as_generated(reply: Reply, body: Json) -> Reply:
    """The reply with its tokens, cut as `max_tokens` and `stop` would have ended it. As on a real server, a
    reply that uses up `max_tokens` ends with `length`: its end was not generated."""
    text, finish = reply.text or "", reply.finish_reason
    tokens = list(re.findall(r"\s*\S+|\s+$", text) if reply.tokens is None else reply.tokens)
    if "".join(tokens) != text:
        raise ValueError(f"The tokens {tokens} do not spell the text {text!r}")
    tops = reply.top_logprobs
    if tops is not None and not all(token in top for token, top in zip(tokens, tops, strict=True)):
        raise ValueError(f"top_logprobs must give each of {tokens} a distribution that contains it")

    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    if limit is not None and len(tokens) >= limit:
        tokens, finish = tokens[:limit], "length"
        text = "".join(tokens)
    stops = body.get("stop") or []
    ends = [text.find(stop) for stop in ([stops] if isinstance(stops, str) else stops) if stop in text]
    if ends:
        text, finish = text[: min(ends)], "stop"
        tokens = tokens[: sum(start < len(text) for start in _offsets(tokens))]
    tops = None if tops is None else tops[: len(tokens)]
    text = None if reply.text is None else text
    return replace(reply, text=text, finish_reason=finish, tokens=tokens, top_logprobs=tops)


def _offsets(tokens: Sequence[str]) -> list[int]:
    return list(accumulate(map(len, tokens), initial=0))[:-1]


def _logprobs(reply: Reply, k: int, shape: str) -> Json | None:
    if reply.top_logprobs is None:
        return None
    own = [top[token] for token, top in zip(reply.tokens, reply.top_logprobs, strict=True)]
    highest = [dict(sorted(top.items(), key=lambda item: -item[1])[:k]) for top in reply.top_logprobs]
    if shape == "legacy":
        tokens = {"tokens": reply.tokens, "text_offset": _offsets(reply.tokens)}
        return tokens | {"token_logprobs": own, "top_logprobs": highest}

    def entry(token: str, logprob: float) -> Json:
        return {"token": token, "bytes": list(token.encode()), "logprob": logprob}

    content = [
        entry(token, logprob) | {"top_logprobs": [entry(*item) for item in top.items()]}
        for token, logprob, top in zip(reply.tokens, own, highest, strict=True)
    ]
    return {"content": content}


def _chat_answer(replies: list[Reply], body: Json) -> tuple[Json, list[Json]]:
    """The whole body, and the same as the events of a stream: role, one event a token, finish."""
    choices, events = [], []
    for index, reply in enumerate(replies):
        reasoning = {} if reply.reasoning is None else {"reasoning_content": reply.reasoning}
        logprobs = _logprobs(reply, body.get("top_logprobs") or 0, "chat") if body.get("logprobs") else None
        ending = {"index": index, "finish_reason": reply.finish_reason}
        message = {"role": "assistant", "content": reply.text} | reasoning
        choices.append(ending | {"message": message, "logprobs": logprobs})

        running = {"index": index, "logprobs": None, "finish_reason": None}
        steps = [running | {"delta": message | {"content": None if reply.text is None else ""}}]
        for i, start in enumerate(_offsets(reply.tokens)):
            piece = reply.text[start:][: len(reply.tokens[i])]
            own = logprobs and {"content": logprobs["content"][i : i + 1]}
            steps.append(running | {"delta": {"content": piece}, "logprobs": own})
        steps.append(ending | {"delta": {}, "logprobs": None})
        events += [{"object": "chat.completion.chunk", "choices": [step]} for step in steps]
    return {"object": "chat.completion", "choices": choices}, events


def _completion_answer(replies: list[Reply], body: Json, shape: str) -> tuple[Json, list[Json]]:
    """The whole body, and the same as the events of a stream: one event a choice."""
    k = body.get("logprobs")
    choices = []
    for index, reply in enumerate(replies):
        logprobs = None if k is None else _logprobs(reply, k, shape)
        ending = {"index": index, "finish_reason": reply.finish_reason}
        choices.append(ending | {"text": reply.text, "logprobs": logprobs})
    events = [{"object": "text_completion", "choices": [choice]} for choice in choices]
    return {"object": "text_completion", "choices": choices}, events
