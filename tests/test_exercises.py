"""What a reader writes at the end of each Part: `grade` tells right from faulty, and ours stays."""

import contextlib
import functools
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import altair as alt
import pytest
import rhythm
import torch
from conftest import PROJECT
from torch import nn

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD

TEXT = (PROJECT / tutorial.SCRIPT).read_text("utf-8")
STATED = {}  # of each exercise: the checks that its statement names, and the text of its Part
for part in re.split(r"(?m)^# # ", TEXT):
    section = re.sub(r"\n# ?", " ", part.partition("\n# ## Try it\n")[2])
    for name, told in re.findall(r"`grade\((\w+)=\w+\)`(.*?)(?=`grade\(|$)", section, re.S):
        words = re.findall(r"(?<!\*)\*(?!\*)([^*]+)\*", told)
        STATED[name] = {"check_" + each.replace(" ", "_") for each in words}, part

# Right solutions, with arguments that spoil them --------------------------------------------------


def attention(query, key, value, mask=None, dropout=None, power=0.5, axis=-1, closed=0.0):
    shares = (torch.einsum("...td,...sd->...ts", query, key) / query.size(-1) ** power).exp()
    shares = shares if mask is None else torch.where(mask != 0, shares, closed)
    total = shares.sum(axis, keepdim=True)
    weights = shares / torch.where(total > 0, total, 1.0)
    return (weights if dropout is None else dropout(weights)) @ value, weights


def subsequent_mask(size, sees=lambda t, s: s <= t):
    return torch.tensor([[[sees(t, s) for s in range(size)] for t in range(size)]])


class MultiHeadedAttention(tutorial.MultiHeadedAttention):
    def split(self, x):
        return torch.stack(x.split(self.d_k, dim=-1), dim=1)


class PositionalEncoding(nn.Module):
    first, base = 0, 10_000

    def __init__(self, d_model, dropout, max_len=5000):
        super().__init__()
        self.dropout, self.pe = nn.Dropout(dropout), torch.zeros(1, max_len, d_model)
        for i in range(0, d_model, 2):
            angle = (torch.arange(max_len) + self.first) / self.base ** (i / d_model)
            self.pe[0, :, i], self.pe[0, :, i + 1] = angle.sin(), angle.cos()

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class LabelSmoothing(tutorial.LabelSmoothing):
    empty, others = PAD, 2

    def distribution(self, target):
        wanted = torch.full((len(target), self.size), self.smoothing / (self.size - self.others))
        for row, right in zip(wanted, target.tolist(), strict=True):
            row[right] = 1 - self.smoothing
            row[[PAD] if right != self.empty else slice(None)] = 0.0
        return wanted


def rate(step, model_size, factor, warmup):
    peak = factor / math.sqrt(model_size * warmup)
    return peak * (max(step, 1) / warmup if step < warmup else math.sqrt(warmup / step))


def greedy_decode(model, src, src_mask, max_len, start_symbol, end_symbol=END, pad=PAD):
    rows = []
    with tutorial.evaluating(model):
        for sentence, mask in zip(src.unsqueeze(1), src_mask.unsqueeze(1), strict=True):
            memory, row = model.encode(sentence, mask), [start_symbol]
            while len(row) < max_len and (len(row) == 1 or row[-1] != end_symbol):
                causal = tutorial.subsequent_mask(len(row))
                states = model.decode(memory, mask, torch.tensor([row]), causal)
                row.append(int(model.generator(states[0, -1]).argmax()))
            rows.append(torch.tensor(row))
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


@torch.no_grad()
def layers_until_connected(layer, T, D=8, change=0):
    one, depth = torch.randn(1, T, D, dtype=torch.double), 0
    other = one.clone()
    other[0, change] += 1
    while torch.equal(one[0, -1], other[0, -1]):
        one, other, depth = layer(one), layer(other), depth + 1
    return depth


def token_batches(lengths, budget, order=None, longest=max):
    shuffle = order.shuffle if order else list
    batches, rest = [], list(range(len(lengths)))
    shuffle(rest)
    rest.sort(key=lambda number: longest(lengths[number]))
    while rest:
        size = 1
        while rest[size:] and longest(lengths[rest[size]]) * (size + 1) <= budget:
            size += 1
        batches, rest = [*batches, rest[:size]], rest[size:]
    shuffle(batches)
    return batches


def grow(now, log_probs, end_symbol=END, pad=PAD):
    best = []
    for beam in zip(now.logp.tolist(), now.ended.tolist(), log_probs.tolist(), strict=True):
        found = []  # whether it keeps its place, log-probability, place, symbol
        for place, (logp, ended, row) in enumerate(zip(*beam, strict=True)):
            keeps, offers = ended and logp > -math.inf, [(pad, 0.0)] if ended else enumerate(row)
            found += [(keeps, logp + gain, place, symbol) for symbol, gain in offers]
        best.append(sorted(found, reverse=True)[: log_probs.size(1)])
    _, logp, origin, symbol = torch.tensor(best).unbind(-1)
    at, symbol = (torch.arange(len(best)).unsqueeze(1), origin.long()), symbol.long()
    written = torch.cat([now.written[at], symbol.unsqueeze(-1)], -1)
    ended = now.ended[at] | (symbol == end_symbol)
    return tutorial.Hypotheses(written, logp, now.length[at] + ~now.ended[at], ended), at[1]


def training_flops(N, D, d_ff, V, S, T, operations=2, passes=3):
    maps = S * (6 * D * D + D * d_ff + d_ff * D) + T * (6 * D * D + D * d_ff + d_ff * D)
    scores = S * D * S + T * D * T + T * D * S
    return passes * operations * (N * (maps + 2 * scores) + T * D * V)


@contextlib.contextmanager
def without_head(attn, head, place=3, end=lambda handle: handle.remove()):
    def silence(module, inputs):
        return inputs[0].masked_fill(torch.arange(inputs[0].size(-1)) // attn.d_k == head, 0.0)

    handle = attn.linears[place].register_forward_pre_hook(silence)
    try:
        yield
    finally:
        end(handle)


def rotate(x, sign=1, angle_of=torch.as_tensor):
    features = []
    for i in range(0, x.size(-1), 2):
        angle = angle_of(torch.arange(x.size(-2))) / 10_000 ** (i / x.size(-1))
        one, other, cos, sin = x[..., i], x[..., i + 1], angle.cos(), angle.sin()
        features += [one * cos - other * sin, sign * one * sin + other * cos]
    return torch.stack(features, -1)


RIGHT = {name: globals()[name] for name in STATED}  # a new exercise wants a solution here
FAULTS = [  # a function, or else arguments or attributes for the right one
    ("attention", "no root", {"power": 0}),
    ("attention", "softmax over the queries", {"axis": -2}),
    ("attention", "equal weights in an empty row, as -1e9 gives", {"closed": 1e-30}),
    ("subsequent_mask", "future open", {"sees": lambda t, s: s >= t}),
    ("subsequent_mask", "own place closed", {"sees": lambda t, s: s < t}),
    ("subsequent_mask", "what is added", {"sees": lambda t, s: 0.0 if s <= t else -math.inf}),
    ("MultiHeadedAttention", "view", {"split": lambda m, x: x.reshape(len(x), m.h, -1, m.d_k)}),
    ("MultiHeadedAttention", "no transpose", {"split": lambda m, x: x.unflatten(-1, (m.h, -1))}),
    ("MultiHeadedAttention", "each h-th", {"split": lambda m, x: x.unflatten(-1, (-1, m.h)).mT}),
    ("MultiHeadedAttention", "empty", {"split": lambda m, x: None}),
    ("PositionalEncoding", "half the exponent", {"base": 100}),
    ("PositionalEncoding", "counted from one", {"first": 1}),
    ("PositionalEncoding", "multiplied", {"base": 1e-4}),
    ("PositionalEncoding", "empty", nn.Module),
    ("LabelSmoothing", "too many share", {"others": 1}),
    ("LabelSmoothing", "padding is learnt", {"empty": None}),
    ("LabelSmoothing", "all share", {"distribution": lambda m, x: torch.eye(9)[x] * 0.7 + 0.3 / 9}),
    ("LabelSmoothing", "empty", {"distribution": lambda m, x: None}),
    ("rate", "no warm-up", lambda step, D, factor, warmup: factor * (D * step) ** -0.5),
    ("rate", "no factor", lambda step, D, factor, warmup: rate(step, D, 1.0, warmup)),
    ("rate", "one late", lambda step, *rest: rate(step - 1, *rest)),
    ("greedy_decode", "padding read", lambda m, x, mask, *r: greedy_decode(m, x, mask | True, *r)),
    ("greedy_decode", "one too many", lambda m, x, k, T, *r: greedy_decode(m, x, k, T + 1, *r)),
    ("greedy_decode", "the first alone", lambda m, x, k, *r: greedy_decode(m, x[:1], k[:1], *r)),
    ("layers_until_connected", "always one", lambda layer, T: 1),
    ("layers_until_connected", "one less", lambda *inputs: layers_until_connected(*inputs) - 1),
    ("layers_until_connected", "another input changed", {"change": 1}),
    ("token_batches", "lengths of sources", {"longest": lambda pair: pair[0]}),
    ("token_batches", "sums of lengths", {"longest": sum}),
    ("token_batches", "the last one lost", lambda *inputs: token_batches(*inputs)[:-1]),
    ("grow", "no end", lambda now, *rest: grow(replace(now, ended=now.ended & False), *rest)),
    ("grow", "no past", lambda now, *rest: grow(replace(now, logp=now.length * 0.0), *rest)),
    ("grow", "the least likely", lambda now, logp, *rest: grow(now, -logp, *rest)),
    ("training_flops", "multiplications only", {"operations": 1}),
    ("training_flops", "forward only", {"passes": 1}),
    ("training_flops", "one length", lambda S, T, **sizes: training_flops(S=T, T=T, **sizes)),
    ("without_head", "for ever", {"end": lambda handle: None}),
    ("without_head", "no query", {"place": 0}),
    ("without_head", "no value", {"place": 2}),
    ("rotate", "a mirror", {"sign": -1}),
    ("rotate", "no position", {"angle_of": torch.zeros_like}),
    ("rotate", "the position squared", {"angle_of": torch.square}),
]
for name in RIGHT.keys() - {name for name, fault, _ in FAULTS if fault == "empty"}:
    FAULTS.append((name, "empty", lambda *_, **__: None))


def verdicts(capsys, grade=tutorial.grade, **yours) -> dict[str, str]:
    """What `grade` prints: of each check the kind of error and the reason, "" where it holds."""
    capsys.readouterr()
    grade(**yours)
    lines = capsys.readouterr().out.splitlines()
    found = [re.fullmatch(r"✓ ([^:]+)|✗ ([^:]+): (\w+: .*)", line) for line in lines]
    return {"check_" + (m[1] or m[2]).replace(" ", "_"): m[3] or "" for m in found}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_solution_passes_every_check_and_those_that_the_text_names(name, capsys):
    checks, part = STATED[name]
    found = verdicts(capsys, **{name: RIGHT[name]})
    assert not any(found.values()) and checks and checks <= found.keys()
    assert all(f"\ndef {check}():" in part for check in checks)


@pytest.mark.parametrize("name, fault, change", FAULTS)
def test_a_faulty_one_fails_a_check_that_the_text_names(name, fault, change, capsys, monkeypatch):
    if isinstance(change, dict):
        right = RIGHT[name]
        is_class = isinstance(right, type)
        change = type("Mine", (right,), change) if is_class else partial(right, **change)
    named = {check: tutorial.EXAMPLES[check] for check in STATED[name][0]}
    monkeypatch.setattr(tutorial, "EXAMPLES", named)
    found = verdicts(capsys, **{name: change})
    assert found.keys() == named.keys() and any(found.values())


# What grade leaves, refuses and runs --------------------------------------------------------------


@pytest.mark.parametrize("error", [None, AssertionError(), OSError("no\ndisk"), KeyboardInterrupt()])
def test_ours_is_back_whatever_happens(error, capsys):
    def turn(x):
        if error:
            raise error
        return rotate(x)

    before, interrupted = dict(vars(tutorial)), isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
        turned, rated = sorted(verdicts(capsys, rotate=turn, rate=rate).items(), reverse=True)
