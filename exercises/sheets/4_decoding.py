# %% [markdown]
# <!-- sheet: 4_decoding -->
# # Sheet 4. Decoding and looking inside
#
# 20 points, about three and a half hours. Read [Beam search](../index.html#beam-search) to [A batch
# of beams](../index.html#batch-of-beams) in Part 7, and [Part 9](../index.html#looking-inside)
# first. Task 7 needs the folder `pretrained/` beside the script.
#
# Write your answers into the cells with a `raise` or a `None`. The cell below a task checks a
# little of your answer. Points come from other tests, with other numbers and sizes. You may add
# cells and functions. Keep the file's name when you hand it in.

# %%
import contextlib
import itertools
import math
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
# <!-- task: break_even -->
# ## Task 1. One more token (derivation, easy, 10 minutes, 1 point)
#
# A hypothesis of `length` tokens has the log-probability `logp`. Its score is `logp` divided by the
# length penalty. Now one more token is added. Which log-probability of this token leaves the score
# as it is?


# %% task="break_even"
def break_even(logp: float, length: int, alpha: float) -> float:
    """The log-probability of a next token that leaves the score of a hypothesis as it is."""
    ### BEGIN SOLUTION
    return logp * (((6 + length) / (5 + length)) ** alpha - 1)
    ### END SOLUTION


# %% check="break_even"
with when_answered():
    assert break_even(-3.0, 4, alpha=0.0) == 0, (
        "without a penalty, only a certain token costs nothing"
    )
    assert break_even(-3.0, 4, alpha=1.0) < 0, "with a penalty, a token may cost something"

# %% [markdown]
# <!-- task: beam_by_hand -->
# ## Task 2. A step by hand (by hand, easy, 15 minutes, 2 points)
#
# A search with a beam of three knows the tokens `a`, `b`, `c` and the end token `.`. After two
# steps it holds
#
# | place | written | log-probability |
# | ---: | --- | ---: |
# | 0 | `a b` | −1.0 |
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

# %% task="beam_by_hand"
### BEGIN SOLUTION
# The ended one keeps its place. The best continuations are b c . (-1.7) and a b c (-2.1).
# With α = 0 the best ended score is -1.7, above the bound -2.1. With α = 1 it is -1.7 · 6/8, or
# -1.275, and the bound -2.1 · 6 / (5 + T) is at most that for T <= 4.88.
held_after_the_step = ["a .", "b c .", "a b c"]  # written like these: "a b"
stops_with_alpha_0 = True  # True or False
largest_limit_with_alpha_1 = 4  # a whole number
### END SOLUTION


# %% check="beam_by_hand"
with when_answered():
    if None in (held_after_the_step, stops_with_alpha_0, largest_limit_with_alpha_1):
        raise NotImplementedError
    assert len(held_after_the_step) == 3, "a beam of three holds three hypotheses"
    assert all(len(each) % 2 for each in held_after_the_step), 'write tokens with one space: "a b"'
    assert stops_with_alpha_0 in (True, False), "True or False"
    assert isinstance(largest_limit_with_alpha_1, int), "the limit is a whole number"

# %% [markdown]
# <!-- task: expected_similarity -->
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


# %% task="expected_similarity"
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


# %% check="expected_similarity"
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
# <!-- task: head_entropies -->
# ## Task 4. How sharply does a head look? (code, medium, 20 minutes, 2 points)
#
# The *entropy* $-\sum_s w_s \log_2 w_s$ of a row of weights says how widely a head looks: $2^b$
# equal weights have an entropy of $b$ bits. Measure the encoder's self-attention. Return a tensor
# (N, H) with the mean entropy of each head's rows, over all real tokens of the batch. Measure in
# eval mode. Afterwards the model must be in the same mode as before.


# %% task="head_entropies"
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


# %% check="head_entropies"
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
# <!-- task: heads_off -->
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


# %% task="heads_off"
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
    ### END SOLUTION


# %% check="heads_off"
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
# <!-- task: contributions -->
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


# %% task="contributions"
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


# %% check="contributions"
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
# <!-- task: stand_ins -->
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
# Write your numbers into the task's cell, and the code that measures them into the check cell below
# it: the marker does not run that cell.


# %%
def captions(translator) -> Batch:
    """Twenty captions that the published model has not seen, with their translations."""
    pairs = read_builtin().pairs("test")[:20]
    return collate(encode_pairs(pairs, translator.vocabularies, translator.languages))


def loss_of(model: EncoderDecoder, batch: Batch) -> float:
    """Mean negative log-likelihood per real token of the target."""
    with evaluating(model):
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        log_probs = model.generator(states).gather(2, batch.tgt_y.unsqueeze(2)).squeeze(2)
    return -log_probs[batch.tgt_y != PAD].mean().item()


# %% task="stand_ins"
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


stand_ins = [(2, 2), (3, 3)]  # (layer, head) of each, both counted from 1
costs_alone = [0.000, 0.094]
cost_of_both = 0.166
### END SOLUTION


# %% check="stand_ins"
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
# <!-- report: stand_ins -->
# *Your report, 100 to 150 words (1 of the 3 points).* Look at the maps of the two heads, which are
# in `attn` of their attentions. What do they have in common? The table in [Switching heads
# off](../index.html#heads-off) has costs in perplexity over many sentences. Yours are in nats over
# twenty captions. Do they agree, as far as twenty captions can tell? Together the two heads cost
# more than the sum of their costs. What does that say about tables that switch off one head at a
# time?

# %% [markdown]
# <!-- task: bug_hunt -->
# ## Task 8. The bug hunt (bug hunt, medium, 40 minutes, 4 points)
#
# A small Transformer should copy sequences, but one of its parts is faulty. Which part it is
# depends on `case_number`: write the last four digits of your student number there, without leading
# zeros. The file `hunt.py` beside this sheet trains the model in a few seconds and shows symptoms.
# Find the faulty part.
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


# %% task="bug_hunt"
### BEGIN SOLUTION
def scaled_rows(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows of the table at ids, times the root of their width."""
    return table[ids] * table.size(1) ** 0.5


case_number = 1234
diagnosis = "embed"
repaired = scaled_rows
### END SOLUTION

# %% check="bug_hunt"
with when_answered():
    if case_number is None:
        raise NotImplementedError
    case = hunt(case_number)
    case.report()
    if None in (diagnosis, repaired):
        raise NotImplementedError
    assert diagnosis in CANDIDATES, "write the name of a part as diagnosis"
    assert callable(repaired), "write the part as a function, and its name as repaired"
    print("\nRepaired:", CONTRACTS[diagnosis])
    case.repair(diagnosis, repaired)
