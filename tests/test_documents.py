"""The documents can be read: their sentences and paragraphs are short."""

from pathlib import Path

import pytest
from documents import LONGEST_PARAGRAPH, LONGEST_SENTENCE, MEAN_SENTENCE, PAGES, measure, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_and_paragraphs_are_short(page: Path) -> None:
    found = measure(page.read_text())
    assert found.sentences
    assert found.mean_sentence < MEAN_SENTENCE
    assert found.long_sentences() == [], f"more than {LONGEST_SENTENCE} words"
    assert found.long_paragraphs() == [], f"more than {LONGEST_PARAGRAPH} words"


def sentence_lengths(text: str) -> list[int]:
    return [words(sentence) for sentence in measure(text).sentences]


def test_a_colon_or_a_semicolon_ends_no_sentence() -> None:
    assert sentence_lengths("One: two; three, four. Five (six 1.5)? `Seven` eight!") == [4, 3, 2]
    assert sentence_lengths("**One.** Two (three.) Four") == [1, 2, 1]


def test_a_code_span_is_one_word_and_so_is_a_list_of_them() -> None:
    assert sentence_lengths("Call `f(a, b) + 1` and [see there](http://a.b/c).") == [5]
    assert sentence_lengths("There: `a`, `b c`, `d` and `e`, three.") == [3]


def test_what_is_no_prose_does_not_count() -> None:
    code = "```python\na = 1. B = 2\n```\n"
    table = "| one | two three |\n|---|---|\n"
    indented = "    make all. Many words\n\n    and more\n"
    text = f"# A heading of words\n\n{code}\nOne two.\n\n{table}\n{indented}\n![A picture](a.svg)\n"
    assert sentence_lengths(text) == [2]


def test_each_element_of_a_list_is_a_paragraph() -> None:
    found = measure("Some words:\n\n- one two\n- three\n  four\n\n1. five\n2. six")
    assert found.paragraphs == ["Some words:", "one two", "three four", "five", "six"]


def test_what_is_too_long_is_found() -> None:
    sentence = "Word " + "word " * 40 + "word."
    found = measure(f"{sentence} Short. {sentence} {sentence}")
    assert [words(text) for text in found.long_sentences()] == [42, 42, 42]
    assert [words(text) for text in found.long_paragraphs()] == [127]
