"""Finds a stream with the functions of a TensorFlow for GPUs, without a GPU.

    python tests/scripts/stream_call.py .../tensorflow/libtensorflow_framework.so.2 2.21.0

loads TensorFlow's library and smddp_tf's, and has the latter look for the stream of a kernel whose
objects are made up here: their tables of virtual functions are those of NVIDIA's classes in the
library, and where these functions read is taken from their code (stream_layout.py). So TensorFlow's
own functions run, those that say a kernel's numbers too.
"""

import ctypes
import pathlib
import sys

import stream_layout

OURS = pathlib.Path(__file__).parents[2] / "smddp_tf/lib"
CONTEXT, DEVICE = stream_layout.CONTEXTS[0], stream_layout.DEVICES[0]
INFO_OF = "_ZNK10tensorflow10DeviceBase34tensorflow_accelerator_device_infoEv"
STREAM_OF = f"_ZNK{CONTEXT}6streamEv"
HANDLE, STEP, FRAME, ITERATION = 0x7EDCBA987650, 41, 42, 43


class Made:
    """An object of some class: words by their offsets."""

    def __init__(self):
        self.memory = (ctypes.c_uint64 * 64)()
        self.address = ctypes.addressof(self.memory)

    def __setitem__(self, offset, value):
        self.memory[offset // 8] = value.address if isinstance(value, Made) else value


def _read_by(library, function):
    """The offset at which a function of an object reads what it returns."""
    paths = stream_layout.paths_of(library, function)
    [offset] = stream_layout.match(r"context\[(0x[0-9a-f]+)\]", paths, function)
    return offset


def _kernel(library, tensorflow, layout, has_context):
    """The context of a kernel, and what it leads to."""

    def table(name):
        begin = ctypes.c_char.in_dll(tensorflow, f"_ZTVN{name}E")
        return ctypes.addressof(begin) + 16  # after offset-to-top and the type

    implementation, handle = layout.handle
    stream_class = next(name for name in stream_layout.STREAMS if name in handle.names)
    context, params, device, info, device_context, stream, holder = (Made() for _ in range(7))
    context[layout.params] = params
    params[layout.step] = STEP
    params[layout.frame] = FRAME
    params[layout.frame + 8] = ITERATION
    params[layout.device] = device
    params[layout.device_context] = device_context if has_context else 0
    device[0] = table(DEVICE)
    device[_read_by(library, INFO_OF)] = info
    info[layout.default_context] = device_context
    device_context[0] = table(CONTEXT)
    device_context[_read_by(library, STREAM_OF)] = stream
    if implementation:
        stream[implementation] = holder
    else:
        holder = stream
    holder[0] = table(stream_class)
    holder[_read_by(library, handle.names[stream_class][0])] = HANDLE
    return context, [params, device, info, device_context, stream, holder]


def main(path, version):
    """Prints whether the stream was found; an error if not."""
    library, layout = stream_layout.ElfLibrary(path), stream_layout.read(path)
    tensorflow = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(OURS / "libsmddp.so"), ctypes.RTLD_GLOBAL)
    find = ctypes.CDLL(str(OURS / "libsmddp_tf.so")).smddp_find_stream
    find.restype = ctypes.c_char_p
    find.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    for has_context in (True, False):
        context, _kept = _kernel(library, tensorflow, layout, has_context)
        found = ctypes.c_void_p()
        problem = find(context.address, version.encode(), ctypes.addressof(found)).decode()
        assert not problem and found.value == HANDLE, f"{path}: {problem}, {found.value}"
    names = [name for names in layout.handle[1].names.values() for name in names]
    print(f"{version}: found by {STREAM_OF} and {names[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
