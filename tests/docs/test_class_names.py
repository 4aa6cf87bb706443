import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("schemas", "ledger", "projections", "consumers", "adapters", "ops", "interfaces")
#: Each adapter gives its framework the same name.
ON_PURPOSE = {"Approvals"}


def test_each_name_of_a_class_stands_once():
    """A reader who looks for a public class finds one."""
    places = defaultdict(set)
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            for one in ast.parse(file.read_text()).body:
                if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
                    places[one.name].add(str(file.relative_to(ROOT)))
    twice = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    assert twice.keys() == ON_PURPOSE, twice
