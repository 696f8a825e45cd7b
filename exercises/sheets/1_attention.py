# %% [markdown]
# # Sheet 1. Attention
#
# 20 points, about three hours. Read [Background](../index.html#background) and [Part
# 1](../index.html#attention) first.
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
from torch import Tensor

sys.path[:0] = [".", "../.."]  # the script lies beside this sheet, or two folders up
from the_annotated_transformer import VECTORS, WORDS, attention


@contextlib.contextmanager
def when_answered():
    """Around a check: says so where a task is not answered yet; a wrong answer raises an error."""
    try:
        yield
    except NotImplementedError as missing:
        print("not answered yet.", missing)


# %% [markdown]
# ## Task 1. Predict, then try (prediction, easy, 15 minutes, 2 points)
#
# True or false? There is no mask, except in statement 6.
#
# 1. You multiply all queries by ten. For each query, the key with the most weight stays the same.
# 2. You add one and the same vector to all keys. The output stays the same.
# 3. You add one and the same vector to all queries. The output stays the same.
# 4. You append a copy of every key and of every value. The output stays the same.
# 5. You shuffle the keys, and the values in the same way. The output stays the same.
# 6. $Q$, $K$ and $V$ are the same matrix, and there is a causal mask. You shuffle the rows of the
#    matrix. The output has the same rows, shuffled in the same way.
#
# First predict: write six letters as `predicted`, such as `"TTTFFF"`. Six letters give a point,
# right or wrong. Then try each statement with random matrices, and write the six letters that you
# found as `observed`. They give the other point, less half a point for each wrong letter.

# %% nbgrader={"grade": false, "grade_id": "predictions", "locked": false, "schema_version": 3, "solution": true, "task": false}
predicted = None
observed = None
### BEGIN SOLUTION
predicted = "TTFTTF"
observed = "TTFTTF"
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "predictions-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (predicted, observed):
        raise NotImplementedError
    for letters in (predicted, observed):
        assert len(letters) == 6, "there are six statements"
        assert set(letters) <= set("TF"), "write T or F"
### BEGIN HIDDEN TESTS
wrong = sum(letter != truth for letter, truth in zip(observed, "TTFTTF", strict=True))
(len(predicted) == 6) + max(0, 1 - wrong / 2)
### END HIDDEN TESTS

# %% [markdown]
# ## Task 2. The variance of a score (derivation, medium, 20 minutes, 2 points)
#
# In the text, the score $q \cdot k / \sqrt{d_k}$ has variance one, because all entries are
# independent with mean zero and variance one. Now the entries, still independent, have mean $m$ and
# variance $a$ in a query, and mean $c$ and variance $b$ in a key. Derive the variance of the score
# by hand. The function returns your formula.


# %% nbgrader={"grade": false, "grade_id": "score_variance", "locked": false, "schema_version": 3, "solution": true, "task": false}
def score_variance(m: float, a: float, c: float, b: float, d_k: int) -> float:
    """Variance of a score: queries with mean m, variance a; keys with mean c, variance b."""
    ### BEGIN SOLUTION
    return (a + m**2) * (b + c**2) - (m * c) ** 2
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "score_variance-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert math.isclose(score_variance(0, 1, 0, 1, 64), 1), "the case in the text has variance one"
### BEGIN HIDDEN TESTS
for m, a, c, b, d_k in ((0.7, 1.3, -2.0, 0.6, 16), (-1.2, 2.0, 0.5, 1.5, 256)):
    found = score_variance(m, a, c, b, d_k)
    assert math.isclose(found, a * b + a * c**2 + b * m**2), "not the variance of a score"
### END HIDDEN TESTS

# %% [markdown]
# ## Task 3. The gradient that reaches the scores (derivation, medium, 25 minutes, 3 points)
#
# One query gives the weights $w$ to $S$ keys, and its output is $o = \sum_i w_i v_i$. The gradient
# $g = \partial L / \partial o$ is known. Derive $\partial L / \partial s_i$, the gradient with
# respect to the scores, by hand. Start from the derivative of the softmax in the text, and simplify
# until no table of $S \times S$ numbers is left. The function returns your formula. Automatic
# differentiation does not work in the test.


# %% nbgrader={"grade": false, "grade_id": "score_gradient", "locked": false, "schema_version": 3, "solution": true, "task": false}
def score_gradient(weights: Tensor, values: Tensor, g: Tensor) -> Tensor:
    """Gradient with respect to the scores: weights (S,), values (S, d_v), g (d_v,) -> (S,)."""
    ### BEGIN SOLUTION
    answers = values @ g
    return weights * (answers - weights @ answers)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "score_gradient-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    equal = torch.full((3,), 1 / 3)
    same_values = torch.ones(3, 2)
    found = score_gradient(equal, same_values, torch.tensor([1.0, 2.0]))
    assert found.shape == (3,), f"the shape should be (3,), it is {tuple(found.shape)}"
    assert found.abs().max() < 1e-6, (
        "all values are the same: no change of weights changes the output"
    )
### BEGIN HIDDEN TESTS
for S, d_v in ((4, 7), (9, 2)):
    scores, values, g = torch.randn(S, requires_grad=True), torch.randn(S, d_v), torch.randn(d_v)
    (scores.softmax(0) @ values @ g).backward()
    weights = scores.detach().softmax(0)
    with torch.inference_mode():  # automatic differentiation does not work here
        found = score_gradient(weights, values, g)
    torch.testing.assert_close(found, scores.grad, rtol=1e-4, atol=1e-5)
### END HIDDEN TESTS

# %% [markdown]
# ## Task 4. Who attends to whom? (by hand, easy, 20 minutes, 2 points)
#
# With the matrices of the text, *Mädchen* attends to *roten* more than to *kleines*. Choose two 2 ×
# 2 matrices with which *Mädchen* gives more than half of its weight to *kleines*, and *Ball* more
# than half of its weight to *roten*. Write each matrix as a list of rows.
#
# Hint: if two vectors point in different directions, one matrix can map them to any two vectors.

# %% nbgrader={"grade": false, "grade_id": "matrices", "locked": false, "schema_version": 3, "solution": true, "task": false}
my_W_Q = None
my_W_K = None
### BEGIN SOLUTION
my_W_Q = torch.linalg.solve(VECTORS[[2, 6]], 40 * torch.tensor([[0.7, 1.0], [-0.3, 1.0]])).tolist()
my_W_K = [[1.0, 0.0], [0.0, 1.0]]
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "matrices-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if my_W_Q is None or my_W_K is None:
        raise NotImplementedError
    queries = VECTORS @ torch.tensor(my_W_Q)
    keys = VECTORS @ torch.tensor(my_W_K)
    _, weights = attention(queries, keys, VECTORS)
    for word, row in zip(WORDS, weights, strict=True):
        print(f"{word:8} attends most to {WORDS[row.argmax()]} ({row.max():.2f})")
### BEGIN HIDDEN TESTS
girl, ball = weights[2, 1] > 0.5, weights[6, 5] > 0.5
print("Mädchen to kleines:", girl.item(), " Ball to roten:", ball.item())
girl.item() + ball.item()
### END HIDDEN TESTS

# %% [markdown]
# ## Task 5. A window (code, hard, 35 minutes, 4 points)
#
# In *windowed attention*, the query at position $t$ sees only itself and the `width` − 1 positions
# before it. The first queries see fewer. The right output gives three points. The fourth point is
# for memory: none of your tensors may have $T \times T$ numbers.
#
# Hint: `F.pad` and `Tensor.unfold`.


# %% nbgrader={"grade": false, "grade_id": "windowed_attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def windowed_attention(query: Tensor, key: Tensor, value: Tensor, width: int) -> Tensor:
    """Attention to the last `width` positions: three times (T, d_k) -> (T, d_k)."""
    ### BEGIN SOLUTION
    T, d_k = query.shape
    keys = F.pad(key, (0, 0, width - 1, 0)).unfold(0, width, 1)  # (T, d_k, width)
    values = F.pad(value, (0, 0, width - 1, 0)).unfold(0, width, 1)
    scores = torch.einsum("td,tdw->tw", query, keys) / math.sqrt(d_k)
    place = torch.arange(T).unsqueeze(1) + torch.arange(width) - (width - 1)
    weights = scores.masked_fill(place < 0, -torch.inf).softmax(-1)
    return torch.einsum("tw,tdw->td", weights, values)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "windowed_attention-test", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    x = torch.randn(6, 4)
    assert windowed_attention(x, x, x, 3).shape == (6, 4), "the shape should be that of the query"
    torch.testing.assert_close(
        windowed_attention(x, x, x, 1), x, msg="width 1: each sees only itself"
    )
### BEGIN HIDDEN TESTS
from torch.overrides import TorchFunctionMode


class Watch(TorchFunctionMode):
    """Notes the largest tensor of what runs inside, in bytes; a view takes no memory."""

    largest = 0

    def __torch_function__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.largest = max(self.largest, made.untyped_storage().nbytes())
        return made


T, width = 600, 5
q, k, v = torch.randn(3, T, 4)
with Watch() as watch:
    found = windowed_attention(q, k, v, width)
right, _ = attention(q, k, v, torch.ones(T, T).tril() - torch.ones(T, T).tril(-width))
torch.testing.assert_close(found[width:], right[width:], rtol=1e-4, atol=1e-5)
beginning = torch.allclose(found, right, rtol=1e-4, atol=1e-5)
print("right at the beginning:", beginning, " largest tensor, bytes:", watch.largest)
2 + beginning + (watch.largest < T * T) if beginning else 2
### END HIDDEN TESTS

# %% [markdown]
# ## Task 6. Hunt with a test (code, medium, 25 minutes, 3 points)
#
# Write a check that tells right functions from faulty ones. It gets a `function(query, key, value,
# mask)` with shapes (T, d_k), (S, d_k), (S, d_v) and (T, S), which should return output and weights
# as our `attention` does. If the function is faulty, your check raises an AssertionError. If the
# function is right, it raises nothing.
#
# The hidden tests have six functions with one fault each: finding one gives half a point. They also
# have right ones: if you reject one of those, you get no points. If the mask hides all keys of a query,
# its output and weights may be any finite numbers.
#
# Test properties, or cases that you can compute by hand, rather than compare with our `attention`.


# %% nbgrader={"grade": false, "grade_id": "check_of_attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def check_of_attention(function) -> None:
    """Raise an AssertionError if the function is not scaled dot-product attention."""
    ### BEGIN SOLUTION
    query = torch.tensor([[2.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    key = 3 * torch.eye(4)[:3]
    value = torch.tensor([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0]])
    mask = torch.tensor([[True, True, False], [False, True, True]])
    output, weights = function(query, key, value, mask)
    one = 1 / (1 + math.exp(-3.0))  # scores 6/2 and 0
    other = 1 / (1 + math.exp(-1.5))
    right = torch.tensor([[one, 1 - one, 0], [0, other, 1 - other]])
    assert torch.allclose(weights, right, atol=1e-5)
    assert torch.allclose(output, right @ value, atol=1e-4)
    output, _ = function(query, key, value, torch.zeros(2, 3, dtype=torch.bool))
    assert output.isfinite().all()
    return  # only a blank sheet reaches the next line
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "check_of_attention-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    check_of_attention(attention)

    def attention_to_the_first(query, key, value, mask):
        weights = torch.zeros(len(query), len(key))
        weights[:, 0] = 1
        return weights @ value, weights

    try:
        check_of_attention(attention_to_the_first)
    except AssertionError:
        print("rejected, as it should be")
    else:
        raise AssertionError(
            "your check does not notice a function that attends to the first key only"
        )
### BEGIN HIDDEN TESTS
import functools


def plain(query, key, value, mask, divisor=None, closed=None, axis=-1, lowest=-1e30):
    scores = query @ key.T / (divisor or math.sqrt(query.size(-1)))
    if mask is not None:
        scores = scores.masked_fill(closed(mask) if closed else mask == 0, lowest)
    weights = scores.softmax(axis)
    return weights @ value, weights


def with_exponentials(query, key, value, mask):
    shares = (key @ query.T).T / math.sqrt(query.size(-1))
    if mask is not None:
        shares = shares.masked_fill(mask == 0, -torch.inf)
    shares = (shares - shares.amax(-1, keepdim=True).clamp(min=-1e30)).exp()
    weights = shares / shares.sum(-1, keepdim=True).clamp(min=1e-30)
    return weights @ value, weights


def other_values(query, key, value, mask):
    _, weights = plain(query, key, value, mask)
    return weights @ value.roll(1, 0), weights


ways = {
    "no division": functools.partial(plain, divisor=1.0),
    "division by d_k": lambda query, *more: plain(query, *more, divisor=query.size(-1)),
    "the mask upside down": functools.partial(plain, closed=lambda mask: mask != 0),
    "no mask": functools.partial(plain, closed=torch.zeros_like),
    "NaN where no key is open": functools.partial(plain, lowest=-torch.inf),
    "values of other keys": other_values,
}


def under_test(query, key, value, mask=None):
    """All versions look like this one: nothing but what it returns tells them apart."""
    return current(query, key, value, mask)


for current in (plain, with_exponentials):
    check_of_attention(under_test)  # raises an error if it rejects a correct function
found = []
for name, current in ways.items():
    try:
        check_of_attention(under_test)
    except AssertionError:
        found.append(name)
print("noticed:", found)
len(found) / 2
### END HIDDEN TESTS

# %% [markdown]
# ## Task 7. How many keys a query uses (experiment with a report, medium, 35 minutes, 4 points)
#
# The *effective number* of keys of a query is $\exp(H)$, where $H = -\sum_i w_i \log w_i$ is the
# entropy of its weights. It is $S$ if all weights are equal, and 1 if one key has all the weight.
#
# 1. Write `effective_keys` (1 point). A weight of zero adds nothing to the entropy.
# 2. Draw random queries, and for each of them 256 random keys, all of width 64 (`torch.randn`).
#    Multiply the scores $q \cdot k / \sqrt{d_k}$ by a factor $c$. For which $c$ is the mean
#    effective number 128? Measure it to within 0.01, and write it as `half_factor` (1 point). This
#    takes thousands of queries.


# %% nbgrader={"grade": false, "grade_id": "half_of_the_keys", "locked": false, "schema_version": 3, "solution": true, "task": false}
def effective_keys(weights: Tensor) -> Tensor:
    """Effective number of keys: weights (..., S) -> (...)."""
    ### BEGIN SOLUTION
    return torch.special.entr(weights).sum(-1).exp()
    ### END SOLUTION
    raise NotImplementedError


half_factor = None
### BEGIN SOLUTION
half_factor = 1.205
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "half_of_the_keys-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert torch.isclose(effective_keys(torch.full((8,), 1 / 8)), torch.tensor(8.0)), (
        "eight equal weights"
    )
    assert torch.isclose(effective_keys(torch.eye(3)[0]), torch.tensor(1.0)), (
        "all weight on one key"
    )
### BEGIN HIDDEN TESTS
weights = torch.randn(4, 3, 11).mul(2).softmax(-1)
entropy = torch.distributions.Categorical(weights).entropy()
torch.testing.assert_close(effective_keys(weights), entropy.exp(), rtol=1e-4, atol=1e-4)
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "half_of_the_keys-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if half_factor is None:
        raise NotImplementedError
    assert half_factor > 0, "a factor above zero"
### BEGIN HIDDEN TESTS
torch.manual_seed(1)
lengths = torch.randn(20_000, 64).norm(dim=1, keepdim=True)
scores = lengths * torch.randn(20_000, 256) / 8  # distributed as those of random queries and keys


def mean_of_keys(factor):
    return torch.special.entr((factor * scores).softmax(-1)).sum(-1).exp().mean().item()


low, high = mean_of_keys(half_factor + 0.012), mean_of_keys(half_factor - 0.012)
assert low < 128 < high, f"with {half_factor}, the mean is between {low:.0f} and {high:.0f} of 256"
### END HIDDEN TESTS

# %% [markdown]
# *Your report, 100 to 200 words (2 of the 4 points).* How did you measure, and how sure are you?
# How does $c$ change with 1,024 keys, where half is 512? And with 256 keys of width 16? If the
# scores were draws from a normal distribution, $H$ would be about $\log S - c^2/2$. Which $c$
# follows from that, and does it agree with yours?

# %% [markdown] nbgrader={"grade": true, "grade_id": "half_of_the_keys-report", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# See *What a report should say* in `exercises/README.md`.
