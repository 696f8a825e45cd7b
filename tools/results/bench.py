"""The bench of Part 10: what each change since 2017 is worth to one small language model.

    python -m tools.results.bench train ROW SEED     one training, unless it is on record
    python -m tools.results.bench speed [ROW ...]    rows in turn; only on a quiet machine

The model reads the English captions of Multi30k, one behind the other, in streams of 256 tokens.
Every row is the base with one change, has as many parameters that act on a token, and makes as many
updates with the same batches; seeds differ in weights, dropout and the order of captions. A run
leaves its record in results/bench, and its weights in bench/ROW-SEED of RUNS_DIR.
"""

import functools
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch

import the_annotated_transformer as at
from tools import records
from tools.results.plan import SEEDS

SUBWORDS = 2000
LENGTH = 256  # of a stream
STREAMS = 8  # of a batch
EPOCHS = 3
WARMUP = 150
FACTOR = 2.0  # of the rate: the base learns best with it among 1, 2 and 3.5
SIZES = {"N": 4, "d_model": 128, "d_ff": 512, "h": 4, "dropout": 0.1, "max_len": LENGTH}


@dataclass(frozen=True)
class Row:
    """A row of the table: what differs from the base."""

    name: str  # in the table
    model: dict = field(default_factory=dict)  # changes of `ModelConfig`
    full: tuple[int, ...] = ()  # layers with full attention, whatever the others have
    optimizer: str = "adam"
    weight_decay: float = 0.0
    schedule: str = "linear"


# Where attention has fewer parameters, a wider feed-forward network makes up for them; a gated one
# has three matrices instead of two.
ROWS = {
    "base": Row("no change: Parts 1 and 2"),
    "no-positions": Row("no positions", {"positions": "none"}),
    "rms": Row("RMSNorm", {"norm": "rms"}),
    "swiglu": Row("SwiGLU", {"feed_forward": "swiglu", "d_ff": 344}),
    "rotary": Row("rotary positions", {"attention": "rotary", "positions": "none"}),
    "distance": Row("ALiBi", {"attention": "distance", "positions": "none"}),
    "qk-norm": Row("QK-norm", {"attention": "normed"}),
    "grouped": Row("grouped keys, two heads each", {"attention": "grouped", "d_ff": 576}),
    "multi-query": Row("one head of keys", {"attention": "multi-query", "d_ff": 608}),
    "window": Row("windows in two layers of four", {"attention": "window"}, full=(1, 3)),
    "rotary-window": Row(
        "windows beside rotary positions",
        {"attention": "rotary-window", "positions": "none"},
        full=(1, 3),
    ),
    "latent": Row("latent keys and values", {"attention": "latent", "d_ff": 592}),
    "experts": Row("mixture of experts, 2 of 8", {"feed_forward": "experts"}),
    "no-bias": Row("no biases", {"bias": False}),
    "adamw": Row("AdamW, weight decay 0.1", optimizer="adamw", weight_decay=0.1),
    "muon": Row("Muon", optimizer="muon"),
    "stable-decay": Row("warm-up, stable, decay", schedule="stable_decay"),
    "together": Row(
        "together",
        {
            "norm": "rms",
            "feed_forward": "swiglu",
            "attention": "modern",
            "positions": "none",
            "bias": False,
            "d_ff": 384,
        },
        optimizer="muon",
        weight_decay=0.1,
        schedule="stable_decay",
    ),
    "choice": Row(
        "our choice",
        {
            "norm": "rms",
            "attention": "rotary-grouped",
            "positions": "none",
            "bias": False,
            "d_ff": 576,
        },
        optimizer="muon",
        weight_decay=0.1,
    ),
}


# The model and its data ---------------------------------------------------------------------------


def build(row: Row, vocab: int) -> at.LanguageModel:
    """A language model with one matrix for embedding and generator."""
    config = at.ModelConfig(**SIZES | row.model)
    whole = at.build_model(config, vocab, vocab)
    kind = at.RotaryAttention if "rotary" in config.attention else at.MultiHeadedAttention
    for layer in row.full:
        full = kind(config.h, config.d_model, config.attention_dropout)
        whole.encoder.layers[layer].self_attn = at.start_weights(full)
    return at.LanguageModel(whole.encoder, whole.tgt_embed, whole.generator)


def active_parameters(model: at.LanguageModel) -> int:
    """Number of the parameters that act on a token: of a mixture, without the experts at rest."""
    at_rest = 0
    for mixture in model.modules():
        if isinstance(mixture, at.MixtureOfExperts):
            number = len(mixture.experts) - mixture.active
            at_rest += number * at.count_parameters(mixture.experts[0])
    return at.count_parameters(model) - at_rest


@functools.cache
def captions() -> tuple[at.Subwords, dict[str, list[list[int]]]]:
    """Subwords of the English captions, and the ids of each caption by split."""
    corpus = at.find_corpus("multi30k")
    texts = {split: [english for _, english in corpus.pairs(split)] for split in ("train", "val")}
    english = at.Corpus(corpus.name, ("en",), {"train": [(text,) for text in texts["train"]]})
    subwords, _ = at.learn_subwords(english, SUBWORDS)
    ids = {split: subwords.encode(each) for split, each in texts.items()}
    return subwords, ids


def streams(ids: list[list[int]], order: random.Random | None = None) -> torch.Tensor:
    """Captions one behind the other, cut into rows (n, LENGTH + 1) that overlap by one token.

    Each token is predicted once, except a rest that fills no row.
    """
    ids = list(ids)
    if order:
        order.shuffle(ids)
    tokens = torch.tensor([token for each in ids for token in (at.START, *each, at.END)])
    return tokens.unfold(0, LENGTH + 1, LENGTH)


def batches(rows: torch.Tensor) -> list[at.Batch]:
    """Full batches only; a language model does not look at the source."""
    full = [part for part in rows.split(STREAMS) if len(part) == STREAMS]
    return [at.Batch(part, part) for part in full]


def batches_of_epoch(seed: int, epoch: int) -> list[at.Batch]:
    _, ids = captions()
    return batches(streams(ids["train"], random.Random(f"{seed} {epoch}")))


# Training -----------------------------------------------------------------------------------------


def means_to_train(row: Row, model: at.LanguageModel, updates: int, factor=FACTOR) -> tuple:
    """Loss, optimizer and schedule of a row, for so many updates in all."""
    vocab = model.generator.proj.out_features
    compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(vocab, at.PAD))
    names = row.schedule, row.optimizer
    return compute, *at.make_optimizer(model, factor, WARMUP, *names, updates, row.weight_decay)


def trained(row: Row, seed: int, epochs: int = EPOCHS, factor: float = FACTOR) -> tuple:
    """Train a model: the model, its updates, and loss and perplexity after each epoch."""
    subwords, ids = captions()
    torch.manual_seed(seed)
    model = build(row, len(subwords))
    means = means_to_train(row, model, epochs * len(batches_of_epoch(seed, 1)), factor)
    judged = [at.Batch(part, part) for part in streams(ids["val"]).split(STREAMS)]
    state = at.TrainState()
    log = []
    for epoch in range(1, epochs + 1):
        data = batches_of_epoch(seed, epoch)
        loss, _ = at.run_epoch(data, model, *means, train_state=state)
        scores = at.evaluate_loss(model, judged)
        log.append({"epoch": epoch, "loss": round(loss, 4), "nll": round(scores["nll"], 4)})
        log[-1]["perplexity"] = round(scores["perplexity"], 3)
        print(log[-1], flush=True)
    return model, state.step, log


def train(name: str, seed: int, /) -> None:
    """Train a row with a seed and put it on record, unless it is there.

    Args:
        name: a row of ROWS
        seed: of weights, dropout and the order of the captions
    """
    if name not in ROWS:
        raise ValueError(f"{name} is no row of the bench; there are {', '.join(ROWS)}")
    record = f"bench/{name}-{seed}"
    if records.read(record):
        return
    torch.set_num_threads(1)
    made = records.circumstances()
    begin = time.perf_counter()
    row = ROWS[name]
    model, updates, log = trained(row, seed)
    folder = at.runs_folder() / "bench" / f"{name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "model.pt")
    data = {"subwords": SUBWORDS, "length": LENGTH, "streams": STREAMS, "epochs": EPOCHS}
    curve = {"warmup": WARMUP, "factor": FACTOR}
    found = {
        "row": name,
        "seed": seed,
        "settings": SIZES | asdict(row) | data | curve,
        "parameters": at.count_parameters(model),
        "active": active_parameters(model),
        "updates": updates,
        "minutes": round((time.perf_counter() - begin) / 60, 1),
        "log": log,
    }
    records.write(record, found | made)


# Speed --------------------------------------------------------------------------------------------

ROUNDS = 5
UPDATES = 5  # of a measurement
WRITERS = 64  # sequences that are written at a time


def write(model: at.LanguageModel) -> tuple[torch.Tensor, int]:
    """Greedy continuations (WRITERS, LENGTH) with a cache, and the bytes that the cache holds."""
    written = torch.full((WRITERS, 1), at.START)
    with at.evaluating(model):
        decoder = at.with_cache(model.decoder)
        embedding, positions = model.tgt_embed
        places = positions(torch.zeros(1, LENGTH, SIZES["d_model"]))  # what each place adds
        while (place := written.size(1)) < LENGTH:
            x = embedding(written[:, -1:]) + places[:, place - 1 : place]  # (WRITERS, 1, D)
            log_probs = model.generator(decoder(x, None))  # (WRITERS, 1, V)
            written = torch.cat([written, log_probs.argmax(-1)], dim=1)
    caches = [layer.self_attn for layer in decoder.layers]
    return written, sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)


def tokens_per_second(tokens: float, action: Callable) -> int:
    begin = time.perf_counter()
    action()
    return round(tokens / (time.perf_counter() - begin))


def rounds(names: Sequence[str]) -> dict[str, dict]:
    """Tokens a second of the rows, which take turns, and bytes of cache for each token."""
    subwords, _ = captions()
    data = batches_of_epoch(1, 1)[:UPDATES]
    tokens = sum(batch.ntokens for batch in data)
    found = {name: {"training": [], "writing": [], "bytes": []} for name in names}
    models = {name: build(ROWS[name], len(subwords)) for name in names}
    for number in range(ROUNDS + 1):
        for name, model in models.items():
            means = means_to_train(ROWS[name], model, 1000)
            update = functools.partial(at.run_epoch, data, model, *means)
            training = tokens_per_second(tokens, update)
            writing = tokens_per_second(WRITERS * (LENGTH - 1), functools.partial(write, model))
            if number > 0:  # the first round warms up
                found[name]["training"].append(training)
                found[name]["writing"].append(writing)
    for name, model in models.items():
        _, held = write(model)
        found[name]["bytes"].append(round(held / (WRITERS * (LENGTH - 1))))
    return found


def speed(names: tuple[str, ...] = (), /) -> None:
    """Time rows and put them on record, unless there is a record.

    Args:
        names: rows of ROWS; without names all
    """
    if records.read("bench/speed"):
        return
    torch.set_num_threads(1)
    records.wait_for_quiet()
    made = records.circumstances()
    records.write("bench/speed", {"rows": rounds(names or tuple(ROWS)), "made": made})


def everything() -> None:
    """Train what is not on record, and time all rows unless some are."""
    for seed in SEEDS:
        for name in ROWS:
            train(name, seed)
    speed()


main = records.command_line(train=train, speed=speed)

if __name__ == "__main__":
    sys.exit(main())
