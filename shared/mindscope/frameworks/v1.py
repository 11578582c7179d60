"""What every mindscope environment needs from the verifiers v1 API: task data, an in-process harness, a local env.

`PromptData` carries one prompt and how it is to be sent, `DirectHarness` sends it (no sandbox, no subprocess, no
package index), and `LocalEnv` runs on this machine where verifiers' own default is a hosted sandbox.

    class Taskset(vf.Taskset[MyTask, MyConfig]):
        def load(self):
            yield MyTask(MyData(trcode="L25_07", condition="L25", prompt="…"), self.config.task)

Works on the v1 API of verifiers 0.3.1 and 0.4.0. verifiers' graph records every call; a call that fails is retried
by the OpenAI client inside the harness, and one that keeps failing ends the rollout unscored.
"""

import math
import ssl
from functools import cache
from typing import Any, Literal

import verifiers.v1 as vf
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError
from pydantic import Field
from verifiers.v1.types import Messages

from mindscope.frameworks.context import overflows


class PromptData(vf.TaskData):
    """One row: a prompt and how to send it. The fields below travel with the trace."""

    trcode: str
    """The item's identity, stable across runs."""
    condition: str
    """The cell of the design this row belongs to; reports group by it."""
    raw: bool = False
    """Send `prompt` to the model verbatim, without a chat template (base models)."""
    stop: tuple[str, ...] = ()
    """Strings that end the reply; the run's own sampling settings win."""
    max_tokens: int | None = None
    """Longest reply, in tokens; the run's own sampling settings win."""


class DirectHarnessConfig(vf.HarnessConfig):
    max_retries: int = Field(5, ge=0)
    """Times a failed call is sent again (connection faults, 408, 409, 429 and 5xx only)."""
    call_timeout_s: float = Field(600.0, gt=0)
    """Longest wait for one reply, in seconds; a call that takes longer is sent again."""
    raw_prompt_via: Literal["template_kwargs", "chat_template"] = "template_kwargs"
    """How a raw prompt passes through a chat endpoint: `template_kwargs` for `mindscope serve`, `chat_template`
    for servers that take a template with the request (vLLM with trusted request templates)."""


class DirectHarness(vf.Harness[DirectHarnessConfig]):
    """Sends the conversation to the model and records one reply, inside this process."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        **_: object,
    ) -> vf.ProgramResult:
        system_prompt, prompt = self.resolve_prompt(data)
        messages = _chat_messages(system_prompt, prompt)
        body = {"model": ctx.model, "messages": messages, **self._request_options(data)}
        async with AsyncOpenAI(
            base_url=endpoint,
            api_key=secret,
            max_retries=self.config.max_retries,
            http_client=DefaultAsyncHttpxClient(verify=_certificates(), timeout=self.config.call_timeout_s),
        ) as client:
            try:
                # `chat.completions.create` would walk through every message of the conversation on every turn
                await client.post("/chat/completions", body=body, cast_to=object)
            except OpenAIError as error:
                return vf.ProgramResult(exit_code=1, stdout="", stderr=f"{type(error).__name__}: {error}")
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    def _request_options(self, data: vf.TaskData) -> dict[str, Any]:
        if not isinstance(data, PromptData):
            return {}
        options: dict[str, Any] = {}
        if data.stop:
            options["stop"] = list(data.stop)
        if data.max_tokens is not None:
            options["max_tokens"] = data.max_tokens
        if data.raw and self.config.raw_prompt_via == "template_kwargs":
            options["chat_template_kwargs"] = {"raw": True}
        elif data.raw:
            options["chat_template"] = "{{ messages[-1].content }}"
        return options


class ScriptedHarness(DirectHarness):
    """For an environment that scripts the user's side: the messages of each turn are the whole prompt of its call.

    The environment thus decides what of the conversation is sent again. A conversation that outgrows the model's
    context stops there and is scored as far as it went.
    """

    async def launch(self, ctx: vf.ModelContext, trace: vf.Trace, *args: Any, **kwargs: Any) -> vf.ProgramResult:
        result = await super().launch(ctx, trace, *args, **kwargs)
        if result.exit_code != 0 and overflows(result.stderr):
            trace.stop("context_length")
        return result

    async def resume(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        messages: Messages,
        *_: object,
        **__: object,
    ) -> vf.ProgramResult:
        turn = data.model_copy(update={"prompt": messages})
        return await self.launch(ctx, trace, runtime, endpoint, secret, mcp_urls, turn)


class LocalEnvConfig(vf.SingleAgentEnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The model under study. Its runtime defaults to this machine: `DirectHarness` starts no program there."""


class LocalEnv(vf.SingleAgentEnv, vf.Env[LocalEnvConfig]):
    """One model, one conversation, on this machine."""


def finite(reward: float) -> float:
    """`reward` itself; raises ValueError for NaN and infinities, so that verifiers records a failed score."""
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward}, not a finite number")
    return reward


def last_finish_reason(trace: vf.Trace) -> str | None:
    """Why the model stopped in the last recorded reply: `stop`, `length`, or None when the provider did not say."""
    committed = [call for call in trace.calls if call.node is not None]
    return committed[-1].finish_reason if committed else None


def last_reply(trace: vf.Trace) -> str | None:
    """The last reply exactly as the model wrote it (verifiers' own `Trace.last_reply` strips it).

    Raises LookupError where no reply was recorded, as after a timeout: that is nothing to score.
    """
    replies = trace.assistant_messages
    if not replies:
        raise LookupError("no reply was recorded")
    return replies[-1].content


@cache
def _certificates() -> ssl.SSLContext:
    """What this machine trusts; reading it anew for every turn takes longer than the turn."""
    return ssl.create_default_context()


def _chat_messages(system_prompt: str | None, prompt: str | Messages | None) -> list[Any]:
    system = [{"role": "system", "content": system_prompt}] if system_prompt is not None else []
    if isinstance(prompt, str):
        return [*system, {"role": "user", "content": prompt}]
    return [*system, *({"content": ""} | message.model_dump(exclude_none=True) for message in prompt or [])]
