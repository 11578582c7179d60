"""The Jacobian of every target position by every source position, one scalar at a time: the reference that the
lens estimator is held against. Slow and plain on purpose: whole prompt, no cache, stock attention.

    pairs = pair_jacobians(model, ids, block=0, target=2)     # [t, i, s, j] = d z_{t,i} / d h_{s,j}
    mean_over_sources(pairs, kept)                            # the J of one prompt, from the definition
"""

from collections.abc import Sequence

import torch
from mindscope.whitebox.architectures import part
from mindscope.whitebox.model import LocalModel


def pair_jacobians(model: LocalModel, ids: Sequence[int], *, block: int, target: int) -> torch.Tensor:
    def compute() -> torch.Tensor:
        blocks = part(model.hf, model.layout.blocks)
        kept = {}

        def start(module, args, output):
            kept["source"] = output.detach().requires_grad_()
            return kept["source"]

        hooks = [
            blocks[block].register_forward_hook(start),
            blocks[target].register_forward_hook(lambda module, args, output: kept.update(target=output)),
        ]
        with torch.enable_grad():
            model.hf(torch.tensor([list(ids)]), use_cache=False)
        for hook in hooks:
            hook.remove()
        h, z = kept["source"], kept["target"][0]
        rows = [
            torch.stack([torch.autograd.grad(z[t, i], h, retain_graph=True)[0][0] for i in range(z.shape[1])])
            for t in range(len(z))
        ]
        return torch.stack(rows)

    return model.run(compute)


def mean_over_sources(pairs: torch.Tensor, kept: Sequence[int]) -> torch.Tensor:
    """(1/|K|) sum over s in K of the sum over t in K, t >= s: [i, j]."""
    return sum(pairs[t, :, s] for s in kept for t in kept if t >= s) / len(kept)


def random_ids(n: int, *, seed: int = 0) -> list[int]:
    return torch.randint(3, 300, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected.double()).norm() / expected.double().norm()).item()
