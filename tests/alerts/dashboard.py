#!/usr/bin/env python3
"""Checks the packaged dashboard against Grafana's own schema, as its generated SDK has it.

Usage: dashboard.py FILE, by an interpreter that has requirements.txt. What the schema does not know is lost when the
SDK reads and writes the dashboard; so each key that the file has must still be there afterwards.
"""
import json
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(before, after, at=""):
    """Places that the first value has and the second has not."""
    if isinstance(before, dict):
        for key, value in before.items():
            if value in (None, [], {}) and not (isinstance(after, dict) and after.get(key)):
                continue  # an empty value may be left out
            if not isinstance(after, dict) or key not in after:
                yield f"{at}.{key}"
            else:
                yield from lost(value, after[key], f"{at}.{key}")
    elif isinstance(before, list):
        if not isinstance(after, list) or len(before) != len(after):
            yield f"{at}[{len(before)}]"
        else:
            for n, (one, other) in enumerate(zip(before, after)):
                yield from lost(one, other, f"{at}[{n}]")
    elif before != after:
        yield f"{at}: {before!r} became {after!r}"


def main():
    register_default_plugins()
    before = json.loads(pathlib.Path(sys.argv[1]).read_text())
    dashboard = Dashboard.from_json(before)
    after = json.loads(JSONEncoder(sort_keys=True).encode(dashboard))
    places = list(lost(before, after))
    for place in places:
        print(f"not in Grafana's schema: {place}")
    ids = [panel["id"] for panel in before["panels"]]
    assert len(set(ids)) == len(ids), "two panels have one id"
    print(f"dashboard: {len(ids)} panels, {len(places)} failed")
    return 1 if places else 0


sys.exit(main())
