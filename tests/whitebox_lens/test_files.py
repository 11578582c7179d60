"""Lens files: ours and the public formats, round trips, and every refusal with its reason."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.whitebox.lens.files import read_lens, read_routers, write_jlens, write_lens, write_routers
from mindscope.whitebox.lens.lens import Experts, Lens, LensMetadata
from mindscope.whitebox.lens.router import fit_router
from support.pair_jacobians import relative

D = 8


def jacobians(dtype: torch.dtype = torch.float32) -> dict[int, torch.Tensor]:
    noise = {block: torch.randn(D, D, generator=torch.Generator().manual_seed(block)) for block in range(3)}
    return {block: (torch.eye(D) + 0.1 * noise[block]).to(dtype) for block in range(3)}


def release(dtype: torch.dtype = torch.float16, **changes) -> dict:
    content = {"J": jacobians(dtype), "n_prompts": 64, "source_layers": [0, 1, 2], "d_model": D}
    return {name: value for name, value in {**content, **changes}.items() if value is not None}


def provenance(estimator: str = "relp", **changes) -> dict:
    described = json.dumps({"estimator": estimator, "rules": {"norm": True}})
    return {
        "model_id": "org/m",
        "target_layer": 3,
        "skip_first": 4,
        "n_prompts": 100,
        "config_json": described,
        **changes,
    }


def checkpoint(**changes) -> dict:
    config = {
        "hf_model_name": "org/m",
        "d_model": D,
        "num_prompts_trained_on": 64,
        "max_seq_len": 128,
        "skip_first_n_positions": 16,
        "lrp_mode": "rlens",
        "jacobian_rows_per_pass": 16,
    }
    content = {"parameters": {"jacobians": jacobians()}, "source_layers": [0, 1, 2], "config": config}
    return {**content, **changes}


def saved(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "lens.pt"
    torch.save(content, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_j_lens_release(tmp_path, dtype: torch.dtype) -> None:
    lens = read_lens(saved(tmp_path, release(dtype)), model="org/m", revision="abc")
    assert lens.blocks == (0, 1, 2)
    assert all(relative(lens.matrix(block), jacobians()[block]) < 1e-3 for block in range(3))
    assert lens.matrix(1).dtype == torch.float32
    meta = lens.metadata
    assert (meta.model, meta.revision, meta.estimator, meta.target_block, meta.n_prompts) == (
        "org/m",
        "abc",
        "J",
        3,
        64,
    )


@pytest.mark.parametrize(("named", "estimator"), [("relp", "R"), ("standard", "J")])
def test_a_j_r_pair_as_a_stack_with_the_identity_of_its_target(tmp_path, named: str, estimator: str) -> None:
    stack = torch.stack([*jacobians().values(), torch.eye(D)])
    content = release(J=stack, source_layers=[0, 1, 2, 3], provenance=provenance(named))
    lens = read_lens(saved(tmp_path, content))
    assert lens.blocks == (0, 1, 2)
    assert torch.equal(lens.matrix(2), jacobians()[2])
    assert torch.equal(lens.matrix(3), torch.eye(D))
    meta = lens.metadata
    assert (meta.model, meta.estimator, meta.target_block, meta.skip_first, meta.n_prompts) == (
        "org/m",
        estimator,
        3,
        4,
        100,
    )


def test_a_j_plus_plus_lens_and_its_re_export(tmp_path) -> None:
    lens = read_lens(saved(tmp_path, checkpoint()))
    assert torch.equal(lens.matrix(1), jacobians()[1])
    meta = lens.metadata
    assert (meta.model, meta.estimator, meta.rules, meta.max_tokens, meta.skip_first) == (
        "org/m",
        "J++",
        "rlens",
        128,
        16,
    )
    export = release(provenance={"method": "jpp", "lrp_mode": "rlens", "capture_point": "block_output"})
    assert read_lens(saved(tmp_path, export), model="org/m").metadata.estimator == "J++"


def test_an_unfinished_fit_is_divided_by_its_prompts(tmp_path) -> None:
    config = checkpoint()["config"]
    sums = {block: 5 * matrix for block, matrix in jacobians().items()}
    content = {"jacobian_sum": sums, "config": config, "position_records": [{"prompt_idx": i} for i in range(5)]}
    lens = read_lens(saved(tmp_path, content))
    assert relative(lens.matrix(1), jacobians()[1]) < 1e-6
    assert lens.metadata.n_prompts == 5
    with pytest.raises(MindscopeError, match="unknown what to divide by"):
        read_lens(saved(tmp_path, {**content, "position_records": []}))


class Payload:
    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self):
        return os.system, (f"touch {self.sentinel}",)


@pytest.mark.parametrize("where", ["archive", "bare pickle"])
def test_a_malicious_pickle_neither_loads_nor_runs(tmp_path, where: str) -> None:
    sentinel = tmp_path / "ran"
    content = {**release(), "metadata": Payload(sentinel)}
    path = tmp_path / "lens.pt"
    if where == "archive":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    with pytest.raises(MindscopeError, match=r"lens\.pt: (holds something other|is neither)"):
        read_lens(path, model="org/m")
    assert not sentinel.exists()


def not_finite() -> dict[int, torch.Tensor]:
    maps = jacobians()
    maps[1][0, 0] = float("nan")
    return maps


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (release(d_model=16), "says d_model 16, and its matrices have 8"),
        (release(source_layers=[0, 1]), r"lists the source_layers \[0, 1\]"),
        (release(J={str(b): m for b, m in jacobians().items()}), "has the block '0'; blocks must be whole numbers"),
        (release(J={**jacobians(), 1: torch.eye(4)}), r"block 1 has shape \[4, 4\]"),
        (release(J={**jacobians(), 1: torch.zeros(8, 4)}), "must be square"),
        (release(J={**jacobians(), 1: torch.zeros(8, 8, dtype=torch.int64)}), "no matrix of real numbers at block 1"),
        (release(J=not_finite()), "not finite in the matrix of block 1"),
        (release(J={}, source_layers=[]), "holds no matrices"),
        (release(J={1: torch.eye(8), 2: torch.eye(8)}, source_layers=None), "give target_block"),
        (release(provenance=provenance(capture_point="mlp_out")), "fitted at mlp_out"),
        (release(provenance=provenance("tuned")), "names the estimator 'tuned'"),
        (release(provenance=provenance(config_json="{")), "config_json that is not JSON"),
        (release(provenance=provenance(target_layer=2)), "other than the identity at its target block 2"),
        (release(provenance=provenance(target_layer="last")), "target_block"),
        (release(provenance="none"), "provenance is a str"),
        (checkpoint(parameters={"jacobians": None}), "holds no matrices"),
        ({"state_dict": {}}, "keys state_dict, which are those of no lens format"),
        ([1, 2], "holds a list"),
    ],
)
def test_wrong_files_are_refused_with_the_reason(tmp_path, content: object, message: str) -> None:
    with pytest.raises(MindscopeError, match=message):
        read_lens(saved(tmp_path, content), model="org/m")


def test_files_that_are_cut_short_or_absent_are_refused(tmp_path) -> None:
    path = saved(tmp_path, release())
    whole = path.read_bytes()
    for length in (0, 5, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:length])
        with pytest.raises(MindscopeError, match=r"neither safetensors nor a whole PyTorch archive|not a whole"):
            read_lens(path, model="org/m")
    own = tmp_path / "lens.safetensors"
    write_lens(small_lens(), own)
    own.write_bytes(own.read_bytes()[:-10])
    with pytest.raises(MindscopeError, match="not a whole safetensors file"):
        read_lens(own)
    with pytest.raises(MindscopeError, match="cannot be read"):
        read_lens(tmp_path / "none.pt")


def test_what_the_caller_says_must_agree_with_the_file(tmp_path) -> None:
    with pytest.raises(MindscopeError, match="does not name its model"):
        read_lens(saved(tmp_path, release()))
    with pytest.raises(MindscopeError, match="its model is 'org/m', not 'org/n'"):
        read_lens(saved(tmp_path, checkpoint()), model="org/n")
    with pytest.raises(MindscopeError, match="its target_block is 3, not 4"):
        read_lens(saved(tmp_path, release(provenance=provenance())), target_block=4)
    later = read_lens(saved(tmp_path, release()), model="org/m", target_block=7)
    assert later.metadata.target_block == 7


def small_lens() -> Lens:
    meta = LensMetadata(
        model="org/m",
        revision="abc",
        tokenizer_sha256="0f",
        estimator="J++",
        target_block=3,
        rules="relp",
        skip_first=16,
        max_tokens=128,
        data_sha256="1e",
        n_prompts=64,
        versions={"torch": "2"},
    )
    router = fit_router(torch.randn(40, D, generator=torch.Generator().manual_seed(0)), n_experts=2, n_components=3)
    sums = torch.randn(2, D, D, generator=torch.Generator().manual_seed(1))
    experts = {1: Experts.from_sums(sums, torch.tensor([70, 10]), router)}
    lens = Lens(meta, jacobians(), experts=experts)
    return lens.with_weights({1: torch.tensor([0.6, -0.8])})


def test_our_own_format_keeps_everything(tmp_path) -> None:
    lens, path = small_lens(), tmp_path / "lens.safetensors"
    write_lens(lens, path)
    read = read_lens(path)
    assert read.metadata == lens.metadata
    assert all(torch.equal(read.matrix(block), lens.matrix(block)) for block in range(3))
    for name in ("maps", "counts", "fallback"):
        assert torch.equal(getattr(read.experts[1], name), getattr(lens.experts[1], name))
    assert read.experts[1].router.sha256() == lens.experts[1].router.sha256()
    assert torch.equal(read.weights[1], lens.weights[1])
    assert torch.allclose(read.matrix(1), 0.6 * read.experts[1].maps[0] - 0.8 * read.experts[1].maps[1])
    again = tmp_path / "again.safetensors"
    write_lens(read, again)
    assert again.read_bytes() == path.read_bytes()


def test_the_logit_lens_can_be_written(tmp_path, model) -> None:
    write_lens(Lens.logit(model), tmp_path / "l.safetensors", dtype=torch.float16)
    read = read_lens(tmp_path / "l.safetensors")
    read.check(model)
    assert torch.equal(read.matrix(1), torch.eye(32))


def test_export_as_a_release(tmp_path) -> None:
    write_jlens(small_lens(), tmp_path / "lens.pt")
    read = read_lens(tmp_path / "lens.pt")
    assert all(relative(read.matrix(block), small_lens().matrix(block)) < 1e-3 for block in range(3))
    assert (read.metadata.model, read.metadata.estimator, read.metadata.n_prompts) == ("org/m", "J++", 64)
    content = torch.load(tmp_path / "lens.pt", weights_only=True)
    assert set(content) == {"J", "n_prompts", "source_layers", "d_model", "provenance"}
    assert content["J"][0].dtype == torch.float16


def test_routers_round_trip_and_are_no_lens(tmp_path) -> None:
    routers = {2: small_lens().experts[1].router}
    write_routers(routers, tmp_path / "r.safetensors", model="org/m", data_sha256="0", seed=0)
    assert read_routers(tmp_path / "r.safetensors")[2].sha256() == routers[2].sha256()
    with pytest.raises(MindscopeError, match="is a file of 'routers', and 'lens' is needed"):
        read_lens(tmp_path / "r.safetensors")
    write_lens(small_lens(), tmp_path / "l.safetensors")
    with pytest.raises(MindscopeError, match="is a file of 'lens', and 'routers' is needed"):
        read_routers(tmp_path / "l.safetensors")


def test_lens_refusals(model) -> None:
    lens = small_lens()
    with pytest.raises(MindscopeError, match="d_model 8"):
        lens.check(model)
    with pytest.raises(MindscopeError, match="has no block 9; it has 0-2 and its target 3"):
        lens.matrix(9)
    with pytest.raises(MindscopeError, match="below the target"):
        Lens(lens.metadata, {3: torch.eye(8)})
    with pytest.raises(MindscopeError, match="at least one block"):
        Lens(lens.metadata, {})
    with pytest.raises(MindscopeError, match="block 0 has no experts"):
        lens.with_weights({0: torch.ones(2)})
    with pytest.raises(MindscopeError, match="2 experts and 3 weights"):
        lens.with_weights({1: torch.ones(3)})
    logit = Lens.logit(model)
    other = Lens(logit.metadata.model_copy(update={"tokenizer_sha256": "0"}), logit.matrices)
    with pytest.raises(MindscopeError, match="another tokenizer"):
        other.check(model)
    deep = Lens(logit.metadata.model_copy(update={"target_block": 5}), logit.matrices)
    with pytest.raises(MindscopeError, match="leads to block 5"):
        deep.check(model)
