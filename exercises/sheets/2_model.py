# %% [markdown]
# # Sheet 2. The model
#
# 20 points, about three hours. Read [Part 2](../index.html#model) first.
#
# Write your answers into the cells with a `raise` or a `None`. The cell below a task checks a
# little of your answer; hidden tests, with other numbers and sizes, give the points. You may add
# cells and functions. Hand in the notebook, under its name.

# %%
import contextlib
import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path[:0] = [".", "../.."]  # the script lies beside this sheet, or two folders up
from the_annotated_transformer import (
    Embeddings,
    EncoderDecoder,
    MultiHeadedAttention,
    SublayerConnection,
    attention,
    count_parameters,
    exchange,
    make_model,
)


@contextlib.contextmanager
def when_answered():
    """Around a check: says so where a task is not answered yet; a wrong answer raises an error."""
    try:
        yield
    except NotImplementedError as missing:
        print("not answered yet.", missing)


# %% [markdown]
# ## Task 1. How long is an embedding? (derivation, easy, 15 minutes, 3 points)
#
# The entries of an embedding matrix are independent, with mean zero and standard deviation `std`.
# The model looks up a row of width `D`, multiplies it by `factor` and adds the positional encoding.
# The generator uses the same matrix, without the factor: a logit is the inner product of a row and
# a state. The entries of the state do not depend on the row, and their mean square is one, as after
# a norm.
#
# Derive three quantities. `sizes` returns them in this order:
#
# 1. the mean squared length of an embedding, a row times `factor`;
# 2. the squared length of a positional encoding, at any position;
# 3. the standard deviation of a logit.
#
# `balanced` returns the `std` that gives logits a standard deviation of one, and then the `factor`
# that gives embeddings and positional encodings the same mean squared length.


# %% nbgrader={"grade": false, "grade_id": "embedding_sizes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sizes(D: int, std: float, factor: float) -> tuple[float, float, float]:
    """Squared length of embedding and of position, standard deviation of a logit; D is even."""
    ### BEGIN SOLUTION
    embedding = D * (factor * std) ** 2
    position = D / 2  # each pair of sine and cosine has length one
    logit = math.sqrt(D) * std
    return embedding, position, logit
    ### END SOLUTION
    raise NotImplementedError


def balanced(D: int) -> tuple[float, float]:
    """The `std` for logits of size one, and the `factor` for embeddings as long as positions."""
    ### BEGIN SOLUTION
    return D**-0.5, math.sqrt(D / 2)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "embedding_sizes-1-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    rows = Embeddings(64, 1000)(torch.arange(1000).unsqueeze(0))
    squared_length = rows.square().sum(-1).mean().item()
    embedding, position, logit = sizes(64, 64**-0.5, 8.0)
    assert abs(embedding / squared_length - 1) < 0.05, "the script's embeddings have another length"
    assert min(position, logit) > 0, "lengths and deviations are positive"
### BEGIN HIDDEN TESTS
D, std, factor = 50, 0.7, 3.0
embedding, position, logit = sizes(D, std, factor)
lengths = math.isclose(embedding, D * (factor * std) ** 2) and math.isclose(position, D / 2)
print("lengths:", lengths, " logit:", math.isclose(logit, D**0.5 * std))
lengths + math.isclose(logit, D**0.5 * std)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "embedding_sizes-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert min(balanced(64)) > 0, "deviations and factors are positive"
### BEGIN HIDDEN TESTS
for D in (18, 300):
    std, factor = balanced(D)
    assert math.isclose(std, D**-0.5), "logits do not have a standard deviation of one"
    assert math.isclose(factor, (D / 2) ** 0.5), "embeddings are not as long as positions"
### END HIDDEN TESTS

# %% [markdown]
# ## Task 2. Count before you build (derivation, easy, 20 minutes, 2 points)
#
# How many parameters does the model have that `make_model(V, V, N, D, F, h, norm_first=…,
# share_embeddings=…)` returns? Find a formula. Count biases and norms, too, and a shared matrix
# once. Derive it: do not build a model in your function.
#
# For yourself: why is `h` not needed?


# %% nbgrader={"grade": false, "grade_id": "parameters", "locked": false, "schema_version": 3, "solution": true, "task": false}
def parameters(V: int, N: int, D: int, F: int, norm_first: bool, shared: bool) -> int:
    """Number of parameters of a Transformer with these sizes."""
    ### BEGIN SOLUTION
    norm = 2 * D
    attention = 4 * (D * D + D)
    feed_forward = D * F + F + F * D + D
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    final_norms = 2 * norm if norm_first else 0
    matrices = 1 if shared else 3  # of V × D: two embeddings and the generator
    return N * (encoder_layer + decoder_layer) + final_norms + matrices * V * D + V
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "parameters-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    built = make_model(50, 50, 2, 16, 32, 4)
    counted = parameters(50, 2, 16, 32, norm_first=True, shared=False)
    assert counted == count_parameters(built), f"{counted} is not {count_parameters(built)}"


### BEGIN HIDDEN TESTS
def as_built(norm_first, shared):
    form = {"norm_first": norm_first, "share_embeddings": shared}
    built = make_model(71, 71, 3, 24, 44, 4, **form)
    return parameters(71, 3, 24, 44, norm_first, shared) == count_parameters(built)


pre_norm = as_built(True, False) and as_built(True, True)
print("pre-norm:", pre_norm, " post-norm:", as_built(False, False))
pre_norm + as_built(False, False)
### END HIDDEN TESTS

# %% [markdown]
# ## Task 3. A norm of your own (code, easy, 15 minutes, 2 points)
#
# Write a norm that divides the vector of each position by the mean absolute value of its entries.
# Add `eps` to this mean, so that a vector of zeros stays zero. Then multiply by a learnt `weight`
# (features,), which starts at one. Subtract nothing.


# %% nbgrader={"grade": false, "grade_id": "absolute_norm", "locked": false, "schema_version": 3, "solution": true, "task": false}
class AbsoluteNorm(nn.Module):
    """A norm by absolute values with a learnt `weight`: (..., features) -> (..., features)."""

    def __init__(self, features: int, eps: float = 1e-6):
        super().__init__()
        ### BEGIN SOLUTION
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        size = x.abs().mean(-1, keepdim=True)
        return self.weight * x / (size + self.eps)
        ### END SOLUTION
        raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "absolute_norm-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    normed = AbsoluteNorm(4)(torch.tensor([[1.0, -3.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0]]))
    assert torch.allclose(normed[0], torch.tensor([0.5, -1.5, 0.0, 2.0]), atol=1e-4), normed[0]
    assert normed[1].eq(0).all(), "a vector of zeros does not stay zero"
    exchange(make_model(9, 9, 1, 16, 32, 4), "norm", lambda: AbsoluteNorm(16))  # no error
### BEGIN HIDDEN TESTS
x = torch.randn(3, 5, 7) + 1
size = x.abs().mean(-1, keepdim=True)
torch.testing.assert_close(AbsoluteNorm(7)(x), x / size, rtol=1e-4, atol=1e-4)
norm = AbsoluteNorm(7, eps=0.3)
learnt = [name for name, _ in norm.named_parameters()] == ["weight"]
if learnt:
    torch.nn.init.normal_(norm.weight)
scaled = torch.allclose(norm(x), norm.weight * x / (size + 0.3), atol=1e-4)
print("a parameter `weight`:", learnt, " scale and eps:", scaled)
1 + (learnt and scaled)
### END HIDDEN TESTS

# %% [markdown]
# ## Task 4. Several sentences in one row (code, medium, 30 minutes, 3 points)
#
# To save padding, we put several short sentences into one row, one after the other. `sentences`
# gives each token the number of its sentence: 1 for the first sentence of the row, 2 for the second
# and so on, and 0 for padding at the end. For example, `[1, 1, 1, 2, 2, 0]` is a sentence of three
# tokens, one of two, and one padded position. No token may attend to another sentence, and each
# sentence starts at position 0. Results at padded positions do not matter.
#
# 1. In `packed_mask`, a query may attend to the keys whose sentence has the same number. In
#    cross-attention, for example, sentence 2 of the target attends to sentence 2 of the source.
#    Leave out the causal mask: a decoder will use `packed_mask(s, s) & subsequent_mask(T)`.
# 2. `packed_places` counts positions from 0 in each sentence.
# 3. `encode_packed` returns the memory of packed rows. Each sentence has the same vectors as if it
#    were alone in its row. The model is in eval mode. Use its parts: `model.src_embed[0]` is the
#    embedding, `model.src_embed[1].pe` the table of positional encodings (1, longest, D), and
#    `model.encoder` the stack.


# %% nbgrader={"grade": false, "grade_id": "packed", "locked": false, "schema_version": 3, "solution": true, "task": false}
def packed_mask(query_sentences: Tensor, key_sentences: Tensor) -> Tensor:
    """Sentence numbers (B, T) and (B, S) -> boolean (B, T, S), as masks of the text are."""
    ### BEGIN SOLUTION
    return query_sentences.unsqueeze(2) == key_sentences.unsqueeze(1)
    ### END SOLUTION
    raise NotImplementedError


def packed_places(sentences: Tensor) -> Tensor:
    """Sentence numbers (B, T) -> the position of each token in its own sentence (B, T)."""
    ### BEGIN SOLUTION
    first = packed_mask(sentences, sentences).int().argmax(-1)  # (B, T): where its sentence starts
    return torch.arange(sentences.size(1)) - first
    ### END SOLUTION
    raise NotImplementedError


def encode_packed(model: EncoderDecoder, src: Tensor, sentences: Tensor) -> Tensor:
    """Packed ids (B, S) and their sentence numbers (B, S) -> memory (B, S, D)."""
    ### BEGIN SOLUTION
    embedding, positions = model.src_embed
    x = embedding(src) + positions.pe[0, packed_places(sentences)]
    return model.encoder(x, packed_mask(sentences, sentences))
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "packed-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    packed_sentences = torch.tensor([[1, 1, 1, 2, 2, 0]])
    seen = packed_mask(packed_sentences, packed_sentences)
    assert seen.shape == (1, 6, 6), f"the mask has shape {tuple(seen.shape)}"
    assert seen[0, 3].tolist() == [0, 0, 0, 1, 1, 0], "the first token of the second sentence"
### BEGIN HIDDEN TESTS
targets = torch.tensor([[1, 2, 2, 3, 3, 3, 3, 0], [1, 1, 1, 1, 2, 0, 0, 0]])
sources = torch.tensor([[1, 1, 2, 2, 2, 3], [1, 2, 2, 2, 0, 0]])
for target, source, mask in zip(targets, sources, packed_mask(targets, sources), strict=True):
    for number, row in zip(target.tolist(), mask.tolist(), strict=True):
        if number:
            assert row == [number == other for other in source.tolist()], "other keys are seen"
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "packed-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert packed_places(packed_sentences)[0, :5].tolist() == [0, 1, 2, 0, 1]
### BEGIN HIDDEN TESTS
places = packed_places(torch.tensor([[1, 2, 2, 3, 3, 3], [1, 1, 1, 1, 2, 2]]))
assert places.tolist() == [[0, 0, 1, 0, 1, 2], [0, 1, 2, 3, 0, 1]]
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "packed-3-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    small = make_model(9, 9, 2, 16, 32, 4).eval()
    words = torch.tensor([[4, 5, 6, 7, 8, 2]])
    together = encode_packed(small, words, packed_sentences)
    alone = small.encode(words[:, 3:5], None)
    assert torch.allclose(together[:, 3:5], alone, atol=1e-5), (
        "the second sentence differs from itself alone"
    )
### BEGIN HIDDEN TESTS
sentences = torch.tensor([[1, 2, 2, 2, 3, 3, 0], [1, 1, 1, 1, 1, 2, 2]])
words = torch.randint(9, sentences.shape)
together = encode_packed(small, words, sentences)
for row, number in ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2)):
    own = sentences[row] == number
    alone = small.encode(words[row, own].unsqueeze(0), None)[0]
    torch.testing.assert_close(together[row, own], alone, rtol=1e-4, atol=1e-5)
### END HIDDEN TESTS

# %% [markdown]
# ## Task 5. A learnt bias by distance (code, medium, 25 minutes, 3 points)
#
# Write an attention in which each head learns a bias for each distance. The parameter `bias` has
# the shape (h, 2 · reach + 1) and starts at zero. A query at position $t$ and a key at position $s$
# have the distance $s - t$. Distances above `reach` count as `reach`, those below −`reach` as
# −`reach`. Add `bias[head, distance + reach]` to the score, before the mask and the softmax.
#
# The keys have the positions 0 to S − 1. There may be fewer queries than keys: they have the *last*
# T of these positions. Override `attend`, and use the argument `bias` of `attention`. As in
# `MultiHeadedAttention`, dropout acts on the weights.


# %% nbgrader={"grade": false, "grade_id": "learnt_bias", "locked": false, "schema_version": 3, "solution": true, "task": false}
class LearntBias(MultiHeadedAttention):
    """Attention with a learnt `bias` (h, 2 * reach + 1) for each head and distance."""

    def __init__(self, h: int, d_model: int, dropout: float = 0.1, reach: int = 8):
        super().__init__(h, d_model, dropout)
        ### BEGIN SOLUTION
        self.reach = reach
        self.bias = nn.Parameter(torch.zeros(h, 2 * reach + 1))
        ### END SOLUTION

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """q (B, H, T, d_k), k and v (B, H, S, d_k) -> (B, H, T, d_k), weights (B, H, T, S)."""
        ### BEGIN SOLUTION
        places = torch.arange(k.size(2), device=k.device)
        distance = places - places[-q.size(2) :].unsqueeze(1)  # (T, S)
        row = distance.clamp(-self.reach, self.reach) + self.reach
        return attention(q, k, v, mask, self.dropout, bias=self.bias[:, row])  # (H, T, S)
        ### END SOLUTION
        raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "learnt_bias-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    learnt = LearntBias(2, 8, dropout=0.0, reach=3)
    assert learnt.bias.shape == (2, 7), "a row for each head, a column for each distance"
    with torch.no_grad():
        learnt.bias[0, 2] = 100.0  # one place to the left
        learnt.bias[1, 6] = 100.0  # three places to the right, or more
        learnt(*3 * [torch.randn(1, 6, 8)])
    assert learnt.attn[0, 0, 4].argmax() == 3, "head 0 must look one place to the left"
    assert learnt.attn[0, 1, 0, :3].sum() < 0.01, (
        "head 1 must look three places to the right, or more"
    )
### BEGIN HIDDEN TESTS
h, reach, T = 3, 2, 9
module = LearntBias(h, 12, dropout=0.0, reach=reach)
assert isinstance(module.bias, nn.Parameter) and not module.bias.any(), "a parameter of zeros"
nn.init.normal_(module.bias)
q, k, v = torch.randn(3, 2, h, T, 4)
distances = torch.arange(T) - torch.arange(T).unsqueeze(1)
scores = q @ k.mT / 2 + module.bias[:, distances.clamp(-reach, reach) + reach]
mask = torch.ones(1, 1, T, T).tril().bool()
right = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v
with torch.no_grad():
    torch.testing.assert_close(module.attend(q, k, v, mask)[0], right, rtol=1e-4, atol=1e-4)
    try:
        few, _ = module.attend(q[:, :, -4:], k, v, mask[:, :, -4:])
        last = torch.allclose(few, right[:, :, -4:], atol=1e-4)
    except (RuntimeError, IndexError):
        last = False
    dropping = LearntBias(h, 12, dropout=0.5, reach=reach).train()
    mixed, _ = dropping.attend(q, k, torch.ones_like(v), mask)
    # Dropout of the weights changes all features of a query alike; of the output, each by itself.
    dropped = not torch.allclose(mixed, torch.ones_like(mixed)) and mixed.std(-1).max() < 1e-4
print("fewer queries stand last:", last, " dropout on the weights:", bool(dropped))
1 + last + bool(dropped)
### END HIDDEN TESTS

# %% [markdown]
# ## Task 6. No residuals: predict (prediction, medium, 10 minutes, 1 point)
#
# Residual connections matter even before training. An untrained encoder with two pre-norm layers
# reads ten words. How similar are the vectors of its ten positions if only some sub-layers have a
# residual connection?
#
# **Predict before you run anything.** Order these three, from the least similar positions to the
# most similar: `"both"` (all sub-layers have one), `"attention"` (only attention has one),
# `"feed-forward"` (only the feed-forward networks have one). Your prediction gives the point, right
# or wrong. Task 7 measures, and its report asks for reasons.

# %% nbgrader={"grade": false, "grade_id": "without_residuals_prediction", "locked": false, "schema_version": 3, "solution": true, "task": false}
predicted_order = None
### BEGIN SOLUTION
predicted_order = ["both", "attention", "feed-forward"]
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "without_residuals_prediction-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if predicted_order is None:
        raise NotImplementedError
    assert sorted(predicted_order) == ["attention", "both", "feed-forward"], "each name once"
### BEGIN HIDDEN TESTS
assert len(set(predicted_order)) == 3  # it may be wrong: the report of task 7 gives reasons
### END HIDDEN TESTS

# %% [markdown]
# ## Task 7. No residuals: measure (experiment with a report, medium, 30 minutes, 3 points)
#
# Write `NoResidual`: a `SublayerConnection` without the sum, in both orders of the norm. Then write
# `likeness`: the mean cosine between the vectors of two different positions of a sentence, over all
# such pairs and all sentences. The check below the task measures with your code. Copy what it
# prints into `measured`.


# %% nbgrader={"grade": false, "grade_id": "without_residuals", "locked": false, "schema_version": 3, "solution": true, "task": false}
class NoResidual(SublayerConnection):
    """A sub-layer with dropout and norm, but without the sum: (B, T, D) -> (B, T, D)."""

    def forward(self, x: Tensor, sublayer) -> Tensor:
        ### BEGIN SOLUTION
        if self.norm_first:
            return self.dropout(sublayer(self.norm(x)))
        return self.norm(self.dropout(sublayer(x)))
        ### END SOLUTION
        raise NotImplementedError


def likeness(states: Tensor) -> float:
    """States (B, T, D) -> the mean cosine between two different positions of one sentence."""
    ### BEGIN SOLUTION
    directions = F.normalize(states, dim=-1)
    cosines = directions @ directions.mT  # (B, T, T), ones on the diagonal
    T = states.size(1)
    return ((cosines.sum((1, 2)) - T) / (T * (T - 1))).mean().item()
    ### END SOLUTION
    raise NotImplementedError


measured = None  # copy what the check below prints
### BEGIN SOLUTION
measured = {"both": 0.452, "attention": 0.859, "feed-forward": 0.998}
### END SOLUTION


# %%
def encoder_that_keeps(kept: str, N: int = 2, norm_first: bool = True) -> EncoderDecoder:
    """A model whose encoder has residual connections in all or in some of its sub-layers."""
    torch.manual_seed(0)
    model = make_model(20, 20, N, 64, 256, 4, dropout=0.0, norm_first=norm_first).eval()
    for layer in model.encoder.layers:
        if kept == "feed-forward":
            layer.sublayer[0] = NoResidual(64, 0.0, norm_first)
        if kept == "attention":
            layer.sublayer[1] = NoResidual(64, 0.0, norm_first)
    return model


def measure(**changes) -> dict[str, float]:
    """Likeness of the positions of fifty sentences, by what keeps its residual connection."""
    results = {}
    for kept in ("both", "attention", "feed-forward"):
        model = encoder_that_keeps(kept, **changes)
        with torch.no_grad():
            memory = model.encode(torch.randint(20, (50, 10)), None)
        results[kept] = round(likeness(memory), 3)
    return results


# %% nbgrader={"grade": true, "grade_id": "without_residuals-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    connection = NoResidual(3, 0.0, norm_first=True)
    assert not connection(torch.randn(1, 2, 3), torch.zeros_like).any(), "there is still a sum"
### BEGIN HIDDEN TESTS
x = torch.randn(2, 5, 6)
for norm_first in (True, False):
    connection = NoResidual(6, 0.0, norm_first)
    nn.init.normal_(connection.norm.weight)
    norm = connection.norm
    right = norm(x).square() + 1 if norm_first else norm(x.square() + 1)
    found = connection(x, lambda inner: inner.square() + 1)
    torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)
assert not NoResidual(6, 1.0).train()(x, lambda inner: inner + 3).any(), "dropout is missing"
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "without_residuals-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert abs(likeness(torch.eye(3).expand(2, 3, 3))) < 1e-6, "vectors at right angles: likeness 0"
    assert abs(likeness(torch.tensor([[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]])) - 1) < 1e-5
    print("measured =", measure())
    if measured is None:
        raise NotImplementedError
### BEGIN HIDDEN TESTS
x = torch.randn(3, 4, 8) + 0.5
cosines = [F.cosine_similarity(x[:, a], x[:, b], dim=-1) for a in range(4) for b in range(a)]
assert math.isclose(likeness(x), torch.stack(cosines).mean(), abs_tol=1e-4), "likeness is wrong"
ranges = {"both": (0.3, 0.6), "attention": (0.7, 0.95), "feed-forward": (0.98, 1.0)}
for kept, (low, high) in ranges.items():
    assert low <= measured[kept] <= high, f"{kept}: not from this experiment"
### END HIDDEN TESTS

# %% [markdown]
# *Your report, 100 to 150 words (1 of the 3 points).* Was your prediction right, and why? A
# feed-forward network sees one position at a time: how can it make positions more similar? Try
# `measure(N=12)` and `measure(norm_first=False)`. What can the decoder still learn from a memory
# whose vectors are all the same?

# %% [markdown] nbgrader={"grade": true, "grade_id": "without_residuals-report", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# See *What a report should say* in `exercises/README.md`.

# %% [markdown]
# ## Task 8. Backwards through layer norm (derivation, hard, 30 minutes, 3 points)
#
# Let $y = \gamma \odot \hat{x} + \beta$ with $\hat{x} = (x - \mu) / \sqrt{\sigma^2 + \epsilon}$,
# and let $g = \partial L / \partial y$ be given. Derive the gradients of $L$ with respect to $x$,
# $\gamma$ and $\beta$. Remember that $\mu$ and $\sigma^2$ depend on every entry of $x$. The
# function returns your formulas. Automatic differentiation and PyTorch's own formulas for backward
# passes do not work in the test.
#
# Two properties help you to find mistakes. The entries of the gradient with respect to $x$ sum to
# zero. If $\epsilon$ is small, this gradient is orthogonal to $\hat{x}$. For yourself: why?


# %% nbgrader={"grade": false, "grade_id": "layer_norm_backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def layer_norm_backward(
    x: Tensor, weight: Tensor, g: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x and g (B, T, D), weight (D,) -> gradients for x (B, T, D), weight (D,) and bias (D,)."""
    ### BEGIN SOLUTION
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    normed = centred / deviation
    scaled = weight * g
    along = (scaled * normed).mean(-1, keepdim=True)  # what only changes the length of x
    for_x = (scaled - scaled.mean(-1, keepdim=True) - normed * along) / deviation
    return for_x, (g * normed).sum((0, 1)), g.sum((0, 1))
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "layer_norm_backward-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    inputs = torch.tensor([[[1.0, 2.0, 4.0]]], dtype=torch.double, requires_grad=True)
    scale = torch.tensor([1.0, 2.0, -1.0], dtype=torch.double)
    outer = torch.tensor([[[0.5, -1.0, 2.0]]], dtype=torch.double)
    F.layer_norm(inputs, (3,), scale, eps=0.1).backward(outer)
    for_x, for_weight, for_bias = layer_norm_backward(inputs.detach(), scale, outer, 0.1)
    assert for_bias.shape == (3,), "one number for each feature, summed over batch and positions"
    assert torch.allclose(for_x, inputs.grad), (
        f"for x: {for_x.tolist()}, not {inputs.grad.tolist()}"
    )


### BEGIN HIDDEN TESTS
def agreeing(eps):
    """Which of the three gradients are right."""
    x = torch.randn(3, 4, 7, dtype=torch.double, requires_grad=True)
    weight = torch.randn(7, dtype=torch.double, requires_grad=True)
    bias = torch.zeros(7, dtype=torch.double, requires_grad=True)
    g = torch.randn(3, 4, 7, dtype=torch.double)
    F.layer_norm(x, (7,), weight, bias, eps).backward(g)
    with torch.inference_mode():  # automatic differentiation does not work here
        found = layer_norm_backward(x.detach().clone(), weight.detach().clone(), g, eps)
    pairs = zip(found, (x.grad, weight.grad, bias.grad), strict=True)
    return [one.shape == other.shape and torch.allclose(one, other) for one, other in pairs]


(for_x, for_weight, for_bias), with_eps = agreeing(1e-9), agreeing(0.8)
print(
    "x:", for_x, " weight and bias:", for_weight and for_bias, " with a large eps:", all(with_eps)
)
for_x + (for_weight and for_bias) + all(with_eps)
### END HIDDEN TESTS
