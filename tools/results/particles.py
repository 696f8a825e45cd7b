"""What does one word carry? Pairs of German sentences that differ in their separable particle only.

    python -m tools.results.particles measure   swap vectors of the memory in every pair

A pair counts if both sentences have equally many subwords, and the model's own translation of each
contains one of the English phrases listed for its verb and particle, and none of those listed for
the other.
"""

import dataclasses
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

import torch

import the_annotated_transformer as at
from tools import records

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


@dataclasses.dataclass(frozen=True)
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
ENGLISH_PARTICLES = {f"▁{word}" for word in "at away by down off past through up".split()}
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


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sentences, the number of the verb among their words, and the English of the particles."""

    words: tuple[list[str], list[str]]
    verb: int
    english: tuple[str, str]
    origin: str  # "template" or "Multi30k"


def templates() -> Iterator[Pair]:
    """Subject, verb, object and particle, in all combinations."""
    for verb in VERBS:
        for subject, thing in itertools.product(SUBJECTS, verb.objects):
            before = subject.split()
            sentences = tuple(
                [*before, verb.verb, *thing.split(), particle, "."] for particle in verb.particles
            )
            yield Pair(sentences, len(before), verb.english, "template")


def from_corpus(sentences: Iterable[str]) -> Iterator[Pair]:
    """Sentences that end in a particle of a listed verb, and the same with the other particle."""
    for sentence, verb in itertools.product(sentences, VERBS):
        words = re.findall(r"\w+|[^\w\s]", sentence)
        ends = words[-1:] == ["."] and words[-2] in verb.particles
        if not ends or words.count(verb.verb) != 1:
            continue
        pair = tuple([*words[:-2], particle, "."] for particle in verb.particles)
        yield Pair(pair, words.index(verb.verb), verb.english, "Multi30k")


def text_of(words: Sequence[str]) -> str:
    return re.sub(r" ([.,])", r"\1", " ".join(words))


def places_of(subwords: at.Subwords, words: Sequence[str]) -> list[range]:
    """Of each word the places of its subwords."""
    places = []
    start = 0
    for word in words:
        glued = word in ".,"  # a mark of a space would stand before it
        [ids] = subwords.encode([f"a{word}" if glued else word])
        length = 1 if glued else len(ids)
        places.append(range(start, start + length))
        start += length
    return places


def counts(pair: Pair, written: Sequence[str]) -> bool:
    """Is each translation right, by the phrases that stand beside the verb?"""
    found = [[bool(re.search(phrase, text)) for phrase in pair.english] for text in written]
    return found == [[True, False], [False, True]]


@torch.no_grad()
def states_by_layer(model: at.EncoderDecoder, src: torch.Tensor) -> list[torch.Tensor]:
    """The encoder's states before each layer, and behind the last one."""
    states = [model.src_embed(src)]
    for layer in model.encoder.layers:
        states.append(layer(states[-1], None))
    return states


@torch.no_grad()
def memory_from(model: at.EncoderDecoder, states: torch.Tensor, depth: int) -> torch.Tensor:
    """The memory that follows from states before layer `depth`."""
    for layer in model.encoder.layers[depth:]:
        states = layer(states, None)
    return model.encoder.norm(states)


def target_of(translator: at.Translator, source: torch.Tensor) -> torch.Tensor:
    """The beam's translation of a source: (1, T), with start and end."""
    batch = at.Batch(source)
    limit = at.length_cap(source.size(1), translator.max_len)
    row = at.beam_search(translator.model, batch.src, batch.src_mask, limit)
    return row[:, row[0] != at.PAD]


def shifts(
    translator: at.Translator,
    targets: Sequence[torch.Tensor],
    before: torch.Tensor,
    after: torch.Tensor,
) -> dict[str, float]:
    """How log p(A) - log p(B) falls from one memory to another, by tokens of the targets.

    "particle" sums over English particles, "others" over all other tokens.
    """
    found = {"particle": 0.0, "others": 0.0}
    for sign, target in zip((1, -1), targets, strict=True):
        one, other = (
            at.log_probabilities(translator.model, each, target) for each in (before, after)
        )
        for token, change in zip(target[0, 1:].tolist(), (one - other).tolist(), strict=True):
            word = translator.vocabularies[1].words[token]
            found["particle" if word in ENGLISH_PARTICLES else "others"] += sign * change
    return {name: round(shift, 4) for name, shift in found.items()}


def measured(translator: at.Translator, pair: Pair) -> dict | None:
    """The shift from A's memory to B's, and to mixed ones; None for a pair that does not count."""
    model = translator.model
    subwords = translator.vocabularies[0]
    texts = [text_of(words) for words in pair.words]
    ids = [[*part, at.END] for part in subwords.encode(texts, "de")]
    places = places_of(subwords, pair.words[0])
    if not len(ids[0]) == len(ids[1]) == places[-1].stop + 1:
        return None
    written = at.translate(translator, texts, at.beam_search)
    if not counts(pair, written):
        return None
    verb = list(places[pair.verb])
    particle = list(places[-2])
    groups = {"verb": verb, "particle": particle, "everything": list(range(len(ids[0])))}
    sources = [torch.tensor([each]) for each in ids]
    targets = [target_of(translator, source) for source in sources]
    states = [states_by_layer(model, source) for source in sources]
    first, second = (memory_from(model, each[-1], len(each) - 1) for each in states)
    by_layer = []
    for depth, both in enumerate(zip(*states, strict=True)):
        mixed = memory_from(model, at.swapped(*both, verb), depth)
        by_layer.append(shifts(translator, targets, first, mixed))
    return {
        "sentences": texts,
        "written": written,
        "origin": pair.origin,
        "swapped": {
            name: shifts(translator, targets, first, at.swapped(first, second, group))
            for name, group in groups.items()
        },
        "verb by layer": by_layer,
    }


@records.once("particles")
def measure() -> dict:
    """Every pair of the templates and of Multi30k's own sentences, by the shipped model."""
    translator = at.load_trained_model("pretrained", torch.device("cpu"))
    corpus = at.find_corpus("multi30k")
    own = itertools.chain(*(corpus.pairs(name) for name in corpus.splits if name != "train"))
    pairs = [*templates(), *from_corpus(source for source, _ in own)]
    found = [each for pair in pairs if (each := measured(translator, pair))]
    return {"made": records.made_with_shipped(), "tried": len(pairs), "pairs": found}


main = records.command_line(measure=measure)

if __name__ == "__main__":
    sys.exit(main())
