#!/usr/bin/env bash
# Types of all five packages, of the tools that judge them, and of the examples.
source "$(dirname "$0")/lib.sh"
uv run mypy --strict packages/*/src tools examples --exclude '(^|/)tests/'
