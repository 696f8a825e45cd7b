"""The page: what its builder refuses, and how it lays cells out."""

import json
import os
import re
import subprocess
import sys

import altair as alt
import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_output
from pages import (
    DRAWN,
    FINISHED,
    ROOM,
    SECTIONS,
    UNFINISHED,
    chart,
    contrast,
    facts,
    heat_map,
    hidden,
    line_chart,
    notebook,
    page_of,
    rows_chart,
    shown,
)

from tools.page import article, build, cache, margin, playable
from tools.page.article import contents, lay_out
from tools.page.links import links
from tools.page.markup import HERE, BuildError, parsed

# What the builder refuses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("A sum, $\\frac{1}{2$.", r"cell 2 .*formula does not parse"),
        ("![](images/multi-head.svg)", r"cell 2 .*multi-head\.svg has no alt text"),
        ("![a drawing](images/none.svg)", r"cell 2 .*none\.svg does not exist"),
        ("![a box](images/multi-head.svg)", "cell 2 .*anchor that does not exist: #multi-head-att"),
        ('<img src="data:image/png;base64,AAAA">', "cell 2 .*no alt text"),
        ('<img alt="x" src="https://example.org/a.png">', "cell 2 .*fetched from elsewhere"),
        ("See [the end](#the-end).", r"cell 2 .*anchor that does not exist: #the-end \(the end\)"),
        ("See [tests](tests/test_page.py).", "cell 2 .*part of the page: tests/test_page.py"),
        ('<a id="x"></a>\n# X\n\n<a id="x"></a>\n# Y', "cell 2 .*ids given twice: x"),
        ("$$a$$\n<!-- code: nowhere -->", r"cell 2 .*should link to nowhere"),
        (chart(line_chart([1.0, None, 2.0])), r"cell 2 .*null where a number .*/1/y"),
        (chart(line_chart([1, 2]) | {"description": ""}), "no description"),
        (chart(rows_chart({"n": "12 3"}, {"n": "12 nan 3"})), "a number .*/data/values/1/n"),
        (shown({"image/png": "AAAA"}), "no alt text"),
        (
            new_code_cell("1/0", outputs=[new_output("error", ename="NoZero", evalue="!")]),
            r"cell 2 \(1/0\): the cell ended with NoZero",
        ),
    ],
)
def test_faults_fail_the_build(tmp_path, cell, message):
    with pytest.raises(BuildError, match=message):
        page_of(tmp_path, cell)


def test_a_page_needs_a_title():
    with pytest.raises(BuildError, match="no title"):
        lay_out("Text.")


def test_code_that_was_not_run_is_refused(tmp_path):
    source = notebook(tmp_path, new_code_cell("x = 1"))
    bare = nbformat.read(source, as_version=4)
    del bare.cells[1].metadata["annotated"]
    nbformat.write(bare, source)
    with pytest.raises(BuildError, match=r"cell 2 \(x = 1\): nothing says what"):
        build.build(source)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [("attention", "rotary", "attention rotary"), ("norm_first", False, "post-norm")],
)
def test_a_model_that_the_page_cannot_compute_is_refused(tmp_path, setting, value, message):
    about = json.loads((playable.MODEL / "config.json").read_bytes())
    about["settings"][setting] = value
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(BuildError, match=f"{message} has no JavaScript"):
        playable.side_file(tmp_path)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (None, "unnamed corpus"),
        (FINISHED | {"corpus": "built-in captions"}, "built-in captions"),
        (UNFINISHED, "without a finished model"),
    ],
)
def test_publishing_needs_a_finished_model_of_a_real_corpus(tmp_path, capsys, about, message):
    source = notebook(tmp_path, *([facts(about)] if about else []))
    folder = tmp_path / "docs"
    assert build.main(["publish", str(source), str(folder)]) == 1
    assert message in capsys.readouterr().err
    assert not folder.exists()
    assert ("A draft: " in build.build(source)[0]) == (about is not None)


def test_a_page_of_a_finished_model_is_published(tmp_path, monkeypatch):
    drawn = json.dumps({"scene": {}, "html": '<p class="still"><svg></svg></p>', "whole": ""})
    monkeypatch.setattr(playable, "still_from", lambda *_: drawn)
    source = notebook(tmp_path, facts(FINISHED), "![A translation.](images/first-translation.svg)")
    folder = tmp_path / "docs"
    assert build.main(["publish", str(source), str(folder)]) == 0
    for name in ("index.html", "model.js", "preview.png", "the_annotated_transformer.ipynb"):
        assert (folder / name).stat().st_size > 0
    assert "ran on Multi30k" in (folder / "index.html").read_text("utf-8")


# What a page is made of ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_notebook_gives_the_same_page_in_another_process(tmp_path):
    """Sets have another order there."""
    source = notebook(tmp_path, "$x^2$ and `B`", SECTIONS + "![a](images/multi-head.svg)")
    code = "import pathlib, sys; from tools.page import build; "
    code += "sys.stdout.buffer.write(build.build(pathlib.Path(sys.argv[1]))[0].encode())"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", code, str(source)]
    other = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    assert other.stdout.decode() == build.build(source)[0]


def test_the_cache_computes_once_and_gives_the_same_text(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "cache")
    calls = []
    doubled = cache.cached(lambda text: calls.append(text) or text * 2)
    assert [doubled("ü\r\n"), doubled("ü\r\n"), doubled("b")] == ["ü\r\nü\r\n"] * 2 + ["bb"]
    assert calls == ["ü\r\n", "b"]


def test_the_page_links_to_its_repository(tmp_path, monkeypatch):
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[project]\nname = "x"\n')
    assert links(tmp_path) == {}
    home = "https://github.com/some-one/a.name"
    settings.write_text(f'[project.urls]\nRepository = "{home}"\n')
    monkeypatch.setattr(build, "links", lambda: links(tmp_path))
    start = '<a id="start"></a>\n# Start here'
    page = parsed(build.build(notebook(tmp_path, start))[0])
    colab, *_, repository = [link["href"] for link in page.select(".links a")]
    assert repository == home
    made = "some-one/a.name/blob/main/docs/the_annotated_transformer.ipynb"
    assert colab == f"https://colab.research.google.com/github/{made}"


def test_a_folder_that_readers_have_not_got_is_linked_or_not_named(tmp_path, monkeypatch):
    text = "# Part\n\nRead on.\n\nSheets are in `docs/course`."
    monkeypatch.setattr(article, "links", lambda: {})
    assert [p.get_text() for p in page_of(tmp_path, text).find_all("p")][1:] == ["Read on."]
    monkeypatch.setattr(article, "links", lambda: {"The repository": "https://a.b/c"})
    assert page_of(tmp_path, text).select_one("a:has(code)")["href"].endswith("docs/course")


@pytest.mark.parametrize("theme", [0, 1])
def test_marks_of_charts_stand_out_from_the_paper(theme):
    """Lines, points and the strongest cells; cells of a weight of nothing may vanish."""
    css = (HERE / "page.css").read_text("utf-8")
    series = [f"series-{number}" for number in range(1, 7)]
    names = (*series, "ramp-9", "diverging-1", "diverging-9")
    colours = {name: re.findall(rf"--{name}: ([^;]+);", css)[theme] for name in (*names, "paper")}
    for name in names:
        assert contrast(colours[name], colours["paper"]) >= 3, name


def test_a_chart_has_no_label_twice_and_tells_the_value_of_a_cell(tmp_path):
    line = page_of(tmp_path, chart(line_chart([0, 0.001])))
    axes = line.select('[class*="axis-label"]')
    assert axes
    for axis in axes:
        labels = [label.get_text() for label in axis.find_all("text")]
        assert len(set(labels)) == len(labels) > 1
    cells = page_of(tmp_path, chart(heat_map())).select(".wide path:has(title)")
    told = {cell["d"].split("h")[0]: float(cell.title.string) for cell in cells}
    assert max(told.values()) == told["M420,120"] == 1
    assert sum(cell["d"].count("M") for cell in cells) == 16


def test_lines_have_the_room_of_a_wide_screen_and_are_told_apart_by_dashes(tmp_path):
    points = [{"x": x, "y": 1, "kind": kind} for kind in "ab" for x in range(3)]
    charts = []
    for width in (90, 300):
        drawn = alt.Chart(alt.Data(values=points), description="Lines.", width=width).mark_line()
        charts.append(chart(drawn.encode(x="x:Q", y="y:Q", color="kind:N").to_dict()))
    page = page_of(tmp_path, *charts)
    rooms = [float(svg["viewbox"].split()[2]) for svg in page.select("svg.wide")]
    assert rooms[0] == pytest.approx(rooms[1], abs=2)
    assert rooms[0] > 2 * max(float(svg["viewbox"].split()[2]) for svg in page.select("svg.narrow"))
    for svg in page.select("svg"):
        assert len({path["stroke-dasharray"] for path in svg.select("[stroke-dasharray]")}) == 2


# Headings, links and captions ---------------------------------------------------------------------


def test_headings_have_one_title_and_make_the_contents(tmp_path):
    text = '# Early\n\n# Part\n\n## Deep\n\n<a id="own"></a>\n## Section of $x$\n\n[up](#part)'
    page = page_of(tmp_path, text)
    found = [(tag.name, tag["id"]) for tag in page.find_all(re.compile(r"h\d"))]
    assert found[:3] == [("h1", "a-page"), ("h2", "early"), ("h2", "part")]
    assert found[3:] == [("h3", "deep"), ("h3", "own")]
    listed = parsed(contents(page))
    links = [link["href"] for link in listed.find_all("a")]
    assert links == ["#early", "#part", "#deep", "#own"]
    assert [len(part.find_all("li")) for part in listed.select("ol")] == [4, 2]


def test_a_part_opens_with_its_number_its_title_and_what_it_has_of_the_paper(tmp_path):
    text = "# Part 1. First\n\n(§3.2.1, Eq. 1) So.\n\n(§3.2) As (§5) says.\n\n# Other\n\n(§1) No."
    page = page_of(tmp_path, text)
    first, other = page.find_all("hgroup")
    assert first.h2.text.startswith("Part 1. First")
    assert first.find(class_="part").text == "Part 1"
    assert first.p.text == "Draws on §3.2 and §5 of the paper"
    assert other.h2["id"] == "other"
    assert not other.p
    listed = parsed(contents(page)).find_all("a")
    assert [link.text for link in listed] == ["Part 1. First", "Other"]


def test_anchors_alone_before_a_heading_become_part_of_it(tmp_path):
    text = '<a id="one"></a><a id="two"></a>\n## Both\n\nWords. <a id="inside"></a>\n\n## Next'
    page = page_of(tmp_path, text)
    both, following = page.find_all("h3")
    assert (both["id"], following["id"]) == ("one", "next")
    assert both.find(id="two")
    assert page.find(id="inside").parent.name == "p"


def test_captions_join_what_they_describe(tmp_path):
    table = "| a |\n| --- |\n| 1 |\n\n**Figure 1.** Above it."
    page = page_of(tmp_path, chart(line_chart([1, 2])), "**Figure 1.** The line.", table)
    first, second = page.find_all("figure")
    assert first.find(class_="chart")
    assert first.figcaption.text == "Figure 1. The line."
    assert second.find().name == "figcaption"
    assert second.table
    bare = page_of(tmp_path, chart(line_chart([1, 2])), "**Bold** words.").figure
    assert bare.figcaption.text == "A line."


def test_what_can_be_played_with_takes_the_place_of_what_the_notebook_shows(tmp_path, monkeypatch):
    asked = []

    def drawn(script, name, data):
        asked.append((name, json.loads(data)))
        return json.dumps({"scene": {}, "html": '<p class="still"><svg></svg></p>', "whole": ""})

    monkeypatch.setattr(playable, "still_from", drawn)
    table = shown({"text/html": "<table></table>"}, "@example\ndef watch_it_learn(): ...")
    maps = chart(line_chart([3]), "@example\ndef attention_maps_figure(): ...")
    caption = '<a id="figure-{}"></a>\n**Figure 1.** Seen.'
    page = page_of(
        tmp_path, table, caption.format("watch-it-learn"), maps, caption.format("attention-maps")
    )
    figures = page.select("figure.playable")
    assert [each["id"] for each in figures] == ["figure-watch-it-learn", "figure-attention-maps"]
    assert all(each.figcaption.text.strip() == "Figure 1. Seen." for each in figures)
    assert not page.select("figure table")
    (_, record), (_, rows) = asked
    assert record["moments"] and record["log"]
    assert rows == [{"x": 0, "y": 3}]


def test_only_the_first_sentence_of_a_long_caption_is_in_sight(tmp_path):
    first = "**Figure 1.** A line of $x$, and why ([more](#part))."
    rest = "It rises, " + "and rises, " * 40 + "*so* far."
    page = page_of(tmp_path, "# Part", chart(line_chart([1, 2])), f"{first} {rest}")
    caption = page.figcaption
    assert caption.details.em.text == "so"
    assert caption.details.extract().text.startswith("How to read it")
    assert caption.text.startswith("Figure 1. A line of ")
    assert caption.text.endswith("and why (more).")


def test_a_figure_has_the_name_of_its_anchor_and_a_line_in_the_list_at_the_end(tmp_path):
    cells = [
        "# Part 1. Lines\n\nSee [Figure 2](#figure-sizes).",
        chart(line_chart([1, 2]), "@example\ndef a_line_figure(): ..."),
        '<a id="figure-a-line"></a>\n**Figure 1.** One line < two. It rises.\n\n# Part 2. Sizes',
        chart(line_chart([2, 1])),
        '<a id="figure-sizes"></a>\n**Figure 2.** Sizes for $x^2$, and `code`: all.',
        chart(line_chart([2, 1])),
    ]
    page = page_of(tmp_path, *cells)
    assert [tag.name for tag in page.find_all(id=re.compile("^figure-"))] == ["figure", "figure"]
    entries = page.find(id="figures").find_parent("details").find_all("a")
    assert [(link["href"], link.text) for link in entries] == [
        ("#figure-a-line", "1 One line < two"),
        ("#figure-sizes", "2 Sizes for x2, and code"),
    ]
    parts = [link.find_parent("ul").previous_sibling for link in entries]
    assert parts == ["Part 1. Lines", "Part 2. Sizes"]


def test_a_drawing_keeps_its_links_and_has_ids_of_its_own(tmp_path):
    name = "images/multi-head.svg"
    embedded = f'![one][{name}]\n\n[{name}]: data:image/png;base64,AA "{name}"'
    drawing = page_of(tmp_path, SECTIONS + embedded).svg
    assert drawing["aria-label"] == "one"
    assert drawing.marker["id"].startswith("multi-head-")
    assert f"url(#{drawing.marker['id']})" in drawing.style.text
    assert drawing.a["href"] == "#multi-head-attention"
    assert drawing["role"] == "group", "a screen reader hides the links of an image"


def test_a_formula_leads_to_the_code_that_computes_it(tmp_path):
    cells = [
        "# Part\n\nFirst,\n\n$$a + b$$\n\nthen,\n\n$$c$$\n<!-- code: late -->",
        "And\n\n$$d$$\n<!-- code: none -->",
        new_code_cell("@example\ndef check_nothing():\n    pass"),
        new_code_cell("def add(a, b):\n    return a + b"),
        new_code_cell("def early():\n    pass\n\n\ndef late():\n    pass"),
        "The end,\n\n$$e$$",
    ]
    page = page_of(tmp_path, *cells)
    found = [(link["href"], link.code.text) for link in page.find_all(class_="to-code")]
    assert found == [("#code-2", "add"), ("#code-3", "late")]
    assert page.find(id="code-2").code.text.startswith("def add")


# Folds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        (hidden("show()", DRAWN), "code of this figure 1 line"),
        (hidden("x = 1"), "set-up code 1 line"),
        (hidden("def a(): ..."), "code: a 1 line"),
        (hidden("class A: ...\n" + "def b(): ...\n" * 4), "code: A, b, b and 2 more 5 lines"),
        (new_code_cell("def long():\n" + "    pass\n" * 45), None),
        (hidden('published("steps")', DRAWN), None),
    ],
)
def test_only_what_is_tagged_is_folded_under_what_it_is_for(tmp_path, cell, label):
    fold = page_of(tmp_path, "# Part", cell).find("details", class_="fold")
    assert (fold and fold.summary.text) == label


def test_before_the_first_part_everything_is_set_up_in_one_fold(tmp_path):
    cells = hidden("def f(): ..."), "*Tables.*", hidden("x = 1")
    [fold] = page_of(tmp_path, "Hello.", *cells, "# Part", "Prose.").find_all("details", "fold")
    assert len(fold.find_all("pre")) == 2
    assert "Tables." in fold.text
    assert "Hello" not in fold.text
    assert "Prose" not in fold.text


def test_the_engine_room_is_one_fold_without_folds_inside(tmp_path):
    page = page_of(tmp_path, *ROOM)
    [room] = page.find_all("details", class_="fold")
    assert room.summary.h2["id"] == "engine-room"
    assert {"faster", "quick", "deep", "files"} <= {tag["id"] for tag in room.find_all(id=True)}
    assert len(room.find_all("pre")) == 3
    assert len(room.select("details.cell[open]")) == 3
    for outside in ("Story", "In sight.", "A thing"):
        assert page.find(string=outside).find_parent("details") is None


def test_a_check_is_open_and_can_be_folded_to_its_tick_unless_it_holds_an_idea(tmp_path):
    passed = new_output("stream", name="stdout", text="✓ it holds")
    code = "def helper():\n    pass\n\n\n@example\ndef check_it_holds():\n    pass"
    idea = code.replace("def helper", "class Idea").replace("it_holds", "more")
    page = page_of(tmp_path, "# Part", *(new_code_cell(c, outputs=[passed]) for c in (code, idea)))
    check, idea = page.find_all("details")
    for cell, name in ((check, "✓ it holds"), (idea, "Idea 7 lines")):
        assert cell.has_attr("open")
        assert cell.summary.text.startswith(name)
        assert cell.find(class_="code")
    assert check.find(class_="output")
    assert not idea.find(class_="output"), "what is shown stays in sight"


def test_exercises_and_what_is_looked_up_are_folded_under_their_headings(tmp_path):
    text = '<a id="try-it"></a>\n## Try it\n\nDo.\n\n## Next\n\nOpen.'
    words = '<a id="glossary"></a>\n## Words'
    page = page_of(tmp_path, "# Part", text, words, hidden("x = 1"), "# Part 2\n\nStory.")
    exercise, words, code = page.find_all("details")
    assert exercise.summary.h3["id"] == "try-it"
    assert exercise.p.text == "Do."
    assert not exercise.summary.a, "a summary may hold no link"
    assert words.summary.h3["id"] == "glossary"
    assert words.details is code
    for said in ("Open.", "Story."):
        assert page.find(string=said).find_parent("details") is None


# The margin ---------------------------------------------------------------------------------------


def test_a_mark_that_closes_a_passage_is_for_the_margin(tmp_path):
    text = "A mark such as (§3.1) is explained. It *closes* $a < b$. (§3.2, §4) More & more.\n(§5)"
    page = page_of(tmp_path, "# Part", text)
    assert [mark.text for mark in page.find_all(class_="mark")] == ["(§3.2, §4)", "(§5)"]
    assert page.find_all("p")[-1].text.endswith("(§3.2, §4) More & more.\n(§5)")


def test_every_box_of_the_small_map_leads_somewhere():
    headings = re.compile(r'<a id="([\w-]+)"></a>\n# #')
    anchors = {*headings.findall(build.SCRIPT.read_text("utf-8"))}
    built = {*" ".join([*margin.BUILT.values(), margin.PARTS]).split()}
    assert built - anchors == set()


# Code and outputs ---------------------------------------------------------------------------------


def test_code_and_output_are_escaped_and_progress_is_not_shown(tmp_path):
    code = 'def f(x):  # one\n    return not x if x else "<b>" + 1.5 & x'
    printed = new_output("stream", name="stdout", text="<b>&amp;")
    progress = new_output("stream", name="stderr", text="50%|##")
    page = page_of(tmp_path, new_code_cell(code, outputs=[printed, progress]))
    assert page.find(class_="code").text.strip() == code
    assert [output.text.strip() for output in page.find_all(class_="output")] == ["<b>&amp;"]


def test_tables_of_pandas_lose_their_styling(tmp_path):
    frame = pd.DataFrame({"word": ["Hund", "Katze"], "count": [1200, -7]})
    styled = frame.style.hide().set_caption("Counts.")
    [table] = page_of(tmp_path, shown({"text/html": styled.to_html()})).find_all("table")
    assert [cell.text for cell in table.find_all(class_="num")] == ["count", "1200", "−7"]
    assert not table.find_all(style=True)
    assert table.find_parent("figure").figcaption.text == "Counts."
