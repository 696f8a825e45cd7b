"""The built-in captions: their splits, and whether their German and English are right.

Words stand here once more on purpose: a slip in the tables must not excuse itself.
"""

import random
import re
from collections import Counter

import pytest

from the_annotated_transformer import CorpusError, builtin_corpus, read_builtin

TRAIN = builtin_corpus()["train"]
EVERY = [pair for pairs in builtin_corpus().values() for pair in pairs]
GENDER = {
    "m": "Mann Junge Lehrer Gärtner Ball Hut Park See Baum",
    "f": "Frau Tänzerin Tasche Decke Wiese Brücke",
    "n": "Kind Mädchen Buch Kissen Haus",
}
ENDINGS = {  # article: the genders that it may stand before, each with the adjective's ending
    "ein": {"m": "er", "n": "es"}, "eine": {"f": "e"}, "einen": {"m": "en"},
    "einem": {"m": "en", "n": "en"}, "dem": {"m": "en", "n": "en"}, "der": {"f": "en"},
    "im": {"m": "en", "n": "en"}, "am": {"m": "en", "n": "en"},
}  # fmt: skip
ENGLISH = {
    "Mann": "man", "Frau": "woman", "Kind": "child", "Mädchen": "girl", "Junge": "boy",
    "Lehrer": "teacher", "Tänzerin": "dancer", "Gärtner": "gardener", "Ball": "ball",
    "Tasche": "bag", "Buch": "book", "Hut": "hat", "Decke": "blanket", "Kissen": "pillow",
    "Park": "park", "Wiese": "meadow", "Haus": "house", "See": "lake", "Baum": "tree",
    "Brücke": "bridge",
}  # fmt: skip


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text[0].lower() + text[1:])


def test_splits():
    sizes = {split: len(pairs) for split, pairs in builtin_corpus().items()}
    assert sizes == {"train": 2700, "val": 200, "test": 200}
    assert len({german for german, _ in EVERY}) == len(EVERY) == 3100, "nothing occurs twice"
    for side in (0, 1):
        known = Counter(word for pair in TRAIN for word in words(pair[side]))
        assert min(known[word] for pair in EVERY for word in words(pair[side])) >= 3


def test_it_is_made_anew_alike_and_leaves_the_generator_alone():
    state = random.getstate()
    assert builtin_corpus.__wrapped__() == builtin_corpus()
    assert random.getstate() == state


def test_both_directions_and_no_other_language():
    forth, back = read_builtin(("de", "en")), read_builtin(("en", "de"))
    assert [pair[::-1] for pair in back.splits["val"]] == forth.splits["val"]
    assert forth.tests() == ["test"]
    with pytest.raises(CorpusError, match="German and English, not de and fr"):
        read_builtin(("de", "fr"))


def test_every_caption_is_one_tidy_sentence():
    for text in (text for pair in EVERY for text in pair):
        assert re.fullmatch(r"[A-Z][a-zäöüß]*(,? [A-Za-zÄÖÜäöüß]+)*\.", text), text
        assert 5 <= len(words(text)) <= 18, text


def test_article_adjective_and_noun_agree():
    seen = Counter()
    phrase = rf"\b({'|'.join(ENDINGS)}) (?:([a-zäöüß]+) )?([A-ZÄÖÜ]\w+)"
    for german, _ in EVERY:
        found = re.findall(phrase, " ".join(words(german)))
        for article, adjective, noun in found:
            [gender] = (g for g, nouns in GENDER.items() if noun in nouns.split())
            assert gender in ENDINGS[article], german
            assert not adjective or adjective.endswith(ENDINGS[article][gender]), german
            seen[article] += 1
        assert len(found) == sum(word[0].isupper() for word in words(german)), german
    assert set(seen) == set(ENDINGS)


def test_english_has_the_nouns_of_german_and_the_right_articles():
    for german, english in EVERY:
        nouns = Counter(ENGLISH[word] for word in words(german) if word[0].isupper())
        assert nouns == Counter(w for w in words(english) if w in ENGLISH.values()), english
        assert not re.search(r"\b(a [aeiou]|an [^aeiou])", english, flags=re.I), english


@pytest.mark.parametrize(
    "german, english",
    [
        (r"^Ein\w* \w+ hebt [^,]* auf\.$", r" is picking up "),  # a verb in two pieces
        (r" lacht ein\w* \w+, weil ein Kind .* (hält|trägt|sucht|kauft|bringt)\.$",
         r" is laughing because a child is (holding|carrying|looking for|buying|bringing) "),
        (r"^Ein\w* \w+ hält (im|am|auf|vor|unter|neben) ", r" is holding .*(in|by|on|under|next) "),
        (r"^Im Park lacht ", "^In the park a"),  # the verb stays second
        (r" einen blauen Hut\b", " a blue hat"),  # accusative
        (r" unter einem Baum\b", " under a tree"),  # dative
    ],
)  # fmt: skip
def test_phenomenon(german, english):
    having = [pair for pair in EVERY if re.search(german, pair[0])]
    assert len(having) >= 20
    assert all(re.search(english, pair[1]) for pair in having)
