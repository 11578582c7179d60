"""Scripted subjects of space_tracking whose tables are known in advance. They read the corpus files on their own.

    POLICIES["first mention"](row)        # the colour that the subject is surest of, for a row (a line of a file)
    distribution(policy)(prompt)          # its whole next-token distribution, for `NextTokenServer`
    policy_model(policy)                  # the same as a model to be read white-box: (model, tokenizer)

A subject puts half of its belief on its colour and less and less on the others, in a fixed order, so that nothing ties.
After a prompt that is in no file it has no preference.
"""

import json
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from support.commands import ROOT

Row = dict[str, Any]
Policy = Callable[[Row], str]

COLOURS = ("blue", "green", "red", "brown", "yellow", "purple")
_REST = (0.11, 0.1, 0.09, 0.08, 0.07)
OUTSIDE = {" pink": 0.05}


@cache
def rows() -> tuple[Row, ...]:
    """The 1,910 rows, as they stand in the files."""
    folder = ROOT / "data/space_tracking"
    return tuple(
        json.loads(line)
        for name in ("train", "dev", "test")
        for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    )


@cache
def by_prompt() -> dict[str, Row]:
    return {row["prompt"]: row for row in rows()}


def _swapped(row: Row) -> str:
    return row["answer"] if row["distractor_value_map"] is None else row["distractor_value_map"][row["query_space"]]


POLICIES: dict[str, Policy] = {
    "space-correct": lambda row: row["answer"],
    "first mention": lambda row: row["first_mentioned"],
    "colour prior": lambda row: "blue",
    "swap to distractor": _swapped,
}


def distribution(policy: Policy) -> Callable[[str], dict[str, float]]:
    def after(prompt: str) -> dict[str, float]:
        row = by_prompt().get(prompt)
        if row is None:
            return {f" {colour}": 0.95 / 6 for colour in COLOURS} | OUTSIDE
        colours = sorted(COLOURS, key=lambda colour: (colour != policy(row), COLOURS.index(colour)))
        return {f" {colour}": p for colour, p in zip(colours, (0.5, *_REST), strict=True)} | OUTSIDE

    return after


def policy_model(policy: Policy) -> tuple[Any, Any]:
    """A causal language model whose next token follows `policy`, whatever mask, padding or tree it is given."""
    import torch
    import transformers
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.modeling_outputs import CausalLMOutput

    words = re.compile(r" ?[\w'-]+| ?[^\w\s]")
    texts = [*(row["prompt"] for row in rows()), *(f" {colour}" for colour in COLOURS), *OUTSIDE, " a certain colour"]
    vocabulary = ["<pad>", *dict.fromkeys(token for text in texts for token in words.findall(text))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(words.pattern), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", padding_side="left")
    after = distribution(policy)

    class PolicyModel(transformers.LlamaForCausalLM):
        def forward(self, input_ids, attention_mask, logits_to_keep, **_):  # type: ignore[no-untyped-def]
            rows = []
            for row in range(len(input_ids)):
                ends = range(-logits_to_keep, 0) if isinstance(logits_to_keep, int) else logits_to_keep.tolist()
                rows.append([self._after(input_ids[row], attention_mask[row], end) for end in ends])
            return CausalLMOutput(logits=torch.stack([torch.stack(row) for row in rows]))

        def _after(self, ids, mask, end):  # type: ignore[no-untyped-def]
            seen = mask[0, end] == 0 if mask.dim() == 3 else mask.bool() & (torch.arange(len(ids)) <= end % len(ids))
            logits = torch.full((len(vocabulary),), -30.0)
            for token, p in after(tokenizer.decode(ids[seen])).items():
                logits[vocabulary.index(token)] = math.log(p)
            return logits

    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=256, pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return PolicyModel(config), tokenizer
