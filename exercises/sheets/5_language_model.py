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

# %% nbgrader={"grade": false, "grade_id": "number", "locked": false, "schema_version": 3, "solution": true, "task": false}
number = None
### BEGIN SOLUTION
number = 1234
### END SOLUTION

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

# %% nbgrader={"grade": false, "grade_id": "sampling_by_hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
draws_a = None  # four numbers
### BEGIN SOLUTION
# With n = 4 the first two have 0.44 and 0.26.
# 1. a, b and c have 0.85, and a and b only 0.7.
# 2. The squares of a and b are 88 % of the sum of all squares.
# 3. Among a, b and c, the first two have 0.7 / 0.85 = 0.82, which is enough.
# 4. The nucleus is a, b and c, and then come the squares.
a, b, c = 0.44, 0.26, 0.15
draws_a = [a / 0.85, a**2 / (a**2 + b**2), a / 0.70, a**2 / (a**2 + b**2 + c**2)]
### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "sampling_by_hand-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (number, draws_a):
        raise NotImplementedError
    assert len(draws_a) == 4, "four numbers, one for each question"
    assert all(0.4 <= p < 1 for p in draws_a), "each setting makes the likeliest token likelier"


### BEGIN HIDDEN TESTS
def drawn(probs, p=1.0, temperature=1.0):
    probs = probs ** (1 / temperature)
    probs = probs / probs.sum()
    nucleus = probs.masked_fill(probs.cumsum(0) - probs >= p, 0)
    return nucleus / nucleus.sum()


digit = number % 10 / 100
probs = torch.tensor([0.40 + digit, 0.30 - digit, 0.15, 0.10, 0.05])
nucleus_first = drawn(drawn(probs, 0.8), temperature=0.5)
rights = drawn(probs, 0.8), drawn(probs, 0.8, 0.5), drawn(probs[:3], 0.8), nucleus_first
good = [abs(found - right[0]) < 0.006 for found, right in zip(draws_a, rights, strict=True)]
print("right:", [each.item() for each in good])
sum(good).item() / 2
### END HIDDEN TESTS

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


# %% nbgrader={"grade": false, "grade_id": "typical", "locked": false, "schema_version": 3, "solution": true, "task": false}
def typical(log_probs: Tensor, p: float) -> Tensor:
    """The probabilities (B, V) with which typical sampling draws; log_probs (B, V)."""
    ### BEGIN SOLUTION
    probs = log_probs.exp()
    entropy = -torch.special.xlogy(probs, probs).sum(dim=1, keepdim=True)
    order = (-log_probs - entropy).abs().argsort(dim=1)  # (B, V), nearest first
    in_order = probs.gather(1, order)
    before = in_order.cumsum(dim=1) - in_order  # what the nearer ones have together
    kept = in_order.masked_fill(before >= p, 0.0)
    kept = torch.zeros_like(probs).scatter(1, order, kept)
    return kept / kept.sum(dim=1, keepdim=True)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "typical-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    probs = torch.tensor([[0.9, 0.05, 0.05], [0.5, 0.3, 0.2]])
    found = typical(probs.log(), 0.25)
    assert found.shape == (2, 3), f"the shape should be (2, 3), it is {tuple(found.shape)}"
    assert torch.allclose(found.sum(1), torch.ones(2)), "each row should sum to one"
    # Row 1 has an entropy of 1.03, and the surprises are 0.69, 1.20 and 1.61.
    assert torch.allclose(found[1], torch.tensor([0.0, 1.0, 0.0])), "the second token is nearest"
    assert torch.allclose(typical(probs.log(), 1.0), probs), "with p = 1 nothing is cut"


### BEGIN HIDDEN TESTS
def right(row, p):
    probs = row.exp().tolist()
    entropy = -sum(q * math.log(q) for q in probs if q > 0)
    kept = [0.0] * len(probs)
    for v in sorted(range(len(probs)), key=lambda v: abs(-row[v] - entropy)):
        if sum(kept) < p:
            kept[v] = probs[v]
    return torch.tensor(kept) / sum(kept)


log_probs = torch.randn(20, 9).mul(2).log_softmax(1)
closed = log_probs.index_fill(1, torch.tensor([1]), -torch.inf).log_softmax(1)
for p in (0.2, 0.6, 0.9):
    rows = torch.stack([right(row, p) for row in log_probs])
    torch.testing.assert_close(typical(log_probs, p), rows, rtol=1e-3, atol=1e-3)
rows = torch.stack([right(row, 0.6) for row in closed])
impossible = torch.allclose(typical(closed, 0.6), rows, atol=1e-3)
print("with a token that is impossible:", impossible)
2 + impossible
### END HIDDEN TESTS

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


# %% nbgrader={"grade": false, "grade_id": "per_word", "locked": false, "schema_version": 3, "solution": true, "task": false}
def per_word(perplexity: float, subwords: int, words: int, sentences: int) -> float:
    """The perplexity of a word model that gives the corpus the same probability."""
    ### BEGIN SOLUTION
    return perplexity ** ((subwords + sentences) / (words + sentences))
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "per_word-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert abs(per_word(7.0, 50, 50, 9) - 7) < 1e-6, "if every word is one subword, nothing changes"
    assert per_word(7.0, 80, 50, 9) > 7, (
        "a word of several subwords is harder to guess than one of them"
    )
### BEGIN HIDDEN TESTS
logp = -(1300 + 90) * math.log(11.5)  # of the whole text
found = per_word(11.5, 1300, 820, 90)
assert math.isclose(found, math.exp(-logp / (820 + 90))), "not the same probability of the text"
### END HIDDEN TESTS

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


# %% nbgrader={"grade": false, "grade_id": "rotary_terms", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rotary_terms(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """A and B (d_k / 2,) for a query and a key (d_k,), neither of them rotated."""
    ### BEGIN SOLUTION
    a, b = q[0::2], q[1::2]
    c, d = k[0::2], k[1::2]
    return a * c + b * d, a * d - b * c
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "rotary_terms-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    q, k = torch.randn(2, 6)
    A, B = rotary_terms(q, k)
    assert A.shape == (3,) and B.shape == (3,), "one number for each pair of features"
    assert torch.allclose(A.sum(), q @ k, atol=1e-5), (
        "at equal places nothing is rotated: A should add up to q · k"
    )
### BEGIN HIDDEN TESTS
frequencies = 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
q, k = torch.randn(2, 8)
A, B = rotary_terms(q, k)
for m, n in ((7, 2), (1, 9), (40, 11), (100, 43)):
    rotated_q, rotated_k = (
        rotate(x.view(1, 8), torch.tensor([at]))[0] for x, at in ((q, m), (k, n))
    )
    angles = (m - n) * frequencies
    pairs = (rotated_q * rotated_k).view(4, 2).sum(1)
    torch.testing.assert_close(A * angles.cos() + B * angles.sin(), pairs, rtol=1e-3, atol=1e-3)
### END HIDDEN TESTS

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


# %% nbgrader={"grade": false, "grade_id": "prefix_mask", "locked": false, "schema_version": 3, "solution": true, "task": false}
def prefix_mask(padding: Tensor, prefix: Tensor, T: int) -> Tensor:
    """Boolean (B, T, T) from padding (B,) and prefix (B,), with padding + prefix <= T."""
    ### BEGIN SOLUTION
    places = torch.arange(T)
    question = places < (padding + prefix).unsqueeze(1)  # (B, T), with its padding
    real = places >= padding.unsqueeze(1)
    return (subsequent_mask(T) | question.unsqueeze(1)) & real.unsqueeze(1)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "prefix_mask-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    mask = prefix_mask(torch.tensor([0, 1]), torch.tensor([2, 0]), 4)
    assert mask.dtype == torch.bool, "the mask should be boolean"
    assert mask.shape == (2, 4, 4), f"the shape should be (2, 4, 4), it is {tuple(mask.shape)}"
    assert mask[0, 0].tolist() == [True, True, False, False], "row 0, query 0 sees its question"
    assert mask[1, 2].tolist() == [False, True, True, False], "row 1 has no question: it is causal"
### BEGIN HIDDEN TESTS
rows = ((0, 3), (2, 1), (4, 4))
mask = prefix_mask(torch.tensor([n for n, _ in rows]), torch.tensor([p for _, p in rows]), 9)
for (n, p), table in zip(rows, mask.tolist(), strict=True):
    for t in range(n, 9):
        assert table[t] == [s >= n and (s <= t or s < n + p) for s in range(9)], "a wrong key"
### END HIDDEN TESTS

# %% [markdown]
# ## Task 6. How long may a conversation be? (derivation, easy, 10 minutes, 2 points)
#
# A server has `memory` bytes. The weights take `weights` bytes. The rest is for the KV caches of
# `conversations` conversations, which are equally long. The model has `layers` layers of width
# `d_model`, each with `heads` heads of queries and `groups` heads of keys and values. A number in
# the cache takes `size` bytes. How many tokens may each conversation have?


# %% nbgrader={"grade": false, "grade_id": "longest_conversation", "locked": false, "schema_version": 3, "solution": true, "task": false}
def longest_conversation(
    memory, weights, conversations, layers, d_model, heads, groups, size
) -> int:
    """Whole tokens of each conversation; 0 if there is no room for one."""
    ### BEGIN SOLUTION
    width = groups * (d_model // heads)  # of the keys, and of the values, at one position
    bytes_per_token = 2 * layers * width * size
    return max(0, memory - weights) // (conversations * bytes_per_token)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "longest_conversation-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    found = longest_conversation(1000, 200, 5, 1, 8, 2, 1, 2)
    assert isinstance(found, int), "a whole number"
    assert found == 10, (
        "800 bytes for 5 conversations, and 16 for a token: 4 numbers of keys, 4 of values"
    )
### BEGIN HIDDEN TESTS
given = 7, 12, 768, 12, 4, 2  # conversations, layers, width, heads, groups, bytes
bytes_per_token = 2 * 12 * 4 * 64 * 2
assert longest_conversation(10**9, 10**8, *given) == 9 * 10**8 // (7 * bytes_per_token)
none = longest_conversation(10**8, 10**9, *given) == 0
print("none, where the weights do not fit:", none)
1 + none
### END HIDDEN TESTS

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


# %% nbgrader={"grade": false, "grade_id": "window_cache", "locked": false, "schema_version": 3, "solution": true, "task": false}
class WindowCache(nn.Module):
    """Stands in for a `GroupedAttention` when tokens come one by one."""

    def __init__(self, attn: GroupedAttention, window: int):
        super().__init__()
        self.attn = attn
        self.window = window
        self.keys = None
        self.values = None

    def forward(self, x: Tensor, *_) -> Tensor:
        ### BEGIN SOLUTION
        rows = x.flatten(0, 1).unsqueeze(1)  # (rows, 1, D)
        q, k, v = self.attn.project(rows, rows, rows)  # k (rows, groups, 1, d_k)
        if self.keys is not None:
            k = torch.cat([self.keys, k], dim=2)
            v = torch.cat([self.values, v], dim=2)
        if k.size(2) > self.window + 1:
            k = torch.cat([k[:, :, :1], k[:, :, -self.window :]], dim=2)
            v = torch.cat([v[:, :, :1], v[:, :, -self.window :]], dim=2)
        self.keys = k
        self.values = v
        heads, _ = self.attn.attend(q, k, v, None)
        return self.attn.join(heads).view_as(x)
        ### END SOLUTION
        raise NotImplementedError

    def keep(self, rows: Tensor) -> None:
        ### BEGIN SOLUTION
        self.keys = self.keys[rows]
        self.values = self.values[rows]
        return  # only a blank sheet reaches the next line
        ### END SOLUTION
        raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "window_cache-test", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
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
### BEGIN HIDDEN TESTS
attn = GroupedAttention(6, 24, 0.0, groups=2).eval()
x = torch.randn(2, 2, 40, 24)
flat = x.flatten(0, 1)  # (rows, T, D)
places = torch.arange(40)
near = places.unsqueeze(1) - places < 7  # (T, T)
mask = (near | (places == 0)) & subsequent_mask(40)
with torch.no_grad():
    cache = WindowCache(attn, 7)
    states = torch.stack([cache(x[:, :, place], None, None, None) for place in range(39)], dim=2)
    right = attn(flat, flat, flat, mask)
    seen = torch.allclose(states.flatten(0, 1), right[:, :39], rtol=1e-3, atol=1e-3)
    small = cache.keys.shape == cache.values.shape == (4, 2, 8, 4)
    rows = torch.tensor([1, 1, 3, 0])
    cache.keep(rows)
    last = cache(x[:, :, 39].clone(), None, None, None)
    moved = torch.cat([flat[rows, :39], flat[:, 39:]], dim=1)
    kept = torch.allclose(last.flatten(0, 1), attn(moved, moved, moved, mask)[:, -1], atol=1e-3)
print("attends to the right positions:", seen, " holds no others:", small, " kept rows:", kept)
2 * seen + (seen and small) + (seen and kept)
### END HIDDEN TESTS

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


# %% nbgrader={"grade": false, "grade_id": "bigrams", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bigrams(sentences: list[list[int]], V: int, k: float) -> Tensor:
    """log p(next | this), (V, V), a row for each token; sentences have their start and end."""
    ### BEGIN SOLUTION
    counts = torch.full((V, V), k)
    for ids in sentences:
        for this, following in itertools.pairwise(ids):
            counts[this, following] += 1
    return (counts / counts.sum(dim=1, keepdim=True)).log()
    ### END SOLUTION
    raise NotImplementedError


bigram_perplexity = None
model_perplexity = None
rules_perplexity = None


### BEGIN SOLUTION
def measure() -> tuple[float, float, float]:
    """Perplexities of the bigram model, of the language model, and of the rules."""
    train, val, V = caption_ids()
    log_probs = bigrams([english for _, english in train], V, k=0.01)
    nll = 0.0
    tokens = 0
    for _, ids in val:
        nll -= log_probs[ids[:-1], ids[1:]].sum().item()
        tokens += len(ids) - 1
    # Two patterns choose all four phrases, and the one with "picking up" chooses no verb.
    captions = 2 * 8 * 6 * 6 * 5 + 8 * 6 * 6
    rules = math.exp(math.log(captions) * len(val) / tokens)
    return math.exp(nll / tokens), train_a_small_model(), rules


bigram_perplexity = 2.54
model_perplexity = 1.78
rules_perplexity = 1.72
### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "bigrams-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    found = bigrams([[0, 2, 1], [0, 2, 2, 1]], V=3, k=0.5).exp()
    assert torch.allclose(found.sum(1), torch.ones(3)), "each row should sum to one"
    assert abs(found[0, 2] - 2.5 / 3.5) < 1e-4, "2 follows 0 both times: (2 + 0.5) / (2 + 3 · 0.5)"
### BEGIN HIDDEN TESTS
sentences = [[0, 4, 3, 3, 1], [0, 3, 2, 1], [0, 2, 2, 2, 4, 3, 1]]
counts = torch.full((5, 5), 0.3)
for ids in sentences:
    for pair in itertools.pairwise(ids):
        counts[pair] += 1
right = (counts / counts.sum(1, keepdim=True)).log()
torch.testing.assert_close(bigrams(sentences, V=5, k=0.3), right, rtol=1e-4, atol=1e-4)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "bigrams-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (bigram_perplexity, model_perplexity, rules_perplexity):
        raise NotImplementedError
    assert rules_perplexity < bigram_perplexity, "the order is not plausible"
    assert model_perplexity < bigram_perplexity, "the order is not plausible"
### BEGIN HIDDEN TESTS
train, val, V = caption_ids()
counts = torch.full((V, V), 0.01)
for _, ids in train:
    for pair in itertools.pairwise(ids):
        counts[pair] += 1
log_probs = (counts / counts.sum(1, keepdim=True)).log()
gains = [log_probs[pair].item() for _, ids in val for pair in itertools.pairwise(ids)]
of_bigrams = math.exp(-sum(gains) / len(gains))
of_rules = math.exp(math.log(2 * 8 * 6 * 6 * 5 + 8 * 6 * 6) * len(val) / len(gains))
assert abs(bigram_perplexity - of_bigrams) < 0.006, "another perplexity of the bigram model"
assert abs(rules_perplexity - of_rules) < 0.006, "another perplexity of a model of the rules"
assert of_rules - 0.1 < model_perplexity < 2, "not the perplexity of this language model"
### END HIDDEN TESTS

# %% [markdown]
# *Your report, 100 to 150 words (1 of the 3 points).* After which tokens is the bigram model much
# worse than the language model, and what would it have to remember there? In nats, how much of the
# way from the bigram model to the rules has the language model gone? Would more captions help the
# bigram model? No caption is in two splits: how could a model that knows this do better than the
# rules?

# %% [markdown] nbgrader={"grade": true, "grade_id": "bigrams-report", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# See *What a report should say* in `exercises/README.md`.
