"""The tool behind `make results`: its plan, its record of scorings, its table, its bad days."""

import argparse
import dataclasses
import functools
import json
import math
import shutil

import pytest
import torch

TOY = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "max_len": 64, "min_freq": 1, "keep": 2}


@pytest.fixture(scope="module")
def tool():
    import results

    return results


@pytest.fixture
def toy(at, tool, small_corpus, tmp_path, monkeypatch, fresh_corpora):
    """The tool with a plan of two rows of toy runs, and folders of its own; nothing has run yet."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tool, "README", tmp_path / "README.md")
    monkeypatch.setattr(tool, "CORPUS", str(small_corpus))
    pieces = TOY | {"pieces": 150, "share_embeddings": True}
    runs = {f"words-{seed}": ("smoke", TOY | {"seed": seed}) for seed in (1, 2)}
    runs |= {"pieces-1": ("smoke", pieces)}
    runs |= {"back": ("smoke", pieces | {"languages": ("en", "de")})}
    monkeypatch.setattr(tool, "RUNS", runs)
    words = tool.Row("words", "words", ("words-1", "words-2"))
    monkeypatch.setattr(tool, "ROWS", (words, tool.Row("pieces", "pieces", ("pieces-1",), 4, 2)))
    monkeypatch.setattr(tool, "OTHER", tool.Row("back", "back", ("back",), 4, 2))
    monkeypatch.setattr(tool, "SHIPPED", tool.Row("int8", "int8", ("pieces-1",), 4, 2, int8=True))
    monkeypatch.setattr(tool, "AVERAGED", 2)
    monkeypatch.setattr(at, "PRETRAINED", tmp_path / "pretrained")
    return tool


def write_run(at, folder, config, status="finished", **summary):
    """The folder of a run that never ran: untrained weights, three epochs of them."""
    plan = config.languages, config.min_freq, config.max_len, config.pieces
    encoded = at.encode_corpus(config.corpus, *plan)
    content = {"config": dataclasses.asdict(config), "corpus": encoded.corpus.name}
    content["vocabularies"] = [vocabulary.saved() for vocabulary in encoded.vocabularies]
    for number, name in enumerate(("best", "epoch-001", "epoch-002", "epoch-003")):
        torch.manual_seed(100 * config.seed + number)
        weights = at.model_from(config, encoded.vocabularies).state_dict()
        at.save_checkpoint(folder / f"{name}.pt", content | {"model": weights})
    write_summary(at, folder, dataclasses.asdict(config), status, **summary)


def write_summary(at, folder, settings, status="finished", **changes):
    folder.mkdir(parents=True, exist_ok=True)
    summary = {"status": status, "validation_bleu": 30.0, "updates": 90, "minutes": 20.0}
    summary |= {"epochs": 3, "ranks": 2, "bf16": False, "parameters": 1000, **at.circumstances()}
    summary |= {"settings": settings} | changes
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def toy_runs(at, toy):
    for number, run in enumerate(toy.RUNS):
        write_run(at, at.runs_folder() / run, toy.config_of(run), minutes=10.0 + number)
        at.write_log(at.runs_folder() / run, kind="validation", epoch=3, bleu=30.0)
    assert toy.main(["train"]) == 0, "all is trained: this writes their records"
    return toy


def failure(tool, capsys, *arguments) -> str:
    """What a command says when it ends with an error."""
    assert tool.main(arguments) == 1
    return capsys.readouterr().err


def log_of(tool) -> list[dict]:
    return [json.loads(line) for line in (tool.RESULTS / "scorings.jsonl").open()]


# The plan ---------------------------------------------------------------------------------------


def test_every_preset_of_the_plan_exists(at, tool):
    presets = {preset for preset, _ in tool.RUNS.values()} | {"speedrun"}
    assert presets <= set(at.PRESETS)
    planned = {run for row in (*tool.ROWS, tool.OTHER) for run in row.runs}
    assert planned == set(tool.RUNS)
    for row in (*tool.ROWS, tool.OTHER):
        assert all(tool.config_of(run).keep >= row.averaged for run in row.runs)


def step_of(tool, before, row) -> set[str]:
    """The names of everything that differs between two rows."""
    settings = [vars(tool.config_of(r.runs[0])) for r in (before, row)]
    changed = set(tool.differences(*settings, free=("keep",)))
    return changed | {
        name for name in ("beam", "averaged", "alpha") if vars(before)[name] != vars(row)[name]
    }


def test_each_row_changes_what_it_names_and_nothing_else(tool):
    expected = {"pieces": {"pieces"}, "one-matrix": {"share_embeddings"}}
    expected |= {"beam": {"beam"}, "averaging": {"averaged"}, "recipe": {"alpha"}}
    pairs = zip(tool.ROWS, tool.ROWS[1:], strict=False)
    assert {row.name: step_of(tool, before, row) for before, row in pairs} == expected
    assert step_of(tool, tool.ROWS[-1], tool.OTHER) == {"languages"}


def test_the_runs_of_a_row_differ_in_their_seed_only(tool):
    for row in tool.ROWS:
        first, *others = (vars(tool.config_of(run)) for run in row.runs)
        assert first["seed"] == 1 and first["corpus"] == "multi30k"
        seeds = [tool.differences(first, other) for other in others]
        assert seeds == [{"seed": [1, seed]} for seed in range(2, 2 + len(others))]
    assert [len(row.runs) for row in tool.ROWS] == [3, 1, 1, 1, 1, 3]


def test_every_trial_changes_the_base_in_its_own_way(at, tool):
    configs = [at.Config(**tool.TRIAL_BASE | changes) for changes in tool.TRIALS.values()]
    assert tool.TRIALS["base"] == {} and len(set(configs)) == len(configs)


def test_the_options_of_a_run_give_its_settings(at, tool, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(at, "train_model", lambda config, *_: trained.append(config) or "finished")
    changes = {"languages": ("en", "de"), "dropout": 0.4, "share_embeddings": True, "keep": 7}
    config = dataclasses.replace(at.PRESETS["words"], corpus="builtin", norm_first=False, **changes)
    options = tool.options_of(config, "words")
    assert at.main(["train", "--preset", "words", "--folder", str(tmp_path), *options]) == 0
    assert trained == [config]


# Numbers ----------------------------------------------------------------------------------------


def test_mean_and_range_of_seeds(tool):
    assert tool.spread([38.0, 41.0, 38.6]) == {"mean": 39.2, "min": 38.0, "max": 41.0}
    rows = [
        {"seeds": list(range(len(bleu))), "splits": {"test": {"bleu": tool.spread(bleu)}}}
        for bleu in ([38.0, 38.5], [40.0])
    ]
    assert tool.range_of_seeds(rows, "test") == 0.5
    assert tool.range_of_seeds(rows[1:], "test") is None


def test_the_bootstrap_tells_a_step_from_chance(at, tool):
    references = [f"a man number {n} is walking down the street with dog {n} ." for n in range(60)]
    worse = [text.replace("walking down", "going along") for text in references]
    step = tool.bootstrap(worse, references, references)
    gain = 100 - at.corpus_bleu(worse, references)[0]
    assert step["bleu"] == pytest.approx(gain, abs=0.01) and step["p"] < 0.01
    assert "bs:1000" in step["signature"] and "case:mixed" in step["signature"]
    back = tool.bootstrap(references, worse, references)
    assert back["bleu"] == -step["bleu"]
    one, other = (worse[:10] + references[10:], references[:10] + worse[10:20] + references[20:])
    assert tool.bootstrap(one, other, references)["p"] > 0.1
    assert tool.bootstrap(one, list(one), references) | {"signature": ""} == {
        "bleu": 0.0, "p": 1.0, "signature": ""
    }  # fmt: skip


def test_a_model_without_opinion_pays_the_logarithm_of_v_for_each_symbol(at, toy_runs):
    translator = toy_runs.translator_of("pieces-1", 0)
    for parameter in translator.model.parameters():
        torch.nn.init.zeros_(parameter)
    corpus = at.find_corpus(toy_runs.CORPUS)
    targets = [target for _, target in corpus.splits["test"]]
    symbols = sum(len(ids) + 1 for ids in translator.vocabularies[1].encode(targets))
    bits = math.log2(len(translator.vocabularies[1])) * symbols / len("\n".join([*targets, ""]))
    scores = toy_runs.likelihood(translator, "test")
    assert scores["perplexity"] == len(translator.vocabularies[1])
    assert scores["bits_per_character"] == pytest.approx(bits, abs=1e-3) and not scores["unknown"]


def test_unknown_words_are_counted(at, toy_runs, monkeypatch):
    translator = toy_runs.translator_of("words-1", 0)
    corpus = at.find_corpus(toy_runs.CORPUS)
    splits = corpus.splits | {"test": [("Hund", "a xyzzy dog"), ("Hund", "plugh xyzzy")]}
    strange = dataclasses.replace(corpus, splits=splits)
    monkeypatch.setattr(at, "find_corpus", functools.cache(lambda *_: strange))
    assert toy_runs.likelihood(translator, "test")["unknown"] == 3


# Trials -----------------------------------------------------------------------------------------


@pytest.fixture
def trials(at, tool, tmp_path, monkeypatch):
    """Folders of a base, a trial that is done, one of an older version, and one cut short."""
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "results")
    base = json.loads(json.dumps(vars(at.Config(dropout=0.25))))
    old = {name: value for name, value in base.items() if name != "keep"}
    made = {"base": base, "aaa": base | {"dropout": 0.4}, "old": old | {"N": 2}, "cut": base}
    for name, settings in made.items():
        status = "stopped" if name == "cut" else "finished"
        write_summary(at, tmp_path / name, settings, status, minutes=12.5)
        for epoch, bleu, nll in ((1, 20.0, 1.9), (2, 31.5, 1.7), (3, 30.5, 1.6)):
            numbers = {"epoch": epoch, "bleu": bleu, "perplexity": round(math.exp(nll), 4)}
            at.write_log(tmp_path / name, kind="train", epoch=epoch, loss=nll)
            at.write_log(tmp_path / name, kind="validation", **numbers)
    return tmp_path


def test_trials_are_collected_from_their_folders(at, tool, trials, tmp_path):
    assert tool.main(["trials", "--from", str(trials)]) == 0
    content = json.loads((tmp_path / "results" / "trials.json").read_text())
    changes = {trial["name"]: trial["changes"] for trial in content["trials"]}
    assert changes == {"base": {}, "aaa": {"dropout": [0.25, 0.4]}, "old": {"N": [3, 2]}}
    assert content["trials"][0]["name"] == "base" and content["unfinished"] == ["cut"]
    base, recipe = at.Config(), at.PRESETS["recipe"]
    assert (base.epochs, base.batch_tokens) == (recipe.epochs, recipe.batch_tokens)
    assert content["share_of_updates"] == 2.0  # as long, and with one rank where the recipe has two
    trial = content["trials"][1]
    assert trial["best"] == {"epoch": 2, "bleu": 31.5, "perplexity": 5.4739}
    assert trial["final"] == {"epoch": 3, "bleu": 30.5, "perplexity": 4.953}
    assert (trial["minutes"], trial["parameters"], trial["updates"]) == (12.5, 1000, 90)
    assert trial["date"] and trial["commit"] and content["made"]["versions"]


def test_trials_without_a_base_are_refused(tool, trials, capsys):
    (trials / "base" / "summary.json").unlink()
    message = failure(tool, capsys, "trials", "--from", str(trials))
    assert str(trials) in message and "base" in message and "make trials" in message


def test_trials_of_the_same_base_stay_when_their_folders_are_gone(at, tool, trials):
    def collected():
        assert tool.main(["trials", "--from", str(trials)]) == 0
        content = json.loads((tool.RESULTS / "trials.json").read_text())
        return {trial["name"]: trial for trial in content["trials"]}, content["unfinished"]

    before = collected()
    for name in ("aaa", "base", "cut"):
        shutil.rmtree(trials / name)
    settings = json.loads(json.dumps(vars(at.Config(dropout=0.25, h=2))))
    write_summary(at, trials / "cut", settings)
    at.write_log(trials / "cut", kind="validation", epoch=1, bleu=3.0, perplexity=9.0)
    trials_now, unfinished = collected()
    assert trials_now.pop("cut")["changes"] == {"h": [at.Config().h, 2]} and unfinished == []
    assert trials_now == before[0]
    write_summary(at, trials / "base", settings)
    at.write_log(trials / "base", kind="validation", epoch=1, bleu=3.0, perplexity=9.0)
    assert set(collected()[0]) == {"base", "cut", "old"}, "another base: aaa has no place any more"


def test_finished_trials_are_not_trained_again(at, toy, monkeypatch):
    monkeypatch.setattr(toy, "TRIALS", {"base": {}, "drop30": {"dropout": 0.3}})
    monkeypatch.setattr(toy, "TRIAL_BASE", TOY | {"dropout": 0.25})
    launched = []

    def launch(config, preset, folder, ranks):
        launched.append((folder.name, config.dropout, ranks))
        write_summary(at, folder, dataclasses.asdict(config))
        at.write_log(folder, kind="validation", epoch=1, bleu=1.0, perplexity=9.0)

    monkeypatch.setattr(toy, "launch", launch)
    assert toy.main(["trials"]) == toy.main(["trials"]) == 0
    shutil.rmtree(at.runs_folder())
    assert toy.main(["trials"]) == 0, "they are on record"
    assert launched == [("base", 0.25, 1), ("drop30", 0.3, 1)]


# Training ---------------------------------------------------------------------------------------


def test_training_starts_what_has_not_finished(at, toy, monkeypatch):
    commands, really = [], toy.subprocess.run

    def run(command, env=None, **options):
        if command[0] == "git":
            return really(command, env=env, **options)
        commands.append((command, env["OMP_NUM_THREADS"]))
        write_summary(at, at.runs_folder() / "pieces-1", planned["pieces-1"])
        at.write_log(at.runs_folder() / "pieces-1", kind="validation", epoch=1, bleu=1.0)
        return argparse.Namespace(returncode=0)

    monkeypatch.setattr(toy.subprocess, "run", run)
    planned = {run: dataclasses.asdict(toy.config_of(run)) for run in toy.RUNS}
    write_summary(at, at.runs_folder() / "pieces-1", planned["pieces-1"], "stopped")
    write_summary(at, at.runs_folder() / "words-2", planned["words-2"])
    at.write_log(at.runs_folder() / "words-2", kind="validation", epoch=1, bleu=2.0)
    assert toy.main(["train", "--only", "words-2", "pieces-1"]) == 0
    [(command, threads)] = commands
    assert threads == "1" and "--nproc-per-node=2" in command
    assert command[command.index("--") + 1 :][:2] == ["the_annotated_transformer.py", "train"]
    assert command[command.index("--folder") + 1].endswith("runs/pieces-1")
    assert command[command.index("--pieces") + 1] == "150" and "--share-embeddings" in command
    for run, bleu in (("pieces-1", 1.0), ("words-2", 2.0)):
        record = json.loads((toy.RESULTS / "runs" / f"{run}.json").read_text())
        assert record["log"] == [{"kind": "validation", "epoch": 1, "bleu": bleu}]
        assert record["summary"]["settings"] == json.loads(json.dumps(planned[run]))


@pytest.mark.parametrize(
    "left", [{"status": "stopped", "returncode": 0}, {"status": "finished", "returncode": 1}]
)
def test_a_training_that_was_cut_short_is_an_error(at, toy, capsys, monkeypatch, left):
    def run(*_, **__):
        write_summary(at, at.runs_folder() / "words-1", {}, left["status"], commit="unknown")
        return argparse.Namespace(returncode=left["returncode"])

    monkeypatch.setattr(at, "circumstances", dict)
    monkeypatch.setattr(toy.subprocess, "run", run)
    assert "the same command goes on" in failure(toy, capsys, "train", "--only", "words-1")


def test_a_run_with_other_settings_is_not_taken_for_the_planned_one(at, toy, capsys):
    other = dataclasses.asdict(toy.config_of("words-1")) | {"dropout": 0.9, "patience": 99}
    write_summary(at, at.runs_folder() / "words-1", other)
    message = failure(toy, capsys, "train", "--only", "words-1")
    assert "dropout 0.9 and not 0.1" in message and "move it away" in message
    assert "patience" not in message


def test_unknown_names_are_refused_with_those_that_exist(toy, capsys):
    assert "choose among words, pieces, back" in failure(toy, capsys, "score", "--only", "bert")
    assert "no run is called bert" in failure(toy, capsys, "train", "--only", "bert", "words-1")
    assert "no trial is called bert" in failure(toy, capsys, "trials", "--only", "bert")
    assert "--only ROW" in failure(toy, capsys, "score", "--again")


@pytest.mark.parametrize("command", [["validate"], ["score", "--only", "pieces"], ["pretrained"]])
def test_a_missing_run_is_named_with_the_way_out(toy, capsys, command):
    message = failure(toy, capsys, *command)
    assert "runs/pieces-1" in message and "train --only pieces-1" in message


def test_a_scored_run_is_not_needed_again(at, toy_runs, capsys, monkeypatch):
    """The plan can be worked off run by run: what was scored outlives its checkpoints."""
    monkeypatch.setattr(toy_runs, "BEAMS", (1,))
    for command in ("validate", "score", "pretrained"):
        assert toy_runs.main([command]) == 0
    shutil.rmtree(at.runs_folder())
    files = {path: path.read_bytes() for path in toy_runs.RESULTS.rglob("*") if path.is_file()}
    for name in ("launch", "score_once", "translator_of"):
        monkeypatch.delattr(toy_runs, name)
    for command in ("train", "validate", "score", "pretrained", "table"):
        assert toy_runs.main([command]) == 0, command
    assert "passed over" not in capsys.readouterr().out
    assert {path: path.read_bytes() for path in files} == files
    record = json.loads((toy_runs.RESULTS / "runs" / "pieces-1.json").read_text())
    assert record["log"][0]["bleu"] == 30.0 and record["summary"]["parameters"] == 1000


def test_a_run_without_all_its_scorings_is_trained_again(at, toy_runs, monkeypatch):
    assert toy_runs.main(["score", "--only", "words"]) == 0
    shutil.rmtree(at.runs_folder())
    launched = []
    monkeypatch.setattr(toy_runs, "launch", lambda *given, **_: launched.append(given[2].name))
    assert toy_runs.main(["train"]) == 0
    assert launched == ["pieces-1", "back"]


def test_a_stopped_run_never_takes_the_place_of_a_record(at, toy_runs):
    assert toy_runs.main(["score"]) == 0
    path = toy_runs.RESULTS / "runs" / "pieces-1.json"
    before = path.read_bytes()
    config = dataclasses.asdict(toy_runs.config_of("pieces-1"))
    write_summary(at, at.runs_folder() / "pieces-1", config, "stopped")
    assert toy_runs.main(["train", "--only", "pieces-1"]) == 0
    assert path.read_bytes() == before


def test_a_record_of_other_settings_is_noticed(at, toy_runs, capsys, monkeypatch):
    assert toy_runs.main(["score"]) == 0
    other = toy_runs.RUNS | {"pieces-1": ("smoke", toy_runs.RUNS["pieces-1"][1] | {"d_ff": 48})}
    monkeypatch.setattr(toy_runs, "RUNS", other)
    message = failure(toy_runs, capsys, "table")
    assert "pieces-1.json" in message and "d_ff" in message and "train anew" in message


def test_too_few_kept_epochs_are_an_error(at, toy_runs, capsys):
    (at.runs_folder() / "pieces-1" / "epoch-002.pt").unlink()
    (at.runs_folder() / "pieces-1" / "epoch-003.pt").unlink()
    assert "keeps 1 epochs, 2 are wanted" in failure(toy_runs, capsys, "score", "--only", "pieces")


def test_another_folder_is_refused(tool, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "the_annotated_transformer.py" in failure(tool, capsys, "table")


# Choosing on the validation split ---------------------------------------------------------------


def test_the_sweeps_are_written_once_and_know_only_validation(at, toy_runs, monkeypatch):
    monkeypatch.setattr(toy_runs, "BEAMS", (1, 2))
    monkeypatch.setattr(toy_runs, "ALPHAS", (0.0, 1.0))
    corpus = at.find_corpus(toy_runs.CORPUS)
    blind = dataclasses.replace(corpus, splits={"val": corpus.splits["val"]})
    monkeypatch.setattr(at, "find_corpus", functools.cache(lambda *_: blind))
    assert toy_runs.main(["validate"]) == 0
    beam = json.loads((toy_runs.RESULTS / "beam.json").read_text())
    assert [(row["beam"], row["alpha"]) for row in beam["sweep"]] == [(1, 0.0), (2, 0.0), (2, 1.0)]
    for counts in beam["against_greedy"]:
        assert counts["below"] + counts["same"] + counts["above"] == 12
    averaging = json.loads((toy_runs.RESULTS / "averaging.json").read_text())
    assert [row["averaged"] for row in averaging["sweep"]] == [0, 1, 2, 3]
    means = [toy_runs.translator_of("pieces-1", n) for n in (0, 1, 2, 3)]
    perplexities = [toy_runs.likelihood(mean, "val")["perplexity"] for mean in means]
    assert [row["perplexity"] for row in averaging["sweep"]] == perplexities
    assert len(set(perplexities)) == 4
    line = {point["at"]: point["nll"] for point in averaging["line"]["points"]}
    assert averaging["line"]["epochs"] == [2, 3] and min(line) == -0.6 and max(line) == 1.6
    folder = at.runs_folder() / "pieces-1"
    ends = [at.load_trained_model(folder / f"epoch-00{number}.pt") for number in (2, 3)]
    losses = [toy_runs.likelihood(translator, "val")["nll"] for translator in ends]
    assert [line[0.0], line[1.0]] == losses and len(set(line.values())) > 9
    monkeypatch.setattr(at, "translate", None)  # the second time there is nothing to do
    assert toy_runs.main(["validate"]) == 0


def test_a_beam_below_greedy_is_counted(at, toy_runs, monkeypatch):
    def fixed(short_beam):
        def search(model, src, src_mask, max_len, start, beam, alpha):
            row = [at.START, 5, at.END] if beam == short_beam else [at.START, *[5] * 9, at.END]
            return torch.tensor([row] * len(src))

        return search

    translator = toy_runs.translator_of("pieces-1", 0)
    for short_beam, expected in ((1, "below"), (4, "above")):
        monkeypatch.setattr(at, "beam_search", fixed(short_beam))
        assert toy_runs.against_greedy(translator, 0.0)[expected] == 12


# Scoring ----------------------------------------------------------------------------------------


def test_a_scoring_is_on_record_and_a_second_one_is_refused(at, toy_runs, capsys):
    assert toy_runs.main(["score", "--only", "pieces"]) == 0
    [entry] = log_of(toy_runs)
    names = {name: entry[name] for name in ("row", "run", "seed", "split", "sentences", "again")}
    assert names == {
        "row": "pieces", "run": "pieces-1", "seed": 1, "split": "test", "sentences": 12,
        "again": False,
    }  # fmt: skip
    assert entry["decoding"] == "beam 4, alpha 0.6" and "2 epochs" in entry["weights"]
    assert "case:lc" in entry["signatures"]["bleu_lower"] and entry["date"] and entry["commit"]
    path = toy_runs.RESULTS / "translations" / "pieces.pieces-1.test.txt"
    written = path.read_text(encoding="utf-8").split("\n")[:-1]
    references = [target for _, target in at.find_corpus(toy_runs.CORPUS).splits["test"]]
    assert entry["bleu"] == round(at.corpus_bleu(written, references)[0], 2)
    message = failure(toy_runs, capsys, "score", "--only", "pieces")
    assert "scored on test on" in message and "--again" in message and len(log_of(toy_runs)) == 1
    assert toy_runs.main(["score", "--only", "pieces", "--again"]) == 0
    first, second = log_of(toy_runs)
    assert second["again"] is True and second["fingerprint"] == first["fingerprint"]
    (toy_runs.RESULTS / "scorings.jsonl").open("a").write(json.dumps(second | {"bleu": 55.5}))
    assert toy_runs.scoring_of(toy_runs.ROWS[1], "pieces-1", "test")["bleu"] == 55.5  # the last


def test_a_row_is_translated_as_it_says(at, toy_runs):
    row, folder = toy_runs.ROWS[1], at.runs_folder() / "pieces-1"
    states = [at.load_checkpoint(folder / f"epoch-00{n}.pt")["model"] for n in (2, 3)]
    model = toy_runs.translator_of("pieces-1", row.averaged).model
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, (states[0][name] + states[1][name]) / 2)
    toy_runs.score_once(row, "pieces-1", "test")
    mean = at.translator_from(at.load_checkpoint(folder / "best.pt"), "mean")
    mean.model.load_state_dict(model.state_dict())
    sources = [source for source, _ in at.find_corpus(toy_runs.CORPUS).splits["test"]]
    searches = [functools.partial(at.beam_search, beam=beam, alpha=0.6) for beam in (4, 1)]
    wide, greedy = (at.translate(mean, sources, decode=decode) for decode in searches)
    path = toy_runs.hypotheses_path(row, "pieces-1", "test")
    written = path.read_text(encoding="utf-8").split("\n")
    assert written == [*wide, ""] and wide != greedy
    assert toy_runs.decoder(row.beam).keywords == {"beam": 4, "alpha": 0.6}


def test_a_row_may_have_a_length_penalty_of_its_own(at, toy_runs, monkeypatch):
    asked = []

    def search(model, src, *_, beam, alpha):
        asked.append((beam, alpha))
        return torch.tensor([[at.START, 5, at.END]] * len(src))

    monkeypatch.setattr(at, "beam_search", search)
    row = dataclasses.replace(toy_runs.ROWS[1], alpha=1.4)
    entry = toy_runs.score_once(row, "pieces-1", "test")
    assert set(asked) == {(4, 1.4)} and entry["decoding"] == "beam 4, alpha 1.4"


def test_scoring_all_scores_each_finished_run_once(at, toy_runs, capsys):
    write_run(at, at.runs_folder() / "back", toy_runs.config_of("back"), "stopped")
    assert toy_runs.main(["score"]) == toy_runs.main(["score"]) == 0
    assert [entry["run"] for entry in log_of(toy_runs)] == ["words-1", "words-2", "pieces-1"]
    assert "run back has not finished" in capsys.readouterr().out
    write_summary(at, at.runs_folder() / "back", dataclasses.asdict(toy_runs.config_of("back")))
    assert toy_runs.main(["score"]) == 0
    assert [(entry["run"], entry["languages"]) for entry in log_of(toy_runs)][3:] == [
        ("back", "en-de")
    ]


def test_the_model_to_take_away_is_scored_on_record_as_it_is(at, toy_runs, capsys):
    assert toy_runs.main(["score"]) == 0
    assert "int8" not in {entry["row"] for entry in log_of(toy_runs)}, "only by `pretrained`"
    assert toy_runs.main(["pretrained"]) == 0
    kept = json.loads((toy_runs.RESULTS / "pretrained.json").read_text())
    scored = {entry["row"]: entry for entry in log_of(toy_runs)}
    assert scored["int8"]["weights"].endswith(", in int8")
    rounded = at.load_pretrained(at.PRETRAINED, torch.device("cpu")).model
    assert scored["int8"]["fingerprint"] == toy_runs.fingerprint(rounded)
    for name, row in (("int8", "int8"), ("fp32", "pieces")):
        assert kept["formats"][name]["test"]["bleu"] == scored[row]["bleu"]
        assert kept["formats"][name]["test"]["perplexity"] == scored[row]["perplexity"]
    assert kept["formats"]["int8"]["MB"] < 0.5 * kept["formats"]["fp32"]["MB"]

    card = (at.PRETRAINED / "README.md").read_text(encoding="utf-8")
    for name, found in kept["formats"].items():
        for split in ("val", "test"):
            bleu, perplexity = found[split]["bleu"], found[split]["perplexity"]
            assert f"| {name} | {split} | {bleu:.1f} | {perplexity:.2f} |" in card
    assert "as run `pieces-1`" in card and "1,000 |" not in card and "{" not in card
    assert f"{kept['parameters']:,}" in card and kept["made"]["date"] in card

    number = len(log_of(toy_runs))
    assert toy_runs.main(["pretrained"]) == 0
    assert len(log_of(toy_runs)) == number, "nothing is scored twice"


def test_other_weights_than_the_scored_ones_are_noticed(at, toy_runs, capsys):
    assert toy_runs.main(["score"]) == 0 and toy_runs.main(["pretrained"]) == 0
    path = at.runs_folder() / "pieces-1" / "epoch-003.pt"
    content = at.load_checkpoint(path)
    content["model"]["generator.proj.bias"] += 1.0
    at.save_checkpoint(path, content)
    message = failure(toy_runs, capsys, "pretrained")
    assert "was scored on test with other weights" in message and "--again" in message


def test_fingerprints_differ_with_any_weight(at, toy_runs):
    model = toy_runs.translator_of("words-1", 0).model
    before = toy_runs.fingerprint(model)
    assert before == toy_runs.fingerprint(toy_runs.translator_of("words-1", 0).model)
    model.generator.proj.bias.data[0] += 1e-6
    assert toy_runs.fingerprint(model) != before


# The table --------------------------------------------------------------------------------------


def test_the_table_has_means_ranges_and_steps(at, toy_runs, capsys):
    assert toy_runs.main(["score"]) == 0
    log = log_of(toy_runs)
    for entry, bleu in zip(log, (20.0, 27.0, 25.0, 9.0), strict=True):
        entry |= {"bleu": bleu, "bits_per_character": bleu / 10}
    path = toy_runs.RESULTS / "scorings.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in log))
    marks = "<!-- results: docs/results/recipe.json -->\n{}<!-- end of results -->"
    toy_runs.README.write_text(f"# Title\n\n{marks.format('old rows')}\n\nAnd so on.\n")
    assert toy_runs.main(["table"]) == 0
    header, _, *rows = toy_runs.README.read_text().split("\n")[3:8]
    assert header == "| step | parameters | BLEU test | seeds | minutes of training |"
    assert rows == [
        "| words | 0.0 M | 23.5 (20.0–27.0) | 2 | 10.5 (10.0–11.0) |",
        "| pieces | 0.0 M | 25.0 | 1 | 12.0 |",
        "| back | 0.0 M | 9.0 | 1 | 13.0 |",
    ]
    assert (
        toy_runs.README.read_text()
        == f"# Title\n\n{marks.format(chr(10).join([header, _, *rows, '']))}\n\nAnd so on.\n"
    )
    content = json.loads((toy_runs.RESULTS / "recipe.json").read_text())
    words, pieces = content["rows"]
    assert words["splits"]["test"]["bleu"] == {"mean": 23.5, "min": 20.0, "max": 27.0}
    assert words["splits"]["test"]["bits_per_character"]["mean"] == 2.35
    assert words["minutes"] == {"mean": 10.5, "min": 10.0, "max": 11.0}
    assert words["seeds"] == [1, 2] and words["parameters"] == 1000
    assert words["changes"] == {} and "step" not in words["splits"]["test"]
    assert pieces["changes"] == {"pieces": [0, 150], "share_embeddings": [False, True]}
    assert content["other_direction"]["changes"] == {"languages": [["de", "en"], ["en", "de"]]}
    assert content["range_of_seeds"] == {"test": 7.0}
    step, told = pieces["splits"]["test"]["step"], capsys.readouterr().out
    assert abs(step["bleu"]) < 7 and step["smaller_than_seeds"] is True
    assert 0 < step["p"] <= 1 and "smaller than the seeds' range" in told
    assert set(content["summaries"]) == set(toy_runs.RUNS) and content["made"]["commit"]


def test_a_step_is_compared_with_the_range_of_the_seeds(toy_runs, monkeypatch):
    monkeypatch.setattr(toy_runs, "kept_hypotheses", lambda row, split: [row.name])
    monkeypatch.setattr(toy_runs, "bootstrap", lambda *_: {"bleu": -0.5, "p": 0.01})
    steps = [toy_runs.step_between(*toy_runs.ROWS, "test", most) for most in (0.4, 0.6, None)]
    assert [step["smaller_than_seeds"] for step in steps] == [False, True, None]


def test_the_table_has_what_is_scored_and_names_what_is_missing(at, toy_runs, capsys):
    def content(missing: str) -> dict:
        assert toy_runs.main(["table"]) == 0
        assert f"still missing: {missing}\n" in capsys.readouterr().out
        return json.loads((toy_runs.RESULTS / "recipe.json").read_text())

    assert "no run of the plan has been scored" in failure(toy_runs, capsys, "table")
    toy_runs.score_once(toy_runs.ROWS[0], "words-2", "test")
    table = content("words-1, pieces-1, back")
    assert [row["runs"] for row in table["rows"]] == [["words-2"]]
    assert table["rows"][0]["seeds"] == [2] and table["range_of_seeds"] == {"test": None}
    assert table["other_direction"] is None and set(table["summaries"]) == {"words-2"}
    toy_runs.score_once(toy_runs.ROWS[1], "pieces-1", "test")
    table = content("words-1, back")
    step = table["rows"][1]["splits"]["test"]["step"]
    assert step["smaller_than_seeds"] is None and table["missing"] == ["words-1", "back"]


def test_the_table_needs_the_translations_that_were_scored(at, toy_runs, capsys):
    assert toy_runs.main(["score"]) == 0
    path = toy_runs.RESULTS / "translations" / "words.words-1.test.txt"
    path.write_text(path.read_text().replace("\n", " altered\n", 1))
    message = failure(toy_runs, capsys, "table")
    assert "words.words-1.test.txt" in message and "score --only words --again" in message


# The speedrun -----------------------------------------------------------------------------------


@pytest.fixture
def quick(at, toy, monkeypatch):
    """Speedruns of toy runs that take 90 seconds by a clock of their own, on a quiet machine."""
    now = [0.0]
    monkeypatch.setitem(at.PRESETS, "speedrun", dataclasses.replace(at.PRESETS["smoke"], **TOY))
    monkeypatch.setattr(toy.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(toy.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(toy.os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    monkeypatch.setattr(toy, "SEEDS", (1, 2))

    def launch(config, preset, folder, ranks, *more):
        assert (preset, ranks, more) == ("speedrun", 2, ("--until", "38.0"))
        now[0] += 90 * config.seed
        write_run(at, folder, config, validation_bleu=toy.reached)
        return at.read_summary(folder)

    monkeypatch.setattr(toy, "launch", launch)
    monkeypatch.setattr(toy, "reached", 38.2, raising=False)
    return toy


def speedrun_of(tool) -> dict:
    return json.loads((tool.RESULTS / "speedrun.json").read_text())


def test_a_speedrun_is_the_time_of_the_whole_process(quick):
    assert quick.main(["speedrun"]) == 0
    content = speedrun_of(quick)
    assert content["minutes"] == {"mean": 2.25, "min": 1.5, "max": 3.0}
    first = content["seeds"][0]
    assert first["reached"] and first["bleu"] == 38.2 and first["load_before"] == 0.1
    assert first["summary"]["epochs"] == 3 and first["bleu_again"] < 5  # the stub is untrained
    before = content["seeds"]
    assert quick.main(["speedrun"]) == 0 and speedrun_of(quick)["seeds"] == before


def test_a_speedrun_that_falls_short_has_no_time(quick, monkeypatch):
    monkeypatch.setattr(quick, "reached", 37.9)
    assert quick.main(["speedrun"]) == 0
    assert speedrun_of(quick)["minutes"] is None
    assert not speedrun_of(quick)["seeds"][0]["reached"]


def test_a_speedrun_begins_empty(at, quick, capsys):
    (at.runs_folder() / "speedrun-1").mkdir(parents=True)
    message = failure(quick, capsys, "speedrun")
    assert "speedrun-1 exists" in message and "move it away" in message


def test_a_busy_machine_is_refused_or_put_on_record(quick, capsys, monkeypatch):
    monkeypatch.setattr(quick.os, "getloadavg", lambda: (2.2, 2.0, 1.0))
    message = failure(quick, capsys, "speedrun")
    assert "load average is 2.2" in message and "--busy-ok" in message
    assert quick.main(["speedrun", "--busy-ok"]) == 0
    first = speedrun_of(quick)["seeds"][0]
    assert first["busy_ok"] and first["load_before"] == 2.2
    assert "warning: the machine is busy" in capsys.readouterr().err


def test_a_machine_that_falls_quiet_is_waited_for(quick, monkeypatch):
    loads = iter([2.0, 1.1, 0.4])
    monkeypatch.setattr(quick.os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    assert quick.wait_for_quiet(busy_ok=False) == 0.4
