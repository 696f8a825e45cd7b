"""What is written about a folder of hand-ins: tables for lecturers, feedback for students."""

import csv
import io
import re
from dataclasses import dataclass, field
from pathlib import Path

from exercises.course import sheets
from exercises.course.hand_in import Mark
from exercises.course.reports import Verdict
from exercises.course.sheets import Heading
from exercises.course.tasks import Task
from tools.records import write_text

Roster = dict[str, dict[str, str]]  # the rows of the list of students, by student


@dataclass
class Sheet:
    """A sheet, its tasks, and what is known about each student who handed it in."""

    name: str
    tasks: list[Task]
    headings: dict[str, Heading]  # by task
    paths: dict[str, Path]  # by student
    skipped: dict[str, list[Path]]  # by student: several files, of which none is marked
    reports: dict[str, dict[str, str]]  # by task and student, without empty ones
    verdicts: dict[str, dict[str, Verdict]]  # by task and student
    decided: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)  # by student

    def most(self) -> float:
        return sum(task.points + task.tutor for task in self.tasks)

    def with_reports(self) -> list[Task]:
        return [task for task in self.tasks if task.tutor]

    def verdict(self, task: Task, student: str) -> Verdict:
        return self.verdicts[task.name].get(student, Verdict())

    def total(self, student: str) -> float:
        """The points of the tests and of the tutor; a report that nobody has read has none."""
        by_tutor = (self.verdict(task, student).points or 0 for task in self.with_reports())
        return sum(self.marks[student].points.values()) + sum(by_tutor)


# Tables -------------------------------------------------------------------------------------------


def harmless(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    text = re.sub(r"[\x00-\x1f]+", " ", text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def write_table(path: Path, rows: list[list]) -> None:
    """Write a CSV that spreadsheets open: Excel needs the mark at its beginning."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [harmless(cell) if isinstance(cell, str) else f"{cell:g}" for cell in row] for row in rows
    )
    write_text(path, "\ufeff" + text.getvalue())


def columns_known(roster: Roster) -> list[str]:
    return [*next(iter(roster.values()), {"student": ""})]


def known_of(student: str, roster: Roster) -> list[str]:
    """The beginning of a row: what the list of students says."""
    row = roster.get(student, {"student": student})
    return [row.get(column, "") for column in columns_known(roster)]


def table_of(sheet: Sheet, roster: Roster) -> list[list]:
    """A row for each hand-in, a column for each task and each report, the sum, remarks."""
    columns = columns_known(roster)
    for task in sheet.tasks:
        columns.append(f"{task.name} ({task.points:g})")
        if task.tutor:
            columns.append(f"{task.name}, report ({task.tutor:g})")
    rows = [[*columns, f"sum ({sheet.most():g})", "remarks"]]
    for student, mark in sheet.marks.items():
        row = known_of(student, roster)
        for task in sheet.tasks:
            row.append(mark.points[task.name])
            if task.tutor:
                points = sheet.verdict(task, student).points
                row.append("" if points is None else points)
        said = [f"{name}: {message}" for name, message in mark.messages.items() if message]
        said += [*mark.errors, *(f"refused: {what}" for what in mark.refused)]
        rows.append([*row, sheet.total(student), "; ".join(said)])
    return rows


def totals_of(found: list[Sheet], roster: Roster) -> list[list]:
    """A row for each student, a column for each sheet, the sum."""
    columns = [f"{sheet.name} ({sheet.most():g})" for sheet in found]
    rows = [[*columns_known(roster), *columns, f"sum ({sum(sheet.most() for sheet in found):g})"]]
    for student in sorted({*roster, *(name for sheet in found for name in sheet.marks)}):
        points = [sheet.total(student) if student in sheet.marks else "" for sheet in found]
        rows.append([*known_of(student, roster), *points, sum(each or 0 for each in points)])
    return rows


# Feedback -----------------------------------------------------------------------------------------


def feedback_on(sheet: Sheet, student: str) -> str:
    """What a student should know about a sheet: points, messages, errors, a tutor's words."""
    mark = sheet.marks[student]
    title = sheets.title_of(sheets.master(sheet.name))
    lines = [f"## {title}: {sheet.total(student):g} of {sheet.most():g} points", ""]
    for task in sheet.tasks:
        heading = sheet.headings[task.name]
        message = mark.messages[task.name]
        lines.append(
            f"- **{heading.number}. {heading.title}** {mark.points[task.name]:g} of "
            f"{task.points:g}{f': {message}' if message else ''}"
        )
        if task.tutor:
            lines.append(f"  - report: {said_by_tutor(sheet, task, student)}")
    if mark.errors:
        several = len(mark.errors) > 1
        lines += [
            "",
            "Errors, the first of which may cause the others:" if several else "Error:",
            "",
        ]
        lines += [f"- {error}" for error in mark.errors]
    return "\n".join(lines) + "\n"


def said_by_tutor(sheet: Sheet, task: Task, student: str) -> str:
    verdict = sheet.verdict(task, student)
    if student not in sheet.reports[task.name]:
        return "none is in its place"
    points = "not read yet" if verdict.points is None else f"{verdict.points:g} of {task.tutor:g}"
    points += " for an earlier version" if verdict.changed else ""
    return f"{points}. {' '.join(verdict.comment.split())}" if verdict.comment else points


def write_feedback(folder: Path, found: list[Sheet]) -> None:
    """Write a file for each student, with all sheets."""
    for student in {name for sheet in found for name in sheet.marks}:
        parts = [feedback_on(sheet, student) for sheet in found if student in sheet.marks]
        write_text(folder / f"{student}.md", "\n".join([f"# {student}\n", *parts]))
