"""A path inside a container is another file of the node: by the mounts that the launch command names."""

from __future__ import annotations

import pytest

from runbook.model.template import SubmitContext, TemplateFile
from runbook.template import named_files, programs_started


def on_node(text: str) -> list[str | None]:
    """Where the files lie that a script names, each in its container."""
    files = named_files(TemplateFile("job.sh", f"#!/bin/bash\n{text}\n"))
    return [file.path if file.container is None else file.container.on_node(file.path or "", "/proj") for file in files]


PYXIS = "srun --container-image=nvcr.io/x:1 --container-mounts="


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (f"{PYXIS}/home/a/code:/w python /w/run.py --config /w/c.yaml", ["/home/a/code/c.yaml", "/home/a/code/run.py"]),
        (f"{PYXIS}/home/a/code:/w:ro,/data:/data python /w/run.py --config /data/c.yaml",
         ["/data/c.yaml", "/home/a/code/run.py"]),
        (f"{PYXIS}/home/a:/w,/scratch/b:/w/b python /w/b/run.py", ["/scratch/b/run.py"]),
        (f"{PYXIS}/home/a:/w python /opt/run.py --config /w/../etc/c.yaml", [None, None]),
        (f"{PYXIS}$WHERE:/w python /w/run.py", [None]),
        (f"{PYXIS}/home/a:/w --container-workdir=/w python run.py", ["/home/a/run.py"]),
        (f"{PYXIS}/home/a:/w python run.py", [None]),
        (f"{PYXIS}/home/a:/w bash -c 'cd /w/b && python run.py'", ["/home/a/b/run.py"]),
        (f"cd /home/a\n{PYXIS}/home/a:/home/a python run.py", [None]),
        ("srun --container-name=mine --container-mounts=/home/a:/w python /w/run.py --config /c.yaml",
         [None, "/home/a/run.py"]),
        (f"{PYXIS}/home/a bash -c 'python /home/a/run.py --x 1'", ["/home/a/run.py"]),
        ("srun --container-mounts /home/a:/w --container-image x bash /w/run.sh", ["/home/a/run.sh"]),
        ("srun apptainer exec --nv --bind /home/a:/w,/x x.sif python /w/run.py", ["/home/a/run.py"]),
        ("srun singularity exec -B /home/a:/w x.sif python /home/a/run.py", ["/home/a/run.py"]),
        ("docker run -v /home/a:/w image python /w/run.py --config /c.yaml", [None, "/home/a/run.py"]),
        ("enroot start --mount /home/a:/w image python /w/run.py", ["/home/a/run.py"]),
        ("enroot start -m /home/a:/w image python /w/run.py", ["/home/a/run.py"]),
        ("docker run -w /w -v/home/a:/w image python run.py --config conf/a.yaml",
         ["/home/a/conf/a.yaml", "/home/a/run.py"]),
        ("docker run -m 64g -itw /w -v /home/a:/w image python run.py", ["/home/a/run.py"]),
        ("docker run --mount type=bind,source=/home/a,target=/w image python /w/run.py", ["/home/a/run.py"]),
        ("docker run --mount type=volume,source=/home/a,target=/w image python /w/run.py", [None]),
        ("docker run -v /home/a:/w image python run.py", [None]),
        ("podman run --workdir=/w --volume=/home/a:/w image python -m pkg --config a.yaml", ["/home/a/a.yaml"]),
        ("apptainer exec --pwd /w --bind /home/a:/w x.sif python run.py --config conf/a.yaml",
         ["/home/a/conf/a.yaml", "/home/a/run.py"]),
        ("apptainer exec x.sif python run.py --config /opt/app/a.yaml", [None, "run.py"]),
        ("apptainer exec x.sif bash -c 'python /proj/run.py'", ["/proj/run.py"]),
        ("apptainer exec --containall x.sif python run.py --config /home/a/a.yaml", [None, None]),
        ("export APPTAINER_BIND=/home/a:/w,/data\napptainer exec x.sif python /w/run.py --config /data/a.yaml",
         ["/data/a.yaml", "/home/a/run.py"]),
        ("SINGULARITY_BINDPATH=/home/a:/w singularity exec x.sif python /w/run.py", ["/home/a/run.py"]),
        ("srun -n 2 shifter --image=x --volume=/home/a:/w python /w/run.py --config /opt/a.yaml",
         [None, "/home/a/run.py"]),
        ("srun python /w/run.py", ["/w/run.py"]),
    ],
)  # fmt: skip
def test_where_it_lies_on_the_node(command: str, found: list[str | None]) -> None:
    assert on_node(command) == found


def test_a_directive_puts_every_command_into_the_container() -> None:
    header = "#SBATCH --container-image=x\n#SBATCH --container-mounts=/home/a:/w\n"
    assert on_node(f"{header}srun python /w/run.py") == ["/home/a/run.py"]
    (program,) = programs_started(TemplateFile("job.sh", f"#!/bin/bash\n{header}srun python /w/run.py\n"))
    assert program.container is not None and program.container.on_node("/w/run.py") == "/home/a/run.py"


def test_what_the_submitter_binds_counts() -> None:
    script = TemplateFile("job.sh", "#!/bin/bash\napptainer exec x.sif python /w/run.py\n")
    (file,) = named_files(script, SubmitContext({"APPTAINER_BIND": "/home/a:/w"}))
    assert file.container is not None and file.container.on_node("/w/run.py") == "/home/a/run.py"
