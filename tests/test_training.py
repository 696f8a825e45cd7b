"""Training by one process: updates, batches, stops, settings, what a run leaves."""

import dataclasses
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import GPUtil
import pytest
import torch
from conftest import PROJECT, assert_same_run, contents, log_of, train_one_epoch
from test_ranks import batch_of
from torch import nn

import the_annotated_transformer as tutorial


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


# Numbers that stay ------------------------------------------------------------------------------


def test_a_training_gives_the_losses_that_it_always_gave(whole):
    """Captions of the built-in corpus, two epochs of four updates, in fp32.

    Other numbers are right only after a change of what is computed: of these captions, their
    tokens and batches, the first weights, dropout's random bytes, the loss, the curve of the rate
    or Adam. Other instructions of the processor change them by a millionth.
    """
    losses = [entry[name] for entry in log_of(whole) for name in ("loss", "nll")]
    expected = pytest.approx([2.9862662, 3.1664039, 2.3915568, 2.6835417], rel=1e-4)
    assert losses == expected


# One update -------------------------------------------------------------------------------------


def test_the_last_partial_accumulation_is_used():
    model = tutorial.tiny_model(dropout=0.0)
    rates = []
    compute = tutorial.SimpleLossCompute(model.generator, tutorial.LabelSmoothing(13, tutorial.PAD))
    optimizer, scheduler = tutorial.make_optimizer(model, 1.0, 10)
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    batches = [batch_of(n) for n in (2, 3, 4, 5, 6)]
    _, state = tutorial.run_epoch(batches, model, compute, optimizer, scheduler, accum_iter=2)
    assert state == tutorial.TrainState(step=3, samples=5, tokens=25)
    expected = [tutorial.rate(step, 16, 1.0, 10) for step in (1, 2, 3)]
    assert rates == expected
    with pytest.raises(ValueError, match="an iterator gives its batches once"):
        tutorial.run_epoch(iter(()), model, compute, mode="eval")
    with pytest.raises(ValueError, match="at least one, got 0"):
        tutorial.run_epoch(batches, model, compute, optimizer, scheduler, accum_iter=0)
    with pytest.raises(ValueError, match="without a single target token"):
        tutorial.run_epoch([batch_of()], model, compute, optimizer, scheduler)


def test_each_pass_has_an_order_of_its_own_and_as_many_updates():
    lengths = [(n % 30 + 1, n % 23 + 1) for n in range(501)]
    sorted_, *dealt = [
        tutorial.token_batches(lengths, 257, order) for order in (None, *map(random.Random, "121"))
    ]
    assert dealt[0] == dealt[2] != dealt[1]
    result = {*map(len, dealt)}
    assert result == {len(sorted_)}
    result = tutorial.token_batches([(3, 30)], 10)
    assert result == [[0]], "longer than the budget"
    assert tutorial.token_batches([], 10) == []


def test_a_straight_line_to_zero():
    rates = [tutorial.linear_rate(step, 64, 2.0, 10, 50) for step in range(1, 51)]
    expected = pytest.approx([tutorial.rate(step, 64, 2.0, 10) for step in range(1, 11)])
    assert rates[:10] == expected
    falls = [a - b for a, b in itertools.pairwise(rates[9:])]
    assert falls == pytest.approx([max(rates) / 40] * 40)
    assert rates[-1] == 0
    assert tutorial.linear_rate(99, 64, 2.0, 10, 50) == tutorial.linear_rate(1, 64, 2.0, 1, 1) == 0


# Stops ------------------------------------------------------------------------------------------


def stop_after(monkeypatch, updates: int, action) -> None:
    """Call an action after so many updates."""
    step = tutorial.train_step
    made = []

    def counted(*given, **options):
        made.append(step(*given, **options))
        if len(made) == updates:
            action()
        return made[-1]

    monkeypatch.setattr(tutorial, "train_step", counted)


def judge_by(monkeypatch, bleu: Iterator[float]) -> None:
    """In the place of judging an epoch: a given BLEU."""
    judged = {"nll": 1.0, "perplexity": 2.0}
    monkeypatch.setattr(tutorial, "validate", lambda *_: judged | {"BLEU": next(bleu)})


@pytest.mark.parametrize(
    "number, epochs, more", [(signal.SIGINT, 0, 1), (signal.SIGTERM, 1, 0), (signal.SIGINT, 1, 2)]
)
def test_a_stopped_run_ends_like_one_that_was_not(
    small_config, whole, tmp_path, monkeypatch, number, epochs, more
):
    run = tmp_path / "run"
    updates = epochs * log_of(whole)[0]["updates"] + more
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        stop_after(patch, updates, lambda: signal.raise_signal(number))
        assert tutorial.train_model(small_config, run) == "stopped"
    result = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    assert result == handlers
    assert len(list(run.glob("checkpoint-*.pt"))) == len(log_of(run)) == epochs
    assert tutorial.read_run(run).status == "stopped"
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)


def test_a_second_ctrl_c_ends_at_once(small_config, tmp_path, monkeypatch):
    stop_after(monkeypatch, 2, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt):
        tutorial.train_model(small_config, tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_limit_of_time(small_config, whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    clock = [0.0]
    now = time.monotonic
    assert tutorial.train_model(small_config, run, minutes=0) == "stopped"
    assert log_of(run) == []
    assert not list(run.glob("*.pt"))
    monkeypatch.setattr(tutorial.time, "monotonic", lambda: now() + clock[0])
    updates = log_of(whole)[0]["updates"] + 1
    stop_after(monkeypatch, updates, lambda: clock.append(clock.pop() + 3601.0))
    assert tutorial.train_model(small_config, run, minutes=60) == "stopped"
    assert len(log_of(run)) == 1


def test_training_at_the_command_line(small_corpus, tmp_path, capsys):
    """A header, a line for each epoch, at the end what to do; the same command goes on."""
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 2 --vocab-size 0 --no-share-embeddings --min-freq 1"
    sizes += " --schedule inverse_sqrt --warmup 1 --batch-tokens 128 --epochs 40"
    words = ["train", "--data", str(small_corpus), *sizes.split(), "--folder", "my run"]
    command = [sys.executable, str(PROJECT / tutorial.SCRIPT), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        corpus, machine, plan, place, *lines = [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err == ""
    assert "\r" not in out
    told = r"\S+ \(de-en\): 120 of 120 pairs fit, \d\d+ and \d\d+ tokens are known\n"
    assert re.fullmatch(told, corpus)
    assert "processes: 1 of " in machine
    told = r"40 epochs, 1 to a pass, \d\d updates of 128 positions each, warm-up 1 updates\n"
    assert re.fullmatch(told, plan)
    assert place == "my run: 0 of 40 epochs are done; make curves ARGS=my run\n"
    for number, line in enumerate(lines, 1):
        told = rf"epoch {number}/40: loss .* tokens/s, \d+ minutes left\n"
        assert re.fullmatch(told, line)
    *others, translates, goes_on = out.splitlines()
    assert any(line.startswith("best: epoch ") for line in others[-2:])
    assert goes_on == "stopped: the same command goes on, with the unfinished epoch"
    os.chdir(tmp_path)
    done = len(log_of(tmp_path / "my run"))
    for before in (done, 40):  # the second time it is finished already
        assert tutorial.main(words) == 0
        said = capsys.readouterr().out
        assert f"my run: {before} of 40 epochs are done" in said
        assert said.count("epoch 40/40: loss ") == (before < 40)
    words = shlex.split(translates.partition(": ")[2].replace("my run", "'my run'"))
    assert tutorial.main([*words, "Ein Hund."]) == 0
    assert capsys.readouterr().err.startswith("model my run (de → en), trained on ")


def test_the_shares_of_a_pass_hold_every_sentence_once(small_config):
    config = dataclasses.replace(small_config, shares=3, accum_iter=1)
    data = tutorial.encode_corpus(tutorial.find_corpus(config.data), config)
    epochs = [tutorial.updates_of_epoch(config, data, number) for number in range(6)]
    passes = [[batch for epoch in half for [batch] in epoch] for half in (epochs[:3], epochs[3:])]
    every = list(range(len(data.train)))
    for batches in passes:
        assert sorted(itertools.chain(*batches)) == every
        lengths = [data.train.lengths[batch].amax(0).tolist() for batch in batches]
        assert all(
            max(a, b - 1) * len(batch) <= 128
            for (a, b), batch in zip(lengths, batches, strict=True)
        )
    assert passes[0] != passes[1], "in another order"
    result = max(map(len, epochs)) - min(map(len, epochs))
    assert result <= 2


def test_a_run_of_shares_is_stopped_and_goes_on(small_config, tmp_path):
    config = dataclasses.replace(small_config, shares=3)
    whole = tmp_path / "whole"
    run = tmp_path / "run"
    tutorial.train_model(config, whole)
    train_one_epoch(config, run)
    assert len(log_of(run)) == 1
    assert tutorial.train_model(config, run) == "finished"
    assert len(log_of(run)) == 6
    assert_same_run(run, whole)


def test_of_texts_without_a_score_the_likeliest_is_the_best(small_config, tmp_path, monkeypatch):
    """BLEU is 0 where no text has four tokens."""
    nll = iter([4.0, 1.0, 2.0])
    monkeypatch.setattr(
        tutorial, "validate", lambda *_: {"nll": next(nll), "perplexity": 2.0, "BLEU": 0.0}
    )
    tutorial.train_model(dataclasses.replace(small_config, epochs=3), tmp_path / "run")
    assert tutorial.read_run(tmp_path / "run").best() == "epoch-002"


# Going on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"d_model": 32}, {"norm_first": False}, {"epochs": 2}], ids=str)
def test_going_on_with_other_settings(small_config, small_run, change):
    """All that differs is named."""
    before = contents(small_run)
    [name] = change
    config = dataclasses.replace(small_config, epochs=1, seed=7)
    with pytest.raises(ValueError, match="was made with ") as caught:
        tutorial.train_model(dataclasses.replace(config, **change), small_run)
    was = 1 if name == "epochs" else getattr(config, name)
    assert f"{name}={was}" in str(caught.value)
    assert "seed=1" in str(caught.value)
    assert "use the same, or another folder" in str(caught.value)
    assert contents(small_run) == before


@pytest.fixture
def moved(small_config, small_corpus, small_run, tmp_path) -> SimpleNamespace:
    """A run of one epoch, and its text at another place."""
    place = shutil.copytree(small_corpus, tmp_path / "elsewhere")
    run = shutil.copytree(small_run, tmp_path / "run")
    return SimpleNamespace(place=place, run=run, config=dataclasses.replace(
        small_config, data=str(place), epochs=1))  # fmt: skip


def test_a_run_goes_on_where_its_text_has_moved(moved):
    assert tutorial.train_model(moved.config, moved.run) == "finished"
    result = tutorial.read_run(moved.run).settings.data
    assert result == str(moved.place)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_run_does_not_go_on_with_another_text(moved, split):
    path = moved.place / f"{split}.en"
    path.write_text(path.read_text("utf-8").replace("dog", "cat").replace("A ", "One "), "utf-8")
    before = contents(moved.run)
    with pytest.raises(
        ValueError, match=r"elsewhere is not the text that .*: name that text by --data"
    ):
        tutorial.train_model(moved.config, moved.run)
    assert contents(moved.run) == before


def test_another_machine_is_no_error(small_config, small_run, tmp_path, monkeypatch):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    with pytest.warns(UserWarning, match="64 threads.*not bit for bit the same run"):
        tutorial.train_model(dataclasses.replace(small_config, epochs=1), run)


# What a run leaves ------------------------------------------------------------------------------


@pytest.mark.parametrize("loads, entry", [(["0.42", "0.973"], [42, 97]), (["no answer"], [])])
def test_what_a_run_keeps(small_config, tmp_path, monkeypatch, loads, entry):
    def gpus() -> list:  # a driver that fails says so where a number should stand
        return [SimpleNamespace(load=float(load)) for load in loads]

    monkeypatch.setattr(GPUtil, "getGPUs", gpus)
    run = tmp_path / "run"
    config = dataclasses.replace(small_config, epochs=1)
    tutorial.train_model(config, run)
    [log] = json.loads((run / "run.json").read_text())["history"]
    assert log["gpu"] == entry
    assert log["epoch"] == 1
    assert log["updates"] > 2
    assert log["loss"] > 0
    assert log["minutes"] > 0
    assert log["tokens_per_second"] > 0
    assert log["nll"] > 0
    assert log["bleu"] >= 0
    content = tutorial.read_run(run)
    assert content.status == "finished"
    assert content.best() == "epoch-001"
    assert content.corpus == Path(config.data).name
    assert content.settings == dataclasses.replace(config, shares=1)


@pytest.mark.parametrize("vocab_size", [0, 5000])
def test_a_run_translates_from_whatever_place_of_it_is_named(
    small_config, tmp_path, capsys, vocab_size
):
    """Neither 5,000 subwords nor a warm-up of 1,000 updates are to be had of so small a corpus."""
    sizes = {
        "vocab_size": vocab_size,
        "share_embeddings": vocab_size > 0,
        "max_len": 64,
        "epochs": 1,
    }
    config = dataclasses.replace(small_config, warmup=1000, **sizes)
    run = tmp_path / "run"
    tutorial.train_model(config, run)
    assert ", warm-up 2 updates\n" in capsys.readouterr().out
    first = tutorial.load_trained_model(run)
    lines = ["Ein Hund schläft.", "", "Eine Frau hält im Park ein neues Buch."]
    written = tutorial.translate(first, lines)
    assert written[1] == ""
    assert first.languages == ("de", "en")
    for place in (str(run), run / "epoch-001"):
        again = tutorial.load_trained_model(place)
        assert tutorial.translate(again, lines) == written
        assert torch.equal(flat(again.model), flat(first.model))


def test_the_command_for_the_paper_s_base_model(monkeypatch):
    """As the text has it: one list of 37,000 symbols, batches of 25,000, the norm after the sum."""
    text = (PROJECT / tutorial.SCRIPT).read_text("utf-8").replace("\\\n#", "")
    squeezed = re.sub(r"\s+", " ", text)
    [words] = re.findall(
        r"# torchrun --standalone --nproc-per-node 8 \S+ (train .*?) ```", squeezed
    )
    asked = []
    monkeypatch.setattr(tutorial, "train_model", lambda config, *_, **__: asked.append(config))
    monkeypatch.setattr(tutorial, "read_run", lambda _: SimpleNamespace(history=[], corpus=""))
    assert tutorial.main(shlex.split(words.replace("#", ""))) == 0
    [config] = asked
    assert config.batch_tokens == 25_000
    assert not config.norm_first
    assert config.share_embeddings
    assert config.vocab_size == 37_000
    assert config.schedule == "inverse_sqrt"


# Fast forms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [True, False])
def test_fast_forms_have_the_gradients_of_the_plain_ones(norm_first):
    plain = tutorial.tiny_model(norm_first=norm_first).double()
    batch = batch_of(2, 5)
    fast = tutorial.make_fast(tutorial.copy.deepcopy(plain))
    assert not {type(module) for module in fast.modules()} & set(tutorial.FASTER)
    for model in (plain, fast):
        model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask).square().sum().backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-9)
