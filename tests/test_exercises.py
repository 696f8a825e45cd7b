"""What a reader writes at the end of each Part: `grade` tells right from faulty, and ours stays."""

import contextlib
import dataclasses
import functools
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import altair as alt
import pytest
import rhythm
import torch
import torch.nn.functional as F
from conftest import PROJECT
from torch import nn

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD

TEXT = (PROJECT / tutorial.SCRIPT).read_text("utf-8")


def statements() -> Iterator[tuple[str, list[str], str]]:
    """Of each exercise: what to write, the checks that must hold, the text of its Part."""
    for part in re.split(r"(?m)^# # ", TEXT):
        section = re.sub(r"\n# ?", " ", part.partition("\n# ## Try it\n")[2])
        for name, told in re.findall(r"`grade\((\w+)=\w+\)`(.*?)(?=`grade\(|$)", section, re.S):
            checks = re.findall(r"(?<!\*)\*(?!\*)([^*]+)\*", told)
            yield name, [f"check_{words.replace(' ', '_')}" for words in checks], part


NAMED = {name: checks for name, checks, _ in statements()}

# Solutions: a right one, and some as students write them ------------------------------------------


def nothing(*_, **__):
    pass


def attention(query, key, value, mask=None, dropout=None, *, power=0.5, axis=-1):
    scores = torch.einsum("...td,...sd->...ts", query, key) / query.size(-1) ** power
    shares = (scores - scores.amax(axis, keepdim=True)).exp()
    if mask is not None:
        shares = torch.where(mask != 0, shares, 0.0)
    total = shares.sum(axis, keepdim=True)
    weights = shares / torch.where(total > 0, total, 1.0)
    return (weights if dropout is None else dropout(weights)) @ value, weights


def closed_by(low: float, query, key, value, mask=None, dropout=None):
    scores = query @ key.mT / math.sqrt(query.size(-1))
    weights = scores.masked_fill(torch.tensor(False) if mask is None else mask == 0, low).softmax(-1)
    return weights @ value, weights


def mask_where(is_open):
    return lambda size: torch.tensor([[[is_open(t, s) for s in range(size)] for t in range(size)]])


def heads(split):
    return type("Mine", (tutorial.MultiHeadedAttention,), {"split": split})


def waves(p, i, width):
    angle = p / 10_000 ** (2 * i / width)
    return angle.sin(), angle.cos()


def positions(waves):
    class Mine(nn.Module):
        def __init__(self, d_model, dropout, max_len=5000):
            super().__init__()
            pe = torch.zeros(1, max_len, d_model)
            for i in range(d_model // 2):
                pe[0, :, 2 * i], pe[0, :, 2 * i + 1] = waves(torch.arange(max_len), i, d_model)
            self.register_buffer("pe", pe, persistent=False)
            self.dropout = nn.Dropout(dropout)

        def forward(self, x):
            return self.dropout(x + self.pe[:, : x.size(1)])

    return Mine


class Smoothing(tutorial.LabelSmoothing):
    def row(self, right):
        special = {right: 1 - self.smoothing, self.padding_idx: 0.0}
        share = 0.0 if right == self.padding_idx else self.smoothing / (self.size - 2)
        return [special.get(word, share) for word in range(self.size)]

    def distribution(self, target):
        return torch.tensor([self.row(right) for right in target.tolist()])


def smoothing(distribution):
    return type("Mine", (Smoothing,), {"distribution": distribution})


def too_many_share(self, target):
    right = F.one_hot(target, self.size) * (1 - self.smoothing)
    rest = (Smoothing.distribution(self, target) > 0) & (right == 0)
    return right * (target != PAD).unsqueeze(1) + rest * self.smoothing / (self.size - 1)


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
def layers_until_connected(layer, T, D=8, *, change=0):
    one, depth = torch.randn(1, T, D, dtype=torch.double), 0
    other = one.clone()
    other[0, change] += 1
    while torch.equal(one[0, -1], other[0, -1]):
        one, other, depth = layer(one), layer(other), depth + 1
    return depth


def token_batches(lengths, budget, order=None, *, longest=max):
    rest, batches = list(range(len(lengths))), []
    if order:
        order.shuffle(rest)
    rest.sort(key=lambda number: longest(lengths[number]))
    while rest:
        size = 1
        while size < len(rest) and longest(lengths[rest[size]]) * (size + 1) <= budget:
            size += 1
        batches, rest = [*batches, rest[:size]], rest[size:]
    if order:
        order.shuffle(batches)
    return batches


def grow(now, log_probs, end_symbol=END, pad=PAD):
    beam, best = log_probs.size(1), []
    for ended, start, rows in zip(now.ended, now.logp.tolist(), log_probs.tolist(), strict=True):
        found = []  # whether it had ended, log-probability, place, symbol
        for place, row in enumerate(rows):
            offers = [(0.0, pad)] if ended[place] else [(x, word) for word, x in enumerate(row)]
            keeps = bool(ended[place]) and start[place] > -math.inf
            found += [(keeps, start[place] + gain, place, word) for gain, word in offers]
        best.append(sorted(found, key=lambda one: one[:2], reverse=True)[:beam])
    _, logp, origin, symbol = (torch.tensor(x) for x in zip(*(zip(*b) for b in best), strict=True))
    sentence = torch.arange(len(best)).unsqueeze(1)
    written = torch.cat([now.written[sentence, origin], symbol.unsqueeze(-1)], -1)
    had_ended = now.ended[sentence, origin]
    length = now.length[sentence, origin] + ~had_ended
    ended = had_ended | (symbol == end_symbol)
    return tutorial.Hypotheses(written, logp, length, ended), origin


def with_no_ends(now, *rest):
    return grow(dataclasses.replace(now, ended=torch.zeros_like(now.ended)), *rest)


def with_no_past(now, *rest):
    return grow(dataclasses.replace(now, logp=torch.zeros_like(now.logp)), *rest)


def with_no_origin(*inputs):
    grown, origin = grow(*inputs)
    return grown, torch.arange(origin.size(1)).expand_as(origin)


def training_flops(N, D, d_ff, V, S, T):
    feed_forward = [(D, d_ff), (d_ff, D)]
    maps = [(S, shape) for shape in [(D, D)] * 4 + feed_forward]  # of an encoder layer
    maps += [(T, shape) for shape in [(D, D)] * 4 + [(D, D)] * 2 + feed_forward]
    maps += [(S, (D, D))] * 2  # keys and values of the memory
    layer = sum(rows * inner * columns for rows, (inner, columns) in maps)
    layer += sum(2 * queries * keys * D for queries, keys in ((S, S), (T, T), (T, S)))
    return 6 * (N * layer + T * D * V)


@contextlib.contextmanager
def without_head(attn, head, *, place=3, stays=False):
    def silence(module, inputs):
        mine = torch.arange(inputs[0].size(-1)) // attn.d_k == head
        return inputs[0].masked_fill(mine, 0.0)

    handle = attn.linears[place].register_forward_pre_hook(silence)
    yield
    if not stays:
        handle.remove()


@contextlib.contextmanager
def without_head_and_bias(attn, head):
    with without_head(attn, head):
        bias = attn.linears[3].bias.data.clone()
        attn.linears[3].bias.data.zero_()
        yield
        attn.linears[3].bias.data.copy_(bias)


def rotate(x, *, sign=1, power=2, speed=1):
    features = []
    for i in range(0, x.size(-1), 2):
        angle = speed * torch.arange(x.size(-2)) ** (power / 2) / 10_000 ** (i / x.size(-1))
        one, other, cos, sin = x[..., i], x[..., i + 1], angle.cos(), angle.sin()
        features += [one * cos - other * sin, sign * one * sin + other * cos]
    return torch.stack(features, -1)
