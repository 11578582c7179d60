"""How often a lens shows what an item is known to pass through: recall@k, with intervals over items.

    found = item_ranks(model, [logit_lens, j_lens], items)      # the residuals are captured once for all lenses
    recall(found[1], 10).macro                                  # an Estimate
    gain(found[1], found[0], 10)                                # J over logit, item by item

An intermediate is recalled when one of its candidate tokens ranks <= k at any of the blocks. An item's recall is the
share of its intermediates recalled, a task's the mean over its items, and `macro` the mean over tasks. Ranks are among
the readable tokens and the intermediate's own candidates; equal logits rank by token id.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mindscope.errors import MindscopeError
from mindscope.statistics import Array, Estimate, Statistic, cluster_bootstrap, mean_interval
from mindscope.whitebox.activations import capture
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.lens.readout import Readout
from mindscope.whitebox.lens.weights import WeightItem
from mindscope.whitebox.model import LocalModel, Progress


@dataclass(frozen=True)
class ItemRanks:
    """The best rank of each intermediate of one item at each block: `ranks` [intermediate, block]."""

    task: str
    name: str
    ranks: torch.Tensor


@dataclass(frozen=True)
class Recall:
    """`tasks` and `macro` over all blocks together; `by_block` is macro at each block alone, without interval."""

    macro: Estimate
    tasks: dict[str, Estimate]
    by_block: list[float]


def item_ranks(
    model: LocalModel,
    lenses: Sequence[Lens],
    items: Sequence[WeightItem],
    blocks: Sequence[int],
    *,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> list[list[ItemRanks]]:
    """For each lens the ranks of every item's intermediates at its position after `blocks`, in that order.

    Holds items x blocks x d_model numbers. Raises MindscopeError when there are no items, and for a block that a lens
    does not have.
    """
    if not items:
        raise MindscopeError("there are no items to evaluate a lens on")
    residuals: dict[int, dict[int, torch.Tensor]] = {block: {} for block in blocks}
    positions = [[item.position] for item in items]
    for found in capture(model, [item.ids for item in items], blocks, positions, batch_size=batch_size):
        for block in blocks:
            residuals[block][found.prompt] = found.values[block][0]

    sets = [item.candidates for item in items]
    results = []
    for i, lens in enumerate(lenses):
        readout = Readout(model, lens)
        columns = []
        for j, block in enumerate(blocks):
            h = torch.stack([residuals[block][item] for item in range(len(items))])
            columns.append(readout.ranks(block, h, sets, spare=True))
            if progress is not None:
                progress(i * len(blocks) + j + 1, len(lenses) * len(blocks))
        results.append(
            [
                ItemRanks(item.task, item.name, torch.tensor([column[k] for column in columns]).T)
                for k, item in enumerate(items)
            ]
        )
    return results


def recall(ranks: Sequence[ItemRanks], k: int) -> Recall:
    """Recall@k of one lens's `item_ranks`, with 95 % intervals from resampling items."""
    each = _item_recalls(ranks, k)
    tasks = _tasks(ranks)
    names = [str(i) for i in range(len(ranks))]
    by_task = {}
    for task in sorted(set(tasks)):
        mine = [i for i, other in enumerate(tasks) if other == task]
        by_task[task] = mean_interval([each[i] for i in mine], [names[i] for i in mine])
    single = [_item_recalls(ranks, k, block) for block in range(ranks[0].ranks.shape[1])]
    macro = _macro(tasks)
    whole = np.ones((1, len(ranks)))
    return Recall(
        macro=cluster_bootstrap(each, names, macro),
        tasks=by_task,
        by_block=[float(macro(np.asarray(values), whole)[0]) for values in single],
    )


def gain(ranks: Sequence[ItemRanks], base: Sequence[ItemRanks], k: int) -> Estimate:
    """Macro recall@k of one lens minus another's on the same items, with a paired interval."""
    pairs = zip(_item_recalls(ranks, k), _item_recalls(base, k), strict=True)
    differences = [one - other for one, other in pairs]
    return cluster_bootstrap(differences, [str(i) for i in range(len(ranks))], _macro(_tasks(ranks)))


def _item_recalls(ranks: Sequence[ItemRanks], k: int, block: int | None = None) -> list[float]:
    best = [item.ranks.amin(1) if block is None else item.ranks[:, block] for item in ranks]
    return [float((each <= k).double().mean()) for each in best]


def _tasks(ranks: Sequence[ItemRanks]) -> list[str]:
    return [item.task for item in ranks]


def _macro(tasks: Sequence[str]) -> Statistic:
    """The mean over tasks of each task's mean; a task of which a resample drew nothing is left out of it."""
    members = np.array([[task == other for other in tasks] for task in sorted(set(tasks))], dtype=float)

    def statistic(values: Array, weights: Array) -> Array:
        drawn = weights @ members.T
        sums = (weights * values) @ members.T
        means = np.divide(sums, drawn, out=np.zeros_like(sums), where=drawn > 0)
        return means.sum(axis=-1) / (drawn > 0).sum(axis=-1)

    return statistic
