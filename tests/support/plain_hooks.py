"""Models driven by bare PyTorch hooks: the definition that the white-box API is checked against.

with hooked(hf, {1: keep_or_replace}): hf(ids)      # block -> function of its output, which may return another
residuals(hf, ids)                                  # [block][position, d_model]
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mindscope.whitebox.architectures import find_layout, part

Seen = Callable[[torch.Tensor], torch.Tensor | None]


@contextmanager
def hooked(hf: Any, visits: Mapping[int, Seen]) -> Iterator[None]:
    blocks = part(hf, find_layout(hf).blocks)
    handles = [
        blocks[block].register_forward_hook(lambda _module, _inputs, output, visit=visit: visit(output))
        for block, visit in visits.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def residuals(hf: Any, ids: Sequence[int]) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}

    def keep(block: int) -> Seen:
        def seen(output: torch.Tensor) -> None:
            found[block] = output[0].detach().clone()

        return seen

    n_blocks = len(part(hf, find_layout(hf).blocks))
    with torch.no_grad(), hooked(hf, {block: keep(block) for block in range(n_blocks)}):
        hf(input_ids=torch.tensor([list(ids)]))
    return [found[block] for block in range(n_blocks)]
