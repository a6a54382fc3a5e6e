"""Headers cut to what a kernel names: a compiler reads fifty lines faster than two thousand.

The headers of kernels are read once by the C preprocessor, and become a table of declarations and
macros, by the names that they give. A kernel then gets those that it names, with those that these
name. Where there is no table, as with a preprocessor that is none, kernels get their headers whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
# What text is cut at; what stands in quotes or is for the preprocessor goes by as a whole.
_MARK = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|^[ \t]*#.*$|[{}();]', re.M)
_DEFINE = re.compile(r"^#define (\w+).*$", re.M)
_REDUCTION = re.compile(r"\s*#pragma omp declare reduction\s*\(\s*(\w+)")
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*\(")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\s*(\S+)", re.M)
_ATTRIBUTE = re.compile(r"__attribute(__)?\s*\(\((?:[^()]|\([^()]*\))*\)\)")
_KEYWORDS = frozenset(
    _NAME.findall(
        "auto char const double enum extern float int long short signed sizeof static struct "
        "typedef union unsigned void volatile inline restrict _Bool _Complex __attribute__ "
        "__extension__ __inline __restrict"
    )
)
_ALWAYS = "*"  # the name of what belongs before every kernel


@dataclass
class Declarations:
    """What headers declare: texts in their order, each with the names that it gives; and macros."""

    pieces: Sequence[tuple[Collection[str], str]]
    macros: Mapping[str, str]

    def __post_init__(self) -> None:
        self._by_name: dict[str, list[int]] = defaultdict(list)
        for k, (names, _) in enumerate(self.pieces):
            for name in names:
                self._by_name[name].append(k)

    @staticmethod
    def of(preprocessed: str, macros: str) -> Declarations:
        """Those of headers that a preprocessor has read, and of its list of macros."""
        found = [(sorted(names_of(text)), text) for text in pieces_of(preprocessed)]
        return Declarations(found, {m[1]: m[0] for m in _DEFINE.finditer(macros)})

    def before(self, source: str) -> str | None:
        """What belongs before a source in place of the headers; None for one that includes some
        itself, which would declare things twice."""
        if set(_INCLUDE.findall(source)) - {"<stdint.h>"}:
            return None
        chosen: set[int] = set()
        macros: dict[str, str] = {}
        seen: set[str] = set()
        wanted = [_ALWAYS, *_names(source)]
        given = set(wanted)  # only what the source itself names can be a macro: the rest is spelled
        while wanted:
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in given and name in self.macros:
                macros[name] = self.macros[name]
                named = list(_names(self.macros[name]))
                given.update(named)
                seen.difference_update(n for n in named if n in self.macros and n not in macros)
                wanted += named
            for k in self._by_name.get(name, ()):
                if k not in chosen:
                    chosen.add(k)
                    wanted += _names(self.pieces[k][1])
        texts = [self.pieces[k][1] for k in sorted(chosen)]
        return "\n".join([*texts, *macros.values(), ""])


def _names(text: str) -> Iterable[str]:
    return set(_NAME.findall(_COMMENT.sub("", text)))


def pieces_of(text: str) -> Iterator[str]:
    """The declarations and definitions at the outermost level; a pragma that is about the next one
    stands with it."""
    start = braces = parentheses = 0
    for mark in _MARK.finditer(text):
        found = mark[0]
        if found == "{":
            braces += 1
        elif found == "(":
            parentheses += 1
        elif found == ")":
            parentheses -= 1
        elif found == "}":
            braces -= 1
        if braces or parentheses:
            continue
        ends = found == ";" or (found == "}" and _is_function(text[start : mark.end()]))
        if "#" in found and "declare simd" not in found and not text[start : mark.start()].strip():
            ends = True
        if ends:
            piece = text[start : mark.end()].strip()
            start = mark.end()
            if piece != ";":
                yield piece


def _head(piece: str) -> str:
    """A piece without its body and the pragmas before it."""
    lines = (line for line in piece.splitlines() if not line.lstrip().startswith("#"))
    return _ATTRIBUTE.sub("", "\n".join(lines).partition("{")[0]).strip()


def _is_function(piece: str) -> bool:
    return _head(piece).endswith(")")


def names_of(piece: str) -> set[str]:
    """The names by which a piece is wanted."""
    reduction = _REDUCTION.match(piece)
    if reduction is not None:
        return {reduction[1]}
    head = _head(piece)
    if not head:
        return {_ALWAYS}
    if not re.match(r"typedef\b|__extension__\s+typedef\b", head):
        called = _CALLED.findall(head)
        # What others can see may be called by a name that the compiler makes.
        if called and "{" in piece and not re.match(r"(static|extern)\b", head):
            return {called[0], _ALWAYS}
        if called:
            return {called[0]}
    return set(_NAME.findall(piece)) - _KEYWORDS
