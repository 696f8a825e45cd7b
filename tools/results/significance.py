"""Is a gain in BLEU significant?

A paired bootstrap (Koehn, 2004): the sentences of a test split are sampled with replacement, many
times. In each sample every seed has a BLEU, and two rows differ by the means of their seeds. Holm's
correction (1979) allows for testing many gains at once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

import the_annotated_transformer as at

DRAWS = 10_000
SURE = 0.05  # the level of significance, of all steps and splits together


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


def differences(before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
    """How much better the mean of the seeds of `after` is, in each sample (DRAWS,)."""
    number = len(before[0])
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(number, (DRAWS, number), generator=generator)
    times = torch.zeros(DRAWS, number, dtype=torch.float64)
    times.scatter_add_(1, drawn, torch.ones_like(times))
    means = [
        torch.stack([bleu(times @ counts) for counts in seeds]).mean(dim=0)
        for seeds in (before, after)
    ]
    return means[1] - means[0]


def chance(drawn: Tensor) -> float:
    """The two-sided p-value: twice the share of samples on the other side of zero."""
    lower = min((drawn <= 0).sum().item(), (drawn >= 0).sum().item())
    return min(1.0, 2 * (lower + 1) / (len(drawn) + 1))


def holm(chances: Sequence[float]) -> list[float]:
    """The p-values with Holm's correction."""
    corrected = [0.0] * len(chances)
    highest = 0.0
    for rank, number in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        highest = max(highest, (len(chances) - rank) * chances[number])
        corrected[number] = min(1.0, highest)
    return corrected
