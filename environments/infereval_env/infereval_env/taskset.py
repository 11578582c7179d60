"""infereval_env for verifiers v1: `eval infereval-env` (0.3.1), `vf-eval infereval-env` (0.4), prime-rl.

An episode is one rollout of a row; with the reward `quad` it is `--env.group-size` of them, which `finalize` scores
together. Label probabilities travel on the trace in `info["shares"]`, from which a replay scores again.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf
from mindscope.endpoint import Endpoint, Via, probe_once
from mindscope.errors import MindscopeError
from mindscope.frameworks.v1 import (
    DirectHarness,
    LocalEnvConfig,
    PromptData,
    finite,
    last_finish_reason,
    last_reply,
)
from openai import AsyncOpenAI, OpenAIError
from pydantic import Field
from verifiers.v1.configs.client import resolve_api_key

from infereval_env.elicit import COMPLETION_TOKENS
from infereval_env.elicitation import STOP
from infereval_env.labels import read_prompt
from infereval_env.paradigm import (
    Score,
    Settings,
    Trial,
    gold_reply,
    quad_rewards,
    quadratic,
    read_verdict,
    score,
    score_labels,
    trials,
)
from infereval_env.verdicts import Verdict

__all__ = ("InferevalEnv", "InferevalTaskset", "LabelHarness")

_CHAT_FIRST: tuple[Via, ...] = ("template_kwargs", "chat_template", "completions")


class InferevalConfig(vf.TasksetConfig, Settings):
    """The environment's own arguments, under `--env.taskset.*`."""


class InferevalData(Trial, PromptData):
    """A row, and how its prompt is sent."""


class InferevalTask(vf.Task[InferevalData]):
    @vf.reward
    async def reward(self, trace: vf.Trace) -> dict[str, float]:
        """The row's reward under its own name; `quad` is the group's, so the environment gives it."""
        return {} if self.data.reward == "quad" else {self.data.reward: finite(self._score(trace).reward)}

    @vf.metric
    async def measures(self, trace: vf.Trace) -> dict[str, float]:
        return self._score(trace).metrics()

    async def validate(self, runtime: vf.Runtime) -> bool:
        return score(self.data, gold_reply(self.data)).reward == 1.0 and score(self.data, "").reward == 0.0

    def _score(self, trace: vf.Trace) -> Score:
        if self.data.reward == "logprob":
            return score_labels(self.data, trace.info["shares"])
        return score(self.data, last_reply(trace), last_finish_reason(trace))


class InferevalTaskset(vf.Taskset[InferevalTask, InferevalConfig]):
    def load(self) -> Iterable[InferevalTask]:
        raw = self.config.style == "completion"
        sending: dict[str, Any] = {"raw": True, "stop": STOP, "max_tokens": COMPLETION_TOKENS} if raw else {}
        settings = Settings(**{name: getattr(self.config, name) for name in Settings.model_fields})
        for trial in trials(settings):
            shown = {"prompt": trial.text} if raw else {"prompt": trial.user, "system_prompt": trial.system}
            data: dict[str, Any] = {**dict(trial), **shown, **sending}
            yield InferevalTask(InferevalData(**data), self.config.task)


class InferevalEnvConfig(LocalEnvConfig):
    group_size: int = Field(8, ge=2)
    """Rollouts of one row that the reward `quad` compares; the other rewards need one."""
    max_concurrent_agents: int | None = Field(None, ge=1)
    """How many of a group run at once; all unless told otherwise."""


class InferevalEnv(vf.SingleAgentEnv, vf.Env[InferevalEnvConfig]):
    """One model on this machine, asked once, or as a group for `quad`."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        n = self.config.group_size if _is_quad(task) else 1
        async with asyncio.TaskGroup() as group:
            for _ in range(n):
                group.create_task(agents.agent.run(task))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        """Gives each answered rollout of a group its `quad`. Raises ValueError when fewer than two were answered."""
        if not _is_quad(task):
            return
        answered = [trace for trace in episode.traces if trace.ok]
        said = [read_verdict(task.data, last_reply(trace), last_finish_reason(trace)) for trace in answered]
        rewards, reported = quad_rewards(task.data, said), quadratic(task.data, said, factor=1.0)
        for trace, reward, quadratic_score in zip(answered, rewards, reported, strict=True):
            trace.record_reward("quad", finite(reward))
            trace.record_metrics({"quadratic_score": quadratic_score, "n_valid": float(len(answered))})


class LabelHarness(DirectHarness):
    """Sends the prompt, or for the reward `logprob` reads the label probabilities and leaves them on the trace."""

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        **further: Any,
    ) -> vf.ProgramResult:
        if not isinstance(data, InferevalData) or data.reward != "logprob":
            return await super().launch(ctx, trace, runtime, endpoint, secret, mcp_urls, data, **further)
        options: dict[str, Any] = {"max_retries": self.config.max_retries, "timeout": None}
        behind = ctx.client
        server_options = {"base_url": behind.base_url, "default_headers": dict(behind.headers or {})}
        async with (
            AsyncOpenAI(base_url=endpoint, api_key=secret, **options) as proxy,
            AsyncOpenAI(api_key=resolve_api_key(behind), **server_options, **options) as server,
        ):
            try:
                trace.info["shares"] = await _shares(data, ctx.model, proxy, server)
            except (OpenAIError, MindscopeError) as error:
                return vf.ProgramResult(exit_code=1, stdout="", stderr=f"{type(error).__name__}: {error}")
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _shares(data: InferevalData, model: str, proxy: AsyncOpenAI, server: AsyncOpenAI) -> dict[Verdict, float]:
    """Through verifiers' interception, which records the call, wherever the endpoint takes the prompt by chat."""
    reached = None
    if data.style == "completion":
        offer = await probe_once(server, model, _CHAT_FIRST)
        through = server if offer.via == "completions" else proxy
        reached = Endpoint(through, model, offer, server=server)
    shares, _ = await read_prompt(proxy, model, data.prompt_parts, data.form, reached)
    return shares


def _is_quad(task: vf.Task) -> bool:
    return isinstance(task.data, InferevalData) and task.data.reward == "quad"
