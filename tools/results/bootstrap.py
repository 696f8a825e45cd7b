"""How sure is a gain in BLEU?

A bootstrap (Koehn, 2004) over sentences and seeds. In each of many draws the sentences of a test
split are sampled with replacement, and so are the runs of a row, which differ in their seed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

import the_annotated_transformer as at

DRAWS = 10_000


def counts_of(written: Sequence[str], references: Sequence[str]) -> Tensor:
    """What BLEU counts in each sentence (sentences, 10): lengths, matches and all of n words."""
    from sacrebleu.metrics import BLEU

    texts = [text.replace(at.SPECIALS[at.UNKNOWN], at.UNKNOWN_WORD) for text in written]
    counts = BLEU()._extract_corpus_statistics(texts, [list(references)])
    return torch.tensor(counts, dtype=torch.float64)


def bleu(sums: Tensor) -> Tensor:
    """BLEU of summed counts (..., 10), unsmoothed: zero where no run of n words is right."""
    length, reference, *numbers = sums.unbind(-1)
    matches = torch.stack(numbers[:4])
    shares = (matches / torch.stack(numbers[4:])).nan_to_num(0.0)
    brevity = (1 - reference / length).clamp(max=0)
    return 100 * (brevity + shares.log().mean(dim=0)).exp()


def gains(before: Sequence[Tensor], after: Sequence[Tensor], same_runs: bool) -> Tensor:
    """How much higher the mean BLEU of the runs `after` is, in each draw (DRAWS,).

    Both hold the counts of each run. If they decode the same runs, a draw takes the same of both.
    """
    generator = torch.Generator().manual_seed(1)
    sentences = len(before[0])
    drawn = torch.randint(sentences, (DRAWS, sentences), generator=generator)
    times = torch.zeros(DRAWS, sentences, dtype=torch.float64)
    times.scatter_add_(1, drawn, torch.ones_like(times))
    runs = torch.randint(len(before), (DRAWS, len(before)), generator=generator)
    others = torch.randint(len(after), (DRAWS, len(after)), generator=generator)

    def mean_bleu(counts: Sequence[Tensor], runs: Tensor) -> Tensor:
        of_runs = torch.stack([bleu(times @ each) for each in counts], dim=1)  # (DRAWS, runs)
        return of_runs.gather(1, runs).mean(dim=1)

    return mean_bleu(after, runs if same_runs else others) - mean_bleu(before, runs)
