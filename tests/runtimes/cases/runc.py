"""runc and crun, with nothing above them: with our hooks in the bundle, and through the wrapper."""
import json
import os
import shutil
import subprocess

from kit import bundle, node

ASK = {"gpuslice.io/memory": "256MiB"}
# cGPU's words for the same of a GPU of 1 GiB.
CGPU = ["ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_MEM_DEV=4"]


class Hooks(node.Case):
    """The hooks are in the bundle's own configuration."""

    needs = ("runc",)
    runtime = "runc"

    def test_slice(self):
        def edit(config):
            config["hooks"] = bundle.hooks(self.node.run)
        container = bundle.Bundle(self, self.runtime, "hooked", node.TENANT, ASK, edit=edit).start()
        self.judge_slice(container)
        container.stop()
        self.no_slice_is_left()


class HooksOfCrun(Hooks):
    needs = ("crun",)
    runtime = "crun"


class Wrapper(node.Case):
    """`gpuslice-runtime` puts them there."""

    needs = ("runc",)
    runtime = "runc"

    def bundle(self, name, words, *args, **more):
        self.node.set_runtime(self.runtime)
        crun = self.runtime == "crun"
        return bundle.Bundle(self, self.node.wrapper, name, words, *args, crun=crun, **more)

    def test_slice(self):
        for ask, variables in [(ASK, []), ({}, CGPU)]:
            container = self.bundle("wrapped", node.TENANT, ask, variables).start()
            self.judge_slice(container)
            container.stop()
            self.no_slice_is_left()

    def test_nothing_asked(self):
        """The file is the same file, and the container sees nothing of us."""
        container = self.bundle("plain", node.PRINT_MOUNTS)
        file = container.dir / "config.json"
        before = (file.read_bytes(), file.stat().st_ino, file.stat().st_mtime_ns)
        self.judge_plain(*container.ends())
        self.assertEqual((file.read_bytes(), file.stat().st_ino, file.stat().st_mtime_ns), before)

    def test_edit(self):
        """Only the hook is added; mode and owner stay; a second call adds nothing."""
        container = self.bundle("edited", ["/bin/true"], ASK)
        file = container.dir / "config.json"
        container.config["annotations"]["other"] = "y" * 5000
        text = json.dumps(container.config)[:-1] + ', "number": 18446744073709551616e400}'
        file.write_text(text)
        file.chmod(0o640)
        os.chown(file, 1000, 1000)
        status, printed = container.ends()
        self.assertEqual(status, 0, printed)
        edited = file.read_text()
        self.assertTrue(edited.startswith(text[:-1]) and edited.endswith("}"), edited)
        self.assertEqual((file.stat().st_mode & 0o777, file.stat().st_uid), (0o640, 1000))
        hooks = json.loads(edited)["hooks"]
        self.assertEqual({stage: len(list_) for stage, list_ in hooks.items()}, {"createRuntime": 1})
        container.stop()
        self.assertEqual(container.ends()[0], 0)
        self.assertEqual(file.read_text(), edited)
        self.assertEqual(sorted(path.name for path in container.dir.glob(".*")), [])


class WrapperOfCrun(Wrapper):
    needs = ("crun",)
    runtime = "crun"


class Callers(node.Case):
    """What goes wrong is said where the caller looks for it, and nothing starts."""

    needs = ("runc",)

    def call(self, *words, **environment):
        environment = self.node.environment | environment
        done = subprocess.run([self.node.wrapper, *words], env=environment, capture_output=True, text=True)
        return done.returncode, done.stderr

    def test_refusal(self):
        container = bundle.Bundle(self, self.node.wrapper, "bad", ["/bin/true"], {"gpuslice.io/memory": "8GB"})
        log = self.node.root / "log.json"
        words = ["--log", str(log), "--log-format", "json", "create", "--bundle", str(container.dir), "x"]
        status, said = self.call("--root", str(self.node.root / "state"), *words)
        self.assertEqual(status, 1)
        self.assertIn("gpuslice.io/memory=8GB", said)
        line = json.loads(log.read_text())
        self.assertEqual((line["level"], line["msg"]), ("error", said.strip()))
        self.assertNotIn("hooks", json.loads((container.dir / "config.json").read_text()))

    def test_other_verbs_read_no_bundle(self):
        for words in [["state", "none"], ["delete", "none"], ["features"], ["--version"]]:
            own = subprocess.run(["runc", *words], env=self.node.environment, capture_output=True, text=True)
            self.assertEqual(self.call(*words)[0], own.returncode, words)

    def test_hostile_configurations(self):
        """A caller's file that is too large, cut off or no JSON: a sentence, no crash, no start."""
        directory = self.node.root / "hostile"
        directory.mkdir()
        for text in ["", "[1", "{" * 100000, '{"annotations":{}', '{"x":"' + "y" * (65 << 20) + '"}']:
            (directory / "config.json").write_text(text)
            status, said = self.call("create", "--bundle", str(directory), "x")
            self.assertEqual(status, 1, text[:20])
            self.assertIn("gpuslice: invalid input from the container runtime: ", said)

    def test_settings(self):
        """A chain that leads back, no runtime, a mistyped file."""
        other = self.node.root / "other-runtime"
        other.write_text(f'#!/bin/sh\nexec {self.node.wrapper} "$@"\n')
        other.chmod(0o755)
        self.node.set_runtime(str(other))
        status, said = self.call("list")
        self.assertEqual(status, 1)
        self.assertIn("calls it again", said)
        self.node.set_runtime("no-such-runtime", self.node.wrapper)
        self.assertIn("there is no no-such-runtime", self.call("list")[1])
        (self.node.root / "runtime.json").write_text('{"runtime": "runc"}')
        self.assertIn("unknown field `runtime`", self.call("list")[1])

    def test_hook_missing(self):
        self.node.set_runtime("runc", hook="/nonexistent/gpuslice-hook")
        container = bundle.Bundle(self, self.node.wrapper, "hookless", ["/bin/true"], ASK)
        status, said = container.ends()
        self.assertEqual(status, 1)
        self.assertIn("the hook is not at /nonexistent/gpuslice-hook", said)

    def test_found_on_path_without_finding_itself(self):
        """Installed as `runc` before the real one: the one behind it is called."""
        place = self.node.root / "bin"
        place.mkdir()
        shutil.copy(self.node.wrapper, place / "runc")
        path = f"{place}:{self.node.environment['PATH']}"
        done = subprocess.run(["runc", "--version"], env=self.node.environment | {"PATH": path}, capture_output=True)
        self.assertTrue(done.stdout.startswith(b"runc version"), done)
