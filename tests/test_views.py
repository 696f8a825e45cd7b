"""The tool behind `make views`: finished views, what they are made from, and the hash of code."""

import ast
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import records
import rescore
import speed_views
import views

PROJECT = Path(__file__).resolve().parent.parent
NAMES = [views.name_of(view) for view in views.VIEWS]
ORIGIN = ("caption", "measured")


def published(name: str) -> dict:
    return json.loads((records.RESULTS / "views" / f"{name}.json").read_text(encoding="utf-8"))


def column(name: str, heading: str) -> list[str]:
    view = published(name)
    return [row[view["columns"].index(heading)] for row in view["rows"]]


# Every view -------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", views.VIEWS, ids=views.name_of)
def test_a_published_view_is_what_the_records_give(view):
    assert published(views.name_of(view)) == view(), "`make views` writes it"


@pytest.mark.parametrize("name", NAMES)
def test_a_view_is_finished_and_says_where_it_comes_from(name):
    view = published(name)
    assert set(view) in ({"columns", "rows", *ORIGIN}, {"chart", *ORIGIN})
    assert set(view["measured"]) == {"date", "machine", "commit", "code"}
    for part in ("date", "machine"):
        assert view["measured"][part] in view["caption"]
    first_edition = view["measured"]["code"] is None
    assert ("measured with the first edition's code, commit" in view["caption"]) == first_edition
    assert "\n" not in view["caption"]
    assert "{" not in view["caption"] and "<" not in view["caption"]
    if "rows" in view:
        headings = view["columns"]
        headings = headings if isinstance(headings[0], list) else [headings]
        assert {len(line) for line in [*headings, *view["rows"]]} == {len(headings[0])}
        assert all(isinstance(cell, str) for row in view["rows"] for cell in row)


@pytest.mark.parametrize("name", ["steps-figure", "training", "late-symbol"])
def test_a_chart_fits_a_column_has_a_text_and_no_colours_of_one_theme(name):
    import vl_convert

    chart = published(name)["chart"]
    assert len(chart["description"]) > 100
    svg = vl_convert.vegalite_to_svg(chart)
    assert float(re.search(r'width="([\d.]+)"', svg)[1]) <= 480
    colours = set(re.findall(r'"(?:color|fill|stroke|background)": "([^"]+)"', json.dumps(chart)))
    assert colours <= {"gray"}


def test_only_steps_that_train_anew_have_a_bar_of_the_seeds():
    points = published("steps-figure")["chart"]["layer"][0]["data"]["values"]
    trained = {point["step"] for point in points if "high" in point}
    assert trained == {"pieces of words", "one matrix instead of three"}
    assert len({point["step"] for point in points}) == 5


def test_a_table_with_groups_is_one_that_pandas_takes(at):
    steps = published("steps")
    html = at.table(steps["rows"], steps["columns"]).to_html()
    assert 'colspan="4">test 2016<' in html and 'colspan="4">test 2017<' in html


def test_the_tool_needs_no_torch_and_writes_every_view(tmp_path):
    code = (
        "import sys, shutil, pathlib, records, views\n"
        "new = pathlib.Path(sys.argv[1], 'results')\n"
        "shutil.copytree(records.RESULTS, new, ignore=shutil.ignore_patterns('views'))\n"
        "records.RESULTS = new\n"
        "views.main([])\n"
        "assert 'torch' not in sys.modules and 'the_annotated_transformer' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, cwd=PROJECT / "tools", check=True)
    written = sorted(path.name for path in (tmp_path / "results" / "views").iterdir())
    assert written == sorted(f"{name}.json" for name in NAMES)


def test_another_command_is_refused():
    with pytest.raises(SystemExit, match="usage"):
        views.main(["rescue"])


def test_a_view_of_new_code_names_its_hash_and_no_edition():
    made = {"date": "2027-01-01", "machine": "x", "commit": "0123456789", "code": "ab12"}
    view = records.finished("What", [made], columns=[], rows=[])
    assert view["measured"]["code"] == "ab12"
    assert view["caption"] == "What. x, 2027-01-01; measured with commit 0123456."
    mixed = records.finished("What", [made, made | {"code": None}], columns=[], rows=[])
    assert mixed["measured"]["code"] is None
    assert mixed["caption"].endswith("measured with different code, commit 0123456.")


def test_a_range_has_no_place_to_break_and_shows_only_where_there_is_one():
    assert records.with_range([1.0, 2.0, 4.5], 1) == "2.5\u00a0(1.0–\u20604.5)"
    assert records.with_range([2.01, 2.04], 1) == "2.0"


# Quality ----------------------------------------------------------------------------------------


def test_the_bleu_of_the_tables_is_that_of_the_scorings():
    log = {(each["row"], each["run"], each["split"]): each["bleu"] for each in records.scorings()}
    anew = {(s["run"], s["split"]): s for s in records.read("unknown-as-one")["scores"]}
    words = [key[1:] for key in log if key[0] == "words"]
    assert sorted(words) == sorted(anew)
    assert all(anew[key]["before"] == log["words", *key] for key in words)
    assert [anew["words-1", split]["bleu"] for split in records.TESTS] == [37.69, 33.04]
    for number, split in enumerate(records.TESTS):
        mean = sum(anew[f"words-{seed}", split]["bleu"] for seed in (1, 2, 3)) / 3
        bleu = column("results", list(published("results")["columns"])[1 + number])
        assert bleu[0] == f"{mean:.1f}" and bleu[1] == f"{log['pieces', 'pieces-1', split]:.1f}"


def test_gains_are_those_of_first_seeds():
    bleu = {(each["row"], each["run"], each["split"]): each["bleu"] for each in records.scorings()}
    rows = views.steps_of_the_recipe()
    for before, row in itertools.pairwise(rows[1:-1]):
        for split in records.TESTS:
            gain = bleu[row["row"], row["runs"][0], split]
            gain -= bleu[before["row"], before["runs"][0], split]
            assert row["splits"][split]["step"]["bleu"] == pytest.approx(gain, abs=0.011)
    steps = published("steps")
    assert steps["rows"][1][2] == "+2.09" and steps["rows"][1][6] == "+1.62"


def test_holm_s_correction():
    assert views.largest_that_counts([0.04, 0.01, 0.03, 0.005]) == 0.01
    assert views.largest_that_counts([0.02, 0.03, 0.04]) == 0  # 0.02 > 0.05 / 3
    assert views.largest_that_counts([0.01, 0.02, 0.04]) == 0.04
    assert views.largest_that_counts([0.01, 0.02, 0.04], level=0.025) == 0, "0.01 > 0.025 / 3"
    marked = [p.endswith("*") for row in published("steps")["rows"] for p in (row[3], row[7])]
    assert sum(marked) == 3


def test_an_unknown_word_is_one_token_for_bleu():
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    cut = Tokenizer13a()
    assert cut(f"a {rescore.UNKNOWN}-shirt.").split() == ["a", "<", "unk", ">", "-shirt", "."]
    assert len(cut(f"a {rescore.ONE_WORD}, seen").split()) == 4


def test_rescoring_gives_what_is_on_record(multi30k, monkeypatch, tmp_path):
    monkeypatch.setenv("MULTI30K_DIR", multi30k)
    record, split = records.read("unknown-as-one"), "test_2017_flickr"
    targets, log = rescore.references(split), records.scorings()
    [words] = [each for each in log if (each["run"], each["split"]) == ("words-1", split)]
    assert rescore.score_anew(words, targets) in record["scores"]
    with pytest.raises(SystemExit, match="on record 3"):
        rescore.score_anew(words | {"bleu": 3}, targets)
    with pytest.raises(SystemExit, match="not what was scored"):
        rescore.translations(words | {"hypotheses": "0"})
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))
    with pytest.raises(SystemExit, match="MULTI30K_DIR must name"):
        rescore.references(split)


# Speed ------------------------------------------------------------------------------------------


def test_speed_like_for_like_is_the_ratio_on_record():
    rows = {row[0]: row[1:] for row in published("speed")["rows"]}
    for number, name in enumerate(speed_views.BENCHMARKS.values()):
        found = {each["what"]: each["ratio"] for each in records.read(name)["ratios"]}
        for what, row, place in (
            (
                "fp32 in one process against the feed of 2022, base",
                "training, base, feed of 2022",
                0,
            ),
            (
                "bf16 on two ranks against the feed of 2022, small",
                "training, small, feed of 2022",
                1,
            ),
            ("nn.Transformer, fp32, 1x2, small", "training, small, nn.Transformer", 0),
            ("against CTranslate2, fp32, beam 4", "decoding, CTranslate2, beam of 4", 0),
        ):
            ratio = rows[row][2 * number + place].split("\u00a0")[0]
            assert float(ratio) == pytest.approx(found[what], abs=0.06)


def test_the_middle_of_a_range_lies_inside():
    for name in ("speed", "gains"):
        cells = [cell for row in published(name)["rows"] for cell in row if "\u00a0" in cell]
        assert len(cells) >= 18
        for cell in cells:
            middle, low, high = map(float, re.findall(r"[\d.]+", cell))
            assert low <= middle <= high


def test_the_count_of_operations_is_the_sum_over_all_products_of_matrices():
    N, D, F, V, S, T = 2, 16, 48, 13, 5, 3
    encoder = [(S, D, D)] * 4 + [(S, D, F), (S, F, D), (S, D, S), (S, S, D)]
    decoder = [(T, D, D)] * 6 + [(S, D, D)] * 2 + [(T, D, F), (T, F, D)]
    decoder += [(T, D, T), (T, T, D), (T, D, S), (T, S, D)]
    products = (encoder + decoder) * N + [(T, D, V)]
    forward = sum(2 * rows * inner * columns for rows, inner, columns in products)
    assert speed_views.training_flops(N, D, F, V, S, T) == 3 * forward
    assert column("cost", "share") == ["29%", "42%"]


# The hash of the code ---------------------------------------------------------------------------

SMALL = '''\
# %% [markdown]
# Some prose.

# %%
import math
import random

SIZES = {"small": 1}
SIZES["large"] = 2
WIDTH = 300

# %%
class Model:
    """What it is."""

    def forward(self, x):
        return scaled(x)  # a remark


# %%
@example
def a_figure():
    model = "local"
    return train(WIDTH)


def scaled(x):
    return [math.sqrt(y) for y in x]


def train(steps):
    random = steps
    return Model().forward(SIZES)
'''


def hash_of(tmp_path: Path, source: str, *roots: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(source, encoding="utf-8")
    return records.code_hash(path, roots or ("train",))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Some prose", "Other prose"),
        ("  # a remark", ""),
        ("What it is.", "What it is,\n    and more."),
        ("\n\ndef train", "\n\n\n# %%\ndef train"),
        ("WIDTH = 300", "WIDTH = 420"),
        ("return train(WIDTH)", "return WIDTH"),
        ("import random", "import secrets"),
        ("@example\n", ""),
        ('model = "local"', 'train = "local"'),
    ],
)
def test_what_training_does_not_reach_leaves_the_hash(tmp_path, old, new):
    assert old in SMALL
    assert hash_of(tmp_path, SMALL.replace(old, new)) == hash_of(tmp_path, SMALL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("math.sqrt", "math.cbrt"),
        ("import math", "import cmath as math"),
        ('"small": 1', '"small": 3'),
        ('SIZES["large"] = 2', 'SIZES["large"] = 3'),
        ("scaled(x)  # a remark", "scaled(x[::-1])  # a remark"),
        ("random = steps", "random = steps + 1"),
        ("class Model:", "@example\nclass Model:"),
    ],
)
def test_what_training_reaches_changes_the_hash(tmp_path, old, new):
    assert old in SMALL
    assert hash_of(tmp_path, SMALL.replace(old, new)) != hash_of(tmp_path, SMALL)


def test_the_order_of_cells_does_not_matter_and_the_roots_do(tmp_path):
    first, second = SMALL.split("# %%\n@example")
    start, rest = first.split("# %%\nclass")
    moved = f"{start}# %%\n@example{second}\n# %%\nclass{rest}"
    assert hash_of(tmp_path, moved) == hash_of(tmp_path, SMALL)
    assert hash_of(tmp_path, SMALL, "scaled") != hash_of(tmp_path, SMALL)
    with pytest.raises(ValueError, match="does not define evaluate"):
        hash_of(tmp_path, SMALL, "train", "evaluate")


def test_the_hash_of_the_script_follows_its_model_and_not_its_figures(tmp_path):
    source = (PROJECT / "the_annotated_transformer.py").read_text(encoding="utf-8")
    roots = "train_model", "beam_search", "corpus_bleu"
    before = hash_of(tmp_path, source, *roots)
    figure = "\n\n# %%\n@example\ndef another_figure():\n    return train_model\n"
    assert hash_of(tmp_path, source + figure, *roots) == before
    named = {getattr(node, "name", ""): node for node in ast.parse(source).body}
    lines = source.split("\n")
    lines.insert(named["LabelSmoothing"].end_lineno, "\n    more = True")
    assert hash_of(tmp_path, "\n".join(lines), *roots) != before
