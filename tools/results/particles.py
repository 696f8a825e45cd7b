"""Separable verbs that the shipped model translates, and what may stand before their particle.

Nothing imports this list yet: it is kept to measure at large what `table_of_swap` shows of a pair.
"""

from dataclasses import dataclass

SUBJECTS = (
    "Ein Mann", "Eine Frau", "Ein Junge", "Ein Mädchen", "Ein kleines Kind", "Ein alter Mann",
    "Eine junge Frau", "Ein Arbeiter",
)  # fmt: skip
THINGS = ("den Ball", "einen Ball", "einen Stein", "ein Kind", "die Tür", "das Fenster", "ein Buch")
PLACES = ("den Hügel", "die Treppe", "den Berg", "die Straße")
PEOPLE = (  # whose dative looks like their accusative
    "Frauen", "Menschen", "Personen", "zwei Frauen", "zwei Personen", "drei Menschen", "Studenten",
    "Touristen",
)  # fmt: skip


@dataclass(frozen=True)
class Verb:
    """A verb with two particles, the English of each, and what may stand between."""

    verb: str
    particles: tuple[str, str]
    english: tuple[str, str]  # patterns
    objects: tuple[str, ...]


UP = r"\bup\b|\bclimbs (?!.*down)"
DOWN = r"\bdown\b"
PAST = r"\bby\b|\bpast\b"
ON = ("", "auf der Straße", "im Park")
VERBS = (  # found by trying which separable verbs the model translates at all
    Verb("sieht", ("zu", "an"), (r"watch", r"look\w* at"), PEOPLE),
    Verb("schaut", ("zu", "an"), (r"watch", r"look\w* at"), PEOPLE),
    Verb("sieht", ("an", "durch"), (r"look\w* at", r"look\w* through"), THINGS),
    Verb("schaut", ("an", "durch"), (r"look\w* at", r"look\w* through"), THINGS),
    *(
        Verb(verb, ("hinauf", "hinunter"), (UP, DOWN), PLACES)
        for verb in ("geht", "läuft", "rennt", "klettert", "fährt")
    ),
    *(Verb(verb, ("vorbei", "weg"), (PAST, r"\baway\b"), ON) for verb in ("geht", "läuft")),
    Verb("springt", ("hoch", "herunter"), (r"\bup\b|in the air", r"down|off"), ("",)),
)
