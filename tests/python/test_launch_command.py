"""smddprun's command lines: hosts, options and environment -> words of mpirun and srun."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from launch_line import INTEL, MPICH, OPEN_MPI_4, OPEN_MPI_5, USER, line

from smddp_tf.launch import LaunchError, hosts, mpi
from smddp_tf.launch import __main__ as launch
from smddp_tf.launch.hosts import Host
from smddp_tf.launch.machine import Machine


def refused(capsys, words, **settings):
    """The sentence with which a command line is refused."""
    with pytest.raises((LaunchError, SystemExit)) as error:
        line(words, **settings)
    return str(error.value) if error.type is LaunchError else capsys.readouterr().err


ON_B = (  # with several hosts
    "-x PATH -x SMDDP_LAUNCH_HOSTS -x SMDDP_LAUNCH_PORT -x SMDDP_RESTART "
    "-x MASTER_ADDR -x MASTER_PORT"
)


@pytest.mark.parametrize(
    ("launcher", "words", "wanted"),
    [
        (OPEN_MPI_5, "-np 4", "-np 4 --map-by slot --bind-to none"),
        (OPEN_MPI_5, "-np 9", "-np 9 --map-by slot:OVERSUBSCRIBE --bind-to none"),
        (OPEN_MPI_5, "-np 9 -H localhost:9", "-np 9 --map-by slot:OVERSUBSCRIBE --bind-to none"),
        (OPEN_MPI_5, "-H here:2", "-np 2 --map-by slot --bind-to none"),
        (
            OPEN_MPI_5,
            "-np 2 --cores-per-rank 4 --tag-output",
            "-np 2 --map-by slot:PE=4 --bind-to core --output tag",
        ),
        (
            OPEN_MPI_5,
            "-H a:4,b:2 --verbose",
            f"-np 6 --map-by slot --bind-to none -H a:4,b:2 --display map {ON_B}",
        ),
        (
            OPEN_MPI_5,
            "-H a,b -np 3 --nic lo -p 2222",
            "-np 3 --map-by slot --bind-to none -H a:2,b:1 --mca btl_tcp_if_include lo --prtemca "
            f"prte_if_include lo --prtemca plm_ssh_args -p 2222 {ON_B} -x NCCL_SOCKET_IFNAME=lo "
            "-x GLOO_SOCKET_IFNAME=lo",
        ),
        (
            OPEN_MPI_5,
            "-np 2 -x A=1,2 --env B --output-filename /logs --tag-output",
            "-np 2 --map-by slot --bind-to none --output tag,file=/logs/rank -x A=1,2 -x B",
        ),
        (
            OPEN_MPI_4,
            "-np 2 --tag-output --verbose --output-filename /logs --start-timeout 9",
            "-np 2 --map-by slot --bind-to none --mca btl_vader_single_copy_mechanism none --mca "
            "orte_startup_timeout 9 --tag-output --output-filename /logs --display-map",
        ),
        (
            OPEN_MPI_4,
            "-np 3 -H a:2,b:2 --nic lo -i key",
            "-np 3 --map-by slot --bind-to none -H a:2,b:1 --mca btl_vader_single_copy_mechanism "
            "none --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo --mca plm_rsh_args "
            f"-i key {ON_B} -x NCCL_SOCKET_IFNAME=lo -x GLOO_SOCKET_IFNAME=lo",
        ),
        (MPICH, "-np 9", "-np 9 -bind-to none"),
        (MPICH, "-np 2 --cores-per-rank 3 --tag-output", "-np 2 -bind-to core:3 -prepend-rank"),
        (
            MPICH,
            "-H a:4,b:4 --nic lo -x A=1 -x B",
            "-np 8 -bind-to none -hosts a:4,b:4 -iface lo -genv A 1 -genv NCCL_SOCKET_IFNAME lo "
            "-genv GLOO_SOCKET_IFNAME lo",
        ),
        (
            OPEN_MPI_5,
            "-np 2 --timeline-filename t.json --fusion-threshold-mb 64 --no-stall-check "
            "--cycle-time-ms 1 --mpi --log-level TRACE",
            "-np 2 --map-by slot --bind-to none -x SMDDP_TIMELINE=t.json "
            "-x SMDDP_BUCKET_BYTES=67108864 -x SMDDP_LOG_LEVEL=debug "
            "-x SMDDP_STALL_WARNING_SECONDS=0",
        ),
        (
            OPEN_MPI_5,
            "-np 2 -prefix-timestamp --tag-output --mpi-args=--x=y --autotune-log-file f "
            "--torus-allreduce --thread-affinity 0 --log-hide-timestamp --gloo-timeout-seconds 9",
            "-np 2 --map-by slot --bind-to none --output tag,timestamp --x=y",
        ),
    ],
)
def test_mpirun(launcher, words, wanted):
    """Of each MPI, for one host and for several."""
    assert line(f"{words} python train.py", launcher) == f"mpirun {wanted} python train.py"


def test_root():
    """Open MPI refuses to run as root unless told."""
    root = Machine(root=True, cores=8, name="here")
    assert "-np 2 --allow-run-as-root" in line("-np 2 python t.py", machine=root)
    assert "root" not in line("-np 2 python t.py", MPICH, machine=root)


def test_variables_go_to_other_hosts_only():
    """A rank of this host inherits them; which GPUs are visible is each host's own affair."""
    given = {"SMDDP_TIMEOUT_SECONDS": "9", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": "/p"}
    given |= {"HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "SM_X": "1"}
    wanted = "-x PATH -x PYTHONPATH -x SMDDP_TIMEOUT_SECONDS -x TF_CPP_MIN_LOG_LEVEL"
    assert wanted in line("-H a:1,b:1 python t.py", environment=given)
    assert "-x" not in line("-np 2 python t.py", environment=given).split()
    for left_out in ("HOME", "CUDA", "SM_X"):
        assert left_out not in line("-H a:1,b:1 python t.py", environment=given)
    assert "SMDDP_RESTART" not in line("-H a:1,b:1 --dry-run python t.py")
    assert "-x PYTHONPATH=/q -x PATH" in line("-H a:1,b:1 -x PYTHONPATH=/q python t.py")


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("-np 2 python train.py -np 3 --nic x", "python train.py -np 3 --nic x"),
        ("-np 2 python train.py -- --flag", "python train.py -- --flag"),
        ("-np 2 -- --mca a b python train.py", "--mca a b python train.py"),
        ("-np 2 -- python train.py -- x", "python train.py -- x"),
        ("-np 2 no_such_dir/train.py", "python no_such_dir/train.py"),
        ("-np 2 python t.py --alias horovodrun", "python t.py --alias horovodrun"),
        ("-np 2 --alias python train.py", "python -m smddp_tf.compat train.py"),
        ("-np 2 --alias train.py x", "python -m smddp_tf.compat train.py x"),
        ("--alias horovodrun -np 2 python t.py", "python -m smddp_tf.compat t.py"),
        ("--alias -np 2 python -m a.b x", "python -m smddp_tf.compat -m a.b x"),
        (
            "-np 2 --alias python -u -W error -X dev t.py",
            "python -u -W error -X dev -m smddp_tf.compat t.py",
        ),
    ],
)
def test_where_the_program_begins(words, program):
    """At the first word that is no option; behind `--` all is mpirun's."""
    assert line(words) == f"mpirun -np 2 --map-by slot --bind-to none {program}"


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4(x2)"}
SAGEMAKER = {
    "SM_HOSTS": json.dumps(["algo-1", "algo-2"]),
    "SM_CURRENT_HOST": "algo-1",
    "SM_NUM_GPUS": "8",
    "SM_NETWORK_INTERFACE_NAME": "eth0",
}


def test_slurm():
    """Hosts and the number of ranks come from the allocation, unless they are given."""
    assert "-np 8 --map-by slot --bind-to none -H n1:4,n2:4" in line(
        "python t.py", environment=SLURM
    )
    assert "-H n1:4,n2:1 " in line("-np 5 python t.py", environment=SLURM)
    assert "-H a:1,b:1 " in line("-H a:1,b:1 python t.py", environment=SLURM)
    options_ = "--distribution=block --kill-on-bad-exit=1"
    assert line("--srun python t.py", environment=SLURM) == (
        f"srun --mpi=pmix --ntasks=8 {options_} --cpu-bind=none --nodelist=n1,n2 python t.py"
    )
    assert line("--srun -np 2 -x A=1,2 --cores-per-rank 3 --tag-output python t.py", MPICH) == (
        f"env A=1,2 srun --mpi=pmi2 --ntasks=2 {options_} --cpus-per-task=3 --cpu-bind=cores "
        "--label python t.py"
    )


def test_sagemaker():
    """A container's hosts, GPUs and interface; its variables go to all hosts."""
    made = line("python t.py", OPEN_MPI_4, environment=SAGEMAKER)
    assert "-np 16 " in made
    assert "-H algo-1:8,algo-2:8" in made
    assert "--mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0" in made
    assert "-x SM_HOSTS" in made
    alone = {**SAGEMAKER, "SM_HOSTS": '["algo-1"]', "SM_NUM_GPUS": "0"}
    there = Machine(root=False, cores=8, name="algo-1")
    wanted = "mpirun -np 1 --map-by slot --bind-to none python t.py"
    assert line("python t.py", machine=there, environment=alone) == wanted


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("python t.py", "how many ranks?"),
        ("-np 2 python t.py a : b", "an argument `:` would begin another program for mpirun"),
        ("-np 2 -H= python t.py", "'' is not HOST or HOST:SLOTS"),
        ("-np 2 --hostfile= python t.py", "--hostfile  cannot be read"),
        ("-H a:\u00b2 python t.py", "'\u00b2' slots; it takes a whole number from 1 to 1000000"),
        ("-np 2", "no program"),
        ("-np 0 python t.py", "'0' is not a whole number from 1 to 1000000"),
        ("-np 4294967298 python t.py", "is not a whole number from 1 to 1000000"),
        ("-H [::1]:2 python t.py", "mpirun takes no IPv6 address as [::1]"),
        ("-np 2 --nic eth99 python t.py", "no interface 'eth99' here, but"),
        ("-np 2 no-such-program-here", "there is no such program here"),
        ("-np 2 -x =1 python t.py", "is not NAME=VALUE or NAME"),
        ("-np 2 --alias bash t.sh", "--alias is for `python train.py`"),
        ("-np 2 --alias python -c 1", "not `python -c`"),
        ("-np 2 --alias python", "Python is given no script"),
        ("-np 2 --alias -- python t.py", "--alias takes the program directly"),
        ("-np 2 --gloo", "--gloo of horovodrun has no meaning here: ranks are connected by MPI"),
        ("-np 2 --mpi-args=' python t.py", "No closing quotation"),
        ("-np 2 --srun --mpi-args=x python t.py", "--srun takes none of --nic"),
        ("-np 9 -H a:4,b:4 python t.py", "-np 9, but the hosts a:4,b:4 have 8 slots"),
        ("-H a,b python t.py", "how many ranks? Give -np, or slots for each host"),
        ("-np 1 -H a,b python t.py", "leaves no rank for some of the hosts"),
        ("-H a;4 python t.py", "'a;4' is not HOST or HOST:SLOTS"),
        ("-H a:1,a -np 3 python t.py", "a is named twice"),
        ("-np 2 --hostfile /no/such python t.py", "--hostfile /no/such cannot be read"),
        ("-np 2 -H a --hostfile b python t.py", "not allowed with argument"),
        ("-np 2 --srun --nic lo python t.py", "--srun takes none of --nic"),
        ("-np 2 --srun -- python t.py", "`--` is for mpirun's options"),
        ("-np 2 --fusion-threshold-mb -1 python t.py", "--fusion-threshold-mb -1 is out of range"),
    ],
)
def test_refusals(capsys, words, sentence):
    """Say what was given and what is taken."""
    assert sentence in refused(capsys, words)


def test_refusals_of_mpich_and_environments(capsys):
    """What one MPI cannot do; allocations that are not understood."""
    text = refused(capsys, "-np 2 --start-timeout 9 python t.py", mpi=MPICH)
    assert "--start-timeout needs Open MPI, and this is MPICH 5.0.2 (mpirun)" in text
    for option in ("--tcp", "--prefix-output-with-timestamp"):
        text = refused(capsys, f"-np 2 {option} python t.py", mpi=MPICH)
        assert f"{option} needs Open MPI, and this is MPICH" in text
    text = refused(capsys, "-np 2 --start-timeout 9 python t.py")
    assert "--start-timeout needs Open MPI 4, and this is Open MPI 5.0.11" in text
    worker = {**SAGEMAKER, "SM_CURRENT_HOST": "algo-2"}
    text = refused(capsys, "python t.py", environment=worker)
    assert "this host is algo-2, and the job is launched on algo-1" in text
    for bad in ({"SM_HOSTS": "algo-1"}, {"SM_NUM_GPUS": "many"}, {"SM_HOSTS": "{}"}):
        text = refused(capsys, "python t.py", environment={**SAGEMAKER, **bad})
        assert "are not understood" in text
    for bad, said in (
        ({"SLURM_TASKS_PER_NODE": "4(x3)"}, "is for 3 hosts"),
        ({"SLURM_TASKS_PER_NODE": "four"}, "is not understood; give -H"),
        ({"SLURM_JOB_NODELIST": "n[1-"}, "is not a list of hosts"),
        ({"SLURM_JOB_NODELIST": "n[2-1]"}, "[2-1] is not understood"),
    ):
        assert said in refused(capsys, "python t.py", environment={**SLURM, **bad})


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("head", ["head"]),
        ("n1,n3", ["n1", "n3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("gpu-[1,3-4].x,c", ["gpu-1.x", "gpu-3.x", "gpu-4.x", "c"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_nodelists(nodelist, names):
    """As `scontrol show hostnames` expands them."""
    assert hosts.expand_nodelist(nodelist) == names


def test_hostfiles():
    """Open MPI's and MPICH's form; a host that is named again has more slots."""
    text = "# hosts\na slots=4\nb:2  # two\n\n10.0.0.3\na slots = 1\n"
    assert hosts.parse_hostfile(text, "f") == [Host("a", 5), Host("b", 2), Host("10.0.0.3")]
    with pytest.raises(LaunchError, match="f, line 2: 'a slots' is not"):
        hosts.parse_hostfile("\na slots\n", "f")
    with pytest.raises(LaunchError, match="f names no host"):
        hosts.parse_hostfile("# nothing\n", "f")


def test_ranks_of_hosts():
    """They fill hosts in order; hosts without slots share what is left."""
    assert hosts.assign([Host("a"), Host("b"), Host("c")], 7) == [
        Host("a", 3),
        Host("b", 2),
        Host("c", 2),
    ]
    assert hosts.assign([Host("a", 1), Host("b"), Host("c")], 4) == [
        Host("a", 1),
        Host("b", 2),
        Host("c", 1),
    ]
    assert hosts.assign([Host("a", 4), Host("b", 4)], 3) == [Host("a", 3)]


def test_intel_mpi(capsys):
    """It binds by variables, which the user may set; hosts have no slots, but may come again."""
    words = "-np 4 python train.py"
    assert line(words, INTEL) == "mpirun -np 4 -genv I_MPI_PIN 0 python train.py"
    two = dataclasses.replace(USER, sockets=2)
    assert "-genv I_MPI_PIN_DOMAIN socket" in line(words, INTEL, two)
    own = "mpirun -np 4 python train.py"
    assert line(words, INTEL, environment={"I_MPI_PIN_DOMAIN": "2"}) == own
    assert "I_MPI_PIN " not in line(f"-x I_MPI_PIN_DOMAIN=2 {words}", INTEL)
    pin = "-genv I_MPI_PIN 0"
    assert f"{pin} -hosts a,b -ppn 2 " in line(f"-H a:2,b:2 {words}", INTEL)
    assert f"{pin} -hosts a,b,b,b -ppn 1 " in line(f"-H a:1,b:3 {words}", INTEL)
    for option in ("--cores-per-rank 2", "--tcp", "--srun"):
        assert "Intel MPI 2021.18.1" in refused(capsys, f"{option} {words}", mpi=INTEL)
    library = "I_MPI_PMI_LIBRARY=/slurm/libpmi2.so"
    assert "srun --mpi=pmi2" in line(f"--srun -x {library} {words}", INTEL)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to", ("openmpi", "5.0.11", 5)),
        ("mpiexec (OpenRTE) 4.1.4\n\nReport", ("openmpi", "4.1.4", 4)),
        ("HYDRA build details:\n    Version:          5.0.2\n  Release", ("mpich", "5.0.2", 5)),
        ("mpirun (Open MPI) 3.1.2", None),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b4)",
            ("intel", "2021.18.1", 2021),
        ),
        ("HP MPI 2.3", None),
        ("", None),
    ],
)
def test_which_mpi(said, found):
    """By what `mpirun --version` says."""
    if found is None:
        with pytest.raises(LaunchError, match="none of Open MPI 4 or later, MPICH and Intel"):
            mpi.identify("/x/mpirun", said)
        return
    made = mpi.identify("/x/mpirun", said)
    assert (made.kind, made.version, made.major) == found


def test_two_mpis_in_one_folder(tmp_path):
    """As in /usr/bin of Debian: mpirun answers for itself, unless it needs what is beside it."""
    intel = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 1"
    scripts = {"mpirun": "echo 'mpirun (Open MPI) 4.1.4'", "mpiexec.hydra": f"echo '{intel}'"}
    for name, line_ in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line_}\n")
        (tmp_path / name).chmod(0o755)
    assert mpi.ask(str(tmp_path / "mpirun")).kind == "openmpi"
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho mpiexec.hydra: not found\nexit 127\n")
    asked = mpi.ask(str(tmp_path / "mpirun"))
    assert (asked.kind, asked.path) == ("intel", str(tmp_path / "mpiexec.hydra"))


def test_the_library_of_an_mpirun(tmp_path):
    """Beside it, where ranks under srun cannot know of it; through a link to the launcher too."""
    for folder in ("bin", "lib", "links"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin/mpirun").touch()
    (tmp_path / "links/mpirun").symlink_to(tmp_path / "bin/mpirun")
    made = [mpi.Mpi(str(tmp_path / one / "mpirun"), "mpich", "5.0") for one in ("bin", "links")]
    assert [mpi.library(one) for one in made] == ["", ""]
    (tmp_path / "lib/libmpi.so.12").touch()
    assert [mpi.library(one) for one in made] == [str(tmp_path / "lib/libmpi.so.12")] * 2


def test_an_mpirun_that_is_a_link(tmp_path):
    """It is called where its daemon is, unless there is one beside the link."""
    for folder in ("bin", "links"):
        (tmp_path / folder).mkdir()
    for file in ("bin/orterun", "bin/orted"):
        (tmp_path / file).touch(0o755)
    (tmp_path / "links/mpirun").symlink_to(tmp_path / "bin/orterun")
    assert mpi.find(None, str(tmp_path / "links")) == str(tmp_path / "bin/orterun")
    (tmp_path / "links/orted").symlink_to(tmp_path / "bin/orted")
    assert mpi.find("mpirun", str(tmp_path / "links")) == str(tmp_path / "links/mpirun")


def test_an_mpirun_that_sets_its_prefix(tmp_path):
    """PyPI's Open MPI 4: ranks on other hosts get OPAL_PREFIX from it."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.8'\n")
    mpirun.chmod(0o755)
    for hosts_, wanted in (("a:1,b:1", True), ("localhost:2", False)):
        for moved in (False, True):
            words = ["--mpirun", str(mpirun), "-H", hosts_, "--dry-run", sys.executable]
            ran = run_smddprun(*words)
            assert ("-x OPAL_PREFIX" in ran.stdout) == (wanted and moved), ran.stdout + ran.stderr
            (tmp_path / "orterun_wrapper").touch()
        (tmp_path / "orterun_wrapper").unlink()


def test_no_mpirun(tmp_path, monkeypatch):
    """The sentence says what to install."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(LaunchError, match="no mpirun on PATH.*pip install 'smddp_tf"):
        mpi.find(None, str(tmp_path))
    with pytest.raises(LaunchError, match="--mpirun x: there is no such program"):
        mpi.find("x", str(tmp_path))


def run_smddprun(*words, timeout=600, **variables):
    """Runs it as a process; nothing of its environment but what is given."""
    return subprocess.run(
        [sys.executable, "-m", "smddp_tf.launch", *words],
        env={"PATH": "/usr/bin:/bin", **variables},
        cwd=launch.__file__.rsplit("/smddp_tf/", 1)[0],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_as_a_rank_it_becomes_the_program():
    """As when SageMaker's toolkit has mpirun start `smddprun python ...`."""
    program = [sys.executable, "-c", "import os, sys; sys.exit(int(os.environ['A']))"]
    assert run_smddprun("-x", "A=7", *program, OMPI_COMM_WORLD_RANK="0").returncode == 7
    shown = run_smddprun("--dry-run", *program[:2], "-", PMI_RANK="1")
    assert shown.stdout == f"{sys.executable} -c -\n"
    nested = run_smddprun("-np", "2", *program, PMI_RANK="1")
    assert nested.returncode == 2
    assert "this process is a rank of a job already" in nested.stderr


def test_the_toolkits_ranks_may_use_all_cores():
    """SageMaker's toolkit does not tell Open MPI to bind nothing; ranks of others stay bound."""
    code = "import os; print(*sorted(os.sched_getaffinity(0)))"
    all_cores = os.sched_getaffinity(0)
    for told, wanted in (("SMDATAPARALLEL_USE_SINGLENODE", all_cores), ("OTHER", {min(all_cores)})):
        result = subprocess.run(
            ["taskset", "-c", str(min(all_cores)), sys.executable, "-m", "smddp_tf.launch"]
            + [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(sys.path), "OMPI_COMM_WORLD_RANK": "0", told: "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        assert set(map(int, result.stdout.split())) >= wanted
        assert told != "OTHER" or result.stdout.split() == [str(min(all_cores))]


def test_it_imports_neither_tensorflow_nor_numpy():
    """It starts at once."""
    code = "import sys, smddp_tf.launch.__main__; print('tensorflow' in sys.modules)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert result.stdout.strip() == "False"
