"""Corpora: text files in any form and language, Multi30k, batches, the order of an epoch."""

import dataclasses
import functools
import gzip
import hashlib
import http.server
import itertools
import random
import threading
import tracemalloc
import types
from pathlib import Path

import pytest
import torch
from conftest import saved, write_pairs

import the_annotated_transformer as tutorial
from the_annotated_transformer import PAD, Config, Corpus, UserError

DE_EN = ("de", "en")
WORKER = tutorial.Worker(0, 1, torch.device("cpu"))
PAIRS = [("Ein Hund.", "A dog."), ("Zwei Kühe.", "Two cows.")]


# Text files -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with a tiny corpus."""
    return write_pairs(tmp_path / "texts", DE_EN, train=PAIRS, val=PAIRS, test=PAIRS)


def zip_file(path: Path) -> Path:
    zipped = path.with_name(f"{path.name}.gz")
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return zipped


def test_a_corpus_is_read_from_plain_and_zipped_files(folder):
    zip_file(folder / "train.de")
    for other in ("test_notes.txt", "tests.py", "test.de~", "notes.en", "en", ".en"):
        (folder / other).write_text("No split of a corpus.\n")
    corpus = tutorial.read_corpus(folder, DE_EN)
    pairs = {split: list(text) for split, text in corpus.splits.items()}
    assert pairs == {"train": PAIRS, "val": PAIRS, "test": PAIRS}
    assert corpus.tests() == ["test"]
    train = corpus.splits["train"]
    assert list(train) == PAIRS, "it can be read again"


@pytest.mark.parametrize("mark", "\u2028\u2029\x85\x0b\x0c\x1c\r", ids=ascii)
def test_only_a_line_feed_ends_a_line(folder, mark):
    """It may follow a carriage return, as on Windows; a byte order mark is not part of the text."""
    (folder / "train.de").write_bytes(f"\ufeffEin{mark}Hund.\r\nZwei Kühe.\r\n".encode())
    train = tutorial.read_corpus(folder, DE_EN).splits["train"]
    assert list(train) == [(f"Ein{mark}Hund.", "A dog."), PAIRS[1]]


def test_a_gzip_file_that_is_cut_or_damaged_anywhere_is_refused(folder):
    path = zip_file(folder / "train.en")
    content = path.read_bytes()
    wrong_sum = bytes([*content[:-8], content[-8] ^ 1, *content[-7:]])
    for bad in (wrong_sum, *(content[:length] for length in range(1, len(content)))):
        path.write_bytes(bad)
        with pytest.raises(UserError, match=r"train\.en\.gz"):
            list(tutorial.read_corpus(folder, DE_EN).splits["train"])


def test_pairs_that_are_empty_or_too_long_are_left_out(small_config, tmp_path):
    """They change nothing but a warning."""
    long = "Hund " * small_config.max_len
    odd = [(long, "dog"), ("Hund", long), (" ", "A dog."), ("Ein Hund.", "\t")]
    config = dataclasses.replace(small_config, epochs=1)
    for name, more in (("plain", []), ("odd", odd)):
        corpus = Corpus("toy", DE_EN, {"train": PAIRS * 20, "val": [*more, *PAIRS]})
        tutorial.train_model(config, tmp_path / name, corpus=corpus)
    plain, with_odd = (saved(tmp_path / name) for name in ("plain", "odd"))
    assert with_odd["history"][0]["bleu"] == plain["history"][0]["bleu"]
    corpus = Corpus("toy", DE_EN, {"train": [*PAIRS, *odd] * 20, "val": PAIRS})
    with pytest.warns(UserWarning, match="80 training pairs"):
        tutorial.train_model(config, tmp_path / "less", corpus=corpus)
    assert saved(tmp_path / "less")["history"][0]["updates"] == plain["history"][0]["updates"]


@pytest.mark.parametrize("words", [True, False])
def test_half_a_character_does_no_harm(small_config, tmp_path, words):
    """In training and in validation, from Python; a file cannot hold it."""
    pairs = [*PAIRS, ("Ein \udcff Hund.", "A \ud800 dog.")]
    corpus = Corpus("toy", DE_EN, {"train": pairs * 9, "val": pairs})
    size = 0 if words else 60
    config = dataclasses.replace(small_config, vocab_size=size, share_embeddings=not words)
    config = dataclasses.replace(config, epochs=1, max_len=64)
    for _ in range(2):
        assert tutorial.train_model(config, tmp_path, corpus=corpus) == "finished"


def test_the_built_in_captions_differ():
    """So that the test knows no sentence of the training."""
    every = [*itertools.chain(*tutorial.builtin_corpus().values())]
    assert len({*every}) == len(every)


# Multi30k ---------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """A folder with a small Multi30k as a server publishes it, with checksums of its own."""
    splits = {name.split(".")[0]: PAIRS for name in tutorial.MULTI30K_SUMS}
    folder = write_pairs(tmp_path / "published", DE_EN, **splits)
    sums = {}
    for path in map(zip_file, sorted(folder.iterdir())):
        sums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(tutorial, "MULTI30K_SUMS", sums)
    return folder


@pytest.fixture
def cache(monkeypatch, tmp_path, fresh_corpora) -> Path:
    """An empty place for downloads, which are tried again without a pause."""
    import pooch

    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    monkeypatch.setattr(pooch.core, "time", types.SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(tutorial, "WORK", tmp_path / "work")
    return tmp_path / "work" / ".data" / "multi30k"


@pytest.fixture
def requests(published, cache, monkeypatch):
    """The names that a server of that folder was asked for."""
    names = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_) -> None:
            names.append(self.path.lstrip("/"))

    handler = functools.partial(Handler, directory=published)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setattr(tutorial, "MULTI30K_URL", f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield names
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("fault", ["missing", "another file", "cut"])
def test_a_failing_download_leaves_nothing_and_goes_on_later(requests, published, cache, fault):
    first, second, *_ = tutorial.MULTI30K_SUMS
    path = published / second
    good = path.read_bytes()
    path.write_bytes({"another file": gzip.compress(b"<html>"), "cut": good[:-9]}.get(fault, b""))
    if fault == "missing":
        path.unlink()
    with pytest.raises(UserError, match=second):
        tutorial.find_corpus("multi30k")
    assert [path.name for path in cache.iterdir()] == [first]
    path.write_bytes(good)
    requests.clear()
    for name in ("multi30k", "Multi30k"):
        assert list(tutorial.find_corpus(name).splits["val"]) == PAIRS
    assert requests == [*tutorial.MULTI30K_SUMS][1:], "nothing is fetched twice"


def test_multi30k_is_read_from_the_folder_that_is_named(published, monkeypatch, fresh_corpora):
    monkeypatch.setenv("MULTI30K_DIR", str(published))
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    corpus = tutorial.corpus_at_hand()
    assert (corpus.name, corpus.place) == ("Multi30k", "multi30k")
    assert list(corpus.splits["train"]) == PAIRS
    assert tutorial.find_corpus("multi30k", ("en", "de")).splits["val"][0] == PAIRS[0][::-1]
    monkeypatch.setenv("MULTI30K_DIR", str(published / "nothing"))
    with pytest.raises(UserError, match="nothing"):
        tutorial.find_corpus("multi30k")
    with pytest.raises(FileNotFoundError, match="nothing"):
        tutorial.corpus_at_hand.__wrapped__()


def test_without_a_network_only_the_page_takes_another_corpus(cache, monkeypatch):
    with pytest.raises(UserError) as caught:
        tutorial.find_corpus("multi30k")
    for way_out in ("raw.githubusercontent.com", "MULTI30K_DIR", "--data builtin"):
        assert way_out in str(caught.value)
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    assert tutorial.corpus_at_hand().name == tutorial.BUILTIN


def test_the_corpus_at_hand_is_the_multi30k_that_a_download_gives(multi30k):
    for name, wanted in tutorial.MULTI30K_SUMS.items():
        assert hashlib.sha256((Path(multi30k) / name).read_bytes()).hexdigest() == wanted


# Languages and scores ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule, names",
    [
        ("zh", "zh zho chi cmn zh-Hans zh_CN ZH"),
        ("char", "ja jpn ja-JP ko kor th lo khm my mya bo"),
        ("13a", "en eng de pt-BR fr xx"),
    ],
)
def test_bleu_counts_words_by_the_rule_of_the_language(rule, names):
    for name in names.split():
        _, signature = tutorial.corpus_bleu(["猫在吃鱼。"], ["猫在睡觉。"], name)
        assert f"|tok:{rule}|" in signature, name


def test_words_of_a_language_that_spacy_does_not_know_are_refused():
    corpus = Corpus("mine", ("de", "qq"), {"train": PAIRS})
    with pytest.raises(UserError, match="'qq'"):
        tutorial.learn_vocabularies(corpus, Config(vocab_size=0, share_embeddings=False))


def test_bleu_minds_case_unknown_words_and_the_number_of_references():
    right = "A little dog runs through the park."

    def bleu(written: str) -> float:
        return tutorial.corpus_bleu([written], [right])[0]

    assert bleu(right) > 99.9 > bleu(right.lower())
    assert bleu(right.replace(".", " .")) > 99.9
    assert bleu(right.replace("dog", "<unk>")) == bleu(right.replace("dog", "horse"))
    for written, references in ((["a"], ["a", "b"]), (["a", "b"], ["a"])):
        with pytest.raises(ValueError, match=f"{len(written)}.*{len(references)}"):
            tutorial.corpus_bleu(written, references)


def test_a_language_without_spaces_is_trained_and_scored(tmp_path, capsys, monkeypatch):
    pairs = [(f"{a} {b}", f"{a}和{b}。") for a in "一二三四五六七八" for b in "猫狗鸟鱼马牛羊猪"]
    data = write_pairs(tmp_path / "animals", ("en", "zh-Hans"), train=pairs, val=pairs[:5])
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    given = "--N 1 --d-model 16 --d-ff 32 --h 2 --epochs 1 --languages en:zh-Hans"
    assert tutorial.main(["train", "--data", str(data), *given.split()]) == 0
    assert tutorial.main(["evaluate", "--model", str(tmp_path / "animals-en-zh-Hans")]) == 0
    assert "|tok:zh|" in capsys.readouterr().out


# Batches ----------------------------------------------------------------------------------------


def test_batches_hold_every_sentence_once_in_random_order_and_keep_the_budget():
    lengths = [random.randint(1, 30) for _ in range(200)]
    orders = [tutorial.token_batches(lengths, 100, random.Random(seed)) for seed in range(5)]
    for batches in orders:
        assert sorted(itertools.chain(*batches)) == list(range(200))
        longest = [max(lengths[number] for number in batch) for batch in batches]
        assert longest != sorted(longest)
        sizes = [len(batch) * length for batch, length in zip(batches, longest, strict=True)]
        assert max(sizes) <= 100
        assert sum(sizes) > 80 * len(batches), "most are nearly full"
        assert sum(sizes) < 1.1 * sum(lengths), "less than a tenth is padding"
    assert len({*map(len, orders)}) == 1, "so that updates can be counted beforehand"
    assert tutorial.token_batches([30], 10) == [[0]], "a pair above the budget"


def test_each_source_keeps_its_target():
    pairs = [("Hund", "dog"), ("Katze Katze", "cat cat")] * 3
    words = tutorial.learn_words(Corpus("toy", DE_EN, {"train": pairs}), min_freq=1)
    ids = tutorial.encode_pairs(pairs, words, DE_EN)
    for batch in tutorial.create_dataloaders([*ids], [], 12, 1)[0]:
        for src, tgt in zip(batch.src.tolist(), batch.tgt_y.tolist(), strict=True):
            assert (words[0].decode(src), words[1].decode(tgt)) in pairs


def test_text_that_a_vocabulary_does_not_know_is_warned_of(shipped, tmp_path, recwarn):
    """As a training on it with `--init-from` would be; one letter in a sentence is no matter."""
    for target, texts in (
        ("en", ["Ein Hund läuft durch den Park 犬.", "Zwei Kühe."]),
        ("ru", ["Собака бежит.", "Кошка спит."]),
        ("el", ["Ένας σκύλος τρέχει.", "Μια γάτα."]),
        ("zh", ["一只狗在公园里跑。", "两头牛。"]),
    ):
        pairs = list(zip([source for source, _ in PAIRS], texts, strict=True))
        corpus = Corpus(f"in-{target}", ("de", target), {"train": pairs})
        tutorial.write_ids(tmp_path, corpus, shipped.vocabularies, max_len=30)
        warned = [str(each.message) for each in recwarn.list]
        assert any(corpus.name in text for text in warned) == (target != "en")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory) -> tuple[tutorial.IdPairs, list]:
    """The ids of 300 captions on disk, and as lists."""
    folder = tmp_path_factory.mktemp("ids")
    corpus = Corpus("toy", DE_EN, {"train": tutorial.builtin_corpus()["train"][:300]})
    vocabularies = tutorial.learn_subwords(corpus, 200)
    with pytest.warns(UserWarning, match="left out"):  # some are longer than 30
        tutorial.write_ids(folder, corpus, vocabularies, max_len=30)
    pairs = tutorial.encode_pairs(corpus.pairs("train"), vocabularies, DE_EN)
    return tutorial.IdPairs(folder), [pair for pair in pairs if tutorial.usable(pair, 30)]


@pytest.mark.parametrize("budget, multiple", [(64, 8), (100, 16), (33, 1)])
def test_batches_from_disk_are_those_of_lists_and_their_padding_keeps_the_budget(
    encoded, monkeypatch, budget, multiple
):
    """Sentences of nine tokens, padded to sixteen, do not take twice the memory."""
    train, pairs = encoded
    monkeypatch.setattr(tutorial, "pad_multiple", lambda _: multiple)
    batches = tutorial.batches_of_epoch(Config(batch_tokens=budget), train, 1)
    loaded = tutorial.load_batches(train, batches, WORKER, multiple)
    for numbers, found in zip(batches, loaded, strict=True):
        expected = tutorial.collate([pairs[number] for number in numbers])
        assert found.ntokens == expected.ntokens
        for name in ("src", "tgt_y"):
            wide, narrow = getattr(found, name), getattr(expected, name)
            assert wide.size(1) == multiple * -(-narrow.size(1) // multiple)
            assert torch.equal(wide[:, : narrow.size(1)], narrow)
            assert (wide[:, narrow.size(1) :] == PAD).all()
            assert len(wide) == 1 or wide.numel() <= budget


def test_the_shares_of_a_pass_hold_every_sentence_once_in_an_order_of_their_own(encoded):
    """Which follows from the seed and the epoch, and from nothing else."""
    train, _ = encoded

    def order(epoch: int, **change) -> list:
        config = Config(**{"batch_tokens": 200, "shares": 3, "seed": 5} | change)
        return tutorial.batches_of_epoch(config, train, epoch)

    for epochs in ((1, 2, 3), (4, 5, 6)):
        shares = [order(epoch) for epoch in epochs]
        sizes = [sum(map(len, share)) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        numbers = itertools.chain(*itertools.chain(*shares))
        assert sorted(numbers) == list(range(len(train)))
    before = order(2)
    torch.rand(3)
    random.random()
    assert order(2) == before
    orders = [order(2, seed=6), order(1), order(4), order(1, shares=1), order(2, shares=1)]
    assert all(one != other for one, other in itertools.combinations([before, *orders], 2))


@pytest.mark.slow
def test_a_large_corpus_takes_no_more_memory_than_a_small_one(tmp_path):
    """Text and ids stay on disk, and are read and encoded in pieces of ten thousand pairs."""
    vocabularies = tutorial.learn_subwords(tutorial.read_builtin(), 300)
    peaks = []
    for count in (20_000, 40_000):
        folder = write_pairs(tmp_path / str(count), DE_EN, train=PAIRS * (count // 2))
        corpus = tutorial.read_corpus(folder, DE_EN)
        tracemalloc.start()
        tutorial.write_ids(folder, corpus, vocabularies, max_len=30)
        train = tutorial.IdPairs(folder)
        next(tutorial.load_batches(train, [[0, count - 1]], WORKER))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]
