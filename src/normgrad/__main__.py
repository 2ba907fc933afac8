"""``python -m normgrad``."""

import sys

from normgrad.cli import main

sys.exit(main())
