"""The tool behind `make results`: its plan, its records, its table, its bad days."""

import argparse
import dataclasses
import functools
import json
import re
import shutil

import pytest
import torch
from conftest import write_pairs

TOY = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "max_len": 64, "min_freq": 1, "keep": 2}
MADE = {"date": "2027-01-01", "machine": "a toy", "commit": "0123456789", "code": "ab12"}


@pytest.fixture(scope="module")
def tool():
    import results

    return results


@pytest.fixture
def toy(at, tool, tmp_path, monkeypatch, fresh_corpora):
    """The tool with a plan of two rows of toy runs, and folders of its own; nothing has run yet."""
    pairs = at.builtin_corpus()["train"]
    splits = dict(zip(("train", "val", *tool.records.TESTS), (pairs[:120], pairs[120:132],
                      pairs[132:144], pairs[144:156]), strict=True))  # fmt: skip
    monkeypatch.setattr(tool, "CORPUS", str(write_pairs(tmp_path / "text", ("de", "en"), **splits)))
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(tool.records, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tool, "README", tmp_path / "README.md")
    marks = "# Title\n<!-- results: docs/results/recipe.json -->\n{}<!-- end of results -->\nrest\n"
    (tmp_path / "README.md").write_text(marks.format("old\n"))
    monkeypatch.setattr(tool, "PRETRAINED", tmp_path / "pretrained")
    monkeypatch.setattr(tool, "made", lambda: dict(MADE))
    words, pieces = (TOY | {"pieces": n, "share_embeddings": n > 0} for n in (0, 150))
    runs = {f"words-{seed}": words | {"seed": seed} for seed in (1, 2)}
    runs |= {"pieces-1": pieces, "back": pieces | {"languages": "en-de"}}
    monkeypatch.setattr(tool, "RUNS", runs)
    first = tool.Row("words", "words", ("words-1", "words-2"))
    second = tool.Row("pieces", "pieces", ("pieces-1",), 4, 2)
    monkeypatch.setattr(tool, "ROWS", (first, second, second))
    monkeypatch.setattr(tool, "OTHER", dataclasses.replace(second, name="back", runs=("back",)))
    monkeypatch.setattr(tool, "SHIPPED", dataclasses.replace(second, name="int8", int8=True))
    monkeypatch.setattr(tool, "AVERAGED", 2)
    return tool


def write_run(at, folder, config, status="finished", **changes):
    """The folder of a run that never ran: untrained weights, the last two of three epochs."""
    corpus = at.find_corpus(config.data, tuple(config.languages.split("-")))
    words = at.learn_words(corpus, 1) if config.pieces == 0 else at.learn_pieces(corpus, 150)
    for epoch in (2, 3):
        torch.manual_seed(100 * config.seed + epoch)
        model = at.make_model(*map(len, words), 1, 16, 32, 2, max_len=64,
                              share_embeddings=config.share_embeddings)  # fmt: skip
        translator = at.Translator(folder.name, model, corpus.name, corpus.languages, words)
        at.save_model(translator, folder / f"epoch-00{epoch}")
    log = [{"epoch": n, "updates": 30 * n, "bleu": 10.0 * n, "perplexity": 5.0} for n in (1, 2, 3)]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in log))
    summary = {"status": status, "best": "epoch-003", "validation_bleu": 30.0, "minutes": 20.0}
    summary |= {"parameters": 1000, "machine": "AVX2 cpu, 1 threads, torch.bfloat16"}
    summary |= {"settings": dataclasses.asdict(config)} | changes
    (folder / "summary.json").write_text(json.dumps(summary))


def train_at_once(at, monkeypatch, tool, status="finished", code=0, **changes) -> list:
    """Let the tool's trainings end at once; the commands that it gives appear in the list."""
    commands, configs = [], {}
    really = tool.options_of
    monkeypatch.setattr(
        tool,
        "options_of",
        lambda config, preset: configs.update(now=config) or really(config, preset),
    )

    def run(command, env):
        assert env["OMP_NUM_THREADS"] == "1"
        commands.append(command)
        folder = tool.Path(command[command.index("--folder") + 1])
        minutes = 10.0 + len(commands)
        write_run(at, folder, configs["now"], status, **{"minutes": minutes} | changes)
        return argparse.Namespace(returncode=code)

    monkeypatch.setattr(tool.subprocess, "run", run)
    return commands


@pytest.fixture
def toy_runs(at, toy, monkeypatch):
    with monkeypatch.context() as patch:
        train_at_once(at, patch, toy)
        assert toy.main(["train"]) == 0
    return toy


def failure(tool, capsys, *arguments) -> str:
    """What a command says when it ends with an error."""
    assert tool.main(arguments) == 1
    return capsys.readouterr().err


# The plan ---------------------------------------------------------------------------------------


def test_every_run_is_in_a_row_and_keeps_what_is_averaged(tool):
    rows = (*tool.ROWS, tool.OTHER)
    assert {run for row in rows for run in row.runs} == set(tool.RUNS)
    assert all(tool.config_of(run).keep >= row.averaged for row in rows for run in row.runs)
    assert [len(row.runs) for row in tool.ROWS] == [3, 1, 1, 1, 1, 3]


def test_each_row_changes_what_it_names_and_nothing_else(tool):
    def step_of(before, row) -> set[str]:
        settings = [vars(tool.config_of(each.runs[0])) for each in (before, row)]
        uses = [{n: vars(each)[n] for n in ("beam", "averaged", "alpha")} for each in (before, row)]
        return set(tool.changes(*settings)) | set(tool.changes(*uses))

    expected = {"pieces": {"pieces"}, "one-matrix": {"share_embeddings"}}
    expected |= {"beam": {"beam"}, "averaging": {"averaged"}, "recipe": {"alpha"}}
    pairs = zip(tool.ROWS, tool.ROWS[1:], strict=False)
    assert {row.name: step_of(before, row) for before, row in pairs} == expected
    assert step_of(tool.ROWS[-1], tool.OTHER) == {"languages"}
    for row in tool.ROWS:
        first, *others = (vars(tool.config_of(run)) for run in row.runs)
        assert first["seed"] == 1 and first["data"] == "multi30k"
        assert all(set(tool.changes(first, other)) == {"seed"} for other in others)


def test_every_trial_changes_the_base_in_its_own_way(at, tool):
    configs = [at.Config(**tool.TRIAL_BASE | trial) for trial in tool.TRIALS.values()]
    assert tool.TRIALS["base"] == {} and len(set(configs)) == len(configs)


def test_the_options_of_a_run_give_its_settings(at, tool, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(at, "train_model", lambda config, *_: trained.append(config) or "finished")
    changes = {"languages": "en-de", "dropout": 0.4, "share_embeddings": False, "pieces": 0}
    config = dataclasses.replace(at.PRESETS["recipe"], data="builtin", norm_first=False, **changes)
    options = tool.options_of(config, "recipe")
    assert at.main(["train", "--preset", "recipe", "--folder", str(tmp_path), *options]) == 0
    assert trained == [config]


# Numbers ----------------------------------------------------------------------------------------


def test_the_bootstrap_tells_a_step_from_chance(at, tool):
    references = [f"a man number {n} is walking down the street with dog {n} ." for n in range(60)]
    worse = [text.replace("walking down", "<unk>") for text in references]
    step = tool.bootstrap(worse, references, references)
    gain = 100 - at.corpus_bleu(worse, references)[0]
    assert step["bleu"] == pytest.approx(gain, abs=0.01) and step["p"] < 0.01
    assert "bs:1000" in step["signature"] and "case:mixed" in step["signature"]
    one, other = (worse[:10] + references[10:], references[:10] + worse[10:20] + references[20:])
    assert tool.bootstrap(one, other, references)["p"] > 0.1
    same = tool.bootstrap(one, list(one), references)
    assert (same["bleu"], same["p"]) == (0.0, 1.0)


def test_a_model_without_opinion_has_perplexity_v(at, toy_runs):
    translator = toy_runs.translator_of(toy_runs.weights_of("pieces-1"), 0)
    for parameter in translator.model.parameters():
        torch.nn.init.zeros_(parameter)
    scores = toy_runs.perplexity(translator, "val")
    assert scores == len(translator.vocabularies[1]) == 150


# Training ---------------------------------------------------------------------------------------


def test_a_run_is_trained_once_and_its_record_names_its_code(at, toy, monkeypatch):
    commands = train_at_once(at, monkeypatch, toy)
    assert toy.main(["train", "--only", "pieces-1"]) == 0
    [command] = commands
    assert "--nproc-per-node=2" in command
    script, *options = command[command.index("--") + 1 :]
    assert script.endswith("/the_annotated_transformer.py") and options[0] == "train"
    assert options[options.index("--folder") + 1].endswith("runs/pieces-1")
    assert options[options.index("--pieces") + 1] == "150"
    record = toy.record_of("pieces-1")
    assert record["summary"].items() >= (MADE | {"ranks": 2, "bf16": True, "updates": 90}).items()
    assert record["summary"]["settings"] == dataclasses.asdict(toy.config_of("pieces-1"))
    assert [entry["epoch"] for entry in record["log"]] == [1, 2, 3]
    shutil.rmtree(at.runs_folder())
    assert toy.main(["train", "--only", "pieces-1"]) == 0 and len(commands) == 1


@pytest.mark.parametrize("left", [{"status": "stopped"}, {"code": 1}], ids=str)
def test_a_training_that_was_cut_short_is_an_error(at, toy, capsys, monkeypatch, left):
    commands = train_at_once(at, monkeypatch, toy, **left)
    assert "the same command goes on" in failure(toy, capsys, "train", "--only", "words-1")
    failure(toy, capsys, "train", "--only", "words-1")
    assert len(commands) == 2 and not toy.record_of("words-1")
    monkeypatch.setattr(toy, "made", lambda: MADE | {"code": "cd34"})
    message = failure(toy, capsys, "train", "--only", "words-1")
    assert "begun with other code (0123456789)" in message and len(commands) == 2
    shutil.rmtree(at.runs_folder() / "words-1")
    failure(toy, capsys, "train", "--only", "words-1")
    assert len(commands) == 3, "an empty folder begins anew"


def test_a_folder_that_the_tool_did_not_begin_is_refused(at, toy, capsys):
    write_run(at, at.runs_folder() / "words-1", toy.config_of("words-1"))
    assert "not begun by this command" in failure(toy, capsys, "train", "--only", "words-1")


def test_other_settings_than_the_planned_ones_are_noticed(at, toy_runs, capsys, monkeypatch):
    planned = toy_runs.RUNS["pieces-1"]
    monkeypatch.setitem(toy_runs.RUNS, "pieces-1", planned | {"d_ff": 48, "patience": 99})
    for command in ("train", "score", "table"):
        message = failure(toy_runs, capsys, command)
        assert "d_ff 32 and not 48: remove it" in message and "patience" not in message


def test_unknown_names_are_refused_with_those_that_exist(toy, capsys):
    message = failure(toy, capsys, "train", "--only", "bert", "words-1")
    assert "nothing is called bert: choose among words-1" in message
    assert "nothing is called bert" in failure(toy, capsys, "trials", "--only", "bert")
    with pytest.raises(SystemExit):
        toy.main(["score", "--only", "words"])


def test_a_trial_is_trained_once_and_recorded(at, toy, capsys, monkeypatch):
    commands = train_at_once(at, monkeypatch, toy)
    base = TOY | {"data": toy.CORPUS, "pieces": 150, "dropout": 0.25}
    monkeypatch.setattr(toy, "TRIAL_BASE", base)
    monkeypatch.setattr(toy, "TRIALS", {"base": {}, "drop30": {"dropout": 0.3}})
    assert toy.main(["trials"]) == toy.main(["trials"]) == 0
    assert len(commands) == 2 and "torch.distributed.run" not in commands[0]
    content = toy.on_record("trials")
    assert [trial["changes"] for trial in content["trials"]] == [{}, {"dropout": [0.25, 0.3]}]
    assert content["trials"][1]["final"]["bleu"] == 30.0 and content["trials"][1]["code"] == "ab12"
    monkeypatch.setattr(toy, "TRIAL_BASE", base | {"h": 4})
    assert "h 2 and not 4" in failure(toy, capsys, "trials")


# Choosing on the validation split ---------------------------------------------------------------


def test_the_sweeps_are_written_once_and_know_only_validation(at, toy_runs, monkeypatch):
    monkeypatch.setattr(toy_runs, "BEAMS", (1, 2))
    monkeypatch.setattr(toy_runs, "ALPHAS", (0.0, 1.0))
    corpus = at.find_corpus(toy_runs.CORPUS)
    blind = dataclasses.replace(corpus, splits={"val": corpus.splits["val"]})
    monkeypatch.setattr(at, "find_corpus", functools.cache(lambda *_: blind))
    assert toy_runs.main(["validate"]) == 0
    beam, averaging = toy_runs.on_record("beam"), toy_runs.on_record("averaging")
    assert [(row["beam"], row["alpha"]) for row in beam["sweep"]] == [(1, 0.0), (2, 0.0), (2, 1.0)]
    for counts in beam["against_greedy"]:
        assert counts["below"] + counts["same"] + counts["above"] == 12
    assert [row["averaged"] for row in averaging["sweep"]] == [0, 1, 2]
    best, last, mean = (row["perplexity"] for row in averaging["sweep"])
    assert best == last != mean
    monkeypatch.setattr(at, "translate", None)  # the second time there is nothing to do
    assert toy_runs.main(["validate"]) == 0


def test_a_beam_below_greedy_is_counted(at, toy_runs, monkeypatch):
    def fixed(short_beam):
        def search(model, src, src_mask, max_len, start, beam, alpha):
            row = [at.START, 5, at.END] if beam == short_beam else [at.START, *[5] * 9, at.END]
            return torch.tensor([row] * len(src))

        return search

    translator = toy_runs.translator_of(toy_runs.weights_of("pieces-1"), 0)
    for short_beam, expected in ((1, "below"), (4, "above")):
        monkeypatch.setattr(at, "beam_search", fixed(short_beam))
        assert toy_runs.against_greedy(translator, 0.0)[expected] == 12


# Scoring ----------------------------------------------------------------------------------------


def test_each_finished_run_is_scored_once_and_as_its_row_says(at, toy_runs, capsys):
    shutil.rmtree(at.runs_folder() / "back")
    assert toy_runs.main(["score"]) == toy_runs.main(["score"]) == 0
    assert "runs/back; it is on record: remove runs/back.json" in capsys.readouterr().out
    log = toy_runs.records.scorings()
    runs = [(entry["run"], entry["split"]) for entry in log]
    assert runs == [
        (r, s) for r in ("words-1", "words-2", "pieces-1") for s in toy_runs.records.TESTS
    ]
    entry, row = log[-1], toy_runs.ROWS[1]
    assert (entry["decoding"], entry["sentences"]) == ("beam 4, alpha 0.6", 12)
    assert "2 epochs" in entry["weights"] and entry["code"] == "ab12"
    written = toy_runs.translations_of(row, entry["split"])
    corpus = at.find_corpus(toy_runs.CORPUS)
    sources, references = zip(*corpus.splits[entry["split"]], strict=True)
    bleu, signature = at.corpus_bleu(written, references)
    assert entry["bleu"] == round(bleu, 2) and entry["signatures"] == {"bleu": signature}
    folder = at.runs_folder() / "pieces-1"
    states = [at.load_trained_model(folder / f"epoch-00{n}").model.state_dict() for n in (2, 3)]
    mean = toy_runs.translator_of(folder, row.averaged)
    for name, value in mean.model.state_dict().items():
        torch.testing.assert_close(value, (states[0][name] + states[1][name]) / 2)
    wide, greedy = (
        at.translate(mean, sources, functools.partial(at.beam_search, beam=beam)) for beam in (4, 1)
    )
    assert written == wide != greedy


def test_too_few_kept_epochs_are_an_error(at, toy_runs, capsys):
    shutil.rmtree(at.runs_folder() / "pieces-1" / "epoch-002")
    assert "keeps 1 epochs, 2 are wanted" in failure(toy_runs, capsys, "score")


def test_the_model_to_take_away_is_scored_on_record_as_it_is(at, toy_runs, capsys):
    assert toy_runs.main(["score"]) == toy_runs.main(["pretrained"]) == 0
    content = toy_runs.on_record("pretrained")
    scored = {entry["row"]: entry for entry in toy_runs.records.scorings()}
    rounded = at.load_trained_model(toy_runs.PRETRAINED, torch.device("cpu"))
    assert scored["int8"]["fingerprint"] == toy_runs.fingerprint(rounded.model)
    assert scored["int8"]["weights"].endswith(", in int8") and rounded.name.endswith(", int8")
    for name, row in (("int8", "int8"), ("fp32", "pieces")):
        assert content["formats"][name][scored[row]["split"]]["bleu"] == scored[row]["bleu"]
    assert content["formats"]["int8"]["MB"] < content["formats"]["fp32"]["MB"]
    assert (
        content["sha256"]
        == json.loads((toy_runs.PRETRAINED / "config.json").read_bytes())["sha256"]
    )
    card = (toy_runs.PRETRAINED / "README.md").read_text(encoding="utf-8")
    for name, splits in content["formats"].items():
        numbers = splits["val"]
        assert f"| {name} | val | {numbers['bleu']:.1f} | {numbers['perplexity']:.2f} |" in card
    assert "as run `pieces-1`" in card and "{" not in card and "first edition" not in card
    number = len(toy_runs.records.scorings())
    assert toy_runs.main(["pretrained"]) == 0, "nothing is scored twice"
    assert len(toy_runs.records.scorings()) == number
    write_run(at, at.runs_folder() / "pieces-1", toy_runs.config_of("pieces-1"), best="epoch-002")
    translator = at.load_trained_model(at.runs_folder() / "pieces-1" / "epoch-003")
    translator.model.generator.proj.bias.data += 1.0
    at.save_model(translator, at.runs_folder() / "pieces-1" / "epoch-003")
    assert "with other weights of pieces-1" in failure(toy_runs, capsys, "pretrained")


# The table, and what views make of it -----------------------------------------------------------


def test_the_table_has_means_ranges_and_steps(at, toy_runs, capsys, monkeypatch):
    assert "row words is not complete" in failure(toy_runs, capsys, "table")
    assert toy_runs.main(["score"]) == 0
    log = toy_runs.records.scorings()
    for entry, bleu in zip(log, (20.0, 10.0, 27.0, 11.0, 25.0, 12.0, 9.0, 8.0), strict=True):
        entry["bleu"] = bleu
    path = toy_runs.records.RESULTS / "scorings.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in log))
    assert toy_runs.main(["table"]) == 0
    content = toy_runs.on_record("recipe")
    words, pieces, _ = content["rows"]
    split = "test_2016_flickr"
    assert words["splits"][split]["bleu"] == {"mean": 23.5, "min": 20.0, "max": 27.0}
    assert words["minutes"] == {"mean": 11.5, "min": 11.0, "max": 12.0}
    assert words["seeds"] == [1, 2] and "step" not in words["splits"][split]
    assert 0 < pieces["splits"][split]["step"]["p"] <= 1
    table = toy_runs.readme_table(content)
    assert toy_runs.README.read_text().split("\n<!-- ")[1].endswith(table.removesuffix("\n"))
    lines = re.sub("\u00a0", " ", re.sub("\u2060", "", table)).split("\n")
    assert (
        lines[2] == "| words | 0.0 M | 23.5 (20.0–27.0) | 10.5 (10.0–11.0) | 2 | 11.5 (11.0–12.0) |"
    )
    assert lines[-2] == "| pieces | 0.0 M | 9.0 | 8.0 | 1 | 14.0 |", "the other direction"
    path = toy_runs.translations_path(toy_runs.ROWS[1], "pieces-1", split)
    path.write_text(path.read_text() + "altered\n")
    assert "does not hold the translations" in failure(toy_runs, capsys, "table")


def test_the_records_of_a_plan_make_views(at, toy_runs, monkeypatch):
    import views

    monkeypatch.setattr(toy_runs, "BEAMS", (1, 2))
    for command in ("validate", "score", "table", "pretrained"):
        assert toy_runs.main([command]) == 0
    origin = {"date": "2027-01-01", "machine": "a toy with bf16", "commit": "commit 0123456"}
    for view in (views.training, views.int8, views.beam, views.averaging):
        assert view()["measured"] == origin | {"code": "ab12"}


@pytest.mark.slow
def test_a_plan_is_really_trained_and_scored(at, toy, monkeypatch):
    runs = {name: run | {"epochs": 2} for name, run in toy.RUNS.items()}
    monkeypatch.setattr(toy, "RUNS", runs)
    for command in ("train", "validate", "score", "table", "pretrained"):
        assert toy.main([command]) == 0
    record = toy.record_of("back")
    assert record["summary"]["ranks"] == 2 and len(record["log"]) == 2
    assert at.load_trained_model(toy.PRETRAINED).name == "pieces-1, 2 averaged, int8"


# The speedrun -----------------------------------------------------------------------------------


@pytest.fixture
def quick(at, toy, monkeypatch):
    """Speedruns of toy runs that take 90 seconds by a clock of their own, on a quiet machine."""
    now = [0.0]
    monkeypatch.setitem(at.PRESETS, "speedrun", dataclasses.replace(at.PRESETS["smoke"], **TOY))
    monkeypatch.setattr(toy.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(toy, "wait_for_quiet", lambda: None)

    def launch(config, preset, folder, ranks, *more):
        assert (preset, ranks, more) == ("speedrun", 2, ("--until", "38.0"))
        now[0] += 90 * config.seed
        return {"summary": MADE | {"validation_bleu": toy.reached, "epochs": 3}}

    monkeypatch.setattr(toy, "launch", launch)
    monkeypatch.setattr(toy, "reached", 38.2, raising=False)
    return toy


def test_a_speedrun_is_the_time_of_the_whole_process(quick, capsys, monkeypatch):
    import views

    assert quick.main(["speedrun"]) == 0
    content = quick.on_record("speedrun")
    assert content["minutes"] == {"mean": 3.0, "min": 1.5, "max": 4.5}
    assert views.speedrun()["rows"][0] == ["1", "1.5", "3", "38.2"]
    monkeypatch.delattr(quick, "launch")
    assert quick.main(["speedrun"]) == 0, "all are timed"


def test_a_speedrun_that_falls_short_or_does_not_begin_empty_has_no_time(
    at, quick, capsys, monkeypatch
):
    monkeypatch.setattr(quick, "reached", 37.9)
    assert "ended at 37.9 BLEU, below 38" in failure(quick, capsys, "speedrun")
    (at.runs_folder() / "speedrun-1").mkdir(parents=True)
    assert "a speedrun begins empty" in failure(quick, capsys, "speedrun")
    assert quick.on_record("speedrun") == {}


def test_a_busy_machine_is_refused(tool):
    looks = iter([0.9, 0.9, 0.02])
    tool.wait_for_quiet(look=lambda: next(looks))
    with pytest.raises(ValueError, match=r"^others use 90% of the cores"):
        tool.wait_for_quiet(patience=0, look=lambda: 0.9)


# What the model writes --------------------------------------------------------------------------


def test_the_published_showcase_is_what_the_shipped_model_does(at, tool):
    import vl_convert

    now = tool.showcase_views()
    published = {name: tool.records.read(f"views/{name}") for name in now}
    rows = published["translations"]["rows"]
    assert rows == now["translations"]["rows"] and [row[0] for row in rows] == list(tool.SHOWN)
    [[then]], [[cells]] = (
        each["first-map"]["chart"]["datasets"].values() for each in (published, now)
    )
    numbers = [
        torch.tensor([int(n) for n in each.pop("numbers").split()]) for each in (then, cells)
    ]
    assert then == cells and (numbers[0] - numbers[1]).abs().max() <= 5
    assert cells["queries"].split("\t")[0] == "1 A" and cells["layer"] == "layer 3"
    shown = at.load_trained_model(tool.PRETRAINED).name
    assert all(shown in view["caption"] for view in published.values())
    chart = published["first-map"]["chart"]
    assert len(chart["description"]) > 100
    assert float(re.search(r'width="([\d.]+)"', vl_convert.vegalite_to_svg(chart))[1]) <= 420


def test_what_is_shown_was_not_in_the_training(at, tool, multi30k, fresh_corpora, monkeypatch):
    monkeypatch.setenv("MULTI30K_DIR", multi30k)
    assert not set(tool.SHOWN) & {source for source, _ in at.find_multi30k().splits["train"]}
