"""space_tracking for verifiers up to 0.3: `vf-eval space_tracking --provider local -m MODEL -n 40 -r 1`.

verifiers' own clients drop the log-probabilities of tokens not chosen, so the environment makes its calls itself, with
the run's client: same endpoint, same key, same retries. `state["readings"]` has what was read (`-C readings` saves it).
"""

import time
from typing import Any

import verifiers.legacy as vf
from datasets import Dataset
from mindscope.endpoint import Endpoint
from mindscope.errors import MindscopeError
from mindscope.frameworks.legacy import StrictRubric
from openai import AsyncOpenAI, OpenAIError
from pydantic import TypeAdapter
from verifiers.legacy.types import Response, ResponseMessage

from space_tracking.judgement import Generated, Reading, Readout
from space_tracking.paradigm import Score, Settings, score, trials
from space_tracking.readout import choose_endpoint, read_endpoint, read_local, read_reply

_READINGS = TypeAdapter(list[Reading])
_GENERATION_TOKENS = 512


def load_environment(**arguments: Any) -> vf.Environment:
    """The environment over the rows that `arguments` describe (`Settings` lists them).

    Raises `mindscope.errors.MindscopeError` when an argument is not acceptable.
    """
    settings = Settings.parse(arguments)
    rows = trials(settings)

    def score_state(state: vf.State) -> Score:
        return score(rows[state["info"]["index"]], _READINGS.validate_python(state["readings"]))

    def dataset() -> Dataset:
        return Dataset.from_list(
            [
                {
                    "prompt": [{"role": "text", "content": trial.prompt}],
                    "answer": trial.answer,
                    "info": {
                        "index": trial.index,
                        "trcode": trial.trcode,
                        "condition": trial.condition,
                        "template": trial.rows[0].template,
                        "pair_id": trial.rows[0].pair_id,
                        "query_space": trial.rows[0].query_space,
                    },
                }
                for trial in rows
            ]
        )

    return ReadoutEnv(
        settings,
        [trial.prompts for trial in rows],
        dataset=dataset,
        eval_dataset=dataset,
        rubric=StrictRubric(score_state, name="space_tracked"),
    )


class ReadoutEnv(vf.SingleTurnEnv):
    """One turn, in which every prompt of a trial is read. Its completion is the most probable token, or the reply."""

    def __init__(self, settings: Settings, prompts: list[tuple[str, ...]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = settings
        self._prompts = prompts

    async def get_model_response(self, state: vf.State, prompt: Any, **_: Any) -> Response:
        try:
            readings = await self._read(state)
        except (OpenAIError, MindscopeError) as error:
            raise vf.ModelError(f"{type(error).__name__}: {error}") from error
        state["readings"] = [reading.model_dump(mode="json") for reading in readings]
        first = readings[0]
        return Response(
            id="readout",
            created=int(time.time()),
            model=state["model"],
            message=ResponseMessage(
                content=first.top if isinstance(first, Readout) else first.reply,
                finish_reason=None,
                is_truncated=False,
            ),
        )

    async def _read(self, state: vf.State) -> list[Readout | Generated]:
        settings, prompts = self._settings, self._prompts[state["info"]["index"]]
        if settings.route == "whitebox":
            return [await read_local(settings.whitebox_model, prompt, settings.multi_token) for prompt in prompts]
        client = state["client"].client
        if not isinstance(client, AsyncOpenAI):
            raise vf.Error(f"space_tracking reads OpenAI-compatible endpoints; {type(client).__name__} is for others")
        offer = await choose_endpoint(client, state["model"], settings)
        if offer is not None:
            endpoint = Endpoint(client, state["model"], offer)
            return [await read_endpoint(endpoint, prompt) for prompt in prompts]
        sampling = {name: value for name, value in (state["sampling_args"] or {}).items() if value is not None}
        sampling = {"max_tokens": _GENERATION_TOKENS} | sampling
        return [await read_reply(client, state["model"], prompt, **sampling) for prompt in prompts]
