"""Parts as a reader would write them, for test_parts.py and for `--parts`."""

import torch
from torch import nn

from the_annotated_transformer import MultiHeadedAttention, PositionwiseFeedForward


class SharpAttention(MultiHeadedAttention):
    """An `attend` of its own, which calls nothing of ours: weights of twice the scores."""

    def attend(self, query, key, value, mask, at):
        scores = 2 * query @ key.transpose(-2, -1) / self.d_k**0.5
        weights = self.dropout(scores.masked_fill(~mask, -1e9).softmax(dim=-1))
        return weights @ value, weights


class BiasedByDistance(MultiHeadedAttention):
    """Scores fall with the distance, in each head at a rate of its own (ALiBi, Press et al.)."""

    def attend(self, query, key, value, mask, at):
        distance = (at.unsqueeze(1) - torch.arange(key.size(-2))).abs()  # (T, S)
        slope = 2.0 ** -torch.arange(1, self.h + 1).view(-1, 1, 1)  # (H, 1, 1)
        scores = query @ key.transpose(-2, -1) / self.d_k**0.5 - slope * distance
        weights = self.dropout(scores.masked_fill(~mask, -1e9).softmax(dim=-1))
        return weights @ value, weights


class Smooth(PositionwiseFeedForward):
    """A soft ReLU, with a sharpness of its own."""

    def __init__(self, d_model, d_ff, dropout=0.1, sharpness=1.0):
        super().__init__(d_model, d_ff, dropout)
        self.sharpness = sharpness

    def forward(self, x):
        wide = nn.functional.softplus(self.sharpness * self.widen(x))
        return self.narrow(self.dropout(wide))
