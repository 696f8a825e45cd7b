"""Parts that only the plan has."""

from torch import nn

import the_annotated_transformer as at


class NarrowKeys(at.MultiHeadedAttention):
    """Queries and keys of 16 numbers in each head, values as wide as ever (Table 3, rows B)."""

    def __init__(self, h: int, d_model: int, dropout: float = 0.1, width: int = 16):
        super().__init__(h, d_model, dropout)
        self.linears[0] = nn.Linear(d_model, h * width)
        self.linears[1] = nn.Linear(d_model, h * width)

    def split(self, x):
        """Cut into heads, however wide they are."""
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)


at.PARTS["attention"]["keys16"] = NarrowKeys
