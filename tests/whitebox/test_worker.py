"""One model, many askers: threads, coroutines, nesting, failure, cancellation."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from mindscope.whitebox import worker
from mindscope.whitebox.model import LocalModel
from support.tiny_models import tiny_local

PROMPTS = [f"the red car and {'the house ' * (i % 7)}number {i}" for i in range(50)]


def doubled(model: LocalModel, prompt: str) -> torch.Tensor:
    """Next-token logits with the middle block's output doubled: an nnsight trace that edits."""

    def traced() -> torch.Tensor:
        ids = torch.tensor([model.tokenizer(prompt).input_ids])
        with torch.no_grad(), model.nn.trace(input_ids=ids):
            model.blocks[1].output[:] = model.blocks[1].output * 2
            logits = model.head.output.save()
        return logits[0, -1]

    return model.run(traced)


def test_fifty_awaiters_get_the_sequential_answers_bit_for_bit() -> None:
    model = tiny_local("gemma3")
    expected = [model.next_token_logprobs([prompt]) for prompt in PROMPTS]

    async def ask() -> list[torch.Tensor]:
        return await asyncio.gather(
            *(model.run_async(lambda prompt=prompt: model.next_token_logprobs([prompt])) for prompt in PROMPTS)
        )

    assert all(torch.equal(a, b) for a, b in zip(asyncio.run(ask()), expected, strict=True))


def test_threads_that_trace_and_threads_that_score_do_not_disturb_each_other() -> None:
    model, other = tiny_local("llama"), tiny_local("gpt2")

    def ask(i: int) -> torch.Tensor:
        if i % 3 == 0:
            return doubled(model, PROMPTS[i])
        return (model, other)[i % 2].next_token_logprobs([PROMPTS[i]])

    expected = [ask(i) for i in range(48)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(48)))
    assert all(torch.equal(a, b) for a, b in zip(answers, expected, strict=True))
    assert not torch.allclose(expected[0].log_softmax(-1), model.next_token_logprobs([PROMPTS[0]])[0])


def test_the_event_loop_goes_on_while_a_model_runs() -> None:
    from_loop = threading.Event()

    async def ask() -> bool:
        waiting = asyncio.ensure_future(worker.run_async(lambda: from_loop.wait(30)))
        await asyncio.sleep(0)
        from_loop.set()
        return await waiting

    assert asyncio.run(ask())


def test_nested_uses_run_at_once_in_the_same_thread() -> None:
    threads = worker.run(lambda: (threading.get_ident(), worker.run(lambda: worker.run(threading.get_ident))))
    assert threads[0] == threads[1] != threading.get_ident()

    async def inside() -> int:
        return await worker.run_async(threading.get_ident)

    assert worker.run(lambda: asyncio.run(inside())) == threads[0]


def test_a_failure_reaches_its_asker_and_nobody_else() -> None:
    model = tiny_local("llama")
    expected = doubled(model, PROMPTS[0])

    def broken() -> None:
        with model.nn.trace(input_ids=torch.tensor([[1, 2, 3]])):
            model.blocks[0].output[:] = torch.zeros(7, 7, 7)

    with pytest.raises(RuntimeError):
        model.run(broken)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(model.run_async(lambda: 1 // 0))
    assert torch.equal(doubled(model, PROMPTS[0]), expected)


def test_a_cancelled_request_that_waits_its_turn_never_runs() -> None:
    ran: list[str] = []
    release = threading.Event()

    async def ask() -> None:
        first = asyncio.ensure_future(worker.run_async(lambda: release.wait(30)))
        second = asyncio.ensure_future(worker.run_async(lambda: ran.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        release.set()
        await first
        await worker.run_async(lambda: ran.append("third"))

    asyncio.run(ask())
    assert ran == ["third"]


def test_exclusive_keeps_the_worker_out_and_lets_its_owner_in() -> None:
    model = tiny_local("llama")
    expected = doubled(model, PROMPTS[1])
    order: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        with worker.exclusive():
            with worker.exclusive():
                waiting = pool.submit(worker.run, lambda: order.append("worker"))
            assert torch.equal(doubled(model, PROMPTS[1]), expected)
            assert worker.run(threading.get_ident) == threading.get_ident()
            order.append("owner")
        waiting.result(30)
    assert order == ["owner", "worker"]
    assert worker.run(threading.get_ident) != threading.get_ident()
