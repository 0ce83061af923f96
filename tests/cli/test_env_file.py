"""Files of variables as people have them: written anew, after the forms of public images and job scripts."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner import communicator
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm
from tuner.jobs.environment_file import MOST_BYTES, VariablesInFile, effects, read
from tuner.scenario import Scenario

SECRET = "hunter2"
PICK = ("pick", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--bytes", "64M")
FILES = {
    "Dockerfile": (
        "FROM base\n"
        "ARG NCCL_ALGO=Tree2\n"
        "ENV NCCL_PROTO=Simple \\\n"
        "    AWS_SECRET_ACCESS_KEY=hunter2 \\\n"
        "    NCCL_BUFFSIZE=8388608\n"
        "ENV NCCL_DEBUG INFO\n"
        "ENV NCCL_SOCKET_IFNAME=^docker,lo\n",
        {
            "NCCL_PROTO": "Simple",
            "NCCL_BUFFSIZE": "8388608",
            "NCCL_DEBUG": "INFO",
            "NCCL_SOCKET_IFNAME": "^docker,lo",
        },
    ),
    "slurm.sh": (
        "#!/bin/bash\n"
        "#SBATCH --nodes=4\n"
        "# export NCCL_PROTO=LL\n"
        "export NCCL_ALGO=Ring  # slow\n"
        'WANDB_API_KEY="hunter2"\n'
        "export NCCL_DEBUG=INFO NCCL_IB_TIMEOUT='22'\n"
        "srun --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1,NCCL_CROSS_NIC=0 python t.py\n",
        {
            "NCCL_ALGO": "Ring",
            "NCCL_DEBUG": "INFO",
            "NCCL_IB_TIMEOUT": "22",
            "NCCL_IB_HCA": "mlx5_0,mlx5_1",
            "NCCL_CROSS_NIC": "0",
        },
    ),
    "mpirun.sh": (
        "mpirun -np 16 --bind-to numa -x NCCL_IB_SL=1 -x UCX_TLS=tcp \\\n"
        "  -x NCCL_NVLS_ENABLE=0 -x LD_LIBRARY_PATH ./all_reduce_perf\n",
        {
            "NCCL_IB_SL": "1",
            "NCCL_NVLS_ENABLE": "0",
        },
    ),
    "pod.yaml": (
        "spec:\n"
        "  containers:\n"
        "  - env:\n"
        "    - name: NCCL_NVLS_ENABLE\n"
        '      value: "0"\n'
        "    - name: HF_TOKEN\n"
        "      value: hunter2\n"
        "    - {name: NCCL_DEBUG, value: INFO}\n"
        "    - name: 'NCCL_MAX_NCHANNELS'\n"
        "      value: '8'\n",
        {
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_DEBUG": "INFO",
            "NCCL_MAX_NCHANNELS": "8",
        },
    ),
    "job.yaml": (
        "apiVersion: batch/v1\nkind: Job\nspec:\n  command: [bash, -c, 'mpirun -x NCCL_IB_TC=41 -x NCCL_PROTO=Simple "
        './all_reduce_perf || echo "RuntimeError: CUDA error: out of memory"\']\n',
        {
            "NCCL_IB_TC": "41",
            "NCCL_PROTO": "Simple",
        },
    ),
    "values.yaml": (
        'runtime_env:\n  env_vars:\n    NCCL_CROSS_NIC: "0"\n    NCCL_IB_TC: 52  # class\n    TOKEN: hunter2\n',
        {
            "NCCL_CROSS_NIC": "0",
            "NCCL_IB_TC": "52",
        },
    ),
    "ray.json": (
        '{\n  "NCCL_PROTO": "LL128",\n  "PASSWORD": "hunter2",\n  "NCCL_DEBUG": "WARN"\n}\n',
        {
            "NCCL_PROTO": "LL128",
            "NCCL_DEBUG": "WARN",
        },
    ),
    "env.txt": (
        "HOME=/root\nNCCL_VERSION=2.28.9-1\nSECRET=hunter2\nNCCL_NET_GDR_LEVEL=PIX\nPS1=\\u@\\h\n",
        {
            "NCCL_VERSION": "2.28.9-1",
            "NCCL_NET_GDR_LEVEL": "PIX",
        },
    ),
    "nccl.conf": (
        "# site\nNCCL_IB_HCA=mlx5_4\nNCCL_P2P_NET_CHUNKSIZE=524288\n",
        {
            "NCCL_IB_HCA": "mlx5_4",
            "NCCL_P2P_NET_CHUNKSIZE": "524288",
        },
    ),
    "profile.sh": (
        "NCCL_MIN_NCHANNELS=4\n"
        'if [ -n "$NCCL_DEBUG" ]; then echo $NCCL_DEBUG; fi\n'
        "export NCCL_TUNER_CONFIG_PATH=/usr/t.textproto; export NCCL_PROTO=LL\n"
        "unset NCCL_PROTO NCCL_ALGO\n",
        {
            "NCCL_MIN_NCHANNELS": "4",
            "NCCL_TUNER_CONFIG_PATH": "/usr/t.textproto",
        },
    ),
    "profile.csh": (
        'setenv NCCL_PROTO Simple\nsetenv TOKEN "hunter2"\nsetenv NCCL_IB_HCA "mlx5_0,mlx5_1"; echo x\n',
        {
            "NCCL_PROTO": "Simple",
            "NCCL_IB_HCA": "mlx5_0,mlx5_1",
        },
    ),
    "module.lua": (
        'setenv("NCCL_CROSS_NIC", "1")\nsetenv("TOKEN", "hunter2")\nsetenv(\'NCCL_DEBUG\',\'WARN\')\n',
        {
            "NCCL_CROSS_NIC": "1",
            "NCCL_DEBUG": "WARN",
        },
    ),
    "train.py": (
        'import os\nos.environ["NCCL_ALGO"] = "Ring"\nos.environ[\'TOKEN\']="hunter2"\n'
        'runtime_env = {"env_vars": {"NCCL_PROTO": "LL128", "NCCL_MAX_NCHANNELS": 8}}\n',
        {
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "LL128",
            "NCCL_MAX_NCHANNELS": "8",
        },
    ),
    "launcher.toml": (
        '[env]\nNCCL_ALGO = "Ring"\nTOKEN = "hunter2"\nNCCL_BUFFSIZE = 8388608\n',
        {
            "NCCL_ALGO": "Ring",
            "NCCL_BUFFSIZE": "8388608",
        },
    ),
    "set_env.sh": (
        "if [[ -z ${NCCL_PROTO:-} ]]; then export NCCL_PROTO=LL; fi\n: ${NCCL_BUFFSIZE:=8388608} ${TOKEN:=hunter2}\n",
        {
            "NCCL_PROTO": "LL",
            "NCCL_BUFFSIZE": "8388608",
        },
    ),
    "environ": (
        "NCCL_PROTO=LL\0TOKEN=hunter2\nhunter2\0NCCL_IB_HCA=mlx5_0 mlx5_1\0",
        {
            "NCCL_PROTO": "LL",
            "NCCL_IB_HCA": "mlx5_0 mlx5_1",
        },
    ),
    "launch.sh": (
        "export NCCL_ALGO=${ALGO:-Ring}\n"
        "export NCCL_PXN_DISABLE=1\n"
        "export NCCL_NET=Nowhere NCCL_FANCY=1 OFI_NCCL_DISABLE_DMABUF=1\n",
        {
            "NCCL_PXN_DISABLE": "1",
            "NCCL_NET": "Nowhere",
            "NCCL_FANCY": "1",
        },
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_variables_of_a_file_are_those_that_it_sets_and_no_secret_is_shown(name: str, tmp_path: Path) -> None:
    text, values = FILES[name]
    file = tmp_path / name
    file.write_text(text)
    found = read(file)
    assert found.values == values
    done = run(*PICK, "--env-file", str(file))
    assert SECRET not in done.stdout + done.stderr
    assert all(each in done.stderr for each in values)


@pytest.mark.parametrize("name", FILES)
def test_diagnose_takes_the_same_files(name: str, tmp_path: Path) -> None:
    text, values = FILES[name]
    file = tmp_path / name
    file.write_text(text)
    done = json.loads(run("diagnose", str(file), "--json").stdout)
    (found,) = done["files"]
    assert found["kind"] == ("configuration file of NCCL" if name == "nccl.conf" else "variables of a job")
    said = json.dumps(found)
    assert SECRET not in said
    assert all(f"{each}={value}" in said for each, value in values.items())
    if name != "nccl.conf":
        assert "--env-file" in found["command"]


def test_no_value_of_another_variable_is_shown_of_a_file_that_nccl_reads(tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    file.write_text("NCCL_ALGO=Ring\nTOKEN=hunter2\nexport SECRET=hunter2 NCCL_PROTO=LL\nAWS_KEY = hunter2 hunter2\n")
    done = run("diagnose", str(file), code=1).stdout
    assert SECRET not in done
    assert "TOKEN=..." in done
    assert "export SECRET=... NCCL_PROTO=LL" in done


@pytest.mark.parametrize("name", FILES)
def test_json_and_python_say_what_each_variable_does_and_no_secret(name: str, tmp_path: Path) -> None:
    text, values = FILES[name]
    file = tmp_path / name
    file.write_text(text)
    shown = run(*PICK, "--env-file", str(file), "--json").stdout
    (effects,) = json.loads(shown)["env_files"]
    assert SECRET not in shown
    sorts = ("changing", "tuners", "unchanging", "unread", "refused")
    assert sorted(each for sort in sorts for each in effects[sort]) == sorted(values)
    made = communicator("dgx-h100", nodes=2, nccl="2.28.9", env_files=[file])
    (own,) = made.env_files
    assert SECRET not in repr(own) + repr(made.scenario)
    assert {sort: list(getattr(own, sort)) for sort in sorts} == {sort: list(effects[sort]) for sort in sorts}
    pick = json.loads(shown)["picks"][0]["pick"]
    chosen = made.pick("allreduce", 1 << 26)
    assert pick["channels"] == chosen.channels[0]
    assert pick["algorithm"] == Algorithm(int(chosen.algorithm[0])).name


def test_without_files_nothing_is_said_of_them() -> None:
    assert "env_files" not in json.loads(run(*PICK, "--json").stdout)
    assert communicator("dgx-h100", nccl="2.28.9").env_files == ()


def test_diagnose_says_which_variables_change_picks_on_a_machine(tmp_path: Path) -> None:
    for name, text in (
        ("job.sh", "export NCCL_ALGO=Ring NCCL_DEBUG=INFO\n"),
        ("nccl.conf", "NCCL_ALGO=Ring\nNCCL_DEBUG=INFO\n"),
    ):
        file = tmp_path / name
        file.write_text(text + f"TOKEN={SECRET}\n")
        done = run("diagnose", str(file), "--machine", "dgx-h100", "--nodes", "4", "--json", code=0).stdout
        assert SECRET not in done
        (said,) = (
            each for each in json.loads(done)["files"][0]["findings"] if each["code"] == "node.environment_effects"
        )
        assert said["facts"]["on"].startswith("4 x dgx-h100")
        assert (said["facts"]["changing"], said["facts"]["unchanging"]) == (["NCCL_ALGO"], ["NCCL_DEBUG"])
        assert "environment_effects" not in run("diagnose", str(file), "--json", code=0).stdout


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("export NCCL_ALGO\nunset NCCL_DEBUG\necho $NCCL_PROTO ${NCCL_IB_HCA} # NCCL_CROSS_NIC\n", ("NCCL_ALGO",)),
        ("srun --container-env=NCCL_ALGO,NCCL_PROTO python t.py\n", ("NCCL_ALGO", "NCCL_PROTO")),
        ("env:\n- name: NCCL_IB_HCA\n  valueFrom:\n    fieldRef: {fieldPath: status.podIP}\n", ("NCCL_IB_HCA",)),
        ("export NCCL_ALGO=$MINE\nmpirun -x NCCL_DEBUG ls\n", ("NCCL_ALGO", "NCCL_DEBUG")),
        ("cp libnccl.so /opt/NCCL_HOME; make NCCL_HOME=/opt\n", ()),
    ],
)
def test_variables_that_a_file_names_without_a_value_are_said(
    text: str, named: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(text)
    found = read(tmp_path / "file")
    assert tuple(sorted((*found.computed, *found.named))) == named
    if named:
        done = run(*PICK, "--env-file", str(tmp_path / "file"))
        assert f"takes them from elsewhere (give them with --env): {', '.join(named)}" in " ".join(done.stderr.split())


def test_what_each_variable_does() -> None:
    scenario = Scenario("2.28.9", 2, machine="dgx-h100")
    values = {
        "NCCL_ALGO": "Ring",
        "NCCL_DEBUG": "INFO",
        "NCCL_NVLS_ENABLE": "2",
        "NCCL_FANCY": "1",
        "NCCL_NET": "Nowhere",
    }
    done = effects(scenario, VariablesInFile(Path("nccl.conf"), {**values, "NCCL_TUNER_PLUGIN": "none"}))
    assert done.changing == ("NCCL_ALGO",)
    assert done.unchanging == ("NCCL_DEBUG", "NCCL_NVLS_ENABLE")
    assert done.unread == ("NCCL_FANCY",)
    assert done.tuners == ("NCCL_TUNER_PLUGIN",)
    assert [*done.refused] == ["NCCL_NET"]


def answered(*words: str) -> dict[str, object]:
    """The answer in JSON without what is said of files."""
    answer: dict[str, object] = json.loads(run(*words, "--json").stdout)
    answer.pop("env_files", None)
    return answer


def test_the_answer_is_that_of_the_variables_that_are_answered(tmp_path: Path) -> None:
    first, second = tmp_path / "a.sh", tmp_path / "b.sh"
    first.write_text("export NCCL_ALGO=Ring NCCL_NET=Nowhere NCCL_PROTO=LL")
    second.write_text("export NCCL_PROTO=Simple")
    files = ("--env-file", str(first), "--env-file", str(second))
    given = ("--env", "NCCL_ALGO=Tree")
    assert answered(*PICK, *files) == answered(*PICK, "--env", "NCCL_ALGO=Ring", "--env", "NCCL_PROTO=Simple")
    assert answered(*PICK, *files, *given) == answered(*PICK, *given, "--env", "NCCL_PROTO=Simple")
    assert "left out: NCCL_NET (NCCL_NET: not emulated" in " ".join(run(*PICK, *files).stderr.split())


def test_a_tuner_of_a_cloud_is_switched_off_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("NCCL_TUNER_PLUGIN=none\n")
    pick = (
        "pick",
        "allreduce",
        "--machine",
        "p5.48xlarge",
        "--nodes",
        "4",
        "--nccl",
        "2.28.9",
        "--bytes",
        "256M",
    )
    assert answered(*pick, "--env-file", str(file)) == answered(*pick, "--env", "NCCL_TUNER_PLUGIN=none")


@pytest.mark.parametrize("content", [b"NCCL_ALGO=\0", b" " * (MOST_BYTES + 1)])
def test_what_is_no_text_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BadInput, match="is not a text of at most 1 MiB"):
        read(tmp_path / "file")


@pytest.mark.parametrize(
    "unit",
    [
        "\n",
        " ",
        "a",
        "unset a ",
        "name: x\n",
        "ENV ",
        "NCCL_A=",
        '"',
        "{",
        "- ",
        "A: ",
        '"A":',
        "setenv a ",
        "${A:=",
        'environ["',
        "setenv('a'",
        "A = ",
    ],
)
def test_any_text_is_read_in_steps_that_grow_no_faster_than_it(unit: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text((unit * MOST_BYTES)[:MOST_BYTES])
    assert read(tmp_path / "file").values.keys() <= {"NCCL_A"}
