"""What GPUs do, without any framework: on the machine's own, and on simulated ones.

The programs here are what to run by hand too; see docs/gpu.md.
"""

import json
import pathlib
import sys

import launcher
import pytest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = launcher.ROOT / "build"
SIMULATED = {
    "SMDDP_TEST_CUDA": str(BUILD / "fake_cuda/libcuda.so.1"),
    "SMDDP_NCCL_LIBRARY": str(BUILD / "fake_nccl/libnccl.so.2"),
    "FAKE_CUDA_DELAY": "20",
}
ONE_GPU = {"FAKE_CUDA_UUID": "7", "FAKE_CUDA_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}  # of all
KERNELS_OF_THE_FAKE = (0xBA55ED50).to_bytes(8, "little")


def _why_no_gpu() -> str:
    """What the machine's driver says; "" if it has a GPU."""
    probe = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import cuda_driver; cuda_driver.count()"
    )
    code, output, _ = launcher.run_command([sys.executable, "-c", probe], timeout=60)
    return "" if code == 0 else output.strip().splitlines()[-1]


@pytest.fixture(params=["simulated", "the machine's"])
def machine(request):
    """The environment of a job on GPUs of one kind, and whether they are real."""
    if request.param == "simulated":
        return SIMULATED, False
    why = _why_no_gpu()
    if why:
        pytest.skip(f"this machine has no GPU: {why}")
    return {}, True


def _mpirun(ranks, program, *arguments, env, timeout=120):
    command = [*launcher.mpirun(ranks), sys.executable, HERE / program, *map(str, arguments)]
    code, output, timed_out = launcher.run_command(command, timeout=timeout, env=env)
    assert not timed_out and code == 0, output[-8000:]
    return output


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", ["by NCCL", "by NCCL on one GPU", "by the host"])
def test_every_collective(machine, tmp_path, way, ranks):
    """All kinds, dtypes, ops and lengths, with tensors at odd addresses, against numpy."""
    env, real = machine
    settings = {"SMDDP_NCCL": "off" if way == "by the host" else "required"}
    if way == "by NCCL on one GPU":
        settings |= ONE_GPU
    large = ["--large", 5_000_011 if real else 50_000]
    _mpirun(ranks, "correct.py", *large, "--out", tmp_path, env=env | settings, timeout=300)
    reports = [json.loads((tmp_path / f"rank{r}.json").read_text()) for r in range(ranks)]
    for report in reports:
        if way == "by the host":
            assert report["nccl"] == "none" and report["nccl_collectives"] == 0, report
            continue
        packs = not report["kernels"].startswith("none: ")
        assert report["nccl_collectives"] > report["collectives"] // 2, report
        assert (report["nccl_packed"] > 50) == packs, report


def test_a_rank_dies(machine):
    """While NCCL reduces: the others are told which one, in seconds."""
    env, real = machine
    arguments = ["correct.py", "--kill", "--large", 5_000_011 if real else 50_000]
    command = [*launcher.mpirun(3), sys.executable, HERE / arguments[0], *map(str, arguments[1:])]
    env = env | {"SMDDP_NCCL": "required"}
    code, output, timed_out = launcher.run_command(command, timeout=60, env=env)
    assert not timed_out and code != 0, output[-4000:]
    # mpirun may end the others before they have printed anything, but the library writes this.
    assert "rank 2 (process" in output, output[-4000:]
    told = [json.loads(line) for line in output.splitlines() if line.startswith('{"waited')]
    assert all(one["waited_seconds"] < 5 for one in told), told


@pytest.mark.quiet
def test_speed(machine, tmp_path):
    """The figures are there; on a real GPU they are those that docs/gpu.md asks for."""
    env, real = machine
    if real:
        images = [BUILD / "cuda/pack.image", BUILD / "pack.image"]
        image = next((path for path in images if path.exists()), None)
        if image is None:
            pytest.skip("there are no kernels to time: run `make cuda` first")
        arguments = ["--image", image]
    else:
        image = tmp_path / "pack.image"
        image.write_bytes(KERNELS_OF_THE_FAKE)
        arguments = ["--image", image, "--repeats", 3, "--largest", 2000]
    output = _mpirun(2, "speed.py", *arguments, env=env, timeout=300)
    report = json.loads(output[output.index("{") :])
    assert [row["list"] for row in report["packing"]] == 2 * ["resnet50"] + 2 * ["bert"]
    assert len(report["buckets"]) == 3 and report["nccl_collectives"] > 0, report
    for row in report["packing"]:
        figures = [row[name] for name in ("copy_gbs", "pack_gbs", "unpack_gbs")]
        assert all(figure > 0 for figure in figures), row
        assert not real or min(row["pack_of_copy"], row["unpack_of_copy"]) >= 0.85, row
    for row in report["buckets"]:
        assert min(row["post_us"], row["bucket_us"], row["nccl_us"]) > 0, row
        assert not real or row["post_us"] < 30, row
        # NCCL alone means nothing where ranks share a GPU, whose contexts take turns.
        shared = report["ranks"] > report["gpus"]
        assert not real or shared or row["over_nccl_us"] < 10, row
