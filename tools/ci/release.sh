#!/usr/bin/env bash
# release.sh check TAG | build TAG --out DIR: what release.yml runs, and what a releaser can run first.
source "$(dirname "$0")/lib.sh"
uv run python -m tools.release "$@"
