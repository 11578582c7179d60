"""A scripted endpoint that answers with a whole next-token distribution, as servers of several kinds would.

    with NextTokenServer(lambda prompt: {" blue": 0.6, " red": 0.3, " mauve": 0.1}) as server:
        ...

Log-probabilities are the logarithms of what the policy gives. `longest` is the longest list the server allows (a
longer one is refused with a 400, as vLLM and OpenAI do), `bias` what it does with logit_bias, `tokenizer` the ids
that its /tokenize gives (404 without), `routes` the ways in that it has.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from aiohttp import web

from support import stub_server
from support.stub_server import CHAT, COMPLETIONS, Call, Fault, Reply, Request, Rule, ServerError, StubServer

Distribution = Callable[[str], Mapping[str, float]]


class NextTokenServer(StubServer):
    def __init__(
        self,
        distribution: Distribution,
        *,
        longest: int = 10_000,
        bias: Literal["listed before", "listed after", "ignored", "refused"] = "listed before",
        tokenizer: Mapping[str, Sequence[int]] | None = None,
        routes: Sequence[str] = (COMPLETIONS, CHAT),
        logprobs: bool = True,
        faults: Sequence[Rule] = (),
        completions_logprobs: Literal["legacy", "chat"] = "legacy",
    ) -> None:
        super().__init__(self._reply, faults=[self._refusal, *faults], completions_logprobs=completions_logprobs)
        self.distribution = distribution
        self.longest = longest
        self.bias = bias
        self.tokenizer = tokenizer
        self.routes = routes
        self.logprobs = logprobs

    def _refusal(self, request: Request, attempt: int) -> Fault | None:
        body = request.body
        asked = body.get("top_logprobs", body.get("logprobs") or 0)
        if request.path not in self.routes:
            return ServerError(404)
        if asked > self.longest or (body.get("logit_bias") and self.bias == "refused"):
            return ServerError(400)
        return None

    def _reply(self, request: Request) -> Reply:
        true = {token: math.log(p) for token, p in self.distribution(request.prompt).items() if p > 0}
        biased = dict(true)
        for token_id, extra in (request.body.get("logit_bias") or {}).items():
            for token, ids in (self.tokenizer or {}).items():
                if list(ids) == [int(token_id)] and self.bias != "ignored":
                    biased[token] += extra
        z = math.log(sum(map(math.exp, biased.values())))
        chosen = max(biased, key=biased.__getitem__)
        listed = {token: value - z for token, value in biased.items()} if self.bias == "listed after" else true
        return Reply(chosen, tokens=[chosen], top_logprobs=[listed] if self.logprobs else None)

    async def _answer(self, http: web.Request, call: Call) -> web.Response:
        if http.path == "/tokenize":
            if self.tokenizer is None:
                return web.json_response({"error": "no such route"}, status=404)
            body = await http.json()
            return web.json_response({"tokens": list(self.tokenizer[body["content"]])})
        return await super()._answer(http, call)


def honour_only(monkeypatch: Any, *fields: str) -> None:
    """Make stub servers deaf to the fields of a chat request that ask for a raw prompt, but for `fields`."""
    read = stub_server._chat_request

    def deaf(body: dict[str, Any]) -> Request:
        ignored = {"chat_template_kwargs", "chat_template"} - set(fields)
        return read({name: value for name, value in body.items() if name not in ignored})

    monkeypatch.setattr(stub_server, "_chat_request", deaf)
