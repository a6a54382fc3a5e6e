"""How long the sentences and paragraphs of the documents are; as a command it prints a table.

python -m tests.documents
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
MEAN_SENTENCE = 20
LONGEST_SENTENCE = 40
LONGEST_PARAGRAPH = 120

FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
INDENTED_CODE = re.compile(r"(?:\A|(?<=\n\n))(?: {4}.*\n?|\n(?= {4}))+", re.MULTILINE)
COMMENT_OR_TAG = re.compile(r"<!--.*?-->|</?[a-z][^>]*>", re.DOTALL)
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LIST_OF_NAMES = re.compile(r"NAME(?:, NAME)+(?:,? (?:and|or) NAME)?")
# A new paragraph: a blank line, an element of a list, a heading or a row of a table.
PARAGRAPH = re.compile(r"\n\s*\n|\n(?= *(?:[-*] |\d+\. |#|\|))")
# What begins a sentence: a colon or a semicolon ends none.
SENTENCE = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[(\"'*_\[]*[A-Z0-9])")
WORD = re.compile(r"\w")


@dataclass
class Measures:
    sentences: list[str]
    paragraphs: list[str]

    @property
    def mean_sentence(self) -> float:
        return sum(map(words, self.sentences)) / max(1, len(self.sentences))

    def long_sentences(self) -> list[str]:
        return [text for text in self.sentences if words(text) > LONGEST_SENTENCE]

    def long_paragraphs(self) -> list[str]:
        return [text for text in self.paragraphs if words(text) > LONGEST_PARAGRAPH]


def words(text: str) -> int:
    return sum(1 for word in text.split() if WORD.search(word))


def measure(text: str) -> Measures:
    """Counts prose: no code, tables, headings or pictures. A code span is one word, and so is a
    list of them that commas separate."""
    for pattern in (FENCE, INDENTED_CODE, COMMENT_OR_TAG, IMAGE):
        text = pattern.sub("", text)
    text = LINK.sub(r"\1", CODE_SPAN.sub("NAME", text))
    found = Measures([], [])
    for block in PARAGRAPH.split(text):
        paragraph = re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(block.split()))
        if not paragraph or paragraph.startswith(("#", "|")):
            continue
        paragraph = LIST_OF_NAMES.sub("NAMES", paragraph)
        found.paragraphs.append(paragraph)
        found.sentences += SENTENCE.split(paragraph)
    return found


def main() -> None:
    print(f"{'page':24} {'sentences':>9} {'mean':>6} {'longest':>8} {'paragraph':>10}")
    problems: list[str] = []
    for page in PAGES:
        found = measure(page.read_text())
        longest = max(map(words, found.sentences), default=0)
        paragraph = max(map(words, found.paragraphs), default=0)
        mean = found.mean_sentence
        print(f"{page.name:24} {len(found.sentences):9} {mean:6.1f} {longest:8} {paragraph:10}")
        for text in found.long_sentences():
            problems.append(f"{page.name}: a sentence of {words(text)} words: {text}")
        for text in found.long_paragraphs():
            problems.append(f"{page.name}: a paragraph of {words(text)} words: {text[:200]} ...")
    for line in problems:
        print("\n" + line)


if __name__ == "__main__":
    main()
