"""A corpus of any size: ids on disk, padding, shares, order, and a model to start from."""

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import PROJECT, contents, saved, write_pairs

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, Config, UserError

DE_EN = ("de", "en")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory) -> tuple[Path, list]:
    """A folder with the ids of 300 captions, and these ids as lists."""
    folder = tmp_path_factory.mktemp("ids")
    corpus = tutorial.Corpus("toy", DE_EN, {"train": tutorial.builtin_corpus()["train"][:300]})
    vocabularies = tutorial.learn_subwords(corpus, 200)
    tutorial.write_ids(folder, corpus, vocabularies, max_len=30)
    pairs = tutorial.encode_pairs(corpus.pairs("train"), vocabularies, DE_EN)
    return folder, [pair for pair in pairs if tutorial.usable(pair, 30)]


@pytest.fixture
def train(encoded) -> tutorial.IdPairs:
    return tutorial.IdPairs(encoded[0])


# Ids on disk ------------------------------------------------------------------------------------


def test_a_batch_of_ids_is_that_of_the_lists(encoded, train):
    _, pairs = encoded
    assert 100 < len(train) == len(pairs) < 300, "some are longer than 30"
    for numbers in ([0], [len(pairs) - 1], [7, 3, 200, 3], list(range(len(pairs)))):
        found = train.batch(numbers)
        expected = tutorial.collate([pairs[number] for number in numbers])
        assert vars(found).keys() == vars(expected).keys()
        for name, value in vars(expected).items():
            assert torch.equal(torch.as_tensor(getattr(found, name)), torch.as_tensor(value)), name


def test_lengths_are_rounded_up_with_padding(train):
    """Which changes no token that counts."""
    numbers = [5, 17, 120]
    plain = train.batch(numbers)
    padded = train.batch(numbers, multiple=8)
    assert padded.src.size(1) % 8 == 0
    assert padded.tgt.size(1) % 8 == 0
    assert padded.ntokens == plain.ntokens
    for name in ("src", "tgt_y"):
        wide, narrow = getattr(padded, name), getattr(plain, name)
        assert torch.equal(wide[:, : narrow.size(1)], narrow)
        assert (wide[:, narrow.size(1) :] == PAD).all()


def test_an_empty_share_is_a_batch_without_tokens(train):
    batch = train.batch([])
    assert batch.ntokens == 0
    assert batch.src.tolist() == [[END]]
    assert batch.tgt.tolist() == [[START]]


def test_positions_are_what_encoder_and_decoder_see(train):
    number = 11
    batch = train.batch([number])
    assert train.positions()[number].tolist() == [batch.src.size(1), batch.tgt.size(1)]


def test_the_splits_of_a_folder_are_sequences_on_disk(tmp_path):
    """Read as they are now."""
    every = tutorial.builtin_corpus()["train"][:120]
    folder = write_pairs(tmp_path / "text", DE_EN, train=every)
    pairs = tutorial.read_corpus(folder, DE_EN).splits["train"]
    assert len(pairs) == 120
    assert list(pairs) == list(pairs) == every, "and a second time"
    assert pairs[7] == every[7]
    assert pairs[-1] == every[-1]
    assert pairs[3:90:7] == every[3:90:7]
    write_pairs(folder, DE_EN, train=every * 2)
    assert len(tutorial.read_corpus(folder, DE_EN).splits["train"]) == 240


def test_other_texts_have_other_sums():
    cuts = [[("a", "b"), ("c", "d")], [("a", "bc"), ("", "d")], [("a", "b\nc"), ("d", "")]]
    cuts += [cuts[0][::-1], cuts[0][:1], [["a", "b"], ["c", "d"]]]
    sums = [tutorial.sum_of_text(pairs) for pairs in cuts]
    assert len(set(sums)) == len(cuts) - 1
    assert sums[-1] == sums[0], "a list of two is a pair, too"


# The order of an epoch --------------------------------------------------------------------------

ORDER = Config(batch_tokens=200, shares=3, seed=5)


def test_the_shares_of_a_pass_hold_every_sentence_once(train):
    for first in (1, 4):
        epochs = range(first, first + 3)
        batches = [tutorial.batches_of_epoch(ORDER, train, epoch) for epoch in epochs]
        sizes = [sum(map(len, each)) for each in batches]
        assert max(sizes) - min(sizes) <= 1
        numbers = [number for each in batches for batch in each for number in batch]
        assert sorted(numbers) == list(range(len(train)))


def test_no_batch_is_above_the_budget(train):
    lengths = train.positions().amax(1)
    for batch in tutorial.batches_of_epoch(ORDER, train, 1):
        assert len(batch) * int(lengths[batch].max()) <= ORDER.batch_tokens


def test_the_order_follows_from_seed_and_epoch(train):
    def order(seed: int, epoch: int) -> list:
        return tutorial.batches_of_epoch(dataclasses.replace(ORDER, seed=seed), train, epoch)

    assert order(5, 2) == order(5, 2)
    whole = dataclasses.replace(ORDER, shares=1)
    passes = [tutorial.batches_of_epoch(whole, train, epoch) for epoch in (1, 2)]
    assert passes[0] != passes[1]
    assert order(5, 2) != order(6, 2)
    assert order(5, 1) != order(5, 4), "another pass has other shares"
    torch.manual_seed(9)
    random.seed(9)
    before = order(5, 3)
    torch.rand(3)
    random.random()
    assert order(5, 3) == before, "whatever was drawn meanwhile"


def test_ranks_share_a_batch_and_know_its_tokens(train):
    numbers = [list(range(9)), [40, 41]]
    whole = [train.batch(batch) for batch in numbers]
    shares = []
    for rank in range(3):
        worker = tutorial.Worker(rank, 3, torch.device("cpu"))
        shares.append(list(tutorial.load_batches(train, numbers, worker)))
    for n, batch in enumerate(whole):
        of_ranks = [share[n] for share in shares]
        assert {each.ntokens for each in of_ranks} == {float(batch.ntokens) / 3}
        tokens = [int((each.tgt_y != PAD).sum()) for each in of_ranks]
        assert sum(tokens) == int(batch.ntokens)
        assert (min(tokens) == 0) == (n == 1), "two sentences of three ranks"


# A model to start from --------------------------------------------------------------------------


@pytest.fixture
def other_text(tmp_path) -> Path:
    """Another corpus than that of the trained model."""
    pairs = tutorial.builtin_corpus()["test"]
    return write_pairs(tmp_path / "other", DE_EN, train=pairs[:60], val=pairs[60:70])


def test_a_run_begins_with_the_weights_and_words_of_another(
    small_config, small_run, other_text, tmp_path
):
    """And does not need that model any more when it goes on."""
    model = tmp_path / "a model"
    tutorial.save_model(tutorial.load_trained_model(small_run), model)
    given = tutorial.load_trained_model(model)
    config = dataclasses.replace(
        small_config, data=str(other_text), init_from=str(model), dropout=0.3, factor=1e-12
    )
    run = tmp_path / "run"
    assert tutorial.train_model(config, run, minutes=1e-9) == "stopped"
    started = tutorial.load_trained_model(run)
    assert started.vocabularies == given.vocabularies
    assert started.corpus == "other"
    assert started.model.arguments["dropout"] == 0.3
    weights = dict(started.model.named_parameters())
    for name, value in given.model.named_parameters():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)
    for name in contents(model):
        (model / name).unlink()
    assert tutorial.train_model(None, run) == "finished"
    assert [entry["epoch"] for entry in saved(run)["history"]] == [1, 2, 2]


@pytest.mark.parametrize(
    "change", [{"d_model": 32}, {"d_ff": 64}, {"h": 4}, {"N": 2}, {"attention": "rotary"},
               {"norm_first": False}, {"max_len": 20}], ids=str,
)  # fmt: skip
def test_a_model_of_other_sizes_is_no_beginning(
    small_config, small_run, other_text, tmp_path, change
):
    """The error names the option to give."""
    config = dataclasses.replace(
        small_config, data=str(other_text), init_from=str(small_run), **change
    )
    [name] = change
    given = json.loads((small_run / "config.json").read_bytes())["model"][name]
    told = f"{re.escape(str(small_run))} was made with --{name.replace('_', '-')} {given}: give"
    if name == "norm_first":
        told = "--norm-first"
    with pytest.raises(UserError, match=told):
        tutorial.train_model(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


# Memory -----------------------------------------------------------------------------------------


def invented(folder: Path, count: int) -> Path:
    """So many pairs of thirty invented words or so, by the same words."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnopr", k=5)) for _ in range(3000)]
    weights = [1 / (n + 5) for n in range(len(words))]

    def pairs(number: int) -> list[tuple[str, str]]:
        sides = []
        for _ in range(2):
            lengths = [generator.randint(10, 30) for _ in range(number)]
            stream = iter(generator.choices(words, weights, k=sum(lengths)))
            sides.append([" ".join(next(stream) for _ in range(n)) for n in lengths])
        return list(zip(*sides, strict=True))

    return write_pairs(folder, ("xx", "yy"), train=pairs(count), val=pairs(20))


FIRST_UPDATE = """
import os, sys
import the_annotated_transformer as at

def stop(*given):
    [anonymous] = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    print("anonymous", anonymous.split()[1], flush=True)
    os._exit(0)

new_optimizer = at.new_optimizer

def watched(*given):
    optimizer, scheduler = new_optimizer(*given)
    optimizer.register_step_post_hook(stop)
    return optimizer, scheduler

at.new_optimizer = watched
config = at.Config(data=sys.argv[1], languages="xx-yy", N=1, d_model=64, d_ff=64, h=2)
at.train_model(None if sys.argv[3:] else config, sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_hundred_thousand_pairs_more_need_little_memory(tmp_path):
    """After the first update of a run that begins, and of one that goes on.

    As lists of Python, their ids would take some 200 MiB.
    """
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    mebibytes = {"begin": [], "resume": []}
    for count in (20_000, 120_000):
        text = invented(tmp_path / f"of {count}", count)
        for way in mebibytes:
            given = [str(text), f"{tmp_path}/run-{count}", *([way] if way == "resume" else [])]
            command = [sys.executable, "-c", FIRST_UPDATE, *given]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            mebibytes[way].append(int(re.search(r"anonymous (\d+)", done.stdout)[1]) / 1024)
    for way, (small, large) in mebibytes.items():
        assert large < small + 100, way
