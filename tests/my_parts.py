"""Parts as a reader writes them: this file is what `--parts` takes, and test_parts.py runs it."""

import torch
from torch import nn

from the_annotated_transformer import (
    OPTIMIZERS,
    PARTS,
    SCHEDULES,
    DecoderLayer,
    MultiHeadedAttention,
    PositionwiseFeedForward,
    WindowAttention,
    attention,
)


class SharpAttention(MultiHeadedAttention):
    """An `attend` that does not call `attention`: the weights of twice the scores."""

    def attend(self, q, k, v, mask):
        scores = 2 * q @ k.transpose(-2, -1) / self.d_k**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(scores.softmax(dim=-1))
        return weights @ v, weights


class LearntDistance(MultiHeadedAttention):
    """Scores fall with the distance, at a learnt rate in each head."""

    def __init__(self, h, d_model):
        super().__init__(h, d_model)
        self.rates = nn.Parameter(torch.full((h, 1, 1), 0.1))

    def attend(self, q, k, v, mask):
        places = torch.arange(k.size(-2), device=k.device)
        distance = (places[-q.size(-2) :].unsqueeze(1) - places).abs()  # (T, S)
        return attention(q, k, v, mask, self.dropout, bias=-self.rates * distance)


class Soft(PositionwiseFeedForward):
    """A soft ReLU."""

    def forward(self, x):
        return self.narrow(self.dropout(nn.functional.softplus(self.widen(x))))


class UnitNorm(nn.Module):
    """Every vector gets one learnt length."""

    def __init__(self, features):
        super().__init__()
        self.length = nn.Parameter(torch.tensor(features**0.5))

    def forward(self, x):
        return self.length * nn.functional.normalize(x, dim=-1, eps=1e-6)


class Ramp(nn.Module):
    """Adds a learnt vector, more of it at each place."""

    def __init__(self, d_model, max_len):
        super().__init__()
        self.slope = nn.Parameter(torch.full((d_model,), 1 / max_len))

    def forward(self, x):
        return x + torch.arange(x.size(1), device=x.device).unsqueeze(1) * self.slope


class FeedForwardFirst(DecoderLayer):
    """The sub-layers in another order."""

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[2](x, self.feed_forward)
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))
        return self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))


class Parallel(nn.Module):
    """An encoder layer of its own: attention and feed-forward network side by side, no norm."""

    def __init__(self, config):
        super().__init__()
        self.self_attn = MultiHeadedAttention(config.h, config.d_model)
        self.feed_forward = PositionwiseFeedForward(config.d_model, config.d_ff)

    def forward(self, x, mask):
        return x + self.self_attn(x, x, x, mask) + self.feed_forward(x)


def feed_forward_first(config):
    attentions = (MultiHeadedAttention(config.h, config.d_model) for _ in range(2))
    feed_forward = PositionwiseFeedForward(config.d_model, config.d_ff, config.dropout)
    return FeedForwardFirst(
        config.d_model, *attentions, feed_forward, config.dropout, config.norm_first
    )


PARTS["attention"]["sharp"] = lambda config: SharpAttention(config.h, config.d_model)
PARTS["attention"]["learnt-distance"] = lambda config: LearntDistance(config.h, config.d_model)
PARTS["attention"]["short-window"] = lambda config: WindowAttention(
    config.h, config.d_model, config.dropout, window=3
)
PARTS["feed_forward"]["soft"] = lambda config: Soft(config.d_model, config.d_ff, config.dropout)
PARTS["norm"]["unit"] = lambda config: UnitNorm(config.d_model)
PARTS["positions"]["ramp"] = lambda config: Ramp(config.d_model, config.max_len)
PARTS["encoder_layer"]["parallel"] = Parallel
PARTS["decoder_layer"]["feed-forward-first"] = feed_forward_first
OPTIMIZERS["descent"] = lambda model, decay: torch.optim.SGD(
    model.parameters(), lr=1.0, weight_decay=decay
)
SCHEDULES["flat"] = lambda step, model_size, factor, warmup, total: 0.01 * factor
