"""Training: one update by hand, and the settings that a run is given or chooses."""

import copy
import dataclasses
import os
import platform
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch
from conftest import PROJECT, log_of, write_pairs
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import the_annotated_transformer as tutorial
from the_annotated_transformer import Config

# One update -------------------------------------------------------------------------------------


def batch_of(*lengths: int) -> tutorial.Batch:
    """Sentences of these lengths, each copied."""
    ids = [[tutorial.START, *range(4, 4 + length), tutorial.END] for length in lengths]
    return tutorial.Batch(tutorial.pad_ids(ids), tutorial.pad_ids(ids))


def loss_compute(model: nn.Module) -> tutorial.SimpleLossCompute:
    return tutorial.SimpleLossCompute(model.generator, tutorial.LabelSmoothing(13, 2, 0.1))


def by_descent(model: nn.Module, batches: list, bf16: bool = False, **options) -> torch.Tensor:
    """How one step of plain gradient descent, at a learning rate of 1, moves all weights."""
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ConstantLR(descent, 1.0)
    net, compute = model, loss_compute(model)
    if bf16:
        net = tutorial.MixedPrecision(model, torch.device("cpu"))
        compute = torch.autocast("cpu", torch.bfloat16)(compute)
    tutorial.run_epoch(batches, net, compute, descent, schedule, **options)
    return nn.utils.parameters_to_vector(model.parameters()).detach() - before


def test_an_incomplete_last_accumulation_is_an_update():
    model = tutorial.tiny_model(dropout=0.0)
    rates = []
    optimizer, scheduler = tutorial.make_optimizer(model, 1.0, 10)
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    batches = [batch_of(n) for n in (2, 3, 4, 5, 6)]
    given = batches, model, loss_compute(model), optimizer, scheduler
    _, state = tutorial.run_epoch(*given, accum_iter=2)
    assert state == tutorial.TrainState(step=3, samples=5, tokens=25)
    assert rates == [tutorial.rate(step, 16, 1.0, 10) for step in (1, 2, 3)]
    _, again = tutorial.run_epoch(*given, accum_iter=5, train_state=state)
    assert again is state
    assert state == tutorial.TrainState(step=4, samples=10, tokens=50)
    with pytest.raises(ValueError, match='"train" or "eval", got \'test\''):
        tutorial.run_epoch(*given, mode="test")


def test_an_update_follows_the_gradient_of_the_mean_over_all_tokens():
    """By plain gradient descent: Adam, which divides by the gradient, hides a wrong factor."""
    batches = [batch_of(1, 2), batch_of(1)]  # 5 and 2 tokens, ends included
    model = tutorial.tiny_model(dropout=0.0).double()
    by_hand = copy.deepcopy(model)
    criterion = tutorial.LabelSmoothing(13, tutorial.PAD, 0.1)
    for b in batches:
        states = by_hand(b.src, b.tgt, b.src_mask, b.tgt_mask)
        (criterion(by_hand.generator(states), b.tgt_y) / 7).backward()
    gradient = torch.cat([p.grad.flatten() for p in by_hand.parameters()])
    torch.testing.assert_close(by_descent(model, batches, accum_iter=2), -gradient)
    assert gradient.norm() > 0.1


def test_a_long_gradient_is_shortened_and_a_short_one_is_not():
    start = tutorial.tiny_model(dropout=0.0)
    used = {}
    for clip in (None, 1e-3, 1e3):
        model = copy.deepcopy(start)
        config = tutorial.Config(clip=clip, factor=1.0, warmup=10)
        optimizer, scheduler = tutorial.new_optimizer(model, config, updates=10)
        by_weight = []
        optimizer.register_step_pre_hook(
            lambda *_, model=model, found=by_weight: found.extend(
                p.grad for p in model.parameters()
            )
        )
        given = [batch_of(3, 5)], model, loss_compute(model), optimizer, scheduler
        tutorial.run_epoch(*given)
        used[clip] = nn.utils.parameters_to_vector(grad.clone() for grad in by_weight)
    assert used[1e-3].norm().item() == pytest.approx(1e-3, rel=1e-2)
    torch.testing.assert_close(used[1e3], used[None])
    direction = nn.functional.cosine_similarity(used[1e-3], used[None], dim=0)
    assert direction.item() == pytest.approx(1.0, abs=1e-4)


def test_a_step_in_mixed_precision_is_nearly_that_of_fp32():
    model = tutorial.tiny_model(dropout=0.0)
    plain = by_descent(copy.deepcopy(model), [batch_of(3, 5)])
    bf16 = by_descent(model, [batch_of(3, 5)], bf16=True)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert 0 < (bf16 - plain).norm() < 0.1 * plain.norm()


def test_the_log_gets_the_sums_so_far_after_each_update():
    model = tutorial.tiny_model(dropout=0.0)
    calls = []

    def log(loss_sum: torch.Tensor, tokens: float) -> None:
        calls.append((loss_sum.item(), tokens))

    batches = [batch_of(2), batch_of(3), batch_of(4)]
    optimizer = tutorial.make_optimizer(model, 1.0, 10)
    given = batches, model, loss_compute(model), *optimizer
    loss, _ = tutorial.run_epoch(*given, accum_iter=2, log=log)
    assert [tokens for _, tokens in calls] == [7, 12]
    assert calls[0][0] < calls[1][0] == pytest.approx(12 * loss)


class Reads(TorchDispatchMode):
    """Records the operations that read a number back, for which a CPU would wait."""

    READING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name().partition(".")[0] in self.READING:
            self.found.append(function.name())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_an_epoch_reads_its_loss_at_the_end_and_nothing_else(mode):
    """Of batches that know their tokens beforehand."""
    model = tutorial.tiny_model()
    given = batch_of(5, 6, 2), batch_of(1, 3)
    compute = loss_compute(model)
    with Reads() as reads:
        batches = [tutorial.Batch(b.src, b.src, ntokens=b.ntokens) for b in given]
        config = tutorial.Config(clip=1.0, factor=1.0, warmup=10)
        optimizer, scheduler = tutorial.new_optimizer(model, config, updates=10)
        tutorial.run_epoch(
            batches, model, compute, optimizer, scheduler, mode, log=lambda *sums: None
        )
    assert reads.found == ["aten::_local_scalar_dense"]


def test_batches_come_in_order_from_a_thread_that_is_ahead():
    done = []

    def work(number: int) -> int:
        done.append(number)
        return number * number

    with ThreadPoolExecutor(1) as pool:
        results = tutorial.ahead(pool, work, range(20), number=4)
        assert next(results) == 0
        pool.submit(int).result()  # the thread has done all that it was given
        assert done == [0, 1, 2, 3, 4]
        assert list(results) == [number * number for number in range(1, 20)]
        broken = tutorial.ahead(pool, lambda number: 1 // number, [1, 0, 1])
        with pytest.raises(ZeroDivisionError):
            list(broken)


FAULTS = """
import resource
import torch
import the_annotated_transformer as at

if {kept}:
    at.keep_freed_memory()
for number in range(20):
    torch.zeros(25_000_000 - number)
    if number == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_used_again():
    """Most tensors of 100 MB take the place of the one before: no new pages."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library")
    tuned = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")
    environment = {name: value for name, value in os.environ.items() if name not in tuned}
    pages = {}
    for kept in (True, False):
        command = [sys.executable, "-c", FAULTS.format(kept=kept)]
        pages[kept] = int(subprocess.check_output(command, env=environment, cwd=PROJECT))
    if pages[False] < 10_000:
        pytest.skip("this system does not count pages, or has large ones")
    assert pages[True] < pages[False] / 1.5  # a system may take pages back meanwhile


@pytest.mark.slow
@pytest.mark.long
def test_a_compiled_training_has_the_same_losses(small_config, tmp_path, monkeypatch):
    """Without dropout, which a compiled model draws from other numbers."""
    try:
        torch.compile(torch.neg)(torch.ones(1))
    except torch._dynamo.exc.TorchDynamoException as error:
        pytest.skip(f"no compiler: {error}")
    compile_ = Mock(side_effect=torch.compile)
    monkeypatch.setattr(torch, "compile", compile_)
    losses = {}
    for compiled in (False, True):
        config = dataclasses.replace(
            small_config, dropout=0.0, attention_dropout=0.0, compile=compiled
        )
        tutorial.train_model(config, tmp_path / str(compiled))
        losses[compiled] = [each["loss"] for each in log_of(tmp_path / str(compiled))[:2]]
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
    assert compile_.call_count == 2, "the model and the loss"


def test_weight_decay_shrinks_matrices_only():
    model = tutorial.draw_weights(tutorial.tiny_model())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = tutorial.Config(weight_decay=0.5, warmup=1, factor=1.0)
    adam, _ = tutorial.new_optimizer(model, config, updates=9)
    for group in adam.param_groups:
        group["lr"] = 0.1
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    adam.step()
    for name, p in model.named_parameters():
        share = 0.95 if p.dim() > 1 else 1.0
        torch.testing.assert_close(p, share * before[name], msg=name)


def test_a_model_of_few_positions_has_a_cache():
    assert tutorial.cache_agrees(tutorial.tiny_model(max_len=2))


# Settings ---------------------------------------------------------------------------------------


class Invented:
    """A corpus of so many pairs, of which only the lengths are known."""

    def __init__(self, pairs: int):
        self.pairs = pairs

    def __len__(self) -> int:
        return self.pairs

    def positions(self, numbers=slice(None)) -> torch.Tensor:
        return torch.tensor([(16, 9)]).expand(self.pairs, 2)[numbers]


VOCABULARIES = (tutorial.Vocabulary(("a", "b")),) * 2


def choose(pairs: int, **given) -> Config:
    return tutorial.choose_settings(Config(**given), Invented(pairs), VOCABULARIES)


@pytest.mark.parametrize(
    "given",
    [
        {"warmup": 500, "factor": 1.0, "epochs": 1},
        {"batch_tokens": 50_000, "shares": 2, "epochs": 3},
        {"precision": "bf16", "share_embeddings": False, "vocab_size": 0, "average": 0},
    ],
    ids=str,
)
def test_given_settings_are_used_and_the_others_are_chosen(given):
    for pairs in (60, 9000):
        chosen = choose(pairs, **given)
        assert given.items() <= vars(chosen).items()
        assert None not in [getattr(chosen, name) for name in tutorial.CHOSEN]


def test_a_large_corpus_has_larger_batches_fewer_passes_and_more_shares():
    few, many = choose(60), choose(200_000)
    assert few.batch_tokens < many.batch_tokens
    assert few.epochs / few.shares > many.epochs / many.shares
    assert few.shares == 1 < many.shares


@pytest.mark.parametrize("schedule", ["linear", "inverse_sqrt"])
def test_the_peak_of_the_learning_rate_does_not_depend_on_the_corpus(schedule):
    peaks = []
    for pairs in (60, 9000):
        chosen = choose(pairs, schedule=schedule)
        total = tutorial.planned_updates(chosen, Invented(pairs))
        _, scheduler = tutorial.new_optimizer(tutorial.tiny_model(), chosen, total)
        rates = [scheduler.lr_lambdas[0](update) for update in range(min(total, 1500))]
        assert rates.index(max(rates)) + 1 == chosen.warmup
        peaks.append(max(rates))
    assert peaks[0] == pytest.approx(peaks[1])


@pytest.mark.parametrize(
    "cpu, amx, faster",
    [("Intel Xeon", True, True), ("Intel Xeon", False, False), ("AMD EPYC", False, True)],
)
def test_bf16_is_chosen_where_products_are_faster(one_cpu, monkeypatch, cpu, amx, faster):
    able = {"cpu_name": cpu, "avx512_bf16": True, "amx_bf16": amx}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert one_cpu(torch.device("cpu")) == faster
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not one_cpu(torch.device("cpu"))


def test_the_command_for_the_base_model_of_the_paper_can_be_given(monkeypatch):
    text = (PROJECT / tutorial.SCRIPT).read_text("utf-8").replace("\\\n#", "")
    [command] = re.findall(r"# torchrun .*? (train [^`]*)\n# ```", text)
    asked = []
    monkeypatch.setattr(tutorial, "train_model", lambda config, *_: asked.append(config))
    assert tutorial.main(shlex.split(command)) == 0
    [config] = asked
    assert (config.N, config.h, config.d_model, config.d_ff) == (6, 8, 512, 2048)
    assert not config.norm_first


@pytest.mark.slow
def test_a_small_corpus_trains_with_the_default_settings(tmp_path, capsys):
    """But for the size of the model; without a test split the validation split is scored."""
    pairs = tutorial.builtin_corpus()["train"][:90]
    data = write_pairs(tmp_path / "mine", ("de", "en"), train=pairs[30:], val=pairs[:30])
    sizes = "--N 1 --d-model 64 --d-ff 256 --h 4 --dropout 0.1 --folder".split()
    assert tutorial.main(["train", "--data", str(data), *sizes, str(tmp_path / "run")]) == 0
    assert tutorial.main(["evaluate", "--model", str(tmp_path / "run")]) == 0
    bleu = float(re.search(r"val: BLEU (\S+) ", capsys.readouterr().out)[1])
    assert bleu > 20
