import sys

from p2pfl.sim.cli.main import main

sys.exit(main())
