"""The reports of all students on one task, in one file, in which a tutor types the points.

## ADA
points: 1.5
A good measurement, but of one seed only.

> What Ada wrote. Her lines begin with >, so that nothing in them counts as points.
"""

import functools
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from exercises.course import sheets
from exercises.course.hand_in import Cell, cells_of_script
from exercises.course.sheets import Heading
from exercises.course.tasks import HERE
from tools.records import write_text

HEAD = """# {title}

Up to {most:g} points. Type them behind `points:`, and below that line what the student should read.
Then run `make grade` again. A line with READ AGAIN says that a report has changed since: delete it
when you have read the new text. The points count as they stand.

{question}

{wanted}
"""


CHANGED = "READ AGAIN"
STUDENT = r"(?m)^## (.*)\n"


@dataclass(frozen=True)
class Verdict:
    """What a tutor typed about a report; no points as long as nobody has read it."""

    points: float | None = None
    comment: str = ""
    changed: bool = False  # the report is another than the one that the tutor has read


# What a student wrote -----------------------------------------------------------------------------


def section_of(cells: list[Cell], task: str) -> list[str]:
    """The lines of text from the heading of a task, or the cell of its report, to the next task."""
    lines, inside = [], False
    for cell in cells:
        if cell.kind == "markdown":
            found = sheets.TASK.search(cell.source) or sheets.REPORT.search(cell.source)
            inside = found[1] == task if found else inside
            if inside:
                lines += [*cell.source.split("\n"), ""]
    return lines


@functools.cache
def question_of(sheet: str, task: str) -> list[str]:
    """What the hand-out says on a task."""
    return section_of(cells_of_script(sheets.blank(sheets.master(sheet))), task)


def report_of(cells: list[Cell], sheet: str, task: str) -> str:
    """What a student added to the text of a task, wherever it stands there."""
    given = {line.strip() for line in question_of(sheet, task)} - {""}
    lines = [line for line in section_of(cells, task) if line.strip() not in given]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


# The file -----------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Text as a quotation; all kinds of line ends count, so that no line escapes it."""
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def wanted_in(sheet: str, number: int) -> str:
    """What the guide for teachers says about a report."""
    guide = (HERE / "README.md").read_text("utf-8")
    found = re.search(rf"(?m)^\| {sheet[0]}, {number} \| ([^|]*) \| ([^|]*) \|$", guide)
    return f"Numbers to expect: {found[1]}\n\nWhat to look for: {found[2]}" if found else ""


def file_of(folder: Path, sheet: str, task: str, tutor: str = "") -> Path:
    """The file for the reports on a task, and for a tutor if several share the work."""
    tutor = tutor.replace("/", "-")
    return folder / (f"{sheet}-{task}, {tutor}.md" if tutor else f"{sheet}-{task}.md")


def files_of(folder: Path, sheet: str, task: str) -> list[Path]:
    """The files for the reports on a task, of all tutors."""
    return [*folder.glob(f"{sheet}-{task}.md"), *sorted(folder.glob(f"{sheet}-{task}, *.md"))]


def write(
    path: Path,
    sheet: str,
    heading: Heading,
    most: float,
    found: dict[str, str],
    verdicts: dict[str, Verdict],
) -> None:
    """Write a file: `found` has the reports by student, `verdicts` what a tutor typed before."""
    question = quoted("\n".join(question_of(sheet, heading.name)).strip())
    title = f"Sheet {sheet[0]}, task {heading.number}. {heading.title}"
    wanted = wanted_in(sheet, heading.number)
    parts = [HEAD.format(title=title, most=most, wanted=wanted, question=question)]
    for student, text in sorted(found.items()):
        verdict = verdicts.get(student, Verdict())
        points = "" if verdict.points is None else f" {verdict.points:g}"
        again = f"{CHANGED}: the report has changed. Delete this line.\n" if verdict.changed else ""
        comment = f"{verdict.comment}\n" if verdict.comment else ""
        report = quoted(text)
        parts.append(f"## {student}\npoints:{points}\n{again}{comment}\n{report}\n")
    write_text(path, "\n".join(parts))


def text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not in UTF-8: save it so") from None


def texts_in(path: Path) -> dict[str, str]:
    """The reports in a file, by student."""
    _, *parts = re.split(STUDENT, text_of(path))
    found = {
        name.strip(): report_in(body) for name, body in zip(parts[::2], parts[1::2], strict=True)
    }
    return {student: re.sub("(?m)^> ?", "", report) for student, report in found.items()}


def read(path: Path, most: float, found: dict[str, str]) -> dict[str, Verdict]:
    """What a tutor typed, by student; `found` has the reports as they are now.

    ValueError names the line that cannot be understood.
    """
    text = text_of(path)
    verdicts = {}
    parts = re.split(STUDENT, text)
    line = 1 + parts[0].count("\n")
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        student, place = name.strip(), f"{path}, line {line}"
        verdict = verdict_of(body, most, f"{place} ({student})")
        if student in verdicts:
            raise ValueError(f"{place}: {student} stands here twice; delete one of the two")
        if student in found:
            same = report_in(body) == quoted(found[student])
            changed = verdict.points is not None and (verdict.changed or not same)
            verdicts[student] = replace(verdict, changed=changed)
        elif verdict != Verdict():
            raise ValueError(
                f"{place}: {student} has no such report. Put it back, or delete these lines"
            )
        line += 1 + body.count("\n")
    return verdicts


def report_in(body: str) -> str:
    """The report, still quoted, below a student's name."""
    return "\n".join(line.rstrip() for line in body.split("\n") if line.startswith(">"))


def verdict_of(body: str, most: float, place: str) -> Verdict:
    """What a tutor typed between a student's name and report."""
    typed = [line.rstrip() for line in body.split("\n") if not line.startswith(">")]
    points = [line for line in typed if line.lower().startswith("points:")]
    if len(points) != 1:
        raise ValueError(f"{place}: one line with 'points:' is needed, not {len(points)}")
    typed.remove(points[0])
    comment = "\n".join(line for line in typed if not line.startswith(CHANGED)).strip()
    changed = any(line.startswith(CHANGED) for line in typed)
    number = points[0].partition(":")[2].strip()
    if not number:
        return Verdict(None, comment)
    return Verdict(number_of(number, most, place), comment, changed)


def number_of(typed: str, most: float, place: str) -> float:
    """Points as typed, with a point or a comma; ValueError if they are no number up to `most`."""
    try:
        value = float(typed.replace(",", "."))
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise ValueError(f"{place}: points are a number from 0 to {most:g}, not '{typed}'")
    return value
