# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# <a id="top"></a>
# # The Annotated Transformer
#
# In 2017 eight researchers proposed to translate with attention alone: no recurrence, no convolution.
# Their paper, [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762), takes fifteen pages. This
# text takes it section by section and turns it into a program. Each idea is followed by the few lines that
# implement it. Each claim is followed by a check that would fail if the claim were wrong.
#
# You can read it as an article, run it cell by cell, import it as a module, or train with it from the
# command line. All four are the same file.
#
# <a id="start"></a>
# # Start here
#
# **What you will build.** A complete Transformer in PyTorch; the loss, optimizer and schedule that train
# it; a model that copies sequences, trained while you read; and a German–English translator that trains on
# one processor, on one GPU, or on several. At the end you will look at what its attention attends to.
#
# **What you need.** Python, some linear algebra, and a little PyTorch. No GPU is needed.
#
# | Part | What happens there | Two CPU cores |
# | --- | --- | --- |
# | [1. Model](#model) | every layer, checked against PyTorch's own | seconds |
# | [3. Training](#training) | batches, loss, optimizer, schedule, loop | seconds |
# | [4. A first example](#copy-task) | a model learns to copy | about a minute |
# | [5. Real data](#real-data) | German to English | three minutes for a demonstration, an hour for the real model |
# | [8. Looking inside](#looking-inside) | attention, layer by layer and head by head | seconds |
#
# Parts 2, 6 and 7 are not written yet: the cost of self-attention, the rest of the paper's recipe, and a
# table of results. The numbers are kept free for them.
#
# <a id="setup"></a>
# ## Set-up
#
# In Colab a few packages are missing, and the next cell installs them. It never touches PyTorch, and it does
# nothing where all is there.

# %% tags=["hide-input"]
import importlib.util
import subprocess
import sys

IN_NOTEBOOK = "get_ipython" in globals()  # `__name__ == "__main__"` is true in a cell too
NEEDED = {
    "torchtext": "torchtext==0.6.0",
    "spacy": "spacy==3.8.18",
    "sacrebleu": "sacrebleu==2.6.0",
    "altair": "altair==6.3.0",
    "vl_convert": "vl-convert-python==1.9.0.post1",
    "GPUtil": "GPUtil==1.4.0",
}


def missing_packages(needed: dict[str, str]) -> list[str]:
    """Requirements whose module cannot be found here."""
    return [pin for module, pin in needed.items() if importlib.util.find_spec(module) is None]


if IN_NOTEBOOK and (missing := missing_packages(NEEDED)):
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", *missing])

# %% [markdown]
# Only the standard library and PyTorch are imported at the top. What a single section needs (pandas, Altair,
# spaCy) is imported where it is used, so that `import the_annotated_transformer` stays quick and quiet.

# %% tags=["hide-input"]
import contextlib
import copy
import dataclasses
import functools
import gzip
import hashlib
import io
import itertools
import json
import math
import os
import random
import re
import signal
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

# %% [markdown]
# ### Examples and checks
#
# Many cells below show something or prove something. All of them are functions under one decorator. In a
# notebook it runs the function and displays the result; elsewhere it files the function away, and the
# test suite runs it. A check that raises nothing has passed, and says so.

# %%
EXAMPLES: dict[str, Callable] = {}


def example(function: Callable) -> Callable:
    """Run and display `function` in a notebook; otherwise register it for the tests.

    The generators are seeded first. A name may serve only once.
    """
    if function.__name__ in EXAMPLES and not IN_NOTEBOOK:
        raise ValueError(f"two examples are called {function.__name__}")

    @functools.wraps(function)
    def run():
        torch.manual_seed(0)
        random.seed(0)
        return function()

    EXAMPLES[function.__name__] = run
    if IN_NOTEBOOK:
        result = run()
        title = function.__name__.removeprefix("check_").replace("_", " ")
        display(f"✓ {title}", raw=False) if result is None else display(result)  # noqa: F821
    return run


# %% [markdown]
# How much is run is decided by one environment variable, `ANNOTATED_RUN`. At `laptop`, the default, demonstrations
# are bounded and finished models are used where there are any. At `full` everything on this page is trained.
# At `smoke` the tests run it all on toy data within minutes.

# %%
LEVELS = ("smoke", "laptop", "full")


def run_level() -> str:
    """The level named by ANNOTATED_RUN; ValueError where it names none."""
    level = os.environ.get("ANNOTATED_RUN", "laptop")
    if level not in LEVELS:
        raise ValueError(f"ANNOTATED_RUN must be one of {', '.join(LEVELS)}, got {level!r}")
    return level


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless the condition holds: how arguments are checked here."""
    if not condition:
        raise ValueError(message)


# %% [markdown]
# Figures are made with Altair. The renderer below puts into the notebook both an interactive chart and a
# small picture, so that a figure can be seen where no script may run, and no network is asked.

# %% tags=["hide-input"]
def portable_chart(spec: dict) -> dict:
    """A chart as a mime bundle: interactive where Vega is at hand, a picture elsewhere."""
    import base64

    import vl_convert
    from PIL import Image

    png = vl_convert.vegalite_to_png(spec, scale=1.5)
    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    return {
        "application/vnd.vegalite.v5+json": spec,  # the newest type that Jupyter's viewer knows
        "image/png": base64.b64encode(small.getvalue()).decode(),
        "text/plain": spec.get("description", "chart"),
    }


def use_portable_charts() -> None:
    """Make Altair emit portable charts; Colab draws its own way."""
    import altair as alt

    if "google.colab" not in sys.modules:
        alt.renderers.register("portable", portable_chart)
        alt.renderers.enable("portable")
    alt.data_transformers.disable_max_rows()


if IN_NOTEBOOK:
    use_portable_charts()

# %% [markdown]
# <a id="background"></a>
# # Background
#
# <a id="problem"></a>
# ## The problem
#
# (§1, §2) A translator reads a sequence of words and writes another. Before 2017 the best systems read with a
# recurrent network: one word after the other, each step waiting for the step before. Such a chain cannot be
# computed in parallel, and a word that was read forty steps ago has passed through forty updates before it can
# matter. Convolutions removed the chain, but two distant words still met only after many layers.
#
# Attention lets any two positions meet in one step. It had been used as an addition to recurrent networks. The
# paper drops the rest and keeps the addition: every layer lets each position look at every other one, all at
# the same time.
#
# <a id="notation"></a>
# ## Notation
#
# Shapes are written as comments wherever they change, and only with these letters.
#
# | Letter | Meaning | Base model | Paper's name |
# | --- | --- | --- | --- |
# | `B` | sentences in a batch | | |
# | `S` | length of the source | | $n$ |
# | `T` | length of the target | | $m$ |
# | `D` | width of the model, `d_model` | 512 | $d_\text{model}$ |
# | `H` | heads | 8 | $h$ |
# | `K` | width of a head, D/H | 64 | $d_k = d_v$ |
# | `F` | width inside the feed-forward network, `d_ff` | 2,048 | $d_\text{ff}$ |
# | `V` | size of the vocabulary | 37,000 | |
# | `N` | layers in a stack | 6 | $N$ |
#
# **Masks** are boolean everywhere, and `True` means *may be attended to*.

# %% [markdown]
# <a id="model"></a>
# # Part 1. Model
#
# <a id="encoder-decoder"></a>
# ## An encoder and a decoder
#
# (§3) The encoder reads the whole source and leaves one vector for each of its positions: the *memory*. The
# decoder writes the target one symbol at a time. At each step it sees the memory and what it has written so
# far, and nothing else.
#
# ![The Transformer. Left: the encoder, N layers of self-attention and a feed-forward network over the source.
# Right: the decoder, N layers of masked self-attention, cross-attention over the memory, and a feed-forward
# network, then the generator.](images/architecture.svg)
#
# **Figure 1.** The whole model, in the form that this text uses by default. Follow one sentence from the lower
# left to the upper right. The shape of every tensor stands on its arrow; inside both stacks it never changes.
#
# We build it from the outside in: first the frame, then what fills it.

# %%
class EncoderDecoder(nn.Module):
    """Encoder, decoder and what surrounds them (§3, Figure 1 of the paper).

    Maps source ids (B, S) and target ids (B, T) to decoder states (B, T, D). `generator` turns
    states into log-probabilities. Masks: source (B, 1, S), target (B, T, T) or (1, T, T).
    """

    def __init__(self, encoder, decoder, src_embed, tgt_embed, generator):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.src_embed, self.tgt_embed = src_embed, tgt_embed
        self.generator = generator

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        return self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask)

    def encode(self, src: Tensor, src_mask: Tensor, record: list | None = None) -> Tensor:
        """Source ids (B, S) -> memory (B, S, D)."""
        return self.encoder(self.src_embed(src), src_mask, record)

    def decode(self, memory, src_mask, tgt, tgt_mask, record: list | None = None) -> Tensor:
        """Memory (B, S, D) and target ids (B, T) -> states (B, T, D)."""
        return self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask, record)


# %% [markdown]
# The argument `record` is how attention weights leave the model. Whoever wants to see them passes an empty list,
# and each attention appends its own. Usually nobody does, and then the weights are never stored at all.
#
# > **Why keep attention weights at all?** To look at them, in [Part 8](#looking-inside). Training has no use for
# > them. A model that stored them on itself at each call would hold the memory of the last batch for nothing,
# > and would show a stale picture to whoever asks later.
#
# <a id="generator"></a>
# ### From states to words
#
# (§3.4) The last step maps a state of width $D$ to one score for each word of the vocabulary, and a softmax
# makes probabilities of the scores. We keep logarithms: products of many probabilities underflow, sums of their
# logarithms do not.

# %%
class Generator(nn.Module):
    """Linear map and log-softmax (§3.4): states (..., D) -> log-probabilities (..., V).

    The result is in fp32 even where the model computes in a shorter format.
    """

    def __init__(self, d_model: int, vocab: int):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.proj(x)  # (..., V)
        precise = torch.promote_types(logits.dtype, torch.float32)
        return F.log_softmax(logits, dim=-1, dtype=precise)


# %% [markdown]
# > **Why is the generator outside `forward`?** Because it is the widest layer by far, and the two users of the
# > model want different things of it. Training needs it at every position. Decoding needs it at the last one only:
# > there, running it inside `forward` would score every earlier position again, for nothing.
#
# <a id="clones"></a>
# ### Copies that differ
#
# A stack holds $N$ layers of the same shape. `copy.deepcopy` gives the shape, but also the same initial numbers in
# every copy. So each copy draws its own.

# %%
def clones(module: nn.Module, N: int) -> nn.ModuleList:
    """N copies of `module`, alike in shape, each with initial values of its own."""
    require(N >= 0, f"the number of layers must be 0 or more, got {N}")
    copies = nn.ModuleList(copy.deepcopy(module) for _ in range(N))
    for part in copies.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return copies


# %%
@example
def check_clones_differ_in_weights_and_biases():
    first, second = clones(nn.Linear(5, 3), 2)
    assert not torch.equal(first.weight, second.weight)
    assert not torch.equal(first.bias, second.bias)


# %% [markdown]
# > **Do cloned layers share their initial weights?** In many implementations they do, biases above all, because
# > only matrices are drawn again afterwards. Training would pull such twins apart in time. There is no reason
# > to begin with them.
#
# <a id="layer-norm"></a>
# ## Layer normalisation
#
# (§3.1) Before we stack layers, we need what keeps a deep stack stable. Layer normalisation
# ([Ba et al., 2016](https://arxiv.org/abs/1607.06450)) takes the vector of one position, shifts it to mean
# zero and scales it to variance one. No other position and no other sentence has a part in it, so a word is
# treated the same in any batch.
#
# $$\mathrm{LayerNorm}(x) = \gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta, \qquad
# \mu = \frac{1}{D}\sum_{i} x_i, \quad \sigma^2 = \frac{1}{D}\sum_{i} (x_i - \mu)^2$$

# %%
def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """The formula, step by step: (..., D) -> (..., D)."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)  # (..., 1), divided by D, not D - 1
    return scale * centred / (variance + eps).sqrt() + shift


class LayerNorm(nn.Module):
    """Layer normalisation with a learnt scale and shift: (..., features) -> (..., features)."""

    def __init__(self, features: int, eps: float = 1e-6):
        super().__init__()
        require(features > 0, f"LayerNorm needs at least one feature, got {features}")
        self.eps = eps
        self.scale = nn.Parameter(torch.empty(features))
        self.shift = nn.Parameter(torch.empty(features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.shift)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.scale.shape, self.scale, self.shift, self.eps)


# %% [markdown]
# The function shows what happens; the module calls PyTorch's fused kernel, which does the same in one pass over
# memory. This pair, a form to read and a form to run, returns with attention. Each form has its check:

# %%
@example
def check_layer_norm_equals_torch():
    x, theirs = 3 + 2 * torch.randn(2, 5, 8), nn.LayerNorm(8, eps=1e-6)
    nn.init.normal_(theirs.weight)
    nn.init.normal_(theirs.bias)
    torch.testing.assert_close(layer_norm(x, theirs.weight, theirs.bias, 1e-6), theirs(x))


@example
def check_layer_norm_module_equals_the_formula():
    x, ours = 3 + 2 * torch.randn(2, 5, 8), LayerNorm(8)
    nn.init.normal_(ours.scale)
    nn.init.normal_(ours.shift)
    torch.testing.assert_close(ours(x), layer_norm(x, ours.scale, ours.shift, 1e-6))


# %% [markdown]
# > **Why learn a scale and a shift?** Without them every position of every layer would be forced onto the
# > same sphere. With them a feature can be made loud, quiet or constant, whatever the layer above can use. They
# > start at one and zero, so at first they change nothing.
#
# <a id="residual"></a>
# ## Residual connections
#
# (§3.1) Each sub-layer only adds to its input: $x + \mathrm{Sublayer}(x)$. A signal, and a gradient, can then
# travel through the whole stack untouched. The paper normalises after the addition,
#
# $$\mathrm{LayerNorm}\bigl(x + \mathrm{Sublayer}(x)\bigr),$$
#
# while the code that its authors published soon after, and most models since, normalise before the sub-layer:
#
# $$x + \mathrm{Sublayer}\bigl(\mathrm{LayerNorm}(x)\bigr).$$

# %%
def make_dropout(rate: float) -> nn.Dropout:
    """Dropout, or ValueError where the rate is not in [0, 1)."""
    require(0 <= rate < 1, f"dropout must be in [0, 1), got {rate}")
    return nn.Dropout(rate)


# %%
class SublayerConnection(nn.Module):
    """Residual connection around a sub-layer, with dropout and a norm: (B, T, D) -> (B, T, D).

    `norm_first=False` gives the paper's order (§3.1), the norm after the sum.
    """

    def __init__(self, size: int, dropout: float, norm_first: bool = True):
        super().__init__()
        self.norm = LayerNorm(size)
        self.dropout = make_dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


# %% [markdown]
# > **Why is the norm before the sub-layer when the paper puts it after?** With the norm after the sum, the path
# > from the loss to the first layer crosses every norm on the way, and gradients near the output are large at the
# > start. Such a stack needs a careful warm-up, and deep ones may fail to train. With the norm inside the branch,
# > the residual path is a plain sum from bottom to top ([Xiong et al., 2020](https://arxiv.org/abs/2002.04745)). We
# > take the safe order as default; `norm_first=False` gives the paper's.
# >
# > **And the extra norm at the top of a stack?** It belongs to the first order. A plain sum of many branches grows
# > with depth, and nobody has normalised the last one; so one norm closes the stack. After the paper's order the
# > output is normalised already.
#
# Dropout acts on the output of each sub-layer, before the addition (§5.4). [Below](#dropout) is a list of all the
# places where the model drops.
#
# <a id="attention"></a>
# ## Attention
#
# (§3.2) Attention is a lookup that can be differentiated. Each position asks a *query*. Each position that may be
# looked at offers a *key* and a *value*. The better a key fits the query, the more of its value goes into
# the answer, which is a weighted mean of all values.
#
# <a id="scaled-dot-product-attention"></a>
# ### Scaled dot-product attention
#
# (§3.2.1) "Fits" means a large inner product. A softmax turns the fits of one query into weights that sum to one:
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right)V$$
#
# ![Scaled dot-product attention: queries and keys are multiplied, divided by the root of the head width, masked,
# and turned into weights by a softmax; the weights mix the values.](images/attention.svg)
#
# **Figure 2.** One head at work. The scores form a table with a row for each query and a column for each key; the
# mask closes cells of this table, and the softmax runs along its rows.

# %%
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout=None
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention (§3.2.1, Eq. 1), in the form to read.

    query (..., T, K), key (..., S, K), value (..., S, K), mask broadcastable to (..., T, S);
    `dropout` is a module or None. Returns the output (..., T, K) and the weights (..., T, S)
    before dropout. A query whose mask is False everywhere gets zeros.
    """
    K = query.size(-1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(K)  # (..., T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    dropped = weights if dropout is None else dropout(weights)
    return dropped @ value, weights  # (..., T, K), (..., T, S)


# %% [markdown]
# > **Why a large negative number, and not $-\infty$?** For any row with at least one open cell both give the same
# > weights: $e^{-10^{38}}$ is zero in every format. A row with no open cell tells them apart. With $-\infty$ the
# > softmax divides zero by zero, and NaN spreads through the batch. With a constant such as $-10^9$ the row gets
# > equal weights on everything it must not see, and in fp16, which ends at 65,504, the constant itself overflows. We
# > take the lowest number of the format at hand and then set closed cells to exactly zero. The empty row gives
# > zero, forward and backward, on every device.
#
# PyTorch's kernel is the oracle: the same queries, keys and values under a random mask, one row of which is closed.

# %%
def random_attention_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (2, 4, 3, 8), keys and values (2, 4, 5, 8), a mask (2, 1, 3, 5) with an empty row."""
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    mask = torch.rand(2, 1, 3, 5) < 0.6
    mask[0, 0, 1] = False
    return query, key, value, mask


@example
def check_attention_equals_torch():
    query, key, value, mask = random_attention_inputs()
    ours, weights = attention(query, key, value, mask)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value, mask))
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).float().expand(2, 4, 3))


# %% [markdown]
# <a id="why-scale"></a>
# ### Why divide by the root of the width?
#
# (§3.2.1, footnote 4) Let the entries of $q$ and $k$ be independent with mean zero and variance one. Each product
# $q_i k_i$ then has variance one, and the sum of $K$ of them has variance $K$. Scores of a wide head would lie
# far apart, the softmax would put nearly all weight on one key, and its gradient would vanish. Dividing by
# $\sqrt{K}$ brings the variance back to one.

# %%
@example
def check_the_variance_of_a_dot_product_is_its_width():
    for width in (4, 64):
        query, key = torch.randn(50_000, width), torch.randn(50_000, width)
        assert abs((query * key).sum(-1).var() / width - 1) < 0.03


@example
def scaling_keeps_the_softmax_soft():
    """The largest of ten weights on average, without and with the scale."""
    rows = {}
    for width in (4, 64, 512):
        scores = (torch.randn(1000, 1, width) * torch.randn(1000, 10, width)).sum(-1)
        plain, scaled = (s.softmax(-1).amax(-1).mean().item() for s in (scores, scores / width**0.5))
        rows[f"K = {width}"] = {"without": round(plain, 2), "with": round(scaled, 2)}
    return rows


# %% [markdown]
# Without the scale, a head of width 512 gives nearly everything to one of ten keys before it has learnt anything.
# With it, the width no longer matters.
#
# <a id="fast-attention"></a>
# ### The form to run
#
# The form above stores a table of $T \times S$ weights for each head and sentence. A fused kernel goes through the
# same arithmetic block by block and never stores the table. It returns no weights. So we use it whenever nobody
# asks for them.

# %%
def fast_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """The output of `attention` from PyTorch's fused kernel; `dropout` is a rate."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)


@example
def check_the_fast_form_equals_the_form_to_read():
    query, key, value, mask = random_attention_inputs()
    torch.testing.assert_close(
        fast_attention(query, key, value, mask), attention(query, key, value, mask)[0]
    )


# %% [markdown]
# A query with nothing to attend to must be harmless in both forms: no output, no gradient.

# %%
@example
def check_an_empty_row_gives_zero_output_and_gradient():
    for form in (lambda *inputs: attention(*inputs)[0], fast_attention):
        query, key, value, mask = random_attention_inputs()
        query.requires_grad_(True)
        output = form(query, key, value, mask)
        output.square().sum().backward()
        assert output[0, :, 1].eq(0).all() and query.grad[0, :, 1].eq(0).all()
        assert query.grad.isfinite().all() and query.grad[0, :, 0].ne(0).any()


# %% [markdown]
# <a id="multi-head-attention"></a>
# ### Several heads
#
# (§3.2.2) One softmax gives one weighted mean. A word often needs several things at once: its adjective, its verb,
# the word it refers to. So the paper runs $H$ attentions side by side, each in a space of its own of width $K = D/H$,
# and mixes their answers with one more linear map:
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_H)\, W^O, \qquad
# \mathrm{head}_i = \mathrm{Attention}(QW_i^Q, KW_i^K, VW_i^V)$$
#
# ![Multi-head attention: three linear maps, a split into H heads, attention in each head, heads joined again, and a
# last linear map.](images/multi-head.svg)
#
# **Figure 3.** Multi-head attention. The H small projections of each kind are one matrix product of width D, cut into
# H slices afterwards.

# %%
class MultiHeadedAttention(nn.Module):
    """Multi-head attention (§3.2.2): h heads of width d_model / h.

    query (B, T, D), key and value (B, S, D), mask (B or 1, T or 1, S) -> (B, T, D).
    With a list as `record`, the weights (B, H, T, S) are appended to it, detached.
    """

    def __init__(self, h: int, d_model: int, dropout: float = 0.1):
        super().__init__()
        require(h > 0 and d_model > 0, f"h and d_model must be positive, got {h} and {d_model}")
        require(d_model % h == 0, f"d_model ({d_model}) must be divisible by h ({h})")
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)  # for query, key, value and output
        self.dropout = make_dropout(dropout)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K)."""
        B, T, D = x.shape
        return x.view(B, T, self.h, D // self.h).transpose(1, 2)

    def forward(self, query, key, value, mask=None, record: list | None = None) -> Tensor:
        to_query, to_key, to_value, to_output = self.linears
        q, k, v = self.split(to_query(query)), self.split(to_key(key)), self.split(to_value(value))
        mask = None if mask is None else mask.unsqueeze(1)  # the same for every head
        if record is None:
            heads = fast_attention(q, k, v, mask, self.dropout.p if self.training else 0.0)
        else:
            heads, weights = attention(q, k, v, mask, self.dropout)
            record.append(weights.detach())
        joined = heads.transpose(1, 2).flatten(2)  # (B, H, T, K) -> (B, T, D)
        return to_output(joined)


# %% [markdown]
# > **Why four linear maps, and how do they meet q, k and v?** The first three let a head choose what to compare and
# > what to pass on: without them every head would do the same with the same vectors. The fourth mixes the heads,
# > which would otherwise keep to their own slices of the output for good. In the code the maps meet their inputs in
# > order: first query, second key, third value, fourth the joined result.
#
# With the same weights, PyTorch's own module must give the same output, for queries and keys of different lengths:

# %%
def copy_attention(ours: MultiHeadedAttention, theirs: nn.MultiheadAttention) -> None:
    """Give PyTorch's module our weights. It keeps the first three maps in one matrix."""
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in ours.linears[:3]]))
        theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in ours.linears[:3]]))
    theirs.out_proj.load_state_dict(ours.linears[3].state_dict())


@example
def check_multi_head_attention_equals_torch():
    ours = MultiHeadedAttention(4, 8, dropout=0.0)
    theirs = nn.MultiheadAttention(8, 4, batch_first=True)
    copy_attention(ours, theirs)
    query, memory, record = torch.randn(2, 3, 8), torch.randn(2, 5, 8), []
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    expected, weights = theirs(query, memory, memory, ~mask, average_attn_weights=False)
    torch.testing.assert_close(ours(query, memory, memory, mask.unsqueeze(1)), expected)
    ours(query, memory, memory, mask.unsqueeze(1), record)
    torch.testing.assert_close(record[0], weights)


# %% [markdown]
# > **Why `view` and then `transpose`: can one view straight to heads?** No. `view` only reads the same numbers in the
# > same order under another shape. The numbers of one position lie together, so the last axis can be cut into H
# > pieces of K. To bring the head axis before the time axis, numbers must change places, and that is what `transpose`
# > is for. Viewing straight to (B, H, T, K) runs without complaint and mixes positions:

# %%
@example
def a_view_straight_to_heads_mixes_positions():
    x = torch.tensor([[[0, 1, 2, 3], [10, 11, 12, 13]]])  # two positions, D = 4
    right = x.view(1, 2, 2, 2).transpose(1, 2)
    wrong = x.view(1, 2, 2, 2)
    return {"head 0, right": right[0, 0].tolist(), "head 0, wrong": wrong[0, 0].tolist()}


# %% [markdown]
# The first position holds 0 to 3, the second 10 to 13. The right head 0 holds the first half of both. The wrong one
# holds the whole first position and nothing of the second.
#
# > **Why several heads instead of one wide one?** The cost is the same: H heads of width D/H take as many
# > multiplications as one of width D. But one head has one set of weights for each query, and must average over all it
# > needs. Four heads can look at four places and keep the answers apart.
#
# <a id="three-uses"></a>
# ### Three uses of attention
#
# (§3.2.3) The model uses the same module in three ways.
#
# | Use | Queries from | Keys and values from | Mask |
# | --- | --- | --- | --- |
# | encoder self-attention | source | source | padding of the source |
# | decoder self-attention | target | target | padding and the future of the target |
# | cross-attention | target | memory | padding of the source |
#
# > **Which of q, k and v comes from the encoder, and why from its last layer only?** Keys and values do. The decoder
# > asks, the encoder answers. All decoder layers read the same memory: the last layer of the encoder has seen what
# > the earlier ones computed, since every layer adds to the same stream.
#
# <a id="causal-mask"></a>
# ### The mask over the future
#
# (§3.1) While training, the decoder receives the whole target at once. Position $t$ must not look at later
# positions, or it would read the word that it has to predict.

# %%
def subsequent_mask(size: int) -> Tensor:
    """Boolean (1, size, size): query t (row) may see key s (column) where s <= t."""
    return torch.ones(1, size, size, dtype=torch.bool).tril()


# %% tags=["hide-input"]
def heat_map(frame, x: str, y: str, value: str, description: str, scale: str, size=(220, 220)):
    """A heat map of a table: columns `x` and `y` name the axes, `value` the colour.

    `scale` is "N" for names, "Q" for quantities of one sign, "±" for quantities around zero.
    """
    import altair as alt

    schemes = {"N": alt.Scale(range=["#e3e8ef", "#2f6db5"]), "Q": alt.Scale(scheme="blues"),
               "±": alt.Scale(scheme="redblue", domainMid=0)}
    step = max(1, len(set(frame[x])) // 16)
    axis = alt.Axis(labelAngle=0, labelExpr=f"datum.value % {step} == 0 ? datum.label : ''", ticks=False)
    axis = axis if frame[x].dtype.kind == "i" else alt.Axis(ticks=False)
    return alt.Chart(frame, description=description, width=size[0], height=size[1]).mark_rect().encode(
        x=alt.X(f"{x}:O", sort=None, axis=axis),
        y=alt.Y(f"{y}:O", sort=None, axis=axis),
        color=alt.Color(f"{value}:{'N' if scale == 'N' else 'Q'}", scale=schemes[scale]),
        tooltip=list(frame.columns),
    )


# %%
@example
def causal_mask_figure():
    import pandas as pd

    mask = subsequent_mask(8)[0]
    frame = pd.DataFrame(
        {"query": t, "key": s, "may look": "yes" if mask[t, s] else "no"}
        for t, s in itertools.product(range(8), range(8))
    )
    text = "The causal mask for eight positions: each query may look at itself and at earlier keys."
    return heat_map(frame, "key", "query", "may look", text, "N")


# %% [markdown]
# **Figure 4.** The causal mask. Query 0 sees only itself. The open cells form a lower triangle: row by row, each
# position sees one more.
#
# <a id="feed-forward"></a>
# ## The feed-forward network
#
# (§3.3) Attention moves information between positions. The second half of each layer works on every position
# alone: widen, cut off what is negative, narrow again.
#
# $$\mathrm{FFN}(x) = \max(0,\, xW_1 + b_1)\,W_2 + b_2$$

# %%
class PositionwiseFeedForward(nn.Module):
    """Two linear maps with a ReLU between them (§3.3, Eq. 2): (B, T, D) -> (B, T, D)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        require(d_ff > 0, f"d_ff must be positive, got {d_ff}")
        self.widen, self.narrow = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = make_dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.dropout(self.widen(x).relu()))  # (B, T, F) in between


# %% [markdown]
# The paper remarks that this is the same as two convolutions of kernel size 1. It is:

# %%
@example
def check_feed_forward_equals_two_convolutions():
    ours, x = PositionwiseFeedForward(4, 7, dropout=0.0), torch.randn(2, 5, 4)
    channels_first = x.transpose(1, 2)  # (B, D, T), as convolutions want it
    hidden = F.conv1d(channels_first, ours.widen.weight.unsqueeze(-1), ours.widen.bias).relu()
    output = F.conv1d(hidden, ours.narrow.weight.unsqueeze(-1), ours.narrow.bias)
    torch.testing.assert_close(ours(x), output.transpose(1, 2))


# %% [markdown]
# <a id="embeddings"></a>
# ## Embeddings
#
# (§3.4) A word enters as an index and leaves as a row of a learnt matrix, multiplied by $\sqrt{D}$.

# %%
class Embeddings(nn.Module):
    """Learnt vectors, times √D (§3.4): ids (B, T) -> (B, T, D)."""

    def __init__(self, d_model: int, vocab: int):
        super().__init__()
        require(d_model > 0 and vocab > 0, f"sizes must be positive, got {d_model} and {vocab}")
        self.lut = nn.Embedding(vocab, d_model)
        self.d_model = d_model
        nn.init.normal_(self.lut.weight, std=d_model**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.lut(x) * math.sqrt(self.d_model)


# %%
@example
def check_embeddings_start_with_unit_variance():
    embed = Embeddings(256, 1000)
    assert abs(embed.lut.weight.std() * 16 - 1) < 0.01  # 16 = √256
    assert abs(embed(torch.arange(1000)).std() - 1) < 0.01


# %% [markdown]
# > **Why multiply by $\sqrt{D}$?** Because one matrix may serve two masters. As the last linear map it should start
# > small, with entries around $D^{-1/2}$, so that the first scores are of order one. As an embedding it will be added to
# > a positional encoding with entries between −1 and 1, and should not drown in it. The factor brings the entries
# > from $D^{-1/2}$ to about one. The paper gives no reason; this is the usual one.
#
# <a id="positional-encoding"></a>
# ## Positions
#
# (§3.5) Attention treats its input as a set: shuffle the words, and the answers are shuffled with them. Word order
# must be told to the model. The paper adds to each embedding a vector that depends on the position alone. Its
# entries are sines and cosines whose wavelengths grow from $2\pi$ to $10000 \cdot 2\pi$:
#
# $$PE_{(p, 2i)} = \sin\!\left(p / 10000^{2i/D}\right), \qquad PE_{(p, 2i+1)} = \cos\!\left(p / 10000^{2i/D}\right)$$

# %%
class PositionalEncoding(nn.Module):
    """Adds sinusoids of the position (§3.5), then dropout: (B, T, D) -> (B, T, D)."""

    def __init__(self, d_model: int, dropout: float, max_len: int = 5000):
        super().__init__()
        require(d_model > 0 and d_model % 2 == 0, f"d_model must be even and positive, got {d_model}")
        require(max_len > 0, f"max_len must be positive, got {max_len}")
        self.dropout = make_dropout(dropout)
        position = torch.arange(max_len).unsqueeze(1)  # (max_len, 1)
        frequency = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10_000.0) / d_model))  # (D/2,)
        waves = torch.stack([torch.sin(position * frequency), torch.cos(position * frequency)], -1)
        self.register_buffer("pe", waves.flatten(1).unsqueeze(0), persistent=False)  # (1, max_len, D)

    def forward(self, x: Tensor) -> Tensor:
        T, limit = x.size(1), self.pe.size(1)
        require(T <= limit, f"a sequence of {T} tokens does not fit {limit} positions")
        return self.dropout(x + self.pe[:, :T])


# %%
@example
def check_positional_encoding_is_the_formula():
    pe = PositionalEncoding(8, 0.0, max_len=50).pe[0]
    for p, i in itertools.product((0, 1, 7, 49), range(4)):
        angle = p / 10_000 ** (2 * i / 8)
        assert abs(pe[p, 2 * i] - math.sin(angle)) < 1e-5
        assert abs(pe[p, 2 * i + 1] - math.cos(angle)) < 1e-5


# %% [markdown]
# > **Why exp and log?** $10000^{-2i/D} = e^{-(2i/D)\ln 10000}$. Both are the same number; the second form is one
# > exponential of a straight line, and stays in floating point throughout. **Interleaved or concatenated?** The
# > formula interleaves sines and cosines, so we do. All sines first and then all cosines would be a fixed permutation of
# > the features, which the first linear map can learn to undo. **Why `register_buffer`?** The table is not learnt, but
# > it must move to the GPU with the model. It follows from a formula, so it is not saved
# > (`persistent=False`). **Why a leading dimension of one?** So that it adds to every sentence of a batch.

# %%
@example
def sinusoids_figure():
    import pandas as pd

    pe = PositionalEncoding(64, 0.0, max_len=60).pe[0]
    frame = pd.DataFrame(
        {"position": p, "feature": d, "value": round(pe[p, d].item(), 3)}
        for p, d in itertools.product(range(60), range(64))
    )
    text = "Positional encoding of 60 positions in 64 features: fast waves on the left, slow ones on the right."
    return heat_map(frame, "feature", "position", "value", text, "±", size=(384, 300))


# %% [markdown]
# **Figure 5.** Sinusoids for D = 64. Read a row: it is the signature of one position. Read a column: it is one
# wave. The columns at the left tell neighbours apart; those at the right hardly move within a sentence.
#
# (§3.5) The paper chose waves because a shift is then easy to express: for every distance $k$ there is one matrix
# that turns $PE_p$ into $PE_{p+k}$, whatever $p$ is. It rotates each pair of sine and cosine by the angle that
# belongs to $k$:

# %%
@example
def check_a_shift_is_a_linear_map():
    pe, k = PositionalEncoding(8, 0.0, max_len=60).pe[0], 5
    frequency = 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    cos, sin = torch.cos(k * frequency), torch.sin(k * frequency)
    rotations = [torch.tensor([[c, s], [-s, c]]) for c, s in zip(cos, sin, strict=True)]
    torch.testing.assert_close(pe[:55] @ torch.block_diag(*rotations).T, pe[5:], atol=1e-5, rtol=0)


# %% [markdown]
# <a id="layers"></a>
# ## Layers and stacks
#
# (§3.1) An encoder layer is self-attention and a feed-forward network, each inside a residual connection.

# %%
class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (§3.1): (B, S, D) -> (B, S, D)."""

    def __init__(self, size, self_attn, feed_forward, dropout, norm_first=True):
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout, norm_first), 2)
        self.size, self.norm_first = size, norm_first

    def forward(self, x: Tensor, mask: Tensor | None, record: list | None = None) -> Tensor:
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask, record))
        return self.sublayer[1](x, self.feed_forward)


# %% [markdown]
# A decoder layer has a third sub-layer between the two: cross-attention over the memory. When weights are
# recorded, it appends two entries, its self-attention first.

# %%
class DecoderLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward (§3.1): (B, T, D) -> (B, T, D)."""

    def __init__(self, size, self_attn, src_attn, feed_forward, dropout, norm_first=True):
        super().__init__()
        self.self_attn, self.src_attn, self.feed_forward = self_attn, src_attn, feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout, norm_first), 3)
        self.size, self.norm_first = size, norm_first

    def forward(self, x, memory, src_mask, tgt_mask, record: list | None = None) -> Tensor:
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask, record))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask, record))
        return self.sublayer[2](x, self.feed_forward)


# %% [markdown]
# The stacks repeat their layer $N$ times. Only with the norm before the sub-layer do they end with a norm of their
# own; after the paper's order there is nothing left to normalise.

# %%
class Encoder(nn.Module):
    """N encoder layers, then a norm where the layers normalise first: (B, S, D) -> (B, S, D)."""

    def __init__(self, layer: EncoderLayer, N: int):
        super().__init__()
        self.layers = clones(layer, N)
        self.norm = LayerNorm(layer.size) if layer.norm_first else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None, record: list | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask, record)
        return self.norm(x)


class Decoder(nn.Module):
    """N decoder layers, then a norm where the layers normalise first: (B, T, D) -> (B, T, D)."""

    def __init__(self, layer: DecoderLayer, N: int):
        super().__init__()
        self.layers = clones(layer, N)
        self.norm = LayerNorm(layer.size) if layer.norm_first else nn.Identity()

    def forward(self, x, memory, src_mask, tgt_mask, record: list | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, memory, src_mask, tgt_mask, record)
        return self.norm(x)


# %% [markdown]
# Are they right? PyTorch has both layers too. We copy our weights into its layers and compare, in both orders of
# the norm, with padding in the source and the future hidden in the target.

# %%
def copy_layer(ours: EncoderLayer | DecoderLayer, theirs: nn.Module) -> None:
    """Give PyTorch's encoder or decoder layer our weights."""
    copy_attention(ours.self_attn, theirs.self_attn)
    if isinstance(ours, DecoderLayer):
        copy_attention(ours.src_attn, theirs.multihead_attn)
    theirs.linear1.load_state_dict(ours.feed_forward.widen.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.narrow.state_dict())
    with torch.no_grad():
        for number, connection in enumerate(ours.sublayer, 1):
            norm = getattr(theirs, f"norm{number}")
            norm.weight.copy_(connection.norm.scale.normal_())
            norm.bias.copy_(connection.norm.shift.normal_())


# %%
@example
def check_encoder_layer_equals_torch():
    x, mask = torch.randn(2, 5, 8), torch.ones(2, 1, 5, dtype=torch.bool)
    mask[1, 0, 3:] = False
    for norm_first in (True, False):
        parts = MultiHeadedAttention(2, 8, 0.0), PositionwiseFeedForward(8, 16, 0.0)
        ours = EncoderLayer(8, *parts, 0.0, norm_first)
        theirs = nn.TransformerEncoderLayer(
            8, 2, 16, 0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=norm_first
        )
        copy_layer(ours, theirs)
        expected = theirs(x, src_key_padding_mask=~mask.squeeze(1))
        torch.testing.assert_close(ours(x, mask), expected)


# %%
@example
def check_decoder_layer_equals_torch():
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    src_mask, tgt_mask = torch.ones(2, 1, 5, dtype=torch.bool), subsequent_mask(3)
    src_mask[1, 0, 3:] = False
    for norm_first in (True, False):
        parts = (MultiHeadedAttention(2, 8, 0.0), MultiHeadedAttention(2, 8, 0.0))
        ours = DecoderLayer(8, *parts, PositionwiseFeedForward(8, 16, 0.0), 0.0, norm_first)
        theirs = nn.TransformerDecoderLayer(
            8, 2, 16, 0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=norm_first
        )
        copy_layer(ours, theirs)
        masks = {"tgt_mask": ~tgt_mask[0], "memory_key_padding_mask": ~src_mask.squeeze(1)}
        torch.testing.assert_close(ours(x, memory, src_mask, tgt_mask), theirs(x, memory, **masks))


# %% [markdown]
# <a id="make-model"></a>
# ## The whole model
#
# (§3, §3.4) `make_model` puts the pieces together. Matrices start by the rule of Glorot and Bengio, which keeps the
# variance of a signal about the same through a linear map. Embeddings keep the start they gave themselves.

# %%
def make_model(
    src_vocab: int, tgt_vocab: int, N: int = 6, d_model: int = 512, d_ff: int = 2048, h: int = 8,
    dropout: float = 0.1, *, attention_dropout: float | None = None, norm_first: bool = True,
    share_embeddings: bool = False, max_len: int = 5000,
) -> EncoderDecoder:
    """A Transformer with fresh weights; the defaults are the base model of Table 3.

    `attention_dropout`, for the attention weights, follows `dropout` unless given.
    `share_embeddings` uses one matrix for both embeddings and the output (§3.4) and needs
    vocabularies of one size. ValueError names any size that cannot work.
    """
    on_weights = dropout if attention_dropout is None else attention_dropout
    attn = MultiHeadedAttention(h, d_model, on_weights)
    ff = PositionwiseFeedForward(d_model, d_ff, dropout)
    source, target = Embeddings(d_model, src_vocab), Embeddings(d_model, tgt_vocab)
    positions = PositionalEncoding(d_model, dropout, max_len)
    model = EncoderDecoder(
        Encoder(EncoderLayer(d_model, attn, ff, dropout, norm_first), N),
        Decoder(DecoderLayer(d_model, attn, copy.deepcopy(attn), ff, dropout, norm_first), N),
        nn.Sequential(source, positions), nn.Sequential(target, copy.deepcopy(positions)),
        Generator(d_model, tgt_vocab),
    )
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    if share_embeddings:
        share_weights(model)
    return model


# %%
def share_weights(model: EncoderDecoder) -> None:
    """Use the target embedding as source embedding and as output matrix too (§3.4)."""
    source, target = model.src_embed[0].lut, model.tgt_embed[0].lut
    sizes = source.num_embeddings, target.num_embeddings
    require(sizes[0] == sizes[1], f"one matrix needs one vocabulary, got {sizes[0]} and {sizes[1]}")
    source.weight = model.generator.proj.weight = target.weight


@example
def check_shared_embeddings_are_one_parameter():
    model = make_model(11, 11, N=1, d_model=8, d_ff=16, h=2, share_embeddings=True)
    shared = model.tgt_embed[0].lut.weight
    assert model.src_embed[0].lut.weight is shared and model.generator.proj.weight is shared
    assert abs(shared.std() * 8**0.5 - 1) < 0.3


# %% [markdown]
# > **What does sharing weights mean when the vocabularies differ?** Nothing: a row must stand for the same symbol in
# > all three places. The paper splits both languages into pieces of words and keeps one list of pieces for both, so one
# > matrix fits. With one list of words for each language, as in [Part 5](#real-data), source and target
# > cannot share, and `share_embeddings=True` ends with an error unless both lists have one length.
#
# <a id="dropout"></a>
# ### Where the model drops
#
# | Place | In the paper? |
# | --- | --- |
# | output of each sub-layer, before the sum | yes (§5.4) |
# | sum of embedding and position | yes (§5.4) |
# | attention weights | no, in the authors' code |
# | inside the feed-forward network, after the ReLU | no, in the authors' code |
#
# One argument reaches all four, and 0 switches all of them off. Attention weights can have a rate of their own
# (`attention_dropout`): at rate 0 the fused kernel stays usable while training on a CPU.

# %%
@example
def check_dropout_reaches_every_dropout():
    for rate in (0.0, 0.3):
        model = make_model(11, 13, N=2, d_model=8, d_ff=16, h=2, dropout=rate)
        rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
        # 2 encoder layers with 2 sub-layers + attention + feed-forward, 2 decoder layers with 3 + 2 + 1, 2 positions
        assert rates == [rate] * (2 * 4 + 2 * 6 + 2)


# %%
@example
def check_bad_sizes_are_refused():
    bad = [({"d_model": 9, "h": 3}, "even"), ({"d_model": 8, "h": 3}, "divisible"), ({"N": -1}, "-1"),
           ({"dropout": 1.0}, "1.0"), ({"d_ff": 0}, "0"), ({"max_len": 0}, "0")]
    for change, word in bad:
        with contextlib.suppress(ValueError):
            make_model(11, 13, **{"N": 1, "d_model": 8, "d_ff": 16, "h": 2} | change)
            raise AssertionError(f"{change} was accepted ({word} expected in the error)")


# %% [markdown]
# <a id="behaviour"></a>
# ### Does it behave?
#
# Some properties follow from the design alone, whatever the weights are. A mistake in a mask or an axis breaks at
# least one of them. First: what is written now must not depend on what comes later.

# %%
def tiny_model(**changes) -> EncoderDecoder:
    """A small model with random weights in eval mode: 11 source symbols, 13 target symbols."""
    sizes = {"N": 2, "d_model": 16, "d_ff": 32, "h": 4} | changes
    return make_model(11, 13, **sizes).eval()


@example
def check_a_future_token_changes_no_earlier_output():
    model, src, tgt = tiny_model(), torch.randint(11, (2, 5)), torch.randint(13, (2, 6))
    changed = tgt.clone()
    changed[:, 4] = (tgt[:, 4] + 1) % 13
    everything = torch.ones(2, 1, 5, dtype=torch.bool)
    before, after = (model(src, t, everything, subsequent_mask(6)) for t in (tgt, changed))
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert (before[:, 4:] - after[:, 4:]).abs().amax(-1).gt(1e-4).all()


# %% [markdown]
# Second: a short sentence must come out the same, alone or padded to the length of a neighbour.

# %%
@example
def check_padding_changes_no_real_output():
    model, src, tgt = tiny_model(), torch.randint(11, (1, 5)), torch.randint(13, (1, 3))
    alone = model(src, tgt, torch.ones(1, 1, 5, dtype=torch.bool), subsequent_mask(3))
    padded_src, padded_tgt = F.pad(src, (0, 4), value=7), F.pad(tgt, (0, 2), value=7)
    src_mask = (torch.arange(9) < 5).view(1, 1, 9)
    tgt_mask = (torch.arange(5) < 3).view(1, 1, 5) & subsequent_mask(5)
    padded = model(padded_src, padded_tgt, src_mask, tgt_mask)
    torch.testing.assert_close(padded[:, :3], alone)


# %% [markdown]
# Third: without positions the encoder cannot know about order. Permuted words give permuted outputs, nothing else.

# %%
@example
def check_without_positions_the_encoder_is_permutation_equivariant():
    model, src = tiny_model(), torch.randint(11, (2, 5))
    order, mask = torch.tensor([3, 0, 4, 1, 2]), torch.ones(2, 1, 5, dtype=torch.bool)
    words_only = model.src_embed[0]
    permuted = model.encoder(words_only(src[:, order]), mask)
    torch.testing.assert_close(permuted, model.encoder(words_only(src), mask)[:, order])
    assert not torch.allclose(model.encode(src[:, order], mask), model.encode(src, mask)[:, order])


# %% [markdown]
# The last line of the check adds the positions back, and the property is gone: order matters again.
#
# <a id="parameter-count"></a>
# ### How many parameters?
#
# (§6.2, Table 3) The paper gives 65 million for the base model and 213 million for the big one, with about 37,000 symbols
# shared by both languages. We build both on PyTorch's `meta` device, which keeps shapes but no numbers.

# %%
def count_parameters(model: nn.Module) -> int:
    """Number of trainable values; a shared matrix counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


@example
def parameters_beside_table_3():
    import pandas as pd

    sizes = {"base": {}, "big": {"d_model": 1024, "d_ff": 4096, "h": 16}}
    with torch.device("meta"):
        models = {name: make_model(37_000, 37_000, share_embeddings=True, **s) for name, s in sizes.items()}
    ours = [f"{count_parameters(model) / 1e6:.1f} M" for model in models.values()]
    return pd.DataFrame({"paper": ["65 M", "213 M"], "ours": ours}, index=list(models))


# %% [markdown]
# Ours are a little below and a little above. The paper says "about" 37,000 symbols and does not say which biases it has, so an exact match is
# not to be expected. The matrices inside the layers are fixed by the paper, and they are the same.
#
# <a id="untrained"></a>
# ### A first forward pass
#
# The untrained model already runs. It reads ten symbols and, step by step, writes the one it finds most likely. The
# result means nothing yet.

# %%
@example
def an_untrained_model_speaks():
    model = tiny_model()
    src, written = torch.arange(1, 11).unsqueeze(0), torch.zeros(1, 1, dtype=torch.long)
    src_mask = torch.ones(1, 1, 10, dtype=torch.bool)
    with torch.no_grad():
        memory = model.encode(src, src_mask)
        for _ in range(9):
            states = model.decode(memory, src_mask, written, subsequent_mask(written.size(1)))
            following = model.generator(states[:, -1]).argmax(-1, keepdim=True)  # (1, 1)
            written = torch.cat([written, following], dim=1)
    return written[0].tolist()


