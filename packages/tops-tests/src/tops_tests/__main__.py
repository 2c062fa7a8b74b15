"""python -m tops_tests"""

import sys

from tops_tests.cli import main

sys.exit(main())
