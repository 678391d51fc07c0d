"""Sphinx's configuration; `make docs` builds.

TensorFlow and the native libraries are mocked. So the pages build in seconds on a fresh clone and
on any Python, and are the same whatever is installed. Signatures and docstrings do not need them:
wrappers are plain functions whose annotations name TensorFlow's types in text, and classes that
derive from Keras's document their own arguments. numpy is real: the package imports it.
"""

import enum
import pathlib
import re
import sys

from sphinx.util import inspect

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from smddp_tf import _version  # noqa: E402
from smddp_tf._src.job import native  # noqa: E402

project = "smddp_tf"
author = "the smddp_tf authors"
project_copyright = author
version = release = _version.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = []
# Blocks without a language are commands and output.
highlight_language = "none"
# Links to a heading: [...](page.md#some-heading).
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # included pages may begin below level 1

# Each page is about one module, which its title names.
add_module_names = False
# The last one asks Keras which backend it computes with.
autodoc_mock_imports = [
    "tensorflow",
    "keras",
    "tf_keras",
    "smddp_tf._src.graph.library",
    "smddp_tf.keras._backend",
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Defaults as the source has them: Compression.none, not the class's repr.
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
# Names of _src/types.py, which docs/api/smddp_tf.md explains, stay names.
autodoc_type_aliases = {
    name: name for name in ("Compressor", "GradientTape", "Tensor", "TensorLike", "Variable")
}
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False


def _no_library(name: str) -> str:
    """In place of native.library_path: a built checkout must not hide what a fresh clone lacks."""
    raise OSError(f"the documentation is built without {name}; mock what loads it in docs/conf.py")


native.library_path = _no_library

# Keras's classes, mocked or not, have a __new__ that takes anything; ours say what they take.
_TAKES_ANYTHING = "(*args: Any, **kwargs: Any)"
# Public names, wherever they are defined: users import them from smddp_tf.
_PUBLIC_TYPE = re.compile(r"[\w.]*\b(ProcessSet|ReduceOp)\b")
_PUBLIC_DEFAULT = re.compile(r"[\w.]+\.(global_process_set)\b")
_ALIAS = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")


def _own_signature(app, kind) -> str:
    """The signature of the first __init__ of this package among a class and its bases."""
    for base in kind.__mro__:
        if base.__module__.startswith("smddp_tf.") and "__init__" in vars(base):
            function = vars(base)["__init__"]
            app.emit("autodoc-before-process-signature", function, True)
            aliases = app.config.autodoc_type_aliases
            found = inspect.signature(function, bound_method=True, type_aliases=aliases)
            return inspect.stringify_signature(found, unqualified_typehints=True)
    return "()"


def _public_signature(app, what, name, obj, options, signature, return_annotation):
    """The signature with the names that users know."""
    del name, options
    if what == "class" and signature == _TAKES_ANYTHING:
        signature = _own_signature(app, obj)
    if what == "class" and issubclass(obj, enum.Enum):
        return "", None
    if signature:
        signature = _PUBLIC_TYPE.sub(r"smddp_tf.\1", _ALIAS.sub(r"\1", signature))
        signature = _PUBLIC_DEFAULT.sub(r"\1", signature)
    return signature, return_annotation


def _break_names(app, page, template, context, doctree):
    """Lets browsers break long names where words end: SMDDP_<wbr>TIMEOUT_<wbr>SECONDS."""
    del app, page, template, doctree

    def broken(match):
        if len(match[2]) <= 16:  # short ones stay whole
            return match[0]
        return match[1] + re.sub(r"([_=(/]|\.(?=\w{5}))(?=\w)", r"\1<wbr>", match[2])

    names = re.compile(r'(<span class="pre">|<h1>)([^<]*)')
    context["body"] = names.sub(broken, context.get("body", ""))


def setup(app):
    """Called by Sphinx."""
    app.connect("html-page-context", _break_names)
    app.connect("autodoc-process-signature", _public_signature)
