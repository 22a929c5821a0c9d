"""A machine of one's own as far as its configuration goes: what is written to /etc, /usr/share and /var/lib
within it stays within it. So commands are tried as they are written for people, without a word about other places."""
import shutil
import subprocess

from kit import node

# An overlay over each; the directories above the new layers are the test's own.
ENTER = """\
set -e
for at in etc usr/share var/lib; do
    mkdir -p "$1/$at" "$1/work/$at"
    mount -t overlay overlay -o "lowerdir=/$at,upperdir=$1/$at,workdir=$1/work/$at" "/$at"
done
[ "$2" != alone ] || umount /sys/fs/cgroup/unified
echo ready
exec sleep infinity
"""


class Machine:
    """A mount namespace that lives until `close`. `crun` gets one cgroup hierarchy, as it wants."""

    def __init__(self, case, crun=False):
        self.case, self.dir = case, case.node.root / "machine"
        self.dir.mkdir()
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", self.dir]
        words.append("alone" if crun else "")
        self.holder = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        case.addCleanup(self.close)
        if self.holder.stdout.readline() != "ready\n":
            case.skipTest("no overlay can be mounted here")

    def write(self, path, text):
        """Below /etc, as its administrator would."""
        path = self.dir / "etc" / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *words, check=True):
        command = ["nsenter", "--mount", f"--target={self.holder.pid}", *words]
        done = subprocess.run(command, env=self.case.node.environment, capture_output=True, text=True)
        if check and done.returncode:
            raise AssertionError(f"{words}: {done.stdout}{done.stderr}")
        return done

    def gpuslice(self, *words):
        return self.run(node.BUILD / "gpuslice", *words, "--runtime-dir", self.case.node.run).stdout

    def files(self):
        """What differs from the machine around it, by path; directories do not count."""
        tops = [self.dir / "etc", self.dir / "usr"]
        found = [path for top in tops for path in top.rglob("*") if not path.is_dir()]
        return {str(path.relative_to(self.dir)): path.read_bytes() for path in found if path.is_file()}

    def close(self):
        self.holder.kill()
        self.holder.wait(node.PATIENCE_S)
        self.holder.stdout.close()
        shutil.rmtree(self.dir)
