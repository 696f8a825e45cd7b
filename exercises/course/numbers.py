"""Numbers of the guide and the exam: each stands in front of the expression that gives it.

    python -m exercises.course.numbers fill

writes them anew in README.md and EXAM.md, in front of each `<!-- = expression -->`, with as many
decimals as stand there. The guide's need some minutes, because they come from the masters.
"""

import functools
import math
import re
import sys
from collections import Counter
from itertools import pairwise

import jupytext
import torch

from exercises.course.sheets import HERE, SHEETS
from tools.records import command_line, write_text

NUMBER = re.compile(r"(−?(?:\d[\d,]*)?\d(?:\.\d+)?)(?=[^\d|<]{0,3}<!-- = (.*?) -->)")


def formatted(value: float, like: str) -> str:
    """A number with the decimals of the one that stands there."""
    decimals = len(like.partition(".")[2])
    return f"{value:,.{decimals}f}".replace("-", "−")


def filled(text: str) -> str:
    """A text with its numbers computed anew."""
    return NUMBER.sub(lambda match: formatted(eval(match[2], globals()), match[1]), text)


def fill() -> None:
    """Write the numbers in README.md and EXAM.md."""
    for name in ("EXAM.md", "README.md"):
        write_text(HERE / name, filled((HERE / name).read_text("utf-8")))


def text_of(sheet: int) -> str:
    """The text of a master, by the number of its sheet."""
    return (HERE / "sheets" / f"{SHEETS[sheet - 1]}.py").read_text("utf-8")


def minutes(sheet: int, *tasks: int) -> int:
    """How many minutes tasks take, by their headings."""
    found = re.findall(r"(?m)^# ## Task (\d+)\..* (\d+) minutes,", text_of(sheet))
    return sum(int(time) for task, time in found if int(task) in tasks)


@functools.cache
def master(sheet: int) -> dict:
    """What a master defines; its tests and the hunt are left out."""
    names = {}
    for cell in jupytext.reads(text_of(sheet), "py:percent").cells:
        tested = cell.metadata.get("nbgrader", {}).get("grade")
        if cell.cell_type == "code" and not tested and "hunt" not in cell.source:
            exec(cell.source, names)
    return names


@functools.cache
def half_factor(keys: int, width: int, of_entropies: bool = False) -> float:
    """Sheet 1, task 7: the factor with which half of the keys are used."""
    torch.manual_seed(1)
    lengths = torch.randn(8000, width).norm(dim=1, keepdim=True)
    scores = lengths * torch.randn(8000, keys) / math.sqrt(width)

    def mean_of_keys(factor: float) -> float:
        entropies = torch.special.entr((factor * scores).softmax(-1)).sum(-1)
        return math.exp(entropies.mean()) if of_entropies else entropies.exp().mean().item()

    low, high = 0.5, 2.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of_keys(middle) > keys / 2 else (low, middle)
    return low


@functools.cache
def alike(kept: str, N: int = 2, norm_first: bool = True) -> float:
    """Sheet 2, task 7: the likeness of positions, by what keeps its residual connection."""
    return master(2)["measure"](N=N, norm_first=norm_first)[kept]


@functools.cache
def four_models() -> list[int]:
    """Sheet 3, task 7: copies without a mistake."""
    return list(master(3)["four_models"]().values())


@functools.cache
def costs(number: int) -> tuple:
    """Sheet 4, task 7: the pair of heads, what each costs, what both cost together."""
    master(4)["number"] = number
    return master(4)["measure"]()


def share_of_pair() -> int:
    """How many of twenty student numbers find the same pair as number 1234."""
    return sum(costs(number)[0] == costs(1234)[0] for number in range(100, 2100, 100))


@functools.cache
def perplexities() -> tuple[float, float, float]:
    """Sheet 5, task 8: of the bigram model, of the language model, of the rules."""
    return master(5)["measure"]()


def way_to_the_rules() -> float:
    """How much of the way from the bigram model to the rules the language model has gone."""
    bigrams, model, rules = map(math.log, perplexities())
    return (bigrams - model) / (bigrams - rules)


@functools.cache
def bigram_losses(every: int = 1) -> Counter:
    """The bigram model's loss on the validation captions, by the word before."""
    names = master(5)
    train, val, V = names["caption_ids"]()
    log_probs = names["bigrams"]([english for _, english in train[::every]], V, k=0.01)
    words = names["learn_words"](names["read_builtin"]())[1]
    losses = Counter()
    for _, ids in val:
        for this, following in pairwise(ids):
            losses[words.decode([this])] -= log_probs[this, following].item()
    return losses


def loss_after(word: str) -> float:
    """The share of this loss after a word."""
    return bigram_losses()[word] / bigram_losses().total()


def with_a_quarter() -> float:
    """By what share the perplexity grows with a quarter of the captions."""
    _, val, _ = master(5)["caption_ids"]()
    tokens = sum(len(ids) - 1 for _, ids in val)
    more = bigram_losses(4).total() - bigram_losses().total()
    return math.exp(more / tokens) - 1


def without_training_captions() -> float:
    """The perplexity of a model that also knows which captions are left for validation."""
    captions = 2 * 8 * 6 * 6 * 5 + 8 * 6 * 6
    left = captions - len(master(5)["read_builtin"]().pairs("train"))
    return perplexities()[2] ** (math.log(left) / math.log(captions))


main = command_line(fill=fill)

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:] or None))
