"""The licence of every installed package, as a table: what a user of foveate takes on.

python tools/licences.py
"""

from __future__ import annotations

from importlib.metadata import Distribution, distributions


def licence(package: Distribution) -> str:
    """The licence that a package states: its expression, its classifiers, or the first line of its licence field."""
    info = package.metadata
    named = [
        line.rpartition("::")[2].strip()
        for line in info.get_all("Classifier") or []
        if line.startswith("License ::") and line != "License :: OSI Approved"
    ]
    stated = (info.get("License") or "").strip().splitlines()
    return info.get("License-Expression") or ", ".join(named) or (stated[0][:60] if stated else "not stated")


def main() -> None:
    rows = sorted(
        {(p.metadata["Name"], p.version, licence(p)) for p in distributions()}, key=lambda row: row[0].lower()
    )
    width = max(len(name) for name, _, _ in rows)
    for name, version, stated in rows:
        print(f"{name:{width}}  {version:14}  {stated}")
    unknown = [name for name, _, stated in rows if stated == "not stated"]
    print(f"\n{len(rows)} packages, {len(unknown)} without a stated licence: {', '.join(unknown) or 'none'}")


if __name__ == "__main__":
    main()
