"""The parts of the hunt's model, right and faulty. Students get this file packed in hunt.py."""

import hashlib
import math

import torch
import torch.nn.functional as F

START, END, PAD = 0, 1, 2


class Right:
    """What each part should do; `CONTRACTS` in hunt.py says it in words."""

    def embed(table, ids):
        return table[ids] * math.sqrt(table.size(1))

    def add_positions(x, waves):
        return x + waves

    def split(x, heads):
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def scores(q, k):
        return q @ k.mT / math.sqrt(q.size(-1))

    def weights(scores, mask):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)

    def residual(x, change):
        return x + change

    def dropout(x, p, training):
        return F.dropout(x, p, training)

    def memory(states):
        return states

    def log_probs(logits):
        return logits.log_softmax(-1)

    def frame(src):
        rows = F.pad(src, (1, 1), value=PAD)
        rows[:, 0] = START
        ends = (src != PAD).sum(1) + 1
        rows[torch.arange(len(src)), ends] = END
        return rows

    def source_mask(src):
        return (src != PAD).unsqueeze(1)

    def causal(size):
        return torch.ones(size, size, dtype=torch.bool).tril()

    def shift(tgt):
        return tgt[:, :-1], tgt[:, 1:]

    def loss(log_probs, target):
        return F.nll_loss(log_probs.flatten(0, 1), target.flatten(), ignore_index=PAD)

    def rate(step):
        return 0.01 * min(step / 50, math.sqrt(50 / step))

    def update(loss, optimizer):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def first(src):
        return torch.full((len(src), 1), START)

    def choose(log_probs):
        return log_probs.argmax(-1)


class Faulty:
    """One fault in each part; `CANDIDATES` in hunt.py says it in words."""

    def embed(table, ids):
        return table[ids.clamp(max=len(table) - 3)] * math.sqrt(table.size(1))

    def add_positions(x, waves):
        return x

    def split(x, heads):
        return x.reshape(len(x), heads, x.size(1), -1)

    def weights(scores, mask):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-2)

    def residual(x, change):
        return change

    def dropout(x, p, training):
        return F.dropout(x, p, True)

    def memory(states):
        return torch.zeros_like(states)

    def log_probs(logits):
        return logits.log_softmax(-2)

    def frame(src):
        rows = F.pad(src, (1, 1), value=PAD)
        rows[:, 0] = START
        return rows

    def source_mask(src):
        return torch.ones_like(src, dtype=torch.bool).unsqueeze(1)

    def causal(size):
        return torch.ones(size, size, dtype=torch.bool)

    def shift(tgt):
        return tgt[:, :-1], tgt[:, :-1]

    def loss(log_probs, target):
        likeliest = log_probs.max(-1).values
        return -likeliest[target != PAD].mean()

    def rate(step):
        return 0.01 / 50

    def update(loss, optimizer):
        loss.backward()
        optimizer.step()

    def first(src):
        return torch.full((len(src), 1), PAD)

    def choose(log_probs):
        return log_probs[:, END + 1 :].argmax(-1) + END + 1


def play(case: int | None, name: str, *given):
    """What a part gives in a case: one part is faulty, which the number decides; none for None."""
    faults = sorted(fault for fault in vars(Faulty) if not fault.startswith("_"))
    digest = hashlib.sha256(f"transformer {case}".encode()).digest()
    faulty = case is not None and faults[int.from_bytes(digest[:8], "big") % len(faults)] == name
    return vars(Faulty if faulty else Right)[name](*given)
