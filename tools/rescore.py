"""Score the rows of words anew: an unknown word is one wrong token.

A model of words writes `<unk>`, and sacreBLEU's 13a takes that for three tokens. The first edition
scored it so, and punished one unknown word three times. Here it becomes one word that is in no
reference; the translations on record stay as they are. References come from MULTI30K_DIR.
"""

import gzip
import hashlib
import json
import os
import sys
from pathlib import Path

import records

UNKNOWN, ONE_WORD = "<unk>", "Unknownword"  # sacreBLEU cuts the first into three, and not the other
HOW = (
    f"BLEU of the translations on record, after each {UNKNOWN} was replaced by {ONE_WORD}, a word"
    " that no reference contains: one unknown word is one wrong token. `before` is what the first"
    " edition published, with three tokens for each. Steps: paired bootstrap, first seed."
)


def references(split: str) -> list[str]:
    """The English side of a split of Multi30k; exit where it cannot be."""
    path = Path(os.environ.get("MULTI30K_DIR", "."), f"{split}.en.gz")
    if not path.is_file():
        sys.exit(f"{path} is missing: MULTI30K_DIR must name the folder with Multi30k")
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").removesuffix("\n").split("\n")
    if any(ONE_WORD in line for line in lines):
        sys.exit(f"{path} contains {ONE_WORD}, so it cannot stand for an unknown word")
    return lines


def translations(scoring: dict) -> list[str]:
    """The translations that a scoring was made from; exit where they are others."""
    name = "{row}.{run}.{split}.txt".format(**scoring)
    data = (records.RESULTS / "translations" / name).read_bytes()
    if hashlib.sha256(data).hexdigest()[:16] != scoring["hypotheses"]:
        sys.exit(f"translations/{name} is not what was scored")
    return data.decode("utf-8").removesuffix("\n").split("\n")


def score_anew(scoring: dict, targets: list[str]) -> dict:
    """A scoring of words with both ways to count; exit where the old one comes out differently."""
    from sacrebleu.metrics import BLEU

    found = translations(scoring)
    once = [text.replace(UNKNOWN, ONE_WORD) for text in found]
    before, bleu = (round(BLEU().corpus_score(each, [targets]).score, 2) for each in (found, once))
    if before != scoring["bleu"]:
        sys.exit(f"{scoring['run']}, {scoring['split']}: {before}, on record {scoring['bleu']}")
    unknown = sum(text.count(UNKNOWN) for text in found)
    names = {name: scoring[name] for name in ("run", "split")}
    return names | {"bleu": bleu, "before": before, "unknown words": unknown}


def step_anew(words: dict, pieces: dict, targets: list[str]) -> dict:
    """The gain from words to pieces and its p, as sacreBLEU's paired bootstrap has it."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    once = [text.replace(UNKNOWN, ONE_WORD) for text in translations(words)]
    systems = [("words", once), ("pieces", translations(pieces))]
    test = PairedTest(systems, {"BLEU": BLEU()}, [targets], test_type="bs", n_samples=1000)
    signatures, scores = test()
    baseline, system = scores["BLEU"]
    gain, p = round(system.score - baseline.score, 2), round(system.p_value, 4)
    return {"bleu": gain, "p": p, "signature": str(signatures["BLEU"])}


def main() -> None:
    """Write unknown-as-one.json: all seeds of words, and the step from words to pieces."""
    log = records.scorings()
    words = [entry for entry in log if entry["row"] == "words"]
    first = {(e["row"], e["split"]): e for e in log if e["run"] in ("words-1", "pieces-1")}
    targets = {split: references(split) for split in records.TESTS}
    scores = [score_anew(entry, targets[entry["split"]]) for entry in words]
    gains = {
        split: step_anew(first["words", split], first["pieces", split], each)
        for split, each in targets.items()
    }
    made = records.circumstances("sacrebleu")
    content = {"how": HOW, "signature": words[0]["signatures"]["bleu"], "scores": scores}
    records.write("unknown-as-one", content | {"words to pieces": gains, "made": made})
    print(json.dumps([*scores, gains], indent=1))
