"""Make the files of docs/results: train, choose on the validation split, score the tests once.

    python docs/results.py trials     try settings, at a quarter of the updates    trials.json
    python docs/results.py train      train every run of the plan, two ranks each  runs/
    python docs/results.py validate   try beam, length penalty, averaging          beam.json,
                                                                                   averaging.json
    python docs/results.py score      score each row on each test split, once      scorings.jsonl,
                                                                                   translations/
    python docs/results.py table      put the rows together and test each step     recipe.json,
                                                                                   README.md
    python docs/results.py pretrained write pretrained/ and what int8 costs        pretrained.json
    python docs/results.py speedrun   time the way from raw text to a BLEU         speedrun.json

Checkpoints live in RUNS_DIR (default: runs). Each command does only what is missing, so the same
command goes on after a stop. A run whose record and scorings lie in docs/results is never needed
again, so its checkpoints may be gone: the plan can be worked off run by run, on several days or
machines (`train --only RUN`, then `score`, for each). Run it where the script lies; everything is
computed on the CPU.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import the_annotated_transformer as at

# The plan ---------------------------------------------------------------------------------------

RESULTS = Path("docs/results")
CARD = Path(__file__).with_name("model_card.md")  # what pretrained/README.md is made from
README = Path("README.md")
CORPUS = "multi30k"
SEEDS = (1, 2, 3)
BEAM, ALPHA, AVERAGED = 4, 0.6, at.AVERAGED  # as in the paper, and how many of the last epochs
CHOSEN_ALPHA = 1.4  # best of ALPHAS on the validation split with a beam of BEAM: beam.json

# A run: its preset, and what is changed in it.
RUNS: dict[str, tuple[str, dict]] = {
    **{f"words-{seed}": ("words", {"seed": seed}) for seed in SEEDS},
    "pieces-1": ("pieces", {"seed": 1}),
    **{f"recipe-{seed}": ("recipe", {"seed": seed}) for seed in SEEDS},
    "recipe-en-de": ("recipe", {"seed": 1, "languages": ("en", "de")}),
}


@dataclass(frozen=True)
class Row:
    """A row of the table: runs that differ in their seed only, and how their weights are used."""

    name: str
    step: str  # what is new, in words
    runs: tuple[str, ...]
    beam: int = 1
    averaged: int = 0  # how many of the last epochs; 0: the epoch with the best validation BLEU
    alpha: float = ALPHA
    int8: bool = False  # rounded, as it lies in the folder pretrained/

    def use(self) -> dict:
        """How the weights are used, in words."""
        decoding = f"beam {self.beam}, alpha {self.alpha}" if self.beam > 1 else "greedy"
        weights = f"mean of the last {self.averaged} epochs" if self.averaged else "best epoch"
        return {"decoding": decoding, "weights": weights + ", in int8" * self.int8}


BEST = BEAM, AVERAGED, CHOSEN_ALPHA  # what the last row takes together
ROWS = (
    Row("words", "words", tuple(f"words-{seed}" for seed in SEEDS)),
    Row("pieces", "pieces of words", ("pieces-1",)),
    Row("one-matrix", "one matrix instead of three", ("recipe-1",)),
    Row("beam", "beam search", ("recipe-1",), BEAM),
    Row("averaging", "averaging", ("recipe-1",), BEAM, AVERAGED),
    Row(
        "recipe", f"length penalty {CHOSEN_ALPHA}", tuple(f"recipe-{seed}" for seed in SEEDS), *BEST
    ),
)
OTHER = Row("en-de", "the same, English to German", ("recipe-en-de",), *BEST)
SHIPPED = Row("int8", "the model of pretrained/", ("recipe-1",), *BEST, int8=True)

# Trials: one process, one thread, a quarter of the updates, one seed. Each changes the base.
TRIAL_BASE = {
    **{"N": 3, "d_model": 256, "d_ff": 1024, "h": 4, "dropout": 0.2, "pieces": 5000},
    **{"share_embeddings": True, "schedule": "linear", "factor": 1.0, "warmup": 400},
    **{"batch_tokens": 2560, "epochs": 8, "patience": 99, "keep": 0, "seed": 1},
}
TRIALS: dict[str, dict] = {
    "base": {},
    "root": {"schedule": "root"},
    **{f"drop{percent}": {"dropout": percent / 100} for percent in (10, 30, 40)},
    **{f"pieces{pieces}": {"pieces": pieces} for pieces in (3000, 8000, 10000)},
    **{f"d{d}": {"d_model": d, "d_ff": 4 * d, "h": d // 64} for d in (192, 384)},
    **{f"h{h}": {"h": h} for h in (1, 8)},
    "smoothing0": {"smoothing": 0.0},
    **{f"N{N}": {"N": N} for N in (2, 4)},
    "batch1280": {"batch_tokens": 1280},
    **{f"warmup{warmup}": {"warmup": warmup} for warmup in (200, 800)},
    "factor07": {"factor": 0.7},
    "factor15": {"factor": 1.5},
}
BEAMS, ALPHAS = (1, 2, 4, 8, 12), (0.0, 0.3, 0.6, 1.0, 1.4)
UNTIL, QUIET = 38.0, 0.5  # BLEU of the speedrun; load average of a machine with nothing to do

# Small tools ------------------------------------------------------------------------------------


def write_json(name: str, content: dict) -> dict:
    """A file of docs/results with its circumstances, in one piece or not at all; what it holds."""
    content = content | {"made": at.circumstances()}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    at.write_atomically(RESULTS / name, f"{text}\n".encode())
    print(f"written: {RESULTS / name}")
    return content


def read_json(path: Path) -> dict:
    """A JSON file; empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def chosen(named: Sequence[str], known: Sequence[str], kind: str) -> list[str]:
    """The names given, or else all that are known; ValueError for a name that is not."""
    unknown = ", ".join(sorted(set(named) - set(known)))
    at.require(not unknown, f"no {kind} is called {unknown}: choose among {', '.join(known)}")
    return list(named or known)


def differences(before: dict, now: dict, free: Sequence[str] = ()) -> dict:
    """What has another value now, as {name: [before, now]}; names in `free` do not count."""
    names = [name for name in now if name not in free and before.get(name) != now[name]]
    return {name: [before.get(name), now[name]] for name in names}


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Mean and range over the seeds."""
    numbers = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
    return {name: round(number, digits) for name, number in numbers.items()}


def short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def fingerprint(model: torch.nn.Module) -> str:
    """A hash of all weights and their names."""
    state = sorted(model.state_dict().items())
    return short_hash(b"".join(name.encode() + w.cpu().numpy().tobytes() for name, w in state))


# Training ---------------------------------------------------------------------------------------


def config_of(run: str) -> at.Config:
    """The settings of a run of the plan."""
    preset, changes = RUNS[run]
    return dataclasses.replace(at.PRESETS[preset], corpus=CORPUS, **changes)


def options_of(config: at.Config, preset: str) -> list[str]:
    """The options of `train` that turn a preset into `config`."""
    options = []
    for name, (_, value) in differences(vars(at.PRESETS[preset]), vars(config)).items():
        option = "data" if name == "corpus" else name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            options += [f"--{option}", "-".join(value) if name == "languages" else str(value)]
    return options


def launch(config: at.Config, preset: str, folder: Path, ranks: int, *more: str) -> dict:
    """Train to the end, in processes of one thread each; the summary. ValueError if cut short."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--"]
    command = [sys.executable, *(torchrun if ranks > 1 else []), str(at.SCRIPT), "train"]
    command += ["--preset", preset, "--folder", str(folder), *options_of(config, preset), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    previous = signal.signal(signal.SIGINT, lambda *_: None)  # the training hears it and stops
    try:
        status = subprocess.run(command, env=environment).returncode
    finally:
        signal.signal(signal.SIGINT, previous)
    summary = at.read_summary(folder)
    finished = status == 0 and summary.get("status") == "finished"
    at.require(finished, f"{folder} was cut short (exit status {status}): the same command goes on")
    return summary


def settings_of(folder: Path) -> dict:
    """The settings of a finished run, as its summary has them."""
    return at.read_summary(folder)["settings"]


def as_in_a_file(config: at.Config) -> dict:
    """The settings as JSON has them: a tuple is a list."""
    return json.loads(json.dumps(vars(config)))


def other_settings(settings: dict, config: at.Config) -> str:
    """In words, where settings differ from those planned, but for what changes no weight."""
    other = differences(settings, as_in_a_file(config), ("patience", "keep"))
    return ", ".join(f"{name} {then} and not {now}" for name, (then, now) in other.items())


def is_finished(folder: Path, config: at.Config) -> bool:
    """True for a finished run; ValueError where it was trained with other settings."""
    if at.read_summary(folder).get("status") != "finished":
        return False
    other = other_settings(settings_of(folder), config)
    at.require(not other, f"{folder} was trained with {other}: move it away to train it anew")
    return True


def way_out(run: str) -> str:
    return f"`python docs/results.py train --only {run}` trains it or goes on with it"


def finished_folder(run: str) -> Path:
    """The folder of a finished run of the plan; ValueError names the way out."""
    folder = at.runs_folder() / run
    at.require(is_finished(folder, config_of(run)), f"no finished run in {folder}: {way_out(run)}")
    return folder


def record_path(run: str) -> Path:
    return RESULTS / "runs" / f"{run}.json"


def record_of(run: str) -> dict:
    """Summary and log of a finished run, from docs/results; ValueError names the way out."""
    record, path = read_json(record_path(run)), record_path(run)
    at.require(bool(record), f"no record of the run in {path}: {way_out(run)}")
    other = other_settings(record["summary"]["settings"], config_of(run))
    at.require(not other, f"{path} tells of {other}: remove it and train anew")
    return record


def is_scored(run: str) -> bool:
    """True if a run has its record and every row that uses it its scorings: it is not needed."""
    if not record_path(run).is_file():
        return False
    record_of(run)
    rows = [row for row in (*ROWS, OTHER) if run in row.runs]
    splits = at.find_corpus(CORPUS, config_of(run).languages).tests()
    return all(scoring_of(row, run, split) for row in rows for split in splits)


def is_gone(run: str) -> bool:
    """True if a run was scored and its checkpoints are not here."""
    return is_scored(run) and not at.read_summary(at.runs_folder() / run)


def train(options: argparse.Namespace) -> None:
    """Every run of the plan that has neither finished nor been scored, one after the other."""
    for run in chosen(options.only, list(RUNS), "run"):
        folder, config = at.runs_folder() / run, config_of(run)
        if not is_scored(run) and not is_finished(folder, config):
            launch(config, RUNS[run][0], folder, ranks=2)
        if is_finished(folder, config):
            record = {"summary": at.read_summary(folder), "log": at.read_log(folder)}
            text = json.dumps(record, ensure_ascii=False)
            at.write_atomically(record_path(run), f"{text}\n".encode())


# Trials -----------------------------------------------------------------------------------------


def trial_record(folder: Path, base: dict) -> dict:
    """What a finished trial changes in the settings of the base, and what it has reached."""
    log = [entry for entry in at.read_log(folder) if entry["kind"] == "validation"]
    at.require(bool(log), f"{folder}: no validation in its log; remove the folder to try again")
    best, summary = max(log, key=lambda entry: entry["bleu"]), at.read_summary(folder)
    record = {"name": folder.name, "changes": differences(base, settings_of(folder))}
    for which, entry in (("best", best), ("final", log[-1])):
        record[which] = {name: entry[name] for name in ("epoch", "bleu", "perplexity")}
    told = "updates minutes ranks bf16 parameters date machine versions commit".split()
    return record | {name: summary[name] for name in told}


def collect(folders: Sequence[Path], before: dict) -> dict:
    """All trials in some folders, the base first; those without an end are named only.

    `before` is what was collected earlier: its trials stay, if they changed the same base.
    """
    paths = sorted(path.parent for folder in folders for path in folder.glob("*/config.json"))
    done = {path.name: path for path in paths if at.read_summary(path).get("status") == "finished"}
    base = settings_of(done["base"]) if "base" in done else before.get("base")
    where, way = ", ".join(map(str, folders)), "`trials --from FOLDER` looks elsewhere"
    at.require(base, f"no finished trial called base in {where}: `make trials` trains it, {way}")
    same = [] if differences(before.get("base", {}), base) else before["trials"]
    trials = {trial["name"]: trial for trial in same}
    trials |= {name: trial_record(path, base) for name, path in done.items()}
    unfinished = {path.name for path in paths} | set(before.get("unfinished", []) if same else [])
    recipe = at.PRESETS["recipe"]  # two ranks where a trial has one
    share = base["epochs"] / recipe.epochs * 2 * recipe.batch_tokens / base["batch_tokens"]
    content = {"base": base, "share_of_updates": round(share, 2)}
    content["trials"] = sorted(trials.values(), key=lambda trial: trial["name"] != "base")
    return content | {"unfinished": sorted(unfinished - set(trials))}


def run_trials(options: argparse.Namespace) -> None:
    """Train the trials that are missing, or with --from none, and collect what there is."""
    here, before = at.runs_folder() / "trials", read_json(RESULTS / "trials.json")
    names = [] if options.folders else chosen(options.only, list(TRIALS), "trial")
    recorded = [
        before["base"] | {name: now for name, (_, now) in trial["changes"].items()}
        for trial in before.get("trials", [])
    ]
    for trial in names:
        config = at.Config(corpus=CORPUS, **TRIAL_BASE | TRIALS[trial])
        if as_in_a_file(config) not in recorded and not is_finished(here / trial, config):
            launch(config, "words", here / trial, ranks=1)
    write_json("trials.json", collect(options.folders or [here], before))


# Choosing on the validation split ---------------------------------------------------------------


def translator_of(run: str, averaged: int) -> at.Translator:
    """A finished run's best epoch, or the mean of its last epochs."""
    folder = finished_folder(run)
    if not averaged:
        return at.load_trained_model(folder, torch.device("cpu"))
    paths = sorted(folder.glob("epoch-*.pt"))[-averaged:]
    message = f"{folder} keeps {len(paths)} epochs, {averaged} are wanted: train with more --keep"
    at.require(len(paths) == averaged, message)
    name = f"{run}, {averaged} averaged"
    return at.translator_from(at.average_checkpoints(paths), name, torch.device("cpu"))


def sides(languages: tuple[str, str], split: str) -> tuple[list[str], list[str]]:
    """Sources and references of a split."""
    return tuple(map(list, zip(*at.find_corpus(CORPUS, languages).splits[split], strict=True)))


def decoder(beam: int, alpha: float = ALPHA) -> Callable:
    return functools.partial(at.beam_search, beam=beam, alpha=alpha)


def validation_bleu(translator: at.Translator, beam: int, alpha: float = ALPHA) -> float:
    """BLEU on the validation split."""
    sources, references = sides(translator.config.languages, "val")
    written = at.translate(translator, sources, decode=decoder(beam, alpha))
    bleu, _ = at.corpus_bleu(written, references)
    print(f"{translator.name}: beam {beam}, alpha {alpha}, validation BLEU {bleu:.2f}", flush=True)
    return round(bleu, 2)


def against_greedy(translator: at.Translator, alpha: float) -> dict:
    """How often the beam's sentence scores below, like and above greedy's, on validation."""
    counts = {"below": 0, "same": 0, "above": 0}

    def both(model, src, *rest):
        found = [decoder(beam, alpha)(model, src, *rest) for beam in (1, BEAM)]
        for source, *pair in zip(src, *found, strict=True):
            greedy, beam = (ids[ids != at.PAD] for ids in pair)
            scores = [at.score_of(model, source[None], ids, alpha) for ids in (greedy, beam)]
            same = torch.equal(greedy, beam)
            counts["same" if same else "below" if scores[1] < scores[0] else "above"] += 1
        return found[1]

    at.translate(translator, sides(translator.config.languages, "val")[0], decode=both)
    return {"beam": BEAM, "alpha": alpha, **counts}


def loss_along_a_line(run: str) -> dict:
    """Validation loss on the line through the weights of the first and last averaged epoch."""
    folder, translator = finished_folder(run), translator_of(run, 0)
    paths, points = sorted(folder.glob("epoch-*.pt"))[-AVERAGED:], []
    first, last = (at.load_checkpoint(path)["model"] for path in (paths[0], paths[-1]))
    for fifths in range(-3, 9):
        between = {name: torch.lerp(first[name], last[name], fifths / 5) for name in first}
        translator.model.load_state_dict(between)
        points.append({"at": fifths / 5, "nll": likelihood(translator, "val")["nll"]})
    epochs = [int(path.stem.removeprefix("epoch-")) for path in (paths[0], paths[-1])]
    return {"epochs": epochs, "points": points}


def averaging_row(run: str, averaged: int) -> dict:
    """Validation scores of a mean of the last epochs; 0 stands for the best epoch."""
    translator = translator_of(run, averaged)
    perplexity = likelihood(translator, "val")["perplexity"]
    bleu = validation_bleu(translator, BEAM)
    return {"averaged": averaged, "bleu": bleu, "perplexity": perplexity}


def validate(options: argparse.Namespace) -> None:
    """Sweep beam, length penalty and averaging with the first seed of the full recipe."""
    row, run = ROWS[-1], ROWS[-1].runs[0]
    files = [read_json(RESULTS / name) for name in ("beam.json", "averaging.json")]
    scored = scoring_of(row, run).get("fingerprint", "")
    if is_gone(run) and all(file.get("fingerprint") == scored for file in files):
        print("beam.json and averaging.json are those of the model that was scored")
        return
    translator = translator_of(run, AVERAGED)
    facts = {"run": run, "corpus": translator.corpus, "split": "val", **row.use()}
    facts["fingerprint"] = fingerprint(translator.model)
    if differences(read_json(RESULTS / "beam.json"), {"fingerprint": facts["fingerprint"]}):
        grid = [(beam, alpha) for beam in BEAMS for alpha in ALPHAS if beam > 1 or alpha == 0]
        bleu = [validation_bleu(translator, *pair) for pair in grid]
        sweep = [{"beam": b, "alpha": a, "bleu": c} for (b, a), c in zip(grid, bleu, strict=True)]
        greedy = [against_greedy(translator, alpha) for alpha in (0.0, ALPHA)]
        write_json("beam.json", facts | {"sweep": sweep, "against_greedy": greedy})
    if differences(read_json(RESULTS / "averaging.json"), {"fingerprint": facts["fingerprint"]}):
        kept = len(list(finished_folder(run).glob("epoch-*.pt")))
        sweep = [averaging_row(run, averaged) for averaged in range(kept + 1)]
        write_json("averaging.json", facts | {"sweep": sweep, "line": loss_along_a_line(run)})


# Scoring the test splits ------------------------------------------------------------------------


def likelihood(translator: at.Translator, split: str) -> dict[str, float]:
    """Loss per symbol, perplexity, and the loss in bits for each character of the references.

    Perplexities of different vocabularies cannot be compared. Bits nearly can: but a model of words
    pays for `<unk>` and not for the word in its place, so `unknown` counts these. The end of a
    line is a character.
    """
    corpus, limit = at.find_corpus(CORPUS, translator.config.languages), translator.config.max_len
    encoded = at.encode_pairs(corpus, split, translator.vocabularies)
    both = zip(encoded, corpus.splits[split], strict=True)
    pairs = [(ids, target) for ids, (_, target) in both if max(map(len, ids)) <= limit]
    pairs.sort(key=lambda pair: len(pair[0][1]))
    batches = (at.collate(group) for group in at.grouped([ids for ids, _ in pairs], 50))
    nll = at.evaluate_loss(translator.model, batches)["nll"]
    bits = nll / math.log(2) * sum(len(ids[1]) - 1 for ids, _ in pairs)
    return {
        "nll": round(nll, 4),
        "perplexity": round(math.exp(nll), 2),
        "bits_per_character": round(bits / sum(len(target) + 1 for _, target in pairs), 4),
        "unknown": sum(ids[1].count(at.UNKNOWN) for ids, _ in pairs),
    }


def text_scores(hypotheses: list[str], references: list[str]) -> dict:
    """BLEU (cased, detokenized), lower-cased BLEU and chrF, with their signatures."""
    from sacrebleu.metrics import BLEU, CHRF

    metrics = {"bleu": BLEU(), "bleu_lower": BLEU(lowercase=True), "chrf": CHRF()}
    scores = {name: m.corpus_score(hypotheses, [references]).score for name, m in metrics.items()}
    signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
    return {name: round(s, 2) for name, s in scores.items()} | {"signatures": signatures}


def scoring_of(row: Row, run: str, split: str = "") -> dict:
    """The last scoring of a row on a split, or on any; empty where there is none."""
    path, key = RESULTS / "scorings.jsonl", {"row": row.name, "run": run}
    key |= {"split": split} if split else {}
    log = [json.loads(line) for line in at.read_lines(path) if line] if path.is_file() else []
    return next((scoring for scoring in reversed(log) if not differences(scoring, key)), {})


def hypotheses_path(row: Row, run: str, split: str) -> Path:
    return RESULTS / "translations" / f"{row.name}.{run}.{split}.txt"


def score_once(row: Row, run: str, split: str, again: bool = False) -> dict:
    """Translate a test split, score it, put it on record; ValueError where it is on record."""
    before = scoring_of(row, run, split)
    told = f"row {row.name}, run {run}, was scored on {split} on {before.get('date')}"
    at.require(again or not before, f"{told}: once is enough (--again does it, on record)")
    shipped = row.int8 and at.load_pretrained(at.PRETRAINED, torch.device("cpu"))
    translator = shipped or translator_of(run, row.averaged)
    languages = translator.config.languages
    sources, references = sides(languages, split)
    hypotheses = at.translate(translator, sources, decode=decoder(row.beam, row.alpha))
    text = "".join(f"{line}\n" for line in hypotheses).encode()
    at.write_atomically(hypotheses_path(row, run, split), text)
    entry = {"row": row.name, "run": run, "seed": translator.config.seed, "split": split}
    entry |= {"corpus": translator.corpus, "languages": "-".join(languages), **row.use()}
    entry |= {"sentences": len(sources), **text_scores(hypotheses, references)}
    entry |= {**likelihood(translator, split), "fingerprint": fingerprint(translator.model)}
    entry |= {"hypotheses": short_hash(text), "again": bool(before), **at.circumstances()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    with open(RESULTS / "scorings.jsonl", "a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")
    return entry


def score(options: argparse.Namespace) -> None:
    """Score what has a finished run and no scoring; rows that are named must have both."""
    rows = {row.name: row for row in (*ROWS, OTHER, SHIPPED)}
    at.require(bool(options.only) or not options.again, "--again needs rows: --only ROW --again")
    names = chosen(options.only, list(rows), "row")
    for row in (rows[name] for name in names if options.only or name != SHIPPED.name):
        for run in row.runs:
            tests = at.find_corpus(CORPUS, config_of(run).languages).tests()
            splits = [s for s in tests if options.only or not scoring_of(row, run, s)]
            finished = options.only or is_finished(at.runs_folder() / run, config_of(run))
            if splits and not finished:
                print(f"{row.name}: run {run} has not finished, passed over")
            for split in splits if finished else []:
                entry = score_once(row, run, split, options.again)
                print(f"{row.name}, {run}, {split}: BLEU {entry['bleu']}", flush=True)


# The table --------------------------------------------------------------------------------------


def as_far_as_scored(row: Row) -> Row:
    """The row with those of its runs that have been scored."""
    return dataclasses.replace(row, runs=tuple(run for run in row.runs if is_scored(run)))


def kept_hypotheses(row: Row, split: str) -> list[str]:
    """The translations of the first seed as they were scored; ValueError if they are not there."""
    path = hypotheses_path(row, row.runs[0], split)
    scoring = scoring_of(row, row.runs[0], split)
    whole = path.is_file() and short_hash(path.read_bytes()) == scoring["hypotheses"]
    way_out = f"`score --only {row.name} --again` makes them anew, on record"
    at.require(whole, f"{path} does not hold the translations that were scored: {way_out}")
    return at.read_lines(path)


def bootstrap(before: list[str], now: list[str], references: list[str]) -> dict:
    """sacreBLEU's paired bootstrap: what is gained in BLEU, and the p-value of the difference."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    systems, metrics = [("before", before), ("now", now)], {"BLEU": BLEU()}
    test = PairedTest(systems, metrics, [references], test_type="bs", n_samples=1000)
    signatures, scores = test()
    gain = scores["BLEU"][1].score - scores["BLEU"][0].score
    p = 1.0 if before == now else scores["BLEU"][1].p_value  # it tells equal systems apart
    return {"bleu": round(gain, 2) + 0.0, "p": round(p, 4), "signature": str(signatures["BLEU"])}


def step_between(before: Row, row: Row, split: str, seeds_range: float | None) -> dict:
    """The paired bootstrap of two rows, first seed against first seed."""
    _, references = sides(config_of(row.runs[0]).languages, split)
    step = bootstrap(*(kept_hypotheses(r, split) for r in (before, row)), references)
    smaller = None if seeds_range is None else abs(step["bleu"]) < seeds_range
    return step | {"smaller_than_seeds": smaller}


def row_scores(row: Row, split: str) -> dict:
    """Mean and range over the seeds of every score on a split."""
    scorings = [scoring_of(row, run, split) for run in row.runs]
    digits = {"bleu": 2, "bleu_lower": 2, "chrf": 2, "perplexity": 2, "bits_per_character": 4}
    scores = {name: spread([s[name] for s in scorings], n) for name, n in digits.items()}
    return scores | {name: scorings[0][name] for name in ("unknown", "sentences", "signatures")}


def row_facts(row: Row, before: Row, splits: Sequence[str]) -> dict:
    """All of a row but the bootstrap; the settings that it changes are those of the runs."""
    summaries = [record_of(run)["summary"] for run in row.runs]
    then, now = record_of(before.runs[0])["summary"]["settings"], summaries[0]["settings"]
    facts = {"row": row.name, "step": row.step, **row.use(), "runs": row.runs}
    facts["changes"] = differences(then, now, ("keep",))
    facts["seeds"] = [summary["settings"]["seed"] for summary in summaries]
    facts["parameters"] = summaries[0]["parameters"]
    facts["minutes"] = spread([summary["minutes"] for summary in summaries], 1)
    return facts | {"splits": {split: row_scores(row, split) for split in splits}}


def range_of_seeds(rows: Sequence[dict], split: str) -> float | None:
    """The largest range of BLEU over the seeds of one row; None without a second seed."""
    scores = [row["splits"][split]["bleu"] for row in rows if len(row["seeds"]) > 1]
    return round(max(bleu["max"] - bleu["min"] for bleu in scores), 2) if scores else None


def table(options: argparse.Namespace) -> None:
    """Put the rows together as far as they are scored, and test every step between two of them."""
    corpus = at.find_corpus(CORPUS, config_of(ROWS[0].runs[0]).languages)
    present = [row for row in map(as_far_as_scored, ROWS) if row.runs]
    way_out = "`train` and `score` come first"
    at.require(bool(present), f"no run of the plan has been scored in {RESULTS}: {way_out}")
    pairs = list(zip((present[0], *present[:-1]), present, strict=True))  # with the one before
    rows = [row_facts(row, before, corpus.tests()) for before, row in pairs]
    ranges = {split: range_of_seeds(rows, split) for split in corpus.tests()}
    for facts, (before, row) in list(zip(rows, pairs, strict=True))[1:]:
        for split, seeds_range in ranges.items():
            step = step_between(before, row, split, seeds_range)
            facts["splits"][split]["step"] = step
            remark = ", smaller than the seeds' range" if step["smaller_than_seeds"] else ""
            print(f"{split}: {row.step} {step['bleu']:+.2f}, p = {step['p']}{remark}")
    missing = [run for run in RUNS if not is_scored(run)]
    content = {"corpus": corpus.name, "rows": rows, "range_of_seeds": ranges, "missing": missing}
    other = as_far_as_scored(OTHER)
    content["other_direction"] = (
        row_facts(other, present[-1], corpus.tests()) if other.runs else None
    )
    content["summaries"] = {run: record_of(run)["summary"] for run in RUNS if run not in missing}
    write_json("recipe.json", content)
    print(f"still missing: {', '.join(missing) or 'nothing'}")
    if README.is_file():
        text = readme_with(README.read_text(encoding="utf-8"), readme_table(content))
        at.write_atomically(README, text.encode())


def readme_table(content: dict) -> str:
    """The rows of recipe.json in Markdown: a row for each step, BLEU on each test split."""
    splits = list(content["rows"][0]["splits"])
    columns = ["step", "parameters", *(f"BLEU {s}" for s in splits), "seeds", "minutes of training"]
    lines = [columns, ["---"] * len(columns)]
    for row in filter(None, [*content["rows"], content["other_direction"]]):
        scores = [row["splits"][split]["bleu"] for split in splits]
        told = [at.with_range(each) for each in (*scores, row["minutes"])]
        parameters = f"{row['parameters'] / 1e6:.1f} M"
        lines.append([row["step"], parameters, *told[:-1], str(len(row["seeds"])), told[-1]])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def readme_with(text: str, rows: str, what: str = "results", file: str = "recipe.json") -> str:
    """README with these rows between its two marks; ValueError where the marks are missing."""
    begin, end = f"<!-- {what}: docs/results/{file} -->\n", f"<!-- end of {what} -->"
    at.require(
        begin in text and end in text, f"{README} has no table between {begin!r} and {end!r}"
    )
    before, rest = text.split(begin)
    return before + begin + rows + end + rest.split(end)[1]


# The model to take away -------------------------------------------------------------------------


def megabytes(tensors: dict[str, torch.Tensor]) -> float:
    return round(sum(value.nbytes for value in tensors.values()) / 1e6, 2)


def pretrained(options: argparse.Namespace) -> None:
    """Write the folder pretrained/ from the full recipe, and measure what int8 costs."""
    row, run = ROWS[-1], SHIPPED.runs[0]
    kept = read_json(at.PRETRAINED / "config.json").get("sha256", "nothing there")
    if is_gone(run) and read_json(RESULTS / "pretrained.json").get("sha256") == kept:
        print(f"{at.PRETRAINED} holds the model of pretrained.json")
        return
    whole = translator_of(run, row.averaged)
    at.save_pretrained(whole, at.PRETRAINED)
    rounded = at.load_pretrained(at.PRETRAINED, torch.device("cpu"))
    tests = at.find_corpus(CORPUS, whole.config.languages).tests()
    formats = {"fp32": {"MB": megabytes(dict(whole.model.named_parameters()))}}
    formats["int8"] = {"MB": megabytes(at.pack(whole.model))}
    for name, translator, scored in (("fp32", whole, row), ("int8", rounded, SHIPPED)):
        bleu = validation_bleu(translator, row.beam, row.alpha)
        formats[name]["val"] = {"bleu": bleu, **likelihood(translator, "val")}
        for split in tests:
            formats[name][split] = scored_as_it_is(scored, run, split, translator)
    content = {"run": run, "corpus": whole.corpus, **SHIPPED.use()}
    content["sha256"] = read_json(at.PRETRAINED / "config.json")["sha256"]
    content["signature"] = formats["int8"][tests[0]]["signatures"]["bleu"]
    content["parameters"] = at.count_parameters(whole.model)
    content |= {"training": record_of(run)["summary"], "formats": formats}
    card = model_card(write_json("pretrained.json", content))
    at.write_atomically(at.PRETRAINED / "README.md", card.encode())


def model_card(kept: dict) -> str:
    """The text of pretrained/README.md from what `pretrained` has written."""
    rows = ["| format | split | BLEU | perplexity |", "| --- | --- | --- | --- |"]
    for name, found in kept["formats"].items():
        scores = {split: each for split, each in found.items() if split != "MB"}
        rows += [
            f"| {name} | {split} | {each['bleu']:.1f} | {each['perplexity']:.2f} |"
            for split, each in scores.items()
        ]
    facts = kept["training"]["settings"] | kept["training"] | kept
    facts |= {"made": kept["made"]["date"], "megabytes": kept["formats"]["int8"]["MB"]}
    return CARD.read_text(encoding="utf-8").format(**facts, scores="\n".join(rows))


def scored_as_it_is(row: Row, run: str, split: str, translator: at.Translator) -> dict:
    """The scores of these very weights on a test split, scored now if they never were."""
    entry = scoring_of(row, run, split) or score_once(row, run, split)
    same = entry["fingerprint"] == fingerprint(translator.model)
    told = f"row {row.name} was scored on {split} with other weights"
    at.require(same, f"{told}: `score --only {row.name} --again` scores these, on record")
    return {name: entry[name] for name in ("bleu", "chrf", "perplexity", "signatures")}


# The speedrun -----------------------------------------------------------------------------------


def wait_for_quiet(busy_ok: bool, seconds: float = 240) -> float:
    """The load average, once it is low. A busy machine is an error, with `busy_ok` a warning."""
    deadline = time.monotonic() + (0 if busy_ok else seconds)
    while (load := os.getloadavg()[0]) > QUIET and time.monotonic() < deadline:
        time.sleep(5)  # the average still remembers what ended a minute ago
    if load > QUIET:
        message = f"the machine is busy: its load average is {load:.1f}, more than {QUIET}"
        at.require(busy_ok, f"{message}; stop what runs, or say --busy-ok, which is put on record")
        print(f"warning: {message}", file=sys.stderr)
    return round(load, 2)


def timed_run(config: at.Config, folder: Path, busy_ok: bool) -> dict:
    """Train in an empty folder until UNTIL, with a clock around the whole process."""
    at.require(not folder.exists(), f"{folder} exists, and a speedrun begins empty: move it away")
    at.find_corpus(CORPUS, config.languages)  # a download does not count
    record = {"seed": config.seed, "load_before": wait_for_quiet(busy_ok), "busy_ok": busy_ok}
    begin = time.monotonic()
    summary = launch(config, "speedrun", folder, 2, "--until", str(UNTIL))
    record["minutes"] = round((time.monotonic() - begin) / 60, 2)
    record |= {"bleu": summary["validation_bleu"], "reached": summary["validation_bleu"] >= UNTIL}
    record["bleu_again"] = validation_bleu(at.load_trained_model(folder, torch.device("cpu")), 1)
    record["summary"] = summary
    at.write_atomically(folder / "speedrun.json", json.dumps(record).encode())
    return record


def speedrun(options: argparse.Namespace) -> None:
    """Time each seed that has not been timed, and write the mean, if all have reached the BLEU."""
    records = []
    for seed in SEEDS:
        folder = at.runs_folder() / f"speedrun-{seed}"
        config = dataclasses.replace(at.PRESETS["speedrun"], corpus=CORPUS, seed=seed)
        kept = read_json(folder / "speedrun.json") if is_finished(folder, config) else {}
        records.append(kept or timed_run(config, folder, options.busy_ok))
    there = all(record["reached"] for record in records)
    minutes = spread([record["minutes"] for record in records]) if there else None
    content = {"until": UNTIL, "split": "val", "decoding": "greedy", "minutes": minutes}
    write_json("speedrun.json", content | {"seeds": records})


# The command line -------------------------------------------------------------------------------

COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "trials": run_trials,
    "train": train,
    "validate": validate,
    "score": score,
    "table": table,
    "pretrained": pretrained,
    "speedrun": speedrun,
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command and its options."""
    parser = argparse.ArgumentParser(prog="results.py", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    part = {name: commands.add_parser(name, help=f.__doc__) for name, f in COMMANDS.items()}
    for name, kind in (("trials", "TRIAL"), ("train", "RUN"), ("score", "ROW")):
        part[name].add_argument("--only", nargs="+", default=[], metavar=kind)
    text = "train nothing, collect the runs in these folders"
    folders = {"dest": "folders", "nargs": "+", "type": Path, "default": [], "metavar": "FOLDER"}
    part["trials"].add_argument("--from", help=text, **folders)
    part["score"].add_argument("--again", action="store_true", help="once more, on record")
    text = "time it on a busy machine, on record"
    part["speedrun"].add_argument("--busy-ok", action="store_true", help=text)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = parse(arguments)
    try:
        at.require(at.SCRIPT.is_file(), f"run this in the folder where {at.SCRIPT} lies")
        COMMANDS[options.command](options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
