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
FAULTS = {
    "attention": {
        "no root": {"power": 0},
        "softmax over the queries": {"axis": -2},
        "equal weights in an empty row": {"closed": 1e-30},  # as -1e9 gives
    },
    "subsequent_mask": {
        "future open": {"sees": lambda t, s: s >= t},
        "own place closed": {"sees": lambda t, s: s < t},
        "what PyTorch adds": {"sees": lambda t, s: 0.0 if s <= t else -math.inf},
    },
}
