"""Faults planted in copies of the script: the list is faults.txt, and this measures them.

The record is results/planted.json. A result on record is not made again: remove it first.
"""

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import torch

import the_annotated_transformer as sound
from tools import records
from tools.results.experiments import BUDGET, ids_of_words, means_to_train
from tools.results.plan import SEEDS

SCRIPT = Path(sound.__file__)
SOUND = "nothing"  # the name of a run without a fault
COPYING = {  # tasks of Part 4: sizes of the model, updates, and the name of the run without a fault
    "copy": ({}, 600, SOUND),
    "wide": ({"N": 1, "h": 1, "d_model": 512, "d_ff": 512}, 100, f"{SOUND}, one head of width 512"),
    "deep": ({"N": 12}, 300, f"{SOUND}, twelve layers"),
    "table": ({"vocab": 34, "N": 1}, 600, f"{SOUND}, a table"),
}


@dataclass(frozen=True)
class Fault:
    """`new` replaces `old`; `measured` says what is measured with it."""

    name: str
    measured: str = ""  # a task of COPYING, "demonstration" or "shipped"
    old: str = ""
    new: str = ""


def read_faults(text: str) -> tuple[Fault, ...]:
    """The faults of faults.txt; ValueError for a line that belongs to none."""
    entry = r"(.+? \| .+)\n((?:- .*\n)+)((?:\+ .*\n)+)"
    text = re.sub(r"(?m)^(#.*)?\n", "", text)
    if rest := re.sub(entry, "", text):
        raise ValueError(f"faults.txt: {rest.splitlines()[0]!r} belongs to no fault")
    faults = []
    for heading, *changes in re.findall(entry, text):
        old, new = (re.sub("(?m)^..", "", lines).removesuffix("\n") for lines in changes)
        faults.append(Fault(*heading.split(" | "), old, new))
    return tuple(faults)


FAULTS = read_faults(Path(__file__).with_name("faults.txt").read_text("utf-8"))


def faulty_text(fault: Fault) -> str:
    """The script with a fault; ValueError unless its lines are there exactly once."""
    text = SCRIPT.read_text("utf-8")
    if fault.old and text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: the script has its lines {text.count(fault.old)} times")
    return text.replace(fault.old, fault.new) if fault.old else text


@functools.cache
def compiled(cell: str) -> CodeType:
    """The code of a cell; copies of the script differ in one cell only."""
    return compile(cell, str(SCRIPT), "exec")


def planted(fault: Fault) -> ModuleType:
    """The script as a module, with a fault."""
    module = ModuleType("planted")
    module.__file__ = str(SCRIPT)
    sys.modules["planted"] = module  # dataclasses look for it there
    for cell in re.split(r"(?m)^(?=# %%)", faulty_text(fault)):
        exec(compiled(cell), vars(module))
    return module


def check_kind(kind: str, made: dict) -> dict:
    """The circumstances; ValueError if they do not compare with those of the rest of a kind."""
    if stamps := records.read("planted").get("made", {}).get(kind):
        records.check_comparable({f"{kind} before": stamps[0], "now": made})
    return made


def keep(kind: str, fault: Fault, found: list, made: dict) -> None:
    """Record what was measured."""
    record = records.read("planted")
    stamps = record.setdefault("made", {}).setdefault(kind, [])
    if made not in stamps:
        stamps.append(made)
    record.setdefault(kind, {})[fault.name] = found
    records.write("planted", record)
    print(fault.name, found[-1], flush=True)


# The tasks of Part 4 ----------------------------------------------------------------------------


def copy_training(fault: Fault, seed: int) -> dict:
    """Train with a fault: losses, means of ten updates, and how many of 200 are right."""
    at = planted(fault)
    sizes, updates, _ = COPYING[fault.measured]
    make_batches = at.table_gen if fault.measured == "table" else at.data_gen
    model = at.new_copy_model(seed, **sizes)
    losses = at.train_to_copy(model, make_batches, updates // 100, each=10)
    curve = " ".join(f"{loss:.3f}" for loss in losses)
    torch.manual_seed(1000 + seed)
    test = next(make_batches(model.generator.proj.out_features, 200, 1))
    wanted = test.tgt_y[:, :-1] if fault.measured == "table" else test.src
    return {"seed": seed, "losses": curve} | at.kinds_of_copies(model, test, wanted)


def copying() -> None:
    """Every fault of the tasks of Part 4, three seeds each; each run is kept at once."""
    without = (Fault(name, measured=task) for task, (_, _, name) in COPYING.items())
    for fault in (*without, *FAULTS):
        if fault.measured in COPYING:
            runs = records.read("planted").get("copying", {}).get(fault.name, [])
            for seed in SEEDS[len(runs) :]:
                made = check_kind("copying", records.circumstances())
                runs.append(copy_training(fault, seed))
                keep("copying", fault, runs, made)


# Data, decoding and scoring ---------------------------------------------------------------------


def bleu_of_demonstration(fault: Fault, seed: int) -> float:
    """BLEU (validation, greedy) of the demonstration of Part 6 after two epochs with a fault."""
    at = planted(fault)
    corpus = at.find_corpus("multi30k")
    words = at.learn_words(corpus)
    pairs = ids_of_words(at, words, "train", 16)
    torch.manual_seed(seed)
    model = at.make_model(*map(len, words), N=1, d_model=128, d_ff=512, h=4, max_len=256)
    means = means_to_train(at, model)
    for epoch in range(2):
        batches = at.create_dataloaders(pairs, [], BUDGET, 1000 * seed + epoch)[0]
        at.run_epoch(batches, model, *means)
    translator = at.Translator("", model.eval(), corpus.name, corpus.languages, words)
    sources, references = zip(*corpus.pairs("val"), strict=True)
    return at.corpus_bleu(at.translate(translator, sources), references)[0]


def bleu_of_shipped(fault: Fault, seed: int) -> float:
    """BLEU (validation, beam of four) of the shipped model with a fault in what uses it."""
    at = planted(fault)
    torch.manual_seed(seed)
    translator = at.load_trained_model("pretrained", torch.device("cpu"))
    sources, references = zip(*at.find_corpus("multi30k").pairs("val"), strict=True)
    return at.corpus_bleu(at.translate(translator, sources, at.beam_search), references)[0]


MEASURES = {
    "demonstration": (bleu_of_demonstration, records.circumstances, SEEDS),
    "shipped": (bleu_of_shipped, records.made_with_shipped, SEEDS[:1]),
}


def translating() -> None:
    """BLEU with every fault of the data, of decoding and of scoring; each is kept at once."""
    for kind, (measure, stamp, seeds) in MEASURES.items():
        for fault in (Fault(SOUND, measured=kind), *FAULTS):
            if fault.measured == kind and fault.name not in records.read("planted").get(kind, {}):
                made = check_kind(kind, stamp())
                keep(kind, fault, [round(measure(fault, seed), 2) for seed in seeds], made)
