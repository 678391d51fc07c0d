"""Compiles a file of kernels for several GPUs with NVRTC, into a bundle (kernels/cuda/bundle.h).

NVRTC is CUDA's compiler as a library, which PyPI has of CUDA 12 too. It needs no GPU. The options
are cuda.cmake's; --version prints that of NVRTC and the architectures that it knows: "12.9 70 75".
"""

import argparse
import ctypes
import pathlib
import struct
import sys

MAGIC = b"SMDDPGPU"
HEADER = struct.Struct("<8sQ")  # the magic, the number of entries
ENTRY = struct.Struct("<IIQQ")  # capability, 1 for PTX, where it begins, bytes
ALIGNMENT = 64
OPTIONS = ("--std=c++17", "-default-device")


class Nvrtc:
    """The functions of libnvrtc that are used here."""

    def __init__(self, path):
        """Open the library."""
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            sys.exit(str(error))
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

    def known(self, wanted):
        """Return those architectures, such as 90, that it knows."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "NVRTC")
        known = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(known), "NVRTC")
        return [one for one in wanted if one in set(known)]

    def _text(self, name, program):
        size = ctypes.c_size_t()
        get_size = getattr(self._library, f"nvrtcGet{name}Size")
        self._check(get_size(program, ctypes.byref(size)), name)
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{name}")(program, text), name)
        return text.raw

    def compile(self, source, architecture, more):
        """Return the machine code for an "sm_90", the PTX, zero-terminated, for a "compute_90"."""
        program = ctypes.c_void_p()
        name, text = str(source).encode(), source.read_bytes()
        made = self._library.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
        self._check(made, str(source))
        options = [*OPTIONS, f"--gpu-architecture={architecture}", *more]
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
    parser.add_argument("--architectures", nargs="+", type=int, required=True)
    parser.add_argument("--include", nargs="+", default=[], metavar="FOLDER")
    parser.add_argument("--flags", default="", help="for NVRTC")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("source", nargs="?", type=pathlib.Path)
    args = parser.parse_args()
    nvrtc = Nvrtc(args.nvrtc)
    known = nvrtc.known(args.architectures)
    if not known:
        sys.exit(f"NVRTC {nvrtc.version()} knows none of {args.architectures}")
    if args.version:
        print(nvrtc.version(), *known)
        return
    more = [*args.flags.split(), *(f"-I{folder}" for folder in args.include)]
    codes = [(one, 0, nvrtc.compile(args.source, f"sm_{one}", more)) for one in known]
    codes.append((known[0], 1, nvrtc.compile(args.source, f"compute_{known[0]}", more)))
    args.output.write_bytes(bundle(codes))


if __name__ == "__main__":
    main()
