import json
import sys
from pathlib import Path

from checker import check


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: python -m checker LOG JOURNAL")
        return 2
    log, journal = (map(json.loads, Path(one).read_text().splitlines()) for one in sys.argv[1:])
    found = check(log, journal)
    for one in found:
        print(one)
    return 1 if found else 0


sys.exit(main())
