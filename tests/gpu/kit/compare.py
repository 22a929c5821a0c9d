"""Two sets of results of this suite beside each other, one of a real card and one of the simulated GPU: where they differ, the
simulation is wrong, or a card is not like the one it was made after.

Only what the simulation claims to be like is compared: what memory costs and who shows it, what switching costs. What a call
costs is the processor's affair, and shown without judgement."""
import json
import pathlib

# Apart by more than this, and by more than a page of 2 MiB: a difference.
FACTOR, MIB = 1.25, 2.0


def load(directory):
    """The stages of a set of results, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(pathlib.Path(directory).glob("*.json"))}


def recorded(root):
    """Directories of results of real cards below `root`, oldest first."""
    return sorted(path for path in pathlib.Path(root).glob("*") if (path / "facts.json").exists())


def rows(results, stage, table, key):
    return {row[key]: row for row in results.get(stage, {}).get("tables", {}).get(table, [])}


def memory(real, simulated):
    """(what, column, real MiB, simulated MiB) wherever both have a figure, or one refused what the other gave."""
    ours = rows(simulated, "facts", "memory, MiB", "what")
    for what, row in rows(real, "facts", "memory, MiB", "what").items():
        other = ours.get(what)
        for column in ("cuda", "process", "device") if other else ():
            yield what, column, row.get(column), other.get(column)


def differs(real, simulated):
    if real is None or simulated is None:
        return real is not simulated
    low, high = sorted((abs(real), abs(simulated)))
    return high - low > MIB and high > FACTOR * low


def switching(results):
    """The part of the card's time that two busy contexts lose to switching, or None."""
    found = {row["contexts"]: row["together"] for row in results.get("probes", {}).get("tables", {}).get("native switching", [])}
    return 1 - found[2] / found[1] if 1 in found and 2 in found and found[1] else None


def differences(real, simulated):
    """Sentences, one for each thing that is not alike."""
    found = []
    for what, column, theirs, ours in memory(real, simulated):
        if differs(theirs, ours):
            found.append(f"{what}, {column}: {show(theirs)} on the card, {show(ours)} simulated")
    theirs, ours = switching(real), switching(simulated)
    if theirs is not None and ours is not None and abs(theirs - ours) > 0.02:
        found.append(f"two busy contexts lose {theirs:.1%} to switching on the card, {ours:.1%} simulated")
    return found


def show(mib):
    return "nothing told" if mib is None else f"{mib:.1f} MiB"


def calls(real, simulated):
    """(call, ns on the card's machine, ns simulated), bare; for information."""
    for table in real.get("overhead", {}).get("tables", {}):
        ours = rows(simulated, "overhead", table, "call")
        for call, row in rows(real, "overhead", table, "call").items():
            if call in ours:
                yield f"{call} ({table})", row["bare_ns"], ours[call]["bare_ns"]
