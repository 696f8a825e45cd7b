# %% [markdown]
# <!-- sheet: 1_attention -->
# # Sheet 1. Attention
#
# 20 points, about two and a half hours. Read [Part 1](../index.html#attention) first.

# %%
import math
import sys

import torch
from torch import Tensor, nn

sys.path[:0] = [".", "../.."]  # the script lies beside this sheet, or two folders up
from the_annotated_transformer import attention, subsequent_mask

# %% [markdown]
# <!-- task: windowed_mask -->
# ## Task 3. A window (code, easy, 15 minutes, 3 points)
#
# In a long text a word mostly needs its neighbourhood. Write the mask for a causal *window*: query
# $t$ may see key $s$ if $s \le t$ and $t - s <$ `width`. Return a boolean tensor (1, size, size).

# %% task="windowed_mask"
def windowed_mask(size: int, width: int) -> Tensor:
    """Boolean (1, size, size): a query sees itself and the width - 1 positions before it."""
    ### BEGIN SOLUTION
    distance = torch.arange(size).unsqueeze(1) - torch.arange(size)
    return ((distance >= 0) & (distance < width)).unsqueeze(0)
    ### END SOLUTION


# %% check="windowed_mask"
mask = windowed_mask(5, 2)
assert mask.shape == (1, 5, 5), f"the shape should be (1, 5, 5), it is {tuple(mask.shape)}"
assert mask[0, 3].tolist() == [False, False, True, True, False], "look at query 3"
