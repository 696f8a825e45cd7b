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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "650edb7c01f92d92e94b7a29ed032d24", "grade": false, "grade_id": "smoothing", "locked": false, "schema_version": 3, "solution": true, "task": false}
def lowest_loss(V: int, eps: float) -> float:
    """The lowest cross-entropy at one position with the text's smoothing, 0 < eps < 1."""
    # Write your answer here.
    raise NotImplementedError


def lowest_loss_of_torch(V: int, eps: float) -> float:
    """The lowest cross-entropy at one position with PyTorch's smoothing."""
    # Write your answer here.
    raise NotImplementedError


def logit_gap(V: int, eps: float) -> float:
    """Logit of the right word minus logit of another one, at the minimum of `lowest_loss`."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "b57492d824e23c65e88c81984a0958bb", "grade": true, "grade_id": "smoothing-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert abs(lowest_loss(5000, 0.1) - 1.18) < 0.005, "the lowest loss for 5,000 tokens is 1.18"
    assert logit_gap(9, 0.01) > logit_gap(9, 0.1) > 0, "the gap grows as eps gets smaller"

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "06d03c616c7b062dced9057f82529c17", "grade": true, "grade_id": "smoothing-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    two_words = F.cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), label_smoothing=0.3)
    assert lowest_loss_of_torch(2, 0.3) < two_words, "equal probabilities are not the best answer"

# %% [markdown]
# ## Task 2. Adam after one gradient (derivation, medium, 20 minutes, 2 points)
#
# A parameter belongs to a rare word. Its gradient is $g > 0$ at step 1, and zero at all later
# steps. Adam's ε is zero. By how much does Adam move the parameter at step `n`, in units of the
# learning rate? Write the size of this move with the bias corrections, and without them.
#
# For yourself, with the paper's 0.9 and 0.98: how large is the first move, and does it depend on
# $g$? How far does the parameter move in all? Why does a warm-up help?


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "edb3c2e8c9f6d74a635bc3b2bc9e714a", "grade": false, "grade_id": "adam", "locked": false, "schema_version": 3, "solution": true, "task": false}
def move(n: int, beta1: float, beta2: float) -> float:
    """Size of Adam's n-th move, in learning rates, after a gradient at step 1 alone."""
    # Write your answer here.
    raise NotImplementedError


def move_uncorrected(n: int, beta1: float, beta2: float) -> float:
    """The same without bias corrections."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "db9240d668dca386f249515b471780b6", "grade": true, "grade_id": "adam-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    parameter = nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([parameter], lr=1.0, betas=(0.9, 0.98), eps=0.0)
    for n in (1, 2):
        before = parameter.item()
        parameter.grad = torch.tensor([5.0 if n == 1 else 0.0])
        adam.step()
        moved = abs(parameter.item() - before)
        assert abs(move(n, 0.9, 0.98) - moved) < 1e-4, f"PyTorch moves by {moved:.4f} at step {n}"

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "4c3b2a9fa48f825539d2755bf70413d0", "grade": true, "grade_id": "adam-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert 0.70 < move_uncorrected(1, 0.9, 0.98) < 0.71, "the first move is 0.1 / √0.02"

# %% [markdown]
# ## Task 3. A schedule from a plot (code, medium, 30 minutes, 2 points)
#
# A paper shows its learning rate as a plot and does not give `factor` and `warmup`. You know the
# width of the model, and you have read some points off the plot, in no order and with errors of up
# to one per cent. At least two lie on the rise and two on the fall, but perhaps none lies near the
# peak. Find `factor` and `warmup` of the text's formula, with errors of at most two per cent.
#
# Hint: what do you see if both axes are logarithmic?


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "8479c3a905ec7bc8b6674147de4db62b", "grade": false, "grade_id": "schedule", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rebuild(points: list[tuple[int, float]], model_size: int) -> tuple[float, float]:
    """Points (step, learning rate) -> factor and warmup."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "1202bec65ae433f844c1a9d18920413c", "grade": true, "grade_id": "schedule-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    steps = (40, 3000, 100, 12_000, 300, 6000)
    factor, warmup = rebuild([(step, rate(step, 256, 2.0, 1000)) for step in steps], 256)
    assert abs(factor / 2 - 1) < 0.02, f"factor is 2, not {factor}"
    assert abs(warmup / 1000 - 1) < 0.02, f"warmup is 1000, not {warmup}"

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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "db65afd3c590721cef0e8904764fb303", "grade": false, "grade_id": "accumulate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def update(
    model: EncoderDecoder, batches: Iterator[Batch], loss_compute, optimizer, limit: float
) -> float:
    """One update from all batches; returns the mean loss per token."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "b873918028c8a96c9a8a6bf41b2671d7", "grade": true, "grade_id": "accumulate-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "f53a5b7b595104929dd05da42e281e68", "grade": false, "grade_id": "noisy_floor", "locked": false, "schema_version": 3, "solution": true, "task": false}
def noisy_floor(V: int, length: int, q: float) -> float:
    """The lowest mean loss per target token, in nats, 0 < q <= 1."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "cc6019926bbe6d8a9995a04fb0e9c489", "grade": true, "grade_id": "noisy_floor-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert noisy_floor(15, 10, 0.001) < 0.01, "nearly no noise, nearly no loss"
    assert noisy_floor(15, 10, 0.5) < noisy_floor(15, 10, 1.0) < math.log(11)

# %% [markdown]
# ## Task 6. Noisy copies: measure (experiment, medium, 20 minutes, 2 points)
#
# Write batches of the noisy copy task, as `data_gen` does for copies. Then call `train_on_noise` in a
# cell of your own: it trains a model on them, in less than a minute. Copy what it returns into
# `noisy_measured`.
#
# For yourself: how near does the loss come to your formula? The text warns that a low loss can lie.
# What does the high loss here say about the copies? For which q would greedy decoding fail?


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "5a2d2c7be3d49a9dbb5beb7f07ca031d", "grade": false, "grade_id": "noisy_copies", "locked": false, "schema_version": 3, "solution": true, "task": false}
def noisy_batches(V: int, batch_size: int, nbatches: int, length: int, q: float) -> Iterator[Batch]:
    """Batches of random sequences; each target token is drawn anew with probability q."""
    # Write your answer here.
    raise NotImplementedError


noisy_measured = None
# Write your answer here.


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


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "4762beb4050f45fe343cf5826da6aa13", "grade": true, "grade_id": "noisy_copies-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    noise = next(noisy_batches(15, 50, 1, 10, 0.5))
    assert noise.src.shape == (50, 10) and noise.tgt_y.shape == (50, 11)
    assert 0.4 < (noise.src == noise.tgt_y[:, :-1]).float().mean() < 0.7, "about half must be equal"

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "f771db76f35c116da90712c88c773f70", "grade": true, "grade_id": "noisy_copies-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if noisy_measured is None:
        raise NotImplementedError
    assert set(noisy_measured) == {"floor", "loss", "copied of 200"}, "copy all that is returned"

# %% [markdown]
# ## Task 7. Sort instead of copy (experiment with a report, medium, 40 minutes, 4 points)
#
# The target is now the source in ascending order. Write the batches.
#
# `four_models` trains four models, in less than a minute: for sorting and for copying, one without
# positions in the source and one without positions in the target. **Predict which of them fail before
# you call it**, in a cell of your own. Then copy what it returns into `sorted_measured`.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "d1c8968e626e3a609918a2a18fe31446", "grade": false, "grade_id": "sorting", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sorted_batches(V: int, batch_size: int, nbatches: int, length: int) -> Iterator[Batch]:
    """Batches of random sequences whose target is the source in ascending order."""
    # Write your answer here.
    raise NotImplementedError


sorted_measured = None
# Write your answer here.


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


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "7af03c19ef0ea02a964637e265af4904", "grade": true, "grade_id": "sorting-1-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    few = next(sorted_batches(15, 3, 1, 6))
    assert few.src.shape == (3, 6) and few.tgt_y.shape == (3, 7)
    assert (few.tgt_y[:, :-1].diff() >= 0).all(), "the target is not in ascending order"

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "8501325316ce80d0b587774f1d5574af", "grade": true, "grade_id": "sorting-2-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if sorted_measured is None:
        raise NotImplementedError
    assert len(sorted_measured) == 4, "copy all that is returned"

# %% [markdown]
# *Your report, 100 to 150 words (2 of the 4 points).* Which models did you expect to fail? Explain
# the four numbers. How does a decoder without positions know how many tokens it has written? What
# would happen if you also removed the causal mask?

# %% [markdown] deletable=false nbgrader={"cell_type": "markdown", "checksum": "5b643be3d0deef047cbf588b65045637", "grade": true, "grade_id": "sorting-report", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# *Write your report here.*

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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "5abf91cbd03ed9318b57fe5261bc822a", "grade": false, "grade_id": "by_position", "locked": false, "schema_version": 3, "solution": true, "task": false}
def loss_by_position(model: EncoderDecoder, batches: Iterable[Batch], longest: int):
    """Mean loss at each of `longest` positions, a tensor (longest,)."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "92b654ba75536d4e3a90a1b75605a46c", "grade": true, "grade_id": "by_position-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    plain = make_model(9, 9, 1, 16, 32, 4).eval()
    one = next(data_gen(9, 4, 1, length=3))
    found = loss_by_position(plain, [one], 4)
    assert found.shape == (4,), "a number for each position"
    assert torch.allclose(found, faulty_loss_by_position(plain, [one], 4)), (
        "in eval mode, with one batch and no padding, the faulty function is right"
    )


