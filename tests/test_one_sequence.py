"""A translator without an encoder: it reads pairs as a language model would, and can be stopped."""

import dataclasses
import json
import statistics

import pytest
import torch

import the_annotated_transformer as at
from tools import records
from tools.results import one_sequence, plan
from tools.views import recipe

BLEU = {"search-batch-1280": 12.5, "idea-rotary": 13.5}  # invented, of the runs beside
PAIRS = [([5, 6, 7, at.END], [at.START, 8, 9, at.END]), ([7, at.END], [at.START, 6, at.END])]


both_positions = pytest.mark.parametrize("positions", ["sinusoids", "rotary"])


def small_model(positions: str) -> at.OneSequence:
    torch.manual_seed(0)
    model = at.make_language_model(13, N=2, d_model=16, d_ff=32, h=4, kind=at.OneSequence)
    if positions == "rotary":
        at.exchange(model, "attention", lambda: at.RotaryAttention(4, 16))
        at.exchange(model, "positions", torch.nn.Identity)
    return at.draw_weights(model).eval()


@both_positions
def test_the_loss_is_that_of_the_target_behind_its_source(positions):
    model = small_model(positions)
    found = at.evaluate_loss(model, [at.collate(PAIRS)])["nll"]
    losses = []
    for source, target in PAIRS:
        ids = torch.tensor([source + target])
        states = at.LanguageModel.forward(model, None, ids, None, at.subsequent_mask(ids.size(1)))
        log_probs = model.generator(states)[0]
        losses += [-log_probs[len(source) + n - 1, target[n]].item() for n in range(1, len(target))]
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@both_positions
@pytest.mark.parametrize("end", [0.0, 1.1])
def test_a_text_is_continued_in_a_batch_with_a_cache_as_alone_without(end, positions):
    model = small_model(positions)
    model.generator.proj.bias.data[at.END] = end  # none ends, or all do, at different places
    prompts = [[*source, at.START] for source, _ in (*PAIRS, ([9, 9, 9, 9, 9, at.END], []))]
    found = at.generate(model, prompts, 6, lambda log_probs: log_probs.argmax(-1))
    for prompt, ids in zip(prompts, found, strict=True):
        alone = list(prompt)
        while len(alone) < len(prompt) + 6 and alone[-1] != at.END:
            causal = at.subsequent_mask(len(alone))
            states = at.LanguageModel.forward(model, None, torch.tensor([alone]), None, causal)
            alone.append(model.generator(states[0, -1]).argmax().item())
        assert ids == alone[len(prompt) :]


@pytest.fixture
def toy(tmp_path, monkeypatch, small_corpus) -> None:
    """A plan that takes seconds, with records and runs in folders of their own."""
    sizes = {"d_model": 16, "d_ff": 32, "vocab_size": 150, "epochs": 2, "h": 2}
    for name in one_sequence.BESIDE.values():
        config = dataclasses.replace(plan.RUNS[name], data=str(small_corpus), **sizes)
        monkeypatch.setitem(plan.RUNS, name, config)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))


def cells(markdown: str) -> list[list[str]]:
    """The rows of a table in Markdown, without its head."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def what_was_learnt() -> list:
    entries = records.read("one-sequence")["runs"][0]["log"]
    return [{name: entry[name] for name in ("updates", "loss", "nll", "bleu")} for entry in entries]


def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(toy, tmp_path, monkeypatch):
    one_sequence.train(3)
    whole = what_was_learnt()
    assert [entry["updates"] for entry in whole] == [whole[0]["updates"], 2 * whole[0]["updates"]]
    monkeypatch.setattr(records, "RESULTS", tmp_path / "others")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "stopped"))
    train_epoch = at.train_epoch

    def stops(run: at.Run, epoch: int) -> dict:
        if epoch == 2:
            raise KeyboardInterrupt
        return train_epoch(run, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(at, "train_epoch", stops)
        with pytest.raises(KeyboardInterrupt):
            one_sequence.train(3)
    assert not records.read("one-sequence")
    one_sequence.train(3)
    assert what_was_learnt() == whole


def test_the_table_has_both_kinds_with_both_positions(toy, monkeypatch):
    monkeypatch.setattr(records, "wait_for_quiet", lambda: None)
    beside = json.loads((records.PROJECT / "results/runs/search-batch-1280.json").read_bytes())
    for name, bleu in BLEU.items():
        log = [entry | {"bleu": bleu} for entry in beside["log"]]
        for run in next(runs for runs in plan.TRIALS if name in runs):
            records.write(f"runs/{run}", beside | {"log": log})
    for rotary in (False, True):
        one_sequence.train(3, rotary)
        one_sequence.speed(rotary)
        one_sequence.train(2, rotary)  # which keeps the speeds
    rows = cells(recipe.one_sequence())
    for name, (two_stacks, one_stack) in zip(
        one_sequence.BESIDE, [rows[:2], rows[2:]], strict=True
    ):
        found = records.read(name)
        assert float(two_stacks[3]) == BLEU[one_sequence.BESIDE[name]]
        last = [each["log"][-1]["perplexity"] for each in found["runs"]]
        assert [each["seed"] for each in found["runs"]] == [2, 3]
        mean, low, high = sum(last) / 2, min(last), max(last)
        assert one_stack[4] == f"{mean:.2f} ({low:.2f}–{high:.2f})"
        for kind, row in (("encoder-decoder", two_stacks), ("one sequence", one_stack)):
            timed = found["speed"]["rows"][kind]
            medians = [statistics.median(timed[what]) for what in ("training", "writing")]
            assert row[-2:] == [f"{round(each, -2):,}" for each in medians]
    found["speed"]["made"]["torch"] = "1.0"  # of the rotary ones
    records.write("one-sequence-rotary", found)
    with pytest.raises(ValueError, match="share torch"):
        recipe.one_sequence()


@pytest.mark.parametrize("beside", one_sequence.BESIDE.values())
def test_both_kinds_have_as_many_parameters_and_cache_what_they_say(beside):
    config = plan.RUNS[beside]
    two_stacks = at.build_model(config, 5000, 5000)
    one_stack = one_sequence.model_of(config, 5000)
    sizes = [at.count_parameters(model) for model in (two_stacks, one_stack)]
    assert max(sizes) < 1.02 * min(sizes)
    layers = one_stack.decoder.layers[0], two_stacks.encoder.layers[0]
    assert repr(layers[0]) == repr(layers[1])  # parts and dropout, too
    assert repr(one_stack.tgt_embed) == repr(two_stacks.tgt_embed)
    kept = one_sequence.bytes_per_token(config.d_model, two_stacks, one_stack)
    assert kept["one sequence"] == one_sequence.LAYERS * 2 * config.d_model * 4
    assert kept["encoder-decoder"] == config.N * 2 * config.d_model * 4
