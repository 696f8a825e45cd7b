"""Runs are trained and scored once, records are complete, and a gain is told from luck."""

import dataclasses
import functools
import random
import shutil
import statistics

import pytest
import torch
from conftest import write_pairs

from tools import records
from tools.results import plan, score, ship, significance, train

MADE = {"date": "2027-01-01", "machine": "a toy", "commit": "0123456789"}
MADE |= {"torch": "2.13.0", "device": "cpu", "format": "fp32"}


@pytest.fixture
def toy(at, tmp_path, monkeypatch, fresh_corpora):
    """A plan of two rows of toy runs, and folders of its own; nothing has run yet."""
    pairs = at.builtin_corpus()["train"]
    parts = [pairs[start : start + 12] for start in (120, 132, 144)]
    splits = dict(zip(("train", "val", *plan.TESTS), (pairs[:120], *parts), strict=True))
    corpus = str(write_pairs(tmp_path / "text", ("de", "en"), **splits))
    words = at.Config(
        data=corpus, N=1, d_model=16, d_ff=32, h=2, max_len=64, min_freq=1, average=2,
        vocab_size=0, share_embeddings=False, epochs=3, batch_tokens=128, warmup=10,
        precision="bf16",
    )  # fmt: skip
    subwords = dataclasses.replace(words, vocab_size=150, share_embeddings=True)
    runs = {f"words-{seed}": dataclasses.replace(words, seed=seed) for seed in (1, 2)}
    runs |= {f"subwords-{seed}": dataclasses.replace(subwords, seed=seed) for seed in (1, 2)}
    runs["back"] = dataclasses.replace(subwords, languages="en-de")
    first = plan.Row("words", "words", ("words-1", "words-2"))
    second = plan.Row("subwords", "subwords", ("subwords-1", "subwords-2"), beam=4, averaged=2)
    changes = {
        "RUNS": runs,
        "ROWS": (first, second),
        "OTHER": dataclasses.replace(second, name="back", runs=("back",)),
        "ON_GPU": {},
        "SHIPPED": dataclasses.replace(second, name="int8", runs=("subwords-1",)),
        "CORPUS": corpus,
        "AVERAGED": 2,
        "BEAMS": (1, 2),
        "ALPHAS": (0.0, 1.0),
    }
    for name, value in changes.items():
        monkeypatch.setattr(plan, name, value)
    monkeypatch.setattr(records, "PRETRAINED", tmp_path / "pretrained")
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))


def make_results() -> None:
    for main, command in (
        (train.main, "run"),
        (score.main, "validate"),
        (score.main, "test"),
        (score.main, "steps"),
        (ship.main, "pretrained"),
    ):
        assert main([command]) == 0, command


def all_records() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in records.RESULTS.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_plan_is_trained_and_scored_once(at, toy, monkeypatch):
    make_results()
    summary = records.read("runs/words-2")["summary"]
    circumstances = records.circumstances("cpu", "bf16")
    assert summary.items() >= circumstances.items()
    settings = plan.RUNS["words-2"]
    known = {name: value for name, value in vars(settings).items() if value is not None}
    assert summary["settings"].items() >= known.items()
    assert [entry["epoch"] for entry in records.read("runs/words-2")["log"]] == [1, 2, 3]
    assert summary["mean"]["averaged"] == 2
    assert [
        (row["beam"], row["alpha"]) for row in records.read("beam")["sweep"]
    ] == [(1, 0.0), (2, 0.0), (2, 1.0)]  # fmt: skip
    assert [row["averaged"] for row in records.read("averaging")["sweep"]] == [0, 1, 2]
    entries = records.read("scores")["scores"]
    scored = [(entry["row"], entry["run"], entry["split"]) for entry in entries]
    assert len(scored) == len(set(scored)) == (len(plan.RUNS) + 1) * len(plan.TESTS)
    assert [step["row"] for step in records.read("steps")["steps"]] == ["subwords"] * 2
    formats = records.read("pretrained")["formats"]
    assert formats["int8"]["MB"] < formats["fp32"]["MB"]
    name = at.load_trained_model(records.PRETRAINED).name
    assert records.made_with_shipped() == records.circumstances() | {"model": name}

    before = all_records()
    shutil.rmtree(at.runs_folder())
    monkeypatch.setattr(at, "train_model", None)
    monkeypatch.setattr(at, "score", None)
    make_results()
    assert all_records() == before


@pytest.fixture
def trained(at, toy):
    assert train.main(["run", "subwords-1"]) == 0
    return at.read_last(train.folder_of("subwords-1"))


def test_a_score_is_that_of_the_translations_on_file(at, trained):
    assert score.main(["test", "subwords-1"]) == 0
    mean = score.translator_of("subwords-1", 2)
    recent = trained["recent"]
    for name, value in mean.model.named_parameters():
        torch.testing.assert_close(value, (recent[0][name] + recent[1][name]) / 2)
    decode = functools.partial(at.beam_search, beam=4, alpha=0.6)
    for entry in records.read("scores")["scores"]:
        path = score.translations_path(plan.ROWS[1], "subwords-1", entry["split"])
        written = path.read_text().split("\n")[:-1]
        sources, references = zip(*at.find_corpus(plan.CORPUS).pairs(entry["split"]), strict=True)
        assert written == at.translate(mean, sources, decode, split=False)
        assert entry["bleu"] == round(at.corpus_bleu(written, references)[0], 2)
        assert (entry["beam"], entry["alpha"], entry["averaged"]) == (4, 0.6, 2)


def test_without_an_average_the_best_kept_epoch_translates(at, trained):
    kept = [entry for entry in trained["history"] if entry["averaged"] == 0][-2:]
    best = trained["recent"][kept.index(max(kept, key=at.quality))]
    for name, value in score.translator_of("subwords-1", 0).model.named_parameters():
        assert torch.equal(value, best[name])
    with pytest.raises(ValueError, match="subwords-1 has kept 2 epochs, not 3"):
        score.translator_of("subwords-1", 3)


def test_a_training_cut_short_goes_on(at, toy, monkeypatch, capsys):
    train_epoch = at.Run.train_epoch
    trained = []

    def interrupted(run, epoch):
        if epoch == 3 and epoch not in trained:
            trained.append(epoch)
            raise KeyboardInterrupt
        trained.append(epoch)
        return train_epoch(run, epoch)

    monkeypatch.setattr(at.Run, "train_epoch", interrupted)
    assert train.main(["run", "words-1"]) == 1
    assert capsys.readouterr().err == "error: interrupted\n"
    assert not records.read("runs/words-1")
    assert score.main(["test", "words-1"]) == 1
    assert "no finished run in" in capsys.readouterr().err
    assert train.main(["left", "words"]) == 0
    assert capsys.readouterr().out == "words-1\nwords-2\n"
    assert train.main(["run", "words-1"]) == 0
    assert trained == [1, 2, 3, 3]
    assert train.main(["left", "words"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "words-2"


@pytest.mark.parametrize(("main", "command"), [(train.main, "run"), (score.main, "test")])
def test_an_unknown_run_is_refused(toy, capsys, main, command):
    assert main([command, "bert"]) == 1
    assert "no run begins with 'bert': choose among words-1" in capsys.readouterr().err


def test_a_gpu_run_without_a_gpu_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for named in ("", "0", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert train.main(["run", "gpu-2"]) == 1
        assert capsys.readouterr().err.startswith("error: no NVIDIA GPU")
    assert train.main(["run", "recipe-2"]) == 1, "a GPU is named"
    assert capsys.readouterr().err.startswith("error: no NVIDIA GPU")


# Records ------------------------------------------------------------------------------------------


def test_circumstances_say_with_what_a_number_was_made(monkeypatch):
    made = records.circumstances()
    assert made.keys() >= MADE.keys()
    assert made["torch"] == torch.__version__
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert records.circumstances("cuda", "bf16").items() >= {
        "machine": "NVIDIA X", "device": "cuda", "format": "bf16"
    }.items()  # fmt: skip


@pytest.mark.parametrize("what", ["torch", "device", "format"])
def test_records_that_differ_are_refused(what):
    other = MADE | {what: "another"}
    with pytest.raises(ValueError, match=f"share {what}.*'b': 'another'"):
        records.check_comparable({"a": MADE, "b": other})


def test_a_record_without_a_version_compares_with_its_like_only():
    old = {"format": "bf16"}
    records.check_comparable({"a": MADE, "b": MADE | {"machine": "another"}})
    records.check_comparable({"a": old, "b": {"format": "fp32"}})
    with pytest.raises(ValueError, match=r"share torch.*'b': 'not recorded'"):
        records.check_comparable({"a": MADE, "b": old})


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "record.json"
    records.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        records.write_text(path, "new" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_busy_machine_is_refused(monkeypatch):
    looks = iter([90, 90, 2, 90])
    monkeypatch.setattr(records.psutil, "cpu_percent", lambda interval: next(looks))
    records.wait_for_quiet()
    with pytest.raises(ValueError, match=r"^others use 90 % of the cores"):
        records.wait_for_quiet(patience=0)


# What a step gains --------------------------------------------------------------------------------

REFERENCES = [
    "A dog runs through the wide green park .",
    "Two men sit on a bench and laugh.",
    "A woman in a red dress reads a book.",
    "Children play football in the street.",
]
POOR = [
    "A dog runs through the <unk> park.",
    "Two men are on a bench and laugh.",
    "A woman in a dress reads.",
    "Children play in the street.",
]
GOOD = ["A dog runs through the wide green park.", *REFERENCES[1:3], POOR[3]]
OTHER = [POOR[0], *REFERENCES[1:3], "A street."]


def test_differences_are_those_of_sampled_corpora(at, monkeypatch):
    """sacreBLEU scores each sampled corpus anew; both have the same samples."""
    monkeypatch.setattr(significance, "DRAWS", 20)
    seeds = {"before": [POOR, OTHER], "after": [GOOD, REFERENCES]}
    counts = {
        row: [significance.counts_of(written, REFERENCES) for written in each]
        for row, each in seeds.items()
    }
    found = significance.differences(counts["before"], counts["after"])
    drawn = torch.randint(4, (20, 4), generator=torch.Generator().manual_seed(1)).tolist()

    def bleu(written: list[str], sample: list[int]) -> float:
        return at.corpus_bleu([written[n] for n in sample], [REFERENCES[n] for n in sample])[0]

    for difference, sample in zip(found.tolist(), drawn, strict=True):
        before, after = (
            statistics.mean(bleu(written, sample) for written in each) for each in seeds.values()
        )
        assert difference == pytest.approx(after - before, abs=1e-6)


def test_an_empty_translation_has_no_bleu():
    assert significance.bleu(significance.counts_of([""], ["A dog ."])[0]) == 0


def test_the_chance_is_twice_the_share_beyond_zero():
    assert significance.chance(torch.tensor([1.0] * 99)) == 0.02
    assert significance.chance(torch.tensor([1.0] * 95 + [-1.0] * 4)) == 0.1
    assert significance.chance(torch.zeros(99)) == 1


def test_the_correction_of_holm():
    """Its definition: the largest of the m - k times the k-th smallest chance, up to this one."""
    draw = random.Random(1)
    for _ in range(20):
        chances = [draw.random() ** 3 for _ in range(7)]
        ordered = sorted(chances)
        expected = [
            min(1, max((7 - k) * ordered[k] for k in range(ordered.index(chance) + 1)))
            for chance in chances
        ]
        assert significance.holm(chances) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("after", "changes", "passes"),
    [
        ([40.2, 41.2, 42.2], {"beam": 4}, True),  # the same weights: each must gain
        ([39.9, 42.5, 43.5], {"beam": 4}, False),
        ([41.0, 42.0, 43.0], {"averaged": 6}, False),  # others: by more than seeds differ
        ([43.0, 44.0, 45.0], {"averaged": 6}, True),
        ([41.0, 42.0, 43.0], {"runs": ("a", "b", "c")}, False),
        ([42.5, 43.5, 44.5], {"runs": ("a", "b", "c")}, True),
    ],
)
def test_a_step_passes_by_the_rule_of_the_text(toy, monkeypatch, after, changes, passes):
    """The sentences show a sure gain of one; it is left to the seeds."""
    sure = torch.linspace(0.5, 1.5, 10_001).double()
    monkeypatch.setattr(score, "counts_of", lambda row, run, split: None)
    monkeypatch.setattr(significance, "differences", lambda before, after: sure)
    first = plan.Row("first", "", ("run-1", "run-2", "run-3"))
    second = dataclasses.replace(first, name="second", **changes)
    bleu = {"first": [40.0, 41.0, 42.0], "second": after}

    def score_of(row, run, split):
        return {"bleu": bleu[row.name][row.runs.index(run)]}

    monkeypatch.setattr(score, "score_of", score_of)
    monkeypatch.setattr(plan, "ROWS", (first, second))
    assert score.main(["steps"]) == 0
    for step in records.read("steps")["steps"]:
        assert step["passes"] == passes
        assert step["chance"] < 0.001
