"""Make the records of docs/results: train, choose on the validation split, score the tests once.

    python tools/results.py trials      try settings, at a quarter of the updates: trials.json
    python tools/results.py train       train every run of the plan, two ranks each: runs/
    python tools/results.py validate    try beam, penalty, averaging: beam.json, averaging.json
    python tools/results.py score       score each row on each test split, once: scorings.jsonl
    python tools/results.py table       put the rows together, test each step: recipe.json, README
    python tools/results.py pretrained  write pretrained/ and what int8 costs: pretrained.json
    python tools/results.py speedrun    time the way from raw text to a BLEU: speedrun.json
    python tools/results.py showcase    what pretrained/ writes and where it looks: views/

After any of them `python tools/views.py` writes the finished tables and charts. Each command does
only what is missing, so the same command goes on after a stop; what lies in docs/results is never
made again until its file, or its lines in scorings.jsonl, are removed. Weights live in RUNS_DIR
(default: runs) and may be gone once a run is scored. Everything is computed on the CPU.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
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
import int8
import records
from average import average_models

import the_annotated_transformer as at

# The plan ---------------------------------------------------------------------------------------

CARD = Path(__file__).with_name("model_card.md")  # what pretrained/README.md is made from
README, PRETRAINED = at.HERE / "README.md", at.HERE / "pretrained"
CORPUS = "multi30k"
SEEDS = (1, 2, 3)
BEAM, ALPHA, AVERAGED = 4, 0.6, 6  # as in the paper, and how many of the last epochs
CHOSEN_ALPHA = 1.4  # best of ALPHAS on the validation split with a beam of BEAM: beam.json

PIECES = {"share_embeddings": False}
WORDS = {"pieces": 0, "share_embeddings": False}
RUNS: dict[str, dict] = {  # what each changes in the preset `recipe`
    **{f"words-{seed}": WORDS | {"seed": seed} for seed in SEEDS},
    "pieces-1": PIECES,
    **{f"recipe-{seed}": {"seed": seed} for seed in SEEDS},
    "recipe-en-de": {"languages": "en-de"},
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
FULL = tuple(f"recipe-{seed}" for seed in SEEDS)
ROWS = (
    Row("words", "words", tuple(f"words-{seed}" for seed in SEEDS)),
    Row("pieces", "pieces of words", ("pieces-1",)),
    Row("one-matrix", "one matrix instead of three", ("recipe-1",)),
    Row("beam", "beam search", ("recipe-1",), BEAM),
    Row("averaging", "averaging", ("recipe-1",), BEAM, AVERAGED),
    Row("recipe", f"length penalty {CHOSEN_ALPHA}", FULL, *BEST),
)
OTHER = Row("en-de", "the same, English to German", ("recipe-en-de",), *BEST)
SHIPPED = Row("int8", "the model of pretrained/", ("recipe-1",), *BEST, int8=True)

# Trials: one process, one thread, a quarter of the updates, one seed. Each changes the base.
TRIAL_BASE = {
    **{"data": CORPUS, "d_model": 256, "d_ff": 1024, "h": 4, "dropout": 0.2, "factor": 1.0},
    **{"warmup": 400, "batch_tokens": 2560, "epochs": 8, "patience": 99, "keep": 1},
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
UNTIL = 38.0  # BLEU of the speedrun
BUSY = 0.15  # share of the cores that others may use while something is timed

SHOWN = {  # captions of our own: separable verbs, clauses, compounds that the training text lacks
    at.SENTENCE: "A little girl picks up a red ball.",
    "Ein alter Mann, der eine Zeitung liest, sitzt auf einer Bank.": (
        "An old man who is reading a newspaper sits on a bench."
    ),
    "Drei Jungen klettern auf einen Baum, während ihre Mutter zusieht.": (
        "Three boys climb a tree while their mother watches."
    ),
    "Ein Bergsteiger ruht sich auf einem Felsvorsprung aus.": "A climber rests on a rocky ledge.",
    "Ein Eiskunstlaufpaar dreht sich auf dem Eis.": "A pair of figure skaters spins on the ice.",
    "Ein Schornsteinfeger trägt eine Leiter durch die Straße.": (
        "A chimney sweep carries a ladder through the street."
    ),
}

# Small tools ------------------------------------------------------------------------------------


def made() -> dict[str, str]:
    """The circumstances, and a hash of all code that trains, translates and scores."""
    roots = "train_model", "mean_of_states", "translate", "beam_search", "corpus_bleu"
    code = records.code_hash(at.HERE / at.SCRIPT, roots)
    return records.circumstances("torch") | {"code": code}


def write(name: str, content: dict) -> dict:
    """A record of docs/results with its circumstances; what it holds."""
    content = content | {"made": made()}
    records.write(name, content)
    print(f"written: {records.RESULTS / name}.json")
    return content


def on_record(name: str) -> dict:
    """A record of docs/results; empty where there is none."""
    return records.read(name) if (records.RESULTS / f"{name}.json").is_file() else {}


def chosen(named: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names given, or else all that are known; ValueError for a name that is not."""
    if unknown := ", ".join(sorted(set(named) - set(known))):
        raise ValueError(f"nothing is called {unknown}: choose among {', '.join(known)}")
    return list(named or known)


def changes(before: dict, now: dict) -> dict:
    """What has another value now, as {name: [before, now]}."""
    return {name: [before[name], now[name]] for name in now if before[name] != now[name]}


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


def share_in_use(seconds: float = 2.0) -> float:
    """Share of all cores that somebody uses at this moment."""

    def ticks() -> tuple[int, int]:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        numbers = list(map(int, fields))
        return sum(numbers) - numbers[3] - numbers[4], sum(numbers)

    work, total = ticks()
    time.sleep(seconds)
    work_now, total_now = ticks()
    return (work_now - work) / max(1, total_now - total)


def wait_for_quiet(patience: float = 60.0, look: Callable[[], float] = share_in_use) -> None:
    """Return when the machine is quiet; ValueError when it is not after `patience` seconds."""
    deadline = time.monotonic() + patience
    while (share := look()) > BUSY:
        if time.monotonic() >= deadline:
            raise ValueError(f"others use {share:.0%} of the cores, so nothing can be timed")


# Training ---------------------------------------------------------------------------------------


def config_of(run: str) -> at.Config:
    """The settings of a run of the plan."""
    return dataclasses.replace(at.PRESETS["recipe"], data=CORPUS, **RUNS[run])


def options_of(config: at.Config, preset: str) -> list[str]:
    """The options of `train` that turn a preset into `config`."""
    options = []
    for name, (_, value) in changes(vars(at.PRESETS[preset]), vars(config)).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            options += [f"--{option}", str(value)]
    return options


def launch(config: at.Config, preset: str, folder: Path, ranks: int, *more: str) -> dict:
    """Train to the end, in processes of one thread each; its record, which names its code.

    ValueError where it was cut short, or begun with other code than there is now.
    """
    beside, now = folder.with_name(f"{folder.name}.made.json"), made()
    if not folder.exists():
        at.write_atomically(beside, json.dumps(now).encode())
    elif not beside.is_file():
        raise ValueError(f"{folder} was not begun by this command: remove it")
    begun = json.loads(beside.read_bytes())
    if begun["code"] != now["code"]:
        raise ValueError(f"{folder} was begun with other code ({begun['commit']}): remove it")
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--"]
    command = [sys.executable, *(torchrun if ranks > 1 else []), str(at.HERE / at.SCRIPT), "train"]
    command += ["--preset", preset, "--folder", str(folder), *options_of(config, preset), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    previous = signal.signal(signal.SIGINT, lambda *_: None)  # the training hears it and stops
    try:
        status = subprocess.run(command, env=environment).returncode
    finally:
        signal.signal(signal.SIGINT, previous)
    if status != 0 or not is_finished(folder, config):
        raise ValueError(f"{folder} was cut short (status {status}): the same command goes on")
    summary = at.read_summary(folder)
    log = [json.loads(line) for line in at.read_lines(folder / "log.jsonl")]
    how = {"ranks": ranks, "bf16": "bfloat16" in summary["machine"]}
    how |= {"epochs": len(log), "updates": log[-1]["updates"]}
    return {"summary": summary | how | begun, "log": log}


def same_settings(path: Path, settings: dict, config: at.Config) -> None:
    """ValueError where settings differ from those planned, but for what changes no weight."""
    free = {"patience": config.patience, "keep": config.keep}
    if other := changes(settings | free, dataclasses.asdict(config)):
        told = ", ".join(f"{name} {then} and not {now}" for name, (then, now) in other.items())
        raise ValueError(f"{path} was trained with {told}: remove it")


def is_finished(folder: Path, config: at.Config) -> bool:
    """True for a finished run; ValueError where it was trained with other settings."""
    summary = at.read_summary(folder)
    if summary.get("status") != "finished":
        return False
    same_settings(folder, summary["settings"], config)
    return True


def record_of(run: str) -> dict:
    """Summary and log of a finished run, from docs/results; empty where there is none."""
    record = on_record(f"runs/{run}")
    if record:
        path = records.RESULTS / "runs" / f"{run}.json"
        same_settings(path, record["summary"]["settings"], config_of(run))
    return record


def weights_of(run: str) -> Path | None:
    """The folder of a finished run; None, and a word about it, where its weights are not here."""
    folder = at.runs_folder() / run
    if is_finished(folder, config_of(run)):
        return folder
    gone = f"it is on record: remove runs/{run}.json to train it again"
    print(f"no finished run in {folder}; {gone if record_of(run) else 'passed over'}")


def train(only: Sequence[str] = ()) -> None:
    """Every run of the plan that is not on record, one after the other."""
    for run in chosen(only, list(RUNS)):
        if not record_of(run):
            record = launch(config_of(run), "recipe", at.runs_folder() / run, 2)
            records.write(f"runs/{run}", record)


def trials(only: Sequence[str] = ()) -> None:
    """Every trial that is not on record; what it changes, and what it has reached."""
    base = dataclasses.asdict(at.Config(**TRIAL_BASE))
    content = on_record("trials") or {"base": base, "trials": []}
    same_settings(records.RESULTS / "trials.json", content["base"], at.Config(**TRIAL_BASE))
    for name in chosen(only, list(TRIALS)):
        if name not in [trial["name"] for trial in content["trials"]]:
            config = at.Config(**TRIAL_BASE | TRIALS[name])
            record = launch(config, "recipe", at.runs_folder() / "trials" / name, 1)
            trial = {"name": name, "changes": changes(base, record["summary"].pop("settings"))}
            trial |= {"final": record["log"][-1], **record["summary"]}
            content["trials"].append(trial)
            content = write("trials", content)


# Choosing on the validation split ---------------------------------------------------------------


def translator_of(folder: Path, averaged: int) -> at.Translator:
    """A finished run's best epoch, or the mean of its last epochs."""
    folders = sorted(folder.glob("epoch-*"))[-averaged:]
    if averaged and len(folders) < averaged:
        raise ValueError(f"{folder} keeps {len(folders)} epochs, {averaged} are wanted")
    if averaged:
        translator = average_models(folders)
    else:
        translator = at.load_trained_model(folder, torch.device("cpu"))
    at.make_fast(translator.model)
    return translator


def sides(languages: tuple[str, str], split: str) -> tuple[list[str], list[str]]:
    """Sources and references of a split."""
    return tuple(map(list, zip(*at.find_corpus(CORPUS, languages).splits[split], strict=True)))


def decoder(beam: int, alpha: float = ALPHA) -> Callable:
    return functools.partial(at.beam_search, beam=beam, alpha=alpha)


def perplexity(translator: at.Translator, split: str) -> float:
    """Perplexity on the pairs of a split that fit the model."""
    pairs = at.find_corpus(CORPUS, translator.languages).splits[split]
    pairs = at.encode_pairs(pairs, translator.vocabularies, translator.languages)
    pairs = [pair for pair in pairs if at.usable(pair, translator.max_len)]
    pairs.sort(key=lambda pair: len(pair[1]))
    batches = (at.collate(group) for group in at.grouped(pairs, 50))
    return round(at.evaluate_loss(translator.model, batches)["perplexity"], 2)


def validation_bleu(translator: at.Translator, beam: int, alpha: float = ALPHA) -> float:
    """BLEU on the validation split."""
    sources, references = sides(translator.languages, "val")
    bleu, _ = at.corpus_bleu(at.translate(translator, sources, decoder(beam, alpha)), references)
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

    at.translate(translator, sides(translator.languages, "val")[0], both)
    return {"beam": BEAM, "alpha": alpha, **counts}


def averaging_row(folder: Path, averaged: int) -> dict:
    """Validation scores of a mean of the last epochs; 0 stands for the best epoch."""
    translator = translator_of(folder, averaged)
    scores = {
        "bleu": validation_bleu(translator, BEAM),
        "perplexity": perplexity(translator, "val"),
    }
    return {"averaged": averaged, **scores}


def validate(only: Sequence[str] = ()) -> None:
    """Sweep beam, length penalty and averaging with the first seed of the full recipe."""
    run = ROWS[-1].runs[0]
    if (folder := weights_of(run)) is None:
        return
    translator = translator_of(folder, AVERAGED)
    facts = {"run": run, "corpus": translator.corpus, "split": "val", **ROWS[-2].use()}
    facts["fingerprint"] = fingerprint(translator.model)
    if on_record("averaging").get("fingerprint") == facts["fingerprint"]:
        return
    grid = [(beam, alpha) for beam in BEAMS for alpha in ALPHAS if beam > 1 or alpha == 0]
    sweep = [
        {"beam": beam, "alpha": alpha, "bleu": validation_bleu(translator, beam, alpha)}
        for beam, alpha in grid
    ]
    greedy = [against_greedy(translator, alpha) for alpha in (0.0, ALPHA)]
    write("beam", facts | {"sweep": sweep, "against_greedy": greedy})
    sweep = [averaging_row(folder, averaged) for averaged in range(config_of(run).keep + 1)]
    write("averaging", facts | {"sweep": sweep})


# Scoring the test splits ------------------------------------------------------------------------


def scoring_of(row: Row, run: str, split: str) -> dict:
    """The scoring of a row on a split; empty where there is none."""
    log = records.scorings() if (records.RESULTS / "scorings.jsonl").is_file() else []
    key = row.name, run, split
    return next((s for s in log if (s["row"], s["run"], s["split"]) == key), {})


def translations_path(row: Row, run: str, split: str) -> Path:
    return records.RESULTS / "translations" / f"{row.name}.{run}.{split}.txt"


def score_once(row: Row, run: str, split: str, translator: at.Translator) -> dict:
    """The scores of these very weights on a test split, computed only if they never were."""
    weights = fingerprint(translator.model)
    if entry := scoring_of(row, run, split):
        if entry["fingerprint"] != weights:
            raise ValueError(f"row {row.name} was scored on {split} with other weights of {run}")
        return entry
    sources, references = sides(translator.languages, split)
    hypotheses = at.translate(translator, sources, decoder(row.beam, row.alpha))
    text = "".join(f"{line}\n" for line in hypotheses).encode()
    at.write_atomically(translations_path(row, run, split), text)
    bleu, signature = at.corpus_bleu(hypotheses, references)
    entry = {"row": row.name, "run": run, "split": split, "corpus": translator.corpus}
    entry |= {**row.use(), "sentences": len(sources), "bleu": round(bleu, 2)}
    entry |= {"perplexity": perplexity(translator, split), "signatures": {"bleu": signature}}
    entry |= {"fingerprint": weights, "hypotheses": short_hash(text), **made()}
    with open(records.RESULTS / "scorings.jsonl", "a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")
    print(f"{row.name}, {run}, {split}: BLEU {entry['bleu']}", flush=True)
    return entry


def tests_of(run: str) -> list[str]:
    """The test splits that a run is scored on."""
    return at.find_corpus(CORPUS, tuple(config_of(run).languages.split("-"))).tests()


def score(only: Sequence[str] = ()) -> None:
    """Score what has a finished run and no scoring."""
    for row in (*ROWS, OTHER):
        for run in row.runs:
            missing = [split for split in tests_of(run) if not scoring_of(row, run, split)]
            if missing and (folder := weights_of(run)):
                translator = translator_of(folder, row.averaged)
                for split in missing:
                    score_once(row, run, split, translator)


# The table --------------------------------------------------------------------------------------


def translations_of(row: Row, split: str) -> list[str]:
    """The translations of the first seed, as they were scored; ValueError if they are others."""
    path = translations_path(row, row.runs[0], split)
    data = path.read_bytes()
    if short_hash(data) != scoring_of(row, row.runs[0], split)["hypotheses"]:
        raise ValueError(f"{path} does not hold the translations that were scored")
    return data.decode("utf-8").removesuffix("\n").split("\n")


def bootstrap(before: list[str], now: list[str], references: list[str]) -> dict:
    """sacreBLEU's paired bootstrap: what is gained in BLEU, and the p-value of the difference."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    systems = [  # an unknown word is one wrong token, as in `corpus_bleu`
        (name, [text.replace(at.SPECIALS[at.UNKNOWN], at.UNKNOWN_WORD) for text in texts])
        for name, texts in (("before", before), ("now", now))
    ]
    test = PairedTest(systems, {"BLEU": BLEU()}, [references], test_type="bs", n_samples=1000)
    signatures, scores = test()
    gain = scores["BLEU"][1].score - scores["BLEU"][0].score
    p = 1.0 if before == now else scores["BLEU"][1].p_value  # it tells equal systems apart
    return {"bleu": round(gain, 2) + 0.0, "p": round(p, 4), "signature": str(signatures["BLEU"])}


def row_facts(row: Row) -> dict:
    """A row with mean and range over its seeds; ValueError where a run or scoring is missing."""
    summaries, splits = [record_of(run).get("summary") for run in row.runs], {}
    for split in tests_of(row.runs[0]):
        scorings = [scoring_of(row, run, split) for run in row.runs]
        if not all((*summaries, *scorings)):
            raise ValueError(f"row {row.name} is not complete: `train` and `score` come first")
        numbers = {name: spread([s[name] for s in scorings]) for name in ("bleu", "perplexity")}
        splits[split] = numbers | {"signatures": scorings[0]["signatures"]}
    facts = {"row": row.name, "step": row.step, **row.use(), "runs": row.runs}
    facts["seeds"] = [summary["settings"]["seed"] for summary in summaries]
    facts["parameters"] = summaries[0]["parameters"]
    facts["minutes"] = spread([summary["minutes"] for summary in summaries], 1)
    return facts | {"splits": splits}


def table(only: Sequence[str] = ()) -> None:
    """Put the rows together, and test every step between two of them, first seed against first."""
    rows = [row_facts(row) for row in ROWS]
    for facts, before, row in zip(rows[1:], ROWS, ROWS[1:], strict=False):
        for split, scores in facts["splits"].items():
            _, references = sides(at.find_corpus(CORPUS).languages, split)
            pair = [translations_of(each, split) for each in (before, row)]
            scores["step"] = bootstrap(*pair, references)
            print(f"{split}: {row.step} {scores['step']['bleu']:+.2f}, p = {scores['step']['p']}")
    content = write("recipe", {"rows": rows, "other_direction": row_facts(OTHER)})
    text = readme_with(README.read_text(encoding="utf-8"), readme_table(content))
    at.write_atomically(README, text.encode())


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def readme_table(content: dict) -> str:
    """The rows of recipe.json in Markdown: a row for each step, BLEU on each test split."""

    def cell(numbers: dict) -> str:
        return records.with_range((numbers["min"], numbers["max"]), 1, numbers["mean"])

    splits, lines = list(content["rows"][0]["splits"]), []
    for row in (*content["rows"], content["other_direction"]):
        scores = [cell(row["splits"][split]["bleu"]) for split in splits]
        size, minutes = f"{row['parameters'] / 1e6:.1f} M", cell(row["minutes"])
        lines.append([row["step"], size, *scores, str(len(row["seeds"])), minutes])
    columns = ["step", "parameters", *(f"BLEU {s}" for s in splits), "seeds", "minutes of training"]
    return markdown_table(columns, lines)


def readme_with(text: str, rows: str, what: str = "results", file: str = "recipe.json") -> str:
    """README with these rows between its two marks; ValueError where the marks are missing."""
    begin, end = f"<!-- {what}: docs/results/{file} -->\n", f"<!-- end of {what} -->"
    if begin not in text or end not in text:
        raise ValueError(f"{README} has no table between {begin!r} and {end!r}")
    before, rest = text.split(begin)
    return before + begin + rows + end + rest.split(end)[1]


# The model to take away -------------------------------------------------------------------------


def pretrained(only: Sequence[str] = ()) -> None:
    """Write the folder pretrained/ from the full recipe, and measure what int8 costs."""
    row, run = ROWS[-1], SHIPPED.runs[0]
    if (folder := weights_of(run)) is None:
        return
    average = folder.with_name(f"{run}-average")
    whole = translator_of(folder, row.averaged)
    at.save_model(whole, average)
    rounded = int8.round_model(average, PRETRAINED)
    at.make_fast(rounded.model)
    models = {"fp32": (whole, row, average), "int8": (rounded, SHIPPED, PRETRAINED)}
    formats = {}
    for name, (translator, scored, place) in models.items():
        size = round((place / "model.safetensors").stat().st_size / 1e6, 2)
        bleu = validation_bleu(translator, row.beam, row.alpha)
        formats[name] = {"MB": size, "val": {"bleu": bleu}}
        formats[name]["val"]["perplexity"] = perplexity(translator, "val")
        for split in tests_of(run):
            entry = score_once(scored, run, split, translator)
            formats[name][split] = {key: entry[key] for key in ("bleu", "perplexity")}
    content = {"run": run, "corpus": whole.corpus, **SHIPPED.use()}
    content["sha256"] = json.loads((PRETRAINED / "config.json").read_bytes())["sha256"]
    content["signature"] = entry["signatures"]["bleu"]
    content["parameters"] = at.count_parameters(whole.model)
    content |= {"training": record_of(run)["summary"], "formats": formats}
    card = model_card(write("pretrained", content))
    at.write_atomically(PRETRAINED / "README.md", card.encode())


def model_card(content: dict) -> str:
    """The text of pretrained/README.md from what `pretrained` has written."""
    rows = [
        [name, split, f"{scores['bleu']:.1f}", f"{scores['perplexity']:.2f}"]
        for name, splits in content["formats"].items()
        for split, scores in splits.items()
        if split != "MB"
    ]
    scores = markdown_table(["format", "split", "BLEU", "perplexity"], rows).removesuffix("\n")
    facts = content["training"]["settings"] | content["training"] | content
    facts |= {"made": content["made"]["date"], "megabytes": content["formats"]["int8"]["MB"]}
    facts["edition"] = "" if content["training"].get("code") else ", the code of the first edition"
    return CARD.read_text(encoding="utf-8").format(**facts, scores=scores)


# What it writes, and where it looks -------------------------------------------------------------


def showcase(only: Sequence[str] = ()) -> None:
    """The two views of the script's first page: fixed sentences, nothing chosen by a score."""
    for name, view in showcase_views().items():
        records.write(f"views/{name}", view)


def showcase_views() -> dict[str, dict]:
    """Translations of our own captions, and attention while the first of them is translated."""
    translator = at.load_trained_model(PRETRAINED, torch.device("cpu"))
    shipped, here = records.read("pretrained"), made()
    training = "{date}, commit {commit:.7}".format(**shipped["training"])
    model = f"model {translator.name}, {shipped['corpus']}, trained on {training}; beam 4, α = 0.6"
    written = at.translate(translator, list(SHOWN), at.beam_search)
    rows = list(map(list, zip(SHOWN, written, SHOWN.values(), strict=True)))
    columns = ["German", "what the model writes", "what it means"]
    translations = records.finished(
        f"None was in the training; {model}", [here], columns=columns, rows=rows
    )
    frame = at.map_table(at.attention_maps(translator, at.SENTENCE))
    last = frame["layer"].iloc[-1]
    frame = frame.query("attention == 'cross-attention' and layer == @last and head == @at.MEAN")
    text = (
        f"Heat map of attention, the mean of all heads in {last}. Rows are English symbols about to"
        f" be written, columns those of the German sentence: {at.SENTENCE}"
    )
    chart = at.cells_of_maps(at.alt.Chart(frame, description=text), step=32, font=12).to_dict()
    caption = f"Cross-attention of the last layer, mean of its heads; {model}"
    return {
        "translations": translations,
        "first-map": records.finished(caption, [here], chart=chart),
    }


# The speedrun -----------------------------------------------------------------------------------


def speedrun(only: Sequence[str] = ()) -> None:
    """Time each seed that has not been timed: the whole process, in an empty folder."""
    content = on_record("speedrun") or {"until": UNTIL, "seeds": []}
    for seed in SEEDS:
        if seed in [timed["seed"] for timed in content["seeds"]]:
            continue
        folder = at.runs_folder() / f"speedrun-{seed}"
        config = dataclasses.replace(at.PRESETS["speedrun"], data=CORPUS, seed=seed)
        if folder.exists():
            raise ValueError(f"{folder} exists, and a speedrun begins empty: remove it")
        at.find_corpus(CORPUS)  # a download does not count
        wait_for_quiet()
        begin = time.monotonic()
        summary = launch(config, "speedrun", folder, 2, "--until", str(UNTIL))["summary"]
        minutes, bleu = round((time.monotonic() - begin) / 60, 2), summary["validation_bleu"]
        if bleu < UNTIL:
            raise ValueError(f"{folder} ended at {bleu} BLEU, below {UNTIL}")
        content["seeds"].append(
            {"seed": seed, "minutes": minutes, "bleu": bleu, "summary": summary}
        )
        content["minutes"] = spread([timed["minutes"] for timed in content["seeds"]])
        content = write("speedrun", content)


# The command line -------------------------------------------------------------------------------

COMMANDS: dict[str, Callable] = {
    each.__name__: each
    for each in (trials, train, validate, score, table, pretrained, speedrun, showcase)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="results.py", description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--only", nargs="+", default=[], help="some runs or trials", metavar="NAME")
    options = parser.parse_args(arguments)
    if options.only and options.command not in ("train", "trials"):
        parser.error("--only goes with train and trials")
    try:
        COMMANDS[options.command](options.only)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
