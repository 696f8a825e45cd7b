"""Watch a run learn: at some moments, what it writes and where it looks.

The plan names the run that is watched. What it has seen lies beside the run until that is finished,
and goes on record as learning.json.
"""

import json
from pathlib import Path

import the_annotated_transformer as at
from tools import records

MOMENTS = (0, 3, 10, 30, 100, 300, 1000)  # updates; and the end of each epoch
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

    def step_and_look() -> None:
        step()
        if run.scheduler.last_epoch in MOMENTS or run.scheduler.last_epoch % of_epoch == 0:
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
