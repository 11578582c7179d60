"""space_tracking for verifiers v1: `eval space-tracking` (0.3.1), `vf-eval space-tracking` (0.4).

The harness asks through verifiers' interception wherever the endpoint takes a raw prompt by its chat route, so that
the trace records each call. An endpoint that has log-probabilities on its completions route only is asked directly,
since v1 passes chat alone. What was read is in `trace.info["readings"]`, from which a replay scores again.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import verifiers.v1 as vf
from mindscope.endpoint import Endpoint, Via
from mindscope.errors import MindscopeError
from mindscope.frameworks.v1 import DirectHarness, LocalEnv, PromptData
from openai import AsyncOpenAI, OpenAIError
from pydantic import TypeAdapter, field_validator
from verifiers.v1.configs.client import resolve_api_key

from space_tracking.judgement import Generated, Reading, Readout
from space_tracking.paradigm import Score, Settings, Trial, policy_readout, score, trials
from space_tracking.readout import choose_endpoint, read_endpoint, read_local, read_reply

__all__ = ("LocalEnv", "ReadoutHarness", "SpaceTrackingTaskset")

_CHAT_FIRST: tuple[Via, ...] = ("template_kwargs", "chat_template", "completions")
_READINGS = TypeAdapter(list[Reading])


class SpaceTrackingConfig(vf.TasksetConfig, Settings):
    """The paradigm's own arguments, under `--env.taskset.*`."""


class SpaceTrackingData(Trial, PromptData):
    """A trial, and the settings by which it is read."""

    settings: Settings

    @field_validator("rows", mode="before")
    @classmethod
    def _with_nulls(cls, rows: Any) -> Any:
        """verifiers 0.4 leaves fields that are None out of what it stores; a row has all its fields."""
        nulls = {"distractor_entity": None, "distractor_value_map": None}
        return tuple(nulls | row if isinstance(row, dict) else row for row in rows)


class SpaceTrackingTask(vf.Task[SpaceTrackingData]):
    @vf.reward
    async def space_tracked(self, trace: vf.Trace) -> float:
        return self._score(trace).reward

    @vf.metric
    async def measures(self, trace: vf.Trace) -> dict[str, float]:
        return self._score(trace).metrics()

    async def validate(self, runtime: vf.Runtime) -> bool:
        right = [policy_readout(row.answer) for row in self.data.rows]
        priors = [policy_readout(None) for _ in self.data.prompts[len(right) :]]
        nothing = [policy_readout(None) for _ in self.data.prompts]
        return score(self.data, [*right, *priors]).reward > 0.8 > score(self.data, nothing).reward

    def _score(self, trace: vf.Trace) -> Score:
        return score(self.data, _READINGS.validate_python(trace.info.get("readings", [])))


class SpaceTrackingTaskset(vf.Taskset[SpaceTrackingTask, SpaceTrackingConfig]):
    def load(self) -> Iterable[SpaceTrackingTask]:
        chosen = {name: getattr(self.config, name) for name in Settings.model_fields}
        settings = Settings(**chosen)
        for trial in trials(settings):
            yield SpaceTrackingTask(SpaceTrackingData(**dict(trial), settings=settings), self.config.task)


class ReadoutHarness(DirectHarness):
    """Reads the prompts of a trial, and leaves what it read on the trace."""

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
        if not isinstance(data, SpaceTrackingData):
            return vf.ProgramResult(exit_code=1, stdout="", stderr="ReadoutHarness runs tasks of space_tracking only")
        try:
            async with self._clients(ctx, endpoint, secret) as (proxy, server):
                readings = await _read(data, ctx.model, proxy, server)
        except (OpenAIError, MindscopeError) as error:
            return vf.ProgramResult(exit_code=1, stdout="", stderr=f"{type(error).__name__}: {error}")
        trace.info["readings"] = [reading.model_dump(mode="json") for reading in readings]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    @asynccontextmanager
    async def _clients(
        self, ctx: vf.ModelContext, endpoint: str, secret: str
    ) -> AsyncIterator[tuple[AsyncOpenAI, AsyncOpenAI]]:
        """A client of verifiers' interception, and one of the endpoint behind it."""
        options: dict[str, Any] = {"max_retries": self.config.max_retries, "timeout": None}
        behind = ctx.client
        async with (
            AsyncOpenAI(base_url=endpoint, api_key=secret, **options) as proxy,
            AsyncOpenAI(
                base_url=behind.base_url,
                api_key=resolve_api_key(behind),
                default_headers=dict(behind.headers or {}),
                **options,
            ) as server,
        ):
            yield proxy, server


async def _read(
    data: SpaceTrackingData, model: str, proxy: AsyncOpenAI, server: AsyncOpenAI
) -> list[Readout | Generated]:
    settings = data.settings
    if settings.route == "whitebox":
        return [await read_local(settings.whitebox_model, prompt, settings.multi_token) for prompt in data.prompts]
    offer = await choose_endpoint(server, model, settings, routes=_CHAT_FIRST)
    if offer is None:
        return [await read_reply(proxy, model, prompt) for prompt in data.prompts]
    through = server if offer.via == "completions" else proxy
    endpoint = Endpoint(through, model, offer, server=server)
    return [await read_endpoint(endpoint, prompt) for prompt in data.prompts]
