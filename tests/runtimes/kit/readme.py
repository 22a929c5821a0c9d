"""The commands that README.md gives for an engine, so that they are tried as they are written."""
import pathlib
import shlex

README = pathlib.Path(__file__).resolve().parents[3] / "README.md"


def commands(engine):
    """The words of each command below `**ENGINE**`, without `sudo`."""
    lines = iter(README.read_text().splitlines())
    next(line for line in lines if line.startswith(f"**{engine}**"))
    found = []
    for line in lines:
        if line.startswith("**"):
            break
        if line.startswith("    "):
            for command in line.split("&&"):
                words = shlex.split(command, comments=True)
                found.append(words[words[0] == "sudo":])
    assert found, f"README.md has no commands for {engine}"
    return found
