"""The Jacobian estimator against a loop over rows and against the field's scheme of a replicated batch.

    python benchmarks/jacobian.py [--tokens 33 64 128] [--rows 64] [--rounds 7] [--threads 1]

A random Llama of 5 blocks and d_model 256, skip_first 16, all source blocks, `--rows` rows of every Jacobian, for each
length of prompt. One model for all three, with fused attention where it is not ours:

    loop        one forward pass, one backward pass a row
    replicated  the prompt 16 times in one batch, a row each: the reference scheme
    ours        `lens.jacobian`: 16 rows vectorised over one graph of the kept positions alone

First all three must agree to 1e-5. Then rounds alternate, after one of each for warming up. Times are the process's CPU
time, so that other programs on the machine matter little. Lines `tokens T: ...` give medians of per-round ratios and
their range; the last line, `ratio: X (min A, max B, n N)`, is ours over the loop at the first length given.
Bounds at that length: 0.35 of the loop, 0.8 of the replicated batch; exit code 1 when one is missed or a check fails.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import transformers
from mindscope.whitebox.lens.jacobian import JacobianSettings, record
from mindscope.whitebox.model import LocalModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

LOOP_BOUND, REPLICATED_BOUND = 0.35, 0.8
D_MODEL, BLOCKS, SKIP, BATCH = 256, 5, 16, 16

Means = torch.Tensor
"""[block, row, d_model]: rows of the mean over kept positions."""


def random_model() -> LocalModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=D_MODEL,
        intermediate_size=3 * D_MODEL,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=2,
    )
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(512)}, unk_token="w0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0")
    return LocalModel(transformers.LlamaForCausalLM(config).requires_grad_(False), tokenizer)


@contextmanager
def recorded(model: LocalModel, ids: list[int], copies: int) -> Iterator[list[torch.Tensor]]:
    """Every block's output for `copies` of the whole prompt, with the graph from the first one on."""
    outputs: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
        outputs.append(output if outputs else output.detach().requires_grad_())
        return outputs[-1]

    hooks = [block.register_forward_hook(keep) for block in model.hf.model.layers]
    try:
        model.hf(torch.tensor([ids] * copies), use_cache=False, logits_to_keep=1)
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def loop(model: LocalModel, ids: list[int], rows: int) -> Means:
    return replicated(model, ids, rows, copies=1)


def replicated(model: LocalModel, ids: list[int], rows: int, copies: int = BATCH) -> Means:
    kept = slice(SKIP, len(ids) - 1)
    means = torch.empty(BLOCKS - 1, rows, D_MODEL)
    with recorded(model, ids, copies) as (*sources, target):
        for start in range(0, rows, copies):
            cotangent = torch.zeros_like(target)
            for copy in range(copies):
                cotangent[copy, kept, start + copy] = 1
            for block, g in enumerate(torch.autograd.grad(target, sources, cotangent, retain_graph=True)):
                means[block, start : start + copies] = g[:, kept].mean(1)
    return means


def ours(model: LocalModel, ids: list[int], rows: int) -> Means:
    settings = JacobianSettings(
        blocks=tuple(range(BLOCKS - 1)), target_block=BLOCKS - 1, skip_first=SKIP, max_tokens=512, rows_per_pass=BATCH
    )
    means = torch.empty(BLOCKS - 1, rows, D_MODEL)
    for part, gradients in record(model, ids, settings).products(torch.eye(D_MODEL)[:rows], BATCH):
        for block, g in gradients.items():
            means[block, part] = g.mean(1)
    return means


def seconds(run: Callable[[], Means]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def summary(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.3f} (min {min(ratios):.3f}, max {max(ratios):.3f}, n {len(ratios)})"


def compare(model: LocalModel, n_tokens: int, rows: int, rounds: int) -> tuple[list[float], list[float]]:
    """Ratios of ours to the loop and to the replicated batch, a round each; exits when the three disagree."""
    ids = torch.randint(3, 512, (n_tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    reference = loop(model, ids, rows)
    for name, scheme in (("replicated", replicated), ("ours", ours)):
        difference = ((scheme(model, ids, rows) - reference).norm() / reference.norm()).item()
        print(f"tokens {n_tokens}: {name} differs from the loop by {difference:.1e}")
        if not difference < 1e-5:
            sys.exit(f"{name} does not equal the loop")
    to_loop, to_replicated = [], []
    for _ in range(rounds):
        mine, one, many = (seconds(lambda s=scheme: s(model, ids, rows)) for scheme in (ours, loop, replicated))
        to_loop.append(mine / one)
        to_replicated.append(mine / many)
    print(f"tokens {n_tokens}: {summary(to_loop)} of the loop, {summary(to_replicated)} of the replicated batch")
    return to_loop, to_replicated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[33, 64, 128])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.threads} threads"
    )
    model = random_model()
    results = [model.run(lambda n=n: compare(model, n, arguments.rows, arguments.rounds)) for n in arguments.tokens]
    to_loop, to_replicated = results[0]
    missed = statistics.median(to_loop) > LOOP_BOUND or statistics.median(to_replicated) > REPLICATED_BOUND
    print(f"ratio: {summary(to_loop)}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
