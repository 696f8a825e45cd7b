"""The small experiments of the story: each fault is planted once, and told as it was measured."""

import itertools
import math
import statistics

import pytest
import torch

from tools import records
from tools.results import experiments, particles, plan
from tools.results import language_models as assembled
from tools.views import views


def test_every_fault_has_its_line_and_is_a_fault():
    for fault in experiments.FAULTS:
        text = experiments.faulty_text(fault)
        assert (text == experiments.SCRIPT.read_text("utf-8")) == (fault.name == views.SOUND)
    names = [fault.name for fault in experiments.FAULTS]
    assert len(set(names)) == len(names) > 20
    assert set(views.PARTS.values()) < set(names)
    lost = experiments.Fault("lost", "a line that is not there", "")
    with pytest.raises(ValueError, match="lost: its line stands 0 times"):
        experiments.faulty_text(lost)


def test_copies_are_told_apart(at):
    """A model that writes its source, but for what is told of each sequence."""

    class Parrot(at.nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = at.nn.Identity()

        def encode(self, src, src_mask):
            memory = at.F.pad(src, (0, 6), value=at.END)
            memory[1, 2] = 9  # a wrong token
            memory[2, 3] = at.END  # ended early
            memory[3, 5] = 9  # ran over
            return memory

        def decode(self, memory, src_mask, tgt, tgt_mask):
            return at.F.one_hot(memory[:, : tgt.size(1)], at.COPY_VOCAB)

    batch = at.Batch(at.torch.full((5, 5), 7))
    counts = at.kinds_of_copies(Parrot(), batch)
    assert counts == {"copied": 2, "ended early": 1, "ran over": 1, "wrong token": 1}
    assert tuple(counts) == views.KINDS


def test_nothing_is_trained_twice(tmp_path, monkeypatch):
    asked = []

    def copy_training(fault, seed):
        asked.append((fault.name, seed))
        return {"seed": seed, "losses": "2.0 0.1"} | dict.fromkeys(views.KINDS, seed)

    monkeypatch.setattr(experiments, "copy_training", copy_training)
    monkeypatch.setattr(experiments, "warmed", lambda *run: asked.append(run) or {"loss": 1.0})
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    for _ in range(2):
        assert experiments.main(["copying"]) == 0
        assert experiments.main(["warmups"]) == 0
    kinds = {kind: [] for kind in ("copy", "wide", *experiments.MEASURES)}
    for fault in experiments.FAULTS:
        kinds[fault.shows].append(fault.name)
    trained = [*kinds["copy"], *kinds["wide"], "nothing, one head of width 512"]
    expected = {(name, seed) for name in trained for seed in experiments.SEEDS}
    assert set(asked[: len(expected)]) == expected
    assert len(asked) == len(expected) + 6 * 2 * 2 * 3
    [about] = records.read("planted")["made"]["copying"]
    assert about.keys() >= {"date", "machine", "commit", "torch", "device", "format"}
    points = views.breaks()["chart"]["data"]["values"]
    assert len(points) == (1 + len(views.PARTS)) * 3
    assert views.copied()["rows"][0][2] == "2\u00a0(1–\u20603)"


def test_nothing_is_translated_twice(at, tmp_path, monkeypatch):
    asked = []
    for kind in experiments.MEASURES:
        measure = lambda fault, seed: asked.append((fault.name, seed)) or 40.0  # noqa: E731
        made = experiments.MEASURES[kind][1]
        monkeypatch.setitem(experiments.MEASURES, kind, (measure, made))
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    for _ in range(2):
        assert experiments.main(["translating"]) == 0
    names = [name for name, _ in asked]
    several = [fault for fault in experiments.FAULTS if fault.shows == "demonstration"]
    assert len(asked) == len(set(asked)) + 1  # the sound one of each model
    for fault in several:
        assert names.count(fault.name) == 3
    assert names.count("scored in lower case") == 1
    assert names.count("dropout is on while it translates") == 1
    made = records.read("planted")["made"]
    assert made["shipped"][0]["model"] == at.load_trained_model("pretrained").name
    assert "model" not in made["demonstration"][0]


def test_faults_are_compared_with_what_the_same_pytorch_did(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    one, other = experiments.FAULTS[:2]
    monday = {"machine": "a toy", "torch": "2.13.0", "device": "cpu", "format": "fp32"}
    for fault, made in ((one, monday), (other, monday), (other, monday | {"machine": "b"})):
        experiments.keep("shipped", fault, [40.0], made)
    machines = [made["machine"] for made in records.read("planted")["made"]["shipped"]]
    assert machines == ["a toy", "b"]
    with pytest.raises(ValueError, match=r"share torch.*'shipped before': '2\.13\.0'"):
        experiments.keep("shipped", other, [40.0], monday | {"torch": "2.14.0"})


@pytest.mark.parametrize("warm", [True, False])
def test_a_training_without_warm_up_begins_at_the_peak(at, monkeypatch, warm):
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


@pytest.mark.parametrize(
    ("bleu", "sound", "symptom"),
    [
        ([39.0], [42.9], "BLEU is lower"),
        ([43.5], [42.9], "BLEU is higher"),
        ([43.2], [42.9], "no symptom"),
        ([22.0, 25.0, 21.0], [23.0, 24.0, 25.0], "no symptom"),
    ],
)
def test_a_symptom_in_bleu_is_half_a_point_beyond_all_that_is_sound(bleu, sound, symptom):
    assert views.symptom_of_bleu(bleu, sound) == symptom


# Of three runs the last loss and the copies of 200, and what is to be said of them.
SYMPTOMS = """\
0.02 190, 0.5 10, 0.6 20: no symptom
0.5 30, 0.4 10, 0.6 20: learns slower, copies fewer (wrong token)
0.02 0, 0.01 0, 0.03 0: the loss is fine, copies none (wrong token)
2.4 0, 2.3 0, 2.4 0: the loss stays high
0.0 0, 0.0 0, 0.0 0: learns faster, copies none (wrong token)
"""


def runs_of(told: str) -> list[dict]:
    runs = []
    for run in told.split(", "):
        last, copied = run.split()
        counts = {"copied": int(copied), "wrong token": 200 - int(copied)}
        counts |= {"ended early": 0, "ran over": 0}
        runs.append({"losses": f"2.0 {last}"} | counts)
    return runs


@pytest.mark.parametrize("line", SYMPTOMS.splitlines())
def test_a_symptom_is_named_where_all_seeds_lie_beyond_all_sound_ones(line):
    told, _, expected = line.partition(": ")
    sound = runs_of("0.01 199, 0.03 180, 0.02 190")
    assert views.symptom_of_copies(runs_of(told), sound) == expected


# What one word carries ----------------------------------------------------------------------------


def test_pairs_differ_in_their_particle_only():
    pairs = [*particles.templates()]
    own = ["Ein Mann sieht zwei Frauen zu.", "Ein Mann sieht fern.", "Er geht den Berg hinauf."]
    from_text = list(particles.from_corpus(own))
    assert len(pairs) > 400
    assert [pair.words[1][-2] for pair in from_text] == ["an", "hinunter"]
    for pair in (*pairs, *from_text):
        first, second = pair.words
        differ = []
        for n in range(len(first)):
            if first[n] != second[n]:
                differ.append(n)
        assert differ == [len(first) - 2]
        assert first[pair.verb] in {verb.verb for verb in particles.VERBS}


def test_a_pair_counts_where_each_translation_says_what_its_particle_asks_for():
    pair = particles.Pair((["sieht", "zu", "."],) * 2, 0, "verb", ("watch", r"look\w* at"), "")
    assert particles.counts(pair, ["A man watches.", "A man is looking at a dog."])
    for written in (["A man watches."] * 2, ["A man looks at."] * 2, ["A man.", "looking at"]):
        assert not particles.counts(pair, written)


def test_words_are_found_among_their_subwords(at):
    translator = at.load_trained_model("pretrained")
    subwords = translator.vocabularies[0]
    words = ["Ein", "Xylophonist", "sieht", "zwei", "Frauen", "zu", "."]
    places = particles.places_of(subwords, words)
    [ids] = subwords.encode([particles.text_of(words)])
    assert places[-1].stop == len(ids)
    for word, place in zip(words, places, strict=True):
        assert "".join(subwords.words[ids[n]] for n in place).strip("▁") == word


def test_nothing_swapped_moves_nothing_and_everything_all(at):
    translator = at.load_trained_model("pretrained")
    [pair] = particles.from_corpus(["Ein Mann sieht zwei Frauen zu."])
    record = particles.measured(translator, pair)
    assert record["shares"]["nothing"] == pytest.approx(0, abs=1e-3)
    assert record["shares"]["everything"] == pytest.approx(1, abs=1e-3)
    assert record["layers"]["particle"][0] == pytest.approx(1, abs=1e-3)
    assert record["layers"]["verb"][0] == pytest.approx(0, abs=1e-3)
    assert record["shares"]["verb"] == pytest.approx(record["layers"]["verb"][-1], abs=1e-3)


# What is told of the records ----------------------------------------------------------------------


def test_what_the_text_says_of_particles_is_on_record():
    pairs = records.read("particles")["pairs"]
    verb = [pair for pair in pairs if pair["kind"] == "verb"]
    particle = [pair for pair in pairs if pair["kind"] == "particle"]
    at_verb = [pair["shares"]["verb"] for pair in verb]
    assert statistics.median(at_verb) == pytest.approx(0.8, abs=0.05)
    at_particle = [pair["shares"]["particle"] for pair in particle]
    assert statistics.median(at_particle) > 0.9
    looking = 0
    for pair in verb:
        words = pair["sentences"][0].split()
        looking += "sieht" in words or "schaut" in words
    assert looking > 0.8 * len(verb)
    stayed = [pair["shares"]["particle"] for pair in verb]
    assert 0.2 < statistics.median(stayed) < 0.25
    for layer, low, high in ((0, 0, 0.1), (1, 0.7, 0.9), (2, 0.7, 0.9), (3, 0.7, 0.9)):
        carried = statistics.median(pair["layers"]["verb"][layer] for pair in verb)
        assert low <= round(carried, 2) <= high
        stayed = statistics.median(pair["layers"]["verb"][layer] for pair in particle)
        assert stayed < 0.05


def test_what_the_text_says_of_length_is_on_record():
    """Four times the length, by steps: how many times as long each layer takes."""
    rows = records.read("length-cost")["rows"]
    times = {}
    for row in rows:
        middle = statistics.median(row["milliseconds"])
        times.setdefault(row["layer"], []).append(middle)
    steps = {name: [b / a for a, b in itertools.pairwise(each)] for name, each in times.items()}
    assert steps["recurrent (GRU)"] == pytest.approx([4] * 3, rel=0.25)
    attention = steps["self-attention"]
    assert attention[0] < attention[1] < attention[2]
    assert attention[0] < 2.5
    assert attention[-1] > 0.9 * steps["recurrent (GRU)"][-1]
    assert all(
        a < b for a, b in zip(times["self-attention"], times["recurrent (GRU)"], strict=True)
    )


def test_layers_are_timed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(records, "wait_for_quiet", lambda: None)
    numbers = itertools.count(1)
    monkeypatch.setattr(experiments, "milliseconds", lambda layer, length: next(numbers))
    for _ in range(2):
        assert experiments.main(["length_cost"]) == 0
    cases = 3 * len(experiments.LENGTHS)
    assert next(numbers) == cases * experiments.ROUNDS + 1
    first = records.read("length-cost")["rows"][0]
    assert first["milliseconds"] == [1 + cases * n for n in range(experiments.ROUNDS)]
    points = views.length_cost()["chart"]["data"]["values"]
    assert len(points) == cases


def test_a_layer_is_timed():
    layer = experiments.layers_to_time()["recurrent (GRU)"]
    assert 0 < experiments.milliseconds(layer, 4) < 1000


def test_what_the_text_says_of_warm_up_is_on_record():
    """The highest rate, of those in a row from the lowest, by which all seeds end below 0.5."""
    runs = records.read("warmups")["runs"]
    learnt = {}
    for first, warm in itertools.product((True, False), repeat=2):
        worst = {}
        for run in runs:
            if run["norm first"] == first and run["warm-up"] == warm:
                rate = run["peak"]
                before = worst.get(rate, 0)
                worst[rate] = max(run["loss"], before)
        highest = 0
        for rate in sorted(worst):
            if worst[rate] >= 0.5:
                break
            highest = rate
        learnt[first, warm] = round(highest, 4)
    expected = {(True, True): 0.0177, (True, False): 0.0044, (False, True): 0.0044}
    assert learnt == expected | {(False, False): 0}


def test_what_the_text_says_of_lengths_is_on_record():
    """Index 10 is of eleven tokens, one more than in the training."""
    copied = {}
    beyond = {}
    for run in records.read("lengths")["runs"]:
        copied.setdefault(run["positions"], []).append(run["copied"])
        sums = {kind: sum(run[kind][11:]) for kind in views.KINDS}
        beyond.setdefault(run["positions"], []).append(max(sums, key=sums.get))
    for kind in ("sinusoids", "learnt", "rotary"):
        assert all(sum(counts[:10]) > 920 for counts in copied[kind]), "nearly everything"
    assert all(sum(counts[4:]) < 10 for counts in copied["none"])
    assert all(counts[10:] == [0] * 10 for counts in copied["learnt"])
    assert all(counts[10] > 10 and sum(counts[11:]) <= 1 for counts in copied["sinusoids"])
    assert max(counts[15] for counts in copied["rotary"]) == 4
    assert all(sum(counts[16:]) == 0 for counts in copied["rotary"])
    assert sorted(counts[6] < 70 for counts in copied["sinusoids"]) == [False, False, True]
    assert beyond["learnt"] == beyond["sinusoids"] == ["ended early"] * 3
    assert beyond["rotary"] == ["ran over"] * 3
    ran_over = [run["ran over"] for run in records.read("lengths")["runs"]]
    assert sum(counts[0] > 50 for counts in ran_over) == 1


def test_what_the_text_says_of_trials_is_on_record():
    names = [name for name in plan.RUNS if name.startswith("trial-")]
    last = {name: records.read(f"runs/{name}")["log"][-1] for name in (*names, "recipe-1")}
    bleu = {name: entry["bleu"] for name, entry in last.items()}
    base = bleu["trial-base"]
    for better in ("trial-batch-1280", "trial-subwords-10000"):
        assert bleu[better] - base == pytest.approx(1, abs=0.25)
    assert bleu["trial-factor-50"] - bleu["trial-after-50"] > 4
    for whole in ("trial-whole-25", "trial-whole-30"):
        assert abs(bleu[whole] - bleu["recipe-1"]) < 1
        assert 1.8 < last[whole]["updates"] / last["recipe-1"]["updates"] < 2


def test_what_the_text_says_of_parts_of_today_is_on_record():
    record = records.read("assembled")
    last = {}
    for run in record["runs"]:
        last.setdefault(run["model"], []).append(math.exp(run["nll"][-1]))
        assert run["updates"] == record["runs"][0]["updates"]
    assert len(last["plain"]) == len(last["assembled"]) == 3
    assert max(last["assembled"]) < min(last["plain"])
    assert 0.02 < 1 - statistics.mean(last["assembled"]) / statistics.mean(last["plain"]) < 0.045
    plain = record["speed"]["plain"]
    today = record["speed"]["assembled"]
    assert plain["bytes"] == 2 * today["bytes"]
    for what, low, high in (("training", 1, 1.06), ("writing", 0.9, 1)):
        ratio = statistics.median(today[what]) / statistics.median(plain[what])
        assert low < ratio < high


def test_with_a_cache_both_write_what_they_write_without_one():
    for make in assembled.MODELS.values():
        model = make(50)
        written, held = assembled.write_captions(model)
        assert torch.equal(written[:, 1:], assembled.one_pass(model, written))
        assert held > 0
    sizes = [assembled.at.count_parameters(make(6274)) for make in assembled.MODELS.values()]
    assert abs(sizes[0] - sizes[1]) < 1000


def test_what_the_text_says_of_a_translator_without_a_part_is_on_record():
    bleu = records.read("planted")["demonstration"]
    sound = bleu[views.SOUND]
    assert round(statistics.mean(sound)) == 24
    assert round(statistics.mean(bleu["a translator without the division by √d_k"])) == 6
    bare = bleu["a translator without feed-forward networks"]
    assert views.symptom_of_bleu(bare, sound) == "no symptom"


def test_one_head_of_width_512_copies_nothing_without_the_division():
    runs = records.read("planted")["copying"]["no division by √d_k, one head of width 512"]
    assert [run["copied"] for run in runs] == [0, 0, 0]
    assert {10 * len(views.losses_of(run)) for run in runs} == {100}


def test_what_the_text_says_of_lost_sentences_is_on_record():
    counts = records.read("lost")["counts"]
    lost = [counts[beam]["greedy above"] for beam in ("2", "4", "8")]
    assert lost == sorted(lost, reverse=True)
    assert max(lost) < 0.05 * sum(counts["2"].values())


def test_what_the_text_says_of_heads_and_of_hebt_is_on_record():
    """In first layers of self-attention the mean costs more; of *hebt* nineteen pairs counted."""
    rows = records.read("heads")["rows"]
    for zero, average in itertools.pairwise(rows):
        first = zero["layer"] == 1 and "self" in zero["attention"]
        if first and zero["by"] == "zero":
            assert statistics.mean(zero["changes"]) < statistics.mean(average["changes"])
    pairs = records.read("particles")["pairs"]
    shares = [p["shares"]["verb"] for p in pairs if "hebt" in p["sentences"][0].split()]
    assert len(shares) == 19
    assert min(shares) < 0.5
    assert max(shares) > 1.5
