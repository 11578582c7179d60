"""One answered item, whichever framework recorded it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(frozen=True)

    role: str
    text: str
    reasoning: str | None = None
    """What the provider returned apart from the reply as the model's reasoning."""


class Failure(BaseModel):
    """Why a rollout has no reward."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["call", "score"]
    """`call`: the model or the way to it failed. `score`: there was an answer, and judging it failed."""
    message: str


class Rollout(BaseModel):
    """One item, answered once. A wrong answer has a reward; a failure has none."""

    model_config = ConfigDict(frozen=True)

    item: str
    """The row's `trcode`, else the framework's own row number."""
    condition: str | None
    """The cell of the design."""
    prompt: tuple[Message, ...]
    reply: tuple[Message, ...]
    """Everything from the model's first message on, the environment's later turns included."""
    gold: str | None
    """The row's `answer` or `target`."""
    reward: float | None
    """None exactly when `failure` is set."""
    metrics: dict[str, float]
    """Every finite metric, the named rewards among them."""
    failure: Failure | None
    finish_reason: str | None
    """`length` when a reply was cut; None where the framework does not record why the model stopped."""
    duration_s: float | None
    """Seconds the conversation took, without set-up and scoring."""
    input_tokens: int | None
    output_tokens: int | None
    factors: dict[str, str | int | float | bool | None]
    """The row's fields, nested objects flattened to their leaves, lists left out."""

    @property
    def outcome(self) -> str | None:
        """The one `outcome_<name>` metric that is 1; None when there is none, or more than one."""
        hot = [name for name, value in self.metrics.items() if name.startswith("outcome_") and value == 1.0]
        return hot[0].removeprefix("outcome_") if len(hot) == 1 else None
