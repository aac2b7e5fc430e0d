"""``python -m prefixcache.replay``."""

import sys

from prefixcache.replay.cli import main

sys.exit(main())
