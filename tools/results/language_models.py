"""Part 10's parts together as one language model, beside the plain one of the same size.

Both read the English captions of Multi30k, as Part 10 does: three seeds of each make equally many
updates, and both are timed in turn. Remove results/assembled.json to make it anew.
"""

import functools
import itertools
import time
from collections.abc import Callable

import torch

import the_annotated_transformer as at
from tools import records
from tools.results.experiments import BUDGET, SEEDS, ids_of_words, means_to_train

EPOCHS = 4
ROUNDS = 5
UPDATES = 60  # in a measurement
CAPTIONS = 64  # written at a time
LENGTH = 24
SIZES = {"N": 2, "d_model": 128, "h": 4, "max_len": 256}
TODAY = {
    "attention": lambda: at.start_weights(at.RotaryGroupedAttention(4, 128)),
    "feed_forward": lambda: at.start_weights(at.SwiGLU(128, 396)),
    "norm": lambda: at.RMSNorm(128),
    "positions": lambda: torch.nn.Dropout(0.1),
}


@functools.cache
def captions() -> tuple[int, list, list]:
    """Number of English words; short sentences to train on, and all to judge by, as ids."""
    words = at.learn_words(at.find_corpus("multi30k"))
    train = ids_of_words(at, words, "train", 16)
    return len(words[1]), train, ids_of_words(at, words, "val", SIZES["max_len"])


def plain(vocab: int) -> torch.nn.Module:
    return at.make_language_model(vocab, **SIZES, d_ff=512)


def assembled(vocab: int) -> torch.nn.Module:
    """With the parts of today; a gated network of this width has as many parameters."""
    model = at.make_language_model(vocab, **SIZES, d_ff=512)
    for kind, make in TODAY.items():
        at.exchange(model, kind, make)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.bias = None
    return model


MODELS: dict[str, Callable] = {"plain": plain, "assembled": assembled}


def trained(name: str, seed: int) -> dict:
    """Train a model: parameters, updates, and the validation loss after each epoch."""
    vocab, short, judged = captions()
    torch.manual_seed(seed)
    model = MODELS[name](vocab)
    means = means_to_train(at, model)
    state = at.TrainState()
    losses = []
    for epoch in range(EPOCHS):
        train, val = at.create_dataloaders(short, judged, BUDGET, 1000 * seed + epoch)
        at.run_epoch(train, model, *means, train_state=state)
        losses.append(round(at.evaluate_loss(model, val)["nll"], 4))
    return {
        "model": name,
        "seed": seed,
        "parameters": at.count_parameters(model),
        "updates": state.step,
        "nll": losses,
    }


def train() -> None:
    """Every model and seed that is not on record; each is kept at once."""
    record = records.read("assembled")
    runs = record.get("runs", [])
    done = {(run["model"], run["seed"]) for run in runs}
    for seed, name in itertools.product(SEEDS, MODELS):
        if (name, seed) not in done:
            runs.append(trained(name, seed))
            print(runs[-1], flush=True)
            record["runs"] = runs
            record["made"] = records.circumstances()
            records.write("assembled", record)


# Speed --------------------------------------------------------------------------------------------


def seconds_of(action: Callable) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def write_captions(model: torch.nn.Module) -> tuple[torch.Tensor, int]:
    """Greedy captions from nothing, with a cache; the ids and the bytes that the cache holds."""
    written = torch.full((CAPTIONS, 1), at.START)
    with at.evaluating(model):
        decoder = at.with_cache(model.decoder)
        for _ in range(LENGTH):
            x = model.tgt_embed(written)[:, -1:]  # (CAPTIONS, 1, D), of the newest words
            log_probs = model.generator(decoder(x, None))  # (CAPTIONS, 1, V)
            written = torch.cat([written, log_probs.argmax(-1)], dim=1)
    attentions = [layer.self_attn for layer in decoder.layers]
    return written, sum(attn.keys.nbytes + attn.values.nbytes for attn in attentions)


def speed() -> None:
    """Tokens a second of updates and of cached generation, and bytes of cache for each token."""
    record = records.read("assembled")
    if "speed" in record:
        return
    records.wait_for_quiet()
    vocab, short, _ = captions()
    batches = list(itertools.islice(at.create_dataloaders(short, [], BUDGET)[0], UPDATES))
    tokens = sum(batch.ntokens for batch in batches)
    built = {name: make(vocab) for name, make in MODELS.items()}
    rows = {name: {"training": [], "writing": []} for name in MODELS}
    for number in range(ROUNDS + 1):
        for name, model in built.items():
            means = means_to_train(at, model)
            update = functools.partial(at.run_epoch, batches, model, *means)
            training = tokens / seconds_of(update)
            writing = CAPTIONS * LENGTH / seconds_of(lambda model=model: write_captions(model))
            if number > 0:  # the first round warms up
                rows[name]["training"].append(round(training))
                rows[name]["writing"].append(round(writing))
    for name, model in built.items():
        _, held = write_captions(model)
        rows[name]["bytes"] = held // (CAPTIONS * LENGTH)
    record["speed"] = rows
    record["timed"] = records.circumstances()
    records.write("assembled", record)
