"""Tells a prompt that has outgrown the model's context from every other refusal, by what servers say of it.

A conversation that grows too long ends there: what was answered is scored and what was not is unreached. Any other
refused call fails the rollout.
"""

_SAID = ("context length", "context_length", "context size", "context window", "maximum model length")


def overflows(message: str) -> bool:
    """Whether an endpoint's error message says that the prompt does not fit."""
    return any(phrase in message.casefold() for phrase in _SAID)
