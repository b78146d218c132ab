"""Files in deploy/: valid for the programs that read them, and consistent with each other and the project."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import aiomqtt
import pytest

from p2pfl._util.console import INTERRUPTED, WRONG_USAGE
from p2pfl.node.doctor import check_broker
from tests.support import forked
from tests.support.mosquitto import PATIENCE, mosquitto, program
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ALICE, BOB, FORMER = "a1" * 32, "b0" * 32, "c2" * 32
FEDERATION = "fe" * 16
OVERSEER = "overseer"
OWN = ("passwords", "server.crt", "server.key")  # files that the operator of the broker makes


def installed(program):
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def unit_file():
    """Return the unit's settings by section; a repeated key has all its values."""
    sections = {}
    for line in (DEPLOY / "p2pfl-node.service").read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = sections[match[1]] = {}
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section[key] = f"{section[key]} {value}" if key in section else value
    return sections


def verifiable_unit(folder):
    """Write the unit with a program that exists, and return its path."""
    text = (DEPLOY / "p2pfl-node.service").read_text()
    path = folder / "p2pfl-node.service"
    path.write_text(text.replace("/opt/p2pfl/bin/p2pfl-node run", "/bin/true run"))
    return path


def test_systemd_verifies_the_unit(tmp_path):
    program = installed("systemd-analyze")
    done = subprocess.run([program, "verify", str(verifiable_unit(tmp_path))], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_rates_the_unit_as_little_exposed(tmp_path):
    program = installed("systemd-analyze")
    review = [program, "security", "--offline=yes", "--threshold=25", "--no-pager", str(verifiable_unit(tmp_path))]
    done = subprocess.run(review, capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd reviews running units only")
    assert done.returncode == 0, done.stdout[-200:]


def test_unit_stops_with_sigterm_and_restarts_on_failure():
    service = unit_file()["Service"]
    assert service["KillSignal"] == "SIGTERM"
    assert service["TimeoutStopSec"] == "10min"
    assert service["Restart"] == "on-failure"
    assert service["SuccessExitStatus"] == str(INTERRUPTED)
    assert service["RestartPreventExitStatus"] == str(WRONG_USAGE)


def containerfile():
    return [line.split() for line in (DEPLOY / "Containerfile").read_text().splitlines() if line and line[0] not in "# "]


def test_image_contains_all_packages_and_runs_without_root():
    lines = containerfile()
    copied = {word for line in lines if line[0] == "COPY" and not line[1].startswith("--") for word in line[1:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert packages <= copied
    assert all((ROOT / name).exists() for name in copied)
    assert [line[1] for line in lines if line[0] == "USER"] == ["10001"]
    assert [line[1] for line in lines if line[0] == "STOPSIGNAL"] == ["SIGTERM"]
    (extras,) = [line[1].removeprefix("EXTRAS=") for line in lines if line[1].startswith("EXTRAS=")]
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])


def test_image_runs_the_command_of_the_unit():
    lines = {line[0]: line for line in containerfile()}
    program, *arguments = unit_file()["Service"]["ExecStart"].split()
    entry, command = (" ".join(lines[key][1:]) for key in ("ENTRYPOINT", "CMD"))
    assert entry == f'["{Path(program).name}"]'
    assert command == "[" + ", ".join(f'"{argument}"' for argument in arguments) + "]"


def compose_file(name):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((DEPLOY / name).read_text())


@pytest.mark.parametrize("name", ["compose.yaml", "compose-member.yaml"])
def test_services_have_minimal_rights(name):
    compose = compose_file(name)
    for service in compose["services"].values():
        assert service["cap_drop"] == ["ALL"]
        assert "cap_add" not in service
        assert service["read_only"] is True
        assert service["security_opt"] == ["no-new-privileges:true"]
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            made = source[2:] in OWN and name == "compose-member.yaml"
            assert source in compose["volumes"] or made or (DEPLOY / source).exists()
        if build := service.get("build"):
            assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    assert any("build" in service for service in compose["services"].values())


def test_only_the_broker_with_accounts_is_published():
    assert compose_file("compose-member.yaml")["services"]["broker"]["ports"] == ["8883:8883"]
    services = compose_file("compose.yaml")["services"]
    assert set(services) == {"broker", "setup", *(f"node{k}" for k in range(1, 6))}
    assert not any("ports" in service for service in services.values())


class Containers:
    """Services of compose.yaml as processes: with its volumes in a folder, and free ports in place of its hosts.

    Args:
        folder: stands for the root of all containers.
    """

    def __init__(self, folder):
        self.services = compose_file("compose.yaml")["services"]
        self.image = {line[0]: " ".join(line[1:]) for line in containerfile()}
        self.folder = folder
        (folder / "var/lib/p2pfl").mkdir(parents=True)

    def start(self, name, **changed):
        """Start the command of a service; `changed` replaces parts of its words."""
        service = self.services[name]
        own = json.loads(self.image["ENTRYPOINT"]) if service["image"] == "p2pfl-node" else []
        words = [*service.get("entrypoint", own), *service["command"]]
        places = {volume.split(":")[1]: volume.split(":")[0] for volume in service["volumes"]}
        for inside, outside in places.items():
            real = (DEPLOY / outside).resolve() if outside.startswith("./") else self.folder / inside[1:]
            words = [
                word.replace(inside, changed.get(inside, str(real)), 1) if word.startswith(inside) else word
                for word in words
            ]
        words = [word.replace("broker:1883", changed.get("broker", "broker:1883")) for word in words]
        programs = [str(forked.commands())] if forked.POSSIBLE else []
        paths = os.pathsep.join([*programs, str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
        environment = os.environ | {"PATH": paths, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            words, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


@pytest.mark.slow
def test_compose_runs_five_nodes_and_a_broker_from_nothing(tmp_path):
    program()
    containers = Containers(tmp_path)
    (port,) = free_ports(1)
    config = tmp_path / "mosquitto.conf"  # here the broker is in the network of the machine
    text = (DEPLOY / "mosquitto-trial.conf").read_text()
    assert text.count("listener 1883\n") == 1
    config.write_text(text.replace("listener 1883", f"listener {port} 127.0.0.1"))
    running = [containers.start("broker", **{"/mosquitto/config/mosquitto.conf": str(config)})]
    try:
        for _ in range(2):  # the second time, the federation exists
            setup = containers.start("setup", broker=f"127.0.0.1:{port}")
            out, _ = setup.communicate(timeout=PATIENCE * 3)
            assert setup.returncode == 0, out
        assert out == ""
        nodes = sorted(name for name in containers.services if name.startswith("node"))
        for name, own in zip(nodes, free_ports(len(nodes)), strict=True):
            settings = tmp_path / "var/lib/p2pfl" / name / "node.toml"
            settings.write_text(settings.read_text().replace('":4100"', f'"127.0.0.1:{own}"', 1))
            running.append(containers.start(name))
        for process in running[1:]:
            lines = []
            while not lines or "all rounds are done" not in lines[-1]:
                lines.append(process.stdout.readline())
                assert lines[-1], lines
            assert any("connected members: 5 of 5" in line for line in lines)
            assert any("round 10 of 10" in line for line in lines)
        assert running[0].poll() is None
        for process in running[1:]:
            process.terminate()  # as `docker compose stop`
        for process in running[1:]:
            out, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, out
    finally:
        for process in running:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("name", ["node.yaml", "broker.yaml"])
def test_manifests_follow_the_schemas_of_kubernetes(name):
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for manifest in manifests(name):
        kubernetes.validate(manifest, kubernetes.latest_version(), strict=True)


def manifests(name):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


@pytest.mark.parametrize("name", ["node.yaml", "broker.yaml"])
def test_pods_have_minimal_rights_and_reachable_ports(name):
    service, workload = manifests(name)
    labels, pod = (workload["spec"]["template"][key] for key in ("metadata", "spec"))
    assert service["spec"]["selector"] == workload["spec"]["selector"]["matchLabels"] == labels["labels"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in [*pod["volumes"], *(c["metadata"] for c in claims(workload))]}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        rights = container["securityContext"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert [ports[port["targetPort"]] for port in service["spec"]["ports"]] == [
        port["port"] for port in service["spec"]["ports"]
    ]


def claims(workload):
    return workload["spec"].get("volumeClaimTemplates", [])


def test_pod_of_a_node_agrees_with_the_image():
    lines = {line[0]: line for line in containerfile()}
    _, workload = manifests("node.yaml")
    pod = workload["spec"]["template"]["spec"]
    assert str(pod["securityContext"]["runAsUser"]) == lines["USER"][1]
    assert " ".join(lines["CMD"][1:]) == json.dumps(pod["containers"][0]["args"])
    assert pod["terminationGracePeriodSeconds"] == 600  # as in the unit of systemd
    _, broker = manifests("broker.yaml")
    program = broker["spec"]["template"]["spec"]["containers"][0]["command"]
    assert program == compose_file("compose-member.yaml")["services"]["broker"]["command"]


def test_deploy_page_names_existing_files():
    text = (DEPLOY / "README.md").read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (DEPLOY / link.partition("#")[0]).exists(), link
    for name in re.findall(r"\bdeploy/([\w.-]+)", text):
        assert name in OWN or (DEPLOY / name).exists(), name


def test_deploy_page_names_existing_metrics():
    text = (ROOT / "node" / "status" / "endpoints.py").read_text()
    for name in set(re.findall(r"\bp2pfl_\w+", (DEPLOY / "README.md").read_text())) - {"p2pfl_validation_accuracy"}:
        assert f'"{name.removesuffix("_total")}"' in text, name


# The broker


@pytest.fixture(scope="module")
def broker(broker_process):
    return broker_process[0]


@pytest.fixture(scope="module")
def broker_process(tmp_path_factory):
    """Broker with the shipped configuration, users named by public key, and one user that reads everything.

    Returns its address, its process, and the folder with its files `passwords` and `acl`.
    """
    folder = tmp_path_factory.mktemp("broker")
    passwords, rules = folder / "passwords", folder / "acl"
    passwords.touch(0o600)
    inboxes = [f"pattern write p2pfl/{FEDERATION}/{key}/%u" for key in (ALICE, BOB, FORMER)]
    text = (DEPLOY / "acl").read_text().replace("FEDERATION", FEDERATION)
    rules.write_text("\n".join([text, *inboxes, f"user {OVERSEER}", "topic read #"]) + "\n")
    rules.chmod(0o600)
    for user in (ALICE, BOB, FORMER, OVERSEER):
        subprocess.run(
            [installed("mosquitto_passwd"), "-b", str(passwords), user, "secret"], check=True, capture_output=True
        )
    text = (DEPLOY / "mosquitto.conf").read_text().replace("/mosquitto/config/", f"{folder}/")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    assert re.findall("^listener .*", text, re.MULTILINE) == ["listener 1883", "listener 8883"]
    key = ["-nodes", "-subj", "/CN=localhost", "-keyout", str(folder / "server.key"), "-out", str(folder / "server.crt")]
    making = [installed("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *key]
    subprocess.run(making, check=True, capture_output=True)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        encrypted = one.getsockname()[1]
    lines = text.replace("\nlistener 1883\n", "\n").replace("listener 8883", f"listener {encrypted} 127.0.0.1").splitlines()
    with mosquitto(folder, port, *lines) as process:
        yield f"127.0.0.1:{port}", process, folder
        assert process.poll() is None


def delivers(broker, topic, user=ALICE, password="secret"):
    return check_broker(f"mqtt://{user}@{broker}", f"p2pfl/{FEDERATION}/{topic}", password, seconds=1.0).ok


def test_broker_accepts_configuration_and_delivers_own_inbox(broker):
    assert delivers(broker, f"{ALICE}/{ALICE}")
    assert delivers(broker, f"presence/{ALICE}")
    assert delivers(broker, f"will/{ALICE}")


def test_broker_ends_connection_of_removed_account(broker_process):
    """The commands are those of docs/how-to/run-a-broker.md."""
    address, process, folder = broker_process
    host, _, port = address.partition(":")
    assert delivers(address, f"{FORMER}/{FORMER}", FORMER)
    page = (ROOT / "docs" / "how-to" / "run-a-broker.md").read_text().partition("## Remove a member")[2]
    removing = re.findall(r"^sudo (mosquitto_passwd -D .*|sed .*)$", page, re.MULTILINE)
    assert len(removing) == 2

    def remove():
        for line in removing:
            command = line.replace("/etc/mosquitto", str(folder)).replace("$PUBLIC_KEY", FORMER)
            command = command.replace("mosquitto_passwd", installed("mosquitto_passwd"))
            subprocess.run(["sh", "-ec", command], check=True, capture_output=True)
        process.send_signal(signal.SIGHUP)

    async def main():
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(aiomqtt.MqttError):
                async with aiomqtt.Client(host, int(port), username=FORMER, password="secret") as former:
                    await asyncio.to_thread(remove)
                    await anext(former.messages)

    asyncio.run(main())
    assert FORMER not in (folder / "acl").read_text()
    assert not delivers(address, f"{FORMER}/{FORMER}", FORMER)
    assert delivers(address, f"{ALICE}/{ALICE}")


def test_broker_delivers_largest_packet_to_other_inbox(broker):
    host, _, port = broker.partition(":")
    packet = bytes(256 * 1024 + 10_000)

    def client(user):
        return aiomqtt.Client(host, int(port), username=user, password="secret")

    async def main():
        async with asyncio.timeout(PATIENCE), client(ALICE) as alice, client(BOB) as bob:
            await bob.subscribe(f"p2pfl/{FEDERATION}/{BOB}/+")
            await alice.publish(f"p2pfl/{FEDERATION}/{BOB}/{ALICE}", packet)
            return await anext(bob.messages)

    came = asyncio.run(main())
    assert (came.topic.value, came.payload) == (f"p2pfl/{FEDERATION}/{BOB}/{ALICE}", packet)


def test_broker_refuses_clients_without_password(broker):
    assert check_broker(f"mqtt://{broker}").ok is False
    assert delivers(broker, f"{ALICE}/{ALICE}", password="wrong") is False


@pytest.mark.slow
@pytest.mark.parametrize(
    "topic",
    [
        f"{ALICE}/{BOB}",  # write as another user
        f"presence/{BOB}",
        f"will/{BOB}",
        f"{BOB}/{ALICE}",  # read by a user other than the recipient
    ],
)
def test_broker_refuses_topics_of_other_users(broker, topic):
    assert delivers(broker, topic) is False


@pytest.mark.slow
def test_broker_retains_only_permitted_topics(broker):
    host, _, port = broker.partition(":")
    inside = [f"p2pfl/{FEDERATION}/{place}/{ALICE}" for place in (ALICE, BOB, "presence", "will")]
    outside = [f"p2pfl/{FEDERATION}/{k:064x}/{ALICE}" for k in range(50)] + [f"p2pfl/{'00' * 16}/{ALICE}/{ALICE}"]

    async def main():
        async with asyncio.timeout(PATIENCE):
            async with aiomqtt.Client(host, int(port), username=ALICE, password="secret") as alice:
                for topic in [*outside, *inside]:
                    await alice.publish(topic, b"kept", qos=1, retain=True)
            async with aiomqtt.Client(host, int(port), username=OVERSEER, password="secret") as overseer:
                await overseer.subscribe("#")
                kept = {(await anext(overseer.messages)).topic.value for _ in inside}
                await overseer.subscribe("#")  # all retained messages arrive again, and nothing else
                again = {(await anext(overseer.messages)).topic.value for _ in inside}
            async with aiomqtt.Client(host, int(port), username=ALICE, password="secret") as alice:
                for topic in inside:
                    await alice.publish(topic, b"", qos=1, retain=True)
        return kept, again

    assert asyncio.run(main()) == (set(inside), set(inside))
