"""Weights of a J++ lens's experts, tuned so that what items are known to think of ranks among a few tokens.

    items = read_items(Path("items.jsonl"), model)
    tuning, held_out = split(items)
    found = fit_weights(model, lens, tuning)                     # block -> BlockWeights
    lens = lens.with_weights({block: one.weights for block, one in found.items()})

With T_e = J_e h and norm an RMSNorm, norm(T) * rms(T) is linear in T, so the logits of sum_e w_e T_e are, up to a
positive factor a position, sum_e w_e L_e with L_e = W_U norm(T_e) * rms(T_e). A pair of an item and one of its
intermediates has the margin of its best candidate over the k-th largest logit, which is >= 0 just when its rank is
<= k, ties in its favour. Maximised, for each block alone, over unit w of either sign:

    surrogate = mean over tasks of mean over pairs of sigmoid(margin / (0.1 sd of the position's logits))

by Adam from three starts; kept is the iterate with the best pass@k, then surrogate. Of the vocabulary the readable
tokens and all candidates compete.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedTokenizerBase

from mindscope.errors import MindscopeError
from mindscope.stimuli import read_records
from mindscope.whitebox.activations import capture
from mindscope.whitebox.architectures import part
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.lens.readout import Readout
from mindscope.whitebox.model import LocalModel, Progress

TEMPERATURE = 0.1


@dataclass(frozen=True)
class WeightItem:
    """A prompt's token ids, the position at which it is read, and the candidate ids of each intermediate."""

    task: str
    name: str
    ids: tuple[int, ...]
    position: int
    candidates: tuple[tuple[int, ...], ...]


class _ItemRow(BaseModel):
    model_config = ConfigDict(extra="ignore")

    task: str
    name: str
    prompt: str
    intermediates: list[str] = Field(min_length=1)
    position: int = Field(-1, description="a token's number in the prompt, negative from its end")


@dataclass(frozen=True)
class BlockWeights:
    """`weights` [E] of unit length, fp32; `pass_at_k` and `surrogate` on the items they were fitted to, and the start
    and step that they come from."""

    weights: torch.Tensor
    pass_at_k: float
    surrogate: float
    start: str
    step: int


def candidate_ids(tokenizer: PreTrainedTokenizerBase, word: str) -> tuple[int, ...]:
    """Ids of the single tokens that spell `word` as it is, capitalised or in lower case, with and without a space
    before; ascending, and empty when every spelling takes several tokens."""
    spellings = {space + form for form in (word, word.capitalize(), word.lower()) for space in ("", " ")}
    encoded = [tokenizer(text, add_special_tokens=False).input_ids for text in spellings]
    return tuple(sorted({ids[0] for ids in encoded if len(ids) == 1}))


def read_items(path: Path, model: LocalModel) -> list[WeightItem]:
    """Items of a JSONL file with the fields task, name, prompt, intermediates and, where it is not the last token,
    position. An intermediate that is no single token of this tokenizer is left out, and an item that has none left.

    Raises MindscopeError when the file is faulty or no item is left.
    """
    rows = read_records(path, _ItemRow)

    def items() -> list[WeightItem]:
        found = []
        for row in rows:
            sets = tuple(ids for word in row.intermediates if (ids := candidate_ids(model.tokenizer, word)))
            if sets:
                found.append(WeightItem(row.task, row.name, tuple(model.encode(row.prompt)), row.position, sets))
        return found

    usable = model.run(items)
    if not usable:
        raise MindscopeError(f"{path}: no intermediate is a single token of the tokenizer of {model.source}")
    return usable


def split(
    items: Sequence[WeightItem], *, fraction: float = 0.2, seed: int = 0
) -> tuple[list[WeightItem], list[WeightItem]]:
    """Items to tune on and items held out, in their order; each task has at least one to tune on.

    An item's side follows from a hash of seed, task and name, so that no other item's coming or going moves it, except
    that a task left with none to tune on gives the one with the smallest hash.
    """

    def draw(item: WeightItem) -> float:
        digest = hashlib.sha256(f"{seed}\n{item.task}\n{item.name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    smallest: dict[str, float] = {}
    for item in items:
        smallest[item.task] = min(draw(item), smallest.get(item.task, 1.0))
    chosen = [draw(item) < fraction or draw(item) == smallest[item.task] for item in items]
    tuning = [item for item, is_tuning in zip(items, chosen, strict=True) if is_tuning]
    return tuning, [item for item, is_tuning in zip(items, chosen, strict=True) if not is_tuning]


def fit_weights(
    model: LocalModel,
    lens: Lens,
    items: Sequence[WeightItem],
    *,
    k: int = 10,
    steps: int = 200,
    learning_rate: float = 0.05,
    exact_every: int = 5,
    progress: Progress | None = None,
) -> dict[int, BlockWeights]:
    """Weights for every block of `lens` that has experts, each found by itself; never worse on `items`, by pass@k and
    then the surrogate, than the best of the starts: all ones, the best single expert, the three best alike.

    Holds items x experts x vocabulary fp32 numbers for one block at a time. Raises MindscopeError when the lens has no
    experts or is not the model's, there are no items, or the model's head is not linear after an RMSNorm.
    """
    readout = Readout(model, lens)
    if not lens.experts:
        raise MindscopeError("the lens has no experts to weight; fit it with routers")
    if not items:
        raise MindscopeError("there are no items to fit weights to")
    norm = part(model.hf, model.layout.final_norm)
    if "RMSNorm" not in type(norm).__name__ or part(model.hf, model.layout.head).bias is not None:
        raise MindscopeError(
            f"{model.source} reads its residual through {type(norm).__name__}, under which expert weights are not "
            "linear; they need an RMSNorm and a head without bias"
        )
    competing = readout.readable.cpu().clone()
    competing[[token for item in items for ids in item.candidates for token in ids]] = True
    columns = competing.nonzero()[:, 0]
    blocks = list(lens.experts)
    residuals: dict[int, dict[int, torch.Tensor]] = defaultdict(dict)
    positions = [[item.position] for item in items]
    for found in capture(model, [item.ids for item in items], blocks, positions):
        for block in blocks:
            residuals[block][found.prompt] = found.values[block][0].float().cpu()

    results: dict[int, BlockWeights] = {}
    for block in blocks:
        h = torch.stack([residuals[block][i] for i in range(len(items))])
        images = torch.einsum("eij,pj->pei", lens.experts[block].maps.float(), h)
        objective = Objective(linear_logits(model, images, columns), columns, items, k)
        results[block] = objective.search(steps, learning_rate, exact_every)
        if progress is not None:
            progress(len(results), len(blocks))
    return results


def linear_logits(model: LocalModel, images: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """W_U norm(x) * rms(x) of `images` [..., d_model] for the token ids `columns`: [..., columns], fp32 on the CPU;
    before any softcap, which is monotone."""

    def compute() -> torch.Tensor:
        norm, head = part(model.hf, model.layout.final_norm), part(model.hf, model.layout.head)
        with torch.no_grad():
            x = images.to(model.hf.device, torch.float32)
            gains = {name: gain.float() for name, gain in norm.named_parameters()}
            normed = torch.func.functional_call(norm, gains, (x,)) * x.square().mean(-1, keepdim=True).sqrt()
            return (normed @ head.weight[columns.to(model.hf.device)].float().T).cpu()

    return model.run(compute)


class Objective:
    """pass@k and its surrogate as functions of the weights, for one block.

    `logits` [item, E, column] of each expert alone; `columns` the token id of each column.
    """

    def __init__(self, logits: torch.Tensor, columns: torch.Tensor, items: Sequence[WeightItem], k: int) -> None:
        if not 1 <= k <= len(columns):
            raise MindscopeError(f"k is {k}; it is between 1 and the {len(columns)} tokens that compete")
        self.logits = logits
        self.k = k
        pairs = [(i, ids) for i, item in enumerate(items) for ids in item.candidates]
        self._items = torch.tensor([i for i, _ in pairs])
        widest = max(len(ids) for _, ids in pairs)
        ids = torch.tensor([[*ids, *[ids[0]] * (widest - len(ids))] for _, ids in pairs])
        self._candidates = torch.searchsorted(columns, ids)
        tasks = [items[i].task for i, _ in pairs]
        share = {task: 1 / (tasks.count(task) * len(set(tasks))) for task in set(tasks)}
        self._shares = torch.tensor([share[task] for task in tasks])

    def margins(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each pair's margin [pair], and the standard deviation of its position's logits [pair]."""
        logits = torch.einsum("e,iec->ic", w, self.logits)
        floor = logits.topk(self.k).values[:, -1]
        best = logits[self._items[:, None], self._candidates].amax(-1)
        return best - floor[self._items], logits.detach().std(-1)[self._items]

    def surrogate(self, w: torch.Tensor) -> torch.Tensor:
        margin, sd = self.margins(w / w.norm())
        return (self._shares * torch.sigmoid(margin / (TEMPERATURE * sd))).sum()

    def score(self, w: torch.Tensor) -> tuple[float, float]:
        """pass@k, the mean over tasks of the share of pairs with rank <= k, and the surrogate."""
        with torch.no_grad():
            margin, _ = self.margins(w)
            return (self._shares * (margin >= 0)).sum().item(), self.surrogate(w).item()

    def search(self, steps: int, learning_rate: float, exact_every: int) -> BlockWeights:
        best: tuple[tuple[float, float], str, int, torch.Tensor] | None = None
        for start, initial in self._starts().items():
            w = initial.clone().requires_grad_()
            optimiser = torch.optim.Adam([w], lr=learning_rate)
            for step in range(steps + 1):
                if step % exact_every == 0 or step == steps:
                    score = self.score(w)
                    if best is None or score > best[0]:
                        best = (score, start, step, (w / w.norm()).detach().clone())
                optimiser.zero_grad()
                (-self.surrogate(w)).backward()
                optimiser.step()
        assert best is not None
        (exact, surrogate), start, step, weights = best
        return BlockWeights(weights, exact, surrogate, start, step)

    def _starts(self) -> dict[str, torch.Tensor]:
        n = self.logits.shape[1]
        single = torch.eye(n)
        ranked = sorted(range(n), key=lambda e: self.score(single[e]), reverse=True)
        return {
            "all": torch.ones(n),
            "best single": single[ranked[0]],
            "top 3": single[ranked[:3]].sum(0),
        }
