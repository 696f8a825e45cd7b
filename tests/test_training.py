"""Training by one process: updates, batches, runs that stop and go on, what a run leaves."""

import copy
import dataclasses
import itertools
import json
import math
import random
import re
import shlex
import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import GPUtil
import pytest
import torch
from conftest import PROJECT, assert_same_run, contents, log_of, saved, train_one_epoch
from torch import nn

import the_annotated_transformer as tutorial


def batch_of(*lengths: int) -> tutorial.Batch:
    """Sentences of these lengths, each copied."""
    ids = [[tutorial.START, *range(4, 4 + length), tutorial.END] for length in lengths]
    return tutorial.Batch(tutorial.pad_ids(ids), tutorial.pad_ids(ids))


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def by_descent(model: nn.Module, batches: list, **options) -> torch.Tensor:
    """How one plain step of gradient descent, at a rate of one, moves all weights."""
    before = flat(model)
    compute = tutorial.SimpleLossCompute(model.generator, tutorial.LabelSmoothing(13, 2, 0.1))
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ConstantLR(descent, 1.0)
    tutorial.run_epoch(batches, model, compute, descent, schedule, **options)
    return flat(model) - before


# One update -------------------------------------------------------------------------------------


def test_the_last_partial_accumulation_is_used():
    model = tutorial.tiny_model(dropout=0.0)
    rates = []
    compute = tutorial.SimpleLossCompute(model.generator, tutorial.LabelSmoothing(13, tutorial.PAD))
    optimizer, scheduler = tutorial.make_optimizer(model, 1.0, 10)
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    batches = [batch_of(n) for n in (2, 3, 4, 5, 6)]
    given = batches, model, compute, optimizer, scheduler
    _, state = tutorial.run_epoch(*given, accum_iter=2)
    assert state == tutorial.TrainState(step=3, samples=5, tokens=25)
    assert rates == [tutorial.rate(step, 16, 1.0, 10) for step in (1, 2, 3)]
    again = tutorial.run_epoch(*given, accum_iter=5, train_state=state)[1]
    assert again is state
    assert state == tutorial.TrainState(step=4, samples=10, tokens=50)
    with pytest.raises(ValueError, match='"train" or "eval", got \'test\''):
        tutorial.run_epoch(*given, mode="test")


def test_an_update_follows_the_gradient_of_the_mean_over_all_tokens():
    """By plain gradient descent: Adam, which divides by the gradient, hides a wrong factor."""
    batches = [batch_of(1, 2), batch_of(1)]  # 5 and 2 tokens, ends included
    model = tutorial.tiny_model(dropout=0.0).double()
    criterion = tutorial.LabelSmoothing(13, tutorial.PAD, 0.1)
    by_hand = copy.deepcopy(model)
    for b in batches:
        states = by_hand(b.src, b.tgt, b.src_mask, b.tgt_mask)
        (criterion(by_hand.generator(states), b.tgt_y) / 7).backward()
    gradient = torch.cat([p.grad.flatten() for p in by_hand.parameters()])
    moved = by_descent(model, batches, accum_iter=2)
    torch.testing.assert_close(moved, -gradient)
    assert gradient.norm() > 0.1


def test_a_long_gradient_is_shortened_and_a_short_one_is_not():
    start = tutorial.tiny_model(dropout=0.0)
    moved = {}
    for clip in (None, 1e-3, 1e3):
        moved[clip] = by_descent(copy.deepcopy(start), [batch_of(3, 5)], clip=clip)
    assert moved[1e-3].norm().item() == pytest.approx(1e-3, rel=1e-2)
    torch.testing.assert_close(moved[1e3], moved[None])
    direction = nn.functional.cosine_similarity(moved[1e-3], moved[None], dim=0)
    assert direction.item() == pytest.approx(1.0, abs=1e-4)


def test_a_step_in_mixed_precision_is_nearly_that_of_fp32():
    start = tutorial.tiny_model(dropout=0.0)
    plain = by_descent(copy.deepcopy(start), [batch_of(3, 5)])
    bf16 = by_descent(
        model := copy.deepcopy(start),
        [batch_of(3, 5)],
        autocast=lambda: torch.autocast("cpu", torch.bfloat16),
    )
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert 0 < (bf16 - plain).norm() < 0.1 * plain.norm()


def test_the_log_is_called_after_each_update_with_the_sums_so_far():
    model = tutorial.tiny_model(dropout=0.0)
    compute = tutorial.SimpleLossCompute(model.generator, tutorial.LabelSmoothing(13, tutorial.PAD))
    told = []

    def log(loss_sum: torch.Tensor, tokens: float) -> None:
        told.append((loss_sum.item(), tokens))

    batches = [batch_of(2), batch_of(3), batch_of(4)]
    given = batches, model, compute, *tutorial.make_optimizer(model, 1.0, 10)
    loss, _ = tutorial.run_epoch(*given, accum_iter=2, log=log)
    assert [tokens for _, tokens in told] == [7, 12]
    assert told[0][0] < told[1][0] == pytest.approx(12 * loss)


def test_weight_decay_shrinks_matrices_and_nothing_else():
    model = tutorial.draw_weights(tutorial.tiny_model())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    adam = tutorial.adamw(model, weight_decay=0.5)
    for group in adam.param_groups:
        group["lr"] = 0.1
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    adam.step()
    for name, p in model.named_parameters():
        share = 0.95 if p.dim() > 1 else 1.0
        torch.testing.assert_close(p, share * before[name], msg=name)


def test_copies_are_counted_to_their_end():
    """Of four copies one has a wrong token, one does not end, and one ends too early."""
    batch = next(tutorial.data_gen(9, 4, 1))
    written = torch.cat([batch.tgt, batch.tgt_y[:, -1:]], dim=1)
    written[1, 10] = 3
    written[2, 11] = 4
    written[3, 10:] = torch.tensor([tutorial.END, tutorial.PAD])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tutorial, "greedy_decode", lambda *_, end_symbol: written)
        counts = tutorial.kinds_of_copies(None, batch)
    assert counts == dict.fromkeys(("copied", "ended early", "ran over", "wrong token"), 1)


# Batches ----------------------------------------------------------------------------------------


def test_each_order_deals_the_sentences_anew_into_as_many_batches():
    lengths = [(n % 30 + 1, n % 23 + 1) for n in range(501)]
    sorted_, *dealt = [
        tutorial.token_batches(lengths, 257, order) for order in (None, *map(random.Random, "121"))
    ]
    assert dealt[0] == dealt[2] != dealt[1]
    assert {*map(len, dealt)} == {len(sorted_)}
    assert tutorial.token_batches([(3, 30)], 10) == [[0]], "longer than the budget"
    assert tutorial.token_batches([], 10) == []


@pytest.fixture
def begun(small_config, tmp_path) -> tutorial.Run:
    """A run of three shares to a pass, before its first update."""
    config = dataclasses.replace(small_config, shares=3, accum_iter=1, epochs=6)
    tutorial.begin_run(config, tmp_path / "run")
    return tutorial.Run(tmp_path / "run", tutorial.Worker(0, 1, torch.device("cpu")))


def test_the_shares_of_a_pass_hold_every_sentence_once(begun):
    epochs = [tutorial.batches_of_epoch(begun.config, begun.train, n) for n in range(1, 7)]
    passes = [[batch for epoch in half for batch in epoch] for half in (epochs[:3], epochs[3:])]
    positions = begun.train.positions().amax(1)
    for batches in passes:
        assert sorted(itertools.chain(*batches)) == list(range(len(begun.train)))
        assert all(int(positions[batch].max()) * len(batch) <= 128 for batch in batches)
    assert passes[0] != passes[1], "in another order"
    assert max(map(len, epochs)) - min(map(len, epochs)) <= 2


def test_batches_from_disk_are_those_of_the_text(begun):
    """Each pair as `encode_pairs` has it; `multiple` adds padding only."""
    corpus = tutorial.find_corpus(begun.config.data)
    pairs = list(corpus.pairs("train"))
    ids = tutorial.encode_pairs(pairs, begun.translator.vocabularies, corpus.languages)
    ids = [pair for pair in ids if tutorial.usable(pair, begun.config.max_len)]
    assert len(begun.train) == len(ids)
    numbers = [7, 0, 23]
    expected = tutorial.collate([ids[n] for n in numbers])
    batch = begun.train.batch(numbers)
    assert torch.equal(batch.src, expected.src)
    assert torch.equal(batch.tgt_y, expected.tgt_y)
    longer = begun.train.batch(numbers, multiple=8)
    assert longer.src.size(1) % 8 == longer.tgt.size(1) % 8 == 0
    assert torch.equal(longer.src[:, : batch.src.size(1)], batch.src)
    assert longer.src[:, batch.src.size(1) :].eq(tutorial.PAD).all()
    [loaded] = tutorial.load_batches(begun.train, [numbers], begun.worker)
    assert loaded.ntokens == expected.ntokens


# Runs that stop and go on -----------------------------------------------------------------------


@pytest.mark.parametrize("change", [{}, {"shares": 3, "epochs": 3}], ids=str)
def test_a_run_that_stopped_ends_like_one_that_did_not(small_config, tmp_path, change):
    config = dataclasses.replace(small_config, **change)
    straight = tmp_path / "straight" / "run"
    run = tmp_path / "run"
    assert tutorial.train_model(config, straight) == "finished"
    train_one_epoch(config, run)
    assert [entry["epoch"] for entry in log_of(run)] == [1]
    assert tutorial.train_model(None, run) == "finished"
    assert_same_run(run, straight)


def test_a_finished_run_is_left_as_it_is_or_goes_further(small_config, small_run, tmp_path):
    run = shutil.copytree(small_run, tmp_path / "run")
    before = contents(run)
    assert tutorial.train_model(dataclasses.replace(small_config, epochs=1), run) == "finished"
    assert contents(run) == before
    assert tutorial.train_model(None, run, epochs=3) == "finished"
    epochs = [entry["epoch"] for entry in log_of(run) if not entry["averaged"]]
    assert epochs == [1, 2, 3]


@pytest.mark.parametrize("minutes", [0, -1, math.nan])
def test_a_limit_of_time_is_above_zero(small_config, tmp_path, minutes):
    with pytest.raises(tutorial.UserError, match="--minutes must be above 0"):
        tutorial.train_model(small_config, tmp_path / "run", minutes=minutes)


@pytest.mark.parametrize("change", [{"d_model": 32}, {"norm_first": False}, {"seed": 7}], ids=str)
def test_going_on_with_other_settings_is_refused(small_config, small_run, change):
    [(name, value)] = change.items()
    before = contents(small_run)
    option = f"--{name.replace('_', '-')}"
    had = f"has {option} {getattr(small_config, name)}, not {value}"
    with pytest.raises(tutorial.UserError, match=had):
        tutorial.train_model(dataclasses.replace(small_config, **change), small_run)
    assert contents(small_run) == before


@pytest.fixture
def moved(small_config, small_corpus, small_run, tmp_path) -> SimpleNamespace:
    """A run of one epoch, and its text at another place."""
    place = shutil.copytree(small_corpus, tmp_path / "elsewhere")
    run = shutil.copytree(small_run, tmp_path / "run")
    config = dataclasses.replace(small_config, data=str(place), epochs=1)
    return SimpleNamespace(place=place, run=run, config=config)


def test_a_run_goes_on_where_its_text_has_moved(moved):
    assert tutorial.train_model(moved.config, moved.run) == "finished"


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_run_does_not_go_on_with_another_text(moved, split):
    path = moved.place / f"{split}.en"
    path.write_text(path.read_text("utf-8").replace("dog", "cat").replace("A ", "One "), "utf-8")
    before = contents(moved.run)
    with pytest.raises(tutorial.UserError, match=r"elsewhere is not the text that .* began with"):
        tutorial.train_model(moved.config, moved.run)
    assert contents(moved.run) == before


def test_a_loss_that_is_no_number_ends_a_run(small_config, tmp_path):
    config = dataclasses.replace(small_config, factor=1e30)
    with pytest.raises(tutorial.UserError, match=r"diverged: the loss is .* --clip"):
        tutorial.train_model(config, tmp_path / "run")


# Which weights are kept -------------------------------------------------------------------------


def judge_by(monkeypatch, scores: Iterator[dict]) -> None:
    """In the place of judging an epoch: given scores."""
    missing = {"bleu": 0.0, "nll": 1.0, "perplexity": 2.0}
    monkeypatch.setattr(tutorial.Run, "validate", lambda *_: missing | next(scores))


@pytest.mark.parametrize(
    "name, scores, best",
    [
        ("bleu", [20.0, 30.0, 25.0, 10.0], 1),
        ("nll", [4.0, 1.0, 2.0, 5.0], 1),  # BLEU is 0 where no text has four tokens
        ("bleu", [20.0, 20.0, 20.0, 20.0], 0),
    ],
)
def test_the_best_epoch_is_kept(small_config, tmp_path, monkeypatch, name, scores, best):
    """Of three epochs; the fourth score is that of their mean."""
    judge_by(monkeypatch, iter([{name: score} for score in scores]))
    run = tmp_path / "run"
    tutorial.train_model(dataclasses.replace(small_config, epochs=3, average=3), run)
    kept = saved(run)["recent"][best]
    for name, weight in tutorial.load_trained_model(run).model.named_parameters():
        assert torch.equal(weight, kept[name]), name


@pytest.mark.parametrize("better", [True, False])
def test_the_mean_of_the_last_epochs_takes_the_place_of_the_best_if_it_is_better(
    small_config, tmp_path, monkeypatch, better
):
    judge_by(monkeypatch, iter([{"bleu": x} for x in (20.0, 30.0, 25.0, 31.0 if better else 29.0)]))
    run = tmp_path / "run"
    tutorial.train_model(dataclasses.replace(small_config, epochs=3, average=2), run)
    *epochs, mean = log_of(run)
    assert [entry["averaged"] for entry in epochs] == [0, 0, 0]
    assert mean["averaged"] == 2
    second, third = saved(run)["recent"]
    model = tutorial.load_trained_model(run).model
    for name, weight in model.named_parameters():
        expected = (second[name] + third[name]) / 2 if better else second[name]
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-7)


# What a run leaves ------------------------------------------------------------------------------


@pytest.mark.parametrize("loads, entry", [(["0.42", "0.973"], [42, 97]), (["no answer"], [])])
def test_what_a_run_writes_down(small_config, tmp_path, monkeypatch, loads, entry):
    def gpus() -> list:  # a driver that fails says so where a number should stand
        return [SimpleNamespace(load=float(load)) for load in loads]

    monkeypatch.setattr(GPUtil, "getGPUs", gpus)
    run = tmp_path / "run"
    config = dataclasses.replace(small_config, epochs=1)
    tutorial.train_model(config, run)
    first = json.loads((run / "log.jsonl").read_text().splitlines()[0])
    assert first["gpu"] == entry
    assert first["epoch"] == 1
    assert first["updates"] > 2
    assert first["bleu"] >= 0
    for name in ("loss", "minutes", "tokens_per_second", "nll", "learning_rate"):
        assert first[name] > 0, name
    settings, about = tutorial.read_settings(run)
    chosen = {name for name, value in vars(config).items() if value is None}
    for name, value in vars(settings).items():
        if name not in chosen | {"data"}:
            assert value == getattr(config, name), name
    assert settings.shares == 1
    assert settings.precision == "fp32"
    assert about["languages"] == ["de", "en"]
    assert {path.name for path in run.glob("[!.]*")} <= tutorial.RUN_FILES


@pytest.mark.parametrize("vocab_size", [0, None])
def test_a_run_translates_and_a_copy_of_its_model_does_too(small_config, tmp_path, vocab_size):
    """Of words, and of subwords with one matrix."""
    sizes = {"vocab_size": vocab_size, "share_embeddings": None, "max_len": 64, "epochs": 1}
    run = tmp_path / "run"
    tutorial.train_model(dataclasses.replace(small_config, **sizes), run)
    first = tutorial.load_trained_model(run)
    lines = ["Ein Hund schläft.", "", "Eine Frau hält im Park ein neues Buch."]
    written = tutorial.translate(first, lines)
    assert written[1] == ""
    assert first.languages == ("de", "en")
    tutorial.save_model(first, tmp_path / "copy")
    again = tutorial.load_trained_model(tmp_path / "copy")
    assert tutorial.translate(again, lines) == written
    assert torch.equal(flat(again.model), flat(first.model))


def test_a_training_starts_from_another_model(small_config, small_run, tmp_path):
    config = dataclasses.replace(small_config, epochs=1, init_from=str(small_run))
    tutorial.begin_run(config, tmp_path / "run")
    run = tutorial.Run(tmp_path / "run", tutorial.Worker(0, 1, torch.device("cpu")))
    assert torch.equal(flat(run.model), flat(tutorial.load_trained_model(small_run).model))
    other = dataclasses.replace(config, d_ff=64)
    with pytest.raises(tutorial.UserError, match="was made with --d-ff 32: give the same"):
        tutorial.train_model(other, tmp_path / "other")


def test_training_at_the_command_line(small_corpus, tmp_path, monkeypatch, capsys):
    """A header, a line for each epoch, at the end what to do; the command that it prints works."""
    monkeypatch.chdir(tmp_path)
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 2 --vocab-size 0 --min-freq 1 --warmup 1"
    words = ["train", "--data", str(small_corpus), *sizes.split(), "--batch-tokens", "128"]
    words += ["--folder", "my run", "--log-every", "2"]
    assert tutorial.main([*words, "--epochs", "3", "--minutes", "1e-9"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "'my run': 0 of 3 epochs are done" in said.out
    assert "warmup 1," in said.out, "all settings are told"
    assert re.search(r"(?m)^epoch 1, update 2: loss [\d.]+, [\d,]+ tokens/s", said.out)
    assert re.search(r"(?m)^epoch 1/3: loss ", said.out)
    assert "stopped: resume 'my run' goes on" in said.out
    assert tutorial.main(["resume", "my run"]) == 0
    said = capsys.readouterr().out
    assert "'my run': 1 of 3 epochs are done" in said
    assert re.search(r"(?m)^epoch 3/3: loss ", said)
    assert re.search(r"(?m)^mean of the last 3 epochs: ", said)
    assert re.search(r"(?m)^best: ", said)
    [translate] = re.findall(r"(?m)^to translate with it: (.*)$", said)
    assert tutorial.main([*shlex.split(translate), "Ein Hund."]) == 0
    assert capsys.readouterr().err.startswith("model my run (de → en), trained on ")


def test_the_command_for_the_paper_s_base_model(monkeypatch):
    """As the text has it: one list of 37,000 tokens, batches of 25,000, the norm after the sum."""
    text = (PROJECT / tutorial.SCRIPT).read_text("utf-8").replace("\\\n#", "")
    squeezed = re.sub(r"\s+", " ", text)
    [words] = re.findall(
        r"# torchrun --standalone --nproc-per-node 8 \S+ (train .*?) ```", squeezed
    )
    asked = []
    monkeypatch.setattr(tutorial, "train_model", lambda config, *_: asked.append(config))
    assert tutorial.main(shlex.split(words.replace("#", ""))) == 0
    [config] = asked
    assert config.batch_tokens == 25_000
    assert not config.norm_first
    assert config.vocab_size == 37_000
    assert config.schedule == "inverse_sqrt"


# What once went wrong -----------------------------------------------------------------------------


def test_a_right_word_of_probability_zero_costs_infinitely_much():
    log_probs = torch.zeros(1, 9)
    log_probs[0, 4] = -torch.inf
    for smoothing in (0.0, 0.3):
        criterion = tutorial.LabelSmoothing(9, tutorial.PAD, smoothing)
        assert criterion(log_probs.log_softmax(-1), torch.tensor([4])) == torch.inf


class Running(torch.nn.Module):
    """A norm that divides by a running size, which is no weight."""

    def __init__(self, features):
        super().__init__()
        self.register_buffer("size", torch.ones(features))

    def forward(self, x):
        if self.training:
            self.size.lerp_(x.detach().abs().mean(dim=(0, 1)), 0.1)
        return x / (self.size + 0.1)


def test_buffers_of_a_part_are_in_its_folder(small_config, tmp_path, monkeypatch):
    monkeypatch.setitem(tutorial.NORM, "running", Running)
    config = dataclasses.replace(small_config, norm="running")
    tutorial.train_model(config, tmp_path / "run")
    last = tutorial.read_last(tmp_path / "run")
    loaded = tutorial.load_trained_model(tmp_path / "run").model.state_dict()
    best = max(last["history"], key=tutorial.quality)
    expected = last["recent"][best["epoch"] - 1] if best["averaged"] == 0 else None
    name = "encoder.layers.0.sublayer.0.norm.size"
    assert not loaded[name].eq(1).any()
    assert expected is None or torch.equal(loaded[name], expected[name])


@pytest.mark.parametrize(
    "wrong", [{"schedule": "cosine"}, {"precision": "fp16"}, {"N": 2.5}, {"N": None}, {"h": "3"}]
)
def test_a_setting_of_another_type_is_refused(wrong):
    [name] = wrong
    with pytest.raises(tutorial.UserError, match=f"--{name} must be"):
        tutorial.Config(**wrong)


def test_going_further_takes_the_rate_of_the_new_curve(small_config, tmp_path, monkeypatch):
    config = dataclasses.replace(small_config, schedule="linear")
    tutorial.train_model(config, tmp_path)
    rates = []
    train_epoch = tutorial.Run.train_epoch

    def seen(run, epoch):
        rates.append(run.optimizer.param_groups[0]["lr"])
        return train_epoch(run, epoch)

    monkeypatch.setattr(tutorial.Run, "train_epoch", seen)
    tutorial.train_model(None, tmp_path, epochs=config.epochs + 2)
    last = tutorial.read_last(tmp_path)
    assert rates[0] > rates[1] > 0
    assert len(rates) == 2
    with pytest.raises(tutorial.UserError, match="epochs 1: 4 are done"):
        tutorial.train_model(None, tmp_path, epochs=1)
    assert sum(entry["averaged"] == 0 for entry in last["history"]) == 4


def test_words_of_other_languages_are_no_beginning(small_run, small_config, tmp_path):
    config = dataclasses.replace(small_config, init_from=str(small_run), vocab_size=None)
    with pytest.raises(tutorial.UserError, match="knows the words of"):
        tutorial.train_model(dataclasses.replace(config, languages="en-de"), tmp_path / "other")
    with pytest.raises(tutorial.UserError, match="vocab-size is that of --init-from"):
        tutorial.train_model(dataclasses.replace(config, vocab_size=99), tmp_path / "size")


def test_weights_that_are_no_numbers_are_not_saved(small_config, tmp_path, monkeypatch):
    tutorial.train_model(dataclasses.replace(small_config, epochs=1), tmp_path)
    before = (tmp_path / "last.pt").read_bytes()
    monkeypatch.setattr(tutorial.Run, "validate", lambda *_: {"bleu": 0.0, "nll": math.nan})
    with pytest.raises(tutorial.UserError, match="diverged"):
        tutorial.train_model(None, tmp_path, epochs=2)
    assert (tmp_path / "last.pt").read_bytes() == before


def test_a_model_of_few_positions_has_a_cache():
    assert tutorial.cache_agrees(tutorial.tiny_model(max_len=2))
