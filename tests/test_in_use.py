"""In a reader's hands: any corpus, any folder, the model that was meant, Python of one's own."""

import copy
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import PROJECT, write_pairs
from test_house import make

import the_annotated_transformer as tutorial
from the_annotated_transformer import Batch, Config, Corpus, pad_ids

PROGRAM = [sys.executable, str(PROJECT / tutorial.SCRIPT)]

# Any corpus -------------------------------------------------------------------------------------


def data_of(pairs: int) -> SimpleNamespace:
    """A corpus of so many pairs, of which only the lengths are known."""

    class Pairs:
        lengths = torch.tensor([(16, 9)]).expand(pairs, 2)

        def __len__(self) -> int:
            return pairs

    return SimpleNamespace(train=Pairs(), corpus=Corpus("invented", ("de", "en"), {}))


@pytest.mark.parametrize(
    "pairs, batch, epochs",
    [(60, 64, 100), (600, 192, 40), (6000, 1920, 40), (29_000, 2560, 32), (4_500_000, 2560, 4)],
)
def test_batches_and_epochs_follow_from_the_corpus(pairs, batch, epochs):
    fitted = tutorial.resolve(Config(), data_of(pairs))
    assert (fitted.batch_tokens, fitted.epochs) == (batch, epochs)
    expected = max(1, round(pairs * 16 / batch / 1000 + 0.5))
    assert fitted.shares == expected
    given = tutorial.resolve(Config(batch_tokens=512, epochs=3, shares=2), data_of(pairs))
    result = (given.batch_tokens, given.epochs, given.shares)
    assert result == (512, 3, 2)


def test_the_peak_of_a_short_training_is_the_usual_one():
    for schedule in ("linear", "inverse_sqrt"):
        config = Config(warmup=1000, schedule=schedule, epochs=1, batch_tokens=64, factor=0.1)
        data = data_of(60)
        resolved = tutorial.resolve(config, data)
        total = tutorial.planned_updates(resolved, data)
        assert total < 20
        assert resolved.warmup == total // 4
        _, scheduler = tutorial.new_optimizer(tutorial.tiny_model(), resolved, total)
        curve = scheduler.lr_lambdas[0]
        rates = [curve(update) for update in range(total)]
        assert rates.index(max(rates)) + 1 == resolved.warmup
        expected = pytest.approx(tutorial.rate(1000, 16, 0.1, 1000))
        assert max(rates) == expected


# Which model ------------------------------------------------------------------------------------


def test_the_program_says_which_model_it_took(small_run, capsys):
    said = str(tutorial.translator_at_hand())  # in a notebook
    assert re.fullmatch(r"model \S.* \(de → en\), trained on .*, (in memory|pretrained)", said)
    result = tutorial.main(["translate", "--model", str(small_run), "Hund"])
    assert result == 0
    corpus = json.loads((small_run / "run.json").read_bytes())["corpus"]
    [said] = capsys.readouterr().err.splitlines()
    assert said == f"model small (de → en), trained on {corpus}, {small_run}/epoch-001"
    assert tutorial.main(["translate", "Ein Hund."]) == 0
    [said] = capsys.readouterr().err.splitlines()
    assert said.endswith(" (de → en), trained on Multi30k, pretrained")


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
    assert done.stderr == ""
    assert len(code.splitlines()) <= 15
    mine, shipped = done.stdout.splitlines()[-2:]
    assert mine == "['12/24', '10/3']"
    assert shipped == "['A dog runs through the park.']"
    result = {path.name for path in tmp_path.iterdir()}
    assert result == {"mine.py", "runs"}


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


def test_arguments_of_another_kind_meet_the_way_out(tmp_path):
    model = tutorial.tiny_model()
    batch = Batch(torch.full((2, 3), 5), torch.full((2, 4), 5))
    compute = tutorial.SimpleLossCompute(model.generator, tutorial.LabelSmoothing(13, 2))
    optimizer = tutorial.make_optimizer(model, 1.0, 10)
    before = [p.clone() for p in model.parameters()]
    for mode in ("evaluate", "val", "valid", "test", "Eval", "", None, False, True):
        with pytest.raises(ValueError, match='mode must be "train" or "eval", got '):
            tutorial.run_epoch([batch], model, compute, *optimizer, mode=mode)
    assert all(map(torch.equal, before, model.parameters())), "nothing was learnt"
    for pairs in (None, ["Ein Hund."], [("a", "b", "c")], [["a", None]]):
        corpus = Corpus("mine", ("a", "b"), {"train": [("a", "b")], "val": pairs})
        with pytest.raises(tutorial.CorpusError, match="needs pairs of two texts, got "):
            tutorial.train_model(Config(), tmp_path / "run", corpus=corpus)
    sizes = {"src_vocab": 11, "tgt_vocab": 11, "N": 1, "d_model": 8, "d_ff": 8, "h": 2}
    for name, bad in itertools.product([*sizes, "max_len"], (0, -1)):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got {bad}"):
            tutorial.make_model(**(sizes | {name: bad}))


# The end ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_say_what_is_wrong_and_stop_when_asked(small_corpus, tmp_path):
    """By torchrun, as the README has it; a terminal sends Ctrl-C to every process."""
    options = {"text": True, "cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    train = [sys.executable, *torchrun, PROGRAM[1], "train", "--folder", "run", "--data"]
    with subprocess.Popen([*train, "none"], **options) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert "error: none/train.de is missing" in err
    assert not (tmp_path / "run").exists()
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 2 --epochs 100000".split()
    command = [*train, str(small_corpus), *sizes]
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        assert any("epoch 2/" in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert out.splitlines()[-1].startswith("stopped: the same command goes on")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["translate Hund", "train --data none"])
def test_closed_streams(words, closed):
    """Whoever calls may have closed them; then what would be said there is not said."""
    command = f"{shlex.join(PROGRAM)} {words} {closed}"
    said = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert said.returncode == (1 if "none" in words else 0)
    assert "Traceback" not in said.stderr
    assert bool(said.stdout) == (">&-" not in closed.replace("2>", "") and "none" not in words)
    assert ("none/train.de is missing" in said.stderr) == ("none" in words and "2>" not in closed)


def test_nothing_is_translated_where_standard_input_is_closed():
    command = f"{shlex.join(PROGRAM)} translate <&-"
    said = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, "")
    assert said.stderr.startswith("model "), said.stderr


# The first minute -------------------------------------------------------------------------------


def test_translating_installs_what_it_needs_and_no_more(tmp_path):
    """And PyTorch's build for CPUs on a Linux machine without an NVIDIA GPU."""
    dry = ("-n", "-B", f"VENV={tmp_path}/venv")
    translate = make("translate", *dry)
    test = make("test", *dry)
    assert "-r requirements.txt" in test
    assert "-r requirements.txt" not in translate
    for_cpu = sys.platform == "linux" and not shutil.which("nvidia-smi")
    assert ("--index-url https://download.pytorch.org/whl/cpu" in translate) == for_cpu
    (tmp_path / "nvidia-smi").symlink_to(sys.executable)
    assert "--index-url" not in make("translate", *dry, PATH=f"{tmp_path}:{os.environ['PATH']}")
    first = (PROJECT / "requirements.txt").read_text().partition("\n\n")[0]
    result = re.findall(r"^(\w+)==", first, re.M)
    expected = ["torch", "tokenizers", "safetensors", "tyro", "pydantic"]
    assert result == expected


@pytest.mark.slow
@pytest.mark.parametrize("count, least", [(60, 20), (600, 60)])
def test_a_small_corpus_trains_with_the_default_command(tmp_path, capsys, count, least):
    """But for the size of the model; and without a test split the validation split is scored."""
    pairs = tutorial.builtin_corpus()["train"][: count + 30]
    data = write_pairs(tmp_path / "mine", ("de", "en"), train=pairs[30:], val=pairs[:30])
    sizes = "--N 1 --d-model 64 --d-ff 256 --h 4 --dropout 0.1 --folder".split()
    command = ["train", "--data", str(data), *sizes, str(tmp_path / "run")]
    assert tutorial.main(command) == 0
    result = tutorial.main(["evaluate", "--model", str(tmp_path / "run")])
    assert result == 0
    bleu = float(re.search(r"val: BLEU (\S+) ", capsys.readouterr().out)[1])
    assert bleu > least
