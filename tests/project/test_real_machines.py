"""Page docs/real-machines.md: a test runs every command, and three machines meet at a broker."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from p2pfl.node.folder.config import STATUS
from tests.support import forked
from tests.support.namespaces import machines, until
from tests.support.pages import block, blocks

PAGE = "real-machines.md"
LONG = 200  # seconds of real time after which something has gone wrong


def test_every_block_of_real_machines_is_run_by_a_test():
    """test_namespaces runs the blocks before the broker, this file the last one."""
    words = ("federation create laptop", "invite laptop", "join pi-1", "join pi-2", "status pi-1", "broker=")
    assert [block(PAGE, word) for word in words] == [text for _, text in blocks(PAGE)]


MACHINES = {1: "laptop", 2: "pi-1", 3: "pi-2"}


class Homes:
    """Run the page's commands on three machines at one switch, and copy the files of tokens between them."""

    def __init__(self, net, root):
        self.net, self.root, self.running = net, root, []
        commands = f"{forked.commands()}:" if forked.POSSIBLE else ""
        self.environment = {"PATH": f"{commands}{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"}

    def type(self, i, command):
        return self.net.run(i, ["bash", "-ec", command], cwd=self.root, env=self.environment, timeout=LONG).stdout

    def leave_running(self, i, command):
        with (self.root / f"{MACHINES[i]}.log").open("ab") as log:
            self.running.append(
                self.net.start(i, ["bash", "-ec", command], cwd=self.root, env=self.environment, stdout=log, stderr=log)
            )

    def status(self, name):
        path = self.root / name / STATUS
        return json.loads(path.read_text()) if path.exists() else {"state": "", "peers": []}

    def serving(self):
        return all(self.status(name)["state"] == "serving" for name in MACHINES.values())

    def logs(self):
        return "".join(path.read_text() for path in self.root.glob("*.log"))

    def stop(self):
        """Send SIGINT, as Ctrl-C does, and wait."""
        for name in MACHINES.values():
            if (pid := self.status(name).get("pid")) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
        for process in self.running:
            process.wait(LONG)
        self.running = []


@pytest.mark.slow
def test_three_machines_learn_through_a_broker(tmp_path):
    """The machines can reach only the broker, on a fourth machine."""
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("Mosquitto is not installed")
    (tmp_path / "mosquitto.conf").write_text("listener 1883 0.0.0.0\nallow_anonymous true\npersistence false\n")
    tmp_path.chmod(0o755)
    with machines(4) as net:
        homes = Homes(net, tmp_path)
        broker = net.start(4, [program, "-c", str(tmp_path / "mosquitto.conf")], stderr=subprocess.DEVNULL)
        url = "mqtt://10.77.0.4:1883"
        through = block(PAGE, "broker=").replace("mqtt://broker.example:1883", f"{url} --set mdns=false")

        def without_run(command):
            return command.partition("p2pfl-node run")[0].replace(" init ", f" init --listen 127.0.0.1:4100 --broker {url} ")

        try:
            homes.type(1, without_run(block(PAGE, "federation create laptop")))
            homes.leave_running(1, through.replace("pi-1", "laptop"))
            until(lambda: homes.status("laptop")["state"] == "waiting", homes.logs, LONG)
            homes.type(1, block(PAGE, "invite laptop"))
            for i, name in ((2, "pi-1"), (3, "pi-2")):
                homes.type(i, without_run(block(PAGE, f"join {name}")))
                homes.leave_running(i, through.replace("pi-1", name))
            until(homes.serving, homes.logs, LONG)
            assert "through the broker" in homes.type(2, "p2pfl-node status pi-1")
        finally:
            homes.stop()
            broker.terminate()
            broker.wait()
