"""The Transformer of "Attention Is All You Need", bare. Run it, and it learns to copy.

Made from the cells of The Annotated Transformer, which explains them. Unlike in the paper, norms
stand before the sub-layers (`norm_first=False` puts them after the sums), and dropout also acts on
attention weights and hidden units. In comments, B is sentences in a batch, S and T are lengths of
source and target, D is the width, H heads, d_k the width of a head, V the vocabulary.
"""

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# Part 1. Attention --------------------------------------------------------------------------------
def subsequent_mask(size: int, device: torch.device | None = None) -> Tensor:
    """Boolean (1, size, size): query t (row) may see key s (column) where s <= t."""
    return torch.ones(1, size, size, dtype=torch.bool, device=device).tril()


def is_open(mask: Tensor) -> Tensor:
    """A mask as booleans; ValueError for one that is meant to be added to the scores."""
    strange = mask.dtype != torch.bool and ((mask != 0) & (mask != 1)).any()
    if strange or (mask.is_floating_point() and not mask.any()):  # 0 alone closes nothing there
        raise ValueError("a mask is 1 where a query may look, else 0; of 0 and −∞ pass mask == 0")
    return mask.bool()


def attention(query, key, value, mask=None, dropout=None, bias=None):
    """Scaled dot-product attention (§3.2.1, Eq. 1)."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (..., T, S)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~is_open(mask), torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ value, weights


def clones(module: nn.Module, N: int) -> nn.ModuleList:
    """N independent copies of `module`, with equal weights at first."""
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


class MultiHeadedAttention(nn.Module):
    """Multi-head attention (§3.2.2): query (B, T, D), key and value (B, S, D) -> (B, T, D)."""

    def __init__(self, h: int, d_model: int, dropout: float = 0.1):
        super().__init__()
        self.h = h
        self.d_k = d_model // h
        self.linears = clones(nn.Linear(d_model, d_model), 4)  # for query, key, value and output
        self.dropout = nn.Dropout(dropout)
        self.attn = None

    def split(self, x: Tensor) -> Tensor:
        """Cut the width into heads: (B, T, D) -> (B, H, T, d_k)."""
        return x.unflatten(-1, (-1, self.d_k)).transpose(1, 2)

    def project(self, query, key, value) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, d_k), keys and values (B, H, S, d_k) of every head."""
        to_q, to_k, to_v, _ = self.linears
        return self.split(to_q(query)), self.split(to_k(key)), self.split(to_v(value))

    def attend(self, q, k, v, mask) -> tuple[Tensor, Tensor]:
        """Attention in every head: q (B, H, T, d_k), k and v (B, H, S, d_k)."""
        if q.is_cuda and torch.is_grad_enabled():  # its function is faster
            rate = self.dropout.p if self.training else 0.0
            mask = None if mask is None else is_open(mask)
            return F.scaled_dot_product_attention(q, k, v, mask, rate), None
        return attention(q, k, v, mask, self.dropout)

    def join(self, heads: Tensor) -> Tensor:
        """Put the heads side by side and mix them: (B, H, T, d_k) -> (B, T, D)."""
        return self.linears[3](heads.transpose(1, 2).flatten(2))

    def forward(self, query, key, value, mask=None) -> Tensor:
        if mask is not None:
            mask = mask.unsqueeze(1)  # (B, 1, T, S): the same for every head
        heads, weights = self.attend(*self.project(query, key, value), mask)
        self.attn = None if weights is None else weights.detach()  # PyTorch's function returns none
        return self.join(heads)


# Part 2. The model --------------------------------------------------------------------------------
class PositionalEncoding(nn.Module):
    """Adds sinusoids of the position (§3.5), then dropout: (B, T, D) -> (B, T, D)."""

    def __init__(self, d_model: int, dropout: float, max_len: int = 5000):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        frequency = 10_000.0 ** (-torch.arange(0, d_model, 2) / d_model)  # (D/2,)
        angle = torch.arange(max_len).unsqueeze(1) * frequency  # (max_len, D/2)
        waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # (max_len, D)
        self.register_buffer("pe", waves.unsqueeze(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[:, : x.size(1)])


class Embeddings(nn.Module):
    """Learnt vectors, times √D (§3.4): ids (B, T) -> (B, T, D)."""

    def __init__(self, d_model: int, vocab: int):
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        nn.init.normal_(self.lut.weight, std=d_model**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.lut(x) * math.sqrt(self.lut.embedding_dim)


class PositionwiseFeedForward(nn.Module):
    """Two linear maps with a ReLU between them (§3.3, Eq. 2): (B, T, D) -> (B, T, D)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        self.widen = nn.Linear(d_model, d_ff)
        self.narrow = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.dropout(self.widen(x).relu()))  # (B, T, d_ff) in between


def start_weights(module: nn.Module) -> nn.Module:
    """Draw initial weights for all linear maps of a module; returns it."""
    for each in module.modules():
        if isinstance(each, nn.Linear):
            nn.init.xavier_uniform_(each.weight)
            if each.bias is not None:
                nn.init.zeros_(each.bias)
    return module


layer_norm = functools.partial(nn.LayerNorm, eps=1e-6)  # equal to ours, and faster


class SublayerConnection(nn.Module):
    """A sub-layer with dropout, sum and norm: (B, T, D) -> (B, T, D)."""

    def __init__(self, size: int, dropout: float, norm_first: bool = True):
        super().__init__()
        self.norm = layer_norm(size)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (§3.1): (B, S, D) -> (B, S, D)."""

    def __init__(self, size, self_attn, feed_forward, dropout, norm_first=True):
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout, norm_first), 2)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward (§3.1): (B, T, D) -> (B, T, D)."""

    def __init__(self, size, self_attn, src_attn, feed_forward, dropout, norm_first=True):
        super().__init__()
        self.self_attn = self_attn
        self.src_attn = src_attn
        self.feed_forward = feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout, norm_first), 3)

    def forward(self, x, memory, src_mask, tgt_mask) -> Tensor:
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class Encoder(nn.Module):
    """N layers, then perhaps a norm: (B, S, D) -> (B, S, D)."""

    def __init__(self, layer: nn.Module, N: int, norm: nn.Module | None = None):
        super().__init__()
        self.layers = clones(layer, N)
        self.norm = norm or nn.Identity()

    def forward(self, x: Tensor, *others) -> Tensor:
        for layer in self.layers:
            x = layer(x, *others)  # masks and, for a decoder layer, the memory
        return self.norm(x)


class Decoder(Encoder):
    """The same loop, over decoder layers: (B, T, D) -> (B, T, D)."""


class Generator(nn.Module):
    """Linear map and log-softmax (§3.4): states (..., D) -> log-probabilities (..., V)."""

    def __init__(self, d_model: int, vocab: int):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.proj(x)  # (..., V); log-probabilities are fp32 even when these are 16-bit
        return F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


class EncoderDecoder(nn.Module):
    """Encoder, decoder and what surrounds them (§3, Figure 1 of the paper)."""

    def __init__(self, encoder, decoder, src_embed, tgt_embed, generator):
        super().__init__()
        self.src_embed = src_embed
        self.encoder = encoder
        self.tgt_embed = tgt_embed
        self.decoder = decoder
        self.generator = generator

    def forward(self, src, tgt, src_mask, tgt_mask) -> Tensor:
        return self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask)

    def encode(self, src, src_mask) -> Tensor:
        """Source ids (B, S) -> memory (B, S, D)."""
        return self.encoder(self.src_embed(src), src_mask)

    def decode(self, memory, src_mask, tgt, tgt_mask) -> Tensor:
        """Memory (B, S, D) and target ids (B, T) -> states (B, T, D)."""
        return self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask)


def make_model(
    src_vocab, tgt_vocab, N=6, d_model=512, d_ff=2048, h=8, dropout=0.1,
    *, norm_first=True, share_embeddings=False, max_len=5000,
) -> EncoderDecoder:  # fmt: skip
    """A Transformer with fresh weights; the default sizes are the base model of Table 3."""
    # Every layer gets copies of these parts, so encoder and decoder share no weights.
    self_attn = MultiHeadedAttention(h, d_model, dropout)
    src_attn = MultiHeadedAttention(h, d_model, dropout)
    ff = PositionwiseFeedForward(d_model, d_ff, dropout)
    source_layer = EncoderLayer(d_model, self_attn, ff, dropout, norm_first)
    target_layer = DecoderLayer(d_model, self_attn, src_attn, ff, dropout, norm_first)
    position = PositionalEncoding(d_model, dropout, max_len)
    model = EncoderDecoder(
        Encoder(source_layer, N, layer_norm(d_model) if norm_first else None),
        Decoder(target_layer, N, layer_norm(d_model) if norm_first else None),
        nn.Sequential(Embeddings(d_model, src_vocab), copy.deepcopy(position)),
        nn.Sequential(Embeddings(d_model, tgt_vocab), copy.deepcopy(position)),
        Generator(d_model, tgt_vocab),
    )
    start_weights(model)
    if share_embeddings:
        model.src_embed[0].lut.weight = model.generator.proj.weight = model.tgt_embed[0].lut.weight
    return model


# Part 3. Training ---------------------------------------------------------------------------------
SPECIALS = ("<s>", "</s>", "<blank>", "<unk>")
START, END, PAD, UNKNOWN = range(len(SPECIALS))


class Batch:
    """Sentences with their masks: ids src (B, S) and, in training, tgt (B, T + 1), padded."""

    def __init__(self, src, tgt=None, pad=PAD, ntokens=None):
        self.src = src
        self.src_mask = (src != pad).unsqueeze(1)  # (B, 1, S)
        if tgt is not None:
            self.tgt = tgt[:, :-1]  # (B, T): what the decoder reads
            self.tgt_y = tgt[:, 1:]  # (B, T): what it must predict, one position later
            causal = subsequent_mask(self.tgt.size(1), tgt.device)
            self.tgt_mask = (self.tgt != pad).unsqueeze(1) & causal  # (B, T, T)
            self.ntokens = int((self.tgt_y != pad).sum()) if ntokens is None else ntokens


class SimpleLossCompute:
    """A generator and a criterion: states (B, T, D), target (B, T) -> loss, and loss / ntokens."""

    def __init__(self, generator, criterion):
        self.generator = generator
        self.criterion = criterion

    def __call__(self, states: Tensor, target: Tensor, ntokens: float) -> tuple[Tensor, Tensor]:
        loss_sum = self.criterion(self.generator(states).flatten(0, -2), target.flatten())
        return loss_sum.detach(), loss_sum / ntokens


def rate(step: int, model_size: int, factor: float, warmup: int) -> float:
    """Learning rate at a step, counted from 1 (§5.3, Eq. 3); step 0 is taken as 1."""
    step = max(step, 1)
    return factor * model_size**-0.5 * min(step**-0.5, step * warmup**-1.5)


ADAM = {"lr": 1.0, "betas": (0.9, 0.98), "eps": 1e-9, "fused": True}  # the schedule sets the rate
# By name: optimizers, of model and decay; schedules, of step, model_size, factor, warmup, all steps
OPTIMIZERS = {"adam": lambda net, wd: torch.optim.Adam(net.parameters(), weight_decay=wd, **ADAM)}
SCHEDULES = {"inverse_sqrt": lambda *curve: rate(*curve[:4])}


def make_optimizer(
    model, factor: float, warmup: int, schedule="inverse_sqrt", optimizer="adam", total=None,
    weight_decay=0.0,
) -> tuple:  # fmt: skip
    """Optimizer and schedule by their names; call `scheduler.step()` once after each update."""
    curve, settings = SCHEDULES[schedule], (model.generator.proj.in_features, factor, warmup, total)
    made = OPTIMIZERS[optimizer](model, weight_decay)
    return made, torch.optim.lr_scheduler.LambdaLR(made, lambda n: curve(n + 1, *settings))


def train_on(batches, model, loss_compute, optimizer, scheduler) -> list[float]:
    """One update for each batch; the loss of each."""
    losses = []
    for batch in batches:
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        loss_sum, loss = loss_compute(states, batch.tgt_y, batch.ntokens)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss_sum.item() / batch.ntokens)
    return losses


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside: eval mode and no gradients. Afterwards the model returns to its earlier mode."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


# Part 4. A first example --------------------------------------------------------------------------
COPY_VOCAB = 15  # four special tokens, 0 to 3, and eleven to copy, 4 to 14


def data_gen(V: int, batch_size: int, nbatches: int, length: int = 10) -> Iterator[Batch]:
    """Batches of random sequences whose target is the source."""
    for _ in range(nbatches):
        src = torch.randint(len(SPECIALS), V, (batch_size, length))
        started = F.pad(src, (1, 0), value=START)
        yield Batch(src, F.pad(started, (0, 1), value=END))


def greedy_decode(model, src, src_mask, max_len, start_symbol, end_symbol=END) -> Tensor:
    """The most likely next token, again and again: src (B, S) -> ids (B, at most max_len)."""
    written = src.new_full((len(src), 1), start_symbol)
    ended = torch.zeros(len(src), dtype=torch.bool, device=src.device)
    with evaluating(model):
        memory = model.encode(src, src_mask)
        while not ended.all():
            mask = subsequent_mask(written.size(1), src.device)
            states = model.decode(memory, src_mask, written, mask)
            token = model.generator(states[:, -1]).argmax(-1).masked_fill(ended, PAD)  # (B,)
            written = torch.cat([written, token.unsqueeze(1)], dim=1)
            ended = ended | (token == end_symbol) | (written.size(1) >= max_len)
    return written


def new_copy_model(seed: int = 0, vocab: int = COPY_VOCAB, **changes) -> EncoderDecoder:
    """A small model for the copy task; the same one for the same arguments."""
    torch.manual_seed(seed)
    sizes = {"N": 2, "d_model": 64, "d_ff": 256, "h": 4} | changes
    return make_model(vocab, vocab, dropout=0.0, **sizes)


def train_to_copy(model, make_batches, hundreds: int = 8, each: int = 100) -> Iterator[float]:
    """Train on random sequences; yields the mean loss of every `each` updates."""
    vocab = model.generator.proj.out_features
    loss_compute = SimpleLossCompute(model.generator, nn.NLLLoss(ignore_index=PAD, reduction="sum"))
    optimizer, scheduler = make_optimizer(model, factor=0.5, warmup=200)
    for _ in range(100 * hundreds // each):
        batches = make_batches(vocab, 64, each)
        yield sum(train_on(batches, model, loss_compute, optimizer, scheduler)) / each


if __name__ == "__main__":
    model = new_copy_model()
    for hundred, loss in enumerate(train_to_copy(model, data_gen), 1):
        print(f"{100 * hundred} updates: loss {loss:.3f}")
    batch = next(data_gen(COPY_VOCAB, 1, 1))
    copied = greedy_decode(model, batch.src, batch.src_mask, 12, START)
    print("source", *batch.src[0].tolist())
    print("copy  ", *copied[0, 1:-1].tolist())
