"""Common wrong answers: how they are written, and how they are loaded.
 exercises/wrong/SHEET.py calls `wrong` once for each: the task, the points that the answer
deserves, the mistake in words (for tutors), and the code that stands in the task's cell instead of
the solution.
"""

from dataclasses import dataclass

from exercises.course.tasks import HERE, load

REGISTER: list["Wrong"] = []


@dataclass(frozen=True)
class Wrong:
    task: str
    points: float
    why: str
    code: str


def wrong(task: str, points: float, why: str, code: str) -> None:
    """Note a wrong answer."""
    REGISTER.append(Wrong(task, points, why, code))


def wrong_answers(sheet: str) -> list[Wrong]:
    """The wrong answers to a sheet."""
    REGISTER.clear()
    load(HERE / "wrong" / f"{sheet}.py")
    return list(REGISTER)
