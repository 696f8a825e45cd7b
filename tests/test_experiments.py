"""The small experiments: each is made once, and measures what it says."""

import itertools
from unittest.mock import Mock

import pytest
import torch

import the_annotated_transformer as at
from tools import records
from tools.results import experiments, language_models, particles


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)


@pytest.fixture(scope="module")
def shipped() -> at.Translator:
    return at.load_trained_model("pretrained", torch.device("cpu"))


def test_nothing_is_trained_twice(results, monkeypatch):
    monkeypatch.setattr(experiments, "warmed", Mock(return_value={"loss": 1.0}))
    monkeypatch.setattr(experiments, "POSITIONS", {"none": {"positions": at.NoPositions}})
    monkeypatch.setattr(at, "data_gen", lambda *sizes: iter([None]))
    monkeypatch.setattr(at, "kinds_of_copies", lambda model, batch: {"copied": 7})
    monkeypatch.setattr(at, "train_to_copy", Mock(return_value=[]))
    for _ in range(2):
        assert experiments.main(["warmups"]) == 0
        assert experiments.main(["lengths"]) == 0
    asked = [each.args for each in experiments.warmed.call_args_list]
    assert len(asked) == len(set(asked)) == 84
    assert at.train_to_copy.call_count == len(records.read("lengths")["runs"]) == 3


@pytest.mark.parametrize("warm", [True, False])
def test_a_training_without_warm_up_begins_at_the_peak(monkeypatch, warm):
    rates = []

    def run_epoch(batches, model, compute, optimizer, scheduler):
        for _ in batches:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return 1.0, None

    monkeypatch.setattr(at, "run_epoch", run_epoch)
    peak = pytest.approx(experiments.warmed(2.0, warm, True, 1)["peak"])
    assert max(rates) == rates[experiments.WARMUP - 1] == peak
    assert (rates[0] == peak) == (not warm)


def test_copies_are_told_apart(monkeypatch):
    src = torch.full((5, 5), 7)
    written = torch.tensor([[at.START, 7, 7, 7, 7, 7, at.END]]).repeat(5, 1)
    written[1, 3] = 9  # a wrong token
    written[2, 4] = at.END  # ended early
    written[3, 6] = 9  # ran over
    monkeypatch.setattr(at, "greedy_decode", lambda *given, **how: written)
    counts = at.kinds_of_copies(None, at.Batch(src))
    assert counts == {"copied": 2, "ended early": 1, "ran over": 1, "wrong token": 1}


def test_a_replaced_head_puts_out_the_same_everywhere():
    """Zero does what the script's `without_head` does; afterwards the model is as it was."""
    model = at.make_model(11, 11, N=1, d_model=16, d_ff=32, h=4).eval()
    batch = at.Batch(torch.randint(4, 11, (3, 5)), torch.randint(4, 11, (3, 6)))
    inputs = batch.src, batch.tgt, batch.src_mask, batch.tgt_mask
    attn = model.encoder.layers[0].self_attn
    seen = []
    with experiments.hook(attn, seen.append):
        before = model(*inputs)
    mean = experiments.mean_of_heads(attn, model, [batch])
    torch.testing.assert_close(mean, seen[0].mean(dim=(0, 1)))
    assert (experiments.replaced(seen[0], slice(4, 8), mean)[..., 4:8] == mean[4:8]).all()
    with experiments.hook(attn, lambda x: experiments.replaced(x, slice(4, 8), 0 * mean)):
        without = model(*inputs)
    with at.without_head(attn, 1):
        torch.testing.assert_close(without, model(*inputs))
    assert not torch.allclose(without, before)
    torch.testing.assert_close(model(*inputs), before)


def test_layers_are_timed_in_turn_and_once(results, monkeypatch):
    monkeypatch.setattr(records, "wait_for_quiet", lambda: None)
    assert all(experiments.milliseconds(x, 2, 4) > 0 for x in experiments.layers_to_time().values())
    timed = Mock(side_effect=itertools.count())
    monkeypatch.setattr(experiments, "milliseconds", timed)
    for _ in range(2):
        assert experiments.main(["length_cost"]) == 0
    rows = records.read("length-cost")["rows"]
    assert timed.call_count == len(rows) * experiments.ROUNDS
    assert rows[0]["milliseconds"] == [len(rows) * n for n in range(experiments.ROUNDS)]


def test_pairs_differ_in_their_particle_only():
    own = ["Ein Mann sieht zwei Frauen zu.", "Ein Mann sieht fern.", "Er geht den Berg hinauf."]
    from_text = list(particles.from_corpus(own))
    assert [pair.words[1][-2] for pair in from_text] == ["an", "hinunter"]
    for pair in (*particles.templates(), *from_text):
        first, second = pair.words
        differ = [n for n in range(len(first)) if first[n] != second[n]]
        assert differ == [len(first) - 2]
        assert first[pair.verb] in {verb.verb for verb in particles.VERBS}


def test_a_pair_counts_where_each_translation_says_what_its_particle_asks_for():
    pair = particles.Pair((["sieht", "zu", "."],) * 2, 0, ("watch", r"look\w* at"), "")
    assert particles.counts(pair, ["A man watches.", "A man is looking at a dog."])
    for written in (["A man watches."] * 2, ["A man looks at."] * 2, ["A man.", "looking at"]):
        assert not particles.counts(pair, written)


def test_words_are_found_among_their_subwords(shipped):
    subwords = shipped.vocabularies[0]
    words = ["Ein", "Xylophonist", "sieht", "zwei", "Frauen", "zu", "."]
    places = particles.places_of(subwords, words)
    [ids] = subwords.encode([particles.text_of(words)])
    assert places[-1].stop == len(ids)
    for word, place in zip(words, places, strict=True):
        assert "".join(subwords.words[ids[n]] for n in place).strip("▁") == word


def test_the_shift_of_a_pair_is_divided_among_its_words(shipped):
    [pair] = particles.from_corpus(["Ein Mann sieht zwei Frauen zu."])
    record = particles.measured(shipped, pair)
    targets, memories = at.memories_of_pair(
        shipped, "sieht", "Ein Mann sieht zwei Frauen {}.", ("zu", "an")
    )
    changes = []
    for target in targets:
        one, other = (at.log_probabilities(shipped.model, memories[name], target) for name in "AB")
        changes.append((one - other).sum().item())
    swapped = record["swapped"]
    assert sum(swapped["everything"].values()) == pytest.approx(changes[0] - changes[1], abs=1e-3)
    place = targets[1][0, 1:].tolist().index(shipped.vocabularies[1].words.index("▁at"))
    given = [at.log_probabilities(shipped.model, memories[name], targets[1]) for name in "AB"]
    at_particle = (given[1] - given[0])[place].item()
    assert swapped["everything"]["particle"] == pytest.approx(at_particle, abs=1e-3)
    assert swapped["particle"]["particle"] == pytest.approx(at_particle, abs=0.1)
    assert swapped["verb"]["particle"] == pytest.approx(0, abs=0.1)
    first, *_, last = record["verb by layer"]
    assert first == pytest.approx({"particle": 0, "others": 0}, abs=1e-3)
    assert last == pytest.approx(record["swapped"]["verb"], abs=1e-3)


@pytest.mark.parametrize("name", language_models.MODELS)
def test_with_a_cache_a_language_model_writes_what_it_writes_without_one(name):
    model = language_models.MODELS[name](50)
    written, held = language_models.write_captions(model)
    with at.evaluating(model):
        mask = at.subsequent_mask(language_models.LENGTH)
        log_probs = model.generator(model(None, written[:, :-1], None, mask))
    assert torch.equal(written[:, 1:], log_probs.argmax(-1))
    assert held > 0
