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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "0a01b5cb424e3a3d66ddfd8a46f9a181", "grade": false, "grade_id": "embedding_sizes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sizes(D: int, std: float, factor: float) -> tuple[float, float, float]:
    """Squared length of embedding and of position, standard deviation of a logit; D is even."""
    # Write your answer here.
    raise NotImplementedError


def balanced(D: int) -> tuple[float, float]:
    """The `std` for logits of size one, and the `factor` for embeddings as long as positions."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "d4afc06febaa0319efdb900ac19bef6f", "grade": true, "grade_id": "embedding_sizes-1-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    rows = Embeddings(64, 1000)(torch.arange(1000).unsqueeze(0))
    squared_length = rows.square().sum(-1).mean().item()
    embedding, position, logit = sizes(64, 64**-0.5, 8.0)
    assert abs(embedding / squared_length - 1) < 0.05, "the script's embeddings have another length"
    assert min(position, logit) > 0, "lengths and deviations are positive"

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "58ecce2045d732f81e8e34d7fd6cdf99", "grade": true, "grade_id": "embedding_sizes-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert min(balanced(64)) > 0, "deviations and factors are positive"

# %% [markdown]
# ## Task 2. Count before you build (derivation, easy, 20 minutes, 2 points)
#
# How many parameters does the model have that `make_model(V, V, N, D, F, h, norm_first=…,
# share_embeddings=…)` returns? Find a formula. Count biases and norms, too, and a shared matrix
# once. Derive it: do not build a model in your function.
#
# For yourself: why is `h` not needed?


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "c1354ab4cb4755f30db2b93beed260a2", "grade": false, "grade_id": "parameters", "locked": false, "schema_version": 3, "solution": true, "task": false}
def parameters(V: int, N: int, D: int, F: int, norm_first: bool, shared: bool) -> int:
    """Number of parameters of a Transformer with these sizes."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "f704fa0b36cc44934cff3db7c8880f07", "grade": true, "grade_id": "parameters-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    built = make_model(50, 50, 2, 16, 32, 4)
    counted = parameters(50, 2, 16, 32, norm_first=True, shared=False)
    assert counted == count_parameters(built), f"{counted} is not {count_parameters(built)}"



# %% [markdown]
# ## Task 3. A norm of your own (code, easy, 15 minutes, 2 points)
#
# Write a norm that divides the vector of each position by the mean absolute value of its entries.
# Add `eps` to this mean, so that a vector of zeros stays zero. Then multiply by a learnt `weight`
# (features,), which starts at one. Subtract nothing.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "3d1bb9c59dbffc5feec8faf35906f9d9", "grade": false, "grade_id": "absolute_norm", "locked": false, "schema_version": 3, "solution": true, "task": false}
class AbsoluteNorm(nn.Module):
    """A norm by absolute values with a learnt `weight`: (..., features) -> (..., features)."""

    def __init__(self, features: int, eps: float = 1e-6):
        super().__init__()
        # Write your answer here.

    def forward(self, x: Tensor) -> Tensor:
        # Write your answer here.
        raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "5b3ef1d855b42c56aefc7b67103e6e68", "grade": true, "grade_id": "absolute_norm-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    normed = AbsoluteNorm(4)(torch.tensor([[1.0, -3.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0]]))
    assert torch.allclose(normed[0], torch.tensor([0.5, -1.5, 0.0, 2.0]), atol=1e-4), normed[0]
    assert normed[1].eq(0).all(), "a vector of zeros does not stay zero"
    exchange(make_model(9, 9, 1, 16, 32, 4), "norm", lambda: AbsoluteNorm(16))  # no error

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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "5b880c9050f77d1dfdc2375cb0d7859c", "grade": false, "grade_id": "packed", "locked": false, "schema_version": 3, "solution": true, "task": false}
def packed_mask(query_sentences: Tensor, key_sentences: Tensor) -> Tensor:
    """Sentence numbers (B, T) and (B, S) -> boolean (B, T, S), as masks of the text are."""
    # Write your answer here.
    raise NotImplementedError


def packed_places(sentences: Tensor) -> Tensor:
    """Sentence numbers (B, T) -> the position of each token in its own sentence (B, T)."""
    # Write your answer here.
    raise NotImplementedError


def encode_packed(model: EncoderDecoder, src: Tensor, sentences: Tensor) -> Tensor:
    """Packed ids (B, S) and their sentence numbers (B, S) -> memory (B, S, D)."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "a2cb4aa633698826ddbb31991e9f0dab", "grade": true, "grade_id": "packed-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    packed_sentences = torch.tensor([[1, 1, 1, 2, 2, 0]])
    seen = packed_mask(packed_sentences, packed_sentences)
    assert seen.shape == (1, 6, 6), f"the mask has shape {tuple(seen.shape)}"
    assert seen[0, 3].tolist() == [0, 0, 0, 1, 1, 0], "the first token of the second sentence"

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "33307266242473ac3e6dca6b7734ff21", "grade": true, "grade_id": "packed-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert packed_places(packed_sentences)[0, :5].tolist() == [0, 1, 2, 0, 1]

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "863df5862b2114ccf46d11d9ecb04a31", "grade": true, "grade_id": "packed-3-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    small = make_model(9, 9, 2, 16, 32, 4).eval()
    words = torch.tensor([[4, 5, 6, 7, 8, 2]])
    together = encode_packed(small, words, packed_sentences)
    alone = small.encode(words[:, 3:5], None)
    assert torch.allclose(together[:, 3:5], alone, atol=1e-5), (
        "the second sentence differs from itself alone"
    )

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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "c47794668ac8de485940253f165fb91e", "grade": false, "grade_id": "learnt_bias", "locked": false, "schema_version": 3, "solution": true, "task": false}
class LearntBias(MultiHeadedAttention):
    """Attention with a learnt `bias` (h, 2 * reach + 1) for each head and distance."""

    def __init__(self, h: int, d_model: int, dropout: float = 0.1, reach: int = 8):
        super().__init__(h, d_model, dropout)
        # Write your answer here.

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """q (B, H, T, d_k), k and v (B, H, S, d_k) -> (B, H, T, d_k), weights (B, H, T, S)."""
        # Write your answer here.
        raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "d15b87fd4fbc2b0efa5327357a73bf68", "grade": true, "grade_id": "learnt_bias-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
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

# %% deletable=false nbgrader={"cell_type": "code", "checksum": "4d832bc905bcb0ae061d9546de56dc9c", "grade": false, "grade_id": "without_residuals_prediction", "locked": false, "schema_version": 3, "solution": true, "task": false}
predicted_order = None
# Write your answer here.

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "7fd026d5cf47c98e418888f74f867285", "grade": true, "grade_id": "without_residuals_prediction-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if predicted_order is None:
        raise NotImplementedError
    assert sorted(predicted_order) == ["attention", "both", "feed-forward"], "each name once"

# %% [markdown]
# ## Task 7. No residuals: measure (experiment with a report, medium, 30 minutes, 3 points)
#
# Write `NoResidual`: a `SublayerConnection` without the sum, in both orders of the norm. Then write
# `likeness`: the mean cosine between the vectors of two different positions of a sentence, over all
# such pairs and all sentences. The check below the task measures with your code. Copy what it
# prints into `measured`.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "e3f4ec75222d023bd2656c7e2d4c2afb", "grade": false, "grade_id": "without_residuals", "locked": false, "schema_version": 3, "solution": true, "task": false}
class NoResidual(SublayerConnection):
    """A sub-layer with dropout and norm, but without the sum: (B, T, D) -> (B, T, D)."""

    def forward(self, x: Tensor, sublayer) -> Tensor:
        # Write your answer here.
        raise NotImplementedError


def likeness(states: Tensor) -> float:
    """States (B, T, D) -> the mean cosine between two different positions of one sentence."""
    # Write your answer here.
    raise NotImplementedError


measured = None  # copy what the check below prints
# Write your answer here.


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


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "51e019114e7bed2ee6e8953a920d7748", "grade": true, "grade_id": "without_residuals-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    connection = NoResidual(3, 0.0, norm_first=True)
    assert not connection(torch.randn(1, 2, 3), torch.zeros_like).any(), "there is still a sum"

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "69455c7f5dbc8599fa338f62d156e786", "grade": true, "grade_id": "without_residuals-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert abs(likeness(torch.eye(3).expand(2, 3, 3))) < 1e-6, "vectors at right angles: likeness 0"
    assert abs(likeness(torch.tensor([[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]])) - 1) < 1e-5
    print("measured =", measure())
    if measured is None:
        raise NotImplementedError

# %% [markdown]
# *Your report, 100 to 150 words (1 of the 3 points).* Was your prediction right, and why? A
# feed-forward network sees one position at a time: how can it make positions more similar? Try
# `measure(N=12)` and `measure(norm_first=False)`. What can the decoder still learn from a memory
# whose vectors are all the same?

# %% [markdown] deletable=false nbgrader={"cell_type": "markdown", "checksum": "bbe8a52ac50f75494497ae7f6812b78f", "grade": true, "grade_id": "without_residuals-report", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# *Write your report here.*

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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "079d791263a79753579ef0867aa8516b", "grade": false, "grade_id": "layer_norm_backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def layer_norm_backward(
    x: Tensor, weight: Tensor, g: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x and g (B, T, D), weight (D,) -> gradients for x (B, T, D), weight (D,) and bias (D,)."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "24ebc6aedccb42531a3aab65c2674a46", "grade": true, "grade_id": "layer_norm_backward-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
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


