import pytest
import torch
from mindscope.whitebox.lens.jacobian import JacobianSettings
from mindscope.whitebox.model import LocalModel
from support.pair_jacobians import random_ids
from support.tiny_models import tiny_local, tiny_model, tiny_tokenizer


@pytest.fixture(scope="session")
def model() -> LocalModel:
    return tiny_local("qwen3")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """The same model as a folder, for other processes to load."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model("qwen3").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Five prompts of different lengths; the third has no kept position when four are skipped."""
    return [random_ids(n, seed=n) for n in (12, 15, 5, 18, 14)]


@pytest.fixture(scope="session")
def settings() -> JacobianSettings:
    return JacobianSettings(blocks=(0, 1), target_block=2, skip_first=4, rules="relp", rows_per_pass=11)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
