"""A causal language model on this machine, with its inside in reach.

    from mindscope.whitebox.model import LocalModel
    model = LocalModel.load("embedded")               # or a hub id, or a folder; loaded once per process
    model.next_token_logprobs(["The sky is"])         # [1, vocabulary], fp32
    await model.run_async(lambda: model.next_token_logprobs(prompts))

Weights and tokenizer are Hugging Face's; the inside is reached through nnsight, with the same names on every
family of models:

    def residual():
        with torch.no_grad():
            with model.nn.trace(ids):                 # the body starts on its own line
                h = model.blocks[3].output.save()     # [batch, position, d_model]
        return h
    model.run(residual)

Every use of a model goes through `run` or `run_async` (see `worker`); the methods here do so by themselves.

Text is encoded with the tokenizer's own defaults: a tokenizer that puts a begin-of-text token first (Gemma,
Llama) puts it before every prompt, one that has none (Qwen, GPT-2) does not. A prompt given as token ids is
used as it is.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import nnsight
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from mindscope import embedded
from mindscope.errors import MindscopeError
from mindscope.whitebox import worker
from mindscope.whitebox.architectures import find_layout, part

T = TypeVar("T")
Prompt = str | Sequence[int]
"""A text, or the ids of its tokens."""
Progress = Callable[[int, int], None]
"""Takes how many are done and how many there are."""

DTYPES = ("float32", "bfloat16", "float16", "float64")


class LocalModel:
    """A causal language model and its tokenizer.

    `hf` is the Hugging Face model, in evaluation mode; `nn` is nnsight's wrapper of it; `blocks`,
    `final_norm`, `head` and `embedding` are nnsight's handles on its parts. `tokenizer` pads on the left.
    `source` and `revision` say where the weights came from, as far as known.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        source: str = "",
        revision: str | None = None,
    ) -> None:
        """Wrap a loaded `model`, which is put in evaluation mode, and its `tokenizer`, which is left as it
        is: one that does not pad on the left, or has no pad token, is copied.

        Raises MindscopeError when the architecture is unknown, or the tokenizer ends every text with an
        end-of-text token, after which no next token means anything.
        """
        layout = find_layout(model)
        if tokenizer.eos_token_id is not None and tokenizer("a").input_ids[-1] == tokenizer.eos_token_id:
            raise MindscopeError(
                f"the tokenizer ends every text with {tokenizer.eos_token!r}, so there is no next token to "
                "predict; load it with add_eos_token=False"
            )
        self.hf = model.eval()
        self.layout = layout
        self.source = source or model.name_or_path
        self.revision = revision or getattr(model.config, "_commit_hash", None)
        if tokenizer.padding_side != "left" or tokenizer.pad_token is None:
            tokenizer = copy.deepcopy(tokenizer)  # nnsight sets both
        self.nn = worker.run(
            lambda: nnsight.TransformersModel(model, tokenizer=tokenizer, task="text-generation", device=model.device)
        )
        self.tokenizer: PreTrainedTokenizerBase = self.nn.tokenizer
        self.blocks = part(self.nn, layout.blocks)
        self.final_norm = part(self.nn, layout.final_norm)
        self.head = part(self.nn, layout.head)
        self.embedding = part(self.nn, layout.embedding)

        config = model.config.get_text_config()
        self.n_blocks: int = len(part(model, layout.blocks))
        self.d_model: int = config.hidden_size
        self.vocab_size: int = part(model, layout.head).weight.shape[0]
        """Width of the head, which may exceed the number of tokens the tokenizer has."""
        self.context: int = config.max_position_embeddings
        """Longest sequence the model was made for, in tokens."""
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        """c where the logits are `c * tanh(logits / c)`."""

    @staticmethod
    def load(source: str, *, revision: str | None = None, dtype: str = "float32", device: str = "cpu") -> "LocalModel":
        """The model at `source`: "embedded", a folder, or a hub id (with `revision`, a branch, tag or
        commit).

        Loaded at the first call; later calls in this process with the same arguments return the same object.
        No code from the source is run. Raises MindscopeError when it cannot be had, or its architecture is
        unknown.
        """
        if dtype not in DTYPES:
            raise MindscopeError(f"dtype is {dtype!r}; it is one of {', '.join(DTYPES)}")
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).split("\n")[0]
            raise MindscopeError(f"device {device!r} cannot be used here ({reason}); 'cpu' can") from error
        is_folder = source != "embedded" and Path(source).is_dir()
        if revision is not None and (is_folder or source == "embedded"):
            raise MindscopeError(f"{source} has no revisions; leave revision out, or give a hub id")
        if is_folder:
            source = str(Path(source).resolve())
        return worker.run(lambda: _load(source, revision, dtype, device))

    def run(self, fn: Callable[[], T]) -> T:
        """`fn()` in the thread where models run; waits for it."""
        return worker.run(fn)

    async def run_async(self, fn: Callable[[], T]) -> T:
        """`run` for coroutines: the event loop goes on meanwhile."""
        return await worker.run_async(fn)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the special tokens that the tokenizer adds by default."""
        return worker.run(lambda: self.tokenizer(text).input_ids)

    def next_token_logprobs(
        self,
        prompts: Sequence[Prompt],
        token_ids: Sequence[int] | Sequence[Sequence[int]] | torch.Tensor | None = None,
        *,
        batch_size: int = 16,
        progress: Progress | None = None,
    ) -> torch.Tensor:
        """Log-probability, in nats, of the token after each prompt, as fp32 on the CPU, in the order of
        `prompts`.

        Without `token_ids`: all tokens, [prompt, vocabulary]; a large vocabulary takes 1 MB a prompt. With
        them: [prompt, k], for the k ids given for all prompts, or for the ids of each prompt, [prompt, k].
        Either way normalised over the whole vocabulary. Equal to one prompt at a time within 1e-4.

        Raises MindscopeError when a prompt is empty or longer than the context, or an id is not in the
        vocabulary.
        """
        n = len(prompts)
        wanted = None if token_ids is None else self._wanted(token_ids, n)
        out = torch.empty(n, self.vocab_size if wanted is None else wanted.shape[1])
        for indices, logprobs in self.next_token_batches(prompts, batch_size=batch_size, progress=progress):
            out[indices] = logprobs if wanted is None else logprobs.gather(1, wanted[indices])
        return out

    def next_token_batches(
        self, prompts: Sequence[Prompt], *, batch_size: int = 16, progress: Progress | None = None
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        """The same a batch at a time, for reductions over the vocabulary that need not hold it for all
        prompts.

        Yields the prompts' indices and their log-probabilities [batch, vocabulary]. Prompts of like length
        share a batch, the longest first.
        """
        rows = self.rows(prompts)
        done = 0
        for indices in length_batches([len(row) for row in rows], batch_size):
            logits = self.last_logits([rows[i] for i in indices])[:, 0]
            yield indices, logits.log_softmax(-1)
            done += len(indices)
            if progress is not None:
                progress(done, len(rows))

    def rows(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Token ids of each prompt, checked to be something the model can read.

        Raises MindscopeError, naming the prompt's index, for an empty one, one longer than the context and
        one with an id outside the vocabulary.
        """
        if isinstance(prompts, str):
            raise MindscopeError("prompts is one text; give a list of texts")
        encoded = worker.run(lambda: [self._ids(prompt) for prompt in prompts])
        for i, row in enumerate(encoded):
            if not len(prompts[i]) or not row:
                raise MindscopeError(f"prompt {i} is empty; a next token needs at least one token before it")
            if len(row) > self.context:
                raise MindscopeError(
                    f"prompt {i} has {len(row)} tokens, more than the model's context of {self.context}; shorten it"
                )
            if not 0 <= min(row) <= max(row) < self.vocab_size:
                raise MindscopeError(
                    f"prompt {i} has a token id outside the vocabulary of {self.vocab_size}; "
                    "encode it with this model's tokenizer"
                )
        return encoded

    def last_logits(self, rows: Sequence[Sequence[int]], keep: int = 1) -> torch.Tensor:
        """Logits at the last `keep` positions of each row of token ids: [row, keep, vocabulary], fp32, on the
        CPU.

        One forward pass over all rows, padded on the left; the head runs on the kept positions only. A row
        shorter than `keep` has no meaning in the positions it lacks.
        """
        inputs = left_padded(rows, pad=self.tokenizer.pad_token_id or 0, device=self.hf.device)

        def forward() -> torch.Tensor:
            with torch.no_grad():
                return self.hf(**inputs, use_cache=False, logits_to_keep=keep).logits.float().cpu()

        return worker.run(forward)

    def _ids(self, prompt: Prompt) -> list[int]:
        return self.tokenizer(prompt).input_ids if isinstance(prompt, str) else [int(token) for token in prompt]

    def _wanted(self, token_ids: Any, n: int) -> torch.Tensor:
        wanted = torch.as_tensor(token_ids, dtype=torch.long)
        if wanted.dim() == 1:
            wanted = wanted.expand(n, -1)
        if wanted.dim() != 2 or wanted.shape[0] != n:
            raise MindscopeError(f"token_ids has shape {list(wanted.shape)}; give [k], or [{n}, k] for the {n} prompts")
        if wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < self.vocab_size:
            raise MindscopeError(f"token_ids has an id outside the vocabulary of {self.vocab_size}")
        return wanted


def length_batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices of `lengths` in batches of `batch_size`, longest first, so that little is padded."""
    if batch_size < 1:
        raise MindscopeError(f"batch_size is {batch_size}; it is at least 1")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def left_padded(rows: Sequence[Sequence[int]], *, pad: int, device: torch.device) -> dict[str, torch.Tensor]:
    """`input_ids`, `attention_mask` and `position_ids` [row, longest], each row at the right edge.

    Positions count from each row's first token: models with absolute positions (GPT-2) need that said.
    """
    ids = torch.full((len(rows), max(map(len, rows))), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, -len(row) :] = torch.tensor(row)
        mask[i, -len(row) :] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    return {name: tensor.to(device) for name, tensor in inputs.items()}


@cache
def _load(source: str, revision: str | None, dtype: str, device: str) -> LocalModel:
    """Only ever called in the worker thread, so that a model asked for twice at once is still loaded once."""
    place = str(embedded.hf_folder()) if source == "embedded" else source
    safely: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **safely)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, dtype=getattr(torch, dtype), output_loading_info=True, **safely
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        if Path(place).is_dir():
            raise MindscopeError(f"no model could be loaded from the folder {place} ({reason})") from error
        raise MindscopeError(
            f"model {source!r} is not a folder, and the model hub did not supply it ({reason}); give a hub id "
            "that can be reached, a folder, or 'embedded'"
        ) from error
    model, report = loaded
    if report["missing_keys"]:
        raise MindscopeError(
            f"the weights of {source} lack {', '.join(sorted(report['missing_keys'])[:3])}, which would be left "
            "random; give a whole causal language model"
        )
    return LocalModel(model.to(device).requires_grad_(False), tokenizer, source=source, revision=revision)
