"""Reads from a TensorFlow where its kernels' contexts have their stream.

    python tests/scripts/stream_layout.py .../tensorflow/libtensorflow_framework.so.2 ...

prints a line of the table in docs/gpu.md for each library, CPU or GPU, without loading it.
TF_GetStream and its like go the way that ops/tf/runtime/stream_layout.cc has to go. Their machine
code (x86-64) is followed along all of its branches, with what each register holds written as a
path: context[0x18][0xd8] is a word read at an offset, and .0x18() a call of the virtual function in
that slot. Needs binutils.
"""

import collections
import re
import subprocess
import sys

Layout = collections.namedtuple(
    "Layout", "params step frame device_context device info default_context stream handle"
)
# A virtual function's slot and, by the linker, whose it is.
Slot = collections.namedtuple("Slot", "offset names")

STREAM_2_15 = "_ZNK15stream_executor6Stream24platform_specific_handleEv"  # and 2.16: not virtual
CONTEXTS = ("10tensorflow16GPUDeviceContext", "10tensorflow22PluggableDeviceContext")
STREAMS = (
    "15stream_executor3gpu10CudaStream",
    "15stream_executor3gpu9GpuStream",
    "15stream_executor7CStream",
)
DEVICES = ("10tensorflow13BaseGPUDevice", "10tensorflow16ThreadPoolDevice")
HANDLES = ("24platform_specific_handleEv", "24platform_specific_streamEv", "13GpuStreamHackEv")

CALLER_SAVED = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
MEMORY = re.compile(r"^(-?0x[0-9a-f]+)?\(%(\w+)\)$")


class ElfLibrary:
    """A shared library's exported symbols, code, and what the loader writes into vtables."""

    def __init__(self, path):
        self.path = path
        self.symbols, self.names = {}, collections.defaultdict(list)
        for line in _lines("nm", "-D", "--defined-only", "-S", path):
            address, size, _, name = (line.split() + [""] * 4)[:4]
            if name:
                name = name.split("@")[0]
                self.symbols[name] = int(address, 16), int(size, 16)
                self.names[int(address, 16)].append(name)

    def code(self, function):
        """Instructions of a function by address: (operation, operands, address of the next)."""
        begin, size = self.symbols[function]
        limits = (f"--start-address={begin}", f"--stop-address={begin + size}")
        found = []
        for line in _lines("objdump", "-d", "--no-show-raw-insn", *limits, self.path):
            parts = re.match(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*?)(\s*[#<].*)?$", line)
            if parts:
                found.append((int(parts[1], 16), parts[2], parts[3]))
        following = [address for address, _, _ in found[1:]] + [begin + size]
        return {at: (*rest, after) for (at, *rest), after in zip(found, following, strict=True)}

    def vtables(self, classes):
        """{class: {slot's offset: [the function's names]}} of those that the library has."""
        ranges = {}
        for name in classes:
            if f"_ZTV{_nested(name)}" in self.symbols:
                begin, size = self.symbols[f"_ZTV{_nested(name)}"]
                ranges[name] = begin + 16, begin + size  # after offset-to-top and the type
        found = {name: {} for name in ranges}
        for line in _lines("readelf", "-rW", self.path):
            parts = line.split()
            if len(parts) < 4 or not parts[2].startswith("R_X86_64_"):
                continue
            address = int(parts[0], 16)
            for name, (begin, end) in ranges.items():
                if begin <= address < end:
                    found[name][address - begin] = self._target(parts)
        return found

    def _target(self, relocation):
        if relocation[2] == "R_X86_64_RELATIVE":
            return self.names[int(relocation[3], 16)]
        # The loader may find a function of several names by any of them.
        name = relocation[4].split("@")[0]
        return self.names[self.symbols[name][0]] if name in self.symbols else [name]


def _lines(*command):
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=300
    ).stdout.splitlines()


def _nested(name):
    return f"N{name}E"


class Follower:
    """Follows a function's code; `results` are the paths of what it returned or called last."""

    def __init__(self, code):
        self.code = code
        self.results = set()
        self._seen = set()
        self._follow(min(code), {"rdi": "context"})

    def _follow(self, address, registers):
        while address in self.code:
            state = (address, tuple(sorted(registers.items())))
            if state in self._seen:
                return
            self._seen.add(state)
            operation, operands, following = self.code[address]
            if operation.startswith("ret"):
                self.results.add(registers.get("rax", ""))
                return
            if operation.startswith("j"):
                if operands.startswith("*"):  # a call at the end
                    self.results.add(_called(operands[1:], registers))
                    return
                if operation != "jmp":
                    self._follow(following, dict(registers))
                address = int(operands, 16)
                continue
            self._step(operation, operands, registers)
            address = following

    @staticmethod
    def _step(operation, operands, registers):
        if operation.startswith("call"):
            result = _called(operands[1:], registers) if operands.startswith("*") else ""
            for name in CALLER_SAVED:
                registers.pop(name, None)
            registers["rax"] = result
            return
        parts = re.findall(r"(?:[^,(]|\([^)]*\))+", operands)
        target = parts[-1] if parts else ""
        if operation in ("test", "cmp", "push") or not target.startswith("%"):
            return
        name = target[1:]
        value = _value(parts[0], registers) if operation == "mov" and len(parts) == 2 else ""
        registers.pop(name, None)
        if value:
            registers[name] = value


def _value(operand, registers):
    """The path of a register or of a word in memory; "" if it is not known."""
    if operand.startswith("%"):
        return registers.get(operand[1:], "")
    at = MEMORY.match(operand)
    base = registers.get(at[2], "") if at else ""
    return f"{base}[{at[1] or '0x0'}]" if base else ""


def _called(operand, registers):
    """The path of what a virtual function returns: its object is in rdi."""
    function = _value(operand, registers)
    this = registers.get("rdi", "")
    slot = re.search(r"\[(0x[0-9a-f]+)\]$", function)
    if not this or not slot or function != f"{this}[0x0]{slot[0]}":
        return ""
    return f"{this}.{slot[1]}()"


def paths_of(library, function):
    """What a function of the context returns, on any of its branches."""
    return Follower(library.code(function)).results - {""}


def match(pattern, paths, what):
    """The groups of the one path that matches as a whole."""
    found = {one for path in paths if (one := re.fullmatch(pattern, path))}
    assert len(found) == 1, f"{what}: {sorted(paths)} do not have one {pattern}"
    return [int(group, 16) for group in found.pop().groups()]


def read(path) -> Layout:
    """The layout of the TensorFlow that a libtensorflow_framework.so.2 belongs to."""
    library = ElfLibrary(path)
    word = r"\[(0x[0-9a-f]+)\]"
    call = r"\.(0x[0-9a-f]+)\(\)"
    params, step = match(f"context{word}{word}", paths_of(library, "TF_StepId"), "TF_StepId")
    _, frame = match(f"context{word}{word}", paths_of(library, "TF_GetFrameId"), "TF_GetFrameId")
    streams = paths_of(library, "TF_GetStream")
    first, device_context, stream, *_ = match(
        f"context{word}{word}{call}(?:{word})+", streams, "TF_GetStream"
    )
    _, device, info, default_context, again, *_ = match(
        f"context{word}{word}{call}{word}{call}(?:{word})+", streams, "TF_GetStream"
    )
    assert (first, again) == (params, stream), streams
    tables = library.vtables([*CONTEXTS, *STREAMS, *DEVICES])
    return Layout(
        params,
        step,
        frame,
        device_context,
        device,
        _slot(tables, DEVICES, info, ("34tensorflow_accelerator_device_infoEv",)),
        default_context,
        _slot(tables, CONTEXTS, stream, ("6streamEv",)),
        _handle(library, tables),
    )


def _slot(tables, classes, offset, ends):
    """Which functions are in a slot; their names must end as expected."""
    names = {}
    for name in classes:
        if name in tables:
            names[name] = tables[name].get(offset, [])
            assert len(names[name]) == 1, f"{name}, {offset:#x}: {names[name]}"
            assert names[name][0].endswith(ends), f"{name}, {offset:#x}: {names[name]}"
    return Slot(offset, names)


def _handle(library, tables):
    """Where the CUstream is: (offset in Stream of what has it, or 0 for Stream; its slot)."""
    implementation, offset = 0, None
    if STREAM_2_15 in library.symbols:
        paths = paths_of(library, STREAM_2_15)
        implementation, offset = match(
            r"context\[(0x[0-9a-f]+)\]\.(0x[0-9a-f]+)\(\)", paths, STREAM_2_15
        )
    found = {}
    for name in STREAMS:
        for slot, names in tables.get(name, {}).items():
            if any(one.endswith(HANDLES) for one in names):
                assert len(names) == 1, f"{name}, {slot:#x}: {names}"
                found[slot] = {**found.get(slot, {}), name: names}
    if offset is None:
        assert len(found) == 1, found
        offset = next(iter(found))
    return implementation, Slot(offset, found.get(offset, {}))


def main(paths):
    """Prints the table."""
    columns = ["library", "params", "step", "frame", "device context", "device", "its info"]
    columns += ["default context", "stream", "CUstream"]
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for path in paths:
        layout = read(path)
        implementation, handle = layout.handle
        through = f"{implementation:#x}, then " if implementation else ""
        cells = [
            path,
            *(f"{value:#x}" for value in layout[:5]),
            f"slot {layout.info.offset:#x}",
            f"{layout.default_context:#x}",
            f"slot {layout.stream.offset:#x}",
            f"{through}slot {handle.offset:#x}",
        ]
        print("| " + " | ".join(cells) + " |")
        for slot in (layout.info, layout.stream, handle):
            for names in slot.names.values():
                print(f"  {slot.offset:#x}: {', '.join(names)}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
