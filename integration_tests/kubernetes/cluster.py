"""A Kubernetes cluster of one node on this machine: a real control plane, containerd and kubelet,
and a fake GPU from a device plugin. Needs root, for network namespaces and containers."""

import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time

NETNS = "orcd-k8s"
NODE_IP = "10.98.0.1"
NODE = "gpu-0"
PATIENCE_S = 180
# All kubelets use this folder, whatever their --root-dir.
DEVICE_PLUGINS = pathlib.Path("/var/lib/kubelet/device-plugins")


class Cluster:
    """Owns the cluster's processes and their folder. `bin_dir` has the programs."""

    def __init__(self, bin_dir):
        self.bin = pathlib.Path(bin_dir)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="orcd-k8s-"))
        self.processes = []
        self.others_namespaces = namespaces()
        self.kubeconfig = self.folder / "kubeconfig"
        self.environment = os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
        }

    def inside(self, *command):
        """The command in the cluster's network namespace. (`ip netns exec` would hide cgroups.)"""
        return ["nsenter", f"--net=/var/run/netns/{NETNS}", *map(str, command)]

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                self.inside(*command),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )
        self.processes.append((name, process))
        return process

    def run(self, *command, check=True, timeout=PATIENCE_S):
        """Runs the command and returns its standard output."""
        result = subprocess.run(
            self.inside(*command),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            cwd=self.folder,
            env=self.environment,
        )
        if check and result.returncode != 0:
            raise RuntimeError(f"{command} ended with {result.returncode}: {result.stderr}")
        return result.stdout

    def kubectl(self, *words, **options):
        return self.run("kubectl", *words, **options)

    def apply(self, *objects):
        path = self.folder / f"apply-{secrets.token_hex(4)}.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        self.kubectl("apply", "-f", path)

    def get(self, *words):
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def wait_for(self, what, condition, timeout=PATIENCE_S):
        """Waits until `condition` holds and returns the seconds that took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > timeout:
                raise TimeoutError(f"after {timeout} s: not {what}; logs are in {self.folder}")
            time.sleep(0.25)
        return time.monotonic() - began

    # Start of the cluster.

    def up(self):
        self.make_network()
        self.start_control_plane()
        self.start_node()
        self.wait_for("the node is ready", self.node_is_ready)
        self.wait_for("the kubelet takes plugins", (DEVICE_PLUGINS / "kubelet.sock").exists)
        self.plugin = self.start("fakegpu", "fakegpu", DEVICE_PLUGINS)
        self.wait_for("the node has a GPU", lambda: self.gpus() == 1)

    def make_network(self):
        subprocess.run(["ip", "netns", "del", NETNS], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "add", NETNS], check=True)
        for words in [
            "link set lo up",
            "link add d0 type veth peer name d1",
            f"addr add {NODE_IP}/24 dev d0",
            "link set d0 up",
            "link set d1 up",
            "route add default dev d0",
        ]:
            subprocess.run(["ip", "-n", NETNS, *words.split()], check=True)
        self.run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def start_control_plane(self):
        key = self.folder / "sa.key"
        self.run("openssl", "genrsa", "-out", key, "2048")
        token = secrets.token_hex(16)
        (self.folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [
                        {
                            "name": "c",
                            "cluster": {
                                "server": "https://127.0.0.1:16443",
                                "insecure-skip-tls-verify": True,
                            },
                        }
                    ],
                    "users": [{"name": "u", "user": {"token": token}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "c",
                }
            )
        )
        etcd = "http://127.0.0.1:23790"
        peer = "http://127.0.0.1:23800"
        self.start(
            "etcd",
            *["etcd", "--data-dir", "etcd", "--unsafe-no-fsync"],
            *["--listen-client-urls", etcd, "--advertise-client-urls", etcd],
            *["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer],
            *["--initial-cluster", f"default={peer}"],
        )
        self.start(
            "kube-apiserver",
            *["kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1"],
            *["--advertise-address", "127.0.0.1", "--endpoint-reconciler-type=none"],
            *["--secure-port", "16443", "--cert-dir", "certs"],
            *["--service-cluster-ip-range", "10.0.0.0/24"],
            *["--service-account-issuer", "https://kubernetes.default.svc"],
            *["--service-account-key-file", key, "--service-account-signing-key-file", key],
            *["--token-auth-file", "tokens.csv", "--authorization-mode", "Node,RBAC"],
            *["--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP"],
            "--enable-admission-plugins=NodeRestriction",
        )
        ready = lambda: "ok" in self.kubectl("get", "--raw", "/readyz", check=False)
        self.wait_for("the API server is ready", ready)
        config = ["--kubeconfig", self.kubeconfig, "--authentication-kubeconfig", self.kubeconfig]
        config += ["--authorization-kubeconfig", self.kubeconfig, "--leader-elect=false"]
        config += ["--bind-address", "127.0.0.1"]
        self.start(
            "kube-controller-manager",
            *["kube-controller-manager", *config, "--cert-dir", "kcm"],
            *["--service-account-private-key-file", key, "--use-service-account-credentials"],
            *["--root-ca-file", "certs/apiserver.crt"],
        )
        self.start("kube-scheduler", "kube-scheduler", *config, "--cert-dir", "ks")

    def start_node(self):
        cni = self.folder / "cni"
        cni.mkdir()
        (cni / "10-ptp.conflist").write_text(
            json.dumps(
                {
                    "cniVersion": "0.4.0",
                    "name": "ptp",
                    "plugins": [
                        {
                            "type": "ptp",
                            "ipMasq": False,
                            "ipam": {
                                "type": "host-local",
                                "ranges": [[{"subnet": "10.98.1.0/24"}]],
                                "routes": [{"dst": "0.0.0.0/0"}],
                                "dataDir": str(self.folder / "ipam"),
                            },
                        }
                    ],
                }
            )
        )
        self.socket = self.folder / "containerd.sock"
        cri = "plugins.'io.containerd.cri.v1.runtime'"
        (self.folder / "containerd.toml").write_text(
            f"""version = 3
root = "{self.folder}/containerd"
state = "{self.folder}/containerd-state"
[grpc]
address = "{self.socket}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "localhost/pause:1"
[{cri}]
restrict_oom_score_adj = true
[{cri}.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{cni}"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "/usr/sbin/runc"
SystemdCgroup = false
"""
        )
        self.start("containerd", "containerd", "--config", "containerd.toml")
        self.wait_for("containerd serves", self.socket.exists)
        (self.folder / "kubelet.json").write_text(
            json.dumps(
                {
                    "apiVersion": "kubelet.config.k8s.io/v1beta1",
                    "kind": "KubeletConfiguration",
                    "address": NODE_IP,
                    "port": 10350,
                    "healthzPort": 10348,
                    "failCgroupV1": False,
                    "cgroupDriver": "cgroupfs",
                    "cgroupsPerQOS": False,
                    "enforceNodeAllocatable": [],
                    "containerRuntimeEndpoint": f"unix://{self.socket}",
                    "authentication": {
                        "anonymous": {"enabled": True},
                        "webhook": {"enabled": False},
                    },
                    "authorization": {"mode": "AlwaysAllow"},
                    "featureGates": {"KubeletInUserNamespace": True},
                    "evictionHard": {},
                    "failSwapOn": False,
                    "localStorageCapacityIsolation": False,
                    "podLogsDir": str(self.folder / "podlogs"),
                    "volumePluginDir": str(self.folder / "volplug"),
                }
            )
        )
        self.start(
            "kubelet",
            *["kubelet", "--config", "kubelet.json", "--kubeconfig", self.kubeconfig],
            *["--root-dir", self.folder / "kubelet", "--cert-dir", "kubelet-certs"],
            *["--hostname-override", NODE, "--node-ip", NODE_IP],
        )

    def node_is_ready(self):
        nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for node in nodes
            for condition in node["status"].get("conditions", [])
        )

    def gpus(self):
        """Number of GPUs that can be allocated to pods."""
        return int(self.get("node", NODE)["status"]["allocatable"].get("nvidia.com/gpu", 0))

    def flip_gpu_health(self):
        self.plugin.send_signal(signal.SIGUSR1)

    def import_image(self, name, root, config):
        """Makes an image named `name`, with one layer from the folder `root`."""
        work = self.folder / f"image-{secrets.token_hex(4)}"
        work.mkdir()
        with tarfile.open(work / "layer.tar", "w") as layer:
            layer.add(root, arcname=".")
        (work / "config.json").write_text(
            json.dumps(
                {
                    "architecture": "amd64",
                    "os": "linux",
                    "config": config,
                    "rootfs": {"type": "layers", "diff_ids": [sha256(work / "layer.tar")]},
                }
            )
        )
        (work / "manifest.json").write_text(
            json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}])
        )
        with tarfile.open(work / "image.tar", "w") as image:
            for part in ["manifest.json", "config.json", "layer.tar"]:
                image.add(work / part, arcname=part)
        self.run("ctr", "-a", self.socket, "-n", "k8s.io", "images", "import", work / "image.tar")
        shutil.rmtree(work)

    # End of the cluster.

    def down(self):
        if self.kubeconfig.exists():
            self.kubectl("delete", "pods", "-A", "--all", "--force", check=False, timeout=60)
        self.kill_containers()
        for _, process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        mounts = pathlib.Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        for point in reversed([line.split()[1] for line in mounts]):
            if point.startswith(str(self.folder)):
                subprocess.run(["umount", "-l", point], check=False)
        subprocess.run(["ip", "netns", "del", NETNS], check=False)
        # Also deletes the pods' network namespaces, because their creator is gone.
        for name in namespaces() - self.others_namespaces:
            if name.startswith("cni-"):
                subprocess.run(["ip", "netns", "del", name], check=False)

    def kill_containers(self):
        """Kills all containers. They are not containerd's children and would outlive it."""
        ctr = ["ctr", "-a", self.folder / "containerd.sock", "-n", "k8s.io", "tasks"]
        for task in self.run(*ctr, "ls", "-q", check=False).split():
            self.run(*ctr, "kill", "-s", "SIGKILL", task, check=False)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def namespaces():
    """The names of the machine's network namespaces."""
    folder = pathlib.Path("/var/run/netns")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def sha256(path):
    output = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout
    return f"sha256:{output.split()[0]}"
