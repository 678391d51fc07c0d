"""smddprun's command lines, by what the launching machine has: sockets, networks, names."""

import dataclasses
import os
import pathlib
import platform
import socket
import subprocess
import sys

import pytest
from launch_line import MPICH, OPEN_MPI_4, OPEN_MPI_5, line

from smddp_tf.launch import __main__ as launch
from smddp_tf.launch import command, machine
from smddp_tf.launch.hosts import Host
from smddp_tf.launch.machine import Machine


@pytest.mark.parametrize(
    ("launcher", "words", "wanted"),
    [
        (OPEN_MPI_5, "-np 8", "-np 8 --map-by ppr:4:package --bind-to package:if-supported"),
        (OPEN_MPI_4, "-np 2", "-np 2 --map-by ppr:1:socket --bind-to socket:if-supported"),
        (MPICH, "-np 4", "-np 4 -bind-to socket"),
        (OPEN_MPI_5, "-np 3", "-np 3 --map-by slot --bind-to none"),  # not as many on each
        (OPEN_MPI_5, "-np 10", "-np 10 --map-by slot:OVERSUBSCRIBE --bind-to none"),
        (MPICH, "-np 10", "-np 10 -bind-to none"),
        (OPEN_MPI_5, "-np 4 --cores-per-rank 2", "-np 4 --map-by slot:PE=2 --bind-to core"),
        (OPEN_MPI_5, "-H a:4,b:4", "-np 8 --map-by slot --bind-to none -H a:4,b:4"),
        (OPEN_MPI_5, "-np 4 --binding-args=", "-np 4 python"),
        (OPEN_MPI_5, "-np 4 --binding-args=--bind-to=core", "-np 4 --bind-to=core python"),
        (OPEN_MPI_5, "-np 4 -- --bind-to numa", "-np 4 --bind-to numa python"),
        (MPICH, "-np 4 --mpi-args=-bind-to=core --", "-np 4 -bind-to=core python"),
    ],
)
def test_two_sockets(launcher, words, wanted):
    """Each gets as many ranks as the other, unless some would have fewer cores by that."""
    two = Machine(root=False, cores=8, name="here", sockets=2)
    assert line(f"{words} python t.py", launcher, two).startswith(f"mpirun {wanted}")


@pytest.mark.parametrize(
    ("usable", "wanted"),
    [(range(8), (4, 2)), ([0, 1, 4, 5], (2, 1)), ([0, 2], (2, 1)), ([0, 9], (2, 1))],
)
def test_cores_and_sockets(tmp_path, usable, wanted):
    """Two sockets of two cores of two threads; which only count if all of it may be used."""
    for number in range(8):
        topology = tmp_path / f"cpu{number}/topology"
        topology.mkdir(parents=True)
        core = number % 4
        (topology / "thread_siblings_list").write_text(f"{core},{core + 4}\n")
        (topology / "physical_package_id").write_text(f"{core // 2}\n")
    assert machine.cores_and_sockets(set(usable), str(tmp_path)) == wanted


def test_where_ranks_start(capsys):
    """A line for each rank, in large jobs for each host; none where the user places them."""
    here = Machine(root=False, cores=8, name="here")
    three = command.Job(ranks=3, hosts=[Host("a", 2), Host("b", 1)])
    launch._say_ranks(three, here)
    said = [f"smddprun: rank {rank} starts on {host}\n" for rank, host in enumerate("aab")]
    assert capsys.readouterr().err == "".join(said)
    launch._say_ranks(command.Job(ranks=65), here)
    assert capsys.readouterr().err == "smddprun: ranks 0 to 64 start on here\n"
    launch._say_ranks(dataclasses.replace(three, more=["--map-by", "node"]), here)
    assert capsys.readouterr().err == ""


def test_a_container_that_forbids_binding_memory():
    """As Docker does: a launcher that binds would warn, or end the job."""
    if platform.machine() != "x86_64":
        pytest.skip("the filter is for x86-64")
    code = "import no_readv; no_readv.refuse(238)\n"
    code += "from smddp_tf.launch import machine; print(machine.may_bind_memory())"
    path = ":".join([*sys.path, str(pathlib.Path(__file__).parents[1] / "multirank")])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert ran.stdout == "False\n"


HERE_AND_B = "-np 2 --map-by slot --bind-to none -H here:1,b:1"


@pytest.mark.parametrize(
    ("launcher", "words", "settings", "wanted"),
    [
        (OPEN_MPI_5, "", {}, "--mca pml ob1 -x"),
        (OPEN_MPI_5, "", {"fabric": "infiniband/efa_0"}, "-x"),
        (
            OPEN_MPI_5,
            "--tcp",
            {"fabric": "infiniband/efa_0"},
            "--mca pml ob1 --mca btl self,sm,tcp",
        ),
        (OPEN_MPI_5, "", {"name": "login"}, "-x"),  # what the hosts have is not known there
        (OPEN_MPI_5, "", {"name": "login", "others": frozenset(["b"])}, "--mca pml ob1 -x"),
        (OPEN_MPI_4, "", {}, "--mca btl_vader_single_copy_mechanism none -x"),
        (OPEN_MPI_4, "--tcp", {}, "--mca pml ob1 --mca btl self,vader,tcp --mca btl_vader"),
    ],
)
def test_messages_between_hosts(launcher, words, settings, wanted):
    """On plain Ethernet Open MPI 5 is told that, so that a rank's death is noticed."""
    there = Machine(**{"root": False, "cores": 8, "name": "here", **settings})
    made = line(f"{words} -H here:1,b:1 python t.py", launcher, there)
    assert made.startswith(f"mpirun {HERE_AND_B} {wanted}")


def test_messages_are_as_the_user_says():
    """By MPI's own options or variables."""
    made = line("-H here:1,b:1 -- --mca pml ucx python t.py")
    assert made.count("pml") == 1
    assert "pml" not in line("-H here:1,b:1 python t.py", environment={"OMPI_MCA_pml": "ucx"})
    assert line("-np 2 --srun --tcp python t.py").startswith(
        "env OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp srun"
    )


def test_fast_networks(tmp_path):
    """Devices as the kernel lists them; a folder without any is of a module that is loaded only."""
    (tmp_path / "cxi").mkdir()
    assert machine.fabric(str(tmp_path)) == ""
    (tmp_path / "cxi/cxi0").touch()
    assert machine.fabric(str(tmp_path)) == "cxi/cxi0"
    for device in ("mlx5_1", "mlx5_0"):
        (tmp_path / "infiniband" / device).mkdir(parents=True)
    assert machine.fabric(str(tmp_path)) == "infiniband/mlx5_0"


def test_this_machine():
    """It is known by its name, its addresses, and SageMaker's name for it."""
    found = machine.this_machine({"SM_CURRENT_HOST": "algo-7"})
    assert found.root == (os.geteuid() == 0)
    assert 1 <= found.cores <= os.cpu_count()
    for name in ("localhost", "127.0.0.1", socket.gethostname(), "algo-7"):
        assert found.is_called(name)
    assert not found.is_called("algo-8")
    assert not found.is_called("")
