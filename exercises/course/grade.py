"""Mark a folder of hand-ins, FOLDER/STUDENT/1_attention.ipynb and so on.

    python -m exercises.course.grade mark FOLDER

writes into FOLDER/marks a table for each sheet, totals.csv, the reports to read, and a file with
feedback for each student. Hand-ins that have not changed since are not run again.
"""

import csv
import hashlib
import io
import json
import os
import random
import re
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import tyro

from exercises.course import reports, sheets
from exercises.course.hand_in import HUNT, SCRIPT, Limits, Mark, mark_file, read_hand_in, sheet_of
from exercises.course.tables import Roster, Sheet, table_of, totals_of, write_feedback, write_table
from exercises.course.tasks import HERE, SHEETS, tasks_of
from tools.records import command_line, write_text

MARKS = "marks"
ROSTER = "students.csv"
DECISIONS = "decisions.csv"
PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".svg")
SETTINGS = {"seconds": 60, "gigabytes": 2}


# What lies in the folder --------------------------------------------------------------------------


def student_of(path: Path, folder: Path) -> str:
    """Whose a file is: the folder's name, without what Moodle adds to it."""
    name = path.relative_to(folder).parts[0]
    name = re.sub(r"_\d+_assignsubmission_.*", "", name)
    return plain_name(name)


def plain_name(name: str) -> str:
    """A name as it is compared: macOS takes letters and accents apart."""
    return unicodedata.normalize("NFC", " ".join(name.split()))


def files_in(folder: Path) -> Iterator[Path]:
    """The files in a folder and below, but for hidden ones, copies of ours, and pictures."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith((".", "__")) for part in parts) or parts[0] == MARKS
        ours = path.name in (SCRIPT.name, HUNT.name, ROSTER, DECISIONS)
        picture = path.suffix.lower() in PICTURES
        if path.is_file() and not hidden and not ours and not picture:
            yield path


def hand_ins_of(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """The files by sheet and student, who should have one of each; ValueError if there are none."""
    found: dict[str, dict[str, list[Path]]] = {}
    for path in files_in(folder):
        if path.suffix not in (".py", ".ipynb"):
            print(f"left out, since it ends with neither .py nor .ipynb: {path}")
            continue
        sheet = sheet_of(path)
        if not sheet:
            print(f"left out, since neither name nor text says which sheet it is: {path}")
        elif path.parent == folder:
            print(f"left out, since it lies in no student's folder: {path}")
        else:
            student = student_of(path, folder)
            found.setdefault(sheet, {}).setdefault(student, []).append(path)
    if not found:
        raise ValueError(f"{folder} holds no sheet: hand-ins lie at {folder}/NAME/{SHEETS[0]}.py")
    return dict(sorted(found.items()))


def rows_in(path: Path, *needed: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV with these columns, each with its place; ValueError if it is broken."""
    if not path.exists():
        return
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not in UTF-8: save it as CSV in UTF-8") from None
    heading = text.partition("\n")[0]
    delimiter = max(",;\t", key=heading.count)  # as a spreadsheet has saved it
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for column in needed:
            if column not in (table.fieldnames or ()):
                raise ValueError(f"{path} is no table with a column '{column}'")
        for row in table:
            place = f"{path}, line {table.line_num}"
            if None in row or None in row.values():
                raise ValueError(f"{place}: not as many cells as headings")
            if any(row.values()):
                yield place, row | {"student": plain_name(row["student"])}
    except csv.Error as error:
        raise ValueError(f"{path} is no table: {error}") from error


def read_roster(path: Path) -> Roster:
    """The rows of the list of students by name, none without a list; ValueError if it is broken."""
    roster: Roster = {}
    for place, row in rows_in(path, "student"):
        if row["student"] and row["student"] in roster:
            raise ValueError(f"{place}: {row['student']} stands there twice")
        roster[row["student"]] = row
    roster.pop("", None)
    return roster


def read_decisions(path: Path, found: list[Sheet]) -> None:
    """What tutors decide against a test; ValueError for a student or a task that is not there."""
    by_name = {sheet.name: sheet for sheet in found}
    for place, row in rows_in(path, "student", "sheet", "task", "points", "reason"):
        sheet, student = by_name.get(row["sheet"]), row["student"]
        if not sheet or student not in (*sheet.paths, *sheet.skipped):
            raise ValueError(f"{place}: {student} has not handed in '{row['sheet']}'")
        points = {task.name: task.points for task in sheet.tasks}
        if row["task"] not in points:
            raise ValueError(f"{place}: no task '{row['task']}', but {', '.join(points)}")
        number = reports.number_of(row["points"], points[row["task"]], place)
        sheet.decided[student, row["task"]] = number, row["reason"]


# Results, which are kept --------------------------------------------------------------------------


def read_results(path: Path) -> dict:
    """Settings and marks of earlier markings; ValueError if the file is damaged."""
    if not path.exists():
        return {"settings": {}, "marks": {}}
    try:
        kept = json.loads(path.read_text("utf-8"))
        return {"settings": kept["settings"], "marks": kept["marks"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged: delete it, and all hand-ins are marked again"
        ) from error


def digest_of(path: Path, sheet: str, settings: dict) -> str:
    """Changes with the hand-in, the tests of its sheet and the settings."""
    tests = HERE / "tests" / f"{sheet}.py"
    said = json.dumps(settings, sort_keys=True).encode()
    return hashlib.sha256(b"\0".join([path.read_bytes(), tests.read_bytes(), said])).hexdigest()


def mark_sheet(sheet: Sheet, kept: dict, workers: int, save: Callable[[], None]) -> None:
    """Mark the hand-ins that are new or have changed. Each result is saved at once."""
    settings = kept["settings"]
    limits = Limits(
        settings["seconds"], max(30 * settings["seconds"], 600), int(settings["gigabytes"] * 2**30)
    )
    old = kept["marks"].get(sheet.name, {})
    known = {student: old[student] for student in sheet.skipped if student in old}
    kept["marks"][sheet.name] = known
    changed = {}
    for student, path in sheet.paths.items():
        digest = digest_of(path, sheet.name, settings)
        if old.get(student, {}).get("digest") == digest:
            known[student] = old[student]
        else:
            changed[student] = digest

    def marked(student: str) -> Mark:
        return mark_file(sheet.paths[student], sheet.tasks, settings["seed"], limits)

    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for student, mark in zip(changed, pool.map(marked, changed), strict=True):
            known[student] = {"digest": changed[student]} | asdict(mark)
            points = sum(mark.points.values())
            before = sum(old[student]["points"].values()) if student in old else points
            was = f" (was {before:g})" if before != points else ""
            print(f"{sheet.name}  {points:5g}{was}  {student}", flush=True)
            for what in mark.refused:
                print(f"    the marker has refused: {what}")
            save()
    for student in sheet.paths:
        result = {name: value for name, value in known[student].items() if name != "digest"}
        sheet.marks[student] = Mark(**result)
    for (student, task), (points, reason) in sheet.decided.items():
        if mark := sheet.marks.get(student):  # what the tests found is kept as it was
            mark.points = mark.points | {task: points}
            mark.messages = mark.messages | {task: f"decided by a tutor: {reason}"}


# The command --------------------------------------------------------------------------------------


def sheet_with(name: str, files: dict[str, list[Path]], folder: Path) -> Sheet:
    """A sheet before its marking: its reports, and what tutors typed about them so far."""
    headings = {heading.name: heading for heading in sheets.headings_of(sheets.master(name))}
    tasks = tasks_of(name)
    paths = {student: own[0] for student, own in files.items() if len(own) == 1}
    skipped = {student: own for student, own in files.items() if len(own) > 1}
    sheet = Sheet(name, tasks, headings, paths, skipped, {}, {})
    for task in sheet.with_reports():
        kept = {}
        for path in reports.files_of(folder, name, task.name):
            kept |= reports.texts_in(path)
        texts = {student: kept.get(student, "") for student in skipped}  # as the tutor has read it
        texts |= {student: report_in(path, name, task.name) for student, path in paths.items()}
        sheet.reports[task.name] = {student: text for student, text in texts.items() if text}
    read_verdicts(sheet, folder)
    return sheet


def report_in(path: Path, sheet: str, task: str) -> str:
    try:
        return reports.report_of(read_hand_in(path), sheet, task)
    except ValueError:
        return ""


def read_verdicts(sheet: Sheet, folder: Path) -> None:
    """Read what tutors typed about the reports; ValueError where it makes no sense."""
    for task in sheet.with_reports():
        found = sheet.verdicts[task.name] = {}
        for path in reports.files_of(folder, sheet.name, task.name):
            typed = reports.read(path, task.tutor, sheet.reports[task.name])
            if again := typed.keys() & found.keys():
                raise ValueError(f"{path}: {min(again)} also stands in the file of another tutor")
            found |= typed


def write_reports(sheet: Sheet, folder: Path, roster: Roster) -> None:
    """Write the reports of a sheet, a file for each task; with a column `tutor`, for each tutor."""
    for task in sheet.with_reports():
        before = reports.files_of(folder, sheet.name, task.name)
        shares: dict[Path, dict[str, str]] = {}
        for student, text in sheet.reports[task.name].items():
            tutor = roster.get(student, {}).get("tutor", "").strip()
            path = reports.file_of(folder, sheet.name, task.name, tutor)
            shares.setdefault(path, {})[student] = text
        for path, texts in shares.items():
            heading, verdicts = sheet.headings[task.name], sheet.verdicts[task.name]
            reports.write(path, sheet.name, heading, task.tutor, texts, verdicts)
            unread = sum(sheet.verdict(task, student).points is None for student in texts)
            if unread:
                print(f"{unread} of {len(texts)} reports to read: {path}")
            changed = [student for student in texts if sheet.verdict(task, student).changed]
            if changed:
                print(f"to read again, since they have changed: {', '.join(changed)} in {path}")
        for path in before:
            if path not in shares:  # the roster has changed
                path.unlink()


def mark_folder(
    folder: tyro.conf.Positional[Path],
    seed: int | None = None,
    workers: int = 0,
    seconds: float | None = None,
    gigabytes: float | None = None,
) -> None:
    """Mark the hand-ins in a folder, and count what tutors typed into the reports.

    Seed and limits stay as in the marking before unless they are given. One seed holds for the
    whole folder, so all students get the same random inputs.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: make grade FOLDER=… names one with hand-ins")
    marks = folder / MARKS
    results = marks / "results.json"
    roster = read_roster(folder / ROSTER)
    kept = read_results(results)
    given = {"seed": seed, "seconds": seconds, "gigabytes": gigabytes}
    kept["settings"] = (
        SETTINGS
        | {"seed": random.randrange(10**6)}
        | kept["settings"]
        | {name: value for name, value in given.items() if value is not None}
    )
    hand_ins = hand_ins_of(folder)
    found = [sheet_with(name, paths, marks / "reports") for name, paths in hand_ins.items()]
    read_decisions(folder / DECISIONS, found)
    for sheet in found:
        mark_sheet(sheet, kept, workers, lambda: write_text(results, json.dumps(kept, indent=1)))
        read_verdicts(sheet, marks / "reports")  # again: tutors may type while hand-ins run
        write_reports(sheet, marks / "reports", roster)
        write_table(marks / f"{sheet.name}.csv", table_of(sheet, roster))
    write_table(marks / "totals.csv", totals_of(found, roster))
    write_feedback(marks / "feedback", found)
    print(f"tables, reports and feedback: {marks} (seed {kept['settings']['seed']})")
    warn(found, roster)


def warn(found: list[Sheet], roster: Roster) -> None:
    """Say what a lecturer should look at."""
    students = {student for sheet in found for student in (*sheet.marks, *sheet.skipped)}
    for student in sorted(students - roster.keys()) if roster else ():
        print(f"not in {ROSTER}: {student}")
    for sheet in found:
        missing = sorted(roster.keys() - sheet.marks.keys() - sheet.skipped.keys())
        if missing:
            print(f"{len(missing)} of {len(roster)} have not handed in {sheet.name}:")
            print(f"    {', '.join(missing)}")
    for sheet in found:
        for student, paths in sheet.skipped.items():
            print(f"NOT MARKED: {student} has {len(paths)} files for {sheet.name}, keep one:")
            print("\n".join(f"    {path}" for path in paths))
    if not all(mark.shielded for sheet in found for mark in sheet.marks.values()):
        print("Some hand-ins were shielded by Python alone, not by the kernel: see worker.py.")


main = command_line(mark=mark_folder)

if __name__ == "__main__":
    raise SystemExit(main())
