"""Held-out items: whole ladders (or RSR targets) go to one side, so that no item trains on its neighbour.

    split_of("ladder soil", seed=0, train_share=0.5)        # "train", always
    items_of(benchmark, "test", seed=0, train_share=0.5)

The side is drawn from a hash of the cluster and the seed. Adding items or reordering them moves no other item.
"""

import hashlib
from typing import Literal

from infereval_env.formats import Benchmark, Item
from infereval_env.readings import cluster_of

Split = Literal["all", "train", "test"]


def split_of(cluster: str, *, seed: int, train_share: float) -> Literal["train", "test"]:
    """The side of a cluster; `train_share` of all clusters are on the train side in the long run."""
    drawn = int.from_bytes(hashlib.sha256(f"{seed}:{cluster}".encode()).digest()[:8])
    return "train" if drawn < train_share * 2**64 else "test"


def items_of(benchmark: Benchmark, split: Split, *, seed: int, train_share: float) -> list[Item]:
    """The items on one side, in the benchmark's order; with `all`, every item."""
    return [
        item
        for item in benchmark.items
        if split == "all" or split_of(cluster_of(item.id, item), seed=seed, train_share=train_share) == split
    ]
