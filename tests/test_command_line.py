"""The command line: train, resume, translate and evaluate; pipes, streams, paths."""

import contextlib
import functools
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import warnings

import pytest
from conftest import PROJECT, log_of

import the_annotated_transformer as tutorial

PROGRAM = [sys.executable, str(PROJECT / tutorial.SCRIPT)]
SMALL = "--N 1 --d-model 16 --d-ff 32 --h 2 --vocab-size 0 --no-share-embeddings".split()


def test_a_run_stops_goes_on_and_is_used_in_a_home_with_blanks(
    tmp_path, monkeypatch, capsys, small_corpus
):
    """Train, stop, resume, translate and evaluate, in a home with blanks and a quote."""
    home = tmp_path / "my home's"
    shutil.copytree(small_corpus, home / "two words")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("RUNS_DIR", "~/my runs")
    monkeypatch.chdir(tmp_path)
    train = ["train", "--data=~/two words", *SMALL, "--epochs", "2"]
    run = "~/my runs/two words-de-en"
    assert tutorial.main([*train, "--minutes", "1e-9"]) == 0
    assert [entry["epoch"] for entry in log_of(home / run[2:])] == [1]
    assert tutorial.main(["resume", run]) == 0
    assert [entry["averaged"] for entry in log_of(home / run[2:])] == [0, 0, 2]
    capsys.readouterr()
    assert tutorial.main(["translate", f"--model={run}", "Ein Hund.", "Eine Frau."]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 2
    assert "two words" in said.err, "which model translates"
    assert tutorial.main(["evaluate", f"--model={run}"]) == 0
    assert "\ntest: BLEU " in capsys.readouterr().out
    assert not (tmp_path / "~").exists()


@pytest.mark.slow
def test_a_file_of_parts_may_import_its_neighbours_and_the_script(tmp_path, capsys, small_corpus):
    """From wherever the program is called."""
    (tmp_path / "mine" / "inner").mkdir(parents=True)
    (tmp_path / "mine" / "neighbour.py").write_text("NAME = 'mine'\n")
    (tmp_path / "mine" / "inner" / "deep.py").write_text("from neighbour import NAME\n")
    (tmp_path / "mine" / "parts.py").write_text(
        "from inner.deep import NAME\n"
        "import the_annotated_transformer as at\n"
        "class Mine(at.MultiHeadedAttention):\n    pass\n"
        "at.PARTS['attention'][NAME] = lambda config: Mine(config.h, config.d_model)\n"
    )
    train = ["train", "--parts", "mine/parts.py", "--attention", "mine", "--folder", "run"]
    train += [*SMALL, "--data", str(small_corpus), "--epochs", "1"]
    translate = ["translate", "--parts", "mine/parts.py", "--model", "run", "Hund"]
    for command in (train, translate):
        done = subprocess.run([*PROGRAM, *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert tutorial.main(["translate", "--model", str(tmp_path / "run"), "Hund"]) == 1
    assert "mine" in capsys.readouterr().err, "a part that the file would have added"


def test_the_command_for_the_base_model_of_the_paper_can_be_given(monkeypatch):
    text = (PROJECT / tutorial.SCRIPT).read_text("utf-8").replace("\\\n#", "")
    [command] = re.findall(r"# torchrun .*? (train [^`]*)\n# ```", text)
    asked = []
    monkeypatch.setattr(tutorial, "train_model", lambda config, *_: asked.append(config))
    assert tutorial.main(shlex.split(command)) == 0
    [config] = asked
    assert (config.N, config.h, config.d_model, config.d_ff) == (6, 8, 512, 2048)
    assert not config.norm_first


# Standard streams -------------------------------------------------------------------------------


def translate_command(model) -> list[str]:
    return [*PROGRAM, "translate", "--beam", "1", "--model", str(model)]


def test_standard_input_is_translated_line_by_line(small_run, tmp_path):
    """From another folder, in any locale."""
    lines = [b"\xef\xbb\xbfEin Hund rennt.", b"", b"Ein Hund\r", b"Ein\rHund", b"Ein \xff\xfe Hund",
             b"  ", "Ein\u2028Hund".encode(), b"<s>", b"Ein\x0cHund\x0b", b"`touch y` \\n",
             *[b"Zwei Frauen"] * 240, b"Hund " * 300]  # fmt: skip
    options = {"input": b"\n".join(lines), "cwd": tmp_path, "env": os.environ | {"LC_ALL": "C"}}
    command = [*translate_command(small_run), "--split"]
    done = subprocess.run(command, capture_output=True, **options)
    assert done.returncode == 0, done.stderr
    assert b"not UTF-8" in done.stderr
    translator = tutorial.load_trained_model(small_run)
    texts = [line.decode("utf-8-sig", errors="replace") for line in lines]
    decode = functools.partial(tutorial.beam_search, beam=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = tutorial.translate_lines(translator, texts, decode, split=True)
    assert done.stdout.decode() == "".join(f"{line}\n" for line in expected)
    assert expected[1] == expected[5] == ""
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("line", ["Hund " * 300, "Ein Hund. " * 9, "Hund\n" + "Frau " * 16])
def test_a_line_that_is_too_long_needs_split(small_run, capsys, line):
    command = ["translate", "--model", str(small_run), line]
    assert tutorial.main(command) == 1
    assert "--split" in capsys.readouterr().err
    assert tutorial.main([*command, "--split"]) == 0
    assert capsys.readouterr().out.count("\n") == 1, "a line for a line"


def test_a_closed_pipe_ends_the_program_quietly(small_run):
    """As `| head` closes it. A full group of lines is answered before the next is read."""
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(translate_command(small_run), **pipes) as process:
        process.stdin.write(b"Ein Hund.\n" * 200)
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"Ein Hund.\n" * 200)
        process.stdin.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read().count(b"\n") == 1  # which model translates


def test_a_terminal_may_know_ascii_only(monkeypatch, small_run):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(tutorial, "translate_lines", lambda *given, **options: ["Käse → cheese"])
    assert tutorial.main(["translate", "--model", str(small_run), "Käse"]) == 0
    assert written.getvalue() == b"K?se ? cheese\n"


def test_arguments_may_have_another_encoding(small_run, capsys):
    given = ["translate", "--model", str(small_run), "Hund", "K\udce4se", "Hund"]
    with pytest.warns(UserWarning, match="UTF-8"):
        assert tutorial.main(given) == 0
    assert capsys.readouterr().out.count("\n") == 3


def test_the_program_runs_inside_another_one(monkeypatch, small_run):
    """In a thread, with other streams, as in a notebook."""
    statuses = []

    def translate() -> None:
        statuses.append(tutorial.main(["translate", "--model", str(small_run)]))

    monkeypatch.setattr(sys, "stdin", io.StringIO("Hund\n\nFrau"))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        thread = threading.Thread(target=translate)
        thread.start()
        thread.join()
    assert statuses == [0]
    assert said.getvalue().count("\n") == 3
    assert said.getvalue().split("\n")[1] == ""


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch, small_run):
    def fail(*given, **options):
        raise OSError("of ours")

    monkeypatch.setattr(tutorial, "translate", fail)
    with pytest.raises(OSError, match="of ours"):
        tutorial.main(["translate", "--model", str(small_run), "Hund"])
