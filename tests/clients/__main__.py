"""Runs one client program: `python tests/clients PROGRAM OPTIONS`."""

import importlib
import sys

PROGRAMS = ["kcat", "confluent", "kafka_python", "java_tools", "kill_nine", "kafka_files", "streams", "table"]

if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
    sys.exit(f"usage: python tests/clients PROGRAM OPTIONS, where PROGRAM is one of {', '.join(PROGRAMS)}")
importlib.import_module(f"check_{sys.argv[1]}").main()
