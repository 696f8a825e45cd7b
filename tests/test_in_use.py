"""In a reader's hands: what others reported of this program, each with cases of the same kind."""

import copy
import dataclasses
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
import warnings
from pathlib import Path

import pytest
import torch
from conftest import PROJECT, contents, log_of, train_one_epoch, write_pairs

import the_annotated_transformer as tutorial
from the_annotated_transformer import Batch, Config, Corpus, UserError, pad_ids

DE_EN = ("de", "en")


@pytest.fixture(scope="module")
def shipped() -> tutorial.Translator:
    return tutorial.load_trained_model("pretrained")


@pytest.fixture(scope="module")
def small(small_run) -> tutorial.Translator:
    """A model of words that has learnt next to nothing."""
    return tutorial.load_trained_model(small_run)


# Two sides of a comparison have one form --------------------------------------------------------

COMPOSED = ["Ein Mädchen hält Äpfel.", "Từ điển tiếng Việt rất dày.", "한국어 사전이 두껍다."]


@pytest.mark.parametrize("text", COMPOSED)
def test_bleu_does_not_depend_on_how_unicode_composes_letters(text):
    parted = unicodedata.normalize("NFD", text)
    assert parted != text
    for hypothesis, reference in ((text, parted), (parted, text), (parted, parted)):
        bleu, _ = tutorial.corpus_bleu([hypothesis], [reference])
        assert bleu == pytest.approx(100)


def test_a_model_scores_the_same_in_either_form_of_unicode(shipped):
    pairs = [("Ein Mädchen hält Äpfel.", "A girl is holding café crème."), ("Zwei Kühe.", "Cows.")]
    parted = [tuple(unicodedata.normalize("NFD", text) for text in pair) for pair in pairs]
    assert tutorial.score(shipped, parted) == tutorial.score(shipped, pairs)


# No text vanishes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "Ein Hund rennt durch den Park.|Eine Frau liest ein Buch.|Zwei Kinder spielen Fußball.",
        "Eine Frau sieht zu.|Ein Mann hebt den Ball auf.|Er wirft ihn ab.|Sie hören zu.",
        "Dr. Weber trinkt z. B. Tee, Kaffee usw. und liest.|Prof. Meier lacht.",
        "Am 3. Mai um 5.30 Uhr kam Bus Nr. 12 an.|Er war leer.",
        "„Komm!“, rief er.|Sie kam nicht.",
        "Ein Hund\n|Eine Frau\n\n|Ein Mann",
        "Wo ist er?!|Hier …|Dort.",
    ],
)
def test_a_line_of_several_sentences_becomes_as_many(line):
    wanted = line.split("|")
    found = tutorial.split_sentences(" ".join(wanted))
    assert [part.strip() for part in found] == [part.strip() for part in wanted]


def test_each_sentence_of_a_line_is_translated_as_if_it_stood_alone(shipped):
    sentences = [german for german, _ in tutorial.builtin_corpus()["test"][:3]]
    alone = tutorial.translate(shipped, sentences)
    for between in (" ", "\n", "  \n "):
        assert tutorial.translate(shipped, [between.join(sentences)]) == [" ".join(alone)]


def test_what_is_longer_than_the_model_is_cut_between_words_with_a_warning(shipped):
    """Nothing of it is lost, whether words are cut into many subwords or into few."""
    for word in ("Hund", "Straßenbahnhaltestelle", "Xylophonspieler"):
        line = " ".join([word] * 400)
        with pytest.warns(UserWarning, match=r"line 1 has a sentence of \d+ tokens, training had"):
            parts = tutorial.source_parts(shipped, [line])
        assert len(parts) > 1
        texts = [shipped.vocabularies[0].decode(ids) for _, ids in parts]
        assert {*" ".join(texts).split()} == {word}
        assert " ".join(texts) == line


# Vocabularies are learnt from the text that they cut --------------------------------------------

ODD = {
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "tabs and control characters": lambda text: text.replace(" ", "\t\x07"),
    "letters in two parts": lambda text: unicodedata.normalize("NFD", text),
    "marks of ours": lambda text: text.replace(" ", " ▁‿"),
}


@pytest.mark.parametrize("form", ODD)
def test_odd_text_makes_the_vocabulary_of_plain_text(form):
    plain = tutorial.builtin_corpus()["train"][:300]
    odd = [tuple(map(ODD[form], pair)) for pair in plain]
    assert odd != plain
    learnt = {}
    for name, pairs in (("plain", plain), ("odd", odd)):
        corpus = Corpus(name, DE_EN, {"train": pairs})
        subwords, _ = tutorial.learn_subwords(corpus, 300)
        learnt[name] = subwords.words, tutorial.learn_words(corpus)
    assert learnt["odd"] == learnt["plain"]


@pytest.mark.parametrize("form", ODD)
def test_every_subword_can_occur(form):
    """It is made of what is left of a text, so it cuts itself, or a part of a longer one."""
    pairs = [tuple(map(ODD[form], pair)) for pair in tutorial.builtin_corpus()["train"][:300]]
    subwords, _ = tutorial.learn_subwords(Corpus("odd", DE_EN, {"train": pairs}), 300)
    for word in subwords.words[len(tutorial.SPECIALS) :]:
        text = word.replace("▁", " ")
        assert tutorial.clean(text) == text.strip()


# Nothing that was encoded before is used again --------------------------------------------------


@pytest.mark.parametrize("edit", ["load_tokenizer", "tokenize", "build_vocabulary"])
def test_an_edited_function_acts_in_the_next_run(small_config, whole, tmp_path, monkeypatch, edit):
    plain = getattr(tutorial, edit)
    edited = {
        "load_tokenizer": lambda language: plain("xx"),
        "tokenize": lambda text, tokenizer: plain(text.lower(), tokenizer),
        "build_vocabulary": lambda sentences, min_freq=2: plain(sentences, 9),
    }
    if edit == "load_tokenizer":
        spaces = type("Spaces", (), {"text": "", "whitespace_": " "})

        def cut(text):
            for word in text.split():
                token = spaces()
                token.text = word
                yield token

        edited[edit] = lambda language: cut
    monkeypatch.setattr(tutorial, edit, edited[edit])
    train_one_epoch(small_config, tmp_path / "run")
    words = [json.loads((run / "words.json").read_bytes()) for run in (whole, tmp_path / "run")]
    assert words[0] != words[1]


def test_a_cell_that_runs_again_uses_edited_code(monkeypatch):
    """And so does what asks for its result."""
    run = tutorial.EXAMPLES["what_the_vocabularies_miss"]
    monkeypatch.setitem(tutorial.TRAINED, "what_the_vocabularies_miss", None)
    run()
    before = tutorial.words_at_hand()
    plain = tutorial.tokenize
    monkeypatch.setattr(tutorial, "tokenize", lambda text, cut: plain(text.lower(), cut))
    run()
    after = tutorial.words_at_hand()
    assert "Ein" in before[0].words and "Ein" not in after[0].words


# Languages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule, names",
    [
        ("zh", "zh zho chi cmn zh-Hans zh_CN ZH zho-Hant"),
        ("char", "ja jpn ja-JP ko kor th tha lo lao km khm my mya bur bo bod tib"),
        ("13a", "en eng de deu pt-BR fr xx"),
    ],
)
def test_bleu_counts_what_words_are_in_a_language(rule, names):
    for name in names.split():
        _, signature = tutorial.corpus_bleu(["猫在吃鱼。"], ["猫在睡觉。"], name)
        assert f"|tok:{rule}|" in signature, name


@pytest.mark.parametrize("name", ["", "x", "german", "2b", "d", "zh:CN", "中文", "-de"])
def test_what_is_no_language_code_is_refused(name):
    with pytest.raises(UserError, match="is no language code"):
        tutorial.corpus_bleu(["a b c d"], ["a b c d"], name)
    with pytest.raises(UserError, match="is no language code"):
        Corpus("mine", ("de", name), {})


def test_a_language_that_spacy_does_not_know():
    with pytest.raises(UserError, match="spaCy cannot tokenize language 'qq': take subwords"):
        tutorial.load_tokenizer("qq")


@pytest.mark.parametrize("language", ["zh-Hans", "zho", "ja"])
def test_a_language_without_spaces_from_its_files_to_the_score(
    tmp_path, capsys, monkeypatch, language
):
    pairs = [(f"{a} {b}", f"{a}和{b}。") for a in "一二三四五六七八" for b in "猫狗鸟鱼马牛羊猪"]
    languages = ("en", language)
    data = write_pairs(tmp_path / "animals", languages, train=pairs, val=pairs[:5])
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    rule = tutorial.bleu_tokenization(language)
    given = "--N 1 --d-model 16 --d-ff 32 --h 2 --epochs 1 --languages".split()
    assert tutorial.main(["train", "--data", str(data), *given, ":".join(languages)]) == 0
    assert f"BLEU counts words by {rule}\n" in capsys.readouterr().out
    run = tmp_path / "runs" / f"recipe-en-{language}"
    assert tutorial.main(["evaluate", "--model", str(run)]) == 0
    assert f"|tok:{rule}|" in capsys.readouterr().out


# Neighbours do not matter -----------------------------------------------------------------------


@pytest.mark.parametrize("beam", [None, 1, 4])
def test_a_translation_does_not_depend_on_its_neighbours(small, beam):
    """Of nonsense, which runs on to the limit of its length."""
    torch.manual_seed(1)
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "max_len": 200}
    model = tutorial.make_model(*map(len, small.vocabularies), **sizes).eval().double()
    model.generator.proj.bias.data[tutorial.END] = -1
    translator = dataclasses.replace(small, model=model, longest=20)
    words = small.vocabularies[0].words[4:]
    lines = [" ".join(words[n : n + 1 + n % 9]) for n in range(0, 50, 3)]

    def decode(*given):
        if beam is None:
            return tutorial.greedy_decode(*given)
        return tutorial.beam_search(*given, beam=beam)

    together = tutorial.translate(translator, lines, decode)
    assert tutorial.translate(translator, lines, decode, batch_size=4) == together
    alone = [tutorial.translate(translator, [line], decode)[0] for line in lines]
    assert alone == together
    assert tutorial.translate(translator, lines[::-1], decode) == together[::-1]


# All scores are of the same pairs ---------------------------------------------------------------

LEFT_OUT = {
    "a long source": ("Hund " * 6000, "A dog."),
    "a long reference": ("Ein Hund.", "dog " * 300),
    "no source": (" ", "A dog."),
    "no reference": ("Ein Hund.", "\t"),
}


@pytest.mark.parametrize("odd", LEFT_OUT)
def test_bleu_and_perplexity_count_the_same_pairs(shipped, odd):
    pairs = tutorial.builtin_corpus()["val"][:6]
    written, scores = tutorial.score(shipped, pairs)
    assert scores["pairs"] == len(written) == 6
    again = tutorial.score(shipped, [*pairs[:3], LEFT_OUT[odd], *pairs[3:]])
    assert again == (written, scores)


def test_a_pair_that_cannot_be_scored_does_not_choose_the_epoch(small_config, tmp_path):
    pairs = tutorial.builtin_corpus()["train"]
    splits = {"train": pairs[:60], "val": pairs[60:70]}
    logs = []
    for name, more in (("plain", []), ("odd", [*LEFT_OUT.values()])):
        corpus = Corpus("toy", DE_EN, {**splits, "val": [*splits["val"], *more]})
        tutorial.train_model(small_config, tmp_path / name, corpus=corpus)
        logs.append(log_of(tmp_path / name))
    assert logs[0] == logs[1]


# Only what is used is asked for -----------------------------------------------------------------


def test_a_training_asks_for_no_test(tmp_path, capsys, small_config):
    pairs = tutorial.builtin_corpus()["train"][:70]
    text = write_pairs(tmp_path / "text", DE_EN, train=pairs[:60], val=pairs[60:])
    config = dataclasses.replace(small_config, data=str(text), epochs=1)
    assert tutorial.train_model(config, tmp_path / "run") == "finished"
    assert tutorial.main(["evaluate", "--model", str(tmp_path / "run")]) == 0
    assert "\nval: BLEU " in capsys.readouterr().out
    text = write_pairs(tmp_path / "other", DE_EN, train=pairs[:60], dev=pairs[60:])
    with pytest.raises(
        UserError, match=r"no pairs in val\.de and val\.en; it has dev\.de, dev\.en"
    ):
        tutorial.train_model(dataclasses.replace(config, data=str(text)), tmp_path / "other run")


# Pickles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", ["words", "subwords"])
def test_a_translator_can_be_pickled_and_copied(small, shipped, vocabulary):
    """Also one that has just translated."""
    translator = small if vocabulary == "words" else shipped
    sentences = ["Ein Kind lacht.", "Eine Frau hält einen Ball."]
    written = tutorial.translate(translator, sentences, tutorial.beam_search)
    for made in (pickle.loads(pickle.dumps(translator)), copy.deepcopy(translator)):
        assert str(made) == str(translator)
        assert tutorial.translate(made, sentences, tutorial.beam_search) == written


# Paths ------------------------------------------------------------------------------------------


def test_paths_of_a_home_with_blanks(tmp_path, monkeypatch, capsys, small_corpus):
    """The program expands what a shell leaves; what it prints can be typed as it stands."""
    home = tmp_path / "my home's"
    shutil.copytree(small_corpus, home / "two words")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 2 --epochs 2 --minutes 0.0000001".split()
    given = ["--data=~/two words", "--folder=~/ein Lauf", *sizes]
    assert tutorial.main(["train", *given]) == 0
    assert (home / "ein Lauf" / "last.pt").is_file()
    assert not (tmp_path / "~").exists()
    said = capsys.readouterr().out
    translate = re.search("(?m)^to translate with it: (.*)$", said)[1]
    resume = re.search("(?m)^stopped: (resume .*?)(?: goes on)?$", said)[1]
    assert tutorial.main([*shlex.split(translate), "Hund"]) == 0
    assert tutorial.main(shlex.split(resume)) == 0
    assert [entry["epoch"] for entry in log_of(home / "ein Lauf")] == [1, 2, 2]
    evaluate = ["evaluate", "--model=~/ein Lauf", "--data=~/two words"]
    assert tutorial.main(evaluate) == 0


def test_runs_dir_may_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RUNS_DIR", "~/my runs")
    assert tutorial.runs_folder() == tmp_path / "my runs"


# Settings ---------------------------------------------------------------------------------------


class Invented:
    """A corpus of so many pairs, of which only the lengths are known."""

    def __init__(self, pairs: int):
        self.pairs = pairs

    def __len__(self) -> int:
        return self.pairs

    def positions(self) -> torch.Tensor:
        return torch.tensor([(16, 9)]).expand(self.pairs, 2)


VOCABULARIES = (tutorial.Vocabulary(("a", "b")),) * 2


def choose(pairs: int, **given) -> Config:
    return tutorial.choose_settings(Config(**given), Invented(pairs), VOCABULARIES)


@pytest.mark.parametrize(
    "given",
    [
        {"warmup": 500, "factor": 1.0, "epochs": 1},
        {"batch_tokens": 50_000, "shares": 2, "epochs": 3},
        {"precision": "bf16", "share_embeddings": False, "vocab_size": 0, "average": 0},
    ],
    ids=str,
)
def test_a_setting_that_is_given_is_used_and_the_others_are_chosen(given):
    """Even where another value would serve better."""
    for pairs in (60, 29_000):
        chosen = choose(pairs, **given)
        assert given.items() <= vars(chosen).items()
        by_the_program = "batch_tokens shares epochs warmup factor precision share_embeddings"
        assert all(getattr(chosen, name) is not None for name in by_the_program.split())


@pytest.mark.parametrize("pairs, batch, epochs", [(60, 64, 100), (29_000, 2560, 32)])
def test_small_batches_and_many_epochs_for_few_pairs(pairs, batch, epochs):
    chosen = choose(pairs)
    assert (chosen.batch_tokens, chosen.epochs, chosen.shares) == (batch, epochs, 1)
    assert choose(4_500_000).shares > 20, "so that a stop loses little"


@pytest.mark.parametrize("schedule", ["linear", "inverse_sqrt"])
@pytest.mark.parametrize("pairs", [60, 29_000])
def test_the_peak_of_the_learning_rate_does_not_depend_on_the_corpus(schedule, pairs):
    chosen = choose(pairs, schedule=schedule)
    total = tutorial.planned_updates(chosen, Invented(pairs))
    _, scheduler = tutorial.new_optimizer(tutorial.tiny_model(), chosen, total)
    curve = scheduler.lr_lambdas[0]
    rates = [curve(update) for update in range(min(total, 1500))]
    assert rates.index(max(rates)) + 1 == chosen.warmup <= max(1000, total // 4)
    assert max(rates) == pytest.approx(tutorial.rate(1000, chosen.d_model, 1.5, 1000))


def test_the_header_has_every_setting(small_corpus, tmp_path, capsys):
    """As given, or as chosen; and so has the run."""
    config = Config(data=str(small_corpus), N=1, d_model=16, d_ff=32, h=2, warmup=77, epochs=2)
    train_one_epoch(config, tmp_path / "run")
    said = capsys.readouterr().out
    settings = json.loads((tmp_path / "run" / "config.json").read_bytes())["settings"]
    for name, value in settings.items():
        shown = re.search(rf"(?m)(?:^|, ){name} ([^,\n]*)", said)[1]
        assert shown == (f"{value:g}" if isinstance(value, float) else str(value)), name
    assert settings["warmup"] == 77


def test_a_refusal_names_what_was_given_and_nothing_else(small_corpus, tmp_path):
    """What the program chose the first time is no conflict with what is not given."""
    config = Config(data=str(small_corpus), N=1, d_model=16, d_ff=32, h=2, epochs=1)
    run = tmp_path / "run"
    tutorial.train_model(config, run)
    assert tutorial.train_model(config, run) == "finished"
    for change in ({"warmup": 3}, {"vocab_size": 99}, {"seed": 2}):
        [(name, value)] = change.items()
        option = f"--{name.replace('_', '-')}"
        with pytest.raises(UserError, match=rf"has {option} \S+, not {value}: `resume"):
            tutorial.train_model(dataclasses.replace(config, **change), run)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_text_that_changed_after_the_run_began(small_config, small_corpus, tmp_path, split):
    """`train` refuses it where it counts, and `resume` goes on with what was encoded."""
    text = Path(shutil.copytree(small_corpus, tmp_path / "text"))
    config = dataclasses.replace(small_config, data=str(text))
    run = tmp_path / "run"
    train_one_epoch(config, run)
    path = text / f"{split}.en"
    path.write_text(path.read_text("utf-8").replace("A ", "The ", 1), "utf-8")
    before = contents(run)
    if split != "test":
        with pytest.raises(UserError, match=r"is not the text that .* began with: `resume"):
            tutorial.train_model(config, run)
        assert contents(run) == before
        assert tutorial.train_model(None, run) == "finished"
    else:
        assert tutorial.train_model(config, run) == "finished"


def test_words_need_no_other_option(small_corpus, tmp_path):
    """Two lists of words never share a matrix."""
    config = Config(data=str(small_corpus), N=1, d_model=16, d_ff=32, h=2, vocab_size=0, epochs=1)
    tutorial.train_model(config, tmp_path / "run")
    arguments = tutorial.load_trained_model(tmp_path / "run").model.arguments
    assert not arguments["share_embeddings"]
    with pytest.raises(UserError, match="--share-embeddings needs subwords"):
        dataclasses.replace(config, share_embeddings=True)


# Small things -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["a neighbour", "a package", "the script itself"])
def test_a_file_of_parts_may_import_its_neighbour(tmp_path, way):
    """From wherever the program is called."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "neighbour.py").write_text("SLOPE = 1.5\n")
    (tmp_path / "mine" / "inner").mkdir()
    (tmp_path / "mine" / "inner" / "deep.py").write_text("from neighbour import SLOPE\n")
    line = {
        "a neighbour": "from neighbour import SLOPE",
        "a package": "from inner.deep import SLOPE",
        "the script itself": "from the_annotated_transformer import DistanceAttention",
    }
    (tmp_path / "mine" / "parts.py").write_text(
        f"{line[way]}\nimport the_annotated_transformer as at\n"
        "class Mine(at.MultiHeadedAttention):\n    pass\n"
        'at.ATTENTION["mine"] = Mine\n'
    )
    sizes = "--N 1 --d-model 8 --d-ff 8 --h 1 --epochs 1 --attention mine --data builtin --shares 9"
    train = ["train", "--parts", "mine/parts.py", "--folder", "run", *sizes.split()]
    command = [sys.executable, str(PROJECT / tutorial.SCRIPT), *train]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_arguments_that_are_no_text_are_told(small_run, capsys):
    """As a terminal in another encoding hands them over."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        given = ["translate", "--model", str(small_run), "Hund", "K\udce4se", "Hund"]
        assert tutorial.main(given) == 0
    assert capsys.readouterr().out.count("\n") == 3
    assert [str(each.message) for each in told] == ["line 2 is not UTF-8: bytes are replaced"]


def test_the_program_says_which_model_it_took(small_run, capsys):
    for place, name in ((str(small_run), "small"), ("pretrained", r"\S.*")):
        assert tutorial.main(["translate", "--model", place, "Hund"]) == 0
        [said] = capsys.readouterr().err.splitlines()
        assert re.fullmatch(rf"model {name} \(de → en\), trained on \S+, .*{place}", said)


def test_a_toy_says_that_it_is_one(small_corpus, tmp_path, capsys):
    for data, toy in (("builtin", True), (str(small_corpus), False)):
        sizes = "--N 1 --d-model 8 --d-ff 16 --h 1 --epochs 1 --shares 9"
        run = tmp_path / f"run-{toy}"
        assert tutorial.main(["train", *sizes.split(), "--data", data, "--folder", str(run)]) == 0
        assert ("a toy" in capsys.readouterr().out) == toy


def test_symbols_of_ones_own():
    """The same model with its symbols renumbered writes the same, renumbered."""
    new = torch.tensor([3, 0, 1, 2, *range(4, 11)])  # what START, END, PAD, UNKNOWN become
    for seed in range(5):
        torch.manual_seed(seed)
        model = tutorial.make_model(11, 11, N=1, d_model=16, d_ff=32, h=4).eval()
        model.generator.proj.bias.data[tutorial.END] = 0.5
        other = copy.deepcopy(model)
        for name in ("src_embed.0.lut", "tgt_embed.0.lut", "generator.proj"):
            other.get_submodule(name).weight.data[new] = model.get_submodule(name).weight.data
        other.generator.proj.bias.data[new] = model.generator.proj.bias.data
        batch = Batch(pad_ids([[4, 5, 6, 7, 1], [8, 9, 1]]))
        theirs = Batch(new[batch.src], pad=1)
        own = {"end_symbol": 0, "pad": 1}
        for search in (tutorial.greedy_decode, tutorial.beam_search):
            expected = search(model, batch.src, batch.src_mask, 12, tutorial.START)
            found = search(other, theirs.src, theirs.src_mask, 12, 3, **own)
            assert torch.equal(found, new[expected])
            endless = search(model, batch.src, batch.src_mask, 12, tutorial.START, end_symbol=None)
            assert endless.size(1) == 12


def test_the_python_of_readme(tmp_path):
    """Every block, in an empty folder, as it stands."""
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT / "README.md").read_text("utf-8"), re.S)
    assert blocks
    for number, code in enumerate(blocks):
        (tmp_path / f"block{number}.py").write_text(code)
        done = subprocess.run(
            [sys.executable, f"block{number}.py"], cwd=tmp_path, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": str(PROJECT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("count, least", [(60, 20), (600, 60)])
def test_a_small_corpus_trains_with_the_default_command(tmp_path, capsys, count, least):
    """But for the size of the model; and without a test split the validation split is scored."""
    pairs = tutorial.builtin_corpus()["train"][: count + 30]
    data = write_pairs(tmp_path / "mine", DE_EN, train=pairs[30:], val=pairs[:30])
    sizes = "--N 1 --d-model 64 --d-ff 256 --h 4 --dropout 0.1 --folder".split()
    command = ["train", "--data", str(data), *sizes, str(tmp_path / "run")]
    assert tutorial.main(command) == 0
    assert tutorial.main(["evaluate", "--model", str(tmp_path / "run")]) == 0
    bleu = float(re.search(r"val: BLEU (\S+) ", capsys.readouterr().out)[1])
    assert bleu > least
