# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# <a id="top"></a>
# # The Annotated Transformer
#
# In 2017 eight researchers proposed to translate with attention alone: no recurrence, no
# convolution. Their paper, [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762), takes
# fifteen pages. This text takes it section by section and turns it into a program. Each idea is
# followed by the few lines that implement it. Where a claim is easy to test, a check follows that
# would fail if the claim were wrong.
#
# You can read it as an article, run it cell by cell, import it as a module, or train with it from
# the command line. All four are the same file.
#
# <a id="start"></a>
# # Start here
#
# **What you will build.** A complete Transformer in PyTorch; the loss, optimizer and schedule
# that train it; a model that copies sequences, trained while you read; a German–English
# translator that trains on one processor, on one GPU, or on several (so far it has been run on
# CPUs only); and the rest of the paper's recipe, from pieces of words to beam search, with what
# each step is worth. At the end you will see where the model's attention goes.
#
# **What you need.** Python, a little PyTorch, some linear algebra, derivatives, and what a
# probability is. No GPU is needed.
#
# | Part | What happens there | Two CPU cores |
# | --- | --- | --- |
# | [1. Model](#model) | every layer, with its check | seconds |
# | [2. Why self-attention](#why-self-attention) | how far a signal travels, what length costs | seconds |
# | [3. Training](#training) | batches, loss, optimizer, schedule, loop | seconds |
# | [4. A first example](#copy-task) | a model learns to copy, and breaks | about two minutes |
# | [5. Real data](#real-data) | German to English | three minutes for a demonstration |
# | [6. The rest of the recipe](#recipe) | pieces of words, one matrix, beam search, averaging | a minute; less than an hour to train the real model |
# | [7. Results](#results) | scores, step by step | a minute |
# | [8. Looking inside](#looking-inside) | attention, layer by layer and head by head | a minute or two |
#
# These are what to expect at most. All together the page takes about five minutes.
#
# **With two hours.** The [notation](#notation); [one sentence through the
# model](#encoder-decoder), in words; [attention](#attention) as far as the [causal
# mask](#causal-mask), with its checks; [layers and stacks](#layers); [the
# loss](#label-smoothing), without its fast form; [a training in a dozen lines](#loop); [the copy
# task](#copy-task), run by yourself, and [broken](#break-it); [pieces](#byte-pairs) and [beam
# search](#beam-search); [the results](#step-by-step); and [the explorer](#explorer) for as long
# as you like. Everything else can wait until you need it. Most terms are explained in the
# [glossary](#glossary).
#
# **How to read it.** Prose comes first, then a short cell, then a check or a figure, then a
# sentence that says what came out. Text set apart like this
#
# > **Is this the paper's opinion?** No: remarks and answers to questions that readers ask are
# > ours, and stand in such blocks.
#
# is commentary. Prose that restates the paper names its section, as in (§3.1). What names none is
# ours: data, engineering, measurements. A *check* compares our code with an *oracle*, something
# that gives the right answer and was not written by us, such as PyTorch's own module or a closed
# formula; or it tries a property that must hold, whatever the weights are. Lengths in a check
# differ: if two axes change places, the check fails.
#
# <a id="setup"></a>
# ## Set-up
#
# In Colab a few packages are missing, and the next cell installs them. It never touches PyTorch,
# and does nothing where every package is present.

# %% tags=["hide-input"]
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

IN_NOTEBOOK = "get_ipython" in globals()  # `__name__ == "__main__"` is true in a cell too
SCRIPT = Path("the_annotated_transformer.py")
if IN_NOTEBOOK and not SCRIPT.is_file() and Path("..", SCRIPT).is_file():
    os.chdir("..")  # the notebook was opened in build/: work where the script lies
NEEDED = {
    "torchtext": "torchtext==0.6.0",
    "spacy": "spacy==3.8.18",
    "sacrebleu": "sacrebleu==2.6.0",
    "altair": "altair==6.3.0",
    "vl_convert": "vl-convert-python==1.9.0.post1",
    "GPUtil": "GPUtil==1.4.0",
    "setuptools": "setuptools==84.2.1",
    "tqdm": "tqdm==4.70.1",
    "pandas": "pandas==3.1.1",
    "PIL": "pillow==13.0.0",
    "tokenizers": "tokenizers==0.23.3",
    "safetensors": "safetensors==0.8.0",
}


def missing_packages(needed: dict[str, str]) -> list[str]:
    """Requirements whose module cannot be found here."""
    return [pin for module, pin in needed.items() if importlib.util.find_spec(module) is None]


if IN_NOTEBOOK and (missing := missing_packages(NEEDED)):
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", *missing])

# %% [markdown]
# Only the standard library and PyTorch are imported at the top. What a single section needs
# (pandas, Altair, spaCy) is imported where it is used, so that `import the_annotated_transformer`
# stays quick and quiet.

# %% tags=["hide-input"]
import argparse
import collections
import contextlib
import copy
import dataclasses
import datetime
import functools
import gc
import gzip
import hashlib
import html
import http.client
import io
import itertools
import json
import math
import pickle
import platform
import random
import re
import shutil
import signal
import time
import urllib.request
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

# %% [markdown]
# ### Examples and checks
#
# Many cells below show something or prove something. All of them are functions under one
# decorator. In a notebook it runs the function and displays the result; elsewhere it files the
# function away, and the test suite runs it. A check that raises nothing has passed, and says so.

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
        if result is None:
            print(f"✓ {title}")
        else:
            display(result)
    return run


# %% [markdown]
# How much is run is decided by one environment variable, `ANNOTATED_RUN`, which has three values.
# At `laptop`, the default, demonstrations are bounded and finished models are used where there
# are any. At `full` the translator is trained as well, which takes most of an hour. (The other
# rows of the results are trained by `make results`.) At `smoke` the tests run it all on toy data
# within minutes. Any other value is an error. Here, as everywhere below, `require` raises it.

# %%
LEVELS = ("smoke", "laptop", "full")


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless the condition holds: how arguments are checked here."""
    if not condition:
        raise ValueError(message)


def run_level() -> str:
    """The level named by ANNOTATED_RUN; ValueError where it names none."""
    level, all_levels = os.environ.get("ANNOTATED_RUN", "laptop"), ", ".join(LEVELS)
    require(level in LEVELS, f"ANNOTATED_RUN must be one of {all_levels}, got {level!r}")
    return level


@example
def level_of_this_run():
    return run_level()


# %% [markdown]
# Figures are made with Altair. The renderer below puts both an interactive chart and a small
# picture into the notebook. So a figure can be seen even where scripts are not allowed, and
# nothing is loaded from the network.


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
# <a id="results-so-far"></a>
# ### Results so far
#
# This is what you will reach by Part 7, from German to English. [BLEU](#bleu) says from 0 to 100
# how close a translation is to a human's. It is measured on two sets of sentences that were never
# used in training. Each row adds one step, and [Part 6](#recipe) explains the steps. The first
# and the last row are means of three trainings with other random numbers (*seeds*), the rows
# between are one training. So do not subtract the last row from the one above it; [Part
# 7](#step-by-step) says what each step is worth. Published scores come from files that `make
# results` and related commands write, each with its date, machine, seeds and settings. They lie
# in `docs/results/`, beside the script. A notebook that travels alone does not have them.

# %%
NO_RESULTS = "not measured, or not beside this notebook: `make help` names what writes docs/results"


def from_results(*names: str) -> Callable:
    """Give a function the contents of docs/results/<name>.json; NO_RESULTS where one is missing."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def read_and_run():
            paths = [Path("docs/results", f"{name}.json") for name in names]
            if not all(path.is_file() for path in paths):
                return NO_RESULTS
            return function(*(json.loads(path.read_text(encoding="utf-8")) for path in paths))

        return read_and_run

    return decorate


# %%
def table(rows: list, columns: list[str]):
    """A table without row numbers; its text unshortened, and never read as HTML."""
    import pandas as pd

    shown = pd.DataFrame(rows, columns=columns).style.hide(axis="index")
    return shown.format(escape="html", precision=2)


@example
@from_results("recipe")
def results_so_far(kept: dict):
    rows, names = [], list(kept["rows"][0]["splits"])
    for row in kept["rows"]:
        scores = [f"{row['splits'][name]['bleu']['mean']:.1f}" for name in names]
        millions, minutes = f"{row['parameters'] / 1e6:.1f} M", f"{row['minutes']['mean']:.1f}"
        rows.append((row["step"], *scores, millions, minutes, len(row["seeds"])))
    splits = [f"BLEU {' '.join(name.split('_')[:2])}" for name in names]
    return table(rows, ["step", *splits, "parameters", "minutes of training", "seeds"])


# %% [markdown]
# <a id="background"></a>
# # Background
#
# <a id="problem"></a>
# ## The problem
#
# (§1, §2) A translator reads a sequence of words and writes another. Before 2017 the best systems
# read with a recurrent network: one word after the other, each step waiting for the step before.
# Such a chain cannot be computed in parallel, and a word that was read forty steps ago has passed
# through forty updates before it can matter. Convolutions removed the chain, but two distant
# words still met only after many layers.
#
# Attention lets any two positions meet in one step. It had been used as an addition to recurrent
# networks. The paper drops the recurrence and keeps attention. In the encoder each position can
# look at the whole source. In the decoder each can look at the whole source, and at the target up
# to its own position. In training all positions of a layer are computed at the same time.
#
# What the model learns is a probability: that of a target sentence $y_1 \dots y_T$, given a
# source $x$. By the chain rule of probability it is a product of factors, and each answers a
# small question: which word comes next, given those before?
#
# $$p(y \mid x) = \prod_{t=1}^{T} p(y_t \mid y_1, \dots, y_{t-1}, x)$$
# <!-- code: score_of -->
#
# Training can ask all these questions of a sentence at once, since the true words are known.
# Translating must ask them one after the other. So training has to hide from each question the
# words that come later. This is done by a *mask*, a table that says which positions may be seen.
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
# As arguments of $\mathrm{Attention}(Q, K, V)$ and $\mathrm{MultiHead}(Q, K, V)$, and in their
# definitions, $Q$, $K$ and $V$ are the paper's matrices of queries, keys and values. Everywhere
# else $K$ and $V$ are the sizes above, and the paper's $d_k$ is our $K$. `F` is a size in
# comments and formulas; in code it is PyTorch's module of functions. A layer that serves source
# and target alike is written with `T`. The letter $\epsilon$ has three uses, as in the
# literature: in layer normalisation, in Adam, and in label smoothing.
#
# **Masks** are boolean everywhere, and `True` means *may be attended to*.
#
# <a id="model"></a>
# # Part 1. Model
#
# <a id="encoder-decoder"></a>
# ## An encoder and a decoder
#
# (§3) The encoder reads the whole source and leaves one vector for each of its positions: the
# *memory*. The decoder writes the target one symbol at a time. At each step it sees the memory
# and what it has written so far, and nothing else.
#
# ![Encoder and decoder stacks. Encoder: source ids, embedding and positions, N layers of self-attention and feed-forward, each with a norm before and a sum after, then a final norm that gives the memory. Decoder: target ids, N layers of masked self-attention, cross-attention to the memory and feed-forward, a final norm, and the generator.](images/architecture.svg)
#
# **Figure 1.** The whole model, in the form that this text uses by default. Follow a sentence
# from the top: left through the encoder, then across to the decoder. The shape of every tensor
# stands on its arrow; inside both stacks it never changes.
#
# One sentence through the model, in words. Text is cut into *tokens* (words and punctuation
# marks; we also call them *symbols*), and each token becomes a number, its *id*. An *embedding*
# turns each id into a vector of width $D$, and a code for its position is added. From then on the
# sentence is a table: a row for each *position*, a vector in each row. The encoder's layers
# change the table in two ways, in turn: *attention* lets rows take something over from other
# rows, and a *feed-forward* network works on each row alone. *Norms* keep the numbers in a good
# range. The decoder does the same for what has been written so far, and its *cross-attention*
# also takes over from the encoder's table. At the end each row of the decoder becomes a
# probability for every word of the vocabulary: which one comes next? All of this is explained
# below, piece by piece.
#
# We build it from the outside in: first the frame, then what fills it. You may want to come back
# to the frame once you have seen the pieces.


# %%
class EncoderDecoder(nn.Module):
    """Encoder, decoder and what surrounds them (§3, Figure 1 of the paper).

    Maps source ids (B, S) and target ids (B, T) to decoder states (B, T, D). `generator` turns
    states into log-probabilities. Masks: source (B, 1, S), target (B, T, T) or (1, T, T).
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        src_embed: nn.Module,
        tgt_embed: nn.Module,
        generator: nn.Module,
    ):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.src_embed, self.tgt_embed = src_embed, tgt_embed
        self.generator = generator

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        return self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask)

    def encode(self, src: Tensor, src_mask: Tensor, record: list | None = None) -> Tensor:
        """Source ids (B, S) -> memory (B, S, D)."""
        return self.encoder(self.src_embed(src), src_mask, record)

    def decode(
        self,
        memory: Tensor,
        src_mask: Tensor,
        tgt: Tensor,
        tgt_mask: Tensor,
        record: list | None = None,
    ) -> Tensor:
        """Memory (B, S, D) and target ids (B, T) -> states (B, T, D)."""
        return self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask, record)


# %% [markdown]
# The argument `record` is how attention weights leave the model. Whoever wants to see them passes
# an empty list, and each attention appends its own. Usually nobody does, and then the weights are
# never stored at all.
#
# > **Why keep attention weights at all?** To look at them, in [Part 8](#looking-inside). Training
# > has no use for them. A model that stored them on itself at each call would keep those of the
# > last batch for nothing, and would show a stale picture to whoever asks later.
#
# <a id="generator"></a>
# ### From states to words
#
# (§3.4) The last step maps a state of width $D$ to one score (a *logit*) for each word of the
# vocabulary, and a *softmax* makes probabilities of the scores: $\mathrm{softmax}(s)_i = e^{s_i} /
# \sum_j e^{s_j}$. All of them are positive, they sum to one, and the largest score gets the most. We keep logarithms: products of
# many probabilities underflow, sums of their logarithms do not. They are computed in fp32,
# PyTorch's usual format of 32 bits.


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
# > **Why is the generator outside `forward`?** Because it is the widest layer by far, and the two
# > users of the model want different things of it. Training needs it at every position. Decoding
# > needs it at the last one only: there, running it inside `forward` would score every earlier
# > position again, for nothing.
#
# <a id="clones"></a>
# ### Copies that differ
#
# A stack holds $N$ layers of the same shape. `copy.deepcopy` gives the shape, but also the same
# initial numbers in every copy. So each copy draws its own.


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
# > **Do cloned layers share their initial weights?** In many implementations they do, biases
# > above all, because only matrices are drawn again afterwards. Training would pull such twins
# > apart in time. There is no reason to begin with them.
#
# <a id="layer-norm"></a>
# ## Layer normalisation
#
# (§3.1) Before we stack layers, we need what keeps a deep stack stable. Layer normalisation ([Ba
# et al., 2016](https://arxiv.org/abs/1607.06450)) takes the vector of one position, shifts it to
# mean zero and scales it to variance one. No other position and no other sentence has a part in
# it, so a word is treated the same in any batch.
#
# $$\mathrm{LayerNorm}(x) = \gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta, \qquad
# \mu = \frac{1}{D}\sum_{i} x_i, \quad \sigma^2 = \frac{1}{D}\sum_{i} (x_i - \mu)^2$$


# %%
def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """The formula, step by step: (..., D) -> (..., D)."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)  # (..., 1), divided by D, not D - 1
    return scale * centred / (variance + eps).sqrt() + shift


# %% [markdown]
# Here $\odot$ multiplies entry by entry, and the small number $\epsilon$ keeps the root away from
# zero. The module learns $\gamma$ and $\beta$, under the plain names `scale` and `shift`. It
# calls PyTorch's *fused kernel*, a single routine that does what the function above does in one
# pass over memory. With the function in its place training takes 1.1 times as long
# ([measured](#gains)). This pair, a form to read and a form to run, returns
# with attention.


# %%
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
# The first check compares the form to read with PyTorch's module, which we did not write. The
# second compares the form to run with the form to read. Together they test both.


# %%
@example
def check_layer_norm_equals_torch():
    x, theirs = 3 + 2 * torch.randn(2, 5, 8), nn.LayerNorm(8, eps=1e-6)
    nn.init.normal_(theirs.weight)
    nn.init.normal_(theirs.bias)
    torch.testing.assert_close(layer_norm(x, theirs.weight, theirs.bias, 1e-6), theirs(x))


# %%
@example
def check_layer_norm_module_equals_the_formula():
    x, ours = 3 + 2 * torch.randn(2, 5, 8), LayerNorm(8)
    nn.init.normal_(ours.scale)
    nn.init.normal_(ours.shift)
    torch.testing.assert_close(ours(x), layer_norm(x, ours.scale, ours.shift, 1e-6))


# %% [markdown]
# > **Why learn a scale and a shift?** Without them every output would have mean zero and length
# > $\sqrt{D}$, whatever the next layer needs. With them a feature can be made loud, quiet or
# > constant. They start at one and zero, so at first they change nothing.
#
# <a id="residual"></a>
# ## Residual connections
#
# (§3.1) Attention and the feed-forward network are the *sub-layers* of a layer. Each of them adds
# its output to its input: $x + \mathrm{Sublayer}(x)$. So a *stream* runs through the whole stack,
# and each sub-layer adds to it. Along the stream signals have a short way up, and gradients a
# short way down. The paper normalises after the addition,
#
# $$\mathrm{LayerNorm}\bigl(x + \mathrm{Sublayer}(x)\bigr),$$
# <!-- code: none -->
#
# while a later configuration of the code that its authors published, and most models since,
# normalise before the sub-layer:
#
# $$x + \mathrm{Sublayer}\bigl(\mathrm{LayerNorm}(x)\bigr).$$
# <!-- code: SublayerConnection -->


# %% [markdown]
# While the model trains, *dropout* sets numbers to zero at random, so that no part of the model
# can rely on a single other one. What is left is scaled up, so that sums keep their size on
# average. When the trained model is used, in eval mode, dropout does nothing.
#
# The class below does what `nn.Dropout` does, only faster on a CPU; skip it at first. PyTorch
# draws a random number for each value, and that becomes a large part of a training step. One byte
# is enough to decide, and one random number of 64 bits has eight bytes. The rate becomes the
# nearest 256th: 0.1 becomes 0.102. With `nn.Dropout` training takes 1.4 times as long
# ([measured](#gains)).


# %%
class Dropout(nn.Dropout):
    """nn.Dropout; on a CPU from random bytes, which is faster and rounds the rate to n/256."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or x.device.type != "cpu":
            return super().forward(x)
        closed = min(255, round(256 * self.p))  # of 256 values of a byte
        words = torch.empty(-(-x.numel() // 8), dtype=torch.long).random_(-(2**63), None)
        numbers = words.view(torch.uint8)[: x.numel()].view(x.shape)
        keep = torch.ge(numbers, closed, out=torch.empty_like(x, requires_grad=False))  # 1 or 0
        return x * keep.mul_(256 / (256 - closed))


def make_dropout(rate: float) -> nn.Dropout:
    """Dropout, or ValueError where the rate is not in [0, 1)."""
    require(0 <= rate < 1, f"dropout must be in [0, 1), got {rate}")
    return Dropout(rate)


# %%
@example
def check_dropout_keeps_the_share_and_the_mean():
    drop, x = make_dropout(0.25), torch.ones(400, 501)
    dropped = drop(x)
    assert abs((dropped == 0).float().mean() - 0.25) < 0.005
    assert abs(dropped.mean() - 1) < 0.005
    assert torch.equal(drop.eval()(x), x)


# %% [markdown]
# Norm, sub-layer, dropout and sum, in either order:


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
# > **Why is the norm before the sub-layer when the paper puts it after?** With the norm after the
# > sum, the path from the loss to the first layer crosses every norm on the way, and gradients
# > near the output are large at the start. Such a stack needs a careful [warm-up](#schedule) of
# > the learning rate, and deep ones may fail to train. With the norm before the sub-layer, off
# > the stream, the residual path is a plain sum from bottom to top ([Xiong et al.,
# > 2020](https://arxiv.org/abs/2002.04745)). We take the safe order as default;
# > `norm_first=False` gives the paper's.
# >
# > **And the extra norm at the top of a stack?** It belongs to the order with the norm first. A
# > plain sum of many outputs grows with depth, and nobody has normalised it; so one norm closes
# > the stack. After the paper's order the output is normalised already.
#
# Dropout acts on the output of each sub-layer, before the addition (§5.4). [Below](#dropout) is a
# list of all the places where the model drops.
#
# <a id="attention"></a>
# ## Attention
#
# (§3.2) Attention is a lookup that can be differentiated. Each position asks a *query*. Each
# position that may be looked at offers a *key* and a *value*. The better a key fits the query,
# the more of its value goes into the answer, which is a weighted mean of all values. All three
# are made from the vectors of the positions by learnt linear maps, which follow
# [below](#multi-head-attention).
#
# <a id="scaled-dot-product-attention"></a>
# ### Scaled dot-product attention
#
# (§3.2.1) "Fits" means a large inner product. The matrices $Q$, $K$ and $V$ hold a query, a key
# or a value in each row, so $QK^\top$ holds the inner product of every query with every key. A
# softmax turns each row of it into weights that sum to one:
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right)V$$
#
# ![Scaled dot-product attention: queries times keys, divided by the root of K, give scores; the mask closes some; a softmax over each row gives weights, which average the values.](images/attention.svg)
#
# **Figure 2.** One head at work. The scores form a table with a row for each query and a column
# for each key; the mask closes cells of this table, and the softmax runs along its rows.


# %%
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: nn.Module | None = None,
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
# One query and two keys of width 4 can be done by hand. The products are 4 and 0. Divided by
# $\sqrt 4$ they are 2 and 0. The softmax gives $e^2 / (e^2 + 1) = 0.88$ and $0.12$, and so much of
# each value goes into the answer.


# %%
@example
def attention_by_hand():
    query = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    keys = torch.tensor([[2.0, 0.0, 2.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    values = torch.tensor([[10.0, 0.0], [0.0, 10.0]])
    output, weights = attention(query, keys, values)
    return {"weights": weights.round(decimals=2), "output": output.round(decimals=2)}


# %% [markdown]
# > **Why a large negative number, and not $-\infty$?** The paper sets closed scores to $-\infty$
# > (§3.2.3). For any row with at least one open cell both give the same weights: the exponential
# > of the lowest number is zero in every number format. A row with no open cell tells them apart.
# > With $-\infty$ the softmax divides zero by zero. The result is NaN, *not a number*, and it
# > spreads through the batch. With a constant such as $-10^9$ the row gets equal weights on
# > everything it must not see, and in fp16, a format of 16 bits that ends at 65,504, the constant
# > itself overflows. We take the lowest number of the format at hand and then set closed cells to
# > exactly zero. The empty row gives zero, forward and backward. The fused kernel below does the
# > same on a CPU, as a check shows. On other devices, Apple's MPS for one, kernels differ in just
# > this case, and the form to read does not depend on them.
#
# PyTorch's kernel is the oracle: the same queries, keys and values under a random mask, one row
# of which is closed.


# %%
def random_attention_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (2, 4, 3, 8), keys and values (2, 4, 5, 8), a mask (2, 1, 3, 5) with an empty row."""
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    mask = torch.rand(2, 1, 3, 5) < 0.6
    mask[..., :2] = True  # with one key only, no query would make a difference
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
# (§3.2.1, footnote 4) Let the entries of $q$ and $k$ be independent with mean zero and variance
# one. Each product $q_i k_i$ then has variance one, and the sum of $K$ of them has variance $K$.
# Scores of a wide head would lie far apart, the softmax would put nearly all weight on one key,
# and its gradient would vanish. Dividing by $\sqrt{K}$ brings the variance back to one.


# %%
@example
def check_the_variance_of_a_dot_product_is_its_width():
    for width in (4, 64):
        query, key = torch.randn(50_000, width), torch.randn(50_000, width)
        assert abs((query * key).sum(-1).var() / width - 1) < 0.03


# %% [markdown]
# So much for the variance. Now the consequence: draw a query and ten keys at random, and see how
# large the largest of the ten weights is, on average over a thousand queries. Equal weights would
# give 0.1.


# %%
@example
def scaling_keeps_the_softmax_soft():
    """The largest of ten weights on average, without and with the scale."""
    rows = {}
    for width in (4, 64, 512):
        scores = (torch.randn(1000, 1, width) * torch.randn(1000, 10, width)).sum(-1)
        largest = lambda s: round(s.softmax(-1).amax(-1).mean().item(), 2)  # noqa: E731
        rows[f"K = {width}"] = {"without": largest(scores), "with": largest(scores / width**0.5)}
    return rows


# %% [markdown]
# Without the scale, a head of width 512 gives nearly everything to one of ten keys before it has
# learnt anything. With it, the width no longer matters.
#
# <a id="fast-attention"></a>
# ### The form to run
#
# The form above stores a table of $T \times S$ weights for each head and sentence. A fused kernel
# goes through the same arithmetic block by block and never stores the table. It returns no
# weights. So we use it whenever nobody asks for them. With sentences as short as ours it saves
# memory, and no time: without it training takes 0.9 times as long ([measured](#gains)).


# %%
def fast_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """The output of `attention` from PyTorch's fused kernel; `dropout` is a rate."""
    kernel = functools.partial(F.scaled_dot_product_attention, attn_mask=mask, dropout_p=dropout)
    if query.device.type != "cpu":
        return kernel(query, key, value)
    wide = torch.promote_types(query.dtype, torch.float32)
    with kept_narrow(wide), torch.autocast("cpu", enabled=False):
        return kernel(query.to(wide), key.to(wide), value.to(wide)).to(query.dtype)


def kept_narrow(wide: torch.dtype):
    """A context where autocast keeps its own format of (B, H, T, K) for the backward pass."""
    if not torch.is_autocast_enabled("cpu"):
        return contextlib.nullcontext()
    narrow = torch.get_autocast_dtype("cpu")
    pack = lambda x: x.to(narrow) if x.dim() == 4 else x  # noqa: E731
    unpack = lambda x: x.to(wide) if x.dtype == narrow else x  # noqa: E731
    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


# %% [markdown]
# > **Why fp32 on a CPU?** Under [mixed precision](#workers), explained later, queries arrive in
# > bf16, numbers of 16 bits. On the processors that we tried, the backward pass of this kernel
# > takes several times as long in bf16 as in fp32, and a conversion costs little. It costs least
# > before queries, keys and values are cut apart, so `joint_linear` below converts them together.
# > What the backward pass needs is kept in bf16 meanwhile (`kept_narrow`), in half the memory.
#
# Both forms must agree. The mask of the test has a row with no open cell, so this case is
# compared as well.


# %%
@example
def check_the_fast_form_equals_the_form_to_read():
    query, key, value, mask = random_attention_inputs()
    torch.testing.assert_close(
        fast_attention(query, key, value, mask), attention(query, key, value, mask)[0]
    )


# %% [markdown]
# Under mixed precision the output for such inputs is the same. The gradients differ by the
# rounding of bf16: by less than a twentieth of the largest of them here.


# %%
@example
def check_what_mixed_precision_keeps_is_good_enough():
    *inputs, mask = random_attention_inputs()
    inputs = [x.requires_grad_() for x in inputs]
    read = attention(*inputs, mask)[0]
    with torch.autocast("cpu", torch.bfloat16):
        run = fast_attention(*inputs, mask)
    torch.testing.assert_close(run, read)
    ours, theirs = (torch.autograd.grad(out.square().sum(), inputs) for out in (run, read))
    for our, their in zip(ours, theirs, strict=True):
        assert (our - their).abs().max() < 0.05 * their.abs().max()


# %% [markdown]
# A query with nothing to attend to must be harmless in both forms: zero output, zero gradient.


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
# (§3.2.2) One softmax gives one weighted mean. A word often needs several things at once: its
# adjective, its verb, the word it refers to. So the paper runs $H$ attentions side by side, each
# in a space of its own of width $K = D/H$, and mixes their answers with one more linear map:
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_H)\, W^O, \qquad
# \mathrm{head}_i = \mathrm{Attention}(QW_i^Q, KW_i^K, VW_i^V)$$
# <!-- code: MultiHeadedAttention -->
#
# ![Multi-head attention: three linear maps for queries, keys and values, each split into H heads; attention in every head; the heads joined, and an output linear map.](images/multi-head.svg)
#
# **Figure 3.** Multi-head attention. The H small projections of each kind are one matrix product
# of width D, cut into H slices afterwards.
#
# In *self-attention* queries, keys and values all come from one sequence. In *cross-attention*
# queries come from the target, keys and values from the memory. Maps of the same input can share
# one product too: their matrices are laid end to end, and the result is cut again. The numbers
# are the same, and one large product can take less time than three small ones. Here it hardly
# matters: with each product by itself, training takes 1.0 times as long ([measured](#gains)).


# %%
def joined(maps: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    """Weights and biases of several linear maps of one input, end to end."""
    return tuple(torch.cat([getattr(one, name) for one in maps]) for name in ("weight", "bias"))


def joint_linear(x: Tensor, maps: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """What several linear maps make of one input, by one product: (..., D) -> (..., D) each."""
    product = F.linear(x, *joined(maps))
    if product.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        product = product.float()  # for the kernel of attention
    return product.chunk(len(maps), dim=-1)


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
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> Iterable[Tensor]:
        """The first three maps at work, those of one input together."""
        to_query, to_key, to_value, _ = self.linears
        if query is key is value:
            return joint_linear(query, (to_query, to_key, to_value))
        if key is value:
            return to_query(query), *joint_linear(key, (to_key, to_value))
        return to_query(query), to_key(key), to_value(value)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask=None, record=None) -> Tensor:
        boolean = mask is None or mask.dtype == torch.bool
        require(boolean, "a mask must be boolean, True where attention is allowed")
        q, k, v = map(self.split, self.project(query, key, value))
        mask = None if mask is None else mask.unsqueeze(1)  # the same for every head
        if record is None:
            heads = fast_attention(q, k, v, mask, self.dropout.p if self.training else 0.0)
        else:
            heads, weights = attention(q, k, v, mask, self.dropout)
            record.append(weights.detach())
        together = heads.transpose(1, 2).flatten(2)  # (B, H, T, K) -> (B, T, D)
        return self.linears[3](together)


# %% [markdown]
# > **Why four linear maps, and how do they meet q, k and v?** The first three let a head choose
# > what to compare and what to pass on: without them every head would do the same with the same
# > vectors. The fourth mixes the heads, which would otherwise keep to their own slices of the
# > output for good. In the code the maps meet their inputs in order: first query, second key,
# > third value, fourth the joined heads. The paper's formula has no biases; our maps have them,
# > as those of PyTorch's module do.
#
# With the same weights, PyTorch's own module must give the same output, for queries and keys of
# different lengths:


# %%
def copy_attention(ours: MultiHeadedAttention, theirs: nn.MultiheadAttention) -> None:
    """Give PyTorch's module our weights. It keeps the first three maps in one matrix."""
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in ours.linears[:3]]))
        theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in ours.linears[:3]]))
    theirs.out_proj.load_state_dict(ours.linears[3].state_dict())


# %% [markdown]
# Four heads, three queries, five keys; in the second sentence two keys are closed. We try three
# kinds of input, one for each way to share a product: all three the same, keys and values the
# same, all three different. We compare the outputs and, asking with `record`, the weights of
# every head.


# %%
@example
def check_multi_head_attention_equals_torch():
    ours = MultiHeadedAttention(4, 8, dropout=0.0)
    theirs = nn.MultiheadAttention(8, 4, batch_first=True)
    copy_attention(ours, theirs)
    query, memory, other = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    for inputs in ((memory, memory, memory), (query, memory, memory), (query, memory, other)):
        record: list[Tensor] = []
        expected, weights = theirs(*inputs, ~mask, average_attn_weights=False)
        torch.testing.assert_close(ours(*inputs, mask.unsqueeze(1)), expected)
        ours(*inputs, mask.unsqueeze(1), record)
        torch.testing.assert_close(record[0], weights)


# %% [markdown]
# > **Why cut and then `transpose`: can one view straight to heads?** No. `view` only reads the
# > same numbers in the same order under another shape. The numbers of one position lie together,
# > so the last axis can be cut into H pieces of K. To bring the head axis before the time axis,
# > numbers must change places, and that is what `transpose` is for. Viewing straight to (B, H, T,
# > K) runs without complaint and mixes positions:


# %%
@example
def a_view_straight_to_heads_mixes_positions():
    x = torch.tensor([[[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]])  # (B, T, D) = (1, 3, 4)
    right = x.view(1, 3, 2, 2).transpose(1, 2)  # (B, T, H, K) -> (B, H, T, K)
    wrong = x.view(1, 2, 3, 2)  # straight to (B, H, T, K)
    return {"head 0, right": right[0, 0].tolist(), "head 0, wrong": wrong[0, 0].tolist()}


# %% [markdown]
# The first position holds 0 to 3, the second 10 to 13, the third 20 to 23. The right head 0 holds
# the first half of all three positions. The wrong one holds the whole first position, half of the
# second and nothing of the third.
#
# > **Why several heads instead of one wide one?** The cost is the same: H heads of width D/H take
# > as many multiplications as one of width D. But one head has one set of weights for each query,
# > and must average over all it needs. Four heads can look at four places and keep the answers
# > apart.
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
# > **Which of q, k and v comes from the encoder, and why from its last layer only?** Keys and
# > values do. The decoder asks, the encoder answers. All decoder layers read the same memory: the
# > last layer of the encoder has seen what the earlier ones computed, since every layer adds to
# > the same stream.
#
# <a id="causal-mask"></a>
# ### The mask over the future
#
# (§3.1) While training, the decoder receives the whole target at once. Its input is shifted by
# one: position $t$ reads $y_{t-1}$ and predicts $y_t$, and the first position reads a start
# symbol. So it may look at itself and at what came earlier. If it looked further, it would read
# the word that it has to predict.


# %%
def subsequent_mask(size: int) -> Tensor:
    """Boolean (1, size, size): query t (row) may see key s (column) where s <= t."""
    return torch.ones(1, size, size, dtype=torch.bool).tril()


# %% [markdown]
# Two helpers draw most of the figures: heat maps, and lines.


# %% tags=["hide-input"]
def heat_map(frame, x: str, y: str, value: str, description: str, scheme: str, size=(220, 220)):
    """A heat map of a table: columns `x` and `y` name the axes, `value` the colour."""
    import altair as alt

    names, few = scheme == "yes or no", len(set(frame[x])) <= 16
    colours = alt.Scale(range=["#e3e8ef", "#2f6db5"]) if names else alt.Scale(scheme=scheme)
    label = "datum.label" if few else "datum.value % 8 ? '' : datum.label"
    axis = alt.Axis(
        ticks=False, labelAngle=0 if frame[x].dtype.kind == "i" else -45, labelExpr=label
    )
    chart = alt.Chart(frame, description=description, width=size[0], height=size[1])
    return chart.mark_rect().encode(
        x=alt.X(f"{x}:O", sort=None, axis=axis),
        y=alt.Y(f"{y}:O", sort=None, axis=alt.Axis(ticks=False, labelExpr=label)),
        color=alt.Color(f"{value}:{'N' if names else 'Q'}", scale=colours),
        tooltip=list(frame.columns),
    )


# %% tags=["hide-input"]
def line_chart(frame, x: str, y: str, description: str, group: str = "", points=False, width=420):
    """Lines through the columns `x` and `y` of a table, one for each value of `group`."""
    import altair as alt

    chart = alt.Chart(frame, description=description, width=width, height=240)
    marks = chart.mark_line(point=points or "transparent")  # even unseen, a point has a tooltip
    encoding = {
        "x": alt.X(f"{x}:Q", axis=alt.Axis(labelOverlap=True, labelSeparation=4)),
        "y": f"{y}:Q",
    }
    encoding["tooltip"] = list(frame.columns)
    if group:
        encoding["color"] = alt.Color(f"{group}:N", sort=None, title=None)
    return marks.encode(**encoding)


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
    return heat_map(frame, "key", "query", "may look", text, "yes or no")


# %% [markdown]
# **Figure 4.** The causal mask. Query 0 sees only itself. The open cells form a lower triangle:
# row by row, each position sees one more.
#
# <a id="feed-forward"></a>
# ## The feed-forward network
#
# (§3.3) Attention moves information between positions. The last sub-layer of each layer works on
# every position alone: widen, cut off what is negative (*ReLU*), narrow again.
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
# > **What is it for?** Once its weights are given, attention only takes sums of linear maps. The
# > cut at zero adds what sums cannot do: a feature that answers to some inputs and is silent for
# > others. And most weights of an encoder layer are here: with $F = 4D$, as in the paper, $2DF =
# > 8D^2$, against $4D^2$ in attention.
#
# <a id="embeddings"></a>
# ## Embeddings
#
# (§3.4) A word enters as an index and leaves as a row of a learnt matrix, multiplied by
# $\sqrt{D}$.


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
# > **Why multiply by $\sqrt{D}$?** Because one matrix may be used in two places. As the last
# > linear map it should start small, with entries around $D^{-1/2}$, so that the first scores are
# > of order one. As an embedding it will be added to a positional encoding with entries between
# > −1 and 1, and should not drown in it. The factor brings the entries from $D^{-1/2}$ to about
# > one. The paper gives no reason; this is the usual one.
#
# <a id="positional-encoding"></a>
# ## Positions
#
# (§3.5) Attention treats its input as a set: shuffle the words, and the answers are shuffled with
# them. Word order must be told to the model. The paper adds to each embedding a vector that
# depends on the position $p$ alone. Its entries are sines and cosines in pairs, numbered by $i$
# from 0 to $D/2 - 1$, whose wavelengths grow from $2\pi$ to nearly $10000 \cdot 2\pi$:
#
# $$PE_{(p, 2i)} = \sin\!\left(p / 10000^{2i/D}\right), \qquad PE_{(p, 2i+1)} = \cos\!\left(p / 10000^{2i/D}\right)$$


# %%
class PositionalEncoding(nn.Module):
    """Adds sinusoids of the position (§3.5), then dropout: (B, T, D) -> (B, T, D)."""

    def __init__(self, d_model: int, dropout: float, max_len: int = 5000):
        super().__init__()
        even = d_model > 0 and d_model % 2 == 0
        require(even, f"d_model must be even and positive, got {d_model}")
        require(max_len > 0, f"max_len must be positive, got {max_len}")
        self.dropout = make_dropout(dropout)
        exponent = torch.arange(0, d_model, 2) / d_model  # 2i / D, (D/2,)
        frequency = torch.exp(-math.log(10_000.0) * exponent)
        angle = torch.arange(max_len).unsqueeze(1) * frequency  # (max_len, D/2)
        waves = torch.stack([torch.sin(angle), torch.cos(angle)], dim=-1).flatten(1)
        self.register_buffer("pe", waves.unsqueeze(0), persistent=False)  # (1, max_len, D)

    def forward(self, x: Tensor) -> Tensor:
        T, limit = x.size(1), self.pe.size(1)
        require(limit >= T, f"a sequence of {T} tokens does not fit {limit} positions")
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
# > **Why exp and log?** It is a habit: $10000^{-2i/D} = e^{-(2i/D)\ln 10000}$, and the code
# > computes the right-hand side. The check of the shift below computes the left-hand side. Either
# > will do.
# >
# > **Interleaved or concatenated?** The formula interleaves sines and cosines, so we do. All
# > sines first and then all cosines would be a fixed permutation of the features. The embeddings
# > are learnt, so they can take on the same permutation, and nothing else would change.
# >
# > **Why `register_buffer`?** The table is not learnt, but it must move to the GPU with the
# > model. It follows from a formula, so it is not saved (`persistent=False`).
# >
# > **Why a leading dimension of one?** It stands for the batch. Broadcasting would manage without
# > it. With it, shapes can be compared at a glance: (1, T, D) is added to (B, T, D).
# >
# > **Why waves, and not a learnt vector for each position?** The paper tried both and found
# > hardly a difference (§3.5; Table 3, row E). Waves go on for ever, so the authors hoped that
# > they would also serve sentences longer than those of the training. We have not tested this.
# >
# > **Why add the position, and not append it?** A linear map of two vectors laid end to end is
# > the sum of one map for each. Adding means that both use the same map, and the width stays $D$.
# > The embeddings are learnt, so they can keep apart from the waves where that helps.


# %%
@example
def sinusoids_figure():
    import pandas as pd

    pe = PositionalEncoding(64, 0.0, max_len=60).pe[0]
    frame = pd.DataFrame(
        {"position": p, "feature": d, "value": round(pe[p, d].item(), 3)}
        for p, d in itertools.product(range(60), range(64))
    )
    text = "Positional encoding of 60 positions in 64 features: fast waves left, slow ones right."
    return heat_map(frame, "feature", "position", "value", text, "redblue", size=(384, 300))


# %% [markdown]
# **Figure 5.** Sinusoids for D = 64. Read a row: it is the signature of one position. Read a
# column: it is one wave. The columns at the left tell neighbours apart; those at the right hardly
# move within a sentence.
#
# The same as curves: a few columns of the heat map, drawn along the sentence.


# %%
@example
def sinusoids_as_curves_figure():
    import pandas as pd

    pe = PositionalEncoding(64, 0.0, max_len=60).pe[0]
    frame = pd.DataFrame(
        {"position": p, "value": round(pe[p, d].item(), 3), "feature": f"feature {d}"}
        for p, d in itertools.product(range(60), (4, 8, 16, 24))
    )
    text = "Four features of the positional encoding against the position: slower and slower waves."
    return line_chart(frame, "position", "value", text, "feature", width=480)


# %% [markdown]
# **Figure 6.** Four of the waves. Compare any two positions: of all the waves, some always tell
# them apart.
#
# (§3.5) The paper chose waves because a shift is then easy to express: for every distance $k$
# there is one matrix that turns $PE_p$ into $PE_{p+k}$, whatever $p$ is. It rotates each pair of
# sine and cosine by the angle that belongs to $k$:


# %%
@example
def check_a_shift_is_a_linear_map():
    pe, k = PositionalEncoding(8, 0.0, max_len=60).pe[0], 5
    frequency = 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    cos, sin = torch.cos(k * frequency), torch.sin(k * frequency)
    rotations = [torch.tensor([[c, s], [-s, c]]) for c, s in zip(cos, sin, strict=True)]
    torch.testing.assert_close(pe[:55] @ torch.block_diag(*rotations).T, pe[5:], atol=1e-5, rtol=0)


# %% [markdown]
# So the inner product of two encodings depends on their distance alone. Each pair of sine and
# cosine is a point on the unit circle. A shift by $k$ turns it by the angle $k\,\omega_i$, where
# $\omega_i = 10000^{-2i/D}$ is the frequency of the wave. The inner product of the old point and
# the new one is the cosine of this angle. The sum over all pairs is $PE_p \cdot PE_{p+k} = \sum_i
# \cos(k\,\omega_i)$. An attention head can use it to look at neighbours, whatever the words are.


# %%
@example
def likeness_of_positions_figure():
    import pandas as pd

    rows = []
    for width, p in itertools.product((64, 512), (0, 30)):
        pe = PositionalEncoding(width, 0.0, max_len=100).pe[0]
        products = (pe[p : p + 60] @ pe[p] / (pe[p] @ pe[p])).tolist()
        name = f"D = {width}, p = {p}"
        rows += [{"k": k, "likeness": round(x, 4), "from": name} for k, x in enumerate(products)]
    text = "Inner product of the encodings of positions p and p + k against k, for two widths."
    return line_chart(pd.DataFrame(rows), "k", "likeness", text, "from", width=480)


# %% [markdown]
# **Figure 7.** Inner product of $PE_p$ and $PE_{p+k}$, divided by its value at $k = 0$. The lines
# for $p = 0$ and $p = 30$ lie on each other: only the distance counts. Neighbours are alike, and
# likeness fades, though not evenly.
#
# <a id="layers"></a>
# ## Layers and stacks
#
# (§3.1) An encoder layer is self-attention and a feed-forward network, each inside a residual
# connection. This wants a function of one input, and attention has more: hence the lambda.


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
# A decoder layer has a third sub-layer between the two: cross-attention over the memory. When
# attention weights are recorded, the layer appends two entries, its self-attention first.


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
# A stack is $N$ layers of the same shape, each with weights of its own. Only with the norm before
# the sub-layer does it end with a norm of its own; after the paper's order there is nothing left
# to normalise.


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


# %% [markdown]
# The decoder differs in one thing only: each of its layers receives the memory too. The memory is
# the same for all of them.


# %%
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
# Are they right? PyTorch has both layers too. We copy our weights into its layers and compare, in
# both orders of the norm, with padding in the source and the future hidden in the target.


# %%
def copy_layer(ours: EncoderLayer | DecoderLayer, theirs: nn.Module) -> None:
    """Draw our norms at random, then give PyTorch's encoder or decoder layer all our weights."""
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


# %% [markdown]
# The masks of PyTorch's *modules* say the opposite of ours: there `True` means *closed*. (Its
# function `scaled_dot_product_attention` agrees with us.) Hence the `~` in every check against a
# module. To confuse the two is one of the easiest ways to get a model that trains and is
# worthless.


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
# (§3, §3.4) `make_model` puts the pieces together. The paper does not say how weights start. As
# is usual, matrices start by the rule of Glorot and Bengio (`nn.init.xavier_uniform_`, after the
# first author's first name), which keeps the variance of a signal about the same through a linear
# map. Embeddings keep their own start.


# %%
def make_model(
    src_vocab: int,
    tgt_vocab: int,
    N: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    h: int = 8,
    dropout: float = 0.1,
    *,
    attention_dropout: float | None = None,
    norm_first: bool = True,
    share_embeddings: bool = False,
    max_len: int = 5000,
) -> EncoderDecoder:
    """A Transformer with fresh weights; the default sizes are the base model of Table 3.

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
        nn.Sequential(source, positions),
        nn.Sequential(target, copy.deepcopy(positions)),
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


# %% [markdown]
# > **Why is `attn` copied once only?** Each stack copies its layer for every place, so encoder
# > and decoder may start from the same object. Inside the decoder layer the two attentions must
# > be two objects from the start: `copy.deepcopy` would keep one object one, and self-attention
# > and cross-attention would share their weights.
#
# Sharing is done by assignment: three modules then hold the same `Parameter` object. The
# optimizer sees it once, and its gradient is the sum of what comes from the three uses.


# %%
@example
def check_shared_embeddings_are_one_parameter():
    model = make_model(11, 11, N=1, d_model=8, d_ff=16, h=2, share_embeddings=True)
    shared = model.tgt_embed[0].lut.weight
    assert model.src_embed[0].lut.weight is shared and model.generator.proj.weight is shared
    assert abs(shared.std() * 8**0.5 - 1) < 0.3


# %% [markdown]
# > **What does sharing weights mean when the vocabularies differ?** Nothing: a row must stand for
# > the same symbol in all three places. The paper splits both languages into pieces of words and
# > keeps one list of pieces for both, so one matrix fits. With one list of words for each
# > language, as in [Part 5](#real-data), source and target cannot share, and
# > `share_embeddings=True` ends with an error unless both lists are equally long. It cannot
# > notice that two lists of the same length hold different words: that is for you to know.
#
# <a id="dropout"></a>
# ### Where the model drops
#
# | Place | In the paper? |
# | --- | --- |
# | output of each sub-layer, before the sum | yes (§5.4) |
# | sum of embedding and position | yes (§5.4) |
# | attention weights | no; in later configurations of the authors' code |
# | inside the feed-forward network, after the ReLU | no; in later configurations of the authors' code |
#
# One argument reaches all four, and 0 switches all of them off. Attention weights can have a rate
# of their own (`attention_dropout`): at rate 0 the fused kernel stays usable while training on a
# CPU.


# %%
@example
def check_dropout_reaches_every_dropout():
    for rate in (0.0, 0.3):
        model = make_model(11, 13, N=2, d_model=8, d_ff=16, h=2, dropout=rate)
        rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
        # an encoder layer has 2 sub-layers + 2, a decoder layer 3 + 3; then the positions
        assert rates == [rate] * (2 * 4 + 2 * 6 + 2)


# %% [markdown]
# Sizes that cannot work are refused at once, with the value and the limit in the message. A head
# of width 2.67 would otherwise show itself much later, as a reshape that fails somewhere deep
# inside.


# %%
@example
def check_bad_sizes_are_refused():
    bad = [
        ({"d_model": 9, "h": 3}, "even"),
        ({"d_model": 8, "h": 3}, "divisible"),
        ({"N": -1}, "-1"),
        ({"dropout": 1.0}, "1.0"),
        ({"d_ff": 0}, "0"),
        ({"max_len": 0}, "0"),
    ]
    for change, word in bad:
        try:
            make_model(11, 13, **{"N": 1, "d_model": 8, "d_ff": 16, "h": 2} | change)
        except ValueError as error:
            assert word in str(error)
        else:
            raise AssertionError(f"{change} was accepted")


# %% [markdown]
# <a id="behaviour"></a>
# ### Does it behave?
#
# Some properties follow from the design alone, whatever the weights are. A mistake in a mask or
# an axis breaks at least one of them. First: what is written now must not depend on what comes
# later.


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
# Third: without positions the encoder cannot know about order. Permuted words give permuted
# outputs, nothing else.


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
# The last line of the check adds the positions back, and the property is gone: order matters
# again.
#
# <a id="parameter-count"></a>
# ### How many parameters?
#
# (§6.2, Table 3) The paper gives 65 million for the base model and 213 million for the big one,
# with about 37,000 symbols shared by both languages (§5.1). We build both on PyTorch's `meta`
# device, which keeps shapes but no numbers.


# %%
def count_parameters(model: nn.Module) -> int:
    """Number of trainable values; a shared matrix counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


@example
def parameters_beside_table_3():
    import pandas as pd

    sizes = {"base": {}, "big": {"d_model": 1024, "d_ff": 4096, "h": 16}}
    with torch.device("meta"):
        models = {
            name: make_model(37_000, 37_000, share_embeddings=True, **s)
            for name, s in sizes.items()
        }
    ours = [f"{count_parameters(model) / 1e6:.1f} M" for model in models.values()]
    return pd.DataFrame({"paper": ["65 M", "213 M"], "ours": ours}, index=list(models))


# %% [markdown]
# Ours are a little below and a little above. No single size of vocabulary gives both of the
# paper's numbers, and biases are far too few to matter: we cannot explain the difference. That
# nothing is missing is shown by the checks against PyTorch's layers. The matrices inside the
# layers are fixed by the paper, and they are the same.
#
# <a id="untrained"></a>
# ### A first forward pass
#
# The untrained model already runs. It reads ten symbols and, step by step, writes the one it
# finds most likely. The result means nothing yet.


# %%
@example
def an_untrained_model_speaks():
    model = tiny_model()
    src, written = torch.arange(1, 11).unsqueeze(0), torch.tensor([[0]])  # any symbol will do
    src_mask = torch.ones(1, 1, 10, dtype=torch.bool)
    with torch.no_grad():
        memory = model.encode(src, src_mask)
        for _ in range(9):
            states = model.decode(memory, src_mask, written, subsequent_mask(written.size(1)))
            following = model.generator(states[:, -1]).argmax(-1, keepdim=True)  # (1, 1)
            written = torch.cat([written, following], dim=1)
    return written[0].tolist()


# %% [markdown]
# It soon says one symbol over and over. Nothing has been learnt, so what changes from step to
# step hardly changes its answer.
#
# <a id="why-self-attention"></a>
# # Part 2. Why self-attention
#
# (§4) A layer takes one vector for each position and gives one back. What makes self-attention
# better at this than a recurrent network, which reads from left to right and carries a state
# along, or than a convolution, which mixes each position with its nearest neighbours? The paper
# asks three questions. How much is there to compute? How much of it must wait for something else?
# And how far does a signal travel from one position to another?
#
# | Layer | Multiplications | Steps one after the other | Longest path between two positions |
# | --- | --- | --- | --- |
# | self-attention | $T^2 \cdot D$ | 1 | 1 |
# | recurrent | $T \cdot D^2$ | $T$ | $T$ |
# | convolution over $k$ positions | $k \cdot T \cdot D^2$ | 1 | $T/k$; $\log_k T$ if the gaps between its inputs grow from layer to layer |
# | self-attention to $r$ neighbours | $r \cdot T \cdot D$ | 1 | $T/r$ |
#
# Here $T$ is the length of the sequence, and constant factors are left out (the paper's Table 1
# and §4).
#
# <a id="path-length"></a>
# ## How far a signal travels
#
# The last column matters most. What two distant words have to do with each other can only be
# learnt if the gradient finds its way from one to the other, and each step on the way weakens and
# mixes it. The claim can be tested without any training: stack layers until the last output
# depends on the first input.


# %%
def layers_until_connected(make_layer: Callable[[], Callable], T: int, D: int = 8) -> int:
    """How many layers, (1, T, D) each, it takes until the last output feels the first input."""
    x = start = torch.randn(1, T, D, dtype=torch.double, requires_grad=True)
    for depth in itertools.count(1):
        x = make_layer()(x)
        (gradient,) = torch.autograd.grad(x[0, -1].sum(), start, retain_graph=True)
        if gradient[0, 0].ne(0).any():
            return depth


# %% [markdown]
# A convolution over three positions moves a signal one position further in each layer. Our
# attention needs one layer for any distance. So does a recurrent layer; but inside it the signal
# goes through as many steps as there are positions.


# %%
@example
def check_attention_connects_all_positions_in_one_layer():
    def self_attention():
        module = MultiHeadedAttention(2, 8, dropout=0.0).double()
        return lambda x: module(x, x, x)

    def convolution():
        module = nn.Conv1d(8, 8, kernel_size=3, padding=1).double()
        return lambda x: module(x.transpose(1, 2)).transpose(1, 2)

    for T in (2, 5, 12):
        assert layers_until_connected(self_attention, T) == 1
        assert layers_until_connected(convolution, T) == T - 1


# %% [markdown]
# <a id="cost-of-length"></a>
# ## What length costs
#
# The first column says that self-attention is cheaper than recurrence as long as $T$ is smaller
# than $D$. Sentences are: ours have about a dozen words, and the width of the base model is 512.
# But the table counts only what differs. A whole layer has linear maps as well, $4 T D^2$
# multiplications for queries, keys, values and output, and with $F = 4D$ another $2 T D F = 8 T
# D^2$ in the feed-forward network. The scores take $T^2 D$, and the weighted means of the values
# another $T^2 D$. We count them for the base model.


# %%
@example
def share_of_the_quadratic_part():
    D, rows = 512, []
    for T in (16, 64, 256, 1024, 4096, 16384):
        quadratic, maps = 2 * T * T * D, 12 * T * D * D
        rows.append((f"{T:,}", f"{quadratic / (quadratic + maps):.1%}"))
    return table(rows, ["length", "share of the quadratic part in an encoder layer"])


# %% [markdown]
# In a sentence the quadratic part is next to nothing. It takes half of the work at $T = 6D$, which
# for the base model is a text of 3,072 symbols. There twice the length costs three times the work,
# far beyond it four times, and this is where the search for cheaper forms of attention begins.
#
# The second column is what made the Transformer quick to train. The steps of a recurrent layer
# wait for each other, however many cores there are. We time one layer of each kind, forward and
# backward, as the sequence grows. **Cost: a few seconds.**


# %%
def seconds_of_a_step(layer: Callable[[Tensor], Tensor], x: Tensor, repetitions: int = 5) -> float:
    """Median time of one pass forward and backward; a first pass, to warm up, is not counted."""
    times = []
    for _ in range(repetitions + 1):
        begin = time.perf_counter()
        layer(x).sum().backward()
        times.append(time.perf_counter() - begin)
    return sorted(times[1:])[repetitions // 2]


@functools.cache
def times_of_layers(D: int = 256) -> list[dict]:
    """Milliseconds of one layer of each kind for sequences of growing length, one at a time."""
    attention_layer = MultiHeadedAttention(4, D, dropout=0.0)
    recurrent = nn.GRU(D, D, batch_first=True)
    convolution = nn.Conv1d(D, D, kernel_size=3, padding=1)
    layers = {
        "self-attention": lambda x: attention_layer(x, x, x),
        "recurrent (GRU)": lambda x: recurrent(x)[0],
        "convolution over 3": lambda x: convolution(x.transpose(1, 2)),
    }
    lengths = (16, 64, 256) if run_level() == "smoke" else (16, 64, 256, 1024)
    return [
        {"layer": name, "length": T, "ms": 1000 * seconds_of_a_step(layer, torch.randn(1, T, D))}
        for T in lengths
        for name, layer in layers.items()
    ]


# %%
@example
def cost_of_length_figure():
    import altair as alt
    import pandas as pd

    frame = pd.DataFrame(times_of_layers()).round({"ms": 3})
    text = "Milliseconds of one layer, forward and backward, against the length, for three kinds."
    logarithmic = alt.Scale(type="log")
    chart = alt.Chart(frame, description=text, width=420, height=240).mark_line(point=True)
    return chart.encode(
        x=alt.X("length:Q", scale=logarithmic),
        y=alt.Y("ms:Q", scale=logarithmic, title="milliseconds"),
        color=alt.Color("layer:N", sort=None, title=None),
        tooltip=list(frame.columns),
    )


# %% [markdown]
# **Figure 8.** Time of one layer of width 256 for one sequence, forward and backward; both axes
# are logarithmic. Look at the slopes. The recurrent layer takes longer in proportion to the
# length from the start. The line of attention is nearly flat at first, where starting the
# operations takes longer than the arithmetic. Then its linear maps make it rise in proportion,
# and beyond T = 2D = 512 the quadratic part makes it steeper still. Even there it stays far below
# the recurrent layer: waiting costs more than arithmetic.
#
# > **And is it easier to read?** The paper adds a last argument: attention weights can be looked
# > at, and heads seem to learn different tasks. [Part 8](#looking-inside) looks, and says what
# > such pictures can tell and what they cannot.
#
# <a id="training"></a>
# # Part 3. Training
#
# A model is a function with some millions of numbers in it. Training finds the numbers. It needs
# four things: batches of examples, a loss that says how wrong an answer is, an optimizer that
# makes it a little less wrong, and a loop around them. None of them is special to translation,
# and each has a detail that is easy to get wrong without noticing: the model then still trains,
# only worse than it should.
#
# <a id="batches"></a>
# ## Batches and masks
#
# Sentences differ in length, tensors do not. So the sentences of a batch are filled up
# with a padding symbol, and masks make sure that it counts for nothing. Four symbols have a
# meaning of their own and come first in every vocabulary: the start of a sentence; its end, by
# which the model says that it has finished; padding; and the unknown word, which stands for all
# words that the vocabulary does not have.

# %%
SPECIALS = ("<s>", "</s>", "<blank>", "<unk>")
START, END, PAD, UNKNOWN = range(len(SPECIALS))


class Batch:
    """Sentences of a batch with their masks, ready for the model.

    src (B, S) and tgt (B, T + 1) are ids filled up with `pad`. Holds src, src_mask (B, 1, S) and,
    where there is a target, tgt (B, T), tgt_y (B, T), tgt_mask (B, T, T) and ntokens, the number of
    real symbols in tgt_y.
    """

    def __init__(self, src: Tensor, tgt: Tensor | None = None, pad: int = PAD):
        self.src, self.src_mask = src, (src != pad).unsqueeze(1)
        self.tgt = self.tgt_y = self.tgt_mask = None
        self.ntokens = 0
        if tgt is not None:
            self.tgt, self.tgt_y = tgt[:, :-1], tgt[:, 1:]
            causal = subsequent_mask(self.tgt.size(1)).to(tgt.device)
            self.tgt_mask = (self.tgt != pad).unsqueeze(1) & causal
            self.ntokens = int((self.tgt_y != pad).sum())

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device, non_blocking=True))
        return moved


# %%
def pad_ids(sentences: Sequence[Sequence[int]]) -> Tensor:
    """Lists of ids -> one tensor (B, longest), filled up with padding."""
    rows = [torch.tensor(ids, dtype=torch.long) for ids in sentences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


# %% [markdown]
# > **What exactly are `src_mask` and `tgt_mask`?** Tables that say which key each query may see.
# > For the source one row per sentence is enough, (B, 1, S): padding is closed to every query
# > alike. The target needs a whole table per sentence, (B, T, T), since the future differs from
# > query to query. Both are broadcast over the heads. A boolean takes one byte: at 100 sentences
# > of 30 words the target mask has 90 kB.
# >
# > **Should rows of padded queries be masked as well?** No need. What a padded position computes
# > is read by nobody: as a key it is closed, and in the loss it does not count. Closing its row
# > would only create rows with nothing to attend to.
# >
# > **Shift right.** The decoder reads `tgt[:, :-1]`, which begins with `<s>`, and is asked for
# > `tgt[:, 1:]`, which ends with `</s>`. At each position it sees the words before and predicts
# > the next. For *A dog runs.* it reads `<s> A dog runs .` and is asked for `A dog runs . </s>`.
# > In training the words it reads are the true ones (*teacher forcing*), so all positions are
# > computed at once. In use they are its own, one step at a time.


# %% [markdown]
# Every mask of a batch can be described in one sentence, and so it can be checked cell by cell: a
# key is open where it is a real symbol and, in the target, not later than the query. (Padding
# stands at the end, so for real queries the causal mask hides it as well. A mask that relied on
# that would fail for anybody who pads at the front.)


# %%
@example
def check_the_masks_of_a_batch():
    batch = Batch(
        torch.tensor([[5, 6, END], [7, END, PAD]]), pad_ids([[START, 8, 9, END], [START, END]])
    )
    assert batch.src_mask.tolist() == [[[True, True, True]], [[True, True, False]]]
    for sentence, query, key in itertools.product(range(2), range(3), range(3)):
        real = batch.tgt[sentence, key] != PAD
        assert batch.tgt_mask[sentence, query, key] == (real and key <= query)
    assert batch.ntokens == 4 and batch.tgt_y[1].tolist() == [END, PAD, PAD]


# %%
@example
def masks_of_a_batch_figure():
    import altair as alt
    import pandas as pd

    sentences = [
        "<s> A dog runs . </s>".split(),
        "<s> Two children play in the snow . </s>".split(),
    ]
    width = max(map(len, sentences))
    words = [sentence + ["<blank>"] * (width - len(sentence)) for sentence in sentences]
    tgt = torch.tensor(
        [[PAD if word == "<blank>" else len(SPECIALS) for word in row] for row in words]
    )
    batch, charts = Batch(tgt, tgt), []
    for mask, row in zip(batch.tgt_mask, words, strict=True):
        labels = [f"{number} {word}" for number, word in enumerate(row[:-1])]
        frame = pd.DataFrame(
            {"query": labels[t], "key": labels[s], "may look": "yes" if mask[t, s] else "no"}
            for t, s in itertools.product(range(len(labels)), repeat=2)
        )
        charts.append(heat_map(frame, "key", "query", "may look", "", "yes or no"))
    text = "Target masks of a batch of two sentences, the first of them padded."
    return alt.hconcat(*charts).properties(description=text)


# %% [markdown]
# **Figure 9.** `tgt_mask` for a batch of two sentences. In the first, the columns of the padding
# are closed to every query; the triangle is the causal mask of Figure 4.
#
# <a id="label-smoothing"></a>
# ## Loss and label smoothing
#
# (§5.4) The plain loss at a position is *cross-entropy*: $-\log p$ of the right word. It is zero
# only where this word has probability one. No finite score ever gives that, so the model is
# pushed to be ever more certain. Label smoothing asks for less. The paper takes $\epsilon = 0.1$
# from [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), who spread it over all labels.
# Here, as in the earlier versions of this text, the right word gets $1 - \epsilon$. Padding is
# never a right answer and gets nothing. So each of the $V - 2$ others gets $\epsilon/(V-2)$.
#
# The loss is the Kullback–Leibler divergence from the model's distribution $p$ to this target
# $t$, summed over the real positions of a batch:
#
# $$\mathrm{KL}(t \,\|\, p) = \sum_{v} t_v \log t_v - \sum_{v} t_v \log p_v .$$


# %%
class LabelSmoothing(nn.Module):
    """KL divergence to the smoothed target (§5.4), summed over real positions.

    log_probs (..., size) and target ids (...) -> scalar. Rows whose target is `padding_idx`
    cost nothing. ValueError unless 0 <= smoothing < (size - 2) / (size - 1).
    """

    def __init__(self, size: int, padding_idx: int, smoothing: float = 0.0):
        super().__init__()
        require(size > 2, f"label smoothing needs more than two symbols, got {size}")
        require(0 <= padding_idx < size, f"padding_idx must be in [0, {size}), got {padding_idx}")
        # Beyond this limit a wrong word would be wanted more than the right one.
        limit = (size - 2) / (size - 1)
        require(0 <= smoothing < limit, f"smoothing must be in [0, {limit:.3g}), got {smoothing}")
        self.size, self.padding_idx, self.smoothing = size, padding_idx, smoothing
        self.share = smoothing / (size - 2)  # of each word that is neither right nor padding

    def distribution(self, target: Tensor) -> Tensor:
        """The target distribution, to look at: ids (tokens,) -> (tokens, size)."""
        wanted = torch.full((len(target), self.size), self.share)
        wanted[torch.arange(len(target)), target] = 1 - self.smoothing
        wanted[:, self.padding_idx] = 0.0
        return wanted.masked_fill((target == self.padding_idx).unsqueeze(1), 0.0)

    def entropy(self) -> float:
        """Entropy of the target at a real position: the floor of the cross-entropy."""
        parts = (1 - self.smoothing, 1 - self.smoothing), (self.smoothing, self.share)
        return -sum(mass * math.log(each) for mass, each in parts if mass > 0)

    def forward(self, log_probs: Tensor, target: Tensor) -> Tensor:
        log_probs, target = log_probs.reshape(-1, self.size), target.reshape(-1)
        right = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)  # (tokens,)
        cross_entropy = -(1 - self.smoothing - self.share) * right
        if self.smoothing > 0:
            before, after = log_probs[:, : self.padding_idx], log_probs[:, self.padding_idx + 1 :]
            cross_entropy = cross_entropy - self.share * (before.sum(-1) + after.sum(-1))
        return (cross_entropy - self.entropy())[target != self.padding_idx].sum()


# %% [markdown]
# `distribution` shows the target. `forward` never builds it: the table would be as large as the
# log-probabilities themselves, and its rows hold only three different numbers. So the sum is
# written out. It runs over all words but padding, each with its share; the right word is among
# them, so its own factor is $1 - \epsilon$ less one share.


# %%
@example
def smoothed_targets_figure():
    import pandas as pd

    target = torch.tensor([4, 3, 6, PAD, 5])
    wanted = LabelSmoothing(7, PAD, 0.4).distribution(target)
    frame = pd.DataFrame(
        {"position": t, "word": v, "probability": round(wanted[t, v].item(), 3)}
        for t, v in itertools.product(range(5), range(7))
    )
    text = "Smoothed targets for five positions over seven words; word 2 is padding."
    return heat_map(frame, "word", "position", "probability", text, "blues", size=(280, 200))


# %% [markdown]
# **Figure 10.** Targets for five positions and seven words, with an exaggerated $\epsilon = 0.4$.
# In every row but row 3 the one dark cell is the right word. Column 2 is padding and stays empty,
# and so does row 3, whose target is padding.
#
# Now the checks. The written-out sum is the divergence that PyTorch computes from the full table.
# With the entropy of the target added it is the cross-entropy with soft targets. There is also a
# relative among PyTorch's own options, and it is easily mistaken for a twin:
# `F.cross_entropy(label_smoothing=…)` spreads its mass over *all* words, the right one and the
# padding included. Take the padding away and enlarge $\epsilon$ a little, and the two agree.


# %%
def random_loss_inputs() -> tuple[Tensor, Tensor]:
    """Logits (6, 9) in double precision and targets (6,), one of them padding."""
    return torch.randn(6, 9, dtype=torch.double), torch.tensor([4, 8, PAD, 0, 3, 3])


# %% [markdown]
# First, the written-out sum against the full table, and against the cross-entropy with soft
# targets.


# %%
@example
def check_label_smoothing_is_the_divergence():
    logits, target = random_loss_inputs()
    criterion, log_probs = LabelSmoothing(9, PAD, 0.3), logits.log_softmax(-1)
    wanted, real = criterion.distribution(target).double(), target != PAD
    divergence = F.kl_div(log_probs, wanted, reduction="sum")
    torch.testing.assert_close(criterion(log_probs, target), divergence, rtol=1e-6, atol=1e-6)
    soft = F.cross_entropy(logits[real], wanted[real], reduction="sum")
    torch.testing.assert_close(divergence + 5 * criterion.entropy(), soft, rtol=1e-6, atol=1e-6)


# %% [markdown]
# Second, the relative. We give padding a score of $-\infty$, so that it has no probability, and
# cut its column out for PyTorch. With the same $\epsilon$ the two still differ. With
# $\epsilon\,(V-1)/(V-2)$ they agree, because PyTorch gives the right word a share of the mass as
# well.


# %%
@example
def check_label_smoothing_beside_the_option_of_cross_entropy():
    logits, target = random_loss_inputs()
    logits[:, PAD] = -torch.inf  # no probability on padding, so that both see the same p
    criterion, eps, real = LabelSmoothing(9, PAD, 0.3), 0.3 * 8 / 7, target != PAD
    ours = criterion(logits.log_softmax(-1), target) + 5 * criterion.entropy()
    without_padding = torch.cat([logits[:, :PAD], logits[:, PAD + 1 :]], 1)[real]
    shifted = target[real] - (target[real] > PAD).long()
    theirs = F.cross_entropy(without_padding, shifted, label_smoothing=eps, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    same_eps = F.cross_entropy(without_padding, shifted, label_smoothing=0.3, reduction="sum")
    assert not torch.isclose(ours, same_eps)


# %% [markdown]
# A probability of exactly zero must cost nothing where the target asks for nothing, and must cost
# everything where it asks for something. And the gradient must be the one that finite differences
# measure.


# %%
@example
def check_label_smoothing_at_probability_zero():
    logits, target = random_loss_inputs()
    logits[:, PAD] = -torch.inf
    assert LabelSmoothing(9, PAD, 0.3)(logits.log_softmax(-1), target).isfinite()
    logits[1, 7] = -torch.inf
    assert LabelSmoothing(9, PAD, 0.3)(logits.log_softmax(-1), target) == torch.inf
    assert LabelSmoothing(9, PAD, 0.0)(logits.log_softmax(-1), target).isfinite()


# %% [markdown]
# `gradcheck` moves each logit a little up and down, in double precision, and compares the change
# of the loss with the gradient that backpropagation gives.


# %%
@example
def check_the_gradient_of_label_smoothing():
    logits, target = random_loss_inputs()
    criterion = LabelSmoothing(9, PAD, 0.3)
    loss_of = lambda x: criterion(x.log_softmax(-1), target)  # noqa: E731
    assert torch.autograd.gradcheck(loss_of, logits.requires_grad_())


# %% [markdown]
# What does smoothing do to a model that is nearly sure? Let it give probability $p$ to the right
# word and share the rest evenly.


# %%
@example
def penalty_on_over_confidence_figure():
    import pandas as pd

    rows, V = [], 9
    for smoothing, number in itertools.product((0.0, 0.1, 0.3), range(1, 400)):
        p = 1 / (1 + math.exp(4 - number / 33))  # from 0.02 to 0.9997
        probabilities = torch.full((1, V), (1 - p) / (V - 2))
        probabilities[0, 4], probabilities[0, PAD] = p, 0.0
        loss = LabelSmoothing(V, PAD, smoothing)(probabilities.log(), torch.tensor([4]))
        row = {
            "probability of the right word": p,
            "loss": loss.item(),
            "smoothing": f"ε = {smoothing}",
        }
        rows.append(row)
    text = "Loss against the probability of the right word, for three amounts of smoothing."
    frame = pd.DataFrame(rows)
    return line_chart(frame, "probability of the right word", "loss", text, "smoothing")


# %% [markdown]
# **Figure 11.** The price of certainty. Without smoothing the loss falls all the way to $p = 1$.
# With smoothing it is lowest at $p = 1 - \epsilon$ and rises again after it: a model that is too
# sure pays.
#
# > **Why KL divergence, and what is the floor of the loss?** KL divergence and cross-entropy
# > differ by the entropy of the target, a constant, so their gradients agree. The divergence has
# > the nicer floor: zero, reached when the model says exactly what the target asks. The
# > cross-entropy stops at the entropy, which is not zero once we smooth: with $\epsilon = 0.1$
# > and 5,000 symbols it is $0.9 \ln\frac{1}{0.9} + 0.1 \ln\frac{4998}{0.1} = 1.18$.
# >
# > **Why does smoothing hurt perplexity and help BLEU?** (Both are explained later:
# > [perplexity](#evaluation), [BLEU](#bleu).) Perplexity counts the probability of the right
# > word, and the model has been told not to give more than 0.9. BLEU counts the words that are
# > chosen. Being less sure of single words need not change which of them is ranked first, and may
# > keep the model from trusting accidents of the training data. The paper reports both effects
# > (§5.4), and gives no more of a reason.
#
# <a id="chunked-loss"></a>
# ### The form to run
#
# Log-probabilities for every token and every word of the vocabulary are the largest table of a
# training by far, and its gradient is as large again. Neither need ever exist as a whole. The
# gradient of the loss of a token with respect to its scores is known without recording the
# computation: it is the model's distribution minus the target,
#
# $$\frac{\partial\, \mathrm{KL}(t \,\|\, p)}{\partial\, \text{score}_v} = p_v - t_v ,$$
#
# where $u$ and $v$ number the symbols. For $\partial \log p_u / \partial\, \text{score}_v = [u =
# v] - p_v$, with $[u = v]$ one if they are the same and zero if not. Multiplied by $-t_u$ and
# summed over $u$ this is $-t_v + p_v \sum_u t_u$, and the $t_u$ add up to one. So we take some
# tokens at a time (on a CPU $2^{21}/V$, and at least 256: 419 with 5,000 symbols), from states to
# loss and back to the gradient of the states, and forget their scores before we go on. PyTorch
# lets a function bring its own gradient along. With all scores at once, padding included,
# training takes 1.1 times as long ([measured](#gains)).


# %%
class ChunkedLoss(torch.autograd.Function):
    """A generator and `LabelSmoothing` in one: states (tokens, D), real targets (tokens,) -> loss.

    Products are computed in `dtype`, the loss in the format of the states.
    """

    @staticmethod
    def forward(ctx, states, weight, bias, target, criterion, dtype):
        rows = max(256, 2 ** (21 if states.device.type == "cpu" else 26) // len(weight))
        total, share = states.new_zeros(()), criterion.share
        grad_states, grad_weight, grad_bias = map(torch.zeros_like, (states, weight, bias))
        narrow = weight.to(dtype)
        room = states.new_empty(2, min(rows, len(states)), len(weight))  # used again by each chunk
        for at in range(0, len(states), rows):
            x, y = states[at : at + rows].to(dtype), target[at : at + rows].unsqueeze(1)
            scores, log_probs = room[:, : len(x)]  # (rows, V)
            scores.copy_(F.linear(x, narrow)).add_(bias)
            torch.log_softmax(scores, -1, out=log_probs)
            total += criterion(log_probs, y)
            wrong = torch.softmax(scores, -1, out=log_probs).sub_(share)  # p - t, in 3 cases
            wrong[:, criterion.padding_idx] += share
            wrong.scatter_add_(1, y, torch.full_like(wrong[:, :1], share + criterion.smoothing - 1))
            grad_bias += wrong.sum(0)
            wrong = wrong.to(dtype)
            grad_states[at : at + rows] = wrong @ narrow
            grad_weight += wrong.T @ x
        ctx.save_for_backward(grad_states, grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(ctx, scale):
        return *(scale * gradient for gradient in ctx.saved_tensors), None, None, None


# %% [markdown]
# Loss and gradients must be those of the form to read, with and without smoothing. (Seven tokens
# fit into one chunk. The test suite also tries several.)


# %%
@example
def check_the_loss_in_chunks_equals_the_form_to_read():
    for smoothing in (0.0, 0.3):
        criterion, proj = LabelSmoothing(10, PAD, smoothing), nn.Linear(4, 10).double()
        states = torch.randn(7, 4).double().requires_grad_()
        target = torch.tensor([4, 9, 3, 0, 5, 5, 1])
        inputs = states, proj.weight, proj.bias
        read = criterion(proj(states).log_softmax(-1), target)
        run = ChunkedLoss.apply(*inputs, target, criterion, torch.double)
        torch.testing.assert_close(run, read)
        ours, theirs = (torch.autograd.grad(loss, inputs) for loss in (run, read))
        torch.testing.assert_close(ours, theirs)


# %% [markdown]
# <a id="schedule"></a>
# ## Optimizer and schedule
#
# (§5.3) The optimizer is Adam with $\beta_1 = 0.9$, $\beta_2 = 0.98$ and $\epsilon = 10^{-9}$. It
# keeps a running mean of the gradient of each weight, and one of its square; $\beta_1$ and
# $\beta_2$ say how much of the old means is kept at each step. A step is the first divided by the
# root of the second, and $\epsilon$ keeps the divisor from being zero. (`fused` updates each
# weight in one pass over memory; without it training takes 1.0 times as long
# ([measured](#gains)).) Its learning rate first rises in a straight line, for `warmup` steps, and
# then falls with the inverse root of the step:
#
# $$\mathit{rate} = \mathit{factor} \cdot D^{-1/2} \cdot \min\bigl(\mathit{step}^{-1/2},\; \mathit{step} \cdot
# \mathit{warmup}^{-3/2}\bigr)$$


# %%
def rate(step: int, model_size: int, factor: float, warmup: int) -> float:
    """Learning rate at a step, counted from 1 (§5.3, Eq. 3); step 0 is taken as 1.

    ValueError unless `warmup` is at least 1.
    """
    require(warmup > 0, f"warmup must be at least 1 step, got {warmup}")
    step = max(step, 1)
    return factor * model_size**-0.5 * min(step**-0.5, step * warmup**-1.5)


def make_optimizer(model: nn.Module, model_size: int, factor: float, warmup: int, total: int = 0):
    """Adam and the schedule of §5.3; call `scheduler.step()` once after each update.

    With `total` updates given, the rate falls in a straight line to zero after the warm-up.
    """
    settings = {"lr": 1.0, "betas": (0.9, 0.98), "eps": 1e-9, "fused": True}
    optimizer = torch.optim.Adam(model.parameters(), **settings)
    curve = functools.partial(linear_rate, total=total) if total else rate
    schedule = functools.partial(curve, model_size=model_size, factor=factor, warmup=warmup)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: schedule(done + 1))


# %% [markdown]
# The paper's curve knows nothing of the end of a training. Where the number of updates is known
# beforehand, a straight line down to zero is a common choice today: the last, small steps settle
# what the large ones have left unsettled. (An *epoch* is one pass over the data. Epochs differ by
# a batch or two, so our number of updates is known to within a few.) Rise and peak are the same.
# Our models take the straight line; the copy task of Part 4 and the
# [demonstration](#demonstration) of Part 5 take the paper's curve. On real data both curves were
# tried ([Part 7](#choices)).


# %%
def linear_rate(step: int, model_size: int, factor: float, warmup: int, total: int) -> float:
    """The same rise and peak, then a straight line that is zero at step `total`, the last."""
    short = f"{total} updates in all leave nothing after a warm-up of {warmup}"
    require(total > warmup, f"{short}: shorten it (--warmup), or train longer (--epochs)")
    peak = rate(warmup, model_size, factor, warmup)
    return peak * max(0.0, min(step / warmup, (total - step) / (total - warmup)))


# %%
@example
def check_the_rate_peaks_at_the_end_of_warm_up():
    rates = [rate(step, 512, 1.0, 4000) for step in range(1, 20_001)]
    assert rates.index(max(rates)) + 1 == 4000
    assert math.isclose(max(rates), 1 / math.sqrt(512 * 4000))
    assert math.isclose(rates[1999], max(rates) / 2) and math.isclose(rates[15_999], max(rates) / 2)


# %%
@example
def three_schedules_figure():
    import pandas as pd

    rows = []
    for size, warmup in ((512, 4000), (512, 8000), (256, 4000)):
        for step in range(1, 20_001, 100):
            name = f"D {size}, warm-up {warmup}"
            rows.append(
                {"step": step, "learning rate": rate(step, size, 1.0, warmup), "model": name}
            )
    text = "Learning rate against the step for three settings: a straight rise, then a slow fall."
    return line_chart(pd.DataFrame(rows), "step", "learning rate", text, "model")


# %% [markdown]
# **Figure 12.** Three schedules. A longer warm-up gives a lower and later peak. A narrower model
# gets higher rates throughout.
#
# > **Why warm-up, what is `factor`, is it needed with pre-norm?** Adam divides each step by a
# > running estimate of the size of the gradient. After a few steps this estimate rests on a
# > handful of values, and a full step may go anywhere. The warm-up keeps steps short until the
# > estimate is sound. It also carries the paper's norm order through its large early gradients.
# > With the norm first it can often be left out, by Xiong et al.; [below](#warm-up-and-norm) both
# > orders are tried with and without it. `factor` scales the whole curve, and is ours: the
# > formula of the paper has none. The paper uses 1 and 4,000 steps; small models and short
# > trainings want fewer steps; our factors lie between 0.5 (the copy task) and 2 (the
# > demonstration).
#
# <a id="loop"></a>
# ## The training loop
#
# An update takes one or more *micro-batches*: when a batch does not fit into memory it is cut,
# and gradients accumulate. Several processes (*ranks*, in the language of *distributed data
# parallelism*, DDP, which [Part 5](#workers) explains) may work on one update, each with its own
# micro-batches. Whatever the cut, the result must be the same. So the loss is **summed** over
# tokens everywhere, and divided once, by the number of target tokens of the whole step.
#
# > **What is `ntokens` for?** It is this number. Batches will hold about equally many tokens
# > ([Part 5](#token-budget)), so a batch of long sentences holds few sentences. If we divided by
# > the number of sentences, the words of such a batch would weigh more. If we took the mean in
# > each micro-batch first, and then the mean of the means, the words of a small micro-batch would
# > weigh more. With several micro-batches and ranks the count runs over all of them. A rank may
# > have no tokens, at the end of an epoch for instance. If the whole step has none, something is
# > wrong.
#
# Without any of this, an update is five lines:


# %%
def plain_step(model, criterion, batch: Batch, optimizer) -> float:
    """One update from one batch, in its plainest form; the loss per token."""
    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)  # (B, T, D)
    loss = criterion(model.generator(states), batch.tgt_y) / batch.ntokens
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# %% [markdown]
# Repeat it, and you have a training. The first test of any new model is to let it learn one batch
# by heart. **Cost: a second or two.**


# %%
@example
def a_training_in_a_dozen_lines():
    model, criterion = make_model(12, 12, N=1, d_model=32, d_ff=64, h=2), LabelSmoothing(12, PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    sentences = pad_ids([[START, 4, 5, 6, 7, END], [START, 8, 9, END], [START, 11, 10, 4, END]])
    batch = Batch(sentences, sentences)
    losses = [plain_step(model, criterion, batch, optimizer) for _ in range(100)]
    return {f"loss at step {n}": round(losses[n - 1], 3) for n in (1, 10, 30, 100)}


# %% [markdown]
# Keep these lines in mind. What follows is the same, for several micro-batches and several ranks.
# If you use one process, read on at [evaluation](#evaluation) and come back when you need more.
#
# Model and loss form one module, because DDP prepares gradients for what happens inside one
# `forward`. `autocast` lets matrix products run in bf16 where the device gains from it. The
# softmax and all sums of the loss are computed in fp32, from scores that the product has rounded.


# %%
class SummedLoss(nn.Module):
    """Model and criterion as one module: a batch -> the sum of its loss, a scalar."""

    def __init__(self, model: EncoderDecoder, criterion: LabelSmoothing, autocast=None):
        super().__init__()
        self.model, self.criterion, self.autocast = model, criterion, autocast

    def forward(self, src, tgt, src_mask, tgt_mask, tgt_y) -> Tensor:
        with mixed_precision(src.device, self.autocast):
            states = self.model(src, tgt, src_mask, tgt_mask)  # (B, T, D)
            real, proj = tgt_y != self.criterion.padding_idx, self.model.generator.proj
            states, dtype = states[real], self.autocast or states.dtype
            inputs = states, proj.weight, proj.bias, tgt_y[real]  # (tokens, D) ... (tokens,)
            return ChunkedLoss.apply(*inputs, self.criterion, dtype)


# %%
def mixed_precision(device: torch.device, dtype: torch.dtype | None):
    """Autocast to `dtype` inside this context; None changes nothing."""
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


# %% [markdown]
# Sums over all processes are needed in several places: for tokens, for the loss, and for the
# question whether to stop. One function does it. Where there is only one process it has nothing
# to do.


# %%
def total_over_ranks(*values: float) -> list[float]:
    """Each value summed over all processes; unchanged where there is only one."""
    if not dist.is_initialized():
        return list(values)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    total = torch.tensor(values, dtype=torch.double, device=device)
    dist.all_reduce(total)
    return total.tolist()


# %% [markdown]
# How far the training has come is kept in one small record. It is saved with every checkpoint.


# %%
@dataclass
class TrainState:
    """Progress of a training: updates made, and what they consumed on all ranks."""

    step: int = 0  # updates
    epoch: int = 0  # full passes over the data
    position: int = 0  # updates inside the present epoch
    samples: int = 0  # sentences
    tokens: int = 0  # real target tokens


# %% [markdown]
# One update, in five moves: sum the gradients of all micro-batches; count tokens over all ranks;
# divide; check that the result is finite; step. DDP *averages* gradients over the ranks, so
# we multiply by their number.


# %%
def train_step(loss_model, batches: Sequence[Batch], optimizer, scheduler) -> dict[str, float]:
    """One update from micro-batches; returns loss per token, tokens, samples and gradient norm.

    ValueError when no rank has a target token; FloatingPointError when the gradient is not finite,
    before any parameter has changed.
    """
    loss_sum, several = 0.0, isinstance(loss_model, nn.parallel.DistributedDataParallel)
    for number, batch in enumerate(batches, 1):
        waits = several and number < len(batches)
        with loss_model.no_sync() if waits else contextlib.nullcontext():
            loss = loss_model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask, batch.tgt_y)
            loss.backward()
        loss_sum += loss.item()
    tokens = sum(batch.ntokens for batch in batches)
    samples = sum(len(batch.src) for batch in batches if batch.ntokens)
    loss_sum, tokens, samples = total_over_ranks(loss_sum, tokens, samples)
    require(tokens > 0, "a step without a single target token: are all targets empty?")
    gradients = [p.grad for p in loss_model.parameters() if p.grad is not None]
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    torch._foreach_mul_(gradients, ranks / tokens)
    norm = nn.utils.get_total_norm(gradients).item()
    if not math.isfinite(norm) or not math.isfinite(loss_sum):
        raise FloatingPointError(f"loss {loss_sum / tokens}, gradient norm {norm}")
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    return {"loss": loss_sum / tokens, "tokens": tokens, "samples": samples, "grad_norm": norm}


# %% [markdown]
# With one batch and one process it must do what the plain form does:


# %%
@example
def check_one_batch_and_one_process_make_a_plain_step():
    sentences, criterion = (
        pad_ids([[START, 4, 5, END], [START, 6, END]]),
        LabelSmoothing(13, PAD, 0.1),
    )
    batch, start = Batch(sentences, sentences), tiny_model(dropout=0.0).double()
    plain, full = copy.deepcopy(start), copy.deepcopy(start)
    loss = plain_step(plain, criterion, batch, torch.optim.SGD(plain.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(full.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    facts = train_step(SummedLoss(full, criterion), [batch], optimizer, scheduler)
    assert math.isclose(facts["loss"], loss)
    torch.testing.assert_close(plain.state_dict(), full.state_dict())


# %% [markdown]
# An epoch groups micro-batches into updates. The last group may be smaller than the others: it is
# used, not dropped, and does not leak into the next epoch.


# %%
def grouped(items: Iterable, size: int) -> Iterator[list]:
    """Lists of `size` items, the last one perhaps shorter."""
    iterator = iter(items)
    while group := list(itertools.islice(iterator, size)):
        yield group


# %% [markdown]
# The function that runs an epoch knows nothing of files, logs or progress bars. It reports each
# update to whoever called it, and stops when the answer is `True`. When an update fails because
# the loss is no longer a number, the error names the step. Nothing has been changed then: the
# check stands before the optimizer.


# %%
def run_epoch(
    batches: Iterable[Batch],
    loss_model,
    optimizer,
    scheduler,
    state: TrainState,
    accumulate: int = 1,
    on_update: Callable[[dict], bool | None] = lambda report: None,
) -> float:
    """Train on all batches, `accumulate` to an update; returns the mean loss per token.

    `on_update` receives the report of each update and may return True to stop early.
    """
    require(accumulate > 0, f"accumulate must be at least 1, got {accumulate}")
    loss_model.train()
    loss_sum = tokens = 0.0
    for group in grouped(batches, accumulate):
        lr = optimizer.param_groups[0]["lr"]  # of this update: the step sets that of the next
        try:
            report = train_step(loss_model, group, optimizer, scheduler)
        except FloatingPointError as error:
            place = f"training diverged at step {state.step + 1}"
            raise FloatingPointError(f"{place}: {error}") from None
        state.step, state.position = state.step + 1, state.position + 1
        state.samples += int(report["samples"])
        state.tokens += int(report["tokens"])
        loss_sum, tokens = loss_sum + report["loss"] * report["tokens"], tokens + report["tokens"]
        if on_update(report | {"step": state.step, "lr": lr}):
            break
    return loss_sum / max(tokens, 1.0)


# %% [markdown]
# The promise was: however a step is cut, the result is the same. We cut six sentences of
# different lengths into one, two and three micro-batches and compare all parameters after the
# update, except for the biases of the keys. Such a bias adds the same number to all scores of a
# query, which changes no weight. So its gradient is zero but for rounding noise, and Adam, which
# divides by the size of the gradient, can make a full step even of noise. (In fp32 it does. The
# check computes in double precision, where the noise is far below Adam's $\epsilon$, and leaves
# the biases out all the same.)


# %%
@example
def check_accumulation_equals_one_large_batch():
    sentences = [[START, *range(4, 5 + n), END] for n in range(6)]
    start, results = tiny_model(dropout=0.0).double(), []
    for size in (6, 3, 2):
        model = copy.deepcopy(start)
        loss_model = SummedLoss(model, LabelSmoothing(13, PAD, 0.1))
        optimizer, scheduler = make_optimizer(model, 16, 1.0, 10)
        state = TrainState()
        cut = [Batch(pad_ids(part), pad_ids(part)) for part in grouped(sentences, size)]
        run_epoch(cut, loss_model, optimizer, scheduler, state, accumulate=len(cut))
        assert state == TrainState(1, 0, 1, 6, sum(len(s) - 1 for s in sentences))
        felt = [p for name, p in model.named_parameters() if "linears.1.bias" not in name]
        results.append(nn.utils.parameters_to_vector(felt))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=1e-9)


# %% [markdown]
# <a id="evaluation"></a>
# ### Evaluation
#
# What is judged is the model, not the loss that trained it: no smoothing, no dropout, no
# gradients. We report the mean negative log-likelihood of a true word (in *nats*, since our
# logarithms are natural ones), and its exponential, the *perplexity*. A perplexity of 5 means:
# the model is as unsure as if it had to choose among five equally likely words.


# %%
@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside: eval mode, no gradients. Afterwards the model is in the mode that it was in."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


# %% [markdown]
# Likelihoods are summed over all real tokens and divided once, exactly as in training. A mean of
# the means of batches would depend on how the sentences were batched.


# %%
def evaluate_loss(
    model: EncoderDecoder, batches: Iterable[Batch], autocast=None
) -> dict[str, float]:
    """Negative log-likelihood per real target token, over all ranks, and perplexity."""
    nll_sum = tokens = 0.0
    with evaluating(model):
        for batch in batches:
            with mixed_precision(batch.src.device, autocast):
                states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
                log_probs = model.generator(states).flatten(0, 1)
            nll = F.nll_loss(log_probs, batch.tgt_y.flatten(), ignore_index=PAD, reduction="sum")
            nll_sum, tokens = nll_sum + nll.item(), tokens + batch.ntokens
    nll_sum, tokens = total_over_ranks(nll_sum, tokens)
    require(tokens > 0, "nothing to evaluate: no target token in any batch")
    return {"nll": nll_sum / tokens, "perplexity": math.exp(min(nll_sum / tokens, 100.0))}


# %%
@example
def check_a_model_without_opinion_has_perplexity_v():
    model = tiny_model().train()
    nn.init.zeros_(model.generator.proj.weight)
    nn.init.zeros_(model.generator.proj.bias)
    src = pad_ids([[5, 6, END], [7, END]])
    scores = evaluate_loss(model, [Batch(src, src)])
    assert model.training and math.isclose(scores["perplexity"], 13, rel_tol=1e-5)


# %% [markdown]
# <a id="checkpoints"></a>
# ### Checkpoints
#
# A training of an hour must survive a power cut. So the file is written under another name,
# forced to disk, and renamed: at every moment the old or the new checkpoint is whole. And a file
# that was damaged must be noticed: `torch.load` misses many kinds of damage. So the first line
# holds a SHA-256 sum of all that follows.

# %%
CHECKPOINT_MAGIC = b"annotated-transformer-1 "


def save_checkpoint(path: Path, content: dict) -> None:
    """Write tensors and plain values to `path`, in one piece or not at all."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    checksum = hashlib.sha256(payload).hexdigest().encode()
    write_atomically(path, CHECKPOINT_MAGIC + checksum + b"\n" + payload)


# %% [markdown]
# Why the detour through another name? Because writing is not one event. A process that dies
# between the first and the last byte leaves half a file, and if that file had the name of the
# checkpoint, the good one would be gone. `os.replace` is one event: the name points to the old
# bytes before it and to the new ones after it. A disk may be full. Then the error says how much
# room was wanted, and nothing is lost.


# %%
def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk, where the system can: a power cut keeps them too."""
    with contextlib.suppress(OSError):  # some systems refuse
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file beside `path`, sync it, rename it; OSError leaves `path` as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        room = f"{len(data):,} bytes wanted, {shutil.disk_usage(path.parent).free:,} free"
        told = f"{path} was not written ({error.strerror or error}; {room})"
        raise OSError(f"{told}; what was there is untouched") from None
    finally:
        beside.unlink(missing_ok=True)


# %% [markdown]
# Reading checks everything that writing has promised, and says what is wrong.


# %%
def load_checkpoint(path: Path) -> dict:
    """Read what `save_checkpoint` wrote; nothing in the file is ever executed.

    FileNotFoundError, or ValueError when the file is something else, cut short or damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no checkpoint at {path}: train one with `make train`, or name another"
        )
    first, _, payload = path.read_bytes().partition(b"\n")
    require(
        first.startswith(CHECKPOINT_MAGIC),
        f"{path} is not a checkpoint of this program; it was not loaded",
    )
    checksum = first.removeprefix(CHECKPOINT_MAGIC).decode(errors="replace")
    whole = hashlib.sha256(payload).hexdigest() == checksum
    require(
        whole, f"{path} is damaged or was cut short: its checksum does not fit; take an older one"
    )
    try:
        return torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError:
        message = f"{path} holds more than tensors and plain values; none of it was loaded"
        raise ValueError(message) from None


# %% [markdown]
# `weights_only=True` matters. A pickle, the format behind `torch.save`, may contain instructions,
# and a plain load would follow them. Here nothing is loaded but tensors and plain values. The
# check cuts a checkpoint short, flips one bit of it, and puts something else in its place; each
# must be refused.


# %%
@example
def check_a_checkpoint_survives_and_damage_is_noticed():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        save_checkpoint(path, {"weights": torch.arange(5), "step": 7})
        assert torch.equal(load_checkpoint(path)["weights"], torch.arange(5))
        good = path.read_bytes()
        for bad in (good[:-9], good[:300] + bytes([good[300] ^ 1]) + good[301:], b"pickle" + good):
            path.write_bytes(bad)
            try:
                load_checkpoint(path)
            except ValueError:
                continue
            raise AssertionError("a damaged checkpoint was loaded")


# %% [markdown]
# <a id="copy-task"></a>
# # Part 4. A first example
#
# <a id="copy-data"></a>
# ## The copy task
#
# Before real sentences, a task that a broken model cannot solve and a sound one learns in well
# under a minute: read a sequence of random symbols, write the same sequence. There is no grammar
# to guess and nothing to memorise. The decoder must find the right position in the source at
# every step, which is what cross-attention is for.


# %%
def data_gen(V: int, batch_size: int, nbatches: int, length: int = 10) -> Iterator[Batch]:
    """Batches of random sequences whose target is the source.

    Symbols run from the first that is not special to V - 1. Source (B, length), target
    (B, length + 2) with start and end.
    """
    require(len(SPECIALS) + 1 < V, f"V must be at least {len(SPECIALS) + 2}, got {V}")
    for _ in range(nbatches):
        src = torch.randint(len(SPECIALS), V, (batch_size, length))
        yield Batch(src, F.pad(F.pad(src, (1, 0), value=START), (0, 1), value=END))


# %% [markdown]
# The symbols run from the first that is not special, in training and in the test alike. This may
# seem too obvious to mention. But a copy task that trains with one range of symbols and is tested
# with another fails for a reason that has nothing to do with the model.
#
# <a id="greedy-decoding"></a>
# ## Greedy decoding
#
# The simplest way to use a model: write the most likely symbol, add it to what is written, ask
# again. We do it for a whole batch. A sentence that has ended leaves the batch, so it costs
# nothing while the others go on. Each step computes all that is written once more; [Part
# 6](#cached-decoding) saves this.


# %%
def greedy_decode(
    model: EncoderDecoder,
    src: Tensor,
    src_mask: Tensor,
    max_len: int,
    start_symbol: int,
    end_symbol: int | None = END,
) -> Tensor:
    """The most likely next symbol, again and again: src (B, S) -> ids (B, at most max_len).

    Row for row: start symbol, symbols, end symbol, then padding. Stops at the end symbol (never,
    where that is None) or at `max_len` symbols, the start included. Dropout is off meanwhile.
    """
    require(max_len > 0, f"max_len must be at least 1, got {max_len}")
    with evaluating(model):
        memory = model.encode(src, src_mask)
        written = torch.full((len(src), 1), start_symbol, device=src.device)
        active = torch.arange(len(src), device=src.device)  # sentences that have not ended
        while written.size(1) < max_len and len(active):
            causal = subsequent_mask(written.size(1)).to(src.device)
            states = model.decode(memory[active], src_mask[active], written[active], causal)
            following = model.generator(states[:, -1]).argmax(-1)  # (active,)
            written = F.pad(written, (0, 1), value=PAD)
            written[active, -1] = following
            if end_symbol is not None:
                active = active[following != end_symbol]
    return written


# %% [markdown]
# A batch must not change what a sentence gets. And an untrained model, which hardly ever says
# "end", must stop at the limit.


# %%
@example
def check_greedy_decoding_in_a_batch_equals_one_by_one():
    model, sentences = tiny_model(), [[4, 5, 6, 7, 8], [9, 4], [10, 7, 7]]
    batch = Batch(pad_ids(sentences))
    together = greedy_decode(model, batch.src, batch.src_mask, 12, START)
    assert together.size(1) <= 12
    for row, sentence in zip(together, sentences, strict=True):
        single = Batch(torch.tensor([sentence]))
        alone = greedy_decode(model, single.src, single.src_mask, 12, START)[0]
        assert torch.equal(row[: len(alone)], alone) and row[len(alone) :].eq(PAD).all()


# %% [markdown]
# <a id="copy-training"></a>
# ## Training it
#
# Two layers of width 64 in each stack are enough. After every hundred updates the model decodes a
# *validation set*, 500 sequences on which it is judged and never trained. Training ends when all
# of them have been copied without error twice in a row. **Cost: less than a minute on two CPU
# cores, 90 seconds at most.**

# %%
COPY_SYMBOLS = 15  # four special ones and eleven to copy


def copied_exactly(model: EncoderDecoder, batch: Batch) -> int:
    """How many sequences of the batch come out of greedy decoding as they went in."""
    T = batch.tgt.size(1)
    written = greedy_decode(model, batch.src, batch.src_mask, T + 1, START)
    written = F.pad(written, (0, T + 1 - written.size(1)), value=PAD)  # all may end too early
    wanted = torch.cat([batch.tgt, batch.tgt_y[:, -1:]], dim=1)  # (B, T + 1)
    return int((written == wanted).all(dim=1).sum())


# %%
@dataclass(frozen=True)
class CopyRun:
    """A trained copy model with its history."""

    model: EncoderDecoder
    losses: list[float] = field(repr=False)  # one for each update
    exact: list[int]  # of 500 validation sequences, after each 100 updates
    seconds: float


# %% [markdown]
# A function with a cache trains the model at the first call and hands out the same one
# afterwards. In a notebook, in a test and in a program this is the same, and no cell depends on a
# variable that another cell has left behind.


# %%
def new_copy_model(h: int, warmup: int = 200, norm_first: bool = True, N: int = 2) -> tuple:
    """A small model for the copy task, and what trains it: its loss, optimizer and scheduler."""
    torch.manual_seed(0)
    sizes = {"N": N, "d_model": 64, "d_ff": 256, "h": h, "norm_first": norm_first}
    model = make_model(COPY_SYMBOLS, COPY_SYMBOLS, dropout=0.0, **sizes)
    loss_model = SummedLoss(model, LabelSmoothing(COPY_SYMBOLS, PAD, 0.0))
    return model, loss_model, *make_optimizer(model, 64, 0.5, warmup)


@functools.cache
def copy_model(limit: float = 90.0) -> CopyRun:
    """Train the copy task until validation is perfect twice, for `limit` seconds at most."""
    begin, losses, exact = time.perf_counter(), [], []
    model, *training = new_copy_model(h=4)
    validation, state = next(data_gen(COPY_SYMBOLS, 500, 1)), TrainState()

    def keep(report: dict) -> bool:
        losses.append(report["loss"])
        return time.perf_counter() - begin > limit

    while time.perf_counter() - begin < limit and exact[-2:] != [500, 500]:
        run_epoch(data_gen(COPY_SYMBOLS, 64, 100), *training, state, on_update=keep)
        exact.append(copied_exactly(model, validation))
    return CopyRun(model, losses, exact, time.perf_counter() - begin)


# %%
@example
def train_the_copy_task():
    run = copy_model()
    return {"updates": len(run.losses), "exact of 500": run.exact, "seconds": round(run.seconds)}


# %% [markdown]
# The counts do not rise steadily: a model that has copied all 500 can fail on some of them a
# hundred updates later. This is why we ask for two perfect counts in a row. The loss would not
# tell: it is a mean over symbols, and hides the few sequences that still go wrong.
#
# <a id="copy-result"></a>
# ## What it learnt
#
# One hundred sequences that it has never seen, from a generator of another seed:


# %%
@example
def copies_of_unseen_sequences():
    torch.manual_seed(2017)
    run, unseen = copy_model(), next(data_gen(COPY_SYMBOLS, 100, 1))
    shown = greedy_decode(run.model, unseen.src[:1], unseen.src_mask[:1], 12, START)[0]
    print("read ", unseen.src[0].tolist())
    print("wrote", shown[1:-1].tolist())
    return f"{copied_exactly(run.model, unseen)} of 100 unseen sequences copied exactly"


# %% [markdown]
# And the way there:


# %%
@example
def copy_loss_figure():
    import pandas as pd

    means = [sum(ten) / len(ten) for ten in grouped(copy_model().losses, 10)]
    frame = pd.DataFrame({"update": range(10, 10 * len(means) + 1, 10), "loss per token": means})
    text = "Loss of the copy task, means of ten updates: a quick fall to nearly zero."
    return line_chart(frame, "update", "loss per token", text)


# %% [markdown]
# **Figure 13.** Loss of the copy task. It starts above log 15 ≈ 2.7, the loss of equal
# probabilities, since random weights already have opinions. It falls to nearly zero within some
# 150 updates; what follows is patience with the last few mistakes.
#
# <a id="break-it"></a>
# ## Break it
#
# What is a part good for? Take it out and see. We train four models like the one above, but with
# a single head of width 64, each for 400 updates: one whole; one without the mask over the
# future; one without positions; and one without the division by $\sqrt{K}$, which matters in wide
# heads. **Cost: about as much as the training above.**


# %%
class Unscaled(MultiHeadedAttention):
    """Attention that multiplies its queries by √K first, and so undoes the division."""

    def project(self, query, key, value):
        query, key, value = super().project(query, key, value)
        return query * math.sqrt(query.size(-1) / self.h), key, value


def broken(model: EncoderDecoder, part: str) -> None:
    """Take a part out of the model, where the part belongs to the model."""
    for module in list(model.modules()):
        if part == "division by √K" and isinstance(module, MultiHeadedAttention):
            module.__class__ = Unscaled  # another class, the same weights
    if part == "positions":
        model.src_embed[1] = model.tgt_embed[1] = nn.Identity()


# %%
def last_losses(batches: Iterable[Batch], *training) -> float:
    """Train on all batches; the mean loss of the last ten updates."""
    losses: list[float] = []
    keep = lambda report: losses.append(report["loss"])  # noqa: E731
    run_epoch(batches, *training, TrainState(), on_update=keep)
    return sum(losses[-10:]) / 10


def copy_without(part: str, updates: int) -> dict:
    """Train the copy task without a part; loss of the last ten updates, sequences copied of 200."""
    model, *training = new_copy_model(h=1)
    broken(model, part)
    batches = list(data_gen(COPY_SYMBOLS, 64, updates))
    if part == "mask over the future":
        for batch in batches:
            batch.tgt_mask = torch.ones_like(batch.tgt_mask)
    loss = round(last_losses(batches, *training), 3)
    exact = copied_exactly(model, next(data_gen(COPY_SYMBOLS, 200, 1)))
    return {"without": part, "loss": loss, "copied of 200": exact}


# %%
@example
def what_breaks():
    import pandas as pd

    updates = 40 if run_level() == "smoke" else 400
    parts = ("nothing", "mask over the future", "positions", "division by √K")
    return pd.DataFrame([copy_without(part, updates) for part in parts])


# %% [markdown]
# The first row is the whole model, and 400 updates need not be enough for its last mistakes.
# Without the mask the loss is low, and the model is worthless: it has learnt to read the answer
# from the future, and while it decodes there is no future to read. Without positions it sees
# which symbols the source has, but not in what order, so it can only guess. Without the division
# the scores are eight times as large at the start. The model learns nevertheless, but more
# slowly.
#
# <a id="warm-up-and-norm"></a>
# ### Is the warm-up needed?
#
# [Part 3](#schedule) left a question open. Here is a small trial: four layers in each stack, both
# orders of the norm, and the same curve of learning rates once with its rise and once without,
# starting at its peak. **Cost: half a minute to a minute.**


# %%
def copy_with(norm_first: bool, warm_up: bool, updates: int) -> float:
    """Train a deeper copy model; the mean loss of the last ten updates."""
    settings = {"h": 4, "N": 4, "norm_first": norm_first, "warmup": 200}
    _, loss_model, optimizer, scheduler = new_copy_model(**settings)
    if not warm_up:
        from_peak = lambda done: rate(max(done, 200), 64, 0.5, 200)  # noqa: E731
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, from_peak)
    batches = data_gen(COPY_SYMBOLS, 64, updates)
    return round(last_losses(batches, loss_model, optimizer, scheduler), 2)


@example
def what_a_warm_up_is_worth():
    updates, rows = 20 if run_level() == "smoke" else 300, []
    for norm_first, order in ((True, "before the sub-layer"), (False, "after the sum")):
        losses = [copy_with(norm_first, warm_up, updates) for warm_up in (True, False)]
        rows.append((order, *losses))
    columns = ["norm", "loss with warm-up", "loss without"]
    return table(rows, columns).set_caption(f"copy task, four layers, {updates} updates")


# %% [markdown]
# With the norm before the sub-layer the warm-up can be left out, at a small price. With the norm
# after the sum it cannot: without it the loss stays near $\log 12 = 2.48$, so all the model has
# learnt is which twelve symbols occur, eleven and the end. That is one model, one task and one
# *seed* (the number from which all random choices of a training follow). [Xiong et
# al.](https://arxiv.org/abs/2002.04745) report the same of larger models, and this is why we put
# the norm first.
#
# <a id="real-data"></a>
# # Part 5. Real data
#
# For the Transformer itself, read [tokens](#tokens), [vocabularies](#vocabularies),
# [batches](#token-budget) and [translating](#translate). The rest of this part keeps a long
# training alive, on one machine or several, and can be skipped at first.
#
# <a id="corpus"></a>
# ## A corpus
#
# (§5.1) The paper trains on 4.5 million sentence pairs, English and German, and for French on 36
# million. We take Multi30k: 29,000 descriptions of photographs in English, with German
# translations. It is small enough for a laptop, and real: compounds, verbs at the end of the
# clause, misspelt words. We translate from German into English, the paper from English. So every
# reader of this page can judge what the model writes.
#
# Multi30k is looked for in the folder that `MULTI30K_DIR` names. Without that variable it is
# looked for in `.data/multi30k`, and then downloaded from a pinned commit of its public
# repository. Each file is checked against its SHA-256 sum. Where it cannot be had, a small
# built-in corpus takes its place, and every table and figure says so. (A folder that you name
# yourself must have it: an error says what is missing.)

# %%
Pair = tuple[str, str]  # a source sentence and its translation


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs by split: "train", "val" and one or more whose name begins with "test"."""

    name: str
    languages: tuple[str, str]  # codes of source and target, such as ("de", "en")
    splits: dict[str, list[Pair]] = field(repr=False)

    def tests(self) -> list[str]:
        return [split for split in self.splits if split.startswith("test")]


# %% [markdown]
# Reading text has its traps. Python's `splitlines` also cuts at rarer characters, such as U+2028:
# here lines end at `\n` and nowhere else. A file that was cut short in a download must not pass
# for a smaller corpus. And a checksum tells the published file from one that somebody has edited.
# Whatever is wrong, the error names the file.


# %%
class CorpusError(ValueError):
    """A corpus that cannot be used: the message names the file, the fault and the way out."""


# %% [markdown]
# The reader below takes plain or gzipped text. The checksum is taken over the text itself, so
# that it does not matter which of the two a folder holds.


# %%
def read_lines(path: Path, checksum: str | None = None) -> list[str]:
    """Lines of a UTF-8 text file, gzipped or not; `checksum` is of the text as plain bytes.

    CorpusError for a missing, truncated, altered or wrongly encoded file.
    """
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise CorpusError(f"{path} is missing") from None
    except (EOFError, OSError, zlib.error) as error:
        raise CorpusError(f"{path} cannot be read ({error}): fetch it again") from None
    if checksum is not None and hashlib.sha256(text).hexdigest() != checksum:
        raise CorpusError(f"{path} is not the published file (its SHA-256 differs): fetch it again")
    try:
        return text.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise CorpusError(f"{path}, line {line}: not UTF-8; convert the file first") from None


# %% [markdown]
# A split is two files, and line $n$ of one belongs to line $n$ of the other. If their lengths
# differ, every pair after the missing line is wrong, and training on it would teach nonsense
# without any further sign.


# %%
def find_text(folder: Path, name: str) -> Path:
    """`name` in `folder`, plain or gzipped."""
    plain, zipped = folder / name, folder / f"{name}.gz"
    return plain if plain.is_file() or not zipped.is_file() else zipped


def read_split(folder: Path, split: str, languages: tuple[str, str], sums=None) -> list[Pair]:
    """Sentence pairs of one split; `sums` maps names such as train.de to checksums."""
    names = [f"{split}.{language}" for language in languages]
    texts = [read_lines(find_text(folder, name), (sums or {}).get(name)) for name in names]
    if len(texts[0]) != len(texts[1]):
        counts = " and ".join(f"{len(t)} lines in {n}" for t, n in zip(texts, names, strict=True))
        raise CorpusError(f"{folder}: {counts}; line n of both must be the same sentence")
    if texts[0] == [""]:
        raise CorpusError(f"{folder}: split {split} is empty; it needs one sentence a line")
    return [(source.strip(), target.strip()) for source, target in zip(*texts, strict=True)]


# %%
def read_corpus(folder: Path, languages: tuple[str, str]) -> Corpus:
    """A reader's own corpus: train, val and test files of two languages, such as train.de."""
    if not folder.is_dir():
        wanted = f"train, val and test files, such as train.{languages[0]}"
        raise CorpusError(f"no folder {folder}: it should hold {wanted}")
    tests = sorted({path.name.split(".")[0] for path in folder.glob("test*.*")}) or ["test"]
    for name in (f"{split}.{lang}" for split in ["train", "val", *tests] for lang in languages):
        if not find_text(folder, name).is_file():
            found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            raise CorpusError(f"{folder / name} is missing; the folder has {found} (--languages?)")
    splits = {split: read_split(folder, split, languages) for split in ["train", "val", *tests]}
    return Corpus(folder.resolve().name, languages, splits)


# %% [markdown]
# The download is tried three times. A file appears in the cache when it is whole and its checksum
# fits, and not before.

# %% tags=["hide-input"]
MULTI30K_COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
MULTI30K_URL = (
    f"https://raw.githubusercontent.com/multi30k/dataset/{MULTI30K_COMMIT}/data/task1/raw"
)
MULTI30K_SPLITS = ("train", "val", "test_2016_flickr", "test_2017_flickr")
MULTI30K_SUMS = {  # SHA-256 of the unzipped files
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2017_flickr.de": "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081",
    "test_2017_flickr.en": "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98",
}


# %%
def fetch(url: str, path: Path, attempts: int = 3, pause: float = 1.0) -> None:
    """Download a file to `path`; CorpusError with URL and reason when no attempt succeeds."""
    for attempt in range(1, attempts + 1):
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return write_atomically(path, answer.read())
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            reason = error
        if attempt < attempts:
            time.sleep(pause * attempt)
    raise CorpusError(f"{url} could not be fetched in {attempts} attempts: {reason}")


# %%
def download_multi30k(folder: Path, url: str = MULTI30K_URL, pause: float = 1.0) -> None:
    """Fetch what is missing of Multi30k into `folder`; no file stays whose checksum is wrong."""
    for name, checksum in MULTI30K_SUMS.items():
        path, arriving = folder / f"{name}.gz", folder / f"arriving-{name}.gz"
        if find_text(folder, name).is_file():
            continue
        try:
            fetch(f"{url}/{name}.gz", arriving, pause=pause)
            read_lines(arriving, checksum)
            os.replace(arriving, path)
        finally:
            arriving.unlink(missing_ok=True)


# %% [markdown]
# From here on it is a corpus like any other, except that its checksums are known. It has two test
# splits, of 2016 and 2017, and both are scored.


# %%
def read_multi30k(folder: Path, languages: tuple[str, str] = ("de", "en")) -> Corpus:
    """Multi30k from a folder that has its files."""
    read = functools.partial(read_split, folder, languages=languages, sums=MULTI30K_SUMS)
    return Corpus("Multi30k", languages, {split: read(split) for split in MULTI30K_SPLITS})


# %% [markdown]
# <a id="built-in-captions"></a>
# ### A corpus that needs no download
#
# A program that cannot reach its data should still run from its first line to its last. So we
# carry a small corpus with us. It is not a file but a grammar, and it writes captions of pictures
# in German and in English at once. It serves where there is no network, and in the tests, where a
# result must not depend on a download. It is a toy. A model that does well here has learnt this
# grammar and not German, and its score says nothing about Multi30k. You can go on to [the next
# section](#finding-a-corpus): nothing later depends on how the grammar works.
#
# Still, the toy asks for real work. Every German noun has a *gender* (m, f or n). Articles and
# adjectives change with the gender, with *number* (one or many), and with *case*, which shows the
# noun's role in the sentence. Three cases occur here: nominative (*nom*) for the subject,
# accusative (*acc*) for the direct object and for a direction, dative (*dat*) for whoever
# receives something, for a place, and after some verbs. So one English "the" stands for five
# German forms, and one "red" for five others. Verbs move to the end of a clause, and some of them
# come in two pieces. A model that copies word by word gets none of this right.
#
# All tables below are text: a key, a colon, then entries separated by semicolons. A new line or a
# bar starts the next key. Here the key is a kind of noun: child, adult, beast, thing, reading,
# wear, food, vehicle or place. An entry gives gender, singular and plural, then the English word,
# with its plural where "s" does not do. Some nouns, such as *Junge*, take an ending in the
# singular too, in every case but the nominative.

# %% tags=["hide-input"]
CAPTION_NOUNS = """
c: n Kind Kinder child/children; m Junge/Jungen Jungen boy; n Mädchen Mädchen girl
a: m Mann Männer man/men; f Frau Frauen woman/women; m Lehrer Lehrer teacher
a: m Gärtner Gärtner gardener; f Tänzerin Tänzerinnen dancer
a: f Kellnerin Kellnerinnen waitress/waitresses
b: m Hund Hunde dog; f Katze Katzen cat; n Kätzchen Kätzchen kitten; f Ziege Ziegen goat
b: m Welpe/Welpen Welpen puppy/puppies; m Affe/Affen Affen monkey
t: m Ball Bälle ball; f Tasche Taschen bag; n Kissen Kissen pillow; m Korb Körbe basket
t: f Decke Decken blanket; m Drachen Drachen kite; f Flasche Flaschen bottle
r: n Buch Bücher book; f Zeitung Zeitungen newspaper; m Brief Briefe letter
r: n Heft Hefte notebook
w: m Hut Hüte hat; f Jacke Jacken jacket; n Hemd Hemden shirt; m Mantel Mäntel coat
w: f Mütze Mützen cap; m Schal Schals scarf/scarves
f: m Apfel Äpfel apple; f Birne Birnen pear; n Brötchen Brötchen roll; f Orange Orangen orange
f: m Kuchen Kuchen cake; f Banane Bananen banana
v: n Auto Autos car; n Fahrrad Fahrräder bicycle; m Roller Roller scooter
v: m Traktor Traktoren tractor
p: m Park Parks park; m Garten Gärten garden; m Wald Wälder forest; m See Seen lake
p: m Baum Bäume tree; f Wiese Wiesen meadow; f Kirche Kirchen church; f Schule Schulen school
p: f Brücke Brücken bridge; f Mauer Mauern wall; f Straße Straßen street
p: f Bank Bänke bench/benches; n Haus Häuser house; n Zelt Zelte tent; n Tor Tore gate
p: n Dorf Dörfer village; m Brunnen Brunnen fountain"""

# %% [markdown]
# The kind of a noun decides which adjectives suit it. It also decides how they translate: *klein*
# is "little" for a child and "small" for a bag, *groß* is "tall" for a woman and "big" for a dog.
# A place needs a preposition, and there German says with the case what English says with another
# word. *Im Park* is dative and means "in the park"; *in den Park* is accusative and means "into
# the park". The table of articles has a key for each determiner and case. Its entries, for m, f,
# n and the plural, are the article and the ending of the adjective after it.

# %% tags=["hide-input"]
CAPTION_ADJECTIVES = """
c: klein little; fröhlich cheerful; müde tired; neugierig curious; hungrig hungry; blond blond
a: jung young; alt old; groß tall; müde tired; fröhlich cheerful; freundlich friendly
b: klein little; groß big; müde tired; hungrig hungry; schwarz black; weiß white; braun brown
t: klein small; groß big; alt old; neu new; rot red; blau blue; grün green; gelb yellow
r: alt old; neu new; dünn thin; interessant interesting
w: alt old; neu new; warm warm; rot red; blau blue; grün green; schwarz black
f: klein small; groß big; süß sweet; frisch fresh
v: alt old; neu new; rot red; blau blue; grün green; schwarz black
p: klein small; groß big; schön beautiful"""
CAPTION_PLACES = """
dat in in: Park; Garten; Wald; Dorf; Zelt | dat auf on: Wiese; Straße; Brücke; Bank
dat an by: See; Brunnen; Tor; Mauer | dat vor in_front_of: Haus; Kirche; Schule; Zelt; Tor
dat hinter behind: Haus; Mauer; Baum; Schule | dat neben next_to: Bank; Brunnen; Baum; Auto; Fahrrad
dat unter under: Baum; Brücke | dat zwischen between: Baum; Haus; Bank; Auto
acc in into: Park; Garten; Wald; Haus | acc durch through: Park; Wald; Garten; Dorf
acc um around: Haus; See; Baum; Kirche | acc über across: Wiese; Straße; Brücke"""
CAPTION_ARTICLES = """
a nom: ein er; eine e; ein es | a acc: einen en; eine e; ein es
a dat: einem en; einer en; einem en | the nom: der e; die e; das e; die en
the acc: den en; die e; das e; die en | the dat: dem en; der en; dem en; den en
two nom: zwei e | two acc: zwei e | two dat: zwei en | three nom: drei e
three acc: drei e | three dat: drei en | nom: - e | acc: - e | dat: - en"""

# %% [markdown]
# The key of a verb says first what the verb needs: a place, a direction, an object in the
# accusative or the dative, or a gift and a receiver (`hold` and `reaction` are groups that we
# shall want by name). Then come the kinds of noun that may do it, and the kinds to which it may
# be done; so people read newspapers, dogs chase cats, and no table eats. An entry has the German
# forms for one and for many. A third German word is a particle, and such a verb is *separable*.
# In a main clause the particle goes to the far end (*hebt … auf*); at the end of a subordinate
# clause it joins its verb (*aufhebt*).
#
# *Trägt* is "wearing" with clothes and "carrying" with things, so one word alone does not always
# settle its translation. The whole sentence does. German has one present tense where English has
# two, and English always takes the progressive here: each German caption has one English answer
# and no other.

# %% tags=["hide-input"]
CAPTION_VERBS = """
place cab -: sitzt sitzen sitting; steht stehen standing; wacht wachen auf waking_up
place cab -: schläft schlafen sleeping; wartet warten waiting; liegt liegen lying
place ca -: singt singen singing; tanzt tanzen dancing; ruht ruhen resting
place cb -: spielt spielen playing; läuft laufen herum running_around
direction cab -: rennt rennen running; schleicht schleichen sneaking
direction ca -: geht gehen walking; spaziert spazieren strolling
reaction ca -: lacht lachen laughing; lächelt lächeln smiling; jubelt jubeln cheering
acc ca trwf: hebt heben auf picking_up; packt packen ein packing_up; sucht suchen looking_for
acc ca w: zieht ziehen an putting_on; zieht ziehen aus taking_off | acc ca r: liest lesen reading
acc ca b: streichelt streicheln petting; füttert füttern feeding | acc b f: frisst fressen eating
acc a trf: kauft kaufen buying; wirft werfen weg throwing_away | acc b b: jagt jagen chasing
acc ca v: wäscht waschen washing; schiebt schieben pushing | acc ca ca: umarmt umarmen hugging
acc ca f: isst essen eating; isst essen auf eating_up | acc ca w: probiert probieren an trying_on
acc ca cabtvw: schaut schauen an looking_at | acc a v: repariert reparieren repairing
hold ca trf: trägt tragen carrying; bringt bringen mit bringing_along
hold ca w: trägt tragen wearing
dat ca ca: hilft helfen helping; dankt danken thanking; winkt winken zu waving_at
dat cab cab: folgt folgen following; schaut schauen zu watching
dat ca ca: hört hören zu listening_to
gift a r: liest lesen vor reading; schickt schicken sending | gift cab t: bringt bringen bringing
gift ca trf: gibt geben giving; zeigt zeigen showing | gift a tf: verkauft verkaufen selling"""

# %% [markdown]
# Tables of text are easy to read and to extend, and a few lines of code cut them up. An
# underscore stands for the space in an English word of two parts, such as *picking up*.


# %% tags=["hide-input"]
@functools.cache
def caption_table(text: str) -> dict[str, list[tuple[str, ...]]]:
    """A table of text as lists of entries by key; an underscore in a word is a space."""
    lists: dict[str, list[tuple[str, ...]]] = {}
    for row in re.split(r"\n|\|", text.strip()):
        key, entries = row.split(":")
        for entry in entries.split(";"):
            words = tuple(word.replace("_", " ") for word in entry.split())
            lists.setdefault(key.strip(), []).append(words)
    return lists


# %% [markdown]
# Now the trick of a *synchronous* grammar: choose the words once, then write them down twice. A
# phrase holds them as they stand in the tables, and each language dresses them by its own rules.
# German asks for the case and finds article and ending. English needs the plural, and the choice
# between "a" and "an".


# %% tags=["hide-input"]
class CaptionPhrase(NamedTuple):
    """A noun with its article and adjective, in no language yet."""

    determiner: str  # a, the, two, three, or nothing for a bare plural
    adjective: tuple[str, ...]  # German and English, or two empty strings
    noun: tuple[str, ...]  # kind, gender, German, German plural, English
    plural: bool

    def german(self, case: str) -> str:
        """The phrase in the case nom, acc or dat."""
        _, gender, singular, plural, _ = self.noun
        noun = singular.split("/")[0 if case == "nom" else -1]
        if self.plural:
            noun = plural + "n" * (case == "dat" and plural[-1] not in "ns")
        forms = caption_table(CAPTION_ARTICLES)[f"{self.determiner} {case}".strip()]
        article, ending = forms[-1 if self.plural else "mfn".index(gender)]
        adjective = self.adjective[0] and self.adjective[0].removesuffix("e") + ending
        return " ".join(word for word in (article, adjective, noun) if word.strip("-"))

    def pronoun(self, case: str) -> str:
        """The relative pronoun for this noun, which looks like its definite article."""
        return self._replace(determiner="the").german(case).split()[0]

    def english(self) -> str:
        """The phrase in English, where it has one form."""
        singular, *plural = self.noun[4].split("/")
        noun = (plural or [singular + "s"])[0] if self.plural else singular
        words = f"{self.adjective[1]} {noun}".strip()
        article = "an" if self.determiner == "a" and words[0] in "aeiou" else self.determiner
        return f"{article} {words}".strip()


# %% [markdown]
# Phrases are drawn at random, a place with the preposition that suits it. Clothes agree in number
# with whoever wears them (see below), so that two men take off their hats and not three caps.
# German melts some articles into the preposition: *in dem Park* becomes *im Park*.


# %% tags=["hide-input"]
def caption_phrase(
    rng: random.Random, kinds: str, plural: bool | None = None, name: str | None = None
) -> CaptionPhrase:
    """A random phrase about a noun of one of the kinds, or about the one called `name`."""
    nouns = [(kind, *noun) for kind in kinds for noun in caption_table(CAPTION_NOUNS)[kind]]
    noun = rng.choice([noun for noun in nouns if name in (None, noun[2])])
    many = rng.random() < 0.3 if plural is None else plural
    choices = ["the", "two", "three", ""] if plural is None else ["the", ""]
    determiner = rng.choice(choices if many else ["a", "a", "the"])
    adjective = rng.choice(caption_table(CAPTION_ADJECTIVES)[noun[0]])
    return CaptionPhrase(determiner, adjective if rng.random() < 0.5 else ("", ""), noun, many)


def caption_place(rng: random.Random, case: str) -> tuple[CaptionPhrase, str, str]:
    """A random place, for "dat", or direction, for "acc": phrase, German, English."""
    places = caption_table(CAPTION_PLACES)
    key = rng.choice([key for key in places if key.startswith(case)])
    _, german, english = key.replace("_", " ").split(" ", 2)
    name = rng.choice(places[key])[0]
    phrase = caption_phrase(rng, "pv", german == "zwischen", name)
    german = re.sub("^([ai])n dem ", r"\1m ", f"{german} {phrase.german(case)}")
    return phrase, re.sub("^in das ", "ins ", german), f"{english} {phrase.english()}"


# %% [markdown]
# A clause is a verb with all that it asks for, and perhaps a place. English keeps one order.
# German has three. In a main clause the verb stands second. If a place or another clause opens
# the sentence, that counts as the first element, and the verb stands before the subject. In a
# subordinate clause the verb comes last, joined to its particle. Between verb and end, German
# likes what is new to come late: *liest im Park ein Buch*, but *liest das Buch im Park*. A clause
# also lists its *combinations*: each adjective with its noun, and the verb with its object. They
# will decide who goes into training.


# %% tags=["hide-input"]
class CaptionClause(NamedTuple):
    """A subject and what it does, in no language yet."""

    subject: CaptionPhrase
    verb: tuple[str, ...]  # German for one and for many, perhaps a particle; English
    objects: list[tuple[CaptionPhrase, str, str]]  # phrase, its German case, English preposition
    place: list[tuple[CaptionPhrase, str, str]]  # one or none: phrase, German, English

    def german(self, order: str, subject: str | None = None) -> str:
        """The clause with its verb "second", "first" or "last"; `subject` replaces its own."""
        subject = subject or self.subject.german("nom")
        verb, particle = self.verb[self.subject.plural], "".join(self.verb[2:-1])
        middle = [phrase.german(case) for phrase, case, _ in self.objects]
        new = bool(middle) and self.objects[-1][0].determiner != "the"  # what is new comes late
        middle[len(middle) - new : len(middle) - new] = [german for _, german, _ in self.place]
        if order == "last":
            return " ".join([subject, *middle, particle + verb])
        start = [subject, verb] if order == "second" else [verb, subject]
        return " ".join([*start, *middle, particle]).strip()

    def english(self, subject: str | None = None) -> str:
        """The clause in English; `subject` replaces its own."""
        be = "are" if self.subject.plural else "is"
        words = [subject or self.subject.english(), be, self.verb[-1]]
        words += [f"{to} {phrase.english()}".strip() for phrase, _, to in reversed(self.objects)]
        return " ".join([*words, *(english for _, _, english in self.place)])

    def phrases(self) -> list[CaptionPhrase]:
        """Subject, objects and place."""
        return [self.subject, *(phrase for phrase, *_ in [*self.objects, *self.place])]

    def combinations(self) -> set[tuple[str, str]]:
        """English pairs of adjective and noun, and of verb and (direct) object."""
        pairs = {(phrase.adjective[1], phrase.noun[4]) for phrase in self.phrases()}
        pairs |= {(self.verb[-1], phrase.noun[4]) for phrase, *_ in self.objects[-1:]}
        return {(first, noun.split("/")[0]) for first, noun in pairs if first}


# %% [markdown]
# To make a clause, draw a kind of verb, then a verb of this kind, and then only what this verb
# allows. Where two clauses share a subject, the verb is one that this subject can do. Three
# clauses in ten have a place that they do not need.


# %% tags=["hide-input"]
@functools.cache
def caption_verbs(frame: str, doer: str = "") -> list[tuple[str, str, tuple[str, ...]]]:
    """Verbs of a frame that suit a doer: kinds of doers, kinds of objects, forms."""
    keys = [(*key.split(), verbs) for key, verbs in caption_table(CAPTION_VERBS).items()]
    known = [row for row in keys if row[0] == frame and doer in row[1]]
    return [(doers, kinds, verb) for _, doers, kinds, verbs in known for verb in verbs]


def caption_clause(
    rng: random.Random, frames: str, subject: CaptionPhrase | None = None
) -> CaptionClause:
    """A random clause whose verb has one of the frames, about `subject` if there is one."""
    frame = rng.choice(frames.split())
    doers, kinds, verb = rng.choice(caption_verbs(frame, subject.noun[0] if subject else ""))
    subject, objects, place = subject or caption_phrase(rng, doers), [], []
    if frame == "gift":
        objects.append((caption_phrase(rng, "ca"), "dat", "to"))
    if kinds != "-":
        thing = caption_phrase(rng, kinds, subject.plural if kinds == "w" else None)
        objects.append((thing, "dat" if frame == "dat" else "acc", ""))
    if frame in ("place", "direction") or rng.random() < 0.3:
        place = [caption_place(rng, "acc" if frame == "direction" else "dat")]
    return CaptionClause(subject, verb, objects, place)


# %% [markdown]
# A relative clause stands inside another sentence and has its verb at the end. The pronoun before
# it has the gender of the noun outside and the case of its part inside: *der Ball, den das
# Mädchen aufhebt, ist rot*. English puts "that" or "who" there whatever the case. Only things are
# described as objects, because in *die Frau, die das Kind umarmt* nobody can tell who hugs.

# %% tags=["hide-input"]
CAPTION_FRAMES = "place direction acc acc hold dat gift"


def caption_described(rng: random.Random) -> tuple[str, str, list[CaptionClause]]:
    """Somebody who holds or wears something does something else."""
    inner = caption_clause(rng, "hold")._replace(place=[])
    outer = caption_clause(rng, "direction acc dat gift", inner.subject)
    der, head = inner.subject.pronoun("nom"), inner.subject
    german = outer.german("second", f"{head.german('nom')}, {inner.german('last', der)},")
    return german, outer.english(f"{head.english()} {inner.english('who')}"), [inner, outer]


def caption_quality(rng: random.Random, of_object: bool) -> tuple[str, str, list[CaptionClause]]:
    """Somebody who does something, or something to which it is done, has a quality."""
    clause = inner = caption_clause(rng, "acc hold gift" if of_object else CAPTION_FRAMES)
    head = clause.objects[-1][0] if of_object else clause.subject
    if not head.adjective[0] or (of_object and head.noun[0] in "cab"):
        return caption_quality(rng, of_object)  # nothing to say, or two readings: draw again
    der = head.pronoun("acc" if of_object else "nom")
    who = "who" if head.noun[0] in "ca" else "that"
    if of_object:
        inner, doer = clause._replace(objects=clause.objects[:-1]), clause.subject
        der, who = f"{der} {doer.german('nom')}", f"{who} {doer.english()}"
    adjective, be = head.adjective, ("sind", "are") if head.plural else ("ist", "is")
    head = head._replace(determiner="the", adjective=("", ""))
    german = f"{head.german('nom')}, {inner.german('last', der)}, {be[0]} {adjective[0]}"
    return german, f"{head.english()} {inner.english(who)} {be[1]} {adjective[1]}", [clause]


# %% [markdown]
# A caption has one of eight shapes. It may be one clause alone, or one with its place in front;
# then the verb comes before the subject. It may be two clauses, the second after *während*
# (while) or *weil* (because) with its verb last. Or the clause with *während* stands in front,
# and the main clause after it begins with its verb. The other three are the relative clauses
# above.


# %% tags=["hide-input"]
def caption_sentence(rng: random.Random) -> tuple[str, str, list[CaptionClause]]:
    """A random caption in German and in English, without full stop, and its clauses."""
    shape = rng.choice("alone alone place while während because holder subject object".split())
    if shape == "holder":
        return caption_described(rng)
    if shape in ("subject", "object"):
        return caption_quality(rng, shape == "object")
    frames = {"place": "place", "because": "reaction"}.get(shape, CAPTION_FRAMES)
    one, two = caption_clause(rng, frames), caption_clause(rng, CAPTION_FRAMES)
    if shape == "alone":
        return one.german("second"), one.english(), [one]
    if shape == "place":
        (_, german, english), rest = one.place[0], one._replace(place=[])
        return f"{german} {rest.german('first')}", f"{english}, {rest.english()}", [one]
    if shape == "während":
        german = f"während {two.german('last')}, {one.german('first')}"
        return german, f"while {two.english()}, {one.english()}", [one, two]
    weil = "weil" if shape == "because" else "während"
    german = f"{one.german('second')}, {weil} {two.german('last')}"
    return german, f"{one.english()} {shape} {two.english()}", [one, two]


# %% [markdown]
# Last, the splits. A test on captions that resemble the training captions rewards a good memory.
# So we draw a set of combinations, such as *new* with *kite* or *selling* with *cake*, and keep
# every caption that has one of them out of training. The captions that we test on each have at
# least one.


# %% tags=["hide-input"]
@functools.cache
def caption_held_out() -> frozenset[tuple[str, str]]:
    """Pairs that training never sees: English (adjective, noun) and (verb, object)."""
    rng = random.Random(2017)
    clauses = [clause for _ in range(1000) for clause in caption_sentence(rng)[2]]
    pairs = sorted(set().union(*(clause.combinations() for clause in clauses)))
    return frozenset(rng.sample(pairs, len(pairs) // 12))


def caption_tokens(text: str) -> list[str]:
    """Words and marks of punctuation."""
    return re.findall(r"\w+|[^\w\s]", text)


# %% [markdown]
# Every word of a held-out caption occurs at least three times in training, in the same form. Only
# the combination is new. To translate such a caption, the model must have learnt the parts, and
# how parts are put together.


# %% tags=["hide-input"]
@functools.cache
def builtin_corpus() -> dict[str, list[tuple[str, str]]]:
    """German and English captions: 3,000 pairs in train, 200 each in val and test.

    Every pair of val and test has a combination of `caption_held_out`, no pair of train does.
    """
    rng, seen, old, new = random.Random(2017), set(), [], []
    while len(old) < 3000 or len(new) < 600:
        *texts, clauses = caption_sentence(rng)
        german, english = (text[0].upper() + text[1:] + "." for text in texts)
        phrases = {id(phrase): phrase.noun for clause in clauses for phrase in clause.phrases()}
        fits = all(5 <= len(caption_tokens(text)) <= 16 for text in (german, english))
        if german in seen or not fits or len(set(phrases.values())) < len(phrases):
            continue  # known already, too long, or one noun twice
        seen.add(german)
        held_out = any(clause.combinations() & caption_held_out() for clause in clauses)
        (new if held_out else old).append((german, english))
    train = old[:3000]
    counts = collections.Counter(w for pair in train for text in pair for w in caption_tokens(text))
    new = [pair for pair in new if all(counts[w] > 2 for t in pair for w in caption_tokens(t))]
    return {"train": train, "val": new[:200], "test": new[200:400]}


# %%
BUILTIN = "built-in captions"


def read_builtin(languages: tuple[str, str] = ("de", "en")) -> Corpus:
    """The built-in captions, in either direction."""
    if set(languages) != {"de", "en"}:
        raise CorpusError(f"the {BUILTIN} are German and English, not {' and '.join(languages)}")
    way = 1 if languages == ("de", "en") else -1
    splits = {s: [pair[::way] for pair in pairs] for s, pairs in builtin_corpus().items()}
    return Corpus(BUILTIN, languages, splits)


# %% [markdown]
# <a id="finding-a-corpus"></a>
# ### Finding one
#
# Where is a corpus looked for? If you ask for Multi30k by name, you get it, or an error that says
# what to do. If you leave the choice open and Multi30k is out of reach, you get the built-in
# captions, and a message. A `MULTI30K_DIR` that does not hold the corpus is an error in either
# case.


# %%
def find_multi30k(languages=("de", "en"), cache: Path = Path(".data/multi30k")) -> Corpus:
    """Multi30k from MULTI30K_DIR, the cache or the network; CorpusError where all fail."""
    folder = os.environ.get("MULTI30K_DIR")
    try:
        if not folder:
            download_multi30k(cache)
        return read_multi30k(Path(folder or cache), languages)
    except CorpusError as error:
        files = f"{', '.join(MULTI30K_SPLITS)} (.de.gz and .en.gz) from {MULTI30K_URL}"
        place = f"{folder}, which MULTI30K_DIR names" if folder else f"{cache}"
        way_out = f"put {files} into {place}" + ("" if folder else " or where MULTI30K_DIR says")
        raise CorpusError(f"Multi30k is out of reach: {error}. The way out: {way_out}") from None


# %% [markdown]
# The last step decides by name. It is cached, so that a notebook reads its corpus once.


# %%
@functools.cache
def find_corpus(name: str = "auto", languages: tuple[str, str] = ("de", "en")) -> Corpus:
    """A corpus by name: "multi30k", "builtin", "auto" (the first, else the second) or a folder."""
    if name == "builtin":
        return read_builtin(languages)
    if name not in ("auto", "multi30k"):
        return read_corpus(Path(name), languages)
    try:
        return find_multi30k(languages)
    except CorpusError as error:
        if name == "multi30k" or os.environ.get("MULTI30K_DIR"):
            raise
        print(f"{error}.\nThe {BUILTIN} are used instead.", file=sys.stderr)
        return read_builtin(languages)


# %%
def corpus_name() -> str:
    """What this page asks `find_corpus` for: at level `smoke` always the built-in captions."""
    return "builtin" if run_level() == "smoke" else "auto"


def corpus_at_hand() -> Corpus:
    """The corpus of this page."""
    return find_corpus(corpus_name(), ("de", "en"))


# %% [markdown]
# Here is what this page was made with. German needs fewer words: a compound is one word, and
# *rennt* is "is running". But it has more different ones, and each is rarer. A vocabulary of
# whole words suffers from this.


# %%
@example
def the_corpus_at_hand():
    import pandas as pd

    corpus = corpus_at_hand()
    print(f"corpus: {corpus.name}, {' to '.join(corpus.languages)}")
    rows = {}
    for split, pairs in corpus.splits.items():
        rows[split] = {"pairs": len(pairs)}
        for language, side in zip(corpus.languages, zip(*pairs, strict=True), strict=True):
            mean = sum(len(text.split()) for text in side) / len(side)
            rows[split][f"words a sentence, {language}"] = f"{mean:.1f}"
    return pd.DataFrame(rows).T


# %% [markdown]
# The captions of Multi30k were written by people who described a photograph in one sentence, and
# translated by professionals. So the sentences are short, in the present tense, and about the
# same few hundred things: men, women, dogs, water, streets, clothes. This is why so small a
# corpus can teach so much. It is also why a model trained on it is lost in a newspaper.
#
# <a id="tokens"></a>
# ## Tokens
#
# A tokenizer cuts a sentence into words and punctuation. spaCy has tokenizers for many languages.
# They are made of rules, so nothing has to be downloaded: `spacy.blank("de")` is enough.
#
# Cutting loses one thing: where there was a space. Without it a translation cannot be put
# together again: is it `dog .` or `dog.`? So a token that was not preceded by a space carries a
# mark, `‿`, and putting together is exact.

# %%
JOIN = "‿"  # "glued to the token before"
NOT_TEXT = re.compile(
    f"[{JOIN}\\x00-\\x08\\x0e-\\x1f\\x7f\\ud800-\\udfff]"
)  # control characters and the like


@functools.cache
def load_tokenizer(language: str):
    """spaCy's rule-based tokenizer of a language code; ValueError where there is none."""
    import spacy

    try:
        return spacy.blank(language).tokenizer
    except (ImportError, ValueError) as error:
        raise ValueError(
            f"spaCy cannot tokenize language {language!r}: {str(error).splitlines()[0]}"
        ) from None


# %% [markdown]
# Source and target have a tokenizer each. The rules matter more than one might think: English
# cuts *don't* into two tokens, German keeps *geht's* in one, and both must know that the full
# stop of *Dr.* ends nothing.


# %%
def load_tokenizers(languages: Sequence[str] = ("de", "en")) -> tuple:
    """Tokenizers of source and target language."""
    return tuple(load_tokenizer(language) for language in languages)


# %%
def tokenize(text: str, tokenizer) -> list[str]:
    """Tokens of a sentence; those glued to the token before begin with `‿`."""
    tokens, glued = [], False
    for token in tokenizer(NOT_TEXT.sub(" ", text)):
        if token.text.isspace():
            glued = False
            continue
        tokens.append(JOIN + token.text if glued else token.text)
        glued = not token.whitespace_
    return tokens


# %% [markdown]
# The training split is needed twice, for its words and for its ids. So the tokens of the last two
# sets of sentences, one for each language, are kept.


# %%
@functools.lru_cache(maxsize=2)
def tokens_of(texts: tuple[str, ...], language: str) -> list[list[str]]:
    """Tokens of each text; not to be changed."""
    tokenizer = load_tokenizer(language)
    return [tokenize(text, tokenizer) for text in texts]


# %% [markdown]
# The way back is one line: join with spaces, then remove each space that stands before a mark.


# %%
def detokenize(tokens: Iterable[str]) -> str:
    """The text that `tokenize` cut up, with single spaces."""
    return " ".join(tokens).replace(f" {JOIN}", "").removeprefix(JOIN)


# %%
@example
def tokens_of_a_sentence():
    return tokenize("Der Hund, der (laut) bellt, gehört Frau Meier-Lenz.", load_tokenizer("de"))


# %% [markdown]
# What is glued to the token before carries the mark: the comma, the full stop, the closing
# bracket, and *laut* after its opening bracket. Is the way back exact for real sentences? We try
# five hundred of each split and language.


# %%
@example
def check_every_sentence_can_be_put_together_again():
    corpus = corpus_at_hand()
    for pairs in corpus.splits.values():
        sides = zip(*pairs[:500], strict=True)
        for texts, tokenizer in zip(sides, load_tokenizers(corpus.languages), strict=True):
            for text in texts:
                assert detokenize(tokenize(text, tokenizer)) == " ".join(text.split())


# %% [markdown]
# <a id="vocabularies"></a>
# ## Vocabularies
#
# Each language gets a list of words, from the **training split alone**. A word of the test set
# that was never seen in training must be unknown: otherwise the test would not tell how the model
# fares on new text. Words seen only once become unknown too. This is how the model learns what to
# do with unknown words.


# %%
@dataclass(frozen=True)
class Vocabulary:
    """Words by id, the special symbols first."""

    words: tuple[str, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.words)

    @functools.cached_property
    def index(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens; unknown ones get UNKNOWN. Special symbols in a text are ordinary words."""
        found = (self.index.get(token, UNKNOWN) for token in tokens)
        return [number if number >= len(SPECIALS) else UNKNOWN for number in found]

    def fingerprint(self) -> str:
        """A short name for this very list."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]

    def encode(self, texts: Sequence[str], language: str) -> list[list[int]]:
        """Ids of each text, without start and end."""
        return [self.ids(tokens) for tokens in tokens_of(tuple(texts), language)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids up to the end symbol, without start and padding."""
        return detokenize(self.words[number] for number in symbols_of_text(ids))

    def saved(self) -> list[str]:
        """What a checkpoint keeps."""
        return list(self.words)


# %%
def symbols_of_text(ids: Iterable[int]) -> list[int]:
    """What is text in decoded ids: nothing from the end symbol on, neither start nor padding."""
    until_end = itertools.takewhile(lambda number: number != END, ids)
    return [number for number in until_end if number not in (START, PAD)]


# %% [markdown]
# We count, and torchtext sorts and drops the rare words. The result goes into a list of our own:
# torchtext's table `stoi` silently adds every unknown word that is looked up in it.


# %%
def build_vocabulary(sentences: Iterable[Sequence[str]], min_freq: int = 2) -> Vocabulary:
    """Words that occur at least `min_freq` times in tokenized sentences, frequent ones first."""
    from torchtext.vocab import Vocab

    counts = collections.Counter(itertools.chain.from_iterable(sentences))
    for symbol in SPECIALS:
        counts.pop(symbol, None)  # in a text they are not special
    return Vocabulary(tuple(Vocab(counts, min_freq=min_freq, specials=list(SPECIALS)).itos))


def learn_words(corpus: Corpus, min_freq: int) -> tuple[Vocabulary, Vocabulary]:
    """Vocabularies of both languages from the training split."""
    sides = zip(corpus.languages, zip(*corpus.splits["train"], strict=True), strict=True)
    return tuple(build_vocabulary(tokens_of(side, language), min_freq) for language, side in sides)


# %% [markdown]
# Tokens become ids once, before training, not in every epoch again. The source ends with `</s>`,
# so that the model sees where it ends. The target has `<s>` before and `</s>` after it. What
# comes out are plain lists of integers. The text is not needed again until a translation has to
# be compared with it.

# %%
IdPair = tuple[list[int], list[int]]


def encode_pairs(corpus: Corpus, split: str, vocabularies) -> list[IdPair]:
    """A split as ids, with start and end."""
    sides = zip(
        vocabularies, zip(*corpus.splits[split], strict=True), corpus.languages, strict=True
    )
    encoded = (vocabulary.encode(texts, language) for vocabulary, texts, language in sides)
    return [([*a, END], [START, *b, END]) for a, b in zip(*encoded, strict=True)]


# %% [markdown]
# Pairs that are empty on one side, or longer than the model has positions, cannot be used. They
# are left out, and a message says how many.


# %%
@dataclass(frozen=True)
class Encoded:
    """A corpus without what cannot be used, its vocabularies, and train and val as ids."""

    corpus: Corpus
    vocabularies: tuple[Vocabulary, Vocabulary]
    splits: dict[str, list[IdPair]] = field(repr=False)


# %% [markdown]
# The vocabularies see `train` and nothing else; then training and validation split become ids.
# With `pieces` the words are cut further, by a list that both languages share: that is a matter
# of [Part 6](#byte-pairs).


# %%
def encode_corpus(
    name: str, languages: tuple[str, str], min_freq: int, max_len: int, pieces: int = 0
) -> Encoded:
    """Vocabularies from the training split, and ids of train and val; tests stay as they are."""
    corpus = find_corpus(name, languages)
    vocabularies = learn_pieces(corpus, pieces) if pieces else learn_words(corpus, min_freq)
    encoded = {split: encode_pairs(corpus, split, vocabularies) for split in ("train", "val")}
    texts = dict(corpus.splits)
    for split, pairs in encoded.items():
        fits = [1 < len(src) <= max_len and 2 < len(tgt) <= max_len for src, tgt in pairs]
        encoded[split] = list(itertools.compress(pairs, fits))
        texts[split] = list(itertools.compress(corpus.splits[split], fits))
        if left_out := len(pairs) - sum(fits):
            print(f"{split}: {left_out} pairs are empty or too long, left out", file=sys.stderr)
        require(any(fits), f"corpus {corpus.name}: not one pair of {split} can be used")
    return Encoded(dataclasses.replace(corpus, splits=texts), vocabularies, encoded)


# %%
@functools.cache
def encoded_at_hand() -> Encoded:
    """The corpus of this page as ids."""
    return encode_corpus(corpus_name(), ("de", "en"), min_freq=2, max_len=256)


# %% [markdown]
# How large are the vocabularies, and how much of an unseen text do they miss? The share of
# unknown words sets a limit that no training can lift: the model cannot translate what it cannot
# read.


# %%
@example
def vocabularies_at_hand():
    corpus, vocabularies = encoded_at_hand().corpus, encoded_at_hand().vocabularies
    split, facts = corpus.tests()[0], {"corpus": corpus.name}
    ids = zip(*encode_pairs(corpus, split, vocabularies), strict=True)
    for language, vocabulary, side in zip(corpus.languages, vocabularies, ids, strict=True):
        flat = [n for ids in side for n in ids if n not in (START, END)]
        unknown = f"{flat.count(UNKNOWN) / len(flat):.1%}"
        facts[language] = {"words": len(vocabulary), f"unknown in {split}": unknown}
    return facts


# %% [markdown]
# On Multi30k the model cannot read one German word in twenty-five. The missing English words,
# half as many, it can never write. Pieces of words would mend both, and are the paper's choice.
#
# <a id="token-budget"></a>
# ## Batches by token budget
#
# (§5.1) The paper counts a batch in tokens, not in sentences, and puts sentences of about the
# same length together. A batch of short sentences then holds many of them, one of long sentences
# few; each costs about the same, and little of it is padding. With sentences in any order
# training takes 2.2 times as long ([measured](#gains)).
#
# torchtext's `pool` does most of the work. It cuts the shuffled corpus into large pools, sorts
# each pool by length, cuts it into batches, and shuffles these. We count a batch as what it
# occupies on one side: its number of sentences times the longest sentence of either language.
# Where several processes share a batch, the budget holds for each of them, so what counts is the
# part of one process.
#
# > **How large is a batch here?** The paper's has about 25,000 symbols on each side. Ours has up
# > to 1,280 positions for each process: with the two of the published run, up to 2,560 an update.
# > A single process makes twice as many updates, each half as large. `--batch-tokens 2560` or
# > `--accumulate 2` brings it back to the published size.


# %%
def padded_size(lengths: tuple[int, int, int], count: int, sofar: int, ranks: int = 1) -> int:
    """Positions of the largest of `ranks` shares with one more sentence; a rule for torchtext."""
    # `sofar` is longest × sentences of a share: dividing gives back the longest sentence so far.
    longest = sofar // math.ceil((count - 1) / ranks) if count > 1 else 0
    return max(longest, *lengths[:2]) * math.ceil(count / ranks)


# %% [markdown]
# The rule is called with one sentence more each time, and says how much the batch would then
# occupy. Sorting by the longer of the two sides keeps both sides of a batch about equally long.
# Sorting by the target alone leaves more padding in the source.


# %%
def pooled_batches(
    lengths: Sequence[tuple[int, int]], budget: int, order: random.Random | None, ranks: int = 1
) -> list[list[int]]:
    """Lists of sentence numbers, alike in length, at most `budget` positions for each of `ranks`.

    `lengths` has (source, target) for each sentence; with None as `order` nothing is shuffled.
    """
    from torchtext.data.iterator import pool
    from torchtext.data.utils import RandomShuffler

    rows = [(*length, number) for number, length in enumerate(lengths)]
    shuffler = RandomShuffler(order.getstate()) if order else None
    rows = shuffler(rows) if order else sorted(rows)
    settings = {
        "shuffle": order is not None,
        "sort_within_batch": True,
        "random_shuffler": shuffler,
    }
    key = lambda row: (max(row[:2]), sum(row[:2]))  # noqa: E731
    rule = functools.partial(padded_size, ranks=ranks)
    batches = pool(rows, budget, key, batch_size_fn=rule, **settings)
    return [[row[2] for row in batch] for batch in batches if batch]


# %% [markdown]
# A sampler hands these lists out. Under DDP every rank builds the same lists from the same seed
# and takes its share of each, as cards are dealt: with two ranks, every second sentence. The
# lists are sorted, so the shares are alike in length, and no rank waits long for another. A last
# list may hold fewer sentences than there are ranks. Then a share is empty.


# %%
class TokenBudget(torch.utils.data.Sampler):
    """The batches of one rank, as lists of sentence numbers; see `pooled_batches`.

    `set_epoch` chooses the order. The first `skip` batches of the next pass are left out, to
    resume in the middle of an epoch.
    """

    def __init__(self, lengths, budget: int, rank=0, ranks=1, seed=0, shuffle=True):
        require(budget > 0, f"the token budget must be positive, got {budget}")
        self.lengths, self.budget, self.rank, self.ranks = lengths, budget, rank, ranks
        self.seed, self.shuffle, self.skip = seed, shuffle, 0
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        order = random.Random(f"{self.seed} {epoch}") if self.shuffle else None
        batches = pooled_batches(self.lengths, self.budget, order, self.ranks)
        self.batches = [batch[self.rank :: self.ranks] for batch in batches]

    def __iter__(self) -> Iterator[list[int]]:
        first, self.skip = self.skip, 0
        return iter(self.batches[first:])

    def __len__(self) -> int:
        return len(self.batches)


# %% [markdown]
# PyTorch's `DataLoader` does the rest: it fetches the sentences of a batch and pads them. A rank
# that has no batch left gets one without target tokens, which takes part in the update and adds
# nothing.


# %%
def collate(pairs: Sequence[IdPair]) -> Batch:
    """Pairs of ids -> a padded batch; none at all -> a batch without a target token."""
    sources, targets = zip(*pairs, strict=True) if pairs else (([END],), ([START, PAD],))
    return Batch(pad_ids(sources), pad_ids(targets))


def create_dataloaders(encoded: Encoded, budget: int, rank: int = 0, ranks: int = 1, seed: int = 0):
    """Loaders of the training split, shuffled, and of the validation split, in order of length."""
    loaders = []
    for split in ("train", "val"):
        pairs = encoded.splits[split]
        lengths = [(len(source), len(target) - 1) for source, target in pairs]
        sampler = TokenBudget(lengths, budget, rank, ranks, seed, shuffle=split == "train")
        # A generator of its own: by default a loader draws from the one that dropout uses.
        settings = {"collate_fn": collate, "generator": torch.Generator()}
        loaders.append(torch.utils.data.DataLoader(pairs, batch_sampler=sampler, **settings))
    return tuple(loaders)


# %% [markdown]
# Is the sorting worth the trouble? We count the positions of one epoch. For comparison: the same
# sentences in the order of the corpus, 64 at a time.


# %%
def padding_share(batches: Iterable[Batch]) -> float:
    """Share of all positions, source and target, that are padding."""
    real = total = 0
    for batch in batches:
        real += int((batch.src != PAD).sum() + (batch.tgt_y != PAD).sum())
        total += batch.src.numel() + batch.tgt_y.numel()
    return 1 - real / total


# %% [markdown]
# The number counts both sides. The target has one position less than the sentence with its two
# marks, since the decoder's input is shifted.


# %%
@example
def padding_of_the_training_batches():
    train, _ = create_dataloaders(encoded_at_hand(), budget=1280)
    unsorted = map(collate, grouped(encoded_at_hand().splits["train"], 64))
    shares = {f"{len(train)} batches by token budget": padding_share(train)}
    shares["64 sentences in the order of the corpus"] = padding_share(unsorted)
    told = {name: f"{share:.1%} padding" for name, share in shares.items()}
    return {"corpus": encoded_at_hand().corpus.name} | told


# %% [markdown]
# By token budget about one position in thirteen is padding on Multi30k; in the order of the
# corpus it is nearly half. The same sentences take little more than half the positions.
#
# <a id="settings"></a>
# ## Settings
#
# All settings of a run stand in one frozen record. (The number of ranks and the precision depend
# on the machine; the summary of the run adds them.) It is written as JSON beside the checkpoints,
# so that a number can always be traced to the settings that made it. A small corpus wants a small
# model: three layers of 192 and much dropout. The base model of the paper has room to learn our
# 29,000 pairs by heart.


# %%
@dataclass(frozen=True)
class Config:
    """Settings of a training; `batch_tokens` bounds one side of a micro-batch on one rank."""

    corpus: str = "auto"
    languages: tuple[str, str] = ("de", "en")
    N: int = 3
    d_model: int = 192
    d_ff: int = 768
    h: int = 3
    dropout: float = 0.25
    attention_dropout: float = 0.0  # keeps the fused kernel usable on CPUs
    norm_first: bool = True
    max_len: int = 256
    min_freq: int = 2
    pieces: int = 0  # size of one list of pieces of words for both languages; 0: words
    share_embeddings: bool = False
    smoothing: float = 0.1
    batch_tokens: int = 1280
    accumulate: int = 1
    warmup: int = 1000
    factor: float = 1.5
    schedule: str = "linear"  # after the warm-up: down to zero, or the paper's "root"
    epochs: int = 32
    patience: int = 32  # end after so many epochs without a better BLEU: here never
    keep: int = 10  # how many of the last epochs keep their weights, for averaging
    seed: int = 1

    def __post_init__(self):
        require(self.schedule in ("root", "linear"), f"no schedule is called {self.schedule!r}")
        for name in ("batch_tokens", "accumulate", "warmup", "epochs", "patience", "max_len"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")


# %% [markdown]
# The presets: `recipe` is the model of this page and has all that [Part 6](#recipe) explains;
# `pieces` and `words` are the steps before it, and differ from it in nothing else (`recipe` adds
# one matrix to `pieces`, which adds pieces to `words`). `speedrun` is in a hurry. `demo` is a
# small model of words that learns something within minutes, and `smoke` serves the tests.

# %%
WORDS = Config()
RECIPE = dataclasses.replace(WORDS, pieces=5000, share_embeddings=True)
SMALL = Config(
    N=2,
    d_model=128,
    d_ff=512,
    h=4,
    dropout=0.1,
    batch_tokens=1024,
    warmup=200,
    factor=2.0,
    schedule="root",
    epochs=40,
    patience=10,
    keep=2,
)


# %% [markdown]
# `base` and `big` have the sizes and the settings of the paper's models (Table 3); what still
# differs is [listed](#differences) at the end. They want a corpus of millions of pairs
# and several GPUs. On eight ranks, 3,125 positions each make about the paper's batch of 25,000,
# and on its 4.5 million pairs 20 and 60 epochs make about its 100,000 and 300,000 updates. The
# paper averages the last five and twenty checkpoints, so as many are kept; ours are written once
# an epoch, and not every ten minutes.

# %%
PAPER = Config(
    N=6,
    d_model=512,
    d_ff=2048,
    h=8,
    dropout=0.1,
    norm_first=False,
    pieces=37_000,
    share_embeddings=True,
    batch_tokens=3125,
    warmup=4000,
    factor=1.0,
    schedule="root",
    epochs=20,
    keep=5,
)
BIG = dataclasses.replace(PAPER, d_model=1024, d_ff=4096, h=16, dropout=0.3, epochs=60, keep=20)
PRESETS = {
    "recipe": RECIPE,
    "pieces": dataclasses.replace(RECIPE, share_embeddings=False),
    "words": WORDS,
    "speedrun": dataclasses.replace(RECIPE, dropout=0.1, epochs=9, warmup=400, factor=1.0),
    "base": PAPER,
    "big": BIG,
    "demo": SMALL,
    "smoke": dataclasses.replace(SMALL, corpus="builtin", N=1, batch_tokens=2048, epochs=3),
}


# %% [markdown]
# A configuration and two vocabularies are all it takes to build the model again, on another
# machine or in another year.


# %%
def model_from(config: Config, vocabularies: tuple[Vocabulary, Vocabulary]) -> EncoderDecoder:
    """A fresh model of the configured sizes."""
    sizes = config.N, config.d_model, config.d_ff, config.h, config.dropout
    names = ("attention_dropout", "norm_first", "share_embeddings", "max_len")
    return make_model(*map(len, vocabularies), *sizes, **{n: getattr(config, n) for n in names})


# %% [markdown]
# <a id="workers"></a>
# ## One process or many
#
# With *distributed data parallelism* (DDP) every process holds the whole model and its own share
# of the batches. During the backward pass the processes take the mean of their gradients, so all
# of them make the same update and their models stay equal. Besides gradients little travels:
# token counts, losses, the question whether to stop and, now and then, translations, random
# states or a checkpoint. `torchrun` starts the processes and tells each its rank through
# environment variables. Without `torchrun` there is one process, and the code path is the same.
#
# Two ranks of one thread each can also be the better way to use two CPU cores. One process with
# two threads waits for both at every small operation. Two processes wait for each other once per
# update. It gains a few per cent, and most in bf16, where operations are short
# ([measured](#speed)).


# %%
@dataclass(frozen=True)
class Worker:
    """This process among all that train together, and the device it uses."""

    rank: int
    ranks: int
    device: torch.device
    autocast: torch.dtype | None  # bf16 where the device gains from it


# %% [markdown]
# On a machine with several GPUs each process takes one, by its *local rank*: its number among the
# processes of this machine.


# %%
def choose_device(local_rank: int = 0) -> torch.device:
    """A GPU of this machine where there is one, Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


# %% [markdown]
# *Mixed precision* computes matrix products in bf16, which has the range of fp32 and a third of
# its digits, and keeps weights, sums and losses in fp32. It pays only where the processor has
# instructions for it. Newer GPUs do, and so do some CPUs. Elsewhere the products would be
# emulated, at a loss.


# %%
def gains_from_bf16(device: torch.device) -> bool:
    """True where matrix products are faster in bf16: newer GPUs, CPUs with instructions for it."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    able = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(able.get("avx512_bf16") or able.get("amx_bf16"))


# %% [markdown]
# The processes of a group first have to find one another. (A *group* is all processes together;
# its *backend* is the library that moves tensors between them: NCCL for GPUs, Gloo for CPUs.)
# `torchrun` keeps a *store*, a dictionary on the network, and each rank writes there how it can be
# reached. When a rank dies, `torchrun` can start all ranks again, and then the store still holds
# what the dead have written: a rank that is quick reads an old address and waits for nobody. So
# rank 0 draws a new name for each start, every rank answers under this name, and all go on in a
# part of the store that only those use who have answered.


# %%
def agree_on_store(store: dist.Store, rank: int, ranks: int) -> dist.Store:
    """The part of a shared store that only the ranks of this start use, none of an earlier one."""
    me = os.urandom(8).hex()
    if rank == 0:
        store.set("start", me)
        crew = [store.get(f"{me}/{other}").decode() for other in range(1, ranks)]  # get waits
        store.set(f"{me}/crew", " ".join(crew))
        return dist.PrefixStore(me, store)
    while True:
        start = store.get("start").decode()
        store.set(f"{start}/{rank}", me)
        if store.check([f"{start}/crew"]) and me in store.get(f"{start}/crew").decode():
            return dist.PrefixStore(start, store)
        time.sleep(0.05)


# %% [markdown]
# Joining the group and leaving it belong together. A process that fails but does not leave keeps
# its connections, and the others wait for it; so the leaving stands in a `finally`. Address and
# port come from `torchrun`, and none is written into the code.
#
# How long may a rank wait for the others? With Gloo a rank that has died is noticed at once, by
# its closed connections; on GPUs `torchrun` watches its processes and ends them all. So a long
# wait means that somebody is busy, with a large validation split or a slow disk, and the limit is
# generous.

# %%
LONGEST_WAIT = datetime.timedelta(hours=6)


@contextlib.contextmanager
def join_workers() -> Iterator[Worker]:
    """Join the process group that torchrun describes, and leave it at the end, come what may.

    ConnectionError on the ranks that are left where another one has died.
    """
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    device = choose_device(int(os.environ.get("LOCAL_RANK", 0)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif ranks > 1:
        device = torch.device("cpu")  # Gloo knows no MPS
    try:
        if ranks > 1:
            backend = "nccl" if device.type == "cuda" else "gloo"
            store, rank, ranks = next(dist.rendezvous("env://", timeout=LONGEST_WAIT))
            meeting = {"store": agree_on_store(store, rank, ranks), "timeout": LONGEST_WAIT}
            dist.init_process_group(backend, rank=rank, world_size=ranks, **meeting)
        yield Worker(rank, ranks, device, torch.bfloat16 if gains_from_bf16(device) else None)
        if ranks > 1:
            dist.barrier()  # nobody hangs up while another still listens
    except RuntimeError as error:
        if ranks == 1 or not re.search("onnection|peer|remote|NCCL", str(error)):
            raise
        told = f"rank {rank} of {ranks} has lost another one, which died or could not be reached"
        way_out = "the same command goes on from the last checkpoint"
        raise ConnectionError(f"{told}: {way_out} ({str(error).splitlines()[0]})") from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


# %% [markdown]
# Two small tools for everything that is not a gradient. What one rank reads, such as a
# checkpoint, is sent to the others, so that only one machine needs the file; if reading it fails,
# all of them fail with the same error, and none is left waiting.


# %%
def gather(value, worker: Worker) -> list:
    """The value of every rank, on every rank."""
    values = [value] * worker.ranks
    if worker.ranks > 1:
        dist.all_gather_object(values, value)
    return values


def from_first_rank(action: Callable, worker: Worker):
    """What `action` returns on rank 0, on every rank; its ValueError or OSError likewise."""
    answer = [None]
    if worker.rank == 0:
        try:
            answer = [action()]
        except (ValueError, OSError) as error:
            answer = [error]
    if worker.ranks > 1:
        dist.broadcast_object_list(answer)
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


# %% [markdown]
# What does it cost? After each backward pass every rank must receive the mean of all gradients:
# as many numbers as the model has parameters. What that costs on one machine is
# [measured](#speed). It becomes the bottleneck when the network between machines is slow and the
# batches are small, and then accumulation helps: several backward passes, one exchange.
#
# <a id="log"></a>
# ### A log
#
# A run keeps a log, one line of JSON for each report: loss, perplexity, BLEU, learning rate,
# *gradient norm* (the length of all gradients as one vector) and, by GPUtil, the load of each
# GPU. Where there is no GPU the list is empty. A GPU that is busy only half of the time is a sign
# that the data come too slowly, or that the batches are too small.


# %%
def gpu_loads() -> list[int]:
    """Load of each NVIDIA GPU in percent, by GPUtil; an empty list where there is none."""
    import GPUtil

    return [round(100 * gpu.load) for gpu in GPUtil.getGPUs()]


def write_log(folder: Path, **entry) -> None:
    """Append an entry to the log of a run; OSError, with the path, where there is no room."""
    path = folder / "log.jsonl"
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        raise OSError(f"{path} could not grow ({error.strerror or error})") from None


def log_size(folder: Path) -> int:
    """Bytes of the log, 0 where there is none."""
    path = folder / "log.jsonl"
    return path.stat().st_size if path.is_file() else 0


def read_log(folder: Path) -> list[dict]:
    """All entries of a run's log."""
    return [json.loads(line) for line in read_lines(folder / "log.jsonl") if line]


# %% [markdown]
# <a id="stopping"></a>
# ### Stopping
#
# Ctrl-C must not cost an hour. The signal only raises a flag. The loop looks at the flag between
# updates, when model and optimizer agree with each other. All ranks decide together, since a rank
# that went on alone would wait for the others for ever. A limit of time works by the same flag.


# %%
class StopRequest:
    """Turns SIGINT and SIGTERM into a flag while inside; `minutes` sets a limit of time."""

    def __init__(self, minutes: float | None = None):
        limit = math.inf if minutes is None else 60 * minutes
        self.signalled = self.asked = False  # on this rank; on any rank, as last agreed
        self.deadline = time.monotonic() + limit
        self.previous = {}

    def __enter__(self) -> "StopRequest":
        with contextlib.suppress(ValueError):  # handlers can be set in the main thread only
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self.ask)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def ask(self, *_) -> None:
        self.signalled = True

    def due(self) -> bool:
        """True on all ranks as soon as one of them was asked, or its time is up."""
        late = time.monotonic() >= self.deadline
        asked, late = total_over_ranks(float(self.signalled), float(late))
        self.asked = asked > 0
        return self.asked or late > 0


# %% [markdown]
# <a id="train-model"></a>
# ## Training
#
# A `Training` holds what changes during a run: the weights, the two running means that Adam keeps
# for each of them (of the gradient and of its square), the place in the schedule, and how far we
# are. Every rank builds one from the same seed, so all start from the same weights. Then each
# seeds its own dropout.


# %%
class Training:
    """Model, optimizer, schedule and progress of one run, on one rank."""

    def __init__(
        self, config: Config, encoded: Encoded, worker: Worker, folder: Path, decode=greedy_decode
    ):
        torch.manual_seed(config.seed)
        self.decode = decode
        self.config, self.encoded, self.worker, self.folder = config, encoded, worker, folder
        self.model = model_from(config, encoded.vocabularies).to(worker.device)
        criterion = LabelSmoothing(len(encoded.vocabularies[1]), PAD, config.smoothing)
        self.loss_model = SummedLoss(self.model, criterion, worker.autocast)
        share = config.batch_tokens, worker.rank, worker.ranks, config.seed
        self.train_loader, self.val_loader = create_dataloaders(encoded, *share)
        if worker.ranks > 1:
            ddp = nn.parallel.DistributedDataParallel
            # Small buckets: on a CPU the decoder's gradients travel while the encoder's are made.
            buckets = {"bucket_cap_mb": 3 if worker.device.type == "cpu" else 25}
            self.loss_model = ddp(self.loss_model, gradient_as_bucket_view=True, **buckets)
        updates = config.epochs * math.ceil(len(self.train_loader) / config.accumulate)
        schedule = config.d_model, config.factor, config.warmup
        total = updates if config.schedule == "linear" else 0
        self.optimizer, self.scheduler = make_optimizer(self.model, *schedule, total)
        self.state, self.best, self.since_best, self.seconds = TrainState(), -1.0, 0, 0.0
        torch.manual_seed(1000 * config.seed + worker.rank)  # dropout differs from rank to rank


# %% [markdown]
# Two files hold a run. `best.pt` has the weights with the best validation BLEU and what is needed
# to use them: settings and vocabularies. `last.pt` has besides what is needed to *go on*:
# optimizer, schedule, progress, the length of the log, and the random state of every rank. It is
# written after each epoch, every thousand updates of a long one, and when the run stops. The one
# before it remains as `previous.pt`.


# %%
def description(training: Training) -> dict:
    """What makes a checkpoint usable: settings, vocabularies, weights, progress."""
    words = [vocabulary.saved() for vocabulary in training.encoded.vocabularies]
    progress = {name: getattr(training, name) for name in ("best", "since_best", "seconds")}
    return progress | {
        "config": dataclasses.asdict(training.config),
        "corpus": training.encoded.corpus.name,
        "vocabularies": words,
        "state": dataclasses.asdict(training.state),
        "ranks": training.worker.ranks,
        "model": training.model.state_dict(),
    }


# %% [markdown]
# Random states are part of it. Dropout draws random numbers at every step, and a resumed run that
# drew other ones would be another run. With them, a run on a CPU that was interrupted, by Ctrl-C
# or a power cut, and resumed with as many ranks ends with the same weights, bit for bit, as one
# that was not.


# %%
def random_state(device: torch.device) -> list[Tensor]:
    """State of the generators in use: the CPU's and, where there is one, the GPU's."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if device.type == "cuda" else [])


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    """Take up what `random_state` returned."""
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1])


def save_training(training: Training) -> None:
    """Write `last.pt`, the one before it becomes `previous.pt`; rank 0 does, for every rank."""
    random_states = gather(random_state(training.worker.device), training.worker)
    if training.worker.rank > 0:
        return
    moving = {name: getattr(training, name).state_dict() for name in ("optimizer", "scheduler")}
    moving["random_states"] = random_states
    moving["log"] = log_size(training.folder)
    last, following = training.folder / "last.pt", training.folder / "next.pt"
    save_checkpoint(following, description(training) | moving)
    if last.is_file():
        os.replace(last, last.with_name("previous.pt"))
    os.replace(following, last)


# %% [markdown]
# Why keep the one before? A disk may damage a file long after it was written well. Then a run has
# lost an epoch, and not everything. A process that dies between the last two lines leaves only
# `previous.pt`, and that is enough as well.


# %%
def latest_checkpoint(folder: Path) -> dict | None:
    """Content of `last.pt` and its path, else of `previous.pt`; None where there is neither.

    A damaged file is set aside, with a warning, if the other one is sound; else ValueError.
    """
    paths = [path for path in (folder / "last.pt", folder / "previous.pt") if path.is_file()]
    for number, path in enumerate(paths):
        try:
            content = load_checkpoint(path) | {"path": str(path)}
        except ValueError as error:
            if path == paths[-1]:
                raise
            warnings.warn(f"{error}: going on from {paths[-1].name} instead", stacklevel=2)
            continue
        for damaged in paths[:number]:
            os.replace(damaged, damaged.with_suffix(".damaged"))
        return content
    return None


# %% [markdown]
# A run goes on only with the same settings and the same words. Two settings may change, since
# they only say when to end: `patience` and, with the paper's schedule, `epochs`. (A straight line
# to zero depends on its end.) A run whose learning rate changed in the middle belongs to no
# setting, and with another vocabulary every row of the embedding would stand for another word.


# %%
def resume_training(training: Training, content: dict) -> None:
    """Continue from a checkpoint; ValueError when settings or vocabulary differ from the run's."""
    path = content["path"]
    now, then = dataclasses.asdict(training.config), content["config"]
    then = dataclasses.asdict(Config()) | then  # an older run lacks newer settings
    free = ("patience",) if training.config.schedule == "linear" else ("epochs", "patience")
    changed = [k for k in now if now[k] != then.get(k) and k not in free]
    other = [f"{k}: {then.get(k)} there, {now[k]} here" for k in changed]
    way_out = "use the same, or another folder"
    require(not other, f"{path} was made with other settings ({'; '.join(other)}): {way_out}")
    words = [vocabulary.saved() for vocabulary in training.encoded.vocabularies]
    same = words == content["vocabularies"]
    require(same, f"{path} was made with another vocabulary ({content['corpus']}): {way_out}")
    for name in ("model", "optimizer", "scheduler"):
        getattr(training, name).load_state_dict(content[name])
    training.state = TrainState(**content["state"])
    for name in ("best", "since_best", "seconds"):
        setattr(training, name, content[name])
    if content["ranks"] == training.worker.ranks:
        set_random_state(content["random_states"][training.worker.rank], training.worker.device)
    else:
        training.state.position = 0  # the batches fall differently: the epoch begins anew


# %% [markdown]
# After each epoch the validation split is scored twice: by the likelihood of the true words, and
# by the BLEU of what the model itself writes. The two do not always agree, and it is the second
# that a reader of translations notices. BLEU is explained [below](#bleu). A translation that does
# not end is cut off. In a batch the longest source sets the limit. So a translation may differ
# from what it would be alone only if it runs past its own limit.


# %%
def length_cap(source_length: int, max_len: int) -> int:
    """How long a translation may get (§6.1): 50 more than the source, as far as positions reach."""
    return min(source_length + 50, max_len)


# %% [markdown]
# Ids go back to plain text before they are scored: the marks that [tokens](#tokens) carry are
# taken off, and sacreBLEU applies its own tokenization, the same for every system that is scored
# with it.


# %%
def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU of detokenized text by sacreBLEU, and the signature that says how it was computed."""
    from sacrebleu.metrics import BLEU

    metric = BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return score, str(metric.get_signature())


# %% [markdown]
# Each rank translates its share of the sentences. The shares are then put together by the number
# of the sentence, and every rank computes the same score.


# %%
def validate(training: Training) -> dict[str, float]:
    """Negative log-likelihood, perplexity and greedy BLEU of validation, over all ranks."""
    worker, limit, rows = training.worker, training.config.max_len, []
    batches = [batch.to(worker.device) for batch in training.val_loader if batch.ntokens]
    scores = evaluate_loss(training.model, batches, worker.autocast)
    with mixed_precision(worker.device, worker.autocast):
        for batch in batches:
            cap = length_cap(batch.src.size(1), limit)
            rows += training.decode(training.model, batch.src, batch.src_mask, cap, START).tolist()
    numbers = itertools.chain.from_iterable(training.val_loader.batch_sampler.batches)
    target = training.encoded.vocabularies[1]
    share = {n: target.decode(row) for n, row in zip(numbers, rows, strict=True)}
    written = {n: text for part in gather(share, worker) for n, text in part.items()}
    pairs = training.encoded.corpus.splits["val"]
    bleu, _ = corpus_bleu(list(written.values()), [pairs[n][1] for n in written])
    return scores | {"bleu": bleu}


# %% [markdown]
# Now one epoch. The sampler is told which epoch it is, and how many batches were used before a
# stop. Log and progress bar belong to rank 0; the question whether to stop belongs to all.

# %%
SAVE_EVERY = 1000  # updates, inside an epoch


def train_one_epoch(training: Training, stop: StopRequest) -> bool:
    """Train to the end of the present epoch; False when it was cut short by a request to stop."""
    from tqdm import tqdm

    config, state, first_rank = training.config, training.state, training.worker.rank == 0
    sampler = training.train_loader.batch_sampler
    sampler.set_epoch(state.epoch)
    sampler.skip = state.position * config.accumulate
    updates = math.ceil(len(sampler) / config.accumulate)
    begin, stopped = time.perf_counter() - training.seconds, False
    settings = {"initial": state.position, "disable": not first_rank, "leave": False}
    bar = tqdm(total=updates, desc=f"epoch {state.epoch + 1}", mininterval=2, **settings)

    def report(update: dict) -> bool:
        nonlocal stopped
        training.seconds = time.perf_counter() - begin
        bar.update()
        bar.set_postfix(loss=f"{update['loss']:.2f}", refresh=False)
        if first_rank and (update["step"] % 50 == 0 or update["step"] == 1):
            update = {k: round(v, 6) for k, v in update.items()} | {"gpu": gpu_loads()}
            seconds = round(training.seconds, 1)
            write_log(training.folder, kind="train", epoch=state.epoch, seconds=seconds, **update)
        if state.position % SAVE_EVERY == 0 and state.position < updates:
            save_training(training)
        stopped = stop.due()
        return stopped

    batches = (batch.to(training.worker.device) for batch in training.train_loader)
    parts = training.loss_model, training.optimizer, training.scheduler, state
    with bar:
        run_epoch(batches, *parts, config.accumulate, report)
    return state.position == updates or not stopped


# %% [markdown]
# Then the judgement. Validation decides which weights are kept and when training ends. The test
# splits have no say in it: a model that was chosen on the test set has been trained on it, a
# little.


# %%
def judge(training: Training, end_of_epoch: bool = True) -> None:
    """Validate, log, and keep the weights in `best.pt` where BLEU is higher than ever."""
    begin = time.perf_counter()
    state, scores = training.state, validate(training)
    training.seconds += time.perf_counter() - begin
    better = scores["bleu"] > training.best
    training.best = max(training.best, scores["bleu"])
    if end_of_epoch and (better or state.step >= training.config.warmup):
        training.since_best = 0 if better else training.since_best + 1
    if training.worker.rank > 0:
        return
    if better:
        save_checkpoint(training.folder / "best.pt", description(training))
    if end_of_epoch and training.config.keep:
        keep_epoch(training)
    entry = {name: round(value, 4) for name, value in scores.items()}
    entry |= {"epoch": state.epoch, "step": state.step, "seconds": round(training.seconds, 1)}
    write_log(training.folder, kind="validation", **entry)
    place = f"epoch {state.epoch}" + ("" if end_of_epoch else f" and {state.position} updates")
    found = f"validation perplexity {scores['perplexity']:.2f}, BLEU {scores['bleu']:.1f}"
    note = ", best so far" if better else ""
    print(f"{place}: {found}, {training.seconds / 60:.1f} min{note}", flush=True)


# %% [markdown]
# The weights of the last few epochs can be kept as well. [Part 6](#averaging) makes one model of
# several.


# %%
def keep_epoch(training: Training) -> None:
    """Write `epoch-NNN.pt`, and remove those that are older than the last `keep` epochs."""
    save_checkpoint(training.folder / f"epoch-{training.state.epoch:03}.pt", description(training))
    for path in sorted(training.folder.glob("epoch-*.pt"))[: -training.config.keep]:
        path.unlink()


# %% [markdown]
# `train_model` joins all of it, and is the same on one CPU, on a GPU, and in each process of a
# DDP run. A second call with the same folder goes on where the first one stopped.


# %%
def train_model(
    config: Config,
    folder: Path | str,
    minutes: float | None = None,
    until: float = math.inf,
    decode: Callable = greedy_decode,
) -> str:
    """Train until validation stops improving, or reaches BLEU `until`; "finished" or "stopped".

    The run lives in `folder`: config.json, log.jsonl, last.pt, best.pt, summary.json. `minutes`
    bounds the time; a stopped run resumes from where it was. `decode` writes the translations of
    the validation split, greedily. ValueError where another training works in the folder.
    """
    plan = config.languages, config.min_freq, config.max_len, config.pieces
    folder = Path(folder)
    encoded = encode_corpus(config.corpus, *plan)
    with join_workers() as worker, sole_use(folder, worker), StopRequest(minutes) as stop:
        training = Training(config, encoded, worker, folder, decode)
        gc.freeze()  # the corpus stays: the garbage collector need not walk through it each time
        begin_run(training)
        state, before = training.state, training.state.step
        while not (done := is_done(training, until)) and not stop.due():
            if train_one_epoch(training, stop):
                state.epoch, state.position = state.epoch + 1, 0
                judge(training)
                save_training(training)
        if state.position and not stop.asked:  # time is over in the middle of an epoch
            judge(training, end_of_epoch=False)  # what was learnt since the last one counts too
        if state.position or state.step == 0:  # no end of an epoch has saved this
            save_training(training)
        status = "finished" if done else "stopped"
        if state.step > before or status != read_summary(folder).get("status"):
            write_summary(training, status)
        gc.unfreeze()
    return status


# %% [markdown]
# Time may run out in the middle of an epoch. Then the model is scored where it stands. This does
# not count as an epoch without improvement, but a new best raises the bar for those that follow.
# The place is remembered, and the next call goes on with the very next batch. With another number
# of ranks the batches fall differently, so the epoch begins anew.


# %%
def is_done(training: Training, until: float = math.inf) -> bool:
    """True at the last epoch, when validation has stopped improving, or where BLEU is `until`."""
    config, reached = training.config, training.best >= until
    return (
        training.state.epoch >= config.epochs or training.since_best >= config.patience or reached
    )


# %% [markdown]
# A folder belongs to one training at a time: two of them would overwrite each other's files. A
# lock of the operating system says whose it is, and it falls when its process dies, however that
# happens. What a dead process has left half-written is removed, under the names that this program
# gives and no others: whoever names a folder of their own by mistake must lose nothing.


# %%
UNFINISHED = re.compile(
    r"\.(last|next|best|average|epoch-\d+)\.pt\.\d+|\.(config|summary)\.json\.\d+"
)


@contextlib.contextmanager
def sole_use(folder: Path, worker: Worker) -> Iterator[None]:
    """Hold the lock of a run's folder; ValueError, on every rank, where another one holds it."""
    with contextlib.ExitStack() as held:

        def lock() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            others = [path.name for path in folder.iterdir() if path.name != ".lock"]
            run = not others or (folder / "config.json").is_file()
            message = f"{folder} holds {sorted(others)[:3]} and is no run: name an empty folder"
            require(run, message)
            file = held.enter_context(open(folder / ".lock", "a"))
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"another training works in {folder}: wait for its end, or name another"
                raise ValueError(message) from None
            except ImportError:
                return  # Windows has other locks
            for leftover in folder.iterdir():
                if UNFINISHED.fullmatch(leftover.name) and leftover.is_file():
                    leftover.unlink()

        from_first_rank(lock, worker)
        yield


# %% [markdown]
# A run begins with a look into its folder: is there something to go on with? If a run died
# between two checkpoints, its log has entries for updates that will be made again. They are taken
# out.


# %%
def begin_run(training: Training) -> None:
    """Resume the run of the folder, or start a new one with its settings on file."""
    folder, first_rank = training.folder, training.worker.rank == 0
    found = gather((folder / "last.pt").is_file(), training.worker)
    message = f"rank {found.index(max(found))} has a checkpoint in {folder} and rank 0 has none"
    require(found[0] >= max(found), f"{message}: give the machines fixed ranks, or one disk")
    content = from_first_rank(lambda: latest_checkpoint(folder), training.worker)
    if content is not None:
        resume_training(training, content)
        if first_rank and log_size(folder) > content.get("log", math.inf):
            os.truncate(folder / "log.jsonl", content["log"])
    elif first_rank:
        settings = json.dumps(dataclasses.asdict(training.config), indent=1)
        write_atomically(folder / "config.json", settings.encode())
        (folder / "log.jsonl").write_text("")


# %% [markdown]
# A number without its circumstances cannot be checked. They are gathered here, and written at the
# end of each run.


# %%
def circumstances() -> dict[str, str]:
    """Date, machine, versions, allocator and commit, to stand beside every published number."""
    commit = "unknown"
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "rev-parse", "HEAD"]
        commit = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()
    processor, told = platform.machine(), Path("/proc/cpuinfo")
    if torch.cuda.is_available():
        processor = torch.cuda.get_device_name()
    elif told.is_file() and (model := re.search(r"model name\s*: (.+)", told.read_text())):
        processor = model[1].strip()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{processor}, {os.cpu_count()} CPU cores",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}",
        "allocator": Path(os.environ.get("LD_PRELOAD") or "the system's").name,
        "commit": commit,
    }


# %% [markdown]
# The summary also says how long the run took in all, over all its interruptions, and with how
# many ranks.


# %%
def write_summary(training: Training, status: str) -> None:
    """`summary.json` of a run: how it ended and under which circumstances; rank 0 writes it."""
    if training.worker.rank > 0:
        return
    summary = {"status": status, "validation_bleu": round(training.best, 2)}
    summary["corpus"] = training.encoded.corpus.name
    summary |= {"languages": list(training.config.languages), "epochs": training.state.epoch}
    summary |= {"updates": training.state.step, "minutes": round(training.seconds / 60, 1)}
    summary |= {"ranks": training.worker.ranks, "bf16": training.worker.autocast is not None}
    summary |= {"parameters": count_parameters(training.model), **circumstances()}
    summary["settings"] = dataclasses.asdict(training.config)
    write_atomically(training.folder / "summary.json", json.dumps(summary, indent=1).encode())


# %% [markdown]
# A word on the settings. The paper's base model drops one value in ten. With 29,000 sentences the
# recipe drops one in four: a model that sees the same sentences again and again begins to learn
# them by heart, and that is of no use for a new sentence. This is called *overfitting*. Watch the
# perplexity of the validation split in the log. When it stops falling while the training loss
# still does, the model has begun to overfit. BLEU may go on climbing for a while, since it asks
# only which word is the likeliest, and not how likely. So the preset `demo`, which follows the
# paper's curve, ends when BLEU has not risen for ten epochs (*early stopping*; on this page its
# time is over long before). The recipe walks its straight line to the end. In both cases the
# weights of the best epoch are kept.
#
# <a id="demonstration"></a>
# ### A demonstration
#
# Where the script lies beside the notebook, training runs in processes of its own: one for each
# GPU if there are several, two on a machine without a GPU. With one GPU, or without the script,
# it runs in the notebook's own process. Each run of the notebook trains its demonstration anew.
# **Cost: three minutes at most.** The demonstration model is small, and on Multi30k three minutes
# are too short for good translations. The real model comes in [Part 6](#model-at-hand).
#
# Each run has a folder, with a summary in it. The folders of all runs lie in one.


# %%
def read_summary(folder: Path) -> dict:
    """The summary of a run; empty where it has none yet."""
    path = folder / "summary.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def runs_folder() -> Path:
    """Where runs live: RUNS_DIR, or `runs`."""
    return Path(os.environ.get("RUNS_DIR") or "runs").expanduser()


# %% [markdown]
# `torchrun` is started as a module of the same Python. Its own options end at `--`. Without this
# mark it would take some of our options for abbreviations of its own.


# %%
def launch_training(preset: str, folder: Path, minutes: float | None = None) -> None:
    """Train a preset, by torchrun where the script is at hand and several processes make sense."""
    ranks = torch.cuda.device_count() or min(2, os.cpu_count() or 1)
    if ranks == 1 or not SCRIPT.is_file():
        train_model(PRESETS[preset], folder, minutes)
        return
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node".split()
    train = [str(SCRIPT), "train", "--preset", preset, "--folder", str(folder)]
    train += [] if minutes is None else ["--minutes", str(minutes)]
    command = [sys.executable, *torchrun, str(ranks), "--", *train]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout:
            print(line, end="")
    if process.returncode:
        raise RuntimeError(f"training ended with exit status {process.returncode}, see above")


# %%
@functools.cache
def demonstration_run() -> Path:
    """The folder of the demonstration, trained at the first call."""
    preset, minutes = ("smoke", 1.0) if run_level() == "smoke" else ("demo", 2.5)
    folder = runs_folder() / f"{preset}-demonstration"
    shutil.rmtree(folder, ignore_errors=True)
    launch_training(preset, folder, minutes)
    return folder


@example
def train_a_demonstration():
    summary = read_summary(demonstration_run())
    told = ("corpus", "status", "epochs", "minutes", "ranks", "parameters", "validation_bleu")
    return {name: summary[name] for name in told}


# %% [markdown]
# The log has kept how it got there:


# %%
@example
def training_curves_figure():
    import altair as alt
    import pandas as pd

    log = [entry for entry in read_log(demonstration_run()) if entry["kind"] == "validation"]
    frame = pd.DataFrame(log)[["seconds", "perplexity", "bleu"]]
    frame = frame.rename(columns={"bleu": "BLEU"}).assign(minutes=frame["seconds"] / 60)
    corpus = read_summary(demonstration_run())["corpus"]
    title = f"demonstration, corpus {corpus}, validation"
    text = f"Perplexity and BLEU against minutes: {title}."
    charts = [
        line_chart(frame, "minutes", y, text, points=True, width=280)
        for y in ("perplexity", "BLEU")
    ]
    return alt.hconcat(*charts).properties(description=text, title=title)


# %% [markdown]
# **Figure 14.** Validation after each epoch of the demonstration. Perplexity falls from the
# start, while BLEU waits until whole phrases come out right. The model that is kept is the one at
# the highest point of the right-hand curve.
#
# <a id="trained-model"></a>
# ## A model to use
#
# `load_trained_model` turns a checkpoint into something that translates: the model in eval mode,
# with the words and the tokenizer that belong to it. If the parts of a file do not fit together,
# that is an error, and not a bad translation.


# %%
@dataclass(frozen=True)
class Translator:
    """A trained model with everything that a sentence needs on its way."""

    name: str
    model: EncoderDecoder = field(repr=False)
    config: Config
    corpus: str
    vocabularies: tuple[Vocabulary, Vocabulary]
    device: torch.device


# %% [markdown]
# Loading repeats what training began with: the same sizes, the same words, then the weights on
# top. A *state dict* maps the name of each weight to its tensor. `load_state_dict` compares names
# and shapes one by one, and we pass its complaint on. A model of words keeps two lists of words.
# A model of pieces ([Part 6](#byte-pairs)) keeps the settings of its tokenizer.


# %%
def restore_vocabularies(saved: Sequence) -> tuple:
    """The vocabularies of a checkpoint, from what their `saved` returned."""
    if all(isinstance(one, str) for one in saved):
        return (Pieces(saved[0]),) * 2
    return tuple(Vocabulary(tuple(words)) for words in saved)


# %%
def translator_from(content: dict, name: str, device: torch.device | None = None) -> Translator:
    """A translator from the content of a checkpoint; ValueError where it does not fit itself."""
    lacking = {"config", "corpus", "vocabularies", "model"} - set(content)
    require(not lacking, f"it lacks {', '.join(sorted(lacking))}: it holds no translator")
    settings = content["config"] | {"languages": tuple(content["config"]["languages"])}
    config, vocabularies = Config(**settings), restore_vocabularies(content["vocabularies"])
    model, device = model_from(config, vocabularies), device or choose_device()
    try:
        model.load_state_dict(content["model"])
    except RuntimeError as error:
        raise ValueError(f"weights do not fit settings and vocabulary: {error}") from None
    model = model.to(device).eval()
    return Translator(name, model, config, content["corpus"], vocabularies, device)


# %% [markdown]
# The same from a file. Whoever names the folder of a run gets its best weights.


# %%
def load_trained_model(path: Path | str, device: torch.device | None = None) -> Translator:
    """A translator from a run's folder or a checkpoint file, in eval mode.

    FileNotFoundError where nothing is; ValueError where the file is damaged, of another kind, or
    does not fit itself.
    """
    file = Path(path) / "best.pt" if Path(path).is_dir() else Path(path)
    content = load_checkpoint(file)
    try:
        return translator_from(content, file.parent.name, device)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from None


# %% [markdown]
# The file says which corpus it was trained on, and every table below repeats it. A score without
# the name of its corpus means nothing: on the built-in captions a tiny model can reach a BLEU
# that no system has ever had on real text.
#
# <a id="translate"></a>
# ## Translating
#
# A reader may hand in anything: a blank line, an emoji, a whole chapter without a full stop. As
# many lines come out as went in. A blank line stays blank. A line longer than the model's
# positions is cut into parts, with a warning, and the translations of the parts are joined.


# %%
def source_parts(
    translator: Translator, sentences: Sequence[str], first_line: int = 1
) -> list[tuple[int, list[int]]]:
    """(number of the sentence, ids with END) of each part to decode; none of a blank sentence."""
    limit, parts = translator.config.max_len - 1, []
    encoded = translator.vocabularies[0].encode(sentences, translator.config.languages[0])
    for number, ids in enumerate(encoded):
        cut = [ids[at : at + limit] for at in range(0, len(ids), limit)]
        if len(cut) > 1:
            line = f"line {first_line + number} has {len(ids)} tokens, more than {limit}"
            warnings.warn(f"{line}: cut into {len(cut)} parts", stacklevel=3)
        parts += [(number, [*part, END]) for part in cut]
    return parts


# %% [markdown]
# Parts are sorted by length, decoded in batches, and put back in their order.


# %%
def translate(
    translator: Translator,
    sentences: Sequence[str],
    batch_size: int = 50,
    first_line: int = 1,
    decode: Callable = greedy_decode,
) -> list[str]:
    """Translations, one for each sentence, in order; warnings count from `first_line`."""
    parts = source_parts(translator, sentences, first_line)
    target = translator.vocabularies[1]
    order = sorted(range(len(parts)), key=lambda n: len(parts[n][1]))
    texts = [""] * len(parts)
    for group in grouped(order, batch_size):
        batch = Batch(pad_ids([parts[n][1] for n in group])).to(translator.device)
        limit = length_cap(batch.src.size(1), translator.config.max_len)
        rows = decode(translator.model, batch.src, batch.src_mask, limit, START)
        for n, row in zip(group, rows.tolist(), strict=True):
            texts[n] = target.decode(row)
    translations = [[] for _ in sentences]
    for (number, _), text in zip(parts, texts, strict=True):
        translations[number].append(text)
    return [" ".join(each) for each in translations]


# %% [markdown]
# Five lines to try: a plain sentence, a subordinate clause, a separable verb, a rare word, and
# nothing at all.

# %%
TRY_THESE = (
    "Ein Hund rennt durch den Park.",
    "Zwei Frauen lachen, weil ein Kind tanzt.",
    "Ein Mann hebt den roten Ball auf.",
    "Ein Xylophonist spielt.",
    "",
)


@example
def what_the_demonstration_says():
    model = load_trained_model(demonstration_run())
    rows = list(zip(TRY_THESE, translate(model, TRY_THESE), strict=True))
    caption = f"demonstration, minutes of training on {model.corpus}"
    return table(rows, ["source", "translation"]).set_caption(caption)


# %% [markdown]
# So much can be learnt in minutes. The fourth sentence has a word that the training text does not
# contain. It enters as `<unk>`. If the model says `<unk>` in turn, that is what is printed: a
# model of whole words has no way to spell what it does not know. More often it guesses, and its
# guess reads well. The blank line stays blank.
#
# <a id="recipe"></a>
# # Part 6. The rest of the recipe
#
# The model of Part 5 knows whole words, keeps three matrices for symbols, writes the likeliest
# next word and uses one checkpoint of its training only. The paper does all four differently. It
# cuts words into pieces (§5.1), keeps one matrix (§3.4), searches for a likely sentence, and
# averages its last checkpoints (§6.1). Each takes only a few lines. What each is worth on our
# data stands in [Part 7](#results).
#
# <a id="byte-pairs"></a>
# ## Pieces of words
#
# (§5.1) A list of words is never complete. German makes a new noun by writing two old ones
# together, and the model of Part 5 reads it as `<unk>`. A list of letters is nearly complete, but
# turns a sentence into a hundred symbols. *Byte-pair encoding* ([Sennrich et al.,
# 2016](https://arxiv.org/abs/1508.07909)) lies between: begin with letters, find the two symbols
# that stand side by side inside a word most often, make them one new symbol, and repeat until the
# list is as long as you like. Frequent words become one symbol. A rare word remains in several
# pieces, and each of them has been seen before. (The name comes from a method of compression,
# which merges pairs of bytes. Here they are letters.)
#
# One list serves both languages, as in the paper, which takes about 37,000 symbols for English
# and German. Names, numbers and many stems are spelt alike in German and English, and so share
# their pieces.
#
# First by hand. A word is a tuple of pieces, and `words` says how often each word occurs.

# %%
Word = tuple[str, ...]


def most_frequent_pair(words: dict[Word, int]) -> tuple[str, str]:
    """The two neighbours that occur most often in words with their counts."""
    counts = collections.Counter()
    for word, count in words.items():
        for pair in itertools.pairwise(word):
            counts[pair] += count
    return max(counts, key=counts.get)


# %% [markdown]
# A merge goes through a word from left to right and joins the pair wherever it stands.


# %%
def merge_pair(word: Word, pair: tuple[str, str]) -> Word:
    """The word with each occurrence of the pair made one piece."""
    merged, rest = [], list(word)
    while rest:
        size = 2 if tuple(rest[:2]) == pair else 1
        merged.append("".join(rest[:size]))
        rest = rest[size:]
    return tuple(merged)


def first_merges(words: dict[Word, int], number: int) -> list[tuple[str, str]]:
    """The first merges that byte-pair encoding learns from words with their counts."""
    merges = []
    for _ in range(number):
        merges.append(most_frequent_pair(words))
        words = {merge_pair(word, merges[-1]): count for word, count in words.items()}
    return merges


# %%
@example
def merges_of_four_words():
    words = {tuple("▁low"): 5, tuple("▁lower"): 2, tuple("▁newest"): 6, tuple("▁widest"): 3}
    return [" + ".join(pair) for pair in first_merges(words, 6)]


# %% [markdown]
# The mark `▁` stands for the space before a word. (The mark `‿` of Part 5 said the opposite.)
# After two rounds *est* is one piece: two words end in it, nine times in all. After five, *▁low*
# is one as well. A new word such as *lowest* is now cut into *▁low* and *est*.
#
# For real text we take the library `tokenizers`, which does the same and is fast. It first cuts
# text at spaces and sets punctuation apart, so that no piece ever joins a word with a comma. The
# class below has the methods of `Vocabulary`, and everything of Part 5 works with either.


# %%
@dataclass(frozen=True)
class Pieces:
    """One list of pieces of words for both languages (§5.1); used as a `Vocabulary` is."""

    settings: str = field(repr=False)  # all that the library learnt, as its JSON

    @functools.cached_property
    def tokenizer(self):
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(self.settings)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"these are no settings of a tokenizer: {error}") from None
        tokenizer.encode_special_tokens = True  # "<s>" in a text is text
        return tokenizer

    @functools.cached_property
    def words(self) -> tuple[str, ...]:
        return tuple(self.tokenizer.id_to_token(number) for number in range(len(self)))

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def fingerprint(self) -> str:
        return hashlib.sha256(self.settings.encode()).hexdigest()[:16]

    def encode(self, texts: Sequence[str], language: str = "") -> list[list[int]]:
        """Ids of each text, without start and end; the language makes no difference."""
        clean = [" ".join(NOT_TEXT.sub(" ", text).split()) for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch(clean)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids up to the end symbol, without start and padding."""
        return self.tokenizer.decode(symbols_of_text(ids), skip_special_tokens=False)

    def saved(self) -> str:
        return self.settings


# %% [markdown]
# Learning takes a second or two. Text is brought to one form of Unicode first (NFC), in which *ä*
# is one letter and not an *a* with two dots. The four special symbols take the first four ids, as
# in every vocabulary here.


# %%
def learn_pieces(corpus: Corpus, size: int) -> tuple[Pieces, Pieces]:
    """One list of `size` pieces, learnt from both sides of the training split, for both."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNKNOWN]))
    tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.Metaspace()
    settings = {"vocab_size": size, "special_tokens": list(SPECIALS), "show_progress": False}
    texts = itertools.chain.from_iterable(corpus.splits["train"])
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(**settings))
    shared = Pieces(tokenizer.to_str())
    return shared, shared


# %%
@functools.cache
def pieces_at_hand() -> Pieces:
    """2,000 pieces of the corpus of this page: few, so that the examples below are cut often."""
    return learn_pieces(corpus_at_hand(), 2000)[0]


# %% [markdown]
# Is it what we did by hand? We count the words of five hundred pairs, let the library cut them as
# it does, and compare our first merges with those that it has learnt from the same text. (Later
# ones may differ where two pairs are equally frequent.)


# %%
@example
def check_our_first_merges_are_the_library_s():
    corpus = corpus_at_hand()
    few = dataclasses.replace(corpus, splits={"train": corpus.splits["train"][:500]})
    library = learn_pieces(few, 300)[0].tokenizer
    texts = itertools.chain.from_iterable(few.splits["train"])
    cut = (library.pre_tokenizer.pre_tokenize_str(text) for text in texts)
    words = collections.Counter(tuple(word) for parts in cut for word, _ in parts)
    theirs = json.loads(library.to_str())["model"]["merges"][:12]
    assert first_merges(words, 12) == [tuple(pair) for pair in theirs]


# %% [markdown]
# Nothing is lost, since the mark says where a space was. Every training sentence comes back,
# letter for letter, up to the form of Unicode and doubled spaces. **Cost: a few seconds.**


# %%
@example
def check_every_training_sentence_comes_back_from_its_pieces():
    import unicodedata

    pieces = pieces_at_hand()
    for texts in zip(*corpus_at_hand().splits["train"], strict=True):
        for text, ids in zip(texts, pieces.encode(texts), strict=True):
            expected = " ".join(unicodedata.normalize("NFC", text).split())
            assert pieces.decode([START, *ids, END, PAD]) == expected


# %% [markdown]
# How do words fall apart? These cells learn 2,000 pieces, so that words are cut more often; the
# published model has 5,000. Frequent words stay whole. A compound is cut, not always where a
# grammar would cut it.


# %%
@example
def pieces_of_a_few_words():
    words = "Hund Kinder Straßenbahn Schneeballschlacht Xylophonist snowball xylophonist".split()
    pieces = pieces_at_hand()
    rows = [(word, " ".join(pieces.words[n] for n in pieces.encode([word])[0])) for word in words]
    caption = f"{len(pieces):,} pieces, learnt from the training split of {corpus_at_hand().name}"
    return table(rows, ["word", "pieces"]).set_caption(caption)


# %% [markdown]
# Sentences become longer, and nothing is unknown any more, except for letters that training never
# showed. The table compares words and pieces on the first test split.


# %%
@example
def words_beside_pieces():
    corpus, split = corpus_at_hand(), corpus_at_hand().tests()[0]
    kinds = {"words": encoded_at_hand().vocabularies, "pieces": (pieces_at_hand(),) * 2}
    rows = []
    for kind, vocabularies in kinds.items():
        for side, ids in enumerate(zip(*encode_pairs(corpus, split, vocabularies), strict=True)):
            flat = [n for sentence in ids for n in sentence if n not in (START, END)]
            unknown = f"{flat.count(UNKNOWN) / len(flat):.2%}"
            mean = f"{len(flat) / len(ids):.1f}"
            rows.append((kind, corpus.languages[side], len(vocabularies[side]), mean, unknown))
    columns = ["symbols", "language", "size of the list", "symbols a sentence", "unknown"]
    return table(rows, columns).set_caption(f"{corpus.name}, {split}")


# %% [markdown]
# > **How long should the list be?** A short list means long sentences of well-known pieces. A
# > long one means short sentences with pieces that were seen a few times only, and a wide and
# > slow output layer. The paper had 4.5 million pairs and took 37,000. For our 29,000 pairs we
# > take 5,000. In a short trial 10,000 did a little better ([Part 7](#choices)); with 5,000 the
# > model is smaller.
#
# <a id="one-matrix"></a>
# ## One matrix instead of three
#
# (§3.4) With one list for both languages a symbol has one id wherever it stands, even where it
# means two things (*die* is an article in German and a verb in English). So it can have one
# vector too: as input of the encoder, as input of the decoder, and as the row of the output layer
# against which a state is compared. `share_embeddings=True` of [Part 1](#make-model) does it. How
# many parameters does this save?


# %%
@example
def parameters_saved_by_sharing():
    import pandas as pd

    ours = RECIPE.pieces, RECIPE.N, RECIPE.d_model, RECIPE.d_ff
    models = {"base (Table 3, §5.1)": (37_000, 6, 512, 2048), "recipe": ours}
    rows = {}
    for name, (V, *sizes) in models.items():
        with torch.device("meta"):
            apart, shared = (
                count_parameters(make_model(V, V, *sizes, share_embeddings=share))
                for share in (False, True)
            )
        millions = {"three matrices": apart / 1e6, "one matrix": shared / 1e6}
        rows[name] = {key: f"{value:.1f} M" for key, value in millions.items()}
        rows[name]["saved"] = f"{1 - shared / apart:.0%}"
    return pd.DataFrame(rows).T


# %% [markdown]
# Our model loses a third of its parameters, and each symbol has one vector to learn instead of
# three.
#
# Part 1 has shown that the three uses hold the same parameter. Its gradient is the sum of three,
# one from each use. To see it, we give a copy of the model three matrices of its own with the
# same values, and add up what they receive.


# %%
@example
def check_the_gradient_of_the_shared_matrix_is_the_sum_of_three():
    shared = make_model(11, 11, 1, 8, 16, 2, 0.0, share_embeddings=True).double()
    apart = make_model(11, 11, 1, 8, 16, 2, 0.0).double()
    apart.load_state_dict(shared.state_dict())
    batch = Batch(torch.randint(4, 11, (2, 5)), torch.randint(4, 11, (2, 4)))
    for model in (shared, apart):
        SummedLoss(model, LabelSmoothing(11, PAD, 0.1))(
            batch.src, batch.tgt, batch.src_mask, batch.tgt_mask, batch.tgt_y
        ).backward()
    uses = apart.src_embed[0].lut, apart.tgt_embed[0].lut, apart.generator.proj
    total = sum(use.weight.grad for use in uses)
    torch.testing.assert_close(shared.tgt_embed[0].lut.weight.grad, total)


# %% [markdown]
# Under three names it is stored once. The checkpoint of a model with three matrices is larger by
# two of them.


# %%
@example
def check_the_shared_matrix_is_stored_once():
    sizes = []
    for share in (True, False):
        buffer = io.BytesIO()
        model = make_model(1000, 1000, 1, 8, 16, 2, share_embeddings=share)
        torch.save(model.state_dict(), buffer)
        sizes.append(len(buffer.getvalue()))
    assert abs(sizes[1] - sizes[0] - 2 * 1000 * 8 * 4) < 2000  # bytes; names and zips differ


# %% [markdown]
# <a id="model-to-take-away"></a>
# ## A model to take away
#
# A trained model should be at hand before anything is trained. So one lies beside this text, in
# `pretrained/`, and it has to be small. Nearly all of its bytes are the weights of matrices:
# fp32, four bytes each. For storing (not for computing) we round them to *int8*, whole numbers of
# one byte each, of which we use −127 to 127. The weight is the number times a *step* (often
# called *scale*). Each row of a matrix has a step of its own, its largest absolute value divided
# by 127. So a row of small weights does not suffer from a large weight elsewhere.


# %%
def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in int8, and a step for each: (rows, columns) -> (rows, columns), (rows,)."""
    largest = matrix.abs().amax(dim=1)
    require(bool(largest.isfinite().all()), "a matrix with NaN or infinity cannot be rounded")
    steps = (largest / 127).clamp(min=torch.finfo(largest.dtype).tiny)  # a row may be all zeros
    return (matrix / steps.unsqueeze(1)).round().to(torch.int8), steps


def dequantise(numbers: Tensor, steps: Tensor) -> Tensor:
    """The matrix that `quantise` was given, but for rounding."""
    return numbers * steps.view(len(numbers), 1)


# %% [markdown]
# Rounding to the nearest whole number misses by half a step at most. The check takes rows whose
# weights are very small, very large and all zero. Each must keep the promise with its own step,
# and must use its numbers up: an idle 127 means that the step could have been smaller.


# %%
@example
def check_rounding_misses_by_half_a_step_of_the_row_at_most():
    sizes = torch.tensor([1e-6, 0.01, 1.0, 1000.0, 0.0])
    matrix = torch.randn(5, 300) * sizes.unsqueeze(1)
    numbers, steps = quantise(matrix)
    error = (dequantise(numbers, steps) - matrix).abs().amax(dim=1)  # (5,)
    assert numbers.dtype == torch.int8 and (error <= 0.5001 * steps).all()
    assert numbers.abs().amax(dim=1).tolist() == [127, 127, 127, 127, 0]


# %% [markdown]
# Norms and biases are vectors. They are few, and stay as they are. `named_parameters` names a
# shared matrix once, which is what we want: the file format refuses a tensor under two names. The
# way back puts it into all three places. Sinusoids are not stored, since they follow from a
# formula.

# %%
ONE_MATRIX = ("src_embed.0.lut.weight", "tgt_embed.0.lut.weight", "generator.proj.weight")


def pack(model: EncoderDecoder) -> dict[str, Tensor]:
    """Parameters by name for a file: matrices in int8 beside their steps, vectors unchanged."""
    tensors = {}
    for name, value in model.named_parameters():
        tensors[name] = value.detach().cpu()
        if value.dim() == 2:
            tensors[name], tensors[f"{name}.steps"] = quantise(tensors[name])
    return tensors


def unpack(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a model from what `pack` returned."""
    state = {name: value for name, value in tensors.items() if not name.endswith(".steps")}
    for name, value in state.items():
        if value.dtype == torch.int8:
            state[name] = dequantise(value, tensors[f"{name}.steps"])
    return dict.fromkeys(ONE_MATRIX, state[ONE_MATRIX[0]]) | state


# %% [markdown]
# What does it cost? The demonstration of [Part 5](#demonstration) can tell. We store it in three
# formats and measure the loss of each on three hundred pairs of the validation split. The one in
# the middle, bf16, is fp32 with the last two of its four bytes rounded away.


# %%
@example
def loss_after_rounding():
    translator = load_trained_model(demonstration_run())
    model, pairs = translator.model, encode_pairs(corpus_at_hand(), "val", translator.vocabularies)
    batches = [collate(group).to(translator.device) for group in grouped(pairs[:300], 50)]
    state, rows = model.state_dict(), []
    half = {name: value.bfloat16() for name, value in state.items()}
    for name, tensors in {"fp32": state, "bf16": half, "int8": pack(model)}.items():
        model.load_state_dict(unpack(tensors))
        size = sum(value.nbytes for value in tensors.values()) / 1e6
        rows.append((name, f"{size:.1f}", f"{evaluate_loss(model, batches)['nll']:.4f}"))
    caption = f"demonstration, trained on {translator.corpus}"
    return table(rows, ["format", "MB", "loss per token"]).set_caption(caption)


# %% [markdown]
# The file shrinks to about a quarter, and the loss hardly moves. What it costs the model of this
# repository in BLEU was measured:


# %%
@example
@from_results("pretrained")
def what_int8_costs_in_bleu(kept: dict):
    rows = []
    for name, kind in kept["formats"].items():
        splits = [kind[split]["bleu"] for split in ("val", "test_2016_flickr", "test_2017_flickr")]
        rows.append((name, f"{kind['MB']:.1f}", *(f"{bleu:.1f}" for bleu in splits)))
    columns = ["format", "MB", "BLEU validation", "BLEU test 2016", "BLEU test 2017"]
    return table(rows, columns).set_caption(f"{kept['corpus']}; {kept['decoding']}")


# %% [markdown]
# Rounding costs at most a third of a point, less than another seed may.
#
# A model needs three files. The weights go into a *safetensors* file: names and shapes, then the
# plain numbers, and nothing that could be executed. The tokenizer is JSON already. The third file
# holds the settings, and a SHA-256 sum of each part. With the sums damage is noticed, and so are
# files of two models that got mixed.

# %%
PRETRAINED = Path("pretrained")


def save_pretrained(translator: Translator, folder: Path) -> None:
    """Write a model of pieces as three files; ValueError for a model of words."""
    from safetensors.torch import save

    pieces, settings = translator.vocabularies[0], dataclasses.asdict(translator.config)
    message = f"{translator.name} is a model of words, not of pieces: `--preset recipe` trains one"
    require(isinstance(pieces, Pieces), message)
    about = {"name": translator.name, "corpus": translator.corpus, "config": settings}
    parts = {"config.json": json.dumps(about).encode(), "tokenizer.json": pieces.settings.encode()}
    parts["model.safetensors"] = save(pack(translator.model))
    about["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    parts["config.json"] = f"{json.dumps(about, indent=1)}\n".encode()
    for name, data in parts.items():
        write_atomically(Path(folder, name), data)


# %% [markdown]
# Loading asks three questions. The first: is each file the one that was written? `config.json` is
# tested too. A wrong number of heads, for instance, changes no shape, and nothing else would
# notice it.


# %%
def checked_about(parts: dict[str, bytes]) -> dict:
    """What config.json says, if all parts are as its sums say; ValueError names one that is not."""
    try:
        about = json.loads(parts["config.json"])
        sums = dict(about.pop("sha256"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"config.json does not hold settings and sums ({error})") from None
    for name, data in (parts | {"config.json": json.dumps(about).encode()}).items():
        same = hashlib.sha256(data).hexdigest() == sums.get(name)
        require(same, f"{name} is damaged or belongs to another model: its SHA-256 sum differs")
    return about


# %% [markdown]
# The second: does the tokenizer have a piece for each row of the matrix, the special symbols
# first? The third, whether the weights fit the settings, is asked by `translator_from`, as for
# any checkpoint.


# %%
def translator_from_parts(parts: dict[str, bytes], device: torch.device | None) -> Translator:
    """A translator from the content of the three files, by name."""
    from safetensors.torch import load

    about, saved = checked_about(parts), parts["tokenizer.json"].decode()
    state, pieces = unpack(load(parts["model.safetensors"])), Pieces(saved)
    found = len(pieces), *pieces.words[: len(SPECIALS)]
    rows = len(state[ONE_MATRIX[0]])
    message = f"the tokenizer {found} does not fit the model {(rows, *SPECIALS)}"
    require(found == (rows, *SPECIALS), message)
    content = about | {"vocabularies": [saved], "model": state}
    return translator_from(content, f"{about.get('name')}, int8", device)


# %% [markdown]
# Whatever is wrong, the error names the folder and the way out.


# %%
def load_pretrained(folder: Path = PRETRAINED, device: torch.device | None = None) -> Translator:
    """A translator from what `save_pretrained` wrote, in eval mode.

    FileNotFoundError where a file is missing; ValueError where one is damaged, belongs to another
    model or does not fit.
    """
    from safetensors import SafetensorError

    way_out = "fetch its files again (`git checkout pretrained`), or write them with `export`"
    parts = {}
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if not Path(folder, name).is_file():
            raise FileNotFoundError(f"{Path(folder, name)} is missing: {way_out}")
        parts[name] = Path(folder, name).read_bytes()
    try:
        return translator_from_parts(parts, device)
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder} cannot be used: {error}; {way_out}") from None


# %% [markdown]
# <a id="model-at-hand"></a>
# ## The model from here on
#
# The demonstration knows little. From here on the page uses a finished model: the one that lies
# in the repository, in `pretrained/`; else the best run that was trained here to its end; else,
# in an empty folder, the demonstration after all. Every table and figure says which. At level
# `full` the whole recipe is trained instead. (The command line looks the other way round: your
# own runs first.)


# %%
def finished_run(corpus: str | None = None) -> Path | None:
    """The finished run with the highest validation BLEU, or None.

    With a corpus named, only runs on it that translate German into English count.
    """
    found, wanted = [], [corpus, ["de", "en"]]
    for path in runs_folder().glob("*/summary.json"):
        try:
            summary = read_summary(path.parent)
            suits = corpus is None or [summary["corpus"], summary["languages"]] == wanted
            fits = summary["status"] == "finished" and suits
            candidate = summary["validation_bleu"], path.parent
        except (ValueError, KeyError):
            warnings.warn(f"{path} is damaged: this run is passed over", stacklevel=2)
            continue
        is_real = "demonstration" not in path.parent.name and (path.parent / "best.pt").is_file()
        if fits and is_real:
            found.append(candidate)
    return max(found)[1] if found else None


# %% [markdown]
# A run counts as finished when its validation stopped improving, its epochs were used up, or it
# reached the BLEU that was asked for. A demonstration is never taken for a finished model.


# %%
AVERAGED = 6  # of the last epochs; other numbers are tried below


def whole_recipe() -> Path:
    """Train the recipe, or go on with it, and average its last epochs; returns the checkpoint."""
    folder = runs_folder() / "recipe-de-en"
    launch_training("recipe", folder)
    paths = sorted(folder.glob("epoch-*.pt"))[-AVERAGED:]
    save_checkpoint(folder / "average.pt", average_checkpoints(paths))
    return folder / "average.pt"


@functools.cache
def translator_at_hand() -> Translator:
    """The model that the rest of this page uses."""
    level = run_level()
    if level == "full":
        return load_trained_model(whole_recipe())
    if level == "laptop" and (PRETRAINED / "config.json").is_file():
        return load_pretrained()
    run = finished_run(corpus_at_hand().name) if level == "laptop" else None
    return load_trained_model(run or demonstration_run())


# %% [markdown]
# <a id="cached-decoding"></a>
# ## Decoding with a cache
#
# The plain loop of [Part 4](#greedy-decoding) computes the whole *prefix*, all that is written so
# far, again for each new symbol. It need not. What a position has computed does not depend on
# later positions: this is what the causal mask is for. So its keys and values can be kept (in a
# *KV cache*, as the literature says), and each step runs the decoder at one position only. The
# keys and values of the memory never change at all and are computed once.
#
# The classes of Part 1 stay as they are. A small class walks through the same layers with the
# same weights, one symbol at a time, for a batch of sentences with several hypotheses each (one
# is enough for greedy decoding). Two functions cut multi-head attention into halves: one makes
# keys and values, the other asks.


# %%
def keys_and_values(attn: MultiHeadedAttention, x: Tensor) -> list[Tensor]:
    """What may be attended to: (B, S, D) -> keys and values (B, H, S, K)."""
    return [attn.split(part) for part in joint_linear(x, attn.linears[1:3])]


def ask(attn: MultiHeadedAttention, x: Tensor, kept: Sequence[Tensor], mask=None) -> Tensor:
    """The other half: queries from x (B, T, D) over kept keys and values -> (B, T, D)."""
    heads = fast_attention(attn.split(attn.linears[0](x)), *kept, mask)
    return attn.linears[3](heads.transpose(1, 2).flatten(2))


# %% [markdown]
# Room for keys and values is taken once, for the longest target that is allowed. Appending to a
# tensor would copy all of it in every step, and a late symbol would cost more than an early one.
# (A beam copies it too, whenever its hypotheses change places.)


# %%
def empty_cache(keys: Tensor, beam: int, longest: int) -> list[Tensor]:
    """Room for keys and values such as these (B, H, S, K): two of (B·beam, H, longest, K)."""
    B, H, _, K = keys.shape
    return [keys.new_empty(B * beam, H, longest, K) for _ in range(2)]


def take_rows(kept: Tensor, rows: Tensor, length: int) -> Tensor:
    """These rows of a cache that is filled up to `length`, in the memory it has."""
    kept[: len(rows), :, :length] = kept[rows, :, :length]
    return kept[: len(rows)]


# %% [markdown]
# The hypotheses of a sentence share its memory. To cross-attention they are what positions are
# elsewhere: several queries to the same keys.


# %%
class CachedDecoder:
    """The decoder of a model, one symbol at a time, with keys and values of the past kept.

    memory (B, S, D), src_mask (B, 1, S); `beam` hypotheses for each sentence, `longest` symbols.
    The model must be in eval mode.
    """

    def __init__(self, model: EncoderDecoder, memory, src_mask, longest: int, beam: int = 1):
        limit = model.tgt_embed[1].pe.size(1)
        require(longest <= limit, f"a target longer than {limit} symbols does not fit the model")
        self.model, self.beam, self.sentences = model, beam, len(memory)
        self.mask = None if src_mask.all() else src_mask.unsqueeze(1)  # none without padding
        self.length, self.longest = 0, longest
        self.layers = model.decoder.layers
        self.crossing = [keys_and_values(layer.src_attn, memory) for layer in self.layers]
        self.maps = [joined(layer.self_attn.linears[:3]) for layer in self.layers]
        self.past = [empty_cache(keys, beam, longest) for keys, _ in self.crossing]

    def look_back(self, number: int, x: Tensor) -> Tensor:
        """Self-attention of a layer: the new position joins the past and looks at all of it."""
        attn, now = self.layers[number].self_attn, slice(self.length, self.length + 1)
        rows = F.linear(x, *self.maps[number]).view(-1, 1, 3 * x.size(-1))  # (B·beam, 1, 3 D)
        query, *new = map(attn.split, rows.chunk(3, dim=-1))  # (B·beam, H, 1, K) each
        for kept, each in zip(self.past[number], new, strict=True):
            kept[:, :, now] = each
        seen = (kept[:, :, : self.length + 1] for kept in self.past[number])
        return attn.linears[3](fast_attention(query, *seen).flatten(1).view_as(x))

    def step(self, symbols: Tensor) -> Tensor:
        """Symbols (B, beam) at the next position -> log-probabilities (B, beam, V) of the next."""
        embedding, positions = self.model.tgt_embed
        require(self.length < self.longest, f"no room for more than {self.longest} symbols")
        x = embedding(symbols) + positions.pe[:, self.length]  # (B, beam, D)
        for number, layer in enumerate(self.layers):
            crossing = {"kept": self.crossing[number], "mask": self.mask}
            x = layer.sublayer[0](x, functools.partial(self.look_back, number))
            x = layer.sublayer[1](x, functools.partial(ask, layer.src_attn, **crossing))
            x = layer.sublayer[2](x, layer.feed_forward)
        self.length += 1
        return self.model.generator(self.model.decoder.norm(x))

    def keep(self, sentences: Tensor, origin: Tensor) -> None:
        """Go on with these sentences (n,), their hypotheses grown from `origin` (n, beam)."""
        rows = (sentences.unsqueeze(1) * self.beam + origin).flatten()
        if len(sentences) < self.sentences:
            self.sentences = len(sentences)
            self.mask = None if self.mask is None else self.mask[sentences]
            self.crossing = [[part[sentences] for part in pair] for pair in self.crossing]
        elif torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            return  # all stay where they are
        self.past = [[take_rows(kept, rows, self.length) for kept in pair] for pair in self.past]


# %% [markdown]
# `keep` serves the search below, which drops some hypotheses and continues others more than once.
# Now the check: step by step with a cache, and all at once with a causal mask, in both orders of
# the norm.


# %%
@example
def check_cached_and_plain_decoding_agree():
    for norm_first in (True, False):
        model, batch = tiny_model(norm_first=norm_first), Batch(pad_ids([[4, 5, 6, 7], [9, 4]]))
        tgt = torch.randint(4, 13, (2, 6))
        memory = model.encode(batch.src, batch.src_mask)
        states = model.decode(memory, batch.src_mask, tgt, subsequent_mask(6))
        decoder = CachedDecoder(model, memory, batch.src_mask, longest=6)
        steps = [decoder.step(symbols) for symbols in tgt.T.unsqueeze(-1)]  # (B, 1, V) each
        torch.testing.assert_close(torch.cat(steps, dim=1), model.generator(states))


# %% [markdown]
# <a id="beam-search"></a>
# ## Beam search
#
# (§6.1) The likeliest next symbol is not always the beginning of the likeliest sentence. Looking
# at all sentences is out of the question. A *beam* keeps the few best beginnings, the
# *hypotheses*, and continues all of them in every step: each with every symbol, and of all these
# the best few are kept.
#
# The paper keeps four hypotheses, lets a translation be 50 symbols longer than its source, and
# stops early when it can.
#
# Hypotheses of different lengths must be compared. Each symbol costs probability, so long
# sentences lose by their length alone. The paper divides by a length penalty ([Wu et al.,
# 2016](https://arxiv.org/abs/1609.08144)) with $\alpha = 0.6$:
#
# $$\mathrm{score}(y) = \frac{\log p(y \mid x)}{\mathrm{lp}(y)}, \qquad
# \mathrm{lp}(y) = \left(\frac{5 + |y|}{6}\right)^{\alpha}$$
#
# where $|y|$ counts the symbols of the target, the end symbol included and the start not.
# Logarithms of probabilities are negative, so a larger divisor raises the score: longer sentences
# are helped.


# %%
def length_penalty(length: Tensor | int, alpha: float):
    """What the log-probability of a target is divided by (§6.1); its end counts, its start not."""
    return ((5 + length) / 6) ** alpha


# %% [markdown]
# A hypothesis that has written its end symbol keeps its place in the beam and is not continued.
# (Other programs move it to a list of its own and refill the beam.) The others compete for the
# places that are left; they are all of one length, so their log-probability decides.
#
# When may the search stop? A log-probability only falls, and the penalty is largest at the
# longest length that is allowed, $T_\mathrm{max}$. So no continuation of a hypothesis can ever
# score above $\log p\,/\,\mathrm{lp}(T_\mathrm{max})$. As soon as an ended hypothesis reaches the
# best of these bounds, it has won. The bound is *admissible*: it never ends a search too early.
# At the longest length the best hypothesis is taken, ended or not.
#
# A whole batch of sentences is searched at once, each with a beam of its own. First what is known
# about the hypotheses, and how they grow by one symbol.


# %%
@dataclass
class Hypotheses:
    """The beams of a batch of sentences."""

    written: Tensor  # (B, beam, length + 1), the start symbol first
    logp: Tensor  # (B, beam)
    length: Tensor  # (B, beam), symbols without the start
    ended: Tensor  # (B, beam)

    def grow(self, log_probs: Tensor) -> Tensor:
        """Take the best continuations, by log_probs (B, beam, V); returns origins (B, beam)."""
        beam, ended = log_probs.size(1), self.ended.unsqueeze(-1)
        # Of one hypothesis at most `beam` continuations can be among the best.
        best, symbol = log_probs.topk(min(beam, log_probs.size(2)))  # (B, beam, choices)
        # An ended hypothesis has one continuation: padding, which costs nothing.
        best, symbol = best.masked_fill(ended, 0.0), symbol.masked_fill(ended, PAD)
        total = self.logp.unsqueeze(-1) + best
        first = torch.arange(best.size(2), device=ended.device) == 0
        # It is ranked before all others, so that it keeps its place; its copies come last.
        rank = torch.where(ended, torch.where(first, torch.inf, -torch.inf), total).flatten(1)
        chosen = rank.topk(beam).indices  # (B, beam)
        origin, symbol = chosen // best.size(2), symbol.flatten(1).gather(1, chosen)
        # A place that nothing possible has filled keeps probability zero.
        self.logp = torch.where(rank.isneginf(), -torch.inf, total.flatten(1)).gather(1, chosen)
        before = self.written.gather(1, origin.unsqueeze(-1).expand_as(self.written))
        self.written = torch.cat([before, symbol.unsqueeze(-1)], dim=-1)
        had_ended = self.ended.gather(1, origin) & self.logp.isfinite()
        self.length = self.length.gather(1, origin) + ~had_ended
        self.ended = had_ended | (symbol == END) & self.logp.isfinite()
        return origin

    def score(self, alpha: float) -> Tensor:
        return self.logp / length_penalty(self.length, alpha)  # (B, beam)

    def decided(self, alpha: float, longest: int) -> Tensor:
        """(B,): True where no hypothesis that goes on can still beat the best that has ended."""
        best = self.score(alpha).masked_fill(~self.ended, -torch.inf).amax(1)
        going_on = self.logp.masked_fill(self.ended, -torch.inf).amax(1)
        return best >= going_on / length_penalty(longest, alpha)


# %% [markdown]
# At first each sentence has one hypothesis, which has written nothing. The other places are
# filled with impossible ones, of probability zero.


# %%
def empty_hypotheses(src: Tensor, beam: int, start_symbol: int) -> Hypotheses:
    """Beams of sentences src (B, S) before the first step."""
    start = src.new_full((len(src), beam, 1), start_symbol)
    logp = torch.full((len(src), beam), -torch.inf, device=src.device)
    logp[:, 0] = 0.0
    length = torch.zeros_like(logp, dtype=torch.long)
    return Hypotheses(start, logp, length, ended=torch.zeros_like(logp, dtype=torch.bool))


# %% [markdown]
# The search itself is a loop: continue, look which sentences are decided, hand out their best
# hypothesis, and go on with the rest.


# %%
def beam_search(
    model, src: Tensor, src_mask, max_len, start_symbol=START, beam: int = 4, alpha=0.6, record=None
) -> Tensor:
    """The best hypothesis of a beam (§6.1): src (B, S) -> ids (B, at most max_len).

    Rows are as those of `greedy_decode`. ValueError unless `beam` is at least 1 and `alpha` a
    number that is not negative. `record` receives origins and hypotheses of each step, to look at.
    """
    require(beam >= 1, f"a beam needs at least one hypothesis, got {beam}")
    require(0 <= alpha < math.inf, f"alpha must be a number and not negative, got {alpha}")
    require(max_len > 0, f"max_len must be at least 1, got {max_len}")
    at = torch.arange(len(src), device=src.device)  # the sentences still searched
    results = list(src.new_full((len(src), 1), start_symbol))
    with evaluating(model):
        decoder = CachedDecoder(model, model.encode(src, src_mask), src_mask, max_len - 1, beam)
        found = empty_hypotheses(src, beam, start_symbol)
        for length in range(1, max_len):
            origin = found.grow(decoder.step(found.written[:, :, -1]))
            if record is not None:
                record.append((origin, copy.copy(found)))
            done = found.decided(alpha, max_len - 1) | (length == max_len - 1)
            for n, best in zip(at[done].tolist(), found.score(alpha)[done].argmax(1), strict=True):
                results[n] = found.written[at == n, best][0]
            if done.all():
                break
            decoder.keep((~done).nonzero().flatten(), origin[~done])
            at, found = at[~done], Hypotheses(*(value[~done] for value in vars(found).values()))
    return nn.utils.rnn.pad_sequence(results, batch_first=True, padding_value=PAD)


# %% [markdown]
# A beam of one is greedy decoding. An ended hypothesis keeps its only place, and the search is
# over. This is also the check of the cache in use, in a batch of sentences that end at different
# times: the plain loop of Part 4 knows no cache.

# %%
greedy_search = functools.partial(beam_search, beam=1)  # greedy, with a cache


@example
def check_a_beam_of_one_is_greedy():
    for seed in range(5):
        torch.manual_seed(seed)
        model, batch = tiny_model(), Batch(pad_ids([[4, 5, 6, 7, 8], [9, 4], [10, 7, 7]]))
        greedy = greedy_decode(model, batch.src, batch.src_mask, 12, START)
        assert torch.equal(greedy_search(model, batch.src, batch.src_mask, 12, START), greedy)


# %% [markdown]
# The oracle for the search is to look at everything. With three symbols, the end, and at most
# three steps there are forty sequences, and each is scored by one plain forward pass.


# %%
def score_of(model: EncoderDecoder, src: Tensor, written: Tensor, alpha: float) -> float:
    """Score of one target by a plain forward pass: src (1, S), written (T + 1,) with its start."""
    written = written[written != PAD]
    batch = Batch(src, written.unsqueeze(0))
    with evaluating(model):
        states = model(src, batch.tgt, batch.src_mask, batch.tgt_mask)
        log_probs = model.generator(states)[0]  # (T, V)
    logp = log_probs.gather(1, written[1:].unsqueeze(1)).sum()
    return (logp / length_penalty(len(written) - 1, alpha)).item()


# %% [markdown]
# A beam that is wide enough to hold every prefix must find the best sequence of all. A narrower
# one may miss it, but can never claim more than the best.


# %%
@example
def check_a_beam_never_beats_exhaustive_search_and_a_full_one_equals_it():
    sequences = {
        s[: s.index(END) + 1] if END in s else s for s in itertools.product((1, 4, 5, 6), repeat=3)
    }
    for seed, alpha in itertools.product(range(3), (0.0, 0.6, 2.0)):
        torch.manual_seed(seed)
        model, src = make_model(7, 7, 1, 16, 32, 4).eval(), torch.tensor([[4, 6, 5, END]])
        nn.init.constant_(model.generator.proj.bias[:4], -torch.inf)
        model.generator.proj.bias.data[END] = 0.0
        everything = [score_of(model, src, torch.tensor([START, *s]), alpha) for s in sequences]
        for beam in (1, 2, 3, 7**3):
            best = beam_search(model, src, Batch(src).src_mask, 4, START, beam, alpha)[0]
            assert score_of(model, src, best, alpha) <= max(everything) + 1e-5
        assert math.isclose(score_of(model, src, best, alpha), max(everything), abs_tol=1e-5)


# %% [markdown]
# > **Can a beam find something worse than greedy decoding does?** Yes. The hypothesis that greedy
# > decoding follows may be pushed out of the beam by others which look better for a step or two,
# > and whose continuations all disappoint. Then the greedy sentence has the higher score, and the
# > beam has lost it. How often this happens on the validation split stands below.
#
# One search in full, from its record. A row for each place of each step says where it came from.


# %%
@functools.cache
def one_search(sentence: str = "Zwei Kinder spielen mit einem Ball.", beam: int = 3):
    """A recorded search as a table: step, place, the place it came from, symbol, score, path."""
    import pandas as pd

    translator, record, rows = translator_at_hand(), [], []
    src = torch.tensor([source_parts(translator, [sentence])[0][1]], device=translator.device)
    cap = length_cap(src.size(1), translator.config.max_len)
    beam_search(translator.model, src, Batch(src).src_mask, cap, START, beam, record=record)
    best = record[-1][1].score(0.6)[0].argmax().item()
    for step, (origins, found) in reversed(list(enumerate(record, 1))):  # so the best path is known
        origin, scores = origins[0].tolist(), found.score(0.6)[0].tolist()
        for place, score in enumerate(scores):
            if not math.isfinite(score) or found.length[0, place] < step:
                continue  # impossible, or ended before
            symbol = translator.vocabularies[1].words[found.written[0, place, -1]]
            row = {"step": step, "place": place + 1, "origin": origin[place] + 1, "symbol": symbol}
            path = "best" if place == best else "other"
            rows.append(row | {"score": round(score, 2), "path": path})
        best = origin[best]
    return pd.DataFrame(rows)


# %% [markdown]
# From the table to a tree: a line joins each symbol to the one that it grew from.


# %%
@example
def one_search_figure():
    import altair as alt

    translator = translator_at_hand()
    text = "A beam search as a tree: symbols by step and place, each joined to where it came from."
    title = f"model {translator.name}, corpus {translator.corpus}; below each symbol its score"
    last = int(one_search()["step"].max())
    slider = alt.binding_range(min=1, max=last, step=1, name="step ")
    shown = alt.param("steps_shown", value=last, bind=slider)
    chart = alt.Chart(one_search(), width=640, height=210)
    chart = chart.transform_filter("datum.step <= steps_shown")
    chart = chart.transform_calculate(before="datum.step - 1")
    paths = alt.Scale(domain=["best", "other"], range=["#2f6db5", "#8a8f98"])
    colour = alt.Color("path:N", title=None, scale=paths)
    whole = alt.Scale(domain=[0, last + 0.5], nice=False)
    step = alt.X("step:Q", title="step", scale=whole, axis=alt.Axis(grid=False, tickMinStep=1))
    place = alt.Y("place:O", title="place", axis=alt.Axis(ticks=False, grid=False))
    lines = chart.mark_rule().encode(
        x=alt.X("before:Q", title="step"),
        x2="step:Q",
        y=alt.Y("origin:O", title="place"),
        y2="place:O",
    )
    told = ["step:Q", "place:O", "symbol:N", "score:Q", "path:N"]
    names = chart.mark_text(dy=-9, fontSize=12).encode(
        x=step, y=place, text="symbol:N", tooltip=told
    )
    scores = chart.mark_text(dy=9, fontSize=9).encode(x=step, y=place, text="score:Q")
    drawn = lines.encode(color=colour) + names.encode(color=colour) + scores
    return drawn.add_params(shown).properties(description=text, title=title)


# %% [markdown]
# **Figure 15.** One search with three places. Move the slider to see it grow. Follow the lines
# from the left: each symbol grew from the place to which it is joined. A place without a line to
# its right was given up, unless its symbol is `</s>`: there a hypothesis has ended, and keeps its
# place. The path in blue has won. The log-probability falls with every symbol. The score may
# rise, since the penalty grows too.
#
# How wide should the beam be, and how large $\alpha$? `make results` has tried both on the
# validation split, with the model that this text publishes (before rounding).


# %%
@example
@from_results("beam")
def beam_and_length_penalty_on_the_validation_split(kept: dict):
    import pandas as pd

    for found in kept["against_greedy"]:
        counts = ", ".join(f"{found[name]} {name}" for name in ("below", "same", "above"))
        print(f"beam {found['beam']}, alpha {found['alpha']}, score against greedy: {counts}")
    frame = pd.DataFrame(kept["sweep"]).pivot(index="beam", columns="alpha", values="bleu")
    return (
        frame.rename(columns=lambda alpha: f"α = {alpha}")
        .map("{:.1f}".format, na_action="ignore")
        .fillna("")
    )


# %% [markdown]
# The counts above the table say how often a beam of four has lost a sentence that greedy decoding
# finds. Beyond four hypotheses a wider beam gains about a tenth of a point. For the published
# model the best $\alpha$ is 1.4, the largest that was tried, so a still larger one might do
# better. (Elsewhere this page decodes with the paper's 0.6.) A higher score is only the model's
# opinion of a sentence. BLEU compares with a human's.
#
# <a id="averaging"></a>
# ## Averaging checkpoints
#
# Each update is computed from a small batch and overshoots a little, now here, now there. The
# weights of the last epochs scatter around a place which none of them hits. Their mean lies
# nearer to it. (§6.1) The paper averages the last five checkpoints of its base model, written ten
# minutes apart, and the last twenty of the big one. It gives no reason; this is the usual one,
# and it holds for a learning rate that stays large to the end. Averaging costs no training at
# all. Here six epochs are averaged, a number fixed before we looked.
#
# Models are read one by one: at any time only the mean so far and one model are in memory,
# however many there are.


# %%
def mean_of_states(states: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of state dicts, read one by one; ValueError for none, or where shapes differ."""
    mean: dict[str, Tensor] = {}
    number = 0
    for state in states:
        number += 1  # noqa: SIM113 (`enumerate` would hold on to the one before)
        mean = mean or {name: torch.zeros_like(value) for name, value in state.items()}
        for name in sorted(mean.keys() | state.keys()):
            shapes = [tuple(s[name].shape) if name in s else "nothing" for s in (mean, state)]
            fits = shapes[0] == shapes[1]
            require(fits, f"model {number} has {shapes[1]} as {name}, those before it {shapes[0]}")
            mean[name] += (state[name] - mean[name]) / number
        del state  # before the next one is loaded
    require(bool(mean), "nothing to average: the list of models or checkpoints is empty")
    return mean


# %%
def average(model: nn.Module, models: Iterable[nn.Module]) -> None:
    """Give `model` the mean of the parameters of `models`, which may be a stream."""
    model.load_state_dict(mean_of_states(map(nn.Module.state_dict, models)))


def average_checkpoints(paths: Sequence[Path]) -> dict:
    """Content of a checkpoint with the mean weights of several; the rest is that of the last."""
    paths = list(paths)
    require(bool(paths), "nothing to average: the list of checkpoints is empty")
    content = load_checkpoint(paths[-1])
    del content["model"]

    def state_of(path: Path) -> dict[str, Tensor]:
        other = load_checkpoint(path)
        same = other["vocabularies"] == content["vocabularies"]
        require(same, f"{path} has another vocabulary than {paths[-1]}: no mean makes sense")
        return other["model"]

    return content | {"model": mean_of_states(map(state_of, paths))}


# %%
@example
def check_the_average_is_the_mean():
    first, second, third = (tiny_model() for _ in range(3))
    mean = tiny_model()
    average(mean, iter([first, second, third]))
    for name, value in mean.state_dict().items():
        parts = [model.state_dict()[name] for model in (first, second, third)]
        torch.testing.assert_close(value, sum(parts) / 3)


# %% [markdown]
# Why should a mean of weights be a good model at all? A network is not linear, and the mean of
# two unrelated models is worthless. But late checkpoints of one run lie close together, in one
# valley of the loss. To see it, walk on a straight line through the weights of two epochs, from
# well before the first to well beyond the second, and measure the loss on the validation split.
# `make results` has done this with two of the last epochs of the published run, and has averaged
# more and more epochs.


# %%
@example
@from_results("averaging")
def loss_along_the_line_figure(kept: dict):
    import pandas as pd

    x, y = "from the first epoch to the last", "loss per token"
    frame = pd.DataFrame(kept["line"]["points"]).rename(columns={"at": x, "nll": y})
    first, last = kept["line"]["epochs"]
    text = f"Validation loss on the line through the weights of epochs {first} and {last}."
    return line_chart(frame, x, y, text, points=True)


# %% [markdown]
# **Figure 16.** Validation loss on the straight line through the weights of two epochs, the first
# at 0 and the last at 1. At 0.5 is the mean of the two. Where the curve is lower there than at
# both ends, the mean is better than either. Where it still falls at 1 and beyond, the run was on
# its way, and a mean holds it back.


# %%
@example
@from_results("averaging")
def how_many_epochs_to_average(kept: dict):
    rows = [
        (row["averaged"] or "best epoch", row["bleu"], row["perplexity"]) for row in kept["sweep"]
    ]
    caption = f"{kept['run']}, validation split, {kept['decoding']}"
    return table(rows, ["last epochs averaged", "BLEU", "perplexity"]).set_caption(caption)


# %% [markdown]
# > **Does averaging always help?** It does what a falling learning rate does by itself. With the
# > paper's schedule the weights keep moving until the very end, and their mean is usually a
# > better place than any of them. On a straight line down to zero they come to rest, and there is
# > less left to gain. So it is with the published run: on the line the loss falls a little, and
# > BLEU moves by less than chance does.
#
# <a id="results"></a>
# # Part 7. Results
#
# <a id="bleu"></a>
# ## How good is it?
#
# (§6.1) Translations are compared with a human's by BLEU ([Papineni et al.,
# 2002](https://aclanthology.org/P02-1040/)). Take all runs of $n$ words of the translations
# (*n-grams*), for $n$ from 1 to 4. What share of them occurs in the reference of the same
# sentence, each counted no more often than there? These four shares are the *precisions* $p_1
# \dots p_4$. BLEU is their geometric mean, lowered by a *brevity penalty* where the translations,
# of $c$ words and punctuation marks in all, are shorter than the references, of $r$:
#
# $$\mathrm{BLEU} = 100 \cdot \min\bigl(1,\; e^{1 - r/c}\bigr) \cdot (p_1\, p_2\, p_3\, p_4)^{1/4}$$
#
# Matches are found sentence by sentence, and counted over the whole split before any share is
# taken. (A share of zero, which would make the product zero, is replaced by a small one; it
# happens only in tiny tests.) 100 would be the references themselves, word for word; on real text
# no system comes near.
#
# The number depends on details such as case and tokenization, and scores that differ in them
# cannot be compared. We score detokenized, cased text with sacreBLEU and print its signature,
# which fixes the details.


# %%
def evaluate(
    translator: Translator, corpus: Corpus, splits: Sequence[str] = (), decode=beam_search
) -> dict[str, dict]:
    """BLEU with signature, and perplexity of what fits the model, on some splits or all tests."""
    results, limit = {}, translator.config.max_len
    for split in splits or corpus.tests():
        sources, references = zip(*corpus.splits[split], strict=True)
        bleu, signature = corpus_bleu(translate(translator, sources, decode=decode), references)
        encoded = encode_pairs(corpus, split, translator.vocabularies)
        fits = sorted((p for p in encoded if max(map(len, p)) <= limit), key=lambda p: len(p[1]))
        batches = (collate(group).to(translator.device) for group in grouped(fits, 50))
        perplexity = evaluate_loss(translator.model, batches)["perplexity"]
        numbers = {"BLEU": round(bleu, 2), "perplexity": round(perplexity, 2)}
        results[split] = {"sentences": len(sources), **numbers, "signature": signature}
    return results


# %% [markdown]
# If you score a test split again and again and keep what scores best, you have chosen on it, and
# the score flatters the model. So this page scores the validation split, as often as it likes
# (**cost: less than a minute**). The test splits are scored by `make results`, once for each row
# and seed of the table below and for the model of `pretrained/`, and a log in `docs/results`
# keeps each of these scorings.


# %%
@functools.cache
def scores_at_hand() -> dict[str, dict]:
    """Scores of the model at hand on the validation split of the corpus at hand."""
    return evaluate(translator_at_hand(), corpus_at_hand(), ("val",))


# %%
@example
def scores_of_the_model_at_hand():
    import pandas as pd

    translator, scores = translator_at_hand(), scores_at_hand()
    print(f"model {translator.name}, trained on {translator.corpus}, beam of 4, alpha 0.6")
    print(f"{corpus_at_hand().name}, signature {scores['val']['signature']}")
    return pd.DataFrame(scores).T.drop(columns="signature")


# %% tags=["hide-input"]
class Facts(dict):
    """Facts about this page, also as metadata for the tool that publishes it and refuses toys."""

    def _repr_mimebundle_(self, **_) -> tuple[dict, dict]:
        return {"text/plain": repr(dict(self))}, {"annotated": dict(self)}


@example
def what_this_page_was_made_from():
    translator = translator_at_hand()
    finished = "demonstration" not in translator.name
    facts = {"corpus": corpus_at_hand().name, "model": translator.name, "finished_model": finished}
    return Facts(facts, level=run_level())


# %% [markdown]
# The five lines of Part 5 once more, by the model at hand:


# %%
@example
def what_the_model_at_hand_says():
    model = translator_at_hand()
    rows = list(zip(TRY_THESE, translate(model, TRY_THESE, decode=beam_search), strict=True))
    caption = f"model {model.name}, trained on {model.corpus}"
    return table(rows, ["source", "translation"]).set_caption(caption)


# %% [markdown]
# Ten sentences, not chosen by us: every hundredth of the first test split (every twentieth of a
# smaller one). They stand as they come, good and bad.


# %%
@example
def ten_fixed_test_sentences():
    corpus, model = corpus_at_hand(), translator_at_hand()
    split = corpus.tests()[0]
    pairs = corpus.splits[split]
    pairs = pairs[:: max(1, len(pairs) // 10)][:10]
    written = translate(model, [source for source, _ in pairs], decode=beam_search)
    rows = [(*pair, text) for pair, text in zip(pairs, written, strict=True)]
    caption = f"{corpus.name}, {split}; model {model.name}"
    return table(rows, ["source", "reference", "translation"]).set_caption(caption)


# %% [markdown]
# Where a translation and its reference differ, look twice. Sometimes the model has found other
# words for the same picture, and BLEU does not know that they mean the same. And sometimes it is
# wrong. The published model loses the branch (*Ast*) and the skateboard, makes a sporting event
# of a social one, and writes *refrest*. That is the price of pieces: a model that spells can
# invent words.
#
# <a id="step-by-step"></a>
# ## Step by step
#
# What is each part of the recipe worth? The same model is trained with words, then with pieces,
# then with one matrix. Then nothing more is trained. The same weights are decoded with a beam.
# Then the mean of the last six epochs takes the place of the best epoch. Last, the length penalty
# is set to the value that did best on the validation split. All else stays as it is. The rows
# *words* and *length penalty* are means of three seeds, the others one seed. So do not
# subtract one of these means from the row above it: the table of steps further down compares
# first seed with first seed. The last row is the same recipe from English to German.
#
# `make results` does all this and writes `docs/results/recipe.json`, with date, machine,
# versions, commit and all settings. The table is read from there.

# %%
SCORES = {
    "bleu": "BLEU",
    "bleu_lower": "BLEU, lower-cased",
    "chrf": "chrF",
    "perplexity": "perplexity",
}


def with_range(numbers: dict[str, float]) -> str:
    """A mean over seeds, with its range where there are several."""
    several = numbers["min"] < numbers["max"]
    extremes = f" ({numbers['min']:.1f}–{numbers['max']:.1f})" if several else ""
    return f"{numbers['mean']:.1f}{extremes}"


# %%
@example
@from_results("recipe")
def the_recipe_step_by_step(kept: dict):
    rows = []
    for row in filter(None, [*kept["rows"], kept["other_direction"]]):
        for split, scores in row["splits"].items():
            cells = {"row": row["step"], "split": split, "seeds": len(row["seeds"])}
            cells |= {title: with_range(scores[name]) for name, title in SCORES.items()}
            cells["parameters"] = f"{row['parameters'] / 1e6:.1f} M"
            rows.append(list((cells | {"minutes": with_range(row["minutes"])}).values()))
    columns = ["row", "split", "seeds", *SCORES.values(), "parameters", "minutes"]
    made, missing = kept["made"], ", ".join(kept["missing"]) or "no run"
    dates = " and ".join(sorted({run["date"] for run in kept["summaries"].values()}))
    told = f"{kept['corpus']}; {made['machine']}, trained {dates}; still missing: {missing}"
    signature = kept["rows"][0]["splits"]["test_2016_flickr"]["signatures"]["bleu"]
    return table(rows, columns).set_caption(f"{told}; BLEU {signature}")


# %% [markdown]
# The minutes are those of the training, on two CPU cores, with validation after each epoch. The
# three seeds of one setting differ by five minutes, so smaller differences mean nothing. Three
# of the rows are one training, which is also the first seed of the row *length penalty*. *chrF*
# ([Popović, 2015](https://aclanthology.org/W15-3049/)) compares runs of one to six letters
# instead of words, and asks both which share of the translation's runs is in the reference and,
# with more weight, which share of the reference's is in the translation. Perplexity is counted
# per symbol. Words and pieces are different symbols, so it can be compared between rows of pieces
# only, and only where they write the same language.
#
# Is a step real, or would another seed have given as much? Two answers. The *range* is the
# distance between the best and the worst seed of a row; of the rows with several seeds, the
# larger one counts. The *paired bootstrap* ([Koehn, 2004](https://aclanthology.org/W04-3250/))
# draws a thousand new test sets from the old one, sentence by sentence with replacement. In each
# the difference between the two systems comes out a little larger or smaller. Shift these thousand
# differences so that their mean is zero, as if the systems were equal. The share of them that is
# still larger than the difference we found is $p$. With a
# thousand draws 0.001 is the smallest that can come out: it never happened. Where $p$ is small,
# the choice of sentences is an unlikely cause. (The test sets are Koehn's idea, this way to count
# is sacreBLEU's: it looks at the size of the difference and at the upper side only. Counted on
# both sides $p$ would be two to three times as large.) A step larger than the range is no proof
# either: three seeds are few. And the last three steps train nothing anew. Both rows come from
# one training, so its luck is the same in both, and for these steps $p$ says more than the range.


# %%
@example
@from_results("recipe")
def which_steps_are_real(kept: dict):
    rows = []
    ranges = kept["range_of_seeds"].items()
    for row, (split, scores) in itertools.product(kept["rows"][1:], ranges):
        step = row["splits"][split]["step"]
        verdict = {None: "one seed so far", True: "smaller than the range of seeds"}
        told = verdict.get(step["smaller_than_seeds"], "larger")
        spread = "–" if scores is None else f"{scores:.2f}"
        gain, p = f"{step['bleu']:+.2f}", f"{step['p']:.3f}"
        rows.append((row["step"], split, gain, p, spread, told))
    columns = ["step", "split", "gain in BLEU", "p", "range of seeds", "verdict"]
    return table(rows, columns).set_caption("each row against the one before it, first seed")


# %% [markdown]
# The step from words to pieces is the only one that is larger than the range of seeds, with a
# small $p$, on both test sets. One matrix gives much on the second set and little on the first,
# and saves a third of the parameters. Beam search gives a point on the first set and half a point
# on the second, where $p$ is not small. For the mean of the last epochs chance is explanation
# enough: the straight line to zero has settled the weights already. The length penalty gives less
# than half a point on both sets, with a small $p$ on the first.
#
# The same rows as a picture, with the range of the seeds:


# %%
@example
@from_results("recipe")
def steps_figure(kept: dict):
    import altair as alt
    import pandas as pd

    rows = []
    for row in kept["rows"]:
        for split, scores in row["splits"].items():
            place = {"row": row["step"], "split": split}
            rows.append(place | {f"BLEU {name}": value for name, value in scores["bleu"].items()})
    text = "BLEU of each row on both test splits, bars for the range of the seeds."
    chart = alt.Chart(pd.DataFrame(rows), width=420, height=240)
    chart = chart.encode(y=alt.Y("row:N", sort=None), color="split:N")
    scale = alt.Scale(zero=False)
    dots = chart.mark_point(filled=True, size=70).encode(
        x=alt.X("BLEU mean:Q", scale=scale, title="BLEU"), tooltip=["row", "split", "BLEU mean"]
    )
    bars = chart.mark_rule().encode(x="BLEU min:Q", x2="BLEU max:Q")
    return (dots + bars).properties(description=text)


# %% [markdown]
# **Figure 17.** From words to the full recipe. Only the rows with several seeds have a bar, and
# their dots are means; the other dots are the first seed alone, whose steps the table above
# compares. The width of a bar shows what chance alone does to a training.
#
# And this is how the model in `pretrained/` came about, from the log of its training.


# %%
@example
@from_results("runs/recipe-1")
def training_of_the_published_model_figure(kept: dict):
    import altair as alt
    import pandas as pd

    frames, charts = {}, []
    for kind in ("train", "validation"):
        log = [entry for entry in kept["log"] if entry["kind"] == kind]
        names = {"step": "update", "lr": "learning rate", "grad_norm": "gradient norm"}
        names |= {"loss": "training loss", "perplexity": "validation perplexity"}
        frames[kind] = pd.DataFrame(log).rename(columns=names | {"bleu": "validation BLEU"})
    for kind, name in (("train", "training loss"), ("validation", "validation perplexity"),
                       ("validation", "validation BLEU"), ("train", "learning rate"),
                       ("train", "gradient norm")):  # fmt: skip
        frame = frames[kind][["update", name]].iloc[1:]
        charts.append(line_chart(frame, "update", name, "", width=270).properties(height=150))
    minutes = f"{kept['summary']['minutes']} minutes, {kept['summary']['ranks']} processes"
    text = f"Loss, perplexity, BLEU, learning rate and gradient norm of a training: {minutes}."
    grid = alt.vconcat(alt.hconcat(*charts[:2]), alt.hconcat(*charts[2:4]), charts[4])
    return grid.properties(description=text, title=minutes)


# %% [markdown]
# **Figure 18.** The training of the published model. (The first report is left out of each curve:
# in most it lies far from the rest and would flatten it.) Each point of the training loss and of
# the gradient norm is a single update, so these curves are rough. Validation perplexity falls
# until near the end, so the model has hardly begun to learn its corpus by heart. BLEU wavers from
# epoch to epoch, even among the last ones, by more than many a step of the table above is worth.
#
# > **How do these numbers compare with others?** Two are often quoted for Transformers trained on
# > Multi30k alone. [Trevett's
# > tutorial](https://github.com/bentrevett/pytorch-seq2seq/blob/7faa64a895fe4b76cb87409d66a0ba349a78298e/6%20-%20Attention%20is%20All%20You%20Need.ipynb)
# > reports 36.5 from German to English on test 2016, with 3 + 3 layers of 256, words, and greedy
# > decoding. [Wu et al., 2021](https://arxiv.org/abs/2105.14462) report 41.0 from English to
# > German, with 4 + 4 layers of 128, 10,000 merges, averaging and a beam of 5. Both score
# > tokenized text, with a tokenizer of their own. The nearest of our numbers is the lower-cased
# > BLEU, and it is not the same measure. For cased, detokenized text with a signature we found no
# > published number.
#
# <a id="choices"></a>
# ## Choices
#
# (§6.2) The paper varies heads, sizes, dropout, label smoothing and positions (Table 3). We vary
# what the table below lists, one thing at a time (widths together with their heads), with one
# seed and a quarter of the updates. Greedy BLEU on the validation split decides.


# %%
@example
@from_results("trials")
def trials_on_the_validation_split(kept: dict):
    rows = []
    for trial in kept["trials"]:
        told = ", ".join(f"{name} {now}" for name, (_, now) in trial["changes"].items()) or "none"
        final, millions = trial["final"], f"{trial['parameters'] / 1e6:.1f} M"
        rows.append((told, f"{final['bleu']:.1f}", f"{final['perplexity']:.2f}", millions))
    columns = ["change", "BLEU", "perplexity", "parameters"]
    names = "N d_model d_ff h dropout pieces schedule warmup factor batch_tokens".split()
    base = ", ".join(f"{name} {kept['base'][name]}" for name in names)
    told = f"validation after {trial['final']['epoch']} epochs; without a change: {base}"
    return table(rows, columns).set_caption(told)


# %% [markdown]
# The warm-up moves most: one of 200 updates costs sixteen points, and 800 are better than 400. It
# moves two things at once, since half the steps also make the peak higher, by $\sqrt 2$. Batches
# half as large lose nine points, though there are twice as many updates: each follows a noisier
# gradient, and the warm-up is over after half as many sentences. This table cannot tell such
# causes apart. Dropout comes third: in so short a training 0.1 is eight points above 0.4. The
# straight line is a point above the paper's curve, which another seed might turn around. A fourth
# layer loses two points, since it learns more slowly. Where two settings do equally well, the
# smaller model is taken: width 192, and not 256. `keep` only keeps more files, so the row with
# schedule and keep is the training with that schedule again, made with another state of this
# code, and what lies between the two rows is chance. Lists of different lengths have different
# pieces, and their perplexities cannot be compared.
#
# Two warnings. One change at a time says nothing about two at once. And a short training favours
# what learns fast, above all little dropout. In a long training the same model would overfit. So
# three settings of the recipe are judgement and no result of this table: more dropout than the
# best of it, and for four times as many updates a longer warm-up, 1,000, with factor 1.5, which
# keeps the peak about where it was. (Three trials were broken off and are not shown: a width of
# 384, eight heads, and factor 1.5 with the short warm-up. The first learnt no faster and took
# twice as long.)
#
# <a id="speedrun"></a>
# ## How fast can it go?
#
# How long does it take from raw text to a usable model? `make speedrun` starts a clock, learns
# the pieces, trains on two ranks, validates after each epoch, and stops the clock at the first
# checkpoint that reaches 38 BLEU on the validation split with greedy decoding.


# %%
@example
@from_results("speedrun")
def from_raw_text_to_a_translator(kept: dict):
    rows = [
        (run["seed"], run["minutes"], run["summary"]["epochs"], run["bleu"])
        for run in kept["seeds"]
    ]
    mean = f"mean {kept['minutes']['mean']:.1f} minutes" if kept["minutes"] else "not all arrived"
    made = f"{kept['made']['machine']}, {kept['made']['date']}"
    return table(rows, ["seed", "minutes", "epochs", "BLEU"]).set_caption(f"{mean}; {made}")


# %% [markdown]
# What makes it quick is a small vocabulary, batches with little padding, bf16 where the processor
# has it, dropout from random bytes, a loss in chunks, a cache for validation, and a learning rate
# that comes down in time. Dropout is 0.1 here: in so few epochs the model cannot learn the corpus
# by heart, and more dropout would only make it slower to learn.
#
# <a id="speed"></a>
# ## Where the time goes
#
# `make bench` measures the code of this text beside others: PyTorch's `nn.Transformer` on the
# same batches, in the same formats, and the way the 2022 version of this text fed its model:
# every sentence padded to 72 symbols, text cut into words inside the training loop, weights of
# attention and smoothed targets stored as tables, in fp32 and one process. (The model behind that
# feed is ours, with our fused norm and optimizer, so the feed is not at a disadvantage.) The
# symbols are words, so that all have the same. Speed is counted in target symbols that are not
# padding.


# %%
def measured(kept: dict, task: str) -> list[dict]:
    """The cases of the benchmark that belong to a task."""
    return [case for case in kept["cases"] if case["task"] == task]


@example
@from_results("benchmark")
def training_speed(kept: dict):
    rows, slow = [], {}
    for case in measured(kept, "train"):
        speed = case["tokens per second"]
        times = speed / slow.setdefault(case["size"], speed)  # the feed of 2022 comes first
        how = f"{case['ranks']} × {case['threads']}"
        numbers = f"{speed:,.0f}", f"{times:.1f}", f"{case['peak MB']:,.0f}"
        rows.append((case["label"], case["size"], case["dtype"], how, *numbers))
    columns = ["code", "size", "format", "processes × threads", "symbols/s", "times 2022", "MB"]
    told = f"{kept['made']['machine']}, {kept['made']['date']}, median of {kept['rounds']} rounds"
    return table(rows, columns).set_caption(told)


# %% [markdown]
# What had we aimed at? Each target was set before its ratio was measured. A ratio belongs to a
# machine as well: the table has those of two processors, the second with an earlier version of
# the code. Where the first misses a target, the table below says where the time goes.


# %%
def table_of_ratios(*benchmarks: dict) -> tuple[list[tuple], list[str]]:
    """Measured ratios beside their targets: rows and names of columns, for this page and README."""
    rows = []
    for same in zip(*(kept["ratios"] for kept in benchmarks), strict=True):
        aim = f"{'at most' if same[0]['at most'] else 'at least'} {same[0]['target']:g}"
        numbers = (f"{r['ratio']:.2f}{'' if r['reached'] else ', missed'}" for r in same)
        rows.append((same[0]["what"], aim, *numbers))
    machines = (kept["made"]["machine"].split(",")[0] for kept in benchmarks)
    return rows, ["ours against others", "aimed at", *machines]


@example
@from_results("benchmark", "benchmark-xeon")
def ratios_and_what_was_aimed_at(*benchmarks: dict):
    made = [f"{kept['made']['date']}, commit {kept['made']['commit'][:7]}" for kept in benchmarks]
    return table(*table_of_ratios(*benchmarks)).set_caption("; ".join(made))


@example
@from_results("benchmark")
def where_missed_targets_lose_their_time(kept: dict):
    rows = [
        (case, operation, f"{share:.0%}")
        for case, shares in kept["profiles"].items()
        for operation, share in itertools.islice(shares.items(), 5)
    ]
    return table(rows, ["case", "operation", "share"]) if rows else "every target was reached"


# %% [markdown]
# What is missed lies close to what PyTorch does anyway. In fp32 three quarters of the time go to
# products of matrices (`mm` and `addmm`), which both codes need, so the rest can give little.
# (`copy_` converts between formats and layouts.) In bf16, where these products are quick, the
# rest is most of the work, and the ratios are larger.
#
# <a id="gains"></a>
# ### What each gain is worth
#
# Take one away, and measure again. The same training without it, everything else as it is. A
# number of 1.3 says that without this one gain, training takes 1.3 times as long. (*Another
# allocator* is tcmalloc, which `make train` uses where it is installed. A step asks for memory
# thousands of times, and the system's allocator gives large pieces back each time, to be cleared
# and handed out again.)


# %%
@example
@from_results("benchmark")
def what_each_gain_is_worth(kept: dict):
    rows = []
    (whole,) = (c for c in measured(kept, "train") if c["name"] == "train-ours-small-bf16-1x2")
    (plain,) = (c for c in measured(kept, "train") if c["name"] == "train-ours-small-fp32-1x2")
    for case in [plain, *measured(kept, "without")]:
        name = case["change"][0] if case["change"] else "bf16"
        slower = whole["tokens per second"] / case["tokens per second"]
        rows.append((name, f"{slower:.2f}", f"{case['peak MB'] - whole['peak MB']:+,.0f}"))
    caption = f"small size, bf16, one process of two threads; {kept['made']['date']}"
    return table(rows, ["without", "times as long", "MB"]).set_caption(caption)


# %% [markdown]
# Memory is a gain of its own. A loss that stores all scores needs a table of tokens times
# vocabulary, several times over; the loss in chunks never holds more than a chunk of it.


# %%
VARIED = {  # what grows in steps of training: its name in the benchmark, and in words
    "tokens": "symbols in a batch",
    "length": "symbols in a sentence",
    "N": "layers",
    "d_model": "width",
    "V": "size of the vocabulary",
}


@example
@from_results("benchmark")
def memory_of_the_loss_figure(kept: dict):
    import altair as alt
    import pandas as pd

    codes = {"ours": "in chunks", "whole loss": "all at once"}
    frame = pd.DataFrame(
        {"what": case["change"][0], "value": case["change"][1], "loss": codes[case["code"]],
         "MB": round(case["peak MB"])} for case in measured(kept, "scale")
    )  # fmt: skip
    charts = [
        line_chart(frame[frame["what"] == what], "value", "MB", "", "loss", points=True, width=220)
        .properties(title=VARIED[what]) for what in ("V", "tokens")
    ]  # fmt: skip
    text = "Memory of a training step against vocabulary and batch, with the loss in two ways."
    return alt.hconcat(*charts).properties(description=text)


# %% [markdown]
# **Figure 19.** What a training step adds to the memory of the process. Both lines grow: on the
# left because gradients and Adam's two means grow with the weights, on the right because the
# activations do. The distance between them is the table of scores, about three times over.
#
# The gains are explained where they are made: [one product for several
# maps](#multi-head-attention), [fused attention](#fast-attention), [dropout from random
# bytes](#residual), [the fused norm](#layer-norm), [the loss in chunks](#chunked-loss), [fused
# Adam](#schedule), [batches alike in length](#token-budget), [mixed precision](#workers). Where a
# product of matrices is quick, as in bf16 on this processor, most of the time goes to everything
# around it, and a pass over memory saved is worth more than arithmetic saved.
#
# Decoding is compared on the sentences of test 2016, with the model of `pretrained/`: our cached
# search; the plain loop of Part 4, one sentence at a time; and
# [CTranslate2](https://github.com/OpenNMT/CTranslate2), an engine in C++ made for nothing else,
# with the same weights and the same batches. (Its length penalty is another one, so its
# translations differ a little where the beam is wider than one.)


# %%
@example
@from_results("benchmark")
def decoding_speed(kept: dict):
    rows = []
    for case in measured(kept, "decode"):
        speed = f"{case['sentences per second']:,.0f}"
        rows.append((case["label"], case["dtype"], case["beam"], speed))
    columns = ["code", "format", "beam", "sentences/s"]
    return table(rows, columns).set_caption("test 2016, batches of 100 sentences alike in length")


# %% [markdown]
# The plain loop computes the whole prefix for each symbol, so the 500th costs far more than the
# tenth. With the cache a step of greedy decoding attends to more keys as the target grows, and
# does nothing else more than before. (In the table above the plain loop also works on one
# sentence at a time, and ours on batches of a hundred; the figure compares equal numbers.) The
# figure shows such steps of an untrained model of the small size.


# %%
@example
@from_results("benchmark")
def cost_of_a_late_symbol_figure(kept: dict):
    import altair as alt
    import pandas as pd

    rows = []
    for case in measured(kept, "position"):
        many = f"{case['change'][1]} at once"
        name = f"{'with a cache' if case['code'] == 'ours' else 'plain loop'}, {many}"
        places = {int(key): value for key, value in case.items() if key.isdecimal()}
        rows += [{"position": n, "milliseconds": ms, "decoding": name} for n, ms in places.items()]
    text = "Milliseconds of one decoding step against the position, with and without a cache."
    frame = pd.DataFrame(rows).round(2)
    chart = line_chart(frame, "position", "milliseconds", text, "decoding", points=True)
    return chart.encode(y=alt.Y("milliseconds:Q", scale=alt.Scale(type="log")))


# %% [markdown]
# **Figure 20.** Time of one more symbol at growing positions, for one sentence and for eight at
# once, on a logarithmic scale. Look at the slopes. With the cache the lines are flat, but for
# noise. In the plain loop the 512th symbol costs about ten times as much as the 16th for one
# sentence, and more than twenty times for eight.
#
# <a id="cost"></a>
# ## What does it cost?
#
# Nearly all the arithmetic of a Transformer is matrix products, and these can be counted on
# paper. A product of a vector and a $D \times D$ matrix takes $D^2$ multiplications and as many
# additions. An encoder layer has four such products for each position, and two with the
# feed-forward network. A decoder layer has two more, and makes keys and values of the memory.
# That was for one position. For a whole pair, scores and weighted means take $2S^2D$ in each
# self-attention of the encoder, $2T^2D$ in the decoder and $2STD$ in cross-attention, and the
# output layer takes $TDV$. The backward pass does each product twice more, once for the input and
# once for the weights.


# %%
def training_flops(N: int, D: int, d_ff: int, V: int, S: int, T: int) -> int:
    """Floating-point operations of one pair of S and T symbols, forward and backward."""
    encoder = S * (4 * D * D + 2 * D * d_ff) + 2 * S * S * D
    decoder = T * (6 * D * D + 2 * D * d_ff) + 2 * S * D * D + 2 * T * (T + S) * D
    multiplications = N * (encoder + decoder) + T * D * V
    return 3 * 2 * multiplications


# %% [markdown]
# PyTorch can count too, while it computes. Its counter does not look into the fused kernel, so we
# give it the attention to read, which we get by asking for the weights.


# %%
@example
def check_the_count_is_that_of_pytorch():
    from torch.utils.flop_counter import FlopCounterMode

    model, tgt_mask = make_model(11, 13, 2, 16, 48, 4), subsequent_mask(3)
    src, tgt, src_mask = torch.ones(1, 5).long(), torch.ones(1, 3).long(), torch.ones(1, 1, 5) > 0
    with FlopCounterMode(display=False) as counter:
        states = model.decode(model.encode(src, src_mask, []), src_mask, tgt, tgt_mask, [])
        model.generator(states).sum().backward()
    assert counter.get_total_flops() == training_flops(2, 16, 48, 13, 5, 3)


# %% [markdown]
# The paper trains its base model for 100,000 steps and its big one for 300,000, with about 25,000
# symbols on each side of a batch (§5.1, §5.2). It gives $3.3 \cdot 10^{18}$ and $2.3 \cdot
# 10^{19}$ operations (Table 2). These are not counts: they are the time of the training, 12 hours
# and 3.5 days, times eight GPUs, times the 9.5 tera-operations per second in single precision
# that each was assumed to sustain (§6.1). Divide our count by theirs, and you get the share of
# that speed which went into these products, padding included. We take 27 symbols for a sentence.
# Other lengths hardly change the count, since nearly all of it is in the linear maps: from 20 to
# 100 symbols the share of the base model moves by less than a point.


# %%
def operations_of_the_paper(length: int = 27) -> dict[str, float]:
    """Counted operations of the paper's two trainings, with sentences of a given length."""
    pairs = 25_000 / length
    each = lambda c: training_flops(c.N, c.d_model, c.d_ff, 37_000, length, length)  # noqa: E731
    return {"base": 1e5 * pairs * each(PAPER), "big": 3e5 * pairs * each(BIG)}


@example
def operations_beside_table_2():
    rows, paper = [], {"base": 3.3e18, "big": 2.3e19}
    for name, ours in operations_of_the_paper().items():
        rows.append((name, f"{paper[name]:.1e}", f"{ours:.1e}", f"{ours / paper[name]:.0%}"))
    return table(rows, ["model", "paper: time × speed", "counted", "share"])


# %% [markdown]
# The count is well below the paper's numbers, which include whatever else kept the GPUs busy or
# waiting. The share is larger for the big model, whose products are wider.
#
# How much of its peak does our machine reach? (The peak is the speed of one large product.) The
# figure shows steps of the small model as one thing grows. Small batches and narrow layers leave
# it idle: their products are short, and what surrounds them takes the time.


# %%
@example
@from_results("benchmark")
def share_of_the_peak_figure(kept: dict):
    import altair as alt
    import pandas as pd

    (peak,) = (c["GFLOP/s"] for c in measured(kept, "peak") if c["dtype"] == "bf16")
    frame = pd.DataFrame(
        {"what": case["change"][0], "value": case["change"][1],
         "share of the peak, %": round(100 * case["GFLOP/s"] / peak, 1),
         "symbols/s": round(case["tokens per second"]), "MB": round(case["peak MB"]),
         "milliseconds": round(case["milliseconds"])}
        for case in measured(kept, "scale") if case["code"] == "ours"
    )  # fmt: skip
    charts = [
        line_chart(frame[frame["what"] == what], "value", "share of the peak, %", "", points=True,
                   width=250).properties(title=VARIED[what], height=150)
        for what in ("tokens", "length", "N", "d_model")
    ]  # fmt: skip
    text = f"Share of the peak of {peak:,.0f} GFLOP/s in steps of training as one thing grows."
    grid = alt.vconcat(alt.hconcat(*charts[:2]), alt.hconcat(*charts[2:]))
    return grid.properties(description=text)


# %% [markdown]
# **Figure 21.** Share of the peak in bf16 that a step reaches, counted by the formula above, as
# batch, length, depth and width grow. Look at where a curve flattens: batches of more than 5,000
# symbols gain nothing here, more layers never did, and width gains all the way. The same steps in
# numbers:


# %%
@example
@from_results("benchmark")
def what_a_step_costs(kept: dict):
    rows = []
    for case in measured(kept, "scale"):
        what, value = case["change"]
        name = VARIED[what] if case["code"] == "ours" else f"{VARIED[what]}, scores all at once"
        numbers = (case[key] for key in ("milliseconds", "peak MB", "tokens per second", "GFLOP/s"))
        rows.append((name, f"{value:,}", *(f"{number:,.0f}" for number in numbers)))
    columns = ["what is varied", "value", "ms a step", "MB", "symbols/s", "GFLOP/s"]
    return table(rows, columns).set_caption("otherwise 3 layers of 256, 160 sentences of 16")


# %% [markdown]
# The loss in chunks saves memory in every row but that of the smallest batch. In time the two are
# alike, as far as the noise of this machine lets us tell, until the table of scores grows large:
# with 10,240 symbols in a batch, or 32,000 in the vocabulary, chunks are quicker.
#
# With the best speed of this table we can say how long the paper's models would take here, and
# what they would cost if a core were rented for five cents an hour (a price that we assume). It
# is the speed of the widest model in the table, and the paper's are as wide or wider.


# %%
@example
@from_results("benchmark")
def hours_for_the_models_of_the_paper(kept: dict):
    rows, paper = [], {"base": "12 hours", "big": "3.5 days"}
    ours = [case for case in measured(kept, "scale") if case["code"] == "ours"]
    best = max(case["GFLOP/s"] for case in ours)
    cores = int(re.search(r"(\d+) CPU cores", kept["made"]["machine"])[1])
    for name, flops in operations_of_the_paper().items():
        hours = flops / best / 1e9 / 3600
        price = f"{0.05 * cores * hours:,.0f} dollars"
        rows.append((name, paper[name], f"{hours:,.0f} hours", price))
    caption = f"{best:,.0f} GFLOP/s, the best of the table above; {kept['made']['machine']}"
    return table(rows, ["model", "paper, 8 GPUs of 2016", "here", "rented"]).set_caption(caption)


# %% [markdown]
# <a id="looking-inside"></a>
# # Part 8. Looking inside
#
# <a id="follow"></a>
# ## One sentence, all the way
#
# Before we look at attention, here is a whole forward pass in numbers. The model reads a sentence
# and its own translation, as in training. A *hook* is a function that PyTorch calls whenever a
# module has computed its output. Ours write down what every part hands on: the shape, the mean
# length of its vectors, and the first three numbers at the last position.

# %%
SENTENCE = "Ein kleines Mädchen hebt einen roten Ball auf."


def watch(model: EncoderDecoder) -> tuple[list, contextlib.ExitStack]:
    """A list to which every part of the model adds (name, output), and the way to stop it."""
    seen, hooks = [], contextlib.ExitStack()

    def follow(name: str, module: nn.Module) -> None:
        hook = module.register_forward_hook(lambda _, given, out: seen.append((name, out)))
        hooks.callback(hook.remove)

    for side, embed in (("encoder", model.src_embed), ("decoder", model.tgt_embed)):
        follow(f"{side}: embedding × √D", embed[0])
        follow(f"{side}: with positions", embed[1])
        stack = getattr(model, side)
        for number, layer in enumerate(stack.layers, 1):
            names = ["self-attention", "cross-attention", "feed-forward"]
            for name, part in zip(names if len(layer.sublayer) == 3 else names[::2],
                                  layer.sublayer, strict=True):  # fmt: skip
                follow(f"{side} layer {number}: after {name}", part)
        follow(f"{side}: last norm", stack.norm)
    follow("generator: log-probabilities", model.generator)
    return seen, hooks


# %%
@example
def one_sentence_all_the_way():
    translator, rows = translator_at_hand(), []
    (text,) = translate(translator, [SENTENCE], decode=beam_search)
    ids = [
        v.encode([t], language)[0]
        for v, t, language in zip(
            translator.vocabularies, (SENTENCE, text), translator.config.languages, strict=True
        )
    ]
    batch = collate([([*ids[0], END], [START, *ids[1], END])]).to(translator.device)
    seen, hooks = watch(translator.model)
    with hooks, evaluating(translator.model):
        states = translator.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        translator.model.generator(states)
    for name, out in seen:
        first = "  ".join(f"{x:+.2f}" for x in out[0, -1, :3].tolist())
        length = "" if "log-prob" in name else f"{out.norm(dim=-1).mean():.1f}"
        rows.append((name, str(tuple(out.shape)), length, first))
    columns = ["after", "shape", "length of a vector", "first numbers"]
    made = f"model {translator.name}, trained on {translator.corpus}"
    return table(rows, columns).set_caption(html.escape(f"{SENTENCE} → {text} ({made})"))


# %% [markdown]
# Read the third column from the top. Each sub-layer adds to the stream, and its vectors grow from
# layer to layer. Nothing inside the stack holds them back: the norms stand beside the stream. The
# last norm brings them back to a size that depends on its scale and shift. The shape never
# changes inside a stack; only the generator widens it, to one number for each symbol of the
# vocabulary. The second of them belongs to `</s>`. In the published model it is −0.07, so after
# the full stop the sentence ends with a probability of $e^{-0.07} = 0.93$.
#
# <a id="attention-maps"></a>
# ## Attention of a sentence
#
# Which words does the model look at? We let it translate a sentence, give it its own translation
# as target, and ask every attention for its weights. The model is in eval mode: dropout would
# punch holes into the picture. Rows are queries, columns are keys, and the labels are read off
# the same ids that the model read.


# %%
@dataclass(frozen=True)
class AttentionMaps:
    """Attention of one sentence: by kind, (layers, H, queries, keys), with the tokens of both."""

    weights: dict[str, Tensor] = field(repr=False)
    tokens: dict[str, tuple[list[str], list[str]]]  # by kind: of the queries, of the keys
    sentence: str = ""


KINDS = ("encoder self-attention", "decoder self-attention", "cross-attention")


# %% [markdown]
# One pass over encoder and decoder with a list as `record` gives all weights at once. A decoder
# layer appends its self-attention first and its cross-attention second, so the two kinds
# alternate in the list. The heads of all layers come in one table, with one more "head" at the
# end that spreads its weight equally over all that it may see. It will tell what a head without
# any preference would score.


# %%
def recorded_attention(translator: Translator, batch: Batch) -> dict[str, Tensor]:
    """Weights by kind, (B, N·H + 1, T, S), the heads layer by layer, and last, equal weights."""
    model, inside, crossing = translator.model, [], []
    with evaluating(model):
        memory = model.encode(batch.src, batch.src_mask, inside)
        model.decode(memory, batch.src_mask, batch.tgt, batch.tgt_mask, crossing)
    recorded = inside, crossing[0::2], crossing[1::2]
    masks, weights = (batch.src_mask, batch.tgt_mask, batch.src_mask), {}
    for kind, each, mask in zip(KINDS, recorded, masks, strict=True):
        equal = (mask / mask.sum(-1, keepdim=True)).unsqueeze(1).expand_as(each[0][:, :1])
        weights[kind] = torch.cat([*each, equal], dim=1).cpu()
    return weights


# %% [markdown]
# The decoder's input is what it wrote itself, without the last symbol, exactly as it stood before
# the last step.


# %%
def attention_maps(translator: Translator, sentence: str) -> AttentionMaps:
    """All attention weights for a sentence and the model's own translation of it."""
    parts, model = source_parts(translator, [sentence]), translator.model
    require(len(parts) == 1, f"one sentence that fits the model is needed, got {sentence[:40]!r}")
    src = torch.tensor([parts[0][1]], device=translator.device)
    limit = length_cap(src.size(1), translator.config.max_len)
    written = greedy_decode(model, src, Batch(src).src_mask, limit, START)
    ended = written[0, -1] == END
    batch = Batch(src, written if ended else F.pad(written, (0, 1), value=END))
    pairs = zip(translator.vocabularies, (src, batch.tgt), strict=True)
    source, target = ([v.words[n] for n in ids[0].tolist()] for v, ids in pairs)
    recorded, H = recorded_attention(translator, batch), translator.config.h
    weights = {kind: each[0, :-1].unflatten(0, (-1, H)) for kind, each in recorded.items()}
    sides = (source, source), (target, target), (target, source)
    return AttentionMaps(weights, dict(zip(KINDS, sides, strict=True)), sentence)


# %% [markdown]
# Three sentences to look at:


# %%
SENTENCES = (
    SENTENCE,
    "Zwei Frauen lachen, weil ein Kind im Park tanzt.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter.",
)


@functools.cache
def maps_at_hand(sentence: str = SENTENCE) -> AttentionMaps:
    """Maps of a sentence, from the model at hand."""
    return attention_maps(translator_at_hand(), sentence)


# %% [markdown]
# Our first sentence has a separable verb: *hebt … auf*, "picks up", whose second half stands at
# the very end. To write "picks", or "is picking", the decoder needs both. It can look at both
# ends of the clause, or rely on the encoder to have carried *auf* to the place of *hebt*. In the
# second, *tanzt* ends a subordinate clause, and English wants its verb much earlier. The third
# has its words in nearly the same order in both languages.
#
# Before we look, a check of the maps: each row adds up to one, and no target word looks ahead.


# %%
@example
def check_maps_are_distributions_and_hide_the_future():
    maps, config = maps_at_hand(), translator_at_hand().config
    for kind, weights in maps.weights.items():
        assert weights.shape == (config.N, config.h, *map(len, maps.tokens[kind]))
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert maps.weights["decoder self-attention"].triu(1).eq(0).all()


# %% [markdown]
# How is such a map read? Take a row, a query, and look along it. The weights in the row add up to
# one: they are the shares that each key has in what this position receives from this head. A row
# with one dark cell copies from one place. A row of one even tint takes the mean of everything. A
# dark diagonal means that each position looks at itself, one beside the diagonal that it looks at
# its neighbour. In the cross-attention a row is named after the word just read, and looks for the
# next one. So a staircase one step ahead of the rows is an alignment, word for word, and each
# place where it jumps is a place where the two languages order their words differently.
#
# Two warnings. A weight says how much of a value is taken, not how much the value matters: a long
# vector with a small weight may outweigh a short one with a large weight. And a position in an
# upper layer is no longer one word. It has already taken in parts of others, so "looks at *Ball*"
# means "looks at what has gathered at the place of *Ball*".
#
# <a id="explorer"></a>
# ### An explorer
#
# The model of the published page has three layers with three heads and three kinds of attention:
# 27 maps for a sentence. One chart holds them all, for three sentences. Each map is stored as a
# string of integers, a weight of 1 being 1000. The chart unpacks the one that is chosen. First
# the table of strings:


# %%
def map_table(maps: AttentionMaps) -> list[dict]:
    """A row for each kind, layer and head, with its weights and tokens as strings."""
    rows = []
    for kind, weights in maps.weights.items():
        sides = zip(("queries", "keys"), maps.tokens[kind], strict=True)
        labels = {
            name: "\t".join(f"{n} {t}" for n, t in enumerate(side, 1)) for name, side in sides
        }
        for layer, head in itertools.product(*map(range, weights.shape[:2])):
            values = (1000 * weights[layer, head]).round().int().flatten().tolist()
            place = {"sentence": maps.sentence, "kind": kind, "layer": layer + 1, "head": head + 1}
            numbers = {"width": weights.size(3), "numbers": " ".join(map(str, values))}
            rows.append(place | labels | numbers)
    return rows


# %% [markdown]
# A chart begins with the chosen row, splits a string of it, and numbers the parts.

# %% tags=["hide-input"]
CHOICES = ("sentence", "kind", "layer", "head")


def chosen_row(chart, split: str, mark: str):
    """The chosen row, a string of it split into many rows: `piece`, and its `number` from 0."""
    return (
        chart.transform_filter(" && ".join(f"datum.{name} == chosen_{name}" for name in CHOICES))
        .transform_calculate(piece=f"split(datum.{split}, '{mark}')")
        .transform_flatten(["piece"])
        .transform_window(count="row_number()")
        .transform_calculate(number="datum.count - 1")
    )


def cells_of_map(chart):
    """A row for each cell of the map, with its query, its key, their places and the weight."""
    return chosen_row(chart, "numbers", " ").transform_calculate(
        weight="toNumber(datum.piece) / 1000",
        row="floor(datum.number / datum.width)",
        column="datum.number % datum.width",
        query="split(datum.queries, '\\t')[floor(datum.number / datum.width)]",
        key="split(datum.keys, '\\t')[datum.number % datum.width]",
    )


# %% [markdown]
# The same weights are drawn twice. At the left as a table; at the right as lines from each query
# to what it looks at, the stronger the weight, the darker the line. Point at a word in either,
# and both show this one alone.


# %% tags=["hide-input"]
def lines_of_map(chart, alone, pointed):
    """Queries and keys as two columns of words, with a line for each weight above a twentieth."""
    import altair as alt

    place = alt.Y("number:Q", axis=None, scale=alt.Scale(reverse=True, nice=False))
    lines = cells_of_map(chart.mark_rule(color="#2f6db5")).transform_filter("datum.weight > 0.05")
    lines = lines.transform_calculate(left="0.3", right="0.7").encode(
        x=alt.X("left:Q", axis=None, scale=alt.Scale(domain=[0, 1])),
        x2="right:Q",
        y=alt.Y("row:Q", axis=None, scale=alt.Scale(reverse=True, nice=False)),
        y2="column:Q",
        opacity=alt.condition(alone, alt.Opacity("weight:Q", legend=None), alt.value(0.0)),
        tooltip=["query:N", "key:N", "weight:Q"],
    )
    texts = []
    for side, x, name in (("queries", "0.28", "query"), ("keys", "0.72", "key")):
        align = "right" if side == "queries" else "left"
        words = chosen_row(chart.mark_text(align=align, fontSize=12), side, "\\t")
        words = words.transform_calculate(x=x, **{name: "datum.piece"})
        lit = pointed[0] & pointed[1] if side == "queries" else pointed[2]
        opacity = alt.condition(lit, alt.value(1.0), alt.value(0.25))
        texts.append(words.encode(x="x:Q", y=place, text="piece:N", opacity=opacity))
    return lines, texts


# %% [markdown]
# Then the chart: what can be chosen, the table, and the lines.


# %%
def attention_explorer(all_maps: Sequence[AttentionMaps], *title: str):
    """Maps of several sentences in one chart, with choosers for sentence, kind, layer and head."""
    import altair as alt
    import pandas as pd

    frame = pd.DataFrame(itertools.chain.from_iterable(map(map_table, all_maps)))
    sentences = list(frame["sentence"].unique())
    layers, heads = int(frame["layer"].max()), int(frame["head"].max())
    choice = {
        "sentence": (sentences[0], alt.binding_select(options=sentences, name="sentence ")),
        "kind": (KINDS[2], alt.binding_select(options=list(KINDS), name="attention ")),
        "layer": (layers, alt.binding_range(min=1, max=layers, step=1, name="layer ")),
        "head": (1, alt.binding_range(min=1, max=heads, step=1, name="head ")),
    }
    chosen = [alt.param(f"chosen_{name}", value=v, bind=bind) for name, (v, bind) in choice.items()]
    point = functools.partial(alt.selection_point, on="pointerover", clear="pointerout")
    fields = {"pointed_cell": "query", "pointed_query": "query", "pointed_key": "key"}
    pointed = [point(name=name, fields=[field]) for name, field in fields.items()]
    alone, axis = pointed[0] & pointed[1] & pointed[2], functools.partial(alt.Axis, ticks=False)
    cells = cells_of_map(alt.Chart(frame, width=340, height=340).mark_rect()).encode(
        x=alt.X("key:N", sort=None, title=None, axis=axis(labelAngle=-45)),
        y=alt.Y("query:N", sort=None, title=None, axis=axis()),
        color=alt.Color("weight:Q", scale=alt.Scale(scheme="blues", domain=[0, 1])),
        opacity=alt.condition(alone, alt.value(1.0), alt.value(0.25)),
        tooltip=["query:N", "key:N", "weight:Q"],
    )
    lines, texts = lines_of_map(alt.Chart(frame, width=300, height=340), alone, pointed)
    drawn = alt.layer(lines, texts[0].add_params(pointed[1]), texts[1].add_params(pointed[2]))
    drawn = drawn.properties(view=alt.ViewBackground(stroke=None))
    both = alt.hconcat(cells.add_params(pointed[0]), drawn)
    for param, column in zip(both.params[1:], both.hconcat[1].layer[1:], strict=True):
        param.views = [column.name]  # Altair gives both columns both selections
    text = "Attention weights as a heat map and as lines, queries left, keys right."
    description = f"{text} {', '.join(title)}"
    return both.add_params(*chosen).properties(title=list(title), description=description)


# %% [markdown]
# The title names the model, its corpus and its score. An attention map of a model that cannot
# translate shows nothing but its inability.


# %%
@example
def attention_explorer_figure():
    translator, (split, scores) = translator_at_hand(), next(iter(scores_at_hand().items()))
    origin = f"model {translator.name}, corpus {translator.corpus}"
    all_maps = [maps_at_hand(sentence) for sentence in SENTENCES]
    return attention_explorer(all_maps, origin, f"BLEU {scores['BLEU']:.1f} on {split}")


# %% [markdown]
# **Figure 22.** Attention of the model at hand. Choose the sentence, the kind, the layer and the
# head, and point at a word. In the cross-attention each row is a word that the decoder has just
# read, and the dark cells are the source words it looks at to write the next one. In the
# decoder's self-attention the upper triangle is empty: the future is hidden.
#
# The map shown first on the published page is the last layer's first head. Its dark cells run
# ahead of the rows: *A* looks at *kleines*, *little* at *Mädchen*, *girl* and *is* at *hebt*,
# *red* at *Ball*. The head looks at the source word whose translation is to be written next.
# These maps belong to greedy decoding, which writes *is holding*, and has missed the particle
# *auf*; the beam above found *raises*. Does a head look at *auf*? Try the second one of the last
# layer. To see another sentence in your notebook, run
# `attention_explorer([attention_maps(translator_at_hand(), "…")], "title")`.
#
# > **What do the strongest columns mean?** In many models they belong to the full stop or to the
# > end symbol, which say little about the word in question. A softmax must spend its weight
# > somewhere. A head that has nothing to contribute can park it on a position that occurs in
# > every sentence and whose value does little. Such a position is called an *attention sink*. So
# > a strong column is not always a finding.
#
# Does ours do it? We compare, over the first fifty validation sentences, the mean weight on the
# last two source positions (as a rule the full stop and the end symbol) with what equal weights
# would give. **Cost: a few seconds.**


# %%
@example
def weight_on_the_last_two_positions():
    import pandas as pd

    pairs, rows = corpus_at_hand().splits["val"][:50], {}
    all_maps = [attention_maps(translator_at_hand(), source) for source, _ in pairs]
    for kind in ("encoder self-attention", "cross-attention"):
        weights = [maps.weights[kind] for maps in all_maps]
        layers = torch.stack([w[..., -2:].sum(-1).mean(dim=(1, 2)) for w in weights]).mean(0)
        rows[kind] = {f"layer {n}": f"{share:.0%}" for n, share in enumerate(layers.tolist(), 1)}
        rows[kind]["equal weights"] = f"{sum(2 / w.size(-1) for w in weights) / len(weights):.0%}"
    told = f"model {translator_at_hand().name}, sentences of {corpus_at_hand().name}"
    return pd.DataFrame(rows).T.style.set_caption(told)


# %% [markdown]
# A share far above that of equal weights would be the habit of parking. The model of the
# published page has a little of it: in two of its layers the cross-attention gives these
# positions about half as much again as equal weights would. Its encoder stays close to equal
# weights, and in the last layer below them. These are means over heads, and a single head may
# park more. So these two positions are not where most of the attention goes. Whether another
# one, such as the first, is used for parking is not measured here.
#
# <a id="alignment"></a>
# ## Attention against alignment
#
# An *alignment* says which words of two sentences are translations of each other. Older systems
# needed it as a step of its own. This model was never told of it. Does its cross-attention find
# it? To answer we need alignments that do not come from a model. Here are twenty sentences in the
# style of the corpus, written for this page and aligned by hand. They have compounds, separable
# verbs, subordinate clauses with the verb at the end, and main clauses that do not begin with the
# subject.
#
# For each English word stand the numbers of its German words, counted from 1. A comma counts as a
# word, too. `Er liest , während …` and `He reads while …` have `1 2 4`. Two words for one are
# `3,6`, as in *zieht … an*, "puts on". Where only English has a helping verb, such as "is", it
# goes with the verb that it helps. Where we were not sure, and for punctuation, there is a dash.
# The full stop at the end is left out here and added on both sides.

# %% tags=["hide-input"]
ALIGNED = """\
Drei Männer sitzen auf einer Parkbank | Three men sit on a park bench | 1 2 3 4 5 6 6
Ein Kind weint , weil es müde ist | A child cries because it is tired | 1 2 3 5 6 8 7
Der Junge zieht seine Jacke an | The boy puts on his jacket | 1 2 3,6 3,6 4 5
Ein Feuerwehrauto fährt die Straße entlang | A fire truck drives down the street | 1 2 2 3 6 4 5
Er liest , während seine Schwester schläft | He reads while his sister sleeps | 1 2 4 5 6 7
Im Schnee spielen zwei Hunde | Two dogs play in the snow | 4 5 3 1 1 2
Ein Mann , der einen Hut trägt , lacht | A man who is wearing a hat laughs | 1 2 4 7 7 5 6 9
Eine Frau will ein Foto machen | A woman wants to take a photo | 1 2 3 - 6 4 5
Die Brücke wird von Arbeitern gebaut | The bridge is being built by workers | 1 2 3 3 6 4 5
Ein Mädchen isst am Strand ein Eis | A girl is eating ice cream at the beach | 1 2 3 3 7 7 4 4 5
Ein Hund springt , um den Ball zu fangen | A dog jumps to catch the ball | 1 2 3 5,8 9 6 7
Leute stehen vor einem alten Haus | People stand in front of an old house | 1 2 3 3 3 4 5 6
Nachts leuchten die Straßenlaternen | At night the street lamps glow | 1 1 3 4 4 2
Ein kleiner Junge putzt sich die Zähne | A little boy brushes his teeth | 1 2 3 4 - 7
In der Küche kocht ein Mann eine Suppe | A man cooks soup in the kitchen | 5 6 4 8 1 2 3
Wenn es regnet , tanzt das Mädchen | When it rains , the girl dances | 1 2 3 - 6 7 5
Kinder , die Fußball spielen , sind froh | Children who play soccer are happy | 1 3 5 4 7 8
Das Licht geht an , als er aufwacht | The light comes on as he wakes up | 1 2 3,4 3,4 6 7 8 8
Der Mann trägt keinen Helm | The man is not wearing a helmet | 1 2 3 4 3 4 5
Sie hat den Ball ins Tor geworfen | She threw the ball into the goal | 1 2,7 3 4 5 5 6
"""


# %% [markdown]
# Reading a line gives the words of both sides and a table of links, a row for each English word.
# An error in such a list is easily made and hard to see. So a line that does not fit itself is
# refused.


# %%
def parse_aligned(line: str) -> tuple[list[str], list[str], Tensor]:
    """`Ein Hund | A dog | 1 2` -> both sides' words, with full stops; links (target, source)."""
    parts = [part.split() for part in line.split("|")]
    whole = len(parts) == 3 and len(parts[1]) == len(parts[2])
    require(whole, f"not source | target | an entry (or -) for each target word: {line!r}")
    source, target, entries = parts
    links = torch.zeros(len(target) + 1, len(source) + 1, dtype=torch.bool)
    for row, entry in zip(links[:-1], entries, strict=True):
        for number in () if entry == "-" else entry.split(","):
            known = number.isdecimal() and 0 < int(number) <= len(source)
            require(known, f"{number!r} is not among words 1 to {len(source)} of {line!r}")
            row[int(number) - 1] = True
    return [*source, "."], [*target, "."], links


# %% [markdown]
# A model reads tokens, and a word may have several. Which ones are its own? The sentence is
# encoded again and again, one word longer each time: the tokens that are added belong to the word
# that was added. This works for pieces and for whole words alike.


# %%
def tokens_of_words(words: Sequence[str], vocabulary, language: str) -> tuple[list[int], Tensor]:
    """Ids of the sentence that words make, and which of them belong to which word: (words, ids)."""
    texts = itertools.accumulate(words, lambda a, b: f"{a}{b}" if b in ".," else f"{a} {b}")
    encoded = vocabulary.encode(list(texts), language)
    ends = torch.tensor([0, *map(len, encoded)])
    place = torch.arange(len(encoded[-1]))
    return encoded[-1], (ends[:-1, None] <= place) & (place < ends[1:, None])


# %% [markdown]
# This time the decoder is given the reference as its prefix, as in training. We ask what it looks
# at when it writes a certain word, and so it has to write this one.
#
# From tokens to words: the weights on all tokens of a German word are added up, since the word
# has received them all. Over the tokens of an English word we take the mean. Now there are two
# places at which we could ask for a word: where the decoder **is about to write** it, one
# position earlier, and where it **has just read** it. We try both.


# %%
WRITING, READ = "about to write the word", "has just read it"


def word_attention(translator: Translator, source, target) -> dict[str, Tensor]:
    """Cross-attention between words: by the query's place, (N·H + 1, target, source)."""
    sides = zip((source, target), translator.vocabularies, translator.config.languages, strict=True)
    (src, keys), (tgt, queries) = (tokens_of_words(*side) for side in sides)
    batch = collate([([*src, END], [START, *tgt, END])]).to(translator.device)
    weights = recorded_attention(translator, batch)[KINDS[2]][0, :, :, :-1]  # END is no word
    mean, total = queries / queries.sum(1, keepdim=True), keys.T.float()
    return {WRITING: mean @ weights[:, :-1] @ total, READ: mean @ weights[:, 1:] @ total}


@functools.cache
def aligned_maps() -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    """Maps of the model at hand for the twenty sentences, by the query's place; their links."""
    *words, links = zip(*map(parse_aligned, ALIGNED.splitlines()), strict=True)
    maps = [word_attention(translator_at_hand(), *pair) for pair in zip(*words, strict=True)]
    return {place: [each[place] for each in maps] for place in (WRITING, READ)}, list(links)


# %% [markdown]
# The alignment that a head proposes: each English word goes with the German word that gets the
# most weight. We ask only for the words that have a link by hand. The *alignment error rate*
# ([Och and Ney, 2003](https://aclanthology.org/J03-1002)) compares the proposed links with the
# right ones. It counts what is wrong and what is missing alike, and is 0 where all agree and 1
# where nothing does. Their formula also knows *possible* links. We have only sure ones, and it
# becomes:
#
# $$\mathrm{AER} = 1 - \frac{2\,|\text{proposed and right}|}{|\text{proposed}| + |\text{right}|}$$


# %%
def alignment_error(maps: Iterable[Tensor], links: Iterable[Tensor]) -> Tensor:
    """AER (X,) of the largest weights in the rows of maps (X, target, source)."""
    hits = both = 0
    for weights, right in zip(maps, links, strict=True):
        proposed = F.one_hot(weights.argmax(-1), right.size(1)).bool()
        hits = hits + (proposed & right).sum((-2, -1))
        both = both + right.any(1).sum() + right.sum()  # words without a link are not asked for
    return 1 - 2 * hits / both


# %% [markdown]
# The table has a row for each head, and one for the mean of the heads of each layer. Two more
# rows give the scale. *Diagonal* knows no words at all and takes the German word at the same
# relative place. *Right once* proposes one right link for each word. Nothing that proposes one
# link a word can do better.


# %%
@example
def alignment_of_each_head():
    import pandas as pd

    config, (by_place, links), columns = translator_at_hand().config, aligned_maps(), {}
    names = [f"layer {n + 1}, head {m + 1}" for n in range(config.N) for m in range(config.h)]
    names += [f"layer {n + 1}, mean of heads" for n in range(config.N)]
    for place, maps in by_place.items():
        rows = []
        for weights, right in zip(maps, links, strict=True):
            means = weights[:-1].unflatten(0, (config.N, config.h)).mean(1)
            target, source = (torch.linspace(0, 1, size) for size in right.shape)
            distance = (target.unsqueeze(1) - source).abs()
            rows.append(torch.cat([weights[:-1], means, torch.stack([-distance, right])]))
        columns[place] = alignment_error(rows, links).tolist()
    frame = pd.DataFrame(columns, index=[*names, "diagonal", "right once"])
    told = f"AER on {len(links)} sentences aligned by hand, model {translator_at_hand().name}"
    caption = f"{told}, trained on {translator_at_hand().corpus}"
    return frame.style.format("{:.2f}").set_caption(caption)


# %% [markdown]
# Lower is better. Where a head beats the diagonal clearly, it follows the words, and not only
# their places. In the published model all heads of the second and third layer beat it, and one of
# the first. Compare also the mean of a layer with its best head. A mean can blur what one of
# its heads knows. Or heads share the work, and it knows more than each of them: so it is in the
# published model, most of all in its last layer. In the models that we tried, the position that
# is about to write a word fits much better than the one that has just read it.
#
# > **Is attention then an explanation?** An aligned weight tells where a head reads. It does not
# > tell what it takes from there, nor what the layers after it make of that. And the memory at
# > the place of *zieht* may already hold what the encoder fetched from *an*. A head that looks at
# > *an* would find it there as well. Some of what counts as an error here may be such a detour.
#
# <a id="single-heads"></a>
# ## What single heads do
#
# In the self-attentions some heads have a simpler habit: they look at the token before, at the
# token after, or at the token itself. Such a habit shows as a diagonal in the explorer. One
# sentence may deceive, so we measure it on many. The score of a head for a habit is the mean
# weight that goes there. It is taken over all tokens that have such a neighbour.


# %%
def neighbour_scores(weights: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Mean weight on neighbours: weights (B, X, T, T), real (B, T) True on tokens -> (X,) each."""
    scores = {}
    for role, offset in {"previous token": -1, "same token": 0, "next token": 1}.items():
        both = real[:, abs(offset) :].unsqueeze(1)  # where query and key are tokens
        on_it = weights.diagonal(offset, -2, -1) * both  # (B, X, T - |offset|)
        scores[role] = on_it.sum((0, 2)) / both.sum()
    return scores


# %% [markdown]
# In the cross-attention queries and keys belong to two languages, and neighbours mean nothing.
# There the habit to look for is alignment. Its score is the mean weight that goes to the German
# words linked by hand when an English word is about to be written. The sentences are the first
# two hundred of the validation split with their references, and for alignment our twenty.


# %%
@functools.cache
def head_scores() -> dict[tuple[str, str], Tensor]:
    """By kind and role, scores of all heads and, last, of equal weights: (N·H + 1,)."""
    translator, scores = translator_at_hand(), {}
    pairs = encode_pairs(corpus_at_hand(), "val", translator.vocabularies)
    fits = [pair for pair in pairs if max(map(len, pair)) <= translator.config.max_len]
    batch = collate(fits[:200])
    weights = recorded_attention(translator, batch.to(translator.device))
    # A shorter target keeps its END in `tgt`, where nothing follows: tgt_y is padding there.
    for kind, ids in zip(KINDS[:2], (batch.src, batch.tgt_y), strict=True):
        for role, values in neighbour_scores(weights[kind], ids != PAD).items():
            scores[kind, role] = values
    maps, links = aligned_maps()
    linked = zip(maps[WRITING], links, strict=True)
    shares = [(each * right).sum(-1)[:, right.any(1)] for each, right in linked]
    return scores | {(KINDS[2], "alignment"): torch.cat(shares, dim=1).mean(1)}


# %% [markdown]
# The two best heads for each habit. (The decoder cannot look at the next token.)


# %%
@example
def heads_by_what_they_do():
    model, rows = translator_at_hand(), []
    H = model.config.h
    for (kind, role), scores in head_scores().items():
        *heads, equal = scores.tolist()
        best = sorted(range(len(heads)), key=heads.__getitem__, reverse=True)[: 2 if equal else 0]
        for number in best:
            place = (kind, number // H + 1, number % H + 1)
            rows.append((*place, role, f"{heads[number]:.2f}", f"{equal:.2f}"))
    columns = ["attention", "layer", "head", "looks at", "score", "equal weights"]
    caption = f"model {model.name}, trained on {model.corpus}; scored on {corpus_at_hand().name}"
    return table(rows, columns).set_caption(caption)


# %% [markdown]
# Compare the last two columns. With a score near 1, a head does hardly anything else. A score
# near that of equal weights is no habit at all, and such a head is in the table only because one
# has to be the best. In the published model no score is near 1, and the clearest habits reach
# about a half. The name says where weight goes, and the score how much of it. Neither says what
# this is good for.
#
# <a id="heads-off"></a>
# ## Switching heads off
#
# What is a head good for? Take it away and look what gets worse. The output of multi-head
# attention is a sum with one term for each head (and a bias): the head's K values times its own K
# columns of the last projection. With these columns at zero, the term is gone and the others stay
# as they were.


# %%
@contextlib.contextmanager
def without_head(attn: MultiHeadedAttention, head: int) -> Iterator[None]:
    """Inside, one head (counted from 0) contributes nothing; afterwards all is as it was."""
    require(0 <= head < attn.h, f"there are heads 0 to {attn.h - 1}, got {head}")
    columns = attn.linears[3].weight.data.chunk(attn.h, dim=1)[head]  # (D, K), a view
    kept = columns.clone()
    columns.zero_()
    try:
        yield
    finally:
        columns.copy_(kept)


# %% [markdown]
# So we translate once with the whole model, and then once for each head, with that head off.
# Decoding is greedy. Sentences and references come from the validation split.


# %%
def bleu_without_heads(translator: Translator, pairs, decode=greedy_search) -> tuple[float, list]:
    """BLEU of the whole model, and (kind, layer, head, BLEU) with each head off in turn."""
    sources, references = zip(*pairs, strict=True)

    def bleu() -> float:
        return corpus_bleu(translate(translator, sources, decode=decode), references)[0]

    encoder, decoder = translator.model.encoder.layers, translator.model.decoder.layers
    modules = [layer.self_attn for layer in (*encoder, *decoder)]
    modules += [layer.src_attn for layer in decoder]
    whole, rows = bleu(), []
    for number, attn in enumerate(modules):
        kind, layer = divmod(number, len(encoder))
        for head in range(attn.h):
            with without_head(attn, head):
                rows.append((KINDS[kind], layer + 1, head + 1, bleu()))
    return whole, rows


# %% [markdown]
# **Cost: a minute or two** for two hundred sentences, translated once for each head. At level
# `smoke` there are twenty of them, at `full` the whole split.


# %%
@example
def heads_switched_off_figure():
    import altair as alt
    import pandas as pd

    number = {"smoke": 20, "laptop": 200}.get(run_level())  # at `full` all of them
    pairs = corpus_at_hand().splits["val"][:number]
    whole, rows = bleu_without_heads(translator_at_hand(), pairs)
    frame = pd.DataFrame(rows, columns=["kind", "layer", "head", "BLEU"]).round(2)
    frame["change"] = (frame["BLEU"] - whole).round(2)
    low, high = frame["change"].min(), frame["change"].max()
    print(f"largest loss {low:+.1f} BLEU, largest gain {high:+.1f}, of {len(frame)} heads")
    limit = max(0.1, -low, high)
    colours = alt.Scale(scheme="redblue", domain=[-limit, limit], domainMid=0)
    origin = f"model {translator_at_hand().name}, BLEU {whole:.1f}"
    title = f"{origin} on {len(pairs)} validation sentences of {corpus_at_hand().name}"
    text = f"Heat maps of layers and heads: change in BLEU with one head switched off; {title}"
    chart = alt.Chart(frame, title=title, description=text, width=170, height=130).mark_rect()
    return chart.encode(
        x=alt.X("head:O", axis=alt.Axis(labelAngle=0)),
        y="layer:O",
        color=alt.Color("change:Q", scale=colours, title="change in BLEU"),
        column=alt.Column("kind:N", sort=list(KINDS), title=None),
        tooltip=list(frame.columns),
    )


# %% [markdown]
# **Figure 23.** What is lost without one head. Each cell is the model with this head switched
# off: the redder, the more BLEU it costs. White is no change, blue a gain, and a cell tells its
# numbers when you point at it. First look for the darkest cells, and see whether one panel or
# layer has more of them than the others. Then look up the heads of the table above.
#
# Read it with caution. The line above the figure compares the largest loss with the largest gain.
# Where they are of one size, as on the published page, most of the picture may be chance: on two
# hundred sentences a change of one point, either way, says little. A head whose loss costs
# nothing is not proven useless: another may do the same and stand in for it, and only without
# both would we see it. Nor is a head whose loss costs much proven important for what the table
# calls it. The other layers were trained with it and rely on what it puts out, whatever that
# means. In large models, too, most heads can be removed one at a time at almost no cost ([Michel
# et al., 2019](https://arxiv.org/abs/1905.10650)). When more and more of them are removed, those
# with a recognisable habit are the last to go ([Voita et al.,
# 2019](https://arxiv.org/abs/1905.09418)).
#
# <a id="afterword"></a>
# # Afterword
#
# <a id="differences"></a>
# ## Where we differ from the paper
#
# | Matter | Paper | Here | Where |
# | --- | --- | --- | --- |
# | order of the norm | after the sum | before the sub-layer; the other by `norm_first=False` | [Residual connections](#residual) |
# | dropout | 0.1 (base), 0.3 (big; French: 0.1) on sub-layers and embeddings | 0.25, also inside the feed-forward network; on attention weights only by `attention_dropout`, 0 in the presets | [Dropout](#dropout) |
# | symbols | 37,000 pieces of words, shared (French: 32,000) | 5,000 pieces, shared; words in the demonstration | [Pieces](#byte-pairs) |
# | one matrix for embeddings and output | yes | yes; three in the demonstration | [One matrix](#one-matrix) |
# | corpus | 4.5 million pairs (French: 36 million) | 29,000 pairs | [A corpus](#corpus) |
# | size | 6 layers of 512, 8 heads | 3 layers of 192, 3 heads | [Settings](#settings) |
# | initial weights | not stated | Glorot; $\mathcal{N}(0, 1/D)$ for embeddings | [The whole model](#make-model) |
# | numbers | single precision (§6.1, in its estimate of the cost) | products in bf16 where the processor has it, else fp32 | [Workers](#workers) |
# | biases | in the feed-forward network; no others are written down | in every linear map | [Several heads](#multi-head-attention) |
# | rate of dropout | any | on a CPU the nearest 256th | [Residual connections](#residual) |
# | which weights are used | the mean of the last 5 or 20 checkpoints | the epoch with the best validation BLEU, or the mean of the last six | [Training](#train-model) |
# | batch | about 25,000 source and 25,000 target tokens | 1,280 positions a rank | [Batches](#token-budget) |
# | label smoothing | ε = 0.1; over all labels in the work it cites | ε = 0.1, spread over all but the right word and padding | [Loss](#label-smoothing) |
# | schedule | 4,000 warm-up steps, factor 1, then the inverse root | 1,000 steps, factor 1.5, then a straight line to zero | [Schedule](#schedule) |
# | updates | 100,000 (base), 300,000 (big) | about 6,700 (32 epochs) | [Training](#train-model) |
# | hardware | 12 hours (base) on eight P100 GPUs (§5.2) | less than an hour on two CPU cores | [Results](#results-so-far) |
# | direction | English to German, English to French | German to English; English to German by one option | [Results](#results) |
# | BLEU | newstest2014: 27.3 and 38.1 (base), 28.4 and 41.8 (big), German and French | other sentences, so another scale: see the table | [Step by step](#step-by-step) |
# | beam | 4 hypotheses, α = 0.6, 50 symbols more than the source | the same, but α = 1.4 in the row *length penalty* of the results; an ended hypothesis keeps its place | [Beam search](#beam-search) |
# | averaging | the last 5 checkpoints, ten minutes apart (base); the last 20 (big) | the last 6 epochs | [Averaging](#averaging) |
#
# <a id="failures"></a>
# ## Common failures
#
# Each of these has cost somebody a day.
#
# | Symptom | Usual cause |
# | --- | --- |
# | loss falls below what seems possible, translations are nonsense | the future leaks: causal mask missing or transposed |
# | loss stays at log V | learning rate far too small, or gradients that never reach the weights |
# | loss becomes NaN | a row with nothing to attend to and −∞; log of zero; fp16 without care |
# | good loss, every translation stops at once or never | start and end symbols confused, or target not shifted |
# | translations change from call to call | dropout is on: `model.eval()` was forgotten |
# | a sentence translates differently inside a batch | padding is not masked |
# | two GPUs give a worse model than one | loss divided by each rank's own token count; or twice the batch with the same schedule, so half the updates |
# | BLEU far above the published figures | scored on tokenized or lower-cased text, or test sentences in the training data |
#
# If the symptom is not among them, make the task smaller. Can the model learn a single batch by
# heart? If not, the fault is in model or loss, and the checks of Parts 1 and 3 will find it faster
# than a training on real data. Can it learn the copy task? If so, the model is sound, and the
# fault is in the data: print a batch, turn its ids back into words, and read it.
#
# <a id="older-checkpoints"></a>
# ## Older checkpoints
#
# Have you trained a model with the code of 2018 or 2022? It can be read here. The architecture is
# our default one: the norm before the sub-layer, and a final norm on both stacks. Most names are
# the same too, such as `encoder.layers.0.self_attn.linears.0.weight` or `generator.proj.bias`.
# The rest differs in five places.
#
# | Matter | Older code | Here |
# | --- | --- | --- |
# | a norm's scale and shift | `a_2`, `b_2` | `scale`, `shift` |
# | maps of the feed-forward network | `w_1`, `w_2` | `widen`, `narrow` |
# | positions | stored, as `src_embed.1.pe` and `tgt_embed.1.pe` | computed, not stored |
# | a norm divides by | deviation plus $10^{-6}$ | root of (variance plus $\epsilon$) |
# | the deviation averages over | $D - 1$ | $D$ |
#
# Names are a matter of a short list:


# %%
OLDER_NAMES = {"scale": "a_2", "shift": "b_2", "widen": "w_1", "narrow": "w_2"}


def older_name(name: str) -> str:
    """What the older code called a tensor: `encoder.norm.scale` -> `encoder.norm.a_2`."""
    return ".".join(OLDER_NAMES.get(part, part) for part in name.split("."))


# %% [markdown]
# The sizes of the model can be read from the shapes of the tensors, and the number of layers from
# the names. One size cannot: `h` cuts the same matrices into more or fewer heads, and leaves no
# trace in them. You have to know it. A wrong `h` that divides $D$ gives a model that runs and
# talks nonsense.


# %%
def older_sizes(state: dict[str, Tensor]) -> dict[str, int]:
    """Sizes for `make_model` from an older state dict; ValueError where one is missing."""

    def size(name: str, axis: int) -> int:
        shape = getattr(state.get(name), "shape", ())
        require(axis < len(shape), f"no older state dict: it lacks {name}, or that is no matrix")
        return shape[axis]

    return {
        "src_vocab": size("src_embed.0.lut.weight", 0),
        "tgt_vocab": size("generator.proj.weight", 0),
        "N": len({name.split(".")[2] for name in state if name.startswith("encoder.layers.")}),
        "d_model": size("src_embed.0.lut.weight", 1),
        "d_ff": size("encoder.layers.0.feed_forward.w_1.weight", 0),
        "max_len": size("src_embed.1.pe", 1),
    }


# %% [markdown]
# The norm takes some arithmetic. With $s$ for the deviation that averages over $D - 1$, the older
# formula is
#
# $$a \odot \frac{x - \mu}{s + 10^{-6}} + b, \qquad s = \sigma \sqrt{D / (D - 1)}.$$
#
# With $\gamma = a \sqrt{(D - 1) / D}$ it becomes ours, but for the two small constants. Theirs
# makes the result smaller by a share of about $10^{-6}/\sigma$, ours by $\epsilon / 2\sigma^2$.
# No single $\epsilon$ makes the two equal for every $\sigma$, so ours is set to next to nothing.
# What remains is their share, at $\sigma = 0.1$ one part in a hundred thousand. Far below that,
# the two results drift apart. Vectors in this model are hardly ever so flat: the code of a
# position alone has several times that deviation.


# %%
def from_older_checkpoint(state: dict[str, Tensor], h: int = 8, eps=1e-12) -> EncoderDecoder:
    """A model in eval mode with the weights of a state dict of the code of 2018 or 2022.

    `h` is the number of heads it was trained with. ValueError names an entry that does not fit.
    """
    model = make_model(**older_sizes(state), h=h)
    ours = {older_name(n): t for n, t in [*model.named_parameters(), *model.named_buffers()]}
    for name in sorted(ours | state):
        wanted = getattr(ours.get(name), "shape", "nothing")
        found = getattr(state.get(name), "shape", "no tensor")
        require(found == wanted, f"{name}: an older model has {wanted} here, this one {found}")
        ours[name].detach().copy_(state[name])
    for norm in model.modules():
        if isinstance(norm, LayerNorm):
            norm.scale.detach().mul_(math.sqrt(1 - 1 / norm.scale.numel()))
            norm.eps = eps
    return model.eval()


# %% [markdown]
# The check needs an older model. First its norm, from the formula:


# %%
class OlderNorm(nn.Module):
    """Layer normalisation of the older code, with random weights: (..., D) -> (..., D)."""

    def __init__(self, D: int):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.rand(D) + 0.5), nn.Parameter(torch.randn(D))

    def forward(self, x: Tensor) -> Tensor:
        s, mean = torch.std_mean(x, dim=-1, keepdim=True)  # over D - 1
        return (x - mean) / (s + 1e-6) * self.a_2 + self.b_2


# %% [markdown]
# It takes the place of each norm in a small model of ours. The state dict of that, with the older
# names and the stored positions, is what a file would hold. Read back, it must give the same
# log-probabilities to $10^{-4}$.


# %%
@example
def check_an_older_checkpoint_gives_the_same_log_probabilities():
    older = tiny_model()
    for module in list(older.modules()):
        if isinstance(getattr(module, "norm", None), LayerNorm):
            module.norm = OlderNorm(16)
    state = dict(older.named_parameters()) | dict(older.named_buffers())
    state = {n.replace("widen", "w_1").replace("narrow", "w_2"): t for n, t in state.items()}
    inputs = torch.randint(11, (2, 5)), torch.randint(13, (2, 3)), None, subsequent_mask(3)
    models = older, from_older_checkpoint(state, h=4)
    before, after = (model.generator(model(*inputs)) for model in models)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=0)


# %% [markdown]
# A file with a state dict is read by `torch.load(path, weights_only=True, map_location="cpu")`,
# for the [reason](#checkpoints) that holds for our own files too. The files published in 2018
# hold a whole pickled model, and this call refuses them. If you trust such a file, load it with
# the code that wrote it, and save `model.state_dict()` instead.
#
# > **What is not in a state dict?** The number of heads and the dropout rate, which matters only
# > if you train on (the model here has the default). The word lists, too: they lie in a file of
# > their own, and they decide which ids stand for start, end and padding. Nor does a state dict
# > of *ours* hold $\epsilon$. If you save the converted weights and load them into a fresh model,
# > its norms have $10^{-6}$ again.
#
# <a id="exercises"></a>
# ## Exercises
#
# 1. Find the shortest warm-up with which four layers learn to copy in the paper's order of the
#    norm. (`copy_with` is the place to start.)
# 2. Train the copy task on length 10 and decode sequences of length 15. Why does it fail? Which
#    kind of position would help? (Which positions has the model never seen?)
# 3. Remove the division by $\sqrt{K}$ and compare the first hundred losses at D = 64 and D = 512.
# 4. Let `Batch` forget the padding in `src_mask`. Which check of Part 1 or 3 notices?
# 5. Replace `min_freq=2` by 1. The model never sees `<unk>` in training. What does it write for
#    an unknown word? (Its embedding is still what it was at the start.)
#
# <a id="glossary"></a>
# ## Glossary
#
# | Word | Meaning | Where |
# | --- | --- | --- |
# | alignment | which words of two sentences are translations of each other | [Alignment](#alignment) |
# | attention weight | share that a key's value has in what a query receives | [Attention](#scaled-dot-product-attention) |
# | beam | the few best beginnings of a translation, continued side by side | [Beam search](#beam-search) |
# | BLEU | share of word runs that a translation has in common with a human's, 0 to 100 | [BLEU](#bleu) |
# | bf16 | a number of 16 bits with the range of fp32 and a third of its digits | [Workers](#workers) |
# | checkpoint | a file from which a training can go on, or a model be used | [Checkpoints](#checkpoints) |
# | chrF | how many runs of letters a translation shares with a human's, both ways | [Step by step](#step-by-step) |
# | cross-attention | attention from the target to the memory | [Three uses](#three-uses) |
# | cross-entropy | mean of $-\log p$ of what is right, weighted by the target | [Loss](#label-smoothing) |
# | DDP | several processes with equal models that share the batches | [Workers](#workers) |
# | dropout | numbers set to zero at random while a model trains | [Residual](#residual) |
# | embedding | the learnt vector of a symbol | [Embeddings](#embeddings) |
# | epoch | one pass over the training split | [The loop](#loop) |
# | form to read, form to run | the same computation, said plainly and done fast | [Norm](#layer-norm) |
# | fused kernel | several operations in one pass over memory | [The form to run](#fast-attention) |
# | generator | the last linear map and the softmax, from states to words | [Generator](#generator) |
# | gradient norm | the length of all gradients as one vector | [A log](#log) |
# | greedy decoding | writing the likeliest next symbol, again and again | [Greedy](#greedy-decoding) |
# | head | one of several attentions that run side by side, each in a narrow space of its own | [Several heads](#multi-head-attention) |
# | hypothesis | an unfinished or finished translation in a beam | [Beam search](#beam-search) |
# | int8 | a whole number of one byte; we store weights in it, as −127 to 127 | [A model to take away](#model-to-take-away) |
# | KL divergence | cross-entropy less what it would be at best | [Loss](#label-smoothing) |
# | label smoothing | asking for a little less than certainty | [Loss](#label-smoothing) |
# | logit | the score of a word before the softmax | [Generator](#generator) |
# | mask | a table that says which key a query may attend to | [Notation](#notation) |
# | memory | what the encoder leaves for the decoder, one vector for each source position | [Encoder and decoder](#encoder-decoder) |
# | micro-batch | a part of a batch that fits into memory | [The loop](#loop) |
# | mixed precision | products in bf16, sums and weights in fp32 | [Workers](#workers) |
# | oracle | what gives the right answer in a check and was not written by us | [Start here](#start) |
# | padding | symbols that fill up short sentences and count for nothing | [Batches](#batches) |
# | perplexity | among how many equally likely symbols the model seems to choose | [Evaluation](#evaluation) |
# | piece | a part of a word that byte-pair encoding has made a symbol | [Pieces](#byte-pairs) |
# | query, key, value | what asks, what is compared with it, and what is handed over | [Attention](#attention) |
# | rank | one of the processes that train together | [Workers](#workers) |
# | residual connection | a sub-layer's output added to its input | [Residual](#residual) |
# | seed | the number from which all random choices of a training follow | [Warm-up](#warm-up-and-norm) |
# | softmax | makes probabilities of scores: $e^{s_i}$, divided by their sum | [Generator](#generator) |
# | split | a part of a corpus: to train, to choose by (validation), to score once (test) | [A corpus](#corpus) |
# | state | the decoder's vector at a position | [Generator](#generator) |
# | state dict | the name of each weight of a model, with its tensor | [Checkpoints](#checkpoints) |
# | stream | the sum to which all sub-layers add | [Residual](#residual) |
# | sub-layer | attention or feed-forward network inside a layer | [Residual](#residual) |
# | symbol, token | a word, piece or mark of punctuation, and its number | [Tokens](#tokens) |
# | teacher forcing | training with the true words before, not the model's own | [Batches](#batches) |
# | update | one step of the optimizer | [The loop](#loop) |
# | warm-up | the first updates, in which the learning rate rises | [Schedule](#schedule) |
#
# <a id="references"></a>
# ## References
#
# - Vaswani et al., 2017. [Attention Is All You Need](https://arxiv.org/abs/1706.03762).
# - Ba, Kiros and Hinton, 2016. [Layer Normalization](https://arxiv.org/abs/1607.06450).
# - Xiong et al., 2020. [On Layer Normalization in the Transformer
#   Architecture](https://arxiv.org/abs/2002.04745).
# - Szegedy et al., 2016. [Rethinking the Inception
#   Architecture](https://arxiv.org/abs/1512.00567): label smoothing.
# - Glorot and Bengio, 2010. [Training deep feedforward
#   networks](https://proceedings.mlr.press/v9/glorot10a.html): initial weights.
# - Kingma and Ba, 2015. [Adam](https://arxiv.org/abs/1412.6980).
# - Elliott et al., 2016. [Multi30K](https://arxiv.org/abs/1605.00459): the corpus.
# - Sennrich, Haddow and Birch, 2016. [Neural Machine Translation of Rare Words with Subword
#   Units](https://arxiv.org/abs/1508.07909): byte-pair encoding.
# - Wu et al., 2016. [Google's Neural Machine Translation
#   System](https://arxiv.org/abs/1609.08144): the length penalty.
# - Koehn, 2004. [Statistical Significance Tests for Machine Translation
#   Evaluation](https://aclanthology.org/W04-3250/): the paired bootstrap.
# - Och and Ney, 2003. [A Systematic Comparison of Various Statistical Alignment
#   Models](https://aclanthology.org/J03-1002): the alignment error rate.
# - Michel, Levy and Neubig, 2019. [Are Sixteen Heads Really Better than
#   One?](https://arxiv.org/abs/1905.10650)
# - Voita et al., 2019. [Analyzing Multi-Head Self-Attention](https://arxiv.org/abs/1905.09418).
# - Z. Wu et al., 2021. [Good for Misconceived Reasons](https://arxiv.org/abs/2105.14462): text
#   and pictures on Multi30k.
# - Popović, 2015. [chrF](https://aclanthology.org/W15-3049/).
# - Papineni et al., 2002. [BLEU](https://aclanthology.org/P02-1040/), and Post, 2018. [A Call for
#   Clarity](https://arxiv.org/abs/1804.08771): sacreBLEU.
#
# <a id="changelog"></a>
# ## Changelog
#
# - **2018**: the first *Annotated Transformer*, for PyTorch 0.3, by Alexander Rush at Harvard.
# - **2022**: revised for PyTorch 1.11 by Austin Huang, Suraj Subramanian, Jonathan Sum, Khalid
#   Almubarak and Stella Biderman, after Rush's original.
# - **2026**: written afresh, with checks beside every piece, for PyTorch 2.13.
#
# <a id="command-line"></a>
# ## The command line
#
# The same file is a program with a few commands, each with `--help`:
#
# ```
# python the_annotated_transformer.py translate "Ein Hund rennt durch den Park."
# python the_annotated_transformer.py train --preset recipe
# torchrun --standalone --nproc-per-node 2 -- the_annotated_transformer.py train --preset recipe
# ```
#
# `train` takes a preset, and every setting of a `Config` is an option that overrides it. It also
# takes your own parallel text: `--data FOLDER --languages fr-en`.


# %% tags=["hide-input"]
def train_options(parser: argparse.ArgumentParser) -> None:
    """A preset, any setting of it changed, and where the run lives."""
    parser.add_argument("--preset", choices=PRESETS, default="recipe", help="default: recipe")
    parser.add_argument(
        "--data", dest="corpus", help="multi30k, builtin or a folder with train, val, test"
    )
    parser.add_argument(
        "--folder", type=Path, help="the run (default: RUNS_DIR/PRESET-SOURCE-TARGET)"
    )
    parser.add_argument(
        "--minutes", type=float, help="stop after this time; the run can go on later"
    )
    parser.add_argument(
        "--until", type=float, default=math.inf, help="stop at this validation BLEU"
    )
    for setting in dataclasses.fields(Config):
        if setting.name == "corpus":
            continue  # that is --data
        option, default = f"--{setting.name.replace('_', '-')}", getattr(RECIPE, setting.name)
        shown = "-".join(default) if isinstance(default, tuple) else default
        told, kind = f"default in `recipe`: {shown}", type(default)
        if kind is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, help=told)
        else:
            parser.add_argument(option, type=str if kind is tuple else kind, help=told)


# %% [markdown]
# A preset gives all values, and whatever was named on the command line replaces its own.


# %% tags=["hide-input"]
def run_train(options: argparse.Namespace) -> None:
    given = {setting.name: getattr(options, setting.name) for setting in dataclasses.fields(Config)}
    given = {name: value for name, value in given.items() if value is not None}
    if "languages" in given:
        codes = tuple(given["languages"].split("-"))
        message = f"--languages needs two codes, such as de-en, got {options.languages!r}"
        require(len(codes) == 2 and all(codes), message)
        given["languages"] = codes
    config = dataclasses.replace(PRESETS[options.preset], **given)
    folder = options.folder or runs_folder() / "-".join([options.preset, *config.languages])
    status = train_model(config, folder, options.minutes, options.until, greedy_search)
    if int(os.environ.get("RANK", 0)) == 0:
        more = "with --schedule root a larger --epochs goes on" if status == "finished" else ""
        hint = f" ({more or 'the same command goes on from here'})"
        shown = re.sub(f"^{re.escape(str(Path.home()))}/", "~/", str(folder))
        print(f"{status}: {shown}{hint}")


# %% [markdown]
# `translate` reads its arguments or standard input, one sentence a line. `evaluate` scores a
# model on the test splits (while you still choose, take `--split val`), and, on request, writes
# the scores with log and circumstances into a file.


# %% tags=["hide-input"]
def model_options(parser: argparse.ArgumentParser) -> None:
    text = "run, checkpoint or exported folder (default: best finished run, else pretrained/)"
    parser.add_argument("--model", type=Path, help=text)


def search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beam", type=int, default=4, help="hypotheses kept; 1 is greedy (default: 4)"
    )
    parser.add_argument("--alpha", type=float, default=0.6, help="length penalty (default: 0.6)")


def translate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sentences", nargs="*", help="without any, lines of standard input")
    model_options(parser)
    search_options(parser)


def evaluate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", help="multi30k, builtin or a folder (default: as in training)")
    parser.add_argument("--split", help="such as val (default: every test split)")
    parser.add_argument("--results", type=Path, help="write scores, log and circumstances here")
    model_options(parser)
    search_options(parser)


def export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="run or checkpoint, of pieces")
    parser.add_argument("--folder", type=Path, default=PRETRAINED, help="default: pretrained")


def average_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", type=Path, help="such as RUN/epoch-*.pt")
    parser.add_argument("--output", type=Path, help="default: average.pt beside the first")


def chosen_model(path: Path | None) -> Path:
    """The named model, else the best finished run (Multi30k before others), else PRETRAINED."""
    shipped = PRETRAINED if (PRETRAINED / "config.json").is_file() else None
    found = path or finished_run("Multi30k") or finished_run() or shipped
    if found is None:
        runs = ", ".join(sorted(p.parent.name for p in runs_folder().glob("*/best.pt"))) or "none"
        way_out = f"`make train` makes one; --model names an unfinished one (here: {runs})"
        raise FileNotFoundError(f"no finished run in {runs_folder()}, no {PRETRAINED}: {way_out}")
    return found


def load_model(path: Path) -> Translator:
    """A translator from a run, a checkpoint, or a folder that `export` wrote."""
    exported = any((path / name).is_file() for name in ("model.safetensors", "tokenizer.json"))
    return load_pretrained(path) if exported or path == PRETRAINED else load_trained_model(path)


# %% [markdown]
# Standard input is read as UTF-8, whatever the terminal believes. Bytes that are not UTF-8 become
# the replacement character; a line is never lost.


# %% tags=["hide-input"]
def run_average(options: argparse.Namespace) -> None:
    output = options.output or options.checkpoints[0].parent / "average.pt"
    save_checkpoint(output, average_checkpoints(options.checkpoints))
    print(f"{output}: the mean of {len(options.checkpoints)} checkpoints")


def run_export(options: argparse.Namespace) -> None:
    save_pretrained(load_trained_model(options.model), options.folder)
    translator = load_pretrained(options.folder)  # what was written can be read
    size = sum(path.stat().st_size for path in options.folder.iterdir()) / 1e6
    print(f"{options.folder}: model {translator.name}, {size:.1f} MB")


def run_translate(options: argparse.Namespace) -> None:
    translator = load_model(chosen_model(options.model))
    decode = functools.partial(beam_search, beam=options.beam, alpha=options.alpha)
    say = functools.partial(translate, translator, decode=decode)
    print(f"model {translator.name}, trained on {translator.corpus}", file=sys.stderr)
    if options.sentences:
        print("\n".join(say(options.sentences)))
        return
    sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")
    lines = (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)
    size = 1 if sys.stdin.isatty() else 200
    for number, group in enumerate(grouped(lines, size)):
        print("\n".join(say(group, first_line=1 + number * size)), flush=True)


# %% [markdown]
# A result without its circumstances is a rumour: the file that `evaluate` writes has the scores
# together with the run's summary and its validation log.


# %% tags=["hide-input"]
def run_evaluate(options: argparse.Namespace) -> None:
    run = chosen_model(options.model)
    translator = load_model(run)
    languages = translator.config.languages
    corpus = find_corpus(options.data or translator.config.corpus, languages)
    decode = functools.partial(beam_search, beam=options.beam, alpha=options.alpha)
    known = ", ".join(corpus.splits)
    require(options.split in (None, *corpus.splits), f"no split {options.split!r}, only {known}")
    scores = evaluate(translator, corpus, [options.split] if options.split else (), decode)
    decoding = f"beam {options.beam}, alpha {options.alpha}"
    print(f"model {run.name}, trained on {translator.corpus}, scored on {corpus.name}, {decoding}")
    for split, score in scores.items():
        print(
            f"{split}: BLEU {score['BLEU']}, perplexity {score['perplexity']}, {score['signature']}"
        )
    if options.results:
        write_results(options.results, run, corpus, scores, decoding)


def write_results(path: Path, run: Path, corpus: Corpus, scores: dict, decoding: str) -> None:
    """Scores, circumstances and the validation log of a run, as one JSON file."""
    require(corpus.name != BUILTIN, "scores on the built-in captions are not kept as results")
    run = run if run.is_dir() else run.parent
    summary = json.loads((run / "summary.json").read_text())
    content = {"run": run.name, "corpus": corpus.name, "decoding": decoding, "scores": scores}
    content |= {"scored": circumstances(), "training": summary}
    content["validation"] = [entry for entry in read_log(run) if entry["kind"] == "validation"]
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write_atomically(path, f"{text}\n".encode())


# %% [markdown]
# Errors that a user can cause end with one line that says what to do, not with a traceback. In a
# notebook none of this runs.

# %% tags=["hide-input"]
COMMANDS = {
    "train": ("train a translator, or go on with a run", train_options, run_train),
    "translate": ("translate arguments or standard input", translate_options, run_translate),
    "average": ("the mean of several checkpoints of a run", average_options, run_average),
    "export": ("write a model of pieces in int8, to give away", export_options, run_export),
    "evaluate": ("BLEU and perplexity on the test splits", evaluate_options, run_evaluate),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog=SCRIPT.name, description="A Transformer that translates.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (text, add_options, _) in COMMANDS.items():
        add_options(commands.add_parser(name, help=text, description=text))
    options = parser.parse_args(arguments)
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        COMMANDS[options.command][2](options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, FloatingPointError) as error:
        alone = isinstance(error, ConnectionError)  # else all ranks meet the same error
        if alone or int(os.environ.get("RANK", 0)) == 0:
            print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__" and not IN_NOTEBOOK:
    sys.exit(main())
