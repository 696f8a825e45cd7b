"""Compare the page's translator with PyTorch on Multi30k: `make agree` writes translator.json.

Compared are the subwords of both test sets, greedy translations and those of a beam of four of the
first set, and the log-probabilities along fifty translations. Measured are the seconds for a
sentence of 15 words, at the full speed of this machine and at a quarter of it. Needs Multi30k,
Chromium and a quiet machine.
"""

import functools
import statistics
from collections.abc import Sequence

import torch
from playwright.sync_api import Page, sync_playwright

from tools import models, records
from tools.page import build as build_page

at = models.at
BEAM = 4
ALPHA = 0.6
FIFTEEN = "Eine junge Frau in einem roten Kleid liest auf einer Bank im Park ein Buch."
OPEN = "const { finish, Search } = stills; const search = finish(Search.opening(model, text));"
SEARCH = f"finish(search.translating({BEAM}, {ALPHA}))"
GREEDY = f"(text) => {{{OPEN} return model.decode([...search.greedy()].at(-1).written); }}"
BEAMS = f"(text) => {{{OPEN} return model.decode({SEARCH}.written); }}"
LOG_PROBS = f"""(text) => {{ {OPEN}
    return [...search.greedy()].map((path) => [path.written, [...path.from.next.logProbs]]);
}}"""
SECONDS = f"""(text) => {{
    const begin = performance.now();
    {OPEN}
    const read = performance.now();
    for (const path of search.greedy());
    const greedy = performance.now();
    {SEARCH};
    return {{ read: read - begin, greedy: greedy - read, beam: performance.now() - greedy }};
}}"""


def widest_difference(translator: at.Translator, tab: Page, text: str) -> float:
    """The largest difference between log-probabilities along the page's greedy translation."""
    written, log_probs = zip(*tab.evaluate(LOG_PROBS, text), strict=True)
    [(_, ids)] = at.source_parts(translator, [text], split=False)
    source = torch.tensor([ids])
    batch = at.Batch(source, torch.tensor([[at.START, *written[-1]]]))
    with torch.no_grad():
        states = translator.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        theirs = translator.model.generator(states)[0]
    return (torch.tensor(log_probs) - theirs).abs().max().item()


def seconds(tab: Page, slower: int, rounds: int = 7) -> dict[str, list[float]]:
    """Median and range of what reading, greedy decoding and a beam of four take."""
    devtools = tab.context.new_cdp_session(tab)
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": slower})
    times = [tab.evaluate(SECONDS, FIFTEEN) for _ in range(rounds + 1)][1:]
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    columns = {what: [each[what] / 1000 for each in times] for what in times[0]}
    return {
        what: [round(f(column), 3) for f in (statistics.median, min, max)]
        for what, column in columns.items()
    }


def equal(ours: Sequence, theirs: Sequence) -> dict[str, int]:
    """How many there are, and how many are equal."""
    same = sum(one == other for one, other in zip(ours, theirs, strict=True))
    return {"sentences": len(theirs), "equal": same}


def main() -> None:
    corpus = at.find_corpus("multi30k")
    translator = at.load_trained_model("pretrained", torch.device("cpu"))
    texts = [german for split in corpus.tests() for german, _ in corpus.pairs(split)]
    first = texts[: len(corpus.pairs(corpus.tests()[0]))]
    greedy = functools.partial(at.beam_search, beam=1)
    beam = functools.partial(at.beam_search, beam=BEAM, alpha=ALPHA)
    by_greedy = at.translate(translator, first, greedy, split=False)
    by_beam = at.translate(translator, first, beam, split=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=records.CHROMIUM, args=["--no-sandbox"]
        )
        tab = browser.new_page()
        tab.add_script_tag(content=build_page.engine())
        records.wait_for_quiet()
        times = {"full speed": seconds(tab, 1), "a quarter": seconds(tab, 4)}
        ours = tab.evaluate("texts => texts.map((text) => model.encode(text))", texts)
        theirs = [[*ids, at.END] for ids in translator.vocabularies[0].encode(texts)]
        greedy_of_page = [tab.evaluate(GREEDY, text) for text in first]
        beam_of_page = [tab.evaluate(BEAMS, text) for text in first]
        widest = max(widest_difference(translator, tab, text) for text in first[:50])
    record = records.circumstances() | {
        "corpus": corpus.name,
        "model": translator.name,
        "subwords, both test sets": equal(ours, theirs),
        "greedy, first test set": equal(greedy_of_page, by_greedy),
        f"beam of {BEAM}, first test set": equal(beam_of_page, by_beam),
        "largest difference of log-probabilities, fifty sentences": widest,
        "sentence of 15 words": FIFTEEN,
        "seconds: median, least, most of seven": times,
    }
    records.write("translator", record)


if __name__ == "__main__":
    main()
