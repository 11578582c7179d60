"""The two shapes in which verifiers write a rollout, and what a report takes from each.

`parse_row` turns one decoded line of `results.jsonl` (verifiers up to 0.3) or `traces.jsonl` (v1) into a
`Rollout` and the `About` that the line itself carries. The schemas demand what a report rests on and ignore
the rest, so that files of other versions open too. verifiers is not imported.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue

from mindscope.errors import MindscopeError
from mindscope.report.rollouts import Failure, Message, Rollout


class About(BaseModel):
    """What one source says about the run as a whole; None and {} where it says nothing."""

    environment: str | None = None
    model: str | None = None
    base_url: str | None = None
    sampling: dict[str, JsonValue] = {}
    env_args: dict[str, JsonValue] = {}
    verifiers: str | None = None


def parse_row(row: object) -> tuple[Rollout, About]:
    """The rollout in one line, and what the line says about its run.

    Raises pydantic.ValidationError when a field is missing or of the wrong type, MindscopeError when the line
    is no single-agent rollout.
    """
    if not isinstance(row, dict):
        raise MindscopeError(f"a rollout is a JSON object, found {type(row).__name__}")
    if "traces" in row:
        episode = V1Episode.model_validate(row)
        return episode.rollout(), episode.about()
    return LegacyRow.model_validate(row).rollout(), About()


# ---- shared by both ----


class _Raw(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


def _joined(content: object) -> object:
    """Message content as text; parts that are not text are named in brackets."""
    if not isinstance(content, list):
        return "" if content is None else content
    parts = [part if isinstance(part, dict) else {} for part in content]
    return "\n".join(str(part.get("text", f"[{part.get('type', 'unknown part')}]")) for part in parts)


class _RawMessage(_Raw):
    role: str
    content: Annotated[str, BeforeValidator(_joined)] = ""
    reasoning_content: str | None = None

    def plain(self) -> Message:
        return Message(role=self.role, text=self.content, reasoning=self.reasoning_content)


def _as_messages(prompt: object) -> object:
    return [{"role": "text", "content": prompt}] if isinstance(prompt, str) else prompt


class _Span(_Raw):
    """Unix seconds; `end` is 0 for a stage that was never reached."""

    start: float = 0.0
    end: float = 0.0

    @property
    def seconds(self) -> float | None:
        return self.end - self.start if self.end > 0.0 else None


def _factors(fields: Mapping[str, JsonValue]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat = _factors(value) | flat
        elif not isinstance(value, list):
            flat[name] = value
    return flat


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}


def _gold(factors: Mapping[str, Any]) -> str | None:
    return _text(factors.get("answer")) or _text(factors.get("target"))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


NO_REWARD = "no reward was recorded"
OUT_OF_TIME = "the rollout ran into its time limit"


# ---- verifiers up to 0.3: results.jsonl, metadata.json ----


class _LegacyError(_Raw):
    error: str
    message: str = ""
    error_chain_repr: str = ""

    @property
    def sentence(self) -> str:
        return self.error_chain_repr or f"{self.error}: {self.message}"


class _LegacyTiming(_Raw):
    generation: _Span = _Span()


class _LegacyUsage(_Raw):
    input_tokens: float
    output_tokens: float


class LegacyRow(_Raw):
    """A line of `results.jsonl`."""

    example_id: int | str
    prompt: Annotated[list[_RawMessage] | None, BeforeValidator(_as_messages)]
    completion: Annotated[list[_RawMessage] | None, BeforeValidator(_as_messages)]
    reward: float | None
    metrics: dict[str, float | None]
    answer: str | int | float | bool | None = None
    info: dict[str, JsonValue] = {}
    error: _LegacyError | None = None
    stop_condition: str | None = None
    is_truncated: bool = False
    timing: _LegacyTiming | None = None
    token_usage: _LegacyUsage | None = None

    def rollout(self) -> Rollout:
        factors = _factors(self.info)
        failure = self._failure()
        return Rollout(
            item=str(factors.get("trcode", self.example_id)),
            condition=_text(factors.get("condition")),
            prompt=tuple(message.plain() for message in self.prompt or []),
            reply=tuple(message.plain() for message in self.completion or []),
            gold=_text(self.answer) or _gold(factors),
            reward=None if failure else self.reward,
            metrics=_finite(self.metrics),
            failure=failure,
            finish_reason="length" if self.is_truncated else None,
            duration_s=self.timing.generation.seconds if self.timing else None,
            input_tokens=int(self.token_usage.input_tokens) if self.token_usage else None,
            output_tokens=int(self.token_usage.output_tokens) if self.token_usage else None,
            factors=factors,
        )

    def _failure(self) -> Failure | None:
        """Our rubric's ScoringError is the scoring's fault, every other error the call's. A rollout that ran
        out of time carries no error, and its reward means nothing."""
        if self.error is not None and self.error.error != "ScoringError":
            return Failure(kind="call", message=self.error.sentence)
        if self.stop_condition == "timeout_reached":
            return Failure(kind="call", message=OUT_OF_TIME)
        if self.error is not None:
            return Failure(kind="score", message=self.error.sentence)
        if self.reward is None or not math.isfinite(self.reward) or self.metrics.get("scored_ok") == 0.0:
            return Failure(kind="score", message=NO_REWARD)
        return None


class _LegacyVersions(_Raw):
    vf_version: str | None = None


class LegacyMetadata(_Raw):
    """`metadata.json`."""

    env_id: str
    model: str
    base_url: str | None = None
    sampling_args: dict[str, JsonValue] = {}
    env_args: dict[str, JsonValue] = {}
    version_info: _LegacyVersions = _LegacyVersions()

    def about(self) -> About:
        return About(
            environment=self.env_id,
            model=self.model,
            base_url=self.base_url,
            sampling={name: value for name, value in self.sampling_args.items() if name != "n"},
            env_args=self.env_args,
            verifiers=self.version_info.vf_version,
        )


# ---- verifiers v1: traces.jsonl, configs/resolved/eval.json ----

_OUR_SIDE = ("TaskError", "EnvError")
"""v1 errors raised by the environment's own code; every other one arises between it and the model."""

_HOW_TO_RUN = frozenset(
    ("idx", "id", "name", "description", "prompt", "system_prompt", "image", "workdir", "agent_user",
     "skills", "network_allow", "network_block", "artifacts", "artifact_max_bytes", "timeout", "resources")
)  # fmt: skip
"""Fields of every v1 task, which say how it runs and nothing about the item."""


class _V1Client(_Raw):
    base_url: str | None = None


class _V1AgentConfig(_Raw):
    model: str | None = None
    client: _V1Client | None = None
    sampling: dict[str, JsonValue] | None = None


class _V1Agent(_Raw):
    name: str = "agent"
    config: _V1AgentConfig = _V1AgentConfig()


class _V1Version(_Raw):
    version: str | None = None


class _V1Task(_Raw):
    data: dict[str, JsonValue]

    def prompt(self) -> tuple[Message, ...]:
        """What would have been sent, for a rollout whose first call already failed."""
        prompt = self.data.get("prompt") or []
        turns: Any = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if self.data.get("system_prompt"):
            turns = [{"role": "system", "content": self.data["system_prompt"]}, *turns]
        return tuple(_RawMessage.model_validate(turn).plain() for turn in turns)


class _V1Error(_Raw):
    type: str
    message: str = ""


class _V1Node(_Raw):
    message: _RawMessage
    parent: int | None = None
    sampled: bool = False


class _V1Usage(_Raw):
    prompt_tokens: int
    completion_tokens: int
    cached_input_tokens: int | None = None

    @property
    def input_tokens(self) -> int:
        return self.prompt_tokens + (self.cached_input_tokens or 0)


class _V1Call(_Raw):
    finish_reason: str | None = None
    usage: _V1Usage | None = None


class _V1Reward(_Raw):
    score: float
    weight: float = 1.0

    @property
    def value(self) -> float:
        return self.score * self.weight


class _V1Timing(_Raw):
    agent: _Span = _Span()


class _V1Trace(_Raw):
    agent: _V1Agent = _V1Agent()
    verifiers: _V1Version = _V1Version()
    nodes: list[_V1Node] = []
    calls: list[_V1Call] = []
    rewards: dict[str, _V1Reward | None] = {}
    metrics: dict[str, float | None] = {}
    ok: bool
    is_timeout: bool = False
    stop_condition: str | None = None
    errors: list[_V1Error] = []
    timing: _V1Timing | None = None

    def conversation(self) -> tuple[list[Message], int]:
        """The messages on the path to the last node, and the place of the model's first one among them."""
        path: list[_V1Node] = []
        position = len(self.nodes) - 1 if self.nodes else None
        while position is not None:
            if not 0 <= position < len(self.nodes) or len(path) == len(self.nodes):
                raise MindscopeError(f"nodes do not form a conversation: node {position} is not reachable")
            path.append(self.nodes[position])
            position = path[-1].parent
        path.reverse()
        first = next((place for place, node in enumerate(path) if node.sampled), len(path))
        return [node.message.plain() for node in path], first


class _V1Env(_Raw):
    id: str | None = None


class V1Episode(_Raw):
    """A line of `traces.jsonl`."""

    task: _V1Task
    ok: bool
    traces: list[_V1Trace]
    env: _V1Env = _V1Env()
    errors: list[_V1Error] = []

    def rollout(self) -> Rollout:
        trace = self._trace()
        data = self.task.data
        factors = _factors({name: value for name, value in data.items() if name not in _HOW_TO_RUN})
        scores = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        metrics = _finite({**scores, **trace.metrics})
        failure = self._failure(trace, metrics)
        messages, first_reply = trace.conversation()
        usages = [call.usage for call in trace.calls if call.usage is not None]
        reasons = [call.finish_reason for call in trace.calls if call.finish_reason is not None]
        return Rollout(
            item=str(factors.get("trcode", data.get("idx"))),
            condition=_text(factors.get("condition")),
            prompt=tuple(messages[:first_reply]) or self.task.prompt(),
            reply=tuple(messages[first_reply:]),
            gold=_gold(factors),
            reward=None if failure else sum(reward.value for reward in trace.rewards.values() if reward),
            metrics=metrics,
            failure=failure,
            finish_reason="length" if "length" in reasons else (reasons[-1] if reasons else None),
            duration_s=trace.timing.agent.seconds if trace.timing else None,
            input_tokens=sum(usage.input_tokens for usage in usages) if usages else None,
            output_tokens=sum(usage.completion_tokens for usage in usages) if usages else None,
            factors=factors,
        )

    def about(self) -> About:
        trace = self._trace()
        client = trace.agent.config.client or _V1Client()
        return About(
            environment=self.env.id or None,
            model=trace.agent.config.model,
            base_url=client.base_url,
            sampling=trace.agent.config.sampling or {},
            verifiers=trace.verifiers.version,
        )

    def _trace(self) -> _V1Trace:
        if len(self.traces) > 1:
            agents = ", ".join(trace.agent.name for trace in self.traces)
            raise MindscopeError(f"an episode of several agents ({agents}); a report reads single-agent runs")
        return self.traces[0] if self.traces else _V1Trace(ok=False)

    def _failure(self, trace: _V1Trace, metrics: Mapping[str, float]) -> Failure | None:
        """`ok` decides, not the presence of errors: a retried rollout keeps those of its first attempts."""
        if not (trace.ok and self.ok):
            errors = self.errors if trace.ok else (trace.errors or self.errors)
            if not errors:
                return Failure(kind="call", message="verifiers marked it as failed and gave no reason")
            kind: Literal["call", "score"] = "score" if errors[-1].type in _OUR_SIDE else "call"
            return Failure(kind=kind, message=f"{errors[-1].type}: {errors[-1].message}")
        if trace.is_timeout and trace.stop_condition != "scoring_timeout":
            return Failure(kind="call", message=OUT_OF_TIME)
        rewards = list(trace.rewards.values())
        scored = bool(rewards) and all(reward is not None and math.isfinite(reward.value) for reward in rewards)
        if not scored or metrics.get("scored_ok") == 0.0:
            return Failure(kind="score", message=NO_REWARD)
        return None


class _V1EnvConfig(_Raw):
    taskset: dict[str, JsonValue] = {}


class V1Config(_Raw):
    """`configs/resolved/eval.json`."""

    env: _V1EnvConfig
    model: str
    client: _V1Client = _V1Client()
    sampling: dict[str, JsonValue] = {}

    def about(self) -> About:
        environment = self.env.taskset.get("id")
        return About(
            environment=str(environment) if environment else None,
            model=self.model,
            base_url=self.client.base_url,
            sampling=self.sampling,
            env_args={name: value for name, value in self.env.taskset.items() if name not in ("id", "task")},
        )
