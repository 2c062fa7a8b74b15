#!/usr/bin/env bash
# Build all five packages, then use each as a stranger would: alone, in a clean environment, outside the tree.
source "$(dirname "$0")/lib.sh"
uv run python -m tools.wheels
