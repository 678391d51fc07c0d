"""Writes the table of docs/options.md from the code that reads the options: ``make options``.

An option is documented once, beside its default: in the comment above a field of ops/core/config.h
or smddp_tf/_src/job/config.py, or in the docstring of a function there. The text begins with the
name and a colon. It ends with "Default: ..." where the initializer does not say it. What an option
takes is read from ops/core/config.cc, and whether it must agree on all ranks from what init()
compares.
"""

import ast
import pathlib
import re
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "options.md"
BEGIN = "<!-- begin: written by `make options` from the sources; do not edit -->\n"
END = "<!-- end -->\n"
_SOURCES = {
    "core": "ops/core/config.h",
    "reads": "ops/core/config.cc",
    "python": "smddp_tf/_src/job/config.py",
    "python_compares": "smddp_tf/_src/job/agreement.py",
}


_NO_LIMIT = {"1e7", "1e15"}  # beyond what anybody means; only the parser needs one


class Option(typing.NamedTuple):
    """A row of the table."""

    name: str
    default: str
    text: str


def _source(name: str) -> str:
    return (ROOT / _SOURCES[name]).read_text()


def _size(number: int) -> str:
    """Bytes or a plain number, as people write it."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if number and number % (1 << shift) == 0:
            return f"{number >> shift} {unit}"
    return str(number)


def _value(initializer: str) -> str:
    """A default as the table shows it; "" if the code does not say it in so many words."""
    text = initializer.strip()
    if text in ("true", "false"):
        return str(int(text == "true"))
    if re.fullmatch(r"\"[^\"]+\"", text):
        return f"`{text[1:-1]}`"
    if re.fullmatch(r"-?\d+( << \d+)?", text):
        number, _, shift = text.partition(" << ")
        return _size(int(number) << int(shift or 0))
    return ""


def _option(text: str, initializer: str = "") -> Option:
    """Takes a comment or docstring apart."""
    name, text = " ".join(text.split()).split(": ", 1)
    text, _, default = text.partition(" Default: ")
    default = default.rstrip(".") or _value(initializer)
    if not default:
        raise SystemExit(f"{name}: say its default: 'Default: ...' at the end of its comment")
    text = re.sub(r"\(?\b[Ss]ee docs/([\w-]+)\.md\)?", r"([more](\1.md))", text)
    text = re.sub(r"SMDDP_[A-Z_]+", r"`\g<0>`", text).rstrip(".")
    return Option(name, default, text.replace("|", "\\|"))


def _core_options() -> list:
    """Fields of ops/core/config.h under a comment that names an option."""
    field = r"((?:^ *// .*\n)+)((?:^ *static .*\n)?)^ *[\w:]+ \w+(?: = ([^;]+))?;"
    found = []
    for comment, _, initializer in re.findall(field, _source("core"), re.MULTILINE):
        text = re.sub(r"^ *// ?", "", comment, flags=re.MULTILINE)
        if text.startswith("SMDDP_"):
            found.append(_option(text, initializer))
    return found


def _python_options() -> list:
    """Fields and functions of smddp_tf/_src/job/config.py; not those for tests and for children."""
    source = _source("python")
    found = re.findall(r"((?:^ +# .*\n)+) +\w+: \w+ = (.+)", source, re.MULTILINE)
    texts = [(re.sub(r"^ +# ?", "", text, flags=re.MULTILINE), value) for text, value in found]
    for node in ast.parse(source).body:
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if text and re.match(r"SMDDP_(?!TEST)\w+: ", text):
            texts.append((text.split("\n\n")[0], ""))
    return [_option(*one) for one in texts if one[0].startswith("SMDDP_")]


def _number(expression: str) -> str:
    """A limit of config.cc: 4096, 1e7, 1 << 26."""
    low, _, shift = expression.strip().partition(" << ")
    return f"{int(float(low)) << int(shift or 0):,}" if "." not in low else low


def _taken() -> dict:
    """What each option takes, where the core checks it."""
    source = _source("reads")
    words = r'ReadWord\("(\w+)",\s*\{([^}]*)\}'
    takes = {name: re.sub(r'"([^"]*)"', r"`\1`", text) for name, text in re.findall(words, source)}
    numbers = r'ReadNumber\("(\w+)", ([^,]+), ([^,]+),'
    for name, low, high in re.findall(numbers, source):
        if (low, high) == ("0", "1"):
            takes[name] = "0 or 1"
        elif high in _NO_LIMIT:
            takes[name] = f"{_number(low)} or more"
        else:
            takes[name] = f"{_number(low)} to {_number(high)}"
    for name in re.findall(r'_positive_int\("(\w+)"', _source("python")):
        takes[name] = "1 or more"
    return takes


def _kind(text: str) -> str:
    """What an option takes that nothing checks, by how its text begins."""
    kinds = {"path": "a path", "folder": "a folder", "1:": "0 or 1"}
    return next((kind for start, kind in kinds.items() if text.startswith(start)), "")


def _compared() -> set:
    """Options that init() compares across ranks."""
    core = "\n".join(file.read_text() for file in sorted((ROOT / "ops").rglob("*.cc")))
    names = re.findall(r'add\("(SMDDP_\w+)"', core)
    names += re.findall(r'f"(SMDDP_\w+)=', _source("python_compares"))
    return set(names)


def table() -> str:
    """The generated part of the page."""
    takes, compared = _taken(), _compared()
    lines = ["| variable | default | takes | meaning |", "|---|---|---|---|"]
    for option in sorted([*_core_options(), *_python_options()]):
        mark = " †" if option.name in compared else ""
        taken = takes.get(option.name) or _kind(option.text)
        lines.append(f"| `{option.name}`{mark} | {option.default} | {taken} | {option.text} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page, with a new table between its marks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + table() + "\n" + END + after


def main() -> None:
    """Writes the page; with --check only says whether it is up to date."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        if text != PAGE.read_text():
            sys.exit("docs/options.md is not what the sources say; run `make options`")
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
