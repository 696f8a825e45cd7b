"""In a reader's hands: any corpus, any folder, the model that was meant, Python of one's own."""

import copy
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import PROJECT, write_pairs
from test_house import make

import the_annotated_transformer as tutorial
from the_annotated_transformer import Batch, Config, Corpus, pad_ids

PROGRAM = [sys.executable, str(PROJECT / tutorial.SCRIPT)]

# Any corpus -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pairs, batch, epochs",
    [(60, 64, 100), (600, 192, 40), (6000, 1920, 40), (29_000, 2560, 32), (4_500_000, 2560, 4)],
)
def test_batches_and_epochs_follow_from_the_corpus(pairs, batch, epochs):
    fitted = tutorial.fit_to_corpus(Config(), [(16, 9)] * pairs)
    assert (fitted.batch_tokens, fitted.epochs) == (batch, epochs)
    given = tutorial.fit_to_corpus(Config(batch_tokens=512, epochs=3), [(16, 9)] * pairs)
    assert (given.batch_tokens, given.epochs) == (512, 3)


def test_the_peak_of_a_short_training_is_the_usual_one(small_config):
    alone = tutorial.Worker(0, 1, torch.device("cpu"), None)
    for schedule in ("linear", "root"):
        config = tutorial.dataclasses.replace(small_config, warmup=1000, schedule=schedule)
        training = tutorial.Training(config, alone)
        assert training.total < 20 and training.warmup == training.total // 4
        curve = training.scheduler.lr_lambdas[0]
        rates = [curve(update) for update in range(training.total)]
        assert rates.index(max(rates)) + 1 == training.warmup
        assert max(rates) == pytest.approx(tutorial.rate(1000, 16, config.factor, 1000))


# Which model ------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """A folder of runs: two of French, the better one stopped; toys; and what is none."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    texts = {"damaged": "{", "other": '{"best": 3}', "list": "[]"}
    for name, corpus, bleu, languages in (
        ("worse", "phrases", 20.0, "fr-en"),
        ("better", "phrases", 30.0, "fr-en"),
        ("toy", tutorial.BUILTIN, 100.0, "de-en"),
        ("toy-back", tutorial.BUILTIN, 100.0, "en-de"),
    ):
        summary = {"status": "stopped", "best": "epoch-001", "corpus": corpus}
        summary |= {"validation_bleu": bleu, "settings": {"languages": languages}}
        texts[name] = json.dumps(summary)
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(text)
    return tmp_path


def test_who_asks_for_a_direction_gets_its_best_run(runs):
    said = tutorial.EXAMPLES["which_model"]()  # in a notebook
    assert re.fullmatch(r"model \S.* \(de → en\), trained on .*, (in memory|pretrained)", said)
    models = tutorial.models_at_hand()
    names = [Path(place).name for place in models]
    assert names == ["better", "worse", "pretrained", "toy", "toy-back"]
    chosen = {
        languages: Path(tutorial.ModelOptions(languages=languages).choose(models)).name
        for languages in (None, "fr-en", "de-en", "en-de")
    }
    wanted = {"fr-en": "better", "en-de": "toy-back", "de-en": "pretrained", None: "pretrained"}
    assert chosen == wanted, "a toy only where there is nothing else"
    with pytest.raises(ValueError, match=r"no run translates en-fr; .* train"):
        tutorial.ModelOptions(languages="en-fr").choose(models)


def test_the_program_says_what_it_took_and_what_else_there_is(runs, small_run, capsys):
    mine = Path(shutil.copytree(small_run, runs / "mine"))
    with pytest.warns(UserWarning, match="--beam 300 takes much time and memory"):
        assert tutorial.main(["translate", "--model", str(mine), "--beam", "300", "Hund"]) == 0
    corpus = json.loads((mine / "summary.json").read_bytes())["corpus"]
    [said] = capsys.readouterr().err.splitlines()
    assert said == f"model small (de → en), trained on {corpus}, {mine}/epoch-001"
    assert tutorial.main(["translate", "--model", str(mine), "--languages", "en-de", "A"]) == 1
    assert "--languages en-de, but this is model small (de → en)" in capsys.readouterr().err
    shutil.rmtree(runs / "better")
    assert tutorial.main(["translate", "Ein Hund."]) == 0
    model, others = capsys.readouterr().err.splitlines()
    assert model.endswith(" (de → en), trained on Multi30k, pretrained")
    first, *_ = others.removeprefix("other models: ").split(", ")
    assert re.fullmatch(r"--model \S+/(worse \(fr-en\)|mine \(de-en\))", first)


# From Python ------------------------------------------------------------------------------------


def test_the_python_of_readme(tmp_path):
    """In an empty folder, as it stands."""
    [code] = re.findall(r"```python\n(.*?)```", (PROJECT / "README.md").read_text("utf-8"), re.S)
    (tmp_path / "mine.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "mine.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == "" and len(code.splitlines()) <= 15
    mine, shipped = done.stdout.splitlines()[-2:]
    assert mine == "['12/24', '10/3']" and shipped == "['A dog runs through the park.']"
    assert {path.name for path in tmp_path.iterdir()} == {"mine.py", "runs"}


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


def test_arguments_of_another_kind_meet_the_way_out():
    model, batch = tutorial.tiny_model(), Batch(torch.full((2, 3), 5), torch.full((2, 4), 5))
    compute = tutorial.SimpleLossCompute(model.generator, tutorial.LabelSmoothing(13, 2))
    with pytest.raises(TypeError, match="an optimizer and a scheduler, see make_optimizer"):
        tutorial.run_epoch([batch], model, compute)  # as in 2018
    with pytest.raises(TypeError, match=r"batches are needed as `Batch\(src, tgt\)` makes them"):
        tutorial.run_epoch([(batch.src, batch.src)], model, compute, mode="eval")
    with pytest.raises(ValueError, match="ids run from 5 to 99, but there are 11 symbols"):
        model.encode(torch.tensor([[5, 99]]), None)
    for pairs in (None, ["Ein Hund."], [("a", "b", "c")], [["a", None]]):
        corpus = Corpus("mine", ("a", "b"), {"train": [("a", "b")], "val": pairs})
        with pytest.raises(tutorial.CorpusError, match="needs pairs of two texts, got "):
            tutorial.Training(Config(), tutorial.Worker(0, 1, torch.device("cpu"), None), corpus)
    sizes = {"src_vocab": 11, "tgt_vocab": 11, "N": 1, "d_model": 8, "d_ff": 8, "h": 2}
    for name, bad in itertools.product([*sizes, "max_len"], (0, -1)):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got {bad}"):
            tutorial.make_model(**(sizes | {name: bad}))


# The end ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranks_end_with_a_line_each_and_leave_nothing(small_corpus, tmp_path):
    """After an error, and after Ctrl-C, which a terminal sends to every process."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    options = {"env": os.environ | {"TMPDIR": str(scratch)}, "text": True, "cwd": tmp_path}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    train = [*PROGRAM, "train", "--ranks", "2", "--folder", "run", "--data"]
    with subprocess.Popen([*train, "none"], **options) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and out == ""
    told = {re.sub(" of rank 1", "", line) for line in err.splitlines()}
    assert len(told) == 1 and "no folder none" in told.pop() and err.count("\n") <= 2
    assert not list(scratch.iterdir())
    shutil.rmtree(tmp_path / "run")
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 2 --epochs 100000 --patience 100000".split()
    command = [*train, str(small_corpus), *sizes]
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        assert any("epoch 2/" in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == "" and not list(scratch.glob("torchelastic*"))
    assert out.splitlines()[-1].endswith(" train --folder run --ranks 2")


# The first minute -------------------------------------------------------------------------------


def test_translating_installs_what_it_needs_and_no_more(tmp_path):
    """And PyTorch's build for CPUs on a Linux machine without an NVIDIA GPU."""
    dry = ("-n", "-B", f"VENV={tmp_path}/venv")
    translate, test = make("translate", *dry), make("test", *dry)
    assert "-r requirements.txt" in test and "-r requirements.txt" not in translate
    for_cpu = sys.platform == "linux" and not shutil.which("nvidia-smi")
    assert ("--index-url https://download.pytorch.org/whl/cpu" in translate) == for_cpu
    (tmp_path / "nvidia-smi").symlink_to(sys.executable)
    assert "--index-url" not in make("translate", *dry, PATH=f"{tmp_path}:{os.environ['PATH']}")
    first = (PROJECT / "requirements.txt").read_text().partition("\n\n")[0]
    assert re.findall(r"^(\w+)==", first, re.M) == ["torch", "tokenizers", "safetensors", "tyro"]


@pytest.mark.slow
@pytest.mark.parametrize("count, least", [(60, 20), (600, 60)])
def test_a_small_corpus_trains_with_the_default_command(tmp_path, capsys, count, least):
    """But for the size of the model; and without a test split the validation split is scored."""
    pairs = tutorial.builtin_corpus()["train"][: count + 30]
    data = write_pairs(tmp_path / "mine", ("de", "en"), train=pairs[30:], val=pairs[:30])
    sizes = "--N 1 --d-model 64 --d-ff 256 --h 4 --dropout 0.1 --folder".split()
    command = ["train", "--data", str(data), *sizes, str(tmp_path / "run")]
    assert tutorial.main(command) == 0
    assert tutorial.main(["evaluate", "--model", str(tmp_path / "run")]) == 0
    bleu = float(re.search(r"val: BLEU (\S+),", capsys.readouterr().out)[1])
    assert bleu > least


def test_ctrl_c_while_packages_load(tmp_path):
    (tmp_path / "torch.py").write_text("import time\nprint('loads', flush=True)\ntime.sleep(60)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*PROGRAM, "translate", "Hund"], env=environment, **pipes) as process:
        assert process.stdout.readline() == "loads\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "interrupted\n")
        assert process.returncode == 130
