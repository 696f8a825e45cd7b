"""`make results` and `make views`: plan, records, finished tables, and the numbers in README."""

import dataclasses
import functools
import itertools
import json
import re
import shutil
import statistics
import subprocess

import pytest
import torch
from conftest import PROJECT, write_pairs

from tools import records
from tools.results import plan, significance
from tools.views import views

MADE = {"date": "2027-01-01", "machine": "a toy", "commit": "0123456789"}
MADE |= {"torch": "2.13.0", "device": "cpu", "format": "fp32"}
RECORDS = sorted(records.RESULTS.glob("runs/*.json"))


def made_by_a_toy(device: str = "cpu", dtype: str = "fp32") -> dict:
    return MADE | {"device": device, "format": dtype}


@pytest.fixture(scope="module")
def tool():
    from tools.results import recipe as results

    return results


@pytest.fixture
def toy(at, tool, tmp_path, monkeypatch, fresh_corpora):
    """The tool with a plan of two rows of toy runs, and folders of its own; nothing has run yet."""
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
        "PACED": ("words-1", "subwords-1", "back"),
        "TIMED": 3,
    }
    for name, value in changes.items():
        monkeypatch.setattr(plan, name, value)
    monkeypatch.setattr(at.Embeddings, "forward", plan.EMBED)  # the tool changes it
    monkeypatch.setattr(tool, "PRETRAINED", tmp_path / "pretrained")
    monkeypatch.setattr(records, "circumstances", made_by_a_toy)
    monkeypatch.setattr(views, "ROWS", plan.ROWS)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    return tool


def train_here(monkeypatch, tool, code=0) -> list[list[str]]:
    """Let the processes of a training be this one; the commands that were given."""
    commands = []

    def run(command, env):
        assert env["OMP_NUM_THREADS"] == "1"
        commands.append(command)
        assert tool.main(command[command.index(tool.__file__) + 1 :]) == 0
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(tool.subprocess, "run", run)
    return commands


def failure(tool, capsys, *arguments) -> str:
    """What a command says when it ends with an error."""
    assert tool.main(list(arguments)) == 1
    return capsys.readouterr().err


# The plan ---------------------------------------------------------------------------------------


def changed(before, now) -> set[str]:
    return {name for name, value in vars(now).items() if vars(before)[name] != value}


def test_each_row_changes_what_it_names_and_nothing_else(tool):
    def step(before, row) -> set[str]:
        settings = (plan.RUNS[each.runs[0]] for each in (before, row))
        return changed(*settings) | changed(before, row) - {"name", "step", "runs"}

    pairs = zip(plan.ROWS, plan.ROWS[1:], strict=False)
    result = {row.name: step(before, row) for before, row in pairs}
    expected = {
        "subwords": {"vocab_size", "dropout", "batch_tokens"},  # as the text tells
        "one-matrix": {"share_embeddings"},
        "beam": {"beam"},
        "averaging": {"averaged"},
        "recipe": {"alpha"},
    }
    assert result == expected
    assert step(plan.ROWS[-1], plan.OTHER) == {"languages"}
    for row in plan.ROWS:
        first, *others = (plan.RUNS[run] for run in row.runs)
        seeds = [first.seed, *(other.seed for other in others)]
        assert seeds == [1, 2, 3], "the captions say three seeds"
        assert first.data == "multi30k"
        assert first.average >= row.averaged
        assert all(changed(first, other) == {"seed"} for other in others)
    others = [
        (config, plan.EMBEDDINGS.get(name))
        for name, config in plan.RUNS.items()
        if name not in plan.ON_GPU
    ]
    assert len(set(others)) == len(others), "each run is another one"
    assert set(plan.ON_GPU.values()) == {plan.RUNS[name] for name in plan.FULL}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_of_a_run_agrees_with_itself_and_with_the_plan(at, tool, path):
    record = json.loads(path.read_bytes())
    summary = record["summary"]
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", summary["commit"])
    assert summary["machine"]
    planned = dataclasses.asdict(plan.RUNS[path.stem])
    made = summary["settings"]
    if "torch" not in summary:  # of the third edition, which had other names for parts
        planned = {name: planned[name] for name in planned.keys() & made.keys() - at.PARTS.keys()}
    assert made.items() >= planned.items()
    best = max(record["log"], key=at.quality)
    expected = pytest.approx(summary["validation_bleu"], abs=0.01)
    assert best["bleu"] == expected
    assert len(record["log"]) == summary["epochs"]
    result = record["log"][-1]["updates"]
    assert result == summary["updates"]


# A small plan, from text to tables --------------------------------------------------------------


def test_a_plan_is_trained_validated_scored_and_shown(at, toy, monkeypatch):
    commands = train_here(monkeypatch, toy)
    monkeypatch.setattr(plan, "BEAMS", (1, 2))
    monkeypatch.setattr(plan, "ALPHAS", (0.0, 1.0))
    monkeypatch.setattr(records, "wait_for_quiet", lambda: None)
    every = ("train", "pace", "validate", "score", "steps", "pretrained")
    result = [toy.main([command]) for command in every]
    expected = [0, 0, 0, 0, 0, 0]
    assert result == expected
    trainings = [command for command in commands if "process" in command]
    assert [command[-1] for command in trainings] == list(plan.RUNS)
    assert all("--nproc-per-node=1" in command for command in trainings)

    summary = records.read("runs/words-2")["summary"]
    expected = (MADE | {"epochs": 3, "format": "bf16"}).items()
    assert summary.items() >= expected
    assert summary["settings"] == dataclasses.asdict(
        dataclasses.replace(plan.RUNS["words-2"], factor=summary["settings"]["factor"], shares=1)
    )
    assert [entry["epoch"] for entry in records.read("runs/words-2")["log"]] == [1, 2, 3]
    assert summary["mean"]["averaged"] == 2
    beam = records.read("beam")
    averaging = records.read("averaging")
    result = [(row["beam"], row["alpha"]) for row in beam["sweep"]]
    expected = [(1, 0.0), (2, 0.0), (2, 1.0)]
    assert result == expected
    result = [row["averaged"] for row in averaging["sweep"]]
    assert result == [0, 1, 2]

    content = records.read("scores")
    scored = [(entry["run"], entry["split"]) for entry in content["scores"]]
    expected = [(run, split) for run in plan.RUNS for split in plan.TESTS]
    assert scored[:10] == expected
    row = plan.ROWS[1]
    [entry] = [e for e in content["scores"][:10] if e["run"] == "subwords-1"][1:]
    result = (entry["beam"], entry["alpha"], entry["averaged"])
    assert result == (4, 0.6, 2)
    assert entry.items() >= MADE.items()
    written = toy.translations_path(row, "subwords-1", entry["split"]).read_text().split("\n")[:-1]
    sources, references = zip(*at.find_corpus(plan.CORPUS).pairs(entry["split"]), strict=True)
    expected = round(at.corpus_bleu(written, references)[0], 2)
    assert entry["bleu"] == expected
    last = at.read_last(toy.folder_of("subwords-1"))
    recent = last["recent"]
    mean = toy.translator_of("subwords-1", 2)
    for name, value in mean.model.named_parameters():
        torch.testing.assert_close(value, (recent[0][name] + recent[1][name]) / 2)
    decode = functools.partial(at.beam_search, beam=4, alpha=0.6)
    assert written == at.translate(mean, sources, decode, split=False)
    kept = [entry for entry in last["history"] if entry["averaged"] == 0][-2:]
    best = kept.index(max(kept, key=at.quality))
    for name, value in toy.translator_of("subwords-1", 0).model.named_parameters():
        assert torch.equal(value, recent[best][name])
    with pytest.raises(ValueError, match="subwords-1 has kept 2 epochs, not 3"):
        toy.translator_of("subwords-1", 3)

    steps = records.read("steps")["steps"]
    result = [(step["row"], step["split"]) for step in steps]
    expected = [("subwords", split) for split in plan.TESTS]
    assert result == expected
    for step in steps:
        assert step["interval"][0] <= step["interval"][1]
        assert not step["passes"], "twelve sentences of a toy prove nothing"

    shipped = records.read("pretrained")
    assert at.load_trained_model(toy.PRETRAINED).name.endswith(", int8")
    result = shipped["formats"]["int8"]["MB"]
    expected = shipped["formats"]["fp32"]["MB"]
    assert result < expected
    assert "beam 4, α = 0.6, mean of the last 2 epochs" in views.int8()["caption"]
    made = views.short_table, views.steps, views.training, views.int8, views.beam, views.averaging
    for view in made:
        assert "a toy, 2027-01-01; commit 0123456." in view()["caption"]
    assert "in two processes, fp32, a toy" in views.short_table()["caption"], "that of the machine"
    words, subwords, back = views.steps()["rows"]
    assert words[5] == back[5] == "–", "perplexity of other tokens"
    assert float(subwords[5]) > 1

    shutil.rmtree(at.runs_folder())  # nothing is trained, tuned or scored again
    monkeypatch.setattr(at, "translate", None)
    result = [toy.main([command]) for command in every]
    expected = [0, 0, 0, 0, 0, 0]
    assert result == expected
    assert len(commands) == len(plan.RUNS) + len(plan.PACED)
    assert len(records.read("scores")["scores"]) == 12


def test_runs_of_two_machines_are_told_apart(monkeypatch):
    def record(device, nll, bleu):
        summary = {"device": device, "validation_bleu": bleu, "format": "bf16"}
        return {"summary": summary, "log": [{"nll": nll}]}

    runs = {"words": record("cuda", 2.0, 30.0), "recipe": record("cpu", 1.0, 40.0)}
    runs["gpu"] = record("cuda", 1.1, 41.0)
    monkeypatch.setattr(views, "read", lambda name: runs[name.removeprefix("runs/")])
    rows = plan.Row("words", "words", ("words",)), plan.Row("recipe", "all", ("recipe",))
    monkeypatch.setattr(views, "ROWS", rows)
    monkeypatch.setattr(views, "GPU", plan.Row("gpu", "there", ("gpu",)))
    assert views.two_machines(rows) == (
        ". Trained on the GPU: words. The recipe, trained on each, ends on the validation split"
        " with perplexity 2.72, BLEU 40.0 on the CPU and perplexity 3.00, BLEU 41.0 on the GPU"
    )
    assert views.two_machines(rows[1:]) == ""


def test_what_was_cut_short_or_is_missing_is_an_error(at, toy, capsys, monkeypatch):
    train_here(monkeypatch, toy, code=1)
    assert "the same command goes on" in failure(toy, capsys, "train", "words-1")
    assert not records.read("runs/words-1")
    assert "no finished run in" in failure(toy, capsys, "validate")
    for command in ("train", "score"):
        message = failure(toy, capsys, command, "bert")
        assert "no run begins with 'bert': choose among words-1" in message


def test_a_run_of_the_plan_changes_the_embeddings_and_the_next_one_has_them_back(
    at, toy, monkeypatch
):
    monkeypatch.setitem(plan.EMBEDDINGS, "words-1", plan.forgetful)
    train_here(monkeypatch, toy)
    toy.train(("words-1",))
    assert at.Embeddings.forward is plan.forgetful
    embed = at.Embeddings(4, 50)
    ids = torch.full((1, 400), 9)
    lost = (embed.train()(ids) == plan.EMBED(embed, torch.tensor(at.UNKNOWN))).all(-1)
    assert 20 < lost.sum() < 60
    assert torch.equal(embed.eval()(ids), plan.EMBED(embed, ids))
    toy.train(("words-2",))
    assert at.Embeddings.forward is plan.EMBED


def test_updates_are_timed_once_on_a_quiet_machine(at, toy, monkeypatch):
    waited = []
    monkeypatch.setattr(plan, "PACED", ("words-1", "back"))
    monkeypatch.setattr(records, "wait_for_quiet", lambda: waited.append(1))
    commands = train_here(monkeypatch, toy)
    for _ in range(2):
        assert toy.main(["pace"]) == 0
    assert all("--nproc-per-node=2" in command for command in commands)
    record = records.read("pace")
    assert list(record) == ["words-1", "back"]
    for each in record.values():
        assert 0 < each["seconds"] < 5
        assert each["format"] == "fp32", "that of the machine"
        assert each["made"]["commit"]
    assert len(waited) == 2


# What a step gains ------------------------------------------------------------------------------


def test_counts_give_the_bleu_of_the_library(at):
    references = ["A dog runs through the wide green park .", "Two men sit on a bench and laugh."]
    written = ["A dog runs through the <unk> green park.", "Two men sit on a chair and laugh."]
    counts = significance.counts_of(written, references)
    expected = at.corpus_bleu(written, references)[0]
    assert significance.bleu(counts.sum(dim=0)).item() == pytest.approx(expected)
    assert significance.bleu(significance.counts_of([""], ["A dog ."])[0]) == 0


def test_a_gain_is_told_from_luck():
    generator = torch.Generator().manual_seed(1)

    def system(share: float) -> torch.Tensor:
        """400 sentences of ten words, of whose runs this share is right."""
        known = torch.rand(400, 4, generator=generator) < share
        right = known.double() * 4 + 2
        of = torch.tensor([10.0, 9.0, 8.0, 7.0]).double().expand(400, 4)
        lengths = torch.full((400, 2), 10.0).double()
        return torch.cat([lengths, right, of], dim=1)

    poor = system(0.4)
    good = system(0.6)
    again = system(0.4)
    drawn = significance.differences([poor], [good])
    luck = significance.differences([poor], [again])
    assert significance.chance(drawn) < 0.001
    assert significance.chance(luck) > 0.01
    same = significance.differences([poor, again], [again, poor])
    assert same.abs().max() < 1e-9
    assert significance.chance(same) == 1
    before = significance.bleu(poor.sum(dim=0))
    after = significance.bleu(good.sum(dim=0))
    expected = pytest.approx((after - before).item(), abs=0.1)
    assert drawn.mean() == expected


@pytest.fixture
def step_of(toy, monkeypatch):
    """What the rule says of scores of two rows; the sentences show a sure gain of one."""
    monkeypatch.setattr(toy, "counts_of", lambda row, run, split: row.name)
    sure = torch.linspace(0.5, 1.5, 10_001).double()
    monkeypatch.setattr(significance, "differences", lambda before, after: sure)

    def step(before: list[float], after: list[float], **changes) -> dict:
        names = [f"run-{seed}" for seed in range(len(before))]
        first = plan.Row("first", "", tuple(names))
        second = dataclasses.replace(first, name="second", **changes)
        both = {"first": before, "second": after}

        def score_of(row, run, split):
            return {"bleu": both[row.name][row.runs.index(run)]}

        monkeypatch.setattr(toy, "score_of", score_of)
        monkeypatch.setattr(plan, "ROWS", (first, second))
        toy.steps()
        [found, _] = records.read("steps")["steps"]
        return found

    return step


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
def test_a_step_passes_by_the_rule_of_the_text(step_of, after, changes, passes):
    step = step_of([40.0, 41.0, 42.0], after, **changes)
    assert step["passes"] == passes
    assert step["chance"] < 0.001


def test_many_questions_make_each_answer_less_sure():
    result = significance.holm([0.01, 0.04, 0.03])
    expected = pytest.approx([0.03, 0.06, 0.06])
    assert result == expected
    assert significance.holm([0.5, 0.6]) == [1, 1]


def test_a_busy_machine_is_refused(monkeypatch):
    looks = iter([90, 90, 2, 90])
    monkeypatch.setattr(records.psutil, "cpu_percent", lambda interval: next(looks))
    records.wait_for_quiet()
    with pytest.raises(ValueError, match=r"^others use 90 % of the cores"):
        records.wait_for_quiet(patience=0)


def test_rows_that_do_not_compare_are_refused(toy):
    def on_record(name: str, **changes) -> None:
        about = MADE | {"parameters": 1_000_000, "updates": 600}
        records.write(f"runs/{name}", {"summary": about | changes})

    first, second = plan.ROWS
    on_record("words-1")
    with pytest.raises(ValueError, match=r"^not on record: words-2, subwords-1, subwords-2$"):
        views.summaries(*plan.ROWS)
    for what, value in (("torch", "2.14.0"), ("device", "cuda"), ("format", "bf16")):
        on_record("words-2", **{what: value})
        with pytest.raises(ValueError, match=f"share {what}.*'words-2': '{value}'"):
            views.summaries(first)
    records.write("runs/words-2", {"summary": {"format": "fp32", "device": "cpu"}})
    with pytest.raises(ValueError, match=r"share torch.*'words-2': 'not recorded'"):
        views.summaries(first)
    on_record("words-2")
    on_record("subwords-1")
    on_record("subwords-2")
    assert len(views.summaries(*plan.ROWS)) == 4

    def timed(machine: str) -> dict:
        return {"seconds": 0.5, "format": "fp32", "made": {"machine": machine}}

    records.write("pace", {"words-1": timed("a toy")})
    assert views.costs(first) == ["1.0 M", "5"]
    with pytest.raises(ValueError, match=r"^not timed: subwords-1$"):
        views.costs(second)
    records.write("pace", {"words-1": timed("a toy"), "subwords-1": timed("another")})
    with pytest.raises(ValueError, match=r"minutes compare on one kind .*'words-1': 'a toy'"):
        views.timed(*plan.ROWS)


def test_circumstances_say_with_what_a_number_was_made(monkeypatch):
    made = records.circumstances()
    assert made["torch"] == torch.__version__
    assert (made["device"], made["format"]) == ("cpu", "fp32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for named in ("", "0", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        with pytest.raises(ValueError, match="no NVIDIA GPU"):
            records.circumstances("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert records.circumstances("cuda", "bf16")["machine"] == "NVIDIA X"


def test_a_view_that_cannot_be_made_stays_and_is_named(monkeypatch, capsys, tmp_path):
    row = plan.Row("", "", ("x",))
    written = []
    monkeypatch.setattr(views, "VIEWS", {"steps": lambda: views.summaries(row)})
    monkeypatch.setattr(views, "speed_line", lambda: views.summaries(row))
    monkeypatch.setattr(views, "first_picture", lambda: "")
    monkeypatch.setattr(records, "write_text", lambda path, text: written.append(path.name))
    assert views.main() == 1
    said = capsys.readouterr().err
    for name in ("views/steps", "README.md"):
        assert f"error: {name} stays as it was: not on record: x\n" in said
    assert written == ["first-translation.svg", "README.md"], "the card of pretrained/"


# What is published ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", views.VIEWS)
def test_a_published_view_is_what_the_records_give(name):
    view = records.read(f"views/{name}")
    assert view == views.VIEWS[name](), "`make views` writes it"
    assert "{" not in view["caption"]
    assert "\n" not in view["caption"]
    if "rows" in view:
        headings = view["columns"]
        headings = headings if isinstance(headings[0], list) else [headings]
        result = {len(line) for line in [*headings, *view["rows"]]}
        expected = {len(headings[0])}
        assert result == expected
        assert all(isinstance(cell, str) for row in view["rows"] for cell in row)


def test_the_text_shows_the_views_that_are_made_and_no_other():
    text = (records.PROJECT / "the_annotated_transformer.py").read_text("utf-8")
    shown = re.findall(r'(?m)^published\("([^"]+)"\)', text)
    assert sorted(shown) == sorted(views.VIEWS), "each once, under the name that the tool writes"


def test_every_results_file_has_a_maker():
    known = (
        "assembled averaging beam benchmark gpu heads length-cost lengths lost pace"
        " particles planted pretrained scores steps translator warmups"
    )
    result = sorted(path.stem for path in records.RESULTS.glob("*.json"))
    assert result == known.split()
    shown = {path.stem for path in (records.RESULTS / "views").iterdir()}
    assert shown == set(views.VIEWS)


def test_every_score_is_that_of_translations_in_the_repository(at, tool, multi30k, monkeypatch):
    """Each row and run once; and sacreBLEU says the same of what lies there."""
    monkeypatch.setenv("MULTI30K_DIR", multi30k)
    entries = records.read("scores")["scores"]
    keys = [(entry["row"], entry["run"], entry["split"]) for entry in entries]
    assert len(set(keys)) == len(keys)
    rows = {row.name: row for row in (*plan.ROWS, plan.OTHER, plan.SHIPPED)}
    for entry in entries:
        row = rows[entry["row"]]
        assert entry["run"] in row.runs
        assert entry["beam"] == row.beam
        result = (entry["alpha"], entry["averaged"])
        expected = (row.alpha, row.averaged)
        assert result == expected
        path = tool.translations_path(row, entry["run"], entry["split"])
        languages = plan.RUNS[entry["run"]].codes()
        references = [pair[1] for pair in at.find_multi30k(languages).pairs(entry["split"])]
        written = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        bleu, signature = at.corpus_bleu(written, references)
        assert round(bleu, 2) == entry["bleu"]
        assert signature == entry["signature"]


def test_every_row_makes_as_many_updates():
    assert len({summary["updates"] for summary in views.summaries(*plan.ROWS)}) == 1


def test_every_gain_is_the_difference_of_the_scores():
    found = {(step["row"], step["split"]): step["gain"] for step in records.read("steps")["steps"]}
    expected = {}
    for before, after in itertools.pairwise(plan.ROWS):
        for split in plan.TESTS:
            means = [
                statistics.mean(score["bleu"] for score in views.scores(row, splits=[split]))
                for row in (before, after)
            ]
            expected[after.name, split] = pytest.approx(means[1] - means[0], abs=0.01)
    assert found == expected


def test_the_penalty_of_the_last_row_is_the_best_that_never_pays_for_length():
    sweep = [cell for cell in records.read("beam")["sweep"] if cell["beam"] == plan.BEAM]
    result = max((cell for cell in sweep if cell["alpha"] <= 1), key=lambda cell: cell["bleu"])
    assert result["alpha"] == plan.CHOSEN_ALPHA


def test_a_penalty_beyond_one_pays_for_length(at):
    def costs(alpha: float) -> list[float]:
        """Of 1, 2, … tokens that are all as probable."""
        return [n / at.length_penalty(n, alpha) for n in range(1, 200)]

    for alpha in (0.0, 0.6, plan.CHOSEN_ALPHA):
        assert costs(alpha) == sorted(costs(alpha))
    result = max(range(199), key=costs(1.4).__getitem__) + 1
    assert result == 13, "the text says that the fourteenth raises the score"


def test_speed_is_a_ratio_of_medians():
    rows = {tuple(row[:2]): row[2:] for row in records.read("views/speed")["rows"]}
    record = records.read("benchmark")
    ours = views.training_case(record, "ours", "small", "fp32")
    theirs = views.training_case(record, "torch", "small", "fp32")
    middle = f"{views.median(views.speeds(ours)):,.0f}"
    assert rows["training", "ours"][0].startswith(f"{middle}\u00a0")
    ratio = views.median(views.speeds(ours)) / views.median(views.speeds(theirs))
    assert views.times(ours, theirs)[0] == ratio
    assert f"trains {ratio:.2f}\u00a0(" in views.speed_line()


def test_the_recipe_takes_some_forty_minutes():
    seconds = records.read("pace")["recipe-1"]["seconds"]
    updates = records.read("runs/recipe-1")["summary"]["updates"]
    assert 35 < seconds * updates / 60 < 45


def test_readme_and_model_card_are_those_of_the_records(tool):
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert readme == views.readme(readme), "`make views` writes it"
    result = records.read("scores")["scores"][0]["signature"]
    assert result in readme
    with pytest.raises(ValueError, match="no <!-- results -->"):
        views.readme(readme.replace("<!-- results -->", ""))
    card = (PROJECT / "pretrained" / "README.md").read_text(encoding="utf-8")
    assert card == views.card(card)
    assert "| int8 | 4.2 |" in card
