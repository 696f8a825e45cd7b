"""A bug hunt: a small Transformer should copy sequences, and one of its parts is faulty.

    from hunt import CANDIDATES, CONTRACTS, hunt

    case = hunt(1234)              # your number decides which part it is
    case.report()                  # trains it (seconds) and prints the symptoms
    case.repair("choose", mine)    # the same with a part of your own in its place

`CANDIDATES` says what could be wrong, by part. `CONTRACTS` says what each part should do.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import the_annotated_transformer as at
from exercises.course.culprits import END, PAD, START, play

CONTRACTS = {
    "embed": "embed(table, ids): rows of the table (V, D) at ids (B, T), times √D -> (B, T, D)",
    "add_positions": "add_positions(x, waves): x (B, T, D) with the encodings (T, D) added",
    "split": "split(x, heads): the width of x (B, T, D) cut into heads -> (B, H, T, D/H)",
    "scores": "scores(q, k): (B, H, T, d) and (B, H, S, d) -> scaled inner products (B, H, T, S)",
    "weights": "weights(scores, mask): attention weights (B, H, T, S); True in the mask is open",
    "residual": "residual(x, change): the stream after a sub-layer whose output is `change`",
    "dropout": "dropout(x, p, training): drops entries with probability p, in training only",
    "memory": "memory(states): what cross-attention sees of the encoder's states (B, S, D)",
    "log_probs": "log_probs(logits): log-probabilities (..., V) of the next token",
    "frame": "frame(src): source (B, S) as target (B, S + 2): start, tokens, end, padding",
    "source_mask": "source_mask(src): (B, 1, S), which positions of the source may be seen",
    "causal": "causal(size): (size, size), which positions of the target each position may see",
    "shift": "shift(tgt): target (B, T + 1) -> what the decoder reads, and predicts: (B, T) each",
    "loss": "loss(log_probs, target): (B, T, V), (B, T) -> mean loss of a token, without padding",
    "rate": "rate(step): learning rate: a line up to 0.01 at step 50, then as the inverse root",
    "update": "update(loss, optimizer): one update, with the gradient of this loss alone",
    "first": "first(src): what decoding begins with, for each source: (B, 1)",
    "choose": "choose(log_probs): the most likely token of each row: (B, V) -> (B,)",
}
CANDIDATES = {
    "embed": "Some tokens share one vector.",
    "add_positions": "Positions are not added.",
    "split": "Heads are cut so that positions mix.",
    "scores": "Scores are not divided by the root of the width.",
    "weights": "The softmax runs over queries.",
    "residual": "The residual connections are missing.",
    "dropout": "Dropout also acts outside training.",
    "memory": "The decoder receives nothing from the encoder.",
    "log_probs": "Probabilities are normalized over positions.",
    "frame": "The target has no end token.",
    "source_mask": "Padding of the source is open.",
    "causal": "The future of the target is open.",
    "shift": "The decoder must predict the token that it reads.",
    "loss": "The loss is that of the likeliest token, not of the right one.",
    "rate": "The learning rate stays where the warm-up begins.",
    "update": "Gradients are never cleared.",
    "first": "Decoding starts from padding.",
    "choose": "Decoding never chooses the end token.",
}

TOKENS = 12  # start, end, padding, one that is not used, and eight to copy
LONGEST = 6
WIDTH = 32
HEADS = 2
UPDATES = 400


# The model, built on its parts --------------------------------------------------------------------


class Attention(at.MultiHeadedAttention):
    """The script's attention with parts for splitting, scores and weights."""

    def __init__(self, part: Callable):
        super().__init__(HEADS, WIDTH, dropout=0.0)
        self.part = part

    def split(self, x):
        return self.part("split", x, self.h)

    def attend(self, q, k, v, mask):
        weights = self.part("weights", self.part("scores", q, k), mask)
        return weights @ v, weights


class Sublayer(nn.Module):
    """Norm, sub-layer, dropout and sum."""

    def __init__(self, part: Callable):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.part = part

    def forward(self, x, sublayer):
        change = self.part("dropout", sublayer(self.norm(x)), 0.05, self.training)
        return self.part("residual", x, change)


class Copier(nn.Module):
    """An encoder and a decoder of one layer each: source (B, S) and target (B, T) -> logits."""

    def __init__(self, part: Callable):
        super().__init__()
        self.part = part
        self.tables = nn.ParameterList(torch.randn(TOKENS, WIDTH) / WIDTH**0.5 for _ in range(2))
        self.register_buffer("waves", at.PositionalEncoding(WIDTH, 0.0, max_len=32).pe[0])
        self.self_attn, self.tgt_attn, self.src_attn = (Attention(part) for _ in range(3))
        self.forwards = nn.ModuleList(at.PositionwiseFeedForward(WIDTH, 64, 0.0) for _ in range(2))
        self.sublayers = nn.ModuleList(Sublayer(part) for _ in range(5))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.proj = nn.Linear(WIDTH, TOKENS)
        at.start_weights(self)

    def embed(self, side: int, ids):
        x = self.part("embed", self.tables[side], ids)
        return self.part("add_positions", x, self.waves[: ids.size(1)])

    def encode(self, src, mask):
        x = self.sublayers[0](self.embed(0, src), lambda x: self.self_attn(x, x, x, mask))
        return self.part("memory", self.norms[0](self.sublayers[1](x, self.forwards[0])))

    def decode(self, memory, mask, tgt):
        causal = self.part("causal", tgt.size(1)).unsqueeze(0)
        x = self.sublayers[2](self.embed(1, tgt), lambda x: self.tgt_attn(x, x, x, causal))
        x = self.sublayers[3](x, lambda x: self.src_attn(x, memory, memory, mask))
        x = self.norms[1](self.sublayers[4](x, self.forwards[1]))
        return self.part("log_probs", self.proj(x))

    def forward(self, src, tgt):
        mask = self.part("source_mask", src)
        return self.decode(self.encode(src, mask), mask, tgt)


def sequences(number: int) -> Tensor:
    """Random sources of three to six tokens, padded: (number, 6)."""
    src = torch.randint(4, TOKENS, (number, LONGEST))
    lengths = torch.randint(3, LONGEST + 1, (number, 1))
    return src.masked_fill(torch.arange(LONGEST) >= lengths, PAD)


def mean_change(before: list[Tensor], model: Copier) -> float:
    """How far the weights of linear maps have moved: a mean over all numbers."""
    pairs = zip(before, model.parameters(), strict=True)
    moved = [(one - other).abs().flatten() for one, other in pairs if one.dim() == 2]
    return torch.cat(moved).mean().item()


@torch.enable_grad()
def train(part: Callable) -> Copier:
    """A trained model, with `losses` (means of forty updates) and `moved` (by its weights)."""
    model = Copier(part)
    start = [weight.detach().clone() for weight in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    losses = []
    for step in range(1, UPDATES + 1):
        src = sequences(64)
        read, predict = part("shift", part("frame", src))
        loss = part("loss", model(src, read), predict)
        optimizer.param_groups[0]["lr"] = part("rate", step)
        part("update", loss, optimizer)
        losses.append(loss.item())
    model.losses = [sum(losses[n : n + 40]) / 40 for n in range(0, UPDATES, 40)]
    model.moved = mean_change(start, model)
    return model.eval()


@torch.no_grad()
def write(model: Copier, src: Tensor) -> Tensor:
    """What the model writes for each source, by greedy decoding: (B, S + 1), without the start."""
    mask = model.part("source_mask", src)
    memory = model.encode(src, mask)
    written = model.part("first", src)
    ended = torch.zeros(len(src), dtype=torch.bool)
    for _ in range(src.size(1) + 1):
        token = model.part("choose", model.decode(memory, mask, written)[:, -1])
        written = torch.cat([written, token.masked_fill(ended, PAD).unsqueeze(1)], 1)
        ended = ended | (token == END)
    return written[:, 1:]


# Symptoms -----------------------------------------------------------------------------------------


def right_rows(src: Tensor) -> tuple[Tensor, Tensor]:
    """What the decoder should read and predict: tokens with start, and with end."""
    lengths = (src != PAD).sum(1)
    read = torch.cat([torch.full((len(src), 1), START), src], 1)
    predict = torch.cat([src, torch.full((len(src), 1), PAD)], 1)
    predict[torch.arange(len(src)), lengths] = END
    return read, predict


def in_words(row: Tensor) -> str:
    names = {START: "<s>", END: "</s>", PAD: "_"}
    return " ".join(names.get(token, str(token)) for token in row.tolist())


def spread(values: Tensor) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


class Case:
    """A faulty model and what can be seen of it; without a number, a sound one."""

    def __init__(self, number: int | None = None, **repaired: Callable):
        self.number = number
        self.repaired = repaired
        self.model = None

    def part(self, name: str, *given):
        """What a part of the model gives."""
        if name in self.repaired:
            return self.repaired[name](*given)
        return play(self.number, name, *given)

    def train(self) -> "Case":
        """Train the model, once; the numbers are the same for the same case."""
        if self.model is None:
            with torch.random.fork_rng():
                torch.manual_seed(self.number or 0)
                self.model = train(self.part)
        return self

    def samples(self, number: int = 200) -> Tensor:
        """Sources that the training has not seen: (number, 6)."""
        with torch.random.fork_rng():
            torch.manual_seed(10_000 + (self.number or 0))
            return sequences(number)

    def write(self, src: Tensor) -> Tensor:
        """What the model writes for sources (B, S), greedily."""
        return write(self.train().model, src)

    @torch.no_grad()
    def log_probs(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Log-probabilities (B, T, V), where the decoder reads tgt (B, T)."""
        return self.train().model(src, tgt)

    def attention(self, src: Tensor) -> Tensor:
        """Cross-attention, the mean of its heads, while the right copy is read: (B, T, S)."""
        self.log_probs(src, right_rows(src)[0])
        return self.model.src_attn.attn.mean(1)

    def symptoms(self) -> dict:
        """All symptoms, by name."""
        src = self.samples()
        read, predict = right_rows(src)
        log_probs = self.log_probs(src, read)
        right = log_probs.argmax(-1) == predict
        real = (predict != PAD) & (predict != END)
        written = self.write(src)
        whole = (written == predict).all(1)
        full = src[(src != PAD).all(1)]
        short = full[:, :4]
        padded = torch.nn.functional.pad(short, (0, 2), value=PAD)
        alone, beside = self.write(short), self.write(padded)[:, :5]
        other = self.write(src.roll(1, 0))
        changed = read.clone()
        changed[:, -1] = PAD + 1
        later = (self.log_probs(src, changed)[:, :-1] - log_probs[:, :-1]).abs().amax(-1) > 1e-4
        hard = [t for t in range(4, TOKENS) if right[predict == t].float().mean() < 0.9]
        at_end = log_probs.exp()[predict == END][:, END]
        return {
            "training loss, means of 40 updates": " ".join(
                f"{loss:.2f}" for loss in self.model.losses
            ),
            "how far a weight moved in training": f"{self.model.moved:.3f}",
            "told the right beginning, tokens right": f"{right[real].float().mean():.0%}",
            "of these, tokens right less than nine times of ten": str(hard),
            "predictions that a later token changes": f"{later.float().mean():.0%}",
            "probability of the end where it belongs": f"{at_end.mean():.2f}",
            "copied without a mistake": f"{whole.sum()} of {len(src)}",
            "never ended": f"{(written != END).all(1).sum()} of {len(src)}",
            "tokens that occur in its source": f"{occurring(src, written):.0%}",
            "the same when asked twice": f"{same(written, self.write(src)):.0%}",
            "the same for another source": f"{same(written, other):.0%}",
            "the same with padding behind the source": f"{same(alone, beside):.0%}",
            "probabilities of all tokens add up to": spread(log_probs.exp().sum(-1)),
            "a query's attention weights add up to": spread(self.attention(full).sum(-1)),
        }

    def report(self) -> None:
        """Print the symptoms, five examples and an attention map."""
        for name, value in self.symptoms().items():
            print(f"{name:52}{value}")
        src = self.samples(5)
        print("\nreads                  should write                  writes")
        for row, right, written in zip(src, right_rows(src)[1], self.write(src), strict=True):
            print(f"{in_words(row):23}{in_words(right):30}{in_words(written)}")
        print("\ncross-attention of a copy: a row for each step, a column for each source token")
        longest = self.samples()
        longest = longest[(longest != PAD).all(1)][:1]
        for row in self.attention(longest)[0].tolist():
            print("  ".join(f"{weight:.2f}" for weight in row))

    def repair(self, part: str, mine: Callable) -> "Case":
        """Print the report with your function as this part; ValueError if there is no such part."""
        if part not in CONTRACTS:
            raise ValueError(f"there is no part {part!r}: CONTRACTS lists them")
        repaired = Case(self.number, **{part: mine})
        repaired.report()
        return repaired


def occurring(src: Tensor, written: Tensor) -> float:
    """Share of written tokens that their source holds."""
    tokens = written >= 4
    held = (written.unsqueeze(2) == src.unsqueeze(1)).any(2)
    return held[tokens].float().mean().item() if tokens.any() else math.nan


def same(one: Tensor, other: Tensor) -> float:
    """Share of rows that are equal."""
    return (one == other).all(1).float().mean().item()


def hunt(number: int | None) -> Case:
    """The case with this number; for None, a sound model."""
    return Case(number)
