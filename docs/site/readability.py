"""Measures how plainly every page is written, and finds the sentences that a reader must read twice.

python docs/site/readability.py [PAGE ...]    # every page by default; with pages, their faults too

Only prose counts: no code, headings, pictures, or cells of a table that hold a name or a number.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LONGEST_SENTENCE = 35
"""Maximum number of words in a sentence."""

LONG_SENTENCE = 30
"""Number of words above which a sentence counts as long."""

SHORTEST_CELL = 5
"""Minimum number of words of a table's cell that is read as prose."""

RARE_BELOW = 3
"""A word is unusual if fewer pages than this use it."""

AVOIDED = {
    "albeit": "although",
    "anew": "again",
    "at which": "where, when",
    "by which": "two sentences",
    "commence": "begin",
    "errand": "task",
    "from which": "two sentences",
    "foremost": "first",
    "hence": "so",
    "henceforth": "from now on",
    "hitherto": "until now",
    "heed": "follow, trust",
    "heeded": "followed, trusted",
    "in order to": "to",
    "in which": "where, when",
    "inasmuch": "because",
    "lest": "so that ... not",
    "moreover": "also",
    "notwithstanding": "despite",
    "of which": "two sentences",
    "of whom": "two sentences",
    "on which": "where, when",
    "prior to": "before",
    "thereby": "and so",
    "therein": "in it",
    "thereof": "of it",
    "therewith": "with it",
    "through which": "two sentences",
    "to which": "two sentences",
    "under which": "two sentences",
    "utilise": "use",
    "whatsoever": "leave it out",
    "whereby": "two sentences",
    "wherein": "where",
    "whereof": "of it",
    "whichever": "any, the one that",
    "whoever": "anybody who",
    "whomever": "anybody whom",
    "with which": "two sentences",
}
"""Words that a reader stumbles over, and what to write instead."""

_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|al|vs|cf|Dr|Mr|Mrs|St|Fig|Eq|Sec|approx))\.$")
_AVOIDED = re.compile(rf"\b(?:{'|'.join(sorted(AVOIDED, key=len, reverse=True))})\b", re.IGNORECASE)
_CLAUSE_AS_SUBJECT = re.compile(
    r"^(?:(?:What|Whatever|Whoever|Whom|Whose|Who|Whether)\b(?!.*[?]$)"
    r"|That (?:an?|all|both|each|every|it|its|no|nobody|nothing|one|our|some|the|their|they|this|these|we|you)\b)"
)
_CONTINUED = re.compile(r"^```\n\n([a-z][^\n]*)", re.MULTILINE)
_IRREGULAR = (
    "begun|bound|broken|brought|built|chosen|cut|done|drawn|driven|fed|found|given|held|hidden|kept|known|laid|led|left"
    "|lost|made|meant|met|paid|proven|put|read|run|said|seen|sent|set|shown|shut|spent|spread|stolen|sworn|taken|taught"
    "|thrown|told|typed|understood|written|withdrawn|worn"
)
_PASSIVE = re.compile(
    rf"\b(?:is|are|was|were|be|been|being)(?: (?:not|never|also|only|then|still|already|always|\w+ly))*"
    rf" (?:(?!need|indeed|embed|speed|hundred|exceed|red\b)\w+ed|{_IRREGULAR})\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Fault:
    """A sentence that breaks a rule."""

    page: str
    sentence: str
    rule: str

    def __str__(self) -> str:
        return f"{self.page}: {self.rule}: {self.sentence}"


@dataclass(frozen=True)
class Page:
    """Figures of one page; lengths are in words, shares between 0 and 1."""

    name: str
    words: int
    mean_length: float
    ninth_decile: int
    long: float
    passive: float
    unusual: float
    faults: int

    @property
    def difficulty(self) -> float:
        """Order of the pages, the worst last: the mean length of a sentence, all shares in tenths, and faults."""
        return self.mean_length + 10 * (self.long + self.passive + self.unusual) + self.faults / 5


def pages() -> Mapping[str, str]:
    """Return the text of every page, by its path in the repository."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def sentences(text: str) -> list[str]:
    """Return a page's sentences of prose, each on one line; code counts as one word."""
    return [sentence for block in _blocks(text) for sentence in _split(block) if words(sentence)]


def words(sentence: str) -> list[str]:
    """Return the words of a sentence."""
    return re.findall(r"[^\W\d_][\w'-]*|\d[\d.,]*", sentence)


def faults(page: str, text: str) -> list[Fault]:
    """Return every sentence of a page that breaks a rule, once for each rule."""
    found = [Fault(page, sentence, rule) for sentence in sentences(text) for rule in _broken(sentence)]
    return found + [Fault(page, line, "continues a block of code") for line in _CONTINUED.findall(text)]


def figures(texts: Mapping[str, str]) -> list[Page]:
    """Return the figures of all pages; words are unusual among these pages."""
    used = {name: [word.lower() for each in sentences(text) for word in words(each)] for name, text in texts.items()}
    spread = Counter(stem for found in used.values() for stem in {_stem(word) for word in found})
    return [_figures(name, text, spread) for name, text in texts.items()]


def _figures(name: str, text: str, spread: Mapping[str, int]) -> Page:
    found = sentences(text)
    lengths = sorted(len(words(sentence)) for sentence in found) or [0]
    plain = [word.lower() for sentence in found for word in words(sentence) if word.isalpha()]
    return Page(
        name,
        words=sum(lengths),
        mean_length=sum(lengths) / len(lengths),
        ninth_decile=lengths[9 * (len(lengths) - 1) // 10],
        long=_share(found, lambda sentence: len(words(sentence)) > LONG_SENTENCE),
        passive=_share(found, lambda sentence: bool(_PASSIVE.search(sentence))),
        unusual=_share(plain, lambda word: spread[_stem(word)] < RARE_BELOW),
        faults=len(faults(name, text)),
    )


def _broken(sentence: str) -> Iterator[str]:
    if (length := len(words(sentence))) > LONGEST_SENTENCE:
        yield f"{length} words"
    for word in _AVOIDED.findall(sentence):
        yield f"write '{AVOIDED[word.lower()]}' for '{word.lower()}'"
    if sentence.endswith((".", "!")) and _CLAUSE_AS_SUBJECT.match(sentence):
        yield "begins with a clause as its subject"


def _blocks(text: str) -> Iterator[str]:
    """Yield paragraphs, items of lists and cells of tables, without their marks."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *(```+|~~~+).*?^ *\1\s*?$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^#+ .*$", "\n", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.|\|)\s?)", text):
        if block.lstrip().startswith("|"):
            cells = map(_plain, re.split(r"(?<!\\)\||;\s", block))  # a semicolon divides the items of a cell
            yield from (cell for cell in cells if len(words(cell)) >= SHORTEST_CELL)
        else:
            yield _plain(re.sub(r"^\s*(?:[-*+]|\d+\.)\s+", "", block))


def _plain(block: str) -> str:
    """Take the marks of Markdown away: code, or a list of it, becomes one word, a link its text, a picture nothing."""
    block = re.sub(r"(`+).+?\1", "code", block, flags=re.DOTALL)
    block = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", block)
    block = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block)
    block = re.sub(r"<[^>]+>|https?://\S+", " ", block)
    block = re.sub(r"\bcode(?:(?:,| and| or) code\b)+", "code", block)
    return " ".join(re.sub(r"\*\*|(?<!\w)[*_](?=\w)|(?<=[\w.?!)])[*_](?!\w)", "", block).split())


def _split(block: str) -> Iterator[str]:
    """Yield the sentences of a block: they end at a full stop, unless it ends an abbreviation."""
    begun = ""
    for part in re.split(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*(?:[A-Z0-9]|code\b))", block):
        begun = f"{begun} {part}".strip()
        if not _ABBREVIATION.search(begun):
            yield begun
            begun = ""
    if begun:
        yield begun


def _stem(word: str) -> str:
    """Let the forms of a word count as one: a crude cut is enough to count pages."""
    return re.sub(r"(?:'s|ies|es|s|ing|ed|ly|y|e)$", "", word) if len(word) > 4 else word


def _share(values: list[str], holds: Callable[[str], bool]) -> float:
    return sum(map(holds, values)) / max(1, len(values))


def _table(rows: Iterable[Page]) -> Iterator[str]:
    yield f"{'words':>6}{'mean':>6}{'90 %':>6}{'long':>6}{'passive':>9}{'unusual':>9}{'faults':>8}  page"
    for row in rows:
        shares = f"{row.long:>6.0%}{row.passive:>9.0%}{row.unusual:>9.0%}"
        yield f"{row.words:>6}{row.mean_length:>6.1f}{row.ninth_decile:>6}{shares}{row.faults:>8}  {row.name}"


def main(names: list[str]) -> None:
    """Print the figures of every page, or of those named, and the worst ten."""
    texts = pages()
    rows = figures(texts)
    if unknown := set(names) - texts.keys():
        sys.exit(f"error: no such page: {', '.join(sorted(unknown))}. Name it as docs/how-to/audit.md.")
    if names:
        print("\n".join(_table(row for row in rows if row.name in names)))
        print("\n".join(str(fault) for name in names for fault in faults(name, texts[name])))
        return
    print("\n".join(_table(rows)))
    print(f"\n{sum(row.words for row in rows):,} words of prose. The worst ten:")
    print("\n".join(_table(sorted(rows, key=lambda row: -row.difficulty)[:10])))


if __name__ == "__main__":
    main(sys.argv[1:])
