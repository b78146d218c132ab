import sys

from p2pfl.node.cli.main import main

sys.exit(main())
