"""Is a gain in BLEU more than the luck of the sentences, and of the seeds?

The sentences of a test split are drawn again and again with replacement (Koehn, 2004: a bootstrap).
Each draw gives every seed a BLEU, and two rows a difference of their seeds' means. A gain counts
if few draws turn it round, by the correction of Holm (1979), because many are asked at once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tools.results import plan

at = plan.at
DRAWS = 10_000
SURE = 0.05  # the chance of a single false alarm among all steps and splits, for given trainings


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
    """How much better the mean of the seeds of `after` is, in each draw (DRAWS,)."""
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
    """Twice the share of draws on the other side of zero, by which luck alone is judged."""
    lower = min((drawn <= 0).sum().item(), (drawn >= 0).sum().item())
    return min(1.0, 2 * (lower + 1) / (len(drawn) + 1))


def holm(chances: Sequence[float]) -> list[float]:
    """The same, corrected for asking so many times."""
    corrected = [0.0] * len(chances)
    highest = 0.0
    for rank, number in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        highest = max(highest, (len(chances) - rank) * chances[number])
        corrected[number] = min(1.0, highest)
    return corrected
