"""Part 10's parts together as one language model, beside the plain one of the same size.

    python tools/assembled.py train   three seeds of each, equally many updates
    python tools/assembled.py time    updates and cached generation of both, in turn

Both read the English captions of Multi30k, as Part 10 does. Whatever is on record already is left
alone; remove docs/results/assembled.json to have it made anew.
"""

import functools
import itertools
import sys
import time
from collections.abc import Callable

import records
import results
import torch
from experiments import BUDGET, SEEDS, ids_of_words, means_to_train

at = results.at

EPOCHS = 4
ROUNDS = 5
UPDATES = 60  # in a measurement
CAPTIONS = 64  # written at a time
LENGTH = 24
SIZES = {"N": 2, "d_model": 128, "h": 4, "max_len": 256}
TODAY = {
    "attention": functools.partial(at.RotaryGroupedAttention, groups=2),
    "feed_forward": at.SwiGLU,
    "norm": at.RMSNorm,
    "positions": at.NoPositions,
    "bias": False,
}
CODE = ["LanguageModel", "create_dataloaders", "run_epoch", "make_optimizer", "evaluate_loss"]
CODE += ["RotaryGroupedAttention", "SwiGLU", "RMSNorm", "NoPositions", "CachedDecoder"]


@functools.cache
def captions() -> tuple[int, list, list]:
    """Number of English words; short sentences to train on, and all to judge by, as ids."""
    words = at.learn_words(at.find_corpus("multi30k"))
    train = ids_of_words(at, words, "train", 16)
    return len(words[1]), train, ids_of_words(at, words, "val", SIZES["max_len"])


def plain(vocab: int) -> torch.nn.Module:
    return at.LanguageModel(vocab, **SIZES, d_ff=512)


@functools.cache
def width_of_gate(vocab: int) -> int:
    """The width of SwiGLU that gives the assembled model as many parameters as the plain one."""
    with torch.device("meta"):
        wanted = at.count_parameters(plain(vocab))
        sizes = {
            F: at.count_parameters(at.LanguageModel(vocab, **SIZES, **TODAY, d_ff=F))
            for F in range(300, 500)
        }
    return min(sizes, key=lambda F: abs(sizes[F] - wanted))


def assembled(vocab: int) -> torch.nn.Module:
    return at.LanguageModel(vocab, **SIZES, **TODAY, d_ff=width_of_gate(vocab))


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
            record["made"] = results.made(assembled=CODE)
            records.write("assembled", record)


# Speed --------------------------------------------------------------------------------------------


def seconds_of(action: Callable) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def write_captions(model: torch.nn.Module) -> tuple[torch.Tensor, int]:
    """Greedy captions from nothing, with a cache; the ids and the bytes that the cache holds."""
    decoder = at.CachedDecoder(model, None, None)
    written = torch.full((CAPTIONS, 1), at.START)
    with at.evaluating(model):
        for _ in range(LENGTH):
            log_probs = decoder.step(written[:, -1:])  # (CAPTIONS, 1, V)
            written = torch.cat([written, log_probs.argmax(-1)], dim=1)
    held = sum(past.keys.nbytes + past.values.nbytes for past in decoder.past)
    return written, held


def one_pass(model: torch.nn.Module, written: torch.Tensor) -> torch.Tensor:
    """What the model would write after each prefix, all at once and without a cache."""
    with at.evaluating(model):
        states = model.decode(None, None, written[:, :-1], at.subsequent_mask(LENGTH))
        return model.generator(states).argmax(-1)


def speed() -> None:
    """Tokens a second of updates and of cached generation, and bytes of cache for each token."""
    record = records.read("assembled")
    if "speed" in record:
        return
    records.wait_for_quiet()
    vocab, short, _ = captions()
    batches = list(itertools.islice(at.create_dataloaders(short, [], BUDGET)[0], UPDATES))
    tokens = sum(batch.ntokens for batch in batches)
    models = {name: make(vocab) for name, make in MODELS.items()}
    rows = {name: {"training": [], "writing": []} for name in MODELS}
    for number in range(ROUNDS + 1):
        for name, model in models.items():
            means = means_to_train(at, model)
            update = functools.partial(at.run_epoch, batches, model, *means)
            training = tokens / seconds_of(update)
            writing = CAPTIONS * LENGTH / seconds_of(lambda model=model: write_captions(model))
            if number > 0:  # the first round warms up
                rows[name]["training"].append(round(training))
                rows[name]["writing"].append(round(writing))
    for name, model in models.items():
        written, held = write_captions(model)
        if not torch.equal(written[:, 1:], one_pass(model, written)):
            raise ValueError(f"{name}: with a cache it writes something else")
        rows[name]["bytes"] = held // (CAPTIONS * LENGTH)
    record["speed"] = rows
    record["timed"] = results.made(assembled=CODE)
    records.write("assembled", record)


main = records.command_line(train=train, time=speed)

if __name__ == "__main__":
    sys.exit(main())
