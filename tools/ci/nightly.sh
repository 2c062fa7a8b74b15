#!/usr/bin/env bash
# The long tail that pull requests leave out.
source "$(dirname "$0")/lib.sh"
uv run pytest -m slow
tools/ci/aot.sh --full
