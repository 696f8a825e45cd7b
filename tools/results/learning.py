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


class WatchedRun(at.Run):
    """A run that looks at itself; its weights become what they would be otherwise."""

    def __init__(self, folder: Path, worker: at.Worker, epochs: int | None = None):
        super().__init__(folder, worker, epochs)
        self.notes = folder.with_name(f"{folder.name}-learning.json")
        if self.scheduler.last_epoch == 0:
            self.look(0)

        def look_at_moments(*given) -> None:
            if self.scheduler.last_epoch + 1 in MOMENTS:  # the schedule steps afterwards
                self.look(self.scheduler.last_epoch + 1)

        self.optimizer.register_step_post_hook(look_at_moments)

    def train_epoch(self, epoch: int) -> dict:
        found = super().train_epoch(epoch)
        self.look(self.scheduler.last_epoch)
        return found

    def look(self, updates: int) -> None:
        """Note what the model does after so many updates."""
        if self.worker.rank == 0:
            before = json.loads(self.notes.read_bytes()) if self.notes.is_file() else {}
            now = {str(updates): [seen(self.translator, x) for x in SENTENCES]}
            records.write_text(self.notes, json.dumps(before | now, ensure_ascii=False))


def put_on_record(folder: Path, made: dict) -> None:
    """Write learning.json from the notes beside a finished run."""
    notes = json.loads(folder.with_name(f"{folder.name}-learning.json").read_bytes())
    moments = [{"updates": int(number), "sentences": found} for number, found in notes.items()]
    records.write("learning", {"run": folder.name, "made": made, "moments": moments})
