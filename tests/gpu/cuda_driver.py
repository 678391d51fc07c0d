"""A GPU through CUDA's driver API: memory, streams, events and kernels, without any framework.

SMDDP_TEST_CUDA is the path of a driver to use, such as that of tests/fake_cuda; by default it is
the machine's. It has to be opened before the library opens its own: both then get the same one.
"""

import ctypes
import functools
import os

import numpy as np

_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_WORD = 16  # bytes


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver, initialised; OSError if there is none, RuntimeError if it has no GPU."""
    path = os.environ.get("SMDDP_TEST_CUDA") or "libcuda.so.1"
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    _check(library.cuInit(0), "cuInit", library)
    return library


def _check(result: int, function: str, library=None) -> None:
    if result == 0:
        return
    text = ctypes.c_char_p()
    (library or driver()).cuGetErrorString(result, ctypes.byref(text))
    raise RuntimeError(f"{function}: {(text.value or b'unknown error').decode()} ({result})")


def call(function: str, *arguments) -> None:
    """Calls a function of the driver's; RuntimeError if it fails."""
    _check(getattr(driver(), function)(*arguments), function)


def count() -> int:
    """The GPUs of the machine."""
    number = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(number))
    return number.value


def choose_host() -> None:
    """Has NCCL connect ranks of one GPU, where there are more of them on this machine.

    It does if it takes them for ranks of different hosts. To be called before init().
    """
    ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
    if ranks > count():
        os.environ["NCCL_HOSTID"] = f"host of rank {os.environ['OMPI_COMM_WORLD_RANK']}"


class Array:
    """A numpy array's elements in memory of the GPU, `shift` bytes behind its alignment."""

    def __init__(self, gpu, elements: np.ndarray, shift: int = 0):
        self._gpu, self.dtype, self.shape = gpu, elements.dtype, elements.shape
        self.nbytes = elements.nbytes
        self._memory = ctypes.c_void_p()
        # Whole words: NCCL's broadcast reads those around the bytes that it sends (seen by
        # compute-sanitizer, 2.28).
        size = ctypes.c_size_t((shift + self.nbytes) // _WORD * _WORD + _WORD)
        call("cuMemAlloc_v2", ctypes.byref(self._memory), size)
        self.address = self._memory.value + shift
        self.write(elements)

    def write(self, elements: np.ndarray) -> None:
        """In the GPU's stream, which is waited for."""
        self._copy("cuMemcpyHtoDAsync_v2", self.address, elements.ctypes.data)

    def read(self) -> np.ndarray:
        """After what the GPU's stream has to do."""
        elements = np.empty(self.shape, self.dtype)
        self._copy("cuMemcpyDtoHAsync_v2", elements.ctypes.data, self.address)
        return elements

    def _copy(self, function, to, source) -> None:
        if self.nbytes == 0:
            return
        size = ctypes.c_size_t(self.nbytes)
        call(function, ctypes.c_void_p(to), ctypes.c_void_p(source), size, self._gpu.stream)
        self._gpu.wait()

    def free(self) -> None:
        call("cuMemFree_v2", self._memory)


class Gpu:
    """One of the machine's GPUs, current on the thread that made it, with a stream of its own."""

    def __init__(self, ordinal: int = 0):
        driver()
        self._device, context = ctypes.c_int(), ctypes.c_void_p()
        call("cuDeviceGet", ctypes.byref(self._device), ordinal)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        call("cuCtxPushCurrent_v2", context)
        self.stream = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(self.stream), _NON_BLOCKING)

    def close(self) -> None:
        """The GPU is no longer current."""
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def capability(self) -> int:
        """10 times the major number and the minor one: 90 for sm_90."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        for value, attribute in zip((major, minor), _COMPUTE_CAPABILITY, strict=True):
            call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._device)
        return 10 * major.value + minor.value

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        call("cuDeviceGetName", text, len(text), self._device)
        return text.value.decode()

    def wait(self) -> None:
        call("cuStreamSynchronize", self.stream)

    def array(self, elements, shift: int = 0) -> Array:
        return Array(self, np.ascontiguousarray(elements), shift)

    def milliseconds(self, enqueue) -> float:
        """What the GPU needs for what enqueue() puts into its stream."""
        begin, end, elapsed = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
        for event in (begin, end):
            call("cuEventCreate", ctypes.byref(event), 0)
        call("cuEventRecord", begin, self.stream)
        enqueue()
        call("cuEventRecord", end, self.stream)
        call("cuEventSynchronize", end)
        call("cuEventElapsedTime", ctypes.byref(elapsed), begin, end)
        for event in (begin, end):
            call("cuEventDestroy_v2", event)
        return elapsed.value


class Module:
    """The kernels of an image that cuModuleLoadData() takes."""

    def __init__(self, image: bytes):
        self._image = ctypes.create_string_buffer(image, len(image))
        self._module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._module), self._image)

    def function(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        return function


def launch(gpu: Gpu, function, blocks: int, threads: int, parameter: ctypes.Structure) -> None:
    """Enqueues a kernel of one parameter in the GPU's stream."""
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
    grid = (blocks, 1, 1, threads, 1, 1)
    call("cuLaunchKernel", function, *grid, 0, gpu.stream, parameters, None)
