"""The tool for a GPU, tried on a CPU, and what its record says."""

import dataclasses
import math
import statistics

import pytest
import torch
import torch.distributed as dist

import the_annotated_transformer as tutorial
from tools import records
from tools.results import gpu, plan
from tools.results import recipe as results
from tools.results import speed as bench

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")
TINY = dataclasses.replace(
    plan.RUNS["recipe-1"],
    data="builtin",
    vocab_size=None,
    N=1,
    d_model=16,
    d_ff=32,
    h=2,
    batch_tokens=64,
    shares=None,
)
WORKER = tutorial.Worker(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """A moment on a CPU, which has no memory of its own to ask for."""
    monkeypatch.setattr(gpu, "RECIPE", TINY)
    monkeypatch.setattr(bench, "SIZES", dict.fromkeys(bench.SIZES, TINY))
    monkeypatch.setattr(gpu, "SECONDS", 0.01)
    monkeypatch.setattr(gpu, "AT_ONCE", 2)
    monkeypatch.setattr(gpu, "WARM_UP", 1)
    monkeypatch.setattr(gpu, "COMPARED", 3)
    for name in ("empty_cache", "reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2**20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2**22)


@pytest.mark.parametrize("case", gpu.CASES, ids=lambda case: case.name)
def test_a_case_is_measured(case):
    found = gpu.measured(case, WORKER, {"fp32": 1e12, "bf16": 2e12})
    assert found["peak MB"] == 3
    assert len(found["rounds"]) == gpu.ROUNDS
    assert all(number > 0 for each in found["rounds"] for number in each.values())


def test_operations_are_those_of_the_text():
    batch = tutorial.Batch(torch.ones(3, 5).long(), torch.ones(3, 7).long())
    expected = 3 * tutorial.training_flops(TINY.N, TINY.d_model, TINY.d_ff, 11, 5, 6)
    assert gpu.operations(TINY, 11, batch) == expected


def test_formats_are_compared_without_dropout():
    found = gpu.formats(WORKER)
    assert found["fp32"] == {"loss": 0.0, "gradient": 0.0}
    assert 1e-4 < found["bf16"]["gradient"] < 0.1


def test_weights_are_compared_with_and_without_an_exchange(monkeypatch):
    begin = dist.init_process_group
    begun = []

    def init(backend, **options):
        begun.append(backend)
        begin("gloo", **options)

    monkeypatch.setattr(dist, "init_process_group", init)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 0, 1))
    found = gpu.nccl(WORKER)
    assert begun == ["nccl"]
    assert found == {"version": "2.0.1", "updates": 3, "without": 0.0, "with": 0.0}
    updates = bench.Training.updates

    def lost_updates(training, number):
        return None if dist.is_initialized() else updates(training, number)

    monkeypatch.setattr(bench.Training, "updates", lost_updates)
    assert gpu.nccl(WORKER)["with"] > 0


@pytest.mark.parametrize("named", ["", "0", "-1"])
def test_no_gpu_is_refused_before_anything_is_done(monkeypatch, capsys, named):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(records, "read", lambda name: {})
    assert gpu.main(["measure"]) == 1
    assert results.main(["train", "gpu-2"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("error: no NVIDIA GPU") for line in errors)


# What is said of the record ----------------------------------------------------------------------


def test_the_gpu_computes_what_the_cpu_computes():
    record = records.read("gpu")
    formats = record["formats"]
    assert formats["fp32"]["gradient"] < 1e-4
    assert formats["bf16"]["gradient"] < torch.finfo(torch.bfloat16).eps
    assert record["nccl"]["with"] == record["nccl"]["without"] == 0


def test_the_recipe_ends_alike_on_both_machines():
    """README: the seeds do not tell its perplexity on the GPU from that on the CPU."""
    ends = []
    for names, device in ((plan.FULL, "cpu"), (plan.ON_GPU, "cuda")):
        runs = [records.read(f"runs/{name}") for name in names]
        assert {run["summary"]["device"] for run in runs} == {device}
        ends.append([math.exp(run["log"][-1]["nll"]) for run in runs])
    cpu, gpu_ = ends
    assert abs(statistics.mean(cpu) - statistics.mean(gpu_)) < max(cpu) - min(cpu)


def test_what_the_text_says_of_the_gpu_is_on_record():
    """Base stays far below the speed of large products; bf16 gains nothing."""
    speed = {}
    for case in records.read("gpu")["cases"]:
        speeds = [each["tokens per second"] for each in case["rounds"]]
        speed[case["code"], case["size"], case["dtype"]] = statistics.median(speeds)
        assert statistics.median(each["share of peak"] for each in case["rounds"]) < 0.4
    for code in ("torch", "ours"):
        for size in bench.SIZES:
            assert speed[code, size, "bf16"] < 1.05 * speed[code, size, "fp32"]


def test_cases_of_the_record_are_those_of_the_tool():
    about = ("task", "code", "size", "dtype")
    made = [{name: case[name] for name in about} for case in records.read("gpu")["cases"]]
    assert made == [{name: getattr(case, name) for name in about} for case in gpu.CASES]
