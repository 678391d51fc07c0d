"""Wraps the paragraphs and list items of Markdown files at 100 columns: part of ``make format``.

Only those with a longer line change. Tables, code, headings and HTML stay, and a code span is not
broken. ``--check`` changes nothing, names the lines that are too long, and fails if there are any.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 100
# Pages that programs write.
WRITTEN = {
    "docs/api-parity.md",
    "docs/elastic-faults.md",
    "docs/elastic-faults-hosts.md",
    "docs/equality.md",
    "docs/reliability.md",
}
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_FENCE = re.compile(r"\s*(```+|~~~+)")
_ALONE = re.compile(r"\s*(?:$|#|\||<!--|<\w|:\w+|(?:---|===)\s*$)")
# Words that would begin a block if they came first in a line.
_BEGINS_BLOCK = re.compile(r"[-*+>]$|#+$|\d+[.)]$|\||```|~~~|<!--")


def files() -> list:
    """The Markdown files of the tree that people write."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    return [one for one in sorted(found) if str(one.relative_to(ROOT)) not in WRITTEN]


def _words(text: str) -> list:
    """Splits at spaces outside of code spans; glues what must not begin a line to what precedes."""
    kept = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", lambda span: span[0].replace(" ", "\0"), text)
    words = []
    for word in kept.split():
        if words and _BEGINS_BLOCK.match(word):
            words[-1] += "\0" + word
        else:
            words.append(word)
    return [word.replace("\0", " ") for word in words]


def _fill(lines: list) -> list:
    """A paragraph or list item, wrapped."""
    item = _ITEM.match(lines[0])
    first = item[0] if item else re.match(r"\s*", lines[0])[0]
    rest = " " * len(first)
    text = " ".join([lines[0][len(first) :], *(line.strip() for line in lines[1:])])
    filled, line = [], first
    for word in _words(text):
        if line.strip() and line not in (first, rest) and len(line) + 1 + len(word) > WIDTH:
            filled.append(line)
            line = rest
        line += word if line in (first, rest) else " " + word
    return [*filled, line]


def wrapped(text: str) -> str:
    """The file's text with long paragraphs wrapped."""
    lines, done = text.split("\n"), []
    fence = "---" if lines[0] == "---" else ""  # front matter ends as a fence does
    i = 1 if fence else 0
    done += lines[:i]
    while i < len(lines):
        line = lines[i]
        opening = _FENCE.match(line)
        if fence or opening or _ALONE.match(line) or re.match(r" {4}", line):
            if fence and line.strip().startswith(fence):
                fence = ""
            elif not fence and opening:
                fence = opening[1]
            done.append(line)
            i += 1
            continue
        end = i + 1
        while end < len(lines) and not any(
            one.match(lines[end]) for one in (_ALONE, _FENCE, _ITEM)
        ):
            end += 1
        block = lines[i:end]
        long = any(len(one) > WIDTH for one in block) and not any(
            one.endswith(("  ", "\\")) for one in block
        )
        done += _fill(block) if long else block
        i = end
    return "\n".join(done)


def main() -> None:
    """Wraps, or checks."""
    check, failed = sys.argv[1:] == ["--check"], False
    for file in files():
        before = file.read_text()
        after = wrapped(before)
        if before != after and check:
            failed = True
            print(f"{file.relative_to(ROOT)} has text beyond column {WIDTH}; run `make format`")
        elif before != after:
            file.write_text(after)
    sys.exit(failed)


if __name__ == "__main__":
    main()
