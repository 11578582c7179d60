"""How long an evaluation takes: infereval one call at a time, ours many at once, against one stub in one run.

    pip install infereval==0.17.7            # optional: without it only ours is timed
    python benchmarks/infereval.py

30 items x 5 samples at an endpoint that answers after 20 ms, through the OpenAI client on both sides. Ours keeps its
log on disk meanwhile and asks 32 at a time, so no run can be faster than 5 rounds of 20 ms. Every answer of both is
checked. The last line is infereval's time over ours.
"""

import asyncio
import json
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from infereval_env.elicit import Plan, VoteAsker, elicit
from infereval_env.elicitation import Wording
from infereval_env.formats import Analyst, Bearer, Benchmark, Evaluation, Item, Model, Params, dump
from infereval_env.runlog import rebuild
from openai import AsyncOpenAI

ITEMS, SAMPLES, LATENCY_S, CONCURRENCY = 30, 5, 0.02, 32
ROUNDS = 5
FLOOR_S = -(-ITEMS * SAMPLES // CONCURRENCY) * LATENCY_S

_BODY = json.dumps(
    {
        "id": "stub",
        "object": "chat.completion",
        "created": 0,
        "model": "stub",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "GOOD"}}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 1, "total_tokens": 91},
    }
).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


def serve(listener: socket.socket) -> None:
    """Answer every request on `listener` with GOOD after the latency. A process of its own, as a server is."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
                await asyncio.sleep(LATENCY_S)
                writer.write(_ANSWER)
        except asyncio.IncompleteReadError:
            writer.close()

    async def main() -> None:
        await (await asyncio.start_server(answer, sock=listener)).serve_forever()

    asyncio.run(main())


def benchmark() -> Benchmark:
    bearers = {f"p{i}": Bearer(expression=f"lamp {i} is lit") for i in range(ITEMS)}
    items = tuple(
        Item(id=f"i{i}", premises=(f"p{i}",), conclusions=(f"p{(i + 1) % ITEMS}",), analyst_verdicts=("good",))
        for i in range(ITEMS)
    )
    return Benchmark(id="lamps", bearers=bearers, analysts=(Analyst(id="a"),), items=items)


def ours(url: str) -> tuple[float, float]:
    """Seconds of one evaluation, log and rebuilt η included, and seconds of processor time in this process."""
    plan = Plan(
        wording=Wording(form="support"),
        model=Model(provider="stub", model_id="stub", params=Params(max_tokens=16)),
        n_samples=SAMPLES,
    )
    made = benchmark()

    async def run(log: Path) -> tuple[Evaluation, float, float]:
        async with AsyncOpenAI(base_url=url, api_key="EMPTY") as client:
            wall, processor = time.perf_counter(), time.process_time()
            await elicit(plan, made, VoteAsker(client, plan), log, concurrency=CONCURRENCY)
            eta, _ = rebuild(log, made)
            return eta, time.perf_counter() - wall, time.process_time() - processor

    with tempfile.TemporaryDirectory() as folder:
        eta, wall, processor = asyncio.run(run(Path(folder) / "run.jsonl"))
    check([[sample.parsed_verdict for sample in item.samples] for item in eta.items])
    return wall, processor


def theirs(url: str) -> float:
    """Seconds of infereval's own `evaluate` on the same items."""
    from infereval.benchmark import Benchmark as TheirBenchmark
    from infereval.evaluation import EndorsementConfig, evaluate
    from infereval.providers.openai import OpenAIProvider

    made = TheirBenchmark.model_validate(dump(benchmark()))
    provider = OpenAIProvider(model_id="stub", api_key="EMPTY", base_url=url)
    began = time.perf_counter()
    eta = evaluate(made, provider, config=EndorsementConfig(n_samples=SAMPLES))
    took = time.perf_counter() - began
    check([[sample.parsed_verdict.value for sample in item.samples] for item in eta.items])
    return took


def check(verdicts: list[list[str | None]]) -> None:
    if verdicts != [["good"] * SAMPLES] * ITEMS:
        raise SystemExit(f"an evaluation brought other verdicts than the stub gave: {verdicts}")


def main() -> None:
    sys.path.remove(str(Path(__file__).parent))  # or `import infereval` would find this file
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server = multiprocessing.get_context("fork").Process(target=serve, args=(listener,), daemon=True)
    server.start()
    peer = find_spec("infereval") is not None
    ours(url)
    rounds = [(ours(url), theirs(url) if peer else None) for _ in range(ROUNDS)]
    server.terminate()
    mine, processor = [wall for (wall, _), _ in rounds], [used for (_, used), _ in rounds]
    calls = ITEMS * SAMPLES
    print(f"{ITEMS} items x {SAMPLES} samples, {LATENCY_S * 1000:.0f} ms a call, {CONCURRENCY} at a time")
    print(f"ours: median {statistics.median(mine):.2f} s, min {min(mine):.2f} s ({calls / min(mine):.0f} calls/s)")
    print(
        f"  floor by latency alone {FLOOR_S:.2f} s; processor time of the client {min(processor):.2f} s, which is the "
        f"OpenAI client's {min(processor) / calls * 1000:.1f} ms a call and the log"
    )
    if not peer:
        print("infereval is not installed (pip install infereval==0.17.7); no ratio")
        return
    peers = [seconds for _, seconds in rounds if seconds is not None]
    print(f"infereval: median {statistics.median(peers):.2f} s, min {min(peers):.2f} s")
    ratios = [seconds / wall for (wall, _), seconds in rounds if seconds is not None]
    print(f"ratio: {statistics.median(ratios):.2f} (min {min(ratios):.2f}, max {max(ratios):.2f}, n {len(ratios)})")


if __name__ == "__main__":
    main()
