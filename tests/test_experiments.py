"""The small experiments: each is made once, and measures what it says."""

import itertools

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
    asked = []
    monkeypatch.setattr(experiments, "warmed", lambda *run: asked.append(run) or {"loss": 1.0})
    monkeypatch.setattr(experiments, "POSITIONS", {"none": {"positions": "none"}})
    monkeypatch.setattr(at, "data_gen", lambda *sizes: iter([None]))
    monkeypatch.setattr(at, "kinds_of_copies", lambda model, batch: {"copied": 7})
    monkeypatch.setattr(at, "train_briefly", lambda model, batches: asked.append("lengths"))
    for _ in range(2):
        assert experiments.main(["warmups"]) == 0
        assert experiments.main(["lengths"]) == 0
    assert len(set(asked[:72])) == 72 == len(asked) - 3
    assert asked[72:] == ["lengths"] * 3
    runs = records.read("lengths")["runs"]
    records.write("lengths", records.read("lengths") | {"runs": runs[:2]})
    assert experiments.main(["lengths"]) == 0, "what is missing is trained"
    assert len(asked) == 72 + 4
    assert records.read("lengths")["runs"] == runs


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
    run = experiments.warmed(2.0, warm, True, 1)
    assert len(rates) == 400
    assert max(rates) == pytest.approx(run["peak"])
    assert rates[experiments.WARMUP - 1] == pytest.approx(run["peak"])
    assert (rates[0] == pytest.approx(run["peak"])) == (not warm)


def test_copies_are_told_apart():
    """A model that writes its source, but for three sequences."""

    class Parrot(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = torch.nn.Identity()

        def encode(self, src, src_mask):
            memory = torch.nn.functional.pad(src, (0, 6), value=at.END)
            memory[1, 2] = 9  # a wrong token
            memory[2, 3] = at.END  # ended early
            memory[3, 5] = 9  # ran over
            return memory

        def decode(self, memory, src_mask, tgt, tgt_mask):
            return torch.nn.functional.one_hot(memory[:, : tgt.size(1)], at.COPY_VOCAB)

    batch = at.Batch(torch.full((5, 5), 7))
    counts = at.kinds_of_copies(Parrot(), batch)
    assert counts == {"copied": 2, "ended early": 1, "ran over": 1, "wrong token": 1}


def test_a_replaced_head_puts_out_the_same_everywhere():
    """Zero does what the script's `without_head` does; afterwards the model is as it was."""
    model = at.make_model(11, 11, N=1, d_model=16, d_ff=32, h=4).eval()
    batch = at.Batch(torch.randint(4, 11, (3, 5)), torch.randint(4, 11, (3, 6)))
    inputs = batch.src, batch.tgt, batch.src_mask, batch.tgt_mask
    attn = model.encoder.layers[0].self_attn
    before = model(*inputs)
    seen = []
    by = torch.arange(16.0)
    with (
        experiments.hook(attn, lambda x: experiments.replaced(x, slice(4, 8), by)),
        experiments.hook(attn, seen.append),
    ):
        model(*inputs)
    assert (seen[0][..., 4:8] == by[4:8]).all()
    with experiments.hook(attn, lambda x: experiments.replaced(x, slice(4, 8), 0 * by)):
        without = model(*inputs)
    with at.without_head(attn, 1):
        torch.testing.assert_close(without, model(*inputs))
    assert not torch.allclose(without, before)
    torch.testing.assert_close(model(*inputs), before)
    mean = experiments.mean_of_heads(attn, model, [batch])
    with experiments.hook(attn, seen.append):
        model(*inputs)
    torch.testing.assert_close(mean, seen[1].mean(dim=(0, 1)))


def test_greedy_and_beam_are_scored_alike(shipped):
    [(_, ids)] = at.source_parts(shipped, ["Ein Hund rennt durch den Park."])
    greedy, best = experiments.greedy_and_beam(shipped, ids, 1)
    assert greedy == best
    assert experiments.greedy_and_beam(shipped, ids, 4)[1] >= greedy


def test_layers_are_timed_in_turn_and_once(results, monkeypatch):
    monkeypatch.setattr(records, "wait_for_quiet", lambda: None)
    numbers = itertools.count(1)
    monkeypatch.setattr(experiments, "milliseconds", lambda layer, length: next(numbers))
    for _ in range(2):
        assert experiments.main(["length_cost"]) == 0
    cases = 3 * len(experiments.LENGTHS)
    assert next(numbers) == cases * experiments.ROUNDS + 1
    first = records.read("length-cost")["rows"][0]
    assert first["milliseconds"] == [1 + cases * n for n in range(experiments.ROUNDS)]


@pytest.mark.parametrize("layer", experiments.layers_to_time())
def test_a_layer_is_timed(layer):
    assert experiments.milliseconds(experiments.layers_to_time()[layer], 4) > 0


# What one word carries ----------------------------------------------------------------------------


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
    pair = particles.Pair((["sieht", "zu", "."],) * 2, 0, "verb", ("watch", r"look\w* at"), "")
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


def test_nothing_swapped_moves_nothing_and_everything_all(shipped):
    [pair] = particles.from_corpus(["Ein Mann sieht zwei Frauen zu."])
    record = particles.measured(shipped, pair)
    assert record["shares"]["nothing"] == pytest.approx(0, abs=1e-3)
    assert record["shares"]["everything"] == pytest.approx(1, abs=1e-3)
    assert record["layers"]["particle"][0] == pytest.approx(1, abs=1e-3)
    assert record["layers"]["verb"][0] == pytest.approx(0, abs=1e-3)
    assert record["shares"]["verb"] == pytest.approx(record["layers"]["verb"][-1], abs=1e-3)


# Language models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", language_models.MODELS)
def test_with_a_cache_a_language_model_writes_what_it_writes_without_one(name):
    model = language_models.MODELS[name](50)
    written, held = language_models.write_captions(model)
    with at.evaluating(model):
        mask = at.subsequent_mask(language_models.LENGTH)
        log_probs = model.generator(model(None, written[:, :-1], None, mask))
    assert torch.equal(written[:, 1:], log_probs.argmax(-1))
    assert held > 0


def test_both_language_models_have_as_many_parameters():
    words = 6274  # of Multi30k's English captions
    sizes = [at.count_parameters(make(words)) for make in language_models.MODELS.values()]
    assert abs(sizes[0] - sizes[1]) < 1000
