"""`mindscope serve` as a user runs it: its own process, real llama.cpp, the embedded model and tiny ones."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mindscope.whitebox.model import LocalModel
from support.tiny_models import tiny_model, tiny_tokenizer, write_tiny_gguf

PROGRAM = Path(sys.executable).parent / "mindscope"
PAINTING = "In the painting, the car is red. In reality, the car is blue. In the painting, the car is"


class Served:
    """A running `mindscope serve` and what it printed up to its ready line."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        if not self.line:
            raise AssertionError(f"no ready line; {self.process.communicate()[1]}")
        self.url = self.line.split()[1]
        self.root = self.url.removesuffix("/v1")

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.root + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def render(self, messages: list[dict[str, str]], **kwargs: Any) -> str:
        return self.post("/apply-template", {"messages": messages, **kwargs})["prompt"]

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def top_logprobs(choice: dict[str, Any]) -> dict[str, float]:
    return {top["token"]: top["logprob"] for top in choice["logprobs"]["content"][0]["top_logprobs"]}


@pytest.fixture(scope="module")
def embedded() -> Iterator[Served]:
    served = Served()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path)
    return path


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[Served]:
    served = Served("--model", str(tiny_path), "--context", "128", "--parallel", "2", "--threads", "1")
    yield served
    served.stop()


def test_ready_line_names_a_url_that_answers_at_once_and_the_model(embedded: Served) -> None:
    assert embedded.line == f"ready: {embedded.url} (model embedded); Ctrl-C stops it\n"
    with urllib.request.urlopen(f"{embedded.url}/models") as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["embedded"]


def test_each_request_has_room_for_a_hundred_turns(embedded: Served) -> None:
    with urllib.request.urlopen(f"{embedded.url}/models") as answer:
        assert json.load(answer)["data"][0]["meta"]["n_ctx"] == 8192


def test_completion_logprobs_are_those_of_the_same_weights_in_torch(embedded: Served) -> None:
    body = {"prompt": PAINTING, "max_tokens": 1, "temperature": 0, "logprobs": 10}
    served = top_logprobs(embedded.post("/v1/completions", body)["choices"][0])
    model = LocalModel.load("embedded")
    ids = [model.tokenizer.convert_tokens_to_ids(token.replace(" ", "▁")) for token in served]
    here = model.next_token_logprobs([PAINTING], ids)[0]
    assert here.tolist() == pytest.approx(list(served.values()), abs=0.15)
    assert " red" in served
    assert " blue" in served


def test_texts_split_into_the_same_tokens_as_in_torch(embedded: Served) -> None:
    model = LocalModel.load("embedded")
    texts = [
        PAINTING,
        "  two  spaces\n\nand\ttabs ",
        "naïve café — “quoted”",
        "苹果 and 🦊",
        "1234567 3.14",
        "don't, x_y",
    ]
    for text in texts:
        tokens = embedded.post("/tokenize", {"content": text, "add_special": True})["tokens"]
        assert tokens == model.encode(text)


def test_raw_switch_makes_a_chat_request_a_plain_completion(embedded: Served) -> None:
    options = {"max_tokens": 1, "temperature": 0}
    completion = embedded.post("/v1/completions", {"prompt": PAINTING, "logprobs": 5, **options})
    chat = embedded.post(
        "/v1/chat/completions",
        {
            "messages": user(PAINTING),
            "logprobs": True,
            "top_logprobs": 5,
            "chat_template_kwargs": {"raw": True},
            **options,
        },
    )
    assert chat["usage"]["prompt_tokens"] == completion["usage"]["prompt_tokens"]
    expected = top_logprobs(completion["choices"][0])
    assert top_logprobs(chat["choices"][0]) == pytest.approx(expected, abs=0.02)


def test_chat_is_a_transcript_that_ends_at_the_next_user_line(embedded: Served) -> None:
    messages = [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "And of Italy?"},
    ]
    assert embedded.render(messages) == (
        "Answer in one word.\n\nUser: What is the capital of France?\nAssistant: Paris\nUser: And of Italy?\nAssistant:"
    )
    answer = embedded.post("/v1/chat/completions", {"messages": messages, "temperature": 0})["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert "User:" not in answer["message"]["content"]


def test_an_endless_answer_is_cut_at_512_tokens(embedded: Served) -> None:
    answer = embedded.post("/v1/completions", {"prompt": "1 2 3 4 5", "temperature": 0, "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 512
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_shared_prefix_is_read_once(embedded: Served) -> None:
    story = " ".join(f"Fox number {i} met a hen." for i in range(40))
    options = {"max_tokens": 1, "temperature": 0}
    embedded.post("/v1/completions", {"prompt": story + " The first fox", **options})
    second = embedded.post("/v1/completions", {"prompt": story + " The last fox", **options})["usage"]
    assert second["prompt_tokens_details"]["cached_tokens"] > 0.9 * second["prompt_tokens"]


def test_listens_on_loopback_alone(tiny: Served) -> None:
    port = int(tiny.root.rsplit(":", 1)[1])
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_no_web_page_may_read_the_answers(tiny: Served) -> None:
    request = urllib.request.Request(f"{tiny.url}/models", headers={"Origin": "http://elsewhere.example"})
    with urllib.request.urlopen(request) as answer:
        assert not answer.headers["Access-Control-Allow-Origin"]


def test_another_gguf_is_called_as_its_file_and_gives_the_logprobs_of_its_weights(tiny: Served) -> None:
    assert "(model tiny)" in tiny.line
    prompt = "the red house and the"
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 8}
    served = tiny.post("/v1/completions", body)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    ids = torch.tensor([tiny_tokenizer(bos=False)(prompt).input_ids])
    with torch.no_grad():
        expected = tiny_model("qwen2")(ids).logits[0, -1].log_softmax(-1)
    assert [expected[top["id"]].item() for top in served] == pytest.approx([top["logprob"] for top in served], abs=0.02)


def test_a_gguf_without_a_template_is_shown_a_transcript(tiny: Served) -> None:
    assert tiny.render(user("the red car")) == "User: the red car\nAssistant:"


def test_a_gguf_keeps_its_own_template_and_gains_the_raw_switch(tmp_path: Path) -> None:
    template = "{{- '' }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    write_tiny_gguf(tmp_path / "chatty.v2.gguf", chat_template=template)
    served = Served("--model", str(tmp_path / "chatty.v2.gguf"), "--context", "128")
    try:
        assert "(model chatty.v2)" in served.line
        assert served.render(user("the red car")).startswith("<user>the red car</user>")
        raw = served.render(user("{% if the red car"), chat_template_kwargs={"raw": True})
        assert raw == "{% if the red car"
    finally:
        served.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_code_0_even_while_it_answers(number: signal.Signals, tiny_path: Path) -> None:
    served = Served("--model", str(tiny_path), "--context", "100000", "--parallel", "1")
    endless = {"prompt": "the red", "max_tokens": 90000, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"{served.url}/completions", json.dumps(endless).encode())
    with urllib.request.urlopen(request) as answer:
        assert answer.readline().startswith(b"data:")
        served.process.send_signal(number)
        out, err = served.process.communicate(timeout=30)
    assert (served.process.returncode, out) == (0, "")
    assert "Traceback" not in err


def refusal(*options: str) -> str:
    """What `mindscope serve` says on stderr when it exits with code 2 and an empty stdout."""
    done = subprocess.run([PROGRAM, "serve", *options], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_taken_port_is_refused_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal("--port", str(port))
    assert f"port {port} of 127.0.0.1 is taken" in said
    assert "loading" not in said


def test_what_is_no_gguf_file_is_refused(tmp_path: Path, tiny_path: Path) -> None:
    text, part, empty = tmp_path / "notes.gguf", tmp_path / "part.gguf", tmp_path / "empty.gguf"
    text.write_text("not a model at all, but long enough to hold a header")
    part.write_bytes(tiny_path.read_bytes()[:-5000])
    empty.touch()
    for path in (text, part, empty):
        assert f"{path} is not a whole GGUF file" in refusal("--port", "0", "--model", str(path))
    missing = tmp_path / "missing.gguf"
    assert f"cannot read the model {missing}: No such file" in refusal("--port", "0", "--model", str(missing))
    assert f"cannot read the model {tmp_path}: Is a directory" in refusal("--port", "0", "--model", str(tmp_path))


def test_a_gguf_that_llama_cpp_cannot_load_is_refused(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "no-such-architecture")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "llama.cpp could not load" in refusal("--port", "0", "--model", str(tmp_path / "odd.gguf"))
