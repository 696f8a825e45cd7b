"""The translator without an encoder, beside an encoder and a decoder of the same size.

    python -m tools.results.one_sequence train SEED [--rotary]
    python -m tools.results.one_sequence speed [--rotary]   both in turn; only on a quiet machine

It reads source and target as one sequence (Part 10), and has the settings of a run in plan.py, the
one with sinusoids or the one with rotary positions: its parts, pairs, batches, updates and learning
rates. Each epoch is kept in RUNS_DIR, and the same command goes on after a stop. One thread of the
CPU trains it.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import the_annotated_transformer as at
from tools import records
from tools.results import plan
from tools.results.bench import ROUNDS, tokens_per_second
from tools.results.train import folder_of

BESIDE = {"one-sequence": "search-batch-1280", "one-sequence-rotary": "idea-rotary"}  # by record
LAYERS = 7  # as many parameters as three and three: those layers have a cross-attention in three


def model_of(config: at.ModelConfig, vocab: int) -> at.OneSequence:
    """A stack of LAYERS with the widths, parts and embeddings of a translator's settings."""
    config = replace(config, N=LAYERS, max_len=2 * config.max_len)
    whole = at.build_model(config, vocab, vocab)
    return at.OneSequence(whole.encoder, whole.tgt_embed, whole.generator)


def name_of(rotary: bool) -> str:
    """The record of a kind of positions."""
    return "one-sequence-rotary" if rotary else "one-sequence"


def translations(run: at.Run, model: at.OneSequence) -> list[str]:
    """Greedy translations of the validation pairs: LONGER tokens, which no reference has."""
    source, target = run.translator.vocabularies
    ids = source.encode([text for text, _ in run.pairs], run.translator.languages[0])
    prompts = [[*each, at.END, at.START] for each in ids]
    greedy = at.generate(model, prompts, at.LONGER, lambda log_probs: log_probs.argmax(-1))
    return [target.decode(each) for each in greedy]


def validate(run: at.Run, model: at.OneSequence) -> dict:
    """BLEU, nll and perplexity, as `validate` of the text has them of an encoder-decoder."""
    translator = run.translator
    references = [text for _, text in run.pairs]
    bleu, _ = at.corpus_bleu(translations(run, model), references, translator.languages[1])
    ids = at.encode_pairs(run.pairs, translator.vocabularies, translator.languages)
    return {"bleu": bleu} | at.evaluate_loss(model, at.batches_to_score(translator, ids))


def open_run(name: str, seed: int) -> tuple[at.Run, at.OneSequence]:
    """A prepared run whose model, optimizer and history are as its last epoch left them."""
    folder = folder_of(f"{name}-{seed}")
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        at.prepare(replace(plan.RUNS[BESIDE[name]], seed=seed), folder)
    run = at.open_run(folder, at.start_worker())
    torch.manual_seed(seed)
    model = model_of(run.config, len(run.translator.vocabularies[1]))
    for module in model.modules():
        if type(module) is torch.nn.Dropout:
            module.__class__ = at.FastDropout  # as in the text's own runs
    last = {"optimizer": {}, "updates": 0}
    if (kept := checkpoint_of(folder)).is_file():
        last = torch.load(kept, weights_only=True)
        model.load_state_dict(last["model"])
        run.history = last["history"]
    run.net = model
    run.loss_compute.generator = model.generator
    run.optimizer, run.scheduler = at.restored_optimizer(run.config, model, run.train, last)
    return run, model


def checkpoint_of(folder: Path) -> Path:
    """Beside that of the text's own run, which was prepared and is never trained."""
    return folder / "one-sequence.pt"


def save(run: at.Run, model: at.OneSequence) -> None:
    """Write the checkpoint in one piece."""
    last = {
        "history": run.history,
        "model": model.state_dict(),
        "optimizer": run.optimizer.state_dict()["state"],
        "updates": run.scheduler.last_epoch,
    }
    with at.whole_file(checkpoint_of(run.folder)) as file:
        torch.save(last, file)


def bytes_kept(decoder: torch.nn.Module) -> int:
    """What the caches of a decoder hold."""
    caches = [each for each in decoder.modules() if isinstance(each, at.CachedAttention)]
    return sum(each.keys.nbytes + each.values.nbytes for each in caches)


@torch.no_grad()
def bytes_per_token(width: int, two_stacks: at.EncoderDecoder, one: at.OneSequence) -> dict:
    """What each kind of translator caches for a token, of the source or of the target."""
    token = torch.zeros(1, 1, width)
    alone = at.with_cache(one.decoder)
    alone(token, None)
    beside = at.with_cache(two_stacks.decoder, token)  # with one token of a source
    beside(token, None, torch.ones(1, 1, 1, dtype=torch.bool), None)
    return {"one sequence": bytes_kept(alone), "encoder-decoder": bytes_kept(beside) // 2}


def train(seed: int, /, rotary: bool = False) -> None:
    """Train a translator without an encoder, or go on, and put it on record.

    Args:
        seed: of initial weights, batches and dropout
        rotary: with rotary positions
    """
    name = name_of(rotary)
    torch.set_num_threads(1)
    records.chosen_device()  # hides all GPUs unless one is named
    made = records.circumstances()
    beside = records.read(f"runs/{BESIDE[name]}").get("summary")
    if beside:
        records.check_comparable({BESIDE[name]: beside, "now": made})
    record = records.read(name)
    if any(each["seed"] == seed for each in record.get("runs", [])):
        return
    run, model = open_run(name, seed)
    print(f"{at.count_parameters(model):,} parameters; {run.done} epochs are done", flush=True)
    for epoch in range(run.done + 1, run.config.epochs + 1):
        entry = {"epoch": epoch, "averaged": 0, **at.train_epoch(run, epoch)}
        entry |= validate(run, model)
        run.history.append(entry)
        save(run, model)
        print(f"epoch {epoch}: BLEU {entry['bleu']:.1f}", flush=True)
    row = {
        "seed": seed,
        "made": made,
        "parameters": at.count_parameters(model),
        "updates": run.history[-1]["updates"],
        "log": run.history,
    }
    record = records.read(name)  # another seed may have been put on record meanwhile
    runs = sorted([*record.get("runs", []), row], key=lambda each: each["seed"])
    settings = {"beside": BESIDE[name], "layers": LAYERS}
    kept = bytes_per_token(run.config.d_model, run.model, model)
    content = {"settings": settings, "cache": kept, "runs": runs}
    records.write(name, record | content)


WRITTEN = 16  # tokens of each translation that is timed


def writer(model: torch.nn.Module, batch: at.Batch) -> Callable[[], None]:
    """A function that writes WRITTEN tokens for each source, which the caches hold already."""
    written = batch.tgt[:, :1]
    embedding, positions = model.tgt_embed
    longest = batch.src.size(1) + 1 + WRITTEN
    places = positions(torch.zeros(1, longest, model.generator.proj.in_features))

    def newest(ids: torch.Tensor) -> torch.Tensor:
        place = ids.size(1)
        return embedding(ids[:, -1:]) + places[:, place - 1 : place]  # (B, 1, D)

    if isinstance(model, at.OneSequence):
        decoder = at.with_cache(model.decoder)
        arguments = (None,)
        written = torch.cat([batch.src, written], dim=1)
        for place in range(1, written.size(1)):
            decoder(newest(written[:, :place]), *arguments)
    else:
        decoder = at.with_cache(model.decoder, model.encode(batch.src, batch.src_mask))
        arguments = None, batch.src_mask, None

    def write() -> None:
        ids = written
        for _ in range(WRITTEN):
            states = decoder(newest(ids), *arguments)
            ids = torch.cat([ids, model.generator(states).argmax(-1)], dim=1)

    return write


def speed(rotary: bool = False) -> None:
    """Time both kinds and put them on record, unless they are."""
    name = name_of(rotary)
    if "speed" in records.read(name):
        return
    torch.set_num_threads(1)
    records.wait_for_quiet()
    made = records.circumstances()
    run, one = open_run(name, plan.SEEDS[0])
    models = {"encoder-decoder": run.model, "one sequence": one}
    numbers = at.batches_of_epoch(run.config, run.train, 1)[:10]
    batches = list(at.load_batches(run.train, numbers, run.worker, at.pad_multiple(run.config)))
    sources = [[*range(5, 17), at.END]] * 64  # all as long as a caption
    prompts = at.collate([(source, [at.START, at.END]) for source in sources])
    found = {kind: {"training": [], "writing": []} for kind in models}
    for number in range(ROUNDS + 1):
        for kind, model in models.items():
            run.loss_compute.generator = model.generator
            means = run.loss_compute, *at.make_optimizer(model, 1.0, 1000)
            update = functools.partial(at.run_epoch, batches, model, *means)
            training = tokens_per_second(sum(batch.ntokens for batch in batches), update)
            with at.evaluating(model):
                writing = tokens_per_second(64 * WRITTEN, writer(model, prompts))
            if number > 0:  # the first round warms up
                found[kind]["training"].append(training)
                found[kind]["writing"].append(writing)
    record = records.read(name)  # another seed may have been put on record meanwhile
    records.write(name, record | {"speed": {"made": made, "rows": found}})


def everything() -> None:
    """Train each seed that is not on record, and time what is not."""
    for rotary in (False, True):
        for seed in plan.SEEDS:
            train(seed, rotary)
        speed(rotary)


main = records.command_line(train=train, speed=speed)

if __name__ == "__main__":
    sys.exit(main())
