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

# %% deletable=false nbgrader={"cell_type": "code", "checksum": "d850ebbbde6f2a9b2013fb01eeb587ee", "grade": false, "grade_id": "number", "locked": false, "schema_version": 3, "solution": true, "task": false}
number = None
# Write your answer here.

# %% [markdown]
# ## Task 1. One more token (derivation, easy, 10 minutes, 1 point)
#
# A hypothesis of `length` tokens has the log-probability `logp`. Its score is `logp` divided by the
# length penalty. Now one more token is added. Which log-probability of this token leaves the score
# as it is?


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "2fec8815ab0c40efcf4c6ab8ade9b33a", "grade": false, "grade_id": "break_even", "locked": false, "schema_version": 3, "solution": true, "task": false}
def break_even(logp: float, length: int, alpha: float) -> float:
    """The log-probability of a next token that leaves the score of a hypothesis as it is."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "8410daf91412d8b4c92cd311f7a795de", "grade": true, "grade_id": "break_even-test", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    assert break_even(-3.0, 4, alpha=0.0) == 0, (
        "without a penalty, only a certain token costs nothing"
    )
    assert break_even(-3.0, 4, alpha=1.0) < 0, "with a penalty, a token may cost something"

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

# %% deletable=false nbgrader={"cell_type": "code", "checksum": "ea20a287ed8f7e29b03f19ef90477bca", "grade": false, "grade_id": "beam_by_hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
held_after_the_step = None  # three texts such as "a b"
stops_with_alpha_0 = None  # True or False
largest_limit_with_alpha_1 = None  # a whole number
# Write your answer here.


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "8c5e3ba1643c5ce89ce8e507daa0b048", "grade": true, "grade_id": "beam_by_hand-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (number, held_after_the_step, stops_with_alpha_0, largest_limit_with_alpha_1):
        raise NotImplementedError
    assert len(held_after_the_step) == 3, "a beam of three holds three hypotheses"
    assert all(len(each) % 2 for each in held_after_the_step), 'write tokens with one space: "a b"'
    assert stops_with_alpha_0 in (True, False), "True or False"
    assert isinstance(largest_limit_with_alpha_1, int), "the limit is a whole number"

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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "32de14bd389860f83c2ce39f98cbeb31", "grade": false, "grade_id": "expected_similarity", "locked": false, "schema_version": 3, "solution": true, "task": false}
def expected_similarity(
    candidates: list, log_probs: list[float], similarity: Callable
) -> list[float]:
    """The mean of `similarity(candidate, reference)` over all references, for each candidate."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "7f1747c62a96c9570b1685696cad3567", "grade": true, "grade_id": "expected_similarity-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
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



# %% [markdown]
# ## Task 4. How sharply does a head look? (code, medium, 20 minutes, 2 points)
#
# The *entropy* $-\sum_s w_s \log_2 w_s$ of a row of weights says how widely a head looks: $2^b$
# equal weights have an entropy of $b$ bits. Measure the encoder's self-attention. Return a tensor
# (N, H) with the mean entropy of each head's rows, over all real tokens of the batch. Measure in
# eval mode. Afterwards the model must be in the same mode as before.


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "361e6e8eef8fec33e33c2582ee244365", "grade": false, "grade_id": "head_entropies", "locked": false, "schema_version": 3, "solution": true, "task": false}
def head_entropies(model: EncoderDecoder, src: Tensor, src_mask: Tensor) -> Tensor:
    """Mean entropy in bits of each encoder head: src (B, S), src_mask (B, 1, S) -> (N, H)."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "3d699e2fa762a418671737e6c9b97cab", "grade": true, "grade_id": "head_entropies-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "768f143abed5e5fd803406755b48a116", "grade": false, "grade_id": "heads_off", "locked": false, "schema_version": 3, "solution": true, "task": false}
@contextlib.contextmanager
def heads_off(
    attn: MultiHeadedAttention, heads: list[int], instead: Tensor | None = None
) -> Iterator[None]:
    """Inside, these heads give zeros, or their row of `instead` (H, d_k), at every position."""

    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "453ae80d30edca9cf9c58bd287475ec7", "grade": true, "grade_id": "heads_off-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    attn = MultiHeadedAttention(2, 8, dropout=0.0)
    x = torch.randn(1, 3, 8)
    before = attn(x, x, x)
    with heads_off(attn, [0, 1]):
        assert torch.allclose(attn(x, x, x), attn.linears[3].bias), (
            "with no head only the bias is left"
        )
    assert torch.equal(attn(x, x, x), before), "after the block the output should be as before"

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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "7d83bf13abe999ee49c24f8227d45e3e", "grade": false, "grade_id": "contributions", "locked": false, "schema_version": 3, "solution": true, "task": false}
def contributions(
    model: EncoderDecoder, batch: Batch, place: int, first: int, second: int
) -> Tensor:
    """Terms (N + 1,) of the lead of token `first` over `second` at a place of the only sentence."""
    # Write your answer here.
    raise NotImplementedError


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "2da032a98bba6177e1bf3d18be2f83d6", "grade": true, "grade_id": "contributions-test", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "fd3e951c7c4a6ce46233ca6ec9e721ca", "grade": false, "grade_id": "stand_ins", "locked": false, "schema_version": 3, "solution": true, "task": false}
stand_ins = None  # two heads, each as (layer, head), both counted from 1
costs_alone = None  # of each of the two
cost_of_both = None


# Write your answer here.


# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "804ac4e07bbd200d5226dbaa3f474b81", "grade": true, "grade_id": "stand_ins-test", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (stand_ins, costs_alone, cost_of_both):
        raise NotImplementedError
    assert len(stand_ins) == 2, "two heads, each as (layer, head)"
    assert all(number in (1, 2, 3) for head in stand_ins for number in head), (
        "layer and head are counted from 1, as in the text's table"
    )
    assert len(costs_alone) == 2, "the cost of each of the two alone"
    assert cost_of_both > sum(costs_alone), "a pair with an excess costs more than the two alone"

# %% [markdown]
# *Your report, 100 to 150 words (1 of the 3 points).* Look at the maps of the two heads, which are
# in `attn` of their attentions. What do they have in common? The table in [Switching heads
# off](../index.html#heads-off) has costs in perplexity over many sentences. Yours are in nats over
# twenty captions. Do they agree, as far as twenty captions can tell? Together the two heads cost
# more than the sum of their costs. What does that say about tables that switch off one head at a
# time?

# %% [markdown] deletable=false nbgrader={"cell_type": "markdown", "checksum": "e331be9457a087829c9df3a7506aae41", "grade": true, "grade_id": "stand_ins-report", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# *Write your report here.*

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


# %% deletable=false nbgrader={"cell_type": "code", "checksum": "33e939dd384b283b6bec8f309659697c", "grade": false, "grade_id": "bug_hunt", "locked": false, "schema_version": 3, "solution": true, "task": false}
diagnosis = None
repaired = None


# Write your answer here.

# %% deletable=false editable=false nbgrader={"cell_type": "code", "checksum": "85d76e79a3a17eebdb622c20de7fabac", "grade": true, "grade_id": "bug_hunt-test", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
with when_answered():
    if None in (diagnosis, repaired):
        raise NotImplementedError
    assert diagnosis in CANDIDATES, "write the name of a part as diagnosis"
    assert callable(repaired), "write the part as a function, and its name as repaired"
