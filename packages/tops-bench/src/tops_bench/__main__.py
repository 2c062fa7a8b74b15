"""python -m tops_bench"""

import sys

from tops_bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
