"""The replies in a trace of verifiers v1: the live object while it runs, or its JSON once it is recorded.

verifiers is not imported: a recorded trace can be read where another version of it is installed, or none.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from pal50.scoring import Reply


class _Part(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class _Usage(_Part):
    prompt_tokens: int
    cached_input_tokens: int | None = None
    completion_tokens: int


class _Call(_Part):
    node: int | None = None
    """None when the call failed."""
    finish_reason: str | None = None
    usage: _Usage | None = None


class _Message(_Part):
    content: str | None = None


class _Node(_Part):
    parent: int | None = None
    message: _Message


class _Trace(_Part):
    calls: list[_Call]
    nodes: list[_Node]


def replies_in(trace: object | Mapping[str, object]) -> list[Reply]:
    """One reply for each prompt that was answered, in order; of a call sent twice, the later.

    Raises `pydantic.ValidationError` when this is no trace of a conversation in text.
    """
    read = _Trace.model_validate(trace)
    found: dict[int | None, Reply] = {}
    for call in read.calls:
        if call.node is not None:
            node, usage = read.nodes[call.node], call.usage
            found[node.parent] = Reply(
                text=node.message.content,
                finish_reason=call.finish_reason,
                input_tokens=usage.prompt_tokens + (usage.cached_input_tokens or 0) if usage else None,
                output_tokens=usage.completion_tokens if usage else None,
            )
    return list(found.values())
