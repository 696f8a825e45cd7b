"""The built-in captions: their splits, and whether their German and English are right.

The tables here repeat words of the grammar on purpose: a slip in one place must not excuse itself.
"""

import hashlib
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from the_annotated_transformer import builtin_corpus, caption_held_out, caption_sentence

GENDER = {
    "m": "Junge Jungen Mann Lehrer Gärtner Hund Welpe Welpen Affe Affen Ball Korb Drachen Brief Hut"
    " Mantel Schal Apfel Kuchen Roller Traktor Park Garten Wald See Baum Brunnen",
    "f": "Frau Tänzerin Kellnerin Katze Ziege Tasche Decke Flasche Zeitung Jacke Mütze Birne Orange"
    " Banane Wiese Kirche Schule Brücke Mauer Straße Bank",
    "n": "Kind Mädchen Kätzchen Kissen Buch Heft Hemd Brötchen Auto Fahrrad Haus Zelt Tor Dorf",
    "plural": "Jungen Männer Lehrer Gärtner Hunde Welpen Affen Bälle Körbe Drachen Briefe Hüte"
    " Mäntel Schals Äpfel Kuchen Roller Traktoren Bäume Frauen Tänzerinnen Kellnerinnen Katzen"
    " Ziegen Taschen Decken Flaschen Zeitungen Jacken Mützen Birnen Orangen Bananen Bänke Kinder"
    " Mädchen Kätzchen Kissen Bücher Hefte Hemden Brötchen Autos Fahrräder Häuser",
    "dative plural": "Jungen Männern Lehrern Gärtnern Hunden Welpen Affen Bäumen Frauen Katzen"
    " Tänzerinnen Kellnerinnen Ziegen Bänken Kindern Mädchen Kätzchen Autos Häusern",
}
NOUNS = {gender: set(words.split()) for gender, words in GENDER.items()}
ALL_NOUNS = set().union(*NOUNS.values())
WEAK = {"Junge": "Jungen", "Welpe": "Welpen", "Affe": "Affen"}  # nominative, other cases
# After each article: which nouns may follow, and the ending of an adjective before each of them.
AGREEMENT = {
    "ein": {"m": "er", "n": "es"}, "eine": {"f": "e"}, "einen": {"m": "en"},
    "einem": {"m": "en", "n": "en"}, "einer": {"f": "en"},
    "der": {"m": "e", "f": "en"}, "die": {"f": "e", "plural": "en"}, "das": {"n": "e"},
    "den": {"m": "en", "dative plural": "en"}, "dem": {"m": "en", "n": "en"},
    "im": {"m": "en", "n": "en"}, "am": {"m": "en", "n": "en"}, "ins": {"n": "e"},
    "zwei": {"plural": "e", "dative plural": "en"}, "drei": {"plural": "e", "dative plural": "en"},
}  # fmt: skip
PLURALS = {"child": "children", "man": "men", "woman": "women", "puppy": "puppies"}
PLURALS |= {"waitress": "waitresses", "bench": "benches", "scarf": "scarves"}
SEPARABLE = {
    "auf": "hebt heben wacht wachen isst essen", "an": "zieht ziehen schaut schauen probiert",
    "aus": "zieht ziehen", "ein": "packt packen", "weg": "wirft werfen", "mit": "bringt bringen",
    "vor": "liest lesen", "zu": "winkt winken hört hören schaut schauen", "herum": "läuft laufen",
}  # fmt: skip
TRAIN = builtin_corpus()["train"]
HELD_OUT = builtin_corpus()["val"] + builtin_corpus()["test"]
EVERY = TRAIN + HELD_OUT


def tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def forms(noun: str) -> str:
    return f"(?:{noun}|{PLURALS.get(noun, noun + 's')})"


def has_pair(english: str, word: str, noun: str) -> bool:
    """Does the adjective belong to the noun, or the noun to the verb as its object? By words."""
    if not word.split()[0].endswith("ing") or word == "interesting":
        described = rf"^The {forms(noun)} (?:who|that) .* (?:is|are) {word}\.$"
        return bool(re.search(rf"\b{word} {forms(noun)}\b|{described}", english, re.IGNORECASE))
    verb = rf"\b{word}\b(?! (?:up|along)\b)"
    direct = rf"{verb} (?:(?:an?|the|two|three) )?(?:\w+ )?{forms(noun)}\b"
    relative = rf"^The {forms(noun)} that (?:(?!\b(?:is|are)\b).)+ (?:is|are) {verb}"
    return bool(re.search(rf"{direct}|{relative}", english))


def test_sizes():
    sizes = {split: len(pairs) for split, pairs in builtin_corpus().items()}
    assert sizes == {"train": 3000, "val": 200, "test": 200}


def test_every_caption_is_one_tidy_sentence_of_bounded_length():
    for text in (text for pair in EVERY for text in pair):
        assert re.fullmatch(r"[A-ZÄÖÜ][a-zäöüß]*(,? [A-Za-zÄÖÜäöüß]+)*\.", text), text
        assert 5 <= len(tokens(text)) <= 16, text


def test_it_is_made_anew_alike_and_leaves_the_generator_alone():
    state = random.getstate()
    assert builtin_corpus.__wrapped__() == builtin_corpus()
    assert random.getstate() == state


def test_it_does_not_depend_on_the_order_of_sets():
    script = (
        "import hashlib, the_annotated_transformer as t;"
        "print(hashlib.sha256(repr(t.builtin_corpus()).encode()).hexdigest())"
    )
    root = Path(__file__).resolve().parent.parent
    other = {"0": "1"}.get(os.environ.get("PYTHONHASHSEED", ""), "0")
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env=os.environ | {"PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == hashlib.sha256(repr(builtin_corpus()).encode()).hexdigest()


def test_no_source_occurs_twice():
    assert len({german for german, _ in EVERY}) == len(EVERY)


@pytest.mark.parametrize("seed", range(3))
def test_one_german_caption_has_one_english_caption(seed):
    rng, known = random.Random(seed), {}
    for _ in range(10_000):
        german, english, _ = caption_sentence(rng)
        assert known.setdefault(german, english) == english


def test_only_things_are_described_as_objects():
    """In "die Frau, die das Kind umarmt" nobody can tell who hugs: it has two translations."""
    animals = "dog|cat|kitten|goat|puppy|puppie|monkey"
    for _, english in EVERY:
        assert not re.search(rf"(\bwho|\b(?:{animals})s? that) (?!is |are )", english), english


def test_every_held_out_word_occurs_three_times_in_training():
    for language in (0, 1):
        counts = Counter(word for pair in TRAIN for word in tokens(pair[language]))
        rare = {w for pair in HELD_OUT for w in tokens(pair[language]) if counts[w] < 3}
        assert not rare


def test_the_words_find_a_pair_where_it_is_and_nowhere_else():
    assert has_pair("Two red balls are new.", "red", "ball")
    assert has_pair("The balls that a dog is bringing to a boy are red.", "red", "ball")
    assert has_pair("A man is picking up three red balls in a park.", "picking up", "ball")
    assert has_pair("The men that two dogs are following are old.", "following", "man")
    assert not has_pair("A red ball is new.", "new", "car")
    assert not has_pair("The child who is eating up rolls is tired.", "eating", "roll")
    assert not has_pair("The ball that a man is looking for is red.", "looking at", "ball")


def test_held_out_pairs_are_absent_from_training_and_present_elsewhere():
    held_out = caption_held_out()
    leaks = [(e, pair) for _, e in TRAIN for pair in held_out if has_pair(e, *pair)]
    assert not leaks
    found = [{pair for pair in held_out if has_pair(e, *pair)} for _, e in HELD_OUT]
    assert all(found)
    assert len(set().union(*found)) > 0.8 * len(held_out)  # not a few pairs over and over


def test_words_of_held_out_pairs_are_known_from_other_pairs():
    text = " ".join(english for _, english in TRAIN)
    for word, noun in caption_held_out():
        assert len(re.findall(rf"\b{word}\b", text)) >= 3
        assert len(re.findall(rf"\b{forms(noun)}\b", text)) >= 3


@pytest.mark.parametrize(
    "german, english",
    [
        (r" hebt .* auf\.$", "is picking up"),  # separable, particle at the end of a main clause
        (r" aufhebt(,|\.$)", "is picking up"),  # and before its verb in a subordinate clause
        (r", weil .* \w+(t|en)\.$", "because"),  # verb last
        (r", während .* \w+(t|en)\.$", " while "),
        (r"^Während .*(t|en), \w+(t|en) ", "^While "),  # verb first after a clause
        (r"^(Im|In|Am|An|Auf|Unter|Vor) .*? (schläft|sitzt|wartet|steht) (ein|der|die|das) ", ", "),
        (r"^Der \w+, der ", " (who|that) is "),
        (r"^Der \w+, den .* ist \w+\.$", "^The .* that "),  # object of the relative clause
        (r"^Das \w+, das (ein|der) ", "^The .* that "),
        (r" (hilft|helfen) (einem|einer|der|dem) ", "help"),  # dative after a verb
        (r" (zwei|drei|den) (\w+en )?Kindern\b", "children"),  # dative plural
        (r" (den|einen) Jungen\b", " boy"),  # an ending in the singular
        (r" gibt (einem|einer|dem|der) .* (einen|eine|ein) ", " giving .* to "),
        (r" im (\w+en )?Park\b", " in the "),  # place: dative
        (r" in den (\w+en )?Park\b", " into the "),  # direction: accusative
        (r" ins ", " into the "),
        (r" am ", " by the "),
        (r" zwischen ", " between "),
        (r" trägt .*(Hut|Jacke|Mantel|Mütze)", "wearing"),  # one verb, two translations
        (r" trägt .*(Ball|Korb|Buch)", "carrying"),
        (r"\bkleine\w* (Kind|Junge|Mädchen)", "little"),  # one adjective, two translations
        (r"\bkleine\w* (Ball|Tasche|Haus)", "small"),
        (r"\bgroße\w* (Mann|Frau)", "tall"),
        (r"\bgroße\w* (Hund|Haus)", "big"),
        (r" (lesen|tragen|essen) ", " are (reading|wearing|carrying|eating) "),
        (r" einen \w+en Apfel", " a (small|big|sweet|fresh) apple"),
        (r" einen Apfel", " an apple"),
    ],
)
def test_phenomenon(german, english):
    both = [e for g, e in TRAIN if re.search(german, g) and re.search(english, e, re.IGNORECASE)]
    assert len(both) >= 3


@pytest.mark.parametrize("particle", SEPARABLE)
def test_separable_verbs_occur_in_two_pieces_and_in_one(particle):
    text = "\n".join(german for german, _ in EVERY)
    verbs = "|".join(SEPARABLE[particle].split())
    assert re.search(rf"\b(?:{verbs})\b [^,.]*\b{particle}\b[,.]", text)
    assert re.search(rf"\b{particle}(?:{verbs})\b[,.]", text)


def test_a_particle_ends_its_clause():
    only_particles = "weg|mit|zu|aus|herum"  # the others are prepositions or articles too
    for german, _ in EVERY:
        for found in re.finditer(rf"\b({only_particles})\b(.)", german):
            assert found[2] in ",.", german


def agreements(german: str):
    """Article, adjective or nothing, noun; a word after a comma is a pronoun and no article."""
    words = tokens(german[0].lower() + german[1:])
    for i, word in enumerate(words):
        if word in AGREEMENT and (i == 0 or words[i - 1] != ","):
            rest = words[i + 1 : i + 3]
            if rest[0] in ALL_NOUNS:
                yield word, "", rest[0]
            elif rest[0].isalpha() and rest[-1] in ALL_NOUNS:
                yield word, *rest


def test_article_adjective_and_noun_agree():
    seen = Counter()
    for german, _ in EVERY:
        for article, adjective, noun in agreements(german):
            fitting = {
                kind: ending for kind, ending in AGREEMENT[article].items() if noun in NOUNS[kind]
            }
            assert fitting, german
            stem = re.sub("(er|es|en|e)$", "", adjective) if adjective else ""
            assert not adjective or adjective.removeprefix(stem) in fitting.values(), german
            seen[article, bool(adjective)] += 1
            if article in ("ein", "der") and noun in WEAK.values():
                raise AssertionError(f"{german}: {noun} is no nominative singular")
            if article in ("einen", "einem", "dem"):
                assert noun not in WEAK, german
    assert all(seen[article, True] and seen[article, False] for article in AGREEMENT)


def test_german_nouns_are_in_the_tables():
    seen = set()
    for german, _ in EVERY:
        capitals = {word for word in tokens(german)[1:] if word[0].isupper()}
        assert capitals <= ALL_NOUNS, german
        seen |= capitals
    assert NOUNS["m"] | NOUNS["f"] | NOUNS["n"] <= seen


def test_english_articles_and_numbers():
    singular = set(PLURALS) | {"man", "dog", "ball", "car"}
    for _, english in EVERY:
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", english, re.IGNORECASE), english
        assert not re.search(rf"\b(?:two|three) (?:\w+ )?(?:{'|'.join(singular)})\b", english)
        plural = "|".join([*PLURALS.values(), "dogs", "balls", "cars"])
        assert not re.search(rf"\ban? (?:\w+ )?(?:{plural})\b", english, re.IGNORECASE), english


def test_subject_and_verb_agree_in_both_languages():
    """A caption that begins with "ein" has a verb in -t and "is"; one with "zwei", -n and "are"."""
    for german, english in EVERY:
        start, sentence = german.split()[0], german.split(",")[0]
        if "," in german or start not in ("Ein", "Eine", "Zwei", "Drei"):
            continue
        verb = re.match(r"\w+ (?:[a-zäöüß]+ )?[A-ZÄÖÜ]\w+ (\w+)", sentence)[1]
        one = start in ("Ein", "Eine")
        assert verb.endswith("t" if one else "n"), german
        assert re.search(r"\bis\b" if one else r"\bare\b", english), english
