"""A conversation up to a point, from which any number of questions can be asked without disturbing it.

    state = State.of(model, system_ids)                      # read once
    reply, held = state.reply(request_ids, max_new_tokens=64)
    answers = held.ask([question_1, question_2], max_new_tokens=16)
    held.save("held.safetensors")
    held = State.load(model, "held.safetensors")

A state is token ids and the model's cache of them; it never changes. What reads on from it, `read`, `reply` or `ask`,
works on a deep copy, so that full, sliding-window and recurrent caches all branch alike (a recurrent or sliding cache
cannot be cut back). Conversations grow by token ids: text is never rendered or encoded again, which could move or
change what was read.

Every reply is greedy, equal logits going to the lower id. It ends with a stop token or after `max_new_tokens`, a row of
a batch on its own. An `interventions.Editor` edits what is read, a position being a token's index in the conversation.
"""

import copy
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import Cache, DynamicCache

from mindscope.errors import MindscopeError
from mindscope.whitebox.activations import Editing, Visit, check_editor, forward, leave
from mindscope.whitebox.architectures import part
from mindscope.whitebox.model import LocalModel

_FORMAT = "mindscope-state-1"


@dataclass(frozen=True)
class Reply:
    """What the model said: the new `token_ids`, the stop token included where there was one, and the log-probability
    of each when it was chosen, in nats. `text` leaves the stop token out."""

    token_ids: list[int]
    text: str
    stopped: bool
    """Whether a stop token ended it; otherwise it was cut off."""
    logprobs: list[float]


class State:
    """A conversation's `token_ids` and the model's cache of all of them. Made by `of`, `read`, `reply` and `load`."""

    def __init__(self, model: LocalModel, token_ids: Sequence[int], cache: Cache) -> None:
        self.model = model
        self.token_ids = tuple(token_ids)
        self.cache = cache

    @staticmethod
    def of(model: LocalModel, token_ids: Sequence[int], *, editor: Editing | None = None) -> "State":
        """The state after reading `token_ids` from the start. Raises MindscopeError when the model cannot read them."""
        return State(model, (), DynamicCache(config=model.hf.config)).read(token_ids, editor=editor)

    def read(self, token_ids: Sequence[int], *, editor: Editing | None = None) -> "State":
        """The state after reading `token_ids` too."""
        check_editor(editor, 1)
        [row] = self._rows([token_ids])
        decoding = _Decoding(self, 1, editor, [0])
        decoding.step([row], [True])
        return State(self.model, (*self.token_ids, *row), decoding.cache)

    def reply(
        self,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop: Collection[int] | None = None,
        editor: Editing | None = None,
    ) -> tuple[Reply, "State"]:
        """What the model says after `token_ids`, at least one, and the state after all of it: the last token of the
        reply has been read too.

        `stop`: ids that end a reply; the tokenizer's end-of-text token if left out. Raises MindscopeError when the
        conversation could outgrow the context.
        """
        check_editor(editor, 1)
        [row] = self._rows([token_ids], max_new_tokens)
        decoding = _Decoding(self, 1, editor, [0])
        [reply] = self._replies(decoding, [row], max_new_tokens, stop)
        decoding.step([reply.token_ids[-1:]], [True])
        return reply, State(self.model, (*self.token_ids, *row, *reply.token_ids), decoding.cache)

    def ask(
        self,
        questions: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop: Collection[int] | None = None,
        editor: Editing | None = None,
        batch_size: int = 16,
    ) -> list[Reply]:
        """The reply to each question, every one asked in a branch of its own; each question is the token ids that
        follow the state's.

        Questions with as many tokens share a batch, so that no padding enters a cache. Equal to one question at a time
        within 1e-4 in the log-probabilities. The editor's rows are the questions.
        """
        check_editor(editor, len(questions))
        replies: dict[int, Reply] = {}
        for indices, rows in self._batches(questions, batch_size, max_new_tokens):
            decoding = _Decoding(self, len(rows), editor, indices)
            replies |= zip(indices, self._replies(decoding, rows, max_new_tokens, stop), strict=True)
        return [replies[i] for i in range(len(questions))]

    def next_token_logprobs(
        self, questions: Sequence[Sequence[int]], *, editor: Editing | None = None, batch_size: int = 16
    ) -> torch.Tensor:
        """Log-probabilities of the token after each question, [question, vocabulary], nats, fp32, on the CPU; each
        question in a branch of its own."""
        check_editor(editor, len(questions))
        out = torch.empty(len(questions), self.model.vocab_size)
        for indices, rows in self._batches(questions, batch_size, 0):
            decoding = _Decoding(self, len(rows), editor, indices)
            out[indices] = decoding.step(rows, [True] * len(rows)).log_softmax(-1).cpu()
        return out

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file, whole or not at all; token ids and layout are JSON in its header.

        Raises MindscopeError when the file cannot be written.
        """
        tensors: dict[str, torch.Tensor] = {}
        layers = [
            {"kind": type(layer).__name__, "values": _described(f"{i}", _values(layer), tensors)}
            for i, layer in enumerate(self.cache.layers)
        ]
        header = {
            "format": _FORMAT,
            "model": self.model.source,
            "weights": _fingerprint(self.model),
            "token_ids": self.token_ids,
            "layers": layers,
        }
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            save_file(tensors, unfinished, metadata={"mindscope": json.dumps(header)})
            os.replace(unfinished, path)
        except (OSError, SafetensorError) as error:
            unfinished.unlink(missing_ok=True)
            raise MindscopeError(f"the state cannot be written to {path} ({error})") from error

    @staticmethod
    def load(model: LocalModel, path: str | Path) -> "State":
        """The state saved at `path`, whose cache goes to the model's device.

        Raises MindscopeError for a file that is none, is cut short, or belongs to other weights.
        """
        try:
            with safe_open(path, framework="pt", device=str(model.hf.device)) as file:
                header = json.loads((file.metadata() or {}).get("mindscope", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError) as error:
            raise MindscopeError(f"{path} cannot be read as a saved state ({error})") from error
        if header.get("format") != _FORMAT:
            raise MindscopeError(f"{path} is no saved state; give a file that State.save wrote")
        if header["weights"] != _fingerprint(model):
            raise MindscopeError(
                f"{path} was saved by {header['model'] or 'a model'} with other weights or another dtype than "
                f"{model.source or 'this model'}; load it with the same"
            )
        cache = DynamicCache(config=model.hf.config)
        if len(header["layers"]) != len(cache.layers):
            raise MindscopeError(f"{path} has {len(header['layers'])} layers, the model's has {len(cache.layers)}")
        for layer, saved in zip(cache.layers, header["layers"], strict=True):
            _restore(layer, saved, tensors, model)
        return State(model, header["token_ids"], cache)

    def _rows(self, questions: Sequence[Sequence[int]], new: int = 0) -> list[list[int]]:
        rows = self.model.rows(questions)
        for i, row in enumerate(rows):
            length = len(self.token_ids) + len(row) + new
            if length > self.model.context:
                raise MindscopeError(
                    f"prompt {i} would make a conversation of {length} tokens, more than the model's context of "
                    f"{self.model.context}"
                )
        return rows

    def _batches(
        self, questions: Sequence[Sequence[int]], batch_size: int, new: int
    ) -> Iterator[tuple[list[int], list[list[int]]]]:
        if batch_size < 1:
            raise MindscopeError(f"batch_size is {batch_size}; it is at least 1")
        rows = self._rows(questions, new)
        for length in sorted({len(row) for row in rows}):
            alike = [i for i, row in enumerate(rows) if len(row) == length]
            for start in range(0, len(alike), batch_size):
                indices = alike[start : start + batch_size]
                yield indices, [rows[i] for i in indices]

    def _replies(
        self, decoding: "_Decoding", rows: list[list[int]], max_new_tokens: int, stop: Collection[int] | None
    ) -> list[Reply]:
        """Read `rows` and go on greedily until every row has ended; a row that has ended is fed on, unedited, and what
        comes of it is dropped."""
        if max_new_tokens < 1:
            raise MindscopeError(f"max_new_tokens is {max_new_tokens}; it is at least 1")
        stops = {self.model.tokenizer.eos_token_id} if stop is None else set(stop)
        said: list[list[int]] = [[] for _ in rows]
        logprobs: list[list[float]] = [[] for _ in rows]
        talking = [True] * len(rows)
        feed = rows
        while True:
            scores = decoding.step(feed, talking).log_softmax(-1)
            best = scores.amax(-1, keepdim=True)
            lowest = torch.where(scores == best, torch.arange(scores.shape[-1], device=scores.device), scores.shape[-1])
            chosen, chances = lowest.amin(-1).tolist(), best[:, 0].tolist()
            for row in (row for row, goes_on in enumerate(talking) if goes_on):
                said[row].append(chosen[row])
                logprobs[row].append(chances[row])
                talking[row] = chosen[row] not in stops and len(said[row]) < max_new_tokens
            if not any(talking):
                break
            feed = [[token] for token in chosen]
        return [self._reply(ids, each, stops) for ids, each in zip(said, logprobs, strict=True)]

    def _reply(self, ids: list[int], logprobs: list[float], stops: Collection[int]) -> Reply:
        stopped = ids[-1] in stops
        spoken = ids[:-1] if stopped else ids
        text = self.model.run(lambda: self.model.tokenizer.decode(spoken, clean_up_tokenization_spaces=False))
        return Reply(ids, str(text), stopped, logprobs)


class _Decoding:
    """Copies of a state that read on together, a row each."""

    def __init__(self, state: State, n_rows: int, editor: Editing | None, names: Sequence[int]) -> None:
        self.model = state.model
        self.cache = copy.deepcopy(state.cache)
        if n_rows > 1 and state.token_ids:
            parents: Any = torch.zeros(n_rows, dtype=torch.long, device=state.model.hf.device)
            self.cache.reorder_cache(parents)
        self.read = len(state.token_ids)
        self.editor = editor
        self.names = names

    def step(self, rows: Sequence[Sequence[int]], edited: Sequence[bool]) -> torch.Tensor:
        """Read `rows` [row, token], and give the logits after them, [row, vocabulary], fp32; rows not `edited` are left
        alone by the editor."""
        ids = torch.tensor(rows, device=self.model.hf.device)
        at = list(range(self.read, self.read + ids.shape[1]))
        self.read += ids.shape[1]
        inputs = {
            "input_ids": ids,
            "attention_mask": torch.ones(len(rows), self.read, dtype=torch.long, device=ids.device),
            "position_ids": torch.tensor([at], device=ids.device).expand(len(rows), -1),
        }
        blocks: list[int] = []
        visit: Visit = leave
        if self.editor is not None:
            blocks = self.editor.blocks
            visit = self.editor.visit(self.names, [at if yes else [-1] * len(at) for yes in edited])
        return forward(self.model, inputs, blocks, visit, cache=self.cache)[:, -1].float()


def _values(layer: Any) -> dict[str, Any]:
    """What a cache layer holds, apart from where it holds it."""
    return {key: value for key, value in vars(layer).items() if key not in ("device", "dtype")}


def _described(name: str, value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """A cache layer's values as JSON, its tensors put aside in `tensors` under their names."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"items": [[key, _described(f"{name}.{key}", each, tensors)] for key, each in value.items()]}
    return value


def _restore(layer: Any, saved: dict[str, Any], tensors: Mapping[str, torch.Tensor], model: LocalModel) -> None:
    """Put saved values into a fresh cache layer of the same kind."""
    kind = type(layer).__name__
    if saved["kind"] != kind:
        raise MindscopeError(f"the saved cache has a {saved['kind']} where the model has a {kind}")
    for key, value in saved["values"]["items"]:
        if key not in vars(layer):
            raise MindscopeError(f"the saved cache has a value {key!r}, which a {kind} does not")
        setattr(layer, key, _rebuilt(value, tensors))
    layer.device, layer.dtype = model.hf.device, model.hf.dtype


def _rebuilt(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    return {key: _rebuilt(each, tensors) for key, each in value["items"]}


def _fingerprint(model: LocalModel) -> str:
    """Tells one model's weights from another's by its final norm and embedding of the first tokens, dtype included."""
    parts = [*part(model.hf, model.layout.final_norm).parameters(), part(model.hf, model.layout.embedding).weight[:64]]
    digest = hashlib.sha256()
    for tensor in parts:
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()
