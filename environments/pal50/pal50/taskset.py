"""pal50 for verifiers v1: `eval pal50` (0.3.1), `vf-eval pal50` (0.4), prime-rl."""

from collections.abc import Iterable, Sequence

import verifiers.v1 as vf
from mindscope.frameworks.v1 import LocalEnv, PromptData, ScriptedHarness

from pal50.paradigm import (
    MAX_TOKENS,
    STOP,
    Design,
    Message,
    Score,
    Session,
    Settings,
    gold_replies,
    score,
    trials,
)
from pal50.traces import replies_in

__all__ = ("Pal50Env", "Pal50Taskset", "ScriptedHarness")


class Pal50Config(vf.TasksetConfig, Settings):
    """The paradigm's own arguments, under `--env.taskset.*`."""


class Pal50Data(PromptData):
    """A participant; the prompt is the opening of the session."""

    participant: int
    design: Design


class Pal50Task(vf.Task[Pal50Data]):
    @vf.reward
    async def reward(self, trace: vf.Trace) -> dict[str, float]:
        """Under the name of what the settings pay for."""
        return {self.data.design.settings.reward: self._score(trace).reward}

    @vf.metric
    async def outcomes(self, trace: vf.Trace) -> dict[str, float]:
        return self._score(trace).metrics()

    async def validate(self, runtime: vf.Runtime) -> bool:
        design = self.data.design
        return score(design, gold_replies(design)).reward == 1.0 and score(design, []).reward == 0.0

    def _score(self, trace: vf.Trace) -> Score:
        return score(self.data.design, replies_in(trace))


class Pal50Taskset(vf.Taskset[Pal50Task, Pal50Config]):
    def load(self) -> Iterable[Pal50Task]:
        settings = Settings.parse(self.config.model_dump(include=set(Settings.model_fields)))
        raw = settings.style == "completion"
        sending = {"raw": True, "stop": STOP, "max_tokens": MAX_TOKENS} if raw else {}
        for trial in trials(settings):
            data = Pal50Data(prompt=_messages(trial.prompt), **sending, **dict(trial))
            yield Pal50Task(data, self.config.task)


class Pal50Env(LocalEnv):
    """The script is the user: it answers every reply with the next turns until the session is over."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        session = Session(task.data.design)
        async with agents.agent.interaction(task) as chat:
            segment = await chat.turn()
            while not segment.terminated:
                session.answer(replies_in(chat.trace)[-1])
                if session.finished:
                    break
                segment = await chat.turn(_messages(session.prompt))


def _messages(prompt: Sequence[Message]) -> list[Message]:
    """v1 knows no role `text`: a raw prompt goes as the user's."""
    return [message | {"role": message["role"].replace("text", "user")} for message in prompt]
