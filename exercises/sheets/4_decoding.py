# %% [markdown]
# # Sheet 4. Decoding and looking inside
#
# 20 points, about three and a half hours. Read [Beam search](../index.html#beam-search) to [A batch
# of beams](../index.html#many-sentences) in Part 7, and [Part 9](../index.html#looking-inside)
# first. Task 7 needs the folder `pretrained/` beside the script.
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
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

sys.path[:0] = [".", "../.."]  # the script lies beside this sheet, or two folders up
from the_annotated_transformer import (
    PAD,
    START,
    Batch,
    EncoderDecoder,
    MultiHeadedAttention,
    collate,
    encode_pairs,
    evaluating,
    load_trained_model,
    make_model,
    read_builtin,
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
# ## Task 1. One more token (derivation, easy, 10 minutes, 1 point)
#
# A hypothesis of `length` tokens has the log-probability `logp`. Its score is `logp` divided by the
# length penalty. Now one more token is added. Which log-probability of this token leaves the score
# as it is?


# %% nbgrader={"grade": false, "grade_id": "break_even", "locked": false, "schema_version": 3, "solution": true, "task": false}
def break_even(logp: float, length: int, alpha: float) -> float:
    """The log-probability of a next token that leaves the score of a hypothesis as it is."""
    ### BEGIN SOLUTION
    return logp * (((6 + length) / (5 + length)) ** alpha - 1)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "break_even-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert break_even(-3.0, 4, alpha=0.0) == 0, (
        "without a penalty, only a certain token costs nothing"
    )
    assert break_even(-3.0, 4, alpha=1.0) < 0, "with a penalty, a token may cost something"
### BEGIN HIDDEN TESTS
from the_annotated_transformer import length_penalty

for logp, length, alpha in ((-9.1, 7, 0.6), (-2.3, 31, 1.7)):
    more = logp + break_even(logp, length, alpha)
    same = logp / length_penalty(length, alpha)
    assert math.isclose(more / length_penalty(length + 1, alpha), same), "the score changes"
### END HIDDEN TESTS

# %% [markdown]
# ## Task 2. A step by hand (by hand, easy, 15 minutes, 2 points)
#
# A search with a beam of three knows the tokens `a`, `b`, `c` and the end token `.`. After two
# steps it holds, if *d* is the last digit of your number,
#
# | place | written | log-probability |
# | ---: | --- | ---: |
# | 0 | `a b` | −1.0 − *d* / 10 |
# | 1 | `b c` | −1.6 |
# | 2 | `a .` | −2.4 |
#
# The model gives these log-probabilities to the next token:
#
# | after | `a` | `b` | `c` | `.` |
# | --- | ---: | ---: | ---: | ---: |
# | `a b` | −1.3 | −4.0 | −1.1 | −1.5 |
# | `b c` | −2.8 | −3.5 | −4.0 | −0.1 |
#
# Do the next step of the beam search of Part 7 on paper. Which three hypotheses does the search
# hold after this step? Their order does not matter. May the search stop now if α = 0? If α = 1,
# what is the largest length limit $T_\mathrm{max}$ with which it may stop? Lengths do not count the
# start token.

# %% nbgrader={"grade": false, "grade_id": "beam_by_hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
held_after_the_step = None  # three texts such as "a b"
stops_with_alpha_0 = None  # True or False
largest_limit_with_alpha_1 = None  # a whole number
### BEGIN SOLUTION
# The ended one keeps its place. The best continuations are b c . (-1.7) and a b c (-2.1 - d/10): with
# d = 4, -2.5. With α = 0 the best ended score is -1.7, above this bound. With α = 1 it is -1.7 · 6/8,
# or -1.275, and the bound -2.5 · 6 / (5 + T) is at most that for T <= 6.76.
held_after_the_step = ["a .", "b c .", "a b c"]
stops_with_alpha_0 = True
largest_limit_with_alpha_1 = 6
### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "beam_by_hand-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (number, held_after_the_step, stops_with_alpha_0, largest_limit_with_alpha_1):
        raise NotImplementedError
    assert len(held_after_the_step) == 3, "a beam of three holds three hypotheses"
    assert all(len(each) % 2 for each in held_after_the_step), 'write tokens with one space: "a b"'
    assert stops_with_alpha_0 in (True, False), "True or False"
    assert isinstance(largest_limit_with_alpha_1, int), "the limit is a whole number"
### BEGIN HIDDEN TESTS
bound = 2.1 + number % 10 / 10  # of the open hypothesis, a b c
held = sorted(held_after_the_step) == ["a .", "a b c", "b c ."]
limits = [T for T in range(3, 99) if bound * 6 / (5 + T) > 1.275]
may_stop = stops_with_alpha_0 is True and largest_limit_with_alpha_1 == max(limits)
print("held:", held, " stopping:", may_stop)
held + may_stop
### END HIDDEN TESTS

# %% [markdown]
# ## Task 3. The least risk (code, medium, 20 minutes, 2 points)
#
# Beam search looks for the most likely translation. *Minimum Bayes risk* decoding looks for the
# translation that is most similar to all likely ones. It draws some candidates and rescales their
# probabilities to sum to one.
#
# Return the expected similarity of every candidate: the mean of `similarity(candidate, reference)`,
# where each reference counts by its probability. Every candidate is a reference, also for itself.
# `log_probs` are those of whole sentences, so −1,000 is not unusual. `similarity` need not be
# symmetric.


# %% nbgrader={"grade": false, "grade_id": "expected_similarity", "locked": false, "schema_version": 3, "solution": true, "task": false}
def expected_similarity(
    candidates: list, log_probs: list[float], similarity: Callable
) -> list[float]:
    """The mean of `similarity(candidate, reference)` over all references, for each candidate."""
    ### BEGIN SOLUTION
    weights = torch.tensor(log_probs, dtype=torch.double).softmax(dim=0).tolist()
    expected = []
    for written in candidates:
        terms = zip(weights, candidates, strict=True)
        expected.append(sum(weight * similarity(written, other) for weight, other in terms))
    return expected
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "expected_similarity-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():

    def share_of_words(written: str, reference: str) -> float:
        """The share of the words of `written` that occur in the reference."""
        words = written.split()
        return sum(word in reference.split() for word in words) / len(words)

    found = expected_similarity(
        ["a dog", "a cat"], [math.log(0.75), math.log(0.25)], share_of_words
    )
    assert abs(found[0] - 0.875) < 1e-6, "a dog: 0.75 · 1 + 0.25 · 1/2"
    assert abs(found[1] - 0.625) < 1e-6, "a cat: 0.75 · 1/2 + 0.25 · 1"


### BEGIN HIDDEN TESTS
def similar(written, reference):
    return sum(token in reference for token in written) / len(written)


drawn = ["abc", "aab", "cde", "f", "ebbc"]
logps = torch.tensor([-3.0, -1.2, -0.3, -2.0, -0.9]).double()
table = torch.tensor(
    [[similar(one, other) for other in drawn] for one in drawn], dtype=torch.double
)
right = (table @ logps.softmax(0)).tolist()
found = expected_similarity(drawn, logps.tolist(), similar)
assert all(map(math.isclose, found, right)), "the candidate comes first, the reference second"
try:
    found = expected_similarity(drawn, (logps - 2000).tolist(), similar)
    stable = all(abs(one - other) < 1e-6 for one, other in zip(found, right, strict=True))
except ArithmeticError:
    stable = False
print("with the small probabilities of long sentences:", stable)
1 + stable
### END HIDDEN TESTS

# %% [markdown]
# ## Task 4. How sharply does a head look? (code, medium, 20 minutes, 2 points)
#
# The *entropy* $-\sum_s w_s \log_2 w_s$ of a row of weights says how widely a head looks: $2^b$
# equal weights have an entropy of $b$ bits. Measure the encoder's self-attention. Return a tensor
# (N, H) with the mean entropy of each head's rows, over all real tokens of the batch. Measure in
# eval mode. Afterwards the model must be in the same mode as before.


# %% nbgrader={"grade": false, "grade_id": "head_entropies", "locked": false, "schema_version": 3, "solution": true, "task": false}
def head_entropies(model: EncoderDecoder, src: Tensor, src_mask: Tensor) -> Tensor:
    """Mean entropy in bits of each encoder head: src (B, S), src_mask (B, 1, S) -> (N, H)."""
    ### BEGIN SOLUTION
    with evaluating(model):
        model.encode(src, src_mask)
    weights = torch.stack([layer.self_attn.attn for layer in model.encoder.layers])
    entropy = -torch.special.xlogy(weights, weights).sum(-1) / math.log(2)  # (N, B, H, S)
    real = src_mask.squeeze(1)  # (B, S)
    return entropy.transpose(2, 3)[:, real].mean(1)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "head_entropies-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    model = make_model(9, 9, N=2, d_model=8, d_ff=8, h=2)
    for layer in model.encoder.layers:
        nn.init.zeros_(layer.self_attn.linears[0].weight)  # all scores are equal
    src = torch.tensor([[4, 5, 6, 7], [4, 5, PAD, PAD]])
    found = head_entropies(model, src, (src != PAD).unsqueeze(1))
    assert found.shape == (2, 2), f"the shape should be (layers, heads), it is {tuple(found.shape)}"
    assert not found.isnan().any(), "a weight of 0 adds nothing to an entropy"
    assert torch.allclose(found, torch.tensor(5 / 3)), (
        "four tokens see 4 places, two see 2: 10 bits / 6"
    )
    assert model.training, "the model was in training mode before"
### BEGIN HIDDEN TESTS
model = make_model(11, 11, N=3, d_model=12, d_ff=8, h=3, dropout=0.4).train()
for weight in model.parameters():
    nn.init.normal_(weight, std=0.5)
src = torch.tensor([[4, 9, 5, 7, 7], [6, 8, 10, PAD, PAD], [5, PAD, PAD, PAD, PAD]])
src_mask = (src != PAD).unsqueeze(1)
found = head_entropies(model, src, src_mask)
mode = model.training
model.eval().encode(src, src_mask)
for layer, row in zip(model.encoder.layers, found, strict=True):
    entropy = torch.special.entr(layer.self_attn.attn).sum(-1) / math.log(2)  # (B, H, S)
    right = entropy.transpose(1, 2)[src != PAD].mean(0)
    torch.testing.assert_close(row, right, rtol=1e-3, atol=1e-3)
print("the mode is as before:", mode)
1 + mode
### END HIDDEN TESTS

# %% [markdown]
# ## Task 5. Heads off, by a hook (code, medium, 25 minutes, 3 points)
#
# `without_head` of Part 9 switches a head off by setting weights to zero. Do the same without
# changing any weight: a *hook* changes the input of the output projection, `attn.linears[3]`.
#
# - Switch off all heads in the list `heads`, counted from 0. They give zeros.
# - If `instead` (H, d_k) is given, these heads give their rows of `instead` at every position.
# - After the block the module is as before, even if there was an error. Hooks of others stay.
# - Blocks can be nested.
#
# You register a hook by `register_forward_pre_hook`. PyTorch calls it with the module and the tuple
# of its inputs. What the hook returns becomes the new input.


# %% nbgrader={"grade": false, "grade_id": "heads_off", "locked": false, "schema_version": 3, "solution": true, "task": false}
@contextlib.contextmanager
def heads_off(
    attn: MultiHeadedAttention, heads: list[int], instead: Tensor | None = None
) -> Iterator[None]:
    """Inside, these heads give zeros, or their row of `instead` (H, d_k), at every position."""

    ### BEGIN SOLUTION
    def replace(_, inputs: tuple[Tensor]) -> Tensor:
        parts = inputs[0].unflatten(-1, (attn.h, attn.d_k)).clone()  # (B, T, H, d_k)
        parts[..., heads, :] = 0.0 if instead is None else instead[heads]
        return parts.flatten(-2)

    hook = attn.linears[3].register_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()
    return  # only a blank sheet reaches the next line
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "heads_off-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    attn = MultiHeadedAttention(2, 8, dropout=0.0)
    x = torch.randn(1, 3, 8)
    before = attn(x, x, x)
    with heads_off(attn, [0, 1]):
        assert torch.allclose(attn(x, x, x), attn.linears[3].bias), (
            "with no head only the bias is left"
        )
    assert torch.equal(attn(x, x, x), before), "after the block the output should be as before"
### BEGIN HIDDEN TESTS
attn = MultiHeadedAttention(4, 16, dropout=0.3).eval()
before = attn.linears[3].weight.detach().clone()
x, instead = torch.randn(2, 5, 16), torch.randn(4, 4)


def without(heads, values):
    parts, _ = attn.attend(*attn.project(x, x, x), None)  # (B, H, T, d_k)
    parts[:, heads] = values
    joined = attn.linears[3]
    return nn.functional.linear(parts.transpose(1, 2).flatten(2), joined.weight, joined.bias)


def equal(*right):
    return torch.allclose(attn(x, x, x), without(*right), atol=1e-5)


with torch.no_grad():
    with heads_off(attn, [1, 3]):
        assert equal([1, 3], 0.0), "the output without these heads is different"
        unchanged = attn.linears[3].weight.equal(before)
    assert equal([], 0.0), "after the block the output is different"
    with heads_off(attn, [0, 2], instead):
        replaced = equal([0, 2], instead[[0, 2]].unsqueeze(1))
    calls = []
    attn.linears[3].register_forward_pre_hook(lambda *_: calls.append(1))
    with heads_off(attn, [0]):
        with heads_off(attn, [2]):
            nested = equal([0, 2], 0.0)
        nested = nested and equal([0], 0.0)
    try:
        with heads_off(attn, [1]):
            raise KeyError
    except KeyError:
        left = not equal([], 0.0)
tidy = unchanged and nested and not left and len(calls) == 3
print("`instead`:", replaced, " weights:", unchanged, " nested:", nested, " tidy:", tidy)
1 + replaced + tidy
### END HIDDEN TESTS

# %% [markdown]
# ## Task 6. Which layer says so? (code, hard, 35 minutes, 3 points)
#
# How much does each layer add to `logits[first] - logits[second]`, the lead of one token over
# another?
#
# In pre-norm, the decoder's last state at a position is a sum: the embedding with its positional
# encoding, and what each layer adds. The final norm subtracts the mean, divides by the standard
# deviation (with its ε) and multiplies by its `weight`. Take the standard deviation of the *last*
# state as a constant. Then the norm and the generator act on each term of the sum separately. So
# the lead is a sum, too: a term for the embedding, a term for each layer, and a constant from the
# biases.
#
# Return the terms (N + 1,) of the embedding and the layers, without the constant, for one position
# of one sentence. This is called *direct logit attribution*.


# %% nbgrader={"grade": false, "grade_id": "contributions", "locked": false, "schema_version": 3, "solution": true, "task": false}
def contributions(
    model: EncoderDecoder, batch: Batch, place: int, first: int, second: int
) -> Tensor:
    """Terms (N + 1,) of the lead of token `first` over `second` at a place of the only sentence."""
    ### BEGIN SOLUTION
    norm = model.decoder.norm
    with evaluating(model):
        memory = model.encode(batch.src, batch.src_mask)
        x = model.tgt_embed(batch.tgt)
        stream = [x[0, place]]
        for layer in model.decoder.layers:
            x = layer(x, memory, batch.src_mask, batch.tgt_mask)
            stream.append(x[0, place])
        states = torch.stack(stream)  # (N + 1, D)
        added = torch.cat([states[:1], states.diff(dim=0)])
        centred = added - added.mean(dim=1, keepdim=True)
        deviation = (states[-1].var(correction=0) + norm.eps).sqrt()
        one, other = model.generator.proj.weight[[first, second]]
        return centred / deviation * norm.weight @ (one - other)
    ### END SOLUTION
    raise NotImplementedError


# %% nbgrader={"grade": true, "grade_id": "contributions-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    torch.manual_seed(1)
    model = make_model(9, 9, N=2, d_model=8, d_ff=8, h=2).eval()
    batch = Batch(torch.tensor([[4, 5, 6]]), torch.tensor([[START, 7, 8, 5]]))
    found = contributions(model, batch, 1, 7, 8)
    with torch.no_grad():
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        logits = model.generator.proj(states)[0, 1]
    assert found.shape == (3,), (
        f"three terms: the embedding and two layers, not {tuple(found.shape)}"
    )
    # In a fresh model all biases are 0, so there is no constant.
    assert torch.allclose(found.sum(), logits[7] - logits[8], atol=1e-4), "the terms should add up"
### BEGIN HIDDEN TESTS
model = make_model(11, 13, N=3, d_model=12, d_ff=16, h=3, dropout=0.3).train()
for weight in model.parameters():
    nn.init.normal_(weight, std=0.5)
batch = Batch(torch.tensor([[4, 9, 5, 7]]), torch.tensor([[START, 6, 12, 5, 8]]))
found = contributions(model, batch, 2, 12, 4)
model.eval()
states = []
for layer in model.decoder.layers:
    layer.register_forward_hook(lambda _, inputs, output: states.extend([inputs[0], output]))
with torch.no_grad():
    model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
stream = torch.stack([states[0], *states[1::2]])[:, 0, 2]  # (N + 1, D)
norm, matrix = model.decoder.norm, model.generator.proj.weight
deviation = (stream[-1].var(correction=0) + norm.eps).sqrt()
centred = stream - stream.mean(-1, keepdim=True)
sums = (centred / deviation * norm.weight @ (matrix[12] - matrix[4])).detach()
right = torch.cat([sums[:1], sums.diff()])
torch.testing.assert_close(found.detach(), right, rtol=1e-3, atol=1e-3)
### END HIDDEN TESTS

# %% [markdown]
# ## Task 7. Who stands in for whom? (experiment with a report, medium, 40 minutes, 3 points)
#
# If two heads can do the same work, switching off both costs more than the sum of the two costs.
# Find such a pair in the encoder of the published model. Use your `heads_off`, with zeros.
#
# The *cost* of heads is the rise of `loss_of` on `captions` if they are off. The *excess* of a pair
# is the cost of both together minus the costs of each alone. Which of the 36 pairs has the largest
# excess? All pairs take less than a minute. Write a head as `(layer, head)`, both counted from 1,
# as in the text's table; `heads_off` counts from 0.
#
# Write your numbers into the task's cell, and the code that measures them into a cell of your own
# above it.


# %%
def captions(translator) -> Batch:
    """Twenty captions that the published model has not seen, drawn by your number."""
    pairs = random.Random(number).sample(read_builtin().pairs("test"), 20)
    return collate(encode_pairs(pairs, translator.vocabularies, translator.languages))


def loss_of(model: EncoderDecoder, batch: Batch) -> float:
    """Mean negative log-likelihood per real token of the target."""
    with evaluating(model):
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        log_probs = model.generator(states).gather(2, batch.tgt_y.unsqueeze(2)).squeeze(2)
    return -log_probs[batch.tgt_y != PAD].mean().item()


# %% nbgrader={"grade": false, "grade_id": "stand_ins", "locked": false, "schema_version": 3, "solution": true, "task": false}
stand_ins = None  # two heads, each as (layer, head), both counted from 1
costs_alone = None  # of each of the two
cost_of_both = None


### BEGIN SOLUTION
def measure() -> tuple:
    """The pair with the largest excess, their costs alone, their cost together."""
    translator = load_trained_model("pretrained")
    model = translator.model
    batch = captions(translator)
    attns = [layer.self_attn for layer in model.encoder.layers]
    whole = loss_of(model, batch)

    def cost(*heads: tuple[int, int]) -> float:
        with contextlib.ExitStack() as off:
            for layer, head in heads:
                off.enter_context(heads_off(attns[layer - 1], [head - 1]))
            return loss_of(model, batch) - whole

    every = list(itertools.product((1, 2, 3), repeat=2))
    alone = {head: cost(head) for head in every}
    both = {pair: cost(*pair) for pair in itertools.combinations(every, 2)}
    best = max(both, key=lambda pair: both[pair] - alone[pair[0]] - alone[pair[1]])
    return best, [alone[head] for head in best], both[best]


stand_ins = [(2, 2), (3, 3)]
costs_alone = [0.002, 0.076]
cost_of_both = 0.183
### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "stand_ins-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (stand_ins, costs_alone, cost_of_both):
        raise NotImplementedError
    assert len(stand_ins) == 2, "two heads, each as (layer, head)"
    assert all(number in (1, 2, 3) for head in stand_ins for number in head), (
        "layer and head are counted from 1, as in the text's table"
    )
    assert len(costs_alone) == 2, "the cost of each of the two alone"
    assert cost_of_both > sum(costs_alone), "a pair with an excess costs more than the two alone"
### BEGIN HIDDEN TESTS
from the_annotated_transformer import without_head

translator = load_trained_model("pretrained")
twenty = captions(translator)


def loss_without(*heads):
    with contextlib.ExitStack() as off:
        for layer, head in heads:
            attn = translator.model.encoder.layers[layer - 1].self_attn
            off.enter_context(without_head(attn, head - 1))
        return loss_of(translator.model, twenty)


whole = loss_without()
every = list(itertools.product((1, 2, 3), repeat=2))
alone = {head: loss_without(head) - whole for head in every}
both = {pair: loss_without(*pair) - whole for pair in itertools.combinations(every, 2)}
best = max(both, key=lambda pair: both[pair] - alone[pair[0]] - alone[pair[1]])
given = dict(zip(map(tuple, stand_ins), costs_alone, strict=True))
assert sorted(given) == sorted(best), "another pair has a larger excess"
costs = all(abs(given[head] - alone[head]) < 0.005 for head in best)
costs = costs and abs(cost_of_both - both[best]) < 0.005
print("the costs are right:", costs)
1 + costs
### END HIDDEN TESTS

# %% [markdown]
# *Your report, 100 to 150 words (1 of the 3 points).* Look at the maps of the two heads, which are
# in `attn` of their attentions. What do they have in common? The table in [Switching heads
# off](../index.html#heads-off) has costs in perplexity over many sentences. Yours are in nats over
# twenty captions. Do they agree, as far as twenty captions can tell? Together the two heads cost
# more than the sum of their costs. What does that say about tables that switch off one head at a
# time?

# %% [markdown] nbgrader={"grade": true, "grade_id": "stand_ins-report", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# See *What a report should say* in `exercises/README.md`.

# %% [markdown]
# ## Task 8. The bug hunt (bug hunt, medium, 40 minutes, 4 points)
#
# A small Transformer should copy sequences, but one of its parts is faulty. Which part it is follows
# from your number. The file `hunt.py` beside this sheet trains the model in a few seconds and shows
# symptoms. Find the faulty part.
#
# 1. Look at the symptoms, and ask the model yourself: `case.write(sources)`,
#    `case.attention(sources)`, `case.log_probs(sources, targets)`. Compare with `hunt(None)`, a
#    model without a fault.
# 2. `CANDIDATES` lists the parts and what may be wrong with each. Write the name of the faulty part
#    as `diagnosis` (2 points).
# 3. `CONTRACTS` says what each part should do. Write the faulty part anew, as `repaired` (2
#    points). Try it with `case.repair(diagnosis, repaired)`: the symptoms should be those of
#    `hunt(None)`.

# %%
sys.path.append("../../docs/course")  # where hunt.py lies, if not beside this sheet
from hunt import CANDIDATES, CONTRACTS, hunt

print(*(f"{part:14} {fault}" for part, fault in CANDIDATES.items()), sep="\n")
case = hunt(number)
case.report()


# %% nbgrader={"grade": false, "grade_id": "bug_hunt", "locked": false, "schema_version": 3, "solution": true, "task": false}
diagnosis = None
repaired = None


### BEGIN SOLUTION
def scaled_rows(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows of the table at ids, times the root of their width."""
    return table[ids] * table.size(1) ** 0.5


diagnosis = "embed"
repaired = scaled_rows
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "bug_hunt-test", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (diagnosis, repaired):
        raise NotImplementedError
    assert diagnosis in CANDIDATES, "write the name of a part as diagnosis"
    assert callable(repaired), "write the part as a function, and its name as repaired"
### BEGIN HIDDEN TESTS
import functools
from pathlib import Path

from hunt import play

student = Path.cwd().parent.name  # nbgrader's folders: autograded/STUDENT/4_decoding
if student.isdigit():
    assert int(student[-4:]) == number, "the case of another student number"


def gives(name, part):
    """What a part gives for random arguments."""
    torch.manual_seed(number)
    src = torch.tensor([[4, 9, 7, 2, 2], [5, 6, 11, 8, 10], [7, 7, 4, 5, 2]])
    if name == "rate":
        return torch.tensor([part(step) for step in (1, 20, 50, 51, 117, 400)])
    if name == "dropout":
        kept = part(torch.ones(99, 99), 0.25, True)
        quarter = ((kept == 0).float().mean() - 0.25).abs() < 0.02
        return part(torch.ones(99), 0.25, False), kept.unique(), quarter
    if name == "update":
        weight = nn.Parameter(torch.randn(3))
        optimizer = torch.optim.SGD([weight], 0.1)
        for factor in (1.0, 2.0, -1.0):
            part(factor * weight.square().sum(), optimizer)
        return weight.detach()
    arguments = {
        "embed": (torch.randn(12, 8), torch.arange(12).view(3, 4)),
        "add_positions": (torch.randn(2, 5, 8), torch.randn(5, 8)),
        "split": (torch.randn(2, 5, 8), 4),
        "scores": (torch.randn(2, 2, 3, 6), torch.randn(2, 2, 5, 6)),
        "weights": (torch.randn(3, 2, 5, 5), torch.ones(5, 5).tril().bool()),
        "residual": torch.randn(2, 2, 3, 4),
        "memory": (torch.randn(2, 3, 4),),
        "log_probs": (torch.randn(2, 3, 7),),
        "frame": (src,),
        "source_mask": (src,),
        "causal": (6,),
        "shift": (torch.randint(12, (3, 6)),),
        "loss": (torch.randn(3, 5, 12).log_softmax(-1), src),
        "first": (src,),
        "choose": (torch.eye(12),),
    }
    return part(*arguments[name])


def as_in(case):
    return gives(diagnosis, functools.partial(play, case, diagnosis))


def same(one, other):
    try:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    except (AssertionError, TypeError):
        return False
    return True


assert not same(as_in(number), as_in(None)), "another part is faulty"
try:
    mended = same(gives(diagnosis, repaired), as_in(None))
except Exception as error:
    mended = False
    print(type(error).__name__, error)
print("the repaired part is right:", mended)
2 + 2 * mended
### END HIDDEN TESTS
