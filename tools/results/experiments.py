"""Small experiments of the story, with three seeds where something is trained.

A result on record is not made again: remove the record first.
"""

import contextlib
import itertools
from collections.abc import Callable
from types import ModuleType

import torch

import the_annotated_transformer as at
from tools import records
from tools.results.plan import SEEDS

# The demonstration of Part 6 --------------------------------------------------------------------

BUDGET = 512  # positions of a batch, as in the demonstrations of the text


def ids_of_words(at: ModuleType, words: tuple, split: str, longest: int) -> list:
    """The pairs of a split of Multi30k that have at most `longest` words, as ids."""
    corpus = at.find_corpus("multi30k")
    pairs = at.encode_pairs(corpus.pairs(split), words, corpus.languages)
    return [pair for pair in pairs if at.usable(pair, longest)]


def means_to_train(at: ModuleType, model: torch.nn.Module) -> tuple:
    """Loss, optimizer and schedule of the demonstrations of the text."""
    criterion = at.LabelSmoothing(model.generator.proj.out_features, at.PAD, 0.1)
    compute = at.SimpleLossCompute(model.generator, criterion)
    return compute, *at.make_optimizer(model, factor=1.0, warmup=300)


@records.once("demonstration")
def demonstration() -> dict:
    """What the model of Part 6 writes after its two minutes."""
    translator = at.trained("train_a_demonstration")
    written = {source: at.translate_one(translator, source) for source in at.TRY_THESE}
    return {"made": records.circumstances(), "written": written}


# Warm-up ----------------------------------------------------------------------------------------

FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
WARMUP = 200


def warmed(factor: float, warm: bool, norm_first: bool, seed: int) -> dict:
    """Train the copy task, four layers, by one curve of learning rates: the last loss."""
    model = at.new_copy_model(seed, N=4, norm_first=norm_first)
    compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(at.COPY_VOCAB, at.PAD))
    optimizer, scheduler = at.make_optimizer(model, factor, WARMUP)
    if not warm:  # it begins at the peak
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda updates: at.rate(max(updates + 1, WARMUP), 64, factor, WARMUP)
        )
    at.run_epoch(at.data_gen(at.COPY_VOCAB, 32, 390), model, compute, optimizer, scheduler)
    last = at.data_gen(at.COPY_VOCAB, 32, 10)
    loss, _ = at.run_epoch(last, model, compute, optimizer, scheduler)
    peak = at.rate(WARMUP, 64, factor, WARMUP)
    about = {"peak": peak, "warm-up": warm, "norm first": norm_first, "seed": seed}
    return about | {"loss": round(loss, 4)}


@records.once("warmups")
def warmups() -> dict:
    """Seven peak rates, with and without a warm-up, both norm orders, three seeds."""
    grid = itertools.product(FACTORS, (True, False), (True, False), SEEDS)
    runs = [warmed(*settings) for settings in grid]
    return {"made": records.circumstances(), "runs": runs}


# Heads switched off -----------------------------------------------------------------------------


@records.once("heads")
def heads() -> dict:
    """How perplexity rises without groups of heads of a layer: the shipped model, five samples."""
    translator = at.load_trained_model("pretrained", torch.device("cpu"))
    model = translator.model
    pairs = at.find_corpus("multi30k").pairs("val")[:1000]
    _, ids = at.usable_pairs(translator, pairs)
    sets = [list(at.batches_to_score(translator, part)) for part in at.grouped(ids, 200)]

    def perplexities() -> list[float]:
        return [at.evaluate_loss(model, each)["perplexity"] for each in sets]

    whole = perplexities()
    rows = []
    for kind, layers in at.attentions_of(model).items():
        for layer, attn in enumerate(layers, 1):
            for number in range(1, attn.h + 1):
                for off in itertools.combinations(range(attn.h), number):
                    with contextlib.ExitStack() as removed:
                        for head in off:
                            removed.enter_context(at.without_head(attn, head))
                        without = perplexities()
                    changes = [round(a - b, 4) for a, b in zip(without, whole, strict=True)]
                    about = {"attention": kind, "layer": layer, "off": [head + 1 for head in off]}
                    rows.append(about | {"changes": changes})
    return {"made": records.made_with_shipped(), "perplexity": whole, "rows": rows}


# How far back a layer learns to look -------------------------------------------------------------

DISTANCES = (2, 4, 8, 16, 32, 64)
LETTERS = 16
SEQUENCES = {16: 32, 1: 64}  # of a batch, by the answers that a sequence asks for, its last ones
UPDATES = 400


class LookBack(torch.nn.Module):
    """Embeddings, one causal layer, a generator: ids (B, T) -> log-probabilities (B, T, V)."""

    def __init__(self, layer: torch.nn.Module):
        super().__init__()
        self.embed = torch.nn.Sequential(
            at.Embeddings(at.THIN, LETTERS), at.PositionalEncoding(at.THIN, 0.0)
        )
        self.encoder = at.Encoder(layer, 1, at.layer_norm(at.THIN))
        self.generator = at.start_weights(at.Generator(at.THIN, LETTERS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.encoder(self.embed(ids), at.subsequent_mask(ids.size(1)))
        return self.generator(states)


def asked(model: LookBack, distance: int, answers: int, sequences: int) -> tuple:
    """Random tokens to a model: log-probabilities (tokens, V), and the tokens further back."""
    ids = torch.randint(LETTERS, (sequences, distance + answers))
    return model(ids)[:, distance:].flatten(0, 1), ids[:, :-distance].flatten()


def look_back(kind: str, distance: int, answers: int, seed: int) -> dict:
    """Train one layer to repeat what stood `distance` places earlier: its accuracy afterwards."""
    torch.manual_seed(seed)
    model = LookBack(at.three_layers()[kind])
    optimizer, scheduler = at.make_optimizer(model, factor=0.5, warmup=WARMUP)
    for _ in range(UPDATES):
        log_probs, right = asked(model, distance, answers, SEQUENCES[answers])
        torch.nn.functional.nll_loss(log_probs, right).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    with at.evaluating(model):
        log_probs, right = asked(model, distance, answers, 3200 // answers)
    accuracy = (log_probs.argmax(-1) == right).float().mean().item()
    about = {"layer": kind, "distance": distance, "answers": answers, "seed": seed}
    return about | {"accuracy": round(accuracy, 4)}


@records.once("reach")
def reach() -> dict:
    """Three kinds of layers by distance, three seeds; a GRU also with one token to keep."""
    grid = itertools.product(at.three_layers(), DISTANCES, [16], SEEDS)
    control = itertools.product(["GRU"], [8, 16, 32], [1], SEEDS)
    runs = [look_back(*settings) for settings in (*grid, *control)]
    settings = {"updates": UPDATES, "letters": LETTERS, "sequences by answers": SEQUENCES}
    return {"made": records.circumstances(), "settings": settings, "runs": runs}


# What length costs ------------------------------------------------------------------------------

WIDTH = 256
BATCHES = (1, 16)
LENGTHS = (16, 64, 256, 1024)
ROUNDS = 5


def layers_to_time() -> dict[str, Callable]:
    """One layer of each kind, of one width."""
    attention = at.MultiHeadedAttention(4, WIDTH, dropout=0.0)
    recurrent = torch.nn.GRU(WIDTH, WIDTH, batch_first=True)
    convolution = torch.nn.Conv1d(WIDTH, WIDTH, kernel_size=3, padding=1)
    return {
        "self-attention": lambda x: attention(x, x, x),
        "recurrent (GRU)": lambda x: recurrent(x)[0],
        "convolution over 3": lambda x: convolution(x.mT),
    }


def milliseconds(layer: Callable, batch: int, length: int) -> float:
    """Of a batch, forward and backward, by one thread: the median of a fifth of a second."""
    import torch.utils.benchmark  # looks for a CUDA toolkit, and complains where there is no GPU

    step = {"layer": layer, "x": torch.randn(batch, length, WIDTH)}
    # One thread is its default.
    timer = torch.utils.benchmark.Timer("layer(x).sum().backward()", globals=step)
    return round(1000 * timer.blocked_autorange(min_run_time=0.2).median, 4)


@records.once("length-cost")
def length_cost() -> dict:
    """Time one layer of each kind against the length, in rounds that take turns."""
    layers = layers_to_time()
    rounds = {case: [] for case in itertools.product(layers, BATCHES, LENGTHS)}
    records.wait_for_quiet()
    for _ in range(ROUNDS):
        for (kind, batch, length), measured in rounds.items():
            measured.append(milliseconds(layers[kind], batch, length))
    rows = [
        {"layer": kind, "batch": batch, "length": length, "milliseconds": measured}
        for (kind, batch, length), measured in rounds.items()
    ]
    return {"made": records.circumstances(), "width": WIDTH, "rows": rows}
