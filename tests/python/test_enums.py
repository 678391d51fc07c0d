"""The C API's header is the source of the enums; C++ compares its own when it is compiled."""

import pathlib
import re

import tensorflow as tf

from smddp_tf._src.collectives.checks import MOVABLE
from smddp_tf._src.graph import library, queries
from smddp_tf._src.job.enums import Code, Kind, Matching, Memory
from smddp_tf._src.job.reduce_op import ReduceOp

OPS = pathlib.Path(__file__).parents[2] / "ops"


def enums_of(file: str) -> dict:
    """The enums of a C or C++ file: name -> {enumerator: value}, numbered from 0 without values."""
    enums = {}
    text = re.sub(r"//.*", "", (OPS / file).read_text())
    for name, body in re.findall(r"\benum (\w+)[\w :]*\{([^}]*)\}", text):
        members = [one.split("=") for one in body.split(",") if one.strip()]
        enums[name] = {
            one[0].strip(): int(one[1]) if len(one) == 2 else i for i, one in enumerate(members)
        }
    return enums


def members_of(enum_class) -> dict:
    """As the header names them."""
    return {f"SMDDP_{one.name.upper()}": int(one) for one in enum_class}


def test_python_has_the_values_of_the_header():
    """All enums of the header, and all their members."""
    assert enums_of("capi/smddp.h") == {
        "smddp_code": members_of(Code),
        "smddp_kind": members_of(Kind),
        "smddp_op": members_of(ReduceOp),
        "smddp_dtype": {
            f"SMDDP_{name.upper()}": tf.as_dtype(name).as_datatype_enum for name in MOVABLE
        },
        "smddp_matching": members_of(Matching),
        "smddp_memory": members_of(Memory),
    }


def test_what_python_shares_with_the_tensorflow_ops_alone():
    """The queries' numbers, and those of how ops complete."""
    asked = enums_of("tf/kernels/query_ops.cc")["Query"]
    in_python = {
        "k" + name.title().replace("_", ""): value
        for name, value in vars(queries).items()
        if re.fullmatch(r"_[A-Z_]+", name)
    }
    assert asked == in_python
    complete = enums_of("tf/runtime/async_done.cc")["Handover"]
    assert complete == {f"k{name.title()}": i for i, name in enumerate(library.HANDOVERS)}
