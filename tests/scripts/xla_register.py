"""Registers the custom call for XLA's programs with a TensorFlow for GPUs, without a GPU.

    python tests/scripts/xla_register.py .../folder-of-its-libraries

loads libtensorflow_framework.so.2 and libtensorflow_cc.so.2 of the folder and smddp_tf's libraries,
has the latter register, and asks XLA's own registries for the call on each platform.
"""

import ctypes
import pathlib
import sys

OURS = pathlib.Path(__file__).parents[2] / "smddp_tf/lib"
TARGET = b"smddp_collective"
PLATFORMS = (b"Host", b"CUDA")
REGISTRY = "_ZN3xla24CustomCallTargetRegistry"
STRING = "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
LOOK_UP = f"_ZNK{REGISTRY[3:]}6LookupE{STRING}S8_"
FIND = "_ZN3xla3ffi11FindHandlerESt17basic_string_viewIcSt11char_traitsIcEES4_"


def _string(text):
    """A std::string of libstdc++, and what it consists of."""
    data = ctypes.create_string_buffer(text)
    words = (ctypes.c_uint64 * 4)(ctypes.addressof(data), len(text))
    return words, data


def _found(tensorflow, typed, platform):
    """Whether XLA finds the call of a platform; None where its function is not exported."""
    try:
        function = getattr(tensorflow, FIND if typed else LOOK_UP)
    except AttributeError:
        return None
    if typed:
        # It returns an absl::StatusOr. Its first word, if there is a value: 0, later 1.
        result = (ctypes.c_uint64 * 64)(2)
        function.restype = None
        function(
            result, ctypes.c_size_t(len(TARGET)), TARGET, ctypes.c_size_t(len(platform)), platform
        )
        return result[0] in (0, 1)
    registry = getattr(tensorflow, f"{REGISTRY}6GlobalEv")
    registry.restype = function.restype = ctypes.c_void_p
    name, name_data = _string(TARGET)
    where, where_data = _string(platform)
    found = function(ctypes.c_void_p(registry()), name, where)
    del name_data, where_data
    return found is not None


def main(folder):
    """Prints what was registered and found; an error if XLA does not find it."""
    folder = pathlib.Path(folder).resolve()
    ctypes.CDLL(str(folder / "libtensorflow_framework.so.2"), ctypes.RTLD_GLOBAL)
    tensorflow = ctypes.CDLL(str(folder / "libtensorflow_cc.so.2"), ctypes.RTLD_GLOBAL)
    tensorflow.TF_Version.restype = ctypes.c_char_p
    print("TensorFlow", tensorflow.TF_Version().decode())
    ctypes.CDLL(str(OURS / "libsmddp.so"), ctypes.RTLD_GLOBAL)
    register = ctypes.CDLL(str(OURS / "libsmddp_tf.so")).smddp_xla_register
    register.restype = ctypes.c_char_p
    any_found = False
    for typed, kind in (True, "typed"), (False, "legacy"):
        problem = register(int(typed)).decode()
        if problem:
            print(f"{kind}: {problem}")
            continue
        found = {platform.decode(): _found(tensorflow, typed, platform) for platform in PLATFORMS}
        print(f"{kind}: registered; XLA finds it: {found}")
        if False in found.values():
            sys.exit(1)
        any_found = any_found or True in found.values()
    if not any_found:
        sys.exit("neither kind is there")


if __name__ == "__main__":
    main(*sys.argv[1:])
