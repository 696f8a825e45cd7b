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

# %% deletable=false nbgrader={"cell_type": "code", "checksum": "33016661b212009925c887a4b2e0228c", "grade": false, "grade_id": "predictions", "locked": false, "schema_version": 3, "solution": true, "task": false}
predicted = None
observed = None
# Write your answer here.

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "2bc813568cc9d80ef734c65fd76b44cb", "grade": true, "grade_id": "predictions-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (predicted, observed):
        raise NotImplementedError
    for letters in (predicted, observed):
        assert len(letters) == 6, "there are six statements"
        assert set(letters) <= set("TF"), "write T or F"

# %% [markdown]
# ## Task 2. The variance of a score (derivation, medium, 20 minutes, 2 points)
#
# In the text, the score $q \cdot k / \sqrt{d_k}$ has variance one, because all entries are
# independent with mean zero and variance one. Now the entries, still independent, have mean $m$ and
# variance $a$ in a query, and mean $c$ and variance $b$ in a key. Derive the variance of the score
# by hand. The function returns your formula.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "5f07d106fdfa602e9252dab32c6c6b67", "grade": false, "grade_id": "score_variance", "locked": false, "schema_version": 3, "solution": true, "task": false}
def score_variance(m: float, a: float, c: float, b: float, d_k: int) -> float:
    """Variance of a score: queries with mean m, variance a; keys with mean c, variance b."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "b219296c03da536388947b58610b1e81", "grade": true, "grade_id": "score_variance-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert math.isclose(score_variance(0, 1, 0, 1, 64), 1), "the case in the text has variance one"

# %% [markdown]
# ## Task 3. The gradient that reaches the scores (derivation, medium, 25 minutes, 3 points)
#
# One query gives the weights $w$ to $S$ keys, and its output is $o = \sum_i w_i v_i$. The gradient
# $g = \partial L / \partial o$ is known. Derive $\partial L / \partial s_i$, the gradient with
# respect to the scores, by hand. Start from the derivative of the softmax in the text, and simplify
# until no table of $S \times S$ numbers is left. The function returns your formula. Automatic
# differentiation does not work in the test.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "410c92dbe9238ffbcb1427e5fab1ff8a", "grade": false, "grade_id": "score_gradient", "locked": false, "schema_version": 3, "solution": true, "task": false}
def score_gradient(weights: Tensor, values: Tensor, g: Tensor) -> Tensor:
    """Gradient with respect to the scores: weights (S,), values (S, d_v), g (d_v,) -> (S,)."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "5f5b33d9d2b1be12a6460337c0e7a4c0", "grade": true, "grade_id": "score_gradient-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    equal = torch.full((3,), 1 / 3)
    same_values = torch.ones(3, 2)
    found = score_gradient(equal, same_values, torch.tensor([1.0, 2.0]))
    assert found.shape == (3,), f"the shape should be (3,), it is {tuple(found.shape)}"
    assert found.abs().max() < 1e-6, (
        "all values are the same: no change of weights changes the output"
    )

# %% [markdown]
# ## Task 4. Who attends to whom? (by hand, easy, 20 minutes, 2 points)
#
# With the matrices of the text, *Mädchen* attends to *roten* more than to *kleines*. Choose two 2 ×
# 2 matrices with which *Mädchen* gives more than half of its weight to *kleines*, and *Ball* more
# than half of its weight to *roten*. Write each matrix as a list of rows.
#
# Hint: if two vectors point in different directions, one matrix can map them to any two vectors.

# %% deletable=false nbgrader={"cell_type": "code", "checksum": "16a897fef95ece9134d39fa68aae2a53", "grade": false, "grade_id": "matrices", "locked": false, "schema_version": 3, "solution": true, "task": false}
my_W_Q = None
my_W_K = None
# Write your answer here.

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "7ad7fde8de1f308c7b9de82d9467ba79", "grade": true, "grade_id": "matrices-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if my_W_Q is None or my_W_K is None:
        raise NotImplementedError
    queries = VECTORS @ torch.tensor(my_W_Q)
    keys = VECTORS @ torch.tensor(my_W_K)
    _, weights = attention(queries, keys, VECTORS)
    for word, row in zip(WORDS, weights, strict=True):
        print(f"{word:8} attends most to {WORDS[row.argmax()]} ({row.max():.2f})")

# %% [markdown]
# ## Task 5. A window (code, hard, 35 minutes, 4 points)
#
# In *windowed attention*, the query at position $t$ sees only itself and the `width` − 1 positions
# before it. The first queries see fewer. The right output gives three points. The fourth point is
# for memory: none of your tensors may have $T \times T$ numbers.
#
# Hint: `F.pad` and `Tensor.unfold`.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "7d4e762c057120aa16823b968d966ef2", "grade": false, "grade_id": "windowed_attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def windowed_attention(query: Tensor, key: Tensor, value: Tensor, width: int) -> Tensor:
    """Attention to the last `width` positions: three times (T, d_k) -> (T, d_k)."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "aaa579f1af30ecc61946a8840ce93cad", "grade": true, "grade_id": "windowed_attention-test", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    x = torch.randn(6, 4)
    assert windowed_attention(x, x, x, 3).shape == (6, 4), "the shape should be that of the query"
    torch.testing.assert_close(
        windowed_attention(x, x, x, 1), x, msg="width 1: each sees only itself"
    )

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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "cdb88f4460d2cd6800f34f7a6c299e37", "grade": false, "grade_id": "check_of_attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def check_of_attention(function) -> None:
    """Raise an AssertionError if the function is not scaled dot-product attention."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "845791c18912f27246e556ee543e5d2d", "grade": true, "grade_id": "check_of_attention-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "d3354c35b3ca128d26f80222a79e2c2c", "grade": false, "grade_id": "half_of_the_keys", "locked": false, "schema_version": 3, "solution": true, "task": false}
def effective_keys(weights: Tensor) -> Tensor:
    """Effective number of keys: weights (..., S) -> (...)."""
    # Write your answer here.
    raise NotImplementedError


half_factor = None
# Write your answer here.

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "ecb4cb19b440609f04bb3c747515077d", "grade": true, "grade_id": "half_of_the_keys-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert torch.isclose(effective_keys(torch.full((8,), 1 / 8)), torch.tensor(8.0)), (
        "eight equal weights"
    )
    assert torch.isclose(effective_keys(torch.eye(3)[0]), torch.tensor(1.0)), (
        "all weight on one key"
    )

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "d76aca23ad354d7f28de354599d1dd23", "grade": true, "grade_id": "half_of_the_keys-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if half_factor is None:
        raise NotImplementedError
    assert half_factor > 0, "a factor above zero"

# %% [markdown]
# *Your report, 100 to 200 words (2 of the 4 points).* How did you measure, and how sure are you?
# How does $c$ change with 1,024 keys, where half is 512? And with 256 keys of width 16? If the
# scores were draws from a normal distribution, $H$ would be about $\log S - c^2/2$. Which $c$
# follows from that, and does it agree with yours?

# %% [markdown] deletable=false nbgrader={"cell_type": "markdown", "checksum": "1e3381e9e09a26c02b906debe0b9af8c", "grade": true, "grade_id": "half_of_the_keys-report", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# *Write your report here.*
