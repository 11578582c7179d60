"""Forced-choice scoring against lm-evaluation-harness: the same model object, process, prompts and colours.

    pip install "lm-eval[hf]==0.4.13"
    python benchmarks/forced_choice.py [--model embedded] [--pairs 8] [--rounds 7] [--threads 2]

Requests: for rows of every construction, the log-probability of each colour in play after the prompt. Ours is
`space_tracking.readout.local_readouts`, theirs `HFLM.loglikelihood`, both with batches of 16. First, both must equal
one forward pass a prompt: in double precision to 1e-5, where nothing but the method differs, and in the single
precision that is timed to 1e-4. Then rounds alternate, after one of each for warming up, and each gives the ratio of
the two times. Peak memory is the process's, above what it held before the call.

The last line is `ratio: X (min A, max B, n N)`: the median of ours over theirs, bound 0.45. Exit code 1 when a check
fails, the bound is missed, or ours needs more memory.
"""

import argparse
import gc
import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from mindscope.whitebox import worker
from mindscope.whitebox.model import LocalModel
from space_tracking.corpus import CONSTRUCTIONS, Row, load
from space_tracking.readout import local_readouts

BOUND = 0.45
BATCH_SIZE = 16

Scores = list[list[float]]
"""For each row the log-probabilities of its colours in play."""


def sample(pairs: int) -> list[Row]:
    """The first `pairs` minimal pairs of the first template of each construction."""
    templates = [next(iter(construction.templates)) for construction in CONSTRUCTIONS]
    rows = [row for row in load() if row.template in templates]
    chosen = {name: list(dict.fromkeys(r.pair_id for r in rows if r.template == name))[:pairs] for name in templates}
    return [row for row in rows if row.pair_id in chosen[row.template]]


def one_at_a_time(model: LocalModel, rows: list[Row]) -> Scores:
    """The reference: one prompt, one forward pass."""
    scores = []
    for row in rows:
        ids = [model.tokenizer(f"{row.prompt} {colour}").input_ids[-1] for colour in row.in_play]
        with torch.no_grad():
            logits = model.hf(input_ids=torch.tensor([model.tokenizer(row.prompt).input_ids])).logits[0, -1]
        scores.append(logits.double().log_softmax(-1)[ids].tolist())
    return scores


def ours(model: LocalModel, rows: list[Row]) -> Scores:
    scores: Scores = [[] for _ in rows]
    for indices, readouts in local_readouts(model, [row.prompt for row in rows], batch_size=BATCH_SIZE):
        for i, readout in zip(indices, readouts, strict=True):
            scores[i] = [readout.logprobs[colour] for colour in rows[i].in_play]
    return scores


def theirs(model: LocalModel, rows: list[Row]) -> Callable[[], Scores]:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    adds_bos = model.tokenizer("a").input_ids[0] == model.tokenizer.bos_token_id
    harness = HFLM(
        pretrained=model.hf, tokenizer=model.tokenizer, batch_size=BATCH_SIZE, device="cpu", add_bos_token=adds_bos
    )

    def run() -> Scores:
        requests = [
            Instance("loglikelihood", doc={}, arguments=(row.prompt, f" {colour}"), idx=i)
            for row in rows
            for i, colour in enumerate(row.in_play)
        ]
        answers = iter(harness.loglikelihood(requests, disable_tqdm=True))
        return [[next(answers)[0] for _ in row.in_play] for row in rows]

    return run


def furthest(a: Scores, b: Scores) -> float:
    return max(abs(x - y) for left, right in zip(a, b, strict=True) for x, y in zip(left, right, strict=True))


def timed(call: Callable[[], Scores]) -> tuple[float, int]:
    """Seconds, and bytes of resident memory at the peak above those before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _resident("VmRSS")
    started = time.perf_counter()
    call()
    return time.perf_counter() - started, _resident("VmHWM") - before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def check(model: LocalModel, rows: list[Row]) -> bool:
    """Whether both equal the reference, in double precision and in the one that is timed."""
    good = True
    for dtype, bound, some in ((torch.float64, 1e-5, rows[:: max(1, len(rows) // 24)]), (torch.float32, 1e-4, rows)):
        model.hf.to(dtype)
        right = one_at_a_time(model, some)
        for name, found in (("ours", ours(model, some)), ("lm-eval", theirs(model, some)())):
            gap = furthest(found, right)
            good &= gap <= bound
            verdict = "ok" if gap <= bound else "TOO FAR"
            print(f"{name}, {dtype}, {len(some)} prompts: at most {gap:.1e} from the reference ({verdict})", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="hub id, folder, or embedded")
    parser.add_argument("--pairs", type=int, default=8, help="minimal pairs a construction")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    try:
        import lm_eval  # noqa: F401
    except ImportError:
        print('this benchmark compares with lm-evaluation-harness: pip install "lm-eval[hf]==0.4.13"', file=sys.stderr)
        return 2
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)

    rows = sample(options.pairs)
    model = LocalModel.load(options.model)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "lm-eval", "mindscope"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    print(f"Python {platform.python_version()}, {versions}")
    print(f"{options.model}, {len(rows)} prompts, {sum(len(row.in_play) for row in rows)} requests", flush=True)

    with worker.exclusive():
        if not check(model, rows):
            return 1
        run_theirs = theirs(model, rows)
        for call in (run_theirs, lambda: ours(model, rows)):
            call()
        ratios, peaks = [], {"ours": 0, "lm-eval": 0}
        for number in range(1, options.rounds + 1):
            their_time, their_peak = timed(run_theirs)
            our_time, our_peak = timed(lambda: ours(model, rows))
            ratios.append(our_time / their_time)
            peaks = {"ours": max(peaks["ours"], our_peak), "lm-eval": max(peaks["lm-eval"], their_peak)}
            print(
                f"round {number}: ours {our_time:.2f} s, lm-eval {their_time:.2f} s, ratio {ratios[-1]:.3f}", flush=True
            )
    print(f"memory above the model: ours {peaks['ours'] >> 20} MiB, lm-eval {peaks['lm-eval'] >> 20} MiB")
    ratio = statistics.median(ratios)
    print(f"ratio: {ratio:.3f} (min {min(ratios):.3f}, max {max(ratios):.3f}, n {len(ratios)})")
    return 0 if ratio <= BOUND and peaks["ours"] <= peaks["lm-eval"] else 1


if __name__ == "__main__":
    sys.exit(main())
