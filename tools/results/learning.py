"""Watch models learn: at some moments, what they write and where they look.

The plan names the run that is watched. What it has seen lies beside the run until that is finished,
and goes on record as learning.json. The copy task, with parts switched off, goes on record as
switches.json.
"""

import json
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

import the_annotated_transformer as at
from the_annotated_transformer import Batch
from tools import records
from tools.results.faults import FAULTS, SOUND, Fault, planted
from tools.results.plan import SEEDS

MOMENTS = (0, 3, 10, 30, 100, 300)  # updates
EPOCHS = (1, 2, 4, 8, 16, 32)
SENTENCES = (
    "Ein kleines Mädchen hebt einen roten Ball auf.",
    "Ein alter Mann, der eine Zeitung liest, sitzt auf einer Bank.",
    "Drei Jungen klettern auf einen Baum, während ihre Mutter zusieht.",
)


def seen(translator: at.Translator, sentence: str) -> dict:
    """What a model writes, in pieces, and its mean cross-attention in the last layer, (T, S)."""
    batch = at.with_own_translation(translator, sentence)
    weights = at.attention_weights(translator.model, batch)["cross-attention"]
    mean = weights[0, -1].mean(0)  # over heads: (T, S)
    source, target = (vocabulary.words for vocabulary in translator.vocabularies)
    return {
        "read": [source[number] for number in batch.src[0]],
        "written": [target[number] for number in batch.tgt_y[0]],
        "attention": [[round(weight, 2) for weight in row] for row in mean.tolist()],
    }


def look(run: at.Run, notes: Path) -> None:
    """Note what the model does after so many updates."""
    before = json.loads(notes.read_bytes()) if notes.is_file() else {}
    now = {str(run.scheduler.last_epoch): [seen(run.translator, x) for x in SENTENCES]}
    records.write_text(notes, json.dumps(before | now, ensure_ascii=False))


def train_watched(config: at.Config, folder: Path) -> None:
    """Train a run, or go on with it, and look at it; its weights become what they would be."""
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        at.prepare(config, folder)
    run = at.open_run(folder, at.start_worker())
    notes = folder.with_name(f"{folder.name}-learning.json")
    step = run.scheduler.step
    of_epoch = at.updates_per_epoch(run.config, run.train)
    moments = {*MOMENTS, *(epochs * of_epoch for epochs in EPOCHS)}

    def step_and_look() -> None:
        step()
        if run.scheduler.last_epoch in moments:
            look(run, notes)

    if not run.history:
        look(run, notes)
    run.scheduler.step = step_and_look
    at.fit(run)


def put_on_record(folder: Path, made: dict) -> None:
    """Write learning.json from the notes beside a finished run."""
    notes = json.loads(folder.with_name(f"{folder.name}-learning.json").read_bytes())
    moments = [{"updates": int(number), "sentences": found} for number, found in notes.items()]
    records.write("learning", {"run": folder.name, "made": made, "moments": moments})


# The copy task of Part 4 ------------------------------------------------------------------------

SWITCHED = (  # what a model of Part 4 is trained without, as faults.txt names it
    SOUND,
    "no causal mask in training",
    "no positions",
    "no residual connections",
    "no feed-forward network",
)
UPDATES = 600
APART = 30  # updates between two moments
COPIED = 200  # sequences, after each moment


def copies(at: ModuleType, model: nn.Module, test: Batch, one: Tensor) -> dict:
    """How many sequences a model copies; what it makes of one (1, S), and where it looks."""
    read = one.size(1)
    mask = torch.ones(1, 1, read, dtype=torch.bool)
    [[_, *written]] = at.greedy_decode(model, one, mask, read + 2, at.START).tolist()
    weights = model.decoder.layers[-1].src_attn.attn[0].mean(0)  # (T, S), of the last step
    return {
        "copied": at.kinds_of_copies(model, test)["copied"],
        "written": written,
        "attention": [
            " ".join(f"{100 * weight:.0f}" for weight in row) for row in weights.tolist()
        ],
    }


def watched_copies(fault: Fault, seed: int) -> dict:
    """Train a model of Part 4 with a fault, and look at it before and after every few updates."""
    at = planted(fault)
    torch.manual_seed(1000 + seed)
    test = next(at.data_gen(at.COPY_VOCAB, COPIED, 1))
    one = len(at.SPECIALS) + torch.randperm(10).unsqueeze(0)  # (1, S), no token twice
    model = at.new_copy_model(seed)
    moments = [{"updates": 0, "loss": None} | copies(at, model, test, one)]
    for loss in at.train_to_copy(model, at.data_gen, UPDATES // 100, each=APART):
        updates = moments[-1]["updates"] + APART
        moments.append({"updates": updates, "loss": round(loss, 3)} | copies(at, model, test, one))
    return {"without": fault.name, "read": one[0].tolist(), "moments": moments}


@records.once("switches")
def switches() -> dict:
    """The copy task with parts switched off, watched: what the figure of *Break it* replays."""
    faults = {fault.name: fault for fault in (Fault(SOUND), *FAULTS)}
    runs = [watched_copies(faults[name], SEEDS[0]) for name in SWITCHED]
    about = {"made": records.circumstances(), "seed": SEEDS[0], "sequences": COPIED}
    return about | {"runs": runs}
