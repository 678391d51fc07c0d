"""Compiles a file of kernels for several GPUs with NVRTC, into a bundle (kernels/cuda/bundle.h).

    python compile_kernels.py --nvrtc .../libnvrtc.so.12 --include ops --output pack.bundle pack.cu

NVRTC is CUDA's compiler as a library; PyPI has it for each CUDA, which it has of nvcc for 13 only.
It needs no GPU. --version prints that of the library and the GPUs, as "12.9 sm_70 sm_75 ...".
"""

import argparse
import ctypes
import pathlib
import struct
import sys

# Code for one runs on later ones of the same generation (70 and 75). Which of these a version
# knows, it says.
WANTED = (70, 75, 80, 86, 89, 90, 100, 120)
MAGIC = b"SMDDPGPU"
HEADER = struct.Struct("<8sQ")  # the magic, the number of entries
ENTRY = struct.Struct("<IIQQ")  # capability, 1 for PTX, where it begins, bytes
ALIGNMENT = 64
# As on the CPU, each operation rounds by itself, and subnormals stay.
OPTIONS = ("--std=c++17", "-default-device", "-fmad=false", "-prec-div=true", "-ftz=false")


class Nvrtc:
    """The functions of libnvrtc that are used here."""

    def __init__(self, path):
        """Open the library."""
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def _check(self, result, what, more=""):
        if result != 0:
            error = self._library.nvrtcGetErrorString(result).decode()
            sys.exit(f"{what}: {error}\n{more}")

    def version(self):
        """Return "12.9"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "NVRTC")
        return f"{major.value}.{minor.value}"

    def architectures(self):
        """Return those of WANTED that it knows."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "NVRTC")
        known = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(known), "NVRTC")
        return [one for one in WANTED if one in set(known)]

    def _text(self, name, program):
        size = ctypes.c_size_t()
        get_size = getattr(self._library, f"nvrtcGet{name}Size")
        self._check(get_size(program, ctypes.byref(size)), name)
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{name}")(program, text), name)
        return text.raw

    def compile(self, source, architecture, includes):
        """Return the machine code for an "sm_90", the PTX, zero-terminated, for a "compute_90"."""
        program = ctypes.c_void_p()
        name, text = str(source).encode(), source.read_bytes()
        made = self._library.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
        self._check(made, str(source))
        options = [*OPTIONS, f"--gpu-architecture={architecture}", *(f"-I{at}" for at in includes)]
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        result = self._library.nvrtcCompileProgram(program, len(options), words)
        log = self._text("ProgramLog", program).rstrip(b"\0").decode()
        self._check(result, f"{source} for {architecture}", log)
        code = self._text("PTX" if architecture.startswith("compute") else "CUBIN", program)
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return code


def bundle(codes):
    """Return the bundle of (capability, whether it is PTX, code)."""
    at = HEADER.size + ENTRY.size * len(codes)
    entries, contents = [], b""
    for capability, is_ptx, code in codes:
        gap = -(at + len(contents)) % ALIGNMENT
        contents += bytes(gap)
        entries.append(ENTRY.pack(capability, is_ptx, at + len(contents), len(code)))
        contents += code
    return HEADER.pack(MAGIC, len(codes)) + b"".join(entries) + contents


def main():
    """Compile, or say for which GPUs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvrtc", required=True, help="libnvrtc.so.12")
    parser.add_argument("--include", action="append", default=[], type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("source", nargs="?", type=pathlib.Path)
    args = parser.parse_args()
    nvrtc = Nvrtc(args.nvrtc)
    known = nvrtc.architectures()
    if args.version:
        print(nvrtc.version(), *(f"sm_{one}" for one in known))
        return
    codes = [(one, 0, nvrtc.compile(args.source, f"sm_{one}", args.include)) for one in known]
    codes.append((known[0], 1, nvrtc.compile(args.source, f"compute_{known[0]}", args.include)))
    args.output.write_bytes(bundle(codes))


if __name__ == "__main__":
    main()
