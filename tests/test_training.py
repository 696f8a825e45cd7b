"""Training by one process: updates, batches, stops, settings, what a run leaves."""

import dataclasses
import itertools
import json
import math
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
from unittest.mock import create_autospec

import GPUtil
import pytest
import torch
import tqdm
from conftest import PROJECT, assert_same_run, log_of
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
    assert losses == pytest.approx([2.9758365, 3.1442666, 2.4044319, 2.6318658], rel=1e-4)


# One update -------------------------------------------------------------------------------------


def test_the_last_partial_accumulation_is_used():
    model, rates = tutorial.tiny_model(dropout=0.0), []
    compute = tutorial.SimpleLossCompute(model.generator, tutorial.LabelSmoothing(13, tutorial.PAD))
    optimizer, scheduler = tutorial.make_optimizer(model, 1.0, 10)
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    batches = [batch_of(n) for n in (2, 3, 4, 5, 6)]
    _, state = tutorial.run_epoch(batches, model, compute, optimizer, scheduler, accum_iter=2)
    assert state == tutorial.TrainState(step=3, samples=5, tokens=25)
    assert rates == [tutorial.rate(step, 16, 1.0, 10) for step in (1, 2, 3)]
    with pytest.raises(ValueError, match="without a single target token"):
        tutorial.run_epoch([batch_of()], model, compute, optimizer, scheduler)


def test_each_pass_has_an_order_of_its_own_and_as_many_updates():
    lengths = [(n % 30 + 1, n % 23 + 1) for n in range(501)]
    sorted_, *dealt = [
        tutorial.token_batches(lengths, 257, order) for order in (None, *map(random.Random, "121"))
    ]
    assert dealt[0] == dealt[2] != dealt[1] and {*map(len, dealt)} == {len(sorted_)}
    assert tutorial.token_batches([(3, 30)], 10) == [[0]], "longer than the budget"


def test_a_straight_line_to_zero():
    rates = [tutorial.linear_rate(step, 64, 2.0, 10, 50) for step in range(1, 51)]
    assert rates[:10] == pytest.approx([tutorial.rate(step, 64, 2.0, 10) for step in range(1, 11)])
    falls = [a - b for a, b in itertools.pairwise(rates[9:])]
    assert falls == pytest.approx([max(rates) / 40] * 40) and rates[-1] == 0
    assert tutorial.linear_rate(99, 64, 2.0, 10, 50) == tutorial.linear_rate(1, 64, 2.0, 1, 1) == 0


# Stops ------------------------------------------------------------------------------------------


def stop_after(monkeypatch, updates: int, action) -> None:
    """Call an action after so many updates."""
    step, made = tutorial.train_step, []

    def counted(*given, **options):
        made.append(step(*given, **options))
        if len(made) == updates:
            action()
        return made[-1]

    monkeypatch.setattr(tutorial, "train_step", counted)


def judge_by(monkeypatch, bleu: Iterator[float]) -> None:
    """In the place of judging an epoch: a given BLEU."""
    judged = {"nll": 1.0, "perplexity": 2.0}
    monkeypatch.setattr(tutorial, "validate", lambda *_: judged | {"bleu": next(bleu)})


@pytest.mark.parametrize(
    "number, epochs, more", [(signal.SIGINT, 0, 1), (signal.SIGTERM, 1, 0), (signal.SIGINT, 1, 2)]
)
def test_a_stopped_run_ends_like_one_that_was_not(
    small_config, whole, tmp_path, monkeypatch, number, epochs, more
):
    run, updates = tmp_path / "run", epochs * log_of(whole)[0]["updates"] + more
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        stop_after(patch, updates, lambda: signal.raise_signal(number))
        assert tutorial.train_model(small_config, run) == "stopped"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert (run / "last.pt").exists() == (epochs > 0)
    if epochs:
        assert len(log_of(run)) == epochs and tutorial.read_summary(run)["status"] == "stopped"
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)


def test_a_second_ctrl_c_ends_at_once(small_config, tmp_path, monkeypatch):
    stop_after(monkeypatch, 2, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt):
        tutorial.train_model(small_config, tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_limit_of_time(small_config, whole, tmp_path, monkeypatch):
    run, clock, now = tmp_path / "run", [0.0], time.monotonic
    assert tutorial.train_model(small_config, run, minutes=0) == "stopped"
    assert not (run / "last.pt").exists()
    monkeypatch.setattr(tutorial.time, "monotonic", lambda: now() + clock[0])
    updates = log_of(whole)[0]["updates"] + 1
    stop_after(monkeypatch, updates, lambda: clock.append(clock.pop() + 3601.0))
    assert tutorial.train_model(small_config, run, minutes=60) == "stopped"
    assert len(log_of(run)) == 1


def test_training_at_the_command_line(small_corpus, tmp_path, capsys):
    """A header, a plain line for each epoch, and at the end commands that do what they say."""
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 2 --pieces 0 --no-share-embeddings --min-freq 1"
    sizes += " --schedule root --warmup 1 --batch-tokens 128 --epochs 100000 --folder"
    program = [sys.executable, str(PROJECT / tutorial.SCRIPT)]
    command = [*program, "train", "--data", str(small_corpus), *sizes.split(), "my run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        corpus, machine, plan, place, *lines = [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err == "" and "\r" not in out
    told = r"\S+ \(de → en\): 120 pairs, \d+ and \d+ symbols, [\d,]+ parameters\n"
    assert re.fullmatch(told, corpus) and "processes: 1 of " in machine
    told = r"100000 epochs of \d\d updates of 128 positions, warm-up 1 updates\n"
    assert re.fullmatch(told, plan) and place == "my run: 0 of 100000 epochs are done\n"
    for number, line in enumerate(lines, 1):
        told = rf"epoch {number}/100000: loss .* tokens/s, \d+ minutes left at most\n"
        assert re.fullmatch(told, line)
    done, translates, goes_on = out.splitlines()[-3:]
    assert done.startswith("stopped: validation BLEU ") and "my run/epoch-0" in done
    os.chdir(tmp_path)
    words = shlex.split(goes_on.partition(": ")[2])
    assert words == [*program, "train", "--folder", "my run", "--ranks", "1"]
    epochs = 1 + len(log_of(tmp_path / "my run"))
    for told in (1, 0):  # the second time it is finished already
        assert tutorial.main([*words[2:], "--epochs", str(epochs)]) == 0
        said = capsys.readouterr().out
        assert f"my run: {epochs - told} of {epochs} epochs are done\n" in said
        assert said.count(f"epoch {epochs}/{epochs}: loss ") == told and "finished: " in said
    words = shlex.split(translates.partition(": ")[2])
    assert words[:2] == program and tutorial.main(words[2:]) == 0
    assert capsys.readouterr().err.startswith("model my run (de → en), trained on ")


def test_a_pass_in_laps_uses_every_sentence_once(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(tutorial, "LAP", 3)
    judge_by(monkeypatch, itertools.repeat(1.0))
    batched, collate = [], tutorial.collate

    def noted(pairs):
        batched.append([tuple(source) + tuple(target) for source, target in pairs])
        return collate(pairs)

    monkeypatch.setattr(tutorial, "collate", noted)
    config, run = dataclasses.replace(small_config, batch_tokens=80, accumulate=1), tmp_path / "run"
    assert tutorial.train_model(config, run) == "finished"
    made = [entry["updates"] for entry in log_of(run)]
    laps = [b - a for a, b in itertools.pairwise([0, *made])]
    assert len(laps) % 2 == 0 and len(laps) > 6 and set(laps) <= {2, 3}
    half = made[len(made) // 2 - 1]
    assert made[-1] == 2 * half == len(batched)
    first, second = (sorted(itertools.chain(*p)) for p in (batched[:half], batched[half:]))
    assert first == second and len(first) > 60
    assert batched[:half] != batched[half:], "in another order"


def test_training_ends_when_validation_no_longer_improves(small_config, tmp_path, monkeypatch):
    judge_by(monkeypatch, iter([1.0, 3.0, 2.0, 3.0, 9.0, 2.0, 2.0, 2.0]))
    run, config = tmp_path / "run", dataclasses.replace(small_config, patience=2, epochs=10)
    for _ in range(2):
        assert tutorial.train_model(config, run) == "finished" and len(log_of(run)) == 4
    summary = tutorial.read_summary(run)
    assert (summary["best"], summary["validation_bleu"]) == ("epoch-002", 3.0)
    more = dataclasses.replace(config, patience=3)
    assert tutorial.train_model(more, run) == "finished"
    assert len(log_of(run)) == 5 + 3, "patience may change"


def test_of_texts_without_a_score_the_likeliest_is_the_best(small_config, tmp_path, monkeypatch):
    """BLEU is 0 where no text has four tokens."""
    nll = iter([4.0, 1.0, 2.0])
    judge = lambda *_: {"nll": next(nll), "perplexity": 2.0, "bleu": 0.0}  # noqa: E731
    monkeypatch.setattr(tutorial, "validate", judge)
    tutorial.train_model(dataclasses.replace(small_config, epochs=3), tmp_path / "run")
    assert tutorial.read_summary(tmp_path / "run")["best"] == "epoch-002"


# Going on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"d_model": 32}, {"norm_first": False}, {"warmup": 2}], ids=str)
def test_going_on_with_other_settings(small_config, small_run, change):
    before, [(name, value)] = (small_run / "last.pt").read_bytes(), change.items()
    with pytest.raises(ValueError, match=r"last\.pt was made with --") as caught:
        tutorial.train_model(dataclasses.replace(small_config, **change), small_run)
    told = f"--{name.replace('_', '-')} {getattr(small_config, name)}, not {value}: use the same"
    assert told in str(caught.value) and (small_run / "last.pt").read_bytes() == before


def test_epochs_may_be_added_with_the_paper_s_schedule(small_config, whole, tmp_path):
    tutorial.train_model(dataclasses.replace(small_config, epochs=1), tmp_path / "run")
    tutorial.train_model(small_config, tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
    assert json.loads((tmp_path / "run" / "settings.json").read_bytes())["epochs"] == 2


def test_epochs_may_not_be_added_where_the_rate_falls_to_zero(small_config, tmp_path):
    linear = dataclasses.replace(small_config, schedule="linear")
    tutorial.train_model(dataclasses.replace(linear, epochs=1), tmp_path / "run")
    with pytest.raises(ValueError, match="--epochs 1, not 2"):
        tutorial.train_model(linear, tmp_path / "run")


def test_going_on_with_another_vocabulary(small_config, small_corpus, small_run, monkeypatch):
    corpus = tutorial.read_corpus(small_corpus, ("de", "en"))
    corpus.splits["train"].append(("Hund", "zebra"))
    monkeypatch.setattr(tutorial, "find_corpus", lambda *_: corpus)
    with pytest.raises(ValueError, match=r"last\.pt has other symbols: has the text changed\?"):
        tutorial.train_model(small_config, small_run)


def test_another_machine_is_no_error(small_config, small_run, tmp_path, monkeypatch):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    with pytest.warns(UserWarning, match="64 threads.*not bit for bit the same run"):
        tutorial.train_model(dataclasses.replace(small_config, epochs=1), run)


# What a run leaves ------------------------------------------------------------------------------


@pytest.mark.parametrize("loads, entry", [(["0.42", "0.973"], [42, 97]), (["no answer"], [])])
def test_a_run_keeps_a_log_and_a_summary(small_config, tmp_path, monkeypatch, loads, entry):
    def gpus() -> list:  # a driver that fails says so where a number should stand
        return [SimpleNamespace(load=float(load)) for load in loads]

    monkeypatch.setattr(GPUtil, "getGPUs", gpus)
    run, config = tmp_path / "run", dataclasses.replace(small_config, epochs=1)
    tutorial.train_model(config, run)
    log = json.loads((run / "log.jsonl").read_text())
    assert log["gpu"] == entry and log["epoch"] == 1 and log["updates"] > 2
    assert log["loss"] > 0 and log["minutes"] > 0 and log["tokens_per_second"] > 0
    assert log["perplexity"] == pytest.approx(math.exp(log["nll"]))
    summary = tutorial.read_summary(run)
    assert summary["status"] == "finished" and summary["best"] == "epoch-001"
    assert summary["corpus"] == Path(config.data).name and summary["validation_bleu"] >= 0
    settings = json.loads((run / "settings.json").read_text())
    assert settings == summary["settings"] == dataclasses.asdict(config)


@pytest.mark.parametrize("pieces", [0, 5000])
def test_a_run_translates_from_whatever_place_of_it_is_named(
    small_config, tmp_path, capsys, pieces
):
    """Neither 5,000 pieces nor a warm-up of 1,000 updates are to be had of so small a corpus."""
    sizes = {"pieces": pieces, "share_embeddings": pieces > 0, "max_len": 64, "epochs": 1}
    config, run = dataclasses.replace(small_config, warmup=1000, **sizes), tmp_path / "run"
    tutorial.train_model(config, run)
    assert ", warm-up 2 updates\n" in capsys.readouterr().out
    first = tutorial.load_trained_model(run)
    lines = ["Ein Hund schläft.", "", "Eine Frau hält im Park ein neues Buch."]
    written = tutorial.translate(first, lines)
    assert written[1] == "" and first.languages == ("de", "en")
    for place in (str(run), run / "epoch-001", run / "epoch-001" / "config.json", run / "last.pt"):
        again = tutorial.load_trained_model(place)
        assert tutorial.translate(again, lines) == written
        assert torch.equal(flat(again.model), flat(first.model))


def test_the_command_for_the_paper_s_base_model(monkeypatch):
    """As the text has it: one list of 37,000 symbols, batches of 25,000, the norm after the sum."""
    text = (PROJECT / tutorial.SCRIPT).read_text("utf-8").replace("\\\n#", "")
    [words] = re.findall(r"# python \S+ (train .*--no-norm-first.*)", text)
    asked = []
    monkeypatch.setattr(tutorial, "run_train", lambda options, _: asked.append(options) or 0)
    assert tutorial.main(shlex.split(words)) == 0
    config = asked[0].settings
    assert config.batch_tokens == 25_000 and not config.norm_first and asked[0].ranks == 8
    assert config.share_embeddings and config.pieces == 37_000 and config.schedule == "root"


# The story --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_the_norm_after_the_sum_needs_a_warm_up():
    losses = []
    for norm_first, curve in ((True, tutorial.from_the_peak), (False, tutorial.rate),
                              (False, tutorial.from_the_peak)):  # fmt: skip
        model = tutorial.new_copy_model(N=4, norm_first=norm_first)
        batches = list(tutorial.data_gen(tutorial.COPY_SYMBOLS, 32, 150))
        losses.append(tutorial.train_briefly(model, batches, curve)[-1])
    assert max(losses[:2]) < 2 < 2.4 < losses[2]


@pytest.mark.parametrize("norm_first", [True, False])
def test_fast_forms_have_the_gradients_of_the_plain_ones(norm_first):
    plain, batch = tutorial.tiny_model(norm_first=norm_first).double(), batch_of(2, 5)
    fast = tutorial.make_fast(tutorial.copy.deepcopy(plain))
    assert not {type(module) for module in fast.modules()} & set(tutorial.FASTER)
    for model in (plain, fast):
        model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask).square().sum().backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-9)


def test_how_long_it_will_take_is_told_after_a_hundred_updates(small_config, tmp_path, capsys):
    config = dataclasses.replace(small_config, batch_tokens=8, accumulate=1, max_len=64)
    tutorial.train_model(config, tmp_path / "run")
    said = capsys.readouterr().out
    assert re.search(r"(?s)are done\nabout \d+ minutes in all\nepoch 1/2: ", said)
    assert said.count("minutes in all") == 1


def test_a_bar_for_all_epochs_on_a_terminal(small_config, tmp_path, monkeypatch):
    spy = create_autospec(tqdm.tqdm, side_effect=tqdm.tqdm)
    monkeypatch.setattr(tqdm, "tqdm", spy)
    tutorial.train_model(small_config, tmp_path / "run")
    first, both = (entry["updates"] for entry in log_of(tmp_path / "run"))
    bars = [(*call.args[1:], call.kwargs["initial"]) for call in spy.call_args_list]
    assert bars == [("epoch 1/2", both, 0), ("epoch 2/2", both, first)]


def test_a_process_without_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(tutorial, "choose_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    one_too_many = pytest.raises(ValueError, match="a GPU of its own: start 1 at most")
    with one_too_many, tutorial.join_workers():
        pass
