"""Small experiments of the story, with three seeds where something is trained.

Their records lie in docs/results.

    python tools/experiments.py copying      train the copy task with known faults, one by one
    python tools/experiments.py translating  train a translator, or use the shipped one, with others
    python tools/experiments.py checks       run the script's checks with each of them
    python tools/experiments.py warmups      train it with and without a warm-up, by many rates
    python tools/experiments.py lengths      train it with four kinds of positions, and ask for more
    python tools/experiments.py heads        take each head of the shipped model away
    python tools/experiments.py lost         count greedy translations that a beam loses
    python tools/experiments.py length_cost  time one layer of three kinds (needs a quiet machine)

A fault is a literal replacement in a copy of the script. Whatever is on record already is left
alone; remove the record to have it made anew.
"""

import contextlib
import functools
import io
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from tools import records
from tools.results import recipe as results

SCRIPT = Path(results.at.FILE)
SEEDS = (1, 2, 3)
UPDATES = 600
SOUND = "nothing"


@dataclass(frozen=True)
class Fault:
    """What is planted: `old` gives way to `new`, and `shows` says where its symptom is sought."""

    name: str
    old: str = ""
    new: str = ""
    shows: str = "copy"  # or "wide", "demonstration", "shipped"


FEED_FORWARD = "self.narrow(self.dropout(self.widen(x).relu()))"
RESIDUAL = "return x + self.dropout(sublayer(self.norm(x)))"
ROOT = "query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (..., T, S)"
STEP = "            scheduler.step()\n            optimizer.zero_grad()\n            state"
FAULTS = (
    Fault(SOUND),
    Fault(
        "the future is open in training",
        "(self.tgt != pad).unsqueeze(1) & causal",
        "(self.tgt != pad).unsqueeze(1).repeat(1, self.tgt.size(1), 1)",
    ),
    Fault("the target is not shifted", "self.tgt_y = tgt[:, 1:]", "self.tgt_y = tgt[:, :-1]"),
    Fault(
        "the target has no end token",
        "yield Batch(src, F.pad(started, (0, 1), value=END))",
        "yield Batch(src, started)",
    ),
    Fault(
        "decoding starts from padding",
        "written = src.new_full((len(src), 1), start_symbol)",
        "written = src.new_full((len(src), 1), pad)",
    ),
    Fault("no positions", "self.dropout(x + self.pe[:, : x.size(1)])", "self.dropout(x)"),
    Fault(
        "positions divided by the frequency, not multiplied",
        "torch.arange(max_len).unsqueeze(1) * frequency",
        "torch.arange(max_len).unsqueeze(1) / frequency",
    ),
    Fault("embeddings not times √D", "self.lut(x) * math.sqrt(self.d_model)", "self.lut(x)"),
    Fault("no division by √d_k", ROOT, "query @ key.transpose(-2, -1)"),
    Fault(
        "no division by √d_k, one head of width 512", ROOT, "query @ key.transpose(-2, -1)", "wide"
    ),
    Fault(
        "softmax over the queries",
        "    weights = scores.softmax(dim=-1)\n    if dropout",
        "    weights = scores.softmax(dim=-2)\n    if dropout",
    ),
    Fault(
        "viewed straight to heads",
        "x.unflatten(-1, (-1, self.d_k)).transpose(1, 2)",
        "x.reshape(len(x), -1, x.size(1), self.d_k)",
    ),
    Fault("no residual connections", RESIDUAL, "return self.dropout(sublayer(self.norm(x)))"),
    Fault("no norms", RESIDUAL, "return x + self.dropout(sublayer(x))"),
    Fault(
        "no norm at the end of a stack",
        "copy.deepcopy(layer.sublayer[0].norm) if layer.norm_first else nn.Identity()",
        "nn.Identity()",
    ),
    Fault("no feed-forward network", FEED_FORWARD, "torch.zeros_like(x)"),
    Fault("no ReLU", FEED_FORWARD, "self.narrow(self.dropout(self.widen(x)))"),
    Fault(
        "copies of a layer start alike",
        "    start_weights(model, bias)\n    if share",
        "    start_weights(model, bias)\n"
        "    for stack in (model.encoder, model.decoder):\n"
        "        for layer in stack.layers:\n"
        "            layer.load_state_dict(stack.layers[0].state_dict())\n"
        "    if share",
    ),
    Fault("PyTorch's own start", "nn.init.xavier_uniform_(module.weight)", "pass"),
    Fault(
        "Adam's own β₂ and ε",
        "Adam(model.parameters(), 1.0, betas=(0.9, 0.98), eps=1e-9, fused",
        "Adam(model.parameters(), 1.0, fused",
    ),
    Fault("the schedule never steps", STEP, "            optimizer.zero_grad()\n            state"),
    Fault("gradients are never cleared", STEP, "            scheduler.step()\n            state"),
    Fault(
        "the loss is a sum",
        "return loss_sum.detach(), loss_sum / norm",
        "return loss_sum.detach(), loss_sum",
    ),
    # Of the data: a translator of words is trained with them.
    Fault(
        "each sentence beside the translation of the next",
        "zip(source_ids, target_ids, strict=True)",
        "zip(source_ids, target_ids[1:] + target_ids[:1], strict=True)",
        "demonstration",
    ),
    Fault(
        "words from all splits",
        'texts = (pair[side] for pair in sample_of(corpus.pairs("train")))',
        "texts = (pair[side] for pair in itertools.chain(*corpus.splits.values()))",
        "demonstration",
    ),
    Fault(
        "batches from short to long",
        "    if order is not None:\n        order.shuffle(batches)\n",
        "",
        "demonstration",
    ),
    Fault(
        "a translator without feed-forward networks",
        FEED_FORWARD,
        "torch.zeros_like(x)",
        "demonstration",
    ),
    Fault(
        "a translator without the division by √d_k",
        ROOT,
        "query @ key.transpose(-2, -1)",
        "demonstration",
    ),
    # Of decoding and scoring: the shipped model translates with them.
    Fault(
        "dropout is on while it translates",
        "    model.eval()\n    try:\n",
        "    model.train()\n    try:\n",
        "shipped",
    ),
    Fault(
        "the source's padding is open",
        "(src != pad).unsqueeze(1)  # (B, 1, S)",
        "(src == src).unsqueeze(1)",
        "shipped",
    ),
    Fault("sources without their end", "(number, [*piece, END])", "(number, piece)", "shipped"),
    Fault(
        "translations in the order of their lengths",
        "            texts[n] = translator",
        "            texts[by_length.index(n)] = translator",
        "shipped",
    ),
    Fault(
        "ended hypotheses can lose their place",
        "proposed[..., pad].masked_fill(ended, torch.inf)",
        "torch.where(ended, logp, proposed[..., pad])",
        "shipped",
    ),
    Fault("length penalty without its 5", "((5 + length) / 6)", "((length + 0) / 1)", "shipped"),
    Fault(
        "scored in lower case",
        "BLEU(tokenize=bleu_tokenization(language))",
        "BLEU(tokenize=bleu_tokenization(language), lowercase=True)",
        "shipped",
    ),
    Fault(
        "scored with spaces as the only cuts",
        "BLEU(tokenize=bleu_tokenization(language))",
        'BLEU(tokenize="none")',
        "shipped",
    ),
)


def faulty_text(fault: Fault) -> str:
    """The script with a fault in it; ValueError where its line is not there once."""
    text = SCRIPT.read_text("utf-8")
    if fault.old and text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: its line stands {text.count(fault.old)} times")
    return text.replace(fault.old, fault.new) if fault.old else text


@functools.cache
def planted(fault: Fault) -> ModuleType:
    """The script as a module, with a fault in it."""
    module = ModuleType("planted")
    module.__file__ = str(SCRIPT)
    sys.modules["planted"] = module  # dataclasses look for it there
    exec(compile(faulty_text(fault), str(SCRIPT), "exec"), vars(module))
    return module


def keep(kind: str, fault: Fault, found: list, made: dict) -> None:
    """Put on record what was found with a fault; ValueError if it cannot stand beside the rest."""
    record = records.read("planted")
    stamps = record.setdefault("made", {}).setdefault(kind, [])
    if stamps:
        records.check_comparable({f"{kind} before": stamps[0], fault.name: made})
    if made not in stamps:
        stamps.append(made)
    record.setdefault(kind, {})[fault.name] = found
    records.write("planted", record)
    print(fault.name, found[-1], flush=True)


# The copy task ----------------------------------------------------------------------------------


def copy_training(fault: Fault, seed: int) -> dict:
    """Train the copy task with a fault: losses, means of ten updates, and what became of 200."""
    at = planted(fault)
    wide = fault.shows == "wide"
    sizes = {"N": 1, "h": 1, "d_model": 512, "d_ff": 512} if wide else {}
    updates = 100 if wide else UPDATES
    model = at.new_copy_model(seed, **sizes)
    compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(at.COPY_VOCAB, at.PAD))
    optimizer, scheduler = at.make_optimizer(model, factor=0.5, warmup=200)
    losses = []
    for _ in range(updates // 10):
        batches = at.data_gen(at.COPY_VOCAB, 64, 10)
        losses.append(at.run_epoch(batches, model, compute, optimizer, scheduler)[0])
    torch.manual_seed(1000 + seed)
    test = next(at.data_gen(at.COPY_VOCAB, 200, 1))
    curve = " ".join(f"{loss:.3f}" for loss in losses)
    return {"seed": seed, "losses": curve} | at.kinds_of_copies(model, test)


def copying() -> None:
    """Every fault of the copy task, three seeds each; each run is kept at once."""
    wide = Fault("nothing, one head of width 512", shows="wide")
    for fault in (*FAULTS, wide):
        runs = records.read("planted").get("copying", {}).get(fault.name, [])
        for seed in SEEDS[len(runs) :] if fault.shows in ("copy", "wide") else ():
            runs.append(copy_training(fault, seed))
            keep("copying", fault, runs, records.circumstances())
        planted.cache_clear()


# Data, decoding and scoring ---------------------------------------------------------------------


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


def bleu_of_demonstration(fault: Fault, seed: int) -> float:
    """BLEU (validation, greedy) of the demonstration of Part 6 after two epochs with a fault."""
    at = planted(fault)
    corpus = at.find_corpus("multi30k")
    words = at.learn_words(corpus)
    pairs = ids_of_words(at, words, "train", 16)
    torch.manual_seed(seed)
    model = at.make_model(*map(len, words), N=1, d_model=128, d_ff=512, h=4, max_len=256)
    means = means_to_train(at, model)
    for epoch in range(2):
        batches = at.create_dataloaders(pairs, [], BUDGET, 1000 * seed + epoch)[0]
        at.run_epoch(batches, model, *means)
    translator = at.Translator("", model.eval(), corpus.name, corpus.languages, words)
    sources, references = zip(*corpus.pairs("val"), strict=True)
    return at.corpus_bleu(at.translate(translator, sources), references)[0]


def bleu_of_shipped(fault: Fault, seed: int) -> float:
    """BLEU (validation, beam of four) of the shipped model with a fault in what uses it."""
    at = planted(fault)
    torch.manual_seed(seed)
    translator = at.load_trained_model("pretrained", torch.device("cpu"))
    sources, references = zip(*at.find_corpus("multi30k").pairs("val"), strict=True)
    return at.corpus_bleu(at.translate(translator, sources, at.beam_search), references)[0]


MEASURES = {
    "demonstration": (bleu_of_demonstration, records.circumstances),
    "shipped": (bleu_of_shipped, results.made_with_shipped),
}


def translating() -> None:
    """BLEU with every fault of the data, of decoding and of scoring; each is kept at once."""
    sound = [Fault(SOUND, shows=kind) for kind in reversed(MEASURES)]
    for fault in (*sound, *reversed(FAULTS)):
        done = records.read("planted").get(fault.shows, {})
        if fault.shows not in MEASURES or fault.name in done:
            continue
        seeds = SEEDS if fault.shows == "demonstration" else SEEDS[:1]
        measure, made = MEASURES[fault.shows]
        bleu = [round(measure(fault, seed), 2) for seed in seeds]
        keep(fault.shows, fault, bleu, made())
        planted.cache_clear()


# Warm-up ----------------------------------------------------------------------------------------

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
WARMUP = 200


def warmed(factor: float, warm: bool, norm_first: bool, seed: int) -> dict:
    """Train the copy task, four layers, by one curve of learning rates: the last loss."""
    at = results.at
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


def warmups() -> None:
    """Six peaks of the learning rate, with and without a rise, both orders, three seeds."""
    if not records.read("warmups"):
        grid = itertools.product(FACTORS, (True, False), (True, False), SEEDS)
        runs = [warmed(*settings) for settings in grid]
        records.write("warmups", {"made": records.circumstances(), "runs": runs})


# Lengths beyond the training --------------------------------------------------------------------

POSITIONS = {
    "sinusoids": {},
    "learnt": {"positions": "learnt"},
    "rotary": {"positions": "none", "attention": "rotary"},
    "none": {"positions": "none"},
}


def lengths() -> None:
    """Learn to copy one to ten tokens, then copy 100 sequences of each length from 1 to 20."""
    at = results.at
    runs = records.read("lengths").get("runs", [])
    done = {(run["positions"], run["seed"]) for run in runs}
    for kind, seed in itertools.product(POSITIONS, SEEDS):
        if (kind, seed) in done:
            continue
        model = at.new_copy_model(seed, **POSITIONS[kind])
        batches = []
        for length in torch.randint(1, 11, (1500,)).tolist():
            batches += at.data_gen(at.COPY_VOCAB, 64, 1, length)
        at.train_briefly(model, batches)
        tests = [next(at.data_gen(at.COPY_VOCAB, 100, 1, length)) for length in range(1, 21)]
        counts = [at.kinds_of_copies(model, test) for test in tests]
        kinds = {name: [each[name] for each in counts] for name in counts[0]}
        runs.append({"positions": kind, "seed": seed} | kinds)
        records.write("lengths", {"made": records.circumstances(), "runs": runs})


# Heads switched off -----------------------------------------------------------------------------


def mean_output(attn: torch.nn.Module, model: torch.nn.Module, batches: list) -> torch.Tensor:
    """What the heads of an attention put out in the mean: (D,), head after head."""
    seen = []
    handle = attn.linears[3].register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].flatten(0, 1))
    )
    results.at.evaluate_loss(model, batches)
    handle.remove()
    return torch.cat(seen).mean(dim=0)


def replaced_head(
    attn: torch.nn.Module, head: int, by: torch.Tensor
) -> torch.utils.hooks.RemovableHandle:
    """A hook by which one head puts out the same vector at every position."""

    def replace(module, inputs):
        heads = list(inputs[0].split(attn.d_k, dim=-1))
        heads[head] = by[head * attn.d_k :][: attn.d_k].expand_as(heads[head])
        return torch.cat(heads, dim=-1)

    return attn.linears[3].register_forward_pre_hook(replace)


def heads() -> None:
    """The shipped model's perplexity without each head, on five sets of 200 sentences."""
    if records.read("heads"):
        return
    at = results.at
    translator = at.load_trained_model("pretrained", torch.device("cpu"))
    model = translator.model
    pairs = at.find_corpus("multi30k").pairs("val")[:1000]
    _, ids = at.usable_pairs(translator, pairs)
    sets = [list(at.batches_to_score(translator, part)) for part in at.grouped(ids, 200)]
    whole = [at.evaluate_loss(model, each)["perplexity"] for each in sets]
    rows = []
    for kind, layers in at.attentions_of(model).items():
        for number, attn in enumerate(layers, 1):
            mean = mean_output(attn, model, sets[0])
            for head, (name, by) in itertools.product(
                range(attn.h), (("zero", torch.zeros_like(mean)), ("mean", mean))
            ):
                handle = replaced_head(attn, head, by)
                without = [at.evaluate_loss(model, each)["perplexity"] for each in sets]
                handle.remove()
                changes = [round(a - b, 4) for a, b in zip(without, whole, strict=True)]
                place = {"attention": kind, "layer": number, "head": head + 1, "by": name}
                rows.append(place | {"changes": changes})
    made = results.made_with_shipped()
    records.write("heads", {"made": made, "perplexity": whole, "rows": rows})


# Greedy sentences that a beam loses -------------------------------------------------------------


def lost() -> None:
    """Count the validation sentences whose greedy translation scores above the beam's."""
    if records.read("lost"):
        return
    at = results.at
    translator = at.load_trained_model("pretrained", torch.device("cpu"))
    counts = {}
    sentences = [source for source, _ in at.find_corpus("multi30k").pairs("val")]
    for beam in (2, 4, 8):
        counts[beam] = {"equal": 0, "beam above": 0, "greedy above": 0}
        for _, ids in at.source_parts(translator, sentences):
            batch = at.Batch(torch.tensor([ids]))
            limit = at.length_cap(len(ids), translator.max_len)
            given = translator.model, batch.src, batch.src_mask, limit
            both = [at.beam_search(*given, beam=places)[0] for places in (1, beam)]
            written = [row[row != at.PAD].tolist() for row in both]
            with at.evaluating(translator.model):
                following = at.log_probs_of(translator.model, batch.src, batch.src_mask)
                greedy, best = (at.score_of(following, each, 0.6) for each in written)
            same = abs(greedy - best) < 1e-4
            kind = "equal" if same else "beam above" if best > greedy else "greedy above"
            counts[beam][kind] += 1
    records.write("lost", {"made": results.made_with_shipped(), "counts": counts})


# What length costs ------------------------------------------------------------------------------

WIDTH = 256
LENGTHS = (16, 64, 256, 1024)
ROUNDS = 5


def layers_to_time() -> dict[str, Callable]:
    """One layer of each kind, of one width."""
    attention = results.at.MultiHeadedAttention(4, WIDTH, dropout=0.0)
    recurrent = torch.nn.GRU(WIDTH, WIDTH, batch_first=True)
    convolution = torch.nn.Conv1d(WIDTH, WIDTH, kernel_size=3, padding=1)
    return {
        "self-attention": lambda x: attention(x, x, x),
        "recurrent (GRU)": lambda x: recurrent(x)[0],
        "convolution over 3": lambda x: convolution(x.mT),
    }


def milliseconds(layer: Callable, length: int) -> float:
    """Of one sequence, forward and backward, by one thread: the median of a fifth of a second."""
    import torch.utils.benchmark  # looks for a CUDA toolkit, and complains where there is no GPU

    step = {"layer": layer, "x": torch.randn(1, length, WIDTH)}
    # One thread is its default.
    timer = torch.utils.benchmark.Timer("layer(x).sum().backward()", globals=step)
    return round(1000 * timer.blocked_autorange(min_run_time=0.2).median, 4)


def length_cost() -> None:
    """Time one layer of each kind against the length, in rounds that take turns."""
    if records.read("length-cost"):
        return
    layers = layers_to_time()
    rounds = {case: [] for case in itertools.product(layers, LENGTHS)}
    records.wait_for_quiet()
    for _ in range(ROUNDS):
        for (kind, length), measured in rounds.items():
            measured.append(milliseconds(layers[kind], length))
    rows = [
        {"layer": kind, "length": length, "milliseconds": measured}
        for (kind, length), measured in rounds.items()
    ]
    made = records.circumstances()
    records.write("length-cost", {"made": made, "width": WIDTH, "rows": rows})


# What the checks say ----------------------------------------------------------------------------


def failing_checks(at: ModuleType) -> Iterator[str]:
    """The checks of the script that fail."""
    for name, check in at.EXAMPLES.items():
        if name.startswith("check_"):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    check()
            except Exception:
                yield name


def checks() -> None:
    """The first check that fails with each fault; one that is gone since is looked for anew."""
    seen = records.read("planted").get("checks", {})
    known = {*results.at.EXAMPLES, ""}
    for fault in FAULTS[1:]:
        if seen.get(fault.name) not in known:
            seen[fault.name] = next(failing_checks(planted(fault)), "")
    records.write("planted", records.read("planted") | {"checks": seen})


main = records.command_line(
    copying=copying,
    translating=translating,
    checks=checks,
    warmups=warmups,
    lengths=lengths,
    heads=heads,
    lost=lost,
    length_cost=length_cost,
)

if __name__ == "__main__":
    os.environ["ANNOTATED_RUN"] = "smoke"
    warnings.simplefilter("ignore")
    sys.exit(main())
