"""The bare model: made from the script, it runs by itself and is the script's model."""

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import the_annotated_transformer as at
from tools.page import bare
from tools.records import PROJECT


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("bare") / "transformer.py"
    assert bare.main(["make", str(PROJECT / "the_annotated_transformer.py"), str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def module(file):
    spec = importlib.util.spec_from_file_location("transformer", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["transformer"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["transformer"]


def few(data_gen, vocab, *_):
    return data_gen(vocab, 16, 20)


def test_its_model_and_its_training_are_those_of_the_script(module):
    one, other = (each.new_copy_model(norm_first=False) for each in (module, at))
    for model in (one, other):
        assert sum(weight.numel() for weight in model.parameters()) > 100_000
    losses = []
    for source, model in ((module, one), (at, other)):
        torch.manual_seed(1)
        losses.append(next(source.train_to_copy(model, functools.partial(few, source.data_gen))))
    assert losses[0] == losses[1]
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


@pytest.mark.slow
@pytest.mark.long
def test_run_in_an_empty_folder_it_learns_to_copy(file, tmp_path):
    told = subprocess.check_output([sys.executable, str(file)], cwd=tmp_path, text=True)
    source, copy = told.splitlines()[-2:]
    assert source.split()[1:] == copy.split()[1:]
