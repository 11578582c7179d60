import importlib.util
import sys
from types import ModuleType

import pytest
from mindscope.stimuli import data_path


@pytest.fixture(scope="session")
def generator() -> ModuleType:
    """`data/space_tracking/generate.py` as a module."""
    spec = importlib.util.spec_from_file_location("generate", data_path("space_tracking/generate.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module
