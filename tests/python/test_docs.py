"""The pages of docs/: all are reached, links and quotes are right, and code compiles."""

import ast
import json
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

import smddp_tf

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINKED = [*PAGES, *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))]
SOURCE_SUFFIXES = (".py", ".h", ".cc", ".cu", ".txt", ".cmake", ".sh", ".yaml")
# A quote's literal parts, shorter ones of which would be found anywhere.
SHORTEST = 8


def name_of(page) -> str:
    return str(page.relative_to(ROOT))


def fences(page) -> list:
    """(language, text) of the fenced blocks of a page."""
    text = page.read_text()
    found = re.findall(r"^( *)```([^\n]*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [(language.strip(), textwrap.dedent(body)) for _, language, body in found]


def outside_fences(page) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_every_page_is_in_a_toctree():
    """Or is an orphan, which another page links to. Sphinx says so of toctrees, in `make docs`."""
    listed = {DOCS / "index.md"}
    for page in PAGES:
        for language, body in fences(page):
            if language == "{toctree}":
                entries = re.findall(r"^(?!:)(?:.*<)?([^<>\n]+)>?$", body, re.MULTILINE)
                names = [entry.strip() for entry in entries]
                listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    orphans = {page for page in PAGES if page.read_text().startswith("---\norphan: true\n---\n")}
    assert not orphans & listed
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", outside_fences(page))
    }
    assert [name_of(page) for page in orphans - linked] == []
    assert [name_of(page) for page in PAGES if page not in listed | orphans] == []


def test_the_options_page_is_what_the_sources_say():
    """`make options` writes its table from the comments beside the defaults."""
    command = [sys.executable, DOCS / "write_options.py", "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_pages_name_options_that_exist():
    """What the library and its launcher read or set, and the tests' own."""
    roots = [ROOT / name for name in ("smddp_tf", "ops", "tests", "examples", "docker")]
    files = [file for root in roots for file in root.rglob("*") if file.suffix in SOURCE_SUFFIXES]
    files += [ROOT / "Makefile", ROOT / "setup.py"]
    known = set(re.findall(r"SMDDP_\w+", "\n".join(file.read_text() for file in files)))
    for page in LINKED:
        named = set(re.findall(r"SMDDP_[A-Z_]*[A-Z]\b", page.read_text()))
        assert named <= known, f"{name_of(page)} names {sorted(named - known)}"


def anchors(page) -> set:
    """What #fragments may name: headings, as MyST and GitHub write them."""
    text = page.read_text()
    for included in re.findall(r"```\{include\} (\S+)", text):
        text += (page.parent / included).read_text()
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_to_files(page):
    """Relative ones, with the headings that they name."""
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_fences(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        assert not fragment or fragment in anchors(file), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=name_of)
def test_code_compiles(page):
    """Blocks that say that they are Python."""
    for language, body in fences(page):
        if language == "python":
            compile(body, name_of(page), "exec")


def sources() -> str:
    """What the library can say: its sources, with adjacent string literals joined."""
    files = [*ROOT.glob("smddp_tf/**/*.py"), *ROOT.glob("ops/**/*.cc"), *ROOT.glob("ops/**/*.h")]
    text = "\n".join(file.read_text() for file in sorted(files))
    text = re.sub(r"(?<!\\)\"\s*\n?\s*f?(?<!\\)\"", "", text)
    return re.sub(r"(?<!\\)'\s*\n\s*f?[\"']", "", text).replace('\\"', '"')


def quotes(page) -> list:
    """The messages that a page quotes: lines of `text` blocks, and tables' column "message"."""
    found = [
        line
        for language, body in fences(page)
        if language == "text"
        for line in body.splitlines()
        if line
    ]
    in_table = False
    for line in page.read_text().splitlines():
        if line.startswith("| message |"):
            in_table = True
        elif not line.startswith("|"):
            in_table = False
        elif in_table:
            found += re.findall(r"`([^`]+)`", line.split(" | ")[0])
    return found


def is_said(part: str, said: str) -> bool:
    """As one literal, or as two that the code joins: " died" and " while rank "."""
    cuts = range(4, len(part) - 4)
    return part in said or any(part[:i] in said and part[i:] in said for i in cuts)


@pytest.mark.parametrize("name", ["troubleshooting", "wrong-arguments"])
def test_quoted_messages_exist(name):
    """Each part of a quote, between the … that stand for what varies, is in the sources."""
    said = sources()
    found = quotes(DOCS / f"{name}.md")
    assert len(found) > 30
    missing = []
    for quote in found:
        parts = [part.strip() for part in quote.split("…")]
        parts = [part for part in parts if len(part) >= SHORTEST]
        assert parts, f"nothing of this quote can be looked for: {quote}"
        missing += [part for part in parts if not is_said(part, said)]
    assert missing == []


def test_every_group_of_troubleshooting_quotes_a_message():
    """But for the groups about what has no message, or is another program's."""
    text = (DOCS / "troubleshooting.md").read_text()
    groups = re.split(r"^(?=##+ )", text, flags=re.MULTILINE)
    groups = [group[4:] for group in groups if group.startswith("### ")]
    assert len(groups) > 10
    without = [group.splitlines()[0] for group in groups if "```text" not in group]
    assert without == [
        "The PMIx server does not start",
        "No message, but the loss is not that of one process",
    ]


def exported(module: str) -> list:
    """The names of a module's __all__, without importing TensorFlow."""
    tree = ast.parse((ROOT / module).read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [one.value for one in node.value.elts if isinstance(one, ast.Constant)]
    raise AssertionError(f"{module} has no __all__")


# Its page refers to smddp_tf's for the rest, but for names that are other objects here.
KERAS_NAMES = [
    name
    for name in exported("smddp_tf/keras/__init__.py")
    if name not in smddp_tf.__all__ or name in ("DistributedOptimizer", "elastic")
]


@pytest.mark.parametrize(
    "page, names",
    [
        ("smddp_tf", [name for name in smddp_tf.__all__ if name != "__version__"]),
        ("keras", KERAS_NAMES),
        ("callbacks", exported("smddp_tf/keras/callbacks/__init__.py")),
        ("elastic", exported("smddp_tf/keras/elastic/__init__.py")),
    ],
)
def test_the_api_pages_have_every_public_name(page, names):
    """So a new name comes with its entry."""
    text = (DOCS / "api" / f"{page}.md").read_text()
    missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not missing, f"docs/api/{page}.md has no entry for {missing}"


@pytest.mark.parametrize("notebook", sorted(ROOT.glob("examples/notebooks/*.ipynb")), ids=name_of)
def test_notebooks_are_clean(notebook):
    """Code cells compile and carry no outputs; the launch line is shown where one is needed."""
    cells = json.loads(notebook.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for cell in code:
        compile("".join(cell["source"]), name_of(notebook), "exec")
        assert cell["outputs"] == [] and cell["execution_count"] is None
    text = "".join(line for cell in cells if cell not in code for line in cell["source"])
    shown = f"mpirun -np 2 --bind-to none python {notebook.stem}.py" in text
    assert shown or "hvd.run(" in "".join(line for cell in code for line in cell["source"])


def test_files_that_the_architecture_names_exist():
    """Wherever they are in the two trees, or in the tests."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([\w./]+/[\w.]*\.(?:py|cc|h)|[\w./]+/)`", text))
    assert len(named) > 30, named
    folders = [ROOT, ROOT / "ops", ROOT / "smddp_tf"]
    missing = [name for name in named if not any((f / name).exists() for f in folders)]
    assert not missing
