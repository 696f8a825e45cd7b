# %% [markdown]
# # Sheet 3. Training and the copy task
#
# 20 points, about three and a half hours. Read [Parts 3 and 4](../index.html#training) first.
#
# Write your answers into the cells with a `raise` or a `None`. The cell below a task checks a
# little of your answer; hidden tests, with other numbers and sizes, give the points. You may add
# cells and functions. Hand in the notebook, under its name.

# %%
import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

sys.path[:0] = [".", "../.."]  # the script lies beside this sheet, or two folders up
from the_annotated_transformer import (
    END,
    PAD,
    START,
    Batch,
    EncoderDecoder,
    data_gen,
    evaluating,
    greedy_decode,
    kinds_of_copies,
    make_model,
    new_copy_model,
    rate,
    train_to_copy,
)


@contextlib.contextmanager
def when_answered():
    """Around a check: says so where a task is not answered yet; a wrong answer raises an error."""
    try:
        yield
    except NotImplementedError as missing:
        print("not answered yet.", missing)


# %% [markdown]
# ## Task 1. What smoothing asks for (derivation, medium, 25 minutes, 2 points)
#
# Derive three formulas for a vocabulary of `V` tokens and smoothing `eps`:
#
# 1. the lowest cross-entropy at one position with the text's target, which shares ε among the words
#    that are neither right nor padding (half a point);
# 2. the lowest cross-entropy with PyTorch's target: `F.cross_entropy(…, label_smoothing=eps)`
#    shares ε among *all* V words, padding and the right one included (one point);
# 3. the logit of the right word minus the logit of another word, not padding, in a model that
#    reaches the first minimum (half a point).
#
# For yourself: what happens to the third if ε goes to 0? Why does smoothing keep weights small?


# %% nbgrader={"grade": false, "grade_id": "smoothing", "locked": false, "schema_version": 3, "solution": true, "task": false}
def lowest_loss(V: int, eps: float) -> float:
    """The lowest cross-entropy at one position with the text's smoothing, 0 < eps < 1."""
    ### BEGIN SOLUTION
    return -(1 - eps) * math.log(1 - eps) - eps * math.log(eps / (V - 2))
    ### END SOLUTION
    raise NotImplementedError


def lowest_loss_of_torch(V: int, eps: float) -> float:
    """The lowest cross-entropy at one position with PyTorch's smoothing."""
    ### BEGIN SOLUTION
    other = eps / V
    right = 1 - eps + other
    return -right * math.log(right) - (V - 1) * other * math.log(other)
    ### END SOLUTION
    raise NotImplementedError


def logit_gap(V: int, eps: float) -> float:
    """Logit of the right word minus logit of another one, at the minimum of `lowest_loss`."""
    ### BEGIN SOLUTION
    return math.log((1 - eps) / (eps / (V - 2)))
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "smoothing-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert abs(lowest_loss(5000, 0.1) - 1.18) < 0.005, "the lowest loss for 5,000 tokens is 1.18"
    assert logit_gap(9, 0.01) > logit_gap(9, 0.1) > 0, "the gap grows as eps gets smaller"
### BEGIN HIDDEN TESTS
for V, eps in ((12, 0.3), (700, 0.05)):
    target = torch.full((V - 1,), eps / (V - 2), dtype=torch.double)  # all but padding
    target[0] = 1 - eps
    assert math.isclose(lowest_loss(V, eps), torch.special.entr(target).sum()), "lowest_loss"
    assert math.isclose(logit_gap(V, eps), (target[0] / target[1]).log()), "logit_gap"
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "smoothing-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    two_words = F.cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), label_smoothing=0.3)
    assert lowest_loss_of_torch(2, 0.3) < two_words, "equal probabilities are not the best answer"
### BEGIN HIDDEN TESTS
for V, eps in ((12, 0.3), (700, 0.05)):
    target = torch.full((V,), eps / V, dtype=torch.double)
    target[0] += 1 - eps
    right = torch.special.entr(target).sum()
    assert math.isclose(lowest_loss_of_torch(V, eps), right), "PyTorch's target has all V words"
### END HIDDEN TESTS

# %% [markdown]
# ## Task 2. Adam after one gradient (derivation, medium, 20 minutes, 2 points)
#
# A parameter belongs to a rare word. Its gradient is $g > 0$ at step 1, and zero at all later
# steps. Adam's ε is zero. By how much does Adam move the parameter at step `n`, in units of the
# learning rate? Write the size of this move with the bias corrections, and without them.
#
# For yourself, with the paper's 0.9 and 0.98: how large is the first move, and does it depend on
# $g$? How far does the parameter move in all? Why does a warm-up help?


# %% nbgrader={"grade": false, "grade_id": "adam", "locked": false, "schema_version": 3, "solution": true, "task": false}
def move(n: int, beta1: float, beta2: float) -> float:
    """Size of Adam's n-th move, in learning rates, after a gradient at step 1 alone."""
    ### BEGIN SOLUTION
    m = (1 - beta1) * beta1 ** (n - 1) / (1 - beta1**n)
    v = (1 - beta2) * beta2 ** (n - 1) / (1 - beta2**n)
    return m / math.sqrt(v)
    ### END SOLUTION
    raise NotImplementedError


def move_uncorrected(n: int, beta1: float, beta2: float) -> float:
    """The same without bias corrections."""
    ### BEGIN SOLUTION
    m = (1 - beta1) * beta1 ** (n - 1)
    v = (1 - beta2) * beta2 ** (n - 1)
    return m / math.sqrt(v)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "adam-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    parameter = nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([parameter], lr=1.0, betas=(0.9, 0.98), eps=0.0)
    for n in (1, 2):
        before = parameter.item()
        parameter.grad = torch.tensor([5.0 if n == 1 else 0.0])
        adam.step()
        moved = abs(parameter.item() - before)
        assert abs(move(n, 0.9, 0.98) - moved) < 1e-4, f"PyTorch moves by {moved:.4f} at step {n}"
### BEGIN HIDDEN TESTS
parameter = nn.Parameter(torch.zeros(1))
adam = torch.optim.Adam([parameter], lr=1.0, betas=(0.7, 0.95), eps=0.0)
for n in range(1, 8):
    before = parameter.item()
    parameter.grad = torch.tensor([3.0 if n == 1 else 0.0])
    adam.step()
    assert abs(move(n, 0.7, 0.95) - (before - parameter.item())) < 1e-4, f"wrong at step {n}"
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "adam-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert 0.70 < move_uncorrected(1, 0.9, 0.98) < 0.71, "the first move is 0.1 / √0.02"
### BEGIN HIDDEN TESTS
m, v = 0.3, 0.05  # after the gradient 1
for n in range(1, 8):
    assert math.isclose(move_uncorrected(n, 0.7, 0.95), m / v**0.5), f"wrong at step {n}"
    m, v = 0.7 * m, 0.95 * v
### END HIDDEN TESTS

# %% [markdown]
# ## Task 3. A schedule from a plot (code, medium, 30 minutes, 2 points)
#
# A paper shows its learning rate as a plot and does not give `factor` and `warmup`. You know the
# width of the model, and you have read some points off the plot, in no order and with errors of up
# to one per cent. At least two lie on the rise and two on the fall, but perhaps none lies near the
# peak. Find `factor` and `warmup` of the text's formula, with errors of at most two per cent.
#
# Hint: what do you see if both axes are logarithmic?


# %% nbgrader={"grade": false, "grade_id": "schedule", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rebuild(points: list[tuple[int, float]], model_size: int) -> tuple[float, float]:
    """Points (step, learning rate) -> factor and warmup."""
    ### BEGIN SOLUTION
    points = sorted(points)
    fits = []
    for cut in range(2, len(points) - 1):  # the first points rise, the others fall
        rise = sum(math.log(r / step) for step, r in points[:cut]) / cut
        fall = sum(math.log(r * step**0.5) for step, r in points[cut:]) / (len(points) - cut)
        factor = math.exp(fall) * model_size**0.5
        warmup = math.exp((fall - rise) / 1.5)  # where the two lines meet
        errors = [math.log(r / rate(step, model_size, factor, warmup)) ** 2 for step, r in points]
        fits.append((sum(errors), factor, warmup))
    _, factor, warmup = min(fits)
    return factor, warmup
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "schedule-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    steps = (40, 3000, 100, 12_000, 300, 6000)
    factor, warmup = rebuild([(step, rate(step, 256, 2.0, 1000)) for step in steps], 256)
    assert abs(factor / 2 - 1) < 0.02, f"factor is 2, not {factor}"
    assert abs(warmup / 1000 - 1) < 0.02, f"warmup is 1000, not {warmup}"
### BEGIN HIDDEN TESTS
found = {"factor": True, "warmup": True}
for size, factor, warmup in ((130, 0.4, 7000), (900, 3.1, 400)):
    points = []
    for n, place in enumerate((0.05, 3.0, 0.4, 9.0, 2.2, 7.0, 0.11, 5.0)):
        step = round(place * warmup)
        points.append((step, rate(step, size, factor, warmup) * (1.008, 0.993, 1.001)[n % 3]))
    found_factor, found_warmup = rebuild(points, size)
    found["factor"] &= abs(found_factor / factor - 1) < 0.02
    found["warmup"] &= abs(found_warmup / warmup - 1) < 0.02
print("within two per cent:", found)
sum(found.values())
### END HIDDEN TESTS

# %% [markdown]
# ## Task 4. Exact accumulation from a stream (code, medium, 30 minutes, 3 points)
#
# `run_epoch` holds all batches of an update, to count their tokens first. Now only one batch fits
# into memory. A generator yields the batches, with different numbers of tokens. Write one update:
#
# - It uses the gradient of the mean loss over *all* tokens of the update.
# - It clips this gradient: if the norm of all gradients together is larger than `limit`, scale them
#   all so that the norm equals `limit`.
# - The model comes in training mode and without gradients. Leave no gradients behind.
#
# As in the text, `loss_compute(states, batch.tgt_y, ntokens)` returns the summed loss, without
# gradient, and the sum divided by `ntokens`.


# %% nbgrader={"grade": false, "grade_id": "accumulate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def update(
    model: EncoderDecoder, batches: Iterator[Batch], loss_compute, optimizer, limit: float
) -> float:
    """One update from all batches; returns the mean loss per token."""
    ### BEGIN SOLUTION
    tokens = 0
    total = 0.0
    for batch in batches:
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        batch_sum, loss = loss_compute(states, batch.tgt_y, 1)
        loss.backward()  # of the sum: its mean needs the number of all tokens
        tokens += batch.ntokens
        total += batch_sum.item()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= tokens
    nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    optimizer.zero_grad()
    return total / tokens
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "accumulate-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():

    class Summed:
        """A generator and cross-entropy, as `update` expects them."""

        def __init__(self, generator):
            self.generator = generator

        def __call__(self, states, target, ntokens):
            log_probs = self.generator(states).flatten(0, 1)
            total = F.nll_loss(log_probs, target.flatten(), ignore_index=PAD, reduction="sum")
            return total.detach(), total / ntokens

    torch.manual_seed(0)
    tried = make_model(9, 9, 1, 16, 32, 4, dropout=0.0)
    long = next(data_gen(9, 3, 1, length=7))
    short = next(data_gen(9, 1, 1, length=2))
    descent = torch.optim.SGD(tried.parameters(), lr=0.0)
    mean = update(tried, iter([long, short]), Summed(tried.generator), descent, limit=1.0)
    with torch.no_grad():
        sums = []
        for batch in (long, short):
            states = tried(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
            sums.append(Summed(tried.generator)(states, batch.tgt_y, 1)[0].item())
    expected = sum(sums) / (long.ntokens + short.ntokens)
    assert abs(mean - expected) < 1e-4, f"the mean loss per token is {expected}, not {mean}"
### BEGIN HIDDEN TESTS
events = []


class Noted(torch.autograd.Function):
    """The identity, which notes when its backward pass runs."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        events.append("backward")
        return gradient


def noted(batches):
    for batch in batches:
        events.append("batch")
        yield batch


def with_update(batches, limit):
    """Two updates by the function, and by the mean over all tokens: what is left of each."""
    results = []
    for by_hand in (False, True):
        torch.manual_seed(3)
        model = make_model(11, 11, 1, 8, 12, 2, dropout=0.0)
        descent = torch.optim.SGD(model.parameters(), lr=0.1)
        compute = Summed(model.generator)

        def loss_compute(states, target, ntokens, compute=compute):
            total, mean = compute(states, target, ntokens)
            return total, Noted.apply(mean)

        for _ in range(2):
            if not by_hand:
                mean = update(model, noted(batches), loss_compute, descent, limit)
                left = any(w.grad is not None and w.grad.any() for w in model.parameters())
                continue
            descent.zero_grad()
            tokens = sum(batch.ntokens for batch in batches)
            mean = 0.0
            for batch in batches:
                states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
                loss = compute(states, batch.tgt_y, tokens)[1]
                loss.backward()
                mean += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            descent.step()
        results.append((nn.utils.parameters_to_vector(model.parameters()), mean))
    (found, mean), (right, right_mean) = results
    return torch.allclose(found, right, atol=1e-5), abs(mean - right_mean) < 1e-4, left


batches = [next(data_gen(11, rows, 1, length=n)) for rows, n in ((1, 9), (4, 2), (2, 5))]
right, mean, left = with_update(batches, limit=1e9)
assert right and not left, "not the gradient of the mean over all tokens, or one is left behind"
streamed = events == 6 * ["batch", "backward"]
clipped, *_ = with_update(batches, limit=0.1)
print("clipped:", clipped, " one batch at a time:", streamed, " mean loss:", mean)
1 + clipped + (streamed and mean)
### END HIDDEN TESTS

# %% [markdown]
# ## Task 5. The lowest loss of a noisy copy (derivation, medium, 20 minutes, 2 points)
#
# In a noisy copy task, each target token equals the source token with probability 1 − q. With
# probability q it is drawn anew from all tokens to copy, all equally likely, so it may come out the
# same. There are `V` tokens, and four of them are special. A target has `length` tokens, and then
# the end token.
#
# A perfect model knows this rule, but not which tokens were drawn anew. What is its mean loss per
# target token, without label smoothing? Derive a formula **before** you train.


# %% nbgrader={"grade": false, "grade_id": "noisy_floor", "locked": false, "schema_version": 3, "solution": true, "task": false}
def noisy_floor(V: int, length: int, q: float) -> float:
    """The lowest mean loss per target token, in nats, 0 < q <= 1."""
    ### BEGIN SOLUTION
    n = V - 4
    other = q / n
    right = 1 - q + other
    token = -right * math.log(right) - (n - 1) * other * math.log(other)
    return token * length / (length + 1)  # the end token costs nothing
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "noisy_floor-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert noisy_floor(15, 10, 0.001) < 0.01, "nearly no noise, nearly no loss"
    assert noisy_floor(15, 10, 0.5) < noisy_floor(15, 10, 1.0) < math.log(11)
### BEGIN HIDDEN TESTS
for V, length, q in ((9, 4, 0.6), (30, 21, 0.15)):
    shares = torch.full((V - 4,), q / (V - 4), dtype=torch.double)
    shares[0] += 1 - q
    right = torch.special.entr(shares).sum() * length / (length + 1)
    assert math.isclose(noisy_floor(V, length, q), right), "not the mean entropy of a target token"
### END HIDDEN TESTS

# %% [markdown]
# ## Task 6. Noisy copies: measure (experiment, medium, 20 minutes, 2 points)
#
# Write batches of the noisy copy task, as `data_gen` does for copies. Then call `train_on_noise` in a
# cell of your own: it trains a model on them, in less than a minute. Copy what it returns into
# `noisy_measured`.
#
# For yourself: how near does the loss come to your formula? The text warns that a low loss can lie.
# What does the high loss here say about the copies? For which q would greedy decoding fail?


# %% nbgrader={"grade": false, "grade_id": "noisy_copies", "locked": false, "schema_version": 3, "solution": true, "task": false}
def noisy_batches(V: int, batch_size: int, nbatches: int, length: int, q: float) -> Iterator[Batch]:
    """Batches of random sequences; each target token is drawn anew with probability q."""
    ### BEGIN SOLUTION
    for clean in data_gen(V, batch_size, nbatches, length):
        drawn = torch.randint(4, V, clean.src.shape)
        noisy = torch.where(torch.rand(clean.src.shape) < q, drawn, clean.src)
        yield Batch(clean.src, F.pad(F.pad(noisy, (1, 0), value=START), (0, 1), value=END))
    return  # only a blank sheet reaches the next line
    ### END SOLUTION
    raise NotImplementedError


noisy_measured = None
### BEGIN SOLUTION
noisy_measured = {"floor": 1.104, "loss": 1.125, "copied of 200": 190}
### END SOLUTION


# %%
def train_on_noise(q: float = 0.3) -> dict[str, float]:
    """Train for 400 updates, then copy 200 sequences without noise."""
    model = new_copy_model()
    test = next(data_gen(15, 200, 1))
    *_, loss = train_to_copy(model, lambda *sizes: noisy_batches(*sizes, 10, q), hundreds=4)
    copied = kinds_of_copies(model, test)["copied"]
    return {
        "floor": round(noisy_floor(15, 10, q), 3),
        "loss": round(loss, 3),
        "copied of 200": copied,
    }


# %% nbgrader={"grade": true, "grade_id": "noisy_copies-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    noise = next(noisy_batches(15, 50, 1, 10, 0.5))
    assert noise.src.shape == (50, 10) and noise.tgt_y.shape == (50, 11)
    assert 0.4 < (noise.src == noise.tgt_y[:, :-1]).float().mean() < 0.7, "about half must be equal"
### BEGIN HIDDEN TESTS
noisy = list(noisy_batches(9, 300, 3, 6, 0.6))
assert [batch.ntokens for batch in noisy] == 3 * [300 * 7], "batches of another size"
src = torch.cat([batch.src for batch in noisy])
read = torch.cat([batch.tgt for batch in noisy])
predict = torch.cat([batch.tgt_y for batch in noisy])
assert (read[:, 0] == START).all() and (predict[:, -1] == END).all(), "start or end is missing"
copied = predict[:, :-1]
assert set(src.unique().tolist()) == set(copied.unique().tolist()) == set(range(4, 9))
same = (src == copied).float()
assert abs(same.mean() - (0.4 + 0.6 / 5)) < 0.04, "a token drawn anew may come out the same"
assert same.mean(0).std() < 0.06 and same.mean(1).std() < 0.25, "each token has its own noise"
shares = copied[same == 0].bincount()[4:] / (same == 0).sum()
assert (shares - 0.2).abs().max() < 0.05, "tokens drawn anew are equally likely"
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "noisy_copies-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if noisy_measured is None:
        raise NotImplementedError
    assert set(noisy_measured) == {"floor", "loss", "copied of 200"}, "copy all that is returned"
### BEGIN HIDDEN TESTS
assert -0.02 < noisy_measured["loss"] - 1.104 < 0.15, "this loss is not from the experiment"
assert 100 <= noisy_measured["copied of 200"] <= 200
### END HIDDEN TESTS

# %% [markdown]
# ## Task 7. Sort instead of copy (experiment with a report, medium, 40 minutes, 4 points)
#
# The target is now the source in ascending order. Write the batches.
#
# `four_models` trains four models, in less than a minute: for sorting and for copying, one without
# positions in the source and one without positions in the target. **Predict which of them fail before
# you call it**, in a cell of your own. Then copy what it returns into `sorted_measured`.


# %% nbgrader={"grade": false, "grade_id": "sorting", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sorted_batches(V: int, batch_size: int, nbatches: int, length: int) -> Iterator[Batch]:
    """Batches of random sequences whose target is the source in ascending order."""
    ### BEGIN SOLUTION
    for copies in data_gen(V, batch_size, nbatches, length):
        in_order = copies.src.sort(dim=-1).values
        yield Batch(copies.src, F.pad(F.pad(in_order, (1, 0), value=START), (0, 1), value=END))
    return  # only a blank sheet reaches the next line
    ### END SOLUTION
    raise NotImplementedError


sorted_measured = None
### BEGIN SOLUTION
sorted_measured = {
    "sort, no source positions": 198,
    "sort, no target positions": 176,
    "copy, no source positions": 2,
    "copy, no target positions": 199,
}
### END SOLUTION


# %%
def exact(model: EncoderDecoder, batch: Batch) -> int:
    """For how many sequences of a batch greedy decoding writes the target without a mistake."""
    longest = batch.tgt_y.size(1)
    written = greedy_decode(model, batch.src, batch.src_mask, longest + 1, START)[:, 1:]
    written = F.pad(written, (0, longest - written.size(1)), value=PAD)
    return (written == batch.tgt_y).all(1).sum().item()


def train_without_positions(make_batches: Callable, side: str) -> int:
    """Train one layer for 400 updates without the positions of a side; exact of 200 sequences."""
    model = new_copy_model(N=1)
    embedding = model.src_embed if side == "source" else model.tgt_embed
    embedding[1] = nn.Identity()
    test = next(make_batches(15, 200, 1, 6))
    for _ in train_to_copy(model, lambda *sizes: make_batches(*sizes, 6), hundreds=4):
        pass
    return exact(model, test)


def four_models() -> dict[str, int]:
    """Exact of 200 sequences, by task and by the side without positions."""
    return {
        f"{task}, no {side} positions": train_without_positions(make_batches, side)
        for task, make_batches in (("sort", sorted_batches), ("copy", data_gen))
        for side in ("source", "target")
    }


# %% nbgrader={"grade": true, "grade_id": "sorting-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    few = next(sorted_batches(15, 3, 1, 6))
    assert few.src.shape == (3, 6) and few.tgt_y.shape == (3, 7)
    assert (few.tgt_y[:, :-1].diff() >= 0).all(), "the target is not in ascending order"
### BEGIN HIDDEN TESTS
first, second = sorted_batches(12, 40, 2, 9)
for batch in (first, second):
    assert batch.src.shape == (40, 9) and set(batch.src.unique().tolist()) == set(range(4, 12))
    in_order = torch.tensor([sorted(row) for row in batch.src.tolist()])
    assert batch.tgt.equal(F.pad(in_order, (1, 0), value=START)), "start, then all in order"
    assert batch.tgt_y.equal(F.pad(in_order, (0, 1), value=END)), "all in order, then the end"
assert not first.src.equal(second.src) and not first.src.equal(in_order), "sources are random"
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "sorting-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if sorted_measured is None:
        raise NotImplementedError
    assert len(sorted_measured) == 4, "copy all that is returned"
### BEGIN HIDDEN TESTS
for name, copies in sorted_measured.items():
    low, high = (0, 30) if name == "copy, no source positions" else (120, 200)
    assert low <= copies <= high, f"{name}: not from this experiment"
### END HIDDEN TESTS

# %% [markdown]
# *Your report, 100 to 150 words (2 of the 4 points).* Which models did you expect to fail? Explain
# the four numbers. How does a decoder without positions know how many tokens it has written? What
# would happen if you also removed the causal mask?

# %% [markdown] nbgrader={"grade": true, "grade_id": "sorting-report", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# See *What a report should say* in `exercises/README.md`.

# %% [markdown]
# ## Task 8. Three faults (bug hunt, medium, 30 minutes, 3 points)
#
# Does a model find later words harder than earlier ones? The function below should compute the mean
# negative log-likelihood at each target position, over all real tokens at that position. It raises
# no error, but it has three faults. Copy it into the task's cell and repair it. No target is longer
# than `longest`. Afterwards the model must be in the same mode as before.
#
# Hint: change something that must not change the result. Call the function twice. Add a column of
# padding. Put the same sentences into other batches.


# %%
def faulty_loss_by_position(model: EncoderDecoder, batches: Iterable[Batch], longest: int):
    """Mean loss at each of `longest` positions, with three faults."""
    total = torch.zeros(longest)
    seen = torch.zeros(longest)
    with torch.no_grad():
        for batch in batches:
            states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
            log_probs = model.generator(states)
            loss = -log_probs.gather(-1, batch.tgt_y.unsqueeze(-1)).squeeze(-1)  # (B, T)
            T = loss.size(1)
            total[:T] += loss.mean(0)
            seen[:T] += 1
    return total / seen


# %% nbgrader={"grade": false, "grade_id": "by_position", "locked": false, "schema_version": 3, "solution": true, "task": false}
def loss_by_position(model: EncoderDecoder, batches: Iterable[Batch], longest: int):
    """Mean loss at each of `longest` positions, a tensor (longest,)."""
    ### BEGIN SOLUTION
    total = torch.zeros(longest)
    seen = torch.zeros(longest)
    with evaluating(model):
        for batch in batches:
            states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
            log_probs = model.generator(states)
            loss = -log_probs.gather(-1, batch.tgt_y.unsqueeze(-1)).squeeze(-1)  # (B, T)
            real = batch.tgt_y != PAD
            T = loss.size(1)
            total[:T] += (loss * real).sum(0)
            seen[:T] += real.sum(0)
    return total / seen
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "by_position-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    plain = make_model(9, 9, 1, 16, 32, 4).eval()
    one = next(data_gen(9, 4, 1, length=3))
    found = loss_by_position(plain, [one], 4)
    assert found.shape == (4,), "a number for each position"
    assert torch.allclose(found, faulty_loss_by_position(plain, [one], 4)), (
        "in eval mode, with one batch and no padding, the faulty function is right"
    )


### BEGIN HIDDEN TESTS
def right(model, batches, longest):
    values = [[] for _ in range(longest)]
    with evaluating(model):
        for batch in batches:
            states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
            log_probs = model.generator(states)
            for row, words in enumerate(batch.tgt_y.tolist()):
                for place, word in enumerate(words):
                    if word != PAD:
                        values[place].append(-log_probs[row, place, word].item())
    return torch.tensor([sum(each) / len(each) for each in values])


def agrees(model, batches, longest):
    found = loss_by_position(model, batches, longest)
    return torch.allclose(found, right(model, batches, longest), atol=1e-4)


full = [next(data_gen(11, 3, 1, length=5))]
assert agrees(make_model(11, 11, 1, 8, 16, 2).eval(), full, 6), "wrong in the simplest case"
dropping = make_model(11, 11, 1, 8, 16, 2, dropout=0.5).train()
mode = agrees(dropping, full, 6) and dropping.training
plain = make_model(11, 11, 1, 8, 16, 2, dropout=0.0).eval()
padded = torch.tensor([[4, 5, 6, 7, END], [8, 9, END, PAD, PAD], [5, END, PAD, PAD, PAD]])
padding = agrees(plain, [Batch(padded, F.pad(padded, (1, 0), value=START))], 5)
sizes = agrees(plain, [next(data_gen(11, rows, 1, length=4)) for rows in (1, 6)], 5)
print("mode:", mode, " padding:", padding, " batches of other sizes:", sizes)
mode + padding + sizes
### END HIDDEN TESTS
