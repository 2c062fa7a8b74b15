#!/usr/bin/env bash
# Types of all five packages, and of the tools that judge them.
source "$(dirname "$0")/lib.sh"
uv run mypy --strict packages/*/src tools --exclude '(^|/)tests/'
