"""Capture and swap through the white-box API against bare PyTorch hooks, and against TransformerLens where installed.

    pip install transformer-lens==4.3.0            # optional
    python benchmarks/capture.py [--rounds 9] [--passes 5] [--width 512] [--blocks 8] [--tokens 64] [--threads 1]

One random Llama-shaped model in fp32, large enough that a forward pass takes some 40 ms on one core; eager attention,
which is the only one TransformerLens offers. Two jobs, each the same for everyone:

    capture    the residual after every block at every position of one prompt
    swap       exchange two lens coordinates at the middle block on half of the positions; next-token logits

The bare hooks do nothing else: no log, no checks, no other thread. First all must agree, residuals and logits to 1e-4.
Then rounds alternate between the contenders, after one of each for warming up.

The last line is `ratio: X (min A, max B, n N)`: the median over rounds of our time for both jobs over the bare hooks',
bound 1.10. The lines before it give the jobs one by one and the ratio to TransformerLens, bound 1.00. Exit code 1 when
a check fails or a bound is missed.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from mindscope.whitebox import worker
from mindscope.whitebox.activations import capture
from mindscope.whitebox.interventions import Directions, Edit, Editor, Swap, edited_logits, lens_directions
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.model import LocalModel
from tokenizers import Tokenizer, models

BOUND, BOUND_PEER = 1.10, 1.00
VOCABULARY = 1_000
TOKENS = (17, 29)
"""The two tokens whose coordinates are swapped."""

Captured = list[torch.Tensor]
"""For each block [position, d_model]."""


@dataclass
class Contender:
    name: str
    capture: Callable[[], Captured]
    swap: Callable[[], torch.Tensor]
    """The logits after the last position, [vocabulary]."""


def make_model(width: int, blocks: int) -> LocalModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=blocks,
        num_attention_heads=8,
        num_key_value_heads=8,
        attn_implementation="eager",
    )
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        pad_token="w0",
        eos_token="w2",
        padding_side="left",
    )
    model = transformers.LlamaForCausalLM(config).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return LocalModel(model, tokenizer)


def ours(model: LocalModel, ids: list[int], block: int, positions: range, pair: Directions) -> Contender:
    def capture_all() -> Captured:
        [found] = capture(model, [ids], range(model.n_blocks))
        return [found.values[block] for block in range(model.n_blocks)]

    def swap() -> torch.Tensor:
        return edited_logits(model, [ids], Editor(model, [[Edit(block, positions, Swap(pair))]]))[0, 0]

    return Contender("mindscope", capture_all, swap)


def bare_hooks(model: LocalModel, ids: list[int], block: int, positions: range, pair: Directions) -> Contender:
    hf, inputs = model.hf, torch.tensor([ids])
    blocks: Any = hf.model.layers
    vectors = pair.vectors.float()
    inverse = torch.linalg.pinv(pair.vectors).float()
    chosen = list(positions)

    def capture_all() -> Captured:
        found: Captured = []
        handles = [b.register_forward_hook(lambda _m, _i, output: found.append(output[0])) for b in blocks]
        with torch.no_grad():
            hf(input_ids=inputs, use_cache=False, logits_to_keep=1)
        for handle in handles:
            handle.remove()
        return found

    def exchange(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        h = output[0, chosen]
        c = h @ inverse
        output[0, chosen] = h + (c.flip(-1) - c) @ vectors
        return output

    def swap() -> torch.Tensor:
        handle = blocks[block].register_forward_hook(exchange)
        with torch.no_grad():
            logits = hf(input_ids=inputs, use_cache=False, logits_to_keep=1).logits[0, -1]
        handle.remove()
        return logits

    return Contender("bare hooks", capture_all, swap)


def transformer_lens(model: LocalModel, ids: list[int], block: int, positions: range, width: int) -> Contender:
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.tools.analysis.jacobian_lens import JacobianLens

    twin = make_model(width, model.n_blocks)
    twin.hf.config._name_or_path = "random-llama"
    twin.hf.config.architectures = ["LlamaForCausalLM"]
    bridge: Any = TransformerBridge.boot_transformers(
        "random-llama", hf_model=twin.hf, tokenizer=twin.tokenizer, device="cpu"
    )
    identity = {b: torch.eye(width) for b in range(model.n_blocks - 1)}
    lens = JacobianLens(identity, n_prompts=1, d_model=width)
    hooks = lens.swap_hooks(bridge, *TOKENS, layers=[block], positions=list(positions))
    inputs = torch.tensor([ids])
    names = [f"blocks.{b}.hook_out" for b in range(model.n_blocks)]

    def capture_all() -> Captured:
        with torch.no_grad():
            _, found = bridge.run_with_cache(inputs, names_filter=names)
        return [found[name][0] for name in names]

    def swap() -> torch.Tensor:
        with torch.no_grad(), bridge.hooks(fwd_hooks=hooks):
            return bridge(inputs)[0, -1]

    return Contender("TransformerLens", capture_all, swap)


def furthest(one: Contender, other: Contender) -> float:
    """The largest difference between two contenders' residuals and logits."""
    pairs = [*zip(one.capture(), other.capture(), strict=True), (one.swap(), other.swap())]
    return max(float((a - b).abs().max()) for a, b in pairs)


def seconds(job: Callable[[], object], passes: int) -> float:
    started = time.perf_counter()
    for _ in range(passes):
        job()
    return (time.perf_counter() - started) / passes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 9), ("passes", 5), ("width", 512), ("blocks", 8), ("tokens", 64), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()

    model = make_model(options.width, options.blocks)
    ids = torch.randint(3, VOCABULARY, (options.tokens,), generator=torch.Generator().manual_seed(1)).tolist()
    block, positions = options.blocks // 2, range(options.tokens // 2, options.tokens)
    pair = lens_directions(model, Lens.logit(model), block, TOKENS)
    us = ours(model, ids, block, positions, pair)
    others = [bare_hooks(model, ids, block, positions, pair)]
    if find_spec("transformer_lens") is not None:
        others.append(transformer_lens(model, ids, block, positions, options.width))

    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, threads {options.threads}")
    print(", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "nnsight")))
    with worker.exclusive():  # the contenders have no worker thread of their own
        plain = model.next_token_logprobs([ids])[0]
        moved = float((us.swap().log_softmax(-1) - plain).abs().max())
        print(f"the swap moves log-probabilities by up to {moved:.3f}")
        for other in others:
            difference = furthest(us, other)
            print(f"largest difference to {other.name}: {difference:.1e}")
            if difference > 1e-4 or moved < 1e-2:
                print("the contenders do not compute the same, or the swap does nothing")
                return 1
    contenders = [us, *others]
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for contender in contenders:
            for job in ("capture", "swap"):
                taken = seconds(getattr(contender, job), options.passes)
                times.setdefault((contender.name, job), []).append(taken)
    for (name, job), taken in times.items():
        print(f"{name:16} {job:8} {1e3 * statistics.median(taken):7.2f} ms")

    def ratios(other: str, jobs: tuple[str, ...]) -> list[float]:
        sums = [[sum(times[name, job][i] for job in jobs) for i in range(options.rounds)] for name in (us.name, other)]
        return [one / two for one, two in zip(*sums, strict=True)]

    for other in others:
        for job in ("capture", "swap"):
            print(f"{job} to {other.name}: {statistics.median(ratios(other.name, (job,))):.3f}")
    missed = False
    for other in reversed(others):
        found = ratios(other.name, ("capture", "swap"))
        middle = statistics.median(found)
        bound = BOUND if other is others[0] else BOUND_PEER
        missed |= middle > bound
        line = f"{middle:.3f} (min {min(found):.3f}, max {max(found):.3f}, n {len(found)})"
        print(f"ratio: {line}" if other is others[0] else f"to {other.name}: {line}, bound {bound:.2f}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
