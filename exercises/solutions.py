"""For each exercise a right solution, and faulty ones that the checks must refuse."""

import contextlib
import math
from operator import ge, gt, itemgetter, le

import torch
from torch import nn

import the_annotated_transformer as at
from the_annotated_transformer import END, PAD, START, rotate


def attention(query, key, value, mask=None, dropout=None, power=0.5, axis=-1, closed=-torch.inf):
    scores = torch.einsum("...td,...sd->...ts", query, key) / query.size(-1) ** power
    if mask is not None:
        scores = torch.where(mask != 0, scores, closed)
    weights = scores.softmax(axis)
    return (weights if dropout is None else dropout(weights)) @ value, weights


def subsequent_mask(size, sees=ge):
    rows = [[sees(t, s) for s in range(size)] for t in range(size)]
    return torch.tensor([rows])


def split(self, x):
    return torch.stack(x.split(self.d_k, dim=-1), dim=1)


def matrices(wanted=((1.4, 2.1), (-0.6, 2.0)), size=8.0):
    """Each noun asks in the direction in which its own adjective lies farthest."""
    nouns = torch.tensor([[2.0, 0.5], [1.8, -0.4]])  # Mädchen, Ball
    return torch.linalg.solve(nouns, size * torch.tensor(wanted)), torch.eye(2)


def size_of_derivative(scores, power=2, cross=2.0, axis=-1, root=0.5):
    """The sum of w_i² (δ_ij - w_j)² over j is w_i² (1 - 2 w_i + Σ w_j²)."""
    w = torch.exp(scores)
    w = w / w.sum(dim=axis, keepdim=True)
    squares = w.square().sum(dim=-1, keepdim=True)
    return (w**power * (1 - cross * w + squares)).sum(dim=-1) ** root


def check_of_attention(attention, width=4, empty=True, dropout=lambda w: 2 * w, slope=1.0):
    query = torch.randn(2, 3, width)
    key = torch.randn(2, 5, width)
    value = torch.randn(2, 5, 6)
    bias = slope * torch.randn(3, 5)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 1:] = False
    mask[1] = not empty
    shares = (query @ key.mT / math.sqrt(width) + bias).exp() * mask
    expected = shares / shares.sum(dim=-1, keepdim=True) @ value
    output, _ = attention(query, key, value, mask, dropout, bias)
    assert output.isfinite().all()
    factor = 1 if dropout is None else 2
    torch.testing.assert_close(output[:, ::2], factor * expected[:, ::2])


class Norm(nn.Module):
    def __init__(self, features, eps=1e-6, size=torch.abs, axis=-1, root=1):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.settings = eps, size, axis, root

    def forward(self, x):
        eps, size, axis, root = self.settings
        mean = size(x).mean(axis, keepdim=True) ** root
        return self.weight * x / (mean + eps)


def distribution(self, target, others=2, empty=PAD):
    share = self.smoothing / (self.size - others)
    wanted = torch.full((len(target), self.size), share)
    for row, right in zip(wanted, target.tolist(), strict=True):
        row[right] = 1 - self.smoothing
        row[slice(None) if right == empty else PAD] = 0.0
    return wanted


def greedy_decode(
    model, src, src_mask, max_len, start, end=END, pad=PAD, blind=False, first=0, more=0
):
    limits = torch.as_tensor(max_len).expand(len(src)).tolist()
    rows = []
    with at.evaluating(model):
        for n, limit in enumerate(limits):
            mask = src_mask[n : n + 1] | blind
            memory = model.encode(src[n : n + 1], mask)
            row = [start]
            while len(row) < limit + more and (len(row) == 1 or row[-1] != end):
                causal = at.subsequent_mask(len(row))
                states = model.decode(memory, mask, torch.tensor([row]), causal)
                row.append(int(model.generator(states[0, -1]).argmax()))
            rows.append(torch.tensor(row[first:]))
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


def kind_of_copy(source, written, end=END, early=0, late="ran over", same=True):
    if end not in written:
        return late
    if written.index(end) < len(source) + early:
        return "ended early"
    return "copied" if (written[:-1] == source) == same else "wrong token"


def layers_until_connected(layer, T, D=8, change=0, look=-1, depth=0):
    one = torch.randn(1, T, D, dtype=torch.double)
    other = one.index_fill(1, torch.tensor(change), 0.0)
    while torch.equal(one[0, look], other[0, look]):
        one = layer(one)
        other = layer(other)
        depth = depth + 1
    return depth


def token_batches(lengths, budget, order=None, longest=max, lost=0):
    numbers = range(len(lengths))
    ties = [order.random() if order else 0 for _ in numbers]
    rest = sorted(numbers, key=lambda number: (longest(lengths[number]), ties[number]))
    batches = []
    while rest:
        size = 1
        while rest[size:] and longest(lengths[rest[size]]) * (size + 1) <= budget:
            size += 1
        batches.append(rest[:size])
        rest = rest[size:]
    return order.sample(batches, len(batches) - lost) if order else batches


def grow(hypotheses, log_probs_after, beam, end=END, best=True, past=1, stays=True, wider=0):
    """Proposals stand in a table: a row for each open hypothesis, a column for each token."""
    ended = [each for each in hypotheses if each[1][-1] == end]
    going_on = [each for each in hypotheses if each[1][-1] != end]
    if not going_on:
        return ended
    table = torch.stack([past * logp + log_probs_after(written) for logp, written in going_on])
    places = beam - len(ended) + wider if stays else beam
    found, numbers = table.flatten().topk(places, largest=best)
    grown = []
    for logp, number in zip(found.tolist(), numbers.tolist(), strict=True):
        place, token = divmod(number, table.size(1))
        grown.append((logp, [*going_on[place][1], token]))
    return ended + grown if stays else sorted(ended + grown, reverse=True)[:beam]


def training_flops(N, D, d_ff, V, S, T, passes=3, operations=2, memory=2):
    maps = S * (4 + memory) * D * D + T * 6 * D * D + (S + T) * 2 * D * d_ff
    scores = S * D * S + T * D * T + T * D * S
    return passes * operations * (N * (maps + 2 * scores) + T * D * V)


def without_head(attn, head, place=3, until=lambda handle: handle):
    def silence(module, inputs):
        heads = torch.arange(inputs[0].size(-1)) // attn.d_k
        return inputs[0].masked_fill(heads == head, 0.0)

    return until(attn.linears[place].register_forward_pre_hook(silence))


def turn(x, places, sign=1, angle_of=torch.as_tensor, second=1):
    """A solution of `rotate`."""
    features = []
    for i in range(0, x.size(-1), 2):
        angle = angle_of(places) / 10_000 ** (i / x.size(-1))
        one = x[..., i]
        other = x[..., i + second]
        cos = angle.cos()
        sin = angle.sin()
        features += [one * cos - other * sin, sign * one * sin + other * cos]
    return torch.stack(features, -1)


def as_it_is(x, *_):
    return x


def repeat(x, copies):
    return x.repeat_interleave(copies, dim=1)


def attend(
    self, q, k, v, mask,
    of_q=rotate, of_k=rotate, of_v=as_it_is, last=True, share=repeat, masked=True,
):  # fmt: skip
    """`attend` of rotary attention in groups."""
    places = torch.arange(k.size(2))
    T = q.size(2)
    copies = q.size(1) // k.size(1)
    q = of_q(q, places[-T:] if last else places[:T])
    k = share(of_k(k, places), copies)
    v = share(of_v(v, places), copies)
    return at.attention(q, k, v, mask if masked else None, self.dropout)


def with_fault(right, changes):
    """A plain function, so that it may stand for a method, too."""
    return lambda *given, **named: right(*given, **named, **changes)


SOLUTIONS = {  # a right one, and faulty ones: arguments that spoil it, or others
    "attention": (attention, [{"power": 0}, {"axis": -2}, {"closed": 0.0}]),
    "subsequent_mask": (
        subsequent_mask,
        [{"sees": le}, {"sees": gt}, {"sees": lambda t, s: -1.0 if s > t else 0.0}],  # to be added
    ),
    "split": (
        split,
        [
            lambda self, x: x.reshape(len(x), self.h, -1, self.d_k),
            lambda self, x: x.unflatten(-1, (-1, self.d_k)),
            lambda self, x: x.unflatten(-1, (-1, self.h)).movedim(3, 1),
        ],
    ),
    "matrices": (
        matrices(),
        [
            (at.W_Q, at.W_K),
            matrices(size=0.2),  # not sharp enough
            matrices(size=-3.0),
            matrices(wanted=((-0.6, 2.0), (1.4, 2.1))),  # each hears the adjective of the other
            matrices(wanted=((1.4, 2.1), (1.4, 2.1))),  # both hear kleines
        ],
    ),
    "size_of_derivative": (
        size_of_derivative,
        [{"power": 1}, {"cross": 1.0}, {"root": 1}, {"axis": None}, {"axis": 0}],
    ),
    "check_of_attention": (
        check_of_attention,
        [
            {"width": 1},  # its root is 1
            {"empty": False},
            {"dropout": None},
            {"slope": 0.0},
            lambda attention: at.check_attention_equals_torch(),  # of ours, whatever is given
            lambda attention: 1 / 0,  # refuses ours
        ],
    ),
    "norm": (Norm, [{"size": torch.square, "root": 0.5}, {"size": torch.as_tensor}, {"axis": 1}]),
    "distribution": (distribution, [{"others": 1}, {"others": 0}, {"empty": None}]),
    "greedy_decode": (
        greedy_decode,
        [
            {"blind": True},
            {"first": 1},
            {"more": 1},
            lambda model, src, *_: torch.full((len(src), 1), START),  # writes nothing
        ],
    ),
    "kind_of_copy": (
        kind_of_copy,
        [{"end": PAD}, {"early": 1}, {"late": "wrong token"}, {"same": False}],
    ),
    "layers_until_connected": (
        layers_until_connected,
        [{"change": 1}, {"look": 0}, {"depth": -1}, at.layers_until_connected],  # with gradients
    ),
    "token_batches": (token_batches, [{"longest": itemgetter(0)}, {"longest": sum}, {"lost": 1}]),
    "grow": (grow, [{"best": False}, {"past": 0}, {"stays": False}, {"wider": 1}]),
    "training_flops": (training_flops, [{"passes": 1}, {"operations": 1}, {"memory": 0}]),
    "without_head": (without_head, [{"place": 0}, {"place": 2}, {"until": contextlib.nullcontext}]),
    "rotate": (
        turn,
        [
            {"sign": -1},
            {"angle_of": torch.zeros_like},
            {"angle_of": torch.square},
            {"angle_of": torch.ones_like},  # the same at all places
            {"second": 0},
        ],
    ),
    "attend": (
        attend,
        [
            {"of_q": as_it_is},
            {"of_k": as_it_is},
            {"of_v": rotate},
            {"last": False},  # as if a cache began anew with each step
            {"share": as_it_is},
            {"share": lambda x, copies: x.repeat(1, copies, 1, 1)},  # dealt like cards
            {"masked": False},
        ],
    ),
}
