"""python -m tops_kernels"""

import sys

from tops_kernels.cli import main

sys.exit(main())
