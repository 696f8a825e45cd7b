"""Training: the loss, one update by hand, the loop, the schedule, and a whole run by hand."""

import copy
import dataclasses
import itertools
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import log_of, saved, write_pairs
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import the_annotated_transformer as at
from the_annotated_transformer import END, PAD, START


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def batch_of(*lengths: int) -> at.Batch:
    """Sentences of these lengths, each copied."""
    ids = at.pad_ids([[START, *range(4, 4 + length), END] for length in lengths])
    return at.Batch(ids, ids)


def loss_compute(model: nn.Module) -> at.SimpleLossCompute:
    return at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, PAD, 0.1))


# The loss ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("pad", [2, 0, 8])
def test_the_loss_is_the_divergence_from_its_distribution(smoothing, pad):
    log_probs = torch.randn(3, 5, 9, dtype=torch.double).log_softmax(-1)
    target = torch.randint(9, (3, 5))
    target[0, 2:] = pad
    criterion = at.LabelSmoothing(9, pad, smoothing)
    real = (target != pad).flatten()
    wanted = torch.full((15, 9), smoothing / 7, dtype=torch.double)
    wanted.scatter_(1, target.reshape(-1, 1), 1 - smoothing)
    wanted[:, pad] = 0
    wanted[~real] = 0
    divergence = functional.kl_div(log_probs.flatten(0, 1), wanted, reduction="sum")
    assert_close(criterion(log_probs, target), divergence, rtol=1e-6, atol=1e-6)


def test_without_smoothing_the_loss_is_the_mean_cross_entropy_of_real_tokens():
    generator = at.Generator(8, 9)
    states = torch.randn(2, 3, 8)
    target = torch.tensor([[4, 8, 3], [5, PAD, PAD]])
    loss_sum, loss = at.SimpleLossCompute(generator, at.LabelSmoothing(9, PAD))(states, target, 4)
    logits = generator.proj(states).flatten(0, 1)
    expected = functional.cross_entropy(logits, target.flatten(), ignore_index=PAD)
    assert_close(loss, expected)
    assert_close(loss_sum, 4 * expected)


def test_label_smoothing_equals_an_option_of_cross_entropy_only_without_padding():
    logits = torch.randn(6, 9, dtype=torch.double)
    target = torch.tensor([4, 8, PAD, 0, 3, 3])
    logits[:, PAD] = -torch.inf
    real = target != PAD
    criterion = at.LabelSmoothing(9, PAD, 0.3)
    ours = criterion(logits.log_softmax(-1), target) + 5 * criterion.entropy  # of five words
    trimmed = logits[real][:, torch.arange(9) != PAD]
    shifted = target[real] - (target[real] > PAD).long()
    for smoothing, equal in ((0.3 * 8 / 7, True), (0.3, False)):
        options = {"label_smoothing": smoothing, "reduction": "sum"}
        theirs = functional.cross_entropy(trimmed, shifted, **options)
        assert torch.isclose(ours, theirs, rtol=1e-6) == equal


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_probability_of_zero_costs_nothing_where_the_target_is_zero(smoothing):
    """Of padding always, of another word without smoothing, of the right word never."""
    criterion = at.LabelSmoothing(9, PAD, smoothing)
    logits = torch.randn(4, 9)
    logits[:, PAD] = -torch.inf
    logits.requires_grad_()
    target = torch.tensor([4, PAD, 5, 3])
    loss = criterion(logits.log_softmax(-1), target)
    assert_close(loss, criterion(logits[[0, 2, 3]].log_softmax(-1), target[[0, 2, 3]]))
    loss.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[1].eq(0).all()
    logits = torch.randn(2, 9)
    logits[1, 7] = -torch.inf
    other, right = (criterion(logits.log_softmax(-1), torch.tensor([4, n])) for n in (5, 7))
    assert other.isfinite() == (smoothing == 0)
    assert right == torch.inf


def test_a_model_without_opinion_is_as_good_as_chance():
    model = at.tiny_model()
    nn.init.zeros_(model.generator.proj.weight)
    nn.init.zeros_(model.generator.proj.bias)
    scores = at.evaluate_loss(model, [batch_of(2, 0), batch_of(3)])
    assert scores["nll"] == pytest.approx(math.log(13))
    assert scores["perplexity"] == pytest.approx(13)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("rows", [1, 4, 14])
def test_a_loss_in_chunks_is_the_same_with_the_same_gradients(rows, smoothing, monkeypatch):
    monkeypatch.setattr(at, "LARGEST", rows * 13)
    states = torch.randn(3, 5, 16, dtype=torch.double)
    target = torch.randint(3, 13, (3, 5)).index_fill(1, torch.tensor(4), PAD)
    found = []
    for kind in (at.SimpleLossCompute, at.LossInChunks):
        given = states.clone().requires_grad_()
        torch.manual_seed(1)
        generator = at.Generator(16, 13).double()
        loss_sum, loss = kind(generator, at.LabelSmoothing(13, PAD, smoothing))(given, target, 7.0)
        loss.backward()
        found.append((loss_sum, loss, given.grad, generator.proj.weight.grad))
    for ours, whole in zip(*found, strict=True):
        assert_close(ours, whole)


# One update -------------------------------------------------------------------------------------


def by_descent(model: nn.Module, batches: list, **options) -> torch.Tensor:
    """How one step of plain gradient descent, at a learning rate of 1, moves all weights."""
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ConstantLR(descent, 1.0)
    at.run_epoch(batches, model, loss_compute(model), descent, schedule, **options)
    return nn.utils.parameters_to_vector(model.parameters()).detach() - before


def test_an_update_follows_the_gradient_of_the_mean_over_all_tokens():
    """By plain gradient descent: Adam, which divides by the gradient, hides a wrong factor."""
    batches = [batch_of(1, 2), batch_of(1)]  # 5 and 2 tokens, ends included
    model = at.tiny_model(dropout=0.0).double()
    by_hand = copy.deepcopy(model)
    criterion = at.LabelSmoothing(13, PAD, 0.1)
    for b in batches:
        states = by_hand(b.src, b.tgt, b.src_mask, b.tgt_mask)
        (criterion(by_hand.generator(states), b.tgt_y) / 7).backward()
    gradient = torch.cat([p.grad.flatten() for p in by_hand.parameters()])
    assert_close(by_descent(model, batches, accum_iter=2), -gradient)
    assert gradient.norm() > 0.1


def test_two_updates_are_those_of_the_formula():
    model = at.tiny_model()
    bias = model.generator.proj.bias
    expected = bias.detach().clone()
    optimizer, scheduler = at.make_optimizer(model, 2.0, 10)
    mean = 0.0
    square = 0.0
    for step, gradient in ((1, 3e-9), (2, -1e-9)):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.98 * square + 0.02 * gradient**2
        unbiased = mean / (1 - 0.9**step)
        size = math.sqrt(square / (1 - 0.98**step))
        expected -= at.rate(step, 16, 2.0, 10) * unbiased / (size + 1e-9)
        bias.grad = torch.full_like(bias, gradient)
        optimizer.step()
        scheduler.step()
        assert_close(bias.detach(), expected)


def filled(model: nn.Module, generator: torch.Generator) -> None:
    """Gradients of random numbers."""
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_muon_is_that_of_torch_inside_the_stacks_and_adamw_elsewhere(decay):
    """PyTorch's orthogonalizes in 16 bits."""
    ours = at.draw_weights(at.tiny_model())
    theirs = copy.deepcopy(ours)
    before = copy.deepcopy(ours.state_dict())
    muon, scheduler = at.make_optimizer(ours, 1.0, 10, optimizer="muon", weight_decay=decay)
    stacks = [*theirs.encoder.parameters(), *theirs.decoder.parameters()]
    inside = [weight for weight in stacks if weight.dim() == 2]
    outside = [weight for weight in theirs.parameters() if not any(weight is one for one in inside)]
    both = (
        torch.optim.Muon(inside, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outside, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0),
    )
    for step in (1, 2, 3):
        filled(ours, torch.Generator().manual_seed(step))
        filled(theirs, torch.Generator().manual_seed(step))
        for model in (ours, theirs):  # one matrix is frozen
            model.encoder.layers[0].feed_forward.widen.weight.grad = None
        for optimizer in both:
            optimizer.param_groups[0]["lr"] = at.rate(step, 16, 1.0, 10)
            optimizer.step()
        muon.step()
        scheduler.step()
    for name, weight in theirs.named_parameters():
        step = (weight - before[name]).abs().max().item()
        assert_close(ours.get_parameter(name), weight, rtol=0, atol=0.05 * step, msg=name)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name, theirs", [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_optimizers_by_name_are_those_of_torch(name, theirs, decay):
    ours = at.tiny_model()
    optimizer, _ = at.make_optimizer(ours, 1.0, 10, optimizer=name, weight_decay=decay)
    other = copy.deepcopy(ours)
    decaying = [p for p in other.parameters() if p.dim() > 1 or name == "adam"]
    rest = [p for p in other.parameters() if p.dim() == 1 and name == "adamw"]
    groups = [{"params": decaying}, {"params": rest, "weight_decay": 0.0}]
    lr = at.rate(1, 16, 1.0, 10)
    expected = theirs(groups, lr=lr, betas=(0.9, 0.98), eps=1e-9, weight_decay=decay)
    for model, means in ((ours, optimizer), (other, expected)):
        filled(model, torch.Generator().manual_seed(1))
        means.step()
    for weight, right in zip(ours.parameters(), other.parameters(), strict=True):
        assert_close(weight, right)


def test_schedules_rise_alike_and_fall_as_they_say():
    rates = {}
    for name in ("inverse_sqrt", "linear", "stable_decay"):
        optimizer, scheduler = at.make_optimizer(at.tiny_model(), 1.0, 10, name, total=100)
        rates[name] = []
        for _ in range(100):
            rates[name].append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        assert rates[name][:10] == pytest.approx([at.rate(n, 16, 1.0, 10) for n in range(1, 11)])
        assert max(rates[name]) == rates[name][9]
        assert (optimizer.param_groups[0]["lr"] == 0) == (name != "inverse_sqrt")
    down = [now - later for now, later in itertools.pairwise(rates["linear"][9:])]
    assert down == pytest.approx([down[0]] * 90)
    assert len(set(rates["stable_decay"][9:80])) == 1
    down = [now - later for now, later in itertools.pairwise(rates["stable_decay"][80:])]
    assert down == pytest.approx([rates["stable_decay"][9] / 20] * 19)


@pytest.mark.parametrize("names", [{"schedule": "cosine"}, {"optimizer": "magic"}])
def test_an_unknown_optimizer_or_schedule_is_refused(names, small_config, tmp_path):
    (name,) = names.values()
    with pytest.raises(ValueError, match=f"{name}.*among"):
        at.make_optimizer(at.tiny_model(), 1.0, 10, **names)
    with pytest.raises(at.UserError, match=f"{name}.*among"):
        at.train_model(dataclasses.replace(small_config, **names), tmp_path / "run")


def test_accumulation_equals_one_large_batch_and_its_rest_is_an_update():
    sentences = at.pad_ids([[START, *range(4, 5 + n % 6), END] for n in range(15)])
    start = at.tiny_model(dropout=0.0).double()
    after = {}
    for size in (6, 2):
        model = copy.deepcopy(start)
        adam, schedule = at.make_optimizer(model, 1.0, 10)
        rates = []
        adam.register_step_pre_hook(
            lambda adam, *_, to=rates: to.append(adam.param_groups[0]["lr"])
        )
        batches = [at.Batch(part, part) for part in sentences.split(size)]
        given = batches, model, loss_compute(model), adam, schedule
        _, state = at.run_epoch(*given, accum_iter=6 // size)
        assert state == at.TrainState(step=3, samples=15, tokens=63)
        assert rates == [at.rate(step, 16, 1.0, 10) for step in (1, 2, 3)]
        assert model.generator.proj.weight.grad is None  # nothing left for the next update
        after[size] = [p for name, p in model.named_parameters() if "linears.1.bias" not in name]
        _, again = at.run_epoch(*given, accum_iter=9, train_state=state)
        assert again is state
        assert state.samples == 30
    assert_close(after[2], after[6], rtol=0, atol=1e-9)


def test_evaluation_has_no_dropout_and_changes_nothing():
    model = at.tiny_model(dropout=0.5)
    before = copy.deepcopy(model.state_dict())
    batch = batch_of(3, 5)
    loss, state = at.run_epoch(
        [batch, batch], model, loss_compute(model), mode="eval", accum_iter=2
    )
    assert state == at.TrainState(step=0, samples=4, tokens=20)
    nll = at.evaluate_loss(model.train(), [batch])["nll"]
    assert nll == at.evaluate_loss(model, [batch])["nll"] != loss, "the loss is smoothed"
    assert model.training  # as before
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="test"):
        at.run_epoch([batch], model, loss_compute(model), mode="test")


def test_an_average_is_the_mean_of_every_weight():
    models = [at.tiny_model() for _ in range(3)]
    mean = at.tiny_model()
    at.average(mean, iter(models))
    for weight, *others in zip(*(each.parameters() for each in (mean, *models)), strict=True):
        assert_close(weight, torch.stack(others).mean(dim=0))


def test_sequences_to_copy_start_and_end():
    batches = list(at.data_gen(12, 3, 2))
    assert len(batches) == 2
    for batch in batches:
        assert batch.tgt[:, 0].eq(START).all()
        assert batch.tgt_y[:, -1].eq(END).all()
        assert torch.equal(batch.tgt[:, 1:], batch.src)


def test_one_table_answers_all_batches():
    """The same two tokens always have the same answer, which is not their copy."""
    answers = {}
    for batch in at.table_gen(8, 16, 4):
        pairs = torch.stack([batch.src.roll(1, dims=1), batch.src], dim=-1).flatten(0, 1)
        for pair, answer in zip(pairs.tolist(), batch.tgt_y[:, :-1].flatten(), strict=True):
            assert answers.setdefault(tuple(pair), answer) == answer
    assert len(answers) == 16
    assert len({int(answer) for answer in answers.values()}) > 1


# Whole runs -------------------------------------------------------------------------------------


@pytest.fixture
def by_hand(small_config, small_run, tmp_path) -> at.Config:
    """A run of three updates, each with the whole corpus, from a model that is known."""
    known = tmp_path / "known"
    at.save_model(at.load_trained_model(small_run), known)
    return dataclasses.replace(
        small_config, init_from=str(known), dropout=0.0, attention_dropout=0.0, average=0,
        batch_tokens=10**5, accum_iter=1, warmup=2, factor=0.1, epochs=3,
    )  # fmt: skip


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear"])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_a_run_is_a_loop_of_a_few_lines(by_hand, tmp_path, schedule, clip):
    """Written here with PyTorch only, but for the model, the masks and the vocabularies."""
    config = dataclasses.replace(by_hand, schedule=schedule, clip=clip)
    known = at.load_trained_model(config.init_from)
    at.train_model(config, tmp_path / "run")
    corpus = at.read_corpus(Path(config.data), known.languages)
    pairs = at.encode_pairs(corpus.pairs("train"), known.vocabularies, known.languages)
    batch = at.collate([pair for pair in pairs if max(map(len, pair)) <= config.max_len])
    model = known.model
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    losses = []
    peak = 0.1 * 16**-0.5 * 2**-0.5
    shares = {"inverse_sqrt": (1 / 2, 1, (2 / 3) ** 0.5), "linear": (1 / 2, 1, 1 / 2)}[schedule]
    for share in shares:
        adam.param_groups[0]["lr"] = share * peak
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        log_probs = model.generator(states)[batch.tgt_y != PAD]
        target = torch.full_like(log_probs, 0.1 / (log_probs.size(1) - 2))
        target.scatter_(1, batch.tgt_y[batch.tgt_y != PAD].unsqueeze(1), 0.9)
        target[:, PAD] = 0
        loss = functional.kl_div(log_probs, target, reduction="sum") / len(log_probs)
        adam.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        adam.step()
        losses.append(loss.item())
    assert [entry["loss"] for entry in log_of(tmp_path / "run")] == pytest.approx(losses, rel=1e-4)
    for name, weight in saved(tmp_path / "run")["model"].items():
        if "linears.1.bias" not in name:
            assert_close(weight, model.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)


def test_weight_decay_shrinks_matrices_only(by_hand, tmp_path):
    """A run that learns next to nothing, at a decay that would leave three quarters of a weight."""
    small = dataclasses.replace(by_hand, warmup=1, factor=1e-6, epochs=1)
    rate = at.rate(1, 16, small.factor, 1)
    at.train_model(small, tmp_path / "plain")
    at.train_model(dataclasses.replace(small, weight_decay=0.25 / rate), tmp_path / "decayed")
    plain, decayed = (saved(tmp_path / name)["model"] for name in ("plain", "decayed"))
    for name, weight in plain.items():
        share = 0.75 if weight.dim() > 1 else 1.0
        assert_close(decayed[name], share * weight, rtol=1e-3, atol=1e-5, msg=name)


def test_a_training_in_bf16_is_nearly_that_in_fp32(by_hand, tmp_path):
    losses = {}
    for precision in ("fp32", "bf16"):
        run = tmp_path / precision
        at.train_model(dataclasses.replace(by_hand, precision=precision), run)
        losses[precision] = [entry["loss"] for entry in log_of(run)]
        assert {weight.dtype for weight in saved(run)["model"].values()} == {torch.float32}
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)


@pytest.mark.slow
@pytest.mark.long
def test_a_compiled_training_has_the_same_losses(by_hand, tmp_path):
    """Without dropout, which a compiled model draws from other numbers."""
    try:
        torch.compile(torch.neg)(torch.ones(1))
    except torch._dynamo.exc.TorchDynamoException:
        pytest.skip("no compiler")
    losses = {}
    for compiled in (False, True):
        config = dataclasses.replace(by_hand, compile=compiled)
        at.train_model(config, tmp_path / str(compiled))
        losses[compiled] = [entry["loss"] for entry in log_of(tmp_path / str(compiled))]
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)


def test_dropout_has_a_rate_of_its_own_for_attention_and_is_drawn_anew_in_each_epoch(
    by_hand, tmp_path
):
    """Seen in the losses of a run that learns nothing, and whose pairs are in no order."""
    pairs = at.read_builtin().pairs("val")[:1] * 20
    corpus = at.Corpus("one", ("de", "en"), {"train": pairs, "val": pairs})
    losses = []
    for number, rates in enumerate(itertools.product((0.0, 0.3), repeat=2)):
        config = dataclasses.replace(by_hand, factor=1e-12, epochs=2)
        config = dataclasses.replace(config, dropout=rates[0], attention_dropout=rates[1])
        at.train_model(config, tmp_path / str(number), corpus=corpus)
        losses.append([entry["loss"] for entry in log_of(tmp_path / str(number))])
    plain, *dropped = losses
    assert plain[0] == pytest.approx(plain[1], rel=1e-6)
    dropped = [plain[0], *itertools.chain(*dropped)]
    assert all(abs(a - b) > 1e-5 for a, b in itertools.combinations(dropped, 2))


# Settings and starts ----------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 3, 50])
def test_the_schedule_is_planned_for_the_epochs_that_were_asked_for(small_config, tmp_path, epochs):
    """Whether a setting or an argument says it."""
    open_ended = dataclasses.replace(small_config, warmup=None, factor=None, epochs=None)
    at.train_model(open_ended, tmp_path / "argument", minutes=1e-9, epochs=epochs)
    asked = dataclasses.replace(open_ended, epochs=epochs)
    at.train_model(asked, tmp_path / "setting", minutes=1e-9)
    one, other = (at.settings_of(tmp_path / name) for name in ("argument", "setting"))
    assert one == other
    assert one.epochs == epochs
    updates = log_of(tmp_path / "argument")[0]["updates"] * epochs
    assert one.warmup == max(1, updates // 4)


@pytest.mark.parametrize("edit", [{"weight_decay": 5.0}, {"factor": 0.2}, {"smoothing": 0.5}])
def test_an_edited_setting_acts_when_a_run_goes_on(stopped_run, whole, tmp_path, edit):
    run = shutil.copytree(stopped_run, tmp_path / "run")
    about = json.loads((run / "config.json").read_bytes())
    about["settings"] |= edit
    (run / "config.json").write_text(json.dumps(about))
    at.train_model(None, run)
    ours, theirs = (saved(folder)["model"] for folder in (run, whole))
    assert not all(torch.equal(ours[name], weight) for name, weight in theirs.items())


@pytest.mark.parametrize("change", ["trains on", "is gone", "is damaged"])
def test_a_run_that_was_prepared_needs_the_model_it_began_with_no_more(by_hand, tmp_path, change):
    at.train_model(by_hand, tmp_path / "undisturbed")
    (tmp_path / "run").mkdir()
    at.prepare(by_hand, tmp_path / "run")
    if change == "trains on":
        other = at.load_trained_model(tmp_path / "undisturbed")
        shutil.rmtree(by_hand.init_from)
        at.save_model(other, by_hand.init_from)
    elif change == "is gone":
        shutil.rmtree(by_hand.init_from)
    else:
        Path(by_hand.init_from, "model.safetensors").write_bytes(b"")
    at.train_model(by_hand, tmp_path / "run")
    assert log_of(tmp_path / "run") == log_of(tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.long
def test_a_small_corpus_trains_with_the_default_settings(tmp_path, capsys):
    """But for the size of the model; without a test split the validation split is scored."""
    pairs = at.builtin_corpus()["train"][:90]
    data = write_pairs(tmp_path / "mine", ("de", "en"), train=pairs[30:], val=pairs[:30])
    sizes = "--N 1 --d-model 64 --d-ff 256 --h 4 --dropout 0.1 --folder".split()
    assert at.main(["train", "--data", str(data), *sizes, str(tmp_path / "run")]) == 0
    assert at.main(["evaluate", "--model", str(tmp_path / "run")]) == 0
    bleu = float(re.search(r"val: BLEU (\S+) ", capsys.readouterr().out)[1])
    assert bleu > 20
