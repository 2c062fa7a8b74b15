"""python -m tops_manifest"""

import sys

from tops_manifest.cli import main

sys.exit(main())
