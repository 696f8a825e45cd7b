# %% [markdown]
# # Sheet 5. The language model
#
# 20 points, about three and a quarter hours. Read [Part 10](../index.html#today) first. Tasks 3 and
# 8 also need [Evaluation](../index.html#evaluation) in Part 3, and task 7 needs [Decoding with a
# cache](../index.html#cached-decoding) in Part 7.
#
# Write your answers into the cells with a `raise` or a `None`. The cell below a task checks a
# little of your answer; hidden tests, with other numbers and sizes, give the points. You may add
# cells and functions. Hand in the notebook, under its name.

# %%
import contextlib
import itertools
import math
import random
import sys

import torch
from torch import Tensor, nn

sys.path[:0] = [".", "../.."]  # the script lies beside this sheet, or two folders up
from the_annotated_transformer import (
    PAD,
    GroupedAttention,
    LabelSmoothing,
    SimpleLossCompute,
    create_dataloaders,
    encode_pairs,
    evaluate_loss,
    learn_words,
    make_language_model,
    make_optimizer,
    read_builtin,
    rotate,
    run_epoch,
    subsequent_mask,
)


@contextlib.contextmanager
def when_answered():
    """Around a check: says so where a task is not answered yet; a wrong answer raises an error."""
    try:
        yield
    except NotImplementedError as missing:
        print("not answered yet.", missing)


# %% [markdown]
# Some numbers of this sheet follow from your student number. Write its last four digits here, without
# leading zeros.

# %% deletable=false nbgrader={"cell_type": "code", "checksum": "d850ebbbde6f2a9b2013fb01eeb587ee", "grade": false, "grade_id": "number", "locked": false, "schema_version": 3, "solution": true, "task": false}
number = None
# Write your answer here.

# %% [markdown]
# ## Task 1. Three settings at once (by hand, easy, 15 minutes, 2 points)
#
# A model gives the next token these probabilities, where *n* is the last digit of your number:
#
# | `a` | `b` | `c` | `d` | `e` |
# | ---: | ---: | ---: | ---: | ---: |
# | 0.40 + *n* / 100 | 0.30 − *n* / 100 | 0.15 | 0.10 | 0.05 |
#
# The order in which `draw` of Part 10 applies its settings matters: look it up. Then find on
# paper the probability of `a`:
#
# 1. with `top_p=0.8`;
# 2. with `temperature=0.5` and `top_p=0.8`;
# 3. with `top_k=3` and `top_p=0.8`;
# 4. with the settings of 2, if `top_p` came first and the temperature second.

# %% deletable=false nbgrader={"cell_type": "code", "checksum": "a0616a41ead90eafa5d533652a9c9092", "grade": false, "grade_id": "sampling_by_hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
draws_a = None  # four numbers
# Write your answer here.


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "4b6272f31158abe88210ddc7715a3135", "grade": true, "grade_id": "sampling_by_hand-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (number, draws_a):
        raise NotImplementedError
    assert len(draws_a) == 4, "four numbers, one for each question"
    assert all(0.4 <= p < 1 for p in draws_a), "each setting makes the likeliest token likelier"



# %% [markdown]
# ## Task 2. Neither too likely nor too unlikely (code, medium, 25 minutes, 3 points)
#
# People rarely write the most likely word. The *surprise* $-\log p$ of what they write stays near
# its mean, the *entropy* $-\sum_v p_v \log p_v$. So **typical sampling** ([Meister et al.,
# 2022](https://arxiv.org/abs/2202.00666)) sorts tokens by the distance of their surprise from the
# entropy, nearest first. It keeps the first tokens of this list, just enough for a total
# probability of at least `p`. Among these it draws in proportion to their probabilities.
#
# Write it for a batch. Some tokens have a log-probability of −∞: they are never drawn.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "43b9039ee792b4a4276088a426b167f6", "grade": false, "grade_id": "typical", "locked": false, "schema_version": 3, "solution": true, "task": false}
def typical(log_probs: Tensor, p: float) -> Tensor:
    """The probabilities (B, V) with which typical sampling draws; log_probs (B, V)."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "954161056a91eb82516ef1b3eeeaf5df", "grade": true, "grade_id": "typical-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    probs = torch.tensor([[0.9, 0.05, 0.05], [0.5, 0.3, 0.2]])
    found = typical(probs.log(), 0.25)
    assert found.shape == (2, 3), f"the shape should be (2, 3), it is {tuple(found.shape)}"
    assert torch.allclose(found.sum(1), torch.ones(2)), "each row should sum to one"
    # Row 1 has an entropy of 1.03, and the surprises are 0.69, 1.20 and 1.61.
    assert torch.allclose(found[1], torch.tensor([0.0, 1.0, 0.0])), "the second token is nearest"
    assert torch.allclose(typical(probs.log(), 1.0), probs), "with p = 1 nothing is cut"



# %% [markdown]
# ## Task 3. Two vocabularies, one measure (derivation, easy, 10 minutes, 2 points)
#
# Is a perplexity of 12 per subword better than one of 30 per word? To compare the two, look at the
# probability of the whole text. A corpus of `sentences` sentences has `subwords` subwords, or
# `words` words; both numbers are without end tokens. Both models also predict an end token after
# every sentence, and their perplexities include these tokens.
#
# A subword model has the given `perplexity`. A word model gives the corpus the same probability.
# What is its perplexity?


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "2dc8c90fd0fe155ace37fe28c599a1ef", "grade": false, "grade_id": "per_word", "locked": false, "schema_version": 3, "solution": true, "task": false}
def per_word(perplexity: float, subwords: int, words: int, sentences: int) -> float:
    """The perplexity of a word model that gives the corpus the same probability."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "b7965d082c473fb86b640358127aea1d", "grade": true, "grade_id": "per_word-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert abs(per_word(7.0, 50, 50, 9) - 7) < 1e-6, "if every word is one subword, nothing changes"
    assert per_word(7.0, 80, 50, 9) > 7, (
        "a word of several subwords is harder to guess than one of them"
    )

# %% [markdown]
# ## Task 4. Why rotary positions are relative (derivation, medium, 25 minutes, 2 points)
#
# At place $m$, `rotate` of Part 10 rotates the pair of features $2i$ and $2i + 1$ by the angle
# $m\,\omega_i$. Rotate a query $q$ at place $m$ and a key $k$ at place $n$. Show on paper that
# their inner product is
#
# $$\sum_i A_i \cos\big((m - n)\,\omega_i\big) + B_i \sin\big((m - n)\,\omega_i\big),$$
#
# where $A_i$ and $B_i$ depend on $q$ and $k$ only. So only the difference of the places matters.
# Return $A$ and $B$.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "b9c075960a4d8c6227f8a783f0407dc5", "grade": false, "grade_id": "rotary_terms", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rotary_terms(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """A and B (d_k / 2,) for a query and a key (d_k,), neither of them rotated."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "adfc99359134a8d1f5953dbcf7e81221", "grade": true, "grade_id": "rotary_terms-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    q, k = torch.randn(2, 6)
    A, B = rotary_terms(q, k)
    assert A.shape == (3,) and B.shape == (3,), "one number for each pair of features"
    assert torch.allclose(A.sum(), q @ k, atol=1e-5), (
        "at equal places nothing is rotated: A should add up to q · k"
    )

# %% [markdown]
# ## Task 5. A mask with a prefix (code, easy, 15 minutes, 2 points)
#
# A language model reads a whole question before it writes the answer. So the tokens of the
# question, the *prefix*, may see one another in both directions. The answer is causal: each of its
# tokens sees the question, the answer so far, and itself. Write a mask for this.
#
# Padding is on the *left*, so that all rows of a batch end together: a row has `padding` padded
# positions, then `prefix` tokens of the question, then the answer. No token may see padding. Padded
# positions may see anything.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "4cdbeb976a5a38f78cb6f5b4b14d324b", "grade": false, "grade_id": "prefix_mask", "locked": false, "schema_version": 3, "solution": true, "task": false}
def prefix_mask(padding: Tensor, prefix: Tensor, T: int) -> Tensor:
    """Boolean (B, T, T) from padding (B,) and prefix (B,), with padding + prefix <= T."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "b1827a04421b8c170411028be2d7defb", "grade": true, "grade_id": "prefix_mask-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    mask = prefix_mask(torch.tensor([0, 1]), torch.tensor([2, 0]), 4)
    assert mask.dtype == torch.bool, "the mask should be boolean"
    assert mask.shape == (2, 4, 4), f"the shape should be (2, 4, 4), it is {tuple(mask.shape)}"
    assert mask[0, 0].tolist() == [True, True, False, False], "row 0, query 0 sees its question"
    assert mask[1, 2].tolist() == [False, True, True, False], "row 1 has no question: it is causal"

# %% [markdown]
# ## Task 6. How long may a conversation be? (derivation, easy, 10 minutes, 2 points)
#
# A server has `memory` bytes. The weights take `weights` bytes. The rest is for the KV caches of
# `conversations` conversations, which are equally long. The model has `layers` layers of width
# `d_model`, each with `heads` heads of queries and `groups` heads of keys and values. A number in
# the cache takes `size` bytes. How many tokens may each conversation have?


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "6847f0681654d9ebbc4ff8e84fa0dc33", "grade": false, "grade_id": "longest_conversation", "locked": false, "schema_version": 3, "solution": true, "task": false}
def longest_conversation(
    memory, weights, conversations, layers, d_model, heads, groups, size
) -> int:
    """Whole tokens of each conversation; 0 if there is no room for one."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "0086d3717adda425c3e61cd5bf47c941", "grade": true, "grade_id": "longest_conversation-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    found = longest_conversation(1000, 200, 5, 1, 8, 2, 1, 2)
    assert isinstance(found, int), "a whole number"
    assert found == 10, (
        "800 bytes for 5 conversations, and 16 for a token: 4 numbers of keys, 4 of values"
    )

# %% [markdown]
# ## Task 7. A window that keeps the beginning (code, hard, 45 minutes, 4 points)
#
# A model with sliding windows forgets the beginning of its text. Many heads attend to the very first
# token all the same, whenever they find nothing better, and suffer when it leaves the window ([Xiao et
# al., 2023](https://arxiv.org/abs/2309.17453)). Write a cache that keeps it: at every step, a query
# attends to the `window` newest positions, its own included, and to the first one. The cache holds no
# more than that:
#
# - `keys` (rows, groups, positions, d_k), with at most `window + 1` positions, in their order;
# - `values` (rows, groups, positions, d_k).
#
# Like the `BeamAttention` of Part 7, `forward` takes the states (B, beam, D) of one new position of
# each hypothesis, and returns the attention's output (B, beam, D). `keep` gets the indices of the rows
# to keep, in their new order. There is no dropout.
#
# Hint: no position may be seen twice, as long as the first one is still in the window.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "5b30adf577b3385092517dc76c95fd4a", "grade": false, "grade_id": "window_cache", "locked": false, "schema_version": 3, "solution": true, "task": false}
class WindowCache(nn.Module):
    """Stands in for a `GroupedAttention` when tokens come one by one."""

    def __init__(self, attn: GroupedAttention, window: int):
        super().__init__()
        self.attn = attn
        self.window = window
        self.keys = None
        self.values = None

    def forward(self, x: Tensor, *_) -> Tensor:
        # Write your answer here.
        raise NotImplementedError

    def keep(self, rows: Tensor) -> None:
        # Write your answer here.
        raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "c633f7e90f6865736e0815001f154541", "grade": true, "grade_id": "window_cache-test", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    attn = GroupedAttention(4, 16, dropout=0.0, groups=2)
    x = torch.randn(3, 5, 16)
    with torch.no_grad():
        cache = WindowCache(attn, window=8)
        steps = torch.cat([cache(x[:, n : n + 1]) for n in range(5)], dim=1)
        plain = attn(x, x, x, subsequent_mask(5))
    assert cache.keys.shape == (3, 2, 5, 4), f"two groups of keys, not {tuple(cache.keys.shape)}"
    assert torch.allclose(steps, plain, atol=1e-5), (
        "a text shorter than the window must be seen whole"
    )

# %% [markdown]
# ## Task 8. What is the network worth? (experiment with a report, medium, 45 minutes, 3 points)
#
# Is a perplexity of 1.8 good? On fifty of the built-in captions, drawn by your number, compare the
# language model with a model that needs no network, and with one that knows all the rules.
#
# A **bigram model** predicts a token from the token before it, by counting: $p(b \mid a)$ is the
# share of $b$ among all tokens that follow an $a$. Every count begins at `k`. Write it. Then find
# three perplexities per token of the validation captions that `caption_ids` returns. The end token counts, the start token
# does not.
#
# - `bigram_perplexity`: of your bigram model, with the counts of the training captions and
#   `k=0.01`.
# - `model_perplexity`: of the language model that `train_a_small_model` trains in half a minute.
# - `rules_perplexity`: of a model that knows which captions there can be, and takes all of them as
#   equally likely. `PHRASES` and `builtin_corpus` in [A corpus](../index.html#corpus) show all
#   captions: count the English ones.
#
# Write your numbers into the task's cell, and the code that measures them into a cell of your own
# above it.


# %%
def caption_ids() -> tuple[list, list, int]:
    """(German, English) ids of training and validation captions; size of the English vocabulary."""
    corpus = read_builtin()
    vocabularies = learn_words(corpus)
    drawn = random.Random(number).sample(corpus.pairs("val"), 50)
    splits = corpus.pairs("train"), drawn
    train, val = (encode_pairs(pairs, vocabularies, corpus.languages) for pairs in splits)
    return train, val, len(vocabularies[1])


def train_a_small_model() -> float:
    """Validation perplexity of a small language model after six epochs."""
    train_ids, val_ids, V = caption_ids()
    torch.manual_seed(0)
    model = make_language_model(V, N=2, d_model=64, d_ff=256, h=4, max_len=64)
    loss_compute = SimpleLossCompute(model.generator, LabelSmoothing(V, PAD))
    optimizer, scheduler = make_optimizer(model, factor=1.0, warmup=200)
    for epoch in range(6):
        train, val = create_dataloaders(train_ids, val_ids, 1024, epoch)
        run_epoch(train, model, loss_compute, optimizer, scheduler)
    return evaluate_loss(model, val)["perplexity"]


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "da20dadfa18548736d110bd6b46f387e", "grade": false, "grade_id": "bigrams", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bigrams(sentences: list[list[int]], V: int, k: float) -> Tensor:
    """log p(next | this), (V, V), a row for each token; sentences have their start and end."""
    # Write your answer here.
    raise NotImplementedError


bigram_perplexity = None
model_perplexity = None
rules_perplexity = None


# Write your answer here.


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "2da311aedf699501456ecc1921a63ed7", "grade": true, "grade_id": "bigrams-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    found = bigrams([[0, 2, 1], [0, 2, 2, 1]], V=3, k=0.5).exp()
    assert torch.allclose(found.sum(1), torch.ones(3)), "each row should sum to one"
    assert abs(found[0, 2] - 2.5 / 3.5) < 1e-4, "2 follows 0 both times: (2 + 0.5) / (2 + 3 · 0.5)"

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "c33cccd932f68504769569bc04839e8f", "grade": true, "grade_id": "bigrams-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (bigram_perplexity, model_perplexity, rules_perplexity):
        raise NotImplementedError
    assert rules_perplexity < bigram_perplexity, "the order is not plausible"
    assert model_perplexity < bigram_perplexity, "the order is not plausible"

# %% [markdown]
# *Your report, 100 to 150 words (1 of the 3 points).* After which tokens is the bigram model much
# worse than the language model, and what would it have to remember there? In nats, how much of the
# way from the bigram model to the rules has the language model gone? Would more captions help the
# bigram model? No caption is in two splits: how could a model that knows this do better than the
# rules?

# %% [markdown] deletable=false nbgrader={"cell_type": "markdown", "checksum": "42158e9cb274ff16da37aca2ecc9a8b1", "grade": true, "grade_id": "bigrams-report", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# *Write your report here.*
